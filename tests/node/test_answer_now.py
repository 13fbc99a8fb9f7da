"""Short reads that whoever received them answers at once: the same bytes as a worker's, and never a wait."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.node.service_support import Peer, Served, appended, created, serving
from tests.scan.wire_support import table_of
from tests.storage.support import damage, data_path
from waltzctl.engine.node.partition_service import PartitionService
from waltzctl.engine.node.permissions import closed
from waltzctl.engine.scan import wire_code
from waltzctl.engine.scan.list_answers import ListAnswers
from waltzctl.engine.scan.wire_loops import INTERPRETED
from waltzctl.engine.storage.directory import StorageOptions
from waltzctl.formats.segment import HEADER_SIZE, RECORD_OVERHEAD
from waltzctl.formats.wire.storage import (
    FailureResponse,
    MaxTransactionIdRequest,
    RecordHeaderListRequest,
    RecordListRequest,
    StorageMessage,
    encode,
)

ROOM = 1 << 20
COUNT = 60


def served_with_records(path: Path) -> Iterator[Served]:
    created(path)
    with serving(path, storage=StorageOptions(segment_size_threshold=4000)) as served:
        served.succeed(appended(0, COUNT, data=b"x" * 100))
        served.one(RecordListRequest(1, 1, 0, 0, COUNT))  # opens every segment for reading
        yield served


@pytest.fixture
def tmp_path(disk_path: Path) -> Path:
    """Files in memory are never read "only if that needs no waiting": their file system does not know it."""
    return disk_path


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    yield from served_with_records(tmp_path / "s")


def service(served: Served) -> PartitionService:
    found = served.hosted.service(0)
    assert found is not None
    return found


def at_once(served: Served, *messages: StorageMessage, room: int = ROOM) -> list[StorageMessage] | None:
    """The answers, as many as are given at once; None if none is."""
    answers = ListAnswers()
    received = b"".join(map(encode, messages))
    count = service(served).answer_now(answers, received, table_of(received), room)
    peer = Peer()
    peer.post(answers.take() if count else b"", count, 0)
    return peer.answers or None


@pytest.mark.parametrize("kind", [RecordListRequest, RecordHeaderListRequest])
@pytest.mark.parametrize("first", [0, 7, COUNT - 3])
def test_a_short_list_is_the_same_at_once_and_from_a_worker(
    served: Served, kind: type[RecordListRequest], first: int
) -> None:
    message = kind(1, 9, 0, first, 5)
    assert at_once(served, message) == served.ask(message)


def test_what_is_long_or_spans_segments_or_is_not_there_is_for_a_worker(served: Served) -> None:
    segments = served.hosted.storage.partition(0).segments
    assert len(segments) > 1
    border = segments[1].first_transaction_id
    assert at_once(served, RecordListRequest(1, 1, 0, border - 1, 2)) is None
    assert at_once(served, RecordListRequest(1, 1, 0, border, 2)) is not None
    assert at_once(served, RecordListRequest(1, 1, 0, 0, 1000)) is None
    assert at_once(served, RecordListRequest(1, 1, 0, 0, 5), room=300) is None
    for first, count in ((COUNT, 5), (-1, 5), (0, 0), (0, -1)):
        assert at_once(served, RecordListRequest(1, 1, 0, first, count)) is None
    assert at_once(served, MaxTransactionIdRequest(1, 1, 0)) is None


def test_all_that_came_is_answered_up_to_the_first_that_is_not_so_simple(served: Served) -> None:
    """Out of as many segments as it takes, each list from one of them; and it is counted."""
    borders = [one.first_transaction_id for one in served.hosted.storage.partition(0).segments]
    messages: list[StorageMessage] = [
        kind(1, number, 0, first, 2)
        for number, (kind, first) in enumerate(
            (kind, first)
            for first in (0, *borders, COUNT - 2, 1)
            for kind in (RecordListRequest, RecordHeaderListRequest)
        )
    ]
    metrics = service(served).metrics
    before = metrics.record_list_request.count, metrics.record_header_list_request.count
    assert at_once(served, *messages) == [served.one(message) for message in messages]
    half = len(messages) // 2
    after = metrics.record_list_request.count, metrics.record_header_list_request.count
    assert after == (before[0] + 2 * half, before[1] + 2 * half), "half of them at once, half by a worker"
    found = at_once(served, *messages[:5], RecordListRequest(1, 9, 0, borders[1] - 1, 2), *messages[5:])
    assert found == [served.one(message) for message in messages[:5]]


def test_a_segment_that_is_not_open_is_for_a_worker(tmp_path: Path) -> None:
    created(tmp_path / "s")
    with serving(tmp_path / "s") as served:
        served.succeed(appended(0, 3))
        message = RecordListRequest(1, 1, 0, 0, 2)
        assert at_once(served, message) is None
        served.one(message)
        assert at_once(served, message) is not None
        served.hosted.storage.partition(0).close()
        assert at_once(served, message) is None


def test_whoever_wants_lists_waits_for_nobody(served: Served) -> None:
    """Somebody else may have the partition's log for a moment, or for long."""
    log = served.hosted.storage.partition(0)._log
    message = RecordListRequest(1, 1, 0, 0, 2)
    with log._lock:
        assert at_once(served, message) is None
    assert at_once(served, message) is not None


def test_what_would_have_to_wait_for_the_disk_is_for_a_worker(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    message = RecordListRequest(1, 9, 0, 3, 5)
    expected = at_once(served, message)
    real = os.preadv

    def not_in_memory(descriptor: int, buffers: list[memoryview], offset: int, flags: int = 0) -> int:
        if flags:
            raise OSError(errno.EAGAIN, "would block")
        return real(descriptor, buffers, offset)

    monkeypatch.setattr(wire_code, "_ready", INTERPRETED)
    monkeypatch.setattr(os, "preadv", not_in_memory)
    assert at_once(served, message) is None
    assert served.ask(message) == expected


def test_sessions_and_switches_hold_at_once_as_well(served: Served) -> None:
    assert at_once(served, RecordListRequest(0, 1, 0, 0, 5)) is None  # an older session: a worker refuses it
    assert at_once(served, RecordListRequest(2, 1, 0, 0, 5)) is None  # a newer one: a worker makes it durable
    assert service(served).access.session_id == 1
    served.ask(RecordListRequest(2, 1, 0, 0, 5))
    assert service(served).access.session_id == 2
    served.hosted.set_availability([0], readable=False, writable=False)
    assert at_once(served, RecordListRequest(2, 1, 0, 0, 5)) is None


def test_nothing_is_answered_at_once_while_something_else_is_at_work(served: Served) -> None:
    message = RecordListRequest(1, 1, 0, 0, 5)
    assert service(served).hold(10)
    assert at_once(served, message) is None
    service(served).resume()
    assert at_once(served, message) is not None


def test_nothing_is_answered_at_once_by_a_partition_that_is_given_up(served: Served) -> None:
    message = RecordListRequest(1, 1, 0, 0, 5)
    service(served).refuse(closed())
    assert at_once(served, message) is None
    assert isinstance(served.one(message), FailureResponse)


def test_a_damaged_record_is_never_served_at_once(tmp_path: Path) -> None:
    for served in served_with_records(tmp_path / "s"):
        assert at_once(served, RecordListRequest(1, 1, 0, 0, 5)) is not None
        damage(data_path(tmp_path / "s", 0), HEADER_SIZE + 3 * (RECORD_OVERHEAD + 100) + 60)
        assert at_once(served, RecordListRequest(1, 1, 0, 0, 5)) is None
        assert at_once(served, RecordListRequest(1, 1, 0, 0, 3)) is not None
        assert isinstance(served.one(RecordListRequest(1, 1, 0, 3, 1)), FailureResponse)
