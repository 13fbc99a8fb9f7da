"""Indexes are rebuilt from the data alone, to the bytes that the release writes."""

from __future__ import annotations

import random
import shutil
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

from tests.builders import CREATED, segment_header
from tests.golden import golden_directories, needs_golden
from tests.repair.scenes import Scene, actions, codes, flip, make_scene, recover, undecided
from tests.repair.trees import contents, snapshot
from waltzctl.engine.errors import InvalidRequestError, NotWaltzError, RefusedError
from waltzctl.engine.findings import Finding
from waltzctl.engine.inspect.verify import verify
from waltzctl.engine.repair.apply import apply
from waltzctl.engine.repair.rebuild_index import plan_rebuild_index
from waltzctl.engine.repair.recover import plan_recover
from waltzctl.engine.repair.undoing import undo
from waltzctl.formats.segment import HEADER_SIZE, Record, encode_entries

GARBLES = ["delete", "garble", "cut", "extend", "zero", "empty"]


def garble(path: Path, how: str, source: random.Random) -> None:
    data = bytearray(path.read_bytes())
    if how == "delete":
        path.unlink()
        return
    if how == "garble":
        for _ in range(20):
            if len(data) > HEADER_SIZE:
                data[source.randrange(HEADER_SIZE, len(data))] ^= 1 << source.randrange(8)
    elif how == "cut":
        del data[source.randrange(HEADER_SIZE, len(data) + 1) :]
    elif how == "extend":
        data += source.randbytes(source.randrange(1, 40))
    elif how == "zero":
        data[HEADER_SIZE:] = bytes(len(data) - HEADER_SIZE)
    else:
        data = bytearray()
    path.write_bytes(data)


@needs_golden
@pytest.mark.turns(8)
@pytest.mark.parametrize(
    ("directory", "how"), list(product(golden_directories(), GARBLES)), ids=lambda one: getattr(one, "name", one)
)
def test_rebuilding_gives_the_bytes_of_the_release(directory: Path, how: str, tmp_path: Path) -> None:
    """Every index of real data, destroyed in turn."""
    root = tmp_path / "s"
    shutil.copytree(directory, root)
    for path in root.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
    assert plan_rebuild_index(root).plan.steps == ()
    if directory.name == "torn-header-only":  # only the index knows of the torn record
        apply(plan_recover(root), arguments=[])
    want = {path: path.read_bytes() for path in root.rglob("*.idx") if whole(path.with_suffix(".seg"))}
    assert want
    source = random.Random(how)
    for path in want:
        garble(path, how, source)
    apply(plan_rebuild_index(root), arguments=[])
    for path, data in want.items():
        found = path.read_bytes()
        if how in ("delete", "empty"):  # when the index was created, only its header knew
            assert found[:4] + found[12:] == data[:4] + data[12:], path
            assert found[4:12] == path.with_suffix(".seg").read_bytes()[4:12]
        else:
            assert found == data, path


def whole(path: Path) -> bool:
    return path.exists() and path.stat().st_size >= HEADER_SIZE


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    """In one layout of the control file, which has no part in this."""
    return make_scene(tmp_path / "scene")


def test_only_what_differs_is_replaced(scene: Scene) -> None:
    untouched = {path: path.stat().st_ino for path in scene.root.rglob("*.idx")}
    flip(scene.idx(50), 200)
    repair = plan_rebuild_index(scene.root)
    assert [step.path for step in repair.plan.steps] == [scene.idx(50)]
    result = apply(repair, arguments=[])
    assert result.exit_status_name == "clean"
    del untouched[scene.idx(50)]
    assert {path: path.stat().st_ino for path in untouched} == untouched
    assert contents(scene.root) == {name: one[:2] for name, one in scene.clean.items()}
    undo(scene.root, result.undo_id)
    assert codes(scene.root) == {"index-entry"}


def test_everything_is_rebuilt_when_asked(scene: Scene) -> None:
    repair = plan_rebuild_index(scene.root, everything=True)
    assert len(repair.plan.steps) == 4
    inode = scene.idx(0).stat().st_ino
    apply(repair, arguments=[])
    assert scene.idx(0).stat().st_ino != inode
    assert contents(scene.root) == {name: one[:2] for name, one in scene.clean.items()}


@pytest.mark.parametrize("place", [0, 3, 13, 31, 39])
def test_a_wrong_index_header_is_made_from_the_data_files(scene: Scene, place: int) -> None:
    data = bytearray(scene.idx(50).read_bytes())
    data[5] ^= 1  # its own creation time
    scene.idx(50).write_bytes(data)
    assert plan_rebuild_index(scene.root).plan.steps == (), "the creation time is the index's own"
    flip(scene.idx(50), place)
    apply(plan_rebuild_index(scene.root), arguments=[])
    assert scene.idx(50).read_bytes()[:128] == segment_header(0, 50, created=CREATED).encode()


def test_what_the_index_knows_of_a_lost_end_stays_and_nothing_else_does(scene: Scene) -> None:
    """An entry leads into the torn tail; those behind lead beyond the file."""
    path, index = scene.seg(100), scene.idx(100).read_bytes()
    path.write_bytes(path.read_bytes()[:-3])
    assert plan_rebuild_index(scene.root).plan.steps == ()
    scene.idx(100).write_bytes(index + entry(1 << 40))
    assert codes(scene.root) == {"torn-tail", "index-long"}
    apply(plan_rebuild_index(scene.root), arguments=[])
    assert scene.idx(100).read_bytes() == index
    assert codes(scene.root) == {"torn-tail"}
    scene.idx(100).unlink()
    apply(plan_rebuild_index(scene.root), arguments=[])
    assert scene.idx(100).stat().st_size == 128 + 8 * 29


def test_an_index_that_leads_to_the_next_segment_is_left_where_the_data_lost_its_end(scene: Scene) -> None:
    """Verify calls it no finding, as it tells what the data file held."""
    path = scene.seg(50)
    path.write_bytes(path.read_bytes()[: scene.offset(97)])
    assert codes(scene.root) == {"segment-gap"}
    assert plan_rebuild_index(scene.root).plan.steps == ()
    recover(scene, loss=True)
    assert codes(scene.root) == {"segment-gap"}


@pytest.mark.parametrize("place", [0, 31, 39])
def test_without_a_control_file_a_header_against_its_place_makes_no_index(scene: Scene, place: int) -> None:
    """Nothing tells whether the file is the partition's own, and the index may be the witness."""
    (scene.root / "waltz-storage.ctl").unlink()
    flip(scene.seg(50), place)
    repair = plan_rebuild_index(scene.root)
    assert (actions(repair), len(undecided(repair))) == ([], 1)


@pytest.mark.parametrize("everything", [False, True])
def test_without_a_control_file_nothing_is_planned_that_cannot_be_carried_out(scene: Scene, everything: bool) -> None:
    """A dry run showed the steps, and to carry them out was refused: there is no lock without that file."""
    control = scene.root / "waltz-storage.ctl"
    kept = control.read_bytes()
    control.unlink()
    if not everything:
        assert plan_rebuild_index(scene.root).plan.steps == (), "they are as they should be"
        scene.idx(50).unlink()
    for partitions in (None, [0]):
        with pytest.raises(RefusedError, match="there is no control file") as refused:
            plan_rebuild_index(scene.root, partitions=partitions, everything=everything)
        assert f"waltzctl salvage {scene.root} --to DIR" in str(refused.value.advice)
    control.write_bytes(kept)
    repair = plan_rebuild_index(scene.root, everything=everything)
    control.unlink()
    with pytest.raises(RefusedError, match="there is no control file"):
        apply(repair, arguments=[])


def entry(offset: int) -> bytes:
    return offset.to_bytes(8)


def entries(path: Path) -> list[int]:
    data = path.read_bytes()[128:]
    return [int.from_bytes(data[at : at + 8], "big") for at in range(0, len(data), 8)]


def test_a_lost_record_keeps_its_entry_so_that_those_behind_it_stay_in_place(scene: Scene) -> None:
    good = entries(scene.idx(50))
    scene.flip(60)
    assert plan_rebuild_index(scene.root).plan.steps == ()
    scene.idx(50).unlink()
    apply(plan_rebuild_index(scene.root), arguments=[])
    assert entries(scene.idx(50)) == good, "one lost record begins where the damage begins"


def test_entries_inside_a_damaged_span_are_kept_when_the_old_index_knows_them(scene: Scene) -> None:
    path, good = scene.seg(50), entries(scene.idx(50))
    data = bytearray(path.read_bytes())
    start, end = scene.offset(60), scene.offset(63)
    data[start:end] = bytes(end - start)
    path.write_bytes(data)
    assert plan_rebuild_index(scene.root).plan.steps == (), "the old entries lie inside the span and rise"
    scene.idx(50).unlink()
    apply(plan_rebuild_index(scene.root), arguments=[])
    assert entries(scene.idx(50)) == [*good[:11], end - 1, end - 1, *good[13:]], (
        "never a place where another record stands"
    )


def test_a_jump_of_ids_that_is_no_loss_does_not_make_an_enormous_index(scene: Scene) -> None:
    from waltzctl.formats.request_id import RequestId

    path = scene.seg(100)
    path.write_bytes(path.read_bytes() + Record.make(2**55, RequestId(0, 0, 0, 0), 0, b"far").encode())
    scene.idx(100).unlink()
    repair = plan_rebuild_index(scene.root)
    assert (repair.edits, [finding.code.value for finding in repair.plan.undecided]) == ((), ["record-order"])


def test_one_partition_one_segment_or_one_index_can_be_named(scene: Scene) -> None:
    for path in scene.root.rglob("*.idx"):
        flip(path, 130, 0x10)
    for named, wanted in [
        (scene.root, 4),
        (scene.root / "0", 3),
        (scene.seg(50), 1),
        (scene.idx(50), 1),
    ]:
        assert len(plan_rebuild_index(named).plan.steps) == wanted
    assert len(plan_rebuild_index(scene.root, partitions=[1]).plan.steps) == 1
    with pytest.raises(InvalidRequestError):
        plan_rebuild_index(scene.root, partitions=[9])
    with pytest.raises(RefusedError):
        plan_rebuild_index(scene.control)


def test_outside_of_a_storage_directory_it_is_refused(scene: Scene, tmp_path: Path) -> None:
    shutil.copytree(scene.root / "0", tmp_path / "alone")
    with pytest.raises(RefusedError, match="lock"):
        plan_rebuild_index(tmp_path / "alone")
    with pytest.raises(NotWaltzError):
        plan_rebuild_index(tmp_path / "nothing")


def test_a_segment_that_cannot_be_scanned_does_not_keep_the_others_from_it(scene: Scene) -> None:
    scene.seg(50).write_bytes(b"short")
    scene.idx(0).unlink()
    repair = plan_rebuild_index(scene.root)
    assert actions(repair) == ["rebuild-index"]
    (left,) = repair.plan.undecided
    (known,) = (one for one in verify([scene.root]) if isinstance(one, Finding) and one.code == "segment-header-short")
    assert left.message == f"{known.message}; nothing tells what its index should be"
    assert replace(left, message=known.message, remedy=known.remedy) == known


@pytest.mark.parametrize("seed", [*range(6), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(6, 20))])
def test_any_index_is_rebuilt_to_the_same_bytes(scene: Scene, seed: int) -> None:
    source = random.Random(seed)
    before = contents(scene.root)
    for path in sorted(scene.root.rglob("*.idx")):
        garble(path, source.choice([how for how in GARBLES if how not in ("delete", "empty")]), source)
    apply(plan_rebuild_index(scene.root), arguments=[])
    assert contents(scene.root) == before
    assert codes(scene.root) == set()
    assert plan_rebuild_index(scene.root).plan.steps == ()


def test_planning_changes_nothing(scene: Scene) -> None:
    flip(scene.idx(50), 200)
    before = snapshot(scene.root)
    plan_rebuild_index(scene.root, everything=True)
    assert snapshot(scene.root) == before
    assert not (scene.root / ".waltzctl").exists()


def test_the_entries_of_the_golden_example() -> None:
    """Two records of 43 and 40 bytes: offsets 0x80 and 0xab."""
    assert encode_entries([0x80, 0xAB]).hex() == "0000000000000080" + "00000000000000ab"
