"""Records of a partition as they stand in a list on the wire."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from waltzctl.formats.segment import Record, RecordHeader


@dataclass(frozen=True, slots=True)
class WireRecords:
    """`count` records, or record headers, back to back in `data`; every one was verified."""

    count: int
    data: bytes


@dataclass(frozen=True, slots=True)
class ListPart:
    """A part of such a list: `records` records in wire form in `data`, which take `size` bytes on disk."""

    records: int
    size: int
    data: bytes | memoryview


def packed(records: Sequence[Record], *, headers: bool) -> bytes:
    """Verified records in wire form."""
    from waltzctl.formats.wire.records import WireRecord, pack_record_headers, pack_records

    if headers:
        return pack_record_headers(RecordHeader(r.transaction_id, r.request_id, r.header) for r in records)
    return pack_records(WireRecord(r.transaction_id, r.request_id, r.header, r.data, r.data_checksum) for r in records)
