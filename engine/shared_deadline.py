"""Moments that other processes know as well: by a clock that nobody sets where they are on the same machine."""

from __future__ import annotations

import functools
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Self


@functools.cache  # cached: later calls must not fail for lack of file descriptors
def boot() -> str:
    """Which start of which machine this is: within one, all processes have the same monotonic clock.  Raises OSError."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


@dataclass(frozen=True, slots=True)
class SharedDeadline:
    """A moment `seconds` after this was made.

    `at` by the monotonic clock of this machine (`booted`; None where that is not known), and for others `time_of_day`, in seconds
    since 1970.  Where the time of day was set back meanwhile, at most `seconds` are left for whoever looks at it.
    """

    seconds: float
    booted: str | None
    at: float
    time_of_day: float

    @classmethod
    def after(cls, seconds: float) -> Self:
        """The moment `seconds` from now."""
        return cls(seconds, _boot_if_known(), time.monotonic() + seconds, time.time() + seconds)

    def left(self) -> float:
        """Seconds until then; 0 if it is over."""
        if self.booted is not None and self.booted == _boot_if_known():
            return max(0.0, self.at - time.monotonic())
        return max(0.0, min(self.seconds, self.time_of_day - time.time()))


def _boot_if_known() -> str | None:
    try:
        return boot()
    except OSError:
        return None
