"""The data port: dispatches frames to the services of their partitions, and sends the answers back.

Appends are never decoded here.  One table (rows of `engine.scan.frames.FrameColumn`) describes all complete frames that arrived
together; consecutive appends of one partition become one *run*, which is submitted with the bytes it was received in.  Requests
of several partitions are first sorted by partition (stably): order matters only within a partition.

Full queues.  Requests for a partition whose queue is full wait in the connection, in order, until the partition has room; they
count towards the connection's bounds, and do not delay other partitions.  If the partition makes no progress for
`ServiceOptions.stall_seconds`, they are answered as *busy* (weakness S3).

Reads.  Those of a connection that are under way at a time are limited (`engine.net.read_window`); the others wait in the
connection as well.

Source of the protocol: release 0.13.2.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from waltzctl.engine.errors import WaltzError
from waltzctl.engine.net.budget import Budget
from waltzctl.engine.net.connection import HEADER, Connection, Pause, Received
from waltzctl.engine.net.peer_limits import PortLimits
from waltzctl.engine.net.port import Port
from waltzctl.engine.net.read_window import ReadWindow
from waltzctl.engine.node.answers import failure_frames, requests_of
from waltzctl.engine.node.append_runs import run_of, run_of_one
from waltzctl.engine.node.failure_responses import failure_of
from waltzctl.engine.node.hosted_storage import HostedStorage
from waltzctl.engine.node.partition_service import Admission, PartitionService
from waltzctl.engine.node.permissions import not_loaded
from waltzctl.engine.node.requests import AppendRun, Item, Request
from waltzctl.engine.scan.frames import FrameColumn, FrameSplitter, Split, SplitStatus
from waltzctl.engine.scan.list_answers import LIST_BODY, LIST_TYPES, ListAnswers
from waltzctl.formats.wire.frame import FRAME_HEADER, Magic
from waltzctl.formats.wire.hello import STORAGE_SERVER, Hello
from waltzctl.formats.wire.storage import (
    OPEN_SEQUENCE,
    STORAGE_VERSIONS,
    AppendRequest,
    FailureResponse,
    MessageError,
    OpenRequest,
    RecordHeaderListRequest,
    RecordHeaderRequest,
    RecordListRequest,
    RecordRequest,
    StorageMessage,
    SuccessResponse,
    decode,
    encode,
)

Table = npt.NDArray[np.int64]

BODY, LENGTH, TYPE = int(FrameColumn.BODY), int(FrameColumn.LENGTH), int(FrameColumn.TYPE)
SESSION, SEQUENCE, PARTITION = int(FrameColumn.SESSION), int(FrameColumn.SEQUENCE), int(FrameColumn.PARTITION)
APPEND = AppendRequest.TYPE
_READS = (RecordHeaderRequest, RecordRequest, RecordHeaderListRequest, RecordListRequest)
_SHORT_ANSWER = 4096
"""Bytes; a longer answer is written at once, so that the write buffer shows what the peer has not taken."""


class DataPort(Port):
    """The data port of a node.

    Attributes:
        splitter: finds complete frames; made anew when the limits change.
        reads: the read slots of all connections.
        lists: encodes answers to list requests in the event loop's thread.
    """

    name = "data port"

    def __init__(self, hosted: HostedStorage, *, limits: PortLimits, log: logging.Logger) -> None:
        self.splitter: FrameSplitter
        self.reads = Budget(limits.reads)
        self.lists = ListAnswers()
        self.hosted = hosted
        super().__init__(limits=limits, log=log, memory=limits.memory)

    def _follow_limits(self) -> None:
        self.budget.capacity, self.reads.capacity = self.limits.memory, self.limits.reads
        self.splitter = FrameSplitter(magic=Magic.STORAGE, max_body=self.limits.max_body)

    def _connection(self, peer: str) -> Connection:
        return DataConnection(self, peer)


class _ReadSender:
    """`engine.node.requests.Sender` of one read: its connection, and the bytes promised to its answer.  Thread-safe."""

    __slots__ = ("_connection", "_promised")

    def __init__(self, connection: DataConnection) -> None:
        self._connection = connection
        self._promised = 0

    @property
    def closed(self) -> bool:
        return self._connection.closed

    def later(self, call: Callable[..., object], *arguments: object) -> None:
        self._connection.later(call, *arguments)

    def room_for_answer(self) -> int:
        self._promised = self._connection.share.promise()
        return self._promised

    def post(self, answer: bytes | list[bytes], requests: int, size: int) -> None:
        self._connection.post_read(answer, self._promised, size)

    def break_off(self, reason: str, requests: int, size: int) -> None:
        self._connection.post_read(b"", self._promised, size)
        self._connection.break_off(reason, 0, 0)


class DataConnection(Connection):
    """A client of the data port; `engine.node.requests.Sender` to the partitions."""

    MAGIC: ClassVar[Magic] = Magic.STORAGE
    GREETING: ClassVar[Hello] = Hello(STORAGE_VERSIONS, STORAGE_SERVER)

    def __init__(self, port: DataPort, peer: str) -> None:
        limits = port.limits
        super().__init__(
            port,
            peer,
            max_body=limits.max_body,
            most_requests=limits.connection_requests,
            most_bytes=limits.connection_bytes,
        )
        self._data_port = port
        self._splitter = port.splitter
        self._waiting: dict[int, deque[Item]] = {}  # by partition: items that are not submitted yet, in their order
        self._awaiting_room: set[int] = set()  # partitions that were full and will call `_on_room`
        self._reads = ReadWindow(port.reads)

    # --- Sender ------------------------------------------------------------------------------------------------------

    def post(self, answer: bytes | list[bytes], requests: int, size: int) -> None:
        """See `engine.node.requests.Sender`.  Thread-safe."""
        self._port.outbox.put(self._answered, answer, requests, size)

    def later(self, call: Callable[..., object], *arguments: object) -> None:
        """See `engine.node.requests.Sender`.  Thread-safe."""
        self._port.outbox.put_later(call, *arguments)

    def room_for_answer(self) -> int:
        """See `engine.node.requests.Sender`; not limited here, as only reads have long answers (`_ReadSender`).  Thread-safe."""
        return self._port.limits.max_list_bytes

    def break_off(self, reason: str, requests: int, size: int) -> None:
        """See `engine.node.requests.Sender`.  Thread-safe."""
        self._broken = True
        self._port.outbox.put(self._broken_off, reason, requests, size)

    def post_read(self, answer: bytes | list[bytes], promised: int, size: int) -> None:
        """As `post`, for one read; `promised`: the bytes that `Share.promise` gave its answer.  Thread-safe."""
        length = sum(map(len, answer)) if isinstance(answer, list) else len(answer)
        self.share.make(promised, length)
        self._port.outbox.put(self._read_answered, answer, length, size)

    def _answered(self, answer: bytes | list[bytes], requests: int, size: int) -> None:
        self.answer(answer)
        self.done(requests, size)

    def _read_answered(self, answer: bytes | list[bytes], length: int, size: int) -> None:
        self._reads.end()
        self._reads.widen(self._port.output_each // max(1, length))  # as if the next answers were as long as this one
        self.answer(answer)
        if length > _SHORT_ANSWER or self._waiting:
            self.send()  # before more is read for this peer, the write buffer has to show what it has not taken
        self.share.send(length)
        self.done(1, size)
        if self._waiting:
            self._go_on()

    def _broken_off(self, reason: str, requests: int, size: int) -> None:
        if self.open:
            self._port.complain(f"{self.peer}: closed: {reason}")
            self.close()
        self.done(requests, size)

    # --- receiving ---------------------------------------------------------------------------------------------------

    def _may_be_long(self, kind: int) -> bool:
        return kind == APPEND

    def _messages(self, received: Received, start: int, end: int) -> tuple[int, int]:
        assert self.version is not None
        if not self._reserved:  # a reserved big frame is checked against the limits of its reservation
            self._splitter = self._data_port.splitter
        while True:
            split = self._splitter.split(received, start, end, self.version)
            if len(split.table):
                self._dispatch(received, split.table)
                if self._closing:
                    return end, 0
            start = split.consumed
            if split.status is SplitStatus.MORE:
                return start, split.needed
            if split.status is not SplitStatus.FULL:
                self._refuse(self._split_error(split, received), received[start:end])
                return end, 0

    def _split_error(self, split: Split, received: Received) -> str:
        magic, version, length = FRAME_HEADER.struct.unpack_from(received, split.consumed)
        match split.status:
            case SplitStatus.MAGIC:
                return f"a frame with magic 0x{magic:02x} instead of 0x{self.MAGIC:02x}"
            case SplitStatus.VERSION:
                return f"a frame of version {version} instead of the agreed {self.version}"
            case SplitStatus.LENGTH:
                return f"a frame of {length} bytes, and {self._port.limits.max_body} are the most here"
            case _:
                return f"a frame of {length} bytes, which is too short for any message"

    def _dispatch(self, received: Received, table: Table) -> None:
        """Submit the frames that `table` describes to their partitions."""
        now = time.monotonic()
        if len(table) == 1:
            self._dispatch_one(received, table, now)
            return
        appends, partitions = bool((table[:, TYPE] == APPEND).all()), table[:, PARTITION]
        first = int(partitions[0])
        if appends and (partitions == first).all():
            self._hand_over(first, run_of(self, received, table, now))
            return
        if not appends:
            table = self._answer_leading_lists(received, table)
            if not len(table):
                return
        messages, wrong = self._decode_messages(received, table)
        if wrong is not None:
            row, error = wrong
            if row:
                self._hand_over_sorted(received, table[:row], messages, now)
            if not self._closing:
                body, length = int(table[row, BODY]), int(table[row, LENGTH])
                self._refuse(f"a corrupted message: {error}", received[body - HEADER : body + length])
            return
        self._hand_over_sorted(received, table, messages, now)

    def _dispatch_one(self, received: Received, table: Table, now: float) -> None:
        """As `_dispatch`, for one frame: a fast path for peers with one request in flight, where latency matters most."""
        row: list[int] = table[0].tolist()
        body, size = row[BODY], row[LENGTH]
        if row[TYPE] == APPEND:
            if isinstance(received, bytearray):  # a big frame keeps the buffer that it was received in
                run = AppendRun(self, received, table, size, now)
            else:
                run = run_of_one(self, received, table, body, size, now)
            self._hand_over(row[PARTITION], run)
            return
        if row[TYPE] in LIST_TYPES and size == LIST_BODY and self._answer_lists_now(row[PARTITION], received, table):
            return
        try:
            message = decode(bytes(received[body : body + size]))
        except MessageError as error:
            self._refuse(f"a corrupted message: {error}", received[body - HEADER : body + size])
            return
        self._hand_over_message(row[PARTITION], message, size, now)

    def _answer_leading_lists(self, received: Received, table: Table) -> Table:
        """Answer list requests that no other request of their partition precedes; returns the rows of all other frames."""
        lists: dict[int, list[int]] = {}
        others: set[int] = set()
        for place, row in enumerate(table.tolist()):
            if row[TYPE] in LIST_TYPES and row[LENGTH] == LIST_BODY:
                if row[PARTITION] not in others:
                    lists.setdefault(row[PARTITION], []).append(place)
            elif row[TYPE] == APPEND:
                others.add(row[PARTITION])
            else:  # the message may be malformed, which ends the connection
                return table
        answered: list[int] = []
        for partition, places in lists.items():
            rows = table if len(places) == len(table) else table[places]
            answered += places[: self._answer_lists_now(partition, received, rows)]
        return np.delete(table, answered, 0) if answered else table

    def _answer_lists_now(self, partition: int, received: Received, table: Table) -> int:
        """Answer list requests of one partition in this thread; returns how many, from the first on.

        Stops when the peer does not take its answers.
        """
        service = self._data_port.hosted.service(partition)
        if service is None or partition in self._waiting:
            return 0
        answers, answered = self._data_port.lists, 0
        while answered < len(table) and (self._pauses is Pause.NOTHING or not self._pauses & Pause.UNREAD_ANSWERS):
            promised = self.share.promise()
            count = service.answer_now(answers, received, table[answered:], promised)
            frames = answers.take() if count else b""
            self.share.make(promised, len(frames))
            if not count:
                break
            answered += count
            self.answer(frames)
            if len(frames) > _SHORT_ANSWER or answered < len(table):
                self.send()
            self.share.send(len(frames))
        return answered

    def _decode_messages(
        self, received: Received, table: Table
    ) -> tuple[dict[int, StorageMessage], tuple[int, MessageError] | None]:
        """Decode every message that is no append: by the offset of its body; and row and error of the first malformed one."""
        messages: dict[int, StorageMessage] = {}
        for row in np.flatnonzero(table[:, TYPE] != APPEND).tolist():
            body, length = int(table[row, BODY]), int(table[row, LENGTH])
            try:
                messages[body] = decode(bytes(received[body : body + length]))
            except MessageError as error:
                return messages, (row, error)
        return messages, None

    def _hand_over_sorted(
        self, received: Received, table: Table, messages: dict[int, StorageMessage], now: float
    ) -> None:
        """Submit frames of several partitions; the partitions that take part in a pass take part in the same one."""
        table = table[np.argsort(table[:, PARTITION], kind="stable")]
        appends, partitions = table[:, TYPE] == APPEND, table[:, PARTITION]
        together = appends[1:] & appends[:-1] & (partitions[1:] == partitions[:-1])
        starts = [0, *(np.flatnonzero(~together) + 1).tolist()]
        bodies, lengths = table[:, BODY].tolist(), table[:, LENGTH].tolist()
        numbers, are_appends = partitions.tolist(), appends.tolist()
        self.begin(len(table), sum(lengths))
        in_pass: list[PartitionService] = []
        row = 0
        try:
            for start, stop in zip(starts, [*starts[1:], len(table)], strict=True):
                partition = numbers[start]
                if not are_appends[start]:
                    row = stop
                    self._submit_message(partition, messages[bodies[start]], lengths[start], now)
                    continue
                rows = table[start:stop].copy()
                if stop - start == 1:
                    run = run_of_one(self, received, rows, bodies[start], lengths[start], now)
                else:
                    run = run_of(self, received, rows, now)
                row = stop  # before the call: if `submit` raises, the item may have been queued and be answered all the same
                self._submit_or_wait(partition, run, in_pass)
        finally:
            PartitionService.start_together(in_pass)
            if row < len(table):  # such as after a MemoryError: the other rows were not submitted
                self.done(len(table) - row, sum(lengths[row:]))

    def _open(self, message: OpenRequest) -> None:
        """Check an open request's cluster key and number of partitions.  As in the release, a refused peer may go on."""
        try:
            self._data_port.hosted.check_open(message.cluster_key, message.num_partitions)
        except WaltzError as error:
            self._port.complain(f"{self.peer}: open request refused: {error}")
            failure = failure_of(error)
            self.answer(encode(FailureResponse(OPEN_SEQUENCE, OPEN_SEQUENCE, OPEN_SEQUENCE, failure)))
        else:
            self.answer(encode(SuccessResponse(OPEN_SEQUENCE, OPEN_SEQUENCE, OPEN_SEQUENCE)))

    # --- handing over ------------------------------------------------------------------------------------------------

    def _hand_over_message(self, partition: int, message: StorageMessage, size: int, now: float) -> None:
        self.begin(1, size)
        self._submit_message(partition, message, size, now)

    def _submit_message(self, partition: int, message: StorageMessage, size: int, now: float) -> None:
        if isinstance(message, OpenRequest):
            self._open(message)
            self.done(1, size)
        else:
            sender = _ReadSender(self) if isinstance(message, _READS) else self
            self._submit_or_wait(partition, Request(sender, message, size, now))

    def _hand_over(self, partition: int, item: Item) -> None:
        """Count an item as under way, and submit it to its partition, or queue it behind the items that wait for that."""
        self.begin(requests_of(item), item.size)
        self._submit_or_wait(partition, item)

    def _submit_or_wait(self, partition: int, item: Item, in_pass: list[PartitionService] | None = None) -> None:
        """As `_hand_over`, for an item that is counted already.  `in_pass`: `together` of `PartitionService.submit`."""
        waiting = self._waiting.get(partition)
        if waiting is not None:
            waiting.append(item)
        elif not self._try_submit(partition, item, in_pass):
            self._waiting[partition] = deque([item])

    def _try_submit(self, partition: int, item: Item, in_pass: list[PartitionService] | None = None) -> bool:
        """Submit an item; False: it has to wait.  True: it is queued, or was answered with a failure."""
        service = self._data_port.hosted.service(partition)
        if service is None:
            self.answer(_not_assigned(item))
            self.done(requests_of(item), item.size)
            return True
        reading = type(item.sender) is _ReadSender
        if reading and not self._begin_read():
            return False
        admission = service.submit(item, in_pass)
        if admission is Admission.ACCEPTED:
            return True
        if reading:
            self._reads.end()
        if admission is Admission.STALLED:
            self.answer(service.busy_answer(item))
            self.done(requests_of(item), item.size)
            return True
        if partition not in self._awaiting_room:
            self._awaiting_room.add(partition)
            service.on_room(lambda: self._port.outbox.put(self._on_room, partition))
        return False

    def _begin_read(self) -> bool:
        """Begin a read; False: it has to wait, and `_go_on` or `_use_granted_slot` will be called later."""
        return not self._pauses & Pause.UNREAD_ANSWERS and self._reads.begin(self._on_slot_granted)

    def _on_slot_granted(self) -> None:
        # not at once: the caller is handling another connection's answer
        self._port.outbox.put(self._use_granted_slot)

    def _use_granted_slot(self) -> None:
        """Retry items with the granted slot.

        Partitions that are known to be full are left out: their reads would return the slot at once and request it again.
        """
        for partition in [partition for partition in self._waiting if partition not in self._awaiting_room]:
            self._retry(partition)
        self._reads.return_unused()

    def _on_room(self, partition: int) -> None:
        """A partition that was full has room again."""
        self._awaiting_room.discard(partition)
        self._retry(partition)

    def _retry(self, partition: int) -> None:
        """Submit the items that wait for a partition, in order, until one has to wait on."""
        waiting = self._waiting.get(partition)
        if waiting is None or not self.open:
            return
        while waiting and self._try_submit(partition, waiting[0]):
            waiting.popleft()
        if not waiting:
            del self._waiting[partition]

    def _go_on(self) -> None:
        for partition in list(self._waiting):
            self._retry(partition)

    def _drop(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for item in (item for items in waiting.values() for item in items):
            self.done(requests_of(item), item.size)
        self._reads.leave()


def _not_assigned(item: Item) -> bytes:
    """The release's *not assigned* failure, for every request of an item."""
    if isinstance(item, AppendRun):
        return failure_frames(not_loaded(int(item.table[0, PARTITION])), item.table)
    message = item.message
    row = np.zeros((1, len(FrameColumn)), np.int64)
    row[0, SESSION], row[0, SEQUENCE], row[0, PARTITION] = message.session_id, message.sequence, message.partition
    return failure_frames(not_loaded(message.partition), row)
