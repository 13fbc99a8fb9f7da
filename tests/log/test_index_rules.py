"""Entries against records, in chunks of a few, by a second and plainer reading of the same rules."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.builders import segment_header
from waltzctl.engine.errors import DiskReadError
from waltzctl.engine.findings.indexes import IndexLong, IndexShort, WrongEntries
from waltzctl.engine.log import index_comparison
from waltzctl.engine.log.index import IndexReader
from waltzctl.engine.log.index_comparison import IndexComparison, check_rising
from waltzctl.engine.scan.byte_source import BytesSource
from waltzctl.engine.scan.columns import Damage, DamageCause
from waltzctl.formats.segment import HEADER_SIZE, encode_entries

properties = settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
BEGINS = 5


@pytest.fixture(autouse=True, scope="module", params=[1, 3])
def chunk(request: pytest.FixtureRequest) -> Iterator[int]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(index_comparison, "CHUNK", request.param)
        yield request.param


class Unreadable(BytesSource):
    """Cannot be read where entry number `bad` is a part."""

    def __init__(self, data: bytes, bad: int) -> None:
        super().__init__(data)
        self._bad = HEADER_SIZE + 8 * bad

    def read_into(self, offset: int, buffer: memoryview) -> int:
        if offset + len(buffer) > self._bad >= offset:
            raise DiskReadError(self.name, offset, OSError(5, "made up"))
        return super().read_into(offset, buffer)


def index(entries: Sequence[int], *, odd: int = 0) -> bytes:
    return segment_header(0, BEGINS).encode() + encode_entries(list(entries)) + bytes(odd)


def reader(entries: Sequence[int], *, odd: int = 0) -> IndexReader:
    return IndexReader(BytesSource(index(entries, odd=odd)), BEGINS)


def told(wrong: WrongEntries) -> tuple[int, ...] | None:
    return (wrong.count, wrong.first, wrong.last, wrong.stored) if wrong.count else None


# --- reading ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "count", "excess"), [(0, 0, 0), (127, 0, 0), (128, 0, 0), (135, 0, 7), (136, 1, 0), (145, 2, 1)]
)
def test_whole_entries_and_the_bytes_behind_them(size: int, count: int, excess: int) -> None:
    found = IndexReader(BytesSource(bytes(size)), 0)
    assert (found.count(), found.excess()) == (count, excess)


def test_entries_by_transaction_id() -> None:
    found = reader([128, 200, 300], odd=3)
    cases = [
        (5, 3, [128, 200, 300]),
        (5, 9, [128, 200, 300]),
        (6, 1, [200]),
        (7, 1, [300]),
        (8, 1, []),
        (4, 3, []),
        (5, 0, []),
        (5, -1, []),
    ]
    for number, count, entries in cases:
        assert found.entries(number, count).tolist() == entries
        buffer = np.zeros(max(count, 0), ">i8")
        read = found.read_into(number, memoryview(buffer).cast("B")) if count > 0 else 0
        assert buffer[: read // 8].tolist() == entries
    assert [found.entry(number) for number in (4, 5, 7, 8)] == [None, 128, 300, None]
    assert found.entries(BEGINS + 2**48, 1).tolist() == []
    assert found.entries(2**62, 1).tolist() == []
    assert found.read_into(2**62, memoryview(bytearray(8))) == 0


def test_where_no_file_reaches_nothing_is_read() -> None:
    class Never(BytesSource):
        def read_into(self, offset: int, buffer: memoryview) -> int:
            assert offset <= HEADER_SIZE + 8 * 2**48
            return 0

    found = IndexReader(Never(b""), BEGINS)
    for number in (BEGINS + 2**48, BEGINS + 2**48 + 1, 2**63 - 1):
        assert found.entries(number, 1).tolist() == []
        assert found.read_into(number, memoryview(bytearray(8))) == 0


# --- what is wrong ------------------------------------------------------------------------------------------------------------


def test_wrong_entries_are_summed_up() -> None:
    wrong = WrongEntries()
    wrong.add(7, 70, 71)
    assert (wrong.count, wrong.first, wrong.last, wrong.stored, wrong.actual) == (1, 7, 7, 70, 71)
    wrong.add(9, 90, None, 3, last=14)
    assert (wrong.count, wrong.first, wrong.last, wrong.stored, wrong.actual) == (4, 7, 14, 70, 71)
    wrong.add(7, 75, 76)
    assert (wrong.count, wrong.first, wrong.last, wrong.stored, wrong.actual) == (5, 7, 14, 70, 71)
    wrong.add(6, 60, None)
    assert (wrong.count, wrong.first, wrong.last, wrong.stored, wrong.actual) == (6, 6, 14, 60, None)
    negative = WrongEntries()
    negative.add(-3, 1, 2)
    assert (negative.first, negative.last) == (-3, -3)


@pytest.mark.parametrize(
    ("one", "other", "merged"),
    [
        ((1, 7, 7), (1, 7, 7), (1, 7, 7)),
        ((2, 7, 9), (3, 9, 12), (3, 7, 12)),
        ((4, 7, 10), (3, 5, 7), (4, 5, 10)),
        ((2, 7, 9), (3, 10, 12), (5, 7, 12)),
        ((3, 10, 12), (2, 7, 9), (5, 7, 12)),
        ((0, 0, 0), (2, 7, 9), (2, 7, 9)),
        ((2, 7, 9), (0, 0, 0), (2, 7, 9)),
        ((0, 0, 0), (0, 0, 0), (0, 0, 0)),
        ((2, 1, 2), (0, 0, 0), (2, 1, 2)),
    ],
)
def test_two_looks_at_the_same_index_count_once(
    one: tuple[int, int, int], other: tuple[int, int, int], merged: tuple[int, int, int]
) -> None:
    mine, theirs = (WrongEntries(count, first, last, first * 10, None) for count, first, last in (one, other))
    mine.merge(theirs)
    assert (mine.count, mine.first, mine.last) == merged


@pytest.mark.parametrize(("first", "actual"), [(7, 99), (8, None), (6, None)])
def test_where_the_record_is_comes_from_the_look_that_knows(first: int, actual: int | None) -> None:
    mine, theirs = WrongEntries(1, 7, 9, 1, None), WrongEntries(1, first, 9, 1, 99)
    mine.merge(theirs)
    assert mine.actual == actual
    known = WrongEntries(1, 7, 9, 1, 55)
    known.merge(theirs)
    assert known.actual == 55


# --- compared -----------------------------------------------------------------------------------------------------------------


@properties
@given(st.lists(st.integers(0, 3), max_size=12), st.integers(0, 12), st.integers(0, 9))
def test_entries_are_compared_with_offsets_one_by_one(shifts: list[int], there: int, first: int) -> None:
    offsets = [128 + 60 * n for n in range(first + len(shifts))]
    entries = list(offsets)
    for n, shift in enumerate(shifts):
        entries[first + n] += shift
    comparison = IndexComparison(reader(entries[:there]))
    comparison.compare(BEGINS + first, np.array(offsets[first:], np.int64))
    differ = [n for n in range(first, min(there, len(offsets))) if entries[n] != offsets[n]]
    if not differ:
        assert told(comparison.wrong) is None
    else:
        assert told(comparison.wrong) == (len(differ), BEGINS + differ[0], BEGINS + differ[-1], entries[differ[0]])
        assert comparison.wrong.actual == offsets[differ[0]]


def damage(offset: int, length: int, first: int, behind: int | None) -> Damage:
    return Damage(DamageCause.RECORD_CHECKSUM, offset, length, first, behind, None, None, None, None, "chain")


@pytest.mark.parametrize(
    ("entries", "wrong"),
    [
        ([200, 240, 280], None),
        ([200, 201, 399], None),
        ([199, 240, 280], (1, 7, 7, 199)),
        ([201, 240, 280], (1, 7, 7, 201)),
        ([200, 200, 280], (1, 8, 8, 200)),
        ([200, 240, 400], (1, 9, 9, 400)),
        ([200, 199, 400], (2, 8, 9, 199)),
        ([7, 8, 9], (3, 7, 9, 7)),
        ([200, 7], (1, 8, 8, 7)),
        ([], None),
    ],
)
def test_entries_of_lost_records_lead_into_the_damaged_place(entries: list[int], wrong: tuple[int, ...] | None) -> None:
    comparison = IndexComparison(reader([128, 150, *entries, *([400] if len(entries) == 3 else [])]))
    comparison.compare_span(damage(200, 200, 7, 10))
    assert told(comparison.wrong) == wrong
    assert comparison.wrong.actual == (200 if wrong and wrong[1] == 7 else None)


def test_no_more_records_were_lost_than_fit() -> None:
    comparison = IndexComparison(reader([128, 150, 200, 7, 7, 7]))
    comparison.compare_span(damage(200, 39, 7, 11))
    assert told(comparison.wrong) is None
    comparison.compare_span(damage(200, 40, 7, 11))
    assert told(comparison.wrong) == (1, 8, 8, 7)
    last = IndexComparison(reader([128, 150, 200, 240, 280, 320, 7, 7, 7, 7]))
    last.compare_span(damage(200, 160, 7, 11))
    assert told(last.wrong) is None
    for nothing in (damage(200, 0, 7, 9), damage(200, 200, 7, None), damage(200, 200, 7, 7)):
        comparison = IndexComparison(reader([1] * 9))
        comparison.compare_span(nothing)
        assert told(comparison.wrong) is None
    one = IndexComparison(reader([128, 150, 1, 1]))
    one.compare_span(damage(200, 1, 7, 9))
    assert told(one.wrong) == (1, 7, 7, 1)


def plainly_explained(entries: Sequence[int], offset: int, size: int) -> int:
    before, count = offset - 40, 0
    for entry in entries:
        if entry < before + 40 or not offset <= entry < size:
            break
        before, count = entry, count + 1
    return count


@properties
@given(st.lists(st.sampled_from([39, 40, 41, 80, 0, -5]), max_size=9), st.sampled_from([0, 0, 0, 1, -1]))
def test_entries_that_a_torn_tail_explains(steps: list[int], shift: int) -> None:
    entries = [200 + shift]
    for step in steps:
        entries.append(entries[-1] + step)
    for size in (200, 201, 320, 321, 10**6):
        comparison = IndexComparison(reader([128, 150, *entries]))
        found = comparison.explained_by_tail(damage(200, 10, 7, None), size, 7)
        assert found == (plainly_explained(entries, 200, size) if not shift else 0)
        assert comparison.explained_by_tail(damage(200, 10, 8, None), size, 7) == 0
        assert comparison.explained_by_tail(None, size, 7) == 0
    assert IndexComparison(reader([128, 150])).explained_by_tail(damage(200, 10, 7, None), 900, 7) == 0


def test_what_cannot_be_read_is_kept_for_the_end() -> None:
    entries = [128 + 60 * n for n in range(9)]
    comparison = IndexComparison(IndexReader(Unreadable(index([1, *entries[1:]]), 4), BEGINS))
    comparison.compare(BEGINS, np.array(entries, np.int64))
    assert comparison.unreadable is not None
    assert told(comparison.wrong) == (1, 5, 5, 1)
    comparison.compare(BEGINS, np.array([7], np.int64))
    comparison.compare_span(damage(200, 200, 6, 8))
    assert told(comparison.wrong) == (1, 5, 5, 1)
    assert comparison.explained_by_tail(damage(128, 10, 5, None), 900, 5) == 0
    other = IndexComparison(IndexReader(Unreadable(index(entries), 4), BEGINS))
    other.compare_span(damage(200, 500, 7, 12))
    assert other.unreadable is not None


@pytest.mark.parametrize(
    ("entries", "odd", "short", "long"),
    [
        (0, 0, IndexShort(BEGINS, 0, 2), None),
        (1, 0, IndexShort(BEGINS, 1, 2), None),
        (1, 7, IndexShort(BEGINS, 1, 2), IndexLong(BEGINS, 1, 2, 7)),
        (2, 0, None, None),
        (2, 1, None, IndexLong(BEGINS, 2, 2, 1)),
        (3, 0, None, IndexLong(BEGINS, 3, 2)),
        (4, 0, None, IndexLong(BEGINS, 4, 2)),
    ],
)
def test_an_index_of_two_records(entries: int, odd: int, short: IndexShort | None, long: IndexLong | None) -> None:
    comparison = IndexComparison(reader([128 + 60 * n for n in range(entries)], odd=odd))
    assert comparison.short(BEGINS + 1) == short
    assert comparison.short(None) is None
    assert comparison.long(BEGINS + 2) == long
    more = comparison.short(BEGINS + 1, at_least=True)
    assert (more is not None and more.at_least) == (short is not None)


# --- by itself ----------------------------------------------------------------------------------------------------------------


def plainly_wrong(entries: Sequence[int], size: int) -> tuple[int, ...] | None:
    inside = [n for n, entry in enumerate(entries) if entry < size]
    meant = list(entries[: inside[-1] + 1]) if inside else []
    bad = [n for n, (a, b) in enumerate(pairwise([88, *meant])) if b - a < 40 or b < 128 or b > size]
    if meant and meant[0] != 128 and 0 not in bad:
        bad.insert(0, 0)
    return (len(bad), BEGINS + bad[0], BEGINS + bad[-1], meant[bad[0]]) if bad else None


@properties
@given(
    st.lists(st.sampled_from([39, 40, 41, 200, 0, -60, 5000]), max_size=10),
    st.sampled_from([128, 128, 128, 127, 129, 0, -8]),
    st.sampled_from([0, 128, 129, 208, 209, 400, 10**6]),
)
def test_an_index_that_cannot_be_right_whatever_the_data_says(steps: list[int], first: int, size: int) -> None:
    entries = [first]
    for step in steps:
        entries.append(entries[-1] + step)
    wrong = check_rising(reader(entries), size)
    assert told(wrong) == plainly_wrong(entries, size)
    assert wrong.actual is None
    assert told(check_rising(reader([]), size)) is None


@pytest.mark.parametrize(
    "entries", [[0, 127, 400], [0, 128, 400], [128, 301, 200], [128, 300, 200], [128, 302, 200], [128, 270, 299]]
)
def test_an_entry_in_front_of_the_records_or_behind_the_file_is_wrong(entries: list[int]) -> None:
    for size in (300, 500):
        assert told(check_rising(reader(entries), size)) == plainly_wrong(entries, size)
