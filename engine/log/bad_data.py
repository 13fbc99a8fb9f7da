"""A record that is intact while its data is not what came with it, looked at for what is told of it."""

from __future__ import annotations

from waltzctl.engine.findings import BadData
from waltzctl.engine.log.index import MOST_HELD
from waltzctl.engine.scan.byte_source import ByteSource
from waltzctl.engine.scan.columns import RecordView
from waltzctl.engine.scan.scanner import read_record_at
from waltzctl.formats.checksums import crc32


def bad_data(source: ByteSource, transaction_id: int, offset: int) -> BadData:
    """The record at `offset`, of which a scan has found that its data checksum differs.  Raises DiskReadError.

    One of more than MOST_HELD bytes of data is not held for a message.
    """
    found = read_record_at(source, offset, expected_id=transaction_id, max_record=MOST_HELD)
    if not isinstance(found, RecordView):
        return BadData(transaction_id, offset)
    return BadData(transaction_id, offset, len(found.record), (found.data_checksum, crc32(found.data)))
