"""What can be asked of a place that is read: see `engine.log.places` for which there are."""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from pathlib import PurePath
from types import TracebackType
from typing import Protocol, Self

from waltzctl.engine.durable.regular import FileNumbers
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
    """What stands under a name.  SPECIAL: neither of the others, for instance a FIFO."""

    FILE = "file"
    DIRECTORY = "directory"
    SPECIAL = "special"


class Access(Protocol):
    """How places of one sort are looked at and read.  All that the read-only corridor does to a disk goes through here."""

    def kind(self, path: PurePath) -> PlaceKind | None:
        """What stands there, links followed; None for nothing.  Raises DiskReadError for a URL."""

    def named(self, path: PurePath) -> bool:
        """Whether the name is there, whatever it leads to.  Raises DiskReadError for a URL."""

    def numbers(self, path: PurePath) -> FileNumbers | None:
        """Of a regular file; None when there is none, or no access."""

    def names(self, path: PurePath) -> list[str]:
        """The names in a directory, in order.

        Raises FileNotFoundError, NotADirectoryError, and DiskReadError or OSError for the rest.
        """

    def listing(self, path: PurePath) -> dict[str, FileNumbers | None]:
        """As `names`, each with the numbers of the file; None for what is no regular file."""

    def kinds(self, path: PurePath) -> dict[str, PlaceKind | None]:
        """As `names`, each with what stands there, links followed; None for a link that leads nowhere."""

    def modified_ns(self, path: PurePath) -> int | None:
        """When names in a directory changed last; None where that is not known."""

    def identity(self, path: PurePath) -> str:
        """What two ways to the same place have in common."""

    def absolute(self, path: PurePath) -> PurePath:
        """Independent of the current directory."""

    def link(self, path: PurePath) -> bool:
        """Whether the name is a link to another place."""

    def special(self, path: PurePath) -> str | None:
        """What stands under a name that is neither free nor a regular file, in words; None for these two."""

    def lock_holder(self, storage: PurePath, control_file: PurePath) -> int | None:
        """See `directory_lock.lock_holder`."""

    def open(self, path: PurePath, size: int | None = None) -> OpenSource:
        """The bytes of a file.  `size`: as a look a moment ago told, so that an object need not be asked for it again.

        Raises FileNotFoundError, DiskReadError; for an object whose size is given, only when it is read.
        """

    def read_range(self, path: PurePath, offset: int, length: int) -> bytes:
        """Up to `length` bytes from `offset`; fewer only at the end.  Raises DiskReadError, FileNotFoundError."""


class ObjectAccess(ABC):
    """What objects behind URLs and files of backups have in common: no links, no special files, and nobody holds a lock."""

    @abstractmethod
    def open(self, path: PurePath, size: int | None = None) -> OpenSource:
        """See `Access`."""

    def link(self, path: PurePath) -> bool:
        """Nothing is."""
        return False

    def special(self, path: PurePath) -> str | None:
        """Nothing is."""
        return None

    def lock_holder(self, storage: PurePath, control_file: PurePath) -> int | None:
        """Nobody."""
        return None

    def read_range(self, path: PurePath, offset: int, length: int) -> bytes:
        """Behind a look at the object."""
        with self.open(path) as source:
            data = bytearray(max(0, min(length, source.size() - offset)))
            return bytes(data[: source.read_into(offset, memoryview(data))]) if data else b""
