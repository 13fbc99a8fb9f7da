"""What the tests of the partition service share: a peer that keeps what it is answered, and frames as a peer would send them."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from waltzctl.engine.node.hosted_storage import HostedStorage, ServiceOptions
from waltzctl.engine.node.node_metrics import NodeMetrics
from waltzctl.engine.node.node_settings import HealthOptions
from waltzctl.engine.node.partition_service import Admission
from waltzctl.engine.node.requests import AppendRun, Request
from waltzctl.engine.scan.frames import FrameColumn, FrameSplitter
from waltzctl.engine.storage.directory import StorageDirectory, StorageOptions, create_cluster
from waltzctl.formats.checksums import crc32
from waltzctl.formats.control import Layout
from waltzctl.formats.request_id import RequestId
from waltzctl.formats.wire.failure import Failure
from waltzctl.formats.wire.frame import FrameReader, Magic
from waltzctl.formats.wire.storage import (
    AppendRequest,
    FailureResponse,
    StorageMessage,
    SuccessResponse,
    WireRecord,
    decode,
    encode,
)

LOG = logging.getLogger("waltzctl.test")
STORAGE = "com.wepay.waltz.storage.exception.StorageException: "
CONCURRENT = "com.wepay.waltz.storage.exception.ConcurrentUpdateException: "
PATIENCE = 60.0
"""Seconds after which a wait counts as a failure; nothing takes nearly as long."""


class Peer:
    """A peer that notes every answer, and what it was told about its requests."""

    def __init__(self, *, room: int = 1 << 30) -> None:
        self.room = room
        self.closed = False
        self.reasons: list[str] = []
        self.answers: list[StorageMessage] = []
        self.requests, self.size = 0, 0
        self._reader = FrameReader(max_body=1 << 30)
        self._changed = threading.Condition()

    def post(self, answer: bytes | list[bytes], requests: int, size: int) -> None:
        with self._changed:
            for piece in [answer] if isinstance(answer, bytes) else answer:
                self._reader.feed(piece)
            found = 0
            while (body := self._reader.next(Magic.STORAGE, 0)) is not None:
                self.answers.append(decode(bytes(body)))
                found += 1
            assert found == requests  # whole frames, one for each request
            self._done(requests, size)

    def break_off(self, reason: str, requests: int, size: int) -> None:
        with self._changed:
            self.closed = True
            self.reasons.append(reason)
            self._done(requests, size)

    def _done(self, requests: int, size: int) -> None:
        self.requests += requests
        self.size += size
        self._changed.notify_all()

    def later(self, call: Callable[..., object], *arguments: object) -> None:
        call(*arguments)

    def room_for_answer(self) -> int:
        return self.room

    def wait(self, requests: int) -> list[StorageMessage]:
        """The answers, when so many requests are done with."""
        with self._changed:
            assert self._changed.wait_for(lambda: self.requests >= requests, PATIENCE), "no answer"
            return list(self.answers)


def record(
    transaction_id: int, data: bytes = b"data", *, checksum: int | None = None, partition: int = 3
) -> WireRecord:
    """A record whose other fields follow from its id."""
    request_id = RequestId(1, 2, partition, transaction_id & 0x7FFFFFFF)
    return WireRecord(
        transaction_id, request_id, transaction_id % 7, data, crc32(data) if checksum is None else checksum
    )


def appended(
    first: int,
    count: int = 1,
    *,
    session: int = 1,
    sequence: int = 0,
    partition: int = 0,
    offline: bool = False,
    data: bytes = b"data",
) -> AppendRequest:
    """An append of consecutive records."""
    records = tuple(record(number, data) for number in range(first, first + count))
    return AppendRequest(session, sequence, partition, records, offline)


def run_of(peer: Peer, frames: Sequence[bytes | AppendRequest]) -> AppendRun:
    """Append frames as the data port hands them over."""
    buffer = b"".join(frame if isinstance(frame, bytes) else encode(frame) for frame in frames)
    split = FrameSplitter(magic=Magic.STORAGE, max_body=1 << 28, rows=len(frames) + 1).split(buffer, 0, len(buffer), 0)
    assert len(split.table) == len(frames)
    size = int(split.table[:, int(FrameColumn.LENGTH)].sum())
    return AppendRun(peer, buffer, split.table, size, time.monotonic())


def request_of(peer: Peer, message: StorageMessage) -> Request:
    return Request(peer, message, len(encode(message)) - 7, time.monotonic())


class Served:
    """A hosted storage directory, and questions to it that wait for their answer."""

    def __init__(self, hosted: HostedStorage) -> None:
        self.hosted = hosted

    def submit(self, peer: Peer, *messages: StorageMessage, partition: int = 0) -> None:
        """Queue messages; appends that follow one another as one run."""
        service = self.hosted.service(partition)
        assert service is not None
        run: list[AppendRequest] = []
        for message in [*messages, None]:
            if isinstance(message, AppendRequest):
                run.append(message)
                continue
            if run:
                assert service.submit(run_of(peer, run)) is Admission.ACCEPTED
                run = []
            if message is not None:
                assert service.submit(request_of(peer, message)) is Admission.ACCEPTED

    def ask(self, *messages: StorageMessage) -> list[StorageMessage]:
        """Queue messages of one partition and wait for all answers."""
        peer = Peer()
        self.submit(peer, *messages, partition=messages[0].partition)
        return peer.wait(len(messages))

    def one(self, message: StorageMessage) -> StorageMessage:
        return self.ask(message)[0]

    def failure(self, message: StorageMessage) -> Failure:
        """The failure that a message is answered with."""
        answer = self.one(message)
        assert isinstance(answer, FailureResponse), answer
        assert (answer.session_id, answer.sequence, answer.partition) == (
            message.session_id,
            message.sequence,
            message.partition,
        )
        return answer.failure

    def succeed(self, *messages: StorageMessage) -> None:
        """All messages are answered with success."""
        for message, answer in zip(messages, self.ask(*messages), strict=True):
            assert answer == SuccessResponse(message.session_id, message.sequence, message.partition)


def created(
    path: Path, partitions: int = 2, *, layout: Layout = Layout.RELEASED, assigned: Sequence[int] | None = None
) -> None:
    """A fresh directory with these partitions assigned (unless given, all)."""
    create_cluster([path], num_partitions=partitions, layout=layout, assign=assigned)


@contextmanager
def serving(
    path: Path,
    *,
    options: ServiceOptions | None = None,
    storage: StorageOptions | None = None,
    health: HealthOptions | None = None,
) -> Iterator[Served]:
    """Host a directory; it is closed behind the block."""
    opened = StorageDirectory.open(path, options=storage or StorageOptions())
    hosted = HostedStorage(
        opened,
        options=options or ServiceOptions(),
        metrics=NodeMetrics(),
        log=LOG,
        health=health or HealthOptions(),
    )
    try:
        yield Served(hosted)
    finally:
        hosted.close()
