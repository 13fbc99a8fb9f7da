"""Moments that other processes know as well: by a clock that nobody sets where they are on the same machine."""

from __future__ import annotations

import functools
import socket
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Self


@functools.cache  # cached: later calls must not fail for lack of file descriptors
def boot() -> str:
    """Which start of which machine this is: within one, all processes have the same `machine_clock`.  Raises OSError."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


@functools.cache  # as `boot`
def machine() -> str:
    """A name that no other machine has, and this one keeps when it is started again: host name and machine-id(5).

    A container has a name of its own, and in it another `boot` tells of another machine no less.  Raises OSError.
    """
    try:
        known = Path("/etc/machine-id").read_text(errors="replace").strip()
    except (FileNotFoundError, PermissionError, IsADirectoryError):  # as in most containers
        known = ""
    return f"{socket.gethostname()} {known}".strip()


def machine_clock() -> float:
    """Seconds by the monotonic clock of this machine, which all its processes have in common.  Raises OSError.

    Not `time.monotonic` alone: a container may have a time namespace, where that is ahead or behind, see time_namespaces(7).
    """
    return time.monotonic() - _ahead_of_machine()


@functools.cache  # as `boot`
def _ahead_of_machine() -> float:
    try:
        offsets = Path("/proc/self/timens_offsets").read_text()
    except FileNotFoundError:  # a kernel without time namespaces
        return 0.0
    for line in offsets.splitlines():
        clock, seconds, nanoseconds = line.split()
        if clock == "monotonic":
            return int(seconds) + int(nanoseconds) / 1e9
    return 0.0


@dataclass(frozen=True, slots=True)
class SharedDeadline:
    """A moment `seconds` after this was made.

    `at` by the clock of this machine (`booted`; None where that is not known), and for others `time_of_day`, in seconds
    since 1970.  Where the time of day was set back meanwhile, or is behind on the other machine, at most `seconds` are left for a
    process from its first look at it on.
    """

    seconds: float
    booted: str | None
    at: float
    time_of_day: float

    @classmethod
    def after(cls, seconds: float) -> Self:
        """The moment `seconds` from now."""
        booted, now = _here_and_now()
        return cls(seconds, booted, now + seconds, time.time() + seconds)

    def left(self) -> float:
        """Seconds until then; 0 if it is over."""
        booted, now = _here_and_now()
        if self.booted is not None and self.booted == booted:
            return max(0.0, self.at - now)
        looked_for = time.monotonic() - _first_look(self)
        return max(0.0, min(self.seconds - looked_for, self.time_of_day - time.time()))


@functools.lru_cache  # one deadline for each command
def _first_look(_deadline: SharedDeadline) -> float:
    """The process's monotonic clock when it was first asked."""
    return time.monotonic()


def _here_and_now() -> tuple[str | None, float]:
    """The machine's start, None where it is not known, and its clock."""
    try:
        return boot(), machine_clock()
    except OSError:
        return None, time.monotonic()
