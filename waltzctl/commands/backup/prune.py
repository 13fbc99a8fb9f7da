"""backup prune: give back the room of what no backup needs."""

from __future__ import annotations

from waltzctl.console import Console
from waltzctl.exit_status import ExitStatus
from waltzctl.manual import Example, Manual
from waltzctl.options import FormatOption, QuietOption, VerboseOption
from waltzctl.values import human_bytes
from waltzctl.vault_options import WRITING, PasswordOption, VaultArgument, password_of, vault_of

MANUAL = Manual(
    name="prune",
    page="backup",
    summary="Release space that no backup needs",
    description=(
        (
            "Empties files of the vault that are mostly unused, and cuts or removes them; every page is checked as it"
            " is moved. A kill at any moment loses nothing. A damaged page stays where it is and is named."
        ),
    ),
    examples=(Example("waltzctl backup prune /backup/waltz", "After backups were forgotten."),),
    statuses=WRITING,
    objects=("vault-pruned", "finding"),
)


def run(
    vault: VaultArgument,
    password_file: PasswordOption = None,
    output_format: FormatOption = None,
    quiet: QuietOption = False,
    verbose: VerboseOption = 0,
) -> ExitStatus:
    """Collect and report."""
    directory = vault_of(vault)

    from waltzctl.engine.backup.backup_removal import prune_vault
    from waltzctl.engine.columns.finding_columns import FINDING
    from waltzctl.objects.backup_objects import PRUNED

    with Console(output_format, quiet=quiet, verbose=verbose, must_finish=True) as console:
        done = prune_vault(directory, password=password_of(password_file))
        status = ExitStatus.DAMAGE_REMAINS if done.findings else ExitStatus.CLEAN
        for one in done.findings:
            console.emit(FINDING.shown(one))
        console.emit_result(PRUNED.shown(done, path=str(directory), exit_status=int(status)), status)
        console.success(f"PRUNED  {human_bytes(done.before)} of files became {human_bytes(done.after)}.")
    return status
