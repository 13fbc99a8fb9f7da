"""Frames in a stream: cut anywhere, never believed."""

from __future__ import annotations

import struct
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.formats.settings import properties
from waltzctl.formats.wire.frame import (
    FRAME_HEADER,
    FRAME_HEADER_SCHEMA,
    FrameError,
    FrameHeader,
    FrameReader,
    Magic,
    decode_frame_header,
    frame,
    frame_header,
    keep_alive,
)

STORAGE = int(Magic.STORAGE)


@properties
@given(st.integers(0, 255), st.integers(-(2**15), 2**15 - 1), st.integers(-(2**31), 2**31 - 1))
def test_headers_are_what_their_schema_says(magic: int, version: int, length: int) -> None:
    header = FrameHeader(magic, version, length)
    data = header.encode()
    assert data == FRAME_HEADER_SCHEMA.build({"magic": magic, "version": version, "length": length})
    assert len(data) == FRAME_HEADER.size == 7
    assert decode_frame_header(data + b"more") == header


@properties
@given(
    bodies=st.lists(st.binary(max_size=50), max_size=8),
    cuts=st.lists(st.integers(1, 40), max_size=60),
    magic=st.sampled_from(Magic),
    version=st.integers(0, 4),
)
def test_bodies_come_out_whole_however_the_stream_is_cut(
    bodies: list[bytes], cuts: list[int], magic: Magic, version: int
) -> None:
    stream = b"".join(frame(magic, version, body) if body else keep_alive(magic, version) for body in bodies)
    reader, found, position = FrameReader(), [], 0
    for size in [*cuts, len(stream)]:
        reader.feed(stream[position : position + size])
        position += size
        while (body := reader.next(magic, version)) is not None:
            found.append(bytes(body))
    assert found == [body for body in bodies if body]
    assert reader.pending == 0


def test_nothing_is_looked_at_before_seven_bytes_are_there() -> None:
    reader = FrameReader()
    reader.feed(b"GET / ")
    assert reader.next(STORAGE, 0) is None
    reader.feed(b"H")
    with pytest.raises(FrameError, match=r"magic 0x47 instead of 0x53 \(S\); the frame begins with 47 45 .*GET / H"):
        reader.next(STORAGE, 0)


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (FrameHeader(Magic.ADMIN, 0, 1), "magic"),
        (FrameHeader(STORAGE, 1, 1), "version 1 instead of the agreed 0"),
        (FrameHeader(STORAGE, -1, 1), "version -1"),
        (FrameHeader(STORAGE, 0, -1), "negative"),
        (FrameHeader(STORAGE, 0, -(2**31)), "negative"),
        (FrameHeader(STORAGE, 0, 101), "a body of 101 bytes; the longest accepted here has 100"),
        (FrameHeader(STORAGE, 0, 2**31 - 1), "2147483647"),
    ],
)
def test_a_bad_header_is_an_error_at_once(header: FrameHeader, message: str) -> None:
    """Not one byte of the body is waited for."""
    reader = FrameReader(max_body=100)
    reader.feed(header.encode())
    with pytest.raises(FrameError, match=message):
        reader.next(STORAGE, 0)


def test_a_long_frame_is_refused_before_anything_is_allocated_for_it() -> None:
    reader = FrameReader(max_body=1 << 20)
    reader.feed(FrameHeader(STORAGE, 0, 2**31 - 1).encode())
    tracemalloc.start()
    try:
        with pytest.raises(FrameError):
            reader.next(STORAGE, 0)
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


def test_the_version_may_change_between_two_frames_of_one_chunk() -> None:
    """A Hello and the first message of the chosen codec often arrive together."""
    reader = FrameReader()
    reader.feed(frame(Magic.HELLO, 0, b"hello") + keep_alive(Magic.ADMIN, 1) + frame(Magic.ADMIN, 1, b"x"))
    first = reader.next(Magic.HELLO, 0)
    assert first is not None
    assert bytes(first) == b"hello"
    second = reader.next(Magic.ADMIN, 1)
    assert second is not None
    assert bytes(second) == b"x"


def test_a_body_stays_what_it_was_while_more_is_fed() -> None:
    reader = FrameReader()
    reader.feed(frame(STORAGE, 0, b"first"))
    body = reader.next(STORAGE, 0)
    reader.feed(frame(STORAGE, 0, b"other") * 100)
    assert body is not None
    assert bytes(body) == b"first"


def test_a_message_without_a_body_cannot_be_written() -> None:
    """It would be a keep-alive."""
    for length in (0, -1, 2**31):
        with pytest.raises(ValueError, match="cannot have a body"):
            frame_header(STORAGE, 0, length)
    with pytest.raises(struct.error):
        keep_alive(256, 0)
