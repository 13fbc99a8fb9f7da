"""The report of a cluster's verification: findings and a summary, in the form of verify's."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from waltzctl.console import Console
from waltzctl.exit_status import ExitStatus
from waltzctl.metadata_option import ClusterTarget
from waltzctl.options import Format
from waltzctl.values import counted, human_duration, verdict

if TYPE_CHECKING:
    from waltzctl.engine.cluster.cluster_verification import ClusterVerification
    from waltzctl.engine.findings import Finding
    from waltzctl.engine.inspect.verification import VerifySummary
    from waltzctl.engine.metadata.metadata_store import MetadataStore


def report(
    target: ClusterTarget,
    judge: Callable[[ClusterVerification], Awaitable[tuple[Finding, ...]]],
    partitions: frozenset[int] | None,
    output_format: Format | None,
    *,
    quiet: bool,
    verbose: int,
) -> ExitStatus:
    """Verify the cluster with `judge`, show the findings, and return the exit status."""
    from waltzctl.engine.cluster.cluster_verification import ClusterVerification
    from waltzctl.engine.columns.finding_columns import FINDING
    from waltzctl.engine.metadata.cluster_state import ClusterState, read_cluster_state
    from waltzctl.objects.verify_objects import VERIFY_SUMMARY

    with Console(output_format, quiet=quiet, verbose=verbose) as console:
        reach = target.connecting.reach(console)

        async def look(store: MetadataStore) -> tuple[ClusterState, tuple[Finding, ...], VerifySummary]:
            state = await read_cluster_state(store)
            verification = ClusterVerification(
                state, store.where, reach, partitions, connecting=target.connecting.arguments
            )
            return state, await judge(verification), verification.summary

        state, findings, summary = target.ask(look)
        console.known = status = ExitStatus.from_label(summary.exit_status_name)
        silent = console.quiet and console.for_people
        for one in findings:
            if not (silent and one.severity == "note"):
                console.emit(FINDING.shown(one), flush=True)
        if not (silent and status is ExitStatus.CLEAN):
            console.emit(VERIFY_SUMMARY.shown(summary), flush=True)
            asked = f"{counted(len(state.nodes), 'storage node')} and {counted(len(state.servers), 'log server')}"
            found = counted(len(findings), "finding") if findings else "no findings"
            took = human_duration(summary.elapsed_seconds)
            word = verdict(summary.status)
            console.sentence(f"{word}  {found} in {counted(summary.partitions, 'partition')}, {asked}, {took}.")
    return status
