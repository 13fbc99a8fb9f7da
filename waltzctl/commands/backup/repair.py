"""backup repair: damaged pages of a vault, taken anew."""

from __future__ import annotations

from typing import Annotated

import typer

from waltzctl.console import Console
from waltzctl.engine.shell_words import shell_quote
from waltzctl.exit_status import ExitStatus
from waltzctl.manual import Example, Manual
from waltzctl.options import FormatOption, QuietOption, VerboseOption, place_of
from waltzctl.values import counted
from waltzctl.vault_options import WRITING, PasswordOption, VaultArgument, password_of, vault_of

MANUAL = Manual(
    name="repair",
    page="backup",
    summary="Replace damaged pages of a vault from a directory",
    description=(
        (
            "Reads every page that a backup needs. The content of a damaged page is searched in DIR, records by"
            " transaction id, so any replica will do. It is used only if its digest is the one in the backup. Heads of"
            " backups and lists of files are restored from their second copies. Pages that cannot be repaired stay as"
            " they are (5)."
        ),
        "A vault whose log is damaged is not opened for writing: waltzctl pages recover repairs the log in place.",
    ),
    examples=(
        Example(
            "waltzctl backup repair /backup/waltz --from /var/lib/waltz",
            ("Repair from the directory that was backed up."),
        ),
    ),
    statuses=WRITING,
    objects=("vault-repaired",),
)


def run(
    vault: VaultArgument,
    source: Annotated[
        str, typer.Option("--from", metavar="DIR", help="A storage directory, or vault:VAULT::ID.", show_default=False)
    ],
    password_file: PasswordOption = None,
    output_format: FormatOption = None,
    quiet: QuietOption = False,
    verbose: VerboseOption = 0,
) -> ExitStatus:
    """Look, mend, report."""
    directory, place = vault_of(vault), place_of(source, name="--from")

    from waltzctl.engine.backup.backup_repair import repair_vault
    from waltzctl.objects.backup_objects import VAULT_REPAIRED

    with Console(output_format, quiet=quiet, verbose=verbose, single=True, must_finish=True) as console:
        done = repair_vault(directory, place, password=password_of(password_file))
        status = ExitStatus.CLEAN if done.mended == done.damaged else ExitStatus.DAMAGE_REMAINS
        console.emit_result(VAULT_REPAIRED.shown(done, path=str(directory), exit_status=int(status)), status)
        if not done.damaged:
            console.success("OK  no page is damaged.")
        elif status is ExitStatus.CLEAN:
            console.success(
                f"MENDED  {counted(done.mended, 'damaged page')}; waltzctl backup verify {shell_quote(str(directory))} proves it."
            )
        else:
            left = counted(done.damaged - done.mended, "page")
            console.sentence(f"DAMAGE REMAINS  {left} of {done.damaged} not found in {place}: try another replica.")
    return status
