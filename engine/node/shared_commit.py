"""Appends of many partitions in one table: judged by columns, encoded by one call, answered by one array of frames.

With one request in flight for each partition, what is done for a partition costs more than what is done for a record.  So a pass
(`engine.node.commit_passes`) puts everything that it took into one table, whose *groups* are the appends of a partition.  A group
goes this way when it is as usual:

=====================================  ==========================================================================
every request is online, of the        `GroupCommit.usual_session`
session that is let in, and no peer
sent a frame that cannot be decoded
every record is right                  `AppendEncoder.encode_groups`
one sync makes it durable              `Partition.write_blocks`
=====================================  ==========================================================================

Any other is left to its partition's own commit, which judges request by request, and of it nothing was done.
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
"""Partitions from which on one table costs less than each by itself."""
MOST_BYTES = 1 << 20
"""Bytes of frames that are copied together; beyond them each partition's own table costs nothing that would be seen."""
BODY, SESSION, OFFLINE = int(FrameColumn.BODY), int(FrameColumn.SESSION), int(FrameColumn.OFFLINE)
_NOTHING = (0, 0, None)
_NO_ROWS = np.empty((0, len(FrameColumn)), np.int64)


class TakenAppends(NamedTuple):
    """What a pass took of one partition, and by whom it is committed."""

    commit: GroupCommit
    runs: Sequence[AppendRun]


class _Share(NamedTuple):
    """A group whose records are written and not durable yet: rows ``[start, stop)`` of the table.  `place`: in what was taken."""

    place: int
    taken: TakenAppends
    start: int
    stop: int
    written: UnsyncedAppend


@dataclass(slots=True)
class SharedCommit:
    """What became of the groups of a pass; `left` and `answered` are places of what it took.

    `left`: to be committed by themselves.  `answered`: their write failed, and every request knows.  `shares`: in their order.
    `started`: `time.monotonic` before the first write.  `leave`: an exit of the interpreter that came meanwhile.
    """

    table: Table
    log: logging.Logger
    left: list[int] = field(default_factory=list)
    answered: list[int] = field(default_factory=list)
    shares: list[_Share] = field(default_factory=list)
    started: float = 0.0
    leave: BaseException | None = None

    @property
    def written(self) -> list[UnsyncedAppend]:
        """What has to be made durable before `finish`."""
        return [share.written for share in self.shares]

    @property
    def places(self) -> list[int]:
        """Whose records are written."""
        return [share.place for share in self.shares]

    def finish(self, errors: Sequence[SyncFailedError | None]) -> None:
        """What was written is durable, or its sync failed with an error: answer every request.  Raises nothing; see `leave`."""
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
        counted, seconds = _counted(durable), finished - self.started
        for answer in answers:
            if counted:  # that takes as long as answering, and no peer need wait for it
                later(answer.sender, self.log, _count, counted, seconds, finished)
                counted = []
            post(answer.sender, answer.frames, answer.requests, answer.size, self.log)

    def fail(self, taken: TakenAppends, error: BaseException) -> None:
        """All requests of a partition fail with an error."""
        try:
            taken.commit.fail(taken.runs, error)
        except (KeyboardInterrupt, SystemExit) as exit_:
            self.leave = exit_
        if isinstance(error, (KeyboardInterrupt, SystemExit)):
            self.leave = error

    def _answers(self, durable: Sequence[_Share]) -> list[_Answer]:
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
    """To one peer: success frames for so many requests of so many body bytes."""

    sender: Sender
    frames: list[bytes] = field(default_factory=list)
    requests: int = 0
    size: int = 0


_Counted = Sequence[tuple[GroupCommit, int, float]]
"""By whom so many requests were committed, and when they had arrived, on average."""


def _counted(shares: Sequence[_Share]) -> _Counted:
    """What counting needs; it must not keep what was received."""
    return [
        (commit, stop - start, sum(run.received for run in runs) / len(runs))
        for _, (commit, runs), start, stop, _ in shares
    ]


def _count(counted: _Counted, seconds: float, finished: float) -> None:
    for commit, requests, received in counted:
        commit.count(requests, finished - received, seconds)


class SharedCommits:
    """Makes shared commits.  Thread-safe: what it was given belongs to the caller's pass alone."""

    def __init__(self, encoder: AppendEncoder, log: logging.Logger) -> None:
        self._encoder, self._log = encoder, log

    def begin(self, taken: Sequence[TakenAppends]) -> SharedCommit:
        """Judge, encode and write what was taken, as far as it is as usual.  Raises nothing; see `SharedCommit.leave`."""
        chosen, sessions = _chosen(taken)
        found: dict[int, tuple[int, int, EncodedBlock | None]] = {}
        table = _NO_ROWS
        if len(chosen) >= FEWEST:
            try:
                table, stops, blocks = self._encoded([taken[place] for place in chosen], sessions)
            except Exception:  # each by itself needs less memory, and says what is wrong
                self._log.debug("appends of %d partitions are committed one by one", len(chosen), exc_info=True)
            else:
                found = dict(zip(chosen, zip([0, *stops], stops, blocks, strict=False), strict=True))
        commit = SharedCommit(table, self._log, started=time.monotonic())
        for place, one in enumerate(taken):
            start, stop, block = found.get(place, _NOTHING)
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
                commit.shares.append(_Share(place, one, start, stop, written))
        return commit

    def _encoded(
        self, taken: Sequence[TakenAppends], sessions: Sequence[int]
    ) -> tuple[Table, list[int], list[EncodedBlock | None]]:
        """All requests, behind which row each group ends, and its records; None for a group that is not as usual."""
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


def _chosen(taken: Sequence[TakenAppends]) -> tuple[list[int], list[int]]:
    """Places of those whose appends may be as usual, up to `MOST_BYTES` of them, and the session of each."""
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
