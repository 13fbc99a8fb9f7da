"""What of the storages is wanted: partitions and transaction ids, as options and filters bound them, and which storages.

A filter is only ever used to leave out what it would remove from the result: Spark applies every filter again.  Rows in which
the filtered column is null (damage that belongs to no partition or no transaction) are among what it removes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter

_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True)
class IdBounds:
    """Integers from `low` to `high`, both inclusive, and of these, where `among` is given, only its members."""

    low: int | None = None
    high: int | None = None
    among: frozenset[int] | None = None

    def __contains__(self, number: int) -> bool:
        return (
            (self.low is None or number >= self.low)
            and (self.high is None or number <= self.high)
            and (self.among is None or number in self.among)
        )

    @property
    def open(self) -> bool:
        """Whether every number is in it."""
        return self.low is None and self.high is None and self.among is None

    @property
    def empty(self) -> bool:
        """Whether none is."""
        if self.among is not None:
            return not any(number in self for number in self.among)
        return self.low is not None and self.high is not None and self.low > self.high

    def narrowed(
        self, *, low: int | None = None, high: int | None = None, among: frozenset[int] | None = None
    ) -> IdBounds:
        """What is in this and in the other as well."""
        if among is not None and self.among is not None:
            among &= self.among
        return IdBounds(_pick(max, self.low, low), _pick(min, self.high, high), self.among if among is None else among)

    def span(self) -> tuple[int | None, int | None]:
        """The least and the greatest that can be in it; None is no bound."""
        if self.among is None:
            return self.low, self.high
        members = [number for number in self.among if number in self]
        return (min(members), max(members)) if members else (1, 0)


def _pick(choose: Any, one: int | None, other: int | None) -> int | None:
    if one is None or other is None:
        return one if other is None else other
    picked: int = choose(one, other)
    return picked


@dataclass(frozen=True, slots=True)
class Selection(Collection[int]):
    """Partitions and ids.  As a collection it is the partitions; `named` are those that an option names, and must exist.

    `nodes`: the storages, by what the column of that name says; None: all.
    """

    named: frozenset[int] | None = None
    partitions: IdBounds = IdBounds()
    ids: IdBounds = IdBounds()
    nodes: frozenset[str] | None = None

    def __contains__(self, number: object) -> bool:
        return isinstance(number, int) and number in self.partitions and (self.named is None or number in self.named)

    def __iter__(self) -> Iterator[int]:
        return iter(sorted(self.named or ()))

    def __len__(self) -> int:
        return len(self.named or ())

    @property
    def empty(self) -> bool:
        """Whether nothing can be in it."""
        if self.named is not None and not any(number in self for number in self.named):
            return True
        return self.partitions.empty or self.ids.empty or self.nodes == frozenset()

    def with_ids(self, first: int | None, last: int | None) -> Selection:
        """Only ids from `first` to `last`, both inclusive."""
        return replace(self, ids=self.ids.narrowed(low=first, high=last))

    @property
    def restricts_partitions(self) -> bool:
        """Whether some partition is not in it."""
        return self.named is not None or not self.partitions.open


def pushed(selection: Selection, filters: Sequence[Filter]) -> Selection:
    """The selection with what filters on node, partition and transaction_id leave of it; other filters change nothing."""
    for one in filters:
        attribute = getattr(one, "attribute", None)
        if attribute is None or len(attribute) != 1:
            continue
        column = attribute[0].lower()
        if column == "partition":
            selection = replace(selection, partitions=_narrow(selection.partitions, one))
        elif column == "transaction_id":
            selection = replace(selection, ids=_narrow(selection.ids, one))
        elif column == "node" and (nodes := _nodes(one)) is not None:
            selection = replace(selection, nodes=nodes if selection.nodes is None else selection.nodes & nodes)
    return selection


def _nodes(one: Filter) -> frozenset[str] | None:
    """The storages that a filter leaves; None where it says nothing of that kind."""
    from pyspark.sql import datasource as spark

    if isinstance(one, spark.In):
        members = list(one.value or ())
    elif isinstance(one, (spark.EqualTo, spark.EqualNullSafe)):
        members = [one.value]
    else:
        return None
    if isinstance(one, spark.EqualNullSafe) and one.value is None:
        return None
    wanted = [member for member in members if member is not None]
    return frozenset(wanted) if all(isinstance(member, str) for member in wanted) else None


def _narrow(bounds: IdBounds, one: Filter) -> IdBounds:
    """Where a value is no integer (null, for instance) nothing is concluded."""
    from pyspark.sql import datasource as spark

    value = getattr(one, "value", None)
    if isinstance(one, spark.In):
        members = list(value or ())
        if any(member is not None and not _integer(member) for member in members):
            return bounds
        return bounds.narrowed(among=frozenset(member for member in members if member is not None))
    if not _integer(value):
        return bounds
    assert isinstance(value, int)
    if isinstance(one, (spark.EqualTo, spark.EqualNullSafe)):
        return bounds.narrowed(low=value, high=value)
    if isinstance(one, spark.GreaterThanOrEqual):
        return bounds.narrowed(low=value)
    if isinstance(one, spark.GreaterThan):
        return bounds.narrowed(low=value + 1)
    if isinstance(one, spark.LessThanOrEqual):
        return bounds.narrowed(high=value)
    if isinstance(one, spark.LessThan):
        return bounds.narrowed(high=value - 1)
    return bounds


def _integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) <= _MAX
