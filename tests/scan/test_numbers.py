"""The numbers by which the loops speak."""

from __future__ import annotations

import enum

import pytest

from waltzctl.engine.scan import order, resync
from waltzctl.engine.scan.kernel import SLOTS, Slot, Status
from waltzctl.engine.scan.wire_layout import COLUMNS, WORDS, FrameColumn, FrameVerdict, SplitStatus, Word


@pytest.mark.parametrize("names", [Slot, Status, Word, FrameColumn, SplitStatus, FrameVerdict])
def test_every_name_has_a_number_of_its_own(names: type[enum.IntEnum]) -> None:
    assert [one.name for one in names] == [*names.__members__]
    assert min(names) == 0


def test_every_number_has_its_place() -> None:
    assert [*FrameColumn] == [*range(COLUMNS)]
    assert (max(Slot) < SLOTS, max(Word) < WORDS) == (True, True)


def test_words_that_only_compiled_loops_use_are_the_same_in_both_states() -> None:
    assert (Word.TABLES, Word.FUNCTION, Word.RESULT) == (Slot.TABLES, Slot.FUNCTION, Slot.RESULT)


def test_bounds_of_a_search_are_those_that_documents_name() -> None:
    """How long a chain must be (docs/spark-data-source.md), and how many ids may be missing (docs/repair.md)."""
    assert (resync.LOOKAHEAD, order.SKIPPED_ALLOWANCE) == (64 << 20, 1_000_000)
