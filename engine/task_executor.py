"""Executors of a long inspection: threads of this process, or the workers of a Spark cluster.

Work is a module-level function of one task; tasks and results are values that can be pickled (frozen dataclasses, NumPy arrays,
paths).  Results come in the order of the tasks, whatever the order in which they were executed, so that a report does not depend
on the executor.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol, TypeVar

from waltzctl.engine.progress import SILENT, Progress

Task = TypeVar("Task")
Result = TypeVar("Result")

_AHEAD = 3
"""Tasks submitted per thread, at most: being executed, or finished and waiting for their turn in the order."""


class TaskExecutor(Protocol):
    """Executes independent tasks."""

    @property
    def parallelism(self) -> int:
        """About how many tasks are executed at the same time."""

    def map(
        self,
        work: Callable[[Task], Result],
        tasks: Sequence[Task],
        *,
        weights: Sequence[int],
        what: str,
    ) -> Iterator[Result]:
        """``work(task)`` for each task, in their order.

        `weights`: the approximate number of bytes that each task reads, for progress and to group small tasks.  `what` names
        the work in a few words.  An error that a task raises is raised here.  Closing the iterator, or an interrupt, cancels
        the tasks that have not begun.
        """


class LocalExecutor:
    """Threads of this process.  The kernels and the reading of files release the interpreter lock."""

    def __init__(self, threads: int | None = None, progress: Progress = SILENT) -> None:
        self._threads = threads or os.cpu_count() or 1
        self._progress = progress

    @property
    def parallelism(self) -> int:
        """Number of threads."""
        return self._threads

    def map(
        self,
        work: Callable[[Task], Result],
        tasks: Sequence[Task],
        *,
        weights: Sequence[int],
        what: str,
    ) -> Iterator[Result]:
        """See `TaskExecutor.map`."""
        self._progress.start(what, sum(weights))
        if self._threads == 1 or len(tasks) < 2:
            for task, weight in zip(tasks, weights, strict=True):
                yield work(task)
                self._progress.advance(weight)
            return
        waiting: deque[tuple[Future[Result], int]] = deque()
        with ThreadPoolExecutor(self._threads, what.replace(" ", "-")) as pool:
            try:
                for task, weight in zip(tasks, weights, strict=True):
                    waiting.append((pool.submit(work, task), weight))
                    if len(waiting) > _AHEAD * self._threads:
                        yield self._next(waiting)
                while waiting:
                    yield self._next(waiting)
            finally:
                pool.shutdown(wait=True, cancel_futures=True)

    def _next(self, waiting: deque[tuple[Future[Result], int]]) -> Result:
        done, weight = waiting.popleft()
        result = done.result()
        self._progress.advance(weight)
        return result
