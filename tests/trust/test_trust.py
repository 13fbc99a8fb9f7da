"""Directories damaged by chance, and what must hold of every one of them whatever was done to it.

Some three hundred in three days, of which each rule sees a half or a quarter, twenty thousand with ``--long``.  A failure
names its seed, what was done, and the command that builds the directory anew.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import pytest

from tests.trust.damage import Damaged, draw
from tests.trust.rules import RULES, broken
from tests.trust.running import SHARED_MEMORY

DIRECTORIES, PART = 300, 20
MANY, MANY_PART = 20_000, 250
BROKE: tuple[tuple[int, tuple[str, ...]], ...] = (
    *((seed, ()) for seed in (2067, 2255, 2349, 2443, 2609, 5169, 5420, 6180, 7049, 7198, 7293, 7313, 7331, 7497)),
    *((seed, ()) for seed in (1948, 10102, 10631, 10779, 11467, 11715, 12385, 12617, 13092)),
    *((seed, ()) for seed in (2141, 3739, 3931, 4787, 5143, 5616, 6767, 6843, 7977, 8241, 8647, 9188, 9311)),
    *((seed, ()) for seed in (6531, 7872)),
    *((seed, ()) for seed in (20189, 20313, 40217)),
    *((seed, ()) for seed in (14357, 14922, 15736, 16044, 16558, 17834, 30002, 30441, 70198, 15979)),
    (9, ("data checksum", "wrong id, right checksums")),
    (50005, ("losses accepted before", "not assigned")),
    (60004, ("several wrong ids", "several records")),
)
"""Seeds of directories that broke a rule once, with their injuries where these were chosen: tried with every rule.

What was wrong each time has a test of its own where it was mended; of these a sixth on each day.
"""


@pytest.fixture
def place() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="waltzctl-trust-", dir=SHARED_MEMORY, ignore_cleanup_errors=True) as one:
        yield Path(one)


@lru_cache(maxsize=DIRECTORIES)
def drawn(seed: int) -> Damaged:
    """The directory of a seed, for every kind of rule: no rule changes what it is given, and some seven try it."""
    return draw(seed)


def holds(name: str, seeds: range, place: Path) -> None:
    """Every rule of one kind, for every directory of some seeds."""
    lines: list[str] = []
    for seed in seeds:
        damaged = drawn(seed)
        if found := broken(damaged, RULES[name], place):
            lines += [str(damaged), *(f"    {one}" for one in found)]
    assert not lines, f"{name} of damaged directories\n" + "\n".join(lines)


@pytest.mark.turns(12)
@pytest.mark.parametrize(
    ("seed", "only"),
    BROKE,
    ids=lambda one: str(one) if isinstance(one, int) else "-".join(one),
)
def test_what_broke_a_rule_once_holds(seed: int, only: tuple[str, ...], place: Path) -> None:
    damaged = draw(seed, only)
    lines = [f"    {name}: {one}" for name, rule in RULES.items() for one in broken(damaged, rule, place)]
    assert not lines, "\n".join([str(damaged), *lines])


def shown(seeds: object) -> str | None:
    return f"{seeds.start}-{seeds.stop - 1}" if isinstance(seeds, range) else None


def parts(step: int = 1, first: int = 0) -> pytest.MarkDecorator:
    """Tests of some seeds each, a third of them on each day; of these every `step`-th from `first` on, and with ``--long`` all.

    What tries the same seeds is one group, which one process runs: it draws them once.
    """
    default = [
        pytest.param(
            range(start + first, start + PART, step),
            marks=[pytest.mark.xdist_group(f"trust-{start}"), pytest.mark.turns(3, place=0)],
        )
        for start in range(0, DIRECTORIES, PART)
    ]
    rest = [range(start, min(start + MANY_PART, MANY)) for start in range(DIRECTORIES, MANY, MANY_PART)]
    return pytest.mark.parametrize(
        "seeds", [*default, *(pytest.param(one, marks=pytest.mark.long) for one in rest)], ids=shown
    )


EVEN, ODD = parts(2), parts(2, 1)
QUARTERS = [parts(4, first) for first in range(4)]
"""Every directory is inspected or recovered, and tried by one or two of the other rules."""


@pytest.mark.turns(12)
@EVEN
def test_verify_is_never_clean_where_the_reader_sees_a_loss(seeds: range, place: Path) -> None:
    holds("inspection", seeds, place)


@pytest.mark.turns(12)
@ODD
def test_recover_loses_nothing_lets_nothing_in_and_is_undone(seeds: range, place: Path) -> None:
    holds("recovery", seeds, place)


@pytest.mark.turns(10)
@QUARTERS[0]
def test_a_loss_that_is_accepted_costs_nothing_else_and_stays_named(seeds: range, place: Path) -> None:
    holds("recovery_with_loss", seeds, place)


@pytest.mark.turns(10)
@QUARTERS[2]
def test_a_sound_replica_brings_back_what_is_proven(seeds: range, place: Path) -> None:
    holds("recovery_from_replica", seeds, place)


@pytest.mark.turns(12)
@QUARTERS[3]
def test_an_id_is_never_issued_twice(seeds: range, place: Path) -> None:
    holds("appending", seeds, place)


@pytest.mark.turns(10)
@QUARTERS[1]
def test_an_undo_does_not_destroy_what_was_written_since(seeds: range, place: Path) -> None:
    holds("undoing", seeds, place)


@pytest.mark.turns(10)
@QUARTERS[0]
def test_killed_at_any_moment_the_next_command_puts_it_right(seeds: range, place: Path) -> None:
    holds("kills", seeds, place)
