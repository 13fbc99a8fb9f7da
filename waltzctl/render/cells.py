"""The cells of a table on a terminal: how a column's value is shown to a person."""

from __future__ import annotations

from collections.abc import Callable

from waltzctl.engine.columns.column import Column, Form, Object
from waltzctl.values import data_text, human_bytes, printable

Cell = Callable[[Object], str]


def cell_of(column: Column) -> Cell:
    """The function that makes the column's cell from an object."""
    return _FORMS[column.cell](column.name) if isinstance(column.cell, Form) else column.cell


def _text(name: str) -> Cell:
    def cell(shown: Object) -> str:
        value = shown[name]
        return "-" if value is None else printable(str(value))

    return cell


def _file_name(name: str) -> Cell:
    return lambda shown: printable(shown[name].rpartition("/")[2])


def _time(name: str, length: int) -> Cell:
    def cell(shown: Object) -> str:
        value = shown[name]
        return "-" if value is None else value[:length].replace("T", " ")

    return cell


def _bytes(name: str) -> Cell:
    return lambda shown: "-" if shown[name] is None else human_bytes(shown[name])


def _dotted(name: str) -> Cell:
    return lambda shown: ".".join(str(part) for part in shown[name].values())


def _payload(name: str) -> Cell:
    def cell(shown: Object) -> str:
        found = data_text(shown)
        if found is None:
            found = str(shown.get(f"{name}_hex") or shown.get(f"{name}_b64") or "")
        return printable(str(found))

    return cell


_FORMS: dict[Form, Callable[[str], Cell]] = {
    Form.TEXT: _text,
    Form.FILE_NAME: _file_name,
    Form.SECOND: lambda name: _time(name, 19),
    Form.MINUTE: lambda name: _time(name, 16),
    Form.BYTES: _bytes,
    Form.DOTTED: _dotted,
    Form.PAYLOAD: _payload,
}
