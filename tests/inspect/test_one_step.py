"""Comparisons of an inspection that decide about damage or loss, each one step to each side."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import struct
import uuid
from dataclasses import replace
from pathlib import Path

import pytest

from tests.builders import KEY, build_directory, make_records, segment_header, write_segment
from tests.inspect.helpers import age, codes, flip, idx, patch, run, seg
from waltzctl.engine.durable.directory_lock import DirectoryLock
from waltzctl.engine.findings.indexes import WrongEntries
from waltzctl.engine.inspect import dump_chunks, live, record_checks, sampling, split_segments
from waltzctl.engine.inspect import verify as verify_module
from waltzctl.engine.inspect.digests import HashingSource
from waltzctl.engine.inspect.dump import DumpedRecord, dump_records
from waltzctl.engine.inspect.partition_checks import PartitionContext, loss_findings, orphan_finding, placement_findings
from waltzctl.engine.inspect.read_limits import ReadLimits
from waltzctl.engine.inspect.verification import ManifestRequest
from waltzctl.engine.log.index import IndexReader
from waltzctl.engine.log.index_comparison import check_rising
from waltzctl.engine.log.view import FileState, SegmentView
from waltzctl.engine.scan.byte_source import FileSource
from waltzctl.formats.accepted_losses import AcceptedLoss
from waltzctl.formats.checksums import crc32
from waltzctl.formats.control import Layout, decode_control
from waltzctl.formats.segment import HEADER_SIZE, Record, encode_entries, entry_position, index_name, segment_name

SIZE = 20
RECORD = SIZE + 40


def at(place: int) -> int:
    """Offset of the record number `place` of a segment."""
    return HEADER_SIZE + RECORD * place


def build(
    path: Path, count: int = 30, *, per_segment: int = 10, mark: int = 14, layout: Layout = Layout.RELEASED
) -> Path:
    return age(
        build_directory(path, {0: count}, per_segment=per_segment, size=SIZE, local_low_water_mark=mark, layout=layout)
    )


def found(storage: Path, **options: object) -> list[str]:
    return codes(run(age(storage), **options)[0])


# --- the end of a partition ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", list(Layout))
@pytest.mark.parametrize("options", [{}, {"quick": True}, {"quick": True, "ends_only": True}, {"sample": 0.5}])
@pytest.mark.parametrize(("mark", "expected"), [(28, []), (29, []), (30, ["acknowledged-missing"])])
def test_one_transaction_below_the_mark_that_is_missing_is_damage(
    tmp_path: Path, layout: Layout, options: dict[str, object], mark: int, expected: list[str]
) -> None:
    assert found(build(tmp_path, mark=mark, layout=layout), **options) == expected


@pytest.mark.parametrize(("mark", "expected"), [(-1, []), (0, ["acknowledged-missing"])])
def test_an_empty_segment_lacks_transaction_0_when_it_was_acknowledged(
    tmp_path: Path, mark: int, expected: list[str]
) -> None:
    storage = build_directory(tmp_path, {0: [[]]}, local_low_water_mark=mark)
    assert found(storage) == expected


@pytest.mark.parametrize(("mark", "severity"), [(27, "repairable"), (28, "repairable"), (29, "damage"), (30, "damage")])
def test_a_torn_tail_is_harmless_only_above_the_mark(tmp_path: Path, mark: int, severity: str) -> None:
    """Transaction 29 is torn; the one behind it would be missing without a trace."""
    storage = build(tmp_path, mark=mark)
    os.truncate(seg(storage, 0, 20), at(10) - 1)
    findings, _ = run(age(storage))
    assert [(one.code, str(one.severity)) for one in findings[:1]] == [("torn-tail", severity)]
    assert codes(findings[1:]) == (["acknowledged-missing"] if mark == 30 else [])


@pytest.mark.parametrize(("entries", "severity"), [(1000, "repairable"), (1001, "damage")])
def test_a_torn_tail_is_damage_where_the_index_proves_that_it_was_durable(
    tmp_path: Path, entries: int, severity: str
) -> None:
    """Record 999 is torn; an entry of record 1000 is written only once 999 is durable."""
    storage = build(tmp_path, 1001, per_segment=2000, mark=-1)
    os.truncate(seg(storage, 0, 0), at(1000) - 1)
    os.truncate(idx(storage, 0, 0), entry_position(entries, 0))
    findings, _ = run(age(storage))
    (tail,) = [one for one in findings if one.code == "torn-tail"]
    assert tail.severity == severity


@pytest.mark.parametrize(
    ("name", "expected"), [(29, []), (30, []), (31, ["durable-missing"]), (32, ["durable-missing"])]
)
def test_a_name_behind_the_end_proves_what_is_in_front_of_it(tmp_path: Path, name: int, expected: list[str]) -> None:
    """An index without entries under that name; the last transaction is 29."""
    storage = build(tmp_path)
    idx(storage, 0, name).write_bytes(segment_header(0, name).encode())
    findings, _ = run(age(storage))
    assert [one for one in codes(findings) if one != "index-orphan"] == expected
    for one in findings:
        if one.code == "durable-missing":
            assert (one.transaction_id, f"transaction{'s' * (name > 31)} 30 " in one.message) == (30, True)


@pytest.mark.parametrize(
    ("records", "entries", "expected"),
    [(1000, 1000, []), (1000, 1001, ["index-long"]), (999, 1000, ["index-long"]), (999, 1001, ["durable-missing"])],
)
def test_an_index_that_leads_behind_a_checkpoint_proves_the_records_in_front_of_it(
    tmp_path: Path, records: int, entries: int, expected: list[str]
) -> None:
    storage = build(tmp_path, 1001, per_segment=2000, mark=-1)
    os.truncate(seg(storage, 0, 0), at(records))
    os.truncate(idx(storage, 0, 0), entry_position(entries, 0))
    assert found(storage) == expected


# --- neighbours ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("begins", "code", "said"),
    [
        (18, "segment-overlap", "2 transactions may stand in both"),
        (19, "segment-overlap", "1 transactions may stand in both"),
        (20, "", ""),
        (21, "segment-gap", "transaction 20 is missing"),
        (22, "segment-gap", "transactions 20 to 21 are missing"),
    ],
)
def test_segments_join_to_the_transaction(tmp_path: Path, begins: int, code: str, said: str) -> None:
    records = make_records(30, size=SIZE)
    storage = build_directory(tmp_path, {0: [records[:20]]}, local_low_water_mark=-1)
    write_segment(storage / "0", records[begins:])
    findings, _ = run(age(storage))
    assert codes(findings) == ([code] if code else [])
    assert all(said in one.message for one in findings)


@pytest.mark.parametrize(("begins", "expected"), [(0, []), (1, ["segment-gap"])])
def test_a_log_begins_with_transaction_0(tmp_path: Path, begins: int, expected: list[str]) -> None:
    storage = build_directory(tmp_path, {0: []}, local_low_water_mark=-1)
    write_segment(storage / "0", make_records(10)[begins:])
    assert found(storage) == expected


@pytest.mark.parametrize(("entries", "lost"), [(0, None), (9, None), (10, None), (11, 20), (12, 20)])
def test_an_index_without_data_that_lists_one_transaction_more_than_is_held_is_damage(
    tmp_path: Path, entries: int, lost: int | None
) -> None:
    """Segments hold 0 to 19; the index begins at 10."""
    path = tmp_path / index_name(10)
    path.write_bytes(segment_header(0, 10).encode() + encode_entries(range(entries)))
    segment = SegmentView(0, 10, None, FileState.of(path))
    one = orphan_finding(PartitionContext(None, 0, tmp_path), segment, [(0, 10), (10, 20)], lambda: True)
    assert str(one.severity) == ("repairable" if lost is None else "damage")
    assert one.transaction_id == (10 if lost is None else lost)


@pytest.mark.parametrize(
    ("held", "missing"),
    [
        ([], (10, "transactions 10 to 19 were given up")),
        ([(0, 10)], (10, "still missing")),
        ([(0, 11)], (11, "11 to 19 still missing, the others are here again")),
        ([(10, 19)], (19, "19 still missing, the others are here again")),
        ([(10, 20)], None),
        ([(20, 30)], (10, "still missing")),
    ],
)
def test_an_accepted_loss_is_told_as_long_as_one_of_its_transactions_is_missing(
    tmp_path: Path, held: list[tuple[int, int]], missing: tuple[int, str] | None
) -> None:
    loss = AcceptedLoss(0, 10, 19, 9, "2026-11-22T08:51:18.000Z", "test")
    context = PartitionContext(None, 0, tmp_path, local_low_water_mark=9, accepted=(loss,))
    findings = list(loss_findings(context, held))
    assert [one.transaction_id for one in findings] == ([] if missing is None else [missing[0]])
    assert missing is None or missing[1] in findings[0].message


# --- what should not be there, or should -----------------------------------------------------------------------------


@pytest.mark.parametrize(("number", "expected"), [(1, []), (2, ["partition-not-assigned"])])
def test_the_directory_behind_the_last_partition_is_told(tmp_path: Path, number: int, expected: list[str]) -> None:
    storage = build_directory(tmp_path, {0: 3, 1: 3})
    if number == 2:
        (storage / "2").mkdir()
        write_segment(storage / "2", make_records(3, partition=2), partition=2)
    assert found(storage) == expected


@pytest.mark.parametrize(
    ("session", "mark", "expected"),
    [(-1, -1, "note partition-empty"), (0, -1, "damage partition-empty"), (0, 0, "damage acknowledged-missing")],
)
def test_a_partition_without_segments_is_damage_from_its_first_session_on(
    tmp_path: Path, session: int, mark: int, expected: str
) -> None:
    storage = build_directory(tmp_path, {0: []}, session=session, local_low_water_mark=mark)
    findings, _ = run(age(storage))
    assert [f"{one.severity} {one.code}" for one in findings] == [expected]


@pytest.mark.parametrize(
    ("name", "expected"),
    [(2**63 - 1, ["index-orphan", "durable-missing"]), (2**63, ["unknown-file"]), (2**63 + 1, ["unknown-file"])],
)
def test_a_name_beyond_the_largest_id_is_nobodys(tmp_path: Path, name: int, expected: list[str]) -> None:
    storage = build(tmp_path)
    (storage / "0" / f"{name}.idx").write_bytes(segment_header(0, 0).encode())
    assert sorted(found(storage)) == sorted(expected)


# --- the index -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", [0, 20])
@pytest.mark.parametrize("options", [{}, {"quick": True}, {"sample": 0.5}])
@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (-16, ["index-short"]),
        (-8, ["index-short"]),
        (-1, ["index-short"]),
        (0, []),
        (1, ["index-long"]),
        (8, ["index-long"]),
    ],
)
def test_an_index_has_one_entry_for_each_record(
    tmp_path: Path, first: int, options: dict[str, object], change: int, expected: list[str]
) -> None:
    """Of a segment with neighbours behind it, and of the last one."""
    storage = build(tmp_path)
    path = idx(storage, 0, first)
    whole = path.read_bytes()
    more = struct.pack(">q", at(10))  # what the next record would have
    path.write_bytes(whole[: len(whole) + change] if change < 0 else whole + more[:change])
    assert found(storage, **options) == expected


@pytest.mark.parametrize("options", [{}, {"quick": True}, {"sample": 0.5}])
@pytest.mark.parametrize(("entry", "expected"), [(127, ["index-entry"]), (128, []), (129, ["index-entry"])])
def test_the_first_entry_is_where_the_first_record_begins(
    tmp_path: Path, options: dict[str, object], entry: int, expected: list[str]
) -> None:
    storage = build(tmp_path)
    patch(idx(storage, 0, 10), HEADER_SIZE, struct.pack(">q", entry))
    assert found(storage, **options) == expected


@pytest.mark.parametrize(
    ("entries", "wrong"),
    [
        ([128, 168, 208], []),
        ([128, 167, 208], [1]),
        ([128, 169, 208], [2]),
        ([128, 169, 209], []),
        ([127, 168, 208], [0]),
        ([129, 169, 209], [0]),
        ([128, 168, 207], [2]),
        ([128, 168, 299], []),
        ([128, 168, 300], []),  # too many, or newer than the data
        ([128, 270, 300], []),
        ([128, 270, 299], [2]),
        ([128, 300, 208], [2]),
        ([128, 301, 208], [1, 2]),
        ([128, 299, 208], [2]),
    ],
)
def test_entries_rise_by_a_record_at_least_and_stay_inside_the_file(
    tmp_path: Path, entries: list[int], wrong: list[int]
) -> None:
    """A data file of 300 bytes; what a look that reads no record can tell."""
    path = tmp_path / "x.idx"
    path.write_bytes(bytes(HEADER_SIZE) + encode_entries(entries))
    with FileSource(path) as source:
        seen = check_rising(IndexReader(source, 0), 300)
    assert seen.count == len(wrong)
    if wrong:
        assert (seen.first, seen.last, seen.stored) == (wrong[0], wrong[-1], entries[wrong[0]])


@pytest.mark.parametrize(("size", "count", "excess"), [(127, 0, 0), (128, 0, 0), (135, 0, 7), (136, 1, 0), (137, 1, 1)])
def test_only_whole_entries_count(tmp_path: Path, size: int, count: int, excess: int) -> None:
    path = tmp_path / "x.idx"
    path.write_bytes(bytes(size))
    with FileSource(path) as source:
        reader = IndexReader(source, 5)
        assert (reader.count(), reader.excess()) == (count, excess)
        assert [reader.entry(number) for number in (4, 5, 6)] == [None, 0 if count else None, None]


@pytest.mark.parametrize(
    ("other", "count"),
    [((4, 5), 2 + 4), ((5, 10), 4), ((10, 12), 4), ((13, 14), 4), ((14, 15), 4 + 2)],
)
def test_what_two_looks_saw_of_an_index_counts_once_where_they_overlap(other: tuple[int, int], count: int) -> None:
    """One look saw 6 to 13 with four wrong entries."""
    mine, second = WrongEntries(), WrongEntries()
    mine.add(6, 1, None, 4, last=13)
    second.add(other[0], 2, 3, 2, last=other[1])
    mine.merge(second)
    assert (mine.count, mine.first, mine.last) == (count, min(6, other[0]), max(13, other[1]))


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        ((at(4), at(4) + 1), 0),
        ((at(4) - 1, at(5)), 1),
        ((at(4) + 1, at(5)), 1),
        ((at(4), at(4)), 1),
        ((at(4), at(6) - 1), 0),
        ((at(4), at(6)), 1),
    ],
)
def test_entries_of_lost_records_lead_into_the_place_that_is_damaged(
    tmp_path: Path, entries: tuple[int, int], expected: int
) -> None:
    """Records 4 and 5 are damaged: the first entry leads to the beginning, the other inside."""
    storage = build(tmp_path)
    for place in (4, 5):
        patch(seg(storage, 0, 0), at(place), bytes(RECORD))
    patch(idx(storage, 0, 0), entry_position(4, 0), struct.pack(">qq", *entries))
    assert found(storage).count("index-entry") == expected
    assert len(found(storage)) == 1 + expected


# --- parts of a segment, and lists that are too long ------------------------------------------------------------------


@pytest.mark.parametrize("border", [False, True])
def test_a_record_that_is_missing_where_two_parts_meet_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, border: bool
) -> None:
    """Read by several threads, each transaction left out in turn; the index goes by the ids."""
    monkeypatch.setattr(verify_module, "_WORTH_THREADS", 0)
    for module in (split_segments, verify_module):
        monkeypatch.setattr(module, "PART", 10 * RECORD)
    records = make_records(40, size=SIZE)
    parts = -(-at(39) // (10 * RECORD))
    borders = {40 * number // parts - 1 for number in range(1, parts)}
    left_out = borders if border else set(range(1, 39)) - borders
    for number in left_out if border else sorted(left_out)[::5]:
        storage = tmp_path / str(number)
        build_directory(storage, {0: []}, local_low_water_mark=-1)
        write_segment(storage / "0", [one for one in records if one.transaction_id != number])
        entries = [at(place if place <= number else place - 1) for place in range(40)]
        header = segment_header(0, 0).encode()
        idx(storage, 0, 0).write_bytes(header + encode_entries(entries))
        alone, _ = run(age(storage), threads=1)
        assert [(one.code, one.transaction_id) for one in alone] == [("record-order", number)]
        assert run(storage, threads=2)[0] == alone


@pytest.mark.parametrize("options", [{}, {"sample": 0.999}])
@pytest.mark.parametrize(("damaged", "unlisted"), [(2, 0), (3, 0), (4, 1), (6, 3)])
def test_damage_beyond_the_list_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, object], damaged: int, unlisted: int
) -> None:
    monkeypatch.setattr(record_checks, "MAX_LISTED", 3)
    storage = build(tmp_path, 30, per_segment=50)
    for place in range(damaged):
        flip(seg(storage, 0, 0), at(2 + 3 * place) + 9)
    findings, _ = run(age(storage), **options)
    assert len(findings) == min(damaged, 3) + bool(unlisted)
    assert [one.message.split(" ")[0] for one in findings[3:]] == [str(unlisted)] * bool(unlisted)


# --- headers ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("which", [".seg", ".idx"])
@pytest.mark.parametrize(("size", "short"), [(127, True), (128, False)])
def test_a_file_is_as_long_as_its_header_at_least(tmp_path: Path, which: str, size: int, short: bool) -> None:
    """The last segment, empty: a file that ends inside its header is told, one that ends with it is sound."""
    storage = build(tmp_path)
    header = segment_header(0, 30).encode()
    for suffix in (".seg", ".idx"):
        seg(storage, 0, 30).with_suffix(suffix).write_bytes(header[: size if suffix == which else HEADER_SIZE])
    code = "segment-header-short" if which == ".seg" else "index-header"
    assert found(storage) == ([code] if short else [])


@pytest.mark.parametrize(("entries", "severity"), [(0, "repairable"), (1, "damage")])
def test_a_data_file_that_ends_inside_its_header_lost_what_its_index_lists(
    tmp_path: Path, entries: int, severity: str
) -> None:
    storage = build(tmp_path)
    header = segment_header(0, 30).encode()
    seg(storage, 0, 30).write_bytes(header[:-1])
    idx(storage, 0, 30).write_bytes(header + struct.pack(">q", 128) * entries)
    findings, _ = run(age(storage))
    assert [(one.code, str(one.severity)) for one in findings] == [("segment-header-short", severity)]


# --- what the release would do ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("mark", "told"), [(27, False), (28, False), (29, True)])
def test_the_release_loses_a_torn_record_that_is_acknowledged(tmp_path: Path, mark: int, told: bool) -> None:
    """Without a word; one above the mark is nobody's.  Its last entry went with it."""
    storage = build(tmp_path, mark=mark)
    os.truncate(seg(storage, 0, 20), at(10) - 1)
    os.truncate(idx(storage, 0, 20), entry_position(29, 20))
    assert ("released-loses" in found(storage, for_released=True)) == told


@pytest.mark.parametrize(("first", "blocks"), [(29, False), (30, True), (31, True)])
def test_an_index_at_or_behind_the_next_transaction_blocks_the_release(
    tmp_path: Path, first: int, blocks: bool
) -> None:
    storage = build(tmp_path)
    idx(storage, 0, first).write_bytes(segment_header(0, first).encode())
    assert ("released-blocks" in found(storage, for_released=True)) == blocks


@pytest.mark.parametrize(
    ("wrong", "mark", "refuses"), [(24, 24, True), (24, 23, False), (24, 25, False), (25, 25, True)]
)
def test_the_release_begins_its_scan_at_the_mark(tmp_path: Path, wrong: int, mark: int, refuses: bool) -> None:
    """An entry that leads nowhere stops it exactly where it begins."""
    storage = build(tmp_path, mark=mark)
    patch(idx(storage, 0, 20), entry_position(wrong, 20), struct.pack(">q", 10**6))
    assert ("released-refuses" in found(storage, for_released=True)) == refuses


@pytest.mark.parametrize(
    ("highest", "mark", "begins"),
    [(999, -1, 0), (1000, -1, 0), (1001, -1, 1000), (1002, -1, 1000), (1002, 1001, 1001), (1002, 1003, 1002)],
)
def test_the_release_begins_its_scan_at_the_last_thousand_in_front_of_the_last_entry(
    tmp_path: Path, highest: int, mark: int, begins: int
) -> None:
    """Which entries it reads is told by which wrong one stops it; transaction 0 needs none."""
    storage = build(tmp_path, 1003, per_segment=2000, mark=mark)
    os.truncate(idx(storage, 0, 0), entry_position(highest + 1, 0))
    raw = idx(storage, 0, 0).read_bytes()
    for number in {0, 999, 1000, 1001, 1002} & set(range(highest + 1)):
        idx(storage, 0, 0).write_bytes(raw)
        patch(idx(storage, 0, 0), entry_position(number, 0), struct.pack(">q", 10**6))
        refused = "released-refuses" in found(storage, for_released=True)
        assert refused == (number == begins and begins > 0), number


def test_a_data_checksum_that_is_wrong_is_told_of_each_record(tmp_path: Path) -> None:
    """The first and the last of a segment too."""
    records = make_records(10, size=SIZE)
    storage = build_directory(tmp_path, {0: [records]}, local_low_water_mark=-1)
    for number in (0, 4, 9):
        bad = replace(records[number], data_checksum=records[number].data_checksum ^ 1)
        sealed = Record.make(number, bad.request_id, bad.header, bad.data)
        raw = bytearray(sealed.encode())
        raw[32:36] = bad.data_checksum.to_bytes(4, "big")
        from waltzctl.formats.checksums import crc32

        raw[-4:] = crc32(bytes(raw[:-4])).to_bytes(4, "big")
        patch(storage / "0" / segment_name(0), at(number), bytes(raw))
    findings, _ = run(age(storage))
    assert [(one.code, one.transaction_id) for one in findings] == [("data-checksum", one) for one in (0, 4, 9)]


# --- while a node is at work -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("held", "first", "long_ago", "expected"),
    [
        (True, 20, False, []),
        (True, 20, True, ["index-missing"]),
        (False, 20, False, ["index-missing"]),
        (True, 10, False, ["index-missing"]),
    ],
)
def test_an_index_that_a_truncation_just_removed_is_not_missing(
    tmp_path: Path, held: bool, first: int, long_ago: bool, expected: list[str]
) -> None:
    """Our storage removes the last segment's index before its data file.  Only a holder does that, and not for long."""
    storage = build(tmp_path)
    lock = DirectoryLock.acquire(storage, storage / "waltz-storage.ctl") if held else contextlib.nullcontext()
    with lock:
        idx(storage, 0, first).unlink()
        if long_ago:
            age(storage)
        findings, _ = run(storage)
    assert codes(findings) == expected


# --- against a manifest ------------------------------------------------------------------------------------------------


def against_manifest(storage: Path, manifest: Path) -> list[tuple[str, str]]:
    findings, _ = run(age(storage), manifest=ManifestRequest(manifest))
    return [(str(one.code), one.message) for one in findings if one.code.startswith("manifest-")]


@pytest.mark.parametrize(
    "name", [segment_name(0), index_name(0), segment_name(10), segment_name(20), "waltz-storage.ctl"]
)
@pytest.mark.parametrize("change", [-1, 0, 1, 2])
def test_a_file_is_as_long_as_its_manifest_says_and_only_the_last_segment_grows(
    tmp_path: Path, name: str, change: int
) -> None:
    """Not by a byte."""
    storage, manifest = build(tmp_path / "s"), tmp_path / "s.manifest"
    assert against_manifest(storage, manifest) == []
    path = storage / name if name.endswith(".ctl") else storage / "0" / name
    whole = path.read_bytes()
    path.write_bytes(whole[:change] if change < 0 else whole + bytes(change))
    found = against_manifest(storage, manifest)
    if change == 0:
        assert found == []
    elif change > 0 and name == segment_name(20):
        assert [code for code, _ in found] == ["manifest-grown"]
    else:
        said = f"the file has {len(whole) + change} bytes, the manifest says {len(whole)}"
        assert found == [("manifest-differs", said)]


@pytest.mark.parametrize("field", ["session_id", "low_water_mark", "local_low_water_mark"])
@pytest.mark.parametrize(("change", "code"), [(-1, "manifest-differs"), (1, "manifest-grown")])
def test_session_and_marks_rise_since_a_manifest_was_made_and_never_fall(
    tmp_path: Path, field: str, change: int, code: str
) -> None:
    storage, manifest = build(tmp_path / "s"), tmp_path / "s.manifest"
    assert against_manifest(storage, manifest) == []
    path = storage / "waltz-storage.ctl"
    control = decode_control(path.read_bytes())
    info = control.partitions[0]
    pair = [replace(one, **{field: getattr(one, field) + change}).sealed() for one in info.structs]
    path.write_bytes(replace(control, partitions=(replace(info, structs=(pair[0], pair[1])),)).encode())
    assert [found for found, _ in against_manifest(storage, manifest)] == [code]


@pytest.mark.parametrize(
    ("length", "refuses"), [(-2, True), (-1, True), (0, False), (2**31 - 3, False), (2**31 - 2, True)]
)
def test_a_length_for_which_the_release_has_no_array_ends_its_start(tmp_path: Path, length: int, refuses: bool) -> None:
    """Of the record behind the last good one; any other length is a torn end to it."""
    storage = build(tmp_path)
    patch(seg(storage, 0, 20), at(9) + 28, struct.pack(">i", length))
    assert ("released-refuses" in found(storage, for_released=True)) == refuses


@pytest.mark.parametrize(
    ("mark", "session", "said"),
    [
        (None, None, ""),
        (None, -1, ""),
        (None, 0, "; session 0 began in it"),
        (-1, 3, "; session 3 began in it"),
        (0, 3, "; transactions up to 0 were durable in it"),
    ],
)
def test_what_is_known_of_a_partition_whose_directory_is_gone(
    tmp_path: Path, mark: int | None, session: int | None, said: str
) -> None:
    context = PartitionContext(tmp_path, 0, tmp_path / "0", mark, True, session)
    (one,) = placement_findings(context, None, 1)
    assert one.message.endswith(f"does not exist{said}")
    assert (one.transaction_id, one.missing) == ((0, 1) if mark == 0 else (None, None))


@pytest.mark.parametrize("first", range(8))
def test_a_dump_backwards_ends_with_the_first_that_was_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: int
) -> None:
    """Wherever the pieces begin that it is read in."""
    storage = build_directory(tmp_path / "d", {0: 8}, size=60)
    for chunk in (1, 100, 250):
        monkeypatch.setattr(dump_chunks, "CHUNK", chunk)
        told = [
            one.transaction_id
            for one in dump_records(storage, first=first, reverse=True)
            if isinstance(one, DumpedRecord)
        ]
        assert told == [*reversed(range(first, 8))]


@pytest.mark.parametrize("length", [0, 1, 9, 10, 11])
def test_a_digest_is_of_so_many_bytes_however_they_are_read(tmp_path: Path, length: int) -> None:
    data = bytes(range(10))
    (tmp_path / "f").write_bytes(data)
    expected = (length, hashlib.sha256(data[:length]).hexdigest())
    for reads in ((), ((0, 4), (4, 6)), ((2, 8),), ((0, 6), (3, 7)), ((0, 4), (7, 3)), ((8, 10),)):
        with FileSource(tmp_path / "f") as file:
            source = HashingSource(file, length)
            for offset, count in reads:
                buffer = memoryview(bytearray(count))
                taken = source.read_into(offset, buffer)
                assert bytes(buffer[:taken]) == data[offset : offset + count]
                assert taken == len(data[offset : offset + count])
            found = source.digest(ReadLimits())
        assert found is None if length > 10 else (found is not None and (found.size, found.sha256) == expected)


@pytest.mark.parametrize(("foreign", "blamed"), [((0,), False), ((0, 1), True), ((0, 1, 2), True)])
def test_two_data_files_that_agree_prove_the_control_file_s_key_wrong(
    tmp_path: Path, foreign: tuple[int, ...], blamed: bool
) -> None:
    """One alone may be a stranger, and one that has the control file's key speaks for it."""
    other = uuid.UUID(int=KEY.int ^ 1)
    storage = build_directory(tmp_path / "d", dict.fromkeys(range(3), 4), key=KEY)
    for number in range(3):
        if number not in foreign:
            shutil.rmtree(storage / str(number))
    for number in foreign:
        write_segment(storage / str(number), make_records(4, partition=number), partition=number, key=other)
    told = [one.path.name for one in run(age(storage))[0] if one.code.value == "segment-key"]
    assert ("waltz-storage.ctl" in told) is blamed, told


def test_a_sample_is_of_blocks_and_has_about_the_size_that_was_asked_for(tmp_path: Path) -> None:
    storage = build_directory(tmp_path / "d", {0: 1000}, per_segment=1000, size=100)
    with FileSource(idx(storage, 0, 0)) as source:
        reader = IndexReader(source, 0)
        size = 10 * sampling.BLOCK
        every = sampling.choose_blocks(reader, size, 1.0, "seed")
        assert every == [(0, 1000)]
        half = sampling.choose_blocks(reader, size, 0.5, "seed")
        assert half == sampling.choose_blocks(reader, size, 0.5, "seed")
        assert all(first % 100 == 0 and last % 100 == 0 for first, last in half)
        assert 200 <= sum(last - first for first, last in half) <= 800
        assert sampling.choose_blocks(reader, size, 0.0, "seed") == []


def test_what_is_wrong_with_a_segment_is_told_in_the_order_of_the_file(tmp_path: Path) -> None:
    storage = build(tmp_path / "d", 9, mark=-1)
    file = seg(storage, 0, 0)
    flip(file, at(6) + 3)
    record = make_records(1, first=2, size=SIZE)[0]
    bad = replace(record, data_checksum=record.data_checksum ^ 1)
    raw = bad.encode()[:-4]
    patch(file, at(2), raw + struct.pack(">I", crc32(raw)))
    told = [(one.code.value, one.offset) for one in run(age(storage))[0] if one.path == file]
    assert told == [("data-checksum", at(2)), ("record-checksum", at(6))]


@pytest.mark.parametrize(
    ("seconds", "held", "quiet"),
    [
        (0.0, False, False),
        (0.6, False, True),
        (0.6, True, False),
        (5.1, True, True),
        (-60.0, False, True),
        (-60.0, True, True),
    ],
)
def test_files_are_quiet_when_they_were_written_long_ago_or_in_the_future(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float, held: bool, quiet: bool
) -> None:
    file = tmp_path / "f"
    file.write_bytes(b"x")
    written = file.stat().st_mtime_ns / 1e9
    monkeypatch.setattr(live.time, "time", lambda: written + seconds)
    assert live.Watch((file,), held, ReadLimits()).quiet_now() is quiet
