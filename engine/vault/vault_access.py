"""Backups as places: what reads storage directories reads ``vault:VAULT::ID`` in the same way.

A backup stays as it was when it was first asked for, and so does which one ``latest`` is.  A vault is looked at once more for a
backup that nobody saw in it: what is known of it grows with its log, and not with the backups that are read.  The password of an
encrypted one is the first line of the file that WALTZCTL_VAULT_PASSWORD_FILE names.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from collections.abc import Iterator
from pathlib import Path, PurePath
from types import TracebackType
from typing import Self

from waltzctl.engine.durable.regular import FileNumbers
from waltzctl.engine.errors import DamageError, DiskReadError, InvalidRequestError
from waltzctl.engine.log.access import ObjectAccess, OpenSource, PlaceKind
from waltzctl.engine.net.small_file import read_password_or_key
from waltzctl.engine.vault.backup_files import BackedSource, BackupFiles
from waltzctl.engine.vault.vault_path import SCHEME, VaultPath
from waltzctl.engine.vault.vault_reader import LATEST, VaultReader

PASSWORD_VARIABLE = "WALTZCTL_VAULT_PASSWORD_FILE"


def password_from_environment() -> bytes | None:
    """The password that the environment names a file of; None where it names none.  Raises InvalidRequestError, DiskReadError."""
    named = os.environ.get(PASSWORD_VARIABLE)
    return read_password_or_key(Path(named), PASSWORD_VARIABLE) if named else None


class VaultAccess(ObjectAccess):
    """Files of backups; see `Access`.  There are no links and no special files among them, and nobody holds a lock."""

    def __init__(self) -> None:
        self._opened: dict[tuple[str, tuple[int, int], str, int], BackupFiles] = {}
        self._readers: dict[tuple[str, tuple[int, int], int], VaultReader] = {}
        self._passwords: dict[str, bytes] = {}
        self._opening = threading.Lock()

    def unlock(self, vault: Path, password: bytes | None) -> None:
        """Open a vault with this password from now on; with None, as before, with that of the environment."""
        with self._opening:
            if password is not None:
                self._passwords[os.path.realpath(vault)] = password

    def files(self, path: PurePath) -> BackupFiles:
        """The backup that a path leads into.  Raises what `VaultReader.open` and `VaultReader.find` raise."""
        at = _vault(path)
        vault = os.path.realpath(at.vault)
        key = vault, _made(vault), at.backup, os.getpid()  # descriptors and locks do not survive a fork
        with self._opening:
            found = self._opened.get(key)
            if found is None:
                found = self._opened[key] = self._look(at, vault, key[1])
            return found

    def _look(self, at: VaultPath, vault: str, made: tuple[int, int]) -> BackupFiles:
        key = vault, made, os.getpid()
        known = self._readers.get(key)
        if known is not None and at.backup != LATEST:
            with contextlib.suppress(InvalidRequestError, DamageError):  # it may have been made, or mended, since
                return BackupFiles(known, known.find(at.backup))
        password = self._passwords.get(vault)
        reader = VaultReader.open(at.vault, password_from_environment() if password is None else password)
        found = BackupFiles(reader, reader.find(at.backup))
        self._readers[key] = reader
        return found

    def kind(self, path: PurePath) -> PlaceKind | None:
        """A file or a directory of the backup."""
        with _told_as_unreadable(path):
            files, inside = self.files(path), _vault(path).inside
            if files.is_directory(inside):
                return PlaceKind.DIRECTORY
            return None if files.numbers(inside) is None else PlaceKind.FILE

    def named(self, path: PurePath) -> bool:
        """Whether there is anything."""
        return self.kind(path) is not None

    def numbers(self, path: PurePath) -> FileNumbers | None:
        """As they were when the backup was made."""
        with contextlib.suppress(DiskReadError), _told_as_unreadable(path):
            return self.files(path).numbers(_vault(path).inside)
        return None

    def names(self, path: PurePath) -> list[str]:
        """Raises FileNotFoundError, NotADirectoryError, DiskReadError."""
        with _told_as_unreadable(path):
            return self.files(path).names(_vault(path).inside)

    def listing(self, path: PurePath) -> dict[str, FileNumbers | None]:
        """Raises as `names`."""
        return {name: self.numbers(path / name) for name in self.names(path)}

    def kinds(self, path: PurePath) -> dict[str, PlaceKind | None]:
        """Raises as `names`."""
        return {name: self.kind(path / name) for name in self.names(path)}

    def modified_ns(self, path: PurePath) -> int | None:
        """A backup never changes."""
        return self.files(path).head.created_ms * 1_000_000

    def identity(self, path: PurePath) -> str:
        """The vault, the backup's id and the name in it."""
        at = _vault(path)
        return f"{SCHEME}{os.path.realpath(at.vault)}::{self.files(path).head.name}/{at.inside}"

    def absolute(self, path: PurePath) -> PurePath:
        """With the vault's absolute path."""
        at = _vault(path)
        below = f"/{at.inside}" if at.inside else ""
        return VaultPath(f"{SCHEME}{os.path.abspath(at.vault)}::{at.backup}{below}")

    def open(self, path: PurePath, size: int | None = None) -> OpenSource:
        """A file of the backup."""
        with _told_as_unreadable(path):
            return _Source(path, BackedSource(self.files(path), _vault(path).inside, str(path)))


class _Source:
    """A file of a backup, whose damaged pages are told as places of the file that cannot be read."""

    def __init__(self, path: PurePath, source: BackedSource) -> None:
        self.name = source.name
        self._path, self._source = path, source

    def size(self) -> int:
        """Bytes."""
        return self._source.size()

    def read_into(self, offset: int, buffer: memoryview) -> int:
        """See `ByteSource.read_into`."""
        with _told_as_unreadable(self._path, offset):
            return self._source.read_into(offset, buffer)

    def close(self) -> None:
        """Nothing to let go of."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _made(vault: str) -> tuple[int, int]:
    """What tells a vault from another one that is made in its place; nothing where there is none."""
    try:
        status = os.stat(vault)
    except OSError:  # whoever opens it says what is wrong
        return 0, 0
    return status.st_dev, status.st_ino


@contextlib.contextmanager
def _told_as_unreadable(path: PurePath, offset: int | None = None) -> Iterator[None]:
    """What is damaged in the vault cannot be read of the file.  Raises DiskReadError."""
    try:
        yield
    except DamageError as error:
        raise DiskReadError(path, offset, OSError(errno.EIO, error.message)) from error


def _vault(path: PurePath) -> VaultPath:
    assert isinstance(path, VaultPath)
    return path


VAULTS = VaultAccess()
"""All that this process looked into."""
