"""The commit journal of a node: one preallocated file in which the appends of many partitions become durable with one flush.

The file has two areas of equal size.  An area begins with a header, followed by entries back to back.  Each entry begins on a
boundary of `BLOCK` bytes, so that writing it never touches a sector of another.  An entry is a header, its parts, and the bytes
of all parts in their order::

    area:   header, twice | entry 0 | entry 1 | ... | anything
    entry:  header | part 0 | part 1 | ... | bytes of part 0 | bytes of part 1 | ... | padding

=========  ==========================================================================================================
part       meaning
=========  ==========================================================================================================
*write*    `length` bytes belong at `offset` of the segment that begins with the transaction id `segment`
*forget*   the parts of earlier entries for this partition are void (its segments were made durable themselves)
=========  ==========================================================================================================

An area is filled, and later begun again from its start.  Each such time has an *epoch*: 1, 3, 5, ... in the first area, 2, 4, 6,
... in the second, which has a header of epoch 0 before its first use.  An area has room for two headers.  A new header replaces
the older of the two, so that one of them is always whole; it is durable before the first entry of its epoch overwrites one of an
earlier epoch.

An entry is *valid* when its magic, its epoch (that of its area), its sequence number (from 0 in each epoch) and its checksum are
right.  The first invalid entry ends the area.  Several entries may be written before the first of them is durable.  Therefore
each entry records how many entries of its epoch were durable before it, and each header how many of the epoch before: fewer valid
entries than that mean damage.

A checksum is the CRC-32 of the bytes before it in its header.  An entry's checksum also covers the journal's id, first, and the
entry's parts and bytes, last; so entries that another journal left in the same sectors are never valid.  Big-endian, as
everything on a Waltz disk.  Source: ours; the released node has no journal.
"""

from __future__ import annotations

import enum
import uuid
from collections.abc import Sequence
from typing import NamedTuple

from construct import Int32sb, Int32ub, Int64sb, Int64ub, Struct

from waltzctl.formats.adapters import Uuid
from waltzctl.formats.checksums import Buffer, crc32
from waltzctl.formats.schema import compile_schema

BLOCK = 4096
"""Alignment of entries in bytes.  The first block of an area holds its two headers."""
_HEADERS = 2
AREAS = 2
_AREA_MAGIC = 0x575A4A41
_ENTRY_MAGIC = 0x575A4A45
_VERSION = 1

AREA_HEADER_SCHEMA = Struct(
    "magic" / Int32ub,
    "version" / Int32ub,
    "journal_id" / Uuid,
    "owner" / Uuid,
    "area_size" / Int64ub,
    "epoch" / Int64ub,
    "preceding" / Int64ub,
    "checksum" / Int32ub,
)
ENTRY_HEADER_SCHEMA = Struct(
    "magic" / Int32ub,
    "parts" / Int32ub,
    "length" / Int64ub,
    "epoch" / Int64ub,
    "sequence" / Int64ub,
    "durable" / Int64ub,
    "checksum" / Int32ub,
)
PART_SCHEMA = Struct(
    "kind" / Int32ub,
    "partition" / Int32sb,
    "segment" / Int64sb,
    "offset" / Int64sb,
    "length" / Int64sb,
)
AREA_HEADER = compile_schema(AREA_HEADER_SCHEMA)
ENTRY_HEADER = compile_schema(ENTRY_HEADER_SCHEMA)
PART = compile_schema(PART_SCHEMA)


class PartKind(enum.IntEnum):
    """The kind of a part: see the table of the module."""

    WRITE = 1
    FORGET = 2


_KINDS = frozenset(PartKind)


class AreaHeader(NamedTuple):
    """The header of an area.

    `owner`: identifies the storage directory.  `area_size`: bytes.  `epoch`: how many times an area of this journal was begun,
    this time included.  `preceding`: how many entries of the epoch before were durable when this one began.
    """

    journal_id: uuid.UUID
    owner: uuid.UUID
    area_size: int
    epoch: int
    preceding: int = 0


class JournalPart(NamedTuple):
    """One part of an entry; `data` is empty in a *forget* part."""

    kind: PartKind
    partition: int
    segment: int
    offset: int
    data: bytes


class JournalEntry(NamedTuple):
    """One entry: parts that become durable with one flush.

    `durable`: how many entries of its epoch were durable when it was written.  `size`: bytes in the journal, with padding.
    """

    epoch: int
    sequence: int
    durable: int
    parts: tuple[JournalPart, ...]
    size: int


class WriteTo(NamedTuple):
    """Bytes to be journaled, in pieces, and where they belong: `offset` of the segment that begins with the id `segment`."""

    partition: int
    segment: int
    offset: int
    pieces: Sequence[bytes | memoryview]


def padded(size: int) -> int:
    """`size` rounded up to whole blocks."""
    return -(-size // BLOCK) * BLOCK


def header_offset(epoch: int) -> int:
    """Byte offset in its area of the header of an epoch."""
    return epoch // AREAS % _HEADERS * (BLOCK // _HEADERS)


def encode_area_header(header: AreaHeader) -> bytes:
    """The bytes to write at `header_offset`."""
    ids = header.journal_id.bytes, header.owner.bytes
    values = (_AREA_MAGIC, _VERSION, *ids, header.area_size, header.epoch, header.preceding)
    covered = AREA_HEADER.struct.pack(*values, 0)[: AREA_HEADER.offset_of("checksum")]
    return AREA_HEADER.struct.pack(*values, crc32(covered))


def decode_area_header(block: Buffer) -> AreaHeader | None:
    """The header with the higher epoch in the first block of an area; None when neither is valid."""
    found = [one for number in range(_HEADERS) if (one := _decode_header(block, number * (BLOCK // _HEADERS)))]
    return max(found, key=lambda header: header.epoch, default=None)


def _decode_header(block: Buffer, offset: int) -> AreaHeader | None:
    if len(block) < offset + AREA_HEADER.size:
        return None
    magic, version, journal_id, owner, *numbers, checksum = AREA_HEADER.struct.unpack_from(block, offset)
    covered = bytes(block[offset : offset + AREA_HEADER.offset_of("checksum")])
    if (magic, version) != (_AREA_MAGIC, _VERSION) or crc32(covered) != checksum:
        return None
    return AreaHeader(uuid.UUID(bytes=journal_id), uuid.UUID(bytes=owner), *numbers)


def entry_size(writes: Sequence[WriteTo]) -> int:
    """Bytes of the entry that holds these writes, without padding."""
    return ENTRY_HEADER.size + sum(PART.size + sum(map(len, write.pieces)) for write in writes)


def encode_entry(
    journal_id: uuid.UUID,
    place: tuple[int, int, int],
    writes: Sequence[WriteTo] = (),
    forgotten: Sequence[int] = (),
) -> bytes:
    """The bytes of an entry, padded to whole blocks.

    `place`: epoch, sequence number, and how many entries before it are durable.  `forgotten`: partitions for a *forget* part.
    """
    parts = [PART.struct.pack(PartKind.FORGET, partition, 0, 0, 0) for partition in forgotten]
    pieces: list[bytes | memoryview] = []
    for write in writes:
        length = sum(map(len, write.pieces))
        parts.append(PART.struct.pack(PartKind.WRITE, write.partition, write.segment, write.offset, length))
        pieces += write.pieces
    payload = b"".join([*parts, *pieces])
    values = (_ENTRY_MAGIC, len(parts), len(payload), *place)
    covered = ENTRY_HEADER.struct.pack(*values, 0)[: ENTRY_HEADER.offset_of("checksum")]
    checksum = crc32(payload, crc32(covered, crc32(journal_id.bytes)))
    raw = ENTRY_HEADER.struct.pack(*values, checksum) + payload
    return raw.ljust(padded(len(raw)), b"\0")


def decode_entry(journal_id: uuid.UUID, area: Buffer, position: int) -> JournalEntry | None:
    """The entry of this journal at byte `position` of an area, of any epoch; None when there is none with a right checksum."""
    if position + ENTRY_HEADER.size > len(area):
        return None
    magic, count, length, epoch, sequence, durable, checksum = ENTRY_HEADER.struct.unpack_from(area, position)
    start = position + ENTRY_HEADER.size
    if magic != _ENTRY_MAGIC or start + length > len(area) or count * PART.size > length:
        return None
    covered = bytes(area[position : position + ENTRY_HEADER.offset_of("checksum")])
    payload = bytes(area[start : start + length])
    if crc32(payload, crc32(covered, crc32(journal_id.bytes))) != checksum:
        return None
    parts: list[JournalPart] = []
    data = count * PART.size
    for number in range(count):
        kind, partition, segment, offset, size = PART.struct.unpack_from(payload, number * PART.size)
        if kind not in _KINDS:
            return None
        parts.append(JournalPart(PartKind(kind), partition, segment, offset, payload[data : data + size]))
        data += size
    return JournalEntry(epoch, sequence, durable, tuple(parts), padded(ENTRY_HEADER.size + length))


class AreaDamage(NamedTuple):
    """Damage in an area: its byte offset there, and how it was detected."""

    position: int
    shown_by: str


class ReadArea(NamedTuple):
    """A decoded area: its valid entries in order, and the damage after them, if any.

    `preceding`: how many valid entries the epoch before must have.
    """

    epoch: int
    preceding: int
    entries: list[JournalEntry]
    damage: AreaDamage | None = None


def read_area(journal_id: uuid.UUID, area: Buffer) -> ReadArea:
    """Read a whole area."""
    header = decode_area_header(area)
    if header is None or header.journal_id != journal_id:
        return ReadArea(0, 0, [], AreaDamage(0, f"neither header is one of the journal {journal_id}"))
    epoch, preceding, position = header.epoch, header.preceding, BLOCK
    first = decode_entry(journal_id, area, position)
    if first is not None and first.sequence == 0 and first.epoch > epoch:  # its header was durable, so it is damaged
        epoch, preceding = first.epoch, 0
    entries: list[JournalEntry] = []
    while (entry := decode_entry(journal_id, area, position)) and (entry.epoch, entry.sequence) == (
        epoch,
        len(entries),
    ):
        entries.append(entry)
        position += entry.size
    for behind in range(position, len(area), BLOCK):
        later = decode_entry(journal_id, area, behind)
        if later is not None and later.durable > (len(entries) if later.epoch == epoch else 0) and later.epoch >= epoch:
            said = f"{later.durable} entries of epoch {later.epoch} were durable, and {len(entries)} of epoch {epoch} are whole"
            return ReadArea(epoch, preceding, entries, AreaDamage(position, said))
    return ReadArea(epoch, preceding, entries)


def read_areas(journal_id: uuid.UUID, areas: Sequence[Buffer]) -> tuple[ReadArea, ...]:
    """Both areas, the earlier epoch first, each with its damage."""
    earlier, later = sorted((read_area(journal_id, area) for area in areas), key=lambda read: read.epoch)
    if earlier.damage is None and later.epoch == earlier.epoch + 1 and later.preceding > len(earlier.entries):
        said = f"{later.preceding} entries of epoch {earlier.epoch} were durable, and {len(earlier.entries)} are whole"
        position = BLOCK + sum(entry.size for entry in earlier.entries)
        earlier = earlier._replace(damage=AreaDamage(position, said))
    return earlier, later
