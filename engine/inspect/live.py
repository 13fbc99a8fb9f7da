"""Distinguishes damage from a file that a node is writing at this moment.

A node writes an index entry, then a record's header, its data and its checksum; at a roll-over it creates the new index file,
then the new data file, empty at first.  A reader in between sees a torn tail, an index that is too long, an index without a data
file, or a header that is too short.  A finding of this kind counts only if the files are *quiet*: they did not change while they
were read, nor for QUIET seconds before; for QUIET_WHEN_HELD seconds while a process holds the directory's lock.

A modification time in the future says nothing: the clock was set back, or a file server's clock is ahead, and somebody may be
writing at this moment.  Then the files are looked at for so many seconds.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import PurePath

from waltzctl.engine.errors import DiskReadError
from waltzctl.engine.inspect.read_limits import ReadLimits
from waltzctl.engine.log import places
from waltzctl.engine.log.view import FileState
from waltzctl.formats.segment import SEGMENT_SUFFIX, parse_name, segment_name

QUIET = 0.5
"""Seconds without a change after which no writer is in the middle of a record."""
QUIET_WHEN_HELD = 5.0
"""The same while a process holds the directory's lock: the process may be stopped, or wait for a slow disk."""
LOOKS = 40
"""How often the files are compared, at most."""
LOOKS_WHEN_HELD = 4
"""The same while a process holds the lock.  Fewer are enough: recent changes count as being written however often one looks."""
LOOKS_WHEN_AHEAD = 64
"""The same when the lock is held and the files' times are in the future: enough for QUIET_WHEN_HELD seconds."""
PAUSE = 0.005
"""Seconds; the pause before look n (from 1) is PAUSE * 2**n, at most LONGEST_PAUSE."""
LONGEST_PAUSE = 0.1


def states(*paths: PurePath) -> tuple[FileState | None, ...]:
    """The current states of files."""
    return tuple(FileState.of(path) for path in paths)


def has_later_segment(directory: PurePath, first: int, following: int | None = None) -> bool:
    """Whether there is a data file with a larger id, so that no node appends to the segment `first` any more.

    `following`: the id of one that was there.  As long as it is, the directory is not listed: where thousands of segments lost
    their indexes, a listing for each takes minutes.
    """
    if following is not None and following > first and places.still_named(directory / segment_name(following)):
        return True
    try:
        names = places.names(directory)
    except (OSError, DiskReadError):
        return False
    parsed = (parse_name(name) for name in names)
    return any(one is not None and one[1] == SEGMENT_SUFFIX and one[0] > first for one in parsed)


@dataclass(slots=True)
class Watch:
    """Compares the states of files repeatedly, a bounded number of times, until the files are quiet (see the module)."""

    paths: tuple[PurePath, ...]
    held: bool
    """A process holds the lock of the storage directory."""
    limits: ReadLimits
    directory: PurePath | None = None
    """A directory whose modification time counts as well: creating and removing files changes it."""
    looks: int = 0
    """Number of looks so far."""
    ahead: bool = False
    """Whether the last look found a time in the future."""
    unchanged_since: float = 0.0
    """Monotonic time of the first look that saw the current states; the first of all is made with the watch."""
    before: tuple[FileState | None, ...] = ()
    """The states at the last look."""

    def __post_init__(self) -> None:
        self.before, self.unchanged_since = states(*self.paths), time.monotonic()

    def changed(self) -> bool:
        """Whether the files changed since the last look; this is a look as well."""
        now = states(*self.paths)
        if now == self.before:
            return False
        self.before, self.unchanged_since = now, time.monotonic()
        return True

    def quiet(self) -> bool:
        """Whether no writer is in the middle of a record, by the files' modification times or by repeated looks.

        While a process holds the lock, the first look is never enough: the removal of a file changes no file's time.
        """
        if self.limits.exclusive:
            return True
        if self.held and not self.looks:
            return False
        age, enough = self._age(), QUIET_WHEN_HELD if self.held else QUIET
        self.ahead = age < 0
        if age >= enough:
            return True
        return (self.ahead or not self.held) and time.monotonic() - self.unchanged_since >= enough

    def quiet_now(self) -> bool:
        """As `quiet`, by the modification times of one look.  A time in the future (wrong clock) counts as long ago."""
        age = self._age()
        return self.limits.exclusive or age < 0 or age >= (QUIET_WHEN_HELD if self.held else QUIET)

    def _age(self) -> float:
        """Seconds since the last modification, by the clock; negative if that is in the future."""
        times = [state.modified_ns for state in self.before if state is not None]
        if self.directory is not None:
            changed = places.directory_modified_ns(self.directory)
            if changed is not None:
                times.append(changed)
        return time.time() - max(times, default=0) / 1e9

    def wait(self) -> bool:
        """Pause before the next look; False if the looks are used up.  Raises CutShort."""
        self.looks += 1
        if self.looks >= (LOOKS if not self.held else LOOKS_WHEN_AHEAD if self.ahead else LOOKS_WHEN_HELD):
            return False
        self.limits.pause(min(PAUSE * 2 ** min(self.looks, 6), LONGEST_PAUSE))
        return True
