"""Peers for the tests of the client: servers that follow a script, however wrong it is, on a real socket."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

from tests.builders import KEY
from waltzctl.engine.net.addresses import Address
from waltzctl.formats.wire import admin
from waltzctl.formats.wire.failure import Failure
from waltzctl.formats.wire.frame import FrameReader, Magic
from waltzctl.formats.wire.hello import ADMIN_SERVER, STORAGE_SERVER, Hello
from waltzctl.formats.wire.records import SessionInfo, WireRecord

Script = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
"""What a peer does with one connection; it is closed when the script ends."""

STORAGE_HELLO = Hello((0,), STORAGE_SERVER).encode()
ADMIN_HELLO = Hello((0,), ADMIN_SERVER).encode()


@contextlib.asynccontextmanager
async def scripted(script: Script) -> AsyncIterator[Address]:
    """A server on the loopback."""
    running: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        running.add(task)
        try:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
                await script(reader, writer)
        finally:
            running.discard(task)
            writer.transport.abort()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        host, port = server.sockets[0].getsockname()
        yield Address(host, port)
    finally:
        server.close()
        for task in list(running):
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


class Bodies:
    """The client's frames, one body at a time."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        self._reader = reader
        self._frames = FrameReader()

    async def next(self, magic: Magic, version: int = 0) -> bytes:
        """Raises asyncio.IncompleteReadError at the end."""
        while (body := self._frames.next(magic, version)) is None:
            data = await self._reader.read(1 << 16)
            if not data:
                raise asyncio.IncompleteReadError(b"", None)
            self._frames.feed(data)
        return bytes(body)


async def until_closed(reader: asyncio.StreamReader) -> None:
    """Read and forget, until the client is gone."""
    while await reader.read(1 << 16):
        pass


class ReleasedAdmin:
    """The admin port of a node that speaks version 0 and gives out whatever it was given, damaged or not.

    One partition, 0.  `last` and `mark`: last transaction and local low-water mark, as its metrics tell them.  `key`: of its
    cluster, with which it compares what it is asked.
    """

    def __init__(
        self, records: Sequence[WireRecord], *, last: int | None = None, mark: int | None = None, key: uuid.UUID = KEY
    ) -> None:
        self.key = key
        self.records = {record.transaction_id: record for record in records}
        self.last = last if last is not None else max(self.records, default=-1)
        self.mark = self.last if mark is None else mark
        self.asked: list[tuple[int, int]] = []

    @property
    def metrics(self) -> str:
        gauges = {"session-id": 3, "low-water-mark": self.mark, "local-low-water-mark": self.mark, "flags": 5,
                  "max-transaction-id": self.last, "process-queue-size": 0}  # fmt: skip
        named = ",".join(f'"waltz-storage.partition-0.{name}":{{"value":{value}}}' for name, value in gauges.items())
        return f'{{"gauges":{{{named}}}}}'

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(ADMIN_HELLO)
        bodies = Bodies(reader)
        await bodies.next(Magic.HELLO)
        while True:
            writer.write(admin.encode(self._answer(admin.decode(await bodies.next(Magic.ADMIN)))))

    def _answer(self, request: admin.AdminMessage) -> admin.AdminMessage:
        match request:
            case admin.OpenRequest(sequence=number, cluster_key=key):
                if key == self.key:
                    return admin.SuccessResponse(number)
                said = "Provided cluster key is inconsistent with key in control file."
                return admin.FailureResponse(
                    number, Failure(f"com.wepay.waltz.storage.exception.StorageException: {said}")
                )
            case admin.MetricsRequest(sequence=number):
                return admin.MetricsResponse(number, self.metrics)
            case admin.AssignedPartitionStatusRequest(sequence=number):
                return admin.AssignedPartitionStatusResponse(number, ((0, True),))
            case admin.LastSessionInfoRequest(sequence=number):
                return admin.LastSessionInfoResponse(number, 0, SessionInfo(3, self.mark, self.mark))
            case admin.RecordListRequest(sequence=number, first_transaction_id=first, max_count=count):
                self.asked.append((first, count))
                found = []
                while first in self.records and len(found) < count:
                    found.append(self.records[first])
                    first += 1
                return admin.RecordListResponse(number, 0, tuple(found))
            case _:
                raise AssertionError(f"{request} was not expected")
