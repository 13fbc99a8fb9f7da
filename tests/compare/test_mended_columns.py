"""Plans carried out on columns of a few transactions, one after the other in any order: what was decided stays decided."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from pathlib import PurePath

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.compare.columns import runs_of
from waltzctl.engine.compare.comparison import ReplicaComparison
from waltzctl.engine.compare.states import replaced_ranges, replicas_of
from waltzctl.engine.quorum.vote import Ballot, Decision, Verdict, decide

PATHS = [PurePath(f"/{number}") for number in range(3)]
GOOD = (Verdict.EQUAL, Verdict.RECOVERABLE)


def compared(columns: Sequence[str], ballots: Sequence[Ballot]) -> tuple[Decision, tuple[ReplicaComparison, ...]]:
    runs = runs_of(*columns)
    decision = decide(runs, ballots, len(columns))
    return decision, replicas_of(runs, decision, ballots, PATHS)


def carried_out(columns: Sequence[str], own: ReplicaComparison) -> str:
    """The column of a replica behind its plan: what others prove is restored and replaced, and the rest is cut."""
    column = list(columns[PATHS.index(own.path)])
    wanted = set(chain.from_iterable(range(*one) for one in (*own.damaged, *replaced_ranges(own))))
    for source in own.sources:
        for number in wanted.intersection(range(source.first, source.stop)):
            if source.path is not None:
                column[number] = columns[PATHS.index(source.path)][number]
    return "".join(column if own.cut_after is None else column[: own.cut_after + 1])


def check(columns: Sequence[str], ballots: Sequence[Ballot], order: Sequence[int]) -> None:
    first, replicas = compared(columns, ballots)
    if first.undecided:
        return
    now, decision = list(columns), first
    for _ in range(8):
        changed = [number for number in order if carried_out(now, replicas[number]) != now[number]]
        if not changed:
            break
        now[changed[0]] = carried_out(now, replicas[changed[0]])
        decision, replicas = compared(now, ballots)
        assert (decision.clean_to, decision.undecided) == (first.clean_to, ()), now
    else:
        raise AssertionError("plans without end")
    assert decision.verdict in GOOD or first.verdict not in GOOD
    for one in first.kept:
        for number in range(one.run.first, one.run.stop) if one.version is not None else ():
            assert {column[number : number + 1] for column in now} - {"!", ""}, "an intact copy of what is kept stays"


words = st.text("aab!", max_size=5)


@pytest.mark.turns(10)
@settings(max_examples=300)
@given(st.tuples(words, words, words), st.permutations(range(3)), st.sampled_from(((5, 5, 5), (5, 5, 4), (4, 5, 5))))
@example(("aa!a", "aa", "abbb"), range(3), (5, 5, 5))
@example(("abbb", "accc", "aa!a"), range(3), (5, 5, 5))
@example(("b!", "a", "!aaa"), range(3), (4, 5, 5))
@example(("ba", "a!!", "!aa"), (2, 0, 1), (5, 4, 5))
def test_whoever_carries_out_a_plan_first_the_same_is_kept(
    columns: tuple[str, ...], order: Sequence[int], sessions: tuple[int, ...]
) -> None:
    check(columns, [Ballot(session_id=one) for one in sessions], order)


@pytest.mark.long
@settings(max_examples=20_000)
@given(
    st.tuples(words, words, words),
    st.permutations(range(3)),
    st.tuples(*[st.integers(4, 5)] * 3),
    st.none() | st.integers(-1, 5),
)
def test_whoever_carries_out_a_plan_first_the_same_is_kept_thoroughly(
    columns: tuple[str, ...], order: Sequence[int], sessions: tuple[int, ...], mark: int | None
) -> None:
    check(columns, [Ballot(session_id=one, low_water_mark=mark) for one in sessions], order)
