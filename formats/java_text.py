r"""Java's *modified UTF-8*, as ``DataOutput.writeUTF`` writes it after a length of two bytes.

U+0000 is the two bytes C0 80, and a character beyond U+FFFF is its two surrogates with three bytes each; everything else is
ordinary UTF-8.  Java texts may contain a lone surrogate; it is kept.
"""

from __future__ import annotations

MAX_UTF = 0xFFFF
"""Bytes of the longest text that the two bytes of a length can announce."""


def encode_modified_utf8(text: str) -> bytes:
    """The bytes without their length.  Raises ValueError when there are more than 65535."""
    units = text.encode("utf-16-be", "surrogatepass")
    halves = (int.from_bytes(units[at : at + 2], "big") for at in range(0, len(units), 2))
    encoded = b"".join(b"\xc0\x80" if half == 0 else chr(half).encode("utf-8", "surrogatepass") for half in halves)
    if len(encoded) > MAX_UTF:
        raise ValueError(f"a text of {len(encoded)} bytes is too long: {MAX_UTF} are possible")
    return encoded


def decode_modified_utf8(data: bytes) -> str:
    """The text of bytes without their length.  Raises ValueError for bytes that are not modified UTF-8."""
    halves = bytes(data).replace(b"\xc0\x80", b"\0").decode("utf-8", "surrogatepass")
    return halves.encode("utf-16-be", "surrogatepass").decode("utf-16-be", "surrogatepass")
