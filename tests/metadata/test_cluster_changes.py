"""The storage nodes of a cluster and their partitions: what is written, and what is refused."""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tests.metadata.made_clusters import KEY, last_session, over, three
from tests.metadata.stores import Stores
from tests.zookeeper import ZooKeeperServer
from waltzctl.engine.errors import (
    InvalidRequestError,
    MismatchError,
    PeerUnreachableError,
    RefusedError,
)
from waltzctl.engine.metadata import cluster_changes
from waltzctl.engine.metadata.cluster_changes import (
    add_node,
    assign,
    auto_assign,
    refuse_without_quorum,
    remove_node,
    unassign,
)
from waltzctl.engine.metadata.cluster_creation import create_cluster
from waltzctl.engine.metadata.cluster_deletion import delete_cluster
from waltzctl.engine.metadata.cluster_state import NodeState, PartitionState, ReplicaInSession, read_cluster_state
from waltzctl.engine.metadata.metadata_store import MetadataStore, Set, Watch, ZnodeState
from waltzctl.engine.metadata.partition_sessions import PartitionSessions
from waltzctl.engine.metadata.server_directory import ServerDirectory
from waltzctl.engine.metadata.zookeeper_store import LONGEST_REQUEST
from waltzctl.engine.net.addresses import Address, parse_address
from waltzctl.formats.control import MAX_PARTITIONS
from waltzctl.formats.znodes import (
    ASSIGNMENT_PATH,
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


@pytest.mark.turns(8)
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


@pytest.mark.turns(10)
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
