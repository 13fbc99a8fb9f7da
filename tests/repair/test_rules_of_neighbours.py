"""What recovery says of a segment by those beside it, on values: what joins, what covers, and what an overlap may rest on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from waltzctl.engine.errors import DiskReadError
from waltzctl.engine.findings import Code
from waltzctl.engine.log.view import FileState
from waltzctl.engine.repair import recover_partition
from waltzctl.engine.repair.content import Content, LiteralBytes
from waltzctl.engine.repair.recover_overlaps import Behind
from waltzctl.engine.repair.recover_partition import (
    _as_listed,
    _behind,
    _covered,
    _is_last,
    _leftover,
    _reach,
    _whole_end,
)
from waltzctl.engine.repair.repaired_segments import RepairContext, RepairedSegment
from waltzctl.engine.repair.survey import Loss, Survey
from waltzctl.formats.segment import HEADER_SIZE

TAIL = Loss(Code.TORN_TAIL, 300, 360, 6, None, None)
INNER = Loss(Code.RECORD_CHECKSUM, 200, 260, 5, 6, None)


def part(
    first: int, stop: int | None = None, *losses: Loss, begins: int | None = None, size: int | None = 128
) -> RepairedSegment:
    """A segment with ids up to `stop` (None: nothing was read of it); `size` None: without a data file."""
    path = Path(str(first))
    one = RepairedSegment(first, path, path, None if size is None else FileState(path, size, 0, 0), None)
    if stop is not None:
        start = first if begins is None else begins
        one.survey = Survey(start, stop, 300, 360, stop - start, None, tuple(losses))
    return one


def among(*parts: RepairedSegment) -> RepairContext:
    return SimpleNamespace(segments=list(parts))  # type: ignore[return-value]  # of which only these are looked at


@pytest.mark.parametrize(
    ("parts", "reach"),
    [
        ([part(4, 8)], 8),
        ([part(4, 8), part(8, 12)], 12),
        ([part(4, 8), part(8, 12), part(12, 13)], 13),
        ([part(4, 8), part(7, 12)], 8),
        ([part(4, 8), part(9, 12)], 8),
        ([part(4, 8), part(9, 12), part(8, 10)], 8),
        ([part(4, 8), part(8)], 8),
        ([part(4, 8), part(8), part(8, 10)], 8),
        ([part(4, 8), part(8, 12, INNER)], 8),
        ([part(4, 8), part(8, 12, INNER), part(8, 10)], 8),
        ([part(4, 8, INNER)], 4),
        ([part(4, 6, TAIL)], 6),
        ([part(4, 6, TAIL), part(6, 9)], 6),
        ([part(4, 6, INNER, TAIL), part(6, 9)], 4),
        ([part(4)], 4),
    ],
)
def test_how_far_segments_go_on_without_a_loss(parts: list[RepairedSegment], reach: int) -> None:
    assert _reach(parts) == reach
    wanted = Behind() if parts[0].survey is None else Behind(4, reach)
    assert _behind(parts) == wanted


def test_what_stands_behind_a_segment() -> None:
    assert _behind([]) == Behind(None, 0, end=True)
    assert _behind([part(4), part(8, 9)]) == Behind(None, 0, end=False)
    assert _behind([part(4, 8), part(8)]) == Behind(4, 8, end=False)
    assert Behind() == Behind(None, 0, end=False)


@pytest.mark.parametrize(
    ("parts", "first", "stop", "covered"),
    [
        ([part(0, 4), part(4, 8)], 4, 8, True),
        ([part(0, 4), part(4, 8)], 4, 7, True),
        ([part(0, 4), part(4, 8)], 4, 9, False),
        ([part(0, 5), part(5, 8)], 4, 8, True),
        ([part(5, 8), part(0, 5)], 4, 8, True),
        ([part(0, 4), part(5, 8)], 4, 8, False),
        ([part(0, 4), part(6, 8)], 4, 8, False),
        ([part(0, 8), part(4, 6)], 4, 8, True),
        ([part(0, 8), part(4)], 4, 8, True),
        ([part(4)], 4, 5, False),
        ([part(4, 8)], 4, 8, True),
        ([part(4, 8, begins=5)], 4, 8, False),
        ([], 4, 5, False),
        ([], 4, 4, True),
    ],
)
def test_whether_other_segments_hold_what_an_index_lists(
    parts: list[RepairedSegment], first: int, stop: int, *, covered: bool
) -> None:
    assert _covered(among(*parts), first, stop) is covered


@pytest.mark.parametrize(
    ("others", "last"),
    [
        ([part(0), part(3)], True),
        ([part(5)], False),
        ([part(6)], False),
        ([part(0), part(6)], False),
        ([part(5, size=None)], True),
        ([], True),
    ],
)
def test_whether_a_data_file_is_the_last_one(others: Sequence[RepairedSegment], *, last: bool) -> None:
    mine = part(4)
    assert _is_last(among(mine, *others), mine) is last


@pytest.mark.parametrize("error", [FileNotFoundError(), DiskReadError(Path("a"), 0, OSError(5, "Input/output error"))])
def test_an_index_that_cannot_be_read_says_nothing_of_what_will_be_here(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(*_: object) -> bool:
        raise error

    context = SimpleNamespace(segments=[part(0, 4)], partition=0)
    for listed in (True, False):
        monkeypatch.setattr(recover_partition, "listed_in", lambda *_, listed=listed: listed)
        assert _as_listed(context, part(4, size=None)) is listed  # type: ignore[arg-type]
    monkeypatch.setattr(recover_partition, "listed_in", fail)
    assert not _as_listed(context, part(4, size=None))  # type: ignore[arg-type]


def test_what_is_left_of_a_segment() -> None:
    assert _leftover(part(4, size=None))
    assert _leftover(part(4, size=HEADER_SIZE - 1))
    assert not _leftover(part(4, size=HEADER_SIZE))
    for size in (None, 0, HEADER_SIZE):
        made = part(4, size=size)
        made.content = Content("4", (LiteralBytes(b"x"),))
        assert not _leftover(made)


def test_a_torn_segment_reaches_less_far_than_any_whole_one() -> None:
    assert [_whole_end(one) for one in (part(0, 1), part(4, 8), part(4, 8, INNER), part(4, 6, TAIL))] == [1, 8, 8, 0]
