"""Damaged directories with a commit journal in force, and what must hold of every one of them.

Of the rules of other directories (`tests.trust.rules`) those of inspection and of appending hold, with what the journal holds
taken for acknowledged, but that appending to one partition writes back the others as well.  Those of repairs do not apply, as
none is made.  A failure names its seed.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.trust.pending import DAMAGED, GONE, RULES_OF_PENDING, UNNAMED, WHOLE, draw_pending
from tests.trust.rules import broken
from tests.trust.running import SHARED_MEMORY

SEEDS, OF_ONE = 300, 15
MANY, MANY_OF_ONE = 6_000, 300
PARTS = [
    *(pytest.param(range(n, n + OF_ONE), marks=pytest.mark.turns(12)) for n in range(0, SEEDS, OF_ONE)),
    *(pytest.param(range(n, n + MANY_OF_ONE), marks=pytest.mark.long) for n in range(SEEDS, MANY, MANY_OF_ONE)),
]


@pytest.fixture
def place() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="waltzctl-pending-", dir=SHARED_MEMORY, ignore_cleanup_errors=True) as one:
        yield Path(one)


@pytest.mark.turns(16)
@pytest.mark.parametrize("seeds", PARTS, ids=lambda seeds: f"{seeds.start}-{seeds.stop - 1}")
def test_every_rule_holds(seeds: range, place: Path) -> None:
    lines: list[str] = []
    for pending in filter(None, map(draw_pending, seeds)):
        found = [one for rule in RULES_OF_PENDING.values() for one in broken(pending, rule, place)]
        lines += [str(pending), *(f"    {one}" for one in found)] if found else []
    assert not lines, "damaged directories with a journal\n" + "\n".join(lines)


@pytest.mark.turns(8)
def test_journals_of_every_fate_are_drawn() -> None:
    drawn = [pending for seed in range(SEEDS) if (pending := draw_pending(seed)) is not None]
    assert len(drawn) > SEEDS / 2
    assert set(Counter(pending.fate for pending in drawn)) == {WHOLE, GONE, DAMAGED, UNNAMED}
