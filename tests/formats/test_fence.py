"""The session file: its bytes, its two slots, and what a torn or damaged one says."""

from __future__ import annotations

import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.formats.settings import properties
from waltzctl.formats.fence import (
    FENCE_HEADER,
    FENCE_HEADER_SCHEMA,
    FENCE_MAGIC,
    FENCE_PAIR,
    FENCE_PAIR_SCHEMA,
    FENCE_SLOT,
    FENCE_VERSION,
    NO_SESSION,
    FenceError,
    FencePair,
    decode_fence_header,
    decode_pair,
    encode_fence_header,
    encode_slot,
    fence_file_size,
    pair_offset,
)

SESSIONS = st.integers(0, 2**63 - 1)
NUMBERS = st.integers(0, 2**31 - 1)


def slot(partition: int, session: int) -> bytes:
    raw = struct.pack(">qi", session, partition)
    return raw + struct.pack(">I", zlib.crc32(raw))


def test_the_layout_is_as_documented() -> None:
    """Sizes and places, so that a slot never crosses a sector of any size from 64 bytes on."""
    assert (FENCE_HEADER.size, FENCE_SLOT.size, FENCE_PAIR.size) == (64, 16, 32)
    assert fence_file_size(3) == 64 + 3 * 32
    assert [pair_offset(number) for number in (0, 1, 5)] == [64, 96, 224]
    header = encode_fence_header(7)
    raw = b"WZSESSIO" + struct.pack(">ii", 1, 7) + bytes(44)
    assert header == raw + struct.pack(">I", zlib.crc32(raw))
    assert FENCE_HEADER_SCHEMA.parse(header).num_partitions == 7
    assert encode_slot(3, 9) == slot(3, 9)
    parsed = FENCE_PAIR_SCHEMA.parse(slot(3, 9) + slot(3, 10))
    assert [one.session_id for one in parsed.slots] == [9, 10]


@given(NUMBERS, SESSIONS, SESSIONS)
@properties
def test_the_higher_slot_holds_and_the_other_one_is_next(number: int, one: int, two: int) -> None:
    assert decode_pair(slot(number, one) + slot(number, two), number) == FencePair(
        max(one, two), 1 if one >= two else 0
    )


@given(NUMBERS, SESSIONS, st.integers(0, 1))
@properties
def test_a_single_slot_holds(number: int, session: int, place: int) -> None:
    slots = [bytes(16), bytes(16)]
    slots[place] = slot(number, session)
    assert decode_pair(b"".join(slots), number) == FencePair(session, 1 - place)
    assert decode_pair(bytes(32), number) == FencePair(NO_SESSION, 0)


@given(NUMBERS, st.lists(SESSIONS, min_size=1, max_size=6), st.integers(0, 16), st.booleans())
@properties
def test_a_torn_write_leaves_what_held_or_what_was_written(
    number: int, sessions: list[int], cut: int, reverse: bool
) -> None:
    """Any beginning, or any end, of the 16 bytes reached the disk: the fence is the old one or the new one, never less."""
    pair, held = bytearray(32), NO_SESSION
    for session in sorted(set(sessions)):
        now = decode_pair(bytes(pair), number)
        assert now.session_id == held
        place = now.next_slot * 16
        torn = bytearray(pair)
        part = slice(cut, 16) if reverse else slice(0, cut)
        torn[place + (part.start or 0) : place + part.stop] = slot(number, session)[part]
        assert decode_pair(bytes(torn), number).session_id in (held, session)
        pair[place : place + 16] = slot(number, session)
        held = session


@given(NUMBERS, SESSIONS, SESSIONS, st.integers(0, 255))
@properties
def test_damage_is_told_when_neither_slot_can_be_believed(number: int, one: int, two: int, bit: int) -> None:
    raw = bytearray(slot(number, one) + slot(number, two))
    raw[bit // 8] ^= 1 << bit % 8
    intact = two if bit < 128 else one
    assert decode_pair(bytes(raw), number).session_id == intact
    other = (bit + 128) % 256
    raw[other // 8] ^= 1 << other % 8
    with pytest.raises(FenceError, match=f"partition {number}"):
        decode_pair(bytes(raw), number)


def test_a_slot_of_another_partition_is_not_believed() -> None:
    with pytest.raises(FenceError):
        decode_pair(slot(4, 9) + slot(4, 8), 5)


def test_a_header_that_cannot_be_meant() -> None:
    good = encode_fence_header(3)
    assert decode_fence_header(good) == 3
    for bit in range(len(good) * 8):
        bad = bytearray(good)
        bad[bit // 8] ^= 1 << bit % 8
        with pytest.raises(FenceError):
            decode_fence_header(bytes(bad))
    for size in range(len(good)):
        with pytest.raises(FenceError, match="bytes"):
            decode_fence_header(good[:size])
    for version in (2, 0, -1):
        other = FENCE_HEADER.struct.pack(b"WZSESSIO", version, 3, bytes(44), 0)[:60]
        with pytest.raises(FenceError, match=f"version {version}"):
            decode_fence_header(other + struct.pack(">I", zlib.crc32(other)))


def test_the_numbers_of_the_format() -> None:
    assert (NO_SESSION, FENCE_VERSION, FENCE_MAGIC) == (-1, 1, b"WZSESSIO")


def test_why_a_header_is_refused() -> None:
    good = encode_fence_header(3)
    for data, why in (
        (good[:63], "it has 63 bytes, its header alone has 64"),
        (b"XZSESSIO" + good[8:], "its header is damaged"),
        (good[:-1] + bytes([good[-1] ^ 1]), "its header is damaged"),
    ):
        with pytest.raises(FenceError, match=f"^{why}$"):
            decode_fence_header(data)
    other = b"YZSESSIO" + good[8:60]
    with pytest.raises(FenceError, match=r"^its header is damaged$"):
        decode_fence_header(other + struct.pack(">I", zlib.crc32(other)))
    assert decode_fence_header(good + b"more") == 3


_NEVER, _TORN = bytes(16), b"x" * 16


@pytest.mark.parametrize(
    ("pair", "expected"),
    [
        (_NEVER + _NEVER, (NO_SESSION, 0)),
        (_TORN + _NEVER, (NO_SESSION, 0)),
        (_NEVER + _TORN, (NO_SESSION, 1)),
        (_TORN + _TORN, None),
        (slot(3, 5) + _NEVER, (5, 1)),
        (_NEVER + slot(3, 5), (5, 0)),
        (slot(3, 5) + _TORN, (5, 1)),
        (_TORN + slot(3, 5), (5, 0)),
        (slot(3, 5) + slot(3, 5), (5, 1)),
        (slot(3, 5) + slot(3, 6), (6, 0)),
        (slot(3, 6) + slot(3, 5), (6, 1)),
        (slot(3, 5) + slot(4, 6), (5, 1)),
        ((slot(3, 5) + slot(3, 6))[:31], (5, 1)),
        ((slot(3, 5) + slot(3, 6))[:17], (5, 1)),
        (slot(3, 5), (5, 1)),
        (slot(3, 5)[:15], None),
        (b"", None),
    ],
)
def test_what_a_pair_says(pair: bytes, expected: tuple[int, int] | None) -> None:
    """A first write that was torn is written over; a slot that is cut off by the end of the file is none."""
    if expected is None:
        with pytest.raises(FenceError, match=r"^both slots of partition 3 are damaged$"):
            decode_pair(pair, 3)
    else:
        assert decode_pair(pair, 3) == FencePair(*expected)
