"""Of directories damaged by chance every command that is printed is carried out, as far as they lead."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.memory import in_memory
from tests.trust.damage import draw
from tests.trust.remedies import walked

DIRECTORIES, MANY, PART = 320, 8000, 10
BROKE = (
    *(10, 28, 29, 33, 38, 42, 44, 47, 60, 142, 279, 20010, 20105),
    *(8398, 8580, 8729, 8867, 9127, 9547, 9746, 10110, 11035, 11222, 11690, 11836),
)
"""Seeds of directories in which a command was refused or did nothing, led back, or gave up what the replica has."""


TOGETHER = {
    30017: ("last data file gone, its index not", "data file behind a link", "bit in an index"),
    30028: ("every data file of a partition gone", "bit in a record", "special control file"),
    50061: ("another's segment at the end", "bit in the control file's key", "header of zeros"),
    50269: ("end of the log gone", "segment renamed", "one record more than its index has"),
    50324: ("special file in the place of a segment", "overlap, other bytes", "special file of a new name"),
    64373: ("overlap, other bytes", "wrong id, right checksums", "last data file gone, its index not"),
    81059: ("two segments change names", "stray: the only copy"),
    50429: ("the control file of another cluster", "both structs", "cut data file"),
    50453: ("special file of a new name", "segment renamed", "losses accepted before"),
    50459: ("another's segment at the end", "a segment that begins earlier", "two forms of a record"),
    50492: ("a pair of zeros", "only data file torn within its header", "control file gone"),
    50567: ("every data file of a partition gone", "losses accepted before", "another cluster's segment"),
    50574: ("wrong id, right checksums", "interrupted roll-over", "torn header, then another's segment"),
    50734: ("the control file of another cluster", "torn header, then another's segment", "a pair of zeros"),
    51153: ("both structs", "another segment's index", "wrong number of partitions"),
    51387: ("segment renamed", "partition of a segment", "cut data file"),
    30045: ("header of zeros", "control file extended with zeros", "bit in the control file's key"),
}
"""The same of three kinds of damage at once, by seeds."""


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    with in_memory(tmp_path) as one:
        yield one


@pytest.mark.turns(16)
@pytest.mark.parametrize(
    "first",
    [
        *range(0, DIRECTORIES, PART),
        *(pytest.param(one, marks=pytest.mark.long) for one in range(DIRECTORIES, MANY, PART)),
    ],
)
def test_what_is_printed_leads_to_the_end_and_costs_no_record(first: int, place: Path) -> None:
    lines: list[str] = []
    for seed in range(first, first + PART):
        damaged = draw(seed)
        way, broken = walked(damaged, place / str(seed))
        if broken:
            lines += [str(damaged), *(f"    {one}" for one in way.steps), *(f"  ! {one}" for one in broken)]
    assert not lines, "\n".join(lines)


@pytest.mark.turns(8)
@pytest.mark.parametrize("seed", [*BROKE, *TOGETHER])
def test_what_led_astray_once_leads_on(seed: int, place: Path) -> None:
    way, broken = walked(draw(seed, TOGETHER.get(seed, ())), place)
    assert not broken, "\n".join([*way.steps, *broken])
