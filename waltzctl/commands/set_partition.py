"""set-partition: session, marks, assignment and availability of a partition, offline."""

from __future__ import annotations

from typing import Annotated

import typer

from waltzctl.console import Console
from waltzctl.exit_status import ExitStatus
from waltzctl.manual import Example, Manual, ManualSection
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
from waltzctl.repair_procedure import SAFETY, STATUSES, Switches, carry_out, planned, repair_with

MANUAL = Manual(
    name="set-partition",
    summary="Set session, marks, assignment or availability of a partition, offline",
    description=(
        (
            "Sets the given values and leaves the rest; records are never touched. -1 is the format's own value for"
            " none. A lower session or mark withdraws what was acknowledged, so it needs --allow-data-loss; so does a"
            " local low-water mark above the last transaction here. For a running node use waltzctl node."
        ),
        (
            "--unassigned keeps session, marks and files, so that --assigned continues with them: in the released"
            " layout the flag changes, in the documented one the partition's directory moves to .waltzctl/unassigned"
            " and back. A partition without files begins empty. --unavailable switches reading and writing off."
        ),
    ),
    examples=(
        Example("waltzctl set-partition /data/waltz --partition 3 --unassigned --dry-run", "Show what would change."),
        Example("waltzctl set-partition /data/waltz --partition 3 --session-id 12", "Apply it, after typing 3."),
        Example(
            "waltzctl set-partition /data/waltz --partition 3 --local-low-water-mark 81236 --allow-data-loss --yes",
            "Lower a mark, in a script.",
        ),
    ),
    statuses=STATUSES,
    objects=("plan", "result"),
    sections=(
        ManualSection(
            "SESSIONS",
            (
                (
                    "A node of waltzctl also keeps the highest accepted session in .waltzctl/sessions, as a fence; the"
                    " larger of this and the control file's session is in force. A session below the fence is refused;"
                    " with --allow-data-loss the fence is lowered too, and a server that was replaced long ago may"
                    " write again."
                ),
            ),
        ),
        SAFETY,
    ),
)


def run(
    path: StorageArgument,
    partition: OnePartitionOption,
    session_id: Annotated[int | None, typer.Option("--session-id", metavar="N", min=-1, help="The session.")] = None,
    low_water_mark: Annotated[
        int | None,
        typer.Option(
            "--low-water-mark", metavar="T", min=-1, help="The cluster's high-water mark when the session began."
        ),
    ] = None,
    local_low_water_mark: Annotated[
        int | None,
        typer.Option("--local-low-water-mark", metavar="T", min=-1, help="Last transaction that is durable here."),
    ] = None,
    assigned: Annotated[
        bool | None, typer.Option("--assigned/--unassigned", help="Whether it belongs to this node.")
    ] = None,
    available: Annotated[
        bool | None, typer.Option("--available/--unavailable", help="Whether it may be read and written.")
    ] = None,
    allow_data_loss: Annotated[
        bool,
        typer.Option(
            "--allow-data-loss", help="Also lower a session or mark, or raise a mark above the last transaction here."
        ),
    ] = False,
    yes: YesOption = False,
    dry_run: DryRunOption = False,
    plan: PlanOption = None,
    output_format: FormatOption = None,
    quiet: QuietOption = False,
    verbose: VerboseOption = 0,
) -> ExitStatus:
    """Plan, confirm, set."""
    from waltzctl.formats.ids import LAST_TRANSACTION_ID

    storage = path_of(path)
    numbers = (
        (session_id, "--session-id"),
        (low_water_mark, "--low-water-mark"),
        (local_low_water_mark, "--local-low-water-mark"),
    )
    for number, option in numbers:
        if transaction_of(number, option) == LAST_TRANSACTION_ID:
            raise typer.BadParameter(f"{number}: nothing could come after it", param_hint=f"'{option}'")
    switches = Switches(yes, dry_run, plan)
    switches.check()
    nothing = all(one is None for one in (session_id, low_water_mark, local_low_water_mark, assigned, available))
    if nothing and plan is None:
        raise typer.BadParameter("nothing is to be set; name a session, a mark, or one of the switches")

    from waltzctl.engine.repair.arguments import Arguments, PartitionSetting
    from waltzctl.engine.repair.plan import Repair
    from waltzctl.engine.repair.set_partition import plan_set_partition

    setting = PartitionSetting(session_id, low_water_mark, local_low_water_mark, assigned, available)
    given = Arguments.of({partition}, allow_data_loss=allow_data_loss, settings=setting.chosen())
    if given == Arguments.of({partition}):
        given = Arguments()  # with --plan only: the options are in the file

    def make() -> Repair:
        return plan_set_partition(storage, partition=partition, setting=setting, allow_data_loss=allow_data_loss)

    with Console(output_format, quiet=quiet, verbose=verbose, single=True, must_finish=True) as console:
        if plan is not None:
            repair = planned(switches, MANUAL.name, storage, given, make)
            if repair.plan.arguments.partitions != (partition,):
                raise typer.BadParameter(
                    f"the plan is for partition {repair.plan.arguments.partitions}", param_hint="'--plan'"
                )
            return carry_out(console, repair, switches)
        return repair_with(console, switches, MANUAL.name, storage, given, make)
