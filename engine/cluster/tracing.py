"""Tracing of a transaction in a cluster: whether it is committed, which client appended it, and which replicas hold it.

Every replica is read through its node's admin port: that needs no session, and does not fence off the session in force.  Records
do not name the session that wrote them; the trace has the partition's session as it is now.
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

    `state`: "equal" (to the record that most replicas hold), "different", "damaged" (a checksum is wrong, or the node refuses to
    return the record because it is damaged), "missing", or "unknown" (no answer).  `problem`: why there is no record.
    `data_checksum`: CRC-32 of its data.
    """

    node: str
    state: str
    data_checksum: int | None
    problem: str | None


@dataclass(frozen=True, slots=True)
class TransactionTrace:
    """A transaction.  `server_id`: the server that has the partition now; `committed`: None if no server answers."""

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
    """The id of the transaction with a request id, from `first` on up to the high-water mark; None if there is none.

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
    """Read every replica.  `state`: includes the partition; `high_water_mark`: the partition's, None if no server answers."""
    nodes = state.nodes_of(partition)
    answers = await asyncio.gather(*(_ask(state, node, reach, partition, transaction_id) for node in nodes))
    records = [one for one in answers if isinstance(one, WireRecord) and one.data_ok]
    prevailing = max(records, key=lambda record: sum(other == record for other in records), default=None)
    replicas = [_trace_of(node.node, answer, prevailing) for node, answer in zip(nodes, answers, strict=True)]
    owner = state.owner_of(partition)
    (metadata,) = (one for one in state.partitions if one.partition == partition)
    return TransactionTrace(
        partition,
        transaction_id,
        None if prevailing is None else prevailing.request_id,
        None if prevailing is None else prevailing.header,
        None if high_water_mark is None else transaction_id <= high_water_mark,
        high_water_mark,
        None if owner is None else owner.server_id,
        metadata.session_id,
        tuple(replicas),
    )


async def _ask(
    state: ClusterState, node: NodeState, reach: ConnectionFactory, partition: int, transaction_id: int
) -> WireRecord | WaltzError | None:
    """The replica's record; None if it has none; or the error."""
    try:
        async with await reach.admin(
            admin_address(node), cluster_key=state.cluster_key, num_partitions=state.num_partitions
        ) as client:
            found: Sequence[WireRecord] = await client.records(partition, transaction_id, 1)
    except WaltzError as error:
        return error
    return found[0] if found and found[0].transaction_id == transaction_id else None


def _trace_of(node: str, answer: WireRecord | WaltzError | None, prevailing: WireRecord | None) -> ReplicaTrace:
    if isinstance(answer, WaltzError):
        damaged = isinstance(answer, RemoteError) and answer.code in DAMAGED_RECORD
        return ReplicaTrace(node, "damaged" if damaged else "unknown", None, str(answer))
    if answer is None:
        return ReplicaTrace(node, "missing", None, None)
    state = "damaged" if not answer.data_ok else "equal" if answer == prevailing else "different"
    return ReplicaTrace(node, state, answer.data_checksum, None)
