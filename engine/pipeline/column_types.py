"""A parser of schemas in Spark's notation, since the code that defines a pipeline must not ask the server to parse one.

``key STRING, at TIMESTAMP, tags ARRAY<STRING>, place STRUCT<x: DOUBLE, y: DOUBLE>``: names and types, separated by commas.  A
name with other characters than letters, digits and underscores is in backticks.  Constraints and comments are not supported.
"""

from __future__ import annotations

import inspect
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import DataType, StructType

_FIELD = re.compile(r"\s*(`[^`]+`|\w+)(?:\s*:\s*|\s+)(\S.*?)\s*\Z", re.DOTALL)
_NESTED = re.compile(r"(ARRAY|MAP|STRUCT)\s*<(.*)>\Z", re.IGNORECASE | re.DOTALL)
_DECIMAL = re.compile(r"(?:DECIMAL|DEC|NUMERIC)(?:\s*\(\s*(\d+)\s*(?:,\s*(\d+)\s*)?\))?\Z", re.IGNORECASE)
_SIMPLE = {
    "string": "StringType", "binary": "BinaryType", "boolean": "BooleanType", "date": "DateType",
    "timestamp": "TimestampType", "timestamp_ntz": "TimestampNTZType", "float": "FloatType", "real": "FloatType",
    "double": "DoubleType", "tinyint": "ByteType", "byte": "ByteType", "smallint": "ShortType", "short": "ShortType",
    "int": "IntegerType", "integer": "IntegerType", "bigint": "LongType", "long": "LongType",
}  # fmt: skip


def parse_columns(text: str) -> StructType:
    """Columns of a schema.  Raises ValueError."""
    from pyspark.sql.types import StructField, StructType

    fields = []
    for part in _split(text):
        found = _FIELD.match(part)
        if found is None:
            raise ValueError(f"{part.strip()!r} is no name with a type")
        fields.append(StructField(found[1].strip("`"), _type(found[2])))
    names = [one.name.lower() for one in fields]
    twice = next((one for place, one in enumerate(names) if one in names[:place]), None)
    if twice is not None:
        raise ValueError(f"{twice!r} is there twice")
    return StructType(fields)


def arrow_columns(columns: StructType) -> pa.Schema:
    """The columns as Spark hands them to Python, times with a zone in UTC."""
    from pyspark.sql.pandas.types import to_arrow_schema

    zone: dict[str, Any] = {"timezone": "UTC"} if "timezone" in inspect.signature(to_arrow_schema).parameters else {}
    return to_arrow_schema(columns, **zone)  # before Spark 4.2 UTC is the default


def _type(text: str) -> DataType:
    from pyspark.sql import types

    word = text.strip()
    if word.lower() in _SIMPLE:
        made: DataType = getattr(types, _SIMPLE[word.lower()])()
        return made
    if (decimal := _DECIMAL.match(word)) is not None:
        return types.DecimalType(int(decimal[1] or 10), int(decimal[2] or 0))
    nested = _NESTED.match(word)
    if nested is None:
        raise ValueError(
            f"{word!r} is no type; there are {', '.join(map(str.upper, _SIMPLE))}, DECIMAL, ARRAY, MAP, STRUCT"
        )
    kind, inside = nested[1].lower(), nested[2]
    if kind == "struct":
        return parse_columns(inside)
    parts = list(_split(inside))
    if len(parts) != (1 if kind == "array" else 2):
        raise ValueError(f"{word!r}: ARRAY has one type inside, MAP two")
    return types.ArrayType(_type(parts[0])) if kind == "array" else types.MapType(_type(parts[0]), _type(parts[1]))


def _split(text: str) -> list[str]:
    """Split at commas outside of brackets."""
    parts, depth = [""], 0
    for sign in text:
        depth += (sign in "<(") - (sign in ">)")
        if sign == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += sign
    if depth:
        raise ValueError(f"{text!r}: brackets do not match")
    return parts
