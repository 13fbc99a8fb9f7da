"""Snapshots of a page store: each is a sequence, and keeps the versions that it sees from being collected while it is held."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from waltzctl.engine.errors import InvalidRequestError
from waltzctl.engine.pages.page_directory import PageDirectory
from waltzctl.engine.pages.sequence_lock import SequenceLock


@dataclass(frozen=True, slots=True)
class SnapshotStatistics:
    """How many snapshots are held, the oldest one's age in seconds (0 without any), and its sequence (None without any)."""

    count: int
    oldest_age: float
    oldest_sequence: int | None


class Snapshot:
    """What the store held at one moment.  Close it, or use it with ``with``: what it sees is kept meanwhile."""

    def __init__(self, held: HeldSnapshots, sequence: int, created: float) -> None:
        self._held = held
        self.sequence = sequence
        self.created = created
        self.closed = False

    def close(self) -> None:
        """Let go; a second call does nothing."""
        self._held.release(self)

    def __enter__(self) -> Snapshot:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class HeldSnapshots:
    """The snapshots of a store that are not closed."""

    def __init__(self, path: Path, directory: PageDirectory, lock: SequenceLock) -> None:
        """`lock`: whoever changes the directory holds it."""
        self._path, self._directory, self._lock = path, directory, lock
        self._snapshots: dict[int, Snapshot] = {}

    @property
    def held(self) -> bool:
        """Whether there are any.  The caller holds the directory lock."""
        return bool(self._snapshots)

    def take(self) -> Snapshot:
        """What the directory holds now."""
        with self._lock:  # read and registered at once, or a version could go in between
            taken = Snapshot(self, self._directory.sequence, time.monotonic())
            self._snapshots[id(taken)] = taken
            return taken

    def release(self, snapshot: Snapshot) -> None:
        """Forget one."""
        with self._lock:
            snapshot.closed = True
            self._snapshots.pop(id(snapshot), None)

    def sequence_of(self, snapshot: Snapshot | None) -> int | None:
        """What one sees; None for none.  Raises InvalidRequestError for one that is closed, or of another store."""
        if snapshot is None:
            return None
        if snapshot.closed or self._snapshots.get(id(snapshot)) is not snapshot:
            raise InvalidRequestError(f"{self._path}: the snapshot is closed, or another store's")
        return snapshot.sequence

    def statistics(self) -> SnapshotStatistics:
        """How many are held, and for how long."""
        with self._lock:
            held = list(self._snapshots.values())
        oldest = min(held, key=lambda one: one.created, default=None)
        age = 0.0 if oldest is None else time.monotonic() - oldest.created
        return SnapshotStatistics(len(held), age, None if oldest is None else min(one.sequence for one in held))

    def sequences(self) -> list[int]:
        """What they see, falling.  The caller holds the lock."""
        return sorted({one.sequence for one in self._snapshots.values()}, reverse=True)
