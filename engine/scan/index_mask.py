"""Index entries in a window of bytes: they look like records to a search that goes by id and length alone.

An index is eight bytes a record, rising by at least the size of the shortest record, and never by more than a length field can
hold.  Half of its bytes are zero, so nearly every place in it passes for a record without data; checking each one costs a
thousand times more than telling at a glance that this is an index.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from waltzctl.formats.segment import ENTRY_SIZE, HEADER_SIZE, RECORD_OVERHEAD, decode_entries

LEAST_ENTRIES = 32
"""Entries in a row that make an index.  A record's request id, header, length and checksums cannot rise as long."""
LARGEST_STEP = 2**31
LARGEST_OFFSET = 2**48


def inside_index(window: npt.NDArray[np.uint8]) -> npt.NDArray[np.bool_]:
    """For each byte of the window, whether it lies in a row of index entries.  Rows that the window cuts short may be missed."""
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
