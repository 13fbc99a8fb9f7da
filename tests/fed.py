"""What frames of a feed tell of, read as any other message."""

from __future__ import annotations

from waltzctl.formats.segment import RecordHeader
from waltzctl.formats.wire import client as wire
from waltzctl.formats.wire.frame import FrameReader, Magic


def fed(frames: bytes) -> tuple[RecordHeader, ...]:
    """The transactions of whole frames of `FeedData` of the latest version."""
    reader, version = FrameReader(), wire.CLIENT_VERSIONS[-1]
    reader.feed(frames)
    found = []
    while (body := reader.next(Magic.CLIENT, version)) is not None:
        message = wire.decode(body, version)
        assert isinstance(message, wire.FeedData)
        found.append(RecordHeader(message.transaction_id, message.request_id, message.header))
    assert not reader.pending
    return tuple(found)
