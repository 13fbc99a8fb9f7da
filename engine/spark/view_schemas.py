"""The views of the Spark data source, and the schemas of Spark and of Arrow that follow from their columns.

A view has the columns of the objects that the commands print (engine/columns), with `node` (the storage, as it was named) in
front.  Integers are signed, offsets and sizes are bytes, checksums eight lower-case hex digits, times RFC 3339 in UTC.  Every
column may be null: it is where nothing is known, for instance everything but the place in a row that tells of damage.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from waltzctl.engine.columns.column import Column, Columns, Stands
from waltzctl.engine.columns.column_kinds import TEXT
from waltzctl.engine.columns.control_columns import CONTROL, PARTITION_INFO
from waltzctl.engine.columns.finding_columns import FINDING
from waltzctl.engine.columns.record_columns import RECORD
from waltzctl.engine.columns.segment_columns import INDEX_ENTRY, SEGMENT
from waltzctl.engine.errors import InvalidRequestError

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_SIMPLE: dict[str, Any] = {
    "int": pa.int32(),
    "bigint": pa.int64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "boolean": pa.bool_(),
}
NODE = Column("node", TEXT, "the storage (directory or URL) as it was named", given=True, stands=Stands.VIEW)


def view(*objects: Columns) -> tuple[Column, ...]:
    """The columns of a view whose rows consist of these objects."""
    return (NODE, *(one for shown in objects for one in shown.columns if Stands.VIEW in one.stands))


RECORD_COLUMNS = view(RECORD)
VIEWS: dict[str, tuple[Column, ...]] = {
    "records": RECORD_COLUMNS,
    "control": view(CONTROL, PARTITION_INFO),
    "segments": view(SEGMENT),
    "index": view(INDEX_ENTRY),
    "findings": view(FINDING),
}


def ddl(columns: Iterable[Column]) -> str:
    """The schema as Spark's DDL."""
    return ", ".join(f"`{one.name}` {one.kind.spark}" for one in columns)


def pick(view: str, names: Sequence[str] | None, *, data: bool = False) -> tuple[Column, ...]:
    """Columns of a view by name, in that order; None: all but those on request (with `data`: these too).

    Names as in Spark, whatever the case.  Raises InvalidRequestError for a name that the view does not have.
    """
    known = {one.name: one for one in VIEWS[view]}
    if names is None:
        return tuple(one for one in known.values() if data or not one.on_request)
    names = [name.lower() if name.lower() in known else name for name in names]
    missing = [name for name in names if name not in known]
    if missing or not names:
        said = ", ".join(missing) if missing else "no column at all"
        raise InvalidRequestError(f"view {view} has no such column: {said}", advice=f"it has {', '.join(known)}")
    if len(set(names)) < len(names):
        raise InvalidRequestError(f"view {view}: a column is named twice: {', '.join(names)}")
    wanted = [*names, "data"] if data and "data" in known and "data" not in names else names
    return tuple(known[name] for name in wanted)


def spark_schema(columns: Iterable[Column]) -> StructType:
    """The schema as Spark's type; every column may be null."""
    from pyspark.sql.types import StructField, StructType

    return StructType([StructField(one.name, _spark_type(one.kind.spark), True) for one in columns])


def columns_of(view: str, schema: StructType) -> tuple[Column, ...]:
    """The columns that a caller's schema names, in its order; names as in Spark, whatever the case.

    Raises InvalidRequestError where a name or a type is none of the view's.
    """
    known = {one.name: one for one in VIEWS[view]}
    chosen = []
    for field in schema.fields:
        column = known.get(field.name.lower())
        if column is None:
            raise InvalidRequestError(
                f"the schema names a column {field.name}, which view {view} does not have",
                advice=f"its columns are {ddl(VIEWS[view])}",
            )
        kind = field.dataType.simpleString()
        if kind != column.kind.spark:
            raise InvalidRequestError(
                f"the schema says that column {field.name} is {kind}; in view {view} it is {column.kind.spark}",
                advice=f"its columns are {ddl(VIEWS[view])}",
            )
        if column in chosen:
            raise InvalidRequestError(f"the schema names column {field.name} twice")
        chosen.append(column)
    if not chosen:
        raise InvalidRequestError(
            f"the schema names no column of view {view}", advice=f"its columns are {ddl(VIEWS[view])}"
        )
    return tuple(chosen)


def arrow_schema(columns: Iterable[Column]) -> pa.Schema:
    """The schema as Arrow's type, the way Spark expects it."""
    return pa.schema([pa.field(one.name, arrow_type(one.kind.spark), True) for one in columns])


@cache
def arrow_type(kind: str) -> pa.DataType:
    """The Arrow type of one of Spark's, as its DDL spells it."""
    if kind in _SIMPLE:
        return _SIMPLE[kind]
    inner = kind[kind.index("<") + 1 : -1]
    if kind.startswith("array<"):
        return pa.list_(pa.field("element", arrow_type(inner), True))
    fields = (field.split(":") for field in inner.split(","))
    return pa.struct([pa.field(name, _SIMPLE[simple], True) for name, simple in fields])


@cache
def _spark_type(kind: str) -> Any:
    from pyspark.sql import types

    if kind in _SIMPLE:
        return {
            "int": types.IntegerType,
            "bigint": types.LongType,
            "string": types.StringType,
            "binary": types.BinaryType,
            "boolean": types.BooleanType,
        }[kind]()
    inner = kind[kind.index("<") + 1 : -1]
    if kind.startswith("array<"):
        return types.ArrayType(_spark_type(inner), True)
    fields = (field.split(":") for field in inner.split(","))
    return types.StructType([types.StructField(name, _spark_type(simple), True) for name, simple in fields])
