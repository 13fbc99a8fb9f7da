"""What is computed from values, compared as a whole: samples, the documents of metrics, kinds of settings, lines of the log."""

from __future__ import annotations

import json
import logging
import math
import warnings
from dataclasses import dataclass
from itertools import accumulate, islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from waltzctl.engine.errors import InvalidOptionsError
from waltzctl.engine.net import logs
from waltzctl.engine.net.graphite import report_lines
from waltzctl.engine.net.logs import Line, NodeLog, Throttle, human_line, journal_line, json_line
from waltzctl.engine.net.metrics import (
    BUCKETS,
    RESERVOIR_SIZE,
    Counter,
    Gauge,
    Histogram,
    Meter,
    NamedMetric,
    Rates,
    Reservoir,
    Sample,
    Timer,
    make_sample,
)
from waltzctl.engine.net.metrics_json import compact, indented, registry, report
from waltzctl.engine.net.notify import Notifier
from waltzctl.engine.net.setting_kinds import (
    COUNT,
    FILLED_TEXT,
    MILLISECONDS,
    PATH,
    PORT,
    PORT_OR_OFF,
    SECONDS,
    SIZE,
    SWITCH,
    SettingKind,
)
from waltzctl.engine.net.settings import (
    Option,
    Reloaded,
    Settings,
    camel_case,
    check_bounds,
    group,
    needed,
    reload_fields,
    reloadable_fields,
    setting,
)

# ---- samples ------------------------------------------------------------------------------------------------------------

FOUR = Sample((1.0, 2.0, 4.0, 8.0), (0.125, 0.25, 0.125, 0.5))


def test_a_sample_is_weighted() -> None:
    assert (FOUR.min, FOUR.max, FOUR.mean) == (1.0, 8.0, 5.125)
    assert FOUR.stddev == math.sqrt(0.125 * 4.125**2 + 0.25 * 3.125**2 + 0.125 * 1.125**2 + 0.5 * 2.875**2)
    parts = (0.0, 0.1, 0.125, 0.3, 0.375, 0.4, 0.5, 0.9, 1.0)
    assert [FOUR.quantile(part) for part in parts] == [1.0, 1.0, 2.0, 2.0, 4.0, 4.0, 8.0, 8.0, 8.0]
    assert (Sample((3.0,), (1.0,)).stddev, Sample((), ()).stddev, Sample((), ()).quantile(0.5)) == (0.0, 0.0, 0.0)
    assert Sample((2.0, 4.0), (0.5, 0.5)).stddev == 1.0


def test_older_entries_weigh_less() -> None:
    newest = 0.015 * 1000
    found = make_sample(np.array([(1.0, newest, 7.0), (2.0, newest - math.log(3), 5.0)]))
    assert found.values == (5.0, 7.0)
    assert found.weights == pytest.approx((0.25, 0.75))


class Drawn:
    """Draws that are said in advance; `asked`: how many were to be made, with which chance."""

    def __init__(self, binomial: list[list[int]], uniform: list[list[float]]) -> None:
        self.asked: list[tuple[list[int], list[float]]] = []
        self._binomial, self._uniform = iter(binomial), iter(uniform)

    def binomial(self, n: Any, p: Any) -> Any:
        self.asked.append((n.tolist(), p.tolist()))
        return np.array(next(self._binomial))

    def random(self, size: int) -> Any:
        drawn = next(self._uniform)
        assert len(drawn) == size
        return np.array(drawn)


def arrays(*updates: tuple[float, float, float]) -> Any:
    return np.array(updates).T


def test_a_reservoir_keeps_those_of_the_highest_priority() -> None:
    """A priority is the weight's logarithm less that of a draw; once it is full, only draws that get in are made."""
    draws = Drawn([[1, 1], [0, 3]], [[0.5, 0.9], [0.0, 0.75, 0.5]])
    reservoir = Reservoir(2, draws)
    reservoir.update(*arrays((1.0, 1, 0.0), (2.0, 1, 0.0)))
    assert sorted(map(tuple, reservoir.entries().tolist())) == pytest.approx(
        [(-math.log(0.5), 0.0, 1.0), (-math.log(1 - 0.9), 0.0, 2.0)]
    )
    before = reservoir.entries()
    reservoir.update(*arrays((3.0, 1, -20.0), (4.0, 9, 20.0)))
    # a draw of weight w gets in below exp(w - lowest)
    lowest = -math.log(0.5)
    assert draws.asked == [
        ([1, 1], [1.0, 1.0]),
        ([1, 9], pytest.approx([math.exp(-0.3 - lowest), math.exp(0.3 - lowest)])),
    ]
    chance = math.exp(0.3 - lowest)
    made = [0.3 - math.log(chance * left) for left in (1.0, 0.25, 0.5)]
    assert made[0] == pytest.approx(lowest), "the largest draw that is made just reaches what was there"
    kept = sorted([*made, -math.log(1 - 0.9)], reverse=True)[:2]
    assert sorted(reservoir.entries()[:, 0].tolist(), reverse=True) == pytest.approx(kept)
    assert len(before) == 2, "what was given out stays as it was"
    assert before[:, 2].tolist() == [1.0, 2.0]


def test_what_weighs_more_than_all_that_is_there_always_gets_in() -> None:
    draws = Drawn([[1], [1]], [[0.5], [0.5]])
    reservoir = Reservoir(1, draws)
    reservoir.update(*arrays((1.0, 1, 0.0)))
    reservoir.update(*arrays((2.0, 1, 1e9)))
    assert draws.asked[1] == ([1], [1.0])
    assert reservoir.entries()[:, 2].tolist() == [2.0]


def test_a_reservoir_keeps_as_many_as_that_of_the_release() -> None:
    reservoir = Reservoir()
    for value in range(1100):
        reservoir.update(*arrays((value, 1, 0.0)))
        assert len(reservoir.entries()) == min(value + 1, 1028)
    reservoir.update(*arrays(*[(5.0, 700, 1.0)] * 3))
    assert len(reservoir.entries()) == 1028


@pytest.mark.parametrize(
    ("updates", "waiting"), [((1,) * 127, 127), ((1,) * 128, 0), ((1, 1023), 2), ((1, 1024), 0), ((200,) * 3, 3)]
)
def test_values_are_taken_in_many_at_a_time_or_when_somebody_looks(updates: tuple[int, ...], waiting: int) -> None:
    timer, histogram = Timer(Clock()), Histogram(Clock())
    for count in updates:
        timer.update(0.5, count)
        histogram.update(0.5, count)
    assert (len(timer._buffered), len(histogram._buffered)) == (waiting, waiting)
    total = sum(updates)
    assert (timer.count, timer.buckets().count, timer.buckets().sum) == (total, total, total / 2)
    sampled = min(total, RESERVOIR_SIZE)
    assert (histogram.count, histogram.sum, len(histogram.sample().values)) == (total, total / 2, sampled)
    assert (timer._buffered, histogram._buffered) == ([], [])


# ---- what is told later -------------------------------------------------------------------------------------------------

_STEPS = st.sampled_from([0.0, 0.125, 1.0, 4.875, 5.0, 7.5, 23.0, 61.5])
"""Within a tick, up to the next, and over silent ones; without fractions that a sum would round."""
_EVENTS = st.lists(st.tuples(st.floats(-0.5, 20.0), st.integers(0, 400), _STEPS), max_size=12)
"""Values, how often each, and how long after the one before."""


def timed(begun: float, events: list[tuple[float, int, float]]) -> list[tuple[float, int, float]]:
    """The events with the time of each in the place of its step."""
    times = accumulate((step for _, _, step in events), initial=begun)
    return [(value, count, when) for (value, count, _), when in zip(events, islice(times, 1, None), strict=True)]


def columns(noted: list[tuple[float, int, float]]) -> Any:
    return np.array(noted, np.float64).reshape(-1, 3).T


@given(_EVENTS, _EVENTS, st.booleans())
def test_a_meter_that_is_told_later_is_as_one_that_was_told_at_once(
    first: list[tuple[float, int, float]], second: list[tuple[float, int, float]], asked: bool
) -> None:
    """Whether somebody asked for its rates in between or not."""
    clock = Clock()
    later, at_once = Meter(clock), Meter(clock)
    for events in (first, second):
        noted = timed(clock.now, events)
        for _, count, when in noted:
            clock.now = when
            at_once.mark(count)
        _, counts, times = columns(noted)
        later.mark_all(counts, times)
        assert later.count == at_once.count
        if asked:
            clock.now += 2.5
            assert later.rates() == at_once.rates()
    for _ in range(3):
        assert later.rates() == at_once.rates()
        clock.now += 5.0


def test_what_is_told_to_a_meter_behind_its_tick_belongs_to_the_present_interval() -> None:
    """Somebody asked for the rates between an event and its being told: it is not lost, and the tick is not made again."""
    clock = Clock()
    meter = Meter(clock)
    begun = clock.now
    meter.mark(10)
    clock.now = begun + 6.0
    assert meter.rates().one_minute == 2.0
    meter.mark_all(np.array([3.0, 4.0, 5.0]), np.array([begun + 4.0, begun + 4.5, begun + 9.0]))
    assert meter.count == 22
    clock.now = begun + 10.0
    assert meter.rates().one_minute == pytest.approx(2.0 + (1 - math.exp(-5 / 60)) * (12 / 5 - 2.0))


@pytest.mark.turns(10)
@given(_EVENTS, _EVENTS)
def test_a_timer_and_a_histogram_that_are_told_later_are_as_those_that_were_told_at_once(
    single: list[tuple[float, int, float]], together: list[tuple[float, int, float]]
) -> None:
    """Also behind single values that are noted and not taken in yet."""
    clock = Clock()
    timers, histograms = (Timer(clock), Timer(clock)), (Histogram(clock), Histogram(clock))
    for value, count, when in timed(clock.now, single):
        clock.now = when
        for timer, histogram in zip(timers, histograms, strict=True):
            timer.update(value, count)
            histogram.update(value, count)
    noted = timed(clock.now, together)
    for value, count, when in noted:
        clock.now = when
        timers[1].update(value, count)
        histograms[1].update(value, count)
    timers[0].update_all(*columns(noted))
    histograms[0].update_all(*columns(noted))
    later, at_once = timers[0].buckets(), timers[1].buckets()
    assert (later.cumulative, later.sum) == (at_once.cumulative, pytest.approx(at_once.sum, abs=1e-9))
    assert (timers[0].count, timers[0].rates()) == (timers[1].count, timers[1].rates())
    assert (histograms[0].count, histograms[0].sum) == (histograms[1].count, pytest.approx(histograms[1].sum, abs=1e-9))
    for one, other in (timers, histograms):
        samples = one.sample(), other.sample()
        assert len(samples[0].values) == len(samples[1].values) == min(one.count, 1028)
        if one.count <= 1028:
            assert samples[0].values == samples[1].values
            assert samples[0].weights == pytest.approx(samples[1].weights)


def test_what_was_noted_before_is_taken_in_before() -> None:
    timer, histogram = Timer(Clock()), Histogram(Clock())
    for metric in (timer, histogram):
        metric.update(0.5)
        metric.update_all(*columns([(0.25, 1, 1000.0)]))
        assert metric._buffered == []
        assert metric._reservoir.entries()[:, 2].tolist() == [0.5, 0.25]


def test_what_cannot_be_a_duration_is_left_out_of_what_a_timer_is_told_and_nothing_else() -> None:
    timer = Timer(Clock())
    timer.update_all(*columns([(-0.001, 3, 1000.0), (0.0, 2, 1000.0), (1.0, 0, 1000.0), (2.0, 1, 1001.0)]))
    assert (timer.count, timer.buckets().count, timer.buckets().sum) == (3, 3, 2.0)
    assert timer.sample().values == (0.0, 0.0, 2.0)
    timer.update_all(*columns([(-1.0, 3, 1000.0)]))
    timer.update_all(*columns([]))
    assert (timer.count, timer.sample().values) == (3, (0.0, 0.0, 2.0))


def test_a_reservoir_is_no_larger_when_it_is_told_much_at_once() -> None:
    timer, histogram = Timer(Clock()), Histogram(Clock())
    values = columns([(float(value % 7), 2, 1000.0 + value) for value in range(1500)])
    for metric in (timer, histogram):
        metric.update_all(*values)
        assert (metric.count, len(metric.sample().values)) == (3000, 1028)


# ---- documents ----------------------------------------------------------------------------------------------------------


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def one_of_each() -> list[NamedMetric]:
    clock = Clock()
    timer, meter, histogram, counter = Timer(clock), Meter(clock), Histogram(clock), Counter()
    timer.update(0.25, 2)
    meter.mark(3)
    histogram.update(7.0)
    counter.increment(4)
    clock.now += 2
    found = (
        ("z", Gauge((1, 2))),
        ("t", timer),
        ("m", meter),
        ("h", histogram),
        ("c", counter),
        ("a", Gauge("x")),
        ("g", Gauge(5)),
    )
    return [NamedMetric("group", name, metric) for name, metric in found]


RATES = {"fifteenMinuteRate": 0.0, "fiveMinuteRate": 0.0, "oneMinuteRate": 0.0}
NAMES = ("median", "75thPercentile", "95thPercentile", "98thPercentile", "99thPercentile", "999thPercentile")
SHORT = ("p50", "p75", "p95", "p98", "p99", "p999")


def test_the_registry_as_a_whole() -> None:
    timer = {
        "count": 2, "meanRate": 1.0, **RATES,
        "snapshot": {
            "values": [250_000_000] * 2, "min": 250_000_000, "max": 250_000_000, "mean": 250_000_000.0, "stdDev": 0.0,
            **dict.fromkeys(NAMES, 250_000_000.0),
        },
    }  # fmt: skip
    histogram = {
        "count": 1, "snapshot": {"values": [7], "min": 7, "max": 7, "mean": 7.0, "stdDev": 0.0, **dict.fromkeys(NAMES, 7.0)},
    }  # fmt: skip
    gauges = {"group.a": {"value": "x"}, "group.g": {"value": 5}, "group.z": {"value": [1, 2]}}
    meter = {"count": 3, "meanRate": 1.5, **RATES}
    found = json.loads(registry(one_of_each()))
    assert found == {
        "metrics": {
            "group.a": {"value": "x"}, "group.c": {"count": 4}, "group.g": {"value": 5}, "group.h": histogram, "group.m": meter,
            "group.t": timer, "group.z": {"value": [1, 2]},
        },
        "gauges": gauges, "counters": {"group.c": {"count": 4}}, "histograms": {"group.h": histogram},
        "meters": {"group.m": meter}, "timers": {"group.t": timer},
        "ids": [{"group": "group", "name": name, "fullName": f"group.{name}"} for name in "acghmtz"],
    }  # fmt: skip
    assert list(found["metrics"]) == [f"group.{name}" for name in "acghmtz"]
    assert list(found["gauges"]) == ["group.a", "group.g", "group.z"]


def test_the_report_as_a_whole() -> None:
    rates = {"m15_rate": 0.0, "m1_rate": 0.0, "m5_rate": 0.0}
    found = json.loads(report(one_of_each()))
    assert found == {
        "version": "4.0.0",
        "gauges": {"group.a": {"value": "x"}, "group.g": {"value": 5}, "group.z": {"value": [1, 2]}},
        "counters": {"group.c": {"count": 4}},
        "histograms": {
            "group.h": {"count": 1, "max": 7, "mean": 7.0, "min": 7, **dict.fromkeys(SHORT, 7.0), "stddev": 0.0},
        },
        "meters": {"group.m": {"count": 3, "mean_rate": 1.5, **rates, "units": "events/second"}},
        "timers": {
            "group.t": {
                "count": 2, "max": 0.25, "mean": 0.25, "min": 0.25, **dict.fromkeys(SHORT, 0.25), "stddev": 0.0, "mean_rate": 1.0,
                **rates, "duration_units": "seconds", "rate_units": "calls/second",
            },
        },
    }  # fmt: skip
    assert list(found["gauges"]) == ["group.a", "group.g", "group.z"]
    assert report(one_of_each(), pretty=True).startswith('{\n  "version" : "4.0.0",\n  "gauges" : {\n    "group.a"')


def test_quantiles_of_unequal_values_are_told_apart() -> None:
    """Each name has its own part of the values."""
    clock = Clock()
    timer, histogram = Timer(clock), Histogram(clock)
    for value in range(1000):
        timer.update(float(value))
        histogram.update(float(value))
    metrics = [NamedMetric("g", "t", timer), NamedMetric("g", "h", histogram)]
    told = json.loads(report(metrics))
    for one in (told["timers"]["g.t"], told["histograms"]["g.h"]):
        assert [one[name] for name in SHORT] == pytest.approx([500, 750, 950, 980, 990, 999], abs=1.5)
        assert (one["min"], one["max"]) == (0, 999)
        assert one["stddev"] == pytest.approx(288.67, abs=0.1)
    whole = json.loads(registry(metrics))
    snapshot = whole["timers"]["g.t"]["snapshot"]
    assert [snapshot[name] for name in NAMES] == pytest.approx(
        [n * 1e9 for n in (500, 750, 950, 980, 990, 999)], abs=1.5e9
    )
    assert snapshot["values"] == [value * 10**9 for value in range(1000)]
    lines = dict(line.split()[:2] for line in report_lines(metrics, "p", 5))
    assert [float(lines[f"p.g.h.{name}"]) for name in SHORT] == pytest.approx([500, 750, 950, 980, 990, 999], abs=1.5)
    assert [float(lines[f"p.g.t.{name}"]) for name in SHORT] == pytest.approx(
        [1000.0 * n for n in (500, 750, 950, 980, 990, 999)], abs=1500
    )


class ToldTimer(Timer):
    """One whose rates are what they are said to be, each another one; values and deviation as well."""

    def rates(self) -> Rates:
        return Rates(9, 1.5, 2.5, 3.5, 4.5)

    def sample(self) -> Sample:
        return FOUR


class ToldHistogram(Histogram):
    def sample(self) -> Sample:
        return FOUR


def test_each_rate_and_each_moment_has_its_own_name_and_unit() -> None:
    metrics = [NamedMetric("g", "t", ToldTimer()), NamedMetric("g", "h", ToldHistogram())]
    rates = {"count": 9, "mean_rate": 1.5, "m1_rate": 2.5, "m5_rate": 3.5, "m15_rate": 4.5}
    moments = {"min": 1.0, "max": 8.0, "mean": FOUR.mean, "stddev": FOUR.stddev}
    assert len({*moments.values()}) == 4
    told = json.loads(report(metrics))
    timer, histogram = told["timers"]["g.t"], told["histograms"]["g.h"]
    assert {name: timer[name] for name in (*rates, *moments)} == {**rates, **moments}
    assert {name: histogram[name] for name in moments} == moments
    assert [type(timer[name]) for name in ("min", "max")] == [float] * 2
    assert [type(histogram[name]) for name in ("min", "max")] == [int] * 2, "as the release shows sizes"
    whole = json.loads(registry(metrics))["metrics"]
    names = ("count", "meanRate", "oneMinuteRate", "fiveMinuteRate", "fifteenMinuteRate")
    assert [whole["g.t"][name] for name in names] == [*rates.values()]
    for one, unit in (("g.t", 1e9), ("g.h", 1)):
        snapshot = whole[one]["snapshot"]
        assert [snapshot[name] for name in ("min", "max", "mean", "stdDev")] == pytest.approx(
            [value * unit for value in moments.values()]
        )
    lines = dict(line.split()[:2] for line in report_lines(metrics, "p", 5))
    assert {name: float(lines[f"p.g.t.{name}"]) for name in rates} == rates
    for one, unit in (("t", 1000.0), ("h", 1.0)):
        found = [float(lines[f"p.g.{one}.{name}"]) for name in moments]
        assert found == pytest.approx([value * unit for value in moments.values()], abs=0.01)


def test_what_no_document_can_say_is_a_mistake_of_ours() -> None:
    """Readers of the release take neither for a number."""
    for value in (math.nan, math.inf):
        with pytest.raises(ValueError, match="not JSON"):
            indented({"a": value})


@pytest.mark.parametrize("place", range(len(BUCKETS)))
def test_what_takes_exactly_as_long_as_a_bucket_allows_is_in_it(place: int) -> None:
    timer = Timer()
    timer.update(BUCKETS[place])
    assert timer.buckets().cumulative == (0,) * place + (1,) * (len(BUCKETS) + 1 - place)


def test_the_lines_for_graphite_as_a_whole() -> None:
    rates = ["m1_rate 0.00", "m5_rate 0.00", "m15_rate 0.00"]
    timer = [
        *(f"{name} 250.00" for name in ("max", "mean", "min")),
        "stddev 0.00",
        *(f"{name} 250.00" for name in SHORT),
    ]
    histogram = [
        *(f"{name} 7.00" for name in ("max", "mean", "min")),
        "stddev 0.00",
        *(f"{name} 7.00" for name in SHORT),
    ]
    assert report_lines(one_of_each(), "my node", 1234) == [
        f"my-node.group.{line} 1234"
        for line in (
            "c.count 4", "g 5", "h.count 1", *(f"h.{one}" for one in histogram), "m.count 3", *(f"m.{one}" for one in rates),
            "m.mean_rate 1.50", *(f"t.{one}" for one in timer), "t.count 2", *(f"t.{one}" for one in rates), "t.mean_rate 1.00",
        )
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({}, "{ }"), ([], "[ ]"), ((), "[ ]"), ([1, "a"], '[ 1, "a" ]'), ({"a": 1}, '{\n  "a" : 1\n}'),
        ({"a": {"b": [{"c": None}]}, "d": "ü"}, '{\n  "a" : {\n    "b" : [ {\n      "c" : null\n    } ]\n  },\n  "d" : "ü"\n}'),
    ],
)  # fmt: skip
def test_how_documents_are_laid_out(value: Any, text: str) -> None:
    assert indented(value) == text


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_json_has_no_number_for_is_never_written(value: float) -> None:
    for write in (compact, indented):
        with pytest.raises(ValueError, match="Out of range"):
            write({"a": [value]})


# ---- kinds of settings --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "given", "value"),
    [
        (COUNT, "1", 1),
        (COUNT, " 7 ", 7),
        (COUNT, 7, 7),
        (COUNT, "+7", 7),
        (COUNT, "0", "must be a whole number, at least 1, not 0"),
        (COUNT, "x", "must be a whole number"),
        (COUNT, "1" * 18, int("1" * 18)),
        (COUNT, "1" * 19, "must be a whole number"),
        (COUNT, "", "must be a whole number"),
        (COUNT, True, "must be a whole number, not a truth value"),
        (COUNT, 1.5, "must be a whole number, not a fraction"),
        (COUNT, None, "must be a whole number, not a NoneType"),
        (PORT, "0", 0),
        (PORT, "65535", 65535),
        (PORT, "65536", "must be a port, 0 to 65535, not 65536"),
        (PORT, "-1", "must be a port, 0 to 65535, not -1"),
        (PORT, [1], "must be a port, not a list"),
        (PORT_OR_OFF, "off", None),
        (PORT_OR_OFF, False, None),
        (PORT_OR_OFF, " OFF ", None),
        (PORT_OR_OFF, "5", 5),
        (PORT_OR_OFF, True, "must be a whole number"),
        (PORT_OR_OFF, "65536", "must be a port or off, 0 to 65535, not 65536"),
        (SIZE, "16MiB", 16 << 20),
        (SIZE, 5, 5),
        (SIZE, "0", "must be a number of bytes, at least 1, not 0"),
        (SIZE, "00", "must be a number of bytes, at least 1, not 0"),
        (SIZE, 1.5, "must be a number of bytes, such as 16MiB, not a fraction"),
        (SECONDS, "30s", 30.0),
        (SECONDS, 2, 2.0),
        (SECONDS, 0.5, 0.5),
        (SECONDS, "0", "must be a duration, more than 0s, not 0s"),
        (SECONDS, "0ms", "must be a duration, more than 0s, not 0s"),
        (MILLISECONDS, "1500", 1.5),
        (MILLISECONDS, 250, 0.25),
        (MILLISECONDS, "0", "must be a whole number of milliseconds, more than 0, not 0"),
        (SWITCH, "true", True),
        (SWITCH, "YES", True),
        (SWITCH, " on ", True),
        (SWITCH, "1", True),
        (SWITCH, True, True),
        (SWITCH, "no", False),
        (SWITCH, "off", False),
        (SWITCH, "0", False),
        (SWITCH, "false", False),
        (SWITCH, False, False),
        (SWITCH, "perhaps", "must be true or false"),
        (SWITCH, 1, "must be true or false, not a number"),
        (PATH, "/d", Path("/d")),
        (PATH, "", "must be a path, not empty"),
        (PATH, "a\0b", "must be a path, which holds no zero byte"),
        (PATH, 7, "must be a path, not a number; put it in quotation marks"),
        (FILLED_TEXT, "x", "x"),
        (FILLED_TEXT, "  ", "must not be empty"),
        (FILLED_TEXT, {"a": 1}, "must be a text, not a group of keys; put it in quotation marks"),
    ],
    ids=lambda one: one.expected if isinstance(one, SettingKind) else ascii(one)[:40],
)
def test_what_a_setting_takes(kind: SettingKind, given: Any, value: Any) -> None:
    """The value, or why there is none."""
    if isinstance(value, str) and value.startswith("must"):
        with pytest.raises(ValueError, match="must") as caught:
            kind.read(given)
        assert str(caught.value) == value
    else:
        found = kind.read(given)
        assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(
    ("kind", "allowed"),
    [
        (COUNT, "a whole number, at least 1"),
        (PORT, "a port, 0 to 65535"),
        (SIZE, "a number of bytes, such as 16MiB, at least 1"),
        (SECONDS, "a duration, such as 30s, more than 0s"),
        (COUNT.within(most=5), "a whole number, at most 5"),
        (PATH, "a path"),
        (COUNT.within(above=2.0, most=5), "a whole number, more than 2.0 and at most 5"),
        (COUNT.within(least=2, above=1), "a whole number, at least 2 and more than 1"),
    ],
)
def test_how_people_are_told_what_is_allowed(kind: SettingKind, allowed: str) -> None:
    assert kind.allowed == allowed


@pytest.mark.parametrize(
    ("kind", "value", "written", "shown"),
    [
        (SIZE, 16 << 20, "16MiB", 16 << 20),
        (SECONDS, 90.0, "90s", 90.0),
        (MILLISECONDS, 1.5, "1500", 1500),
        (SWITCH, True, "true", True),
        (SWITCH, False, "false", False),
        (PORT_OR_OFF, None, "off", None),
        (PORT_OR_OFF, 5, "5", 5),
        (PATH, Path("/d"), "/d", "/d"),
    ],
)
def test_how_values_are_written_and_shown(kind: SettingKind, value: Any, written: str, shown: Any) -> None:
    assert kind.written(value) in (written, "1.5m", "1m30s")
    if value is not None:
        assert kind.shown(value) == shown


@pytest.mark.parametrize(
    ("name", "key"), [("max_body", "maxBody"), ("max-body", "maxBody"), ("a_b_c", "aBC"), ("a", "a")]
)
def test_keys_follow_from_names(name: str, key: str) -> None:
    assert camel_case(name) == key


@dataclass(frozen=True)
class Inner:
    needed: str = setting("a text", FILLED_TEXT, key="waltzctl.needed")
    some_name: int = setting("a number", COUNT, default=3)


@dataclass(frozen=True)
class Outer:
    plain: int = 7
    inner: Inner | None = group(Inner, key="front.", name="in-", wanted_by=("needed",))
    other: Inner = group(Inner, key="other.", name="other-", reloadable=True)
    alone: str | None = setting("a word", FILLED_TEXT, default=None, name="single", unless="another")


@dataclass(frozen=True)
class Typed:
    plain: str = setting("a", FILLED_TEXT)
    place: str = setting("b", FILLED_TEXT, option=Option("PLACE", argument=True))
    usual: str = setting("c", FILLED_TEXT, option=Option("TEXT"))
    hidden: str = setting("d", FILLED_TEXT, secret=True, option=Option())
    in_file: str = setting("e", FILLED_TEXT, secret=True, option=Option(only_file=True))


def test_how_settings_are_typed() -> None:
    """As an option, a place in the command line, the file of a secret, or not at all."""
    found = {
        one.name: (one.option, one.is_argument, one.on_command_line, one.file_option)
        for one in Settings("x", Typed).listed
    }
    assert found == {
        "plain": ("--plain", False, (), "--plain-file"),
        "place": ("PLACE", True, ("PLACE",), "--place-file"),
        "usual": ("--usual", False, ("--usual",), "--usual-file"),
        "hidden": ("--hidden", False, ("--hidden", "--hidden-file"), "--hidden-file"),
        "in-file": ("--in-file", False, ("--in-file-file",), "--in-file-file"),
    }


def test_what_follows_from_a_declaration_alone() -> None:
    declared = Settings("a-command", Outer, {"old": "gone"})
    assert (declared.prefix, declared.file_variable) == ("WALTZCTL_A_COMMAND_", "WALTZCTL_A_COMMAND_CONFIG")
    found = {
        one.path: (one.key, one.name, one.variable, one.default, one.reloadable, one.secret, one.declared.required)
        for one in declared.listed
    }
    front = "WALTZCTL_A_COMMAND_"
    assert found == {
        ("inner", "some_name"): ("front.someName", "in-some-name", f"{front}IN_SOME_NAME", 3, False, False, False),
        ("inner", "needed"): ("waltzctl.needed", "in-needed", f"{front}IN_NEEDED", None, False, False, False),
        ("other", "some_name"): ("other.someName", "other-some-name", f"{front}OTHER_SOME_NAME", 3, True, False, False),
        ("other", "needed"): ("waltzctl.needed", "other-needed", f"{front}OTHER_NEEDED", None, True, False, False),
        ("alone",): ("alone", "single", f"{front}SINGLE", None, False, False, False),
    }
    one = declared.by_name["in-some-name"]
    assert (one.option, one.on_command_line, one.is_argument, one.left_out, one.in_file) == (
        "--in-some-name", (), False, (), (),
    )  # fmt: skip
    assert (one.unless, one.help) == ("3", "A number; 3 unless given.")
    assert (declared.by_name["single"].unless, declared.by_name["single"].help) == (
        "another",
        "A word; another unless given.",
    )
    assert [*declared.optional_groups] == [("inner",)]
    assert needed(Inner) == ("needed",)
    made = declared.build({("other", "needed"): "x", ("alone",): "y"})
    assert made == Outer(7, None, Inner("x", 3), "y")
    made = declared.build({("other", "needed"): "x", ("inner", "needed"): "z", ("inner", "some_name"): 5})
    assert made == Outer(7, Inner("z", 5), Inner("x", 3), None)
    assert reloadable_fields(Outer) == {"other"}
    old, new = Outer(7, None, Inner("x", 3), "y"), Outer(8, None, Inner("x", 4), "y")
    assert reload_fields(old, new, frozenset({"other"})) == (
        Outer(7, None, Inner("x", 4), "y"), Reloaded(("other",), ("plain",)),
    )  # fmt: skip
    check_bounds(Inner("x", 1))
    for wrong, field, message in (
        (Inner("x", 0), "some_name", "some_name must be a whole number, at least 1, not 0"),
        (Inner(" ", 1), "needed", "waltzctl.needed must not be empty"),
    ):
        with pytest.raises(InvalidOptionsError) as caught:
            check_bounds(wrong)
        assert (caught.value.message, caught.value.owner, caught.value.fields) == (message, wrong, (field,))


@dataclass(frozen=True)
class Innermost:
    word: str = setting("a", FILLED_TEXT)
    other: str = setting("b", FILLED_TEXT)
    secret: str | None = setting("c", FILLED_TEXT, default=None, secret=True)


@dataclass(frozen=True)
class Around:
    optional: Innermost | None = group(Innermost, wanted_by=("word", "other"))
    usual: Innermost | None = None


@dataclass(frozen=True)
class Outermost:
    around: Around = group(Around, key="far.", name="far-", reloadable=True)
    three: Inner | None = None


def test_what_a_group_says_holds_for_the_groups_in_it() -> None:
    declared = Settings("x", Outermost)
    assert {one.reloadable for one in declared.listed} == {True}
    assert [*declared.optional_groups] == [("around", "optional")]
    word, other = (("around", "optional", name) for name in ("word", "other"))
    assert declared.build({word: "a", other: "b"}).around.optional == Innermost("a", "b")
    for half in ({word: "a"}, {other: "b"}, {}):
        assert declared.build(half).around.optional is None, "it is wanted as a whole"


def test_a_group_without_a_default_is_made_unless_it_is_optional() -> None:
    @dataclass(frozen=True)
    class Needing:
        inner: Inner = group(Inner)

    with pytest.raises(TypeError, match="needed"):
        Settings("x", Needing).build({})


def test_a_secret_is_not_in_what_options_show() -> None:
    assert "hush" not in repr(Innermost("a", "b", "hush"))


# ---- lines of the log ---------------------------------------------------------------------------------------------------

LINE = Line(0, logging.WARNING, "waltzctl.node", "half\nway", {"a": 1, "b": "x\ty"}, "one\n  two")


def test_what_is_no_json_and_what_drives_a_terminal_is_told_as_text() -> None:
    line = Line(1_500, logging.ERROR, "x", "m", {"path": Path("/a"), "kind": ValueError}, "one\n\x1b[31m two")
    assert json.loads(json_line(line))["fields"] == {"path": "/a", "kind": "<class 'ValueError'>"}
    assert human_line(line).endswith("\n    one\n    \\x1b[31m two")
    assert human_line(line).startswith("1970-01-01T00:00:01.500Z ERROR ")


def test_a_line_has_the_time_of_its_record_in_milliseconds() -> None:
    record = logging.makeLogRecord({"created": 1234.5678, "msg": "m", "name": "x", "levelno": logging.INFO})
    assert logs._line_of(record).time == 1_234_567


def test_a_line_in_each_form() -> None:
    assert human_line(LINE) == "1970-01-01T00:00:00.000Z WARNING half\\nway  a=1 b=x\\ty\n    one\n      two"
    assert journal_line(LINE) == "<4>half\\nway  a=1 b=x\\ty\n<4>    one\n<4>      two"
    assert json.loads(json_line(LINE)) == {
        "schema": "waltzctl.log/1",
        "type": "log",
        "time": "1970-01-01T00:00:00.000Z",
        "level": "warning",
        "logger": "waltzctl.node",
        "message": "half\nway",
        "fields": {"a": 1, "b": "x\ty"},
        "trace": "one\n  two",
    }
    assert human_line(Line(1, logging.INFO, "x", "größe\\\x1b")) == "1970-01-01T00:00:00.001Z INFO    größe\\\\x1b"
    assert human_line(Line(1, logging.INFO, "x", "plain")) == "1970-01-01T00:00:00.001Z INFO    plain"


@pytest.mark.parametrize(
    ("level", "priority"),
    [(9, 7), (10, 7), (11, 7), (19, 7), (20, 6), (29, 6), (30, 4), (39, 4), (40, 3), (50, 3), (0, 7)],
)
def test_the_journal_s_priorities(level: int, priority: int) -> None:
    assert journal_line(Line(0, level, "x", "m")) == f"<{priority}>m"


KEY = ("node", logging.WARNING, "text %s")


def test_a_throttle_lets_so_many_through_and_tells_of_the_rest() -> None:
    throttle = Throttle(burst=2, window=10.0)
    assert [throttle.admit(KEY, f"m{n}", 100.0) for n in range(5)] == [True, True, False, False, False]
    assert throttle.admit(("node", logging.ERROR, "text %s"), "m", 101.0)
    assert throttle.expired(109.9) == []
    assert throttle.expired(110.0) == [(KEY, 3, "m4")]
    assert throttle.admit(KEY, "m", 110.0)
    assert throttle.expired(111.0) == []
    assert throttle.expired(111.0, all_of_them=True) == []
    assert throttle.admit(KEY, "m", 112.0)


def test_so_much_of_a_log_and_no_more() -> None:
    """Lines that may wait; of one kind in ten seconds; and how long closing waits for them."""
    with NodeLog(Stream()) as log:
        assert log._waiting.maxsize == 8192
    throttle = Throttle()
    assert [throttle.admit(KEY, "m", 100.0) for _ in range(22)] == [True] * 20 + [False] * 2
    assert [len(throttle.expired(at)) for at in (109.0, 110.0)] == [0, 1]
    assert logs.CLOSING == 2.0


def test_a_throttle_knows_so_many_kinds_and_lets_all_others_through() -> None:
    throttle = Throttle(burst=0, window=10.0)
    assert not any(throttle.admit(("x", 1, str(n)), "m", 0.0) for n in range(1000))
    assert throttle.admit(("x", 1, "one more"), "m", 0.0)
    assert not throttle.admit(("x", 1, "0"), "m", 0.0)
    assert len(throttle.expired(10.0)) == 1000


class Stream:
    """Where lines go; each is handed over at once."""

    def __init__(self) -> None:
        self.text = ""
        self.flushed = 0

    def write(self, text: str) -> None:
        self.text += text

    def flush(self) -> None:
        self.flushed += 1


def test_the_program_s_log_is_as_it_was_behind_the_block() -> None:
    root, stream = logging.getLogger(), Stream()
    before = (root.level, root.handlers.copy(), warnings.showwarning)
    root.setLevel(logging.ERROR)
    try:
        with NodeLog(stream) as log:
            assert root.level == logging.WARNING
            assert warnings.showwarning is not before[2]
            log.logger.info("number %d", 5, extra={"port": 7})
            logging.getLogger("other").info("not heard")
        log.close()
        assert root.level == logging.ERROR
        assert log not in root.handlers
        log.logger.info("nor this")
    finally:
        root.setLevel(before[0])
    assert (root.handlers, warnings.showwarning) == before[1:]
    assert stream.text.endswith(" INFO    number 5  port=7\n")
    assert (stream.text.count("\n"), stream.flushed) == (1, 1)


# ---- systemd ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("environment", "found"),
    [
        ({"NOTIFY_SOCKET": "/x", "WATCHDOG_USEC": "1500000"}, Notifier("/x", 1.5)),
        ({"NOTIFY_SOCKET": "@x"}, Notifier("@x")),
        ({"NOTIFY_SOCKET": "/"}, Notifier()),
        ({"WATCHDOG_USEC": "1500000"}, Notifier()),
        ({"NOTIFY_SOCKET": "x", "WATCHDOG_USEC": "1500000"}, Notifier()),
    ],
)
def test_what_the_manager_wants(environment: dict[str, str], found: Notifier) -> None:
    assert Notifier.from_environment(environment) == found
