"""Commit passes: the small appends of many partitions are written by one thread and flushed together.

Why.  A partition whose client keeps one request in flight has no second append to share a flush with.  A node with many such
partitions, and a thread for each, would spend its time on waking threads.

A pass.  Partitions that have small appends queued are *members* of one queue.  A pass takes the whole queue and

1. judges, encodes and writes the appends of all members: in one table where possible (`engine.node.shared_commit`);
2. flushes all their segment files at the same time (`engine.durable.flusher`), or one commit journal instead
   (`engine.storage.commit_journal`);
3. sends the answers.

Meanwhile the queue grows for the next pass.

Waiting for more members.  A client with one request in flight sends the next one soon after its answer.  So, before it takes the
queue, a pass waits a fraction of a flush for the partitions that were scheduled within the last `MOMENT` and are in no pass.
After `IN_VAIN` such waits in a row without an arrival, only every `RETRIED` pass waits.

Several passes.

=========================================================  ==============================================================
state                                                      what happens to the queue
=========================================================  ==============================================================
no pass is under way                                       a pass takes it
the last pass began more than `_OVERLAP_AFTER` ago, and    a second pass takes it: it works while the first one waits for
fewer than `AT_A_TIME` are under way                       the disk
the last pass began more than `_SLOW_DISK_AFTER` ago, and  each member is executed by a worker thread of its own, so that
`AT_A_TIME` are under way                                  none waits for another partition's slow or hanging disk
otherwise                                                  it waits for the end of a pass
=========================================================  ==============================================================

Long appends and requests that are no appends never take part in a pass.
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
"""Upper bound of the passes that are under way at the same time."""
_OVERLAP_AFTER = 0.002
"""Seconds after which a pass under way is taken to wait for the disk, so that another one begins.

Before that it is better to wait for its end, as the appends that arrive meanwhile share the next pass.
"""
_SLOW_DISK_AFTER = 0.05
"""Seconds after which a pass under way is taken to wait for a slow or hanging disk."""
COMPANY_SECONDS = 0.0003
"""Seconds that a pass waits at most for more members."""
MOMENT = 0.005
"""Seconds after being scheduled for which a partition is expected to be scheduled again soon."""
MOST_COMPANY = 32
"""Length of the queue from which a pass does not wait for more members; one more would make no difference."""
IN_VAIN = 2
"""Waits in a row without an arrival, after which only every `RETRIED` pass waits."""
RETRIED = 16


class PassMember(Protocol):
    """A partition in the queue of passes (`engine.node.partition_service`).  It is queued at most once."""

    commit: GroupCommit

    def take(self) -> Sequence[AppendRun]:
        """Take the small appends at the head of the partition's queue; empty when there are none."""
        ...

    def begin(self, runs: Sequence[AppendRun]) -> UnsyncedCommit | None:
        """Write the taken runs; None when nothing has to be synced: every request is answered already.

        Raises KeyboardInterrupt and SystemExit only; then nothing has to be synced, either.
        """
        ...

    def finish(self, commit: UnsyncedCommit, error: SyncFailedError | None) -> None:
        """Answer the runs of `commit`: it was synced, or the sync failed with `error`.  Raises as `begin`."""
        ...

    def go_on(self) -> None:
        """The pass is over: schedule the partition again if it has more requests."""
        ...

    def run(self) -> bool:
        """Execute the partition's queue without a pass (`engine.net.executor.Job`)."""
        ...


class CommitPasses:
    """The queue of partitions that have small appends, and the passes that execute it.  Thread-safe."""

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
        """`shared`: commits the appends of several partitions in one table.  `journal`: makes a pass durable instead of the
        segments, where it can.  `at_a_time`: see `AT_A_TIME`.  `company_seconds`: see `COMPANY_SECONDS`.
        """
        self._pool, self._flusher, self._shared, self._journal, self._clock = pool, flusher, shared, journal, clock
        self._lock = threading.Lock()
        self._queue: list[PassMember] = []
        self._idle_passes = [_Pass(self) for _ in range(at_a_time)]
        self._started_at: dict[Job, float] = {}  # passes under way, and when each took its queue
        self._check_scheduled = False  # `_check_queue` is going to be called
        self._company_seconds = company_seconds
        self._arrival = threading.Condition(self._lock)  # the queue has `_awaited_length` members
        self._awaited_length = 0  # length of the queue for which a pass waits; 0: none waits
        self._last_arrival: dict[PassMember, float] = {}  # when each partition was scheduled last, within `MOMENT`
        self._in_pass: set[PassMember] = set()  # partitions in a pass: they cannot be scheduled
        self._futile_waits = 0

    def forget(self, member: PassMember) -> None:
        """Keep nothing of a partition that is not scheduled any more."""
        with self._lock:
            self._last_arrival.pop(member, None)

    def schedule(self, *members: PassMember) -> None:
        """Queue partitions for the next pass.  The caller ensures that none of them is queued already."""
        now = self._clock()
        with self._lock:
            self._queue += members
            self._last_arrival.update(dict.fromkeys(members, now))
            if self._awaited_length and len(self._queue) >= self._awaited_length:
                self._awaited_length = 0
                self._arrival.notify()
            jobs = self._due_jobs()
            look = bool(self._queue) and not jobs and not self._check_scheduled
            self._check_scheduled = self._check_scheduled or look
        self._start(jobs)
        if look:
            self._schedule_check()

    def _due_jobs(self) -> list[Job]:
        """The jobs to start for the queue now: a pass, or each member alone, or none.  The caller holds the lock."""
        now = self._clock()
        under_way = now - max(self._started_at.values()) if self._started_at else math.inf
        if self._idle_passes and under_way > _OVERLAP_AFTER:
            chosen = self._idle_passes.pop()
            self._started_at[chosen] = now
            return [chosen]
        if not self._idle_passes and under_way > _SLOW_DISK_AFTER:
            alone: list[Job] = [*self._queue]
            self._queue = []
            return alone
        return []  # a pass that ends takes the queue

    def _check_queue(self) -> None:
        """Start jobs for members that still wait: the passes under way may hang, and `schedule` may not be called again."""
        with self._lock:
            jobs = self._due_jobs() if self._queue else []
            self._check_scheduled = look = bool(self._queue) and not jobs
        self._start(jobs)
        if look:
            self._schedule_check()

    def _schedule_check(self) -> None:
        if not self._pool.call_later(_SLOW_DISK_AFTER, self._check_queue):
            self._check_scheduled = False  # the next `schedule` tries again

    def _start(self, jobs: Sequence[Job]) -> None:
        for job in jobs:
            self._pool.schedule(job)

    @property
    def others_wait(self) -> bool:
        """Whether a job of the pool waits for a thread."""
        return self._pool.others_wait

    def execute(self, members: list[PassMember]) -> None:
        """Execute one pass over `members`.  Raises KeyboardInterrupt and SystemExit only, after everything is answered."""
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
        """Sync the appends, by the journal or each in its segment file; returns for each its error, or None."""
        try:
            if appends and self._journaled(appends):
                for append in appends:
                    append.journaled()
                return [None] * len(appends)
            return self._flusher.flush([append.file for append in appends])
        except Exception as error:  # no memory: it is unknown what is durable, and each needs an answer
            return [SyncFailedError(append.file.path, None, cut_short(error), doing="sync") for append in appends]

    def _journaled(self, appends: Sequence[UnsyncedAppend]) -> bool:
        with contextlib.suppress(MemoryError):  # syncing the segments needs less memory
            return self._journal is not None and self._journal.commit([append.to_journal for append in appends])
        return False

    @property
    def expects_company(self) -> bool:
        """Whether several partitions were scheduled lately, so that a pass will soon have several members."""
        return len(self._last_arrival) > 1

    def next_line(self, by: _Pass) -> list[PassMember]:
        """Take the queue for the pass `by`; empty: the pass is idle from now on."""
        with self._lock:
            self._in_pass.difference_update(by.members)
            line: list[PassMember] = []
            if self._queue and not self._awaited_length:  # otherwise another pass, which waits for members, takes it
                self._wait_for_more()
                line, self._queue = self._queue, []
            by.members = line
            self._in_pass.update(line)
            if line:
                self._started_at[by] = self._clock()
            else:
                del self._started_at[by]
                self._idle_passes.append(by)
            return line

    def _wait_for_more(self) -> None:
        """Wait for partitions scheduled within `MOMENT` that are in no pass.  The caller holds the lock; the wait releases it."""
        before = len(self._queue)
        if before >= MOST_COMPANY:
            return
        since = self._clock() - MOMENT
        self._last_arrival = {member: at for member, at in self._last_arrival.items() if at > since}
        awaited = min(MOST_COMPANY, sum(member not in self._in_pass for member in self._last_arrival))
        if before >= awaited:
            return
        if self._futile_waits >= IN_VAIN and (self._futile_waits - IN_VAIN + 1) % RETRIED:
            self._futile_waits += 1
            return
        self._awaited_length = awaited
        self._arrival.wait(self._company_seconds)
        self._awaited_length = 0
        self._futile_waits = self._futile_waits + 1 if len(self._queue) <= before else 0


class _Pass:
    """A pass as a job of the pool: executes the queue until it is empty."""

    def __init__(self, passes: CommitPasses) -> None:
        self._passes = passes
        self.members: list[PassMember] = []

    def run(self) -> bool:
        """See `engine.net.executor.Job`."""
        while members := self._passes.next_line(self):
            self._passes.execute(members)
            if self._passes.others_wait:
                return True
        return False
