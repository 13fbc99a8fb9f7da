"""Constants and tables of the compiled loop, against arithmetic done bit by bit."""

from __future__ import annotations

import zlib

import pytest

from waltzctl.engine.scan import crc_kernel
from waltzctl.engine.scan.kernel import STRETCH
from waltzctl.formats.checksums import shift_operator


@pytest.mark.parametrize("length", [0, 1, 2, 7, 8, 63, 100, 4095, 4096, 4097, 10**6])
def test_powers_append_zero_bytes(length: int) -> None:
    assert crc_kernel.x_power(8 * length) == shift_operator(length)


def test_slicing_tables_continue_a_checksum() -> None:
    tables = crc_kernel.slicing_tables()
    for byte in (0, 1, 0x80, 0xFF):
        register = 0
        for value in (byte, *bytes(15)):
            register = zlib.crc32(bytes([value]), register ^ 0xFFFFFFFF) ^ 0xFFFFFFFF
        assert int(tables[15, byte]) == register


def test_rows_hold_the_initial_value_carried_over_the_data() -> None:
    words = crc_kernel.tables(8).view("<u8")
    for length in (0, 1, 5, 100, 4095):
        row = words[length * 8 : length * 8 + 8]
        assert int(row[1]) >> 32 == zlib.crc32(bytes(length)) ^ 0xFFFFFFFF
        assert int(row[7]) >> 32 == crc_kernel.x_power(8 * length + 31)
        assert int(row[3]) >> 32 == crc_kernel.x_power(8 * length + 31 + 8 * 32)


@pytest.mark.parametrize("width", [2, 4, 8])
def test_every_part_of_the_tables_says_what_it_is_for(width: int) -> None:
    """One behind the other, each word by plain arithmetic; what no loop reads is zero."""
    block = crc_kernel.tables.__wrapped__(width)
    read = 0

    def part(place: int, size: int) -> list[int]:
        nonlocal read
        assert (place, place % 64) == (read, 0)
        read += size
        return [int(word) for word in block[place:read].view("<u8" if size % 8 == 0 else "u1")]

    def power(bits: int) -> int:
        return crc_kernel.x_power(bits) << 32

    rows = part(crc_kernel.AT_LENGTHS, 4096 * 64)
    for length in (0, 1, 5, 100, 4094, 4095):
        initial = (zlib.crc32(bytes(length)) ^ 0xFFFFFFFF) << 32
        header = [power(8 * length + 31 + 64 * (4 - word)) for word in range(5)]
        assert rows[8 * length : 8 * length + 8] == [0, initial, 0, *header]
    far = part(crc_kernel.AT_FAR, 4096 * 8)
    counts = (1, 2, 3, 17, 4094, 4095)
    assert [far[0], *(far[n] for n in counts)] == [0, *(crc_kernel.x_power(8 * 4096 * n - 1) for n in counts)]
    size = 8 * width
    blocks = part(crc_kernel.AT_BLOCKS, 16 * 64)
    assert blocks == [
        *(power(8 * (number * size + size - 8 - 8 * word) + 31) for number in range(16) for word in range(width)),
        *[0] * (16 * (8 - width)),
    ]
    fold = part(crc_kernel.AT_FOLD, 64)
    assert fold == [power(32 * size + 63), power(32 * size - 1)] * (width // 2) + [0] * (8 - width)
    every = 2**64 - 1
    assert part(crc_kernel.AT_MASK, 512) == [0] * 32 + [every] * 32
    assert part(crc_kernel.AT_HEADER_MASK, 64) == [0, 0, 0, every << 32 & every, *[every] * 4]
    assert part(crc_kernel.AT_HEADER_START, 64) == [0, 0, 0, every << 32 & every, 0, 0, 0, 0]
    assert part(crc_kernel.AT_INITIAL_MASK, 64) == [0, every, 0, 0, 0, 0, 0, 0]
    assert part(crc_kernel.AT_FINISH, 64) == [power(63), crc_kernel._inverse_series()] * 4
    slices = part(crc_kernel.AT_SLICES, 16 * 256 * 4)
    assert slices == [int(word) for word in crc_kernel.slicing_tables().reshape(-1).view("<u8")]
    powers = part(crc_kernel.AT_POWERS, 2 * 4096 * 8)
    for count in (0, 1, 2, 7, 4094, 4095):
        assert powers[count] == crc_kernel.x_power(8 * count)
        assert powers[4096 + count] == crc_kernel.x_power(8 * 4096 * count)
    assert read == len(block) == crc_kernel.TABLE_SIZE


def test_notes_of_a_stretch_lie_one_behind_the_other() -> None:
    """Of each record two vectors and a byte; the last group is settled as a whole, and one record more may be noted."""
    records = STRETCH + 8
    places = [crc_kernel.AT_DATA, crc_kernel.AT_HEAD, crc_kernel.AT_VERDICT, crc_kernel.NOTES_SIZE]
    assert places == [0, 64 * records, 128 * records, 129 * records]


def test_far_powers() -> None:
    words = crc_kernel.tables(2).view("<u8")
    far = words[crc_kernel.AT_FAR // 8 :]
    for count in (1, 2, 3, 17, 4095):
        assert int(far[count]) == crc_kernel.x_power(8 * 4096 * count - 1)


def test_inverse_divides_the_generator() -> None:
    inverse = int(f"{crc_kernel._inverse_series():064b}"[::-1], 2)
    product = 0
    for place in range(64):
        if inverse >> place & 1:
            product ^= 0x104C11DB7 << place
    assert product & (2**64 - 1) == 1


@pytest.mark.parametrize("width", [2, 4, 8])
def test_table_block_is_aligned_and_read_only(width: int) -> None:
    block = crc_kernel.tables(width)
    assert block.ctypes.data % 64 == 0
    assert len(block) == crc_kernel.TABLE_SIZE
    with pytest.raises(ValueError, match="read-only"):
        block[0] = 1


def test_tables_that_all_lanes_share_cannot_be_written() -> None:
    block = crc_kernel.tables(2)
    assert crc_kernel.tables(2) is block
    with pytest.raises(ValueError, match="read-only"):
        block[0] = 1


@pytest.mark.parametrize("size", [1, 63, 64, 65, 4097])
def test_aligned_memory_is_as_long_as_it_should_be_and_zero(size: int) -> None:
    for _ in range(5):
        block = crc_kernel.aligned(size)
        assert (len(block), block.ctypes.data % 64, block.any()) == (size, 0, False)


def test_the_notes_of_a_stretch_have_room_for_one_record_more_and_a_whole_group() -> None:
    """One behind the other: vectors of the data, those of the head, verdicts."""
    most = -(-(STRETCH + 1) // 4) * 4
    places = [crc_kernel.AT_DATA, crc_kernel.AT_HEAD, crc_kernel.AT_VERDICT, crc_kernel.NOTES_SIZE]
    assert places[0] == 0
    for size, place, behind in zip((64 * most, 64 * most, STRETCH + 1), places, places[1:], strict=False):
        assert behind - place >= size
