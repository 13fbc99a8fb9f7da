"""Whether the disk under a storage directory can be written, and how much room it has: found out by doing it."""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass
from pathlib import Path

from waltzctl.engine.durable import disk
from waltzctl.engine.errors import DiskError

PROBE_SIZE = 4096
"""Bytes that the probe of the disk writes."""


@dataclass(frozen=True, slots=True)
class DiskState:
    """What the probe found.  `free_bytes` None: not even that is known.  `seconds`: time for writing and making durable."""

    free_bytes: int | None
    seconds: float | None
    problem: str | None


class DiskProbe:
    """Writes a small new file into the directory's own place, makes it durable, and removes it.  Blocks."""

    def __init__(self, storage: Path, *, min_free_bytes: int, name: str = "health-probe") -> None:
        """`name`: of the file; only one look at a time may use it."""
        self.path = storage / disk.STATE_DIRECTORY / f"{name}{disk.TEMPORARY_SUFFIX}"
        self.min_free_bytes = min_free_bytes

    def look(self) -> DiskState:
        """Look now.  Whatever the system answers is in the state."""
        free: int | None = None
        try:
            status = os.statvfs(self.path.parent)
            free = status.f_bavail * status.f_frsize
            if status.f_flag & os.ST_RDONLY:
                return DiskState(free, None, f"{self.path.parent}: the file system is read-only")
            seconds = self._write()
        except (DiskError, OSError) as error:
            return DiskState(free, None, str(error))
        if free < self.min_free_bytes:
            return DiskState(
                free,
                seconds,
                f"{self.path.parent}: {free} bytes are free, and {self.min_free_bytes} should be; make room before appends fail",
            )
        return DiskState(free, seconds, None)

    def _write(self) -> float:
        with contextlib.suppress(FileNotFoundError):
            os.lstat(self.path)
            disk.unlink(self.path)  # of a process that ended while it looked
        started = time.monotonic()
        try:
            with disk.WritableFile.create(self.path) as file:
                file.write_at(0, bytes(PROBE_SIZE))
                file.sync()
            return time.monotonic() - started
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.lstat(self.path)
                disk.unlink(self.path)
