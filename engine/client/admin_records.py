"""Reading a partition's records through an admin port, in order, in bounded memory.

A released node bounds the answer to a list request by its count only, also at its data port (`engine.server.store_session`), so
that the count has to be chosen: it follows the size of the records that came, from one that is small enough for any.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from waltzctl.engine.client.admin_client import AdminClient
from waltzctl.formats.wire.records import WireRecord

FIRST_COUNT = 4
"""Records of the first request."""
GROWTH = 8
"""A request asks for at most so many times as many records as the one before got, or for as many as that one could have."""
DEFAULT_RECORDS = 10_000
DEFAULT_BYTES = 8 << 20


class BatchSize:
    """How many records to ask for next, so that an answer has about `bytes` bytes and at most `records` records."""

    def __init__(self, records: int = DEFAULT_RECORDS, bytes_: int = DEFAULT_BYTES) -> None:
        self._records = max(records, 1)
        self._bytes = bytes_
        self.count = min(FIRST_COUNT, self._records)

    def learn(self, records: tuple[WireRecord, ...]) -> None:
        """Take into account what came."""
        if records:
            size = sum(record.size for record in records)
            fitting = max(self._bytes * len(records) // size, 1)
            self.count = max(min(fitting, max(self.count, len(records) * GROWTH), self._records), 1)


async def read_batches(
    client: AdminClient, partition: int, first: int, last: int, size: BatchSize | None = None
) -> AsyncGenerator[tuple[WireRecord, ...], None]:
    """The records from `first` to `last`, as they come, the next request under way while a batch is looked at.

    Ends early where the node has no more: with an empty answer, or with one that does not continue the sequence (which is given
    out, so that its reader can say so).  Neither ids nor checksums are checked.  Raises what `AdminClient.records` raises.
    """
    size = size or BatchSize()

    def ask(start: int) -> asyncio.Task[tuple[WireRecord, ...]]:
        return asyncio.create_task(client.records(partition, start, min(size.count, last - start + 1)))

    position = first
    coming: asyncio.Task[tuple[WireRecord, ...]] | None = None
    try:
        while position <= last:
            coming = coming or ask(position)
            batch = await coming
            coming = None
            if not batch:
                return
            size.learn(batch)
            position += len(batch)
            continues = batch[-1].transaction_id == position - 1
            if continues and position <= last:
                coming = ask(position)
            yield batch
            if not continues:
                return
    finally:
        if coming is not None:
            coming.cancel()
            await asyncio.gather(coming, return_exceptions=True)
