"""Group commit: all appends that wait for a partition share one write and one flush.

Between socket and disk no Python object is made per request: sessions are compared by table columns, records are encoded by
`engine.scan.transcode`, one call writes and syncs, and the answers of all requests are encoded at once.

===============================  =================================================================================
event                            effect
===============================  =================================================================================
a request is refused             it alone fails, with the release's failure, and nothing of it is written; later
                                 requests are judged as if it had not been sent, so they usually are out of order
a frame cannot be decoded        its connection is closed, and later requests of this connection are dropped
the write or the flush fails     all requests that share it fail
the flush succeeds               only then are the requests answered
===============================  =================================================================================

As in release 0.13.2, with two differences: nothing of a refused request is written, and data is compared with its checksum.
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
"""Bytes; neighbouring runs up to this size are copied into one buffer, so that one call encodes them all."""

BODY, LENGTH, SESSION = int(FrameColumn.BODY), int(FrameColumn.LENGTH), int(FrameColumn.SESSION)
OFFLINE = int(FrameColumn.OFFLINE)

_MALFORMED = Denial(FailureCode.INVALID_REQUEST, "", MALFORMED_REASON)


class CommitTarget(Protocol):
    """The part of a partition that a commit uses (`engine.storage.partition.Partition`)."""

    @property
    def next_transaction_id(self) -> int:
        """The transaction id that the next record must have."""
        ...

    def append_blocks(self, blocks: Sequence[EncodedBlock]) -> None:
        """Write the records and sync them."""
        ...

    def write_blocks(self, blocks: Sequence[EncodedBlock]) -> UnsyncedAppend | None:
        """Write the records; the caller syncs the file and then calls `finish_append`.

        None: nothing was written, because one sync would not be enough.
        """
        ...

    def finish_append(self, append: UnsyncedAppend, error: SyncFailedError | None) -> None:
        """The records of `append` were synced, or the sync failed with `error`."""
        ...


class AppendJudge(Protocol):
    """Decides whether an append is admitted (`engine.node.access_control.AccessControl`)."""

    def open_session(self) -> int | None:
        """The session whose online appends are admitted without `check`; None: every append has to be checked."""
        ...

    def check(self, session_id: int, offline: bool) -> Denial | None:
        """Check an append; None: it is admitted."""
        ...

    def let_in(self, session_id: int, offline: bool) -> None:
        """Admit a checked append: its session, if it is a newer one, is durable on return.  Raises WaltzError."""
        ...

    def note_failure(self, error: BaseException) -> None:
        """Appends failed with this error."""
        ...


@dataclass(slots=True)
class _Chunk:
    """Runs whose frames are encoded together, in one table, and the judgement of each row.

    `ends`: for each run, the row behind its last.  `stretches`: rows ``[first, stop)`` of the same outcome, in order: the denial,
    or None where their records were encoded into a block.
    """

    runs: Sequence[AppendRun]
    buffer: bytes | bytearray
    table: Table
    ends: list[int]
    stretches: list[tuple[int, int, Denial | None]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class UnsyncedCommit:
    """Runs whose records are written but not synced.  `started`: `time.monotonic` before the write."""

    runs: Sequence[AppendRun]
    chunks: list[_Chunk]
    started: float
    written: UnsyncedAppend


@dataclass(frozen=True, slots=True)
class _CommitOutcome:
    """Runs that are judged and whose admitted records are durable, with their answers.

    `wrote`: whether there were any records.  `started`, `finished`: `time.monotonic` before the write and after the sync.
    """

    runs: Sequence[AppendRun]
    chunks: list[_Chunk]
    answers: list[Answer]
    wrote: bool
    started: float
    finished: float

    @classmethod
    def now(cls, runs: Sequence[AppendRun], chunks: list[_Chunk], wrote: bool, started: float) -> _CommitOutcome:
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
        answering: Callable[[int], None],
        max_data_length: int,
        commit_bytes: int,
        log: logging.Logger,
    ) -> None:
        """`answering`: counts requests as answered, no longer under way.

        `commit_bytes`: bytes of frame bodies that share one write and flush; a longer frame has its own.
        """
        self.target = target
        self.answering = answering
        self._encoder, self._judge, self._metrics = encoder, judge, metrics
        self._max_data_length, self._commit_bytes, self._log = max_data_length, commit_bytes, log
        self.broken: list[Sender] = []
        """Peers that sent a malformed frame: their queued requests came after it, and are dropped."""

    def execute(self, runs: Sequence[AppendRun]) -> None:
        """Judge, write, sync and answer all requests of the runs, in order.  Raises KeyboardInterrupt and SystemExit only."""
        leave: BaseException | None = None
        for portion in portions_of(runs, self._commit_bytes):
            try:
                self._commit(portion)
            except (KeyboardInterrupt, SystemExit) as error:
                leave = error
        if leave is not None:
            raise leave

    def _commit(self, runs: Sequence[AppendRun]) -> None:
        """Execute runs that share one write and flush."""
        self._run_and_answer(runs, lambda: self._judge_and_write(runs, synced=True))

    def begin(self, runs: Sequence[AppendRun]) -> UnsyncedCommit | None:
        """As `execute`, for runs that share one flush, but without that flush: the caller syncs and then calls `finish`.

        Both calls are made by the same thread.  None: all requests are answered already, because there was nothing to sync, or
        more than one sync was needed.
        """
        return self._run_and_answer(runs, lambda: self._judge_and_write(runs, synced=False))

    def finish(self, commit: UnsyncedCommit, error: SyncFailedError | None) -> None:
        """Answer the requests of `begin`: their records are durable, or the sync failed with `error`."""
        self._run_and_answer(commit.runs, lambda: self._complete_write(commit, error))

    # --- for a commit that is shared with other partitions (`engine.node.shared_commit`) ------------------------------------

    @property
    def usual_session(self) -> int | None:
        """The session whose online appends are admitted unchecked; None where requests must be judged one by one."""
        return None if self.broken else self._judge.open_session()

    def count(self, requests: int, waited: float, seconds: float) -> None:
        """Count requests that shared one write and flush in the metrics; see `NodePartitionMetrics.committed`."""
        self._metrics.committed(requests, waited, seconds)

    def _run_and_answer(
        self, runs: Sequence[AppendRun], work: Callable[[], _CommitOutcome | UnsyncedCommit]
    ) -> UnsyncedCommit | None:
        """Call `work` and answer the runs with its outcome, or with failures if it raises.

        If `work` returns an unsynced commit, nothing is answered and the commit is returned.  Raises KeyboardInterrupt and
        SystemExit only.
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
        self._send_answers(outcome)
        return None

    def _judge_and_write(self, runs: Sequence[AppendRun], *, synced: bool) -> _CommitOutcome | UnsyncedCommit:
        """Judge, encode and write.  `synced` False: leave the sync to the caller if one is enough."""
        chunks = _chunks(runs)
        blocks: list[EncodedBlock] = []
        following = self.target.next_transaction_id
        for chunk in chunks:
            following = self._judge_and_encode(chunk, following, blocks)
        started = time.monotonic()
        if blocks and not synced:
            written = self.target.write_blocks(blocks)
            if written is not None:
                return UnsyncedCommit(runs, chunks, started, written)
        if blocks:
            self.target.append_blocks(blocks)
        return _CommitOutcome.now(runs, chunks, bool(blocks), started)

    def _complete_write(self, commit: UnsyncedCommit, error: SyncFailedError | None) -> _CommitOutcome:
        self.target.finish_append(commit.written, error)
        return _CommitOutcome.now(commit.runs, commit.chunks, True, commit.started)

    def _send_answers(self, done: _CommitOutcome) -> None:
        """Answer every request; the admitted ones are durable."""
        runs, chunks = done.runs, done.chunks
        self.answering(requests_of(runs))
        # counting takes as long as answering, so it is done after the answers are sent; `counted` does not keep the runs' buffers
        counted = [(chunk.stretches, [run.received for run in chunk.runs]) for chunk in chunks]
        later(
            runs[0].sender,
            self._log,
            self._count_metrics,
            counted,
            done.wrote,
            done.finished - done.started,
            done.finished,
        )
        for sender, answer, requests, size in done.answers:
            if answer is None:
                break_off(sender, MALFORMED_REASON, requests, size, self._log)
            else:
                post(sender, answer, requests, size, self._log)

    def fail(self, runs: Sequence[AppendRun], error: BaseException) -> None:
        """Answer all requests of the runs with failures."""
        denial = report(error, self._log, f"{requests_of(runs)} append requests")
        self._judge.note_failure(error)
        self.answering(requests_of(runs))
        for run in runs:
            if self.is_broken(run.sender):
                break_off(run.sender, MALFORMED_REASON, len(run.table), run.size, self._log)
            else:
                refuse(run, denial, self._log)

    # --- judging and encoding ----------------------------------------------------------------------------------------

    def _judge_and_encode(self, chunk: _Chunk, following: int, blocks: list[EncodedBlock]) -> int:
        """Judge and encode all rows of a chunk.

        `following`: the transaction id of the next record; returned for the next chunk.  Encoded records are added to `blocks`,
        outcomes to `chunk.stretches`.
        """
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
                    chunk.stretches.append((row, chunk.ends[run], _MALFORMED))
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
            if encoded.frames and not known:  # only now: a request that fails must not fence older sessions
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
                denial = self._verdict_denial(encoded)
                if denial is _MALFORMED:
                    self.broken.append(
                        next(r.sender for r, end in zip(chunk.runs, chunk.ends, strict=True) if row < end)
                    )
                else:
                    chunk.stretches.append((row, row + 1, denial))
                    row += 1
        return following

    def _bounds(self, table: Table) -> list[int]:
        """The rows at which the session or the offline flag changes, and the number of rows, ascending."""
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

    def _verdict_denial(self, encoded: EncodedAppends) -> Denial:
        """Why the encoder stopped in front of a frame; `_MALFORMED` if the frame cannot be decoded."""
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
        return _MALFORMED

    def is_broken(self, sender: Sender) -> bool:
        """Whether this peer sent a malformed frame."""
        return any(broken is sender for broken in self.broken)

    def _count_metrics(self, counted: Sequence[_Countable], wrote: bool, seconds: float, finished: float) -> None:
        """Update the metrics.  Called when the answers have been handed to the transport."""
        # the usual case: one chunk with one stretch, of which nothing was refused
        if wrote and len(counted) == 1 and len(counted[0][0]) == 1 and counted[0][0][0][2] is None:
            ((stretches, received),) = counted
            ((start, stop, _),) = stretches
            self.count(stop - start, finished - sum(received) / len(received), seconds)
            return
        tried, waits = 0, list[tuple[float, int]]()
        for stretches, received in counted:
            tried += sum(stop - start for start, stop, d in stretches if d is None or d.code in _COUNTED_FAILURES)
            requests = sum(stop - start for start, stop, denial in stretches if denial is None)
            waits.append((finished - sum(received) / len(received), requests))
        self._metrics.answered(waits, tried, seconds if wrote else None)


_COUNTED_FAILURES = (FailureCode.OUT_OF_ORDER, FailureCode.DATA_CHECKSUM, FailureCode.TOO_LONG)
"""Failures of requests that passed the permission checks: as in the release, such requests count as appends in the metrics."""

_Countable = tuple[Sequence[tuple[int, int, Denial | None]], Sequence[float]]
"""Of a chunk: its stretches, and when each run had arrived.  Kept until the metrics are updated, after the answers."""

Answer = tuple[Sender, bytes | list[bytes] | None, int, int]
"""Receiver; frames (None: close its connection); the number of requests, and of their body bytes."""


def _chunks(runs: Sequence[AppendRun]) -> list[_Chunk]:
    """A chunk for each long run, without copying; neighbouring small runs (`SMALL_RUN`) are copied into one chunk."""
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
            chunks.append(_copied_together(small))
            small = []
        chunks.append(_Chunk([run], run.buffer, run.table, [len(run.table)]))
    if small:
        chunks.append(_copied_together(small))
    return chunks


def _copied_together(runs: list[AppendRun]) -> _Chunk:
    """One buffer and one table for all runs.  Bytes between the frames of a run are copied along."""
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
    """The answers to a chunk's requests, run by run, in order."""
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
            if denial is _MALFORMED:
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
