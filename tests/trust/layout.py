"""The bytes of sound files, from the facts of the format: what the generator of damage starts from.

Not a line of ``formats`` is used, so that a mistake there cannot hide in its own test.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

CONTROL = "waltz-storage.ctl"
HEADER_SIZE = 128
CREATED = 1_700_000_000_123
RECORD_OVERHEAD = 40
DOCUMENTED, RELEASED = "documented", "released"
AVAILABLE, ASSIGNED = 1, 4


@dataclass(frozen=True)
class Transaction:
    """A record: `request` are client, generation, partition and sequence."""

    number: int
    request: tuple[int, int, int, int]
    header: int
    data: bytes

    def encode(self) -> bytes:
        """40 + len(data) bytes."""
        return sealed(self.number, self.request, self.header, self.data, zlib.crc32(self.data))


def sealed(number: int, request: tuple[int, int, int, int], header: int, data: bytes, data_sum: int) -> bytes:
    """A record with a right checksum over whatever it holds."""
    head = struct.pack(">qiiiiiiI", number, *request, header, len(data), data_sum)
    return head + data + struct.pack(">I", zlib.crc32(head + data))


def segment_header(key: bytes, partition: int, first: int, created: int = CREATED) -> bytes:
    """128 bytes in front of records or index entries."""
    return struct.pack(">iq16siq88s", 0, created, key, partition, first, bytes(88))


def name(partition: int, first: int, suffix: str = ".seg") -> str:
    """Relative path of a data or index file."""
    return f"{partition}/{first:019d}{suffix}"


def segment(
    key: bytes, partition: int, first: int, records: Sequence[bytes], created: int = CREATED
) -> tuple[bytes, bytes]:
    """Data file and index file of encoded records."""
    head = segment_header(key, partition, first, created)
    return head + b"".join(records), head + entries(offsets(records))


def offsets(records: Sequence[bytes]) -> list[int]:
    """Where each of some records stands, the first at byte 128."""
    found, place = [], HEADER_SIZE
    for one in records:
        found.append(place)
        place += len(one)
    return found


def entries(places: Sequence[int]) -> bytes:
    """Index entries."""
    return struct.pack(f">{len(places)}q", *places)


@dataclass(frozen=True)
class Struct:
    """One of a partition's pair; `flags` and `sequence` exist in the released layout only."""

    session: int = -1
    low: int = -1
    local: int = -1
    flags: int = AVAILABLE
    sequence: int = -1

    def encode(self, layout: str) -> bytes:
        """36 bytes, or 28."""
        if layout == RELEASED:
            body = struct.pack(">qqqii", self.session, self.low, self.local, self.flags, self.sequence)
        else:
            body = struct.pack(">qqq", self.session, self.low, self.local)
        return body + struct.pack(">I", zlib.crc32(body))


@dataclass(frozen=True)
class Pair:
    """A partition's two structs as its history left them; `current` is 0 or 1."""

    structs: tuple[Struct, Struct] = (Struct(), Struct(sequence=0))
    current: int = 1

    def updated(self, *, session: int | None = None, low: int = -1, local: int = -1, flags: int | None = None) -> Pair:
        """After an update, which overwrites the older struct."""
        old = self.structs[self.current]
        new = replace(old, sequence=old.sequence + 1, flags=old.flags if flags is None else flags)
        if session is not None:
            new = replace(new, session=session, low=low, local=local)
        target = 1 - self.current
        return Pair((new, self.structs[1]) if target == 0 else (self.structs[0], new), target)

    def encode(self, layout: str) -> bytes:
        """72 bytes, or 56."""
        return b"".join(one.encode(layout) for one in self.structs)


def info_size(layout: str) -> int:
    """Bytes of a partition's info."""
    return 76 if layout == RELEASED else 60


def info_offset(layout: str, partition: int) -> int:
    """Where a partition's info begins."""
    return HEADER_SIZE + info_size(layout) * partition


def struct_offset(layout: str, partition: int, number: int) -> int:
    """Where struct 0 or 1 of a partition begins."""
    return info_offset(layout, partition) + 4 + number * (info_size(layout) - 4) // 2


def control(layout: str, key: bytes, pairs: Sequence[Pair]) -> bytes:
    """A control file."""
    head = struct.pack(">iq16si96s", 0, CREATED, key, len(pairs), bytes(96))
    return head + b"".join(struct.pack(">i", place) + pair.encode(layout) for place, pair in enumerate(pairs))
