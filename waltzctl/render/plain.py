"""plain: lines of columns with a tab between them, for ``cut``, ``awk`` and log files; never shortened.

The first column names the object, the others are its keys in their fixed order (nested ones joined by a dot).  Several values
of one key stand in one column, with commas between them.  A list of objects inside an object follows as lines of its own, named
``object.key``.  Before the first line of each kind stands a line that begins with ``#`` and names the columns; sentences for
people begin with ``#`` as well.  A missing value is ``-``, and so is a list of none; tabs, line ends and what cannot be printed
are escaped.
"""

from __future__ import annotations

from typing import Any, TextIO

from waltzctl.engine.columns.column import Object
from waltzctl.values import data_text, printable

Row = tuple[str, dict[str, Any]]


def cell(value: Any) -> str:
    """A value as a column shows it."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (list, tuple)):
        return ",".join(cell(item) for item in value) or "-"
    return printable(str(value))


def rows(kind: str, shown: Object) -> list[Row]:
    """The object's own line first, then those of the objects in it.

    What is a column and what are lines is decided by the type of the value and never by what is in it, so that an empty list
    shifts no column.
    """
    own: dict[str, Any] = {}
    inner: list[Row] = []
    for key, value in shown.items():
        if key not in ("schema", "type"):
            _put(key, value, kind, shown, own, inner)
    return [(kind, own), *inner]


def _put(key: str, value: Any, kind: str, shown: Object, own: dict[str, Any], inner: list[Row]) -> None:
    """One key of an object.  No function within `rows`: one that calls itself keeps all that it knows until Python looks."""
    if key == "data":
        own[key] = data_text(shown)
    elif isinstance(value, dict):
        for name, item in value.items():
            _put(f"{key}.{name}", item, kind, shown, own, inner)
    elif isinstance(value, list):
        for item in value:
            inner.extend(rows(f"{kind}.{key}", item))
    else:
        own[key] = value


class PlainWriter:
    """Lines of columns."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._headed: dict[str, tuple[str, ...]] = {}

    def write(self, shown: Object) -> None:
        """Show one object."""
        for kind, columns in rows(shown["type"], shown):
            names = tuple(columns)
            if self._headed.get(kind) != names:
                self._headed[kind] = names
                self._stream.write("\t".join((f"# {kind}", *names)) + "\n")
            self._stream.write("\t".join((kind, *map(cell, columns.values()))) + "\n")

    def close(self) -> None:
        """Nothing is held back."""
