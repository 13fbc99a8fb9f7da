"""`AppendRequest` as a whole frame: who appends many makes no message of each.

What stands in front of the data is of fixed size for given numbers of locks, and so is what stands behind it: two pieces, derived
from the schema.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from typing import Any

from construct import Array, Struct

from waltzctl.formats.checksums import crc32
from waltzctl.formats.request_id import RequestId
from waltzctl.formats.schema import compile_schema
from waltzctl.formats.wire.client import CODECS, LOCK_LISTS, AppendLocks, AppendRequest, encode
from waltzctl.formats.wire.frame import FRAME_HEADER, MAX_FRAME_BODY, Magic
from waltzctl.formats.wire.primitives import COUNT, ByteArrayOf, ListOf

Locks = Sequence[int]
"""Ids of locks."""
WriteAppend = Callable[[int, int, int, int, int, int, bytes, Locks, Locks, Locks], bytes]
"""Client, generation, partition and sequence of the request id, high-water mark, header, data; write, read and append locks."""
_LISTS = len(AppendLocks._fields)
_SHAPES = 256
"""Numbers of locks whose pieces are kept."""


@lru_cache(maxsize=_SHAPES)
def _pieces(version: int, *counts: int) -> tuple[struct.Struct, struct.Struct]:
    """In front of the data, and behind it, where the lists that a version has are so long."""
    members, left = list[Any](FRAME_HEADER.schema.subcons), iter(counts)
    for member in CODECS[version].schemas[AppendRequest].subcons:
        if isinstance(member.subcon, ListOf):
            members += [f"{member.name}_count" / COUNT, member.name / Array(next(left, 0), member.subcon.subcon)]
        elif isinstance(member.subcon, ByteArrayOf):
            members.append(member.name / COUNT)
            data = len(members)
        else:
            members.append(member)
    return compile_schema(Struct(*members[:data])).struct, compile_schema(Struct(*members[data:])).struct


@cache
def append_writer(version: int) -> WriteAppend:
    """A function that writes whole frames of a version.  It raises ValueError where something does not fit, as `encode` does."""
    plain, tail = _pieces(version)
    lists = LOCK_LISTS[version]
    pack_plain, pack_tail, checksum = plain.pack, tail.pack, crc32
    magic, kind, none = int(Magic.CLIENT), AppendRequest.TYPE, (0,) * lists
    around = tail.size - FRAME_HEADER.size
    plain_size = plain.size

    def write(
        client: int,
        generation: int,
        partition: int,
        sequence: int,
        mark: int,
        header: int,
        data: bytes,
        write_locks: Locks,
        read_locks: Locks,
        append_locks: Locks,
    ) -> bytes:
        size = len(data)
        if not (write_locks or read_locks or append_locks):
            pack, body, locks = pack_plain, plain_size + size + around, none
        elif lists == _LISTS:
            w, r, a = len(write_locks), len(read_locks), len(append_locks)
            head = _pieces(version, w, r, a)[0]
            pack, body, locks = (
                head.pack,
                head.size + size + around,
                (w, *write_locks, r, *read_locks, a, *append_locks),
            )
        else:
            body = MAX_FRAME_BODY + 1  # whether the version has these locks is not known here
        if body > MAX_FRAME_BODY:
            request_id = RequestId(client, generation, partition, sequence)
            three = tuple(write_locks), tuple(read_locks), tuple(append_locks)
            return encode(AppendRequest(request_id, mark, header, data, crc32(data), *three), version)
        try:
            packed = pack(
                magic, version, body, kind, client, generation, partition, sequence, mark, *locks, header, size
            )
        except struct.error as error:
            raise ValueError(f"{AppendRequest.__name__}: {error}") from error
        return b"".join((packed, data, pack_tail(checksum(data))))

    return write
