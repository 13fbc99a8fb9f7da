"""What salvage reads: files, whole directory trees, block devices; only ever opened for reading.

A source that cannot be read in places is read around them: a failing piece of a disk becomes zeros in which nothing will be
found, and its place is reported.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from waltzctl.engine.durable import disk
from waltzctl.engine.errors import DiskReadError, InvalidRequestError, NotWaltzError
from waltzctl.engine.progress import Progress
from waltzctl.engine.scan.byte_source import FileSource

SECTOR = 4096
"""Bytes that are given up around a place that cannot be read."""


@dataclass(frozen=True, slots=True)
class UnreadableRange:
    """Bytes of a source that the system could not deliver.  `offset` and `length` in bytes."""

    path: Path
    offset: int
    length: int


class OpenFiles:
    """Keeps few files open, however many there are: the one that was not used for longest is closed."""

    def __init__(self, limit: int = 64) -> None:
        self._limit = limit
        self._open: dict[SalvageSource, None] = {}

    def use(self, source: SalvageSource) -> None:
        """`source` is about to be read."""
        self._open.pop(source, None)
        self._open[source] = None
        if len(self._open) > self._limit:
            oldest = next(iter(self._open))
            del self._open[oldest]
            oldest.close()


class SalvageSource(FileSource):
    """A file or block device that is read around its unreadable places; tells a listener how far the reading is.

    It is opened again when it was closed.  Not thread-safe.
    """

    def __init__(self, path: Path, files: OpenFiles, progress: Progress) -> None:
        """Raises FileNotFoundError, DiskReadError."""
        super().__init__(path, devices=True)
        self.path = path
        self.strict = False
        """Whether a place that cannot be read is an error after all."""
        self.unreadable: dict[int, int] = {}
        """Length by offset."""
        self._files = files
        self._progress = progress
        self._furthest = 0
        self._size = self._measure()

    def fileno(self) -> int:
        """The descriptor.  Raises FileNotFoundError, DiskReadError."""
        if self._descriptor is None:
            self._descriptor = disk.open_for_reading(self.path, devices=True)
        self._files.use(self)
        return self._descriptor

    def _measure(self) -> int:
        status = os.fstat(self.fileno())
        if stat.S_ISBLK(status.st_mode):  # a device has no length that fstat would tell
            return os.lseek(self.fileno(), 0, os.SEEK_END)
        return status.st_size

    def size(self) -> int:
        """Bytes when it was opened; what is appended later is not looked at."""
        return self._size

    def read_into(self, offset: int, buffer: memoryview) -> int:
        """As `FileSource.read_into`, with zeros where the system could not read (unless `strict`)."""
        done, wanted = 0, min(len(buffer), max(0, self._size - offset))
        while done < wanted:
            try:
                count = super().read_into(offset + done, buffer[done:wanted])
            except DiskReadError as error:
                if self.strict:
                    raise
                failed = offset + done if error.offset is None else error.offset
                end = min((failed // SECTOR + 1) * SECTOR, offset + wanted)
                buffer[failed - offset : end - offset] = bytes(end - failed)
                self.unreadable[failed] = max(end - failed, self.unreadable.get(failed, 0))
                done = end - offset
                continue
            if not count:
                break
            done += count
        if not self.strict and offset + done > self._furthest:
            self._progress.advance(offset + done - self._furthest)
            self._furthest = offset + done
        return done


def list_sources(sources: Sequence[Path], to: Path) -> list[Path]:
    """Every file to read: a directory stands for all the files below it, in the order of their names.

    Raises NotWaltzError for a path that does not exist, InvalidRequestError for one that cannot be read at any offset
    (a pipe, a terminal) or when `to` lies inside a source.
    """
    found: dict[Path, None] = {}
    target = Path(os.path.realpath(to))
    for source in sources:
        try:
            mode = os.stat(source).st_mode
        except FileNotFoundError as error:
            raise NotWaltzError(f"{source}: no such file or directory") from error
        except OSError as error:
            raise DiskReadError(source, None, error, doing="examine") from error
        if stat.S_ISDIR(mode):
            if target.is_relative_to(os.path.realpath(source)):
                raise InvalidRequestError(
                    f"{to}: lies inside the source {source}, which must stay as it is",
                    advice="name a directory outside of it, best on another disk",
                )
            found |= dict.fromkeys(_below(source))
        elif stat.S_ISREG(mode) or stat.S_ISBLK(mode):
            found[source] = None
        else:
            raise InvalidRequestError(
                f"{source}: a pipe or terminal cannot be read at any offset", advice="copy its bytes to a file first"
            )
    return list(found)


def _below(directory: Path) -> list[Path]:
    """Every regular file below a directory; symbolic links are not followed."""

    def refuse(error: OSError) -> None:
        raise DiskReadError(error.filename or directory, None, error, doing="list") from error

    files = []
    for place, names, entries in os.walk(directory, onerror=refuse):
        names.sort()
        for entry in sorted(entries):
            path = Path(place, entry)
            if stat.S_ISREG(os.lstat(path).st_mode):
                files.append(path)
    return files
