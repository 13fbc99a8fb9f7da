"""node records: what a partition holds."""

from __future__ import annotations

from typing import Annotated

import typer

from waltzctl.commands.node.node_target import LOOKING, NodeTarget, WantedPartitions, wanted_of
from waltzctl.exit_status import ExitStatus
from waltzctl.manual import Example, Manual
from waltzctl.options import DataForm, DumpFormat, Format, FormatOption, QuietOption, VerboseOption, transaction_range

MANUAL = Manual(
    name="records",
    page="node",
    summary="Show records of partitions",
    description=(
        (
            "Reads through the admin port, whether the partition is switched on or off. The object is that of dump,"
            " without file offsets, which a node does not tell. A record whose data does not match its checksum is"
            " preceded by a finding, and the exit status reports it."
        ),
    ),
    examples=(
        Example("waltzctl node 127.0.0.1:55281 records --partition 3 --from 81230 --to 81240", "Eleven transactions."),
    ),
    statuses=LOOKING,
    objects=("record", "finding"),
)


def run(
    ctx: typer.Context,
    partition: WantedPartitions,
    first: Annotated[int | None, typer.Option("--from", metavar="T", min=0, help="First transaction.")] = None,
    last: Annotated[int | None, typer.Option("--to", metavar="T", min=0, help="Last transaction.")] = None,
    limit: Annotated[int | None, typer.Option("--limit", metavar="N", min=0, help="At most this many records.")] = None,
    data: Annotated[DataForm | None, typer.Option("--data", help="Form of the data; default base64.")] = None,
    output_format: FormatOption = None,
    quiet: QuietOption = False,
    verbose: VerboseOption = 0,
) -> ExitStatus:
    """Read and show."""
    target = NodeTarget.of(ctx)
    wanted = wanted_of(partition)
    transaction_range(first, last)
    chosen = None if output_format is None else DumpFormat(Format(output_format).value)

    from waltzctl.node_dump import NodeDump, dump_node

    return dump_node(
        NodeDump(
            address=target.admin,
            connecting=target.connecting,
            partitions=wanted,
            first=first,
            last=last,
            limit=limit,
            data=data,
            format=chosen,
            output=None,
            quiet=quiet,
            verbose=verbose,
        )
    )
