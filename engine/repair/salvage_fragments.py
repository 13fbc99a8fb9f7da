"""Joining records that a file system has split across two fragments of a file.

Carving does not find the record at the seam of two fragments in a disk image.  But when exactly one id is missing between two
runs of the image, the record's head follows the first run and its tail precedes the second one, and head and tail are cut at
block boundaries.  So there are few combinations, and the record checksum tells the right one.
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
"""Bytes; the block size of every file system is a multiple of it."""
LARGEST = 1 << 20
"""Bytes of the largest record that is joined; the work grows with its square."""
MOST = 256 << 20
"""Bytes of all joined records together, which are held in memory."""


def _up(offset: int) -> int:
    return -(-offset // BLOCK) * BLOCK


def _is_record(data: bytes, transaction_id: int) -> bool:
    number, *_, length, _ = RECORD_HEADER.struct.unpack_from(data)
    if number != transaction_id or length != len(data) - RECORD_OVERHEAD:
        return False
    (stored,) = CHECKSUM.struct.unpack_from(data, len(data) - CHECKSUM.size)
    return crc32(memoryview(data)[: -CHECKSUM.size]) == int(stored)


def join(source: ByteSource, transaction_id: int, end: int, start: int) -> bytes | None:
    """The record whose head begins at byte `end` and whose tail ends at byte `start`, split once at block boundaries.

    `end` is the end of the run before it, `start` the start of the run after it.  None if there is no such record.  Raises
    DiskReadError.
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
        # Both hold for all seams or none: the tail is not at a block boundary; or nothing is split, the record is damaged.
        if rest % BLOCK or rest == seam:
            return None
        if rest >= floor and seam - end <= len(head):
            data = head[: seam - end] + tail[rest - floor :]
            if _is_record(data, transaction_id):
                return data
    return None


def join_fragments(pieces: Sequence[RecordPiece], sources: Sequence[ByteSource]) -> Iterator[tuple[int, Record]]:
    """The joined records, each the only one missing between two pieces, with the index of the piece after it.

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
    """A run of this record alone, as the only content of source number `source`."""
    damaged = () if record.data_ok else (record.transaction_id,)
    sizes = np.array([record.size], np.uint32)
    return SalvageRun(source, 0, record.size, record.transaction_id, sizes, record.request_id.partition, damaged)
