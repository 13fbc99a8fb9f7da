"""Small steps of an inspection, each on as little as shows it: what is asked, what is looked at again, what is told and where."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from tests.builders import KEY, build_directory, make_records, segment_header, write_segment
from tests.inspect.helpers import age, codes, cut, flip, idx, patch, run, seg
from tests.inspect.test_codes import accept
from tests.inspect.test_distributed_checks import Workers
from waltzctl import __version__
from waltzctl.engine.durable.directory_lock import DirectoryLock
from waltzctl.engine.errors import DiskReadError, InvalidRequestError
from waltzctl.engine.findings import Finding
from waltzctl.engine.inspect import (
    control_checks,
    distributed_checks,
    dump_chunks,
    dump_index,
    segment_reach,
    split_segments,
    vouching,
)
from waltzctl.engine.inspect import (
    dump_records as dump_records_module,
)
from waltzctl.engine.inspect import verify as verify_module
from waltzctl.engine.inspect.control_checks import inspect_control
from waltzctl.engine.inspect.digests import Digest, HashingSource
from waltzctl.engine.inspect.directory_manifest import (
    DamagedManifestError,
    Manifest,
    ManifestFile,
    ManifestPartition,
    NoManifestError,
    Signature,
    decode_manifest,
)
from waltzctl.engine.inspect.distributed_checks import Checked, CheckTask, Terms
from waltzctl.engine.inspect.dump import dump_control
from waltzctl.engine.inspect.dump_chunks import ChunkReader
from waltzctl.engine.inspect.dump_records import dump_records
from waltzctl.engine.inspect.partition_checks import PartitionContext, placement_findings
from waltzctl.engine.inspect.partition_runs import PartitionRun, runs
from waltzctl.engine.inspect.read_limits import CutShort, ReadLimits
from waltzctl.engine.inspect.record_checks import RangeScan, UnreadablePlace
from waltzctl.engine.inspect.segment_checks import FilesChangedError, SegmentCheck, check_segment
from waltzctl.engine.inspect.segment_job import SegmentJob, SegmentReport
from waltzctl.engine.inspect.segment_order import Span
from waltzctl.engine.inspect.status import storage_status
from waltzctl.engine.inspect.targets import look_around, plan
from waltzctl.engine.inspect.unread_losses import losses_behind, losses_in_front
from waltzctl.engine.inspect.verification import ManifestRequest, VerifyOptions
from waltzctl.engine.log import assess, places
from waltzctl.engine.log.assess import Stretch
from waltzctl.engine.log.parts import Part
from waltzctl.engine.log.view import PartitionView, read_control
from waltzctl.engine.losses import Gap, Overlap
from waltzctl.engine.scan.byte_source import BytesSource, FileSource
from waltzctl.engine.scan.columns import Damage
from waltzctl.formats.control import ControlHeader, Layout, initial_control
from waltzctl.formats.segment import HEADER_SIZE, SEGMENT_HEADER, Record, encode_entries, encode_records

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
    (found,) = runs(scope, look_around(scope, None), ReadLimits(), None)
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


@pytest.mark.parametrize(
    ("held", "old", "looks"), [(False, True, 1), (True, True, 2), (False, False, 2), (True, False, 2)]
)
def test_a_control_file_that_somebody_may_be_writing_is_looked_at_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held: bool, old: bool, looks: int
) -> None:
    """Its time alone does not tell: it is written through a memory map."""
    sound = initial_control(Layout.RELEASED, KEY, 1, 1)
    path = tmp_path / CONTROL
    path.write_bytes(sound.encode())
    flip(path, sound.layout.struct_offset(0, 1))
    seen = [read_control(path), sound]
    monkeypatch.setattr(control_checks, "read_control", lambda path: seen.pop(0))
    monkeypatch.setattr(control_checks, "_PAUSE", 0)
    with contextlib.ExitStack() as stack:
        if held:
            stack.enter_context(DirectoryLock.acquire(tmp_path, path))
        os.utime(path, (0, 0) if old else None)
        found = inspect_control(path, tmp_path).findings
    assert codes(found) == (["control-struct-checksum"] if looks == 1 else [])
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
    assert [one.first for one in opened(storage).order.holding(span)] == held


@pytest.mark.turns(10)
@pytest.mark.parametrize("first", [0, 20])
def test_no_gap_is_told_beside_a_segment_that_changes_now(
    storage: Path, monkeypatch: pytest.MonkeyPatch, first: int
) -> None:
    def joint(before: Stretch, behind: Stretch, reached: int = 0) -> Gap | Overlap | None:
        with seg(storage, 0, first).open("ab") as file:
            file.write(b"x")
        return assess.joint(before, behind, reached)

    seg(storage, 0, 10).unlink()
    idx(storage, 0, 10).unlink()
    assert "segment-gap" in told(age(storage))
    monkeypatch.setattr(segment_reach, "joint", joint)
    assert "segment-gap" not in told(storage)


def test_backwards_everything_comes_in_the_other_order(storage: Path) -> None:
    """Also what is wrong with one header."""
    header = replace(segment_header(0, 10), cluster_key=UUID(int=9), partition=3)
    patch(seg(storage, 0, 10), 0, header.encode())
    forwards = list(dump_records(age(storage)))
    assert codes(one for one in forwards if isinstance(one, Finding)) == ["segment-key", "segment-partition"]
    assert list(dump_records(storage, reverse=True)) == forwards[::-1]


@pytest.mark.parametrize(
    ("held", "last", "lines", "looked_at"),
    [(10, 9, ["9"], [0]), (8, 9, ["7", "segment-gap"], [0, 10]), (8, 12, ["7", "segment-gap", "12"], [0, 10])],
)
def test_a_dump_opens_what_it_needs(
    storage: Path, monkeypatch: pytest.MonkeyPatch, held: int, last: int, lines: list[str], looked_at: list[int]
) -> None:
    """A segment of which nothing is wanted is opened where the one in front of it ends too early, for its beginning."""
    seen: list[int] = []

    class Reader(ChunkReader):
        def __init__(self, job: SegmentJob, *more: Any, **options: Any) -> None:
            seen.append(job.first)
            super().__init__(job, *more, **options)

    cut(seg(storage, 0, 0), at(held))
    monkeypatch.setattr(dump_records_module, "ChunkReader", Reader)
    assert told(age(storage), first=3, last=last) == lines
    assert seen == looked_at


@pytest.mark.parametrize(
    ("first", "last", "here"), [(31, None, True), (32, None, False), (None, 29, False), (0, 30, True)]
)
def test_an_accepted_loss_is_told_where_one_of_its_ids_is_wanted(
    storage: Path, first: int | None, last: int | None, here: bool
) -> None:
    """Transactions 30 and 31 were given up."""
    accept(storage, 30, 31)
    assert ("loss-accepted" in told(age(storage), first=first, last=last)) == here
    assert "loss-accepted" not in told(seg(storage, 0, 20), first=first, last=last), "one segment was asked for"


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
        list(one.add(check_segment(each, WHOLE, ReadLimits())))
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
    with SegmentCheck(job(storage, held=held), ReadLimits()) as check:
        assert check.watch().directory == (storage / "0" if counts else None)


def test_the_header_of_an_index_and_notes_are_no_faults_of_the_data_file_s_header(storage: Path) -> None:
    patch(idx(storage, 0, 20), 0, replace(segment_header(0, 20), partition=3).encode())
    patch(seg(storage, 0, 20), 127, b"\1")
    with SegmentCheck(job(storage), ReadLimits()) as check:
        assert codes(check.header_findings) == ["reserved-not-zero", "index-header"]
        assert check.data_header_findings == []
    flip(seg(storage, 0, 20), 12)
    with SegmentCheck(job(storage), ReadLimits()) as check:
        assert codes(check.data_header_findings) == ["segment-key"]


def test_what_parts_had_read_when_the_time_was_over_counts(storage: Path) -> None:
    flip(seg(storage, 0, 20), at(4) + 45)
    with SegmentCheck(job(storage), ReadLimits()) as check:
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
    with ChunkReader(job(storage), ReadLimits(), data=False) as reader:
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

    def check(job: SegmentJob, options: VerifyOptions, limits: ReadLimits) -> SegmentReport:
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


def unreadable(monkeypatch: pytest.MonkeyPatch, bad: Path, kind: type[OSError] = PermissionError) -> None:
    """A file that cannot be opened."""
    original = os.open

    def failing(path: str | Path, flags: int, *more: int) -> int:
        if Path(path) == bad:
            raise kind(13, "Permission denied", str(path))
        return original(path, flags, *more)

    monkeypatch.setattr(os, "open", failing)


@pytest.mark.parametrize(
    ("options", "lines"),
    [
        ({}, ["read-error", "29"]),
        ({"reverse": True}, ["10", "read-error"]),
        ({"last": 5}, ["read-error"]),
        ({"first": 15}, ["29"]),
    ],
)
def test_a_dump_says_which_data_file_it_cannot_open(
    storage: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, object], lines: list[str]
) -> None:
    """And nothing of how the next one joins it."""
    unreadable(monkeypatch, seg(storage, 0, 0))
    found = told(storage, **options)
    assert [one for one in found if one not in ("10", "29")] == [one for one in lines if one not in ("10", "29")]


@pytest.mark.parametrize(("first", "here"), [(13, True), (14, False)])
@pytest.mark.parametrize("reverse", [False, True])
def test_damage_is_told_where_one_of_its_ids_is_wanted(storage: Path, first: int, here: bool, reverse: bool) -> None:
    """Without an index a dump reads up to what is wanted."""
    flip(seg(storage, 0, 10), at(3) + 45)
    idx(storage, 0, 10).unlink()
    assert ("record-checksum" in told(age(storage), first=first, reverse=reverse)) == here


@pytest.mark.parametrize("last", [27, 28, 29, 40])
def test_a_torn_end_is_told_where_it_is_wanted(storage: Path, last: int) -> None:
    cut(seg(storage, 0, 20), at(9) + 7)
    age(storage)
    assert told(storage, last=last) == ([str(last)] if last < 29 else ["28", "torn-tail"])


@pytest.mark.parametrize(("options", "here"), [({"last": 0}, True), ({"first": 9}, True), ({"first": 10}, False)])
def test_what_only_an_index_lists_is_told_where_it_is_wanted(
    storage: Path, options: dict[str, object], here: bool
) -> None:
    """The data file of segment 0 is gone."""
    seg(storage, 0, 0).unlink()
    assert ("index-orphan" in told(age(storage), **options)) == here


def test_a_segment_in_front_of_the_last_one_may_reach_further(tmp_path: Path) -> None:
    """Then nothing is missing at the end."""
    records = make_records(35, size=SIZE)
    storage = build_directory(tmp_path / "s", {0: [records[:10], records[10:]]}, local_low_water_mark=34)
    write_segment(storage / "0", records[20:30])
    assert "acknowledged-missing" not in told(age(storage))
    write_segment(storage / "0", records[10:34])
    assert "acknowledged-missing" in told(age(storage))


def test_what_was_begun_in_an_empty_partition_is_not_seen_when_it_is_looked_at_again(tmp_path: Path) -> None:
    storage = age(build_directory(tmp_path / "s", {0: 0}))
    for path in (storage / "0").iterdir():
        path.unlink()
    one = opened(storage)
    write_segment(storage / "0", make_records(3), first=0)
    assert one.look_again()
    assert one.view is not None
    assert (one.view.segments, one.jobs) == ((), ())


@pytest.mark.parametrize("layout", list(Layout))
def test_which_partitions_belong_to_a_node(tmp_path: Path, layout: Layout) -> None:
    """By their flags, or where there are none by their directories and sessions."""
    storage = age(build_directory(tmp_path / "s", {0: 1}, layout=layout, num_partitions=3))
    (storage / "1").mkdir()

    def found() -> list[tuple[int | None, bool | None]]:
        (scope,) = plan([storage], None)
        return [
            (one.context.number, one.context.assigned)
            for one in runs(scope, look_around(scope, None), ReadLimits(), None)
        ]

    assert found() == [(0, True), (1, layout is Layout.DOCUMENTED)]
    shutil.rmtree(storage / "0")
    shutil.rmtree(storage / "1")
    assert found() == [(0, True)]
    (storage / "1").mkdir()
    write_segment(storage / "1", make_records(1, partition=1), partition=1)
    (scope,) = plan([storage / "1"], None)
    (one,) = runs(scope, look_around(scope, None), ReadLimits(), None)
    assert one.context.number == 1, "only what was named"


@pytest.mark.parametrize(
    ("assigned", "mark", "found"),
    [
        (True, None, ["partition-empty"]),
        (True, -1, ["partition-empty"]),
        (True, 0, []),  # what is missing is told instead
        (False, None, []),
        (None, None, []),
    ],
)
def test_an_empty_partition_is_told_where_it_belongs_here(
    tmp_path: Path, assigned: bool | None, mark: int | None, found: list[str]
) -> None:
    context = PartitionContext(tmp_path, 0, tmp_path / "0", mark, assigned, 3)
    assert codes(placement_findings(context, PartitionView(0, tmp_path / "0", ()), 1)) == found


def test_an_index_that_lists_records_that_are_out_of_order_is_not_too_long(tmp_path: Path) -> None:
    """At the end stand records whose ids are not the next ones: they are told, and the index lists them as well."""
    records = make_records(10, size=SIZE)
    path = write_segment(tmp_path, records)
    again = [Record.make(number, one.request_id, 0, one.data) for number, one in zip((3, 4), records[3:5], strict=True)]
    with path.open("ab") as file:
        file.write(encode_records(again)[0])
    with path.with_suffix(".idx").open("ab") as file:
        file.write(encode_entries([at(10), at(11)]))
    report = check_segment(SegmentJob(age(tmp_path), 0, 0, cluster_key=KEY), WHOLE, ReadLimits())
    assert (codes(report.findings), report.index_excess) == (["record-order"], None)
    with path.with_suffix(".idx").open("ab") as file:
        file.write(encode_entries([at(12)]))
    report = check_segment(SegmentJob(age(tmp_path), 0, 0, cluster_key=KEY), WHOLE, ReadLimits())
    assert report.index_excess is not None


def test_records_of_another_partition_behind_a_right_header_are_told(tmp_path: Path) -> None:
    records = make_records(5, partition=1, size=SIZE)
    (tmp_path / "0").mkdir()
    (tmp_path / "1").mkdir()
    write_segment(tmp_path / "1", records, partition=1)
    write_segment(tmp_path / "0", records)
    one = SegmentJob(age(tmp_path) / "0", 0, 0, cluster_key=KEY)
    with SegmentCheck(one, ReadLimits()) as check:
        (found,) = check.run(WHOLE).findings
    assert (found.code.value, found.offset, found.path) == ("segment-partition", HEADER_SIZE, one.data_path)
    patch(one.data_path, 0, replace(segment_header(0, 0), partition=1).encode())
    with SegmentCheck(one, ReadLimits()) as check:
        (found,) = check.run(WHOLE).findings
    assert (found.code.value, found.offset) == ("segment-partition", 28)


def test_bytes_that_are_read_are_told_to_who_listens(storage: Path) -> None:
    class Listener:
        def __init__(self) -> None:
            self.heard: list[object] = []

        def start(self, what: str, total: int) -> None:
            self.heard.append((what, total))

        def advance(self, amount: int) -> None:
            self.heard.append(amount)

    listener = Listener()
    list(verify_module.verify([storage], progress=listener))
    assert listener.heard == [("verify", 3 * at(10)), *[10 * RECORD] * 3]
    listener.heard.clear()
    list(verify_module.verify([storage], VerifyOptions(threads=1), listener, Workers()))
    assert listener.heard == [("verify", 3 * at(10))]


@pytest.mark.parametrize("done", [0, 1, 2])
def test_a_verification_that_was_interrupted_is_not_complete_and_goes_on_where_it_was(
    storage: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, done: int
) -> None:

    seen: list[int] = []

    def check(job: SegmentJob, options: VerifyOptions, limits: ReadLimits) -> SegmentReport:
        seen.append(job.first)
        if seen == [*range(0, 10 * done + 1, 10)]:
            raise KeyboardInterrupt
        return check_segment(job, options, limits)

    monkeypatch.setattr(verify_module, "check_segment", check)
    state = tmp_path / "state"
    findings, summary = run(storage, resume=state)
    assert (findings, summary.exit_status_name, summary.complete) == ([], "interrupted", False)
    assert (summary.released_starts, summary.segments, summary.records) == (None, done, 10 * done)
    assert json.loads(state.read_bytes())["complete"] is False
    seen.append(-1)
    assert run(storage, resume=state)[1].complete
    assert seen[seen.index(-1) + 1 :] == [*range(10 * done, 30, 10)]
    assert json.loads(state.read_bytes()) == {
        "schema": "waltzctl.verify-state/1",
        "mode": {"program": __version__, "sample": None, "sample_seed": 0, "quick": False},
        "complete": True,
        "segments": {},
    }


def test_a_part_whose_index_cannot_be_read_to_its_end_is_no_answer(storage: Path) -> None:
    class Failing(FileSource):
        def read_into(self, offset: int, buffer: memoryview) -> int:
            if self.name.endswith(".idx") and offset + len(buffer) > HEADER_SIZE + 8 * 5:
                raise DiskReadError(self.name, offset, OSError(5, "made up"))
            return super().read_into(offset, buffer)

    part = Part(20, at(0), at(10))
    task = CheckTask(job(storage), Terms(WHOLE, None, None), part)
    assert distributed_checks.check(task).sound is not None
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("waltzctl.engine.inspect.segment_checks.open_source", lambda path, size: Failing(path))
        assert distributed_checks.check(task) == Checked(0)
        report = check_segment(job(storage), WHOLE, ReadLimits())
    (found,) = report.findings
    assert (found.code.value, found.path, found.offset) == ("read-error", idx(storage, 0, 20), HEADER_SIZE)
    assert (report.records, report.index_excess) == (10, None)


def test_entries_of_what_could_not_be_read_are_not_too_many(storage: Path) -> None:
    """The remedy, to make the index anew, cannot be: nobody knows what stands there."""

    class Failing(FileSource):
        def read_into(self, offset: int, buffer: memoryview) -> int:
            if self.name.endswith(".seg") and offset + len(buffer) > at(7):
                raise DiskReadError(self.name, at(7), OSError(5, "made up"))
            return super().read_into(offset, buffer)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("waltzctl.engine.inspect.segment_checks.open_source", lambda path, size: Failing(path))
        report = check_segment(job(storage), WHOLE, ReadLimits())
    assert ([one.code.value for one in report.findings], report.index_excess) == (["read-error"], None)
    assert report.uncertain


# --- a manifest --------------------------------------------------------------------------------------------------------------


def sealed(change: Callable[[dict[str, Any]], object]) -> bytes:
    """A manifest that is not as this program writes one, with the right checksum."""
    header = ControlHeader(0, 1_700_000_000_123, KEY, 1)
    file = ManifestFile("0/x", 1, "0" * 64)
    partition = ManifestPartition(0, None, None, -1, -1, -1)
    signature = Signature("1" * 64, "2" * 128)
    whole = Manifest("2026-11-21T08:51:18.000Z", "t", header, Layout.RELEASED, (partition,), (file,), signature)
    document = json.loads(whole.encode())
    change(document)
    body = {name: value for name, value in document.items() if name not in ("sha256", "signature")}
    text = json.dumps(body, sort_keys=True, separators=(",", ":"))
    return json.dumps(document | {"sha256": hashlib.sha256(text.encode()).hexdigest()}).encode()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda one: None, None),
        (lambda one: one["partitions"][0].update(more=1), "partitions[0]: more is not known"),
        (lambda one: one["files"][0].update(more=1), "files[0]: more is not known"),
        (lambda one: one["signature"].update(more=1), "manifest.signature: more is not known"),
        (lambda one: one.update(more=1), "manifest: more is not known"),
        (lambda one: one["files"][0].update(name="n" * 16384), None),
        (lambda one: one["files"][0].update(name="n" * 16385), "files[0]: name is not valid"),
        (lambda one: one.update(created="n" * 40), None),
        (lambda one: one.update(created="n" * 41), "manifest: created is not valid"),
        (lambda one: one.update(tool="n" * 200), None),
        (lambda one: one.update(tool="n" * 201), "manifest: tool is not valid"),
        (lambda one: one["signature"].update(algorithm="rsa"), "manifest.signature: algorithm is not valid"),
        (lambda one: one["signature"].update(public_key="1" * 63), "manifest.signature: public_key is not valid"),
        (lambda one: one["signature"].update(signature="1" * 127), "manifest.signature: signature is not valid"),
        (lambda one: one["files"].append(one["files"][0]), "a file is named twice"),
        (lambda one: one["files"].append(one["files"][0] | {"size": 2}), "a file is named twice"),
        (lambda one: one["files"].append(one["files"][0] | {"sha256": "1" * 64}), "a file is named twice"),
        (lambda one: one["files"][0].update(sha256="0" * 65), "files[0]: sha256 is not valid"),
        (lambda one: one["files"][0].update(sha256="0" * 63), "files[0]: sha256 is not valid"),
        (lambda one: one["signature"].update(public_key="1" * 65), "manifest.signature: public_key is not valid"),
        (lambda one: one["signature"].update(signature="1" * 129), "manifest.signature: signature is not valid"),
        (lambda one: one.update(num_partitions=2), "its key and number of partitions are not those of its control header"),
        (lambda one: one.update(control_header="0" * 254), "manifest: control_header is not valid"),
        (lambda one: one.update(layout="other"), "'other' is not a valid Layout"),
    ],
)  # fmt: skip
def test_what_a_manifest_may_hold(change: Callable[[dict[str, Any]], object], said: str | None) -> None:
    if said is None:
        assert decode_manifest(sealed(change)).tool
    else:
        with pytest.raises(DamagedManifestError) as caught:
            decode_manifest(sealed(change))
        assert str(caught.value) == said


@pytest.mark.parametrize("other", [{"schema": "waltzctl.other/1"}, {"schema": "waltzctl.other/1", "type": "other"}])
def test_a_document_of_another_schema_is_no_manifest(other: dict[str, str]) -> None:
    with pytest.raises(NoManifestError, match=r"its schema is 'waltzctl\.other/1'"):
        decode_manifest(sealed(lambda one: one.update(other)))


@pytest.mark.parametrize(("spaces", "damaged"), [(0, True), (4096 - 19, True), (4096 - 18, False)])
def test_a_torn_manifest_is_known_by_its_beginning(spaces: int, damaged: bool) -> None:
    """Something else that only mentions one is none."""
    with pytest.raises(DamagedManifestError if damaged else NoManifestError):
        decode_manifest(b" " * spaces + b"waltzctl.manifest/1")


def test_a_file_that_goes_while_it_is_compared_is_told(
    storage: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = ManifestRequest(tmp_path / "manifest")
    assert run(storage, manifest=request)[1].manifest == "written"
    monkeypatch.setattr(vouching, "digest_file", lambda path, size, limits: None)
    findings, summary = run(storage, manifest=request)
    assert summary.manifest == "differs"
    assert findings[0].message.startswith("the file is not what the manifest says: SHA-256 none, ")


# --- what was read only in part ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [1, 2, 59])
def test_a_torn_end_of_one_byte_is_told_backwards_too(storage: Path, length: int) -> None:
    cut(seg(storage, 0, 20), at(9) + length)
    assert told(age(storage)) == ["28", "torn-tail"]
    assert told(storage, reverse=True) == ["torn-tail", "0"]


def test_how_segments_join_is_not_told_before_all_are_reported(storage: Path) -> None:
    one = opened(storage)

    def again(job: SegmentJob) -> SegmentReport:
        raise AssertionError(job)

    assert list(one.finish(again)) == []
    reports = [check_segment(each, WHOLE, ReadLimits()) for each in one.jobs]
    for report in reports[1:]:
        list(one.add(report))
    assert list(one.finish(again)) == []
    list(one.add(replace(reports[0], finished=False)))
    assert list(one.finish(again)) == []


@pytest.mark.parametrize("held", [True, False])
def test_whether_a_process_holds_a_directory(storage: Path, held: bool) -> None:
    with contextlib.ExitStack() as stack:
        if held:
            stack.enter_context(DirectoryLock.acquire(storage, storage / CONTROL))
        for path in (storage, storage / "0", seg(storage, 0, 0)):
            (scope,) = plan([path], None)
            assert look_around(scope, None).held is held


def test_a_manifest_says_of_a_partition_without_records_that_it_has_none(tmp_path: Path) -> None:
    """Whatever its empty segment would begin with."""
    storage = build_directory(tmp_path / "s", {0: 3, 1: 0})
    request = ManifestRequest(tmp_path / "manifest")
    run(age(storage), manifest=request)
    made = decode_manifest(request.path.read_bytes())
    assert [(one.first_transaction_id, one.last_transaction_id) for one in made.partitions] == [(0, 2), (None, None)]


def test_a_manifest_that_names_only_one_file_of_a_pair_takes_the_other_for_another_file(
    storage: Path, tmp_path: Path
) -> None:
    """What comes later begins behind the last segment that it names."""
    request = ManifestRequest(tmp_path / "manifest")
    _, summary = run(storage, manifest=request)
    made = decode_manifest(request.path.read_bytes())
    request.path.unlink()
    left = tuple(one for one in made.files if one.name != f"0/{seg(storage, 0, 20).name}")
    (tmp_path / "manifest").write_bytes(replace(made, files=left).encode())
    findings, again = run(storage, manifest=request)
    assert [(one.code.value, one.path) for one in findings] == [("manifest-extra-file", seg(storage, 0, 20))]
    assert again.manifest == "differs"
    (tmp_path / "manifest").write_bytes(made.encode())
    assert run(storage, manifest=request)[1].bytes == summary.bytes, "each file is read once"


def test_a_directory_that_has_no_number_may_lie_in_a_storage_directory(storage: Path) -> None:
    """And be named beside it; a part of it is verified on its own."""
    seg(storage, 0, 20).rename(storage / "x.seg")
    (storage / "odd").mkdir()
    (storage / "x.seg").rename(storage / "odd" / seg(storage, 0, 20).name)
    idx(storage, 0, 20).rename(storage / "odd" / idx(storage, 0, 20).name)
    findings, summary = run(age(storage), storage / "odd")
    assert (codes(findings), summary.partitions, summary.records) == (["unknown-file", "segment-gap"], 2, 30)
    assert run(storage / "0")[1].records == 20


@pytest.mark.turns(10)
def test_an_entry_that_may_be_written_just_now_is_no_finding(storage: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    patch(idx(storage, 0, 20), HEADER_SIZE, b"\0" * 8)
    assert len([one for one in dump_index.dump_index(storage) if isinstance(one, Finding)]) == 1
    monkeypatch.setattr(dump_index, "settled", lambda segment: False)
    assert not [one for one in dump_index.dump_index(storage) if isinstance(one, Finding)]


def test_time_that_is_over_while_a_manifest_is_written_leaves_it_unwritten(
    storage: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def over(*more: object) -> None:
        raise CutShort

    monkeypatch.setattr(vouching.Vouching, "write", over)
    findings, summary = run(storage, manifest=ManifestRequest(tmp_path / "manifest"))
    assert (findings, summary.complete, summary.manifest) == ([], False, "not-written")


def test_time_that_is_over_while_a_file_is_hashed_leaves_the_segment_unfinished(storage: Path) -> None:
    one, limits = job(storage, hash_to=at(10)), ReadLimits()
    with SegmentCheck(one, limits) as check:
        report = check.with_digest(SegmentReport(one, 20, records=3))
        assert report.digest == Digest(at(10), hashlib.sha256(one.data_path.read_bytes()).hexdigest())
    with SegmentCheck(one, limits) as check:
        limits.stop()
        assert check.with_digest(SegmentReport(one, 20, records=3)) == SegmentReport(one, 20, records=3, finished=False)
        unfinished = SegmentReport(one, 20, finished=False)
        assert check.with_digest(unfinished) is unfinished


def test_an_accepted_loss_of_the_first_transaction_alone_is_told(tmp_path: Path) -> None:
    storage = build_directory(tmp_path / "s", {0: 0}, local_low_water_mark=-1)
    accept(storage, 0, 0, mark=-1)
    for last in (0, None):
        assert "loss-accepted" in told(age(storage), first=0, last=last)
    assert "loss-accepted" not in told(storage, first=1)


@pytest.mark.parametrize(("first", "last", "here"), [(None, 0, True), (1, 1, True), (2, None, False)])
def test_an_accepted_loss_of_the_first_transaction_is_told(
    tmp_path: Path, first: int | None, last: int | None, here: bool
) -> None:
    storage = build_directory(tmp_path / "s", {0: 0}, local_low_water_mark=-1)
    accept(storage, 0, 1, mark=-1)
    assert ("loss-accepted" in told(age(storage), first=first, last=last)) == here


@pytest.mark.parametrize("place", [0, 9])
def test_an_end_that_cannot_be_read_leaves_open_what_is_in_it(
    storage: Path, monkeypatch: pytest.MonkeyPatch, place: int
) -> None:
    """Without an index nothing leads behind it."""

    class Failing(FileSource):
        def read_into(self, offset: int, buffer: memoryview) -> int:
            if self.name.endswith(".seg") and offset <= at(place) + 50 < offset + len(buffer):
                raise DiskReadError(self.name, at(place) + 50, OSError(5, "made up"))
            return super().read_into(offset, buffer)

    idx(storage, 0, 20).unlink()
    age(storage)
    monkeypatch.setattr("waltzctl.engine.inspect.segment_checks.open_source", lambda path, size: Failing(path))
    with SegmentCheck(job(storage), ReadLimits()) as check:
        scan = check.whole()
        scan.advance(check.size)
        report = check.finish(scan)
    assert scan.open_end
    assert (codes(report.findings), report.uncertain) == (["read-error", "index-missing"], True)


def test_a_segment_behind_may_begin_earlier_than_its_name_says(storage: Path) -> None:
    """Then nothing is missing in front."""
    for suffix in (".seg", ".idx"):
        seg(storage, 0, 20).with_suffix(suffix).unlink()
        seg(storage, 0, 0).with_suffix(suffix).rename(seg(storage, 0, 20).with_suffix(suffix))
    assert list(losses_in_front(opened(age(storage)), (None, None))) == []


@pytest.mark.parametrize("span", [(None, None), (0, 5), (40, 50)])
def test_what_is_missing_is_seen_without_reading_data_or_indexes(tmp_path: Path, span: Span) -> None:
    storage = build_directory(tmp_path / "s", {0: 30}, per_segment=10, size=SIZE, local_low_water_mark=45)
    seg(storage, 0, 0).unlink()
    (scope,), limits = plan([age(storage)], None), ReadLimits()
    (one,) = runs(scope, look_around(scope, None), limits, None)
    assert [*losses_in_front(one, span), *losses_behind(one, span)] != []
    assert limits.bytes_read == 0


def test_headers_that_cannot_be_read_say_nothing_of_the_key(storage: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    patch(storage / CONTROL, 12, bytes(16))
    unreadable(monkeypatch, seg(storage, 0, 0))
    (scope,) = plan([age(storage)], None)
    around = look_around(scope, None)
    assert (around.cluster_key, codes(around.findings)) == (KEY, ["segment-key"])


def test_what_is_hashed_is_read_by_one_thread(storage: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def split(*more: object) -> None:
        raise AssertionError(more)

    monkeypatch.setattr(verify_module, "SplitSegment", split)
    monkeypatch.setattr(verify_module, "PART", 1)
    monkeypatch.setattr(verify_module, "_WORTH_THREADS", 1)
    assert run(storage, threads=2, manifest=ManifestRequest(tmp_path / "manifest"))[1].manifest == "written"


def test_a_control_file_is_dumped_of_partitions_that_it_has(storage: Path) -> None:
    assert [info.partition for info in dump_control(storage, [0]).partitions] == [0]
    assert dump_control(storage, []).partitions == ()
    with pytest.raises(InvalidRequestError):
        dump_control(storage / "0", [1])


@pytest.mark.parametrize(
    ("reads", "left"),
    [
        ([(0, 100)], 0),
        ([(0, 50), (50, 50)], 0),
        ([(0, 50), (49, 2)], 49),
        ([(0, 50), (49, 1)], 50),
        ([(0, 50), (40, 11)], 49),
        ([(0, 50), (51, 49)], 0),  # one byte is read on the way
        ([(1, 99)], 0),
        ([(0, 50), (0, 50)], 50),
        ([(0, 200)], 0),
        ([(0, 99)], 1),
    ],
)
def test_what_passes_by_is_hashed_once(reads: list[tuple[int, int]], left: int) -> None:
    """The first 100 of 200 bytes."""
    data = bytes(range(200))
    source, limits = HashingSource(BytesSource(data), 100), ReadLimits()
    assert source.size() == 200
    for offset, count in reads:
        buffer = memoryview(bytearray(count))
        assert source.read_into(offset, buffer) == count
        assert bytes(buffer) == data[offset : offset + count]
    assert source.digest(limits) == Digest(100, hashlib.sha256(data[:100]).hexdigest())
    assert limits.bytes_read == left
    assert HashingSource(BytesSource(data), 201).digest(limits) is None


def test_what_another_scan_could_not_read_is_taken_over() -> None:
    source = BytesSource(bytes(1000))
    mine, other = (RangeScan(source, 0, HEADER_SIZE, 0, ReadLimits()) for _ in range(2))
    place = UnreadablePlace(300, DiskReadError(Path("x"), 300, OSError(5, "made up")), None)
    other.unreadable, other.unlisted = [place], 3
    mine.unlisted = 4
    mine.adopt(other)
    assert (mine.unreadable, mine.unlisted, mine.sound) == ([place], 7, False)


@pytest.mark.parametrize("length", [1, 2])
def test_a_dump_that_stopped_in_front_of_a_torn_end_did_not_see_it(storage: Path, length: int) -> None:
    cut(seg(storage, 0, 20), at(9) + length)
    with ChunkReader(job(storage), ReadLimits(), data=False) as reader:
        list(reader.forwards(None, 28))
        assert reader.next_id is None


def test_a_stray_that_cannot_be_read_hides_no_other(storage: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a.seg", "b.seg"):
        (storage / "0" / name).write_bytes(bytes(200))
    unreadable(monkeypatch, storage / "0" / "a.seg")
    findings, _ = run(age(storage))
    assert [(one.code.value, one.path.name) for one in findings] == [
        ("read-error", "a.seg"),
        ("segment-stray", "b.seg"),
    ]


def test_parts_between_which_something_stands_are_no_sound_segment(tmp_path: Path) -> None:
    """Each is sound in itself, and the ids go on."""
    records = make_records(10, size=SIZE)
    path = write_segment(tmp_path, records)
    data = path.read_bytes()
    path.write_bytes(data[: at(5)] + bytes(RECORD) + data[at(5) :])
    with SegmentCheck(SegmentJob(age(tmp_path), 0, 0, cluster_key=KEY), ReadLimits()) as check:
        scans = [(check.range_scan(at(0), 0), at(5)), (check.range_scan(at(6), 5), at(11))]
        for scan, stop in scans:
            scan.advance(stop)
            assert (scan.position, scan.records) == (stop, 5)
        assert {one.path.suffix for one in check.finish_parts(scans).findings} == {".seg", ".idx"}


def test_time_that_is_over_while_parts_are_joined_leaves_the_rest_unread(storage: Path) -> None:
    """The first one lies behind the beginning, so that all is read again."""
    with SegmentCheck(job(storage), ReadLimits(max_duration=0)) as check:
        report = check.finish_parts([(check.range_scan(at(3), 23), at(10))])
    assert (report.finished, report.uncertain, report.findings) == (False, True, ())


def test_an_entry_that_leads_into_the_last_bytes_of_the_data_is_wrong(storage: Path) -> None:
    """Though they are those that end the id."""
    with seg(storage, 0, 20).open("ab") as file:
        file.write(b"\0\0\x17")
    with ChunkReader(job(age(storage)), ReadLimits(), data=False) as reader:
        (found,) = dump_index.entry_findings(reader, 0x17, reader.size - 3)
    assert isinstance(found, Finding)
    assert (found.code.value, found.transaction_id) == ("index-entry", 0x17)


def test_partitions_come_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    storage = build_directory(tmp_path / "s", {0: 1}, num_partitions=11)
    for number in (10, 9, 2, 1):
        (storage / str(number)).mkdir()
    (scope,) = plan([storage], None)
    assert [one.number for one in scope.partitions.values()] == [0, 1, 2, 9, 10]


def test_a_control_file_alone_is_held_by_nobody(tmp_path: Path) -> None:
    path = build_directory(tmp_path / "s", {0: 1}) / CONTROL
    with DirectoryLock.acquire(tmp_path / "s", path):
        (scope,) = plan([path.rename(tmp_path / "other.ctl")], None)
        around = look_around(scope, None)
    assert (around.held, around.cluster_key, around.findings) == (False, KEY, ())


def test_segments_are_checked_once_where_a_stray_lies_beside_them(
    storage: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for suffix in (".seg", ".idx"):
        shutil.copy(seg(storage, 0, 10).with_suffix(suffix), storage / "0" / f"copy{suffix}")
    seen: list[tuple[int, str | None]] = []

    def check(job: SegmentJob, options: VerifyOptions, limits: ReadLimits) -> SegmentReport:
        seen.append((job.first, job.name))
        return check_segment(job, options, limits)

    monkeypatch.setattr(verify_module, "check_segment", check)
    assert codes(run(age(storage))[0]) == ["segment-stray"]
    assert seen == [(0, None), (10, None), (20, None), (10, "copy.seg")]


@pytest.mark.parametrize("unread", [0, 2, 4])
def test_a_segment_of_which_a_part_was_not_read_is_not_finished(
    storage: Path, monkeypatch: pytest.MonkeyPatch, unread: int
) -> None:
    monkeypatch.setattr(split_segments, "PART", 3 * RECORD)
    asked: list[RangeScan] = []

    def advance(scan: RangeScan, stop: int) -> bool:
        asked.append(scan)
        if len(asked) == unread + 1:
            return False
        scan.advance(stop)
        return True

    monkeypatch.setattr(split_segments, "_advance", advance)
    with ThreadPoolExecutor(1) as pool:
        report = split_segments.SplitSegment(job(storage), WHOLE, ReadLimits(), pool).result()
    assert len(asked) == 5
    assert (report.finished, report.uncertain) == (False, True)
    assert report.records == sum(one.records for one in asked) > 0


@pytest.mark.parametrize("kind", [seg, idx])
def test_the_file_that_cannot_be_opened_is_named(
    storage: Path, monkeypatch: pytest.MonkeyPatch, kind: Callable[[Path, int, int], Path]
) -> None:
    unreadable(monkeypatch, kind(storage, 0, 20))
    report = check_segment(job(storage), WHOLE, ReadLimits())
    (found,) = report.findings
    assert (found.code.value, found.path) == ("read-error", kind(storage, 0, 20))
    assert report.records == (0 if kind is seg else 10)


@pytest.mark.parametrize("entries", [10, 11])
def test_what_a_dump_knows_of_a_segment(storage: Path, entries: int) -> None:
    with idx(storage, 0, 20).open("ab") as file:
        file.write(encode_entries([at(10)] * (entries - 10)))
    with ChunkReader(job(storage), ReadLimits(), data=False) as reader:
        assert reader.stretch == Stretch(20, 20, None, 19, listed=20 + entries, known=False)
        list(reader.forwards(None, None))
        assert reader.stretch == Stretch(20, 20, 30, 29, listed=20 + entries, excess=entries > 10)


@pytest.mark.parametrize("chunk", [1, RECORD, 3 * RECORD])
@pytest.mark.parametrize("places", [(3,), (2, 3), (0, 9), (4, 6, 8)])
def test_damage_comes_once_whatever_the_pieces(
    storage: Path, monkeypatch: pytest.MonkeyPatch, chunk: int, places: tuple[int, ...]
) -> None:
    for place in places:
        flip(seg(storage, 0, 20), at(place) + 45)
    monkeypatch.setattr(dump_chunks, "CHUNK", chunk)
    with ChunkReader(job(storage), ReadLimits(), data=False) as reader:
        there = [one for one in reader.forwards(None, None) if isinstance(one, Damage)]
        back = [one for one in reader.backwards(None, None) if isinstance(one, Damage)]
    assert [(one.offset, one.transaction_id) for one in back[::-1]] == [
        (one.offset, one.transaction_id) for one in there
    ]


def test_a_stray_is_no_part_of_a_file_beside_it(storage: Path) -> None:
    (storage / "0" / "x.seg").write_bytes(b"")
    assert codes(run(age(storage))[0]) == ["segment-stray"]
    assert run(seg(storage, 0, 0))[0] == []


def test_a_partition_that_a_cut_control_file_lost_may_be_asked_for(tmp_path: Path) -> None:
    storage = build_directory(tmp_path / "s", {0: 1, 2: 1}, num_partitions=3)
    with pytest.raises(InvalidRequestError):
        plan([storage], [3])
    with pytest.raises(InvalidRequestError):
        plan([storage / "0"], [2])
    cut(storage / CONTROL, 128 + 76)
    (scope,) = plan([storage], [2])
    assert [one.number for one in scope.partitions.values()] == [2]


def test_a_segment_that_changed_while_parts_of_it_were_read_is_read_as_a_whole(
    storage: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def changed(self: SegmentCheck, scans: object) -> SegmentReport:
        raise FilesChangedError

    monkeypatch.setattr(SegmentCheck, "finish_parts", changed)
    monkeypatch.setattr(split_segments, "PART", 3 * RECORD)
    with ThreadPoolExecutor(1) as pool:
        report = split_segments.SplitSegment(job(storage), WHOLE, ReadLimits(), pool).result()
    assert report == check_segment(job(storage), WHOLE, ReadLimits())
    assert report.records == 10


@pytest.mark.parametrize("how", [WHOLE, VerifyOptions(quick=True), VerifyOptions(sample=0.5)])
def test_a_check_for_which_there_was_no_time_says_what_it_saw_of_the_headers(storage: Path, how: VerifyOptions) -> None:
    """And nothing of what it did not read."""
    patch(seg(storage, 0, 20), SEGMENT_HEADER.offset_of("partition"), (1).to_bytes(4))
    limits = ReadLimits()
    limits.stop()
    report = check_segment(job(age(storage)), how, limits)
    assert (codes(report.findings), report.finished, report.uncertain) == (["segment-partition"], False, True)


@pytest.mark.parametrize("held", [False, True])
def test_a_control_file_that_cannot_be_read_is_told_however_new_it_is(
    storage: Path, monkeypatch: pytest.MonkeyPatch, held: bool
) -> None:
    if not held:
        os.utime(storage / CONTROL)
    monkeypatch.setattr(places, "lock_holder", lambda *paths: 1 if held else None)
    unreadable(monkeypatch, storage / CONTROL)
    assert codes(inspect_control(storage / CONTROL, storage).findings) == ["read-error"]


@pytest.mark.parametrize("fault", ["index", "header"])
def test_a_large_segment_that_cannot_be_cut_into_parts_is_read_as_a_whole(
    storage: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    def failing(self: SegmentCheck, part: int) -> list[Part]:
        raise DiskReadError(idx(storage, 0, 20), 0, OSError(5, "made up"))

    flip(seg(storage, 0, 20), at(4) + 45)
    if fault == "index":
        monkeypatch.setattr(SegmentCheck, "parts", failing)
    else:
        cut(seg(storage, 0, 20), HEADER_SIZE - 1)
    with ThreadPoolExecutor(1) as pool:
        report = split_segments.SplitSegment(job(age(storage)), WHOLE, ReadLimits(), pool).result()
    assert report == check_segment(job(storage), WHOLE, ReadLimits())
    assert codes(report.findings) == (["record-checksum"] if fault == "index" else ["segment-header-short"])


def test_a_segment_that_is_named_alone_is_told_everything_that_its_directory_would_tell_of_it(storage: Path) -> None:
    """An index that lists too much included, of which the next segment tells otherwise."""
    for first in (0, 10):
        with idx(storage, 0, first).open("ab") as file:
            file.write(encode_entries([at(10)]))
    for first in (0, 10, 20):
        alone = run(seg(age(storage), 0, first))[0]
        whole = [one for one in run(storage)[0] if one.segment == first]
        assert codes(alone) == codes(whole) == (["index-long"] if first < 20 else [])


def test_what_stands_in_the_place_of_a_data_file_is_told_once(storage: Path) -> None:
    """Its index is not called one without a data file as well."""
    seg(storage, 0, 20).unlink()
    seg(storage, 0, 20).mkdir()
    assert "index-orphan" not in (found := codes(run(age(storage))[0]))
    assert "special-file" in found
    assert "index-orphan" not in told(storage)


@pytest.mark.parametrize("layout", list(Layout))
def test_an_accepted_loss_is_over_when_the_mark_rose_over_it(tmp_path: Path, layout: Layout) -> None:
    """Then what is missing counts as acknowledged, once."""
    storage = build_directory(tmp_path / "s", {0: 30}, size=SIZE, local_low_water_mark=31, layout=layout)
    accept(storage, 30, 31, mark=13)
    assert codes(run(age(storage))[0]) == ["acknowledged-missing"]
    assert [line for line in told(storage) if not line.isdigit()] == ["acknowledged-missing"]


@pytest.mark.parametrize("first", [0, 10, 20])
def test_what_is_missing_is_counted_once_by_every_reader(storage: Path, first: int) -> None:
    """Of a data file that is gone, whose index is there, and whose transactions were given up."""
    accept(storage, first, first + 9, mark=35)
    seg(storage, 0, first).unlink()
    age(storage)
    missing = {
        name: sum(one.missing or 0 for one in found if isinstance(one, Finding))
        for name, found in (("verify", run(storage)[0]), ("dump", dump_records(storage, data=False)))
    }
    assert missing == {"verify": 10, "dump": 10}
