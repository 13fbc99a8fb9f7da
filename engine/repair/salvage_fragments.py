"""Records that a file system has split: their beginning ends one fragment of a file, their rest begins another.

Where a file lies in fragments on a disk, the record at each seam is found by no carving.  But when exactly one id is missing
between two runs of the same image, its head stands behind the first run and its tail in front of the second one, and both
pieces end and begin at block boundaries.  So there are few ways to put them together, and the record checksum tells which
one is right.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import numpy as np

from waltzctl.engine.repair.salvage_runs import SalvageRun
from waltzctl.engine.repair.salvage_selection import RecordPiece
from waltzctl.engine.scan.byte_source import ByteSource, read_bytes
from waltzctl.formats.checksums import crc32
from waltzctl.formats.segment import CHECKSUM, RECORD_HEADER, RECORD_OVERHEAD, Record

BLOCK = 512
"""Bytes; every file system's blocks are multiples of it."""
LARGEST = 1 << 20
"""Bytes of the largest record that is put together; the work grows with the square of it."""
MOST = 256 << 20
"""Bytes of all records that are put together, as these are held in memory."""


def _up(offset: int) -> int:
    return -(-offset // BLOCK) * BLOCK


def _is_record(data: bytes, transaction_id: int) -> bool:
    number, *_, length, _ = RECORD_HEADER.struct.unpack_from(data)
    if number != transaction_id or length != len(data) - RECORD_OVERHEAD:
        return False
    (stored,) = CHECKSUM.struct.unpack_from(data, len(data) - CHECKSUM.size)
    return crc32(memoryview(data)[: -CHECKSUM.size]) == int(stored)


def join(source: ByteSource, transaction_id: int, end: int, start: int) -> bytes | None:
    """The record that begins at `end` and whose rest ends at `start`, split once at block boundaries; None if there is none.

    Raises DiskReadError.
    """
    head = bytes(read_bytes(source, end, LARGEST))
    floor = max(0, start - LARGEST)
    tail = bytes(read_bytes(source, floor, start - floor))
    first_seam = _up(end + 1)
    if first_seam < end + RECORD_HEADER.size:  # the header itself is split: its length is known only with the rest
        front = head[: first_seam - end]
        for rest in range(start // BLOCK * BLOCK, floor - 1, -BLOCK):
            size = len(front) + start - rest
            if RECORD_OVERHEAD <= size <= LARGEST and _is_record(front + tail[rest - floor :], transaction_id):
                return front + tail[rest - floor :]
    if len(head) < RECORD_HEADER.size:
        return None
    number, *_, length, _ = RECORD_HEADER.struct.unpack_from(head)
    size = length + RECORD_OVERHEAD
    if number != transaction_id or not RECORD_OVERHEAD <= size <= LARGEST:
        return None
    for seam in range(first_seam, end + size, BLOCK):
        rest = start - (size - (seam - end))
        if rest % BLOCK or rest == seam:  # the same for every seam; the second: nothing is split, the record is damaged
            return None
        if rest >= floor and seam - end <= len(head):
            data = head[: seam - end] + tail[rest - floor :]
            if _is_record(data, transaction_id):
                return data
    return None


def join_fragments(pieces: Sequence[RecordPiece], sources: Sequence[ByteSource]) -> Iterator[tuple[int, Record]]:
    """Records that are missing alone between two pieces and can be put together, each with the place of the piece behind it.

    Raises DiskReadError.
    """
    held = 0
    for place, (before, after) in enumerate(itertools.pairwise(pieces), start=1):
        missing = before.last + 1
        if after.first != missing + 1 or before.run.source != after.run.source:
            continue
        data = join(sources[before.run.source], missing, int(before.offsets()[-1]), int(after.offsets()[0]))
        if data is not None and held + len(data) <= MOST:
            held += len(data)
            yield place, Record.decode(data)


def as_run(record: Record, source: int) -> SalvageRun:
    """A run of this record alone, which is all that source number `source` holds."""
    damaged = () if record.data_ok else (record.transaction_id,)
    sizes = np.array([record.size], np.uint32)
    return SalvageRun(source, 0, record.size, record.transaction_id, sizes, record.request_id.partition, damaged)
