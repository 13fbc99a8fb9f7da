"""backup dump: what is in the files of a backup."""

from __future__ import annotations

from typing import Annotated

import typer

from waltzctl.console import refusals
from waltzctl.exit_status import INSPECTING, ExitStatus
from waltzctl.manual import Example, Manual
from waltzctl.options import (
    DataForm,
    DumpFormat,
    PartitionsOption,
    QuietOption,
    VerboseOption,
    What,
    partitions_of,
    path_of,
    transaction_of,
)
from waltzctl.vault_options import BackupArgument, PasswordOption, VaultArgument, password_of, vault_of

MANUAL = Manual(
    name="dump",
    page="backup",
    summary="Show what is in the files of a backup, without restoring it",
    description=(
        (
            "As waltzctl dump vault:VAULT::ID, with the vault's password as an option; what the options and formats mean stands"
            " in waltzctl-dump(1). A damaged page of the vault shows as a finding where it is, and what follows is shown."
        ),
    ),
    examples=(
        Example("waltzctl backup dump /backup/waltz latest --partition 3 --reverse --limit 1", "Its last transaction."),
        Example(
            "waltzctl backup dump /backup/waltz 20261124 --partition 3 --from 7 --to 7 --format raw -o payload.bin",
            "The bytes of one record's data.",
        ),
    ),
    statuses=tuple(sorted({*INSPECTING, ExitStatus.REFUSED})),
    objects=("record", "finding", "control", "partition-info", "segment", "index-entry"),
)


def run(
    vault: VaultArgument,
    backup: BackupArgument,
    what: Annotated[What | None, typer.Option("--what", help="What to show; records unless given.")] = None,
    first: Annotated[int | None, typer.Option("--from", metavar="T", min=0, help="First transaction.")] = None,
    last: Annotated[int | None, typer.Option("--to", metavar="T", min=0, help="Last transaction.")] = None,
    limit: Annotated[int | None, typer.Option("--limit", metavar="N", min=0, help="At most so many objects.")] = None,
    reverse: Annotated[bool, typer.Option("--reverse", help="Last record first.")] = False,
    data: Annotated[DataForm | None, typer.Option("--data", help="Form of the data; base64 unless given.")] = None,
    output: Annotated[
        str | None,
        typer.Option("-o", "--output", metavar="FILE", help="Write there instead; FILE appears once it is whole."),
    ] = None,
    partition: PartitionsOption = None,
    password_file: PasswordOption = None,
    output_format: Annotated[
        DumpFormat | None,
        typer.Option("--format", help="Form of the output; table on a terminal and plain elsewhere unless given."),
    ] = None,
    quiet: QuietOption = False,
    verbose: VerboseOption = 0,
) -> ExitStatus:
    """Show it."""
    directory, partitions = vault_of(vault), partitions_of(partition)
    first, last = transaction_of(first, "--from"), transaction_of(last, "--to")
    if first is not None and last is not None and first > last:
        raise typer.BadParameter(f"{last} lies before --from {first}", param_hint="'--to'")
    target = path_of(output, name="-o") if output is not None else None

    from waltzctl.engine.vault.vault_access import VAULTS
    from waltzctl.storage_dump import DumpRequest, dump

    with refusals(output_format):
        path = VAULTS.place_of(directory, backup, password_of(password_file))
    return dump(
        DumpRequest(path, what, partitions, first, last, limit, reverse, data, output_format, target, quiet, verbose)
    )
