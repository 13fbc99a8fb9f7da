"""A partition's way through a verification, step by step: what changed meanwhile, what is promised, what a dump asks for."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from tests.builders import KEY, build_directory, make_records, segment_header, write_segment
from tests.inspect.helpers import age, codes, flip, idx, run, seg
from waltzctl.engine.errors import DiskReadError
from waltzctl.engine.findings import Code, Finding, make_finding
from waltzctl.engine.inspect import dump_chunks, partition_runs, segment_order, split_segments, storage_checks, targets
from waltzctl.engine.inspect import verify as verify_module
from waltzctl.engine.inspect.dump_chunks import ChunkReader
from waltzctl.engine.inspect.dump_records import dump_records
from waltzctl.engine.inspect.partition_checks import PartitionContext, held_ids, join_findings
from waltzctl.engine.inspect.partition_runs import PartitionRun
from waltzctl.engine.inspect.read_limits import ReadLimits
from waltzctl.engine.inspect.segment_checks import check_segment
from waltzctl.engine.inspect.segment_job import SegmentJob, SegmentReport
from waltzctl.engine.inspect.segment_order import Span
from waltzctl.engine.inspect.targets import look_around, plan
from waltzctl.engine.inspect.unread_losses import _able, _meets, losses_behind, losses_in_front
from waltzctl.engine.inspect.verification import ManifestRequest, VerifyOptions
from waltzctl.engine.log.evidence import Evidence
from waltzctl.engine.log.view import FileState
from waltzctl.engine.scan import scanner
from waltzctl.engine.scan.columns import RecordBatch
from waltzctl.formats.segment import HEADER_SIZE, SegmentHeader, encode_entries

SIZE = 20
RECORD = SIZE + 40


def at(place: int) -> int:
    return HEADER_SIZE + RECORD * place


@pytest.fixture
def storage(tmp_path: Path) -> Path:
    """Segments 0, 10 and 20 of ten records each; the mark is 14."""
    return age(build_directory(tmp_path / "s", {0: 30}, per_segment=10, size=SIZE, local_low_water_mark=14))


def opened(path: Path) -> PartitionRun:
    (scope,) = plan([path], None)
    (found,) = partition_runs.runs(scope, look_around(scope, None), ReadLimits(), None)
    return found


def checked(one: PartitionRun) -> list[SegmentReport]:
    reports = [check_segment(job, VerifyOptions(), ReadLimits()) for job in one.jobs]
    for report in reports:
        list(one.add(report))
    return reports


def grow(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"x")


def begin(storage: Path, first: int, count: int = 2) -> None:
    write_segment(storage / "0", make_records(count, first=first, size=SIZE), first=first)


def empty_index(storage: Path, first: int) -> None:
    idx(storage, 0, first).write_bytes(segment_header(0, first).encode())


@pytest.mark.parametrize(
    ("before", "meanwhile", "unchanged"),
    [
        (None, lambda s: None, True),
        (None, lambda s: begin(s, 30), True),
        (None, lambda s: grow(seg(s, 0, 20)), True),
        (None, lambda s: grow(idx(s, 0, 20)), True),
        (None, lambda s: grow(seg(s, 0, 10)), False),
        (None, lambda s: grow(idx(s, 0, 0)), False),
        (None, lambda s: seg(s, 0, 20).unlink(), False),
        (None, lambda s: shutil.rmtree(s / "0"), False),
        (None, lambda s: empty_index(s, 30), True),
        (lambda s: empty_index(s, 30), lambda s: None, True),
        (lambda s: empty_index(s, 30), lambda s: grow(seg(s, 0, 20)), False),
        (lambda s: empty_index(s, 30), lambda s: idx(s, 0, 30).unlink(), False),
        (lambda s: empty_index(s, 5), lambda s: idx(s, 0, 5).unlink(), True),
        (lambda s: empty_index(s, 21), lambda s: idx(s, 0, 21).unlink(), False),
    ],
)
def test_what_changed_since_the_segments_were_checked(
    storage: Path, before: Callable[[Path], object] | None, meanwhile: Callable[[Path], object], unchanged: bool
) -> None:
    """What is begun or appended does not count, unless a later name proves where the last segment ends."""
    if before is not None:
        before(storage)
    one = opened(storage)
    reports = checked(one)
    assert one.view is not None
    meanwhile(storage)
    assert one.unchanged(one.view, reports) is unchanged
    if unchanged:
        assert not one.unchanged(one.view, [*reports[:2], replace(reports[2], gone=True)])
        unread = [replace(report, states=(None, None)) for report in reports]
        assert one.unchanged(one.view, unread), "what was remembered of an earlier run has no state"


def test_looking_again_sees_what_was_there_before(storage: Path) -> None:
    one = opened(storage)
    begin(storage, 21)
    seg(storage, 0, 10).unlink()
    assert one.look_again()
    assert [(job.first, job.last, job.following) for job in one.jobs] == [(0, False, 20), (20, True, None)]
    assert one.view is not None
    assert [segment.first_transaction_id for segment in one.view.segments] == [0, 10, 20]
    shutil.rmtree(storage / "0")
    assert not one.look_again()


@pytest.mark.parametrize(
    ("mark", "begun", "promised"),
    [
        (14, (), 14),
        (14, (30,), 14),
        (29, (30,), 29),
        (30, (30,), 29),
        (35, (30,), 29),
        (35, (21,), 20),
        (35, (40, 32), 31),
        (35, (), 35),
        (20, (), 20),
    ],
)
def test_a_mark_that_rose_into_a_new_segment_is_not_asked_of_the_old_ones(
    tmp_path: Path, mark: int, begun: tuple[int, ...], promised: int
) -> None:
    storage = build_directory(tmp_path / "s", {0: 30}, per_segment=10, size=SIZE, local_low_water_mark=mark)
    one = opened(storage)
    for first in begun:
        begin(storage, first)
    context, proven = one.promised()
    assert (context.local_low_water_mark, proven.mark) == (promised, promised + 1)
    shutil.rmtree(storage / "0")
    assert one.promised()[0].local_low_water_mark == mark


@pytest.mark.parametrize(
    ("span", "ranges", "meets"),
    [
        ((None, None), ((5, 7),), True),
        ((None, None), (), False),
        ((None, 4), ((5, 7),), False),
        ((None, 5), ((5, 7),), True),
        ((6, None), ((5, 7),), True),
        ((7, None), ((5, 7),), False),
        ((7, None), ((5, None),), True),
        ((8, 9), ((5, 7), (9, 10)), True),
        ((7, 8), ((5, 7), (9, 10)), False),
        ((7, 4), ((5, None),), False),
    ],
)
def test_whether_ids_are_wanted(span: Span, ranges: tuple[tuple[int, int | None], ...], meets: bool) -> None:
    assert _meets(span, *ranges) is meets


@pytest.fixture
def read_by_ends(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The first ids of the segments whose ends are read."""
    original, seen = PartitionRun.by_ends, list[int]()

    def by_ends(self: PartitionRun, job: SegmentJob) -> SegmentReport:
        seen.append(job.first)
        return original(self, job)

    monkeypatch.setattr(PartitionRun, "by_ends", by_ends)
    return seen


@pytest.mark.parametrize(
    ("ranges", "firsts"),
    [
        ([(0, 1)], [0]),
        ([(9, 10)], [0]),
        ([(10, 11)], [0, 10]),
        ([(17, 18)], [0, 10]),
        ([(18, 19)], [10]),
        ([(29, 30)], [20]),
        ([(37, 38)], [20]),
        ([(38, 50)], []),
        ([], []),
        ([(0, 1), (28, 29)], [0, 20]),
    ],
)
def test_which_segments_may_hold_ids(
    storage: Path,
    monkeypatch: pytest.MonkeyPatch,
    read_by_ends: list[int],
    ranges: list[tuple[int, int]],
    firsts: list[int],
) -> None:
    """By where they begin and how many records their bytes can be: 18 at most, without damage.  No others are read."""
    monkeypatch.setattr(segment_order, "_SLACK", 0)
    assert held_ids(_able(opened(storage), ranges)) == [(first, first + 10) for first in firsts]
    assert read_by_ends == firsts


@pytest.mark.parametrize(("span", "firsts"), [((None, 19), []), ((None, 20), [20]), ((25, None), [20]), ((5, 6), [])])
def test_the_end_is_looked_at_where_ids_behind_the_beginning_of_the_last_segment_are_wanted(
    storage: Path, read_by_ends: list[int], span: Span, firsts: list[int]
) -> None:
    assert list(losses_behind(opened(storage), span)) == []
    assert read_by_ends == firsts


def test_a_segment_holds_what_is_in_front_of_its_last_record_however_small_it_is(storage: Path) -> None:
    """Two of its records are left, and its index, which tells where they stood."""
    first, last = (one.encode() for one in (make_records(10, size=SIZE)[place] for place in (0, 9)))
    seg(storage, 0, 0).write_bytes(segment_header(0, 0).encode() + first + last)
    entries = encode_entries([*[at(0)] * 9, at(1)])
    idx(storage, 0, 0).write_bytes(segment_header(0, 0).encode() + entries)
    assert held_ids(_able(opened(age(storage)), [(8, 10)])) == [(0, 10)]


def test_segments_join_in_the_order_of_their_records(storage: Path) -> None:
    context = PartitionContext(storage, 0, storage / "0", 14, True, 3)
    reports = checked(opened(storage))
    for order in ((0, 1, 2), (2, 1, 0), (1, 2, 0)):
        assert list(join_findings(context, [reports[n] for n in order], Evidence(mark=15))) == []
    gap = list(join_findings(context, [reports[2], reports[0]], Evidence(mark=15)))
    assert [(one.code, one.transaction_id) for one in gap] == [("segment-gap", 10)]


def dumped(one: PartitionRun, span: Span) -> list[str]:
    return codes([*losses_in_front(one, span), *losses_behind(one, span)])


@pytest.mark.parametrize(
    ("span", "told"),
    [
        ((None, None), ["segment-gap"]),
        ((0, 0), ["segment-gap"]),
        ((9, 9), ["segment-gap"]),
        ((10, None), []),
        ((None, -1), []),
        ((9, 50), ["segment-gap"]),
    ],
)
def test_what_is_missing_in_front_is_told_where_it_is_wanted(storage: Path, span: Span, told: list[str]) -> None:
    seg(storage, 0, 0).unlink()
    idx(storage, 0, 0).unlink()
    assert dumped(opened(age(storage)), span) == told


@pytest.mark.parametrize(
    ("begins", "span", "told"),
    [(0, (None, None), []), (3, (None, None), [(0, 3)]), (3, (2, 2), [(0, 3)]), (3, (3, None), [])],
)
def test_where_a_segment_behind_begins_in_front_less_is_missing_there(
    storage: Path, begins: int, span: Span, told: list[tuple[int, int]]
) -> None:
    """It stands under a name that is too high; what is missing behind it, whoever reads both can tell."""
    for path in (seg(storage, 0, 0), idx(storage, 0, 0), seg(storage, 0, 20), idx(storage, 0, 20)):
        path.unlink()
    path = write_segment(storage / "0", make_records(5, first=begins, size=SIZE))
    for suffix, named in ((".seg", seg(storage, 0, 20)), (".idx", idx(storage, 0, 20))):
        path.with_suffix(suffix).rename(named)
    found = list(losses_in_front(opened(age(storage)), span))
    assert [(one.transaction_id, one.missing) for one in found] == told


@pytest.mark.parametrize(
    ("firsts", "span", "told"),
    [
        ([5], (None, None), []),
        ([25], (None, None), []),
        ([28], (None, None), [28]),
        ([28], (32, None), [28]),
        ([28], (33, None), []),
        ([28, 40], (None, None), [28, 40]),
        ([28, 40], (None, 39), [28]),
        ([28, 40], (40, None), [40]),
    ],
)
def test_an_index_alone_loses_what_stands_nowhere_else(
    storage: Path, firsts: list[int], span: Span, told: list[int]
) -> None:
    for first in firsts:
        write_segment(storage / "0", make_records(50, size=SIZE)[first : first + 5]).unlink()
    empty_index(storage, 3)
    found = [one for one in losses_behind(opened(age(storage)), span) if one.code != "durable-missing"]
    assert [(one.code.value, one.segment) for one in found] == [("index-orphan", first) for first in told]


@pytest.mark.parametrize(
    ("span", "told"),
    [
        ((None, None), ["acknowledged-missing"]),
        ((30, 30), ["acknowledged-missing"]),
        ((34, None), ["acknowledged-missing"]),
        ((35, None), []),
        ((None, 29), []),
        ((None, 30), ["acknowledged-missing"]),
        ((0, 5), []),
    ],
)
def test_what_is_missing_behind_is_told_where_it_is_wanted(tmp_path: Path, span: Span, told: list[str]) -> None:
    storage = build_directory(tmp_path / "s", {0: 30}, per_segment=10, size=SIZE, local_low_water_mark=34)
    assert dumped(opened(age(storage)), span) == told


def test_what_only_an_index_lists(storage: Path) -> None:
    """One without entries lists nothing, and one with its data is not alone."""
    empty_index(storage, 30)
    assert opened(storage).listed_alone() == []
    with idx(storage, 0, 30).open("ab") as file:
        file.write(bytes(24))
    one = opened(storage)
    assert one.listed_alone() == [(30, 33)]
    assert one.ids_counted_elsewhere([])[0] == (0, 20)
    assert opened(seg(storage, 0, 0)).ids_counted_elsewhere([]) == []


@pytest.mark.parametrize("changes", [0, 1, 2, 3, 4, 5])
def test_a_log_that_changes_again_and_again_is_looked_at_a_few_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: int
) -> None:
    """And nothing is told then, unless no directory is there any more."""
    storage = build_directory(tmp_path / "s", {0: 30}, per_segment=10, size=SIZE, local_low_water_mark=34)
    one = opened(age(storage))
    left = [changes]

    def unchanged(self: PartitionRun, view: object, reports: object) -> bool:
        left[0] -= 1
        return left[0] < 0

    monkeypatch.setattr(PartitionRun, "unchanged", unchanged)
    assert dumped(one, (20, None)) == (["acknowledged-missing"] if changes < 4 else [])
    assert left[0] == max(-1, changes - 4), "asked as often as it has to be"
    if changes == 1:
        shutil.rmtree(storage / "0")
        left[0] = 1
        assert dumped(one, (20, None)) == ["partition-directory-missing"]
        left[0] = 1
        assert dumped(one, (20, None)) == [], "told already"


@pytest.mark.parametrize("changes", [0, 1, 2, 3, 4])
def test_what_is_in_front_is_looked_at_a_few_times_too(
    storage: Path, monkeypatch: pytest.MonkeyPatch, changes: int
) -> None:
    seg(storage, 0, 0).unlink()
    idx(storage, 0, 0).unlink()
    one = opened(age(storage))
    left = [changes]

    def unchanged(self: PartitionRun, view: object, reports: object) -> bool:
        left[0] -= 1
        return left[0] < 0

    monkeypatch.setattr(PartitionRun, "unchanged", unchanged)
    assert codes(losses_in_front(one, (None, None))) == (["segment-gap"] if changes < 3 else [])


@pytest.mark.parametrize("changes", [0, 1, 2, 3, 4])
def test_a_verification_of_a_log_that_changes_tells_nothing_of_how_it_joins(
    storage: Path, monkeypatch: pytest.MonkeyPatch, changes: int
) -> None:
    seg(storage, 0, 10).unlink()
    idx(storage, 0, 10).unlink()
    one = opened(age(storage))
    checked(one)
    left, again = [changes], list[int]()

    def unchanged(self: PartitionRun, view: object, reports: object) -> bool:
        left[0] -= 1
        return left[0] < 0

    def check(job: SegmentJob) -> SegmentReport:
        again.append(job.first)
        return check_segment(job, VerifyOptions(), ReadLimits())

    monkeypatch.setattr(PartitionRun, "unchanged", unchanged)
    assert codes(one.finish(check)) == (["segment-gap"] if changes < 3 else [])
    assert again == [0, 20] * min(changes, 3)


@pytest.mark.parametrize("finished", [True, False])
def test_a_segment_that_was_not_read_to_its_end_makes_the_verification_incomplete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, finished: bool
) -> None:
    storage = age(build_directory(tmp_path / "s", {0: 5}))
    monkeypatch.setattr(
        verify_module,
        "check_segment",
        lambda job, options, limits: replace(check_segment(job, options, limits), finished=finished),
    )
    assert run(storage)[1].complete is finished


@pytest.mark.parametrize(
    ("part", "options", "split"),
    [
        (at(10) - 1, {}, 3),
        (at(10), {}, 0),
        (1, {"quick": True}, 0),
        (1, {"sample": 0.5}, 0),
        (1, {"threads": 1}, 0),
    ],
)
def test_which_segments_are_read_by_several_threads(
    storage: Path, monkeypatch: pytest.MonkeyPatch, part: int, options: dict[str, object], split: int
) -> None:
    seen: list[int] = []

    class Split(split_segments.SplitSegment):
        def __init__(self, job: SegmentJob, *more: object) -> None:
            seen.append(job.first)
            super().__init__(job, *more)  # type: ignore[arg-type]

    monkeypatch.setattr(verify_module, "SplitSegment", Split)
    monkeypatch.setattr(verify_module, "PART", part)
    monkeypatch.setattr(verify_module, "_WORTH_THREADS", 1)
    assert run(storage, **{"threads": 2, **options})[0] == []
    assert len(seen) == split


def test_no_thread_outlives_a_verification(storage: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor one that is left behind its first finding."""
    kept: list[ThreadPoolExecutor] = []

    class Pool(ThreadPoolExecutor):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            kept.append(self)

    flip(seg(storage, 0, 0), at(3) + 45)
    monkeypatch.setattr(verify_module, "ThreadPoolExecutor", Pool)
    monkeypatch.setattr(verify_module, "_WORTH_THREADS", 1)
    for left in (False, True):
        found = verify_module.verify([age(storage)], VerifyOptions(threads=2))
        next(found)
        found.close() if left else list(found)  # type: ignore[attr-defined]
    assert len(kept) == 2
    assert not [thread for pool in kept for thread in pool._threads if thread.is_alive()]


def test_a_segment_that_lost_its_header_is_not_read_in_parts(storage: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(split_segments, "PART", 1)
    os.truncate(seg(storage, 0, 20), HEADER_SIZE - 1)
    job = SegmentJob(age(storage) / "0", 20, 0, cluster_key=KEY, bytes=10 * RECORD)
    with ThreadPoolExecutor(1) as pool:
        report = split_segments.SplitSegment(job, VerifyOptions(), ReadLimits(), pool).result()
    assert (codes(report.findings), report.next_id) == (["segment-header-short"], None)


def read(items: Iterable[object]) -> list[tuple[int, int]]:
    """First and last id of each batch."""
    return [(int(one.transaction_id[0]), int(one.transaction_id[-1])) for one in items if isinstance(one, RecordBatch)]


@pytest.mark.parametrize(
    ("first", "last", "batches", "ended"),
    [
        (None, None, [(0, 2), (3, 5), (6, 8), (9, 9)], True),
        (None, 1, [(0, 2)], False),
        (None, 2, [(0, 2)], False),
        (None, 3, [(0, 2), (3, 5)], False),
        (4, 4, [(4, 6)], False),
        (9, None, [(9, 9)], True),
        (10, None, [(9, 9)], True),
        (None, 9, [(0, 2), (3, 5), (6, 8), (9, 9)], True),
    ],
)
def test_a_dump_reads_from_the_first_to_a_little_behind_the_last(
    storage: Path,
    monkeypatch: pytest.MonkeyPatch,
    first: int | None,
    last: int | None,
    batches: list[tuple[int, int]],
    ended: bool,
) -> None:
    monkeypatch.setattr(scanner, "BATCH_ROWS", 3)
    job = SegmentJob(storage / "0", 0, 0, cluster_key=KEY, last=False, following=10)
    with ChunkReader(job, ReadLimits(), data=False) as reader:
        assert read(reader.forwards(first, last)) == batches
        assert reader.next_id == (10 if ended else None)
        assert reader.stretch.next_id == (10 if ended else None)
        list(reader.forwards(None, 1))
        assert reader.next_id is None


@pytest.mark.parametrize("chunk", [1, RECORD, 3 * RECORD, 1 << 20])
@pytest.mark.parametrize(("first", "last"), [(None, None), (4, None), (None, 4), (4, 6), (0, 0), (9, 9)])
def test_backwards_every_record_comes_once(
    storage: Path, monkeypatch: pytest.MonkeyPatch, chunk: int, first: int | None, last: int | None
) -> None:
    monkeypatch.setattr(dump_chunks, "CHUNK", chunk)
    for index in (True, False):
        if not index:
            idx(storage, 0, 0).unlink()
            os.utime(storage / "0", ns=(0, 0))
        job = SegmentJob(storage / "0", 0, 0, cluster_key=KEY, last=False, following=10)
        with ChunkReader(job, ReadLimits(), data=False) as reader:
            told = read(reader.backwards(first, last))
        ids = [number for low, high in told for number in range(high, low - 1, -1)]
        assert ids == sorted(set(ids), reverse=True)
        assert set(range(first or 0, 10 if last is None else last + 1)) <= set(ids)
        if index and chunk == 1:
            assert ids[0] == (9 if last is None else last)
            assert ids[-1] == (first or 0)


def test_a_last_segment_that_went_away_is_looked_for_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = build_directory(tmp_path / "s", {0: 30}, per_segment=10, size=SIZE, local_low_water_mark=34)
    one = opened(age(storage))
    original, calls = PartitionRun.by_ends, list[int]()

    def by_ends(self: PartitionRun, job: SegmentJob) -> SegmentReport:
        calls.append(job.first)
        report = original(self, job)
        return replace(report, gone=True, next_id=None, uncertain=True) if len(calls) == 1 else report

    monkeypatch.setattr(PartitionRun, "by_ends", by_ends)
    assert dumped(one, (20, None)) == ["acknowledged-missing"]
    assert calls[:2] == [20, 20]


@pytest.mark.parametrize(("cut", "next_id"), [(0, 10), (1, None), (RECORD - 1, None), (RECORD, 9)])
def test_where_a_dump_saw_the_end(storage: Path, cut: int, next_id: int | None) -> None:
    """A torn end leaves open what was in it."""
    os.truncate(seg(storage, 0, 0), at(10) - cut)
    job = SegmentJob(storage / "0", 0, 0, cluster_key=KEY, last=False, following=10)
    with ChunkReader(job, ReadLimits(), data=False) as reader:
        list(reader.forwards(None, None))
        assert reader.next_id == next_id
        assert reader.stretch.excess is (next_id == 9)


def test_a_directory_that_is_gone_is_told_once(storage: Path) -> None:
    shutil.rmtree(storage / "0")
    one = opened(storage)
    assert codes(one.begin()) == codes(run(storage)[0])
    assert list(one.finish(lambda job: check_segment(job, VerifyOptions(), ReadLimits()))) == []


@pytest.mark.parametrize(
    ("held", "exclusive", "told"), [(False, False, True), (False, True, True), (True, False, False), (True, True, True)]
)
def test_a_repair_that_is_running_now_was_not_interrupted(
    storage: Path, monkeypatch: pytest.MonkeyPatch, held: bool, exclusive: bool, told: bool
) -> None:
    found = make_finding(Code.REPAIR_INTERRUPTED, storage, "x")
    monkeypatch.setattr(storage_checks, "_interrupted", lambda place: iter([found]))
    (scope,) = plan([storage], None)
    around = replace(look_around(scope, None), held=held)
    assert list(storage_checks.storage_findings(scope, around, ReadLimits(exclusive=exclusive))) == [found] * told
    scope.whole = False
    assert list(storage_checks.storage_findings(scope, around, ReadLimits(exclusive=exclusive))) == []


def test_where_nothing_was_repaired_nothing_that_repairs_is_loaded(
    storage: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "waltzctl.engine.durable.quarantine", None)
    assert run(storage)[0] == []


@pytest.mark.parametrize("size", [0, 127])
def test_a_data_file_without_a_header_says_nothing_of_the_key(storage: Path, size: int) -> None:
    for first in (0, 10, 20):
        os.truncate(seg(storage, 0, first), size)
    (scope,) = plan([age(storage)], None)
    assert look_around(scope, None).cluster_key == KEY


@pytest.mark.parametrize("readable", [False, True])
def test_the_key_is_that_of_the_headers_that_can_be_read(
    storage: Path, monkeypatch: pytest.MonkeyPatch, readable: bool
) -> None:
    """Two agree on another key than the control file's; the first one is cut off, or cannot be read."""
    for first in (10, 20):
        flip(seg(storage, 0, first), 12)
    if readable:
        os.truncate(seg(storage, 0, 0), HEADER_SIZE - 1)
    original = targets.read_segment_header

    def header(state: FileState | None) -> SegmentHeader | None:
        if state is not None and state.path == seg(storage, 0, 0) and not readable:
            raise DiskReadError(state.path, 0, OSError(5, "made up"))
        return original(state)

    monkeypatch.setattr(targets, "read_segment_header", header)
    (scope,) = plan([age(storage)], None)
    found = look_around(scope, None)
    assert found.cluster_key == UUID(bytes=bytes([KEY.bytes[0] ^ 1, *KEY.bytes[1:]]))
    assert codes(found.findings) == ["segment-key"]


def test_the_first_number_that_no_partition_has_is_left_alone(tmp_path: Path) -> None:
    storage = build_directory(tmp_path / "s", {0: 3, 1: 3})
    (storage / "2").mkdir()
    for first in (0, 3):
        write_segment(storage / "2", make_records(3, first=first, partition=2), partition=2)
    (scope,) = plan([storage], None)
    found = partition_runs.runs(scope, look_around(scope, None), ReadLimits(), None)
    assert [(one.context.number, len(one.jobs)) for one in found] == [(0, 1), (1, 1), (2, 0)]
    told = [one for one in dump_records(storage) if isinstance(one, Finding)]
    assert told == run(storage)[0]
    assert codes(told) == ["partition-not-assigned"]


@pytest.mark.parametrize(("asked", "numbers"), [(None, [0, 1, 2]), ([1], [1]), ([0, 2], [0, 2])])
def test_partitions_that_should_be_there_are_gone_through(
    tmp_path: Path, asked: list[int] | None, numbers: list[int]
) -> None:
    storage = build_directory(tmp_path / "s", {0: 3, 1: 3, 2: 3})
    for number in (1, 2):
        shutil.rmtree(storage / str(number))
    (scope,) = plan([storage], asked)
    found = list(partition_runs.runs(scope, look_around(scope, asked), ReadLimits(), asked))
    assert [one.context.number for one in found] == numbers
    assert [one.present for one in found] == [number == 0 for number in numbers]


def test_a_segment_that_went_away_before_its_parts_were_read(storage: Path) -> None:
    job = SegmentJob(storage / "0", 20, 0, bytes=at(10))
    seg(storage, 0, 20).unlink()
    with ThreadPoolExecutor(1) as pool:
        assert split_segments.SplitSegment(job, VerifyOptions(), ReadLimits(), pool).result().gone


@pytest.mark.parametrize("unfinished", [0, 10, 20])
def test_one_segment_that_was_not_read_to_its_end_leaves_everything_open(
    storage: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unfinished: int
) -> None:
    """Whichever it is: whether a release would start, and what a manifest would say."""

    def check(job: SegmentJob, options: VerifyOptions, limits: ReadLimits) -> SegmentReport:
        return replace(check_segment(job, options, limits), finished=job.first != unfinished)

    assert run(age(storage), for_released=True)[1].released_starts is True
    monkeypatch.setattr(verify_module, "check_segment", check)
    summary = run(storage, for_released=True, manifest=ManifestRequest(tmp_path / "manifest"))[1]
    assert (summary.complete, summary.released_starts, summary.manifest) == (False, None, "not-written")
    assert not (tmp_path / "manifest").exists()


@pytest.mark.parametrize("last", [0, 10])
def test_time_that_is_over_between_two_segments_makes_the_verification_incomplete(
    storage: Path, monkeypatch: pytest.MonkeyPatch, last: int
) -> None:
    def check(job: SegmentJob, options: VerifyOptions, limits: ReadLimits) -> SegmentReport:
        report = check_segment(job, options, limits)
        if job.first == last:
            limits.stop()
        return report

    monkeypatch.setattr(verify_module, "check_segment", check)
    summary = run(age(storage))[1]
    assert (summary.segments, summary.complete) == (1 + last // 10, False)


def test_threads_end_when_nobody_wants_more_findings(storage: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[int] = []

    def check(job: SegmentJob, options: VerifyOptions, limits: ReadLimits) -> SegmentReport:
        if job.first == 0:
            return check_segment(job, options, limits)
        for _ in range(1000):
            if limits.exceeded:
                ended.append(job.first)
                break
            time.sleep(0.001)
        return SegmentReport(job, job.first, finished=False)

    idx(storage, 0, 0).unlink()
    monkeypatch.setattr(verify_module, "_WORTH_THREADS", 0)
    monkeypatch.setattr(verify_module, "check_segment", check)
    findings = verify_module.verify([age(storage)], VerifyOptions(threads=2))
    assert codes([next(findings)]) == ["index-missing"]  # type: ignore[list-item]
    findings.close()  # type: ignore[attr-defined]
    assert ended
