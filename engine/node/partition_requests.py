"""What each request of the data port does with its partition, appends excepted (`engine.node.commit`).

Semantics and order of the checks are those of release 0.13.2.  Different are: damage is never served, but named; lists are
bounded in bytes; a truncation below the local low-water mark is refused, unless it comes from offline recovery, which somebody
switched the partition off for: then the mark is lowered first, where the release leaves one that points behind the log's end.
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
    """What a request needs.  A message that is no request needs what a read needs.

    The first question of a session needs what its reads and writes will need: a released server takes a replica for absent only
    if this one is refused, and gives up the recovery of all replicas when one fails later.
    """
    if isinstance(message, LastSessionInfoRequest) and not message.offline:
        return RequiredAccess.SESSION
    return RequiredAccess.WRITE if isinstance(message, WRITES) else RequiredAccess.READ


def read_by(message: StorageMessage) -> int | None:
    """The record that a request has to read, so that it fails when this one is damaged; None for one that reads none."""
    if isinstance(message, (RecordRequest, RecordHeaderRequest, TruncateRequest)):
        return message.transaction_id
    if isinstance(message, (RecordListRequest, RecordHeaderListRequest)):
        return message.first_transaction_id
    return None


def execute(partition: Partition, message: StorageMessage, metrics: NodePartitionMetrics, max_bytes: int) -> Answer:
    """Do what an admitted request asks for, durably, and return its response.

    `max_bytes`: bytes of records in a list response, of which there is one at least.  Raises DeniedError with the release's
    failure, WaltzError for what it has none for.
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
"""Each request's counter in the metrics, and what it does."""
