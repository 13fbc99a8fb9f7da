"""hexdump: bytes, with the name and value of every field beside them.

Field names, offsets and sizes come from the format's own schemas; nothing is restated here.  Fields take eight bytes a line,
data sixteen with its printable characters; the number in front is the offset in the file.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable, Iterator
from pathlib import PurePath
from typing import TYPE_CHECKING, TextIO

from waltzctl.engine.errors import DiskReadError
from waltzctl.engine.findings import Finding
from waltzctl.engine.inspect.dump import ControlDump, DumpedRecord, IndexEntry, SegmentDump
from waltzctl.engine.log import places
from waltzctl.engine.log.target import Target, TargetKind
from waltzctl.formats.adapters import format_time
from waltzctl.formats.control import CONTROL_HEADER, Layout, PartitionInfo
from waltzctl.formats.segment import (
    CHECKSUM,
    ENTRY_SIZE,
    INDEX_ENTRY,
    INDEX_SUFFIX,
    RECORD_HEADER,
    SEGMENT_HEADER,
    SEGMENT_SUFFIX,
    index_name,
    segment_name,
)
from waltzctl.values import printable

if TYPE_CHECKING:
    from waltzctl.formats.schema import CompiledSchema, Field

FIELD_BYTES = 8
DATA_BYTES = 16
NAME_WIDTH = 28
DAMAGE_SHOWN = 4096
"""Bytes of a damaged place that are shown, at most."""


_PAIR = re.compile(r"^structs\.([01])\.")
"""The two structs of a partition info, which are numbered from 1 in the output."""


def _hex(data: bytes) -> str:
    return data.hex(" ")


def field_line(offset: int, data: bytes, name: str, value: str) -> str:
    """The first line of a field."""
    return f"{offset:08x}  {_hex(data[:FIELD_BYTES]):<23}  {name:<{NAME_WIDTH}} {value}".rstrip()


def _value(field: Field, data: bytes, decoded: int | bytes) -> str:
    if field.name == "created" and isinstance(decoded, int):
        return f"{decoded}  {format_time(decoded) or ''}".rstrip()
    if field.name.endswith("cluster_key"):
        return str(uuid.UUID(bytes=data))
    if isinstance(decoded, bytes):
        return f"{len(data)} bytes, all zero" if not any(data) else f"{len(data)} bytes"
    if field.name.endswith("checksum"):
        return f"{decoded:08x}"
    return str(decoded)


def schema_lines(schema: CompiledSchema, data: bytes, base: int, *, prefix: str = "") -> Iterator[str]:
    """Every field of the structure with the bytes `data` at the offset `base` in its file.

    If `data` is too short, its last fields are left out, and a last line says so.
    """
    if len(data) < schema.size:
        whole = [field for field in schema.fields if field.offset + field.size <= len(data)]
        padded = data + bytes(schema.size - len(data))
        values = schema.struct.unpack(padded)[: len(whole)]
    else:
        whole, values = list(schema.fields), schema.struct.unpack_from(data)
    for field, decoded in zip(whole, values, strict=True):
        own = data[field.offset : field.offset + field.size]
        value = _value(field, own, decoded)
        name = prefix + _PAIR.sub(lambda match: f"struct{int(match[1]) + 1}.", field.name)
        yield field_line(base + field.offset, own, name, value)
        if isinstance(decoded, bytes) and any(own):
            for start in range(FIELD_BYTES, len(own), FIELD_BYTES):
                yield f"{base + field.offset + start:08x}  {_hex(own[start : start + FIELD_BYTES])}"
    if len(data) < schema.size:
        end = whole[-1].offset + whole[-1].size if whole else 0
        if end < len(data):
            yield from data_lines(data[end:], base + end)
        yield f"{base + len(data):08x}  cut short: {schema.size - len(data)} bytes are missing"


def data_lines(data: bytes, base: int) -> Iterator[str]:
    """Bytes without fields."""
    for start in range(0, len(data), DATA_BYTES):
        part = data[start : start + DATA_BYTES]
        text = "".join(chr(byte) if 0x20 <= byte < 0x7F else "." for byte in part)
        yield f"{base + start:08x}  {_hex(part):<47}  |{text}|"


def record_lines(data: bytes, base: int, *, with_data: bool = True) -> Iterator[str]:
    """A whole record: its fields, its data, its checksum."""
    yield from schema_lines(RECORD_HEADER, data[: RECORD_HEADER.size], base)
    body = data[RECORD_HEADER.size : -CHECKSUM.size]
    if body:
        yield f"{base + RECORD_HEADER.size:08x}  {'':<23}  {'data':<{NAME_WIDTH}} {len(body)} bytes"
        if with_data:
            yield from data_lines(body, base + RECORD_HEADER.size)
    end = len(data) - CHECKSUM.size
    yield from schema_lines(CHECKSUM, data[end:], base + end, prefix="record_")


class HexdumpWriter:
    """Shows the items of a dump as their bytes in the files.

    `target`: the target of the dump, which gives the paths of the files.  `with_data`: whether to show the records' data.
    """

    def __init__(self, stream: TextIO, target: Target, *, with_data: bool = True) -> None:
        self._stream = stream
        self._target = target
        self._with_data = with_data
        self._layout: Layout | None = None
        self._control_path = target.path
        self._heading = ""

    def write(self, item: DumpedRecord | IndexEntry | SegmentDump | ControlDump | PartitionInfo | Finding) -> None:
        """Show one item."""
        if isinstance(item, DumpedRecord):
            path = self._file(item.partition, item.segment, SEGMENT_SUFFIX)
            self._head(path)
            self._line(f"transaction {item.transaction_id}, {item.size} bytes")
            data = places.read_range(path, item.offset, item.size)
            self._lines(record_lines(data, item.offset, with_data=self._with_data))
        elif isinstance(item, Finding):
            self._finding(item)
        elif isinstance(item, IndexEntry):
            self._index_entry(item)
        elif isinstance(item, SegmentDump):
            for path in (item.path, item.path.with_suffix(INDEX_SUFFIX)):
                self._structure(path, SEGMENT_HEADER, 0)
        elif isinstance(item, PartitionInfo):
            assert self._layout is not None
            self._line(f"partition {item.partition}, struct {item.current or 'none'} in force")
            schema = self._layout.info_schema
            self._structure(self._control_path, schema, self._layout.info_offset(item.partition))
        else:
            self._layout, self._control_path = item.layout, item.path
            self._structure(item.path, CONTROL_HEADER, 0)

    def _file(self, partition: int | None, segment: int, suffix: str) -> PurePath:
        """The path of a segment's file."""
        target = self._target
        if target.kind in (TargetKind.SEGMENT, TargetKind.INDEX):
            return target.path.with_suffix(suffix)
        name = segment_name(segment) if suffix == SEGMENT_SUFFIX else index_name(segment)
        return (target.path / str(partition) if target.kind is TargetKind.STORAGE else target.path) / name

    def _structure(self, path: PurePath, schema: CompiledSchema, offset: int) -> None:
        try:
            data = places.read_range(path, offset, schema.size)
        except FileNotFoundError:
            return  # a finding reports it
        self._head(path)
        self._lines(schema_lines(schema, data, offset))

    def _index_entry(self, entry: IndexEntry) -> None:
        path = self._file(entry.partition, entry.segment, INDEX_SUFFIX)
        self._head(path)
        at = entry.position
        data = places.read_range(path, at, ENTRY_SIZE)
        if len(data) == ENTRY_SIZE:
            (value,) = INDEX_ENTRY.struct.unpack(data)
            self._line(field_line(at, data, f"transaction {entry.transaction_id}", f"at offset {value}"))

    def _finding(self, finding: Finding) -> None:
        path = places.place(str(finding.path))
        self._head(path)
        self._line(printable(f"!! {finding.severity} {finding.code}: {finding.message}"))
        if finding.offset is None or not finding.length:
            return
        try:
            data = places.read_range(path, finding.offset, min(finding.length, DAMAGE_SHOWN))
        except (FileNotFoundError, IsADirectoryError, DiskReadError):
            return  # unreadable bytes cannot be shown: the finding above is all
        self._lines(data_lines(data, finding.offset))
        if finding.length > DAMAGE_SHOWN:
            self._line(f"   and {finding.length - DAMAGE_SHOWN} bytes more")

    def _head(self, path: PurePath) -> None:
        heading = printable(str(path))
        if heading != self._heading:
            self._line(f"{'' if not self._heading else chr(10)}{heading}")
            self._heading = heading

    def _lines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self._line(line)

    def _line(self, text: str) -> None:
        self._stream.write(text + "\n")
