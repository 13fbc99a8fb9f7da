"""The primitives of `engine.scan.machine`, said once more in Python on plain integers, and the compiled loops run on them.

With these in their place, `native.translate` and `wire_native.translate` hand back functions that Python runs: what they compute
from the tables, and how they pass over records, is tried without a compiler.  Vectors are integers, first byte lowest.
"""

from __future__ import annotations

import ctypes
import os
import traceback
import zlib
from collections.abc import Callable
from typing import Any

import pytest

from waltzctl.engine.scan import compiled, native, wire_compiled, wire_native
from waltzctl.engine.scan.kernel import Kernel
from waltzctl.engine.scan.object_code import LoadedCode

FUNCTION = 4711
"""Stands for the address of a library's function."""
WORD = (1 << 64) - 1
_AS_BYTES = bytes.maketrans(b"01", b"\0\1")
_AS_DIGITS = bytes(48 + (byte & 1) for byte in range(256))


def signed(value: int) -> int:
    """The low 64 bits as a signed number."""
    return (value & WORD ^ 1 << 63) - (1 << 63)


def multiply(a: int, b: int) -> int:
    """The carry-less product of two 64-bit words: an ordinary one of their bits, a byte apart, without what is carried."""
    if not a or not b:
        return 0
    spread = [int.from_bytes(format(one, "b").encode().translate(_AS_BYTES)) for one in (a, b)]
    product = spread[0] * spread[1]
    return int(product.to_bytes(128).translate(_AS_DIGITS), 2)


def read(address: int, size: int) -> int:
    return int.from_bytes(ctypes.string_at(address, size), "little")


def write(address: int, size: int, value: int) -> int:
    ctypes.memmove(address, (value & (1 << 8 * size) - 1).to_bytes(size, "little"), size)
    return 0


def _load(size: int, order: Any, *, sign: bool) -> Callable[[int], int]:
    return lambda address: int.from_bytes(ctypes.string_at(address, size), order, signed=sign)


def _store(size: int) -> Callable[[int, int], int]:
    return lambda address, value: write(address, size, value)


def _store_be32(address: int, value: int) -> int:
    return write(address, 4, int.from_bytes((value & 0xFFFFFFFF).to_bytes(4), "little"))


def _call_read(function: int, descriptor: int, pieces: int, offset: int, flags: int) -> int:
    assert function == wire_compiled._READ
    target = (ctypes.c_char * read(pieces + 8, 8)).from_address(read(pieces, 8))
    try:
        return os.preadv(descriptor, [target], offset, flags)
    except OSError:
        return -1


def _call_crc(function: int, value: int, address: int, length: int) -> int:
    assert function == FUNCTION
    assert 0 <= value < 1 << 32
    return zlib.crc32(ctypes.string_at(address, length), value)


SCALARS: dict[str, Callable[..., int]] = {
    "load_be64": _load(8, "big", sign=True),
    "load_be32": _load(4, "big", sign=True),
    "load_be32u": _load(4, "big", sign=False),
    "load_be16": _load(2, "big", sign=True),
    "load_64": _load(8, "little", sign=True),
    "load_fixed": _load(8, "little", sign=True),
    "load_fixed32": _load(4, "little", sign=False),
    "load_8": _load(1, "little", sign=False),
    "store_64": _store(8),
    "store_32": _store(4),
    "store_8": _store(1),
    "store_be32": _store_be32,
    "copy_bytes": lambda target, source, length: 0 * (ctypes.memmove(target, source, length) or 0),
    "remainder_of": lambda value, divisor: (value & WORD) % divisor,
    "multiply_words": lambda a, b: signed(multiply(a & WORD, b & WORD)),
    "call_crc": _call_crc,
    "call_read": _call_read,
    "upper_word": lambda value: signed(value >> 64),
}


class Vectors:
    """`engine.scan.machine.Vectors` for `width` words; a lane is two of them."""

    def __init__(self, width: int) -> None:
        self._lanes = range(0, 64 * width, 128)
        self._size = 8 * width
        self.names: dict[str, Any] = {
            "zero": lambda: 0,
            "load": self.load,
            "load_constant": self.load,
            "low_product": lambda a, b: self._products(a, b, 0),
            "high_product": lambda a, b: self._products(a, b, 64),
            "xor": lambda a, b: a ^ b,
            "both": lambda a, b: a & b,
            "store": lambda address, value: write(address, self._size, value),
            "lane_sum": self._lane_sum,
            "lane_sums": lambda address: self._joined(
                self._lane_sum(self.load(address + lane // 2)) for lane in self._lanes
            ),
            "from_high_word": lambda word: (word & WORD) << 64,
            "last_word": self._last_word,
            "word_at": lambda address: int.from_bytes(ctypes.string_at(address, 4)) << 96,
            "complement": lambda value: value ^ self._joined(0xFFFFFFFF << 96 for _ in self._lanes),
            "undivided": self._undivided,
            "store_verdicts": _store(width // 2),
            "LANES": width // 2,
            "BLOCK": width * 8,
        }

    def load(self, address: int) -> int:
        return read(address, self._size)

    def _joined(self, lanes: Any) -> int:
        return sum(value << at for value, at in zip(lanes, self._lanes, strict=True))

    def _products(self, a: int, b: int, at: int) -> int:
        return self._joined(multiply(a >> lane + at & WORD, b >> lane + at & WORD) for lane in self._lanes)

    def _lane_sum(self, value: int) -> int:
        total = 0
        for lane in self._lanes:
            total ^= value >> lane & (1 << 128) - 1
        return total

    def _last_word(self, value: int) -> int:
        last = value >> 8 * self._size - 32
        return int.from_bytes(last.to_bytes(4, "little")) << 8 * self._size - 32

    def _undivided(self, value: int) -> int:
        bits = 0
        for lane in self._lanes:
            low, high = value >> lane & WORD, value >> lane + 64 & WORD
            bits |= bool(low >> 63) << lane // 64 | bool(high & 0x7FFFFFFF) << lane // 64 + 1
        return bits


def put_in_place(patch: pytest.MonkeyPatch) -> None:
    """From here on, what is translated is what Python runs."""
    for module in (native, wire_native):
        for name, value in list(vars(module).items()):
            if name in SCALARS:
                patch.setattr(module, name, SCALARS[name])
            elif hasattr(value, "py_func"):
                patch.setattr(module, name, value.py_func)
        patch.setattr(module, "inlined", lambda function: function)
        patch.setattr(module, "text_of", lambda loop, arguments: (loop, arguments))
    patch.setattr(native, "Vectors", Vectors)
    patch.setattr(compiled, "_function_address", lambda way: FUNCTION)


def _called(loop: Callable[..., int], arguments: int, words: int) -> Any:
    """A function with the interface of the compiled loop."""

    def call(result: int, error: int, *given: int | None) -> int:
        try:
            write(result, 8, loop(*(one or 0 for one in given)))
        except Exception:
            traceback.print_exc()
            return 1
        return 0

    pointers = [ctypes.c_void_p] * (2 + arguments - words)
    return ctypes.CFUNCTYPE(ctypes.c_int32, *pointers, *[ctypes.c_int64] * words)(call)


def _address(function: Any) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0


def kernel(way: str) -> Kernel:
    """The kernel of a way; call after `put_in_place`."""
    loop, arguments = native.translate(compiled._code_kind(way))
    function = _called(loop, arguments, arguments)
    return compiled.CompiledKernel(way, _address(function), function)


def loops(way: str) -> wire_compiled.CompiledLoops:
    """The wire loops of a way; call after `put_in_place`."""
    texts = wire_native.translate(wire_compiled._kind(way))
    functions = {
        name: _called(loop, arguments, wire_compiled._ARGUMENTS[name][1]) for name, (loop, arguments) in texts.items()
    }
    return wire_compiled.CompiledLoops(
        way, LoadedCode({name: _address(one) for name, one in functions.items()}, functions)
    )
