"""The committed transactions of a whole cluster, for batches and streams, read from the log servers that its metadata names.

Nothing above a partition's high-water mark is read, so that no recovery removes what was returned.  When a partition moves to
another server, reading continues there; each row is returned once, because a part is a range of transaction ids.  For a partition
without a server it waits up to the option ``timeout``.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid
from collections.abc import AsyncIterator, Collection, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from pyspark.sql.datasource import DataSourceReader, InputPartition

from waltzctl.engine.amounts import chosen_partitions
from waltzctl.engine.client.client_options import ClientOptions
from waltzctl.engine.client.log_client import LogClient
from waltzctl.engine.client.open_log import open_log_client
from waltzctl.engine.client.reader_ids import ReaderIdsOfProcess
from waltzctl.engine.errors import InvalidRequestError, RefusedError, StalePlanError
from waltzctl.engine.metadata.metadata_location import MetadataLocation
from waltzctl.engine.metadata.partition_sessions import store_parameters
from waltzctl.engine.spark.data_loss import OPTION, Losses, fails_on_loss
from waltzctl.engine.spark.offsets import BEGINNING, Anchor
from waltzctl.engine.spark.plain_errors import plain_errors
from waltzctl.engine.spark.read_options import METADATA, number_of, partitions_of
from waltzctl.engine.spark.stream_losses import LostRange
from waltzctl.engine.spark.stream_node import KNOWN as CONNECTION_OPTIONS
from waltzctl.engine.spark.stream_node import RANGE_RECORDS, NodeRange, PeerAccess, access_of, anchor_of
from waltzctl.engine.spark.stream_reader import Standing, WaltzStreamReader, stream_options
from waltzctl.engine.spark.stream_rows import RowMaker
from waltzctl.formats.wire.records import WireRecord

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from waltzctl.engine.scan.known_records import KnownRecords

T = TypeVar("T")
BATCH_OPTIONS = ("partitions", "minTransactionId", "maxTransactionId", "data", "columns", "view", OPTION)
_AT_ONCE = 64
_ROWS = 4096
_BYTES = 8 << 20
"""Rows, and bytes, of one batch: at most, but for the requests that were sent together with the last one."""
_LOG = logging.getLogger("waltzctl.spark")
_READER_IDS = ReaderIdsOfProcess()
"""Every batch of a stream has clients of its own."""


@dataclass(frozen=True, slots=True)
class ClusterAccess:
    """A cluster, and how to connect to its servers; can be pickled.  Every executor must see the file of an embedded store."""

    metadata: str
    access: PeerAccess = field(default_factory=PeerAccess)

    def run(self, work: Any) -> Any:
        """Run ``work(client)`` in an event loop of its own.  Raises what it raises."""

        async def whole() -> Any:
            async with self.client() as client:
                return await work(client)

        return asyncio.run(whole())

    def client(self) -> contextlib.AbstractAsyncContextManager[LogClient]:
        """A client of the cluster."""
        options = ClientOptions(timeout=self.access.timeout)
        return open_log_client(self.metadata, self.access.reach(), log=_LOG, options=options, reader_ids=_READER_IDS)


def cluster_access(options: Mapping[str, str]) -> ClusterAccess:
    """Parse Spark's options.  Raises InvalidRequestError."""
    if options.get("path") or options.get("paths"):
        raise InvalidRequestError(f"option {METADATA}: a cluster is read without a path")
    MetadataLocation.parse(options[METADATA])
    return ClusterAccess(options[METADATA], access_of(options))


class ClusterHistory:
    """See `engine.spark.stream_reader.History`."""

    def __init__(self, access: ClusterAccess, rows: RowMaker) -> None:
        self._access, self._rows = access, rows
        self._partitions: tuple[int, ...] = ()

    @property
    def place(self) -> str:
        """The location of the metadata."""
        return self._access.metadata

    def refresh(self) -> uuid.UUID | None:
        """See `History.refresh`."""

        async def read() -> tuple[uuid.UUID, int]:
            async with MetadataLocation.parse(self._access.metadata).open() as store:
                found = await store_parameters(store)
                return found.cluster_key, found.num_partitions

        key, number = asyncio.run(read())
        self._partitions = tuple(range(number))
        return key

    def latest(self, partitions: Collection[int] | None, known: Mapping[int, Anchor], up_to: str) -> dict[int, Anchor]:
        """See `History.latest`: the last committed transaction, whatever `up_to` says.

        Raises InvalidRequestError for a partition that the cluster does not have.
        """
        wanted = chosen_partitions(partitions, len(self._partitions))

        async def read(client: LogClient) -> list[Anchor]:
            marks = await asyncio.gather(*map(client.high_water_mark, wanted))
            return [
                known[number]
                if number in known and known[number].transaction_id == mark
                else await _anchor(client, number, mark)
                for number, mark in zip(wanted, marks, strict=True)
            ]

        return dict(zip(wanted, self._access.run(read), strict=True))

    def standings(self, partitions: Collection[int] | None, known: Mapping[int, Anchor]) -> dict[int, Standing]:
        """See `History.standings`: a cluster's log has no session, and so there are none."""
        return {}

    def at_or_before(self, partition: int, transaction_id: int, known: Anchor) -> Anchor:
        """See `History.at_or_before`."""

        async def read(client: LogClient) -> Anchor:
            return await _anchor(client, partition, min(transaction_id, await client.high_water_mark(partition)))

        found: Anchor = self._access.run(read)
        return found

    def record_now(self, partition: int, anchor: Anchor) -> Anchor | None:
        """See `History.record_now`."""

        async def read(client: LogClient) -> Anchor | None:
            if anchor.transaction_id > await client.high_water_mark(partition):
                return None
            return await _anchor(client, partition, anchor.transaction_id)

        found: Anchor | None = self._access.run(read)
        return found

    def parts(self, partition: int, start: Anchor, end: Anchor) -> Iterator[NodeRange | LostRange]:
        """See `History.parts`."""
        for first in range(start.transaction_id + 1, end.transaction_id + 1, RANGE_RECORDS):
            last = min(first + RANGE_RECORDS - 1, end.transaction_id)
            yield NodeRange(partition, first, last, end if last == end.transaction_id else None)

    def scan(
        self, part: NodeRange | LostRange, losses: Losses, known: KnownRecords | None = None
    ) -> Iterator[pa.RecordBatch]:
        """See `History.scan`: records of a peer are no file's bytes, so that it is the same as `read`."""
        return self.read(part, losses)

    def read(self, part: NodeRange | LostRange, losses: Losses) -> Iterator[pa.RecordBatch]:
        """See `History.read`.  Raises StalePlanError when the last record is another one."""
        assert isinstance(part, NodeRange), "a cluster's log has no loss"
        last: WireRecord | None = None
        for records in read_range(self._access, part):
            last = records[-1]
            yield self._rows.sent(records, self.place, part.partition)
        if part.ends_at is not None and (last is None or not anchor_of(last).is_record(part.ends_at)):
            raise StalePlanError(
                f"{self.place}, partition {part.partition}: transaction {part.last} is another one than when this was planned",
                advice="a committed transaction does not change: is this the same cluster?",
            )

    def close(self) -> None:
        """See `History.close`."""


async def _anchor(client: LogClient, partition: int, transaction_id: int) -> Anchor:
    if transaction_id < 0:
        return BEGINNING
    async for records in _records(client, NodeRange(partition, transaction_id, transaction_id)):
        return anchor_of(records[0])
    raise RefusedError(f"partition {partition}: transaction {transaction_id} is not given out")


async def _records(client: LogClient, part: NodeRange) -> AsyncIterator[list[WireRecord]]:
    """The records of a range, with their data, in batches of at most `_ROWS` records.

    A batch ends once its data has `_BYTES`; the data of records is requested in groups, and the last group may exceed that.
    """
    at_once = 1
    feed = client.feed(part.partition, after=part.first - 1, until=lambda _: part.last)
    async with contextlib.aclosing(feed):
        waiting = []
        async for one in feed:
            waiting.append(one)
            if len(waiting) == _ROWS or one.transaction_id == part.last:
                made: list[WireRecord] = []
                first, size = 0, 0
                while first < len(waiting):
                    some = waiting[first : first + at_once]
                    data = await _data(client, part.partition, [each.transaction_id for each in some])
                    made += [
                        WireRecord.make(each.transaction_id, each.request_id, each.header, payload)
                        for each, payload in zip(some, data, strict=False)
                    ]
                    first += len(data)
                    size += sum(map(len, data))
                    # sizes of the next records are unknown: that of the longest one of this group is assumed
                    at_once = max(1, min(2 * at_once, _AT_ONCE, _BYTES // max(1, *map(len, data))))
                    if size >= _BYTES or first == len(waiting):
                        yield made
                        made, size = [], 0
                waiting = []


async def _data(client: LogClient, partition: int, wanted: Sequence[int]) -> list[bytes]:
    """The data of the first of some transactions, of at least one: with `_BYTES` there the others are given up.

    They were asked for together because those before them are short; 64 of the longest ones would be gigabytes.
    """
    calls = [asyncio.ensure_future(client.data(partition, one)) for one in wanted]
    size = 0

    def count(call: asyncio.Future[bytes]) -> None:
        nonlocal size
        if not call.cancelled() and call.exception() is None:
            size += len(call.result())
        if size >= _BYTES:
            for one in calls[1:]:
                one.cancel()

    for call in calls:
        call.add_done_callback(count)
    try:
        found = [await calls[0]]
        for call in calls[1:]:
            await asyncio.wait([call])
            if call.cancelled():
                break
            found.append(call.result())
        return found
    finally:
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)


def read_range(access: ClusterAccess, part: NodeRange) -> Iterator[list[WireRecord]]:
    """The records of a range, for synchronous code."""
    with asyncio.Runner() as runner:

        def run(work: Coroutine[Any, Any, T]) -> T:
            return runner.run(work)

        client_at = access.client()
        client = run(_enter(client_at))
        try:
            records = _records(client, part)
            while (found := run(_next(records))) is not None:
                yield found
        finally:
            run(_exit(client_at))


async def _enter(manager: contextlib.AbstractAsyncContextManager[LogClient]) -> LogClient:
    return await manager.__aenter__()


async def _exit(manager: contextlib.AbstractAsyncContextManager[LogClient]) -> None:
    await manager.__aexit__(None, None, None)


async def _next(records: AsyncIterator[list[WireRecord]]) -> list[WireRecord] | None:
    return await anext(records, None)


def cluster_stream(options: Mapping[str, str], schema: StructType) -> WaltzStreamReader:
    """The stream of a cluster; `schema`: the columns.  Raises InvalidRequestError for the options."""
    wanted = stream_options(options, (METADATA, *CONNECTION_OPTIONS))
    return WaltzStreamReader(ClusterHistory(cluster_access(options), RowMaker(schema)), wanted)


class RangePartition(InputPartition):
    """The range that one task reads."""

    def __init__(self, part: NodeRange) -> None:
        super().__init__((part.partition, part.first))
        self.part = part


@plain_errors
class ClusterReader(DataSourceReader):
    """A batch read of the transactions that were committed when it was planned."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        """Raises InvalidRequestError."""
        known = {name.lower() for name in (METADATA, "path", "paths", *BATCH_OPTIONS, *CONNECTION_OPTIONS)}
        unknown = sorted(name for name in map(str.lower, options) if name not in known)
        if unknown:
            raise InvalidRequestError(f"a read of a cluster has no option {', '.join(unknown)}")
        if options.get("view", "records").strip().lower() != "records":
            raise InvalidRequestError(f"view {options['view']!r}: a cluster has records only")
        self._access, self._rows = cluster_access(options), RowMaker(schema)
        fails_on_loss(options)  # check the option only: committed transactions are never lost
        self._partitions = partitions_of(options)
        self._first, self._last = number_of(options, "minTransactionId"), number_of(options, "maxTransactionId")

    def partitions(self) -> Sequence[InputPartition]:
        """The tasks: ranges of transactions up to the high-water marks.

        Raises InvalidRequestError for partitions that the cluster does not have, and what its answers raise.
        """

        async def read(client: LogClient) -> dict[int, int]:
            wanted = chosen_partitions(self._partitions, client.num_partitions)
            return dict(zip(wanted, await asyncio.gather(*map(client.high_water_mark, wanted)), strict=True))

        parts: list[InputPartition] = []
        for partition, mark in self._access.run(read).items():
            end = mark if self._last is None else min(mark, self._last)
            parts.extend(
                RangePartition(NodeRange(partition, first, min(first + RANGE_RECORDS - 1, end)))
                for first in range(max(0, self._first or 0), end + 1, RANGE_RECORDS)
            )
        return parts

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Arrow batches with exactly the schema that Spark was told."""
        if not isinstance(partition, RangePartition):  # Spark creates a partition of its own where we return none
            return
        for records in read_range(self._access, partition.part):
            yield self._rows.sent(records, self._access.metadata, partition.part.partition)
