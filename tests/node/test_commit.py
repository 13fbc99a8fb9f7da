"""Group commit: what shares a flush, what fails alone, and that nothing is answered before it is durable."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.node.service_support import (
    STORAGE,
    Peer,
    Served,
    appended,
    created,
    record,
    request_of,
    run_of,
    serving,
)
from waltzctl.engine.durable import disk
from waltzctl.engine.durable.disk import Change
from waltzctl.engine.node.answers import SUCCESS_SIZE, failure_frames, successes
from waltzctl.engine.node.append_runs import portions_of
from waltzctl.engine.node.hosted_storage import ServiceOptions
from waltzctl.engine.node.partition_service import Admission
from waltzctl.engine.node.permissions import out_of_order
from waltzctl.engine.scan.frames import FrameColumn
from waltzctl.engine.storage.directory import StorageOptions
from waltzctl.formats.segment import HEADER_SIZE, RECORD_OVERHEAD
from waltzctl.formats.wire.storage import (
    FailureResponse,
    MaxTransactionIdRequest,
    MaxTransactionIdResponse,
    RecordListRequest,
    RecordListResponse,
    StorageMessage,
    SuccessResponse,
    TruncateRequest,
    encode,
)

DATA = b"data"
RECORD_SIZE = RECORD_OVERHEAD + len(DATA)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    created(tmp_path / "s")
    with serving(tmp_path / "s") as found:
        yield found


def together(served: Served, *items: tuple[Peer, list[bytes | StorageMessage]]) -> None:
    """Queue runs so that they are executed at once."""
    service = served.hosted.service(0)
    assert service is not None
    service.hold()
    for peer, frames in items:
        whole = [frame if isinstance(frame, bytes) else encode(frame) for frame in frames]
        assert service.submit(run_of(peer, whole)) is Admission.ACCEPTED
    service.resume()


def outcomes(answers: list[StorageMessage]) -> list[tuple[int, str]]:
    """Sequence number, and "" for a success or the failure's code."""
    found = []
    for answer in answers:
        if isinstance(answer, FailureResponse):
            found.append((answer.sequence, str(answer.failure.code)))
        else:
            assert isinstance(answer, SuccessResponse)
            found.append((answer.sequence, ""))
    return found


def stored(served: Served, session: int = 1) -> list[bytes]:
    """Data of all records."""
    answer = served.one(RecordListRequest(session, 0, 0, 0, 1 << 20))
    assert isinstance(answer, RecordListResponse)
    assert [found.transaction_id for found in answer.records] == list(range(len(answer.records)))
    return [found.data for found in answer.records]


def bad_checksum(first: int, sequence: int) -> bytes:
    frame = bytearray(encode(appended(first, 2, sequence=sequence)))
    frame[-1 - 4 - 1] ^= 1  # last byte of the last record's data
    return bytes(frame)


def left_over(first: int, sequence: int) -> bytes:
    """One byte more than the message has."""
    frame = encode(appended(first, 1, sequence=sequence))
    return frame[:3] + (len(frame) - 6).to_bytes(4, "big") + frame[7:] + b"\0"


def count_beyond(first: int, sequence: int) -> bytes:
    frame = bytearray(encode(appended(first, 1, sequence=sequence)))
    frame[28:32] = (1 << 30).to_bytes(4, "big")
    return bytes(frame)


def test_everything_queued_for_a_partition_shares_one_write_and_one_flush(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes: list[Change] = []
    first, second = Peer(), Peer()
    monkeypatch.setattr(disk, "observer", changes.append)
    together(
        served,
        (first, [appended(0, 3, sequence=1), appended(3, 1, sequence=2)]),
        (second, [appended(4, 5, sequence=1)]),
        (first, [appended(9, 1, sequence=3)]),
    )
    assert outcomes(first.wait(3)) == [(1, ""), (2, ""), (3, "")]
    assert outcomes(second.wait(1)) == [(1, "")]
    in_data = [change for change in changes if change.path.suffix == ".seg"]
    assert [change.kind for change in in_data] == ["write", "sync"]
    assert b"".join(change.data for change in in_data)[: 10 * RECORD_SIZE].count(DATA) == 10


@pytest.mark.parametrize(
    ("bad", "code"),
    [
        (lambda sequence: encode(appended(7, 1, sequence=sequence)), "out-of-order"),
        (lambda sequence: encode(appended(1, 1, sequence=sequence)), "out-of-order"),
        (lambda sequence: bad_checksum(2, sequence), "data-checksum"),
        (lambda sequence: encode(appended(2, 1, sequence=sequence, data=b"x" * 101)), "too-long"),
        (lambda sequence: encode(appended(2, 1, sequence=sequence, session=0)), "session-changed"),
        (lambda sequence: encode(appended(2, 1, sequence=sequence, offline=True)), "online"),
    ],
)
def test_a_bad_request_fails_alone_and_those_behind_it_are_judged_without_it(
    tmp_path: Path, bad: Callable[[int], bytes], code: str
) -> None:
    created(tmp_path / "s")
    with serving(tmp_path / "s", storage=StorageOptions(max_data_length=100)) as served:
        peer = Peer()
        together(
            served,
            (peer, [appended(0, 1, sequence=1), appended(1, 1, sequence=2), bad(3), appended(3, 1, sequence=4)]),
            (peer, [appended(2, 1, sequence=5), bad(6), appended(3, 2, sequence=7)]),
        )
        expected = [(1, ""), (2, ""), (3, code), (4, "out-of-order"), (5, ""), (6, code), (7, "")]
        found = outcomes(peer.wait(7))
        if code == "data-checksum":  # its ids are not the next any more the second time
            expected[5] = (6, "out-of-order")
        if code == "too-long":
            expected[5] = (6, "out-of-order")
        assert found == expected
        assert stored(served) == [DATA] * 5


def test_a_request_that_is_only_partly_in_order_writes_nothing(served: Served) -> None:
    torn = appended(0, 2)
    torn = type(torn)(1, 9, 0, (record(0), record(2)))
    assert served.failure(torn).message == STORAGE + "transaction out of order"
    assert stored(served) == []


def test_a_wrong_data_checksum_is_told_with_the_transaction(served: Served) -> None:
    wrong = type(appended(0))(1, 9, 0, (record(0), record(1, checksum=5)))
    failure = served.failure(wrong)
    assert failure.message.startswith(STORAGE + "transaction 1: ")
    assert failure.code == "data-checksum"


@pytest.mark.parametrize("malformed", [left_over, count_beyond])
def test_a_frame_that_cannot_be_decoded_ends_its_connection_and_what_came_behind_it_is_dropped(
    served: Served, malformed: Callable[[int, int], bytes]
) -> None:
    bad, good = Peer(), Peer()
    together(
        served,
        (bad, [appended(0, 1, sequence=1), malformed(1, 2), appended(1, 1, sequence=3, session=1)]),
        (good, [appended(1, 1, sequence=1)]),
        (bad, [appended(2, 1, sequence=4), appended(2, 1, sequence=5, session=9)]),
        (good, [appended(2, 1, sequence=2)]),
    )
    assert outcomes(good.wait(2)) == [(1, ""), (2, "")]
    assert outcomes(bad.wait(5)) == [(1, "")]
    assert bad.closed
    assert not good.closed
    assert stored(served) == [DATA] * 3
    assert served.one(MaxTransactionIdRequest(1, 0, 0)) == MaxTransactionIdResponse(1, 0, 0, 2)  # session 9 never was


def test_each_peer_of_several_whose_frames_cannot_be_decoded_loses_what_came_behind_them(served: Served) -> None:
    """Also where what is dropped is of many sessions, and what comes next is of one that is over."""
    served.succeed(appended(0, 1, session=1))
    one, other, good = Peer(), Peer(), Peer()
    together(
        served,
        (one, [left_over(1, 1), *(appended(1, 1, sequence=n, session=n) for n in (2, 3, 4))]),
        (other, [appended(1, 1, sequence=1, session=0), appended(1, 1, sequence=2), left_over(2, 3)]),
        (good, [appended(2, 1, sequence=1)]),
        (one, [appended(3, 1, sequence=5, session=n) for n in (6, 7)]),
        (other, [appended(3, 1, sequence=4)]),
        (good, [appended(3, 1, sequence=2), appended(4, 1, sequence=3, session=2)]),
    )
    assert outcomes(good.wait(3)) == [(1, ""), (2, ""), (3, "")]
    assert (outcomes(one.wait(6)), outcomes(other.wait(4))) == ([], [(1, "session-changed"), (2, "")])
    assert (one.closed, other.closed, good.closed) == (True, True, False)
    assert served.one(MaxTransactionIdRequest(2, 0, 0)) == MaxTransactionIdResponse(2, 0, 0, 4)


def test_requests_that_are_not_appends_keep_their_place_between_them(served: Served) -> None:
    peer = Peer()
    service = served.hosted.service(0)
    assert service is not None
    service.hold()
    served.submit(
        peer,
        appended(0, 2, sequence=1),
        MaxTransactionIdRequest(1, 2, 0),
        appended(2, 2, sequence=3),
        TruncateRequest(1, 4, 0, 1),
        appended(2, 1, sequence=5),
        MaxTransactionIdRequest(1, 6, 0),
    )
    service.resume()
    answers = peer.wait(6)
    assert [answer.sequence for answer in answers] == [1, 2, 3, 4, 5, 6]
    found = [answer.transaction_id for answer in answers if isinstance(answer, MaxTransactionIdResponse)]
    assert found == [1, 1, 2]


def test_a_newer_session_inside_a_group_shuts_out_the_older_one_behind_it(served: Served) -> None:
    first, second = Peer(), Peer()
    together(
        served,
        (first, [appended(0, 1, sequence=1, session=1)]),
        (second, [appended(1, 1, sequence=1, session=2)]),
        (first, [appended(2, 1, sequence=2, session=1)]),
        (second, [appended(2, 1, sequence=2, session=2)]),
    )
    assert outcomes(first.wait(2)) == [(1, ""), (2, "session-changed")]
    assert outcomes(second.wait(2)) == [(1, ""), (2, "")]


# --- durable before it is answered -----------------------------------------------------------------------------------


class Watch:
    """What of the data file of partition 0 is durable, from the observer's view; records have `RECORD_SIZE` bytes."""

    def __init__(self) -> None:
        self.written = self.durable = HEADER_SIZE

    def __call__(self, change: Change) -> None:
        if change.path.suffix != ".seg" or change.path.parent.name != "0":
            return
        if change.kind == "write":
            self.written = change.offset + len(change.data)
        elif change.kind == "truncate":
            self.written = change.size
        elif change.kind == "sync":
            self.durable = self.written


class StrictPeer(Peer):
    """A peer that looks at the disk at the moment of every answer."""

    def __init__(self, watch: Watch, ends: dict[int, int]) -> None:
        super().__init__()
        self.watch, self.ends = watch, ends
        self.checked = 0

    def post(self, answer: bytes | list[bytes], requests: int, size: int) -> None:
        before = len(self.answers)
        super().post(answer, requests, size)
        for found in self.answers[before:]:
            if isinstance(found, SuccessResponse):
                assert self.watch.durable >= HEADER_SIZE + self.ends[found.sequence] * RECORD_SIZE
                self.checked += 1


@pytest.mark.parametrize("commit_bytes", [1, 200, 1 << 20])
def test_a_success_is_sent_only_after_the_sync_of_its_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, commit_bytes: int
) -> None:
    created(tmp_path / "s")
    with serving(tmp_path / "s", options=ServiceOptions(commit_bytes=commit_bytes)) as served:
        watch, ends = Watch(), dict[int, int]()
        monkeypatch.setattr(disk, "observer", watch)
        peers = [StrictPeer(watch, ends) for _ in range(3)]
        following, sent = 0, 0
        for number in range(120):
            count = number % 4
            ends[number] = following + count
            served.submit(peers[number % 3], appended(following, count, sequence=number))
            following, sent = following + count, sent + 1
        for place, peer in enumerate(peers):
            answers = peer.wait(len(range(place, sent, 3)))
            assert outcomes(answers) == [(number, "") for number in range(place, sent, 3)]
        assert sum(peer.checked for peer in peers) == sent
        monkeypatch.setattr(disk, "observer", None)


def test_a_newer_session_is_durable_before_its_first_answer(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []
    monkeypatch.setattr(disk, "observer", lambda change: events.append(f"{change.kind} {change.path.name}"))

    class Noting(Peer):
        def post(self, answer: bytes | list[bytes], requests: int, size: int) -> None:
            events.append("answer")
            super().post(answer, requests, size)

    for message in (MaxTransactionIdRequest(5, 0, 0), MaxTransactionIdRequest(6, 0, 0), appended(0, session=7)):
        events.clear()
        peer = Noting()
        served.submit(peer, message)
        peer.wait(1)
        fence = max(place for place, event in enumerate(events) if event.startswith(("sync sessions", "sync-dir")))
        assert fence < events.index("answer")
    events.clear()
    served.one(MaxTransactionIdRequest(7, 0, 0))
    assert events == []  # nothing to make durable for the same session


# --- errors of the disk ----------------------------------------------------------------------------------------------


def refuse(monkeypatch: pytest.MonkeyPatch, name: str, suffix: str, code: int) -> None:
    """Let a system call fail for the files of partition 0 with this suffix."""
    real = getattr(os, name)

    def failing(descriptor: int, *arguments: object) -> object:
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        if path.endswith(suffix) and "/0/" in path:
            raise OSError(code, os.strerror(code))
        return real(descriptor, *arguments)

    monkeypatch.setattr(os, name, failing)


def test_a_full_disk_fails_every_request_of_the_group_and_nothing_of_it_remains(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    served.succeed(appended(0, 2))
    with monkeypatch.context() as patch:
        refuse(patch, "pwrite", ".seg", errno.ENOSPC)
        refuse(patch, "pwritev", ".seg", errno.ENOSPC)
        peer = Peer()
        together(served, (peer, [appended(2, 1, sequence=1), appended(9, 1, sequence=2), appended(3, 1, sequence=3)]))
        found = outcomes(peer.wait(3))
        assert found == [(1, "disk-full"), (2, "disk-full"), (3, "disk-full")]
        answer = peer.answers[0]
        assert isinstance(answer, FailureResponse)
        assert answer.failure.message.startswith("java.io.IOException: ")
        assert os.strerror(errno.ENOSPC) in answer.failure.message
        served.succeed(appended(0, 1, partition=1))  # others are not concerned
        assert stored(served) == [DATA] * 2  # what is there is still read
    served.succeed(appended(2, 1))  # room was made
    assert stored(served) == [DATA] * 3


def test_after_a_failed_sync_the_partition_refuses_until_it_is_opened_again(
    served: Served, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    served.succeed(appended(0, 2))
    with monkeypatch.context() as patch:
        refuse(patch, "fdatasync", ".seg", errno.EIO)
        peer = Peer()
        together(served, (peer, [appended(2, 1, sequence=1), appended(3, 1, sequence=2)]))
        assert outcomes(peer.wait(2)) == [(1, "sync-failed"), (2, "sync-failed")]
    # the disk is well again, and that proves nothing
    for request in (appended(2), appended(4), TruncateRequest(1, 0, 0, 0)):
        assert served.failure(request).code == "sync-failed"
    assert stored(served) == [DATA] * 2
    served.succeed(appended(0, 1, partition=1))
    served.hosted.reopen(0)
    assert stored(served) == [DATA] * 2  # nothing that was not acknowledged came back
    served.succeed(appended(2, 3))
    assert stored(served) == [DATA] * 5


def test_a_session_that_cannot_be_made_durable_is_not_let_in(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    served.succeed(appended(0, session=4))
    with monkeypatch.context() as patch:
        real = os.fdatasync

        def failing(descriptor: int) -> None:
            if os.readlink(f"/proc/self/fd/{descriptor}").endswith("sessions"):
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            real(descriptor)

        patch.setattr(os, "fdatasync", failing)
        assert served.failure(appended(1, session=5)).code == "sync-failed"
        assert served.failure(MaxTransactionIdRequest(5, 0, 0)).code == "sync-failed"
        peer = Peer()
        undecodable = left_over(2, 2)
        undecodable = undecodable[:8] + (5).to_bytes(8, "big") + undecodable[16:]
        together(served, (peer, [appended(1, sequence=1, session=5), undecodable]))
        assert outcomes(peer.wait(2)) == [(1, "sync-failed")]
        assert peer.closed, "the second cannot be decoded, whatever became of the first"
    served.succeed(appended(1, session=4))  # the older session is not shut out by what failed


# --- shape -----------------------------------------------------------------------------------------------------------


@given(st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=5), min_size=1, max_size=6), st.integers(1, 600))
def test_portions_hold_every_row_once_in_order_and_keep_the_limit(counts: list[list[int]], limit: int) -> None:
    runs, following = [], 0
    for run in counts:
        frames = []
        for count in run:
            frames.append(appended(following, count, sequence=following))
            following += 1
        runs.append(run_of(Peer(), frames))
    portions = list(portions_of(runs, limit))
    rows = [row for portion in portions for part in portion for row in part.table.tolist()]
    assert rows == [row for run in runs for row in run.table.tolist()]
    for portion in portions:
        size = sum(int(part.table[:, int(FrameColumn.LENGTH)].sum()) for part in portion)
        assert size == sum(part.size for part in portion)
        assert size <= limit or sum(len(part.table) for part in portion) == 1


def test_a_long_run_is_cut_into_as_few_portions_as_the_limit_allows() -> None:
    frames = [appended(number, 1, sequence=number) for number in range(10)]
    size = len(encode(frames[0])) - 7
    run = run_of(Peer(), frames)
    assert [len(part.table) for portion in portions_of([run], 3 * size) for part in portion] == [3, 3, 3, 1]


@given(st.lists(st.tuples(st.integers(-1, 2**63 - 1), st.integers(-1, 2**63 - 1)), min_size=1, max_size=9))
def test_many_answers_at_once_are_those_one_by_one(prefixes: list[tuple[int, int]]) -> None:
    frames = [appended(0, 1, session=session, sequence=sequence) for session, sequence in prefixes]
    table = run_of(Peer(), frames).table
    one_by_one = b"".join(failure_frames(out_of_order(), table[row : row + 1]) for row in range(len(table)))
    assert failure_frames(out_of_order(), table) == one_by_one
    assert len(encode(SuccessResponse(1, 2, 3))) == SUCCESS_SIZE
    whole = b"".join(encode(SuccessResponse(session, sequence, 0)) for session, sequence in prefixes)
    assert successes(table) == whole


def test_an_item_of_a_request_that_is_no_append_counts_its_size(served: Served) -> None:
    peer = Peer()
    message = MaxTransactionIdRequest(1, 2, 0)
    service = served.hosted.service(0)
    assert service is not None
    assert service.submit(request_of(peer, message)) is Admission.ACCEPTED
    run = run_of(peer, [appended(0, 1, sequence=1), left_over(1, 2), appended(1, 1, sequence=3)])
    assert service.submit(run) is Admission.ACCEPTED
    peer.wait(4)
    assert peer.size == len(encode(message)) - 7 + run.size
