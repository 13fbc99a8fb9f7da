"""When a node calls itself unwell."""

from __future__ import annotations

from dataclasses import dataclass

from waltzctl.engine.errors import InvalidRequestError


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
