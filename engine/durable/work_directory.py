"""A work directory: a directory that is built under a temporary name and renamed at the end, so that it is complete or absent.

A run locks its work directory (flock(2), which ends with the process), so a second run is refused and removes nothing.  A work
directory that a killed run left is not locked, and the next run removes it.

Not every file system has such locks for directories (NFS has none).  There a run works without one in the directory that it made
itself, and is refused where there is one: nobody can tell whether a run is at work in it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from waltzctl.engine.durable import disk, file_status
from waltzctl.engine.errors import DiskError, RefusedError, write_error


@contextlib.contextmanager
def work_directory(place: Path) -> Iterator[None]:
    """Make the directory `place` and hold its lock until the block ends; the block may rename it.

    When the block raises, the directory is removed, unless it was renamed.  Raises RefusedError while another run holds the lock,
    DiskWriteError.
    """
    with contextlib.ExitStack() as held:
        if place.is_symlink() or place.is_dir():
            try:
                lock_directory(place, held)
            except OSError as error:
                raise RefusedError(
                    f"{place}: another run may be at work there; its file system does not tell ({error.strerror})",
                    advice="if none is, remove it, or name another directory",
                ) from error
            disk.remove_tree(place)
        try:
            disk.make_directory(place)
        except DiskError:
            raise
        except BaseException:  # an interrupt after the directory was made
            with contextlib.suppress(RefusedError, DiskError, OSError):
                lock_directory(place, held)
                disk.remove_tree(place)
            raise
        try:
            made = os.fstat(lock_directory(place, held))
        except OSError:  # a file system without such locks
            made = os.lstat(place)
        except DiskError:
            with contextlib.suppress(DiskError):
                disk.remove_directory(place)
            raise
        try:
            yield
        except BaseException:
            if file_status.is_at(place, made):
                with contextlib.suppress(DiskError):
                    disk.remove_tree(place)
            raise


@contextlib.contextmanager
def renamed(place: Path, target: Path) -> Iterator[None]:
    """Give a work directory its name; the block makes that durable.

    When the block raises, it has its temporary name again, under which `work_directory` removes it: with a complete directory
    beside an error the same command again would be refused.
    """
    disk.rename(place, target)
    try:
        yield
    except BaseException:
        with contextlib.suppress(DiskError):
            disk.rename(target, place)
        raise


def lock_directory(place: Path, held: contextlib.ExitStack) -> int:
    """Lock a directory until `held` is closed, or the process ends; returns its descriptor.

    Raises RefusedError; DiskWriteError when it cannot be opened; OSError when its file system has no such locks.
    """
    with contextlib.suppress(FileNotFoundError, BlockingIOError):
        try:
            descriptor = os.open(place, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:
            raise
        except OSError as error:  # says nothing about locks, and without one the next run would remove the directory
            raise write_error(place, None, error, doing="lock") from error
        held.callback(os.close, descriptor)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if file_status.is_still_at(place, descriptor):
            return descriptor
    raise RefusedError(
        f"{place}: another run is at work there", advice="wait until it has ended, or name another directory"
    )
