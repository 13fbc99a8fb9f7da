"""What is lost in a data file, on values: surveys, places, rows of losses, and what becomes of them; bounds from both sides."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.builders import make_records, segment_header
from waltzctl.engine.errors import DamageError
from waltzctl.engine.findings import Code
from waltzctl.engine.log.view import FileState
from waltzctl.engine.repair import survey as surveys
from waltzctl.engine.repair.arguments import Agreed
from waltzctl.engine.repair.content import Content, LiteralBytes
from waltzctl.engine.repair.embedded import entry_inside, may_be_data, taken_in
from waltzctl.engine.repair.reconcile import Reconciliation
from waltzctl.engine.repair.recover_partition import _behind
from waltzctl.engine.repair.recover_strays import _is_beginning_of
from waltzctl.engine.repair.repaired_segments import RepairedSegment, offsets
from waltzctl.engine.repair.rivals import outvote
from waltzctl.engine.repair.survey import Loss, Survey, begins_at, by_ids, by_places, check_jump, survey
from waltzctl.engine.repair.witnesses import record_at
from waltzctl.engine.scan.byte_source import BytesSource
from waltzctl.engine.scan.order import SKIPPED_ALLOWANCE
from waltzctl.formats.checksums import crc32
from waltzctl.formats.segment import HEADER_SIZE, Record, encode_entries, index_name, segment_name

RECORDS = make_records(12, size=20)
"""Transactions 0 to 11, 60 bytes each."""
SIZE = 60


def at(number: int) -> int:
    return HEADER_SIZE + SIZE * number


def content_of(data: bytes) -> Content:
    return Content("a.seg", (LiteralBytes(data),))


def file_of(ids: Sequence[int] = range(12), *, named: int = 0, broken: Sequence[int] = (), cut: int = 0) -> bytes:
    """A data file with the records under these ids, those at the places `broken` damaged, the last bytes cut away."""
    data = bytearray(segment_header(0, named).encode())
    for number, one in zip(ids, RECORDS, strict=False):
        data += Record.make(number, one.request_id, one.header, one.data).encode()
    for place in broken:
        data[at(place) + 40] ^= 1
    return bytes(data[: len(data) - cut])


def part_of(path: Path, data: bytes, *, first: int = 0, index: bytes | None = None) -> RepairedSegment:
    """A segment as its recovery sees it."""
    seg, idx = path / segment_name(first), path / index_name(first)
    seg.write_bytes(data)
    if index is not None:
        idx.write_bytes(index)
    part = RepairedSegment(first, seg, idx, FileState.of(seg), FileState.of(idx))
    part.original = part.content = Content.of_file(seg, len(data))
    part.survey = survey(part.original, first)
    return part


def spans(losses: Sequence[Loss]) -> list[tuple[str, int, int, int, int | None, int | None]]:
    return [(one.cause.value, one.offset, one.end, one.first, one.stop, one.before) for one in losses]


# --- surveys ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("broken", "losses"),
    [
        ([0], [(at(0), at(1), 0, 1, None)]),
        ([1], [(at(1), at(2), 1, 2, at(0))]),
        ([5, 6], [(at(5), at(7), 5, 7, at(4))]),
        ([5, 7], [(at(5), at(6), 5, 6, at(4)), (at(7), at(8), 7, 8, at(6))]),
        ([10], [(at(10), at(11), 10, 11, at(9))]),
    ],
)
def test_losses_in_front_of_intact_records(broken: list[int], losses: list[tuple[int, ...]]) -> None:
    found = survey(content_of(file_of(broken=broken)), 0)
    assert spans(found.losses) == [("record-checksum", *one) for one in losses]
    assert (found.begins, found.next_id, found.end, found.size) == (0, 12, at(12), at(12))
    assert (found.records, found.last) == (12 - len(broken), at(11))
    assert found.inner == found.losses
    assert (found.tail, found.doubtful) == (None, False)


def test_a_loss_at_the_end_reaches_to_the_end_of_the_file() -> None:
    found = survey(content_of(file_of(broken=[11])), 0)
    assert spans(found.losses) == [("torn-tail", at(11), at(12), 11, None, at(10))]
    assert (found.next_id, found.end, found.size, found.records, found.last) == (11, at(11), at(12), 11, at(10))
    assert found.tail == found.losses[-1]
    assert found.inner == ()
    both = survey(content_of(file_of(broken=[3, 10, 11])), 0)
    assert [(one.first, one.stop) for one in both.losses] == [(3, 4), (10, None)]
    assert (both.inner, both.tail) == (both.losses[:1], both.losses[1])
    empty = survey(content_of(file_of([])), 7)
    assert (empty.begins, empty.next_id, empty.end, empty.records, empty.last, empty.losses) == (7, 7, 128, 0, None, ())


def test_data_that_disagrees_with_its_checksum_is_a_loss_of_an_intact_record() -> None:
    def wrong(number: int) -> bytes:
        one = RECORDS[number]
        raw = bytearray(one.encode())
        raw[32:36] = (one.data_checksum ^ 1).to_bytes(4)
        raw[-4:] = crc32(bytes(raw[:-4])).to_bytes(4)
        return bytes(raw)

    for places in ([0], [4], [11], [4, 5], [0, 11]):
        data = segment_header(0, 0).encode()
        data += b"".join(wrong(number) if number in places else RECORDS[number].encode() for number in range(12))
        found = survey(content_of(data), 0)
        assert spans(found.losses) == [
            ("data-checksum", at(n), at(n + 1), n, n + 1, at(n - 1) if n else None) for n in places
        ]
        assert all(one.record_ok for one in found.losses)
        assert (found.records, found.next_id, found.tail) == (12, 12, None)
    damaged = bytearray(data)
    damaged[at(1) + 50] ^= 1
    found = survey(content_of(bytes(damaged)), 0)
    assert [(one.first, one.stop, one.record_ok) for one in found.losses] == [
        (0, 1, True),
        (1, 2, False),
        (11, 12, True),
    ]


@pytest.mark.parametrize("most", [1, 2, 3])
def test_a_file_damaged_in_too_many_places_is_not_planned(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(surveys, "MAX_PLACES", most)
    data = content_of(file_of(broken=[2, 5]))
    if most >= 2:
        assert len(survey(data, 0).losses) == 2
    else:
        with pytest.raises(DamageError, match="more than 1 places"):
            survey(data, 0)


@pytest.mark.parametrize(
    ("first", "stop", "fits"),
    [
        (5, 5, True),
        (5, 4, False),
        (5, 5 + 2 + SKIPPED_ALLOWANCE, True),
        (5, 6 + 2 + SKIPPED_ALLOWANCE, False),
    ],
)
def test_no_more_ids_can_be_lost_than_fit(first: int, stop: int, *, fits: bool) -> None:
    for size in (80, 119):
        if fits:
            check_jump("a.seg", first, stop, size)
        else:
            with pytest.raises(DamageError, match="no loss of records"):
                check_jump("a.seg", first, stop, size)
    check_jump("a.seg", 5, 5 + 3 + SKIPPED_ALLOWANCE, 120)


def test_where_a_file_begins() -> None:
    content = content_of(file_of([5, 6]))
    assert begins_at(content, 0, 5) == 5
    assert begins_at(content, 0, 0) == 0
    assert begins_at(content, 0, 4) == 0
    assert begins_at(content, 5, 5) == 5
    assert begins_at(content_of(file_of([5, 6], broken=[0])), 0, 5) == 0


def torn_with(behind: Sequence[int]) -> bytes:
    """Five records, and one whose length leads beyond the end, in whose data records with these ids begin 41 bytes further on."""
    head = RECORDS[5].encode()[:36]
    torn = head[:28] + (500).to_bytes(4) + head[32:]
    inside = [Record.make(number, RECORDS[0].request_id, 0, b"x").encode() for number in behind]
    return file_of(range(5)) + torn + b"....." + b"".join(inside)


@pytest.mark.parametrize(("behind", "next_id"), [([6, 7], 8), ([5, 6], 7), ([100, 101], 102)])
def test_records_that_go_on_to_the_end_prove_that_a_length_was_wrong(behind: list[int], next_id: int) -> None:
    data = torn_with(behind)
    found = survey(content_of(data), 0)
    assert spans(found.losses) == [("record-length", at(5), at(5) + 41, 5, behind[0], at(4))]
    assert (found.next_id, found.records, found.end, found.last) == (next_id, 7, len(data), len(data) - 41)
    assert not found.doubtful


@pytest.mark.parametrize(
    ("behind", "ceiling", "doubtful"),
    [
        ([6, 7], None, True),
        ([5, 6], None, True),
        ([4, 5], None, False),  # an id that was there already, and nothing whole behind it
        ([127, 128], None, True),
        ([128, 129], None, False),  # more than could have stood there
        ([6, 7], 6, True),
        ([7, 8], 7, False),  # the next segment's, and no room for what is missing
        ([7, 8], 8, True),
        ([7, 8, 9], 7, False),  # of those in a row the first tells
        ([7, 8, 9], 8, True),
        ([9, 6, 7], 7, True),  # not in a row
    ],
)
def test_a_torn_end_is_looked_into_before_anybody_cuts_it(
    behind: list[int], ceiling: int | None, *, doubtful: bool
) -> None:
    data = torn_with(behind)[:-1]
    found = survey(content_of(data), 0, ceiling=ceiling)
    assert spans(found.losses) == [("torn-tail", at(5), len(data), 5, None, at(4))]
    assert (found.next_id, found.end, found.records) == (5, at(5), 5)
    assert found.doubtful == doubtful
    (seen,) = [one.seen for one in found.losses]
    assert seen is not None
    assert seen.holds_records == doubtful, "whoever scans the file is told"
    flipped = bytearray(data)
    flipped[at(2) + 9] ^= 1
    again = survey(content_of(bytes(flipped)), 0, ceiling=ceiling)
    assert [(one.first, one.stop, one.doubtful) for one in again.losses] == [(2, 3, False), (5, None, doubtful)]


# --- ids that are out of order --------------------------------------------------------------------------------------------


def out_of_order(ids: Sequence[int], *, ceiling: int | None = None, cut: int = 0) -> tuple[Content, Survey]:
    content = content_of(file_of(ids, cut=cut))
    return content, survey(content, 0, ceiling=ceiling)


def test_an_end_out_of_order_by_its_ids_and_by_its_places() -> None:
    content, found = out_of_order([0, 1, 2, 3, 7, 8, 9], ceiling=7)
    assert [(one.cause.value, one.first, one.stop) for one in found.losses] == [("record-order", 4, None)]
    assert found.doubtful
    rest = by_ids(content, found, None)
    assert rest is not None
    assert [(one.cause.value, one.offset, one.end, one.first, one.stop, one.before) for one in rest.losses] == [
        ("record-order", at(4), at(4), 4, 7, at(3))
    ]
    assert (rest.next_id, rest.end, rest.records, rest.last) == (10, at(7), 7, at(6))
    back = by_places(rest)
    assert back is not None
    assert spans(back.losses) == [("record-order", at(4), at(7), 4, None, at(3))]
    assert (back.next_id, back.end, back.records, back.last) == (4, at(4), 4, at(3))
    assert by_ids(content, rest, None) is None  # there is no such end any more


def test_an_end_out_of_order_is_not_taken_for_a_torn_one() -> None:
    """Where one of its records has an id that would follow, no length was wrong in front of it."""
    for ids in ([3, 3, 5], [2, 2, 5]):
        _, found = out_of_order([0, 1, 2, 3, *ids])
        assert spans(found.losses) == [("record-order", at(4), at(7), 4, None, at(3))]
        assert not found.losses[0].doubtful


def test_what_is_in_order_has_no_other_reading() -> None:
    for broken in ([], [3], [11]):
        content = content_of(file_of(broken=broken))
        found = survey(content, 0)
        assert by_ids(content, found, None) is None
        assert by_places(found) is None
    content, repeated = out_of_order([0, 1, 2, 3, 3, 4, 5])
    assert [(one.first, one.stop, one.length) for one in repeated.losses] == [(4, 4, SIZE)]
    other = by_places(repeated)
    assert other is not None
    assert spans(other.losses) == [("record-order", at(4), at(7), 4, None, at(3))]
    assert (other.next_id, other.records) == (4, 4)
    unread = dataclasses.replace(repeated.losses[0], stop=None, unread=True)
    assert by_ids(content, dataclasses.replace(repeated, losses=(unread,)), None) is None
    lost_and_out = dataclasses.replace(repeated.losses[0], stop=5)
    assert by_places(dataclasses.replace(repeated, losses=(lost_and_out,))) is None


# --- records found within a record ------------------------------------------------------------------------------------------


def loss(first: int, stop: int | None, offset: int, end: int, **more: object) -> Loss:
    return Loss(Code.RECORD_CHECKSUM, offset, end, first, stop, offset - 10, **more)  # type: ignore[arg-type]


def test_what_lies_between_two_losses_is_taken_into_them() -> None:
    one, other = loss(3, 5, 300, 400, doubtful=True), loss(8, 10, 500, 600, unread=True)
    found = Survey(0, 20, 900, 900, 15, 850, (loss(1, 2, 150, 200), one, other, loss(15, 16, 700, 750)))
    whole = taken_in(found, 1)
    assert whole is not None
    assert [(each.first, each.stop, each.offset, each.end) for each in whole.losses] == [
        (1, 2, 150, 200),
        (3, 10, 300, 600),
        (15, 16, 700, 750),
    ]
    assert (whole.losses[1].doubtful, whole.losses[1].unread, whole.losses[1].before) == (True, True, 290)
    assert (whole.records, whole.next_id, whole.end, whole.last) == (12, 20, 900, 850)
    assert taken_in(found, 3) is None
    second = taken_in(dataclasses.replace(found, losses=(loss(1, 2, 150, 200), loss(3, 5, 300, 400), other)), 1)
    assert second is not None
    assert (second.losses[1].doubtful, second.losses[1].unread) == (False, True)
    third = taken_in(dataclasses.replace(found, losses=(loss(3, 5, 300, 400), loss(8, 10, 500, 600, doubtful=True))), 0)
    assert third is not None
    assert third.losses[0].doubtful
    tail = dataclasses.replace(found, losses=(one, loss(8, None, 500, 600)))
    ended = taken_in(tail, 0)
    assert ended is not None
    assert [(each.first, each.stop, each.offset, each.end) for each in ended.losses] == [(3, None, 300, 600)]
    assert (ended.records, ended.next_id, ended.end, ended.last) == (12, 3, 300, 290)


@pytest.mark.parametrize(
    ("number", "length", "found"),
    [(5, 8, 200), (5, 7, None), (5, 0, None), (6, 16, 300), (6, 15, None), (7, 16, None)],
)
def test_an_index_that_ends_in_an_entry_does_not_have_it(number: int, length: int, found: int | None) -> None:
    index = BytesSource(bytes(HEADER_SIZE) + encode_entries([200, 300])[:length])
    assert entry_inside(index, 5, number, 100, 400) == found


@pytest.mark.parametrize(
    ("entry", "inside"), [(at(4) - 1, False), (at(4), False), (at(4) + 1, True), (at(6) - 1, True), (at(6), False)]
)
def test_the_index_has_a_record_inside_a_damaged_place(tmp_path: Path, entry: int, inside: bool) -> None:
    entries = [at(number) for number in range(12)]
    entries[6] = entry
    index = segment_header(0, 0).encode() + encode_entries(entries)
    part = part_of(tmp_path, file_of(broken=[4, 5]), index=index)
    assert part.survey is not None
    (place,) = part.survey.losses
    assert may_be_data(part.index_path, part.first, place) == inside
    for changed in (
        {"stop": None},
        {"cause": Code.RECORD_ORDER},
        {"record_ok": True},
        {"unread": True},
        {"first": 6},
    ):
        assert not may_be_data(part.index_path, part.first, dataclasses.replace(place, **changed))  # type: ignore[arg-type]
    assert may_be_data(part.index_path, part.first, dataclasses.replace(place, first=5)) == inside
    os.truncate(part.index_path, HEADER_SIZE + 8 * 7 - 1)
    assert not may_be_data(part.index_path, part.first, place)
    os.truncate(part.index_path, HEADER_SIZE + 8 * 6)
    assert not may_be_data(part.index_path, part.first, place)
    part.index_path.unlink()
    assert not may_be_data(part.index_path, part.first, place)


# --- places and cuts --------------------------------------------------------------------------------------------------------


def test_where_records_begin_or_would(tmp_path: Path) -> None:
    part = part_of(tmp_path, file_of(broken=[4, 5]))
    assert offsets(part, range(-1, 14)) == {n: at(n) for n in range(13) if n != 5}
    assert offsets(part, ()) == {}
    first = part_of(tmp_path, file_of(broken=[0, 1]))
    assert offsets(first, (0, 1, 2)) == {0: at(0), 2: at(2)}
    torn = part_of(tmp_path, file_of(cut=1))
    assert offsets(torn, (10, 11, 12)) == {10: at(10), 11: at(11)}
    gap = part_of(tmp_path, file_of([0, 1, 2, 9, 10]))
    assert offsets(gap, (2, 3, 4, 9, 11)) == {2: at(2), 3: at(3), 9: at(3), 11: at(5)}


@pytest.mark.parametrize(
    ("after", "place", "last"),
    [(-1, at(0), None), (0, at(1), at(0)), (3, at(4), at(3)), (4, None, None), (5, at(6), None), (11, at(12), at(11))],
)
def test_a_segment_is_cut_behind_a_transaction(tmp_path: Path, after: int, place: int | None, last: int | None) -> None:
    part = part_of(tmp_path, file_of(broken=[1, 4, 5]))
    before = part.survey
    assert part.cut_behind(after) == (place is not None)
    assert part.survey is not None
    if place is None:
        assert part.survey is before
        return
    assert (part.survey.next_id, part.survey.end, part.survey.size, part.survey.last) == (after + 1, place, place, last)
    assert all(one.offset < place for one in part.survey.losses)
    assert len(part.survey.losses) == (after >= 1) + (after >= 5)
    assert part.content is part.original
    assert part.content is not None
    assert part.content.size() == place


def test_a_byte_between_the_last_and_the_next_stays_a_place_of_its_own(tmp_path: Path) -> None:
    whole = file_of()
    part = part_of(tmp_path, whole[: at(5)] + b"?" + whole[at(5) :])
    assert part.cut_behind(4)
    assert part.survey is not None
    assert [(one.offset, one.end, one.first, one.stop) for one in part.survey.losses] == [(at(5), at(5) + 1, 5, 5)]
    assert (part.survey.end, part.survey.last) == (at(5) + 1, None)


def test_a_segment_of_which_nothing_was_read_is_not_cut(tmp_path: Path) -> None:
    part = part_of(tmp_path, file_of())
    assert not dataclasses.replace(part, survey=None).cut_behind(3)
    assert not dataclasses.replace(part, original=None).cut_behind(3)


@pytest.mark.parametrize(("size", "short"), [(0, True), (127, True), (128, False), (129, False)])
def test_a_file_shorter_than_its_header(tmp_path: Path, size: int, short: bool) -> None:
    path = tmp_path / segment_name(0)
    path.write_bytes(bytes(size))
    part = RepairedSegment(0, path, tmp_path / index_name(0), FileState.of(path), None)
    assert (part.short, part.untouchable) == (short, not short)
    part.content = content_of(bytes(size))
    assert part.has_records == (size == 129)
    index = tmp_path / index_name(0)
    index.write_bytes(bytes(size + 14))
    assert dataclasses.replace(part, index=FileState.of(index)).index_entries == {0: 0, 127: 1, 128: 1, 129: 1}[size]
    assert part.index_entries == 0
    assert not RepairedSegment(0, path, index, None, None).untouchable
    assert not RepairedSegment(0, path, index, None, None).short


def test_only_an_intact_record_is_a_record(tmp_path: Path) -> None:
    part = part_of(tmp_path, file_of(broken=[4]))
    assert record_at(part, at(3)) == RECORDS[3].encode()
    assert record_at(part, at(4)) is None
    assert record_at(part, at(3) + 1) is None
    assert record_at(part, None) is None
    assert record_at(dataclasses.replace(part, original=None), at(3)) is None


# --- outvoted ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("broken", "first", "stop", "losses"),
    [
        ([], 3, 4, [(at(3), at(4), 3, 4, at(2))]),
        ([], 0, 1, [(at(0), at(1), 0, 1, None)]),
        ([], 1, 2, [(at(1), at(2), 1, 2, at(0))]),
        ([], 3, 6, [(at(3), at(6), 3, 6, at(2))]),
        ([], 11, 12, [(at(11), at(12), 11, 12, at(10))]),
        ([4], 3, 6, [(at(3), at(6), 3, 6, at(2))]),  # what lies inside is a part of it
        ([4], 5, 6, [(at(4), at(6), 4, 6, at(3))]),  # neighbours become one
        ([4], 3, 4, [(at(3), at(5), 3, 5, at(2))]),
        ([4], 6, 7, [(at(4), at(5), 4, 5, at(3)), (at(6), at(7), 6, 7, at(5))]),
        ([4], 2, 3, [(at(2), at(3), 2, 3, at(1)), (at(4), at(5), 4, 5, at(3))]),
        ([4, 5], 5, 6, None),  # its place is damaged
        ([4], 4, 5, [(at(4), at(5), 4, 5, at(3))]),
        ([3, 5], 4, 5, [(at(3), at(6), 3, 6, at(2))]),
    ],
)
def test_records_that_are_outvoted_become_a_loss(
    tmp_path: Path, broken: list[int], first: int, stop: int, losses: list[tuple[object, ...]] | None
) -> None:
    part = part_of(tmp_path, file_of(broken=broken))
    before = part.survey
    assert outvote(part, first, stop) == (losses is not None)
    assert part.survey is not None
    if losses is None:
        assert part.survey is before
    else:
        assert [one[1:] for one in spans(part.survey.losses)] == losses
        assert all(one.record_ok == (not broken) for one in part.survey.losses if one.first == first and not broken)


@pytest.mark.parametrize(
    ("first", "last", "losses", "left"),
    [
        (0, 0, {0: (0, 1)}, []),
        (3, 3, {0: (3, 4)}, []),
        (3, 4, {0: (3, 4), 4: (4, 5)}, []),
        (2, 9, {0: (2, 4), 4: (4, 8), 8: (8, 10)}, []),
        (4, 7, {4: (4, 8)}, []),
        (11, 11, {8: (11, 12)}, []),
        (11, 12, {}, [11]),
        (12, 12, {}, [12]),
    ],
)
def test_what_is_outvoted_is_a_loss_in_each_segment_that_holds_a_part_of_it(
    tmp_path: Path, first: int, last: int, losses: dict[int, tuple[int, int]], left: list[int]
) -> None:
    """In whatever order the segments are known; what was not read is passed over."""
    parts = [part_of(tmp_path, file_of(range(one, one + 4), named=one), first=one) for one in (8, 0, 4)]
    parts.insert(1, dataclasses.replace(parts[2], first=6, survey=None))
    found: list[int] = []
    context = SimpleNamespace(segments=parts, find=lambda *_, transaction_id, **__: found.append(transaction_id))
    Reconciliation(context, Agreed(0, 11), 9, []).outvote(first, last)  # type: ignore[arg-type]
    read = [one for one in parts if one.survey is not None]
    assert {
        one.first: (lost.first, lost.stop) for one in read for lost in (one.survey.losses if one.survey else ())
    } == losses
    assert found == left


def test_a_loss_that_was_not_read_stays_beside_one_that_is_outvoted(tmp_path: Path) -> None:
    part = part_of(tmp_path, file_of(broken=[4]))
    assert part.survey is not None
    unread = dataclasses.replace(part.survey.losses[0], unread=True)
    part.survey = dataclasses.replace(part.survey, losses=(unread,))
    assert outvote(part, 5, 6)
    assert [(one.first, one.stop, one.unread) for one in part.survey.losses] == [(4, 5, True), (5, 6, False)]


def test_a_torn_end_stays_behind_what_is_outvoted(tmp_path: Path) -> None:
    part = part_of(tmp_path, file_of(cut=3))
    assert outvote(part, 10, 11)
    assert part.survey is not None
    assert [(one.first, one.stop) for one in part.survey.losses] == [(10, 11), (11, None)]


@pytest.mark.parametrize(
    ("stray", "beginning"),
    [(b"abc", True), (b"abcdef", True), (b"abcdefg", False), (b"xbc", False), (b"abx", False), (b"", True)],
)
def test_a_stray_is_the_beginning_of_a_segment_from_its_first_byte_to_its_last(
    tmp_path: Path, stray: bytes, beginning: bool
) -> None:
    for name, data in (("stray", stray), ("part", b"abcdef")):
        (tmp_path / name).write_bytes(data)
    data = FileState.of(tmp_path / "stray")
    part = RepairedSegment(0, tmp_path / "part", tmp_path / "index", FileState.of(tmp_path / "part"), None)
    assert _is_beginning_of(SimpleNamespace(data=data), part) == beginning  # type: ignore[arg-type]
    assert not _is_beginning_of(SimpleNamespace(data=data), dataclasses.replace(part, data=None))  # type: ignore[arg-type]


def test_where_a_segment_ends_is_said_by_those_behind_it(tmp_path: Path) -> None:
    nothing, unread = _behind([]), _behind([RepairedSegment(5, tmp_path, tmp_path, None, None)])
    assert (nothing.end, unread.end) == (True, False)
    assert unread != _behind([part_of(tmp_path, file_of())])
