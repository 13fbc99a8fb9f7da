"""Syncs and writes that fail while a workload is recorded, as Linux has them fail.

A sync that fails is told once to every descriptor that was open then, and to none that is opened later.  What it could not write
can still be read, and the system takes it for written: the next sync of the same file succeeds without it.  The simulated disk
is told (`tests.crash.simdisk.FAILED_SYNC`), so that a crash loses it.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.crash.simdisk import FAILED_SYNC
from waltzctl.engine.durable import disk
from waltzctl.engine.durable.disk import Change

FOREVER = 1 << 30


class Failing:
    """Made by `failing`, whose block is to begin before the files are opened."""

    def __init__(self) -> None:
        self._sync, self._write, self._open = os.fdatasync, os.pwrite, os.open
        self._syncs: dict[Path, int] = {}
        self._before: dict[Path, int] = {}
        self._writes: dict[Path, bool] = {}
        self._errors: dict[int, int] = {}  # by inode
        self._told: dict[int, int] = {}  # by descriptor

    def syncs_of(self, path: Path, times: int = 1, *, behind: int = 0) -> None:
        """So many writes-back of this file fail, the next ones, or those `behind` so many that succeed."""
        self._syncs[path], self._before[path] = times, behind

    def writes_to(self, path: Path) -> None:
        """The next write to this file ends half-way, for want of room."""
        self._writes[path] = False

    def open(self, path: Any, *arguments: Any, **named: Any) -> int:
        descriptor = self._open(path, *arguments, **named)
        self._told[descriptor] = self._errors.get(os.fstat(descriptor).st_ino, 0)
        return descriptor

    def fdatasync(self, descriptor: int) -> None:
        inode, path = os.fstat(descriptor).st_ino, _path_of(descriptor)
        if self._before.get(path, 0):
            self._before[path] -= 1
        elif self._syncs.get(path, 0):
            self._syncs[path] -= 1
            self._errors[inode] = self._errors.get(inode, 0) + 1
            if disk.observer is not None:
                disk.observer(Change(FAILED_SYNC, path))
        told, self._told[descriptor] = self._told.get(descriptor, 0), self._errors.get(inode, 0)
        if told < self._told[descriptor]:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        self._sync(descriptor)

    def pwrite(self, descriptor: int, data: memoryview, offset: int) -> int:
        half = self._writes.get(path := _path_of(descriptor))
        if half is None:
            return self._write(descriptor, data, offset)
        if half:
            del self._writes[path]
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._writes[path] = True
        return self._write(descriptor, data[: len(data) // 2], offset)


def _path_of(descriptor: int) -> Path:
    return Path(os.readlink(f"/proc/self/fd/{descriptor}"))


@contextmanager
def failing() -> Iterator[Failing]:
    """Nothing fails yet."""
    found = Failing()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "open", found.open)
        patch.setattr(os, "fdatasync", found.fdatasync)
        patch.setattr(os, "pwrite", found.pwrite)
        yield found
