"""What is not the partition's own is named, and never adopted, cut or removed; a damaged header is still restored."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.builders import build_directory, make_records
from tests.golden import GOLDEN, needs_golden
from tests.repair.scenes import flip
from tests.repair.trees import snapshot
from waltzctl.engine.errors import CorruptRecordError, DiskReadError, PartitionQuarantinedError, RefusedError
from waltzctl.engine.findings import Finding
from waltzctl.engine.inspect.verification import VerifyOptions, VerifySummary
from waltzctl.engine.inspect.verify import verify
from waltzctl.engine.log.view import SegmentView
from waltzctl.engine.repair import provenance
from waltzctl.engine.repair.apply import apply
from waltzctl.engine.repair.provenance import ProvenanceVerdict, judge
from waltzctl.engine.repair.rebuild_index import plan_rebuild_index
from waltzctl.engine.repair.recover import plan_recover
from waltzctl.engine.repair.truncate import plan_truncate
from waltzctl.engine.storage.append import PendingRecord, append_lines
from waltzctl.engine.storage.directory import StorageDirectory
from waltzctl.formats.request_id import RequestId
from waltzctl.formats.segment import HEADER_SIZE, Record, SegmentHeader, index_name, segment_name

FIRST = segment_name(0)
PARTITION_AT = 31
OTHER = uuid.UUID(int=99)


def records(partition: int, first: int, count: int, *, named: bool = True, size: int | None = None) -> list[Record]:
    """Records whose request ids name the partition, or all of them partition 0."""
    made = make_records(count, first=first, partition=partition, size=size)
    if named:
        return made
    ids = [replace(one.request_id, partition=0) for one in made]
    return [
        Record.make(one.transaction_id, number, one.header, one.data) for one, number in zip(made, ids, strict=True)
    ]


def build(
    path: Path, *, named: bool = True, size: int | None = None, segments: int = 2, key: uuid.UUID | None = None
) -> Path:
    """Partitions 1 and 2 of the same shape, ten records to a segment."""
    chosen = {
        number: [records(number, 10 * place, 10, named=named, size=size) for place in range(segments)]
        for number in (1, 2)
    }
    more = {} if key is None else {"key": key}
    return build_directory(path, chosen, num_partitions=3, local_low_water_mark=10 * segments - 5, **more)  # type: ignore[arg-type]


def swap(first: Path, second: Path) -> None:
    third = first.with_name("third")
    first.rename(third)
    second.rename(first)
    third.rename(second)


def damaged(path: Path) -> bool:
    return any(isinstance(one, VerifySummary) and one.status == "damaged" for one in verify((path,), VerifyOptions()))


def check_untouched(path: Path, *replicas: Path, partitions: Sequence[int]) -> None:
    """Recovery, with and without loss, names the first segment of each of these partitions and touches no file of them."""
    for loss in (False, True):
        before = snapshot(path)
        repair = plan_recover(path, replicas=replicas, allow_data_loss=loss)
        named = {one.partition for one in repair.plan.undecided if str(one.path).endswith(FIRST)}
        assert named >= set(partitions)
        result = apply(repair, arguments=["recover"])
        assert result.exit_status_name in ("damaged", "damage-remains")
        after = snapshot(path)
        for number in partitions:
            for name in (FIRST, index_name(0)):
                assert after.get(f"{number}/{name}") == before.get(f"{number}/{name}")
    assert damaged(path)


@pytest.mark.parametrize("segments", [1, 2])
@pytest.mark.parametrize("size", [None, 20], ids=["any-size", "one-size"])
def test_first_segments_swapped_between_partitions(tmp_path: Path, size: int | None, segments: int) -> None:
    """With records of one size even the index's entries agree; the request ids do not."""
    path = build(tmp_path / "d", size=size, segments=segments)
    replica = build(tmp_path / "replica", size=size, segments=segments)
    swap(path / "1" / FIRST, path / "2" / FIRST)
    check_untouched(path, partitions=(1, 2))
    check_untouched(path, replica, partitions=(1, 2))


def test_swapped_with_their_indexes(tmp_path: Path) -> None:
    path, replica = build(tmp_path / "d"), build(tmp_path / "replica")
    for name in (FIRST, index_name(0)):
        swap(path / "1" / name, path / "2" / name)
    check_untouched(path, partitions=(1, 2))
    check_untouched(path, replica, partitions=(1, 2))


def test_a_segment_of_another_cluster(tmp_path: Path) -> None:
    """Same partition, same ids, same request ids: the index's entries tell, or, where sizes are one, the replica."""
    path, replica = build(tmp_path / "d", size=20), build(tmp_path / "replica", size=20)
    other = build_directory(
        tmp_path / "other", {1: [make_records(10, partition=1, size=20, seed=5)]}, num_partitions=3, key=OTHER
    )
    shutil.copy(other / "1" / FIRST, path / "1" / FIRST)
    check_untouched(path, replica, partitions=(1,))
    varying = build(tmp_path / "varying")
    shutil.copy(other / "1" / FIRST, varying / "1" / FIRST)
    check_untouched(varying, partitions=(1,))


@pytest.mark.parametrize("named", [True, False], ids=["released-request-ids", "any-request-ids"])
@pytest.mark.parametrize("size", [None, 20], ids=["any-size", "one-size"])
@pytest.mark.parametrize("place", [13, PARTITION_AT], ids=["key", "partition"])
def test_a_flipped_bit_in_a_header_is_still_restored(
    tmp_path: Path, place: int, size: int | None, *, named: bool
) -> None:
    """A program may write other partitions into its request ids: where the segment beside does so too, they say nothing."""
    path, replica = build(tmp_path / "d", named=named, size=size), build(tmp_path / "replica", named=named, size=size)
    before = (path / "1" / FIRST).read_bytes()
    for replicas in ((), (replica,)):
        flip(path / "1" / FIRST, place, 4)
        result = apply(plan_recover(path, replicas=replicas), arguments=["recover"])
        assert result.exit_status_name == "clean"
        assert (path / "1" / FIRST).read_bytes() == before


def test_a_single_segment_with_other_request_ids_needs_a_replica(tmp_path: Path) -> None:
    path, replica = (build(tmp_path / name, named=False, segments=1) for name in ("d", "replica"))
    flip(path / "1" / FIRST, PARTITION_AT, 4)
    repair = plan_recover(path)
    assert [one.code for one in repair.plan.undecided] == ["segment-partition"]
    assert "request ids" in repair.plan.undecided[0].message
    assert apply(plan_recover(path, replicas=[replica]), arguments=["recover"]).exit_status_name == "clean"


def test_a_replica_that_contradicts_stops_the_repair_of_a_header(tmp_path: Path) -> None:
    path, replica = build(tmp_path / "d", size=20), build(tmp_path / "replica", size=20)
    body = b"".join(one.encode() for one in make_records(10, partition=1, size=20, seed=7))
    other = replica / "1" / FIRST
    other.write_bytes(other.read_bytes()[:HEADER_SIZE] + body)
    flip(path / "1" / FIRST, PARTITION_AT, 4)
    repair = plan_recover(path, replicas=[replica])
    assert (repair.plan.steps, [one.code for one in repair.plan.undecided]) == ((), ["segment-partition"])
    assert "holds other records" in repair.plan.undecided[0].message


@pytest.mark.parametrize(("entries", "own"), [(9, True), (10, True), (11, True)])
def test_an_index_that_a_crash_left_behind_or_ahead_is_still_a_witness(
    tmp_path: Path, entries: int, *, own: bool
) -> None:
    path = build(tmp_path / "d")
    index = path / "1" / index_name(10)
    data = index.read_bytes() + (path / "1" / segment_name(10)).stat().st_size.to_bytes(8)
    index.write_bytes(data[: HEADER_SIZE + 8 * entries])
    flip(path / "1" / segment_name(10), PARTITION_AT, 4)
    assert (apply(plan_recover(path), arguments=["recover"]).exit_status_name == "clean") == own


def foreign_behind(path: Path) -> Path:
    """A segment of partition 2 behind the last one of partition 1, with its own header but for the first id."""
    target = path / "1" / segment_name(20)
    body = b"".join(one.encode() for one in records(2, 20, 5))
    target.write_bytes(SegmentHeader(0, 5, read_key(path), 2, 20).encode() + body)
    return target


def read_key(path: Path) -> uuid.UUID:
    return SegmentHeader.decode((path / "1" / FIRST).read_bytes()[:HEADER_SIZE]).cluster_key


@pytest.mark.parametrize("after", [5, 14, 18, 19])
@pytest.mark.parametrize("loss", [False, True])
def test_truncate_neither_removes_nor_cuts_what_is_foreign(tmp_path: Path, after: int, *, loss: bool) -> None:
    path = build(tmp_path / "d")
    target = foreign_behind(path)
    before = snapshot(path)
    with pytest.raises(RefusedError, match=target.name):
        plan_truncate(path, partition=1, after=after, allow_data_loss=loss)
    assert snapshot(path) == before


def test_truncate_has_no_file_moved_away_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The advice for a foreign file is to move it away: with a bad sector in an index, it cost all records beside it."""
    path = build(tmp_path / "d")
    bad = FIRST

    def fail(view: SegmentView, *rest: Any) -> ProvenanceVerdict:
        if view.data_path.name == bad:
            raise DiskReadError(view.index_path, 200, OSError(5, "Input/output error"))
        return judge(view, *rest)

    monkeypatch.setattr(provenance, "judge", fail)
    assert plan_truncate(path, partition=1, after=16).plan.steps, "what stays is not asked"
    bad = segment_name(10)
    with pytest.raises(DiskReadError, match="cannot read at offset 200"):
        plan_truncate(path, partition=1, after=16)
    assert [one.code for one in plan_rebuild_index(path).plan.undecided] == ["read-error", "read-error"]


def test_truncate_cuts_no_foreign_segment(tmp_path: Path) -> None:
    path = build(tmp_path / "d")
    swap(path / "1" / segment_name(10), path / "2" / segment_name(10))
    with pytest.raises(RefusedError, match=segment_name(10)):
        plan_truncate(path, partition=1, after=16)
    with pytest.raises(RefusedError, match=segment_name(10)):
        plan_truncate(path, partition=1, after=5, allow_data_loss=True)


def test_truncate_goes_on_behind_a_header_that_is_only_damaged(tmp_path: Path) -> None:
    path = build(tmp_path / "d")
    flip(path / "1" / segment_name(10), PARTITION_AT, 4)
    assert plan_truncate(path, partition=1, after=16).plan.steps


def test_rebuild_index_leaves_the_index_of_a_foreign_data_file(tmp_path: Path) -> None:
    """It is the witness of what was there."""
    path = build(tmp_path / "d")
    swap(path / "1" / FIRST, path / "2" / FIRST)
    repair = plan_rebuild_index(path)
    assert repair.plan.steps == ()
    assert [one.code for one in repair.plan.undecided] == ["segment-partition", "segment-partition"]


@needs_golden
def test_a_foreign_segment_over_one_with_a_torn_end(tmp_path: Path) -> None:
    assert GOLDEN is not None
    path = tmp_path / "d"
    shutil.copytree(GOLDEN / "crashed" / "torn-header-only", path)
    for one in (path, *path.rglob("*")):
        one.chmod(0o755 if one.is_dir() else 0o644)
    shutil.copyfile(GOLDEN / "cluster-a" / "storage-1" / "3" / FIRST, path / "3" / FIRST)
    check_untouched(path, partitions=(3,))


@needs_golden
@pytest.mark.parametrize("replica", [False, True])
def test_segments_of_the_release_swapped(tmp_path: Path, *, replica: bool) -> None:
    assert GOLDEN is not None
    path = tmp_path / "d"
    shutil.copytree(GOLDEN / "cluster-a" / "storage-1", path)
    for one in (path, *path.rglob("*")):
        one.chmod(0o755 if one.is_dir() else 0o644)
    swap(path / "0" / FIRST, path / "3" / FIRST)
    check_untouched(path, *([GOLDEN / "cluster-a" / "storage-2"] if replica else []), partitions=(0, 3))


def test_the_helpers_write_what_they_say(tmp_path: Path) -> None:
    assert not damaged(build(tmp_path / "d"))
    assert {one.request_id.partition for one in records(2, 0, 3, named=False)} == {0}
    assert records(2, 0, 1)[0].request_id == RequestId(*make_records(1, partition=2)[0].request_id.by_name().values())


@pytest.mark.parametrize("count", [1, 2])
def test_a_single_record_proves_nothing_of_the_cluster(tmp_path: Path, count: int) -> None:
    """It stands where the only entry of every index points; with two, the second entry tells."""

    def one(path: Path, key: uuid.UUID | None, seed: int) -> Path:
        more = {} if key is None else {"key": key}
        made = [make_records(count, partition=1, seed=seed)]
        return build_directory(path, {1: made}, num_partitions=3, local_low_water_mark=count - 1, **more)  # type: ignore[arg-type]

    path, replica = one(tmp_path / "d", None, 3), one(tmp_path / "replica", None, 3)
    own = (path / "1" / FIRST).read_bytes()
    shutil.copy(one(tmp_path / "other", OTHER, 5) / "1" / FIRST, path / "1" / FIRST)
    check_untouched(path, partitions=(1,))
    check_untouched(path, replica, partitions=(1,))
    (path / "1" / FIRST).write_bytes(own)
    flip(path / "1" / FIRST, 13, 4)
    assert bool(plan_recover(path).plan.steps) == (count > 1)
    assert apply(plan_recover(path, replicas=[replica]), arguments=["recover"]).exit_status_name == "clean"
    assert (path / "1" / FIRST).read_bytes() == own
    flip(path / "1" / FIRST, PARTITION_AT, 4)
    assert apply(plan_recover(path), arguments=["recover"]).exit_status_name == "clean"


def body_of(path: Path, source: int, target: int, first: int = 0, *, index: bool = False) -> None:
    """Copy what is behind the header of one partition's segment behind that of another's, for the index too."""
    for name in (segment_name(first), *([index_name(first)] if index else [])):
        ours, theirs = path / str(target) / name, path / str(source) / name
        ours.write_bytes(ours.read_bytes()[:HEADER_SIZE] + theirs.read_bytes()[HEADER_SIZE:])


def strange(path: Path) -> list[tuple[int | None, int | None]]:
    """Partition and segment of what verify takes for another partition's records."""
    return [
        (one.partition, one.segment)
        for one in verify((path,), VerifyOptions())
        if isinstance(one, Finding) and one.code == "segment-partition" and "request ids" in one.message
    ]


@pytest.mark.parametrize("index", [False, True], ids=["own-index", "with-index"])
@pytest.mark.parametrize("segments", [1, 2])
@pytest.mark.parametrize("gone", [False, True], ids=["copied", "moved"])
def test_records_of_another_partition_behind_an_own_header(
    tmp_path: Path, segments: int, *, index: bool, gone: bool
) -> None:
    """The segment beside it tells, or the other partition that holds them as well, or the index's entries."""
    path, replica = build(tmp_path / "d", segments=segments), build(tmp_path / "replica", segments=segments)
    body_of(path, 2, 1, index=index)
    if gone:
        shutil.rmtree(path / "2")
    if gone and index and segments == 1:
        assert strange(path) == [], "nothing but the request ids says so"
        repair = plan_recover(path, replicas=[replica])
        assert [one.code for one in repair.plan.undecided if one.partition == 1] == ["segment-partition"]
        assert "holds other records" in repair.plan.undecided[0].message
        return
    assert strange(path) == [(1, 0)]
    check_untouched(path, partitions=(1,))
    check_untouched(path, replica, partitions=(1,))
    assert "segment-partition" in [one.code for one in plan_rebuild_index(path).plan.undecided]
    with pytest.raises(RefusedError, match=FIRST):
        plan_truncate(path, partition=1, after=4, allow_data_loss=True)


@pytest.mark.parametrize("index", [False, True], ids=["own-index", "with-index"])
@pytest.mark.parametrize("first", [0, 10])
def test_a_partition_with_records_of_another_one_opens_quarantined(tmp_path: Path, first: int, *, index: bool) -> None:
    """Sealed or last: none of them is served as its own, no id is given away over them, and nothing is mended around them."""
    path = build(tmp_path / "d")
    body_of(path, 2, 1, first, index=index)
    index_before = (path / "1" / index_name(first)).read_bytes()
    with pytest.raises(PartitionQuarantinedError) as refused:
        append_lines(path, partition=1, records=[PendingRecord(b"x")])
    assert ("segment-partition", first) in [(one.code, one.segment) for one in refused.value.findings]
    assert (path / "1" / index_name(first)).read_bytes() == index_before
    with StorageDirectory.open(path) as storage:
        partition = storage.partition(1)
        assert partition.quarantined
        kept = partition.read_range(10 - first, 10)
        assert [one.request_id.partition for one in kept] == [1] * 10
        with pytest.raises(CorruptRecordError):
            partition.read(first)
        assert not storage.partition(2).quarantined


def test_an_overlap_with_a_stranger_keeps_the_own_segment(tmp_path: Path) -> None:
    """The copy reaches further, into the next own segment."""
    path = build(tmp_path / "d")
    body = b"".join(one.encode() for one in records(2, 0, 15))
    target = path / "1" / FIRST
    target.write_bytes(target.read_bytes()[:HEADER_SIZE] + body)
    before = (path / "1" / segment_name(10)).read_bytes()
    check_untouched(path, partitions=(1,))
    assert (path / "1" / segment_name(10)).read_bytes() == before


@pytest.mark.parametrize("segments", [1, 2, 3])
def test_request_ids_that_programs_fill_as_they_like_are_no_damage(tmp_path: Path, segments: int) -> None:
    """All of them name partition 0, in every partition; a damaged index is still rebuilt."""
    path = build(tmp_path / "d", named=False, segments=segments)
    assert not damaged(path)
    assert plan_recover(path).plan.steps == ()
    index = path / "1" / index_name(0)
    index.write_bytes(index.read_bytes()[:HEADER_SIZE] + bytes(80))
    assert strange(path) == []
    assert apply(plan_recover(path), arguments=["recover"]).exit_status_name == "clean"


def test_a_replica_with_other_segments_bears_out_a_header(tmp_path: Path) -> None:
    """The records are compared, not how the files divide them."""
    path = build_directory(tmp_path / "d", {1: [records(1, 0, 10)]}, num_partitions=3, local_low_water_mark=9)
    whole = records(1, 0, 10)
    replica = build_directory(
        tmp_path / "replica", {1: [whole[:3], whole[3:4], whole[4:]]}, num_partitions=3, local_low_water_mark=9
    )
    own = (path / "1" / FIRST).read_bytes()
    flip(path / "1" / FIRST, PARTITION_AT, 4)
    (path / "1" / index_name(0)).unlink()
    assert plan_recover(path).plan.steps == ()
    assert apply(plan_recover(path, replicas=[replica]), arguments=["recover"]).exit_status_name == "clean"
    assert (path / "1" / FIRST).read_bytes() == own


@pytest.mark.parametrize(("others", "expected"), [(1, [(1, 0)]), (2, [(1, 0), (1, 10)]), (3, [])])
def test_a_partition_is_told_by_most_of_its_segments(
    tmp_path: Path, others: int, expected: list[tuple[int, int]]
) -> None:
    """Of four segments some name partition 0: strangers, as long as most of those beside them name their own."""
    segments = [records(1, 10 * place, 10, named=place >= others) for place in range(4)]
    path = build_directory(tmp_path / "d", {1: segments}, num_partitions=3, local_low_water_mark=35)
    assert strange(path) == expected


def test_one_record_of_its_own_makes_a_segment_its_own(tmp_path: Path) -> None:
    mixed = [*records(1, 0, 9, named=False), *records(1, 9, 1)]
    path = build_directory(tmp_path / "d", {1: [mixed, records(1, 10, 10)]}, num_partitions=3, local_low_water_mark=15)
    assert not damaged(path)


def test_what_was_appended_behind_a_copy_does_not_make_it_own(tmp_path: Path) -> None:
    """The copied records stand in their own partition, whatever follows them here."""
    path = build(tmp_path / "d", segments=1)
    body_of(path, 2, 1)
    with (path / "1" / FIRST).open("ab") as file:
        file.write(b"".join(one.encode() for one in records(1, 10, 3)))
    assert strange(path) == [(1, 0)]


@pytest.mark.parametrize(
    ("name", "holds", "own"), [(10, 10, True), (10, 30, False), (30, 30, True), (30, 10, False), (30, 20, False)]
)
def test_a_renamed_file_that_is_damaged_where_it_begins_is_not_taken_for_its_name(
    tmp_path: Path, name: int, holds: int, *, own: bool
) -> None:
    """A replica has the records that are left in it, which says nothing of the name: their ids do."""
    whole = records(1, 0, 40)
    shape = [whole[:10], whole[10:20], whole[20:30], whole[30:]]
    path = build_directory(tmp_path / "d", {1: shape}, num_partitions=3, local_low_water_mark=39)
    replica = build_directory(tmp_path / "replica", {1: shape}, num_partitions=3, local_low_water_mark=39)
    file = path / "1" / segment_name(name)
    body = (path / "1" / segment_name(holds)).read_bytes()[HEADER_SIZE:]
    wrong = holds if holds != name else 40 - name  # where the records are its own, only the header's first id is wrong
    header = replace(SegmentHeader.decode(file.read_bytes()[:HEADER_SIZE]), first_transaction_id=wrong)
    file.write_bytes(header.encode() + body)
    flip(file, HEADER_SIZE + 30)
    before = file.read_bytes()
    for replicas in ((), (replica,)):
        repair = plan_recover(path, replicas=replicas)
        apply(repair, arguments=["recover"])
        if not own:
            assert file in [one.path for one in repair.plan.undecided]
            assert file.read_bytes() == before
    assert damaged(path) != own
