"""The primitives of the interpreted wire loops: words of a state or a table, integers in a buffer, copies, checksums.

The compiled loops have primitives of the same names (`engine.scan.wire_native`).
"""

from __future__ import annotations

import os
import struct
from functools import lru_cache
from typing import Any

from waltzctl.engine.scan.wire_layout import COUNT
from waltzctl.formats.checksums import crc32, multiply, shift_operator
from waltzctl.formats.segment import CHECKSUM
from waltzctl.formats.wire.frame import FRAME_HEADER
from waltzctl.formats.wire.records import WIRE_RECORD_HEAD
from waltzctl.formats.wire.storage import PREFIX

_byte = struct.Struct(">" + PREFIX.fields[0].code).unpack_from
_half = struct.Struct(">" + FRAME_HEADER.fields[1].code).unpack_from
_word = COUNT.struct.unpack_from
_unsigned = CHECKSUM.struct.unpack_from
_long = struct.Struct(">" + WIRE_RECORD_HEAD.fields[0].code).unpack_from
_put_word = CHECKSUM.struct.pack_into
_TWO_PASSES = 16 << 10
"""Data of fewer bytes is read twice, for both checksums: in Python that is cheaper than joining two checksums."""
_shift = lru_cache(maxsize=64)(shift_operator)


def get(words: Any, place: int) -> int:
    """A 64-bit word of a state, a table or a list of offsets."""
    return words[place]  # type: ignore[no-any-return]


def put(words: Any, place: int, value: int) -> None:
    """Set a 64-bit word."""
    words[place] = value


def remainder(value: int, divisor: int) -> int:
    """`value` modulo `divisor`; neither is negative, and the divisor is not 0."""
    return value % divisor


def byte_at(memory: Any, position: int) -> int:
    """An unsigned byte."""
    return _byte(memory, position)[0]  # type: ignore[no-any-return]


def half_at(memory: Any, position: int) -> int:
    """A signed 16-bit integer."""
    return _half(memory, position)[0]  # type: ignore[no-any-return]


def word_at(memory: Any, position: int) -> int:
    """A signed 32-bit integer."""
    return _word(memory, position)[0]  # type: ignore[no-any-return]


def unsigned_at(memory: Any, position: int) -> int:
    """An unsigned 32-bit integer."""
    return _unsigned(memory, position)[0]  # type: ignore[no-any-return]


def long_at(memory: Any, position: int) -> int:
    """A signed 64-bit integer."""
    return _long(memory, position)[0]  # type: ignore[no-any-return]


def put_word(memory: Any, position: int, value: int) -> None:
    """Store an unsigned 32-bit integer."""
    _put_word(memory, position, value)


def copy(target: Any, at: int, source: Any, position: int, length: int) -> None:
    """Copy bytes from one buffer to another."""
    target[at : at + length] = source[position : position + length]


def read(state: Any, descriptor: int, memory: Any, position: int, length: int, offset: int, flags: int) -> int:
    """Read from a file into a scratch buffer; returns the bytes read, or -1 if ``preadv2`` fails (or would have to wait)."""
    try:
        return os.preadv(descriptor, [memory[position : position + length]], offset, flags)
    except OSError:
        return -1


def checksum(state: Any, value: int, memory: Any, position: int, length: int) -> int:
    """CRC-32 of bytes; `value` is the checksum of the bytes before them."""
    return crc32(memory[position : position + length], value)


def joined(state: Any, first: int, second: int, memory: Any, position: int, length: int) -> int:
    """CRC-32 of two adjacent pieces from the checksum of each; the second piece is ``memory[position:position + length]``."""
    if length < _TWO_PASSES:
        return crc32(memory[position : position + length], first)
    return multiply(_shift(length), first) ^ second
