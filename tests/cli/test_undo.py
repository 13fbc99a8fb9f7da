"""undo: what was kept, which repair is meant, and the way back."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine import disk
from tests.builders import build_directory, digest
from tests.cli.damage import damage_record, index_of, segment_of
from tests.cli.running import invoke, on_terminal


@pytest.fixture
def storage(tmp_path: Path) -> Path:
    return build_directory(tmp_path / "storage", {0: 60, 2: 20}, local_low_water_mark=9)


def contents(storage: Path) -> dict[str, str]:
    return {name: value for name, value in digest(storage).items() if not name.startswith(disk.STATE_DIRECTORY)}


@pytest.mark.parametrize(
    "command",
    [
        ["truncate", "--partition", "2", "--after", "12"],
        ["rebuild-index", "--all"],
        ["recover", "--allow-data-loss", "--partition", "0"],
        ["convert", "--layout", "documented"],
    ],
)
def test_every_repair_can_be_taken_back(storage: Path, command: list[str]) -> None:
    damage_record(segment_of(storage), 20)
    before = contents(storage)
    done = invoke(command[0], storage, *command[1:], "--yes", "--format", "json").objects[0]
    assert done["undo_id"] is not None
    if command[0] != "rebuild-index":
        assert contents(storage) != before
    answer = invoke("undo", storage, "--yes", "--format", "json")
    (result,) = answer.objects
    assert answer.status == 0
    assert (result["undo_id"], result["plan_hash"], result["applied"]) == (done["undo_id"], done["plan_hash"], True)
    assert contents(storage) == before


def test_the_list_names_every_repair_and_where_it_stands(storage: Path) -> None:
    assert invoke("undo", storage, "--list", "--format", "json").out == "[]\n"
    first = invoke("truncate", storage, "--partition", "2", "--after", "15", "--yes", "--format", "json").objects[0][
        "undo_id"
    ]
    second = invoke("truncate", storage, "--partition", "2", "--after", "12", "--yes", "--format", "json").objects[0][
        "undo_id"
    ]
    assert invoke("undo", storage, "--yes").status == 0
    answer = invoke("undo", storage, "--list", "--format", "ndjson")
    assert answer.status == 0
    assert [(one["id"], one["state"], one["command"]) for one in answer.objects] == [
        (first, "applied", "truncate"), (second, "undone", "truncate")
    ]  # fmt: skip
    assert "2/0000000000000000000.seg" in answer.objects[0]["files"]


def test_a_repair_under_a_later_one_is_refused(storage: Path) -> None:
    first = invoke("truncate", storage, "--partition", "2", "--after", "15", "--yes", "--format", "json").objects[0][
        "undo_id"
    ]
    invoke("truncate", storage, "--partition", "2", "--after", "12", "--yes")
    before = digest(storage)
    answer = invoke("undo", storage, first, "--yes")
    assert answer.status == 13
    assert "a later repair" in answer.err
    assert {**digest(storage), ".waltzctl/lock": ""} == {**before, ".waltzctl/lock": ""}


def test_what_was_written_since_is_not_overwritten(storage: Path) -> None:
    invoke("truncate", storage, "--partition", "2", "--after", "12", "--yes")
    assert invoke("append", storage, "--partition", 2, given="new\n").status == 0
    before = contents(storage)
    answer = invoke("undo", storage, "--yes")
    assert answer.status == 13
    assert contents(storage) == before


def test_nothing_to_take_back(storage: Path) -> None:
    answer = invoke("undo", storage, "--yes")
    assert answer.status == 13
    assert "no repair to take back" in answer.err
    assert invoke("undo", storage, "20260101T000000Z-recover", "--yes").status == 2


def test_without_a_terminal_it_needs_yes(storage: Path) -> None:
    invoke("truncate", storage, "--partition", "2", "--after", "12", "--yes")
    before = digest(storage)
    answer = invoke("undo", storage)
    assert answer.status == 13
    assert "add --yes" in answer.err
    assert digest(storage) == before


def test_a_dry_run_names_the_files(storage: Path) -> None:
    invoke("truncate", storage, "--partition", "2", "--after", "12", "--yes")
    before = digest(storage)
    answer = invoke("undo", storage, "--dry-run", "--format", "json")
    assert answer.status == 0
    assert answer.objects[0]["type"] == "undo-entry"
    assert digest(storage) == before


def test_on_a_terminal_the_partition_number_is_the_confirmation(storage: Path) -> None:
    before = contents(storage)
    index_of(storage).read_bytes()
    invoke("truncate", storage, "--partition", "2", "--after", "12", "--yes")
    assert on_terminal("undo", storage, typed=b"no\n", after=b"to do it").status == 13
    answer = on_terminal("undo", storage, typed=b"2\n", after=b"to do it")
    assert answer.status == 0
    assert "UNDONE  2 files brought back" in answer.out
    assert contents(storage) == before


def test_list_changes_nothing_so_id_and_yes_make_no_sense(storage: Path) -> None:
    assert invoke("undo", storage, "--list", "--yes").status == 2
    assert invoke("undo", storage, "some-id", "--list").status == 2
