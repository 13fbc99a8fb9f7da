"""The read-only file interface, `Access`; its implementations are listed in `engine.log.places`."""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from pathlib import PurePath
from types import TracebackType
from typing import Protocol, Self

from waltzctl.engine.durable.file_status import FileNumbers
from waltzctl.engine.scan.byte_source import ByteSource


class OpenSource(ByteSource, Protocol):
    """A source that is a context manager."""

    def __enter__(self) -> Self:
        """Itself."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close."""


class PlaceKind(enum.Enum):
    """The type of a directory entry.  SPECIAL: neither of the others, for instance a FIFO."""

    FILE = "file"
    DIRECTORY = "directory"
    SPECIAL = "special"


class Access(Protocol):
    """Read access to one kind of storage (local files, URLs, vaults).

    The read-only commands (verify, dump, compare, Spark) reach storage through this interface only.
    """

    def kind(self, path: PurePath) -> PlaceKind | None:
        """The type of the entry at `path`, links followed; None if there is none.  Raises DiskReadError for a URL."""

    def named(self, path: PurePath) -> bool:
        """Whether the name exists, also as a dangling link.  Raises DiskReadError for a URL."""

    def numbers(self, path: PurePath) -> FileNumbers | None:
        """Size, modification time and inode of a regular file; None when there is none, or no access.

        Raises DiskReadError.
        """

    def names(self, path: PurePath) -> list[str]:
        """The names in a directory, in order.

        Raises OSError where there is no directory (`file_status.NOTHING_THERE`), DiskReadError where it cannot be listed.
        """

    def listing(self, path: PurePath) -> dict[str, FileNumbers | None]:
        """As `names`, each with the `numbers` of the file; None for an entry that is no regular file, or cannot be examined."""

    def kinds(self, path: PurePath) -> dict[str, PlaceKind | None]:
        """As `names`, each with its type, links followed; None for a dangling link."""

    def modified_ns(self, path: PurePath) -> int | None:
        """When an entry of a directory was last added or removed, in nanoseconds since 1970; None where that is not known."""

    def identity(self, path: PurePath) -> str:
        """A text that is the same for all paths to the same file or directory."""

    def absolute(self, path: PurePath) -> PurePath:
        """The path made independent of the current directory."""

    def link(self, path: PurePath) -> bool:
        """Whether the name is a symbolic link."""

    def special(self, path: PurePath) -> str | None:
        """What an entry is that is not a regular file, in words; None for a regular file, or none."""

    def lock_holder(self, storage: PurePath, control_file: PurePath) -> int | None:
        """See `directory_lock.lock_holder`."""

    def open(self, path: PurePath, size: int | None = None) -> OpenSource:
        """Open a file for reading.  `size`: its size if that is known already, which saves a request to an object store.

        Raises FileNotFoundError, DiskReadError; for an object whose size is given, only when it is read.
        """

    def read_range(self, path: PurePath, offset: int, length: int) -> bytes:
        """Up to `length` bytes from `offset`; fewer only at the end.  Raises DiskReadError, FileNotFoundError."""


class ObjectAccess(ABC):
    """Base of the access to object stores and backups: there are no links, no special files and no locks."""

    @abstractmethod
    def open(self, path: PurePath, size: int | None = None) -> OpenSource:
        """See `Access`."""

    def link(self, path: PurePath) -> bool:
        """Always False."""
        return False

    def special(self, path: PurePath) -> str | None:
        """Always None."""
        return None

    def lock_holder(self, storage: PurePath, control_file: PurePath) -> int | None:
        """Always None."""
        return None

    def read_range(self, path: PurePath, offset: int, length: int) -> bytes:
        """By opening the object, which asks for its size first."""
        with self.open(path) as source:
            data = bytearray(max(0, min(length, source.size() - offset)))
            return bytes(data[: source.read_into(offset, memoryview(data))]) if data else b""
