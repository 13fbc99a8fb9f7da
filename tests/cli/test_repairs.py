"""truncate, rebuild-index, recover: plan, confirmation, result and exit status; what they do to files is the engine's matter."""

from __future__ import annotations

import io
import json
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests import warm_start
from tests.builders import build_directory, digest
from tests.cli.damage import damage_record, index_of, records_of, segment_of, tear_tail
from tests.cli.running import Answer, command_line, environment, invoke, on_full_disk, on_terminal, run
from waltzctl.engine.durable import disk
from waltzctl.engine.durable.directory_lock import DirectoryLock
from waltzctl.engine.errors import RefusedError
from waltzctl.formats.control import Layout
from waltzctl.repair_procedure import confirm

PROMPT = b"to apply the plan"


@pytest.fixture
def storage(tmp_path: Path) -> Path:
    return build_directory(tmp_path / "storage", {0: 60, 2: 20}, local_low_water_mark=9)


def contents(storage: Path) -> dict[str, str]:
    """The storage's own files, ours left out."""
    return {name: value for name, value in digest(storage).items() if not name.startswith(disk.STATE_DIRECTORY)}


def only(answer: Answer, kind: str) -> dict[str, Any]:
    (found,) = answer.objects
    assert found["type"] == kind
    return found


def test_a_dry_run_shows_the_plan_and_what_verify_would_say(storage: Path) -> None:
    index_of(storage).unlink()
    before = digest(storage)
    answer = invoke("rebuild-index", storage, "--dry-run", "--format", "json")
    plan = only(answer, "plan")
    assert answer.status == 3
    assert plan["command"] == "rebuild-index"
    assert [step["path"] for step in plan["steps"]] == [str(index_of(storage))]
    assert digest(storage) == before


def test_rebuild_index_writes_the_same_bytes(storage: Path) -> None:
    before = contents(storage)
    index_of(storage).write_bytes(b"nonsense")
    answer = invoke("rebuild-index", storage, "--yes", "--format", "json")
    result = only(answer, "result")
    assert (answer.status, result["applied"], result["exit_status"], result["findings"]) == (0, True, 0, [])
    assert contents(storage) == before
    assert (Path(result["quarantine"]) / "manifest.json").is_file()


@pytest.mark.skipif(os.geteuid() != 0, reason="only the superuser makes files of somebody else")
@pytest.mark.parametrize("permitted", [True, False])
def test_files_that_could_not_be_given_to_whom_they_belong_are_named(
    storage: Path, monkeypatch: pytest.MonkeyPatch, permitted: bool
) -> None:
    """As one who may write repairs what is not his own."""
    for one in (storage, *storage.rglob("*")):
        os.chown(one, 65534, 65534)
    index_of(storage).write_bytes(b"nonsense")
    index_of(storage, 2).unlink()

    def chown(*_: object) -> None:
        raise PermissionError

    if not permitted:
        monkeypatch.setattr(os, "chown", chown)
    answer = invoke("rebuild-index", storage, "--yes", "--format", "json")
    assert answer.status == 0
    told = f"waltzctl: {index_of(storage)} and 1 other file: belongs to another user or group than before"
    assert (told in answer.err) is not permitted
    assert permitted or "chown" in answer.err
    assert index_of(storage).stat().st_uid == (65534 if permitted else 0)


def test_only_what_differs_is_replaced_unless_all_is_asked_for(storage: Path) -> None:
    answer = invoke("rebuild-index", storage, "--yes", "--format", "json")
    assert (answer.status, only(answer, "result")["applied"]) == (0, False)
    assert not (storage / disk.STATE_DIRECTORY / "quarantine").exists()
    plan = only(invoke("rebuild-index", storage, "--all", "--partition", "0", "--dry-run", "--format", "json"), "plan")
    assert len(plan["steps"]) == 2


@pytest.mark.parametrize("command", [["rebuild-index"], ["truncate", "--partition", "0", "--after", "55"]])
def test_without_a_terminal_and_without_yes_it_is_refused(storage: Path, command: list[str]) -> None:
    index_of(storage).unlink()
    before = digest(storage)
    answer = invoke(command[0], storage, *command[1:], "--format", "json")
    assert answer.status == 13
    assert only(answer, "plan")["steps"]
    assert "add --yes" in answer.err
    assert digest(storage) == before


def test_recover_without_a_terminal_and_without_yes_is_a_dry_run(storage: Path) -> None:
    tear_tail(segment_of(storage, first=50))
    before = digest(storage)
    answer = invoke("recover", storage, "--format", "ndjson")
    assert answer.status == 3
    assert only(answer, "plan")["steps"][0]["partition"] == 0
    assert "dry run" in answer.err
    assert digest(storage) == before


def test_recover_applies_what_loses_nothing_and_names_the_rest(storage: Path) -> None:
    tear_tail(segment_of(storage, first=50))
    lost = damage_record(segment_of(storage, 2), 15)
    answer = invoke("recover", storage, "--yes", "--format", "json")
    result = only(answer, "result")
    assert answer.status == 5
    assert result["status"] == "damaged"
    assert [(one["code"], one["transaction_id"]) for one in result["findings"]] == [("record-checksum", lost)]
    assert invoke("recover", storage, "--yes", "--partition", "0").status == 0


def test_recover_brings_a_record_back_from_a_replica(storage: Path, tmp_path: Path) -> None:
    replica = build_directory(tmp_path / "replica", {0: 60, 2: 20}, local_low_water_mark=9)
    before = contents(storage)
    damage_record(segment_of(storage, 2), 15)
    answer = invoke("recover", storage, "--from", replica, "--yes", "--format", "json")
    assert (answer.status, only(answer, "result")["exit_status"]) == (0, 0)
    assert contents(storage) == before


def test_recover_splits_around_a_lost_record_and_the_gap_stays_a_finding(storage: Path) -> None:
    lost = damage_record(segment_of(storage, 2), 15)
    answer = invoke("recover", storage, "--allow-data-loss", "--yes", "--format", "json")
    findings = only(answer, "result")["findings"]
    assert answer.status == 5
    assert [(one["code"], one["transaction_id"]) for one in findings] == [
        ("segment-gap", lost),
        ("loss-accepted", lost),
    ]
    ids = [
        one["transaction_id"]
        for one in invoke("dump", storage, "--partition", "2", "--format", "ndjson").only("record")
    ]
    assert ids == [number for number in range(20) if number != lost]


def test_a_loss_at_the_end_is_named_until_it_is_forgotten_on_purpose(storage: Path, tmp_path: Path) -> None:
    """No gap shows it: verify, status and append know of it, and --forget-losses is a repair like others."""
    segment_of(storage, 2).unlink()
    assert invoke("verify", storage).status == 4
    assert invoke("append", storage, "--partition", "2", given=b"one more\n").status == 4
    answer = invoke("recover", storage, "--allow-data-loss", "--yes", "--format", "json")
    assert answer.status == 5
    assert [one["code"] for one in only(answer, "result")["findings"]] == ["loss-accepted"]
    for command in ("verify", "status"):
        again = invoke(command, storage)
        assert again.status == 4
        assert "loss-accepted" in again.out
    refused = invoke("append", storage, "--partition", "2", given=b"one more\n")
    assert refused.status == 13
    assert "transactions up to 19 were here" in refused.err
    assert invoke("recover", storage, "--forget-losses", "--allow-data-loss", "--yes").status == 2
    ledger = storage / ".waltzctl" / "accepted-losses"
    planned = invoke("recover", storage, "--forget-losses", "--partition", "2", "--dry-run", "--format", "json")
    assert (planned.status, ledger.exists()) == (4, True)
    (step,) = only(planned, "plan")["steps"]
    assert (step["action"], step["from_transaction_id"], step["to_transaction_id"]) == ("forget-accepted-loss", 0, 19)
    assert invoke("recover", storage, "--forget-losses", "--partition", "0", "--yes").status == 0
    assert ledger.exists(), "nothing of partition 0 is in it"
    plan = tmp_path / "plan.json"
    plan.write_text(invoke("recover", storage, "--forget-losses", "--dry-run", "--format", "json").out)
    assert invoke("recover", storage, "--plan", plan).status == 0
    assert (invoke("verify", storage).status, ledger.exists()) == (0, False)
    assert invoke("undo", storage, "--yes").status == 4, "it is named again"
    assert (invoke("verify", storage).status, ledger.exists()) == (4, True)


def test_truncate_keeps_what_it_is_told_to_keep(storage: Path) -> None:
    answer = invoke("truncate", storage, "--partition", "2", "--after", "12", "--yes", "--format", "json")
    assert (answer.status, only(answer, "result")["applied"]) == (0, True)
    assert records_of(segment_of(storage, 2))[-1][1].transaction_id == 12


def test_truncate_below_the_mark_needs_more_than_yes(storage: Path) -> None:
    before = digest(storage)
    arguments = ["truncate", storage, "--partition", "2", "--after", "5", "--yes"]
    answer = invoke(*arguments)
    assert answer.status == 13
    assert "--allow-data-loss" in answer.err
    assert digest(storage) == before
    done = invoke(*arguments, "--allow-data-loss", "--format", "json")
    assert done.status == 0
    assert only(done, "result")["findings"] == []


def test_a_plan_is_applied_exactly_or_not_at_all(storage: Path, tmp_path: Path) -> None:
    tear_tail(segment_of(storage, first=50))
    plan = tmp_path / "plan.json"
    plan.write_text(invoke("recover", storage, "--dry-run", "--format", "json").out)
    index_of(storage, 2).unlink()
    stale = invoke("recover", storage, "--plan", plan)
    assert stale.status == 13
    assert "nothing was modified" in stale.err
    plan.write_text(invoke("recover", storage, "--dry-run", "--format", "json").out)
    answer = invoke("recover", storage, "--plan", plan, "--format", "json")  # which loses nothing
    result = only(answer, "result")
    assert (answer.status, result["applied"]) == (0, True)
    assert result["plan_hash"] == json.loads(plan.read_text())["hash"]
    assert invoke("recover", storage, "--plan", plan).status == 13


def test_a_plan_carries_its_options(storage: Path, tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    arguments = ["truncate", storage, "--partition", "2", "--after", "12"]
    plan.write_text(invoke(*arguments, "--dry-run", "--format", "json").out)
    other = invoke("truncate", storage, "--partition", "2", "--after", "13", "--plan", plan)
    assert other.status == 2
    assert "other options" in other.err
    assert invoke(*arguments, "--plan", plan, "--yes").status == 0


@pytest.mark.parametrize("text", ["", "{}", "[" * 10_000, '{"schema":"waltzctl.plan/1","type":"plan"}', "\0"])
def test_a_file_that_is_no_plan(storage: Path, tmp_path: Path, text: str) -> None:
    plan = tmp_path / "plan.json"
    plan.write_text(text)
    answer = invoke("recover", storage, "--plan", plan)
    assert answer.status == 2
    assert "not a plan" in answer.err


def test_a_plan_of_another_command_or_directory(storage: Path, tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    plan.write_text(invoke("rebuild-index", storage, "--all", "--dry-run", "--format", "json").out)
    assert invoke("recover", storage, "--plan", plan).status == 2
    other = build_directory(tmp_path / "other", {0: 5})
    assert invoke("rebuild-index", other, "--plan", plan).status == 2
    assert invoke("recover", storage, "--plan", tmp_path / "missing").status == 2


def test_yes_and_dry_run_cannot_be_meant_together(storage: Path) -> None:
    assert invoke("recover", storage, "--yes", "--dry-run").status == 2


def test_on_a_terminal_the_partition_number_is_the_confirmation(storage: Path) -> None:
    arguments = ["truncate", storage, "--partition", "2", "--after", "12"]
    before = digest(storage)
    for wrong in (b"0\n", b"yes\n", b"\n", b"\x04"):
        refused = on_terminal(*arguments, typed=wrong, after=PROMPT)
        assert refused.status == 13
        assert "not confirmed, nothing was modified" in refused.out
    assert digest(storage) == before
    answer = on_terminal(*arguments, typed=b"2\n", after=PROMPT, NO_COLOR="1")
    assert answer.status == 0
    assert "Plan of truncate for " in answer.out
    assert "Type the partition number (2) to apply the plan" in answer.out
    assert f"To take it back: waltzctl undo {storage} " in answer.out


def test_on_a_terminal_several_partitions_are_typed_as_a_range(storage: Path) -> None:
    index_of(storage).unlink()
    index_of(storage, 2).unlink()
    answer = on_terminal("rebuild-index", storage, typed=b"0,2\n", after=PROMPT)
    assert answer.status == 0
    assert "(0,2)" in answer.out


def test_an_interrupt_at_the_question_changes_nothing(storage: Path) -> None:
    before = digest(storage)
    answer = on_terminal("truncate", storage, "--partition", "2", "--after", "12", typed=b"\x03", after=PROMPT)
    assert answer.status == 130
    assert "interrupted" in answer.out
    assert digest(storage) == before


@pytest.mark.parametrize("words", [(), ("--format", "json")], ids=["plain", "json"])
def test_whom_the_question_does_not_reach_has_not_agreed(storage: Path, words: tuple[str, ...]) -> None:
    """With stdin a terminal and a reader of stderr that has gone: a status of 0 would say that it was done."""
    before = digest(storage)
    leader, follower = pty.openpty()
    read, write = os.pipe()
    os.close(read)
    command = command_line("truncate", storage, "--partition", "2", "--after", "12", *words)
    with warm_start.Popen(command, stdin=follower, stdout=subprocess.PIPE, stderr=write, env=environment()) as process:
        os.close(follower)
        os.close(write)
        process.communicate(timeout=60)
    os.close(leader)
    assert process.returncode == 13
    assert digest(storage) == before


@pytest.mark.parametrize("typed", [b"\xe9\n", b"2\xff\n"])
def test_what_is_no_text_is_no_confirmation(monkeypatch: pytest.MonkeyPatch, typed: bytes) -> None:
    """As from a keyboard of another encoding than the locale's; it was an internal error."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(typed), encoding="utf-8"))
    with pytest.raises(RefusedError, match="not confirmed, nothing was modified"):
        confirm({2})


def test_a_person_sees_the_plan_even_when_stdout_holds_json(storage: Path) -> None:
    answer = on_terminal(
        "truncate", storage, "--partition", "2", "--after", "12", "--format", "json", typed=b"2\n", after=PROMPT
    )
    assert answer.status == 0
    assert "Plan of truncate" in answer.out
    assert json.loads(answer.out.splitlines()[-1])["type"] == "result"


def test_what_lies_in_plain_output(storage: Path) -> None:
    index_of(storage).unlink()
    lines = run("rebuild-index", storage, "--yes").out.splitlines()
    kinds = [line.split("\t")[0] for line in lines if not line.startswith("#")]
    assert kinds == ["plan", "plan.steps", "result"]
    assert lines[-1].startswith("# REPAIRED  1 step done and verified again: clean. To take it back: waltzctl undo ")


def test_quiet_says_nothing_on_success(storage: Path) -> None:
    index_of(storage).unlink()
    answer = invoke("rebuild-index", storage, "--yes", "-q")
    assert (answer.status, answer.out, answer.err) == (0, "", "")


@pytest.mark.parametrize(
    "command", [["rebuild-index"], ["recover"], ["truncate", "--partition", "0", "--after", "1"], ["undo"]]
)
def test_what_is_no_storage_directory(tmp_path: Path, command: list[str]) -> None:
    (tmp_path / "empty").mkdir()
    for path in (tmp_path / "empty", tmp_path / "missing"):
        answer = invoke(command[0], path, *command[1:], "--yes")
        assert answer.status == 10
        assert str(path) in answer.err
    assert list(tmp_path.rglob("*")) == [tmp_path / "empty"]


@pytest.mark.parametrize("command", [["rebuild-index", "--all"], ["truncate", "--partition", "2", "--after", "12"]])
def test_a_directory_in_use_is_never_overridden(storage: Path, command: list[str]) -> None:
    before = contents(storage)
    with DirectoryLock.acquire(storage, storage / "waltz-storage.ctl"):
        answer = run(command[0], storage, *command[1:], "--yes")
        assert invoke("verify", storage).status == 0
        assert invoke("status", storage, "--format", "json").objects[0]["locked_by"] is not None
    assert answer.status == 11
    assert "locked by process" in answer.err
    assert contents(storage) == before


def test_a_reader_that_goes_away_does_not_stop_a_repair(storage: Path) -> None:
    index_of(storage).unlink()
    reader, writer = os.pipe()
    os.close(reader)
    process = warm_start.run(
        command_line("rebuild-index", storage, "--yes"),
        stdout=writer,
        stderr=subprocess.PIPE,
        env=environment(),
    )
    os.close(writer)
    assert (process.returncode, process.stderr) == (0, b"")
    assert invoke("verify", storage).status == 0


def test_a_full_disk_behind_stdout_does_not_hide_what_was_applied(storage: Path) -> None:
    done = on_full_disk("truncate", storage, "--partition", 2, "--after", 12, "--yes", "--format", "json")
    (entry,) = (storage / ".waltzctl" / "quarantine").iterdir()
    said = done.err.splitlines()
    assert (done.status, said[-1]) == (14, "waltzctl: error: standard output: No space left on device")
    assert f"undo id     {entry.name}" in said


@pytest.mark.parametrize("command", [["rebuild-index"], ["recover"], ["truncate", "--partition", "2", "--after", "15"]])
def test_a_dry_run_refuses_the_link_that_the_application_would(
    storage: Path, tmp_path: Path, command: list[str]
) -> None:
    """A partition that lies elsewhere, behind a link: files cannot be moved from there into the quarantine."""
    (storage / "2").rename(tmp_path / "elsewhere")
    (storage / "2").symlink_to(tmp_path / "elsewhere")
    index_of(storage, 2).unlink()
    before = digest(storage), digest(tmp_path / "elsewhere")
    answers = [invoke(*command[:1], storage, *command[1:], how) for how in ("--dry-run", "--yes")]
    assert [answer.status for answer in answers] == [13, 13]
    assert answers[0].err == answers[1].err
    assert "a symbolic link leads out of" in answers[0].err
    assert (digest(storage), digest(tmp_path / "elsewhere")) == before
    if command != ["truncate", "--partition", "2", "--after", "15"]:
        assert invoke(*command, storage, "--partition", 0, "--yes").status in (0, 5), "the others can be worked on"


def test_a_file_in_the_place_of_a_partition_stops_no_repair_of_the_others(tmp_path: Path) -> None:
    storage = build_directory(tmp_path / "storage", {1: 60}, layout=Layout.DOCUMENTED, num_partitions=2)
    (storage / "0").write_text("somebody's")
    assert invoke("recover", storage, "--yes").status == 0
    index_of(storage, 1).unlink()
    assert invoke("recover", storage, "--yes").status == 0
    assert index_of(storage, 1).exists()
    assert (storage / "0").read_text() == "somebody's"
