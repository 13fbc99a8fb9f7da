"""The kinds of values in output objects: their form in JSON, their type in Spark, and the conversion.

Identifiers, offsets and sizes are numbers (beyond 2^53 some readers of JSON round them), checksums eight lower-case hex digits,
times RFC 3339 in UTC with milliseconds, bytes base64 under a key that ends in ``_b64``.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from waltzctl.engine.columns.column import Column, ColumnKind, Columns, struct


def hex32(checksum: int) -> str:
    """A checksum as eight hex digits."""
    return f"{checksum & 0xFFFFFFFF:08x}"


def base64_text(data: bytes) -> str:
    """Bytes in standard base64."""
    return base64.b64encode(data).decode("ascii")


_INT32 = {"minimum": -(2**31), "maximum": 2**31 - 1}
_COUNT = {"type": "integer", "minimum": 0}

INTEGER = ColumnKind("integer", {"type": "integer"}, "bigint")
COUNT = ColumnKind("count", _COUNT, "bigint")
SIZE = replace(COUNT, unit="bytes")
OFFSET = SIZE
LENGTH32 = ColumnKind("count", _COUNT, "int", unit="bytes")
COUNT32 = ColumnKind("count", _COUNT, "int")
INT32 = ColumnKind("32-bit integer", {"type": "integer", **_INT32}, "int")
INT64 = ColumnKind("64-bit integer", {"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1}, "bigint")
PARTITION = ColumnKind("integer", {"type": "integer"}, "int")
BOOLEAN = ColumnKind("boolean", {"type": "boolean"}, "boolean", right=False)
TEXT = ColumnKind("text", {"type": "string"}, "string", right=False)
WORD = replace(TEXT, word="word", shown=str)
"""A member of an enumeration whose words are not listed."""
PATH = ColumnKind(
    "path",
    {"type": "string", "description": "As it was given; bytes that are no UTF-8 are lone surrogates."},
    "string",
    os.fspath,
    right=False,
)
CHECKSUM = ColumnKind("checksum", {"type": "string", "pattern": "^[0-9a-f]{8}$"}, "string", hex32)
KEY = ColumnKind(
    "UUID",
    {"type": "string", "pattern": "^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$"},
    "string",
    str,
    right=False,
)
TIME = ColumnKind(
    "time", {"type": "string", "pattern": r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$"}, "timestamp", right=False
)
BASE64 = ColumnKind(
    "base64",
    {"type": "string", "contentEncoding": "base64", "pattern": "^[A-Za-z0-9+/]*={0,2}$"},
    shown=base64_text,
    right=False,
)
HEX = ColumnKind("hex", {"type": "string", "pattern": "^([0-9a-f]{2})*$"}, right=False)
ANYTHING = ColumnKind("any JSON", {}, right=False)
BINARY = ColumnKind("bytes", {}, "binary", right=False)
"""In views only; JSON has text instead."""


def one_of(*values: object, spark: str = "string") -> ColumnKind:
    """The kind of an enumeration with these words or numbers; an enum member is printed as its value."""
    word = "one of " + ", ".join("null" if one is None else str(one) for one in values)
    return ColumnKind(word, {"enum": list(values)}, spark, _plain, right=False)


def _plain(value: Any) -> Any:
    return getattr(value, "value", value)  # a member of an enumeration, or what stands for one


LAYOUT = one_of("documented", "released")
RECOVERY_MODE = one_of("tolerate-torn-tail", "absolute-consistency", "point-in-time", "skip-damaged")
SEVERITY = one_of("damage", "repairable", "note")
REQUEST_ID = struct(
    Columns(
        (
            Column("client", INT32, "the client's id"),
            Column("generation", INT32, "of the partition's assignment to it"),
            Column("partition", INT32, "the partition"),
            Column("sequence", INT32, "which of its requests"),
        )
    )
)


def columns_named(columns: Iterable[Column], names: Iterable[str]) -> tuple[Column, ...]:
    """The columns of another object with these names, in this order, for objects that share columns."""
    known = {one.name: one for one in columns}
    return tuple(known[name] for name in names)
