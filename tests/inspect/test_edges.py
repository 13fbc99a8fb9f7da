"""Corners of an inspection: bounds of lists, several directories at once, files that go away, what is remembered between runs."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from tests.builders import KEY, build_directory, make_records, segment_header, write_segment
from tests.inspect.helpers import age, codes, flip, idx, patch, run, seg
from tests.inspect.test_codes import break_struct
from waltzctl.engine.errors import DiskReadError, InvalidRequestError
from waltzctl.engine.findings import Code, Finding, Severity, make_finding, status_of, worst
from waltzctl.engine.inspect import control_checks, dump, dump_chunks, dump_index, live, status, targets
from waltzctl.engine.inspect import dump_records as dump_records_module
from waltzctl.engine.inspect.control_checks import inspect_control
from waltzctl.engine.inspect.digests import HashingSource
from waltzctl.engine.inspect.directory_manifest import decode_manifest
from waltzctl.engine.inspect.dump import SegmentDump, dump_control, dump_segments
from waltzctl.engine.inspect.dump_chunks import ChunkReader
from waltzctl.engine.inspect.dump_index import IndexEntry
from waltzctl.engine.inspect.dump_records import DumpedRecord, dump_records
from waltzctl.engine.inspect.read_limits import ReadLimits
from waltzctl.engine.inspect.record_checks import RangeScan, UnreadablePlace, record_findings
from waltzctl.engine.inspect.resume import ResumeState, refuse_inside
from waltzctl.engine.inspect.segment_checks import FilesChangedError, SegmentCheck, check_segment, in_order, unreadable
from waltzctl.engine.inspect.segment_job import SegmentJob, SegmentReport
from waltzctl.engine.inspect.signing import SigningKey
from waltzctl.engine.inspect.split_segments import SplitSegment
from waltzctl.engine.inspect.status import storage_status
from waltzctl.engine.inspect.targets import look_around, plan
from waltzctl.engine.inspect.verification import ManifestRequest, Tally, VerifyOptions, VerifySummary
from waltzctl.engine.inspect.verify import verify
from waltzctl.engine.log.index import IndexReader
from waltzctl.engine.log.view import read_control
from waltzctl.engine.scan.byte_source import FileSource
from waltzctl.formats.control import ControlFile, Layout
from waltzctl.formats.segment import HEADER_SIZE

SIZE = 20
RECORD = SIZE + 40
CONTROL = "waltz-storage.ctl"
WHOLE = VerifyOptions()


def at(place: int) -> int:
    return HEADER_SIZE + RECORD * place


@pytest.fixture
def storage(tmp_path: Path) -> Path:
    return build(tmp_path / "s")


def build(path: Path, partitions: int = 1) -> Path:
    """Segments 0, 10 and 20 of ten records each."""
    wanted = dict.fromkeys(range(partitions), 30)
    return age(build_directory(path, wanted, per_segment=10, size=SIZE, local_low_water_mark=14))


def job(storage: Path, first: int = 20, **more: object) -> SegmentJob:
    size = seg(storage, 0, first).stat().st_size
    return SegmentJob(storage / "0", first, 0, cluster_key=KEY, bytes=size, **{"last": first == 20, **more})  # type: ignore[arg-type]


def opened() -> int:
    return len(os.listdir("/proc/self/fd"))


# --- dump ------------------------------------------------------------------------------------------------------------


def entries(storage: Path, **more: object) -> list[int | str]:
    items = dump_index.dump_index(storage, **more)  # type: ignore[arg-type]
    return [one.transaction_id if isinstance(one, IndexEntry) else one.code.value for one in items]


@pytest.mark.parametrize("limit", [0, 1, 2, 29, 30, 31, None])
def test_a_limit_counts_what_is_dumped_and_no_finding(storage: Path, limit: int | None) -> None:
    patch(idx(storage, 0, 0), HEADER_SIZE, (77).to_bytes(8))
    age(storage)
    told = entries(storage, limit=limit)
    assert told == ([] if limit == 0 else ["index-entry", *range(30 if limit is None else min(limit, 30))])
    flip(seg(storage, 0, 0), at(0) + 45)
    records = [
        one.transaction_id if isinstance(one, DumpedRecord) else one.code.value
        for one in dump_records(age(storage), limit=limit)
    ]
    wanted = range(1, 30 if limit is None else min(limit + 1, 30))
    assert records == ([] if limit == 0 else ["record-checksum", *wanted])


def test_a_limit_below_0_is_refused_at_once(storage: Path) -> None:
    for dumped in (dump_index.dump_index, dump_records):
        with pytest.raises(InvalidRequestError, match="the limit must not be negative: -1"):
            dumped(storage, limit=-1)
    with pytest.raises(InvalidRequestError, match="the limit must not be negative: -1"):
        dump.at_most(-1, ())


@pytest.mark.parametrize("limit", [None, 0, 1, 2, 3])
def test_findings_do_not_count_and_nothing_is_taken_behind_the_last_item(storage: Path, limit: int | None) -> None:
    told = make_finding(Code.RECORD_CHECKSUM, storage, "x")
    everything = [told, 1, told, 2, told]
    left = iter(everything)
    assert list(dump.at_most(limit, left)) == everything[: {None: 5, 0: 0, 1: 2, 2: 4, 3: 5}[limit]]
    assert list(left) == everything[{None: 5, 0: 0, 1: 2, 2: 4, 3: 5}[limit] :]


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(
    ("first", "last"), [(None, None), (0, 29), (3, 3), (4, 25), (9, 10), (29, None), (30, None), (None, 0), (5, 4)]
)
def test_entries_of_ids_come_in_pieces(
    storage: Path, monkeypatch: pytest.MonkeyPatch, first: int | None, last: int | None, reverse: bool
) -> None:
    monkeypatch.setattr(dump_index, "CHUNK", 4)
    wanted = list(range(first or 0, 30 if last is None else last + 1))
    assert entries(storage, first=first, last=last, reverse=reverse) == (wanted[::-1] if reverse else wanted)


@pytest.mark.parametrize(
    ("offset", "code"),
    [
        (at(4), ""),
        (at(4) - 1, "index-entry"),
        (127, "index-entry"),
        (128, "index-entry"),
        (at(10) - 1, "index-entry"),
        (at(10), "index-long"),
        (at(10) + 1, "index-long"),
        (-1, "index-entry"),
    ],
)
def test_an_entry_that_leads_nowhere_is_named_with_its_place(storage: Path, offset: int, code: str) -> None:
    patch(idx(storage, 0, 10), HEADER_SIZE + 8 * 4, offset.to_bytes(8, signed=True))
    found = [one for one in dump_index.dump_index(age(storage)) if isinstance(one, Finding)]
    assert codes(found) == ([code] if code else [])
    for one in found:
        assert (one.transaction_id, one.offset, one.length, one.path) == (14, HEADER_SIZE + 32, 8, idx(storage, 0, 10))


def test_an_entry_in_front_of_a_record_that_is_cut_off_leads_nowhere(storage: Path) -> None:
    """Seven bytes of the id are no id."""
    for length, code in ((8, []), (7, ["index-entry"])):
        os.truncate(seg(storage, 0, 20), at(9) + length)
        found = [one for one in dump_index.dump_index(age(storage)) if isinstance(one, Finding)]
        assert codes(found) == code


def test_headers_of_an_index_are_told_and_those_of_data_are_not(storage: Path) -> None:
    patch(idx(storage, 0, 10), 0, replace(segment_header(0, 10), partition=3).encode())
    patch(seg(storage, 0, 20), 0, replace(segment_header(0, 20), partition=3).encode())
    found = [one for one in dump_index.dump_index(age(storage)) if isinstance(one, Finding)]
    assert [one.path for one in found] == [idx(storage, 0, 10)]


def test_what_cannot_be_read_is_a_finding_and_the_next_segment_follows(
    storage: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = dump_index.entry_findings

    def failing(segment: ChunkReader, number: int, offset: int) -> Iterator[Finding]:
        if number == 12:
            raise DiskReadError(segment.job.data_path, offset, OSError(5, "Input/output error"))
        if number == 22:
            raise FilesChangedError
        return original(segment, number, offset)

    monkeypatch.setattr(dump_index, "entry_findings", failing)
    before = opened()
    assert entries(storage) == [*range(12), "read-error", 20, 21]
    assert opened() == before


def test_a_segment_that_went_away_while_it_was_described(storage: Path) -> None:
    """Its data, its index, both."""
    one = job(storage)
    report = SegmentReport(one, 20, records=3)
    shown = dump._describe(report, [])
    assert (shown.version, shown.data_bytes, shown.index_bytes, shown.index) == (0, at(10), 128 + 80, "ok")
    idx(storage, 0, 20).unlink()
    shown = dump._describe(report, [])
    assert (shown.data_bytes, shown.index_bytes, shown.index) == (at(10), 0, "missing")
    seg(storage, 0, 20).unlink()
    shown = dump._describe(report, [])
    assert shown == SegmentDump(one.data_path, 0, 20, None, None, None, None, None, 3, 0, 0, "missing")


def test_segments_are_told_with_their_headers_in_order(storage: Path) -> None:
    shown = [one for one in dump_segments(storage) if isinstance(one, SegmentDump)]
    assert [(one.segment, one.first_transaction_id, one.last_transaction_id, one.records) for one in shown] == [
        (0, 0, 9, 10),
        (10, 10, 19, 10),
        (20, 20, 29, 10),
    ]
    for one in shown:
        assert (one.partition, one.version, one.cluster_key, one.created) == (0, 0, KEY, "2023-11-14T22:13:20.123Z")
        assert (one.data_bytes, one.index_bytes, one.index) == (at(10), 128 + 80, "ok")


def test_an_index_that_lists_too_much_is_told_once(storage: Path) -> None:
    """At the end, and where another segment follows."""
    for first in (10, 20):
        with idx(storage, 0, first).open("ab") as file:
            file.write(at(10).to_bytes(8))
    items = list(dump_segments(age(storage)))
    kinds = [one.code.value if isinstance(one, Finding) else one.index for one in items]
    assert kinds == ["ok", "stale", "index-long", "stale", "index-long"]


def test_a_control_file_that_is_none(storage: Path) -> None:
    (storage / CONTROL).unlink()
    shown = dump_control(storage)
    assert (shown.path, shown.layout, shown.size, shown.partitions) == (storage / CONTROL, None, 0, ())
    with pytest.raises(InvalidRequestError):
        dump_control(seg(storage, 0, 0).rename(storage.parent / "alone.seg"))


# --- what is named -----------------------------------------------------------------------------------------------------


def test_a_directory_and_its_control_file_are_one(storage: Path) -> None:
    for paths in ([storage, storage / CONTROL], [storage / CONTROL, storage], [storage / CONTROL] * 2):
        (scope,) = plan(paths, None)
        assert (scope.storage, scope.control_path, scope.check_control) == (storage, storage / CONTROL, True)
        assert scope.whole is (storage in paths)
    (scope,) = plan([seg(storage, 0, 0), storage / "0"], None)
    assert (scope.whole, scope.check_control) == (False, False)


@pytest.mark.parametrize("layout", list(Layout))
def test_a_link_to_the_directory_of_another_partition_is_a_partition_of_its_own(tmp_path: Path, layout: Layout) -> None:
    """As for a node, which finds the files of another one in it."""
    storage = build_directory(tmp_path / "s", {0: 3, 1: 0}, size=SIZE, layout=layout)
    shutil.rmtree(storage / "1")
    (storage / "1").symlink_to("0")
    findings, summary = run(storage)
    assert codes(findings) == codes(run(storage / "1")[0]) == ["segment-partition"]
    assert (summary.partitions, summary.status) == (2, "damaged")
    assert [one.health for one in storage_status(storage).partitions] == ["ok", "damaged"]
    assert len([one for scope in plan([storage, storage / "1"], None) for one in scope.partitions]) == 2


def test_bytes_are_those_of_what_was_named(storage: Path) -> None:
    for paths, segments in (([storage], 3), ([storage / "0"], 3), ([seg(storage, 0, 0)], 1), ([idx(storage, 0, 0)], 1)):
        (scope,) = plan(paths, None)
        assert (scope.data_bytes(), scope.index_bytes()) == (segments * at(10), segments * (128 + 80))


def test_a_segment_knows_its_neighbour(storage: Path) -> None:
    (scope,) = plan([storage], None)
    (partition,) = scope.partitions.values()
    told = [(one.first, one.last, one.bytes, one.following) for one in scope.segment_jobs(partition, job(storage))]
    assert told == [(0, False, at(10), 10), (10, False, at(10), 20), (20, True, at(10), None)]


def test_files_with_other_names_are_checked_where_they_are_named(storage: Path) -> None:
    other = seg(storage, 0, 10).rename(storage / "0" / "other.seg")
    idx(storage, 0, 10).rename(other.with_suffix(".idx"))
    seg(storage, 0, 20).rename(storage / "0" / "short.seg")
    os.truncate(storage / "0" / "short.seg", 20)
    (scope,) = plan([other, other.with_suffix(".idx"), storage / "0" / "short.seg"], None)
    (partition,) = scope.partitions.values()
    told = [(one.name, one.first, one.last, one.bytes) for one in scope.segment_jobs(partition, job(storage, 0))]
    assert told == [("other.seg", 10, True, at(10)), ("short.seg", 0, True, 20)]
    other.unlink()
    assert [one.name for one in scope.segment_jobs(partition, job(storage, 0))] == ["short.seg"]


@pytest.mark.parametrize("name", ["01", "x", "1x", "2147483648"])
def test_only_numbers_are_partitions(storage: Path, name: str) -> None:
    (storage / name).mkdir()
    (storage / "2147483647").mkdir()
    (storage / "1").write_bytes(b"")
    (scope,) = plan([storage], None)
    assert [one.number for one in scope.partitions.values()] == [0, 2147483647]


@pytest.mark.parametrize("exclusive", [False, True])
def test_what_looks_wrong_is_looked_at_twice_unless_nobody_can_be_writing(
    storage: Path, monkeypatch: pytest.MonkeyPatch, exclusive: bool
) -> None:
    break_struct(storage, 0, 1)
    looks: list[Path] = []

    def look(path: Path) -> ControlFile | None:
        looks.append(path)
        return read_control(path)

    monkeypatch.setattr(control_checks, "read_control", look)
    monkeypatch.setattr(control_checks, "_PAUSE", 0)
    (storage / CONTROL).touch()
    (scope,) = plan([storage], None)
    looks.clear()
    around = look_around(scope, None, exclusive=True) if exclusive else look_around(scope, None)
    assert (len(looks), codes(around.findings)) == (1 if exclusive else 2, ["control-struct-checksum"])
    looks.clear()
    age(storage)
    inspect_control(storage / CONTROL, storage)
    assert len(looks) == 1


def test_a_control_file_that_is_never_the_same_twice_is_being_written(
    storage: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = [(make_finding(Code.CONTROL_STRUCT_CHECKSUM, storage / CONTROL, str(number)),) for number in range(100)]
    monkeypatch.setattr(control_checks, "_PAUSE", 0)
    monkeypatch.setattr(control_checks, "_check", lambda *more: found.pop(0))
    (storage / CONTROL).touch()
    state = inspect_control(storage / CONTROL, storage)
    assert (state.control is not None, state.findings, 100 - len(found)) == (True, (), 20)
    same = found[1] = found[0]
    assert inspect_control(storage / CONTROL, storage).findings == same


def test_a_ledger_that_cannot_be_read_is_not_damaged(storage: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its remedy, to recover the directory, ended with the same error of the system."""

    def failing(path: Path) -> None:
        raise DiskReadError(path / "accepted-losses", 7, OSError(13, "Permission denied"))

    monkeypatch.setattr(targets, "read_ledger", failing)
    *findings, summary = verify([storage], WHOLE)
    assert [(one.code, one.remedy) for one in findings if isinstance(one, Finding)] == [(Code.READ_ERROR, None)]
    assert isinstance(summary, VerifySummary)
    assert summary.exit_status_name == "io-error"


def test_a_control_file_that_cannot_be_read(storage: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(path: Path) -> None:
        raise DiskReadError(path, 7, OSError(5, "Input/output error"))

    monkeypatch.setattr(control_checks, "read_control", failing)
    (found,) = inspect_control(storage / CONTROL, storage).findings
    assert (found.code, found.path, found.offset) == (Code.READ_ERROR, storage / CONTROL, 7)
    (storage / CONTROL).unlink()
    os.mkfifo(storage / CONTROL)
    monkeypatch.undo()
    (found,) = inspect_control(storage / CONTROL, storage).findings
    assert (found.code, found.path) == (Code.SPECIAL_FILE, storage / CONTROL)


# --- several directories -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("broken", [(), (0,), (1,), (0, 1)])
def test_the_release_starts_on_all_directories_or_it_does_not(tmp_path: Path, broken: tuple[int, ...]) -> None:
    both = [build(tmp_path / name) for name in "ab"]
    for number in broken:
        idx(both[number], 0, 10).unlink()
    _, summary = run(*both, for_released=True)
    assert summary.released_starts is (not broken)
    assert run(*both, for_released=True, max_duration=0)[1].released_starts is None


def test_a_summary_counts_everything_of_all(tmp_path: Path) -> None:
    both = [build(tmp_path / "a", 2), build(tmp_path / "b")]
    _, summary = run(*both)
    assert (summary.partitions, summary.segments, summary.records) == (3, 9, 90)
    assert (summary.status, summary.exit_status_name, summary.complete, summary.manifest) == (
        "clean",
        "clean",
        True,
        None,
    )
    _, summary = run(*both, max_duration=0)
    assert (summary.partitions, summary.segments, summary.records, summary.complete) == (0, 0, 0, False)
    _, summary = run(*both, quick=True)
    assert (summary.segments, summary.complete) == (9, False)


@pytest.mark.parametrize(
    ("found", "status", "name"),
    [
        ([], "clean", "clean"),
        ([(Code.READ_ERROR, None)], "damaged", "io-error"),
        ([(Code.READ_ERROR, None), (Code.RECORD_CHECKSUM, None)], "damaged", "damaged"),
        ([(Code.RECORD_CHECKSUM, None)], "damaged", "damaged"),
        ([(Code.INDEX_SHORT, None)], "repairable", "repairable"),
        ([(Code.INDEX_SHORT, None), (Code.READ_ERROR, None)], "damaged", "io-error"),
        ([(Code.INDEX_SHORT, Severity.NOTE)], "clean", "clean"),
    ],
)
def test_the_worst_finding_gives_the_status(found: list[tuple[Code, Severity | None]], status: str, name: str) -> None:
    tally = Tally()
    for code, severity in found:
        tally.add(make_finding(code, Path("x"), "x", severity=severity))
    assert (tally.status, tally.exit_status_name) == (status, name)
    assert tally.damage + tally.repairable + tally.notes == len(found)
    assert status_of(worst(make_finding(code, Path("x"), "x", severity=severity) for code, severity in found)) == status


# --- segments ------------------------------------------------------------------------------------------------------------


def test_a_check_leaves_no_file_open(storage: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor where opening fails half-way."""
    before = opened()
    with SegmentCheck(job(storage), ReadLimits()) as check:
        assert opened() == before + 2
        assert check.size == at(10)
    assert opened() == before
    seg(storage, 0, 20).unlink()
    with pytest.raises(FilesChangedError), SegmentCheck(SegmentJob(storage / "0", 20), ReadLimits()):
        pass
    assert opened() == before


def test_a_segment_that_changes_faster_than_it_can_be_read_is_gone(
    storage: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries = []

    def changing(self: SegmentCheck, options: VerifyOptions) -> SegmentReport:
        tries.append(options)
        raise FilesChangedError

    monkeypatch.setattr(SegmentCheck, "run", changing)
    report = check_segment(job(storage), WHOLE, ReadLimits())
    assert (report.gone, report.uncertain, report.finished, len(tries)) == (True, True, True, 4)


@pytest.mark.parametrize("index", [False, True])
def test_a_file_that_cannot_be_read_is_named_with_the_place(storage: Path, index: bool) -> None:
    one = job(storage)
    path = one.index_path if index else one.data_path
    report = unreadable(one, DiskReadError(path, 300, OSError(5, "Input/output error")))
    (found,) = report.findings
    assert (found.code, found.path, found.offset, found.segment) == (Code.READ_ERROR, path, 300, 20)
    assert (report.begins, report.uncertain, report.gone) == (20, True, False)


def test_findings_of_a_segment_are_in_the_order_of_its_files() -> None:
    told = [
        make_finding(code, Path(name), "x", offset=offset)
        for code, name, offset in (
            (Code.INDEX_ENTRY, "1.idx", 3),
            (Code.INDEX_SHORT, "1.idx", None),
            (Code.RECORD_ORDER, "1.seg", 9),
            (Code.RECORD_CHECKSUM, "1.seg", 9),
            (Code.RECORD_CHECKSUM, "1.seg", 2),
        )
    ]
    assert in_order(told) == (told[4], told[3], told[2], told[1], told[0])
    first = replace(told[0], offset=0)
    assert in_order([told[1], first]) == (first, told[1]), "without an offset it is of the whole file, as at 0"


def test_what_could_not_be_read_of_a_segment_is_told(storage: Path) -> None:
    error = DiskReadError(seg(storage, 0, 20), 300, OSError(5, "Input/output error"))
    with FileSource(seg(storage, 0, 20)) as source:
        scan = RangeScan(source, 20, HEADER_SIZE, 20, ReadLimits())
        scan.unreadable = [UnreadablePlace(400, error, None), UnreadablePlace(300, error, 340)]
        scan.unlisted, scan.position = 5, 900
        told = record_findings(job(storage), scan)
    assert [(one.code, one.offset, one.length) for one in told] == [
        (Code.READ_ERROR, 300, 40),
        (Code.READ_ERROR, 400, None),
        (Code.READ_ERROR, 900, None),
    ]
    assert told[0].message.endswith("; reading went on at offset 340")
    assert told[1].message.endswith("; the rest was not read")
    assert told[2].message.startswith("5 more places are damaged up to offset 900;")
    scan.unreadable = []
    assert [one.code for one in record_findings(job(storage), scan)] == [Code.RECORD_CHECKSUM]


def test_what_one_look_at_an_index_could_not_read_is_kept_by_the_other(storage: Path) -> None:
    error = DiskReadError(idx(storage, 0, 20), 300, OSError(5, "Input/output error"))
    with FileSource(seg(storage, 0, 20)) as source, FileSource(idx(storage, 0, 20)) as index:
        mine, other = (RangeScan(source, 20, HEADER_SIZE, 20, ReadLimits(), IndexReader(index, 20)) for _ in range(2))
        assert mine.comparison is not None
        assert other.comparison is not None
        other.comparison.unreadable = error
        mine.adopt(other)
        assert mine.comparison.unreadable is error
        other.comparison.unreadable = None
        mine.adopt(other)
        assert mine.comparison.unreadable is error
        plain = RangeScan(source, 20, HEADER_SIZE, 20, ReadLimits())
        plain.adopt(mine)
        mine.adopt(plain)


def test_what_was_hashed_on_the_way_is_not_read_again(storage: Path) -> None:
    path = seg(storage, 0, 0)
    for read, left in ((at(10), 0), (at(4), at(10) - at(4)), (0, at(10))):
        limits = ReadLimits()
        with FileSource(path) as file:
            source = HashingSource(file, at(10))
            source.read_into(0, memoryview(bytearray(read)))
            found = source.digest(limits)
        assert found is not None
        assert found.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
        assert limits.bytes_read == left


# --- what is remembered ----------------------------------------------------------------------------------------------------


def remembered(path: Path, storage: Path, **options: object) -> ResumeState:
    state = ResumeState(path, VerifyOptions(resume=path, **options))  # type: ignore[arg-type]
    state.remember(check_segment(job(storage), WHOLE, ReadLimits()))
    return state


def test_a_finished_segment_is_recalled_as_it_was(storage: Path, tmp_path: Path) -> None:
    flip(seg(storage, 0, 20), at(4) + 45)
    with idx(storage, 0, 20).open("ab") as file:
        file.write(at(10).to_bytes(8))
    age(storage)
    path = tmp_path / "state"
    remembered(path, storage).save(complete=False)
    again = ResumeState(path, VerifyOptions(resume=path))
    report = check_segment(job(storage), WHOLE, ReadLimits())
    assert report.findings
    assert report.index_excess is not None
    assert again.recall(job(storage)) == report
    for other in (
        {"last": False},
        {"cluster_key": None},
        {"partition": 1},
        {"local_low_water_mark": 5},
        {"durable_to": 3},
        {"following": 31},
    ):
        assert again.recall(replace(job(storage), **other)) is None
    os.utime(idx(storage, 0, 20))
    assert again.recall(job(storage)) is None


@pytest.mark.parametrize("nonsense", [1, None, "x", [], {}, {"files": 1}, {"findings": [1]}, {"findings": [{}]}])
def test_what_is_remembered_of_a_segment_and_makes_no_sense_is_forgotten(
    storage: Path, tmp_path: Path, nonsense: object
) -> None:
    path = tmp_path / "state"
    remembered(path, storage).save(complete=False)
    document = json.loads(path.read_bytes())
    ((name, known),) = document["segments"].items()
    document["segments"][name] = {**known, **nonsense} if isinstance(nonsense, dict) and nonsense else nonsense
    path.write_text(json.dumps(document))
    assert ResumeState(path, VerifyOptions(resume=path)).recall(job(storage)) is None


def test_where_the_next_segment_begins_is_remembered(storage: Path, tmp_path: Path) -> None:
    """Records whose ids skip one: one is missing in front of them, or their ids are wrong, as the next segment says."""
    data, path = seg(storage, 0, 10), tmp_path / "state"
    raw = data.read_bytes()
    data.write_bytes(raw[: at(4)] + raw[at(5) :])
    age(storage)
    state = ResumeState(path, VerifyOptions(resume=path))
    said = {}
    for following in (20, 19):
        known = job(storage, 10, following=following)
        report = state.recall(known) or check_segment(known, WHOLE, ReadLimits())
        state.remember(report)
        said[following] = [one.message for one in report.findings if one.code == "record-order"]
    assert said[20] != said[19]


def test_an_end_that_somebody_may_just_have_been_writing_is_looked_at_again(storage: Path, tmp_path: Path) -> None:
    """The node died in the middle of a record: the run beside it could not tell, and the next one would not have looked."""
    data, path = seg(storage, 0, 20), tmp_path / "state"
    os.truncate(data, at(9) + 5)
    os.utime(data)
    state = ResumeState(path, VerifyOptions(resume=path))
    report = check_segment(replace(job(storage), held=True), WHOLE, ReadLimits())
    assert not report.findings
    state.remember(report)
    state.save(complete=False)
    assert ResumeState(path, VerifyOptions(resume=path)).recall(job(storage)) is None
    age(storage)
    assert [one.code for one in check_segment(job(storage), WHOLE, ReadLimits()).findings] == ["torn-tail"]
    remembered(path, storage).save(complete=False)
    assert ResumeState(path, VerifyOptions(resume=path)).recall(job(storage)) is not None


@pytest.mark.parametrize("program", ["0.0.9", "999.0.0", None])
def test_what_another_version_found_is_looked_at_again(storage: Path, tmp_path: Path, program: str | None) -> None:
    """It may have called whole what this one calls damage, as a torn tail in which records stand."""
    path = tmp_path / "state"
    remembered(path, storage).save(complete=False)
    document = json.loads(path.read_bytes())
    document["mode"] = {**document["mode"], "program": program}
    if program is None:  # as the first versions wrote it
        del document["mode"]["program"]
    path.write_text(json.dumps(document))
    again = ResumeState(path, VerifyOptions(resume=path))
    assert again.recall(job(storage)) is None
    again.remember(check_segment(job(storage), WHOLE, ReadLimits()))
    again.save(complete=False)
    assert ResumeState(path, VerifyOptions(resume=path)).recall(job(storage)) is not None


def test_a_file_in_the_place_of_one_that_was_finished_is_read(storage: Path, tmp_path: Path) -> None:
    """Of the same size and time, as a copy that keeps times is."""
    path, data = tmp_path / "state", seg(storage, 0, 20)
    remembered(path, storage).save(complete=False)
    again = ResumeState(path, VerifyOptions(resume=path))
    assert again.recall(job(storage)) is not None
    shutil.copy2(data, tmp_path / "copy")
    (tmp_path / "copy").rename(data)
    assert again.recall(job(storage)) is None


@pytest.mark.parametrize(
    "seen",
    [
        {"begins": 19},
        {"next_id": None},
        {"next_id": 40},
        {"accounted": 31},
        {"uncertain": True},
        {"records": 7},
        {"index_end": None},
        {"last_id": None},
        {"torn": True},
    ],
)
def test_nothing_of_a_report_is_forgotten(storage: Path, tmp_path: Path, seen: dict[str, object]) -> None:
    path = tmp_path / "state"
    state = ResumeState(path, WHOLE)
    report = replace(check_segment(job(storage), WHOLE, ReadLimits()), **seen)  # type: ignore[arg-type]
    state.remember(report)
    state.save(complete=False)
    assert ResumeState(path, WHOLE).recall(job(storage)) == report


def test_a_state_file_that_is_a_link_stays_one(storage: Path, tmp_path: Path) -> None:
    place, link = tmp_path / "elsewhere", tmp_path / "state"
    link.symlink_to(place)
    remembered(link, storage).save(complete=False)
    assert link.is_symlink()
    assert json.loads(place.read_text())["segments"]


def test_a_state_file_lies_in_nothing_that_is_inspected(storage: Path, tmp_path: Path) -> None:
    """Not in a partition's directory either that belongs to no storage directory."""
    alone = (storage / "0").rename(tmp_path / "0")
    for path in (alone, seg(tmp_path, 0, 10)):
        with pytest.raises(InvalidRequestError, match="which is only read"):
            run(path, resume=alone / "state")
    run(alone, resume=tmp_path / "state")


def test_what_is_not_finished_or_gone_is_not_remembered(storage: Path, tmp_path: Path) -> None:
    path = tmp_path / "state"
    state = ResumeState(path, WHOLE)
    report = check_segment(job(storage), WHOLE, ReadLimits())
    for other in (replace(report, gone=True), replace(report, finished=False)):
        state.remember(other)
        assert state.recall(job(storage)) is None
    state.remember(report)
    assert state.recall(job(storage)) == report


def test_the_state_is_written_every_few_seconds(storage: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    path = tmp_path / "state"
    state = ResumeState(path, WHOLE)
    report = check_segment(job(storage), WHOLE, ReadLimits())
    for moment, written in ((104.9, False), (105.0, True)):
        now[0] = moment
        state.remember(report)
        assert path.exists() is written
    assert json.loads(path.read_text())["complete"] is False
    assert len(json.loads(path.read_text())["segments"]) == 1
    path.unlink()
    for moment, written in ((109.9, False), (110.0, True)):
        now[0] = moment
        state.remember(report)
        assert path.exists() is written
    state.save(complete=True)
    assert json.loads(path.read_text())["segments"] == {}


@pytest.mark.parametrize("options", [{"quick": True}, {"sample": 0.5}, {"sample_seed": 3}])
def test_a_state_of_another_kind_of_verification_is_begun_anew(
    storage: Path, tmp_path: Path, options: dict[str, object]
) -> None:
    path = tmp_path / "state"
    remembered(path, storage, **options).save(complete=False)
    assert ResumeState(path, WHOLE).recall(job(storage)) is None
    same = ResumeState(path, VerifyOptions(**options))  # type: ignore[arg-type]
    assert same.recall(job(storage)) is not None


@pytest.mark.parametrize(
    "content",
    [
        "",
        "x",
        "[]",
        "{}",
        '{"schema": "other"}',
        '{"schema": "waltzctl.verify-state/1"}',
        '{"schema": "waltzctl.verify-state/2", "mode": {}, "complete": false, "segments": {}}',
    ],
)
def test_another_file_is_no_state(tmp_path: Path, content: str) -> None:
    path = tmp_path / "state"
    path.write_text(content)
    with pytest.raises(InvalidRequestError, match="not the state of an earlier verification"):
        ResumeState(path, WHOLE)
    path.unlink()
    path.mkdir()
    with pytest.raises(InvalidRequestError, match="not the state of an earlier verification"):
        ResumeState(path, WHOLE)


def test_a_state_lies_outside_of_what_is_inspected(storage: Path, tmp_path: Path) -> None:
    refuse_inside(tmp_path / "sx", [storage])
    refuse_inside(tmp_path / "state", ["s3://bucket/x", storage])  # type: ignore[list-item]
    for path in (storage / "x", storage / "0" / "x", storage):
        with pytest.raises(InvalidRequestError, match="which is only read"):
            refuse_inside(path, [tmp_path / "other", storage])
        with pytest.raises(InvalidRequestError, match="which is only read"):
            refuse_inside(path, ["s3://bucket/x", storage])  # type: ignore[list-item]


@pytest.mark.parametrize("named", ["storage", "link", "above/s"])
@pytest.mark.parametrize("place", ["s/x", "s/0/x", "link/x", "link/0/x", "zero/x", "above/s/x", "file"])
def test_a_state_that_a_link_leads_into_what_is_inspected_is_seen(
    storage: Path, tmp_path: Path, named: str, place: str
) -> None:
    (tmp_path / "link").symlink_to(storage)
    (tmp_path / "zero").symlink_to(storage / "0")
    (tmp_path / "above").symlink_to(tmp_path)
    (tmp_path / "file").symlink_to(storage / "0" / "state")
    inspected = storage if named == "storage" else tmp_path / named
    with pytest.raises(InvalidRequestError, match="which is only read"):
        refuse_inside(tmp_path / place, [inspected])
    (storage / "out").symlink_to(tmp_path)
    refuse_inside(storage / "out" / "x", [inspected])


@pytest.mark.parametrize("order", [1, -1])
def test_what_is_named_twice_is_inspected_once(storage: Path, tmp_path: Path, order: int) -> None:
    """As a whole and in part, and through links."""
    (tmp_path / "link").symlink_to(storage)
    flip(seg(storage, 0, 10), at(3) + 45)
    flip(storage / CONTROL, Layout.RELEASED.struct_offset(0, 2))
    once, summary = run(age(storage))
    link = tmp_path / "link"
    for twice in (
        [storage, link, storage / "0", link / "0", seg(link, 0, 10)],
        [storage, link],
        [storage, storage / ".." / "s"],
        [storage, link / CONTROL],
        [storage / "0", seg(link, 0, 10)],
        [storage / "0", link / "0", idx(storage, 0, 20)],
    ):
        *found, ended = verify(twice[::order], WHOLE)
        assert isinstance(ended, VerifySummary)
        assert [(one.code, one.transaction_id) for one in found if isinstance(one, Finding)] == [
            (one.code, one.transaction_id) for one in once
        ]
        assert (ended.segments, ended.records, ended.bytes) == (3, 29, summary.bytes)


# --- a manifest ------------------------------------------------------------------------------------------------------------


def test_a_manifest_needs_a_directory_that_can_be_written_to(
    storage: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_bytes(b"")
    for parent in (tmp_path / "file", tmp_path / "none"):
        with pytest.raises(InvalidRequestError, match="no directory that can be written to"):
            run(storage, manifest=ManifestRequest(parent / "m"))
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK)
    with pytest.raises(InvalidRequestError, match="no directory that can be written to"):
        run(storage, manifest=ManifestRequest(tmp_path / "m"))


# --- status ----------------------------------------------------------------------------------------------------------------


def test_status_counts_what_is_there_and_nothing_more(tmp_path: Path) -> None:
    storage = age(build_directory(tmp_path / "s", {0: 3, 1: 0}, per_segment=2, size=SIZE, num_partitions=3))
    idx(storage, 0, 7).write_bytes(segment_header(0, 7).encode())
    age(storage)
    os.utime(seg(storage, 0, 0), ns=(5_000_000, 2_000_000_000))
    os.utime(seg(storage, 0, 2), ns=(5_000_000, 1_000_000_000))
    one, empty, other = storage_status(storage).partitions
    assert (one.segments, one.records, one.first_transaction_id, one.last_transaction_id) == (2, 3, 0, 2)
    assert one.bytes == 5 * 128 + 3 * RECORD + 3 * 8
    assert one.last_written == "1970-01-01T00:00:02.000Z"
    assert (empty.segments, empty.records, empty.bytes, empty.first_transaction_id) == (1, 0, 256, None)
    assert (other.segments, other.records, other.bytes, other.last_written) == (0, 0, 0, None)
    assert one.findings
    assert all(found.partition == 0 for found in one.findings)


def test_status_says_what_a_partition_s_findings_are(tmp_path: Path) -> None:
    note = make_finding(Code.INDEX_SHORT, Path("x"), "x", severity=Severity.NOTE)
    mend = make_finding(Code.INDEX_SHORT, Path("x"), "x", severity=Severity.REPAIRABLE)
    harm = make_finding(Code.INDEX_SHORT, Path("x"), "x", severity=Severity.DAMAGE)
    for assigned, found, health in (
        (True, (), "ok"),
        (None, (note,), "ok"),
        (True, (note, mend), "repairable"),
        (True, (mend, harm, note), "damaged"),
        (False, (harm,), "unassigned"),
        (None, (harm,), "damaged"),
    ):
        assert status._health(assigned, found) == health


def test_the_time_of_a_directory_counts_where_it_is_watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "f"
    file.write_bytes(b"x")
    age(file)
    assert live.Watch((file,), False, ReadLimits()).quiet_now()
    assert not live.Watch((file,), False, ReadLimits(), tmp_path).quiet_now()
    age(tmp_path)
    assert live.Watch((file,), False, ReadLimits(), tmp_path).quiet_now()
    assert live.Watch((tmp_path / "none",), False, ReadLimits()).quiet_now()


# --- what surrounds, and what is asked for ---------------------------------------------------------------------------------

OTHER = uuid.UUID(int=KEY.int ^ 1)
THIRD = uuid.UUID(int=KEY.int ^ 2)


def with_keys(path: Path, *keys: uuid.UUID) -> Path:
    """A partition with one segment for each of the keys; the control file says KEY."""
    storage = build_directory(path, {0: []}, size=SIZE, local_low_water_mark=-1)
    for number, key in enumerate(keys):
        write_segment(storage / "0", make_records(10, first=10 * number, size=SIZE), key=key)
    return storage


@pytest.mark.parametrize("control", [True, False])
@pytest.mark.parametrize(
    ("keys", "with_control", "without"),
    [
        ((), KEY, None),
        ((OTHER,), KEY, OTHER),
        ((OTHER, OTHER), OTHER, OTHER),
        ((OTHER, THIRD), KEY, OTHER),
        ((OTHER, THIRD, THIRD), KEY, THIRD),
        ((OTHER, OTHER, KEY), KEY, OTHER),
    ],
)
def test_which_key_headers_are_compared_with(
    tmp_path: Path, keys: tuple[uuid.UUID, ...], with_control: uuid.UUID, without: uuid.UUID | None, control: bool
) -> None:
    storage = with_keys(tmp_path / "s", *keys)
    if not control:
        if without is None:
            return  # then it is no storage directory
        (storage / CONTROL).unlink()
    (scope,) = plan([storage if control else storage / "0"], None)
    scope.control_path = storage / CONTROL
    around = look_around(scope, None)
    assert around.cluster_key == (with_control if control else without)
    blamed = [one for one in around.findings if one.code is Code.SEGMENT_KEY]
    assert len(blamed) == (control and with_control != KEY)
    for one in blamed:
        assert (one.path, one.length) == (storage / CONTROL, 16)


@pytest.mark.parametrize("place", [0, 31, 39])
@pytest.mark.parametrize(
    ("keys", "found"), [((OTHER, OTHER, THIRD), OTHER), ((OTHER, THIRD), KEY), ((OTHER, KEY), KEY)]
)
def test_a_header_that_is_damaged_in_another_place_speaks_for_no_key(
    tmp_path: Path, place: int, keys: tuple[uuid.UUID, ...], found: uuid.UUID
) -> None:
    """Beside one header of zeros a damaged key of the control file was every segment's fault, and no command mended anything."""
    storage = with_keys(tmp_path / "s", *keys)
    flip(seg(storage, 0, 10 * (len(keys) - 1)), place)
    assert look_around(plan([storage], None)[0], None).cluster_key == found


@pytest.mark.parametrize(("most", "key"), [(1, OTHER), (2, OTHER), (3, KEY), (4, KEY)])
def test_so_many_headers_are_compared_with_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int, key: uuid.UUID
) -> None:
    monkeypatch.setattr(targets, "_HEADERS_COMPARED", most)
    (scope,) = plan([with_keys(tmp_path / "s", OTHER, OTHER, KEY)], None)
    found = look_around(scope, None).cluster_key
    assert found == (key if most > 1 else KEY)


def test_what_is_known_of_a_partition_comes_from_its_struct(tmp_path: Path) -> None:
    storage = age(build_directory(tmp_path / "s", {0: 5, 1: 5}, session=7, local_low_water_mark=2))
    (scope,) = plan([storage], None)
    around = look_around(scope, None)
    assert [around.local_low_water_mark(one) for one in (0, 1, 2, None)] == [2, 2, None, None]
    assert [around.session_id(one) for one in (0, 1, 2, None)] == [7, 7, None, None]
    break_struct(storage, 1, 1, 2)
    around = look_around(plan([age(storage)], None)[0], None)
    assert [around.session_id(one) for one in (0, 1)] == [7, None]
    outside = seg(storage, 0, 0).rename(tmp_path / "x.seg")
    alone = look_around(plan([outside], None)[0], None)
    assert (alone.control, alone.held, alone.cluster_key, alone.session_id(0)) == (None, False, None, None)


@pytest.mark.parametrize(
    ("first", "last", "asked", "overlaps"),
    [
        (None, None, (5, 7), True),
        (None, 4, (5, 7), False),
        (None, 5, (5, 7), True),
        (7, None, (5, 7), True),
        (8, None, (5, 7), False),
        (8, None, (5, None), True),
        (None, 4, (5, None), False),
        (6, 6, (5, 7), True),
    ],
)
def test_which_ids_of_a_dump_are_wanted(
    first: int | None, last: int | None, asked: tuple[int, int | None], overlaps: bool
) -> None:
    assert dump_records_module._Range(first, last).overlaps(*asked) is overlaps


@pytest.mark.parametrize(
    ("options", "partial"),
    [
        ({"sample": 1.0}, False),
        ({"sample": 0.99}, True),
        ({"sample": 1e-9}, True),
        ({"quick": True}, True),
        ({"max_duration": 0}, False),
        ({"limit_rate": 1}, False),
        ({"threads": 1}, False),
        ({}, False),
    ],
)
def test_options_at_their_bounds(options: dict[str, object], partial: bool) -> None:
    given = VerifyOptions(**options)  # type: ignore[arg-type]
    given.check()
    assert given.partial is partial


@pytest.mark.parametrize(
    "options",
    [
        {"sample": 0.0},
        {"sample": 1.01},
        {"sample": float("nan")},
        {"sample": 0.5, "quick": True},
        {"max_duration": -0.1},
        {"max_duration": float("nan")},
        {"limit_rate": 0},
        {"threads": 0},
    ],
)
def test_options_beyond_their_bounds(options: dict[str, object]) -> None:
    with pytest.raises(InvalidRequestError):
        VerifyOptions(**options).check()  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "total"),
    [
        ({}, 3 * at(10)),
        ({"quick": True}, 3 * (128 + 80)),
        ({"sample": 0.5}, 3 * at(10) // 2),
        ({"sample": 1.0}, 3 * at(10)),
    ],
)
def test_what_is_expected_to_be_read(storage: Path, options: dict[str, object], total: int) -> None:
    told: list[tuple[str, int]] = []

    class Listener:
        def start(self, what: str, total: int) -> None:
            told.append((what, total))

        def advance(self, amount: int) -> None:
            pass

    list(verify([storage], VerifyOptions(**options), Listener()))  # type: ignore[arg-type]
    assert told == [("verify", total)]


def test_what_a_manifest_reads_besides_is_expected_too(storage: Path, tmp_path: Path) -> None:
    told: list[int] = []

    class Listener:
        def start(self, what: str, total: int) -> None:
            told.append(total)

        def advance(self, amount: int) -> None:
            pass

    list(verify([storage], VerifyOptions(manifest=ManifestRequest(tmp_path / "m")), Listener()))
    assert told == [3 * at(10) + 3 * (128 + 80) + (storage / CONTROL).stat().st_size]


def test_a_dump_of_an_index_that_is_not_there_says_why(storage: Path) -> None:
    idx(storage, 0, 10).unlink()
    os.truncate(idx(storage, 0, 20), 127)
    told = entries(age(storage))
    assert told == [*range(10), "index-missing", "index-header"]
    with ChunkReader(job(storage, 0), ReadLimits(), data=False) as reader:
        assert reader.index_problem() == ()


def test_the_entries_that_are_compared_count_as_read(storage: Path) -> None:
    """A quick look reads the whole index, unless only the ends are asked for."""
    whole, ends = ReadLimits(), ReadLimits()
    check_segment(job(storage), VerifyOptions(quick=True), whole)
    check_segment(job(storage), VerifyOptions(quick=True, ends_only=True), ends)
    assert whole.bytes_read == ends.bytes_read + 10 * 8


def test_only_the_private_key_signs(storage: Path, tmp_path: Path) -> None:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    run(storage, manifest=ManifestRequest(tmp_path / "m"))
    manifest = decode_manifest((tmp_path / "m").read_bytes())
    private = Ed25519PrivateKey.generate()
    with pytest.raises(InvalidRequestError, match="a public key, and a manifest is signed with the private one"):
        SigningKey(tmp_path / "k", private.public_key()).sign(manifest)
    signed = SigningKey(tmp_path / "k", private.public_key(), private).sign(manifest)
    assert SigningKey(tmp_path / "k", private.public_key()).objection(signed) is None
    other = SigningKey(tmp_path / "k", Ed25519PrivateKey.generate().public_key())
    for key, one, why in (
        (other, signed, "signed with another key"),
        (other, manifest, "it is not signed"),
        (SigningKey(tmp_path / "k", private.public_key()), replace(signed, tool="other"), "not that of its contents"),
    ):
        assert why in (key.objection(one) or "")


@pytest.mark.parametrize("over", [False, True])
def test_a_part_that_was_not_read_to_its_end_cuts_the_segment_short(storage: Path, over: bool) -> None:
    limits = ReadLimits()
    one = job(storage)
    with ThreadPoolExecutor(1) as pool:
        if over:
            limits.stop()
        split = SplitSegment(one, WHOLE, limits, pool)
        report = split.result()
    assert (report.finished, report.uncertain, report.findings) == (not over, over, ())
    assert limits.bytes_read == seg(storage, 0, 0).stat().st_size - HEADER_SIZE, "every byte is read once"


@pytest.mark.parametrize("chunk", [1, RECORD, 3 * RECORD])
@pytest.mark.parametrize("place", [0, 1, 4, 8, 9])
def test_damage_where_two_pieces_meet_is_told_once_in_both_directions(
    storage: Path, monkeypatch: pytest.MonkeyPatch, chunk: int, place: int
) -> None:
    monkeypatch.setattr(dump_chunks, "CHUNK", chunk)
    for first in (0, 20):
        flip(seg(storage, 0, first), at(place) + 45)
    age(storage)

    def told(reverse: bool) -> list[int | str]:
        items = dump_records(storage, reverse=reverse)
        return [one.transaction_id if isinstance(one, DumpedRecord) else one.code.value for one in items]

    forwards = told(False)
    assert len(forwards) == 30
    assert told(True) == forwards[::-1]


@pytest.mark.parametrize("asked", [0, 1])
def test_of_a_control_file_only_the_partitions_that_were_asked_for_are_told(tmp_path: Path, asked: int) -> None:
    storage = build_directory(tmp_path / "s", {0: 3, 1: 3}, size=20)
    begin, end = Layout.RELEASED.file_size(1), Layout.RELEASED.file_size(2)
    patch(storage / CONTROL, begin + 4, b"\xa5" * (end - begin - 4))
    found = codes(run(age(storage) / str(asked))[0])
    assert found == ([] if asked == 0 else ["control-pair-checksum"])
