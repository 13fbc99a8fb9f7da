"""What a node lets its peers use: memory, connections, time.

Every number here bounds something that a peer could otherwise make grow.  Sizes are bytes, times are seconds.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from waltzctl.engine.errors import InvalidRequestError


@dataclass(frozen=True, slots=True)
class PortLimits:
    """Bounds of the data and the admin port.

    A frame: `max_body` and `max_admin_body` are the longest bodies that are accepted (release 0.13.2 has no bound); a frame
    longer than `big_frame` is read only after it has its place in `memory`.

    What was read and is not answered yet: `memory` over all connections, `connection_bytes` and `connection_requests` of one.

    Answers that wait to be sent: `output` over all connections, `connection_output` of one (above it reading stops),
    `max_list_bytes` of one list (at least one record is always sent), `reads` how many reads of all connections may be under
    way at a time, each of which may become a long answer.

    Time: `keep_alive_seconds` without writing, then an empty frame is sent; `idle_seconds` without a byte from the peer ends
    the connection (a released client sends one every 600 s); `stall_seconds` for the rest of a frame, or of a Hello, to go on
    arriving; `unread_seconds` for a peer to go on taking its answers; `handshake_seconds` for TLS; `unacknowledged_seconds`
    until the system gives up a peer that acknowledges nothing.

    `max_connections`: of each port; the newest is refused.
    """

    max_body: int = 128 << 20
    max_admin_body: int = 1 << 20
    big_frame: int = 64 << 10
    memory: int = 128 << 20
    connection_bytes: int = 16 << 20
    connection_requests: int = 8192
    output: int = 64 << 20
    connection_output: int = 1 << 20
    max_list_bytes: int = 16 << 20
    reads: int = 256
    max_connections: int = 4096
    keep_alive_seconds: float = 60.0
    idle_seconds: float = 1500.0
    stall_seconds: float = 60.0
    unread_seconds: float = 60.0
    handshake_seconds: float = 30.0
    unacknowledged_seconds: float = 120.0

    def check(self) -> None:
        """Raise InvalidRequestError for a value that cannot be meant."""
        for each in fields(self):
            value = getattr(self, each.name)
            if value <= 0:
                raise InvalidRequestError(f"{each.name} must be more than 0, not {value}")
        for name in ("max_body", "max_admin_body"):
            if getattr(self, name) >= 2**31:
                raise InvalidRequestError(f"{name} must be less than 2 GiB, which a frame cannot exceed")
        if self.memory < self.max_body:
            raise InvalidRequestError(
                f"memory ({self.memory} bytes) must hold the longest frame ({self.max_body} bytes)",
                advice="raise memory or lower max_body",
            )
