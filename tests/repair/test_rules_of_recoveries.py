"""Judgements of a recovery outside of the records: control file, ledger, stray files; and the words about what is left."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.builders import build_directory
from tests.repair.trees import Crash, crashing_when
from tests.repair.twelve import Damage, Twelve, at, told
from waltzctl.engine.errors import DiskReadError, InvalidRequestError, NotWaltzError, RefusedError
from waltzctl.engine.log.view import FileState
from waltzctl.engine.repair import recover_strays, repaired_segments
from waltzctl.engine.repair.apply import apply
from waltzctl.engine.repair.arguments import Agreed
from waltzctl.engine.repair.content import Content
from waltzctl.engine.repair.recover import plan_recover
from waltzctl.engine.repair.recover_control import _Mender
from waltzctl.engine.repair.recover_ledger import plan_forget
from waltzctl.engine.repair.recover_strays import _is_beginning_of
from waltzctl.engine.repair.repaired_segments import RepairedSegment
from waltzctl.engine.repair.survey import Survey
from waltzctl.engine.storage.loss_ledger import read_ledger
from waltzctl.formats.accepted_losses import AcceptedLoss, encode_ledger
from waltzctl.formats.control import (
    CONTROL_FILE_NAME,
    FLAG_ASSIGNED,
    FLAG_AVAILABLE,
    MAX_PARTITIONS,
    Layout,
    decode_control,
    initial_info,
)
from waltzctl.formats.segment import HEADER_SIZE, RECORD_HEADER, SegmentHeader


@pytest.fixture
def d(tmp_path: Path) -> Twelve:
    return Twelve(tmp_path / "d")


# --- control file ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stated", "held", "longer"),
    [
        (3, 1, False),
        (7, 1, True),
        (6, 1, True),
        (5, 6, False),
        (4, 6, False),
        (6, 6, False),
        (MAX_PARTITIONS, 1, True),
        (MAX_PARTITIONS - 1, 1, True),
        (MAX_PARTITIONS + 2, 1, False),
        (MAX_PARTITIONS + 1, 2, False),
    ],
)
def test_more_than_one_bit_of_the_header_is_not_wrong(tmp_path: Path, stated: int, held: int, *, longer: bool) -> None:
    """The file may have been longer; but no file has more partitions than there can be."""
    mender = SimpleNamespace(path=tmp_path / "waltz-storage.ctl")
    assert bool(_Mender._was_longer(mender, stated, held)) is longer  # type: ignore[arg-type]


@pytest.mark.parametrize("layout", list(Layout))
@pytest.mark.parametrize("segments", [True, False])
def test_a_partition_that_has_segments_is_assigned_when_its_pair_begins_anew(
    tmp_path: Path, layout: Layout, *, segments: bool
) -> None:
    d = Twelve(tmp_path / "d", layout=layout)
    d.forget_marks()
    if not segments:
        for first in (0, 4, 8):
            d.drop(first)
    apply(plan_recover(d.root, allow_data_loss=True), arguments=[])
    (info,) = decode_control(d.control.read_bytes()).partitions
    flags = initial_info(layout, 0).structs[0].flags
    if segments and layout.has_flags:
        assert flags != FLAG_AVAILABLE | FLAG_ASSIGNED
        flags = FLAG_AVAILABLE | FLAG_ASSIGNED
    assert [(one.session_id, one.low_water_mark, one.flags) for one in info.structs] == [(-1, -1, flags)] * 2


# --- ledger ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("damage", "mark"),
    [
        (lambda d: d.spoil(5), 9),
        (lambda d: (d.spoil(5), d.forget_marks()), -1),
        (lambda d: (d.spoil(5), d.drop(8)), 7),
        (lambda d: (d.spoil(5), d.mark(0)), 0),
    ],
)
def test_a_loss_enters_with_the_mark_that_is_left(d: Twelve, damage: Damage, mark: int) -> None:
    damage(d)
    apply(plan_recover(d.root, allow_data_loss=True), arguments=[])
    found = read_ledger(d.root).losses
    assert found[0].first == found[0].last == 5
    assert {one.local_low_water_mark for one in found} == {mark}


def test_what_is_forgotten_is_that_of_the_partitions_that_are_named(d: Twelve) -> None:
    path = d.root / ".waltzctl" / "accepted-losses"
    path.parent.mkdir()
    path.write_bytes(encode_ledger([AcceptedLoss(number, 1, 2, 8, "then", "why") for number in (0, 1)]))
    both = ["forget-accepted-loss ledger 1..2" for _ in range(2)]
    whole = plan_forget(d.root)
    assert (told(whole), whole.partitions) == ([*both, "= remove ledger"], (0, 1))
    for where, partitions in ((d.root, [0]), (d.directory, None), (d.directory, [0])):
        one = plan_forget(where, partitions=partitions)
        assert (told(one), one.partitions) == ([both[0], "= make ledger"], (0,))
        (left,) = read_ledger(d.root).losses[1:]
        assert left.partition == 1
    nothing = plan_forget(d.directory, partitions=[1])
    assert (told(nothing), nothing.partitions) == ([], ())
    path.unlink()
    assert plan_forget(d.root, partitions=[0]).partitions == (0,)


def test_only_partitions_that_there_are_can_be_named(d: Twelve) -> None:
    with pytest.raises(InvalidRequestError):
        plan_forget(d.root, partitions=[1])
    os.truncate(d.control, 10)
    assert told(plan_forget(d.root, partitions=[1])) == []


def test_partitions_without_a_storage_directory_are_not_recovered(d: Twelve) -> None:
    d.control.unlink()
    alone = d.root.parent / "alone"
    d.directory.rename(alone)
    calls: Sequence[Callable[[Path], object]] = (plan_recover, plan_forget)
    for call in calls:
        with pytest.raises(NotWaltzError, match="not a storage directory"):
            call(alone)


def test_nothing_is_forgotten_while_a_repair_is_interrupted(d: Twelve) -> None:
    d.accepted((1, 2))
    d.put(8, [8, 9, 10])
    d.cut(8, 300)
    with pytest.raises(Crash), crashing_when(lambda change: change.kind == "truncate"):
        apply(plan_recover(d.root), arguments=["recover"])
    with pytest.raises(RefusedError, match="was interrupted"):
        plan_forget(d.root)
    again = plan_recover(d.root)
    assert ([one.action for one in again.plan.steps], again.roll_back) == (["roll-back"], True)


# --- stray files ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("stray", "beginning"), [(b"abcdef", True), (b"abcdefg", False), (b"abcdefghi", False)])
@pytest.mark.parametrize("chunk", [2, 3, 6, 7])
def test_a_stray_that_is_longer_is_no_copy_however_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stray: bytes, chunk: int, *, beginning: bool
) -> None:
    monkeypatch.setattr("waltzctl.engine.durable.restore.CHUNK", chunk)
    (tmp_path / "stray").write_bytes(stray)
    (tmp_path / "part").write_bytes(b"abcdef")
    part = RepairedSegment(0, tmp_path / "part", tmp_path / "index", FileState.of(tmp_path / "part"), None)
    found = SimpleNamespace(data=FileState.of(tmp_path / "stray"))
    assert _is_beginning_of(found, part) is beginning  # type: ignore[arg-type]


def as_stray(d: Twelve, first: int, name: str, *, size: int | None = None, stays: bool = False) -> None:
    """Let a data file stand under another name, or a copy of it."""
    (shutil.copy if stays else os.rename)(d.seg(first), d.directory / name)
    if not stays:
        d.idx(first).unlink()
    if size is not None:
        os.truncate(d.directory / name, size)


def rewritten(d: Twelve, name: str, *, index: bool = False, **changes: object) -> None:
    """Let the middle segment stand under another name, with other fields in its header, or in its index's."""
    os.rename(d.seg(4), d.directory / f"{name}.seg")
    os.rename(d.idx(4), d.directory / f"{name}.idx")
    path = d.directory / f"{name}{'.idx' if index else '.seg'}"
    data = path.read_bytes()
    path.write_bytes(replace(SegmentHeader.decode(data), **changes).encode() + data[HEADER_SIZE:])  # type: ignore[arg-type]


NO_HEADER = "its header is no segment's, or its index's says otherwise"
STRAYS: dict[str, tuple[Damage, list[str], list[str]]] = {
    "the middle one": (
        lambda d: as_stray(d, 4, "b.seg"),
        ["rename-segment b.seg 4..7 [0+368]"],
        [],
    ),
    "the middle one, shorter than its header": (
        lambda d: as_stray(d, 4, "b.seg", size=HEADER_SIZE - 1),
        [],
        ["it ends inside its header"],
    ),
    "behind one record of a segment": (
        lambda d: (d.put(0, [0, 1, 2]), d.put(3, [3]), as_stray(d, 4, "b.seg")),
        ["rename-segment b.seg 4..7 [0+368]"],
        [],
    ),
    "in front of a segment with the next id": (
        lambda d: (d.put(4, [4, 5, 6]), d.put(7, [7]), as_stray(d, 4, "b.seg", stays=True), d.drop(4)),
        ["rename-segment b.seg 4..6 [0+308]"],
        [],
    ),
    "behind another cluster's": (
        lambda d: (d.strange(0), as_stray(d, 4, "b.seg")),
        [],
        ["0.seg, which stands in front of it, is damaged itself"],
    ),
    "in the place of another cluster's": (
        lambda d: (as_stray(d, 4, "b.seg", stays=True), d.strange(4)),
        [],
        ["4.seg stands in its place and holds other bytes"],
    ),
    "one in the place of the other": (
        lambda d: (as_stray(d, 4, "c.seg", stays=True), as_stray(d, 4, "b.seg")),
        ["rename-segment b.seg 4..7 [0+368]"],
        ["another file is taken for 4.seg already"],
    ),
    "one after the other, whatever their names": (
        lambda d: (as_stray(d, 4, "c.seg"), as_stray(d, 8, "b.seg")),
        ["rename-segment c.seg 4..7 [0+368]", "rename-segment b.seg 8..11 [0+368]"],
        [],
    ),
    "behind one that stands and one that does not": (
        lambda d: (d.put(8, [8, 9]), d.put(10, [10, 11]), as_stray(d, 4, "b.seg"), as_stray(d, 10, "c.seg")),
        ["rename-segment b.seg 4..7 [0+368]", "rename-segment c.seg 10..11 [0+248]"],
        [],
    ),
    "its index is another one's": (
        lambda d: rewritten(d, "b", index=True, first_transaction_id=5),
        [],
        [NO_HEADER],
    ),
    "in front of a segment that begins one behind it": (
        lambda d: (as_stray(d, 4, "b.seg", stays=True), d.drop(4), d.put(5, [5, 6, 7])),
        [],
        ["it leads to transaction 8, 5.seg begins with 5"],
    ),
    "behind a segment that reaches into it": (
        lambda d: (as_stray(d, 4, "b.seg"), d.put(0, [0, 1, 2, 3, 4])),
        [],
        ["0.seg leads to transaction 5, it begins with 4"],
    ),
    "behind a segment that does not reach it": (
        lambda d: (as_stray(d, 4, "b.seg"), d.put(0, [0, 1, 2])),
        [],
        ["0.seg leads to transaction 3, it begins with 4"],
    ),
    "of a version that there is not": (lambda d: rewritten(d, "b", version=1), [], [NO_HEADER]),
    "of another partition": (lambda d: rewritten(d, "b", partition=3), [], ["it belongs to partition 3"]),
    "its index is another partition's": (
        lambda d: rewritten(d, "b", index=True, partition=3),
        [],
        ["its index b.idx belongs to partition 3"],
    ),
    "the first one": (
        lambda d: as_stray(d, 0, "b.seg"),
        ["rename-segment b.seg 0..3 [0+368]"],
        [],
    ),
    "the last one, and what is kept ends in it": (
        lambda d: as_stray(d, 8, "b.seg"),
        ["rename-segment b.seg 8..11 [0+368]"],
        [],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", STRAYS)
def test_what_becomes_of_a_data_file_under_another_name(d: Twelve, name: str) -> None:
    damage, wanted, left = STRAYS[name]
    damage(d)
    repair = plan_recover(d.root)
    found = told(repair)
    assert found[: len(wanted)] == wanted
    assert [one for one in found if one.startswith("rename")] == [one for one in wanted if one.startswith("rename")]
    words = [one.message.replace("0" * 18, "") for one in repair.plan.undecided if one.path.name in ("b.seg", "c.seg")]
    assert [said.partition("nothing proves what it is: ")[2] for said in words] == left


def test_a_data_file_under_another_name_that_cannot_be_read_to_its_end_is_left(
    d: Twelve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And says why."""
    as_stray(d, 4, "b.seg")

    def unreadable(content: Content, first: int, hint: object) -> Survey:
        raise DiskReadError(Path(content.name), 300, OSError(5, "made up"))

    monkeypatch.setattr(recover_strays, "survey", unreadable)
    repair = plan_recover(d.root)
    (left,) = [one for one in repair.plan.undecided if one.path.name == "b.seg"]  # type: ignore[union-attr]
    assert "nothing proves what it is: it cannot be read" in left.message
    assert not [one for one in told(repair) if "b.seg" in one and not one.startswith("?")]


@pytest.mark.parametrize("first", [0, 1])
def test_strays_of_which_nothing_is_known_are_told_of_with_those_of_transaction_0(d: Twelve, first: int) -> None:
    """In the order of their names; those of later transactions come behind them."""
    d.put(first, [first])
    for name, size in (("a.seg", None), ("b.seg", 5)):
        as_stray(d, first, name, size=size, stays=True)
    (d.directory / "a.seg").write_bytes((d.directory / "a.seg").read_bytes() + b"more")
    found = [one.path.name for one in plan_recover(d.root).plan.undecided if one.path.name in ("a.seg", "b.seg")]
    assert found == (["a.seg", "b.seg"] if first == 0 else ["b.seg", "a.seg"])


# --- in words -------------------------------------------------------------------------------------------------------------


def words(d: Twelve, *replicas: Path, **more: object) -> list[str]:
    """The reasons of the steps, and what is left."""
    plan = plan_recover(d.root, replicas=replicas, **more).plan  # type: ignore[arg-type]
    return [*(one.reason for one in plan.steps), *(one.message for one in plan.undecided)]


@pytest.mark.parametrize(
    ("agreed", "mark", "what", "why"),
    [
        (Agreed(0, 11, None, ((6, 6),)), 9, "transaction 6", "at or below the local low-water mark 9"),
        (Agreed(0, 11, None, ((6, 7),)), 9, "transactions from 6 on", "at or below the local low-water mark 9"),
        (Agreed(0, 5, 5), 6, "transactions from 6 on", "at or below the local low-water mark 6"),
        (Agreed(0, 5, 5), None, "transactions from 6 on", "the local low-water mark is unknown"),
    ],
)
def test_why_records_are_not_touched_that_the_replicas_do_not_keep(
    d: Twelve, agreed: Agreed, mark: int | None, what: str, why: str
) -> None:
    if mark is None:
        d.forget_marks()
    else:
        d.mark(mark)
    (found,) = [one for one in words(d, agreed=[agreed]) if "not those that the other replicas keep" in one]
    assert found.startswith(
        f"{what}: the records here are not those that the other replicas keep; {why}, so they are only"
    )


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (lambda d: d.drop(8), "the local low-water mark is 9"),
        (lambda d: (d.accepted((9, 12, 6), disputed=True), d.drop(8)), "given up before"),
        (lambda d: (d.forget_marks(), d.drop(8, index=False)), "lost tail"),
    ],
)
def test_why_an_end_comes_back(d: Twelve, tmp_path: Path, damage: Damage, why: str) -> None:
    damage(d)
    (said, *_) = [one for one in words(d, Twelve(tmp_path / "r").root) if "proven by" in one]
    assert said.partition("; proven by")[0] == why


# --- what cannot be read --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", [0, 4, 8])
def test_a_data_file_that_cannot_be_read_is_named_and_left(
    d: Twelve, monkeypatch: pytest.MonkeyPatch, first: int
) -> None:
    original = repaired_segments.survey

    def failing(content: Content, begins: int, *more: object, **options: object) -> Survey:
        if begins == first:
            raise DiskReadError(d.seg(first), 300, OSError(5, "made up"))
        return original(content, begins, *more, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(repaired_segments, "survey", failing)
    for loss in (False, True):
        lines = told(plan_recover(d.root, allow_data_loss=loss))
        assert f"? read-error in {first} [300+None]" in lines
        assert not [one for one in lines if one.startswith("=") and f"{first}.seg" in one]


def test_what_is_left_of_a_torn_end_is_damage_wherever_it_stands(d: Twelve) -> None:
    """Also above the mark, where a torn end that goes would be none: there are records behind its beginning."""
    d.flip(d.seg(8), at(10) + RECORD_HEADER.offset_of("data_length") + 1, at(10) + 9, at(10) + 40)
    d.seg(8).write_bytes(d.seg(8).read_bytes() + b"\x00" * 5)
    d.idx(8).unlink()
    (left,) = plan_recover(d.root).plan.undecided
    assert (left.code.value, left.transaction_id, left.severity.value) == ("torn-tail", 10, "damage")


@pytest.mark.parametrize("wanted", [0, 1])
def test_only_what_was_asked_for_is_mended_in_the_control_file(tmp_path: Path, wanted: int) -> None:
    storage = build_directory(tmp_path / "s", {0: 3, 1: 3})
    control = decode_control((storage / CONTROL_FILE_NAME).read_bytes())
    data = bytearray((storage / CONTROL_FILE_NAME).read_bytes())
    for partition in (0, 1):
        current = control.partitions[partition].current
        assert current is not None
        data[control.layout.struct_offset(partition, 3 - current)] ^= 1
    (storage / CONTROL_FILE_NAME).write_bytes(data)
    steps = plan_recover(storage, partitions=[wanted]).plan.steps
    assert [(one.action, one.partition) for one in steps] == [("write-control-struct", wanted)]
