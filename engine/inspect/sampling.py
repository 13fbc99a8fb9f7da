"""Random choice of the blocks of a segment that a sample reads."""

from __future__ import annotations

import random

from waltzctl.engine.log.index import IndexReader

BLOCK = 1 << 20
"""Bytes of data per block; a block is read as a whole or not at all."""


def choose_blocks(index: IndexReader, size: int, fraction: float, seed: str) -> list[tuple[int, int]]:
    """Ranges of ids ``[first, last)`` that make up about `fraction` of the data; the same for the same `seed`.

    Raises DiskReadError.
    """
    count = index.count()
    per_block = max(1, count * BLOCK // size)
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
