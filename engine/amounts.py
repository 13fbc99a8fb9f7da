"""Durations, rates and sizes as people write them: on a command line, in the environment, in a configuration file."""

from __future__ import annotations

import re

_AMOUNT = re.compile(r"(\d{1,18}(?:\.\d{1,6})?)\s*([A-Za-z]*)", re.ASCII)
_SECONDS = {"": 1, "ms": 0.001, "s": 1, "sec": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}
_BYTES = {"": 1, "b": 1} | {
    f"{letter}{tail}": base**power
    for power, letter in enumerate("kmgt", start=1)
    for tail, base in (("", 1024), ("ib", 1024), ("b", 1000))
}


def _amount(text: str, units: dict[str, float] | dict[str, int], example: str) -> float:
    match = _AMOUNT.fullmatch(text.strip())
    unit = match[2].lower() if match else ""
    if match is None or unit not in units:
        raise ValueError(f"{text!r} is not understood; write for instance {example}")
    value = float(match[1]) * units[unit]
    if value <= 0:
        raise ValueError(f"{text!r} must be more than nothing")
    return value


def parse_duration(text: str) -> float:
    """Seconds from text such as ``30s``, ``5m``, ``2h`` or a bare number.  Raises ValueError."""
    return _amount(text, _SECONDS, "30s, 5m or 2h")


def parse_rate(text: str) -> int:
    """Bytes a second from text such as ``100MiB`` (1024), ``100MB`` (1000), ``100M`` (1024).  Raises ValueError."""
    return max(1, int(_amount(text.strip().removesuffix("/s"), _BYTES, "100MiB or 2GiB")))


def parse_size(text: str) -> int:
    """Bytes from text such as ``256KiB`` (1024), ``1GB`` (1000) or a bare number.  Raises ValueError."""
    return max(1, int(_amount(text, _BYTES, "256KiB or 1GB")))
