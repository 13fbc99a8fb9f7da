"""What a recovery does about the end of a partition, on values: who is asked, up to where, and what is here of a torn end."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.builders import segment_header
from tests.repair.test_loss_rules import RECORDS, at, content_of, file_of, part_of
from tests.repair.test_replica_rules import broken, claims_other
from waltzctl.engine.findings import Code
from waltzctl.engine.log.assess import Stretch
from waltzctl.engine.log.evidence import Evidence
from waltzctl.engine.repair.content import FileSpan
from waltzctl.engine.repair.recover_losses import LossPlanner
from waltzctl.engine.repair.repaired_segments import RepairedSegment
from waltzctl.engine.repair.replicas import Neighbours, Proven, Refusal, ReplicaRun, WitnessRecord
from waltzctl.engine.repair.survey import Loss
from waltzctl.engine.repair.witnesses import Witnesses, records_in_a_row
from waltzctl.formats.segment import Record, encode_entries


def among(*parts: RepairedSegment, loss: bool = False) -> SimpleNamespace:
    """A partition with these segments, which is asked for nothing else."""
    return SimpleNamespace(partition=0, segments=list(parts), allow_data_loss=loss)


# --- the nearest intact records -------------------------------------------------------------------------------------------

STATES = {"intact": Record.encode, "damaged": broken, "other data": claims_other}
FIRSTS = (0, 2, 3, 5)
"""Segments of two, one and two records, and an empty one."""


def segments(place: Path, states: Sequence[str]) -> list[RepairedSegment]:
    parts = []
    for first, stop in zip(FIRSTS, (*FIRSTS[1:], 5), strict=True):
        raws = [STATES[states[number]](RECORDS[number]) for number in range(first, stop)]
        parts.append(part_of(place, segment_header(0, first).encode() + b"".join(raws), first=first))
    return parts


def number(found: WitnessRecord | None) -> int | None:
    if found is not None:
        assert found.record == RECORDS[found.transaction_id].encode()
    return None if found is None else found.transaction_id


def check_neighbours(parts: Sequence[RepairedSegment], intact: Sequence[int]) -> None:
    """Of every loss, every end and every beginning."""
    witnesses = Witnesses(among(*reversed(parts)))  # type: ignore[arg-type]  # which of them is next, their ids tell
    for part in parts:
        found = part.survey
        if found is None:
            continue
        for loss in found.inner:
            assert loss.stop is not None
            around = witnesses.around(part, loss)
            assert number(around.before) == max((one for one in intact if one < loss.first), default=None)
            assert number(around.after) == min((one for one in intact if one >= loss.stop), default=None)
        here = max((one for one in intact if one < found.next_id), default=None)
        for first in range(7):
            wanted = here if here is not None and here < first else None
            assert number(witnesses.before(part, first)) == wanted
        ahead = min((one for one in intact if one >= found.begins), default=None)
        assert number(witnesses.behind(part, found.begins)) == ahead
    assert witnesses.before(None, 5) is None
    assert witnesses.behind(None, 0) is None


@pytest.mark.parametrize("begin", list(product(STATES, repeat=2)))
def test_the_witnesses_of_a_loss_are_the_nearest_intact_records(tmp_path: Path, begin: tuple[str, str]) -> None:
    """Whatever else is damaged, in whichever segment, and also where one of them cannot be read."""
    for rest in product(STATES, repeat=3):
        states = (*begin, *rest)
        parts = segments(tmp_path, states)
        intact = [place for place, state in enumerate(states) if state == "intact"]
        check_neighbours(parts, intact)
        parts[1].survey = None
        check_neighbours(parts, [one for one in intact if one != 2])


def test_a_witness_behind_a_loss_has_an_id_behind_it(tmp_path: Path) -> None:
    """The next segment may begin in front of it: two that overlap."""
    ids = {0: range(4), 2: range(2, 6), 7: range(7, 9)}
    parts = [part_of(tmp_path, file_of(numbers, named=first), first=first) for first, numbers in ids.items()]
    witnesses = Witnesses(among(*parts))  # type: ignore[arg-type]
    for stop, after in ((2, 2), (3, None), (1, 2)):
        found = witnesses.behind(parts[1], stop)
        assert (None if found is None else found.transaction_id) == after
    end = Loss(Code.DATA_CHECKSUM, at(3), at(4), 3, 4, at(2), record_ok=True)
    assert parts[0].survey is not None
    parts[0].survey = dataclasses.replace(parts[0].survey, losses=(end,))
    assert witnesses.around(parts[0], end).after is None
    parts[1].survey = None
    after = witnesses.around(parts[0], end).after
    assert after is not None
    assert after.transaction_id == 7


def test_records_in_a_row_end_in_front_of_the_first_that_is_none() -> None:
    content = content_of(file_of([0, 1, 7, 3, 4], broken=[4]))
    for start, stop, ids in (
        (0, 5, [0, 1, 7, 3]),
        (0, 4, [0, 1, 7, 3]),
        (1, 3, [1, 7]),
        (2, 2, []),
        (4, 5, []),
    ):
        rows = [
            [one.transaction_id for one in records_in_a_row(content, at(start) + begin, at(stop) + end)]
            for begin, end in ((0, 0), (0, -1), (1, 0))
        ]
        assert rows == [ids, ids if stop == 5 and start < 4 else ids[:-1], []]


# --- what is here of a torn end -------------------------------------------------------------------------------------------


def planner(*parts: RepairedSegment, loss: bool = False) -> LossPlanner:
    return LossPlanner(among(*parts, loss=loss), (), 9, 9)  # type: ignore[arg-type]


def index_of(*offsets: int) -> bytes:
    return segment_header(0, 0).encode() + encode_entries(offsets)


ALL = [at(one) for one in range(12)]


@pytest.mark.parametrize(
    ("data", "index", "stretch"),
    [
        (file_of(), index_of(*ALL), Stretch(0, 0, 12, 11, False, 12)),
        (file_of(), index_of(*ALL[:-1]), Stretch(0, 0, 12, 11, False, 11)),
        (file_of(), index_of(*ALL, at(12)), Stretch(0, 0, 12, 11, False, 13, excess=True)),
        (file_of(), None, Stretch(0, 0, 12, 11, False, 0)),
        (file_of(cut=5), None, Stretch(0, 0, None, 11, False, 0)),
        (file_of(cut=5), index_of(*ALL), Stretch(0, 0, 12, 11, False, 12)),
        (file_of(cut=5), index_of(*ALL, at(12)), Stretch(0, 0, 12, 11, False, 13, excess=True)),
        (file_of(cut=5), index_of(*ALL[:-1], at(11) + 1), Stretch(0, 0, None, 11, False, 12)),
        (file_of(broken=[9, 10, 11]), index_of(*ALL), Stretch(0, 0, 12, 11, False, 12)),
        (file_of(broken=[9, 10, 11]), index_of(*ALL[:11]), Stretch(0, 0, 11, 10, False, 11)),
        (file_of(broken=[9, 10, 11]), index_of(*ALL, at(11) + 40), Stretch(0, 0, 13, 12, False, 13)),
        (file_of(broken=[9, 10, 11]), index_of(*ALL, at(11) + 39), Stretch(0, 0, 12, 11, False, 13, excess=True)),
        (file_of(broken=[9, 10, 11]), None, Stretch(0, 0, None, 9, False, 0)),
        (file_of([0, 1, 2, 3, 7, 8]), None, Stretch(0, 0, 4, 3, False, 0)),
        (file_of([0, 1, 2, 3, 7, 8]), index_of(*ALL[:5]), Stretch(0, 0, 4, 3, False, 5, excess=True)),
    ],
)  # fmt: skip
def test_what_is_here_of_the_last_segment(tmp_path: Path, data: bytes, index: bytes | None, stretch: Stretch) -> None:
    part = part_of(tmp_path, data, index=index)
    assert part.survey is not None
    if data == file_of([0, 1, 2, 3, 7, 8]):
        jump = Loss(Code.RECORD_ORDER, at(4), at(6), 4, None, at(3))
        part.survey = dataclasses.replace(part.survey, next_id=4, losses=(jump,))
    tail = part.survey.tail
    found = planner()._last_stretch(part, tail, part.survey.next_id)
    assert found == stretch
    if tail is not None and not tail.out_of_order:
        unread = dataclasses.replace(tail, unread=True)
        assert planner()._last_stretch(part, unread, part.survey.next_id) == dataclasses.replace(
            stretch, next_id=None, uncertain=True
        )
        without = dataclasses.replace(part, data=None)
        assert planner()._listed_in(without, tail) == 0


def theirs(place: Path, *sizes: int) -> Proven:
    """A replica's records from transaction 3 on, of these sizes."""
    records = [Record.make(3 + n, RECORDS[n].request_id, 0, bytes(size - 40)) for n, size in enumerate(sizes)]
    body = b"".join(one.encode() for one in records)
    (place / "theirs").write_bytes(body)
    span = FileSpan(place / "theirs", 0, len(body))
    return Proven((ReplicaRun(3, 3 + len(sizes), span, 0, 0),), place)


@pytest.mark.parametrize(
    ("here", "torn", "there", "alike"),
    [
        ((60,), b"", (60,), True),
        ((60,), b"torn", (60,), True),
        ((60, 70), b"torn", (60, 70), True),
        ((70, 60), b"torn", (60, 70), True),
        ((60, 70), b"torn", (60,), False),
        ((60,), b"torn", (60, 70), False),
        ((60, 70), b"torn", (60, 69), False),
        ((60, 70), b"torn", (60, 71), False),
        ((), b"torn", (60,), False),
    ],
)
def test_records_with_wrong_ids_end_where_those_of_a_replica_do(
    tmp_path: Path, here: Sequence[int], torn: bytes, there: Sequence[int], *, alike: bool
) -> None:
    """Or they are others, and nothing is put into their place."""
    wrong = [Record.make(90 + n, RECORDS[n].request_id, 0, bytes(size - 40)) for n, size in enumerate(here)]
    data = file_of(range(3)) + b"".join(one.encode() for one in wrong) + torn
    part = part_of(tmp_path, data)
    tail = Loss(Code.RECORD_ORDER, at(3), len(data), 3, None, at(2))
    assert planner()._stands_alike(part, tail, theirs(tmp_path, *there)) is alike


@pytest.mark.parametrize(
    ("start", "changed", "alike"),
    [(0, None, True), (0, 0, False), (1, 0, True), (0, 29, False), (29, 28, True), (29, 29, False), (30, 29, True)],
)
def test_what_is_left_of_a_record_is_how_the_replicas_begins(
    tmp_path: Path, start: int, changed: int | None, *, alike: bool
) -> None:
    found = theirs(tmp_path, 60)
    left = bytearray((tmp_path / "theirs").read_bytes()[:30])
    if changed is not None:
        left[changed] ^= 1
    part = part_of(tmp_path, file_of(range(3)) + bytes(left))
    tail = Loss(Code.TORN_TAIL, at(3), at(3) + 30, 3, None, at(2))
    assert LossPlanner._begins_alike(part, tail, found, start) is alike


# --- up to where a replica is asked ---------------------------------------------------------------------------------------


@dataclasses.dataclass(slots=True)
class Asked(LossPlanner):
    """A replica holds all up to `held`; says what was asked for, and what became of it."""

    held: int = 0
    said: list[object] = dataclasses.field(default_factory=list)

    def _prove(self, first: int, stop: int, neighbours: Neighbours) -> Proven | Refusal:
        self.said.append((first, stop))
        run = ReplicaRun(first, stop, FileSpan(Path("r"), 0, 60), 0, 0)
        return Proven((run,), Path("r")) if stop <= self.held else Refusal("why not")

    def _restore_behind(self, part: RepairedSegment | None, found: Proven, why: str) -> None:
        self.said.append(why)

    def _end_lost(
        self, part: RepairedSegment | None, tail: Loss | None, first: int, proven: Evidence, stop: int, why: str
    ) -> None:
        self.said.append(f"lost {first}..{stop - 1}: {why}")


MARK = "the local low-water mark is 9"
INDEX = "segment 0's index leads behind the checkpoint of transaction 11"
PROVEN = Evidence(mark=10, with_data=12, index_with_data=0, listed=14)


@pytest.mark.parametrize(
    ("first", "proven", "more", "held", "said"),
    [
        (8, Evidence(mark=10), {}, 10, [(8, 10), MARK]),
        (8, Evidence(mark=10), {}, 9, [(8, 10), "lost 8..9: why not"]),
        (9, Evidence(mark=10), {}, 10, [(9, 10), MARK]),
        (10, Evidence(mark=10), {}, 99, []),
        (11, Evidence(mark=10), {}, 99, []),
        (8, PROVEN, {}, 14, [(8, 14), INDEX]),
        (8, PROVEN, {}, 13, [(8, 14), (8, 12), INDEX]),
        (8, PROVEN, {}, 12, [(8, 14), (8, 12), INDEX]),
        (8, PROVEN, {}, 11, [(8, 14), (8, 12), "lost 8..11: why not"]),
        (11, PROVEN, {}, 9, [(11, 14), (11, 12), "lost 11..11: why not"]),
        (12, PROVEN, {}, 99, []),
        (8, Evidence(mark=10, with_data=8, listed=14), {}, 99, [(8, 10), MARK]),
        (8, Evidence(mark=10, with_data=9, listed=14), {}, 13, [(8, 14), (8, 10), MARK]),
        (8, Evidence(mark=10, accepted=12), {}, 99, [(8, 12), "given up before"]),
        (8, Evidence(mark=10, accepted=12), {}, 11, [(8, 12), (8, 10), "given up before"]),
        (10, Evidence(mark=10, accepted=12), {}, 11, [(10, 12)]),
        (8, PROVEN, {"limit": 11}, 99, [(8, 11), INDEX]),
        (8, PROVEN, {"limit": 11}, 10, [(8, 11), "lost 8..10: why not"]),
        (8, PROVEN, {"limit": 9}, 99, [(8, 10), INDEX]),
        (8, PROVEN, {"limit": 9}, 9, [(8, 10), "lost 8..9: why not"]),
        (8, PROVEN, {"limit": 13}, 99, [(8, 12), INDEX]),
        (8, PROVEN, {"limit": 13, "whole": True}, 99, [(8, 13), INDEX]),
        (8, PROVEN, {"limit": 13, "whole": True}, 12, [(8, 13), "lost 8..11: why not"]),
        (8, PROVEN, {"limit": 9, "whole": True}, 99, [(8, 10), INDEX]),
        (12, PROVEN, {"limit": 13, "whole": True}, 12, [(12, 13), "lost 12..11: why not"]),
        (12, PROVEN, {"limit": 12, "whole": True}, 12, []),
    ],
)  # fmt: skip
def test_up_to_where_a_replica_is_asked_for_the_end(
    first: int, proven: Evidence, more: dict[str, object], held: int, said: list[object]
) -> None:
    """For the most first, and for less only where nothing is lost by that; from the end to which a comparison found the replicas
    to agree for nothing, unless the mark is above it.
    """
    planner = Asked(among(), (), 9, 9, held=held)  # type: ignore[arg-type]
    reached = planner.end(None, first, 9, proven, **more)  # type: ignore[arg-type]
    assert planner.said == said
    asked = [one for one in said if isinstance(one, tuple)]
    came_back = len(said) > len(asked) and not str(said[-1]).startswith("lost")
    assert reached == (asked[-1][1] if came_back else first)


@pytest.mark.parametrize("stop", [9, 10, 11, 12, 16])
@pytest.mark.parametrize("held", [0, 8, 9, 10, 11, 15, 16])
def test_of_what_no_replica_holds_as_a_whole_as_many_of_the_first_come_back_as_one_holds(stop: int, held: int) -> None:
    replicas = [SimpleNamespace(path=Path("r"))]
    planner = Asked(among(loss=True), replicas, 9, 9, held=held)  # type: ignore[arg-type]
    found = planner._held_from(8, stop, Neighbours(None, None))
    asked = [one for one in planner.said if isinstance(one, tuple)]
    assert all(8 < last < stop for _, last in asked)
    assert (8 if found is None else found.runs[-1].stop) == max(8, min(held, stop - 1))
    alone = Asked(among(loss=True), (), 9, 9, held=held)  # type: ignore[arg-type]
    assert (alone._held_from(8, stop, Neighbours(None, None)), alone.said) == (None, [])


@pytest.mark.parametrize(
    ("held", "reached", "said"),
    [
        (0, 8, ["lost 8..11: why not"]),
        (9, 9, [INDEX, "lost 9..11: why not"]),
        (11, 11, [INDEX, "lost 11..11: why not"]),
        (12, 12, [INDEX]),
    ],
)
def test_what_is_given_up_at_an_end_begins_behind_what_came_back(held: int, reached: int, said: list[str]) -> None:
    replicas = [SimpleNamespace(path=Path("r"))]
    planner = Asked(among(loss=True), replicas, 9, 9, held=held)  # type: ignore[arg-type]
    assert planner.end(None, 8, 9, PROVEN) == reached
    assert [one for one in planner.said if isinstance(one, str)] == said
