"""JSON that we wrote ourselves, read as if somebody hostile had written it: every key is asked for, once, with its kind."""

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
    """A JSON object whose every key must be asked for, once, with its kind; whatever does not fit raises InvalidJsonError.

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
        """A text of at most `most` characters, of which `valid` says something true."""
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
        """A number from 0 on that 63 bits hold."""
        value = self._take(key)
        if type(value) is not int or not 0 <= value < 2**63:
            self._fail(key, "is not a valid number")
        return value

    def optional_number(self, key: str, bound: int = 2**63) -> int | None:
        """A signed number from `-bound` to below `bound`, of 64 bits unless another is given; or null."""
        if self._value.get(key, 0) is None:
            del self._value[key]
            return None
        value = self._take(key)
        if type(value) is not int or not -bound <= value < bound:  # times before 1970 are allowed
            self._fail(key, "is not a valid number")
        return value

    def items(self, key: str) -> list[Any]:
        """A list; its items are the caller's affair."""
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
        """The keys that were not asked for yet."""
        return tuple(self._value)

    def child(self, key: str) -> StrictObject | None:
        """An object inside this one, or null."""
        value = self._take(key)
        return None if value is None else StrictObject(value, f"{self._where}.{key}")

    def finish(self) -> None:
        """Every key was asked for, or the object has one too many."""
        if self._value:
            self._fail(", ".join(sorted(self._value)), "is not known")
