"""Making a cluster, its storage nodes and their partitions: what is written, and what is refused."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
import uuid
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.golden import GOLDEN, needs_golden
from tests.metadata.stores import Stores
from tests.metadata.test_membership import end_session
from tests.zookeeper import ZooKeeperServer
from waltzctl.engine.errors import (
    DeadlineError,
    InvalidRequestError,
    MismatchError,
    NotWaltzError,
    PeerError,
    PeerUnreachableError,
    RefusedError,
    StalePlanError,
)
from waltzctl.engine.metadata import cluster_changes
from waltzctl.engine.metadata.cluster_changes import (
    PLAN_ONLY,
    Mode,
    add_node,
    assign,
    auto_assign,
    create_cluster,
    delete_cluster,
    refuse_without_quorum,
    remove_node,
    unassign,
)
from waltzctl.engine.metadata.cluster_state import NodeState, PartitionState, ReplicaInSession, read_cluster_state
from waltzctl.engine.metadata.membership import Membership
from waltzctl.engine.metadata.metadata_store import Change, MetadataStore, Set, Watch, ZnodeState
from waltzctl.engine.metadata.partition_sessions import PartitionSessions, store_parameters
from waltzctl.engine.metadata.server_directory import ServerDirectory
from waltzctl.engine.metadata.zookeeper_store import LONGEST_REQUEST
from waltzctl.engine.net.addresses import Address, parse_address
from waltzctl.formats.control import MAX_PARTITIONS
from waltzctl.formats.znodes import (
    ASSIGNMENT_PATH,
    LOCK_PATH,
    PARTITION_PATH,
    STORE_PATH,
    ClusterParameters,
    NodeAssignment,
    NodePartitions,
    PartitionMetadata,
    ReplicaState,
    ServerDescriptor,
    StoreParameters,
)

KEY = uuid.UUID("01234567-89ab-cdef-0123-456789abcdef")


def over(stores: Stores, test: Callable[[MetadataStore], Awaitable[None]], *, partitions: int = 4) -> None:
    """A test of a new cluster."""

    async def whole(stores: Stores) -> None:
        store = await stores.open()
        await create_cluster(store, name="demo", num_partitions=partitions, cluster_key=KEY)
        await test(store)

    stores.run(whole)


async def three(store: MetadataStore, partitions: range = range(4)) -> None:
    """Three nodes that hold everything."""
    for group in range(3):
        await add_node(store, f"n{group}:1", admin_port=2, group=group)
        await assign(store, f"n{group}:1", partitions)


async def last_session(store: MetadataStore, partition: int, *nodes: str) -> None:
    replicas = tuple(ReplicaState(partition, node, 7) for node in nodes)
    await store.create(f"{PARTITION_PATH}/{partition}", PartitionMetadata(1, 7, replicas).encode())


@pytest.mark.turns(2)
@needs_golden
def test_a_new_cluster_has_the_nodes_of_a_released_one(stores: Stores) -> None:
    import json

    recorded = [
        json.loads(one) for one in (GOLDEN / "zookeeper" / "cluster-a-after-stop.jsonl").read_text().splitlines()
    ]
    (root, *_) = recorded
    theirs = {one["path"].removeprefix("/waltz_cluster").lstrip("/") for one in recorded}

    async def test(store: MetadataStore) -> None:
        ours = {""}
        for above in ("", "ids", "store", "store/partition", "serverDescriptors"):
            ours |= {f"{above}/{name}".lstrip("/") for name in await store.children(above)}
        assert ours == {one for one in theirs if not one.startswith("store/partition/")}
        assert (await store.get(""))[0].hex() == root["dataHex"].replace(b"waltz_cluster".hex(), b"demo".hex()).replace(
            "000d", "0004"
        )
        assert (await store.get("serverDescriptors"))[0].hex() == "03ffffffff0000000000000000"
        assert (await store.get("store"))[0].hex() == "01" + "0123456789abcdef" * 2 + "00000004"
        assert (await store.get("ids/server"))[0] == (await store.get("ids/client"))[0] == bytes(4)
        for path in ("store/group", "store/assignment", "store/connection"):
            assert (await store.get(path))[0].hex() == "0100000000"

    over(stores, test)


def test_a_cluster_is_made_once_and_where_nothing_is(stores: Stores) -> None:
    async def test(store: MetadataStore) -> None:
        with pytest.raises(RefusedError, match="there is something already"):
            await create_cluster(store, name="other", num_partitions=1, cluster_key=KEY)
        assert (await read_cluster_state(store)).name == "demo"

    over(stores, test)


@pytest.mark.parametrize("number", [0, -1, 10_000_000])
def test_a_number_of_partitions_that_cannot_be_is_refused(stores: Stores, number: int) -> None:
    async def test(stores: Stores) -> None:
        store = await stores.open()
        with pytest.raises(InvalidRequestError):
            await create_cluster(store, name="x", num_partitions=number, cluster_key=KEY)
        assert await store.exists("") is None

    stores.run(test)


def test_of_two_that_make_a_cluster_at_once_one_does(stores: Stores) -> None:
    async def test(stores: Stores) -> None:
        opened = [(await stores.open(), name) for name in ("a", "b")]
        made = await asyncio.gather(
            *(create_cluster(store, name=name, num_partitions=1, cluster_key=KEY) for store, name in opened),
            return_exceptions=True,
        )
        assert sorted(type(one).__name__ for one in made) == ["NoneType", "RootTakenError"]
        winner = "ab"[made.index(None)]
        assert (await read_cluster_state(await stores.open())).name == winner

    stores.run(test)


def test_a_root_without_a_cluster_is_told(stores: Stores) -> None:
    async def test(stores: Stores) -> None:
        store = await stores.open()
        with pytest.raises(NotWaltzError, match="create the cluster first"):
            await read_cluster_state(store)
        await store.create_root()
        with pytest.raises(NotWaltzError, match="holds nothing"):
            await read_cluster_state(store)

    stores.run(test)


def test_nodes_come_and_go(stores: Stores) -> None:
    async def test(store: MetadataStore) -> None:
        await add_node(store, "h:1", admin_port=2, group=5)
        with pytest.raises(RefusedError, match="already"):
            await add_node(store, "h:1", admin_port=3, group=6)
        await assign(store, "h:1", [2, 0])
        state = await read_cluster_state(store)
        assert state.nodes == (NodeState("h:1", 2, 5, (0, 2)),)
        with pytest.raises(RefusedError, match="has 2 partitions"):
            await remove_node(store, "h:1")
        await unassign(store, "h:1", [0, 2])
        await remove_node(store, "h:1")
        assert (await read_cluster_state(store)).nodes == ()
        with pytest.raises(RefusedError, match="no storage node h:1"):
            await remove_node(store, "h:1")

    over(stores, test)


@pytest.mark.turns(2)
def test_a_partition_beyond_the_cluster_that_a_node_was_given_can_be_taken_away(stores: Stores) -> None:
    """Nobody of ours gives it; verify names it, and says that unassign and remove-node mend it."""

    async def test(store: MetadataStore) -> None:
        await add_node(store, "h:1", admin_port=2, group=0)
        await store.set(ASSIGNMENT_PATH, NodeAssignment((NodePartitions("h:1", (1, 7)),)).encode())
        with pytest.raises(InvalidRequestError, match="partition 8 does not exist: they are 0 to 3"):
            await unassign(store, "h:1", [7, 8])
        steps = await unassign(store, "h:1", [7])
        assert [(one.action, one.partition) for one in steps] == [("unassign", 7)]
        assert (await read_cluster_state(store)).nodes == (NodeState("h:1", 2, 0, (1,)),)
        await unassign(store, "h:1", [1])
        await remove_node(store, "h:1")

    over(stores, test)


@pytest.mark.parametrize(("partition", "there"), [(-1, False), (0, True), (3, True), (4, False)])
def test_a_partition_is_one_of_the_cluster(stores: Stores, partition: int, there: bool) -> None:
    async def test(store: MetadataStore) -> None:
        await add_node(store, "h:1", admin_port=2, group=0)
        if there:
            await assign(store, "h:1", [partition])
            await unassign(store, "h:1", [partition])
        else:
            for change in (assign, unassign):
                with pytest.raises(InvalidRequestError, match="0 to 3"):
                    await change(store, "h:1", [partition])

    over(stores, test)


def test_what_is_not_as_it_was_thought_changes_nothing(stores: Stores) -> None:
    async def test(store: MetadataStore) -> None:
        await three(store, range(1))
        before = await read_cluster_state(store)
        for change, message in (
            (assign(store, "n0:1", [0]), "has partition 0 already"),
            (assign(store, "n0:1", [1, 0]), "has partition 0 already"),
            (assign(store, "x:1", [1]), "no storage node"),
            (unassign(store, "n0:1", [0, 1]), "does not have partition 1"),
            (auto_assign(store, 9), "no storage node is in group 9"),
            (auto_assign(store, 0), "has partitions"),
        ):
            with pytest.raises(RefusedError, match=message):
                await change
        with pytest.raises(InvalidRequestError, match="no partition"):
            await assign(store, "n0:1", [])
        assert await read_cluster_state(store) == before

    over(stores, test)


def test_all_partitions_are_dealt_to_a_group_once(stores: Stores) -> None:
    async def test(store: MetadataStore) -> None:
        for node in ("b:1", "a:1", "c:1"):
            await add_node(store, node, admin_port=2, group=3)
        await add_node(store, "d:1", admin_port=2, group=4)
        steps = await auto_assign(store, 3)
        assert [(step.node, step.partition) for step in steps] == [
            *(("a:1", 0), ("a:1", 3), ("b:1", 1), ("b:1", 4), ("c:1", 2))
        ]
        held = {one.node: one.partitions for one in (await read_cluster_state(store)).nodes}
        assert held == {"a:1": (0, 3), "b:1": (1, 4), "c:1": (2,), "d:1": ()}

    over(stores, test, partitions=5)


@pytest.mark.turns(3)
def test_many_partitions_are_dealt_and_taken_away_in_a_moment(stores: Stores) -> None:
    """What a step says of the other replicas is counted once for all of them."""
    many = range(60_000)

    async def test(store: MetadataStore) -> None:
        for node in ("a:1", "b:1", "c:1"):
            await add_node(store, node, admin_port=2, group=0)
        await assign(store, "a:1", many)
        begun = time.monotonic()
        steps = await assign(store, "b:1", many)
        assert (len(steps), steps[-1].reason) == (len(many), "a replica beside 1 others")
        assert time.monotonic() - begun < 10.0

    stores.session_timeout = 30.0  # no heartbeat while a step is counted, on a machine that is busy
    over(stores, test, partitions=len(many))


# --- what recovery needs -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("last", "left", "allowed"),
    [
        ("abc", "abc", True),
        ("abc", "ab", True),
        ("abc", "a", False),
        ("abc", "axy", False),
        ("abc", "abxy", True),
        ("abcde", "abc", True),
        ("abcde", "ab", False),
        ("ab", "a", False),
        ("a", "a", True),
        ("a", "b", False),
        ("abcd", "abc", True),
        ("abcd", "ab", False),
    ],
)
def test_a_quorum_of_the_last_replicas_stays(last: str, left: str, allowed: bool) -> None:
    if allowed:
        refuse_without_quorum(3, last, left)
    else:
        with pytest.raises(RefusedError, match="partition 3: its last session had"):
            refuse_without_quorum(3, last, left)


def test_replicas_are_taken_away_one_session_after_the_other(stores: Stores) -> None:
    async def test(store: MetadataStore) -> None:
        await three(store)
        await last_session(store, 1, "n0:1", "n1:1", "n2:1")
        steps = await unassign(store, "n0:1", [1, 0])
        assert [(one.partition, one.loses_data) for one in steps] == [(0, False), (1, False)]
        assert {one.reason for one in steps} == {"2 replicas stay; the node keeps its files"}
        with pytest.raises(RefusedError, match=r"partition 1: its last session had 3 replicas.*n0:1, n1:1"):
            await unassign(store, "n1:1", [0, 1])
        await unassign(store, "n1:1", [0])  # this one never had a session
        assert [one.node for one in (await read_cluster_state(store)).nodes_of(1)] == ["n1:1", "n2:1"]

    over(stores, test)


def test_a_session_that_begins_meanwhile_is_seen(stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(store: MetadataStore) -> None:
        await three(store)
        await last_session(store, 1, "n0:1", "n1:1", "n2:1")
        real = PartitionSessions.partition
        asked = 0

        async def partition(self: PartitionSessions, number: int) -> tuple[PartitionMetadata, int]:
            nonlocal asked
            found = await real(self, number)
            asked += 1
            if asked == 1:
                replicas = tuple(ReplicaState(1, node, 8) for node in ("n0:1", "n1:1"))
                await store.set(f"{PARTITION_PATH}/1", PartitionMetadata(1, 8, replicas).encode())
            return found

        monkeypatch.setattr(PartitionSessions, "partition", partition)
        with pytest.raises(RefusedError, match="2 replicas"):  # allowed by what was read first, not by what is there
            await unassign(store, "n0:1", [1])
        assert asked == 2

    over(stores, test)


@pytest.mark.parametrize("replicas", [1, 2])
def test_a_first_session_that_begins_meanwhile_is_seen(
    stores: Stores, monkeypatch: pytest.MonkeyPatch, replicas: int
) -> None:
    """Before it there is no node of the partition whose version could be compared."""

    async def test(store: MetadataStore) -> None:
        nodes = [f"n{number}:1" for number in range(replicas)]
        for node in nodes:
            await add_node(store, node, admin_port=2, group=0)
            await assign(store, node, [1])
        real, begun = PartitionSessions.partition, list[int]()

        async def partition(self: PartitionSessions, number: int) -> tuple[PartitionMetadata, int]:
            found = await real(self, number)
            if not begun:
                begun.append(number)
                await last_session(store, 1, *nodes)
            return found

        monkeypatch.setattr(PartitionSessions, "partition", partition)
        with pytest.raises(RefusedError, match=f"its last session had {replicas} replicas"):
            await unassign(store, "n0:1", [1])
        assert begun
        assert [one.node for one in (await read_cluster_state(store)).nodes_of(1)] == nodes

    over(stores, test)


def test_a_partition_without_a_session_leaves_no_trace_when_it_is_taken_away(stores: Stores) -> None:
    async def test(store: MetadataStore) -> None:
        await add_node(store, "n0:1", admin_port=2, group=0)
        await assign(store, "n0:1", range(4))
        await unassign(store, "n0:1", range(4))
        assert await store.children(PARTITION_PATH) == ()

    over(stores, test)


def test_a_writer_without_the_lock_is_seen(stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(store: MetadataStore) -> None:
        await add_node(store, "a:1", admin_port=2, group=0)
        await add_node(store, "b:1", admin_port=2, group=0)
        real, interfered = cluster_changes.read_payload, []

        async def read(*given: object) -> object:
            found = await real(*given)  # type: ignore[arg-type]
            if given[1] == "store/connection" and not interfered:
                interfered.append(True)
                data, _ = await store.get("store/assignment")
                await store.set("store/assignment", data)
            return found

        monkeypatch.setattr(cluster_changes, "read_payload", read)
        await assign(store, "a:1", [0])
        assert interfered
        assert [one.partitions for one in (await read_cluster_state(store)).nodes] == [(0,), ()]

    over(stores, test)


def test_a_tool_that_holds_the_lock_is_waited_for(stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(store: MetadataStore) -> None:
        await store.create(LOCK_PATH)
        waiting = asyncio.ensure_future(add_node(store, "a:1", admin_port=2, group=0))
        await asyncio.sleep(0.1)
        assert not waiting.done()
        await store.delete(LOCK_PATH)
        await waiting
        assert await store.exists(LOCK_PATH) is None
        await store.create(LOCK_PATH)
        monkeypatch.setattr(cluster_changes, "LOCK_SECONDS", 0.05)
        with pytest.raises(DeadlineError, match="another tool holds"):
            await add_node(store, "b:1", admin_port=2, group=0)

    over(stores, test)


def test_a_store_that_does_not_answer_is_no_tool_that_holds_the_lock(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(store: MetadataStore) -> None:
        async def create(self: MetadataStore, path: str, data: bytes = b"", **how: bool) -> str:
            await asyncio.sleep(0.1)  # longer than another tool is waited for
            raise DeadlineError("the store", "no answer")

        monkeypatch.setattr(cluster_changes, "LOCK_SECONDS", 0.05)
        monkeypatch.setattr(type(store), "create", create)
        with pytest.raises(DeadlineError, match="no answer"):
            await add_node(store, "a:1", admin_port=2, group=0)

    over(stores, test)


def test_a_change_that_was_made_is_told_also_where_the_lock_cannot_be_given_back(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(store: MetadataStore) -> None:
        async def delete(self: MetadataStore, path: str, version: int = -1) -> None:
            raise PeerUnreachableError("the store", "the connection was lost")

        with monkeypatch.context() as patch:
            patch.setattr(type(store), "delete", delete)
            assert await add_node(store, "a:1", admin_port=2, group=0)
        assert [one.node for one in (await read_cluster_state(store)).nodes] == ["a:1"]

    over(stores, test)


def test_a_tool_whose_session_ended_leaves_the_lock_to_the_one_that_has_it_now(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was stopped behind its change for longer than a session lasts; what it changed is told as changed."""

    async def test(store: MetadataStore) -> None:
        other, commit, lost = await stores.open(), type(store).commit, []

        async def commit_and_stop(self: MetadataStore, changes: Sequence[Change]) -> None:
            lost.append(self.lost)
            await commit(self, changes)
            await end_session(stores, self)
            if stores.zookeeper is not None:
                await asyncio.wait_for(lost[0], 20.0)
            async with asyncio.timeout(20.0):
                while await other.exists(LOCK_PATH) is not None:
                    await asyncio.sleep(0.05)
            await other.create(LOCK_PATH, ephemeral=True)

        monkeypatch.setattr(type(store), "commit", commit_and_stop)
        assert await add_node(store, "a:1", admin_port=2, group=0)
        assert await other.exists(LOCK_PATH) is not None

    over(stores, test)


@pytest.mark.parametrize("kind", [PeerUnreachableError, DeadlineError])
def test_a_store_that_is_gone_behind_the_change_makes_no_failure_of_it(
    stores: Stores, monkeypatch: pytest.MonkeyPatch, kind: type[PeerError]
) -> None:
    async def test(store: MetadataStore) -> None:
        async def lost(_self: MetadataStore, path: str) -> None:
            raise kind("the metadata", f"no connection, and {path} is to be deleted")

        monkeypatch.setattr(type(store), "delete", lost)
        assert await add_node(store, "a:1", admin_port=2, group=0)
        monkeypatch.undo()
        await store.delete(LOCK_PATH)
        assert [one.node for one in (await read_cluster_state(store)).nodes] == ["a:1"]
        monkeypatch.setattr(type(store), "delete", lost)
        with pytest.raises(RefusedError, match="is in the cluster already"):
            await add_node(store, "a:1", admin_port=2, group=0)

    over(stores, test)


# --- the whole -----------------------------------------------------------------------------------------------------------


def test_partitions_are_told_as_their_metadata_has_them(stores: Stores) -> None:
    async def test(store: MetadataStore) -> None:
        replicas = (ReplicaState(1, "b:1", 7), ReplicaState(1, "a:1", 6, 41))
        await store.create(f"{PARTITION_PATH}/1", PartitionMetadata(3, 7, replicas).encode())
        await store.create(f"{PARTITION_PATH}/0")
        state = await read_cluster_state(store)
        assert state.partitions[:2] == (
            PartitionState(0, -1, -1, ()),
            PartitionState(1, 3, 7, (ReplicaInSession("a:1", 6, 41), ReplicaInSession("b:1", 7, None))),
        )
        assert [one.partition for one in state.partitions] == [0, 1, 2, 3]

    over(stores, test)


@pytest.mark.parametrize("host", ["server-1", "10.0.0.7", "::1", "fe80::1%eth0"])
def test_a_server_is_told_by_an_address_at_which_it_can_be_asked(stores: Stores, host: str) -> None:
    async def test(store: MetadataStore) -> None:
        await store.create("serverDescriptors/s_", ServerDescriptor(1, host, 55180, ()).encode(), sequence=True)
        (server,) = (await read_cluster_state(store)).servers
        assert parse_address(server.endpoint) == Address(host, 55180)

    over(stores, test)


def test_a_cluster_is_deleted_by_its_name_when_nobody_is_at_work(stores: Stores) -> None:
    async def test(store: MetadataStore) -> None:
        await three(store)
        await last_session(store, 1, "n0:1")
        with pytest.raises(RefusedError, match="is called 'demo', not 'dem'"):
            await delete_cluster(store, name="dem")
        await store.create("serverDescriptors/s_", ephemeral=True, sequence=True)
        with pytest.raises(RefusedError, match="at work"):
            await delete_cluster(store, name="demo")
        (name,) = await store.children("serverDescriptors")
        await store.delete(f"serverDescriptors/{name}")
        await delete_cluster(store, name="demo")
        assert await store.exists("") is None

    over(stores, test)


def test_a_node_that_goes_while_a_deletion_looks_at_it_is_not_told_as_missing(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lock of another tool, as a rule."""

    async def test(store: MetadataStore) -> None:
        await store.create(LOCK_PATH)
        get = store.get

        async def late(path: str, *more: Any) -> Any:
            if path == LOCK_PATH:
                await store.delete(path)
            return await get(path, *more)

        monkeypatch.setattr(store, "get", late)
        await delete_cluster(store, mode=Mode(agreed=await delete_cluster(store, mode=PLAN_ONLY)))
        assert await store.exists("") is None

    over(stores, test)


@pytest.mark.parametrize("what", ["a node", "a server", "nothing"])
def test_a_deletion_that_somebody_is_ahead_of_deletes_nothing(
    stores: Stores, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """It was told as a node with another version, or as one that has children."""

    async def test(store: MetadataStore) -> None:
        agreed, commit = await delete_cluster(store, mode=PLAN_ONLY), store.commit

        async def behind(changes: Any) -> None:
            monkeypatch.setattr(store, "commit", commit)
            if what == "a node":
                await add_node(store, "h:1", admin_port=2, group=0)
            elif what == "a server":
                await store.create("serverDescriptors/s_", ephemeral=True, sequence=True)
            await commit(changes)

        monkeypatch.setattr(store, "commit", behind)
        if what == "nothing":
            await delete_cluster(store, mode=Mode(agreed=agreed))
            assert await store.exists("") is None
            return
        error = StalePlanError if what == "a node" else RefusedError
        with pytest.raises(error, match=r"has changed since the plan was made|belongs to a process that is at work"):
            await delete_cluster(store, mode=Mode(agreed=agreed))
        assert await store.exists(STORE_PATH) is not None

    over(stores, test)


@pytest.mark.parametrize("data", [ClusterParameters("inner", 4).encode(), b"", b"of another program"])
def test_a_cluster_that_lies_below_another_does_not_go_with_it(stores: Stores, data: bytes) -> None:
    """Somebody else made it there, and its log servers do not run at the moment."""

    async def test(store: MetadataStore) -> None:
        await store.create("teams")
        await store.create("teams/inner", data)
        if data[:1] != b"\xb4":
            await delete_cluster(store)
            assert await store.exists("") is None
            return
        with pytest.raises(RefusedError, match="another cluster lies below it, teams/inner; nothing was changed"):
            await delete_cluster(store)
        await read_cluster_state(store)
        await store.delete("teams/inner")
        await delete_cluster(store)
        assert await store.exists("") is None

    over(stores, test)


def test_the_servers_of_a_cluster_that_lies_below_are_not_to_be_stopped(stores: Stores) -> None:
    """They are somebody else's: stopped as advised, their cluster would have been what refuses the deletion."""

    async def test(store: MetadataStore) -> None:
        await store.create("inner", ClusterParameters("inner", 4).encode())
        await store.create("inner/serverDescriptors")
        await store.create("inner/serverDescriptors/s_", ephemeral=True, sequence=True)
        with pytest.raises(RefusedError, match="another cluster lies below it, inner; nothing was changed"):
            await delete_cluster(store)

    over(stores, test)


@pytest.mark.turns(2)
@pytest.mark.parametrize("meanwhile", ["made anew", "assigned"])
def test_a_cluster_that_is_another_by_now_is_not_deleted(stores: Stores, meanwhile: str) -> None:
    async def test(store: MetadataStore) -> None:
        await three(store, range(1))
        agreed = await delete_cluster(store, mode=PLAN_ONLY)
        if meanwhile == "assigned":
            await assign(store, "n0:1", [3])
        else:
            await delete_cluster(store)
            await create_cluster(store, name="demo", num_partitions=4, cluster_key=uuid.uuid4())
            await three(store, range(1))
        before = await read_cluster_state(store)
        with pytest.raises(StalePlanError):
            await delete_cluster(store, mode=Mode(agreed=agreed))
        assert await read_cluster_state(store) == before
        await delete_cluster(store, mode=Mode(agreed=await delete_cluster(store, mode=PLAN_ONLY)))
        assert await store.exists("") is None

    over(stores, test)


def test_what_is_said_of_half_a_cluster_leads_to_a_whole_one(stores: Stores) -> None:
    """A creation of the release that was killed, or a deletion of many nodes."""

    async def test(store: MetadataStore) -> None:
        for path in ("store/connection", "store/assignment", "store/group", "store/partition", "store"):
            await store.delete(path)
        with pytest.raises(NotWaltzError) as looked:
            await read_cluster_state(store)
        with pytest.raises(RefusedError) as made:
            await create_cluster(store, name="demo", num_partitions=4, cluster_key=KEY)
        assert "waltzctl cluster delete" in (looked.value.advice or "")
        assert "waltzctl cluster delete" in (made.value.advice or "")
        await delete_cluster(store)
        await create_cluster(store, name="demo", num_partitions=4, cluster_key=KEY)

    over(stores, test)


@pytest.mark.turns(3)
@pytest.mark.parametrize("foreign", [0, 4])
def test_a_deletion_of_many_nodes_that_is_interrupted_leaves_no_cluster(
    stores: Stores, monkeypatch: pytest.MonkeyPatch, foreign: int
) -> None:
    """Storage nodes started with the key that was left, and with other nodes at the root servers were registered as well.

    Wherever it is interrupted the next deletion completes it.
    """
    monkeypatch.setattr(cluster_changes, "_DELETED_AT_ONCE", 4)
    commits = 0

    async def test(store: MetadataStore) -> None:
        nonlocal commits
        real = store.commit
        for done in range(1, 9):
            if done > 1:
                await create_cluster(store, name="demo", num_partitions=7, cluster_key=KEY)
            await three(store, range(7))
            for partition in range(7):
                await last_session(store, partition, "n0:1")
            for number in range(foreign):
                await store.create(f"a{number}")
            left = done

            async def few(changes: Sequence[Change]) -> None:
                nonlocal left
                if not left:
                    raise DeadlineError("here", "gone")
                left -= 1
                await real(changes)

            monkeypatch.setattr(store, "commit", few)
            with contextlib.suppress(DeadlineError):
                await delete_cluster(store, name="demo")
            monkeypatch.setattr(store, "commit", real)
            if await store.exists("") is None:
                break
            commits += 1
            for look in (store_parameters, read_cluster_state):
                with pytest.raises(NotWaltzError) as looked:
                    await look(store)
                assert "waltzctl cluster delete" in (looked.value.advice or "")
            with pytest.raises(NotWaltzError):
                await Membership(store, log=logging.getLogger("test")).register("here", 1)
            with pytest.raises(RefusedError, match="not 'another'"):
                await delete_cluster(store, name="another")
            await delete_cluster(store, name="demo")
            assert await store.exists("") is None

    over(stores, test, partitions=7)
    assert commits >= 3


def test_of_some_partitions_only_their_metadata_is_read(stores: Stores) -> None:
    async def test(store: MetadataStore) -> None:
        sessions = PartitionSessions(store)
        for partition in range(4):
            await sessions.begin_session(partition, 1)
        whole, some = await read_cluster_state(store), await read_cluster_state(store, {2, 9})
        assert some == replace(whole, partitions=(whole.partitions[2],))

    over(stores, test)


@pytest.mark.parametrize("number", [-5, 0, MAX_PARTITIONS + 1, 2**31 - 1])
@pytest.mark.parametrize("kind", [ClusterParameters, StoreParameters])
def test_a_number_of_partitions_that_cannot_be_is_told_by_whoever_reads_it(
    stores: Stores, kind: type[ClusterParameters | StoreParameters], number: int
) -> None:
    """With none all was well and nothing was read; with too many of them the memory came to its end."""

    async def test(store: MetadataStore) -> None:
        path = STORE_PATH if kind is StoreParameters else ""
        whole = kind.decode((await store.get(path))[0])
        await store.set(path, replace(whole, num_partitions=number).encode())
        with pytest.raises(MismatchError, match=f"{number} partitions; a cluster has 1 to {MAX_PARTITIONS}"):
            await read_cluster_state(store, ())
        if kind is StoreParameters:
            with pytest.raises(MismatchError, match=f"{number} partitions; a cluster has 1 to"):
                await ServerDirectory.open(store, log=logging.getLogger("test"))
        await delete_cluster(store, name="demo")

    over(stores, test)


def test_two_numbers_of_partitions_are_seen(stores: Stores) -> None:
    """Z10: the metadata has it in its root and in ``store``, and the tools of the release compare them nowhere."""

    async def test(store: MetadataStore) -> None:
        assert (await read_cluster_state(store)).stored_partitions is None
        await store.set(STORE_PATH, StoreParameters(KEY, 6).encode())
        found = await read_cluster_state(store)
        assert (found.num_partitions, found.stored_partitions) == (4, 6)

    over(stores, test)


def test_what_zookeeper_finds_too_long_is_told_as_that(zookeeper: ZooKeeperServer, tmp_path: Path) -> None:
    """It closes the connection without a word: "ConnectionLoss" was all that was said."""

    async def test(stores: Stores) -> None:
        store = await stores.open()
        await create_cluster(store, name="demo", num_partitions=4, cluster_key=KEY)
        long = bytes(LONGEST_REQUEST + 1)
        for asked in (
            lambda: store.set(ASSIGNMENT_PATH, long),
            lambda: store.commit((Set(ASSIGNMENT_PATH, long, -1),)),
            lambda: store.create("more", long),
        ):
            with pytest.raises(PeerUnreachableError) as told:
                await asked()
            assert told.value.advice is not None
            assert " bytes were to be written at once" in told.value.advice
            assert "jute.maxbuffer" in told.value.advice

    Stores(tmp_path / "metadata", zookeeper).run(test)


def test_all_storage_nodes_are_read_at_once(stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    """A log server that is asked whether it reaches them read all of the assignment for each of its partitions.

    It looked at the nodes of its own partitions only: one with none had nothing to say.
    """

    async def test(store: MetadataStore) -> None:
        await three(store, range(2))
        await add_node(store, "n9:1", admin_port=2, group=0)
        reads, get = list[str](), store.get

        async def counted(path: str, watch: Watch | None = None) -> tuple[bytes, ZnodeState]:
            reads.append(path)
            return await get(path, watch)

        monkeypatch.setattr(store, "get", counted)
        assert await PartitionSessions(store).nodes() == {"n0:1", "n1:1", "n2:1", "n9:1"}
        assert reads == [ASSIGNMENT_PATH]

    over(stores, test)
