"""Reading a partition's records through an admin port, in order, in bounded memory.

A released node limits the response to a list request only by the number of records, not by bytes (also at its data port, see
`engine.server.store_session`).  So the client chooses the number: it starts with one that is safe for records of any size, and
adapts it to the size of the records received.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from waltzctl.engine.client.admin_client import AdminClient
from waltzctl.formats.wire.records import WireRecord

FIRST_COUNT = 4
"""Records of the first request."""
GROWTH = 8
"""A request asks for at most this many times the records of the last response, or for as many as the last request asked."""
DEFAULT_RECORDS = 10_000
DEFAULT_BYTES = 8 << 20


class BatchSize:
    """Chooses `count`, the records to request next, for a response of about `bytes_` bytes and at most `records` records."""

    def __init__(self, records: int = DEFAULT_RECORDS, bytes_: int = DEFAULT_BYTES) -> None:
        self._records = max(records, 1)
        self._bytes = bytes_
        self.count = min(FIRST_COUNT, self._records)

    def learn(self, records: tuple[WireRecord, ...]) -> None:
        """Adapt `count` to the records of a response."""
        if records:
            size = sum(record.size for record in records)
            fitting = max(self._bytes * len(records) // size, 1)
            self.count = max(min(fitting, max(self.count, len(records) * GROWTH), self._records), 1)


async def read_batches(
    client: AdminClient, partition: int, first: int, last: int, size: BatchSize | None = None
) -> AsyncGenerator[tuple[WireRecord, ...], None]:
    """The records from `first` to `last`, in batches; the next request is in flight while the caller handles a batch.

    Ends early after an empty response, and after a batch whose ids do not continue the sequence; that batch is yielded, so that
    the caller can report it.  Neither ids nor checksums are verified.  Raises what `AdminClient.records` raises.
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
