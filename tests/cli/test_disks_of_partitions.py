"""Partitions on disks of their own that do not answer: compare and recover go on with the others.

What a replica holds whose directory cannot be listed is unknown: it is told, has no vote, and nothing is planned for it.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from io import StringIO
from pathlib import Path, PurePath
from typing import Any

import pytest

from tests.backup.vaults import settle
from tests.builders import build_directory, digest
from tests.cli.damage import damage_record, index_of, segment_of
from tests.cli.running import Answer, invoke
from waltzctl.commands.compare import _Report
from waltzctl.console import Console
from waltzctl.engine.compare import compare, directories
from waltzctl.engine.compare.comparison import PartitionComparison
from waltzctl.engine.findings import Code, make_finding
from waltzctl.engine.quorum.vote import DAMAGED, Ballot, Run, decide
from waltzctl.engine.repair.plan import Repair, bind, note
from waltzctl.engine.storage.assignment import put_aside_path
from waltzctl.engine.storage.loss_ledger import ledger_path
from waltzctl.formats.control import CONTROL_FILE_NAME, Layout, decode_control
from waltzctl.options import Format
from waltzctl.render.progress_bar import NoProgress

pytestmark = pytest.mark.turns(12)

PARTITIONS = (0, 1, 2)
MARK = 9
CALLS = {
    "list": ("listdir", "scandir"),
    "stat": ("stat", "lstat"),
    "open": ("open",),
    "read": ("pread", "preadv"),
    "every": ("listdir", "scandir", "stat", "lstat", "open", "pread", "preadv"),
}
"""The system calls that fail, by the name of a test's case."""
UNLISTED = ("list", "every")
"""The cases in which the directory itself cannot be listed."""


def fail(
    patch: pytest.MonkeyPatch,
    place: Path,
    calls: Sequence[str] = CALLS["every"],
    *,
    first: int = 0,
    times: int = 1 << 30,
    number: int = errno.EIO,
) -> list[int]:
    """These calls on `place`, and on what lies in it, fail: `times` of them from number `first` on.  Their count is returned."""
    gone, count = os.fspath(place), [0]

    def failing(call: Any) -> Any:
        def instead(path: Any = ".", *arguments: Any, **named: Any) -> Any:
            where = os.readlink(f"/proc/self/fd/{path}") if isinstance(path, int) else os.fspath(path)
            if f"{where}/".startswith(f"{gone}/"):
                count[0] += 1
                if first < count[0] <= first + times:
                    raise OSError(number, os.strerror(number), where)
            return call(path, *arguments, **named)

        return instead

    for name in calls:
        patch.setattr(os, name, failing(getattr(os, name)))
    return count


def of_partition(state: dict[str, str], partition: int) -> dict[str, str]:
    return {name: one for name, one in state.items() if name.startswith(f"{partition}/")}


def others_than(partition: int) -> list[int]:
    return [one for one in PARTITIONS if one != partition]


def ranges(numbers: Sequence[int]) -> str:
    return ",".join(map(str, numbers))


@pytest.fixture
def storage(tmp_path: Path) -> Path:
    """In each partition an index is missing."""
    found = settle(build_directory(tmp_path / "a", dict.fromkeys(PARTITIONS, 60), local_low_water_mark=MARK))
    for number in PARTITIONS:
        index_of(found, number, 50).unlink()
    return found


@pytest.mark.parametrize("output", ["ndjson", "json", "plain"])
@pytest.mark.parametrize("command", ["recover", "rebuild-index"])
@pytest.mark.parametrize("calls", CALLS)
@pytest.mark.parametrize("dead", PARTITIONS)
def test_the_other_partitions_of_a_directory_are_mended(
    storage: Path, monkeypatch: pytest.MonkeyPatch, dead: int, calls: str, command: str, output: str
) -> None:
    before = digest(storage)
    with monkeypatch.context() as patch:
        fail(patch, storage / str(dead), CALLS[calls])
        unread = invoke("verify", storage, "--partition", dead).status
        assert unread == (4 if calls == "stat" else 14)
        planned = invoke(command, storage, "--dry-run", "--format", output)
        assert planned.status == unread
        assert digest_outside(storage) == before
        done = invoke(command, storage, "--yes", "--format", output)
        assert done.status == 5
        again = invoke(command, storage, "--yes", "--format", output)
        assert again.status == unread
        for one in (planned, done, again):
            assert (str(storage / str(dead)) in one.out, one.err) == (True, "")
        if calls in UNLISTED:
            assert (
                f"nothing is planned for the partition; run {command} for it when its disk answers again" in planned.out
            )
    after = digest(storage)
    assert of_partition(after, dead) == of_partition(before, dead)
    assert all(index_of(storage, one, 50).exists() == (one != dead) for one in PARTITIONS)
    assert invoke(command, storage, "--yes").status == 0
    assert invoke("verify", storage).status == 0


def test_a_directory_of_a_number_that_no_partition_has_is_left_out(
    storage: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (storage / "9").mkdir()
    fail(monkeypatch, storage / "9")
    for command in ("recover", "rebuild-index"):
        assert invoke(command, storage, "--yes").status in (0, 14)
    assert all(index_of(storage, one, 50).exists() for one in PARTITIONS)


def digest_outside(storage: Path) -> dict[str, str]:
    """`digest` with the system calls as they are, whatever a test has made of them."""
    with pytest.MonkeyPatch.context() as patch:
        for name in CALLS["every"]:
            patch.setattr(os, name, ORIGINAL[name])
        return digest(storage)


ORIGINAL = {name: getattr(os, name) for name in CALLS["every"]}


def test_a_plan_holds_when_the_disk_answers_again_and_when_it_goes_meanwhile(
    storage: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is bound to the partitions for which something is planned, in the same command; a file's plan is made again."""
    plan = tmp_path / "plan.json"
    with monkeypatch.context() as patch:
        fail(patch, storage / "1")
        plan.write_text(invoke("recover", storage, "--dry-run", "--format", "json").out)
        refused = invoke("recover", storage, "--partition", 1, "--yes", "--format", "ndjson")
        assert (refused.status, [one["code"] for one in refused.only("result")[0]["findings"]]) == (14, ["read-error"])
    stale = invoke("recover", storage, "--plan", plan)  # there is more to plan now
    assert stale.status == 13
    assert not index_of(storage, 0, 50).exists()
    with monkeypatch.context() as patch:
        fail(patch, storage / "1")
        assert invoke("recover", storage, "--plan", plan).status == 5
    assert [index_of(storage, one, 50).exists() for one in PARTITIONS] == [True, False, True]


@pytest.mark.parametrize("calls", ["list", "every"])
def test_wherever_a_disk_begins_to_fail_the_others_are_recovered_or_nothing_is_done(
    storage: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, calls: str
) -> None:
    """From one call on, or in one call alone."""
    statuses = set()
    for times in (1, 1 << 30):
        count = [1]
        first = 0
        while first < count[0] and first < 60:
            copy = Path(shutil.copytree(storage, tmp_path / f"copy-{times}-{first}"))
            before = digest(copy)
            with monkeypatch.context() as patch:
                count = fail(patch, copy / "1", CALLS[calls], first=first, times=times)
                answer = invoke("recover", copy, "--yes", "--format", "ndjson")
            after = digest(copy)
            statuses.add(answer.status)
            assert answer.status in (0, 5, 13, 14)
            if answer.status in (13, 14) and not answer.only("result"):
                assert {name: after[name] for name in before} == before
                assert not index_of(copy, 0, 50).exists()
            else:
                assert index_of(copy, 0, 50).exists()
                assert index_of(copy, 2, 50).exists()
            assert {name: after[name] for name in before if name.startswith("1/")} == of_partition(before, 1)
            assert invoke("recover", copy, "--yes").status == 0
            shutil.rmtree(copy)
            first += 1 if first < 12 else 5
    assert {5, 14} & statuses


def without_valid_structs(storage: Path, *partitions: int) -> Path:
    """Damage both structs of these partitions; returns the control file's path."""
    path = storage / CONTROL_FILE_NAME
    raw = bytearray(path.read_bytes())
    layout = decode_control(bytes(raw)).layout
    for partition in partitions:
        for number in (1, 2):
            raw[layout.struct_offset(partition, number) + 4] ^= 1
    path.write_bytes(raw)
    return path


def test_a_pair_of_which_neither_is_valid_is_not_begun_anew_beside_what_cannot_be_listed(
    storage: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The partition was no longer assigned then, and what lay in it was nobody's."""
    path = without_valid_structs(storage, 1, 2)
    with monkeypatch.context() as patch:
        fail(patch, storage / "1")
        shown = invoke("recover", storage, "--allow-data-loss", "--dry-run", "--format", "ndjson")
        (plan,) = shown.only("plan")
        assert {one["partition"] for one in plan["steps"] if one["action"] == "reset-control-pair"} == {2}
        assert {one["code"] for one in plan["undecided"] if one["partition"] == 1} == {
            "control-pair-checksum",
            "read-error",
        }
    assert invoke("recover", storage, "--allow-data-loss", "--yes").status == 0
    assert all(one.assigned for info in decode_control(path.read_bytes()).partitions for one in info.structs)


def test_a_partition_whose_files_cannot_be_examined_stays_assigned_when_its_pair_is_begun_anew(
    storage: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their names are those of segments: verify said of the partition, once its disk answered, that all is well."""
    path = without_valid_structs(storage, 1)
    with monkeypatch.context() as patch:
        fail(patch, storage / "1", CALLS["stat"])
        assert invoke("recover", storage, "--allow-data-loss", "--yes").status == 5
    assert all(one.assigned for one in decode_control(path.read_bytes()).partitions[1].structs)


def test_a_partition_whose_files_have_other_names_stays_assigned_when_its_pair_is_begun_anew(storage: Path) -> None:
    """The same repair gives them their names again: the partition was whole, and no longer this node's."""
    path = storage / CONTROL_FILE_NAME
    control = decode_control(path.read_bytes())
    raw = bytearray(path.read_bytes())
    for number in (1, 2):
        raw[control.layout.struct_offset(1, number) + 4] ^= 1
    path.write_bytes(raw)
    for one in [*(storage / "1").iterdir()]:
        one.rename(one.with_name(f"x{one.name}"))
    assert invoke("recover", storage, "--allow-data-loss", "--yes").status == 0
    assert segment_of(storage, 1, 50).exists()
    assert all(one.assigned for one in decode_control(path.read_bytes()).partitions[1].structs)


def test_a_pair_of_which_neither_is_valid_is_not_begun_anew_while_the_disk_is_not_mounted(
    storage: Path, tmp_path: Path
) -> None:
    """The partition's directory is a link that leads nowhere: it was no longer this node's, and verify ended with 0."""
    path, place = storage / CONTROL_FILE_NAME, tmp_path / "disk"
    (storage / "1").rename(place)
    (storage / "1").symlink_to(place)
    control = decode_control(path.read_bytes())
    raw = bytearray(path.read_bytes())
    for number in (1, 2):
        raw[control.layout.struct_offset(1, number) + 4] ^= 1
    path.write_bytes(raw)
    place.rename(tmp_path / "not-mounted")
    assert invoke("recover", storage, "--allow-data-loss", "--yes").status == 5
    assert path.read_bytes() == raw
    assert invoke("recover", storage, "--allow-data-loss", "--yes").status == 4
    (storage / "1").unlink()
    (tmp_path / "not-mounted").rename(storage / "1")
    assert invoke("recover", storage, "--allow-data-loss", "--yes").status == 0
    assert all(one.assigned for one in decode_control(path.read_bytes()).partitions[1].structs)


@pytest.mark.parametrize("layout", Layout)
def test_a_control_file_is_not_cut_to_the_partitions_whose_disks_are_mounted(tmp_path: Path, layout: Layout) -> None:
    """Its end is missing: the last partition's link tells so, whatever it leads to.  The header forgot that partition."""
    storage = settle(build_directory(tmp_path / "a", dict.fromkeys(PARTITIONS, 60), layout=layout))
    (storage / "2").rename(tmp_path / "disk")
    (storage / "2").symlink_to(tmp_path / "not-mounted")
    path = storage / CONTROL_FILE_NAME
    path.write_bytes(path.read_bytes()[: layout.file_size(2)])
    before = digest(storage)
    answer = invoke("recover", storage, "--yes")
    assert (answer.status, "directory of partition 2" in answer.out) == (4, True)
    assert digest(storage) == before
    (storage / "2").unlink()
    assert invoke("recover", storage, "--yes").status == 0


@pytest.mark.parametrize("calls", UNLISTED)
@pytest.mark.parametrize("command", ["recover", "compare", "verify", "status"])
def test_without_a_control_file_the_partitions_that_are_listed_tell_what_it_is(
    storage: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, calls: str
) -> None:
    other = Path(shutil.copytree(storage, tmp_path / "b"))
    (storage / CONTROL_FILE_NAME).unlink()
    fail(monkeypatch, storage / "1", CALLS[calls])
    answer = invoke(command, storage, *([other] if command == "compare" else []), "--format", "ndjson")
    assert "control-file-missing" in answer.out
    fail(monkeypatch, storage / "0", CALLS[calls])
    fail(monkeypatch, storage / "2", CALLS[calls])
    answer = invoke(command, storage, *([other] if command == "compare" else []))
    assert (answer.status, "cannot list" in answer.err) == (14, True)


def replicas_of(
    path: Path, *ends: int, partitions: Sequence[int] = PARTITIONS, layout: Layout = Layout.RELEASED
) -> list[Path]:
    """Replicas that hold so many transactions in each partition."""
    return [
        settle(
            build_directory(
                path / f"n{number}", dict.fromkeys(partitions, end), local_low_water_mark=MARK, layout=layout
            )
        )
        for number, end in enumerate(ends)
    ]


def without_time(comparisons: list[dict[str, Any]], partitions: Sequence[int]) -> list[dict[str, Any]]:
    return [one for one in comparisons if one["partition"] in partitions]


@pytest.mark.parametrize("output", ["ndjson", "table"])
@pytest.mark.parametrize("calls", CALLS)
@pytest.mark.parametrize("replica", [0, 1, 2])
@pytest.mark.parametrize("dead", [0, 2])
def test_the_other_partitions_of_replicas_are_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dead: int, replica: int, calls: str, output: str
) -> None:
    replicas = replicas_of(tmp_path, 60, 60, 55)
    damage_record(segment_of(replicas[0], 1), 20)
    expected = invoke("compare", *replicas, "--format", "ndjson").only("partition-comparison")
    with monkeypatch.context() as patch:
        fail(patch, replicas[replica] / str(dead), CALLS[calls])
        answer = invoke("compare", *replicas, "--format", output)
    assert answer.status == (3 if calls == "stat" else 14)
    assert answer.err == ""
    if output == "table":
        said = " ".join(answer.out.split())
        assert ("compare again when its disk answers" in said) == (calls in UNLISTED)
        assert (f"DAMAGED {replicas[replica]} cannot be listed" in said) == (calls in UNLISTED)
        assert ("Not everything could be read." in said) == (answer.status == 14)
        return
    assert str(replicas[replica] / str(dead)) in answer.out
    found = answer.only("partition-comparison")
    assert without_time(found, others_than(dead)) == without_time(expected, others_than(dead))
    own = found[dead]["replicas"][replica]
    assert own["state"] == "damaged"
    assert (own["unread"], own["votes"]) == ((True, False) if calls in UNLISTED else (False, True))
    assert [one["cut_after"] for one in found[dead]["replicas"]] == [None] * 3
    (summary,) = answer.only("compare-summary")
    assert summary["exit_status"] == answer.status


@pytest.mark.parametrize("options", [("--dry-run",), ("--yes",), ("--yes", "--allow-data-loss")])
@pytest.mark.parametrize("calls", CALLS)
@pytest.mark.parametrize("replica", [0, 1, 2])
def test_the_other_partitions_of_replicas_are_recovered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, replica: int, calls: str, options: tuple[str, ...]
) -> None:
    """In the one that cannot be read, the last of the readable replicas is the only one that is known to hold 50 to 59."""
    dead, replicas = 1, replicas_of(tmp_path, 60, 60, 60)
    shorter, longer = (one for one in range(3) if one != replica)
    for one in (segment_of(replicas[shorter], dead, 50), index_of(replicas[shorter], dead, 50)):
        one.unlink()
    damage_record(segment_of(replicas[longer], 0), 20)
    index_of(replicas[shorter], 2, 0).unlink()
    before = [digest(one) for one in replicas]
    with monkeypatch.context() as patch:
        fail(patch, replicas[replica] / str(dead), CALLS[calls])
        answer = invoke("recover", "--replicas", *replicas, *options, "--format", "ndjson")
    assert answer.status == (4 if calls == "stat" or "--dry-run" in options else 14)  # as verify of the damaged one
    after = [digest(one) for one in replicas]
    for one, then in zip(after, before, strict=True):
        assert of_partition(one, dead) == of_partition(then, dead)
    steps = [step["partition"] for plan in answer.only("plan") for step in plan["steps"]]
    assert dead not in steps
    if "--yes" not in options:
        assert (set(steps), after) == ({0, 2}, before)
        return
    for number in (0, 2):
        assert [invoke("verify", one, "--partition", number).status for one in replicas] == [0] * 3
    whole = invoke("recover", "--replicas", *replicas, "--yes", "--format", "ndjson")
    states = [[one["state"] for one in found["replicas"]] for found in whole.only("partition-comparison")]
    assert (whole.status, states[0], states[dead][shorter]) == (0, ["equal"] * 3, "behind")


@pytest.mark.parametrize(
    ("count", "holders", "cut"), [(3, 1, False), (5, 1, True), (5, 2, False), (5, 3, False), (2, 1, False)]
)
@pytest.mark.parametrize("calls", UNLISTED)
def test_what_a_quorum_may_have_acknowledged_with_the_one_that_cannot_be_read_is_not_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int, holders: int, cut: bool, calls: str
) -> None:
    """One step to each side: with the unread replica so many are a quorum, or one less is."""
    replicas = replicas_of(tmp_path, 60, *[60] * holders, *[50] * (count - 1 - holders), partitions=[0])
    before = [digest(one) for one in replicas]
    with monkeypatch.context() as patch:
        fail(patch, replicas[0] / "0", CALLS[calls])
        compared = invoke("compare", *replicas, "--plan-dir", tmp_path / "plans", "--format", "ndjson")
        (found,) = compared.only("partition-comparison")
        assert {one["cut_after"] for one in found["replicas"][1:]} == ({49, None} if cut else {None})
        assert found["replicas"][0]["cut_after"] is None
        done = invoke("recover", "--replicas", *replicas, "--yes", "--format", "ndjson")
    assert ((tmp_path / "plans").exists(), done.status) == (cut, 14 if count > 2 else 4)
    after = [digest(one) for one in replicas]
    assert after[0] == before[0]
    assert (of_partition(after[1], 0) != of_partition(before[1], 0)) == cut
    assert [of_partition(one, 0) for one in after[2:]] == [of_partition(one, 0) for one in before[2:]]


@pytest.mark.parametrize("back", [False, True])
def test_a_plan_of_a_comparison_holds_whether_the_disk_answers_again_or_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, back: bool
) -> None:
    replicas = replicas_of(tmp_path, 60, 60, 60)
    for number in PARTITIONS:
        index_of(replicas[0], number).unlink()
    with monkeypatch.context() as patch:
        fail(patch, replicas[0] / "1")
        assert invoke("compare", *replicas, "--plan-dir", tmp_path / "plans").status == 14
        (plan,) = (tmp_path / "plans").iterdir()
        if not back:
            assert invoke("recover", replicas[0], "--plan", plan).status == 0
    if back:
        assert invoke("recover", replicas[0], "--plan", plan).status == 0
    assert [index_of(replicas[0], one).exists() for one in PARTITIONS] == [True, False, True]


@pytest.mark.parametrize("output", ["json", "plain"])
def test_what_could_not_be_read_is_told_where_no_replica_needs_a_repair(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, output: str
) -> None:
    replicas = replicas_of(tmp_path, 60, 60, 60)
    fail(monkeypatch, replicas[2] / "1")
    answer = invoke("recover", "--replicas", *replicas, "--yes", "--format", output)
    assert (answer.status, answer.err) == (14, "")
    if output == "json":
        told, *compared = json.loads(answer.out)
        assert (told["code"], told["path"], told["partition"]) == ("read-error", str(replicas[2] / "1"), 1)
        assert [[one["unread"] for one in found["replicas"]] for found in compared] == [
            [False, False, number == 1] for number in PARTITIONS
        ]
    else:
        assert "NO REPLICA THAT COULD BE READ NEEDS A REPAIR." in answer.out
        assert "compare again when its disk answers" in answer.out


def test_a_replica_of_which_only_the_directory_tells_is_one_though_that_cannot_be_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The documented layout has no flag, and its session has set no mark yet: of two replicas the longer one was cut."""
    replicas = [
        settle(
            build_directory(
                tmp_path / f"n{end}", {0: end}, session=-1, local_low_water_mark=-1, layout=Layout.DOCUMENTED
            )
        )
        for end in (60, 50, 61)
    ]
    fail(monkeypatch, replicas[2] / "0")
    answer = invoke("compare", *replicas, "--format", "ndjson")
    (found,) = answer.only("partition-comparison")
    assert [one["cut_after"] for one in found["replicas"]] == [None] * 3
    assert (found["clean_to"], answer.status) == (59, 14)


@pytest.mark.parametrize("unread", [1, 2, 3])
def test_with_too_many_that_cannot_be_read_nothing_is_decided(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unread: int
) -> None:
    replicas = replicas_of(tmp_path, 60, 60, 60, partitions=[0])
    for one in replicas[:unread]:
        fail(monkeypatch, one / "0")
    answer = invoke("recover", "--replicas", *replicas, "--yes", "--format", "ndjson")
    (found,) = answer.only("partition-comparison")
    assert (found["verdict"], answer.status) == (("recoverable", 14) if unread == 1 else ("undecidable", 4))
    assert answer.only("plan") == []


def test_what_the_one_that_cannot_be_read_may_hold_is_not_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No replica that can be read has the record; the one on the disk that does not answer has it."""
    replicas = replicas_of(tmp_path, 60, 60, 60, partitions=[0])
    for one in replicas[1:]:
        damage_record(segment_of(one), 5)
    before = [digest(one) for one in replicas]
    with monkeypatch.context() as patch:
        fail(patch, replicas[0] / "0")
        for options in ((), ("--allow-data-loss",)):
            answer = invoke("recover", "--replicas", *replicas, "--yes", *options, "--format", "ndjson")
            (found,) = answer.only("partition-comparison")
            assert (found["verdict"], found["lost"], answer.status) == ("undecidable", [], 4)
            assert [digest_outside(one) for one in replicas] == before
    assert invoke("recover", "--replicas", *replicas, "--yes").status == 0
    assert [invoke("verify", one).status for one in replicas] == [0] * 3


@pytest.mark.parametrize("away", ["unread", "missing"])
def test_a_replica_that_was_in_no_session_counts_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, away: str
) -> None:
    """It counted as absent and as one that lost what it held: two of three would have been a quorum."""
    replicas = replicas_of(tmp_path, 60, 60, partitions=[0])
    replicas.append(settle(build_directory(tmp_path / "n2", {0: 0}, session=-1, local_low_water_mark=-1)))
    if away == "unread":
        fail(monkeypatch, replicas[2] / "0")
    else:
        shutil.rmtree(replicas[2] / "0")
    (found,) = invoke("compare", *replicas, "--format", "ndjson").only("partition-comparison")
    assert found["verdict"] == "recoverable"


@pytest.mark.parametrize("calls", CALLS)
def test_wherever_a_disk_begins_to_fail_no_replica_is_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, calls: str
) -> None:
    """From one call on, or in one call alone: the first and the last replica have acknowledged 50 to 59."""
    original = replicas_of(tmp_path / "of", 60, 50, 60, partitions=[0, 1])
    index_of(original[1], 1).unlink()
    for times in (1, 1 << 30):
        count = [1]
        first = 0
        while first < count[0] and first < 40:
            path = Path(shutil.copytree(tmp_path / "of", tmp_path / f"copy-{times}-{first}"))
            replicas = [path / one.name for one in original]
            before = [digest(one) for one in replicas]
            with monkeypatch.context() as patch:
                count = fail(patch, replicas[0] / "0", CALLS[calls], first=first, times=times)
                answer = invoke("recover", "--replicas", *replicas, "--yes", "--format", "ndjson")
            assert answer.status in (0, 3, 4, 13, 14), answer
            after = [digest(one) for one in replicas]
            for one, then in zip(after, before, strict=True):
                assert {name: one[name] for name in then} == then
            assert index_of(replicas[1], 1).exists() or answer.status in (13, 14)
            shutil.rmtree(path)
            first += 1 if first < 12 else 5


def test_what_was_not_listed_when_it_was_noted_has_a_stale_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody knows what was written to it between the note and the comparison."""
    replicas = replicas_of(tmp_path, 60, 60, 60, partitions=[0])
    index_of(replicas[1], 0).unlink()
    with monkeypatch.context() as patch:
        fail(patch, replicas[1] / "0", CALLS["list"], times=1)
        answer = invoke("recover", "--replicas", *replicas, "--yes", "--format", "ndjson")
    assert answer.status == 13
    assert not index_of(replicas[1], 0).exists()
    assert invoke("recover", "--replicas", *replicas, "--yes").status == 0


def test_a_replica_that_was_not_listed_when_it_was_noted_has_a_stale_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one partition of it: the plan was bound to what was there behind the comparison, whatever had been written meanwhile."""
    replicas = replicas_of(tmp_path, 60, 60, 60, partitions=[0])
    index_of(replicas[1], 0).unlink()
    with monkeypatch.context() as patch:
        fail(patch, replicas[1], CALLS["list"], times=1)
        answer = invoke("recover", "--replicas", *replicas, "--yes", "--format", "ndjson")
    assert (answer.status, f"{replicas[1]}: changed since the plan was made" in answer.err) == (13, True)
    assert not index_of(replicas[1], 0).exists()
    assert invoke("recover", "--replicas", *replicas, "--yes").status == 0


@pytest.mark.parametrize("calls", ["list", "stat", "every"])
@pytest.mark.parametrize("times", [3, 6, 1 << 30])
@pytest.mark.parametrize("options", [(), ("--allow-data-loss",)])
def test_nothing_is_given_up_of_a_directory_that_goes_away_and_comes_back(
    storage: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, calls: str, times: int, options: Sequence[str]
) -> None:
    """Its disk is mounted anew, or a node moves it: it was begun anew, and its segments replaced, or there was a traceback."""
    for first in range(1, 26):
        copy = Path(shutil.copytree(storage, tmp_path / f"copy-{first}"))
        before = digest(copy)
        with monkeypatch.context() as patch:
            fail(patch, copy / "1", CALLS[calls], first=first, times=times, number=errno.ENOENT)
            answer = invoke("recover", copy, "--yes", *options, "--format", "ndjson")
        assert answer.status in (0, 4, 5, 13, 14), answer.err
        after = digest(copy)
        assert {name: after[name] for name in before if name.startswith("1/")} == of_partition(before, 1)
        assert not ledger_path(copy).exists()
        shutil.rmtree(copy)


def leave_and_return(patch: pytest.MonkeyPatch, place: Path, first: int, last: int) -> None:
    """The directory `place` is elsewhere for the calls on what lies beside it from number `first` to `last`.

    It is back when a plan is carried out.
    """
    beside, elsewhere, count = os.fspath(place.parent), place.parent.with_name(f"{place.parent.name}-gone"), [0]
    rename, check = os.rename, Repair.check_current

    def back() -> None:
        if elsewhere.is_dir():
            rename(elsewhere, place)

    def checking(repair: Repair) -> None:
        count[0] = max(first, last + 1)
        back()
        check(repair)

    def moving(call: Any) -> Any:
        def instead(path: Any = ".", *arguments: Any, **named: Any) -> Any:
            if not isinstance(path, int) and os.fspath(path).startswith(f"{beside}/"):
                count[0] += 1
                if count[0] == first:
                    rename(place, elsewhere)
                if count[0] == last + 1:
                    back()
            return call(path, *arguments, **named)

        return instead

    for name in ("listdir", "scandir", "stat", "lstat", "open"):
        patch.setattr(os, name, moving(getattr(os, name)))
    patch.setattr(Repair, "check_current", checking)


ANEW = ("--assigned", "--local-low-water-mark", "-1", "--allow-data-loss")


@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize("first", [1, 8, 15])
@pytest.mark.parametrize("command", [("recover", "--allow-data-loss"), ("set-partition", "--partition", "1", *ANEW)])
def test_nothing_is_begun_anew_over_a_directory_that_was_gone_and_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: Sequence[str], first: int, layout: Layout
) -> None:
    """Also where it was gone when the files were noted, and back before the plan was bound to them: its segment was replaced."""
    built = settle(
        build_directory(tmp_path / "a", dict.fromkeys(PARTITIONS, 60), layout=layout, local_low_water_mark=MARK)
    )
    refused = 0
    for last in range(first, first + 160, 4):
        copy = Path(shutil.copytree(built, tmp_path / f"copy-{last}"))
        with monkeypatch.context() as patch:
            leave_and_return(patch, copy / "1", first, last)
            answer = invoke(command[0], copy, "--yes", *command[1:])
        assert answer.status in (0, 4, 5, 13), answer.err
        refused += answer.status == 13
        assert of_partition(digest(copy), 1) == of_partition(digest(built), 1)
        assert not ledger_path(copy).exists()
    assert refused


@pytest.mark.parametrize("first", [1, 10, 20])
@pytest.mark.parametrize("layout", Layout)
def test_no_partition_changes_hands_by_a_conversion_while_its_directory_is_gone_for_a_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: Layout, first: int
) -> None:
    """It has seen no session: nothing but the directory, or the flag, tells whether it is assigned."""
    target = next(one for one in Layout if one is not layout)
    built = build_directory(tmp_path / "a", {0: 60, 1: [[]], 2: 60}, layout=layout, local_low_water_mark=-1, session=-1)
    settle(built)
    if layout.has_flags:
        assert invoke("set-partition", built, "--partition", 1, "--unassigned", "--yes").status == 0
    refused = 0
    for last in range(first, first + 60, 2):
        copy = Path(shutil.copytree(built, tmp_path / f"copy-{last}"))
        with monkeypatch.context() as patch:
            leave_and_return(patch, copy / "1", first, last)
            answer = invoke("convert", copy, "--layout", target, "--yes")
        assert answer.status in (0, 10, 13), answer.err
        refused += answer.status == 13
        info = decode_control((copy / CONTROL_FILE_NAME).read_bytes()).partitions[1]
        assigned = [one.assigned for one in info.structs]
        if answer.status == 0:
            assert (assigned, (copy / "1").exists()) == ([None] * 2, False) if layout.has_flags else ([True] * 2, True)
    assert refused


@pytest.mark.parametrize("times", [1, 3, 6])
def test_no_index_is_passed_over_of_a_directory_that_goes_away_and_comes_back(
    storage: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    """It ended with 0, though the index was missing as before."""
    for first in range(1, 12):
        copy = Path(shutil.copytree(storage, tmp_path / f"copy-{first}"))
        with monkeypatch.context() as patch:
            fail(patch, copy / "1", CALLS["list"], first=first, times=times, number=errno.ENOENT)
            answer = invoke("rebuild-index", copy, "--yes")
        assert index_of(copy, 1, 50).exists() or answer.status in (3, 4, 5, 13, 14)


def test_a_directory_that_goes_away_while_indexes_are_planned_ends_with_no_traceback(
    storage: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for first in range(1, 40):
        with monkeypatch.context() as patch:
            fail(patch, storage / "1", first=first, number=errno.ENOENT)
            answer = invoke("rebuild-index", storage, "--dry-run")
        assert answer.status in (0, 3, 4, 10, 13, 14), answer.err


def test_a_partition_that_was_not_listed_is_bound_to_nothing_that_may_be_there(
    storage: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.rmtree(storage / "1")
    (storage / "1").mkdir()
    now = bind(storage, PARTITIONS, ())
    assert bind(storage, PARTITIONS, (), seen=note(storage, PARTITIONS)).changed(now) is None
    with monkeypatch.context() as patch:
        fail(patch, storage / "1", CALLS["list"])
        noted = note(storage, PARTITIONS)
    assert bind(storage, PARTITIONS, (), seen=noted).changed(now) == "1"
    assert bind(storage, [0, 2], (), seen=noted).changed(bind(storage, [0, 2], ())) is None


@pytest.mark.parametrize(
    ("found", "status"),
    [
        (["index-orphan"], 3),
        (["index-orphan", "read-error"], 14),
        (["read-error", "index-orphan"], 14),
        (["read-error", "lost"], 4),
        (["lost", "read-error"], 4),
        (["equal", "read-error"], 14),
        (["read-error", "recoverable"], 14),
    ],
)
def test_what_is_known_when_the_reader_goes(found: list[str], status: int) -> None:
    """As at the end: damage that is known counts for more than what could not be read."""
    with Console(Format.NDJSON, quiet=False, stream=StringIO()) as console:
        report = _Report(console, NoProgress(), [], assumed=True, keep=False)
        for one in found:
            report.show(make_finding(Code(one), PurePath("x"), "made up") if "-" in one else verdict(one))
        assert console.known == status


def verdict(name: str) -> PartitionComparison:
    runs = [] if name == "equal" else [Run(0, 1, (DAMAGED, DAMAGED if name == "lost" else 0))]
    decision = decide(runs, [Ballot(), Ballot()], 2)
    assert decision.verdict == name
    return PartitionComparison(0, decision, None, (), (), (), True)


def unassign(replica: Path, partition: int) -> None:
    """What a node does in the documented layout; ours would build missing indexes when it opens the directory."""
    aside = put_aside_path(replica, partition)
    aside.parent.mkdir(parents=True)
    (replica / str(partition)).rename(aside)


@pytest.fixture
def unassigned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str) -> Iterator[list[Path]]:
    """A node unassigns partition 1 from the second replica while they are compared."""
    replicas = replicas_of(tmp_path, 60, 60, 60, partitions=[0, 1], layout=Layout.DOCUMENTED)
    index_of(replicas[0], 0).unlink()
    index_of(replicas[1], 0, 50).unlink()
    index_of(replicas[2], 1).unlink()
    listed, compared, done = directories._view, compare.compare, []

    def now(moment: str) -> None:
        if moment == when and not done:
            done.append(when)
            unassign(replicas[1], 1)

    def view_of(path: PurePath, partitions: Any) -> Any:
        if path == replicas[1]:
            now("before it is listed")
        return listed(path, partitions)

    def comparison(*given: Any) -> Iterator[object]:
        for one in compared(*given):
            now("while it is compared")
            yield one
        now("behind the votes")

    scan = os.listdir

    def names(path: Any = ".") -> list[str]:
        if os.fspath(path) == os.fspath(replicas[1] / "1") and seen:
            now("while it is listed")
        if os.fspath(path) == os.fspath(replicas[1] / "1"):
            seen.append(path)
        return scan(path)

    seen: list[Any] = []
    monkeypatch.setattr(directories, "_view", view_of)
    monkeypatch.setattr(compare, "compare", comparison)
    monkeypatch.setattr(os, "listdir", names)
    yield replicas
    assert done


WHEN = ["before it is listed", "while it is listed", "while it is compared", "behind the votes"]


@pytest.mark.parametrize("when", WHEN)
def test_a_node_that_takes_a_partition_away_keeps_no_plan_from_the_others(
    unassigned: list[Path], tmp_path: Path
) -> None:
    replicas, plans = unassigned, tmp_path / "plans"
    answer = invoke("compare", *replicas, "--plan-dir", plans, "--format", "ndjson")
    assert_left_out(answer, replicas)
    (summary,) = answer.only("compare-summary")
    assert summary["exit_status"] == 13
    assert [one["path"] for one in summary["plans"]] == [str(one) for one in replicas[:2]]
    for replica, plan in zip(replicas, sorted(plans.iterdir()), strict=False):
        assert invoke("recover", replica, "--plan", plan).status == 0
    assert not index_of(replicas[2], 1).exists()


@pytest.mark.parametrize("when", WHEN)
def test_a_node_that_takes_a_partition_away_keeps_no_other_from_being_recovered(unassigned: list[Path]) -> None:
    answer = invoke("recover", "--replicas", *unassigned, "--yes", "--format", "ndjson")
    assert_left_out(answer, unassigned)
    assert [(one["applied"], one["exit_status"]) for one in answer.only("result")] == [(True, 0)] * 2
    assert not index_of(unassigned[2], 1).exists()
    assert invoke("recover", "--replicas", *unassigned, "--yes").status == 0


@pytest.mark.parametrize("when", ["behind the votes"])
@pytest.mark.parametrize("command", ["compare", "recover"])
def test_what_is_left_out_ends_a_document_as_well(unassigned: list[Path], tmp_path: Path, command: str) -> None:
    words = (
        ["compare", "--plan-dir", tmp_path / "plans"] if command == "compare" else ["recover", "--yes", "--replicas"]
    )
    answer = invoke(*words, *unassigned, "--format", "json")
    assert_left_out(answer, unassigned)
    last = json.loads(answer.out)[-1]
    assert (last["type"], last["exit_status"], last["advice"]) == ("error", 13, "compare again")


def assert_left_out(answer: Answer, replicas: Sequence[Path]) -> None:
    assert answer.status == 13
    assert f"{replicas[1] / '1'}: was moved or replaced while it was compared" in answer.err
    assert "nothing is planned for partition 1 in any replica" in answer.err
