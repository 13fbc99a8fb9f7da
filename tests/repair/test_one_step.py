"""Comparisons of repairs that decide what may be cut and what is lost, each one step to each side."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest

from tests.builders import build_directory, make_records, write_segment
from tests.compare.clusters import COUNT as HELD
from tests.compare.clusters import compared, extend, make_cluster, marks, rewrite
from tests.repair.scenes import COUNT, MARK, Scene, actions, make_scene, rewrite_mark, undecided
from tests.repair.trees import recording
from waltzctl.engine.compare.plans import plans
from waltzctl.engine.durable.directory_lock import DirectoryLock
from waltzctl.engine.durable.edits import Cut, Edit, FileEdits, Overwrite, Remove, Replace
from waltzctl.engine.errors import BelowLowWaterMarkError, RefusedError
from waltzctl.engine.log.view import read_control, view_partition
from waltzctl.engine.repair import provenance
from waltzctl.engine.repair.apply import apply
from waltzctl.engine.repair.content import Content
from waltzctl.engine.repair.plan import Repair
from waltzctl.engine.repair.provenance import MOMENT_MS, SegmentSurroundings, judge
from waltzctl.engine.repair.recover import plan_recover
from waltzctl.engine.repair.survey import survey
from waltzctl.engine.repair.truncate import plan_truncate
from waltzctl.engine.repair.undo_conditions import falling_marks
from waltzctl.engine.storage.store import apply_edits
from waltzctl.formats.control import Layout, decode_control
from waltzctl.formats.segment import ENTRY_SIZE, HEADER_SIZE, SegmentHeader, entry_position

LAYOUTS = pytest.mark.parametrize("layout", list(Layout))


@pytest.fixture
def one(tmp_path: Path) -> Scene:
    return make_scene(tmp_path / "scene")


# --- what the replicas of a cluster agreed on --------------------------------------------------------------------------


def agreed(nodes: list[Path]) -> Repair | None:
    """The plan for the first replica, without leave to lose anything."""
    found = plans(list(compared(*nodes).partitions.values()), nodes, allow_data_loss=False)
    return next((repair for repair in found if repair.plan.path == nodes[0]), None)


@pytest.mark.parametrize(("mark", "cut"), [(HELD - 2, True), (HELD - 1, True), (HELD, False), (HELD + 1, False)])
def test_what_no_quorum_holds_is_cut_only_above_the_local_mark(tmp_path: Path, mark: int, cut: bool) -> None:
    """The first of three replicas holds five transactions, from HELD on, that no other one has."""
    nodes = make_cluster(tmp_path)
    extend(nodes[0], 5)
    marks(nodes[0], local=mark)
    repair = agreed(nodes)
    assert repair is not None
    assert ("cut-segment" in actions(repair)) == cut
    assert undecided(repair) == ([] if cut else ["replica-differs"])
    if cut:
        step = repair.plan.steps[0]
        assert (step.from_transaction_id, step.to_transaction_id) == (HELD, HELD + 4)


@pytest.mark.parametrize("more", [1, 2])
def test_a_single_transaction_that_no_quorum_holds_is_cut(tmp_path: Path, more: int) -> None:
    nodes = make_cluster(tmp_path)
    extend(nodes[0], more)
    marks(nodes[0], local=HELD - 2)
    repair = agreed(nodes)
    assert repair is not None
    (step,) = [one for one in repair.plan.steps if one.action == "cut-segment"]
    assert (step.from_transaction_id, step.to_transaction_id, step.loses_data) == (HELD, HELD + more - 1, True)


@pytest.mark.parametrize(("number", "replaced"), [(59, False), (60, False), (61, True)])
def test_an_outvoted_record_is_replaced_only_above_the_local_mark(tmp_path: Path, number: int, replaced: bool) -> None:
    """The mark of every replica is 60."""
    nodes = make_cluster(tmp_path)
    rewrite(nodes[0], number)
    repair = agreed(nodes)
    assert repair is not None
    assert ("restore-record" in actions(repair)) == replaced
    assert undecided(repair) == ([] if replaced else ["replica-differs"])


# --- the end of a partition --------------------------------------------------------------------------------------------


@LAYOUTS
@pytest.mark.parametrize("last", [MARK - 1, MARK, MARK + 1])
def test_a_missing_end_is_left_to_a_person_from_the_mark_on(tmp_path: Path, layout: Layout, last: int) -> None:
    """Files end with transaction `last`, cleanly; above the mark nobody can know that there was more."""
    scene = make_scene(tmp_path / "scene", layout)
    os.truncate(scene.seg(100), scene.offset(last + 1))
    os.truncate(scene.idx(100), entry_position(last + 1, 100))
    repair = plan_recover(scene.root)
    assert repair.plan.steps == ()
    assert undecided(repair) == (["acknowledged-missing"] if last < MARK else [])
    lossy = plan_recover(scene.root, allow_data_loss=True)
    if last >= MARK:
        assert lossy.plan.steps == ()
        return
    steps = {step.action: step for step in lossy.plan.steps}
    assert (steps["accept-loss"].from_transaction_id, steps["accept-loss"].to_transaction_id) == (MARK, MARK)
    apply(lossy, arguments=[])
    found = decode_control(scene.control.read_bytes()).partitions[0].current_struct
    assert found is not None
    assert found.local_low_water_mark == last
    assert actions(plan_recover(scene.root, replicas=[scene.replica]))


@LAYOUTS
@pytest.mark.parametrize(("torn", "cut"), [(MARK - 1, False), (MARK, False), (MARK + 1, True)])
def test_a_torn_end_is_cut_only_above_the_mark(tmp_path: Path, layout: Layout, torn: int, cut: bool) -> None:
    scene = make_scene(tmp_path / "scene", layout)
    os.truncate(scene.seg(100), scene.offset(torn + 1) - 1)
    os.truncate(scene.idx(100), entry_position(torn, 100))
    repair = plan_recover(scene.root)
    assert ("cut-torn-tail" in actions(repair)) == cut
    assert bool(undecided(repair)) != cut
    assert not repair.plan.loses_data


@LAYOUTS
@pytest.mark.parametrize(("after", "refused"), [(MARK - 1, True), (MARK, False), (MARK + 1, False)])
def test_a_truncation_needs_leave_below_the_mark_and_not_at_it(
    tmp_path: Path, layout: Layout, after: int, refused: bool
) -> None:
    scene = make_scene(tmp_path / "scene", layout)
    if refused:
        with pytest.raises(BelowLowWaterMarkError, match=f"transactions {MARK} to {MARK} are"):
            plan_truncate(scene.root, partition=0, after=after)
    repair = plan_truncate(scene.root, partition=0, after=after, allow_data_loss=True)
    assert ("lower-local-low-water-mark" in actions(repair)) == refused
    assert (repair.plan.steps[0].from_transaction_id, repair.plan.steps[0].to_transaction_id) == (after + 1, COUNT - 1)


@pytest.mark.parametrize(
    ("after", "refused"), [(COUNT - 2, False), (COUNT - 1, False), (COUNT, True), (COUNT + 1, True)]
)
def test_a_truncation_behind_the_end_is_refused_and_one_at_it_does_nothing(
    one: Scene, after: int, refused: bool
) -> None:
    if refused:
        with pytest.raises(RefusedError, match=f"ends at transaction {COUNT - 1}, before {after}"):
            plan_truncate(one.root, partition=0, after=after)
    else:
        assert bool(plan_truncate(one.root, partition=0, after=after).plan.steps) == (after < COUNT - 1)


@pytest.mark.parametrize(("after", "mark"), [(MARK - 1, MARK - 1), (MARK, MARK), (MARK + 1, MARK), (-1, -1)])
def test_the_mark_falls_to_what_is_left_and_no_further(one: Scene, after: int, mark: int) -> None:
    apply(plan_truncate(one.root, partition=0, after=after, allow_data_loss=True), arguments=[])
    found = decode_control(one.control.read_bytes()).partitions[0].current_struct
    assert found is not None
    assert found.local_low_water_mark == mark


@pytest.mark.parametrize(
    ("after", "left", "removed"),
    [(48, [0], 2), (49, [0, 50], 1), (50, [0, 50], 1), (98, [0, 50], 1), (99, [0, 50, 100], 0), (100, [0, 50, 100], 0)],
)
def test_a_segment_that_begins_behind_the_last_transaction_kept_stays(
    one: Scene, after: int, left: list[int], removed: int
) -> None:
    repair = plan_truncate(one.root, partition=0, after=after, allow_data_loss=True)
    assert actions(repair).count("remove-segment") == removed
    apply(repair, arguments=[])
    assert sorted((one.root / "0").glob("*.seg")) == [one.seg(first) for first in left]


# --- neighbours and places ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("begins", "expected"), [(99, "segment-overlap"), (100, None), (101, "segment-gap")])
def test_segments_join_to_the_transaction(one: Scene, begins: int, expected: str | None) -> None:
    """Without a replica: a gap is nobody's to fill, an overlap of equal records costs nothing."""
    for path in (one.seg(100), one.idx(100)):
        path.unlink()
    write_segment(one.root / "0", one.records[begins:])
    repair = plan_recover(one.root)
    if expected == "segment-overlap":
        assert actions(repair)
        assert not repair.plan.loses_data
    else:
        assert repair.plan.steps == ()
        assert undecided(repair) == ([] if expected is None else [expected])


@pytest.mark.parametrize(("number", "place"), [(0, HEADER_SIZE), (49, None), (50, HEADER_SIZE), (129, None)])
def test_the_first_and_the_last_record_of_a_segment_are_restored_as_any_other(
    one: Scene, number: int, place: int | None
) -> None:
    one.flip(number)
    assert place is None or one.offset(number) == place
    repair = plan_recover(one.root, replicas=[one.replica])
    step = repair.plan.steps[0]
    assert (step.action, step.from_transaction_id, step.to_transaction_id) == ("restore-record", number, number)
    assert (step.offset, step.length) == (one.offset(number), one.records[number].size)
    apply(repair, arguments=[])
    assert one.intact_ids() == list(range(COUNT))


@pytest.mark.parametrize("lost", [(60, 60), (60, 61), (50, 50), (98, 99)])
def test_a_survey_tells_the_first_and_the_last_that_are_lost(one: Scene, lost: tuple[int, int]) -> None:
    data = bytearray(one.seg(50).read_bytes())
    for number in range(lost[0], lost[1] + 1):
        data[one.offset(number) + 9] ^= 1
    one.seg(50).write_bytes(bytes(data))
    content = Content.of_file(one.seg(50), len(data))
    found = survey(content, 50, None)
    if lost[1] == 99:  # nothing follows: the end
        assert found.tail is not None
        assert (found.tail.first, found.next_id) == (98, 98)
    else:
        assert [(one.first, one.stop) for one in found.losses] == [(lost[0], lost[1] + 1)]
        assert (found.next_id, found.tail) == (100, None)


# --- whose records they are --------------------------------------------------------------------------------------------


def judged(root: Path, first: int = 50) -> provenance.ProvenanceVerdict:
    control = read_control(root / "waltz-storage.ctl")
    assert control is not None
    view = view_partition(root / "0", 0)
    segment = next(one for one in view.segments if one.first_transaction_id == first)
    assert segment.data is not None
    content = Content.of_file(segment.data.path, segment.data.size)
    return judge(segment, content, SegmentSurroundings(control, 0, view.segments))


def with_header(path: Path, **changes: object) -> None:
    from dataclasses import replace

    data = path.read_bytes()
    header = replace(SegmentHeader.decode(data), **changes)  # type: ignore[arg-type]
    path.write_bytes(header.encode() + data[HEADER_SIZE:])


@pytest.mark.parametrize(("apart", "own"), [(MOMENT_MS - 1, True), (MOMENT_MS, True), (MOMENT_MS + 1, False)])
@pytest.mark.parametrize("sign", [-1, 1])
def test_data_and_index_are_created_within_a_moment(one: Scene, apart: int, own: bool, sign: int) -> None:
    """The header says another partition, the index this one: then the times tell whether they belong together."""
    created = SegmentHeader.decode(one.idx(50).read_bytes()).created
    with_header(one.seg(50), partition=1, created=created + sign * apart)
    assert judged(one.root).own == own


@pytest.mark.parametrize(("missing", "own"), [(0, True), (999, True), (1000, True), (1001, False)])
def test_an_index_lags_behind_by_a_checkpoint_at_most(tmp_path: Path, missing: int, own: bool) -> None:
    """What a crash leaves of an index; more than that is the index of something else."""
    root = build_directory(tmp_path / "s", {0: 1010}, per_segment=2000, size=5, local_low_water_mark=-1)
    seg = next((root / "0").glob("*.seg"))
    os.truncate(seg.with_suffix(".idx"), entry_position(1010 - missing, 0))
    with_header(seg, partition=3)
    assert judged(root, 0).own == own


@pytest.mark.parametrize(("stop", "own"), [(99, True), (100, True), (101, False)])
def test_a_file_that_reaches_into_the_next_segment_is_not_surely_the_partitions_own(
    tmp_path: Path, stop: int, own: bool
) -> None:
    records = make_records(130)
    root = build_directory(tmp_path / "s", {0: [records[:50]]}, local_low_water_mark=-1)
    seg = write_segment(root / "0", records[50:stop])
    write_segment(root / "0", records[100:])
    with_header(seg, partition=3)
    assert judged(root).own == own


@pytest.mark.parametrize(("wrong", "own"), [(0, True), (1, True), (5, True), (6, False), (49, False)])
def test_a_few_wrong_entries_are_damage_and_many_are_another_index(one: Scene, wrong: int, own: bool) -> None:
    """49 entries count: the first one is alike in every index."""
    data = bytearray(one.idx(50).read_bytes())
    for place in range(1, 1 + wrong):
        data[HEADER_SIZE + ENTRY_SIZE * place : HEADER_SIZE + ENTRY_SIZE * (place + 1)] = struct.pack(">q", 7)
    one.idx(50).write_bytes(bytes(data))
    with_header(one.seg(50), partition=1)
    assert judged(one.root).own == own


@pytest.mark.parametrize(("records", "own"), [(1, False), (2, True)])
def test_an_index_with_a_single_entry_proves_nothing(tmp_path: Path, records: int, own: bool) -> None:
    """It is alike in every index.  Request ids tell nothing here: none of this partition names it."""
    made = make_records(50 + records, partition=7)
    root = build_directory(tmp_path / "s", {0: [made[:50]]}, local_low_water_mark=-1)
    with_header(write_segment(root / "0", made[50:]), partition=3)
    assert judged(root).own == own


# --- the quarantine ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["cut", "overwrite", "replace", "remove"])
def test_a_file_is_durable_before_anything_of_it_is_kept(tmp_path: Path, kind: str) -> None:
    """A process that was killed may have left bytes in memory only; what is kept must be what a power loss leaves."""
    root = tmp_path / "s"
    (root / "0").mkdir(parents=True)
    (root / "waltz-storage.ctl").write_bytes(bytes(280))
    path = root / "0" / "a.seg"
    path.write_bytes(bytes(range(200)))
    edits: dict[str, Edit] = {
        "cut": Cut(path, 100),
        "overwrite": Overwrite(path, 10, b"new"),
        "replace": Replace(path, lambda: [b"new"]),
        "remove": Remove(path),
    }
    with recording() as changes:
        apply_edits(root, [edits[kind]], command="recover", arguments=[], plan_hash="0" * 64)
    seen = [(change.kind, change.path) for change in changes]
    synced = seen.index(("sync", path))
    touched = next(n for n, (what, where) in enumerate(seen) if where == path and what != "sync")
    kept = [n for n, (_, where) in enumerate(seen) if where.name.startswith(("range-", "old-", "new-"))]
    assert synced < touched
    assert not kept or synced < kept[0]
    manifest = [n for n, (what, where) in enumerate(seen) if what == "rename" and where.name.startswith("manifest")]
    assert len([n for n in manifest if n < synced]) <= 1, "only the empty manifest comes before it"


@pytest.mark.parametrize(
    ("edits", "fits"),
    [
        ([("cut", 0)], True),
        ([("cut", 100)], True),
        ([("cut", 101)], False),
        ([("cut", -1)], False),
        ([("write", 100, 5)], True),
        ([("write", 101, 5)], False),
        ([("write", -1, 5)], False),
        ([("cut", 50), ("write", 45, 5)], True),
        ([("cut", 50), ("write", 46, 5)], False),
        ([("write", 0, 5), ("write", 5, 5)], True),
        ([("write", 0, 6), ("write", 5, 5)], False),
        ([("write", 5, 5), ("write", 0, 5)], True),
    ],
)
def test_edits_of_a_file_touch_and_never_overlap(edits: list[tuple[object, ...]], fits: bool) -> None:
    """Of a file of 100 bytes; a write may go on behind its end."""
    path = Path("/s/0/a.seg")
    made: list[Cut | Overwrite] = []
    for name, offset, *length in edits:
        assert isinstance(offset, int)
        made.append(Cut(path, offset) if name == "cut" else Overwrite(path, offset, bytes(int(str(length[0])))))
    group = FileEdits(path, "0/a.seg", tuple(made))
    if fits:
        assert len(group.ranges(100)) == len(made)
    else:
        with pytest.raises(ValueError, match=r"cannot cut|outside|overlap"):
            group.ranges(100)


@pytest.mark.parametrize(("before", "falls"), [(MARK - 1, True), (MARK, False), (MARK + 1, False)])
def test_undo_tells_of_a_mark_that_falls_by_one(one: Scene, before: int, falls: bool) -> None:
    """The mark is `before` when a repair writes it anew, as `MARK`."""
    wanted = one.control.read_bytes()
    rewrite_mark(one.root, 0, before)
    edits = [Overwrite(one.control, HEADER_SIZE, wanted[HEADER_SIZE:])]
    with DirectoryLock.acquire(one.root, one.control):
        entry = apply_edits(one.root, edits, command="recover", arguments=[], plan_hash="0" * 64)
    found = falling_marks(entry)
    assert [(fall.partition, fall.now, fall.then) for fall in found] == [(0, MARK, before)] * (2 * falls)
