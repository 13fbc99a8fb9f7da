"""Checksums: CRC-32 of the record format and CRC-32C of our own files, behind one module.

CRC-32 is the zlib / IEEE 802.3 polynomial (reflected 0xEDB88320), stored as a big-endian 32-bit word (release 0.13.2; the
design documents do not name the algorithm).  The fastest well-kept library that is installed serves it: Intel's ISA-L
(`isal`), else zlib-ng, else the interpreter's zlib; all three agree bit for bit, and the tests prove it.

`crc32_combine` joins the checksums of two neighbouring pieces without their bytes: it lets a scanner pass over a record's
data once and still know both the data's and the record's checksum.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

POLYNOMIAL = 0xEDB88320
"""CRC-32 (zlib) generator polynomial, bit-reflected."""

Buffer = bytes | bytearray | memoryview


class _Crc(Protocol):
    def __call__(self, data: Buffer, value: int = 0, /) -> int: ...


def _isal() -> _Crc:
    from isal import isal_zlib

    return isal_zlib.crc32


def _zlib_ng() -> _Crc:
    from zlib_ng import zlib_ng

    return zlib_ng.crc32


def _zlib() -> _Crc:
    import zlib

    return zlib.crc32


CRC32_BY_LIBRARY: dict[str, Callable[[], _Crc]] = {"isal": _isal, "zlib-ng": _zlib_ng, "zlib": _zlib}
"""Every implementation by name, fastest first; a loader raises ImportError where its library is missing."""


def _load() -> tuple[str, _Crc]:
    for name, loader in CRC32_BY_LIBRARY.items():
        try:
            return name, loader()
        except ImportError:
            continue
    raise ImportError("no CRC-32 implementation")  # zlib is part of the interpreter, so this cannot be reached


CRC32_LIBRARY, crc32 = _load()
"""Name of the library in use, and ``crc32(data, value=0) -> int`` (unsigned 32-bit; `value` continues a running checksum)."""


_crc32c: Callable[[Buffer, int], int] | None = None


def crc32c(data: Buffer, value: int = 0) -> int:
    """CRC-32C (Castagnoli), unsigned 32-bit; `value` continues a running checksum."""
    global _crc32c
    # imported at the first call, as most commands need no CRC-32C; not by a statement here, which costs as much as a small page
    if _crc32c is None:
        from crc32c import crc32c as compute

        _crc32c = compute
    return _crc32c(data, value)


def multiply(a: int, b: int) -> int:
    """Product of two bit-reflected polynomials modulo the generator; bit 31 is the coefficient of x^0."""
    product = 0
    while a:
        if a & 0x80000000:
            product ^= b
        a = (a << 1) & 0xFFFFFFFF
        b = (b >> 1) ^ POLYNOMIAL if b & 1 else b >> 1
    return product


def _powers() -> tuple[int, ...]:
    power = 1 << 30  # x^1
    powers = []
    for _ in range(64):
        powers.append(power)
        power = multiply(power, power)
    return tuple(powers)


X_POWERS = _powers()
"""``X_POWERS[k]`` is x^(2^k) modulo the generator, bit-reflected."""


def shift_operator(length: int) -> int:
    """x^(8*length) modulo the generator: multiplying a checksum by it appends `length` zero bytes.  `length` >= 0."""
    operator, bits, place = 1 << 31, length * 8, 0
    while bits:
        if bits & 1:
            operator = multiply(X_POWERS[place], operator)
        bits >>= 1
        place += 1
    return operator


def crc32_combine(first: int, second: int, second_length: int) -> int:
    """CRC-32 of A followed by B, from the checksums of A and of B and the number of bytes in B."""
    return multiply(shift_operator(second_length), first) ^ second
