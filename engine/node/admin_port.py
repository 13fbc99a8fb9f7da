"""The admin port: assignment, availability, records, sessions and metrics, for an operator's tools.

Requests of one connection are executed one after another and answered in that order, on threads of this port: assigning a
partition opens its files and may take long, which must not delay the data port.  As in the release, records and sessions are
read without permission checks, bypassing the partition's queue.

A failed request leaves the connection open.  The release closes it without an answer for a partition number beyond the cluster's,
or a partition that is unassigned twice; here the peer gets a failure, and none of the request's partitions is changed (weakness
S9).

Source of the protocol: release 0.13.2; version 1 has the requests of the design documents for reading and
writing, and one of ours for the place of a record.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import ClassVar

from waltzctl.engine.errors import WaltzError
from waltzctl.engine.net.connection import HEADER, Connection, Pause, Received
from waltzctl.engine.net.executor import Executor
from waltzctl.engine.net.peer_limits import PortLimits
from waltzctl.engine.net.port import Port
from waltzctl.engine.net.single_flight import OverdueError, SingleFlight
from waltzctl.engine.node.failure_responses import failure_of
from waltzctl.engine.node.hosted_storage import HostedStorage
from waltzctl.formats.wire.admin import (
    ADMIN_VERSIONS,
    OPEN_SEQUENCE,
    AdminMessage,
    AssignedPartitionStatusRequest,
    AssignedPartitionStatusResponse,
    FailureResponse,
    LastSessionInfoRequest,
    LastSessionInfoResponse,
    MetricsRequest,
    MetricsResponse,
    OpenRequest,
    PartitionAssignmentRequest,
    PartitionAvailableRequest,
    PartitionReadRequest,
    PartitionWriteRequest,
    RecordListRequest,
    RecordPlaceRequest,
    RecordPlaceResponse,
    SuccessResponse,
    decode,
    encode,
    record_list_response,
)
from waltzctl.formats.wire.frame import FRAME_HEADER, Magic
from waltzctl.formats.wire.hello import ADMIN_SERVER, Hello
from waltzctl.formats.wire.primitives import MessageError

_MEMORY = 16 << 20
"""Bytes of requests under way (received and not answered), over all connections."""
_MOST_REQUESTS = 600
"""Requests of one connection under way at which it is not read; the release's number."""
_MOST_BYTES = 4 << 20
"""Bytes of them."""
_THREADS = 4
_CLOSING_SECONDS = 10.0
_RESPONSES = frozenset(
    kind.TYPE for kind in (SuccessResponse, FailureResponse, LastSessionInfoResponse, MetricsResponse)
) | {8, AssignedPartitionStatusResponse.TYPE, RecordPlaceResponse.TYPE}


class AdminPort(Port):
    """The admin port of a node.  `metrics` returns the JSON text for a metrics request; it may block."""

    name = "admin port"

    def __init__(
        self, hosted: HostedStorage, *, metrics: Callable[[], str], limits: PortLimits, log: logging.Logger
    ) -> None:
        super().__init__(limits=limits, log=log, memory=_MEMORY)
        self.hosted = hosted
        self.pool = Executor(_THREADS, log=log, name="admin-worker")
        self._metrics = metrics
        self._closed = False

    def _connection(self, peer: str) -> Connection:
        return AdminConnection(self, peer)

    async def close(self) -> None:
        """See `Port.close`; waits at most `_CLOSING_SECONDS` for the requests that the threads are executing."""
        await super().close()
        if not self._closed:
            self._closed = True
            try:
                await SingleFlight(self.pool.close, name="admin-closing").result(_CLOSING_SECONDS)
            except OverdueError as error:
                self.log.warning("%s: a request is still being executed: %s", self.name, error)

    def execute(self, message: AdminMessage, version: int, room: int) -> bytes | list[bytes]:
        """Execute a request and return its response, a failure included.

        `room`: bytes of records in a list response.  Blocks.  Raises KeyboardInterrupt and SystemExit only.
        """
        sequence = OPEN_SEQUENCE if isinstance(message, OpenRequest) else message.sequence
        try:
            return self._execute(message, version, room)
        except (KeyboardInterrupt, SystemExit):
            raise
        except WaltzError as error:
            self.complain(f"{type(message).__name__} refused: {error}")
            failure = failure_of(error)
        except BaseException as error:
            self.log.error("%s: %s failed", self.name, type(message).__name__, exc_info=error)
            failure = failure_of(error)
        return encode(FailureResponse(sequence, failure), version)

    def _execute(self, message: AdminMessage, version: int, room: int) -> bytes | list[bytes]:
        hosted = self.hosted
        match message:
            case OpenRequest(cluster_key=key, num_partitions=count):
                hosted.check_open(key, count)
                return encode(SuccessResponse(OPEN_SEQUENCE), version)
            case PartitionAvailableRequest(partitions=partitions, available=available):
                hosted.set_availability(partitions, readable=available, writable=available)
            case PartitionReadRequest(partition=partition, on=on):
                hosted.set_availability([partition], readable=on)
            case PartitionWriteRequest(partition=partition, on=on):
                hosted.set_availability([partition], writable=on)
            case PartitionAssignmentRequest(partitions=partitions, assigned=True):
                hosted.assign(partitions)
            case PartitionAssignmentRequest(partitions=partitions, delete_files=delete_files):
                hosted.unassign(partitions, delete_files=delete_files)
            case RecordListRequest(partition=partition, first_transaction_id=first, max_count=count):
                found = hosted.read_wire(partition, first, max(count, 0), room)
                return record_list_response(message.sequence, partition, found.count, found.data, version)
            case LastSessionInfoRequest(partition=partition):
                info = hosted.session_info(partition)
                return encode(LastSessionInfoResponse(message.sequence, partition, info), version)
            case MetricsRequest():
                return encode(MetricsResponse(message.sequence, self._metrics()), version)
            case AssignedPartitionStatusRequest():
                statuses = tuple(hosted.assigned_status())
                return encode(AssignedPartitionStatusResponse(message.sequence, statuses), version)
            case RecordPlaceRequest(partition=partition, transaction_id=transaction_id):
                segment, offset = hosted.place_of(partition, transaction_id) or (-1, -1)
                return encode(RecordPlaceResponse(message.sequence, partition, segment, offset), version)
            case _:
                raise AssertionError(f"{type(message).__name__} is no request")
        return encode(SuccessResponse(message.sequence), version)


class AdminConnection(Connection):
    """A connection of the admin port; as an `engine.net.executor.Job` it executes one request at a time."""

    MAGIC: ClassVar[Magic] = Magic.ADMIN
    GREETING: ClassVar[Hello] = Hello(ADMIN_VERSIONS, ADMIN_SERVER)

    def __init__(self, port: AdminPort, peer: str) -> None:
        super().__init__(
            port,
            peer,
            max_body=port.limits.max_admin_body,
            most_requests=_MOST_REQUESTS,
            most_bytes=_MOST_BYTES,
        )
        self._admin_port = port
        self._queue: deque[tuple[AdminMessage, int]] = deque()  # requests, with the bytes of their bodies
        self._executing: tuple[AdminMessage, int] | None = None

    def _messages(self, received: Received, start: int, end: int) -> tuple[int, int]:
        assert self.version is not None
        while end - start >= HEADER:
            magic, version, length = FRAME_HEADER.struct.unpack_from(received, start)
            if magic != self.MAGIC:
                wrong = f"a frame with magic 0x{magic:02x} instead of 0x{self.MAGIC:02x}"
            elif version != self.version:
                wrong = f"a frame of version {version} instead of the agreed {self.version}"
            elif not 0 <= length <= self._max_body:
                wrong = f"a frame of {length} bytes, and {self._max_body} are the most here"
            elif end - start < HEADER + length:
                return start, HEADER + length
            else:
                wrong = self._message(bytes(received[start + HEADER : start + HEADER + length])) if length else ""
            if wrong:
                self._refuse(wrong, received[start:end])
                return end, 0
            start += HEADER + length
        return start, 0

    def _message(self, body: bytes) -> str:
        """Decode and queue a message; returns why it is invalid, or an empty text."""
        assert self.version is not None
        if body[0] in _RESPONSES:
            return f"a message of type {body[0]}, which is no request"
        try:
            message = decode(body, self.version)
        except MessageError as error:
            return f"a corrupted message: {error}"
        self.begin(1, len(body))
        self._queue.append((message, len(body)))
        self._go_on()
        return ""

    def _go_on(self) -> None:
        """Start the next request, unless one is being executed, or the peer does not take its answers."""
        if self._executing is None and self._queue and self.open and not self._pauses & Pause.UNREAD_ANSWERS:
            self._executing = self._queue.popleft()
            self._admin_port.pool.schedule(self)

    def run(self) -> bool:
        """See `engine.net.executor.Job`."""
        assert self._executing is not None
        assert self.version is not None
        message, size = self._executing
        answer: bytes | list[bytes] = b""
        promised = self.share.promise()
        try:
            if not self.closed:
                answer = self._admin_port.execute(message, self.version, promised)
        finally:
            length = sum(map(len, answer)) if isinstance(answer, list) else len(answer)
            self.share.make(promised, length)
            self._port.outbox.put(self._executed, answer, length, size)
        return False

    def _executed(self, answer: bytes | list[bytes], length: int, size: int) -> None:
        self._executing = None
        if answer:
            self.answer(answer)
            self.send()
        self.share.send(length)
        self.done(1, size)
        self._go_on()

    def _drop(self) -> None:
        while self._queue:
            _, size = self._queue.popleft()
            self.done(1, size)
