"""Partitions of many segments and damaged places: what is asked for each of them takes no longer for all the others."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any, SupportsIndex

import pytest

from tests.builders import build_directory, with_marks
from waltzctl.engine.durable.edits import Edit, Overwrite, Remove
from waltzctl.engine.inspect import partition_checks
from waltzctl.engine.log.view import FileState, SegmentView, read_control
from waltzctl.engine.losses import Covered, Ids, covered, without
from waltzctl.engine.repair import marks, recover_ledger
from waltzctl.engine.repair.arguments import Agreed, Arguments
from waltzctl.engine.repair.content import Content
from waltzctl.engine.repair.plan import PlanDraft
from waltzctl.engine.repair.provenance import SegmentSurroundings
from waltzctl.engine.repair.reconcile import Reconciliation
from waltzctl.engine.repair.recover_ledger import settle_ledger
from waltzctl.engine.repair.repaired_segments import RepairContext, RepairedSegment
from waltzctl.engine.repair.survey import Survey
from waltzctl.engine.repair.witnesses import Witnesses
from waltzctl.formats.control import CONTROL_FILE_NAME
from waltzctl.formats.segment import index_name

MANY = 400


class Read(Covered):
    """Ranges; `read`: how many of them were read, in all."""

    read = 0

    def __getitem__(self, place: SupportsIndex | slice) -> Any:
        Read.read += 1
        return super().__getitem__(place)

    def __iter__(self) -> Iterator[Ids]:
        Read.read += len(self)
        return super().__iter__()


class Looked(RepairedSegment):
    """A segment; `looked`: how often one was compared or asked whether it has a data file, in all."""

    looked = 0
    surveyed = 0

    def __getattribute__(self, name: str) -> Any:
        if name == "data":
            Looked.looked += 1
        if name == "survey":
            Looked.surveyed += 1
        return super().__getattribute__(name)

    def __eq__(self, other: object) -> bool:
        Looked.looked += 1
        return self is other


class Viewed(tuple[SegmentView, ...]):
    """Segments as listed; `read`: how many of them were read, in all."""

    __slots__ = ()
    read = 0

    def __getitem__(self, place: SupportsIndex | slice) -> Any:
        Viewed.read += 1
        return super().__getitem__(place)

    def __iter__(self) -> Iterator[SegmentView]:
        Viewed.read += len(self)
        return super().__iter__()


def segments(firsts: Iterable[int]) -> RepairContext:
    context = RepairContext(None, None, 0, Path(), True, None)  # type: ignore[arg-type]
    context.segments = [Looked(one, Path("a"), Path("b"), None, None, content=Content("a", ())) for one in firsts]
    Looked.looked = 0
    return context


def test_ranges_against_sets_of_numbers() -> None:
    chosen = random.Random("covered")
    for _ in range(2000):
        held = [(low, low + chosen.randrange(5)) for low in chosen.choices(range(30), k=chosen.randrange(8))]
        first = chosen.randrange(30)
        wanted = first, first + chosen.randrange(12)
        ids = {*range(*wanted)} - {one for ranges in held for one in range(*ranges)}
        for given in (held, covered(held)):
            rest = without(wanted, given)
            assert [one for ranges in rest for one in range(*ranges)] == sorted(ids)
            assert all(low < stop for low, stop in rest)


def test_each_loss_is_compared_with_the_ranges_beside_it() -> None:
    held = Read((one, one + 1) for one in range(0, 2 * MANY, 2))
    Read.read = 0
    for one in range(MANY):
        assert without((2 * one, 2 * one + 2), held) == [(2 * one + 1, 2 * one + 2)]
    assert Read.read <= MANY * 20


def test_a_segment_is_split_in_many_places() -> None:
    context = segments([0])
    for first in range(MANY, 0, -1):
        assert not context.taken(first)
        context.put(Looked(first, Path("a"), Path("b"), None, None, content=Content("a", ())))
        assert context.taken(first)
    assert [one.first for one in context.segments] == [*range(MANY + 1)]
    assert [context.following(one) for one in context.segments] == [*range(1, MANY + 1), None]
    for one in context.segments[1::2]:
        context.remove(one)
    assert [one.first for one in context.segments] == [*range(0, MANY + 1, 2)]
    assert Looked.looked <= MANY * 10


def test_the_neighbours_of_each_segment_are_found_among_many() -> None:
    """`recover` and `rebuild-index` looked at every segment for each: a square of their number."""
    views = Viewed(SegmentView(0, one, FileState(Path("a"), 0, 0, 0), None) for one in range(MANY))
    around = SegmentSurroundings(None, 0, views)  # type: ignore[arg-type]
    context = segments(range(MANY))
    for one in context.segments[1:-1]:
        one.survey = Survey(one.first, one.first + 1, 0, 0, 1, None, ())
    Looked.surveyed = Viewed.read = 0
    witnesses = Witnesses(context)
    for one in context.segments:
        before = [one.first - 1] if one.first > 1 else []
        behind = [one.first + 1] if one.first < MANY - 2 else []
        assert [found.first for found in islice(context.surveyed(one.first, behind=False), 1)] == before
        assert [found.first for found in islice(context.surveyed(one.first, behind=True), 1)] == behind
        found = witnesses._neighbour(one)
        assert (found and found.first) == (before[0] if before else None)
        assert around.following(one.first) == (one.first + 1 if one.first + 1 < MANY else None)
    assert [one.first for one in context.surveyed(4, behind=False)] == [3, 2, 1]
    assert Looked.surveyed <= MANY * 10
    assert Viewed.read <= MANY * 20


def test_many_segments_are_cut_away() -> None:
    context = segments(range(MANY))
    removed: list[RepairedSegment] = []
    Reconciliation(context, Agreed(0, 11), None, removed).cut(MANY // 2)
    assert [one.first for one in removed] == [*range(MANY // 2 + 2, MANY)]
    assert [one.first for one in context.segments] == [*range(MANY // 2 + 2)]
    assert Looked.looked <= MANY * 10


def test_many_accepted_losses_are_verified(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Sequence[Ids]] = []
    monkeypatch.setattr(partition_checks, "still_lost", lambda _, held, __: asked.append(held))
    context = SimpleNamespace(accepted=[None] * MANY, local_low_water_mark=0)
    assert not [*partition_checks.loss_findings(context, [(2, 3), (0, 1)])]  # type: ignore[arg-type]
    assert len(asked) == MANY
    assert asked[0] == ((0, 1), (2, 3))
    assert all(one is asked[0] for one in asked)


def test_many_losses_are_entered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each once, whatever others cover of it: those given up, those disputed, those that the ledger has."""
    asked: list[object] = []

    def noted(wanted: Ids, held: Iterable[Ids]) -> list[Ids]:
        asked.append(held)
        return without(wanted, held)

    monkeypatch.setattr(recover_ledger, "without", noted)
    given_up = [(0, 3, "a"), (1, 2, "b"), (1, 5, "c"), *((one, one + 1, "d") for one in range(10, 10 + 2 * MANY, 2))]
    disputed = [(4, 7, "e"), (6, 8, "f"), (20, 22, "g")]
    present = [SimpleNamespace(first=2, last=3, disputed=False, local_low_water_mark=-1, time="", reason="")]
    draft = SimpleNamespace(steps=[], accepted=[], settled=[], storage=Path(), step=lambda *_, **__: None)
    context = SimpleNamespace(
        draft=draft, partition=0, lowered_to=None, given_up=[*reversed(given_up)], disputed=disputed, confirmed=[],
        segments=[], leave=lambda *_: None,
    )  # fmt: skip
    settle_ledger(context, present, None, 0)  # type: ignore[arg-type]
    entered = [(one.first, one.last + 1, one.reason) for one in draft.accepted]
    assert entered[:4] == [(0, 2, "a"), (4, 5, "c"), (10, 11, "d"), (12, 13, "d")]
    assert entered[MANY + 2 :] == [(5, 7, "e"), (7, 8, "f"), (21, 22, "g")]
    assert all(isinstance(one, Covered) for one in asked)
    assert len({*map(id, asked)}) <= 3


def test_many_marks_are_lowered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planned edits are gone through only for a mark whose bytes one of them writes, which is dropped."""
    build_directory(tmp_path / "s", dict.fromkeys(range(MANY), 0), session=3)
    control, path = read_control(tmp_path / "s" / CONTROL_FILE_NAME), tmp_path / "s" / CONTROL_FILE_NAME
    assert control is not None
    infos = [with_marks(info, local_low_water_mark=9) for info in control.partitions]
    asked: list[Edit] = []

    def noted(edit: Edit, written: Overwrite) -> bool:
        asked.append(edit)
        return inside(edit, written)

    inside = marks._inside
    monkeypatch.setattr(marks, "_inside", noted)
    draft = PlanDraft("recover", tmp_path / "s", tmp_path / "s", Arguments())
    for info in infos:
        draft.edits.append(Remove(tmp_path / "s" / str(info.partition) / index_name(0)))
        marks.lower_mark(draft, path, info, 4)
    assert asked == []
    assert len(draft.edits) == 2 * MANY
    marks.lower_mark(draft, path, infos[7], 3)
    assert [edit for edit in asked if inside(edit, draft.edits[-1])] == [asked[15]]  # type: ignore[arg-type]
    assert len(draft.edits) == 2 * MANY
    draft.edits[:] = draft.edits[:10]
    marks.lower_mark(draft, path, infos[4], 3)
    marks.lower_mark(draft, path, infos[9], 3)
    assert len(draft.edits) == 11
    assert len(asked) == 2 * MANY + 10
