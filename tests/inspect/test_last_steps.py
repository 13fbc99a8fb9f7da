"""Small steps of an inspection, each on as little as shows it: what is asked, what is looked at again, what is told and where."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.builders import KEY, build_directory, make_records, segment_header, write_segment
from tests.inspect.helpers import age, codes, cut, flip, idx, patch, run, seg
from tests.inspect.test_codes import accept, break_struct
from tests.inspect.test_distributed_checks import Workers
from waltzctl.engine.durable.directory_lock import DirectoryLock
from waltzctl.engine.findings import Finding
from waltzctl.engine.inspect import control_checks
from waltzctl.engine.inspect import verify as verify_module
from waltzctl.engine.inspect.control_checks import inspect_control
from waltzctl.engine.inspect.dump_chunks import SegmentReader
from waltzctl.engine.inspect.dump_records import DumpedRecord, dump_records
from waltzctl.engine.inspect.partition_checks import PartitionContext, placement_findings
from waltzctl.engine.inspect.partition_runs import PartitionRun, Span, runs
from waltzctl.engine.inspect.read_limits import Limits
from waltzctl.engine.inspect.record_checks import RangeScan
from waltzctl.engine.inspect.segment_checks import SegmentCheck, check_segment
from waltzctl.engine.inspect.segment_job import SegmentJob, SegmentReport
from waltzctl.engine.inspect.status import storage_status
from waltzctl.engine.inspect.targets import look_around, plan
from waltzctl.engine.inspect.verification import VerifyOptions
from waltzctl.engine.log.view import PartitionView, read_control
from waltzctl.formats.control import ControlFile
from waltzctl.formats.segment import HEADER_SIZE

SIZE = 20
RECORD = SIZE + 40
CONTROL = "waltz-storage.ctl"
WHOLE = VerifyOptions()


def at(place: int) -> int:
    return HEADER_SIZE + RECORD * place


@pytest.fixture
def storage(tmp_path: Path) -> Path:
    """Segments 0, 10 and 20 of ten records each; the mark is 14."""
    return age(build_directory(tmp_path / "s", {0: 30}, per_segment=10, size=SIZE, local_low_water_mark=14))


def job(storage: Path, first: int = 20, **more: object) -> SegmentJob:
    return SegmentJob(storage / "0", first, 0, cluster_key=KEY, **{"last": first == 20, **more})  # type: ignore[arg-type]


def opened(path: Path) -> PartitionRun:
    (scope,) = plan([path], None)
    (found,) = runs(scope, look_around(scope, None), Limits(), None)
    return found


def told(storage: Path, **options: object) -> list[str]:
    """Of a dump of records: findings, and spans of ids."""
    lines: list[str] = []
    for one in dump_records(storage, data=False, **options):  # type: ignore[arg-type]
        if isinstance(one, Finding):
            lines.append(one.code.value)
        elif lines and lines[-1].isdigit() and abs(int(lines[-1]) - one.transaction_id) == 1:
            lines[-1] = str(one.transaction_id)
        else:
            lines.append(str(one.transaction_id))
    return lines


# --- the control file --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("held", "looks"), [(False, 1), (True, 2)])
def test_a_control_file_that_somebody_holds_is_looked_at_twice(
    storage: Path, monkeypatch: pytest.MonkeyPatch, held: bool, looks: int
) -> None:
    """Its time tells nothing: it is written through a memory map."""
    sound = read_control(storage / CONTROL)
    break_struct(storage, 0, 1)
    age(storage)
    seen = [read_control(storage / CONTROL), sound]

    def look(path: Path) -> ControlFile | None:
        return seen.pop(0)

    monkeypatch.setattr(control_checks, "read_control", look)
    monkeypatch.setattr(control_checks, "_PAUSE", 0)
    if held:
        with DirectoryLock.acquire(storage, storage / CONTROL):
            os.utime(storage / CONTROL, (0, 0))
            found = inspect_control(storage / CONTROL, storage).findings
    else:
        found = inspect_control(storage / CONTROL, storage).findings
    assert codes(found) == ([] if held else ["control-struct-checksum"])
    assert len(seen) == 2 - looks


# --- a dump of some ids ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "lines"),
    [
        ({"first": 9}, ["9", "segment-gap", "29"]),
        ({"first": 10}, ["segment-gap", "29"]),
        ({"first": 19}, ["segment-gap", "29"]),
        ({"first": 20}, ["29"]),
        ({"last": 9}, ["9"]),
        ({"last": 10}, ["9", "segment-gap"]),
        ({"first": 12, "last": 15}, ["segment-gap"]),
        ({"first": 20, "reverse": True}, ["20"]),
        ({"first": 19, "reverse": True}, ["20", "segment-gap"]),
        ({"last": 9, "reverse": True}, ["0"]),
        ({"last": 10, "reverse": True}, ["segment-gap", "0"]),
    ],
)
def test_a_gap_is_told_where_one_of_its_ids_is_wanted(
    storage: Path, options: dict[str, object], lines: list[str]
) -> None:
    """Transactions 10 to 19 are gone."""
    seg(storage, 0, 10).unlink()
    idx(storage, 0, 10).unlink()
    assert told(age(storage), **options) == lines


@pytest.mark.parametrize(
    ("first", "last", "reverse"), [(25, None, True), (25, 26, True), (3, 4, False), (None, 4, True), (13, 14, True)]
)
def test_segments_of_which_nothing_is_wanted_join_all_the_same(
    storage: Path, first: int | None, last: int | None, reverse: bool
) -> None:
    end = (first or 0) if reverse else (29 if last is None else last)
    assert told(storage, first=first, last=last, reverse=reverse) == [str(end)]


@pytest.mark.parametrize(
    ("span", "held"),
    [
        ((None, 9), [0]),
        ((None, 10), [0, 10]),
        ((9, 9), [0]),
        ((10, 10), [10]),
        ((10, 19), [10]),
        ((19, 20), [10, 20]),
        ((20, None), [20]),
        ((None, -1), [0]),  # nothing in front of it tells that it begins there
    ],
)
def test_segments_whose_names_bound_them_are_not_opened(storage: Path, span: Span, held: list[int]) -> None:
    assert [one.first for one in opened(storage).holding(span)] == held


@pytest.mark.parametrize(("first", "last", "here"), [(31, None, True), (32, None, False), (None, 29, False), (0, 30, True)])
def test_an_accepted_loss_is_told_where_one_of_its_ids_is_wanted(
    storage: Path, first: int | None, last: int | None, here: bool
) -> None:
    """Transactions 30 and 31 were given up."""
    accept(storage, 30, 31)
    assert ("loss-accepted" in told(age(storage), first=first, last=last)) == here


def test_what_stands_in_segments_as_well_is_not_hidden_in_a_stray_for_a_dump_either(storage: Path) -> None:
    for suffix in (".seg", ".idx"):
        shutil.copy(seg(storage, 0, 10).with_suffix(suffix), storage / "0" / f"copy{suffix}")
    findings = [one for one in dump_records(age(storage)) if isinstance(one, Finding)]
    assert findings == run(storage)[0]
    assert [(one.code.value, one.severity.value) for one in findings] == [("segment-stray", "repairable")]


# --- a partition -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("session", "severity"), [(None, "note"), (-1, "note"), (0, "damage"), (3, "damage")])
def test_an_empty_partition_is_damage_where_a_session_began_in_it(
    tmp_path: Path, session: int | None, severity: str
) -> None:
    context = PartitionContext(tmp_path, 0, tmp_path / "0", None, True, session)
    (found,) = placement_findings(context, PartitionView(0, tmp_path / "0", ()), 1)
    assert (found.code.value, found.severity.value) == ("partition-empty", severity)


def test_segments_that_join_are_not_looked_at_again(storage: Path) -> None:
    """Whatever changed meanwhile: there is nothing to take back."""
    one = opened(storage)
    for each in one.jobs:
        list(one.add(check_segment(each, WHOLE, Limits())))
    os.truncate(seg(storage, 0, 10), at(5))

    def again(job: SegmentJob) -> SegmentReport:
        raise AssertionError(job)

    assert list(one.finish(again)) == []


# --- a segment ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("index", "held", "counts"), [(True, True, False), (False, True, True), (False, False, False)])
def test_the_directory_s_time_counts_where_a_truncation_may_have_removed_the_index(
    storage: Path, index: bool, held: bool, counts: bool
) -> None:
    if not index:
        idx(storage, 0, 20).unlink()
    with SegmentCheck(job(storage, held=held), Limits()) as check:
        assert check.watch().directory == (storage / "0" if counts else None)


def test_the_header_of_an_index_and_notes_are_no_faults_of_the_data_file_s_header(storage: Path) -> None:
    patch(idx(storage, 0, 20), 0, replace(segment_header(0, 20), partition=3).encode())
    patch(seg(storage, 0, 20), 127, b"\1")
    with SegmentCheck(job(storage), Limits()) as check:
        assert codes(check.header_findings) == ["reserved-not-zero", "index-header"]
        assert check.data_header_findings == []
    flip(seg(storage, 0, 20), 12)
    with SegmentCheck(job(storage), Limits()) as check:
        assert codes(check.data_header_findings) == ["segment-key"]


def test_what_parts_had_read_when_the_time_was_over_counts(storage: Path) -> None:
    flip(seg(storage, 0, 20), at(4) + 45)
    with SegmentCheck(job(storage), Limits()) as check:
        scans = [check.range_scan(at(0), 20), check.range_scan(at(3), 23), check.range_scan(at(7), 27)]
        for scan, stop in zip(scans, (at(2), at(6), at(7)), strict=True):
            scan.advance(stop)
        report = check.cut_short(scans)
    assert (report.records, report.finished, report.uncertain) == (4, False, True)
    assert codes(report.findings) == ["record-checksum"]


@pytest.mark.parametrize(
    ("damaged", "confirmed"), [((3,), [True]), ((3, 7), [True, True]), ((), [False]), ((7,), [False, True])]
)
def test_damage_in_a_file_that_changed_is_told_when_it_is_met_again(
    storage: Path, damaged: tuple[int, ...], confirmed: list[bool]
) -> None:
    """The segment was written anew since record 3 was seen to be damaged."""
    path, sound = seg(storage, 0, 20), seg(storage, 0, 20).read_bytes()
    flip(path, at(3) + 45)
    with SegmentReader(job(storage), Limits(), data=False) as reader:
        scan = reader.whole()
        scan.advance(reader.size)
        path.write_bytes(sound)
        for place in damaged:
            flip(path, at(place) + 45)
        path.touch()
        assert reader.confirmed(scan.damages[0]) == confirmed[0]
        again = reader.whole()
        again.advance(reader.size)
        assert [reader.confirmed(one) for one in again.damages] == [True] * len(damaged)


# --- a verification and a status ---------------------------------------------------------------------------------------------


def test_findings_come_as_segments_are_checked(storage: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not when all of them are."""
    seen: list[int] = []

    def check(job: SegmentJob, options: VerifyOptions, limits: Limits) -> SegmentReport:
        seen.append(job.first)
        return check_segment(job, options, limits)

    flip(seg(storage, 0, 0), at(3) + 45)
    monkeypatch.setattr(verify_module, "check_segment", check)
    found = verify_module.verify([age(storage)])
    assert isinstance(next(found), Finding)
    assert seen == [0]


def test_a_status_by_workers_is_the_same(storage: Path) -> None:
    cut(seg(storage, 0, 20), at(9) + 7)
    flip(seg(storage, 0, 10), 12)
    workers = Workers()
    assert storage_status(age(storage), executor=workers) == storage_status(storage)
    assert [(what, [task.job.first for task in tasks]) for what, tasks, _ in workers.asked] == [("verify", [0, 10, 20])]
