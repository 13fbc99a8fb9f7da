"""Known records: the scan of one replica reuses the batches from the scan of another replica while their bytes are equal.

Replicas hold the same records byte for byte.  If a file has the same bytes as scanned records, and the ids continue the sequence,
its checksums are right because theirs are.  Comparing costs half as much as scanning, and copies nothing: the batches share the
columns and the bytes of the known ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from waltzctl.engine.scan.byte_source import ByteSource
from waltzctl.engine.scan.columns import RecordBatch

PIECE = 128 << 10
"""Bytes read and compared per step; they fit into a core's second-level cache."""


class KnownRecords:
    """Batches of a scan with their data, in order, each of consecutive ids."""

    def __init__(self, batches: Sequence[RecordBatch] = ()) -> None:
        self._piece = bytearray(PIECE)
        self.hold(batches)

    def hold(self, batches: Sequence[RecordBatch]) -> None:
        """Replace the known batches by these."""
        self._batches, self._place = batches, 0

    def at(self, source: ByteSource, offset: int, expected: int, stop: int) -> RecordBatch | None:
        """The records of `source` from `offset` on, the first with the id `expected`, from one known batch.

        None if no batch has that id, if its records end beyond `stop`, or if the source has other bytes; in the last case all
        batches are dropped.  `expected` must rise from call to call.  Raises DiskReadError.
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
            # bytearray against view is compared by memcmp; two views would be compared item by item
            if (self._piece if len(part) == PIECE else bytearray(buffer[: len(part)])) != part:
                return False
        return True
