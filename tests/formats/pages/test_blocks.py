"""Blocks of the log: what is written is read, and whatever happens to the bytes no record is made up and none is joined."""

from __future__ import annotations

import random
import struct

import pytest

from tests.formats.pages.logs import Log, log_of
from waltzctl.formats.checksums import crc32c
from waltzctl.formats.pages.blocks import (
    BLOCK_SIZE,
    FRAGMENT_HEADER,
    FaultKind,
    FragmentType,
    cut_record,
    fragment,
    read_log,
)

HEADER = FRAGMENT_HEADER.size


def payloads(data: bytes, number: int = 7) -> list[bytes]:
    return [record.payload for record in read_log(data, number).records]


def kinds(data: bytes, number: int = 7) -> list[tuple[FaultKind, bool]]:
    return [(fault.kind, fault.torn) for fault in read_log(data, number).faults]


def test_empty_file() -> None:
    read = read_log(b"", 7)
    assert (read.records, read.faults, read.end) == ((), (), 0)


def test_the_bytes_of_a_record() -> None:
    """Golden: payload ``foo`` in log 7, with the length under the checksum."""
    covered = struct.pack("<HBI", 3, 5, 7)
    expected = struct.pack("<Q", crc32c(covered + b"foo")) + covered + b"foo"
    assert cut_record(b"foo", 0, 7) == expected
    assert expected.hex() == "d148af6100000000" + "0300" + "05" + "07000000" + "666f6f"


def test_round_trip_with_an_empty_record() -> None:
    log = log_of([b"foo", b"", b"bar", b"xxxx"])
    assert payloads(log.data) == [b"foo", b"", b"bar", b"xxxx"]
    assert kinds(log.data) == []
    assert [(one.offset, one.end) for one in read_log(log.data, 7).records] == log.spans


@pytest.mark.turns(8)
def test_many_small_records() -> None:
    wanted = [b"%d" % n for n in range(100_000)]
    log = log_of(wanted)
    assert payloads(log.data) == wanted
    assert kinds(log.data) == []


def test_fragments_over_several_blocks() -> None:
    wanted = [b"small", b"m" * 50_000, b"l" * 100_000]
    assert payloads(log_of(wanted).data) == wanted


@pytest.mark.parametrize("left", [0, 1, HEADER - 1, HEADER, HEADER + 1])
def test_block_boundary_with_a_trailer(left: int) -> None:
    """Exactly a header of room takes a First without payload, less is filled with zeros, nothing ends aligned."""
    first = b"a" * (BLOCK_SIZE - HEADER - left)
    log = log_of([first, b"", b"b" * 5])
    assert payloads(log.data) == [first, b"", b"b" * 5]
    assert kinds(log.data) == []
    second = log_of([first, b"bb"])
    assert payloads(second.data) == [first, b"bb"]
    if left == HEADER:
        assert FragmentType(second.data[BLOCK_SIZE - HEADER + 10]) is FragmentType.FIRST
        assert FragmentType(log.data[BLOCK_SIZE - HEADER + 10]) is FragmentType.FULL  # the empty record
    assert payloads(log_of([first]).data) == [first]  # aligned end


def test_random_sizes() -> None:
    rng = random.Random(1)
    wanted = [rng.randbytes(int(2 ** rng.uniform(0, 17))) for _ in range(60)]
    log = log_of(wanted)
    assert payloads(log.data) == wanted
    assert kinds(log.data) == []


def _rewritten(log: Log, place: int, **values: int) -> bytes:
    """The log with fields of the fragment at `place` changed, its checksum right again unless that is given."""
    head = dict(
        zip((f.name for f in FRAGMENT_HEADER.fields), FRAGMENT_HEADER.struct.unpack_from(log.data, place), strict=True)
    )
    payload = log.data[place + HEADER : place + HEADER + head["length"]]
    head |= values
    raw = FRAGMENT_HEADER.struct.pack(*head.values())
    if "checksum" not in values:
        raw = struct.pack("<Q", crc32c(raw[8:] + payload)) + raw[8:]
    return log.data[:place] + raw + log.data[place + HEADER :]


def test_unknown_type() -> None:
    log = log_of([b"foo", b"bar"])
    data = _rewritten(log, 0, type=100)
    assert payloads(data) == [b"bar"]
    assert kinds(data) == [(FaultKind.TYPE, False)]


def test_torn_header_and_torn_body() -> None:
    log = log_of([b"foo", b"bar"])
    (_, start), end = log.spans[0], len(log.data)
    for size in range(start + 1, end):
        read = read_log(log.data[:size], 7)
        assert [one.payload for one in read.records] == [b"foo"]
        assert [one.torn for one in read.faults] == [True]
        assert read.end == start
        assert read.faults[0].kind is (FaultKind.HEADER_CUT if size < start + HEADER else FaultKind.BODY_CUT)


def test_bad_length_in_the_middle_and_at_the_tail() -> None:
    log = log_of([b"foo", b"bar"])
    data = _rewritten(log, 0, length=BLOCK_SIZE)
    assert (payloads(data), kinds(data)) == ([b"bar"], [(FaultKind.LENGTH, False)])
    data = _rewritten(log, log.spans[1][0], length=BLOCK_SIZE)
    assert (payloads(data), kinds(data)) == ([b"foo"], [(FaultKind.LENGTH, True)])
    data = _rewritten(log, log.spans[1][0], length=4)
    assert (payloads(data), kinds(data)) == ([b"foo"], [(FaultKind.BODY_CUT, True)])


def test_checksum_mismatch_is_damage_where_a_record_follows() -> None:
    log = log_of([b"foo", b"bar", b"baz"])
    data = _rewritten(log, log.spans[1][0], checksum=1)
    assert (payloads(data), kinds(data)) == ([b"foo", b"baz"], [(FaultKind.CHECKSUM, False)])
    data = _rewritten(log, log.spans[2][0], checksum=1)
    assert (payloads(data), kinds(data)) == ([b"foo", b"bar"], [(FaultKind.CHECKSUM, True)])


@pytest.mark.parametrize("kind", [FragmentType.MIDDLE, FragmentType.LAST])
def test_unexpected_middle_or_last(kind: FragmentType) -> None:
    data = fragment(kind, b"foo", 7) + fragment(FragmentType.FULL, b"bar", 7)
    assert (payloads(data), kinds(data)) == ([b"bar"], [(FaultKind.NO_FIRST, False)])


@pytest.mark.parametrize("kind", [FragmentType.FULL, FragmentType.FIRST])
def test_unexpected_full_or_first(kind: FragmentType) -> None:
    data = fragment(FragmentType.FIRST, b"foo", 7) + fragment(kind, b"bar", 7)
    wanted = [b"bar"] if kind is FragmentType.FULL else []
    assert payloads(data) == wanted
    assert kinds(data)[0] == (FaultKind.NO_LAST, False)
    assert kinds(data)[1:] == ([] if wanted else [(FaultKind.NO_LAST, True)])


def test_missing_last() -> None:
    log = log_of([b"a", b"b" * 40_000])
    data = log.data[:BLOCK_SIZE]
    assert (payloads(data), kinds(data)) == ([b"a"], [(FaultKind.NO_LAST, True)])


def test_a_wiped_block_never_joins_two_records() -> None:
    first, second = b"1" * 40_000, b"2" * 40_000
    log = log_of([first, second, b"3"])
    data = log.data[:BLOCK_SIZE] + bytes(BLOCK_SIZE) + log.data[2 * BLOCK_SIZE :]
    assert payloads(data) == [b"3"]
    assert not any(torn for _, torn in kinds(data))


def test_overwritten_with_another_number() -> None:
    """What another log left in the file is never taken for its own, and is no damage of the file's own records."""
    old, new = log_of([b"old one", b"old two", b"old three"], 6), log_of([b"new one"], 7)
    data = new.data + old.data[len(new.data) :]
    assert payloads(data) == [b"new one"]
    assert kinds(data) == [(FaultKind.OTHER_LOG, True)]


def test_overwritten_with_the_same_number_is_why_no_file_is_used_twice() -> None:
    old, new = log_of([b"old one", b"old two"]), log_of([b"new one"])
    assert payloads(new.data + old.data[len(new.data) :]) == [b"new one", b"old two"]


def test_a_plain_header_is_read() -> None:
    """Types 1 to 4 have no log number; their checksum covers length, type and payload."""
    covered = struct.pack("<HB", 3, 1)
    data = struct.pack("<Q", crc32c(covered + b"foo")) + covered + b"foo"
    assert payloads(data + fragment(FragmentType.FULL, b"bar", 7)) == [b"foo", b"bar"]


def test_a_trailer_that_is_not_zero_is_found() -> None:
    log = log_of([b"a" * (BLOCK_SIZE - HEADER - 3), b"b"])
    data = bytearray(log.data)
    data[BLOCK_SIZE - 1] = 1
    assert (len(payloads(bytes(data))), kinds(bytes(data))) == (2, [(FaultKind.TRAILER, False)])


def test_every_bit_flipped_is_found_and_costs_one_record() -> None:
    wanted = [b"one", b"", b"three" * 3, b"four"]
    log = log_of(wanted)
    for bit in range(len(log.data) * 8):
        data = bytearray(log.data)
        data[bit // 8] ^= 1 << bit % 8
        hit = next(place for place, (start, end) in enumerate(log.spans) if start <= bit // 8 < end)
        read = read_log(bytes(data), 7)
        assert [one.payload for one in read.records] == wanted[:hit] + wanted[hit + 1 :], bit
        assert [one.torn for one in read.faults] == [hit == len(wanted) - 1], bit


def test_every_bit_of_the_headers_of_a_fragmented_record() -> None:
    wanted = [b"one", b"2" * 70_000, b"three"]
    log = log_of(wanted)
    starts = [log.spans[1][0], BLOCK_SIZE, 2 * BLOCK_SIZE]
    for start in starts:
        for bit in range(HEADER * 8):
            data = bytearray(log.data)
            data[start + bit // 8] ^= 1 << bit % 8
            read = read_log(bytes(data), 7)
            assert [one.payload for one in read.records] == [b"one", b"three"], (start, bit)
            assert read.faults
            assert not any(one.torn for one in read.faults), (start, bit)


def test_torn_at_every_byte_leaves_the_records_before() -> None:
    wanted = [b"one", b"", b"three" * 20, b"four"]
    log = log_of(wanted)
    for size in range(len(log.data) + 1):
        read = read_log(log.data[:size], 7)
        whole = [end for _, end in log.spans if end <= size]
        assert [one.payload for one in read.records] == wanted[: len(whole)]
        assert read.end == (whole[-1] if whole else 0)
        assert all(one.torn for one in read.faults)
        assert bool(read.faults) == (size not in (0, *whole))


def test_any_sectors_of_the_last_record_lost_is_a_torn_tail() -> None:
    """A write that was never made durable may have left any of its sectors, in any order; it is no damage of what was."""
    wanted = [b"one", b"2" * 66_000]
    log = log_of(wanted)
    start, end = log.spans[1]
    rng = random.Random(2)
    for _ in range(60):
        data = bytearray(log.data[: rng.randint(start + 1, end)])
        for sector in range(start // 512, -(-len(data) // 512)):
            if rng.random() < 0.5:
                low, high = max(start, sector * 512), min(len(data), sector * 512 + 512)
                data[low:high] = bytes(high - low)
        read = read_log(bytes(data), 7)
        assert read.records[0].payload == b"one"
        assert all(one.torn for one in read.faults)
        if bytes(data) != log.data:
            assert len(read.records) == 1


@pytest.mark.parametrize("room", [1, HEADER - 1, HEADER, 500, BLOCK_SIZE, 3 * BLOCK_SIZE])
@pytest.mark.parametrize("last", [b"", b"foo", bytes(20), b"ends with zeros" + bytes(40), bytes(40_000)])
def test_zeros_behind_the_last_record_are_room(room: int, last: bytes) -> None:
    log = log_of([b"one", last])
    read = read_log(log.data + bytes(room), 7)
    assert ([one.payload for one in read.records], read.faults) == ([b"one", last], ())
    assert read.size == read.end == len(log.data)


def test_a_file_of_zeros_holds_nothing() -> None:
    read = read_log(bytes(70_000), 7)
    assert (read.records, read.faults, read.end, read.size) == ((), (), 0, 0)


def test_a_record_that_is_torn_in_its_room() -> None:
    """The fault ends with the last byte that is there."""
    log = log_of([b"one", b"second"])
    (_, start), end = log.spans[0], len(log.data)
    for size in range(start + 1, end):
        data = log.data[:size] + bytes(300 - size)
        read = read_log(data, 7)
        assert (len(read.records), read.end) == (1, start)
        assert read.size == len(data.rstrip(b"\0"))
        (fault,) = read.faults
        assert (fault.offset, fault.end, fault.torn) == (start, read.size, True)


def test_a_first_fragment_that_ends_with_zeros_in_its_room() -> None:
    log = log_of([b"one", bytes(40_000)])
    read = read_log(log.data[:BLOCK_SIZE] + bytes(BLOCK_SIZE), 7)
    assert [(one.offset, one.end, one.kind, one.torn) for one in read.faults] == [
        (log.spans[1][0], BLOCK_SIZE, FaultKind.NO_LAST, True)
    ]
    assert read.size == BLOCK_SIZE


def test_something_within_the_room_is_a_torn_end() -> None:
    log = log_of([b"one"])
    data = log.data + bytes(1000) + b"x" + bytes(1000)
    read = read_log(data, 7)
    assert [(one.offset, one.end, one.torn) for one in read.faults] == [(len(log.data), len(log.data) + 1001, True)]
    assert read.size == len(log.data) + 1001
