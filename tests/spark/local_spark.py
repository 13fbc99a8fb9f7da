"""A session whose tasks run in this process: what the executor asks of Spark, without Java."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pyarrow as pa

from waltzctl.engine.spark.spark_session import Session, SparkOptions


@dataclass
class LocalSpark:
    """`said`: what it was told beside jobs.  `fails`: raised by every job.  `stages`: all tasks and ended ones of each."""

    parallelism: int = 2
    said: list[tuple[Any, ...]] = field(default_factory=list)
    packets: list[int] = field(default_factory=list)
    fails: BaseException | None = None
    stages: list[tuple[int, int] | None] = field(default_factory=list)
    before: Callable[[], Any] = lambda: None
    """Called before each packet."""
    settings: dict[str, str] = field(default_factory=lambda: {"spark.sql.leafNodeDefaultParallelism": "5"})
    cancelled: threading.Event = field(default_factory=threading.Event)

    @property
    def sparkContext(self) -> Any:  # noqa: N802
        infos = [
            None if one is None else SimpleNamespace(numTasks=one[0], numCompletedTasks=one[1]) for one in self.stages
        ]
        tracker = SimpleNamespace(getActiveStageIds=lambda: range(len(infos)), getStageInfo=infos.__getitem__)
        return SimpleNamespace(
            defaultParallelism=self.parallelism,
            statusTracker=lambda: tracker,
            setJobGroup=lambda tag, text, **more: self.said.append(("group", tag, text, more)),
            cancelJobGroup=lambda tag: self._cancelled("cancel group", tag),
        )

    def _cancelled(self, *said: str) -> None:
        self.said.append(said)
        self.cancelled.set()

    @property
    def conf(self) -> Any:
        return SimpleNamespace(get=self.settings.get)

    def addTag(self, tag: str) -> None:  # noqa: N802
        self.said.append(("tag", tag))

    def interruptTag(self, tag: str) -> None:  # noqa: N802
        self._cancelled("interrupt tag", tag)

    def range(self, first: int, stop: int, step: int, parts: int) -> Any:
        assert (first, step, parts) == (0, 1, stop)
        self.packets.append(stop)

        def collected(worker: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]], schema: str) -> Any:
            assert schema == "packet long, failed boolean, result binary"
            return SimpleNamespace(toArrow=lambda: pa.Table.from_batches(list(worker(self._batches(stop)))))

        return SimpleNamespace(mapInArrow=collected)

    def _batches(self, stop: int) -> Iterator[pa.RecordBatch]:
        for number in reversed(range(stop)):  # in no order
            self.before()
            if self.fails is not None:
                raise self.fails
            yield pa.RecordBatch.from_pydict({"id": pa.array([number], pa.int64())})


def local_session(spark: LocalSpark, master: str = "local[2]") -> Session:
    made: Any = spark
    return Session(made, SparkOptions(master), contextlib.ExitStack())
