"""Counting the records of a part of a segment, batch by batch, with NumPy operations on whole columns.

Client ids and header values that lie close together, the usual case, are counted in dense arrays.  Others are collected as rows
and grouped from time to time.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from waltzctl.engine.scan.columns import RecordBatch
from waltzctl.engine.stats.aggregate import CLIENTS, EXTENT, Aggregate, TableBounds
from waltzctl.engine.stats.axes import Clock, Interval, Scale, borders, id_shift
from waltzctl.engine.stats.coverage import runs_of
from waltzctl.engine.stats.sum_tables import SUMS, How, Ints, Table, bounded, empty, grouped
from waltzctl.formats.segment import RECORD_OVERHEAD

CLASSES = 32
"""Number of size classes: 0 for no data, class k for a data length of k bits."""
WINDOW = 1 << 18
"""Size of the dense array: number of consecutive client ids."""
_PENDING = 1 << 18
"""Most rows that are collected before they are grouped."""

Weights = npt.NDArray[np.float64]

_NO_TIME = -1
"""The bucket number of records without a time.  Real buckets are never negative, as times are positive."""
_LOWEST, _HIGHEST = np.iinfo(np.int32).min, np.iinfo(np.int32).max


def _generation(word: int) -> int:
    """The lower 32 bits of a 64-bit word, signed."""
    return ((word & 0xFFFFFFFF) ^ 0x80000000) - 0x80000000


class _RowCollector:
    """Collects rows of a table and groups them when there are more than _PENDING."""

    def __init__(self, keys: int, how: How) -> None:
        self._how = how
        self._keys = keys
        self._rows: list[tuple[Ints, Ints]] = []
        self._count = 0

    def add(self, keys: Ints, values: Ints) -> None:
        """Add rows."""
        self._rows.append((keys, values))
        self._count += keys.shape[1]
        if self._count > _PENDING:
            table = self.table()
            self._rows = [(table.keys, table.values)]
            self._count = len(table) // 2  # counts half, so that a large table is not grouped again at every call

    def table(self) -> Table:
        """All rows, grouped."""
        if not self._rows:
            return empty(self._keys, len(self._how))
        keys = np.concatenate([keys for keys, _ in self._rows], axis=1)
        return grouped(keys, np.concatenate([values for _, values in self._rows], axis=1), self._how)


@dataclass(slots=True)
class _Window:
    """Dense counts of consecutive client ids from `base` on, since the last flush; `low` and `high`: generations."""

    base: int
    records: Ints
    bytes: Ints
    low: npt.NDArray[np.int32]
    high: npt.NDArray[np.int32]

    @classmethod
    def covering(cls, first: int, last: int) -> _Window:
        """A window that covers clients `first` to `last`, with room on both sides."""
        size = min(WINDOW, max(1024, 2 * (last - first + 1)))
        base = first - (size - (last - first + 1)) // 2
        counts = np.zeros((2, size), np.int64)
        return cls(base, counts[0], counts[1], np.full(size, _HIGHEST, np.int32), np.full(size, _LOWEST, np.int32))

    def add(self, places: Ints, records: Ints | int, size: Ints | int, generation: int | None) -> None:
        """Add counts for distinct clients.  `generation`: that of all of them; None: the caller updates `low` and `high`."""
        self.records[places] += records
        self.bytes[places] += size
        if generation is not None:
            self.low[places] = np.minimum(self.low[places], generation)
            self.high[places] = np.maximum(self.high[places], generation)

    def covers(self, first: int, last: int) -> bool:
        """Whether clients `first` to `last` are in the window."""
        return self.base <= first and last < self.base + len(self.records)


class Counting:
    """Counts batches of one partition into an `Aggregate`.

    `place`: identifies the partition.  `clock`: the time of the segment's records.  `size`: bytes of its data file.
    """

    def __init__(self, place: int, scale: Scale, clock: Clock, size: int, bounds: TableBounds = TableBounds()) -> None:  # noqa: B008
        self._place = place
        self._scale = scale
        self._bounds = bounds
        self._extent: Interval | None = clock.interval
        self.records = 0
        self.bytes = 0
        self._buckets, self._borders = [_NO_TIME], np.empty(0, np.int64)
        if clock.interval is not None:
            self._buckets, offsets = borders(clock.interval, scale.width(clock.interval), size)
            self._borders = np.array(offsets, np.int64)
        self._classes = np.zeros((2, len(self._buckets), CLASSES), np.int64)
        self._bucket = 0
        self._window: _Window | None = None
        self._clients = _RowCollector(2, CLIENTS)
        self._headers = _RowCollector(1, SUMS)
        self._constant: dict[int, list[int]] = {}
        self._runs: list[list[int]] = []
        self._ids: dict[int, list[int]] = {}
        self._shift = 0
        self._first, self._last = 0, 0

    def add(self, batch: RecordBatch) -> None:
        """Count the records of a batch."""
        count, start, end = len(batch), int(batch.offset[0]), batch.end
        self.records += count
        self.bytes += end - start  # records stand back to back
        weights = batch.data_length.astype(np.float64)  # what bincount adds; exact up to 2^53
        weights += RECORD_OVERHEAD
        self._count_ids(batch, end)
        self._count_headers(batch, end - start, weights)
        cuts = [0, count]
        if len(self._borders):
            cuts[1:1] = np.searchsorted(batch.offset, self._borders).tolist()
        for bucket, (first, behind) in enumerate(pairwise(cuts)):
            if first < behind:
                part = slice(first, behind)
                self._count_classes(bucket, batch.data_length[part])
                self._count_clients(bucket, batch.request_id_high[part], weights[part])

    def _count_ids(self, batch: RecordBatch, end: int) -> None:
        first, last = int(batch.transaction_id[0]), int(batch.transaction_id[-1])
        if self._runs and self._runs[-1][1] + 1 == first:
            self._runs[-1][1] = last
        else:
            self._runs.append([first, last])
        known = bool(self._ids)
        self._first, self._last = (min(first, self._first), max(last, self._last)) if known else (first, last)
        shift = id_shift(self._first, self._last)
        if shift != self._shift:
            finer, self._ids = self._ids, {}
            for bucket, (records, size) in finer.items():
                self._add_ids(bucket >> (shift - self._shift), records, size)
            self._shift = shift
        begins = [first, *((bucket << shift) for bucket in range((first >> shift) + 1, (last >> shift) + 1))]
        places = [*(int(batch.offset[begin - first]) for begin in begins), end]
        for begin, behind, (start, stop) in zip(begins, [*begins[1:], last + 1], pairwise(places), strict=True):
            self._add_ids(begin >> shift, behind - begin, stop - start)

    def _add_ids(self, bucket: int, records: int, size: int) -> None:
        counted = self._ids.setdefault(bucket, [0, 0])
        counted[0] += records
        counted[1] += size

    def _count_headers(self, batch: RecordBatch, total: int, weights: Weights) -> None:
        headers = batch.header
        low, high = int(headers.min()), int(headers.max())
        if low == high:
            counted = self._constant.setdefault(low, [0, 0])
            counted[0] += len(headers)
            counted[1] += total
        elif high - low < len(headers):
            places = headers.astype(np.int64)
            places -= low
            records = np.bincount(places)
            present = np.flatnonzero(records)
            amounts = np.bincount(places, weights)[present].astype(np.int64)
            self._headers.add(present[np.newaxis] + low, np.array([records[present], amounts]))
        else:
            ones = np.ones(len(headers), np.int64)
            self._headers.add(headers.astype(np.int64)[np.newaxis], np.array([ones, weights.astype(np.int64)]))

    def _count_classes(self, bucket: int, lengths: npt.NDArray[np.int32]) -> None:
        longest = int(lengths.max())
        if longest < 4 * len(lengths):  # few different lengths: counting by length first is cheaper
            by_length = np.bincount(lengths)
            present: Ints = np.flatnonzero(by_length)
            records = by_length[present]
        else:
            present = lengths.astype(np.int64)
            records = np.ones(len(lengths), np.int64)
        classes = np.frexp(present.astype(np.float64))[1]
        self._classes[0, bucket] += np.bincount(classes, records, CLASSES).astype(np.int64)
        amounts = records * (present + RECORD_OVERHEAD)
        self._classes[1, bucket] += np.bincount(classes, amounts, CLASSES).astype(np.int64)

    def _count_clients(self, bucket: int, words: Ints, weights: Weights) -> None:
        """`words`: upper 64 bits of request ids; upper half the client id, lower half the generation."""
        if bucket != self._bucket:
            self._flush()
            self._bucket = bucket
        least, most = int(words.min()), int(words.max())
        first, last = least >> 32, most >> 32
        if last - first >= WINDOW // 2:
            generations = words.astype(np.int32)
            keys = np.array([np.full(len(words), self._buckets[bucket]), words >> 32])
            self._clients.add(keys, np.array([np.ones(len(words)), weights, generations, generations], np.int64))
            return
        window = self._window
        if window is None or not window.covers(first, last):
            self._flush()
            self._window = window = _Window.covering(first, last)
        if least == most:
            window.add(np.array([first - window.base]), len(words), int(weights.sum()), _generation(least))
            return
        near = words >> 32
        near -= first
        records = np.bincount(near)
        amounts = np.bincount(near, weights)
        present = np.flatnonzero(records)
        generations = words.astype(np.int32)  # the lower half
        generation = int(generations[0])
        places = present + (first - window.base)
        if (generations == generation).all():
            window.add(places, records[present], amounts[present].astype(np.int64), generation)
            return
        window.add(places, records[present], amounts[present].astype(np.int64), None)
        near += first - window.base
        np.minimum.at(window.low, near, generations)
        np.maximum.at(window.high, near, generations)

    def _flush(self) -> None:
        """Move the window's counts to the collected rows, and clear it."""
        window = self._window
        if window is None:
            return
        present = np.flatnonzero(window.records)
        if len(present):
            keys = np.array([np.full(len(present), self._buckets[self._bucket]), present + window.base])
            values = (window.records, window.bytes, window.low, window.high)
            self._clients.add(keys, np.array([column[present] for column in values], np.int64))
            window.records[present] = 0
            window.bytes[present] = 0
            window.low[present] = _HIGHEST
            window.high[present] = _LOWEST

    def aggregate(self) -> Aggregate:
        """The aggregate of everything counted."""
        self._flush()
        place = self._place
        by_bucket = self._clients.table()
        timed = by_bucket.keys[0] != _NO_TIME
        clients = grouped(np.array([np.full(len(by_bucket), place), by_bucket.keys[1]]), by_bucket.values, CLIENTS)
        for value, counted in self._constant.items():
            self._headers.add(np.array([[value]]), np.array([counted]).T)
        buckets, classes = np.nonzero(self._classes[0])
        rows = self._classes[:, buckets, classes]
        times = np.array(self._buckets, np.int64)[buckets]
        real = times != _NO_TIME
        places = np.full(len(times), place)
        ids = sorted(self._ids.items())
        own = [place] if self._runs else []
        return Aggregate(
            self._scale,
            self._extent,
            grouped(np.array([places, classes]), rows),
            bounded(clients, 1, self._bounds.clients, CLIENTS),
            bounded(self._headers.table(), 0, self._bounds.headers),
            grouped(np.array([own], np.int64), np.array([[self._first], [self._last]])[:, : len(own)], EXTENT),
            grouped(
                np.array([[place] * len(ids), [bucket for bucket, _ in ids]], np.int64),
                np.array([counted for _, counted in ids], np.int64).reshape(-1, 2).T,
            ),
            grouped(np.array([times, places])[:, real], rows[:, real]),
            grouped(np.array([times, classes])[:, real], rows[:, real]),
            bounded(grouped(by_bucket.keys[:, timed], by_bucket.values[:2, timed]), 1, self._bounds.clients),
            runs_of([place] * len(self._runs), [one[0] for one in self._runs], [one[1] for one in self._runs]),
        )
