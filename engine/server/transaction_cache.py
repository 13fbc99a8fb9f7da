"""Caches of a server for the latest transactions of all its partitions: feed frames, and data.  Memory is bounded.

Both are cached in chunks of `CHUNK` transactions, whose first id is a multiple of `CHUNK`:

- feed frames as they are sent (`formats.wire.feed_frames`), so that to feed many clients is to copy memory;
- data as runs: the records of a committed batch, packed, as far as they belong to the chunk.

The least recently used chunk is evicted first.  Committed transactions never change, so a cached one is valid unless storage
loses it: `TransactionCache.cut` removes what a new session found lost, `TransactionCache.forget` everything that may have been
lost while another server had the partition.
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
"""Transactions in a chunk."""
CHUNK_BYTES = CHUNK * (FEED_FRAME + 1) + 400
"""Memory of a chunk of feed frames, with its objects and its entry in the table of chunks."""
DATA_CHUNK_BYTES = 640
"""Memory of a chunk of data without its runs: one half objects, the other its entry in the table of chunks, which grows."""
RUN_BYTES = 220
"""Memory of a run without its records and their offsets."""
PLACE_BYTES = array("Q").itemsize
"""Memory of the offset of one record."""
_AT_ONCE = 16
"""The most chunks of feed frames that one call returns."""
_DECREMENT = bytes((0, *range(255)))
"""A table for `bytes.translate` that subtracts one from each run number; 0 stays 0."""


class _Chunk(Protocol):
    """The cached part of `CHUNK` consecutive transactions."""

    size: int
    """Memory in bytes."""


C = TypeVar("C", bound=_Chunk)


class _Bounded(Generic[C]):
    """An LRU cache of at most `capacity` bytes; key of a chunk: (partition, first id // CHUNK)."""

    def __init__(self, capacity: int) -> None:
        self.capacity, self.used = capacity, 0
        self._chunks: OrderedDict[tuple[int, int], C] = OrderedDict()

    def takes(self, size: int) -> bool:
        """Whether an entry of `size` bytes may be cached: at most a quarter of the capacity."""
        return size <= self.capacity // 4

    def put(self, key: tuple[int, int], chunk: C, more: int) -> None:
        """Evict chunks until `more` bytes are free, and count these for `chunk`: a new one, or the most recently used."""
        while self.used + more > self.capacity:
            self.used -= self._chunks.popitem(last=False)[1].size
        self._chunks[key] = chunk
        self.used += more

    def drop(self, partition: int, number: int) -> None:
        """Remove the chunks of a partition from a chunk number on."""
        for key in [one for one in self._chunks if one[0] == partition and one[1] >= number]:
            self.used -= self._chunks.pop(key).size

    def get(self, key: tuple[int, int]) -> C | None:
        found = self._chunks.get(key)
        if found is not None:
            self._chunks.move_to_end(key)
        return found


class _FedChunk:
    """Feed frames of a chunk; `held`: a byte for each transaction, 1 if its frame is cached."""

    __slots__ = ("frames", "held")
    size = CHUNK_BYTES

    def __init__(self) -> None:
        self.frames, self.held = bytearray(CHUNK * FEED_FRAME), bytearray(CHUNK)

    def put(self, place: int, frames: bytes) -> None:
        """Store frames from an index in the chunk on; they must fit."""
        count = len(frames) // FEED_FRAME
        self.frames[place * FEED_FRAME : (place + count) * FEED_FRAME] = frames
        self.held[place : place + count] = b"\1" * count

    def run(self, place: int, count: int) -> memoryview:
        """The cached frames from an index on without a gap, at most `count`."""
        end = min(place + count, CHUNK)
        gap = self.held.find(0, place, end)
        return memoryview(self.frames)[place * FEED_FRAME : (end if gap < 0 else gap) * FEED_FRAME]


class _DataChunk:
    """Records of a chunk, in runs (first index, packed records, offset of each and the end).

    `held`: a byte for each transaction: the number of its run, counted from 1; 0 if it is not cached.
    """

    __slots__ = ("held", "runs", "size")

    def __init__(self) -> None:
        self.held, self.size = bytearray(CHUNK), DATA_CHUNK_BYTES
        self.runs: list[tuple[int, bytes, array[int]]] = []

    def put(self, place: int, records: bytes, places: array[int]) -> None:
        """Store a run of records from an index on; none of them may be cached yet."""
        count = len(places) - 1
        self.size += _run_bytes(len(records), count)
        self.runs.append((place, records, places))
        self.held[place : place + count] = bytes((len(self.runs),)) * count

    def get(self, place: int) -> tuple[bytes, int] | None:
        """Data and CRC-32 of the record at an index, if it is cached."""
        number = self.held[place]
        if not number:
            return None
        first, records, places = self.runs[number - 1]
        base, at = places[0], place - first
        return data_between(records, places[at] - base, places[at + 1] - base)

    def drop(self) -> int:
        """Remove the oldest run; returns the bytes freed."""
        _, records, places = self.runs.pop(0)
        size = _run_bytes(len(records), len(places) - 1)
        self.size -= size
        self.held = self.held.translate(_DECREMENT)
        return size


def _run_bytes(length: int, count: int) -> int:
    return RUN_BYTES + length + count * PLACE_BYTES


def _chunks_of(first: int, count: int) -> Iterator[tuple[int, int, int, int]]:
    """Split `count` transactions from id `first` on by chunk.

    Yields (chunk number, index of the first one in the chunk, begin, end); `begin` and `end` count from 0 at `first`.
    """
    begin = 0
    while begin < count:
        number, place = divmod(first + begin, CHUNK)
        end = min(begin + CHUNK - place, count)
        yield number, place, begin, end
        begin = end


class TransactionCache:
    """The caches of one server, shared by its partitions."""

    def __init__(self, options: CacheOptions) -> None:
        self._feed: _Bounded[_FedChunk] = _Bounded(options.headers)
        self._data: _Bounded[_DataChunk] = _Bounded(options.data)
        self._last: dict[int, int] = {}  # the highest id ever cached of each partition
        # the number that stands for a partition in keys of chunks, if it is not the partition's own (see `forget`)
        self._cache_ids: dict[int, int] = {}
        self._retired_ids = 0  # how many numbers `forget` has given out
        self._losses: dict[int, int] = {}
        self.feed_misses, self.data_misses = Meter(), Meter()

    @property
    def used(self) -> tuple[int, int]:
        """Memory in bytes: of feed frames, of data."""
        return self._feed.used, self._data.used

    def put(self, partition: int, batch: NumberedRecords) -> None:
        """Cache a committed batch: feed frames and data."""
        self._note_last(partition, batch.last)
        feed, records = batch.feed, batch.records
        data, places = records.data, array("Q", records.places)
        cache_id = self._cache_id(partition)
        for number, place, begin, end in _chunks_of(batch.first, len(records)):
            key = cache_id, number
            self._put_frames(key, place, feed[begin * FEED_FRAME : end * FEED_FRAME])
            self._put_run(key, place, data, places[begin : end + 1])

    def put_fed(self, partition: int, first: int, frames: bytes) -> None:
        """Cache the feed frames of committed transactions with consecutive ids from `first` on; `frames`: back to back."""
        count = len(frames) // FEED_FRAME
        self._note_last(partition, first + count - 1)
        cache_id = self._cache_id(partition)
        for number, place, begin, end in _chunks_of(first, count):
            self._put_frames((cache_id, number), place, frames[begin * FEED_FRAME : end * FEED_FRAME])

    def put_data(self, partition: int, record: WireRecord) -> None:
        """Cache the data of a committed transaction, unless it is over a quarter of the capacity."""
        self._note_last(partition, record.transaction_id)
        number, place = divmod(record.transaction_id, CHUNK)
        packed = pack_record(record)
        self._put_run((self._cache_id(partition), number), place, packed, array("Q", (0, len(packed))))

    def _cache_id(self, partition: int) -> int:
        return self._cache_ids.get(partition, partition)

    def losses(self, partition: int) -> int:
        """The number of `cut` and `forget` calls for a partition: what was read before one must not be cached after it."""
        return self._losses.get(partition, 0)

    def cut(self, partition: int, last: int) -> None:
        """Remove the transactions above `last`: the partition's log ends there."""
        self._losses[partition] = self.losses(partition) + 1
        if self._last.get(partition, -1) > last:
            self._last[partition] = last
            for chunks in (self._feed, self._data):
                chunks.drop(self._cache_id(partition), (last + 1) // CHUNK)

    def forget(self, partition: int) -> None:
        """Make everything cached of a partition unreachable.

        The partition gets a new number in the keys of chunks, and eviction removes the old ones.  This costs nothing for a server
        that is assigned a thousand partitions at once.
        """
        self._losses[partition] = self.losses(partition) + 1
        if self._last.pop(partition, None) is not None:
            self._retired_ids += 1
            self._cache_ids[partition] = -self._retired_ids

    def _note_last(self, partition: int, last: int) -> None:
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
            while chunk.size + size > self._data.capacity:  # this chunk alone would exceed it
                self._data.used -= chunk.drop()
            self._data.put(key, chunk, more)
            chunk.put(place, bytes(data[begin:end]), places)
        elif count > 1:  # some are cached already, or the run is too large: try each half
            half = count // 2
            self._put_run(key, place, data, places[: half + 1])
            self._put_run(key, place + half, data, places[half:])

    def fed(self, partition: int, first: int, count: int) -> bytes:
        """Feed frames from transaction `first` on without a gap, at most `count`; none if the first is not cached."""
        found: list[memoryview] = []
        cache_id = self._cache_id(partition)
        while count > 0 and len(found) < _AT_ONCE:
            number, place = divmod(first, CHUNK)
            chunk = self._feed.get((cache_id, number))
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
        """A transaction's data and the data's CRC-32, if they are cached."""
        number, place = divmod(transaction_id, CHUNK)
        chunk = self._data.get((self._cache_id(partition), number))
        found = chunk.get(place) if chunk is not None else None
        if found is None:
            self.data_misses.mark()
        return found
