"""Group commit: every append that waits for a partition shares one write and one flush.

On the way from the socket to the disk nothing is made for a single request.  Sessions are compared by columns, records are
encoded by `engine.scan.transcode`, one call writes and syncs, and the answers of all requests are made at once.  Requests that
must fail fail alone, with the release's failure, and those behind them are judged as if they had never been there: so they
usually are out of order, as in the release.  Unlike there, nothing of a failing request is written, and data is compared with
its checksum.

No answer is made before everything it tells is durable.  When the write or the flush fails, all requests that shared it
fail.  A frame that cannot be decoded ends its connection, as in the release, and what came behind it is not looked at.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from waltzctl.engine.errors import SyncFailedError, WaltzError
from waltzctl.engine.node.answers import (
    MALFORMED_REASON,
    SUCCESS_SIZE,
    Table,
    break_off,
    failure_frames,
    later,
    post,
    refuse,
    report,
    successes,
)
from waltzctl.engine.node.append_runs import portions_of, requests_of
from waltzctl.engine.node.node_metrics import NodePartitionMetrics
from waltzctl.engine.node.permissions import Denial, out_of_order
from waltzctl.engine.node.requests import AppendRun, Sender
from waltzctl.engine.scan.frames import FrameColumn
from waltzctl.engine.scan.transcode import AppendEncoder, EncodedAppends, EncodedBlock, FrameVerdict
from waltzctl.engine.storage.partition import UnsyncedAppend
from waltzctl.formats.wire.failure import STORAGE_EXCEPTION, FailureCode

SMALL_RUN = 32 << 10
"""Bytes up to which a run is copied together with its neighbours, so that one call encodes them all."""

BODY, LENGTH, SESSION = int(FrameColumn.BODY), int(FrameColumn.LENGTH), int(FrameColumn.SESSION)
OFFLINE = int(FrameColumn.OFFLINE)

_BROKEN_OFF = Denial(FailureCode.INVALID_REQUEST, "", MALFORMED_REASON)


class CommitTarget(Protocol):
    """What a commit needs of the partition (`engine.storage.partition.Partition`)."""

    @property
    def next_transaction_id(self) -> int:
        """The id that the next record must have."""
        ...

    def append_blocks(self, blocks: Sequence[EncodedBlock]) -> None:
        """Write and sync."""
        ...

    def write_blocks(self, blocks: Sequence[EncodedBlock]) -> UnsyncedAppend | None:
        """Write, for whoever syncs and then calls `finish_append`; None, and nothing was done, where one sync is not enough."""
        ...

    def finish_append(self, append: UnsyncedAppend, error: SyncFailedError | None) -> None:
        """What was written has been synced, or could not be."""
        ...


class AppendJudge(Protocol):
    """Who says whether an append may run (the partition's service)."""

    def open_session(self) -> int | None:
        """The session whose online appends need no further look at present; None when there is none."""
        ...

    def check(self, session_id: int, offline: bool) -> Denial | None:
        """Check an append; None when it may run.  Changes nothing."""
        ...

    def let_in(self, session_id: int, offline: bool) -> None:
        """A checked append will be executed: its session, if it is a newer one, is durable on return.  Raises WaltzError."""
        ...

    def note_failure(self, error: BaseException) -> None:
        """Appends failed with this error."""
        ...

    def answering(self, requests: int) -> None:
        """So many requests are answered now: from here on they are not under way."""
        ...


@dataclass(slots=True)
class _Chunk:
    """Frames that are encoded together, and what became of them.

    `ends`: behind which row each run ends.  `stretches`: first row, row behind the last, and why they were refused; without a
    denial their records are in a block.
    """

    runs: Sequence[AppendRun]
    buffer: bytes | bytearray
    table: Table
    ends: list[int]
    stretches: list[tuple[int, int, Denial | None]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class UnsyncedCommit:
    """Runs whose records are written and not durable yet.  `started`: `time.monotonic` before the write."""

    runs: Sequence[AppendRun]
    chunks: list[_Chunk]
    started: float
    written: UnsyncedAppend


@dataclass(frozen=True, slots=True)
class _Done:
    """Runs that are judged, and of which everything that was admitted is durable.  Both times are of `time.monotonic`."""

    runs: Sequence[AppendRun]
    chunks: list[_Chunk]
    answers: list[Answer]
    wrote: bool
    started: float
    finished: float

    @classmethod
    def now(cls, runs: Sequence[AppendRun], chunks: list[_Chunk], wrote: bool, started: float) -> _Done:
        finished = time.monotonic()
        return cls(runs, chunks, [answer for chunk in chunks for answer in _answers(chunk)], wrote, started, finished)


class GroupCommit:
    """Executes append runs of one partition.  Not thread-safe: a partition's requests are executed one after another."""

    def __init__(
        self,
        target: CommitTarget,
        encoder: AppendEncoder,
        judge: AppendJudge,
        metrics: NodePartitionMetrics,
        *,
        max_data_length: int,
        commit_bytes: int,
        log: logging.Logger,
    ) -> None:
        """`commit_bytes`: bytes of frame bodies that share one write and flush; a frame that is longer has its own."""
        self.target = target
        self._encoder, self._judge, self._metrics = encoder, judge, metrics
        self._max_data_length, self._commit_bytes, self._log = max_data_length, commit_bytes, log
        self.broken: list[Sender] = []
        """Peers that sent a frame which cannot be decoded: whatever else of theirs is queued came behind it."""

    def execute(self, runs: Sequence[AppendRun]) -> None:
        """Judge, write, sync and answer every request of the runs, in order.  Raises the exits of the interpreter only."""
        leave: BaseException | None = None
        for portion in portions_of(runs, self._commit_bytes):
            try:
                self._commit(portion)
            except (KeyboardInterrupt, SystemExit) as error:
                leave = error
        if leave is not None:
            raise leave

    def _commit(self, runs: Sequence[AppendRun]) -> None:
        """One write and flush."""
        self._answer(runs, lambda: self._written(runs, synced=True))

    def begin(self, runs: Sequence[AppendRun]) -> UnsyncedCommit | None:
        """As `execute` for runs that share one flush, up to that flush: whoever flushes calls `finish` then, in the same thread.

        None: everything is answered, because nothing had to be flushed or more than one flush was needed.
        """
        return self._answer(runs, lambda: self._written(runs, synced=False))

    def finish(self, commit: UnsyncedCommit, error: SyncFailedError | None) -> None:
        """What `begin` wrote is durable, or its sync failed with `error`: answer every request."""
        self._answer(commit.runs, lambda: self._finished(commit, error))

    # --- for a commit that is shared with other partitions (`engine.node.shared_commit`) ------------------------------------

    @property
    def usual_session(self) -> int | None:
        """The session whose online appends need no further look; None where requests must be judged one by one."""
        return None if self.broken else self._judge.open_session()

    def answering(self, requests: int) -> None:
        """So many requests are answered now."""
        self._judge.answering(requests)

    def count(self, requests: int, waited: float, seconds: float) -> None:
        """Tell the metrics of requests that shared one write and flush; see `NodePartitionMetrics.committed`."""
        self._metrics.committed(requests, waited, seconds)

    def _answer(self, runs: Sequence[AppendRun], work: Callable[[], _Done | UnsyncedCommit]) -> UnsyncedCommit | None:
        """Do `work` for runs, and answer them all: by what became of them, or by what it failed with.

        What is not synced yet is returned instead.  Raises the exits of the interpreter only.
        """
        try:
            outcome = work()
        except BaseException as error:
            self.fail(runs, error)
            if isinstance(error, (KeyboardInterrupt, SystemExit)):
                raise
            return None
        if isinstance(outcome, UnsyncedCommit):
            return outcome
        self._tell(outcome)
        return None

    def _written(self, runs: Sequence[AppendRun], *, synced: bool) -> _Done | UnsyncedCommit:
        """Judge, encode and write; without `synced` the sync is left out where it would be the only one."""
        chunks = _chunks(runs)
        blocks: list[EncodedBlock] = []
        following = self.target.next_transaction_id
        for chunk in chunks:
            following = self._encode(chunk, following, blocks)
        started = time.monotonic()
        if blocks and not synced:
            written = self.target.write_blocks(blocks)
            if written is not None:
                return UnsyncedCommit(runs, chunks, started, written)
        if blocks:
            self.target.append_blocks(blocks)
        return _Done.now(runs, chunks, bool(blocks), started)

    def _finished(self, commit: UnsyncedCommit, error: SyncFailedError | None) -> _Done:
        self.target.finish_append(commit.written, error)
        return _Done.now(commit.runs, commit.chunks, True, commit.started)

    def _tell(self, done: _Done) -> None:
        """What was admitted is durable: answer every request."""
        runs, chunks = done.runs, done.chunks
        self._judge.answering(requests_of(runs))
        # counting takes as long as answering, and the peer need not wait for it; what was received must not wait for that
        counted = [(chunk.stretches, [run.received for run in chunk.runs]) for chunk in chunks]
        later(runs[0].sender, self._log, self._count, counted, done.wrote, done.finished - done.started, done.finished)
        for sender, answer, requests, size in done.answers:
            if answer is None:
                break_off(sender, MALFORMED_REASON, requests, size, self._log)
            else:
                post(sender, answer, requests, size, self._log)

    def fail(self, runs: Sequence[AppendRun], error: BaseException) -> None:
        """All requests of the runs fail."""
        denial = report(error, self._log, f"{requests_of(runs)} append requests")
        self._judge.note_failure(error)
        self._judge.answering(requests_of(runs))
        for run in runs:
            if self.is_broken(run.sender):
                break_off(run.sender, MALFORMED_REASON, len(run.table), run.size, self._log)
            else:
                refuse(run, denial, self._log)

    # --- judging and encoding ----------------------------------------------------------------------------------------

    def _encode(self, chunk: _Chunk, following: int, blocks: list[EncodedBlock]) -> int:
        """Judge and encode all rows of a chunk; returns the id behind the last record."""
        table, count, row = chunk.table, len(chunk.table), 0
        bounds = self._bounds(table)
        place = 0
        while row < count:
            while bounds[place] <= row:
                place += 1
            stop = bounds[place]
            if self.broken:
                run = next(i for i, end in enumerate(chunk.ends) if row < end)
                stop = min(stop, chunk.ends[run])
                if self.is_broken(chunk.runs[run].sender):
                    chunk.stretches.append((row, chunk.ends[run], _BROKEN_OFF))
                    row = chunk.ends[run]
                    continue
            session_id, offline = int(table[row, SESSION]), bool(table[row, OFFLINE])
            known = not offline and session_id == self._judge.open_session()
            denial = None if known else self._judge.check(session_id, offline)
            if denial is not None:
                chunk.stretches.append((row, stop, denial))
                row = stop
                continue
            encoded = self._encoder.encode(chunk.buffer, table[row:stop], following)
            if encoded.frames and not known:  # a request that fails shuts out nobody
                denial = self._let_in(session_id, offline)
                if denial is not None:
                    chunk.stretches.append((row, row + encoded.frames, denial))
                    row += encoded.frames
                    continue
            if encoded.block.records:
                blocks.append(encoded.block)
                following += encoded.block.records
            if encoded.frames:
                chunk.stretches.append((row, row + encoded.frames, None))
                row += encoded.frames
            if row < stop:
                denial = self._verdict(encoded)
                if denial is _BROKEN_OFF:
                    self.broken.append(
                        next(r.sender for r, end in zip(chunk.runs, chunk.ends, strict=True) if row < end)
                    )
                else:
                    chunk.stretches.append((row, row + 1, denial))
                    row += 1
        return following

    def _bounds(self, table: Table) -> list[int]:
        """Behind which rows session or offline flag change; the last row's end is one."""
        count = len(table)
        if count == 1:
            return [1]
        sessions, offline = table[:, SESSION], table[:, OFFLINE]
        changed = (sessions[1:] != sessions[:-1]) | (offline[1:] != offline[:-1])
        return [*(np.flatnonzero(changed) + 1).tolist(), count]

    def _let_in(self, session_id: int, offline: bool) -> Denial | None:
        try:
            self._judge.let_in(session_id, offline)
        except WaltzError as error:
            return report(error, self._log, f"session {session_id}")
        return None

    def _verdict(self, encoded: EncodedAppends) -> Denial:
        if encoded.verdict is FrameVerdict.ORDER:
            return out_of_order()
        place = f"transaction {encoded.found_transaction_id}"
        if encoded.verdict is FrameVerdict.DATA_CHECKSUM:
            return Denial(
                FailureCode.DATA_CHECKSUM,
                STORAGE_EXCEPTION,
                f"{place}: the data does not agree with the checksum that came with it; nothing of the request was written",
            )
        if encoded.verdict is FrameVerdict.TOO_LONG:
            return Denial(
                FailureCode.TOO_LONG,
                STORAGE_EXCEPTION,
                f"{place}: more data than the {self._max_data_length} bytes that this node accepts; nothing of the request"
                " was written",
            )
        return _BROKEN_OFF

    def is_broken(self, sender: Sender) -> bool:
        """Whether a frame of this peer could not be decoded."""
        return any(broken is sender for broken in self.broken)

    def _count(self, counted: Sequence[_Counted], wrote: bool, seconds: float, finished: float) -> None:
        """Tell the metrics.  Called when the answers are on their way."""
        if wrote and len(counted) == 1 and len(counted[0][0]) == 1 and counted[0][0][0][2] is None:  # as nearly always
            ((stretches, received),) = counted
            ((start, stop, _),) = stretches
            self.count(stop - start, finished - sum(received) / len(received), seconds)
            return
        tried, done = 0, 0
        for stretches, received in counted:
            tried += sum(stop - start for start, stop, d in stretches if d is None or d.code in _TRIED)
            requests = sum(stop - start for start, stop, denial in stretches if denial is None)
            if requests:
                self._metrics.append_latency.update(finished - sum(received) / len(received), requests)
            done += requests
        if tried:
            self._metrics.append.mark(tried)
        if wrote:
            self._metrics.flush_latency.update(seconds)
            self._metrics.flush_requests.update(done)


_TRIED = (FailureCode.OUT_OF_ORDER, FailureCode.DATA_CHECKSUM, FailureCode.TOO_LONG)
"""Failures of appends that were admitted: the release counts those as appends, too."""

_Counted = tuple[Sequence[tuple[int, int, Denial | None]], Sequence[float]]
"""The stretches of a chunk, and when each of its runs had arrived: all of it that outlives the answers."""

Answer = tuple[Sender, bytes | list[bytes] | None, int, int]
"""Whom, what (None: the connection is to be closed), how many requests of how many body bytes."""


def _chunks(runs: Sequence[AppendRun]) -> list[_Chunk]:
    """Long runs alone, where they lie; small neighbours copied together."""
    if len(runs) == 1:
        run = runs[0]
        return [_Chunk(runs, run.buffer, run.table, [len(run.table)])]
    chunks: list[_Chunk] = []
    small: list[AppendRun] = []
    for run in runs:
        if run.size <= SMALL_RUN:
            small.append(run)
            continue
        if small:
            chunks.append(_joined(small))
            small = []
        chunks.append(_Chunk([run], run.buffer, run.table, [len(run.table)]))
    if small:
        chunks.append(_joined(small))
    return chunks


def _joined(runs: list[AppendRun]) -> _Chunk:
    """One buffer and one table for all runs.  What stands between the frames of a run is copied along."""
    parts: list[bytes | bytearray] = []
    tables: list[Table] = []
    ends: list[int] = []
    position, rows = 0, 0
    for run in runs:
        table = run.table.copy()
        first, stop = int(table[0, BODY]), int(table[-1, BODY]) + int(table[-1, LENGTH])
        table[:, BODY] += position - first
        parts.append(run.buffer[first:stop])
        position += stop - first
        tables.append(table)
        rows += len(table)
        ends.append(rows)
    return _Chunk(runs, b"".join(parts), np.concatenate(tables), ends)


def _answers(chunk: _Chunk) -> Iterator[Answer]:
    """The answers to a chunk's requests, run by run, in their order."""
    table = chunk.table
    frames = b""
    if any(denial is None for _, _, denial in chunk.stretches):
        frames = successes(table)
    if len(chunk.runs) == 1 and len(chunk.stretches) == 1 and frames:
        yield chunk.runs[0].sender, frames, len(table), chunk.runs[0].size
        return
    start = 0
    stretches = iter(chunk.stretches)
    _, stretch_stop, denial = next(stretches)
    for run, end in zip(chunk.runs, chunk.ends, strict=True):
        pieces: list[bytes] = []
        row, broken = start, False
        while row < end:
            while stretch_stop <= row:
                _, stretch_stop, denial = next(stretches)
            stop = min(end, stretch_stop)
            if denial is _BROKEN_OFF:
                broken = True
                break
            if denial is None:
                pieces.append(frames[row * SUCCESS_SIZE : stop * SUCCESS_SIZE])
            else:
                pieces.append(failure_frames(denial, table[row:stop]))
            row = stop
        done = run.size if row == end else int(table[start:row, LENGTH].sum())
        if pieces:
            yield run.sender, pieces, row - start, done
        if broken:
            yield run.sender, None, end - row, run.size - done
        start = end
