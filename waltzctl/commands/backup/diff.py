"""backup diff: what changed between two backups."""

from __future__ import annotations

from typing import Annotated

import typer

from waltzctl.console import Console
from waltzctl.manual import Example, Manual
from waltzctl.options import FormatOption, QuietOption, VerboseOption
from waltzctl.values import counted, human_bytes
from waltzctl.vault_options import LOOKING, PasswordOption, VaultArgument, password_of, vault_of

MANUAL = Manual(
    name="diff",
    page="backup",
    summary="Show what changed between two backups",
    description=(
        (
            "For each partition, without reading pages: the transactions in each backup, and how much content only one"
            " of the two holds. The backups may be of two replicas. waltzctl compare vault:VAULT::ID vault:VAULT::ID"
            " shows which records differ."
        ),
    ),
    examples=(Example("waltzctl backup diff /backup/waltz 3f latest", "Changes since backup 3f."),),
    statuses=LOOKING,
    objects=("backup-difference",),
)


def run(
    vault: VaultArgument,
    first: Annotated[str, typer.Argument(metavar="ID", help="The first backup.", show_default=False)],
    second: Annotated[str, typer.Argument(metavar="ID", help="The second backup.", show_default=False)],
    password_file: PasswordOption = None,
    output_format: FormatOption = None,
    quiet: QuietOption = False,
    verbose: VerboseOption = 0,
) -> None:
    """Compare and show."""
    directory = vault_of(vault)

    from waltzctl.engine.backup.backup_difference import SectionDifference, differences
    from waltzctl.engine.vault.vault_reader import VaultReader
    from waltzctl.objects.backup_objects import DIFFERENCE

    with Console(output_format, quiet=quiet, verbose=verbose) as console:
        reader = VaultReader.open(directory, password_of(password_file))
        found = list(differences(reader, reader.find(first), reader.find(second)))
        for one in found:
            console.emit(DIFFERENCE.shown(one))
        changed = sum(one.difference is not SectionDifference.SAME for one in found)
        added, removed = (
            human_bytes(sum(getattr(one, name) for one in found)) for name in ("bytes_added", "bytes_removed")
        )
        console.success(f"{counted(changed, 'part')} of {len(found)} differ: {added} came, {removed} went.")
