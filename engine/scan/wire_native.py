# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, call-arg"
"""The compiled wire loops: primitives for `engine.scan.wire_loops`, `list_loops`, `client_loops` and `lock_loops`, and their
translation to LLVM IR.

Importing this module imports numba.  The loops are the same code objects as the interpreted ones, with the names that they call
bound to the primitives here.
"""

from __future__ import annotations

from typing import Any

from waltzctl.engine.scan import client_loops, list_loops, lock_loops, wire_layout, wire_loops
from waltzctl.engine.scan.crc_kernel import AT_POWERS, LENGTHS
from waltzctl.engine.scan.machine import (
    call_read,
    copy_bytes,
    load_8,
    load_64,
    load_be16,
    load_be32,
    load_be32u,
    load_be64,
    load_fixed,
    remainder_of,
    store_64,
    store_be32,
)
from waltzctl.engine.scan.native import bind, crc_called, crc_sliced, inlined, multiply_reduced, text_of

TABLES, READ = 8 * wire_layout.TABLES, 8 * wire_layout.READ
JOINED = LENGTHS * LENGTHS
"""Data of this length and above is beyond the tables, and is read twice."""
TWO_PASSES = 0  # bound by `translate`

_unbound: Any = None
crc = _unbound  # bound by `translate`


@inlined
def get(words, place):
    """A 64-bit word; `words` is an address."""
    return load_64(words + 8 * place)


@inlined
def put(words, place, value):
    """Set a 64-bit word."""
    store_64(words + 8 * place, value)


@inlined
def remainder(value, divisor):
    """`value` modulo `divisor`; neither is negative, and the divisor is not 0."""
    return remainder_of(value, divisor)


@inlined
def byte_at(memory, position):
    """An unsigned byte."""
    return load_8(memory + position)


@inlined
def half_at(memory, position):
    """A signed 16-bit integer."""
    return load_be16(memory + position)


@inlined
def word_at(memory, position):
    """A signed 32-bit integer."""
    return load_be32(memory + position)


@inlined
def unsigned_at(memory, position):
    """An unsigned 32-bit integer."""
    return load_be32u(memory + position)


@inlined
def long_at(memory, position):
    """A signed 64-bit integer."""
    return load_be64(memory + position)


@inlined
def put_word(memory, position, value):
    """Store an unsigned 32-bit integer."""
    store_be32(memory + position, value)


@inlined
def copy(target, at, source, position, length):
    """Copy bytes from one buffer to another."""
    copy_bytes(target + at, source + position, length)


@inlined
def read(state, descriptor, memory, position, length, offset, flags):
    """Read from a file into a scratch buffer, whose first 16 bytes are the ``iovec``; returns the bytes read, or less than 0."""
    store_64(memory, memory + position)
    store_64(memory + 8, length)
    return call_read(load_fixed(state + READ), descriptor, memory, offset, flags)


def checksum(state, value, memory, position, length):
    """CRC-32 of bytes; `value` is the checksum of the bytes before them."""
    return crc(state, value, memory + position, length)


def joined(state, first, second, memory, position, length):
    """CRC-32 of two adjacent pieces from the checksum of each; the second piece is in `memory`."""
    if length < TWO_PASSES or length >= JOINED:
        return crc(state, first, memory + position, length)
    powers = load_fixed(state + TABLES) + AT_POWERS
    operator = load_fixed(powers + (length & (LENGTHS - 1)) * 8)
    operator = multiply_reduced(operator, load_fixed(powers + (LENGTHS + (length >> 12)) * 8))
    return multiply_reduced(operator, first) ^ second


_PRIMITIVES = (
    *("get", "put", "remainder", "byte_at", "half_at", "word_at", "unsigned_at", "long_at", "put_word", "copy"),
    "read",
)


def translate(kind: str) -> dict[str, str]:
    """The loops in LLVM IR, by name.

    `kind`: how checksums are computed: ``call`` for a library's function, ``table`` for our tables, with which reading data twice
    costs more.
    """
    names = {name: globals()[name] for name in _PRIMITIVES}
    ways = {"crc": crc_sliced if kind == "table" else crc_called, "TWO_PASSES": 512 if kind == "table" else 4096}
    primitives: tuple[Any, ...] = (checksum, joined)
    for primitive in primitives:
        names[primitive.__name__] = inlined(bind(primitive, ways, __name__))
    encode = bind(wire_loops.encode, names, __name__)
    names["encode"] = inlined(encode)
    names["to_list"] = inlined(bind(list_loops.to_list, names, __name__))
    for part in (lock_loops.following, lock_loops.slot, lock_loops.mark_slots):
        names[part.__name__] = inlined(bind(part, names, __name__))
    loops: dict[str, tuple[Any, int]] = {
        "split": (wire_loops.split, 3),
        "encode": (wire_loops.encode, 5),
        "encode_groups": (wire_loops.encode_groups, 6),
        "to_list": (list_loops.to_list, 4),
        "answer_lists": (list_loops.answer_lists, 7),
        "take_appends": (client_loops.take_appends, 7),
        "number_records": (client_loops.number_records, 4),
        "admit_appends": (lock_loops.admit_appends, 6),
        "settle_appends": (lock_loops.settle_appends, 5),
    }
    return {name: text_of(bind(loop, names, __name__), count) for name, (loop, count) in loops.items()}
