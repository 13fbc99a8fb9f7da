"""Request ids: four 32-bit integers, or two 64-bit words; the same 16 bytes."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.formats.settings import properties
from waltzctl.formats.request_id import REQUEST_ID_SCHEMA, RequestId

parts = st.integers(-(2**31), 2**31 - 1)


@properties
@given(parts, parts, parts, parts)
def test_bytes_words_and_schema_agree(client: int, generation: int, partition: int, sequence: int) -> None:
    one = RequestId(client, generation, partition, sequence)
    raw = one.encode()
    assert raw == struct.pack(">qq", *one.words)
    assert RequestId.decode(raw) == one == RequestId.from_words(*one.words)
    parsed = REQUEST_ID_SCHEMA.parse(raw)
    assert (parsed.client, parsed.generation, parsed.partition, parsed.sequence) == (
        client,
        generation,
        partition,
        sequence,
    )
    assert str(one) == f"{client}.{generation}.{partition}.{sequence}"


@properties
@given(high=st.integers(0, 2**64 - 1), low=st.integers(0, 2**64 - 1))
def test_words_may_be_signed_or_unsigned(high: int, low: int) -> None:
    signed = struct.unpack(">qq", struct.pack(">QQ", high, low))
    assert RequestId.from_words(high, low) == RequestId.from_words(*signed)
    assert RequestId.from_words(high, low).words == signed


@pytest.mark.parametrize("length", [0, 15, 17])
def test_other_lengths_are_refused(length: int) -> None:
    with pytest.raises(struct.error):
        RequestId.decode(bytes(length))


def test_a_part_beyond_32_bits_is_refused() -> None:
    with pytest.raises(struct.error):
        RequestId(2**31, 0, 0, 0).encode()


def test_its_parts_by_name_in_the_order_of_the_layout() -> None:
    assert list(RequestId(1, 2, 3, 4).by_name().items()) == [
        ("client", 1),
        ("generation", 2),
        ("partition", 3),
        ("sequence", 4),
    ]


@pytest.mark.parametrize(
    ("word", "parts"),
    [
        (0, (0, 0)),
        (2**31 - 1, (0, 2**31 - 1)),
        (2**31, (0, -(2**31))),
        (2**32 - 1, (0, -1)),
        (2**32, (1, 0)),
        (2**63 - 1, (2**31 - 1, -1)),
        (2**63, (-(2**31), 0)),
        (2**64 - 1, (-1, -1)),
        (-1, (-1, -1)),
        (-(2**63), (-(2**31), 0)),
    ],
)
def test_words_one_step_to_each_side_of_a_sign(word: int, parts: tuple[int, int]) -> None:
    signed = word - 2**64 if word >= 2**63 else word
    assert RequestId.from_words(word, 0) == RequestId(*parts, 0, 0)
    assert RequestId.from_words(0, word) == RequestId(0, 0, *parts)
    assert RequestId(*parts, 0, 0).words == (signed, 0)
    assert RequestId(0, 0, *parts).words == (0, signed)
