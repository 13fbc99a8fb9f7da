"""Thread pool that executes jobs, such as the queues of partitions.

- Jobs that no thread executes yet are in one queue.
- A job that is scheduled while a thread is idle goes to the thread that became idle last: its stack is still in the processor's
  cache, and exactly one thread wakes up.
- A thread is started when all others are busy, up to a bound.
- A job is queued at most once, so that one thread at a time executes it.  It waits for another one only if no thread is free.

`concurrent.futures` would make a future with a condition variable per job, which alone takes longer than all other work between
the socket and the partition of a small request.  `queue.SimpleQueue` wakes up a second thread each time, without work for it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol


class Job(Protocol):
    """Work that is scheduled repeatedly, such as the service of a partition."""

    def run(self) -> bool:
        """Do the work; True: queue the job again.  Raises KeyboardInterrupt and SystemExit only."""
        ...


class JobExecutor(Protocol):
    """Executes jobs: `Executor` in threads; a simulation may control time and order instead."""

    @property
    def at_rest(self) -> bool:
        """Whether no job is being executed."""
        ...

    @property
    def others_wait(self) -> bool:
        """Whether a job is queued that no thread executes yet."""
        ...

    def schedule(self, job: Job) -> None:
        """Queue a job.  The caller ensures that it is not queued already."""
        ...

    def time(self) -> float:
        """Seconds since any origin, by the clock of `call_later`; monotonic."""
        ...

    def call_later(self, seconds: float, call: Callable[[], None]) -> bool:
        """Call `call`, which must be short, after `seconds`, in any thread; not after `close`.

        False: `call` will not be called.
        """
        ...

    def close(self) -> None:
        """Execute the queued jobs, then end."""
        ...


class _Worker:
    """A thread and its next job; None: the thread ends.  `wake`: held while the thread is idle; its release wakes the thread."""

    __slots__ = ("job", "thread", "wake")

    def __init__(self, job: Job | None) -> None:
        self.job = job
        self.wake = threading.Lock()
        self.wake.acquire()
        self.thread: threading.Thread


class Executor:
    """A thread pool.  Thread-safe."""

    def __init__(self, size: int, *, log: logging.Logger, name: str = "partition-worker") -> None:
        """`size`: upper bound of the threads.  Raises RuntimeError when the system can start none."""
        if size < 1:
            raise ValueError(f"a pool of {size} threads")
        self._size, self._log, self._name = size, log, name
        self._lock = threading.Lock()
        self._queue: deque[Job] = deque()
        self._idle: list[_Worker] = []
        self._workers: list[_Worker] = []
        self._closing = False
        self._made = 0
        with self._lock:  # so that there is always one, even if no further one can be started
            self._idle.append(self._start_worker(None))

    @property
    def threads(self) -> int:
        """How many threads there are."""
        return len(self._workers)

    @property
    def at_rest(self) -> bool:
        """Whether all threads are idle."""
        return len(self._idle) == len(self._workers)

    @property
    def others_wait(self) -> bool:
        """Whether a job is queued that no thread executes yet."""
        return bool(self._queue)

    def schedule(self, job: Job) -> None:
        """Have a job executed.  The caller ensures that it is not queued already."""
        with self._lock:
            if not self._idle:
                if len(self._workers) < self._size and not self._closing:
                    try:
                        self._start_worker(job)
                        return
                    except RuntimeError as error:  # the other threads will execute it
                        self._log.warning("no further worker thread can be started: %s", error)
                self._queue.append(job)
                return
            worker = self._idle.pop()
            worker.job = job
        worker.wake.release()

    def _start_worker(self, job: Job | None) -> _Worker:
        """Start a thread with `job`, or idle.  The caller holds the lock.  Raises RuntimeError."""
        worker = _Worker(job)
        name = f"{self._name}-{self._made}"
        worker.thread = threading.Thread(target=self._work, args=(worker,), name=name, daemon=True)
        worker.thread.start()
        self._made += 1
        self._workers.append(worker)
        return worker

    def _work(self, worker: _Worker) -> None:
        if worker.job is None:
            worker.wake.acquire()
        while (job := worker.job) is not None:
            try:
                again = job.run()
            except BaseException:  # this thread ends; a new one executes the job's further work
                self._replace(worker, job)
                raise
            with self._lock:
                if again:
                    self._queue.append(job)
                del job  # an idle thread must not keep the job alive
                worker.job = self._queue.popleft() if self._queue else None
                if worker.job is not None:
                    continue
                if self._closing:
                    break
                self._idle.append(worker)
            worker.wake.acquire()
        with self._lock:
            self._workers.remove(worker)

    def _replace(self, worker: _Worker, job: Job) -> None:
        """Start a new thread with the job of one that ends."""
        with self._lock:
            self._workers.remove(worker)
            self._start_worker(job)

    def time(self) -> float:
        """See `JobExecutor.time`."""
        return time.monotonic()

    def call_later(self, seconds: float, call: Callable[[], None]) -> bool:
        """See `JobExecutor.call_later`.  False: no thread can be started for it."""
        timer = threading.Timer(seconds, self._call, (call,))
        timer.daemon, timer.name = True, f"{self._name}-timer"
        try:
            timer.start()
        except RuntimeError as error:
            self._log.warning("nothing can be called later: no thread can be started: %s", error)
            return False
        return True

    def _call(self, call: Callable[[], None]) -> None:
        if not self._closing:
            call()

    def close(self) -> None:
        """Execute the queued jobs, then end the threads."""
        with self._lock:
            self._closing = True
            idle, self._idle = self._idle, []
            threads = [worker.thread for worker in self._workers]
        for worker in idle:  # its job is None, so it ends
            worker.wake.release()
        for thread in threads:
            thread.join()
