"""What a worker does with the memory of the batches that it has handed on.

Batches of half a megabyte a column come and go.  glibc gives the end of its heap back to the system whenever more than twice the
largest piece so far is free there, and takes it anew for the next batch; whether it comes to that depends on the order in
which pieces are freed.  Measured on records of 1 KiB: 13,000 page faults a gigabyte or 5,000, and a tenth of the time.
"""

from __future__ import annotations

import ctypes
import functools

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3
KEPT = 32 << 20
"""Bytes at the end of the heap that may stay free.  Pieces from this size on, glibc's bound, have a mapping of their own."""
_TAKEN = 8 << 20
"""Bytes by which the heap grows."""


@functools.cache
def keep_freed_memory() -> bool:
    """Let this process keep some memory that it freed; False where its allocator takes no such wish."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    settings = ((_MMAP_THRESHOLD, KEPT), (_TRIM_THRESHOLD, KEPT), (_TOP_PAD, _TAKEN))
    return all(mallopt(setting, value) for setting, value in settings)
