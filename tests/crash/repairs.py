"""Looks at a storage directory in which a repair, or the undo of one, was interrupted."""

from __future__ import annotations

import contextlib
import json
import shutil
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tests.crash.essence import Memory, essence
from tests.crash.recorder import LOCK, Recorder, Recording
from tests.crash.simdisk import Tree
from waltzctl.engine.durable import disk
from waltzctl.engine.durable.directory_lock import DirectoryLock
from waltzctl.engine.durable.disk import Change
from waltzctl.engine.durable.journal import journal_path
from waltzctl.engine.durable.manifest import RepairState
from waltzctl.engine.durable.relocation import UNASSIGNED
from waltzctl.engine.errors import WaltzError
from waltzctl.engine.inspect.verify import VerifyOptions, VerifySummary, verify
from waltzctl.engine.repair.undoing import undo
from waltzctl.engine.storage.directory import StorageDirectory
from waltzctl.engine.storage.store import interrupted, list_entries, roll_back_interrupted
from waltzctl.formats.control import CONTROL_FILE_NAME


@dataclass(frozen=True, slots=True)
class RepairTruth:
    """What may be found outside of our own state once an interrupted repair was rolled back.

    `undone` is what undo must give where the repair is found applied (the first of `allowed` unless it was never applied).
    """

    allowed: tuple[Tree, ...]
    undone: Tree


@dataclass(frozen=True, slots=True)
class RepairSeen:
    """What was found."""

    found: Tree | None = None
    applied: int = 0
    after_undo: Tree | None = None
    complaints: tuple[str, ...] = ()


_RECORDS = tuple(f"{disk.STATE_DIRECTORY}/{name}" for name in ("lock", "journal.jsonl", disk.QUARANTINE))
_PLACES = (disk.STATE_DIRECTORY, f"{disk.STATE_DIRECTORY}/{UNASSIGNED}")


def outside_state(tree: Tree) -> Tree:
    """A storage directory without what only records repairs, and without the places that are made when they are first needed."""
    return Tree(
        {name: data for name, data in tree.files.items() if not name.startswith(_RECORDS)},
        frozenset(name for name in tree.directories if name not in _PLACES and not name.startswith(_RECORDS)),
    )


def _roll_back(storage: Path) -> list[Change]:
    changes: list[Change] = []
    earlier = disk.observer

    def listen(change: Change) -> None:
        changes.append(change)
        if earlier is not None:
            earlier(change)

    disk.observer = listen
    try:
        with DirectoryLock.acquire(storage, storage / CONTROL_FILE_NAME):
            roll_back_interrupted(storage)
    finally:
        disk.observer = earlier
    return changes


def _journal(storage: Path) -> list[dict[str, str]]:
    """The lines of the audit journal that are whole; a crash may tear one, which is ended and written again."""
    found = []
    for line in journal_path(storage).read_bytes().split(b"\n") if journal_path(storage).exists() else ():
        with contextlib.suppress(ValueError):
            found.append(json.loads(line))
    return found


class RepairChecker:
    """Rolls back, and proves that what is outside of our state is byte for byte what was before or after the repair."""

    def __init__(self) -> None:
        self._memory = Memory()

    def recover(self, root: Path) -> RepairSeen:
        """Inspect without touching, then roll back as the next writer would."""
        try:
            self._memory.recall("inspect", essence(root), None, lambda: self._inspect(root))
            waiting = len(interrupted(root))
            _roll_back(root)
            left = len(interrupted(root))
        except (WaltzError, OSError, ValueError, AssertionError):
            return RepairSeen(complaints=(traceback.format_exc(),))
        found = outside_state(Tree.read(root, (LOCK,)))
        entries = list_entries(root)
        applied = sum(entry.state is RepairState.APPLIED for entry in entries)
        complaints = [f"{left} of {waiting} interrupted repairs are left after the roll-back"] if left else []
        told = {(line["entry"], line["event"]) for line in _journal(root)}
        complaints += [
            f"{entry.id} is {entry.state}, and the journal does not say so"
            for entry in entries
            if (entry.id, entry.state.value) not in told
        ]
        return RepairSeen(found, applied, None, tuple(complaints))

    def _inspect(self, root: Path) -> None:
        *_, summary = verify([root], VerifyOptions(threads=1, exclusive=True))
        assert isinstance(summary, VerifySummary), summary

    def examine(self, root: Path, seen: RepairSeen) -> RepairSeen:
        """A second roll-back changes nothing; the directory opens; undo still works."""
        if seen.found is None:
            return seen
        complaints = list(seen.complaints)
        before = Tree.read(root, (LOCK,))
        again = [change for change in _roll_back(root) if change.kind not in ("sync", "sync-directory")]
        if again or Tree.read(root, (LOCK,)) != before:
            complaints.append(f"a second roll-back changed something: {[change.kind for change in again]}")
        try:
            copy = root.with_name("copy")
            self._memory.recall("open", essence(root, before), None, lambda: self._open_copy(before, copy))
            if seen.applied:
                self.take_back(root)
        except (WaltzError, OSError, ValueError, AssertionError):
            complaints.append(traceback.format_exc())
        after_undo = outside_state(Tree.read(root, (LOCK,)))
        return replace(seen, after_undo=after_undo, complaints=tuple(complaints))

    def take_back(self, root: Path) -> None:
        """What must lead to the state `undone` of the truth."""
        undo(root)

    def _open_copy(self, tree: Tree, place: Path) -> None:
        """Open a copy as a node does, twice; raises what that raises.  The damage a repair was for may close a partition."""
        place.mkdir()
        try:
            tree.write(place)
            with StorageDirectory.open(place) as storage:
                first = {
                    number: (one.quarantined, one.max_transaction_id) for number, one in storage.partitions.items()
                }
            mended = Tree.read(place, (LOCK,))
            with StorageDirectory.open(place) as storage:
                again = {
                    number: (one.quarantined, one.max_transaction_id) for number, one in storage.partitions.items()
                }
            differences = mended.differences(Tree.read(place, (LOCK,)))
            if first != again or differences:
                raise ValueError(f"a second opening differs from the first: {first}, {again}, {differences}")
        finally:
            shutil.rmtree(place)

    def judge(self, truth: RepairTruth, seen: RepairSeen, state: Tree) -> list[str]:
        """Before or after, nothing else; and what undo gives."""
        failures = list(seen.complaints)
        if seen.found is None:
            return failures
        if seen.found not in truth.allowed:
            for number, wanted in enumerate(truth.allowed):
                failures.append(f"not the allowed state {number}: {seen.found.differences(wanted)}")
        elif seen.found != truth.undone and not seen.applied:
            failures.append("the repair's result is there, but no entry that undo could take back")
        if seen.after_undo is not None and seen.applied and seen.after_undo != truth.undone:
            failures.append(f"undo does not bring back the state before: {seen.after_undo.differences(truth.undone)}")
        return failures

    def narrowed(self, truth: RepairTruth, seen: RepairSeen) -> RepairTruth:
        """What was found stays."""
        return truth if seen.found is None else replace(truth, allowed=(seen.found,))


def record_repair(storage: Path, work: Callable[[], object]) -> Recording[RepairTruth]:
    """Record a repair.  `work` applies it and returns once it is acknowledged."""
    recorder: Recorder[RepairTruth] = Recorder(storage)
    before = outside_state(recorder.recording.before)
    with recorder.listening():
        work()
    return _promised(recorder, before, outside_state(Tree.read(storage, (LOCK,))), before)


def record_undo(storage: Path, work: Callable[[], object]) -> Recording[RepairTruth]:
    """Record an undo of the repair that was applied last."""
    recorder: Recorder[RepairTruth] = Recorder(storage)
    repaired = outside_state(recorder.recording.before)
    with recorder.listening():
        work()
    original = outside_state(Tree.read(storage, (LOCK,)))
    return _promised(recorder, repaired, original, original)


def record_set_aside(storage: Path, between: Tree, work: Callable[[], object]) -> Recording[RepairTruth]:
    """Record an undo that sets aside what came since, after which the directory is, for an instant, as `between`."""
    recorder: Recorder[RepairTruth] = Recorder(storage)
    before = outside_state(recorder.recording.before)
    with recorder.listening():
        work()
    after = outside_state(Tree.read(storage, (LOCK,)))
    return _promised(recorder, before, after, after, outside_state(between))


def _promised(
    recorder: Recorder[RepairTruth], before: Tree, after: Tree, undone: Tree, *between: Tree
) -> Recording[RepairTruth]:
    """Put the promises around the changes: they can only be written down once the result is known."""
    recording = recorder.recording
    changes: Sequence[Change] = recording.changes
    recorder.promise(RepairTruth((before, *between, after), undone), settled=False)
    recording.events = [recording.events[-1], *changes]
    recorder.promise(RepairTruth((after,), undone), settled=True)
    return recording
