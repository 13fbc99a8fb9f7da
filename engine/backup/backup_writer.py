"""What every backup on its way does, whatever its source: pieces become pages or references, and all of it one batch.

Data is written ahead of the batch as it comes, so that memory holds a few pieces whatever the size of the source; after a crash
that data belongs to nothing, and its room is used again.
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
"""Bytes of sealed pages that are written and flushed together."""


@dataclass(frozen=True, slots=True)
class ReadPiece:
    """A piece that was read; `sealed` is None where the vault has it."""

    piece: Piece
    sealed: bytes | None


class WriterState(NamedTuple):
    """How far a backup was at some moment."""

    next_page: int
    pages: int
    new_pages: int
    new_bytes: int
    damaged: int


class BackupWriter:
    """A backup of `source` on its way into an open vault.  `read` may be called from several threads, the rest from one."""

    def __init__(self, store: PageStorage, reader: VaultReader, source: str, now_ms: Callable[[], int]) -> None:
        self._store, self.reader = store, reader
        self.sealer = reader.sealer
        self.source = source
        self._created, self._began = now_ms(), time.monotonic()
        self.heads = tuple(one for one in reader.heads() if isinstance(one, BackupHead))
        self._known = self._kept_pieces()
        self._id = self._new_id()
        self._first_page = self._next = store.max_id(namespace=Namespace.DATA) + 1
        self._puts: list[Edit] = []
        self._refs: list[Edit] = []
        self._waiting: list[tuple[PageId, bytes]] = []
        self._waiting_size = 0
        self._pages = self._new_pages = self._new_bytes = 0
        self._damaged = 0

    def _new_id(self) -> int:
        there = set(self.reader.ids())
        while True:
            made = int.from_bytes(os.urandom(8), "big")
            if made not in there:
                return made

    def _kept_pieces(self) -> dict[bytes, int]:
        """Digests that the vault has, and a page of each."""
        known: dict[bytes, int] = {}
        for head in self.heads:
            for one in head.sections:
                first = head.first_page + one.first_piece
                with contextlib.suppress(DamageError):  # what it lists is kept once more
                    section = self.reader.section(head, one, keep=False)  # those of all backups are too many
                    for number, piece in enumerate(section.pieces):
                        if piece.digest not in known and self._is_there(first + number):
                            known[piece.digest] = first + number
        return known

    def _is_there(self, page: int) -> bool:
        """Whether the log knows a page; a recovery may have given it up, and the backup that it belongs to is there."""
        return self.reader.entry(Namespace.DATA, page) is not None

    @property
    def created_ms(self) -> int:
        """When the backup was begun, in milliseconds since 1970."""
        return self._created

    @property
    def previous_head(self) -> BackupHead | None:
        """The newest backup of the same source."""
        same = [one for one in self.heads if one.source == self.source]
        return max(same, key=lambda one: one.first_page, default=None)

    def previous(self) -> dict[int | None, PreviousSection]:
        """The sections of the newest backup of the same source, by partition.

        Those that are damaged are left out, and so are those of which a piece is not there.
        """
        head = self.previous_head
        found: dict[int | None, PreviousSection] = {}
        for one in () if head is None else head.sections:
            assert head is not None
            with contextlib.suppress(DamageError):  # it is read anew
                section = self.reader.section(head, one)
                first = head.first_page + one.first_piece
                if all(self._is_there(first + number) for number in range(len(section.pieces))):
                    found[None if one.partition == BESIDE else one.partition] = PreviousSection(
                        section, first, head.created_ms
                    )
        return found

    # ---- pieces ------------------------------------------------------------------------------------------------------

    def read(self, content: bytes | bytearray, first_transaction_id: int = -1, records: int = 0) -> ReadPiece:
        """Content made ready to be taken."""
        digest = self.sealer.digest(content)
        plain = Piece(digest, len(content), 0, first_transaction_id, records)
        if digest in self._known:
            return ReadPiece(plain, None)
        sealed = self.sealer.seal(content, digest)
        return ReadPiece(replace(plain, stored=len(sealed)), sealed)

    def take(self, read: ReadPiece, page: int | None = None) -> Piece:
        """The next piece; `page`: where the vault is known to have it.  Raises DiskWriteError."""
        own = self._next
        self._next += 1
        self._pages += 1
        origin = page if page is not None else self._known.get(read.piece.digest)
        if origin is not None:
            self._refs.append(
                Edit(EditType.REF, PageId(Namespace.DATA, own), UNWRITTEN, origin=PageId(Namespace.DATA, origin))
            )
        else:
            assert read.sealed is not None
            self._known[read.piece.digest] = own
            self._new_pages += 1
            self._put(read.sealed, PageId(Namespace.DATA, own))
        return read.piece

    def write_section(self, number: int, plan: SectionPlan, taken: Sequence[Piece]) -> BackedPartition:
        """The section behind its pieces, twice.  Raises VaultFormatError for one that could not be read, DiskWriteError."""
        section = Section(plan.directories, plan.files, tuple(taken))
        section.check()  # a backup that could not be read is none
        place = self._next - self._first_page
        sealed = self.sealer.seal(section.encode(), section_digest(self._id, place))
        self._put(sealed, *(PageId(Namespace.DATA, self._next + copy) for copy in range(SECTION_COPIES)))
        self._next += SECTION_COPIES
        self._damaged += plan.damaged
        return BackedPartition(
            number, plan.first, plan.last, plan.size, place, place - len(taken), len(taken)
        )  # fmt: skip

    # ---- back and forth ----------------------------------------------------------------------------------------------

    def state(self) -> WriterState:
        """For `return_to`."""
        return WriterState(self._next, self._pages, self._new_pages, self._new_bytes, self._damaged)

    def return_to(self, state: WriterState) -> None:
        """Forget the pieces of a partition that did not stand still; data that was placed for them is given back."""
        self._next, self._pages, self._new_pages, self._new_bytes, self._damaged = state
        self._store.give_back(_spans(one for one in self._puts if one.page.id >= self._next))
        self._puts, self._refs = (
            [one for one in edits if one.page.id < self._next] for edits in (self._puts, self._refs)
        )
        self._waiting = [one for one in self._waiting if one[0].id < self._next]
        self._waiting_size = sum(len(data) for _, data in self._waiting)
        self._known = {digest: page for digest, page in self._known.items() if page < self._next}

    def give_up(self) -> None:
        """Give back what was placed; nothing of the backup stays, nor does the disk stay full of it."""
        self._store.give_back(_spans(self._puts))
        with contextlib.suppress(DiskError):  # why it was given up is what is told
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
    ) -> BackupHead:
        """Write the head, and all of it as one batch.  Raises DiskWriteError."""
        head = BackupHead(
            self._id, self._created, self.source, tag, cluster_key, num_partitions, tuple(partitions), storage,
            self._first_page, self._next - self._first_page, storage.size + sum(one.size for one in partitions),
            self._pages, self._new_pages, self._new_bytes, round(time.monotonic() - self._began, 3), live, self._damaged,
            partial,
        )  # fmt: skip
        sealed = self.sealer.seal(head.encode(), head_digest(self._id))
        self._put(sealed, *(PageId(namespace, self._id) for namespace in (Namespace.BACKUPS, Namespace.BACKUP_COPIES)))
        self._place()
        # whoever is interrupted from here on gives nothing back: it may be in the log
        puts, self._puts = self._puts, []
        try:
            self._store.commit([*puts, *self._refs])  # a reference follows what it shows
        except WaltzError:
            self._puts = puts
            raise
        return head

    # ---- pages -------------------------------------------------------------------------------------------------------

    def _put(self, sealed: bytes, *pages: PageId) -> None:
        """Copies of one page are placed together: only so they lie apart."""
        self._waiting += [(page, sealed) for page in pages]
        self._waiting_size += len(sealed) * len(pages)
        self._new_bytes += len(sealed) * len(pages)
        if self._waiting_size >= WRITTEN_AT_ONCE:
            self._place()

    def _place(self) -> None:
        spans = self._store.place([data for _, data in self._waiting])
        for (page, data), span in zip(self._waiting, spans, strict=True):
            entry = PageEntry(span.file_id, span.offset, len(data), crc32c(data), 0, ())
            self._puts.append(Edit(EditType.PUT, page, UNWRITTEN, entry))
        self._waiting, self._waiting_size = [], 0


def _spans(puts: Iterable[Edit]) -> list[BlobSpan]:
    """Where the data of pages lies that were placed."""
    return [BlobSpan(entry.file_id, entry.offset, entry.size) for one in puts if (entry := one.entry) is not None]
