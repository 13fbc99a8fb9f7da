"""What a process does with memory that it has freed: keep some of it, or give it back to the system.

glibc gives the end of its heap back whenever more is free there than a threshold, and takes it anew for the next batch, page
by page.  The threshold is twice the largest piece so far, or 128 KiB for ever once any of these settings is made.  Measured in
a Spark worker, on records of 1 KiB: 13,000 page faults a gigabyte or 5,000, and a tenth of the time; in a log server whose
batches have some 150 KB: a seventh of its time.
"""

from __future__ import annotations

import ctypes
import functools

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -2, -3, -8
LONGEST = 32 << 20
"""Bytes from which a piece has a mapping of its own in any case: glibc's bound."""


@functools.cache
def keep_freed_memory(*, kept: int = LONGEST, mapped: int = LONGEST, arenas: int | None = None) -> bool:
    """Let this process keep up to `kept` free bytes at the end of each heap; False where its allocator takes no such wish.

    `mapped`: bytes from which a piece has a mapping of its own, which goes back to the system when it is freed.  `arenas`: heaps
    that threads share, at most; as many as glibc likes unless given.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    settings = [(_MMAP_THRESHOLD, mapped), (_TRIM_THRESHOLD, kept), (_TOP_PAD, kept // 4)]
    if arenas is not None:
        settings.append((_ARENA_MAX, arenas))
    return all(mallopt(setting, value) for setting, value in settings)
