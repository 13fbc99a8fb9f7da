"""Frames that a released node and its clients exchanged, and how their fields are named there."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from waltzctl.formats.request_id import RequestId
from waltzctl.formats.segment import RecordHeader
from waltzctl.formats.wire import admin, storage
from waltzctl.formats.wire.failure import Failure
from waltzctl.formats.wire.hello import Hello
from waltzctl.formats.wire.records import SessionInfo, WireRecord


@dataclass(frozen=True, slots=True)
class RecordedFrame:
    """One frame: `protocol` is H, S or A; `direction` c2s or s2c; `fields` as the release's codec read them."""

    line: int
    connection: int
    direction: str
    protocol: str
    name: str
    fields: dict[str, Any] | None
    data: bytes


def recorded_frames(golden: Path) -> list[RecordedFrame]:
    """Every frame of ``wire/storage-frames.jsonl``; ends of streams are left out."""
    frames = []
    with (golden / "wire" / "storage-frames.jsonl").open() as lines:
        for number, text in enumerate(lines, 1):
            line = json.loads(text)
            if line["dir"] in ("c2s", "s2c"):
                data = bytes.fromhex(line["hex"])
                frames.append(
                    RecordedFrame(
                        number, line["conn"], line["dir"], line["protocol"], line["name"], line["fields"], data
                    )
                )
    return frames


def _request_id(value: RequestId) -> dict[str, Any]:
    high, low = (word & (2**64 - 1) for word in value.words)
    return {
        "msb": f"{high:016x}",
        "lsb": f"{low:016x}",
        "clientId": value.client,
        "generation": value.generation,
        "partitionId": value.partition,
        "seqNum": value.sequence,
    }


def _header(value: RecordHeader | WireRecord) -> dict[str, Any]:
    return {"transactionId": value.transaction_id, "reqId": _request_id(value.request_id), "header": value.header}


def _record(value: WireRecord) -> dict[str, Any]:
    signed = value.data_checksum - (1 << 32) if value.data_checksum >= 1 << 31 else value.data_checksum
    return {**_header(value), "data": value.data.hex(), "checksum": signed}


def _info(value: SessionInfo) -> dict[str, Any]:
    return {
        "sessionId": value.session_id,
        "lowWaterMark": value.low_water_mark,
        "localLowWaterMark": value.local_low_water_mark,
    }


def _failure(value: Failure) -> dict[str, Any]:
    return {
        "class": "com.wepay.waltz.storage.exception.StorageRpcException",
        "message": value.message,
        "stackTrace": [[e.class_name, e.method, e.file, e.line] for e in value.stack],
    }


_STORAGE_NAMES: dict[type, dict[str, str]] = {
    storage.OpenRequest: {"cluster_key": "key", "num_partitions": "numPartitions"},
    storage.RecordHeaderListRequest: {"first_transaction_id": "transactionId", "max_count": "maxNumRecords"},
    storage.RecordListRequest: {"first_transaction_id": "transactionId", "max_count": "maxNumRecords"},
}
_ADMIN_NAMES: dict[type, dict[str, str]] = {
    admin.OpenRequest: {"cluster_key": "key", "num_partitions": "numPartitions"},
    admin.PartitionAvailableRequest: {"partitions": "partitionsIds", "available": "toggled"},
    admin.PartitionAssignmentRequest: {
        "partitions": "partitionIds",
        "assigned": "toggled",
        "delete_files": "deleteStorageFiles",
    },
    admin.RecordListRequest: {"first_transaction_id": "transactionId", "max_count": "maxNumRecords"},
}
_COMMON = {
    "sequence": "seqNum",
    "session_id": "sessionId",
    "partition": "partitionId",
    "offline": "usedByOfflineRecovery",
    "info": "lastSessionInfo",
    "low_water_mark": "lowWaterMark",
    "transaction_id": "transactionId",
    "failure": "exception",
    "records": "records",
    "record": "record",
    "header": "recordHeader",
    "headers": "recordHeaders",
    "statuses": "partitionStatusMap",
    "json": "metricsJson",
}


def _value(name: str, value: Any) -> Any:
    match value:
        case Failure():
            return _failure(value)
        case SessionInfo():
            return _info(value)
        case WireRecord():
            return _record(value)
        case RecordHeader():
            return _header(value)
    if name == "statuses":
        return {str(partition): available for partition, available in value}
    if isinstance(value, tuple):
        return [_value("", element) for element in value]
    return str(value) if name == "cluster_key" else value


def fields_of(message: Any) -> dict[str, Any]:
    """The fields of a message of ours under the names of the recordings."""
    if isinstance(message, Hello):
        return {"versions": list(message.versions), "message": message.text}
    on_data_port = type(message).__module__ == storage.__name__
    names = _COMMON | (_STORAGE_NAMES if on_data_port else _ADMIN_NAMES).get(type(message), {})
    found = {names[name]: _value(name, getattr(message, name)) for name in (field.name for field in fields(message))}
    return {"usedByOfflineRecovery": False} | found if on_data_port else found
