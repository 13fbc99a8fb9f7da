"""Creating a vault, and backups of storage directories in it.

A backup is one batch of the page store, so it exists completely or not at all.  Pieces are read, digested and sealed in parallel;
a piece that the vault already has becomes a reference.
"""

from __future__ import annotations

import contextlib
import os
import time
import uuid
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path, PurePath

from waltzctl.engine.backup.backup_writer import BackupWriter, ReadPiece
from waltzctl.engine.backup.piece_cutting import LIMIT
from waltzctl.engine.backup.section_plan import PlannedPiece, PreviousSection, SectionPlan, SourceChangedError
from waltzctl.engine.backup.source_files import (
    Lack,
    SourceDirectory,
    absent,
    check_left_alone,
    check_not_replaced,
    check_unchanged,
    check_written_back,
    lacks,
    lacks_nothing_new,
    local_mark,
    look_at,
    plan_partition,
    plan_storage,
    returned,
)
from waltzctl.engine.backup.writable_vault import advising_room, open_vault
from waltzctl.engine.durable.disk import STATE_DIRECTORY
from waltzctl.engine.durable.file_status import names_in
from waltzctl.engine.durable.new_directory import check_not_beside
from waltzctl.engine.errors import OWN_SHORTAGE, DiskReadError, InvalidRequestError, NotWaltzError
from waltzctl.engine.findings import Severity
from waltzctl.engine.log import places
from waltzctl.engine.log.partition_directories import leads_nowhere
from waltzctl.engine.pages.inspection import blob_status, view_store
from waltzctl.engine.pages.page_batch import WriteBatch
from waltzctl.engine.pages.page_gc import complete_copies
from waltzctl.engine.pages.page_storage import PageStorage
from waltzctl.engine.progress import SILENT, Progress
from waltzctl.engine.scan.byte_source import BytesSource
from waltzctl.engine.scan.columns import Damage
from waltzctl.engine.scan.scanner import summarise_records
from waltzctl.engine.vault.sealing import (
    DEFAULT_LEVEL,
    SCRYPT_COST,
    new_encryption,
)
from waltzctl.engine.vault.vault_reader import VAULT_OPTIONS, VaultReader
from waltzctl.formats.control import CONTROL_FILE_NAME
from waltzctl.formats.pages.names import BLOB_DIRECTORY, WAL_DIRECTORY
from waltzctl.formats.vault import (
    BESIDE,
    CONFIGURATION_PAGES,
    BackedPartition,
    BackupHead,
    Namespace,
    Piece,
    VaultConfiguration,
)

WORKERS = min(8, os.cpu_count() or 1)
_TRIES = 40
_PAUSE = 0.02
"""`_TRIES`: how often a section is read that changes meanwhile; `_PAUSE`: seconds between two tries."""

_CONFIGURATION_SIZE = 16 << 10
"""Upper limit of the data, in bytes, of a vault that contains nothing but its configuration."""


def create_vault(
    path: Path, *, password: bytes | None = None, level: int | None = DEFAULT_LEVEL, scrypt_cost: int = SCRYPT_COST
) -> VaultConfiguration:
    """Make a vault at `path`, which does not exist, is an empty directory, or is what an interrupted call left.

    With a password the vault is encrypted.  `level`: of zstd, None for no compression.

    Raises InvalidRequestError, DiskWriteError.
    """
    check_not_beside(path, CONTROL_FILE_NAME, InvalidRequestError)
    if level is not None and not 1 <= level <= 22:
        raise InvalidRequestError(f"compression zstd:{level}: levels are 1 to 22")
    identity = uuid.uuid4()
    encryption = None if password is None else new_encryption(password, identity, cost=scrypt_cost)
    configuration = VaultConfiguration(identity, level, encryption)
    make = PageStorage.open if _is_begun(path) else PageStorage.create
    with make(path, VAULT_OPTIONS) as store:
        if store.directory.sequence:  # another process was faster; under the lock this cannot change
            raise InvalidRequestError(f"{path}: a vault was made here meanwhile", advice="name a new directory")
        batch = WriteBatch(Namespace.CONFIGURATION)
        for page in CONFIGURATION_PAGES:
            batch.put_page(page, configuration.encode())
        store.write(batch)
    return configuration


def _is_begun(path: Path) -> bool:
    """Whether an interrupted `create_vault` left `path`: a page store in which nothing was ever committed."""
    try:
        view = view_store(path)
    except NotWaltzError:
        return False
    whole = all(one.severity is not Severity.DAMAGE for one in view.findings)
    size = sum(one.total for one in blob_status(view))
    ours = {WAL_DIRECTORY, BLOB_DIRECTORY, STATE_DIRECTORY}
    return (
        whole and not view.directory.sequence and size <= _CONFIGURATION_SIZE and ours.issuperset(names_in(path) or ())
    )


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
    on_unread: Callable[[DiskReadError], object] = lambda _: None,
) -> BackupHead:
    """Back up a storage directory.

    `on_unread` is called behind the backup for each partition that could not be read, with the reason.  `piece_limit`: bytes of a
    piece, unless a single record is larger; must be the same for all backups of a vault.

    Raises InvalidRequestError for a vault inside the source, what `look_at`, `PageStorage.open` and `VaultReader.over` raise,
    RefusedError for a directory that no process holds and whose commit journal has not been written back to its segments,
    SourceChangedError for a partition that keeps changing, DiskReadError, DiskWriteError.  After an error the vault is unchanged.

    A partition of this machine that cannot be listed or read hides no other one: the backup is one of the others, and its head
    says so (`unread`).  That is an error where no other one is left.
    """
    looked = look_at(source, partitions)
    if isinstance(source, Path) and source.resolve() in vault.resolve().parents:
        raise InvalidRequestError(
            f"{vault}: lies in {source}, and would back itself up", advice="make a vault beside the directory"
        )
    check_written_back(looked)
    with advising_room(), open_vault(vault) as store:
        reader = VaultReader.over(store, password)
        complete_copies(store)
        writer = BackupWriter(store, reader, str(looked.path), now_ms)
        creation = _Creation(writer, looked, tag, progress, piece_limit, partial=partitions is not None)
        head = creation.run()
    for number in head.unread:
        on_unread(creation.unread[number])
    return head


class _Creation:
    """The backup of one directory."""

    def __init__(
        self,
        writer: BackupWriter,
        source: SourceDirectory,
        tag: str | None,
        progress: Progress,
        limit: int,
        *,
        partial: bool,
    ) -> None:
        self._writer, self._source, self._partial = writer, source, partial
        self._tag, self._progress, self._limit = tag, progress, limit
        self._lacking: frozenset[Lack] = frozenset()
        self._below_mark: set[int] = set()  # partitions of a live directory that lack their end, it seems
        self.unread: dict[int, DiskReadError] = {}
        """Why a partition could not be read, by its number."""

    # ---- all sections ------------------------------------------------------------------------------------------------

    def run(self) -> BackupHead:
        """Plan and read all sections, then commit."""
        try:
            with ThreadPoolExecutor(WORKERS, thread_name_prefix="backup") as workers:
                return self._run(workers)
        except BaseException:
            self._writer.give_up()
            raise

    def _run(self, workers: ThreadPoolExecutor) -> BackupHead:
        source = self._source
        previous = self._writer.previous()
        storage = self._planned(None, previous)
        for number in source.unmounted:
            self.unread[number] = leads_nowhere(source.path / str(number))
            self.unread[number].advice = "mount what it leads to, and try again; nothing was written to the vault"
        plans: dict[int, SectionPlan] = {}
        for number in source.partitions:
            with self._hiding_no_other(number):
                plans[number] = self._planned(number, previous)
        head = self._writer.previous_head
        header = None if source.control is None else source.control.header
        key = None if header is None else header.cluster_key  # another one may be damage of any segment, or of itself
        anew = head is None or head.damaged or head.cluster_key != key
        doubtful = set(absent(source))
        for number, plan in plans.items():
            with self._hiding_no_other(number):
                if anew or not lacks_nothing_new(source, number, plan, previous.get(number)):
                    doubtful.add(number)
        plans = {number: plan for number, plan in plans.items() if number not in self.unread}
        self._lacking = lacks(source, doubtful)
        for number in sorted(returned(source)):
            raise self._changed(number, "its directory was not there when this began")
        self._progress.start("backing up", sum(one.size for plan in (storage, *plans.values()) for one in plan.pieces))
        sections: list[BackedPartition] = []
        for number, plan in plans.items():
            before = self._writer.state()
            with self._hiding_no_other(number):
                sections.append(self._take(number, plan, previous, workers))
            if number in self.unread:
                self._writer.return_to(before)
        for error in self.unread.values() if not sections else ():
            raise error
        own = self._take(None, storage, previous, workers)
        if self._lacking and source.live:
            # what came or went as it was looked at lacks nothing when it is looked at again
            again = lacks(source, doubtful - self.unread.keys())
            back = returned(source)  # which is not in the backup all the same
            self._lacking = frozenset(one for one in self._lacking if one in again or one[2] in back)
        if passing := self._below_mark - _partitions(self._lacking) - self.unread.keys():
            raise self._changed(min(passing), "it ended below its mark, and lacks nothing now")
        return self._writer.commit(
            sections,
            own,
            tag=self._tag,
            cluster_key=key,
            num_partitions=None if header is None else header.num_partitions,
            live=source.live,
            lacking=len(self._lacking),
            partial=self._partial or bool(self.unread),
            unread=tuple(sorted(self.unread)),
        )

    @contextlib.contextmanager
    def _hiding_no_other(self, number: int) -> Iterator[None]:
        """A partition that cannot be listed or read is left out; it may be on a disk of its own."""
        directory = self._source.path / str(number)
        try:
            yield
        except (DiskReadError, OSError) as error:
            where = error.path if isinstance(error, DiskReadError) else error.filename
            of_partition = where is not None and PurePath(where).is_relative_to(directory)
            if not of_partition or error.errno in OWN_SHORTAGE or not places.on_this_machine(directory):
                raise
            failed = error if isinstance(error, DiskReadError) else DiskReadError(where, None, error)
            failed.advice = failed.advice or "nothing was written to the vault; try again when its disk answers"
            self.unread[number] = failed

    # ---- one section: that of a partition, or with number None that of the storage directory -------------------------

    def _planned(self, number: int | None, previous: dict[int | None, PreviousSection]) -> SectionPlan:
        seen, twice = "", False  # damage seen twice in the same place is damage, not a change in progress
        for left in reversed(range(_TRIES)):
            try:
                return self._plan(number, previous.get(number), as_it_is=twice or not self._source.live)
            except (FileNotFoundError, SourceChangedError) as error:
                if not left or not self._source.live:
                    raise self._changed(number, str(error)) from error
                seen, twice = str(error), isinstance(error, SourceChangedError) and str(error) == seen
            time.sleep(_PAUSE)
        raise AssertionError("unreachable")

    def _plan(self, number: int | None, previous: PreviousSection | None, *, as_it_is: bool) -> SectionPlan:
        if number is None:
            return plan_storage(self._source, previous, limit=self._limit)
        return plan_partition(self._source, number, previous, limit=self._limit, as_it_is=as_it_is)

    def _take(
        self,
        number: int | None,
        plan: SectionPlan,
        previous: dict[int | None, PreviousSection],
        workers: ThreadPoolExecutor,
    ) -> BackedPartition:
        for left in reversed(range(_TRIES)):
            before = self._writer.state()
            try:
                taken = self._read_all(plan, workers)
                if number is None:
                    check_not_replaced(self._source, plan)
                elif self._source.live:
                    self._read_twice(number, plan, taken)
                else:
                    check_left_alone(self._source, number, plan)
                return self._writer.write_section(BESIDE if number is None else number, plan, taken)
            except (FileNotFoundError, SourceChangedError) as error:
                if not left or not self._source.live:
                    raise self._changed(number, str(error)) from error
                self._writer.return_to(before)
                time.sleep(_PAUSE)
                plan = self._planned(number, previous)
        raise AssertionError("unreachable")

    def _read_twice(self, number: int, plan: SectionPlan, taken: Sequence[Piece]) -> None:
        """Raises SourceChangedError unless all that was read of a live partition was there at one moment."""
        last = check_unchanged(self._source, number, plan)
        for planned, piece in zip(plan.pieces, taken, strict=True):
            again = any(one.path == last for one in planned.ranges)
            if again and self._writer.sealer.digest(self._content(planned)) != piece.digest:
                raise SourceChangedError(f"{last}: it was cut while it was read")
        end = -1 if plan.last is None else plan.last
        mark = local_mark(self._source, number)
        if end < mark and not plan.damaged:
            if number not in _partitions(self._lacking):
                raise SourceChangedError(
                    f"{self._source.path / str(number)}: it ends at transaction {end}, and its mark was {mark}"
                )
            self._below_mark.add(number)  # damage, if it is seen before and behind the backup

    def _changed(self, number: int | None, why: str) -> SourceChangedError:
        where = self._source.path if number is None else self._source.path / str(number)
        return SourceChangedError(
            f"{where}: changed while it was read: {why}",
            advice="try again; nothing was written to the vault",
        )

    def _read_all(self, plan: SectionPlan, workers: ThreadPoolExecutor) -> list[Piece]:
        """Take all pieces in order; some are read ahead.

        No more bytes than of as many pieces of the usual size: a record of 128 MiB is one, and in memory twice until it is taken.
        """
        taken: list[Piece] = []
        most, size = 2 * WORKERS + 2, 0
        ahead: deque[tuple[PlannedPiece, Future[ReadPiece] | None]] = deque()
        pieces = deque(plan.pieces)
        while True:
            while pieces and len(ahead) < most and (not ahead or size + pieces[0].size <= most * self._limit):
                piece = pieces.popleft()
                size += piece.size
                ahead.append((piece, None if piece.kept is not None else workers.submit(self._read, piece)))
            if not ahead:
                return taken
            piece, reading = ahead.popleft()
            size -= piece.size
            if reading is not None:
                read = reading.result()
            else:
                assert piece.kept is not None
                read = ReadPiece(piece.kept, None)
            taken.append(self._writer.take(read, piece.page))
            self._progress.advance(piece.size)

    def _read(self, piece: PlannedPiece) -> ReadPiece:
        content = self._content(piece)
        if self._source.live and piece.records:
            _check_records(content, piece)
        return self._writer.read(content, piece.first_transaction_id, piece.records)

    def _content(self, piece: PlannedPiece) -> bytes | bytearray:
        if piece.content is not None:
            return piece.content
        content = bytearray(piece.size)
        view, place = memoryview(content), 0
        for one in piece.ranges:
            data = places.read_range(one.path, one.offset, one.size)
            if len(data) != one.size:
                raise SourceChangedError(f"{one.path}: it ends before byte {one.offset + one.size}")
            view[place : place + one.size] = data
            place += one.size
        return content


def _partitions(lacking: Collection[Lack]) -> set[int | None]:
    return {partition for _, _, partition, _ in lacking}


def _check_records(content: bytes | bytearray, piece: PlannedPiece) -> None:
    """Raises SourceChangedError unless what was read are the planned records."""
    found, whole = 0, True
    for one in summarise_records(BytesSource(content), first_transaction_id=piece.first_transaction_id, start=0):
        if isinstance(one, Damage):
            whole = False
            break
        found += len(one)
    if found != piece.records or not whole:
        where = piece.ranges[0]
        raise SourceChangedError(f"{where.path}, offset {where.offset}: {found} records of {piece.records}")
