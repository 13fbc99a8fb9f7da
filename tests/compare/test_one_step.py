"""How a replica stands to what is kept, one transaction to each side."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.compare.clusters import COUNT, compared, extend, keep_up_to, make_cluster, marks, rewrite
from waltzctl.engine.compare.outcome import State

LAST = COUNT - 1


@pytest.mark.parametrize(
    ("last", "state", "cut"),
    [
        (LAST - 1, State.BEHIND, None),
        (LAST, State.EQUAL, None),
        (LAST + 1, State.AHEAD, LAST),
        (LAST + 2, State.AHEAD, LAST),
    ],
)
def test_a_replica_is_behind_or_ahead_from_one_transaction_on(
    tmp_path: Path, last: int, state: State, cut: int | None
) -> None:
    nodes = make_cluster(tmp_path)
    if last > LAST:
        extend(nodes[0], last - LAST)
    elif last < LAST:
        keep_up_to(nodes[0], last)
    answer = compared(*nodes)[0]
    assert (answer.clean_to, answer.replicas[0].state, answer.replicas[0].cut_after) == (LAST, state, cut)
    assert answer.replicas[0].last_transaction_id == last


@pytest.mark.parametrize(("number", "replaced", "cut"), [(LAST - 1, True, None), (LAST, False, LAST - 1)])
def test_a_replica_is_cut_in_front_of_a_fork_and_not_where_it_goes_on_like_the_others(
    tmp_path: Path, number: int, replaced: bool, cut: int | None
) -> None:
    nodes = make_cluster(tmp_path)
    rewrite(nodes[0], number)
    own = compared(*nodes)[0].replicas[0]
    assert (own.state, own.outvoted, own.cut_after) == (State.DIVERGED, ((number, number + 1),), cut)
    assert [(one.first, one.stop) for one in own.sources] == ([(number, number + 1)] if replaced else [])


@pytest.mark.parametrize(("mark", "clean_to"), [(LAST, LAST), (LAST + 1, LAST + 1), (LAST + 2, LAST + 2)])
def test_what_one_replica_alone_holds_is_kept_up_to_the_mark(tmp_path: Path, mark: int, clean_to: int) -> None:
    """It holds three transactions more than the others; the low-water mark says what was acknowledged."""
    nodes = make_cluster(tmp_path)
    extend(nodes[0], 3)
    marks(nodes[0], mark=mark)
    assert compared(*nodes)[0].clean_to == clean_to
