"""undo: what was kept, which repair is meant, and the way back."""

from __future__ import annotations

import errno
import os
import shlex
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.builders import build_directory, digest
from tests.cli.damage import damage_record, flip, index_of, segment_of
from tests.cli.running import invoke, on_terminal
from waltzctl import repair_procedure
from waltzctl.commands import undo
from waltzctl.engine.durable import disk
from waltzctl.engine.durable.directory_lock import DirectoryLock
from waltzctl.engine.durable.edits import Overwrite
from waltzctl.engine.durable.manifest import quarantine_directory
from waltzctl.engine.errors import DiskWriteError
from waltzctl.engine.log.view import read_control
from waltzctl.engine.repair import apply
from waltzctl.engine.storage.store import apply_edits
from waltzctl.formats.control import Layout


@pytest.fixture
def storage(tmp_path: Path) -> Path:
    return build_directory(tmp_path / "storage", {0: 60, 2: 20}, local_low_water_mark=9)


def contents(storage: Path) -> dict[str, str]:
    return {name: value for name, value in digest(storage).items() if not name.startswith(disk.STATE_DIRECTORY)}


@pytest.mark.parametrize(
    ("command", "status"),
    [
        (["truncate", "--partition", "2", "--after", "12"], 0),
        (["rebuild-index", "--all"], 4),  # the damage is in a partition whose index it touched
        (["recover", "--allow-data-loss", "--partition", "0"], 4),
        (["convert", "--layout", "documented"], 4),
    ],
)
def test_every_repair_can_be_taken_back_and_the_status_is_what_verify_says_then(
    storage: Path, command: list[str], status: int
) -> None:
    damage_record(segment_of(storage), 20)
    before = contents(storage)
    done = invoke(command[0], storage, *command[1:], "--yes", "--format", "json").objects[0]
    assert done["undo_id"] is not None
    if command[0] != "rebuild-index":
        assert contents(storage) != before
    answer = invoke("undo", storage, "--yes", "--format", "json")
    (result,) = answer.objects
    assert (answer.status, result["exit_status"], result["status"]) == (status, status, "undone")
    assert [finding["code"] for finding in result["findings"]] == (["record-checksum"] if status else [])
    assert (result["undo_id"], result["plan_hash"], result["applied"]) == (done["undo_id"], done["plan_hash"], True)
    assert contents(storage) == before


@pytest.mark.parametrize("owner", [True, False])
def test_a_time_that_does_not_come_back_is_said(storage: Path, monkeypatch: pytest.MonkeyPatch, owner: bool) -> None:
    """For whoever may write to a file that is not his own."""
    before = contents(storage)
    assert invoke("truncate", storage, "--partition", "2", "--after", "12", "--yes").status == 0

    def utime(*_: object, **__: object) -> None:
        raise PermissionError

    if not owner:
        monkeypatch.setattr(os, "utime", utime)
    answer = invoke("undo", storage, "--yes")
    assert (answer.status, contents(storage)) == (0, before)
    for path in (segment_of(storage, 2), index_of(storage, 2)):
        assert (f"waltzctl: {path}: its bytes are back, and its time is not" in answer.err) is not owner


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


def test_a_torn_tail_that_comes_back_can_be_repaired_again(storage: Path) -> None:
    with segment_of(storage, 2).open("ab") as file:
        file.write(b"half a record")
    assert invoke("recover", storage, "--yes").status == 0
    answer = invoke("undo", storage, "--yes")
    assert answer.status == 3
    assert "verified again: repairable" in answer.out
    assert invoke("recover", storage, "--yes").status == 0


def cut_and_append(storage: Path) -> None:
    """The log goes on in segments that the truncation never knew."""
    invoke("truncate", storage, "--partition", "2", "--after", "12", "--yes")
    assert invoke("append", storage, "--partition", 2, "--segment-size", "1", given="x\ny\n").status == 0


def test_what_came_since_is_named_and_not_overlapped(storage: Path) -> None:
    cut_and_append(storage)
    before = contents(storage)
    for arguments in (["--yes"], ["--dry-run"]):
        answer = invoke("undo", storage, *arguments)
        assert answer.status == 13
        assert "0000000000000000013.seg" in answer.err
        assert "undo with --allow-data-loss" in answer.err
    assert contents(storage) == before
    assert invoke("verify", storage).status == 0


def test_what_came_since_is_set_aside_on_request(storage: Path) -> None:
    before = {name: value for name, value in contents(storage).items() if name.startswith("2/")}
    cut_and_append(storage)
    planned = invoke("undo", storage, "--dry-run", "--allow-data-loss")
    assert planned.status == 0
    assert "set aside first, in the quarantine: what was written since of " in planned.err
    answer = invoke("undo", storage, "--yes", "--allow-data-loss")
    assert answer.status == 0
    assert "what was written since is kept as " in answer.err
    assert {name: value for name, value in contents(storage).items() if name.startswith("2/")} == before
    states = [(one["command"], one["state"]) for one in invoke("undo", storage, "--list", "--format", "ndjson").objects]
    assert states == [("truncate", "undone"), ("set-aside", "applied")]


def test_what_comes_while_the_user_is_asked_is_not_set_aside(storage: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The question told of nothing that would be set aside, or of less."""
    invoke("truncate", storage, "--partition", "2", "--after", "12", "--yes")

    def appended(_word: str, _question: str) -> bool:
        return invoke("append", storage, "--partition", 2, "--segment-size", "1", given="x\n").status == 0

    monkeypatch.setattr(repair_procedure, "typed", appended)
    monkeypatch.setattr(undo, "sys", SimpleNamespace(stdin=SimpleNamespace(isatty=lambda: True)))
    for _ in range(2):
        answer = invoke("undo", storage, "--allow-data-loss")
        assert answer.status == 13
        assert "changed since it was shown what the undo sets aside; nothing was modified" in answer.err
    listed = invoke("undo", storage, "--list", "--format", "ndjson").objects
    assert [(one["command"], one["state"]) for one in listed] == [("truncate", "applied")]
    monkeypatch.setattr(repair_procedure, "typed", lambda _word, _question: True)
    assert invoke("undo", storage, "--allow-data-loss").status == 0


def test_a_partition_directory_is_a_path(storage: Path) -> None:
    index_of(storage).unlink()
    index_of(storage, 2).unlink()
    first = invoke("rebuild-index", storage / "2", "--yes", "--format", "json").objects[0]["undo_id"]
    second = invoke("rebuild-index", storage / "0", "--yes", "--format", "json").objects[0]["undo_id"]
    listed = invoke("undo", storage / "2", "--list", "--format", "ndjson").objects
    assert [one["id"] for one in listed] == [first]
    wrong = invoke("undo", storage / "2", second, "--yes")
    assert wrong.status == 2
    assert "touched nothing of partition 2" in wrong.err
    assert index_of(storage).exists()
    assert invoke("undo", storage / "2", "--yes").status == 3
    assert (index_of(storage).exists(), index_of(storage, 2).exists()) == (True, False)


def test_a_repair_of_a_partition_that_lies_behind_a_link_by_now_says_what_helps(storage: Path, tmp_path: Path) -> None:
    """It was moved to another disk since.  The advice was an option that undo does not have."""
    before = contents(storage)
    assert invoke("truncate", storage, "--partition", 2, "--after", 12, "--yes").status == 0
    (storage / "2").rename(tmp_path / "disk")
    (storage / "2").symlink_to(tmp_path / "disk")
    answer = invoke("undo", storage, "--yes")
    assert answer.status == 13
    assert "put what the link leads to in the link's place" in answer.err
    (storage / "2").unlink()
    (tmp_path / "disk").rename(storage / "2")
    assert invoke("undo", storage, "--yes").status == 0
    assert contents(storage) == before


@pytest.mark.parametrize("partition", ["", "2"])
def test_the_undo_that_a_repair_prints_can_be_run(storage: Path, partition: str) -> None:
    flip(storage / "waltz-storage.ctl", Layout.RELEASED.struct_offset(2, 1) + 3)
    before = contents(storage)
    answer = invoke("recover", storage / partition, "--yes")
    assert answer.status == 0
    (_, words) = answer.out.split("To take it back: waltzctl ")
    assert invoke(*shlex.split(words), "--yes").status == 3
    assert contents(storage) == before


def test_a_mark_that_falls_is_said(storage: Path) -> None:
    control = read_control(storage / "waltz-storage.ctl")
    assert control is not None
    number, raised = control.partitions[2].updated(local_low_water_mark=15)
    with DirectoryLock.acquire(storage, storage / "waltz-storage.ctl"):
        place = Overwrite(storage / "waltz-storage.ctl", control.layout.struct_offset(2, number), raised.encode())
        apply_edits(storage, [place], command="set-partition", arguments=[], plan_hash="")
    for arguments in (["--dry-run"], ["--yes"]):
        answer = invoke("undo", storage, *arguments, "-q")
        assert answer.status == 0
        assert "partition 2: the local low-water mark goes back from 15 to 9" in answer.err


def test_an_undo_of_a_repair_that_is_gone_meanwhile_is_refused(storage: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert invoke("truncate", storage, "--partition", "2", "--after", "15", "--yes").status == 0
    undo_repair = apply.undo_repair

    def gone(path: Path, entry_id: str, **given: Any) -> apply.UndoneRepair:
        shutil.rmtree(quarantine_directory(path) / entry_id)
        return undo_repair(path, entry_id, **given)

    monkeypatch.setattr(apply, "undo_repair", gone)
    answer = invoke("undo", storage, "--yes")
    assert (answer.status, "there is no repair" in answer.err) == (2, True)


@pytest.mark.parametrize("fails", ["unlink", "sync_directory"])
def test_an_undo_that_fails_behind_its_last_file_says_that_it_is_done(
    storage: Path, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    """Or it is repeated, and takes back the repair before it."""
    for after in ("15", "12"):
        between = contents(storage)
        assert invoke("truncate", storage, "--partition", "2", "--after", after, "--yes").status == 0
    latest = invoke("undo", storage, "--list", "--format", "ndjson").objects[-1]["id"]
    call = getattr(disk, fails)

    def failing(path: Path, *given: object) -> None:
        if latest in str(path) and contents(storage) == between:
            raise DiskWriteError(path, None, OSError(errno.EIO, os.strerror(errno.EIO)), doing="do it")
        call(path, *given)

    with monkeypatch.context() as patch:
        patch.setattr(disk, fails, failing)
        answer = invoke("undo", storage, "--yes")
    assert (answer.status, contents(storage)) == (14, between)
    assert f"{latest} is taken back all the same" in answer.err
    assert invoke("undo", storage, latest, "--yes").status == 13
    assert invoke("verify", storage).status == 0
    assert contents(storage) == between
