"""Reads a record with a wrong data checksum again, for the details that its finding shows."""

from __future__ import annotations

from waltzctl.engine.findings import BadData
from waltzctl.engine.log.index import MOST_HELD
from waltzctl.engine.scan.byte_source import ByteSource
from waltzctl.engine.scan.columns import RecordView
from waltzctl.engine.scan.scanner import read_record_at
from waltzctl.formats.checksums import crc32


def bad_data(source: ByteSource, transaction_id: int, offset: int) -> BadData:
    """The `BadData` of the record at `offset`, whose data checksum a scan has found wrong.  Raises DiskReadError.

    A record of more than MOST_HELD bytes of data is not read; length and checksums are None then.
    """
    found = read_record_at(source, offset, expected_id=transaction_id, max_record=MOST_HELD)
    if not isinstance(found, RecordView):
        return BadData(transaction_id, offset)
    return BadData(transaction_id, offset, len(found.record), (found.data_checksum, crc32(found.data)))
