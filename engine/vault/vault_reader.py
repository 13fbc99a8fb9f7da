"""Reading a vault without opening it for writing: nothing is locked or changed, also while another process writes a backup.

Damage to the log or to a page affects only what was stored there; every error names the page.
"""

from __future__ import annotations

import contextlib
import threading
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from waltzctl.engine.durable.file_status import file_numbers
from waltzctl.engine.errors import DamageError, InvalidRequestError, NotWaltzError
from waltzctl.engine.findings import Code, Finding, Severity, make_finding
from waltzctl.engine.pages.page_data import page_finding, read_checked
from waltzctl.engine.pages.page_directory import PageDirectory
from waltzctl.engine.pages.page_options import PageOptions
from waltzctl.engine.pages.page_storage import PageStorage
from waltzctl.engine.vault.sealing import Sealer, head_digest, open_keys, section_digest
from waltzctl.engine.vault.vault_pages import VaultPages
from waltzctl.formats.pages.names import BLOB_DIRECTORY, WAL_DIRECTORY, blob_name
from waltzctl.formats.pages.write_batch import PageEntry, PageId
from waltzctl.formats.vault import (
    SECTION_COPIES,
    BackedPartition,
    BackupHead,
    Namespace,
    Piece,
    Section,
    VaultConfiguration,
    VaultFormatError,
)

LATEST = "latest"
VAULT_OPTIONS = PageOptions(records_twice=True)
"""Options of a vault's page store.  Its log is written twice: it is the only record of which pages belong to which backup."""
CACHED_BYTES = 64 << 20
"""Size limit of the cache of pieces, in bytes."""


_BEHIND_DIGITS = "g"
"""What sorts behind every digit of an id."""


class ForgottenBackupError(InvalidRequestError):
    """A backup that existed when the vault was read has been forgotten meanwhile."""


@dataclass(frozen=True, slots=True)
class UnreadableBackup:
    """A backup of which neither copy of the head can be read."""

    id: int
    finding: Finding


def check_vault(path: Path) -> None:
    """Raises NotWaltzError for a path without a page store, which a vault is; whether it is one its configuration tells."""
    if not (path / WAL_DIRECTORY).is_dir():
        raise NotWaltzError(f"{path}: no backup vault", advice="make one with waltzctl backup init")


class VaultReader:
    """The backups of a vault as of when it was read, also if their pages are moved later.  Thread-safe."""

    def __init__(self, pages: VaultPages, password: bytes | None) -> None:
        """Raises as `open`."""
        self.path = pages.path
        self.findings = pages.findings
        self._pages = pages
        configuration = self._configuration()
        self.sealer = Sealer(configuration, open_keys(configuration, password, self.path))
        self._sections: dict[tuple[int, int], Section] = {}
        self._cache: OrderedDict[int, bytes] = OrderedDict()
        self._cached = 0
        self._lock = threading.Lock()

    @classmethod
    def open(cls, path: Path, password: bytes | None = None) -> VaultReader:
        """Read a vault.

        Raises NotWaltzError, InvalidRequestError without the password, WrongPasswordError, DamageError, DiskReadError.
        """
        check_vault(path)
        return cls(VaultPages.look_at(path), password)

    @classmethod
    def over(cls, store: PageStorage, password: bytes | None = None) -> VaultReader:
        """A reader of a store that this process has open: its log is not read again.  Raises as `open`.

        It always shows the current backups.
        """
        return cls(VaultPages.over(store), password)

    def _configuration(self) -> VaultConfiguration:
        """The configuration, from the first readable of its pages.

        Raises NotWaltzError if there is none, DamageError, DiskReadError.
        """
        failed: DamageError | None = None
        for page in self.pages(Namespace.CONFIGURATION):
            try:
                return VaultConfiguration.decode(self.page(Namespace.CONFIGURATION, page))
            except VaultFormatError as error:
                failed = failed or DamageError(f"{self.path}: {error}")
            except DamageError as error:
                failed = failed or error
        if failed is not None:
            raise failed
        if self.findings:
            raise DamageError(f"{self.path}: the vault's configuration is lost with its log", self.findings)
        if any(True for kept in Namespace for _ in self.pages(kept)):
            raise DamageError(
                f"{self.path}: the vault's configuration is lost, and pages of backups are there",
                advice="was its log recovered? waltzctl undo takes that back",
            )
        raise NotWaltzError(
            f"{self.path}: a page store, and no backup vault", advice="make one with waltzctl backup init"
        )

    # ---- pages -------------------------------------------------------------------------------------------------------

    def entry(self, namespace: Namespace, page: int) -> PageEntry | None:
        """Where a page is stored; None if it does not exist."""
        return self.entries()(namespace, page)

    def entries(self) -> Callable[[Namespace, int], PageEntry | None]:
        """`entry`, bound to the current directory: its results do not change if the log is read again."""
        directory = self._pages.directory

        def entry(namespace: Namespace, page: int) -> PageEntry | None:
            found = directory.locate(PageId(namespace, page))
            return None if found is None else found.entry

        return entry

    def pages(self, namespace: Namespace) -> Iterator[int]:
        """Ids of the existing pages of a namespace, ascending."""
        directory = self._pages.directory
        for page in directory.page_ids(namespace):
            if directory.locate(page) is not None:
                yield page.id

    def page(self, namespace: Namespace, page: int) -> bytes:
        """The bytes of a page as they are stored (sealed).  Raises DamageError, DiskReadError."""
        where = PageId(namespace, page)

        def read(directory: PageDirectory) -> bytes:
            found, entry = self._entry(directory, where)
            data, fault = read_checked(self.path, found, entry)
            if fault is not None:
                raise _damaged(fault)
            return data

        return self._pages.settled(where, read)

    def _entry(self, directory: PageDirectory, where: PageId) -> tuple[PageId, PageEntry]:
        """Raises DamageError if the log does not have the page."""
        found = directory.locate(where)
        if found is None or found.entry is None:
            said = f"page {where}: the log does not know it"
            raise _damaged(make_finding(Code.PAGE_MISSING, self.path, said, storage_directory=self.path))
        return found.page, found.entry

    def piece(self, head: BackupHead, section: BackedPartition, number: int, piece: Piece) -> bytes:
        """The content of a piece.  Raises ForgottenBackupError, DamageError, DiskReadError."""
        page = head.first_page + section.first_piece + number
        with self._lock:
            if (known := self._cache.get(page)) is not None:
                self._cache.move_to_end(page)
                return known
        with self._unless_forgotten(head.id):
            content = self.read_piece(page, piece)
        with self._lock:
            self._cached += 0 if page in self._cache else len(content)
            self._cache[page] = content
            while self._cached > CACHED_BYTES and len(self._cache) > 1:
                self._cached -= len(self._cache.popitem(last=False)[1])
        return content

    def read_piece(self, page: int, piece: Piece) -> bytes:
        """The content of a piece by its page, not from the cache.  Raises DamageError, DiskReadError."""
        content = self._unsealed(Namespace.DATA, page, piece.digest, check=True)
        if len(content) != piece.size:
            raise self._damage(Namespace.DATA, page, f"it holds {len(content)} bytes, and {piece.size} were written")
        return content

    def missing(self, page: int) -> Finding | None:
        """A finding if a page of `Namespace.DATA` does not exist or its file ends before it; otherwise None.

        The page is not read.
        """
        where = PageId(Namespace.DATA, page)

        def look(directory: PageDirectory) -> None:
            _, entry = self._entry(directory, where)
            path = self.path / BLOB_DIRECTORY / blob_name(entry.file_id)
            numbers = file_numbers(path)
            size = 0 if numbers is None else numbers.size
            if size < entry.offset + entry.size:
                raise _damaged(
                    page_finding(self.path, where, entry, entry.offset, entry.size, max(0, size - entry.offset))
                )

        try:
            self._pages.settled(where, look)
        except DamageError as error:
            return error.findings[0]
        return None

    def _unsealed(self, namespace: Namespace, page: int, digest: bytes, *, check: bool) -> bytes:
        data = self.page(namespace, page)
        try:
            return self.sealer.open(data, digest, check=check)
        except VaultFormatError as error:
            raise self._damage(namespace, page, str(error)) from None

    def _damage(self, namespace: Namespace, page: int, what: str) -> DamageError:
        entry = self.entry(namespace, page)
        path = self.path if entry is None else self.path / BLOB_DIRECTORY / blob_name(entry.file_id)
        finding = make_finding(
            Code.PAGE_CHECKSUM,
            path,
            f"page {PageId(namespace, page)}: {what}",
            storage_directory=self.path,
            offset=None if entry is None else entry.offset,
            length=None if entry is None else entry.size,
        )
        return _damaged(finding)

    # ---- backups -----------------------------------------------------------------------------------------------------

    def ids(self) -> list[int]:
        """Ids of all backups, including those whose heads cannot be read."""
        found = {one for name in (Namespace.BACKUPS, Namespace.BACKUP_COPIES) for one in self.pages(name)}
        return sorted(found)

    def head(self, backup: int) -> BackupHead:
        """The head of a backup.  Raises ForgottenBackupError, DamageError if neither copy can be read, DiskReadError."""
        with self._unless_forgotten(backup):
            return self._head(backup)

    def _head(self, backup: int) -> BackupHead:
        failed: DamageError | None = None
        for namespace in (Namespace.BACKUPS, Namespace.BACKUP_COPIES):
            try:
                content = self._unsealed(namespace, backup, head_digest(backup), check=False)
                head = BackupHead.decode(content)
                if head.id != backup:
                    raise self._damage(namespace, backup, f"it is the head of backup {head.name}")
            except VaultFormatError as error:
                failed = failed or self._damage(namespace, backup, str(error))
            except DamageError as error:
                failed = failed or error
            else:
                return head
        assert failed is not None
        raise failed

    def forgotten(self, backup: int) -> bool:
        """Whether a backup no longer exists, as far as this reader knows.

        The reader reads the log again only after finding a damaged page.
        """
        return all(self.entry(name, backup) is None for name in (Namespace.BACKUPS, Namespace.BACKUP_COPIES))

    def check_remembered(self, backup: int) -> None:
        """Raise ForgottenBackupError if a backup is `forgotten`."""
        if self.forgotten(backup):
            raise ForgottenBackupError(
                f"{self.path}: backup {backup:016x} was forgotten meanwhile",
                advice="waltzctl backup list shows those that are there",
            )

    @contextlib.contextmanager
    def _unless_forgotten(self, backup: int) -> Iterator[None]:
        """Replace DamageError by ForgottenBackupError if the backup was forgotten meanwhile: then nothing is damaged."""
        try:
            yield
        except DamageError:
            self.check_remembered(backup)
            raise

    @property
    def damage(self) -> tuple[Finding, ...]:
        """Findings of lost log records, which may have been those of backups."""
        return tuple(one for one in self.findings if one.severity is Severity.DAMAGE)

    def heads(self) -> Iterator[BackupHead | UnreadableBackup]:
        """All backups in the order in which they were made; then the unreadable ones.  Forgotten ones are left out.

        The order is that of `first_page`, not of the clock: page ids are never reused.
        """
        heads: list[BackupHead] = []
        unreadable: list[UnreadableBackup] = []
        for one in self.ids():
            try:
                heads.append(self.head(one))
            except ForgottenBackupError:
                continue
            except DamageError as error:
                unreadable.append(UnreadableBackup(one, error.findings[0]))
        yield from sorted(heads, key=lambda head: head.first_page)
        yield from unreadable

    def find(self, text: str, ids: Sequence[int] | None = None) -> BackupHead:
        """The backup with an id that begins with `text`, or the ``latest``.  `ids`: as `ids()`, for who looks for many.

        Raises InvalidRequestError if no backup matches, several do, or it has been forgotten meanwhile; DamageError if it cannot
        be read or may be lost.  ``latest`` never means an earlier backup because a later one cannot be read.
        """
        if text == LATEST:
            return self._latest()
        ids = self.ids() if ids is None else ids
        begin, end = (bisect_left(ids, text.lower() + last, key=_id_text) for last in ("", _BEHIND_DIGITS))
        named = ids[begin:end] if text else ()
        if text and not named and self.damage:
            raise DamageError(
                f"{self.path}: {text!r}: no backup that its log still tells of has an id that begins so", self.damage
            )
        if len(named) != 1:
            said = "no backup has an id that begins so" if not named else f"{len(named)} backups have ids that begin so"
            raise InvalidRequestError(f"{self.path}: {text!r}: {said}", advice="waltzctl backup list shows the ids")
        return self.head(named[0])

    def _latest(self) -> BackupHead:
        """Raises as `find`."""
        found = [*self.heads()]
        unreadable = [one for one in found if isinstance(one, UnreadableBackup)]
        heads = [one for one in found if isinstance(one, BackupHead)]
        if not heads and not found:
            raise InvalidRequestError(f"{self.path}: no backup is in the vault", advice="waltzctl backup create")
        if not heads:
            many = f"of {len(found)} backups in the vault no head can be read"
            raise DamageError(
                f"{self.path}: {LATEST!r}: {many}",
                [one.finding for one in unreadable],
                advice="waltzctl backup list shows their ids",
            )
        latest = heads[-1]
        taken = f"the latest that can be read is {latest.name}: restore it by its id if that will do"
        if unreadable and self._has_later_pages(latest):
            later = f"{unreadable[0].id:016x}" if len(unreadable) == 1 else f"one of {len(unreadable)}"
            raise DamageError(
                f"{self.path}: {LATEST!r}: backup {later}, which was written later, cannot be read",
                [one.finding for one in unreadable],
                advice=taken,
            )
        if self.damage:
            raise DamageError(
                f"{self.path}: {LATEST!r}: records of the vault's log are lost, and a later backup may be with them",
                self.damage,
                advice=taken,
            )
        return latest

    def _has_later_pages(self, head: BackupHead) -> bool:
        """Whether pages of a later backup exist: page ids stay the same when pages are repaired, moved or salvaged."""
        return any(page >= head.first_page + head.num_pages for page in self.pages(Namespace.DATA))

    def section(self, head: BackupHead, one: BackedPartition, *, keep: bool = True) -> Section:
        """The section of a partition: its files and pieces.  `keep`: cache it.

        Raises ForgottenBackupError, DamageError if neither copy can be read, DiskReadError.
        """
        key = head.id, one.section
        if (known := self._sections.get(key)) is None:
            with self._unless_forgotten(head.id):
                known = self._section(head, one)
            if keep:
                self._sections[key] = known
        return known

    def drop_sections(self, backup: int) -> None:
        """Drop the cached sections of a backup that is not read any more."""
        for key in [one for one in self._sections.copy() if one[0] == backup]:
            self._sections.pop(key, None)

    def _section(self, head: BackupHead, one: BackedPartition) -> Section:
        failed: DamageError | None = None
        for copy in range(SECTION_COPIES):
            page = head.first_page + one.section + copy
            try:
                section = Section.decode(
                    self._unsealed(Namespace.DATA, page, section_digest(head.id, one.section), check=False)
                )
                if len(section.pieces) != one.pieces:
                    raise self._damage(Namespace.DATA, page, f"{len(section.pieces)} pieces of {one.pieces}")
            except VaultFormatError as error:
                failed = failed or self._damage(Namespace.DATA, page, str(error))
            except DamageError as error:
                failed = failed or error
            else:
                return section
        assert failed is not None
        raise failed


def _id_text(backup: int) -> str:
    """The whole id of a backup as users see it; as texts, ids have the same order as their numbers."""
    return f"{backup:016x}"


def _damaged(finding: Finding) -> DamageError:
    return DamageError(f"{finding.path}: {finding.message}", [finding])
