"""Limits on what peers of a port may use: memory, connections, time.

Each limit bounds a quantity that a peer could otherwise increase without bound.
"""

from __future__ import annotations

from dataclasses import dataclass

from waltzctl.engine.errors import InvalidOptionsError
from waltzctl.engine.net.setting_kinds import COUNT, SECONDS, SIZE
from waltzctl.engine.net.settings import check_bounds, setting

_BODY = SIZE.within(least=1, most=2**31 - 1)
"""Bytes of a frame's body; the upper bound is that of its signed 32-bit length field."""


_BATCH = 16 << 20
"""Bytes; see `PortLimits.max_batch`."""
MIN_FRAME_RATE = 64 << 10
"""Bytes a second at which a frame must arrive that takes longer than its grace period: of a peer (a Hello, or a big frame whose
memory is reserved, after `PortLimits.stall_seconds`) and of a server that a client asks (after the connection's timeout)."""
STORAGE_GROWTH = 64
"""Bytes by which an append's frame to a storage node may be longer than the client's frame that a log server received."""


@dataclass(frozen=True, slots=True)
class PortLimits:
    """Bounds of the data and the admin port.  Sizes are bytes, times are seconds.

    Release 0.13.2 has no bound on bodies; its clients send a keep-alive every 600 s.
    """

    max_body: int = setting("longest body of a frame at the data or the client port", _BODY, default=128 << 20)
    max_admin_body: int = setting(
        "longest body of a frame at a storage node's admin port; a log server has none", _BODY, default=1 << 20
    )
    big_frame: int = setting("a longer frame is read only when it has its place in memory", _BODY, default=64 << 10)
    memory: int = setting("what was read and is not answered yet, over all connections", SIZE, default=128 << 20)
    connection_bytes: int = setting("what was read of one connection and is not answered yet", SIZE, default=16 << 20)
    connection_requests: int = setting("requests of one connection that are not answered yet", COUNT, default=8192)
    output: int = setting("answers that wait to be sent, over all connections", SIZE, default=64 << 20)
    connection_output: int = setting(
        "answers of one connection that wait to be sent; beyond, reading stops", SIZE, default=1 << 20
    )
    max_list_bytes: int = setting(
        "body of one list response; at least one record is always sent", SIZE, default=16 << 20
    )
    reads: int = setting("reads under way, over all connections; each may become a long answer", COUNT, default=256)
    max_connections: int = setting("connections of each port; the newest is refused", COUNT, default=4096)
    keep_alive_seconds: float = setting(
        "time without writing after which an empty frame is sent", SECONDS, default=60.0
    )
    idle_seconds: float = setting("time without a byte that ends a connection", SECONDS, default=1500.0)
    stall_seconds: float = setting(
        "time in which the rest of a frame, or of a Hello, has to go on", SECONDS, default=60.0
    )
    unread_seconds: float = setting("time in which a peer has to go on taking its answers", SECONDS, default=60.0)
    handshake_seconds: float = setting("time for the TLS handshake", SECONDS, default=30.0)
    unacknowledged_seconds: float = setting(
        "time until the system gives up a peer that acknowledges nothing", SECONDS, default=120.0
    )

    @property
    def max_client_body(self) -> int:
        """Longest frame body that a log server accepts; a node with the same `max_body` accepts the append made from it."""
        return max(self.max_body - STORAGE_GROWTH, 0)

    @property
    def max_batch(self) -> int:
        """Bytes of records in a log server's batch of appends, so that a node with the same limits accepts its frame.

        A single append may have more.
        """
        return min(_BATCH, self.max_client_body)

    def check(self) -> None:
        """Raise InvalidRequestError for a value that cannot be meant."""
        check_bounds(self)
        if self.memory < self.max_body:
            raise InvalidOptionsError(
                f"memory ({self.memory} bytes) must hold the longest frame ({self.max_body} bytes)",
                self,
                "memory",
                "max_body",
                advice="raise memory or lower max_body",
            )
