"""Files that change while they are looked at, on a clock that the test owns: what is waited for, and what is read again."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.builders import KEY, build_directory, make_records, segment_header
from tests.inspect.helpers import age, cut, flip, idx, patch, run, seg
from waltzctl.engine.findings import Code
from waltzctl.engine.inspect import live
from waltzctl.engine.inspect import read_limits as bounds
from waltzctl.engine.inspect.live import LOOKS, LOOKS_WHEN_HELD, QUIET, QUIET_WHEN_HELD, Watch, has_later_segment
from waltzctl.engine.inspect.partition_runs import runs
from waltzctl.engine.inspect.read_limits import CutShort, ReadLimits
from waltzctl.engine.inspect.segment_checks import FilesChangedError, SegmentCheck
from waltzctl.engine.inspect.segment_job import SegmentJob, SegmentReport
from waltzctl.engine.inspect.targets import look_around, plan
from waltzctl.engine.inspect.verification import VerifyOptions
from waltzctl.formats.segment import HEADER_SIZE, encode_entries, encode_records, parse_name

NOW = 2_000_000_000.0
"""Seconds since 1970."""


class Clock:
    """Stands for the module `time`, and for an event that is waited for."""

    def __init__(self) -> None:
        self.now = 0.0
        self.waited: list[float] = []
        self.then: Callable[[], None] = lambda: None

    def time(self) -> float:
        return NOW + self.now

    def monotonic(self) -> float:
        return 100.0 + self.now

    def wait(self, seconds: float) -> bool:
        self.waited.append(seconds)
        self.now += seconds
        self.then()
        return False

    def is_set(self) -> bool:
        return False


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(live, "time", made)
    monkeypatch.setattr(bounds, "time", made)
    return made


def limits_on(clock: Clock, **options: object) -> ReadLimits:
    found = ReadLimits(**options)  # type: ignore[arg-type]
    found._stop = clock  # type: ignore[assignment]
    return found


def touched(path: Path, seconds: float) -> Path:
    """A file, or a directory, changed at so many seconds by the clock."""
    moment = round((NOW + seconds) * 1e9)
    os.utime(path, ns=(moment, moment))
    return path


# --- quiet --------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("held", "age_of_it", "quiet"),
    [
        (False, QUIET, True),
        (False, QUIET - 0.01, False),
        (False, 0.0, False),
        (False, -0.01, True),
        (True, QUIET, False),
        (True, QUIET_WHEN_HELD, True),
        (True, QUIET_WHEN_HELD - 0.01, False),
        (True, 0.0, False),
        (True, -0.01, True),
    ],
)
def test_how_long_files_must_be_quiet(
    tmp_path: Path, clock: Clock, held: bool, age_of_it: float, *, quiet: bool
) -> None:
    """A time in the future tells nothing and counts as long ago."""
    old, new, place = tmp_path / "a", tmp_path / "b", tmp_path / "d"
    old.write_bytes(b"")
    new.write_bytes(b"")
    place.mkdir()
    touched(old, -(10**6))
    touched(new, -age_of_it)
    touched(place, -(10**6))
    limits = limits_on(clock)
    assert Watch((old, new), held, limits).quiet_now() == quiet
    assert Watch((old, tmp_path / "none"), held, limits).quiet_now()
    assert Watch((tmp_path / "none",), held, limits).quiet_now()
    assert Watch((new,), held, limits_on(clock, exclusive=True)).quiet_now()
    assert Watch((old,), held, limits, place).quiet_now()
    touched(place, -age_of_it)
    assert Watch((old,), held, limits, place).quiet_now() == quiet


def test_the_first_look_is_never_enough_while_a_process_holds_the_directory(tmp_path: Path, clock: Clock) -> None:
    file = tmp_path / "a"
    file.write_bytes(b"")
    touched(file, -1000)
    for held in (False, True):
        watch = Watch((file,), held, limits_on(clock))
        assert watch.quiet() == (not held)
        assert watch.wait()
        assert watch.quiet()
        assert Watch((file,), held, limits_on(clock, exclusive=True)).quiet()


@pytest.mark.parametrize("held", [False, True])
def test_a_file_whose_time_lies_is_quiet_when_it_did_not_change_for_a_while(
    tmp_path: Path, clock: Clock, held: bool
) -> None:
    """Its time is always that of the clock; while a process holds the directory that is never enough."""
    file = tmp_path / "a"
    file.write_bytes(b"")
    watch = Watch((file,), held, limits_on(clock))
    watch.looks = 1
    for moment, quiet in ((0.0, False), (QUIET - 0.01, False), (QUIET, True)):
        clock.now = moment
        touched(file, moment)
        watch.before = live.states(file)
        assert watch.quiet() == (quiet and not held)
    clock.now = 9.0
    touched(file, 9.0)
    assert watch.changed()  # then it begins anew
    assert not watch.quiet()
    clock.now = 9.0 + QUIET - 0.01
    touched(file, clock.now)
    watch.before = live.states(file)
    assert not watch.quiet()


@pytest.mark.parametrize("held", [False, True])
def test_a_time_in_the_future_is_no_proof_that_nobody_writes(storage: Path, clock: Clock, held: bool) -> None:
    """The clock was set back, or that of a file server is ahead: a node may be in the middle of a batch."""
    for ahead in (0.02, 3600.0):
        write(storage, 20, indexed=21, more=RECORDS[20].encode()[:50])
        age(storage)
        touched(seg(storage, 0, 0), clock.now + ahead)
        writes = clock.now + 0.3

        def go_on(at: float = writes, ahead: float = ahead) -> None:
            if clock.now >= at:
                write(storage, 22)
                touched(seg(storage, 0, 0), clock.now + ahead)

        clock.then = go_on
        report = checked(storage, clock, lambda: None, held=held)
        assert seen(report) == []


@pytest.mark.parametrize("held", [False, True])
def test_files_whose_times_are_in_the_future_are_quiet_when_nobody_changes_them(
    storage: Path, clock: Clock, held: bool
) -> None:
    write(storage, 20, indexed=21, more=RECORDS[20].encode()[:50])
    age(storage)
    touched(seg(storage, 0, 0), 3600.0)
    report = checked(storage, clock, lambda: None, held=held)
    assert (seen(report), report.uncertain) == (["torn-tail"], False)
    assert clock.now == pytest.approx(QUIET_WHEN_HELD if held else QUIET, abs=0.11)


def test_a_change_is_told_once(tmp_path: Path, clock: Clock) -> None:
    file = tmp_path / "a"
    file.write_bytes(b"")
    watch = Watch((file,), False, limits_on(clock))
    assert not watch.changed()
    file.write_bytes(b"x")
    assert watch.changed()
    assert not watch.changed()
    file.unlink()
    assert watch.changed()
    assert watch.before == (None,)


@pytest.mark.parametrize(("held", "looks"), [(False, LOOKS), (True, LOOKS_WHEN_HELD)])
def test_looks_are_counted_and_pauses_grow_to_a_bound(tmp_path: Path, clock: Clock, held: bool, looks: int) -> None:
    watch = Watch((tmp_path,), held, limits_on(clock))
    answers = [watch.wait() for _ in range(looks)]
    assert answers == [True] * (looks - 1) + [False]
    grown = [0.01, 0.02, 0.04, 0.08, 0.1, 0.1, 0.1]
    assert clock.waited[: len(grown)] == pytest.approx(grown[: looks - 1])
    assert max(clock.waited) <= 0.1
    assert len(clock.waited) == looks - 1
    assert sum(clock.waited) > QUIET or held


@pytest.mark.parametrize(
    ("name", "later"),
    [(21, True), (20, False), (19, False)],
)
def test_a_later_segment(tmp_path: Path, name: int, later: bool) -> None:
    assert not has_later_segment(tmp_path, 20)
    (tmp_path / f"{name:019d}.idx").write_bytes(b"")
    (tmp_path / "x.seg").write_bytes(b"")
    assert not has_later_segment(tmp_path, 20)
    (tmp_path / f"{name:019d}.seg").write_bytes(b"")
    assert has_later_segment(tmp_path, 20) == later
    assert not has_later_segment(tmp_path / "none", 20)


def test_segments_in_front_of_others_are_judged_without_a_listing_for_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A verify of thousands of segments without their indexes took minutes: each of them looked at the names of all others."""
    storage = age(build_directory(tmp_path / "s", {0: [make_records(2, first=2 * k) for k in range(50)]}))
    for index in (storage / "0").glob("*.idx"):
        index.unlink()
    age(storage)
    parsed: list[str] = []

    def counted(name: str) -> tuple[int, str] | None:
        parsed.append(name)
        return parse_name(name)

    monkeypatch.setattr(live, "parse_name", counted)
    findings, _ = run(storage)
    assert sum(one.code is Code.INDEX_MISSING for one in findings) == 50
    assert len(parsed) <= 2 * 50
    path = storage / "0"
    assert has_later_segment(path, 0, 2)
    seg(storage, 0, 2).unlink()
    assert has_later_segment(path, 0, 2)
    assert not has_later_segment(path, 98, 100)
    assert not has_later_segment(path, 98, 0)


# --- limits -------------------------------------------------------------------------------------------------------------------


def test_the_time_is_over_at_its_last_moment(clock: Clock) -> None:
    limits = limits_on(clock, max_duration=5)
    clock.now = 4.99
    limits.check()
    assert limits.elapsed == pytest.approx(4.99)
    clock.now = 5.0
    assert limits.exceeded
    with pytest.raises(CutShort):
        limits.check()
    with pytest.raises(CutShort):
        limits.spend(1)
    assert limits.bytes_read == 1
    assert not limits_on(clock).exceeded
    stopped = ReadLimits()
    stopped.check()
    stopped.stop()
    assert stopped.exceeded
    with pytest.raises(CutShort):
        stopped.pause(0)


def test_a_pause_is_no_longer_than_the_time_that_is_left(clock: Clock) -> None:
    limits = limits_on(clock, max_duration=5)
    limits.pause(2)
    with pytest.raises(CutShort):
        limits.pause(9)
    assert clock.waited == pytest.approx([2, 3])
    clock.now = 7
    with pytest.raises(CutShort):
        limits.pause(9)
    assert clock.waited[-1] == 0
    free = limits_on(clock)
    free.pause(9)
    assert clock.waited[-1] == 9


def test_bytes_are_read_at_a_rate_behind_a_burst(clock: Clock) -> None:
    limits = limits_on(clock, limit_rate=1000)
    clock.now = 10
    limits.spend(100)  # a tenth of a second's
    assert clock.waited == []
    limits.spend(500)
    assert clock.waited == pytest.approx([0.5])
    limits.spend(250)
    assert clock.waited == pytest.approx([0.5, 0.25])
    clock.now += 60
    limits.spend(350)
    assert clock.waited[2:] == pytest.approx([0.25])
    assert limits.bytes_read == 1200
    unbound = limits_on(clock)
    unbound.spend(10**12)
    assert len(clock.waited) == 3


# --- a segment that changes ---------------------------------------------------------------------------------------------------

SIZE = 70
"""Bytes of a record."""
RECORDS = make_records(40, size=30)


@pytest.fixture
def storage(tmp_path: Path) -> Path:
    """Partition 0 with transactions 0 to 19 in one segment."""
    return age(build_directory(tmp_path / "s", {0: [RECORDS[:20]]}, local_low_water_mark=-1))


def job(storage: Path, **more: object) -> SegmentJob:
    return SegmentJob(storage / "0", 0, 0, storage=storage, cluster_key=KEY, **more)  # type: ignore[arg-type]


def entries(count: int) -> bytes:
    return encode_entries([HEADER_SIZE + SIZE * number for number in range(count)])


def write(storage: Path, count: int, *, indexed: int | None = None, more: bytes = b"") -> None:
    """Both files as they are with `count` records, in place; the index has `indexed` entries."""
    cut(seg(storage, 0, 0), HEADER_SIZE)
    patch(seg(storage, 0, 0), HEADER_SIZE, encode_records(RECORDS[:count])[0] + more)
    cut(idx(storage, 0, 0), HEADER_SIZE)
    patch(idx(storage, 0, 0), HEADER_SIZE, entries(count if indexed is None else indexed))


def checked(storage: Path, clock: Clock, change: Callable[[], None], **more: object) -> SegmentReport:
    """A check during which the files change once they were read."""
    with SegmentCheck(job(storage, **more), limits_on(clock)) as check:
        scan = check.whole()
        scan.advance(check.size)
        change()
        return check.finish(scan)


def seen(report: SegmentReport) -> list[str]:
    return [one.code.value for one in report.findings] + ["excess"] * (report.index_excess is not None)


def test_a_torn_end_that_was_being_written_is_none(storage: Path, clock: Clock) -> None:
    write(storage, 20, indexed=21, more=RECORDS[20].encode()[:50])
    report = checked(storage, clock, lambda: write(storage, 22))
    assert (seen(report), report.records, report.last_id) == ([], 22, 21)
    write(storage, 20, indexed=21, more=RECORDS[20].encode()[:50])
    age(storage)
    assert seen(checked(storage, clock, lambda: None)) == ["torn-tail"]


def test_a_torn_end_of_a_file_that_changed_without_growing_is_still_torn(storage: Path, clock: Clock) -> None:
    """Once it has been quiet for long enough."""
    write(storage, 20, indexed=21, more=RECORDS[20].encode()[:50])
    report = checked(storage, clock, lambda: touched(seg(storage, 0, 0), clock.now))
    assert (seen(report), report.uncertain, report.records) == (["torn-tail"], False, 20)


@pytest.mark.parametrize("held", [False, True])
def test_a_file_that_only_grew_is_read_on_and_not_again(storage: Path, clock: Clock, held: bool) -> None:
    """What was read already is not read a second time: damage that came there since is not seen."""
    write(storage, 20, indexed=21)

    def change() -> None:
        write(storage, 25)
        flip(seg(storage, 0, 0), HEADER_SIZE + 50)

    report = checked(storage, clock, change, held=held)
    assert (seen(report), report.records) == ([], 25)


def test_a_file_in_which_something_new_is_wrong_at_every_look_is_opened_anew(storage: Path, clock: Clock) -> None:
    write(storage, 20, more=b"torn")
    places = iter(range(0, 20, 2))

    def damage() -> None:
        flip(seg(storage, 0, 0), HEADER_SIZE + SIZE * next(places) + 50)
        touched(seg(storage, 0, 0), clock.now)

    clock.then = damage
    with pytest.raises(FilesChangedError):
        checked(storage, clock, damage, held=True)
    assert next(places) == 2 * LOOKS_WHEN_HELD


@pytest.mark.parametrize(("torn", "again"), [(0, False), (1, True), (2, True)])
def test_a_file_whose_end_was_torn_and_is_still_is_read_again(
    storage: Path, clock: Clock, torn: int, again: bool
) -> None:
    """What is torn only behind the end that was seen came since."""
    write(storage, 20, indexed=21, more=b"torn"[:torn])

    def change() -> None:
        write(storage, 20, indexed=21, more=b"torn!")
        flip(seg(storage, 0, 0), HEADER_SIZE + 50)

    report = checked(storage, clock, change)
    assert ("record-checksum" in seen(report)) == again


def test_a_file_in_which_something_looked_wrong_is_read_again_from_the_beginning(storage: Path, clock: Clock) -> None:
    write(storage, 20, indexed=21)
    flip(seg(storage, 0, 0), HEADER_SIZE + SIZE * 3 + 50)
    report = checked(storage, clock, lambda: write(storage, 25))
    assert (seen(report), report.records) == ([], 25)
    write(storage, 20, indexed=21)
    flip(seg(storage, 0, 0), HEADER_SIZE + SIZE * 3 + 50)

    def change() -> None:
        write(storage, 25)
        flip(seg(storage, 0, 0), HEADER_SIZE + SIZE * 3 + 50)

    assert seen(checked(storage, clock, change)) == ["record-checksum"]


def test_what_is_wrong_only_for_a_moment_in_what_came_is_looked_at_again(storage: Path, clock: Clock) -> None:
    write(storage, 20, indexed=21)

    def change() -> None:
        write(storage, 25)
        flip(seg(storage, 0, 0), HEADER_SIZE + SIZE * 22 + 50)

    clock.then = lambda: write(storage, 25)
    report = checked(storage, clock, change)
    assert (seen(report), report.records) == ([], 25)


def replace_file(path: Path) -> None:
    data = path.read_bytes()
    path.unlink()
    path.with_name("other").write_bytes(b"")  # so that its inode is not given away again
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("what", "others"),
    [
        ("nothing", False),
        ("data grew", False),
        ("data shrank", True),
        ("data went", True),
        ("data is another file", True),
        ("index grew", False),
        ("index shrank", False),
        ("index went", True),
        ("index is another file", True),
        ("index lost its header", True),
    ],
)
def test_files_that_are_others_are_looked_at_anew(storage: Path, clock: Clock, what: str, others: bool) -> None:
    """Anything but growth of the same two files."""
    write(storage, 20, indexed=21)
    data, index = seg(storage, 0, 0), idx(storage, 0, 0)
    age(storage)

    def change() -> None:
        clock.now += 1
        if what == "data grew":
            write(storage, 22)
        elif what == "data shrank":
            cut(data, HEADER_SIZE + SIZE * 20 - 1)
        elif what == "data went":
            data.unlink()
        elif what == "data is another file":
            replace_file(data)
        elif what == "index grew":
            patch(index, HEADER_SIZE, entries(22))
        elif what == "index shrank":
            cut(index, HEADER_SIZE + 8 * 20)
        elif what == "index went":
            index.unlink()
        elif what == "index is another file":
            replace_file(index)
        elif what == "index lost its header":
            cut(index, HEADER_SIZE - 1)

    if others:
        with pytest.raises(FilesChangedError):
            checked(storage, clock, change)
    else:
        report = checked(storage, clock, change)
        assert report.records == (22 if what == "data grew" else 20)
        assert seen(report) == (["excess"] if what == "nothing" else [])


def test_an_index_that_came_while_the_segment_was_read_belongs_to_another_look(storage: Path, clock: Clock) -> None:
    index = idx(storage, 0, 0)
    content = index.read_bytes()
    index.unlink()
    with pytest.raises(FilesChangedError):
        checked(storage, clock, lambda: index.write_bytes(content) and None)


@pytest.mark.parametrize(
    ("entries_there", "moment", "finding", "accounted"),
    [(None, -1000, True, -1), (0, -1000, True, -1), (3, -1000, True, 2), (3, 10**9, True, 2), (0, 0, True, -1)],
)
def test_a_file_that_ends_within_its_header(
    storage: Path, clock: Clock, entries_there: int | None, moment: float, finding: bool, accounted: int
) -> None:
    cut(seg(storage, 0, 0), HEADER_SIZE - 1)
    if entries_there is None:
        idx(storage, 0, 0).unlink()
    else:
        cut(idx(storage, 0, 0), HEADER_SIZE + 8 * entries_there)
    touched(seg(storage, 0, 0), moment)
    with SegmentCheck(job(storage), limits_on(clock)) as check:
        report = check.run(VerifyOptions())
    assert (bool(seen(report)), report.accounted) == (finding, accounted)
    assert (report.next_id, report.uncertain) == (None, False)
    clock.then = lambda: touched(seg(storage, 0, 0), clock.now) and None
    touched(seg(storage, 0, 0), clock.now)
    with SegmentCheck(job(storage), limits_on(clock)) as check:
        patch(seg(storage, 0, 0), 0, b"x")
        touched(seg(storage, 0, 0), clock.now + 1)
        with pytest.raises(FilesChangedError):
            check.finish_short()


@pytest.mark.parametrize(("entries_there", "accounted", "uncertain"), [(None, -1, True), (0, -1, True), (3, 2, False)])
def test_a_header_that_may_be_written_just_now_is_no_finding(
    storage: Path, clock: Clock, entries_there: int | None, accounted: int, uncertain: bool
) -> None:
    cut(seg(storage, 0, 0), HEADER_SIZE - 1)
    if entries_there is None:
        idx(storage, 0, 0).unlink()
    else:
        cut(idx(storage, 0, 0), HEADER_SIZE + 8 * entries_there)
    touched(seg(storage, 0, 0), 0)
    touched(storage / "0", 0)
    with SegmentCheck(job(storage, held=True), limits_on(clock)) as check:
        report = check.run(VerifyOptions())
    assert (seen(report), report.next_id, report.accounted) == ([], 0, accounted)
    assert (report.uncertain, report.finished, report.gone) == (uncertain, True, False)


def test_a_header_that_ends_in_front_of_another_segment_is_never_written_again(storage: Path, clock: Clock) -> None:
    cut(seg(storage, 0, 0), HEADER_SIZE - 1)
    touched(seg(storage, 0, 0), 0)
    with SegmentCheck(job(storage), limits_on(clock)) as check:
        seg(storage, 0, 30).write_bytes(b"")
        (found,) = check.run(VerifyOptions()).findings
    assert (found.code, found.severity, clock.waited) == ("segment-header-short", "damage", [])


@pytest.mark.parametrize(("looks", "last"), [(1, True), (1, False)])
def test_what_passes_is_waited_for_in_the_last_segment_only(
    storage: Path, clock: Clock, looks: int, last: bool
) -> None:
    """A file that changed a moment ago, and is left alone from then on."""
    write(storage, 20, more=b"torn")
    touched(seg(storage, 0, 0), 0)
    if not last:
        seg(storage, 0, 30).write_bytes(segment_header(0, 30).encode())
    report = checked(storage, clock, lambda: None)
    assert seen(report) == ["torn-tail"]
    assert bool(clock.waited) == last
    assert clock.now >= (QUIET - 0.01) * last


def test_what_never_passes_is_told_at_once(storage: Path, clock: Clock) -> None:
    flip(seg(storage, 0, 0), HEADER_SIZE + SIZE * 3 + 50)
    touched(seg(storage, 0, 0), 0)
    assert seen(checked(storage, clock, lambda: None)) == ["record-checksum"]
    assert clock.waited == []
    with idx(storage, 0, 0).open("ab") as file:
        file.write((HEADER_SIZE + SIZE * 20).to_bytes(8))
    assert seen(checked(storage, clock, lambda: None)) == ["record-checksum", "excess"]
    assert clock.waited != [], "the entry may be in front of its record"


@pytest.mark.parametrize(("size", "index", "passes"), [(0, 0, True), (0, 127, True), (1, 0, False), (1, None, False)])
@pytest.mark.parametrize("held", [False, True])
def test_an_index_that_is_not_there_yet_passes_while_its_segment_is_empty(
    storage: Path, clock: Clock, size: int, index: int | None, passes: bool, held: bool
) -> None:
    """A release makes it first; what this program truncates loses it first, for a moment."""
    write(storage, size)
    if index is None:
        idx(storage, 0, 0).unlink()
    else:
        cut(idx(storage, 0, 0), index)
    clock.then = lambda: touched(seg(storage, 0, 0), clock.now) and None
    touched(seg(storage, 0, 0), 0)
    report = checked(storage, clock, lambda: None, held=held)
    told = passes or (held and index is None)
    assert seen(report) == ([] if told else ["index-missing" if index is None else "index-header"])
    assert report.uncertain == told


def test_a_file_that_never_stands_still_has_no_torn_end(storage: Path, clock: Clock) -> None:
    write(storage, 20, more=b"torn")
    clock.then = lambda: touched(seg(storage, 0, 0), clock.now) and None
    touched(seg(storage, 0, 0), 0)
    report = checked(storage, clock, lambda: None)
    assert (seen(report), report.uncertain) == ([], True)
    assert report.records == 20


def test_what_was_being_written_when_the_time_was_over_is_not_finished(storage: Path, clock: Clock) -> None:
    write(storage, 20, more=b"torn")
    touched(seg(storage, 0, 0), 0)
    with SegmentCheck(job(storage), limits := limits_on(clock)) as check:
        scan = check.whole()
        scan.advance(check.size)

        def over() -> None:
            raise CutShort

        clock.then = over
        report = check.finish(scan)
    assert (report.finished, report.uncertain, report.records, seen(report)) == (False, True, 20, [])
    assert limits.bytes_read > 0


def test_a_roll_over_makes_what_passes_a_finding(storage: Path, clock: Clock) -> None:
    """Behind it nobody writes this segment any more."""
    write(storage, 20, more=b"torn")
    touched(seg(storage, 0, 0), 0)
    report = checked(storage, clock, lambda: seg(storage, 0, 30).write_bytes(b"") and None)
    later = checked(storage, clock, lambda: seg(storage, 0, 30).write_bytes(segment_header(0, 30).encode()) and None)
    for one in (report, later):
        assert seen(one) == ["torn-tail"]
        assert not one.job.last
    assert clock.waited == []
    options = VerifyOptions()
    with SegmentCheck(job(storage, last=False), limits_on(clock)) as check:
        assert seen(check.run(options)) == ["torn-tail"]
        seg(storage, 0, 30).unlink()
        assert check.look_behind()
        assert check.job.last
        assert not check.look_behind()


@pytest.mark.parametrize(("change", "orphan"), [("nothing", True), ("index went", False), ("data came", False)])
def test_an_index_alone_is_looked_at_again_before_it_is_named(storage: Path, change: str, orphan: bool) -> None:
    seg(storage, 0, 0).unlink()
    age(storage)
    (scope,), limits = plan([storage], None), ReadLimits()
    (one,) = runs(scope, look_around(scope, None), limits, None)
    list(one.begin())
    if change == "index went":
        idx(storage, 0, 0).unlink()
    elif change == "data came":
        seg(storage, 0, 0).write_bytes(b"")
    assert [found.code.value for found in one.orphans(())] == ["index-orphan"] * orphan


@pytest.mark.parametrize("held", [False, True])
def test_indexes_alone_whose_times_are_in_the_future_are_watched_together(
    tmp_path: Path, clock: Clock, held: bool
) -> None:
    """Each of them was watched by itself: a verify of a copy with a thousand lost data files took eight minutes."""
    storage = build_directory(tmp_path / "s", {0: [make_records(2, first=2 * k) for k in range(30)]})
    for first in range(2, 50, 2):
        seg(storage, 0, first).unlink()
    for path in (*(storage / "0").iterdir(), storage / "0"):
        touched(path, 3600.0)
    (scope,) = plan([storage], None)
    (one,) = runs(scope, replace(look_around(scope, None), held=held), limits_on(clock), None)
    list(one.begin())
    assert len(list(one.orphans(()))) == 24
    assert clock.now < 2 * (QUIET_WHEN_HELD if held else QUIET)


def test_names_that_went_or_are_new_are_not_strays(storage: Path) -> None:
    old, new, gone = (storage / "0" / name for name in ("old", "new", "gone"))
    for path in (old, new, gone):
        path.write_bytes(b"")
    age(storage)
    (scope,), limits = plan([storage], None), ReadLimits()
    (one,) = runs(scope, look_around(scope, None), limits, None)
    list(one.begin())
    gone.unlink()
    new.write_bytes(b"x")
    assert [found.path for found in one.strays()] == [old]
