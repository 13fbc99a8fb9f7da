"""Inspect a running node's storage through its admin port, with the findings and summaries of `engine.inspect`.

Through the admin port every record can be read, whether or not the partition is online or in use.  What surrounds the records on
disk (files, headers, indexes, record checksums, the struct pairs of the control file) cannot be seen; a finding says so.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Collection
from contextlib import aclosing
from dataclasses import dataclass

from waltzctl.engine.amounts import chosen_partitions
from waltzctl.engine.client.admin_client import AdminClient
from waltzctl.engine.client.admin_records import BatchSize, read_batches
from waltzctl.engine.client.copying import damaged_data
from waltzctl.engine.client.partition_readings import PartitionReading, need_assigned, read_cluster, read_partitions
from waltzctl.engine.errors import ProtocolError, RemoteError
from waltzctl.engine.findings import Code, Finding, Severity, Where, loss_finding, make_finding
from waltzctl.engine.inspect.status import PartitionStatus, StorageStatus
from waltzctl.engine.inspect.verification import Tally, VerifySummary
from waltzctl.engine.log.places import place
from waltzctl.engine.losses import BelowMark
from waltzctl.engine.progress import SILENT, Progress
from waltzctl.formats.request_id import RequestId
from waltzctl.formats.segment import RECORD_OVERHEAD
from waltzctl.formats.wire.failure import DAMAGED_RECORD, FailureCode
from waltzctl.formats.wire.records import WireRecord

UNREADABLE_IN_A_ROW = 1000
"""Number of consecutive unreadable records after which the rest of the partition is not tried."""


@dataclass(frozen=True, slots=True)
class NodeRecord:
    """A record of a node's partition, with the attributes of a `DumpedRecord`; None for what cannot be seen from outside."""

    partition: int
    record: WireRecord

    @property
    def segment(self) -> None:
        """Not seen."""

    @property
    def transaction_id(self) -> int:
        """The record's id."""
        return self.record.transaction_id

    @property
    def offset(self) -> None:
        """Not seen."""

    @property
    def size(self) -> int:
        """Bytes of the record on the node's disk."""
        return RECORD_OVERHEAD + len(self.record.data)

    @property
    def request_id(self) -> RequestId:
        """Who appended it."""
        return self.record.request_id

    @property
    def header(self) -> int:
        """The application's transaction header."""
        return self.record.header

    @property
    def data_length(self) -> int:
        """Bytes of its data."""
        return len(self.record.data)

    @property
    def data_checksum(self) -> int:
        """The checksum as the client sent it, unsigned."""
        return self.record.data_checksum

    @property
    def record_checksum(self) -> None:
        """Not seen."""

    @property
    def data(self) -> bytes:
        """Its data."""
        return self.record.data


async def walk(
    client: AdminClient, partition: int, first: int, last: int, most: int | None = UNREADABLE_IN_A_ROW
) -> AsyncGenerator[NodeRecord | Finding, None]:
    """The records from `first` to `last`, and a finding for each that is damaged or missing.

    `most`: consecutive unreadable records after which the walk ends; None: no limit.  A finding about a record's data comes
    before that record.  Raises what the calls raise.
    """
    url = client.address.url
    position, failed = first, 0
    size = BatchSize()
    while position <= last:
        try:
            async with aclosing(read_batches(client, partition, position, last, size)) as batches:
                async for batch in batches:
                    failed = 0
                    for record in batch:
                        if record.transaction_id != position:
                            text = f"transaction {record.transaction_id} stands where {position} should"
                            yield _finding(Code.RECORD_ORDER, url, partition, position, text)
                            return
                        if not record.data_ok:
                            yield damaged_data(client.address, partition, record)
                        yield NodeRecord(partition, record)
                        position += 1
        except RemoteError as error:
            if error.code not in DAMAGED_RECORD:
                raise
            text = f"the node does not give it out: {error.text}"
            yield _finding(Code.RECORD_CHECKSUM, url, partition, position, text, missing=1)
            position, failed = position + 1, failed + 1
            size.count = 1
            if failed == most:
                text = f"{failed} transactions in a row cannot be read; the rest was not tried"
                yield _finding(Code.READ_ERROR, url, partition, position, text)
                return
            continue
        break
    if position <= last:
        missing = await _missing(client, partition, position)
        if missing is not None:
            yield missing


async def _missing(client: AdminClient, partition: int, position: int) -> Finding | None:
    """The finding for a record that is missing; None when it was truncated during the read."""
    (now,) = await read_partitions(client, {partition})
    last, mark = now.last_transaction_id, now.local_low_water_mark
    if last is None or last < position:
        return None
    below = mark is not None and position <= mark
    text = f"the node does not have it, though the partition's last transaction is {last}"
    code = Code.ACKNOWLEDGED_MISSING if below else Code.RECORD_ORDER
    return _finding(code, client.address.url, partition, position, text)


def _finding(
    code: Code, url: str, partition: int, transaction_id: int | None, message: str, missing: int | None = None
) -> Finding:
    return make_finding(code, url, message, partition=partition, transaction_id=transaction_id, missing=missing)


def below_mark(url: str, partition: int, first: int, mark: int) -> Finding:
    """The finding for lost transactions: `first` to the local low-water mark `mark`, which the node had and no longer has."""
    return loss_finding(BelowMark(first, mark, None), Where(None, partition, place(url)))


def _end_finding(reading: PartitionReading, url: str) -> Finding | None:
    """The finding for a partition that ends below its local low-water mark, up to which all was acknowledged.

    Or for one of which the node gives nothing: then nothing tells where its log ends.
    """
    if reading.unread:
        text = f"the node gives no transaction of the partition, which is out of service: {reading.out_of_service}"
        return _finding(Code.READ_ERROR, url, reading.partition, None, text)
    last, mark = reading.last_transaction_id, reading.local_low_water_mark
    if last is None or mark is None or last >= mark:
        return None
    return below_mark(url, reading.partition, last + 1, mark)


@dataclass(frozen=True, slots=True)
class NodeVerifyOptions:
    """`partitions`: None for all that are assigned.  `max_duration`: in seconds.  `limit_rate`: in bytes per second."""

    partitions: Collection[int] | None = None
    max_duration: float | None = None
    limit_rate: int | None = None


class NodeVerification:
    """Reads every record of one node or several and reports what is wrong.

    Call `findings` once for each node, then `summary`.  If the caller stops before the end, the summary covers what was checked.
    """

    def __init__(self, options: NodeVerifyOptions, progress: Progress = SILENT) -> None:
        self._options = options
        self._progress = progress
        self._tally = Tally()
        self._began = time.monotonic()
        self._bytes = self._records = self._partitions = 0
        self._unfinished = False
        self.cut = False
        """Whether `max_duration` ended the verification before everything was read."""

    async def findings(self, client: AdminClient) -> AsyncGenerator[Finding, None]:
        """The findings of one node, as they are found.

        Raises what the calls raise, and InvalidRequestError for a partition that is not assigned to the node.
        """
        self._unfinished = True
        async with aclosing(self._findings(client)) as findings:
            async for finding in findings:
                self._tally.add(finding)
                yield finding
                if self.cut:
                    break
        self._unfinished = False

    async def _findings(self, client: AdminClient) -> AsyncGenerator[Finding, None]:
        readings = await read_partitions(client, self._options.partitions)
        need_assigned(readings, str(client.address))
        url = client.address.url
        yield make_finding(
            Code.SEEN_FROM_OUTSIDE, url, "seen through the node's port: only records and marks were checked"
        )
        lasts = [reading.last_transaction_id for reading in readings if reading.last_transaction_id is not None]
        total = sum(last + 1 for last in lasts)
        self._progress.start(f"verify {client.address}", total)
        for reading in readings:
            self._partitions += 1
            wrong = _end_finding(reading, url)
            if wrong is not None:
                yield wrong
            if reading.out_of_service == FailureCode.QUARANTINED:
                text = "the node has quarantined the partition; what is wrong is in its files, which are not seen from here"
                yield _finding(Code.READ_ERROR, url, reading.partition, None, text)
            last = reading.last_transaction_id
            if last is None:
                yield _finding(
                    Code.READ_ERROR, url, reading.partition, None, "the node does not tell its last transaction"
                )
                continue
            async with aclosing(walk(client, reading.partition, 0, last)) as items:
                async for item in items:
                    if isinstance(item, Finding):
                        yield item
                        continue
                    self._records += 1
                    self._bytes += item.size
                    self._progress.advance(1)
                    await self._pace()
                    if self.cut:
                        return

    async def _pace(self) -> None:
        elapsed = time.monotonic() - self._began
        options = self._options
        if options.max_duration is not None and elapsed >= options.max_duration:
            self.cut = True
        elif options.limit_rate is not None:
            ahead = self._bytes / options.limit_rate - elapsed
            if ahead > 0.01:
                left = ahead if options.max_duration is None else options.max_duration - elapsed
                await asyncio.sleep(min(ahead, left))

    def summary(self, *, interrupted: bool = False) -> VerifySummary:
        """What was found, in numbers.  Segments are not seen from outside: there are 0."""
        tally = self._tally
        return VerifySummary(
            status=tally.status,
            exit_status_name="interrupted" if interrupted else tally.exit_status_name,
            partitions=self._partitions,
            segments=0,
            records=self._records,
            bytes=self._bytes,
            damage=tally.damage,
            repairable=tally.repairable,
            notes=tally.notes,
            elapsed_seconds=time.monotonic() - self._began,
            complete=not (interrupted or self.cut or self._unfinished),
        )


async def node_status(client: AdminClient, partitions: Collection[int] | None = None) -> StorageStatus:
    """The status that a node reports; None: not reported.

    `health` is damaged where a partition ends below its local low-water mark, or where the node gives nothing of it, unassigned
    where it is not the node's, and otherwise not known.  Raises what the calls raise, and InvalidRequestError for a partition
    that the node's cluster does not have (of a released node it is not known).
    """
    url = client.address.url
    if partitions is not None and (cluster := await read_cluster(client)) is not None:
        chosen_partitions(partitions, cluster.num_partitions)
    readings = await read_partitions(client, partitions)
    return StorageStatus(
        path=url,
        cluster_key=None,
        layout=None,
        num_partitions=None,
        locked_by=None,
        partitions=tuple(_status(reading, url) for reading in readings),
    )


def _status(reading: PartitionReading, url: str) -> PartitionStatus:
    wrong = _end_finding(reading, url)
    assert wrong is None or wrong.severity is Severity.DAMAGE
    last = reading.last_transaction_id
    return PartitionStatus(
        partition=reading.partition,
        assigned=reading.assigned,
        readable=reading.readable,
        writable=reading.writable,
        session_id=reading.session_id,
        low_water_mark=reading.low_water_mark,
        local_low_water_mark=reading.local_low_water_mark,
        segments=None,
        bytes=None,
        records=None,
        first_transaction_id=None,
        last_transaction_id=None if last is None or last < 0 else last,
        last_written=None,
        health="damaged" if wrong else "unassigned" if reading.assigned is False else None,
        findings=() if wrong is None else (wrong,),
    )


async def read_records(
    client: AdminClient,
    partitions: Collection[int] | None,
    *,
    first: int | None = None,
    last: int | None = None,
    limit: int | None = None,
) -> AsyncGenerator[NodeRecord | Finding, None]:
    """The records with ids from `first` to `last` of these partitions (None: all), at most `limit` in all.

    Raises what the calls raise, InvalidRequestError for a partition that is not assigned to the node.
    """
    readings = await read_partitions(client, partitions)
    need_assigned(readings, str(client.address))
    left = limit
    for reading in readings:
        there = reading.last_transaction_id
        if there is None:
            raise ProtocolError(str(client.address), f"the node does not tell the end of partition {reading.partition}")
        end = there if last is None else min(last, there)
        begin = first or 0
        if left is not None:
            end = min(end, begin + left - 1)  # request no more records than are wanted
        async with aclosing(walk(client, reading.partition, begin, end)) as items:
            async for item in items:
                yield item
                if left is not None and isinstance(item, NodeRecord):
                    left -= 1
        if left == 0:
            return
        wrong = _end_finding(reading, client.address.url)
        behind = (last is None or last > there) and begin <= (reading.local_low_water_mark or 0)
        if wrong is not None and (behind or reading.unread):
            yield wrong
