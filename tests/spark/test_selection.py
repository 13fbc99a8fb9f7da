"""What of a storage is wanted, and how it is cut and packed, as functions of values."""

from __future__ import annotations

from operator import attrgetter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNull,
    LessThan,
    LessThanOrEqual,
)

from waltzctl.engine.inspect.segment_job import SegmentJob
from waltzctl.engine.inspect.targets import Scope
from waltzctl.engine.spark.selection import IdBounds, Selection, pushed
from waltzctl.engine.spark.splits import FLAT, Notice, SegmentPart, _bytes_of, node_of, pack, parts_for, text, total


def among(*numbers: int) -> frozenset[int]:
    return frozenset(numbers)


@pytest.mark.parametrize(
    ("bounds", "inside", "is_open", "empty", "span"),
    [
        (IdBounds(), {1, 2, 3, 4}, True, False, (None, None)),
        (IdBounds(low=2), {2, 3, 4}, False, False, (2, None)),
        (IdBounds(high=2), {1, 2}, False, False, (None, 2)),
        (IdBounds(2, 3), {2, 3}, False, False, (2, 3)),
        (IdBounds(3, 3), {3}, False, False, (3, 3)),
        (IdBounds(4, 3), set(), False, True, (4, 3)),
        (IdBounds(among=among(1, 3, 9)), {1, 3}, False, False, (1, 9)),
        (IdBounds(2, 8, among(1, 3, 9)), {3}, False, False, (3, 3)),
        (IdBounds(4, None, among(1, 3)), set(), False, True, (1, 0)),
        (IdBounds(among=among()), set(), False, True, (1, 0)),
    ],
)
def test_bounds(
    bounds: IdBounds, inside: set[int], is_open: bool, empty: bool, span: tuple[int | None, int | None]
) -> None:
    assert {number for number in (1, 2, 3, 4) if number in bounds} == inside
    assert (bounds.open, bounds.empty, bounds.span()) == (is_open, empty, span)


def test_bounds_are_narrowed_by_either_side() -> None:
    assert IdBounds(2, 9).narrowed() == IdBounds(2, 9)
    assert IdBounds(2, 9).narrowed(low=1, high=10) == IdBounds(2, 9)
    assert IdBounds(2, 9).narrowed(low=3, high=8) == IdBounds(3, 8)
    assert IdBounds().narrowed(low=3, high=8, among=among(1, 5)) == IdBounds(3, 8, among(1, 5))
    assert IdBounds(among=among(1, 5)).narrowed(among=among(5, 6)) == IdBounds(among=among(5))
    assert IdBounds(among=among(1, 5)).narrowed(low=2) == IdBounds(2, None, among(1, 5))


def test_a_selection_is_a_collection_of_partitions() -> None:
    named, bounded = Selection(among(3, 1)), Selection(partitions=IdBounds(high=1))
    assert (list(named), len(named), list(bounded), len(bounded)) == ([1, 3], 2, [], 0)
    assert [number for number in (0, 1, 2, 3, "1") if number in named] == [1, 3]
    assert [number for number in (0, 1, 2, None) if number in bounded] == [0, 1]
    assert (Selection().restricts_partitions, named.restricts_partitions, bounded.restricts_partitions) == (
        False, True, True,
    )  # fmt: skip
    assert [one.empty for one in (Selection(), named, bounded, Selection(among()))] == [False, False, False, True]
    assert Selection(among(3), IdBounds(high=2)).empty
    assert not Selection(among(2, 3), IdBounds(high=2)).empty
    assert Selection(partitions=IdBounds(2, 1)).empty
    assert Selection().with_ids(5, 4).empty
    assert Selection(nodes=frozenset()).empty
    assert not Selection(nodes=frozenset({"a"})).empty
    assert Selection(ids=IdBounds(2)).with_ids(1, 7).ids == IdBounds(2, 7)


ID, PARTITION, MOST = ("transaction_id",), ("Partition",), 2**63 - 1


@pytest.mark.parametrize(
    ("one", "bounds"),
    [
        (EqualTo(ID, 5), IdBounds(5, 5)),
        (EqualNullSafe(ID, 5), IdBounds(5, 5)),
        (GreaterThan(ID, 5), IdBounds(low=6)),
        (GreaterThanOrEqual(ID, 5), IdBounds(low=5)),
        (LessThan(ID, 5), IdBounds(high=4)),
        (LessThanOrEqual(ID, 5), IdBounds(high=5)),
        (In(ID, (1, None, 3)), IdBounds(among=among(1, 3))),
        (In(ID, (1, True)), IdBounds()),
        (In(ID, ("1",)), IdBounds()),
        (IsNull(ID), IdBounds()),
        (EqualTo(ID, MOST), IdBounds(MOST, MOST)),
        (EqualTo(ID, MOST + 1), IdBounds()),
        (EqualTo(ID, -MOST), IdBounds(-MOST, -MOST)),
    ],
)
def test_a_filter_bounds_ids_or_partitions(one: Filter, bounds: IdBounds) -> None:
    assert pushed(Selection(), [one]) == Selection(ids=bounds)
    of_partition = type(one)(PARTITION, *([one.value] if hasattr(one, "value") else []))  # type: ignore[call-arg]
    assert pushed(Selection(), [of_partition]) == Selection(partitions=bounds)


def test_filters_that_cannot_be_used_do_not_hide_those_behind_them() -> None:
    filters = [
        object(),
        EqualTo(("a", "transaction_id"), 1),
        EqualTo(("transaction_id", "a"), 1),
        EqualTo(("header",), 1),
    ]
    filters += [LessThan(ID, 9), EqualTo(ID, 4)]
    assert pushed(Selection(), filters) == Selection(ids=IdBounds(4, 4))  # type: ignore[arg-type]


def test_nodes_are_those_that_every_filter_leaves() -> None:
    node = ("Node",)
    assert pushed(Selection(), [EqualNullSafe(node, None), EqualTo(node, 5), IsNull(node)]).nodes is None
    assert pushed(Selection(), [In(node, ("a", None, "b")), EqualTo(node, "b")]).nodes == {"b"}
    assert pushed(Selection(), [EqualTo(node, "a"), EqualTo(node, "b")]).empty


@pytest.mark.parametrize(
    ("one", "nodes"),
    [
        (EqualTo(("node",), "a"), {"a"}),
        (EqualNullSafe(("NODE",), "a"), {"a"}),
        (EqualTo(("node",), None), set()),
        (EqualNullSafe(("node",), None), None),
        (In(("node",), ("a", None, "b")), {"a", "b"}),
        (In(("node",), (None,)), set()),
        (In(("node",), ("a", 5)), None),
        (EqualTo(("node",), 5), None),
        (LessThan(("node",), "b"), None),
    ],
)
def test_a_filter_names_the_storages_that_it_leaves(one: Any, nodes: set[str] | None) -> None:
    """With nothing in common with null, unless null is what it asks for."""
    assert pushed(Selection(), [one]).nodes == nodes
    named = pushed(Selection(nodes=frozenset("ac")), [one]).nodes
    assert named == (set("ac") if nodes is None else nodes & set("ac"))


def test_a_filter_of_a_kind_that_is_not_known_bounds_nothing() -> None:
    """Of a later Spark, perhaps."""
    other: Any = SimpleNamespace(attribute=ID, value=5)
    assert pushed(Selection(ids=IdBounds(2, 7)), [other]) == Selection(ids=IdBounds(2, 7))


# ---- how it is cut -------------------------------------------------------------------------------------------------------


def job(size: int, first: int = 0) -> SegmentJob:
    return SegmentJob(Path("/p/0"), first, bytes=size)


@pytest.mark.parametrize(
    ("size", "split", "parts"), [(0, 100, 1), (149, 100, 1), (150, 100, 2), (249, 100, 2), (250, 100, 3)]
)
def test_the_last_part_is_no_less_than_half_a_split(size: int, split: int, parts: int) -> None:
    assert parts_for(size, split) == parts


@pytest.mark.parametrize(
    ("entries", "first", "last", "size"),
    [
        (None, 5, 6, 1000),
        (0, 5, 6, 1000),
        (100, None, None, 1000),
        (100, 20, 20, 10),
        (100, 20, 29, 100),
        (100, 19, 29, 100),
        (100, None, 29, 100),
        (100, 110, None, 100),
        (100, 119, None, 10),
        (100, 120, None, 1000),  # behind what the index knows
        (100, 0, 10, 10),  # nothing of it, of which a task sees the beginning
        (100, 30, 500, 900),
    ],
)
def test_only_the_ids_that_are_wanted_weigh(
    entries: int | None, first: int | None, last: int | None, size: int
) -> None:
    assert _bytes_of(job(1000, 20), entries, first, last) == size


def test_a_packet_is_full_behind_its_size_and_one_segment_more() -> None:
    def part(size: int) -> SegmentPart:
        return SegmentPart("n", job(size - FLAT), None)

    notice = Notice("n", ())
    split, weight = 4 * FLAT, attrgetter("cost")
    assert [len(one) for one in pack([part(2 * FLAT), part(2 * FLAT)], split, weight)] == [2]
    assert [len(one) for one in pack([part(2 * FLAT), part(2 * FLAT + 1)], split, weight)] == [1, 1]
    assert [len(one) for one in pack([part(9 * FLAT), notice, part(FLAT), notice], split, weight)] == [2, 2]
    assert [len(one) for one in pack([notice, part(9 * FLAT), part(FLAT)], split, weight)] == [2, 1]
    assert [len(one) for one in pack([part(2 * FLAT)] * 5, split, weight)] == [2, 2, 1]
    assert [len(one) for one in pack([part(9 * FLAT), part(2 * FLAT), part(2 * FLAT)], split, weight)] == [1, 2]
    assert [len(one) for one in pack([part(9 * FLAT), part(2 * FLAT), part(2 * FLAT + 1)], split, weight)] == [1, 1, 1]
    assert list(pack([], split, weight)) == []
    assert total([part(7 + FLAT), part(8 + FLAT)]) == 15 + 2 * FLAT
    assert SegmentPart("n", job(100), None, count=4).cost == 25 + FLAT


def test_a_node_is_what_was_named() -> None:
    """The storage, or of what lies outside any the control file that was named alone."""
    storage, control = Path("/s"), Path("/elsewhere/waltz-storage.ctl")
    scopes = (Scope(storage, storage / control.name), Scope(None, control), Scope(None, None))
    assert [node_of(one) for one in scopes] == ["/s", str(control), ""]


def test_a_name_that_is_no_text_is_shown_with_marks() -> None:
    assert text("/a/\udcff") == "/a/\ufffd"
