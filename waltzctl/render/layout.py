"""The layout of tables, findings and sentences for people.

Rows of one kind are buffered in blocks, so that columns are aligned while a million records still stream.  The columns are
defined by the objects.  Only a record's data is ever truncated, and only on a terminal, whose width is known.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, TextIO

from waltzctl.engine.columns.column import Form, Object
from waltzctl.render.cells import Cell, cell_of
from waltzctl.values import printable

BLOCK = 500
"""Rows of a block, whose columns are aligned."""

_STYLES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}
_SEVERITY_STYLE = {"damage": "red", "repairable": "yellow", "note": "cyan"}
_HEALTH_STYLE = {"ok": "green", "repairable": "yellow", "damaged": "red", "unassigned": "dim"}


@dataclass(frozen=True, slots=True)
class Heading:
    """A column: title, the function that makes the cell, alignment, and whether it is truncated at the terminal's edge."""

    title: str
    cell: Cell
    right: bool
    cut: bool


@cache
def headings(kind: str) -> tuple[Heading, ...]:
    """The columns of a table of objects of this kind; none where the kind is not shown as a table."""
    from waltzctl.objects.all_objects import OBJECTS
    from waltzctl.objects.pages_objects import BLOB_FILE
    from waltzctl.objects.status_objects import PARTITION_STATUS

    inner = {one.name: one for one in (PARTITION_STATUS, BLOB_FILE)}  # shown as tables within another object's view
    shown = inner.get(kind) or OBJECTS[kind]
    return tuple(
        Heading(one.title, cell_of(one), one.kind.right if one.right is None else one.right, one.cell is Form.PAYLOAD)
        for one in shown.headed
    )


class TableLayout:
    """Writes tables and views.  `width`: columns of the terminal; None: no terminal."""

    def __init__(self, stream: TextIO, *, width: int | None = None, colour: bool = False) -> None:
        self._stream = stream
        self._width = width
        self._colour = colour
        self._kind = ""
        self._held: list[Sequence[str]] = []
        self._widths: list[int] = []
        self._group: tuple[Any, Any] | None = None

    def row(self, kind: str, shown: Object) -> None:
        """Add an object as a row of its kind's table."""
        if kind != self._kind:
            self.close()
            self._kind, self._group = kind, None
        self._held.append([column.cell(shown) for column in headings(kind)])
        if len(self._held) >= BLOCK:
            self.show_rows()

    def close(self) -> None:
        """Write the buffered rows, and end the table: the next row gets a heading."""
        self.show_rows()
        self._kind, self._widths = "", []

    def show_rows(self) -> None:
        """Write the buffered rows; later rows continue the table."""
        if not self._held:
            return
        columns = headings(self._kind)
        titled = not self._widths
        widths = self._widths or [len(column.title) for column in columns]
        self._widths = [max(width, *(len(row[n]) for row in self._held)) for n, width in enumerate(widths)]
        if titled:
            self.line(self.paint("bold", self._laid_out([column.title for column in columns], columns)))
        for row in self._held:
            self.line(self._painted(self._laid_out(row, columns), row))
        self._held = []

    def _laid_out(self, cells: Sequence[str], columns: Sequence[Heading]) -> str:
        last = len(cells) - 1
        parts: list[str] = []
        for n, (text, column) in enumerate(zip(cells, columns, strict=True)):
            if n == last and not column.right:
                room = None if self._width is None or not column.cut else self._width - len("  ".join(parts)) - 2
                parts.append(text if room is None or len(text) <= max(room, 8) else text[: max(room, 8) - 1] + "…")
            else:
                parts.append(text.rjust(self._widths[n]) if column.right else text.ljust(self._widths[n]))
        return "  ".join(parts).rstrip()

    def _painted(self, text: str, row: Sequence[str]) -> str:
        style = _HEALTH_STYLE.get(row[1]) if self._kind == "partition-status" else None
        return self.paint(style, text) if style in ("red", "yellow", "dim") else text

    def paint(self, style: str | None, text: str) -> str:
        """The text in a style, if colours are enabled."""
        return f"\x1b[{_STYLES[style]}m{text}\x1b[0m" if self._colour and style else text

    def line(self, text: str = "") -> None:
        """One line."""
        self._stream.write(text + "\n")

    def wrapped(self, text: str, indent: str) -> None:
        """Write a sentence, wrapped at the terminal's width."""
        text = printable(text)
        if self._width is None:
            self.line(indent + text)
            return
        width = max(self._width, len(indent) + 20)
        for line in textwrap.wrap(
            text, width, initial_indent=indent, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
        ):
            self.line(line)

    def pairs(self, *pairs: tuple[str, Any]) -> None:
        """Names and values below each other."""
        width = max(len(name) for name, _ in pairs)
        for name, value in pairs:
            self.line(f"{name.ljust(width)}  {'-' if value is None else printable(str(value))}")

    def finding(self, shown: Object, indent: str = "") -> None:
        """Write a finding under a heading with its place; consecutive findings of one place share the heading."""
        group = (shown["partition"], shown["path"])
        if group != self._group:
            self._group = group
            where = "" if shown["partition"] is None else f"partition {shown['partition']}  "
            self.line(indent + self.paint("bold", f"{where}{printable(shown['path'])}"))
        place = []
        if shown["transaction_id"] is not None:
            place.append(f"transaction {shown['transaction_id']}")
        if shown["offset"] is not None:
            place.append(f"at offset {shown['offset']}")
        if shown["length"] is not None:
            place.append(f"{shown['length']} bytes")
        label = self.paint(_SEVERITY_STYLE.get(shown["severity"]), shown["severity"].upper().ljust(10))
        self.line(f"{indent}  {label}  {shown['code']}  {' '.join(place[:2])}{', ' if len(place) > 2 else ''}"
                  f"{' '.join(place[2:])}".rstrip())  # fmt: skip
        self.wrapped(shown["message"], indent + " " * 14)
