"""A verification by an executor: the same as by threads here, wherever segments are cut, and whatever workers answer."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar, cast

import pytest

from tests.builders import build_directory
from tests.inspect.helpers import age, flip, idx, run, seg
from waltzctl.engine.errors import ClusterError, DiskReadError
from waltzctl.engine.findings import Finding
from waltzctl.engine.findings.indexes import WrongEntries
from waltzctl.engine.inspect import distributed_checks
from waltzctl.engine.inspect.distributed_checks import Checked, CheckTask, SoundPart, Terms, check, check_all
from waltzctl.engine.inspect.read_limits import ReadLimits
from waltzctl.engine.inspect.segment_checks import SegmentCheck, check_segment
from waltzctl.engine.inspect.segment_job import SegmentJob
from waltzctl.engine.inspect.verification import VerifyOptions, VerifySummary
from waltzctl.engine.inspect.verify import verify
from waltzctl.engine.log.parts import Part
from waltzctl.engine.shared_deadline import SharedDeadline
from waltzctl.formats.segment import HEADER_SIZE, entry_position

Task = TypeVar("Task")
Result = TypeVar("Result")
SIZE = 20
RECORD = SIZE + 40
PART = 5 * RECORD
WHOLE = VerifyOptions()


def at(place: int) -> int:
    return HEADER_SIZE + RECORD * place


class Workers:
    """Does tasks at once, and remembers what was asked; `before` sees each task first."""

    def __init__(self, parallelism: int = 2, before: Callable[[CheckTask], None] = lambda task: None) -> None:
        self.parallelism = parallelism
        self.asked: list[tuple[str, list[CheckTask], list[int]]] = []
        self._before = before

    def map(
        self, work: Callable[[Task], Result], tasks: Sequence[Task], *, weights: Sequence[int], what: str
    ) -> Iterator[Result]:
        seen = [one for one in cast("Sequence[object]", tasks) if isinstance(one, CheckTask)]
        self.asked.append((what, seen, list(weights)))
        for task in tasks:
            if isinstance(task, CheckTask):
                self._before(task)
            yield work(task)

    @property
    def parts(self) -> list[tuple[int, int, int] | None]:
        """Those of the first tasks: first id, start, stop."""
        return [
            None if one.part is None else (one.part.first, one.part.start, one.part.stop) for one in self.asked[0][1]
        ]


@pytest.fixture
def storage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Segments of twenty records and of ten, of which the first is worth cutting."""
    monkeypatch.setattr(distributed_checks, "PART", PART)
    return build_directory(tmp_path / "s", {0: 30}, per_segment=20, size=SIZE, local_low_water_mark=-1)


def job(storage: Path, first: int = 0, **more: object) -> SegmentJob:
    size = seg(storage, 0, first).stat().st_size
    return SegmentJob(storage / "0", first, 0, bytes=size, **{"last": first == 20, **more})  # type: ignore[arg-type]


def both(storage: Path, workers: Workers, **options: object) -> tuple[list[Finding], VerifySummary]:
    """What comes of it with workers, which is what comes of it without."""
    alone, summary = run(age(storage), **options)
    *found, other = verify([storage], VerifyOptions(**options), executor=workers)  # type: ignore[arg-type]
    assert isinstance(other, VerifySummary)
    assert found == alone
    assert replace(other, elapsed_seconds=0, bytes=0) == replace(summary, elapsed_seconds=0, bytes=0)
    return alone, other


def test_a_large_segment_travels_in_parts(storage: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distributed_checks, "SHARES", 4)
    workers = Workers()
    findings, summary = both(storage, workers)
    assert findings == []
    third = ((0, 3), (3, 6), (6, 10))
    assert workers.parts == [(4 * n, at(4 * n), at(4 * n + 4)) for n in range(5)] + [
        (20 + begin, at(begin), at(end)) for begin, end in third
    ]
    assert [what for what, _, _ in workers.asked] == ["verify"]
    assert (summary.records, summary.segments) == (30, 2)
    assert summary.bytes >= 30 * RECORD


@pytest.mark.parametrize(
    ("part", "shares", "parallelism", "cut"),
    [
        (at(20) - 1, 4, 2, True),
        (at(20), 4, 2, False),
        (1, 1, 1, False),  # the smallest share is all there is
        (1, 2, 1, True),
        (1, 1, 2, True),
        (1, 1, 0, False),
    ],
)
def test_what_is_cut_and_where(
    storage: Path, monkeypatch: pytest.MonkeyPatch, part: int, shares: int, parallelism: int, cut: bool
) -> None:
    monkeypatch.setattr(distributed_checks, "PART", part)
    monkeypatch.setattr(distributed_checks, "SHARES", shares)
    workers = Workers(parallelism)
    check_all([job(storage)], WHOLE, ReadLimits(), workers, deadline=None)
    assert (len(workers.parts) > 1) is cut
    assert cut or workers.parts == [None]


@pytest.mark.parametrize("more", [{"quick": True}, {"sample": 0.5}])
def test_what_leaves_data_unread_is_not_cut(storage: Path, more: dict[str, object]) -> None:
    workers = Workers()
    check_all([job(storage)], VerifyOptions(**more), ReadLimits(), workers, deadline=None)  # type: ignore[arg-type]
    assert workers.parts == [None]
    weight = 1 << 20 if "quick" in more else at(20) // 2
    assert workers.asked[0][2] == [weight]


def test_all_workers_read_one_sample(storage: Path) -> None:
    """The seed that was drawn goes with each task, and is another the next time."""
    drawn = set()
    for _ in range(2):
        workers = Workers()
        list(verify([storage], VerifyOptions(sample=0.5), executor=workers))
        ((_, tasks, _),) = workers.asked
        (seed,) = {task.terms.options.sample_seed for task in tasks}
        assert len(tasks) == 2
        assert seed is not None
        drawn.add(seed)
    assert len(drawn) == 2


def test_what_is_hashed_is_not_cut(storage: Path) -> None:
    workers = Workers()
    (report,) = check_all([job(storage, hash_to=at(20))], WHOLE, ReadLimits(), workers, deadline=None)
    assert workers.parts == [None]
    assert workers.asked[0][2] == [at(20)]
    assert report.digest is not None


@pytest.mark.parametrize("what", ["no index", "short index", "short data", "gone"])
def test_what_cannot_be_cut_goes_as_a_whole(storage: Path, what: str) -> None:
    asked = job(storage)
    if what == "no index":
        idx(storage, 0, 0).unlink()
    elif what == "short index":
        os.truncate(idx(storage, 0, 0), 127)
    elif what == "short data":
        os.truncate(seg(storage, 0, 0), 127)
        asked = replace(asked, last=True)
    else:
        seg(storage, 0, 0).unlink()
    age(storage)
    workers = Workers()
    if what == "gone":
        assert [one.gone for one in check_all([asked], WHOLE, ReadLimits(), workers, deadline=None)] == [True]
    else:
        reports = check_all([asked], WHOLE, ReadLimits(), workers, deadline=None)
        assert reports == [check_segment(asked, WHOLE, ReadLimits())]
    assert workers.parts == [None]


@pytest.mark.parametrize("place", range(0, 20, 3))
@pytest.mark.parametrize("what", ["record", "entry"])
def test_damage_is_looked_at_once_more_as_a_whole(storage: Path, what: str, place: int) -> None:
    if what == "record":
        flip(seg(storage, 0, 0), at(place) + 45)
    else:
        flip(idx(storage, 0, 0), entry_position(place, 0) + 7)
    workers = Workers()
    findings, summary = both(storage, workers)
    assert len(findings) == 1
    assert summary.records == 30 - (what == "record")


def test_a_second_look_weighs_and_costs_what_the_segment_has(storage: Path) -> None:
    flip(seg(storage, 0, 0), at(7) + 45)
    workers, limits = Workers(), ReadLimits()
    jobs = [job(age(storage)), job(storage, 20)]
    first, second = check_all(jobs, WHOLE, limits, workers, deadline=None)
    assert [what for what, _, _ in workers.asked] == ["verify", "verify whole segments"]
    assert workers.asked[1][2] == [at(20)]
    assert [task.job for task in workers.asked[1][1]] == [jobs[0]]
    assert (first.job.first, second.job.first) == (0, 20)
    assert sum(workers.asked[0][2]) == 20 * RECORD + (at(10) if len(workers.parts) == 5 else 10 * RECORD)
    alone = ReadLimits()
    for one in jobs:
        check_segment(one, WHOLE, alone)
    assert limits.bytes_read == alone.bytes_read


def test_the_bytes_of_parts_are_counted_once(storage: Path) -> None:
    limits, alone = ReadLimits(), ReadLimits()
    check_all([job(age(storage))], WHOLE, limits, Workers(), deadline=None)
    check_segment(job(storage), WHOLE, alone)
    assert limits.bytes_read >= alone.bytes_read - 1
    assert limits.bytes_read == alone.bytes_read


def test_workers_share_the_rate_and_know_the_deadline(storage: Path) -> None:
    deadline = SharedDeadline.after(10**6)
    for parallelism, share in ((0, 1000), (1, 1000), (3, 333), (2000, 1)):
        workers = Workers(parallelism)
        terms = _terms(storage, workers, VerifyOptions(limit_rate=1000, threads=3, resume=Path("x")), deadline)
        assert (terms.rate, terms.deadline) == (share, deadline)
        assert (terms.options.threads, terms.options.resume) == (None, None)
    assert _terms(storage, Workers(), WHOLE, None).rate is None


def _terms(storage: Path, workers: Workers, options: VerifyOptions, deadline: SharedDeadline | None) -> Terms:
    """Under which the tasks were handed out; they are not done."""

    class SeenError(Exception):
        pass

    def stop(task: CheckTask) -> None:
        raise SeenError

    lazy = Workers(workers.parallelism, stop)
    with pytest.raises(SeenError):
        check_all([job(storage, 20)], options, ReadLimits(), lazy, deadline=deadline)
    return lazy.asked[0][1][0].terms


def test_the_terms_of_a_task() -> None:
    assert Terms(WHOLE, SharedDeadline.after(0), None).limits().exceeded
    assert Terms(WHOLE, SharedDeadline.after(-100), None).limits().exceeded
    assert not Terms(WHOLE, SharedDeadline.after(100), None).limits().exceeded
    assert not Terms(WHOLE, None, None).limits().exceeded
    assert Terms(VerifyOptions(exclusive=True), None, None).limits().exclusive
    assert not Terms(WHOLE, None, None).limits().exclusive


@pytest.mark.parametrize(("set_to", "passed", "complete"), [(1e3, 70.0, False), (1e10, 50.0, True)])
def test_a_clock_that_is_set_changes_no_deadline(
    storage: Path, monkeypatch: pytest.MonkeyPatch, set_to: float, passed: float, complete: bool
) -> None:
    """Set back by an hour, workers went on for an hour after `max_duration`; set forward, they left everything unread."""
    began = time.monotonic()

    def set_clock(task: CheckTask) -> None:
        monkeypatch.setattr(time, "time", lambda: set_to)
        monkeypatch.setattr(time, "monotonic", lambda: began + passed)

    options = VerifyOptions(max_duration=60, exclusive=True)
    *_, summary = verify([storage], options, executor=Workers(before=set_clock))
    assert isinstance(summary, VerifySummary)
    assert (summary.complete, summary.records > 0) == (complete, complete)


def test_a_part_in_which_something_is_wrong_is_no_answer(storage: Path) -> None:
    part = Part(5, at(5), at(10))
    task = CheckTask(job(age(storage)), Terms(WHOLE, None, None), part)
    wanted = SoundPart(part, at(10), 10, 9, 5, WrongEntries())
    assert check(task) == Checked(5 * RECORD, sound=wanted)
    assert check(replace(task, part=Part(5, at(5), at(10) - 1))) == Checked(0)
    assert check(replace(task, part=Part(6, at(5), at(10)))) == Checked(0)
    assert check(replace(task, part=Part(5, at(5), at(20) + 1))) == Checked(0)
    assert check(replace(task, terms=Terms(WHOLE, SharedDeadline.after(0), None))) == Checked(0)
    idx(storage, 0, 0).unlink()
    assert check(task) == Checked(0)
    seg(storage, 0, 0).unlink()
    assert check(task) == Checked(0)


def test_a_part_that_cannot_be_read_is_no_answer(storage: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unreadable(self: SegmentCheck) -> SegmentCheck:
        raise DiskReadError(seg(storage, 0, 0), 0, OSError(5, "made up"))

    monkeypatch.setattr(SegmentCheck, "__enter__", unreadable)
    part = Part(5, at(5), at(10))
    assert check(CheckTask(job(age(storage)), Terms(WHOLE, None, None), part)) == Checked(0)


def answers(storage: Path, *parts: Part) -> list[Checked]:
    return [check(CheckTask(job(storage), Terms(WHOLE, None, None), part)) for part in parts]


def test_a_segment_that_one_worker_read_is_its_report_and_counts_once(storage: Path) -> None:
    one, limits = job(age(storage)), ReadLimits()
    report = check_segment(one, WHOLE, ReadLimits())
    limits.spend(5)
    assert distributed_checks._join(one, [Checked(7, report=report)], limits) is report
    assert limits.bytes_read == 12


def test_parts_that_do_not_join_are_no_segment(storage: Path) -> None:
    one = job(age(storage))
    front, middle, end = (Part(5 * n, at(5 * n), at(5 * n + 5)) for n in (0, 1, 2))
    rest = Part(10, at(10), at(20))
    limits = ReadLimits()
    joined = distributed_checks._join(one, answers(storage, front, middle, rest), limits)
    assert joined == check_segment(one, WHOLE, ReadLimits())
    assert limits.bytes_read == 20 * RECORD
    for parts in ((front, rest), (front, middle, end), (front, middle, middle, rest)):
        assert distributed_checks._join(one, answers(storage, *parts), limits) is None
    assert distributed_checks._join(one, [*answers(storage, front, middle, rest), Checked(0)], limits) is None
    assert limits.bytes_read == 20 * RECORD, "what is thrown away is not counted"
    again = answers(storage, front, middle, rest)
    sound = again[1].sound
    assert sound is not None
    other = [again[0], replace(again[1], sound=replace(sound, next_id=11)), again[2]]
    assert distributed_checks._join(one, other, limits) is None
    seg(storage, 0, 0).unlink()
    assert distributed_checks._join(one, again, limits) is None


@pytest.mark.parametrize(
    ("size", "last", "here", "said"),
    [
        (0, False, 0, ""),
        (-1, False, 0, "sees another file of this name, of {size} bytes; here it has {here} bytes"),
        (1, False, 0, "sees another file of this name, of {size} bytes; here it has {here} bytes"),
        (1, True, 0, ""),  # it grew
        (1, False, 1, ""),  # here as well
        (None, False, 0, ""),
    ],
)
def test_a_worker_that_sees_another_file_is_told(
    storage: Path, size: int | None, last: bool, here: int, said: str
) -> None:
    asked = job(storage, last=last)
    report = check_segment(asked, WHOLE, ReadLimits())
    state = report.states[0]
    assert state is not None
    seen = None if size is None else replace(state, size=state.size + size)
    if here:
        with seg(storage, 0, 0).open("ab") as file:
            file.write(b"x")
    report = replace(report, states=(seen, None))
    if not said:
        distributed_checks._same_files(report)
        return
    with pytest.raises(ClusterError) as caught:
        distributed_checks._same_files(report)
    assert said.format(size=state.size + (size or 0), here=state.size) in str(caught.value)


@pytest.mark.parametrize("there", [True, False])
def test_a_worker_that_sees_no_file_is_told_where_there_is_one(storage: Path, there: bool) -> None:
    report = replace(check_segment(job(storage), WHOLE, ReadLimits()), gone=True)
    if not there:
        seg(storage, 0, 0).unlink()
        distributed_checks._same_files(report)
        return
    with pytest.raises(ClusterError, match="does not see this file"):
        distributed_checks._same_files(report)
