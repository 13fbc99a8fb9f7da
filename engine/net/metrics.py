"""Metrics of a server: counters, meters, histograms, timers and gauges.

Kinds, names and semantics are those of release 0.13.2, so that programs which read a released node's metrics work here, too:

========== ================================================================================================
meter      rates, exponentially weighted over 1, 5 and 15 minutes, updated every 5 seconds
histogram  a reservoir of 1028 values with exponential decay (alpha 0.015 per second: the last five minutes
           weigh most)
timer      a meter, and a histogram of seconds; besides, fixed buckets for Prometheus, which can be summed
           over nodes, as quantiles cannot
========== ================================================================================================

Only the monotonic clock is used, so the time of day may jump.  All metrics are thread-safe.  An update costs about the same for
any `count`, so that one call can count many requests.  Sampled values are buffered with their times and added to the reservoir in
batches, or when the metric is read, as adding many values costs hardly more than adding one.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Clock = Callable[[], float]
"""Returns seconds since any origin; monotonic."""

TICK_SECONDS = 5.0
"""Seconds between two updates of the rates (release 0.13.2)."""
RESERVOIR_SIZE = 1028
"""Values that a reservoir keeps (release 0.13.2)."""
RESERVOIR_ALPHA = 0.015
"""Exponential decay of a reservoir's weights, per second (release 0.13.2)."""
NOTED = 128
"""Values (each with its count) that are buffered before they are added to the reservoir; adding one costs as much as all."""
LONG_RUN = 1024
"""A value with at least this count is not buffered: a reservoir that is not full needs a row for each occurrence."""
BUCKETS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper bounds (inclusive, seconds) of a timer's buckets; a last bucket has no bound."""


class Counter:
    """A number of events, which only increases."""

    __slots__ = ("_count", "_lock")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count = 0

    def increment(self, count: int = 1) -> None:
        """Add `count`."""
        with self._lock:
            self._count += count

    @property
    def count(self) -> int:
        """The sum of all increments."""
        return self._count


@dataclass(frozen=True, slots=True)
class Rates:
    """Events per second: since the beginning, and exponentially weighted over 1, 5 and 15 minutes."""

    count: int
    mean: float
    one_minute: float
    five_minutes: float
    fifteen_minutes: float


class Meter:
    """The rate of events.  The weighted rates are 0 until the first tick, 5 seconds after the meter was made."""

    __slots__ = ("_clock", "_count", "_last_tick", "_lock", "_moving", "_rates", "_started", "_uncounted")

    _MINUTES = (1.0, 5.0, 15.0)

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._lock = threading.Lock()
        self._clock = clock
        self._started = self._last_tick = clock()
        self._count = self._uncounted = 0
        self._rates = [0.0, 0.0, 0.0]
        self._moving = False

    def mark(self, count: int = 1) -> None:
        """Count `count` events that happened now."""
        now = self._clock()
        with self._lock:
            if now - self._last_tick >= TICK_SECONDS:
                self._tick(now)
            self._count += count
            self._uncounted += count

    def mark_all(self, counts: Floats, times: Floats) -> None:
        """As `mark`, for events that happened at `times` (of the clock, ascending)."""
        with self._lock:
            start = 0
            while start < len(times):
                if times[start] - self._last_tick >= TICK_SECONDS:
                    self._tick(float(times[start]))
                stop = max(start + 1, int(np.searchsorted(times, self._last_tick + TICK_SECONDS)))
                count = int(counts[start:stop].sum())
                self._count += count
                self._uncounted += count
                start = stop

    @property
    def count(self) -> int:
        """Events so far."""
        return self._count

    def rates(self) -> Rates:
        """The rates as of now."""
        now = self._clock()
        with self._lock:
            if now - self._last_tick >= TICK_SECONDS:
                self._tick(now)
            elapsed = now - self._started
            mean = self._count / elapsed if self._count and elapsed > 0 else 0.0
            return Rates(self._count, mean, *self._rates)

    def _tick(self, now: float) -> None:
        """Update the rates for all whole intervals since the last tick: the events belong to the first, the others had none."""
        ticks = int((now - self._last_tick) / TICK_SECONDS)
        self._last_tick += ticks * TICK_SECONDS
        instant = self._uncounted / TICK_SECONDS
        self._uncounted = 0
        for place, minutes in enumerate(self._MINUTES):
            decay = math.exp(-TICK_SECONDS / 60.0 / minutes)
            first = self._rates[place] + (1 - decay) * (instant - self._rates[place]) if self._moving else instant
            self._rates[place] = first * decay ** (ticks - 1)
        self._moving = True


@dataclass(frozen=True, slots=True)
class Sample:
    """Values of a reservoir, ascending, with weights that add up to 1 (none at all when it is empty)."""

    values: tuple[float, ...]
    weights: tuple[float, ...]

    @property
    def min(self) -> float:
        """The smallest value; 0 without values, like all statistics here."""
        return self.values[0] if self.values else 0.0

    @property
    def max(self) -> float:
        """The largest value."""
        return self.values[-1] if self.values else 0.0

    @property
    def mean(self) -> float:
        """The weighted mean."""
        return math.fsum(v * w for v, w in zip(self.values, self.weights, strict=True))

    @property
    def stddev(self) -> float:
        """The weighted standard deviation; 0 for fewer than two values."""
        mean = self.mean
        return math.sqrt(math.fsum(w * (v - mean) ** 2 for v, w in zip(self.values, self.weights, strict=True)))

    def quantile(self, part: float) -> float:
        """The largest value such that the total weight of all smaller ones is at most `part` (0 to 1)."""
        if not self.values:
            return 0.0
        below, found = 0.0, self.values[0]
        for value, weight in zip(self.values, self.weights, strict=True):
            if below > part:
                break
            found = value
            below += weight
        return found


class Draws(Protocol):
    """The part of `numpy.random.Generator` that a reservoir uses."""

    def binomial(self, n: Any, p: Any) -> Any:
        """How many of `n` draws succeed, each with the chance `p`."""
        ...

    def random(self, size: int) -> Any:
        """Uniform draws from [0, 1)."""
        ...


_DRAWS = np.random.default_rng()  # a sample, not a secret; thread-safe


class Reservoir:
    """A random sample of a stream that prefers recent values: forward decay with priority sampling.

    Weights and priorities are kept as logarithms, so that they never overflow and never have to be rescaled.  Not thread-safe;
    its owner locks.
    """

    __slots__ = ("_draws", "_entries", "_size")

    def __init__(self, size: int = RESERVOIR_SIZE, draws: Draws = _DRAWS) -> None:
        self._size, self._draws = size, draws
        self._entries: Floats = np.empty((0, 3))  # rows of priority, logarithm of the weight, value

    def update(self, values: Floats, counts: Floats, times: Floats) -> None:
        """Add `values`, each `counts` times, which happened at `times` (seconds).

        The priority of a value is its weight divided by a uniform draw; the values of the highest priorities are kept.  Instead
        of a draw per occurrence, one binomial draw per value says how many occurrences exceed the lowest priority in the
        reservoir; only those get a uniform draw, from the range that exceeds it.
        """
        weights = RESERVOIR_ALPHA * times
        chances = np.ones(len(values))
        if len(self._entries) == self._size:
            chances = np.exp(np.minimum(weights - self._entries[:, 0].min(), 0.0))
        drawn = self._draws.binomial(counts.astype(np.int64), chances)
        weights, chances = np.repeat(weights, drawn), np.repeat(chances, drawn)
        priorities = weights - np.log(chances * (1.0 - self._draws.random(len(weights))))
        new = np.stack([priorities, weights, np.repeat(values, drawn)], axis=1)
        entries = np.concatenate([self._entries, new])
        beyond = len(entries) - self._size
        if beyond > 0:
            entries = entries[np.argpartition(entries[:, 0], beyond)[beyond:]]
        self._entries = entries

    def entries(self) -> Floats:
        """Rows of priority, logarithm of the weight, and value.  The array is not changed later."""
        return self._entries


def make_sample(entries: Floats) -> Sample:
    """The sample of a reservoir's entries."""
    if not len(entries):
        return Sample((), ())
    ordered = entries[np.argsort(entries[:, 2], kind="stable")]
    weights = np.exp(ordered[:, 1] - ordered[:, 1].max())
    return Sample(tuple(ordered[:, 2].tolist()), tuple((weights / weights.sum()).tolist()))


class _Sampled:
    """Base of histogram and timer: buffers values and adds them to a reservoir in batches.

    `_buckets`: for each bound, the number of values at or below it and above the one before; last, the number above all bounds.
    """

    __slots__ = ("_bounds", "_buckets", "_buffered", "_clock", "_lock", "_reservoir", "_sum")

    def __init__(self, clock: Clock = time.monotonic, bounds: tuple[float, ...] = ()) -> None:
        self._lock = threading.Lock()
        self._clock = clock
        self._buffered: list[tuple[float, int, float]] = []  # value, count, time; appended to without the lock
        self._reservoir = Reservoir()
        self._bounds = bounds
        self._buckets = np.zeros(len(bounds) + 1, np.int64)
        self._sum = 0.0

    def _note(self, value: float, count: int) -> None:
        self._buffered.append((value, count, self._clock()))
        if len(self._buffered) >= NOTED or count >= LONG_RUN:
            with self._lock:
                self._add_buffered()

    def _add_buffered(self) -> None:
        """Add the buffered values.  The caller holds the lock."""
        buffered = self._buffered.copy()
        if buffered:
            del self._buffered[: len(buffered)]
            self._add_values(*np.array(buffered, np.float64).T)

    def _add_values(self, values: Floats, counts: Floats, times: Floats) -> None:
        """Add values.  The caller holds the lock."""
        self._reservoir.update(values, counts, times)
        self._sum += float(values @ counts)
        places = np.searchsorted(self._bounds, values, side="left")
        self._buckets += np.bincount(places, counts, len(self._buckets)).astype(np.int64)

    def update_all(self, values: Floats, counts: Floats, times: Floats) -> None:
        """As `update`, for values that came at `times` (of the clock, ascending)."""
        with self._lock:
            self._add_buffered()
            self._add_values(values, counts, times)

    def sample(self) -> Sample:
        """The present sample."""
        with self._lock:
            self._add_buffered()
            entries = self._reservoir.entries()
        return make_sample(entries)


class Histogram(_Sampled):
    """The distribution of sizes."""

    __slots__ = ()

    def update(self, value: float, count: int = 1) -> None:
        """Count `value`, `count` times."""
        self._note(value, count)

    @property
    def count(self) -> int:
        """The number of values."""
        with self._lock:
            self._add_buffered()
            return int(self._buckets.sum())

    @property
    def sum(self) -> float:
        """The sum of all values."""
        with self._lock:
            self._add_buffered()
            return self._sum


@dataclass(frozen=True, slots=True)
class BucketCounts:
    """Cumulative: events of at most each of `BUCKETS` seconds, then all events.  `sum`: of all durations, seconds."""

    cumulative: tuple[int, ...]
    sum: float

    @property
    def count(self) -> int:
        """All events."""
        return self.cumulative[-1]


class Timer(_Sampled):
    """The distribution of durations, in seconds, and the rate of events."""

    __slots__ = ("_meter",)

    def __init__(self, clock: Clock = time.monotonic) -> None:
        super().__init__(clock, BUCKETS)
        self._meter = Meter(clock)

    def update(self, seconds: float, count: int = 1) -> None:
        """Count `count` events of `seconds` each.  Negative durations, and counts below 1, are ignored, as in the release."""
        if seconds < 0 or count <= 0:
            return
        self._note(seconds, count)
        self._meter.mark(count)

    def update_all(self, values: Floats, counts: Floats, times: Floats) -> None:
        """As `update`, for events at `times` (of the clock, ascending)."""
        kept = (values >= 0) & (counts > 0)
        if kept.any():
            super().update_all(values[kept], counts[kept], times[kept])
            self._meter.mark_all(counts[kept], times[kept])

    @property
    def count(self) -> int:
        """Events so far."""
        return self._meter.count

    def rates(self) -> Rates:
        """The rates as of now."""
        return self._meter.rates()

    def buckets(self) -> BucketCounts:
        """The bucket counts since the beginning."""
        with self._lock:
            self._add_buffered()
            return BucketCounts(tuple(np.cumsum(self._buckets).tolist()), self._sum)


@dataclass(frozen=True, slots=True)
class Gauge:
    """A present value."""

    value: int | str | tuple[int, ...] | Mapping[str, tuple[str, ...]]


Metric = Gauge | Counter | Meter | Timer | Histogram


@dataclass(frozen=True, slots=True)
class NamedMetric:
    """A metric with its group, and its name within the group."""

    group: str
    name: str
    metric: Metric

    @property
    def full_name(self) -> str:
        """Group and name."""
        return f"{self.group}.{self.name}"
