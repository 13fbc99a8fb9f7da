"""The weaknesses W1 to W9 of release 0.13.2 (docs/weaknesses.md): what is found when a directory is opened and read.

Each test shows first what the release would do with the very bytes, by `release_model`, and then what this engine does."""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Callable
from dataclasses import replace
from itertools import accumulate
from pathlib import Path

import pytest

from tests.builders import build_directory, digest, make_records, write_segment
from tests.storage import release_model
from tests.storage.support import (
    LAYOUTS,
    SMALL,
    assert_quarantined_and_kept,
    built,
    codes,
    damage,
    data_path,
    entries,
    expected_data,
    index_path,
    kept_bytes,
    offset_of,
    opened,
    write_at,
)
from waltzctl.engine.durable import disk
from waltzctl.engine.durable.relocation import RETURNING
from waltzctl.engine.errors import (
    ChecksumMismatchError,
    CorruptRecordError,
    DamageError,
    InvalidRequestError,
)
from waltzctl.engine.storage.directory import StorageDirectory
from waltzctl.formats.control import Layout, decode_control
from waltzctl.formats.segment import HEADER_SIZE, encode_entries


@LAYOUTS
def test_w1_a_damaged_record_is_never_served(tmp_path: Path, layout: Layout) -> None:
    records = built(tmp_path, 20, layout=layout, mark=19)
    victim = next(r for r in records[3:9] if len(r.data) > 10)
    offset = offset_of(records, victim.transaction_id) + 36
    damage(data_path(tmp_path), offset)
    data, index = data_path(tmp_path).read_bytes(), index_path(tmp_path).read_bytes()
    served = release_model.read(data, index, victim.transaction_id)
    assert served is not None, "the release serves a record"
    assert served != victim.data, "and it is not the one that was written"
    with opened(tmp_path) as storage:
        partition = storage.partition(0)
        with pytest.raises(CorruptRecordError) as caught:
            partition.read(victim.transaction_id)
        (finding,) = caught.value.findings
        assert (finding.path, finding.partition, finding.transaction_id, finding.offset) == (
            data_path(tmp_path), 0, victim.transaction_id, offset - 36,
        )  # fmt: skip
        others = [r for r in records if r is not victim]
        assert [partition.read(r.transaction_id) for r in others] == others, "all the others are served"
        assert partition.read_range(0, 20) == records[: victim.transaction_id], "a list ends in front of it"
        with pytest.raises(CorruptRecordError):
            partition.read_headers(victim.transaction_id, 5)


@LAYOUTS
def test_w1_data_that_disagrees_with_its_own_checksum_is_never_served(tmp_path: Path, layout: Layout) -> None:
    """The record's own checksum is right: what the release stores when a client sends damaged data."""
    good = make_records(10)
    head = replace(good[4], data_checksum=good[4].data_checksum ^ 1)
    bad = replace(head, record_checksum=zlib.crc32(head.encode()[:-4]))
    assert bad.record_ok
    assert not bad.data_ok
    build_directory(tmp_path, {0: [[*good[:4], bad, *good[5:]]]}, layout=layout, local_low_water_mark=-1)
    with opened(tmp_path) as storage:
        partition = storage.partition(0)
        assert not partition.quarantined, "the log itself is sound"
        assert codes(partition.findings) == ["data-checksum"]
        assert partition.mended == (), "nobody can mend it"
        with pytest.raises(CorruptRecordError) as caught:
            partition.read(4)
        assert codes(caught.value.findings) == ["data-checksum"]
        assert partition.read_range(5, 10) == good[5:]


@LAYOUTS
def test_w2_a_wrong_data_checksum_is_refused_at_append(tmp_path: Path, layout: Layout) -> None:
    built(tmp_path, 5, layout=layout)
    first, second = make_records(2, first=5)
    before = data_path(tmp_path).read_bytes()
    with opened(tmp_path) as storage:
        partition = storage.partition(0)
        wrong_data = replace(second, data_checksum=second.data_checksum ^ 1)
        wrong_data = replace(wrong_data, record_checksum=zlib.crc32(wrong_data.encode()[:-4]))
        for wrong in (wrong_data, replace(second, record_checksum=0), replace(second, data=b"another")):
            with pytest.raises(ChecksumMismatchError, match="transaction 6"):
                partition.append([first, wrong])
        assert partition.max_transaction_id == 4
        assert data_path(tmp_path).read_bytes() == before
        partition.append([first, second])


@LAYOUTS
def test_w3_damage_in_front_of_valid_records_costs_nothing(tmp_path: Path, layout: Layout) -> None:
    records = make_records(10, size=10)
    build_directory(tmp_path, {0: [records]}, layout=layout, local_low_water_mark=-1)
    damage(data_path(tmp_path), offset_of(records, 3) + 36)
    before = digest(tmp_path)
    theirs = release_model.open_segment(data_path(tmp_path).read_bytes(), index_path(tmp_path).read_bytes(), -1)
    assert (len(data_path(tmp_path).read_bytes()), len(theirs.data), theirs.last) == (628, 278, 2), (
        "3 to 9 are thrown away"
    )
    assert_quarantined_and_kept(tmp_path, before, "record-checksum")
    with opened(tmp_path) as storage:
        partition = storage.partition(0)
        assert partition.max_transaction_id == 2, "what is missing is not claimed"
        assert [partition.read(n) for n in (0, 1, 2, 4, 9)] == [records[n] for n in (0, 1, 2, 4, 9)]
        with pytest.raises(CorruptRecordError):
            partition.read(3)


@LAYOUTS
def test_w3_a_torn_tail_at_or_below_the_mark_is_no_torn_tail(tmp_path: Path, layout: Layout) -> None:
    built(tmp_path, 10, layout=layout, mark=9)
    damage(data_path(tmp_path), -1)
    before = digest(tmp_path)
    theirs = release_model.open_segment(data_path(tmp_path).read_bytes(), index_path(tmp_path).read_bytes(), 9)
    assert theirs.fatal == "record corrupted", "the released node never starts again"
    assert_quarantined_and_kept(tmp_path, before, "torn-tail")


@LAYOUTS
@pytest.mark.parametrize("cut", ["in the header of 1000", "in the data of 1000", "in the checksum of 1001"])
def test_w4_a_tear_at_the_checkpoint_boundary_after_a_power_loss(tmp_path: Path, layout: Layout, cut: str) -> None:
    records = make_records(1002, size=20)
    build_directory(tmp_path, {0: [records]}, layout=layout, local_low_water_mark=-1)
    size = {
        "in the header of 1000": offset_of(records, 1000) + 17,
        "in the data of 1000": offset_of(records, 1000) + 40,
        "in the checksum of 1001": offset_of(records, 1001) + 58,
    }[cut]
    os.truncate(data_path(tmp_path), size)
    data, index = data_path(tmp_path).read_bytes(), index_path(tmp_path).read_bytes()
    theirs = release_model.open_segment(data, index, -1)
    kept = 1000 if "1000" in cut else 1001
    if kept == 1000:
        assert theirs.fatal == "record corrupted", "an ordinary power loss stops the node"
        assert theirs.index != index, "which has changed the index before it found out"
    with opened(tmp_path) as storage:
        partition = storage.partition(0)
        assert not partition.quarantined
        assert partition.max_transaction_id == kept - 1
        assert partition.read_range(0, 2000) == records[:kept]
    assert data_path(tmp_path).read_bytes()[HEADER_SIZE:] == expected_data(records[:kept])
    assert len(entries(index_path(tmp_path))) == kept
    assert data[offset_of(records, kept) :] in kept_bytes(tmp_path), "even the torn bytes are kept"
    once = digest(tmp_path)
    with opened(tmp_path):
        pass
    assert digest(tmp_path) == once, "a second opening changes nothing"


@LAYOUTS
@pytest.mark.parametrize("length", [-1, -(2**31), 2**31 - 1, 10**6])
@pytest.mark.parametrize("victim", [3, 9])
def test_w5_a_length_that_lies_is_bounded(tmp_path: Path, layout: Layout, length: int, victim: int) -> None:
    records = built(tmp_path, 10, layout=layout)
    write_at(data_path(tmp_path), offset_of(records, victim) + 28, struct.pack(">i", length))
    if length < 0:
        theirs = release_model.open_segment(data_path(tmp_path).read_bytes(), index_path(tmp_path).read_bytes(), -1)
        assert theirs.fatal == "negative array size"
    with opened(tmp_path) as storage:
        partition = storage.partition(0)
        assert partition.max_transaction_id == victim - 1
        assert partition.quarantined == (victim == 3), "in the middle: kept; at the end: a torn tail"
        if victim == 3:
            with pytest.raises(CorruptRecordError):
                partition.read(3)
            assert partition.read_range(4, 10) == records[4:]


@LAYOUTS
def test_w5_a_length_is_bounded_by_the_configured_maximum(tmp_path: Path, layout: Layout) -> None:
    """It bounds what is read and appended; it never makes a record that is there look like damage."""
    records = make_records(3, size=300)
    build_directory(tmp_path, {0: [records]}, layout=layout, local_low_water_mark=-1)
    before = data_path(tmp_path).read_bytes()
    with StorageDirectory.open(tmp_path, options=replace(SMALL, max_data_length=299)) as storage:
        partition = storage.partition(0)
        assert (partition.quarantined, partition.max_transaction_id) == (False, 2)
        with pytest.raises(CorruptRecordError, match="configured maximum"):
            partition.read(0)
        with pytest.raises(InvalidRequestError, match="at most 299"):
            partition.append(make_records(1, first=3, size=300))
    assert data_path(tmp_path).read_bytes() == before


def _no_index(path: Path) -> None:
    index_path(path, 10).unlink()


def _short_index(path: Path) -> None:
    os.truncate(index_path(path, 10), 60)


def _empty_index(path: Path) -> None:
    os.truncate(index_path(path, 10), 0)


@LAYOUTS
@pytest.mark.parametrize("spoil", [_no_index, _short_index, _empty_index])
@pytest.mark.parametrize("count", [20, 30])
def test_w6_a_missing_or_short_index_is_rebuilt(
    tmp_path: Path, layout: Layout, spoil: Callable[[Path], None], count: int
) -> None:
    """Of the last segment (20 records) and of a sealed one (30)."""
    records = built(tmp_path, count, layout=layout, mark=5)
    before = digest(tmp_path)
    spoil(tmp_path)
    spoiled = index_path(tmp_path, 10).read_bytes() if index_path(tmp_path, 10).exists() else None
    assert release_model.open_segment(data_path(tmp_path, 10).read_bytes(), spoiled, 5).fatal == "end of file"
    with opened(tmp_path) as storage:
        assert not storage.partition(0).quarantined
        assert storage.partition(0).read_range(0, 50) == records
        assert {"index-missing", "index-header"} & set(codes(storage.findings))
    after = digest(tmp_path)
    assert {name: after[name] for name in before} == before, "the same bytes as before"


@LAYOUTS
@pytest.mark.parametrize("size", [0, 1, 127])
@pytest.mark.parametrize("records_before", [0, 20])
def test_w6_a_trailing_data_file_without_header_is_set_aside(
    tmp_path: Path, layout: Layout, size: int, records_before: int
) -> None:
    records = built(tmp_path, records_before, layout=layout)
    short = data_path(tmp_path, records_before)
    short.write_bytes(bytes(size))
    index_path(tmp_path, records_before).write_bytes(b"")
    assert release_model.open_segment(short.read_bytes(), b"", -1).fatal == "end of file", "the node does not start"
    with opened(tmp_path) as storage:
        partition = storage.partition(0)
        assert not partition.quarantined
        assert codes(partition.findings) == ["segment-header-short"]
        assert partition.max_transaction_id == records_before - 1
        more = make_records(12, first=records_before, size=100)
        partition.append(more)
        assert partition.read_range(0, 100) == [*records, *more]


@LAYOUTS
def test_w6_a_short_data_file_in_the_middle_or_behind_a_gap_quarantines(tmp_path: Path, layout: Layout) -> None:
    built(tmp_path / "a", 30, layout=layout)
    os.truncate(data_path(tmp_path / "a", 10), 100)
    assert_quarantined_and_kept(tmp_path / "a", digest(tmp_path / "a"), "segment-header-short")
    built(tmp_path / "b", 20, layout=layout)
    data_path(tmp_path / "b", 25).write_bytes(b"")
    assert_quarantined_and_kept(tmp_path / "b", digest(tmp_path / "b"), "segment-gap")


@LAYOUTS
@pytest.mark.parametrize("spoil", ["pair", "stored id", "records"])
def test_w6_one_bad_partition_stops_no_other(tmp_path: Path, layout: Layout, spoil: str) -> None:
    build_directory(tmp_path, {0: 10, 1: 10, 2: 10}, layout=layout, local_low_water_mark=-1)
    control = tmp_path / "waltz-storage.ctl"
    if spoil == "pair":
        for number in (1, 2):
            damage(control, layout.struct_offset(1, number))
        info = decode_control(control.read_bytes()).partitions[1]
        assert info.current is None, "the release refuses to start with this"
    elif spoil == "stored id":
        damage(control, layout.info_offset(1) + 3)
    else:
        damage(data_path(tmp_path, partition=1), HEADER_SIZE + 3)
    before = digest(tmp_path)
    with opened(tmp_path) as storage:
        assert [number for number, p in storage.partitions.items() if p.quarantined] == [1]
        for number in (0, 2):
            partition = storage.partition(number)
            partition.append(make_records(1, first=10, partition=number))
            partition.set_low_water_mark(9, 10)
        assert storage.partition(1).read(5) == make_records(10, partition=1)[5], "its records can still be read"
    after = digest(tmp_path)
    assert {n: d for n, d in after.items() if n.startswith("1/")} == {
        n: d for n, d in before.items() if n.startswith("1/")
    }


@LAYOUTS
@pytest.mark.parametrize("size", [1, 128])
def test_w7_an_orphan_index_never_blocks_appends(tmp_path: Path, layout: Layout, size: int) -> None:
    """Left by a crash in a roll-over: it has no entries, and all that its name proves is there."""
    built(tmp_path, 20, layout=layout)
    orphan = index_path(tmp_path, 20)
    orphan.write_bytes((index_path(tmp_path).read_bytes() * 2)[:size])
    assert release_model.roll_fails({orphan.name: size}, 20), "in the release every append fails from 20 on"
    with opened(tmp_path) as storage:
        assert codes(storage.findings) == ["index-orphan"]
        assert not orphan.exists()
        partition = storage.partition(0)
        partition.append(make_records(20, first=20, size=100))
        partition.append(make_records(20, first=40, size=100))
        assert partition.max_transaction_id == 59


@LAYOUTS
@pytest.mark.parametrize("first", [10, 11])
def test_w7_an_orphan_index_with_entries_is_evidence(tmp_path: Path, layout: Layout, first: int) -> None:
    """Ten entries: other segments hold the transactions, so it is cleared away and kept; or they miss one, and it is damage."""
    built(tmp_path, 20, layout=layout, per_segment=20)
    orphan = index_path(tmp_path, first)
    records = make_records(20)[10:]
    entries = list(accumulate((one.size for one in records[:-1]), initial=HEADER_SIZE))
    orphan.write_bytes(index_path(tmp_path).read_bytes()[:HEADER_SIZE] + encode_entries(entries))
    kept, before = orphan.read_bytes(), digest(tmp_path)
    if first == 10:
        with opened(tmp_path) as storage:
            assert codes(storage.findings) == ["index-orphan"]
            storage.partition(0).append(make_records(20, first=20, size=100))
        assert not orphan.exists()
        assert kept in kept_bytes(tmp_path)
    else:
        assert_quarantined_and_kept(tmp_path, before, "index-orphan")


@LAYOUTS
def test_w7_an_orphan_that_appears_later_is_refused_by_the_roll_over(tmp_path: Path, layout: Layout) -> None:
    """Its entries stand for the ids that would be given away.  Without entries it says nothing."""
    build_directory(tmp_path, {0: [make_records(9, size=100)]}, layout=layout)
    with opened(tmp_path) as storage:
        orphan, partition = index_path(tmp_path, 9), storage.partition(0)
        orphan.write_bytes(b"x" * (HEADER_SIZE + 8))
        with pytest.raises(DamageError, match="1 entries where a segment is to begin"):
            partition.append(make_records(1, first=9))
        assert orphan.read_bytes() == b"x" * (HEADER_SIZE + 8)
        assert partition.max_transaction_id == 8
        orphan.write_bytes(b"x" * (HEADER_SIZE + 7))
        partition.append(make_records(1, first=9))
        assert data_path(tmp_path, 9).exists()
        assert entries(orphan) == [HEADER_SIZE]


@LAYOUTS
def test_w8_every_new_or_removed_name_is_durable_before_the_operation_returns(
    tmp_path: Path, layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The release syncs no directory.  (The crash harness shows the same by losing names.)"""
    build_directory(tmp_path, {0: 30}, layout=layout, num_partitions=2, local_low_water_mark=-1)
    changes: list[disk.Change] = []
    with opened(tmp_path) as storage:
        monkeypatch.setattr(disk, "observer", changes.append)
        partition = storage.partition(0)
        operations: list[Callable[[], object]] = [
            lambda: partition.append(make_records(30, first=30, size=200)),
            lambda: partition.truncate(12),
            lambda: partition.truncate(-1),
            lambda: storage.assign(1),
            lambda: storage.unassign(0, delete_files=False),
            lambda: storage.assign(0),
            lambda: storage.unassign(1, delete_files=True),
            lambda: storage.set_availability(0, writable=False),
        ]
        named = 0
        for operation in operations:
            changes.clear()
            operation()
            for place, change in enumerate(changes):
                if change.path.name == RETURNING:
                    continue  # a mark for a next process: after a power loss nothing is under way that it could speak of
                if change.kind in ("create", "unlink", "mkdir", "rmdir", "rename"):
                    named += 1
                    touched = {change.path.parent} | ({change.target.parent} if change.target else set())
                    synced = {c.path for c in changes[place:] if c.kind == "sync-directory"}
                    gone = {p for p in touched if not p.exists()}
                    assert touched - gone <= synced, change
        assert named > 30


@LAYOUTS
def test_w9_a_gap_between_segments_is_found_and_not_hidden(tmp_path: Path, layout: Layout) -> None:
    records = built(tmp_path, 40, layout=layout, mark=-1)
    for path in (data_path(tmp_path, 10), index_path(tmp_path, 10)):
        path.unlink()
    theirs = release_model.open_segment(data_path(tmp_path, 30).read_bytes(), index_path(tmp_path, 30).read_bytes(), -1)
    assert (theirs.fatal, theirs.last) == (None, 39), "the release says that it has everything up to 39"
    before = digest(tmp_path)
    assert_quarantined_and_kept(tmp_path, before, "segment-gap")
    with opened(tmp_path) as storage:
        partition = storage.partition(0)
        assert partition.max_transaction_id == 9
        assert [partition.read(n) for n in (9, 20, 39)] == [records[n] for n in (9, 20, 39)]
        for lost in (10, 15, 19):
            with pytest.raises(CorruptRecordError, match="missing"):
                partition.read(lost)
        assert partition.read_range(5, 20) == records[5:10]
        assert partition.read(40) is None


@LAYOUTS
@pytest.mark.parametrize("what", ["first segment", "end of a sealed segment", "overlap"])
def test_w9_other_joints_that_do_not_fit(tmp_path: Path, layout: Layout, what: str) -> None:
    records = built(tmp_path, 30, layout=layout)
    if what == "first segment":
        data_path(tmp_path).unlink()
        index_path(tmp_path).unlink()
    elif what == "end of a sealed segment":
        os.truncate(data_path(tmp_path, 10), offset_of(records[10:], 19) - 0)
    else:
        write_segment(tmp_path / "0", make_records(12), partition=0)
    before = digest(tmp_path)
    expected = {"first segment": "segment-gap", "end of a sealed segment": "segment-gap", "overlap": "segment-overlap"}
    assert_quarantined_and_kept(tmp_path, before, expected[what])
    first = 10 if what == "first segment" else 0
    with opened(tmp_path) as storage:
        partition = storage.partition(0)
        assert partition.first_transaction_id == first, "there is nothing to read before it"
        assert partition.read(first) == records[first]
