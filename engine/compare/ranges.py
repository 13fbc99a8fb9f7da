"""Cutting a partition into ranges of transactions that are compared independently."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from waltzctl.engine.compare.directories import Member
from waltzctl.engine.compare.replica_reading import PartitionReplica
from waltzctl.engine.compare.side_by_side import RangeTask

RANGE = 64 << 20
"""Approximate size of a range in one replica, in bytes."""


def ranges(partition: int, members: Sequence[Member]) -> list[tuple[RangeTask, int]]:
    """Tasks that cover every transaction of a partition once, in order, each with the approximate bytes that it reads.

    Ranges begin at segments of the largest replica, and inside its large segments, if indexes give the offset of the range.
    """
    replicas = tuple(one.replica for one in members)
    weights = [0 if one is None else sum(segment.size for segment in one.segments) for one in replicas]
    reference = replicas[weights.index(max(weights))] if weights else None
    bounds = [0, *([] if reference is None else _bounds(reference, replicas, RANGE))]
    stops = [*bounds[1:], None]
    share = sum(weights) // len(bounds)
    return [
        (RangeTask(partition, low, high, tuple(_part(one, low, high) for one in replicas)), share)
        for low, high in zip(bounds, stops, strict=True)
    ]


def _bounds(reference: PartitionReplica, replicas: Sequence[PartitionReplica | None], size: int) -> list[int]:
    found: list[int] = []
    gathered = 0
    for segment in reference.segments:
        if gathered >= size:
            found.append(segment.first)
            gathered = 0
        parts = segment.size // size
        entries = segment.entries if segment.stop is None else min(segment.entries, segment.stop - segment.first)
        if parts and entries > parts and all(_indexed(one) for one in replicas):
            # `entries` is limited: with surplus entries a range could begin after the next segment's first id
            found += [segment.first + entries * number // parts for number in range(1, parts)]
            gathered = size  # the last of these ranges is full
        else:
            gathered += segment.size
    return found


def _indexed(replica: PartitionReplica | None) -> bool:
    """Whether offsets inside every large segment can be found by index, without reading the segment from its beginning."""
    return replica is None or all(one.entries for one in replica.segments if one.size > RANGE)


def _part(replica: PartitionReplica | None, low: int, high: int | None) -> PartitionReplica | None:
    """A replica with only the range's segments, their neighbours, and those in front whose indexes lead into the range.

    So a task stays small when pickled.
    """
    if replica is None:
        return None
    segments = replica.segments
    first = sum(1 for one in segments if one.stop is not None and one.stop <= low)
    last = len(segments) if high is None else sum(1 for one in segments if one.first < high)
    begin = max(0, first - 1)
    longer = (one for one in segments[:begin] if one.first + one.entries > low)
    return replace(replica, segments=(*longer, *segments[begin : last + 1]))
