"""The bounds of the search behind damage, each with one step to either side, on a resynchroniser of its own."""

from __future__ import annotations

import random
import struct
import zlib
from collections.abc import Callable

import pytest

from tests.builders import make_records, segment_header
from tests.scan.oracle import Segment, segment_of
from waltzctl.engine.errors import DiskReadError
from waltzctl.engine.scan import resync
from waltzctl.engine.scan.byte_source import BytesSource
from waltzctl.engine.scan.kernel import INTERPRETED, made_up_record
from waltzctl.engine.scan.probe import BudgetExhaustedError, Found, Probe, SearchBudget
from waltzctl.engine.scan.resync import IndexHint, Resumption, Resynchroniser, out_of_reach
from waltzctl.formats.segment import Record, encode_entries


class Unreadable(BytesSource):
    """Cannot be read from `bad` on."""

    def __init__(self, data: bytes, bad: int) -> None:
        super().__init__(data)
        self._bad = bad

    def read_into(self, offset: int, buffer: memoryview) -> int:
        if offset + len(buffer) > self._bad:
            raise DiskReadError(self.name, offset, OSError(5, "made up"))
        return super().read_into(offset, buffer)


def searcher(
    data: bytes,
    index: IndexHint | None = None,
    *,
    stop: int | None = None,
    ceiling: int | None = None,
    longest: int = 1 << 20,
    budget: int = 2**62,
) -> Resynchroniser:
    probe = Probe(BytesSource(data), len(data) if stop is None else stop, longest, SearchBudget(budget))
    return Resynchroniser(probe, INTERPRETED, index or IndexHint(None, 0, 128), ceiling)


@pytest.mark.parametrize(
    ("transaction_id", "room", "ceiling", "out"),
    [
        (20, 400, None, False),
        (20, 399, 20, True),
        (20, 400, 20, False),
        (20, 399, 21, False),
        (20, 399, 19, True),
        (10, 0, 5, False),
        (11, 0, 5, True),
        (11, 39, 11, True),
        (11, 40, 11, False),
    ],
)
def test_an_id_of_the_next_segment_is_out_of_reach_where_there_is_no_room(
    transaction_id: int, room: int, ceiling: int | None, *, out: bool
) -> None:
    assert out_of_reach(transaction_id, 10, room, ceiling) == out


# --- the index ------------------------------------------------------------------------------------------------------------


def index_file(first: int, *entries: int) -> bytes:
    return segment_header(0, first).encode() + encode_entries(list(entries))


@pytest.mark.parametrize(
    ("index", "first", "start", "asked", "found"),
    [
        (index_file(3, 128, 200, 300), 3, 128, (3, 3), [128, 200, 300]),
        (index_file(3, 128, 200, 300), 3, 128, (4, 1), [200]),
        (index_file(3, 128, 200, 300), 3, 128, (5, 9), [300]),
        (index_file(3, 128, 200, 300), 3, 128, (6, 1), []),
        (index_file(3, 128, 200, 300), 3, 128, (2, 3), []),
        (index_file(3, 128, 200, 300) + b"\0\0\0", 3, 128, (4, 9), [200, 300]),
        # of another first id: entries are taken for what a segment with that of the file has
        (index_file(9, 128, 200, 300), 3, 128, (4, 1), [200]),
        (index_file(1, 128, 200, 300), 3, 128, (4, 1), [200]),
        (index_file(1, 40, 128, 128, 300), 3, 128, (3, 2), [128, 300]),
        # a scan that begins in the middle: its entry must lead there
        (index_file(1, 128, 200, 300, 400), 2, 200, (3, 2), [300, 400]),
        (index_file(1, 128, 201, 300, 400), 2, 200, (3, 2), []),
        (index_file(2, 200, 300, 400), 2, 200, (3, 2), [300, 400]),
        (index_file(3, 200, 300, 400), 2, 200, (3, 2), []),
        (index_file(3, 128, 200, 300)[:127], 3, 128, (3, 3), []),
        (b"", 3, 128, (3, 3), []),
        (b"", 3, 200, (3, 3), []),
    ],
)
def test_what_an_index_tells(index: bytes, first: int, start: int, asked: tuple[int, int], found: list[int]) -> None:
    assert IndexHint(BytesSource(index), first, start).entries(*asked) == found


def test_an_index_that_cannot_be_read_tells_nothing() -> None:
    index = index_file(3, 128, 200, 300)
    assert IndexHint(Unreadable(index, 100), 3, 128).entries(3, 3) == []
    half = IndexHint(Unreadable(index, 144), 3, 128)
    assert half.entries(3, 2) == [128, 200]
    assert half.entries(3, 3) == []
    assert IndexHint(None, 3, 128).entries(3, 3) == []
    assert IndexHint(BytesSource(index), 3, 128).entries(2**62, 1) == []


@pytest.mark.parametrize("most", [1, 2, 3, 4])
def test_as_many_entries_as_are_to_be_tried_are_tried(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    made = segment_of(make_records(6))
    monkeypatch.setattr(resync, "INDEX_ENTRIES", most)
    data = bytearray(made.data)
    for place in (2, 3):
        data[made.offsets[place] + 20] ^= 1
    found = searcher(bytes(data), IndexHint(BytesSource(made.index), 0, 128)).by_index(made.offsets[2], 2)
    assert found == (None if most < 3 else Found(made.offsets[4], 4, made.offsets[5]))


def test_an_entry_proves_only_a_record_behind_the_damage_with_its_id() -> None:
    made = segment_of([*make_records(5), *make_records(1, first=5)])
    at = made.offsets

    def found(*entries: int, data: bytes = made.data, stop: int | None = None) -> int | None:
        hint = IndexHint(BytesSource(index_file(0, 128, at[1], *entries)), 0, 128)
        one = searcher(data, hint, stop=stop).by_index(at[2], 2)
        return None if one is None else one.offset

    assert found(at[2], at[3]) == at[3]  # its own place is no place behind it
    assert found(at[2] + 1, at[4], at[4]) == at[4]  # the second is of another id
    assert found(-5, 2**62, 0, at[5]) == at[5]
    assert found(at[4], at[5]) is None
    assert found(0, 0, 0, len(made.data) - 39) is None
    empty = segment_of([*make_records(2), *make_records(2, first=2, size=0)])
    last = empty.offsets[3]
    hint = IndexHint(BytesSource(empty.index), 0, 128)
    assert searcher(empty.data, hint).by_index(empty.offsets[2], 2) == Found(last, 3, last + 40)
    assert searcher(empty.data, hint, stop=last + 39).by_index(empty.offsets[2], 2) is None


# --- chains ---------------------------------------------------------------------------------------------------------------


def test_how_far_a_chain_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    made = segment_of(make_records(10, size=60))
    head = Found(made.offsets[2], 2, made.offsets[3])
    search = searcher(made.data)
    assert search.follow(head, len(made.data)) == (len(made.data), 9, True)
    assert search.follow(head, len(made.data), 3) == (made.offsets[5], 4, False)
    assert search.follow(head, len(made.data), 8) == (len(made.data), 9, True)
    assert search.follow(head, len(made.data), 9) == (len(made.data), 9, True)
    assert search.follow(head, made.offsets[5]) == (made.offsets[5], 4, True)
    assert search.follow(head, made.offsets[5], 3) == (made.offsets[5], 4, True)
    assert search.follow(head, made.offsets[5] + 1) == (made.offsets[5], 4, False)
    for size, reached in ((200, True), (201, True), (199, True), (300, False), (299, True)):
        monkeypatch.setattr(resync, "LOOKAHEAD", size)
        assert search.follow(head, made.offsets[5] + 1)[2] == reached
    broken = bytearray(made.data)
    broken[made.offsets[4] + 50] ^= 1
    assert searcher(bytes(broken)).follow(head, len(broken)) == (made.offsets[4], 3, False)


def test_most_records_of_a_chain_are_counted_over_all_that_is_taken_at_once() -> None:
    """Rows are taken by the thousand; behind the last one that is wanted nothing is read."""
    made = segment_of(make_records(9000, size=0))
    head = Found(made.offsets[0], 0, made.offsets[1])
    for most in (4095, 4096, 4097, 8191, 8192, 8193):
        taken = -(-most // 4096) * 4096
        search = searcher(made.data, budget=resync.FOLLOW_BLOCK + 40 * taken)
        assert search.follow(head, len(made.data), most) == (made.offsets[most], most - 1, False)


@pytest.mark.parametrize(("more", "reached"), [(0, False), (1, True)])
def test_64_mebibytes_of_a_chain_count_as_much_as_the_end(more: int, *, reached: bool) -> None:
    long = Record.make(8, make_records(1)[0].request_id, 0, bytes((64 << 20) - 3 * 40 + more))
    data = chain(6, 2, 0) + long.encode() + b"\xee" * 9
    search = searcher(data, longest=1 << 30)
    assert search.follow(Found(0, 6, 40), len(data)) == ((64 << 20) + more, 8, reached)


def test_what_following_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resync, "FOLLOW_BLOCK", 8192)
    made = segment_of(make_records(10, size=60))
    head = Found(made.offsets[2], 2, made.offsets[3])
    for budget, enough in ((8192 + 800, True), (8192 + 799, False)):
        search = searcher(made.data, budget=budget)
        if enough:
            assert search.follow(head, len(made.data))[2]
        else:
            with pytest.raises(BudgetExhaustedError):
                search.follow(head, len(made.data))


# --- the search -----------------------------------------------------------------------------------------------------------


def beyond_proof(made: Segment, place: int, *, length: int | None = None) -> bytearray:
    """Header, data and both checksums of a record are damaged; `length` is what it claims then (else something huge)."""
    data = bytearray(made.data)
    start, end = made.span(place)
    for at in (start + 12, start + 33, end - 5, end - 2):
        data[at] ^= 0x21
    data[start + 28 : start + 32] = (10**9 if length is None else length).to_bytes(4, signed=True)
    return data


def outer(content: bytes, count: int = 8) -> Segment:
    """A segment in which record 3 holds `content`."""
    records = make_records(count, size=60)
    records[3] = type(records[3]).make(3, records[3].request_id, 1, content)
    return segment_of(records)


def chain(first: int, count: int, length: int = 7) -> bytes:
    return b"".join(made_up_record(first + n, length) for n in range(count))


@pytest.mark.parametrize("ahead", [0, 1])
def test_how_far_ids_may_be_ahead(ahead: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as fit between the damage and the place, and SLACK."""
    monkeypatch.setattr(resync, "SLACK", 5)
    made = segment_of(make_records(3, size=30))
    start = made.offsets[1]
    for junk in (39, 40, 41, 200):
        fits = 1 + 5 + junk // 40
        data = made.data[:start] + b"\xee" * junk + chain(fits + ahead, 1)
        found = searcher(data).find(start, 1)
        assert found == (Resumption(start + junk, fits, fits, "chain") if not ahead else None)


@pytest.mark.parametrize(("ahead", "believed"), [(4096, True), (4097, False)])
def test_ids_may_be_ahead_by_4096_where_there_is_no_room_for_one(ahead: int, *, believed: bool) -> None:
    made = segment_of(make_records(2, size=30))
    start = made.offsets[1]
    found = searcher(made.data[:start] + b"\xee" * 9 + chain(1 + ahead, 1)).find(start, 1)
    assert found == (Resumption(start + 9, 1 + ahead, 1 + ahead, "chain") if believed else None)


@pytest.mark.parametrize(("ahead", "tried"), [(4095, True), (4096, False)])
def test_4096_entries_of_the_index_are_tried(ahead: int, *, tried: bool) -> None:
    made = segment_of(make_records(3, size=30))
    start, at = made.offsets[1], made.offsets[2]
    data = made.data[:at] + made_up_record(1 + ahead, 3)
    index = index_file(0, made.offsets[0], *[0] * ahead, at)
    found = searcher(data, IndexHint(BytesSource(index), 0, 128)).by_index(start, 1)
    assert found == (Found(at, 1 + ahead, len(data)) if tried else None)


@pytest.mark.parametrize(("more", "seen"), [(-1, True), (0, False)])
def test_16_mebibytes_behind_a_chain_are_searched_for_a_better_one(more: int, *, seen: bool) -> None:
    made = segment_of(make_records(4, size=30))
    start = made.offsets[3]
    one, other = chain(4, 2), chain(4, 5)
    between = bytes((16 << 20) + more)
    found = searcher(made.data[:start] + b"\xee" * 9 + one + between + other + b"\xee").find(start, 3)
    assert found is not None
    assert found.offset == start + 9 + (len(one) + len(between) if seen else 0)


@pytest.mark.parametrize(("missing", "proof"), [((), "index"), ((4,), "chain"), ((4, 5), "chain")])
def test_a_record_that_the_index_proves_may_have_others_in_front_of_it(missing: tuple[int, ...], proof: str) -> None:
    """Unless it is the next one, what stands between is searched for."""
    made = segment_of(make_records(9, size=30))
    data = bytes(beyond_proof(made, 3))
    entries = [0 if place in missing else at for place, at in enumerate(made.offsets)]
    found = searcher(data, IndexHint(BytesSource(index_file(0, *entries)), 0, 128)).find(made.offsets[3], 3)
    assert found == Resumption(made.offsets[4], 4, 4, proof)


def test_the_next_record_where_the_index_has_it_is_believed_before_any_checksum() -> None:
    """The damaged one has the checksum of a part of its data, behind which its client put a record."""
    content = b"x" * 20 + b"...." + chain(4, 1) + b"y" * 9
    made = outer(content)
    start = made.offsets[3]
    data = bytearray(made.data)
    data[start + 28 : start + 36] = struct.pack(">iI", 10**9, zlib.crc32(b"x" * 20))
    inside = Resumption(start + 60, 4, 4, "checksum")
    assert searcher(bytes(data)).find(start, 3) == inside
    hint = IndexHint(BytesSource(made.index), 0, 128)
    assert searcher(bytes(data), hint).find(start, 3) == Resumption(made.offsets[4], 4, 4, "index")


def test_a_chain_beyond_the_ceiling_needs_the_room() -> None:
    made = segment_of(make_records(3, size=30))
    start = made.offsets[1]
    data = made.data[:start] + b"\xee" * 80 + chain(4, 3)
    assert searcher(data, ceiling=5).find(start, 1) == Resumption(start + 80, 4, 4, "chain")
    assert searcher(data, ceiling=4).find(start, 1) is None
    assert searcher(data[:start] + b"\xee" * 120 + chain(4, 3), ceiling=4).find(start, 1) is not None


CASES: dict[str, tuple[Callable[[], bytes], int, str]] = {
    "a longer chain of repeated ids loses to the one that reaches the end": (lambda: chain(4, 9), 4, "chain"),
    "chains that agree are one": (lambda: b"x" * 50, 4, "chain"),
}


@pytest.mark.parametrize("name", CASES)
def test_chains_behind_a_record_beyond_proof(name: str) -> None:
    content, first, proof = CASES[name]
    made = outer(content())
    data = bytes(beyond_proof(made, 3))
    assert searcher(data).find(made.offsets[3], 3) == Resumption(made.offsets[4], first, first, proof)


@pytest.mark.parametrize(
    ("first", "second", "wins"),
    [
        ((4, 3), (4, 2), 0),
        ((4, 2), (4, 3), 1),
        ((4, 2), (5, 2), 0),
        ((4, 2), (5, 3), 1),
        ((4, 2), (6, 9), 0),
        ((4, 3), (4, 3), 0),
    ],
)
def test_of_chains_with_the_same_ids_the_longer_one_is_believed(
    first: tuple[int, int], second: tuple[int, int], wins: int
) -> None:
    """Neither reaches the end: the bytes behind them are nothing."""
    made = segment_of(make_records(4, size=30))
    start = made.offsets[3]
    one, other = chain(*first), chain(*second)
    data = made.data[:start] + b"\xee" * 9 + one + b"\xee" * 11 + other + b"\xee" * 13
    found = searcher(data).find(start, 3)
    at = start + 9 if wins == 0 else start + 9 + len(one) + 11
    number = (first, second)[wins][0]
    assert found == Resumption(at, number, number, "chain")


@pytest.mark.parametrize(("window", "seen"), [(40, False), (41, False), (52, True)])
def test_a_better_chain_is_searched_for_in_a_window(
    window: int, *, seen: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resync, "CONFLICT_WINDOW", window)
    made = segment_of(make_records(4, size=30))
    start = made.offsets[3]
    one, other = chain(4, 2), chain(4, 5)
    data = made.data[:start] + b"\xee" * 9 + one + b"\xee" * 51 + other + b"\xee"
    found = searcher(data).find(start, 3)
    assert found is not None
    assert found.offset == start + 9 + (len(one) + 51 if seen else 0)


@pytest.mark.parametrize(
    ("length", "behind", "found"),
    [
        (20, b"", None),  # it looks torn: a right id and a length that leads beyond the end
        (20, b"\xee", None),
        (-1, b"\xee", 4),
        (2**31 - 1, b"\xee", 4),
        (1 << 20, b"\xee", None),
        ((1 << 20) + 1, b"\xee", 4),
    ],
)
def test_records_in_what_looks_like_a_torn_record_are_its_data(length: int, behind: bytes, found: int | None) -> None:
    made = segment_of(make_records(4, size=30))
    start = made.offsets[3]
    inside = b"." * 5 + chain(4, 2) + behind + b"-"
    head = struct.pack(">q16siiI", 3, b"\1" * 16, 0, length if length != 20 else len(inside) + 1, 5)
    answer = searcher(made.data[:start] + head + inside).find(start, 3)
    assert (None if answer is None else answer.transaction_id) == found
    another = struct.pack(">q16siiI", 99, b"\1" * 16, 0, len(inside) + 1, 5)
    assert searcher(made.data[:start] + another + inside).find(start, 3) is not None  # of another id
    reaching = searcher(made.data[:start] + head + inside[: 5 + len(chain(4, 2))]).find(start, 3)
    assert reaching is not None  # a chain that reaches the end is no data


@pytest.mark.parametrize(("following", "proof"), [(4, "length"), (5, "chain"), (6, "chain")])
def test_a_length_leads_to_the_next_id_only(following: int, proof: str) -> None:
    made = segment_of(make_records(4, size=60))
    data = bytes(beyond_proof(made, 3, length=60)) + chain(following, 3)
    found = searcher(data).find(made.offsets[3], 3)
    assert found == Resumption(len(made.data), following, following, proof)


def test_what_closes_in_front_of_a_record_with_its_own_id_was_not_followed_by_it() -> None:
    """It was written twice, and the first one is damaged beyond its length: the second one stands for both."""
    made = segment_of(make_records(4, size=60))
    start = made.offsets[3]
    data = bytearray(made.data + made.data[start:] + chain(4, 3))
    data[start + 28 : start + 32] = (10**9).to_bytes(4)
    end = start + 100
    assert searcher(bytes(data)).find(start, 3) == Resumption(end, 3, 3, "chain")
    assert searcher(bytes(data[:end]) + chain(4, 3)).find(start, 3) == Resumption(end, 4, 4, "checksum")


def test_behind_a_chain_that_reaches_the_end_nothing_is_searched_for() -> None:
    """Here it is in front of what looks torn, and one of its records holds another, with a later id."""
    made = segment_of(make_records(4, size=30))
    start = made.offsets[3]
    holding = Record.make(5, make_records(1)[0].request_id, 0, b"--" + chain(9, 1) + b"--").encode()
    inside = b"." * 5 + chain(4, 1) + holding
    head = struct.pack(">q16siiI", 3, b"\1" * 16, 0, len(inside) + 1, 5)
    found = searcher(made.data[:start] + head + inside).find(start, 3)
    assert found == Resumption(start + len(head) + 5, 4, 4, "chain")


def test_damaged_records_that_close_one_behind_the_other() -> None:
    made = segment_of(make_records(7, size=50))
    data = bytearray(made.data)
    for place in (2, 3):
        data[made.offsets[place] + 60] ^= 1
    at = made.offsets
    assert searcher(bytes(data)).find(at[2], 2) == Resumption(at[4], 4, 4, "length")
    for place in (4, 5, 6):
        data[at[place] + 60] ^= 1
    assert searcher(bytes(data)).find(at[2], 2) is None
    renumbered = made.data[: at[3]] + made_up_record(9, 4) + made.data[at[4] :]
    damaged = bytearray(renumbered)
    damaged[at[2] + 60] ^= 1
    assert searcher(bytes(damaged)).find(at[2], 2) == Resumption(at[3], 3, 9, "length")


def test_the_index_proves_the_next_record_and_bounds_the_search() -> None:
    made = outer(b"x" * 11 + chain(4, 2) + b"y" * 9)
    data = bytes(beyond_proof(made, 3))
    start, at = made.offsets[3], made.offsets
    whole = IndexHint(BytesSource(made.index), 0, 128)
    assert searcher(data, whole).find(start, 3) == Resumption(at[4], 4, 4, "index")
    later = made.index[: 128 + 8 * 4] + bytes(16) + made.index[128 + 8 * 6 :]
    hint = IndexHint(BytesSource(later), 0, 128)
    # the chain of 4 and 5 that leads to the record that the index proves is believed, the one inside the data is not
    assert searcher(data, hint).find(start, 3) == Resumption(at[4], 4, 4, "chain")
    nothing = bytearray(data)
    nothing[at[4] + 45] ^= 1
    nothing[at[4] + 20] ^= 1
    nothing[at[4] + 34] ^= 1
    nothing[at[5] + 45] ^= 1
    nothing[at[5] + 20] ^= 1
    nothing[at[5] + 34] ^= 1
    assert searcher(bytes(nothing), hint).find(start, 3) == Resumption(at[6], 6, 6, "index")


@pytest.mark.parametrize("intact", [(4, 5, 6, 7), (4,), (7,), (5, 6, 8), (4, 8), (8,)])
def test_chains_in_front_of_a_proven_record_are_found_whether_or_not_they_lead_to_it(intact: tuple[int, ...]) -> None:
    """The index proves 9 and no other; of those between it and the damage some are damaged, too."""
    made = segment_of(make_records(12, size=60))
    data = beyond_proof(made, 3)
    for number in set(range(4, 9)) - set(intact):
        start, end = made.span(number)
        data[start:end] = b"\xee" * (end - start)
    entry = slice(128 + 8 * 9, 136 + 8 * 9)
    index = bytearray(made.index[:136]) + bytes(len(made.index) - 136)
    index[entry] = made.index[entry]
    told = searcher(bytes(data), IndexHint(BytesSource(bytes(index)), 0, 128)).find(made.offsets[3], 3)
    assert told == Resumption(made.offsets[intact[0]], intact[0], intact[0], "chain")


@pytest.mark.parametrize(("first", "found"), [(4, 6), (5, 6), (3, 3)])
def test_a_chain_whose_ids_leave_none_for_the_bytes_behind_it_is_data(first: int, found: int) -> None:
    """The index proves 6, and in front of it is a chain of two, with bytes between them: to 5, to 6, or to 4."""
    made = segment_of(make_records(8, size=60))
    data = beyond_proof(made, 3)
    start, end = made.offsets[4], made.offsets[6]
    inside = b"\xee" * 9 + chain(first, 2)
    data[start:end] = inside + b"\xee" * (end - start - len(inside))
    index = made.index[: 128 + 8 * 4] + bytes(16) + made.index[128 + 8 * 6 :]
    told = searcher(bytes(data), IndexHint(BytesSource(index), 0, 128)).find(made.offsets[3], 3)
    place = made.offsets[6] if found == 6 else start + 9
    assert told == Resumption(place, found, found, "index" if found == 6 else "chain")


def test_random_bytes_hold_no_record() -> None:
    data = random.Random(5).randbytes(5000)
    assert searcher(data).find(0, 0) is None


def test_up_to_the_largest_id_something_is_searched_for() -> None:
    last = 2**63 - 1
    data = segment_of(make_records(1)).data + b"\xee" * 9
    start = len(data) - 9
    data += made_up_record(last, 3)
    assert searcher(data).find(start, last) == Resumption(start + 9, last, last, "chain")
    assert searcher(data).find(start, last - 3) == Resumption(start + 9, last, last, "chain")
    assert searcher(data).find(start, last + 1) is None


@pytest.mark.parametrize("junk", [b"\xee", b"\0", b"\xee\0", b"\xee" * 7 + b"\0", b"\xee" * 8 + b"\0\0"])
def test_the_next_record_may_begin_at_any_byte_behind_the_damage(junk: bytes) -> None:
    """Also where the one in front of it looks like the beginning of a record."""
    front = segment_of(make_records(1)).data[:128]
    data = front + junk + Record.make(0, make_records(1)[0].request_id, 0, b"abc").encode()
    assert searcher(data).find(128, 0) == Resumption(128 + len(junk), 0, 0, "chain")


@pytest.mark.parametrize(("lookahead", "rows"), [(4096 * 40, 6000), (4096 * 40 - 1, 4096), (4097 * 40, 6000)])
def test_a_chain_is_long_by_its_own_bytes(lookahead: int, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever in the file it begins; rows are taken by the thousand."""
    monkeypatch.setattr(resync, "LOOKAHEAD", lookahead)
    made = segment_of(make_records(9000, size=0))
    head = Found(made.offsets[3000], 3000, made.offsets[3001])
    end = [*made.offsets, len(made.data)][3000 + rows]
    assert searcher(made.data).follow(head, len(made.data)) == (end, 2999 + rows, True)


@pytest.mark.parametrize(
    ("chains", "wins"),
    [
        (((4, 1), (5, 1), (4, 2)), 0),  # two that agree have as many as the one that repeats both
        (((4, 1), (5, 1), (4, 3)), 2),
        (((4, 2), (6, 1), (5, 3)), 0),
        (((4, 2), (6, 1), (5, 4)), 2),
        (((4, 1), (6, 3), (5, 2)), 0),
        (((4, 3), (7, 1), (7, 2), (4, 5)), 0),
        (((4, 3), (7, 1), (7, 2), (4, 6)), 3),
    ],
)
def test_what_repeats_ids_of_several_chains_must_have_more_than_all_of_them(
    chains: tuple[tuple[int, int], ...], wins: int
) -> None:
    made = segment_of(make_records(4, size=30))
    start = made.offsets[3]
    data, places = made.data[:start] + b"\xee" * 9, []
    for one in chains:
        places.append(len(data))
        data += chain(*one) + b"\xee" * 11
    first = chains[wins][0]
    assert searcher(data).find(start, 3) == Resumption(places[wins], first, first, "chain")


def test_a_chain_to_which_the_length_leads_is_believed_with_what_agrees_with_it() -> None:
    """However long one is that repeats the ids of both."""
    made = segment_of(make_records(4, size=60))
    data = bytes(beyond_proof(made, 3, length=60))
    found = searcher(data + chain(4, 1) + b"\xee" * 5 + chain(5, 1) + b"\xee" * 5 + chain(4, 9) + b"\xee" * 5)
    assert found.find(made.offsets[3], 3) == Resumption(len(data), 4, 4, "length")


def test_the_window_for_a_better_chain_begins_behind_the_first_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resync, "CONFLICT_WINDOW", 100)
    made = segment_of(make_records(4, size=30))
    start = made.offsets[3]
    front = made.data[:start] + b"\xee" * 9 + chain(4, 1) + b"\xee" * 40 + chain(5, 1)
    for gap, seen in ((12, True), (13, False), (60, False)):
        found = searcher(front + b"\xee" * gap + chain(4, 9) + b"\xee").find(start, 3)
        at = len(front) + gap if seen else start + 9
        assert found == Resumption(at, 4, 4, "chain")


def test_what_leads_to_a_record_that_the_index_proves_must_lead_to_its_id() -> None:
    made = segment_of(make_records(4, size=60))
    start = made.offsets[3]
    for second, proof in ((5, "chain"), (6, "index"), (4, "chain")):  # the third does not lead there
        front = made.data[:start] + b"\xee" * 50 + chain(4, 1)
        data = front + chain(second, 1) if second == 4 else front
        at = len(data)
        known = second if second != 4 else 7
        data += chain(known, 3)
        entries = [*made.offsets[:3], *[0] * (known - 3), at]
        hint = IndexHint(BytesSource(index_file(0, *entries)), 0, 128)
        found = searcher(data, hint).find(start, 3)
        if proof == "chain":
            assert found == Resumption(start + 50, 4, 4, "chain")
        else:
            assert found == Resumption(at, known, known, "index")


@pytest.mark.parametrize("agrees", [False, True])
def test_the_last_of_several_chains_is_the_one_that_reaches_the_end(agrees: bool) -> None:
    """In front of it is one that does not; they are no data then, whatever the damaged one is taken for."""
    made = segment_of(make_records(4, size=30))
    start = made.offsets[3]
    inside = b"." * 5 + chain(4, 1) + b"-" * 9 + chain(5, 2)
    if agrees:  # with the checksum of its data it closes at the end, as the last record does
        head = struct.pack(">q16siiI", 3, b"\1" * 16, 0, -5, zlib.crc32(inside[:-4]))
    else:  # it looks torn
        head = struct.pack(">q16siiI", 3, b"\1" * 16, 0, len(inside) + 1, 5)
    found = searcher(made.data[:start] + head + inside).find(start, 3)
    assert found == Resumption(start + 41, 4, 4, "chain")


def test_an_entry_may_lead_to_the_very_next_byte() -> None:
    front = segment_of(make_records(2, size=30)).data
    data = front + b"\xee" + chain(2, 1)
    hint = IndexHint(BytesSource(index_file(0, 0, 0, len(front) + 1)), 0, 128)
    assert searcher(data, hint).by_index(len(front), 2) == Found(len(front) + 1, 2, len(data))


def test_what_looks_torn_in_front_of_a_record_that_the_index_proves_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is searched for a better chain as far as any other is: for one that repeats the first, and leads to that record."""
    monkeypatch.setattr(resync, "CONFLICT_WINDOW", 40)
    made = segment_of(make_records(4, size=60))
    start = made.offsets[3]
    head = struct.pack(">q16siiI", 3, b"\1" * 16, 0, 1 << 20, 5)
    for gap, seen in ((39, True), (40, False)):
        data = made.data[:start] + head + chain(4, 1) + b"\xee" * gap + chain(4, 2)
        at = len(data)
        hint = IndexHint(BytesSource(index_file(0, *made.offsets[:3], 0, 0, 0, at)), 0, 128)
        found = searcher(data + chain(6, 2), hint).find(start, 3)
        assert found == Resumption(start + 36 + (len(chain(4, 1)) + gap if seen else 0), 4, 4, "chain")


@pytest.mark.parametrize("length", [-5, 10**9])
@pytest.mark.parametrize("inside", [b"", b"." + chain(4, 1), b"." + chain(4, 2) + b"-" + chain(7, 3) + b"--"])
def test_a_damaged_record_that_closes_at_the_end_holds_what_looks_like_records(length: int, inside: bytes) -> None:
    """Its length is wrong and nothing else; behind the same bytes a record that follows is found."""
    records = make_records(4, size=30)
    records[3] = type(records[3]).make(3, records[3].request_id, 1, b"x" + inside + b"y")
    made = segment_of(records)
    data = bytearray(made.data)
    data[made.offsets[3] + 28 : made.offsets[3] + 32] = length.to_bytes(4, signed=True)
    assert searcher(bytes(data)).find(made.offsets[3], 3) is None
    behind = Resumption(len(data), 4, 4, "checksum")
    assert searcher(bytes(data) + made_up_record(4, 9)).find(made.offsets[3], 3) == behind
