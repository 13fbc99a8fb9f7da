"""Removal of replicas, checked against the metadata and against the storage nodes whose replicas stay.

The metadata says which replicas were in a partition's last session (`engine.metadata.cluster_changes`).  Only the nodes can tell
whether these still hold what they acknowledged: after a disk was replaced the metadata is the same as before.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from waltzctl.engine.client.connection_factory import ConnectionFactory
from waltzctl.engine.client.partition_readings import PartitionReading
from waltzctl.engine.cluster.cluster_answers import ask_nodes
from waltzctl.engine.metadata import cluster_changes
from waltzctl.engine.metadata.cluster_state import ClusterState, read_cluster_state
from waltzctl.engine.metadata.cluster_steps import APPLY, Mode, Steps
from waltzctl.engine.metadata.metadata_store import MetadataStore


def _say_nothing(_text: str) -> None:
    pass


async def unassign(
    store: MetadataStore,
    reach: ConnectionFactory,
    node: str,
    partitions: Collection[int],
    *,
    mode: Mode = APPLY,
    say: Callable[[str], None] = _say_nothing,
) -> Steps:
    """Remove partitions from a storage node.  `say` is called, when only planning, for each node that does not answer.

    ====================================================================  ======================================
    a replica that stays                                                  counts for the quorum of a recovery
    ====================================================================  ======================================
    not in service, by its node                                           no
    lost: its storage has an older session than the metadata              no
    its node does not answer                                              yes: the node may come back
    any other                                                             yes
    ====================================================================  ======================================

    Raises RefusedError, InvalidRequestError.
    """
    state = await read_cluster_state(store, partitions)
    # partitions beyond the cluster have no sessions
    wanted = {one for one in partitions if 0 <= one < state.num_partitions}
    staying = [one for one in state.nodes if one.node != node and wanted & {*one.partitions}]
    unfit: dict[int, dict[str, str]] = {}
    for answer in await ask_nodes(state, staying, reach, wanted):
        if answer.error is not None and mode.plan_only:
            say(f"storage node {answer.node.node} does not tell what it holds, and counts as whole: {answer.error}")
        given = {*answer.node.partitions}
        for reading in answer.partitions:
            why = _why_unfit(state, answer.node.node, reading) if reading.partition in given else None
            if why is not None:
                unfit.setdefault(reading.partition, {})[answer.node.node] = why
    return await cluster_changes.unassign(store, node, partitions, mode=mode, unfit=unfit)


def _why_unfit(state: ClusterState, node: str, reading: PartitionReading) -> str | None:
    if reading.why_absent is not None:
        return reading.why_absent
    last, held = state.metadata_of(reading.partition), reading.session_id
    if node not in last.members or held is None or held >= last.latest_session:
        return None
    return f"it has lost what it held: it is in session {held}, and was in session {last.latest_session}"
