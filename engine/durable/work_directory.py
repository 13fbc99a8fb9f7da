"""A directory that is built beside the one that is asked for, and gets its name at the end, whole or not at all.

What a killed run left under the name of the work directory is removed by the next one.  As long as a run is at it, it holds the
directory by a lock (`flock`) that the system lets go when the process ends: a second run is refused, and takes nothing away.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from waltzctl.engine.durable import disk
from waltzctl.engine.errors import DiskError, RefusedError


@contextlib.contextmanager
def work_directory(place: Path) -> Iterator[None]:
    """Make `place`, a new directory, which is held until the block ends and may be renamed in it; what fails there removes it.

    Raises RefusedError while another run has it, DiskWriteError.
    """
    with contextlib.ExitStack() as held:
        if place.is_symlink() or place.is_dir():
            _hold(place, held)
            disk.remove_tree(place)
        try:
            disk.make_directory(place)
        except DiskError:
            raise
        except BaseException:  # stopped when it was there
            with contextlib.suppress(RefusedError, DiskError):
                _hold(place, held)
                disk.remove_tree(place)
            raise
        descriptor = _hold(place, held)
        try:
            yield
        except BaseException:
            if _is(descriptor, place):
                with contextlib.suppress(DiskError):
                    disk.remove_tree(place)
            raise


def _hold(place: Path, held: contextlib.ExitStack) -> int:
    """Lock a directory for as long as `held` lasts, and at most until this process ends; its descriptor.  Raises RefusedError."""
    descriptor = -1
    with contextlib.suppress(FileNotFoundError, BlockingIOError):
        descriptor = os.open(place, os.O_RDONLY | os.O_DIRECTORY)
        held.callback(os.close, descriptor)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if _is(descriptor, place):
            return descriptor
    raise RefusedError(
        f"{place}: another run is at work there", advice="wait until it has ended, or name another directory"
    )


def _is(descriptor: int, place: Path) -> bool:
    """Whether the directory that is held still has this name."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(place))
    except FileNotFoundError:
        return False
