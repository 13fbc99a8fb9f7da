"""The stores that keep a cluster's metadata, for tests that hold for each of them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from tests.zookeeper import ZooKeeperServer, new_root
from waltzctl.engine.metadata.embedded_store import EmbeddedStore
from waltzctl.engine.metadata.metadata_store import MetadataStore
from waltzctl.engine.metadata.zookeeper_options import ZooKeeperOptions
from waltzctl.engine.metadata.zookeeper_store import ZooKeeperStore

T = TypeVar("T")
KINDS = ("embedded", "zookeeper")


@dataclass
class Stores:
    """Opens connections to one store, and closes them."""

    path: Path
    zookeeper: ZooKeeperServer | None
    session_timeout: float = 1.0

    def __post_init__(self) -> None:
        self.root = new_root()
        self._open: list[MetadataStore] = []

    async def open(self) -> MetadataStore:
        """One more connection."""
        store: MetadataStore
        if self.zookeeper is None:
            store = await EmbeddedStore.open(self.path, create=True, session_timeout=self.session_timeout)
        else:
            store = await ZooKeeperStore.open(
                ZooKeeperOptions(self.zookeeper.connect_string, self.root, session_timeout=self.session_timeout)
            )
        self._open.append(store)
        return store

    async def close(self) -> None:
        """All of them."""
        for store in self._open:
            await store.close()
        self._open.clear()

    def run(self, test: Callable[[Stores], Awaitable[T]]) -> T:
        """A test, with everything closed behind it."""

        async def whole() -> T:
            try:
                return await test(self)
            finally:
                await self.close()

        return asyncio.run(whole())
