"""compare, as a person and a script meet it: verdicts, exit statuses, plans that recover carries out, the Parquet table."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.running import invoke, on_terminal, run
from tests.cli.test_schemas import check
from tests.compare.clusters import (
    copy,
    extend,
    flip,
    keep_up_to,
    make_cluster,
    place_of,
    remove_segment,
    rewrite,
    segment_of,
    tear,
)
from tests.golden import GOLDEN, needs_golden
from tests.repair.trees import contents, snapshot
from waltzctl.engine.durable.directory_lock import DirectoryLock

LAST = 129


@pytest.fixture
def nodes(tmp_path: Path) -> list[Path]:
    return make_cluster(tmp_path)


def compare(*words: object) -> tuple[int, dict[int, dict[str, Any]], dict[str, Any]]:
    answer = invoke("compare", *words, "--format", "ndjson")
    partitions = {one["partition"]: one for one in answer.only("partition-comparison")}
    (summary,) = answer.only("compare-summary")
    assert answer.objects[-1] == summary
    assert summary["exit_status"] == answer.status
    return answer.status, partitions, summary


def states(partition: dict[str, Any]) -> list[str]:
    return [one["state"] for one in partition["replicas"]]


def test_equal_replicas(nodes: list[Path]) -> None:
    status, partitions, summary = compare(*nodes)
    assert (status, summary["status"], summary["equal"]) == (0, "equal", 1)
    assert partitions[0]["clean_to"] == LAST
    assert invoke("compare", *nodes, "-q").out == ""


@pytest.mark.parametrize("form", ["json", "ndjson"])
def test_every_object_is_what_its_schema_says(nodes: list[Path], tmp_path: Path, form: str) -> None:
    rewrite(nodes[1], 70)
    flip(nodes[0], 20)
    extend(nodes[2], 3)
    plans = tmp_path / "plans"
    answer = invoke("compare", *nodes, "--format", form, "--plan-dir", plans, "--replicas", 3)
    seen = check(answer, array=True, form=form)
    assert seen == {"finding", "partition-comparison", "compare-summary"}
    for file in plans.iterdir():
        dry = invoke("recover", json.loads(file.read_text())["path"], "--plan", file, "--dry-run", "--format", "json")
        assert check(dry, array=False, form="json") == {"plan"}
        assert json.loads(dry.out) == json.loads(file.read_text())


def test_a_person_reads_the_verdict_last(nodes: list[Path]) -> None:
    rewrite(nodes[1], 70, b"hello, nobody")
    flip(nodes[0], 20)
    answer = on_terminal("compare", *nodes, columns=200)
    assert answer.status == 3
    lines = answer.out.splitlines()
    assert "partition 0" in answer.out
    assert "RECOVERABLE" in answer.out
    assert "hello, nobody" in answer.out
    assert f"restore from {nodes[2]}" in answer.out
    assert lines[-1].endswith("Nothing was modified.")
    assert lines[-1].startswith("RECOVERABLE  3 directories; partitions: 1 recoverable; 1 finding")
    assert "--replicas N" in lines[-2]


def test_the_exit_status_tells_loss_from_what_can_be_mended(nodes: list[Path]) -> None:
    extend(nodes[0], 1)
    assert run("compare", *nodes).status == 3
    for path in nodes:
        flip(path, 70)
    answer = run("compare", *nodes)
    assert answer.status == 4
    assert answer.out.splitlines()[-1].startswith("# FAILED")


def test_what_cannot_be_meant(nodes: list[Path], tmp_path: Path) -> None:
    assert invoke("compare", nodes[0]).status == 2
    assert invoke("compare", nodes[0], nodes[0]).status == 2
    assert invoke("compare", *nodes, "--replicas", 2).status == 2
    assert invoke("compare", *nodes, "--replicas", 0).status == 2
    assert invoke("compare", *nodes, "--partition", "9").status == 2
    assert invoke("compare", *nodes, "--allow-data-loss").status == 2
    assert invoke("compare", nodes[0], tmp_path / "nothing").status == 10
    assert invoke("compare", nodes[0], "waltz://127.0.0.1:1").status == 2
    inside = invoke("compare", *nodes, "--plan-dir", nodes[0] / "plans")
    assert inside.status == 13
    assert not (nodes[0] / "plans").exists()
    other = make_cluster(tmp_path / "other", 1)[0]
    control = other / "waltz-storage.ctl"
    data = bytearray(control.read_bytes())
    data[13] ^= 1
    control.write_bytes(data)
    answer = invoke("compare", nodes[0], other)
    assert answer.status == 12
    assert "cluster key" in answer.err


def test_plans_are_written_applied_and_undone(nodes: list[Path], tmp_path: Path) -> None:
    before = [snapshot(path) for path in nodes]
    rewrite(nodes[1], 70)
    extend(nodes[2], 3)
    changed = [snapshot(path) for path in nodes]
    plans = tmp_path / "plans"
    status, _, summary = compare(*nodes, "--plan-dir", plans)
    assert status == 3
    assert [snapshot(path) for path in nodes] == changed
    assert [Path(one["file"]).name for one in summary["plans"]] == ["2-node-2.json", "3-node-3.json"]
    assert [one["loses_data"] for one in summary["plans"]] == [True, True]
    ids = []
    for one in summary["plans"]:
        done = invoke("recover", one["path"], "--plan", one["file"], "--yes", "--format", "json")
        assert done.status == 0
        result = json.loads(done.out)
        assert result["plan_hash"] == one["hash"]
        ids.append((one["path"], result["undo_id"]))
    assert compare(*nodes)[0] == 0
    assert contents(nodes[1]) == {name: one[:2] for name, one in before[1].items()}
    for path, undo_id in ids:
        assert invoke("undo", path, undo_id, "--yes").status == 0
    assert [snapshot(path) for path in nodes] == changed
    assert compare(*nodes, "--plan-dir", tmp_path / "again")[0] == 3


def test_a_plan_is_refused_once_a_replica_has_changed(nodes: list[Path], tmp_path: Path) -> None:
    extend(nodes[2], 3)
    plans = tmp_path / "plans"
    compare(*nodes, "--plan-dir", plans)
    extend(nodes[2], 3)
    assert invoke("recover", nodes[2], "--plan", plans / "3-node-3.json", "--yes").status == 13


def test_the_table_of_differences(nodes: list[Path], tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    rewrite(nodes[1], 70, b"other")
    flip(nodes[0], 20)
    extend(nodes[2], 3)
    target = tmp_path / "differences.parquet"
    status, _, summary = compare(*nodes, "--differences", target)
    assert (status, summary["differences"]) == (3, str(target))
    rows = parquet.read_table(target).to_pylist()
    found = {(one["first_transaction_id"], one["last_transaction_id"], Path(one["node"]).name): one for one in rows}
    assert {key: one["state"] for key, one in found.items()} == {
        (20, 20, "node-1"): "damaged",
        (20, 20, "node-2"): "kept",
        (20, 20, "node-3"): "kept",
        (70, 70, "node-1"): "kept",
        (70, 70, "node-2"): "outvoted",
        (70, 70, "node-3"): "kept",
        (130, 132, "node-1"): "missing",
        (130, 132, "node-2"): "missing",
        (130, 132, "node-3"): "beyond",
    }
    assert found[20, 20, "node-1"]["restore_from"] == str(nodes[1])
    other, kept = found[70, 70, "node-2"], found[70, 70, "node-1"]
    assert other["data"] == b"other"
    assert other["request_id"]["sequence"] == kept["request_id"]["sequence"] + 1000
    record = place_of(nodes[0], 70)[2]
    assert kept["record_checksum"] == f"{record.record_checksum:08x}"
    assert found[70, 70, "node-3"]["record_checksum"] == kept["record_checksum"]


def test_without_the_library_the_table_is_refused_before_anything_is_read(
    nodes: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    answer = invoke("compare", *nodes, "--differences", tmp_path / "d.parquet")
    assert answer.status == 2
    assert "pip install 'waltzctl[spark]'" in answer.err
    assert answer.out == ""
    assert not (tmp_path / "d.parquet").exists()


def test_a_directory_in_use_is_named(nodes: list[Path]) -> None:

    with DirectoryLock.acquire(nodes[1], nodes[1] / "waltz-storage.ctl"):
        answer = run("compare", *nodes)
    assert answer.status == 0
    assert f"{nodes[1]} is in use" in answer.out


@pytest.fixture
def golden(tmp_path: Path) -> list[Path]:
    assert GOLDEN is not None
    return [copy(GOLDEN / "cluster-a" / f"storage-{number}", tmp_path / f"storage-{number}") for number in (1, 2, 3)]


@needs_golden
def test_what_the_release_left_after_a_clean_stop_is_equal(golden: list[Path]) -> None:
    status, partitions, summary = compare(*golden)
    assert status == 0
    assert summary["equal"] == 4
    assert [partitions[number]["clean_to"] for number in range(4)] == [5299, 899, 54, 2499]
    assert summary["records"] == 3 * (5300 + 900 + 55 + 2500)


@pytest.mark.turns(10)
@needs_golden
def test_divergence_loss_and_damage_in_replicas_of_the_release(golden: list[Path], tmp_path: Path) -> None:
    """Partition 0: divergence; 1: a lost segment and a torn tail; 2: damage; 3: a fork and a replica ahead."""
    original = [contents(path) for path in golden]
    rewrite(golden[1], 4000, b"never sent")  # above the marks (1999)
    lost = remove_segment(golden[0], 300, partition=1)  # transactions 244 to 440, below the marks (499)
    torn = tear(golden[2], partition=1)  # transaction 899
    flip(golden[1], 12, partition=2, byte=5000)  # below the marks (29)
    flip(golden[2], 40, partition=2)
    keep_up_to(golden[2], 2300, partition=3)
    extend(golden[2], 30, partition=3)  # a fork at 2301, above the marks (1199)
    extend(golden[0], 4, partition=3, seed=5)
    injured = [snapshot(path) for path in golden]

    plans = tmp_path / "plans"
    status, partitions, summary = compare(*golden, "--plan-dir", plans)
    assert (status, summary["status"], summary["recoverable"]) == (3, "recoverable", 4)
    assert [snapshot(path) for path in golden] == injured

    divergent = partitions[0]
    assert (divergent["verdict"], divergent["clean_to"], divergent["first_divergence"]) == ("recoverable", 5299, 4000)
    assert states(divergent) == ["equal", "diverged", "equal"]
    assert [len(side["paths"]) for side in divergent["divergence"]] == [2, 1]
    assert divergent["replicas"][1]["outvoted"] == [{"first_transaction_id": 4000, "last_transaction_id": 4000}]

    assert (lost, torn) == ((244, 440), 899)
    assert states(partitions[1]) == ["damaged", "equal", "behind"]
    assert partitions[1]["clean_to"] == 899
    assert partitions[1]["replicas"][0]["damaged"] == list(range(244, 441))
    assert partitions[1]["replicas"][0]["restore_from"] == str(golden[1])
    assert partitions[1]["replicas"][2]["last_transaction_id"] == 898

    assert states(partitions[2]) == ["equal", "damaged", "damaged"]
    assert [one["damaged"] for one in partitions[2]["replicas"]] == [[], [12], [40]]
    assert [one["restore_from"] for one in partitions[2]["replicas"]] == [None, str(golden[0]), str(golden[0])]

    assert states(partitions[3]) == ["ahead", "equal", "diverged"]
    assert partitions[3]["clean_to"] == 2499
    assert [one["cut_after"] for one in partitions[3]["replicas"]] == [2499, None, 2300]

    assert [Path(one["path"]).name for one in summary["plans"]] == ["storage-1", "storage-2", "storage-3"]
    ids = {}
    for number, path in enumerate(golden):  # one after the other: each plan reads from replicas that others change
        fresh = tmp_path / f"plans-{number}"
        _, _, current = compare(*golden, "--plan-dir", fresh)
        (one,) = [one for one in current["plans"] if one["path"] == str(path)]
        done = invoke("recover", path, "--plan", one["file"], "--yes", "--format", "json")
        assert done.status == 0, done.err
        ids[path] = json.loads(done.out)["undo_id"]
    status, partitions, summary = compare(*golden)
    assert status == 3
    assert {number: states(one) for number, one in partitions.items()} == {
        0: ["equal"] * 3,
        1: ["equal", "equal", "behind"],
        2: ["equal"] * 3,
        3: ["equal", "equal", "behind"],
    }
    assert [one["clean_to"] for one in partitions.values()] == [5299, 899, 54, 2499]
    assert contents(golden[1]) == original[1], "byte for byte what it was"
    for path, undo_id in reversed(ids.items()):
        assert invoke("undo", path, undo_id, "--yes").status == invoke("verify", path).status
    assert [snapshot(path) for path in golden] == injured, "undo brings every byte back"


@needs_golden
def test_a_lost_last_segment_below_the_mark_of_the_release(golden: list[Path]) -> None:
    file = segment_of(golden[0], 29, partition=2)
    for one in sorted((golden[0] / "2").iterdir()):
        if one.stem >= file.stem:
            one.unlink()
    _, partitions, _ = compare(*golden, "--partition", "2")
    assert states(partitions[2]) == ["damaged", "equal", "equal"]
    assert partitions[2]["replicas"][0]["damaged"] == list(range(21, 30))
