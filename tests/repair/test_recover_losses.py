"""Lost records: restored from replicas, split off on demand, and never papered over."""

from __future__ import annotations

import random
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from tests.builders import build_directory, make_records, segment_header, write_segment
from tests.inspect.helpers import age, patch, run
from tests.repair.scenes import (
    COUNT,
    MARK,
    Scene,
    actions,
    body,
    codes,
    flip,
    make_scene,
    read_all,
    recover,
    recovered,
    rewrite_mark,
    same_bytes,
    status,
    undecided,
)
from tests.repair.trees import snapshot
from tests.repair.twelve import RECORDS, Twelve, at, planned
from waltzctl.engine.errors import InvalidRequestError, MismatchError, NotWaltzError
from waltzctl.engine.repair.apply import apply
from waltzctl.engine.repair.rebuild_index import plan_rebuild_index
from waltzctl.engine.repair.recover import plan_recover
from waltzctl.formats.checksums import crc32
from waltzctl.formats.request_id import RequestId
from waltzctl.formats.segment import HEADER_SIZE, Record, index_name, segment_name


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    """In one layout of the control file: the other one matters where a mark is written."""
    return make_scene(tmp_path / "scene")


def test_a_clean_directory_gives_an_empty_plan(scene: Scene) -> None:
    repair, result = recover(scene, scene.replica)
    assert (repair.plan.steps, repair.plan.undecided) == ((), ())
    assert (result.applied, result.undo_id, result.exit_status_name) == (False, None, "clean")


@pytest.mark.turns(8)
@pytest.mark.parametrize(
    ("lost", "place"),
    [(0, 3), (1, 9), (49, 25), (50, 33), (73, -1), (98, 29), (100, 3), (108, 33)],
)  # a bit of the id, the request id, the header, the length, or a checksum
def test_a_damaged_record_comes_back_from_a_replica_byte_for_byte(tmp_path: Path, lost: int, place: int) -> None:
    scene = make_scene(tmp_path / "scene")
    flip(scene.home(lost), scene.offset(lost) + (place if place >= 0 else scene.records[lost].size - 1), 0x40)
    assert status(scene.root) == "damaged"
    repair, result = recover(scene, scene.replica)
    assert actions(repair) == ["restore-record"]
    assert result.exit_status_name == "clean"
    assert same_bytes(scene)


def test_without_a_replica_a_lost_record_stays_a_finding_and_nothing_changes(scene: Scene) -> None:
    scene.flip(60)
    before = snapshot(age(scene.root))
    repair, result = recover(scene)
    assert (actions(repair), undecided(repair)) == ([], ["record-checksum"])
    assert (result.applied, result.exit_status_name) == (False, "damaged")
    assert repair.plan.undecided[0].transaction_id == 60
    assert snapshot(scene.root) == before


@pytest.mark.turns(8)
@pytest.mark.parametrize("lost", [[0], [48], [50], [3, 4, 5], [10, 12, 14], [60, 20, 105]])
def test_data_loss_costs_the_lost_records_and_no_other(tmp_path: Path, lost: list[int]) -> None:
    scene = make_scene(tmp_path / "scene")
    for number in lost:
        scene.flip(number)
    repair, result = recover(scene, loss=True)
    assert set(actions(repair)) == {"split-segment", "rebuild-index", "accept-loss"}
    assert {
        n for s in repair.plan.steps if s.loses_data for n in range(s.from_transaction_id, s.to_transaction_id + 1)
    } == set(lost)  # type: ignore[arg-type]
    assert scene.intact_ids() == sorted(set(range(130)) - set(lost))
    assert result.exit_status_name == "damage-remains"
    assert codes(scene.root) == {"segment-gap", "loss-accepted"}, "the gap stays named, and nothing else is wrong"


def test_split_segments_come_back_whole_from_a_replica_later(scene: Scene) -> None:
    scene.flip(60)
    recover(scene, loss=True)
    _, result = recover(scene, scene.replica)
    assert result.exit_status_name == "clean"
    assert scene.intact_ids() == list(range(130))


@pytest.mark.parametrize("damage", ["zeros", "noise", "shortened", "lengthened"])
def test_several_records_in_one_damaged_span_come_back(scene: Scene, damage: str) -> None:
    path, start, stop = scene.seg(50), scene.offset(60), scene.offset(63)
    data = path.read_bytes()
    span = {
        "zeros": bytes(stop - start),
        "noise": random.Random(5).randbytes(stop - start),
        "shortened": data[start : stop - 11],
        "lengthened": data[start : start + 50] + bytes(7) + data[start + 50 : stop],
    }[damage]
    path.write_bytes(data[:start] + span + data[stop:])
    _, result = recover(scene, scene.replica)
    assert result.exit_status_name == "clean"
    assert same_bytes(scene)


def test_records_cut_out_of_the_middle_come_back(scene: Scene) -> None:
    path = scene.seg(50)
    data = path.read_bytes()
    path.write_bytes(data[: scene.offset(60)] + data[scene.offset(63) :])
    assert undecided(plan_recover(scene.root)) == ["record-order"]
    _, result = recover(scene, scene.replica)
    assert result.exit_status_name == "clean"
    assert same_bytes(scene)


def test_data_that_is_not_what_was_sent_comes_back_and_is_never_split_off(scene: Scene) -> None:
    """The record's own checksum is right, the data's is not: the writer wrote it so."""
    written_wrong(scene, 60)
    repair, _ = recover(scene, loss=True)
    assert (actions(repair), undecided(repair)) == ([], ["data-checksum"])
    _, result = recover(scene, scene.replica)
    assert result.exit_status_name == "clean"
    assert same_bytes(scene)


def written_wrong(scene: Scene, number: int) -> None:
    """A record whose own checksum is right, and that of its data is not."""
    good = scene.records[number]
    bad = Record(number, good.request_id, good.header, good.data, good.data_checksum ^ 1, 0)
    bad = replace(bad, record_checksum=sealed(bad))
    path, start = scene.home(number), scene.offset(number)
    data = path.read_bytes()
    path.write_bytes(data[:start] + bad.encode() + data[start + good.size :])


def other_data(scene: Scene, number: int) -> bytes:
    """A record with other data behind the checksum of what was sent; its own checksum is right."""
    good = scene.records[number]
    assert any(good.data)
    bad = Record(number, good.request_id, good.header, bytes(len(good.data)), good.data_checksum, 0)
    return Record(number, bad.request_id, bad.header, bad.data, bad.data_checksum, sealed(bad)).encode()


@pytest.mark.parametrize("beside", ["here", "there", "both"])
def test_what_stands_beside_a_record_with_other_data_comes_back_all_the_same(scene: Scene, beside: str) -> None:
    """Such a record proves its place by what stands in front of its data."""
    bad = other_data(scene, 60)
    roots = {"here": [scene.root], "there": [scene.replica], "both": [scene.root, scene.replica]}[beside]
    for root in roots:
        path = root / "0" / segment_name(50)
        data = path.read_bytes()
        path.write_bytes(data[: scene.offset(60)] + bad + data[scene.offset(61) :])
    scene.flip(59)
    scene.flip(61)
    repair, result = recover(scene, scene.replica)
    assert {59, 61} <= {step.from_transaction_id for step in repair.plan.steps if step.action == "restore-record"}
    assert result.exit_status_name == ("damage-remains" if beside == "both" else "clean")


def test_a_record_with_other_data_does_not_make_a_segment_somebody_elses(scene: Scene) -> None:
    """The replica bears out a damaged header though one record's data differs."""
    path = scene.seg(50)
    data = path.read_bytes()
    head = data[:12] + bytes([data[12] ^ 1]) + data[13:128]
    path.write_bytes(head + data[128 : scene.offset(60)] + other_data(scene, 60) + data[scene.offset(61) :])
    _, result = recover(scene, scene.replica)
    assert result.exit_status_name == "clean"
    assert same_bytes(scene)


def sealed(record: Record) -> int:
    return crc32(record.encode()[:-4])


@pytest.mark.turns(8)
@pytest.mark.parametrize(
    ("wrong", "lost"),
    [([59], 60), ([61], 60), ([58, 59, 61], 60), ([49], 50), ([50], 49), ([98, 99], 100), ([0], 1), ([129], 128)],
)
def test_a_record_that_is_wrong_itself_is_no_witness_of_the_one_beside_it(
    tmp_path: Path, wrong: list[int], lost: int
) -> None:
    """The nearest one that is right is: a replica that has another one there proves nothing."""
    scene = make_scene(tmp_path / "scene")
    for number in wrong:
        written_wrong(scene, number)
    scene.flip(lost)
    nearest = [next(n for n in range(lost, COUNT) if n not in (lost, *wrong))] if max(wrong) > lost < 127 else []
    nearest += [next(n for n in range(lost, -1, -1) if n not in (lost, *wrong))] if min(wrong) < lost > 1 else []
    for number in nearest:
        shutil.copytree(scene.replica, tmp_path / str(number))
        forge(tmp_path / str(number), scene, number)
        repair = plan_recover(scene.root, replicas=[tmp_path / str(number)])
        assert lost not in [step.from_transaction_id for step in repair.plan.steps], number
    _, result = recover(scene, scene.replica)
    assert result.exit_status_name == "clean"
    assert same_bytes(scene)


def forge(root: Path, scene: Scene, number: int) -> None:
    """Another record of the same size under an id."""
    old, start = scene.records[number], scene.offset(number)
    forged = Record.make(number, RequestId(9, 9, 9, 9), old.header, old.data)
    path = root / "0" / scene.home(number).name
    data = path.read_bytes()
    path.write_bytes(data[:start] + forged.encode() + data[start + old.size :])


def test_a_torn_end_above_the_mark_is_cut_and_costs_nothing(scene: Scene) -> None:
    path = scene.seg(100)
    path.write_bytes(path.read_bytes()[:-5])
    repair, result = recover(scene)
    assert actions(repair) == ["cut-torn-tail", "rebuild-index"]
    assert not repair.plan.loses_data
    assert result.exit_status_name == "clean"
    assert scene.intact_ids() == list(range(129))


def test_a_whole_last_record_with_a_flipped_bit_is_taken_from_a_replica_when_there_is_one(scene: Scene) -> None:
    scene.flip(129)
    repair, _ = recover(scene, scene.replica)
    assert actions(repair) == ["restore-record"]
    assert same_bytes(scene)


def test_an_acknowledged_tail_is_never_cut_without_being_told_and_comes_back_from_a_replica(scene: Scene) -> None:
    path = scene.seg(100)
    path.write_bytes(path.read_bytes()[: scene.offset(105) + 7])
    repair, result = recover(scene)
    assert (actions(repair), undecided(repair)) == (["rebuild-index"], ["torn-tail", "acknowledged-missing"])
    assert result.exit_status_name == "damage-remains"
    repair, result = recover(scene, scene.replica)
    assert "restore-record" in actions(repair)
    assert result.exit_status_name == "clean"
    assert scene.intact_ids() == list(range(MARK + 1)), "what was acknowledged, and nothing that nobody promised"
    assert path.read_bytes() == head(scene, 100) + b"".join(one.encode() for one in scene.records[100 : MARK + 1])


def head(scene: Scene, first: int) -> bytes:
    return segment_header(0, first).encode()


def test_an_acknowledged_tail_given_up_stays_named(scene: Scene) -> None:
    path = scene.seg(100)
    path.write_bytes(path.read_bytes()[: scene.offset(105) + 7])
    repair, result = recover(scene, loss=True)
    wanted = ["cut-torn-tail", "lower-local-low-water-mark", "rebuild-index", "accept-loss"]
    assert actions(repair) == wanted
    assert repair.plan.loses_data
    assert codes(scene.root) == {"loss-accepted"}
    assert result.exit_status_name == "damage-remains"


def test_a_torn_end_in_front_of_another_segment_comes_back(scene: Scene) -> None:
    path = scene.seg(50)
    path.write_bytes(path.read_bytes()[: scene.offset(97) + 20])
    repair, _ = recover(scene)
    assert undecided(repair) == ["torn-tail"]
    assert repair.plan.undecided[0].missing == 3, "it tells of all that is missing up to the next segment"
    _, result = recover(scene, scene.replica)
    assert result.exit_status_name == "clean"
    assert same_bytes(scene)


def test_a_torn_end_in_front_of_another_segment_given_up_leaves_a_gap(scene: Scene) -> None:
    path = scene.seg(50)
    path.write_bytes(path.read_bytes()[: scene.offset(97) + 20])
    recover(scene, loss=True)
    assert codes(scene.root) == {"segment-gap", "loss-accepted"}
    assert scene.intact_ids() == [*range(97), *range(100, 130)]


@pytest.mark.turns(8)
@pytest.mark.parametrize("with_index", [True, False])
@pytest.mark.parametrize("first", [0, 50, 100])
def test_a_missing_segment_comes_back_from_a_replica(scene: Scene, first: int, with_index: bool) -> None:
    scene.seg(first).unlink()
    if not with_index:
        scene.idx(first).unlink()
    repair, result = recover(scene)
    assert (result.applied, result.exit_status_name) == (False, "damaged")
    assert set(undecided(repair)) <= {"segment-gap", "acknowledged-missing", "index-orphan"}
    assert undecided(repair)
    _, result = recover(scene, scene.replica)
    assert result.exit_status_name == "clean"
    whole = first != 100 or with_index  # without its index nothing tells that there was more than is acknowledged
    assert scene.intact_ids() == list(range(130 if whole else MARK + 1))
    if with_index:
        assert same_bytes(scene), "the index header knows the creation time"


def test_an_orphan_index_with_entries_is_not_cleared_away_as_if_nothing_was_lost(scene: Scene) -> None:
    rewrite_mark(scene.root, 0, -1)
    scene.seg(100).unlink()
    repair, result = recover(scene)
    assert (actions(repair), undecided(repair)) == ([], ["index-orphan"])
    repair, result = recover(scene, loss=True)
    assert actions(repair) == ["remove-orphan-index", "accept-loss"]
    assert repair.plan.loses_data
    assert result.exit_status_name == "damage-remains"
    assert codes(scene.root) == {"loss-accepted"}


def test_an_orphan_index_without_entries_is_removed(scene: Scene) -> None:
    orphan = scene.idx(130)
    orphan.write_bytes(segment_header(0, 130).encode())
    repair, result = recover(scene)
    assert actions(repair) == ["remove-orphan-index"]
    assert not repair.plan.loses_data
    assert result.exit_status_name == "clean"
    assert same_bytes(scene)


@pytest.mark.parametrize("size", [0, 5, 127])
def test_an_empty_segment_file_at_the_end_is_removed(scene: Scene, size: int) -> None:
    scene.seg(130).write_bytes(head(scene, 130)[:size])
    scene.idx(130).write_bytes(head(scene, 130))
    repair, result = recover(scene)
    assert actions(repair) == ["remove-empty-segment", "remove-orphan-index"]
    assert result.exit_status_name == "clean"
    assert same_bytes(scene)


def test_a_short_file_that_held_records_is_not_removed_but_comes_back(scene: Scene) -> None:
    scene.seg(50).write_bytes(head(scene, 50)[:60])
    repair, _ = recover(scene)
    assert actions(repair) == []
    assert set(undecided(repair)) == {"segment-gap", "segment-header-short"}
    _, result = recover(scene, scene.replica)
    assert result.exit_status_name == "clean"
    assert same_bytes(scene)


@pytest.mark.parametrize(("mark", "first"), [(29, 20), (25, 20), (14, 10)])
def test_what_a_torn_end_has_cost_is_as_much_to_recover_as_to_verify(tmp_path: Path, mark: int, first: int) -> None:
    """Where the index of the last segment lists several transactions in it, recover told of one."""
    storage = build_directory(tmp_path / "s", {0: 30}, per_segment=10, size=20, local_low_water_mark=mark)
    patch(storage / "0" / segment_name(first), HEADER_SIZE + 4 * 60, bytes(6 * 60))
    age(storage)
    (left,), (found,) = plan_recover(storage).plan.undecided, run(storage)[0]
    for one in (left, found):
        assert (one.code, one.transaction_id, one.missing) == ("torn-tail", first + 4, 6)


@pytest.mark.parametrize("mark", [14, 25])
def test_what_a_last_file_without_a_whole_header_held_is_counted_by_recover(tmp_path: Path, mark: int) -> None:
    """Its index tells of more than the mark does."""
    storage = build_directory(tmp_path / "s", {0: 30}, per_segment=10, size=20, local_low_water_mark=mark)
    (storage / "0" / segment_name(20)).write_bytes(bytes(60))
    age(storage)
    left, found = (
        sum(one.missing or 0 for one in told) for told in (plan_recover(storage).plan.undecided, run(storage)[0])
    )
    assert left == found == 10


def in_front(tmp_path: Path, *, reach: int, mark: int, last: bool) -> Path:
    """Segments of ten, of 40; that of 10 goes on in front of `reach`.  `last`: that of 20 is the last one."""
    records = make_records(40, size=20)
    parts = [records[:10], records[10:20], records[20:30], records[30:]][: 3 if last else 4]
    storage = build_directory(tmp_path / "s", {0: parts}, local_low_water_mark=mark)
    write_segment(storage / "0", records[10:reach])
    return storage


def counted(storage: Path) -> list[list[tuple[int | None, int | None]]]:
    """What verify, recover and rebuild-index count of segment 20: the first id and how many."""
    age(storage)
    told = (run(storage)[0], plan_recover(storage).plan.undecided, plan_rebuild_index(storage).plan.undecided)
    codes_of_ends = ("torn-tail", "segment-header-short")
    return [
        [(one.transaction_id, one.missing) for one in found if one.code in codes_of_ends and one.segment == 20]
        for found in told
    ]


@pytest.mark.parametrize("listed", [True, False])
@pytest.mark.parametrize(
    ("reach", "left"),
    [(20, (20, 10)), (21, (21, 9)), (26, (26, 4)), (29, (29, 1)), (30, (None, None)), (31, (None, None))],
)
def test_what_a_file_without_a_whole_header_has_cost_is_less_what_one_in_front_holds(
    tmp_path: Path, reach: int, left: tuple[int | None, int | None], listed: bool
) -> None:
    """By its index behind the mark, and by the next name, where recover tells the gap; verify alone took off what is held."""
    storage = in_front(tmp_path, reach=reach, mark=14, last=listed)
    (storage / "0" / segment_name(20)).write_bytes(bytes(60))
    if not listed:
        (storage / "0" / index_name(20)).unlink()
    verified, recovered_, rebuilt = counted(storage)
    assert verified == rebuilt == [left]
    assert recovered_ == ([left] if listed else [(None, None)])


@pytest.mark.parametrize(("last", "mark"), [(False, 14), (False, 39), (True, 29)])
@pytest.mark.parametrize(
    ("reach", "left"), [(24, (24, 6)), (25, (24, 6)), (26, (25, 5)), (27, (26, 4)), (30, (29, 1)), (31, (24, 0))]
)
def test_what_a_torn_end_has_cost_is_less_what_a_longer_one_in_front_holds(
    tmp_path: Path, reach: int, left: tuple[int, int], last: bool, mark: int
) -> None:
    """Its own last record is torn as well, so that neither is compared with the other."""
    storage = in_front(tmp_path, reach=reach, mark=mark, last=last)
    patch(storage / "0" / segment_name(20), HEADER_SIZE + 4 * 60, bytes(6 * 60))
    patch(storage / "0" / segment_name(10), HEADER_SIZE + (reach - 11) * 60, bytes(60))
    verified, recovered_, _ = counted(storage)
    assert verified == [left]
    assert recovered_ == ([left] if left[1] else [])


@pytest.mark.parametrize(
    ("reach", "left"), [(984, (984, 16)), (985, (985, 15)), (999, (999, 1)), (1000, (984, 0)), (1001, (984, 0))]
)
def test_what_an_index_would_forget_is_less_what_one_in_front_holds(
    tmp_path: Path, reach: int, left: tuple[int, int]
) -> None:
    """It stays all the same: what stands in front may be other records than those that it lists up to the checkpoint at 1000."""
    records = make_records(60, first=960, size=20)
    storage = build_directory(
        tmp_path / "s", {0: [make_records(960, size=20), records[:20], records[20:]]}, local_low_water_mark=970
    )
    write_segment(storage / "0", records[: reach - 960])
    path = storage / "0" / segment_name(980)
    path.write_bytes(path.read_bytes()[: HEADER_SIZE + 4 * 60])
    age(storage)
    (found,) = plan_rebuild_index(storage).plan.undecided
    assert (found.code, found.transaction_id, found.missing) == ("durable-missing", *left)
    verified = [(one.transaction_id, one.missing) for one in run(storage)[0] if one.code == "durable-missing"]
    assert verified == ([left] if left[1] else [])


def test_a_missing_partition_directory_comes_back_as_far_as_it_was_acknowledged(tmp_path: Path) -> None:
    scene = make_scene(tmp_path / "scene")
    shutil.rmtree(scene.root / "0")
    repair, result = recover(scene)
    assert undecided(repair) == ["partition-directory-missing"]
    _, result = recover(scene, scene.replica)
    assert result.exit_status_name == "clean"
    assert scene.intact_ids() == list(range(MARK + 1))


@pytest.mark.parametrize("session", [-1, 0])
def test_a_missing_directory_is_given_up_whatever_session_was_in_it(tmp_path: Path, session: int) -> None:
    """Before the first session the command that was named did nothing, and none came behind it."""
    storage = build_directory(tmp_path / "s", {0: 5, 1: 0}, session=session, local_low_water_mark=-1)
    shutil.rmtree(storage / "0")
    assert undecided(plan_recover(storage)) == ["partition-directory-missing"]
    result = apply(plan_recover(storage, allow_data_loss=True), arguments=[])
    assert (result.applied, result.exit_status_name) == (True, "clean")
    assert run(age(storage))[1].status == "clean"
    (storage / "1" / segment_name(0)).unlink()
    (storage / "1" / index_name(0)).unlink()
    steps = actions(plan_recover(storage, partitions=[1], allow_data_loss=True))
    assert bool(steps) == (session == 0), "an empty one before the first session is as it should be"


def test_two_replicas_that_disagree_give_nothing(scene: Scene) -> None:
    forge(scene.other, scene, 60)
    scene.flip(60)
    for order in ((scene.replica, scene.other), (scene.other, scene.replica)):
        repair = plan_recover(scene.root, replicas=order)
        assert (actions(repair), undecided(repair)) == ([], ["record-checksum"])
        assert "disagree" in repair.plan.undecided[0].message


@pytest.mark.parametrize("neighbour", [59, 61])
def test_a_replica_whose_neighbours_differ_proves_nothing(scene: Scene, neighbour: int) -> None:
    forge(scene.replica, scene, neighbour)
    scene.flip(60)
    repair = plan_recover(scene.root, replicas=[scene.replica])
    assert actions(repair) == []
    assert str(neighbour) in repair.plan.undecided[0].message
    _, result = recover(scene, scene.replica, scene.other)
    assert result.exit_status_name == "clean"


@pytest.mark.parametrize(("lost", "neighbour"), [(50, 49), (99, 100), (100, 99)])
def test_neighbours_count_across_the_bounds_of_segments(scene: Scene, lost: int, neighbour: int) -> None:
    forge(scene.replica, scene, neighbour)
    scene.flip(lost)
    assert "restore-record" not in actions(plan_recover(scene.root, replicas=[scene.replica]))
    _, result = recover(scene, scene.other)
    assert result.exit_status_name == "clean"
    assert same_bytes(scene)


def test_an_empty_last_segment_is_compared_by_the_record_in_front_of_it(scene: Scene) -> None:
    scene.seg(100).write_bytes(head(scene, 100))
    scene.idx(100).write_bytes(head(scene, 100))
    old = scene.records[99]
    forged = Record.make(99, RequestId(9, 9, 9, 9), old.header, old.data)
    path = scene.replica / "0" / segment_name(50)
    path.write_bytes(path.read_bytes()[: scene.offset(99)] + forged.encode())
    assert undecided(plan_recover(scene.root, replicas=[scene.replica])) == ["acknowledged-missing"]
    _, result = recover(scene, scene.other)
    assert result.exit_status_name == "clean"
    assert scene.intact_ids() == list(range(MARK + 1))


@pytest.mark.turns(10)
def test_hundreds_of_segments_without_an_intact_record_come_back_from_a_replica(tmp_path: Path) -> None:
    """The witnesses of their losses were looked for by calls within calls: 500 such segments ended with a traceback."""
    count = 500
    for name in ("here", "there"):
        build_directory(tmp_path / name, {0: [make_records(1, first=one, size=9) for one in range(count)]})
    for one in range(1, count - 1):
        flip(tmp_path / "here" / "0" / segment_name(one), HEADER_SIZE + 10)
    (tmp_path / "here" / "0" / segment_name(count // 2)).unlink()
    repair = plan_recover(tmp_path / "here", replicas=[tmp_path / "there"])
    assert (len(repair.plan.steps), repair.plan.undecided) == (count - 2, ())
    assert "restore-record" not in actions(plan_recover(tmp_path / "here"))


def test_a_replica_that_is_damaged_in_the_same_place_proves_nothing(scene: Scene) -> None:
    scene.flip(60)
    flip(scene.replica / "0" / segment_name(50), scene.offset(60) + 9)
    assert actions(plan_recover(scene.root, replicas=[scene.replica])) == []


def test_a_replica_without_indexes_is_as_good(scene: Scene) -> None:
    scene.flip(60)
    for path in scene.replica.rglob("*.idx"):
        path.unlink()
    _, result = recover(scene, scene.replica)
    assert same_bytes(scene)
    assert result.exit_status_name == "clean"


def test_replicas_cut_into_other_segments_are_as_good(scene: Scene, tmp_path: Path) -> None:
    other = build_directory(
        tmp_path / "cut",
        {0: [list(scene.records[:61]), list(scene.records[61:63]), list(scene.records[63:])], 1: 20},
        local_low_water_mark=10,
    )
    path = scene.seg(50)
    data = bytearray(path.read_bytes())
    data[scene.offset(60) : scene.offset(64)] = bytes(scene.offset(64) - scene.offset(60))
    path.write_bytes(data)
    _, result = recover(scene, other)
    assert result.exit_status_name == "clean"
    assert same_bytes(scene)


def test_a_replica_of_another_cluster_is_refused(scene: Scene, tmp_path: Path) -> None:
    import uuid

    foreign = build_directory(tmp_path / "foreign", {0: 130, 1: 20}, key=uuid.UUID(int=5))
    scene.flip(60)
    with pytest.raises(MismatchError, match="cluster key"):
        plan_recover(scene.root, replicas=[foreign])
    more = build_directory(tmp_path / "more", {0: 130, 1: 20}, num_partitions=3)
    with pytest.raises(MismatchError, match="partitions"):
        plan_recover(scene.root, replicas=[more])
    with pytest.raises(InvalidRequestError):
        plan_recover(scene.root, replicas=[scene.root / "." / "0" / ".."])
    with pytest.raises(NotWaltzError):
        plan_recover(scene.root, replicas=[scene.replica / "0"])


def lie_about_length(scene: Scene) -> None:
    """Length 1 GiB, and another data checksum and data, so that no checksum tells the record's true bounds."""
    number = next(one.transaction_id for one in scene.records[112:] if one.size > 100)
    path, at = scene.seg(100), scene.offset(number)
    data = bytearray(path.read_bytes())
    data[at + 28 : at + 70] = b"\x40\0\0\0" + random.Random(8).randbytes(38)
    path.write_bytes(data)


def test_a_lying_length_without_an_index_does_not_let_the_records_behind_it_be_cut(scene: Scene) -> None:
    """A length that leads beyond the file looks like a torn record; the records behind it go on to the file's very end."""
    scene.idx(100).unlink()
    lie_about_length(scene)
    repair, _ = recover(scene)
    assert undecided(repair) == ["record-length"]
    assert set(actions(repair)) <= {"rebuild-index"}
    recover(scene, scene.replica)
    assert scene.intact_ids() == list(range(130))


def test_a_lying_length_and_a_torn_end_are_left_to_a_person(scene: Scene) -> None:
    scene.idx(100).unlink()
    lie_about_length(scene)
    path = scene.seg(100)
    path.write_bytes(path.read_bytes()[:-5])
    repair, _ = recover(scene)
    assert (actions(repair), undecided(repair)) == ([], ["torn-tail"])
    repair, _ = recover(scene, loss=True)
    assert repair.plan.loses_data


def test_records_out_of_order_that_are_somebody_elses_are_only_removed_when_told(scene: Scene) -> None:
    path = scene.seg(50)
    data = path.read_bytes()
    stray = Record.make(3, RequestId(1, 1, 1, 1), 0, b"stray").encode()
    damaged = data[: scene.offset(60)] + stray + data[scene.offset(60) :]
    path.write_bytes(damaged)
    repair, _ = recover(scene)
    assert undecided(repair) == ["record-order"]
    for replicas, loss in (((), True), ((scene.replica,), False)):
        path.write_bytes(damaged)
        repair, result = recover(scene, *replicas, loss=loss)
        assert actions(repair)[0] == "remove-bytes"
        assert result.exit_status_name == "clean", (
            "its request id names another partition: it is no second record of id 3"
        )
        assert same_bytes(scene)


def test_partitions_are_recovered_one_by_one_when_asked(scene: Scene) -> None:
    scene.flip(60)
    scene.idx(0, 1).unlink()
    repair = plan_recover(scene.root, partitions=[1])
    assert (actions(repair), undecided(repair)) == (["rebuild-index"], [])
    assert repair.partitions == (1,)
    repair = plan_recover(scene.root / "1")
    assert actions(repair) == ["rebuild-index"]
    with pytest.raises(InvalidRequestError):
        plan_recover(scene.root, partitions=[7])


@pytest.mark.turns(10)
@pytest.mark.parametrize("seed", [*range(7), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(7, 25))])
def test_any_mixture_of_damage_is_restored_from_a_replica_or_stays_named(tmp_path: Path, seed: int) -> None:
    """Without a replica, nothing that could be read before is gone afterwards; with one, every byte comes back."""
    source = random.Random(seed)
    scene = make_scene(tmp_path / "scene")
    for _ in range(source.randint(1, 5)):
        path = scene.seg(source.choice([0, 50, 100]))
        if not path.exists():
            continue
        data = bytearray(path.read_bytes())
        at = source.randrange(128, max(129, len(data)))
        kind = source.choice(["flip", "zero", "noise", "remove-index", "garble-index", "cut", "insert"])
        if kind == "flip" and at < len(data):
            data[at] ^= 1 << source.randrange(8)
        elif kind == "zero":
            data[at : at + 300] = bytes(len(data[at : at + 300]))
        elif kind == "noise":
            data[at : at + 100] = source.randbytes(len(data[at : at + 100]))
        elif kind == "cut":
            del data[at : at + source.randint(1, 200)]
        elif kind == "insert":
            data[at:at] = source.randbytes(source.randint(1, 60))
        elif kind == "remove-index":
            path.with_suffix(".idx").unlink(missing_ok=True)
        elif path.with_suffix(".idx").exists():
            flip(path.with_suffix(".idx"), source.randrange(path.with_suffix(".idx").stat().st_size), 0x10)
        path.write_bytes(data)
    before = set(readable(scene))
    recover(scene, loss=source.random() < 0.5)
    assert set(readable(scene)) >= before
    restored = make_scene(tmp_path / "second")
    for path in scene.root.rglob("0*.*"):
        shutil.copy(path, restored.root / path.relative_to(scene.root)) if path.parent.name == "0" else None
    _, result = recover(restored, restored.replica)
    assert set(readable(restored)) >= set(range(MARK + 1))
    assert result.exit_status_name == "clean"


def readable(scene: Scene) -> list[int]:
    """Ids that the scanner can still find in partition 0."""
    from waltzctl.engine.scan.byte_source import FileSource
    from waltzctl.engine.scan.columns import RecordBatch
    from waltzctl.engine.scan.scanner import scan_records

    found: list[int] = []
    for path in sorted((scene.root / "0").glob("*.seg")):
        with FileSource(path) as source:
            for item in scan_records(source, first_transaction_id=int(path.stem)):
                if isinstance(item, RecordBatch):
                    found += item.transaction_id.tolist()
    return found


def test_the_helpers_read_what_was_written(scene: Scene) -> None:
    assert scene.intact_ids() == list(range(130))
    assert [one.transaction_id for one in read_all(scene.seg(0, 1))] == list(range(20))
    assert make_records(1)[0].transaction_id == 0
    assert index_name(0).endswith(".idx")


@pytest.mark.parametrize("held", [40, 41, 49, 50, 51])
def test_what_a_replica_has_of_a_lost_end_comes_back_before_the_rest_is_given_up(tmp_path: Path, held: int) -> None:
    """The index without data lists ten; a replica that ends within them brings back its part, and only on demand."""
    whole = make_records(60, seed=6)
    path = build_directory(tmp_path / "d", {0: [whole[:40], whole[40:50]]}, local_low_water_mark=20)
    replica = build_directory(tmp_path / "replica", {0: [whole[:held]]}, local_low_water_mark=20)
    (path / "0" / segment_name(40)).unlink()
    repair, _ = recovered(path, replica)
    assert any(step.action.startswith("restore") for step in repair.plan.steps) == (held >= 50)
    repair, result = recovered(path, replica, loss=True)
    there = [record.transaction_id for file in sorted((path / "0").glob("*.seg")) for record in read_all(file)]
    assert there == list(range(min(held, 50)))
    given_up = [
        (step.from_transaction_id, step.to_transaction_id) for step in repair.plan.steps if step.action == "accept-loss"
    ]
    assert given_up == ([(held, 49)] if held < 50 else [])
    assert (result.exit_status_name == "clean") == (held >= 50)


@pytest.mark.parametrize("mark", [6, 8, 9])
def test_wrong_ids_up_to_the_end_come_back_beyond_the_mark_as_well(tmp_path: Path, mark: int) -> None:
    """Nothing but the records themselves says how many there were: no index, and a mark in the middle of them."""
    right = make_records(10, seed=6)
    wrong = [Record.make(one.transaction_id + 100, one.request_id, one.header, one.data) for one in right[5:]]
    replica = build_directory(tmp_path / "replica", {0: [right]}, local_low_water_mark=mark)
    path = tmp_path / "d"
    shutil.copytree(replica, path)
    data = path / "0" / segment_name(0)
    own = data.read_bytes()
    data.write_bytes(own[: -len(body(wrong))] + body(wrong))
    (path / "0" / index_name(0)).unlink()
    _, result = recovered(path, replica)
    assert (data.read_bytes() == own, result.exit_status_name) == (True, "clean")


@pytest.mark.parametrize(("left", "alike"), [(1, True), (37, True), (37, False), (39, True), (40, True)])
def test_wrong_ids_in_front_of_a_torn_end_come_back_with_it(tmp_path: Path, left: int, *, alike: bool) -> None:
    """What is left of the last record comes back where it is how the replica's begins, else it is cut as any torn end."""
    right = make_records(10, seed=6)
    replica = build_directory(tmp_path / "replica", {0: [right]}, local_low_water_mark=4)
    path = tmp_path / "d"
    shutil.copytree(replica, path)
    data = path / "0" / segment_name(0)
    own = data.read_bytes()
    wrong = [Record.make(one.transaction_id + 100, one.request_id, one.header, one.data) for one in right[6:9]]
    torn = bytearray(body(right[9:])[:left])
    if not alike:
        torn[20] ^= 1
    data.write_bytes(own[: len(own) - len(body(right[6:]))] + body(wrong) + bytes(torn))
    (path / "0" / index_name(0)).unlink()
    _, result = recovered(path, replica)
    assert (data.read_bytes(), result.exit_status_name) == (own if alike else own[: -len(body(right[9:]))], "clean")


JUNK = bytes(28) + b"\xff\xff\xff\xfe" + bytes(20)
"""A record's header with a negative length, and no record."""


@pytest.mark.parametrize("number", [8, 9, 11])
@pytest.mark.parametrize("held", ["nothing", "a repeat", "another record"])
def test_bytes_between_records_that_follow_one_another_go_where_a_replica_has_both(
    tmp_path: Path, number: int, held: str
) -> None:
    """The command that verify names for them did nothing, in front of the last record, too."""
    other = Record.make(3, RECORDS[3].request_id, 0, b"never was there")
    junk = JUNK + {"nothing": b"", "a repeat": RECORDS[3].encode(), "another record": other.encode()}[held] + b"junk"

    def damage(twelve: Twelve) -> None:
        twelve.insert(8, at(number), junk)

    place = f"[{at(number)}+{len(junk)}]"
    told = planned(tmp_path / "replica", damage, "replica")
    if held == "another record":
        assert told[-1] == f"? record-length {number} x0 in 8 {place}"
    else:
        assert told == [f"remove-bytes 8.seg {place}", "= make 8.seg of 368"]
    assert planned(tmp_path / "unasked", damage)[-1] == f"? record-length {number} x0 in 8 {place}"
    assert planned(tmp_path / "loss", damage, "loss")[0] == f"remove-bytes 8.seg {place} loses"


@pytest.mark.parametrize("without", [8, 9])
def test_bytes_between_records_stay_where_the_replica_has_not_both(tmp_path: Path, without: int) -> None:
    def replica(twelve: Twelve) -> None:
        twelve.put(8, [8, 9, 10, 11], other=[without])

    told = planned(tmp_path, lambda twelve: twelve.insert(8, at(9), JUNK), "replica", replica=replica)
    assert told[-1] == f"? record-length 9 x0 in 8 [{at(9)}+{len(JUNK)}]"


@pytest.mark.parametrize("mark", [7, 8])
@pytest.mark.parametrize("damaged", [8, 9])
def test_what_is_left_of_a_record_stays_where_the_next_segment_has_lost_it(
    tmp_path: Path, damaged: int, mark: int
) -> None:
    """It was cut as nothing that matters, since the next segment's name says that the record begins it."""

    def damage(twelve: Twelve) -> None:
        twelve.mark(mark)
        twelve.insert(4, at(7) + 60, RECORDS[8].encode()[:50])
        twelve.spoil(damaged)

    sealed = [f"cut-torn-tail 4.seg [{at(7) + 60}+50]"]
    unasked, replica, loss = (planned(tmp_path / (way or "unasked"), damage, way) for way in ("", "replica", "loss"))
    assert unasked[:1] == (sealed if damaged == 9 or mark == 7 else [f"? torn-tail 8 x0 in 4 [{at(7) + 60}+50]"])
    assert replica[0] == sealed[0]
    assert "restore-record 8.seg" in replica[1]
    assert loss[0] == (sealed[0] if damaged == 9 or mark == 7 else f"cut-torn-tail 4.seg 8..8 [{at(7) + 60}+50] loses")
    assert f"accept-loss ledger {damaged}..{damaged} loses" in loss


@pytest.mark.parametrize("behind", [False, True])
@pytest.mark.parametrize("lacks", [None, 8, 9, 10])
def test_a_torn_tail_stays_where_the_next_segment_gets_nothing_back(
    tmp_path: Path, lacks: int | None, *, behind: bool
) -> None:
    """A replica that had its first record was enough, though only all that is lost there is restored, or nothing."""
    firsts = (0, 4, 8, 11) if behind else (0, 4, 8)
    damaged, replica = (Twelve(tmp_path / name, firsts=firsts) for name in ("d", "r"))
    damaged.seg(4).write_bytes(damaged.seg(4).read_bytes() + RECORDS[8].encode()[:-3])
    damaged.cut(8, HEADER_SIZE + 30)
    if lacks is not None:
        replica.spoil(lacks)
    repair = plan_recover(age(damaged.root), replicas=[age(replica.root)])
    stays = lacks is not None and (lacks < 10 or behind)
    assert ("cut-torn-tail" in actions(repair)) is not stays
    assert [(one.code, one.segment) for one in repair.plan.undecided if one.code == "torn-tail"] == (
        [("torn-tail", 4), ("torn-tail", 8)] if stays else []
    )
