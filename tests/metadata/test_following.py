"""Who follows what the metadata say ends when it is cancelled, also at the moment in which there is news."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable, Coroutine, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from waltzctl.engine.errors import PeerUnreachableError
from waltzctl.engine.metadata import partition_sessions, server_directory, watch_loop
from waltzctl.engine.metadata.partition_sessions import follow_replicas
from waltzctl.engine.metadata.server_directory import PartitionServer, ServerDirectory
from waltzctl.formats.znodes import (
    AssignedPartition,
    NodeAssignment,
    NodePartitions,
    ServerAssignment,
    ServerDescriptor,
    ServerPartitions,
)

LOG = logging.getLogger("tests.metadata.following")
TURNS = 50
"""Of the loop, after which whatever is to happen at once has happened."""
Following = Coroutine[Any, Any, None]


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def replicas(watches: list[Callable[[], None]]) -> Following:
    async def told(_: object) -> None:
        pass

    store: Any = SimpleNamespace(session_timeout=60.0)
    return follow_replicas(store, told, log=LOG)


def servers(watches: list[Callable[[], None]]) -> Following:
    class Directory(ServerDirectory):
        async def _read(self, changed: asyncio.Event) -> None:
            watches.append(changed.set)

    store: Any = SimpleNamespace()
    return Directory(store, 1, uuid.UUID(int=1), log=LOG).follow(lambda _: None)


@pytest.mark.parametrize("follow", [replicas, servers])
@pytest.mark.parametrize("behind", range(5))
def test_whoever_is_cancelled_when_there_is_news_ends(
    follow: Callable[[list[Callable[[], None]]], Following], behind: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So many turns of the loop after the news.  ``asyncio.wait_for`` of Python 3.11 loses a cancellation in some of them."""
    watches: list[Callable[[], None]] = []

    async def read(_: object, __: str, ___: object, watch: Callable[[], None]) -> tuple[NodeAssignment, None]:
        watches.append(watch)
        return NodeAssignment(()), None

    async def test() -> bool:
        task = asyncio.ensure_future(follow(watches))
        await turns(TURNS)
        watches[-1]()
        await turns(behind)
        task.cancel()
        await turns(TURNS)
        ended = task.done()
        task.cancel()
        await asyncio.wait([task])
        return ended

    monkeypatch.setattr(partition_sessions, "read_payload", read)
    assert asyncio.run(test())


def test_what_keeps_the_metadata_away_is_said_once_for_each_time(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    outcomes: list[str | None] = ["gone", "gone", "locked", "gone", None, "gone"]

    class Directory(ServerDirectory):
        async def _read(self, changed: asyncio.Event) -> None:
            if not outcomes:
                raise asyncio.CancelledError
            why = outcomes.pop(0)
            if why is not None:
                raise PeerUnreachableError("the metadata", why)
            changed.set()

    monkeypatch.setattr(server_directory, "PAUSE", 0.0)

    async def test() -> None:
        with pytest.raises(asyncio.CancelledError):
            await Directory(SimpleNamespace(), 1, uuid.UUID(int=1), log=LOG).follow(lambda _: None)  # type: ignore[arg-type]

    with caplog.at_level(logging.WARNING):
        asyncio.run(test())
    assert [one.getMessage().rpartition(": ")[2] for one in caplog.records] == ["gone", "locked", "gone", "gone"]


def test_a_moment_without_memory_while_news_are_waited_for_is_not_the_last_look_at_the_servers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    failed, looks = list[float](), list[int]()
    wait = server_directory.happens_within

    async def happens_within(event: asyncio.Event, seconds: float) -> bool:
        if not failed:
            failed.append(seconds)
            raise MemoryError
        return await wait(event, seconds)

    class Directory(ServerDirectory):
        async def _read(self, changed: asyncio.Event) -> None:
            looks.append(len(failed))
            if len(looks) == 2:
                raise asyncio.CancelledError

    monkeypatch.setattr(server_directory, "happens_within", happens_within)
    monkeypatch.setattr(server_directory, "PAUSE", 0.0)

    async def test() -> None:
        with pytest.raises(asyncio.CancelledError):
            await Directory(SimpleNamespace(), 1, uuid.UUID(int=1), log=LOG).follow(lambda _: None)  # type: ignore[arg-type]

    asyncio.run(test())
    assert looks == [0, 1]


@pytest.mark.parametrize("follow", [replicas, servers])
def test_a_moment_without_memory_as_a_failed_look_is_logged_is_not_the_last_look(
    follow: Callable[[list[Callable[[], None]]], Following], monkeypatch: pytest.MonkeyPatch
) -> None:
    done = list[str]()

    async def happens_within(event: asyncio.Event, seconds: float) -> bool:
        done.append("look")
        raise asyncio.CancelledError if len(done) > 2 else PeerUnreachableError("the metadata", "gone")

    def no_memory(*_: object, **__: object) -> None:
        done.append("log")
        raise MemoryError

    async def read(_store: Any, _path: str, _kind: Any, changed: Callable[[], None]) -> tuple[NodeAssignment, int]:
        return NodeAssignment(()), 0

    monkeypatch.setattr(partition_sessions, "read_payload", read)
    monkeypatch.setattr(LOG, "warning", no_memory)
    monkeypatch.setattr(watch_loop, "PAUSE", 0.0)
    for place in (server_directory, partition_sessions):
        monkeypatch.setattr(place, "happens_within", happens_within)

    async def test() -> None:
        with pytest.raises(asyncio.CancelledError):
            await follow([])

    asyncio.run(test())
    assert done == ["look", "log", "look"]


@pytest.mark.parametrize(
    ("alive", "of", "told"),
    [
        ((1, 2), 5, {0: 1, 1: 2}),
        ((1,), 5, {0: 1}),  # the other one's partitions are nobody's until they are dealt again
        ((1, 2), 4, None),  # it was made for the servers before these: nobody knows as yet
        ((), 4, {}),
        ((), 5, {}),
    ],
)
def test_who_has_which_partition_follows_from_the_assignment_of_the_servers_that_live(
    monkeypatch: pytest.MonkeyPatch, alive: Sequence[int], of: int, told: Mapping[int, int] | None
) -> None:
    """`of`: the version of the servers' children for which the assignment was made; it is 5 now."""
    assignment = ServerAssignment(
        of, 2, tuple(ServerPartitions(number, (AssignedPartition(number - 1, 7),)) for number in (1, 2))
    )
    descriptors = [(f"s{number}", ServerDescriptor(number, "h", 1000 + number, ())) for number in alive]

    async def read(*_: object) -> tuple[Any, ...]:
        return assignment, 1, 5, descriptors

    monkeypatch.setattr(server_directory, "read_servers", read)
    directory = ServerDirectory(SimpleNamespace(), 2, uuid.UUID(int=1), log=LOG)  # type: ignore[arg-type]
    found = asyncio.run(directory._read(asyncio.Event()))
    expected = {number: PartitionServer("h", 1000 + server, 7) for number, server in (told or {}).items()}
    assert found == (None if told is None else expected)


def test_an_assignment_of_nodes_that_cannot_be_read_is_asked_for_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    outcomes = [True, True, False]
    found: list[object] = []

    async def read(*_: object) -> tuple[NodeAssignment, None]:
        if outcomes.pop(0):
            raise PeerUnreachableError("the metadata", "gone")
        return NodeAssignment((NodePartitions("n:1", (0, 1)), NodePartitions("m:1", (1,)))), None

    async def told(nodes: object) -> None:
        found.append(nodes)
        raise asyncio.CancelledError

    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr(partition_sessions, "read_payload", read)
    monkeypatch.setattr(partition_sessions.asyncio, "sleep", sleep)

    async def test() -> None:
        with pytest.raises(asyncio.CancelledError):
            await follow_replicas(SimpleNamespace(session_timeout=60.0), told, log=LOG)  # type: ignore[arg-type]

    with caplog.at_level(logging.WARNING):
        asyncio.run(test())
    assert slept == [partition_sessions.PAUSE] * 2
    assert found == [{0: {"n:1"}, 1: {"n:1", "m:1"}}]
    assert [one.getMessage().rpartition(": ")[2] for one in caplog.records] == ["gone", "gone"]


def test_replicas_are_followed_behind_a_moment_without_memory_while_news_are_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told_of: list[object] = []

    async def read(*_: object) -> tuple[NodeAssignment, None]:
        return NodeAssignment(()), None

    async def told(nodes: object) -> None:
        told_of.append(nodes)
        if len(told_of) == 2:
            raise asyncio.CancelledError

    async def happens_within(*_: object) -> bool:
        raise MemoryError

    monkeypatch.setattr(partition_sessions, "read_payload", read)
    monkeypatch.setattr(partition_sessions, "happens_within", happens_within)
    monkeypatch.setattr(partition_sessions, "PAUSE", 0.0)

    async def test() -> None:
        with pytest.raises(asyncio.CancelledError):
            await follow_replicas(SimpleNamespace(session_timeout=60.0), told, log=LOG)  # type: ignore[arg-type]

    asyncio.run(test())
    assert told_of == [{}, {}]


def test_replicas_are_followed_behind_a_moment_without_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server went on with the storage nodes of then, and was well to its health."""
    told_of: list[object] = []

    async def read(*_: object) -> tuple[NodeAssignment, None]:
        return NodeAssignment((NodePartitions("n:1", (0,)),)), None

    async def told(nodes: object) -> None:
        told_of.append(nodes)
        raise (MemoryError, asyncio.CancelledError)[len(told_of) - 1]

    monkeypatch.setattr(partition_sessions, "read_payload", read)
    monkeypatch.setattr(partition_sessions, "PAUSE", 0.0)

    async def test() -> None:
        with pytest.raises(asyncio.CancelledError):
            await follow_replicas(SimpleNamespace(session_timeout=60.0), told, log=LOG)  # type: ignore[arg-type]

    asyncio.run(test())
    assert told_of == [{0: {"n:1"}}] * 2


def test_servers_are_followed_behind_a_moment_without_memory(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A client knew the servers of then for the rest of its life, and waited for them where they were gone."""
    reads, told_of = [0], list[object]()

    class Directory(ServerDirectory):
        async def _read(self, changed: asyncio.Event) -> Mapping[int, PartitionServer]:
            reads[0] += 1
            if reads[0] == 1:
                raise MemoryError
            return {0: PartitionServer("h", 1, 7)}

    def told(servers: object) -> None:
        told_of.append(servers)
        raise (MemoryError, asyncio.CancelledError)[len(told_of) - 1]

    monkeypatch.setattr(server_directory, "PAUSE", 0.0)

    async def test() -> None:
        with pytest.raises(asyncio.CancelledError):
            await Directory(SimpleNamespace(), 1, uuid.UUID(int=1), log=LOG).follow(told)  # type: ignore[arg-type]

    with caplog.at_level(logging.WARNING):
        asyncio.run(test())
    assert told_of == [{0: PartitionServer("h", 1, 7)}] * 2
    assert [one.exc_info is not None for one in caplog.records] == [True]
