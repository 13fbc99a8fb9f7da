"""Making a vault, and backups in it.

A backup is one batch of the page store: it is there whole or not at all.  Pieces are read, told apart by their digests and
sealed side by side; what the vault has becomes a reference.  Data is written ahead of the batch as it comes, so that memory
holds a few pieces whatever the size of the source; after a crash that data belongs to nothing, and its room is used again.
"""

from __future__ import annotations

import contextlib
import os
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path, PurePath

from waltzctl.engine.backup.piece_cutting import LIMIT
from waltzctl.engine.backup.section_plan import PlannedPiece, PreviousSection, SectionPlan, SourceChangedError
from waltzctl.engine.backup.source_files import (
    SourceDirectory,
    check_unchanged,
    look_at,
    plan_partition,
    plan_storage,
)
from waltzctl.engine.errors import DamageError, InvalidRequestError
from waltzctl.engine.log import places
from waltzctl.engine.pages.batch import UNWRITTEN, WriteBatch
from waltzctl.engine.pages.blob_stats import BlobSpan
from waltzctl.engine.pages.page_storage import PageStorage
from waltzctl.engine.progress import SILENT, Progress
from waltzctl.engine.scan.byte_source import BytesSource
from waltzctl.engine.scan.columns import Damage
from waltzctl.engine.scan.scanner import summarise_records
from waltzctl.engine.vault.sealing import (
    DEFAULT_LEVEL,
    SCRYPT_COST,
    Sealer,
    head_digest,
    new_encryption,
    section_digest,
)
from waltzctl.engine.vault.vault_reader import VaultReader
from waltzctl.formats.checksums import crc32c
from waltzctl.formats.pages.write_batch import Edit, EditType, PageEntry, PageId
from waltzctl.formats.vault import (
    BESIDE,
    CONFIGURATION_PAGES,
    SECTION_COPIES,
    BackedPartition,
    BackupHead,
    Namespace,
    Piece,
    Section,
    VaultConfiguration,
)

WRITTEN_AT_ONCE = 16 << 20
"""Bytes of sealed pages that are written and flushed together."""
WORKERS = min(8, os.cpu_count() or 1)
_TRIES = 40
_PAUSE = 0.02
"""How often a partition is looked at that changes while it is read, and seconds between two looks."""


def create_vault(
    path: Path, *, password: bytes | None = None, level: int | None = DEFAULT_LEVEL, scrypt_cost: int = SCRYPT_COST
) -> VaultConfiguration:
    """Make a vault at `path`, an empty directory or none; encrypted with a password.  `level`: of zstd, None for none.

    Raises InvalidRequestError, DiskWriteError.
    """
    if level is not None and not 1 <= level <= 22:
        raise InvalidRequestError(f"compression zstd:{level}: levels are 1 to 22")
    identity = uuid.uuid4()
    encryption = None if password is None else new_encryption(password, identity, cost=scrypt_cost)
    configuration = VaultConfiguration(identity, level, encryption)
    with PageStorage.create(path) as store:
        batch = WriteBatch(Namespace.CONFIGURATION)
        for page in CONFIGURATION_PAGES:
            batch.put_page(page, configuration.encode())
        store.write(batch)
    return configuration


def create_backup(
    vault: Path,
    source: PurePath,
    *,
    password: bytes | None = None,
    tag: str | None = None,
    partitions: frozenset[int] | None = None,
    progress: Progress = SILENT,
    piece_limit: int = LIMIT,
    now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
) -> BackupHead:
    """Back a storage directory up.  `piece_limit`: bytes of a piece, but for a larger record; in a vault always the same.

    Raises what `look_at`, `PageStorage.open` and `VaultReader.over` raise, SourceChangedError for a partition that does not stand
    still, DiskReadError, DiskWriteError; the vault is as it was then.
    """
    looked = look_at(source, partitions)
    with PageStorage.open(vault) as store:
        reader = VaultReader.over(store, password)
        return _Creation(store, reader, looked, tag, progress, piece_limit, now_ms).run()


@dataclass(frozen=True, slots=True)
class _Read:
    """A piece that was read; `sealed` is None where the vault has it."""

    piece: Piece
    sealed: bytes | None


class _Creation:
    """A backup on its way."""

    def __init__(
        self,
        store: PageStorage,
        reader: VaultReader,
        source: SourceDirectory,
        tag: str | None,
        progress: Progress,
        limit: int,
        now_ms: Callable[[], int],
    ) -> None:
        self._store, self._reader, self._source = store, reader, source
        self._sealer: Sealer = reader.sealer
        self._tag, self._progress = tag, progress
        self._limit = limit
        self._created, self._began = now_ms(), time.monotonic()
        self._heads = [one for one in reader.heads() if isinstance(one, BackupHead)]
        self._known = dict(self._kept_pieces())
        self._id = self._new_id()
        self._first_page = store.max_id(namespace=Namespace.DATA) + 1
        self._next = self._first_page
        self._puts: list[Edit] = []
        self._refs: list[Edit] = []
        self._waiting: list[tuple[PageId, bytes]] = []
        self._waiting_size = 0
        self._pages = self._new_pages = self._new_bytes = 0
        self._damaged = 0

    def _new_id(self) -> int:
        there = set(self._reader.ids())
        while True:
            made = int.from_bytes(os.urandom(8), "big")
            if made not in there:
                return made

    def _kept_pieces(self) -> Iterator[tuple[bytes, int]]:
        """Digests that the vault has, and a page of each."""
        for head in self._heads:
            for one in head.sections:
                first = head.first_page + one.first_piece
                with contextlib.suppress(DamageError):  # what it lists is kept once more
                    for number, piece in enumerate(self._reader.section(head, one).pieces):
                        yield piece.digest, first + number

    # ---- the whole ---------------------------------------------------------------------------------------------------

    def run(self) -> BackupHead:
        """Read, place, commit."""
        try:
            with ThreadPoolExecutor(WORKERS, thread_name_prefix="backup") as workers:
                head = self._run(workers)
            self._store.commit([*self._puts, *self._refs])  # a reference follows what it shows
        except BaseException:
            self._store.give_back(_spans(self._puts))
            raise
        return head

    def _run(self, workers: ThreadPoolExecutor) -> BackupHead:
        source = self._source
        previous = self._previous()
        storage = plan_storage(source, previous.get(None), limit=self._limit)
        plans = [self._planned(number, previous) for number in source.partitions]
        self._progress.start("backing up", sum(one.size for plan in (storage, *plans) for one in plan.pieces))
        sections = [
            self._take(number, plan, previous, workers) for number, plan in zip(source.partitions, plans, strict=True)
        ]
        own = self._write_section(BESIDE, storage, self._read_all(storage, workers))
        control = source.control
        key = None if control is None else control.header.cluster_key
        head = BackupHead(
            self._id, self._created, str(source.path), self._tag, key,
            None if control is None else control.header.num_partitions, tuple(sections), own, self._first_page,
            self._next - self._first_page, own.size + sum(one.size for one in sections), self._pages, self._new_pages,
            self._new_bytes, round(time.monotonic() - self._began, 3), source.live, self._damaged,
        )  # fmt: skip
        sealed = self._sealer.seal(head.encode(), head_digest(self._id))
        for namespace in (Namespace.BACKUPS, Namespace.BACKUP_COPIES):
            self._put(PageId(namespace, self._id), sealed)
        self._place()
        return head

    def _previous(self) -> dict[int | None, PreviousSection]:
        """The sections of the newest backup of the same source, by partition."""
        same = [one for one in self._heads if one.source == str(self._source.path)]
        if not same:
            return {}
        head = max(same, key=lambda one: one.created_ms)
        found: dict[int | None, PreviousSection] = {}
        for one in head.sections:
            with contextlib.suppress(DamageError):  # it is read anew
                section = self._reader.section(head, one)
                number = None if one.partition == BESIDE else one.partition
                found[number] = PreviousSection(section, head.first_page + one.first_piece, head.created_ms)
        return found

    # ---- a partition -------------------------------------------------------------------------------------------------

    def _planned(self, number: int, previous: dict[int | None, PreviousSection]) -> SectionPlan:
        seen, twice = "", False  # what is found twice in the same place is there, and not on its way
        for left in reversed(range(_TRIES)):
            try:
                return plan_partition(
                    self._source,
                    number,
                    previous.get(number),
                    limit=self._limit,
                    as_it_is=twice or not self._source.live,
                )
            except (FileNotFoundError, SourceChangedError) as error:
                if not left or not self._source.live:
                    raise self._changed(number, str(error)) from error
                seen, twice = str(error), isinstance(error, SourceChangedError) and str(error) == seen
            time.sleep(_PAUSE)
        raise AssertionError("unreachable")

    def _take(
        self,
        number: int,
        plan: SectionPlan,
        previous: dict[int | None, PreviousSection],
        workers: ThreadPoolExecutor,
    ) -> BackedPartition:
        for left in reversed(range(_TRIES)):
            before = self._state()
            try:
                taken = self._read_all(plan, workers)
                if self._source.live:
                    self._read_twice(number, plan, taken)
                return self._write_section(number, plan, taken)
            except (FileNotFoundError, SourceChangedError) as error:
                if not left or not self._source.live:
                    raise self._changed(number, str(error)) from error
                self._return_to(before)
                time.sleep(_PAUSE)
                plan = self._planned(number, previous)
        raise AssertionError("unreachable")

    def _read_twice(self, number: int, plan: SectionPlan, taken: Sequence[Piece]) -> None:
        """Raises SourceChangedError where a partition was not at any moment as it was read."""
        last = check_unchanged(self._source, number, plan)
        for planned, piece in zip(plan.pieces, taken, strict=True):
            again = any(one.path == last for one in planned.ranges)
            if again and self._sealer.digest(self._content(planned)) != piece.digest:
                raise SourceChangedError(f"{last}: it was cut while it was read")
        control = self._source.control
        current = (
            None if control is None or number >= len(control.partitions) else control.partitions[number].current_struct
        )
        end = -1 if plan.last is None else plan.last
        mark = -1 if current is None else current.local_low_water_mark
        if end < mark and not plan.damaged:
            raise SourceChangedError(
                f"{self._source.path / str(number)}: it ends at transaction {end}, and its mark was {mark}"
            )

    def _state(self) -> tuple[int, int, int, int]:
        return self._next, self._pages, self._new_pages, self._new_bytes

    def _return_to(self, state: tuple[int, int, int, int]) -> None:
        """Forget pieces of a partition that did not stand still; data that was placed for them is given back."""
        self._next, self._pages, self._new_pages, self._new_bytes = state
        self._store.give_back(_spans(one for one in self._puts if one.page.id >= self._next))
        self._puts, self._refs = (
            [one for one in edits if one.page.id < self._next] for edits in (self._puts, self._refs)
        )
        self._waiting = [one for one in self._waiting if one[0].id < self._next]
        self._waiting_size = sum(len(data) for _, data in self._waiting)
        self._known = {digest: page for digest, page in self._known.items() if page < self._next}

    def _changed(self, number: int, why: str) -> SourceChangedError:
        return SourceChangedError(
            f"{self._source.path / str(number)}: changed while it was read: {why}",
            advice="try again; nothing was written to the vault",
        )

    def _read_all(self, plan: SectionPlan, workers: ThreadPoolExecutor) -> list[Piece]:
        """Take every piece in order; some are read ahead."""
        taken: list[Piece] = []
        ahead: deque[tuple[PlannedPiece, Future[_Read] | None]] = deque()
        pieces = iter(plan.pieces)
        while True:
            while len(ahead) < 2 * WORKERS + 2 and (piece := next(pieces, None)) is not None:
                ahead.append((piece, None if piece.kept is not None else workers.submit(self._read, piece)))
            if not ahead:
                return taken
            piece, reading = ahead.popleft()
            if reading is not None:
                read = reading.result()
            else:
                assert piece.kept is not None
                read = _Read(piece.kept, None)
            self._take_piece(piece, read)
            taken.append(read.piece)

    def _read(self, piece: PlannedPiece) -> _Read:
        content = self._content(piece)
        if self._source.live and piece.records:
            _check_records(content, piece)
        digest = self._sealer.digest(content)
        plain = Piece(digest, piece.size, 0, piece.first_transaction_id, piece.records)
        if digest in self._known:
            return _Read(plain, None)
        sealed = self._sealer.seal(content, digest)
        return _Read(replace(plain, stored=len(sealed)), sealed)

    def _content(self, piece: PlannedPiece) -> bytearray:
        content = bytearray(piece.size)
        view, place = memoryview(content), 0
        for one in piece.ranges:
            data = places.read_range(one.path, one.offset, one.size)
            if len(data) != one.size:
                raise SourceChangedError(f"{one.path}: it ends before byte {one.offset + one.size}")
            view[place : place + one.size] = data
            place += one.size
        return content

    def _take_piece(self, planned: PlannedPiece, read: _Read) -> None:
        page = self._next
        self._next += 1
        self._pages += 1
        origin = planned.page if planned.page is not None else self._known.get(read.piece.digest)
        if origin is not None:
            self._refs.append(
                Edit(EditType.REF, PageId(Namespace.DATA, page), UNWRITTEN, origin=PageId(Namespace.DATA, origin))
            )
        else:
            assert read.sealed is not None
            self._known[read.piece.digest] = page
            self._new_pages += 1
            self._put(PageId(Namespace.DATA, page), read.sealed)
        self._progress.advance(planned.size)

    def _write_section(self, number: int, plan: SectionPlan, taken: Sequence[Piece]) -> BackedPartition:
        """The section behind its pieces, twice."""
        section = Section(plan.directories, plan.files, tuple(taken))
        section.check()  # a backup that could not be read is none
        place = self._next - self._first_page
        sealed = self._sealer.seal(section.encode(), section_digest(self._id, place))
        for _ in range(SECTION_COPIES):
            self._put(PageId(Namespace.DATA, self._next), sealed)
            self._next += 1
        self._damaged += plan.damaged
        return BackedPartition(
            number, plan.first, plan.last, plan.size, place, place - len(taken), len(taken)
        )  # fmt: skip

    # ---- pages -------------------------------------------------------------------------------------------------------

    def _put(self, page: PageId, sealed: bytes) -> None:
        self._waiting.append((page, sealed))
        self._waiting_size += len(sealed)
        self._new_bytes += len(sealed)
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


def _check_records(content: bytearray, piece: PlannedPiece) -> None:
    """Whether what was read is the records that were there before.  Raises SourceChangedError."""
    found, whole = 0, True
    for one in summarise_records(BytesSource(content), first_transaction_id=piece.first_transaction_id, start=0):
        if isinstance(one, Damage):
            whole = False
            break
        found += len(one)
    if found != piece.records or not whole:
        where = piece.ranges[0]
        raise SourceChangedError(f"{where.path}, offset {where.offset}: {found} records of {piece.records}")
