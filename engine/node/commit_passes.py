"""Passes: whatever waits to be appended, in however many partitions, is written by one thread and flushed together.

A partition in which a client has one request in flight has nothing to share a flush with.  A node has many of them: a thread for
each spends its time on being woken.  Here partitions that have small appends waiting stand in one line.  A pass takes the whole
line: it has each partition judge, encode and write what waits in it, then flushes all their files at the same time
(`engine.durable.flusher`), or a journal for all of them (`engine.storage.commit_journal`), then has each answer.  Meanwhile the
line grows for the next pass.

A few passes are under way at the same time: while one waits for the disk, another one works.  When all of them have been waiting
for long, the disk of the partitions in them is slow or hangs; then partitions are executed by threads of their own, as those are
whose requests are long or are no appends, so that nobody waits for another partition's disk.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Protocol

from waltzctl.engine.durable.flusher import Flusher
from waltzctl.engine.errors import SyncFailedError
from waltzctl.engine.net.executor import Job, JobExecutor
from waltzctl.engine.node.commit import UnsyncedCommit
from waltzctl.engine.storage.commit_journal import CommitJournal
from waltzctl.engine.storage.partition import UnsyncedAppend

AT_A_TIME = 2
"""Passes that are under way at the same time."""
_PATIENCE = 0.05
"""Seconds after which a pass counts as one that waits for a slow disk."""


class PassMember(Protocol):
    """A partition that stands in the line of passes (`engine.node.partition_service`), at most once."""

    def begin(self) -> UnsyncedCommit | None:
        """Take what is queued and write it; None when there is nothing to be synced.

        Raises the exits of the interpreter only, and then there is nothing to be synced.
        """
        ...

    def finish(self, commit: UnsyncedCommit, error: SyncFailedError | None) -> None:
        """What `begin` wrote was synced, or could not be: answer.  Raises the exits of the interpreter only."""
        ...

    def go_on(self) -> None:
        """The pass is over: stand in line again if more is queued."""
        ...

    def run(self) -> bool:
        """Execute what is queued without a pass (`engine.net.executor.Job`)."""
        ...


class CommitPasses:
    """The line of partitions that have small appends waiting, and the passes that take it.  Thread-safe."""

    def __init__(
        self,
        pool: JobExecutor,
        flusher: Flusher,
        *,
        journal: CommitJournal | None = None,
        at_a_time: int = AT_A_TIME,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`journal`: what makes a pass durable where it can, instead of the segments."""
        self._pool, self._flusher, self._journal, self._clock = pool, flusher, journal, clock
        self._lock = threading.Lock()
        self._line: list[PassMember] = []
        self._resting = [_Pass(self) for _ in range(at_a_time)]
        self._begun: dict[Job, float] = {}  # read while none rests; of one that rests, when its last run began

    def schedule(self, member: PassMember) -> None:
        """Have a partition take part in the next pass.  The caller sees to it that it does not stand in line already."""
        with self._lock:
            self._line.append(member)
            jobs: list[Job] = []  # otherwise a pass that ends looks at the line
            if self._resting:
                jobs = [self._resting.pop()]
                self._begun[jobs[0]] = self._clock()
            elif self._clock() - max(self._begun.values()) > _PATIENCE:
                jobs, self._line = [*self._line], []
        for job in jobs:
            self._pool.schedule(job)

    @property
    def others_wait(self) -> bool:
        """Whether a job stands in the pool's line that no thread has taken."""
        return self._pool.others_wait

    def execute(self, members: list[PassMember]) -> None:
        """One pass over `members`.  Raises the exits of the interpreter only, after everything is answered."""
        leave: BaseException | None = None
        written: list[tuple[PassMember, UnsyncedCommit]] = []
        for member in members:
            try:
                commit = member.begin()
            except (KeyboardInterrupt, SystemExit) as exit_:
                leave, commit = exit_, None
            if commit is None:
                member.go_on()
            else:
                written.append((member, commit))
        errors = self._make_durable([commit.written for _, commit in written])
        for (member, commit), error in zip(written, errors, strict=True):
            try:
                member.finish(commit, error)
            except (KeyboardInterrupt, SystemExit) as exit_:
                leave = exit_
        for member, _ in written:
            member.go_on()
        if leave is not None:
            raise leave

    def _make_durable(self, appends: list[UnsyncedAppend]) -> list[SyncFailedError | None]:
        """By the journal, or each in its segment; for each what that failed with, or None."""
        if self._journal is not None and appends and self._journal.commit([append.to_journal for append in appends]):
            for append in appends:
                append.journaled()
            return [None] * len(appends)
        return self._flusher.flush([append.file for append in appends])

    def next_line(self, by: _Pass) -> list[PassMember]:
        """What a pass is to take; nothing: it rests."""
        with self._lock:
            line, self._line = self._line, []
            if line:
                self._begun[by] = self._clock()
            else:
                self._resting.append(by)
            return line


class _Pass:
    """A pass as a job: taken by a thread of the pool, and left when the line is empty."""

    def __init__(self, passes: CommitPasses) -> None:
        self._passes = passes

    def run(self) -> bool:
        """For the pool."""
        while members := self._passes.next_line(self):
            self._passes.execute(members)
            if self._passes.others_wait:
                return True
        return False
