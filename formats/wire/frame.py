"""Frames: the envelope of every message on every Waltz port.

A frame is a header of 7 bytes (magic, version of the codec in use, length of the body) and the body.  A frame with an empty body
is a keep-alive.  A reader refuses a frame whose magic or version is not the agreed one.

The release has no limit for the length of a frame; here a reader refuses a body longer than its `max_body` as soon as it has the
header.

Source: release 0.13.2 (its networking library, 2.5.2).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from functools import cache

from construct import Int8ub, Int16sb, Int32sb, Struct

from waltzctl.formats.checksums import Buffer
from waltzctl.formats.schema import compile_schema

FRAME_HEADER_SCHEMA = Struct("magic" / Int8ub, "version" / Int16sb, "length" / Int32sb)
"""Header of a frame: 7 bytes.  `length` counts the body only."""
FRAME_HEADER = compile_schema(FRAME_HEADER_SCHEMA)

MAX_FRAME_BODY = 2**31 - 1
"""The largest value of the length field."""
DEFAULT_MAX_BODY = 64 << 20
"""Longest body that a reader accepts unless told otherwise, in bytes."""
_SHOWN = 16


_TLS_RECORDS = frozenset({0x14, 0x15, 0x16, 0x17})


def is_tls(data: bytes | bytearray | memoryview) -> bool:
    """Whether the first bytes of a peer are a TLS record (RFC 8446, 5.1); no frame begins with the same byte."""
    return bool(len(data)) and data[0] in _TLS_RECORDS


class Magic(IntEnum):
    """First byte of a frame: which protocol it belongs to (the ASCII letters H, S, A, L)."""

    HELLO = 0x48
    STORAGE = 0x53
    ADMIN = 0x41
    CLIENT = 0x4C


class FrameError(ValueError):
    """A frame with a wrong magic or version, or a body that is too long.  The connection cannot be used any more."""


@dataclass(frozen=True, slots=True)
class FrameHeader:
    """A frame's header, unchecked.  `length`: bytes of the body, signed."""

    magic: int
    version: int
    length: int

    def encode(self) -> bytes:
        """7 bytes."""
        return FRAME_HEADER.struct.pack(self.magic, self.version, self.length)


def decode_frame_header(data: Buffer) -> FrameHeader:
    """From the first 7 bytes of `data`.  Raises struct.error when there are fewer.  Nothing is checked: see `check_header`."""
    return FrameHeader(*FRAME_HEADER.struct.unpack_from(data))


def check_header(header: FrameHeader, magic: int, version: int, max_body: int, shown: Buffer = b"") -> None:
    """Raise FrameError unless the header is of the agreed protocol and its body not longer than `max_body` bytes.

    `shown`: the first bytes of the frame, for the error message; readable text there usually means a wrong port.
    """
    if header.magic != magic:
        raise FrameError(f"magic 0x{header.magic:02x} instead of 0x{magic:02x} ({chr(magic)}){_looks(shown)}")
    if header.version != version:
        raise FrameError(f"version {header.version} instead of the agreed {version}{_looks(shown)}")
    if header.length < 0:
        raise FrameError(f"length {header.length} of the body is negative{_looks(shown)}")
    if header.length > max_body:
        raise FrameError(f"a body of {header.length} bytes; the longest accepted here has {max_body}")


def body_length(data: Buffer, start: int, magic: int, version: int, max_body: int, shown: Buffer = b"") -> int:
    """Bytes of the body of the frame that begins at `start`, whose 7 bytes of header are there.

    Raises FrameError as `check_header`.  For speed no FrameHeader is made for a valid header.
    """
    found_magic, found_version, length = FRAME_HEADER.struct.unpack_from(data, start)
    if found_magic != magic or found_version != version or not 0 <= length <= max_body:
        check_header(FrameHeader(found_magic, found_version, length), magic, version, max_body, shown)
    return int(length)


def _looks(shown: Buffer) -> str:
    data = bytes(shown[:_SHOWN])
    if not data:
        return ""
    text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in data)
    return f"; the frame begins with {data.hex(' ')} ({text})"


def frame(magic: int, version: int, body: Buffer) -> bytes:
    """A whole frame.  Raises ValueError for an empty body (that would be a keep-alive) and for one beyond 2^31 - 1 bytes."""
    return frame_header(magic, version, len(body)) + bytes(body)


def frame_header(magic: int, version: int, length: int) -> bytes:
    """The 7 bytes in front of a body of `length` bytes.  Raises ValueError as `frame` does."""
    if not 0 < length <= MAX_FRAME_BODY:
        raise ValueError(f"a message cannot have a body of {length} bytes")
    return FRAME_HEADER.struct.pack(magic, version, length)


@cache
def keep_alive(magic: int, version: int) -> bytes:
    """A frame without a body, which every reader skips."""
    return FRAME_HEADER.struct.pack(magic, version, 0)


class FrameReader:
    """Cuts a stream into frame bodies.  It buffers what was fed and not taken; the caller limits how much it feeds at a time."""

    def __init__(self, max_body: int = DEFAULT_MAX_BODY) -> None:
        self.max_body = max_body
        self._buffer = bytearray()

    @property
    def pending(self) -> int:
        """Bytes that were fed and not yet taken."""
        return len(self._buffer)

    def feed(self, data: Buffer) -> None:
        """Bytes as they came from the peer."""
        self._buffer += data

    def next(self, magic: int, version: int) -> memoryview | None:
        """The next whole body; None while it is incomplete.  Keep-alives are skipped.

        Magic and version are checked as soon as the header is complete, and only for the next frame, because a Hello changes them
        for the frames after it.  Raises FrameError; the reader cannot be used afterwards.
        """
        buffer = self._buffer
        while len(buffer) >= FRAME_HEADER.size:
            end = FRAME_HEADER.size + body_length(buffer, 0, magic, version, self.max_body, buffer)
            if len(buffer) < end:
                return None
            with memoryview(buffer) as view:
                body = bytes(view[FRAME_HEADER.size : end])
            del buffer[:end]
            if body:
                return memoryview(body)
        return None

    def run(self, prefix: bytes, size: int, empty: bytes) -> bytes:
        """Take the whole frames of `size` bytes that begin with `prefix` from the front of the buffer; returns them back to back.

        `empty`, the keep-alive frame, is skipped between them: the next frame after them is of another kind or incomplete.
        """
        buffer, parts = self._buffer, list[bytearray]()
        at = begin = 0
        while True:
            if buffer.startswith(prefix, at) and at + size <= len(buffer):
                at += size
            elif buffer.startswith(empty, at):
                parts.append(buffer[begin:at])
                at = begin = at + len(empty)
            else:
                break
        if at:
            parts.append(buffer[begin:at])
            del buffer[:at]
        return b"".join(parts)
