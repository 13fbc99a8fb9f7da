"""Kinds of values that only commands print: verdicts, exit statuses, amounts, addresses."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from waltzctl.engine.columns.column import ColumnKind
from waltzctl.engine.columns.column_kinds import TEXT, one_of
from waltzctl.exit_status import ExitStatus


def _exit_status(label: Any) -> int:
    return int(ExitStatus.from_label(label) if isinstance(label, str) else label)


STATUS = one_of("clean", "repairable", "damaged")
EXIT_STATUS = replace(one_of(0, 1, 2, 3, 4, 5, 10, 11, 12, 13, 14, 130), shown=_exit_status)
"""Given by its label, the engine's name of it."""
UNMODIFIED = ColumnKind("false", {"const": False}, shown=bool)
ADDRESS = TEXT.described("host:port; an IPv6 address stands in brackets.")
PORT = ColumnKind("port", {"type": "integer", "minimum": 1, "maximum": 65535})
AMOUNT = ColumnKind("number", {"type": "number", "minimum": 0})
SECONDS = replace(AMOUNT, unit="s")
MILLISECONDS = replace(AMOUNT, unit="ms")
RATE = replace(AMOUNT, unit="1/s")
BYTE_RATE = replace(AMOUNT, unit="bytes/s")
POSITIVE = ColumnKind("count", {"type": "integer", "minimum": 1})
SHA256 = ColumnKind("SHA-256", {"type": "string", "pattern": "^[0-9a-f]{64}$"}, right=False)
RFC3339 = TEXT.described("RFC 3339 in UTC.")
