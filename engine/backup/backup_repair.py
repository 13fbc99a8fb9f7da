"""Repairing damaged pages of a vault from a storage directory that still holds their content.

- Pieces of records are found by transaction id, in whatever segments; other pieces by their digest.  Only content with the digest
  that a backup names is used.
- Configuration, heads and sections are repaired from their other copy; both copies are rewritten.
- Any other damaged page is deleted and written again, together with all pages that refer to it.  Its content was lost already, so
  a crash in between loses nothing.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path, PurePath

import numpy as np

from waltzctl.engine.backup.backup_verification import VaultPieces, check_pieces
from waltzctl.engine.backup.distinct_pieces import NeededPiece, PieceKey
from waltzctl.engine.backup.section_plan import PlannedPiece, SourceChangedError
from waltzctl.engine.backup.source_files import SourceDirectory, look_at, plan_partition, plan_storage
from waltzctl.engine.backup.writable_vault import advising_room, open_vault
from waltzctl.engine.errors import DamageError
from waltzctl.engine.log import places
from waltzctl.engine.pages.blob_stats import BlobSpan
from waltzctl.engine.pages.page_batch import UNWRITTEN
from waltzctl.engine.pages.page_storage import PageStorage
from waltzctl.engine.scan.columns import Damage
from waltzctl.engine.scan.scanner import summarise_records
from waltzctl.engine.vault.vault_reader import UnreadableBackup, VaultReader
from waltzctl.formats.checksums import crc32c
from waltzctl.formats.pages.write_batch import Edit, EditType, PageEntry, PageId
from waltzctl.formats.segment import HEADER_SIZE, SEGMENT_SUFFIX, parse_name
from waltzctl.formats.vault import CONFIGURATION_PAGES, SECTION_COPIES, BackupHead, Namespace, Piece

_TRIES = 10
_PAUSE = 0.02
"""`_TRIES`: how often a partition is read that changes meanwhile; `_PAUSE`: seconds between two tries."""


@dataclass(frozen=True, slots=True)
class VaultRepair:
    """Result of a repair.

    `damaged`: damaged pages, without references; `mended`: how many of them were repaired; `size`: bytes written for them.
    """

    damaged: int
    mended: int
    size: int


def repair_vault(vault: Path, source: PurePath, *, password: bytes | None = None) -> VaultRepair:
    """Repair the damaged pages whose content is found in `source`.

    Raises what `look_at`, `PageStorage.open` and `VaultReader.over` raise, DiskReadError, DiskWriteError.
    """
    looked = look_at(source)
    with advising_room(), open_vault(vault) as store:
        reader = VaultReader.over(store, password)
        heads = list(reader.heads())
        copies = _damaged_copies(reader, heads)
        damaged = sum(len(group.damaged) for group in copies)
        pieces = VaultPieces(reader, heads)
        checked = check_pieces(pieces, pieces.once())
        broken: dict[PieceKey, list[NeededPiece]] = defaultdict(list)
        for one in pieces if checked else ():
            if one.key in checked:
                broken[one.key].append(one)
        mended = size = 0
        for group in copies:
            if group.whole is not None:
                _write_copies(store, group.pages, group.whole)
                mended, size = mended + len(group.damaged), size + len(group.whole) * len(group.damaged)
        by_digest: dict[bytes, list[list[NeededPiece]]] = defaultdict(list)
        for (_, digest), needing in broken.items():
            by_digest[digest].append(needing)

        def mend(digest: bytes, content: bytes) -> None:
            nonlocal mended, size
            sealed = reader.sealer.seal(content, digest)
            for needing in by_digest[digest]:
                _replace(store, [PageId(Namespace.DATA, one.page) for one in needing], sealed)
                mended, size = mended + 1, size + len(sealed)

        _Search(looked, reader, [needing[0] for needing in broken.values()], mend).run()
        return VaultRepair(len(broken) + damaged, mended, size)


@dataclass(frozen=True, slots=True)
class _Copies:
    """A page that is stored twice.

    `pages`: both copies; `damaged`: the unreadable ones; `whole`: the sealed bytes of a readable one, None if there is none.
    """

    pages: list[PageId]
    damaged: list[PageId]
    whole: bytes | None


def _damaged_copies(reader: VaultReader, heads: Iterable[BackupHead | UnreadableBackup]) -> list[_Copies]:
    """The pages stored twice of which a copy is damaged."""
    groups = [[PageId(Namespace.CONFIGURATION, page) for page in CONFIGURATION_PAGES]]
    for head in heads:
        groups.append([PageId(name, head.id) for name in (Namespace.BACKUPS, Namespace.BACKUP_COPIES)])
        groups += [
            [PageId(Namespace.DATA, first + copy) for copy in range(SECTION_COPIES)] for first in _section_pages(head)
        ]
    found: list[_Copies] = []
    for group in groups:
        read = {page: _page(reader, page) for page in group}
        whole = next((data for data in read.values() if data is not None), None)
        if damaged := [page for page, data in read.items() if data is None]:
            found.append(_Copies(group, damaged, whole))
    return found


def _section_pages(head: BackupHead | UnreadableBackup) -> list[int]:
    """The first page of each section; none if the head cannot be read."""
    return [head.first_page + one.section for one in head.sections] if isinstance(head, BackupHead) else []


def _page(reader: VaultReader, page: PageId) -> bytes | None:
    try:
        return reader.page(Namespace(page.namespace), page.id)
    except DamageError:
        return None


def _write_copies(store: PageStorage, pages: list[PageId], sealed: bytes) -> None:
    """Rewrite all copies of a page, including the intact one: only copies that are placed together are stored apart.

    One batch, so that a crash leaves the intact copy.  Raises DiskWriteError.
    """
    spans = store.place([sealed] * len(pages))
    store.commit(
        [Edit(EditType.PUT, page, UNWRITTEN, _entry(span, sealed)) for page, span in zip(pages, spans, strict=True)]
    )


def _entry(span: BlobSpan, sealed: bytes) -> PageEntry:
    return PageEntry(span.file_id, span.offset, len(sealed), crc32c(sealed), 0, ())


def _replace(store: PageStorage, pages: list[PageId], sealed: bytes) -> None:
    """Rewrite pages that share one content.  Raises DiskWriteError."""
    entry = _entry(store.place([sealed])[0], sealed)
    store.commit([Edit(EditType.DELETE, page, UNWRITTEN) for page in pages])
    store.commit(
        [
            Edit(EditType.PUT, pages[0], UNWRITTEN, entry),
            *(Edit(EditType.REF, page, UNWRITTEN, origin=pages[0]) for page in pages[1:]),
        ]
    )


# ---- what the directory holds ------------------------------------------------------------------------------------------


class _Search:
    """Searches a directory for wanted pieces, and passes on each as it is found: memory could not hold all of them."""

    def __init__(
        self,
        source: SourceDirectory,
        reader: VaultReader,
        wanted: Iterable[NeededPiece],
        found: Callable[[bytes, bytes], None],
    ) -> None:
        """`found`: called with digest and content, once per digest."""
        self._source, self._reader, self._found = source, reader, found
        self._other: dict[bytes, Piece] = {}
        self._records: dict[int, dict[bytes, Piece]] = defaultdict(dict)
        for one in wanted:
            sought = self._records[one.section.partition] if one.piece.records else self._other
            sought[one.piece.digest] = one.piece

    def run(self) -> None:
        """Raises DiskReadError, and what `found` raises.

        A process may write to the directory: if a partition, or a file outside of them, changes during every try, what was found
        so far counts.
        """
        for number in (None, *self._source.partitions):
            for left in reversed(range(_TRIES)):
                try:
                    if self._other:
                        self._match_raw(number)
                    if number is not None:
                        self._match_records(number)
                    break
                except (FileNotFoundError, SourceChangedError):
                    if left:
                        time.sleep(_PAUSE)

    def _match_raw(self, number: int | None) -> None:
        """Match the pieces that are no records, of a partition or of the storage directory.  Raises as `plan_partition`."""
        source = self._source
        plan = plan_storage(source, None) if number is None else plan_partition(source, number, None)
        for piece in plan.pieces:
            if not piece.records:
                self._match(self._other, _read(piece))

    def _match_records(self, number: int) -> None:
        """Match the wanted records of a partition.  Raises as `read_records`."""
        wanted = self._records[number]
        for piece in list(wanted.values()):
            content = read_records(self._source.path / str(number), piece.first_transaction_id, piece.records)
            if content is not None:
                self._match(wanted, content)

    def _match(self, wanted: dict[bytes, Piece], content: bytes) -> None:
        digest = self._reader.sealer.digest(content)
        if digest in wanted:
            self._found(digest, content)
            del wanted[digest]


def _read(piece: PlannedPiece) -> bytes:
    if piece.content is not None:
        return piece.content
    return b"".join(places.read_range(one.path, one.offset, one.size) for one in piece.ranges)


def read_records(directory: PurePath, first: int, count: int) -> bytes | None:
    """The bytes of `count` records from transaction `first` on; None unless the partition holds all of them intact.

    Raises DiskReadError, FileNotFoundError if files are removed meanwhile.
    """
    segments = sorted(
        (parsed[0], name)
        for name in places.names(directory)
        if (parsed := parse_name(name)) is not None and name.endswith(SEGMENT_SUFFIX)
    )
    parts, following = [], first
    for place, (begins, name) in enumerate(segments):
        if following >= first + count:
            break
        if place + 1 < len(segments) and segments[place + 1][0] <= following:
            continue  # the next segment begins at or before the first wanted record
        if begins > following:
            return None
        with places.open_source(directory / name) as source:
            for one in summarise_records(source, first_transaction_id=begins, start=HEADER_SIZE):
                if isinstance(one, Damage):
                    break
                offsets = np.append(one.offset, one.end)
                low = max(following - one.first_transaction_id, 0)
                high = min(first + count - one.first_transaction_id, len(one))
                if low < high:
                    start, end = int(offsets[low]), int(offsets[high])
                    data = bytearray(end - start)
                    source.read_into(start, memoryview(data))
                    parts.append(bytes(data))
                    following = one.first_transaction_id + high
    return b"".join(parts) if following >= first + count else None
