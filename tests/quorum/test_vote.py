"""The vote against the rule written down a second time: by simulating recovery, and by trying out what nobody can see."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.compare.columns import runs_of
from waltzctl.engine.quorum.vote import (
    ABSENT,
    DAMAGED,
    Ballot,
    Decision,
    LastSession,
    Run,
    Verdict,
    decide,
    quorum_of,
    voters_of,
)


def ends(*last: int) -> list[Run]:
    """Runs of replicas whose records are the same up to the last one of each."""
    found: list[Run] = []
    first = 0
    for stop in sorted({one + 1 for one in last if one >= 0}):
        holders = [number for number, one in enumerate(last) if one >= first]
        found.append(Run(first, stop, tuple(holders[0] if one >= first else ABSENT for one in last)))
        first = stop
    return found


def vote(last: Sequence[int], replicas: int) -> Decision:
    return decide(ends(*last), [Ballot() for _ in last], replicas)


@pytest.mark.parametrize(
    ("last", "replicas", "clean_to", "verdict", "caught_up"),
    [
        ((125, 123), 3, 125, Verdict.RECOVERABLE, True),
        ((125, 123, 120), 3, 123, Verdict.RECOVERABLE, False),
        ((125,), 3, -1, Verdict.UNDECIDABLE, False),
        ((125, 125, 125), 3, 125, Verdict.EQUAL, False),
        ((125, 125), 3, 125, Verdict.EQUAL, False),
        ((-1, -1, -1), 3, -1, Verdict.EQUAL, False),
        ((10, 10, 9, 8), 4, 9, Verdict.RECOVERABLE, False),
        ((10, 9, 8), 5, 10, Verdict.RECOVERABLE, True),
        ((10, 9, 9, 9), 6, 9, Verdict.RECOVERABLE, False),
        ((7,), 1, 7, Verdict.EQUAL, False),
    ],
)
def test_the_examples_of_the_rule(
    last: tuple[int, ...], replicas: int, clean_to: int, verdict: Verdict, caught_up: bool
) -> None:
    decision = vote(last, replicas)
    assert (decision.clean_to, decision.verdict, decision.caught_up) == (clean_to, verdict, caught_up)


def recoveries(last: Sequence[int], replicas: int) -> set[int | None]:
    """Release 0.13.2, every replica having published its highest id: what can be resolved (None: it waits).

    Evaluate; while nothing is resolved, some replica catches up with the nearest one ahead, and it is evaluated again.  Which
    one comes first is a matter of time.
    """
    quorum, absent = quorum_of(replicas), replicas - len(last)
    found: set[int | None] = set()
    seen: set[tuple[int, ...]] = set()
    waiting = [tuple(sorted(last))]
    while waiting:
        held = waiting.pop()
        if held in seen:
            continue
        seen.add(held)
        undecidable = False
        for value in sorted(set(held), reverse=True):
            supports = sum(one >= value for one in held)
            if supports < quorum <= supports + absent:
                undecidable = True
            if not undecidable and supports >= quorum:
                found.add(value)
                break
        else:
            behind = [number for number, one in enumerate(held) if one < max(held)]
            if not behind:
                found.add(None)
            for number in behind:
                nearest = min(other for other in held if other > held[number])
                waiting.append(tuple(sorted((*held[:number], nearest, *held[number + 1 :]))))
    return found


@given(
    st.integers(1, 5).flatmap(
        lambda n: st.tuples(st.lists(st.integers(-1, 6), min_size=n, max_size=n), st.integers(n, 8))
    )
)
def test_replicas_that_differ_only_in_length_are_decided_as_the_release_does(case: tuple[list[int], int]) -> None:
    last, replicas = case
    outcomes = recoveries(last, replicas)
    decision = vote(last, replicas)
    if None in outcomes and max(last) >= 0:
        assert decision.verdict is Verdict.UNDECIDABLE
    else:
        resolved = min(-1 if one is None else one for one in outcomes)
        assert decision.verdict in (Verdict.EQUAL, Verdict.RECOVERABLE)
        assert decision.clean_to == resolved, "what nobody can have acknowledged is cut, whoever comes first"


def acknowledged_versions(run: Run, ballots: Sequence[Ballot], replicas: int) -> tuple[set[int], set[int]]:
    """Versions of a run's ids that were surely held by a quorum, and that may have been: every way to fill what is not seen."""
    unseen = replicas - len(ballots)
    seen = {version for version in run.versions if version >= 0}
    hidden = 0
    for version, ballot in zip(run.versions, ballots, strict=True):
        hidden += version == DAMAGED or (version == ABSENT and (ballot.open_end or ballot.blank or not ballot.present))
    counts = {version: run.versions.count(version) for version in seen}
    surely = {version for version in seen if counts[version] >= quorum_of(replicas)}
    possibly: set[int] = set()
    for filling in itertools.product([None, *sorted(seen)], repeat=hidden + unseen):
        for version in seen:
            if counts[version] + filling.count(version) >= quorum_of(replicas):
                possibly.add(version)
    return surely, possibly


@st.composite
def clusters(draw: st.DrawFn, *, with_marks: bool = False) -> tuple[list[Run], list[Ballot], int]:
    """Up to four replicas of up to five ids, every one with a version, a damaged place or its end."""
    count = draw(st.integers(1, 4))
    replicas = draw(st.integers(count, 5))
    columns = []
    ballots = []
    for _ in range(count):
        present = draw(st.sampled_from([True, True, True, False]))
        length = draw(st.integers(0, 5)) if present else 0
        column = draw(st.lists(st.sampled_from(["x", "x", "x", "y", "z", None]), min_size=length, max_size=length))
        columns.append(column)
        session = draw(st.none() | st.integers(4, 6)) if with_marks else None
        mark = draw(st.none() | st.integers(-1, 5)) if with_marks else None
        blank = present and not length and draw(st.booleans())
        ballots.append(Ballot(present, session, mark, open_end=present and draw(st.booleans()), blank=blank))
    runs: list[Run] = []
    for number in range(max(map(len, columns))):
        first: dict[str, int] = {}
        versions = tuple(
            ABSENT
            if number >= len(column)
            else DAMAGED
            if column[number] is None
            else first.setdefault(column[number] or "", replica)
            for replica, column in enumerate(columns)
        )
        if runs and runs[-1].versions == versions:
            runs[-1] = Run(runs[-1].first, number + 1, versions)
        else:
            runs.append(Run(number, number + 1, versions))
    return runs, ballots, replicas


@pytest.mark.turns(8)
@given(clusters())
def test_nothing_that_a_quorum_may_have_held_is_ever_cut_silently(
    case: tuple[list[Run], list[Ballot], int],
) -> None:
    runs, ballots, replicas = case
    decision = decide(runs, ballots, replicas)
    kept = {number: one.version for one in decision.kept for number in range(one.run.first, one.run.stop)}
    open_ids = {number for first, stop in (*decision.undecided, *decision.lost) for number in range(first, stop)}
    assert sorted(kept) == list(range(decision.clean_to + 1)), "what is kept has no gap"
    for run in runs:
        surely, possibly = acknowledged_versions(run, ballots, replicas)
        for number in range(run.first, run.stop):
            if surely:
                assert kept[number] in surely, "what a quorum holds is kept"
            elif possibly and number <= decision.clean_to and number not in open_ids:
                assert kept[number] in possibly, "the version that may have been acknowledged is the one kept"
            if possibly and number > decision.clean_to:
                behind = decision.verdict in (Verdict.UNDECIDABLE, Verdict.LOST)
                cut_before = any(
                    not acknowledged_versions(other, ballots, replicas)[1]
                    and not _nobody_knows(other, ballots, replicas)
                    for other in runs
                    if other.stop <= number
                )
                assert behind or cut_before, "what may have been acknowledged is kept, or named as open"
            if number <= decision.clean_to and kept[number] is None:
                assert number in open_ids, "where no version is chosen, that is said"
    for first, stop in decision.lost:
        for run in runs:
            if run.first < stop and first < run.stop:
                assert max(run.versions) < 0, "lost is only what nobody holds intact"


def _nobody_knows(run: Run, ballots: Sequence[Ballot], replicas: int) -> bool:
    """Damaged in so many replicas that a quorum may have held something of which no copy is left."""
    hidden = sum(
        version == DAMAGED or (version == ABSENT and (ballot.open_end or ballot.blank or not ballot.present))
        for version, ballot in zip(run.versions, ballots, strict=True)
    )
    return hidden + replicas - len(ballots) >= quorum_of(replicas)


@pytest.mark.turns(10)
@given(clusters() | clusters(with_marks=True), st.randoms(use_true_random=False))
def test_the_order_in_which_replicas_are_named_changes_nothing(
    case: tuple[list[Run], list[Ballot], int], source: object
) -> None:
    runs, ballots, replicas = case
    order = list(range(len(ballots)))
    source.shuffle(order)  # type: ignore[attr-defined]
    renamed = []
    for run in runs:
        first: dict[int, int] = {}
        versions = tuple(
            run.versions[old] if run.versions[old] < 0 else first.setdefault(run.versions[old], new)
            for new, old in enumerate(order)
        )
        renamed.append(Run(run.first, run.stop, versions))
    one, other = decide(runs, ballots, replicas), decide(renamed, [ballots[old] for old in order], replicas)
    assert (one.verdict, one.clean_to, one.undecided, one.lost) == (
        other.verdict, other.clean_to, other.undecided, other.lost,
    )  # fmt: skip


@pytest.mark.turns(10)
@given(clusters() | clusters(with_marks=True))
def test_how_ids_are_grouped_into_runs_changes_nothing(case: tuple[list[Run], list[Ballot], int]) -> None:
    runs, ballots, replicas = case
    single = [piece for run in runs for piece in run.cut(range(run.first + 1, run.stop))]
    one, other = decide(runs, ballots, replicas), decide(single, ballots, replicas)
    assert (one.verdict, one.clean_to, one.undecided, one.lost) == (
        other.verdict, other.clean_to, other.undecided, other.lost,
    )  # fmt: skip


@pytest.mark.turns(10)
@given(clusters(with_marks=True))
def test_what_was_acknowledged_and_stands_somewhere_is_never_called_lost_or_cut(
    case: tuple[list[Run], list[Ballot], int],
) -> None:
    """At or below the highest mark, whoever has the record, of whatever session it is."""
    runs, ballots, replicas = case
    decision = decide(runs, ballots, replicas)
    acknowledged = max((one.low_water_mark for one in ballots if one.low_water_mark is not None), default=-1)
    assert decision.acknowledged == acknowledged
    told = [*decision.undecided, *decision.lost]
    for run in runs:
        versions = {version for version in run.versions if version >= 0}
        for number in range(run.first, run.stop):
            if number > acknowledged:
                continue
            assert number <= decision.clean_to or any(first <= number < stop for first, stop in told), (
                "never cut silently"
            )
            if versions:
                assert not any(first <= number < stop for first, stop in decision.lost)
            if len(versions) == 1 and number <= decision.clean_to:
                (kept,) = [one.version for one in decision.kept if one.run.first <= number < one.run.stop]
                assert kept in versions, "a single intact version is the one that is kept"


@pytest.mark.parametrize(
    ("mark", "clean_to", "verdict"), [(6, 6, Verdict.RECOVERABLE), (7, 7, Verdict.RECOVERABLE), (8, 7, Verdict.LOST)]
)
def test_an_acknowledged_record_that_only_an_older_session_holds_is_kept(
    mark: int, clean_to: int, verdict: Verdict
) -> None:
    """Two of three began session 5 with transactions up to 5; the third has 6 and 7 of session 4, and no vote."""
    ballots = [Ballot(session_id=5, low_water_mark=mark), Ballot(session_id=5), Ballot(session_id=4)]
    decision = decide(ends(5, 5, 7), ballots, 3)
    assert decision.voters == (True, True, False)
    assert (decision.clean_to, decision.verdict) == (clean_to, verdict)


@pytest.mark.parametrize(("mark", "clean_to"), [(4, 5), (5, 5), (6, 6), (7, 7)])
def test_one_copy_is_enough_up_to_the_mark_and_not_one_further(mark: int, clean_to: int) -> None:
    assert decide(ends(9, 5, 5), [Ballot(low_water_mark=mark)] * 3, 3).clean_to == clean_to


@pytest.mark.parametrize(("replicas", "quorum"), [(1, 1), (2, 2), (3, 2), (4, 3), (5, 3), (6, 4), (7, 4)])
def test_a_quorum_is_more_than_half(replicas: int, quorum: int) -> None:
    assert quorum_of(replicas) == quorum


@pytest.mark.parametrize(
    ("damaged", "verdict", "clean_to"), [(0, Verdict.RECOVERABLE, 3), (1, Verdict.RECOVERABLE, 3), (2, Verdict.LOST, 3)]
)
def test_damage_that_may_have_been_a_quorums_is_lost_and_less_is_cut(
    damaged: int, verdict: Verdict, clean_to: int
) -> None:
    """Of transaction 4 nobody has an intact copy; three replicas."""
    versions = (DAMAGED,) * damaged + (ABSENT,) * (3 - damaged)
    decision = decide([Run(0, 4, (0, 0, 0)), Run(4, 5, versions)], [Ballot()] * 3, 3)
    assert (decision.verdict, decision.clean_to) == (verdict, clean_to)


@pytest.mark.parametrize(
    ("border", "pieces"), [(2, [(3, 9)]), (3, [(3, 9)]), (4, [(3, 4), (4, 9)]), (8, [(3, 8), (8, 9)]), (9, [(3, 9)])]
)
def test_a_run_is_cut_at_what_lies_inside(border: int, pieces: list[tuple[int, int]]) -> None:
    assert [(one.first, one.stop) for one in Run(3, 9, (0,)).cut([border])] == pieces


def test_what_is_acknowledged_is_kept_though_one_copy_is_left() -> None:
    runs = ends(9, 5, 5)
    ballots = [Ballot(low_water_mark=7), Ballot(low_water_mark=7), Ballot(low_water_mark=7)]
    assert decide(runs, ballots, 3).clean_to == 7
    assert decide(runs, [Ballot() for _ in ballots], 3).clean_to == 5


def test_what_is_acknowledged_and_nowhere_is_lost_unless_somebody_is_unseen() -> None:
    ballots = [Ballot(low_water_mark=9)] * 2
    lost = decide(ends(5, 5), ballots, 2)
    assert (lost.verdict, lost.clean_to, lost.lost) == (Verdict.LOST, 5, ((6, 10),))
    unseen = decide(ends(5, 5), ballots, 3)
    assert (unseen.verdict, unseen.clean_to, unseen.undecided) == (Verdict.UNDECIDABLE, 5, ((6, 10),))


def test_an_older_session_than_a_quorum_has_no_vote() -> None:
    def sessions(*numbers: int | None) -> list[Ballot]:
        return [Ballot(session_id=number) for number in numbers]

    assert voters_of(sessions(5, 5, 4), 3) == (True, True, False)
    assert voters_of(sessions(5, 4, 4), 3) == (True, True, True), "one alone may have begun a session that never opened"
    assert voters_of(sessions(5, None, 4), 3) == (True, True, True)
    assert voters_of(sessions(5, 5), 5) == (True, True), "two of five decide nothing"
    missing = [Ballot(present=False), *sessions(5, 5)]
    assert voters_of(missing, 3) == (False, True, True)


def test_what_only_an_older_session_holds_is_cut_though_somebody_is_missing() -> None:
    ballots = [Ballot(session_id=5), Ballot(session_id=5), Ballot(session_id=5), Ballot(session_id=4), Ballot(False)]
    runs = ends(7, 7, 7, 9, -1)
    assert decide(runs, ballots, 5).clean_to == 7
    same = [Ballot(session_id=5)] * 4 + [Ballot(False)]
    assert decide(runs, same, 5).clean_to == 7
    two = ends(7, 7, 9, 9, -1)
    assert decide(two, same, 5).clean_to == 9, "with the missing one it is three"
    stale = [Ballot(session_id=5)] * 2 + [Ballot(session_id=4)] * 2 + [Ballot(True, 5, open_end=True)]
    assert decide(two, stale, 5).clean_to == 7


def test_what_voters_have_lost_is_taken_from_who_has_no_vote() -> None:
    ballots = [Ballot(session_id=5), Ballot(session_id=5), Ballot(session_id=4)]
    runs = [Run(0, 3, (0, 0, 0)), Run(3, 4, (DAMAGED, DAMAGED, 2)), Run(4, 6, (0, 0, ABSENT))]
    decision = decide(runs, ballots, 3)
    assert (decision.verdict, decision.clean_to, decision.lost) == (Verdict.RECOVERABLE, 5, ())
    assert [one.version for one in decision.kept] == [0, 2, 0]


@pytest.mark.parametrize(
    ("sessions", "replicas", "members", "lost", "voters"),
    [
        ((5, 5, 4), 3, 3, True, (True, True, False)),
        ((5, 5, 4), 3, 2, False, (True, True, False)),  # it was closed before the last session
        ((5, 4, 4), 3, 2, True, (True, False, False)),
        ((5, 4, 4), 3, 1, False, (True, False, False)),
        ((6, 5, None), 3, 3, False, (True, True, True)),
        ((5, -1), 3, 3, True, (True, False)),
        ((4, 4, 4), 3, 3, True, (False, False, False)),
    ],
)
def test_what_the_metadata_says_of_the_last_session(
    sessions: tuple[int | None, ...], replicas: int, members: int, lost: bool, voters: tuple[bool, ...]
) -> None:
    ballots = [Ballot(session_id=one) for one in sessions]
    last = LastSession(5, replicas, members)
    assert last.have_lost(ballots) == lost
    assert voters_of(ballots, replicas, last) == voters
    gone = [*ballots, Ballot(present=False, session_id=None)]
    assert (last.have_lost(gone), voters_of(gone, replicas + 1, last)) == (lost, (*voters, False))


@pytest.mark.parametrize(
    ("here", "blank", "gone", "replicas", "undecidable"),
    [
        (2, 1, 0, 3, False),
        (1, 1, 0, 3, True),  # the blank one and the one that is not here are a quorum
        (1, 1, 1, 3, True),
        (2, 0, 0, 3, False),
        (3, 1, 0, 5, False),
        (3, 1, 0, 4, False),
        (2, 2, 0, 5, True),
        (1, 2, 0, 3, False),  # nobody is left who could tell
        (3, 0, 0, 5, False),
    ],
)
def test_what_lost_and_absent_replicas_may_have_acknowledged_together_is_open(
    here: int, blank: int, gone: int, replicas: int, undecidable: bool
) -> None:
    ballots = [*[Ballot()] * here, *[Ballot(blank=True)] * blank, *[Ballot(present=False)] * gone]
    decision = decide([Run(0, 5, (*[0] * here, *[ABSENT] * (blank + gone)))], ballots, replicas)
    assert (decision.verdict is Verdict.UNDECIDABLE) == undecidable, decision
    assert decision.clean_to == 4
    if undecidable:
        assert "they may have acknowledged more than is here" in decision.reason


@pytest.mark.parametrize(
    ("here", "open_ends", "gone", "replicas", "undecidable"),
    [
        (1, 1, 0, 3, True),  # what the one cannot read, the one that is not here may hold as well
        (1, 1, 1, 3, True),
        (2, 0, 1, 3, False),
        (2, 1, 0, 3, False),  # nobody is left who could tell
        (3, 1, 0, 5, False),
        (2, 2, 0, 5, True),
    ],
)
def test_behind_an_end_that_cannot_be_read_the_absent_may_know_of_more(
    here: int, open_ends: int, gone: int, replicas: int, undecidable: bool
) -> None:
    ballots = [*[Ballot()] * here, *[Ballot(open_end=True)] * open_ends, *[Ballot(present=False)] * gone]
    decision = decide([Run(0, 5, (*[0] * (here + open_ends), *[ABSENT] * gone))], ballots, replicas)
    assert (decision.verdict is Verdict.UNDECIDABLE, decision.clean_to) == (undecidable, 4)


@pytest.mark.parametrize(("session_id", "undecidable"), [(7, True), (6, False)])
def test_who_was_not_in_the_last_session_acknowledged_nothing_behind_its_end(
    session_id: int, undecidable: bool
) -> None:
    ballots = [Ballot(session_id=7), Ballot(session_id=session_id, open_end=True)]
    decision = decide([Run(0, 5, (0, 0))], ballots, 3, LastSession(7, 3, 2))
    assert (decision.verdict is Verdict.UNDECIDABLE) == undecidable


_COLUMN = st.lists(st.sampled_from("ab!"), max_size=4).map("".join)


@given(
    st.lists(_COLUMN, min_size=1, max_size=4),
    st.integers(0, 4),
    st.integers(-1, 3),
    st.lists(st.booleans(), min_size=5),
)
def test_a_replica_that_cannot_be_read_is_as_one_that_was_not_given(
    columns: list[str], place: int, mark: int, ended: list[bool]
) -> None:
    """Also where nothing intact is left of what it may hold: that is not lost, as with one whose directory is gone."""
    ballots = [Ballot(low_water_mark=mark, open_end=one) for one in ended[: len(columns)]]
    seen = decide(runs_of(*columns), ballots, len(columns) + 1)
    place = min(place, len(columns))
    away = Ballot(present=False, low_water_mark=mark, unread=True)
    found = decide(
        runs_of(*columns[:place], "", *columns[place:]), [*ballots[:place], away, *ballots[place:]], len(columns) + 1
    )
    same = ("clean_to", "undecided", "lost", "caught_up", "acknowledged")
    assert [getattr(found, one) for one in same] == [getattr(seen, one) for one in same]
    assert [one.version is None for one in found.kept] == [one.version is None for one in seen.kept]
    assert found.verdict == (Verdict.RECOVERABLE if seen.verdict is Verdict.EQUAL else seen.verdict)
    assert found.lost == ()
    assert not found.voters[place]


@pytest.mark.parametrize("held", [0, 10])
def test_with_a_quorum_of_which_some_cannot_be_read_nothing_is_decided(held: int) -> None:
    """What is here is acknowledged, or nothing is here: the others may have acknowledged more.  It was said to be recoverable."""
    away = Ballot(present=False, unread=True)
    runs = [Run(0, held, (0, ABSENT, ABSENT))] if held else []
    found = decide(runs, [Ballot(low_water_mark=held - 1), away, away], 3)
    assert (found.verdict, found.clean_to, found.undecided) == (Verdict.UNDECIDABLE, held - 1, ())
    assert "2 cannot be seen" in found.reason
    assert decide([], [away] * 3, 3).verdict is Verdict.UNDECIDABLE
    assert decide([], [Ballot(), replace(away, unread=False), away], 3).verdict is Verdict.UNDECIDABLE
