"""Conversations that a released node had with its clients, step by step, and the state that they began with."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tests.golden import GOLDEN
from waltzctl.formats.wire import admin, storage
from waltzctl.formats.wire.frame import FRAME_HEADER, Magic, decode_frame_header
from waltzctl.formats.wire.hello import Hello

CLUSTER_KEY = uuid.UUID("6bc969b7-5ccd-4d3c-a601-576a3b4bac85")
PARTITIONS = 4
"""The recorded node began with an empty storage directory of this cluster, nothing assigned."""

HELLO_STEP = "open-connection:"


@dataclass(frozen=True, slots=True)
class Step:
    """One request on one of the connections, and what the released node did.

    `connection`: which of the recorded ones; `label`: its name; `admin`: which port.  `answers` are whole frames.  `closed`:
    whether the node closed the connection hereafter.  `last`: the client closed it hereafter, or found it closed.
    """

    connection: int
    label: str
    name: str
    admin: bool
    request: bytes
    answers: tuple[bytes, ...]
    closed: bool
    last: bool

    @property
    def opens(self) -> bool:
        """Whether this is the greeting of a new connection."""
        return self.name.startswith(HELLO_STEP)

    @property
    def key(self) -> tuple[str, str]:
        """What the step is called in a table."""
        return self.label, "Hello" if self.opens else self.name


@cache
def recorded_steps() -> tuple[Step, ...]:
    """Every step, in the order in which they were made; empty where the recordings are not here."""
    return tuple(_steps(GOLDEN / "wire")) if GOLDEN else ()


def _steps(wire: Path) -> Iterator[Step]:
    first_to_close: dict[int, str] = {}
    for text in (wire / "storage-frames.jsonl").read_text().splitlines():
        frame = json.loads(text)
        if frame["dir"].startswith("eof-"):
            first_to_close.setdefault(frame["conn"], frame["dir"])
    lines = [json.loads(text) for text in (wire / "storage-steps.jsonl").read_text().splitlines()]
    last = {line["conn"]: place for place, line in enumerate(lines)}
    for place, line in enumerate(lines):
        is_last = last[line["conn"]] == place
        closed = is_last and first_to_close[line["conn"]] == "eof-s2c"
        assert closed or not line["serverClosedConnection"]
        yield Step(
            connection=line["conn"],
            label=line["connLabel"],
            name=line["step"],
            admin=line["connLabel"].startswith("admin"),
            request=bytes.fromhex(line["request"]["hex"]),
            answers=tuple(bytes.fromhex(one["hex"]) for one in line["responses"]),
            closed=closed,
            last=is_last,
        )


def decoded(frame: bytes) -> Any:
    """The message in a whole frame of version 0."""
    body = frame[FRAME_HEADER.size :]
    match Magic(frame[0]):
        case Magic.HELLO:
            return Hello.decode(body)
        case Magic.STORAGE:
            return storage.decode(body)
        case Magic.ADMIN:
            return admin.decode(body)
        case other:
            raise AssertionError(f"no frame of a storage node: {other}")


def encoded(message: Any) -> bytes:
    """The whole frame of a message, version 0."""
    if isinstance(message, Hello):
        return message.encode()
    return storage.encode(message) if type(message) in storage.CODEC.schemas else admin.encode(message)


async def read_frame(reader: asyncio.StreamReader) -> bytes | None:
    """The next whole frame, header and all; None at the end of the stream.  Raises IncompleteReadError inside of one."""
    try:
        header = await reader.readexactly(FRAME_HEADER.size)
    except asyncio.IncompleteReadError as error:
        if error.partial:
            raise
        return None
    return header + await reader.readexactly(decode_frame_header(header).length)
