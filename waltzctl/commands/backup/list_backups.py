"""backup list: the backups of a vault."""

from __future__ import annotations

from waltzctl.console import Console
from waltzctl.exit_status import ExitStatus
from waltzctl.manual import Example, Manual
from waltzctl.options import FormatOption, QuietOption, VerboseOption
from waltzctl.values import counted
from waltzctl.vault_options import LOOKING, PasswordOption, VaultArgument, password_of, vault_of

MANUAL = Manual(
    name="list",
    page="backup",
    summary="List the backups of a vault, the oldest first",
    description=(
        (
            "A backup whose head cannot be read is shown as a finding after the others. So is damage of the vault's"
            " log, with which backups may be lost."
        ),
    ),
    examples=(Example("waltzctl backup list /backup/waltz --format ndjson", "For scripts."),),
    statuses=LOOKING,
    objects=("backup", "finding"),
)


def run(
    vault: VaultArgument,
    password_file: PasswordOption = None,
    output_format: FormatOption = None,
    quiet: QuietOption = False,
    verbose: VerboseOption = 0,
) -> ExitStatus:
    """Look and show."""
    directory = vault_of(vault)

    from waltzctl.engine.columns.finding_columns import FINDING
    from waltzctl.engine.vault.vault_reader import UnreadableBackup, VaultReader
    from waltzctl.objects.backup_objects import BACKUP

    count = 0
    with Console(output_format, quiet=quiet, verbose=verbose) as console:
        reader = VaultReader.open(directory, password_of(password_file))
        for one in reader.heads():
            if isinstance(one, UnreadableBackup):
                console.known = ExitStatus.DAMAGED
                console.emit(FINDING.shown(one.finding))
            else:
                count += 1
                console.emit(BACKUP.shown(one))
        for finding in reader.damage:
            console.known = ExitStatus.DAMAGED
            console.emit(FINDING.shown(finding))
        console.success(f"{counted(count, 'backup')} in {directory}.")
    return console.known
