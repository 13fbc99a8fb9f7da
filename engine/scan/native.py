# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, call-arg, var-annotated"
"""The compiled loop: machine-level primitives for `engine.scan.kernel.walk`, and its translation to LLVM IR.

Importing this module imports numba.  The loop is the code object of the interpreted one, with the names that it calls bound to
the primitives here; in the same way `note_vectors` and `settle_vectors` are bound for each width of vectors.
"""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any

from numba import njit, types

from waltzctl.engine.scan import kernel
from waltzctl.engine.scan.crc_kernel import (
    AT_BLOCKS,
    AT_DATA,
    AT_FAR,
    AT_FINISH,
    AT_FOLD,
    AT_HEAD,
    AT_HEADER_MASK,
    AT_HEADER_START,
    AT_INITIAL,
    AT_INITIAL_MASK,
    AT_MASK,
    AT_POWERS,
    AT_SLICES,
    AT_VERDICT,
    BLOCKS,
    GROUP,
    LENGTHS,
    ROW,
)
from waltzctl.engine.scan.machine import (
    Vectors,
    call_crc,
    load_8,
    load_64,
    load_be32,
    load_be32u,
    load_be64,
    load_fixed,
    load_fixed32,
    multiply_words,
    store_8,
    store_32,
    store_64,
    upper_word,
)
from waltzctl.formats.segment import RECORD_HEADER

inlined = njit(forceinline=True)
TWO_PASSES = 512
"""Data of fewer bytes is read twice, for both checksums: that is cheaper than joining two checksums without machine support."""

# --- the loop's primitives --------------------------------------------------------------------------------------------

TABLES = 8 * kernel.TABLES
FUNCTION = 8 * kernel.FUNCTION
NOTES = 8 * kernel.NOTES
LENGTH_AT, HEADER = kernel.LENGTH_AT, kernel.HEADER
HEADER_AT, DATA_CHECKSUM_AT = RECORD_HEADER.offset_of("header"), kernel.DATA_CHECKSUM_AT
HIGH_AT, LOW_AT = kernel.REQUEST_ID_HIGH_AT, kernel.REQUEST_ID_LOW_AT


@inlined
def get(state, slot):
    """A word of the state; `state` is an address here."""
    return load_64(state + 8 * slot)


@inlined
def put(state, slot, value):
    """Set a word of the state."""
    store_64(state + 8 * slot, value)


@inlined
def transaction_id(memory, position):
    """The id of the record at `position`."""
    return load_be64(memory + position)


@inlined
def data_length(memory, position):
    """The data length of the record at `position`, as an unsigned number."""
    return load_be32u(memory + position + LENGTH_AT)


@inlined
def put_row(columns, row, offset, memory, position, end):
    """Fill all columns but `data_ok`; `columns` is the address of the columns' addresses."""
    record = memory + position
    store_64(load_fixed(columns) + 8 * row, offset)
    store_64(load_fixed(columns + 8) + 8 * row, load_be64(record))
    store_64(load_fixed(columns + 16) + 8 * row, load_be64(record + HIGH_AT))
    store_64(load_fixed(columns + 24) + 8 * row, load_be64(record + LOW_AT))
    store_32(load_fixed(columns + 32) + 4 * row, load_be32(record + HEADER_AT))
    store_32(load_fixed(columns + 40) + 4 * row, load_be32(record + LENGTH_AT))
    store_32(load_fixed(columns + 48) + 4 * row, load_be32(record + DATA_CHECKSUM_AT))
    store_32(load_fixed(columns + 56) + 4 * row, load_be32(memory + end - 4))


@inlined
def put_place(columns, row, offset):
    """Fill the column `offset` only."""
    store_64(load_fixed(columns) + 8 * row, offset)


@inlined
def place_of(columns, row):
    """The offset in a row."""
    return load_64(load_fixed(columns) + 8 * row)


# --- verifying by carry-less multiplication ---------------------------------------------------------------------------


@inlined
def reduce_word(value):
    """A reflected polynomial of degree below 64 modulo the generator: 32 bits."""
    quotient = multiply_words(value & 0xFFFFFFFF, 0x1F7011641)
    return ((value ^ multiply_words(quotient & 0xFFFFFFFF, 0x1DB710641)) >> 32) & 0xFFFFFFFF


# Bound by `translate`, for vectors of some width; see `engine.scan.machine.Vectors`.
BLOCK = LANES = 0
_unbound: Any = None
zero = load = load_constant = store = both = xor = complement = low_product = high_product = _unbound
lane_sum = lane_sums = lane_xor = lane_low_product = lane_load_constant = _unbound
from_high_word = last_word = word_at = undivided = store_verdicts = _unbound


def note_vectors(state, memory, position, length, place_in_stretch):
    """`engine.scan.kernel.note` on vectors."""
    notes = load_fixed(state + NOTES)
    tables = load_fixed(state + TABLES)
    row = tables + (length & (LENGTHS - 1)) * ROW
    start = memory + position + HEADER
    end = start + length
    head = zero()
    place = 64 - BLOCK
    while place > 64 - HEADER - BLOCK:
        words = both(load(start - 64 + place), load_constant(tables + AT_HEADER_MASK + place))
        words = xor(words, load_constant(tables + AT_HEADER_START + place))
        factors = load_constant(row + place)
        head = xor(head, xor(low_product(words, factors), high_product(words, factors)))
        place -= BLOCK
    data = zero()
    factor_at = tables + AT_BLOCKS
    if length <= BLOCKS * BLOCK:
        place = end - BLOCK
        while place >= start:
            words = load(place)
            factors = load_constant(factor_at)
            data = xor(data, xor(low_product(words, factors), high_product(words, factors)))
            place -= BLOCK
            factor_at += BLOCK
        if place > start - BLOCK:
            words = both(load(place), load_constant(tables + AT_MASK + GROUP * 64 - (start - place)))
            factors = load_constant(factor_at)
            data = xor(data, xor(low_product(words, factors), high_product(words, factors)))
    else:
        lead = length % (GROUP * BLOCK)
        mask = tables + AT_MASK + GROUP * 64 - GROUP * BLOCK + lead
        place = start + lead - GROUP * BLOCK
        a = both(load(place), load_constant(mask))
        b = both(load(place + BLOCK), load_constant(mask + BLOCK))
        c = both(load(place + 2 * BLOCK), load_constant(mask + 2 * BLOCK))
        d = both(load(place + 3 * BLOCK), load_constant(mask + 3 * BLOCK))
        place += GROUP * BLOCK
        fold = load_constant(tables + AT_FOLD)
        while place < end:
            a = xor(xor(low_product(a, fold), high_product(a, fold)), load(place))
            b = xor(xor(low_product(b, fold), high_product(b, fold)), load(place + BLOCK))
            c = xor(xor(low_product(c, fold), high_product(c, fold)), load(place + 2 * BLOCK))
            d = xor(xor(low_product(d, fold), high_product(d, fold)), load(place + 3 * BLOCK))
            place += GROUP * BLOCK
        factors = load_constant(factor_at)
        data = xor(low_product(d, factors), high_product(d, factors))
        factors = load_constant(factor_at + BLOCK)
        data = xor(data, xor(low_product(c, factors), high_product(c, factors)))
        factors = load_constant(factor_at + 2 * BLOCK)
        data = xor(data, xor(low_product(b, factors), high_product(b, factors)))
        factors = load_constant(factor_at + 3 * BLOCK)
        data = xor(data, xor(low_product(a, factors), high_product(a, factors)))
    rest = both(load_constant(row), load_constant(tables + AT_INITIAL_MASK))
    if length >= LENGTHS:
        far = load_fixed(tables + AT_FAR + (length >> 12) * 8)
        lane = lane_sum(head)
        lane = lane_xor(lane, lane_low_product(lane, lane_load_constant(tables + AT_FINISH)))
        head = from_high_word(multiply_words(reduce_word(upper_word(lane)), far))
        rest = from_high_word(multiply_words((load_fixed(row + AT_INITIAL) >> 32) & 0xFFFFFFFF, far))
    rest = xor(rest, last_word(load(start - BLOCK)))
    store(notes + AT_DATA + place_in_stretch * 64, xor(data, rest))
    store(notes + AT_HEAD + place_in_stretch * 64, xor(head, xor(rest, word_at(end))))


def settle_vectors(state, columns, first, count):
    """`engine.scan.kernel.settle` on vectors: as many records at once as a vector has lanes."""
    notes = load_fixed(state + NOTES)
    finish = load_constant(load_fixed(state + TABLES) + AT_FINISH)
    verdicts = load_fixed(columns + 64) + first
    place = 0
    while place < count:
        data = lane_sums(notes + AT_DATA + place * 64)
        record = complement(xor(data, lane_sums(notes + AT_HEAD + place * 64)))
        data = complement(data)
        record = xor(record, low_product(record, finish))
        data = xor(data, low_product(data, finish))
        wrong_records = undivided(high_product(record, finish))
        wrong_data = undivided(high_product(data, finish))
        if wrong_records | wrong_data:
            for lane in range(LANES):
                if place + lane < count:
                    if (wrong_records >> (2 * lane)) & 3:
                        return place + lane
                    store_8(verdicts + place + lane, 0 if (wrong_data >> (2 * lane)) & 3 else 1)
        else:
            store_verdicts(verdicts + place, 0x01010101)
        place += LANES
    return count


# --- verifying by a checksum function -----------------------------------------------------------------------------------


@njit
def crc_called(state, value, address, length):
    """The checksum function of an installed library."""
    return call_crc(load_fixed(state + FUNCTION), value, address, length)


@njit
def crc_sliced(state, value, address, length):
    """Our own checksum function: slicing-by-16, from tables."""
    tables = load_fixed(state + TABLES) + AT_SLICES
    value ^= 0xFFFFFFFF
    end = address + length
    while address + 16 <= end:
        first = load_64(address) ^ value
        second = load_64(address + 8)
        value = 0
        for place in range(8):
            value ^= load_fixed32(tables + (15 - place) * 1024 + ((first >> (8 * place)) & 0xFF) * 4)
            value ^= load_fixed32(tables + (7 - place) * 1024 + ((second >> (8 * place)) & 0xFF) * 4)
        address += 16
    while address < end:
        value = load_fixed32(tables + ((value ^ load_8(address)) & 0xFF) * 4) ^ (value >> 8)
        address += 1
    return value ^ 0xFFFFFFFF


@njit
def multiply_reduced(a, b):
    """Product of two reflected polynomials modulo the generator, without machine support."""
    product = 0
    for _ in range(32):
        product ^= b & -((a >> 31) & 1)
        a <<= 1
        b = (b >> 1) ^ (0xEDB88320 & -(b & 1))
    return product


crc = _unbound  # bound by `translate` to one of the above


def note_calls(state, memory, position, length, place_in_stretch):
    """`engine.scan.kernel.note` on a checksum function."""
    record = memory + position
    start = record + HEADER
    data_sum = crc(state, 0, start, length)
    record_sum = crc(state, 0, record, HEADER)
    if length < TWO_PASSES:
        record_sum = crc(state, record_sum, start, length)
    else:
        powers = load_fixed(state + TABLES) + AT_POWERS
        operator = load_fixed(powers + (length & (LENGTHS - 1)) * 8)
        operator = multiply_reduced(operator, load_fixed(powers + (LENGTHS + (length >> 12)) * 8))
        record_sum = multiply_reduced(operator, record_sum) ^ data_sum
    verdict = 1 if record_sum == load_be32u(start + length) else 0
    verdict += 2 if data_sum == load_be32u(record + DATA_CHECKSUM_AT) else 0
    store_8(load_fixed(state + NOTES) + AT_VERDICT + place_in_stretch, verdict)


def settle_calls(state, columns, first, count):
    """`engine.scan.kernel.settle` on the verdicts of `note_calls`."""
    notes = load_fixed(state + NOTES) + AT_VERDICT
    verdicts = load_fixed(columns + 64) + first
    for place in range(count):
        verdict = load_8(notes + place)
        if not verdict & 1:
            return place
        store_8(verdicts + place, verdict >> 1)
    return count


def translate(way: str) -> str:
    """The loop in LLVM IR, optimised for this machine.

    `way`: how checksums are computed: ``clmul`` and the bits of a vector, ``call`` for a library's function, ``table`` for ours.
    """
    if way.startswith("clmul"):
        names = Vectors(int(way[5:]) // 64).names
        names |= {f"lane_{name}": primitive for name, primitive in Vectors(2).names.items() if name != "sum"}
        note, settle = bind(note_vectors, names), bind(settle_vectors, names)
    else:
        note = bind(note_calls, {"crc": crc_sliced if way == "table" else crc_called})
        settle = settle_calls
    primitives = ("get", "put", "transaction_id", "data_length", "put_row", "put_place", "place_of")
    names = {name: globals()[name] for name in primitives}
    loop = bind(kernel.walk, names | {"note": inlined(note), "settle": inlined(settle)})
    return text_of(loop, 3)


def text_of(loop: Any, arguments: int) -> str:
    """A function in LLVM IR; `arguments` is the number of its arguments, 64-bit words."""
    signature = types.int64(*[types.int64] * arguments)
    options: dict[str, Any] = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
    (text,) = njit(signature, **options)(loop).inspect_llvm().values()
    return str(text)


def bind(function: Callable[..., Any], names: dict[str, Any], module: str = __name__) -> Any:
    """A function with the same code, in which some global names are bound to other values."""
    bound = FunctionType(function.__code__, function.__globals__ | names, function.__name__)
    bound.__module__ = module
    return bound
