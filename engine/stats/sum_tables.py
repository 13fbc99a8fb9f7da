"""Mergeable tables of sums, from which all numbers of stats are computed.

A table has key columns and value columns, all int64, with one row per distinct key, sorted by key.  Grouping adds (or takes the
minimum or maximum of) the values of equal keys.  That is commutative and associative, so the table does not depend on how the
records are cut into parts, or on the order of merging.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
How = tuple[Any, ...]
"""For each value column the NumPy ufunc that merges two values: add, minimum or maximum."""

SUMS: How = (np.add, np.add)
"""For the value columns records and bytes: both are added."""


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """A table, stored by column: `keys[i]` and `values[i]` are its i-th key and value column.  `len`: number of rows."""

    keys: Ints
    values: Ints

    def __len__(self) -> int:
        return int(self.keys.shape[1])

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Table)
            and np.array_equal(self.keys, other.keys)
            and np.array_equal(self.values, other.values)
        )

    __hash__ = None  # type: ignore[assignment]  # arrays are not hashable


def empty(keys: int, values: int) -> Table:
    """A table without rows."""
    return Table(np.empty((keys, 0), np.int64), np.empty((values, 0), np.int64))


def grouped(keys: Ints, values: Ints, how: How = SUMS) -> Table:
    """The table with one row per distinct key, sorted by key."""
    count = keys.shape[1]
    if not count:
        return Table(keys, values)
    order = np.lexsort(keys[::-1])
    keys = keys[:, order]
    differs = np.empty(count, np.bool_)
    differs[0] = True
    np.any(keys[:, 1:] != keys[:, :-1], axis=0, out=differs[1:])
    starts = np.flatnonzero(differs)
    joined = [ufunc.reduceat(row[order], starts) for ufunc, row in zip(how, values, strict=True)]
    return Table(np.ascontiguousarray(keys[:, starts]), np.array(joined, np.int64).reshape(len(how), len(starts)))


def merged(tables: Sequence[Table], how: How = SUMS) -> Table:
    """The rows of all `tables` (one or more), grouped."""
    if len(tables) == 1:
        return tables[0]
    keys = np.concatenate([one.keys for one in tables], axis=1)
    return grouped(keys, np.concatenate([one.values for one in tables], axis=1), how)


def with_key(table: Table, number: int, column: Ints, how: How = SUMS) -> Table:
    """The table with key column `number` replaced by `column`, grouped again."""
    keys = table.keys.copy()
    keys[number] = column
    return grouped(keys, table.values, how)


@dataclass(frozen=True, slots=True)
class Ranked:
    """A table of at most `limit` rows whose key column number `owner` has unboundedly many values: clients, header values.

    The first two value columns are records and bytes.  With at most `limit` rows the table is exact.  With more, all rows of the
    owners with the fewest records and the fewest bytes are dropped.  Then each owner, also one that is not in the table, may have
    up to `missed_records` records and `missed_bytes` bytes more than the table says.
    """

    table: Table
    owner: int
    limit: int
    how: How = SUMS
    missed_records: int = 0
    missed_bytes: int = 0

    @property
    def exact(self) -> bool:
        """Whether nothing was dropped."""
        return not (self.missed_records or self.missed_bytes)


def bounded(table: Table, owner: int, limit: int, how: How = SUMS, missed: tuple[int, int] = (0, 0)) -> Ranked:
    """The table, cut to `limit` rows if necessary; `missed`: records and bytes that were already missed before."""
    if len(table) <= limit:
        return Ranked(table, owner, limit, how, *missed)
    names, place, rows = np.unique(table.keys[owner], return_inverse=True, return_counts=True)
    totals = np.zeros((2, len(names)), np.int64)
    for number in range(2):
        np.add.at(totals[number], place, table.values[number])
    ranks = np.empty((2, len(names)), np.int64)
    for number in range(2):
        ranks[number, np.lexsort((names, -totals[number]))] = np.arange(len(names))
    best = np.lexsort((names, ranks.min(axis=0)))  # alternately the next owner by records and the next one by bytes
    kept = np.zeros(len(names), np.bool_)
    kept[best[np.cumsum(rows[best]) <= limit]] = True
    dropped = totals[:, ~kept]
    chosen = kept[place]
    return Ranked(
        Table(np.ascontiguousarray(table.keys[:, chosen]), np.ascontiguousarray(table.values[:, chosen])),
        owner,
        limit,
        how,
        missed[0] + int(dropped[0].max(initial=0)),
        missed[1] + int(dropped[1].max(initial=0)),
    )


def merged_ranked(parts: Sequence[Ranked]) -> Ranked:
    """The merged table of `parts`: one or more of the same kind.  Exact if all rows fit; see `Ranked`."""
    first = parts[0]
    if len(parts) == 1:
        return first
    missed = sum(one.missed_records for one in parts), sum(one.missed_bytes for one in parts)
    return bounded(merged([one.table for one in parts], first.how), first.owner, first.limit, first.how, missed)


def coarser_ranked(ranked: Ranked, number: int, column: Ints) -> Ranked:
    """The table with key column `number` replaced by a coarser `column`, which reduces the number of rows."""
    table = with_key(ranked.table, number, column, ranked.how)
    return Ranked(table, ranked.owner, ranked.limit, ranked.how, ranked.missed_records, ranked.missed_bytes)
