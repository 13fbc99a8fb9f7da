"""What recovery says of a segment by those beside it, on values: what joins, what covers, and what an overlap may rest on."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.builders import build_directory
from tests.cli.damage import segment_of
from tests.repair.twelve import Twelve
from waltzctl.engine.errors import DiskReadError
from waltzctl.engine.findings import Code, Where
from waltzctl.engine.log.evidence import Evidence
from waltzctl.engine.log.view import FileState
from waltzctl.engine.repair import recover_partition
from waltzctl.engine.repair.content import Content, FileSpan, LiteralBytes
from waltzctl.engine.repair.recover import plan_recover
from waltzctl.engine.repair.recover_overlaps import Behind, Outcome, OverlapPlanner
from waltzctl.engine.repair.recover_partition import (
    _behind,
    _has_no_data,
    _Others,
    _plan_leftovers,
    _plan_no_segment,
    _reach,
    _Walk,
    _whole_end,
)
from waltzctl.engine.repair.repaired_segments import RepairContext, RepairedSegment
from waltzctl.engine.repair.survey import Loss, Survey
from waltzctl.formats.segment import ENTRY_SIZE, HEADER_SIZE

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
    segments = sorted(parts, key=lambda one: one.first)
    return SimpleNamespace(segments=segments, partition=0, lacking=[])  # type: ignore[return-value]  # of which only these are looked at


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
    assert _Others.of(among(*parts)).cover(first, stop) is covered


@pytest.mark.parametrize(
    ("others", "following"),
    [
        ([part(0), part(3)], None),
        ([part(5)], 5),
        ([part(6)], 6),
        ([part(8), part(0), part(6)], 6),
        ([part(5, size=None)], None),
        ([part(5, size=None), part(6)], 6),
        ([], None),
    ],
)
def test_which_data_file_is_the_next_one(others: Sequence[RepairedSegment], following: int | None) -> None:
    mine = part(4)
    assert _Others.of(among(mine, *others)).following(mine) == following


@pytest.mark.parametrize("error", [FileNotFoundError(), DiskReadError(Path("a"), 0, OSError(5, "Input/output error"))])
def test_an_index_that_cannot_be_read_says_nothing_of_what_will_be_here(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(*_: object) -> bool:
        raise error

    others = _Others.of(among(part(0, 4)))
    for listed in (True, False):
        monkeypatch.setattr(recover_partition, "listed_in", lambda *_, listed=listed: listed)
        assert others.hold_listed(part(4, size=None)) is listed
    monkeypatch.setattr(recover_partition, "listed_in", fail)
    assert not others.hold_listed(part(4, size=None))


@pytest.mark.parametrize("entries", range(1, 6))
@pytest.mark.parametrize("first", range(12))
def test_what_an_index_lists_is_looked_for_where_it_may_be(
    monkeypatch: pytest.MonkeyPatch, first: int, entries: int
) -> None:
    """In each segment that may hold one of its ids, and in those of which nobody knows; where many are lost, in no others."""
    parts = [part(0, 4), part(3, 8), part(5, 7), part(8, 9, INNER), part(9, 11)]
    for one in parts:
        one.content = one.original = Content(str(one.first), ())
    asked: list[str] = []
    monkeypatch.setattr(recover_partition, "listed_in", lambda _, planned: asked.extend(one.name for _, one in planned))
    others = _Others.of(among(*parts))
    others.hold_listed(
        replace(part(first, size=None), index=FileState(Path("i"), HEADER_SIZE + entries * ENTRY_SIZE, 0, 0))
    )
    needed = {
        str(one.first)
        for one in parts
        if one.survey is not None and first < one.survey.next_id and one.first < first + entries
    }
    assert needed <= {*asked}
    assert len(asked) == len({*asked})
    assert ("0" in asked) == (first < 4)
    assert ("9" in asked) == (first < 11 and first + entries >= 9)


def test_what_many_lost_data_files_cost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The others are arranged once: each lost file went through all of them, which took a minute for some thousands."""
    counted = [0]
    arrange = _Others.of

    def count(context: RepairContext) -> _Others:
        counted[0] += 1
        return arrange(context)

    monkeypatch.setattr(_Others, "of", count)
    storage = build_directory(tmp_path / "a", {0: 40}, per_segment=1)
    for lost in range(1, 40, 2):
        segment_of(storage, 0, lost).unlink()
    found = plan_recover(storage)
    assert (len([one for one in found.plan.undecided if one.code is Code.INDEX_ORPHAN]), counted) == (20, [1])


def test_what_is_left_of_a_segment() -> None:
    assert _has_no_data(part(4, size=None))
    assert _has_no_data(part(4, size=HEADER_SIZE - 1))
    assert not _has_no_data(part(4, size=HEADER_SIZE))
    for size in (None, 0, HEADER_SIZE):
        made = part(4, size=size)
        made.content = Content("4", (LiteralBytes(b"x"),))
        assert not _has_no_data(made)


def test_a_torn_segment_reaches_less_far_than_any_whole_one() -> None:
    assert [_whole_end(one) for one in (part(0, 1), part(4, 8), part(4, 8, INNER), part(4, 6, TAIL))] == [1, 8, 8, 0]


# --- from the first segment to the last ---------------------------------------------------------------------------------


class Walk(_Walk):
    """Says what is asked of whom; of every overlap becomes `outcome`."""

    def __init__(self, parts: Sequence[RepairedSegment], outcome: Outcome = Outcome.LEFT) -> None:
        self.said: list[str] = []
        say = self.said.append

        def gap(before: RepairedSegment | None, first: int, behind: RepairedSegment) -> None:
            say(f"gap {None if before is None else before.first}: {first} {behind.first}")

        def end(
            last: RepairedSegment | None, first: int, mark: int, proven: object, *, limit: int | None, whole: bool
        ) -> int:
            say(f"end {None if last is None else last.first}: {first} {mark} {limit} {whole}")
            return first + 1

        def mend(before: RepairedSegment, part: RepairedSegment, behind: Behind) -> Outcome:
            say(f"overlap {before.first}/{part.first}, {behind.first} {behind.reach}")
            return outcome

        judged = SimpleNamespace(
            settle=lambda accepted: say("ledger"), choose=lambda part: say(f"choose {part.first}"),
            superfluous=lambda *_: False,
        )  # fmt: skip
        losses = SimpleNamespace(
            mend_tails=lambda before, part: say(f"tails {before.first}/{part.first}"),
            rivals=judged, replicas=(), gap=gap, end=end, settle=lambda part: say(f"settle {part.first}"),
            inner=lambda part, loss: say(f"inner {part.first} {loss.offset}"),
        )  # fmt: skip
        super().__init__(among(*parts), losses, 9, None, Evidence(), ())  # type: ignore[arg-type]
        self.overlaps = SimpleNamespace(mend=mend)  # type: ignore[assignment]

    def _surplus_bytes(self, before: RepairedSegment) -> None:
        self.said.append(f"junk {before.first}")


def made(first: int, stop: int | None = None, size: int | None = None) -> RepairedSegment:
    """A segment that will have a data file."""
    one = part(first, stop, size=size)
    one.content = Content("", (LiteralBytes(bytes(200)),))
    return one


END = "9 None False"
LATER = Loss(Code.RECORD_CHECKSUM, 262, 270, 7, 8, None)


@pytest.mark.parametrize(
    ("parts", "outcome", "said", "expected"),
    [
        ([], Outcome.LEFT, ["ledger", f"end None: 0 {END}"], 1),
        ([part(0, 0)], Outcome.LEFT, [f"end 0: 0 {END}"], 1),
        ([part(0, 4), part(4, 8)], Outcome.LEFT, [f"end 4: 8 {END}"], 9),
        ([part(1, 4)], Outcome.LEFT, ["gap None: 0 1", f"end 1: 4 {END}"], 5),
        ([part(0, 4), part(5, 8)], Outcome.LEFT, ["gap 0: 4 5", f"end 5: 8 {END}"], 9),
        ([part(0), part(4, 8)], Outcome.LEFT, [f"end 4: 8 {END}"], 9),
        ([part(0), part(4, 8), part(9, 10)], Outcome.LEFT, ["gap 4: 8 9", f"end 9: 10 {END}"], 11),
        ([part(0, 4), part(5), part(9, 10)], Outcome.LEFT, [f"end 9: 10 {END}"], 11),
        ([part(0, 4), part(4)], Outcome.LEFT, [], None),
        ([part(0, 4), part(4, size=None)], Outcome.LEFT, [f"end 0: 4 {END}"], 5),
        ([part(0, 4), part(4, size=HEADER_SIZE - 1)], Outcome.LEFT, [f"end 0: 4 {END}"], 5),
        ([part(0, 4), made(4, 8)], Outcome.LEFT, [f"end 4: 8 {END}"], 9),
        ([part(0, 6), part(4, 8)], Outcome.CUT, ["overlap 0/4, None 0", f"end 4: 8 {END}"], 9),
        ([part(0, 6), part(4, 5)], Outcome.CUT, ["overlap 0/4, None 0", f"end 4: 5 {END}"], 6),
        ([part(0, 6), part(4, 8)], Outcome.REMOVED, ["overlap 0/4, None 0", f"end 0: 6 {END}"], 7),
        ([part(0, 6), part(4, 8)], Outcome.LEFT, ["overlap 0/4, None 0", "tails 0/4", f"end 4: 8 {END}"], 9),
        ([part(0, 8), part(4, 8)], Outcome.LEFT, ["overlap 0/4, None 0", "tails 0/4", f"end 4: 8 {END}"], 9),
        ([part(0, 9), part(4, 8)], Outcome.LEFT, ["overlap 0/4, None 0", "tails 0/4", f"end 0: 9 {END}"], 10),
        (
            [part(0, 9), part(4, 8), part(9, 10)],
            Outcome.LEFT,
            ["overlap 0/4, 9 10", "tails 0/4", f"end 9: 10 {END}"],
            11,
        ),
        (
            [part(0, 9), part(4, 8), part(8, 10)],
            Outcome.REMOVED,
            ["overlap 0/4, 8 10", "overlap 0/8, None 0", f"end 0: 9 {END}"],
            10,
        ),
        (
            [part(0, 9), part(4, 8), part(9, 10), part(10, 11)],
            Outcome.LEFT,
            ["overlap 0/4, 9 11", "tails 0/4", f"end 10: 11 {END}"],
            12,
        ),
        ([part(0, 6, TAIL), part(6, 8)], Outcome.LEFT, ["junk 0", f"end 6: 8 {END}"], 9),
        ([part(0, 6, TAIL), part(7, 8)], Outcome.LEFT, ["gap 0: 6 7", f"end 7: 8 {END}"], 9),
        ([part(0, 6, TAIL), part(5, 8)], Outcome.LEFT, ["overlap 0/5, None 0", "tails 0/5", f"end 5: 8 {END}"], 9),
        ([part(0, 6, TAIL), part(5, 8)], Outcome.CUT, ["overlap 0/5, None 0", "junk 0", f"end 5: 8 {END}"], 9),
        ([part(0, 7, TAIL)], Outcome.LEFT, [f"end 0: 6 {END}"], 7),
        (
            [part(0, 6, INNER, LATER), part(6, 8, INNER)],
            Outcome.LEFT,
            [f"end 6: 8 {END}", "inner 0 262", "inner 0 200", "inner 6 200"],
            9,
        ),
        ([part(0, 6, INNER, TAIL)], Outcome.LEFT, [f"end 0: 6 {END}", "inner 0 200"], 7),
    ],
)
def test_segments_are_looked_at_in_their_order(
    parts: list[RepairedSegment], outcome: Outcome, said: list[str], expected: int | None
) -> None:
    """First what their ids are is settled, then what replicas and ledger say; then what is between them, then inside them."""
    walk = Walk(list(reversed(parts)), outcome)
    walk.run()
    there = [one.first for one in parts if (one.data or one.content) is not None and not one.short]
    wanted = [*(f"settle {one}" for one in there), "ledger", *(f"choose {one}" for one in there)]
    assert walk.said == [*wanted, *(one for one in said if one != "ledger")]
    assert walk.expected == expected


@pytest.mark.parametrize(
    ("changes", "against", "replica", "unasked", "loss"),
    [
        ({}, False, False, "cut", "cut"),
        ({}, True, True, "cut", "cut"),
        ({"unread": True}, False, False, None, None),
        ({"either": True}, False, False, None, None),
        ({"doubtful": True}, False, False, "left", "cut, loses True"),
        ({"cause": Code.RECORD_ORDER}, False, False, "left", "cut, loses True"),
        ({"cause": Code.RECORD_ORDER}, True, False, "cut, loses False", "cut, loses False"),
        ({"cause": Code.RECORD_ORDER}, True, True, "cut, loses True", "cut, loses True"),
        ({"cause": Code.RECORD_ORDER, "doubtful": True}, False, False, "left", "cut, loses True"),
        ({"cause": Code.RECORD_ORDER, "either": True}, True, True, "cut, loses True", "cut, loses True"),
    ],
)
def test_what_becomes_of_bytes_in_front_of_a_segment_that_begins_with_the_next_id(
    changes: dict[str, object], unasked: str | None, loss: str | None, *, against: bool, replica: bool
) -> None:
    said: list[str] = []
    for allowed, wanted in ((False, unasked), (True, loss)):
        said.clear()
        tail = replace(TAIL, **changes)  # type: ignore[arg-type]
        before = part(0, 6, tail)
        before.content = Content("", (LiteralBytes(bytes(360)),))
        step = SimpleNamespace(step=lambda action, *_, offset, length: said.append(f"{action} {offset} {length}"))
        context = SimpleNamespace(allow_data_loss=allowed, partition=0, segments=[], draft=step)
        losses = SimpleNamespace(
            rivals=SimpleNamespace(superfluous=lambda *_: against), replicas=[1] if replica else [],
            cut_tail=lambda *_, loses: said.append(f"cut, loses {loses}"),
            leave_tail=lambda *_, following: said.append("left"),
        )  # fmt: skip
        _Walk(context, losses, 9, None, Evidence(), ())._surplus_bytes(before)  # type: ignore[arg-type]
        assert said == ["cut-torn-tail 300 60" if wanted == "cut" else wanted] if wanted else not said
        assert before.content.size() == (300 if wanted == "cut" else 360)


@pytest.mark.parametrize(
    ("session", "mark", "segments", "there", "unasked", "loss"),
    [
        (None, -1, [], True, [], []),
        (-1, -1, [], True, [], []),
        (0, -1, [], True, ["left: 0"], ["created"]),
        (3, -1, [], True, ["left: 3"], ["created"]),
        (3, 0, [], True, [], ["created"]),
        (3, -1, [], False, [], ["created"]),
        (3, -1, [part(4, size=None)], True, [], ["created"]),
    ],
)
def test_a_log_of_which_nothing_is_left_begins_anew_where_a_session_had_begun(
    tmp_path: Path, session: int | None, mark: int, segments: list[RepairedSegment], unasked: list[str],
    loss: list[str], *, there: bool,
) -> None:  # fmt: skip
    said: list[str] = []
    current = None if session is None else SimpleNamespace(session_id=session, local_low_water_mark=mark)
    control = SimpleNamespace(partitions=[SimpleNamespace(current_struct=current)], header=SimpleNamespace(created=5))
    for allowed, wanted in ((False, unasked), (True, loss)):
        said.clear()
        context = SimpleNamespace(
            control=control, partition=0, segments=segments, allow_data_loss=allowed,
            directory=tmp_path if there else tmp_path / "none", new_part=lambda first, created: part(first),
            draft=SimpleNamespace(step=lambda *_, loses_data, **__: said.append("created" if loses_data else "no loss")),
            leave=lambda what, _: said.append(f"left: {what.began}"),
        )  # fmt: skip
        _plan_no_segment(context)  # type: ignore[arg-type]
        assert said == wanted


def test_what_was_no_regular_file_and_is_gone_meanwhile_is_told_of_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    d = Twelve(tmp_path / "d")
    d.drop(8)
    os.mkfifo(d.seg(8))
    for kind, said in ((None, "gone"), ("a pipe", "a pipe")):
        monkeypatch.setattr(recover_partition.places, "special", lambda _, kind=kind: kind)
        (left,) = plan_recover(d.root).plan.undecided
        assert said in left.message


# --- what is left over ----------------------------------------------------------------------------------------------------


def left_over(entries: int, *, size: int | None = None) -> RepairedSegment:
    """Segment 4 with an index of so many entries, and no data file or part of a header."""
    one = part(4, size=size)
    one.index = FileState(Path("4.idx"), HEADER_SIZE + 8 * entries, 0, 0)
    return one


GONE, AWAY, LOST, SHORT = "removed", "removed, loses", "given up 4..6", "short"
STAYS, IN_FRONT = (
    "left: truncate in front of them, or bring the data file back",
    "left: transactions in front of 4 are missing",
)
DISPUTED = "disputed 4..6"


@pytest.mark.parametrize(
    ("one", "others", "expected", "end", "listed", "unasked", "loss"),
    [
        (left_over(3), [], 7, None, True, [GONE], [GONE]),
        (left_over(3), [], 6, None, True, ["left: "], [LOST, AWAY]),
        (left_over(3), [], 8, None, True, [GONE], [GONE]),
        (left_over(3), [], 7, None, False, [STAYS], [DISPUTED, AWAY]),
        (left_over(3), [], None, None, True, ["left: "], [LOST, AWAY]),
        (left_over(3), [part(0, 7)], None, None, True, [GONE], [GONE]),
        (left_over(3), [part(0, 7)], 2, None, True, [GONE], [GONE]),
        (left_over(3), [part(0, 6)], None, None, True, ["left: "], [LOST, AWAY]),
        (left_over(3), [part(0, 7)], None, None, False, [STAYS], [DISPUTED, AWAY]),
        (left_over(3), [], 3, 7, True, ["left: "], [LOST, AWAY]),
        (left_over(9), [], 3, 7, True, ["left: "], [LOST, AWAY]),
        (left_over(3), [], 3, 5, True, ["left: "], ["given up 4..4", AWAY]),
        (left_over(3), [], 3, 4, True, [IN_FRONT], ["given up 4..3", AWAY]),
        (left_over(3), [], 3, 3, True, [IN_FRONT], ["given up 4..3", AWAY]),
        (left_over(3), [], 4, 4, True, [GONE], [GONE]),
        (left_over(0), [], 4, None, True, [GONE], [GONE]),
        (left_over(0), [], 5, None, True, [GONE], [GONE]),
        (left_over(0), [], 3, None, True, [IN_FRONT], ["given up 4..3", AWAY]),
        (left_over(0), [], None, None, True, [IN_FRONT], ["given up 4..3", AWAY]),
        (left_over(0), [part(8, 9)], 4, None, True, [GONE], [GONE]),
        (left_over(0, size=5), [], 4, None, True, [GONE], [GONE]),
        (left_over(0, size=5), [], 3, None, True, [SHORT], ["given up 4..3", AWAY]),
        (left_over(0, size=5), [part(8, 9)], 4, None, True, [SHORT], ["given up 4..3", AWAY]),
        (left_over(3, size=5), [], 7, None, True, [SHORT], [LOST, AWAY]),
        (left_over(3, size=HEADER_SIZE), [], 7, None, True, [], []),
        (made(4), [], 4, None, True, [], []),
        (made(4, size=5), [], 4, None, True, [], []),
    ],
)
def test_what_becomes_of_an_index_without_data_and_of_a_part_of_a_header(
    monkeypatch: pytest.MonkeyPatch, one: RepairedSegment, others: list[RepairedSegment], expected: int | None,
    end: int | None, unasked: list[str], loss: list[str], *, listed: bool,
) -> None:  # fmt: skip
    """What it lists is here, or comes back, or is lost; one that stands behind another left-over is no other case."""
    said: list[str] = []
    monkeypatch.setattr(_Others, "hold_listed", lambda *_: listed)
    monkeypatch.setattr(recover_partition, "_remove", lambda *_, loses: said.append(AWAY if loses else GONE))
    monkeypatch.setattr(recover_partition, "_leave_orphan", lambda *call: said.append(f"left: {call[4]}"))
    for allowed, wanted in ((False, unasked), (True, loss)):
        said.clear()
        context = among(*others, one)
        context.allow_data_loss = allowed
        context.give_up = lambda first, stop, _: said.append(f"given up {first}..{stop - 1}")  # type: ignore[method-assign]
        context.where = Where(None, 0, Path("/d/0"))  # type: ignore[misc]
        context.leave_end = lambda what, whose, why: said.append(SHORT)  # type: ignore[method-assign]
        context.dispute = lambda first, stop, _: said.append(f"disputed {first}..{stop - 1}")  # type: ignore[method-assign]
        _plan_leftovers(context, expected, end, 0)
        assert said == wanted


@pytest.mark.parametrize(
    ("lacking", "entries", "restored", "listed", "unasked", "loss"),
    [
        ((2, 4), 3, [], False, "STAYS", "disputed 4..6, AWAY"),
        ((2, 5), 3, [], False, "STAYS", "disputed 5..6, given up 4..4, AWAY"),
        ((5, 6), 3, [], False, "STAYS", "disputed 4..4, disputed 6..6, given up 5..5, AWAY"),
        ((6, 8), 3, [], False, "STAYS", "disputed 4..5, given up 6..6, AWAY"),
        ((4, 7), 3, [], False, "STAYS", "given up 4..6, AWAY"),
        ((7, 8), 3, [], False, "STAYS", "disputed 4..6, AWAY"),
        ((6, 8), 3, [], True, "GONE", "GONE"),
        ((8, 9), 1, [], False, "STAYS", "disputed 4..4, AWAY"),
        ((8, 9), 1, [(4, 5)], False, "GONE", "GONE"),
        ((8, 9), 1, [(5, 6)], False, "STAYS", "disputed 4..4, AWAY"),
        ((8, 9), 2, [(4, 6)], False, "STAYS", "disputed 4..5, AWAY"),
    ],
)
def test_what_becomes_of_an_index_whose_transactions_are_missing_or_come_back(
    monkeypatch: pytest.MonkeyPatch, lacking: tuple[int, int], entries: int, restored: list[tuple[int, int]],
    unasked: str, loss: str, *, listed: bool,
) -> None:  # fmt: skip
    """The end of the partition is known, and far behind it."""
    said: list[str] = []
    monkeypatch.setattr(_Others, "hold_listed", lambda *_: listed)
    monkeypatch.setattr(recover_partition, "_remove", lambda *_, loses: said.append("AWAY" if loses else "GONE"))
    monkeypatch.setattr(recover_partition, "_leave_orphan", lambda *_: said.append("STAYS"))
    for allowed, wanted in ((False, unasked), (True, loss)):
        said.clear()
        context = among(left_over(entries))
        context.allow_data_loss, context.lacking = allowed, [lacking]
        context.give_up = lambda first, stop, _: said.append(f"given up {first}..{stop - 1}")  # type: ignore[method-assign]
        context.dispute = lambda first, stop, _: said.append(f"disputed {first}..{stop - 1}")  # type: ignore[method-assign]
        _plan_leftovers(context, 20, None, 0, restored)
        assert ", ".join(said) == wanted


def test_each_left_over_is_judged_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(_Others, "hold_listed", lambda _, one: one.first == 6)
    monkeypatch.setattr(recover_partition, "_remove", lambda _, one, **__: said.append(f"removed {one.first}"))
    monkeypatch.setattr(recover_partition, "_leave_orphan", lambda *call: said.append(f"left {call[2].first}"))
    both = [left_over(3), replace(left_over(1), first=6)]
    for parts in (both, both[::-1]):
        said.clear()
        context = among(*parts)
        context.allow_data_loss = False
        _plan_leftovers(context, 9, None, 0)
        assert sorted(said) == ["left 4", "removed 6"]


# --- two that hold the same ids -------------------------------------------------------------------------------------------


class Overlaps(OverlapPlanner):
    """Says what becomes of two segments; what they hold of the ids in question is their content."""

    said: list[str]
    ids: list[tuple[int, int]]

    def _run(self, part: RepairedSegment, first: int, stop: int) -> Content:  # type: ignore[override]
        self.ids.append((first, stop))
        assert part.content is not None
        return part.content

    def _remove(self, earlier: RepairedSegment, part: RepairedSegment, why: str, *, ids_lost: bool) -> Outcome:
        self.said.append(f"{part.first} goes{', loses' if ids_lost else ''}: {why}")
        return Outcome.REMOVED

    def _cut(self, earlier: RepairedSegment, later: RepairedSegment, why: str, *, ids_lost: bool) -> Outcome:
        self.said.append(f"{earlier.first} is cut{', loses' if ids_lost else ''}: {why}")
        return Outcome.CUT

    def _leave(self, earlier: RepairedSegment, later: RepairedSegment, said: Sequence[str]) -> Outcome:
        self.said.append(f"left: {'; '.join(said)}")
        return Outcome.LEFT


def inside(stop: int, **more: object) -> Loss:
    return replace(TAIL, first=stop, **more)  # type: ignore[arg-type]


DAMAGED = "left: one of them is damaged: once that is mended, they can be compared"
LATER_TORN = "left: the later one is torn"
ENDS_FIRST = "8 goes: the segment in front of it holds the same records, and goes on"
FRONT_SAME = "8 goes: the segment in front of it holds the same records"
NEXT_SAME = "4 is cut: the next segment holds the same records"
DIFFER = "both runs differ and nothing tells which is right"
FURTHER, READ = "it reaches further", "it is the later one, which a node reads"
BOTH = "left: for 4: {}; for 8: {}"
BEYOND = "; but what the other one holds beyond stands nowhere else"
REPLICA, JOINS, REACHES = (
    "r holds the same records", "the next segment begins with {}, where it ends", "it alone reaches the local low-water mark {}"
)  # fmt: skip


@pytest.mark.parametrize(
    ("ends", "tails", "same", "unasked", "loss"),
    [
        ((10, 10), (None, None), True, FRONT_SAME, None),
        ((10, 9), (None, None), True, FRONT_SAME, None),
        ((10, 11), (None, None), True, NEXT_SAME, None),
        ((10, 10), (inside(10), None), True, NEXT_SAME, None),
        ((10, 11), (inside(10), None), True, NEXT_SAME, None),
        ((10, 9), (inside(10), None), True, DAMAGED, ENDS_FIRST),
        ((10, 10), (inside(10, doubtful=True), None), True, DAMAGED, None),
        ((10, 11), (inside(10, unread=True), None), True, DAMAGED, None),
        ((10, 11), (inside(10, cause=Code.RECORD_ORDER), None), True, DAMAGED, None),
        ((10, 10), (INNER, None), True, DAMAGED, None),
        ((10, 10), (None, INNER), True, DAMAGED, None),
        ((10, 10), (None, inside(10)), True, NEXT_SAME, None),
        ((10, 11), (None, inside(11)), True, NEXT_SAME, None),
        ((10, 9), (None, inside(9)), True, LATER_TORN, ENDS_FIRST),
        ((10, 9), (inside(10), inside(9)), True, DAMAGED, ENDS_FIRST),
        ((10, 8), (inside(10), inside(8)), True, DAMAGED, ENDS_FIRST),
        ((10, 9), (inside(10), None), False, DAMAGED, None),
        ((10, 9), (inside(10, doubtful=True), None), True, DAMAGED, None),
        ((10, 9), (inside(10), inside(9, unread=True)), True, DAMAGED, None),
        ((10, 9), (inside(10), inside(9, cause=Code.RECORD_ORDER)), True, DAMAGED, None),
        ((10, 9), (INNER, inside(9)), True, DAMAGED, None),
        ((10, 10), (None, None), False, BOTH.format("nothing", "nothing"), f"4 is cut, loses: 8 is kept: {DIFFER}; {READ}"),
        ((10, 11), (None, None), False, BOTH.format("nothing", "nothing"), f"4 is cut, loses: 8 is kept: {DIFFER}; {FURTHER}"),
        ((10, 9), (None, None), False, BOTH.format("nothing", "nothing"), f"8 goes, loses: 4 is kept: {DIFFER}; {FURTHER}"),
    ],
)  # fmt: skip
def test_what_becomes_of_two_segments_with_the_same_ids(
    ends: tuple[int, int], tails: tuple[Loss | None, Loss | None], unasked: str, loss: str | None, *, same: bool
) -> None:
    for allowed, wanted in ((False, unasked), (True, loss or unasked)):
        planner, parts, disputed = overlapping(ends, tails, same=same, allowed=allowed)
        outcome = planner.mend(*parts, Behind())
        assert planner.said == [wanted]
        assert set(planner.ids) <= {(8, min(ends))}
        assert outcome is (Outcome.LEFT if "left" in wanted else Outcome.REMOVED if "goes" in wanted else Outcome.CUT)
        assert disputed == ([(8, min(ends))] if allowed and loss not in (None, ENDS_FIRST) else [])


def overlapping(
    ends: tuple[int, int], tails: tuple[Loss | None, Loss | None] = (None, None), *, same: bool = False,
    allowed: bool = False, held: Sequence[int] = (), mark: int | None = None, root: Path = Path(),
) -> tuple[Overlaps, list[RepairedSegment], list[tuple[int, int]]]:  # fmt: skip
    """Segments 4 and 8 with these ends; `held`: which of the two each replica holds (2: another one, -1: none)."""
    parts = [part(first, end, *filter(None, [tail])) for first, end, tail in zip((4, 8), ends, tails, strict=True)]
    texts = [b"one", b"one" if same else b"two", b"new"]
    for one, text in zip(parts, texts, strict=False):
        one.content = Content("", (LiteralBytes(text),))
    replicas = []
    for which in held:
        (root / str(which)).write_bytes(texts[which])
        run = SimpleNamespace(span=FileSpan(root / str(which), 0, 3))
        replicas.append(SimpleNamespace(path="r", runs=lambda *_, run=run, which=which: None if which < 0 else [run]))
    disputed: list[tuple[int, int]] = []
    context = SimpleNamespace(
        allow_data_loss=allowed, partition=0, draft=SimpleNamespace(sources=set()),
        dispute=lambda first, stop, _: disputed.append((first, stop)),
    )  # fmt: skip
    planner = Overlaps(context, replicas, mark, Evidence())  # type: ignore[arg-type]
    planner.said, planner.ids = [], []
    return planner, parts, disputed


@pytest.mark.parametrize(
    ("ends", "torn", "held", "behind", "mark", "said"),
    [
        ((10, 10), False, [0], Behind(), None, f"8 goes: 4 is kept: {REPLICA}"),
        ((10, 10), False, [1], Behind(), None, f"4 is cut: 8 is kept: {REPLICA}"),
        ((10, 10), True, [0], Behind(), None, BOTH.format("nothing", "nothing")),
        ((10, 10), True, [1], Behind(), None, f"4 is cut: 8 is kept: {REPLICA}"),
        ((10, 10), False, [0, 1], Behind(), None, BOTH.format(REPLICA, REPLICA)),
        ((10, 10), False, [-1, 1], Behind(), None, f"4 is cut: 8 is kept: {REPLICA}"),
        ((10, 10), False, [0, 0], Behind(), None, f"8 goes: 4 is kept: {REPLICA}; {REPLICA}"),
        ((10, 10), False, [2], Behind(), None, BOTH.format("nothing", "nothing")),
        ((10, 9), False, [1], Behind(), None, BOTH.format("nothing", REPLICA) + BEYOND),
        ((10, 11), False, [0], Behind(), None, BOTH.format(REPLICA, "nothing") + BEYOND),
        ((10, 11), False, [1], Behind(), None, f"4 is cut: 8 is kept: {REPLICA}"),
        ((11, 10), False, [0], Behind(), None, f"8 goes: 4 is kept: {REPLICA}"),
        ((10, 11), False, [], Behind(11, 12), None, f"4 is cut: 8 is kept: {JOINS.format(11)}"),
        ((10, 11), False, [], Behind(10, 11), None, f"8 goes: 4 is kept: {JOINS.format(10)}"),
        ((10, 12), False, [], Behind(10, 11), None, BOTH.format(JOINS.format(10), "nothing") + BEYOND),
        ((10, 12), False, [], Behind(10, 12), None, f"8 goes: 4 is kept: {JOINS.format(10)}"),
        ((12, 10), False, [], Behind(10, 12), None, f"4 is cut: 8 is kept: {JOINS.format(10)}"),
        ((10, 10), False, [], Behind(10, 12), None, BOTH.format("nothing", "nothing")),
        ((10, 11), False, [0], Behind(12, 20), None, BOTH.format(REPLICA, "nothing") + BEYOND),
        ((10, 11), False, [], Behind(end=True), 10, f"4 is cut: 8 is kept: {REACHES.format(10)}"),
        ((10, 12), False, [], Behind(end=True), 10, f"4 is cut: 8 is kept: {REACHES.format(10)}"),
        ((10, 11), False, [], Behind(end=True), 9, BOTH.format("nothing", "nothing")),
        ((10, 11), False, [], Behind(end=True), 11, BOTH.format("nothing", "nothing")),
        ((10, 11), False, [], Behind(end=True), None, BOTH.format("nothing", "nothing")),
        ((10, 11), False, [], Behind(), 10, BOTH.format("nothing", "nothing")),
        ((11, 10), False, [], Behind(end=True), 10, f"8 goes: 4 is kept: {REACHES.format(10)}"),
    ],
)  # fmt: skip
def test_which_of_two_runs_is_kept_is_told_by_witnesses(
    tmp_path: Path, ends: tuple[int, int], held: list[int], behind: Behind, mark: int | None, said: str, *, torn: bool
) -> None:
    """If none contradicts another, and nothing goes whose ids stand nowhere else."""
    tails = (inside(ends[0]) if torn else None), None
    planner, parts, _ = overlapping(ends, tails, held=held, mark=mark, root=tmp_path)
    planner.mend(*parts, behind)
    assert planner.said == [said]
    assert planner.context.draft.sources == {tmp_path / str(one) for one in held if one >= 0}
