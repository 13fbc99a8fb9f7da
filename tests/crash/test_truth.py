"""The judge: each way of breaking a promise is named, and what a crash may do is not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.builders import make_records
from tests.crash.simdisk import Tree
from tests.crash.truth import (
    FORGOTTEN,
    NO_MARKS,
    AbsentSeen,
    PartitionSeen,
    PartitionTruth,
    Seen,
    Truth,
    judge,
    narrowed,
)
from waltzctl.formats.segment import Record, segment_name

RECORDS = make_records(6)
NOTHING = Tree({}, frozenset())
IN_FLIGHT = Truth(
    {
        0: PartitionTruth(
            possible=tuple(RECORDS),
            least=3,
            marks=frozenset({NO_MARKS, (1, 2, 2)}),
            switches=frozenset({(True, True), (True, False)}),
        )
    }
)


def shown(records: list[Record], **changes: object) -> Seen:
    seen = PartitionSeen(tuple(records), NO_MARKS, len(records) - 1, False, (True, True), ())
    return Seen({0: replace(seen, **changes)})  # type: ignore[arg-type]


def on_disk(*places: int) -> Tree:
    return Tree({f"0/{segment_name(0)}": b"".join(RECORDS[place].encode() for place in places)}, frozenset({"0"}))


@pytest.mark.parametrize("count", [3, 4, 5, 6])
def test_any_prefix_that_holds_the_acknowledged_records_is_fine(count: int) -> None:
    assert judge(IN_FLIGHT, shown(RECORDS[:count]), NOTHING) == []


@pytest.mark.parametrize("change", [{"marks": (1, 2, 2)}, {"switches": (True, False)}])
def test_what_is_under_way_may_be_seen(change: dict[str, object]) -> None:
    assert judge(IN_FLIGHT, shown(RECORDS, **change), NOTHING) == []


@pytest.mark.parametrize(
    ("seen", "word"),
    [
        (shown(RECORDS[:2]), "were acknowledged"),
        (shown([*RECORDS, *make_records(1, first=6)]), "only 6 may be there"),
        (shown([RECORDS[0], *make_records(1, first=1, seed=8), *RECORDS[2:]]), "place 1 is not transaction 1"),
        (shown([RECORDS[0], RECORDS[2], RECORDS[1]]), "place 1 is not transaction 1"),
        (shown(RECORDS[:3], max_transaction_id=5), "says its last transaction is 5"),
        (shown(RECORDS, marks=(1, 1, 1)), "marks"),
        (shown(RECORDS, switches=(False, False)), "readable, writable"),
        (shown(RECORDS, quarantined=True), "quarantined although"),
        (Seen({}), "not assigned"),
        (Seen({**shown(RECORDS).partitions, 1: shown([]).partitions[0]}), "partition 1: invented"),
        (Seen(error="because"), "cannot be opened: because"),
        (Seen(error="because", absent=True), "cannot be opened"),
        (replace(shown(RECORDS), complaints=("odd",)), "odd"),
    ],
)
def test_a_broken_promise_is_named(seen: Seen, word: str) -> None:
    assert [line for line in judge(IN_FLIGHT, seen, NOTHING) if word in line]


def test_a_directory_may_be_missing_only_while_it_is_made() -> None:
    making = replace(IN_FLIGHT, exists=frozenset({True, False}))
    assert judge(making, Seen(error="nothing there", absent=True), NOTHING) == []
    assert judge(making, Seen(error="half a control file"), NOTHING) != []
    assert judge(replace(IN_FLIGHT, exists=frozenset({False})), shown(RECORDS), NOTHING) != []


@pytest.mark.parametrize(
    ("places", "legitimate"),
    [
        ((0, 1, 2), False),
        ((0, 1, 2, 3, 4, 5), False),
        ((0, 1, 2, 3), False),
        ((0, 1, 2, 4), True),
        ((0, 1, 2, 3, 5), True),
        ((0, 2, 3, 4, 5), False),  # record 1 was acknowledged: that it is gone is no excuse
    ],
)
def test_quarantine_is_legitimate_only_when_records_in_flight_were_persisted_out_of_order(
    places: tuple[int, ...], legitimate: bool
) -> None:
    failures = judge(IN_FLIGHT, shown(RECORDS[:3], quarantined=True), on_disk(*places))
    assert [line for line in failures if "quarantined" in line] == ([] if legitimate else failures)
    assert bool(failures) is not legitimate


def test_while_a_cut_is_under_way_nothing_excuses_a_quarantine() -> None:
    cutting = IN_FLIGHT.with_partition(0, replace(IN_FLIGHT.partitions[0], cutting=True))
    disordered = on_disk(0, 1, 2, 4)
    assert judge(cutting, shown(RECORDS[:3]), disordered) == []
    assert judge(cutting, shown(RECORDS[:3], quarantined=True), disordered) != []
    assert judge(IN_FLIGHT, shown(RECORDS[:3], quarantined=True), disordered) == []


TAKEN_AWAY = Truth(
    {0: PartitionTruth(assigned=frozenset({False}), marks=frozenset({(3, 2, 1)}), fences=frozenset({4, 5}))}
)
KEPT = AbsentSeen(True, (3, 2, 1), (True, True), 4)


@pytest.mark.parametrize(
    ("other", "fine"),
    [
        (KEPT, True),
        (replace(KEPT, fence=5), True),
        (replace(KEPT, fence=3), False),
        (replace(KEPT, fence=6), False),
        (replace(KEPT, marks=NO_MARKS), False),
        (replace(KEPT, switches=(False, True)), False),
        (FORGOTTEN, True),
        (replace(FORGOTTEN, fence=4), False),
        (replace(FORGOTTEN, marks=(3, 2, 1)), False),
        (replace(FORGOTTEN, switches=(True, False)), False),
    ],
)
def test_of_a_partition_that_is_not_assigned_everything_is_left_or_nothing(other: AbsentSeen, fine: bool) -> None:
    assert (judge(TAKEN_AWAY, Seen(others={0: other}), NOTHING) == []) is fine
    assert judge(TAKEN_AWAY, Seen(others={1: FORGOTTEN}), NOTHING) == []
    assert judge(TAKEN_AWAY, Seen(others={1: KEPT}), NOTHING) != []


def test_once_seen_nothing_less_is_enough() -> None:
    held = narrowed(IN_FLIGHT, shown(RECORDS[:5], marks=(1, 2, 2)))
    assert judge(held, shown(RECORDS[:5], marks=(1, 2, 2)), NOTHING) == []
    for less in (shown(RECORDS[:4], marks=(1, 2, 2)), shown(RECORDS, marks=(1, 2, 2)), shown(RECORDS[:5])):
        assert judge(held, less, NOTHING) != []
