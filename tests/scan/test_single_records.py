"""Single records and what a damage says of its place: every value, with one step to each side of every bound."""

from __future__ import annotations

import mmap
import zlib

import pytest

from tests.builders import make_records
from tests.scan.oracle import segment_of, split
from waltzctl.engine.scan import scanner
from waltzctl.engine.scan.byte_source import BytesSource
from waltzctl.engine.scan.columns import Damage, DamageCause, RecordView
from waltzctl.engine.scan.kernel import made_up_record
from waltzctl.engine.scan.probe import SearchBudget
from waltzctl.engine.scan.scanner import read_record_at, scan_records

ORDER, LENGTH, TORN = DamageCause.RECORD_ORDER, DamageCause.RECORD_LENGTH, DamageCause.TORN_TAIL
CHECKSUM = DamageCause.RECORD_CHECKSUM
FRONT = 10


def read(data: bytes, expected_id: int | None = None, **options: int) -> RecordView | Damage:
    return read_record_at(BytesSource(bytes(FRONT) + data), FRONT, expected_id=expected_id, **options)


def with_length(record: bytes, length: int) -> bytes:
    return record[:28] + length.to_bytes(4, signed=True) + record[32:]


@pytest.mark.parametrize("length", [0, 1, 4055, 4056, 4057, 9000])
def test_a_record_is_read_whole_whether_or_not_it_comes_with_the_first_bytes(length: int) -> None:
    record = made_up_record(7, length)
    for behind in (b"", b"\xee" * 50):
        view = read(record + behind, 7)
        assert isinstance(view, RecordView)
        assert (view.offset, view.transaction_id, view.end) == (FRONT, 7, FRONT + 40 + length)
        assert (bytes(view.record), bytes(view.data), view.data_ok) == (record, record[36:-4], True)
        assert view.record.readonly
        assert (view.data_checksum, view.record_checksum) == (zlib.crc32(record[36:-4]), zlib.crc32(record[:-4]))
    other = record[:35] + bytes([record[35] ^ 1]) + record[36:-4]
    view = read(other + zlib.crc32(other).to_bytes(4))
    assert isinstance(view, RecordView)
    assert (view.transaction_id, view.data_ok) == (7, False)


@pytest.mark.parametrize(("expected_id", "told"), [(None, -1), (5, 5), (-1, -1), (0, 0)])
def test_what_is_told_of_a_place_without_a_record(expected_id: int | None, told: int) -> None:
    record = made_up_record(7, 9000)
    size = len(record)
    right = zlib.crc32(record[:-4])

    def damage(cause: DamageCause, length: int, *found: int | None, proof: str) -> Damage:
        return Damage(cause, FRONT, length, told, None, *found, proof=proof)

    nothing = (None, None, None, None)
    assert read(b"", expected_id) == damage(TORN, 0, *nothing, proof="end")
    assert read(record[:39], expected_id) == damage(TORN, 39, *nothing, proof="end")
    assert read(record, expected_id, limit=FRONT + 39) == damage(TORN, 39, *nothing, proof="end")
    assert read(record, expected_id, limit=FRONT - 1) == damage(TORN, 0, *nothing, proof="end")
    for data, options, length in (
        (record[:40], {}, 9000),
        (record[:-1], {}, 9000),
        (record, {"limit": FRONT + size - 1}, 9000),
        (record, {"max_record": 8999}, 9000),
        (with_length(record, -1), {}, -1),
        (with_length(record, -(2**31)), {}, -(2**31)),
    ):
        assert read(data, expected_id, **options) == damage(LENGTH, 0, 7, length, None, None, proof="length")
    wrong = record[:-1] + bytes([record[-1] ^ 1])
    stored = right ^ 1
    assert read(wrong, expected_id) == damage(CHECKSUM, size, 7, 9000, stored, right, proof="length")
    assert read(wrong, 7) == Damage(CHECKSUM, FRONT, size, 7, None, 7, 9000, stored, right, "length")
    if expected_id is not None:
        assert read(record, expected_id) == damage(ORDER, size, 7, 9000, right, right, proof="length")
    for options in ({"limit": FRONT + size}, {"limit": 10**9}, {"max_record": 9000}):
        assert isinstance(read(record, 7, **options), RecordView)


@pytest.mark.parametrize("left", [0, 1, 4903])
def test_a_record_that_ends_while_it_is_read_is_torn(left: int) -> None:
    """Its first bytes were there."""

    class Shrinking(BytesSource):
        def read_into(self, offset: int, buffer: memoryview) -> int:
            return super().read_into(offset, buffer if offset == FRONT else buffer[:left])

    record = made_up_record(7, 9000 - 40)
    found = read_record_at(Shrinking(bytes(FRONT) + record), FRONT, expected_id=None)
    assert found == Damage(TORN, FRONT, 4096 + left, -1, None, 7, 8960, None, None, "end")


@pytest.mark.parametrize(("length", "cause"), [(2**31 - 1, TORN), (-1, LENGTH)])
def test_a_record_of_any_length_is_read_where_nobody_says_otherwise(
    length: int, cause: DamageCause, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scanner, "bytearray", lambda size: mmap.mmap(-1, size), raising=False)  # taken where touched

    class Endless(BytesSource):
        def size(self) -> int:
            return 1 << 40

    found = read_record_at(Endless(with_length(made_up_record(7, 0), length)), 0, expected_id=7)
    assert isinstance(found, Damage)
    assert (found.cause, found.length) == (cause, 40 if cause is TORN else 0)


@pytest.mark.parametrize(("more", "told"), [(-1, False), (0, True), (1, True), (5000, True)])
def test_a_damage_tells_both_checksums_where_the_length_leads_to_a_place(more: int, *, told: bool) -> None:
    """Whatever its id; the checksum that it should have is that of the bytes in front of it."""
    made = segment_of(make_records(3, size=60))
    at, end = made.offsets[2], made.offsets[2] + 100 + 7
    data = bytearray(made.data + b"\x11" * (7 + more))
    data[at + 28 : at + 32] = (67).to_bytes(4)
    rows, (damage,) = split(scan_records(BytesSource(bytes(data)), first_transaction_id=0))
    assert len(rows) == 2
    assert (damage.found_transaction_id, damage.found_length, damage.proof) == (2, 67, "end")
    checksums = (int.from_bytes(data[end - 4 : end]), zlib.crc32(data[at : end - 4])) if told else (None, None)
    assert (damage.stored_checksum, damage.computed_checksum) == checksums


@pytest.mark.parametrize(("left", "told"), [(35, False), (36, True), (39, True), (40, True)])
def test_a_damage_tells_what_stands_in_a_header_that_is_whole(left: int, *, told: bool) -> None:
    made = segment_of(make_records(3, size=60))
    rows, (damage,) = split(
        scan_records(BytesSource(made.data[: made.offsets[2] + left]), first_transaction_id=0, compiled=False)
    )
    assert (len(rows), damage.cause, damage.length) == (2, TORN, left)
    assert (damage.found_transaction_id, damage.found_length) == ((2, 60) if told else (None, None))


@pytest.mark.parametrize("start", [0, 128, 1000])
def test_what_searches_may_cost_grows_with_what_is_scanned(start: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """64 bytes for each, from two gibibytes on; what is told of a damage in the end costs nothing."""
    limits: list[int] = []

    def budget(limit: int) -> SearchBudget:
        limits.append(limit)
        return SearchBudget(limit)

    monkeypatch.setattr(scanner, "SearchBudget", budget)
    data = bytes(5000)
    for stop, size in ((None, 5000 - start), (2000, 2000 - start), (10, max(0, 10 - start)), (9000, 5000 - start)):
        scan_records(BytesSource(data), first_transaction_id=0, start=start, stop=stop)
        assert limits.pop() == (2 << 30) + 64 * size


_LAST = 2**63 - 1


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("ids", [(_LAST, 5), (_LAST, _LAST), (5, 6, 7), (_LAST - 1, _LAST, -(2**63)), (_LAST - 2, 9)])
def test_behind_the_largest_id_nothing_is_searched_for(ids: tuple[int, ...], *, compiled: bool) -> None:
    """Each record in turn is damaged beyond proof; the others are told of in their places, to the end."""
    records = [made_up_record(number, 20) for number in ids]
    for first in (_LAST - 3, _LAST - 1, _LAST):
        for bad in range(len(ids)):
            damaged = bytearray(records[bad])
            for place in (12, 33, 40, -1):
                damaged[place] ^= 1
            data = bytes(128) + b"".join([*records[:bad], bytes(damaged), *records[bad + 1 :]])
            for tail in (b"", b"\xee" * 60):
                items = [*scan_records(BytesSource(data + tail), first_transaction_id=first, compiled=compiled)]
                rows, damages = split(items)
                assert [items[0].offset if isinstance(items[0], Damage) else rows[0][0], items[-1].end] == [
                    128,
                    len(data + tail),
                ]
                assert sum(60 for _ in rows) + sum(damage.length for damage in damages) == len(data + tail) - 128
                assert {row[1] for row in rows} <= {*ids}
