"""backup show: one backup."""

from __future__ import annotations

from waltzctl.console import Console
from waltzctl.manual import Example, Manual
from waltzctl.options import FormatOption, QuietOption, VerboseOption
from waltzctl.vault_options import LOOKING, BackupArgument, PasswordOption, VaultArgument, password_of, vault_of

MANUAL = Manual(
    name="show",
    page="backup",
    summary="Show one backup: its partitions, and its time and size",
    description=("Other commands show its content: waltzctl status vault:VAULT::ID, dump, stats.",),
    examples=(Example("waltzctl backup show /backup/waltz latest", "The newest backup."),),
    statuses=LOOKING,
    objects=("backup",),
)


def run(
    vault: VaultArgument,
    backup: BackupArgument,
    password_file: PasswordOption = None,
    output_format: FormatOption = None,
    quiet: QuietOption = False,
    verbose: VerboseOption = 0,
) -> None:
    """Look and show."""
    directory = vault_of(vault)

    from waltzctl.engine.vault.vault_reader import VaultReader
    from waltzctl.objects.backup_objects import BACKUP

    with Console(output_format, quiet=quiet, verbose=verbose, single=True) as console:
        head = VaultReader.open(directory, password_of(password_file)).find(backup)
        console.emit(BACKUP.shown(head), flush=True)
