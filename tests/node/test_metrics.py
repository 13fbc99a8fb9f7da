"""What a node counts: rates, samples and buckets, and the two JSON documents and the text that show them."""

from __future__ import annotations

import json
import math
import random
import statistics
import threading
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from tests.golden import GOLDEN, needs_golden
from waltzctl.engine.net.metrics import BUCKETS, RESERVOIR_SIZE, Counter, Histogram, Meter, Sample, Timer, make_sample
from waltzctl.engine.net.metrics_json import indented, registry, report
from waltzctl.engine.net.prometheus import exposition, prefers_text
from waltzctl.engine.node.node_collector import NodeCollector, NodeSurroundings
from waltzctl.engine.node.node_metrics import NodeMetrics, NodePartitionMetrics, PartitionGauges
from waltzctl.engine.node.readings import NodePartitionReading, NodeReading


class Clock:
    """A monotonic clock that goes where the test wants it."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


# --- rates ------------------------------------------------------------------------------------------------------------


def test_a_meter_has_no_weighted_rate_before_its_first_tick() -> None:
    clock = Clock()
    meter = Meter(clock)
    meter.mark(7)
    clock.now += 2
    rates = meter.rates()
    assert (rates.count, rates.mean) == (7, 3.5)
    assert (rates.one_minute, rates.five_minutes, rates.fifteen_minutes) == (0.0, 0.0, 0.0)


@pytest.mark.parametrize(("elapsed", "mean"), [(0.0, 0.0), (0.5, 14.0), (1.0, 7.0), (700.0, 0.01)])
def test_the_mean_is_over_the_time_since_the_beginning(elapsed: float, mean: float) -> None:
    clock = Clock()
    meter = Meter(clock)
    meter.mark(7)
    clock.now += elapsed
    assert meter.rates().mean == pytest.approx(mean)


def test_the_first_tick_takes_the_rate_of_its_interval_and_later_ones_approach_what_goes_on() -> None:
    """The release's rule: a new average is what was seen, then each tick moves by 1 - exp(-5/60/minutes)."""
    clock = Clock()
    meter = Meter(clock)
    meter.mark(50)
    clock.now += 5.001
    assert meter.rates().one_minute == pytest.approx(10.0)
    meter.mark(100)
    clock.now += 5.001
    moved = 10 + (1 - math.exp(-5 / 60)) * (20 - 10)
    assert meter.rates().one_minute == pytest.approx(moved)


@pytest.mark.turns(10)
@given(st.lists(st.tuples(st.integers(0, 1000), st.floats(0.0, 2000.0)), max_size=12))
def test_a_meter_that_was_silent_is_as_one_that_was_looked_at_all_the_time(steps: list[tuple[int, float]]) -> None:
    """Whole intervals are taken in at once; nobody needs to tick while nothing happens."""
    sleepy_clock, watched_clock = Clock(0.0), Clock(0.0)
    sleepy, watched = Meter(sleepy_clock), Meter(watched_clock)
    for count, silence in steps:
        sleepy.mark(count)
        watched.mark(count)
        sleepy_clock.now += silence
        while watched_clock.now < sleepy_clock.now:
            watched_clock.now = min(sleepy_clock.now, watched_clock.now + 5.0)
            watched.rates()
    seen, expected = sleepy.rates(), watched.rates()
    assert seen.count == expected.count
    for name in ("mean", "one_minute", "five_minutes", "fifteen_minutes"):
        assert getattr(seen, name) == pytest.approx(getattr(expected, name), rel=1e-6, abs=1e-9)


def test_what_happens_between_two_intervals_belongs_to_the_second_whoever_looked_before() -> None:
    """A look in between must not decide where an event of the border counts."""
    found = []
    for looks in ((), (12.0,), (9.0, 12.0, 14.0)):
        clock = Clock(4.0)
        meter = Meter(clock)
        for now in looks:
            clock.now = now
            meter.rates()
        clock.now = 14.0  # two intervals are over, to the moment
        meter.mark(10)
        clock.now = 19.0
        found.append(meter.rates())
    assert found == [found[0]] * 3
    first = 10 / 5.0 * (1 - math.exp(-5 / 60))
    assert (found[0].count, found[0].mean, found[0].one_minute) == (10, 10 / 15, pytest.approx(first))


def test_a_year_of_silence_costs_nothing_and_overflows_nothing() -> None:
    clock = Clock()
    timer = Timer(clock)
    timer.update(0.5, 1000)
    clock.now += 366 * 86400
    timer.update(0.25)
    sample = timer.sample()
    assert timer.count == 1001
    assert 0.25 in sample.values
    assert sample.mean == pytest.approx(0.25), "what is a year old weighs nothing"
    assert timer.rates().one_minute == 0.0


# --- samples ----------------------------------------------------------------------------------------------------------


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=200))
def test_a_sample_of_few_values_is_all_of_them(values: list[float]) -> None:
    histogram = Histogram(Clock())
    for value in values:
        histogram.update(value)
    sample = histogram.sample()
    assert list(sample.values) == sorted(values)
    assert (sample.min, sample.max) == (min(values), max(values))
    assert sample.mean == pytest.approx(statistics.fmean(values), rel=1e-6, abs=1e-6)
    assert sample.stddev == pytest.approx(statistics.pstdev(values), rel=1e-6, abs=1e-2)
    assert histogram.sum == pytest.approx(math.fsum(values), rel=1e-9)
    parts = [sample.quantile(part / 20) for part in range(21)]
    assert parts == sorted(parts)
    assert (parts[0], parts[-1]) == (min(values), max(values))


def test_a_sample_is_bounded_and_a_run_of_equal_values_gets_its_share() -> None:
    """`update(value, count=n)` draws as n single updates would: the share of a value is its share of the stream."""
    histogram = Histogram(Clock())
    source = random.Random(4)
    shares = {1.0: 0, 2.0: 0, 3.0: 0}
    for _ in range(3000):
        value, count = source.choice([1.0, 2.0, 3.0]), source.choice([1, 2, 50, 1000])
        histogram.update(value, count)
        shares[value] += count
    sample = histogram.sample()
    total = sum(shares.values())
    assert len(sample.values) == RESERVOIR_SIZE
    assert histogram.count == total
    assert math.fsum(sample.weights) == pytest.approx(1.0)
    for value, count in shares.items():
        expected = count / total
        # six standard deviations of a draw of so many
        tolerance = 6 * math.sqrt(expected * (1 - expected) / RESERVOIR_SIZE)
        assert sample.values.count(value) / RESERVOIR_SIZE == pytest.approx(expected, abs=tolerance)


def test_a_sample_forgets() -> None:
    """Ten minutes weigh exp(9): of as many old values hardly one is left."""
    clock = Clock()
    timer = Timer(clock)
    for _ in range(2000):
        timer.update(1.0)
    clock.now += 600
    for _ in range(2000):
        timer.update(2.0)
    sample = timer.sample()
    assert sample.values.count(1.0) < 20
    assert sample.mean == pytest.approx(2.0, abs=0.001)


def test_nothing_was_seen() -> None:
    empty = Timer(Clock()).sample()
    assert empty == Sample((), ())
    assert (empty.min, empty.max, empty.mean, empty.stddev, empty.quantile(0.5)) == (0, 0, 0, 0, 0)
    assert make_sample(np.empty((0, 3))) == empty


@given(st.lists(st.tuples(st.floats(0, 100), st.integers(1, 50)), max_size=40))
def test_buckets_count_everything_once(updates: list[tuple[float, int]]) -> None:
    timer = Timer(Clock())
    for seconds, count in updates:
        timer.update(seconds, count)
    buckets = timer.buckets()
    assert buckets.count == timer.count == sum(count for _, count in updates)
    assert buckets.sum == pytest.approx(sum(seconds * count for seconds, count in updates))
    for bound, seen in zip(BUCKETS, buckets.cumulative, strict=False):
        assert seen == sum(count for seconds, count in updates if seconds <= bound)


def test_what_cannot_be_a_duration_is_not_counted() -> None:
    """A clock that went backwards, or a run of nothing."""
    timer = Timer(Clock())
    timer.update(-0.001)
    timer.update(1.0, 0)
    assert (timer.count, timer.sample().values, timer.buckets().count) == (0, (), 0)


# --- threads ----------------------------------------------------------------------------------------------------------


def test_nothing_is_lost_between_threads() -> None:
    metrics = NodeMetrics()
    rounds, workers = 400, 4
    barrier = threading.Barrier(workers)

    def work(number: int) -> None:
        barrier.wait()
        for step in range(rounds):
            partition = metrics.partition(step % 3)
            partition.append.mark(2)
            partition.append_latency.update(0.001 * number, 3)
            partition.record_request.increment()
            if step % 100 == 0:
                registry(reading(metrics).metrics())

    threads = [threading.Thread(target=work, args=(number,)) for number in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = metrics.partitions().values()
    assert sum(one.append.count for one in found) == 2 * rounds * workers
    assert sum(one.append_latency.count for one in found) == 3 * rounds * workers
    assert sum(one.append_latency.buckets().count for one in found) == 3 * rounds * workers
    assert sum(one.record_request.count for one in found) == rounds * workers


# --- what commits note ------------------------------------------------------------------------------------------------

_WHILE_NOTED = ("append", "append_latency", "flush_latency", "flush_requests")


def committed(metrics: NodePartitionMetrics, count: int) -> None:
    for number in range(count):
        metrics.committed(2, 0.25, 0.5 + number % 2)


def shown(metrics: NodePartitionMetrics) -> list[object]:
    append, waited, flush, requests = (getattr(metrics, name) for name in _WHILE_NOTED)
    return [
        *(append.rates(), waited.rates(), flush.rates(), requests.count, requests.sum),
        *(one.buckets().cumulative for one in (waited, flush)),
        *(round(one.buckets().sum, 9) for one in (waited, flush)),
        *(one.sample().values for one in (waited, flush, requests)),
    ]


@given(
    st.lists(
        st.tuples(
            st.integers(1, 30),
            st.sampled_from([-0.001, 0.0, 0.003, 0.7]),
            st.sampled_from([0.0, 0.002, 1.5]),
            st.sampled_from([0.0, 0.5, 5.0, 17.5]),
        ),
        max_size=20,
    )
)
def test_commits_count_as_if_each_had_been_told_by_single_updates(
    commits: list[tuple[int, float, float, float]],
) -> None:
    """What was answered before it came, as a clock may say, counts as a request of which nothing is known."""
    clock = Clock()
    noting, telling = NodePartitionMetrics(3, clock), NodePartitionMetrics(3, clock)
    for requests, waited, seconds, step in commits:
        clock.now += step
        noting.committed(requests, waited, seconds)
        telling.append.mark(requests)
        telling.append_latency.update(waited, requests)
        telling.flush_latency.update(seconds)
        telling.flush_requests.update(requests)
    for _ in range(2):
        assert shown(noting) == shown(telling)
        clock.now += 5.0


@pytest.mark.turns(8)
@given(
    st.lists(
        st.tuples(
            st.lists(st.tuples(st.sampled_from([-0.001, 0.0, 0.003, 0.7]), st.integers(0, 30)), max_size=4),
            st.integers(0, 50),
            st.sampled_from([None, 0.0, 0.002, 1.5]),
            st.sampled_from([0.0, 0.5, 5.0, 17.5]),
        ),
        max_size=20,
    )
)
def test_what_was_judged_together_counts_as_if_it_had_been_told_by_single_updates(
    judged: list[tuple[list[tuple[float, int]], int, float | None, float]],
) -> None:
    """Refused appends wait for nothing that is counted, and a commit of refused ones alone flushes nothing."""
    clock = Clock()
    noting, telling = NodePartitionMetrics(3, clock), NodePartitionMetrics(3, clock)
    for waits, tried, seconds, step in judged:
        clock.now += step
        admitted = sum(requests for _, requests in waits)
        flushed = seconds if admitted else None
        noting.answered(waits, tried, flushed)
        assert noting._append_latency.count == 0, "nothing is taken in before somebody looks"
        telling.append.mark(tried)
        for waited, requests in waits:
            telling.append_latency.update(waited, requests)
        if flushed is not None:
            telling.flush_latency.update(flushed)
            telling.flush_requests.update(admitted)
    for _ in range(2):
        assert shown(noting) == shown(telling)
        clock.now += 5.0


@pytest.mark.parametrize(("count", "waiting"), [(1, 1), (255, 255), (256, 0), (257, 1), (512, 0)])
def test_commits_are_taken_in_many_at_a_time(count: int, waiting: int) -> None:
    metrics = NodePartitionMetrics(3, Clock())
    committed(metrics, count)
    assert len(metrics._buffered) == waiting
    assert metrics._append.count == metrics._append_latency.count == 2 * (count - waiting)
    assert metrics._flush_latency.count == metrics._flush_requests.count == count - waiting


@pytest.mark.parametrize(("attribute", "count"), [*zip(_WHILE_NOTED, (6, 6, 3, 3), strict=True)])
def test_commits_are_taken_in_when_somebody_looks(attribute: str, count: int) -> None:
    """At any of what they count towards, and at each of it when it is told of something else."""
    metrics = NodePartitionMetrics(3, Clock())
    committed(metrics, 3)
    assert getattr(metrics, attribute).count == count
    assert metrics._buffered == []
    assert (metrics._append.count, metrics._flush_requests.count) == (6, 3)


def test_a_commit_that_is_noted_while_others_are_taken_in_waits_for_the_next_time() -> None:
    class Meanwhile(list[Any]):
        def copy(self) -> list[Any]:
            found = super().copy()
            committed(metrics, 1)
            return found

    metrics = NodePartitionMetrics(3, Clock())
    metrics._buffered = Meanwhile()
    committed(metrics, 5)
    assert metrics.append.count == 10
    assert len(metrics._buffered) == 1
    metrics._buffered = list(metrics._buffered)
    assert (metrics.append.count, metrics.flush_latency.count) == (12, 6)


def test_who_looks_while_another_thread_takes_commits_in_sees_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its peer was answered, and asks next what was counted of it."""
    metrics = NodePartitionMetrics(3, Clock())
    committed(metrics, 2)
    seen: list[int] = []
    looking = threading.Thread(target=lambda: seen.append(metrics.append.count))
    real = Meter.mark_all

    def mark_all(meter: Meter, counts: Any, times: Any) -> None:
        if meter is metrics._append:
            looking.start()
            looking.join(0.05)
        real(meter, counts, times)

    monkeypatch.setattr(Meter, "mark_all", mark_all)
    metrics.flush_requests  # noqa: B018
    looking.join()
    assert seen == [4]


def test_no_commit_is_lost_between_threads_that_note_and_threads_that_look() -> None:
    metrics = NodePartitionMetrics(3)
    rounds, workers = 2000, 3
    barrier, over = threading.Barrier(2 * workers), threading.Event()

    def note() -> None:
        barrier.wait()
        committed(metrics, rounds)

    def look() -> None:
        barrier.wait()
        while not over.is_set():
            shown(metrics)

    noting = [threading.Thread(target=note) for _ in range(workers)]
    looking = [threading.Thread(target=look) for _ in range(workers)]
    for thread in (*noting, *looking):
        thread.start()
    for thread in noting:
        thread.join()
    over.set()
    for thread in looking:
        thread.join()
    total = rounds * workers
    assert (metrics.append.count, metrics.append_latency.count) == (2 * total, 2 * total)
    assert (metrics.append_latency.buckets().count, metrics.flush_latency.buckets().count) == (2 * total, total)
    assert (metrics.flush_latency.count, metrics.flush_requests.count) == (total, total)
    assert metrics.flush_requests.sum == 2 * total


def test_a_partition_that_was_given_up_begins_anew() -> None:
    metrics = NodeMetrics()
    old = metrics.partition(4)
    old.record_request.increment()
    metrics.forget(4)
    old.record_request.increment()
    assert metrics.partitions() == {}
    assert metrics.partition(4).record_request.count == 0
    metrics.forget(99)


# --- the documents ----------------------------------------------------------------------------------------------------


def gauges(number: int) -> PartitionGauges:
    return PartitionGauges(5, number + 1, number + 2, number + 3, number + 4, number + 5, number + 6)


def reading(metrics: NodeMetrics) -> NodeReading:
    found = metrics.partitions()
    return NodeReading(
        "1.2.3", tuple(found), tuple(NodePartitionReading(number, one, gauges(number)) for number, one in found.items())
    )


def busy() -> NodeReading:
    """Partitions 0 and 1, of which only 0 saw anything, as in the recorded answer."""
    clock = Clock()
    metrics = NodeMetrics(clock)
    metrics.partition(1)
    zero = metrics.partition(0)
    for microseconds in (58, 66, 218, 698, 705, 727, 3255):
        zero.append.mark()
        zero.append_latency.update(microseconds / 1e6)
    zero.record_list_request.increment(5)
    clock.now += 2
    return reading(metrics)


OURS = {"waltz-storage-num-partitions", "waltz-storage-partition-ids", "waltz-version-id"}
"""The node's own metrics: a whole released node has them too, the recording was made of its ports alone."""


def shape(value: Any) -> Any:
    """Keys and kinds of a document; lists by the kinds that occur in them."""
    if isinstance(value, dict):
        return {name: shape(one) for name, one in value.items()}
    if isinstance(value, list):
        return sorted({json.dumps(shape(one)) for one in value})
    return type(value).__name__


def recorded() -> str:
    assert GOLDEN is not None
    lines = (GOLDEN / "wire" / "storage-frames.jsonl").read_text().splitlines()
    frames = [json.loads(line) for line in lines]
    [answer] = [one for one in frames if one["name"] == "MetricsResponse"]
    return str(answer["fields"]["metricsJson"])


@needs_golden
def test_the_registry_has_the_keys_and_kinds_of_the_recorded_answer() -> None:
    ours, theirs = json.loads(registry(busy().metrics())), json.loads(recorded())
    assert list(ours) == list(theirs), "in the same order"
    named = [one for one in ours["ids"] if one["name"] not in OURS]
    assert sorted(named, key=lambda one: one["fullName"]) == sorted(theirs["ids"], key=lambda one: one["fullName"])
    for section in ("metrics", "gauges", "counters", "histograms", "meters", "timers"):
        kept = {name: one for name, one in ours[section].items() if name.rpartition(".")[2] not in OURS}
        assert shape(kept) == shape(theirs[section]), section
        assert [list(one) for _, one in sorted(kept.items())] == [
            list(one) for _, one in sorted(theirs[section].items())
        ]
    timer = "waltz-storage.partition-0.append-latency"
    assert list(ours["timers"][timer]["snapshot"]) == list(theirs["timers"][timer]["snapshot"])


@needs_golden
def test_documents_are_laid_out_as_the_release_lays_them_out() -> None:
    """To the last blank: the recorded answer, read and written again, is itself."""
    text = recorded()
    assert indented(json.loads(text)) == text


def test_the_registry_tells_what_the_released_list_tool_reads() -> None:
    """It takes the partitions from one gauge and their state from others, by these names."""
    found = json.loads(registry(busy().metrics()))["gauges"]
    assert found["waltz-storage.waltz-storage-partition-ids"]["value"] == [0, 1]
    assert found["waltz-storage.waltz-storage-num-partitions"]["value"] == 2
    assert found["waltz-storage.waltz-version-id"]["value"] == "1.2.3"
    for number in (0, 1):
        values = {
            name: found[f"waltz-storage.partition-{number}.{name}"]["value"]
            for name in ("session-id", "low-water-mark", "local-low-water-mark", "flags")
        }
        expected = gauges(number)
        assert values == {
            "session-id": expected.session_id,
            "low-water-mark": expected.low_water_mark,
            "local-low-water-mark": expected.local_low_water_mark,
            "flags": 5,
        }


def test_a_timer_of_the_registry_counts_in_nanoseconds() -> None:
    found = json.loads(registry(busy().metrics()))["timers"]["waltz-storage.partition-0.append-latency"]
    assert found["count"] == 7
    assert found["snapshot"]["values"] == [58_000, 66_000, 218_000, 698_000, 705_000, 727_000, 3_255_000]
    assert (found["snapshot"]["min"], found["snapshot"]["max"]) == (58_000, 3_255_000)
    assert found["snapshot"]["median"] == 698_000.0
    assert found["snapshot"]["99thPercentile"] == 3_255_000.0


def test_the_report_has_the_kinds_keys_and_units_of_the_release() -> None:
    found = json.loads(report(busy().metrics()))
    assert list(found) == ["version", "gauges", "counters", "histograms", "meters", "timers"]
    assert found["version"] == "4.0.0"
    assert found["histograms"] == {}
    prefix = "waltz-storage.partition-0."
    assert found["counters"][f"{prefix}record-list-request"] == {"count": 5}
    assert list(found["meters"][f"{prefix}append"]) == [
        "count", "m15_rate", "m1_rate", "m5_rate", "mean_rate", "units"
    ]  # fmt: skip
    assert found["meters"][f"{prefix}append"]["units"] == "events/second"
    assert found["meters"][f"{prefix}append"]["mean_rate"] == 3.5
    timer = found["timers"][f"{prefix}append-latency"]
    assert list(timer) == [
        "count", "max", "mean", "min", "p50", "p75", "p95", "p98", "p99", "p999", "stddev",
        "m15_rate", "m1_rate", "m5_rate", "mean_rate", "duration_units", "rate_units",
    ]  # fmt: skip
    assert (timer["min"], timer["p50"], timer["max"]) == (0.000058, 0.000698, 0.003255)
    assert (timer["duration_units"], timer["rate_units"]) == ("seconds", "calls/second")
    assert json.loads(report(busy().metrics(), pretty=True)).keys() == found.keys()
    assert "\n" not in report(busy().metrics())


def test_flush_metrics_are_ours_and_stay_out_of_the_released_documents() -> None:
    assert "flush" not in registry(busy().metrics()) + report(busy().metrics())


# --- Prometheus -------------------------------------------------------------------------------------------------------

TEXT = "text/plain; version=0.0.4"
OPEN = "application/openmetrics-text; version=1.0.0"


@pytest.mark.parametrize(("accept", "parse"), [(TEXT, parse_text), (OPEN, parse_openmetrics)])
def test_the_text_is_read_by_the_official_parser(accept: str, parse: Any) -> None:
    surroundings = NodeSurroundings(
        healthy=False, connections=[("data", 3), ("admin", 0)], free_bytes=12345, failed=frozenset({1})
    )
    body, content_type = exposition(NodeCollector(busy(), surroundings), accept)
    assert content_type.startswith(accept.partition(";")[0])
    families = {family.name: family for family in parse(body.decode())}
    samples = {(one.name, tuple(sorted(one.labels.items()))): one.value for f in families.values() for one in f.samples}

    def value(name: str, **labels: str) -> float:
        return float(samples[name, tuple(sorted(labels.items()))])

    assert value("waltz_storage_info", version="1.2.3") == 1
    assert value("waltz_storage_partitions") == 2
    assert value("waltz_storage_healthy") == 0
    assert value("waltz_storage_disk_free_bytes") == 12345
    assert value("waltz_storage_connections", port="data") == 3
    assert value("waltz_storage_failed", partition="1") == 1
    assert value("waltz_storage_failed", partition="0") == 0
    assert value("waltz_storage_available", partition="0") == 1
    assert value("waltz_storage_max_transaction_id", partition="1") == gauges(1).max_transaction_id
    assert value("waltz_storage_requests_total", partition="0", request="append") == 7
    assert value("waltz_storage_requests_total", partition="0", request="record-list") == 5
    assert value("waltz_storage_append_latency_seconds_count", partition="0") == 7
    assert value("waltz_storage_append_latency_seconds_sum", partition="0") == pytest.approx(0.005727)
    assert value("waltz_storage_append_latency_seconds_bucket", partition="0", le="0.0001") == 2
    assert value("waltz_storage_append_latency_seconds_bucket", partition="0", le="+Inf") == 7
    latencies = [
        one.value
        for one in families["waltz_storage_append_latency_seconds"].samples
        if one.name.endswith("_bucket") and one.labels["partition"] == "0"
    ]
    assert all(before <= after for before, after in pairwise(latencies))
    assert any(name.startswith("process_") for name in families), "the process itself is shown as well"
    assert {family.type for family in families.values()} <= {"gauge", "counter", "histogram", "info"}


def test_two_nodes_in_one_process_do_not_meet() -> None:
    first, _ = exposition(NodeCollector(busy(), NodeSurroundings()), TEXT)
    second, _ = exposition(NodeCollector(reading(NodeMetrics()), NodeSurroundings()), TEXT)
    assert b'partition="0"' in first
    assert b'partition="0"' not in second


PROMETHEUS_ACCEPT = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,application/openmetrics-text;version=0.0.1;q=0.4,"
    "text/plain;version=1.0.0;escaping=allow-utf-8;q=0.3,text/plain;version=0.0.4;q=0.2,*/*;q=0.1"
)


@pytest.mark.parametrize(
    ("accept", "text"),
    [
        ("", False),
        ("*/*", False),
        ("application/json", False),
        ("application/json, text/plain;q=0.9", False),
        ("application/json, text/plain, */*", False),
        ("text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8", False),
        ("text/plain;q=0", False),
        ("text/plain;q=nonsense", False),
        ("text/plain", True),
        ("TEXT/PLAIN; version=0.0.4", True),
        ("application/openmetrics-text", True),
        (PROMETHEUS_ACCEPT, True),
        ("application/json;q=0.1, text/plain;q=0.2", True),
        ("text/plain;q=0.9, application/json;q=0.5, text/*;q=0.1", True),
        ("application/json;q=0.9, text/plain;q=0.5, */*;q=0.1", False),
        ("text/plain;q=5, application/json", False),
        ("text/plain;q=0.1, application/json;q=-5", True),
        (",;;=,q=1", False),
    ],
)
def test_who_is_answered_text(accept: str, text: bool) -> None:
    """JSON unless text is liked better: that is what a released node answers."""
    assert prefers_text(accept) is text


@given(st.text())
def test_no_accept_header_is_too_odd(accept: str) -> None:
    assert prefers_text(accept) in (True, False)


def test_a_counter_counts() -> None:
    counter = Counter()
    counter.increment()
    counter.increment(41)
    assert counter.count == 42
