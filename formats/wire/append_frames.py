"""`AppendRequest` written directly as a whole frame, for clients that append many: no message object is made.

For given numbers of locks, the bytes before the data have a fixed layout, and so have the bytes after it.  Both layouts are
derived from the schema.
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
"""Combinations of numbers of locks whose layouts are cached."""


@lru_cache(maxsize=_SHAPES)
def _layouts(version: int, *counts: int) -> tuple[struct.Struct, struct.Struct]:
    """The layouts before and after the data, for a version and the lengths of its lists of locks."""
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
    """A function that writes whole frames of a version.  Like `encode` it raises ValueError for a value that does not fit."""
    plain, tail = _layouts(version)
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
            head = _layouts(version, w, r, a)[0]
            pack, body, locks = (
                head.pack,
                head.size + size + around,
                (w, *write_locks, r, *read_locks, a, *append_locks),
            )
        else:
            body = MAX_FRAME_BODY + 1  # leave it to `encode` to tell whether the version has these locks
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
