"""Runs of appends: building them from received frames, counting them, and cutting them into portions for one flush.

Frames are not decoded here: a run's table says where each frame begins and how long it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from waltzctl.engine.net.connection import HEADER, Received
from waltzctl.engine.node.answers import Table
from waltzctl.engine.node.requests import AppendRun, Sender
from waltzctl.engine.scan.frames import FrameColumn

BODY, LENGTH = int(FrameColumn.BODY), int(FrameColumn.LENGTH)


def run_of_one(sender: Sender, received: Received, table: Table, body: int, size: int, now: float) -> AppendRun:
    """As `run_of`, for one frame whose body of `size` bytes begins at `body`; faster, as it needs no NumPy operations."""
    table[0, BODY] = HEADER
    return AppendRun(sender, bytes(received[body - HEADER : body + size]), table, size, now)


def run_of(sender: Sender, received: Received, table: Table, now: float) -> AppendRun:
    """A run of the frames that `table` describes, with a copy of their bytes only.  `table` becomes the run's own."""
    starts = table[:, BODY] - HEADER
    ends = starts + (HEADER + table[:, LENGTH])
    size = int(table[:, LENGTH].sum())
    first, last = int(starts[0]), int(ends[-1])
    if last - first == size + HEADER * len(table):
        table[:, BODY] -= first
        return AppendRun(sender, bytes(received[first:last]), table, size, now)
    # frames of other partitions, or keep-alives, stand between them
    cuts = (np.flatnonzero(starts[1:] != ends[:-1]) + 1).tolist()
    firsts, lasts = starts[[0, *cuts]].tolist(), ends[[*(cut - 1 for cut in cuts), -1]].tolist()
    buffer = b"".join([received[a:b] for a, b in zip(firsts, lasts, strict=True)])
    table[:, BODY] = np.cumsum(HEADER + table[:, LENGTH]) - table[:, LENGTH]
    return AppendRun(sender, buffer, table, size, now)


def requests_of(runs: Sequence[AppendRun]) -> int:
    """How many requests the runs hold."""
    return sum(len(run.table) for run in runs)


def portions_of(runs: Sequence[AppendRun], limit: int) -> Iterator[list[AppendRun]]:
    """Cut runs into portions that share a flush: at most `limit` bytes of frame bodies, but at least one frame."""
    portion: list[AppendRun] = []
    size = 0
    for run in runs:
        if not len(run.table):
            continue
        for part in (run,) if run.size <= limit else _cut(run, limit):
            if portion and size + part.size > limit:
                yield portion
                portion, size = [], 0
            portion.append(part)
            size += part.size
    if portion:
        yield portion


def _cut(run: AppendRun, limit: int) -> Iterator[AppendRun]:
    """Cut a long run into parts of at most `limit` bytes, or of one frame."""
    ends = np.cumsum(run.table[:, LENGTH])
    row, before = 0, 0
    while row < len(ends):
        stop = max(row + 1, int(np.searchsorted(ends, before + limit, side="right")))
        yield AppendRun(run.sender, run.buffer, run.table[row:stop], int(ends[stop - 1]) - before, run.received)
        row, before = stop, int(ends[stop - 1])
