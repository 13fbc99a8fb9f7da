"""Records what a workload does to the disk, and beside it what was promised at each moment."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, TypeVar

from tests.crash.simdisk import SimulatedDisk, Tree
from tests.crash.sites import calling_site
from waltzctl.engine.durable import disk
from waltzctl.engine.durable.disk import Change

SYNCS = ("sync", "sync-directory")
LOCK = f"{disk.STATE_DIRECTORY}/lock"
"""The lock file: bookkeeping that the observer does not see, and of which nothing depends on the bytes."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Promise(Generic[T]):
    """What is true from here on.  `settled`: no operation is under way."""

    truth: T
    settled: bool


Event = Change | Promise[T]


@dataclass(frozen=True, slots=True)
class Moment(Generic[T]):
    """The disk after `number` changes, the last of which is `change`, and the strictest truth that holds there."""

    number: int
    change: Change | None
    truth: T


@dataclass(slots=True)
class Recording(Generic[T]):
    """A directory tree as it was, and the changes and promises that followed.

    `sites`: for the `id` of each change that is a sync, where in the engine it was called.
    """

    root: Path
    before: Tree
    events: list[Event[T]] = field(default_factory=list)
    sites: dict[int, str] = field(default_factory=dict)

    @property
    def changes(self) -> list[Change]:
        """The changes alone."""
        return [event for event in self.events if isinstance(event, Change)]

    def without(self, dropped: Callable[[Change], bool]) -> Recording[T]:
        """The same workload of an engine that forgets some changes (syncs, to be of use)."""
        kept = [event for event in self.events if not (isinstance(event, Change) and dropped(event))]
        return Recording(self.root, self.before, kept)

    def moments(self, simulated: SimulatedDisk) -> Iterator[Moment[T]]:
        """Every moment at which a crash leaves another disk; `simulated` has taken the changes up to it.

        Between two changes a process may have promised several things.  A crash may come after the last promise, so the
        truth is the last settled one, or the one under way when there is none.
        """
        number, last = 0, None
        strictest: Promise[T] | None = None
        newest: Promise[T] | None = None
        for event in self.events:
            if isinstance(event, Promise):
                newest = event
                if event.settled or strictest is None or not strictest.settled:
                    strictest = event
                continue
            if strictest is not None:
                yield Moment(number, last, strictest.truth)
            simulated.apply(event)
            number, last, strictest = number + 1, event, newest
        if strictest is not None:
            yield Moment(number, last, strictest.truth)


class Recorder(Generic[T]):
    """Listens to `engine.durable.disk` while a workload runs."""

    def __init__(self, root: Path) -> None:
        self.recording: Recording[T] = Recording(root, Tree.read(root, (LOCK,)))

    def promise(self, truth: T, *, settled: bool) -> None:
        """From here on `truth` holds."""
        self.recording.events.append(Promise(truth, settled))

    def _observe(self, change: Change) -> None:
        self.recording.events.append(change)
        if change.kind in SYNCS:
            with suppress(LookupError):
                self.recording.sites[id(change)] = calling_site(change.kind == "sync-directory")

    @contextmanager
    def listening(self) -> Iterator[Recorder[T]]:
        """Listen, and prove afterwards that nothing went past: all changes together make the real directory.

        Raises AssertionError when they do not.
        """
        with observing(self._observe):
            yield self
        simulated = SimulatedDisk(self.recording.root, self.recording.before)
        for change in self.recording.changes:
            simulated.apply(change)
        real = Tree.read(self.recording.root, (LOCK,))
        missed = simulated.kept().differences(real)
        assert not missed, "changes that did not pass engine.durable.disk:\n" + "\n".join(missed)


@contextmanager
def observing(listener: Callable[[Change], None]) -> Iterator[None]:
    """Set the observer, and take it away again.  Not nested."""
    assert disk.observer is None, "somebody observes already"
    disk.observer = listener
    try:
        yield
    finally:
        disk.observer = None
