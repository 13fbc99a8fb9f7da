"""Overview of a running cluster: for each partition its server, high-water mark and rate, and how far each replica is behind.

One overview costs two requests to each storage node (its metrics name every partition), two to each log server, and one for the
high-water mark of each partition, all at the same time.  A node or server that does not answer by the deadline is left out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from waltzctl.engine.amounts import chosen_partitions
from waltzctl.engine.client.connection_factory import ConnectionFactory
from waltzctl.engine.client.partition_readings import PartitionReading
from waltzctl.engine.cluster.cluster_answers import ask_nodes, ask_servers
from waltzctl.engine.metadata.cluster_state import ClusterState, PartitionState, ServerState


@dataclass(frozen=True, slots=True)
class ReplicaOverview:
    """A replica.

    `last_transaction_id`: None if its node does not answer, or the replica is not in service; `behind`: the number of committed
    transactions that it lacks; `why_absent`: why it is not in service, if its node reports that.
    """

    node: str
    last_transaction_id: int | None
    behind: int | None
    why_absent: str | None


@dataclass(frozen=True, slots=True)
class PartitionOverview:
    """A partition.

    `rate`: transactions a second since the previous overview; None in the first.  `waits_for`: if it has no session, the storage
    nodes that do not answer or have its replica out of service; empty otherwise.
    """

    partition: int
    server_id: int | None
    generation: int
    session_id: int
    high_water_mark: int | None
    rate: float | None
    healthy: bool
    waits_for: tuple[str, ...]
    replicas: tuple[ReplicaOverview, ...]


@dataclass(frozen=True, slots=True)
class Unheard:
    """A storage node or log server that did not answer; `why`: the error."""

    address: str
    why: str


@dataclass(frozen=True, slots=True)
class ClusterOverview:
    """One overview.  `time`: the loop's time, seconds.  `unheard`: nodes, then servers, each in the order of the metadata."""

    time: float
    partitions: tuple[PartitionOverview, ...]
    nodes_answering: int
    nodes: int
    servers_answering: int
    servers: int
    unheard: tuple[Unheard, ...]


async def observe(
    state: ClusterState,
    reach: ConnectionFactory,
    before: ClusterOverview | None = None,
    partitions: Collection[int] | None = None,
) -> ClusterOverview:
    """Ask all nodes and servers.  `before`: the previous overview, for rates; `partitions`: only these, which must exist.

    `state` need not have other partitions than these.
    """
    wanted = chosen_partitions(partitions, state.num_partitions)
    nodes, servers = await asyncio.gather(
        ask_nodes(state, state.nodes, reach), ask_servers(state, reach, {*wanted}, connectivity=False)
    )
    held = {one.node.node: {reading.partition: reading for reading in one.partitions} for one in nodes}
    served = {one.server.server_id: dict(one.marks) for one in servers}
    now = asyncio.get_running_loop().time()
    known = {} if before is None else {one.partition: one.high_water_mark for one in before.partitions}
    elapsed = 0.0 if before is None else now - before.time
    metadata = {one.partition: one for one in state.partitions}
    found = []
    for number in wanted:
        owner = state.owner_of(number)
        mark = None if owner is None else served[owner.server_id].get(number)
        rate = _rate(mark, known.get(number), elapsed)
        found.append(_partition(state, metadata[number], owner, mark, held, rate))
    return ClusterOverview(
        now,
        tuple(found),
        sum(one.error is None for one in nodes),
        len(nodes),
        sum(one.error is None for one in servers),
        len(servers),
        (
            *(Unheard(one.node.node, str(one.error)) for one in nodes if one.error is not None),
            *(Unheard(one.server.endpoint, str(one.error)) for one in servers if one.error is not None),
        ),
    )


def _rate(now: int | None, then: int | None, seconds: float) -> float | None:
    return None if now is None or then is None or seconds <= 0 else max(0, now - then) / seconds


def _partition(
    state: ClusterState,
    metadata: PartitionState,
    owner: ServerState | None,
    mark: int | None,
    held: Mapping[str, Mapping[int, PartitionReading]],
    rate: float | None,
) -> PartitionOverview:
    replicas, absent = [], []
    number = metadata.partition
    for node in state.nodes_of(number):
        reading = held[node.node].get(number)
        why_absent = None if reading is None else reading.why_absent
        last = None if reading is None or why_absent is not None else reading.last_transaction_id
        if last is None:
            absent.append(node.node)
        behind = None if last is None or mark is None else max(0, mark - last)
        replicas.append(ReplicaOverview(node.node, last, behind, why_absent))
    return PartitionOverview(
        number,
        None if owner is None else owner.server_id,
        metadata.generation,
        metadata.session_id,
        mark,
        rate,
        mark is not None,
        () if mark is not None else tuple(absent),
        tuple(replicas),
    )
