"""The latest transactions of all partitions of a server, in bounded memory: what feeds tell of them, and their data.

Both are kept in chunks of `CHUNK` transactions whose ids begin at a multiple of it, so that to keep a batch, or to feed a hundred
clients, costs little more than to copy memory: a feed's frames as they are sent (`formats.wire.feed_frames`), and data as the
records of a batch that belong in the chunk.

What is committed never changes, so that nothing here is wrong as long as storage loses none of it (`TransactionCache.cut`), or
does so while another server has the partition (`TransactionCache.forget`); what was not used for longest goes first.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Iterator
from typing import Generic, Protocol, TypeVar

from waltzctl.engine.net.metrics import Meter
from waltzctl.engine.scan.client_appends import NumberedRecords
from waltzctl.engine.server.server_settings import CacheOptions
from waltzctl.formats.wire.feed_frames import FEED_FRAME
from waltzctl.formats.wire.records import WireRecord, data_between, pack_record

CHUNK = 64
CHUNK_BYTES = CHUNK * (FEED_FRAME + 1) + 400
"""What a chunk of a feed takes in memory, its objects and its place in a table included."""
DATA_CHUNK_BYTES = 640
"""What a chunk of data takes beside its runs: half of it are objects, the rest its place in a table that grows."""
RUN_BYTES = 220
"""What a run takes beside its records and where each of them begins."""
PLACE_BYTES = array("Q").itemsize
_AT_ONCE = 16
"""Chunks of a feed that are given at a time."""
_ONE_LESS = bytes((0, *range(255)))
"""By which the number of each run becomes that of the one in front of it."""


class _Chunk(Protocol):
    """What is kept of `CHUNK` transactions that follow one another."""

    size: int
    """Bytes that it takes in memory."""


C = TypeVar("C", bound=_Chunk)


class _Bounded(Generic[C]):
    """Chunks by partition and number, of `capacity` bytes at most; the least recently used go first."""

    def __init__(self, capacity: int) -> None:
        self.capacity, self.used = capacity, 0
        self._chunks: OrderedDict[tuple[int, int], C] = OrderedDict()

    def takes(self, size: int) -> bool:
        """Whether so many bytes are no large part of all room."""
        return size <= self.capacity // 4

    def put(self, key: tuple[int, int], chunk: C, more: int) -> None:
        """Count bytes that a chunk, a new one or the one used last, will take more, and make room for them."""
        while self.used + more > self.capacity:
            self.used -= self._chunks.popitem(last=False)[1].size
        self._chunks[key] = chunk
        self.used += more

    def drop(self, partition: int, number: int) -> None:
        """Keep no chunk of a partition from a number on."""
        for key in [one for one in self._chunks if one[0] == partition and one[1] >= number]:
            self.used -= self._chunks.pop(key).size

    def get(self, key: tuple[int, int]) -> C | None:
        found = self._chunks.get(key)
        if found is not None:
            self._chunks.move_to_end(key)
        return found


class _FedChunk:
    """Frames of transactions that follow one another; `held` has a 1 for each that is there."""

    __slots__ = ("frames", "held")
    size = CHUNK_BYTES

    def __init__(self) -> None:
        self.frames, self.held = bytearray(CHUNK * FEED_FRAME), bytearray(CHUNK)

    def put(self, place: int, frames: bytes) -> None:
        """Keep frames from a place on, which fit."""
        count = len(frames) // FEED_FRAME
        self.frames[place * FEED_FRAME : (place + count) * FEED_FRAME] = frames
        self.held[place : place + count] = b"\1" * count

    def run(self, place: int, count: int) -> memoryview:
        """The frames that are there from a place on, without a gap, `count` at most."""
        end = min(place + count, CHUNK)
        gap = self.held.find(0, place, end)
        return memoryview(self.frames)[place * FEED_FRAME : (end if gap < 0 else gap) * FEED_FRAME]


class _DataChunk:
    """Records of transactions that follow one another, in runs; `held` has for each the number of its run, from 1, 0 for none."""

    __slots__ = ("held", "runs", "size")

    def __init__(self) -> None:
        self.held, self.size = bytearray(CHUNK), DATA_CHUNK_BYTES
        self.runs: list[tuple[int, bytes, array[int]]] = []

    def put(self, place: int, records: bytes, places: array[int]) -> None:
        """Keep records from a place on, of which none is there."""
        count = len(places) - 1
        self.size += _run_bytes(len(records), count)
        self.runs.append((place, records, places))
        self.held[place : place + count] = bytes((len(self.runs),)) * count

    def get(self, place: int) -> tuple[bytes, int] | None:
        """Data and checksum of the record at a place, where it is there."""
        number = self.held[place]
        if not number:
            return None
        first, records, places = self.runs[number - 1]
        base, at = places[0], place - first
        return data_between(records, places[at] - base, places[at + 1] - base)

    def drop(self) -> int:
        """Keep the oldest run no longer: bytes that it took."""
        _, records, places = self.runs.pop(0)
        size = _run_bytes(len(records), len(places) - 1)
        self.size -= size
        self.held = self.held.translate(_ONE_LESS)
        return size


def _run_bytes(length: int, count: int) -> int:
    return RUN_BYTES + length + count * PLACE_BYTES


def _by_chunk(first: int, count: int) -> Iterator[tuple[int, int, int, int]]:
    """Of so many transactions: a chunk's number, the place in it where they begin, and which, from one up to another, it has."""
    begin = 0
    while begin < count:
        number, place = divmod(first + begin, CHUNK)
        end = min(begin + CHUNK - place, count)
        yield number, place, begin, end
        begin = end


class TransactionCache:
    """One for a server."""

    def __init__(self, options: CacheOptions) -> None:
        self._feed: _Bounded[_FedChunk] = _Bounded(options.headers)
        self._data: _Bounded[_DataChunk] = _Bounded(options.data)
        self._last: dict[int, int] = {}  # that was ever kept of each partition
        self._kept_as: dict[int, int] = {}  # under which number a partition is kept of which something was forgotten
        self._forgotten = 0
        self._losses: dict[int, int] = {}
        self.feed_misses, self.data_misses = Meter(), Meter()

    @property
    def used(self) -> tuple[int, int]:
        """Bytes of memory that what is fed, and data, take."""
        return self._feed.used, self._data.used

    def put(self, partition: int, batch: NumberedRecords) -> None:
        """Keep what was committed: what a feed tells of it, and its data."""
        self._note(partition, batch.last)
        feed, records = batch.feed, batch.records
        data, places = records.data, array("Q", records.places)
        kept_as = self._kept_as.get(partition, partition)
        for number, place, begin, end in _by_chunk(batch.first, len(records)):
            key = kept_as, number
            self._put_frames(key, place, feed[begin * FEED_FRAME : end * FEED_FRAME])
            self._put_run(key, place, data, places[begin : end + 1])

    def put_fed(self, partition: int, first: int, frames: bytes) -> None:
        """Keep what a feed tells of committed transactions, whose ids go on from the first one's: whole frames back to back."""
        count = len(frames) // FEED_FRAME
        self._note(partition, first + count - 1)
        kept_as = self._kept_as.get(partition, partition)
        for number, place, begin, end in _by_chunk(first, count):
            self._put_frames((kept_as, number), place, frames[begin * FEED_FRAME : end * FEED_FRAME])

    def put_data(self, partition: int, record: WireRecord) -> None:
        """Keep a committed transaction's data, unless that is a large part of all room."""
        self._note(partition, record.transaction_id)
        number, place = divmod(record.transaction_id, CHUNK)
        packed = pack_record(record)
        self._put_run((self._kept_as.get(partition, partition), number), place, packed, array("Q", (0, len(packed))))

    def losses(self, partition: int) -> int:
        """How often something of a partition was cut or forgotten: what was read of it before must not be put here any more."""
        return self._losses.get(partition, 0)

    def cut(self, partition: int, last: int) -> None:
        """Keep nothing behind a transaction, the last one that a partition has."""
        self._losses[partition] = self.losses(partition) + 1
        if self._last.get(partition, -1) > last:
            self._last[partition] = last
            for chunks in (self._feed, self._data):
                chunks.drop(self._kept_as.get(partition, partition), (last + 1) // CHUNK)

    def forget(self, partition: int) -> None:
        """Give out nothing that was kept of a partition until now.

        It goes as what nobody uses: a server that is given a thousand partitions does not look for it.
        """
        self._losses[partition] = self.losses(partition) + 1
        if self._last.pop(partition, None) is not None:
            self._forgotten += 1
            self._kept_as[partition] = -self._forgotten

    def _note(self, partition: int, last: int) -> None:
        if last > self._last.get(partition, -1):
            self._last[partition] = last

    def _put_frames(self, key: tuple[int, int], place: int, frames: bytes) -> None:
        chunk = self._feed.get(key)
        if chunk is None:
            chunk = _FedChunk()
            if self._feed.takes(CHUNK_BYTES):
                self._feed.put(key, chunk, CHUNK_BYTES)
        chunk.put(place, frames)

    def _put_run(self, key: tuple[int, int], place: int, data: bytes, places: array[int]) -> None:
        chunk, count = self._data.get(key), len(places) - 1
        begin, end = places[0], places[-1]
        more = size = _run_bytes(end - begin, count)
        if chunk is None:
            chunk = _DataChunk()
            more += DATA_CHUNK_BYTES
        if chunk.held.count(0, place, place + count) == count and self._data.takes(more):
            while chunk.size + size > self._data.capacity:  # by itself; its last run is no large part, and stays
                self._data.used -= chunk.drop()
            self._data.put(key, chunk, more)
            chunk.put(place, bytes(data[begin:end]), places)
        elif count > 1:  # some are there already, or all of them are a large part of all room
            half = count // 2
            self._put_run(key, place, data, places[: half + 1])
            self._put_run(key, place + half, data, places[half:])

    def fed(self, partition: int, first: int, count: int) -> bytes:
        """Frames of a feed from a transaction on, without a gap, `count` at most; none where the first is not kept."""
        found: list[memoryview] = []
        kept_as = self._kept_as.get(partition, partition)
        while count > 0 and len(found) < _AT_ONCE:
            number, place = divmod(first, CHUNK)
            chunk = self._feed.get((kept_as, number))
            run = chunk.run(place, count) if chunk is not None else memoryview(b"")
            if not run:
                break
            found.append(run)
            first += len(run) // FEED_FRAME
            count -= len(run) // FEED_FRAME
        if not found:
            self.feed_misses.mark()
        return b"".join(found)

    def data(self, partition: int, transaction_id: int) -> tuple[bytes, int] | None:
        """A transaction's data and its checksum, where they are kept."""
        number, place = divmod(transaction_id, CHUNK)
        chunk = self._data.get((self._kept_as.get(partition, partition), number))
        found = chunk.get(place) if chunk is not None else None
        if found is None:
            self.data_misses.mark()
        return found
