"""How a partition is shared by the tasks that look for findings, and what the last of them is told of the others."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")

from tests.builders import build_directory, make_records, write_segment
from tests.inspect.helpers import age, cut, flip, idx, seg
from tests.spark.reading import in_order, read, verified
from waltzctl.engine.columns.finding_columns import FINDING
from waltzctl.engine.errors import DiskReadError
from waltzctl.engine.findings import Finding
from waltzctl.engine.inspect import segment_checks, segment_order
from waltzctl.engine.inspect.read_limits import ReadLimits
from waltzctl.engine.inspect.segment_job import SegmentJob, SegmentReport
from waltzctl.engine.inspect.verification import ENDS_ONLY, VerifyOptions
from waltzctl.engine.spark import finding_tasks
from waltzctl.engine.spark.directory_views import VIEW_PLANS
from waltzctl.engine.spark.finding_tasks import ChunkTask, PartitionTask
from waltzctl.engine.spark.selection import Selection
from waltzctl.engine.spark.splits import FLAT, Notice, survey
from waltzctl.engine.storage.loss_ledger import ledger_path
from waltzctl.formats.accepted_losses import AcceptedLoss, encode_ledger


@pytest.fixture
def storage(tmp_path: Path) -> Path:
    """Ten segments of ten records with 60 bytes each, of which each begins with a multiple of ten."""
    return age(build_directory(tmp_path / "s", {0: 100}, per_segment=10, size=20))


SEGMENT = 128 + 600 + FLAT
"""What a segment costs."""


def tasks(storage: Path, split_size: int) -> list[PartitionTask | ChunkTask]:
    planned = VIEW_PLANS["findings"](survey([storage], Selection()), Selection(), split_size)
    return [one for one in planned if not isinstance(one, Notice)]


@pytest.mark.parametrize(
    ("split_size", "sizes"),
    [
        (10 * SEGMENT, None),
        (10 * SEGMENT - 1, [10]),
        (5 * SEGMENT, [5, 5]),
        (4 * SEGMENT, [4, 4, 2]),
        (SEGMENT, [1] * 10),
        (100, [1] * 10),
    ],
)
def test_segments_side_by_side_are_one_task_up_to_its_size(
    storage: Path, split_size: int, sizes: list[int] | None
) -> None:
    found = tasks(storage, split_size)
    assert sum(one.cost for one in found) == 10 * SEGMENT
    if sizes is None:
        (whole,) = found
        assert isinstance(whole, PartitionTask)
        assert (whole.bytes, whole.segments, whole.directory) == (10 * (SEGMENT - FLAT), 10, storage / "0")
        return
    assert all(isinstance(one, ChunkTask) for one in found)
    rows = [[job.first for job in one.jobs] for one in found]  # type: ignore[union-attr]
    assert [first for row in rows for first in row] == list(range(0, 100, 10))
    assert [len(row) for row in rows] == sizes


def test_only_the_last_task_knows_the_partition_and_the_segments_of_the_others(storage: Path) -> None:
    *others, last = tasks(storage, 4 * SEGMENT)
    assert isinstance(last, ChunkTask)
    seen = []
    for one in others:
        assert isinstance(one, ChunkTask)
        assert one.behind is not None
        seen.append((one.first, one.behind[0].first, one.behind[1], one.whole, one.jobs_before, one.directory))
    assert seen == [(True, 40, 40, None, (), storage / "0"), (False, 80, 80, None, (), storage / "0")]
    assert (last.first, last.behind) == (False, None)
    assert last.whole is not None
    assert [job.first for job in last.jobs_before] == list(range(0, 80, 10))


def test_a_partition_of_one_segment_is_never_shared(tmp_path: Path) -> None:
    storage = age(build_directory(tmp_path / "s", {0: 10}, per_segment=10))
    assert [type(one) for one in tasks(storage, 100)] == [PartitionTask]


def findings(storage: Path, split_size: int) -> list[str]:
    return in_order(read(storage, view="findings", splitSize=split_size))


def expected(storage: Path) -> list[str]:
    return in_order({"node": str(storage), **FINDING.keys(one)} for one in verified(storage))


def _codes(storage: Path) -> set[str]:
    return {one.code.value for one in verified(storage)}


def test_a_partition_that_is_too_large_by_less_than_a_task_is_worth_is_one_task_of_all_its_segments(
    storage: Path,
) -> None:
    flip(seg(storage, 0, 20), 128 + 60 * 3 + 50)
    cut(seg(storage, 0, 50), 128 + 60 * 7)
    age(storage)
    assert _codes(storage) == {"record-checksum", "segment-gap"}
    (whole,), (task,) = tasks(storage, 20 * SEGMENT), tasks(storage, 9 * SEGMENT)
    assert (type(whole), type(task)) == (PartitionTask, ChunkTask)
    assert sorted(_found(task), key=str) == sorted(_found(whole), key=str)


def test_what_is_missing_in_front_is_told_by_the_first_task_only(storage: Path) -> None:
    for path in (seg(storage, 0, 0), idx(storage, 0, 0)):
        path.unlink()
    age(storage)
    assert _codes(storage) == {"segment-gap"}
    for size in (100, 4 * SEGMENT, 20 * SEGMENT):
        assert findings(storage, size) == expected(storage)


def test_into_a_directory_of_no_partition_of_this_cluster_nobody_looks(storage: Path) -> None:
    shutil.copytree(storage / "0", storage / "7")
    flip(seg(storage, 7, 20), 128 + 60 * 3 + 50)
    age(storage)
    assert "record-checksum" not in _codes(storage)
    for size in (100, 20 * SEGMENT):
        assert findings(storage, size) == expected(storage)


@pytest.mark.parametrize("begun", [False, True])
def test_a_mark_that_rose_into_a_segment_that_was_begun_since_asks_nothing_of_those_in_front(
    tmp_path: Path, *, begun: bool
) -> None:
    storage = build_directory(tmp_path / "s", {0: 110}, per_segment=10, size=20, local_low_water_mark=105)
    age(storage)
    files = [seg(storage, 0, 100), idx(storage, 0, 100)]
    for path in files:
        path.rename(tmp_path / path.name)
    *_, last = tasks(storage, 4 * SEGMENT)
    if begun:
        for path in files:
            (tmp_path / path.name).rename(path)
    assert _found(last) == ([] if begun else [("acknowledged-missing", 100)])


@pytest.mark.turns(8)
@pytest.mark.parametrize("number", [10, 40, 50, 80, 90])
def test_an_index_alone_is_compared_with_whoever_holds_its_ids(storage: Path, number: int) -> None:
    """Of the tasks in front as well."""
    seg(storage, 0, number).unlink()
    for covers in (False, True):
        if covers:
            before = make_records(100, size=20)[number - 10 : number + 10]
            seg(storage, 0, number - 10).unlink()
            idx(storage, 0, number - 10).unlink()
            write_segment(storage / "0", before, first=number - 10)
        age(storage)
        for size in (100, 3 * SEGMENT, 4 * SEGMENT, 20 * SEGMENT):
            assert findings(storage, size) == expected(storage)


@pytest.mark.parametrize("mark", [89, 99, 105])
def test_the_end_is_that_of_the_segment_that_reaches_furthest(tmp_path: Path, mark: int) -> None:
    storage = build_directory(tmp_path / "s", {0: 100}, per_segment=10, size=20, local_low_water_mark=mark)
    cut(seg(storage, 0, 90), 128 + 60 * 3 + 7)
    flip(seg(storage, 0, 80), 128 + 60 * 9 + 50)
    idx(storage, 0, 90).unlink()
    age(storage)
    for size in (100, 3 * SEGMENT, 4 * SEGMENT, 20 * SEGMENT):
        assert findings(storage, size) == expected(storage)


# ---- one task alone ------------------------------------------------------------------------------------------------------


def _sized(path: Path, *counts: int) -> Path:
    """Segments of so many records with 60 bytes each."""
    segments, first = [], 0
    for count in counts:
        segments.append(make_records(count, first=first, size=20))
        first += count
    return age(build_directory(path, {0: segments}))


@pytest.mark.parametrize(
    ("counts", "flat", "sizes"),
    [
        ((10, 10, 20), 128, [2, 1]),  # the second fills the share to the byte
        ((10, 10, 20), 127, [2, 1]),
        ((10, 10, 20), 126, [1, 1, 1]),  # and here it is one byte more
        ((20, 10, 10), 126, [1, 1, 1]),
        ((20, 10, 10), 128, [1, 2]),
        ((1, 1, 1, 40), 0, [3, 1]),
    ],
)
def test_a_row_of_segments_is_full_behind_its_share(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, counts: tuple[int, ...], flat: int, sizes: list[int]
) -> None:
    storage = _sized(tmp_path / "s", *counts)
    monkeypatch.setattr(finding_tasks, "FLAT", flat)
    total = sum(128 + 60 * count + flat for count in counts)
    found = tasks(storage, -(-total // 2))
    assert [len(one.jobs) for one in found] == sizes  # type: ignore[union-attr]


def test_segments_are_in_the_order_of_their_records_whatever_their_names(storage: Path) -> None:
    for path in (seg(storage, 0, 30), idx(storage, 0, 30)):
        path.rename(path.with_name(path.name.replace("30", "95")))
    age(storage)
    rows = [[job.first for job in one.jobs] for one in tasks(storage, 4 * SEGMENT)]  # type: ignore[union-attr]
    assert rows == [[0, 10, 20, 95], [40, 50, 60, 70], [80, 90]]
    first, second, _ = tasks(storage, 4 * SEGMENT)
    assert isinstance(first, ChunkTask)
    assert isinstance(second, ChunkTask)
    assert first.behind is not None
    assert second.behind is not None
    assert [(job.first, begins) for job, begins in (first.behind, second.behind)] == [(40, 40), (80, 80)]


def test_a_segment_without_a_readable_header_stands_where_its_name_says(storage: Path) -> None:
    cut(seg(storage, 0, 30), 100)
    age(storage)
    rows = [[job.first for job in one.jobs] for one in tasks(storage, 4 * SEGMENT)]  # type: ignore[union-attr]
    assert [first for row in rows for first in row] == list(range(0, 100, 10))


def test_a_segment_whose_header_cannot_be_read_stands_where_its_name_says(
    storage: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(state: Any) -> Any:
        raise DiskReadError(state.path, None, OSError(5, "Input/output error"))

    monkeypatch.setattr(segment_checks, "read_segment_header", refused)
    rows = [[job.first for job in one.jobs] for one in tasks(storage, 4 * SEGMENT)]  # type: ignore[union-attr]
    assert [first for row in rows for first in row] == list(range(0, 100, 10))
    first, *_ = tasks(storage, 4 * SEGMENT)
    assert isinstance(first, ChunkTask)
    assert first.behind is not None
    assert first.behind[1] == 40


def checked_from_now_on(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The segments, by their first ids, that tasks check, as they do."""
    checked: list[int] = []
    check_segment = finding_tasks.check_segment

    def counting(job: Any, *rest: Any) -> Any:
        checked.append(job.first)
        return check_segment(job, *rest)

    monkeypatch.setattr(finding_tasks, "check_segment", counting)
    return checked


def _found(task: Any) -> list[tuple[str, int | None]]:
    return [(one.code.value, one.transaction_id) for one in task.run(ReadLimits()) if isinstance(one, Finding)]


def test_each_join_is_told_by_the_task_of_the_segment_in_front(storage: Path) -> None:
    """Within a task, and with the segment behind its last one."""
    for first in (10, 30, 90):
        cut(seg(storage, 0, first), 128 + 60 * 7)
    age(storage)
    told = [[one for one in _found(task) if one[0] == "segment-gap"] for task in tasks(storage, 4 * SEGMENT)]
    assert told == [[("segment-gap", 17), ("segment-gap", 37)], []]
    told = [[one for one in _found(task) if one[0] == "segment-gap"] for task in tasks(storage, SEGMENT)]
    assert [number for number, found in enumerate(told) if found] == [1, 3]


@pytest.mark.parametrize(
    ("changes", "joins", "rounds"), [(0, True, 1), (1, True, 2), (3, True, 4), (4, False, 4), (99, False, 4)]
)
def test_joins_of_segments_that_change_are_looked_at_four_times_and_then_left(
    storage: Path, monkeypatch: pytest.MonkeyPatch, changes: int, joins: bool, rounds: int
) -> None:
    cut(seg(storage, 0, 10), 128 + 60 * 7)
    flip(seg(storage, 0, 20), 128 + 60 * 3 + 50)
    age(storage)
    task, checked, left = tasks(storage, 4 * SEGMENT)[0], [], [changes]
    check_segment, unchanged = finding_tasks.check_segment, finding_tasks._unchanged

    def counting(job: Any, *rest: Any) -> Any:
        checked.append(job.first)
        if job.first == 0:
            left[0] -= 1
        return check_segment(job, *rest)

    monkeypatch.setattr(finding_tasks, "check_segment", counting)
    monkeypatch.setattr(finding_tasks, "_unchanged", lambda report: left[0] < 0 and unchanged(report))
    found = _found(task)
    assert checked == [job.first for job in task.jobs] * rounds
    assert ("segment-gap", 17) in found or not joins
    assert ("segment-gap", 17) not in found or joins
    assert found.count(("record-checksum", 23)) == 1
    assert len(found) == len(set(found)), "what was found in an earlier round is told again"


def test_joins_wait_for_every_segment_to_be_at_rest(storage: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cut(seg(storage, 0, 10), 128 + 60 * 7)
    age(storage)
    unchanged = finding_tasks._unchanged
    for moving, told in ((None, True), (0, False), (10, False), (40, False), (50, True)):
        monkeypatch.setattr(finding_tasks, "_unchanged", lambda one: one.job.first != moving and unchanged(one))  # noqa: B023
        assert (("segment-gap", 17) in _found(tasks(storage, 4 * SEGMENT)[0])) == told


def test_joins_are_those_of_the_segments_as_they_are_read_whatever_was_planned(
    storage: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The header of one under another name could not be read at first."""
    for path in (seg(storage, 0, 30), idx(storage, 0, 30)):
        path.rename(path.with_name(path.name.replace("30", "55")))
    age(storage)
    with monkeypatch.context() as patched:
        patched.setattr(segment_checks, "read_segment_header", lambda state: None)
        (task,) = tasks(storage, 10 * SEGMENT - 1)
    assert isinstance(task, ChunkTask)
    assert [job.first for job in task.jobs] == [0, 10, 20, 40, 50, 55, 60, 70, 80, 90]
    assert not {"segment-gap", "segment-overlap"} & {code for code, _ in _found(task)}


def test_segments_that_join_are_looked_at_once_though_they_change(
    storage: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked = checked_from_now_on(monkeypatch)
    monkeypatch.setattr(finding_tasks, "_unchanged", lambda report: False)
    assert _found(tasks(storage, 4 * SEGMENT)[0]) == []
    assert checked == [0, 10, 20, 30]


def test_a_segment_is_unchanged_while_its_files_are_as_they_were_read(storage: Path) -> None:
    jobs = tasks(storage, SEGMENT)[1].jobs  # type: ignore[union-attr]
    report = finding_tasks.check_segment(jobs[0], finding_tasks._OPTIONS, ReadLimits())
    assert finding_tasks._unchanged(report)
    with seg(storage, 0, 10).open("ab") as file:
        file.write(b"x")
    assert not finding_tasks._unchanged(report)
    (last,) = tasks(storage, SEGMENT)[-1].jobs  # type: ignore[union-attr]
    report = finding_tasks.check_segment(last, finding_tasks._OPTIONS, ReadLimits())
    with seg(storage, 0, 90).open("ab") as file:
        file.write(b"x")
    assert finding_tasks._unchanged(report), "the last segment may grow"
    for path in (seg(storage, 0, 10), idx(storage, 0, 10)):
        path.unlink()
    gone = finding_tasks.check_segment(jobs[0], finding_tasks._OPTIONS, ReadLimits())
    assert not finding_tasks._unchanged(gone)


@pytest.mark.parametrize(("mark", "told"), [(95, []), (96, []), (97, [97]), (99, [97])])
def test_what_is_missing_up_to_the_mark_is_told_by_the_last_task(tmp_path: Path, mark: int, told: list[int]) -> None:
    storage = build_directory(tmp_path / "s", {0: 100}, per_segment=10, size=20, local_low_water_mark=mark)
    cut(seg(storage, 0, 90), 128 + 60 * 7)
    cut(idx(storage, 0, 90), 128 + 8 * 7)
    age(storage)
    *others, last = tasks(storage, 4 * SEGMENT)
    assert [one for task in others for one in _found(task)] == []
    assert [number for code, number in _found(last) if code == "acknowledged-missing"] == told


def test_the_partition_as_a_whole_has_every_finding_of_its_segments(storage: Path) -> None:
    flip(seg(storage, 0, 20), 128 + 60 * 3 + 50)
    cut(seg(storage, 0, 50), 128 + 60 * 7)
    age(storage)
    (whole,) = tasks(storage, 20 * SEGMENT)
    found = _found(whole)
    assert ("record-checksum", 23) in found
    assert ("segment-gap", 57) in found
    parts = [one for task in tasks(storage, 3 * SEGMENT) for one in _found(task)]
    assert sorted(parts, key=str) == sorted(found, key=str)


@pytest.mark.parametrize(("mark", "reached"), [(79, True), (80, True), (99, True), (100, False)])
def test_an_earlier_segment_is_looked_at_where_it_may_reach_the_mark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mark: int, reached: bool
) -> None:
    """By as many records as its bytes can hold; the last one by its name ends far in front of that."""
    monkeypatch.setattr(segment_order, "_SLACK", 0)
    storage = build_directory(tmp_path / "s", {0: [make_records(100, size=40)]}, local_low_water_mark=mark)
    write_segment(storage / "0", make_records(10, first=50, size=40), first=50)
    age(storage)
    *_, last = tasks(storage, 400)
    assert isinstance(last, ChunkTask)
    assert [job.first for job in last.jobs_before] == [0]
    told = [number for code, number in _found(last) if code == "acknowledged-missing"]
    assert told == ([] if reached else [100])


@pytest.mark.parametrize(
    ("first", "last", "told"),
    [
        (20, 20, []),
        (29, 29, []),
        (29, 30, [30]),
        (30, 30, [30]),
        (30, 39, [30]),
        (38, 40, [38]),
        (39, 39, [39]),
        (40, 40, []),
        (79, 80, []),
        (89, 89, []),
    ],
)
@pytest.mark.parametrize("mark", [15])
def test_what_was_given_up_is_told_by_the_last_task_where_no_other_has_it(
    tmp_path: Path, mark: int, first: int, last: int, told: list[int]
) -> None:
    """Whoever holds one end of it is looked at again, and nobody else."""
    storage = build_directory(tmp_path / "s", {0: 100}, per_segment=10, size=20, local_low_water_mark=mark)
    for path in (seg(storage, 0, 30), idx(storage, 0, 30)):
        path.unlink()
    ledger_path(storage).parent.mkdir(exist_ok=True)
    ledger_path(storage).write_bytes(encode_ledger([AcceptedLoss(0, first, last, mark, "t", "x")]))
    age(storage)
    *others, end = tasks(storage, 4 * SEGMENT)
    assert not [one for task in others for one in _found(task) if one[0] == "loss-accepted"]
    assert [number for code, number in _found(end) if code == "loss-accepted"] == told


@pytest.mark.parametrize(
    ("first", "last", "again"),
    [
        (20, 20, [10, 20]),
        (19, 20, [10, 20]),
        (19, 19, [10]),
        (30, 39, [20]),
        (39, 40, [20, 40]),
        (40, 40, [40]),
        (59, 60, [50]),
        (60, 60, [50]),
        (79, 80, []),
        (95, 99, []),
    ],
)
def test_only_who_may_hold_what_was_given_up_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: int, last: int, again: list[int]
) -> None:
    """The segment of 30 to 39 is gone, and the last task has 60 to 99.  By its size a segment may go on by eight."""
    monkeypatch.setattr(segment_order, "_SLACK", 0)
    storage = build_directory(tmp_path / "s", {0: 100}, per_segment=10, size=20)
    for path in (seg(storage, 0, 30), idx(storage, 0, 30)):
        path.unlink()
    ledger_path(storage).parent.mkdir(exist_ok=True)
    ledger_path(storage).write_bytes(encode_ledger([AcceptedLoss(0, first, last, 15, "t", "x")]))
    age(storage)
    *_, end = tasks(storage, 4 * SEGMENT)
    checked = checked_from_now_on(monkeypatch)
    list(end.run(ReadLimits()))
    assert isinstance(end, ChunkTask)
    assert checked == [*(job.first for job in end.jobs), *again]


def test_of_who_may_hold_what_was_given_up_both_ends_are_read_and_not_the_whole_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By their sizes they are many, as a record may be short: one task would read them all a second time."""
    storage = build_directory(tmp_path / "s", {0: 100}, per_segment=10, size=20)
    ledger_path(storage).parent.mkdir(exist_ok=True)
    ledger_path(storage).write_bytes(encode_ledger([AcceptedLoss(0, 58, 60, 15, "t", "x")]))
    age(storage)
    *_, end = tasks(storage, 4 * SEGMENT)
    assert isinstance(end, ChunkTask)
    asked: dict[int, VerifyOptions] = {}

    def noting(job: SegmentJob, options: VerifyOptions, limits: ReadLimits) -> SegmentReport:
        asked[job.first] = options
        return segment_checks.check_segment(job, options, limits)

    monkeypatch.setattr(finding_tasks, "check_segment", noting)
    list(end.run(ReadLimits()))
    others = {first: options for first, options in asked.items() if first not in {job.first for job in end.jobs}}
    assert others == {job.first: ENDS_ONLY for job in end.jobs_before if job.first <= 60}


@pytest.mark.parametrize(("mark", "looked_at"), [(202, [0]), (203, [0]), (204, []), (205, [])])
def test_an_earlier_segment_that_cannot_reach_the_mark_is_not_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mark: int, looked_at: list[int]
) -> None:
    """One of 8,128 bytes holds 203 records at the most."""
    monkeypatch.setattr(segment_order, "_SLACK", 0)
    storage = build_directory(tmp_path / "s", {0: [make_records(100, size=40)]}, local_low_water_mark=mark)
    write_segment(storage / "0", make_records(10, first=50, size=40), first=50)
    age(storage)
    *_, last = tasks(storage, 400)
    checked = checked_from_now_on(monkeypatch)
    told = [number for code, number in _found(last) if code == "acknowledged-missing"]
    assert told == [100 if looked_at else 60]
    assert [first for first in checked if first == 0][:1] == looked_at
