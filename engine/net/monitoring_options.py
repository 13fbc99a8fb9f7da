"""What a server lets the peers of its HTTP port use, and where it sends its metrics."""

from __future__ import annotations

from dataclasses import dataclass

from waltzctl.engine.errors import InvalidRequestError


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """What peers of the HTTP port may use.

    `max_connections` at a time, the newest is refused.  `max_request_bytes`: everything that a peer sends.
    `connection_seconds`: a connection's whole life, so that slow senders and slow readers end.  `answer_seconds`: how long the
    metrics may take to be read.
    """

    max_connections: int = 64
    max_request_bytes: int = 16 << 10
    connection_seconds: float = 30.0
    answer_seconds: float = 10.0

    def check(self) -> None:
        """Raise InvalidRequestError for a value that cannot be meant."""
        if self.max_connections < 1 or self.max_request_bytes < 1:
            raise InvalidRequestError("the HTTP port needs at least one connection, and requests of at least one byte")
        if self.connection_seconds <= 0 or self.answer_seconds <= 0:
            raise InvalidRequestError("the times of the HTTP port must be more than 0")


@dataclass(frozen=True, slots=True)
class GraphiteOptions:
    """Where metrics are sent, in Graphite's plain text form.

    `interval`: seconds; the release's key is called ``reportIntervalMs`` and is read as seconds nevertheless.
    """

    host: str
    port: int = 2003
    prefix: str = "waltz"
    interval: float = 60.0
    udp: bool = False

    def check(self) -> None:
        """Raise InvalidRequestError for a value that cannot be meant."""
        if not self.host:
            raise InvalidRequestError("storage.graphite.hostname is empty")
        if not 0 < self.port < 65536:
            raise InvalidRequestError(f"storage.graphite.port must be 1 to 65535, not {self.port}")
        if self.interval <= 0:
            raise InvalidRequestError("storage.graphite.reportIntervalMs must be more than nothing")
