"""Servers among the servers of a cluster: who gets what, when they come, go, prefer, and lose their session."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sqlite3
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.metadata.stores import Stores
from waltzctl.engine.errors import ConcurrentUpdateError, DamageError, MismatchError, PeerUnreachableError, RefusedError
from waltzctl.engine.metadata import membership as rooms
from waltzctl.engine.metadata import watch_loop
from waltzctl.engine.metadata.cluster_changes import add_node
from waltzctl.engine.metadata.cluster_changes import assign as assign_nodes
from waltzctl.engine.metadata.cluster_changes import unassign as unassign_nodes
from waltzctl.engine.metadata.cluster_creation import create_cluster
from waltzctl.engine.metadata.cluster_state import read_cluster_state
from waltzctl.engine.metadata.embedded_store import EmbeddedStore
from waltzctl.engine.metadata.membership import Membership, new_client_id
from waltzctl.engine.metadata.metadata_store import Check, MetadataStore, NodeMissingError, Watch, ZnodeState
from waltzctl.engine.metadata.partition_sessions import PartitionSessions
from waltzctl.engine.metadata.zookeeper_store import NotPermittedError
from waltzctl.formats.znodes import CLIENT_IDS_PATH, SERVERS_PATH, IssuedId, PartitionMetadata, ReplicaState

LOG = logging.getLogger("test")
SOON = 20.0


class Server:
    """A member that does nothing but remember what it was told."""

    def __init__(self, store: MetadataStore) -> None:
        self.store = store
        self.membership = Membership(store, log=LOG)
        self.told: list[dict[int, int]] = []
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def start(self, name: str = "h", port: int = 1) -> int:
        number = await self.membership.register(name, port)
        self._task = asyncio.ensure_future(self.membership.follow(self._assigned))
        return number

    def _assigned(self, generations: Mapping[int, int]) -> None:
        self.told.append(dict(generations))
        self._changed.set()

    async def until(self, condition: Callable[[dict[int, int]], bool]) -> dict[int, int]:
        async with asyncio.timeout(SOON):
            while not self.told or not condition(self.told[-1]):
                self._changed.clear()
                await self._changed.wait()
        return self.told[-1]

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._task = None
        await self.membership.unregister()


def over(stores: Stores, test: Callable[[Stores, MetadataStore], Awaitable[None]], partitions: int = 4) -> None:
    async def whole(stores: Stores) -> None:
        store = await stores.open()
        await create_cluster(store, name="demo", num_partitions=partitions, cluster_key=uuid.uuid4())
        await test(stores, store)

    stores.run(whole)


def test_partitions_follow_the_servers(stores: Stores) -> None:
    async def test(stores: Stores, store: MetadataStore) -> None:
        first, second = Server(await stores.open()), Server(await stores.open())
        assert await first.start() == 1
        assert await first.until(lambda held: len(held) == 4) == {0: 1, 1: 1, 2: 1, 3: 1}
        assert await second.start(port=2) == 2
        held = await first.until(lambda held: len(held) == 2)
        others = await second.until(lambda held: len(held) == 2)
        assert {*held, *others} == {0, 1, 2, 3}
        assert {*held.values()} == {1}
        assert {*others.values()} == {2}
        state = await read_cluster_state(store)
        assert [(one.server_id, one.endpoint) for one in state.servers] == [(1, "h:1"), (2, "h:2")]
        assert state.owner_of(min(others)) == state.servers[1]
        await first.stop()  # the coordinator goes: the other one is it from now on
        assert await second.until(lambda held: len(held) == 4) == {0: 2, 1: 2, 2: 2, 3: 2}
        await second.stop()

    over(stores, test)


def test_a_preference_moves_a_partition_and_is_taken_back(stores: Stores) -> None:
    async def test(stores: Stores, store: MetadataStore) -> None:
        first, second = Server(await stores.open()), Server(await stores.open())
        await first.start()
        await second.start(port=2)
        mine = await first.until(lambda held: len(held) == 2)
        await second.until(lambda held: len(held) == 2)
        wanted = min(mine)
        await second.membership.prefer([wanted, wanted], True)
        await second.until(lambda held: wanted in held)
        await first.until(lambda held: wanted not in held and len(held) == 2)
        assert (await read_cluster_state(store)).servers[1].preferred == (wanted,)
        await second.membership.prefer([wanted], False)
        assert (await read_cluster_state(store)).servers[1].preferred == ()
        await first.stop()
        await second.stop()

    over(stores, test)


def test_preferences_that_come_at_the_same_time_are_all_kept(stores: Stores) -> None:
    async def test(stores: Stores, store: MetadataStore) -> None:
        member = Membership(await stores.open(), log=LOG)
        await member.register("h", 1)
        await asyncio.gather(*(member.prefer([number], True) for number in range(4)))
        assert sorted((await read_cluster_state(store)).servers[0].preferred) == [0, 1, 2, 3]
        await asyncio.gather(member.prefer([0, 2], False), member.prefer([1], False))
        assert (await read_cluster_state(store)).servers[0].preferred == (3,)

    over(stores, test)


def test_whoever_has_no_descriptor_prefers_nothing_and_writes_nowhere_else(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before a server registers, while its descriptor is being made, and when it has left."""

    async def test(stores: Stores, store: MetadataStore) -> None:
        member = Membership(await stores.open(), log=LOG)
        root = await store.get("")
        with pytest.raises(RefusedError, match="not among the servers"):
            await member.prefer([1], True)
        create, meanwhile = type(store).create, list[asyncio.Task[None]]()

        async def slowly(self: MetadataStore, path: str, *given: bytes, **named: bool) -> str:
            if path.startswith(SERVERS_PATH) and not meanwhile:
                meanwhile.append(asyncio.ensure_future(member.prefer([1], True)))
                for _ in range(5):
                    await asyncio.sleep(0)
            return await create(self, path, *given, **named)

        monkeypatch.setattr(type(store), "create", slowly)
        await member.register("h", 1)
        await meanwhile[0]  # it waited
        assert (await read_cluster_state(store)).servers[0].preferred == (1,)
        await member.unregister()
        with pytest.raises(RefusedError, match="not among the servers"):
            await member.prefer([0], True)
        assert await store.get("") == root

    over(stores, test)


def test_v18_what_a_server_prefers_from_its_start_is_dealt_to_it(stores: Stores) -> None:
    async def test(stores: Stores, store: MetadataStore) -> None:
        first, second = Server(await stores.open()), Server(await stores.open())
        await first.start()
        mine = await first.until(lambda held: len(held) == 4)
        wanted = max(mine)
        await second.membership.register("h", 2, [wanted])
        await first.until(lambda held: wanted not in held and len(held) == 2)
        assert (await read_cluster_state(store)).servers[1].preferred == (wanted,)
        await first.stop()

    over(stores, test)


def test_a_preference_that_cannot_be_assigned_ends(stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(stores: Stores, store: MetadataStore) -> None:
        server = Server(await stores.open())
        await server.membership.register("h", 1)

        async def busy(*_given: object) -> None:
            data, _ = await store.get(SERVERS_PATH)
            await store.set(SERVERS_PATH, data)

        monkeypatch.setattr(rooms.Membership, "_assign", busy)
        with pytest.raises(ConcurrentUpdateError, match="20 times"):
            await server.membership.prefer([0], True)

    over(stores, test)


def test_a_preference_of_a_server_that_is_taken_away_meanwhile_forgets_no_generation(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Were an assignment to nobody written, generations would begin at 1 again, and no partition could open a session."""

    async def test(stores: Stores, store: MetadataStore) -> None:
        server = Server(await stores.open())
        await server.membership.register("h", 1)
        await server.membership.prefer([0], True)
        before = await store.get(SERVERS_PATH)
        real = type(store).set

        async def set_and_take_away(self: MetadataStore, path: str, *given: Any) -> Any:
            found = await real(self, path, *given)
            if path.startswith(f"{SERVERS_PATH}/"):
                await store.delete(path)  # another server takes this one for dead
            return found

        monkeypatch.setattr(type(store), "set", set_and_take_away)
        with pytest.raises(RefusedError, match="taken from the servers"):
            await server.membership.prefer([1], True)
        assert (await store.get(SERVERS_PATH))[0] == before[0]

    over(stores, test)


def test_an_assignment_is_of_exactly_the_servers_that_were_read(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that comes between two reads is in the assignment, or its coming is noticed."""

    async def test(stores: Stores, store: MetadataStore) -> None:
        one, other = Server(await stores.open()), Server(await stores.open())
        await one.membership.register("h", 1)
        real = type(store).children
        came = []

        async def children(self: MetadataStore, path: str, *more: object) -> tuple[str, ...]:
            found = await real(self, path, *more)  # type: ignore[arg-type]
            if path == SERVERS_PATH and not came and self is one.store:
                came.append(await other.membership.register("h", 2))
            return found

        monkeypatch.setattr(type(store), "children", children)
        assignment, _, cversion, servers = await rooms.read_servers(one.store)
        assert came == [2]
        assert [server.server for _, server in servers] == [1, 2]
        assert cversion == 2
        assert assignment.cversion == -1

    over(stores, test)


def test_ids_of_clients_are_never_given_twice(stores: Stores) -> None:
    async def test(stores: Stores, store: MetadataStore) -> None:
        other = await stores.open()
        given = await asyncio.gather(*(new_client_id(one) for one in (store, other) for _ in range(5)))
        assert sorted(given) == [*range(1, 11)]

    over(stores, test)


@pytest.mark.turns(10)
def test_a_server_that_lost_its_session_serves_nothing_until_it_is_back(stores: Stores) -> None:
    async def test(stores: Stores, store: MetadataStore) -> None:
        server = Server(await stores.open())
        number = await server.start()
        await server.until(lambda held: len(held) == 4)
        await end_session(stores, server.store)
        await server.until(lambda held: not held)
        held = await server.until(lambda held: len(held) == 4)
        assert held == dict.fromkeys(range(4), 1)
        (found,) = (await read_cluster_state(store)).servers
        assert found.server_id == number
        await server.stop()
        assert await store.children(SERVERS_PATH) == ()

    over(stores, test)


@pytest.mark.turns(8)
def test_a_server_follows_its_assignment_behind_a_moment_without_memory(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stood among the servers, and never served what it was given from then on."""

    async def test(stores: Stores, store: MetadataStore) -> None:
        server, failed = Server(await stores.open()), list[bool]()
        await server.start()
        await server.until(lambda held: len(held) == 4)
        real = Membership._read_assignment

        async def look(membership: Membership) -> Mapping[int, int] | None:
            if not failed:
                failed.append(True)
                raise MemoryError
            return await real(membership)

        monkeypatch.setattr(Membership, "_read_assignment", look)
        server.membership._changed.set()
        async with asyncio.timeout(SOON):
            while not failed:
                await asyncio.sleep(0.01)
        second = Server(await stores.open())
        await second.start(port=2)
        await server.until(lambda held: len(held) == 2)
        await second.stop()
        await server.stop()

    over(stores, test)


@pytest.mark.parametrize("what", ["_wait", "_assigned"])
def test_a_moment_without_memory_behind_a_look_at_the_assignment_is_not_the_last_look_at_it(
    stores: Stores, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(stores: Stores, store: MetadataStore) -> None:
        server, failed = Server(await stores.open()), list[bool]()
        place = Membership if what == "_wait" else server
        real = getattr(place, what)

        def fails_once(*given: Any) -> Any:
            if not failed:
                failed.append(True)
                raise MemoryError
            return real(*given)

        monkeypatch.setattr(place, what, fails_once)
        await server.start()
        await server.until(lambda _: bool(failed))
        second = Server(await stores.open())
        await second.start(port=2)
        await server.until(lambda held: len(held) == 2)
        await second.stop()
        await server.stop()

    over(stores, test)


@pytest.mark.turns(10)
@pytest.mark.parametrize(
    "error", [NotPermittedError("not permitted"), DamageError("nonsense"), MismatchError("other"), MemoryError()]
)
def test_a_server_that_cannot_come_back_is_not_there_and_tries_again(
    stores: Stores, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading works, and standing among the servers does not: an ACL that was set, a disk that is full."""
    monkeypatch.setattr(rooms, "PAUSE", 0.01)

    async def test(stores: Stores, store: MetadataStore) -> None:
        server = Server(await stores.open())
        await server.start()
        await server.until(lambda held: len(held) == 4)
        assert server.membership.present
        refused = []

        async def refuse(*_: object, **__: object) -> str:
            refused.append(server.membership.present)
            raise error

        with monkeypatch.context() as patch:
            patch.setattr(type(server.store), "create", refuse)
            await end_session(stores, server.store)
            await server.until(lambda held: not held)
            async with asyncio.timeout(SOON):
                while len(refused) < 3:
                    await asyncio.sleep(0.01)
            assert not any(refused)
            assert not server.membership.present
        await server.until(lambda held: len(held) == 4)
        assert server.membership.present
        await server.stop()

    over(stores, test)


@pytest.mark.turns(10)
@pytest.mark.parametrize("what", ["error", "_assigned", "warning", "info"])
def test_a_moment_without_memory_while_a_server_comes_back_does_not_keep_it_away(
    stores: Stores, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever of it fails: that it is not there is logged, its partitions are closed, and it tries until it is there again."""
    monkeypatch.setattr(rooms, "PAUSE", 0.01)
    monkeypatch.setattr(watch_loop, "PAUSE", 0.01)

    async def test(stores: Stores, store: MetadataStore) -> None:
        server, failed = Server(await stores.open()), list[object]()
        place: Any = server if what == "_assigned" else LOG
        real, create = getattr(place, what), type(server.store).create

        def fails_once(*given: Any, **named: Any) -> None:
            if not failed and given != (held,):
                failed.append(given)
                raise MemoryError
            real(*given, **named)

        async def refuse_once(*given: Any, **named: Any) -> str:
            if what == "warning" and not failed:
                raise PeerUnreachableError("the metadata", "gone")
            return await create(*given, **named)

        held = dict.fromkeys(range(4), 1)
        with monkeypatch.context() as patch:
            if what == "_assigned":
                patch.setattr(place, what, fails_once)
            await server.start()
            assert await server.until(lambda now: len(now) == 4) == held
            patch.setattr(place, what, fails_once)
            patch.setattr(type(server.store), "create", refuse_once)
            told = len(server.told)
            await end_session(stores, server.store)
            async with asyncio.timeout(SOON):
                while {} not in server.told[told:] or len(server.told[-1]) != 4:
                    await asyncio.sleep(0.01)
            assert len(failed) == 1
            assert server.membership.present
        await server.stop()

    over(stores, test)


def test_a_server_that_was_taken_for_dead_stands_there_again(stores: Stores) -> None:
    async def test(stores: Stores, store: MetadataStore) -> None:
        server = Server(await stores.open())
        number = await server.start()
        await server.until(lambda held: len(held) == 4)
        (name,) = await store.children(SERVERS_PATH)
        before = len(server.told)
        await server.membership.delete(f"{SERVERS_PATH}/{name}")
        await server.until(lambda held: len(server.told) > before + 1)
        assert server.told[before:] == [{}, dict.fromkeys(range(4), 1)]
        (found,) = (await read_cluster_state(store)).servers
        assert found.server_id == number
        await server.membership.delete(f"{SERVERS_PATH}/{name}")  # nobody's by now
        await server.stop()

    over(stores, test)


def test_who_had_the_address_of_a_new_server_is_no_server_any_more(stores: Stores) -> None:
    async def test(stores: Stores, store: MetadataStore) -> None:
        for name, port in (("h", 1), ("h", 2), ("g", 1)):
            await Server(await stores.open()).membership.register(name, port)
        await Server(await stores.open()).membership.register("h", 1)
        state = await read_cluster_state(store)
        assert [(one.server_id, one.endpoint) for one in state.servers] == [(2, "h:2"), (3, "g:1"), (4, "h:1")]

    over(stores, test)


@pytest.mark.parametrize("port", [1, 2])
def test_of_two_servers_that_run_with_one_address_it_is_said(
    stores: Stores, caplog: pytest.LogCaptureFixture, port: int
) -> None:
    """On two machines, each by its loopback address: the later one removes the earlier one, which comes back."""

    async def test(stores: Stores, store: MetadataStore) -> None:
        first, second = Server(await stores.open()), Server(await stores.open())
        await first.start("localhost", 1)
        await first.until(lambda held: len(held) == 4)
        await second.start("localhost", port)
        await first.until(lambda held: len(held) == 2)
        await second.until(lambda held: len(held) == 2)
        await first.stop()
        await second.stop()

    over(stores, test)
    for number in (1, 2):
        assert (f"server {number} has the address localhost:1 as well, and clients reach only one" in caplog.text) == (
            port == 1
        )


async def end_session(stores: Stores, store: MetadataStore) -> None:
    """Behind the back of whoever has it."""
    if stores.zookeeper is None:
        with contextlib.closing(sqlite3.connect(stores.path, isolation_level=None)) as database:
            database.execute("DELETE FROM session")
            database.execute("DELETE FROM znode WHERE session IS NOT NULL")
            database.execute("UPDATE znode SET cversion = cversion + 1 WHERE path = ?", (SERVERS_PATH,))
        return
    from kazoo.client import KazooClient

    thief = KazooClient(stores.zookeeper.connect_string, client_id=store._client.client_id)  # type: ignore[attr-defined]
    await asyncio.to_thread(thief.start)
    await asyncio.to_thread(thief.stop)
    await asyncio.to_thread(thief.close)


# --- sessions of partitions ----------------------------------------------------------------------------------------------


def test_behind_the_last_session_none_begins_and_that_is_told(stores: Stores) -> None:
    """It ended with a traceback, at each attempt, of what has no room in its field."""

    async def test(stores: Stores, store: MetadataStore) -> None:
        await store.create("store/partition/2", PartitionMetadata(1, 2**63 - 2).encode())
        sessions = PartitionSessions(store)
        assert (await sessions.begin_session(2, 5)).session_id == 2**63 - 1
        with pytest.raises(DamageError, match="partition 2: session 9223372036854775807 is the last"):
            await sessions.begin_session(2, 5)
        assert (await sessions.partition(2))[0] == PartitionMetadata(5, 2**63 - 1)

    over(stores, test)


def test_no_session_begins_in_a_cluster_that_is_deleted(stores: Stores) -> None:
    """The attempt was repeated for ever, without a pause."""

    async def test(stores: Stores, store: MetadataStore) -> None:
        await store.delete("store/partition")
        with pytest.raises(NodeMissingError):
            await asyncio.wait_for(PartitionSessions(store).begin_session(2, 5), 5)

    over(stores, test)


@pytest.mark.parametrize("begun", [0, 1], ids=["the first session", "a later one"])
@pytest.mark.parametrize("written", [0, 1, 2])
def test_a_session_that_rests_on_a_node_is_begun_once_and_for_the_node_as_it_is(
    stores: Stores, begun: int, written: int
) -> None:
    """The node is written between the look at it and the session; what it says then is looked at before the next attempt."""
    versions: list[int] = []

    async def test(stores: Stores, store: MetadataStore) -> None:
        sessions = PartitionSessions(store)
        for _ in range(begun):
            await sessions.begin_session(2, 5)

        async def guard() -> Check:
            data, state = await store.get(SERVERS_PATH)
            versions.append(state.version)
            if len(versions) <= written:
                await store.set(SERVERS_PATH, data)
            return Check(SERVERS_PATH, state.version)

        assert (await sessions.begin_session(2, 5, guard=guard)).session_id == begun
        assert (await sessions.partition(2))[0].session_id == begun
        await store.delete("store/partition/2")
        await store.delete("store/partition")
        with pytest.raises(NodeMissingError):
            await asyncio.wait_for(sessions.begin_session(2, 5, guard=guard), 5)

    over(stores, test)
    assert len(set(versions[: written + 1])) == written + 1


def test_sessions_count_up_and_older_generations_are_refused(stores: Stores) -> None:
    async def test(stores: Stores, store: MetadataStore) -> None:
        sessions = PartitionSessions(store)
        assert (await sessions.begin_session(2, 5)).session_id == 0
        begun = await sessions.begin_session(2, 5)
        assert (begun.generation, begun.session_id) == (5, 1)
        with pytest.raises(ConcurrentUpdateError, match="generation 5, and 4"):
            await sessions.begin_session(2, 4)
        assert (await sessions.begin_session(2, 6)).session_id == 2
        states = (ReplicaState(2, "h:1", 2),)
        await add_node(store, "h:1", admin_port=2, group=0)
        await assign_nodes(store, "h:1", [2])
        await sessions.write_replicas(2, 2, states)
        for session in (1, 3):
            with pytest.raises(ConcurrentUpdateError, match="session 2"):
                await sessions.write_replicas(2, session, states)
        assert (await sessions.partition(2))[0].replicas == states

    over(stores, test)


def test_replica_states_are_written_without_a_read_while_nobody_else_has_written(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And with reads, or not at all, where somebody has."""

    async def test(stores: Stores, store: MetadataStore) -> None:
        await add_node(store, "h:1", admin_port=2, group=0)
        await assign_nodes(store, "h:1", [2, 3])
        sessions, others = PartitionSessions(store), PartitionSessions(store)
        real, reads = store.get, list[str]()

        async def get(path: str, watch: Watch | None = None) -> tuple[bytes, ZnodeState]:
            reads.append(path)
            return await real(path, watch)

        async def write(session: int, closing: int) -> int:
            """How many reads it takes."""
            reads.clear()
            await sessions.write_replicas(2, session, (ReplicaState(2, "h:1", session, closing),))
            assert (await others.partition(2))[0].replicas[0].closing_high_water_mark == closing
            return len(reads) - 1

        monkeypatch.setattr(store, "get", get)
        assert await sessions.assigned(2) == ("h:1",)
        for begun in range(2):
            assert (await sessions.begin_session(2, 1)).session_id == begun
            assert [await write(begun, closing) for closing in (5, 6)] == [0, 0]
        await assign_nodes(store, "h:1", [1])  # which is nothing to partition 2
        assert [await write(1, closing) for closing in (7, 8)] == [2, 0]
        await others.write_replicas(2, 1, (ReplicaState(2, "h:1", 1, 9),))
        assert [await write(1, closing) for closing in (10, 11)] == [2, 0]
        assert (await others.begin_session(2, 1)).session_id == 2
        with pytest.raises(ConcurrentUpdateError, match="session 2 has begun behind session 1"):
            await write(1, 12)
        assert (await others.partition(2))[0].replicas[0].closing_high_water_mark == 11

    over(stores, test)


@pytest.mark.parametrize("read", [False, True])
def test_v16_replica_states_of_a_session_over_other_nodes_are_refused(stores: Stores, read: bool) -> None:
    """Also where the assignment was `read` before it changed."""

    async def test(stores: Stores, store: MetadataStore) -> None:
        sessions = PartitionSessions(store)
        for node in ("h:1", "h:3"):
            await add_node(store, node, admin_port=2, group=0)
            await assign_nodes(store, node, [2])
        if read:
            assert await sessions.assigned(2) == ("h:1", "h:3")
        session = (await sessions.begin_session(2, 1)).session_id
        await unassign_nodes(store, "h:3", [2])
        both = (ReplicaState(2, "h:1", session), ReplicaState(2, "h:3", session))
        with pytest.raises(ConcurrentUpdateError, match="storage nodes are others"):
            await sessions.write_replicas(2, session, both)
        assert (await sessions.partition(2))[0].replicas == ()
        await sessions.write_replicas(2, session, both[:1])

    over(stores, test)


def test_sessions_of_several_servers_are_all_different(stores: Stores) -> None:
    async def test(stores: Stores, store: MetadataStore) -> None:
        other = await stores.open()
        rooms_of = [PartitionSessions(store), PartitionSessions(other)]
        begun = await asyncio.gather(*(one.begin_session(0, 1) for one in rooms_of for _ in range(5)))
        assert sorted(one.session_id for one in begun) == [*range(10)]

    over(stores, test)


@pytest.mark.parametrize("last", [-1, -(2**31)])
def test_below_the_first_id_none_is_given(stores: Stores, last: int) -> None:
    """They would be those of clients that live, a few ids later."""

    async def test(_: Stores, store: MetadataStore) -> None:
        await store.set(CLIENT_IDS_PATH, IssuedId(last).encode())
        with pytest.raises(DamageError, match=f"ids/client: {last} is no id that was given"):
            await new_client_id(store)
        assert IssuedId.decode((await store.get(CLIENT_IDS_PATH))[0]).last == last

    over(stores, test)


def test_behind_the_last_id_no_other_is_given(stores: Stores) -> None:
    """What stands there has four bytes: the next client got an error of the encoder."""

    async def test(_: Stores, store: MetadataStore) -> None:
        await store.set(CLIENT_IDS_PATH, IssuedId(2**31 - 2).encode())
        assert await new_client_id(store) == 2**31 - 1
        with pytest.raises(RefusedError, match=r"ids/client: the last id that there is, 2147483647, was given"):
            await new_client_id(store)

    over(stores, test)


@pytest.mark.turns(10)
def test_a_server_may_prefer_many(tmp_path: Path) -> None:
    """The time grew with the square of their number, and its event loop stood still."""

    async def test() -> None:
        store = await EmbeddedStore.open(tmp_path / "m", create=True)
        await create_cluster(store, name="demo", num_partitions=40_000, cluster_key=uuid.uuid4())
        member = Membership(store, log=LOG)
        await member.register("h", 1, range(0, 40_000, 2))
        begun = time.process_time()
        await member.prefer(tuple(range(1, 40_000, 2)), True)
        await member.prefer(tuple(range(0, 40_000, 2)), False)
        assert time.process_time() - begun < 3
        assert (await read_cluster_state(store, ())).servers[0].preferred == tuple(range(1, 40_000, 2))
        await store.close()

    asyncio.run(test())
