"""The limit of the process's open files, raised to what the system grants where many are needed."""

from __future__ import annotations

import errno
import resource
from collections.abc import Callable
from typing import TypeVar

from waltzctl.engine.errors import DiskError

T = TypeVar("T")


def raise_descriptor_limit() -> bool:
    """Raise the soft limit of file descriptors to the hard limit; returns whether it is another one now."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == hard:  # either may be RLIM_INFINITY, which is -1
        return False
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError):
        return False
    return True


def few_descriptors_left(descriptor: int, spare: int) -> bool:
    """Whether fewer than `spare` descriptors are left above one that was just opened, which is the lowest that was free.

    Of a limit below eight times `spare` an eighth is spared: else a process with few descriptors would use none.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return soft != resource.RLIM_INFINITY and descriptor + min(spare, soft // 8) >= soft


def with_raised_limit(open_file: Callable[[], T]) -> T:
    """What `open_file` returns; where the process has no more descriptors, the limit is raised and the file opened again."""
    try:
        return open_file()
    except DiskError as error:
        if error.errno != errno.EMFILE or not raise_descriptor_limit():
            raise
    return open_file()
