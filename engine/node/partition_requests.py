"""Execution of the data port's requests, except appends (`engine.node.commit`).

Semantics and order of the checks are those of release 0.13.2, with these differences:

- a damaged record is never returned; the request fails with an error that names the damage;
- lists are bounded in bytes;
- an online truncation below the local low-water mark is refused;
- an offline truncation below it (offline recovery, for which an operator switched the partition off) lowers the mark first; the
  release leaves a mark that points beyond the end of the log.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from waltzctl.engine.errors import PartitionQuarantinedError
from waltzctl.engine.node.node_metrics import NodePartitionMetrics
from waltzctl.engine.node.permissions import (
    DeniedError,
    RequiredAccess,
    check_low_water_mark,
    out_of_range,
    unknown_type,
)
from waltzctl.engine.storage.partition import Partition
from waltzctl.formats.wire.records import WIRE_RECORD_HEADER
from waltzctl.formats.wire.storage import (
    LastSessionInfoRequest,
    LastSessionInfoResponse,
    MaxTransactionIdRequest,
    MaxTransactionIdResponse,
    RecordHeader,
    RecordHeaderListRequest,
    RecordHeaderRequest,
    RecordHeaderResponse,
    RecordListRequest,
    RecordRequest,
    RecordResponse,
    SessionInfo,
    SetLowWaterMarkRequest,
    StorageMessage,
    SuccessResponse,
    TruncateRequest,
    WireRecord,
    encode,
    record_header_list_response,
    record_list_response,
)

Answer = bytes | list[bytes]

WRITES = (SetLowWaterMarkRequest, TruncateRequest)


def access_of(message: StorageMessage) -> RequiredAccess:
    """The access that a request needs; READ for a message that is no request.

    LastSessionInfo, the first request of an online session, needs read and write access: a released log server treats a replica
    as absent only if this request is refused, and a later failure aborts the recovery of all replicas (`engine.node.outages`).
    """
    if isinstance(message, LastSessionInfoRequest) and not message.offline:
        return RequiredAccess.SESSION
    return RequiredAccess.WRITE if isinstance(message, WRITES) else RequiredAccess.READ


def read_by(message: StorageMessage) -> int | None:
    """The id of the record that a request has to read, and without which it fails; None: it reads none."""
    if isinstance(message, (RecordRequest, RecordHeaderRequest, TruncateRequest)):
        return message.transaction_id
    if isinstance(message, (RecordListRequest, RecordHeaderListRequest)):
        return message.first_transaction_id
    return None


def execute(partition: Partition, message: StorageMessage, metrics: NodePartitionMetrics, max_bytes: int) -> Answer:
    """Execute an admitted request, durably, and return its response frame.

    `max_bytes`: bound of the records in a list response, which holds at least one.  Raises DeniedError where the release has a
    failure for the case, otherwise another WaltzError.
    """
    known = _KINDS.get(type(message))
    if known is None:
        raise DeniedError(unknown_type(message.TYPE))
    counter, do = known
    getattr(metrics, counter).increment()
    return do(partition, message, max_bytes)


def session_info(partition: Partition) -> SessionInfo:
    """The persisted session and marks; -1 where there was none.  Raises PartitionQuarantinedError when they are damaged."""
    if not partition.marks_known:
        raise PartitionQuarantinedError(
            f"{partition.path}: partition {partition.number}: its session is not known, its info in the control file is damaged",
            partition.findings,
            advice="run waltzctl recover",
        )
    return SessionInfo(partition.session_id, partition.low_water_mark, partition.local_low_water_mark)


def _last_session_info(partition: Partition, m: LastSessionInfoRequest, _: int) -> Answer:
    return encode(LastSessionInfoResponse(m.session_id, m.sequence, m.partition, session_info(partition)))


def _set_low_water_mark(partition: Partition, m: SetLowWaterMarkRequest, _: int) -> Answer:
    denial = check_low_water_mark(
        session_id=m.session_id,
        low_water_mark=m.low_water_mark,
        max_transaction_id=partition.max_transaction_id,
        persisted=(partition.session_id, partition.low_water_mark, partition.local_low_water_mark),
    )
    if denial is not None:
        raise DeniedError(denial)
    partition.set_low_water_mark(m.session_id, m.low_water_mark)
    return encode(SuccessResponse(m.session_id, m.sequence, m.partition))


def _truncate(partition: Partition, m: TruncateRequest, _: int) -> Answer:
    after, mark = m.transaction_id, partition.local_low_water_mark
    if after < -1 or (after < min(mark, partition.max_transaction_id) and not m.offline):
        raise DeniedError(out_of_range(m.partition, after, mark))
    left = partition.truncate(after, allow_data_loss=m.offline)
    return encode(MaxTransactionIdResponse(m.session_id, m.sequence, m.partition, left))


def _max_transaction_id(partition: Partition, m: MaxTransactionIdRequest, _: int) -> Answer:
    return encode(MaxTransactionIdResponse(m.session_id, m.sequence, m.partition, partition.max_transaction_id))


def _record_header(partition: Partition, m: RecordHeaderRequest, _: int) -> Answer:
    found = partition.read(m.transaction_id)
    header = None if found is None else RecordHeader(found.transaction_id, found.request_id, found.header)
    return encode(RecordHeaderResponse(m.session_id, m.sequence, m.partition, header))


def _record(partition: Partition, m: RecordRequest, _: int) -> Answer:
    found = partition.read(m.transaction_id)
    record = None
    if found is not None:
        record = WireRecord(found.transaction_id, found.request_id, found.header, found.data, found.data_checksum)
    return encode(RecordResponse(m.session_id, m.sequence, m.partition, record))


def _record_headers(partition: Partition, m: RecordHeaderListRequest, max_bytes: int) -> Answer:
    most = max(max_bytes // WIRE_RECORD_HEADER.size, 1)
    found = partition.read_wire_headers(m.first_transaction_id, max(min(m.max_count, most), 0))
    return record_header_list_response(m.session_id, m.sequence, m.partition, found.count, found.data)


def _records(partition: Partition, m: RecordListRequest, max_bytes: int) -> Answer:
    found = partition.read_wire(m.first_transaction_id, max(m.max_count, 0), max_bytes)
    return record_list_response(m.session_id, m.sequence, m.partition, found.count, found.data)


_KINDS: dict[type[Any], tuple[str, Callable[[Partition, Any, int], Answer]]] = {
    LastSessionInfoRequest: ("last_session_info_request", _last_session_info),
    SetLowWaterMarkRequest: ("set_low_water_mark_request", _set_low_water_mark),
    TruncateRequest: ("truncate_request", _truncate),
    RecordHeaderRequest: ("record_header_request", _record_header),
    RecordRequest: ("record_request", _record),
    MaxTransactionIdRequest: ("max_transaction_request", _max_transaction_id),
    RecordHeaderListRequest: ("record_header_list_request", _record_headers),
    RecordListRequest: ("record_list_request", _records),
}
"""For each request: its counter in `NodePartitionMetrics`, and the function that executes it."""
