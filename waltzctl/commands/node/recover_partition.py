"""node recover-partition: bring a partition up to date from another node."""

from __future__ import annotations

import enum
from typing import Annotated

import typer

from waltzctl.change_procedure import NODE_SAFETY
from waltzctl.commands.node.node_target import NodeTarget
from waltzctl.connection_options import address_of
from waltzctl.console import Console
from waltzctl.exit_status import CHANGING_NODES, ExitStatus
from waltzctl.manual import Example, Manual, ManualSection
from waltzctl.options import (
    DryRunOption,
    FormatOption,
    OnePartitionOption,
    QuietOption,
    VerboseOption,
    YesOption,
    parsed,
)
from waltzctl.repair_procedure import Switches
from waltzctl.values import parse_size

MANUAL = Manual(
    name="recover-partition",
    page="node",
    summary="Bring a partition up to date from another node",
    description=(
        (
            "HOST:PORT is the destination; --from is the admin port of the source. The destination keeps its records"
            " up to its low-water mark, and gets everything up to the source's local low-water mark, up to which the"
            " source's transactions are acknowledged. Records of the destination above its low-water mark are"
            " replaced. Its session stays the same. A source of another cluster is refused (12), unless both are nodes of"
            " release 0.13.2, which do not report theirs."
        ),
        (
            "The destination must be offline during the copy; --offline-first switches it off before, and on again"
            " after the copy was found equal. Checksums are verified during the copy, and the transaction at which the"
            " copy continues is compared first. If somebody has written to the destination by the time that it is offline,"
            " nothing is cut or copied (13). An interrupted copy leaves the partition offline. Run the same command"
            " again to continue; a partition that was offline before stays offline, so then switch it on with"
            " availability --online true."
        ),
    ),
    examples=(
        Example(
            "waltzctl node 127.0.0.1:55381 recover-partition --partition 3 --from 127.0.0.1:55281 --dry-run",
            "What would be cut and copied?",
        ),
        Example(
            "waltzctl node 127.0.0.1:55381 recover-partition --partition 3 --from 127.0.0.1:55281 --offline-first",
            "Do it, after typing 3.",
        ),
    ),
    statuses=tuple(sorted({*CHANGING_NODES, ExitStatus.DAMAGED, ExitStatus.MISMATCH})),
    objects=("plan", "result"),
    sections=(
        NODE_SAFETY,
        ManualSection(
            "COMPARISON",
            (
                (
                    "Afterwards the last transaction and a sample of records are compared on both sides (--compare"
                    " sample), or all records, which reads both partitions completely (--compare all), or none."
                    " Differences are findings, with exit status 4, and the partition is not switched on again."
                ),
            ),
        ),
    ),
)


class _Compare(enum.StrEnum):
    NONE = "none"
    SAMPLE = "sample"
    ALL = "all"


def run(
    ctx: typer.Context,
    partition: OnePartitionOption,
    source: Annotated[
        str, typer.Option("--from", metavar="HOST:PORT", help="Admin port of the source.", show_default=False)
    ],
    offline_first: Annotated[
        bool, typer.Option("--offline-first", help="Switch the partition off before, and on again at the end.")
    ] = False,
    batch: Annotated[
        int, typer.Option("--batch", metavar="N", min=1, max=100_000, help="Records in flight at most.")
    ] = 10_000,
    batch_size: Annotated[
        str | None, typer.Option("--batch-size", metavar="SIZE", help="Bytes in flight, approximately; default 8MiB.")
    ] = None,
    compare: Annotated[_Compare, typer.Option("--compare", help="What to compare afterwards.")] = _Compare.SAMPLE,
    yes: YesOption = False,
    dry_run: DryRunOption = False,
    output_format: FormatOption = None,
    quiet: QuietOption = False,
    verbose: VerboseOption = 0,
) -> ExitStatus:
    """Plan, confirm, copy, compare."""
    target = NodeTarget.of(ctx)
    origin = address_of(source, name="--from")
    size = parsed("--batch-size", batch_size, parse_size)
    switches = Switches(yes, dry_run, None)
    switches.check()

    from waltzctl.engine.client.admin_records import DEFAULT_BYTES
    from waltzctl.engine.client.copying import Comparison, CopyOptions
    from waltzctl.partition_copy import recover_partition

    options = CopyOptions(
        partition,
        offline_first=offline_first,
        batch_records=batch,
        batch_bytes=size or DEFAULT_BYTES,
        comparison=Comparison(compare.value),
        connecting=target.connecting.arguments,
        data_port=None if target.data == target.admin.with_port(target.admin.port - 1) else target.data.port,
    )
    with (
        Console(output_format, quiet=quiet, verbose=verbose, single=True, must_finish=True) as console,
        target.explaining(),
    ):
        return recover_partition(console, switches, target.reach(console), target.admin, target.data, origin, options)
