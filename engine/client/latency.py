"""A histogram of latencies in bounded memory, with a relative error below 1/128 at any magnitude (the idea of HdrHistogram).

Latencies below 256 ns have a bucket for each nanosecond; above, each power of two is divided into 128 buckets of equal width.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

_STEPS = 128
_STEP_BITS = _STEPS.bit_length()
_LONGEST_BITS = 44
"""Latencies above 2^44 ns (almost five hours) are counted as 2^44 ns; the maximum is kept exactly."""
BUCKETS = (_LONGEST_BITS - _STEP_BITS + 2) * _STEPS


def bucket_of(nanoseconds: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The bucket of each latency; all must be 0 or more."""
    shown = np.minimum(nanoseconds, (1 << _LONGEST_BITS) - 1)
    bits = np.frexp(shown.astype(np.float64))[1].astype(np.int64)
    shift = np.maximum(bits - _STEP_BITS, 0)
    return (shift * _STEPS + (shown >> shift)).astype(np.int64, copy=False)


def highest_of(bucket: int) -> int:
    """The longest latency that a bucket holds, in nanoseconds."""
    shift = max(bucket // _STEPS - 1, 0)
    return ((bucket - shift * _STEPS + 1) << shift) - 1


@dataclass(frozen=True, slots=True)
class LatencySummary:
    """In seconds; all None when nothing was counted.  `p50` to `p999`: percentiles, `p999` that of 99.9 %."""

    minimum: float | None
    mean: float | None
    p50: float | None
    p90: float | None
    p99: float | None
    p999: float | None
    maximum: float | None


@dataclass(frozen=True, slots=True)
class LatencyRow:
    """How many requests took at most `up_to` seconds and longer than the row before."""

    up_to: float
    requests: int


class LatencyHistogram:
    """Counts latencies, many at a time."""

    def __init__(self) -> None:
        self._counts = np.zeros(BUCKETS, np.int64)
        self._sum = 0
        self._smallest = -1
        self._largest = -1

    @property
    def count(self) -> int:
        """Latencies counted."""
        return int(self._counts.sum())

    def add(self, nanoseconds: npt.NDArray[np.int64]) -> None:
        """Count these latencies, in nanoseconds; a negative one counts as 0."""
        if not len(nanoseconds):
            return
        shown = np.maximum(nanoseconds, 0)
        np.add.at(self._counts, bucket_of(shown), 1)
        low, high = int(shown.min()), int(shown.max())
        self._sum += int(shown.sum())
        self._smallest = low if self._smallest < 0 else min(self._smallest, low)
        self._largest = max(self._largest, high)

    def merge(self, other: LatencyHistogram) -> None:
        """Add the counts of another histogram."""
        if other._largest < 0:
            return
        self._counts += other._counts
        self._sum += other._sum
        self._smallest = other._smallest if self._smallest < 0 else min(self._smallest, other._smallest)
        self._largest = max(self._largest, other._largest)

    def at(self, share: float) -> float | None:
        """The latency in seconds that this share (0 to 1) of all did not exceed, rounded up by less than 1/128; None: no data."""
        total = self.count
        if not total:
            return None
        wanted = max(1, min(total, int(np.ceil(share * total))))
        bucket = int(np.searchsorted(np.cumsum(self._counts), wanted))
        return min(highest_of(bucket), self._largest) / 1e9

    def summary(self) -> LatencySummary:
        """Minimum, mean, maximum and the usual percentiles."""
        total = self.count
        if not total:
            return LatencySummary(None, None, None, None, None, None, None)
        return LatencySummary(
            self._smallest / 1e9,
            self._sum / total / 1e9,
            self.at(0.5),
            self.at(0.9),
            self.at(0.99),
            self.at(0.999),
            self._largest / 1e9,
        )

    def rows(self) -> tuple[LatencyRow, ...]:
        """The distribution in rows that end at round numbers; a bucket belongs to the row of its longest latency.

        Empty rows at both ends are left out.
        """
        used = np.flatnonzero(self._counts)
        ends = [min(highest_of(int(bucket)), self._largest) for bucket in used]
        counts: dict[int, int] = {}
        for bucket, end in zip(used, ends, strict=True):
            bound = _bound_above(end)
            counts[bound] = counts.get(bound, 0) + int(self._counts[bucket])
        between = (bound for bound in _BOUNDS if counts and min(counts) <= bound <= max(counts))
        return tuple(LatencyRow(bound / 1e9, counts.get(bound, 0)) for bound in between)


_BOUNDS: tuple[int, ...] = tuple(int(lead * 10**power) for power in range(1, 15) for lead in (1, 1.5, 2, 3, 5, 7))
"""Round numbers of nanoseconds at which rows end; the last one is above the longest latency."""


def _bound_above(nanoseconds: int) -> int:
    return _BOUNDS[min(bisect_left(_BOUNDS, nanoseconds), len(_BOUNDS) - 1)]
