"""A replica's directory of a partition that is away only while the replicas are compared: nothing is given up without it.

With it, the vote may have been another one: what only it and one other replica hold may have been acknowledged.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.backup.vaults import settle
from tests.builders import build_directory
from tests.builders import digest as digest_of
from tests.cli.damage import damage_record, segment_of
from tests.cli.running import Answer, invoke
from tests.cli.test_disks_of_partitions import leave_and_return
from tests.compare.clusters import rewrite
from waltzctl.engine.compare import compare
from waltzctl.engine.compare import plans as plans_of
from waltzctl.engine.repair.plan import Repair
from waltzctl.formats.control import Layout

MARK = 9


def never_in_a_session(path: Path) -> list[Path]:
    """Nothing but its directory makes a replica: the first and the last one hold 50 to 59."""
    ends = {"a": 60, "b": 50, "c": 60}
    return [
        build_directory(path / name, {0: end}, layout=Layout.DOCUMENTED, session=-1, local_low_water_mark=-1)
        for name, end in ends.items()
    ]


def one_copy(path: Path) -> list[Path]:
    """An acknowledged record is intact in the last replica alone."""
    replicas = [build_directory(path / name, {0: 60}, local_low_water_mark=MARK) for name in "abc"]
    for one in replicas[:2]:
        damage_record(segment_of(one, 0), 5)
    return replicas


def two_versions(path: Path) -> list[Path]:
    """Of four: neither version has a quorum, unless one of the four is away."""
    replicas = [build_directory(path / name, {0: 60}, local_low_water_mark=MARK) for name in "abcd"]
    for one in (replicas[0], replicas[3]):
        rewrite(one, 20)
    return replicas


CASES: dict[str, tuple[Callable[[Path], list[Path]], tuple[str, ...]]] = {
    "never in a session": (never_in_a_session, ()),
    "one copy": (one_copy, ("--allow-data-loss",)),
    "two versions": (two_versions, ()),
}
COMMANDS = ("recover", "compare")


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[list[Path], tuple[str, ...]]:
    made, options = CASES[request.param]
    return [settle(one) for one in made(tmp_path)], options


def digest(replica: Path) -> dict[str, str]:
    """Without the lock, which a refused repair has taken."""
    return {name: one for name, one in digest_of(replica).items() if name != ".waltzctl/lock"}


def away(replica: Path) -> None:
    (replica / "0").rename(replica.parent / "away")


def back(replica: Path) -> None:
    if (replica.parent / "away").exists():
        (replica.parent / "away").rename(replica / "0")


def run(command: str, replicas: list[Path], options: tuple[str, ...], plans: Path) -> Answer:
    words = ("--replicas", *replicas, "--yes") if command == "recover" else (*replicas, "--plan-dir", plans)
    return invoke(command, *words, *options, "--format", "ndjson")


@pytest.mark.parametrize("since", ["before the note", "behind the note"])
@pytest.mark.parametrize("command", COMMANDS)
def test_nothing_is_given_up_where_a_missing_replica_is_back_behind_the_votes(
    case: tuple[list[Path], tuple[str, ...]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    command: str,
    since: str,
) -> None:
    replicas, options = case
    before = [digest(one) for one in replicas]
    compared = compare.compare

    def compared_without(*given: Any) -> Iterator[object]:
        if since == "behind the note":
            away(replicas[-1])
        yield from compared(*given)
        back(replicas[-1])

    monkeypatch.setattr(compare, "compare", compared_without)
    if since == "before the note":
        away(replicas[-1])
    answer = run(command, replicas, options, tmp_path / "plans")
    assert answer.status == 13
    assert f"{replicas[-1] / '0'}: was missing when it was compared, and is there now" in answer.err
    assert [digest(one) for one in replicas] == before
    assert not (tmp_path / "plans").exists()


def test_nothing_is_given_up_where_a_missing_replica_is_back_behind_the_plans(
    case: tuple[list[Path], tuple[str, ...]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replicas, options = case
    before = [digest(one) for one in replicas]
    check = Repair.check_current

    def check_behind(repair: Repair) -> None:
        back(replicas[-1])
        check(repair)

    monkeypatch.setattr(Repair, "check_current", check_behind)
    away(replicas[-1])
    answer = run("recover", replicas, options, tmp_path)
    assert answer.status == 13
    assert f"{replicas[-1] / '0'}: was missing when the replicas were compared, and is there now" in answer.err
    assert [digest(one) for one in replicas] == before


@pytest.mark.parametrize("returned", [True, False])
def test_a_plan_in_a_file_holds_while_the_replica_is_missing(
    case: tuple[list[Path], tuple[str, ...]], tmp_path: Path, returned: bool
) -> None:
    """A plan that gives nothing up holds in each case."""
    replicas, options = case
    before = [digest(one) for one in replicas]
    away(replicas[-1])
    assert run("compare", replicas, options, tmp_path / "plans").status in (3, 4)
    if returned:
        back(replicas[-1])
    refused = 0
    for number, replica in enumerate(replicas[:-1], 1):
        for file in (tmp_path / "plans").glob(f"{number}-*.json"):
            plan = json.loads(file.read_text())
            loses = any(step["loses_data"] for step in plan["steps"])
            answer = invoke("recover", replica, "--plan", file, "--yes", *options)
            assert answer.status == (13 if loses and returned else 0 if not options else answer.status), answer
            refused += answer.status == 13
            assert (digest(replica) == before[number - 1]) == (answer.status == 13)
            if answer.status == 13:
                assert "compare again" in answer.err or "compare the replicas again with --plan-dir" in answer.err
    assert bool(refused) == returned


@pytest.mark.parametrize("command", COMMANDS)
def test_what_stays_missing_keeps_no_plan_from_being_carried_out(
    case: tuple[list[Path], tuple[str, ...]], tmp_path: Path, command: str
) -> None:
    """Nor does an unassigned partition's directory in the released layout, which was there all the time and is no replica."""
    replicas, options = case
    away(replicas[-1])
    aside = build_directory(tmp_path / "x", {0: 60}, layout=Layout.RELEASED, local_low_water_mark=MARK)
    assert invoke("set-partition", aside, "--partition", 0, "--unassigned", "--yes").status == 0
    answer = run(command, [*replicas, aside], options, tmp_path / "plans")
    assert (answer.status != 13, answer.err) == (True, "")


def test_a_replica_that_the_same_command_brings_back_keeps_none_from_being_cut(tmp_path: Path) -> None:
    """The first plan makes the missing directory anew; the last one cuts what no quorum held."""
    replicas = [build_directory(tmp_path / name, {0: 60}, local_low_water_mark=MARK) for name in "abcde"]
    shutil.rmtree(replicas[0] / "0")
    rewrite(replicas[4], 20)
    for one in replicas:
        settle(one)
    answer = run("recover", replicas, (), tmp_path)
    assert (answer.status, answer.err) == (0, "")
    assert len(answer.only("result")) == 2
    assert (replicas[0] / "0").is_dir()
    assert invoke("compare", *replicas).status in (0, 3)


def test_who_cannot_tell_whether_it_is_there_is_not_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory that cannot be examined when the plan is carried out may be there."""
    replicas = [settle(one) for one in two_versions(tmp_path)]
    away(replicas[-1])
    may_be = plans_of.places.may_be_directory
    assert not may_be(replicas[-1] / "0")
    (replicas[-1] / "0").symlink_to(tmp_path / "loop")
    (tmp_path / "loop").symlink_to(replicas[-1] / "0")
    assert not may_be(replicas[-1] / "0")
    (replicas[-1] / "0").unlink()
    (replicas[-1] / "0").write_bytes(b"no directory")
    assert not may_be(replicas[-1] / "0")
    assert may_be(replicas[0] / "0")
    monkeypatch.setattr("os.stat", lambda path: (_ for _ in ()).throw(OSError(5, "Input/output error", path)))
    assert may_be(replicas[-1] / "0")


@pytest.mark.parametrize("command", COMMANDS)
def test_nothing_is_planned_on_what_comes_back_while_it_is_planned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    """Behind the look that leaves partitions out.  In the other cases what is back keeps records from being given up."""
    replicas = [settle(one) for one in never_in_a_session(tmp_path)]
    before = [digest(one) for one in replicas]
    planned = plans_of.plan_recover

    def plan_behind(*given: Any, **named: Any) -> Repair:
        back(replicas[-1])
        return planned(*given, **named)

    monkeypatch.setattr(plans_of, "plan_recover", plan_behind)
    away(replicas[-1])
    answer = run(command, replicas, (), tmp_path / "plans")
    assert answer.status == 13
    assert f"{replicas[-1] / '0'}: was missing when the replicas were compared, and is there now" in answer.err
    assert [digest(one) for one in replicas] == before
    assert not (tmp_path / "plans").exists()


def test_a_directory_that_is_not_assigned_makes_no_replica(tmp_path: Path) -> None:
    """In the released layout the flag alone tells: files that come there change no vote."""
    replicas = [settle(one) for one in two_versions(tmp_path)]
    away(replicas[-1])
    aside = build_directory(tmp_path / "x", {0: 60}, local_low_water_mark=MARK)
    assert invoke("set-partition", aside, "--partition", 0, "--unassigned", "--yes").status == 0
    (aside / "0").rename(tmp_path / "later")
    assert run("compare", [*replicas, aside], (), tmp_path / "plans").status == 3
    (plan,) = (json.loads(one.read_text()) for one in (tmp_path / "plans").glob("1-*.json"))
    (agreed,) = plan["arguments"]["agreed"]
    assert agreed["missing"] == [str(replicas[-1] / "0")]
    (tmp_path / "later").rename(aside / "0")
    assert invoke("recover", replicas[0], "--plan", *(tmp_path / "plans").glob("1-*.json"), "--yes").status == 0


@pytest.mark.turns(10)
@pytest.mark.parametrize("first", [1, 6, 15, 30])
@pytest.mark.parametrize("command", COMMANDS)
def test_whenever_a_replica_goes_and_comes_back_no_other_one_is_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, first: int
) -> None:
    """Also half-way through the listing of its files: it had a vote without the last ones."""
    originals = [settle(one) for one in never_in_a_session(tmp_path / "of")]
    refused = 0
    for last in range(first, first + 60, 5):
        path = Path(shutil.copytree(tmp_path / "of", tmp_path / f"copy-{last}"))
        replicas = [path / one.name for one in originals]
        with monkeypatch.context() as patch:
            leave_and_return(patch, replicas[-1] / "0", first, last)
            answer = run(command, replicas, (), path / "plans")
        refused += answer.status == 13
        gone = path / f"{replicas[-1].name}-gone"
        if gone.exists():
            gone.rename(replicas[-1] / "0")
        for plan in (path / "plans").glob("*"):
            invoke("recover", replicas[int(plan.name[0]) - 1], "--plan", plan, "--yes")
        for one, original in zip(replicas, originals, strict=True):
            assert {file.name: file.read_bytes() for file in (one / "0").glob("*.seg")} == {
                file.name: file.read_bytes() for file in (original / "0").glob("*.seg")
            }
        shutil.rmtree(path)
    assert refused
