"""Snapshots of a page store.  A snapshot is a sequence; while it is held, the versions that it sees are not collected."""

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
    """The state of the store at one moment.  Close it, or use it with ``with``: until then the versions that it sees are kept."""

    def __init__(self, held: HeldSnapshots, sequence: int, created: float) -> None:
        self._held = held
        self.sequence = sequence
        self.created = created
        self.closed = False

    def close(self) -> None:
        """Release the snapshot; a second call does nothing."""
        self._held.release(self)

    def __enter__(self) -> Snapshot:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class HeldSnapshots:
    """The open snapshots of a store."""

    def __init__(self, path: Path, directory: PageDirectory, lock: SequenceLock) -> None:
        """`lock`: the directory lock, held by every change of the directory."""
        self._path, self._directory, self._lock = path, directory, lock
        self._snapshots: dict[int, Snapshot] = {}

    @property
    def held(self) -> bool:
        """Whether there are any.  The caller holds the directory lock."""
        return bool(self._snapshots)

    def take(self) -> Snapshot:
        """A snapshot of the current state."""
        with self._lock:  # atomic: otherwise a version could be collected before it is registered
            taken = Snapshot(self, self._directory.sequence, time.monotonic())
            self._snapshots[id(taken)] = taken
            return taken

    def release(self, snapshot: Snapshot) -> None:
        """Close a snapshot."""
        with self._lock:
            snapshot.closed = True
            self._snapshots.pop(id(snapshot), None)

    def sequence_of(self, snapshot: Snapshot | None) -> int | None:
        """The sequence of a snapshot; None for None.  Raises InvalidRequestError if it is closed, or of another store."""
        if snapshot is None:
            return None
        if snapshot.closed or self._snapshots.get(id(snapshot)) is not snapshot:
            raise InvalidRequestError(f"{self._path}: the snapshot is closed, or another store's")
        return snapshot.sequence

    def statistics(self) -> SnapshotStatistics:
        """Number of open snapshots, and the age of the oldest."""
        with self._lock:
            held = list(self._snapshots.values())
        oldest = min(held, key=lambda one: one.created, default=None)
        age = 0.0 if oldest is None else time.monotonic() - oldest.created
        return SnapshotStatistics(len(held), age, None if oldest is None else min(one.sequence for one in held))

    def sequences(self) -> list[int]:
        """Sequences of the open snapshots, descending.  The caller holds the lock."""
        return sorted({one.sequence for one in self._snapshots.values()}, reverse=True)
