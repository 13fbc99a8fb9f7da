"""Connections to storage nodes that go away and return: one probe for all who wait."""

from __future__ import annotations

import asyncio
import logging
from types import SimpleNamespace
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
        with pytest.raises(PeerUnreachableError, match="closed here"):
            await waits

    asyncio.run(work())


def test_a_node_that_is_back_at_once_is_not_said_to_be_lost_by_the_end_of_its_dropped_connection(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A loss that is not one would also keep the next one, which is, out of the log."""
    standing = list[_Closing]()

    async def connect(_: str) -> Storage:
        standing.append(_Closing())
        return cast("Storage", standing[-1])

    async def work() -> None:
        nodes = StorageNodes(connect, log=LOG)
        await nodes.get("n")
        nodes.drop(["n"])
        assert await nodes.get("n") is cast("Storage", standing[1])
        while not standing[0].closed:
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert (caplog.messages, nodes._lost) == ([], {})
        standing[1].ended.set_result(PeerUnreachableError("n", "it is gone"))
        await asyncio.sleep(0)
        assert caplog.messages == ["storage node n is left out until it can be reached: n: it is gone"]
        await nodes.close()

    asyncio.run(work())


@pytest.mark.parametrize("answers", [True, False])
def test_what_becomes_of_a_dropped_attempt_is_not_said_of_the_node_that_is_back(
    answers: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """It answers, and the node that is back does not; or the other way round."""
    go_on, attempts = asyncio.Event(), list[str]()

    async def connect(name: str) -> Storage:
        attempts.append(name)
        dropped = len(attempts) == 1
        if dropped:
            await go_on.wait()
        if dropped != answers:
            raise PeerUnreachableError(name, "nobody listens")
        return cast("Storage", _Closing())

    async def work() -> None:
        nodes = StorageNodes(connect, log=LOG)
        dropped = asyncio.ensure_future(nodes.get("n"))
        await asyncio.sleep(0)
        nodes.drop(["n"])
        await asyncio.gather(nodes.get("n"), return_exceptions=True)
        before, known = caplog.messages, {**nodes._lost}
        assert len(before) == len(known) == (1 if answers else 0)
        go_on.set()
        await asyncio.gather(dropped, return_exceptions=True)
        await asyncio.sleep(0)
        assert (caplog.messages, nodes._lost) == (before, known)
        await nodes.close()

    caplog.set_level(logging.INFO)
    asyncio.run(work())


def test_an_end_of_the_server_right_behind_the_leaving_of_a_node_closes_its_connection() -> None:
    standing = list[_Closing]()

    async def connect(_: str) -> Storage:
        standing.append(_Closing())
        return cast("Storage", standing[-1])

    async def work() -> None:
        nodes = StorageNodes(connect, log=LOG)
        await nodes.get("n")
        nodes.drop(["n"])
        await nodes.close()
        assert standing[0].closed

    asyncio.run(work())


@pytest.mark.parametrize("told", [True, False])
def test_a_node_that_came_while_the_assignment_was_read_keeps_its_connection(told: bool) -> None:
    """`check_connectivity` may have read of the nodes before that one came; a session uses it, before or behind `reassign`."""

    async def work() -> None:
        made = Leaving(answering=True)
        go_on = asyncio.Event()

        async def nodes() -> frozenset[str]:
            await go_on.wait()
            return frozenset({"old:1"})

        made.nodes = nodes  # type: ignore[method-assign]
        await made.server.reassign({0: ["old:1"]})
        await made.server._nodes.get("old:1")
        checking = asyncio.ensure_future(made.server.check_connectivity())
        await asyncio.sleep(0)
        closes = asyncio.Event()
        store: Any = SimpleNamespace(
            reassign=lambda _: closes.wait(),  # the earlier session is being closed
            state=SimpleNamespace(nodes=() if told else ("new:1",)),
        )
        made.server.partitions[0] = cast("Any", SimpleNamespace(store=store))
        telling = asyncio.ensure_future(made.server.reassign({0: ["new:1"]} if told else {0: ["old:1"]}))
        await made.server._nodes.get("new:1")
        await made.server._nodes.get("gone:1")
        go_on.set()
        await checking
        assert made.left[0] == {"old:1", "new:1"}
        closes.set()
        await telling
        made.server.partitions.clear()
        await made.server.stop(0)

    asyncio.run(work())


def test_who_waits_for_a_connection_while_all_are_closed_is_told_so_and_not_cancelled() -> None:
    async def work() -> None:
        never = asyncio.Event()

        async def connect(name: str) -> Storage:
            await never.wait()
            raise AssertionError(name)

        nodes = StorageNodes(connect, log=LOG)
        waiting = asyncio.ensure_future(nodes.get("n"))
        await asyncio.sleep(1)
        await nodes.close()
        with pytest.raises(PeerUnreachableError, match="closed here"):
            await waiting

    simulate(work())
