"""truncate: cut the end of a partition."""

from __future__ import annotations

from typing import Annotated

import typer

from waltzctl.console import Console
from waltzctl.exit_status import ExitStatus
from waltzctl.manual import Example, Manual
from waltzctl.options import (
    DryRunOption,
    FormatOption,
    OnePartitionOption,
    PlanOption,
    QuietOption,
    StorageArgument,
    VerboseOption,
    YesOption,
    path_of,
    transaction_of,
)
from waltzctl.repair_procedure import SAFETY, STATUSES, Switches, repair_with

MANUAL = Manual(
    name="truncate",
    summary="Cut the end of a partition after a transaction",
    description=(
        (
            "Keeps the transaction given with --after and everything before it. Everything after it is removed,"
            " including what follows the last valid transaction: damage, repeated transactions, an index without data."
            " Cutting at or below the local low-water mark, where transactions are known to be acknowledged, also"
            " needs --allow-data-loss; the mark is then lowered, and the partition is a replica that is behind."
            " Removed bytes are kept in the quarantine; undo restores them."
        ),
    ),
    examples=(
        Example("waltzctl truncate /data/waltz --partition 3 --after 81236 --dry-run", "Show what would be removed."),
        Example("waltzctl truncate /data/waltz --partition 3 --after 81236", "Apply it, after typing 3."),
        Example("waltzctl truncate /data/waltz --partition 3 --after 81236 --yes", "Apply it in a script."),
    ),
    statuses=STATUSES,
    objects=("plan", "result"),
    sections=(SAFETY,),
)


def run(
    path: StorageArgument,
    partition: OnePartitionOption,
    after: Annotated[
        int,
        typer.Option(
            "--after", metavar="T", min=-1, help="Last transaction to keep; -1 keeps none.", show_default=False
        ),
    ],
    allow_data_loss: Annotated[
        bool, typer.Option("--allow-data-loss", help="Also cut acknowledged transactions.")
    ] = False,
    yes: YesOption = False,
    dry_run: DryRunOption = False,
    plan: PlanOption = None,
    output_format: FormatOption = None,
    quiet: QuietOption = False,
    verbose: VerboseOption = 0,
) -> ExitStatus:
    """Plan, confirm, cut."""
    storage = path_of(path)
    transaction_of(after, "--after")
    switches = Switches(yes, dry_run, plan)
    switches.check()

    from waltzctl.engine.repair.arguments import Arguments
    from waltzctl.engine.repair.truncate import plan_truncate

    given = Arguments.of({partition}, after=after, allow_data_loss=allow_data_loss)
    with Console(output_format, quiet=quiet, verbose=verbose, single=True, must_finish=True) as console:
        return repair_with(
            console,
            switches,
            MANUAL.name,
            storage,
            given,
            lambda: plan_truncate(storage, partition=partition, after=after, allow_data_loss=allow_data_loss),
        )
