"""Batches of encoded records, and their division into parts that are written and synced one after another.

A batch is one part, unless one of two boundaries lies inside it:

- *End of a segment*: the first record that comes when the segment is already larger than the threshold starts a new segment
  (as in release 0.13.2), so a segment exceeds the threshold by at most one record.
- *Checkpoint*: data and index up to transaction k*1000 - 1 are durable before transaction k*1000 is written, so that finding
  record k*1000 proves the checkpoint.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from waltzctl.engine.errors import ChecksumMismatchError, InvalidRequestError, OutOfOrderError
from waltzctl.engine.storage.segment_files import BatchPart
from waltzctl.formats.checksums import crc32
from waltzctl.formats.segment import CHECKPOINT_INTERVAL, CHECKSUM, HEADER_SIZE, Record

if TYPE_CHECKING:
    from waltzctl.engine.scan.transcode import EncodedBlock


class Batch(NamedTuple):
    """Consecutive records in their form on disk.

    `offsets`: int64, where each record begins in `pieces` joined, and where the last one ends.
    """

    first_transaction_id: int
    pieces: tuple[bytes | memoryview, ...]
    offsets: npt.NDArray[np.int64]

    @property
    def records(self) -> int:
        """Number of records."""
        return len(self.offsets) - 1


def batch_of_blocks(blocks: Sequence[EncodedBlock], following: int, place: str) -> Batch:
    """A batch of blocks with consecutive records, the first of which must be `following`.  The records' bytes are trusted.

    `place`: the text with which error messages begin.  Raises OutOfOrderError, and ValueError for a block whose size or number of
    records differs from its offsets.
    """
    if len(blocks) == 1:
        (only,) = blocks
        if only.first_transaction_id == following and _agrees(only):
            return Batch(following, (only.data,), only.offsets)
    offsets: list[npt.NDArray[np.int64]] = []
    size, expected = 0, following
    for block in blocks:
        if not block.records:
            continue
        if block.first_transaction_id != expected:
            raise OutOfOrderError(
                f"{place}, transaction {block.first_transaction_id}: out of order, the next one is {expected}"
            )
        if not _agrees(block):
            raise ValueError(f"{place}, transaction {expected}: a block does not agree with its offsets")
        offsets.append(block.offsets[:-1] + size if size else block.offsets[:-1])
        size += len(block.data)
        expected = block.next_transaction_id
    joined = np.concatenate([*offsets, np.array([size], np.int64)])
    return Batch(following, tuple(block.data for block in blocks if block.records), joined)


def _agrees(block: EncodedBlock) -> bool:
    """Whether a block has as many records, and bytes, as its offsets say."""
    offsets = block.offsets
    return len(offsets) == block.records + 1 and offsets[0] == 0 and offsets[-1] == len(block.data)


def batch_of_records(records: Sequence[Record], following: int, place: str, max_data_length: int) -> Batch:
    """A batch of consecutive records, the first of which must be `following`; both checksums of each record are compared.

    `place`: the text with which error messages begin.  Raises OutOfOrderError, InvalidRequestError for data that is too long or a
    field that does not fit, ChecksumMismatchError.
    """
    encoded = [_encoded(record, following + number, place, max_data_length) for number, record in enumerate(records)]
    offsets = np.zeros(len(encoded) + 1, np.int64)
    np.cumsum([len(raw) for raw in encoded], out=offsets[1:])
    return Batch(following, (b"".join(encoded),) if encoded else (), offsets)


def _encoded(record: Record, expected: int, place: str, max_data_length: int) -> bytes:
    place = f"{place}, transaction {record.transaction_id}"
    if record.transaction_id != expected:
        raise OutOfOrderError(f"{place}: out of order, the next one is {expected}")
    if len(record.data) > max_data_length:
        raise InvalidRequestError(
            f"{place}: {len(record.data)} bytes of data, and at most {max_data_length} are allowed"
        )
    try:
        raw = record.encode()
    except struct.error as error:
        raise InvalidRequestError(f"{place}: a field does not fit its place: {error}") from error
    for name, computed, stored in (
        ("data", crc32(record.data), record.data_checksum),
        ("record", crc32(memoryview(raw)[: -CHECKSUM.size]), record.record_checksum),
    ):
        if computed != stored:
            raise ChecksumMismatchError(
                f"{place}: the {name} checksum is {stored:08x}, and the bytes have {computed:08x}",
                advice="the record was damaged on its way here; nothing of the batch was written",
            )
    return raw


def only_part(batch: Batch, segment_size: int, threshold: int) -> BatchPart | None:
    """The whole batch as one part; None when it reaches a checkpoint or the end of the segment (then see `parts_of`)."""
    left = CHECKPOINT_INTERVAL - batch.first_transaction_id % CHECKPOINT_INTERVAL
    if 0 < batch.records < left and segment_size + int(batch.offsets[-1]) <= threshold:
        return BatchPart(batch.pieces, batch.offsets)
    return None


def parts_of(batch: Batch, segment_size: int, threshold: int) -> Iterator[BatchPart | None]:
    """The parts of a batch, each to be written and synced before the next; None stands where a new segment begins.

    `segment_size`: bytes of the segment at the beginning, header included; `threshold`: as in `StorageOptions`.
    """
    only = only_part(batch, segment_size, threshold)
    if only is not None:  # the common case
        yield only
        return
    offsets, count = batch.offsets, batch.records
    size, begin = segment_size, 0
    while begin < count:
        if size > threshold and size > HEADER_SIZE:
            yield None
            size = HEADER_SIZE
        start = int(offsets[begin])
        checkpoint = begin + CHECKPOINT_INTERVAL - (batch.first_transaction_id + begin) % CHECKPOINT_INTERVAL
        full = int(np.searchsorted(offsets, threshold - size + start, side="right"))
        end = min(max(full, begin + 1), checkpoint, count)
        stop = int(offsets[end])
        yield BatchPart(_cut(batch.pieces, start, stop), offsets[begin : end + 1] - start)
        size += stop - start
        begin = end


def _cut(pieces: tuple[bytes | memoryview, ...], start: int, stop: int) -> tuple[bytes | memoryview, ...]:
    """The bytes ``[start, stop)`` of all pieces joined."""
    found: list[bytes | memoryview] = []
    position = 0
    for piece in pieces:
        low, high = max(start - position, 0), min(stop - position, len(piece))
        if low < high:
            found.append(memoryview(piece)[low:high])
        position += len(piece)
    return tuple(found)
