"""The definition of an output object (a record, a finding, ...): its name, its columns, and the formats derived from them.

An `ObjectType` is a list of columns, in the stable order of the output.  Each `Column` defines its name, the kind of its values
(`ColumnKind`: form, type, unit), its meaning, and how it is read from a value of the engine.  Derived from these definitions are

====================  =================================================================================================
JSON, ndjson          `ObjectType.shown`: a key for each column, `schema` and `type` in front
plain                 the same keys as columns (waltzctl/render/plain.py)
JSON Schema           `ObjectType.schema` (docs/schemas/generate.py writes the files)
table on a terminal   `ObjectType.headed`: the columns with a `title` (waltzctl/render/table.py lays them out)
Spark and Arrow       the columns that stand in a view, their types by `ColumnKind.spark` (engine/spark/view_schemas.py)
the page of columns   docs/schemas/columns.md (docs/schemas/generate.py)
====================  =================================================================================================

Columns are only added, and at the end; names and meanings do not change.  A missing value is None, and every column of a view may
be null.  Several values are an array in JSON; in Python a tuple if they are plain values and a list if they are objects, by which
the plain format tells columns from lines.  A value is read by its attributes, whatever its class; so this package imports nothing
of the engine, and the same definition reads a record of a file, of a node, and a batch of records in NumPy columns.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache, cached_property
from operator import attrgetter
from typing import Any

Schema = dict[str, Any]
"""A JSON Schema (2020-12)."""
Object = dict[str, Any]
"""One JSON object, its keys in the order of the columns."""
Read = Callable[[Any], Any]
ABSENT: Any = object()
"""The value of an optional column whose key is omitted."""
_NAMED: dict[str, ObjectType] = {}
"""The object types by name."""


@dataclass(frozen=True, slots=True)
class ColumnKind:
    """The kind of a column's values.

    ========= ==============================================================================================
    `word`    the name of the kind, for people
    `schema`  the JSON Schema of a value
    `spark`   the type in Spark's DDL; empty if no view has such values
    `shown`   converts a value of the engine (never None) to JSON; None: they are the same
    `unit`    the unit of numbers
    `right`   whether cells of a table are aligned to the right
    `inner`   the columns, if the values are objects
    ========= ==============================================================================================
    """

    word: str
    schema: Schema
    spark: str = ""
    shown: Read | None = None
    unit: str = ""
    right: bool = True
    inner: Columns | None = None

    def described(self, description: str) -> ColumnKind:
        """The same kind, with a `description` in its JSON Schema."""
        return replace(self, schema={**self.schema, "description": description})


class Form(enum.Enum):
    """How a cell of a table on a terminal shows a value (waltzctl/render/cells.py)."""

    TEXT = enum.auto()
    FILE_NAME = enum.auto()
    """The last part of a path."""
    SECOND = enum.auto()
    """A time to the second."""
    MINUTE = enum.auto()
    """A time to the minute."""
    BYTES = enum.auto()
    """A size in binary units."""
    DOTTED = enum.auto()
    """The numbers of an object with dots between them."""
    PAYLOAD = enum.auto()
    """Data in the requested encoding; the only cell that is truncated to the width of the terminal."""


class Stands(enum.Flag):
    """The outputs in which a column appears."""

    TABLE_ONLY = 0
    OBJECT = enum.auto()
    """JSON, ndjson, plain and the JSON Schema."""
    VIEW = enum.auto()
    """Spark, Arrow and the tables that are written from them."""
    BOTH = OBJECT | VIEW


@dataclass(frozen=True, slots=True)
class Column:
    """One column of an object.

    ============ ===========================================================================================
    `read`       reads the value from the engine's object; None: its attribute `name`
    `given`      the engine's object does not have it; the caller passes it to `Columns.keys`
    `optional`   the key may be omitted
    `stands`     the outputs in which it appears
    `in_view`    an addition to `meaning` in the documentation of views
    `on_request` in a view only if it is selected by name
    `title`      the heading in a table; empty: not in tables
    `cell`       the form of its cells, or a function that makes a cell from the whole JSON object
    `right`      alignment to the right, if it differs from that of `kind`
    ============ ===========================================================================================
    """

    name: str
    kind: ColumnKind
    meaning: str = ""
    read: Read | None = None
    given: bool = False
    optional: bool = False
    stands: Stands = Stands.BOTH
    in_view: str = ""
    on_request: bool = False
    title: str = ""
    cell: Form | Callable[[Object], str] = Form.TEXT
    right: bool | None = None

    @property
    def value(self) -> Read:
        """The function that reads the engine's value.  It raises KeyError for a `given` column that is not optional."""
        if self.given:
            return self._not_given
        return self.read or attrgetter(self.name)

    def _not_given(self, _source: Any) -> Any:
        if self.optional:
            return ABSENT
        raise KeyError(self.name)

    @property
    def of(self) -> Read:
        """The function that reads the value as it is in JSON."""
        value, shown = self.value, self.kind.shown
        if shown is None:
            return value

        def read(source: Any) -> Any:
            found = value(source)
            return found if found is None or found is ABSENT else shown(found)

        return read


@dataclass(frozen=True)
class Columns:
    """The columns of an object, or of one inside another."""

    columns: tuple[Column, ...]

    @cached_property
    def printed(self) -> tuple[Column, ...]:
        """The columns that are keys of the JSON object."""
        return tuple(one for one in self.columns if Stands.OBJECT in one.stands)

    @cached_property
    def _readers(self) -> tuple[tuple[str, Read], ...]:
        return tuple((one.name, one.of) for one in self.printed)

    def keys(self, value: Any, **given: Any) -> Object:
        """The JSON object without `schema` and `type`.  `given`: JSON values by column name, used instead of reading `value`.

        An optional key is omitted if it is not given, or ABSENT.
        """
        made: Object = {}
        for name, read in self._readers:
            found = given[name] if name in given else read(value)
            if found is not ABSENT:
                made[name] = found
        return made

    @property
    def strict(self) -> Schema:
        """The JSON Schema of the object inside of other objects, without `schema` and `type`."""
        return strict(self.printed)


def strict(columns: Iterable[Column], front: Schema | None = None) -> Schema:
    """The JSON Schema of an object with exactly the keys of `front`, followed by those of `columns`."""
    known = tuple(columns)
    return {
        "type": "object",
        "properties": {**(front or {}), **{one.name: one.kind.schema for one in known}},
        "required": [*(front or {}), *(one.name for one in known if not one.optional)],
        "additionalProperties": False,
    }


@dataclass(frozen=True)
class ObjectType(Columns):
    """A top-level object, with a name.  `meaning`: its description, a sentence.

    `leading`: the columns that come first in a table.
    """

    name: str
    meaning: str
    leading: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _NAMED[self.name] = self

    @property
    def identity(self) -> str:
        """The value of its key `schema`."""
        return f"waltzctl.{self.name}/1"

    def named(self, keys: Object) -> Object:
        """The top-level object with these keys: `schema` and `type` are put in front."""
        return {"schema": self.identity, "type": self.name, **keys}

    def shown(self, value: Any, **given: Any) -> Object:
        """The JSON object as it is printed; `given` as for `keys`."""
        return self.named(self.keys(value, **given))

    @cached_property
    def headed(self) -> tuple[Column, ...]:
        """The columns of a table on a terminal, in their order there."""
        titled = {one.name: one for one in self.columns if one.title}
        return tuple(titled[name] for name in dict.fromkeys((*self.leading, *titled)))

    @property
    def schema(self) -> Schema:
        """The whole JSON Schema."""
        return {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "$id": self.identity,
            "title": self.name,
            "description": self.meaning,
            **strict(self.printed, {"schema": {"const": self.identity}, "type": {"const": self.name}}),
        }


@cache
def names_within(type_name: str, key: str) -> tuple[str, ...]:
    """The keys of the object that is the value of `key` where it is not null; none for a value that is no object."""
    columns = _NAMED[type_name].printed if type_name in _NAMED else ()
    inner = next((one.kind.inner for one in columns if one.name == key), None)
    return () if inner is None else tuple(one.name for one in inner.printed)


def or_null(kind: ColumnKind) -> ColumnKind:
    """The kind `kind`, or null for a missing value."""
    return replace(kind, schema={"anyOf": [kind.schema, {"type": "null"}]}, word=f"{kind.word} or null")


def struct(columns: Columns) -> ColumnKind:
    """The kind of objects inside of other objects, with these columns."""
    fields = ",".join(f"{one.name}:{one.kind.spark}" for one in columns.printed)
    word = columns.name if isinstance(columns, ObjectType) else "object"
    return ColumnKind(word, columns.strict, f"struct<{fields}>", columns.keys, inner=columns)


def listed(kind: ColumnKind, *, exactly: int | None = None) -> ColumnKind:
    """The kind of lists of `kind`; `exactly`: the number of items, if it is always the same."""
    shown, gather = kind.shown, tuple if kind.inner is None else list

    bounds = {} if exactly is None else {"minItems": exactly, "maxItems": exactly}

    def each(values: Iterable[Any]) -> Iterator[Any]:
        return iter(values) if shown is None else map(shown, values)

    return replace(
        kind,
        word=f"list of {kind.word}",
        schema={"type": "array", "items": kind.schema, **bounds},
        spark=f"array<{kind.spark}>",
        shown=lambda values: gather(each(values)),
    )
