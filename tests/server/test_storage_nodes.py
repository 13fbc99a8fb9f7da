"""Connections to storage nodes that go away and return: one probe for all who wait."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, cast

import pytest

from tests.simulation.virtual_time import simulate
from waltzctl.engine.errors import DeadlineError, PeerError, PeerUnreachableError, ProtocolError, RemoteError
from waltzctl.engine.server.log_server import LogServer, ServerMetadata
from waltzctl.engine.server.storage_nodes import Storage, StorageNodes

LOG = logging.getLogger("waltzctl.test")


class Nodes:
    """A node that is down until a moment, and how often it was tried to be reached."""

    def __init__(self, up_at: float) -> None:
        self.up_at, self.attempts = up_at, list[float]()
        self.nodes = StorageNodes(self.connect, log=LOG)
        self.error: PeerError | RemoteError | None = None

    @property
    def now(self) -> float:
        return asyncio.get_running_loop().time()

    async def connect(self, name: str) -> Storage:
        self.attempts.append(self.now)
        if self.now < self.up_at:
            raise PeerUnreachableError(name, "nobody listens")
        if self.error is not None:
            raise self.error
        self.made = _Standing()
        return cast("Storage", self.made)


class _Standing:
    def __init__(self) -> None:
        self.ended: asyncio.Future[PeerError] = asyncio.get_running_loop().create_future()

    @property
    def closed(self) -> bool:
        return self.ended.done()

    async def close(self) -> None:
        pass


class _Closing(_Standing):
    """One that is lost once it is closed here, as a connection is."""

    async def close(self) -> None:
        """See `Storage`."""
        if not self.closed:
            self.ended.set_result(PeerUnreachableError("n", "closed here"))


def run(test: Any, up_at: float) -> None:
    async def work() -> None:
        nodes = Nodes(up_at)
        await test(nodes)
        await nodes.nodes.close()

    simulate(work())


def test_all_who_wait_for_a_node_share_one_probe_and_hear_of_it_soon() -> None:
    async def test(made: Nodes) -> None:
        await asyncio.gather(*(made.nodes.returned("n", 20.0) for _ in range(1000)))
        assert 10.0 <= made.now <= 10.6
        assert len(made.attempts) <= 21
        assert (await made.nodes.get("n")) is await made.nodes.get("n")
        assert len(made.attempts) <= 21, "the probe's connection is used"

    run(test, 10.0)


def test_a_wait_ends_when_its_time_is_over_and_the_probe_with_the_last_one() -> None:
    async def test(made: Nodes) -> None:
        async def patient() -> float:
            await made.nodes.returned("n", 3.0)
            return made.now

        begun = asyncio.ensure_future(patient())
        await made.nodes.returned("n", 1.2)
        assert made.now == pytest.approx(1.2)
        assert await begun == pytest.approx(3.0)
        tried = len(made.attempts)
        assert tried == 5
        await asyncio.sleep(100.0)
        assert len(made.attempts) == tried, "nobody waits, and it is probed"
        await made.nodes.returned("n", 1.2)
        assert len(made.attempts) > tried, "a later wait begins anew"

    run(test, 1000.0)


def test_that_a_node_is_gone_and_there_again_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    async def test(made: Nodes) -> None:
        await asyncio.gather(*(made.nodes.get("n") for _ in range(100)))
        assert caplog.messages == []
        made.made.ended.set_result(PeerUnreachableError("n", "the connection ended"))
        await asyncio.sleep(0)
        assert caplog.messages == ["storage node n is left out until it can be reached: n: the connection ended"]
        await asyncio.gather(*(made.nodes.get("n") for _ in range(100)))
        assert caplog.messages[1:] == ["storage node n: connected"]
        await made.nodes.close()
        made.made.ended.set_result(PeerUnreachableError("n", "closed"))
        await asyncio.sleep(0)
        assert len(caplog.messages) == 2, "it was closed here"

    caplog.set_level(logging.INFO)
    run(test, 0.0)


def test_that_a_node_cannot_be_reached_is_logged_once_and_why_it_refuses_whenever_that_is_another_reason(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def test(made: Nodes) -> None:
        for error, logged in (
            (PeerUnreachableError("n", "nobody listens"), True),
            (PeerUnreachableError("n", "no route"), False),
            (DeadlineError("n", "no answer"), False),
            (RemoteError("n", "another cluster"), True),
            (RemoteError("n", "another cluster"), False),
            (RemoteError("n", "too many connections"), True),
            (PeerUnreachableError("n", "nobody listens"), False),
            (ProtocolError("n", "no handshake"), True),
        ):
            caplog.clear()
            made.error = error
            with pytest.raises(type(error)):
                await made.nodes.get("n")
            expected = [f"storage node n is left out until it can be reached: {error}"] if logged else []
            assert caplog.messages == expected, error
        caplog.clear()
        made.error = None
        await made.nodes.get("n")
        assert caplog.messages == ["storage node n: connected"]
        await made.nodes.get("other")
        assert len(caplog.messages) == 1, "one that was never missed"

    caplog.set_level(logging.INFO)
    run(test, 0.0)


class Leaving:
    """A server whose storage nodes come and go; `made`: the connections, by node, to those that answer."""

    def __init__(self, answering: bool) -> None:
        self.answering, self.made = answering, dict[str, _Closing]()
        self.server = LogServer(cast("ServerMetadata", self), self.connect, log=LOG)
        self.named = frozenset[str]()

    async def connect(self, name: str) -> Storage:
        await asyncio.sleep(0)
        if not self.answering:
            raise PeerUnreachableError(name, "nobody listens")
        self.made[name] = _Closing()
        return cast("Storage", self.made[name])

    async def nodes(self) -> frozenset[str]:
        """See `ServerMetadata`."""
        return self.named

    @property
    def left(self) -> tuple[set[str], set[str]]:
        """Nodes that are known, and those of which it is known why they were lost."""
        nodes = self.server._nodes
        return {*nodes.known}, {*nodes._lost}


@pytest.mark.parametrize("answering", [True, False])
@pytest.mark.parametrize("held", [True, False])
def test_of_nodes_that_have_left_the_cluster_nothing_is_left(answering: bool, held: bool) -> None:
    """A cluster whose nodes have new names at each of their starts keeps a server of months from no descriptor."""

    async def work() -> None:
        made = Leaving(answering)
        for number in range(200):
            name = f"node-{number}:1"
            made.named = frozenset({"stays:1", name})
            await made.server.reassign({0: ["stays:1"], 1: [name]} if held else {0: ["stays:1"]})
            told = dict(await made.server.check_connectivity())
            assert told == {"stays:1": answering, name: answering}
        assert made.left == ({"stays:1", name}, set() if answering else {"stays:1", name})
        for _ in range(10):
            await asyncio.sleep(0)
        assert {one for one, connection in made.made.items() if not connection.closed} == (
            {"stays:1", name} if answering else set()
        )
        assert not made.server._nodes._dropped
        await made.server.stop(0)

    asyncio.run(work())


def test_a_node_that_leaves_while_it_is_being_connected_is_let_go_once_it_is() -> None:
    """Whoever waits for it gets it all the same, and an end that nobody regrets is not logged."""
    go_on, standing = asyncio.Event(), list[_Closing]()

    async def connect(_: str) -> Storage:
        await go_on.wait()
        standing.append(_Closing())
        return cast("Storage", standing[0])

    async def work() -> None:
        nodes = StorageNodes(connect, log=LOG)
        waits = asyncio.ensure_future(nodes.get("n"))
        await asyncio.sleep(0)
        nodes.drop(["n"])
        go_on.set()
        assert await waits is cast("Storage", standing[0])
        while not standing[0].closed:
            await asyncio.sleep(0)
        assert (nodes.known, nodes._lost) == (frozenset(), {})
        await nodes.close()

    asyncio.run(work())


def test_an_end_of_the_server_waits_for_no_node_that_has_left() -> None:
    cancelled = list[str]()

    async def connect(name: str) -> Storage:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(name)
            raise
        raise AssertionError

    async def work() -> None:
        nodes = StorageNodes(connect, log=LOG)
        waits = asyncio.ensure_future(nodes.get("n"))
        await asyncio.sleep(0)
        nodes.drop(["n"])
        await asyncio.sleep(0)
        await nodes.close()
        assert cancelled == ["n"]
        assert (await asyncio.gather(waits, return_exceptions=True))[0].__class__ is asyncio.CancelledError

    asyncio.run(work())
