"""The entries of an index, what they prove, and where a segment is cut, on values: an index that lies costs reads, no answer."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.builders import make_records, segment_header
from waltzctl.engine.log import index as index_room
from waltzctl.engine.log.index import IndexReader, RecordPlace, last_proven, prove, prove_at_or_before
from waltzctl.engine.log.parts import Part, cut, cut_segment, share
from waltzctl.engine.scan.byte_source import BytesSource
from waltzctl.formats.segment import HEADER_SIZE, Record, decode_entries, encode_entries

FIRST = 100
COUNT = 24
SIZE = 60
RECORDS = make_records(COUNT, size=20)
END = HEADER_SIZE + SIZE * COUNT


def at(number: int) -> int:
    """Offset of the record with this id."""
    return HEADER_SIZE + SIZE * (number - FIRST)


_ENCODED = [Record.make(FIRST + n, one.request_id, 0, one.data).encode() for n, one in enumerate(RECORDS)]
DATA = BytesSource(segment_header(0, FIRST).encode() + b"".join(_ENCODED))


def index_of(entries: Sequence[int], odd: int = 0) -> IndexReader:
    return IndexReader(BytesSource(segment_header(0, FIRST).encode() + encode_entries(entries) + b"\0" * odd), FIRST)


def right(count: int = COUNT) -> list[int]:
    """The right entries of the first `count` records."""
    return [at(FIRST + n) for n in range(count)]


@pytest.mark.parametrize("odd", [0, 1, 7])
def test_entries_by_id(odd: int) -> None:
    index = index_of(right(5), odd)
    assert (index.count(), index.end(), index.excess()) == (5, FIRST + 5, odd)
    assert [index.entry(FIRST + n) for n in (-1, 0, 4, 5, 1 << 60)] == [None, at(FIRST), at(FIRST + 4), None, None]
    assert index.entries(FIRST + 3, 9).tolist() == right(5)[3:]
    assert index.entries(FIRST + 1, 2).tolist() == right(5)[1:3]
    assert [len(index.entries(FIRST + n, count)) for n, count in ((-1, 2), (0, 0), (0, -1))] == [0, 0, 0]
    buffer = bytearray(24)
    assert index.read_into(FIRST + 3, memoryview(buffer)) == min(24, 16 + odd)
    assert decode_entries(buffer[:16]).tolist() == right(5)[3:]
    assert index.read_into(FIRST - 1, memoryview(buffer)) == index.read_into(1 << 60, memoryview(buffer)) == 0


def test_an_index_shorter_than_its_header_has_no_entries() -> None:
    index = IndexReader(BytesSource(b"\0" * 100), FIRST)
    assert (index.count(), index.excess(), index.end()) == (0, 0, FIRST)


@pytest.mark.parametrize("low", [None, FIRST, FIRST + 3])
def test_the_first_entry_from_an_offset_on(low: int | None) -> None:
    index, lowest = index_of(right(6)), FIRST if low is None else low
    for number in range(6):
        for step, wanted in ((-1, number), (0, number), (1, number + 1)):
            assert index.first_from(at(FIRST + number) + step, low) == max(lowest, FIRST + wanted)
    assert index.first_from(10**9, low) == FIRST + 6


def test_only_a_record_with_its_id_and_checksum_in_front_of_the_stop_is_proven() -> None:
    index = index_of(right())
    found = prove(DATA, index, FIRST + 3, END)
    assert found is not None
    assert (found.offset, found.transaction_id) == (at(FIRST + 3), FIRST + 3)
    assert prove(DATA, index, FIRST + 3, at(FIRST + 4)) is not None
    assert prove(DATA, index, FIRST + 3, at(FIRST + 4) - 1) is None
    for wrong in (at(FIRST + 4), at(FIRST + 3) + 1, -1, END, 10**9):
        assert prove(DATA, index_of([*right(3), wrong]), FIRST + 3, END) is None


def test_in_front_of_the_file_nothing_is_read() -> None:
    class Strict(BytesSource):
        def read_into(self, offset: int, buffer: memoryview) -> int:
            assert offset >= 0
            return super().read_into(offset, buffer)

    data = Strict(bytes(Record.make(FIRST, RECORDS[0].request_id, 0, b"").encode()))
    assert prove(data, index_of([0]), FIRST, 40) is not None
    for wrong in (-1, -40, -(2**63)):
        assert prove(data, index_of([wrong]), FIRST, 40) is None


def test_a_record_that_is_too_large_to_be_held_proves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    for most, proven in ((20, True), (19, False)):
        monkeypatch.setattr(index_room, "MOST_HELD", most)
        assert (prove(DATA, index_of(right()), FIRST, END) is not None) == proven


WRONG = st.dictionaries(st.integers(0, COUNT - 1), st.sampled_from([-1, 0, HEADER_SIZE, at(FIRST + 7), END, 10**9]))


@given(WRONG, st.integers(0, COUNT + 3), st.integers(FIRST - 2, FIRST + COUNT + 5), st.integers(-1, 3))
def test_at_or_before_finds_a_proven_record_that_is_not_behind(
    wrong: dict[int, int], listed: int, wanted: int, above: int
) -> None:
    entries = [*right(), END, END, END]
    for number, entry in wrong.items():
        entries[number] = entry
    index, lowest = index_of(entries[:listed]), FIRST + above
    found = prove_at_or_before(DATA, index, wanted, END, above=lowest)
    provable = [n for n in range(lowest + 1, wanted + 1) if prove(DATA, index, n, END) is not None]
    if found is not None:
        assert found.transaction_id in provable
    if wanted in provable:
        assert found is not None
        assert found.transaction_id == wanted
    if not wrong and provable:  # nothing lies: the entries behind the last record are skipped in one step or few
        assert found is not None
    if len(provable) == max(0, wanted - lowest) and provable:
        assert found is not None


@pytest.mark.parametrize(("bad", "found"), [((), 9), ((9,), 8), ((9, 8), 6), ((9, 8, 6), 2), ((9, 8, 6, 2), None)])
def test_at_or_before_steps_back_in_steps_that_double(bad: tuple[int, ...], found: int | None) -> None:
    entries = [0 if n in bad else entry for n, entry in enumerate(right(10))]
    for wanted in (FIRST + 9, FIRST + 10, FIRST + 500):
        seen = prove_at_or_before(DATA, index_of(entries), wanted, END, above=FIRST)
        assert (None if seen is None else seen.transaction_id - FIRST) == found


def test_ids_that_are_not_above_are_not_tried() -> None:
    index = index_of(right(10))
    for above, found in ((FIRST + 3, FIRST + 4), (FIRST + 4, None)):
        seen = prove_at_or_before(DATA, index, FIRST + 4, END, above=above)
        assert (None if seen is None else seen.transaction_id) == found
    assert prove_at_or_before(DATA, None, FIRST + 4, END, above=FIRST) is None


@given(st.integers(0, COUNT), st.integers(0, 40), st.sampled_from([0, at(FIRST) + 1, 10**9]))
def test_the_last_proven_record_of_an_index_that_is_too_long(there: int, more: int, junk: int) -> None:
    found = last_proven(DATA, index_of([*right(there), *[junk] * more]), END)
    assert (0 if found is None else found.transaction_id + 1 - FIRST) == there


# --- parts ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "stop", "parts", "begins"),
    [(10, 14, 4, [10, 11, 12, 13]), (10, 13, 4, [None] * 4), (10, 20, 3, [10, 13, 16]), (7, 7, 1, [None])],
)
def test_shares_of_ids(first: int, stop: int, parts: int, begins: list[int | None]) -> None:
    assert [share(first, stop, number, parts) for number in range(parts)] == begins


_CUTS = {
    END: [0],
    END - 1: [0, 12],
    END // 2: [0, 12],
    END // 2 - 1: [0, 8, 16],
    END // 3 + 1: [0, 8, 16],
    1: range(COUNT),
}


@pytest.mark.parametrize(("part", "starts"), _CUTS.items())
def test_a_segment_is_cut_into_even_parts(part: int, starts: Sequence[int]) -> None:
    parts = cut_segment(DATA, index_of(right()), FIRST, END, part)
    assert [(one.first, one.start) for one in parts] == [(FIRST + n, at(FIRST + n)) for n in starts]
    assert [one.stop for one in parts] == [*(one.start for one in parts[1:]), END]


def test_without_an_index_a_segment_is_one_part() -> None:
    assert cut_segment(DATA, None, FIRST, END, 100) == [Part(FIRST, HEADER_SIZE, END)]


@given(WRONG, st.integers(0, COUNT), st.integers(1, 2 * COUNT))
def test_parts_cover_everything_once_and_begin_at_records(wrong: dict[int, int], listed: int, parts: int) -> None:
    entries = right()
    for number, entry in wrong.items():
        entries[number] = entry
    index = index_of(entries[:listed])
    found = cut(DATA, index, RecordPlace(HEADER_SIZE, FIRST), (FIRST, FIRST + listed), END, parts)
    assert len(found) <= max(1, min(parts, listed))
    assert (found[0].first, found[0].start, found[-1].stop) == (FIRST, HEADER_SIZE, END)
    for before, behind in pairwise(found):
        assert before.stop == behind.start == at(behind.first)
        assert before.first < behind.first


def test_a_range_is_not_cut_in_front_of_its_beginning_wherever_an_index_leads() -> None:
    """The same record stands a second time, behind all others."""
    again = Record.make(FIRST + 5, RECORDS[5].request_id, 0, RECORDS[5].data).encode()
    data = BytesSource(segment_header(0, FIRST).encode() + b"".join(_ENCODED) + again)
    index = index_of([*right(5), END])
    for begins, starts in ((3, [3, 5]), (4, [4, 5]), (5, [5]), (6, [6])):
        begin = RecordPlace(at(FIRST + begins), FIRST + begins)
        found = cut(data, index, begin, (FIRST, FIRST + 10), END + SIZE, 2)
        assert [one.first for one in found] == [FIRST + n for n in starts]


def test_a_range_is_cut_behind_its_beginning() -> None:
    """What is read may begin at a record in front of the first one that is wanted."""
    begin = RecordPlace(at(FIRST + 2), FIRST + 2)
    found = cut(DATA, index_of(right()), begin, (FIRST + 6, FIRST + 10), at(FIRST + 10), 2)
    assert found == [Part(FIRST + 2, at(FIRST + 2), at(FIRST + 8)), Part(FIRST + 8, at(FIRST + 8), at(FIRST + 10))]
    none = cut(DATA, index_of(right()), begin, (FIRST + 6, FIRST + 10), at(FIRST + 8), 2)
    assert none == [Part(FIRST + 2, at(FIRST + 2), at(FIRST + 8))]


def test_a_cut_in_front_of_the_one_before_is_none_wherever_an_index_leads() -> None:
    """A record stands twice, the first time in front of what the cut before begins with: nothing may be read twice for it."""
    copy = Record.make(FIRST + 8, RECORDS[8].request_id, 0, RECORDS[8].data).encode()
    data = BytesSource(segment_header(0, FIRST).encode() + b"".join([*_ENCODED[:2], copy, *_ENCODED[2:]]))
    shifted = [*right(2), *(entry + SIZE for entry in right(12)[2:])]
    shifted[8] = at(FIRST + 2)
    begin = RecordPlace(HEADER_SIZE, FIRST)
    found = cut(data, index_of(shifted), begin, (FIRST, FIRST + 12), END + SIZE, 3)
    assert [(one.first, one.start) for one in found] == [(FIRST, HEADER_SIZE), (FIRST + 4, at(FIRST + 5))]
    assert [one.stop for one in found] == [at(FIRST + 5), END + SIZE]
