"""Tracing of a transaction in a cluster: who appended and accepted it, whether it is committed, and where replicas hold it.

Every replica is read through its node's admin port: that needs no session, and does not fence off the session in force.

Records do not name the session that wrote them, nor its server.  A replica whose storage is in the partition's present session
had nothing above its low-water mark when that session began: the session wrote what the replica holds above it.  Of any other
transaction the session is not known.  The server that accepted a transaction is known while it still has the partition under the
generation in the request id.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import dataclass

from waltzctl.engine.client.connection_factory import ConnectionFactory
from waltzctl.engine.client.log_client import LogClient
from waltzctl.engine.cluster.synchronisation import admin_address
from waltzctl.engine.errors import RemoteError, WaltzError
from waltzctl.engine.metadata.cluster_state import ClusterState, NodeState, ServerState
from waltzctl.formats.request_id import RequestId
from waltzctl.formats.wire.failure import DAMAGED_RECORD
from waltzctl.formats.wire.records import SessionInfo, WireRecord


@dataclass(frozen=True, slots=True)
class ReplicaTrace:
    """What a replica holds under the transaction's id.

    `state`: "equal" (to the record that most replicas hold), "different", "damaged" (a checksum is wrong, or the node refuses to
    return the record because it is damaged), "missing", or "unknown" (no answer).  `problem`: why there is no record.
    `data_checksum`: CRC-32 of its data.  `segment`, `offset`: where the record is, by the first transaction of its segment and
    the byte in the data file; None if the node cannot tell, as a released one.
    """

    node: str
    state: str
    data_checksum: int | None
    problem: str | None
    segment: int | None = None
    offset: int | None = None


@dataclass(frozen=True, slots=True)
class TransactionTrace:
    """A transaction.  `server_id`: the server that has the partition now; `committed`: None if no server answers.

    `accepted_by`, `written_in`: server and session, None if they are not known (see the module).  `session_id`: the present one.
    """

    partition: int
    transaction_id: int
    request_id: RequestId | None
    header: int | None
    committed: bool | None
    high_water_mark: int | None
    server_id: int | None
    session_id: int
    replicas: tuple[ReplicaTrace, ...]
    accepted_by: int | None
    written_in: int | None


@dataclass(frozen=True, slots=True)
class ReplicaAnswer:
    """A node's answers.  `record`: None if it has none, or the error; `place`, `info`: None if there is none, or no answer."""

    record: WireRecord | WaltzError | None
    place: tuple[int, int] | None = None
    info: SessionInfo | None = None


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
    records = [one.record for one in answers if isinstance(one.record, WireRecord) and one.record.data_ok]
    prevailing = max(records, key=lambda record: sum(other == record for other in records), default=None)
    replicas = [trace_of(node.node, answer, prevailing) for node, answer in zip(nodes, answers, strict=True)]
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
        None if owner is None or prevailing is None else accepted_by(owner, prevailing.request_id),
        None if prevailing is None else written_in(metadata.session_id, prevailing, answers),
    )


def accepted_by(owner: ServerState, request_id: RequestId) -> int | None:
    """The server that accepted a request: the partition's owner, if it has had the partition since; None: not known."""
    generations = {held.partition: held.generation for held in owner.partitions}
    return owner.server_id if generations.get(request_id.partition) == request_id.generation else None


def written_in(session_id: int, record: WireRecord, answers: Sequence[ReplicaAnswer]) -> int | None:
    """The session that wrote a record: `session_id`, the partition's present one, or None, which means another one or unknown."""
    there = [(one.record, one.info) for one in answers if one.info is not None and one.info.session_id == session_id]
    held = any(one == record for one, _ in there)
    above = all(record.transaction_id > info.low_water_mark for _, info in there)
    return session_id if held and above else None


async def _ask(
    state: ClusterState, node: NodeState, reach: ConnectionFactory, partition: int, transaction_id: int
) -> ReplicaAnswer:
    try:
        async with await reach.admin(
            admin_address(node), cluster_key=state.cluster_key, num_partitions=state.num_partitions
        ) as client:
            found: Sequence[WireRecord] = await client.records(partition, transaction_id, 1)
            if not found or found[0].transaction_id != transaction_id:
                return ReplicaAnswer(None)
            place = info = None
            with contextlib.suppress(WaltzError):  # the record is known, and tells what is wrong with it
                info = await client.session_info(partition)
                place = await client.place_of(partition, transaction_id)
            return ReplicaAnswer(found[0], place, info)
    except WaltzError as error:
        return ReplicaAnswer(error)


def trace_of(node: str, answer: ReplicaAnswer, prevailing: WireRecord | None) -> ReplicaTrace:
    """What a node's answers say, beside the record that most replicas hold."""
    record = answer.record
    if isinstance(record, WaltzError):
        damaged = isinstance(record, RemoteError) and record.code in DAMAGED_RECORD
        return ReplicaTrace(node, "damaged" if damaged else "unknown", None, str(record))
    if record is None:
        return ReplicaTrace(node, "missing", None, None)
    state = "damaged" if not record.data_ok else "equal" if record == prevailing else "different"
    return ReplicaTrace(node, state, record.data_checksum, None, *(answer.place or (None, None)))
