"""The committed transactions of a partition, for its readers: feeds in the order of the ids, and data on request.

A feed sends headers, without data.  Both are answered from the server's cache (`engine.server.transaction_cache`) where it has
them, otherwise from a replica.

Sources: design document *Waltz Server*; release 0.13.2.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from waltzctl.engine.net.events import Turns
from waltzctl.engine.scan.client_appends import NumberedRecords
from waltzctl.engine.server.server_metrics import CommittedInSecond, ServerPartitionMetrics
from waltzctl.engine.server.server_settings import PartitionOptions
from waltzctl.engine.server.store_partition import StorePartition, closed_error
from waltzctl.engine.server.transaction_cache import CHUNK, TransactionCache
from waltzctl.formats.wire.client import UNKNOWN_HIGH_WATER_MARK
from waltzctl.formats.wire.feed_frames import FEED_FRAME, feed_frames

_GRANTS_PER_SECOND = 4
"""How often a reader that keeps up with a busy partition has to ask for more."""


class Reader(Protocol):
    """A client's connection that reads a feed."""

    @property
    def closed(self) -> bool:
        """Whether the connection has ended."""

    async def writable(self) -> None:
        """Wait until the reader accepts more."""

    def feed(self, frames: bytes) -> None:
        """Send transactions: `FeedData` messages of the latest protocol version, back to back."""


class CommittedTransactions:
    """The committed transactions of one partition.

    `high_water_mark`: the id of the last one; UNKNOWN_HIGH_WATER_MARK before the partition's first session.
    """

    def __init__(
        self,
        store: StorePartition,
        cache: TransactionCache,
        *,
        options: PartitionOptions,
        metrics: ServerPartitionMetrics,
    ) -> None:
        self.high_water_mark = UNKNOWN_HIGH_WATER_MARK
        self._store, self._cache, self._options, self._metrics = store, cache, options, metrics
        self._number = store.partition
        self._time = asyncio.get_running_loop().time
        self._rate = CommittedInSecond(self._time())
        self._advanced = Turns()
        self._closed = False

    # ---- what the partition reports ------------------------------------------------------------------------------------

    def advance(self, batch: NumberedRecords) -> None:
        """A batch is committed: raise the high-water mark to its last id.  Readers see it after `wake`."""
        self.high_water_mark = batch.last
        self._rate.note(self._time(), len(batch.records))

    def keep(self, batch: NumberedRecords) -> None:
        """Put a committed batch into the cache."""
        self._cache.put(self._number, batch)

    def cut(self, last: int) -> None:
        """Drop cached transactions above an id: the log of a new session ends there."""
        self._cache.cut(self._number, last)

    def forget(self) -> None:
        """Drop everything cached: another server may have had the partition since it was read."""
        self._cache.forget(self._number)

    def wake(self) -> None:
        """Let waiting feeds go on: the high-water mark may have changed."""
        self._advanced.happened()

    def close(self) -> None:
        """End every feed with PartitionClosedError."""
        self._closed = True
        self.wake()

    # ---- feeds ---------------------------------------------------------------------------------------------------------

    def grant(self, position: int) -> int:
        """The number of transactions above `position` to send to a reader that asks for more: all committed ones at least.

        The release always grants 100 beyond these.  Readers of a partition that commits 50,000 a second would then have to ask
        500 times a second, and clients that append would wait meanwhile, since the feed is what answers an append.
        """
        waiting = self.high_water_mark - position
        return max(waiting, self._options.feed, self._rate.committed // _GRANTS_PER_SECOND)

    async def feed(self, reader: Reader, position: int, count: int) -> None:
        """Send the `count` transactions above `position` to a reader, as they are committed.  Raises PartitionClosedError."""
        position, metrics = max(position, -1), self._metrics
        behind = min(count, self.high_water_mark - position)
        if behind > 0:
            metrics.catchups_added += 1
            try:
                await self._send(reader, position, behind)
            finally:
                metrics.catchups_removed += 1
            position, count = position + behind, count - behind
            if not count:
                return
        metrics.feeds_added += 1
        try:
            await self._send(reader, position, count)
        finally:
            metrics.feeds_removed += 1

    async def _send(self, reader: Reader, position: int, count: int) -> None:
        while count > 0 and not reader.closed:
            await reader.writable()
            if self._closed:
                raise closed_error(self._number)
            advanced = self._advanced.count
            if position >= self.high_water_mark:
                await self._advanced.beyond(advanced)
                continue
            frames = await self._frames(position + 1, min(count, self.high_water_mark - position))
            if not frames:  # a later session's log ends below the mark; the partition is about to find that out
                await self._advanced.beyond(advanced)
                continue
            reader.feed(frames)
            position += len(frames) // FEED_FRAME
            count -= len(frames) // FEED_FRAME

    async def _frames(self, first: int, count: int) -> bytes:
        """Feed frames from a transaction on, `count` at most: cached ones, or one chunk read from storage."""
        found = self._cache.fed(self._number, first, count)
        if not found:
            losses = self._cache.losses(self._number)
            found = feed_frames(await self._store.headers(first, min(count, CHUNK - first % CHUNK)))
            if losses == self._cache.losses(self._number):  # otherwise what was read may be out of date
                self._cache.put_fed(self._number, first, found)  # other readers ask for the same frames
        return found

    # ---- data ----------------------------------------------------------------------------------------------------------

    def cached_data(self, transaction_id: int) -> tuple[bytes, int] | None:
        """A transaction's data and the data's CRC-32, if they are cached."""
        return self._cache.data(self._number, transaction_id)

    async def data(self, transaction_id: int) -> tuple[bytes, int] | None:
        """A transaction's data and the data's CRC-32, read from storage; None if there is no such transaction.

        Raises StoreSessionClosedError if the partition has no session, or if it ends meanwhile; the caller may wait for the next
        one (`StorePartition.session`).
        """
        found = None
        if transaction_id >= 0:
            losses = self._cache.losses(self._number)
            for record in await self._store.records_now(transaction_id, 1):
                if losses == self._cache.losses(self._number):  # otherwise what was read may be out of date
                    self._cache.put_data(self._number, record)
                found = record.data, record.data_checksum
        return found
