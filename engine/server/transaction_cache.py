"""The latest transactions of all partitions of a server, in bounded memory: what feeds tell of them, and their data.

A feed gets bytes: frames are kept as they are sent (`formats.wire.feed_frames`), in chunks of `CHUNK` transactions whose ids
begin at a multiple of it, so that to feed a hundred clients costs little more than to copy memory.

What is committed never changes, so that nothing here is ever wrong; what was not used for longest goes first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from itertools import repeat
from typing import Generic, TypeVar

from waltzctl.engine.net.metrics import Meter
from waltzctl.engine.scan.client_appends import NumberedRecords
from waltzctl.engine.server.server_settings import CacheOptions
from waltzctl.formats.wire.feed_frames import FEED_FRAME
from waltzctl.formats.wire.records import split_data

V = TypeVar("V")
CHUNK = 64
CHUNK_BYTES = CHUNK * (FEED_FRAME + 1) + 400
"""What a chunk takes in memory, its objects and its place in a table included."""
DATA_BYTES = 200
"""What data takes beside its bytes."""
_RUN = 16
"""Chunks that are given at a time."""


class _Bounded(Generic[V]):
    """Values by partition and transaction, of so many bytes at most; the least recently used go first."""

    def __init__(self, capacity: int, size: Callable[[V], int]) -> None:
        self._capacity, self._size = capacity, size
        self._values: OrderedDict[tuple[int, int], V] = OrderedDict()
        self.used = 0

    def put(self, key: tuple[int, int], value: V) -> None:
        self.put_all([(key, value)])

    def put_all(self, items: Iterable[tuple[tuple[int, int], V]]) -> None:
        values, size_of, longest = self._values, self._size, self._capacity // 4
        for key, value in items:
            size = size_of(value)
            if size <= longest and values.setdefault(key, value) is value:
                self.used += size
                while self.used > self._capacity:
                    _, gone = values.popitem(last=False)
                    self.used -= size_of(gone)

    def get(self, key: tuple[int, int]) -> V | None:
        found = self._values.get(key)
        if found is not None:
            self._values.move_to_end(key)
        return found

    def __contains__(self, key: tuple[int, int]) -> bool:
        return key in self._values


class _Chunk:
    """Frames of transactions that follow one another; `held` has a 1 for each that is there."""

    __slots__ = ("frames", "held")

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


class TransactionCache:
    """One for a server."""

    def __init__(self, options: CacheOptions) -> None:
        self._feed: _Bounded[_Chunk] = _Bounded(options.headers, lambda _: CHUNK_BYTES)
        self._data: _Bounded[bytes] = _Bounded(options.data, lambda sent: len(sent) + DATA_BYTES)
        self.feed_misses, self.data_misses = Meter(), Meter()

    @property
    def used(self) -> tuple[int, int]:
        """Bytes of memory that what is fed, and data, take."""
        return self._feed.used, self._data.used

    def put(self, partition: int, batch: NumberedRecords) -> None:
        """Keep what was committed: what a feed tells of it, and its data."""
        self.put_fed(partition, batch.first, batch.feed)
        ids = range(batch.first, batch.last + 1)
        self._data.put_all(zip(zip(repeat(partition), ids), batch.records.sent_data(), strict=False))

    def put_fed(self, partition: int, first: int, frames: bytes) -> None:
        """Keep what a feed tells of committed transactions, whose ids go on from the first one's: whole frames back to back."""
        begin, count = 0, len(frames) // FEED_FRAME
        while begin < count:
            number, place = divmod(first + begin, CHUNK)
            end = min(begin + CHUNK - place, count)
            self._chunk(partition, number).put(place, frames[begin * FEED_FRAME : end * FEED_FRAME])
            begin = end

    def _chunk(self, partition: int, number: int) -> _Chunk:
        chunk = self._feed.get((partition, number))
        if chunk is None:
            chunk = _Chunk()
            self._feed.put((partition, number), chunk)
        return chunk

    def put_data(self, partition: int, transaction_id: int, sent: bytes) -> None:
        """Keep a committed transaction's data (with its checksum, as it is sent) unless that is a large part of all room."""
        self._data.put((partition, transaction_id), sent)

    def fed(self, partition: int, first: int, count: int) -> bytes:
        """Frames of a feed from a transaction on, without a gap, `count` at most; none where the first is not kept."""
        found: list[memoryview] = []
        while count > 0 and len(found) < _RUN:
            number, place = divmod(first, CHUNK)
            chunk = self._feed.get((partition, number))
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
        found = self._data.get((partition, transaction_id))
        if found is None:
            self.data_misses.mark()
            return None
        return split_data(found)
