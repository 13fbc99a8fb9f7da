"""JSON without loss: numbers keep all their digits, and a duplicate key is an error.

Python reads a number with a fraction or an exponent as a float, and writes it with the digits that identify the float.  Here a
number of a record is neither read nor shown as another number: where a float would lose digits, its text is kept.
"""

from __future__ import annotations

import codecs
import json
import math
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import zip_longest
from typing import Any

_MARK = os.urandom(16).hex()
"""A random prefix of numbers that are written as strings for a moment; no string of the input begins with it."""
_MARKED = re.compile(rf'"{_MARK}([^"]*)"')
_LONG = f'"{_MARK}long"'
"""In the place of a `LongText`."""
_LONG_PIECE = 3 << 18
"""Bytes of a piece of a `LongText`: whole groups of base64."""


class ExactNumber:
    """A number with a fraction or an exponent, as text.  Raises ValueError for one that is infinite as a float."""

    def __init__(self, text: str) -> None:
        if not math.isfinite(float(text)):
            raise ValueError(f"{text} is larger than the numbers that programs read")
        self.text = text

    def __repr__(self) -> str:
        return self.text


class LongText:
    """The text of long data, such as base64, as a value of an object to be written: it is made in pieces, while it is written.

    `text_of`: makes the text of bytes, ASCII without a character that JSON escapes; of pieces of `_LONG_PIECE` bytes it makes the
    pieces of the text.
    """

    def __init__(self, data: bytes, text_of: Callable[[bytes], str]) -> None:
        self._data, self._text_of = data, text_of

    def pieces(self) -> Iterator[str]:
        """The text, in pieces."""
        for start in range(0, len(self._data), _LONG_PIECE):
            yield self._text_of(self._data[start : start + _LONG_PIECE])

    def json_pieces(self) -> Iterator[str]:
        """The text between the quotes of JSON, in pieces."""
        return self.pieces()

    def __str__(self) -> str:
        return self._text_of(self._data)


class LongUtf8(LongText):
    """The text of long data that is UTF-8, any characters, made in pieces as `LongText`.  Raises UnicodeDecodeError."""

    def __init__(self, data: bytes) -> None:
        super().__init__(data, bytes.decode)
        for _ in self.pieces():
            pass

    def pieces(self) -> Iterator[str]:
        """The text, in pieces of whole characters."""
        decoder = codecs.getincrementaldecoder("utf-8")()
        for start in range(0, len(self._data), _LONG_PIECE):
            end = start + _LONG_PIECE
            yield decoder.decode(self._data[start:end], end >= len(self._data))

    def json_pieces(self) -> Iterator[str]:
        """As `LongText.json_pieces`: characters beyond ASCII are escaped, as `encode` does."""
        for piece in self.pieces():
            yield _ASCII.encode(piece)[1:-1]


def read(text: str) -> Any:
    """A JSON value, its numbers with a fraction or an exponent as `ExactNumber`.

    Raises ValueError (json.JSONDecodeError) for invalid JSON, an unreadable number, or an object with a duplicate key, of which
    one value would be lost; RecursionError.
    """
    return json.loads(
        text, parse_float=ExactNumber, parse_int=_whole, parse_constant=_no_constant, object_pairs_hook=_object
    )


def read_shortest(text: str) -> Any:
    """As `read`, but with a float wherever it is equal to the written number: `1.50` is read as 1.5."""
    return json.loads(
        text, parse_float=_float_if_exact, parse_int=_whole, parse_constant=_no_constant, object_pairs_hook=_object
    )


def _float_if_exact(text: str) -> float | ExactNumber:
    from decimal import Decimal

    number, value = ExactNumber(text), float(text)
    try:
        return value if Decimal(repr(value)) == Decimal(text) else number
    except ArithmeticError:  # an exponent beyond the range of Decimal
        return number


def _whole(text: str) -> int | ExactNumber:
    """-0 as text: the only integer whose sign Python loses."""
    return ExactNumber(text) if text == "-0" else int(text)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        ((twice, _),) = Counter(key for key, _ in pairs).most_common(1)
        raise ValueError(f"the key {twice!r} stands twice in an object")
    return found


def _no_constant(text: str) -> None:
    raise ValueError(f"{text} is no JSON number")


def _marked(value: object) -> str:
    if isinstance(value, ExactNumber):
        return _MARK + value.text
    if isinstance(value, LongText):
        return f"{_MARK}long"
    raise TypeError(f"{type(value).__name__} is nothing that JSON has")


_ASCII, _UNICODE = (
    json.JSONEncoder(separators=(",", ":"), allow_nan=False, default=_marked, ensure_ascii=ascii_only)
    for ascii_only in (True, False)
)


def encode(value: Any, *, ascii_only: bool = True) -> str:
    """A value as JSON without spaces; without `ascii_only` characters beyond ASCII are not escaped.  It holds no `LongText`."""
    text = (_ASCII if ascii_only else _UNICODE).encode(value)
    return _MARKED.sub(r"\1", text) if _MARK in text else text


def write(value: dict[str, Any], put: Callable[[str], object], *, front: str = "", behind: str) -> None:
    """Call `put` with an object as `encode` makes it, between two texts: once, or with pieces where a value is a `LongText`."""
    text = _ASCII.encode(value)
    if _MARK not in text:
        put(front + text + behind)
        return
    put(front)
    long = [one for one in value.values() if isinstance(one, LongText)]
    for part, one in zip_longest(text.split(_LONG), long):
        put(_MARKED.sub(r"\1", part))
        if one is not None:
            put('"')
            for piece in one.json_pieces():
                put(piece)
            put('"')
    put(behind)
