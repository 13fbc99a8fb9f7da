"""Connections that are real, and a port without sockets: what a peer sends is handed to them, and what they do is noted."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from copy import copy
from typing import Any

from tests.node.serving import LOG
from waltzctl.engine.net.connection import Connection
from waltzctl.engine.net.peer_limits import PortLimits
from waltzctl.engine.node.admin_port import AdminPort
from waltzctl.engine.node.data_port import DataPort
from waltzctl.formats.wire.frame import FRAME_HEADER, Magic
from waltzctl.formats.wire.hello import ADMIN_CLIENT, STORAGE_CLIENT, Hello


class Task:
    """One that is never done."""

    def add_done_callback(self, call: Callable[..., object]) -> None:
        """It is never done."""


class Clock:
    """An event loop that only knows the time, and what was to be called."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.begun = 0
        self.planned: list[tuple[float, Callable[..., object], tuple[object, ...]]] = []

    def time(self) -> float:
        return self.now

    def call_later(self, delay: float, call: Callable[..., object], *arguments: object) -> None:
        """Nothing is called here by itself."""
        self.planned.append((delay, call, arguments))

    def create_task(self, work: Coroutine[Any, Any, None]) -> Any:
        self.begun += 1
        work.close()
        return Task()


class Wire:
    """A transport that notes what is done to it.  `unread`: bytes that its peer did not take."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.reading, self.closed, self.aborted = True, False, False
        self.unread = 0
        self.marks: tuple[int, int] | None = None
        self.socket: Any = None

    def write(self, data: bytes) -> None:
        self.written.append(bytes(data))

    def writelines(self, pieces: list[bytes]) -> None:
        self.written += pieces

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.aborted = True

    def get_write_buffer_size(self) -> int:
        return self.unread

    def set_write_buffer_limits(self, *, high: int, low: int) -> None:
        self.marks = (high, low)

    def get_extra_info(self, name: str) -> Any:
        return self.socket if name == "socket" else None


class Outbox:
    """What is to be called in the loop, and is when `flush` says so."""

    def __init__(self) -> None:
        self.calls: list[tuple[Callable[..., object], tuple[object, ...]]] = []
        self.later: list[tuple[Callable[..., object], tuple[object, ...]]] = []

    def put(self, call: Callable[..., object], *arguments: object) -> None:
        self.calls.append((call, arguments))

    def put_later(self, call: Callable[..., object], *arguments: object) -> None:
        self.later.append((call, arguments))

    def flush(self) -> None:
        while self.calls:
            call, arguments = self.calls.pop(0)
            call(*arguments)


class Peer:
    """One connection without a socket."""

    def __init__(self, kind: str = "data", *, greeted: bool = True, hosted: Any = None, **limits: Any) -> None:
        self.clock, self.wire, self.outbox = Clock(), Wire(), Outbox()
        self.port: Any
        if kind == "data":
            self.port = DataPort(hosted, limits=PortLimits(**limits), log=LOG)
            hello, self.magic = Hello((0,), STORAGE_CLIENT), Magic.STORAGE
        else:
            self.port = AdminPort(hosted, metrics=str, limits=PortLimits(**limits), log=LOG)
            hello, self.magic = Hello((0,), ADMIN_CLIENT), Magic.ADMIN
        self.port.loop, self.port.outbox = self.clock, self.outbox
        self._hello = hello.encode() if greeted else b""
        self._connect()

    def _connect(self) -> None:
        self.port._expected += 1  # as if it had been accepted
        self.connection: Connection = self.port._connection("peer")
        self.connection.connection_made(self.wire)  # type: ignore[arg-type]
        if self._hello:
            self.send(self._hello)
            assert self.connection.version == 0

    def another(self, *, unread: int = 0) -> Peer:
        """One more connection of the same port; of what is sent so much lies there from the beginning."""
        other = copy(self)
        other.wire = Wire()
        other.wire.unread = unread
        other._connect()
        return other

    def send(self, data: bytes) -> None:
        while data and not self.wire.closed:
            room = self.connection.get_buffer(-1)
            part = data[: len(room)]
            room[: len(part)] = part
            self.connection.buffer_updated(len(part))
            data = data[len(part) :]

    def announce(self, length: int, kind: int | None = None) -> None:
        """The header of a frame, and its first byte."""
        self.send(FRAME_HEADER.struct.pack(self.magic, 0, length) + (b"" if kind is None else bytes([kind])))
