"""What each byte of a file means: regions with the names of the compiled schemas, for a hexdump that a person can read."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from engine import disk
from engine.errors import DiskReadError, InvalidRequestError
from engine.findings import Finding
from engine.inspect.control_checks import inspect_control
from engine.inspect.dump_chunks import SegmentReader
from engine.inspect.dump_index import entry_findings
from engine.inspect.dump_records import settled
from engine.inspect.index_checks import CHUNK, IndexReader
from engine.inspect.limits import Limits
from engine.inspect.partition_runs import runs
from engine.inspect.record_checks import damage_finding, tail_finding
from engine.inspect.segment_checks import FilesChangedError, unreadable
from engine.inspect.segment_job import SegmentJob
from engine.inspect.targets import look_around, plan
from engine.scan.columns import Damage, DamageCause, RecordBatch
from engine.scan.source import ByteSource, read_bytes
from engine.storage.view import TargetKind, resolve
from formats.adapters import format_time
from formats.control import CONTROL_FILE_NAME, CONTROL_HEADER
from formats.schema import CompiledSchema, Field
from formats.segment import (
    CHECKSUM,
    ENTRY_SIZE,
    HEADER_SIZE,
    INDEX_ENTRY,
    RECORD_HEADER,
    SEGMENT_HEADER,
    entry_position,
)

PIECE = 64 << 10
"""Bytes of data, or of a damaged span, that one region has at most."""


@dataclass(frozen=True, slots=True)
class Region:
    """Bytes of a file and what they are.

    `name`: the field's name in the schema, with what it belongs to in front; `meaning`: its value in words.  A damaged region
    carries its finding, and its name is *damaged*.  Long data comes as several regions.
    """

    path: Path
    offset: int
    data: bytes
    name: str
    meaning: str
    finding: Finding | None = None


def describe_bytes(
    path: Path,
    *,
    what: str | None = None,
    partitions: Collection[int] | None = None,
    first: int | None = None,
    last: int | None = None,
) -> Iterator[Region]:
    """Regions in file order.

    `what`: records, index or control; by default records for a directory or data file, else what the file is.  `first` and
    `last` bound transaction ids (inclusive).  Raises NotWaltzError, InvalidRequestError, DiskReadError.
    """
    target = resolve(path)
    usual = {TargetKind.CONTROL: "control", TargetKind.INDEX: "index"}
    what = what or usual.get(target.kind, "records")
    if what == "control":
        if target.kind is not TargetKind.CONTROL and target.storage is None:
            raise InvalidRequestError(f"{path}: there is no control file beside this {target.kind}")
        control_path = path if target.kind is TargetKind.CONTROL else (target.storage or path) / CONTROL_FILE_NAME
        yield from _control(control_path, target.storage, partitions)
        return
    if what not in ("records", "index"):
        raise InvalidRequestError(f"{what}: there is no such view of the bytes; it is records, index or control")
    scope = plan([path], partitions)[0]
    limits = Limits()
    for run in runs(scope, look_around(scope, partitions), limits, partitions):
        for job, following in zip(run.jobs, [*run.jobs[1:], None], strict=False):
            before = first is not None and following is not None and following.first <= first
            if before or (last is not None and job.first > last):
                continue
            yield from _segment(job, limits, what, first, last)


def _segment(job: SegmentJob, limits: Limits, what: str, first: int | None, last: int | None) -> Iterator[Region]:
    view = _records if what == "records" else _index
    try:
        with SegmentReader(job, limits, data=True) as reader:
            yield from view(reader, first, last)
    except FilesChangedError:
        return  # truncated or removed since it was listed
    except DiskReadError as error:
        for finding in unreadable(job, error).findings:
            yield Region(finding.path, finding.offset or 0, b"", "damaged", finding.message, finding)


def _value(field: Field, value: object) -> str:
    """A field's value in words."""
    if isinstance(value, bytes):
        if field.name == "cluster_key":
            return str(uuid.UUID(bytes=value))
        return "zero" if not value.strip(b"\0") else "not zero"
    if field.name == "created" and isinstance(value, int):
        return format_time(value) or f"{value}, which is no time"
    if field.name.endswith("checksum") and isinstance(value, int):
        return f"{value:08x}"
    return str(value)


def _fields(
    path: Path, schema: CompiledSchema, raw: bytes, base: int, prefix: str, findings: Collection[Finding] = ()
) -> Iterator[Region]:
    """One region for each leaf of a schema; a finding goes to the leaves that it covers."""
    values = schema.struct.unpack(raw)
    for field, value in zip(schema.fields, values, strict=True):
        offset = base + field.offset
        found = next((one for one in findings if _covers(one, offset, field.size)), None)
        data = raw[field.offset : field.offset + field.size]
        meaning = _value(field, value) + (f"; {found.message}" if found is not None else "")
        yield Region(path, offset, data, prefix + field.name, meaning, found)


def _covers(finding: Finding, offset: int, size: int) -> bool:
    if finding.offset is None:
        return False
    return finding.offset < offset + size and offset < finding.offset + max(finding.length or 1, 1)


def _control(path: Path, storage: Path | None, partitions: Collection[int] | None) -> Iterator[Region]:
    state = inspect_control(path, storage)
    control = state.control
    if control is None:
        raw = disk.read_range(path, 0, CONTROL_HEADER.size)
        yield Region(path, 0, raw, "damaged", "shorter than the header", next(iter(state.findings), None))
        return
    raw = disk.read_range(path, 0, control.size)
    size, info = CONTROL_HEADER.size, control.layout.info_schema
    yield from _fields(path, CONTROL_HEADER, raw[:size], 0, "header ", state.findings)
    for one in control.partitions:
        if partitions is None or one.partition in partitions:
            base = control.layout.info_offset(one.partition)
            prefix = f"partition {one.partition} "
            yield from _fields(path, info, raw[base : base + info.size], base, prefix, state.findings)
    end = size + info.size * len(control.partitions)
    if end < len(raw):
        finding = next(iter(state.findings), None)
        for at in range(end, len(raw), PIECE):
            yield Region(path, at, raw[at : at + PIECE], "damaged", "behind the last whole partition info", finding)


def _header(reader: SegmentReader, source: ByteSource, path: Path) -> Iterator[Region]:
    raw = bytes(read_bytes(source, 0, HEADER_SIZE))
    found = [one for one in reader.header_findings if one.path == path]
    if len(raw) < HEADER_SIZE:
        short = reader.finish_short().findings if path == reader.job.data_path else reader.index_problem()
        yield Region(path, 0, raw, "damaged", "shorter than the header", next(iter(short), None))
    else:
        yield from _fields(path, SEGMENT_HEADER, raw, 0, "header ", found)


def _records(reader: SegmentReader, first: int | None, last: int | None) -> Iterator[Region]:
    path = reader.job.data_path
    yield from _header(reader, reader.data, path)
    if reader.short:
        return
    for item in reader.forwards(first, last):
        if isinstance(item, Damage):
            yield from _damage(reader, item, first, last)
            continue
        for row in range(len(item)):
            number = int(item.transaction_id[row])
            if (first is None or number >= first) and (last is None or number <= last):
                yield from _record(path, item, row, number)


def _record(path: Path, batch: RecordBatch, row: int, number: int) -> Iterator[Region]:
    raw, base = bytes(batch.record_bytes(row)), int(batch.offset[row])
    size, prefix = RECORD_HEADER.size, f"transaction {number} "
    yield from _fields(path, RECORD_HEADER, raw[:size], base, prefix)
    end = len(raw) - CHECKSUM.size
    agrees = "agrees with its checksum" if batch.data_ok[row] else "does not agree with its checksum"
    for at in range(size, end, PIECE):
        yield Region(path, base + at, raw[at : min(at + PIECE, end)], prefix + "data", f"{end - size} bytes, {agrees}")
    meaning = f"{int(batch.record_checksum[row]):08x}, agrees with the record"
    yield Region(path, base + end, raw[end:], prefix + "record_checksum", meaning)


def _damage(reader: SegmentReader, damage: Damage, first: int | None, last: int | None) -> Iterator[Region]:
    following = damage.next_transaction_id
    before = first is not None and following is not None and following <= first
    if before or (last is not None and damage.transaction_id > last):
        return
    torn = damage.cause is DamageCause.TORN_TAIL
    if torn and not settled(reader):
        return
    finding = tail_finding(reader.job, damage) if torn else damage_finding(reader.job, damage)
    for at in range(damage.offset, damage.end, PIECE):
        raw = bytes(read_bytes(reader.data, at, min(PIECE, damage.end - at)))
        yield Region(reader.job.data_path, at, raw, "damaged", finding.message, finding)
    if not damage.length:
        yield Region(reader.job.data_path, damage.offset, b"", "damaged", finding.message, finding)


def _index(reader: SegmentReader, first: int | None, last: int | None) -> Iterator[Region]:
    path, index = reader.job.index_path, reader.reader
    if index is None:
        for finding in reader.index_problem():
            yield Region(path, 0, b"", "damaged", finding.message, finding)
        return
    yield from _header(reader, index.source, path)
    yield from _entries(reader, index, path, first, last)
    end = entry_position(index.count(), 0)
    if rest := bytes(read_bytes(index.source, end, ENTRY_SIZE)):
        yield Region(path, end, rest[: ENTRY_SIZE - 1], "damaged", "less than an entry")


def _entries(
    reader: SegmentReader, index: IndexReader, path: Path, first: int | None, last: int | None
) -> Iterator[Region]:
    begin = index.begins if first is None else max(first, index.begins)
    end = index.begins + index.count() if last is None else min(last + 1, index.begins + index.count())
    for start in range(begin, end, CHUNK):
        for place, entry in enumerate(index.entries(start, min(CHUNK, end - start)).tolist()):
            number, at = start + place, entry_position(start + place, index.begins)
            found = next(iter(entry_findings(reader, number, int(entry))), None)
            meaning = f"offset {int(entry):#x}" + (f"; {found.message}" if found is not None else "")
            yield Region(path, at, INDEX_ENTRY.struct.pack(entry), f"entry of transaction {number}", meaning, found)
