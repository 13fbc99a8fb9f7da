"""The stream of a node, through its admin port, which does not disturb the node's clients.

The admin port returns every record, acknowledged or not, and has no sessions, so that reading does not take a partition from its
writer.  A record that the node refuses as damaged becomes a row with a finding.  Connections are made as in ``waltzctl``'s
commands: TLS unless the options say otherwise; certificates are accepted unchecked on this machine's loopback, and checked with a
trust store elsewhere.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncGenerator, Callable, Collection, Coroutine, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from waltzctl.engine.amounts import parse_duration
from waltzctl.engine.client.admin_client import AdminClient
from waltzctl.engine.client.client_connection import DEFAULT_TIMEOUT
from waltzctl.engine.client.connection_factory import ConnectionFactory
from waltzctl.engine.client.inspect import NodeRecord, below_mark, walk
from waltzctl.engine.client.partition_readings import PartitionReading, need_read, read_partitions
from waltzctl.engine.errors import (
    InvalidRequestError,
    PeerError,
    ProtocolError,
    RemoteError,
    StalePlanError,
)
from waltzctl.engine.findings import Code, Finding
from waltzctl.engine.net.addresses import Address, parse_url
from waltzctl.engine.net.configuration import Given, load_configuration
from waltzctl.engine.net.settings import camel_case
from waltzctl.engine.net.tls_options import TLS, client_names
from waltzctl.engine.spark.data_loss import Losses
from waltzctl.engine.spark.offsets import BEGINNING, Anchor, behind_loss
from waltzctl.engine.spark.stream_losses import LostRange
from waltzctl.engine.spark.stream_reader import LOW_WATER_MARK, Standing, WaltzStreamReader, path_of, stream_options
from waltzctl.engine.spark.stream_rows import RowMaker
from waltzctl.formats.checksums import crc32
from waltzctl.formats.segment import RECORD_OVERHEAD, pack_record_header
from waltzctl.formats.wire.failure import DAMAGED_RECORD
from waltzctl.formats.wire.records import WireRecord

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from waltzctl.engine.scan.known_records import KnownRecords

T = TypeVar("T")
RANGE_RECORDS = 50_000
"""Records of one range, at most."""
_LEAST_RECORD_SIZE = 512
"""The least size in bytes that is assumed for a record when ranges are packed into tasks and chunks: a node does not tell sizes
in advance.  The mean size of the records that were fetched is used where it is larger."""
_BATCH_ROWS = 4096
_BATCH_BYTES = 8 << 20
"""Rows, and bytes, of one batch, at most."""
_SEARCH_BACK = 1000
"""How many ids the search for an intact record goes back, each with a request to the node."""
_TLS = {camel_case(name): name for name in client_names()}
KNOWN = ("plaintext", "insecure", "timeout", *_TLS)
"""Options of the connection, as in the commands.  The driver and every executor read the files that they name."""


@dataclass(frozen=True, slots=True)
class PeerAccess:
    """How to connect to nodes and servers; can be pickled.  Passwords come from files on the machine that connects."""

    plaintext: bool = False
    insecure: bool = False
    timeout: float = DEFAULT_TIMEOUT
    files: Mapping[str, str] = field(default_factory=dict)
    """The options of key stores, trust stores and certificates, by their name in Spark."""

    def reach(self) -> ConnectionFactory:
        """A factory of connections.  Raises InvalidRequestError, DiskReadError."""
        tls = load_configuration(TLS, given=[Given(_TLS[name], text, name) for name, text in self.files.items()])
        tls.check()
        return ConnectionFactory(tls.options, plaintext=self.plaintext, insecure=self.insecure, timeout=self.timeout)


@dataclass(frozen=True, slots=True)
class NodeAccess:
    """A node, and how to connect to it."""

    address: Address
    access: PeerAccess = PeerAccess()

    def reach(self) -> ConnectionFactory:
        """See `PeerAccess.reach`."""
        return self.access.reach()


def access_of(options: Mapping[str, str]) -> PeerAccess:
    """Parse Spark's options, whose keys are in lower case.  Raises InvalidRequestError."""
    plaintext, insecure = (_switch(options, name) for name in ("plaintext", "insecure"))
    files = {name: options[name.lower()] for name in _TLS if name.lower() in options}
    if plaintext and files:
        raise InvalidRequestError(f"{next(iter(files))}: there are no certificates with plaintext")
    said = options.get("timeout")
    try:
        timeout = DEFAULT_TIMEOUT if said is None else parse_duration(said)
    except ValueError as error:
        raise InvalidRequestError(f"timeout: {error}") from None
    return PeerAccess(plaintext, insecure, timeout, files)


def node_access(url: str, options: Mapping[str, str]) -> NodeAccess:
    """A node by its URL, with Spark's options.  Raises InvalidRequestError."""
    return NodeAccess(parse_url(url), access_of(options))


def _switch(options: Mapping[str, str], name: str) -> bool:
    said = options.get(name, "false").strip().lower()
    if said not in ("true", "false"):
        raise InvalidRequestError(f"{name} {said!r}: must be true or false")
    return said == "true"


def node_stream(options: Mapping[str, str], schema: StructType) -> WaltzStreamReader:
    """The stream of a node; `schema`: the columns.  Raises InvalidRequestError for the options."""
    access = node_access(path_of(options), options)
    return WaltzStreamReader(NodeHistory(access, RowMaker(schema)), stream_options(options, KNOWN))


@dataclass(frozen=True, slots=True)
class NodeRange:
    """A part of a batch: the ids from `first` to `last`, both inclusive."""

    partition: int
    first: int
    last: int
    ends_at: Anchor | None = None
    """The record that must be the last one; None: not checked."""
    about: int = _LEAST_RECORD_SIZE
    """Bytes that are assumed for each record."""

    @property
    def bytes(self) -> int:
        """Bytes to read, approximately."""
        return self.about * (self.last + 1 - self.first)


class _NodeConnection:
    """A connection to a node for synchronous code.  It stays open between calls; its event loop runs during calls only."""

    def __init__(self, access: NodeAccess) -> None:
        self._access = access
        self._runner = asyncio.Runner()
        self._client: AdminClient | None = None

    def call(self, work: Callable[[AdminClient], Coroutine[Any, Any, T]]) -> T:
        """Call `work` with the connection; where that was open before and fails, once more with a new connection."""
        fresh = self._client is None
        try:
            return self.run(self._with_client(work))
        except (PeerError, ConnectionError):
            self.run(self._drop())
            if fresh:
                raise
        return self.run(self._with_client(work))

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(work)

    async def _with_client(self, work: Callable[[AdminClient], Coroutine[Any, Any, T]]) -> T:
        if self._client is None or self._client.closed:
            self._client = await self._access.reach().admin(self._access.address)
        return await work(self._client)

    async def _drop(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            with contextlib.suppress(PeerError, ConnectionError):
                await client.close()

    def close(self) -> None:
        try:
            self.run(self._drop())
        finally:
            self._runner.close()


class NodeHistory:
    """See `engine.spark.stream_reader.History`."""

    def __init__(self, access: NodeAccess, rows: RowMaker) -> None:
        self._access = access
        self._rows = rows
        self._opened: _NodeConnection | None = None
        self._readings: dict[int, PartitionReading] = {}
        self._seen: dict[int, Anchor] = {}
        """Last records that were fetched since the last `look`: a recovery may replace records under the same ids."""
        self._fetched: dict[int, tuple[int, int]] = {}
        """The number of records fetched from each partition, and their bytes."""

    def __getstate__(self) -> tuple[NodeAccess, RowMaker]:
        return self._access, self._rows

    def __setstate__(self, state: tuple[NodeAccess, RowMaker]) -> None:
        self.__init__(*state)  # type: ignore[misc]  # a connection cannot be pickled

    @property
    def place(self) -> str:
        """The node's URL."""
        return self._access.address.url

    @property
    def _connection(self) -> _NodeConnection:
        if self._opened is None:
            self._opened = _NodeConnection(self._access)
        return self._opened

    def refresh(self) -> uuid.UUID | None:
        """See `History.refresh`; a node does not tell its cluster's key.  Raises what the requests raise."""
        readings = self._connection.call(lambda client: read_partitions(client))
        self._readings = {one.partition: one for one in readings if one.assigned}
        self._seen.clear()
        return None

    def latest(self, partitions: Collection[int] | None, known: Mapping[int, Anchor], up_to: str) -> dict[int, Anchor]:
        """See `History.latest`."""
        found = {}
        for number, reading in self._readings.items():
            if partitions is not None and number not in partitions:
                continue
            last = reading.last_transaction_id
            if last is None:
                raise ProtocolError(self.place, f"it does not tell the last transaction of partition {number}")
            need_read(reading, self.place)  # what it cannot give now is not lost, and would be passed over for ever
            lost = -1 if reading.local_low_water_mark is None else reading.local_low_water_mark
            if up_to == LOW_WATER_MARK:
                marks = reading.low_water_mark, reading.local_low_water_mark
                low = min(-1 if mark is None else mark for mark in marks)
                last, lost = min(last, low), min(lost, low)
            found[number] = (
                behind_loss(lost) if lost > last else self._last_record(number, last, known.get(number, BEGINNING))
            )
        return found

    def _last_record(self, partition: int, last: int, known: Anchor) -> Anchor:
        """The last intact record.  Where `_SEARCH_BACK` or more damaged records end the partition: `last` without a record,
        so that the damage becomes rows.
        """
        seen = self._seen.get(partition)
        if seen is None or seen.transaction_id != last:
            seen = self.at_or_before(partition, last, known)
            if last - seen.transaction_id >= _SEARCH_BACK:
                seen = Anchor(last)
            self._seen[partition] = seen
        return seen

    def standings(self, partitions: Collection[int] | None, known: Mapping[int, Anchor]) -> dict[int, Standing]:
        """See `History.standings`."""
        found = {}
        for number, one in self._readings.items():
            last, session = one.last_transaction_id, one.session_id
            if last is None or session is None or one.why_absent is not None:
                continue
            if partitions is None or number in partitions:
                found[number] = Standing(session, last)
        return found

    def at_or_before(self, partition: int, transaction_id: int, known: Anchor) -> Anchor:
        """See `History.at_or_before`."""
        for wanted in range(transaction_id, max(-1, transaction_id - _SEARCH_BACK), -1):
            found = self._fetch(partition, wanted)
            if found is not None:
                return found
        if known.identified and known.transaction_id <= transaction_id - _SEARCH_BACK:
            seen = self._fetch(partition, known.transaction_id)
            if seen is not None and seen.is_record(known):
                return known
        return BEGINNING

    def _fetch(self, partition: int, transaction_id: int) -> Anchor | None:
        """The record of an id; None where the node has none, or refuses it as damaged."""
        try:
            records = self._connection.call(lambda client: client.records(partition, transaction_id, 1))
        except RemoteError as error:
            if error.code not in DAMAGED_RECORD:
                raise
            return None
        if not records or records[0].transaction_id != transaction_id:
            return None
        count, size = self._fetched.get(partition, (0, 0))
        self._fetched[partition] = count + 1, size + RECORD_OVERHEAD + len(records[0].data)
        return anchor_of(records[0])

    def record_now(self, partition: int, anchor: Anchor) -> Anchor | None:
        """See `History.record_now`."""
        if partition not in self._readings:
            return None
        found = self._fetch(partition, anchor.transaction_id)
        if found is not None and found.is_record(anchor):
            return anchor
        return found

    def parts(self, partition: int, start: Anchor, end: Anchor) -> Iterator[NodeRange | LostRange]:
        """See `History.parts`.  An `end` that names no record: the ids after the last record, up to this one, are lost."""
        there = end.transaction_id
        reading = None if end.identified else self._readings.get(partition)
        if reading is not None and reading.last_transaction_id is not None:
            there = min(there, reading.last_transaction_id)
        count, size = self._fetched.get(partition, (1, 0))
        for first in range(start.transaction_id + 1, there + 1, RANGE_RECORDS):
            last = min(first + RANGE_RECORDS - 1, there)
            yield NodeRange(
                partition,
                first,
                last,
                end if last == end.transaction_id else None,
                max(_LEAST_RECORD_SIZE, size // count),
            )
        if there < end.transaction_id:
            first = max(there, start.transaction_id) + 1
            yield LostRange(below_mark(self.place, partition, first, end.transaction_id))

    def scan(
        self, part: NodeRange | LostRange, losses: Losses, known: KnownRecords | None = None
    ) -> Iterator[pa.RecordBatch]:
        """See `History.scan`: records of a peer are no file's bytes, so that it is the same as `read`."""
        return self.read(part, losses)

    def read(self, part: NodeRange | LostRange, losses: Losses) -> Iterator[pa.RecordBatch]:
        """See `History.read`.  Raises what the requests raise, StalePlanError when records of the part are gone."""
        if isinstance(part, LostRange):
            losses.see([part.finding])
            yield self._rows.finding(part.finding, self.place)
            return
        node = _NodeConnection(self._access)
        try:
            connection = node.run(self._access.reach().admin(self._access.address))
            try:
                # no bound on damaged records: the query cannot continue without a row for each
                items = walk(connection, part.partition, part.first, part.last, most=None)
                yield from self._rows_of(part, items, node, losses)
            finally:
                node.run(connection.close())
        finally:
            node.close()

    def _rows_of(
        self, part: NodeRange, items: AsyncGenerator[NodeRecord | Finding, None], node: _NodeConnection, losses: Losses
    ) -> Iterator[pa.RecordBatch]:
        position = part.first
        last: WireRecord | None = None
        try:
            while gathered := node.run(_next_batch(items)):
                records = [one.record for one in gathered if isinstance(one, NodeRecord)]
                if records:
                    last, position = records[-1], records[-1].transaction_id + 1
                    yield self._rows.sent(records, self.place, part.partition)
                one = gathered[-1]
                if isinstance(one, Finding) and one.code is not Code.DATA_CHECKSUM:
                    if one.transaction_id != position or one.code is not Code.RECORD_CHECKSUM:
                        raise self._changed(part, one.message)
                    losses.see([one])
                    yield self._rows.finding(one, self.place)
                    position += 1
        finally:
            node.run(items.aclose())
        if position <= part.last:
            raise self._changed(part, f"transaction {position} is not there")
        if (
            part.ends_at is not None
            and part.ends_at.identified
            and (last is None or not anchor_of(last).is_record(part.ends_at))
        ):
            raise self._changed(part, f"transaction {part.last} is another one")

    def _changed(self, part: NodeRange, what: str) -> StalePlanError:
        return StalePlanError(
            f"{self.place}, partition {part.partition}: transactions {part.first} to {part.last} were to be read, and {what}",
            advice="Spark tries again; if it stays so, see what happened to the partition (waltzctl verify waltz://...)",
        )

    def close(self) -> None:
        """See `History.close`."""
        opened, self._opened = self._opened, None
        if opened is not None:
            opened.close()


async def _next_batch(items: AsyncGenerator[NodeRecord | Finding, None]) -> list[NodeRecord | Finding]:
    """The next items, for one batch of rows: up to the bounds, or up to a finding in place of a record (the last item)."""
    found: list[NodeRecord | Finding] = []
    size = 0
    async for item in items:
        found.append(item)
        if isinstance(item, NodeRecord):
            size += item.size
            if len(found) < _BATCH_ROWS and size < _BATCH_BYTES:
                continue
        elif item.code is Code.DATA_CHECKSUM:
            continue
        break
    return found


def anchor_of(record: WireRecord) -> Anchor:
    """The anchor of a record from a node, with its checksum on disk, which is computed from its fields."""
    i = record.request_id
    head = pack_record_header(record.transaction_id, i, record.header, len(record.data), record.data_checksum)
    return Anchor(record.transaction_id, i, crc32(record.data, crc32(head)))
