"""Durations, rates, sizes and ranges of partitions as people write them: on command lines, in environment and configuration."""

from __future__ import annotations

import re
from collections.abc import Collection

from waltzctl.engine.errors import InvalidRequestError

_AMOUNT = re.compile(r"(\d{1,18}(?:\.\d{1,6})?)\s*([A-Za-z]*)", re.ASCII)
_SECONDS = {"": 1, "ms": 0.001, "s": 1, "sec": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}
_TAILS = (("iB", 1024), ("B", 1000))
_BYTES = {"": 1, "b": 1} | {
    f"{letter}{tail.lower()}": base**power
    for power, letter in enumerate("kmgt", start=1)
    for tail, base in (("", 1024), *_TAILS)
}

MAX_DURATION = 36_500 * 86_400
"""Seconds: the system cannot wait for 300 years, and nobody means to wait for one hundred."""
MAX_PARTITION = 2**31 - 1
MAX_LISTED = 1_000_000
"""Partitions in one range, at most: a longer range is a typing error, and its list would fill the memory."""

_RANGE = re.compile(r"(\d{1,10})(?:\s*-\s*(\d{1,10}))?", re.ASCII)


def _amount(text: str, units: dict[str, float] | dict[str, int], example: str) -> float:
    match = _AMOUNT.fullmatch(text.strip())
    unit = match[2].lower() if match else ""
    if match is None or unit not in units:
        raise ValueError(f"{text!r} is not understood; write for instance {example}")
    number = match[1]
    value = (float(number) if "." in number else int(number)) * units[unit]  # int: a float rounds large byte counts
    if value <= 0:
        raise ValueError(f"{text!r} must be more than nothing")
    return value


def parse_duration(text: str) -> float:
    """Seconds from text such as ``30s``, ``5m``, ``2h``, ``30d`` or a bare number.  Raises ValueError."""
    seconds = float(_amount(text, _SECONDS, "30s, 5m, 2h or 30d"))
    if seconds > MAX_DURATION:
        raise ValueError(f"{text!r} must be at most {MAX_DURATION // 86_400}d")
    return seconds


def parse_rate(text: str) -> int:
    """Bytes a second from text such as ``100MiB`` (1024), ``100MB`` (1000), ``100M`` (1024).  Raises ValueError.

    A bare number is refused: a user who writes 100 means megabytes, and at 100 bytes a second no inspection would end.
    """
    amount = text.strip().removesuffix("/s")
    if amount[-1:].isdecimal():
        raise ValueError(f"{text!r} has no unit; write for instance {amount}MiB, or {amount}B for bytes")
    return max(1, int(_amount(amount, _BYTES, "100MiB or 2GiB")))


def parse_size(text: str) -> int:
    """Bytes from text such as ``256KiB`` (1024), ``1GB`` (1000) or a bare number.  Raises ValueError."""
    return max(1, int(_amount(text, _BYTES, "256KiB or 1GB")))


def write_size(count: int) -> str:
    """The shortest text that `parse_size` reads back as exactly so many bytes: ``64MiB``, ``1GB``."""
    units = [(base**power, f"{letter}{tail}") for power, letter in enumerate("KMGT", start=1) for tail, base in _TAILS]
    exact = [(count // size, unit) for size, unit in units if count and count % size == 0]
    number, unit = min(exact, key=lambda one: one[0], default=(count, ""))
    return f"{number}{unit}"


def write_duration(seconds: float) -> str:
    """Text that `parse_duration` reads back, to the microsecond: ``500ms``, ``30s``, ``25m``."""
    if seconds % 1:
        number, unit = (seconds * 1000, "ms") if seconds < 1 else (seconds, "s")
        return f"{number:.6f}".rstrip("0").rstrip(".") + unit
    size, unit = next(
        (one for one in ((3600, "h"), (60, "m")) if seconds >= 2 * one[0] and not seconds % one[0]), (1, "s")
    )
    return f"{seconds / size:.0f}{unit}"


def format_ranges(numbers: Collection[int]) -> str:
    """The shortest text that `parse_ranges` reads back."""
    parts: list[str] = []
    ordered = sorted(set(numbers))
    start = 0
    for place, number in enumerate(ordered):
        if place + 1 < len(ordered) and ordered[place + 1] == number + 1:
            continue
        parts.append(str(number) if place == start else f"{ordered[start]}-{number}")
        start = place + 1
    return ",".join(parts)


def parse_ranges(text: str) -> tuple[int, ...]:
    """Partition numbers from text such as ``0-3,7``, sorted, each once.  Raises ValueError."""
    numbers: set[int] = set()
    for part in text.split(","):
        match = _RANGE.fullmatch(part.strip())
        if match is None:
            raise ValueError(f"{part.strip()!r} is neither a number nor a range; write for instance 0-3,7")
        first = int(match[1])
        last = int(match[2]) if match[2] else first
        if last < first:
            raise ValueError(f"{part.strip()}: the range runs backwards")
        if last > MAX_PARTITION:
            raise ValueError(f"{last}: partition numbers end at {MAX_PARTITION}")
        if last - first >= MAX_LISTED:
            raise ValueError(f"{part.strip()}: more than {MAX_LISTED} partitions")
        numbers.update(range(first, last + 1))
    return tuple(sorted(numbers))


def chosen_partitions(numbers: Collection[int] | None, count: int) -> list[int]:
    """The partitions in `numbers`, sorted; all of 0 to `count` - 1 for None.  Raises InvalidRequestError for any other number."""
    if numbers is None:
        return [*range(count)]
    if beyond := [one for one in numbers if not 0 <= one < count]:
        raise InvalidRequestError(f"partition {min(beyond)} does not exist: they are 0 to {count - 1}")
    return sorted(numbers)


def check_at_least(name: str, value: float, least: int) -> None:
    """Raise InvalidRequestError for a value below `least`, and for NaN, which would be waited for or tried for ever."""
    if not value >= least:  # false for NaN
        raise InvalidRequestError(f"{name}={value}: no less than {least} can be meant")
