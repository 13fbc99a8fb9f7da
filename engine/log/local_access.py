"""`Access` to files of this machine."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path, PurePath

from waltzctl.engine.durable import directory_lock, disk, file_status
from waltzctl.engine.durable.file_status import FileNumbers, special_kind
from waltzctl.engine.errors import DiskReadError
from waltzctl.engine.log.access import OpenSource, PlaceKind
from waltzctl.engine.scan.byte_source import FileSource


class LocalAccess:
    """Files of this machine; see `Access`."""

    def kind(self, path: PurePath) -> PlaceKind | None:
        """Links followed."""
        here = Path(path)
        if here.is_dir():
            return PlaceKind.DIRECTORY
        if here.is_file():
            return PlaceKind.FILE
        return PlaceKind.SPECIAL if here.exists() else None

    def named(self, path: PurePath) -> bool:
        """True for a dangling link as well, and for what cannot be examined."""
        return file_status.is_named(path)

    def numbers(self, path: PurePath) -> FileNumbers | None:
        """From ``stat``.  Raises DiskReadError."""
        return file_status.file_numbers(path)

    def names(self, path: PurePath) -> list[str]:
        """See `Access.names`."""
        with _read_errors(path):
            return sorted(os.listdir(path))

    def listing(self, path: PurePath) -> dict[str, FileNumbers | None]:
        """See `Access.listing`."""
        above, found = os.fspath(path), dict[str, FileNumbers | None]()
        for name in self.names(path):
            found[name] = None
            with contextlib.suppress(DiskReadError):  # a single entry that cannot be examined hides no other
                found[name] = file_status.file_numbers(os.path.join(above, name))
        return found

    def kinds(self, path: PurePath) -> dict[str, PlaceKind | None]:
        """By what the directory says of its entries.

        One of which it does not say enough, and that cannot be examined, counts as a directory: whoever lists it gets the error,
        and only for that one.
        """
        with _read_errors(path), os.scandir(path) as entries:
            return {entry.name: _kind_of(entry) for entry in sorted(entries, key=lambda entry: entry.name)}

    def modified_ns(self, path: PurePath) -> int | None:
        """The directory's modification time."""
        try:
            return os.stat(path).st_mtime_ns
        except OSError:
            return None

    def identity(self, path: PurePath) -> str:
        """The path with its links resolved."""
        return os.path.realpath(path)

    def absolute(self, path: PurePath) -> PurePath:
        """Links are not resolved."""
        return Path(os.path.abspath(path))

    def link(self, path: PurePath) -> bool:
        """Whether it is a symbolic link."""
        return os.path.islink(path)

    def special(self, path: PurePath) -> str | None:
        """See `Access.special`."""
        return special_kind(path)

    def lock_holder(self, storage: PurePath, control_file: PurePath) -> int | None:
        """The process that holds the storage directory."""
        return directory_lock.lock_holder(storage, control_file)

    def open(self, path: PurePath, size: int | None = None) -> OpenSource:
        """`size` is not used: the open file has it."""
        return FileSource(path)

    def read_range(self, path: PurePath, offset: int, length: int) -> bytes:
        """By one ``pread``."""
        return disk.read_range(path, offset, length)


FILES = LocalAccess()


@contextlib.contextmanager
def _read_errors(path: PurePath) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in file_status.NOTHING_THERE:
            raise
        raise DiskReadError(path, None, error, doing="list") from error


def _kind_of(entry: os.DirEntry[str]) -> PlaceKind | None:
    try:
        if entry.is_dir():
            return PlaceKind.DIRECTORY
        if entry.is_file():
            return PlaceKind.FILE
        return PlaceKind.SPECIAL if not entry.is_symlink() or os.path.exists(entry.path) else None
    except OSError as error:
        return None if error.errno in file_status.NOTHING_THERE else PlaceKind.DIRECTORY
