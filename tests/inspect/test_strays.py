"""Data files under names that no node gives: judged as a release would, told by every command, mended where that is proven."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.builders import build_directory, digest, make_records, segment_header, write_segment
from tests.inspect.helpers import age, codes, cut, flip, idx, run, seg
from tests.inspect.test_codes import break_struct
from waltzctl.engine.findings import Finding
from waltzctl.engine.inspect.dump import DumpedRecord, dump_records, dump_segments
from waltzctl.engine.inspect.status import storage_status
from waltzctl.engine.repair.apply import apply
from waltzctl.engine.repair.recover import plan_recover
from waltzctl.engine.repair.undoing import undo
from waltzctl.engine.storage.directory import StorageDirectory
from waltzctl.engine.storage.strays import hidden, joined
from waltzctl.formats.segment import HEADER_SIZE

SIZE = 20
RECORD = SIZE + 40
MARK = 14


@pytest.fixture
def storage(tmp_path: Path) -> Path:
    """Partition 0: segments 0, 10 and 20; partition 1 the same; local low-water mark 14."""
    return build_directory(tmp_path / "s", {0: 30, 1: 30}, per_segment=10, size=SIZE, local_low_water_mark=MARK)


def renamed(storage: Path, first: int, name: str, *, index: bool = True) -> Path:
    """A segment under another name."""
    stray = storage / "0" / f"{name}.seg"
    seg(storage, 0, first).rename(stray)
    if index:
        idx(storage, 0, first).rename(stray.with_suffix(".idx"))
    return stray


def copied(storage: Path, first: int, name: str, *, partition: int = 0, index: bool = True) -> Path:
    stray = storage / "0" / f"{name}.seg"
    shutil.copy(seg(storage, partition, first), stray)
    if index:
        shutil.copy(idx(storage, partition, first), stray.with_suffix(".idx"))
    return stray


def strays(findings: object) -> list[Finding]:
    return [one for one in findings if isinstance(one, Finding) and one.code == "segment-stray"]  # type: ignore[attr-defined]


NAMES = ["x", "1", "", "0000000000000000010.bak", "00000000000000000010", "9999999999999999999", " 10", "-1"]


@pytest.mark.parametrize("name", NAMES)
def test_records_that_stand_only_there_are_named_by_every_command(storage: Path, name: str) -> None:
    """Whatever the name; verify, quick or not, status, both kinds of dump."""
    stray = renamed(storage, 10, name, index=name != "")
    looks = [
        run(age(storage))[0],
        run(storage, quick=True)[0],
        list(storage_status(storage).partitions[0].findings),
        list(dump_records(storage)),
        list(dump_segments(storage)),
    ]
    for look in looks:
        (found,) = strays(look)
        assert found.severity == "damage"
        assert found.path == stray
        assert "transactions 10 to 19 stand only here" in found.message
        assert (found.segment, found.transaction_id) == (10, 10)
    assert [one.transaction_id for one in dump_records(stray) if isinstance(one, DumpedRecord)] == [*range(10, 20)]


def test_one_that_was_just_copied_is_waited_for(storage: Path) -> None:
    """No node makes a file of such a name, so that nobody's work explains it."""
    age(storage)
    os.utime(copied(storage, 10, "x", index=False))
    assert codes(run(storage)[0]) == ["segment-stray"]


def test_a_limited_dump_tells_it_before_it_ends(storage: Path) -> None:
    """Somebody who asks for one record learns that others are hidden."""
    renamed(storage, 10, "x")
    assert len(strays(dump_records(age(storage), limit=1))) == 1


@pytest.mark.parametrize(("cut_off", "told"), [(0, "transactions 10 to 19"), (9, "transaction 10 stand"), (10, None)])
def test_only_what_stands_nowhere_else_is_hidden(storage: Path, cut_off: int, told: str | None) -> None:
    """One step to each side of a file that holds nothing of its own."""
    stray = renamed(storage, 10, "x")
    cut(stray, HEADER_SIZE + RECORD * (10 - cut_off))
    cut(stray.with_suffix(".idx"), HEADER_SIZE + 8 * (10 - cut_off))
    (found,) = strays(run(age(storage))[0])
    assert (told in found.message) if told else ("stand" not in found.message)


def test_an_own_copy_that_a_release_opens_is_repairable(storage: Path) -> None:
    """Nothing is hidden, and a release takes it for a second segment with the same ids."""
    copied(storage, 10, "copy")
    findings, summary = run(age(storage))
    assert codes(findings) == ["segment-stray"]
    assert findings[0].severity == "repairable"
    assert summary.status == "repairable"


REFUSALS: dict[str, tuple[Callable[[Path], object], str]] = {
    "no index": (lambda s: copied(s, 10, "x", index=False), "there is no index x.idx"),
    "empty": (lambda s: (s / "0" / "x.seg").write_bytes(b""), "it ends inside its header"),
    "header but one byte": (lambda s: (s / "0" / "x.seg").write_bytes(bytes(127)), "it ends inside its header"),
    "short index": (
        lambda s: cut(copied(s, 10, "x").with_suffix(".idx"), HEADER_SIZE - 1),
        "its index x.idx ends inside its header",
    ),
    "other partition": (lambda s: copied(s, 10, "x", partition=1), "it belongs to partition 1"),
    "index of another partition": (
        lambda s: shutil.copy(idx(s, 1, 10), copied(s, 10, "x").with_suffix(".idx")),
        "its index x.idx belongs to partition 1",
    ),
    "other cluster": (
        lambda s: write_segment(s / "0", make_records(3, first=10), first=777, key=uuid.UUID(int=7)).rename(
            s / "0" / "x.seg"
        ),
        "it belongs to the cluster 00000000-0000-0000-0000-000000000007",
    ),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_what_a_release_does_not_start_with_is_damage_and_says_why(storage: Path, case: str) -> None:
    make, why = REFUSALS[case]
    make(storage)
    idx(storage, 0, 777).unlink(missing_ok=True)
    (found,) = strays(run(age(storage))[0])
    assert found.severity == "damage"
    assert (found.remedy is None) is (case not in ("no index", "short index"))
    assert f"release 0.13.2 does not start with it: {why}" in found.message


@pytest.mark.parametrize("lost", ["control file", "structs", "nothing"])
def test_where_nothing_tells_whether_a_partition_is_assigned_a_stray_counts_as_opened(storage: Path, lost: str) -> None:
    """A control file that is damaged may come back, and a node would not start then."""
    copied(storage, 10, "x", index=False)
    copied(storage, 20, "y")
    if lost == "control file":
        (storage / "waltz-storage.ctl").unlink()
    elif lost == "structs":
        break_struct(storage, 0, 1, 2)
    for look in (run(age(storage))[0], run(storage, quick=True)[0], dump_records(storage)):
        first, second = strays(look)
        assert (first.severity, second.severity) == ("damage", "repairable")
        assert "release 0.13.2 does not start with it: there is no index x.idx" in first.message
        assert "release 0.13.2 takes it for a segment" in second.message


@pytest.mark.parametrize("name", ["0000000000000000000.seg.bak", "0000000000000000010.SEG", "x.idx", "x.sego", "seg"])
def test_names_that_a_release_does_not_open_stay_notes(storage: Path, name: str) -> None:
    shutil.copy(seg(storage, 0, 10), storage / "0" / name)
    findings, summary = run(age(storage))
    assert (codes(findings), summary.status) == (["unknown-file"], "clean")


def test_the_index_of_a_stray_is_no_finding_of_its_own(storage: Path) -> None:
    """It is looked for as a release does: every .seg in the name becomes .idx."""
    shutil.copy(seg(storage, 0, 10), storage / "0" / "a.seg.seg")
    shutil.copy(idx(storage, 0, 10), storage / "0" / "a.idx.idx")
    findings, _ = run(age(storage))
    assert codes(findings) == ["segment-stray"]
    assert "takes it for a segment" in findings[0].message


# --- recover ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", [0, 10, 20])
@pytest.mark.parametrize("index", [True, False])
def test_recover_gives_an_own_segment_its_name(storage: Path, first: int, *, index: bool) -> None:
    """At the beginning, in the middle and at the end; the files are those from before, and undo gives every byte back."""
    before = digest(storage)
    renamed(storage, first, "x", index=index)
    if not index:
        idx(storage, 0, first).unlink()
    damaged = digest(storage)
    repair = plan_recover(age(storage))
    assert repair.plan.undecided == ()
    result = apply(repair, arguments=[])
    assert (result.status, result.exit_status_name) == ("clean", "clean")
    assert {name: value for name, value in digest(storage).items() if not name.startswith(".waltzctl")} == before
    undo(storage)
    assert {name: value for name, value in digest(storage).items() if not name.startswith(".waltzctl")} == damaged


def test_recover_names_two_that_follow_one_another(storage: Path) -> None:
    before = digest(storage)
    renamed(storage, 10, "a")
    renamed(storage, 20, "b")
    assert apply(plan_recover(age(storage)), arguments=[]).status == "clean"
    assert {name: value for name, value in digest(storage).items() if not name.startswith(".waltzctl")} == before


def test_recover_does_not_choose_between_two(storage: Path) -> None:
    """The first by name takes the place; the other, which holds the same, is a copy only once that stands there."""
    renamed(storage, 10, "a")
    for suffix in (".seg", ".idx"):
        shutil.copy(storage / "0" / f"a{suffix}", storage / "0" / f"b{suffix}")
    assert codes(plan_recover(age(storage)).plan.undecided) == ["segment-stray"]
    assert apply(plan_recover(age(storage)), arguments=[]).status == "repairable"
    assert apply(plan_recover(age(storage)), arguments=[]).status == "clean"


@pytest.mark.parametrize("index", [True, False])
def test_recover_sets_an_exact_copy_aside(storage: Path, *, index: bool) -> None:
    before = digest(storage)
    copied(storage, 10, "x", index=index)
    result = apply(plan_recover(age(storage)), arguments=[])
    assert result.status == "clean"
    assert {name: value for name, value in digest(storage).items() if not name.startswith(".waltzctl")} == before
    assert result.quarantine is not None
    assert any(one.name.startswith("old-") for one in result.quarantine.iterdir())


def gap_in_front(storage: Path) -> None:
    seg(storage, 0, 0).unlink()
    idx(storage, 0, 0).unlink()
    renamed(storage, 10, "x")


def damaged_inside(storage: Path) -> None:
    flip(renamed(storage, 10, "x"), HEADER_SIZE + RECORD * 4 + 50)


def one_record_short(storage: Path) -> None:
    cut(renamed(storage, 10, "x"), HEADER_SIZE + RECORD * 9)


def place_taken(storage: Path) -> None:
    flip(copied(storage, 10, "x"), HEADER_SIZE + RECORD * 4 + 50)


def of_another_partition(storage: Path) -> None:
    copied(storage, 10, "x", partition=1)
    seg(storage, 0, 10).unlink()
    idx(storage, 0, 10).unlink()


def header_of_another_place(storage: Path) -> None:
    stray = renamed(storage, 10, "x")
    data = stray.read_bytes()
    stray.write_bytes(segment_header(0, 20).encode() + data[HEADER_SIZE:])
    stray.with_suffix(".idx").unlink()
    seg(storage, 0, 20).unlink()


def index_of_another_place(storage: Path) -> None:
    shutil.copy(idx(storage, 0, 20), renamed(storage, 10, "x").with_suffix(".idx"))


@pytest.mark.parametrize(
    "make",
    [
        gap_in_front,
        damaged_inside,
        one_record_short,
        place_taken,
        of_another_partition,
        header_of_another_place,
        index_of_another_place,
    ],
    ids=lambda make: make.__name__,
)
def test_recover_leaves_to_a_person_what_nothing_proves(storage: Path, make: Callable[[Path], None]) -> None:
    """Also where data may be given up: the file is not touched, and stays a finding."""
    make(storage)
    stray = storage / "0" / "x.seg"
    bytes_before = stray.read_bytes()
    for allow in (False, True):
        repair = plan_recover(age(storage), allow_data_loss=allow)
        assert stray not in {edit.path for edit in repair.edits}
        assert [one.path for one in repair.plan.undecided if one.code == "segment-stray"] == [stray]
    assert stray.read_bytes() == bytes_before


# --- a node -----------------------------------------------------------------------------------------------------------


def test_a_node_does_not_give_away_ids_that_a_stray_holds(storage: Path) -> None:
    """The last segment misnamed, above the mark: nothing else tells that its ids were used."""
    renamed(storage, 20, "x")
    with StorageDirectory.open(age(storage)) as opened:
        partition = opened.partition(0)
        assert partition.quarantined
        assert "segment-stray" in codes(partition.findings)
        assert not opened.partition(1).quarantined


def test_a_node_takes_no_notice_of_a_copy_or_of_foreign_files(storage: Path) -> None:
    """They hide nothing of this partition."""
    copied(storage, 10, "copy")
    copied(storage, 10, "x", partition=1)
    with StorageDirectory.open(age(storage)) as opened:
        assert not opened.partition(0).quarantined
        assert opened.partition(0).max_transaction_id == 29


@pytest.mark.parametrize(
    ("ids", "known", "left"),
    [
        ([], [], ()),
        ([(0, 9)], [], ((0, 9),)),
        ([(0, 9)], [(0, 9)], ()),
        ([(0, 9)], [(0, 8)], ((9, 9),)),
        ([(0, 9)], [(1, 9)], ((0, 0),)),
        ([(0, 9)], [(-5, 20)], ()),
        ([(0, 9)], [(10, 20)], ((0, 9),)),
        ([(0, 9)], [(2, 3), (5, 5)], ((0, 1), (4, 4), (6, 9))),
        ([(0, 3), (8, 9)], [(3, 8)], ((0, 2), (9, 9))),
    ],
)
def test_what_is_hidden(
    ids: list[tuple[int, int]], known: list[tuple[int, int]], left: tuple[tuple[int, int], ...]
) -> None:
    assert hidden(ids, known) == left
    assert joined([*left, *known]) == joined([*ids, *known])
