"""Backup of a running node through its admin port: the records of its partitions, their sessions and marks.

Records become the files that `node_layout` describes, cut into the same pieces as in a backup of the node's directory.  What the
port does not provide is not in the backup: the node's own files and damage in them, fences, the ledger of losses, the quarantine.

Consistency: the backup of a partition is its state at one moment.

1. Read session, marks and end of the log, then the records up to that end; others may be appended meanwhile.
2. Only a truncation removes records, and nodes count truncations.  If session and truncation count are unchanged afterwards, and
   the last piece is the same when it is read again, all records read were there at the same time.
3. Otherwise the records above the low-water mark of step 1 are read again.  A sequence of session changes therefore costs only
   what each session appended.

Incremental reading: records in the last backup of the same node are not read again.

- Session and low-water mark unchanged: all of them, as a session only appends.
- Otherwise: those at or below the marks of the last backup, which no recovery truncates.

The last reused piece is read nevertheless; if it differs, all records are read.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from waltzctl.engine.backup.backup_writer import BackupWriter, ReadPiece, WriterState
from waltzctl.engine.backup.node_layout import (
    SEGMENT_SIZE,
    CutPiece,
    PartitionLayout,
    control_pieces,
    control_plan,
)
from waltzctl.engine.backup.piece_cutting import LIMIT
from waltzctl.engine.backup.section_plan import PlannedPiece, PreviousSection, SourceChangedError
from waltzctl.engine.backup.writable_vault import advising_room, open_vault
from waltzctl.engine.client.admin_client import AdminClient
from waltzctl.engine.client.connection_factory import ConnectionFactory
from waltzctl.engine.client.inspect import UNREADABLE_IN_A_ROW, NodeRecord, walk
from waltzctl.engine.client.partition_readings import (
    ClusterIdentity,
    PartitionReading,
    need_assigned,
    read_cluster,
    read_partitions,
)
from waltzctl.engine.errors import DamageError, InvalidRequestError, ProtocolError, RemoteError
from waltzctl.engine.findings import Code, Finding
from waltzctl.engine.net.addresses import Address
from waltzctl.engine.net.futures import in_thread
from waltzctl.engine.pages.page_gc import complete_copies
from waltzctl.engine.progress import SILENT, Progress
from waltzctl.engine.scan.columns import Int64Column
from waltzctl.engine.vault.backup_files import BackedSource, BackupFiles
from waltzctl.engine.vault.vault_reader import VaultReader
from waltzctl.formats.checksums import crc32
from waltzctl.formats.control import (
    CONTROL_FILE_NAME,
    FLAG_ASSIGNED,
    FLAG_AVAILABLE,
    ControlFile,
    Layout,
    decode_control,
    initial_control,
    struct_in_force,
)
from waltzctl.formats.segment import CHECKSUM, pack_record_header
from waltzctl.formats.vault import BESIDE, BackedPartition, BackupHead, Piece, Section
from waltzctl.formats.wire.failure import FailureCode

_TRIES = 10
_PAUSE = 0.1
"""`_TRIES`: how often a partition is read that is truncated meanwhile; `_PAUSE`: seconds between two tries."""
_GATHERED = 256 << 10
"""Bytes of records that are collected before they are cut into pieces."""


async def create_node_backup(
    vault: Path,
    address: Address,
    reach: ConnectionFactory,
    *,
    password: bytes | None = None,
    tag: str | None = None,
    partitions: frozenset[int] | None = None,
    cluster: ClusterIdentity | None = None,
    progress: Progress = SILENT,
    piece_limit: int = LIMIT,
    segment_size: int = SEGMENT_SIZE,
    now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
) -> BackupHead:
    """Back up a node through its admin port.

    - `partitions`: only these; None: all that are assigned to the node.
    - `cluster`: the cluster that the node must belong to; None: the one that the node reports, or one of a backup in the vault
      that the node accepts.
    - `piece_limit`: bytes of a piece; must be the same for all backups of a vault.
    - `segment_size`: bytes after which a segment is closed.

    Raises what `PageStorage.open` and `VaultReader.over` raise, RemoteError for a node of another cluster, InvalidRequestError if
    the cluster is unknown and for partitions that the node does not have, what the calls raise, SourceChangedError for a
    partition that keeps changing, DiskWriteError.  After an error the vault is unchanged.
    """
    with advising_room(), open_vault(vault) as store:
        reader = VaultReader.over(store, password)
        complete_copies(store)
        writer = BackupWriter(store, reader, address.url, now_ms)
        try:
            identity, client = await _connect(reach, address, cluster, writer.heads)
            async with client:
                work = _NodeBackup(client, writer, identity, progress, piece_limit, segment_size)
                sections = [await work.partition(one) for one in await work.readings(partitions)]
                storage = await work.storage()
            return writer.commit(  # not in a thread: a cancellation must not call `give_up` during the commit
                sections, storage, tag=tag, cluster_key=identity.cluster_key,
                num_partitions=identity.num_partitions, live=True, partial=partitions is not None,
            )  # fmt: skip
        except BaseException:
            writer.give_up()
            raise


async def _connect(
    reach: ConnectionFactory, address: Address, given: ClusterIdentity | None, heads: tuple[BackupHead, ...]
) -> tuple[ClusterIdentity, AdminClient]:
    """Find the cluster that the node agrees to belong to; returns it with an open connection."""
    if given is not None:
        return given, await _opened(reach, address, given)
    async with await reach.admin(address) as client:
        reported = await read_cluster(client)
    known = [reported] if reported is not None else _clusters(heads, address)
    for one in known:
        try:
            return one, await _opened(reach, address, one)
        except RemoteError as error:
            if reported is not None or error.code != FailureCode.MISMATCH:
                raise
    raise InvalidRequestError(
        f"{address}: the node does not tell of which cluster it is, and it is of none that the vault knows",
        advice="give --key and --partitions; the node compares them with its own",
    )


def _clusters(heads: tuple[BackupHead, ...], address: Address) -> list[ClusterIdentity]:
    """The clusters of all backups, without duplicates; that of the last backup of this node comes first."""
    ordered = sorted(heads, key=lambda one: (one.source != address.url, -one.created_ms))
    found = (
        ClusterIdentity(one.cluster_key, one.num_partitions)
        for one in ordered
        if one.cluster_key is not None and one.num_partitions is not None
    )
    return list(dict.fromkeys(found))


async def _opened(reach: ConnectionFactory, address: Address, cluster: ClusterIdentity) -> AdminClient:
    return await reach.admin(address, cluster_key=cluster.cluster_key, num_partitions=cluster.num_partitions)


@dataclass(slots=True)
class _PartialRead:
    """What has been read of a partition so far.  `states`: of the writer, before each piece and after the last.

    `safe`: the records read up to this transaction, the low-water mark when reading began, cannot have changed since.
    """

    layout: PartitionLayout
    pieces: list[Piece]
    states: list[WriterState]
    safe: int = -1


class _NodeBackup:
    """Reads a node's partitions into a backup, one after the other."""

    def __init__(
        self,
        client: AdminClient,
        writer: BackupWriter,
        cluster: ClusterIdentity,
        progress: Progress,
        limit: int,
        segment_size: int,
    ) -> None:
        self._client, self._writer, self._cluster = client, writer, cluster
        self._progress, self._limit, self._segment_size = progress, limit, segment_size
        self._previous = writer.previous()
        self._control = self._previous_control()
        self._infos: dict[int, PartitionReading] = {}

    def _previous_control(self) -> ControlFile | None:
        """The control file in the last backup of this node; None if there is none, or it is of another cluster."""
        head = self._writer.previous_head
        if head is None or None not in self._previous:
            return None
        try:
            source = BackedSource(BackupFiles(self._writer.reader, head), CONTROL_FILE_NAME, CONTROL_FILE_NAME)
            content = bytearray(source.size())
            source.read_into(0, memoryview(content))
            control = decode_control(content)
        except (FileNotFoundError, DamageError, ValueError):  # unusable: read everything
            return None
        same = (control.header.cluster_key, control.header.num_partitions) == (
            self._cluster.cluster_key,
            self._cluster.num_partitions,
        )
        return control if same and control.size_fits else None

    async def readings(self, partitions: frozenset[int] | None) -> tuple[int, ...]:
        """The partitions to back up.  Raises InvalidRequestError."""
        found = await read_partitions(self._client, partitions)
        need_assigned(found, str(self._client.address))
        total = sum(_or_minus_one(one.last_transaction_id) + 1 for one in found)
        self._progress.start(f"backing up {self._client.address}", total)
        return tuple(one.partition for one in found)

    # ---- a partition -------------------------------------------------------------------------------------------------

    async def partition(self, number: int) -> BackedPartition:
        """Back up one partition as of one moment.  Raises SourceChangedError."""
        why = ""
        so_far = _PartialRead(self._layout(number), [], [self._writer.state()])
        for attempt in range(_TRIES):
            if attempt:
                await asyncio.sleep(_PAUSE)
            try:
                return await self._partition(number, so_far)
            except SourceChangedError as error:
                why = error.message
        raise SourceChangedError(
            f"{self._client.address.url}: partition {number} changed while it was read: {why}",
            advice="try again; nothing was written to the vault",
        )

    async def _partition(self, number: int, so_far: _PartialRead) -> BackedPartition:
        # the truncation count must be read before the state
        counted, now = [(await read_partitions(self._client, {number}))[0] for _ in range(2)]
        need_assigned([now], str(self._client.address))
        last, mark = now.last_transaction_id, now.local_low_water_mark
        if last is None:
            raise ProtocolError(str(self._client.address), f"the node does not tell the end of partition {number}")
        seen = counted.last_transaction_id, counted.local_low_water_mark
        if mark is not None and last < mark and seen != (last, mark):
            raise SourceChangedError(f"it ends at transaction {last}, and its mark was {mark}")
        if so_far.pieces:
            await self._rewind(number, so_far)
        else:
            await self._reuse_previous(number, so_far, now)
        so_far.safe = min(_or_minus_one(now.low_water_mark), _or_minus_one(mark))
        tail: Piece | None = None
        async with aclosing(self._pieces(so_far.layout, number, last)) as pieces:
            async for one in pieces:
                # waited for also when cancelled: `give_up` must not miss what a thread is writing
                read = await in_thread(partial(self._writer.read, one.content, one.first_transaction_id, one.records))
                so_far.pieces.append(await in_thread(partial(self._writer.take, read)))
                so_far.states.append(self._writer.state())
                tail = read.piece if one.records else tail
        if tail is not None and not await self._is_unchanged(number, tail):
            raise SourceChangedError(f"what stands at transaction {tail.first_transaction_id} is another one now")
        (after,) = await read_partitions(self._client, {number})
        _check_not_truncated(replace(now, truncations=counted.truncations), after)
        self._infos[number] = now
        plan = so_far.layout.plan(tuple(so_far.pieces))
        if (
            mark is None
            or now.unread  # it may have any number of transactions
            or now.damaged
            or now.session_id is None
            or now.low_water_mark is None
            or so_far.layout.next_transaction_id <= mark
        ):
            plan = replace(plan, damaged=max(plan.damaged, 1))
        return await in_thread(partial(self._writer.write_section, number, plan, so_far.pieces))

    def _layout(self, number: int) -> PartitionLayout:
        created = self._writer.created_ms if self._control is None else self._control.header.created
        return PartitionLayout(
            number, self._cluster.cluster_key, created, limit=self._limit, segment_size=self._segment_size
        )

    async def _reuse_previous(self, number: int, so_far: _PartialRead, now: PartitionReading) -> None:
        """Begin with the pieces of the last backup that are unchanged."""
        so_far.layout = self._layout(number)
        previous, until = self._previous.get(number), self._unchanged_until(number, now)
        if previous is None or until < 0:
            return
        known = so_far.layout.resume(previous, until)
        if not known or not await self._is_unchanged(number, _kept_piece(known[-1])):
            so_far.layout = self._layout(number)
            return
        for one in known:
            so_far.pieces.append(self._writer.take(ReadPiece(_kept_piece(one), None), one.page))
            so_far.states.append(self._writer.state())
        self._progress.advance(so_far.layout.next_transaction_id)

    async def _rewind(self, number: int, so_far: _PartialRead) -> None:
        """Keep the pieces of the previous attempt that cannot have changed since, and drop the rest."""
        plan, pieces = so_far.layout.plan(tuple(so_far.pieces)), so_far.pieces
        layout = self._layout(number)
        known = layout.resume(PreviousSection(Section(plan.directories, plan.files, tuple(pieces)), 0, 0), so_far.safe)
        if not known or not await self._is_unchanged(number, _kept_piece(known[-1])):
            layout, known = self._layout(number), ()
        so_far.layout = layout
        self._writer.return_to(so_far.states[len(known)])
        del pieces[len(known) :], so_far.states[len(known) + 1 :]

    def _unchanged_until(self, number: int, now: PartitionReading) -> int:
        """The last transaction up to which the last backup has the same records as the node; -1 for none."""
        previous = self._previous.get(number)
        then = struct_in_force(self._control, number)
        last = now.last_transaction_id
        if previous is None or then is None or last is None or then.session_id < 0:
            return -1
        if (then.session_id, then.low_water_mark) == (now.session_id, now.low_water_mark):
            return last
        return min(then.low_water_mark, then.local_low_water_mark, last)

    async def _is_unchanged(self, number: int, piece: Piece) -> bool:
        """Whether the node has exactly the records of a piece."""
        parts = []
        first, last = piece.first_transaction_id, piece.next_transaction_id - 1
        async with aclosing(walk(self._client, number, first, last)) as items:
            async for item in items:
                if isinstance(item, Finding):
                    return False
                parts.append(_on_disk(item))
        return self._writer.sealer.digest(b"".join(parts)) == piece.digest

    async def _pieces(self, layout: PartitionLayout, number: int, last: int) -> AsyncGenerator[CutPiece, None]:
        """The records up to transaction `last` in pieces, starting where the layout ends."""
        gathered: list[bytes] = []
        size, first = 0, layout.next_transaction_id
        async with aclosing(self._records(number, first, last)) as records:
            async for transaction_id, whole, data in records:
                if gathered and (not whole or transaction_id != first + len(gathered) or size >= _GATHERED):
                    for one in layout.add(first, b"".join(gathered), _sizes(gathered)):
                        yield one
                    gathered, size = [], 0
                if not whole:
                    for one in layout.add_damaged(transaction_id, data):
                        yield one
                    continue
                if not gathered:
                    first = transaction_id
                gathered.append(data)
                size += len(data)
        if gathered:
            for one in layout.add(first, b"".join(gathered), _sizes(gathered)):
                yield one
        for one in layout.finish(last):
            yield one

    async def _records(self, number: int, first: int, last: int) -> AsyncGenerator[tuple[int, bool, bytes], None]:
        """Each record that the node returns: transaction id, whether its data is intact, and bytes.

        Records that the node cannot read are skipped; after `UNREADABLE_IN_A_ROW` of them in sequence reading ends.  Raises
        SourceChangedError if the log became shorter.
        """
        position, failed = first, 0
        while position <= last and failed < UNREADABLE_IN_A_ROW:
            damaged = found = False
            async with aclosing(walk(self._client, number, position, last)) as items:
                async for item in items:
                    if isinstance(item, NodeRecord):
                        yield item.transaction_id, not damaged, _on_disk(item)
                        position, failed, damaged, found = item.transaction_id + 1, 0, False, False
                        continue
                    if item.code is Code.READ_ERROR:  # the walk has given up
                        return
                    found = True
                    damaged = item.code is Code.DATA_CHECKSUM  # the next item is the damaged record
                    if not damaged and item.transaction_id is not None:
                        position, failed = item.transaction_id + 1, failed + 1
            if position <= last and not found:
                raise SourceChangedError(f"it has no transaction {position} now")

    # ---- control file ------------------------------------------------------------------------------------------------

    async def storage(self) -> BackedPartition:
        """Write the section of the storage directory: the control file only.

        It has the sessions and marks of the partitions that were backed up; all other partitions are not assigned.
        """
        created = self._writer.created_ms if self._control is None else self._control.header.created
        cluster = self._cluster
        control = initial_control(Layout.RELEASED, cluster.cluster_key, cluster.num_partitions, created)
        infos = list(control.partitions)
        for number, answer in self._infos.items():
            infos[number] = infos[number].rewritten(
                session_id=_or_minus_one(answer.session_id),
                low_water_mark=_or_minus_one(answer.low_water_mark),
                local_low_water_mark=_or_minus_one(answer.local_low_water_mark),
                flags=FLAG_ASSIGNED | (0 if answer.available is False else FLAG_AVAILABLE),
            )
        content = replace(control, partitions=tuple(infos)).encode()
        taken = [self._writer.take(self._writer.read(one.content)) for one in control_pieces(content, self._limit)]
        plan = control_plan(CONTROL_FILE_NAME, content, created)
        return await in_thread(partial(self._writer.write_section, BESIDE, plan, taken))


def _check_not_truncated(before: PartitionReading, after: PartitionReading) -> None:
    """Raise SourceChangedError unless the two readings prove that no record was removed in between."""
    if before.session_id != after.session_id:
        raise SourceChangedError(f"session {after.session_id} began")
    if before.truncations != after.truncations:
        raise SourceChangedError("it was truncated")
    if _or_minus_one(after.last_transaction_id) < _or_minus_one(before.last_transaction_id):
        raise SourceChangedError(f"it ends at transaction {after.last_transaction_id} now")


def _or_minus_one(number: int | None) -> int:
    """A session, mark or transaction id; -1 if there is none yet, as in the files."""
    return -1 if number is None else number


def _kept_piece(one: PlannedPiece) -> Piece:
    assert one.kept is not None
    return one.kept


def _on_disk(item: NodeRecord) -> bytes:
    """A record as it is stored in a data file, including a wrong checksum of its data."""
    one = item.record
    head = pack_record_header(one.transaction_id, one.request_id, one.header, len(one.data), one.data_checksum)
    return b"".join((head, one.data, CHECKSUM.struct.pack(crc32(one.data, crc32(head)))))


def _sizes(parts: list[bytes]) -> Int64Column:
    return np.fromiter(map(len, parts), np.int64, len(parts))
