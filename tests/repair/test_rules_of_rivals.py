"""Records that bear one id twice, on values: which are told of, what a replica says, and what becomes of a loss beside them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.builders import KEY, segment_header
from tests.repair.test_loss_rules import RECORDS, SIZE, at, content_of, file_of, part_of, spans
from tests.repair.twelve import Twelve
from waltzctl.engine.findings import Code
from waltzctl.engine.repair.content import FileSpan
from waltzctl.engine.repair.repaired_segments import RepairedSegment
from waltzctl.engine.repair.replicas import Proven, ReplicaRun, ReplicaSegments
from waltzctl.engine.repair.rivals import Rivals, _merged, _within, outvote
from waltzctl.engine.repair.survey import Loss, by_places, survey
from waltzctl.engine.repair.witnesses import records_in_a_row
from waltzctl.formats.accepted_losses import AcceptedLoss
from waltzctl.formats.segment import Record


def rivals(*parts: RepairedSegment, replicas: Sequence[ReplicaSegments] = ()) -> Rivals:
    """Of a partition with these segments."""
    context = SimpleNamespace(
        partition=0, segments=list(parts), draft=SimpleNamespace(sources=set()), confirmed=[], allow_data_loss=False
    )
    return Rivals(context, replicas)  # type: ignore[arg-type]  # the context is asked for nothing else


def replica(place: Path, change: Callable[[Twelve], object] = lambda _: None) -> ReplicaSegments:
    held = Twelve(place)
    change(held)
    return ReplicaSegments(held.root, KEY)


def loss(first: int, stop: int | None, start: int, end: int, **more: object) -> Loss:
    return Loss(Code.RECORD_ORDER, start, end, first, stop, None, **more)  # type: ignore[arg-type]


# --- losses beside each other -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("held", "new", "merged"),
    [
        ([], (3, 4, 300, 360), [(3, 4, 300, 360)]),
        ([(2, 3, 240, 300)], (3, 4, 300, 360), [(2, 4, 240, 360)]),
        ([(2, 3, 240, 299)], (3, 4, 300, 360), [(2, 3, 240, 299), (3, 4, 300, 360)]),
        ([(2, 2, 240, 300)], (3, 4, 300, 360), [(2, 2, 240, 300), (3, 4, 300, 360)]),
        ([(4, 5, 360, 420)], (3, 4, 300, 360), [(3, 5, 300, 420)]),
        ([(4, 5, 361, 420)], (3, 4, 300, 360), [(3, 4, 300, 360), (4, 5, 361, 420)]),
        ([(2, 3, 240, 300), (4, 5, 360, 420)], (3, 4, 300, 360), [(2, 5, 240, 420)]),
        ([(0, 1, 128, 188), (2, 3, 240, 300)], (3, 4, 300, 360), [(0, 1, 128, 188), (2, 4, 240, 360)]),
        ([(0, 1, 128, 188), (4, 5, 360, 420)], (3, 4, 300, 360), [(0, 1, 128, 188), (3, 5, 300, 420)]),
        ([(3, 4, 300, 360)], (3, 4, 300, 360), [(3, 4, 300, 360)]),
        ([(3, 4, 310, 350)], (2, 5, 300, 360), [(2, 5, 300, 360)]),
        ([(4, None, 360, 400)], (3, 4, 300, 360), [(3, 4, 300, 360), (4, None, 360, 400)]),
        ([(9, 10, 660, 720), (1, 2, 188, 240)], (5, 6, 400, 460), [(1, 2, 188, 240), (5, 6, 400, 460), (9, 10, 660, 720)]),
    ],
)  # fmt: skip
def test_a_loss_takes_its_place_among_others(
    held: list[tuple[int, int | None, int, int]], new: tuple[int, int, int, int], merged: list[tuple[int, ...]]
) -> None:
    found = _merged([loss(*one) for one in held], loss(*new))
    assert [(one.first, one.stop, one.offset, one.end) for one in found] == merged


@pytest.mark.parametrize(("held", "new"), [(True, False), (False, True)])
def test_what_was_not_read_is_not_one_with_its_neighbour(*, held: bool, new: bool) -> None:
    both = [loss(2, 3, 240, 300, unread=held), loss(3, 4, 300, 360, unread=new)]
    assert _merged(both[:1], both[1]) == tuple(both)
    assert _merged(both[1:], both[0]) == tuple(both)


@pytest.mark.parametrize(("held", "new"), [(True, True), (True, False), (False, True)])
def test_what_is_made_of_two_is_an_intact_record_where_both_are(*, held: bool, new: bool) -> None:
    (one,) = _merged([loss(2, 3, 240, 300, record_ok=held)], loss(3, 4, 300, 360, record_ok=new))
    assert one.record_ok is (held and new)


@pytest.mark.parametrize(
    ("one", "within"),
    [
        ((3, 6, 300, 400), True),
        ((4, 5, 301, 399), True),
        ((2, 6, 300, 400), False),
        ((3, 7, 300, 400), False),
        ((3, 6, 299, 400), False),
        ((3, 6, 300, 401), False),
        ((3, None, 300, 400), False),
    ],
)
def test_a_loss_lies_within_another_by_its_ids_and_its_bytes(
    one: tuple[int, int | None, int, int], *, within: bool
) -> None:
    assert _within(loss(*one), loss(3, 6, 300, 400)) is within
    assert not _within(loss(*one), loss(3, None, 300, 400))


def test_what_is_outvoted_is_one_with_a_record_that_stands_twice_behind_it(tmp_path: Path) -> None:
    """That one is no part of it, so that not all of the place is intact and in order."""
    part = part_of(tmp_path, file_of([0, 1, 2, 3, 3, 4, 5]))
    assert outvote(part, 2, 4)
    assert part.survey is not None
    assert spans(part.survey.losses) == [("replica-differs", at(2), at(5), 2, 4, at(1))]
    assert not part.survey.losses[0].record_ok


# --- which records are told of -------------------------------------------------------------------------------------------


def test_pairs_are_made_of_a_whole_row_where_no_id_is_missing(tmp_path: Path) -> None:
    part = part_of(tmp_path, file_of([0, 1, 2, 3, 2, 3, 4, 5]))
    assert part.survey is not None
    (extra,) = part.survey.losses
    assert (extra.first, extra.stop, extra.offset, extra.end) == (4, 4, at(4), at(6))
    judge = rivals(part)
    pairs = judge._pairs(part, extra)
    assert pairs is not None
    data = file_of([0, 1, 2, 3, 2, 3, 4, 5])
    assert [(one.transaction_id, one.extra, one.standing, one.part) for one in pairs] == [
        (2, data[at(4) : at(5)], data[at(2) : at(3)], part),
        (3, data[at(5) : at(6)], data[at(3) : at(4)], part),
    ]
    for changed in (
        {"cause": Code.RECORD_CHECKSUM},
        {"stop": 5},
        {"end": extra.end - 1},
        {"end": extra.end + 1},
        {"offset": extra.offset + 1},
        {"end": extra.offset},
    ):
        assert judge._pairs(part, dataclasses.replace(extra, **changed)) is None  # type: ignore[arg-type]
    to_the_end = judge._pairs(part, dataclasses.replace(extra, stop=None))
    assert to_the_end == pairs


def pair_of(judge: Rivals, number: int) -> tuple[int, bool, object]:
    """The pair of an extra record of an id: the id, whether one stands in the sequence, and in which segment."""
    like = RECORDS[number]
    raw = Record.make(number, like.request_id, like.header, b"another").encode()
    (extra,) = records_in_a_row(content_of(raw), 0, len(raw))
    pair = judge._pair(extra)
    assert pair.extra == raw
    return pair.transaction_id, pair.standing is not None, pair.part


def test_the_record_in_the_sequence_stands_in_a_segment_that_was_read_and_is_intact(tmp_path: Path) -> None:
    part = part_of(tmp_path, file_of(range(6), broken=[3]))
    unread = dataclasses.replace(part, survey=None)
    judge = rivals(unread, part)
    assert [pair_of(judge, number) for number in (0, 2, 3, 5, 6)] == [
        (0, True, part),
        (2, True, part),
        (3, False, None),
        (5, True, part),
        (6, False, None),
    ]


def test_a_record_under_another_id_is_not_the_one_of_the_sequence(tmp_path: Path) -> None:
    part = part_of(tmp_path, file_of([0, 1, 2, 9, 4, 5]))
    assert pair_of(rivals(part), 3) == (3, False, None)


def test_a_record_out_of_order_is_not_its_own_rival(tmp_path: Path) -> None:
    """By its places the end is out of order: the records that bear 4 and 5 there are no others than those in doubt."""
    part = part_of(tmp_path, file_of([0, 1, 2, 3, 3, 4, 5]))
    assert part.survey is not None
    part.survey = by_places(part.survey)
    assert part.survey is not None
    assert part.survey.next_id == 4
    assert [pair_of(rivals(part), number)[1] for number in (3, 4, 5)] == [True, False, False]


# --- what the replicas say -----------------------------------------------------------------------------------------------


def twice(path: Path) -> RepairedSegment:
    """Transaction 5 stands twice: as everywhere, and another one behind it."""
    data = bytearray(file_of([0, 1, 2, 3, 4, 5]))
    like = RECORDS[5]
    data += Record.make(5, like.request_id, like.header, b"another".ljust(20)).encode() + RECORDS[6].encode()
    return part_of(path, bytes(data))


@pytest.mark.parametrize(
    ("held", "chosen"),
    [
        ([()], "standing"),
        ([(5,)], "extra"),
        ([(), ()], "standing"),
        ([(), (5,)], None),
        ([(), "gone"], "standing"),
        (["gone"], None),
        (["other"], None),
        (["other", ()], None),
        ([], None),
    ],
)
def test_replicas_choose_if_all_that_hold_the_id_hold_one_of_the_two(
    tmp_path: Path, held: list[object], chosen: str | None
) -> None:
    part = twice(tmp_path)

    def change(what: object) -> Callable[[Twelve], object]:
        if what == "gone":
            return lambda d: d.drop(4)
        if what == "other":
            return lambda d: d.put(4, range(4, 8), of=[4, 6, 6, 7])
        return lambda d: d.put(4, range(4, 8), other=what) if what else None  # type: ignore[arg-type]

    judge = rivals(part, replicas=[replica(tmp_path / str(n), change(one)) for n, one in enumerate(held)])
    assert part.survey is not None
    (extra,) = part.survey.losses
    pairs = judge._pairs(part, extra)
    assert pairs is not None
    told = judge._right_record(pairs[0])
    assert told == (None if chosen is None else getattr(pairs[0], chosen))
    read = {one.path for each in judge.replicas for one in each.segments(0)}
    assert judge.context.draft.sources == (read if chosen else set())


def test_a_repeat_needs_no_replica(tmp_path: Path) -> None:
    part = part_of(tmp_path, file_of([0, 1, 2, 3, 3, 4]))
    data = bytearray(part.data_path.read_bytes())
    data[at(4) : at(5)] = data[at(3) : at(4)]
    part = part_of(tmp_path, bytes(data))
    judge = rivals(part)
    assert part.survey is not None
    (extra,) = part.survey.losses
    assert not judge.superfluous(part, extra)
    judge.choose(part)
    assert judge.superfluous(part, extra)
    assert not judge.superfluous(part, dataclasses.replace(extra, offset=extra.offset + 1))
    assert part.survey.losses == (extra,)


# --- what would be gone with a replica's records ------------------------------------------------------------------------


def proven(path: Path, records: Sequence[Record], *, first: int) -> Proven:
    """A replica's records, in a file of its own, each of them a run."""
    body = b"".join(one.encode() for one in records)
    path.write_bytes(body)
    runs, start = [], 0
    for number, one in enumerate(records, first):
        runs.append(ReplicaRun(number, number + 1, FileSpan(path, start, start + one.size), 0, 0))
        start += one.size
    return Proven(tuple(runs), (path,))


def wrong(number: int, *, of: int, size: int = 20) -> Record:
    like = RECORDS[of]
    return Record.make(number, like.request_id, like.header, like.data[:size].ljust(size))


def ordered(path: Path, *records: Record | bytes) -> tuple[RepairedSegment, Loss]:
    """A segment of three records and these behind them, which are out of order up to the end."""
    data = file_of([0, 1, 2]) + b"".join(one if isinstance(one, bytes) else one.encode() for one in records)
    part = part_of(path, data)
    return part, Loss(Code.RECORD_ORDER, at(3), len(data), 3, None, at(2))


def test_only_an_intact_record_that_stands_nowhere_else_would_be_gone(tmp_path: Path) -> None:
    part, lost = ordered(tmp_path, wrong(40, of=7))
    theirs = proven(tmp_path / "theirs", [RECORDS[3]], first=3)
    judge = rivals(part)
    assert judge.only_here(part, lost, theirs) == 40
    assert judge.only_here(part, dataclasses.replace(lost, cause=Code.TORN_TAIL), theirs) is None
    same = proven(tmp_path / "same", [wrong(3, of=7)], first=3)
    assert judge.only_here(part, lost, same) is None


@pytest.mark.parametrize(
    ("number", "stop", "replicas", "gone"),
    [
        (6, 7, 1, False),
        (6, 6, 1, True),
        (6, 5, 1, True),
        (6, 8, 1, False),
        (6, 7, 2, False),
        (6, 7, 0, True),
        (7, 8, 1, True),
    ],
)
def test_a_record_is_kept_that_a_replica_has_under_its_id_in_front_of_what_comes_back(
    tmp_path: Path, number: int, stop: int, replicas: int, *, gone: bool
) -> None:
    """Of two replicas one alone has it."""
    part, lost = ordered(tmp_path, RECORDS[6] if number == 6 else wrong(number, of=6))
    held = [replica(tmp_path / "0"), replica(tmp_path / "1", lambda d: d.drop(4))][:replicas]
    back = [RECORDS[3]] * (stop - 3)
    found = rivals(part, replicas=held).only_here(part, lost, proven(tmp_path / "theirs", back, first=3))
    assert (found == number) is gone


def test_what_reaches_beyond_the_place_is_not_of_it(tmp_path: Path) -> None:
    part, lost = ordered(tmp_path, wrong(40, of=7))
    theirs = proven(tmp_path / "theirs", [RECORDS[3]], first=3)
    for less in (1, 2, SIZE):
        assert rivals(part).only_here(part, dataclasses.replace(lost, end=lost.end - less), theirs) is None


def test_behind_a_damaged_record_the_next_one_is_looked_for_where_the_replica_has_one(tmp_path: Path) -> None:
    broken = bytearray(wrong(40, of=7).encode())
    broken[50] ^= 1
    part, lost = ordered(tmp_path, bytes(broken), wrong(41, of=8))
    theirs = [RECORDS[3], RECORDS[4]]
    assert rivals(part).only_here(part, lost, proven(tmp_path / "alike", theirs, first=3)) == 41
    longer = [wrong(3, of=3, size=21), RECORDS[4]]
    assert rivals(part).only_here(part, lost, proven(tmp_path / "longer", longer, first=3)) is None


def test_the_next_record_may_begin_one_byte_behind_the_one_in_front(tmp_path: Path) -> None:
    """Transaction 3, and a byte that is none of its; the replica's ends behind that byte."""
    part, lost = ordered(tmp_path, wrong(3, of=3), b"?", wrong(41, of=8))
    theirs = [wrong(3, of=3, size=21), RECORDS[4]]
    held = [replica(tmp_path / "0")]
    assert rivals(part, replicas=held).only_here(part, lost, proven(tmp_path / "theirs", theirs, first=3)) == 41


# --- disputed ids --------------------------------------------------------------------------------------------------------


def accepted(first: int, last: int, *, disputed: bool = True) -> AcceptedLoss:
    return AcceptedLoss(0, first, last, 8, "then", "why", disputed)


@pytest.mark.parametrize(
    ("entry", "confirmed"),
    [
        (accepted(5, 5), [(5, 6)]),
        (accepted(4, 6), [(4, 7)]),
        (accepted(0, 4), [(4, 5)]),
        (accepted(7, 20), [(7, 8)]),
        (accepted(0, 3), []),
        (accepted(8, 9), []),
        (accepted(5, 5, disputed=False), []),
    ],
)
def test_a_replica_confirms_the_ids_that_are_here(
    tmp_path: Path, entry: AcceptedLoss, confirmed: list[tuple[int, int]]
) -> None:
    data = segment_header(0, 4).encode() + b"".join(one.encode() for one in RECORDS[4:8])
    part = part_of(tmp_path, data, first=4)
    judge = rivals(part, replicas=[replica(tmp_path / "r")])
    judge.settle([entry])
    assert judge.context.confirmed == confirmed
    used = judge.replicas[0].segments(0)[1].path
    assert judge.context.draft.sources == ({used} if confirmed else set())
    assert part.survey == survey(content_of(data), 4)


def test_a_disputed_id_whose_place_is_damaged_is_left(tmp_path: Path) -> None:
    data = bytearray(segment_header(0, 4).encode() + b"".join(one.encode() for one in RECORDS[4:8]))
    data[at(0) + 9] ^= 1
    data[at(1) + 9] ^= 1
    part = part_of(tmp_path, bytes(data), first=4)
    before = part.survey
    judge = rivals(part, replicas=[replica(tmp_path / "r")])
    judge.settle([accepted(5, 5)])
    assert (judge.context.confirmed, part.survey) == ([], before)
