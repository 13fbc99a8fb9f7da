"""The columns of the Spark data source: one table for each view, from which the schemas of Spark and of Arrow follow.

Names and meanings are those of the objects that the commands print, with `node` (the storage, as it was named) in front.
Integers are signed, offsets and sizes are bytes, checksums eight lower-case hex digits, times RFC 3339 in UTC.  Every column may
be null: it is where nothing is known, for instance everything but the place in a row that tells of damage.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from waltzctl.engine.errors import InvalidRequestError

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

REQUEST_ID = "struct<client:int,generation:int,partition:int,sequence:int>"
STRUCT = (
    "struct<session_id:bigint,low_water_mark:bigint,local_low_water_mark:bigint,available:boolean,assigned:boolean,"
    "flags:int,sequence:int,checksum:string,valid:boolean>"
)
_SIMPLE: dict[str, Any] = {
    "int": pa.int32(),
    "bigint": pa.int64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "boolean": pa.bool_(),
}


@dataclass(frozen=True, slots=True)
class Column:
    """A column: `kind` is its type as Spark's DDL spells it.  `on_request`: only there when it was asked for by name."""

    name: str
    kind: str
    meaning: str
    on_request: bool = False


_NODE = Column("node", "string", "the storage (directory or URL) as it was named")
_PARTITION = Column("partition", "int", "the partition, by its directory")
_SEGMENT = Column("segment", "bigint", "first transaction id in the name of the data file")

RECORD_COLUMNS: tuple[Column, ...] = (
    _NODE,
    _PARTITION,
    _SEGMENT,
    Column("transaction_id", "bigint", "the record's id; of damage: the first id that is expected there"),
    Column("offset", "bigint", "where the record (or the damage) begins in the data file"),
    Column("size", "bigint", "bytes of the record (or of the damage)"),
    Column("request_id", REQUEST_ID, "who appended the record, and where in its own order"),
    Column("header", "int", "the application's own number"),
    Column("data_length", "int", "bytes of the record's data"),
    Column("data_checksum", "string", "CRC-32 of the data, as stored"),
    Column("record_checksum", "string", "CRC-32 of everything in front of it, as stored"),
    Column("data", "binary", "the record's data", on_request=True),
    Column("finding", "string", "code of what is wrong here; null where all is well"),
    Column("missing", "bigint", "of damage: how many transactions are missing from there on; null where nobody knows"),
)
CONTROL_COLUMNS: tuple[Column, ...] = (
    _NODE,
    Column("path", "string", "the control file"),
    Column("layout", "string", "documented or released"),
    Column("version", "int", "the header's format version"),
    Column("created", "string", "when the file was made"),
    Column("cluster_key", "string", "the cluster's key"),
    Column("num_partitions", "int", "how many partitions the cluster has"),
    Column("size", "bigint", "bytes of the file"),
    Column("partition", "int", "the partition, by the place of its info in the file"),
    Column("stored_partition", "int", "the partition that the info itself names"),
    Column("current", "int", "which struct is in force: 1 or 2; null if neither is valid"),
    Column("structs", f"array<{STRUCT}>", "both structs of the pair"),
)
SEGMENT_COLUMNS: tuple[Column, ...] = (
    _NODE,
    Column("path", "string", "the data file"),
    _PARTITION,
    _SEGMENT,
    Column("version", "int", "the header's format version"),
    Column("created", "string", "when the file was made"),
    Column("cluster_key", "string", "the header's cluster key"),
    Column("first_transaction_id", "bigint", "the header's first transaction id"),
    Column("last_transaction_id", "bigint", "id of the last intact record; null if there is none"),
    Column("records", "bigint", "intact records, by both ends of the segment"),
    Column("data_bytes", "bigint", "bytes of the data file"),
    Column("index_bytes", "bigint", "bytes of the index file"),
    Column("index", "string", "ok, missing or stale"),
)
INDEX_COLUMNS: tuple[Column, ...] = (
    _NODE,
    _PARTITION,
    _SEGMENT,
    Column("transaction_id", "bigint", "the id whose entry it is"),
    Column("offset", "bigint", "where the entry says that the record begins"),
)
FINDING_COLUMNS: tuple[Column, ...] = (
    _NODE,
    Column("code", "string", "what is wrong"),
    Column("severity", "string", "damage, repairable or note"),
    Column("path", "string", "the file or directory"),
    _PARTITION,
    _SEGMENT,
    Column("transaction_id", "bigint", "the first transaction that it concerns"),
    Column("offset", "bigint", "where in the file"),
    Column("length", "bigint", "how many bytes"),
    Column("message", "string", "what was found, in words (not stable)"),
    Column("remedy", "string", "the command that mends it; null where a person must decide"),
)
VIEWS: dict[str, tuple[Column, ...]] = {
    "records": RECORD_COLUMNS,
    "control": CONTROL_COLUMNS,
    "segments": SEGMENT_COLUMNS,
    "index": INDEX_COLUMNS,
    "findings": FINDING_COLUMNS,
}


def ddl(columns: Iterable[Column]) -> str:
    """The schema as Spark's DDL."""
    return ", ".join(f"`{one.name}` {one.kind}" for one in columns)


def pick(view: str, names: Sequence[str] | None, *, data: bool = False) -> tuple[Column, ...]:
    """Columns of a view by name, in that order; None: all but those on request (with `data`: these too).

    Raises InvalidRequestError for a name that the view does not have.
    """
    known = {one.name: one for one in VIEWS[view]}
    if names is None:
        return tuple(one for one in known.values() if data or not one.on_request)
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

    return StructType([StructField(one.name, _spark_type(one.kind), True) for one in columns])


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
        if kind != column.kind:
            raise InvalidRequestError(
                f"the schema says that column {field.name} is {kind}; in view {view} it is {column.kind}",
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
    return pa.schema([pa.field(one.name, arrow_type(one.kind), True) for one in columns])


@cache
def arrow_type(kind: str) -> pa.DataType:
    """The Arrow type of a column's kind."""
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
