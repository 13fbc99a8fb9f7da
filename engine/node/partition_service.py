"""The service of one partition: a bounded queue of requests, executed by one thread at a time of a shared pool.

Order.  Requests of a partition are executed in the order of their arrival, by one thread at a time; other partitions never wait
for them.  The worker takes the whole queue at once, and consecutive appends in it share one flush (group commit).

Answers.  Every accepted request is answered: by its result, by the release's failure, or, when its frame cannot be decoded, by
closing its connection.

Access.  Which requests are executed, and which are refused, is decided by `engine.node.access_control`.

The two sides.  "In front" are methods for the ports, from any thread, under `_lock`.  "Behind" are methods for the one worker or
pass that executes the partition at present; `_scheduled` is set as long as there is one.
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
from waltzctl.engine.node.access_control import AccessControl
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
from waltzctl.engine.node.outages import Room
from waltzctl.engine.node.partition_requests import access_of, execute, read_by
from waltzctl.engine.node.permissions import Denial
from waltzctl.engine.node.requests import AppendRun, Item, Request
from waltzctl.engine.scan.frames import FrameColumn
from waltzctl.engine.scan.list_answers import ListAnswers, Requests
from waltzctl.engine.scan.transcode import AppendEncoder
from waltzctl.engine.storage.availability_marks import Availability
from waltzctl.engine.storage.fences import SessionFences
from waltzctl.engine.storage.partition import Partition
from waltzctl.formats.wire.storage import RecordHeaderListRequest

PASS_BYTES = 64 << 10
"""Bytes of frame bodies that one partition may have in a pass (`engine.node.commit_passes`); more share a flush of their own."""
TYPE = int(FrameColumn.TYPE)


class Admission(Enum):
    """The outcome of `PartitionService.submit`."""

    ACCEPTED = auto()
    """The item is queued and will be answered."""
    FULL = auto()
    """The queue is full, the item is not queued: submit it again when `PartitionService.on_room` calls back."""
    STALLED = auto()
    """As FULL, and the partition has made no progress for `ServiceOptions.stall_seconds`: send `PartitionService.busy_answer`."""


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
        """`passes`: commits small appends together with those of other partitions; None: `pool` executes everything.

        Raises DamageError, DiskReadError when the partition's fence cannot be read.
        """
        self.number = partition.number
        self.partition = partition
        self.metrics = metrics
        self.options = options
        self._pool, self._passes, self._log = pool, passes, log
        self.access = AccessControl(partition, availability, fences=fences, room=room, log=log)
        self.commit = GroupCommit(
            partition,
            encoder,
            self.access,
            metrics,
            answering=self.answering,
            max_data_length=max_data_length,
            commit_bytes=options.commit_bytes,
            log=log,
        )
        self._lock = threading.Lock()
        self._idle = threading.Condition(self._lock)
        self._queue: list[Item] = []
        self._waiting, self._waiting_bytes = 0, 0  # requests in the queue, and bytes of their bodies
        self._under_way = 0  # requests taken from the queue and not answered
        self._scheduled = False  # a worker or a pass executes this partition, or is going to
        self._held = False  # `hold` was called: nothing is taken from the queue
        self._closing_denial: Denial | None = None  # what new requests are refused with; None: they are accepted
        self._room_callbacks: list[Callable[[], None]] = []  # see `on_room`
        self._progress = time.monotonic()  # when the partition last made progress

    # --- in front: any thread ----------------------------------------------------------------------------------------

    def submit(self, item: Item, together: list[PartitionService] | None = None) -> Admission:
        """Queue an item unless the queue is full; never blocks.  Thread-safe.

        `together`: a list of the caller's, to which this service is added when it should take part in the same pass as the
        other services the caller submits to; the caller then has to call `start_together` with it.

        An item for a partition that was unassigned meanwhile is accepted and answered with a failure.
        """
        with self._lock:
            waiting, waiting_bytes = self._waiting + requests_of(item), self._waiting_bytes + item.size
            options, denial = self.options, self._closing_denial
            if denial is None:
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
        if denial is not None:
            refuse(item, denial, self._log)
        elif together is not None and self._passes is not None and self._fits_pass(item):
            together.append(self)
        else:
            self._schedule(item)
        return Admission.ACCEPTED

    @staticmethod
    def start_together(services: Sequence[PartitionService]) -> None:
        """Start execution of the services that `submit` added to `together`: several take part in the next pass."""
        if len(services) == 1:
            (only,) = services
            only.go_on()
        elif services:
            passes = services[0]._passes
            assert passes is not None, "`submit` adds only services that take part in passes"
            passes.schedule(*services)

    def _schedule(self, first: Item) -> None:
        """Have the queue executed, whose head is `first`: by the next pass, or by a worker thread of its own.

        While no other partition is busy, nor was a moment ago, a pass would have no other member, and a worker thread is faster.
        """
        passes = self._passes
        if passes is not None and (passes.expects_company or not self._pool.at_rest) and self._fits_pass(first):
            passes.schedule(self)
        else:
            self._pool.schedule(self)

    def _fits_pass(self, item: Item) -> bool:
        """Whether an item is a run of appends that is small enough for a pass."""
        return isinstance(item, AppendRun) and item.size <= self._most_in_pass

    @property
    def _most_in_pass(self) -> int:
        return min(PASS_BYTES, self.options.commit_bytes)

    def answer_now(self, answers: ListAnswers, received: Received, table: Table, room: int) -> int:
        """Answer list requests in the calling thread as far as that takes microseconds; returns how many, from the first on.

        Only requests for a few records that are in the page cache are answered, and only while the partition is idle: there,
        handing over to a worker and back would take longer than reading.  Never waits for the disk.

        `received`, `table`: the frames, and the rows that describe them.  `answers`: receives the response frames, of at most
        `room` bytes in total.  Thread-safe.
        """
        with self._lock:
            if self._scheduled or self._held or self._closing_denial is not None:
                return 0
            self._scheduled = True
        try:
            return self._answer_from_memory(answers, received, table, room)
        finally:
            self.go_on()

    def _answer_from_memory(self, answers: ListAnswers, received: Received, table: Table, room: int) -> int:
        session = self.access.read_session()
        if session is None:
            return 0
        try:
            self.partition.answer_lists(answers, Requests(received, table, session, self.options.max_list_bytes, room))
        except Exception as error:  # a worker executes the request again, and reports the error
            self._log.debug("partition %d: lists are not answered at once: %s", self.number, error)
            return 0
        answered = answers.answered
        if answered:
            headers = table[:answered, TYPE].tolist().count(RecordHeaderListRequest.TYPE)
            self.metrics.record_header_list_request.increment(headers)
            self.metrics.record_list_request.increment(answered - headers)
        return answered

    def on_room(self, callback: Callable[[], None]) -> None:
        """Call `callback` once, when a worker has taken the queue or a pass the appends at its head; at once if it is empty.

        It is called from any thread, and not for single requests that are answered: the caller may need more room than that, and
        would ask again and again.
        """
        with self._lock:
            if self._queue:
                self._room_callbacks.append(callback)
                return
        callback()

    @property
    def queue_size(self) -> int:
        """Requests that are not answered yet: queued, or taken from the queue."""
        return self._waiting + self._under_way

    @property
    def stalled_seconds(self) -> float:
        """Seconds since the last progress while requests are unanswered; 0 when none are."""
        with self._lock:
            return time.monotonic() - self._progress if self._waiting or self._under_way else 0.0

    def busy_answer(self, item: Item) -> bytes:
        """*Busy* failure frames, one for each request of an item that `submit` did not queue."""
        return failures_for(item, permissions.busy(self.number, self.options.stall_seconds))

    # --- behind: one worker at a time --------------------------------------------------------------------------------

    def take(self) -> Sequence[AppendRun]:
        """Take the small appends at the head of the queue; empty when there are none.  See `PassMember.take`."""
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
            callbacks, self._room_callbacks = self._room_callbacks, []
        if callbacks:
            self._call_all(callbacks)
        return runs

    def begin(self, runs: Sequence[AppendRun]) -> UnsyncedCommit | None:
        """Write the runs that `take` returned, in a commit of this partition alone.  See `PassMember.begin`."""
        return self.commit.begin(runs)

    def finish(self, commit: UnsyncedCommit, error: SyncFailedError | None) -> None:
        """Answer the runs of `begin`: their records are durable, or the sync failed with `error`.  See `PassMember.finish`."""
        self.commit.finish(commit, error)

    def go_on(self) -> None:
        """Nothing of this partition is under way any more: schedule the queue again, if it has items."""
        with self._lock:
            self._under_way = 0
            self._progress = time.monotonic()
            if self._queue and not self._held:
                first = self._queue[0]
            else:
                self._become_idle()
                return
        self._schedule(first)

    def _become_idle(self) -> None:
        """Become idle: the queue is empty, or the service is held.  The caller holds the lock."""
        self._scheduled = False
        if not self._queue:
            self.commit.broken.clear()
        self._idle.notify_all()

    def run(self) -> bool:
        """Execute the queue; True: schedule this service again, after the others that wait.  See `engine.net.executor.Job`."""
        while True:
            with self._lock:
                batch = self._queue
                if not batch or self._held:
                    self._become_idle()
                    return False
                self._queue = []
                self._under_way, self._waiting, self._waiting_bytes = self._waiting, 0, 0
                self._progress = time.monotonic()
                callbacks, self._room_callbacks = self._room_callbacks, []
            self._call_all(callbacks)
            try:
                self._execute(batch)
            finally:
                with self._lock:
                    self._under_way = 0
                    self._progress = time.monotonic()
            if self._pool.others_wait:
                return True

    def _execute(self, batch: Sequence[Item]) -> None:
        """Execute and answer a batch.  Raises KeyboardInterrupt and SystemExit only, after everything is answered."""
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
        """Check, execute and answer one request that is no append."""
        message = request.message
        if self.commit.is_broken(request.sender):
            self.answering(1)
            break_off(request.sender, MALFORMED_REASON, 1, request.size, self._log)
            return
        try:
            offline = getattr(message, "offline", False)
            denial = self.access.check(message.session_id, offline, access_of(message))
            if denial is not None:
                self.answering(1)
                refuse(request, denial, self._log)
                return
            self.access.let_in(message.session_id, offline)
        except BaseException as error:  # of the file of fences: no outage, the file refuses newer sessions by itself
            self._fail(request, error)
            return
        try:
            room = min(request.sender.room_for_answer(), self.options.max_list_bytes)
            answer = execute(self.partition, message, self.metrics, room)
        except BaseException as error:
            self.access.note_failure(error, read_by(message))
            self._fail(request, error)
            return
        self.answering(1)
        post(request.sender, answer, 1, request.size, self._log)

    def _fail(self, request: Request, error: BaseException) -> None:
        """Answer a request that failed with `error`; KeyboardInterrupt and SystemExit are raised again."""
        message = request.message
        what = f"partition {self.number}: {type(message).__name__} of session {message.session_id}"
        self.answering(1)
        refuse(request, report(error, self._log, what), self._log)
        if isinstance(error, (KeyboardInterrupt, SystemExit)):
            raise error

    def answering(self, requests: int) -> None:
        """Count requests as answered.  To be called before the answer is sent: its receiver may read the gauges next."""
        self._under_way -= requests

    # --- pausing and ending ------------------------------------------------------------------------------------------
    #
    #            new requests           queued requests        waits for requests under way
    # hold       are queued             stay queued            yes
    # refuse     are refused            are executed           no
    # drain      are refused            are executed           yes
    # end        are refused            are refused            no

    def hold(self, seconds: float | None = None) -> bool:
        """Pause execution; returns when nothing is under way.  Queued and new requests wait for `resume` or `end`.

        Returns False, and the service is not held, if requests are still under way after `seconds`.
        """
        with self._lock:
            self._held = True
            done = self._idle.wait_for(lambda: not self._scheduled, seconds)
            self._held = done
        return done

    def resume(self, partition: Partition | None = None) -> None:
        """Resume after `hold`.  `partition`: the partition as it was opened again, if it was."""
        if partition is not None:
            self.partition = self.commit.target = partition
            self.access.opened_again(partition)
        with self._lock:
            self._held = False
            if not self._queue or self._scheduled:
                return
            self._scheduled = True
            first = self._queue[0]
        self._schedule(first)

    def refuse(self, denial: Denial) -> None:
        """Refuse new requests with `denial`; queued requests are still executed."""
        with self._lock:
            self._closing_denial = denial

    def drain(self, denial: Denial, seconds: float | None = None) -> bool:
        """As `refuse`, and wait until the queued requests were executed.

        Returns False if that took longer than `seconds`: then the requests that are still queued are refused as well, and others
        are still under way.
        """
        with self._lock:
            self._closing_denial = denial
            done = self._idle.wait_for(lambda: not self._scheduled, seconds)
        self.end(denial)
        return done

    def end(self, denial: Denial) -> None:
        """Refuse queued and new requests with `denial`."""
        while True:
            with self._lock:
                left, self._queue = self._queue, []
                self._waiting = self._waiting_bytes = 0
                callbacks, self._room_callbacks = self._room_callbacks, []
                if not left:
                    self._closing_denial = denial  # set last: new requests must not be refused before queued ones
            self._call_all(callbacks)
            if not left:
                return
            for item in left:
                refuse(item, denial, self._log)

    def _call_all(self, callbacks: Sequence[Callable[[], None]]) -> None:
        for callback in callbacks:
            try:
                callback()
            except Exception:  # an error of one connection must not affect the partition
                self._log.exception("a connection could not be told that partition %d has room", self.number)
