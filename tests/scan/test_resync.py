"""What lies inside a damaged record's data must not be taken for the segment: fakes, copies, lying lengths, hostile files."""

from __future__ import annotations

import random
import struct
import time
import zlib
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.builders import make_records
from tests.scan.oracle import Segment, assert_tiles, segment_of, split
from waltzctl.engine.scan import probe as probes
from waltzctl.engine.scan import resync, scanner
from waltzctl.engine.scan.byte_source import BytesSource
from waltzctl.engine.scan.columns import Damage, DamageCause, RecordBatch
from waltzctl.engine.scan.kernel import INTERPRETED, made_up_record
from waltzctl.engine.scan.probe import Probe, SearchBudget
from waltzctl.engine.scan.scanner import scan_records
from waltzctl.formats.request_id import RequestId
from waltzctl.formats.segment import Record, encode_records

REQUEST = RequestId(1, 2, 3, 4)


def record(number: int, data: bytes) -> Record:
    return Record.make(number, REQUEST, number, data)


def fake_chain(first: int, count: int, size: int = 20) -> bytes:
    return encode_records([record(number, bytes([number & 0xFF]) * size) for number in range(first, first + count)])[0]


def outer(data: bytes, *, place: int = 5, count: int = 12) -> Segment:
    """A segment in which record `place` holds `data`."""
    records = make_records(count, size=60)
    records[place] = record(place, data)
    return segment_of(records)


def scan(data: bytes, index: bytes | None = None, first: int = 0, **options: object) -> tuple[list[int], list[Damage]]:
    source = None if index is None else BytesSource(index)
    items = list(scan_records(BytesSource(data), first_transaction_id=first, index=source, **options))  # type: ignore[arg-type]
    assert_tiles(items, 128, len(data))
    rows, damages = split(items)
    return [row[1] for row in rows], damages


FAKES: dict[str, Callable[[], bytes]] = {
    "one record with the next id": lambda: b"x" * 33 + fake_chain(6, 1) + b"y" * 50,
    "next id right at the start": lambda: fake_chain(6, 1) + b"y" * 50,
    "next id right at the end": lambda: b"x" * 33 + fake_chain(6, 1),
    "a chain with the next ids": lambda: b"x" * 33 + fake_chain(6, 4) + b"y" * 50,
    "a longer chain than what follows": lambda: b"x" * 7 + fake_chain(6, 40) + b"y" * 50,
    "a copy of the whole segment": lambda: segment_of(make_records(12, size=60)).data,
    "the record itself again": lambda: b"z" * 9 + fake_chain(5, 3),
    "ids somewhat ahead": lambda: bytes(800) + fake_chain(9, 2) + b"z" * 3,
    "two chains": lambda: fake_chain(6, 2) + b"-" + fake_chain(6, 5) + b"-" + fake_chain(7, 3),
    "a chain of empty records": lambda: fake_chain(6, 30, 0),
}

DAMAGES: dict[str, Callable[[bytearray, int, int], None]] = {
    "a bit of the data": lambda data, start, end: flip(data, end - 6),
    "first byte of the data": lambda data, start, end: flip(data, start + 36),
    "all data": lambda data, start, end: fill(data, start + 36, start + 39),
    "the id": lambda data, start, end: flip(data, start + 7),
    "the request id": lambda data, start, end: flip(data, start + 12),
    "the header": lambda data, start, end: flip(data, start + 26),
    "the data checksum": lambda data, start, end: flip(data, start + 33),
    "the record checksum": lambda data, start, end: flip(data, end - 1),
    "length zero": lambda data, start, end: set_length(data, start, 0),
    "length one more": lambda data, start, end: set_length(data, start, end - start - 39),
    "length one less": lambda data, start, end: set_length(data, start, end - start - 41),
    "length negative": lambda data, start, end: set_length(data, start, -5),
    "length beyond the end": lambda data, start, end: set_length(data, start, 10**6),
    "length and a bit of the data": lambda data, start, end: (set_length(data, start, 17), flip(data, end - 5))[0],
    "length and the id": lambda data, start, end: (set_length(data, start, 3), flip(data, start + 1))[0],
}


def flip(data: bytearray, place: int) -> None:
    data[place] ^= 0x20


def fill(data: bytearray, start: int, end: int) -> None:
    data[start:end] = bytes(byte ^ 0xFF for byte in data[start:end])


def set_length(data: bytearray, start: int, length: int) -> None:
    data[start + 28 : start + 32] = length.to_bytes(4, signed=True)


@pytest.mark.turns(8)
@pytest.mark.parametrize("with_index", [False, True], ids=["alone", "index"])
@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("fake", FAKES)
def test_fakes_inside_a_damaged_record(fake: str, damage: str, with_index: bool) -> None:
    made = outer(FAKES[fake]())
    data = bytearray(made.data)
    start, end = made.span(5)
    DAMAGES[damage](data, start, end)
    ids, damages = scan(bytes(data), made.index if with_index else None)
    assert ids == [0, 1, 2, 3, 4, *range(6, 12)]
    (found,) = damages
    assert (found.offset, found.length) == (start, end - start)
    assert (found.transaction_id, found.next_transaction_id) == (5, 6)
    assert found.proof == "index" if with_index else found.proof in ("length", "checksum")


@pytest.mark.turns(8)
@pytest.mark.parametrize("with_index", [False, True], ids=["alone", "index"])
@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("fake", FAKES)
def test_fakes_in_front_of_another_damaged_record(fake: str, damage: str, with_index: bool) -> None:
    """No intact record stands where the one with the fakes ends; that it ends there is proven all the same."""
    made = outer(FAKES[fake]())
    data = bytearray(made.data)
    start, end = made.span(5)
    DAMAGES[damage](data, start, end)
    flip(data, end + 26)
    ids, (found, *behind) = scan(bytes(data), made.index if with_index else None)
    assert ids == [0, 1, 2, 3, 4, *range(7, 12)]
    assert found.offset == start
    assert (behind[-1] if behind else found).end == made.span(7)[0]


@pytest.mark.parametrize(("ends", "believed"), [(2, True), (3, False)])
def test_so_many_ends_of_a_damaged_record_are_tried(
    ends: int, *, believed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its data holds the next id twice where no record is, and a record of it in front; behind it the next one is damaged."""
    monkeypatch.setattr(resync, "ENDS", ends)
    blank = (6).to_bytes(8) + bytes(40)
    made = outer(b"x" * 33 + fake_chain(6, 1) + blank + blank)
    data = bytearray(made.data)
    start, end = made.span(5)
    set_length(data, start, -5)
    flip(data, end + 26)
    ids, _ = scan(bytes(data))
    assert (6 in ids) == believed


@pytest.mark.parametrize(("size", "held"), [(0, True), (1, False)])
def test_what_a_record_whose_end_is_gone_holds_of_its_own_id_is_its_data(size: int, *, held: bool) -> None:
    """Zeros stand in its end and behind it, so nothing proves that; by its own length the copy ends with it, or behind."""
    content = b"x" * 33 + fake_chain(5, 1)
    made = outer(content + b"y" * 20)
    start, _ = made.span(5)
    data = bytearray(made.data)
    behind = start + 36 + len(content)
    data[behind:] = bytes(len(data) - behind)
    set_length(data, start, len(content) - 4 - size)
    ids, damages = scan(bytes(data))
    assert ids == [0, 1, 2, 3, 4, *([] if held else [5])]
    assert damages[0].offset == start


@pytest.mark.parametrize("fake", FAKES)
def test_length_that_lies_right_to_a_fake(fake: str) -> None:
    """The damaged length leads exactly to a record inside the data, with the very id that should follow."""
    content = FAKES[fake]()
    made = outer(content)
    start, end = made.span(5)
    inside = Probe(BytesSource(content), len(content), 1 << 20, SearchBudget(2**40))
    heads = [place for place in range(len(content)) if inside.check(place) is not None]
    assert heads
    for head in heads[:4]:
        data = bytearray(made.data)
        set_length(data, start, max(head - 4, 0))
        ids, damages = scan(bytes(data))
        assert ids == [0, 1, 2, 3, 4, *range(6, 12)], head
        assert [(d.offset, d.length, d.next_transaction_id) for d in damages] == [(start, end - start, 6)]


@pytest.mark.parametrize("fake", FAKES)
def test_fakes_when_nothing_closes(fake: str) -> None:
    """Header and data are both damaged beyond proof: the chain to the end decides."""
    made = outer(FAKES[fake]())
    start, end = made.span(5)
    data = bytearray(made.data)
    for place in (start + 12, start + 30, start + 33, end - 5, end - 2):
        flip(data, place)
    ids, damages = scan(bytes(data))
    assert ids == [0, 1, 2, 3, 4, *range(6, 12)]
    assert [(d.offset, d.length, d.next_transaction_id, d.proof) for d in damages] == [(start, end - start, 6, "chain")]
    ids, damages = scan(bytes(data), made.index)
    assert ids == [0, 1, 2, 3, 4, *range(6, 12)]
    assert damages[0].proof == "index"


@pytest.mark.turns(10)
@pytest.mark.parametrize("fake", FAKES)
def test_fakes_in_a_torn_tail(fake: str) -> None:
    """The last record is cut off: nothing in it is believed, unless the cut is exactly behind a record inside it."""
    content = FAKES[fake]()
    made = outer(content, place=11)
    start, end = made.span(11)
    inside = Probe(BytesSource(content), len(content), 1 << 20, SearchBudget(2**40))
    ends = {start + 36 + found.end for place in range(len(content)) if (found := inside.check(place)) is not None}
    near = {size for one in (start, start + 36, end, *ends) for size in range(one - 2, one + 3)}
    for size in sorted(near & {*range(start + 1, end)} - ends | {*range(start + 1, end, 9)} - ends):
        ids, damages = scan(made.data[:size])
        assert ids == list(range(11))
        assert [(d.cause, d.offset, d.length) for d in damages] == [(DamageCause.TORN_TAIL, start, size - start)]


@pytest.mark.parametrize("length", [-(2**31), 0, 5])
@pytest.mark.parametrize("fake", FAKES)
def test_fakes_in_a_last_record_whose_length_is_damaged(fake: str, length: int) -> None:
    """By the checksum of its data it goes on to the end of the file, so that nothing in it follows it."""
    made = outer(FAKES[fake](), place=11)
    start, end = made.span(11)
    data = bytearray(made.data)
    set_length(data, start, length)
    ids, damages = scan(bytes(data[:end]))
    assert ids == list(range(11))
    assert [(d.cause, d.offset, d.length) for d in damages] == [(DamageCause.TORN_TAIL, start, end - start)]


def test_where_one_record_is_damaged_the_index_is_asked_before_anything_is_searched() -> None:
    made = outer(b"x" * 33)
    data = bytearray(made.data)
    flip(data, made.offsets[5] + 40)
    proofs = [[damage.proof for damage in scan(bytes(data), index)[1]] for index in (None, made.index)]
    assert proofs == [["length"], ["index"]]


def test_index_finds_what_nothing_else_proves() -> None:
    """Record 5 is damaged beyond proof, and so is record 8: its own chain is shorter than the one inside the data."""
    made = outer(b"x" * 33 + fake_chain(6, 9) + b"y" * 50)
    data = bytearray(made.data)
    start, end = made.span(5)
    for place in (start + 12, start + 30, start + 33, end - 5, end - 2):
        flip(data, place)
    fill(data, *made.span(8))
    ids, damages = scan(bytes(data), made.index)
    assert ids == [0, 1, 2, 3, 4, 6, 7, 9, 10, 11]
    assert [d.proof for d in damages] == ["index", "index"]


def test_index_that_lies() -> None:
    """Nothing in an index is checksummed; one that is wrong, short, shifted or rubbish costs nothing."""
    made = outer(fake_chain(6, 3) + b"..")
    start, end = made.span(5)
    data = bytearray(made.data)
    flip(data, end - 5)
    source = random.Random(1)
    shifted = made.index[:128] + made.index[136:]
    zeroed = made.index[:128] + bytes(len(made.index) - 128)
    huge = made.index[:128] + b"\x7f" * (len(made.index) - 128)
    negative = made.index[:128] + b"\xff" * (len(made.index) - 128)
    fooled = bytearray(made.index)
    fooled[128 + 6 * 8 :] = b"".join(struct.pack(">q", start + 36 + 60 * n) for n in range(3))
    other_first = made.index[:32] + struct.pack(">q", 3) + made.index[40:]
    for index in (b"", made.index[:100], made.index[:150], shifted, zeroed, huge, negative, other_first):
        assert scan(bytes(data), index)[0] == [0, 1, 2, 3, 4, *range(6, 12)]
    for _ in range(50):
        index = made.index[:128] + source.randbytes(source.randrange(200))
        assert scan(bytes(data), index)[0] == [0, 1, 2, 3, 4, *range(6, 12)]
    assert 6 in scan(bytes(data), bytes(fooled))[0]  # an index and data forged together are beyond telling


@pytest.mark.parametrize("second", [8, 60, 118])
def test_an_index_of_which_only_a_late_entry_is_right_hides_no_record(second: int) -> None:
    """Shifted by one, with its last entry twice, it proves the last record and no other; two records are damaged."""
    made = segment_of(make_records(120, size=60))
    index = made.index[:128] + made.index[136:] + made.index[-8:]
    data = bytearray(made.data)
    for number in (3, second):
        start, end = made.span(number)
        data[start:end] = bytes(end - start)
    ids = [one for one in range(120) if one not in (3, second)]
    assert scan(bytes(data))[0] == scan(bytes(data), index)[0] == ids


@given(
    size=st.sampled_from([0, 10, 60]),
    hurt=st.lists(
        st.tuples(st.sampled_from(["bit", "zeros", "noise"]), st.floats(0, 1), st.integers(1, 300)), max_size=4
    ),
    shift=st.integers(-3, 3),
    right=st.sets(st.integers(0, 39)),
)
def test_no_index_hides_what_is_found_without_one(
    size: int, hurt: list[tuple[str, float, int]], shift: int, right: set[int]
) -> None:
    """Whatever is damaged, and whichever entries are right: the others are those of neighbours."""
    made = segment_of(make_records(40, size=size))
    data, source = bytearray(made.data), random.Random(len(hurt))
    for kind, where, length in hurt:
        at = 128 + int(where * (len(data) - 129))
        if kind == "bit":
            data[at] ^= 1 << length % 8
        else:
            length = min(length, len(data) - at)
            data[at : at + length] = bytes(length) if kind == "zeros" else source.randbytes(length)
    entries = [made.offsets[one if one in right else (one + shift) % 40] for one in range(40)]
    index = made.index[:128] + b"".join(struct.pack(">q", one) for one in entries)
    assert set(scan(bytes(data))[0]) <= set(scan(bytes(data), index)[0])


def test_index_of_a_scan_that_starts_in_the_middle() -> None:
    made = outer(b"x" * 33 + fake_chain(6, 4) + b"y" * 50)
    data = bytearray(made.data)
    start, end = made.span(5)
    for place in (start + 12, start + 30, start + 33, end - 5, end - 2):
        flip(data, place)
    items = scan_records(
        BytesSource(bytes(data)), first_transaction_id=3, start=made.offsets[3], index=BytesSource(made.index)
    )
    rows, damages = split(items)
    assert [row[1] for row in rows] == [3, 4, *range(6, 12)]
    assert damages[0].proof == "index"


def test_several_damaged_records_in_a_row() -> None:
    made = segment_of(make_records(30, size=70))
    for first, last in ((4, 5), (4, 9), (0, 28), (20, 29), (0, 29)):
        for place in (3, 20, 50, 108):
            data = bytearray(made.data)
            for number in range(first, last + 1):
                flip(data, made.offsets[number] + place)
            ids, damages = scan(bytes(data))
            assert ids == [*range(first), *range(last + 1, 30)]
            assert len(damages) == 1
            assert damages[0].length == (last - first + 1) * 110
    data = bytearray(made.data)
    data[made.offsets[4] + 13 : made.offsets[9] + 11] = bytes(made.offsets[9] + 11 - made.offsets[4] - 13)
    assert scan(bytes(data))[0] == [*range(4), *range(10, 30)]


def test_junk_and_holes() -> None:
    """Bytes put in cost nothing but themselves; bytes cut out cost the records that they belonged to."""
    made = segment_of(make_records(40, size=0))
    source = random.Random(2)
    for size in (1, 7, 40, 400, 5000):
        at = made.offsets[9]
        ids, damages = scan(made.data[:at] + source.randbytes(size) + made.data[at:])
        assert ids == list(range(40))
        assert [(d.offset, d.length, d.transaction_id, d.next_transaction_id) for d in damages] == [(at, size, 9, 9)]
    for size in (1, 39, 41, 100, 399, 1000):
        at = made.offsets[3] + 17
        ids, damages = scan(made.data[:at] + made.data[at + size :])
        lost_up_to = 3 + (17 + size) // 40
        assert ids == [0, 1, 2, *range(lost_up_to + 1, 40)]


def test_page_of_zeros() -> None:
    source = random.Random(7)
    for seed in range(20):
        records = [record(n, source.randbytes(source.choice([0, 10, 100, 700]))) for n in range(200)]
        made = segment_of(records)
        start = source.randrange(len(made.data) // 4096) * 4096 or 4096
        data = bytearray(made.data)
        data[start : start + 4096] = bytes(len(data[start : start + 4096]))
        touched = [n for n in range(200) if data[slice(*made.span(n))] != made.data[slice(*made.span(n))]]
        for index in (None, made.index):
            ids, damages = scan(bytes(data), index)
            assert ids == [n for n in range(200) if n not in touched], seed
            assert len(damages) == 1


def test_zeros_up_to_the_end() -> None:
    """A file that was made longer in advance, or lost its last writes."""
    made = segment_of(make_records(10))
    for size in (1, 39, 40, 4096, 3 << 20):
        ids, damages = scan(made.data + bytes(size))
        assert ids == list(range(10))
        assert [(d.cause, d.length) for d in damages] == [(DamageCause.TORN_TAIL, size)]
    ids, damages = scan(made.data[:128] + bytes(1 << 20))
    assert (ids, len(damages)) == ([], 1)


# --- hostile files: the work is counted, not timed ------------------------------------------------------------------------


@pytest.fixture
def spent(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """What searching cost, in bytes of checksum; the sum is in the first place."""
    total = [0]
    original = SearchBudget.spend

    def spend(self: SearchBudget, amount: int) -> None:
        total[0] += amount
        original(self, amount)

    monkeypatch.setattr(SearchBudget, "spend", spend)
    return total


def hostile_headers(count: int, length: int, first: int = 6) -> bytes:
    """Headers back to back whose ids are plausible and whose long lengths all end inside the file."""
    return b"".join(struct.pack(">qqqiiI", first + n % 50, 1, 2, 3, length + n, 0) for n in range(count))


def test_many_candidates_with_long_lengths(spent: list[int]) -> None:
    """Every 36 bytes a record seems to begin that is megabytes long: quadratic for a scanner that computes them all."""
    content = hostile_headers(3000, 3 << 20) + bytes(4 << 20)
    made = outer(content)
    data = bytearray(made.data)
    set_length(data, made.offsets[5], 99)
    ids, damages = scan(bytes(data))
    assert ids == [0, 1, 2, 3, 4, *range(6, 12)]
    assert damages[0].proof == "checksum"
    naive = 3000 * (3 << 20)
    assert spent[0] < naive / 20
    assert spent[0] < scanner.BUDGET_BASE + scanner.BUDGET_PER_BYTE * len(data)


@pytest.mark.turns(10)
def test_chains_of_one(spent: list[int]) -> None:
    """Whole records with the same id over and over: each one a chain that contradicts the one before."""
    content = b"".join(made_up_record(6, 0) + b"!" for _ in range(4000))
    made = outer(content)
    data = bytearray(made.data)
    start, end = made.span(5)
    for place in (start + 12, start + 30, start + 33, end - 5, end - 2):
        flip(data, place)
    assert scan(bytes(data))[0] == [0, 1, 2, 3, 4, *range(6, 12)]
    assert spent[0] < 4000 * 3 * resync.FOLLOW_BLOCK


def test_everything_is_damaged(spent: list[int]) -> None:
    """A thousand damaged records: the work grows with the file, not with its square."""
    costs = []
    for count in (300, 600, 1200):
        spent[0] = 0
        made = segment_of(make_records(count, size=50))
        data = bytearray(made.data)
        for place in range(0, count - 1, 2):
            flip(data, made.offsets[place] + 40)
        ids, damages = scan(bytes(data))
        assert len(ids) == count // 2
        assert len(damages) == count // 2
        costs.append(spent[0])
    assert costs[2] < 2.2 * costs[1] < 5 * costs[0]


def test_budget_runs_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is left is one damage that says so; nothing before it is lost."""
    monkeypatch.setattr(scanner, "BUDGET_BASE", 0)
    monkeypatch.setattr(scanner, "BUDGET_PER_BYTE", 0)
    made = outer(bytes(100))
    data = bytearray(made.data)
    flip(data, made.offsets[5] + 40)
    ids, damages = scan(bytes(data))
    assert ids == [0, 1, 2, 3, 4]
    (found,) = damages
    assert (found.proof, found.cause, found.next_transaction_id) == ("budget", DamageCause.RECORD_CHECKSUM, None)
    assert found.end == len(data)
    swapped = made.data[: made.offsets[2]] + made.data[made.offsets[1] :]
    ids, damages = scan(swapped)
    assert (ids, damages[0].proof, damages[0].cause) == ([0, 1], "budget", DamageCause.RECORD_ORDER)


def test_looking_into_a_torn_end_is_paid_for_by_the_scan_that_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its data is full of headers without a record: where the budget does not reach over them nobody knows what is there."""
    headers = struct.pack(">q16siiI", 6, b"\1" * 16, 0, 1 << 10, 5) * 400
    made = outer(headers, place=5, count=6)
    data = bytearray(made.data)
    set_length(data, made.offsets[5], 1 << 20)
    for at in (made.offsets[5] + 12, len(data) - 10):  # beyond proof of where it ends
        flip(data, at)
    budget = SearchBudget(2**62)
    monkeypatch.setattr(
        scanner, "SearchBudget", lambda limit: budget if limit < 2**63 else SearchBudget(limit)
    )  # not that of describing what was found
    seen: list[tuple[str, int]] = []
    for less in (None, 0, 1):
        budget.limit, budget.spent = 2**62 if less is None else seen[0][1] - less, 0
        ids, (found,) = scan(bytes(data))
        assert (ids, found.holds_records) == ([0, 1, 2, 3, 4], False)
        seen.append((found.proof, budget.spent))
    assert [proof for proof, _ in seen] == ["end", "end", "budget"]
    assert seen[0][1] > 2 * 400 * probes.FLAT_CHARGE, "each header costs its look in the search, and in the torn end"


@pytest.mark.parametrize(
    ("place", "holds"), [("a bit of the data", False), ("length beyond the end", False), ("cut", True)]
)
def test_what_provably_ends_with_the_file_holds_data_and_no_records(place: str, holds: bool) -> None:
    """Records of the client's in the last one: its own checksums say where it ends, unless it was cut."""
    made = outer(b"x" * 33 + fake_chain(6, 2) + b"y" * 50, place=5, count=6)
    data = bytearray(made.data)
    if place == "cut":
        del data[-3:]
    else:
        DAMAGES[place](data, *made.span(5))
    ids, (found,) = scan(bytes(data))
    assert (ids, found.cause, found.proof) == ([0, 1, 2, 3, 4], DamageCause.TORN_TAIL, "end")
    assert found.holds_records == holds


def test_mebibytes_of_plausible_ids_take_bounded_time() -> None:
    """Small numbers everywhere look like ids and lengths; no wall clock is asserted beyond a generous bound."""
    source = random.Random(4)
    content = b"".join(struct.pack(">ii", 0, source.randrange(4000)) for _ in range(1 << 16))
    made = outer(content)
    data = bytearray(made.data)
    set_length(data, made.offsets[5], 10**9)
    begun = time.monotonic()
    assert scan(bytes(data))[0] == [0, 1, 2, 3, 4, *range(6, 12)]
    assert time.monotonic() - begun < 30


# --- the parts --------------------------------------------------------------------------------------------------------------


def test_checksums_of_spans_from_checkpoints() -> None:
    source = random.Random(8)
    data = source.randbytes(10 * probes.GRANULE + 777)
    probe = Probe(BytesSource(data), len(data), 1 << 30, SearchBudget(2**40))
    for _ in range(300):
        start = source.randrange(len(data))
        end = source.randrange(start, len(data) + 1)
        assert probe.crc(start, end) == zlib.crc32(data[start:end])
        if source.random() < 0.1:
            probe.forget(start)


def test_long_spans_cost_no_more_than_two_granules(spent: list[int]) -> None:
    data = random.Random(8).randbytes(200 * probes.GRANULE)
    probe = Probe(BytesSource(data), len(data), 1 << 30, SearchBudget(2**40))
    probe.crc(0, len(data))
    spent[0] = 0
    for start in range(100):
        probe.crc(start, len(data) - start)
    assert spent[0] <= 100 * (2 * probes.GRANULE + 2 * probes.FLAT_CHARGE)


def test_closing() -> None:
    """Damage to any one part of a record leaves a proof of where it ends; damage to several does not."""
    good = made_up_record(9, 500)

    def closes(data: bytes, end: int) -> bool:
        return Probe(BytesSource(data), len(data), 1 << 20, SearchBudget(2**40)).closes(0, 9, end)

    for start, end in ((0, 8), (8, 24), (24, 28), (28, 32), (32, 36), (36, 536), (536, 540), (200, 300)):
        data = bytearray(good + bytes(50))
        fill(data, start, end)
        assert closes(bytes(data), 540), (start, end)
        for wrong in (40, 41, 539, 541, 560):
            assert not closes(bytes(data), wrong)
    data = bytearray(good)
    fill(data, 20, 100)
    assert not closes(bytes(data), 540)
    assert not closes(bytes(600), 40)
    assert not closes(good, 39)


def test_follow_stops_where_it_is_told() -> None:
    made = segment_of(make_records(50, size=10))
    probe = Probe(BytesSource(made.data), len(made.data), 1 << 20, SearchBudget(2**40))
    search = resync.Resynchroniser(probe, INTERPRETED, resync.IndexHint(None, 0, 128))
    head = probe.check(128)
    assert head is not None
    assert search.follow(head, len(made.data)) == (len(made.data), 49, True)
    assert search.follow(head, len(made.data), 7) == (made.offsets[7], 6, False)
    assert search.follow(head, made.offsets[9] + 3) == (made.offsets[9], 8, False)


def test_batches_hold_their_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch is a copy: the walk behind it does not change it."""
    made = segment_of(make_records(400, size=100))
    data = bytearray(made.data)
    for place in range(0, 399, 3):
        flip(data, made.offsets[place] + 50)
    items = list(scan_records(BytesSource(bytes(data)), first_transaction_id=0, data=True))
    for item in items:
        if isinstance(item, RecordBatch):
            for place in range(len(item)):
                number = int(item.transaction_id[place])
                assert bytes(item.record_bytes(place)) == made.records[number].encode()


def test_looks_torn_is_believed_when_nothing_proves_otherwise() -> None:
    """The price of not believing records in a torn tail: length, checksum and data of one record, and the last record."""
    made = outer(bytes(60))
    data = bytearray(made.data)
    start, _ = made.span(5)
    data[start + 30 : start + 37] = b"\x7f" * 7
    assert scan(bytes(data))[0] == [0, 1, 2, 3, 4, *range(6, 12)]
    fill(data, *made.span(11))
    ids, damages = scan(bytes(data))
    assert ids == [0, 1, 2, 3, 4]
    assert damages[0].cause is DamageCause.TORN_TAIL
    assert scan(bytes(data), made.index)[0] == [0, 1, 2, 3, 4, *range(6, 11)]
