"""Sizes and bounds with which a storage directory is opened."""

from __future__ import annotations

from dataclasses import dataclass

from waltzctl.engine.net.setting_kinds import COUNT, SIZE
from waltzctl.engine.net.settings import Option, check_bounds, setting


@dataclass(frozen=True, slots=True)
class StorageOptions:
    """Settings of an open storage directory: those of a node's settings that also apply without a node.  Sizes in bytes."""

    segment_size_threshold: int = setting(
        "size beyond which a segment is closed",
        SIZE,
        default=1_000_000_000,
        key="storage.segment.size.threshold",
        name="segment-size",
        option=Option(),
    )
    max_data_length: int = setting(
        "longest data of one record",
        SIZE.within(least=1, most=2**31 - 1),
        default=256 << 20,
        key="waltzctl.maxDataLength",
    )
    cached_segments: int = setting(
        "closed segments of a partition that stay open for reading",
        COUNT,
        default=5,
        key="storage.segment.cache.capacity",
        name="segment-cache",
    )

    def check(self) -> None:
        """Raise InvalidRequestError for a value outside its bounds."""
        check_bounds(self)
