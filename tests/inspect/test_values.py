"""What an inspection makes of what it saw, on values alone: nothing here lies on a disk."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.builders import KEY, with_marks
from tests.inspect.helpers import codes
from tests.inspect.test_distributed_checks import Workers
from tests.inspect.test_while_written import Clock
from waltzctl.engine import shared_deadline
from waltzctl.engine.durable import disk
from waltzctl.engine.errors import DiskReadError, NotWaltzError
from waltzctl.engine.findings import Code, Finding, make_finding
from waltzctl.engine.findings.obstacles import Obstacles
from waltzctl.engine.inspect import dump, read_limits, storage_checks, targets
from waltzctl.engine.inspect import verify as verify_module
from waltzctl.engine.inspect.control_checks import ControlState
from waltzctl.engine.inspect.directory_manifest import ManifestPartition
from waltzctl.engine.inspect.partition_checks import PartitionContext, placement_findings
from waltzctl.engine.inspect.partition_runs import PartitionRun, runs
from waltzctl.engine.inspect.read_limits import CutShort, ReadLimits
from waltzctl.engine.inspect.record_checks import RangeScan
from waltzctl.engine.inspect.segment_checks import SegmentCheck, in_order
from waltzctl.engine.inspect.segment_job import SegmentJob, SegmentReport
from waltzctl.engine.inspect.segment_order import Span
from waltzctl.engine.inspect.storage_checks import ledger_findings, storage_findings
from waltzctl.engine.inspect.targets import PartitionScope, Scope, ScopeSurroundings
from waltzctl.engine.inspect.unread_losses import losses_behind, losses_in_front
from waltzctl.engine.inspect.verification import VerifyOptions
from waltzctl.engine.log.assess import Stretch
from waltzctl.engine.log.evidence import Evidence
from waltzctl.engine.log.view import FileState, PartitionView, SegmentView
from waltzctl.engine.progress import SILENT
from waltzctl.engine.scan.byte_source import BytesSource
from waltzctl.engine.scan.columns import Damage, DamageCause
from waltzctl.formats.accepted_losses import AcceptedLoss, Ledger
from waltzctl.formats.control import FLAG_ASSIGNED, FLAG_AVAILABLE, ControlFile, Layout, initial_control
from waltzctl.formats.segment import HEADER_SIZE, index_name, segment_name

STORAGE = Path("/none/storage")
RECORD = 60


def at(place: int) -> int:
    return HEADER_SIZE + RECORD * place


def segment(first: int, records: int | None = 10, entries: int | None = 10, number: int | None = 0) -> SegmentView:
    """A segment; `records` None: without its data file, `entries` None: without its index."""
    directory = STORAGE / str(number)
    data = None if records is None else FileState(directory / segment_name(first), at(records), 5, first + 1)
    index = (
        None if entries is None else FileState(directory / index_name(first), HEADER_SIZE + 8 * entries, 5, first + 2)
    )
    return SegmentView(number, first, data, index)


SEGMENTS = (segment(0), segment(10), segment(20))


def control(layout: Layout = Layout.RELEASED, assigned: Sequence[int] = (0, 1), count: int = 2) -> ControlFile:
    """`count` partitions with session 3 and mark 14, of which some are `assigned`."""
    made = initial_control(layout, KEY, count, 1)
    infos = []
    for info in made.partitions:
        changes = {"session_id": 3, "low_water_mark": 15, "local_low_water_mark": 14}
        if layout.has_flags:
            changes["flags"] = FLAG_AVAILABLE | (FLAG_ASSIGNED if info.partition in assigned else 0)
        infos.append(with_marks(info, **changes))
    return replace(made, partitions=tuple(infos))


def around(
    known: ControlFile | None, *, held: bool = False, key: uuid.UUID | None = KEY, **more: object
) -> ScopeSurroundings:
    return ScopeSurroundings(ControlState(known), held, key, (), **more)  # type: ignore[arg-type]


def scope_of(
    *parts: tuple[int | None, Sequence[SegmentView] | None], whole: bool = True, storage: Path | None = STORAGE
) -> Scope:
    """Partitions with their segments; None: no directory."""
    scope = Scope(storage, None if storage is None else storage / "waltz-storage.ctl", whole)
    for number, segments in parts:
        path = STORAGE / ("odd" if number is None else str(number))
        view = None if segments is None else PartitionView(number, path, tuple(segments))
        scope.partitions[str(path)] = PartitionScope(path, number, True, view=view)
    return scope


def run_of(segments: Sequence[SegmentView] | None, *, whole: bool = True, **more: object) -> PartitionRun:
    scope = scope_of((0, segments), whole=whole)
    (part,) = scope.partitions.values()
    context = PartitionContext(STORAGE, 0, part.path, **more)  # type: ignore[arg-type]
    return PartitionRun(scope, part, context, around(control()), ReadLimits(), Obstacles())


@pytest.mark.parametrize("layout", list(Layout))
def test_what_is_known_of_each_partition(layout: Layout) -> None:
    """One that is there, one that is not, one that none has, and one without a number."""
    loss = AcceptedLoss(1, 5, 6, 4, "t", "x")
    seen = scope_of((None, [segment(0, number=None)]), (2, [segment(0, number=2)]), (0, SEGMENTS))
    found = list(runs(seen, around(control(layout), ledger=Ledger((loss,))), ReadLimits(), None))
    assert [one.context for one in found] == [
        PartitionContext(STORAGE, 0, STORAGE / "0", 14, True, 3),
        PartitionContext(STORAGE, 1, STORAGE / "1", 14, True, 3, (loss,)),
        PartitionContext(None, 2, STORAGE / "2", None, None, None),
        PartitionContext(STORAGE, None, STORAGE / "odd", None, None, None),
    ]
    assert [one.present for one in found] == [True, False, True, True]
    assert [one.beyond for one in found] == [False, False, True, False]
    assert [len(one.jobs) for one in found] == [3, 0, 0, 1]
    assert [one.context.number for one in runs(seen, around(control(layout)), ReadLimits(), [0])] == [0, 2, None]
    assert [one.context.number for one in runs(seen, around(None), ReadLimits(), None)] == [0, 2, None]
    seen.whole = False
    assert [one.context.number for one in runs(seen, around(control(layout)), ReadLimits(), None)] == [0, 2, None]
    assert [one.beyond for one in runs(seen, around(control(layout)), ReadLimits(), None)] == [False] * 3
    cut = replace(control(layout), size_fits=False)
    seen.whole = True
    assert [one.beyond for one in runs(seen, around(cut), ReadLimits(), None)] == [False] * 4
    assert {one.context.storage for one in runs(seen, around(cut), ReadLimits(), None)} == {STORAGE}


def test_partitions_that_belong_elsewhere_are_not_expected() -> None:
    found = list(runs(scope_of((0, SEGMENTS)), around(control(assigned=())), ReadLimits(), None))
    assert [(one.context.number, one.context.assigned) for one in found] == [(0, False)]


def test_what_is_to_be_checked_of_a_segment() -> None:
    """A name behind the last segment proves what is in front of it."""
    (one,) = runs(
        scope_of((0, [*SEGMENTS, segment(31, None, 0)]), storage=STORAGE),
        around(control(count=1), held=True),
        ReadLimits(),
        None,
    )
    common = {"partition": 0, "storage": STORAGE, "cluster_key": KEY, "local_low_water_mark": 14, "held": True,
              "bytes": at(10), "durable_to": 30}  # fmt: skip
    assert one.jobs == (
        SegmentJob(STORAGE / "0", 0, last=False, following=10, **common),  # type: ignore[arg-type]
        SegmentJob(STORAGE / "0", 10, last=False, following=20, **common),  # type: ignore[arg-type]
        SegmentJob(STORAGE / "0", 20, last=True, following=None, **common),  # type: ignore[arg-type]
    )
    assert one.order.entries == {0: 10, 10: 10, 20: 10, 31: 0}
    assert one.listed_alone() == []


@pytest.mark.parametrize(
    ("segments", "span", "held"),
    [
        (SEGMENTS, (None, None), [0, 10, 20]),
        (SEGMENTS, (None, 9), [0]),
        (SEGMENTS, (None, 10), [0, 10]),
        (SEGMENTS, (9, 9), [0]),
        (SEGMENTS, (10, 10), [10]),
        (SEGMENTS, (19, 20), [10, 20]),
        (SEGMENTS, (20, None), [20]),
        (SEGMENTS, (50, None), [20]),
        (SEGMENTS, (None, -1), [0]),
        ((segment(0, 10, 9), segment(10)), (10, 10), [0, 10]),
        ((segment(0, 10, 11), segment(10)), (0, 0), [0, 10]),
        ((segment(0, 10, None), segment(10)), (10, 10), [0, 10]),
        ((segment(0, 10, None), segment(10)), (0, 0), [0, 10]),
        ((segment(0), segment(10, 10, 9), segment(20)), (0, 0), [0, 20]),
        ((segment(0), segment(10, 10, 9), segment(20)), (25, 25), [10, 20]),
    ],
)
def test_which_segments_may_hold_records(segments: Sequence[SegmentView], span: Span, held: list[int]) -> None:
    """A name is believed where the index in front of it leads up to it."""
    assert [one.first for one in run_of(segments).order.holding(span)] == held


def test_what_indexes_alone_list() -> None:
    one = run_of([segment(0), segment(10, None, 0), segment(20, None, 3), segment(30, None, 1)])
    assert one.listed_alone() == [(20, 23), (30, 31)]
    assert run_of(None).listed_alone() == []
    assert run_of(None).order.entries == {}


@pytest.mark.parametrize(
    ("assigned", "present", "told"),
    [(True, True, 1), (True, False, 1), (None, False, 1), (None, True, 1), (False, True, 1), (False, False, 0)],
)
def test_of_a_directory_that_was_taken_away_nothing_is_expected(
    assigned: bool | None, present: bool, told: int
) -> None:
    loss = AcceptedLoss(0, 30, 31, 14, "t", "x")
    one = run_of(SEGMENTS if present else None, assigned=assigned, local_low_water_mark=14, accepted=(loss,))
    assert codes(one.losses([(0, 30)])) == ["loss-accepted"] * told


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize(
    ("held", "exclusive", "told"), [(False, False, True), (False, True, True), (True, False, False), (True, True, True)]
)
def test_what_lies_beside_partitions(
    monkeypatch: pytest.MonkeyPatch, whole: bool, held: bool, exclusive: bool, told: bool
) -> None:
    """A repair that is running now was not interrupted."""
    found = make_finding(Code.REPAIR_INTERRUPTED, STORAGE, "x")
    monkeypatch.setattr(storage_checks, "_interrupted", lambda place: iter([found]))
    seen = scope_of((0, SEGMENTS), whole=whole)
    seen.temporary, seen.unknown = (STORAGE / "x.tmp",), (STORAGE / "y",)
    known = around(control(), held=held, ledger=Ledger(fault="torn"))
    expected = ["temporary-file", "unknown-file", "accepted-losses-damaged", *["repair-interrupted"] * told]
    assert codes(storage_findings(seen, known, ReadLimits(exclusive=exclusive))) == (expected if whole else [])
    assert codes(ledger_findings(seen, known)) == ["accepted-losses-damaged"] * whole
    assert codes(ledger_findings(seen, around(control(), held=held))) == []
    seen.storage = None
    assert (
        codes(storage_findings(seen, known, ReadLimits(exclusive=exclusive)))
        == codes(ledger_findings(seen, known))
        == []
    )


def test_what_is_in_force() -> None:
    known = around(control())
    assert [known.local_low_water_mark(one) for one in (0, 1, 2, None)] == [14, 14, None, None]
    assert [known.session_id(one) for one in (0, 1, 2, None)] == [3, 3, None, None]
    nothing = around(None)
    assert (nothing.control, nothing.session_id(0), nothing.local_low_water_mark(0)) == (None, None, None)


def test_bytes_of_what_was_asked_for() -> None:
    odd = (segment(30, 1, None), segment(40, None, 2))
    seen = scope_of((0, SEGMENTS), (1, None), (2, odd))
    assert seen.data_bytes() == 3 * at(10) + at(1)
    assert seen.index_bytes() == 3 * (HEADER_SIZE + 80) + HEADER_SIZE + 16
    for part in seen.partitions.values():
        part.whole, part.files = False, [STORAGE / "0" / segment_name(10), STORAGE / "0" / index_name(20)]
    assert (seen.data_bytes(), seen.index_bytes()) == (2 * at(10), 2 * (HEADER_SIZE + 80))
    jobs = seen.segment_jobs(seen.partition(STORAGE / "0", 0), SegmentJob(STORAGE / "0", 0))
    assert [(one.first, one.last, one.following) for one in jobs] == [(10, False, 20), (20, True, None)]


REPORT = SegmentReport(SegmentJob(STORAGE / "0", 20), 21, 30, 29, True, 9, (), None, 31, 29, True)


def test_what_a_partition_knows_of_a_segment() -> None:
    """Where it is found wrong in an index, gone or not finished, less is known."""
    assert REPORT.stretch == Stretch(20, 21, 30, 29, True, 31, False, True, True)
    excess = make_finding(Code.INDEX_LONG, STORAGE, "x")
    assert replace(REPORT, index_excess=excess).stretch == replace(REPORT.stretch, excess=True)
    assert replace(REPORT, gone=True).stretch == replace(REPORT.stretch, known=False)
    assert replace(REPORT, finished=False).stretch == replace(REPORT.stretch, known=False)


def test_findings_stand_in_the_order_of_their_places() -> None:
    """Data file first; a finding of the whole file in front of those with a place, whatever their codes."""
    whole = make_finding(Code.INDEX_SHORT, Path("1.idx"), "x")
    first = make_finding(Code.INDEX_ENTRY, Path("1.idx"), "x", offset=1)
    data = make_finding(Code.RECORD_ORDER, Path("1.seg"), "x", offset=900)
    assert in_order([first, whole, data]) == (data, whole, first)


def test_faults_of_the_data_file_s_header() -> None:
    """Neither notes nor what is wrong with the index's."""
    check = SegmentCheck(SegmentJob(STORAGE / "0", 20), ReadLimits())
    data, index = check.job.data_path, check.job.index_path
    fault = make_finding(Code.SEGMENT_KEY, data, "x")
    check._headers = (
        make_finding(Code.RESERVED_NOT_ZERO, data, "x"),
        fault,
        make_finding(Code.INDEX_HEADER, index, "x"),
        make_finding(Code.UNKNOWN_VERSION, index, "x"),
    )
    assert check.data_header_findings == [fault]


# --- the course of a verification --------------------------------------------------------------------------------------------


def report(first: int, records: int = 10) -> SegmentReport:
    """Of a segment in which nothing is wrong."""
    following = first + records
    return SegmentReport(
        SegmentJob(STORAGE / "0", first, last=first == 20), first, following, following - 1, False, records, (), None,
        following, following - 1,
    )  # fmt: skip


def never(job: SegmentJob) -> SegmentReport:
    raise AssertionError(job)


def finished(one: PartitionRun, *reports: SegmentReport) -> list[str]:
    for each in reports:
        list(one.add(each))
    return codes(one.finish(never))


def test_where_there_is_no_directory_nothing_joins() -> None:
    """That it is not there is told at the beginning."""
    one = run_of(None, assigned=True, local_low_water_mark=14)
    assert codes(one.begin()) == ["partition-directory-missing"]
    assert finished(one) == []
    assert [*losses_in_front(one, (None, None)), *losses_behind(one, (None, None))] == []
    assert [*one.strays(), *one.stray_segments_by_ends()] == []


def test_a_directory_without_segments_lacks_what_the_mark_says() -> None:
    one = run_of([], assigned=True, local_low_water_mark=14)
    assert list(losses_in_front(one, (None, None))) == []
    assert one.ids_counted_elsewhere([]) == [(0, 15)]


@pytest.mark.parametrize(("mark", "promised", "told"), [(29, 29, 0), (40, 40, 1), (40, 29, 0)])
def test_what_is_missing_is_asked_of_the_mark_that_the_files_are_bound_to_reach(
    monkeypatch: pytest.MonkeyPatch, mark: int, promised: int, told: int
) -> None:
    one = run_of(SEGMENTS, local_low_water_mark=mark)
    context = replace(one.context, local_low_water_mark=promised)
    monkeypatch.setattr(PartitionRun, "unchanged", lambda *more: True)
    monkeypatch.setattr(PartitionRun, "promised", lambda self: (context, Evidence(mark=promised + 1)))
    assert finished(one, report(0), report(10), report(20)) == ["acknowledged-missing"] * told


@pytest.fixture
def same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing changes meanwhile."""
    monkeypatch.setattr(PartitionRun, "unchanged", lambda *more: True)
    monkeypatch.setattr(PartitionRun, "_view_again", lambda self: self.view)


@pytest.mark.usefixtures("same")
@pytest.mark.parametrize(("reported", "told"), [(0, 0), (1, 0), (2, 0), (3, 1)])
def test_nothing_is_told_before_all_segments_are_reported(reported: int, told: int) -> None:
    one = run_of(SEGMENTS, local_low_water_mark=14)
    assert len(finished(one, *[report(0), report(10, 9), report(20)][:reported])) == told


@pytest.mark.usefixtures("same")
@pytest.mark.parametrize("unfinished", [0, 1, 2])
def test_nothing_is_told_where_a_segment_was_not_read_to_its_end(unfinished: int) -> None:
    reports = [report(0), report(10, 9), report(20)]
    reports[unfinished] = replace(reports[unfinished], finished=False)
    assert finished(run_of(SEGMENTS, local_low_water_mark=14), *reports) == []


@pytest.mark.usefixtures("same")
@pytest.mark.parametrize(
    ("reports", "mark", "told"),
    [
        ([report(0), report(10), report(20)], 14, []),
        ([report(0), report(10), report(20)], 30, ["acknowledged-missing"]),
        ([report(0), report(10, 9), report(20)], 14, ["segment-gap"]),
        ([report(0), report(10, 11), report(20)], 14, ["segment-overlap"]),
        ([report(20), report(0), report(10)], 14, []),
        ([report(0), report(10), replace(report(20), uncertain=True)], 30, []),
        ([report(0), report(10), replace(report(20), gone=True)], 30, []),
    ],
)
def test_how_segments_join(reports: Sequence[SegmentReport], mark: int, told: list[str]) -> None:
    assert finished(run_of(SEGMENTS, local_low_water_mark=mark), *reports) == told


@pytest.mark.parametrize(
    ("asked", "processors", "worth", "workers", "threads"),
    [
        (None, 3, 0, None, 3),
        (None, None, 0, None, 1),
        (2, 3, 0, None, 2),
        (None, 3, 1, None, 1),
        (2, 3, 1, None, 1),
        (2, 3, 0, Workers(), 1),
    ],
)
def test_how_many_threads_read(
    monkeypatch: pytest.MonkeyPatch,
    asked: int | None,
    processors: int | None,
    worth: int,
    workers: Workers | None,
    threads: int,
) -> None:
    monkeypatch.setattr(verify_module.os, "cpu_count", lambda: processors)
    monkeypatch.setattr(verify_module, "_WORTH_THREADS", worth)
    made = verify_module._Verification([], VerifyOptions(threads=asked), None, SILENT, workers, None)
    assert made._threads == threads


def test_what_a_summary_says_of_how_it_ended() -> None:
    made = verify_module._Verification([], VerifyOptions(), None, SILENT, None, None)
    assert (made._summary(False).exit_status_name, made._summary(True).exit_status_name) == ("clean", "interrupted")
    begun = made._summary(False)
    assert (begun.complete, begun.manifest, begun.released_starts) == (False, None, None)
    made._done, made._released = True, False
    done = made._summary(False)
    assert (done.complete, done.released_starts) == (True, False)
    partial = verify_module._Verification([], VerifyOptions(quick=True), None, SILENT, None, None)
    partial._done = True
    assert not partial._summary(False).complete


@pytest.mark.parametrize(
    ("session", "low", "local", "marks"),
    [
        (3, 2, 1, (3, 2, 1)),
        (0, 0, 0, (0, 0, 0)),
        (-1, -1, -1, (-1, -1, -1)),
        (None, 2, 1, None),
        (3, None, 1, None),
        (3, 2, None, None),
    ],
)
def test_marks_of_a_manifest(
    session: int | None, low: int | None, local: int | None, marks: tuple[int, int, int] | None
) -> None:
    assert ManifestPartition(0, None, None, session, low, local).marks == marks


def test_workers_have_the_time_that_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, told = Clock(), []
    monkeypatch.setattr(shared_deadline, "time", clock)
    monkeypatch.setattr(read_limits, "time", clock)
    monkeypatch.setattr(verify_module, "check_all", lambda *more, deadline: told.append(deadline) or [])
    for seconds in (50.0, None):
        clock.now = 0.0
        options = VerifyOptions(max_duration=seconds)
        made = verify_module._Verification([], options, None, SILENT, Workers(), None)
        clock.now = 5.0
        assert list(made._own_findings(None)) == []
    assert [None if one is None else (one.seconds, one.left()) for one in told] == [(45.0, 45.0), None]


def test_a_partition_that_was_not_looked_at_to_its_end_makes_the_verification_incomplete(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def over(self: PartitionRun, check_again: object) -> Iterator[Finding]:
        raise CutShort
        yield

    monkeypatch.setattr(PartitionRun, "finish", over)
    made = verify_module._Verification([], VerifyOptions(), None, SILENT, None, None)
    assert list(made._finish(verify_module._PartitionEnd(run_of(SEGMENTS)))) == []
    assert made._cut


def test_what_was_told_is_not_told_again_when_segments_are_looked_at_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is new is."""
    changes = [False, True]
    monkeypatch.setattr(PartitionRun, "unchanged", lambda *more: changes.pop(0))
    monkeypatch.setattr(PartitionRun, "_view_again", lambda self: self.view)
    path = STORAGE / "0" / segment_name(10)
    known, new, other = (make_finding(Code.RECORD_CHECKSUM, path, "x", offset=offset) for offset in (300, 400, 500))
    one = run_of(SEGMENTS, local_low_water_mark=14)
    for each in (report(0), replace(report(10, 9), findings=(known,)), report(20)):
        list(one.add(each))

    def again(job: SegmentJob) -> SegmentReport:
        found = {0: (), 10: (known, new), 20: (new, other)}[job.first]
        return replace(report(job.first), findings=found)

    assert list(one.finish(again)) == [new, other]
    assert changes == [True]


@pytest.mark.parametrize(
    ("cause", "following", "end", "found"),
    [
        (DamageCause.RECORD_ORDER, None, at(12), True),
        (DamageCause.RECORD_ORDER, 12, at(12), False),
        (DamageCause.RECORD_CHECKSUM, None, at(12), False),
        (DamageCause.RECORD_ORDER, None, at(11), False),
    ],
)
def test_records_at_the_end_that_are_out_of_order(
    cause: DamageCause, following: int | None, end: int, found: bool
) -> None:
    scan = RangeScan(BytesSource(bytes(at(12))), 0, at(12), 10, ReadLimits())
    assert scan.order_end is None
    damage = Damage(cause, at(10), end - at(10), 10, following, None, None, None, None, proof="end")
    scan.damages.append(damage)
    assert scan.order_end is (damage if found else None)


@pytest.mark.parametrize(
    ("number", "assigned", "partitions", "segments", "told"),
    [
        (0, False, 1, SEGMENTS, ["partition-not-assigned"]),
        (0, False, 1, (), []),
        (0, True, 1, SEGMENTS, []),
        (0, None, 1, SEGMENTS, []),
        (1, True, 1, SEGMENTS, ["partition-not-assigned"]),
        (1, True, 2, SEGMENTS, []),
        (1, True, None, SEGMENTS, []),
        (None, None, 1, SEGMENTS, []),
        (0, True, 1, None, ["partition-directory-missing"]),
        (0, False, 1, None, []),
        (0, None, 1, None, []),
    ],
)
def test_whether_a_directory_should_be_here(
    number: int | None,
    assigned: bool | None,
    partitions: int | None,
    segments: Sequence[SegmentView] | None,
    told: list[str],
) -> None:
    context = PartitionContext(STORAGE, number, STORAGE / "0", 14, assigned, 3)
    view = None if segments is None else PartitionView(number, STORAGE / "0", tuple(segments))
    assert codes(placement_findings(context, view, partitions)) == told


@pytest.mark.parametrize(
    ("span", "told"), [((30, 30), [30]), ((31, 31), [31]), ((30, 31), [30, 31]), ((32, 32), [31]), ((33, 33), [])]
)
def test_of_losses_beside_each_other_those_are_told_that_are_wanted(span: Span, told: list[int]) -> None:
    losses = (AcceptedLoss(0, 30, 30, 14, "t", "x"), AcceptedLoss(0, 31, 32, 14, "t", "x"))
    one = run_of(SEGMENTS, local_low_water_mark=14, accepted=losses)
    assert [found.transaction_id for found in losses_behind(one, span) if found.code == "loss-accepted"] == told


@pytest.mark.parametrize(("repaired", "entries"), [(False, 0), (True, 0), (True, 2)])
def test_repairs_that_were_interrupted_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, repaired: bool, entries: int
) -> None:
    if repaired:
        (tmp_path / disk.STATE_DIRECTORY / disk.QUARANTINE).mkdir(parents=True)
    entry = SimpleNamespace(path=tmp_path / "q", command="recover", created="then", id="7")
    monkeypatch.setattr("waltzctl.engine.durable.quarantine.interrupted", lambda *_: [entry] * entries)
    seen = Scope(tmp_path, tmp_path / "waltz-storage.ctl", whole=True)
    found = list(storage_findings(seen, around(control()), ReadLimits()))
    said = "recover of then was interrupted half-way; quarantine 7 keeps what it replaced"
    assert [(one.code.value, one.path, one.message) for one in found] == [
        ("repair-interrupted", tmp_path / "q", said)
    ] * entries


def test_partitions_come_by_number() -> None:
    """Whatever the order in which they were named."""
    found = runs(scope_of((8, ()), (1, ())), around(control(assigned=(16,), count=17)), ReadLimits(), None)
    assert [one.context.number for one in found] == [1, 8, 16]


@pytest.mark.parametrize(
    ("length", "cause"),
    [
        (None, DamageCause.RECORD_CHECKSUM),
        (-1, DamageCause.RECORD_LENGTH),
        (0, DamageCause.RECORD_CHECKSUM),
        (60, DamageCause.RECORD_CHECKSUM),
        (61, DamageCause.RECORD_LENGTH),
    ],
)
def test_what_an_end_that_nobody_searched_is_called(length: int | None, cause: DamageCause) -> None:
    """100 bytes; a record takes 40 beside its data."""
    scan = RangeScan(BytesSource(bytes(400)), 0, 300, 10, ReadLimits())
    scan.tail = Damage(DamageCause.TORN_TAIL, 300, 7, 10, None, None, length, None, None, proof="end")
    scan.extend_tail(400, empty=False)
    assert scan.tail is None
    (found,) = scan.damages
    assert (found.cause, found.offset, found.length, found.proof) == (cause, 300, 100, "budget")
    assert (scan.open_end, scan.position, scan.next_id) == (True, 400, 10)


def test_a_segment_is_described_as_it_was_when_it_was_checked() -> None:
    states = FileState(STORAGE / "a", 700, 1, 2), FileState(STORAGE / "b", 300, 1, 3)
    shown = dump._describe(replace(REPORT, states=states), [])
    assert (shown.data_bytes, shown.index_bytes, shown.index) == (700, 300, "ok")
    assert (shown.path, shown.segment, shown.last_transaction_id, shown.records) == (REPORT.job.data_path, 20, 29, 9)
    stale = make_finding(Code.INDEX_LONG, REPORT.job.index_path, "x")
    assert dump._describe(replace(REPORT, states=states), [stale]).index == "stale"


def test_who_listens_hears_what_was_read() -> None:
    class Listener:
        heard = 0

        def start(self, what: str, total: int) -> None:
            raise AssertionError(what)

        def advance(self, amount: int) -> None:
            self.heard += amount

    listener = Listener()
    limits = ReadLimits(progress=listener)
    limits.spend(5)
    limits.spend(7)
    assert (listener.heard, limits.bytes_read) == (12, 12)


def test_indexes_alone_are_told_of_what_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PartitionRun, "_settle_orphan", lambda self, segment, watch: segment)
    one = run_of([segment(0), segment(10, None, 0), segment(20, None, 0)])
    assert [found.segment for found in one.orphans([])] == [10, 20]
    one._partition.whole, one._partition.files = False, [STORAGE / "0" / index_name(20)]
    assert [found.segment for found in one.orphans([])] == [20]


def test_a_partition_that_went_away_hides_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    def look(path: Path, number: int | None) -> PartitionView:
        if number == 0:
            raise NotWaltzError("gone")
        if number == 1:
            raise DiskReadError(path, None, OSError(5, "made up"))
        return PartitionView(number, path, ())

    monkeypatch.setattr(targets, "view_partition", look)
    seen = scope_of((0, None), (1, None), (2, None), whole=False)
    targets._look(seen, None)
    assert [(one.view is not None, one.error is not None) for one in seen.partitions.values()] == [
        (False, False),
        (False, True),
        (True, False),
    ]


def test_a_ledger_that_cannot_be_read_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    error = DiskReadError(STORAGE, 5, OSError(5, "made up"))

    def failing(storage: Path) -> Ledger:
        raise error

    monkeypatch.setattr(targets, "read_ledger", failing)
    assert targets._ledger(STORAGE) == (Ledger(fault=str(error)), error)
    assert targets._ledger(None) == (Ledger(), None)


def test_an_end_that_can_be_read_again_is_no_longer_open() -> None:
    source = BytesSource(bytes(400))
    scan = RangeScan(source, 0, 400, 10, ReadLimits())
    scan.open_end = True
    scan.advance(400)
    assert not scan.open_end


@pytest.mark.parametrize(("name", "last"), [(None, False), ("x.seg", True)])
def test_behind_a_file_under_another_name_there_is_no_other(tmp_path: Path, name: str | None, last: bool) -> None:
    (tmp_path / segment_name(30)).write_bytes(b"")
    check = SegmentCheck(SegmentJob(tmp_path, 20, name=name), ReadLimits())
    assert check.look_behind() is not last
    assert check.job.last is last
    assert not check.look_behind()


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("asked", [True, False])
def test_which_faults_of_the_control_file_are_told(monkeypatch: pytest.MonkeyPatch, known: bool, asked: bool) -> None:
    """Whoever asked for a partition is told of its structs, and where there is nothing to compare with, why."""
    path = STORAGE / "waltz-storage.ctl"
    whole = make_finding(Code.UNKNOWN_VERSION, path, "x")
    part = make_finding(Code.CONTROL_STRUCT_CHECKSUM, path, "x", partition=0)
    state = ControlState(control() if known else None, (whole, part))
    monkeypatch.setattr(targets, "inspect_control", lambda *more, **options: state)
    seen = scope_of(whole=False)
    seen.check_control = asked
    assert targets.look_around(seen, None).findings == ((part,) if known and not asked else (whole, part))
