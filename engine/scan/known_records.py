"""Records whose bytes are known: a scan of another copy takes what it finds there to be the same without a checksum of its own.

Replicas hold the same bytes from record to record.  Where a file has the bytes of records that were scanned elsewhere, under the
id that comes next, its records are those: the checksums agree because the bytes do.  Comparing costs half of what a scan does,
and nothing is copied: the batches share the columns and the bytes of what is known.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from waltzctl.engine.scan.byte_source import ByteSource
from waltzctl.engine.scan.columns import RecordBatch

PIECE = 128 << 10
"""Bytes that are read and compared at a time: they stay in a core's second-level cache."""


class KnownRecords:
    """Batches of a scan with their data, in order, each of consecutive ids."""

    def __init__(self, batches: Sequence[RecordBatch] = ()) -> None:
        self._piece = bytearray(PIECE)
        self.hold(batches)

    def hold(self, batches: Sequence[RecordBatch]) -> None:
        """Know these from now on, and nothing else."""
        self._batches, self._place = batches, 0

    def at(self, source: ByteSource, offset: int, expected: int, stop: int) -> RecordBatch | None:
        """The records of the source from `offset` on, as far as a known batch goes that has the id `expected`.

        None where there is none, where it goes beyond `stop`, or the source has other bytes; behind those nothing is known any
        more.  Ids must rise from call to call.  Raises DiskReadError.
        """
        known = self._of(expected)
        if known is None:
            return None
        wanted = known.record_stretch(0, len(known)).data
        if offset + len(wanted) > stop:
            return None
        if not self._same(source, offset, wanted):
            self.hold(())
            return None
        shift = offset - int(known.offset[0])
        if not shift:
            return known
        return replace(known, offset=known.offset + shift, data_base=known.data_base + shift)

    def _of(self, expected: int) -> RecordBatch | None:
        while self._place < len(self._batches) and int(self._batches[self._place].transaction_id[-1]) < expected:
            self._place += 1
        if self._place == len(self._batches):
            return None
        found = self._batches[self._place]
        row = expected - int(found.transaction_id[0])
        return found.rows(row, len(found)) if row >= 0 else None

    def _same(self, source: ByteSource, offset: int, wanted: memoryview) -> bool:
        buffer = memoryview(self._piece)
        for done in range(0, len(wanted), PIECE):
            part = wanted[done : done + PIECE]
            if source.read_into(offset + done, buffer[: len(part)]) < len(part):
                return False
            # by memcmp, as neither is a view that is compared with a view
            if (self._piece if len(part) == PIECE else bytearray(buffer[: len(part)])) != part:
                return False
        return True
