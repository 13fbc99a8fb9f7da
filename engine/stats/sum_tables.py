"""Tables of sums that can be cut, merged and merged again: the ground on which every number of stats stands.

A table has key columns and value columns, int64 throughout, one row for each key, in the order of the keys.  Grouping adds (or
takes the smallest or largest of) the values of equal keys.  That is commutative and associative, so that any cut of the records
into parts, and any order of merging, ends in the same table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
How = tuple[Any, ...]
"""For each value column the ufunc that joins two values: add, minimum or maximum."""

SUMS: How = (np.add, np.add)
"""Records and bytes."""


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """`keys` and `values` have one row for each column of the table, and as many columns as there are different keys."""

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

    __hash__ = None  # type: ignore[assignment]  # arrays are no keys


def empty(keys: int, values: int) -> Table:
    """A table without rows."""
    return Table(np.empty((keys, 0), np.int64), np.empty((values, 0), np.int64))


def grouped(keys: Ints, values: Ints, how: How = SUMS) -> Table:
    """One row for each different key, in the order of the keys."""
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
    """All rows of all tables, at least one table, grouped."""
    if len(tables) == 1:
        return tables[0]
    keys = np.concatenate([one.keys for one in tables], axis=1)
    return grouped(keys, np.concatenate([one.values for one in tables], axis=1), how)


def with_key(table: Table, number: int, column: Ints, how: How = SUMS) -> Table:
    """The table with another key column in the place of one, grouped anew."""
    keys = table.keys.copy()
    keys[number] = column
    return grouped(keys, table.values, how)


@dataclass(frozen=True, slots=True)
class Ranked:
    """A table of at most `limit` rows, about things of which there may be any number: clients, header values.

    The key column `owner` names the thing.  While there are at most `limit` rows nothing is lost and the table is exact.  Beyond
    that the things with the fewest records and the fewest bytes are dropped.  `missed_records` and `missed_bytes` then bound what
    any one thing may have more than the table says, and also what a thing that is not in it may have.  The first two value
    columns are records and bytes.
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
    """The table itself where it fits, else what matters most of it; `missed` was missed before."""
    if len(table) <= limit:
        return Ranked(table, owner, limit, how, *missed)
    names, place, rows = np.unique(table.keys[owner], return_inverse=True, return_counts=True)
    totals = np.zeros((2, len(names)), np.int64)
    for number in range(2):
        np.add.at(totals[number], place, table.values[number])
    ranks = np.empty((2, len(names)), np.int64)
    for number in range(2):
        ranks[number, np.lexsort((names, -totals[number]))] = np.arange(len(names))
    best = np.lexsort((names, ranks.min(axis=0)))  # in turn the one with most records and the one with most bytes
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
    """Ranked tables, at least one, of the same kind, merged.  Exact where it fits; see `Ranked` for the rest."""
    first = parts[0]
    if len(parts) == 1:
        return first
    missed = sum(one.missed_records for one in parts), sum(one.missed_bytes for one in parts)
    return bounded(merged([one.table for one in parts], first.how), first.owner, first.limit, first.how, missed)


def coarser_ranked(ranked: Ranked, number: int, column: Ints) -> Ranked:
    """The same with another key column, which makes rows fewer."""
    table = with_key(ranked.table, number, column, ranked.how)
    return Ranked(table, ranked.owner, ranked.limit, ranked.how, ranked.missed_records, ranked.missed_bytes)
