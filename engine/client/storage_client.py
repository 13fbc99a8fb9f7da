"""The client of a storage node's data port (magic S, codec version 0).

Every request carries a session id.  Any request with a session id above the current one, whatever it asks for, fences the
current session off.  Tools therefore use the session id that the node has persisted, and set `offline` when the partition was
switched off for them.

Source: release 0.13.2.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence

from waltzctl.engine.client.node_client import NodeClient
from waltzctl.engine.client.port_protocol import LIMITS, A, NodePort
from waltzctl.engine.errors import ProtocolError
from waltzctl.formats.segment import RecordHeader
from waltzctl.formats.wire import storage as wire
from waltzctl.formats.wire.frame import Magic
from waltzctl.formats.wire.hello import STORAGE_CLIENT, STORAGE_SERVER
from waltzctl.formats.wire.records import SessionInfo, WireRecord


def _decode(body: memoryview, version: int) -> wire.StorageMessage:
    return wire.decode(body, limits=LIMITS)


_PORT: NodePort[wire.StorageMessage] = NodePort(
    Magic.STORAGE, wire.STORAGE_VERSIONS, STORAGE_CLIENT, STORAGE_SERVER, _decode, wire.FailureResponse
)


class StorageClient(NodeClient[wire.StorageMessage]):
    """A connection to a data port."""

    _port = _PORT

    @property
    def in_flight(self) -> int:
        """Number of calls that wait for their response."""
        return self._connection.in_flight

    async def _open(self, cluster_key: uuid.UUID, num_partitions: int) -> None:
        request = wire.OpenRequest(cluster_key, num_partitions)
        frame = self._encoded("open", wire.encode, request)
        await self._connection.call(request.sequence, frame, wire.SuccessResponse, "open")

    async def last_session_info(self, session_id: int, partition: int, *, offline: bool = False) -> SessionInfo:
        """The persisted session and its marks."""
        request = wire.LastSessionInfoRequest(session_id, self._connection.next_sequence(), partition, offline)
        return (await self._call(request, wire.LastSessionInfoResponse, "last session info")).info

    async def set_low_water_mark(
        self, session_id: int, partition: int, low_water_mark: int, *, offline: bool = False
    ) -> None:
        """Begin or continue a session, and set its low-water mark; durable on return."""
        sequence = self._connection.next_sequence()
        request = wire.SetLowWaterMarkRequest(session_id, sequence, partition, low_water_mark, offline)
        await self._call(request, wire.SuccessResponse, "set low-water mark")

    async def truncate(self, session_id: int, partition: int, transaction_id: int, *, offline: bool = False) -> int:
        """Remove all transactions after `transaction_id`; returns the last transaction that is left."""
        sequence = self._connection.next_sequence()
        request = wire.TruncateRequest(session_id, sequence, partition, transaction_id, offline)
        return (await self._call(request, wire.MaxTransactionIdResponse, "truncate")).transaction_id

    async def append(
        self, session_id: int, partition: int, records: Sequence[WireRecord], *, offline: bool = False
    ) -> None:
        """Append records; durable on return."""
        sequence = self._connection.next_sequence()
        request = wire.AppendRequest(session_id, sequence, partition, tuple(records), offline)
        await self._call(request, wire.SuccessResponse, "append")

    async def append_encoded(
        self, session_id: int, partition: int, count: int, records: bytes, *, offline: bool = False
    ) -> None:
        """Append `count` records that are already in wire form, back to back; durable on return.

        For callers that send more than they could as objects.  The bytes are sent unchanged.
        """
        await self._connection.room()
        await self.start_append_encoded(session_id, partition, count, records, offline=offline)

    def start_append_encoded(
        self, session_id: int, partition: int, count: int, records: bytes, *, offline: bool = False
    ) -> asyncio.Future[wire.SuccessResponse]:
        """As `append_encoded`, but without waiting for room in the write buffer; returns the future of the response."""
        connection = self._connection
        sequence = connection.next_sequence()
        frame = wire.append_request(session_id, sequence, partition, count, records, offline=offline)
        return connection.start(sequence, frame, wire.SuccessResponse, "append")

    async def record_header(self, session_id: int, partition: int, transaction_id: int) -> RecordHeader | None:
        """A record's header; None when there is no such record."""
        request = wire.RecordHeaderRequest(session_id, self._connection.next_sequence(), partition, transaction_id)
        return (await self._call(request, wire.RecordHeaderResponse, "record header")).header

    async def record(self, session_id: int, partition: int, transaction_id: int) -> WireRecord | None:
        """A record; None when there is no such record.  Its checksum is not verified."""
        request = wire.RecordRequest(session_id, self._connection.next_sequence(), partition, transaction_id)
        return (await self._call(request, wire.RecordResponse, "record", long_answer=True)).record

    async def max_transaction_id(self, session_id: int, partition: int, *, offline: bool = False) -> int:
        """The partition's last transaction, acknowledged or not; -1: none."""
        request = wire.MaxTransactionIdRequest(session_id, self._connection.next_sequence(), partition, offline)
        return (await self._call(request, wire.MaxTransactionIdResponse, "max transaction id")).transaction_id

    async def record_headers(
        self, session_id: int, partition: int, first_transaction_id: int, max_count: int
    ) -> tuple[RecordHeader, ...]:
        """At most `max_count` consecutive record headers from a transaction on, perhaps none."""
        sequence = self._connection.next_sequence()
        asked = min(max_count, LIMITS.max_records)  # of more than are decoded here the connection would end
        request = wire.RecordHeaderListRequest(session_id, sequence, partition, first_transaction_id, asked)
        what = "record header list"
        headers = (await self._call(request, wire.RecordHeaderListResponse, what, long_answer=True)).headers
        self._check_count(len(headers), max_count)
        return headers

    async def records(
        self, session_id: int, partition: int, first_transaction_id: int, max_count: int
    ) -> tuple[WireRecord, ...]:
        """At most `max_count` consecutive records from a transaction on, perhaps none.  Checksums are not verified."""
        sequence = self._connection.next_sequence()
        asked = min(max_count, LIMITS.max_records)
        request = wire.RecordListRequest(session_id, sequence, partition, first_transaction_id, asked)
        records = (await self._call(request, wire.RecordListResponse, "record list", long_answer=True)).records
        self._check_count(len(records), max_count)
        return records

    async def _call(
        self, request: wire.StorageRequest, expected: type[A], asked: str, *, long_answer: bool = False
    ) -> A:
        what = f"{asked} of partition {request.partition}"
        frame = self._encoded(what, wire.encode, request)
        answer = await self._connection.call(request.sequence, frame, expected, what, long_answer=long_answer)
        echoed = (answer.session_id, answer.partition)  # type: ignore[attr-defined]  # every message has both
        if echoed != (request.session_id, request.partition):
            raise ProtocolError(
                str(self.address), f"the answer to {what} is about session {echoed[0]} of partition {echoed[1]}"
            )
        return answer

    def _check_count(self, count: int, asked: int) -> None:
        if count > max(asked, 0):
            raise ProtocolError(str(self.address), f"{count} records in the answer, {asked} were asked for")
