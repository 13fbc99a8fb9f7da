# mypy: disable-error-code="no-untyped-def, misc, untyped-decorator, no-untyped-call"
"""Machine-level primitives for compiled code: loads, stores, calls through addresses, and vectors, as numba intrinsics.

Importing this module imports numba.  Values are 64-bit integers, and so are addresses, so that compiled code depends on no Python
object.  A vector is a value of its own type in a machine register.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic, models, register_model

I8, I32, I64 = ir.IntType(8), ir.IntType(32), ir.IntType(64)
_PAIR = ir.VectorType(I64, 2)
_NOTHING = ir.Constant(I64, 0)
"""The return value of primitives without a result."""


class VectorType(types.Type):
    """A machine vector of `width` 64-bit words."""

    def __init__(self, width: int) -> None:
        self.width = width
        super().__init__(name=f"words{width}")


@register_model(VectorType)
class _VectorModel(models.PrimitiveModel):
    def __init__(self, manager, kind) -> None:
        super().__init__(manager, kind, ir.VectorType(I64, kind.width))


def _constant(builder, instruction):
    """Mark a load whose memory never changes while the loop runs."""
    instruction.set_metadata("invariant.load", builder.module.add_metadata([]))
    return instruction


def _loaded(builder, address, kind):
    """Load a value from an address, which need not be aligned."""
    return builder.load(builder.inttoptr(address, kind.as_pointer()), align=1)


def _stored(builder, value, address):
    """Store a value at an address, which need not be aligned."""
    builder.store(value, builder.inttoptr(address, value.type.as_pointer()), align=1)
    return _NOTHING


def _load(code: str, *, constant: bool = False, signed: bool = True) -> Any:
    """A primitive that loads an integer.  `code`: ``>`` for big-endian or ``=`` for native, then the number of bits."""
    kind = ir.IntType(int(code[1:]))

    @intrinsic
    def load(context, address):
        def generate(_, builder, signature, arguments):
            value = _loaded(builder, arguments[0], kind)
            if constant:
                _constant(builder, value)
            if code[0] == ">":
                value = builder.bswap(value)
            return builder.sext(value, I64) if signed else builder.zext(value, I64)

        return types.int64(types.int64), generate

    return load


def _store(bits: int, *, swapped: bool = False) -> Any:
    kind = ir.IntType(bits)

    @intrinsic
    def store(context, address, value):
        def generate(_, builder, signature, arguments):
            value = builder.trunc(arguments[1], kind)
            return _stored(builder, builder.bswap(value) if swapped else value, arguments[0])

        return types.int64(types.int64, types.int64), generate

    return store


load_be64, load_be32 = _load(">64"), _load(">32")
load_be32u = _load(">32", signed=False)
load_64, load_fixed = _load("=64"), _load("=64", constant=True)
load_fixed32, load_8 = _load("=32", constant=True, signed=False), _load("=8", signed=False)
load_be16 = _load(">16")
store_64, store_32, store_8 = _store(64), _store(32), _store(8)
store_be32 = _store(32, swapped=True)


@intrinsic
def copy_bytes(context, target, source, length):
    """Copy bytes between two ranges that do not overlap."""

    def generate(_, builder, signature, arguments):
        place = I8.as_pointer()
        function = builder.module.declare_intrinsic("llvm.memcpy", [place, place, I64])
        pointers = [builder.inttoptr(address, place) for address in arguments[:2]]
        builder.call(function, [*pointers, arguments[2], ir.Constant(ir.IntType(1), 0)])
        return _NOTHING

    return types.int64(types.int64, types.int64, types.int64), generate


@intrinsic
def remainder_of(context, value, divisor):
    """The remainder of unsigned numbers; the divisor is not 0."""

    def generate(_, builder, signature, arguments):
        return builder.urem(*arguments)

    return types.int64(types.int64, types.int64), generate


@intrinsic
def multiply_words(context, a, b):
    """The low 64 bits of a carry-less product."""

    def generate(_, builder, signature, arguments):
        multiply = builder.module.declare_intrinsic(
            "llvm.x86.pclmulqdq", (), ir.FunctionType(_PAIR, [_PAIR, _PAIR, I8])
        )
        zero = ir.Constant(I32, 0)
        a, b = (builder.insert_element(ir.Constant(_PAIR, [0, 0]), word, zero) for word in arguments)
        return builder.extract_element(builder.call(multiply, [a, b, ir.Constant(I8, 0)]), zero)

    return types.int64(types.int64, types.int64), generate


@intrinsic
def call_crc(context, function, value, address, length):
    """Call ``uint32_t function(uint32_t value, const unsigned char *address, uint64_t length)``."""

    def generate(_, builder, signature, arguments):
        kind = ir.FunctionType(I32, [I32, I8.as_pointer(), I64])
        pointer = builder.inttoptr(arguments[0], kind.as_pointer())
        place = builder.inttoptr(arguments[2], I8.as_pointer())
        return builder.zext(builder.call(pointer, [builder.trunc(arguments[1], I32), place, arguments[3]]), I64)

    return types.int64(types.int64, types.int64, types.int64, types.int64), generate


@intrinsic
def call_read(context, function, descriptor, pieces, offset, flags):
    """Call ``preadv2`` with one ``iovec``, at the address `pieces`."""

    def generate(_, builder, signature, arguments):
        kind = ir.FunctionType(I64, [I32, I8.as_pointer(), I32, I64, I32])
        pointer = builder.inttoptr(arguments[0], kind.as_pointer())
        place = builder.inttoptr(arguments[2], I8.as_pointer())
        descriptor, flags = (builder.trunc(arguments[one], I32) for one in (1, 4))
        return builder.call(pointer, [descriptor, place, ir.Constant(I32, 1), arguments[3], flags])

    return types.int64(types.int64, types.int64, types.int64, types.int64, types.int64), generate


@intrinsic
def upper_word(context, value):
    """The upper word of a lane."""

    def generate(_, builder, signature, arguments):
        return builder.extract_element(arguments[0], ir.Constant(I32, 1))

    return types.int64(VectorType(2)), generate


def _shuffled(builder, low, high, lanes):
    """A vector of the given lanes; those of `high` count on from those of `low`."""
    words = [2 * lane + half for lane in lanes for half in (0, 1)]
    return builder.shuffle_vector(low, high, ir.Constant(ir.VectorType(I32, len(words)), words))


def _picked(builder, octets, order, kind):
    """A vector of the bytes with these numbers; a number beyond the last byte gives zero."""
    zero = ir.Constant(octets.type, [0] * octets.type.count)
    mask = ir.Constant(ir.VectorType(I32, len(order)), order)
    return builder.bitcast(builder.shuffle_vector(octets, zero, mask), kind)


def _sum_lanes(builder, vector):
    """The sum of all lanes of a vector."""
    while (lanes := vector.type.count // 2) > 1:
        halves = range(lanes // 2), range(lanes // 2, lanes)
        vector = builder.xor(*(_shuffled(builder, vector, vector, half) for half in halves))
    return vector


def _sum_each(builder, vectors):
    """One vector from n vectors of n lanes: its lane k is the sum of all lanes of vector k.

    In each step two vectors become one, and the number of lanes for each record is halved.
    """
    lanes = group = len(vectors)
    while len(vectors) > 1:
        half = group // 2
        starts = [start for first in (0, lanes) for start in range(first, first + lanes, group)]
        sides = [[start + at + k for start in starts for k in range(half)] for at in (0, half)]
        pairs = zip(vectors[::2], vectors[1::2], strict=True)
        vectors = [builder.xor(*(_shuffled(builder, low, high, side) for side in sides)) for low, high in pairs]
        group = half
    return vectors[0]


class Vectors:
    """Primitives on vectors of `width` words: 8, 4 or 2."""

    def __init__(self, width: int) -> None:
        kind = VectorType(width)
        vector = ir.VectorType(I64, width)
        suffix = {2: "", 4: ".256", 8: ".512"}[width]

        @intrinsic
        def zero(context):
            return kind(), lambda *_: ir.Constant(vector, [0] * width)

        def loader(*, constant: bool) -> Any:
            @intrinsic
            def load(context, address):
                def generate(_, builder, signature, arguments):
                    value = _loaded(builder, arguments[0], vector)
                    return _constant(builder, value) if constant else value

                return kind(types.int64), generate

            return load

        def product(place: int) -> Any:
            @intrinsic
            def multiply(context, a, b):
                def generate(_, builder, signature, arguments):
                    function = builder.module.declare_intrinsic(
                        f"llvm.x86.pclmulqdq{suffix}", (), ir.FunctionType(vector, [vector, vector, I8])
                    )
                    return builder.call(function, [*arguments, ir.Constant(I8, place)])

                return kind(kind, kind), generate

            return multiply

        @intrinsic
        def exclusive_or(context, a, b):
            return kind(kind, kind), lambda _, builder, signature, arguments: builder.xor(*arguments)

        @intrinsic
        def both(context, a, b):
            return kind(kind, kind), lambda _, builder, signature, arguments: builder.and_(*arguments)

        @intrinsic
        def store(context, address, value):
            def generate(_, builder, signature, arguments):
                return _stored(builder, arguments[1], arguments[0])

            return types.int64(types.int64, kind), generate

        @intrinsic
        def lane_sum(context, value):
            """The sum of all 128-bit lanes."""
            return VectorType(2)(kind), lambda _, builder, signature, arguments: _sum_lanes(builder, arguments[0])

        @intrinsic
        def lane_sums(context, address):
            """A vector whose lanes are the lane sums of as many vectors, 64 bytes apart."""

            def generate(_, builder, signature, arguments):
                vectors = []
                for lane in range(width // 2):
                    place = builder.add(arguments[0], ir.Constant(I64, 64 * lane))
                    vectors.append(_loaded(builder, place, vector))
                return _sum_each(builder, vectors)

            return kind(types.int64), generate

        @intrinsic
        def last_word(context, value):
            """The last four bytes, a stored (big-endian) checksum, as a register value in the last lane."""

            def generate(_, builder, signature, arguments):
                size = 8 * width
                octets = builder.bitcast(arguments[0], ir.VectorType(I8, size))
                order = [2 * size - 5 - at for at in range(size)]
                return _picked(builder, octets, order, vector)

            return kind(kind), generate

        @intrinsic
        def word_at(context, address):
            """A stored (big-endian) checksum at an address, as a register value in the first lane."""

            def generate(_, builder, signature, arguments):
                word = _loaded(builder, arguments[0], I32)
                words = ir.Constant(ir.VectorType(I32, 2 * width), [0] * 2 * width)
                words = builder.insert_element(words, word, ir.Constant(I32, 0))
                octets = builder.bitcast(words, ir.VectorType(I8, 8 * width))
                order = [15 - at if 12 <= at < 16 else 8 * width for at in range(8 * width)]
                return _picked(builder, octets, order, vector)

            return kind(types.int64), generate

        @intrinsic
        def complement(context, value):
            """The complement of the register value in each lane."""
            every = ir.Constant(vector, [0, 0xFFFFFFFF << 32] * (width // 2))
            return kind(kind), lambda _, builder, signature, arguments: builder.xor(arguments[0], every)

        @intrinsic
        def from_high_word(context, word):
            """A vector with `word` as the upper word of its first lane, otherwise zero."""

            def generate(_, builder, signature, arguments):
                return builder.insert_element(ir.Constant(vector, [0] * width), arguments[0], ir.Constant(I32, 1))

            return kind(types.int64), generate

        @intrinsic
        def undivided(context, value):
            """From products with the generator's inverse: two bits for each lane, non-zero where it is not divisible."""

            def generate(_, builder, signature, arguments):
                kept = builder.and_(arguments[0], ir.Constant(vector, [1 << 63, 0x7FFFFFFF] * (width // 2)))
                bits = builder.icmp_unsigned("!=", kept, ir.Constant(vector, [0] * width))
                return builder.zext(builder.bitcast(bits, ir.IntType(width)), I64)

            return types.int64(kind), generate

        self.names: dict[str, Any] = {
            "zero": zero,
            "load": loader(constant=False),
            "load_constant": loader(constant=True),
            "low_product": product(0x00),
            "high_product": product(0x11),
            "xor": exclusive_or,
            "both": both,
            "store": store,
            "lane_sum": lane_sum,
            "lane_sums": lane_sums,
            "from_high_word": from_high_word,
            "last_word": last_word,
            "word_at": word_at,
            "complement": complement,
            "undivided": undivided,
            "store_verdicts": _store(width // 2 * 8),
            "LANES": width // 2,
            "BLOCK": width * 8,
        }
