"""plain: lines of columns separated by tabs, for ``cut``, ``awk`` and log files; never truncated.

- The first column is the object's name; the others are its keys in their fixed order (nested keys joined by a dot).
- A list of values is one column, with commas between the values.
- A list of objects within an object follows as lines of its own, named ``object.key``.
- Before the first line of each kind, a line that begins with ``#`` has the names of the columns.
- Sentences for people begin with ``#`` as well.
- A missing value, or an empty list, is ``-``.  Tabs, line ends and unprintable characters are escaped.
"""

from __future__ import annotations

from typing import Any, TextIO

from waltzctl.engine.columns.column import Object, names_within
from waltzctl.lossless_json import LongText
from waltzctl.values import data_text, printable

Row = tuple[str, dict[str, Any]]


def cell(value: Any) -> str:
    """A value as the text of a column."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (list, tuple)):
        return ",".join(cell(item) for item in value) or "-"
    return printable(str(value))


def rows(kind: str, shown: Object) -> list[Row]:
    """The object's own line, then the lines of the objects in it.

    Whether a value is a column, columns or lines depends on its declared type, not on its contents, so that neither an empty list
    nor an object that is missing moves a column.
    """
    own: dict[str, Any] = {}
    inner: list[Row] = []
    for key, value in shown.items():
        if key not in ("schema", "type"):
            _put(key, value, kind, shown, own, inner)
    return [(kind, own), *inner]


def _put(key: str, value: Any, kind: str, shown: Object, own: dict[str, Any], inner: list[Row]) -> None:
    """Add a key of an object.  A module function: a recursive closure would keep its objects until a garbage collection."""
    if key == "data":
        own[key] = data_text(shown)
    elif isinstance(value, dict):
        for name, item in value.items():
            _put(f"{key}.{name}", item, kind, shown, own, inner)
    elif isinstance(value, list):
        for item in value:
            inner.extend(rows(f"{kind}.{key}", item))
    elif value is None and (names := names_within(kind, key)):
        own.update(dict.fromkeys(f"{key}.{name}" for name in names))
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
            self._write_row(kind, [*columns.values()])

    def _write_row(self, kind: str, values: list[Any]) -> None:
        if not any(isinstance(one, LongText) for one in values):
            self._stream.write("\t".join((kind, *map(cell, values))) + "\n")
            return
        self._stream.write(kind)
        for one in values:
            self._stream.write("\t")
            for piece in map(printable, one.pieces()) if isinstance(one, LongText) else (cell(one),):
                self._stream.write(piece)
        self._stream.write("\n")

    def close(self) -> None:
        """Nothing to do: nothing is buffered."""
