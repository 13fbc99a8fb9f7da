"""A whole node in an event loop on a thread of its own, for readers that know nothing of event loops."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.node.running import LOG, PATIENCE, node_options
from waltzctl.engine.client.storage_client import StorageClient
from waltzctl.engine.node.node import Node
from waltzctl.formats.segment import Record
from waltzctl.formats.wire.records import WireRecord

SESSION = 3
"""The session of `tests.builders.build_directory`."""


def sent(records: Sequence[Record]) -> list[WireRecord]:
    """Records as they go over the wire."""
    return [WireRecord(one.transaction_id, one.request_id, one.header, one.data, one.data_checksum) for one in records]


class ServedNode:
    """A running node."""

    def __init__(self, loop: asyncio.AbstractEventLoop, node: Node) -> None:
        self._loop, self.node = loop, node

    @property
    def url(self) -> str:
        where = self.node.addresses
        return f"waltz://{where.host}:{where.admin_port}"

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE)

    async def _client(self) -> StorageClient:
        where = self.node.addresses
        return await StorageClient.connect(where.host, where.port, ssl_context=None)

    def append(self, partition: int, records: Sequence[Record]) -> None:
        async def work() -> None:
            async with await self._client() as client:
                await client.append(SESSION, partition, sent(records))

        self.run(work())

    def truncate(self, partition: int, transaction_id: int) -> None:
        async def work() -> None:
            async with await self._client() as client:
                await client.truncate(SESSION, partition, transaction_id)

        self.run(work())


@contextlib.contextmanager
def served(path: Path, **options: Any) -> Iterator[ServedNode]:
    """Serve a directory; without TLS unless told otherwise."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="node")
    thread.start()
    try:
        start = Node.start(node_options(path, **options), log=LOG, version="1.2.3")
        node = asyncio.run_coroutine_threadsafe(start, loop).result(PATIENCE)
        try:
            yield ServedNode(loop, node)
        finally:
            asyncio.run_coroutine_threadsafe(node.stop(PATIENCE), loop).result(PATIENCE)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
