"""A backup of a running node, taken through its admin port: the records of its partitions, their sessions and marks.

Records become the files that `node_layout` describes, and the pieces that a backup of the node's directory has.  What a port does
not show is not in the backup: the node's own files, what is damaged in them, fences, the ledger of losses, the quarantine.

Of each partition one moment is kept.  Session, marks and end are asked first, then records are read up to that end; behind it
others may be appended meanwhile.  Nothing but a truncation takes records away, and nodes count these: if session and count are
the same afterwards, and the last piece is when it is read once more, all that was read was there together.  Otherwise what is
above the low-water mark with which reading began is read anew; so sessions that follow one another cost what each one appended.

What the last backup of the same node holds is not read again: as long as session and low-water mark are the same, all of it,
as a session only appends; else what was at or below the marks of then, which no recovery takes back.  The last piece that is
taken over is read all the same, and if it is another one, so is everything.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass, replace
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
from waltzctl.engine.pages.page_storage import PageStorage
from waltzctl.engine.progress import SILENT, Progress
from waltzctl.engine.scan.columns import Int64Column
from waltzctl.engine.vault.backup_files import BackedSource, BackupFiles
from waltzctl.engine.vault.vault_reader import VAULT_OPTIONS, VaultReader
from waltzctl.formats.checksums import crc32
from waltzctl.formats.control import (
    CONTROL_FILE_NAME,
    FLAG_ASSIGNED,
    FLAG_AVAILABLE,
    ControlFile,
    Layout,
    decode_control,
    initial_control,
)
from waltzctl.formats.segment import CHECKSUM, pack_record_header
from waltzctl.formats.vault import BESIDE, BackedPartition, BackupHead, Piece, Section
from waltzctl.formats.wire.failure import FailureCode

_TRIES = 10
_PAUSE = 0.1
"""How often a partition is read that is truncated meanwhile, and seconds between two readings."""
_GATHERED = 256 << 10
"""Bytes of records that are cut into pieces together."""


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
    """Back a node up through its admin port.

    `partitions`: only these, None for all that are assigned to it.  `cluster`: what the node is to be of; None: what it says, or
    the cluster of a backup in the vault, if the node says that it is of that.  `piece_limit`: in a vault always the same;
    `segment_size`: bytes beyond which a segment is closed.

    Raises what `PageStorage.open` and `VaultReader.over` raise, RemoteError for a node of another cluster, InvalidRequestError
    where nobody knows the cluster and for partitions that the node does not have, what the calls raise, SourceChangedError for a
    partition that does not stand still, DiskWriteError; the vault is as it was then.
    """
    with PageStorage.open(vault, VAULT_OPTIONS) as store:
        writer = BackupWriter(store, VaultReader.over(store, password), address.url, now_ms)
        try:
            identity, client = await _connect(reach, address, cluster, writer.heads)
            async with client:
                work = _NodeBackup(client, writer, identity, progress, piece_limit, segment_size)
                sections = [await work.partition(one) for one in await work.readings(partitions)]
                storage = await work.storage()
            return writer.commit(  # here, and not in a thread: once it has begun nobody gives it up
                sections, storage, tag=tag, cluster_key=identity.cluster_key,
                num_partitions=identity.num_partitions, live=True, partial=partitions is not None,
            )  # fmt: skip
        except BaseException:
            writer.give_up()
            raise


async def _connect(
    reach: ConnectionFactory, address: Address, given: ClusterIdentity | None, heads: tuple[BackupHead, ...]
) -> tuple[ClusterIdentity, AdminClient]:
    """A connection over which the node has agreed to be of a cluster, and that cluster."""
    if given is not None:
        return given, await _opened(reach, address, given)
    async with await reach.admin(address) as client:
        told = await read_cluster(client)
    known = [told] if told is not None else _clusters(heads, address)
    for one in known:
        try:
            return one, await _opened(reach, address, one)
        except RemoteError as error:
            if told is not None or error.code != FailureCode.MISMATCH:
                raise
    raise InvalidRequestError(
        f"{address}: the node does not tell of which cluster it is, and it is of none that the vault knows",
        advice="give --key and --partitions; the node compares them with its own",
    )


def _clusters(heads: tuple[BackupHead, ...], address: Address) -> list[ClusterIdentity]:
    """The clusters of all backups; that of this node's comes first."""
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
class _Begun:
    """What was taken of a partition so far.  `states`: in front of each piece, and behind the last.

    `safe`: what was at or below this transaction when reading began is what was read of it.
    """

    layout: PartitionLayout
    pieces: list[Piece]
    states: list[WriterState]
    safe: int = -1


class _NodeBackup:
    """Reads a node's partitions, one after the other, into a backup."""

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
        """The control file in the last backup of this node; None where that was of another cluster."""
        head = self._writer.previous_head
        if head is None or None not in self._previous:
            return None
        try:
            source = BackedSource(BackupFiles(self._writer.reader, head), CONTROL_FILE_NAME, CONTROL_FILE_NAME)
            content = bytearray(source.size())
            source.read_into(0, memoryview(content))
            control = decode_control(content)
        except (FileNotFoundError, DamageError, ValueError):  # then everything is read
            return None
        same = (control.header.cluster_key, control.header.num_partitions) == (
            self._cluster.cluster_key,
            self._cluster.num_partitions,
        )
        return control if same and control.size_fits else None

    async def readings(self, partitions: frozenset[int] | None) -> tuple[int, ...]:
        """The partitions that are backed up.  Raises InvalidRequestError."""
        found = await read_partitions(self._client, partitions)
        need_assigned(found, str(self._client.address))
        total = sum(_known(one.last_transaction_id) + 1 for one in found)
        self._progress.start(f"backing up {self._client.address}", total)
        return tuple(one.partition for one in found)

    # ---- a partition -------------------------------------------------------------------------------------------------

    async def partition(self, number: int) -> BackedPartition:
        """Everything of a partition, at one moment."""
        why = ""
        begun = _Begun(self._layout(number), [], [self._writer.state()])
        for attempt in range(_TRIES):
            if attempt:
                await asyncio.sleep(_PAUSE)
            try:
                return await self._partition(number, begun)
            except SourceChangedError as error:
                why = error.message
        raise SourceChangedError(
            f"{self._client.address.url}: partition {number} changed while it was read: {why}",
            advice="try again; nothing was written to the vault",
        )

    async def _partition(self, number: int, begun: _Begun) -> BackedPartition:
        counted, now = [(await read_partitions(self._client, {number}))[0] for _ in range(2)]  # the count comes first
        need_assigned([now], str(self._client.address))
        last, mark = now.last_transaction_id, now.local_low_water_mark
        if last is None:
            raise ProtocolError(str(self._client.address), f"the node does not tell the end of partition {number}")
        seen = counted.last_transaction_id, counted.local_low_water_mark
        if mark is not None and last < mark and seen != (last, mark):
            raise SourceChangedError(f"it ends at transaction {last}, and its mark was {mark}")
        if begun.pieces:
            await self._go_back(number, begun)
        else:
            await self._take_over(number, begun, now)
        begun.safe = min(_known(now.low_water_mark), _known(mark))
        tail: Piece | None = None
        async with aclosing(self._pieces(begun.layout, number, last)) as pieces:
            async for one in pieces:
                read = await asyncio.to_thread(self._writer.read, one.content, one.first_transaction_id, one.records)
                begun.pieces.append(await asyncio.to_thread(self._writer.take, read))
                begun.states.append(self._writer.state())
                tail = read.piece if one.records else tail
        if tail is not None and not await self._stands(number, tail):
            raise SourceChangedError(f"what stands at transaction {tail.first_transaction_id} is another one now")
        (after,) = await read_partitions(self._client, {number})
        _check_still(replace(now, truncations=counted.truncations), after)
        self._infos[number] = now
        plan = begun.layout.plan(tuple(begun.pieces))
        if (
            mark is None
            or now.session_id is None
            or now.low_water_mark is None
            or begun.layout.next_transaction_id <= mark
        ):
            plan = replace(plan, damaged=max(plan.damaged, 1))
        return await asyncio.to_thread(self._writer.write_section, number, plan, begun.pieces)

    def _layout(self, number: int) -> PartitionLayout:
        created = self._writer.created_ms if self._control is None else self._control.header.created
        return PartitionLayout(
            number, self._cluster.cluster_key, created, limit=self._limit, segment_size=self._segment_size
        )

    async def _take_over(self, number: int, begun: _Begun, now: PartitionReading) -> None:
        """Begin with what the last backup has."""
        begun.layout = self._layout(number)
        previous, until = self._previous.get(number), self._unchanged_until(number, now)
        if previous is None or until < 0:
            return
        known = begun.layout.resume(previous, until)
        if not known or not await self._stands(number, _kept(known[-1])):
            begun.layout = self._layout(number)
            return
        for one in known:
            begun.pieces.append(self._writer.take(ReadPiece(_kept(one), None), one.page))
            begun.states.append(self._writer.state())
        self._progress.advance(begun.layout.next_transaction_id)

    async def _go_back(self, number: int, begun: _Begun) -> None:
        """Keep what an attempt before has read that cannot have changed since, and forget the rest."""
        plan, pieces = begun.layout.plan(tuple(begun.pieces)), begun.pieces
        layout = self._layout(number)
        known = layout.resume(PreviousSection(Section(plan.directories, plan.files, tuple(pieces)), 0, 0), begun.safe)
        if not known or not await self._stands(number, _kept(known[-1])):
            layout, known = self._layout(number), ()
        begun.layout = layout
        self._writer.return_to(begun.states[len(known)])
        del pieces[len(known) :], begun.states[len(known) + 1 :]

    def _unchanged_until(self, number: int, now: PartitionReading) -> int:
        """Up to which transaction the last backup has what the node has; -1 for none."""
        previous = self._previous.get(number)
        if self._control is None or previous is None or number >= len(self._control.partitions):
            return -1
        then = self._control.partitions[number].current_struct
        last = now.last_transaction_id
        if then is None or last is None or then.session_id < 0:
            return -1
        if (then.session_id, then.low_water_mark) == (now.session_id, now.low_water_mark):
            return last
        return min(then.low_water_mark, then.local_low_water_mark, last)

    async def _stands(self, number: int, piece: Piece) -> bool:
        """Whether the node has the records of a piece."""
        parts = []
        first, last = piece.first_transaction_id, piece.next_transaction_id - 1
        async with aclosing(walk(self._client, number, first, last)) as items:
            async for item in items:
                if isinstance(item, Finding):
                    return False
                parts.append(_on_disk(item))
        return self._writer.sealer.digest(b"".join(parts)) == piece.digest

    async def _pieces(self, layout: PartitionLayout, number: int, last: int) -> AsyncGenerator[CutPiece, None]:
        """The records up to transaction `last`, from where the layout is, in pieces."""
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
        """Id, whether its data is whole, and bytes of each record that the node gives out.

        What it does not give out is passed over; after many in a row nothing is tried any more.
        Raises SourceChangedError for a log that became shorter.
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
                    if item.code is Code.READ_ERROR:  # it has given up
                        return
                    found = True
                    damaged = item.code is Code.DATA_CHECKSUM  # and the record comes next
                    if not damaged and item.transaction_id is not None:
                        position, failed = item.transaction_id + 1, failed + 1
            if position <= last and not found:
                raise SourceChangedError(f"it has no transaction {position} now")

    # ---- what lies beside the partitions -----------------------------------------------------------------------------

    async def storage(self) -> BackedPartition:
        """A control file with what the port tells of the partitions that were backed up; the others are not assigned in it."""
        created = self._writer.created_ms if self._control is None else self._control.header.created
        cluster = self._cluster
        control = initial_control(Layout.RELEASED, cluster.cluster_key, cluster.num_partitions, created)
        infos = list(control.partitions)
        for number, told in self._infos.items():
            infos[number] = infos[number].rewritten(
                session_id=_known(told.session_id),
                low_water_mark=_known(told.low_water_mark),
                local_low_water_mark=_known(told.local_low_water_mark),
                flags=FLAG_ASSIGNED | (0 if told.available is False else FLAG_AVAILABLE),
            )
        content = replace(control, partitions=tuple(infos)).encode()
        taken = [self._writer.take(self._writer.read(one.content)) for one in control_pieces(content, self._limit)]
        plan = control_plan(CONTROL_FILE_NAME, content, created)
        return await asyncio.to_thread(self._writer.write_section, BESIDE, plan, taken)


def _check_still(before: PartitionReading, after: PartitionReading) -> None:
    """Raise SourceChangedError unless nothing can have been taken away."""
    if before.session_id != after.session_id:
        raise SourceChangedError(f"session {after.session_id} began")
    if before.truncations != after.truncations:
        raise SourceChangedError("it was truncated")
    if _known(after.last_transaction_id) < _known(before.last_transaction_id):
        raise SourceChangedError(f"it ends at transaction {after.last_transaction_id} now")


def _known(number: int | None) -> int:
    """A session, a mark or an id; -1 as where there was none yet."""
    return -1 if number is None else number


def _kept(one: PlannedPiece) -> Piece:
    assert one.kept is not None
    return one.kept


def _on_disk(item: NodeRecord) -> bytes:
    """A record as it stands in a data file, a wrong checksum of its data included."""
    one = item.record
    head = pack_record_header(one.transaction_id, one.request_id, one.header, len(one.data), one.data_checksum)
    return b"".join((head, one.data, CHECKSUM.struct.pack(crc32(one.data, crc32(head)))))


def _sizes(parts: list[bytes]) -> Int64Column:
    return np.fromiter(map(len, parts), np.int64, len(parts))
