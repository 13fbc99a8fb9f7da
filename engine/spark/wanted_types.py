"""Types that a caller's schema may have in place of a view's: wider ones, and structs with some of their fields.

====================  =========================================================================================
a view's column       types that a schema may have for it
int                   int, bigint, double, a decimal with ten or more digits before the point
bigint                bigint, a decimal with nineteen or more digits before the point
timestamp             timestamp, or string: RFC 3339 in UTC with milliseconds, as the commands print it
struct                some of its fields, in any order, each of a type that may stand for its own
array                 an array of what may stand for its elements
====================  =========================================================================================

No value is ever truncated or rounded.  Rows are made with the view's own types, and cast before they are returned to Spark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

_DIGITS = {"int": 10, "bigint": 19}
"""Decimal digits of the largest value."""
ARROW_TYPES: dict[str, Any] = {
    "int": pa.int32(),
    "bigint": pa.int64(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "boolean": pa.bool_(),
    "timestamp": pa.timestamp("us", "UTC"),
}
"""Spark's types without parameters, and the Arrow type of each."""


def fits(kind: DataType, wanted: DataType) -> bool:
    """Whether a column of the type `kind` may be asked for as `wanted`."""
    from pyspark.sql import types

    if isinstance(kind, types.StructType):
        if not isinstance(wanted, types.StructType) or not wanted.fields:
            return False
        known = {field.name.lower(): field.dataType for field in kind.fields}
        names = [field.name.lower() for field in wanted.fields]
        return len(set(names)) == len(names) and all(
            field.name.lower() in known and fits(known[field.name.lower()], field.dataType) for field in wanted.fields
        )
    if isinstance(kind, types.ArrayType):
        return isinstance(wanted, types.ArrayType) and fits(kind.elementType, wanted.elementType)
    if isinstance(wanted, types.DecimalType):
        return wanted.precision - wanted.scale >= _DIGITS.get(kind.simpleString(), wanted.precision + 1)
    allowed = {"int": ("int", "bigint", "double"), "timestamp": ("timestamp", "string")}
    named = kind.simpleString()
    return wanted.simpleString() in allowed.get(named, (named,))


def arrow_schema_of(schema: StructType) -> pa.Schema:
    """The Arrow schema that Spark expects for a schema of such types: names, types, nullability."""
    return pa.schema([pa.field(one.name, _arrow(one.dataType), one.nullable) for one in schema.fields])


def _arrow(kind: DataType) -> pa.DataType:
    from pyspark.sql import types

    if isinstance(kind, types.StructType):
        return pa.struct(list(arrow_schema_of(kind)))
    if isinstance(kind, types.ArrayType):
        return pa.list_(pa.field("element", _arrow(kind.elementType), kind.containsNull))
    if isinstance(kind, types.DecimalType):
        return pa.decimal128(kind.precision, kind.scale)
    return ARROW_TYPES[kind.simpleString()]


def handed_on(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The batch with the names and types of `schema`, whose columns are those of the batch, in the same order."""
    if batch.schema.equals(schema):
        return batch
    arrays = [_cast(array, field.type) for array, field in zip(batch.columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _cast(array: Any, kind: pa.DataType) -> Any:
    if array.type.equals(kind):
        return array
    import pyarrow.compute as pc

    if pa.types.is_struct(kind):
        places = {field.name.lower(): number for number, field in enumerate(array.type)}
        parts = [_cast(array.field(places[field.name.lower()]), field.type) for field in kind]
        return pa.StructArray.from_arrays(parts, fields=list(kind), mask=array.is_null())
    if pa.types.is_list(kind):
        flat = _cast(array.flatten(), kind.value_type)  # without values under a null list
        lengths = pc.fill_null(pc.list_value_length(array), 0).to_numpy(zero_copy_only=False)
        offsets = pa.array([0, *lengths.cumsum().tolist()], pa.int32())
        return pa.ListArray.from_arrays(offsets, flat, type=kind, mask=array.is_null())
    if pa.types.is_string(kind):  # only a timestamp may be asked for as a string
        return pc.strftime(array.cast(pa.timestamp("ms", "UTC")), format="%Y-%m-%dT%H:%M:%SZ")
    return array.cast(kind)
