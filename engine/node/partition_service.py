"""One partition as the data port sees it: a bounded queue in front, a worker of the shared pool behind.

Requests of a partition are executed in the order in which they came, by one thread at a time; other partitions never wait for
them.  Whatever is queued is taken at once, and the appends in it that follow one another share one flush.  Every request that was
accepted is answered: by its result, by the release's failure, or, when its frame cannot be decoded, by the end of its connection.

Sessions.  A request of a newer session shuts out the older ones.  It does so after it passed all checks, and before it is
answered the new session is durable in the node's file of fences; so a restart lets no old server in again.  Release 0.13.2 raises
the session for any message that arrives, in memory only.

A partition that cannot take part in a session says so at the session's first question (`engine.node.outages`), and goes on
being read.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from enum import Enum, auto
from typing import cast

from waltzctl.engine.errors import SyncFailedError
from waltzctl.engine.net.connection import Received
from waltzctl.engine.net.executor import JobExecutor
from waltzctl.engine.node import permissions
from waltzctl.engine.node.answers import (
    MALFORMED_REASON,
    Table,
    break_off,
    failures_for,
    post,
    refuse,
    report,
    requests_of,
)
from waltzctl.engine.node.commit import GroupCommit, UnsyncedCommit
from waltzctl.engine.node.commit_passes import CommitPasses
from waltzctl.engine.node.node_metrics import NodePartitionMetrics
from waltzctl.engine.node.node_settings import ServiceOptions
from waltzctl.engine.node.outages import Outage, Room
from waltzctl.engine.node.partition_outage import PartitionOutage
from waltzctl.engine.node.partition_requests import access_of, execute, read_by
from waltzctl.engine.node.permissions import Denial, RequiredAccess, ServiceState
from waltzctl.engine.node.requests import AppendRun, Item, Request
from waltzctl.engine.scan.frames import FrameColumn
from waltzctl.engine.scan.list_answers import ListAnswers, Requests
from waltzctl.engine.scan.transcode import AppendEncoder
from waltzctl.engine.storage.availability_marks import Availability
from waltzctl.engine.storage.fences import SessionFences
from waltzctl.engine.storage.partition import Partition
from waltzctl.formats.wire.storage import RecordHeaderListRequest

PASS_BYTES = 64 << 10
"""Bytes of frame bodies that one partition may have in a pass: more of them share a flush among themselves."""
TYPE = int(FrameColumn.TYPE)


class Admission(Enum):
    """What became of a submitted item."""

    ACCEPTED = auto()
    """It will be answered."""
    FULL = auto()
    """Nothing was taken: wait, `PartitionService.on_room` tells when to try again."""
    STALLED = auto()
    """Nothing was taken, and the partition has made no progress for long: answer with `PartitionService.busy_answer`."""


class PartitionService:
    """The requests of one assigned partition, executed one after another."""

    def __init__(
        self,
        partition: Partition,
        availability: Availability,
        *,
        fences: SessionFences,
        pool: JobExecutor,
        passes: CommitPasses | None = None,
        encoder: AppendEncoder,
        metrics: NodePartitionMetrics,
        room: Room,
        options: ServiceOptions,
        max_data_length: int,
        log: logging.Logger,
    ) -> None:
        """`passes`: who has small appends written together with those of other partitions; None: everything is done in `pool`.

        Raises DamageError, DiskReadError when the partition's fence cannot be told.
        """
        self.number = partition.number
        self.partition = partition
        self.metrics = metrics
        self.options = options
        self._fences, self._pool, self._passes, self._log = fences, pool, passes, log
        self._availability = availability
        self._session = max(partition.session_id, fences.get(partition.number))
        self.commit = GroupCommit(
            partition,
            encoder,
            self,
            metrics,
            max_data_length=max_data_length,
            commit_bytes=options.commit_bytes,
            log=log,
        )
        self._lock = threading.Lock()
        self._idle = threading.Condition(self._lock)
        self._queue: list[Item] = []
        self._waiting, self._waiting_bytes, self._under_way = 0, 0, 0
        self._scheduled = False
        self._held = False
        self._over: Denial | None = None
        self._waiters: list[Callable[[], None]] = []
        self._progress = time.monotonic()
        self._outage = PartitionOutage(partition, room, log)

    # --- in front: any thread ----------------------------------------------------------------------------------------

    def submit(self, item: Item, together: list[PartitionService] | None = None) -> Admission:
        """Queue an item, or say why not; never blocks.  Thread-safe.

        `together`: receives this partition where it is to take part in a pass with whatever else the caller submits:
        `start_together` has to follow.

        An item for a partition that was given up meanwhile is accepted and answered with a failure.
        """
        with self._lock:
            waiting, waiting_bytes = self._waiting + requests_of(item), self._waiting_bytes + item.size
            options, over = self.options, self._over
            if over is None:
                if self._queue and (waiting > options.queue_requests or waiting_bytes > options.queue_bytes):
                    stalled = time.monotonic() - self._progress > options.stall_seconds
                    return Admission.STALLED if stalled else Admission.FULL
                self._queue.append(item)
                self._waiting, self._waiting_bytes = waiting, waiting_bytes
                if self._scheduled:
                    return Admission.ACCEPTED
                self._progress = time.monotonic()
                if self._held:
                    return Admission.ACCEPTED
                self._scheduled = True
        if over is not None:
            refuse(item, over, self._log)
        elif together is not None and self._passes is not None and self._fits_pass(item):
            together.append(self)
        else:
            self._schedule(item)
        return Admission.ACCEPTED

    @staticmethod
    def start_together(services: Sequence[PartitionService]) -> None:
        """Have what `submit` noted executed: several partitions by the next pass."""
        if len(services) == 1:
            (only,) = services
            only.go_on()
        elif services:
            passes = services[0]._passes
            assert passes is not None, "only who takes part in passes is noted"
            passes.schedule(*services)

    def _schedule(self, first: Item) -> None:
        """Have what is queued executed, `first` at first: by the next pass, or by a thread of its own.

        While nothing else is under way, and was not a moment ago, there is nobody to share a pass with, and without one it is
        done sooner.
        """
        passes = self._passes
        if passes is not None and (passes.expects_company or not self._pool.at_rest) and self._fits_pass(first):
            passes.schedule(self)
        else:
            self._pool.schedule(self)

    def _fits_pass(self, item: Item) -> bool:
        return isinstance(item, AppendRun) and item.size <= self._most_in_pass

    @property
    def _most_in_pass(self) -> int:
        return min(PASS_BYTES, self.options.commit_bytes)

    def answer_now(self, answers: ListAnswers, received: Received, table: Table, room: int) -> int:
        """Answer requests for lists at once, in the calling thread, as far as that is a matter of microseconds; how many.

        So it is for a few records that the system has in memory, when nobody else is at work in the partition: then handing
        over to a worker and back takes longer than reading.  Never waits for the disk.  The requests are frames of `received`,
        which `table` describes; `answers` has the answers to the first of them then, of `room` bytes together at most.
        Thread-safe.
        """
        with self._lock:
            if self._scheduled or self._held or self._over is not None:
                return 0
            self._scheduled = True
        try:
            return self._answered_from_memory(answers, received, table, room)
        finally:
            self.go_on()

    def _answered_from_memory(self, answers: ListAnswers, received: Received, table: Table, room: int) -> int:
        session = self.read_session()
        if session is None:
            return 0
        try:
            self.partition.answer_lists(answers, Requests(received, table, session, self.options.max_list_bytes, room))
        except Exception as error:  # a worker tries it again, and tells
            self._log.debug("partition %d: lists are not answered at once: %s", self.number, error)
            return 0
        answered = answers.answered
        if answered:
            headers = table[:answered, TYPE].tolist().count(RecordHeaderListRequest.TYPE)
            self.metrics.record_header_list_request.increment(headers)
            self.metrics.record_list_request.increment(answered - headers)
        return answered

    def on_room(self, callback: Callable[[], None]) -> None:
        """Call back once, from any thread, when what is queued was taken (at once if nothing is).

        A part of the queue may be free before; whoever was refused may need more than that, and must not ask again and again.
        """
        with self._lock:
            if self._queue:
                self._waiters.append(callback)
                return
        callback()

    @property
    def queue_size(self) -> int:
        """Requests that are not answered yet: those that wait, and those under way."""
        return self._waiting + self._under_way

    @property
    def stalled_seconds(self) -> float:
        """How long requests have been waiting without any progress; 0 when none wait."""
        with self._lock:
            return time.monotonic() - self._progress if self._waiting or self._under_way else 0.0

    def busy_answer(self, item: Item) -> bytes:
        """Failure frames, one for each request of an item that was not taken."""
        return failures_for(item, permissions.busy(self.number, self.options.stall_seconds))

    @property
    def availability(self) -> Availability:
        """Whether the partition may be read and written; whoever changes it makes the change durable first."""
        return self._availability

    @availability.setter
    def availability(self, availability: Availability) -> None:
        self._availability = availability

    @property
    def session_id(self) -> int:
        """The highest session that was let in."""
        return self._session

    # --- behind: one worker at a time --------------------------------------------------------------------------------

    def take(self) -> Sequence[AppendRun]:
        """Take the appends that are queued in front, as far as they are small; empty when there are none.  For a pass."""
        with self._lock:
            queue = self._queue
            if self._held or not queue or not self._fits_pass(queue[0]):
                return ()
            count, size, most = 0, 0, self._most_in_pass
            while count < len(queue) and isinstance(item := queue[count], AppendRun) and size + item.size <= most:
                size += item.size
                count += 1
            runs = cast("list[AppendRun]", queue[:count])
            self._queue = queue[count:]
            self._under_way = sum(map(requests_of, runs))
            self._waiting -= self._under_way
            self._waiting_bytes -= size
            self._progress = time.monotonic()
            waiters, self._waiters = self._waiters, []
        if waiters:
            self._call(waiters)
        return runs

    def begin(self, runs: Sequence[AppendRun]) -> UnsyncedCommit | None:
        """Write what `take` gave, by itself; None when there is nothing to be synced.  For a pass."""
        return self.commit.begin(runs)

    def finish(self, commit: UnsyncedCommit, error: SyncFailedError | None) -> None:
        """What `begin` wrote is durable, or its sync failed: answer.  For a pass."""
        self.commit.finish(commit, error)

    def go_on(self) -> None:
        """Nothing of this partition is under way now: see to it that what is queued is executed."""
        with self._lock:
            self._under_way = 0
            self._progress = time.monotonic()
            if self._queue and not self._held:
                first = self._queue[0]
            else:
                self._rest()
                return
        self._schedule(first)

    def _rest(self) -> None:
        """There is nothing to do, or it has to wait; the lock is held."""
        self._scheduled = False
        if not self._queue:
            self.commit.broken.clear()
        self._idle.notify_all()

    def run(self) -> bool:
        """Execute what is queued; True to be put in line again.  For the worker pool."""
        while True:
            with self._lock:
                batch = self._queue
                if not batch or self._held:
                    self._rest()
                    return False
                self._queue = []
                self._under_way, self._waiting, self._waiting_bytes = self._waiting, 0, 0
                self._progress = time.monotonic()
                waiters, self._waiters = self._waiters, []
            self._call(waiters)
            try:
                self._execute(batch)
            finally:
                with self._lock:
                    self._under_way = 0
                    self._progress = time.monotonic()
            if self._pool.others_wait:
                return True

    def _execute(self, batch: Sequence[Item]) -> None:
        """Answer a batch.  Raises the exits of the interpreter only, after everything is answered."""
        leave: BaseException | None = None
        place, count = 0, len(batch)
        while place < count:
            item = batch[place]
            try:
                if isinstance(item, AppendRun):
                    runs = [item]
                    while place + 1 < count and isinstance(following := batch[place + 1], AppendRun):
                        runs.append(following)
                        place += 1
                    self.commit.execute(runs)
                else:
                    self._answer(item)
            except (KeyboardInterrupt, SystemExit) as error:
                leave = error
            place += 1
            self._progress = time.monotonic()
        if leave is not None:
            raise leave

    def _answer(self, request: Request) -> None:
        message = request.message
        if self.commit.is_broken(request.sender):
            self.answering(1)
            break_off(request.sender, MALFORMED_REASON, 1, request.size, self._log)
            return
        try:
            offline = getattr(message, "offline", False)
            denial = self.check(message.session_id, offline, access_of(message))
            if denial is not None:
                self.answering(1)
                refuse(request, denial, self._log)
                return
            self.let_in(message.session_id, offline)
        except BaseException as error:  # the file of fences, which refuses newer sessions by itself
            self._fail(request, error)
            return
        try:
            room = min(request.sender.room_for_answer(), self.options.max_list_bytes)
            answer = execute(self.partition, message, self.metrics, room)
        except BaseException as error:
            self.note_failure(error, read_by(message))
            self._fail(request, error)
            return
        self.answering(1)
        post(request.sender, answer, 1, request.size, self._log)

    def _fail(self, request: Request, error: BaseException) -> None:
        """Answer a request that could not be executed; raises the exits of the interpreter again."""
        message = request.message
        what = f"partition {self.number}: {type(message).__name__} of session {message.session_id}"
        self.answering(1)
        refuse(request, report(error, self._log, what), self._log)
        if isinstance(error, (KeyboardInterrupt, SystemExit)):
            raise error

    def answering(self, requests: int) -> None:
        """So many of those under way are answered now; said before the peer can know, who may look at the gauges next."""
        self._under_way -= requests

    # --- who may ------------------------------------------------------------------------------------------------------

    @property
    def _state(self) -> ServiceState:
        return ServiceState(
            number=self.number,
            assigned=True,  # a partition that is given up executes nothing any more
            readable=self._availability.readable,
            writable=self._availability.writable,
            persisted_session=self.partition.session_id,
            session=self._session,
        )

    def open_session(self) -> int | None:
        """The session whose online appends need no further look; None when there is none."""
        if self._outage.known:
            return None
        return self._session if self._availability.writable else None

    def read_session(self) -> int | None:
        """The session whose reads need no further look; None when there is none.  Others are refused, or made durable first."""
        return self._session if self._availability.readable else None

    def check(self, session_id: int, offline: bool, access: RequiredAccess = RequiredAccess.WRITE) -> Denial | None:
        """Check a request; None when it may run.  Changes nothing, unless it finds that the partition can take part again."""
        denial = permissions.check(self._state, session_id=session_id, offline=offline, access=access)
        if denial is None and access is not RequiredAccess.READ:
            return self._outage.denial(offline)
        return denial

    def let_in(self, session_id: int, offline: bool) -> None:
        """A checked request will be executed: its session, if it is a newer one, is durable on return.  Raises DiskError."""
        if permissions.raises_session(self._state, session_id=session_id, offline=offline):
            self._fences.raise_to(self.number, session_id)
            self._session = session_id

    # --- who can ------------------------------------------------------------------------------------------------------

    @property
    def outage(self) -> Outage | None:
        """Why the partition takes no part in sessions at present; None when it does.  Thread-safe."""
        return self._outage.now

    def note_failure(self, error: BaseException, transaction_id: int | None = None) -> None:
        """A request failed: keep the partition out of sessions if none can be served any more.

        `transaction_id`: the record that the request had to read, if any.
        """
        self._outage.note_failure(error, transaction_id)

    def note_space(self, age: float) -> None:
        """The disk was found to have space, by a look that began at most `age` seconds ago.  Thread-safe."""
        self._outage.note_space(age)

    # --- pausing and ending ------------------------------------------------------------------------------------------

    def hold(self, seconds: float | None = None) -> bool:
        """Stop executing: returns when nothing is under way; what is queued, or comes, waits for `resume` or `end`.

        False, and nothing is held, when that took longer than `seconds`.
        """
        with self._lock:
            self._held = True
            done = self._idle.wait_for(lambda: not self._scheduled, seconds)
            self._held = done
        return done

    def resume(self, partition: Partition | None = None) -> None:
        """Go on after `hold`, with the partition's files opened anew if they were."""
        if partition is not None:
            self.partition = self.commit.target = partition
            self._outage.opened_again(partition)
        with self._lock:
            self._held = False
            if not self._queue or self._scheduled:
                return
            self._scheduled = True
            first = self._queue[0]
        self._schedule(first)

    def refuse(self, over: Denial) -> None:
        """Answer whatever comes from now on with a failure; what is queued is still executed."""
        with self._lock:
            self._over = over

    def drain(self, over: Denial, seconds: float | None = None) -> bool:
        """As `refuse`, and wait until everything that is queued was executed.

        False when that took longer than `seconds`: what was queued then is answered with the failure, and something is under way.
        """
        with self._lock:
            self._over = over
            done = self._idle.wait_for(lambda: not self._scheduled, seconds)
        self.end(over)
        return done

    def end(self, over: Denial) -> None:
        """Answer what is queued, and whatever comes from now on, with a failure."""
        while True:
            with self._lock:
                left, self._queue = self._queue, []
                self._waiting = self._waiting_bytes = 0
                waiters, self._waiters = self._waiters, []
                if not left:
                    self._over = over  # from now on at once; until now in the order in which they came
            self._call(waiters)
            if not left:
                return
            for item in left:
                refuse(item, over, self._log)

    def _call(self, waiters: Sequence[Callable[[], None]]) -> None:
        for callback in waiters:
            try:
                callback()
            except Exception:  # a connection's trouble is not the partition's
                self._log.exception("a connection could not be told that partition %d has room", self.number)
