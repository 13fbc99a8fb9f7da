"""A released node made of its recordings: it answers each recorded request with the recorded answer, in the recorded order.

A request that is not the recorded one, but for its sequence number, ends the script; so does one too many.  Sequence numbers
are the client's own affair, and the answers repeat what it chose.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import TracebackType

from tests.interop.conversations import Step, decoded, read_frame
from waltzctl.formats.wire.admin import OPEN_SEQUENCE
from waltzctl.formats.wire.admin import PREFIX as ADMIN_PREFIX
from waltzctl.formats.wire.frame import FRAME_HEADER, Magic, decode_frame_header
from waltzctl.formats.wire.storage import PREFIX as STORAGE_PREFIX

_SEQUENCE_SIZE = 8


def _sequence_place(frame: bytes) -> slice:
    prefix = STORAGE_PREFIX if frame[0] == Magic.STORAGE else ADMIN_PREFIX
    start = FRAME_HEADER.size + prefix.offset_of("sequence")
    return slice(start, start + _SEQUENCE_SIZE)


def with_sequence_of(frame: bytes, other: bytes) -> bytes:
    """`frame` with the sequence number of `other`, which is of the same protocol.  That of an open request stays."""
    place = _sequence_place(frame)
    if int.from_bytes(frame[place], "big", signed=True) == OPEN_SEQUENCE:
        return frame
    return frame[: place.start] + other[place] + frame[place.stop :]


class ScriptedNode:
    """A listening socket and the steps of one recorded connection.  The first client gets them; there is no second one."""

    def __init__(self, steps: Sequence[Step]) -> None:
        self.greeting, *self.steps = steps
        self.done = 0
        self.wrong = ""
        self.client_hello = b""
        self.keep_alives: asyncio.Queue[bytes] = asyncio.Queue()
        self.finished = asyncio.Event()
        self._server: asyncio.Server

    async def __aenter__(self) -> ScriptedNode:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()
        await self._server.wait_closed()

    @property
    def port(self) -> int:
        """Where it listens, on 127.0.0.1."""
        number: int = self._server.sockets[0].getsockname()[1]
        return number

    @property
    def complete(self) -> bool:
        """Whether every step was made, and nothing else was asked for."""
        return self.done == len(self.steps) and not self.wrong

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            writer.write(b"".join(self.greeting.answers))
            self.client_hello = await read_frame(reader) or b""
            for step in self.steps:
                if not await self._make(step, reader, writer):
                    return
                self.done += 1
                if step.closed:
                    return
            if (more := await self._request(reader)) is not None:
                self.wrong = f"one request too many: {decoded(more)}"
        except ConnectionResetError:
            pass  # a client that gives up may do so in any way
        finally:
            writer.close()
            self.finished.set()

    async def _make(self, step: Step, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        if decode_frame_header(step.request).length == 0:
            return True  # clients send a keep-alive when they like
        request = await self._request(reader)
        if request is None:
            self.wrong = f"the client left before {step.name!r}"
        elif request[0] != step.request[0] or request != with_sequence_of(step.request, request):
            self.wrong = f"{step.name!r}: {decoded(request)} instead of {decoded(step.request)}"
        if self.wrong or request is None:
            return False
        writer.write(b"".join(with_sequence_of(answer, request) for answer in step.answers))
        return True

    async def _request(self, reader: asyncio.StreamReader) -> bytes | None:
        while (frame := await read_frame(reader)) is not None:
            if decode_frame_header(frame).length:
                return frame
            self.keep_alives.put_nowait(frame)
        return None
