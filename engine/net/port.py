"""A listening port: accepts or refuses connections, calls their timers, drains and closes them.

The protocol on a connection is that of its class (`engine.net.connection.Connection`).

Connections are accepted here and not by asyncio's server, because then

- the bound on their number holds before the cost of a TLS handshake;
- the socket options that the release sets only on its listener (weakness S11) are set on the connections;
- running out of file descriptors is handled under every event loop.

File descriptors.  One *spare* descriptor is kept open: when none is left, it is closed for a moment to accept the connection that
cannot be served, and to close that.  Besides, the last `_RESERVED_DESCRIPTORS` are not given to peers: the process needs some for
files that it opens now and then, such as a new segment or the metadata journal, and a log server that cannot renew its session
loses its partitions.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import math
import os
import socket
import ssl
import threading
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

from waltzctl.engine.descriptor_limit import few_descriptors_left
from waltzctl.engine.errors import DESCRIPTOR_SHORTAGE, ListenError
from waltzctl.engine.net.budget import Budget
from waltzctl.engine.net.deadlines import HELD_UP
from waltzctl.engine.net.events import happens_within
from waltzctl.engine.net.look_up import host_of, look_up
from waltzctl.engine.net.outbox import Outbox
from waltzctl.engine.net.output_budget import OutputBudget
from waltzctl.engine.net.peer_limits import PortLimits

if TYPE_CHECKING:
    from waltzctl.engine.net.connection import Connection

_BACKLOG = 1024
_ACCEPTED_AT_ONCE = 64
_BACK_OFF_SECONDS = 0.5
_SHUTDOWN_SECONDS = 2.0
"""Time limit for the TLS shutdown handshake."""
_CHUNK = 256 << 10
"""Upper bound of the bytes read from a socket at a time."""
_ALL_CHUNKS = 32 << 20
"""Bytes that all connections together may read in one round of the event loop; bounds `Port.chunk`."""
_SMALLEST_CHUNK = 4 << 10
_SMALLEST_OUTPUT = 32 << 10
_LONGEST_USER_TIMEOUT = 2**31 - 1
"""Milliseconds (24.8 days): the maximum of TCP_USER_TIMEOUT."""
_KEPT_PART = 8
"""Reservations of big frames leave one eighth of the memory budget to small requests; see `Budget.kept`."""
_RESERVED_DESCRIPTORS = 128
"""File descriptors that connections do not get; at most an eighth of the limit of open files."""
_MEMORY_ERRORS = (errno.ENOBUFS, errno.ENOMEM)


@dataclass(frozen=True, slots=True)
class ConnectionInfo:
    """The state of one connection.

    `peer`: address.  `greeting`: the free text of its Hello, empty before it.  `connected`: seconds since it was accepted.
    `requests`, `size`: requests under way, and bytes of their bodies.  `queued`: bytes of answers in the write buffer.
    `paused`: whether it is not read at present.
    """

    peer: str
    greeting: str
    connected: float
    requests: int
    size: int
    queued: int
    paused: bool


class _Complaints:
    """Rate limit (token bucket) for log lines about peers, so that a peer's invalid data cannot fill the disk.  Thread-safe."""

    _BURST = 100
    _A_SECOND = 10.0

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._lock = threading.Lock()
        self._left, self._when, self._dropped = float(self._BURST), time.monotonic(), 0

    def write(self, text: str) -> None:
        with self._lock:
            now = time.monotonic()
            self._left = min(float(self._BURST), self._left + (now - self._when) * self._A_SECOND)
            self._when = now
            if self._left < 1:
                self._dropped += 1
                return
            self._left -= 1
            dropped, self._dropped = self._dropped, 0
        if dropped:
            self._log.warning("%d complaints about peers were left out", dropped)
        self._log.warning("%s", text)


class Port(ABC):
    """One port with its connections.  Everything here belongs to the event loop in which `start` was called.

    Attributes:
        budget: memory of received requests and frames.
        outbox: calls from other threads to the event loop.
        output_budget: memory of answers that peers have not taken.
        scratch: the receive buffer of all connections; the loop handles its bytes before it reads from the next connection.
    """

    name = "port"

    def __init__(self, *, limits: PortLimits, log: logging.Logger, memory: int) -> None:
        self.log = log
        self.budget = Budget(memory, kept=_KEPT_PART)
        self.output_budget = OutputBudget(limits.output, limits.max_list_bytes)
        self.scratch = memoryview(bytearray())
        self.draining = False
        self.outbox: Outbox
        self.loop: asyncio.AbstractEventLoop
        self._complaints = _Complaints(log)
        self._connections: dict[Connection, None] = {}  # in the order of their arrival
        self._arriving: set[asyncio.Task[None]] = set()  # `_welcome` of accepted sockets
        self._expected = 0  # sockets that are accepted and not in `_connections` yet
        self._touched: dict[Connection, None] = {}  # connections with answers for the next `_send`, in order
        self._listeners: list[socket.socket] = []
        self._spare: int | None = None  # the spare file descriptor
        self._ssl: ssl.SSLContext | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._due = math.inf  # the loop's time of the next tick
        self._empty = asyncio.Event()  # there is no connection
        self._applied_output = 0  # `output_each` as it was when the connections' water marks were set last
        self.limits = limits

    @abstractmethod
    def _connection(self, peer: str) -> Connection:
        """A new connection's protocol."""

    @property
    def limits(self) -> PortLimits:
        """What peers may use.  May be set; open connections keep their bounds on requests under way.

        Setting raises MemoryError, and changes nothing then.
        """
        return self._limits

    @limits.setter
    def limits(self, limits: PortLimits) -> None:
        needed = _CHUNK + limits.big_frame + 64
        if len(self.scratch) < needed:  # never shortened: a connection may keep an incomplete frame of the old bound
            self.scratch = memoryview(bytearray(needed))
        self._limits = limits
        self.output_budget.capacity, self.output_budget.longest = limits.output, limits.max_list_bytes
        self._follow_limits()

    def _follow_limits(self) -> None:  # noqa: B027  # optional
        """Called when `limits` was set: update what a subclass derives from the limits."""

    # --- life --------------------------------------------------------------------------------------------------------

    async def start(self, host: str, port: int, ssl_context: ssl.SSLContext | None) -> tuple[str, int]:
        """Listen at every address of `host` (port 0: a free one); return the first address.  `ssl_context` None: no TLS.

        Raises ListenError; then nothing listens.
        """
        self.loop = asyncio.get_running_loop()
        self.outbox = Outbox(self.loop, self._send)
        self._ssl = ssl_context
        try:
            found = await look_up(host or None, port, flags=socket.AI_PASSIVE | socket.AI_ADDRCONFIG)
            for family, kind, protocol, _, address in dict.fromkeys(found):
                chosen = (address[0], port or self._port_number(), *address[2:])
                self._listeners.append(_listen(family, kind, protocol, chosen))
        except (OSError, ValueError) as error:  # ValueError: the host is no possible name
            self._stop_listening()
            raise ListenError(host, port, error) from None
        self._spare = _spare_descriptor()
        for listener in self._listeners:
            self.loop.add_reader(listener.fileno(), self._accept, listener)
        self._tick()
        name = self._listeners[0].getsockname()
        return host_of(name), int(name[1])

    def _port_number(self) -> int:
        return int(self._listeners[0].getsockname()[1]) if self._listeners else 0

    @property
    def listening(self) -> bool:
        """Whether new connections are accepted."""
        return bool(self._listeners)

    def use_context(self, ssl_context: ssl.SSLContext | None) -> None:
        """Use another TLS context for new connections."""
        self._ssl = ssl_context

    async def stop_accepting(self) -> None:
        """Close the listening sockets; connections stay open."""
        self._stop_listening()

    async def drain(self, seconds: float) -> None:
        """Stop accepting and reading, answer the requests under way, and close; after `seconds` close without answering.

        A call that is cancelled closes at once.
        """
        self._stop_listening()
        self.draining = True
        for connection in list(self._connections):
            connection.finish()
        try:
            if self._connections:
                self._empty.clear()
                await happens_within(self._empty, seconds)
        finally:
            await self.close()

    async def close(self) -> None:
        """Close everything at once; returns when every connection is gone.  A second call does nothing.

        A call that is cancelled does not wait, and closes everything all the same.
        """
        self._stop_listening()
        for task in list(self._arriving):
            task.cancel()
        try:
            if self._arriving:
                await asyncio.wait(list(self._arriving))
        finally:
            self._empty.clear()
            for connection in list(self._connections):
                connection.abort()
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
        if self._connections:
            await self._empty.wait()

    def _stop_listening(self) -> None:
        for listener in self._listeners:
            if hasattr(self, "loop"):
                self.loop.remove_reader(listener.fileno())
            listener.close()
        self._listeners.clear()
        self.give_up_spare()

    def give_up_spare(self) -> None:
        """Close the spare file descriptor."""
        if self._spare is not None:
            os.close(self._spare)
            self._spare = None

    # --- accepting ---------------------------------------------------------------------------------------------------

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(_ACCEPTED_AT_ONCE):
            try:
                accepted, address = listener.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if error.errno in DESCRIPTOR_SHORTAGE:
                    self._no_descriptor(listener, error)
                elif error.errno in _MEMORY_ERRORS:
                    self._back_off(listener, error)
                else:  # the peer has disconnected, or a packet filter refused it; the listener still works
                    self.complain(f"a connection could not be accepted: {error}")
                return
            peer = _text(address)
            if len(self._connections) + self._expected >= self.limits.max_connections:
                self.complain(
                    f"{peer}: refused, there are {self.limits.max_connections} connections already; close some, or raise"
                    " max_connections"
                )
                accepted.close()
                continue
            if few_descriptors_left(accepted.fileno(), _RESERVED_DESCRIPTORS):
                self.complain(
                    f"{peer}: refused, the last descriptors are kept for this process's own files; raise the limit of open files"
                )
                accepted.close()
                continue
            self._expected += 1
            task = self.loop.create_task(self._welcome(accepted, peer))
            self._arriving.add(task)
            task.add_done_callback(self._arriving.discard)

    def _no_descriptor(self, listener: socket.socket, error: OSError) -> None:
        """Refuse a connection with the spare descriptor.

        Without a free descriptor it could not even be accepted and closed, and the loop would report it again and again.
        """
        if self._spare is None:
            self._back_off(listener, error)
            return
        self.give_up_spare()
        try:
            accepted, address = listener.accept()
            self.complain(f"{_text(address)}: refused, no descriptor is left: {error}; raise the limit of open files")
            accepted.close()
        except (BlockingIOError, InterruptedError):
            pass  # there is no connection: the system looks for a descriptor first
        except OSError as again:
            self._back_off(listener, again)
        finally:
            self._spare = _spare_descriptor()

    def _back_off(self, listener: socket.socket, error: OSError) -> None:
        self.complain(f"connections cannot be accepted: {error}; trying again in {_BACK_OFF_SECONDS} s")
        self.loop.remove_reader(listener.fileno())
        self.loop.call_later(_BACK_OFF_SECONDS, self._accept_again, listener)

    def _accept_again(self, listener: socket.socket) -> None:
        if listener in self._listeners:
            if self._spare is None:
                self._spare = _spare_descriptor()
            self.loop.add_reader(listener.fileno(), self._accept, listener)

    async def _welcome(self, accepted: socket.socket, peer: str) -> None:
        connection = self._connection(peer)
        try:
            self._set_options(accepted)
            if self._ssl is None:
                await self.loop.connect_accepted_socket(lambda: connection, accepted)
            else:
                await self.loop.connect_accepted_socket(
                    lambda: connection,
                    accepted,
                    ssl=self._ssl,
                    ssl_handshake_timeout=self.limits.handshake_seconds,
                    ssl_shutdown_timeout=_SHUTDOWN_SECONDS,
                )
        except Exception as error:  # of any kind: the socket has to be closed, and the error logged, here
            accepted.close()
            what = f"{peer}: no connection came about: {str(error) or type(error).__name__}"
            late = isinstance(error, ConnectionAbortedError)  # the error of an overdue handshake
            if isinstance(error, (ConnectionError, EOFError)) and not late:
                # the peer disconnected before its Hello, as a load balancer's probe does
                self.log.debug("%s: %s", self.name, what)
            else:
                self.complain(what)
        finally:
            if not connection.made:
                self._expected -= 1

    def _set_options(self, accepted: socket.socket) -> None:
        accepted.setblocking(False)
        if accepted.family in (socket.AF_INET, socket.AF_INET6):
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            accepted.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            if hasattr(socket, "TCP_USER_TIMEOUT"):
                milliseconds = int(min(self.limits.unacknowledged_seconds * 1000, _LONGEST_USER_TIMEOUT))
                accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, max(1, milliseconds))  # 0: never

    # --- connections -------------------------------------------------------------------------------------------------

    def disconnect(self) -> None:
        """Close every connection; new ones are accepted as before."""
        for connection in list(self._connections):
            connection.close()

    @property
    def connections(self) -> tuple[ConnectionInfo, ...]:
        """The state of every connection, the oldest first.  Thread-safe: the dictionary is copied in one step."""
        now = self.loop.time() if hasattr(self, "loop") else 0.0
        return tuple(sorted((c.info(now) for c in tuple(self._connections)), key=lambda info: -info.connected))

    @property
    def chunk(self) -> int:
        """Bytes that one connection may read at a time; decreases with the number of connections."""
        return max(_SMALLEST_CHUNK, min(_CHUNK, _ALL_CHUNKS // max(1, len(self._connections))))

    @property
    def output_each(self) -> int:
        """Bytes of answers that may wait in one connection's write buffer before it is not read any more."""
        share = self.limits.output // max(1, len(self._connections))
        return min(self.limits.connection_output, max(_SMALLEST_OUTPUT, share))

    def add(self, connection: Connection) -> None:
        """A connection has been established."""
        self._connections[connection] = None
        self._expected -= 1
        self._share_output()
        if self.draining:
            connection.finish()

    def remove(self, connection: Connection) -> None:
        """A connection has been closed."""
        self._connections.pop(connection, None)
        self._touched.pop(connection, None)
        if not self._connections:
            self._empty.set()

    def touch(self, connection: Connection) -> None:
        """Call `Connection.send` after the present batch of the outbox's calls."""
        self._touched[connection] = None

    def complain(self, text: str) -> None:
        """Log a warning about a peer, within the rate limit.  Thread-safe."""
        self._complaints.write(f"{self.name}: {text}")

    def _send(self) -> None:
        while self._touched:
            touched, self._touched = self._touched, {}
            for connection in touched:
                connection.send()

    def _share_output(self) -> None:
        """Adapt the connections' water marks to their number; only when `output_each` has doubled or halved."""
        each = self.output_each
        if not self._applied_output or not self._applied_output / 2 < each < self._applied_output * 2:
            self._applied_output = each
            for connection in self._connections:
                connection.set_water_mark(each)

    def _tick(self) -> None:
        limits = self.limits
        shortest = min(limits.keep_alive_seconds, limits.idle_seconds, limits.stall_seconds, limits.unread_seconds)
        wait, now = max(0.01, min(1.0, shortest / 4)), self.loop.time()
        self._timer = self.loop.call_later(wait, self._tick)
        late, self._due = now - self._due, now + wait
        for connection in list(self._connections):
            if late > HELD_UP:
                connection.stood_still(late, now)
            connection.tick(now)
        self._send()
        self._share_output()


def _listen(
    family: int, kind: int, protocol: int, address: tuple[str, int] | tuple[str, int, int, int]
) -> socket.socket:
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setblocking(False)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.bind(address)
        listener.listen(_BACKLOG)
    except BaseException:
        listener.close()
        raise
    return listener


def _spare_descriptor() -> int | None:
    try:
        return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None


def _text(address: object) -> str:
    if isinstance(address, tuple) and len(address) >= 2:
        host, port = address[0], address[1]
        return f"[{host}]:{port}" if ":" in str(host) else f"{host}:{port}"
    return str(address)
