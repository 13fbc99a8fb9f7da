"""Every sync of the engine is there for something, and the table says for what: leave it out, and a crash breaks a promise."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.crash.durable_steps import Trial, measure
from tests.crash.durable_table import ARROW, Table
from tests.crash.recorder import Recorder, Recording
from tests.crash.simdisk import Tree
from tests.crash.sites import all_sites, calls_in
from tests.crash.workloads import WORKLOADS, Captured
from waltzctl.engine.durable import disk
from waltzctl.engine.durable.disk import WritableFile

TABLE = Table.load()
AT_A_TIME = 3
"""Workloads that the default run tries, others on each day."""


@pytest.mark.turns(8)
def test_every_sync_of_the_engine_is_in_the_table() -> None:
    """A new one comes in with ``python -m tests.crash.durable_steps --write``, or with the reason why no workload comes there."""
    assert sorted(all_sites()) == sorted(TABLE.syncs)


def test_every_verdict_says_where_or_why() -> None:
    for name, entry in TABLE.syncs.items():
        if entry["verdict"] == "needed":
            assert entry["workload"] in WORKLOADS, name
        else:
            assert entry["verdict"] in ("kept", "untried"), name
            assert entry["reason"], name
    for name, entry in TABLE.pairs.items():
        assert set(name.split(ARROW)) <= set(TABLE.syncs), name
        assert entry["verdict"] in ("ordered", "free"), name
        assert entry["reason"] if entry["verdict"] == "free" else entry["workload"] in WORKLOADS, name
    assert all(entry["reason"] for entry in TABLE.removed.values())


def test_the_steps_of_every_workload_are_tried() -> None:
    """Every test that runs a workload into its crashes is asked for that, so that a new one comes in as well."""
    asked = {(one.test.__module__, one.test.__name__) for one in WORKLOADS.values() if isinstance(one, Captured)}
    here = [importlib.import_module(f"tests.crash.{path.stem}") for path in Path(__file__).parent.glob("test_*.py")]
    tests = {
        (module.__name__, name)
        for module in here
        for name, test in inspect.getmembers(module, inspect.isfunction)
        if name.startswith("test_") and "survive" in inspect.signature(test).parameters
    }
    assert tests - asked == set()


@pytest.mark.turns(len(WORKLOADS) // AT_A_TIME)
@pytest.mark.parametrize("workload", WORKLOADS)
def test_what_the_table_says_of_a_workload(workload: str, request: pytest.FixtureRequest) -> None:
    """Without each step that it shows to be needed it breaks a promise; with ``--long`` none but those are found to be."""
    needed: set[str | tuple[str, str]] = {n for n, one in TABLE.syncs.items() if one.get("workload") == workload}
    for name, entry in TABLE.pairs.items():
        if entry.get("workload") == workload:
            first, second = name.split(ARROW)
            needed.add((first, second))
    tried = measure(workload, only=needed)
    broken = {step for step, message in (*tried.syncs.items(), *tried.pairs.items()) if message is not None}
    assert needed - broken == set()
    if request.config.getoption("--long"):
        others = measure(workload, TABLE.needed)
        assert [(step, one) for step, one in (*others.syncs.items(), *others.pairs.items()) if one is not None] == []


class HoldsBoth:
    """Two files: the second one is only there with the first one, whole."""

    def recover(self, root: Path) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in root.iterdir()}

    def examine(self, root: Path, seen: dict[str, bytes]) -> dict[str, bytes]:
        return seen

    def judge(self, truth: bool, seen: dict[str, bytes], state: Tree) -> list[str]:
        if truth and seen.get("b") != b"2":
            return ["b was promised"]
        return ["b is there without a"] if seen.get("b") == b"2" and seen.get("a") != b"1" else []

    def narrowed(self, truth: bool, seen: dict[str, bytes]) -> bool:
        return truth


def two_files(root: Path) -> Recording[bool]:
    """A new file a, synced twice, and then b written, which was there."""
    (root / "b").write_bytes(b"0")
    recorder: Recorder[bool] = Recorder(root)
    with recorder.listening():
        recorder.promise(False, settled=False)
        with WritableFile.create(root / "a") as file:
            file.write_at(0, b"1")
            file.sync()
        disk.sync_file(root / "a")
        disk.sync_directory(root)
        with WritableFile.open(root / "b") as file:
            file.write_at(0, b"2")
            file.sync()
        recorder.promise(True, settled=True)
    recording = recorder.recording
    for number, change in enumerate(one for one in recording.changes if one.kind.startswith("sync")):
        recording.sites[id(change)] = f"{number}"
    return recording


@pytest.fixture
def trial(tmp_path: Path) -> Callable[..., Trial]:
    (tmp_path / "work").mkdir()
    (tmp_path / "scratch").mkdir()
    return lambda known=(), only=None: Trial(HoldsBoth(), tmp_path / "scratch", known, only)


def test_steps_that_matter_are_told_from_those_that_do_not(trial: Callable[..., Trial], tmp_path: Path) -> None:
    tried = trial().run(two_files(tmp_path / "work"))
    assert {name: bool(message) for name, message in tried.syncs.items()} == {
        "0": False,
        "1": False,
        "2": True,
        "3": True,
    }
    assert {pair: bool(message) for pair, message in tried.pairs.items()} == {("1", "2"): False, ("2", "3"): True}


def test_what_is_known_is_not_tried_again(trial: Callable[..., Trial], tmp_path: Path) -> None:
    recording = two_files(tmp_path / "work")
    assert set(trial(known={"0", "1", "2"}).run(recording).syncs) == {"3"}
    only = trial(only={"3", ("2", "3")}).run(recording)
    assert (set(only.syncs), set(only.pairs)) == ({"3"}, {("2", "3")})


def test_calls_are_named_by_function_and_order() -> None:
    names = [call.name for call in calls_in("engine/storage/segment_files.py")]
    assert "engine/storage/segment_files.py create_segment 1 write_whole" in names
    assert "engine/storage/segment_files.py create_segment 2 write_whole" in names
    sites = set(all_sites())
    assert "engine/storage/segment_files.py create_segment 2 write_whole/directory" in sites
    assert not any(" replacing " in site or "ActiveSegment.sync_index" in site for site in sites)
