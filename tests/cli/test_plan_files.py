"""--plan FILE: what stands in the file is what is done, and nothing that loses data is done without a clear word."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.builders import build_directory, digest
from tests.cli.damage import damage_record, index_of, segment_of
from tests.cli.running import Answer, invoke, on_terminal

PROMPT = b"to apply the plan"
LOSING = ["truncate", "--partition", "2", "--after", "12"]


@pytest.fixture
def storage(tmp_path: Path) -> Path:
    return build_directory(tmp_path / "storage", {0: 60, 2: 20}, local_low_water_mark=9)


def kept(storage: Path, *command: object) -> Path:
    """The file of a plan."""
    file = storage.with_name("plan.json")
    file.write_text(invoke(command[0], storage, *command[1:], "--dry-run", "--format", "json").out)
    return file


def changed(file: Path, change: Any) -> None:
    plan = json.loads(file.read_text())
    change(plan["steps"])
    file.write_text(json.dumps(plan))


def test_steps_that_lose_data_are_not_applied_unasked(storage: Path) -> None:
    file = kept(storage, *LOSING)
    before = digest(storage)
    answer = invoke(LOSING[0], storage, *LOSING[1:], "--plan", file)
    assert answer.status == 13
    assert "not confirmed, nothing was modified" in answer.err
    assert digest(storage) == before
    assert invoke(LOSING[0], storage, *LOSING[1:], "--plan", file, "--yes").status == 0


def test_on_a_terminal_a_plan_that_loses_data_is_asked_for(storage: Path) -> None:
    file = kept(storage, *LOSING)
    before = digest(storage)
    arguments = (LOSING[0], storage, *LOSING[1:], "--plan", file)
    assert on_terminal(*arguments, typed=b"no\n", after=PROMPT).status == 13
    assert digest(storage) == before
    assert on_terminal(*arguments, typed=b"2\n", after=PROMPT).status == 0


def test_a_plan_that_loses_nothing_is_its_own_confirmation(storage: Path) -> None:
    index_of(storage, 2).unlink()
    file = kept(storage, "rebuild-index")
    assert invoke("rebuild-index", storage, "--plan", file).status == 0


def lossy(storage: Path) -> Path:
    damage_record(segment_of(storage, 2), 15)
    return kept(storage, "recover", "--allow-data-loss")


def test_a_plan_made_with_allow_data_loss_needs_it_again(storage: Path) -> None:
    file = lossy(storage)
    before = digest(storage)
    answer = invoke("recover", storage, "--plan", file, "--yes")
    assert answer.status == 13
    assert "--allow-data-loss" in answer.err
    assert invoke("recover", storage, "--plan", file, "--allow-data-loss").status == 13
    assert digest(storage) == before
    assert invoke("recover", storage, "--plan", file, "--dry-run").status == 4
    assert invoke("recover", storage, "--plan", file, "--allow-data-loss", "--yes").status == 5


def test_a_recovery_plan_that_loses_data_is_refused_unasked_not_shown_as_a_dry_run(storage: Path) -> None:
    answer = invoke("recover", storage, "--plan", lossy(storage), "--allow-data-loss", "--format", "json")
    assert answer.status == 13
    assert "not confirmed" in answer.err


def test_allow_data_loss_is_not_added_to_a_plan_that_was_made_without(storage: Path) -> None:
    index_of(storage, 2).unlink()
    answer = invoke("recover", storage, "--plan", kept(storage, "recover"), "--allow-data-loss", "--yes")
    assert answer.status == 2
    assert "other options" in answer.err


def test_below_the_mark_it_needs_both(storage: Path) -> None:
    below = ["--partition", "2", "--after", "5"]
    file = kept(storage, "truncate", *below, "--allow-data-loss")
    before = digest(storage)
    for missing in (["--yes"], ["--allow-data-loss"]):
        assert invoke("truncate", storage, *below, "--plan", file, *missing).status == 13
    assert digest(storage) == before
    assert invoke("truncate", storage, *below, "--plan", file, "--yes", "--allow-data-loss").status == 0


def refused(storage: Path, file: Path) -> Answer:
    before = digest(storage)
    answer = invoke("rebuild-index", storage, "--plan", file, "--yes")
    assert digest(storage) == before
    return answer


def remove(steps: list[dict[str, Any]]) -> None:
    del steps[0]


def clear(steps: list[dict[str, Any]]) -> None:
    steps.clear()


def add(steps: list[dict[str, Any]]) -> None:
    steps.append({**steps[0], "path": "elsewhere"})


def reorder(steps: list[dict[str, Any]]) -> None:
    steps.reverse()


def reword(steps: list[dict[str, Any]]) -> None:
    steps[0]["reason"] = "because"


def call_it_lossless(steps: list[dict[str, Any]]) -> None:
    steps[0]["loses_data"] = not steps[0]["loses_data"]


def drop_a_key(steps: list[dict[str, Any]]) -> None:
    del steps[0]["reason"]


@pytest.mark.parametrize("change", [remove, clear, add, reorder, reword, call_it_lossless, drop_a_key])
def test_a_plan_whose_steps_were_changed_is_refused(storage: Path, change: Any) -> None:
    for partition in (0, 2):
        index_of(storage, partition).unlink()
    file = kept(storage, "rebuild-index")
    changed(file, change)
    answer = refused(storage, file)
    assert answer.status == 13
    assert "its steps are not those that would be done; nothing was modified" in answer.err


def test_a_plan_without_steps_is_none(storage: Path) -> None:
    index_of(storage, 2).unlink()
    file = kept(storage, "rebuild-index")
    plan = json.loads(file.read_text())
    del plan["steps"]
    file.write_text(json.dumps(plan))
    assert refused(storage, file).status == 2


def test_a_plan_for_a_partition_is_applied_by_the_path_it_was_made_with(storage: Path) -> None:
    index_of(storage, 2).unlink()
    file = storage.with_name("plan.json")
    file.write_text(invoke("recover", storage / "2", "--dry-run", "--format", "json").out)
    assert invoke("recover", storage / "0", "--plan", file).status == 2
    assert invoke("recover", storage / "2", "--plan", file).status == 0


def test_a_plan_with_a_relative_path_says_so_elsewhere(storage: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It said only that there is no such directory, of the one that was just named in full."""
    index_of(storage, 2).unlink()
    monkeypatch.chdir(storage.parent)
    file = storage.parent / "relative.json"
    file.write_text(invoke("rebuild-index", storage.name, "--dry-run", "--format", "json").out)
    elsewhere = storage.parent / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    answer = invoke("rebuild-index", storage, "--plan", file)
    assert answer.status == 10
    assert f"{file} names its path as it was given: go to where the plan was made" in answer.err
    monkeypatch.chdir(storage.parent)
    assert invoke("rebuild-index", storage, "--plan", file).status == 0
