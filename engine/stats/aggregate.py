"""The aggregate: sums over records by partition, size class, client, header value, time and transaction id.

Merging aggregates is commutative and associative: the result does not depend on how the records were cut into parts or on the
order of merging, as long as the tables of clients and of header values stay within their bounds
(`engine.stats.sum_tables.Ranked`).  A partition is identified by its `place`, a number assigned in planning, because several
storage directories may have a partition of the same number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from waltzctl.engine.stats.axes import Interval, Scale, id_shift, joined
from waltzctl.engine.stats.coverage import Runs, runs_of, united
from waltzctl.engine.stats.sum_tables import (
    SUMS,
    How,
    Ints,
    Ranked,
    Table,
    bounded,
    coarser_ranked,
    empty,
    merged,
    merged_ranked,
    with_key,
)

CLIENTS: How = (*SUMS, np.minimum, np.maximum)
"""How each value column is merged: records and bytes are added; lowest and highest generation."""
EXTENT: How = (np.minimum, np.maximum)
"""How the extent of ids is merged: smallest and largest id."""
CLIENT_ROWS = 1 << 20
"""Most rows of each table of clients, which has a row per client and partition, or per client and bucket of time."""
HEADER_ROWS = 1 << 16
"""Most header values that are counted separately."""


@dataclass(frozen=True, slots=True)
class Aggregate:
    """Sums over a set of records.  Each table's first two value columns are records and bytes (on disk: 40 + data, each).

    ==============  ==========================================================================================
    `classes`       by (place, size class); class 0 is empty data, class k a data length from 2^(k-1) to 2^k - 1
    `clients`       by (place, client), with the lowest and the highest generation
    `headers`       by (header value)
    `id_extents`    by (place): no sums, but the smallest and the largest transaction id
    `ids`           by (place, transaction id >> shift); the shift follows from the partition's extent of ids
    `time_places`   by (bucket, place)
    `time_classes`  by (bucket, size class)
    `time_clients`  by (bucket, client)
    ==============  ==========================================================================================

    A bucket of time is milliseconds since 1970 (UTC) divided by the width that `scale` gives for `extent`.  `extent` goes from
    the beginning of the first interval to the end of the last one, over all segments whose interval is known; records of other
    segments are in no bucket.  `runs`: the ids that were seen.
    """

    scale: Scale
    extent: Interval | None
    classes: Table
    clients: Ranked
    headers: Ranked
    id_extents: Table
    ids: Table
    time_places: Table
    time_classes: Table
    time_clients: Ranked
    runs: Runs

    @property
    def width(self) -> int:
        """Width of a bucket of time, in milliseconds."""
        return self.scale.width(self.extent)

    @property
    def rows(self) -> int:
        """Number of rows in all tables, a measure of the memory used."""
        tables = (self.classes, self.ids, self.time_places, self.time_classes)
        ranked = (self.clients, self.headers, self.time_clients)
        return sum(map(len, tables)) + sum(len(one.table) for one in ranked) + len(self.runs)


@dataclass(frozen=True, slots=True)
class TableBounds:
    """Most rows of the tables that would otherwise grow without limit."""

    clients: int = CLIENT_ROWS
    headers: int = HEADER_ROWS


def nothing(scale: Scale, bounds: TableBounds = TableBounds(), extent: Interval | None = None) -> Aggregate:  # frozen
    """The aggregate of no records."""
    return Aggregate(
        scale,
        extent,
        empty(2, 2),
        bounded(empty(2, 4), 1, bounds.clients, CLIENTS),
        bounded(empty(1, 2), 0, bounds.headers),
        empty(1, 2),
        empty(2, 2),
        empty(2, 2),
        empty(2, 2),
        bounded(empty(2, 2), 1, bounds.clients),
        runs_of([], [], []),
    )


def merge(parts: Sequence[Aggregate]) -> Aggregate:
    """The aggregate of all records of `parts`: one or more aggregates, made with the same scale and bounds."""
    if len(parts) == 1:
        return parts[0]
    extent = None
    for one in parts:
        extent = joined(extent, one.extent)
    scale = parts[0].scale
    width = scale.width(extent)
    extents = merged([one.id_extents for one in parts], EXTENT)
    shifts = shifts_of(extents)
    return Aggregate(
        scale,
        extent,
        merged([one.classes for one in parts]),
        merged_ranked([one.clients for one in parts]),
        merged_ranked([one.headers for one in parts]),
        extents,
        merged([_with_shifts(one, shifts) for one in parts]),
        merged([_with_width(one.time_places, one.width, width) for one in parts]),
        merged([_with_width(one.time_classes, one.width, width) for one in parts]),
        merged_ranked([_ranked_with_width(one.time_clients, one.width, width) for one in parts]),
        united([one.runs for one in parts]),
    )


def shifts_of(id_extents: Table) -> dict[int, int]:
    """By place: the shift; transaction ids are counted in buckets of 2^shift ids."""
    rows = zip(id_extents.keys[0].tolist(), *id_extents.values.tolist(), strict=True)
    return {place: id_shift(first, last) for place, first, last in rows}


def _with_shifts(part: Aggregate, wanted: dict[int, int]) -> Table:
    """The table of ids of `part`, with buckets widened to the `wanted` shifts."""
    own = shifts_of(part.id_extents)
    more = {place: wanted[place] - shift for place, shift in own.items()}
    if not any(more.values()):
        return part.ids
    place, bucket = part.ids.keys
    known = np.array(sorted(more), np.int64)
    by = np.array([more[int(one)] for one in known], np.int64)
    return with_key(part.ids, 1, bucket >> by[np.searchsorted(known, place)])


def _coarser(bucket: Ints, width: int, wanted: int) -> Ints:
    coarse: Ints = bucket // (wanted // width)
    return coarse


def _with_width(table: Table, width: int, wanted: int) -> Table:
    if width == wanted or not len(table):
        return table
    return with_key(table, 0, _coarser(table.keys[0], width, wanted))


def _ranked_with_width(ranked: Ranked, width: int, wanted: int) -> Ranked:
    if width == wanted or not len(ranked.table):
        return ranked
    return coarser_ranked(ranked, 0, _coarser(ranked.table.keys[0], width, wanted))


class Collector:
    """Merges aggregates as they arrive, in batches of up to MANY aggregates or ROWS rows."""

    MANY = 64
    ROWS = 1 << 21

    def __init__(self, scale: Scale, bounds: TableBounds = TableBounds()) -> None:  # frozen
        self._parts = [nothing(scale, bounds)]
        self._rows = 0

    def add(self, part: Aggregate) -> None:
        """Add an aggregate."""
        self._parts.append(part)
        self._rows += part.rows
        if len(self._parts) > self.MANY or self._rows > self.ROWS:
            self.result()

    def result(self) -> Aggregate:
        """The merged aggregate of everything added so far."""
        self._parts = [merge(self._parts)]
        self._rows = 0
        return self._parts[0]
