"""The ready file of a node: it exists while the node answers.  It is created by rename, and so complete.

A killed node leaves its file behind.  The next start removes it, unless the process that the file names still runs.
"""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from waltzctl.engine.durable.file_status import special_kind
from waltzctl.engine.errors import DiskError, InvalidRequestError
from waltzctl.render.ndjson import encode

if TYPE_CHECKING:
    from waltzctl.engine.columns.column import Object

_LIMIT = 64 << 10
"""Bytes of a ready file that are read, at most; it has a few hundred."""


@dataclass(frozen=True, slots=True)
class ReadyFile:
    """The ready file at `path`."""

    path: Path

    @property
    def destination(self) -> Path:
        """The path of the file itself; symbolic links are followed, and stay."""
        from waltzctl.output_file import Destination

        return Destination.of(self.path).path

    def check(self) -> None:
        """Raise InvalidRequestError where no such file can be written."""
        if not self.path.absolute().parent.is_dir():
            raise InvalidRequestError(f"{self.path}: cannot be the ready file: its directory does not exist")
        if (kind := special_kind(self.destination)) is not None:
            raise InvalidRequestError(f"{self.path}: cannot be the ready file: it is {kind}")

    def write(self, ready: Object) -> None:
        """Write it, by rename.  Raises DiskWriteError."""
        from waltzctl.engine.durable import disk

        disk.write_whole(self.destination, (encode(ready) + "\n").encode())

    def remove(self) -> None:
        """Remove the file if it names this process."""
        if self._pid() == os.getpid():
            self._unlink()

    def remove_stale(self) -> None:
        """Remove the file if the process that it names does not run any more."""
        pid = self._pid()
        if pid is not None and not _runs(pid):
            self._unlink()

    def _pid(self) -> int | None:
        """The process id in the file; None where there is no file, or it is no ready file."""
        from waltzctl.engine.durable import disk

        try:
            named = json.loads(disk.read_range(self.path, 0, _LIMIT)).get("pid")
        except (OSError, DiskError, ValueError, AttributeError, RecursionError):
            return None
        return named if isinstance(named, int) else None

    def _unlink(self) -> None:
        with contextlib.suppress(OSError, DiskError):
            os.unlink(self.destination)


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True
    return pid != os.getpid()  # in a container a killed node and its successor may have the same process id
