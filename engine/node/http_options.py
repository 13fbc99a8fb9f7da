"""What a node lets the peers of its HTTP port use, and when it calls itself unwell."""

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
class HealthOptions:
    """When a node is unwell.

    `min_free_bytes`: what the disk must have left.  `deadline`: seconds that a look at the disk may take.  `max_stall`: seconds
    that the queue of a partition may stand still.  `max_age`: seconds for which a look at the disk is believed, so that
    health checks cannot load it.
    """

    min_free_bytes: int = 64 << 20
    deadline: float = 5.0
    max_stall: float = 30.0
    max_age: float = 1.0

    def check(self) -> None:
        """Raise InvalidRequestError for a value that cannot be meant."""
        if self.min_free_bytes < 0 or self.max_age < 0:
            raise InvalidRequestError(
                "the bytes that must be free, and the age of a look at the disk, must not be negative"
            )
        if self.deadline <= 0 or self.max_stall <= 0:
            raise InvalidRequestError("the deadline of the look at the disk and the longest wait must be more than 0")
