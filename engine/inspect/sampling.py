"""Parts of a segment: to be read side by side, or as a sample.  They begin where the index proves a record to begin."""

from __future__ import annotations

import random
from dataclasses import dataclass

from waltzctl.engine.inspect.index_checks import IndexReader
from waltzctl.engine.inspect.record_checks import prove
from waltzctl.engine.scan.source import ByteSource
from waltzctl.formats.segment import HEADER_SIZE

BLOCK = 1 << 20
"""Bytes of data that a sample takes or leaves as a whole."""


@dataclass(frozen=True, slots=True)
class Part:
    """Records from the one with the id `first`, at `start`, to the offset `stop`."""

    first: int
    start: int
    stop: int


def split(source: ByteSource, index: IndexReader | None, begins: int, size: int, part: int) -> list[Part]:
    """Parts of about `part` bytes that cover ``[128, size)``; one only where the index does not prove more.

    Raises DiskReadError.
    """
    bounds = [(begins, HEADER_SIZE)]
    count = 0 if index is None else index.count()
    wanted = min(-(-size // part), count)
    for number in range(1, wanted):
        assert index is not None
        found = prove(source, index, begins + count * number // wanted, size)
        if found is not None and found.offset > bounds[-1][1] and found.transaction_id > bounds[-1][0]:
            bounds.append((found.transaction_id, found.offset))
    stops = [start for _, start in bounds[1:]] + [size]
    return [Part(first, start, stop) for (first, start), stop in zip(bounds, stops, strict=True)]


def choose_blocks(index: IndexReader, size: int, fraction: float, seed: str) -> list[tuple[int, int]]:
    """Ranges of ids ``[first, last)`` that make up about `fraction` of the data; the same for the same `seed`.

    Raises DiskReadError.
    """
    count = index.count()
    per_block = max(1, count * BLOCK // max(size, 1))
    chooser = random.Random(seed)
    chosen: list[tuple[int, int]] = []
    for first in range(0, count, per_block):
        if chooser.random() >= fraction:
            continue
        begin, end = index.begins + first, index.begins + min(first + per_block, count)
        if chosen and chosen[-1][1] == begin:
            begin = chosen.pop()[0]
        chosen.append((begin, end))
    return chosen
