"""Writing a backup to a vault, whatever its source: pieces become pages or references, committed as one batch.

Page data is written ahead of the commit, so that memory holds only a few pieces, whatever the size of the source.  After a crash
no page names that data, and its space is reused.
"""

from __future__ import annotations

import contextlib
import os
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from waltzctl.engine.backup.section_plan import PreviousSection, SectionPlan
from waltzctl.engine.errors import DamageError, DiskError, WaltzError
from waltzctl.engine.pages.blob_stats import BlobSpan
from waltzctl.engine.pages.page_batch import UNWRITTEN
from waltzctl.engine.pages.page_storage import PageStorage
from waltzctl.engine.vault.sealing import head_digest, section_digest
from waltzctl.engine.vault.vault_reader import VaultReader
from waltzctl.formats.checksums import crc32c
from waltzctl.formats.pages.write_batch import Edit, EditType, PageEntry, PageId
from waltzctl.formats.vault import (
    BESIDE,
    SECTION_COPIES,
    BackedPartition,
    BackupHead,
    Namespace,
    Piece,
    Section,
)

WRITTEN_AT_ONCE = 16 << 20
"""Bytes of sealed pages per write and flush."""


@dataclass(frozen=True, slots=True)
class ReadPiece:
    """A piece that was read.  `sealed`: its sealed page, None if the vault already has the piece."""

    piece: Piece
    sealed: bytes | None


class WriterState(NamedTuple):
    """The state of a writer, for `BackupWriter.return_to`."""

    next_page: int
    pages: int
    new_pages: int
    new_bytes: int
    damaged: int


class BackupWriter:
    """Writes a backup of `source` to an open vault.  `read` may be called from several threads, the other methods from one."""

    def __init__(self, store: PageStorage, reader: VaultReader, source: str, now_ms: Callable[[], int]) -> None:
        self._store, self.reader = store, reader
        self.sealer = reader.sealer
        self.source = source
        self._created, self._began = now_ms(), time.monotonic()
        self.heads = tuple(one for one in reader.heads() if isinstance(one, BackupHead))
        self._page_by_digest = self._stored_pieces()
        self._id = self._new_id()
        self._first_page = self._next_page = store.max_id(namespace=Namespace.DATA) + 1
        self._puts: list[Edit] = []
        self._refs: list[Edit] = []
        self._unplaced: list[tuple[PageId, bytes]] = []
        self._unplaced_size = 0
        self._pages = self._new_pages = self._new_bytes = 0
        self._damaged = 0

    def _new_id(self) -> int:
        there = set(self.reader.ids())
        while True:
            made = int.from_bytes(os.urandom(8), "big")
            if made not in there:
                return made

    def _stored_pieces(self) -> dict[bytes, int]:
        """Digests of the pieces in the vault, each with one of its pages.

        A section is read only for data that no earlier one has: most sections of a backup are those of the one before.
        """
        known: dict[bytes, int] = {}
        places: set[tuple[int, int]] = set()
        entry = self.reader.entries()
        for head in self.heads:
            for one in head.sections:
                first = head.first_page + one.first_piece
                entries = (entry(Namespace.DATA, first + number) for number in range(one.pieces))
                here = {(found.file_id, found.offset) for found in entries if found is not None}
                if here <= places:
                    continue
                with contextlib.suppress(DamageError):  # the pieces of a damaged section are stored again
                    section = self.reader.section(head, one, keep=False)  # memory could not hold those of all backups
                    for number, piece in enumerate(section.pieces):
                        if piece.digest not in known and self._page_exists(first + number):
                            known[piece.digest] = first + number
                    places |= here
        return known

    def _page_exists(self, page: int) -> bool:
        """Whether the log has a page; a recovery may have dropped it while the backup that needs it still exists."""
        return self.reader.entry(Namespace.DATA, page) is not None

    @property
    def created_ms(self) -> int:
        """When the backup began, in milliseconds since 1970."""
        return self._created

    @property
    def previous_head(self) -> BackupHead | None:
        """The newest backup of the same source."""
        same = [one for one in self.heads if one.source == self.source]
        return max(same, key=lambda one: one.first_page, default=None)

    def previous(self) -> dict[int | None, PreviousSection]:
        """The sections of the newest backup of the same source, by partition; None is the storage directory's own.

        Damaged sections, and those that lack a piece, are left out.
        """
        head = self.previous_head
        found: dict[int | None, PreviousSection] = {}
        for one in () if head is None else head.sections:
            assert head is not None
            with contextlib.suppress(DamageError):  # the source is read instead
                section = self.reader.section(head, one)
                first = head.first_page + one.first_piece
                if all(self._page_exists(first + number) for number in range(len(section.pieces))):
                    found[None if one.partition == BESIDE else one.partition] = PreviousSection(
                        section, first, head.created_ms
                    )
        return found

    # ---- pieces ------------------------------------------------------------------------------------------------------

    def read(self, content: bytes | bytearray, first_transaction_id: int = -1, records: int = 0) -> ReadPiece:
        """Digest and seal content, unless the vault has it; the result is for `take`."""
        digest = self.sealer.digest(content)
        plain = Piece(digest, len(content), 0, first_transaction_id, records)
        if digest in self._page_by_digest:
            return ReadPiece(plain, None)
        sealed = self.sealer.seal(content, digest)
        return ReadPiece(replace(plain, stored=len(sealed)), sealed)

    def take(self, read: ReadPiece, page: int | None = None) -> Piece:
        """Add the next piece to the backup.  `page`: a page of the vault that is known to hold it.  Raises DiskWriteError."""
        own = self._next_page
        self._next_page += 1
        self._pages += 1
        origin = page if page is not None else self._page_by_digest.get(read.piece.digest)
        if origin is not None:
            self._refs.append(
                Edit(EditType.REF, PageId(Namespace.DATA, own), UNWRITTEN, origin=PageId(Namespace.DATA, origin))
            )
        else:
            assert read.sealed is not None
            self._page_by_digest[read.piece.digest] = own
            self._new_pages += 1
            self._put(read.sealed, PageId(Namespace.DATA, own))
        return read.piece

    def write_section(self, number: int, plan: SectionPlan, taken: Sequence[Piece]) -> BackedPartition:
        """Write two copies of a section, after its pieces.

        Raises VaultFormatError for a section that could not be decoded again, DiskWriteError.
        """
        section = Section(plan.directories, plan.files, tuple(taken))
        section.check()  # better no backup than an unreadable one
        place = self._next_page - self._first_page
        sealed = self.sealer.seal(section.encode(), section_digest(self._id, place))
        self._put(sealed, *(PageId(Namespace.DATA, self._next_page + copy) for copy in range(SECTION_COPIES)))
        self._next_page += SECTION_COPIES
        self._damaged += plan.damaged
        return BackedPartition(
            number, plan.first, plan.last, plan.size, place, place - len(taken), len(taken)
        )  # fmt: skip

    # ---- rollback and commit -----------------------------------------------------------------------------------------

    def state(self) -> WriterState:
        """The current state, for `return_to`."""
        return WriterState(self._next_page, self._pages, self._new_pages, self._new_bytes, self._damaged)

    def return_to(self, state: WriterState) -> None:
        """Drop the pieces taken since `state`, of a partition that changed meanwhile; their data is freed."""
        self._next_page, self._pages, self._new_pages, self._new_bytes, self._damaged = state
        self._store.give_back(_spans(one for one in self._puts if one.page.id >= self._next_page))
        self._puts, self._refs = (
            [one for one in edits if one.page.id < self._next_page] for edits in (self._puts, self._refs)
        )
        self._unplaced = [one for one in self._unplaced if one[0].id < self._next_page]
        self._unplaced_size = sum(len(data) for _, data in self._unplaced)
        self._page_by_digest = {digest: page for digest, page in self._page_by_digest.items() if page < self._next_page}

    def give_up(self) -> None:
        """Drop the backup: free its data, and truncate the files that it made grow."""
        self._store.give_back(_spans(self._puts))
        with contextlib.suppress(DiskError):  # the error that made the backup fail is the one to report
            self._store.blobs.cut_tails()

    def commit(
        self,
        partitions: Sequence[BackedPartition],
        storage: BackedPartition,
        *,
        tag: str | None,
        cluster_key: uuid.UUID | None,
        num_partitions: int | None,
        live: bool,
        partial: bool,
        lacking: int = 0,
        unread: tuple[int, ...] = (),
    ) -> BackupHead:
        """Write the head, and commit the backup as one batch.

        `lacking`: losses of the source.  `unread`: partitions that could not be read.  Raises DiskWriteError.
        """
        head = BackupHead(
            self._id, self._created, self.source, tag, cluster_key, num_partitions, tuple(partitions), storage,
            self._first_page, self._next_page - self._first_page, storage.size + sum(one.size for one in partitions),
            self._pages, self._new_pages, self._new_bytes, round(time.monotonic() - self._began, 3), live,
            self._damaged + lacking + len(unread), partial, unread,
        )  # fmt: skip
        sealed = self.sealer.seal(head.encode(), head_digest(self._id))
        self._put(sealed, *(PageId(namespace, self._id) for namespace in (Namespace.BACKUPS, Namespace.BACKUP_COPIES)))
        self._place()
        # after an interruption from here on, `give_up` must free nothing: the log may name the data
        puts, self._puts = self._puts, []
        try:
            self._store.commit([*puts, *self._refs])  # references come after their targets
        except WaltzError:
            self._puts = puts
            raise
        return head

    # ---- pages -------------------------------------------------------------------------------------------------------

    def _put(self, sealed: bytes, *pages: PageId) -> None:
        """Queue a page, or copies of it: only copies that are placed together are stored apart."""
        self._unplaced += [(page, sealed) for page in pages]
        self._unplaced_size += len(sealed) * len(pages)
        self._new_bytes += len(sealed) * len(pages)
        if self._unplaced_size >= WRITTEN_AT_ONCE:
            self._place()

    def _place(self) -> None:
        spans = self._store.place([data for _, data in self._unplaced])
        for (page, data), span in zip(self._unplaced, spans, strict=True):
            entry = PageEntry(span.file_id, span.offset, len(data), crc32c(data), 0, ())
            self._puts.append(Edit(EditType.PUT, page, UNWRITTEN, entry))
        self._unplaced, self._unplaced_size = [], 0


def _spans(puts: Iterable[Edit]) -> list[BlobSpan]:
    """Where the data of placed pages is stored."""
    return [BlobSpan(entry.file_id, entry.offset, entry.size) for one in puts if (entry := one.entry) is not None]
