"""Shared commit: appends of many partitions in one table, judged by columns, encoded by one call, answered in one go.

With one request in flight per partition, the work per partition costs more than the work per record.  So a pass
(`engine.node.commit_passes`) puts the appends of all its partitions into one table; the rows of one partition are a *group*.  A
group is committed this way if all of these conditions hold:

=====================================  ==========================================================================
condition                              decided by
=====================================  ==========================================================================
every request is online and of the     `GroupCommit.usual_session`
admitted session, and no peer sent a
malformed frame
every record is valid and in order     `AppendEncoder.encode_groups`
one sync makes the group durable       `Partition.write_blocks`
=====================================  ==========================================================================

Any other group is *left*: nothing of it is written here, and its partition's own `GroupCommit` judges it request by request.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from waltzctl.engine.errors import SyncFailedError
from waltzctl.engine.node.answers import SUCCESS_SIZE, Table, later, post, successes
from waltzctl.engine.node.commit import GroupCommit
from waltzctl.engine.node.requests import AppendRun, Sender
from waltzctl.engine.scan.frames import FrameColumn
from waltzctl.engine.scan.transcode import AppendEncoder, EncodedBlock
from waltzctl.engine.storage.partition import UnsyncedAppend

FEWEST = 4
"""Number of partitions from which one shared table costs less than a commit for each."""
MOST_BYTES = 1 << 20
"""Bytes of frames that are copied together; the cost of separate tables is negligible for what exceeds it."""
BODY, SESSION, OFFLINE = int(FrameColumn.BODY), int(FrameColumn.SESSION), int(FrameColumn.OFFLINE)
_NOT_ENCODED = (0, 0, None)
_NO_ROWS = np.empty((0, len(FrameColumn)), np.int64)


class TakenAppends(NamedTuple):
    """The runs that a pass took from one partition, and the partition's group commit."""

    commit: GroupCommit
    runs: Sequence[AppendRun]


class _WrittenGroup(NamedTuple):
    """A group whose records are written but not synced: rows ``[start, stop)`` of the table.

    `place`: its index in `SharedCommits.begin`'s `taken`.
    """

    place: int
    taken: TakenAppends
    start: int
    stop: int
    written: UnsyncedAppend


@dataclass(slots=True)
class SharedCommit:
    """The outcome of `SharedCommits.begin`: each group of a pass is in exactly one of three lists.

    `left`: indices of groups that are to be committed by their own `GroupCommit`.
    `answered`: indices of groups whose write failed; all their requests have been answered.
    `shares`: groups that are written and not synced, in order.

    `table`: all rows.  `started`: `time.monotonic` before the first write.  `leave`: a KeyboardInterrupt or SystemExit that was
    caught; the caller has to raise it in the end.
    """

    table: Table
    log: logging.Logger
    left: list[int] = field(default_factory=list)
    answered: list[int] = field(default_factory=list)
    shares: list[_WrittenGroup] = field(default_factory=list)
    started: float = 0.0
    leave: BaseException | None = None

    @property
    def written(self) -> list[UnsyncedAppend]:
        """The appends that have to be synced before `finish`."""
        return [share.written for share in self.shares]

    @property
    def places(self) -> list[int]:
        """The indices of the written groups."""
        return [share.place for share in self.shares]

    def finish(self, errors: Sequence[SyncFailedError | None]) -> None:
        """Answer the written groups.  `errors`: for each, None (durable) or its sync error.  Raises nothing; see `leave`."""
        durable = []
        for share, error in zip(self.shares, errors, strict=True):
            try:
                share.taken.commit.target.finish_append(share.written, error)
            except BaseException as failure:
                self.fail(share.taken, failure)
            else:
                durable.append(share)
        finished = time.monotonic()
        try:
            answers = self._answers(durable)
        except BaseException as failure:  # no memory is left, for example
            for share in durable:
                self.fail(share.taken, failure)
            return
        for share in durable:
            share.taken.commit.answering(share.stop - share.start)
        counted, seconds = _countable(durable), finished - self.started
        for answer in answers:
            if counted:  # counting takes as long as answering: done after the first answer is sent
                later(answer.sender, self.log, _count_metrics, counted, seconds, finished)
                counted = []
            post(answer.sender, answer.frames, answer.requests, answer.size, self.log)

    def fail(self, taken: TakenAppends, error: BaseException) -> None:
        """Answer all requests of one partition with failures."""
        try:
            taken.commit.fail(taken.runs, error)
        except (KeyboardInterrupt, SystemExit) as exit_:
            self.leave = exit_
        if isinstance(error, (KeyboardInterrupt, SystemExit)):
            self.leave = error

    def _answers(self, durable: Sequence[_WrittenGroup]) -> list[_Answer]:
        """One answer for each peer, its requests in their order within each partition."""
        frames = successes(self.table) if durable else b""
        answers: dict[int, _Answer] = {}
        for share in durable:
            row = share.start
            for run in share.taken.runs:
                stop = row + len(run.table)
                answer = answers.get(id(run.sender))
                if answer is None:
                    answer = answers[id(run.sender)] = _Answer(run.sender)
                answer.frames.append(frames[row * SUCCESS_SIZE : stop * SUCCESS_SIZE])
                answer.requests += stop - row
                answer.size += run.size
                row = stop
        return list(answers.values())


@dataclass(slots=True)
class _Answer:
    """The answer to one peer: success frames for `requests` requests of `size` body bytes in total."""

    sender: Sender
    frames: list[bytes] = field(default_factory=list)
    requests: int = 0
    size: int = 0


_SharedCounts = Sequence[tuple[GroupCommit, int, float]]
"""For each partition: its group commit, its number of requests, and the mean time of their arrival (`time.monotonic`)."""


def _countable(shares: Sequence[_WrittenGroup]) -> _SharedCounts:
    """The data for the metrics, without references to the received bytes."""
    return [
        (commit, stop - start, sum(run.received for run in runs) / len(runs))
        for _, (commit, runs), start, stop, _ in shares
    ]


def _count_metrics(counted: _SharedCounts, seconds: float, finished: float) -> None:
    for commit, requests, received in counted:
        commit.count(requests, finished - received, seconds)


class SharedCommits:
    """Makes shared commits.  Thread-safe, as it keeps no state; the arguments belong to the calling pass."""

    def __init__(self, encoder: AppendEncoder, log: logging.Logger) -> None:
        self._encoder, self._log = encoder, log

    def begin(self, taken: Sequence[TakenAppends]) -> SharedCommit:
        """Judge, encode and write the groups that fulfil the conditions above.  Raises nothing; see `SharedCommit.leave`."""
        chosen, sessions = _choose(taken)
        found: dict[int, tuple[int, int, EncodedBlock | None]] = {}
        table = _NO_ROWS
        if len(chosen) >= FEWEST:
            try:
                table, stops, blocks = self._encode_groups([taken[place] for place in chosen], sessions)
            except Exception:  # separate commits need less memory, and report the error
                self._log.debug("appends of %d partitions are committed one by one", len(chosen), exc_info=True)
            else:
                found = dict(zip(chosen, zip([0, *stops], stops, blocks, strict=False), strict=True))
        commit = SharedCommit(table, self._log, started=time.monotonic())
        for place, one in enumerate(taken):
            start, stop, block = found.get(place, _NOT_ENCODED)
            if block is None or not block.records:
                commit.left.append(place)
                continue
            try:
                written = one.commit.target.write_blocks([block])
            except BaseException as error:
                commit.fail(one, error)
                commit.answered.append(place)
                continue
            if written is None:
                commit.left.append(place)
            else:
                commit.shares.append(_WrittenGroup(place, one, start, stop, written))
        return commit

    def _encode_groups(
        self, taken: Sequence[TakenAppends], sessions: Sequence[int]
    ) -> tuple[Table, list[int], list[EncodedBlock | None]]:
        """The table of all rows, the row behind each group's last, and each group's records; None for a group to be left."""
        runs = [run for one in taken for run in one.runs]
        buffers = [run.buffer for run in runs]
        table = np.concatenate([run.table for run in runs])
        table[:, BODY] += np.repeat([0, *accumulate(map(len, buffers[:-1]))], [len(run.table) for run in runs])
        rows = [sum(len(run.table) for run in one.runs) for one in taken]
        stops = list(accumulate(rows))
        following = [one.commit.target.next_transaction_id for one in taken]
        blocks = self._encoder.encode_groups(b"".join(buffers), table, stops, following)
        usual = (table[:, SESSION] == np.repeat(sessions, rows)) & (table[:, OFFLINE] == 0)
        if not usual.all():
            fine = np.logical_and.reduceat(usual, [0, *stops[:-1]]).tolist()
            blocks = [block if good else None for block, good in zip(blocks, fine, strict=True)]
        return table, stops, blocks


def _choose(taken: Sequence[TakenAppends]) -> tuple[list[int], list[int]]:
    """Indices of the groups that may be committed here, up to `MOST_BYTES` in total, and the admitted session of each."""
    places: list[int] = []
    sessions: list[int] = []
    size = 0
    for place, (commit, runs) in enumerate(taken):
        session = commit.usual_session
        if session is None:
            continue
        length = sum(len(run.buffer) for run in runs)
        if size + length <= MOST_BYTES:
            size += length
            places.append(place)
            sessions.append(session)
    return places, sessions
