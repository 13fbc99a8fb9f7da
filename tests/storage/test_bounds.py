"""Bounds and figures of the storage engine, each one step to each side, asked of the functions that judge."""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.builders import build_directory, make_records, segment_header
from tests.repair.trees import recording
from tests.storage.support import (
    LAYOUTS,
    SMALL,
    built,
    damage,
    data_path,
    index_path,
    listed_at_once,
    offset_of,
    opened,
    write_at,
)
from waltzctl.engine.errors import (
    CorruptRecordError,
    InvalidRequestError,
    NotAssignedError,
    PartitionQuarantinedError,
)
from waltzctl.engine.storage import partition_log, partition_recovery, segment_reader
from waltzctl.engine.storage.creation import create_cluster
from waltzctl.engine.storage.directory import StorageDirectory
from waltzctl.engine.storage.partition_log import PartitionLog
from waltzctl.engine.storage.segment_files import ActiveSegment, whole_extent
from waltzctl.engine.storage.store import list_entries
from waltzctl.engine.storage.wire_records import WireRecords, packed
from waltzctl.formats.checksums import crc32
from waltzctl.formats.control import Layout
from waltzctl.formats.segment import HEADER_SIZE, Record, entry_position

# --- a record in a buffer -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, 30])
@pytest.mark.parametrize("begins", [0, 7])
def test_a_record_is_taken_only_as_a_whole(size: int, begins: int) -> None:
    (record,) = make_records(1, first=5, size=size)
    raw = bytes(begins) + record.encode()
    assert segment_reader._parse(memoryview(raw), begins, 5) == (record, record.size)
    assert segment_reader._parse(memoryview(raw + b"more"), begins, 5) == (record, record.size)
    for end in range(begins, len(raw)):
        assert segment_reader._parse(memoryview(raw[:end]), begins, 5) == (None, 0)
    for other in (4, 6):
        assert segment_reader._parse(memoryview(raw), begins, other) == (None, 0)
    for place in range(begins, len(raw)):
        flipped = raw[:place] + bytes([raw[place] ^ 1]) + raw[place + 1 :]
        assert segment_reader._parse(memoryview(flipped), begins, 5) == (None, 0)


@pytest.mark.parametrize("length", [-1, -4, -44, -(2**31)])
def test_a_negative_length_is_none(length: int) -> None:
    raw = bytearray(make_records(1, first=5, size=30)[0].encode())
    raw[32:36] = length.to_bytes(4, "big", signed=True)
    assert segment_reader._parse(memoryview(bytes(raw)), 0, 5) == (None, 0)


# --- opening ------------------------------------------------------------------------------------------------------


def test_partitions_are_assigned_in_order(tmp_path: Path) -> None:
    """Also where a set has another one."""
    found = create_cluster([tmp_path / "a"], num_partitions=9, assign=[8, 1, 8])
    assert found.directories[0].assigned == (1, 8)


@LAYOUTS
def test_what_is_not_assigned_is_not_taken_away_again(tmp_path: Path, layout: Layout) -> None:
    build_directory(tmp_path, {0: 5, 1: 5}, layout=layout)
    with opened(tmp_path) as storage:
        storage.unassign(1, delete_files=False)
        with recording() as changes, pytest.raises(NotAssignedError):
            storage.unassign(1, delete_files=False)
        assert changes == []
        storage.unassign(1, delete_files=True)
        with recording() as changes, pytest.raises(NotAssignedError):
            storage.unassign(1, delete_files=True)
        assert changes == []


@pytest.mark.parametrize("stale", [True, False])
def test_an_index_is_made_once(tmp_path: Path, stale: bool) -> None:
    """One that is stale in its place, in the quarantine; one that is missing beside its data file."""
    built(tmp_path, 10)
    index = index_path(tmp_path)
    if stale:
        index.write_bytes(segment_header(1, 0).encode() + index.read_bytes()[HEADER_SIZE:])
    else:
        index.unlink()
    with recording() as changes, opened(tmp_path):
        pass
    made = [one for one in changes if one.kind == "rename" and one.target == index]
    assert len(made) == 1
    assert index.read_bytes()[:HEADER_SIZE] == data_path(tmp_path).read_bytes()[:HEADER_SIZE]


def test_why_a_partition_is_quarantined(tmp_path: Path) -> None:
    built(tmp_path, 20)
    os.unlink(data_path(tmp_path))
    with opened(tmp_path) as storage:
        partition = storage.partition(0)
        (why, *_) = [one.message for one in partition.findings if one.severity == "damage"]
        with pytest.raises(PartitionQuarantinedError) as caught:
            partition.check_writable()
        assert str(caught.value).startswith(f"{tmp_path / '0'}: partition 0 is quarantined: {why}")
        partition._findings.clear()
        with pytest.raises(PartitionQuarantinedError, match="partition 0 is quarantined: damage was found"):
            partition.check_writable()


@pytest.mark.parametrize("way", ["append", "append_blocks", "write_blocks"])
def test_of_what_is_quarantined_nobody_hears_first_that_an_append_is_out_of_order(tmp_path: Path, way: str) -> None:
    records = built(tmp_path, 20)
    os.unlink(data_path(tmp_path))
    with opened(tmp_path) as storage, pytest.raises(PartitionQuarantinedError):
        getattr(storage.partition(0), way)(records[:1] if way == "append" else [object()])


# --- reading ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("less", "count"), [(0, 2), (1, 1), (-1, 2)])
def test_a_list_that_fits_to_the_byte_goes_on_in_the_next_segment(tmp_path: Path, less: int, count: int) -> None:
    records = make_records(2, size=30)
    build_directory(tmp_path, {0: [records[:1], records[1:]]})
    room = sum(one.size for one in records) - less
    with opened(tmp_path) as storage:
        assert storage.partition(0).read_wire(0, 5, room).count == count
        assert len(storage.partition(0).read_range(0, 5, room)) == count


def test_a_log_that_was_cut_meanwhile_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither way to read finds a record, so there is none."""
    built(tmp_path, 10)
    records = make_records(10)
    end = HEADER_SIZE + sum(record.size for record in records)
    log = PartitionLog(tmp_path / "0", tmp_path, SMALL, [whole_extent(0, tmp_path / "0", 0, 10, end)], 10)
    monkeypatch.setattr(segment_reader.SegmentReader, "read_list", lambda *_, **__: None)
    monkeypatch.setattr(log, "read_range", lambda *_: [])
    assert log._list_part(3, 5, None, headers=False) is None
    found = log.read_wire(3, 5, None)
    assert (found.count, found.data) == (0, b"")
    log.close()


def test_a_record_whose_data_has_another_checksum_than_its_own_is_none() -> None:
    (record,) = make_records(1, first=5, size=30)
    other = Record(5, record.request_id, record.header, record.data, record.data_checksum ^ 1, 0).encode()
    raw = other[:-4] + crc32(other[:-4]).to_bytes(4, "big")
    assert segment_reader._parse(memoryview(raw), 0, 5) == (None, 0)


@pytest.mark.parametrize("first", [5, 10, 15, 20, 25])
def test_a_segment_that_is_not_listed_any_more_is_not_opened(tmp_path: Path, first: int) -> None:
    built(tmp_path, 30)
    place = tmp_path / "0"
    log = PartitionLog(place, tmp_path, SMALL, [whole_extent(0, place, n, n + 10, 1000) for n in (0, 10, 20)][::2], 30)
    wanted = whole_extent(0, place, first, first + 1, 1000)
    if first == 20:
        with log._reader(wanted):
            assert log.open_segments == 1
    else:
        with pytest.raises(partition_log._OvertakenError), log._reader(wanted):
            pass
    log.close()


@pytest.mark.parametrize("known", [1 << 20, 100, 0])
def test_what_the_checksums_of_a_torn_tail_cover(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, known: int) -> None:
    built(tmp_path, 10)
    path = data_path(tmp_path)
    end = path.stat().st_size
    path.write_bytes(path.read_bytes() + b"torn")
    monkeypatch.setattr(partition_recovery, "KNOWN_BEFORE_CUT", known)
    with opened(tmp_path):
        pass
    ((file,),) = [one.files for one in list_entries(tmp_path)]
    assert file.before is not None
    assert file.before.start == (end - known if known < end else 0)
    assert path.stat().st_size == end


@pytest.mark.parametrize("count", [1, 2])
def test_the_longest_record_that_is_allowed_is_read_with_a_list(tmp_path: Path, count: int) -> None:
    """One that is longer is left to the careful way, before any memory is taken for it."""
    records = make_records(count, size=2000)
    build_directory(tmp_path, {0: [records]})
    extent = whole_extent(0, tmp_path / "0", 0, count, HEADER_SIZE + sum(one.size for one in records))
    for longest, there in ((2000, True), (1999, count > 1)):
        reader = segment_reader.SegmentReader(extent, max_data_length=longest, storage=tmp_path)
        found = reader.read_list(extent, 0, count, None, headers=False)
        assert (found is not None) == there
        assert found is None or found.records == (count if longest == 2000 else 0)
        reader.close()


@pytest.mark.parametrize(("lost_below", "lost"), [(0, ()), (1, (0,)), (3, (0, 1, 2))])
def test_what_was_lost_where_nothing_is_left(tmp_path: Path, lost_below: int, lost: tuple[int, ...]) -> None:
    log = PartitionLog(tmp_path / "0", tmp_path, SMALL, [], 0, lost_below=lost_below)
    for number in range(-1, 5):
        if number in lost:
            with pytest.raises(CorruptRecordError, match="it is missing"):
                log.read(number)
        else:
            assert log.read(number) is None
        assert listed_at_once(log, number, 1) is None
    log.close()


def of_segments(path: Path) -> PartitionLog:
    """Transactions 0 to 9, 10 to 19 and none behind; there are no files."""
    place = path / "0"
    extents = [whole_extent(0, place, first, stop, 1000) for first, stop in ((0, 10), (10, 20), (20, 20))]
    return PartitionLog(place, path, SMALL, extents, 20)


@pytest.mark.parametrize(
    ("after", "first", "end"),
    [(25, 20, HEADER_SIZE), (19, 20, HEADER_SIZE), (9, 10, HEADER_SIZE), (-1, 0, HEADER_SIZE)],
)
def test_where_a_log_is_cut_without_a_look_at_a_record(tmp_path: Path, after: int, first: int, end: int) -> None:
    log = of_segments(tmp_path)
    if after == 25:
        log.end_with(log.segments[1])
        found, size = log.end_after(19)
        assert (found.first_transaction_id, size) == (10, 1000)
        return
    found, size = log.end_after(after)
    assert (found.first_transaction_id, size) == (first, end)
    for inside in (0, 8, 10, 18):
        with pytest.raises(FileNotFoundError):
            log.end_after(inside)


@pytest.mark.parametrize(("left", "told"), [(10, True), (4, True), (3, False), (0, False)])
def test_what_a_truncation_took_is_not_called_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left: int, told: bool
) -> None:
    log = of_segments(tmp_path)

    def overtaken(*_: object, **__: object) -> None:
        log._next_id = left
        raise CorruptRecordError("made up", [])

    monkeypatch.setattr(log, "_list_part", overtaken)
    if told:
        with pytest.raises(CorruptRecordError):
            log.read_wire(3, 5, None)
    else:
        assert log.read_wire(3, 5, None).count == 0


@pytest.mark.parametrize("room", [0, 1, 69, 70, 71, 139, 140, 141, 10_000])
def test_room_for_whole_records_only(tmp_path: Path, room: int) -> None:
    """In the same segment and in the next one; one record there always is."""
    records = make_records(4, size=30)
    build_directory(tmp_path, {0: [records[:1], records[1:2], records[2:]]})
    with opened(tmp_path) as storage:
        for first in (0, 1, 2):
            wanted = min(max(1, room // records[0].size), 4 - first)
            assert storage.partition(0).read_wire(first, 9, room).count == wanted
            assert len(storage.partition(0).read_range(first, 9, room)) == wanted
        assert listed_at_once(storage.partition(0), -1, 1) is None


def test_the_place_of_a_record_is_its_segment_and_the_byte_where_it_begins(tmp_path: Path) -> None:
    """Also where no index tells it, or a wrong one; of a transaction that is not there (yet) there is none."""
    records = make_records(6, size=30)
    segments = [records[:4], records[4:]]
    places = [(0, offset_of(segments[0], number)) for number in range(4)] + [(4, HEADER_SIZE), (4, HEADER_SIZE + 70)]
    build_directory(tmp_path, {0: segments})
    with opened(tmp_path) as storage:
        partition = storage.partition(0)
        assert [partition.place_of(number) for number in range(-1, 8)] == [None, *places, None, None]
        write_at(index_path(tmp_path), entry_position(2, 0), bytes(8))
        assert partition.place_of(2) == places[2]
        damage(data_path(tmp_path), offset_of(segments[0], 2) + 9)
        with pytest.raises(CorruptRecordError, match="transaction 2"):
            partition.place_of(2)
        assert partition.place_of(3) == places[3]


def test_the_place_of_a_record_that_was_lost_is_an_error_and_of_one_that_was_cut_meanwhile_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = of_segments(tmp_path)

    def overtaken(*_: object) -> int:
        log._truncations += 1
        log._next_id = 3
        raise CorruptRecordError("made up", [])

    monkeypatch.setattr(segment_reader.SegmentReader, "begin_of", overtaken)
    monkeypatch.setattr(log, "_reader", lambda _: contextlib.nullcontext(object.__new__(segment_reader.SegmentReader)))
    assert log.place_of(5) is None
    log = PartitionLog(tmp_path / "0", tmp_path, SMALL, log.segments[1:], 20, lost_below=20)
    with pytest.raises(CorruptRecordError, match="it is missing"):
        log.place_of(5)


# --- what stands behind a gap, what is not waited for, what is begun -----------------------------------------------


def test_a_list_goes_on_behind_a_gap_where_it_begins_there(tmp_path: Path) -> None:
    """Of a log that is not sound, whose next transaction is that of the gap."""
    records = built(tmp_path, 30)
    damage(data_path(tmp_path, 20), HEADER_SIZE + sum(one.size for one in records[20:24]) + 9)
    with opened(tmp_path) as storage:
        partition = storage.partition(0)
        assert (partition.quarantined, partition.next_transaction_id) == (True, 24)
        for read in (partition.read_wire, partition.read_wire_headers):
            assert [read(first, 100).count for first in (0, 15, 23, 25, 29, 30)] == [24, 9, 1, 5, 1, 0]
            with pytest.raises(CorruptRecordError):
                read(24, 1)
        assert listed_at_once(partition, 0, 5) is None


@pytest.mark.parametrize("absent", [data_path, index_path])
def test_a_segment_of_which_one_file_is_missing_is_not_opened(tmp_path: Path, absent: Callable[[Path], Path]) -> None:
    built(tmp_path, 5)
    absent(tmp_path).unlink()
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(FileNotFoundError):
        ActiveSegment.open(whole_extent(0, tmp_path / "0", 0, 5, 500))
    assert len(os.listdir("/proc/self/fd")) == before


def test_the_control_file_of_a_new_directory_comes_when_everything_else_is_durable(tmp_path: Path) -> None:
    with recording() as changes:
        create_cluster([tmp_path / "s"], num_partitions=2, layout=Layout.RELEASED, assign=[1])
    steps = [(one.kind, one.path.name) for one in changes if one.kind in ("mkdir", "sync-directory", "rename")]
    temporary = [name for kind, name in steps if kind == "rename"]
    assert steps == [
        ("mkdir", "s"),
        ("sync-directory", tmp_path.name),
        ("mkdir", "1"),
        ("rename", temporary[0]),
        ("sync-directory", "1"),
        ("rename", temporary[1]),
        ("sync-directory", "1"),
        ("sync-directory", "s"),
        ("rename", temporary[2]),
        ("sync-directory", "s"),
    ]


def test_nobody_reads_fewer_records_than_none(tmp_path: Path) -> None:
    built(tmp_path, 5)
    with opened(tmp_path) as storage:
        partition = storage.partition(0)
        for read in (partition.read_range, partition.read_headers, partition.read_wire, partition.read_wire_headers):
            for count in (-1, -2):
                with pytest.raises(InvalidRequestError, match=f"cannot read {count} records"):
                    read(0, count)
        assert (partition.read_range(0, 0), partition.read_headers(0, 0)) == ([], [])
        assert (partition.read_wire(0, 0).count, partition.read_wire_headers(0, 0).count) == (0, 0)


@pytest.mark.parametrize("looked", [True, False])
def test_a_partition_is_opened_when_it_is_asked_for(tmp_path: Path, looked: bool) -> None:
    records = built(tmp_path, 5)
    with StorageDirectory.open(tmp_path, partitions=()) as storage:
        assert list(storage.partitions) == []
        if looked:
            assert storage.outlook(0).last_transaction_id == 4
        assert storage.partition(0).read_range(0, 5) == records
        assert list(storage.partitions) == [0]
        assert storage.partition(0) is storage.partition(0)


@pytest.mark.parametrize(
    ("listed", "said"),
    [
        (10, "the file has 100 bytes, a header has 128; its index has 10 entries, so that records were in it"),
        (0, "the file has 100 bytes, a header has 128; it is not the last segment, so that records were in it"),
    ],
)
def test_behind_a_data_file_that_lost_its_header_everything_is_read(tmp_path: Path, listed: int, said: str) -> None:
    records = built(tmp_path, 40)
    os.truncate(data_path(tmp_path, 10), 100)
    os.truncate(index_path(tmp_path, 10), entry_position(listed, 0))
    with opened(tmp_path) as storage:
        partition = storage.partition(0)
        assert [extent.first_transaction_id for extent in partition.segments] == [0, 20, 30]
        assert partition.read_range(20, 20) == records[20:]
        assert partition.next_transaction_id == 10
        (short,) = [one for one in partition.findings if one.code == "segment-header-short"]
        assert short.message == said


@pytest.mark.parametrize("number", [0, 1, 9])
@pytest.mark.parametrize("offset", [-(2**63), -1, 0, HEADER_SIZE - 1, HEADER_SIZE + 1, 10**6, 2**63 - 1])
def test_a_list_is_whole_wherever_an_entry_leads(tmp_path: Path, number: int, offset: int) -> None:
    records = built(tmp_path, 10)
    with opened(tmp_path) as storage:
        write_at(index_path(tmp_path), entry_position(number, 0), struct.pack(">q", offset))
        partition = storage.partition(0)
        assert partition.read_wire(0, 100).count == 10
        assert partition.read_wire(number, 1) == WireRecords(1, packed(records[number : number + 1], headers=False))
