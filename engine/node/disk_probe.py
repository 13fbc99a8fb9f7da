"""Probe of the disk under a storage directory: writes and syncs a small file, and reads the free space."""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass
from pathlib import Path

from waltzctl.engine.durable import disk
from waltzctl.engine.errors import DiskError

PROBE_SIZE = 4096
"""Bytes that the probe writes."""


@dataclass(frozen=True, slots=True)
class DiskState:
    """The outcome of a probe.  `free_bytes` None: unknown.  `seconds`: for writing and syncing; None: not done or failed."""

    free_bytes: int | None
    seconds: float | None
    problem: str | None


class DiskProbe:
    """Writes a small new file in the directory's state folder (`disk.STATE_DIRECTORY`), syncs it, and removes it.  Blocks."""

    def __init__(self, storage: Path, *, min_free_bytes: int, name: str = "health-probe") -> None:
        """`name`: of the file; two probes must not use it at the same time."""
        self.path = storage / disk.STATE_DIRECTORY / f"{name}{disk.TEMPORARY_SUFFIX}"
        self.min_free_bytes = min_free_bytes

    def state(self) -> DiskState:
        """Probe now.  Raises nothing for errors of the disk: they are in `DiskState.problem`."""
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
            disk.unlink(self.path)  # left by a process that ended during a probe
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
