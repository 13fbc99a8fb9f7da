"""What stats is asked for."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from waltzctl.engine.errors import InvalidRequestError

PART = 64 << 20
"""Bytes of a segment that one task reads."""
MOST_TOP = 10_000


@dataclass(frozen=True, slots=True)
class StatsOptions:
    """`partitions`: only these.  `top`: so many clients and header values are named.  `bucket`: seconds; None chooses."""

    partitions: Collection[int] | None = None
    top: int = 10
    bucket: float | None = None
    part: int = PART

    def check(self) -> None:
        """Raise InvalidRequestError for a value that cannot be meant."""
        if not 1 <= self.top <= MOST_TOP:
            raise InvalidRequestError(f"from 1 to {MOST_TOP} clients can be named, not {self.top}")
        if self.bucket is not None and not 0.001 <= self.bucket <= 1e10:
            raise InvalidRequestError(f"a bucket of time is from a millisecond to 300 years wide, not {self.bucket} s")
