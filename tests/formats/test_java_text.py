"""Java's modified UTF-8."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.formats.settings import properties
from waltzctl.formats.java_text import MAX_UTF, decode_modified_utf8, encode_modified_utf8


@pytest.mark.parametrize(
    ("text", "encoded"),
    [
        ("", ""),
        ("h:55280", "683a3535323830"),
        ("\0", "c080"),
        ("a\0b", "61c08062"),
        ("é€", "c3a9e282ac"),
        ("\U00010400", "eda081edb080"),
        ("\ud800", "eda080"),
    ],
)
def test_known_values(text: str, encoded: str) -> None:
    assert encode_modified_utf8(text).hex() == encoded
    assert decode_modified_utf8(bytes.fromhex(encoded)) == text


@properties
@given(st.text(max_size=200))
def test_every_text_comes_back_and_holds_no_zero_byte(text: str) -> None:
    encoded = encode_modified_utf8(text)
    assert 0 not in encoded
    assert decode_modified_utf8(encoded) == text


def test_a_text_that_its_length_cannot_announce_is_refused() -> None:
    assert len(encode_modified_utf8("x" * MAX_UTF)) == MAX_UTF
    with pytest.raises(ValueError, match="65536 bytes is too long"):
        encode_modified_utf8("x" * (MAX_UTF + 1))
    assert len(encode_modified_utf8("é" * (MAX_UTF // 2))) == MAX_UTF - 1
    with pytest.raises(ValueError, match="65536 bytes is too long"):
        encode_modified_utf8("é" * (MAX_UTF // 2 + 1))


@pytest.mark.parametrize("damaged", ["80", "c3", "c1bf", "ff", "eda0"])
def test_other_bytes_are_refused(damaged: str) -> None:
    with pytest.raises(ValueError, match="utf-8"):
        decode_modified_utf8(bytes.fromhex(damaged))
