"""What the tests of stats share: segments with times, executors that behave in particular ways, and comparison with dump."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from waltzctl.engine.findings import Finding
from waltzctl.engine.inspect.dump_records import DumpedRecord, dump_records
from waltzctl.engine.stats.report import StatsReport
from waltzctl.engine.stats.stats import stats
from waltzctl.engine.stats.stats_options import StatsOptions
from waltzctl.engine.task_executor import LocalExecutor
from waltzctl.formats.segment import SEGMENT_HEADER

Task = TypeVar("Task")
Result = TypeVar("Result")

SMALL_PART = 256
"""Bytes of a part, so that small segments are cut into many."""


class PicklingCrew:
    """Does tasks in this process, but everything goes through a pickle, as to another machine; `after` is called in between."""

    hands = 1

    def __init__(self, after: Callable[[int], None] = lambda number: None) -> None:
        self._after = after
        self.rounds: list[int] = []

    def map(
        self, work: Callable[[Task], Result], tasks: Sequence[Task], *, weights: Sequence[int], what: str
    ) -> Iterator[Result]:
        assert len(weights) == len(tasks)
        assert what
        self.rounds.append(len(tasks))
        for number, task in enumerate(tasks):
            sent_work, sent_task = pickle.loads(pickle.dumps((work, task)))
            yield pickle.loads(pickle.dumps(sent_work(sent_task)))
            self._after(number)


def count(*paths: Path, threads: int = 1, **options: object) -> StatsReport:
    return stats(paths, StatsOptions(**options), LocalExecutor(threads))  # type: ignore[arg-type]


def same(report: StatsReport) -> StatsReport:
    """A report that can be compared with another one of the same."""
    return replace(report, elapsed_seconds=0)


def dumped(*paths: Path) -> tuple[list[DumpedRecord], list[Finding]]:
    """What dump shows."""
    items = [item for path in paths for item in dump_records(path, data=False)]
    return (
        [item for item in items if isinstance(item, DumpedRecord)],
        [item for item in items if isinstance(item, Finding)],
    )


def set_created(segment: Path, milliseconds: int) -> None:
    """Write a creation time into the headers of a data file and its index, and keep the files' times."""
    for path in (segment, segment.with_suffix(".idx")):
        times = path.stat()
        data = bytearray(path.read_bytes())
        place = SEGMENT_HEADER.offset_of("created")
        data[place : place + 8] = milliseconds.to_bytes(8, "big", signed=True)
        path.write_bytes(data)
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def set_times(storage: Path, partition: int, created: Sequence[int], changed: int) -> None:
    """Creation times of a partition's segments in order, and when the last one was changed; all in milliseconds."""
    segments = sorted((storage / str(partition)).glob("*.seg"))
    assert len(segments) == len(created)
    for segment, milliseconds in zip(segments, created, strict=True):
        set_created(segment, milliseconds)
        os.utime(segment, ns=(changed * 1_000_000, changed * 1_000_000))
