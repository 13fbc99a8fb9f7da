"""set-partition: plan, question, answer."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.builders import build_directory, digest
from tests.cli.running import invoke, on_terminal
from tests.cli.test_schemas import check
from waltzctl.formats.control import Layout


@pytest.fixture(params=list(Layout))
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return build_directory(tmp_path / "storage", {0: 60, 2: 20}, local_low_water_mark=9, layout=request.param)


def status(storage: Path, partition: int) -> dict[str, object]:
    (answer,) = invoke("status", storage, "--format", "ndjson").objects
    return next(one for one in answer["partitions"] if one["partition"] == partition)


@pytest.mark.parametrize("form", ["json", "ndjson"])
def test_planned_then_set_then_taken_back(storage: Path, form: str, tmp_path: Path) -> None:
    before = digest(storage)
    words = ("set-partition", storage, "--partition", 2, "--session-id", 8, "--low-water-mark", 15, "--unavailable")
    answer = invoke(*words, "--dry-run", "--format", form)
    assert (answer.status, check(answer, array=False, form=form)) == (0, {"plan"})
    assert digest(storage) == before
    (tmp_path / "plan.json").write_text(answer.out)
    answer = invoke("set-partition", storage, "--partition", 2, "--plan", tmp_path / "plan.json", "--format", form)
    assert (answer.status, check(answer, array=False, form=form)) == (0, {"result"})
    now = status(storage, 2)
    assert (now["session_id"], now["low_water_mark"], now["readable"], now["writable"]) == (8, 15, False, False)
    assert invoke("undo", storage, "--yes").status == 0
    assert {name: value for name, value in digest(storage).items() if name in before} == before


def test_what_loses_needs_its_word(storage: Path) -> None:
    before = digest(storage)
    for words in (
        ["--session-id", 2],
        ["--low-water-mark", 8],
        ["--local-low-water-mark", 8],
        ["--local-low-water-mark", 20],
    ):
        answer = invoke("set-partition", storage, "--partition", 2, *words, "--yes")
        assert (answer.status, "--allow-data-loss" in answer.err) == (13, True), words
    assert digest(storage) == before
    answer = invoke(
        "set-partition", storage, "--partition", 2, "--local-low-water-mark", 8, "--allow-data-loss", "--yes"
    )
    assert answer.status == 0
    assert status(storage, 2)["local_low_water_mark"] == 8
    answer = invoke(
        "set-partition", storage, "--partition", 2, "--local-low-water-mark", 20, "--allow-data-loss", "--yes"
    )
    assert (answer.status, "acknowledged-missing" in answer.out) == (5, True)


@pytest.mark.parametrize("option", ["--session-id", "--low-water-mark", "--local-low-water-mark"])
def test_a_number_that_nothing_could_follow_is_a_usage_error(storage: Path, option: str) -> None:
    """Such a session would end every append, and such a mark, once given up, the ledger of losses."""
    before = digest(storage)
    answer = invoke("set-partition", storage, "--partition", 2, option, 2**63 - 1, "--allow-data-loss", "--yes")
    assert (answer.status, "nothing could come after it" in answer.err) == (2, True)
    assert digest(storage) == before


def test_assignment(storage: Path) -> None:
    assert invoke("set-partition", storage, "--partition", 2, "--unassigned", "--yes").status == 0
    assert status(storage, 2)["health"] == "unassigned"
    answer = invoke("set-partition", storage, "--partition", 2, "--unassigned", "--yes")
    assert (answer.status, "NOTHING TO DO" in answer.out) == (0, True)
    assert invoke("set-partition", storage, "--partition", 2, "--assigned", "--yes").status == 0
    assert invoke("verify", storage).status == 0
    assert status(storage, 2)["last_transaction_id"] == 19


@pytest.mark.parametrize("leads", ["nowhere", "2"])
def test_a_partition_in_whose_place_a_dead_link_stands(tmp_path: Path, leads: str) -> None:
    """One that leads in a circle ended what was asked for in the middle, which was then taken back."""
    root = build_directory(tmp_path / "n", {0: 60, 2: 20}, layout=Layout.RELEASED)
    (root / "2").rename(tmp_path / "elsewhere")
    (root / "2").symlink_to(leads)
    assert invoke("set-partition", root, "--partition", 2, "--session-id", 9, "--yes").status == 5
    assert status(root, 2)["session_id"] == 9
    assert invoke("set-partition", root, "--partition", 2, "--unassigned", "--yes").status == 0
    assert status(root, 2)["health"] == "unassigned"


def test_nothing_set_is_a_usage_error(storage: Path) -> None:
    before = digest(storage)
    for words in ([], ["--allow-data-loss"], ["--session-id", -2], ["--low-water-mark", 2**63], ["--session-id", "x"]):
        assert invoke("set-partition", storage, "--partition", 2, *words, "--yes").status == 2, words
    assert invoke("set-partition", storage, "--session-id", 9, "--yes").status == 2
    assert invoke("set-partition", storage, "--partition", 7, "--session-id", 9, "--yes").status == 2
    assert invoke("set-partition", storage / "2", "--partition", 0, "--session-id", 9, "--yes").status == 2
    assert digest(storage) == before


def test_a_plan_for_another_partition_is_refused(storage: Path, tmp_path: Path) -> None:
    answer = invoke("set-partition", storage, "--partition", 2, "--session-id", 8, "--dry-run", "--format", "json")
    (tmp_path / "plan.json").write_text(answer.out)
    before = digest(storage)
    for words in (["--partition", 0], ["--partition", 0, "--session-id", 8], ["--partition", 2, "--session-id", 9]):
        assert invoke("set-partition", storage, *words, "--plan", tmp_path / "plan.json").status == 2
    assert digest(storage) == before


def test_it_asks_for_the_partition_s_number(storage: Path) -> None:
    words = ("set-partition", storage, "--partition", 2, "--session-id", 8)
    assert invoke(*words).status == 13
    assert on_terminal(*words, typed=b"3\n", after=b"to apply").status == 13
    assert on_terminal(*words, typed=b"2\n", after=b"to apply").status == 0
    assert status(storage, 2)["session_id"] == 8
