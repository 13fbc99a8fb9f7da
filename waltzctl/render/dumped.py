"""The objects of dump: records with their data in the form that was asked for, control files, segments, index entries."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

from waltzctl.options import DataForm
from waltzctl.render.objects import Object, base64_text, hex32, named, path_text

if TYPE_CHECKING:
    from waltzctl.engine.inspect.dump import ControlDump, DumpedRecord, IndexEntry, SegmentDump
    from waltzctl.formats.control import PartitionInfo, PartitionStruct

PREVIEW = 400
"""Bytes of data that a table on a terminal looks at; no line is that long."""


def record_object(record: DumpedRecord, form: DataForm | None, preview: int | None = None) -> Object:
    """**record**.  `form` None: text for a table, of the first `preview` bytes (None: of all)."""
    keys: Object = {
        "partition": record.partition,
        "segment": record.segment,
        "transaction_id": record.transaction_id,
        "offset": record.offset,
        "size": record.size,
        "request_id": record.request_id.by_name(),
        "header": record.header,
        "data_length": record.data_length,
        "data_checksum": hex32(record.data_checksum),
        "record_checksum": hex32(record.record_checksum),
    }
    if record.data is not None:
        keys.update(data_keys(record.data, form, preview))
    return named("record", keys)


def data_keys(data: bytes, form: DataForm | None, preview: int | None = None) -> Object:
    """The key or keys that hold a record's data."""
    if form is DataForm.BASE64:
        return {"data_b64": base64_text(data)}
    if form is DataForm.HEX:
        return {"data_hex": data.hex()}
    if form is DataForm.NONE:
        return {}
    if form is None:
        return {"data": data[:preview].decode(errors="backslashreplace")}
    try:
        text = data.decode()
        return {"data": text if form is DataForm.UTF8 else _parsed(text)}
    except (ValueError, RecursionError):
        return {"data": None, "data_b64": base64_text(data)}


def _parsed(text: str) -> Any:
    return json.loads(text, parse_float=_finite, parse_constant=_refuse)


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(text)
    return value


def _refuse(text: str) -> None:
    raise ValueError(f"{text} is no JSON number")


def control_object(control: ControlDump) -> Object:
    """**control**."""
    return named(
        "control",
        {
            "path": path_text(control.path),
            "layout": None if control.layout is None else control.layout.value,
            "version": control.version,
            "created": control.created,
            "cluster_key": None if control.cluster_key is None else str(control.cluster_key),
            "num_partitions": control.num_partitions,
            "size": control.size,
        },
    )


def partition_info_object(info: PartitionInfo) -> Object:
    """**partition-info**."""
    return named(
        "partition-info",
        {
            "partition": info.partition,
            "stored_partition": info.stored_partition,
            "current": info.current,
            "structs": [_struct_keys(struct) for struct in info.structs],
        },
    )


def _struct_keys(struct: PartitionStruct) -> Object:
    return {
        "session_id": struct.session_id,
        "low_water_mark": struct.low_water_mark,
        "local_low_water_mark": struct.local_low_water_mark,
        "available": struct.available,
        "assigned": struct.assigned,
        "flags": struct.flags,
        "sequence": struct.sequence,
        "checksum": hex32(struct.checksum),
        "valid": struct.valid,
    }


def segment_object(segment: SegmentDump) -> Object:
    """**segment**."""
    return named(
        "segment",
        {
            "path": path_text(segment.path),
            "partition": segment.partition,
            "segment": segment.segment,
            "version": segment.version,
            "created": segment.created,
            "cluster_key": None if segment.cluster_key is None else str(segment.cluster_key),
            "first_transaction_id": segment.first_transaction_id,
            "last_transaction_id": segment.last_transaction_id,
            "records": segment.records,
            "data_bytes": segment.data_bytes,
            "index_bytes": segment.index_bytes,
            "index": segment.index,
        },
    )


def index_entry_object(entry: IndexEntry) -> Object:
    """**index-entry**."""
    return named(
        "index-entry",
        {
            "partition": entry.partition,
            "segment": entry.segment,
            "transaction_id": entry.transaction_id,
            "offset": entry.offset,
        },
    )
