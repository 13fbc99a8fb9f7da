"""Records with their data in the form that was asked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from waltzctl import lossless_json
from waltzctl.engine.columns.column import Object
from waltzctl.engine.columns.column_kinds import base64_text
from waltzctl.engine.columns.record_columns import RECORD
from waltzctl.options import DataForm

if TYPE_CHECKING:
    from waltzctl.engine.client.inspect import NodeRecord
    from waltzctl.engine.inspect.dump import DumpedRecord

_DEEPEST = 500
"""Nesting levels up to which data is shown as JSON.  Python reads about a thousand, and writes fewer, by its recursion limit."""
_LONG = 1 << 20
"""Bytes of data whose text is made in pieces.  Of data of 100 MiB the text, the line, and the line in bytes took 500 MiB."""
PREVIEW = 400
"""Bytes of data that are decoded for a table on a terminal; no line is longer."""


def record_object(record: DumpedRecord | NodeRecord, form: DataForm | None, preview: int | None = None) -> Object:
    """**record**.  `form` None: text for a table, of the first `preview` bytes (None: of all)."""
    data = {} if record.data is None else data_keys(record.data, form, preview)
    return RECORD.named({**RECORD.keys(record), **data})


def data_keys(data: bytes, form: DataForm | None, preview: int | None = None) -> Object:
    """The key or keys that hold a record's data; text of long data is made while it is written."""
    if form is DataForm.BASE64:
        return {"data_b64": _text(data, base64_text)}
    if form is DataForm.HEX:
        return {"data_hex": _text(data, bytes.hex)}
    if form is DataForm.NONE:
        return {}
    if form is None:
        return {"data": data[:preview].decode(errors="backslashreplace")}
    try:
        if form is DataForm.UTF8:
            return {"data": data.decode() if len(data) < _LONG else lossless_json.LongUtf8(data)}
        return {"data": _parsed(data.decode())}
    except (ValueError, RecursionError):
        return {"data": None, "data_b64": _text(data, base64_text)}


def _text(data: bytes, text_of: Callable[[bytes], str]) -> str | lossless_json.LongText:
    return text_of(data) if len(data) < _LONG else lossless_json.LongText(data, text_of)


def _parsed(text: str) -> Any:
    value = lossless_json.read_shortest(text)
    if text.count("[") + text.count("{") > _DEEPEST and _is_deeper(value, _DEEPEST):
        raise ValueError(f"more than {_DEEPEST} levels")
    return value


def _is_deeper(value: Any, levels: int) -> bool:
    level = [value]
    for _ in range(levels):
        level = [
            inner
            for one in level
            if isinstance(one, dict | list)
            for inner in (one.values() if isinstance(one, dict) else one)
        ]
    return any(isinstance(one, dict | list) for one in level)
