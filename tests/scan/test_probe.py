"""Places looked at one by one: every bound with one step to each side, in granules and windows of a few bytes."""

from __future__ import annotations

import random
import struct
import zlib
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from waltzctl.engine.scan import probe as probes
from waltzctl.engine.scan.byte_source import BytesSource
from waltzctl.engine.scan.kernel import OVERHEAD, made_up_record
from waltzctl.engine.scan.probe import BudgetExhaustedError, Candidates, Found, Header, Probe, SearchBudget

GRANULE, CACHE = 64, 256
MAX_ID = 2**63 - 1
properties = settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(autouse=True, scope="module")
def small() -> Iterator[None]:
    """Granules and reads of a few bytes, so that short data takes the ways of long ones."""
    with pytest.MonkeyPatch.context() as patch:
        for name, size in (("GRANULE", GRANULE), ("CACHE", CACHE), ("FORGET_AFTER", 4 * GRANULE), ("FLAT_CHARGE", 3)):
            patch.setattr(probes, name, size)
        yield


class Counted(BytesSource):
    """Notes every read."""

    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        self.reads: list[tuple[int, int]] = []

    def read_into(self, offset: int, buffer: memoryview) -> int:
        self.reads.append((offset, len(buffer)))
        return super().read_into(offset, buffer)


def probe_of(data: bytes, *, stop: int | None = None, longest: int = 1 << 20, limit: int = 2**62) -> Probe:
    return Probe(BytesSource(data), len(data) if stop is None else stop, longest, SearchBudget(limit))


def test_a_budget_is_used_up_behind_its_last_byte() -> None:
    budget = SearchBudget(10)
    budget.spend(4)
    budget.spend(6)
    assert budget.spent == 10
    with pytest.raises(BudgetExhaustedError):
        budget.spend(1)
    assert budget.spent == 11
    with pytest.raises(BudgetExhaustedError):
        SearchBudget(0).spend(1)


@properties
@given(st.lists(st.tuples(st.integers(0, 1100), st.integers(0, 2 * GRANULE)), max_size=12), st.integers(900, 1000))
def test_bytes_are_read_up_to_the_stop(wanted: list[tuple[int, int]], stop: int) -> None:
    data = random.Random(stop).randbytes(1000)
    probe = probe_of(data, stop=stop)
    for offset, length in wanted:
        assert bytes(probe.read(offset, length)) == data[:stop][offset : offset + length]


def test_what_is_at_hand_is_not_read_again() -> None:
    source = Counted(bytes(1000))
    probe = Probe(source, 1000, 100, SearchBudget(2**62))
    for offset, length in ((100, 10), (100, CACHE), (100 + CACHE - 1, 1), (100 + CACHE, 0), (200, 50)):
        probe.read(offset, length)
    assert source.reads == [(100, CACHE)]
    probe.read(100 + CACHE, 1)
    probe.read(99, 1)
    probe.read(900, 100)
    probe.read(900, 101)
    assert source.reads[1:] == [(100 + CACHE, CACHE), (99, CACHE), (900, 100)]


@pytest.mark.parametrize(("size", "there"), [(35, False), (36, True), (37, True)])
def test_a_header_and_a_word_stand_wholly_before_the_stop(size: int, *, there: bool) -> None:
    raw = made_up_record(7, 5)
    header = probe_of(b"ab" + raw, stop=2 + size).header(2)
    if not there:
        assert header is None
    else:
        assert header == Header(raw[:36], 7, 5, int.from_bytes(raw[32:36]))
    assert probe_of(raw, stop=size).word(32) == (int.from_bytes(raw[32:36]) if there else -1)


@pytest.mark.parametrize(
    ("length", "stop", "end"),
    [
        (0, 42, 42),
        (0, 41, None),
        (9, 51, 51),
        (9, 50, None),
        (10, 60, 52),
        (11, 60, None),
        (-1, 60, None),
        (-(2**31), 60, None),
    ],
)
def test_where_a_record_ends_by_its_own_length(length: int, stop: int, end: int | None) -> None:
    probe = probe_of(bytes(60), longest=10)
    header = Header(bytes(36), 1, length, 0)
    assert probe.end_of(2, header, stop) == end
    probe.stop = stop
    assert probe.end_of(2, header) == end


def test_fields_of_a_header_are_replaced_in_their_places() -> None:
    raw = bytes(range(36))
    header = Header(raw, 0, 0, 0)
    assert header.replaced() == raw
    assert header.replaced(data_length=-2) == raw[:28] + b"\xff\xff\xff\xfe" + raw[32:]
    assert header.replaced(transaction_id=-2, data_checksum=2**32 - 1) == (
        b"\xff" * 7 + b"\xfe" + raw[8:32] + b"\xff" * 4
    )


@properties
@given(st.lists(st.tuples(st.integers(0, 1500), st.integers(0, 1500)), min_size=1, max_size=12), st.integers(0, 5))
def test_checksums_of_spans_of_any_length_in_any_order(spans: list[tuple[int, int]], seed: int) -> None:
    """Short ones from their bytes, long ones from checkpoints, which begin anew in front of them or far behind."""
    data = random.Random(seed).randbytes(1500)
    probe = probe_of(data)
    for one, other in spans:
        start, end = sorted((one, other))
        assert probe.crc(start, end) == zlib.crc32(data[start:end])
        if (one + other) % 3 == 0:
            probe.forget(start)


def test_what_a_checksum_costs() -> None:
    """Its bytes up to two granules; behind that a granule for each checkpoint, once, and the rests of both ends."""
    probe = probe_of(bytes(2000))

    def cost(start: int, end: int) -> int:
        before = probe.budget.spent
        probe.crc(start, end)
        return probe.budget.spent - before

    assert cost(10, 10 + 2 * GRANULE) == 2 * GRANULE + 3
    assert cost(0, 130) == 2 * GRANULE + 2 + 3 + 3
    assert cost(0, 130) == 2 + 3 + 3
    assert cost(5, 135) == 7 + 3 + 5 + 3
    assert cost(0, 330) == 3 * GRANULE + 10 + 3 + 3
    assert cost(300, 460) == 2 * GRANULE + 12 + 3 + 44 + 3
    assert cost(448, 448 + 129) == 2 * GRANULE + 1 + 3 + 3
    assert cost(0, 130) == 2 + 3 + 3
    probe = probe_of(bytes(2000))
    probe.crc(0, 140)
    assert cost(128, 128 + 129) == 2 * GRANULE + 1 + 3 + 3
    assert cost(257, 257 + 129) == 2 * GRANULE + 1 + 3 + 3  # behind the last checkpoint, so that they begin anew there
    assert cost(256, 256 + 129) == 2 * GRANULE + 1 + 3 + 3  # in front of the first


@pytest.mark.parametrize("begin", [0, 100])
@pytest.mark.parametrize(("far", "kept"), [(4 * GRANULE, True), (4 * GRANULE + 1, False)])
def test_checkpoints_far_behind_are_given_up(begin: int, far: int, *, kept: bool) -> None:
    probe = probe_of(bytes(2000))
    probe.crc(begin, begin + 300)
    spent = probe.budget.spent
    probe.forget(begin + far)
    probe.crc(begin, begin + 300)
    assert (probe.budget.spent - spent == 300 % GRANULE + 6) == kept


@pytest.mark.parametrize(
    ("begin", "size", "at_hand"),
    [
        (0, 40, True),
        (100, CACHE - 140, True),
        (100, CACHE - 139, False),
        (CACHE - 41 - 2 * GRANULE, 2 * GRANULE, True),
        (CACHE - 41 - 2 * GRANULE, 2 * GRANULE + 1, False),
        (CACHE - 40, 0, True),
        (CACHE - 39, 0, False),
        (CACHE - 36, 0, False),
        (CACHE - 35, 0, False),
    ],
)
def test_a_record_that_is_at_hand_costs_its_data_alone(begin: int, size: int, *, at_hand: bool) -> None:
    """Any other one costs what the checksum of all of it does; both are found, up to the stop and the bound."""
    for lead in (0, 50):
        raw = made_up_record(6, size)
        data = bytes(lead + begin) + raw + bytes(3 * CACHE)
        for stop, longest, found in ((0, size, True), (-1, size, False), (0, size - 1, False)):
            probe = probe_of(data, longest=longest)
            probe.read(lead, 1)
            place = lead + begin
            end = place + len(raw)
            wanted = Found(place, 6, end) if found else None
            assert probe.check(place, end + stop) == wanted
            if found:
                whole = len(raw) - 4
                slow = whole + 3 if whole <= 2 * GRANULE else whole // GRANULE * GRANULE + whole % GRANULE + 6
                assert probe.budget.spent == (size + 3 if at_hand else slow)
            probe.stop = end + stop
            assert probe.check(place) == wanted


def test_no_length_below_zero_is_believed_whatever_the_checksum_says() -> None:
    head = struct.pack(">q16siiI", 5, b"\1" * 16, 0, -1, 0)[:35]
    data = head + zlib.crc32(head).to_bytes(4) + bytes(CACHE)
    assert probe_of(data).check(0) is None
    probe = probe_of(data)
    probe.read(0, 1)
    assert probe.check(0) is None


def _word(data: bytes | bytearray, place: int) -> int:
    return int.from_bytes(data[place : place + 4])


@properties
@given(
    st.lists(st.sampled_from([0, 1, 60, 87, 88, 89, 90, 127, 128, 129, 130, 200, 300]), min_size=1, max_size=6),
    st.integers(0, 60),
    st.lists(st.tuples(st.integers(0, 2000), st.integers(1, 255)), max_size=2),
    st.integers(0, 90),
)
def test_records_are_found_as_the_oracle_finds_them(
    lengths: list[int], lead: int, changes: list[tuple[int, int]], cut: int
) -> None:
    """At every place, near the end of what was read and far from it, with a stop of its own and without."""
    data = bytearray(bytes(lead) + b"".join(made_up_record(5 + n, length) for n, length in enumerate(lengths)))
    for place, mask in changes:
        data[place % len(data)] ^= mask
    stop = max(0, len(data) - cut)
    near, bounded = probe_of(bytes(data), longest=200), probe_of(bytes(data), stop=stop, longest=200)
    for place in range(len(data)):
        wanted = None
        if place + OVERHEAD <= len(data):
            length = int.from_bytes(data[place + 28 : place + 32], signed=True)
            end = place + OVERHEAD + length
            if 0 <= length <= 200 and end <= len(data) and zlib.crc32(data[place : end - 4]) == _word(data, end - 4):
                wanted = Found(place, int.from_bytes(data[place : place + 8], signed=True), end)
        short = wanted if wanted is not None and wanted.end <= stop else None
        fresh = probe_of(bytes(data), longest=200)
        assert near.check(place) == fresh.check(place) == wanted
        assert near.check(place, stop) == bounded.check(place) == short
    for probe in (near, bounded):
        forwards = [probe.check(place) for place in range(len(data))]
        backwards = [probe.check(place) for place in reversed(range(len(data)))]
        assert backwards[::-1] == forwards


def _damaged(raw: bytes, **changed: bytes) -> bytes:
    places = {"id": (0, 8), "length": (28, 32), "data_sum": (32, 36), "data": (36, 37), "sum": (len(raw) - 4, len(raw))}
    found = bytearray(raw)
    for name, content in changed.items():
        start, end = places[name]
        found[start:end] = content
    return bytes(found)


_WRONG_LENGTH, _WRONG_ID, _WRONG_SUM = b"\0\0\0\x03", b"\xee" * 8, b"\x12\x34\x56\x78"


@pytest.mark.parametrize("size", [1, 30, 129])
@pytest.mark.parametrize(
    ("changed", "proven"),
    [
        ({}, True),
        ({"length": _WRONG_LENGTH}, True),
        ({"id": _WRONG_ID}, True),
        ({"id": _WRONG_ID, "length": _WRONG_LENGTH}, True),
        ({"sum": _WRONG_SUM}, True),
        ({"data_sum": _WRONG_SUM}, True),
        ({"data_sum": _WRONG_SUM, "length": _WRONG_LENGTH}, True),
        ({"data_sum": _WRONG_SUM, "id": _WRONG_ID}, True),
        ({"data_sum": _WRONG_SUM, "id": _WRONG_ID, "length": _WRONG_LENGTH}, True),
        ({"data": b"?"}, True),
        ({"data": b"?", "length": _WRONG_LENGTH}, True),
        ({"data": b"?", "id": _WRONG_ID, "length": _WRONG_LENGTH}, True),
        ({"data": b"?", "data_sum": _WRONG_SUM}, False),
        ({"data": b"?", "sum": _WRONG_SUM}, False),
        ({"data_sum": _WRONG_SUM, "sum": _WRONG_SUM}, False),
    ],
)
def test_a_damaged_record_closes_where_its_checksums_say_so(
    size: int, changed: dict[str, bytes], *, proven: bool
) -> None:
    raw = made_up_record(4, size)
    data = _damaged(raw, **changed)
    if changed.get("data") and size == 1:
        assert data[36] != raw[36]
    probe = probe_of(b"-" + data + b"----")
    assert probe.closes(1, 4, 1 + len(data)) == proven
    assert not probe.closes(1, 4, len(data))
    assert not probe.closes(1, 4, 2 + len(data))


def test_nothing_closes_with_an_impossible_length_or_no_data_to_agree() -> None:
    raw = made_up_record(4, 10)
    assert probe_of(raw, longest=10).closes(0, 4, 50)
    assert not probe_of(raw, longest=9).closes(0, 4, 50)
    assert not probe_of(raw[:35] + bytes(20), stop=35).closes(0, 4, 50)
    empty = made_up_record(4, 0)
    assert probe_of(empty).closes(0, 4, 40)
    assert not probe_of(empty).closes(0, 4, 39)
    broken = _damaged(empty, sum=_WRONG_SUM)
    assert not probe_of(broken).closes(0, 4, 40)  # the checksum of no data agrees with every record that has none


def _plain(
    data: bytes, begin: int, stop: int, lowest: int, highest: int, origin: int | None, longest: int
) -> list[int]:
    """The definition of a candidate, place by place."""
    found = []
    for place in range(begin, stop - OVERHEAD + 1):
        number, length = struct.unpack_from(">q20xi", data, place)
        most = highest if origin is None else highest + (place - origin) // OVERHEAD
        if (
            lowest <= number <= min(most, MAX_ID)
            and 0 <= length <= longest
            and place + OVERHEAD + length <= stop
            and any(data[place : place + OVERHEAD])
        ):
            found.append(place)
    return found


_IDS = st.sampled_from([0, 1, 4, 5, 6, 8, 9, 10, 11, 12, 13, 255, 256, 2**32, MAX_ID - 1, MAX_ID, -1, -(2**63)])
_BOUNDS = st.sampled_from(
    [
        (0, 10, True),
        (5, 9, True),
        (-1, 10, True),
        (MAX_ID - 1, MAX_ID + 4095, True),
        (255, 2**32, True),
        (0, 2**56 - 1, False),
        (5, MAX_ID, False),
        (256, 2**32, False),
        (5, 9, False),
        (-(2**63), MAX_ID, True),
        (-(2**63), MAX_ID - 1, True),
        (-(2**70), 2**70, True),
        (-(2**70), 2**70, False),
        (MAX_ID + 1, 2**70, True),
        (-(2**70), -(2**63) - 1, False),
        (9, 5, False),
    ]
)
_HEADS = st.tuples(
    _IDS, st.sampled_from([0, 1, 2, 99, 100, 101, 300, 2**24, 2**31 - 1, -1, -(2**31)]), st.integers(0, 90)
)


@properties
@given(
    st.lists(_HEADS, max_size=12),
    st.integers(0, 30),
    _BOUNDS,
    st.integers(0, 50),
    st.sampled_from([100, 2**24 - 1, 2**24, 2**31 - 1]),
)
def test_candidates_are_what_they_are_defined_as(
    heads: list[tuple[int, int, int]], begin: int, ids: tuple[int, int, bool], cut: int, longest: int
) -> None:
    data = b"\x07" * 25 + b"".join(struct.pack(">q20xi", a, b) + (b"\0" * c) for a, b, c in heads) + b"\0" * 60
    stop = max(begin + 1, len(data) - cut)
    lowest, highest, risen = ids
    origin = begin - 1 if risen else None
    probe = probe_of(data, stop=stop, longest=longest)
    candidates = Candidates(probe, begin, stop, lowest, highest, origin)
    found, place = [], begin
    while (next_one := candidates.following(place, stop)) is not None:
        found.append(next_one)
        place = next_one + 1
    assert found == _plain(data, begin, stop, lowest, highest, origin, longest)


@pytest.mark.parametrize(("longest", "found"), [((1 << 24) - 1, None), (1 << 24, 5), ((1 << 25) - 1, 5)])
def test_a_candidate_may_be_as_long_as_a_record(longest: int, found: int | None) -> None:
    """A length of four bytes, the first of which is not zero."""
    data = b"\x07" * 5 + struct.pack(">q20xi", 5, 1 << 24) + bytes((1 << 24) + 8)
    assert Candidates(probe_of(data, longest=longest), 0, len(data), 5, 5, None).following(0, 100) == found


def test_candidates_before_a_horizon_only() -> None:
    data = b"\x07" * 300 + struct.pack(">q20xi", 5, 0) + b"\x07" * 300
    for horizon, found in ((300, None), (301, 300), (10**6, 300)):
        candidates = Candidates(probe_of(data), 0, len(data), 0, 10, None)
        assert candidates.following(0, horizon) == found
        assert candidates.following(0, len(data)) == 300
        assert candidates.following(301, len(data)) is None


def test_a_search_costs_a_quarter_of_its_bytes_and_nothing_twice() -> None:
    data = b"\x07" * 1000
    probe = probe_of(data)
    candidates = Candidates(probe, 10, 1000, 0, 10, None)
    assert candidates.following(10, 1000) is None
    spent = probe.budget.spent
    assert 950 // 4 - 8 <= spent <= 951 // 4
    assert candidates.following(10, 1000) is None
    assert probe.budget.spent == spent


def test_a_search_beyond_what_is_there_any_more_finds_nothing() -> None:
    data = b"\x07" * 100
    probe = probe_of(data)
    assert Candidates(probe, 0, 10_000, 0, 10, None).following(0, 10_000) is None


def test_entries_of_an_index_are_no_candidates_where_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    index = b"".join(struct.pack(">q", 128 + 40 * n) for n in range(200))
    behind = made_up_record(9, 3)
    data = index + behind
    monkeypatch.setattr(probes, "CACHE", 1 << 14)

    def found(origin: int | None) -> list[int]:
        candidates = Candidates(probe_of(data), 0, len(data), 0, 2**40, origin)
        places, place = [], 0
        while (one := candidates.following(place, len(data))) is not None:
            places.append(one)
            place = one + 1
        return places

    told = found(None)
    assert len(index) in told
    assert len(told) < len(found(-1))
    every = _plain(data, 0, len(data), 0, 2**40, None, 1 << 20)
    most = 2000 // len(every)
    data += b"\x07" * (OVERHEAD - 1 + most * len(every) - len(data))
    every = _plain(data, 0, len(data), 0, 2**40, None, 1 << 20)
    most = (len(data) - OVERHEAD + 1) // len(every)
    for crowd, wanted in ((1, every), (most, every), (most + 1, told)):
        monkeypatch.setattr(probes, "CROWD", crowd)
        assert found(None) == wanted


@pytest.mark.parametrize("number", [-(2**63), 1 - 2**63, -1, 0, 2**63 - 2, 2**63 - 1])
@pytest.mark.parametrize("origin", [None, 0])
def test_the_smallest_and_the_largest_id_are_candidates_whatever_bounds_them(number: int, origin: int | None) -> None:
    data = b"\x07" * 20 + made_up_record(number, 0)
    for lowest, highest, found in (
        (-(2**70), 2**70, True),
        (number, number, True),
        (number - 2**70, number, True),
        (number, number + 2**70, True),
        (number + 1, number + 2, False),
        (number + 1, 2**70, False),
        (-(2**70), number - 1, False),
    ):
        candidates = Candidates(probe_of(data), 0, len(data), lowest, highest, origin)
        assert candidates.following(20, len(data)) == (20 if found else None)
