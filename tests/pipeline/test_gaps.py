"""Whether what a replica lacks is intact in another one: what decides between the exit statuses 3 and 4."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waltzctl.engine.pipeline import running
from waltzctl.engine.pipeline.completeness import gaps
from waltzctl.engine.pipeline.project import open_project
from waltzctl.engine.pipeline.project_creation import create_project
from waltzctl.engine.pipeline.running import RunOptions

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


def nowhere(first: int, count: int | None) -> dict[str, Any]:
    return lack("", first, count, "acknowledged-missing") | {"node": None}


@pytest.mark.parametrize(
    ("taken", "left"),
    [
        ((), [(3, 5)]), ([(0, 3, 6)], []), ([(0, 2, 7)], []), ([(0, 4, 6)], [(3, 3)]), ([(0, 3, 5)], [(5, 5)]),
        ([(0, 4, 5)], [(3, 3), (5, 5)]), ([(0, 5, 6), (0, 3, 4)], [(4, 4)]), ([(0, 0, 3), (0, 6, 9)], [(3, 5)]),
        ([(0, 0, 4)], [(4, 5)]), ([(0, 5, 9)], [(3, 4)]), ([(1, 3, 6)], [(3, 5)]),
    ],
)  # fmt: skip
def test_what_was_nowhere_is_a_gap_until_it_has_come(
    taken: list[tuple[int, int, int]], left: list[tuple[int, int]]
) -> None:
    """Transactions 3 to 5; `taken`: partition, first id, the one behind the last."""
    found = gaps(rows({"a": EXPECTED}), [nowhere(3, 3)], taken)
    assert [(one.first_transaction_id, one.last_transaction_id) for one in found] == left
    assert all((one.node, one.kind, one.elsewhere) == (None, "nowhere", False) for one in found)


def test_what_has_come_is_still_a_gap_of_the_replica_that_lacks_it() -> None:
    """It is in another one: 3, and not 4."""
    named = rows({"a": EXPECTED, "backup": EXPECTED})
    (one,) = gaps(named, [nowhere(3, 1), lack("a", 3, 1)], [(0, 3, 4)])
    assert (one.node, one.kind, one.elsewhere) == ("a", "missing", True)
    assert [one.kind for one in gaps(named, [nowhere(3, None)], [(0, 3, 4)])] == ["nowhere"]


def test_a_run_asks_what_has_come_only_where_something_was_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    lacking: list[dict[str, Any]] = []
    monkeypatch.setattr(running, "_run_programs", lambda *_: None)
    monkeypatch.setattr(running, "uncataloged_tables", lambda *_: ())
    monkeypatch.setattr(running, "mismatched_tables", lambda *_, but: ())
    monkeypatch.setattr(running, "check_columns", lambda *_: None)
    monkeypatch.setattr(running, "check_format", lambda *_: None)
    monkeypatch.setattr(running, "table_rows", lambda *_: rows({"a": EXPECTED, "backup": EXPECTED}))
    monkeypatch.setattr(running, "lacking_rows", lambda *_: lacking)
    monkeypatch.setattr(running, "taken_since", lambda *_: asked.append("taken") or [(0, 3, 4)])
    create_project(tmp_path / "p", ["/n"])
    server: Any = SimpleNamespace(session=SimpleNamespace(spark=None), environment={})

    def status() -> str:
        return running.run_at(server, open_project(tmp_path / "p"), RunOptions(complete=True), print).exit_status_name

    lacking.append(lack("a", 3, 1))
    assert (status(), asked) == ("repairable", [])
    lacking.append(nowhere(3, 1))
    assert (status(), asked) == ("repairable", ["taken"])
    lacking.append(nowhere(5, 1))
    assert status() == "damaged"


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


@pytest.mark.parametrize(("end", "told"), [(5, True), (6, False)])
def test_what_stood_in_the_place_of_the_last_file_is_no_gap_when_that_was_read(end: int, told: bool) -> None:
    """How much was in it nobody knew, so that nothing else takes the row back."""
    found = gaps(rows({"a": end, "b": EXPECTED}), [lack("a", 5, None, "special-file")])
    assert [one.finding for one in found if one.kind == "missing"] == ["special-file"] * told
