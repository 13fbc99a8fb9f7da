"""`FeedData` as whole frames: a log server keeps what it feeds as the bytes that it sends, and makes no messages of it.

In every version they are of one size and differ in nothing but the version that the frame names, so that a run of them is cut by
its length and made one of another version in place.
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
"""A whole frame without what all of them begin with."""
_FEED_BODY = FEED_FRAME - FRAME_HEADER.size
_VERSION_AT = compile_schema(Struct(FRAME_HEADER.schema.subcons[0])).struct.size
"""Where in a frame the version stands, 16 bits: the only thing in which the versions of `FeedData` differ."""


@cache
def feed_prefix(version: int) -> bytes:
    """What every whole frame of `FeedData` of a version begins with, and no other frame: header and type."""
    return FRAME_HEADER.struct.pack(Magic.CLIENT, version, _FEED_BODY) + bytes([FeedData.TYPE])


FeedRow = tuple[int, int, int, int, int, int]
"""Client, generation, partition and sequence of the request id, transaction id, header."""


def feed_rows(frames: bytes) -> Iterator[FeedRow]:
    """What whole frames of `FeedData`, back to back, tell."""
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
    """The same transactions in another version of the protocol."""
    if version == CLIENT_VERSIONS[-1]:
        return frames
    changed, count = bytearray(frames), len(frames) // FEED_FRAME
    for place, byte in enumerate(version.to_bytes(2, "big"), _VERSION_AT):
        changed[place::FEED_FRAME] = bytes([byte]) * count
    return bytes(changed)
