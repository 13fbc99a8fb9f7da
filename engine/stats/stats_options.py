"""The options of stats."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from waltzctl.engine.errors import InvalidRequestError

PART = 64 << 20
"""Approximate bytes of a segment that one task reads."""
MOST_TOP = 10_000


@dataclass(frozen=True, slots=True)
class StatsOptions:
    """The options of stats.

    `partitions`: only these; None: all.  `top`: number of clients and of header values that are listed.  `bucket`: width of a
    bucket of time in seconds; None: automatic.  `part`: approximate bytes that one task reads.
    """

    partitions: Collection[int] | None = None
    top: int = 10
    bucket: float | None = None
    part: int = PART

    def check(self) -> None:
        """Raise InvalidRequestError for a value out of range."""
        if not 1 <= self.top <= MOST_TOP:
            raise InvalidRequestError(f"from 1 to {MOST_TOP} clients can be named, not {self.top}")
        if self.bucket is not None and not 0.001 <= self.bucket <= 1e10:
            raise InvalidRequestError(f"a bucket of time is from a millisecond to 300 years wide, not {self.bucket} s")
