"""dump: every intact record in its place, every damage in its place, in both directions, from any id."""

from __future__ import annotations

import os
import shutil
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.builders import build_directory, make_records
from tests.inspect.helpers import age, codes, cut, flip, idx, patch, run, seg, swap
from waltzctl.engine.errors import InvalidRequestError
from waltzctl.engine.findings import Code, Finding
from waltzctl.engine.inspect import dump_chunks, segment_order
from waltzctl.engine.inspect.dump import (
    DumpedRecord,
    IndexEntry,
    SegmentDump,
    dump_control,
    dump_index,
    dump_records,
    dump_segments,
)
from waltzctl.engine.inspect.segment_job import SegmentJob
from waltzctl.engine.scan import scanner
from waltzctl.formats.control import Layout
from waltzctl.formats.request_id import RequestId
from waltzctl.formats.segment import HEADER_SIZE, Record, encode_entries

SIZE = 20
RECORD = SIZE + 40


def at(place: int) -> int:
    return HEADER_SIZE + RECORD * place


def build(path: Path, layout: Layout = Layout.RELEASED) -> Path:
    return age(build_directory(path, {0: 30, 2: 5}, layout=layout, per_segment=10, size=SIZE))


def ids(items: list[DumpedRecord | Finding]) -> list[int]:
    return [one.transaction_id for one in items if isinstance(one, DumpedRecord)]


def shape(items: list[DumpedRecord | Finding]) -> list[int | str]:
    """Ids of records and codes of findings, in order."""
    return [one.transaction_id if isinstance(one, DumpedRecord) else one.code.value for one in items]


@pytest.mark.turns(10)
@pytest.mark.parametrize("pair", [(0, 10), (0, 30), (10, 30), (20, 30)])
@pytest.mark.parametrize("reverse", [False, True])
def test_a_range_has_its_records_where_data_files_were_swapped(
    tmp_path: Path, pair: tuple[int, int], reverse: bool
) -> None:
    """Names and indexes agree, and the records lie elsewhere: as the whole dump shows them."""
    storage = build_directory(tmp_path / "s", {0: 40}, per_segment=10, size=SIZE)
    swap(*(seg(storage, 0, first) for first in pair))
    whole = ids(list(dump_records(age(storage), reverse=reverse)))
    assert sorted(whole) == [*range(40)]
    for first, last in [*((one, one) for one in range(40)), (9, 10), (5, 25), (None, 12), (17, None), (29, 30)]:
        wanted = [one for one in whole if (first or 0) <= one <= (39 if last is None else last)]
        assert ids(list(dump_records(storage, first=first, last=last, reverse=reverse))) == wanted, (first, last)


@pytest.mark.turns(10)
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(
    ("lost", "moved", "name"), [(10, 10, 40), (0, 0, 40), (10, 30, 10), (20, 30, 20), (30, 0, 30), (30, 10, 30)]
)
def test_a_range_has_its_records_where_a_segment_has_a_name_outside_of_it(
    tmp_path: Path, lost: int, moved: int, name: int, reverse: bool
) -> None:
    """Its own name is free, and it has one where names and indexes agree: the ids were told as missing, or not at all."""
    storage = build_directory(tmp_path / "s", {0: 40}, per_segment=10, size=SIZE, local_low_water_mark=5)
    for path in (seg, idx):
        path(storage, 0, lost).rename(tmp_path / "lost")
        (tmp_path / "lost" if lost == moved else path(storage, 0, moved)).rename(path(storage, 0, name))
    whole = list(dump_records(age(storage), reverse=reverse))
    gaps = [one for one in whole if isinstance(one, Finding) and one.missing]
    for first, last in [
        *((one, one) for one in range(40)),
        (9, 10),
        (5, 25),
        (None, 12),
        (17, None),
        (30, None),
        (39, 50),
    ]:
        wanted = range(first or 0, 40 if last is None else last + 1)
        items = list(dump_records(storage, first=first, last=last, reverse=reverse))
        assert ids(items) == [one for one in ids(whole) if one in wanted], (first, last)
        told = [one for one in items if isinstance(one, Finding) and one.missing]
        meeting = [
            one
            for one in gaps
            if range(
                max(wanted.start, one.transaction_id or 0),
                min(wanted.stop, (one.transaction_id or 0) + (one.missing or 0)),
            )
        ]
        assert told == meeting, (first, last)


@pytest.mark.parametrize(
    ("here", "most", "first", "found"),
    [
        (True, 1, 10, True),
        (False, 2, 20, True),  # the second of two is asked
        (False, 1, 20, False),
        (False, 1, 30, True),
    ],
)
def test_of_another_machines_files_a_few_headers_are_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, here: bool, most: int, first: int, found: bool
) -> None:
    """Of a range that goes on to the end."""
    monkeypatch.setattr(segment_order, "REMOTE_HEADERS", most)
    monkeypatch.setattr(segment_order.places, "on_this_machine", lambda path: here)
    storage = build_directory(tmp_path / "s", {0: 40}, per_segment=10, size=SIZE)
    swap(seg(storage, 0, 0), seg(storage, 0, 30))
    shown = ids(list(dump_records(age(storage), first=first)))
    assert sorted(shown) == [*range(first, 40 if found else 30)]


def test_where_names_are_right_a_range_opens_no_other_segment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = build_directory(tmp_path / "s", {0: 40}, per_segment=10, size=SIZE)
    asked: list[int] = []
    real = segment_order.begins_with

    def begins_with(job: SegmentJob, *, own: bool = False) -> int:
        asked.append(job.first)
        return real(job, own=own)

    monkeypatch.setattr(segment_order, "begins_with", begins_with)
    assert ids(list(dump_records(age(storage), first=12, last=15))) == [12, 13, 14, 15]
    assert asked == [10]
    asked.clear()
    assert len(ids(list(dump_records(storage)))) == 40
    assert asked == [0, 10, 20, 30], "where everything is read anyway"


@pytest.mark.parametrize(("first", "last"), [(100, None), (None, 250), (100, 500)])
def test_the_work_for_a_range_grows_with_the_number_of_segments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: int | None, last: int | None
) -> None:
    """All segments in the range were put into a set once for each segment: of 12,000, to the end, that took 20 seconds."""
    storage = build_directory(tmp_path / "s", {0: 300}, per_segment=1, size=SIZE)
    hashed: list[int] = []

    def counted(job: SegmentJob) -> int:
        hashed.append(job.first)
        return job.first

    monkeypatch.setattr(SegmentJob, "__hash__", counted)
    assert ids(list(dump_records(age(storage), first=first, last=last))) == [
        *range(first or 0, min(last or 299, 299) + 1)
    ]
    assert len(hashed) < 2 * 300


@pytest.mark.parametrize("reverse", [False, True])
def test_two_segments_of_as_many_records_that_have_each_others_names(tmp_path: Path, *, reverse: bool) -> None:
    """Their records came out of order, with gaps and an overlap that verify does not name."""
    storage = build_directory(tmp_path / "s", {0: 40}, per_segment=10, size=SIZE)
    swap(seg(storage, 0, 10), seg(storage, 0, 20))
    items = list(dump_records(age(storage), reverse=reverse))
    assert ids(items) == (list(range(40))[::-1] if reverse else list(range(40)))
    assert [item.code for item in items if isinstance(item, Finding)] == ["segment-name"] * 2


@pytest.mark.parametrize("reverse", [False, True])
def test_a_segment_of_another_partition_leaves_no_gap_beside_it(tmp_path: Path, *, reverse: bool) -> None:
    """Its header says that it begins at 0: put in order by that, it would stand behind the first segment."""
    storage = build_directory(tmp_path / "s", {0: 40, 1: 5}, per_segment=10, size=SIZE)
    shutil.copyfile(seg(storage, 1, 0), seg(storage, 0, 30))
    found = [item for item in dump_records(age(storage), reverse=reverse) if isinstance(item, Finding)]
    assert [one for one in found if one.partition == 0 and one.code is Code.SEGMENT_GAP] == []


def test_records_carry_everything_that_was_written(tmp_path: Path) -> None:
    """Field by field, with and without data."""
    storage = build(tmp_path / "s")
    written = make_records(5, partition=2, size=SIZE)
    items = list(dump_records(storage, partitions=[2]))
    for place, (item, record) in enumerate(zip(items, written, strict=True)):
        assert item == DumpedRecord(
            2, 0, place, at(place), RECORD, record.request_id, record.header, SIZE, record.data_checksum,
            record.record_checksum, record.data,
        )  # fmt: skip
    assert all(isinstance(one, DumpedRecord) and one.data is None for one in dump_records(storage, data=False))


def test_partitions_segments_and_ids_come_in_order_and_in_reverse(tmp_path: Path) -> None:
    """Partitions stay in order in both directions."""
    storage = build(tmp_path / "s")
    forward = list(dump_records(storage))
    assert ids(forward) == [*range(30), *range(5)]
    assert ids(list(dump_records(storage, reverse=True))) == [*reversed(range(30)), *reversed(range(5))]
    assert ids(list(dump_records(storage, first=8, last=21, partitions=[0]))) == list(range(8, 22))
    assert ids(list(dump_records(storage, first=8, last=21, partitions=[0], reverse=True))) == list(range(21, 7, -1))
    assert ids(list(dump_records(storage, limit=3))) == [0, 1, 2]
    assert ids(list(dump_records(storage, limit=3, reverse=True))) == [29, 28, 27]
    assert ids(list(dump_records(storage, limit=0))) == []
    assert ids(list(dump_records(seg(storage, 0, 10)))) == list(range(10, 20))
    assert ids(list(dump_records(storage / "2"))) == list(range(5))
    with pytest.raises(InvalidRequestError):
        dump_records(storage, limit=-1)


def test_a_damaged_record_of_a_sealed_segment_hides_no_other(tmp_path: Path) -> None:
    """verify names it and nothing else, dump shows all the others, in both directions."""
    storage = build(tmp_path / "s")
    whole = list(dump_records(storage, partitions=[0]))
    flip(seg(storage, 0, 10), at(4) + 41)
    found, _ = run(storage)
    items = list(dump_records(storage, partitions=[0]))
    assert shape(items) == [*range(14), "record-checksum", *range(15, 30)]
    assert [one for one in items if isinstance(one, Finding)] == found
    assert [one for one in items if isinstance(one, DumpedRecord)] == whole[:14] + whole[15:]
    assert list(dump_records(storage, partitions=[0], reverse=True)) == items[::-1]
    assert shape(list(dump_records(storage, partitions=[0], first=12, last=16))) == [12, 13, "record-checksum", 15, 16]
    assert shape(list(dump_records(storage, partitions=[0], first=16, last=17))) == [16, 17]
    assert shape(list(dump_records(storage, partitions=[0], last=13, first=12))) == [12, 13]


@pytest.mark.parametrize("record", [9, 5])
def test_what_a_search_that_was_given_up_left_unread_is_not_called_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record: int
) -> None:
    """As verify does: bytes that are built to be expensive may hold the records behind them."""
    storage = build(tmp_path / "s")
    patch(seg(storage, 0, 10), at(record), bytes([0xA5] * (at(10) - at(record))))
    idx(storage, 0, 10).unlink()
    age(storage)
    monkeypatch.setattr(scanner, "BUDGET_BASE", 0)
    monkeypatch.setattr(scanner, "BUDGET_PER_BYTE", 0)
    found, _ = run(storage)
    assert codes(found) == ["record-length", "index-missing"]
    shown = [*range(10 + record), "record-length", *range(20, 30)]
    assert shape(list(dump_records(storage, partitions=[0]))) == shown
    assert shape(list(dump_records(storage, partitions=[0], reverse=True))) == shown[::-1]


@pytest.mark.parametrize("changed", [None, 0, 20])
def test_segments_that_changed_meanwhile_prove_no_gap_between_them(tmp_path: Path, changed: int | None) -> None:
    storage = build(tmp_path / "s")
    for path in (seg(storage, 0, 10), idx(storage, 0, 10)):
        path.unlink()
    items = dump_records(storage, partitions=[0])
    front = [next(items) for _ in range(10)]
    if changed is not None:
        os.utime(seg(storage, 0, changed))
    rest = list(items)
    assert shape([*front, *rest]) == [*range(10), *([] if changed == 0 else ["segment-gap"]), *range(20, 30)]


def test_a_partition_without_a_segment_has_no_records(tmp_path: Path) -> None:
    """An empty directory, as after an assignment that was interrupted, and one that is missing."""
    storage = build_directory(tmp_path / "s", {0: 3, 1: 0}, size=SIZE, session=-1, local_low_water_mark=-1)
    for path in list((storage / "1").iterdir()):
        path.unlink()
    assert shape(list(dump_records(storage))) == [0, 1, 2, "partition-empty"]
    assert shape(list(dump_records(storage, reverse=True))) == [2, 1, 0, "partition-empty"]
    (storage / "1").rmdir()
    assert shape(list(dump_records(storage))) == [0, 1, 2, "partition-directory-missing"]
    assert [one.transaction_id for one in dump_index(storage)] == [0, 1, 2, None]
    segment, missing = dump_segments(storage)
    assert isinstance(segment, SegmentDump)
    assert isinstance(missing, Finding)
    assert missing.code == "partition-directory-missing"


def skip(storage: Path, first: int, place: int, count: int) -> None:
    """Cut records out of a segment, and let its index lead to all others: between two intact ones ids are missing."""
    data, index = seg(storage, 0, first), idx(storage, 0, first)
    raw = data.read_bytes()
    data.write_bytes(raw[: at(place)] + raw[at(place + count) :])
    entries = [at(number if number < place else max(place, number - count)) for number in range(10)]
    index.write_bytes(index.read_bytes()[:HEADER_SIZE] + encode_entries(entries))


DAMAGES = {
    "record": lambda s: flip(seg(s, 0, 10), at(4) + 41),
    "last record of a sealed segment": lambda s: flip(seg(s, 0, 10), at(9) + 41),
    "first record": lambda s: flip(seg(s, 0, 10), at(0) + 41),
    "length": lambda s: flip(seg(s, 0, 10), at(4) + 28),
    "torn tail": lambda s: cut(seg(s, 0, 20), at(10) - 5),
    "cut segment": lambda s: cut(seg(s, 0, 10), at(6)),
    "ids skipped": lambda s: skip(s, 10, 5, 3),
    "first ids skipped": lambda s: skip(s, 10, 0, 2),
    "short header": lambda s: cut(seg(s, 0, 10), 20),
    "empty file": lambda s: cut(seg(s, 0, 20), 0),
    "gap": lambda s: (seg(s, 0, 10).unlink(), idx(s, 0, 10).unlink()),
    "no index": lambda s: idx(s, 0, 10).unlink(),
    "index of zeros": lambda s: patch(idx(s, 0, 10), HEADER_SIZE, bytes(80)),
    "index shifted": lambda s: patch(idx(s, 0, 10), HEADER_SIZE, b"".join(at(i + 1).to_bytes(8) for i in range(10))),
    "key": lambda s: flip(seg(s, 0, 10), 12),
    "control file": lambda s: (s / "waltz-storage.ctl").unlink(),
    "middle of everything": lambda s: patch(seg(s, 0, 10), at(2) + 5, b"\xff" * 3 * RECORD),
}


@pytest.mark.turns(10)
@pytest.mark.parametrize("name", DAMAGES)
def test_no_damage_ends_a_dump_and_reverse_is_the_reverse(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when going backwards takes many small pieces, with and without a usable index."""
    storage = build(tmp_path / "s")
    DAMAGES[name](storage)
    age(storage)
    forward = list(dump_records(storage, partitions=[0]))
    intact = ids(forward)
    assert 0 in intact
    assert ids(list(dump_records(storage, partitions=[2]))) == list(range(5))
    assert len(intact) == run(storage, partitions=[0])[1].records
    for chunk in (dump_chunks.CHUNK, 100):
        monkeypatch.setattr(dump_chunks, "CHUNK", chunk)
        assert list(dump_records(storage, partitions=[0], reverse=True)) == forward[::-1]
    for first in (0, 5, 10, 13, 14, 15, 19, 20, 29):
        assert ids(list(dump_records(storage, partitions=[0], first=first))) == [one for one in intact if one >= first]
        assert ids(list(dump_records(storage, partitions=[0], last=first, reverse=True))) == [
            one for one in reversed(intact) if one <= first
        ]


@pytest.mark.turns(10)
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    sizes=st.lists(st.integers(0, 400), min_size=1, max_size=40),
    flips=st.lists(st.tuples(st.integers(0, 20_000), st.integers(0, 7)), max_size=3),
    spoil_index=st.booleans(),
    chunk=st.integers(60, 2000),
)
def test_both_directions_agree_whatever_is_flipped(
    tmp_path_factory: pytest.TempPathFactory,
    sizes: list[int],
    flips: list[tuple[int, int]],
    spoil_index: bool,
    chunk: int,
) -> None:
    """Backwards is the reverse of forwards, and both give what verify counts."""
    records = [Record.make(n, RequestId(1, 2, 0, n), n, bytes([n]) * size) for n, size in enumerate(sizes)]
    storage = build_directory(tmp_path_factory.mktemp("any") / "s", {0: [records]}, local_low_water_mark=-1)
    path = seg(storage, 0, 0)
    size = path.stat().st_size
    for offset, bit in flips:
        flip(path, HEADER_SIZE + offset % (size - HEADER_SIZE), bit)
    if spoil_index:
        patch(idx(storage, 0, 0), HEADER_SIZE, b"\x07" * 8)
    age(storage)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(dump_chunks, "CHUNK", chunk)
        forward = list(dump_records(storage))
        assert list(dump_records(storage, reverse=True)) == forward[::-1]
    assert len(ids(forward)) == run(storage)[1].records
    written = {record.transaction_id: record.data for record in records}
    for one in forward:
        if isinstance(one, DumpedRecord):
            assert one.data == written[one.transaction_id]


def test_a_record_with_a_wrong_data_checksum_is_shown_behind_its_finding(tmp_path: Path) -> None:
    """The record is intact; what the client sent was not."""
    from tests.inspect.test_codes import bad_data_checksum

    storage = build(tmp_path / "s")
    bad_data_checksum(storage)
    items = list(dump_records(age(storage), partitions=[0]))
    assert shape(items) == [*range(13), "data-checksum", *range(13, 30)]
    (record,) = [one for one in items if isinstance(one, DumpedRecord) and not one.data_ok]
    assert record.transaction_id == 13
    found = [one for one in items if isinstance(one, Finding)]
    assert found == run(storage)[0]


def test_memory_is_bounded_in_both_directions(tmp_path: Path) -> None:
    """A segment of 24 MiB, without its index, in reverse: a few mebibytes are enough."""
    storage = build_directory(tmp_path / "s", {0: 24}, size=1 << 20)
    idx(storage, 0, 0).unlink()
    age(storage)
    for reverse in (False, True):
        tracemalloc.start()
        assert sum(isinstance(one, DumpedRecord) for one in dump_records(storage, reverse=reverse)) == 24
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 14 << 20


def test_index_entries_are_shown_as_they_stand_with_a_finding_in_front_of_wrong_ones(tmp_path: Path) -> None:
    """Both directions; from and to ids; beyond the data."""
    storage = build(tmp_path / "s")
    patch(idx(storage, 0, 10), HEADER_SIZE + 8 * 4, (77).to_bytes(8))
    patch(idx(storage, 0, 20), HEADER_SIZE + 80, at(10).to_bytes(8))
    age(storage)
    items = list(dump_index(storage, partitions=[0]))
    wanted: list[object] = [*range(14), "index-entry", *range(14, 30), "index-long", 30]
    assert [one.transaction_id if isinstance(one, IndexEntry) else one.code.value for one in items] == wanted
    assert next(one for one in items if isinstance(one, IndexEntry) and one.transaction_id == 14).offset == 77
    entries = [one for one in items if isinstance(one, IndexEntry)]
    backwards = list(dump_index(storage, partitions=[0], reverse=True))
    assert [one for one in backwards if isinstance(one, IndexEntry)] == entries[::-1]
    assert [one.transaction_id for one in dump_index(storage, first=5, last=7, partitions=[0])] == [5, 6, 7]
    assert len(list(dump_index(storage, limit=2))) == 2


def test_segments_tell_the_state_of_their_index(tmp_path: Path) -> None:
    """ok, missing or stale; findings stand behind the segment."""
    storage = build(tmp_path / "s")
    idx(storage, 0, 0).unlink()
    cut(idx(storage, 0, 10), HEADER_SIZE + 16)
    cut(seg(storage, 2, 0), 50)
    age(storage)
    items = list(dump_segments(storage))
    kinds = [one.code.value if isinstance(one, Finding) else one.index for one in items]
    assert kinds == ["missing", "index-missing", "stale", "index-short", "ok", "ok", "segment-header-short"]
    first, *_ = items
    assert not isinstance(first, Finding)
    assert (first.first_transaction_id, first.last_transaction_id, first.records) == (0, 9, 10)
    last = items[-2]
    assert not isinstance(last, Finding)
    assert (last.version, last.created, last.last_transaction_id, last.records) == (None, None, None, 0)


@pytest.mark.parametrize("layout", list(Layout))
def test_the_control_file_is_shown_in_both_layouts(tmp_path: Path, layout: Layout) -> None:
    """From the directory, the file, or a partition; damaged ones too."""
    storage = build(tmp_path / "s", layout)
    dump = dump_control(storage)
    assert (dump.layout, dump.version, dump.num_partitions, len(dump.partitions)) == (layout, 0, 3, 3)
    assert dump == dump_control(storage / "waltz-storage.ctl")
    assert [one.partition for one in dump_control(storage / "2", [2]).partitions] == [2]
    flip(storage / "waltz-storage.ctl", layout.struct_offset(0, 1))
    assert [one.code for one in dump_control(storage).findings] == ["control-struct-checksum"]
    cut(storage / "waltz-storage.ctl", 60)
    short = dump_control(storage)
    assert (short.layout, short.size, [one.code for one in short.findings]) == (None, 60, ["control-file-size"])
