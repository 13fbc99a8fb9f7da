"""Metrics: what a server counts, as counters, rates, sizes and latencies, and the present values that it shows beside them.

The kinds, their names and what they mean are those of release 0.13.2, so that what reads a released node's metrics reads
ours: a rate is exponentially weighted over 1, 5 and 15 minutes and moves every 5 seconds; a latency is sampled by a
reservoir of 1028 values that forgets exponentially (alpha 0.015 a second, the last five minutes weigh most).  Besides, a
timer keeps fixed buckets for Prometheus, which can be added up over nodes where quantiles cannot.

Only the monotonic clock is asked, so the time of day may jump.  Everything is thread-safe, and cheap enough to be called
once for a run of many requests: `update(seconds, count=n)` costs about the same for any n.  What is sampled is noted with its
time, and taken in when there is enough of it or somebody looks: many values cost hardly more than one then.
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
"""Seconds from any origin, never going back."""

TICK_SECONDS = 5.0
"""How often the rates move (release 0.13.2)."""
RESERVOIR_SIZE = 1028
"""Values that a reservoir keeps (release 0.13.2)."""
RESERVOIR_ALPHA = 0.015
"""How fast a reservoir forgets, per second (release 0.13.2)."""
NOTED = 128
"""Values that are noted before they are taken in, each with how often it came: for one it takes as long as for all of them."""
LONG_RUN = 1024
"""A value that came so often is taken in at once: a reservoir that is not full needs a row for each time."""
BUCKETS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper bounds, seconds, of a timer's buckets; one more has no bound."""


class Counter:
    """A number that grows."""

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
        """What was added so far."""
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
    """How often something happens.  The weighted rates are 0 until the first tick, 5 seconds after the meter began."""

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
        """`count` events happened now."""
        now = self._clock()
        with self._lock:
            if now - self._last_tick >= TICK_SECONDS:
                self._tick(now)
            self._count += count
            self._uncounted += count

    def mark_all(self, counts: Floats, times: Floats) -> None:
        """As `mark`, of what happened at `times` by the clock, in their order."""
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
        """Take in all whole intervals since the last tick: the events belong to the first, the others were silent."""
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
        """The smallest value; 0 without values, as all of these."""
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
        """The last value of which the weight of all smaller ones is at most `part` (0 to 1)."""
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
    """What a reservoir needs of NumPy's generators."""

    def binomial(self, n: Any, p: Any) -> Any:
        """How many of `n` draws succeed, each with the chance `p`."""
        ...

    def random(self, size: int) -> Any:
        """Uniform draws from [0, 1)."""
        ...


_DRAWS = np.random.default_rng()  # a sample, not a secret; thread-safe


class Reservoir:
    """A sample of a stream in which recent values are more likely: forward decay with priority sampling.

    Everything is kept as logarithms: neither a long life nor a long silence overflows, and nothing is ever rescaled.  Not
    thread-safe; its owner locks.
    """

    __slots__ = ("_draws", "_entries", "_size")

    def __init__(self, size: int = RESERVOIR_SIZE, draws: Draws = _DRAWS) -> None:
        self._size, self._draws = size, draws
        self._entries: Floats = np.empty((0, 3))  # rows of priority, logarithm of the weight, value

    def update(self, values: Floats, counts: Floats, times: Floats) -> None:
        """Take in `counts` times each of `values`, which came at `times` (seconds).

        A value's priority is its weight by a uniform draw; those of the highest priorities stay.  Only draws that reach the
        lowest priority which is here are made: how many of `counts` do is one draw, and each of them is uniform below the bound.
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
        """What the sample is made of: rows of priority, logarithm of the weight, value.  They are not changed later."""
        return self._entries


def make_sample(entries: Floats) -> Sample:
    """The sample of a reservoir's entries."""
    if not len(entries):
        return Sample((), ())
    ordered = entries[np.argsort(entries[:, 2], kind="stable")]
    weights = np.exp(ordered[:, 1] - ordered[:, 1].max())
    return Sample(tuple(ordered[:, 2].tolist()), tuple((weights / weights.sum()).tolist()))


class _Sampled:
    """Values that are noted as they come, and taken in many at a time.

    `_buckets`: how many are at most each of the bounds and above the one before, and how many are above all of them.
    """

    __slots__ = ("_bounds", "_buckets", "_clock", "_lock", "_noted", "_reservoir", "_sum")

    def __init__(self, clock: Clock = time.monotonic, bounds: tuple[float, ...] = ()) -> None:
        self._lock = threading.Lock()
        self._clock = clock
        self._noted: list[tuple[float, int, float]] = []  # value, count, time; appended to without the lock
        self._reservoir = Reservoir()
        self._bounds = bounds
        self._buckets = np.zeros(len(bounds) + 1, np.int64)
        self._sum = 0.0

    def _note(self, value: float, count: int) -> None:
        self._noted.append((value, count, self._clock()))
        if len(self._noted) >= NOTED or count >= LONG_RUN:
            with self._lock:
                self._take_in()

    def _take_in(self) -> None:
        """Take in what is noted; the lock is held."""
        noted = self._noted.copy()
        if noted:
            del self._noted[: len(noted)]
            self._take(*np.array(noted, np.float64).T)

    def _take(self, values: Floats, counts: Floats, times: Floats) -> None:
        """Take in values; the lock is held."""
        self._reservoir.update(values, counts, times)
        self._sum += float(values @ counts)
        places = np.searchsorted(self._bounds, values, side="left")
        self._buckets += np.bincount(places, counts, len(self._buckets)).astype(np.int64)

    def update_all(self, values: Floats, counts: Floats, times: Floats) -> None:
        """As `update`, of what came at `times` by the clock, in their order."""
        with self._lock:
            self._take_in()
            self._take(values, counts, times)

    def sample(self) -> Sample:
        """The present sample."""
        with self._lock:
            self._take_in()
            entries = self._reservoir.entries()
        return make_sample(entries)


class Histogram(_Sampled):
    """How large something is."""

    __slots__ = ()

    def update(self, value: float, count: int = 1) -> None:
        """`count` times `value`."""
        self._note(value, count)

    @property
    def count(self) -> int:
        """Values so far."""
        with self._lock:
            self._take_in()
            return int(self._buckets.sum())

    @property
    def sum(self) -> float:
        """All values added up."""
        with self._lock:
            self._take_in()
            return self._sum


@dataclass(frozen=True, slots=True)
class BucketCounts:
    """Events of at most each of `BUCKETS` seconds, then all of them; and the sum of all, in seconds."""

    cumulative: tuple[int, ...]
    sum: float

    @property
    def count(self) -> int:
        """All events."""
        return self.cumulative[-1]


class Timer(_Sampled):
    """How long something takes, in seconds, and how often it happens."""

    __slots__ = ("_meter",)

    def __init__(self, clock: Clock = time.monotonic) -> None:
        super().__init__(clock, BUCKETS)
        self._meter = Meter(clock)

    def update(self, seconds: float, count: int = 1) -> None:
        """`count` events took `seconds` each.  What is negative or zero events long is not counted, as in the release."""
        if seconds < 0 or count <= 0:
            return
        self._note(seconds, count)
        self._meter.mark(count)

    def update_all(self, values: Floats, counts: Floats, times: Floats) -> None:
        """As `update`, of what came at `times` by the clock, in their order."""
        kept = (values >= 0) & (counts > 0)
        if kept.any():
            super().update_all(values[kept], counts[kept], times[kept])
            self._meter.mark_all(counts[kept], times[kept])

    @property
    def count(self) -> int:
        """Events so far."""
        return self._meter.count

    def rates(self) -> Rates:
        """How often, as of now."""
        return self._meter.rates()

    def buckets(self) -> BucketCounts:
        """How many took how long, since the beginning."""
        with self._lock:
            self._take_in()
            return BucketCounts(tuple(np.cumsum(self._buckets).tolist()), self._sum)


@dataclass(frozen=True, slots=True)
class Gauge:
    """A present value."""

    value: int | str | tuple[int, ...] | Mapping[str, tuple[str, ...]]


Metric = Gauge | Counter | Meter | Timer | Histogram


@dataclass(frozen=True, slots=True)
class NamedMetric:
    """A metric and what it is called: a group, and a name within it."""

    group: str
    name: str
    metric: Metric

    @property
    def full_name(self) -> str:
        """Group and name."""
        return f"{self.group}.{self.name}"
