"""What release 0.13.2 does with a segment and a control file, as small functions on bytes.

Tests use these to show that the bytes at hand are a case which the release mishandles.  Only the rules that matter here are
modelled; each was seen with the released program.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass

from waltzctl.formats.control import Layout, PartitionInfo, PartitionStruct, choose_current

HEADER = 128


@dataclass(frozen=True)
class Opened:
    """A segment after the release opened it: both files as it leaves them, its last id, and the error that stops the node."""

    data: bytes
    index: bytes
    last: int
    fatal: str | None = None


def record_size(data: bytes, offset: int, expected: int) -> int | None:
    """Size of a good record; None for a bad one.  The data's own checksum is not compared, the length not bounded."""
    head = data[offset : offset + 36]
    if len(head) < 36:
        return None
    number, length = struct.unpack_from(">q", head)[0], struct.unpack_from(">i", head, 28)[0]
    if number != expected:
        return None
    if length < 0:
        raise NegativeArraySize
    end = offset + 36 + length
    if len(data) < end + 4:
        return None
    stored = struct.unpack_from(">I", data, end)[0]
    return 40 + length if zlib.crc32(data[offset:end]) == stored else None


class NegativeArraySize(Exception):  # noqa: N818  # the name of what stops the released node
    """A negative length is used to take memory."""


def open_segment(data: bytes, index: bytes | None, local_low_water_mark: int) -> Opened:
    """Open a segment for the first time after a start."""
    if len(data) < HEADER:
        return Opened(data, index or b"", -1, "end of file")
    if index is None or len(index) < HEADER:
        return Opened(data, index or b"", -1, "end of file")
    first = struct.unpack_from(">q", data, 32)[0]
    last = first + (len(index) - HEADER) // 8 - 1
    start = last if last <= local_low_water_mark else max(int((last - 1) / 1000) * 1000, local_low_water_mark)
    number, offset = first, HEADER
    if start > first:
        entry = HEADER + 8 * (start - first)
        offset = struct.unpack_from(">q", index, entry)[0]
        index = index[: entry + 8]
        size = record_size(data, offset, start)
        if size is None:
            return Opened(data, index, last, "record corrupted")
        number, offset = start + 1, offset + size
    entries = index[: HEADER + 8 * (number - first)]
    while True:
        try:
            size = record_size(data, offset, number)
        except NegativeArraySize:
            return Opened(data, index, last, "negative array size")
        if size is None:
            return Opened(data[:offset], entries, number - 1)
        entries += struct.pack(">q", offset)
        number, offset = number + 1, offset + size


def read(data: bytes, index: bytes, transaction_id: int) -> bytes | None:
    """The data of a record as the release serves it: only the id is compared."""
    first = struct.unpack_from(">q", data, 32)[0]
    entry = HEADER + 8 * (transaction_id - first)
    if entry + 8 > len(index):
        return None
    offset = struct.unpack_from(">q", index, entry)[0]
    if struct.unpack_from(">q", data, offset)[0] != transaction_id:
        raise ValueError("transaction id mismatch")
    length = struct.unpack_from(">i", data, offset + 28)[0]
    return data[offset + 36 : offset + 36 + length]


def roll_fails(names_and_sizes: dict[str, int], next_id: int) -> bool:
    """Whether beginning the next segment is refused for ever: "segment file not empty"."""
    return any(names_and_sizes.get(f"{next_id:019d}{suffix}", 0) > 0 for suffix in (".idx", ".seg"))


def control_is_taken_for_new(size: int) -> bool:
    """Whether a control file of this size is written over with initial values."""
    return size < HEADER


def choose_by_sequence(info: PartitionInfo) -> PartitionStruct | None:
    """The struct in force by a signed comparison of the sequence numbers."""
    first, second = info.structs
    if not (first.valid and second.valid):
        current, _ = choose_current(first, second)
        return None if current is None else info.structs[current - 1]
    assert first.sequence is not None
    assert second.sequence is not None
    if first.sequence == second.sequence:
        return None
    return first if first.sequence > second.sequence else second


def reset_before_its_only_sync(info: PartitionInfo) -> bytes:
    """What a power loss may leave of an info that the release is resetting: both structs torn."""
    raw = bytearray(info.encode())
    initial = struct.pack(">qqqi", -1, -1, -1, 1)
    for number in (1, 2):
        start = Layout.RELEASED.struct_offset(0, number) - HEADER
        raw[start : start + len(initial)] = initial  # the marks are new, sequence and checksum still old
    return bytes(raw)
