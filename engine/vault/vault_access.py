"""Backups as an `Access`: code that reads storage directories reads ``vault:VAULT::ID`` in the same way.

Caching: a backup stays as it was on first access, and ``latest`` stays the same backup.  The vault's log is read again if a
backup is asked for that is not among the known ones; those that are open are then found by the newer log as well, so that one log
is held for each vault.  At most `MOST_BACKUPS` are open, those used last: a process may follow a vault for months.

Password of an encrypted vault: the first line of the file named by the environment variable WALTZCTL_VAULT_PASSWORD_FILE.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from collections import OrderedDict
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
MOST_BACKUPS = 32
"""Backups that are open at a time, in all vaults; one beyond is opened again when it is read again."""
_MOST_WORDS = 1024
"""Words for backups (``latest``, the beginning of an id) whose meaning is kept."""
_Vault = tuple[str, tuple[int, int], int]
"""A vault's real path, device and inode, and the process: descriptors and locks do not survive a fork."""


def password_from_environment() -> bytes | None:
    """The password in the file that the environment variable names; None if the variable is not set.

    Raises InvalidRequestError, DiskReadError.
    """
    named = os.environ.get(PASSWORD_VARIABLE)
    return read_password_or_key(Path(named), PASSWORD_VARIABLE) if named else None


class VaultAccess(ObjectAccess):
    """Files of backups; see `Access`.  A backup has no symbolic links or special files, and no process holds its lock."""

    def __init__(self) -> None:
        # each in the order in which it was used last
        self._opened: OrderedDict[tuple[_Vault, str], BackupFiles] = OrderedDict()
        self._meanings: OrderedDict[tuple[_Vault, str], str] = (
            OrderedDict()
        )  # ids, by words that name a backup otherwise
        self._readers: dict[_Vault, VaultReader] = {}  # of vaults with an open backup
        self._passwords: dict[str, bytes] = {}
        self._opening = threading.Lock()

    def unlock(self, vault: Path, password: bytes | None) -> None:
        """Open a vault with this password from now on; None: keep the current one, or that of the environment."""
        with self._opening:
            if password is not None:
                self._passwords[os.path.realpath(vault)] = password

    def close(self) -> None:
        """Forget what is open, and which backup ``latest`` is."""
        with self._opening:
            self._opened.clear()
            self._meanings.clear()
            self._readers.clear()

    def files(self, path: PurePath) -> BackupFiles:
        """The backup that a path points into.  Raises what `VaultReader.open` and `VaultReader.find` raise."""
        at = _as_vault_path(path)
        real = os.path.realpath(at.vault)
        vault = real, _directory_identity(real), os.getpid()
        key = vault, at.backup
        with self._opening:
            found = self._opened.get(key)
            if found is None:
                found = self._opened[key] = self._open_backup(at, vault)
                self._close_unused()
            else:
                self._opened.move_to_end(key)
            return found

    def _open_backup(self, at: VaultPath, vault: _Vault) -> BackupFiles:
        key = vault, at.backup
        named = self._meanings.get(key, at.backup)
        known = self._readers.get(vault)
        if known is not None and named != LATEST:
            # made or repaired since the vault was read: read it again
            with contextlib.suppress(InvalidRequestError, DamageError):
                return self._as_meant(key, BackupFiles(known, known.find(named)))
        password = self._passwords.get(vault[0])
        reader = VaultReader.open(at.vault, password_from_environment() if password is None else password)
        found = self._as_meant(key, BackupFiles(reader, reader.find(named)))
        for other, files in self._opened.items():
            if other[0] == vault and not reader.forgotten(files.head.id):  # else the earlier log may still lead to it
                self._opened[other] = BackupFiles(reader, files.head)
        self._readers[vault] = reader
        return found

    def _as_meant(self, key: tuple[_Vault, str], found: BackupFiles) -> BackupFiles:
        """Note which backup a word means from now on."""
        if key[1] != found.head.name:
            self._meanings[key] = found.head.name
            self._meanings.move_to_end(key)
            while len(self._meanings) > _MOST_WORDS:
                self._meanings.popitem(last=False)
        return found

    def _close_unused(self) -> None:
        while len(self._opened) > MOST_BACKUPS:
            closed = self._opened.popitem(last=False)[1]
            if not any(one.reader is closed.reader and one.head.id == closed.head.id for one in self._opened.values()):
                closed.reader.drop_sections(closed.head.id)
        there = {vault for vault, _ in self._opened}
        self._readers = {vault: reader for vault, reader in self._readers.items() if vault in there}

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
