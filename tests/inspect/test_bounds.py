"""A verification with bounds: quick, sampled, timed, throttled, continued, interrupted, and in threads."""

from __future__ import annotations

import itertools
import json
import os
import random
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import waltzctl
from tests.builders import build_directory
from tests.inspect.helpers import age, codes, cut, flip, idx, patch, run, seg
from waltzctl.engine.errors import InvalidRequestError
from waltzctl.engine.findings import Finding
from waltzctl.engine.inspect import partial, read_limits, sampling, segment_checks, split_segments, verification
from waltzctl.engine.inspect import verify as verify_module
from waltzctl.engine.inspect.read_limits import CutShort, ReadLimits
from waltzctl.engine.inspect.segment_job import SegmentJob, SegmentReport
from waltzctl.engine.inspect.verify import VerifyOptions, VerifySummary, verify
from waltzctl.engine.log.index import IndexReader
from waltzctl.engine.scan.byte_source import BytesSource, FileSource
from waltzctl.engine.scan.probe import SearchBudget
from waltzctl.formats.request_id import RequestId
from waltzctl.formats.segment import HEADER_SIZE, Record

SIZE = 1000
RECORD = SIZE + 40


def build(path: Path, records: int = 600, per_segment: int = 100) -> Path:
    return age(build_directory(path, {0: records, 1: records}, per_segment=per_segment, size=SIZE))


@pytest.fixture
def in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads and parts for small files too."""
    monkeypatch.setattr(verify_module, "_WORTH_THREADS", 0)
    monkeypatch.setattr(split_segments, "PART", 10_000)
    monkeypatch.setattr(verify_module, "PART", 10_000)


def draw(monkeypatch: pytest.MonkeyPatch, *seeds: int) -> None:
    """The next seeds that are drawn."""
    left = iter(seeds)
    monkeypatch.setattr(verification.secrets, "randbits", lambda bits: next(left))


@pytest.mark.usefixtures("in_parts")
@pytest.mark.parametrize("seed", range(6))
def test_findings_do_not_depend_on_the_number_of_threads(tmp_path: Path, seed: int) -> None:
    """The same findings in the same order and the same counts, damage at the bounds of parts included."""
    storage = build(tmp_path / "s", records=300)
    source = random.Random(seed)
    for _ in range(8):
        path = source.choice([seg, seg, idx])(storage, source.randrange(2), source.choice([0, 100, 200]))
        kind = source.randrange(4)
        if kind == 0:
            cut(path, source.randrange(100, path.stat().st_size))
        elif kind == 1:
            patch(path, source.randrange(path.stat().st_size), source.randbytes(source.choice([1, 8, 2000])))
        else:
            flip(path, source.randrange(path.stat().st_size), source.randrange(8))
    age(storage)
    expected, alone = run(storage, threads=1)
    for threads in (2, 5):
        findings, summary = run(storage, threads=threads)
        assert findings == expected
        assert (summary.records, summary.segments) == (alone.records, alone.segments)
    assert expected


@pytest.mark.usefixtures("in_parts")
def test_whoever_stops_listening_leaves_no_file_open(tmp_path: Path) -> None:
    """Parts of segments that wait for their turn are let go of."""
    storage = build(tmp_path / "s", records=300)
    flip(seg(storage, 0, 0), HEADER_SIZE + 50)
    before = len(os.listdir("/proc/self/fd"))
    iterator = verify([storage], VerifyOptions(threads=2))
    assert isinstance(next(iterator), Finding)
    assert len(os.listdir("/proc/self/fd")) > before
    iterator.close()  # type: ignore[attr-defined]
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.usefixtures("in_parts")
def test_a_damaged_record_at_the_bound_of_two_parts_is_one_finding(tmp_path: Path) -> None:
    """Each record of a segment in turn."""
    storage = build(tmp_path / "s", records=40, per_segment=40)
    for number in range(39):
        offset = HEADER_SIZE + RECORD * number + 30
        flip(seg(storage, 0, 0), offset)
        findings, summary = run(storage, threads=2)
        assert [one.transaction_id for one in findings] == [number]
        assert summary.records == 79
        flip(seg(storage, 0, 0), offset)


def test_quick_reads_structure_and_both_ends(tmp_path: Path) -> None:
    """What it can see, it names as a full verification does; damage in the middle it cannot see."""
    storage = build(tmp_path / "s")
    flip(seg(storage, 0, 100), HEADER_SIZE + RECORD * 50 + 500)
    assert codes(run(storage, quick=True)[0]) == []
    flip(seg(storage, 0, 0), HEADER_SIZE + 50)
    cut(seg(storage, 0, 500), HEADER_SIZE + RECORD * 99 + 7)
    cut(idx(storage, 1, 0), HEADER_SIZE + 8 * 90)
    patch(idx(storage, 1, 100), HEADER_SIZE + 8 * 50, bytes(8))
    idx(storage, 1, 200).unlink()
    findings, summary = run(age(storage), quick=True)
    assert codes(findings) == ["record-checksum", "torn-tail", "index-short", "index-entry", "index-missing"]
    assert not summary.complete
    assert summary.bytes < 400_000
    full, _ = run(storage)
    assert [place(one) for one in full if one.transaction_id != 150 or one.partition == 1] == [*map(place, findings)]


def place(finding: Finding) -> tuple[object, ...]:
    """All but the words."""
    return finding.code, finding.severity, finding.path, finding.transaction_id, finding.offset, finding.length


def test_quick_counts_what_a_full_verification_counts(tmp_path: Path) -> None:
    """From the indexes alone."""
    storage = build(tmp_path / "s")
    assert run(storage, quick=True)[1].records == run(storage)[1].records == 1200


@pytest.mark.turns(8)
def test_a_sample_reads_about_its_fraction_and_is_the_same_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other seeds read other parts; everything together finds what is there."""
    monkeypatch.setattr(sampling, "BLOCK", 10_000)
    storage = build(tmp_path / "s", records=2000, per_segment=1000)
    flip(seg(storage, 0, 1000), HEADER_SIZE + RECORD * 500 + 500)
    age(storage)
    whole = run(storage)[1].bytes
    seen = 0
    for seed in range(60):
        findings, summary = run(storage, sample=0.1, sample_seed=seed)
        again, _ = run(storage, sample=0.1, sample_seed=seed)
        assert findings == again
        assert not summary.complete
        assert 0.03 * whole < summary.bytes < 0.25 * whole
        assert codes(findings) in ([], ["record-checksum"])
        seen += bool(findings)
    assert 1 <= seen <= 20
    findings, summary = run(storage, sample=1.0)
    assert codes(findings) == ["record-checksum"]
    assert summary.complete


def test_a_sample_whose_seed_nobody_chose_is_another_each_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of forty damaged records, one in each block, each is found in the end."""
    monkeypatch.setattr(sampling, "BLOCK", 5 * RECORD)
    storage = build_directory(tmp_path / "s", {0: 200}, per_segment=200, size=SIZE)
    for place in range(40):
        flip(seg(storage, 0, 0), HEADER_SIZE + RECORD * (5 * place + 2) + 500)
    age(storage)
    draw(monkeypatch, *range(100))
    told = []
    for _ in range(100):
        *findings, _ = verify([storage], VerifyOptions(sample=0.1))
        told.append({one.transaction_id for one in findings if isinstance(one, Finding)})
    assert set().union(*told) == {5 * place + 2 for place in range(40)}
    assert max(map(len, told)) < 15


class StopError(Exception):
    pass


def begin_sample(storage: Path, state: Path, segments: int, **options: object) -> None:
    """Be stopped when so many segments are finished."""
    with pytest.MonkeyPatch.context() as patched:
        done = itertools.count()

        def check(*arguments: object) -> object:
            if next(done) == segments:
                raise StopError
            return segment_checks.check_segment(*arguments)  # type: ignore[arg-type]

        patched.setattr(verify_module, "check_segment", check)
        with pytest.raises(StopError):
            list(verify([storage], VerifyOptions(sample=0.1, resume=state, threads=1, **options)))  # type: ignore[arg-type]


def seeds_asked(storage: Path, state: Path, **options: object) -> list[int | None]:
    """The seed under which each segment is looked at by the next run."""
    seen: list[int | None] = []
    with pytest.MonkeyPatch.context() as patched:

        def check(job: SegmentJob, given: VerifyOptions, limits: ReadLimits) -> SegmentReport:
            seen.append(given.sample_seed)
            return segment_checks.check_segment(job, given, limits)

        patched.setattr(verify_module, "check_segment", check)
        list(verify([storage], VerifyOptions(resume=state, threads=1, **options)))  # type: ignore[arg-type]
    return seen


def test_a_sample_that_is_continued_keeps_its_seed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was finished is passed over; the next one, when all is done, is another."""
    storage, state = build(tmp_path / "s"), tmp_path / "state"
    draw(monkeypatch, 11, 12, 13, 14, 15)
    begin_sample(storage, state, 5)
    assert json.loads(state.read_text())["mode"] == {
        "program": waltzctl.__version__,
        "sample": 0.1,
        "sample_seed": 11,
        "quick": False,
    }
    assert seeds_asked(storage, state, sample=0.1) == [11] * 7
    assert json.loads(state.read_text())["complete"] is True
    (seed,) = set(seeds_asked(storage, state, sample=0.1))
    assert seed != 11


@pytest.mark.parametrize(
    ("options", "seed"),
    [
        ({"sample": 0.2}, 12),
        ({"sample": 0.1, "sample_seed": 7}, 7),
        ({"sample": 0.1, "sample_seed": 0}, 0),
        ({"quick": True}, None),
        ({}, None),
    ],
)
def test_a_sample_of_another_kind_is_not_continued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, object], seed: int | None
) -> None:
    """Another share, or a seed that somebody chose: every segment is looked at, under the seed of this run."""
    storage, state = build(tmp_path / "s"), tmp_path / "state"
    draw(monkeypatch, 11, 12)
    begin_sample(storage, state, 5)
    assert seeds_asked(storage, state, **options) == [seed] * 12


@pytest.mark.parametrize("seed", [0, 11])
def test_a_seed_that_somebody_chose_continues_its_own_sample(tmp_path: Path, seed: int) -> None:
    storage, state = build(tmp_path / "s"), tmp_path / "state"
    begin_sample(storage, state, 5, sample_seed=seed)
    assert seeds_asked(storage, state, sample=0.1, sample_seed=seed) == [seed] * 7


def test_a_sample_without_an_index_reads_from_the_beginning(tmp_path: Path) -> None:
    """A missing index is named and is no reason to read nothing."""
    storage = build(tmp_path / "s", records=2000, per_segment=2000)
    idx(storage, 0, 0).unlink()
    flip(seg(storage, 0, 0), HEADER_SIZE + RECORD * 10 + 500)
    findings, _ = run(age(storage), sample=0.5, partitions=[0])
    assert codes(findings) == ["record-checksum", "index-missing"]


class Clock:
    """Time that passes only when somebody waits."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.waited = 0.0

    def monotonic(self) -> float:
        return self.now

    def wait(self, seconds: float) -> bool:
        self.now += seconds
        self.waited += seconds
        return False


def test_the_rate_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten million bytes at a million a second take ten seconds, less the first burst."""
    clock = Clock()
    monkeypatch.setattr(read_limits.time, "monotonic", clock.monotonic)
    bound = ReadLimits(limit_rate=1_000_000)
    monkeypatch.setattr(bound._stop, "wait", clock.wait)
    for _ in range(100):
        bound.spend(100_000)
    assert 9.5 <= clock.waited <= 10.1


def test_a_pause_ends_when_the_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow rate does not make a short verification long."""
    clock = Clock()
    monkeypatch.setattr(read_limits.time, "monotonic", clock.monotonic)
    bound = ReadLimits(limit_rate=1, max_duration=5)
    monkeypatch.setattr(bound._stop, "wait", clock.wait)
    with pytest.raises(CutShort):
        bound.spend(1_000_000)
    assert clock.waited <= 5


def test_what_waited_for_its_turn_is_not_read_when_the_time_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise all of it is read at once, at whatever rate, behind the end of the time."""
    monkeypatch.setattr(verify_module, "_WORTH_THREADS", 0)
    storage = age(build_directory(tmp_path / "s", {0: 800}, per_segment=100, size=SIZE))
    size = seg(storage, 0, 0).stat().st_size
    findings, summary = run(storage, threads=2, limit_rate=1, max_duration=0.2)
    assert (codes(findings), summary.complete) == ([], False)
    assert 0 < summary.bytes <= 2 * size


@pytest.mark.parametrize("threads", [1, 2])
def test_the_rate_is_kept_for_long_records_as_well(tmp_path: Path, threads: int) -> None:
    """Few rows of them are a whole segment, which was read at once before anybody looked at rate or time."""
    storage = age(build_directory(tmp_path / "s", {0: 200}, per_segment=100, size=100_000))
    findings, summary = run(storage, threads=threads, limit_rate=1_000_000, max_duration=0.2)
    assert (codes(findings), summary.complete) == ([], False)
    assert 0 < summary.bytes <= 2_500_000, "a read of 512 KiB, a record more, and a tenth of a second for each thread"


def test_time_and_wish_are_looked_at_within_a_segment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_limits, "PIECE", 1 << 20)
    storage = age(build_directory(tmp_path / "s", {0: 200}, size=100_000))
    spent: list[int] = []
    spend = ReadLimits.spend

    def noted(self: ReadLimits, amount: int) -> None:
        spent.append(amount)
        spend(self, amount)

    monkeypatch.setattr(ReadLimits, "spend", noted)
    _, summary = run(storage)
    assert summary.complete
    assert sum(spent) == summary.bytes
    assert max(spent) <= 2 << 20


def test_time_is_looked_at_while_damage_is_searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = age(build_directory(tmp_path / "s", {0: 200}, size=SIZE))
    patch(seg(storage, 0, 0), HEADER_SIZE + RECORD * 50, random.Random(7).randbytes(RECORD * 100))
    spend, asked = SearchBudget.spend, 0

    def slow(self: SearchBudget, amount: int) -> None:
        nonlocal asked
        asked += 1
        time.sleep(0.3)
        spend(self, amount)

    monkeypatch.setattr(SearchBudget, "spend", slow)
    findings, summary = run(storage, threads=1, max_duration=0.2)
    assert (codes(findings), summary.complete) == ([], False)
    assert asked == 1


@pytest.mark.parametrize("behind", [100, 0])
def test_the_rate_is_kept_while_damage_is_searched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, behind: int
) -> None:
    """Also for what the search reads several times.  With nothing behind the damage it is a torn tail, which is not counted."""
    rate, records = 100_000, 2000
    storage = age(build_directory(tmp_path / "s", {0: records}, size=SIZE, per_segment=records))
    garbage = random.Random(7).randbytes(RECORD * (records - 50 - behind))
    patch(seg(storage, 0, 0), HEADER_SIZE + RECORD * 50, garbage)
    clock, read_into = Clock(), FileSource.read_into
    read, ahead = 0, [0.0]

    def noted(self: FileSource, offset: int, buffer: memoryview) -> int:
        nonlocal read
        count = read_into(self, offset, buffer)
        read += count
        ahead.append(read - clock.waited * rate)
        return count

    monkeypatch.setattr(FileSource, "read_into", noted)
    monkeypatch.setattr(read_limits.time, "monotonic", clock.monotonic)
    monkeypatch.setattr(threading.Event, "wait", lambda _, seconds: clock.wait(seconds))
    findings, summary = run(storage, threads=1, limit_rate=rate, exclusive=True)
    assert (len(codes(findings)), summary.records) == (1, 50 + behind)
    assert max(ahead) <= 1_000_000, "a read of the scan and one of the search, each of half a mebibyte at most"
    assert clock.waited * rate <= read + 1_000_000


def test_many_damaged_places_cost_no_more_of_the_rate_than_is_read_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For each of them a quarter of a mebibyte was read again to describe it, and waited for: a day for a segment."""
    rate, records = 1_000_000, 2000
    storage = age(build_directory(tmp_path / "s", {0: records}, size=SIZE, per_segment=records))
    for place in range(10, records - 10, 4):
        patch(seg(storage, 0, 0), HEADER_SIZE + RECORD * place + 500, b"damage")
    clock = Clock()
    monkeypatch.setattr(read_limits.time, "monotonic", clock.monotonic)
    monkeypatch.setattr(threading.Event, "wait", lambda _, seconds: clock.wait(seconds))
    findings, _ = run(storage, threads=1, limit_rate=rate, exclusive=True)
    assert len(findings) == 495
    assert clock.waited * rate <= 4 * RECORD * records


@pytest.mark.turns(10)
def test_what_a_search_reads_a_thousand_times_is_not_waited_for_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Damaged headers and no index: for half a megabyte gigabytes were read, and waited for."""
    rate, records = 1_000_000, 600
    storage = age(build_directory(tmp_path / "s", {0: records}, size=SIZE, per_segment=records))
    for place in range(10, records - 10, 4):
        patch(seg(storage, 0, 0), HEADER_SIZE + RECORD * place, random.Random(place).randbytes(36))
    idx(storage, 0, 0).unlink()
    clock = Clock()
    monkeypatch.setattr(read_limits.time, "monotonic", clock.monotonic)
    monkeypatch.setattr(threading.Event, "wait", lambda _, seconds: clock.wait(seconds))
    run(storage, threads=1, limit_rate=rate, exclusive=True)
    assert clock.waited * rate <= 12 * RECORD * records


def test_a_verification_that_runs_out_of_time_is_incomplete_and_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Run after run, until everything is done; what was found stays found."""
    storage = build(tmp_path / "s")
    flip(seg(storage, 0, 0), HEADER_SIZE + RECORD * 50 + 500)
    flip(seg(storage, 1, 300), HEADER_SIZE + RECORD * 50 + 500)
    age(storage)
    expected, whole = run(storage)
    state = tmp_path / "state.json"
    clock, spend = Clock(), ReadLimits.spend
    monkeypatch.setattr(read_limits.time, "monotonic", clock.monotonic)

    def slow_disk(self: ReadLimits, amount: int) -> None:
        clock.now += amount / 1_000_000
        spend(self, amount)

    monkeypatch.setattr(ReadLimits, "spend", slow_disk)
    read, runs = 0, 0
    while True:
        findings, summary = run(storage, resume=state, max_duration=0.3)
        read, runs = read + summary.bytes, runs + 1
        assert findings == expected[: len(findings)]
        if summary.complete:
            break
        assert json.loads(state.read_text())["complete"] is False
        assert runs < 50
    assert runs > 2
    assert findings == expected
    assert (summary.records, summary.segments) == (whole.records, whole.segments)
    assert read < 2 * whole.bytes
    assert json.loads(state.read_text())["complete"] is True
    assert run(storage, resume=state)[1].bytes == whole.bytes, "after a complete run the next one begins anew"


def test_a_segment_that_changed_is_read_again(tmp_path: Path) -> None:
    """Size or time differ from what is remembered."""
    storage = build(tmp_path / "s")
    state = tmp_path / "state.json"
    iterator = verify([storage], VerifyOptions(resume=state, threads=1))
    flip(seg(storage, 1, 500), HEADER_SIZE + 50)
    assert isinstance(next(iterator), Finding)
    iterator.close()  # type: ignore[attr-defined]
    assert len(json.loads(state.read_text())["segments"]) == 12
    path = seg(storage, 0, 100)
    with path.open("r+b") as file:
        file.seek(HEADER_SIZE + 60)
        file.write(b"damaged")
    findings, summary = run(storage, resume=state)
    assert [(one.partition, one.segment) for one in findings] == [(0, 100), (1, 500)]
    assert summary.complete
    assert summary.bytes < 3 * 100 * RECORD


def test_an_interrupt_ends_with_an_incomplete_summary_and_a_saved_state(tmp_path: Path) -> None:
    """Ctrl-C between two segments."""
    storage = build(tmp_path / "s")
    state = tmp_path / "state.json"

    class Impatient:
        done = 0

        def start(self, what: str, total: int) -> None:
            assert total > 1_000_000

        def advance(self, amount: int) -> None:
            self.done += amount
            if self.done > 300_000:
                raise KeyboardInterrupt

    items = list(verify([storage], VerifyOptions(resume=state, threads=1), Impatient()))
    (summary,) = items
    assert isinstance(summary, VerifySummary)
    assert (summary.complete, summary.exit_status_name, summary.status) == (False, "interrupted", "clean")
    assert 1 <= len(json.loads(state.read_text())["segments"]) < 12
    assert run(storage, resume=state)[1].complete


def test_a_state_file_is_never_written_into_what_is_inspected(tmp_path: Path) -> None:
    """Nor over something that is no state file."""
    storage = build(tmp_path / "s", records=10)
    for place in (storage / "state.json", storage / "0" / "state.json"):
        with pytest.raises(InvalidRequestError, match="only read"):
            run(storage, resume=place)
    other = tmp_path / "precious.json"
    for content in ('{"mine": 1}', "[" * 60_000):
        other.write_text(content)
        with pytest.raises(InvalidRequestError, match="not the state"):
            run(storage, resume=other)
        assert other.read_text() == content


@pytest.mark.parametrize(
    "options",
    [
        {"sample": 0.0},
        {"sample": 1.5},
        {"limit_rate": 0},
        {"threads": 0},
        {"max_duration": -1.0},
        {"quick": True, "sample": 0.5},
        {"partitions": [9]},
    ],
)
def test_options_that_cannot_be_meant_are_refused_at_once(tmp_path: Path, options: dict[str, object]) -> None:
    """Before anything is read."""
    with pytest.raises(InvalidRequestError):
        run(build(tmp_path / "s", records=10), **options)


def test_progress_adds_up_to_the_size_of_the_data(tmp_path: Path) -> None:
    """A clean directory: the total is what is announced, less the headers."""
    storage = build(tmp_path / "s")
    seen: list[int] = []

    class Listener:
        def start(self, what: str, total: int) -> None:
            seen.append(-total)

        def advance(self, amount: int) -> None:
            seen.append(amount)

    list(verify([storage], progress=Listener()))
    assert sum(seen) == -12 * HEADER_SIZE


def peak(storage: Path) -> int:
    """Peak resident memory of a verification in a process of its own, in kibibytes."""
    code = (
        "import resource, sys; from pathlib import Path; from waltzctl.engine.inspect.verify import verify\n"
        "*_, summary = verify([Path(sys.argv[1])]); assert summary.complete and not summary.damage, summary\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
    )
    root = Path(__file__).resolve().parents[2]
    return int(subprocess.check_output([sys.executable, "-c", code, str(storage)], cwd=root))


def write_large(path: Path, size: int) -> Path:
    """A storage directory with one segment of `size` bytes, records of 8 KiB, written piece by piece."""
    storage = build_directory(path, {0: 1}, size=8000, local_low_water_mark=0)
    data, index = seg(storage, 0, 0), idx(storage, 0, 0)
    at = data.stat().st_size
    with data.open("ab") as records, index.open("ab") as entries:
        for number in range(1, size // 8040):
            record = Record.make(number, RequestId(1, 2, 0, number), number, number.to_bytes(8) * 1000)
            records.write(record.encode())
            entries.write(at.to_bytes(8))
            at += record.size
    return age(storage)


@pytest.mark.turns(12)
def test_memory_does_not_grow_with_the_size_of_a_segment(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """128 MiB and twice (with --long: 16 times) as much, read in parts by two threads."""
    times = 16 if request.config.getoption("--long") else 2
    low = peak(write_large(tmp_path / "small", 128 << 20))
    high = peak(write_large(tmp_path / "large", times * 128 << 20))
    print(f"peak memory: {low} KiB for 128 MiB, {high} KiB for {times} times as much")
    assert high < 1.2 * low


@pytest.mark.parametrize("options", [{"quick": True}, {"sample": 0.1, "sample_seed": 1}, {}])
@pytest.mark.parametrize("listed", [9, 7, 6, 1])
def test_records_that_were_left_unread_behind_a_short_index_are_not_called_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, listed: int, options: dict[str, object]
) -> None:
    """Three records are read behind the last that the index proves; what lies between these and the next segment is unknown."""
    monkeypatch.setattr(partial, "TAIL", 3 * 60)
    storage = build_directory(tmp_path / "s", {0: 30}, per_segment=10, size=20)
    os.truncate(idx(storage, 0, 10), HEADER_SIZE + 8 * listed)
    assert codes(run(age(storage), **options)[0]) == ["index-short"]


@pytest.mark.parametrize("place", [2, 3, 10, 11, 12, 13])
def test_every_record_of_a_block_that_is_drawn_is_checked_up_to_its_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: int
) -> None:
    """Blocks of a few records; the one that is damaged ends a block, begins one, or stands within one."""
    monkeypatch.setattr(sampling, "BLOCK", 3 * RECORD)
    storage = build_directory(tmp_path / "s", {0: 60}, per_segment=60, size=SIZE)
    flip(seg(storage, 0, 0), HEADER_SIZE + RECORD * place + 41)
    age(storage)
    drawn = 0
    for seed in range(12):
        here = place in drawn_ids(storage, 0.2, seed)
        drawn += here
        told = codes(run(storage, sample=0.2, sample_seed=seed)[0])
        assert told == (["record-checksum"] if here else []), seed
    assert 0 < drawn < 12


def drawn_ids(storage: Path, fraction: float, seed: int) -> list[int]:
    index = IndexReader(BytesSource(idx(storage, 0, 0).read_bytes()), 0)
    chosen = sampling.choose_blocks(index, seg(storage, 0, 0).stat().st_size, fraction, f"{seed}/0/0")
    return [number for first, last in chosen for number in range(first, last)]
