"""What a decision means for a replica, on columns of a few transactions: state, cut, and what is replaced, from whom."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import PurePath
from typing import Any

import pytest

from tests.compare.columns import runs_of
from waltzctl.engine.compare import states
from waltzctl.engine.compare.comparison import Range, ReplicaComparison, ReplicaStanding
from waltzctl.engine.compare.states import replaced_ranges, replicas_of
from waltzctl.engine.quorum.vote import Ballot, Kept, decide

PATHS = [PurePath(f"/{number}") for number in range(5)]
Restored = tuple[int, int, int | None]
"""First id, the one behind the last, and the number of the replica that has them."""


def compared(
    *columns: str, ballots: Sequence[Ballot] | None = None, replicas: int | None = None
) -> tuple[ReplicaComparison, ...]:
    known, runs = ballots or [Ballot()] * len(columns), runs_of(*columns)
    decision = decide(runs, known, replicas or len(columns))
    return replicas_of(runs, decision, known, PATHS[: len(columns)])


def restored(one: ReplicaComparison) -> list[Restored]:
    return [(part.first, part.stop, None if part.path is None else PATHS.index(part.path)) for part in one.sources]


@pytest.mark.parametrize(
    ("own", "state", "last", "cut"),
    [
        ("aaaa", ReplicaStanding.EQUAL, 3, None),
        ("aaa", ReplicaStanding.BEHIND, 2, None),
        ("", ReplicaStanding.BEHIND, None, None),
        ("aaaaa", ReplicaStanding.AHEAD, 4, 3),
        ("aaaa!", ReplicaStanding.AHEAD, 3, 3),
        ("aaaaaa", ReplicaStanding.AHEAD, 5, 3),
        ("aaa!", ReplicaStanding.DAMAGED, 2, None),
        ("!!!!", ReplicaStanding.DAMAGED, None, None),
        ("!aaaa", ReplicaStanding.DAMAGED, 4, 3),
        ("aaab", ReplicaStanding.DIVERGED, 3, 2),
        ("bbbb", ReplicaStanding.DIVERGED, 3, -1),
        ("abbb", ReplicaStanding.DIVERGED, 3, 0),
        ("b", ReplicaStanding.DIVERGED, 0, -1),
        ("baaa", ReplicaStanding.DIVERGED, 3, None),
        ("aaba", ReplicaStanding.DIVERGED, 3, None),
        ("baaaa", ReplicaStanding.DIVERGED, 4, 3),
        ("b!aa", ReplicaStanding.DIVERGED, 3, None),
        ("babab", ReplicaStanding.DIVERGED, 4, 3),
        ("baab", ReplicaStanding.DIVERGED, 3, 2),
    ],
)
def test_how_a_replica_stands_to_two_that_agree(
    own: str, state: ReplicaStanding, last: int | None, cut: int | None
) -> None:
    mine, *others = compared(own, "aaaa", "aaaa")
    assert (mine.state, mine.last_transaction_id, mine.cut_after) == (state, last, cut)
    assert [(one.state, one.cut_after, restored(one)) for one in others] == [(ReplicaStanding.EQUAL, None, [])] * 2


@pytest.mark.parametrize(
    ("own", "damaged", "outvoted", "sources"),
    [
        ("aaaa", [], [], []),
        ("aa", [], [], []),
        ("a!aa", [(1, 2)], [], [(1, 2, 1)]),
        ("!!aa", [(0, 2)], [], [(0, 2, 1)]),
        ("aaa!", [(3, 4)], [], [(3, 4, 1)]),
        ("a!a!", [(1, 2), (3, 4)], [], [(1, 2, 1), (3, 4, 1)]),
        ("abaa", [], [(1, 2)], [(1, 2, 1)]),
        ("b!aa", [(1, 2)], [(0, 1)], [(0, 1, 1), (1, 2, 1)]),
        ("!baa", [(0, 1)], [(1, 2)], [(0, 1, 1), (1, 2, 1)]),
        ("a!ba", [(1, 2)], [(2, 3)], [(1, 2, 1), (2, 3, 1)]),
        ("baab", [], [(0, 1), (3, 4)], [(0, 1, 1)]),
        ("bbbb", [], [(0, 4)], []),
        ("a!bb", [(1, 2)], [(2, 4)], [(1, 2, None)]),
        ("ab!b", [(2, 3)], [(1, 2), (3, 4)], [(1, 2, None), (2, 3, None)]),
        ("bc!a", [(2, 3)], [(0, 2)], [(0, 2, 1), (2, 3, 1)]),
    ],
)
def test_what_a_replica_lost_and_from_whom_it_comes_back(
    own: str, damaged: list[Range], outvoted: list[Range], sources: list[Restored]
) -> None:
    mine = compared(own, "aaaa", "aaaa")[0]
    assert ([*mine.damaged], [*mine.outvoted], restored(mine)) == (damaged, outvoted, sources)


@pytest.mark.parametrize(
    ("columns", "sources"),
    [
        (("a!aaaa", "aaaaba", "aaaaaa", "aaaaaa"), [(1, 2, 2)]),  # rather from one that agrees everywhere
        (("a!aaa", "aaa", "aaaaa", "aaaaa"), [(1, 2, 1)]),  # who is behind agrees
        (("a!aa", "aaab", "a!aa"), [(1, 2, 1)]),
        (("a!aa", "a!aa", "aaab", "aaaa", "aaaa"), [(1, 2, 3)]),
        (("a!aa", "a!aa", "aaaa"), [(1, 2, 2)]),
        (("x!a", "yaa", "zaa"), [(1, 2, None)]),  # nobody holds the record in front of it
        (("a!xa", "aaya", "aaza"), [(1, 2, None)]),  # nor the one behind it
        (("!xa", "aya", "aza"), [(0, 1, None)]),
        (("a!a", "!aa", "!aa"), [(1, 2, None)]),  # its own is damaged, or not there, at whoever holds the record
        (("a!a", "aa", "aa"), [(1, 2, None)]),
        (("a!a", "aa!", "aa!"), [(1, 2, None)]),
        (("a!", "aab", "aab"), [(1, 2, 1)]),
        (("!a", "aa", "aa"), [(0, 1, 1)]),
        (("!!!", "aab", "aac", "aac"), [(0, 2, 2), (2, 3, 2)]),
    ],
)
def test_who_restores_a_record_holds_its_neighbours_too(columns: tuple[str, ...], sources: list[Restored]) -> None:
    assert restored(compared(*columns)[0]) == sources


def test_the_first_replica_is_no_better_source_where_it_was_outvoted() -> None:
    assert restored(compared("aaaaba", "aaaaaa", "a!aaaa")[2]) == [(1, 2, 1)]


def test_the_first_replica_is_as_good_a_source_as_any() -> None:
    assert restored(compared("aaaa", "a!aa", "aaaa", "aaaa")[1]) == [(1, 2, 0)]
    assert restored(compared("aaba", "a!aa", "aaaa", "aaaa")[1]) == [(1, 2, 2)]


def test_where_nothing_is_kept_nobody_is_behind() -> None:
    assert [(one.state, one.cut_after) for one in compared("", "", "")] == [(ReplicaStanding.EQUAL, None)] * 3


def test_versions_of_which_none_can_be_chosen_are_neither_replaced_nor_cut() -> None:
    for one in compared("axab", "ayaa", "azaa"):
        assert (one.state, one.outvoted[0], one.cut_after, restored(one)) == (
            ReplicaStanding.DIVERGED,
            (1, 2),
            None,
            [],
        )
    mine, *_ = compared("aab", "aac", replicas=3)
    assert (mine.state, mine.outvoted, mine.cut_after) == (ReplicaStanding.DIVERGED, (), None)


@pytest.mark.parametrize("column", ["xaaa", "axaa", "aaxa"])
def test_who_does_not_hold_what_cannot_be_chosen_is_not_told_to_differ(column: str) -> None:
    """The fourth has lost its record there."""
    found = compared(
        column, column.replace("x", "y"), column.replace("x", "z"), column.replace("x", "w"), column.replace("x", "!")
    )
    at = column.index("x")
    assert [one.outvoted for one in found] == [((at, at + 1),)] * 4 + [()]
    assert (found[4].state, found[4].damaged) == (ReplicaStanding.DAMAGED, ((at, at + 1),))


@pytest.mark.parametrize(
    ("columns", "replicas", "state"),
    [
        (("aab", "aac"), 3, ReplicaStanding.DIVERGED),  # which one is kept is open
        (("aab", "aac", "aad"), 3, ReplicaStanding.AHEAD),  # all three are cut
        (("aa!x", "aa!y", "aa!z"), 4, ReplicaStanding.AHEAD),  # the damaged ones are open, the others are cut
        (("aaa", "aaa"), 5, ReplicaStanding.AHEAD),
        (("aa", "aaaa"), 5, ReplicaStanding.AHEAD),
    ],
)
def test_behind_what_is_kept_versions_differ_only_where_they_are_open(
    columns: tuple[str, ...], replicas: int, state: ReplicaStanding
) -> None:
    assert compared(*columns, replicas=replicas)[0].state is state


def test_what_the_control_file_says_is_handed_on() -> None:
    ballots = [
        Ballot(True, 7, 2, 1),
        Ballot(True, 8, 3, 3, open_end=True),
        Ballot(False),
        Ballot(True, 8),
        Ballot(True, 8),
    ]
    stale, open_end, gone, *_ = compared("aaaa", "aaaa", "", "aaaa", "aaaa", ballots=ballots)
    assert (stale.session_id, stale.low_water_mark, stale.local_low_water_mark) == (7, 2, 1)
    assert [one.path for one in (stale, open_end, gone)] == PATHS[:3]
    assert [one.votes for one in (stale, open_end, gone)] == [False, True, False]
    assert [one.open_end for one in (stale, open_end, gone)] == [False, True, True]
    assert [one.state for one in (stale, open_end, gone)] == [
        ReplicaStanding.EQUAL,
        ReplicaStanding.DAMAGED,
        ReplicaStanding.MISSING,
    ]


def test_a_replica_with_too_many_outvoted_records_is_cut_in_front_of_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    assert states.MOST_REPLACED == 1000
    for most, cut, sources in ((2, None, [(1, 2, 1), (3, 4, 1)]), (1, 0, [])):
        monkeypatch.setattr(states, "MOST_REPLACED", most)
        mine = compared("ababa", "aaaaa", "aaaaa")[0]
        assert (mine.cut_after, restored(mine)) == (cut, sources)
        forked = compared("abaab", "aaaaa", "aaaaa")[0]
        assert (forked.cut_after, restored(forked)) == (3, [(1, 2, 1)])


@pytest.mark.parametrize(("cut", "kept"), [(None, 2), (5, 2), (4, 2), (3, 1), (1, 1), (0, 0), (-1, 0)])
def test_what_is_replaced_one_by_one_ends_in_front_of_the_cut(cut: int | None, kept: int) -> None:
    own = compared("abaab", "aaaaa", "aaaaa")[0]
    assert own.outvoted == ((1, 2), (4, 5))
    assert replaced_ranges(replace(own, cut_after=cut)) == own.outvoted[:kept]


@pytest.mark.parametrize("columns", [("axa", "a!a", "a!a", "a!a", "a!a"), ("a!a", "axa", "a!a", "a!a", "a!a")])
def test_the_only_one_that_holds_what_the_others_lost_is_not_told_to_differ(columns: tuple[str, ...]) -> None:
    """Whatever becomes of it."""
    assert {one.outvoted for one in compared(*columns)} == {()}


def test_where_nothing_intact_is_left_nobody_differs() -> None:
    lost = compared("a!a", "a!a", "a!a")
    assert [one.outvoted for one in lost] == [()] * 3
    assert [one.state for one in lost] == [ReplicaStanding.DAMAGED] * 3


def test_the_work_grows_with_the_damaged_places_and_not_with_their_square() -> None:
    """How often what is kept is looked at for a replica of which every second record is damaged."""
    count, looks = 1000, [0]

    class Counted(tuple[Kept, ...]):
        def __getitem__(self, place: Any) -> Any:
            looks[0] += 1
            return super().__getitem__(place)

        def __iter__(self) -> Iterator[Kept]:
            looks[0] += len(self)
            return super().__iter__()

    columns, known = ("a!" * count, "aa" * count, "aa" * count), [Ballot()] * 3
    runs = runs_of(*columns)
    decision = decide(runs, known, 3)
    counted = replace(decision, kept=Counted(decision.kept))
    mine = replicas_of(runs, counted, known, PATHS[:3])[0]
    assert restored(mine) == [(2 * n + 1, 2 * n + 2, 1) for n in range(count)]
    assert looks[0] < 40 * count
