"""The threads that execute what is queued for partitions.

One simple queue of services that have something to do, and as many threads as are busy at once, up to a bound: a thread is made
when every other one has work.  A service stands in line at most once, so that its requests are executed by one thread at a
time, and none waits for another partition as long as there is a free thread.

`concurrent.futures` would make a future with a condition variable for each hand-over; that alone takes longer than everything
else on the way of a small request to its partition.
"""

from __future__ import annotations

import logging
import threading
from queue import SimpleQueue
from typing import Protocol


class Job(Protocol):
    """Something that has work for a thread from time to time."""

    def run(self) -> bool:
        """Work; True to be put in line again.  Raises nothing but the exits of the interpreter."""
        ...


class WorkerPool:
    """Threads for jobs.  Thread-safe."""

    def __init__(self, size: int, *, log: logging.Logger, name: str = "partition-worker") -> None:
        """`size`: threads at most.  Raises RuntimeError when the system has no thread."""
        if size < 1:
            raise ValueError(f"a pool of {size} threads")
        self._size, self._log, self._name = size, log, name
        self._ready: SimpleQueue[Job | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._load = 0
        self._threads: list[threading.Thread] = []
        self._start_thread()  # so that there is always one, whatever the system says later

    @property
    def threads(self) -> int:
        """How many threads there are."""
        return len(self._threads)

    def schedule(self, job: Job) -> None:
        """Have a job run.  The caller sees to it that it does not stand in line already."""
        with self._lock:
            self._load += 1
            if self._load > len(self._threads) < self._size:
                self._start_thread()
        self._ready.put(job)

    def _start_thread(self) -> None:
        thread = threading.Thread(target=self._work, name=f"{self._name}-{len(self._threads)}", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # the system has no further thread; those that are there do the work
            if not self._threads:
                raise
            self._log.warning("no further worker thread can be started: %s", error)
            return
        self._threads.append(thread)

    @property
    def others_wait(self) -> bool:
        """Whether a job stands in line that no thread has taken."""
        return not self._ready.empty()

    def _work(self) -> None:
        while (job := self._ready.get()) is not None:
            try:
                again = job.run()
            except BaseException:  # the thread is to end; the job may have more to do, and another thread does it
                with self._lock:
                    self._threads.remove(threading.current_thread())
                    self._start_thread()
                self._ready.put(job)
                raise
            if again:
                self._ready.put(job)
                continue
            del job  # an idle thread keeps nothing alive
            with self._lock:
                self._load -= 1
        with self._lock:
            self._threads.remove(threading.current_thread())

    def close(self) -> None:
        """Let what stands in line run, and end the threads."""
        with self._lock:
            threads = tuple(self._threads)
        for _ in threads:
            self._ready.put(None)
        for thread in threads:
            thread.join()
