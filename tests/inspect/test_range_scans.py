"""Scans of a segment, whole and in part, on values: what is listed, read around, left unread and taken over."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.builders import make_records, segment_header
from waltzctl.engine.errors import DiskReadError
from waltzctl.engine.inspect import partial, record_checks
from waltzctl.engine.inspect.partial import PartialScan
from waltzctl.engine.inspect.read_limits import ReadLimits
from waltzctl.engine.inspect.record_checks import RangeScan, damage_finding, record_findings, tail_finding
from waltzctl.engine.inspect.segment_job import SegmentJob
from waltzctl.engine.log import bad_data
from waltzctl.engine.log.index import IndexReader, prove
from waltzctl.engine.scan.byte_source import BytesSource
from waltzctl.engine.scan.columns import Damage, DamageCause
from waltzctl.formats.checksums import crc32
from waltzctl.formats.segment import HEADER_SIZE, Record, encode_entries

SIZE = 60
RECORDS = make_records(40, size=20)
REQUEST = RECORDS[0].request_id


def at(number: int) -> int:
    return HEADER_SIZE + SIZE * number


def file_of(ids: Sequence[int] = range(20), *, broken: Sequence[int] = (), bad_data: Sequence[int] = ()) -> bytearray:
    """A data file with these records; those at some places are damaged, or hold data that is not what was sent."""
    data = bytearray(segment_header(0, 0).encode())
    for number in ids:
        data += Record.make(number, REQUEST, 0, RECORDS[number % 40].data).encode()
    for place in broken:
        data[at(place) + 40] ^= 1
    for place in bad_data:
        data[at(place) + 35] ^= 1
        end = at(place + 1)
        data[end - 4 : end] = crc32(bytes(data[at(place) : end - 4])).to_bytes(4)
    return data


class Places(BytesSource):
    """Cannot be read at some places."""

    def __init__(self, data: bytes | bytearray, *bad: int) -> None:
        super().__init__(data)
        self.bad = bad

    def read_into(self, offset: int, buffer: memoryview) -> int:
        for place in self.bad:
            if offset <= place < offset + len(buffer):
                raise DiskReadError(self.name, place, OSError(5, "made up"))
        return super().read_into(offset, buffer)


def index_of(count: int = 20, **changed: int) -> IndexReader:
    entries = [at(number) for number in range(count)]
    for name, entry in changed.items():
        entries[int(name[1:])] = entry
    return IndexReader(BytesSource(segment_header(0, 0).encode() + encode_entries(entries)), 0)


def scan_of(data: bytes | bytearray | BytesSource, index: IndexReader | None = None, **known: object) -> RangeScan:
    source = data if isinstance(data, BytesSource) else BytesSource(data)
    return RangeScan(source, 0, HEADER_SIZE, 0, ReadLimits(), index, **known)  # type: ignore[arg-type]


def advanced(data: bytes | bytearray | BytesSource, index: IndexReader | None = None) -> RangeScan:
    scan = scan_of(data, index)
    scan.advance(scan.source.size())
    return scan


# --- whole ------------------------------------------------------------------------------------------------------------------


def test_what_a_scan_counts() -> None:
    scan = advanced(file_of(), index_of())
    assert (scan.records, scan.position, scan.next_id, scan.last_id, scan.sound) == (20, at(20), 20, 19, True)
    assert scan.limits.bytes_read == 20 * SIZE
    scan = advanced(file_of(broken=[3, 7, 8]), index_of())
    assert (scan.records, scan.position, scan.next_id, scan.last_id, scan.sound) == (17, at(20), 20, 19, False)
    assert [(one.offset, one.length) for one in scan.damages] == [(at(3), SIZE), (at(7), 2 * SIZE)]
    assert scan.limits.bytes_read == 20 * SIZE
    assert scan.comparison is not None
    assert scan.comparison.wrong.count == 0
    torn = advanced(file_of()[:-1], index_of())
    assert (torn.records, torn.position, torn.next_id, torn.last_id) == (19, at(19), 19, 18)
    assert torn.tail is not None
    assert (torn.sound, torn.damages, torn.order_end) == (False, [], None)
    torn.advance(at(19))
    assert torn.tail is None
    bad = advanced(file_of(bad_data=[0, 5]))
    assert [(one.transaction_id, one.offset, one.length) for one in bad.bad_data] == [(0, at(0), 60), (5, at(5), 60)]
    assert (bad.records, bad.sound) == (20, False)
    assert bad.bad_data[0].checksums is not None
    stored, computed = bad.bad_data[0].checksums
    assert stored != computed


def test_a_scan_goes_on_and_stops_where_it_is_told() -> None:
    data = file_of()
    scan = scan_of(data)
    scan.advance(at(5))
    assert (scan.records, scan.next_id, scan.tail) == (5, 5, None)
    scan.advance(at(5) + 10)
    assert scan.tail is not None
    scan.advance(at(20))
    assert (scan.records, scan.next_id, scan.tail, scan.start, scan.first_id) == (20, 20, None, HEADER_SIZE, 0)
    damaged = scan_of(file_of(broken=[3, 10]))
    damaged.advance(at(20), until=at(3) + 1)
    assert (damaged.next_id, len(damaged.damages)) == (4, 1)
    exactly = scan_of(file_of(broken=[3, 10]))
    exactly.advance(at(20), until=at(3))
    assert (exactly.next_id, len(exactly.damages)) == (3, 0)


@pytest.mark.parametrize("most", [1, 2, 3, 4])
def test_as_many_places_as_are_listed(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_checks, "MAX_LISTED", most)
    scan = advanced(file_of(broken=[3, 9], bad_data=[6]))
    assert len(scan.damages) + len(scan.bad_data) == min(most, 3)
    assert scan.unlisted == max(0, 3 - most)
    assert scan.records == 18
    found = record_findings(JOB, scan)
    assert len(found) == min(most, 3) + (most < 3)
    if most < 3:
        assert f"{3 - most} more" in found[-1].message


def test_data_too_large_for_a_message_is_told_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    for most, length in ((20, 60), (19, None)):
        monkeypatch.setattr(bad_data, "MOST_HELD", most)
        assert [one.length for one in advanced(file_of(bad_data=[4])).bad_data] == [length]


@pytest.mark.parametrize(
    ("ids", "ends"), [([*range(10), 3, 4], True), ([*range(10), 3, 4, 10, 11], False), (range(10), False)]
)
def test_records_up_to_the_end_that_are_out_of_order(ids: Sequence[int], ends: bool) -> None:
    scan = advanced(file_of(ids))
    assert (scan.order_end is not None) == ends
    if ends:
        assert scan.order_end is scan.damages[-1]
        assert (scan.next_id, scan.position) == (10, at(12))
        scan.position -= 1
        assert scan.order_end is None


# --- places that cannot be read ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("skip", "bad", "resumed"),
    [(1, at(5) + 7, 6), (SIZE, at(5), 6), (SIZE, at(5) + 1, 7), (SIZE - 1, at(5) + 1, 6), (15 * SIZE, at(5), None)],
)
def test_a_place_that_cannot_be_read_is_read_around(
    skip: int, bad: int, resumed: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading goes on at the first record behind it that the index proves."""
    monkeypatch.setattr(record_checks, "_UNREADABLE", skip)
    monkeypatch.setattr("waltzctl.engine.scan.walk.BLOCK", 4096)
    source = Places(file_of(), bad)
    scan = advanced(source, index_of())
    (place,) = scan.unreadable
    assert (place.offset, place.resumed) == (bad, None if resumed is None else at(resumed))
    assert scan.open_end == (resumed is None)
    if resumed is not None:
        assert (scan.next_id, scan.last_id) == (20, 19)
        assert scan.records >= 20 - resumed
    without = advanced(Places(file_of(), bad))
    assert (without.unreadable[0].resumed, without.open_end) == (None, True)
    (found,) = [one for one in record_findings(JOB, scan) if one.code == "read-error"]
    assert found.length == (None if resumed is None else at(resumed) - bad)


@pytest.mark.parametrize("most", [1, 2, 3])
def test_a_file_with_too_many_such_places_is_given_up(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_checks, "_READ_ERRORS", most)
    monkeypatch.setattr(record_checks, "_UNREADABLE", 1)
    large = [Record.make(number, REQUEST, 0, bytes(6000)).encode() for number in range(8)]
    starts = [HEADER_SIZE + 6040 * number for number in range(8)]
    index = IndexReader(BytesSource(segment_header(0, 0).encode() + encode_entries(starts)), 0)
    data = segment_header(0, 0).encode() + b"".join(large)
    scan = advanced(Places(data, *(starts[number] + 5000 for number in (1, 3, 5))), index)
    assert len(scan.unreadable) == min(most + 1, 3)
    assert [one.resumed for one in scan.unreadable[:most]] == [starts[2], starts[4], starts[6]][:most]
    assert scan.open_end == (most < 3)


# --- a record that an index proves ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("entry", "stop", "proven"),
    [
        (at(5), at(6), True),
        (at(5), at(6) - 1, False),
        (at(5), at(5), False),
        (at(5) + 1, at(20), False),
        (at(6), at(20), False),
        (-1, at(20), False),
        (10**9, at(20), False),
    ],
)
def test_an_entry_proves_its_own_record(entry: int, stop: int, proven: bool) -> None:
    source, index = BytesSource(file_of()), index_of(e5=entry)
    found = prove(source, index, 5, stop)
    assert (found is not None) == proven
    assert prove(source, index, 20, at(20)) is None
    assert prove(source, index, -1, at(20)) is None


# --- joined ------------------------------------------------------------------------------------------------------------------


def test_what_another_scan_found_is_taken_over_once() -> None:
    data = file_of(broken=[3, 9], bad_data=[6])
    mine, other = advanced(data, index_of(e12=7)), advanced(data, index_of(e12=7))
    mine.adopt(other)
    assert ([one.offset for one in mine.damages], len(mine.bad_data)) == ([at(3), at(9)], 1)
    assert mine.comparison is not None
    assert mine.comparison.wrong.count == 1
    fresh = scan_of(data, index_of())
    other.unlisted = 2
    fresh.adopt(other)
    assert (len(fresh.damages), len(fresh.bad_data), fresh.unlisted, fresh.records) == (2, 1, 2, 0)
    assert fresh.comparison is not None
    assert (fresh.comparison.wrong.count, fresh.comparison.wrong.first) == (1, 12)
    alone = scan_of(data)
    alone.adopt(other)
    assert alone.comparison is None


def test_a_sound_scan_of_what_follows_is_taken_over() -> None:
    data = file_of()
    front = scan_of(data, index_of())
    front.advance(at(5))
    rest = RangeScan(front.source, 0, at(5), 5, ReadLimits(), index_of())
    rest.advance(at(20))
    front.append(rest)
    assert (front.records, front.position, front.next_id, front.last_id) == (20, at(20), 20, 19)
    nothing = RangeScan(front.source, 0, at(20), 20, ReadLimits(), index_of())
    front.append(nothing)
    assert (front.records, front.last_id) == (20, 19)
    jumped = scan_of(data)
    jumped.jump(11, at(12))
    assert (jumped.position, jumped.next_id, jumped.last_id, jumped.records) == (at(12), 12, 11, 12)


def test_suspicions_name_kind_place_and_id() -> None:
    scan = advanced(file_of(broken=[3], bad_data=[6]), index_of(e1=7))
    assert scan.suspicions() == {("record-checksum", at(3), 3), ("data", at(6), 6), ("index", 7, 1)}
    assert advanced(Places(file_of(), at(12))).suspicions() == {("unreadable", at(12), 0)}
    assert advanced(file_of()[:-1], index_of()).suspicions() == frozenset()


# --- words and weights ---------------------------------------------------------------------------------------------------------

JOB = SegmentJob(Path("/s/0"), 0, 0)


def tail(number: int, **known: object) -> Damage:
    fields: dict[str, object] = {
        "found_transaction_id": number, "found_length": 99, "stored_checksum": None, "computed_checksum": None,
    }  # fmt: skip
    fields |= known
    return Damage(DamageCause.TORN_TAIL, at(number), 7, number, None, proof="end", **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("number", "last", "mark", "durable", "severity", "said"),
    [
        (5, True, 4, -1, "repairable", "above the local low-water mark 4"),
        (5, True, 5, -1, "damage", "at or below the local low-water mark 5"),
        (5, True, 6, -1, "damage", "at or below the local low-water mark 6"),
        (5, True, 4, 4, "repairable", "above"),
        (5, True, 4, 5, "damage", "but transactions up to 5 were durable here"),
        (5, True, None, -1, "damage", "not known"),
        (5, False, 4, -1, "damage", "not the last"),
        (0, True, -1, -1, "repairable", "above the local low-water mark -1"),
    ],
)
def test_how_bad_a_torn_end_is(
    number: int, last: bool, mark: int | None, durable: int, severity: str, said: str
) -> None:
    job = SegmentJob(Path("/s/0"), 0, 0, last, local_low_water_mark=mark, durable_to=durable)
    found = tail_finding(job, tail(number))
    assert (found.severity.value, found.transaction_id, found.offset, found.length) == (severity, number, at(number), 7)
    assert said in found.message
    assert "makes a record of 139 bytes" in found.message
    assert "139" not in tail_finding(job, tail(number, found_length=-1)).message
    assert "a record of 40 bytes" in tail_finding(job, tail(number, found_length=0)).message
    whole = tail(number, stored_checksum=1, computed_checksum=2)
    assert "stored 00000001, computed 00000002" in tail_finding(job, whole).message
    assert "not even" in tail_finding(job, tail(number, found_length=None)).message


@pytest.mark.parametrize(
    ("known", "said"),
    [
        ({"stored": 1, "computed": 2}, "checksum stored 00000001, computed 00000002"),
        ({"stored": 1, "computed": 1, "found": 7}, "transaction 7 stands there"),
        ({"stored": 1, "computed": 1}, "its data length is 20"),
        ({"length": None}, "not even a record's header is whole"),
        ({"found": 7}, "its data length is 20"),
    ],
)
def test_what_stands_in_a_damaged_place(known: dict[str, int | None], said: str) -> None:
    for following, proof, behind in (
        (6, "chain", f"next valid record at offset {at(6)} (transaction 6)"),
        (None, "end", "nothing valid follows"),
        (None, "budget", "what follows was not examined"),
    ):
        damage = Damage(
            DamageCause.RECORD_CHECKSUM, at(5), SIZE, 5, following,
            known.get("found", 5), known.get("length", 20), known.get("stored"), known.get("computed"), proof,
        )  # fmt: skip
        found = damage_finding(JOB, damage)
        assert said in found.message
        assert behind in found.message
        assert (found.transaction_id, found.offset, found.length) == (5, at(5), SIZE)


# --- in part -------------------------------------------------------------------------------------------------------------------


def partly(
    data: bytes | bytearray | BytesSource,
    index: IndexReader | None,
    fraction: float | None = None,
    *,
    bodies: bool = True,
) -> RangeScan:
    scan = scan_of(data, index)
    PartialScan(scan, scan.source.size()).run(fraction, "seed", bodies=bodies)
    return scan


@pytest.fixture
def near(monkeypatch: pytest.MonkeyPatch) -> None:
    """What lies behind the last proven record is read for a few records only."""
    monkeypatch.setattr(partial, "TAIL", 3 * SIZE)
    monkeypatch.setattr(partial, "SEARCH", 4 * SIZE)
    monkeypatch.setattr(partial, "ZEROS", 1000)


@pytest.mark.parametrize("listed", [20, 19, 18, 11, 10, 1, 0])
@pytest.mark.usefixtures("near")
def test_both_ends_are_read_from_the_last_record_that_the_index_proves(listed: int) -> None:
    scan = partly(file_of(), index_of(listed))
    reached = min(20, listed + 3)
    assert (scan.next_id, scan.records, scan.last_id) == (reached, reached, reached - 1)
    assert scan.unread_tail == (reached < 20)
    assert (scan.damages, scan.tail) == ([], None)


@pytest.mark.parametrize("more", [1, 2, 5, 30])
def test_an_index_that_is_too_long_is_searched_from_its_end(more: int) -> None:
    reader = index_of(20 + more)
    scan = partly(file_of(), reader)
    assert (scan.next_id, scan.records, scan.unread_tail, scan.tail) == (20, 20, False, None)
    junk = IndexReader(
        BytesSource(segment_header(0, 0).encode() + encode_entries([at(n) for n in range(13)] + [7] * more)), 0
    )
    found = partly(file_of(), junk)
    assert (found.next_id, found.records) == (20, 20)
    assert found.comparison is not None
    assert found.comparison.wrong.count == more
    assert (found.comparison.wrong.first, found.comparison.wrong.last) == (13, 12 + more)
    between = partly(file_of(), index_of(e5=7))
    unread = partly(file_of(), index_of(e5=7), bodies=False)
    assert between.comparison is not None
    assert unread.comparison is not None
    assert (between.comparison.wrong.count, unread.comparison.wrong.count) == (1, 0)


def test_of_a_damaged_beginning_no_more_is_read_than_the_damage() -> None:
    """One byte that was put in in front of all records; what is damaged further on is left unread."""
    good = file_of(broken=[9])
    data = good[:HEADER_SIZE] + b"\xee" + good[HEADER_SIZE:]
    index = segment_header(0, 0).encode() + encode_entries([at(number) + 1 for number in range(20)])
    scan = partly(bytes(data), IndexReader(BytesSource(index), 0))
    assert [(one.offset, one.length) for one in scan.damages] == [(HEADER_SIZE, 1)]


@pytest.mark.parametrize("place", [0, 1, 9, 17, 19])
def test_damage_at_the_ends_is_seen_and_between_them_left_unread(place: int) -> None:
    scan = partly(file_of(broken=[place]), index_of())
    if place == 19:
        assert scan.tail is not None
        assert (scan.tail.offset, scan.next_id) == (at(19), 19)
    else:
        assert [one.offset for one in scan.damages] == ([at(0)] if place == 0 else [])
        assert (scan.tail, scan.next_id) == (None, 20)


@pytest.mark.parametrize("behind", [b"", b"torn"])
def test_a_damaged_last_record_is_a_torn_end_with_what_is_behind_it(behind: bytes) -> None:
    scan = partly(file_of(broken=[19]) + behind, index_of())
    assert scan.tail is not None
    assert (scan.tail.offset, scan.tail.length, scan.damages) == (at(19), SIZE + len(behind), [])


@pytest.mark.parametrize("zeros", [0, 3, 100])
@pytest.mark.usefixtures("near")
def test_what_is_behind_the_end_is_torn_where_it_is_short_or_zero(zeros: int) -> None:
    data = file_of() + bytes(SIZE * 9 + zeros)
    scan = partly(data, index_of())
    assert scan.tail is not None
    assert (scan.tail.offset, scan.tail.length, scan.damages) == (at(20), SIZE * 9 + zeros, [])
    data[-1] = 1
    other = partly(data, index_of())
    assert other.tail is None
    assert [(one.offset, one.length, one.proof) for one in other.damages] == [(at(20), SIZE * 9 + zeros, "budget")]
    assert other.open_end


@pytest.mark.usefixtures("near")
def test_records_behind_a_damaged_place_are_searched_for_a_while() -> None:
    for broken, found in ((range(10, 12), True), (range(10, 17), False)):
        scan = partly(file_of(broken=list(broken)), index_of(10))
        assert scan.damages
        assert (scan.next_id > 12) == found


@pytest.mark.usefixtures("near")
def test_a_record_that_reaches_beyond_what_is_read_is_read_whole() -> None:
    long = Record.make(10, REQUEST, 0, bytes(SIZE * 20)).encode()
    data = file_of(range(10)) + long
    scan = partly(data, index_of(10))
    assert (scan.next_id, scan.tail, scan.unread_tail) == (11, None, False)
    more = partly(data + Record.make(11, REQUEST, 0, b"x").encode(), index_of(10))
    assert (more.next_id, more.unread_tail) == (11, True)


@pytest.mark.usefixtures("near")
def test_behind_what_cannot_be_read_nothing_is_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partial, "TAIL", 400 * SIZE)
    scan = partly(Places(file_of(range(500)), at(300)), index_of(1))
    assert [one.offset for one in scan.unreadable] == [at(300)]
    assert (scan.open_end, scan.unread_tail) == (True, False)


@pytest.mark.usefixtures("near")
def test_the_length_of_another_record_than_the_next_does_not_lead_further() -> None:
    data = file_of(broken=range(11, 17))
    data[at(10) : at(11)] = Record.make(99, REQUEST, 0, bytes(SIZE * 9)).encode()[:SIZE]
    scan = partly(data, index_of(10))
    assert [(one.offset, one.length, one.proof) for one in scan.damages] == [(at(10), SIZE * 10, "budget")]


class Zeros(BytesSource):
    """Bytes, behind them zeros up to a size, and in these a record."""

    def __init__(self, data: bytes | bytearray, size: int, place: int = 0, record: bytes = b"") -> None:
        super().__init__(data)
        self._known, self._size, self._place, self._record = len(data), size, place, record

    def size(self) -> int:
        return self._size

    def read_into(self, offset: int, buffer: memoryview) -> int:
        count = max(0, min(len(buffer), self._size - offset))
        buffer[:count] = bytes(count)
        if offset < self._known:
            super().read_into(offset, buffer[:count])
        for at_byte in range(max(offset, self._place), min(offset + count, self._place + len(self._record))):
            buffer[at_byte - offset] = self._record[at_byte - self._place]
        return count


@pytest.mark.parametrize(("more", "unread"), [([], False), ([9], True)])
def test_8_mebibytes_are_read_behind_the_last_record_that_the_index_proves(more: list[int], *, unread: bool) -> None:
    long = [Record.make(number, REQUEST, 0, bytes((1 << 20) - 40)) for number in range(1, 9)]
    small = [Record.make(number, REQUEST, 0, b"x") for number in more]
    scan = partly(file_of([0]) + b"".join(one.encode() for one in [*long, *small]), index_of(1))
    assert (scan.next_id, scan.unread_tail, scan.damages, scan.tail) == (9, unread, [], None)


@pytest.mark.parametrize(("more", "found"), [(0, True), (1, False)])
def test_64_mebibytes_are_searched_for_records_behind_a_damaged_place(more: int, *, found: bool) -> None:
    record = Record.make(20, REQUEST, 0, b"x").encode()
    place = at(20) + (64 << 20) - len(record) + more
    scan = partly(Zeros(file_of(), place + 1000, place, record), index_of())
    assert (scan.records, scan.unread_tail) == ((21, True) if found else (20, False))
    assert [(one.offset, one.length) for one in scan.damages] == [(at(20), (place if found else place + 1000) - at(20))]


@pytest.mark.parametrize(("more", "torn"), [(0, True), (1, False)])
def test_256_mebibytes_behind_these_are_looked_at_for_zeros(more: int, *, torn: bool) -> None:
    size = at(20) + (64 << 20) + (256 << 20) + more
    scan = partly(Zeros(file_of(), size), index_of())
    assert (scan.tail is not None, [one.proof for one in scan.damages]) == (torn, [] if torn else ["budget"])


@pytest.mark.parametrize("fraction", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("indexed", [True, False])
def test_a_sample_of_all_is_all(fraction: float, indexed: bool) -> None:
    scan = partly(file_of(broken=[9]), index_of() if indexed else None, fraction)
    if fraction == 1.0 or not indexed:
        assert [one.offset for one in scan.damages] == [at(9)]
    assert (scan.next_id, scan.tail) == (20, None)


@pytest.mark.parametrize(("fraction", "read"), [(None, 20), (0.5, 30), (1.0, 40)])
def test_without_an_index_a_look_at_the_ends_reads_once(fraction: float | None, read: int) -> None:
    """And a sample reads its share from the beginning besides."""
    scan = scan_of(file_of())
    PartialScan(scan, at(20)).run(fraction, "seed", bodies=True)
    assert (scan.records, scan.next_id, scan.sound) == (20, 20, True)
    assert scan.limits.bytes_read == read * SIZE
