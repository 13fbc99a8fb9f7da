"""Pauses between attempts: the first one short, each twice as long as the one before, up to the longest."""

from __future__ import annotations


def pause_after(pause: float, *, first: float, longest: float) -> float:
    """Seconds to wait before the next attempt; `pause`: the seconds before the last one, 0 if there was none."""
    return min(max(2 * pause, first), longest)
