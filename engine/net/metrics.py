"""Metrics: what a server counts, as counters, rates, sizes and latencies, and the present values that it shows beside them.

The kinds, their names and what they mean are those of release 0.13.2, so that what reads a released node's metrics reads
ours: a rate is exponentially weighted over 1, 5 and 15 minutes and moves every 5 seconds; a latency is sampled by a
reservoir of 1028 values that forgets exponentially (alpha 0.015 a second, the last five minutes weigh most).  Besides, a
timer keeps fixed buckets for Prometheus, which can be added up over nodes where quantiles cannot.

Only the monotonic clock is asked, so the time of day may jump.  Everything is thread-safe, and cheap enough to be called
once for a run of many requests: `update(seconds, count=n)` costs about the same for any n.
"""

from __future__ import annotations

import bisect
import heapq
import math
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

Clock = Callable[[], float]
"""Seconds from any origin, never going back."""

TICK_SECONDS = 5.0
"""How often the rates move (release 0.13.2)."""
RESERVOIR_SIZE = 1028
"""Values that a reservoir keeps (release 0.13.2)."""
RESERVOIR_ALPHA = 0.015
"""How fast a reservoir forgets, per second (release 0.13.2)."""
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


class Reservoir:
    """A sample of a stream in which recent values are more likely: forward decay with priority sampling.

    Everything is kept as logarithms: neither a long life nor a long silence overflows, and nothing is ever rescaled.  Not
    thread-safe; its owner locks.
    """

    __slots__ = ("_entries", "_random", "_size")

    def __init__(self, size: int = RESERVOIR_SIZE) -> None:
        self._size = size
        self._entries: list[tuple[float, float, float]] = []  # a heap of (priority, logarithm of the weight, value)
        self._random = random.Random()  # a sample, not a secret

    def update(self, value: float, count: int, now: float) -> None:
        """Take in `count` equal values that came at `now`.

        A value's priority is its weight by a uniform draw.  Of `count` draws only the smallest matter; they are drawn in
        ascending order, each from what the one before left, until one would not get in.
        """
        entries = self._entries
        weight = RESERVOIR_ALPHA * now
        above = 1.0  # chance that a draw is larger than all that were drawn
        while count > 0:
            above *= (1.0 - self._random.random()) ** (1.0 / count)
            priority = weight - math.log(max(1.0 - above, 1e-300))
            entry = (priority, weight, value)
            if len(entries) < self._size:
                heapq.heappush(entries, entry)
            elif priority > entries[0][0]:
                heapq.heapreplace(entries, entry)
            else:
                return
            count -= 1

    def entries(self) -> list[tuple[float, float, float]]:
        """What the sample is made of: a copy, so that the making of it needs no lock."""
        return self._entries.copy()


def make_sample(entries: list[tuple[float, float, float]]) -> Sample:
    """The sample of a reservoir's entries."""
    if not entries:
        return Sample((), ())
    newest = max(weight for _, weight, _ in entries)
    ordered = sorted((value, math.exp(weight - newest)) for _, weight, value in entries)
    total = math.fsum(weight for _, weight in ordered)
    return Sample(tuple(value for value, _ in ordered), tuple(weight / total for _, weight in ordered))


class Histogram:
    """How large something is."""

    __slots__ = ("_clock", "_count", "_lock", "_reservoir", "_sum")

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._lock = threading.Lock()
        self._clock = clock
        self._reservoir = Reservoir()
        self._count, self._sum = 0, 0.0

    def update(self, value: float, count: int = 1) -> None:
        """`count` times `value`."""
        now = self._clock()
        with self._lock:
            self._count += count
            self._sum += value * count
            self._reservoir.update(value, count, now)

    @property
    def count(self) -> int:
        """Values so far."""
        return self._count

    @property
    def sum(self) -> float:
        """All values added up."""
        return self._sum

    def sample(self) -> Sample:
        """The present sample."""
        with self._lock:
            entries = self._reservoir.entries()
        return make_sample(entries)


@dataclass(frozen=True, slots=True)
class BucketCounts:
    """Events of at most each of `BUCKETS` seconds, then all of them; and the sum of all, in seconds."""

    cumulative: tuple[int, ...]
    sum: float

    @property
    def count(self) -> int:
        """All events."""
        return self.cumulative[-1]


class Timer:
    """How long something takes, and how often it happens."""

    __slots__ = ("_buckets", "_clock", "_lock", "_meter", "_reservoir", "_sum")

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._lock = threading.Lock()
        self._clock = clock
        self._meter = Meter(clock)
        self._reservoir = Reservoir()
        self._buckets = [0] * (len(BUCKETS) + 1)
        self._sum = 0.0

    def update(self, seconds: float, count: int = 1) -> None:
        """`count` events took `seconds` each.  What is negative or zero events long is not counted, as in the release."""
        if seconds < 0 or count <= 0:
            return
        now = self._clock()
        with self._lock:
            self._buckets[bisect.bisect_left(BUCKETS, seconds)] += count
            self._sum += seconds * count
            self._reservoir.update(seconds, count, now)
        self._meter.mark(count)

    @property
    def count(self) -> int:
        """Events so far."""
        return self._meter.count

    def rates(self) -> Rates:
        """How often, as of now."""
        return self._meter.rates()

    def sample(self) -> Sample:
        """How long, in seconds."""
        with self._lock:
            entries = self._reservoir.entries()
        return make_sample(entries)

    def buckets(self) -> BucketCounts:
        """How many took how long, since the beginning."""
        with self._lock:
            counts, total = self._buckets.copy(), self._sum
        cumulative, running = [], 0
        for count in counts:
            running += count
            cumulative.append(running)
        return BucketCounts(tuple(cumulative), total)


@dataclass(frozen=True, slots=True)
class Gauge:
    """A present value."""

    value: int | str | tuple[int, ...]


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
