"""The commit journal of a node: one preallocated file in which the appends of many partitions become durable with one flush.

The file has two areas of equal size.  An area begins with a header and holds entries back to back, each on a boundary of
`BLOCK` bytes, so that writing one never touches a sector of another.  An entry is a header, its parts, and the bytes of all
parts in their order::

    area:   header, twice | entry 0 | entry 1 | ... | anything
    entry:  header | part 0 | part 1 | ... | bytes of part 0 | bytes of part 1 | ... | padding

=========  ==========================================================================================================
part       meaning
=========  ==========================================================================================================
*write*    `length` bytes stand at `offset` of the segment that begins with the transaction id `segment`
*forget*   nothing that an earlier entry says of the partition holds any more (it was made durable where it belongs)
=========  ==========================================================================================================

Each time that an area is begun anew has its epoch: 1, 3, 5, ... in the first area, 2, 4, 6, ... in the second, which has the
header of epoch 0 until then.  A header is written over the one before the last, so that one of the two is always whole, and is
durable before the first entry of its epoch is written over one of an earlier epoch.

An entry counts when its magic, the epoch of its area, its sequence (from 0 on in each epoch) and its checksum are right.  The
first one that does not ends the area.  A few may be written before the first of them is durable, so each says how many before it
were, and a header how many of the other area: where fewer count, one was damaged.

A checksum is the CRC-32 of the header's bytes in front of it; an entry's begins with the journal's id and ends with its parts
and bytes, so that what another journal left in the same sectors never counts.  Big-endian, as everything on a Waltz disk.
Source: ours; the released node has no journal.
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
"""Bytes to whose multiples entries are aligned; the two headers of an area have the first ones for themselves."""
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
    """What a part says of its partition."""

    WRITE = 1
    FORGET = 2


_KINDS = frozenset(PartKind)


class AreaHeader(NamedTuple):
    """The head of an area.

    `owner` tells journals of different storage directories apart, `area_size` is in bytes, and `epoch` counts from 1 how often
    an area of this journal was begun.  `preceding`: entries of the epoch before this one that were durable when it began.
    """

    journal_id: uuid.UUID
    owner: uuid.UUID
    area_size: int
    epoch: int
    preceding: int = 0


class JournalPart(NamedTuple):
    """One part of an entry; `data` is empty where it says *forget*."""

    kind: PartKind
    partition: int
    segment: int
    offset: int
    data: bytes


class JournalEntry(NamedTuple):
    """What is flushed together.

    `durable`: entries of its epoch, from the first on, that were durable when it was written.  `size`: bytes in the journal,
    padding included.
    """

    epoch: int
    sequence: int
    durable: int
    parts: tuple[JournalPart, ...]
    size: int


class WriteTo(NamedTuple):
    """Bytes that are to be journaled, in pieces: where they stand in a segment."""

    partition: int
    segment: int
    offset: int
    pieces: Sequence[bytes | memoryview]


def padded(size: int) -> int:
    """`size` rounded up to whole blocks."""
    return -(-size // BLOCK) * BLOCK


def header_offset(epoch: int) -> int:
    """Where in its area the header of an epoch stands."""
    return epoch // AREAS % _HEADERS * (BLOCK // _HEADERS)


def encode_area_header(header: AreaHeader) -> bytes:
    """The bytes that stand at `header_offset`."""
    ids = header.journal_id.bytes, header.owner.bytes
    values = (_AREA_MAGIC, _VERSION, *ids, header.area_size, header.epoch, header.preceding)
    covered = AREA_HEADER.struct.pack(*values, 0)[: AREA_HEADER.offset_of("checksum")]
    return AREA_HEADER.struct.pack(*values, crc32(covered))


def decode_area_header(block: Buffer) -> AreaHeader | None:
    """The later one of the headers in the first block of an area; None where none stands there whole."""
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

    `place`: epoch, sequence, and how many before it are durable.  `forgotten`: partitions of which nothing earlier holds.
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
    """The entry of this journal that begins at a byte of an area, of whatever epoch; None where none stands there whole."""
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
    """Something of an area is damaged: bytes into the area, and what shows it."""

    position: int
    shown_by: str


class ReadArea(NamedTuple):
    """What an area holds: entries in order, and damage behind them if there is any.

    `preceding`: how many entries the epoch before must have.
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
    if first is not None and first.sequence == 0 and first.epoch > epoch:  # its header was durable, and is damaged
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
    """Both areas, the earlier epoch first, each with what is damaged in it."""
    earlier, later = sorted((read_area(journal_id, area) for area in areas), key=lambda read: read.epoch)
    if earlier.damage is None and later.epoch == earlier.epoch + 1 and later.preceding > len(earlier.entries):
        said = f"{later.preceding} entries of epoch {earlier.epoch} were durable, and {len(earlier.entries)} are whole"
        position = BLOCK + sum(entry.size for entry in earlier.entries)
        earlier = earlier._replace(damage=AreaDamage(position, said))
    return earlier, later
