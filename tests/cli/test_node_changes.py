"""``waltzctl node`` changes a node only as it was shown and agreed to, and says what it did."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import warm_start
from tests.builders import build_directory, digest, make_records
from tests.cli.damage import damage_record, segment_of
from tests.cli.nodes import PATIENCE, Served, serving
from tests.cli.running import Answer, command_line, environment, invoke, on_terminal, run
from tests.cli.test_schemas import VALIDATORS
from waltzctl.engine.client import change_plan
from waltzctl.engine.client.storage_client import StorageClient
from waltzctl.engine.errors import RemoteError
from waltzctl.engine.inspect.verification import VerifyOptions
from waltzctl.engine.inspect.verify import verify
from waltzctl.formats.wire.failure import FailureCode

SERVE = ("--port", 0, "--http-port", "off", "--plaintext")


@pytest.fixture
def storage(tmp_path: Path) -> Path:
    return build_directory(tmp_path / "storage", {0: 30, 1: 10}, num_partitions=4)


@pytest.fixture
def served(storage: Path) -> Iterator[Served]:
    with serving(storage, *SERVE) as node:
        yield node


def address(served: Served) -> str:
    return f"127.0.0.1:{served.ready['admin_port']}"


def words_for(served: Served, *words: object) -> tuple[object, ...]:
    return ("node", address(served), "--data-port", served.ready["port"], "--plaintext", *words)


def node(served: Served, *words: object, status: int = 0) -> list[dict[str, Any]]:
    answer = invoke(*words_for(served, *words, "--format", "ndjson"))
    assert answer.status == status, answer.err
    for shown in answer.objects:
        VALIDATORS[shown["type"]].validate(shown)
    assert all(one["exit_status"] == status for one in answer.only("error"))
    return [one for one in answer.objects if one["type"] != "error"]


def listed(served: Served) -> dict[int, bool]:
    return {one["partition"]: one["available"] for one in node(served, "list")}


def test_without_a_yes_nothing_is_done(served: Served, storage: Path) -> None:
    before = digest(storage)
    for words in (
        ["add-partition", "--partition", 2],
        ["remove-partition", "--partition", 0],
        ["remove-partition", "--partition", 0, "--delete-storage-files"],
        ["availability", "--partition", 0, "--online", "false"],
    ):
        (plan,) = node(served, *words, status=13)
        assert (plan["type"], len(plan["steps"])) == ("plan", 1)
        (plan_again,) = node(served, *words, "--dry-run")
        assert plan_again == plan
    assert digest(storage) == before
    assert listed(served) == {0: True, 1: True}


def test_add_and_remove(served: Served, storage: Path) -> None:
    (result,) = node(served, "add-partition", "--partition", "1-3", "--yes")
    assert (result["applied"], result["status"], result["exit_status"]) == (True, "clean", 0)
    assert listed(served) == {0: True, 1: True, 2: True, 3: True}
    (result,) = node(served, "add-partition", "--partition", "1-3", "--yes")
    assert result["applied"] is False
    (result,) = node(served, "remove-partition", "--partition", "0,2", "--yes")
    assert list((storage / "0").glob("*.seg")), "files are kept unless told otherwise"
    (plan,) = node(served, "remove-partition", "--partition", "1", "--delete-storage-files", "--dry-run")
    (step,) = plan["steps"]
    assert (step["loses_data"], step["from_transaction_id"], step["to_transaction_id"]) == (True, 0, 9)
    assert plan["arguments"]["allow_data_loss"] is True
    (result,) = node(served, "remove-partition", "--partition", "1", "--delete-storage-files", "--yes")
    assert result["plan_hash"] == plan["hash"]
    assert not list((storage / "1").glob("*"))
    assert listed(served) == {3: True}
    assert node(served, "add-partition", "--partition", 9, "--yes", status=2) == []


@pytest.mark.turns(10)
def test_availability(served: Served) -> None:
    node(served, "availability", "--partition", "0-1", "--online", "false", "--yes")
    assert listed(served) == {0: False, 1: False}
    (last,) = node(served, "max-transaction-id", "--partition", 0, "--offline")
    assert last["max_transaction_id"] == 29
    node(served, "max-transaction-id", "--partition", 0, status=13)
    node(served, "availability", "--partition", 1, "--online", "true", "--yes")
    assert listed(served) == {0: False, 1: True}
    node(served, "availability", "--partition", 1, "--writable", "off", "--yes")
    (last,) = node(served, "max-transaction-id", "--partition", 1)
    assert last["max_transaction_id"] == 9, "reads go on"
    node(served, "availability", "--partition", 1, "--writable", "on", "--readable", "off", "--yes")
    node(served, "max-transaction-id", "--partition", 1, status=13)
    for wrong in (
        [],
        ["--online", "true", "--readable", "on"],
        ["--online", "maybe"],
        ["--online", "true", "--yes", "--dry-run"],
    ):
        assert invoke(*words_for(served, "availability", "--partition", 0, *wrong)).status == 2


@pytest.mark.turns(10)
def test_sync_with_a_file(served: Served, tmp_path: Path) -> None:
    """T10: what would be taken away is shown, and not done unasked."""
    assignment = tmp_path / "assignment.json"
    assignment.write_text(json.dumps({address(served): [1, 2], "10.0.0.1:5": [0]}))
    words = ("sync-partitions", "--assignment", assignment)
    (plan,) = node(served, *words, status=13)
    assert [(step["action"], step["partition"]) for step in plan["steps"]] == [("assign", 2), ("unassign", 0)]
    assert "session 3, low-water mark 14" in plan["steps"][1]["reason"]
    node(served, *words, "--only-add", "--yes")
    assert listed(served) == {0: True, 1: True, 2: True}
    node(served, *words, "--yes")
    assert listed(served) == {1: True, 2: True}
    (result,) = node(served, *words)
    assert result["applied"] is False

    answer = invoke(*words_for(served, *words, "--as", "elsewhere:1"))
    assert answer.status == 2
    assert "no entry for elsewhere:1" in answer.err
    node(served, *words, "--as", "10.0.0.1:5", "--dry-run")
    for wrong in (
        ["sync-partitions"],
        ["sync-partitions", "--assignment", assignment, "--zookeeper", "h:1", "--root", "/w"],
        ["sync-partitions", "--zookeeper", "h:1"],
        ["sync-partitions", "--root", "/w"],
    ):
        assert invoke(*words_for(served, *wrong)).status == 2
    answer = invoke(
        *words_for(served, "sync-partitions", "--zookeeper", "127.0.0.1:1", "--root", "/w", "--timeout", "500ms")
    )
    assert answer.status == 14
    assert "ZooKeeper at 127.0.0.1:1" in answer.err


@pytest.mark.parametrize("anew", [[2, 1], [0, 1, 2]], ids=["the same", "another"])
def test_an_assignment_that_was_changed_since_the_plan_was_shown_is_not_followed(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, anew: list[int]
) -> None:
    """Somebody gave partition 0 back to the node while the other one was asked: it was taken away all the same."""
    assignment, apply = tmp_path / "assignment.json", change_plan.apply_plan
    assignment.write_text(json.dumps({address(served): [1, 2]}))

    async def later(*arguments: Any) -> None:
        assignment.write_text(json.dumps({address(served): anew}))
        await apply(*arguments)

    monkeypatch.setattr(change_plan, "apply_plan", later)
    answer = invoke(*words_for(served, "sync-partitions", "--assignment", assignment, "--yes"))
    changed = 0 in anew
    assert answer.status == (13 if changed else 0)
    assert ("the assignment has changed since the plan was made; nothing was done" in answer.err) == changed
    assert listed(served) == dict.fromkeys((0, 1) if changed else (1, 2), True)


def test_an_assignment_from_a_pipe_is_read_once(served: Served) -> None:
    """As the shell's <(...) gives it: read once more it is empty, and whoever opens a FIFO again waits for a writer."""
    reading, writing = os.pipe()
    os.write(writing, json.dumps({address(served): [1, 2]}).encode())
    os.close(writing)
    try:
        node(served, "sync-partitions", "--assignment", f"/dev/fd/{reading}", "--yes")
    finally:
        os.close(reading)
    assert listed(served) == {1: True, 2: True}


def test_an_assignment_that_cannot_be_read_is_told_before_the_node_is_asked(tmp_path: Path) -> None:
    answer = invoke("node", "127.0.0.1:2", "--plaintext", "sync-partitions", "--assignment", tmp_path / "none", "--yes")
    assert "127.0.0.1:2" not in answer.err
    assert str(tmp_path / "none") in answer.err


@pytest.mark.turns(8)
@pytest.mark.parametrize("code", [FailureCode.ONLINE, FailureCode.SESSION_CHANGED])
def test_a_copy_whose_destination_somebody_switches_on_does_not_say_that_it_is_off(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: FailureCode
) -> None:
    source = build_directory(tmp_path / "source", {1: 30}, num_partitions=4)

    async def fails(*_: object, **__: object) -> int:
        raise RemoteError("n:1", "no", code=code)

    monkeypatch.setattr(StorageClient, "append", fails)
    with serving(source, *SERVE) as other:
        words = ("recover-partition", "--partition", 1, "--from", address(other), "--offline-first", "--yes")
        answer = invoke(*words_for(served, *words))
    assert answer.status == 13
    online = code is FailureCode.ONLINE
    assert ("was switched on by somebody else, and keeps what is durable, up to transaction 4" in answer.err) == online
    assert ("is offline and keeps what is durable, up to transaction 4" in answer.err) != online


def test_on_a_terminal_the_partition_number_is_the_confirmation(served: Served) -> None:
    words = words_for(served, "availability", "--partition", "0", "--online", "false")
    answer = on_terminal(*words, typed=b"1\n", after=b"leave: ")
    assert answer.status == 13
    assert "not confirmed, nothing was modified" in answer.out
    assert listed(served)[0] is True
    answer = on_terminal(*words, typed=b"0\n", after=b"leave: ")
    assert answer.status == 0
    assert "Plan of availability" in answer.out
    assert "Type the partition number (0) to apply the plan" in answer.out
    assert "DONE  Partition 0 of" in answer.out
    assert listed(served)[0] is False


def test_a_node_that_changed_while_a_person_thought_is_left_alone(served: Served) -> None:
    """The plan that was agreed to is the plan that is done, or none is."""
    words = words_for(served, "remove-partition", "--partition", "0,2", "--delete-storage-files")
    leader, follower = pty.openpty()
    process = warm_start.Popen(
        command_line(*words), stdin=follower, stdout=follower, stderr=follower, env=environment()
    )
    os.close(follower)
    shown = b""
    while b"leave: " not in shown:
        shown += os.read(leader, 65536)
    node(served, "add-partition", "--partition", 2, "--yes")
    os.write(leader, b"0\n")
    with contextlib.suppress(OSError):  # how Linux reports the end of a terminal's other side
        while part := os.read(leader, 65536):
            shown += part
    os.close(leader)
    assert process.wait(PATIENCE) == 13
    assert b"the node has changed since the plan was made" in shown
    assert listed(served) == {0: True, 1: True, 2: True}


# --- recover-partition --------------------------------------------------------------------------------------------------


@pytest.fixture
def behind(tmp_path: Path) -> Iterator[Served]:
    """A second node, whose partition 0 ends with transaction 9."""
    storage = build_directory(
        tmp_path / "behind", {0: [make_records(30)[:10]]}, num_partitions=4, local_low_water_mark=9
    )
    with serving(storage, *SERVE) as other:
        yield other


def recover(served: Served, behind: Served, *words: object, status: int = 0) -> list[dict[str, Any]]:
    return node(behind, "recover-partition", "--partition", 0, "--from", address(served), *words, status=status)


def test_recover_partition(served: Served, behind: Served, tmp_path: Path) -> None:
    assert recover(served, behind, "--yes", status=13) == []
    (plan,) = recover(served, behind, "--offline-first", "--dry-run")
    assert [(step["action"], step["from_transaction_id"], step["to_transaction_id"]) for step in plan["steps"]] == [
        ("switch-off", None, None), ("copy", 10, 14), ("switch-on", None, None)]  # fmt: skip
    assert plan["arguments"]["replicas"] == [f"waltz://{address(served)}"]
    (result,) = recover(served, behind, "--offline-first", "--yes", "--compare", "all")
    assert (result["applied"], result["exit_status"], result["plan_hash"]) == (True, 0, plan["hash"])
    assert listed(behind) == {0: True}
    shown = node(behind, "records", "--partition", 0)
    assert shown == node(served, "records", "--partition", 0, "--to", 14)
    (result,) = recover(served, behind, "--offline-first")
    assert result["applied"] is False
    behind.stop()
    *findings, _ = verify([tmp_path / "behind"], VerifyOptions())
    assert findings == []


def test_recover_partition_for_people(served: Served, behind: Served) -> None:
    answer = on_terminal(
        *words_for(behind, "recover-partition", "--partition", 0, "--from", address(served), "--offline-first"),
        typed=b"0\n", after=b"leave: ",
    )  # fmt: skip
    assert answer.status == 0
    assert "DONE  5 records" in answer.out
    assert "the last one is transaction 14" in answer.out


def test_replicas_that_differ_are_not_put_to_use(served: Served, tmp_path: Path) -> None:
    wrong = make_records(10, seed=4)[:5] + make_records(10)[5:]
    storage = build_directory(tmp_path / "wrong", {0: [wrong]}, num_partitions=4, local_low_water_mark=9)
    with serving(storage, *SERVE) as other:
        (result,) = recover(served, other, "--offline-first", "--yes", "--compare", "all", status=4)
        assert result["status"] == "damaged"
        assert {finding["code"] for finding in result["findings"]} == {"replica-differs"}
        assert {finding["transaction_id"] for finding in result["findings"]} <= set(range(5))
        assert result["findings"]
        assert listed(other) == {0: False}


def test_what_recover_partition_cannot_mean(served: Served, behind: Served) -> None:
    assert recover(served, behind, "--batch", 0, status=2) == []
    assert recover(served, behind, "--batch-size", "much", status=2) == []
    assert recover(behind, behind, "--yes", status=2) == []
    assert node(behind, "recover-partition", "--partition", 1, "--from", address(served), "--yes", status=2) == []
    answer = invoke(*words_for(behind, "recover-partition", "--partition", 0, "--from", "127.0.0.1:1", "--yes"))
    assert answer.status == 14


def test_a_quarantined_partition_is_refused_with_the_commands_that_help(served: Served, tmp_path: Path) -> None:
    """Both ways are commands that can be run as they are printed."""
    storage = build_directory(tmp_path / "behind", {0: 30}, num_partitions=4, local_low_water_mark=29)
    damage_record(segment_of(storage), 12)
    with serving(storage, *SERVE) as other:
        (one,) = node(other, "list")
        assert one["out_of_service"] == "quarantined"
        recover = ("recover-partition", "--partition", 0, "--from", address(served), "--offline-first", "--yes")
        answer = invoke(*words_for(other, *recover))
        assert answer.status == 4
        assert "partition 0 is quarantined" in answer.err
        printed = [line.split() for line in answer.err.splitlines() if line.strip().startswith("waltzctl ")]
        offline, *online = printed
        assert offline == ["waltzctl", "recover", "PATH", "--partition", "0", "--from", "REPLICA"]
        for words, action in zip(online, ("remove-partition", "add-partition", "recover-partition"), strict=True):
            assert words[:3] == ["waltzctl", "node", address(other)]
            assert action in words
            assert invoke(*words[1:], "--yes").status == 0
        (one,) = node(other, "list")
        assert (one["out_of_service"], one["last_transaction_id"]) == (None, 14)
        assert node(other, "records", "--partition", 0) == node(served, "records", "--partition", 0, "--to", 14)


@pytest.mark.turns(16)
def test_ctrl_c_leaves_a_copy_that_the_same_command_finishes(tmp_path: Path) -> None:
    """Nothing that was copied is lost, and stderr says how to go on."""
    made = make_records(20_000, size=100)
    source = build_directory(tmp_path / "source", {0: [made]}, local_low_water_mark=19_999)
    target = build_directory(tmp_path / "target", {0: 0})
    with serving(source, *SERVE) as one, serving(target, *SERVE) as other:
        words = words_for(
            other, "recover-partition", "--partition", 0, "--from", address(one), "--offline-first", "--batch", 20, "--yes", "-v",
        )  # fmt: skip
        process = warm_start.Popen(
            command_line(*words),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment(),
        )
        assert process.stderr is not None
        for line in process.stderr:
            if b"to go through" in line:
                break
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=PATIENCE)
        assert process.returncode == 130
        assert b"the same command goes on from there" in err
        assert b"Traceback" not in err
        assert listed(other) == {0: False}
        for _ in range(2):  # the second finds nothing to do
            again = invoke(*words, "--compare", "all")
            assert again.status == 0
            assert listed(other) == {0: False}, "why it was switched off is not known any more"
            (line,) = [one for one in again.err.splitlines() if "switch it on with" in one]
        _, printed = line.split("switch it on with waltzctl ")
        assert invoke(*printed.split()[:2], "--plaintext", *printed.split()[2:], "--yes").status == 0
        assert listed(other) == {0: True}
        node(other, "availability", "--partition", 0, "--online", "false", "--yes")
        (last,) = node(other, "max-transaction-id", "--partition", 0, "--offline")
        assert last["max_transaction_id"] == 19_999
        other.stop()
    *findings, _ = verify([target], VerifyOptions())
    assert findings == []


def test_ctrl_c_shows_the_summary_of_what_was_verified(tmp_path: Path) -> None:
    storage = build_directory(tmp_path / "storage", {0: 5000})
    with serving(storage, *SERVE) as one:
        words = ("verify", f"waltz://{address(one)}", "--plaintext", "--limit-rate", "10KiB", "--format", "ndjson")
        process = warm_start.Popen(
            command_line(*words),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment(),
        )
        assert process.stdout is not None
        first = json.loads(process.stdout.readline())
        assert first["code"] == "seen-from-outside"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=PATIENCE)
        (summary,) = [json.loads(line) for line in out.splitlines()]
        assert process.returncode == 130
        assert (summary["type"], summary["complete"], summary["exit_status"]) == ("verify-summary", False, 130)
        assert b"Traceback" not in err


def test_quiet_says_nothing_on_success(served: Served) -> None:
    answer: Answer = run(*words_for(served, "add-partition", "--partition", 2, "--yes", "-q"))
    assert (answer.status, answer.out, answer.err) == (0, "", "")
