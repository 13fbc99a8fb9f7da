"""Truncation keeps one transaction and everything below, byte for byte."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.builders import segment_header
from tests.inspect.helpers import age
from tests.repair.scenes import (
    COUNT,
    MARK,
    SEGMENTS,
    Scene,
    actions,
    body,
    codes,
    copy,
    flip,
    make_scene,
    rewrite_mark,
    same_bytes,
)
from tests.repair.trees import snapshot
from waltzctl.engine.durable import disk, regular
from waltzctl.engine.errors import (
    BelowLowWaterMarkError,
    DiskWriteError,
    InvalidRequestError,
    NotWaltzError,
    RefusedError,
)
from waltzctl.engine.repair.apply import apply
from waltzctl.engine.repair.truncate import plan_truncate
from waltzctl.engine.repair.undoing import undo
from waltzctl.engine.storage.directory import StorageDirectory
from waltzctl.engine.storage.store import interrupted
from waltzctl.formats.control import Layout
from waltzctl.formats.segment import encode_entries


def wanted(scene: Scene, after: int) -> dict[str, bytes]:
    """What the partition holds when `after` is its last transaction, computed from the records."""
    files: dict[str, bytes] = {}
    for place, first in enumerate(SEGMENTS):
        if first > after + 1:
            break
        stop = (*SEGMENTS[1:], COUNT)[place]
        kept = scene.records[first : min(stop, after + 1)]
        offsets = [128 + sum(one.size for one in kept[:n]) for n in range(len(kept))]
        head = segment_header(0, first).encode()
        files[scene.seg(first).name] = head + body(kept)
        files[scene.idx(first).name] = head + encode_entries(offsets)
    return files


@pytest.fixture(scope="module")
def module_scene(tmp_path_factory: pytest.TempPathFactory) -> Scene:
    return make_scene(tmp_path_factory.mktemp("truncate") / "scene", Layout.RELEASED)


ENDS = {-1, 0, 1, 48, 49, 50, 51, 98, 99, 100, MARK - 1, MARK, MARK + 1, COUNT - 2, COUNT - 1, *range(7, COUNT, 19)}


@pytest.mark.turns(8)
@pytest.mark.parametrize(
    "after", [pytest.param(one, marks=() if one in ENDS else pytest.mark.long) for one in range(-1, COUNT)]
)
def test_truncating_at_every_id_gives_the_prefix_of_the_bytes(module_scene: Scene, tmp_path: Path, after: int) -> None:
    scene = copy(module_scene, tmp_path / "s")
    if after < MARK:
        with pytest.raises(BelowLowWaterMarkError, match="110"):
            plan_truncate(scene.root, partition=0, after=after)
        assert same_bytes(scene)
    before = snapshot(scene.root)
    repair = plan_truncate(scene.root, partition=0, after=after, allow_data_loss=after < MARK)
    result = apply(repair, arguments=["truncate"])
    found = {path.name: path.read_bytes() for path in (scene.root / "0").iterdir()}
    assert found == wanted(scene, after)
    assert codes(scene.root) == set()
    if after == COUNT - 1:
        assert not result.applied, "nothing to do"
        assert repair.plan.steps == ()
    else:
        assert repair.plan.loses_data
        undo(scene.root, result.undo_id)
    assert snapshot(scene.root) == before


def repeat(scene: Scene) -> None:
    """Transactions 3 and 4 once more, behind the last one."""
    path = scene.seg(100)
    path.write_bytes(path.read_bytes() + body(scene.records[3:5]))


def tear(scene: Scene) -> None:
    path = scene.seg(100)
    path.write_bytes(path.read_bytes() + scene.records[0].encode()[:20])


def orphan(scene: Scene) -> None:
    offsets = [128 + 100 * number for number in range(5)]
    scene.idx(COUNT).write_bytes(segment_header(0, COUNT).encode() + encode_entries(offsets))


def list_more(scene: Scene) -> None:
    path = scene.idx(100)
    path.write_bytes(path.read_bytes() + encode_entries([scene.seg(100).stat().st_size]))


def spoil_the_next(scene: Scene) -> None:
    scene.seg(COUNT + 7).write_bytes(segment_header(0, COUNT + 7).encode() + bytes(range(200)))


@pytest.mark.parametrize("behind", [repeat, tear, orphan, list_more, spoil_the_next])
def test_what_stands_behind_the_last_transaction_goes_and_no_transaction_with_it(
    scene: Scene, behind: Callable[[Scene], None]
) -> None:
    """Damage, transactions of another place, what proves lost ones; it can all be taken back."""
    behind(scene)
    before = snapshot(age(scene.root))
    assert codes(scene.root)
    with pytest.raises(RefusedError, match=f"ends at transaction {COUNT - 1}, before {COUNT}"):
        plan_truncate(scene.root, partition=0, after=COUNT)
    repair = plan_truncate(scene.root, partition=0, after=COUNT - 1)
    assert repair.plan.loses_data
    result = apply(repair, arguments=["truncate"])
    assert (result.applied, result.status, codes(scene.root)) == (True, "clean", set())
    assert {path.name: path.read_bytes() for path in (scene.root / "0").iterdir()} == wanted(scene, COUNT - 1)
    assert plan_truncate(scene.root, partition=0, after=COUNT - 1).plan.steps == ()
    undo(scene.root, result.undo_id)
    assert snapshot(scene.root) == before
    apply(plan_truncate(scene.root, partition=0, after=COUNT - 2), arguments=["truncate"])
    assert {path.name: path.read_bytes() for path in (scene.root / "0").iterdir()} == wanted(scene, COUNT - 2)


def test_of_what_was_acknowledged_and_is_lost_a_truncation_behind_the_last_asks_too(scene: Scene) -> None:
    """Where nothing stands behind it on disk nothing is to be cut, whatever the mark says."""
    rewrite_mark(scene.root, 0, COUNT + 3)
    assert plan_truncate(scene.root, partition=0, after=COUNT - 1).plan.steps == ()
    orphan(scene)
    with pytest.raises(BelowLowWaterMarkError, match=f"transactions {COUNT} to {COUNT + 3} are at or below"):
        plan_truncate(scene.root, partition=0, after=COUNT - 1)
    apply(plan_truncate(scene.root, partition=0, after=COUNT - 1, allow_data_loss=True), arguments=["truncate"])
    assert codes(age(scene.root)) == set()


def test_a_directory_with_nothing_but_an_index_begins_anew(scene: Scene) -> None:
    rewrite_mark(scene.root, 0, -1)
    for path in (scene.root / "0").iterdir():
        if path != scene.idx(0):
            path.unlink()
    apply(plan_truncate(scene.root, partition=0, after=-1), arguments=["truncate"])
    assert {path.name: path.read_bytes() for path in (scene.root / "0").iterdir()} == wanted(scene, -1)
    assert codes(age(scene.root)) == set()


def test_data_goes_before_index_and_the_last_segment_first(scene: Scene) -> None:
    repair = plan_truncate(scene.root, partition=0, after=20, allow_data_loss=True)
    assert [(step.action, step.path.name) for step in repair.plan.steps] == [
        ("remove-segment", scene.seg(100).name),
        ("remove-index", scene.idx(100).name),
        ("remove-segment", scene.seg(50).name),
        ("remove-index", scene.idx(50).name),
        ("cut-segment", scene.seg(0).name),
        ("cut-index", scene.idx(0).name),
        ("lower-local-low-water-mark", "waltz-storage.ctl"),
    ]
    step = repair.plan.steps[4]
    assert (step.from_transaction_id, step.to_transaction_id, step.offset) == (21, 49, scene.offset(21))
    removed = [(step.from_transaction_id, step.to_transaction_id) for step in repair.plan.steps[:4]]
    assert removed == [(100, 129), (100, 129), (50, 99), (50, 99)], "each step tells what goes with its own file"


def test_ids_that_are_not_there_are_refused(scene: Scene) -> None:
    with pytest.raises(RefusedError, match="129"):
        plan_truncate(scene.root, partition=0, after=130)
    with pytest.raises(InvalidRequestError):
        plan_truncate(scene.root, partition=0, after=-2)
    with pytest.raises(InvalidRequestError):
        plan_truncate(scene.root, partition=5, after=3)
    with pytest.raises(NotWaltzError):
        plan_truncate(scene.root / "nothing", partition=0, after=3)


def test_a_partition_that_has_no_directory_is_refused(scene: Scene) -> None:
    import shutil

    shutil.rmtree(scene.root / "1")
    with pytest.raises(NotWaltzError):
        plan_truncate(scene.root, partition=1, after=3)


def test_with_an_unknown_mark_it_takes_the_explicit_word(scene: Scene) -> None:
    data = scene.control.read_bytes()
    scene.control.write_bytes(data[:128] + bytes(4) + b"\1" * 60 + data[192:])
    with pytest.raises(BelowLowWaterMarkError, match="unknown"):
        plan_truncate(scene.root, partition=0, after=120)
    assert actions(plan_truncate(scene.root, partition=0, after=120, allow_data_loss=True))


@pytest.mark.parametrize("after", [58, 59, 60, 61, 105])
def test_damage_in_front_does_not_hide_where_to_cut(scene: Scene, after: int) -> None:
    rewrite_mark(scene.root, 0, -1)
    scene.flip(60)
    scene.idx(50).unlink()
    apply(plan_truncate(scene.root, partition=0, after=after), arguments=[])
    last = max(path.name for path in (scene.root / "0").glob("*.seg"))
    home = scene.home(after + 1)
    assert last == home.name
    assert home.stat().st_size == scene.offset(after + 1)


def test_inside_a_damaged_place_nothing_is_cut_by_guess(scene: Scene) -> None:
    rewrite_mark(scene.root, 0, -1)
    path = scene.seg(50)
    data = bytearray(path.read_bytes())
    data[scene.offset(60) : scene.offset(63)] = bytes(scene.offset(63) - scene.offset(60))
    path.write_bytes(data)
    scene.idx(50).unlink()
    before = snapshot(scene.root)
    for after in (60, 61):
        with pytest.raises(RefusedError):
            plan_truncate(scene.root, partition=0, after=after)
    for after in (59, 62):
        assert actions(plan_truncate(scene.root, partition=0, after=after))
    assert snapshot(scene.root) == before


def test_everything_goes_and_one_empty_segment_stays(scene: Scene) -> None:
    scene.seg(0).unlink()
    scene.idx(0).unlink()
    repair = plan_truncate(scene.root, partition=0, after=-1, allow_data_loss=True)
    result = apply(repair, arguments=[])
    assert sorted(path.name for path in (scene.root / "0").iterdir()) == [scene.idx(0).name, scene.seg(0).name]
    assert scene.seg(0).read_bytes() == segment_header(0, 0).encode()
    assert result.findings == ()
    undo(scene.root, result.undo_id)
    with pytest.raises(RefusedError, match="begins with"):
        plan_truncate(scene.root, partition=0, after=20, allow_data_loss=True)


def test_an_index_without_its_data_file_gives_way_to_an_empty_segment(scene: Scene) -> None:
    scene.seg(0).unlink()
    damaged = snapshot(scene.root)
    repair = plan_truncate(scene.root, partition=0, after=-1, allow_data_loss=True)
    assert actions(repair)[-3:-1] == ["create-segment", "rebuild-index"]
    result = apply(repair, arguments=[])
    assert sorted(path.name for path in (scene.root / "0").iterdir()) == [scene.idx(0).name, scene.seg(0).name]
    assert scene.idx(0).read_bytes() == scene.seg(0).read_bytes() == segment_header(0, 0).encode()
    assert codes(scene.root) == set()
    undo(scene.root, result.undo_id)
    assert snapshot(scene.root) == damaged


def test_an_index_that_is_wrong_is_cut_all_the_same(scene: Scene) -> None:
    flip(scene.idx(100), 140, 0x20)
    apply(plan_truncate(scene.root, partition=0, after=120), arguments=[])
    assert scene.idx(100).stat().st_size == 128 + 8 * 21


def test_a_cut_below_the_mark_lowers_the_mark_so_that_the_partition_opens(scene: Scene) -> None:
    """Only the local mark falls: what the cluster knows (session, low-water mark) stays, and a second cut lowers it again."""
    before = snapshot(scene.root)
    for after in (60, 7):
        apply(plan_truncate(scene.root, partition=0, after=after, allow_data_loss=True), arguments=[])
        with StorageDirectory.open(scene.root) as storage:
            partition = storage.partition(0)
            assert not partition.quarantined
            assert (partition.max_transaction_id, partition.local_low_water_mark) == (after, after)
            assert partition.low_water_mark == MARK
    undo(scene.root, None)
    undo(scene.root, None)
    assert snapshot(scene.root) == before


@pytest.mark.parametrize("when", ["from the beginning", "later"])
def test_a_file_that_may_not_be_written_leaves_no_repair_half_done(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """Nobody could write to the directory any more: the roll-back wanted to write to that file as well."""
    before, denied = snapshot(scene.root), when == "from the beginning"
    really_open, really_rename = regular.os.open, disk.rename

    def opened(path: Path, flags: int, *more: int, **named: int) -> int:
        if denied and Path(path) == scene.seg(0) and flags & os.O_ACCMODE != os.O_RDONLY:
            raise PermissionError(errno.EACCES, "Permission denied")
        return really_open(path, flags, *more, **named)

    def renamed(source: Path, target: Path) -> None:
        nonlocal denied
        denied = denied or source.suffix == ".seg"
        really_rename(source, target)

    monkeypatch.setattr(regular.os, "open", opened)
    monkeypatch.setattr(disk, "rename", renamed)
    repair = plan_truncate(scene.root, partition=0, after=7, allow_data_loss=True)
    with pytest.raises(DiskWriteError, match="Permission denied"):
        apply(repair, arguments=[])
    assert not interrupted(scene.root)
    assert snapshot(scene.root) == before


def test_a_file_that_may_not_be_written_any_more_ends_an_undo_before_it_begins(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody could write to the directory until that file could be written to again."""
    apply(plan_truncate(scene.root, partition=0, after=7, allow_data_loss=True), arguments=[])
    before, really_open = snapshot(scene.root), regular.os.open

    def opened(path: Path, flags: int, *more: int, **named: int) -> int:
        if Path(path) == scene.seg(0) and flags & os.O_ACCMODE != os.O_RDONLY:
            raise PermissionError(errno.EACCES, "Permission denied")
        return really_open(path, flags, *more, **named)

    monkeypatch.setattr(regular.os, "open", opened)
    with pytest.raises(DiskWriteError, match="Permission denied"):
        undo(scene.root)
    assert not interrupted(scene.root)
    assert snapshot(scene.root) == before
