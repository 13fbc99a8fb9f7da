"""The actions of ``cluster`` over nodes and servers that really run: what they show, find, change and refuse."""

from __future__ import annotations

import json
import shlex
import signal
import urllib.request
from typing import Any

import pytest

from tests.cli.running import invoke, on_full_disk, run
from tests.cli.test_schemas import check_object
from tests.cluster.processes import ClusterOfProcesses
from tests.interop.processes import wait_until


def test_a_cluster_is_shown_as_it_stands(made: ClusterOfProcesses) -> None:
    state = made.state()
    check_object(state)
    assert (state["name"], state["cluster_key"], state["num_partitions"]) == ("demo", made.key, 4)
    assert [node["partitions"] for node in state["nodes"]] == [[0, 1, 2, 3]] * 3
    assert [node["group"] for node in sorted(state["nodes"], key=lambda node: node["group"])] == [1, 2, 3]
    served = sorted(held["partition"] for server in state["servers"] for held in server["partitions"])
    assert served == [0, 1, 2, 3]
    assert {len(server["partitions"]) for server in state["servers"]} == {2}
    for partition in state["partitions"]:
        assert {one["closing_high_water_mark"] for one in partition["replicas"]} == {None}
        assert len(partition["replicas"]) == 3
    table = made.cluster("show", "--format", "table").out
    assert "Storage nodes" in table
    assert "0-3" in table


def test_a_server_says_what_it_is_when_it_is_ready(made: ClusterOfProcesses) -> None:
    ready = made.ready("s1")
    check_object(ready)
    assert {*ready} == {
        *("schema", "type", "pid", "host", "port", "http_port", "tls", "server_id", "cluster_key", "num_partitions"),
        "metadata",
    }
    assert (ready["cluster_key"], ready["num_partitions"], ready["tls"]) == (made.key, 4, False)
    answer = json.load(urllib.request.urlopen(f"http://127.0.0.1:{ready['http_port']}/health"))
    health = answer["server-health-check"]
    assert health["healthy"] is True
    assert health["zookeeper"] is True
    assert list(health["partitions"].values()) == [True, True]
    text = urllib.request.Request(
        f"http://127.0.0.1:{ready['http_port']}/metrics", headers={"Accept": "text/plain; version=0.0.4"}
    )
    assert f"waltz_server_id {ready['server_id']}.0" in urllib.request.urlopen(text).read().decode()


def test_a_cluster_that_is_as_it_should_be_is_clean(made: ClusterOfProcesses) -> None:
    for action in ("verify", "connectivity"):
        done = made.cluster(action, "--format", "ndjson")
        assert done.status == 0
        (summary,) = done.objects
        check_object(summary)
        assert (summary["type"], summary["status"], summary["partitions"]) == ("verify-summary", "clean", 4)


def test_what_is_not_agreed_to_is_not_done(made: ClusterOfProcesses) -> None:
    before = made.state()
    (name, *_) = [node["node"] for node in before["nodes"]]
    asked = made.cluster("unassign", name, "--partition", 0)
    assert asked.status == 13
    planned = made.cluster("unassign", name, "--partition", "0-1", "--dry-run", "--format", "json")
    assert planned.status == 0
    plan = json.loads(planned.out)
    check_object(plan)
    assert [(step["action"], step["path"], step["partition"]) for step in plan["steps"]] == [
        *(("unassign", name, 0), ("unassign", name, 1))
    ]
    assert made.state() == before


def test_nonsense_is_refused_with_what_to_do(made: ClusterOfProcesses) -> None:
    (name, *_) = [node["node"] for node in made.state()["nodes"]]
    for arguments, status, message in (
        (("add-node", name, "--yes"), 13, "already"),
        (("add-node", "nowhere"), 2, "no address"),
        (("add-node", "127.0.0.1:65535", "--yes"), 2, "port 65536 does not exist"),
        (("assign", "127.0.0.1:1", "--partition", "0", "--yes"), 13, "no storage node 127.0.0.1:1"),
        (("assign", name, "--partition", "4", "--yes"), 2, "0 to 3"),
        (("assign", name, "--partition", "0", "--yes"), 13, "has partition 0 already"),
        (("remove-node", name, "--yes"), 13, "has 4 partitions"),
        (("auto-assign", "--group", "77", "--yes"), 13, "no storage node is in group 77"),
        (("create", "--partitions", "1"), 13, "something already"),
        (("delete", "--name", "other", "--yes"), 13, "is called 'demo'"),
        (("delete", "--yes"), 13, "at work"),
        (("sync", "--node", "127.0.0.1:1"), 2, "knows no storage node"),
        (("verify", "--partition", "2-4"), 2, "partition 4 does not exist: they are 0 to 3"),
        (("top", "--once", "--partition", "9"), 2, "partition 9 does not exist: they are 0 to 3"),
    ):
        done = made.cluster(*arguments)
        assert (done.status, message in done.err) == (status, True), (arguments, done)


@pytest.mark.turns(10)
def test_metadata_that_is_not_there_or_not_said_is_told(tmp_path: object) -> None:
    for arguments, status, message in (
        (("show",), 2, "WALTZCTL_METADATA"),
        (("show", "--metadata", f"{tmp_path}/nothing"), 10, "there is no metadata"),
        (("show", "--metadata", "zk://h"), 2, "names no root"),
        (("show", "--metadata", "zk://h/a/../b"), 2, "without . and .."),
        (("show", "--metadata", "http://h/x"), 2, "not understood"),
        (("verify", "--metadata", "zk://127.0.0.1:1/x", "--timeout", "1s"), 14, "no connection"),
    ):
        done = invoke("cluster", *arguments)
        assert (done.status, message in done.err) == (status, True), (arguments, done)


def test_the_environment_says_where_the_metadata_is(made: ClusterOfProcesses) -> None:
    assert run("cluster", "show", "--format", "plain", WALTZCTL_METADATA=made.metadata).status == 0


def test_partitions_go_where_they_are_preferred(made: ClusterOfProcesses) -> None:
    first, second = made.state()["servers"]
    wanted = [held["partition"] for held in first["partitions"]]
    done = made.cluster("prefer", second["endpoint"], "--partition", wanted[0])
    assert done.status == 0
    now = made.state()["servers"]
    assert now[1]["preferred"] == [wanted[0]]
    assert wanted[0] in [held["partition"] for held in now[1]["partitions"]]
    assert made.cluster("unprefer", second["endpoint"], "--partition", wanted[0]).status == 0
    assert made.state()["servers"][1]["preferred"] == []
    assert made.cluster("prefer", second["endpoint"], "--partition", 9).status == 13
    made.settle()


def test_a_full_disk_behind_stdout_does_not_hide_that_a_server_prefers(made: ClusterOfProcesses) -> None:
    (_, second), options = made.state()["servers"], ("--metadata", made.metadata, "--plaintext")
    kept = next(held["partition"] for held in second["partitions"])
    for action, left in (("prefer", [kept]), ("unprefer", [])):
        done = on_full_disk("cluster", action, second["endpoint"], "--partition", kept, *options)
        assert made.state()["servers"][1]["preferred"] == left
        said = f"could not be written to standard output: {second['endpoint']} prefers partitions {kept}"
        assert (done.status, said in done.err) == (14, True), done.err
    made.settle()


@pytest.mark.turns(10)
def test_a_node_that_differs_is_named_and_told(made: ClusterOfProcesses) -> None:
    node = next(one for one in made.state()["nodes"] if one["group"] == 3)
    assert (
        invoke(
            *("node", f"127.0.0.1:{node['admin_port']}", "remove-partition", "--partition", 2, "--plaintext", "--yes")
        ).status
        == 0
    )
    found = made.cluster("verify", "--format", "ndjson")
    assert found.status == 3
    (differs,) = [one for one in found.only("finding") if one["code"] == "node-differs"]
    check_object(differs)
    assert (differs["partition"], differs["path"]) == (2, node["node"])
    remedy = f"waltzctl cluster sync --node {node['node']} --metadata {made.metadata} --plaintext"
    assert differs["remedy"] == remedy, "it can be run as it stands"
    assert "PLANNED  1 step." in invoke(*shlex.split(remedy)[1:], "--dry-run").out
    planned = made.cluster("sync", "--dry-run", "--format", "json")
    assert [(step["action"], step["partition"]) for step in json.loads(planned.out)["steps"]] == [("assign", 2)]
    assert made.cluster("sync", "--node", node["node"], "--yes").status == 0
    assert made.cluster("sync", "--yes").status == 0
    made.settle()


@pytest.mark.turns(8)
def test_a_node_and_a_server_that_die_are_named_and_come_back(made: ClusterOfProcesses) -> None:
    node = next(one["node"] for one in made.state()["nodes"] if one["group"] == 3)
    made.nodes["n3"].kill()
    wait_until(lambda: "node-unreachable" in made.codes(), "the node is missed")
    found = made.cluster("verify", "--format", "ndjson").only("finding")
    assert {one["path"] for one in found if one["code"] == "node-unreachable"} == {node}
    assert "quorum-missing" not in {one["code"] for one in found}
    assert made.cluster("connectivity", "--format", "ndjson").status == 3
    unreached = made.cluster("sync", "--yes", "-q")
    assert unreached.status == 14
    assert f"storage node {node} is not told anything" in unreached.err
    (result,) = made.cluster("sync", "--yes", "--format", "ndjson").objects
    assert (result["applied"], result["status"], result["exit_status"]) == (False, "io-error", 14)
    made.nodes["n2"].kill()
    assert "quorum-missing" in made.codes("--partition", 0)
    made.start_nodes(2, 3)
    made.servers[2].kill()
    wait_until(lambda: len(made.state()["servers"]) == 1, "the dead server is no longer among the servers")
    wait_until(lambda: len(made.state()["servers"][0]["partitions"]) == 4, "its partitions are the other server's")
    made.start_servers(2)
    wait_until(lambda: len(made.state()["servers"]) == 2, "it is back")
    made.settle()


@pytest.mark.turns(8)
def test_a_replica_that_damage_keeps_out_is_told_until_it_is_repaired(made: ClusterOfProcesses) -> None:
    assert made.log("append", "--partition", 1, given="a\nb\n").status == 0
    made.settle()
    node = next(one["node"] for one in made.state()["nodes"] if one["group"] == 3)
    made.nodes["n3"].kill()
    (status,) = invoke("status", made.directory(3), "--partition", 1, "--format", "ndjson").objects
    proven = (
        status["partitions"][0]["local_low_water_mark"] >= 0
    )  # what a session began behind, in whichever test before
    for file in (made.directory(3) / "1").iterdir():
        file.unlink()
    made.start_nodes(3)
    found = made.cluster("verify", "--format", "ndjson")
    assert found.status == 3
    (told,) = [one for one in found.only("finding") if one["code"] == "replica-out-of-service"]
    check_object(told)
    assert (told["path"], told["partition"], told["message"]) == (
        *(node, 1, "this replica takes no part: out of service: quarantined"),
    )
    (top,) = made.cluster("top", "--once", "--partition", 1, "--format", "ndjson").objects
    check_object(top)
    absent = {one["node"]: one["why_absent"] for one in top["partitions"][0]["replicas"]}
    assert [absent.pop(node), *absent.values()] == ["out of service: quarantined", None, None]
    assert f"{node} out of service: quarantined" in made.cluster("top", "--once", "--format", "table").out
    said = (made.stage.directory / "n3.log").read_text()
    anew = "remove-partition --partition 1 --delete-storage-files, then add-partition --partition 1"
    assert ("--partition 1 --from REPLICA" if proven else anew) in said
    admin = f"127.0.0.1:{made.ready('n3')['admin_port']}"
    for action in (("remove-partition", "--delete-storage-files"), ("add-partition",)):
        assert invoke("node", admin, *action, "--partition", 1, "--plaintext", "--yes").status == 0
    made.settle()


@pytest.mark.turns(10)
def test_a_server_that_is_stopped_leaves_at_once(made: ClusterOfProcesses) -> None:
    made.servers[2].process.send_signal(signal.SIGTERM)
    assert made.servers[2].process.wait(20) == 0
    assert len(made.state()["servers"]) == 1
    assert not (made.stage.directory / "s2.ready").exists()
    made.start_servers(2)
    made.settle()


@pytest.mark.turns(8)
def test_an_assignment_that_nobody_makes_anew_is_told(made: ClusterOfProcesses) -> None:
    first, second = made.state()["servers"]
    by_id = {made.ready(f"s{number}")["server_id"]: made.servers[number] for number in (1, 2)}
    hung = by_id[first["server_id"]]
    hung.process.send_signal(signal.SIGSTOP)
    try:
        made.start_servers(3)
        found = made.cluster("verify", "--timeout", "1s", "--format", "ndjson")
        assert found.status == 3
        said = {(one["code"], one["path"]): one["message"] for one in found.only("finding")}
        text = said["server-differs", first["endpoint"]]
        third = made.ready("s3")["server_id"]
        assert f"servers {first['server_id']}, {second['server_id']}, {third} live" in text
        assert f"server {first['server_id']}, which has the smallest id" in text
    finally:
        hung.process.send_signal(signal.SIGCONT)
    made.settle()
    made.servers[3].process.terminate()
    assert made.servers[3].process.wait(20) == 0
    made.settle()


def test_how_the_cluster_does_is_shown(made: ClusterOfProcesses) -> None:
    made.log("append", "--partition", 0, given="a\nb\n")

    def look() -> dict[str, Any]:
        (top,) = made.cluster("top", "--once", "--format", "ndjson").objects
        check_object(top)
        return top

    # a transaction is committed before the last of three replicas has it
    wait_until(
        lambda: not any(replica["behind"] for one in look()["partitions"] for replica in one["replicas"]),
        "nobody is behind",
    )
    top = look()
    assert (top["nodes"], top["nodes_answering"], top["servers"], top["servers_answering"]) == (3, 3, 2, 2)
    assert [one["partition"] for one in top["partitions"]] == [0, 1, 2, 3]
    for one in top["partitions"]:
        assert one["healthy"] is True
        assert one["waits_for"] == []
        assert [replica["behind"] for replica in one["replicas"]] == [0, 0, 0]
        assert {replica["last_transaction_id"] for replica in one["replicas"]} == {one["high_water_mark"]}
    (one,) = made.cluster("top", "--once", "--partition", 0, "--format", "ndjson").objects[0]["partitions"]
    assert one["high_water_mark"] >= 1
    assert "WAITS FOR" in made.cluster("top", "--once", "--format", "table").out
