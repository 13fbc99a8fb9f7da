"""undo --prune: plan, question, answer."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.builders import build_directory, digest
from tests.cli.running import invoke, on_terminal
from tests.cli.test_schemas import check
from waltzctl.engine.durable import disk

PRUNE = ("--prune", "--older-than", "1ms")


@pytest.fixture
def storage(tmp_path: Path) -> Path:
    path = build_directory(tmp_path / "storage", {0: 60, 2: 20}, local_low_water_mark=9)
    assert invoke("truncate", path, "--partition", "2", "--after", "12", "--yes").status == 0
    return path


def states(storage: Path) -> list[str]:
    return [one["state"] for one in invoke("undo", storage, "--list", "--format", "ndjson").objects]


@pytest.mark.parametrize("form", ["json", "ndjson"])
def test_planned_then_done(storage: Path, form: str) -> None:
    before = digest(storage)
    answer = invoke("undo", storage, *PRUNE, "--dry-run", "--format", form)
    assert (answer.status, check(answer, array=False, form=form)) == (0, {"plan"})
    assert digest(storage) == before
    answer = invoke("undo", storage, *PRUNE, "--yes", "--format", form)
    assert (answer.status, check(answer, array=False, form=form)) == (0, {"result"})
    assert states(storage) == ["pruned"]
    kept = [path.name for path in (storage / disk.STATE_DIRECTORY / disk.QUARANTINE).rglob("*") if path.is_file()]
    assert kept == ["manifest.json"]


def test_it_says_what_came_free(storage: Path) -> None:
    (plan,) = invoke("undo", storage, *PRUNE, "--dry-run", "--format", "ndjson").objects
    (result,) = invoke("undo", storage, *PRUNE, "--yes", "--format", "ndjson").objects
    assert result["bytes_freed"] == sum(step["length"] for step in plan["steps"]) > 0
    assert (result["applied"], result["status"], result["plan_hash"]) == (True, "pruned", plan["hash"])
    answer = invoke("undo", storage, *PRUNE, "--yes")
    assert (answer.status, "NOTHING TO DO" in answer.out) == (0, True)
    assert invoke("undo", storage, *PRUNE, "--yes", "-q").out == ""


def test_nothing_goes_unasked(storage: Path) -> None:
    before = digest(storage)
    answer = invoke("undo", storage, *PRUNE)
    assert (answer.status, "add --yes" in answer.err) == (13, True)
    assert invoke("undo", storage, "--prune", "--older-than", "30d", "--yes").status == 0
    assert invoke("undo", storage, *PRUNE, "--keep", "1", "--yes").status == 0
    assert digest(storage) == {**before, ".waltzctl/lock": digest(storage)[".waltzctl/lock"]}
    assert on_terminal("undo", storage, *PRUNE, typed=b"no\n", after=b"to apply").status == 13
    answer = on_terminal("undo", storage, *PRUNE, typed=b"yes\n", after=b"to apply")
    assert (answer.status, "PRUNED  1 repair can no longer be taken back" in answer.out) == (0, True)


def test_what_was_pruned_cannot_be_taken_back(storage: Path) -> None:
    (entry,) = invoke("undo", storage, "--list", "--format", "ndjson").objects
    invoke("undo", storage, *PRUNE, "--yes")
    answer = invoke("undo", storage, entry["id"], "--yes")
    assert (answer.status, "was pruned" in answer.err) == (13, True)
    assert invoke("undo", storage, "--yes").status == 13


@pytest.mark.parametrize(
    "words",
    [
        ["--prune"],
        ["--older-than", "30d"],
        ["--keep", "2"],
        [*PRUNE, "--list"],
        [*PRUNE, "20260101T000000Z-recover"],
        ["--prune", "--older-than", "soon"],
        ["--prune", "--older-than", "0d"],
        [*PRUNE, "--keep", "-1"],
    ],
    ids=" ".join,
)
def test_what_cannot_be_meant_is_a_usage_error(storage: Path, words: list[str]) -> None:
    before = digest(storage)
    assert invoke("undo", storage, *words, "--yes").status == 2
    assert digest(storage) == before


def test_a_directory_without_a_quarantine(tmp_path: Path) -> None:
    path = build_directory(tmp_path / "s", {0: 5})
    before = sorted(os.listdir(path))
    assert invoke("undo", path, *PRUNE, "--yes").status == 0
    assert sorted(os.listdir(path)) == before
