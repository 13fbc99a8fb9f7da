"""recover with the replicas of partitions: online, by a session over their nodes as a log server opens it, or offline."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from waltzctl.change_procedure import Changed, change
from waltzctl.console import Console
from waltzctl.exit_status import ExitStatus
from waltzctl.metadata_option import ClusterTarget
from waltzctl.repair_procedure import UNCHANGED, UNCHANGED_ELSE, Switches, carry_out, only_shown
from waltzctl.values import counted, format_ranges

if TYPE_CHECKING:
    from waltzctl.engine.cluster.quorum_recovery import RecoveryPlan


def recover_cluster(
    target: ClusterTarget, console: Console, switches: Switches, partitions: frozenset[int] | None
) -> ExitStatus:
    """Show the replicas' votes in partitions without a server, and recover these partitions if the user agrees."""
    from waltzctl.engine.cluster.quorum_recovery import plan_recovery, recover
    from waltzctl.engine.errors import WaltzError
    from waltzctl.objects.cluster_objects import forecast_object, recovery_plan_object

    location, reach = target.location, target.connecting.reach(console)
    log = logging.Logger("waltzctl.recover", logging.CRITICAL)
    undecided: list[int] = []

    async def make() -> RecoveryPlan:
        async with location.open() as store:
            plan = await plan_recovery(store, reach, partitions)
        undecided[:] = [one.partition for one in plan.forecasts if one.high_water_mark is None]
        for one in plan.forecasts:
            console.emit(forecast_object(one), flush=True)
        if plan.served:
            console.note(f"partitions {format_ranges(plan.served)} are served by log servers, which recover them")
        return plan

    async def apply(agreed: RecoveryPlan) -> Changed:
        done: list[int] = []
        try:
            async with location.open() as store:
                await recover(store, agreed, reach, timeout=reach.timeout, log=log, on_recovered=done.append)
        except (WaltzError, asyncio.CancelledError):  # the latter by Ctrl-C
            if done:
                console.trouble(f"recovered all the same: partitions {format_ranges(done)}")
            raise
        return Changed(f"{counted(len(done), 'partition')} recovered.")

    return change(
        console,
        switches,
        make,
        apply,
        recovery_plan_object,
        left=lambda: ExitStatus.REPAIRABLE if undecided else ExitStatus.CLEAN,
    )


def recover_directories(
    console: Console,
    switches: Switches,
    paths: Sequence[Path],
    partitions: frozenset[int] | None,
    target: ClusterTarget | None,
    *,
    allow_data_loss: bool,
) -> ExitStatus:
    """Compare the replicas' directories, show the verdicts, and repair each directory as a recovery would, by a plan of its own.

    The exit status covers all partitions, including what no plan repairs because it is undecided or lost.  A replica that is only
    behind needs no repair, since the cluster brings it up to date: if all others are well, the status is clean.

    `target`: the cluster whose metadata has the number of replicas and the last session.
    """
    from waltzctl.engine.columns.finding_columns import FINDING
    from waltzctl.engine.compare.compare import compare
    from waltzctl.engine.compare.comparison import CompareOptions, CompareSummary, PartitionComparison, ReplicaStanding
    from waltzctl.engine.compare.plans import look_at, plan_anew, plans, unmoved
    from waltzctl.engine.findings import Finding
    from waltzctl.engine.metadata.cluster_state import ClusterState, read_cluster_state
    from waltzctl.engine.quorum.vote import Verdict
    from waltzctl.engine.task_executor import LocalExecutor
    from waltzctl.objects.compare_objects import comparison_object

    comparisons: list[PartitionComparison] = []
    status, findings = ExitStatus.CLEAN, 0
    state: ClusterState | None = (
        None if target is None else target.ask(lambda store: read_cluster_state(store, partitions))
    )
    options = CompareOptions(partitions)
    if state is not None:
        cluster = state.cluster_key, state.num_partitions
        options = CompareOptions(partitions, last_sessions=state.last_sessions, cluster=cluster)
    seen = look_at(paths, partitions)
    for told in compare(paths, options, LocalExecutor()):
        if isinstance(told, Finding):
            findings += 1
            console.emit(FINDING.shown(told), flush=True)
        elif isinstance(told, PartitionComparison):
            comparisons.append(told)
            console.emit(comparison_object(told), flush=True)
            if state is not None and told.decision.verdict is Verdict.UNDECIDABLE:
                names = ", ".join(one.node for one in state.metadata_of(told.partition).replicas)
                console.note(f"partition {told.partition}: the replicas of its last session were {names}")
        elif isinstance(told, CompareSummary):
            status = ExitStatus.from_label(told.exit_status_name)
    kept, moved = unmoved(comparisons, seen)
    repairs = plans(kept, paths, allow_data_loss=allow_data_loss, seen=seen)
    if not repairs:
        if moved is not None:
            raise moved
        which = "REPLICA THAT COULD BE READ" if status is ExitStatus.IO_ERROR else "REPLICA"
        console.sentence(f"NO {which} NEEDS A REPAIR. What is only behind, the cluster brings up to date.")
        standings = {own.state for one in comparisons for own in one.replicas}
        only_behind = standings <= {ReplicaStanding.EQUAL, ReplicaStanding.BEHIND} and not findings
        return ExitStatus.CLEAN if only_behind and status is ExitStatus.REPAIRABLE else status
    shown_only = only_shown(switches, agreed=switches.yes)
    done: list[ExitStatus] = []
    changed: list[Path] = []
    for first in repairs:
        # also of what another plan has brought back here: it was missing in the comparison, which both are made from
        stale = any(place.is_relative_to(one) for place in (*first.sources, *first.missing) for one in changed)
        repair = first
        if stale:
            repair = plan_anew(first, kept, paths, allow_data_loss=allow_data_loss, seen=seen, changed=changed)
        done.append(carry_out(console, repair, switches, otherwise=UNCHANGED_ELSE if changed else UNCHANGED))
        if repair.plan.steps and not shown_only:
            changed.append(repair.storage)
    if moved is not None:  # what is planned for the other partitions is done by now
        raise moved
    if shown_only or status is ExitStatus.IO_ERROR or not any(repair.plan.steps for repair in repairs):
        if status is ExitStatus.IO_ERROR and ExitStatus.DAMAGED in done:
            return ExitStatus.DAMAGED  # as verify: damage that is known counts for more than what could not be read
        return max(status, *done)
    if status is not ExitStatus.DAMAGED:
        return max(done)
    left = [one.partition for one in comparisons if one.decision.verdict in (Verdict.UNDECIDABLE, Verdict.LOST)]
    console.sentence(
        f"DAMAGE REMAINS  partitions {format_ranges(left)}: undecidable, or lost; the verdicts above say why."
    )
    return max(ExitStatus.DAMAGE_REMAINS, *done)
