"""Constants and tables of the compiled loop, against arithmetic done bit by bit."""

from __future__ import annotations

import zlib

import pytest

from waltzctl.engine.scan import crc_kernel
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
