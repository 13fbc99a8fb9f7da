"""convert on the command line: plan, confirmation, result and exit status; what it does to files is the engine's matter."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.builders import build_directory, digest
from tests.cli.damage import damage_record, segment_of
from tests.cli.running import invoke, on_terminal
from waltzctl.engine.durable import disk
from waltzctl.engine.durable.directory_lock import DirectoryLock
from waltzctl.formats.control import Layout


@pytest.fixture
def storage(tmp_path: Path) -> Path:
    return build_directory(tmp_path / "storage", {0: 60, 2: 20}, layout=Layout.DOCUMENTED, local_low_water_mark=9)


def contents(storage: Path) -> dict[str, str]:
    return {name: value for name, value in digest(storage).items() if not name.startswith(disk.STATE_DIRECTORY)}


def layout_of(storage: Path) -> str:
    return str(invoke("status", storage, "--format", "json").objects[0]["layout"])


def test_there_and_back_again(storage: Path) -> None:
    before = contents(storage)
    answer = invoke("convert", storage, "--layout", "released", "--yes", "--format", "json")
    (result,) = answer.objects
    assert (answer.status, result["applied"], result["status"]) == (0, True, "clean")
    assert layout_of(storage) == "released"
    assert invoke("verify", storage).status == 0
    assert invoke("convert", storage, "--layout", "documented", "--yes").status == 0
    assert layout_of(storage) == "documented"
    assert contents(storage) == before


def test_a_dry_run_changes_nothing_and_its_plan_can_be_applied(storage: Path, tmp_path: Path) -> None:
    before = digest(storage)
    answer = invoke("convert", storage, "--layout", "released", "--dry-run", "--format", "json")
    (plan,) = answer.objects
    assert (answer.status, plan["command"], plan["arguments"]["layout"]) == (0, "convert", "released")
    assert [(step["action"], step["loses_data"]) for step in plan["steps"]] == [("convert-control-file", False)]
    assert digest(storage) == before
    (tmp_path / "plan.json").write_text(answer.out)
    assert invoke("convert", storage, "--layout", "documented", "--plan", tmp_path / "plan.json").status == 2
    assert invoke("convert", storage, "--layout", "released", "--plan", tmp_path / "plan.json").status == 0
    assert layout_of(storage) == "released"
    assert invoke("undo", storage, "--yes").status == 0
    assert contents(storage) == {name: value for name, value in before.items() if not name.startswith(".waltzctl")}


def test_a_plan_of_another_state_is_refused(storage: Path, tmp_path: Path) -> None:
    answer = invoke("convert", storage, "--layout", "released", "--dry-run", "--format", "json")
    (tmp_path / "plan.json").write_text(answer.out)
    assert invoke("append", storage, "--partition", 0, given="a\n").status == 0
    before = digest(storage)
    answer = invoke("convert", storage, "--layout", "released", "--plan", tmp_path / "plan.json")
    assert answer.status == 13
    assert digest(storage) == before


def test_it_asks_on_a_terminal(storage: Path) -> None:
    answer = on_terminal("convert", storage, "--layout", "released", typed=b"no\n", after=b"to apply the plan")
    assert (answer.status, layout_of(storage)) == (13, "documented")
    answer = on_terminal("convert", storage, "--layout", "released", typed=b"yes\n", after=b"to apply the plan")
    assert (answer.status, layout_of(storage)) == (0, "released")


def test_without_a_word_of_agreement_nothing_happens(storage: Path) -> None:
    assert invoke("convert", storage, "--layout", "released").status == 13
    assert layout_of(storage) == "documented"


def test_what_has_the_layout_already_is_clean(storage: Path) -> None:
    answer = invoke("convert", storage, "--layout", "documented", "--yes")
    assert answer.status == 0
    assert "NOTHING TO DO" in answer.out


def test_a_damaged_control_file_is_refused_with_what_to_do(storage: Path) -> None:
    control = storage / "waltz-storage.ctl"
    data = bytearray(control.read_bytes())
    data[Layout.DOCUMENTED.struct_offset(0, 1) + 3] ^= 1
    control.write_bytes(data)
    answer = invoke("convert", storage, "--layout", "released", "--yes")
    assert answer.status == 13
    assert f"run waltzctl recover {storage} --partition 0 first" in answer.err


def test_a_directory_in_use_and_what_is_none(storage: Path, tmp_path: Path) -> None:
    with DirectoryLock.acquire(storage, storage / "waltz-storage.ctl"):
        assert invoke("convert", storage, "--layout", "released", "--yes").status == 11
    assert invoke("convert", tmp_path, "--layout", "released", "--yes").status == 10
    assert invoke("convert", storage, "--yes").status == 2
    assert invoke("convert", storage, "--layout", "other").status == 2


def test_damage_elsewhere_stays_named(storage: Path) -> None:
    damage_record(segment_of(storage), 20)
    answer = invoke("convert", storage, "--layout", "released", "--yes", "--format", "json")
    assert answer.status == 5
    assert [one["code"] for one in answer.objects[0]["findings"]] == ["record-checksum"]
