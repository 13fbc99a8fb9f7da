"""`FeedData` as whole frames: a log server stores the transactions of its feeds in the form in which it sends them.

The frames have the same size in every version, and differ only in the version number of the frame header.  So a run of frames can
be divided by their size, and converted to another version in place.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from functools import cache

from construct import Struct

from waltzctl.formats.request_id import RequestId
from waltzctl.formats.schema import compile_schema
from waltzctl.formats.segment import RecordHeader
from waltzctl.formats.wire.client import CLIENT_VERSIONS, PREFIX_SCHEMA, FeedData
from waltzctl.formats.wire.frame import FRAME_HEADER, Magic

FEED_FRAME_SCHEMA = compile_schema(
    Struct(*FRAME_HEADER.schema.subcons, *PREFIX_SCHEMA.subcons, *FeedData.FIELDS.subcons)
)
_FEED = FEED_FRAME_SCHEMA.struct
FEED_FRAME = _FEED.size
"""Bytes of a whole frame of `FeedData`, the same in every version."""
_PREFIX = compile_schema(Struct(*FRAME_HEADER.schema.subcons, PREFIX_SCHEMA.subcons[0])).struct
_ROW = struct.Struct(f">{_PREFIX.size}x{_FEED.format.removeprefix(_PREFIX.format)}")
"""The fields of a whole frame that follow `feed_prefix`."""
_FEED_BODY = FEED_FRAME - FRAME_HEADER.size
_VERSION_AT = compile_schema(Struct(FRAME_HEADER.schema.subcons[0])).struct.size
"""Byte offset of the 16-bit version number in a frame."""


@cache
def feed_prefix(version: int) -> bytes:
    """The header and type of a `FeedData` frame of a version; no other frame begins with these bytes."""
    return FRAME_HEADER.struct.pack(Magic.CLIENT, version, _FEED_BODY) + bytes([FeedData.TYPE])


FeedRow = tuple[int, int, int, int, int, int]
"""Client, generation, partition and sequence of the request id, transaction id, header."""


def feed_rows(frames: bytes) -> Iterator[FeedRow]:
    """The fields of whole `FeedData` frames of any version, back to back."""
    return _ROW.iter_unpack(frames)


def put_feed_frame(frames: bytearray, offset: int, transaction_id: int, request_id: RequestId, header: int) -> None:
    """Write a whole frame of `FeedData` of the latest version into a buffer."""
    i = request_id
    ids = i.client, i.generation, i.partition, i.sequence
    _FEED.pack_into(
        frames, offset, Magic.CLIENT, CLIENT_VERSIONS[-1], _FEED_BODY, FeedData.TYPE, *ids, transaction_id, header
    )


def feed_frames(headers: Sequence[RecordHeader]) -> bytes:
    """`FeedData` of the latest version back to back, whole frames, one for each committed transaction."""
    frames = bytearray(len(headers) * FEED_FRAME)
    for place, one in enumerate(headers):
        put_feed_frame(frames, place * FEED_FRAME, one.transaction_id, one.request_id, one.header)
    return bytes(frames)


def feed_frames_as(frames: bytes, version: int) -> bytes:
    """Frames of the latest version converted to another version of the protocol."""
    if version == CLIENT_VERSIONS[-1]:
        return frames
    changed, count = bytearray(frames), len(frames) // FEED_FRAME
    for place, byte in enumerate(version.to_bytes(2, "big"), _VERSION_AT):
        changed[place::FEED_FRAME] = bytes([byte]) * count
    return bytes(changed)
