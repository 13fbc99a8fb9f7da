"""Strict decoding of JSON documents that this program wrote: unknown, missing or mistyped keys are errors (hostile input)."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NoReturn


def canonical(body: dict[str, Any]) -> bytes:
    """The bytes over which a document's checksum or signature is computed: sorted keys, no spaces, ASCII."""
    return json.dumps(body, sort_keys=True, separators=(",", ":")).encode()


class InvalidJsonError(ValueError):
    """A document that cannot be what this program wrote."""


class StrictObject:
    """A JSON object from which every key is taken exactly once, with a check of its type.

    A key that is missing or has a value of another type raises InvalidJsonError; so does `finish` for a key that was not taken.
    `where` names the object in messages.
    """

    def __init__(self, value: Any, where: str) -> None:
        if not isinstance(value, dict):
            raise InvalidJsonError(f"{where} is no object")
        self._value = dict(value)
        self._where = where

    def _fail(self, key: str, what: str) -> NoReturn:
        raise InvalidJsonError(f"{self._where}: {key} {what}")

    def _take(self, key: str) -> Any:
        if key not in self._value:
            self._fail(key, "is missing")
        return self._value.pop(key)

    def __contains__(self, key: str) -> bool:
        return key in self._value

    def text(self, key: str, valid: Callable[[str], object] | None = None, *, most: int = 4096) -> str:
        """A text of at most `most` characters for which `valid`, where given, returns something true."""
        value = self._take(key)
        if not isinstance(value, str) or len(value) > most or (valid is not None and not valid(value)):
            self._fail(key, "is not valid")
        return value

    def optional_text(self, key: str, valid: Callable[[str], object]) -> str | None:
        """As `text`, or null."""
        if self._value.get(key, "") is None:
            del self._value[key]
            return None
        return self.text(key, valid)

    def number(self, key: str) -> int:
        """An integer from 0 to 2^63 - 1."""
        value = self._take(key)
        if type(value) is not int or not 0 <= value < 2**63:
            self._fail(key, "is not a valid number")
        return value

    def optional_number(self, key: str, bound: int = 2**63) -> int | None:
        """An integer from -`bound` to `bound` - 1, signed 64 bits unless `bound` is given; or null."""
        if self._value.get(key, 0) is None:
            del self._value[key]
            return None
        value = self._take(key)
        if type(value) is not int or not -bound <= value < bound:  # times before 1970 are allowed
            self._fail(key, "is not a valid number")
        return value

    def items(self, key: str) -> list[Any]:
        """A list; its items are not checked."""
        value = self._take(key)
        if not isinstance(value, list):
            self._fail(key, "is no list")
        return value

    def optional_items(self, key: str) -> list[Any] | None:
        """A list, or None where the value is null."""
        if self._value.get(key, ()) is None:
            del self._value[key]
            return None
        return self.items(key)

    def names(self) -> tuple[str, ...]:
        """The keys that were not taken yet."""
        return tuple(self._value)

    def child(self, key: str) -> StrictObject | None:
        """An object inside this one, or null."""
        value = self._take(key)
        return None if value is None else StrictObject(value, f"{self._where}.{key}")

    def finish(self) -> None:
        """Raise InvalidJsonError if a key was not taken: it is not known."""
        if self._value:
            self._fail(", ".join(sorted(self._value)), "is not known")
