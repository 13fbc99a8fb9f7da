"""How partitions are served: bounds of their queues, of one group commit, of one answer."""

from __future__ import annotations

from dataclasses import dataclass

from waltzctl.engine.errors import InvalidRequestError


@dataclass(frozen=True, slots=True)
class ServiceOptions:
    """Bounds of the service of partitions.

    `queue_requests`, `queue_bytes`: what may wait for one partition, whichever is reached first; an empty queue takes one item
    of any size.  `stall_seconds`: how long a partition may make no progress before further requests are answered as *busy*.
    `commit_bytes`: bytes of frame bodies that share one write and flush.  `max_list_bytes`: body of one list response; at
    least one record is always sent.  `workers`: threads for all partitions, at most one of them in a partition at a time; None:
    one a partition and two more, 32 at most.
    """

    queue_requests: int = 16_384
    queue_bytes: int = 16 << 20
    stall_seconds: float = 30.0
    commit_bytes: int = 8 << 20
    max_list_bytes: int = 16 << 20
    workers: int | None = None

    def check(self) -> None:
        """Raise InvalidRequestError for a value that cannot be meant."""
        for name in ("queue_requests", "queue_bytes", "commit_bytes", "max_list_bytes"):
            if getattr(self, name) < 1:
                raise InvalidRequestError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.stall_seconds <= 0:
            raise InvalidRequestError(f"stall_seconds must be more than 0, not {self.stall_seconds}")
        if self.workers is not None and self.workers < 1:
            raise InvalidRequestError(f"there must be at least one worker, not {self.workers}")
