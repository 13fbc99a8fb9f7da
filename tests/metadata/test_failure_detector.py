"""Log servers that died are found out by their connections, and those that live are not."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Sequence
from typing import Any

import pytest

from tests.net.test_listening import link_local
from tests.reserved_ports import reserved_ports
from tests.simulation.virtual_time import simulate
from waltzctl.engine.errors import MismatchError, PeerError, PeerUnreachableError
from waltzctl.engine.metadata.failure_detector import FailureDetector, is_refused, successors
from waltzctl.engine.net.addresses import Address
from waltzctl.event_loop import loop_factory
from waltzctl.formats.znodes import ServerDescriptor

LOG = logging.getLogger("test")
LONG = 1000.0


class Peer:
    """A connection, which ends when it is told to."""

    def __init__(self) -> None:
        self.ended: asyncio.Future[PeerError] = asyncio.get_running_loop().create_future()

    async def close(self) -> None:
        self.end()

    def end(self) -> None:
        if not self.ended.done():
            self.ended.set_result(PeerUnreachableError("peer", "gone"))


class Network:
    """Attempts to connect end as `answers` says, the last one for ever: stands, refused, or silent."""

    def __init__(self, answers: str) -> None:
        self.answers = answers
        self.at = 0
        self.peers: list[Peer] = []
        self.deleted: list[str] = []
        self.failing = 0

    async def connect(self, address: Address) -> Peer:
        await asyncio.sleep(0.01)
        answer = self.answers[min(self.at, len(self.answers) - 1)]
        self.at += 1
        if answer != "s":
            raise PeerUnreachableError(str(address), answer)
        self.peers.append(Peer())
        if self.at < len(self.answers):
            asyncio.get_running_loop().call_later(1.0, self.peers[-1].end)
        return self.peers[-1]

    async def refused(self, address: Address) -> bool:
        return self.answers[min(self.at, len(self.answers)) - 1] == "r"

    async def delete(self, path: str) -> None:
        if self.failing:
            self.failing -= 1
            raise PeerUnreachableError("metadata", "not now")
        self.deleted.append(path)


def found(answers: str, *, failing: int = 0) -> list[str]:
    """Whose descriptors are deleted in the end."""

    async def work() -> list[str]:
        network = Network(answers)
        network.failing = failing
        detector = FailureDetector(network.connect, network.delete, log=LOG, refused=network.refused)
        detector.watch(1, [("one", ServerDescriptor(1, "h", 1, ())), ("two", ServerDescriptor(2, "h", 2, ()))])
        await asyncio.sleep(LONG)
        await detector.close()
        assert all(one.ended.done() for one in network.peers), "a connection stayed"
        return network.deleted

    return simulate(work())


@pytest.mark.parametrize(
    ("answers", "dead"),
    [
        ("srrr", True),
        ("srrs", False),
        ("srrts", False),
        ("srrtr", True),
        ("srrtrt", False),
        ("st", False),
        ("sttrrr", True),
        ("r", False),
        ("rrrrs", False),
        ("s", False),
        ("sss", False),
        ("sssrrr", True),
    ],
)
def test_dead_is_whose_connection_ended_and_who_refused_three_times_in_a_row(answers: str, dead: bool) -> None:
    assert found(answers) == ["two"] * dead


def test_what_cannot_be_deleted_now_is_deleted_later(caplog: pytest.LogCaptureFixture) -> None:
    assert found("srrr", failing=3) == ["two"]
    caplog.clear()
    assert found("srrr", failing=100_000) == []
    assert len(caplog.records) < LONG, "a line every two seconds at most, while the metadata is away"


@pytest.mark.parametrize("error", [MemoryError(), MismatchError("another cluster"), OverflowError("no such port")])
@pytest.mark.parametrize("first", [False, True])
def test_an_attempt_that_fails_unexpectedly_is_not_the_last_one(error: Exception, first: bool) -> None:
    """Nobody was watched any more, and nothing said so."""

    async def work() -> None:
        network, failed = Network("srrr"), list[int]()

        async def connect(address: Address) -> Peer:
            if network.at == (not first) and not failed:
                failed.append(network.at)
                raise error
            return await network.connect(address)

        detector = FailureDetector(connect, network.delete, log=LOG, refused=network.refused)
        detector.watch(1, [("two", ServerDescriptor(2, "h", 2, ()))])
        await asyncio.sleep(LONG)
        assert (len(failed), network.deleted) == (1, ["two"])
        await detector.close()

    simulate(work())


@pytest.mark.parametrize("what", ["refused", "delete"])
def test_a_moment_without_memory_behind_the_end_of_a_server_is_not_the_last_look_at_it(what: str) -> None:
    async def work() -> None:
        network, failed = Network("srrr"), list[object]()
        real = getattr(network, what)

        async def fails_once(given: object) -> object:
            if not failed:
                failed.append(given)
                raise MemoryError
            return await real(given)

        setattr(network, what, fails_once)
        detector = FailureDetector(network.connect, network.delete, log=LOG, refused=network.refused)
        detector.watch(1, [("two", ServerDescriptor(2, "h", 2, ()))])
        await asyncio.sleep(LONG)
        assert (len(failed), network.deleted) == (1, ["two"])
        await detector.close()

    simulate(work())


@pytest.mark.parametrize("what", ["close", "ended"])
def test_a_moment_without_memory_at_the_end_of_a_connection_is_not_the_last_look_at_its_server(what: str) -> None:
    async def work() -> None:
        network, failed = Network("srrr"), list[object]()

        class Failing(Peer):
            async def close(self) -> None:
                self.end()
                if what == "close" and not failed:
                    failed.append(self)
                    raise MemoryError

        async def connect(address: Address) -> Any:
            peer = await network.connect(address)
            failing = Failing()
            peer.ended.add_done_callback(lambda _: failing.end())
            if what == "ended":
                failing.ended.add_done_callback(failed.append)
                failing.ended.set_exception(MemoryError())
            return failing

        detector = FailureDetector(connect, network.delete, log=LOG, refused=network.refused)
        detector.watch(1, [("two", ServerDescriptor(2, "h", 2, ()))])
        await asyncio.sleep(LONG)
        assert (len(failed), network.deleted) == (1, ["two"])
        await detector.close()

    simulate(work())


def test_who_was_never_reached_is_hardly_tried_any_more() -> None:
    async def work() -> None:
        network = Network("t")
        detector = FailureDetector(network.connect, network.delete, log=LOG, refused=network.refused)
        detector.watch(1, [("two", ServerDescriptor(2, "h", 2, ()))])
        await asyncio.sleep(10.0)
        assert 5 <= network.at <= 10, "a server that is just starting is reached soon"
        await asyncio.sleep(LONG)
        assert network.at <= 10 + LONG / 30
        await detector.close()

    simulate(work())


def test_whoever_is_no_successor_any_more_is_not_watched() -> None:
    async def work() -> None:
        network = Network("srrr")
        detector = FailureDetector(network.connect, network.delete, log=LOG, refused=network.refused)
        own, other = ("one", ServerDescriptor(1, "h", 1, ())), ("two", ServerDescriptor(2, "h", 2, ()))
        detector.watch(1, [own, other])
        await asyncio.sleep(0.5)
        detector.watch(1, [own, other])
        await asyncio.sleep(0.1)
        assert network.at == 1, "who is watched already is left alone"
        detector.watch(1, [own])
        await asyncio.sleep(LONG)
        assert network.peers[0].ended.done()
        assert network.at == 1
        assert network.deleted == []

    simulate(work())


@pytest.mark.parametrize(
    ("own", "servers", "watched"),
    [
        (1, [1], []),
        (1, [2, 1], [2]),
        (2, [1, 2], [1]),
        (3, [5, 1, 4, 3, 2], [4, 5, 1]),
        (5, [1, 2, 3, 4, 5], [1, 2, 3]),
        (1, [1, 2, 3, 4, 5], [2, 3, 4]),
    ],
)
def test_each_watches_the_three_behind_it(own: int, servers: Sequence[int], watched: Sequence[int]) -> None:
    given: list[tuple[str, Any]] = [(str(number), ServerDescriptor(number, "h", number, ())) for number in servers]
    assert [one.server for one in successors(own, given).values()] == [*watched]
    assert [*successors(own, given)] == [str(number) for number in watched]


def test_nobody_listens_is_what_the_system_says() -> None:
    async def work() -> None:
        (port,) = reserved_ports(1)
        with socket.create_server(("127.0.0.1", port)):
            assert not await is_refused(Address("127.0.0.1", port))
            assert not await is_refused(Address("localhost", port)), "one of its addresses answers"
        assert await is_refused(Address("127.0.0.1", port))
        assert await is_refused(Address("localhost", port))
        assert not await is_refused(Address("nobody.invalid", port)), "a name that is not known says nothing"
        assert not await is_refused(Address("10.0.0..7", port)), "nor does what can be no name"

    asyncio.run(work())


@pytest.mark.parametrize("with_uvloop", [False, True], ids=["asyncio", "uvloop"])
def test_nobody_listens_at_an_address_with_a_zone(with_uvloop: bool) -> None:
    """A dead server there was kept in the metadata until its session expired."""

    async def work() -> None:
        (port,) = reserved_ports(1)
        assert await is_refused(Address(link_local(), port))

    with asyncio.Runner(loop_factory=loop_factory(with_uvloop)) as runner:
        runner.run(work())


def test_a_server_that_is_watched_no_longer_leaves_nothing_behind_the_end() -> None:
    """The connection to it was still being closed when the server that watched it had stopped."""

    class Slow(Peer):
        async def close(self) -> None:
            await asyncio.sleep(1.0)
            closed.append(self)

    closed: list[Slow] = []

    async def connect(_: Address) -> Slow:
        return Slow()

    async def delete(_: str) -> None:
        raise AssertionError

    async def work() -> None:
        before = asyncio.all_tasks()
        detector = FailureDetector(connect, delete, log=LOG)
        detector.watch(1, [("two", ServerDescriptor(2, "h", 2, ()))])
        await asyncio.sleep(0.1)
        detector.watch(1, [])
        await asyncio.sleep(0.1)
        await detector.close()
        assert asyncio.all_tasks() == before

    simulate(work())
