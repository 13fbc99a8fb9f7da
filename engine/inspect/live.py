"""Telling damage from a file that is being written at this moment.

A node writes an index entry, then a record's header, its data and its checksum; at a roll-over it makes the new index file, then
the new data file, empty at first.  So whoever looks in between sees what looks like a torn tail, an index that is too long, an
index without a data file or a header that is too short.  A finding of this kind counts only when the files did not change
while it was seen, and have not been changed for a little while; a longer one while a process holds the directory.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import PurePath

from waltzctl.engine.errors import DiskReadError
from waltzctl.engine.inspect.read_limits import ReadLimits
from waltzctl.engine.log import places
from waltzctl.engine.log.view import FileState
from waltzctl.formats.segment import SEGMENT_SUFFIX, parse_name

QUIET = 0.5
"""Seconds without a change after which nobody is in the middle of writing a record."""
QUIET_WHEN_HELD = 5.0
"""The same while a process holds the directory: it may have been stopped, or wait for a slow disk."""
LOOKS = 40
LOOKS_WHEN_HELD = 4
"""Fewer: what is new then counts as being written, however often one looks."""
PAUSE = 0.005
LONGEST_PAUSE = 0.1


def states(*paths: PurePath) -> tuple[FileState | None, ...]:
    """How the files are now."""
    return tuple(FileState.of(path) for path in paths)


def has_later_segment(directory: PurePath, first: int) -> bool:
    """Whether a data file with a larger id is there, so that this one is written no more."""
    try:
        names = places.names(directory)
    except (OSError, DiskReadError):
        return False
    parsed = (parse_name(name) for name in names)
    return any(one is not None and one[1] == SEGMENT_SUFFIX and one[0] > first for one in parsed)


@dataclass(slots=True)
class Watch:
    """Looks at files again and again, a bounded number of times, until they have been quiet for long enough."""

    paths: tuple[PurePath, ...]
    held: bool
    limits: ReadLimits
    directory: PurePath | None = None
    """Whose time counts as well: removing and making files changes nothing else."""
    looks: int = 0
    unchanged_since: float | None = None
    before: tuple[FileState | None, ...] = ()

    def __post_init__(self) -> None:
        self.before = states(*self.paths)

    def changed(self) -> bool:
        """Whether the files differ from the last look; the next comparison is with how they are now."""
        now = states(*self.paths)
        if now == self.before:
            return False
        self.before, self.unchanged_since = now, None
        return True

    def quiet(self) -> bool:
        """Whether nobody can be in the middle of writing, as far as the files' times tell.

        While a process holds the directory the first look is never enough: removing a file leaves no time behind.
        """
        if self.limits.exclusive:
            return True
        if self.held and not self.looks:
            return False
        if self.quiet_now():
            return True
        moment = time.monotonic()
        self.unchanged_since = moment if self.unchanged_since is None else self.unchanged_since
        return not self.held and moment - self.unchanged_since >= QUIET

    def quiet_now(self) -> bool:
        """As `quiet`, by the times of a single look; a time in the future tells nothing and counts as long ago."""
        times = [state.modified_ns for state in self.before if state is not None]
        if self.directory is not None:
            changed = places.directory_modified_ns(self.directory)
            if changed is not None:
                times.append(changed)
        age = time.time() - max(times, default=0) / 1e9
        return self.limits.exclusive or age < 0 or age >= (QUIET_WHEN_HELD if self.held else QUIET)

    def wait(self) -> bool:
        """Pause before the next look; False when there were enough.  Raises CutShort."""
        self.looks += 1
        if self.looks >= (LOOKS_WHEN_HELD if self.held else LOOKS):
            return False
        self.limits.pause(min(PAUSE * 2 ** min(self.looks, 6), LONGEST_PAUSE))
        return True
