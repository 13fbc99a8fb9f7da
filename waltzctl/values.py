"""Parsing of typed values (partition ranges, durations, rates, percentages), and formatting of values for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from waltzctl import lossless_json
from waltzctl.engine.amounts import format_ranges, parse_duration, parse_ranges, parse_rate, parse_size

__all__ = [
    "counted",
    "data_text",
    "format_ranges",
    "human_bytes",
    "human_duration",
    "parse_duration",
    "parse_percent",
    "parse_ranges",
    "parse_rate",
    "parse_size",
    "printable",
    "verdict",
]


def parse_percent(text: str) -> float:
    """A fraction between 0 and 1 from text such as ``10%``.  Raises ValueError."""
    try:
        share = float(text.strip().removesuffix("%").strip()) / 100
    except ValueError:
        raise ValueError(f"{text!r} is not a percentage; write for instance 10%") from None
    if not 0 < share <= 1:
        raise ValueError(f"{text!r}: a sample is more than 0% and at most 100%")
    return share


def human_bytes(count: int) -> str:
    """A size for people, in binary units."""
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" or value >= 100 else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def human_duration(seconds: float) -> str:
    """A duration for people: ``0.12s``, ``42s``, ``3m12s``, ``1h04m``."""
    if seconds < 10:
        return f"{seconds:.2f}s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    return f"{whole // 3600}h{whole % 3600 // 60:02d}m"


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """``1 record``, ``2 records``."""
    return f"{number} {noun if number == 1 else plural or noun + 's'}"


def verdict(status: str) -> str:
    """The first word of a conclusion, for the status of a summary: ``OK``, ``REPAIRABLE`` or ``FAILED``."""
    return {"clean": "OK", "repairable": "REPAIRABLE"}.get(status, "FAILED")


def printable(text: str) -> str:
    r"""Text for one line of a terminal or of plain output.

    Control characters are escaped, so that a file name can neither break a line nor drive the terminal; a byte of a name
    that is no UTF-8 becomes ``\\xff``.
    """
    if text.isprintable():
        return text
    return "".join(_escaped(character) for character in text)


def _escaped(character: str) -> str:
    if character.isprintable():
        return character
    if character in "\t\n\r":
        return {"\t": "\\t", "\n": "\\n", "\r": "\\r"}[character]
    code = ord(character)
    if 0xDC80 <= code <= 0xDCFF:  # a byte that the file system's encoding could not decode
        return f"\\x{code - 0xDC00:02x}"
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def data_text(shown: Mapping[str, Any]) -> str | lossless_json.LongText | None:
    """The key `data` of an object as text: a string as it is, any other value as JSON; None where the object has no such key."""
    value = shown.get("data")
    if value is None and ("data" not in shown or "data_b64" in shown):
        return None
    return value if isinstance(value, str | lossless_json.LongText) else lossless_json.encode(value, ascii_only=False)
