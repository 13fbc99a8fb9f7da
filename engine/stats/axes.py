"""The two axes along which records are counted: time, which is an estimate, and transaction ids, which are exact.

A Waltz record contains no time.  A segment's records were written between two known times:

- the creation time in the segment's header;
- the creation time in the next segment's header, since release 0.13.2 creates the next segment when the first record has to be
  written that does not fit into this one.  For the last segment: the modification time of the data file.

Within that interval a record's time is interpolated from its file offset, as if bytes had arrived at a constant rate.

Both axes are cut into buckets whose width depends only on the extent, not on the order in which parts are merged.  Each possible
width divides the next larger one.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

from waltzctl.formats.adapters import format_time
from waltzctl.formats.segment import HEADER_SIZE, SegmentHeader

_SECOND, _DAY = 1000, 86_400_000
_LADDER = (
    *(_SECOND * seconds for seconds in (1, 5, 10, 30, 60, 300, 600, 1800, 3600, 7200, 21600, 43200)),
    *(_DAY * days for days in (1, 7, 28, 364, 3640)),
)
"""Automatic widths in milliseconds; each divides the next."""
TIME_BUCKETS = 100
"""Most buckets of time with an automatic width."""
CHOSEN_BUCKETS = 10_000
"""Most buckets of time with a requested width; with more, the width is multiplied by ten until they fit."""
ID_BUCKETS = 128
"""Most buckets of transaction ids in a partition."""


@dataclass(frozen=True, slots=True)
class Interval:
    """From `start` to `end` (exclusive), in milliseconds since 1970-01-01 UTC; `end` is not before `start`."""

    start: int
    end: int

    @property
    def last(self) -> int:
        """The last millisecond of the interval; `start` for an empty one."""
        return max(self.start, self.end - 1)

    def joined(self, other: Interval | None) -> Interval:
        """The smallest interval that covers both."""
        return self if other is None else Interval(min(self.start, other.start), max(self.end, other.end))


def joined(one: Interval | None, other: Interval | None) -> Interval | None:
    """The smallest interval that covers both."""
    return other if one is None else one.joined(other)


@dataclass(frozen=True, slots=True)
class Scale:
    """The rule for the width of buckets of time: `chosen` milliseconds, or (None) automatic, by the extent."""

    chosen: int | None = None

    def width(self, extent: Interval | None) -> int:
        """Width in milliseconds for an extent.  The width for a larger extent is a multiple of it."""
        if self.chosen is not None:
            width = self.chosen
            while extent is not None and _buckets(extent, width) > CHOSEN_BUCKETS:
                width *= 10
            return width
        if extent is None:
            return _LADDER[0]
        place = bisect_left(_LADDER, True, key=lambda width: _buckets(extent, width) <= TIME_BUCKETS)
        if place < len(_LADDER):
            return _LADDER[place]
        width = _LADDER[-1]
        while _buckets(extent, width) > TIME_BUCKETS:
            width *= 10
        return width


def _buckets(extent: Interval, width: int) -> int:
    return extent.last // width - extent.start // width + 1


def id_shift(first: int, last: int) -> int:
    """The smallest shift for which ids `first` to `last` are in at most ID_BUCKETS buckets of 2^shift ids."""
    shift = max(0, (last - first).bit_length() - ID_BUCKETS.bit_length())
    while (last >> shift) - (first >> shift) >= ID_BUCKETS:
        shift += 1
    return shift


@dataclass(frozen=True, slots=True)
class Clock:
    """The interval in which a segment's records were written, or, in words, why it is unknown."""

    interval: Interval | None
    reason: str | None = None


def clock_of(
    header: SegmentHeader | None,
    preceding: SegmentHeader | None,
    following: SegmentHeader | None,
    changed: int | None,
    *,
    last: bool,
    doubtful: bool,
) -> Clock:
    """When the records of a segment were written.

    `preceding` and `following`: headers of the previous and the next segment.  `changed`: the file's modification time in ms
    since 1970, used for the last segment only.  `doubtful`: the header is damaged or foreign.  If the times are missing or
    contradict each other, the result has a reason instead of an interval.
    """
    if header is None or doubtful:
        return Clock(None, "its header is damaged")
    created = header.created
    if created <= 0 or format_time(created) is None:
        return Clock(None, f"its header's creation time, {created}, is no time")
    if preceding is not None and preceding.created > created:
        before = format_time(preceding.created) or preceding.created
        return Clock(
            None, f"it was created {format_time(created)}, but the segment in front of it after that, {before}"
        )
    if last:
        end, source = changed, "its file was last changed"
    else:
        end, source = (None if following is None else following.created), "the next segment was created"
    if end is None:
        return Clock(None, "nothing tells when its last record was written")
    shown = format_time(end)
    if shown is None:
        return Clock(None, f"the time when {source}, {end}, is no time")
    if end < created:
        return Clock(None, f"it was created {format_time(created)}, but {source} before that, {shown}")
    return Clock(Interval(created, end))


def borders(interval: Interval, width: int, size: int) -> tuple[list[int], list[int]]:
    """The buckets that an interval touches, and the file offset at which each of them, except the first, begins.

    A record at byte `o` of a file of `size` bytes has the time ``start + (o - 128) * (end - start) / (size - 128)``.
    """
    buckets = list(range(interval.start // width, interval.last // width + 1))
    duration, room = interval.end - interval.start, max(size - HEADER_SIZE, 1)
    offsets = [HEADER_SIZE + -(-(bucket * width - interval.start) * room // duration) for bucket in buckets[1:]]
    return buckets, offsets
