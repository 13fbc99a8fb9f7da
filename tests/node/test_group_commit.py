"""Group commit alone: however requests come together, each has the same outcome, and the same bytes are written."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.node.service_support import LOG, Peer, appended
from waltzctl.engine.errors import DiskWriteError
from waltzctl.engine.node import commit
from waltzctl.engine.node.commit import GroupCommit
from waltzctl.engine.node.node_metrics import NodePartitionMetrics
from waltzctl.engine.node.permissions import Denial
from waltzctl.engine.node.requests import AppendRun
from waltzctl.engine.scan.frames import FrameColumn, FrameSplitter
from waltzctl.engine.scan.transcode import AppendEncoder
from waltzctl.formats.segment import RECORD_OVERHEAD
from waltzctl.formats.wire.failure import STORAGE_EXCEPTION, FailureCode
from waltzctl.formats.wire.frame import Magic
from waltzctl.formats.wire.storage import FailureResponse, encode

LONGEST = 50
OLD = Denial(FailureCode.SESSION_CHANGED, STORAGE_EXCEPTION, "an older session")


class Target:
    """What was written, flush by flush."""

    def __init__(self) -> None:
        self.next_transaction_id = 0
        self.flushes: list[bytes] = []
        self.error: BaseException | None = None

    def append_blocks(self, blocks: Sequence[Any]) -> None:
        if self.error is not None:
            raise self.error
        for block in blocks:
            assert block.first_transaction_id == self.next_transaction_id
            self.next_transaction_id = block.next_transaction_id
        self.flushes.append(b"".join(bytes(block.data) for block in blocks))


class Judge:
    """Session 1 is open, until a newer one is let in; offline requests are let in as if they were of session 1."""

    def __init__(self, *, blind: bool = False) -> None:
        self.session = 1
        self.blind = blind
        self.let: list[tuple[int, bool]] = []
        self.failures: list[BaseException] = []
        self.answered = 0
        self.error: DiskWriteError | None = None

    def open_session(self) -> int | None:
        return None if self.blind else self.session

    def check(self, session_id: int, offline: bool) -> Denial | None:
        return OLD if session_id < self.session and not offline else None

    def let_in(self, session_id: int, offline: bool) -> None:
        self.let.append((session_id, offline))
        if self.error is not None and session_id > self.session:
            raise self.error
        self.session = max(session_id, self.session)

    def note_failure(self, error: BaseException) -> None:
        self.failures.append(error)

    def answering(self, requests: int) -> None:
        self.answered += requests


class Noting(Peer):
    """A peer that notes how many requests each answer was for, and their size."""

    def __init__(self) -> None:
        super().__init__()
        self.posts: list[tuple[int, int]] = []

    def post(self, answer: bytes | list[bytes], requests: int, size: int) -> None:
        self.posts.append((requests, size))
        super().post(answer, requests, size)

    @property
    def told(self) -> list[tuple[int, str]]:
        """Sequence number and code of each answer."""
        return [(a.sequence, str(a.failure.code) if isinstance(a, FailureResponse) else "") for a in self.answers]


class Alone:
    """A commit and all that it sees."""

    def __init__(self, *, commit_bytes: int = 1 << 20, blind: bool = False) -> None:
        self.target, self.judge, self.metrics = Target(), Judge(blind=blind), NodePartitionMetrics(0)
        self.commit = GroupCommit(
            self.target,
            AppendEncoder(max_data_length=LONGEST),
            self.judge,
            self.metrics,
            answering=self.judge.answering,
            max_data_length=LONGEST,
            commit_bytes=commit_bytes,
            log=LOG,
        )


def run_of(peer: Peer, frames: Sequence[bytes], *, gap: int = 0) -> AppendRun:
    """A run whose frames have `gap` bytes of something else in front of each."""
    whole = b"".join(frames)
    table = FrameSplitter(magic=Magic.STORAGE, max_body=1 << 28).split(whole, 0, len(whole), 0).table
    table[:, int(FrameColumn.BODY)] += [gap * (row + 1) for row in range(len(frames))]
    buffer = b"".join(b"\xff" * gap + frame for frame in frames)
    return AppendRun(peer, buffer, table, int(table[:, int(FrameColumn.LENGTH)].sum()), time.monotonic())


def frame(
    first: int, count: int = 1, *, sequence: int, session: int = 1, offline: bool = False, data: bytes = b"data"
) -> bytes:
    return encode(appended(first, count, session=session, sequence=sequence, offline=offline, data=data))


def wrong_sum(first: int, *, sequence: int) -> bytes:
    made = bytearray(frame(first, sequence=sequence))
    made[-5] ^= 1  # the last byte of the data
    return bytes(made)


def undecodable(first: int, *, sequence: int) -> bytes:
    made = bytearray(frame(first, sequence=sequence))
    made[28:32] = (1 << 30).to_bytes(4, "big")  # so many records
    return bytes(made)


def story(one: Peer, other: Peer) -> list[tuple[Peer, bytes]]:
    """Everything that an append can be, in an order; what must become of each stands in `OUTCOMES`."""
    return [
        (one, frame(0, 2, sequence=1)),
        (one, frame(5, sequence=2)),
        (one, wrong_sum(2, sequence=3)),
        (other, frame(2, sequence=1)),
        (other, frame(3, sequence=2, data=b"x" * (LONGEST + 1))),
        (other, frame(3, sequence=3, session=0)),
        (other, frame(3, sequence=4, data=b"x" * LONGEST)),
        (one, frame(4, sequence=4)),
        (other, frame(7, sequence=5, session=9)),
        (one, frame(5, sequence=5, session=0, offline=True)),
        (other, undecodable(6, sequence=6)),
        (one, frame(6, 0, sequence=6)),
        (other, frame(6, sequence=7)),
        (one, frame(6, 2, sequence=7, session=2)),
        (other, frame(8, sequence=8, session=2)),
        (one, frame(8, sequence=8, session=1)),
        (one, frame(8, sequence=9, session=2)),
    ]


OUTCOMES = (
    [(1, ""), (2, "out-of-order"), (3, "data-checksum"), (4, ""), (5, ""), (6, ""), (7, ""), (8, "session-changed"), (9, "")],
    [(1, ""), (2, "too-long"), (3, "session-changed"), (4, ""), (5, "out-of-order")],
)  # fmt: skip
DROPPED = 3
"""Requests of the other peer: the frame that cannot be decoded, and what came behind it."""


def grouped(requests: Sequence[tuple[Peer, bytes]], most: int, gap: int) -> list[AppendRun]:
    """Consecutive requests of one peer as runs of at most `most`."""
    runs: list[tuple[Peer, list[bytes]]] = []
    for peer, whole in requests:
        if runs and runs[-1][0] is peer and len(runs[-1][1]) < most:
            runs[-1][1].append(whole)
        else:
            runs.append((peer, [whole]))
    return [run_of(peer, frames, gap=gap) for peer, frames in runs]


def written_alone() -> bytes:
    """What the right requests have written, each in a flush of its own."""
    alone, peer = Alone(commit_bytes=1), Peer()
    right = [frame(0, 2, sequence=1), frame(2, sequence=1), frame(3, sequence=4, data=b"x" * LONGEST)]
    right += [frame(4, sequence=4), frame(5, sequence=5), frame(6, 2, sequence=7), frame(8, sequence=9)]
    alone.commit.execute([run_of(peer, right)])
    assert len(alone.target.flushes) == len(right)
    return b"".join(alone.target.flushes)


@pytest.mark.parametrize(
    ("commit_bytes", "most", "gap", "small", "blind"),
    [
        (1 << 20, 99, 0, 32 << 10, False), (1 << 20, 99, 11, 32 << 10, False), (1 << 20, 99, 50_000, 32 << 10, False),
        (1 << 20, 1, 0, 32 << 10, False), (1 << 20, 2, 11, 32 << 10, True), (1 << 20, 99, 0, 0, False), (90_000, 2, 9, 150, True),
        (1 << 20, 99, 500, 150, False), (1, 99, 0, 32 << 10, False), (1, 2, 11, 150, True), (200, 99, 11, 32 << 10, False),
        (200, 1, 0, 150, True), (200, 99, 50_000, 0, False), (400, 99, 0, 150, False), (400, 2, 0, 32 << 10, True),
    ],
)  # fmt: skip
def test_however_requests_come_together_their_outcomes_are_the_same(
    monkeypatch: pytest.MonkeyPatch, commit_bytes: int, most: int, gap: int, small: int, blind: bool
) -> None:
    monkeypatch.setattr(commit, "SMALL_RUN", small)
    alone, one, other = Alone(commit_bytes=commit_bytes, blind=blind), Noting(), Noting()
    requests = story(one, other)
    alone.commit.execute(grouped(requests, most, gap))
    assert (one.told, other.told) == OUTCOMES
    assert b"".join(alone.target.flushes) == written_alone()
    for peer, dropped in ((one, 0), (other, DROPPED)):
        frames = [whole for sender, whole in requests if sender is peer]
        assert (peer.requests, peer.size) == (len(frames), sum(len(whole) - 7 for whole in frames))
        for count, size in peer.posts:
            assert size == sum(len(frames.pop(0)) - 7 for _ in range(count))
        assert len(frames) == dropped
        assert peer.closed == bool(dropped)
    assert {*other.reasons} == {"a request that cannot be decoded"}
    assert alone.commit.broken == [other]
    assert alone.judge.answered == len(requests)
    assert (2, False) in alone.judge.let
    assert (9, False) not in alone.judge.let, "a request that fails shuts out nobody"


def test_what_shares_a_flush_is_counted_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Appends that were let in, whatever became of them; times of those that were taken; sizes of flushes."""
    now = iter([1010.0, 1013.0])
    monkeypatch.setattr(commit, "time", SimpleNamespace(monotonic=lambda: next(now)))
    alone, one, other = Alone(), Noting(), Noting()
    runs = [run._replace(received=1000.0 + at) for at, run in enumerate(grouped(story(one, other), 99, 0))]
    alone.commit.execute(runs)
    metrics = alone.metrics
    assert metrics.append.count == 12, "but for those of an older session, and what cannot be decoded"
    assert metrics.append_latency.count == 8
    assert (metrics.flush_latency.count, metrics.flush_latency.buckets().sum) == (1, 3.0)
    assert (metrics.flush_requests.count, metrics.flush_requests.sum) == (1, 8.0)
    middle = 1013.0 - sum(run.received for run in runs) / len(runs)
    assert metrics.append_latency.buckets().sum == pytest.approx(8 * middle)


def test_what_writes_nothing_is_no_flush() -> None:
    alone, peer = Alone(), Noting()
    alone.commit.execute([run_of(peer, [frame(0, 0, sequence=1), frame(3, sequence=2)])])
    assert peer.told == [(1, ""), (2, "out-of-order")]
    assert alone.target.flushes == []
    assert (alone.metrics.flush_latency.count, alone.metrics.flush_requests.count) == (0, 0)
    assert (alone.metrics.append.count, alone.metrics.append_latency.count) == (2, 1)


@pytest.mark.parametrize(
    ("counts", "limit", "missing", "flushes"),
    [
        ([3], 3, 0, [3]), ([3], 3, 1, [2, 1]), ([3], 1, 0, [1, 1, 1]), ([3], 1, 1, [1, 1, 1]), ([4], 2, 0, [2, 2]),
        ([1, 1, 1], 2, 0, [2, 1]), ([1, 1, 1], 2, 1, [1, 1, 1]), ([2, 3, 1], 3, 0, [2, 3, 1]), ([1, 5, 1], 2, 0, [1, 2, 2, 2]),
        ([1, 2, 1], 3, 0, [3, 1]), ([1, 2, 1], 3, 1, [1, 2, 1]), ([5], 3, 1, [2, 2, 1]),
    ],
)  # fmt: skip
def test_as_much_as_fits_shares_a_flush(counts: list[int], limit: int, missing: int, flushes: list[int]) -> None:
    """`limit` in frames, which are of equal length here, and so many bytes less; a longer frame has a flush of its own."""
    length = len(frame(0, sequence=1)) - 7
    alone, peer = Alone(commit_bytes=limit * length - missing), Noting()
    first, runs = 0, []
    for count in counts:
        runs.append(run_of(peer, [frame(first + n, sequence=first + n) for n in range(count)]))
        first += count
    alone.commit.execute(runs)
    assert peer.told == [(number, "") for number in range(first)]
    assert [len(flush) / (RECORD_OVERHEAD + 4) for flush in alone.target.flushes] == flushes


def test_when_the_write_fails_every_request_that_shared_it_fails(caplog: pytest.LogCaptureFixture) -> None:
    alone, one, other = Alone(), Noting(), Noting()
    alone.commit.broken = [other]
    alone.target.error = DiskWriteError(Path("/d/0"), 0, OSError(5, "no"))
    runs = [run_of(one, [frame(0, sequence=1), frame(5, sequence=2)]), run_of(other, [frame(1, sequence=1)])]
    alone.commit.execute([*runs, run_of(one, [frame(1, sequence=3)])])
    assert one.told == [(1, "io-error"), (2, "io-error"), (3, "io-error")]
    assert (other.told, other.reasons, other.requests) == ([], ["a request that cannot be decoded"], 1)
    assert alone.judge.failures == [alone.target.error]
    assert alone.judge.answered == 4
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == ["4 append requests failed"]
    assert alone.metrics.append.count == 0


def test_an_exit_is_raised_behind_all_portions() -> None:
    alone, peer = Alone(commit_bytes=1), Noting()
    alone.target.error = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        alone.commit.execute([run_of(peer, [frame(0, sequence=1)]), run_of(peer, [frame(0, sequence=2)])])
    assert peer.told == [(1, "internal"), (2, "internal")]


def test_a_session_that_cannot_be_let_in_fails_alone(caplog: pytest.LogCaptureFixture) -> None:
    alone, peer = Alone(), Noting()
    alone.judge.error = DiskWriteError(Path("/d/fences"), 0, OSError(5, "no"))
    frames = [
        frame(0, sequence=1),
        frame(1, sequence=2, session=2),
        frame(2, sequence=3, session=2),
        frame(1, sequence=4),
    ]
    alone.commit.execute([run_of(peer, frames)])
    assert peer.told == [(1, ""), (2, "io-error"), (3, "io-error"), (4, "")]
    assert alone.judge.let == [(2, False)]
    assert alone.judge.failures == [], "the partition can write"
    assert [record.levelno for record in caplog.records] == [logging.ERROR]
    assert caplog.records[0].getMessage().startswith("session 2 failed: ")


def test_failures_name_the_transaction() -> None:
    alone, peer = Alone(), Noting()
    long = frame(4, sequence=2, data=b"x" * (LONGEST + 1))
    alone.commit.execute([run_of(peer, [frame(0, 4, sequence=0), wrong_sum(4, sequence=1), long])])
    texts = [a.failure.message.partition(": ")[2] for a in peer.answers if isinstance(a, FailureResponse)]
    assert texts == [
        "transaction 4: the data does not agree with the checksum that came with it; nothing of the request was written",
        "transaction 4: more data than the 50 bytes that this node accepts; nothing of the request was written",
    ]
