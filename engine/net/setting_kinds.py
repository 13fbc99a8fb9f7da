"""Kinds of setting values: reading them from text and YAML, bounds, and writing them in messages."""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from os import fspath
from pathlib import Path
from typing import Any

from waltzctl.engine.amounts import parse_duration, parse_ranges, parse_size, write_duration, write_size
from waltzctl.engine.net.loopback import check_host

Value = str | int | float | bool | Path | None
OFF = "off"

_TRUE = ("true", "yes", "on", "1")
_FALSE = ("false", "no", "off", "0")


def _identity(value: Any) -> Any:
    return value


def _no_rule(value: Any) -> None:
    pass


@dataclass(frozen=True, slots=True)
class SettingKind:
    """A kind of value.

    - `expected`: its name in messages; `example`: shown with it where the form needs one.
    - `metavar`: in ``--help``; empty for a switch.
    - `of_text`: reads a value from text; raises ValueError.
    - `taken`: YAML types that are accepted besides text.
    - `least` (inclusive), `above` (exclusive), `most` (inclusive): bounds of a number.
    - `rule`: raises ValueError for any other value that is not allowed.
    - `written`: a value as text for people; `shown`: a value for machine-readable output.
    """

    expected: str
    metavar: str
    of_text: Callable[[str], Any]
    taken: tuple[type, ...] = ()
    example: str = ""
    least: float | None = None
    above: float | None = None
    most: float | None = None
    rule: Callable[[Any], None] = _no_rule
    written: Callable[[Any], str] = str
    shown: Callable[[Any], Any] = _identity

    def within(
        self, *, least: float | None = None, above: float | None = None, most: float | None = None
    ) -> SettingKind:
        """This kind with other bounds."""
        return replace(self, least=least, above=above, most=most)

    @property
    def allowed(self) -> str:
        """The allowed values, as text."""
        return ", ".join(filter(None, (self.expected, self.example and f"such as {self.example}", self._range)))

    @property
    def _range(self) -> str:
        least, above, most = (None if one is None else self.written(one) for one in (self.least, self.above, self.most))
        if least is not None and most is not None:
            return f"{least} to {most}"
        words = (("at least", least), ("more than", above), ("at most", most))
        return " and ".join(f"{word} {bound}" for word, bound in words if bound is not None)

    def read(self, given: object) -> Any:
        """A value from the configuration file.  Raises ValueError, whose text does not contain the value: it may be a secret."""
        if isinstance(given, str):
            return self.read_text(given)
        if type(given) in self.taken:
            return self.read_text(str(given).lower() if isinstance(given, bool) else str(given))
        wanted = f"{self.expected}, such as {self.example}" if self.example else self.expected
        hint = "; put it in quotation marks" if self.taken == () else ""
        raise ValueError(f"must be {wanted}, not {_yaml_name(given)}{hint}")

    def read_text(self, text: str) -> Any:
        """A value from the environment or the command line.  Raises ValueError."""
        value = self.of_text(text)
        if value is not None:
            self.judge(value)
        return value

    def judge(self, value: Any) -> None:
        """Raise ValueError for a value that is not allowed."""
        if (
            (self.least is not None and value < self.least)
            or (self.above is not None and value <= self.above)
            or (self.most is not None and value > self.most)
        ):
            raise ValueError(f"must be {self.expected}, {self._range}, not {self.written(value)}")
        self.rule(value)


def _yaml_name(given: object) -> str:
    names = {bool: "a truth value", int: "a number", float: "a fraction", list: "a list", dict: "a group of keys"}
    return names.get(type(given), f"a {type(given).__name__}")


def _path(text: str) -> Path:
    if not text or "\0" in text:
        raise ValueError("must be a path, not empty" if not text else "must be a path, which holds no zero byte")
    return Path(text)


def _integer(text: str) -> int:
    if not re.fullmatch(r"[+-]?\d{1,18}", text.strip(), re.ASCII):
        raise ValueError("must be a whole number")
    return int(text)


def _port_or_off(text: str) -> int | None:
    return None if text.strip().lower() in (OFF, "false") else _integer(text)


def _boolean(text: str) -> bool:
    word = text.strip().lower()
    if word not in _TRUE + _FALSE:
        raise ValueError("must be true or false")
    return word in _TRUE


def _listed(numbers: Iterable[int]) -> str:
    return ",".join(map(str, numbers))


def _seconds(text: str) -> float:
    return 0.0 if re.fullmatch(r"0+(s|ms)?", text.strip()) else parse_duration(text)


def _bytes(text: str) -> int:
    return 0 if re.fullmatch(r"0+", text.strip()) else parse_size(text)


def _not_empty(value: str) -> None:
    if not value.strip():
        raise ValueError("must not be empty")


def _filled_host(value: str) -> None:
    _not_empty(value)
    check_host(value)


def one_of(names: type[enum.StrEnum]) -> SettingKind:
    """The kind of an enumeration's members, case-insensitive."""
    expected = f"one of {', '.join(names)}"

    def read(text: str) -> enum.StrEnum:
        for one in names:
            if one.value == text.strip().lower():
                return one
        raise ValueError(f"must be {expected}")

    return SettingKind(expected, "|".join(names), read)


TEXT = SettingKind("a text", "TEXT", str)
FILLED_TEXT = replace(TEXT, rule=_not_empty)
HOST = SettingKind("an address or a host name", "TEXT", str, rule=check_host)
FILLED_HOST = replace(HOST, rule=_filled_host)
PATH = SettingKind("a path", "FILE", _path, shown=fspath)
COUNT = SettingKind("a whole number", "N", _integer, (int,), least=1)
PORT = SettingKind("a port", "PORT", _integer, (int,), least=0, most=65535)
PORT_OR_OFF = SettingKind(
    "a port or off",
    f"PORT|{OFF}",
    _port_or_off,
    (int, bool),  # YAML reads a bare off as false
    least=0,
    most=65535,
    written=lambda port: OFF if port is None else str(port),
)
SIZE = SettingKind("a number of bytes", "SIZE", _bytes, (int,), "16MiB", least=1, written=write_size)
SECONDS = SettingKind("a duration", "TIME", _seconds, (int, float), "30s", above=0, written=write_duration)
MILLISECONDS = SettingKind(
    "a whole number of milliseconds",
    "N",
    lambda text: _integer(text) / 1000,
    (int,),
    above=0,
    written=lambda seconds: f"{seconds * 1000:.0f}",
    shown=lambda seconds: round(seconds * 1000),
)
"""Whole milliseconds in text, seconds (float) as a value."""
PARTITIONS = SettingKind(
    "partition numbers",
    "LIST",
    parse_ranges,
    (int,),
    "0-3,7",
    written=_listed,
    shown=_listed,
)
SWITCH = SettingKind("true or false", "", _boolean, (bool,), written=lambda on: str(on).lower())
