"""The threads that execute what is queued for partitions.

Jobs that no thread has taken yet stand in one line.  A job that comes while a thread is idle goes straight to the one that became
idle last: its stack is still in the processor's cache, and exactly one thread wakes up.  A thread is made when every other one
has work, up to a bound.  A service stands in line at most once, so that its requests are executed by one thread at a time, and
none waits for another partition as long as there is a free thread.

`concurrent.futures` would make a future with a condition variable for each hand-over; that alone takes longer than everything
else on the way of a small request to its partition.  `queue.SimpleQueue` wakes a second thread for nothing every time.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Protocol


class Job(Protocol):
    """Something that has work for a thread from time to time."""

    def run(self) -> bool:
        """Work; True to be put in line again.  Raises nothing but the exits of the interpreter."""
        ...


class JobExecutor(Protocol):
    """Who has jobs executed.  `Executor` has threads for it; whoever decides over time and order himself may be another one."""

    @property
    def at_rest(self) -> bool:
        """Whether no job is being executed."""
        ...

    @property
    def others_wait(self) -> bool:
        """Whether a job stands in line that is not being executed."""
        ...

    def schedule(self, job: Job) -> None:
        """Have a job run.  The caller sees to it that it does not stand in line already."""
        ...

    def call_later(self, seconds: float, call: Callable[[], None]) -> bool:
        """Have something short called after so many seconds, in any thread; never once it is closed.

        False: it cannot be had.
        """
        ...

    def close(self) -> None:
        """Let what stands in line run, and end."""
        ...


class _Worker:
    """A thread and what it is to do next; None is the end.  `wake` is held while it has nothing to look at."""

    __slots__ = ("job", "thread", "wake")

    def __init__(self, job: Job | None) -> None:
        self.job = job
        self.wake = threading.Lock()
        self.wake.acquire()
        self.thread: threading.Thread


class Executor:
    """Threads for jobs.  Thread-safe."""

    def __init__(self, size: int, *, log: logging.Logger, name: str = "partition-worker") -> None:
        """`size`: threads at most.  Raises RuntimeError when the system has no thread."""
        if size < 1:
            raise ValueError(f"a pool of {size} threads")
        self._size, self._log, self._name = size, log, name
        self._lock = threading.Lock()
        self._line: deque[Job] = deque()
        self._idle: list[_Worker] = []
        self._workers: list[_Worker] = []
        self._closing = False
        self._made = 0
        with self._lock:  # so that there is always one, whatever the system says later
            self._idle.append(self._start_worker(None))

    @property
    def threads(self) -> int:
        """How many threads there are."""
        return len(self._workers)

    @property
    def at_rest(self) -> bool:
        """Whether no thread has a job."""
        return len(self._idle) == len(self._workers)

    @property
    def others_wait(self) -> bool:
        """Whether a job stands in line that no thread has taken."""
        return bool(self._line)

    def schedule(self, job: Job) -> None:
        """Have a job run.  The caller sees to it that it does not stand in line already."""
        with self._lock:
            if not self._idle:
                if len(self._workers) < self._size and not self._closing:
                    try:
                        self._start_worker(job)
                        return
                    except RuntimeError as error:  # those threads that are there do the work
                        self._log.warning("no further worker thread can be started: %s", error)
                self._line.append(job)
                return
            worker = self._idle.pop()
            worker.job = job
        worker.wake.release()

    def _start_worker(self, job: Job | None) -> _Worker:
        """A new thread that begins with `job`, or idle; the lock is held.  Raises RuntimeError."""
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
            except BaseException:  # the thread is to end; the job may have more to do, and another thread does it
                self._replace(worker, job)
                raise
            with self._lock:
                if again:
                    self._line.append(job)
                del job  # an idle thread keeps nothing alive
                worker.job = self._line.popleft() if self._line else None
                if worker.job is not None:
                    continue
                if self._closing:
                    break
                self._idle.append(worker)
            worker.wake.acquire()
        with self._lock:
            self._workers.remove(worker)

    def _replace(self, worker: _Worker, job: Job) -> None:
        """Have a new thread take the place, and the job, of one that ends."""
        with self._lock:
            self._workers.remove(worker)
            self._start_worker(job)

    def call_later(self, seconds: float, call: Callable[[], None]) -> bool:
        """Have something short called after so many seconds; never once the pool is closed.  False: there is no thread for it."""
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
        """Let what stands in line run, and end the threads."""
        with self._lock:
            self._closing = True
            idle, self._idle = self._idle, []
            threads = [worker.thread for worker in self._workers]
        for worker in idle:  # which has no job
            worker.wake.release()
        for thread in threads:
            thread.join()
