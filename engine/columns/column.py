"""The description of an object: its name, its columns, and what follows from them.

An `ObjectType` is one table of columns in the order of the contract.  Each `Column` says once what it is called, what its values
are (`ColumnKind`: form, type, unit), what it means, and how it is read from the value that the engine hands out.  From that
follow

====================  =================================================================================================
JSON, ndjson          `ObjectType.shown`: a key for each column, `schema` and `type` in front
plain                 the same keys as columns (waltzctl/render/plain.py)
JSON Schema           `ObjectType.schema` (docs/schemas/generate.py writes the files)
table on a terminal   `ObjectType.headed`: the columns with a `title` (waltzctl/render/table.py lays them out)
Spark and Arrow       the columns that stand in a view, their types by `ColumnKind.spark` (engine/spark/view_schemas.py)
the page of columns   docs/schemas/columns.md (docs/schemas/generate.py)
====================  =================================================================================================

Columns are only ever added, at the end; names and meanings do not change.  A missing value is None, and every column of a view
may be null.  Of several values JSON makes an array: a tuple of plain ones, a list of objects, by which plain tells columns from
lines.  A value is read by attributes, never by its class, so this room imports nothing of the engine, and a record of a file,
of a node and a whole batch of them in NumPy columns are read by the same table.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from operator import attrgetter
from typing import Any

Schema = dict[str, Any]
"""A JSON Schema (2020-12)."""
Object = dict[str, Any]
"""One JSON object, keys in the order of the contract."""
Read = Callable[[Any], Any]
ABSENT: Any = object()
"""Read of an optional column whose key is left out."""


@dataclass(frozen=True, slots=True)
class ColumnKind:
    """What values are.

    `schema`: their form in JSON.  `spark`: their type in Spark's DDL, empty where no view has them.  `shown`: makes the value of
    JSON out of the engine's, and is never asked about None; None: they are the same.  `unit`: of numbers.  `right`: the side
    to which they lean in a table.  `word`: what people are told of it.  `inner`: the columns of objects.
    """

    word: str
    schema: Schema
    spark: str = ""
    shown: Read | None = None
    unit: str = ""
    right: bool = True
    inner: Columns | None = None

    def told(self, description: str) -> ColumnKind:
        """The same with a sentence in its JSON Schema."""
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
    """Data in whichever form it is there; the only cell that is cut at the terminal's edge."""


class Stands(enum.Flag):
    """Where a column stands."""

    TABLE_ONLY = 0
    OBJECT = enum.auto()
    """JSON, ndjson, plain and the JSON Schema."""
    VIEW = enum.auto()
    """Spark, Arrow and the tables that are written from them."""
    BOTH = OBJECT | VIEW


@dataclass(frozen=True, slots=True)
class Column:
    """One column of an object.

    `read`: from the engine's value; None: the attribute of that name.  `given`: no value has it, whoever shows the object says
    it.  `optional`: a key that may be left out.  `in_view`: what Spark's page says of it besides.  `on_request`: in a view only
    when it was asked for by name.  `title`: its heading in a table, where it stands in one; `cell`: the form of its cells, or
    what makes them of the shown object; `right`: which way they lean where that is not their kind's.
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
        """Reads the engine's value.  Raises KeyError for one that has to be given."""
        if self.given:
            return self._not_given
        return self.read or attrgetter(self.name)

    def _not_given(self, _source: Any) -> Any:
        if self.optional:
            return ABSENT
        raise KeyError(self.name)

    @property
    def of(self) -> Read:
        """Reads what JSON shows."""
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
        """Those that are keys of the object."""
        return tuple(one for one in self.columns if Stands.OBJECT in one.stands)

    @cached_property
    def _readers(self) -> tuple[tuple[str, Read], ...]:
        return tuple((one.name, one.of) for one in self.printed)

    def keys(self, value: Any, **given: Any) -> Object:
        """The object without `schema` and `type`.  `given`: what is not read from `value`, by name, as it is shown.

        An optional key is left out that is not given, or ABSENT.
        """
        made: Object = {}
        for name, read in self._readers:
            found = given[name] if name in given else read(value)
            if found is not ABSENT:
                made[name] = found
        return made

    @property
    def strict(self) -> Schema:
        """The JSON Schema of the object as it stands inside others."""
        return strict(self.printed)


def strict(columns: Iterable[Column], front: Schema | None = None) -> Schema:
    """The JSON Schema of an object with exactly these keys, behind those of `front`."""
    known = tuple(columns)
    return {
        "type": "object",
        "properties": {**(front or {}), **{one.name: one.kind.schema for one in known}},
        "required": [*(front or {}), *(one.name for one in known if not one.optional)],
        "additionalProperties": False,
    }


@dataclass(frozen=True)
class ObjectType(Columns):
    """An object with a name of its own.  `meaning`: what it is, in a sentence.

    `leading`: columns that a table shows in front of the others.
    """

    name: str
    meaning: str
    leading: tuple[str, ...] = ()

    @property
    def identity(self) -> str:
        """What stands in its key `schema`."""
        return f"waltzctl.{self.name}/1"

    def named(self, keys: Object) -> Object:
        """An object of its own, with `schema` and `type` in front."""
        return {"schema": self.identity, "type": self.name, **keys}

    def shown(self, value: Any, **given: Any) -> Object:
        """The object as it is printed."""
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


def or_null(kind: ColumnKind) -> ColumnKind:
    """The value may be missing, which is null."""
    return replace(kind, schema={"anyOf": [kind.schema, {"type": "null"}]}, word=f"{kind.word} or null")


def struct(columns: Columns) -> ColumnKind:
    """An object inside another."""
    fields = ",".join(f"{one.name}:{one.kind.spark}" for one in columns.printed)
    word = columns.name if isinstance(columns, ObjectType) else "object"
    return ColumnKind(word, columns.strict, f"struct<{fields}>", columns.keys, inner=columns)


def listed(kind: ColumnKind, *, exactly: int | None = None) -> ColumnKind:
    """Several values, or several objects; always so many of them where `exactly` says it."""
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
