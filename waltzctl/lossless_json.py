"""JSON without loss: numbers keep all their digits, and a duplicate key is an error.

Python reads a number with a fraction or an exponent as a float, and writes it with the digits that identify the float.  Here a
number of a record is neither read nor shown as another number: where a float would lose digits, its text is kept.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections import Counter
from typing import Any

_MARK = os.urandom(16).hex()
"""A random prefix of numbers that are written as strings for a moment; no string of the input begins with it."""
_MARKED = re.compile(rf'"{_MARK}([^"]*)"')


class ExactNumber:
    """A number with a fraction or an exponent, as text.  Raises ValueError for one that is infinite as a float."""

    def __init__(self, text: str) -> None:
        if not math.isfinite(float(text)):
            raise ValueError(f"{text} is larger than the numbers that programs read")
        self.text = text

    def __repr__(self) -> str:
        return self.text


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
    raise TypeError(f"{type(value).__name__} is nothing that JSON has")


_ASCII, _UNICODE = (
    json.JSONEncoder(separators=(",", ":"), allow_nan=False, default=_marked, ensure_ascii=ascii_only)
    for ascii_only in (True, False)
)


def encode(value: Any, *, ascii_only: bool = True) -> str:
    """A value as JSON without spaces; without `ascii_only` characters beyond ASCII are not escaped."""
    text = (_ASCII if ascii_only else _UNICODE).encode(value)
    return _MARKED.sub(r"\1", text) if _MARK in text else text
