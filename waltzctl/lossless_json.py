"""JSON of which nothing is lost: numbers keep their digits, whatever a float holds of them, and no key stands twice.

Python reads a number with a fraction or an exponent as a float, and writes it with as many digits as that needs.  What somebody
put into a record is neither read nor shown as another number here: where digits would be lost, the text stands for the number.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections import Counter
from typing import Any

_MARK = os.urandom(16).hex()
"""Before the text of a number while it is written as a string: nothing that is read begins with it."""
_MARKED = re.compile(rf'"{_MARK}([^"]*)"')


class ExactNumber:
    """A number with a fraction or an exponent, as it was written.  ValueError for one that programs read as infinite."""

    def __init__(self, text: str) -> None:
        if not math.isfinite(float(text)):
            raise ValueError(f"{text} is larger than the numbers that programs read")
        self.text = text

    def __repr__(self) -> str:
        return self.text


def read(text: str) -> Any:
    """A JSON value, its numbers with a fraction or an exponent as `ExactNumber`.

    Raises ValueError (json.JSONDecodeError) for what is no JSON, holds a number that cannot be read,
    or an object with a key twice, of which one value would be lost; RecursionError.
    """
    return json.loads(
        text, parse_float=ExactNumber, parse_int=_whole, parse_constant=_no_constant, object_pairs_hook=_object
    )


def read_shortest(text: str) -> Any:
    """As `read`, with a float wherever that is the number that was written: `1.50` is read as 1.5."""
    return json.loads(
        text, parse_float=_float_if_exact, parse_int=_whole, parse_constant=_no_constant, object_pairs_hook=_object
    )


def _float_if_exact(text: str) -> float | ExactNumber:
    from decimal import Decimal

    number, value = ExactNumber(text), float(text)
    try:
        return value if Decimal(repr(value)) == Decimal(text) else number
    except ArithmeticError:  # an exponent that no decimal has
        return number


def _whole(text: str) -> int | ExactNumber:
    """Of the whole numbers only this one has a sign that Python drops."""
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
    """A value as JSON without spaces; without `ascii_only` letters are written as they are."""
    text = (_ASCII if ascii_only else _UNICODE).encode(value)
    return _MARKED.sub(r"\1", text) if _MARK in text else text
