"""How an open storage directory is used: sizes and bounds."""

from __future__ import annotations

from dataclasses import dataclass

from waltzctl.engine.errors import InvalidRequestError


@dataclass(frozen=True, slots=True)
class StorageOptions:
    """How a storage directory is used.

    `segment_size_threshold`: bytes, header included; a segment that has more is closed by the next record.
    `max_data_length`: bytes of data of one record, a bound for appends and reads.  `cached_segments`: how many closed
    segments of a partition stay open for reading, two descriptors each.
    """

    segment_size_threshold: int = 1_000_000_000
    max_data_length: int = 256 << 20
    cached_segments: int = 5

    def check(self) -> None:
        """Raise InvalidRequestError for a value that cannot be meant."""
        if self.segment_size_threshold < 0 or self.cached_segments < 1:
            raise InvalidRequestError("the segment size threshold must not be negative, and one segment must be open")
        if not 0 <= self.max_data_length < 2**31:
            raise InvalidRequestError(f"the longest data must be 0 to {2**31 - 1} bytes, not {self.max_data_length}")
