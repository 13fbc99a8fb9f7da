"""A stream of what a node holds, through its admin port: whoever else uses a partition is not disturbed by it.

The port of administration gives out every record, acknowledged or not, and knows no session, so that reading shuts nobody out.
A record that the node does not give out because it is damaged is a row with a finding.  Connections are made as those of
``waltzctl``: TLS unless told otherwise, on this machine's loopback taken on trust, elsewhere by a trust store.
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
from waltzctl.engine.client.partition_readings import PartitionReading, read_partitions
from waltzctl.engine.errors import InvalidRequestError, PeerError, ProtocolError, RemoteError, StalePlanError
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
"""Records that one range covers at most."""
_ABOUT = 512
"""Bytes that a record is taken for, at least, when ranges are packed into tasks and chunks: a node does not tell sizes
beforehand, and those of records that were looked at say more."""
_ROWS = 4096
_BYTES = 8 << 20
"""Bounds of one batch of rows."""
_BACK = 1000
"""Damaged transactions in a row behind which no intact one is looked for."""
_TLS = {camel_case(name): name for name in client_names()}
KNOWN = ("plaintext", "insecure", "timeout", *_TLS)
"""Options about the connection: those of the commands.  Files are read by the driver and by every executor."""


@dataclass(frozen=True, slots=True)
class PeerAccess:
    """How nodes and servers are reached; can be pickled.  Passwords come from files on the machine that connects."""

    plaintext: bool = False
    insecure: bool = False
    timeout: float = DEFAULT_TIMEOUT
    files: Mapping[str, str] = field(default_factory=dict)
    """The options about stores and certificates, as Spark calls them."""

    def reach(self) -> ConnectionFactory:
        """Raises InvalidRequestError, DiskReadError."""
        tls = load_configuration(TLS, given=[Given(_TLS[name], text, name) for name, text in self.files.items()])
        tls.check()
        return ConnectionFactory(tls.options, plaintext=self.plaintext, insecure=self.insecure, timeout=self.timeout)


@dataclass(frozen=True, slots=True)
class NodeAccess:
    """A node, and how it is reached."""

    address: Address
    access: PeerAccess = PeerAccess()

    def reach(self) -> ConnectionFactory:
        """See `PeerAccess.reach`."""
        return self.access.reach()


def access_of(options: Mapping[str, str]) -> PeerAccess:
    """From Spark's options, whose keys are lower-case.  Raises InvalidRequestError."""
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
    """A node's, from Spark's options.  Raises InvalidRequestError."""
    return NodeAccess(parse_url(url), access_of(options))


def _switch(options: Mapping[str, str], name: str) -> bool:
    said = options.get(name, "false").strip().lower()
    if said not in ("true", "false"):
        raise InvalidRequestError(f"{name} {said!r}: must be true or false")
    return said == "true"


def node_stream(options: Mapping[str, str], schema: StructType) -> WaltzStreamReader:
    """The stream of a node; `schema` says which columns.  Raises InvalidRequestError for the options."""
    access = node_access(path_of(options), options)
    return WaltzStreamReader(NodeHistory(access, RowMaker(schema)), stream_options(options, KNOWN))


@dataclass(frozen=True, slots=True)
class NodeRange:
    """A part of a batch: the ids from `first` to `last`; `ends_at`: the record that must be the last.

    `about`: bytes that each record is taken for.
    """

    partition: int
    first: int
    last: int
    ends_at: Anchor | None = None
    about: int = _ABOUT

    @property
    def bytes(self) -> int:
        """About as many as are read."""
        return self.about * (self.last + 1 - self.first)


class _Line:
    """A connection that stays open between calls, in an event loop that runs while somebody calls."""

    def __init__(self, access: NodeAccess) -> None:
        self._access = access
        self._runner = asyncio.Runner()
        self._client: AdminClient | None = None

    def call(self, work: Callable[[AdminClient], Coroutine[Any, Any, T]]) -> T:
        """Do something with the connection; once more with a new one when the old one was lost since."""
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
        self._opened: _Line | None = None
        self._readings: dict[int, PartitionReading] = {}
        self._seen: dict[int, Anchor] = {}
        """Last records since the last look: then a recovery may have put others in their places, with the same ids."""
        self._fetched: dict[int, tuple[int, int]] = {}
        """How many records of each partition were looked at, and their bytes."""

    def __getstate__(self) -> tuple[NodeAccess, RowMaker]:
        return self._access, self._rows

    def __setstate__(self, state: tuple[NodeAccess, RowMaker]) -> None:
        self.__init__(*state)  # type: ignore[misc]  # an open connection does not travel

    @property
    def place(self) -> str:
        """The node's URL."""
        return self._access.address.url

    @property
    def _line(self) -> _Line:
        if self._opened is None:
            self._opened = _Line(self._access)
        return self._opened

    def look(self) -> uuid.UUID | None:
        """See `History.look`; a node does not tell its cluster's key.  Raises what the calls raise."""
        readings = self._line.call(lambda client: read_partitions(client))
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
            lost = -1 if reading.local_low_water_mark is None else reading.local_low_water_mark
            if up_to == LOW_WATER_MARK:
                marks = reading.low_water_mark, reading.local_low_water_mark
                low = min(-1 if mark is None else mark for mark in marks)
                last, lost = min(last, low), min(lost, low)
            found[number] = (
                behind_loss(lost) if lost > last else self._record_of(number, last, known.get(number, BEGINNING))
            )
        return found

    def _record_of(self, partition: int, last: int, known: Anchor) -> Anchor:
        """The last intact record; the bare id `last` behind more damage than is searched, which is told of then."""
        seen = self._seen.get(partition)
        if seen is None or seen.transaction_id != last:
            seen = self.at_or_before(partition, last, known)
            if last - seen.transaction_id >= _BACK:
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
        for wanted in range(transaction_id, max(-1, transaction_id - _BACK), -1):
            found = self._fetch(partition, wanted)
            if found is not None:
                return found
        if known.identified and known.transaction_id <= transaction_id - _BACK:
            seen = self._fetch(partition, known.transaction_id)
            if seen is not None and seen.is_record(known):
                return known
        return BEGINNING

    def _fetch(self, partition: int, transaction_id: int) -> Anchor | None:
        """The record of an id; None where the node has none that it gives out."""
        try:
            records = self._line.call(lambda client: client.records(partition, transaction_id, 1))
        except RemoteError as error:
            if error.code not in DAMAGED_RECORD:
                raise
            return None
        if not records or records[0].transaction_id != transaction_id:
            return None
        count, size = self._fetched.get(partition, (0, 0))
        self._fetched[partition] = count + 1, size + RECORD_OVERHEAD + len(records[0].data)
        return anchor_of(records[0])

    def again(self, partition: int, anchor: Anchor) -> Anchor | None:
        """See `History.again`."""
        if partition not in self._readings:
            return None
        found = self._fetch(partition, anchor.transaction_id)
        if found is not None and found.is_record(anchor):
            return anchor
        return found

    def parts(self, partition: int, start: Anchor, end: Anchor) -> Iterator[NodeRange | LostRange]:
        """See `History.parts`.  Behind the last record there may be ids that are lost, up to an `end` that names no record."""
        there = end.transaction_id
        reading = None if end.identified else self._readings.get(partition)
        if reading is not None and reading.last_transaction_id is not None:
            there = min(there, reading.last_transaction_id)
        count, size = self._fetched.get(partition, (1, 0))
        for first in range(start.transaction_id + 1, there + 1, RANGE_RECORDS):
            last = min(first + RANGE_RECORDS - 1, there)
            yield NodeRange(
                partition, first, last, end if last == end.transaction_id else None, max(_ABOUT, size // count)
            )
        if there < end.transaction_id:
            first = max(there, start.transaction_id) + 1
            yield LostRange(below_mark(self.place, partition, first, end.transaction_id))

    def scan(
        self, part: NodeRange | LostRange, losses: Losses, known: KnownRecords | None = None
    ) -> Iterator[pa.RecordBatch]:
        """See `History.scan`: what a peer sends is no file's bytes."""
        return self.read(part, losses)

    def read(self, part: NodeRange | LostRange, losses: Losses) -> Iterator[pa.RecordBatch]:
        """See `History.read`.  Raises what the calls raise, StalePlanError when records are not there any more."""
        if isinstance(part, LostRange):
            losses.see([part.finding])
            yield self._rows.finding(part.finding, self.place)
            return
        line = _Line(self._access)
        try:
            connection = line.run(self._access.reach().admin(self._access.address))
            try:
                # each row has to come, or the query would never get behind them
                items = walk(connection, part.partition, part.first, part.last, most=None)
                yield from self._rows_of(part, items, line, losses)
            finally:
                line.run(connection.close())
        finally:
            line.close()

    def _rows_of(
        self, part: NodeRange, items: AsyncGenerator[NodeRecord | Finding, None], line: _Line, losses: Losses
    ) -> Iterator[pa.RecordBatch]:
        position = part.first
        last: WireRecord | None = None
        try:
            while gathered := line.run(_gather(items)):
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
            line.run(items.aclose())
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


async def _gather(items: AsyncGenerator[NodeRecord | Finding, None]) -> list[NodeRecord | Finding]:
    """Items for one batch of rows: records back to back, or one finding alone, with those in front of it."""
    found: list[NodeRecord | Finding] = []
    size = 0
    async for item in items:
        found.append(item)
        if isinstance(item, NodeRecord):
            size += item.size
            if len(found) < _ROWS and size < _BYTES:
                continue
        elif item.code is Code.DATA_CHECKSUM:
            continue
        break
    return found


def anchor_of(record: WireRecord) -> Anchor:
    """The anchor of a record as a node sends it; its checksum on disk follows from its fields."""
    i = record.request_id
    head = pack_record_header(record.transaction_id, i, record.header, len(record.data), record.data_checksum)
    return Anchor(record.transaction_id, i, crc32(record.data, crc32(head)))
