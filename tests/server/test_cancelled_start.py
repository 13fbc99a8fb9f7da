"""A whole server over an embedded store whose start or stop is cancelled at each of its awaits."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.cancelling import WAYS, Moment, at_each_await
from tests.node.running import PATIENCE, Held
from tests.node.test_cancelled_node import threads_are_gone
from tests.server.storing import LOG
from tests.server.test_whole_server import metadata
from waltzctl.engine.metadata.embedded_store import EmbeddedStore
from waltzctl.engine.metadata.membership import read_servers
from waltzctl.engine.server.server import Server
from waltzctl.engine.server.server_settings import ServerOptions

pytestmark = pytest.mark.turns(10)


@dataclass
class Place:
    """Where a server keeps its metadata, and what the process held before it."""

    path: Path
    before: Held

    @property
    def options(self) -> ServerOptions:
        return ServerOptions(
            metadata=str(self.path), host="127.0.0.1", port=0, http_port=0, plaintext=True, storage_plaintext=True
        )

    async def is_left(self) -> None:
        """No server is among the servers, and nothing of one is in the process."""
        await threads_are_gone(self.before)
        assert Held.now().sockets_and_files(self.path) <= self.before.sockets_and_files(self.path)
        store = await EmbeddedStore.open(self.path)
        try:
            assert (await read_servers(store))[3] == ()
        finally:
            await store.close()


@WAYS
def test_a_start_that_is_cancelled_anywhere_leaves_nothing(tmp_path: Path, moment: Moment, again: int) -> None:
    @contextlib.asynccontextmanager
    async def scene() -> AsyncIterator[Place]:
        yield Place(tmp_path / "metadata", Held.now())

    async def call(place: Place) -> None:
        server = await Server.start(place.options, log=LOG)
        await server.stop(0)

    async def cluster() -> None:
        async with metadata(tmp_path, "127.0.0.1:1"):
            pass
        await call(Place(tmp_path / "metadata", Held.now()))

    asyncio.run(cluster())
    assert at_each_await(scene, call, Place.is_left, moment=moment, again=again, run=asyncio.run) > 3


@pytest.mark.parametrize("by", ["a caller", "the end of its loop"])
@WAYS
def test_a_stop_that_is_cancelled_anywhere_stops_the_server(
    tmp_path: Path, by: str, moment: Moment, again: int
) -> None:
    running: list[Server] = []

    @contextlib.asynccontextmanager
    async def scene() -> AsyncIterator[Place]:
        place = Place(tmp_path / "metadata", Held.now())
        running[:] = [await Server.start(place.options, log=LOG)]
        yield place

    async def call(_: Place) -> None:
        if by == "a caller":
            await running[0].stop(0)
        else:  # which cancels all tasks, also that of the stop
            await running[0]._close(0)

    async def then(place: Place) -> None:
        async with asyncio.timeout(PATIENCE):
            await running[0].wait_closed()
        await place.is_left()

    async def cluster() -> None:
        async with metadata(tmp_path, "127.0.0.1:1"):
            pass

    asyncio.run(cluster())
    assert at_each_await(scene, call, then, moment=moment, again=again, run=asyncio.run) > 0
