"""Detects the entries of an index in a window of bytes, to exclude them from the candidates of a search for records.

An index has eight bytes for each record; entries rise by at least the size of the shortest record and at most by what a length
field can hold.  Half of its bytes are zero, so nearly every offset in it looks like a record without data when only id and length
are compared.  Verifying the checksum of each such candidate costs a thousand times more than detecting the index.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from waltzctl.formats.segment import ENTRY_SIZE, HEADER_SIZE, RECORD_OVERHEAD, decode_entries

LEAST_ENTRIES = 32
"""Consecutive rising entries that are considered an index; the fields of a record cannot rise for so long."""
LARGEST_STEP = 2**31
LARGEST_OFFSET = 2**48


def inside_index(window: npt.NDArray[np.uint8]) -> npt.NDArray[np.bool_]:
    """For each byte of the window, whether it is part of index entries.  Entries at the edges of the window may be missed."""
    inside = np.zeros(len(window), np.bool_)
    for phase in range(ENTRY_SIZE):
        whole = window[phase : phase + (len(window) - phase) // ENTRY_SIZE * ENTRY_SIZE]
        entries = decode_entries(whole.data)
        if len(entries) < LEAST_ENTRIES:
            continue
        before = entries[:-1]
        step = entries[1:] - before  # wraps for values that are no offsets, and is ruled out by their size
        rising = (step >= RECORD_OVERHEAD) & (step < LARGEST_STEP) & (before >= HEADER_SIZE) & (before < LARGEST_OFFSET)
        breaks = np.flatnonzero(~rising)
        starts = np.concatenate(([0], breaks + 1))
        ends = np.concatenate((breaks, [len(rising)]))
        for row in np.flatnonzero(ends - starts >= LEAST_ENTRIES - 1):
            first, last = int(starts[row]), int(ends[row])  # entries first..last, both inclusive
            inside[phase + first * ENTRY_SIZE : phase + (last + 1) * ENTRY_SIZE] = True
    return inside
