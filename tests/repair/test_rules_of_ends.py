"""What a recovery does about the end of a partition, on values: who is asked, up to where, and what is here of a torn end."""

from __future__ import annotations

import dataclasses
import functools
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
from waltzctl.engine.log.view import FileState
from waltzctl.engine.losses import BelowMark, BelowProof
from waltzctl.engine.repair.content import FileSpan
from waltzctl.engine.repair.recover_losses import LossPlanner
from waltzctl.engine.repair.recover_overlaps import Outcome, OverlapPlanner
from waltzctl.engine.repair.repaired_segments import RepairContext, RepairedSegment
from waltzctl.engine.repair.replica_records import ReplicaRecords
from waltzctl.engine.repair.replicas import Neighbours, Proven, Refusal, ReplicaRun, WitnessRecord
from waltzctl.engine.repair.survey import Loss, Survey
from waltzctl.engine.repair.witnesses import Witnesses, records_in_a_row
from waltzctl.engine.scan.order import ORDER_WINDOW
from waltzctl.formats.segment import HEADER_SIZE, Record, encode_entries


def among(*parts: RepairedSegment, loss: bool = False) -> SimpleNamespace:
    """A partition with these segments, which is asked for nothing else."""
    by_first = {one.first: one for one in parts}
    made = SimpleNamespace(
        partition=0, segments=list(parts), allow_data_loss=loss, _firsts=sorted(by_first), _by_first=by_first
    )
    made.surveyed = functools.partial(RepairContext.surveyed, made)
    return made


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


@pytest.mark.turns(10)
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


def test_what_is_damaged_behind_a_loss_is_no_part_of_what_a_witness_may_bear(tmp_path: Path) -> None:
    """Nor is what an empty segment would have held."""
    ids = {0: range(4), 3: range(3, 6), 6: range(6, 6)}
    parts = [part_of(tmp_path, file_of(numbers, named=first), first=first) for first, numbers in ids.items()]
    assert parts[0].survey is not None
    lost = [Loss(Code.DATA_CHECKSUM, at(n), at(n + 1), n, n + 1, at(n - 1), record_ok=True) for n in (2, 3)]
    parts[0].survey = dataclasses.replace(parts[0].survey, losses=tuple(lost))
    witnesses = Witnesses(among(*parts))  # type: ignore[arg-type]
    assert witnesses.around(parts[0], lost[0]).after is None
    empty = part_of(tmp_path, file_of([], named=1), first=1)
    found = Witnesses(among(parts[1], empty))  # type: ignore[arg-type]
    assert [found.behind(empty, stop) is None for stop in (1, 3, 4)] == [False, False, True]


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
        assert planner()._listed_in_tail(without, tail) == 0


def theirs(place: Path, *sizes: int) -> Proven:
    """A replica's records from transaction 3 on, of these sizes."""
    records = [Record.make(3 + n, RECORDS[n].request_id, 0, bytes(size - 40)) for n, size in enumerate(sizes)]
    body = b"".join(one.encode() for one in records)
    (place / "theirs").write_bytes(body)
    span = FileSpan(place / "theirs", 0, len(body))
    return Proven((ReplicaRun(3, 3 + len(sizes), span, 0, 0),), (place,))


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
    assert planner().records._stands_alike(part, tail, theirs(tmp_path, *there)) is alike


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
    assert ReplicaRecords._begins_alike(part, tail, found, start) is alike


# --- up to where a replica is asked ---------------------------------------------------------------------------------------


@dataclasses.dataclass(slots=True)
class Holding(ReplicaRecords):
    """A replica holds all up to `held`, in records of 60 bytes or of `sizes`; says what was asked for."""

    held: int = 0
    sizes: Sequence[int] = ()
    begins: bool = False
    stands: bool = False
    moved: bool = False
    said: list[object] = dataclasses.field(default_factory=list)

    def prove(self, first: int, stop: int, neighbours: Neighbours) -> Proven | Refusal:
        self.said.append((first, stop))
        if stop > self.held:
            return Refusal("why not")
        middle, size = first + (stop - first + 1) // 2, sum(self.sizes[: stop - first]) or 60 * (stop - first)
        spans = FileSpan(Path("r"), 0, size - 1), FileSpan(Path("r"), 900, 901)
        runs = ReplicaRun(first, middle, spans[0], 0, 0), ReplicaRun(middle, stop, spans[1], 0, 0)
        return Proven(runs, (Path("r"),))

    def _moved(self, part: RepairedSegment, tail: Loss) -> bool:
        return self.moved

    def _begins_alike(self, part: RepairedSegment, tail: Loss, found: Proven, start: int) -> bool:  # type: ignore[override]
        self.said.append(("begins", len(found), start))
        return self.begins

    def _stands_alike(self, part: RepairedSegment, tail: Loss, whole: Proven) -> bool:
        self.said.append(("stands", len(whole)))
        return self.stands


@dataclasses.dataclass(slots=True)
class Asked(LossPlanner):
    """Says what was asked for of replicas that hold all up to `held`, and what became of it."""

    held: int = 0
    stood: int = 0
    said: list[object] = dataclasses.field(default_factory=list)

    def __post_init__(self) -> None:
        LossPlanner.__post_init__(self)
        self.records = Holding(self.context, self.replicas, self.witnesses, self.held, said=self.said)

    def _restore_behind(self, part: RepairedSegment | None, found: Proven, why: str) -> None:
        self.said.append(why)

    def _end_lost(
        self, part: RepairedSegment | None, tail: Loss | None, first: int, proven: Evidence, stop: int, why: str
    ) -> None:
        self.said.append(f"lost {first}..{stop - 1}: {why}{'' if tail is None else ', with a torn end'}")

    def _whole_tail_end(self, part: RepairedSegment, tail: Loss) -> int:
        return self.stood

    def _torn_tail(self, part: RepairedSegment, tail: Loss, mark: int | None) -> None:
        self.said.append(f"torn, mark {mark}")


UNREAD = Loss(Code.TORN_TAIL, 248, 280, 8, None, 188, unread=True)
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
        (10, PROVEN, {"limit": 11, "whole": True}, 10, [(10, 11), "lost 10..10: why not"]),
        (0, Evidence(accepted=3), {}, 2, [(0, 3)]),
        (0, Evidence(accepted=3), {}, 3, [(0, 3), "given up before"]),
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


TORN = Loss(Code.TORN_TAIL, 248, 280, 8, None, 188)


@pytest.mark.parametrize(
    ("tail", "proven", "more", "held", "stood", "said"),
    [
        (None, Evidence(mark=8), {}, 99, 9, []),
        (TORN, Evidence(mark=8), {}, 99, 0, ["torn, mark 9"]),
        (TORN, Evidence(mark=8), {}, 99, 9, ["torn, mark 9"]),
        (TORN, Evidence(mark=9), {}, 99, 9, [(8, 9), "the local low-water mark is 8"]),
        (TORN, Evidence(mark=9), {}, 99, 10, [(8, 10), "a record here has id 9"]),
        (TORN, Evidence(mark=9), {}, 9, 10, [(8, 10), (8, 9), "the local low-water mark is 8"]),
        (TORN, Evidence(mark=9), {}, 8, 10, [(8, 10), (8, 9), "lost 8..8: why not, with a torn end"]),
        (TORN, Evidence(mark=10), {}, 9, 9, [(8, 10), "lost 8..9: why not, with a torn end"]),
        (TORN, PROVEN, {}, 99, 15, [(8, 15), "a record here has id 14"]),
        (TORN, PROVEN, {}, 99, 14, [(8, 14), INDEX]),
        (TORN, PROVEN, {}, 99, 13, [(8, 14), INDEX]),
        (TORN, PROVEN, {"limit": 13}, 99, 15, [(8, 12), INDEX]),
        (TORN, Evidence(mark=8), {"limit": 9, "whole": True}, 8, 15, [(8, 9), "lost 8..7: why not, with a torn end"]),
        (TORN, Evidence(mark=8, accepted=9), {}, 8, 0, [(8, 9), "torn, mark 9"]),
        (UNREAD, Evidence(mark=8), {}, 99, 9, ["torn, mark 9"]),
        (UNREAD, Evidence(mark=9), {}, 99, 9, ["lost 8..8: it was given up unread, with a torn end"]),
        (UNREAD, Evidence(mark=8, accepted=9), {}, 99, 9, ["torn, mark 9"]),
    ],
)  # fmt: skip
def test_a_torn_end_is_a_part_of_what_is_lost_at_the_end(
    tail: Loss | None, proven: Evidence, more: dict[str, object], held: int, stood: int, said: list[object]
) -> None:
    """What a replica has in as many bytes as are here was here, and comes back as well; of what was not read nothing does."""
    part = SimpleNamespace(first=0, tail=tail, survey=None)
    planner = Asked(among(), (), 9, 9, held=held, stood=stood)  # type: ignore[arg-type]
    planner.end(part, 8, 9, proven, **more)  # type: ignore[arg-type]
    assert planner.said == said


@pytest.mark.parametrize(
    ("tail", "held", "said"),
    [
        (TORN, 0, ["lost 8..9: why not, with a torn end"]),
        (TORN, 9, ["the local low-water mark is 9", "lost 9..9: why not"]),
        (UNREAD, 9, ["lost 8..9: it was given up unread, with a torn end"]),
    ],
)
def test_what_came_back_takes_the_place_of_a_torn_end(tail: Loss, held: int, said: list[str]) -> None:
    part = SimpleNamespace(first=0, tail=tail, survey=None)
    planner = Asked(among(loss=True), [SimpleNamespace()], 9, 9, held=held)  # type: ignore[arg-type, list-item]
    planner.end(part, 8, 9, Evidence(mark=10))  # type: ignore[arg-type]
    assert [one for one in planner.said if isinstance(one, str)] == said


# --- the records of an end, from a replica --------------------------------------------------------------------------------

DISORDER = dataclasses.replace(TORN, cause=Code.RECORD_ORDER)


@pytest.mark.parametrize(
    ("tail", "length", "sizes", "more", "whole", "said"),
    [
        (TORN, 60, [60], {}, 9, [(8, 9)]),
        (TORN, 60, [59, 1], {}, None, [(8, 9)]),
        (TORN, 60, [61], {"begins": True, "stands": True}, None, [(8, 9)]),
        (TORN, 60, [], {}, None, [(8, 9)]),
        (DISORDER, 60, [60, 60], {}, 9, [(8, 9)]),
        (DISORDER, 120, [60, 60], {}, 10, [(8, 9), (8, 10)]),
        (DISORDER, 119, [60, 60], {"begins": True}, 10, [(8, 9), (8, 10), ("begins", 120, 60)]),
        (DISORDER, 119, [60, 60], {"stands": True}, 9, [(8, 9), (8, 10), ("begins", 120, 60), ("stands", 60)]),
        (DISORDER, 119, [60, 60], {}, None, [(8, 9), (8, 10), ("begins", 120, 60), ("stands", 60)]),
        (DISORDER, 61, [60, 60], {"stands": True}, 9, [(8, 9), (8, 10), ("begins", 120, 60), ("stands", 60)]),
        (DISORDER, 121, [60, 60], {"begins": True, "stands": True}, None, [(8, 9), (8, 10), (8, 11)]),
        (DISORDER, 50, [60], {"begins": True, "stands": True}, None, [(8, 9)]),
    ],
)  # fmt: skip
def test_an_end_is_made_of_a_replicas_records(
    tail: Loss, length: int, sizes: list[int], more: dict[str, bool], whole: int | None, said: list[object]
) -> None:
    """As many as there is room for; of several, the last may be torn.  The one in front of them is the same, or the first one."""
    tail = dataclasses.replace(tail, end=tail.offset + length)
    there: Sequence[object] = [SimpleNamespace()]
    for replicas, before, moved, expected in (
        (there, 7, False, (whole, said)),
        ((), 7, True, (None, [])),
        (there, None, False, (None, [])),
        (there, None, True, (whole, said)),
    ):
        witnesses = SimpleNamespace(before=lambda *_, before=before: before)
        asked = Holding(among(), replicas, witnesses, 8 + len(sizes), sizes, moved=moved, **more)  # type: ignore[arg-type]
        found = asked.whole_tail(None, tail)  # type: ignore[arg-type]
        assert ((None if found is None else found.runs[-1].stop), asked.said) == expected


@pytest.mark.parametrize(("more", "found"), [(0, True), (1, False)])
def test_no_more_records_are_looked_for_in_an_end_than_are_followed_elsewhere(more: int, *, found: bool) -> None:
    many = ORDER_WINDOW + more
    asked = Holding(among(), [SimpleNamespace()], SimpleNamespace(before=lambda *_: 7), held=8 + many)  # type: ignore[arg-type, list-item]
    whole = asked.whole_tail(None, dataclasses.replace(DISORDER, end=DISORDER.offset + 60 * many))  # type: ignore[arg-type]
    assert (whole is not None) is found


# --- what becomes of it ---------------------------------------------------------------------------------------------------


@dataclasses.dataclass(slots=True)
class Decided(LossPlanner):
    """Says what becomes of a loss."""

    said: list[str] = dataclasses.field(default_factory=list)

    def _restored(self, part: RepairedSegment, loss: Loss, found: Proven) -> None:
        self.said.append(f"restored {loss.first}..{(loss.stop or 0) - 1}")

    def _restore_behind(self, part: RepairedSegment | None, found: Proven, why: str) -> None:
        self.said.append("restored")

    def cut_tail(self, part: RepairedSegment, tail: Loss, why: str, *, loses: bool) -> None:
        self.said.append(f"cut{', loses' if loses else ''}: {why}")

    def leave_tail(self, part: RepairedSegment, tail: Loss, why: str, *, following: int | None = None) -> None:
        self.said.append(f"left{'' if following is None else f' in front of {following}'}: {why[:24]}")

    def _split(self, part: RepairedSegment, loss: Loss) -> None:
        self.said.append("split")

    def _remove_bytes(self, part: RepairedSegment, loss: Loss, why: str) -> None:
        self.said.append("removed")

    def _undecided(self, part: RepairedSegment, loss: Loss, why: str) -> None:
        self.said.append(f"left: {why[:24]}")


def decided(*, loss: bool, replica: bool, against: bool, whole: Proven | None = None, mark: int | None = 7) -> Decided:
    """`whole`: what a replica has of it; `against`: one speaks against it."""

    def prove(first: int, stop: int, _: Neighbours) -> Proven | Refusal:
        planner.said.append(f"asked {first}..{stop - 1}")
        return Refusal("why not") if whole is None else whole

    context = SimpleNamespace(allow_data_loss=loss, partition=0, segments=[], lacking=[])
    planner = Decided(context, [SimpleNamespace()] if replica else [], mark, 9)  # type: ignore[arg-type, list-item]
    planner.records = SimpleNamespace(prove=prove, whole_tail=lambda *_: whole, join_around=lambda *_: False)  # type: ignore[assignment]
    planner.rivals = SimpleNamespace(superfluous=lambda *_: against)  # type: ignore[assignment]
    planner.witnesses = SimpleNamespace(before=lambda *_: None, behind=lambda *_: None, around=lambda *_: None)  # type: ignore[assignment]
    context.give_up = lambda first, stop, why: planner.said.append(f"given up {first}..{stop - 1}")
    context.lower_mark = lambda after: planner.said.append(f"mark {after}")
    context.leave = lambda one, why: planner.said.append(f"left {one.first}..{one.stop - 1}, {one.before}: {why}")
    return planner


def listing(entries: int, **more: object) -> RepairedSegment:
    """A segment from transaction 4 on whose index lists so many."""
    index = FileState(Path("i"), HEADER_SIZE + 8 * entries, 0, 0)
    made = RepairedSegment(4, Path("4.seg"), Path("i"), FileState(Path("4.seg"), 500, 0, 0), index, **more)  # type: ignore[arg-type]
    made.content = content_of(bytes(500))
    return made


UNREAD_LEFT, EITHER_LEFT, ORDER_LEFT = (
    f"left: {one[:24]}"
    for one in ("it was given up unread; ", "the ids go on one by one", "nothing in front of or behind these")
)
DOUBTFUL_LEFT, UNKNOWN_LEFT = (
    f"left: {one[:24]}" for one in ("an intact replica tells which", "it may be acknowledged")
)
SUPERFLUOUS = "cut, loses: repeats, or a replica holds other records under their ids"
ABOVE, UNKNOWN = "above the local low-water mark 7", "local low-water mark unknown"


@pytest.mark.parametrize(
    ("changes", "mark", "unasked", "loss"),
    [
        ({}, 7, [f"cut: {ABOVE}"], [f"cut: {ABOVE}"]),
        ({}, None, [UNKNOWN_LEFT], [f"cut, loses: {UNKNOWN}", "given up 8..10"]),
        ({"unread": True}, 7, [UNREAD_LEFT], [UNREAD_LEFT]),
        ({"either": True}, 7, [EITHER_LEFT], [EITHER_LEFT]),
        ({"unread": True, "either": True}, None, [UNREAD_LEFT], [UNREAD_LEFT]),
        ({"cause": Code.RECORD_ORDER}, 7, [ORDER_LEFT], [f"cut, loses: {ABOVE}", "given up 8..10"]),
        ({"doubtful": True}, 7, [DOUBTFUL_LEFT], [f"cut, loses: {ABOVE}", "given up 8..10"]),
        ({"doubtful": True}, None, [DOUBTFUL_LEFT], [f"cut, loses: {UNKNOWN}", "given up 8..10"]),
    ],
)
def test_what_becomes_of_a_torn_end_above_the_mark(
    changes: dict[str, object], mark: int | None, unasked: list[str], loss: list[str]
) -> None:
    """What a replica has of it comes back first, and what one speaks against goes first, whatever else it is."""
    tail = dataclasses.replace(TORN, **changes)  # type: ignore[arg-type]
    for allowed, wanted in ((False, unasked), (True, loss)):
        for replica, against, said in ((False, False, wanted), (True, False, wanted), (True, True, [SUPERFLUOUS])):
            planner = decided(loss=allowed, replica=replica, against=against, mark=mark)
            planner._torn_tail(listing(7), tail, mark)
            assert planner.said == said
        span = FileSpan(Path("r"), 0, 20)
        whole = Proven((ReplicaRun(8, 9, span, 0, 0), ReplicaRun(9, 11, span, 0, 0)), (Path("r"),))
        planner, part = decided(loss=allowed, replica=True, against=True, whole=whole, mark=mark), listing(7)
        planner._torn_tail(part, tail, mark)
        assert planner.said == ["restored 8..10"]
        assert part.content is not None
        assert [len(piece) for piece in part.content.pieces] == [248, 20, 20, 220]


@pytest.mark.parametrize(("entries", "last"), [(0, 8), (4, 8), (5, 8), (6, 9), (7, 10)])
def test_what_is_given_up_with_a_torn_end_is_as_much_as_the_index_lists(entries: int, last: int) -> None:
    planner = decided(loss=True, replica=False, against=False, mark=None)
    planner._torn_tail(listing(entries), TORN, None)
    assert planner.said == [f"cut, loses: {UNKNOWN}", f"given up 8..{last}"]


LEFT = "left in front of 12: why not"
GAP = "left 8..11, 4: why not"
NOT_LAST = "cut, loses: the segment is not the last: acknowledged records are given up"


@pytest.mark.parametrize(
    ("tail", "unasked", "loss"),
    [
        (None, ["asked 8..11", GAP], ["asked 8..11", GAP]),
        (TORN, ["asked 8..11", LEFT], ["asked 8..11", NOT_LAST, "given up 8..11", GAP]),
        (DISORDER, ["asked 8..11", LEFT, GAP], ["asked 8..11", NOT_LAST, "given up 8..11", GAP]),
        (dataclasses.replace(TORN, either=True), ["asked 8..11", LEFT], ["asked 8..11", LEFT]),
        (UNREAD, ["left in front of 12: it was given up unread"], ["left in front of 12: it was given up unread"]),
    ],
)
def test_what_is_said_of_a_gap_and_of_the_end_in_front_of_it(
    tail: Loss | None, unasked: list[str], loss: list[str]
) -> None:
    following = RepairedSegment(12, Path("12.seg"), Path("i"), None, None)
    for allowed, wanted in ((False, unasked), (True, loss)):
        part = SimpleNamespace(tail=tail, first=4, data_path=Path("4.seg"))
        planner = decided(loss=allowed, replica=False, against=False)
        planner.gap(part, 8, following)  # type: ignore[arg-type]
        assert planner.said == wanted
        whole = Proven((), (Path("r"),))
        planner = decided(loss=allowed, replica=True, against=False, whole=whole)
        planner.gap(part, 8, following)  # type: ignore[arg-type]
        assert planner.said == (unasked if tail is UNREAD else ["asked 8..11", "restored"])
    planner = decided(loss=True, replica=False, against=False)
    planner.gap(None, 8, following)
    assert planner.said == ["asked 8..11", "left 8..11, None: why not"]


INNER = Loss(Code.RECORD_CHECKSUM, 248, 308, 8, 9, 188)
WHY_NOT, NONE_MISSING, EXPENSIVE = (
    f"left: {one[:24]}" for one in ("why not", "no transaction is missing there", "the place was built to be expensive")
)


@pytest.mark.parametrize(
    ("changes", "left"),
    [
        ({}, WHY_NOT),
        ({"record_ok": True}, WHY_NOT),
        ({"stop": 8}, NONE_MISSING),
        ({"unread": True}, EXPENSIVE),
        ({"unread": True, "stop": 8}, EXPENSIVE),
    ],
)
def test_what_becomes_of_a_loss_inside_a_segment(changes: dict[str, object], left: str) -> None:
    """A split loses no record that is intact, nor anything that was not read."""
    loss = dataclasses.replace(INNER, **changes)  # type: ignore[arg-type]
    asked = ["asked 8..8"] if left == WHY_NOT else []
    for allowed, replica, against in product((False, True), repeat=3):
        planner = decided(loss=allowed, replica=replica, against=against)
        planner.inner(listing(7), loss)
        said = (
            "removed" if replica and against else "split" if allowed and not (loss.record_ok or loss.unread) else left
        )
        assert planner.said == [*asked, said]
        planner._maybe_embedded.add((4, 248))
        part = listing(7)
        planner.inner(part, loss)
        assert planner.said[-1].startswith(left[:20])
        assert part.keeps_index
        span = FileSpan(Path("r"), 0, 20)
        planner = decided(
            loss=allowed, replica=True, against=against, whole=Proven((ReplicaRun(8, 9, span, 0, 0),), (Path("r"),))
        )
        planner._maybe_embedded.add((4, 248))
        part = listing(7)
        planner.inner(part, loss)
        assert planner.said == ([*asked, "restored 8..8"] if asked else planner.said)
        assert part.content is not None
        assert ([len(piece) for piece in part.content.pieces] == [248, 20, 192]) is bool(asked)


@pytest.mark.parametrize("stop", [9, 10, 11, 12, 16])
@pytest.mark.parametrize("held", [0, 8, 9, 10, 11, 15, 16])
def test_of_what_no_replica_holds_as_a_whole_as_many_of_the_first_come_back_as_one_holds(stop: int, held: int) -> None:
    replicas = [SimpleNamespace(path=Path("r"))]
    planner = Asked(among(loss=True), replicas, 9, 9, held=held)  # type: ignore[arg-type]
    found = planner._longest_proven(8, stop, Neighbours(None, None))
    asked = [one for one in planner.said if isinstance(one, tuple)]
    assert all(8 < last < stop for _, last in asked)
    assert (8 if found is None else found.runs[-1].stop) == max(8, min(held, stop - 1))
    alone = Asked(among(loss=True), (), 9, 9, held=held)  # type: ignore[arg-type]
    assert (alone._longest_proven(8, stop, Neighbours(None, None)), alone.said) == (None, [])


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


ENDED = Evidence(mark=10)


@pytest.mark.parametrize(
    ("entries", "first", "proven", "stop", "said", "kept"),
    [
        (4, 8, ENDED, 10, [BelowMark(8, 9, 4)], False),
        (None, 0, ENDED, 10, [BelowMark(0, 9, None)], False),
        (None, 0, Evidence(mark=1), 1, [BelowMark(0, 0, None)], False),
        (None, 0, Evidence(with_data=9, index_with_data=4), 9, [], False),
        (None, 0, Evidence(names=1), 1, [BelowProof(0, 1, None, False)], False),
        (4, 8, Evidence(mark=9, names=10), 10, [BelowMark(8, 8, 4), BelowProof(9, 10, 4, False)], False),
        (4, 8, Evidence(names=9), 9, [BelowProof(8, 9, 4, False)], False),
        (4, 8, Evidence(names=12), 10, [BelowProof(8, 10, 4, False)], False),
        (8, 8, Evidence(mark=8, with_data=12, index_with_data=4), 12, [BelowProof(8, 12, 4, True)], True),
        (8, 8, Evidence(mark=8, with_data=12, index_with_data=4), 10, [BelowProof(8, 10, 4, True)], True),
        (8, 8, Evidence(mark=8, with_data=9, index_with_data=4), 9, [BelowProof(8, 9, 4, True)], True),
        (8, 8, Evidence(names=9, with_data=8, index_with_data=4), 9, [BelowProof(8, 9, 4, False)], False),
        (8, 8, Evidence(mark=10, with_data=12, index_with_data=4), 12,
         [BelowMark(8, 9, 4), BelowProof(10, 12, 4, True)], True),
        (8, 8, Evidence(mark=10, with_data=11, index_with_data=4), 11,
         [BelowMark(8, 9, 4), BelowProof(10, 11, 4, True)], True),
        (8, 8, Evidence(mark=10, with_data=10, index_with_data=4), 10, [BelowMark(8, 9, 4)], False),
    ],
)  # fmt: skip
def test_what_is_said_of_an_end_that_nobody_gives_back(
    entries: int | None, first: int, proven: Evidence, stop: int, said: list[object], *, kept: bool
) -> None:
    """What its index proves is named as long as that is kept; with leave, the mark falls and the ledger keeps it in mind."""
    part = None if entries is None else listing(entries)
    planner = decided(loss=False, replica=False, against=False)
    left: list[object] = []
    planner.context.leave = lambda one, why: left.append((one, why))  # type: ignore[method-assign, assignment, misc]
    planner._end_lost(part, None, first, proven, stop, "why")
    assert (left, planner.said) == ([(one, "why") for one in said], [])
    assert part is None or part.keeps_index is kept
    planner = decided(loss=True, replica=False, against=False)
    planner._end_lost(part, None, first, proven, stop, "why")
    assert planner.said == [f"mark {first - 1}", f"given up {first}..{stop - 1}"]


@pytest.mark.parametrize(
    ("tail", "unasked", "loss"),
    [
        (TORN, ["left: why", 9], ["cut, loses: transactions up to 9 were durable here", "mark 7", "given up 8..9"]),
        (DISORDER, ["left: why", 8], ["cut, loses: transactions up to 9 were durable here", "mark 7", "given up 8..9"]),
        (dataclasses.replace(TORN, either=True), ["left: why", 9], ["left: why", 9]),
        (UNREAD, ["left: why"], ["left: why"]),
    ],
)
def test_what_is_said_of_a_torn_end_that_nobody_gives_back(
    tail: Loss, unasked: list[object], loss: list[object]
) -> None:
    """A record of it was here, so that what is missing begins behind it; of what was not read there may be more."""
    for allowed, wanted in ((False, unasked), (True, loss)):
        planner = decided(loss=allowed, replica=False, against=False)
        planner.context.leave = lambda one, _, said=planner.said: said.append(one.first)  # type: ignore[method-assign, assignment, misc]
        planner._end_lost(listing(4), tail, 8, ENDED, 10, "why")
        assert planner.said == wanted


REPEATED = Loss(Code.RECORD_ORDER, 248, 308, 8, 8, 188)
MISSING = Loss(Code.RECORD_ORDER, 428, 428, 10, 11, 368)


@pytest.mark.parametrize(
    ("one", "other", "size", "beside", "shifted"),
    [
        ({}, {}, 180, (1, 1), True),
        ({}, {}, 179, (1, 1), False),
        ({}, {}, 181, (1, 1), False),
        ({}, {}, None, (1, 1), False),
        ({}, {}, 180, (None, 1), False),
        ({}, {}, 180, (1, None), False),
        ({"stop": 9}, {}, 180, (1, 1), False),
        ({"cause": Code.RECORD_CHECKSUM}, {}, 180, (1, 1), False),
        ({}, {"end": 429}, 181, (1, 1), False),
        ({}, {"cause": Code.RECORD_CHECKSUM}, 180, (1, 1), True),
    ],
)
def test_a_row_that_is_shifted_begins_with_a_repeat_and_ends_where_one_is_missing(
    one: dict[str, object], other: dict[str, object], size: int | None, beside: tuple[object, object], *, shifted: bool
) -> None:
    """And a replica has others there, in as many bytes; the losses in front of it and behind it stay."""
    front, behind = Loss(Code.RECORD_CHECKSUM, 128, 188, 4, 5, None), Loss(Code.RECORD_CHECKSUM, 488, 548, 12, 13, 428)
    pair = dataclasses.replace(REPEATED, **one), dataclasses.replace(MISSING, **other)  # type: ignore[arg-type]
    found = Survey(4, 20, 900, 900, 12, 840, (front, *pair, behind))
    span = FileSpan(Path("r"), 0, size or 0)
    whole = None if size is None else Proven((ReplicaRun(8, 11, span, 0, 0),), (Path("r"),))
    planner = decided(loss=False, replica=True, against=False, whole=whole)
    planner.witnesses = SimpleNamespace(around=lambda *_: SimpleNamespace(before=beside[0], after=beside[1]))  # type: ignore[assignment]
    part = listing(9, survey=found)
    told = planner._join_shifted(part, found)
    assert part.survey == told
    if shifted:
        assert told == dataclasses.replace(
            found, losses=(front, dataclasses.replace(pair[0], end=428, stop=11), behind)
        )
        assert planner.said == ["asked 8..10"]
    else:
        assert told == found


# --- where it comes back ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "tail", "only", "runs", "steps"),
    [
        (308, None, None, [(8, 10, 4)], [("restore-record", 4, 8, 9, 308, False)]),
        (308, None, 40, [(8, 10, 4)], [("restore-record", 4, 8, 9, 308, False)]),
        (308, None, None, [(9, 11, 4)], [("restore-segment", 9, 9, 10, 128, False)]),
        (308, TORN, None, [(8, 10, 4)], [("restore-record", 4, 8, 9, 248, False)]),
        (308, TORN, 40, [(9, 11, 4)], [("restore-segment", 9, 9, 10, 128, False)]),
        (308, TORN, 40, [(8, 10, 4)], [("restore-record", 4, 8, 9, 248, True)]),
        (308, TORN, 40, [(8, 9, 4), (9, 11, 9)],
         [("restore-record", 4, 8, 8, 248, True), ("restore-segment", 9, 9, 10, 128, False)]),
        (308, None, None, [(8, 9, 8), (9, 11, 8)],
         [("restore-segment", 8, 8, 8, 128, False), ("restore-record", 8, 9, 10, 138, False)]),
        (128, None, None, [(4, 6, 4)], [("restore-record", 4, 4, 5, 128, False)]),
        (128, None, None, [(4, 6, 3)], [("restore-record", 4, 4, 5, 128, False)]),
        (None, None, None, [(4, 6, 3), (6, 7, 6)],
         [("restore-segment", 4, 4, 5, 128, False), ("restore-segment", 6, 6, 6, 128, False)]),
    ],
)  # fmt: skip
def test_where_the_records_of_a_replica_go(
    size: int | None, tail: Loss | None, only: int | None, runs: list[tuple[int, int, int]], steps: list[object]
) -> None:
    """Into the segment in front of them, or into one of their own: where the replica's begins there and that one has records, or
    where that one ends in front of them.
    """
    said: list[object] = []

    def step(
        action: str, path: Path, *_: object, ids: tuple[int, int], offset: int, length: int, loses_data: bool
    ) -> None:
        assert length == 10
        said.append((action, int(path.stem), *ids, offset, loses_data))

    def new_part(first: int, created: int) -> RepairedSegment:
        assert created == first + 100
        one = RepairedSegment(first, Path(f"{first}.seg"), Path("i"), None, None)
        one.content = content_of(bytes(128))
        return one

    context = SimpleNamespace(partition=0, segments=[], draft=SimpleNamespace(step=step), new_part=new_part)
    planner = LossPlanner(context, (), 9, 9)  # type: ignore[arg-type]
    planner.rivals = SimpleNamespace(only_here=lambda *_: only)  # type: ignore[assignment]
    part = None
    if size is not None:
        part = listing(0)
        part.content = content_of(bytes(size))
        held = 0 if size == 128 else 4
        part.survey = Survey(4, 4 + held, size, size, held, None, () if tail is None else (tail,))
    made = [ReplicaRun(first, stop, FileSpan(Path("r"), 0, 10), begins, first + 100) for first, stop, begins in runs]
    planner._restore_behind(part, Proven(tuple(made), (Path("r"),)), "why")
    assert said == steps


def test_an_overlap_whose_place_is_not_found_is_left(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    parts = [part_of(tmp_path, file_of(range(6))), part_of(tmp_path, file_of(range(4, 8), named=4), first=4)]
    left: list[str] = []
    context = SimpleNamespace(segments=parts, partition=0, allow_data_loss=False, leave=lambda _, why: left.append(why))
    monkeypatch.setattr(RepairedSegment, "cut_behind", lambda *_: False)
    found = OverlapPlanner(context, (), 9, Evidence())._cut(*parts, "why", ids_lost=False)  # type: ignore[arg-type]
    assert (found, len(left)) == (Outcome.LEFT, 1)
    assert "its place in the earlier one is not to be found" in left[0]
