"""Steps of an inspection: an empty segment met from behind, blocks of a sample, one look at what is old, a segment on its own."""

from __future__ import annotations

import json
import os
import random
import shutil
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.builders import KEY, build_directory, make_records, segment_header, write_segment
from tests.inspect.helpers import age, codes, cut, idx, run, seg
from tests.inspect.test_bounds import Clock
from tests.inspect.test_codes import at, break_struct
from tests.inspect.test_distributed_checks import Workers
from tests.inspect.test_partition_steps import opened
from waltzctl.engine.errors import ClusterError, DiskReadError
from waltzctl.engine.findings import Finding
from waltzctl.engine.inspect import sampling, segment_checks, vouching
from waltzctl.engine.inspect import verify as verify_module
from waltzctl.engine.inspect.control_checks import inspect_control
from waltzctl.engine.inspect.dump import SegmentDump, dump_segment, dump_segments
from waltzctl.engine.inspect.dump_chunks import ChunkReader
from waltzctl.engine.inspect.dump_records import DumpedRecord, dump_records, settled
from waltzctl.engine.inspect.live import QUIET
from waltzctl.engine.inspect.partition_checks import PartitionContext, special_findings
from waltzctl.engine.inspect.read_limits import ReadLimits
from waltzctl.engine.inspect.resume import ResumeState
from waltzctl.engine.inspect.sampling import choose_blocks
from waltzctl.engine.inspect.segment_checks import FilesChangedError, SegmentCheck, check_segment
from waltzctl.engine.inspect.segment_job import SegmentJob
from waltzctl.engine.inspect.verification import ManifestRequest, VerifyOptions
from waltzctl.engine.log.index import IndexReader
from waltzctl.engine.log.view import FileState, view_partition
from waltzctl.engine.progress import SILENT
from waltzctl.engine.scan.byte_source import BytesSource
from waltzctl.engine.scan.columns import RecordBatch
from waltzctl.formats.segment import HEADER_SIZE, encode_entries

CONTROL = "waltz-storage.ctl"


@pytest.fixture
def storage(tmp_path: Path) -> Path:
    """Segments 0, 10 and 20 of ten records each; the mark is 14."""
    return age(build_directory(tmp_path / "s", {0: 30}, per_segment=10, size=20, local_low_water_mark=14))


def job(storage: Path, first: int = 20) -> SegmentJob:
    size = seg(storage, 0, first).stat().st_size
    return SegmentJob(storage / "0", first, 0, cluster_key=KEY, bytes=size, last=first == 20)


def told(items: list[DumpedRecord | Finding]) -> list[str]:
    return [str(one.transaction_id) if isinstance(one, DumpedRecord) else one.code.value for one in items]


@pytest.mark.parametrize("empty", [0, 10, 20])
def test_an_empty_segment_joins_its_neighbours_from_behind_too(storage: Path, empty: int) -> None:
    for path in (seg(storage, 0, empty), idx(storage, 0, empty)):
        cut(path, HEADER_SIZE)
    forwards = list(dump_records(age(storage)))
    assert list(dump_records(storage, reverse=True)) == forwards[::-1]
    records = [str(number) for number in range(30) if not empty <= number < empty + 10]
    records.insert(empty, "segment-gap") if empty < 20 else None
    assert told(forwards) == records


@pytest.mark.parametrize("count", [0, 1, 99, 100, 101, 1000, 1007])
@pytest.mark.parametrize("begins", [0, 40])
def test_blocks_of_a_sample_are_drawn_one_by_one_and_joined_where_they_meet(count: int, begins: int) -> None:
    index = segment_header(0, begins).encode() + encode_entries([HEADER_SIZE + 60 * place for place in range(count)])
    reader, size = IndexReader(BytesSource(index), begins), max(1, count) * sampling.BLOCK // 100
    for seed in ("a", "b", "c"):
        for fraction in (0.0, 0.3, 0.7, 1.0):
            drawn = random.Random(seed)
            blocks = [range(first, min(first + 100, count)) for first in range(0, count, 100)]
            taken = {begins + number for block in blocks if drawn.random() < fraction for number in block}
            found = choose_blocks(reader, size, fraction, seed)
            assert [number for first, last in found for number in range(first, last)] == sorted(taken)
            assert all(last < first for (_, last), (first, _) in pairwise(found))


@pytest.mark.parametrize(("short", "looks"), [(0, 1), (1, 2)])
def test_a_control_file_that_is_old_enough_is_looked_at_once(
    storage: Path, short: int, looks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    break_struct(storage, 0, 1)
    os.utime(storage / CONTROL, (1000, 1000))
    slept: list[float] = []
    monkeypatch.setattr(time, "time", lambda: 1000 + QUIET - short / 1000)
    monkeypatch.setattr(time, "sleep", slept.append)
    found = inspect_control(storage / CONTROL, storage)
    assert ([one.code.value for one in found.findings], 1 + len(slept)) == (["control-struct-checksum"], looks)


@pytest.mark.parametrize("entry", [HEADER_SIZE, at(10)], ids=["that leads elsewhere", "of what may come"])
def test_a_segment_alone_is_described_as_it_is_among_the_others(storage: Path, entry: int) -> None:
    """With an index that is right, wrong, or lists too much; nothing is said of one that is gone."""
    idx(storage, 0, 0).write_bytes(segment_header(0, 0).encode() + encode_entries([HEADER_SIZE] * 10))
    with idx(storage, 0, 20).open("ab") as file:
        file.write(entry.to_bytes(8))
    among = [one for one in dump_segments(age(storage)) if isinstance(one, SegmentDump)]
    assert [dump_segment(job(storage, first), ReadLimits()) for first in (0, 10, 20)] == among
    assert [one.index for one in among] == ["stale", "ok", "stale"]
    gone = job(storage)
    seg(storage, 0, 20).unlink()
    assert dump_segment(gone, ReadLimits()) is None


@pytest.mark.parametrize("data", [False, True])
def test_a_scan_of_a_segment_keeps_data_where_it_is_asked_to(storage: Path, data: bool) -> None:
    with SegmentCheck(job(storage), ReadLimits()) as check:
        for items in (check.scan(20, HEADER_SIZE, data=data), *([] if data else [check.scan(20, HEADER_SIZE)])):
            (batch,) = items
            assert isinstance(batch, RecordBatch)
            assert (batch.data is not None) is data


@pytest.mark.parametrize("complete", [False, True])
def test_of_a_run_that_was_complete_nothing_is_recalled(storage: Path, tmp_path: Path, complete: bool) -> None:
    """Whatever its file holds."""
    path, options = tmp_path / "state", VerifyOptions()
    state = ResumeState(path, options)
    report = check_segment(job(storage), options, ReadLimits())
    state.remember(report)
    state.save(complete=False)
    path.write_text(json.dumps({**json.loads(path.read_text()), "complete": complete}))
    assert ResumeState(path, options).recall(job(storage)) == (None if complete else report)


def test_nothing_is_said_of_a_manifest_when_the_time_is_over(storage: Path, tmp_path: Path) -> None:
    """Not even that it cannot be believed."""
    path = tmp_path / "manifest"
    run(storage, manifest=ManifestRequest(path))
    path.write_bytes(path.read_bytes()[:-9])
    found, summary = run(storage, manifest=ManifestRequest(path), max_duration=0)
    assert (found, summary.manifest, summary.complete) == ([], "not-compared", False)
    found, summary = run(storage, manifest=ManifestRequest(path))
    assert (len(found), summary.manifest) == (1, "not-believed")


@pytest.mark.parametrize(
    ("span", "gap"),
    [((None, None), True), ((None, 0), True), ((0, 0), True), ((None, 9), True), ((5, None), False), ((6, 9), False)],
)
def test_what_is_missing_in_front_of_a_first_segment_under_a_wrong_name(
    tmp_path: Path, span: tuple[int | None, int | None], gap: bool
) -> None:
    """Its name says 0; its header and its records, that it begins with 5."""
    storage = build_directory(tmp_path / "s", {0: []}, local_low_water_mark=9)
    path = write_segment(storage / "0", make_records(5, first=5))
    for suffix, named in ((".seg", seg(storage, 0, 0)), (".idx", idx(storage, 0, 0))):
        path.with_suffix(suffix).rename(named)
    first, last = span
    items = list(dump_records(age(storage), first=first, last=last))
    found = codes(one for one in items if isinstance(one, Finding))
    assert found == (["segment-gap"] if gap else []) + ["segment-name"]


def test_what_is_no_file_is_told_once(storage: Path) -> None:
    """With the segment whose index it is, or else with the directory; also what became a file meanwhile."""
    directory = storage / "0"
    idx(storage, 0, 10).unlink()
    for path in (idx(storage, 0, 10), seg(storage, 0, 77), idx(storage, 0, 88), seg(storage, 0, 99)):
        path.mkdir()
    view = view_partition(directory, 0)
    assert [path.name[17:] for path in sorted(view.special)] == ["10.idx", "77.seg", "88.idx", "99.seg"]
    for first in (77, 95):
        idx(storage, 0, first).write_bytes(segment_header(0, first).encode() + bytes(8))
    assert [one.segment for one in opened(age(storage)).orphans([])] == [95], "of which there is no data file at all"
    assert codes(check_segment(job(storage, 10), VerifyOptions(), ReadLimits()).findings) == ["special-file"]
    seg(storage, 0, 99).rmdir()
    shutil.copy(seg(storage, 0, 0), seg(storage, 0, 99))
    context = PartitionContext(storage, 0, directory, 14, True, 3)
    assert sorted(one.path.name[17:] for one in special_findings(context, view)) == [
        "77.seg",
        "88.idx",
        "99.seg",  # the view has no size of it, so that nobody reads it
    ]


def test_a_short_file_that_may_be_being_written_is_not_finished_when_the_time_is_over(storage: Path) -> None:
    """With time left it is waited for."""
    cut(seg(storage, 0, 20), 50)
    now = ReadLimits(max_duration=0)
    os.utime(seg(storage, 0, 20))
    with SegmentCheck(job(storage), now) as check:
        report = check.run(VerifyOptions())
    assert (report.finished, report.findings, report.next_id, report.accounted) == (False, (), 20, 29)
    age(storage)
    with SegmentCheck(job(storage), now) as check:
        report = check.run(VerifyOptions())
    assert (report.finished, codes(report.findings), report.next_id) == (True, ["segment-header-short"], None)


def test_time_that_is_over_while_an_end_is_looked_at_again_cuts_the_check_short(
    storage: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A torn end of a file that is new is looked at again, but no longer than there is time."""
    path = seg(storage, 0, 20)
    cut(path, path.stat().st_size - 3)
    for each in (path, idx(storage, 0, 20)):
        os.utime(each, (1000, 1000))
    clock = Clock()
    monkeypatch.setattr(time, "time", lambda: 1000.1)
    monkeypatch.setattr(time, "monotonic", clock.monotonic)
    for seconds, told in ((0.05, []), (50, ["torn-tail"])):
        limits = ReadLimits(max_duration=seconds)
        monkeypatch.setattr(limits._stop, "wait", clock.wait)
        with SegmentCheck(job(storage), limits) as check:
            report = check.run(VerifyOptions())
        assert (report.finished, codes(report.findings), clock.waited < 0.06) == (bool(told), told, not told)


def test_time_that_is_over_while_a_manifest_is_compared_leaves_it_open(
    storage: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = ManifestRequest(tmp_path / "manifest")
    assert run(storage, manifest=request)[1].manifest == "written"
    made: list[ReadLimits] = []
    listing = vouching.listing

    def over(path: Path) -> dict[str, FileState]:
        for limits in made:
            limits.stop()
        return listing(path)

    def limits(**options: object) -> ReadLimits:
        made.append(ReadLimits(**options))  # type: ignore[arg-type]
        return made[-1]

    monkeypatch.setattr(vouching, "listing", over)
    monkeypatch.setattr(verify_module, "ReadLimits", limits)
    found, summary = run(storage, manifest=request)
    assert (found, summary.segments, summary.complete, summary.manifest) == ([], 3, False, "not-compared")


@pytest.mark.parametrize("workers", [False, True])
def test_the_rate_and_who_listens_are_for_what_is_read_here(
    storage: Path, workers: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And compiled code is chosen for as much as that."""
    made: list[dict[str, object]] = []
    amounts: list[int] = []

    class Kept(ReadLimits):
        def __init__(self, **options: object) -> None:
            made.append(options)
            super().__init__(**options)  # type: ignore[arg-type]

    class Listener:
        def start(self, what: str, total: int) -> None:
            pass

        def advance(self, amount: int) -> None:
            pass

    monkeypatch.setattr(verify_module, "ReadLimits", Kept)
    monkeypatch.setattr(verify_module, "kernels", SimpleNamespace(choose=amounts.append))
    listener = Listener()
    options = VerifyOptions(limit_rate=10**9, max_duration=1000, exclusive=True)
    list(verify_module.verify([storage], options, listener, Workers(1) if workers else None))
    rate, told = (None, SILENT) if workers else (10**9, listener)
    assert amounts == ([] if workers else [sum(seg(storage, 0, first).stat().st_size for first in (0, 10, 20))])
    assert made == [{"max_duration": 1000, "limit_rate": rate, "progress": told, "exclusive": True}]


def test_an_end_that_grows_meanwhile_is_not_settled(storage: Path) -> None:
    age(storage)
    with ChunkReader(job(storage), ReadLimits(), data=False) as reader:
        assert settled(reader)
        with seg(storage, 0, 20).open("ab") as file:
            file.write(b"x")
        assert not settled(reader)


@pytest.mark.parametrize("last", [False, True])
def test_an_end_in_front_of_another_segment_is_settled_unless_it_changes_now(
    storage: Path, monkeypatch: pytest.MonkeyPatch, last: bool
) -> None:
    """However new it is: nobody appends to it, so nothing is waited for; also where it was the last when it was listed."""

    def wait(seconds: float) -> bool:
        raise AssertionError(seconds)

    os.utime(seg(storage, 0, 0))
    limits = ReadLimits()
    monkeypatch.setattr(limits._stop, "wait", wait)
    with ChunkReader(replace(job(storage, 0), last=last), limits, data=False) as reader:
        assert settled(reader)
        cut(seg(storage, 0, 0), HEADER_SIZE)
        assert not settled(reader)


def test_an_end_that_is_new_is_not_settled_while_somebody_holds_the_directory(storage: Path) -> None:
    with ChunkReader(replace(job(storage), held=True), ReadLimits(), data=False) as reader:
        assert settled(reader)
    os.utime(seg(storage, 0, 20))
    with ChunkReader(replace(job(storage), held=True), ReadLimits(), data=False) as reader:
        assert not settled(reader)


def test_a_file_that_is_named_alone_is_not_asked_for_what_is_in_front_of_it(storage: Path) -> None:
    seg(storage, 0, 0).unlink()
    idx(storage, 0, 0).unlink()
    assert "segment-gap" in told(list(dump_records(age(storage))))
    assert told(list(dump_records(seg(storage, 0, 10)))) == [str(number) for number in range(10, 20)]


def test_a_check_that_cannot_begin_leaves_no_file_open(storage: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unreadable(source: object, size: int) -> None:
        raise DiskReadError(seg(storage, 0, 20), 0, OSError(5, "made up"))

    monkeypatch.setattr(segment_checks, "read_header_of", unreadable)
    check, before = SegmentCheck(job(storage), ReadLimits()), len(os.listdir("/proc/self/fd"))
    with pytest.raises(DiskReadError):
        check.__enter__()
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_segment_that_was_not_there_when_its_files_were_looked_at_is_opened_anew(
    storage: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though it is there when it is opened."""
    monkeypatch.setattr(segment_checks, "states", lambda *paths: (None, None))
    with pytest.raises(FilesChangedError):
        SegmentCheck(job(storage), ReadLimits()).__enter__()


def test_workers_that_do_not_see_a_file_check_nothing(storage: Path) -> None:
    path = seg(storage, 0, 10)

    class Elsewhere(Workers):
        def map(self, work: Any, tasks: Any, **how: Any) -> Any:
            hidden = path.rename(path.with_suffix(".hidden"))
            answers = list(super().map(work, tasks, **how))
            hidden.rename(path)
            return iter(answers)

    with pytest.raises(ClusterError, match="a worker does not see this file"):
        list(verify_module.verify([storage], executor=Elsewhere()))
