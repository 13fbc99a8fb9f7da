"""recover over replicas: what it would do, and doing it, through nodes that run and offline from their directories."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import signal
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.cli.running import Answer, invoke
from tests.cli.test_schemas import check_object
from tests.cluster.processes import ClusterOfProcesses
from tests.cluster.told_cluster import ToldCluster, ToldNode
from tests.interop.processes import Stage, wait_until
from waltzctl.engine.cluster import quorum_recovery
from waltzctl.engine.cluster.quorum_recovery import Forecast, RecoveryPlan, RecoveryStep, Told, forecast, plan_recovery
from waltzctl.engine.cluster.quorum_recovery import recover as recover_all
from waltzctl.engine.errors import PeerUnreachableError, RefusedError, StalePlanError
from waltzctl.engine.metadata.embedded_store import EmbeddedStore
from waltzctl.engine.metadata.metadata_store import Check
from waltzctl.engine.metadata.partition_sessions import PartitionSessions
from waltzctl.engine.quorum.recovery_events import Connected, Failed
from waltzctl.engine.server.storage_nodes import StorageNodes
from waltzctl.formats.znodes import (
    PARTITION_PATH,
    SERVERS_PATH,
    AssignedPartition,
    PartitionMetadata,
    ReplicaState,
    ServerAssignment,
    ServerDescriptor,
    ServerPartitions,
)

pytestmark = pytest.mark.xdist_group("recover")  # one cluster for all of them
NODES = ("a:1", "b:1", "c:1")


def session(number: int) -> PartitionMetadata:
    return PartitionMetadata(1, number, tuple(ReplicaState(3, node, number) for node in NODES))


def at(node: str, last: int, mark: int = 9) -> Connected:
    return Connected(node, 7, mark, last)


def told(*answers: Told) -> dict[str, Told]:
    return {one.node: one for one in answers}


def test_replicas_that_are_equal_only_begin_a_session() -> None:
    found = forecast(3, session(7), NODES, told(*(at(node, 20) for node in NODES)))
    assert (found.high_water_mark, found.waits_for) == (20, "")
    assert found.voters == tuple((node, 20) for node in NODES)
    assert {step.action for step in found.steps} == {"begin-session"}


@pytest.mark.parametrize(("second", "mark"), [(20, 20), (19, 20), (9, 20)])
def test_whoever_is_behind_copies_from_whoever_is_ahead(second: int, mark: int) -> None:
    found = forecast(3, session(7), NODES, told(at("a:1", 20), at("b:1", second), Failed("c:1", "down")))
    assert found.high_water_mark == mark
    copies = [step for step in found.steps if step.action == "copy"]
    assert [(step.node, step.from_transaction_id, step.to_transaction_id) for step in copies] == (
        [] if second == 20 else [("b:1", second + 1, 20)]
    )


@pytest.mark.parametrize("ahead", NODES)
def test_what_only_one_of_three_holds_is_cut_when_all_have_told(ahead: str) -> None:
    found = forecast(3, session(7), NODES, told(*(at(node, 21 if node == ahead else 20) for node in NODES)))
    assert found.high_water_mark == 20
    (cut,) = [step for step in found.steps if step.action != "begin-session"]
    assert (cut.action, cut.node, cut.from_transaction_id, cut.to_transaction_id) == ("truncate", ahead, 21, 21)


def test_what_cannot_be_decided_names_who_would_decide_it() -> None:
    found = forecast(3, session(7), NODES, told(at("a:1", 20), Failed("b:1", "no answer"), Failed("c:1", "down")))
    assert found.high_water_mark is None
    assert "b:1 (no answer), c:1 (down)" in found.waits_for


@pytest.mark.parametrize("metadata", [PartitionMetadata(), session(5)], ids=["made anew", "an older one"])
def test_a_replica_of_a_later_session_than_the_metadata_has_is_named(metadata: PartitionMetadata) -> None:
    found = forecast(3, metadata, NODES, told(*(at(node, 20) for node in NODES)))
    assert (found.high_water_mark, found.steps) == (None, ())
    assert found.waits_for == f"a:1 is in session 7, which is later than this one, {metadata.session_id + 1}"


def test_a_replica_of_an_older_session_is_cut_and_catches_up() -> None:
    metadata = PartitionMetadata(
        1, 7, (ReplicaState(3, "a:1", 7), ReplicaState(3, "b:1", 7), ReplicaState(3, "c:1", 5, 12))
    )
    found = forecast(3, metadata, NODES, told(at("a:1", 20), at("b:1", 20), Connected("c:1", 5, 4, 15)))
    assert found.high_water_mark == 20
    of_third = [step for step in found.steps if step.node == "c:1" and step.action != "begin-session"]
    assert of_third[0].action == "truncate"
    assert (of_third[0].from_transaction_id, of_third[0].to_transaction_id) == (13, 15)
    assert isinstance(of_third[1], RecoveryStep)
    assert (of_third[1].action, of_third[1].from_transaction_id, of_third[1].to_transaction_id) == ("copy", 13, 20)
    assert [node for node, _ in found.voters] == ["a:1", "b:1"]


def test_a_partition_that_cannot_be_decided_for_another_reason_by_now_keeps_no_other_from_being_recovered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = [ToldNode({0: [9], 1: [9]}, out={1: "disk-full"}) for _ in range(3)]
    cluster, recovered = ToldCluster(*nodes, server=None), list[int]()

    async def recover_one(_store: object, partition: int, *_: object) -> None:
        pass

    async def test() -> None:
        store = await EmbeddedStore.open(tmp_path / "m", create=True)
        await cluster.write_metadata(store)
        agreed = await plan_recovery(store, cluster.reach)
        assert [one.high_water_mark for one in agreed.forecasts] == [9, None]
        nodes[0].out[1] = "write-failed"
        log = logging.Logger("test")
        await recover_all(store, agreed, cluster.reach, timeout=1.0, log=log, on_recovered=recovered.append)
        nodes[0].ends[0] = [8]
        with pytest.raises(StalePlanError):
            await recover_all(store, agreed, cluster.reach, timeout=1.0, log=log, on_recovered=recovered.append)
        await store.close()

    monkeypatch.setattr(quorum_recovery, "_recover", recover_one)
    asyncio.run(test())
    assert recovered == [0]


def test_a_node_whose_name_is_no_address_is_one_that_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any error but that of a peer ended the session, though the other replicas are a quorum."""
    cluster, tried = ToldCluster(*(ToldNode({0: [9], 1: [9]}) for _ in range(3)), server=None), list[str]()

    async def recover_one(_store: object, _partition: int, _generation: int, nodes: StorageNodes, *_: object) -> None:
        with pytest.raises(PeerUnreachableError, match="the metadata names a storage node so"):
            await nodes.get("elsewhere")
        tried.append("elsewhere")

    async def test() -> None:
        store = await EmbeddedStore.open(tmp_path / "m", create=True)
        await cluster.write_metadata(store)
        agreed = await plan_recovery(store, cluster.reach, [0])
        log = logging.Logger("test")
        await recover_all(store, agreed, cluster.reach, timeout=1.0, log=log, on_recovered=lambda _: None)
        await store.close()

    monkeypatch.setattr(quorum_recovery, "_recover", recover_one)
    monkeypatch.setattr(ToldCluster, "storage", None, raising=False)  # nothing is to be connected
    asyncio.run(test())
    assert tried


@pytest.mark.parametrize("form", ["ndjson", "json", "plain", "table"])
def test_a_partition_that_no_node_is_to_hold_is_not_one_without_anything_to_do(tmp_path: Path, form: str) -> None:
    where = ("--metadata", tmp_path / "meta")
    assert invoke("cluster", "create", *where, "--partitions", 2).status == 0
    for words in (("--dry-run",), ("--yes",), ("--yes", "--partition", 1)):
        answer = invoke("recover", *where, *words, "--format", form)
        assert answer.status == 3, answer.err
        assert "no storage node is to hold it" in answer.out, "also where people read it"
        assert "NOTHING TO DO" not in answer.out


def test_an_interrupt_tells_what_was_recovered_before_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begin = tuple(
        Forecast(number, -1, "", (("a:1", -1),), (RecoveryStep("begin-session", "a:1", number, "behind -1"),))
        for number in range(2)
    )

    async def plan(*_: object) -> RecoveryPlan:
        return RecoveryPlan("here", begin, ())

    async def recover_one(*_: object, on_recovered: Callable[[int], None], **__: object) -> None:
        on_recovered(0)
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.sleep(60)

    monkeypatch.setattr(quorum_recovery, "plan_recovery", plan)
    monkeypatch.setattr(quorum_recovery, "recover", recover_one)
    where = ("--metadata", tmp_path / "meta")
    assert invoke("cluster", "create", *where, "--partitions", 2).status == 0
    answer = invoke("recover", *where, "--yes")
    assert answer.status == 130
    assert "recovered all the same: partitions 0" in answer.err


# --- over a cluster that runs --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterOfProcesses]:
    """A cluster whose server was killed; each partition has some transactions, and one node missed the last of them."""
    with Stage(tmp_path_factory.mktemp("recover")) as stage:
        cluster = ClusterOfProcesses(stage, partitions=2)
        cluster.add_nodes(1, 2, 3)
        cluster.start_servers(1)
        cluster.settle()
        for partition in (0, 1):
            assert cluster.log("append", "--partition", partition, given="a\nb\nc\n").status == 0
        cluster.nodes["n3"].kill()
        assert cluster.log("append", "--partition", 0, given="d\ne\n").status == 0
        cluster.servers[1].kill()
        wait_until(lambda: not cluster.state()["servers"], "no server is left")
        yield cluster


def recover(cluster: ClusterOfProcesses, *arguments: object) -> Answer:
    return invoke("recover", "--metadata", cluster.metadata, "--plaintext", "--format", "ndjson", *arguments)


@pytest.mark.turns(10)
def test_a_recovery_is_shown_refused_done_and_then_there_is_less_to_do(stopped: ClusterOfProcesses) -> None:
    before = stopped.state()
    shown = recover(stopped, "--dry-run")
    assert shown.status == 0
    for one in shown.objects:
        check_object(one)
    assert [(one["partition"], one["high_water_mark"]) for one in shown.only("recovery-forecast")] == [(0, 4), (1, 2)]
    assert recover(stopped).status == 13
    assert stopped.state() == before
    stopped.nodes["n2"].kill()
    undecided = recover(stopped, "--dry-run", "--partition", 0)
    assert undecided.status == 3
    (plan,) = undecided.only("plan")
    assert plan["steps"] == []
    (missing,) = plan["undecided"]
    assert (missing["code"], missing["partition"]) == ("quorum-missing", 0)
    nothing = recover(stopped, "--yes", "--partition", 0)
    (result,) = nothing.only("result")
    assert (nothing.status, result["applied"], result["status"], result["exit_status"]) == (3, False, "repairable", 3)
    beyond = recover(stopped, "--yes", "--partition", "1-2")
    assert (beyond.status, "partition 2 does not exist: they are 0 to 1" in beyond.err) == (2, True)
    stopped.start_nodes(2, 3)
    (forecast_,) = recover(stopped, "--dry-run", "--partition", 0).only("recovery-forecast")
    assert len(forecast_["voters"]) == 3
    done = recover(stopped, "--yes")
    assert done.status == 0, done.err
    now = stopped.state()
    for was, partition in zip(before["partitions"], now["partitions"], strict=True):
        assert partition["session_id"] == was["session_id"] + 1
        in_session = [(one["session_id"], one["closing_high_water_mark"]) for one in partition["replicas"]]
        assert in_session == [(partition["session_id"], None)] * 3, "not only the quorum with which it opened"
    steps = recover(stopped, "--dry-run").only("plan")[0]["steps"]
    assert {step["action"] for step in steps} == {"begin-session"}


def test_one_that_cannot_be_recovered_keeps_no_other_from_it(monkeypatch: pytest.MonkeyPatch) -> None:
    forecasts = tuple(Forecast(number, None if number == 1 else 4, "", (), ()) for number in range(5))
    agreed = RecoveryPlan("here", forecasts, ())

    async def the_same(_store: object, _reach: object, numbers: Collection[int]) -> RecoveryPlan:
        return RecoveryPlan("here", tuple(one for one in forecasts if one.partition in numbers), ())

    async def state(*_: object) -> Any:
        return SimpleNamespace()

    async def one(_store: object, partition: int, *_: object) -> None:
        if partition in (2, 3):
            raise RefusedError(f"partition {partition}: its session did not open", advice="mend it")

    monkeypatch.setattr(quorum_recovery, "plan_recovery", the_same)
    monkeypatch.setattr(quorum_recovery, "read_cluster_state", state)
    monkeypatch.setattr(quorum_recovery, "_recover", one)
    done: list[int] = []
    told_to: Any = None
    with pytest.raises(RefusedError, match=r"partition 2: .*; partition 3: ") as refused:
        asyncio.run(recover_all(told_to, agreed, told_to, timeout=1, log=logging.getLogger(), on_recovered=done.append))
    assert (done, refused.value.advice) == ([0, 4], "mend it")


@pytest.mark.turns(10)
def test_a_partition_that_a_server_has_is_left_to_it(stopped: ClusterOfProcesses) -> None:
    if stopped.nodes["n3"].status is not None:  # by itself: no test before has started it again
        stopped.start_nodes(3)
    stopped.start_servers(1)
    stopped.settle()
    refused = recover(stopped, "--partition", 0, "--yes")
    assert (refused.status, "has it and recovers it" in refused.err) == (13, True)
    assert recover(stopped, "--yes").status == 0
    tail = stopped.log("tail", "--partition", 0, "--data", "utf8", "--format", "ndjson")
    assert [one["data"] for one in tail.objects] == ["a", "b", "c", "d", "e"]
    stopped.servers[1].kill()


@pytest.mark.turns(10)
def test_directories_are_recovered_offline(stopped: ClusterOfProcesses) -> None:
    stopped.start_nodes(*(number for number in (1, 2, 3) if stopped.nodes[f"n{number}"].status is not None))
    stopped.start_servers(1)
    stopped.settle()  # all three are in the last session
    stopped.servers[1].kill()
    for name in ("n1", "n2", "n3"):
        stopped.nodes[name].stop()
    copies = []
    for number in (1, 2, 3):
        copies.append(stopped.stage.directory / f"copy-{number}")
        shutil.copytree(stopped.directory(number), copies[-1])
    shown = invoke("recover", "--replicas", *copies, "--dry-run", "--format", "ndjson")
    assert {one["verdict"] for one in shown.only("partition-comparison")} <= {"equal", "recoverable"}
    done = invoke("recover", "--replicas", *copies, "--yes", "--format", "ndjson")
    assert done.status in (0, 3), done.err
    with_metadata = ("--metadata", stopped.metadata, "--dry-run", "--format", "ndjson")
    shown = invoke("recover", "--replicas", *copies, *with_metadata)
    for one in shown.only("partition-comparison"):
        assert (one["last_replicas"], one["verdict"] in ("equal", "recoverable")) == (3, True)
    two = invoke("recover", "--replicas", *copies[:2], *with_metadata)
    assert [one["last_replicas"] for one in two.only("partition-comparison")] == [3, 3]
    assert two.status in (0, 3), "two of three are enough"
    # one of the two has lost what it held: it and the one that is not here may have had more than is left
    shutil.rmtree(copies[1])
    made = ("create-cluster", copies[1], "--partitions", stopped.partitions, "--key", stopped.key, "-q")
    assert invoke(*made).status == 0
    unheard = invoke("recover", "--replicas", *copies[:2], *with_metadata)
    assert unheard.status == 4
    for one in unheard.only("partition-comparison"):
        assert one["verdict"] == "undecidable"
        assert "together with those that have lost what they held they may have acknowledged more" in one["reason"]
    names = ", ".join(sorted(node["node"] for node in stopped.state()["nodes"]))
    assert f"partition 0: the replicas of its last session were {names}" in unheard.err
    heard = invoke("recover", "--replicas", *copies, *with_metadata)
    assert {one["verdict"] for one in heard.only("partition-comparison")} == {"recoverable"}
    other = stopped.stage.directory / "other.meta"
    assert invoke("cluster", "create", "--metadata", other, "--partitions", 2).status == 0
    strange = invoke("recover", "--replicas", *copies, "--metadata", other, "--dry-run")
    assert (strange.status, "name the metadata of the cluster" in strange.err) == (12, True)
    assert invoke("recover").status == 2


def test_a_server_that_comes_meanwhile_keeps_its_sessions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes the second partition while the first one is recovered: its session is not shut out."""
    cluster = ToldCluster(*(ToldNode({0: [4], 1: [4]}) for _ in range(3)), server=None)
    done: list[int] = []

    async def work() -> None:
        store = await EmbeddedStore.open(tmp_path / "metadata", create=True, session_timeout=5.0)
        sessions = PartitionSessions(store)

        class Session:
            is_open = False

            def __init__(self, _number: int, _metadata: object, partition: int, *_more: object, log: object) -> None:
                self.partition = partition

            async def open(self, _timeout: float) -> int:
                known, _ = await sessions.partition(1)
                await sessions.begin_session(1, known.generation + 1)
                return 4

            async def close(self, _reason: str) -> None:
                pass

        monkeypatch.setattr(quorum_recovery, "StoreSession", Session)
        try:
            await cluster.write_metadata(store)
            plan = await plan_recovery(store, cluster.reach)
            assert [one.high_water_mark for one in plan.forecasts] == [4, 4]
            before, _ = await sessions.partition(1)
            with pytest.raises(
                RefusedError, match=f"partition 1: it is served under generation {before.generation + 1}"
            ):
                await recover_all(
                    store, plan, cluster.reach, timeout=1, log=logging.getLogger(), on_recovered=done.append
                )
            assert done == [0]
            assert (await sessions.partition(1))[0].session_id == before.session_id + 1
        finally:
            await store.close()

    asyncio.run(work())


def test_a_server_that_comes_right_behind_the_check_keeps_its_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = ToldCluster(*(ToldNode({0: [4], 1: [4]}) for _ in range(3)), server=None)

    async def work() -> None:
        store = await EmbeddedStore.open(tmp_path / "metadata", create=True, session_timeout=5.0)
        sessions = PartitionSessions(store)

        async def plan_and_come(*arguments: Any) -> RecoveryPlan:
            plan = await plan_recovery(*arguments)
            known, _ = await sessions.partition(0)
            await sessions.begin_session(0, known.generation + 1)
            return plan

        try:
            await cluster.write_metadata(store)
            plan = await plan_recovery(store, cluster.reach, [0])
            monkeypatch.setattr(quorum_recovery, "plan_recovery", plan_and_come)
            before, _ = await sessions.partition(0)
            with pytest.raises(
                RefusedError, match=f"partition 0: it is served under generation {before.generation + 1}"
            ):
                await recover_all(store, plan, cluster.reach, timeout=0.1, log=logging.getLogger(), on_recovered=print)
            assert (await sessions.partition(0))[0].session_id == before.session_id + 1, "only the server's"
        finally:
            await store.close()

    asyncio.run(work())


@pytest.mark.parametrize("given", [0, 1])
def test_a_server_that_comes_back_under_its_own_id_keeps_its_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: int
) -> None:
    """Its generation is the one of before: what tells of it is the servers' assignment, where it has the partition."""
    cluster = ToldCluster(*(ToldNode({0: [4], 1: [4]}) for _ in range(3)), server=None)
    done: list[int] = []

    class Session:
        is_open = False

        def __init__(self, *_: object, log: object) -> None:
            pass

        async def open(self, _timeout: float) -> int:
            return 4

        async def close(self, _reason: str) -> None:
            pass

    async def work() -> None:
        store = await EmbeddedStore.open(tmp_path / "metadata", create=True, session_timeout=5.0)
        sessions = PartitionSessions(store)

        async def come_back() -> None:
            known, _ = await sessions.partition(0)
            own = ServerDescriptor(1, "h", 1, ())
            await store.create(f"{SERVERS_PATH}/s_", own.encode(), ephemeral=True, sequence=True)
            state = await store.exists(SERVERS_PATH)
            assert state is not None
            held = ServerPartitions(1, (AssignedPartition(given, known.generation),))
            await store.set(SERVERS_PATH, ServerAssignment(state.cversion, 2, (held,)).encode())
            await sessions.begin_session(given, known.generation)

        async def plan_and_come(*arguments: Any) -> RecoveryPlan:
            plan = await plan_recovery(*arguments)
            await come_back()
            return plan

        monkeypatch.setattr(quorum_recovery, "StoreSession", Session)
        try:
            await cluster.write_metadata(store)
            plan = await plan_recovery(store, cluster.reach, [0])
            monkeypatch.setattr(quorum_recovery, "plan_recovery", plan_and_come)
            before, _ = await sessions.partition(0)
            recovering = recover_all(
                store, plan, cluster.reach, timeout=1, log=logging.getLogger(), on_recovered=done.append
            )
            if given == 0:
                with pytest.raises(RefusedError, match="partition 0: server 1 at h:1 has it and recovers it"):
                    await recovering
            else:
                await recovering
            assert done == [0] * given
            assert (await sessions.partition(0))[0].session_id == before.session_id + 1, (
                "the server's, or the command's"
            )
        finally:
            await store.close()

    asyncio.run(work())


def test_a_first_session_is_begun_for_nobody_that_a_server_has(tmp_path: Path) -> None:
    """Of a partition without metadata as well: what is created rests on the same."""

    async def work() -> None:
        store = await EmbeddedStore.open(tmp_path / "metadata", create=True, session_timeout=5.0)
        sessions = PartitionSessions(store)
        asked: list[int] = []

        async def guard() -> Check:
            asked.append(len(asked))
            if len(asked) == 1:  # somebody writes the assignment behind the look
                return Check(SERVERS_PATH, 7)
            state = await store.exists(SERVERS_PATH)
            assert state is not None
            return Check(SERVERS_PATH, state.version)

        try:
            await ToldCluster(server=None).write_metadata(store)
            await store.delete(f"{PARTITION_PATH}/0")
            assert (await sessions.begin_session(0, 3, guard=guard)).session_id == 0
            assert len(asked) == 2
        finally:
            await store.close()

    asyncio.run(work())
