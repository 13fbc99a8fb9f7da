"""Backups as an `Access`: code that reads storage directories reads ``vault:VAULT::ID`` in the same way.

Caching: a backup stays as it was on first access, and ``latest`` stays the same backup.  The vault's log is read again if a
backup is asked for that is not among the known ones; memory therefore grows with the log, not with the number of backups read.

Password of an encrypted vault: the first line of the file named by the environment variable WALTZCTL_VAULT_PASSWORD_FILE.
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

from waltzctl.engine.durable.file_status import FileNumbers
from waltzctl.engine.errors import DamageError, DiskReadError, InvalidRequestError
from waltzctl.engine.log.access import ObjectAccess, OpenSource, PlaceKind
from waltzctl.engine.net.small_file import read_password_or_key
from waltzctl.engine.vault.backup_files import BackedSource, BackupFiles
from waltzctl.engine.vault.vault_path import SCHEME, VaultPath
from waltzctl.engine.vault.vault_reader import LATEST, VaultReader

PASSWORD_VARIABLE = "WALTZCTL_VAULT_PASSWORD_FILE"


def password_from_environment() -> bytes | None:
    """The password in the file that the environment variable names; None if the variable is not set.

    Raises InvalidRequestError, DiskReadError.
    """
    named = os.environ.get(PASSWORD_VARIABLE)
    return read_password_or_key(Path(named), PASSWORD_VARIABLE) if named else None


class VaultAccess(ObjectAccess):
    """Files of backups; see `Access`.  A backup has no symbolic links or special files, and no process holds its lock."""

    def __init__(self) -> None:
        self._opened: dict[tuple[str, tuple[int, int], str, int], BackupFiles] = {}
        self._readers: dict[tuple[str, tuple[int, int], int], VaultReader] = {}
        self._passwords: dict[str, bytes] = {}
        self._opening = threading.Lock()

    def unlock(self, vault: Path, password: bytes | None) -> None:
        """Open a vault with this password from now on; None: keep the current one, or that of the environment."""
        with self._opening:
            if password is not None:
                self._passwords[os.path.realpath(vault)] = password

    def files(self, path: PurePath) -> BackupFiles:
        """The backup that a path points into.  Raises what `VaultReader.open` and `VaultReader.find` raise."""
        at = _as_vault_path(path)
        vault = os.path.realpath(at.vault)
        key = vault, _directory_identity(vault), at.backup, os.getpid()  # descriptors and locks do not survive a fork
        with self._opening:
            found = self._opened.get(key)
            if found is None:
                found = self._opened[key] = self._open_backup(at, vault, key[1])
            return found

    def _open_backup(self, at: VaultPath, vault: str, made: tuple[int, int]) -> BackupFiles:
        key = vault, made, os.getpid()
        known = self._readers.get(key)
        if known is not None and at.backup != LATEST:
            # made or repaired since the vault was read: read it again
            with contextlib.suppress(InvalidRequestError, DamageError):
                return BackupFiles(known, known.find(at.backup))
        password = self._passwords.get(vault)
        reader = VaultReader.open(at.vault, password_from_environment() if password is None else password)
        found = BackupFiles(reader, reader.find(at.backup))
        self._readers[key] = reader
        return found

    def kind(self, path: PurePath) -> PlaceKind | None:
        """Whether a path is a file or a directory of the backup; None if neither."""
        with _damage_as_read_error(path):
            files, inside = self.files(path), _as_vault_path(path).inside
            if files.is_directory(inside):
                return PlaceKind.DIRECTORY
            return None if files.numbers(inside) is None else PlaceKind.FILE

    def named(self, path: PurePath) -> bool:
        """Whether a file or directory exists at the path."""
        return self.kind(path) is not None

    def numbers(self, path: PurePath) -> FileNumbers | None:
        """Metadata of a file when the backup was made."""
        with contextlib.suppress(DiskReadError), _damage_as_read_error(path):
            return self.files(path).numbers(_as_vault_path(path).inside)
        return None

    def names(self, path: PurePath) -> list[str]:
        """Raises FileNotFoundError, NotADirectoryError, DiskReadError."""
        with _damage_as_read_error(path):
            return self.files(path).names(_as_vault_path(path).inside)

    def listing(self, path: PurePath) -> dict[str, FileNumbers | None]:
        """Raises as `names`."""
        return {name: self.numbers(path / name) for name in self.names(path)}

    def kinds(self, path: PurePath) -> dict[str, PlaceKind | None]:
        """Raises as `names`."""
        return {name: self.kind(path / name) for name in self.names(path)}

    def modified_ns(self, path: PurePath) -> int | None:
        """When the backup was made: it never changes."""
        return self.files(path).head.created_ms * 1_000_000

    def identity(self, path: PurePath) -> str:
        """The vault's real path, the backup's id, and the name inside of it."""
        at = _as_vault_path(path)
        return f"{SCHEME}{os.path.realpath(at.vault)}::{self.files(path).head.name}/{at.inside}"

    def absolute(self, path: PurePath) -> PurePath:
        """The path, with the vault's path absolute."""
        at = _as_vault_path(path)
        below = f"/{at.inside}" if at.inside else ""
        return VaultPath(f"{SCHEME}{os.path.abspath(at.vault)}::{at.backup}{below}")

    def open(self, path: PurePath, size: int | None = None) -> OpenSource:
        """A file of the backup."""
        with _damage_as_read_error(path):
            return _Source(path, BackedSource(self.files(path), _as_vault_path(path).inside, str(path)))


class _Source:
    """A file of a backup.  Damage in the vault is reported as a read error of the file."""

    def __init__(self, path: PurePath, source: BackedSource) -> None:
        self.name = source.name
        self._path, self._source = path, source

    def size(self) -> int:
        """Bytes."""
        return self._source.size()

    def read_into(self, offset: int, buffer: memoryview) -> int:
        """See `ByteSource.read_into`."""
        with _damage_as_read_error(self._path, offset):
            return self._source.read_into(offset, buffer)

    def close(self) -> None:
        """Does nothing: there is nothing to release."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _directory_identity(vault: str) -> tuple[int, int]:
    """Device and inode, to tell a vault from another one made at the same path; zeros if there is none."""
    try:
        status = os.stat(vault)
    except OSError:  # opening the vault reports the error
        return 0, 0
    return status.st_dev, status.st_ino


@contextlib.contextmanager
def _damage_as_read_error(path: PurePath, offset: int | None = None) -> Iterator[None]:
    """Turn DamageError of the vault into DiskReadError of the file."""
    try:
        yield
    except DamageError as error:
        raise DiskReadError(path, offset, OSError(errno.EIO, error.message)) from error


def _as_vault_path(path: PurePath) -> VaultPath:
    assert isinstance(path, VaultPath)
    return path


VAULTS = VaultAccess()
"""The vaults and backups that this process has opened."""
