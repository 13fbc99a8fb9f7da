"""Checksums: every library gives the same CRC-32, and pieces can be joined."""

from __future__ import annotations

import zlib
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.formats.settings import properties
from waltzctl.formats import checksums
from waltzctl.formats.checksums import (
    CRC32_BY_LIBRARY,
    X_POWERS,
    crc32,
    crc32_combine,
    crc32c,
    multiply,
    shift_operator,
)

CHECK = b"123456789"


@pytest.mark.parametrize("library", CRC32_BY_LIBRARY)
@properties
@given(data=st.binary(max_size=300), start=st.integers(0, 2**32 - 1))
def test_every_library_computes_the_same(library: str, data: bytes, start: int) -> None:
    pytest.importorskip({"isal": "isal", "zlib-ng": "zlib_ng", "zlib": "zlib"}[library])
    compute = CRC32_BY_LIBRARY[library]()
    assert compute(data) == zlib.crc32(data)
    assert compute(data, start) == zlib.crc32(data, start)
    assert compute(memoryview(data)) == zlib.crc32(data)


@pytest.mark.parametrize("library", CRC32_BY_LIBRARY)
def test_long_buffers_take_the_same_road(library: str) -> None:
    """Vector code has other paths for long inputs, and for every misalignment at either end."""
    pytest.importorskip({"isal": "isal", "zlib-ng": "zlib_ng", "zlib": "zlib"}[library])
    compute = CRC32_BY_LIBRARY[library]()
    data = memoryview(bytes(range(256)) * 300)
    for begin in range(17):
        for end in range(17):
            part = data[begin : len(data) - end]
            assert compute(part) == zlib.crc32(part)


def test_published_check_values() -> None:
    assert crc32(CHECK) == 0xCBF43926
    assert crc32c(CHECK) == 0xE3069283
    assert crc32(b"") == 0
    assert crc32c(CHECK[4:], crc32c(CHECK[:4])) == 0xE3069283


def test_the_fastest_library_present_is_taken() -> None:
    assert checksums.CRC32_LIBRARY in CRC32_BY_LIBRARY
    earlier = list(CRC32_BY_LIBRARY)[: list(CRC32_BY_LIBRARY).index(checksums.CRC32_LIBRARY)]
    for name in earlier:
        with pytest.raises(ImportError):
            CRC32_BY_LIBRARY[name]()


def test_missing_libraries_are_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> checksums._Crc:
        raise ImportError("not here")

    monkeypatch.setitem(CRC32_BY_LIBRARY, "isal", missing)
    monkeypatch.setitem(CRC32_BY_LIBRARY, "zlib-ng", missing)
    name, compute = checksums._load()
    assert (name, compute(CHECK)) == ("zlib", 0xCBF43926)


@properties
@given(first=st.binary(max_size=100), second=st.binary(max_size=5000))
def test_combine_joins_two_pieces(first: bytes, second: bytes) -> None:
    assert crc32_combine(crc32(first), crc32(second), len(second)) == crc32(first + second)


@properties
@given(value=st.integers(0, 2**32 - 1), length=st.integers(0, 2**20))
def test_shift_operator_is_what_appending_zeros_does(value: int, length: int) -> None:
    """Without the final complement, a CRC is linear: zeros behind a message only shift it."""
    zeros = bytes(length)
    assert crc32_combine(value, crc32(zeros), length) == crc32(zeros, value)
    assert shift_operator(length) == crc32(zeros, 0) ^ crc32(zeros, 1 << 31)


def test_combine_with_nothing_changes_nothing() -> None:
    assert crc32_combine(0xDEADBEEF, crc32(b""), 0) == 0xDEADBEEF


def test_lengths_beyond_32_bits() -> None:
    """A segment's checksum of more than 4 GiB: joining two halves equals joining four quarters."""
    quarter = 2**31 + 5
    piece = 0x12345678
    half = crc32_combine(piece, piece, quarter)
    whole = crc32_combine(half, half, 2 * quarter)
    stepwise = piece
    for _ in range(3):
        stepwise = crc32_combine(stepwise, piece, quarter)
    assert whole == stepwise


def test_the_powers_of_x() -> None:
    """As many as a 64-bit number of bits has, each the square of the one before."""
    assert checksums.POLYNOMIAL == 0xEDB88320
    assert X_POWERS[:5] == (1 << 30, 1 << 29, 1 << 27, 1 << 23, 1 << 15)
    assert X_POWERS[5] == checksums.POLYNOMIAL
    assert len(X_POWERS) == 64
    assert all(multiply(one, one) == following for one, following in pairwise(X_POWERS))
    assert shift_operator(0) == 1 << 31
    assert shift_operator(1) == 1 << 23
    assert shift_operator(2**60) == X_POWERS[63]
    assert crc32c(b"") == 0


def test_without_any_library_there_is_no_checksum(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(CRC32_BY_LIBRARY):
        monkeypatch.delitem(CRC32_BY_LIBRARY, name)
    with pytest.raises(ImportError, match="no CRC-32 implementation"):
        checksums._load()
