"""Passes: whatever waits to be appended, in however many partitions, is written by one thread and flushed together.

A partition in which a client has one request in flight has nothing to share a flush with.  A node has many of them: a thread for
each spends its time on being woken.  Here partitions that have small appends waiting stand in one line.  A pass takes the whole
line: it judges, encodes and writes what waits in all of them, over one table where they are as usual
(`engine.node.shared_commit`), then flushes all their files at the same time (`engine.durable.flusher`), or a journal for all of
them (`engine.storage.commit_journal`), then answers.  Meanwhile the line grows for the next pass.

Whoever was answered comes again soon, where it keeps one request in flight.  So a pass that is about to take the line waits for
the partitions that came a moment ago, for a fraction of what a flush takes; where nobody comes it is tried more seldom.

Another pass begins beside the first one where the disk takes its time: while one waits for it, the other one works.  When both
have been waiting for long, the disk of the partitions in them is slow or hangs; then partitions are executed by threads of their
own, as those are whose requests are long or are no appends, so that nobody waits for another partition's disk.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from waltzctl.engine.durable.file_system import cut_short
from waltzctl.engine.durable.flusher import Flusher
from waltzctl.engine.errors import SyncFailedError
from waltzctl.engine.net.executor import Job, JobExecutor
from waltzctl.engine.node.commit import GroupCommit, UnsyncedCommit
from waltzctl.engine.node.requests import AppendRun
from waltzctl.engine.node.shared_commit import SharedCommits, TakenAppends
from waltzctl.engine.storage.commit_journal import CommitJournal
from waltzctl.engine.storage.partition import UnsyncedAppend

AT_A_TIME = 2
"""Passes that are under way at the same time, at most."""
_BESIDE = 0.002
"""Seconds after which a pass counts as one that waits for the disk: another one begins beside it.

Before that it is better to wait for it, as what comes meanwhile shares the next pass.
"""
_PATIENCE = 0.05
"""Seconds after which a pass counts as one that waits for a slow disk."""
COMPANY_SECONDS = 0.0003
"""Seconds that a pass waits, at most, for partitions that came a moment ago."""
MOMENT = 0.005
"""Seconds for which a partition counts as one that comes again soon."""
MOST_COMPANY = 32
"""Partitions for which it is worth to wait; beyond them one more makes no difference."""
IN_VAIN = 2
"""Waits in a row in which nobody came, after which only every `RETRIED` pass waits."""
RETRIED = 16


class PassMember(Protocol):
    """A partition that stands in the line of passes (`engine.node.partition_service`), at most once."""

    commit: GroupCommit

    def take(self) -> Sequence[AppendRun]:
        """Take the small appends that are queued in front; empty when there are none."""
        ...

    def begin(self, runs: Sequence[AppendRun]) -> UnsyncedCommit | None:
        """Write what was taken; None when there is nothing to be synced.

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
        shared: SharedCommits,
        journal: CommitJournal | None = None,
        at_a_time: int = AT_A_TIME,
        company_seconds: float = COMPANY_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`shared`: who commits what several partitions have in one go.  `journal`: what makes a pass durable where it can,
        instead of the segments.  `company_seconds`: how long a pass waits for partitions that came a moment ago.
        """
        self._pool, self._flusher, self._shared, self._journal, self._clock = pool, flusher, shared, journal, clock
        self._lock = threading.Lock()
        self._line: list[PassMember] = []
        self._resting = [_Pass(self) for _ in range(at_a_time)]
        self._begun: dict[Job, float] = {}  # when each that is under way took its line
        self._look_due = False
        self._company_seconds = company_seconds
        self._company = threading.Condition(self._lock)
        self._awaited = 0  # partitions in the line for which a pass waits
        self._came: dict[PassMember, float] = {}  # when each came last, as long as that is a moment ago
        self._taken: set[PassMember] = set()  # those in a pass: they cannot come
        self._in_vain = 0

    def schedule(self, *members: PassMember) -> None:
        """Have partitions take part in the next pass.  The caller sees to it that none stands in line already."""
        now = self._clock()
        with self._lock:
            self._line += members
            self._came.update(dict.fromkeys(members, now))
            if self._awaited and len(self._line) >= self._awaited:
                self._awaited = 0
                self._company.notify()
            jobs = self._due()
            look = bool(self._line) and not jobs and not self._look_due
            self._look_due = self._look_due or look
        self._start(jobs)
        if look:
            self._look_later()

    def _due(self) -> list[Job]:
        """What is to be started for the line now, if anything: a pass, or everybody alone.  The lock is held."""
        now = self._clock()
        under_way = now - max(self._begun.values()) if self._begun else math.inf
        if self._resting and under_way > _BESIDE:
            chosen = self._resting.pop()
            self._begun[chosen] = now
            return [chosen]
        if not self._resting and under_way > _PATIENCE:
            alone: list[Job] = [*self._line]
            self._line = []
            return alone
        return []  # a pass that ends looks at the line

    def _look(self) -> None:
        """Nobody may have come since, and the passes that are under way may hang."""
        with self._lock:
            jobs = self._due() if self._line else []
            self._look_due = look = bool(self._line) and not jobs
        self._start(jobs)
        if look:
            self._look_later()

    def _look_later(self) -> None:
        if not self._pool.call_later(_PATIENCE, self._look):
            self._look_due = False  # whoever comes next asks again

    def _start(self, jobs: Sequence[Job]) -> None:
        for job in jobs:
            self._pool.schedule(job)

    @property
    def others_wait(self) -> bool:
        """Whether a job stands in the pool's line that no thread has taken."""
        return self._pool.others_wait

    def execute(self, members: list[PassMember]) -> None:
        """One pass over `members`.  Raises the exits of the interpreter only, after everything is answered."""
        leave: BaseException | None = None
        taken: list[tuple[PassMember, Sequence[AppendRun]]] = []
        for member in members:
            if runs := member.take():
                taken.append((member, runs))
            else:
                member.go_on()
        shared = self._shared.begin([TakenAppends(member.commit, runs) for member, runs in taken])
        for place in shared.answered:
            taken[place][0].go_on()
        alone: list[tuple[PassMember, UnsyncedCommit]] = []
        for member, runs in (taken[place] for place in shared.left):
            try:
                commit = member.begin(runs)
            except (KeyboardInterrupt, SystemExit) as exit_:
                leave, commit = exit_, None
            if commit is None:
                member.go_on()
            else:
                alone.append((member, commit))
        together = shared.written
        errors = self._make_durable([*together, *(commit.written for _, commit in alone)])
        shared.finish(errors[: len(together)])
        for (member, commit), error in zip(alone, errors[len(together) :], strict=True):
            try:
                member.finish(commit, error)
            except (KeyboardInterrupt, SystemExit) as exit_:
                leave = exit_
        for member in (*(taken[place][0] for place in shared.places), *(member for member, _ in alone)):
            member.go_on()
        leave = shared.leave or leave
        if leave is not None:
            raise leave

    def _make_durable(self, appends: list[UnsyncedAppend]) -> list[SyncFailedError | None]:
        """By the journal, or each in its segment; for each what that failed with, or None."""
        try:
            if appends and self._journaled(appends):
                for append in appends:
                    append.journaled()
                return [None] * len(appends)
            return self._flusher.flush([append.file for append in appends])
        except Exception as error:  # no memory: nobody can vouch for them, and each waits for its answer
            return [SyncFailedError(append.file.path, None, cut_short(error), doing="sync") for append in appends]

    def _journaled(self, appends: Sequence[UnsyncedAppend]) -> bool:
        with contextlib.suppress(MemoryError):  # each in its segment needs less
            return self._journal is not None and self._journal.commit([append.to_journal for append in appends])
        return False

    @property
    def expects_company(self) -> bool:
        """Whether several partitions came a moment ago: what comes now will not be alone for long."""
        return len(self._came) > 1

    def next_line(self, by: _Pass) -> list[PassMember]:
        """What a pass is to take; nothing: it rests."""
        with self._lock:
            self._taken.difference_update(by.members)
            line: list[PassMember] = []
            if self._line and not self._awaited:  # otherwise another pass is about to take it
                self._wait_for_company()
                line, self._line = self._line, []
            by.members = line
            self._taken.update(line)
            if line:
                self._begun[by] = self._clock()
            else:
                del self._begun[by]
                self._resting.append(by)
            return line

    def _wait_for_company(self) -> None:
        """Wait for partitions that came a moment ago and are in no pass.  The lock is held, but not meanwhile."""
        before = len(self._line)
        if before >= MOST_COMPANY:
            return
        since = self._clock() - MOMENT
        self._came = {member: at for member, at in self._came.items() if at > since}
        awaited = min(MOST_COMPANY, sum(member not in self._taken for member in self._came))
        if before >= awaited:
            return
        if self._in_vain >= IN_VAIN and (self._in_vain - IN_VAIN + 1) % RETRIED:
            self._in_vain += 1
            return
        self._awaited = awaited
        self._company.wait(self._company_seconds)
        self._awaited = 0
        self._in_vain = self._in_vain + 1 if len(self._line) <= before else 0


class _Pass:
    """A pass as a job: taken by a thread of the pool, and left when the line is empty."""

    def __init__(self, passes: CommitPasses) -> None:
        self._passes = passes
        self.members: list[PassMember] = []

    def run(self) -> bool:
        """For the pool."""
        while members := self._passes.next_line(self):
            self._passes.execute(members)
            if self._passes.others_wait:
                return True
        return False
