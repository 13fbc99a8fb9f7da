"""Short reads that whoever received them answers at once: the same bytes as a worker's, and never a wait."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.node.service_support import Peer, Served, appended, created, request_of, serving
from tests.storage.support import damage, data_path
from waltzctl.engine.node.partition_service import PartitionService
from waltzctl.engine.node.permissions import closed
from waltzctl.engine.storage.directory import StorageOptions
from waltzctl.formats.segment import HEADER_SIZE, RECORD_OVERHEAD
from waltzctl.formats.wire.storage import (
    FailureResponse,
    MaxTransactionIdRequest,
    RecordHeaderListRequest,
    RecordListRequest,
    StorageMessage,
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


def at_once(served: Served, message: StorageMessage, room: int = ROOM) -> list[StorageMessage] | None:
    """The answer, if it is given at once; None if not, and then there is none at all."""
    peer = Peer()
    if service(served).answer_now(request_of(peer, message), room):
        assert peer.requests == 1
        return list(peer.answers)
    assert not peer.answers
    return None


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


def test_what_would_have_to_wait_for_the_disk_is_for_a_worker(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    message = RecordListRequest(1, 9, 0, 3, 5)
    expected = at_once(served, message)
    real = os.preadv

    def not_in_memory(descriptor: int, buffers: list[memoryview], offset: int, flags: int = 0) -> int:
        if flags:
            raise OSError(errno.EAGAIN, "would block")
        return real(descriptor, buffers, offset)

    monkeypatch.setattr(os, "preadv", not_in_memory)
    assert at_once(served, message) is None
    assert served.ask(message) == expected


def test_sessions_and_switches_hold_at_once_as_well(served: Served) -> None:
    assert at_once(served, RecordListRequest(0, 1, 0, 0, 5)) is None  # an older session: a worker refuses it
    assert at_once(served, RecordListRequest(2, 1, 0, 0, 5)) is None  # a newer one: a worker makes it durable
    assert service(served).session_id == 1
    served.ask(RecordListRequest(2, 1, 0, 0, 5))
    assert service(served).session_id == 2
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
