"""Frames that released nodes, servers and their clients exchanged, and how their fields are named there."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from waltzctl.formats.request_id import RequestId
from waltzctl.formats.segment import RecordHeader
from waltzctl.formats.wire import admin, client, storage
from waltzctl.formats.wire.failure import Failure
from waltzctl.formats.wire.hello import Hello
from waltzctl.formats.wire.records import SessionInfo, WireRecord


@dataclass(frozen=True, slots=True)
class RecordedFrame:
    """One frame: `protocol` is H, S, A or L; `direction` c2s or s2c; `fields` as the release's codec read them."""

    line: int
    connection: int
    direction: str
    protocol: str
    name: str
    fields: dict[str, Any] | None
    data: bytes


def recorded_frames(golden: Path, of: str = "storage") -> list[RecordedFrame]:
    """Every frame of ``wire/storage-frames.jsonl``, or of ``server-frames``; ends of streams are left out."""
    frames = []
    with (golden / "wire" / f"{of}-frames.jsonl").open() as lines:
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


def _signed(checksum: int) -> int:
    return checksum - (1 << 32) if checksum >= 1 << 31 else checksum


def _header(value: RecordHeader | WireRecord) -> dict[str, Any]:
    return {"transactionId": value.transaction_id, "reqId": _request_id(value.request_id), "header": value.header}


def _record(value: WireRecord) -> dict[str, Any]:
    return {**_header(value), "data": value.data.hex(), "checksum": _signed(value.data_checksum)}


def _info(value: SessionInfo) -> dict[str, Any]:
    return {
        "sessionId": value.session_id,
        "lowWaterMark": value.low_water_mark,
        "localLowWaterMark": value.local_low_water_mark,
    }


def _exception(name: str, message: str, stack: list[list[Any]] | None = None) -> dict[str, Any]:
    return {"class": name, "message": message, "stackTrace": stack or []}


def _failure(value: Failure) -> dict[str, Any]:
    stack = [[e.class_name, e.method, e.file, e.line] for e in value.stack]
    return _exception("com.wepay.waltz.storage.exception.StorageRpcException", value.message, stack)


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


_CLIENT_NAMES = {
    "client_high_water_mark": "clientHighWaterMark",
    "connection_sequence": "seqNum",
    "state": "partitionState",
    "write_locks": "writeLockRequest",
    "read_locks": "readLockRequest",
    "append_locks": "appendLockRequest",
    "header": "header",
    "data": "data",
    "checksum": "checksum",
    "transaction_id": "transactionId",
    "high_water_mark": "transactionId",
    "nodes": "storageConnectivityMap",
    "done": "result",
}
_PARTITIONS = {
    client.ServerPartitionsAssignmentResponse: "serverPartitionAssignments",
    client.ServerPartitionsHealthResponse: "serverPartitionHealthStats",
}


def client_fields_of(message: Any, version: int) -> dict[str, Any]:
    """The fields of a message between client and server under the names of the recordings."""
    found: dict[str, Any] = {"reqId": _request_id(message.request_id)}
    for name in (field.name for field in fields(message)):
        value = getattr(message, name)
        match name:
            case "request_id":
                continue
            case "outcome":
                data = isinstance(value, client.TransactionData)
                found["data"] = value.data.hex() if data else None
                found["checksum"] = _signed(value.checksum) if data else 0
                found["exception"] = (
                    None if data else _exception("com.wepay.waltz.exception.RpcException", value.message)
                )
                continue
            case "partitions":
                found[_PARTITIONS.get(type(message), "partitionIds")] = (
                    {str(partition): healthy for partition, healthy in value}
                    if isinstance(message, client.ServerPartitionsHealthResponse)
                    else list(value)
                )
                continue
            case "nodes":
                value = dict(value)
            case "data":
                value = value.hex()
            case "checksum":
                value = _signed(value)
            case "state":
                value = int(value)
        found[_CLIENT_NAMES[name]] = list(value) if isinstance(value, tuple) else value
    return found
