"""Each primitive of compiled code does what its emulation does, on any bytes."""

# ruff: noqa: F821  (what a trial calls is bound)

from __future__ import annotations

import ctypes
import random
import zlib
from collections.abc import Callable
from typing import Any

import pytest

from tests.scan import emulated
from waltzctl.engine.scan import compiled

machine = pytest.importorskip("waltzctl.engine.scan.machine", exc_type=ImportError)
from waltzctl.engine.scan import native, object_code  # noqa: E402

WIDTHS = {2: "clmul128", 4: "clmul256", 8: "clmul512"}
SOURCE, OUT = 1024, 2048
"""Bytes that a trial reads, and that it may write."""


def scalars(source, out):
    """Everything that works on words; the checksum function's address stands first."""
    at = source + 8
    store_64(out, load_be64(at))
    store_64(out + 8, load_be32(at))
    store_64(out + 16, load_be32u(at))
    store_64(out + 24, load_be16(at))
    store_64(out + 32, load_64(at))
    store_64(out + 40, load_fixed(at))
    store_64(out + 48, load_fixed32(at))
    store_64(out + 56, load_8(at))
    store_32(out + 64, load_64(at))
    store_8(out + 72, load_64(at))
    store_be32(out + 80, load_be32u(at))
    copy_bytes(out + 89, at + 1, 13)
    store_64(out + 120, call_crc(load_64(source), load_be32u(at), at + 3, 21))
    store_64(out + 136, load_64(out + 144))
    copy_bytes(out + 144, at, 8)
    store_64(out + 152, load_64(out + 144))  # what stands there now
    store_64(out + 160, remainder_of(load_be32u(at), 30_011))
    return 7


def vectors(source, out):
    """Everything that works on vectors of one width, or belongs to what does."""
    a, b = load(source + 8), load_constant(source + 72)
    store(out, xor(a, b))
    store(out + 64, both(a, b))
    store(out + 128, complement(a))
    store(out + 192, low_product(a, b))
    store(out + 256, high_product(a, b))
    store(out + 320, last_word(a))
    store(out + 384, word_at(source + 9))
    store(out + 448, from_high_word(load_64(source + 8)))
    store(out + 512, lane_sums(source + 8))
    store(out + 576, zero())
    store_pair(out + 640, lane_sum(a))
    store_64(out + 704, upper_word(lane_sum(b)))
    store_64(out + 712, undivided(a))
    store_64(out + 720, undivided(both(a, b)))
    store_verdicts(out + 728, load_64(source + 8))
    store_64(out + 736, multiply_words(load_64(source + 8), load_64(source + 16)))
    return LANES * 1000 + BLOCK


def bound(function: Callable[..., int], names: dict[str, Any], kind: Any) -> Callable[..., int]:
    pair = kind(2).names["store"]
    return native.bind(function, names | {"store_pair": pair}, __name__)


def _crc(value: int, address: int, length: int) -> int:
    return zlib.crc32(ctypes.string_at(address, length), value)


CALLED = ctypes.CFUNCTYPE(ctypes.c_uint32, ctypes.c_uint32, ctypes.c_void_p, ctypes.c_uint64)(_crc)


def trials() -> dict[int, tuple[Callable[..., int], Callable[..., int]]]:
    """By width (0: words) the machine's code and the emulation."""
    of_words = {name: getattr(machine, name) for name in emulated.SCALARS}
    emulated_words = emulated.SCALARS | {"call_crc": lambda _, *given: _crc(*given)}
    functions = {0: (bound(scalars, of_words, machine.Vectors), bound(scalars, emulated_words, emulated.Vectors))}
    for width, way in WIDTHS.items():
        if way in compiled.available_ways():
            functions[width] = (
                bound(vectors, of_words | machine.Vectors(width).names, machine.Vectors),
                bound(vectors, emulated_words | emulated.Vectors(width).names, emulated.Vectors),
            )
    texts = {f"trial_{width}": native.text_of(function, 2) for width, (function, _) in functions.items()}
    code = object_code.load_object(object_code.compile_object(texts), [*texts])
    kind = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)

    def called(function: Any) -> Callable[..., int]:
        def call(source: int, out: int) -> int:
            result = ctypes.c_int64(0)
            assert code.keep is not None
            assert function(ctypes.addressof(result), None, source, out) == 0
            return result.value

        return call

    return {width: (called(kind(code.addresses[f"trial_{width}"])), python) for width, (_, python) in functions.items()}


def sources() -> list[bytes]:
    rng = random.Random(11)
    every = [rng.randbytes(SOURCE - 8) for _ in range(12)]
    for word in range(8):  # one bit of a vector, and every bit but one
        for bit in (0, 30, 31, 32, 62, 63):
            single = bytearray(SOURCE - 8)
            single[8 * word : 8 * word + 8] = (1 << bit).to_bytes(8, "little")
            every += [bytes(single), bytes(255 - byte for byte in single)]
    return every


@pytest.mark.turns(8)
def test_a_primitive_does_what_its_emulation_does() -> None:
    """In one test: what compiles it is what compares it."""
    address = (ctypes.cast(CALLED, ctypes.c_void_p).value or 0).to_bytes(8, "little")
    for width, both in trials().items():
        for data in sources():
            source = ctypes.create_string_buffer(address + data, SOURCE)
            told = []
            for trial in both:
                out = ctypes.create_string_buffer(b"\x5a" * OUT, OUT)
                told.append((trial(ctypes.addressof(source), ctypes.addressof(out) + 512), out.raw))
            assert told[0] == told[1], width
