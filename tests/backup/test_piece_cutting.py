"""Records are cut at transaction ids alone: the same records make the same pieces, however they become known."""

import random

import numpy as np
import pytest

from waltzctl.engine.backup.piece_cutting import PieceCutter, PieceRange

LIMIT = 1000


def cut(
    first: int, sizes: list[int], portions: int = 1, *, begins: bool = True, limit: int = LIMIT
) -> list[PieceRange]:
    cutter = PieceCutter(first, begins=begins, limit=limit)
    found = [one for part in np.array_split(np.array(sizes, np.int64), portions) for one in cutter.feed(part)]
    return found + list(cutter.finish())


def largest_blocks(first: int, sizes: list[int]) -> list[tuple[int, int]]:
    """By the definition: the largest aligned block around each id whose records, as far as there are any, fit."""
    end, found, at = first + len(sizes), [], first
    while at < end:
        best = at, at + 1
        for level in range(20):
            low, high = max(at >> level << level, first), min((at >> level) + 1 << level, end)
            if level and sum(sizes[low - first : high - first]) > LIMIT:
                break
            best = low, high
        assert best[0] == at
        found.append((at, best[1] - at))
        at = best[1]
    return found


@pytest.mark.parametrize("seed", range(60))
def test_pieces_are_the_largest_blocks_that_fit(seed: int) -> None:
    chance = random.Random(seed)
    first = chance.randrange(70)
    sizes = [chance.choice([40, 100, 300, 1500]) for _ in range(chance.randrange(1, 250))]
    pieces = cut(first, sizes)
    assert [(one.first_transaction_id, one.records) for one in pieces] == largest_blocks(first, sizes)
    assert cut(first, sizes, chance.randrange(2, 9)) == pieces
    ends = np.cumsum([0, *sizes]).tolist()
    for one in pieces:
        low = one.first_transaction_id - first
        assert (one.start, one.end) == (ends[low], ends[low + one.records])


def test_a_piece_of_exactly_the_limit_is_one_and_a_byte_more_is_two() -> None:
    assert [one.records for one in cut(0, [500, 500])] == [2]
    assert [one.records for one in cut(0, [500, 501])] == [1, 1]


def test_a_record_beyond_the_limit_stands_alone() -> None:
    assert [one.records for one in cut(0, [LIMIT + 1, 10, 10, 10])] == [1, 1, 2]


def test_a_run_that_goes_on_begins_with_a_block_that_begins_there() -> None:
    sizes = [100] * 6
    assert [(one.first_transaction_id, one.records) for one in cut(6, sizes, begins=True)] == [(6, 6)]
    assert [(one.first_transaction_id, one.records) for one in cut(2, sizes, begins=False)] == [(2, 2), (4, 4)]
    assert [(one.first_transaction_id, one.records) for one in cut(2, sizes, begins=True)] == [(2, 6)]


def test_a_log_that_grows_changes_its_last_piece_only() -> None:
    chance = random.Random(7)
    sizes = [chance.choice([40, 100, 300]) for _ in range(500)]
    for end in range(1, len(sizes), 13):
        assert cut(0, sizes)[: len(before := cut(0, sizes[:end])) - 1] == before[:-1]


def test_nothing_makes_no_piece() -> None:
    assert cut(5, []) == []
