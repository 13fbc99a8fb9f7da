"""Blocks of encoded records as a node makes them: append requests on the wire, split and encoded."""

from __future__ import annotations

from collections.abc import Sequence

from waltzctl.engine.scan.frames import FrameSplitter
from waltzctl.engine.scan.transcode import AppendEncoder, EncodedBlock, FrameVerdict
from waltzctl.formats.segment import Record
from waltzctl.formats.wire.frame import Magic
from waltzctl.formats.wire.records import WireRecord
from waltzctl.formats.wire.storage import AppendRequest, encode


def wire_record(record: Record) -> WireRecord:
    return WireRecord(record.transaction_id, record.request_id, record.header, record.data, record.data_checksum)


def encoded_block(records: Sequence[Record], frames: int = 1, *, compiled: bool | None = False) -> EncodedBlock:
    """The records as `frames` append requests of one connection, encoded together."""
    following = records[0].transaction_id if records else 0
    step = -(-len(records) // frames) or 1
    groups = [records[place : place + step] for place in range(0, len(records), step)] or [[]]
    stream = b"".join(
        encode(AppendRequest(3, place, 0, tuple(map(wire_record, group)))) for place, group in enumerate(groups)
    )
    split = FrameSplitter(magic=Magic.STORAGE, max_body=1 << 28, compiled=compiled).split(stream, 0, len(stream), 0)
    encoder = AppendEncoder(max_data_length=1 << 28, compiled=compiled)
    found = encoder.encode(stream, split.table, following)
    assert (found.frames, found.verdict) == (len(groups), FrameVerdict.DONE)
    return found.block
