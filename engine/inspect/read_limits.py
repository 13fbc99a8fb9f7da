"""Limits of a long inspection, shared by its threads: the rate of reading, and the time when it must end."""

from __future__ import annotations

import threading
import time

from waltzctl.engine.progress import SILENT, Progress
from waltzctl.engine.scan.byte_source import ByteSource

PIECE = 32 << 20
"""Bytes that a thread reads before it looks at the limits again, at most."""
_BURST = 0.1
"""Seconds at the limited rate that may be read at once."""
_PASSES = 8
"""How often a search waits for the bytes between its first and last read, at most: read again and again, the system has them."""


class CutShort(Exception):  # noqa: N818  # no error: the caller asked for it
    """The time limit has passed, or the caller asked to stop.  Never leaves the inspection."""


class ReadLimits:
    """Counts the bytes that are read, limits their rate, and ends the work when the time limit has passed."""

    def __init__(
        self,
        *,
        max_duration: float | None = None,
        limit_rate: int | None = None,
        progress: Progress = SILENT,
        exclusive: bool = False,
    ) -> None:
        """`max_duration` in seconds from now, `limit_rate` in bytes per second.

        `exclusive`: nobody can be writing what is inspected.
        """
        self.exclusive = exclusive
        self.started = time.monotonic()
        self.bytes_read = 0
        self._deadline = None if max_duration is None else self.started + max_duration
        self._rate = limit_rate
        self.piece = PIECE if limit_rate is None else min(PIECE, max(1, int(limit_rate * _BURST)))
        """About how many bytes may be read before they are told to `spend`: else neither rate nor time is kept."""
        self._free_at = self.started  # when the bytes read so far comply with the rate
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._progress = progress

    @property
    def elapsed(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self.started

    @property
    def exceeded(self) -> bool:
        """Whether the work must end now."""
        return self._stop.is_set() or (self._deadline is not None and time.monotonic() >= self._deadline)

    def stop(self) -> None:
        """Make every thread end at its next step."""
        self._stop.set()

    def check(self) -> None:
        """Raise CutShort when the time limit has passed."""
        if self.exceeded:
            raise CutShort

    def spend(self, amount: int) -> None:
        """Count `amount` bytes that were read, and wait as the rate requires.  Raises CutShort."""
        self.count(amount)
        self.keep_rate(amount)

    def count(self, amount: int) -> None:
        """Count `amount` bytes that are done."""
        with self._lock:
            self.bytes_read += amount
        self._progress.advance(amount)

    def keep_rate(self, amount: int) -> None:
        """Wait as the rate requires after a read of `amount` bytes, which are not counted.  Raises CutShort."""
        wait = 0.0
        if self._rate is not None:
            with self._lock:
                now = time.monotonic()
                self._free_at = max(self._free_at, now - _BURST) + amount / self._rate
                wait = self._free_at - now
        if wait > 0:
            self.pause(wait)
        self.check()

    def paced(self, source: ByteSource) -> ByteSource:
        """`source` for searches, which read some bytes several times, and others without counting them: each read keeps the rate.

        Beyond `_PASSES` times the bytes none does: searches among thousands of damaged places may read the same megabytes a
        thousand times, and would wait for days.  Its reads raise CutShort.
        """
        return source if self._rate is None else _PacedSource(source, self)

    def pause(self, seconds: float) -> None:
        """Wait, at most until the time limit.  Raises CutShort when it has passed, or after `stop`."""
        if self._deadline is not None:
            seconds = min(seconds, max(self._deadline - time.monotonic(), 0))
        self._stop.wait(seconds)
        self.check()


class _PacedSource:
    """A wrapper of a source that waits after each read as the rate requires."""

    def __init__(self, source: ByteSource, limits: ReadLimits) -> None:
        self.name = source.name
        self._source = source
        self._limits = limits
        self._begin = self._end = 0  # of what was read
        self._paid = 0

    def size(self) -> int:
        """See `ByteSource.size`."""
        return self._source.size()

    def read_into(self, offset: int, buffer: memoryview) -> int:
        """See `ByteSource.read_into`.  Raises CutShort."""
        count = self._source.read_into(offset, buffer)
        self._begin = min(self._begin, offset) if self._end else offset
        self._end = max(self._end, offset + count)
        due = min(count, _PASSES * (self._end - self._begin) - self._paid)
        self._paid += due
        self._limits.keep_rate(due)
        return count

    def close(self) -> None:
        """Does nothing: the wrapped source is closed by its owner."""
