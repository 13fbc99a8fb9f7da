"""Opens a storage directory after a crash, reads everything in it, and looks whether it is sound and stays so."""

from __future__ import annotations

import os
import traceback
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from tests.crash.essence import Memory, essence
from tests.crash.recorder import LOCK
from tests.crash.simdisk import Tree
from tests.crash.truth import NO_MARKS, AbsentSeen, PartitionSeen, Seen, Truth, judge, narrowed
from waltzctl.engine.durable import disk
from waltzctl.engine.durable.disk import Change
from waltzctl.engine.errors import NotWaltzError, WaltzError
from waltzctl.engine.findings import Code, Finding, Severity
from waltzctl.engine.inspect.verify import VerifyOptions, VerifySummary, verify
from waltzctl.engine.storage.assignment import put_aside_path
from waltzctl.engine.storage.availability_marks import read_availability
from waltzctl.engine.storage.directory import StorageDirectory, StorageOptions
from waltzctl.engine.storage.fences import SessionFences
from waltzctl.engine.storage.loss_ledger import read_ledger
from waltzctl.engine.storage.partition import Partition
from waltzctl.formats.control import CONTROL_FILE_NAME
from waltzctl.formats.fence import NO_SESSION
from waltzctl.formats.request_id import RequestId
from waltzctl.formats.segment import SEGMENT_SUFFIX, Record

SMALL_SEGMENTS = StorageOptions(segment_size_threshold=1500)
"""Some ten records of the builders in a segment, so that a few appends roll over."""
HARMLESS = (Code.CONTROL_STRUCT_CHECKSUM,)
NEW = PartitionSeen((), NO_MARKS, -1, False, (True, True), (), NO_SESSION)
"""A partition that was just assigned for the first time."""
MUST_WORK = (WaltzError, OSError, ValueError, AssertionError, KeyError, IndexError, TypeError, AttributeError)
"""What an opening that fails may raise; anything else is not caught, and ends the test with its own traceback."""


def look(storage: StorageDirectory) -> dict[int, PartitionSeen]:
    """Everything in an open storage directory."""
    with SessionFences.open(storage.path, storage.num_partitions) as fences:
        return {
            number: _look_at(storage, number, partition, fences.get(number))
            for number, partition in storage.partitions.items()
        }


def look_for_others(storage: StorageDirectory) -> dict[int, AbsentSeen]:
    """What is left of the partitions that are not assigned."""
    found = {}
    available = read_availability(storage.path, storage._control.control)
    with SessionFences.open(storage.path, storage.num_partitions) as fences:
        for number in sorted(set(range(storage.num_partitions)) - storage.partitions.keys()):
            places = storage.path / str(number), put_aside_path(storage.path, number)
            current = storage.info(number).current_struct
            switches = available[number]
            found[number] = AbsentSeen(
                any(place.is_dir() for place in places),
                NO_MARKS if current is None else current.marks,
                (switches.readable, switches.writable),
                fences.get(number),
            )
    return found


def _look_at(storage: StorageDirectory, number: int, partition: Partition, fence: int) -> PartitionSeen:
    last = partition.max_transaction_id
    first = partition.first_transaction_id
    records = partition.read_range(first, last + 1 - first) if last >= first else []
    for place in _sampled(len(records)):  # a single read goes through the index
        assert partition.read(first + place) == records[place], f"transaction {first + place} reads differently alone"
    switches = storage.availability(number)
    return PartitionSeen(
        tuple(records),
        (partition.session_id, partition.low_water_mark, partition.local_low_water_mark),
        last,
        partition.quarantined,
        (switches.readable, switches.writable),
        tuple(f"{finding.code}: {finding.message}" for finding in partition.findings),
        fence,
    )


def _sampled(count: int) -> list[int]:
    """All of a few; of many the last ones and some others."""
    return list(range(count)) if count <= 60 else [*range(0, count - 15, 97), *range(count - 15, count)]


@dataclass(frozen=True, slots=True)
class StorageChecker:
    """Opens the storage directory `name` below the root ("" for the root itself).

    `assign_again`: whether what was deleted is also assigned again after the crash, and must be a new partition then.
    """

    options: StorageOptions = SMALL_SEGMENTS
    name: str = ""
    assign_again: bool = False
    _memory: Memory = field(default_factory=Memory, init=False, repr=False, compare=False)

    def recover(self, root: Path) -> Seen:
        """Inspect without touching, then open read-write as a node does."""
        path = root / self.name
        before = self._kept_of(path)
        complaints: list[str] = []
        try:
            complaints += self._memory.recall("inspect", essence(path), None, lambda: self._inspect(path))
            with StorageDirectory.open(path, options=self.options) as storage:
                partitions, others = look(storage), look_for_others(storage)
        except NotWaltzError:
            return Seen(absent=True, error=traceback.format_exc(limit=-3))
        except MUST_WORK:
            return Seen(error=traceback.format_exc(limit=-6), absent=not (path / CONTROL_FILE_NAME).exists())
        losses = {loss.partition for loss in read_ledger(path).losses}
        complaints += [
            f"partition {number}: its files are gone, and its accepted losses are not"
            for number, other in others.items()
            if not other.files and number in losses
        ]
        after = segments(path)
        for number, seen in partitions.items():
            if seen.quarantined and before.get(number) != after.get(number):
                complaints.append(f"partition {number}: its quarantined segments were changed")
        return Seen(partitions, others, None, tuple(complaints))

    def _kept_of(self, path: Path) -> Mapping[int, Mapping[str, bytes]]:
        """The bytes of data files that an opening has to leave alone where it quarantines their partition."""
        return segments(path)

    def _inspect(self, path: Path, opened: Collection[int] | None = None) -> list[str]:
        """Verify never raises (but for a path that holds nothing of Waltz), changes nothing, and is content with what is open.

        A struct of the control file that an update tore is `HARMLESS`: the other one is in force, and the next update writes
        it anew.
        """
        changes: list[Change] = []
        earlier, disk.observer = disk.observer, changes.append
        try:
            *findings, summary = verify([path], VerifyOptions(threads=1, exclusive=True))
        finally:
            disk.observer = earlier
        complaints = []
        if changes:
            complaints.append(f"verify made changes: {[change.kind for change in changes]}")
        if not isinstance(summary, VerifySummary):
            complaints.append(f"verify ended with {summary!r}")
        complaints += [
            f"verify after the recovery: {finding.code}: {finding.path.name}: {finding.message}"
            for finding in findings
            if opened is not None
            and isinstance(finding, Finding)
            and finding.severity is not Severity.NOTE
            and finding.code not in HARMLESS
            and (finding.partition is None or finding.partition in opened)
        ]
        return complaints

    def examine(self, root: Path, seen: Seen) -> Seen:
        """Open again: nothing changes.  Verify: clean.  Append: it works, and the record is there after another opening."""
        if seen.error is not None:
            return seen
        path = root / self.name
        shown = _without_findings(seen.partitions), seen.others
        more = self._memory.recall("examine", essence(path), shown, lambda: self._examined(path, seen))
        return replace(seen, complaints=(*seen.complaints, *more))

    def _examined(self, path: Path, seen: Seen) -> list[str]:
        complaints: list[str] = []
        try:
            self._second_opening(path, seen, complaints)
            complaints += self._inspect(
                path, [number for number, one in seen.partitions.items() if not one.quarantined]
            )
            self._go_on(path, seen, complaints)
            if self.assign_again:
                self._assign_again(path, [number for number, one in seen.others.items() if not one.files], complaints)
        except MUST_WORK:
            complaints.append(traceback.format_exc(limit=-6))
        return complaints

    def _second_opening(self, path: Path, seen: Seen, complaints: list[str]) -> None:
        before = Tree.read(path, (LOCK,))
        changes: list[Change] = []
        disk.observer = changes.append
        try:
            with StorageDirectory.open(path, options=self.options) as storage:
                again, others = look(storage), look_for_others(storage)
        finally:
            disk.observer = None
        changed = [change for change in changes if change.kind not in ("sync", "sync-directory")]
        if changed:
            complaints.append(f"a second open made changes: {[(one.kind, one.path.name) for one in changed]}")
        complaints += [f"a second open changed {line}" for line in before.differences(Tree.read(path, (LOCK,)))]
        if _without_findings(again) != _without_findings(seen.partitions) or others != seen.others:
            complaints.append("a second open shows something else than the first")

    def _go_on(self, path: Path, seen: Seen, complaints: list[str]) -> None:
        usable = {
            number: found.max_transaction_id + 1
            for number, found in seen.partitions.items()
            if not found.quarantined and all(found.switches)
        }
        with StorageDirectory.open(path, options=self.options) as storage:
            for number, following in usable.items():
                storage.partition(number).append([_next_record(number, following)])
        with StorageDirectory.open(path, options=self.options) as storage:
            for number, following in usable.items():
                if storage.partition(number).read(following) != _next_record(number, following):
                    complaints.append(f"partition {number}: a record appended after the recovery is not there")

    def _assign_again(self, path: Path, numbers: Collection[int], complaints: list[str]) -> None:
        """Nothing of a deleted partition comes back with it: it is empty, open for all, and takes any session."""
        with StorageDirectory.open(path, options=self.options) as storage:
            for number in numbers:
                storage.assign(number)
            found = look(storage)
        with SessionFences.open(path, storage.num_partitions) as fences:
            for number in numbers:
                if found[number] != NEW:
                    complaints.append(f"partition {number}: assigned again after its deletion it is {found[number]}")
                fences.raise_to(number, 0)

    def judge(self, truth: Truth, seen: Seen, state: Tree) -> list[str]:
        """See `tests.crash.truth.judge`."""
        return judge(truth, seen, state.below(self.name) if self.name else state)

    def narrowed(self, truth: Truth, seen: Seen) -> Truth:
        """See `tests.crash.truth.narrowed`."""
        return narrowed(truth, seen)


def _without_findings(partitions: Mapping[int, PartitionSeen]) -> dict[int, PartitionSeen]:
    """What is to stay: what was found and mended is not found again."""
    return {number: replace(seen, findings=()) for number, seen in partitions.items()}


def segments(path: Path) -> Mapping[int, Mapping[str, bytes]]:
    """The bytes of every data file, by partition."""
    found: dict[int, dict[str, bytes]] = {}
    for name in os.listdir(path) if path.is_dir() else []:
        if name.isdigit():
            found[int(name)] = {
                one.name: one.read_bytes() for one in sorted((path / name).iterdir()) if one.suffix == SEGMENT_SUFFIX
            }
    return found


def _next_record(partition: int, transaction_id: int) -> Record:
    return Record.make(transaction_id, RequestId(9, 9, partition, transaction_id), 9, b"appended after the crash")
