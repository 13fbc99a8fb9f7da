"""recover --replicas without a cluster: its exit status is of all partitions, also of those that no plan is about."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePath
from typing import Any

import pytest

from tests.builders import build_directory
from tests.cli.damage import damage_record, segment_of
from tests.cli.running import Answer, invoke, on_terminal
from waltzctl.engine.compare import compare, directories
from waltzctl.formats.segment import SEGMENT_HEADER

PARTITIONS = 2
AHEAD = 1
"""The partition in which one replica holds more than the others: decided by the vote."""


def lines(*words: object) -> str:
    return "".join(f"{word}\n" for word in words)


def cluster(path: Path, *, alike: bool) -> list[Path]:
    """Replicas of one session; in partition 1 the first has a transaction more, and partition 0 ends, below the marks of all,
    with one record or with three different ones.
    """
    found = [path / f"n{number}" for number in (1, 2, 3)]
    assert invoke("create-cluster", *found, "--partitions", PARTITIONS).status == 0
    marks = ("--low-water-mark", 10, "--local-low-water-mark", 10)
    for number, replica in enumerate(found):
        append(replica, 0, *range(10), "v" if alike else f"v{number}")
        append(replica, AHEAD, *range(11))
        for partition in range(PARTITIONS):
            words = ("--partition", partition, "--session-id", 3, *marks, "--yes")
            answer = invoke("set-partition", replica, *words)
            assert answer.status == 0, answer.err
    append(found[0], AHEAD, "more")
    return found


def append(replica: Path, partition: int, *words: object) -> None:
    answer = invoke("append", replica, "--partition", partition, given=lines(*words))
    assert answer.status == 0, answer.err


def recover(replicas: list[Path], *words: object) -> Answer:
    return invoke("recover", "--replicas", *replicas, "--format", "ndjson", *words)


def verdicts(answer: Answer) -> list[str]:
    return [one["verdict"] for one in answer.only("partition-comparison")]


def test_what_nobody_can_decide_remains(tmp_path: Path) -> None:
    replicas = cluster(tmp_path, alike=False)
    for words in (("--dry-run",), ()):
        shown = recover(replicas, *words)
        assert (verdicts(shown), shown.status) == (["undecidable", "recoverable"], 4)
        assert len(shown.only("plan")) == 1
    done = recover(replicas, "--yes")
    assert [(one["applied"], one["exit_status"]) for one in done.only("result")] == [(True, 0)]
    assert done.status == 5
    again = recover(replicas, "--yes")
    assert (verdicts(again), again.only("result"), again.status) == (["undecidable", "equal"], [], 4)


def test_what_came_while_the_replicas_were_compared_is_not_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Comparing takes hours, and nobody is kept from writing meanwhile: a session wrote behind what was voted about."""
    replicas = cluster(tmp_path, alike=True)
    compared = compare.compare

    def compared_and_appended(*given: Any) -> Iterator[object]:
        yield from compared(*given)
        assert invoke("truncate", replicas[0], "--partition", AHEAD, "--after", 10, "--yes").status == 0
        append(replicas[0], AHEAD, "new", "ones")

    monkeypatch.setattr(compare, "compare", compared_and_appended)
    refused = recover(replicas, "--yes")
    assert refused.status == 13
    assert "changed since the plan was made; nothing was modified" in refused.err
    assert [one["last_transaction_id"] for one in ends(replicas[0])] == [10, 12]
    plans = tmp_path / "plans"
    invoke("compare", *replicas, "--plan-dir", plans)
    (plan,) = plans.iterdir()
    for more in ((), ("--yes",)):
        refused = invoke("recover", replicas[0], "--plan", plan, *more)
        assert refused.status == 13
        assert "no longer those that the plan was made for" in refused.err
        assert "compare the replicas again with --plan-dir" in refused.err
    assert [one["last_transaction_id"] for one in ends(replicas[0])] == [10, 12]


@pytest.mark.parametrize("when", ["before the votes", "behind the votes"])
@pytest.mark.parametrize("command", ["recover", "compare"])
def test_a_replica_in_whose_place_another_one_is_put_meanwhile_has_no_vote(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str, command: str
) -> None:
    """A stale copy was mounted over it: with that one's vote, what a quorum had acknowledged was cut in the others."""
    replicas = [build_directory(tmp_path / name, {0: last}, local_low_water_mark=9) for name, last in STALE.items()]
    members = directories.Directories.members

    def replaced() -> None:
        if not (tmp_path / "away").exists():
            replicas[1].rename(tmp_path / "away")
            build_directory(replicas[1], {0: 25}, local_low_water_mark=9)

    def members_of(one: directories.Directories, partition: int) -> tuple[directories.Member, ...]:
        if when == "before the votes":
            replaced()
        found = members(one, partition)
        replaced()
        return found

    monkeypatch.setattr(directories.Directories, "members", members_of)
    planned = ("--plan-dir", tmp_path / "plans")
    refused = recover(replicas, "--yes") if command == "recover" else invoke("compare", *replicas, *planned)
    assert (refused.status, (tmp_path / "plans").exists()) == (13, False)
    assert "the directory was moved or replaced while it was read" in refused.out
    assert "was moved or replaced while it was compared; nothing was modified" in refused.err
    assert ends(replicas[0])[0]["last_transaction_id"] == 39


@pytest.mark.parametrize("when", ["before it is listed", "before the votes", "behind the votes"])
@pytest.mark.parametrize("command", ["recover", "compare"])
def test_a_partition_of_a_replica_in_whose_place_another_one_is_put_meanwhile_has_no_vote(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str, command: str
) -> None:
    """It has a disk of its own, in whose place a stale copy was mounted; the replica itself stayed where it was."""
    replicas = [build_directory(tmp_path / name, {0: last}, local_low_water_mark=9) for name, last in STALE.items()]
    build_directory(tmp_path / "stale", {0: 25}, local_low_water_mark=9)
    listed, members = directories._view, directories.Directories.members

    def replaced(now: str) -> None:
        if now == when:
            (replicas[1] / "0").rename(tmp_path / "away")
            (tmp_path / "stale" / "0").rename(replicas[1] / "0")

    def view_of(path: PurePath, partitions: Any) -> Any:
        if path == replicas[0]:
            replaced("before it is listed")
        return listed(path, partitions)

    def members_of(one: directories.Directories, partition: int) -> tuple[directories.Member, ...]:
        replaced("before the votes")
        found = members(one, partition)
        replaced("behind the votes")
        return found

    monkeypatch.setattr(directories, "_view", view_of)
    monkeypatch.setattr(directories.Directories, "members", members_of)
    planned = ("--plan-dir", tmp_path / "plans")
    refused = recover(replicas, "--yes") if command == "recover" else invoke("compare", *replicas, *planned)
    assert (tmp_path / "away").exists()
    assert (refused.status, (tmp_path / "plans").exists()) == (13, False)
    assert f"{replicas[1] / '0'}: was moved or replaced while it was" in refused.err
    assert ends(replicas[0])[0]["last_transaction_id"] == 39


STALE = {"a": 40, "b": 40, "c": 30}


def ends(replica: Path) -> list[dict[str, Any]]:
    (status,) = invoke("status", replica, "--format", "ndjson").objects
    found: list[dict[str, Any]] = status["partitions"]
    return found


def test_where_nothing_is_done_the_status_is_that_of_a_dry_run(tmp_path: Path) -> None:
    """A record is damaged in every replica: each has a plan, and none a step."""
    replicas = cluster(tmp_path, alike=True)
    assert recover(replicas, "--yes").status == 0
    for one in replicas:
        path = next((one / "1").glob("*.seg"))
        data = bytearray(path.read_bytes())
        data[SEGMENT_HEADER.size + 40] ^= 0xFF
        path.write_bytes(data)
    for words in (("--dry-run",), ("--yes",)):
        shown = recover(replicas, *words)
        assert (verdicts(shown), shown.status) == (["equal", "lost"], 4)
    assert [(one["applied"], one["exit_status"]) for one in shown.only("result")] == [(False, 4)] * len(replicas)


def test_people_are_told_what_remains(tmp_path: Path) -> None:
    replicas = cluster(tmp_path, alike=False)
    shown = invoke("recover", "--replicas", *replicas, "--yes", "--format", "plain")
    assert "# DAMAGE REMAINS  partitions 0: " in shown.out


def test_what_is_decided_is_done(tmp_path: Path) -> None:
    replicas = cluster(tmp_path, alike=True)
    shown = recover(replicas, "--dry-run")
    assert (verdicts(shown), shown.status) == (["equal", "recoverable"], 3)
    assert recover(replicas, "--yes").status == 0
    assert recover(replicas, "--dry-run").status == 0


def test_replicas_that_are_only_behind_are_left_to_the_cluster(tmp_path: Path) -> None:
    """Asked again after a repair that leaves a replica behind, nothing else is said than after the repair."""
    replicas = cluster(tmp_path, alike=True)
    append(replicas[1], AHEAD, "more")  # a quorum has it, the third is behind
    index = next((replicas[0] / "0").glob("*.idx"))
    index.unlink()
    shown = recover(replicas, "--dry-run")
    assert (verdicts(shown), shown.status) == (["equal", "recoverable"], 3)
    assert recover(replicas, "--yes").status == 0
    for words in (("--dry-run",), ("--yes",)):
        again = recover(replicas, *words)
        standings = [one["state"] for one in again.only("partition-comparison")[AHEAD]["replicas"]]
        assert (standings, again.status) == (["equal", "equal", "behind"], 0)
    (replicas[2] / "1").rename(tmp_path / "aside")
    missing = recover(replicas, "--dry-run")
    assert missing.status == 4, "one without its directory is more than behind"


def test_who_leaves_the_second_plan_is_not_told_that_nothing_was_modified(tmp_path: Path) -> None:
    replicas = cluster(tmp_path, alike=True)
    assert recover(replicas, "--yes").status == 0
    indexes = [next((one / "0").glob("*.idx")) for one in replicas[:2]]
    for index in indexes:
        index.unlink()
    left = on_terminal("recover", "--replicas", *replicas, typed=b"0\nno\n", after=b"to apply the plan")
    assert left.status == 13
    assert [index.exists() for index in indexes] == [True, False]
    assert "not confirmed, nothing else was modified" in left.out


def test_replicas_that_restore_from_one_another_are_all_mended(tmp_path: Path) -> None:
    """None is whole: each repair changes what the next plan, made before it, was going to read."""
    replicas = cluster(tmp_path, alike=True)
    assert recover(replicas, "--yes").status == 0
    for replica, place in zip(replicas, (2, 5, 2), strict=True):
        damage_record(segment_of(replica), place)
    shown = recover(replicas, "--dry-run")
    assert (len(shown.only("plan")), shown.status) == (3, 4)
    done = recover(replicas, "--yes")
    assert (done.status, done.err) == (0, "")
    assert [(one["applied"], one["exit_status"]) for one in done.only("result")] == [(True, 0)] * 3
    assert verdicts(recover(replicas, "--dry-run")) == ["equal", "equal"]


def test_a_directory_and_the_metadata_are_not_taken_for_the_directories_of_all_replicas(tmp_path: Path) -> None:
    storage, metadata = tmp_path / "n1", tmp_path / "metadata"
    assert invoke("create-cluster", storage, "--partitions", 1, "--metadata", metadata).status == 0
    for words in ((), ("--from", tmp_path / "n2"), (tmp_path / "n2",)):
        refused = invoke("recover", storage, "--metadata", metadata, *words)
        assert refused.status == 2
        assert "'--metadata': it stands in place of PATH" in refused.err
