"""Session file ``.waltzctl/sessions``: for each partition, the highest session that a storage node has accepted.

The file fences off older sessions after a restart of the node.  It is ours; neither the design documents nor release 0.13.2 have
one.  (The release keeps the highest session in memory only; its disk has just the session of the last low-water mark.)  All
integers are big-endian.

======  =========================  ===================================================================================
offset  what                       fields
======  =========================  ===================================================================================
0       header, 64 bytes           magic ``WZSESSIO``, version 4 (signed), number of partitions 4 (signed), reserved 44,
                                   checksum 4
64 + 32 * p  pair of partition p   two slots of 16 bytes: session id 8 (signed), partition 4 (signed), checksum 4
======  =========================  ===================================================================================

A checksum is the CRC-32 of the bytes before it in its structure.  A slot of zero bytes was never written.  The valid slot with
the higher session is the current one; a new session is written to the other slot, so that a torn write leaves the current one
intact.  A slot lies within one sector of any disk.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from construct import Array, Bytes, Int32sb, Int32ub, Int64sb, Struct

from waltzctl.formats.checksums import Buffer, crc32
from waltzctl.formats.schema import compile_schema

FENCE_FILE_NAME = "sessions"
FENCE_MAGIC = b"WZSESSIO"
FENCE_VERSION = 1
NO_SESSION = -1
"""The session of a pair that was never written; sessions of Waltz begin at 0."""

FENCE_HEADER_SCHEMA = Struct(
    "magic" / Bytes(8),
    "version" / Int32sb,
    "num_partitions" / Int32sb,
    "reserved" / Bytes(44),
    "checksum" / Int32ub,
)
FENCE_SLOT_SCHEMA = Struct("session_id" / Int64sb, "partition" / Int32sb, "checksum" / Int32ub)
FENCE_PAIR_SCHEMA = Struct("slots" / Array(2, FENCE_SLOT_SCHEMA))

FENCE_HEADER = compile_schema(FENCE_HEADER_SCHEMA)
FENCE_SLOT = compile_schema(FENCE_SLOT_SCHEMA)
FENCE_PAIR = compile_schema(FENCE_PAIR_SCHEMA)
_RESERVED = bytes(FENCE_HEADER.size_of("reserved"))
_UNWRITTEN = bytes(FENCE_SLOT.size)


class FenceError(ValueError):
    """The bytes are not a session file of a known version, or they are damaged."""


class FenceVersionError(FenceError):
    """The file is of a version that is not known, and intact as far as can be told."""


def fence_file_size(num_partitions: int) -> int:
    """Bytes of the file."""
    return FENCE_HEADER.size + FENCE_PAIR.size * num_partitions


def pair_offset(partition: int) -> int:
    """Byte offset of a partition's pair in the file."""
    return FENCE_HEADER.size + FENCE_PAIR.size * partition


def encode_fence_header(num_partitions: int) -> bytes:
    """The first 64 bytes."""
    raw = FENCE_HEADER.struct.pack(FENCE_MAGIC, FENCE_VERSION, num_partitions, _RESERVED, 0)
    covered = raw[: FENCE_HEADER.offset_of("checksum")]
    return covered + struct.pack(">I", crc32(covered))


def decode_fence_header(data: Buffer) -> int:
    """The number of partitions.  Raises FenceError for a header that is short, damaged or of another version."""
    if len(data) < FENCE_HEADER.size:
        raise FenceError(f"it has {len(data)} bytes, its header alone has {FENCE_HEADER.size}")
    magic, version, partitions, _, checksum = FENCE_HEADER.struct.unpack_from(data)
    if magic != FENCE_MAGIC or checksum != crc32(memoryview(data)[: FENCE_HEADER.offset_of("checksum")]):
        raise FenceError("its header is damaged")
    if version != FENCE_VERSION:
        raise FenceVersionError(f"it is of version {version}, and only version {FENCE_VERSION} is known")
    return int(partitions)


def encode_slot(partition: int, session_id: int) -> bytes:
    """16 bytes."""
    raw = FENCE_SLOT.struct.pack(session_id, partition, 0)[: FENCE_SLOT.offset_of("checksum")]
    return raw + struct.pack(">I", crc32(raw))


@dataclass(frozen=True, slots=True)
class FencePair:
    """A decoded pair: the partition's highest session, and the slot (0 or 1) to write the next one to."""

    session_id: int
    next_slot: int


def decode_pair(data: Buffer, partition: int) -> FencePair:
    """From the 32 bytes of a partition's pair.

    An invalid slot next to one that was never written is a first write that was torn; it was never acknowledged, so the pair has
    no session.  Raises FenceError when both slots were written and neither is valid.
    """
    size = FENCE_SLOT.size
    slots = [bytes(data[place * size : place * size + size]) for place in (0, 1)]
    sessions = [_session_of(slot, partition) for slot in slots]
    if sessions[0] is None and sessions[1] is None:
        if _UNWRITTEN not in slots:
            raise FenceError(f"both slots of partition {partition} are damaged")
        return FencePair(NO_SESSION, 0 if slots[1] == _UNWRITTEN else 1)
    if sessions[1] is None or (sessions[0] is not None and sessions[0] >= sessions[1]):
        assert sessions[0] is not None
        return FencePair(sessions[0], 1)
    return FencePair(sessions[1], 0)


def _session_of(slot: bytes, partition: int) -> int | None:
    if len(slot) < FENCE_SLOT.size:
        return None
    session_id, stored, checksum = FENCE_SLOT.struct.unpack(slot)
    if stored != partition or checksum != crc32(slot[: FENCE_SLOT.offset_of("checksum")]):
        return None
    return int(session_id)
