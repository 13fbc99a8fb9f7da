"""The latest transactions of all partitions of a server, in bounded memory: headers for feeds, data for who asks for it.

What is committed never changes, so that nothing here is ever wrong; what was not used for longest goes first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from waltzctl.engine.net.metrics import Meter
from waltzctl.engine.server.server_settings import CacheOptions
from waltzctl.formats.segment import RecordHeader

V = TypeVar("V")
HEADER_BYTES = 400
"""What a header takes in memory: its object, that of its request id, their numbers, and its place in a table."""
DATA_BYTES = 200
"""What data takes beside its bytes."""
_RUN = 64
"""Headers that are given at a time."""


class _Bounded(Generic[V]):
    """Values by partition and transaction, of so many bytes at most; the least recently used go first."""

    def __init__(self, capacity: int, size: Callable[[V], int]) -> None:
        self._capacity, self._size = capacity, size
        self._values: OrderedDict[tuple[int, int], V] = OrderedDict()
        self.used = 0

    def put(self, key: tuple[int, int], value: V) -> None:
        size = self._size(value)
        if key in self._values or size > self._capacity // 4:
            return
        self._values[key] = value
        self.used += size
        while self.used > self._capacity:
            _, gone = self._values.popitem(last=False)
            self.used -= self._size(gone)

    def get(self, key: tuple[int, int]) -> V | None:
        found = self._values.get(key)
        if found is not None:
            self._values.move_to_end(key)
        return found

    def __contains__(self, key: tuple[int, int]) -> bool:
        return key in self._values


class TransactionCache:
    """One for a server."""

    def __init__(self, options: CacheOptions) -> None:
        self._headers: _Bounded[RecordHeader] = _Bounded(options.headers, lambda _: HEADER_BYTES)
        self._data: _Bounded[tuple[bytes, int]] = _Bounded(options.data, lambda found: len(found[0]) + DATA_BYTES)
        self.feed_misses, self.data_misses = Meter(), Meter()

    @property
    def used(self) -> tuple[int, int]:
        """Bytes of memory that headers, and data, take."""
        return self._headers.used, self._data.used

    def put_header(self, partition: int, header: RecordHeader) -> None:
        """Keep a committed transaction's header."""
        self._headers.put((partition, header.transaction_id), header)

    def put_data(self, partition: int, transaction_id: int, data: bytes, checksum: int) -> None:
        """Keep a committed transaction's data, unless it is a large part of all there is room for."""
        self._data.put((partition, transaction_id), (data, checksum))

    def headers(self, partition: int, first: int, count: int) -> Sequence[RecordHeader]:
        """Headers from a transaction on, without a gap; none where the first is not kept."""
        found = []
        for number in range(first, first + min(count, _RUN)):
            header = self._headers.get((partition, number))
            if header is None:
                break
            found.append(header)
        if not found:
            self.feed_misses.mark()
        return found

    def data(self, partition: int, transaction_id: int) -> tuple[bytes, int] | None:
        """A transaction's data and its checksum, where they are kept."""
        found = self._data.get((partition, transaction_id))
        if found is None:
            self.data_misses.mark()
        return found
