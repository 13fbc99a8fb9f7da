"""Carving all sources of a salvage: their runs of records and their headers, in this thread or by an executor."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from waltzctl.engine.progress import SILENT
from waltzctl.engine.repair.salvage_headers import FoundHeader
from waltzctl.engine.repair.salvage_runs import SalvageRun, find_headers, find_runs
from waltzctl.engine.repair.salvage_sources import OpenFiles, SalvageSource
from waltzctl.engine.task_executor import TaskExecutor


def carve(opened: Sequence[SalvageSource]) -> tuple[list[SalvageRun], list[FoundHeader]]:
    """The runs and headers of all sources, in the calling thread.  Raises DiskReadError."""
    runs: list[SalvageRun] = []
    headers: list[FoundHeader] = []
    for number, source in enumerate(opened):
        found = list(find_runs(source, number))
        runs += found
        headers += find_headers(source, number, found)
    return runs, headers


@dataclass(frozen=True, slots=True)
class _Carved:
    """What a worker found in a source.  `unreadable`: length by offset of the places that could not be read."""

    runs: tuple[SalvageRun, ...]
    headers: tuple[FoundHeader, ...]
    unreadable: dict[int, int]


def _carve_source(task: tuple[Path, int]) -> _Carved:
    path, number = task
    with contextlib.closing(SalvageSource(path, OpenFiles(), SILENT)) as source:
        runs = tuple(find_runs(source, number))
        return _Carved(runs, tuple(find_headers(source, number, runs)), source.unreadable)


def carve_by(executor: TaskExecutor, opened: Sequence[SalvageSource]) -> tuple[list[SalvageRun], list[FoundHeader]]:
    """As `carve`, with one executor task per source."""
    runs: list[SalvageRun] = []
    headers: list[FoundHeader] = []
    tasks = [(source.path, number) for number, source in enumerate(opened)]
    found = executor.map(_carve_source, tasks, weights=[source.size() for source in opened], what="carving records")
    for source, carved in zip(opened, found, strict=True):
        runs += carved.runs
        headers += carved.headers
        source.unreadable.update(carved.unreadable)
    return runs, headers
