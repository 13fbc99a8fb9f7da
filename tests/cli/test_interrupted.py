"""A repair that was interrupted comes first, in the same way for every command that writes, and never without a word."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.builders import build_directory, digest
from tests.cli.damage import records_of, segment_of
from tests.cli.running import Answer, invoke, on_terminal
from tests.repair.trees import Crash, contents, crashing_at, recording
from waltzctl.engine.errors import RefusedError, StalePlanError
from waltzctl.engine.findings import Code
from waltzctl.engine.repair.apply import apply
from waltzctl.engine.repair.truncate import plan_truncate
from waltzctl.engine.repair.undoing import undo
from waltzctl.engine.storage.store import interrupted, list_entries
from waltzctl.formats.control import CONTROL_FILE_NAME

TAKEN_BACK = "was interrupted; it was taken back first, byte for byte"


@pytest.fixture
def storage(tmp_path: Path) -> Path:
    return build_directory(tmp_path / "storage", {0: 60, 2: 20}, local_low_water_mark=9)


def interrupt(storage: Path) -> dict[str, tuple[int, str]]:
    """Interrupt a truncation of partition 2 after its first cut; returns what was there before."""
    before = contents(storage)
    probe = build_directory(storage.with_name("probe"), {0: 60, 2: 20}, local_low_water_mark=9)
    with recording() as changes:
        apply(plan_truncate(probe, partition=2, after=12), arguments=[])
    place = next(number for number, change in enumerate(changes) if change.kind == "truncate")
    repair = plan_truncate(storage, partition=2, after=12)
    with pytest.raises(Crash), crashing_at(place):
        apply(repair, arguments=[])
    assert len(interrupted(storage)) == 1
    assert contents(storage) != before
    return before


WRITERS = [
    ["truncate", "--partition", "2", "--after", "15", "--yes"],
    ["rebuild-index", "--all", "--yes"],
    ["recover", "--yes"],
    ["append", "--partition", "0"],
]
EACH = pytest.mark.parametrize("command", WRITERS, ids=lambda command: command[0])


def test_it_is_said_also_where_the_directory_cannot_be_opened_then(storage: Path) -> None:
    before = interrupt(storage)
    control = storage / CONTROL_FILE_NAME
    control.write_bytes(control.read_bytes() + b"junk")  # the repair had not touched it
    answer = invoke("append", storage, "--partition", "0", given="x\n")
    assert (answer.status, TAKEN_BACK in answer.err) == (4, True)
    assert answer.err.index(TAKEN_BACK) < answer.err.index(Code.CONTROL_FILE_SIZE)
    assert contents(storage).keys() == before.keys()
    assert interrupted(storage) == ()


@EACH
def test_every_writer_takes_it_back_says_so_and_does_its_work(storage: Path, command: list[str]) -> None:
    before = interrupt(storage)
    answer = invoke(command[0], storage, *command[1:], "--format", "ndjson", given="x\n")
    assert answer.status == 0
    assert TAKEN_BACK in answer.err
    assert list_entries(storage)[0].id in answer.err
    assert interrupted(storage) == ()
    assert list_entries(storage)[0].state == "rolled-back"
    if command[0] == "recover":  # which then finds nothing to do
        assert contents(storage) == before
    else:
        (result,) = [one for one in answer.objects if one["type"] in ("result", "append-result")]
        assert result.get("applied", True)
    kept = 16 if command[0] == "truncate" else 20
    assert len(records_of(segment_of(storage, 2))) == kept


@EACH
def test_even_where_it_is_quiet(storage: Path, command: list[str]) -> None:
    interrupt(storage)
    answer = invoke(command[0], storage, *command[1:], "-q", given="x\n")
    assert answer.status == 0
    assert TAKEN_BACK in answer.err


@EACH
def test_nothing_is_said_where_nothing_was_interrupted(storage: Path, command: list[str]) -> None:
    assert TAKEN_BACK not in invoke(command[0], storage, *command[1:], given="x\n").err


@pytest.mark.parametrize("command", WRITERS[:3], ids=lambda command: command[0])
def test_a_dry_run_shows_the_way_back_and_changes_nothing(storage: Path, command: list[str]) -> None:
    interrupt(storage)
    before = digest(storage)
    answer = invoke(command[0], storage, *command[1:-1], "--dry-run", "--format", "ndjson")
    assert answer.status == 3
    (plan,) = answer.objects
    assert [step["action"] for step in plan["steps"]] == ["roll-back"]
    assert digest(storage) == before


@pytest.mark.parametrize("command", WRITERS[:2], ids=lambda command: command[0])
def test_without_yes_and_without_a_terminal_nothing_is_taken_back(storage: Path, command: list[str]) -> None:
    interrupt(storage)
    before = digest(storage)
    answer = invoke(command[0], storage, *command[1:-1])
    assert answer.status == 13
    assert "not confirmed, nothing was modified" in answer.err
    assert digest(storage) == before


def test_on_a_terminal_both_plans_are_asked_for(storage: Path) -> None:
    interrupt(storage)
    answer = on_terminal(
        "truncate", storage, "--partition", "2", "--after", "15", typed=b"2\n2\n", after=b"to apply the plan"
    )
    assert answer.status == 0
    assert answer.out.count("Type the partition number (2)") == 2
    assert TAKEN_BACK in answer.out
    assert len(records_of(segment_of(storage, 2))) == 16


def test_who_agrees_to_the_first_plan_only_is_not_told_that_nothing_was_modified(storage: Path) -> None:
    before = interrupt(storage)
    answer = on_terminal(
        "truncate", storage, "--partition", "2", "--after", "15", typed=b"2\nno\n", after=b"to apply the plan"
    )
    assert answer.status == 13
    assert "not confirmed, nothing else was modified" in answer.out
    assert contents(storage) == before


def test_a_plan_kept_from_before_is_stale(storage: Path) -> None:
    file = storage.with_name("plan.json")
    command = ["truncate", storage, "--partition", "2", "--after", "15"]
    file.write_text(invoke(*command, "--dry-run", "--format", "json").out)
    interrupt(storage)
    before = digest(storage)
    assert invoke(*command, "--plan", file, "--yes").status == 13
    assert digest(storage) == before


def test_the_way_back_can_be_kept_as_a_plan(storage: Path) -> None:
    before = interrupt(storage)
    file = storage.with_name("plan.json")
    command = ["truncate", storage, "--partition", "2", "--after", "15"]
    file.write_text(invoke(*command, "--dry-run", "--format", "json").out)
    answer: Answer = invoke(*command, "--plan", file)
    assert answer.status == 0
    assert TAKEN_BACK in answer.err
    assert contents(storage) == before, "the plan was to take it back, and no more"


def test_recover_says_so_also_where_it_then_fails(storage: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupt(storage)
    monkeypatch.setattr("waltzctl.engine.repair.apply.verify_again", refused)
    answer = invoke("recover", storage, "--yes")
    assert (answer.status, TAKEN_BACK in answer.err) == (13, True)
    assert answer.err.index(TAKEN_BACK) < answer.err.index("no more")


def test_undo_says_so_also_where_it_then_fails(storage: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupt(storage)
    (entry,) = interrupted(storage)
    monkeypatch.setattr("waltzctl.engine.repair.apply.verify_again", refused)
    answer = invoke("undo", storage, "--yes")
    assert (answer.status, TAKEN_BACK in answer.err, entry.id in answer.err) == (13, True, True)


def test_an_undo_that_is_refused_names_what_it_took_back_before(storage: Path) -> None:
    applied = apply(plan_truncate(storage, partition=0, after=50), arguments=[])
    segment_of(storage, 0).write_bytes(b"written anew")
    interrupt(storage)
    (left,) = interrupted(storage)
    with pytest.raises(StalePlanError) as raised:
        undo(storage, applied.undo_id)
    assert raised.value.taken_back == (left.id,)


def refused(*_: object, **__: object) -> None:
    raise RefusedError("no more")
