"""Checksums for the compiled loop: constants, tables, and the ways to verify a record.

*Carry-less multiplication.*  A CRC is a remainder: bytes are coefficients of a polynomial over GF(2), and each 64-bit word w
that stands d bytes before the end contributes w * x^(8d) to it.  With the constant x^(8d) modulo the generator, one
multiplication takes a word to 96 bits; the sum over all words is divisible by the generator exactly when the stored checksum is
right.  In this way a short record is verified without a chain of dependent steps.  Long data is folded first: accumulators are
carried forward over the data by a constant distance.  The record's checksum covers the header and the data, so it is the data's
sum plus that of the header's words, with constants for the distance from the header to the end (a table has one row for each data
length).  So no byte is read twice.

*Other machines.*  The checksum function of an installed library is called by its address, or else our own table-driven one
(sixteen bytes a step).  Longer data is still read once: the checksums of header and data are joined by a multiplication.

Bits are reflected as in the format's CRC-32: bit 31 of a 32-bit value, or bit 63 of a 64-bit one, is the coefficient of x^0.  The
product of two reflected words is shifted by one bit, that is, multiplied by x, for which the constants compensate.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import numpy.typing as npt

from waltzctl.engine.scan.kernel import HEADER, STRETCH
from waltzctl.formats.checksums import POLYNOMIAL, X_POWERS, multiply

LENGTHS = 4096
"""Data lengths that have a row of header constants; a longer length is split into a multiple of LENGTHS and a remainder."""
ROW = 64
"""Bytes of a row: at 8 to 15 the initial value carried over the data, at 24 to 63 the constants of the header's five words."""
AT_INITIAL = 8
"""Offset of the initial value in a row: the upper half of a lane, which has the lower powers of a sum."""
BLOCKS = 16
"""Number of blocks, counted from the end of the data, that have constants of their own."""
GROUP = 4
"""Number of accumulators when long data is folded."""


def x_power(bits: int) -> int:
    """x^bits modulo the generator, reflected, 32 bits."""
    result, place = 1 << 31, 0
    while bits:
        if bits & 1:
            result = multiply(X_POWERS[place], result)
        bits >>= 1
        place += 1
    return result


def _rising(first: int, count: int) -> npt.NDArray[np.uint64]:
    """first, first * x^8, first * x^16 and so on."""
    table = slicing_tables()[0].tolist()
    values = np.empty(count, np.uint64)
    value = first
    for place in range(count):
        values[place] = value
        value = table[value & 0xFF] ^ (value >> 8)
    return values


def _multiples(first: int, bits: int, count: int) -> npt.NDArray[np.uint64]:
    """first, first * x^bits, first * x^(2 * bits) and so on, by doubling."""
    values = np.array([first], np.uint64)
    while len(values) < count:
        operator, product, rising = x_power(bits * len(values)), np.zeros_like(values), values.copy()
        for place in range(31, -1, -1):
            if operator >> place & 1:
                product ^= rising
            rising = (rising >> np.uint64(1)) ^ (rising & np.uint64(1)) * np.uint64(POLYNOMIAL)
        values = np.concatenate([values, product])
    return values[:count]


@cache
def slicing_tables() -> npt.NDArray[np.uint32]:
    """``[k, b]``: the checksum register after byte b and k zero bytes; 16 tables of 256 words."""
    tables = np.empty((16, 256), np.uint32)
    for byte in range(256):
        tables[0, byte] = multiply(x_power(8), byte)
    for k in range(1, 16):
        tables[k] = tables[0][tables[k - 1] & 0xFF] ^ (tables[k - 1] >> 8)
    return tables


def _reflect(value: int, bits: int) -> int:
    return int(f"{value:0{bits}b}"[::-1], 2)


def _inverse_series() -> int:
    """1 / generator as a power series modulo x^64, reflected: the product with it has degree < 32 iff divisible."""
    generator, inverse, rest = 0x104C11DB7, 0, 1
    for place in range(64):
        if rest >> place & 1:
            inverse |= 1 << place
            rest ^= generator << place
    return _reflect(inverse, 64)


# Offsets in the notes of a stretch, in bytes.  The last group of a stretch is settled as a whole, and one record more than a
# stretch may be noted; hence 8 more.
NOTED = STRETCH + 8
AT_DATA = 0
"""Vectors (64 bytes) whose lanes sum to the data's polynomial with initial value and stored checksum."""
AT_HEAD = AT_DATA + NOTED * 64
"""Vectors which, added to those at AT_DATA, give the record's polynomial."""
AT_VERDICT = AT_HEAD + NOTED * 64
"""Without vectors: one byte for each record: bit 0, the record checksum is right; bit 1, the data checksum is right."""
NOTES_SIZE = AT_VERDICT + NOTED

# Offsets in the table block, in bytes.
AT_LENGTHS = 0
AT_FAR = AT_LENGTHS + LENGTHS * ROW
"""x^(8 * 4096 * m - 1) for every m up to LENGTHS (0 unused), 8 bytes each."""
AT_BLOCKS = AT_FAR + LENGTHS * 8
AT_FOLD = AT_BLOCKS + BLOCKS * 64
AT_MASK = AT_FOLD + 64
"""GROUP * 64 zero bytes, then as many of 255."""
AT_HEADER_MASK = AT_MASK + 2 * GROUP * 64
AT_HEADER_START = AT_HEADER_MASK + 64
AT_INITIAL_MASK = AT_HEADER_START + 64
AT_FINISH = AT_INITIAL_MASK + 64
"""x^63 and the generator's inverse, for each of four lanes."""
AT_SLICES = AT_FINISH + 64
AT_POWERS = AT_SLICES + 16 * 256 * 4
"""x^(8 * n) for every n up to LENGTHS, then x^(8 * 4096 * n); 8 bytes each."""
TABLE_SIZE = AT_POWERS + 2 * LENGTHS * 8
LONGEST = LENGTHS * LENGTHS
"""Data of this length and above is beyond the tables, so buffers must be smaller."""


def aligned(size: int) -> npt.NDArray[np.uint8]:
    """`size` zero bytes at an address that is a multiple of 64."""
    raw = np.zeros(size + 64, np.uint8)
    shift = -raw.ctypes.data % 64
    return raw[shift : shift + size]


@cache
def tables(width: int) -> npt.NDArray[np.uint8]:
    """Every constant and table for vectors of `width` 64-bit words, aligned to 64 bytes; read-only."""
    block = aligned(TABLE_SIZE)
    words = block.view(np.uint64)
    size = width * 8

    rows = words[: LENGTHS * ROW // 8].reshape(LENGTHS, ROW // 8)
    rows[:, AT_INITIAL // 8] = _rising(0xFFFFFFFF, LENGTHS) << np.uint64(32)
    rising = _rising(x_power(31), LENGTHS + 64) << np.uint64(32)
    for word in range(3, 8):
        distance = (7 - word) * 8
        rows[:, word] = rising[distance : distance + LENGTHS]

    step = 8 * LENGTHS
    words[AT_FAR // 8 + 1 : AT_BLOCKS // 8] = _multiples(x_power(step - 1), step, LENGTHS - 1)
    powers = words[AT_POWERS // 8 :]
    powers[:LENGTHS] = _multiples(1 << 31, 8, LENGTHS)
    powers[LENGTHS:] = _multiples(1 << 31, step, LENGTHS)

    constants = words[AT_BLOCKS // 8 :]
    for number in range(BLOCKS):
        for word in range(width):
            distance = number * size + (width - 1 - word) * 8
            constants[number * width + word] = rising[distance]
    fold = words[AT_FOLD // 8 :]
    fold[0:width:2] = x_power(8 * GROUP * size + 63) << 32
    fold[1:width:2] = x_power(8 * GROUP * size - 1) << 32
    block[AT_MASK + GROUP * 64 : AT_HEADER_MASK] = 255
    block[AT_HEADER_MASK + 64 - HEADER : AT_HEADER_MASK + 64] = 255
    block[AT_HEADER_START + 64 - HEADER : AT_HEADER_START + 68 - HEADER] = 255
    block[AT_INITIAL_MASK + AT_INITIAL : AT_INITIAL_MASK + AT_INITIAL + 8] = 255
    words[AT_FINISH // 8 : AT_FINISH // 8 + 8] = [x_power(63) << 32, _inverse_series()] * 4
    block[AT_SLICES:AT_POWERS] = slicing_tables().view(np.uint8).reshape(-1)
    block.flags.writeable = False
    return block
