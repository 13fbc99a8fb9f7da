"""Following a transaction through a cluster: whether it is committed, who appended it, and which replicas hold it.

Every replica is asked through its node's admin port, which needs no session and shuts nobody out.  A record says nothing of the
session that wrote it; the partition's session now is told.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from waltzctl.engine.client.connection_factory import ConnectionFactory
from waltzctl.engine.client.log_client import LogClient
from waltzctl.engine.cluster.synchronisation import admin_address
from waltzctl.engine.errors import RemoteError, WaltzError
from waltzctl.engine.metadata.cluster_state import ClusterState, NodeState
from waltzctl.formats.request_id import RequestId
from waltzctl.formats.wire.failure import DAMAGED_RECORD
from waltzctl.formats.wire.records import WireRecord


@dataclass(frozen=True, slots=True)
class ReplicaTrace:
    """What a replica holds under the transaction's id.

    `state`: equal (to what most replicas hold), different, damaged (a checksum is wrong, or the node does not give it out for
    what is wrong with it), missing, or unknown (no answer).  `problem`: why there is no record.  `data_checksum`: CRC-32 of its
    data.
    """

    node: str
    state: str
    data_checksum: int | None
    problem: str | None


@dataclass(frozen=True, slots=True)
class TransactionTrace:
    """A transaction.  `server_id`: who has the partition now; `committed`: None where no server tells."""

    partition: int
    transaction_id: int
    request_id: RequestId | None
    header: int | None
    committed: bool | None
    high_water_mark: int | None
    server_id: int | None
    session_id: int
    replicas: tuple[ReplicaTrace, ...]


async def find(client: LogClient, request_id: RequestId, first: int = 0) -> int | None:
    """The transaction of a request id, looked for from `first` on up to the high-water mark; None where there is none.

    Raises as `LogClient.feed` with the client's `timeout`.
    """
    partition = request_id.partition
    last = await client.high_water_mark(partition)
    if first > last:
        return None
    async for one in client.feed(partition, after=first - 1, until=lambda _: last, timeout=client.options.timeout):
        if one.request_id == request_id:
            return one.transaction_id
    return None


async def trace(
    state: ClusterState, reach: ConnectionFactory, partition: int, transaction_id: int, high_water_mark: int | None
) -> TransactionTrace:
    """Ask every replica.  `state`: with the partition's; `high_water_mark`: of the partition, None where no server tells it."""
    nodes = state.nodes_of(partition)
    answers = await asyncio.gather(*(_ask(state, node, reach, partition, transaction_id) for node in nodes))
    records = [one for one in answers if isinstance(one, WireRecord) and one.data_ok]
    most = max(records, key=lambda record: sum(other == record for other in records), default=None)
    replicas = [_judged(node.node, answer, most) for node, answer in zip(nodes, answers, strict=True)]
    owner = state.owner_of(partition)
    (metadata,) = (one for one in state.partitions if one.partition == partition)
    return TransactionTrace(
        partition,
        transaction_id,
        None if most is None else most.request_id,
        None if most is None else most.header,
        None if high_water_mark is None else transaction_id <= high_water_mark,
        high_water_mark,
        None if owner is None else owner.server_id,
        metadata.session_id,
        tuple(replicas),
    )


async def _ask(
    state: ClusterState, node: NodeState, reach: ConnectionFactory, partition: int, transaction_id: int
) -> WireRecord | WaltzError | None:
    """Its record; None where it has none; why it did not give one."""
    try:
        async with await reach.admin(
            admin_address(node), cluster_key=state.cluster_key, num_partitions=state.num_partitions
        ) as client:
            found: Sequence[WireRecord] = await client.records(partition, transaction_id, 1)
    except WaltzError as error:
        return error
    return found[0] if found and found[0].transaction_id == transaction_id else None


def _judged(node: str, answer: WireRecord | WaltzError | None, most: WireRecord | None) -> ReplicaTrace:
    if isinstance(answer, WaltzError):
        damaged = isinstance(answer, RemoteError) and answer.code in DAMAGED_RECORD
        return ReplicaTrace(node, "damaged" if damaged else "unknown", None, str(answer))
    if answer is None:
        return ReplicaTrace(node, "missing", None, None)
    state = "damaged" if not answer.data_ok else "equal" if answer == most else "different"
    return ReplicaTrace(node, state, answer.data_checksum, None)
