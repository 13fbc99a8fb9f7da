"""The views of the Spark data source, and their schemas for Spark and Arrow.

A view has the columns of the objects that the commands print (engine/columns), with `node` (the storage, as it was named) in
front.  Integers are signed, offsets and sizes are bytes, checksums eight lower-case hex digits, times timestamps.  Every
column may be null, namely where its value is unknown: in a row of a finding, for instance, all columns except the place, the
code and the number of lost transactions.
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
from waltzctl.engine.spark.wanted_types import ARROW_TYPES, fits

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

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

    Raises InvalidRequestError for a name that the view does not have, for a type that cannot stand for the column's own
    (`engine.spark.wanted_types`), and for a column that is said to be never null.
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
        if not fits(_spark_type(column.kind.spark), field.dataType):
            kind = field.dataType.simpleString()
            raise InvalidRequestError(
                f"the schema says that column {field.name} is {kind}; in view {view} it is {column.kind.spark}",
                advice=f"its columns are {ddl(VIEWS[view])}",
            )
        if not field.nullable:  # Spark optimizes `is null` away for such a column, and our columns have nulls
            raise InvalidRequestError(
                f"the schema says that column {field.name} is NOT NULL; every column of view {view} may be null",
                advice="leave NOT NULL out: a row that tells of damage has nothing but its place",
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
    """The schema as Arrow's type, as Spark expects it."""
    return pa.schema([pa.field(one.name, arrow_type(one.kind.spark), True) for one in columns])


@cache
def arrow_type(kind: str) -> pa.DataType:
    """The Arrow type of one of Spark's, as its DDL spells it."""
    if kind in ARROW_TYPES:
        return ARROW_TYPES[kind]
    inner = kind[kind.index("<") + 1 : -1]
    if kind.startswith("array<"):
        return pa.list_(pa.field("element", arrow_type(inner), True))
    fields = (field.split(":") for field in inner.split(","))
    return pa.struct([pa.field(name, ARROW_TYPES[simple], True) for name, simple in fields])


@cache
def _spark_type(kind: str) -> Any:
    from pyspark.sql import types

    if kind in ARROW_TYPES:
        return {
            "int": types.IntegerType,
            "bigint": types.LongType,
            "string": types.StringType,
            "binary": types.BinaryType,
            "boolean": types.BooleanType,
            "timestamp": types.TimestampType,
        }[kind]()
    inner = kind[kind.index("<") + 1 : -1]
    if kind.startswith("array<"):
        return types.ArrayType(_spark_type(inner), True)
    fields = (field.split(":") for field in inner.split(","))
    return types.StructType([types.StructField(name, _spark_type(simple), True) for name, simple in fields])
