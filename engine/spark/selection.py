"""The selection of a read: storages, partitions and transaction ids, by options and by filters of the query.

Filters only save reading: Spark applies every filter to the result again.  A filter also removes rows in which its column is null
(damage without a partition or a transaction id), so these need not be read either.
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
    """The integers from `low` to `high`, both inclusive; with `among` only those that are in it, too."""

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
        """Whether it contains every integer."""
        return self.low is None and self.high is None and self.among is None

    @property
    def empty(self) -> bool:
        """Whether it contains none."""
        if self.among is not None:
            return not any(number in self for number in self.among)
        return self.low is not None and self.high is not None and self.low > self.high

    def narrowed(
        self, *, low: int | None = None, high: int | None = None, among: frozenset[int] | None = None
    ) -> IdBounds:
        """The intersection with these bounds."""
        if among is not None and self.among is not None:
            among &= self.among
        return IdBounds(_pick(max, self.low, low), _pick(min, self.high, high), self.among if among is None else among)

    def span(self) -> tuple[int | None, int | None]:
        """The least and the greatest integer that it can contain; None: no bound."""
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
    """Partitions, ids and storages.  As a collection it has the partitions.

    `named`: the partitions that an option names, and that must exist.  `nodes`: the storages, by their value in the column
    `node`; None: all.
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
        """Whether it selects nothing."""
        if self.named is not None and not any(number in self for number in self.named):
            return True
        return self.partitions.empty or self.ids.empty or self.nodes == frozenset()

    def with_ids(self, first: int | None, last: int | None) -> Selection:
        """Only ids from `first` to `last`, both inclusive."""
        return replace(self, ids=self.ids.narrowed(low=first, high=last))

    @property
    def restricts_partitions(self) -> bool:
        """Whether it leaves any partition out."""
        return self.named is not None or not self.partitions.open


def pushed(selection: Selection, filters: Sequence[Filter]) -> Selection:
    """The selection narrowed by filters on node, partition and transaction_id; other filters are ignored."""
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
    """The storages that a filter allows; None for any other filter."""
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
    """The bounds narrowed by a filter; unchanged where its value is no integer (null, for instance)."""
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
