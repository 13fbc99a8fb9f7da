"""Whether what a replica lacks is intact in another one: what decides between the exit statuses 3 and 4."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waltzctl.engine.pipeline.completeness import gaps

EXPECTED = 8


def rows(ends: dict[str, int]) -> list[dict[str, Any]]:
    """Of replicas that hold transactions 0 to their `end` - 1, apart from what is in quarantine."""
    return [
        {
            "node": node,
            "partition": 0,
            "expected": EXPECTED,
            "behind": EXPECTED - end,
            "last_transaction_id": end - 1,
        }
        for node, end in ends.items()
    ]


def lack(node: str, first: int, count: int | None, finding: str = "segment-gap") -> dict[str, Any]:
    return {"node": node, "partition": 0, "transaction_id": first, "missing": count, "finding": finding, "remedy": "x"}


def elsewhere(ends: dict[str, int], *lacks: dict[str, Any]) -> list[tuple[str | None, int | None, bool]]:
    return [(one.node, one.first_transaction_id, one.elsewhere) for one in gaps(rows(ends), list(lacks))]


@pytest.mark.parametrize(("end", "whole"), [(3, False), (4, False), (5, True), (8, True)])
def test_another_replica_goes_as_far_as_what_is_lacking(end: int, whole: bool) -> None:
    """Transactions 3 and 4 of a."""
    found = elsewhere({"a": EXPECTED, "b": end}, lack("a", 3, 2))
    assert found[0] == ("a", 3, whole)


@pytest.mark.parametrize(
    ("first", "count", "whole"),
    [(0, 2, True), (0, 3, True), (0, 4, False), (2, 1, True), (3, 1, False), (4, 1, False), (5, 1, True), (5, None, True),
     (4, None, False), (0, None, False)],
)  # fmt: skip
def test_another_replica_lacks_nothing_of_it(first: int, count: int | None, whole: bool) -> None:
    """Transactions 3 and 4 of a; what b lacks begins at `first`."""
    found = elsewhere({"a": EXPECTED, "b": EXPECTED}, lack("a", 3, 2), lack("b", first, count))
    assert ("a", 3, whole) in found


def test_of_another_partition_nothing_is_counted() -> None:
    (one,) = gaps(
        [*rows({"a": EXPECTED}), {"node": "b", "partition": 1, "expected": 9, "behind": 0, "last_transaction_id": 8}],
        [lack("a", 3, 1)],
    )
    assert one.elsewhere is False


@pytest.mark.parametrize(
    ("last", "gap"),
    [(3, (4, 7)), (4, (5, 7)), (6, (7, 7)), (7, None), (8, None), (2, (4, 7))],
)
def test_a_replica_that_has_by_now_what_was_not_read_of_it_lacks_nothing(
    last: int, gap: tuple[int, int] | None
) -> None:
    """Read up to 3, of 8; `last`: that of the replica when it was asked afterwards."""
    (row,) = rows({"b": 4})
    found = gaps([*rows({"a": EXPECTED}), row | {"last_transaction_id": last}], [])
    assert [(one.first_transaction_id, one.last_transaction_id) for one in found] == ([] if gap is None else [gap])
    assert all((one.node, one.kind, one.elsewhere) == ("b", "behind", True) for one in found)
    damaged = gaps([*rows({"a": EXPECTED}), row | {"last_transaction_id": last}], [lack("a", 5, 1)])
    assert ("a", 5, False) in [(one.node, one.first_transaction_id, one.elsewhere) for one in damaged], (
        "b is not read there"
    )


@given(
    st.lists(st.integers(0, EXPECTED), min_size=1, max_size=4),
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, EXPECTED - 1), st.integers(1, 3)), max_size=4),
)
def test_a_gap_is_elsewhere_where_another_replica_has_all_of_it(
    ends: list[int], lost: list[tuple[int, int, int]]
) -> None:
    names = [f"n{number}" for number in range(len(ends))]
    held = {name: {*range(end)} for name, end in zip(names, ends, strict=True)}
    lacks = []
    for number, first, count in lost:
        name = names[number % len(names)]
        ids = {*range(first, min(first + count, ends[number % len(names)]))}
        if ids and ids <= held[name]:
            held[name] -= ids
            lacks.append(lack(name, first, len(ids)))
    for one in gaps(rows(dict(zip(names, ends, strict=True))), lacks):
        assert one.first_transaction_id is not None
        assert one.last_transaction_id is not None
        wanted = {*range(one.first_transaction_id, one.last_transaction_id + 1)}
        assert not wanted & held[one.node or ""]
        assert one.elsewhere == any(wanted <= other for name, other in held.items() if name != one.node)
