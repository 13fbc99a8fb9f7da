"""What a crash may leave of a storage directory, by what had been promised, and the judgement of what was found.

A `PartitionTruth` says: the records present are a prefix of `possible`, and at least the first `least` of them.  While an
append is under way, `possible` ends with the records in flight; while a truncation is under way, `least` has fallen and
`possible` has not, and `cutting` says so; once it is acknowledged, both have.  Marks, assignment, availability and fence are
sets of what may be.  Where no file of a partition is left and it is not assigned, everything else of it is forgotten, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from tests.crash.simdisk import Tree
from waltzctl.formats.fence import NO_SESSION
from waltzctl.formats.segment import SEGMENT_SUFFIX, Record

Marks = tuple[int, int, int]
"""Session id, low-water mark, local low-water mark."""
NO_MARKS: Marks = (-1, -1, -1)
Switches = tuple[bool, bool]
"""Readable, writable."""


@dataclass(frozen=True, slots=True)
class PartitionTruth:
    """What may be found of one partition."""

    possible: tuple[Record, ...] = ()
    least: int = 0
    marks: frozenset[Marks] = frozenset({NO_MARKS})
    assigned: frozenset[bool] = frozenset({True})
    switches: frozenset[Switches] = frozenset({(True, True)})
    fences: frozenset[int] = frozenset({NO_SESSION})
    cutting: bool = False

    def holding(self, records: Sequence[Record]) -> PartitionTruth:
        """Exactly these records."""
        return replace(self, possible=tuple(records), least=len(records), cutting=False)


@dataclass(frozen=True, slots=True)
class Truth:
    """What may be found of a storage directory.  `exists`: whether it may, must or must not be one yet."""

    partitions: Mapping[int, PartitionTruth] = field(default_factory=dict)
    exists: frozenset[bool] = frozenset({True})

    def with_partition(self, number: int, truth: PartitionTruth) -> Truth:
        """This truth with one partition's replaced."""
        return replace(self, partitions=MappingProxyType({**self.partitions, number: truth}))


@dataclass(frozen=True, slots=True)
class PartitionSeen:
    """A partition as an opened storage directory shows it."""

    records: tuple[Record, ...]
    marks: Marks
    max_transaction_id: int
    quarantined: bool
    switches: Switches
    findings: tuple[str, ...]
    fence: int = NO_SESSION


@dataclass(frozen=True, slots=True)
class AbsentSeen:
    """A partition that is not assigned; `files`: whether a directory of it is left, in its place or put aside."""

    files: bool
    marks: Marks
    switches: Switches
    fence: int


FORGOTTEN = AbsentSeen(False, NO_MARKS, (True, True), NO_SESSION)
"""A partition that was never here, or of which everything was deleted."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A storage directory as it shows itself.

    `error` says why it cannot be opened, `absent` that there is none, or none yet (no control file); `complaints` are what is
    wrong whatever had been promised.
    """

    partitions: Mapping[int, PartitionSeen] = field(default_factory=dict)
    others: Mapping[int, AbsentSeen] = field(default_factory=dict)
    error: str | None = None
    complaints: tuple[str, ...] = ()
    absent: bool = False


def judge(truth: Truth, seen: Seen, tree: Tree) -> list[str]:
    """Every way in which what was seen breaks what was promised.  `tree` is the storage directory as the crash left it."""
    failures = list(seen.complaints)
    if seen.error is not None:
        if not (seen.absent and False in truth.exists):
            failures.append(f"cannot be opened: {seen.error}")
        return failures
    if True not in truth.exists:
        failures.append("there is a storage directory where none was made")
    for number, promised in truth.partitions.items():
        found = seen.partitions.get(number)
        if (found is not None) not in promised.assigned:
            failures.append(f"partition {number}: {'not ' if found is None else ''}assigned")
        elif found is not None:
            failures += [f"partition {number}: {line}" for line in judge_partition(number, promised, found, tree)]
    failures += [f"partition {number}: invented" for number in sorted(seen.partitions.keys() - truth.partitions.keys())]
    for number, other in seen.others.items():
        promised = truth.partitions.get(number, PartitionTruth())
        failures += [f"partition {number}, not assigned: {line}" for line in judge_absent(promised, other)]
    return failures


def judge_absent(promised: PartitionTruth, found: AbsentSeen) -> list[str]:
    """What of a partition that is not assigned is not as promised: as told while it has files, and nothing after them."""
    if not found.files:
        return [] if found == FORGOTTEN else [f"its files are gone, and this is left of it: {found}"]
    return _switches_and_fence(promised, found) + (
        [] if found.marks in promised.marks else [f"marks {found.marks}, promised {sorted(promised.marks)}"]
    )


def _switches_and_fence(promised: PartitionTruth, found: PartitionSeen | AbsentSeen) -> list[str]:
    failures = []
    if found.switches not in promised.switches:
        failures.append(f"readable, writable {found.switches}, promised {sorted(promised.switches)}")
    if found.fence not in promised.fences:
        failures.append(f"session fence {found.fence}, promised {sorted(promised.fences)}")
    return failures


def judge_partition(number: int, promised: PartitionTruth, found: PartitionSeen, tree: Tree) -> list[str]:
    """The same for one partition."""
    failures: list[str] = []
    if len(found.records) < promised.least:
        failures.append(f"{len(found.records)} records, {promised.least} were acknowledged ({found.findings})")
    if len(found.records) > len(promised.possible):
        failures.append(f"{len(found.records)} records, only {len(promised.possible)} may be there")
    for place, (record, read) in enumerate(zip(promised.possible, found.records, strict=False)):
        if record != read:
            failures.append(f"record at place {place} is not transaction {record.transaction_id} as appended")
            break
    last = (
        promised.possible[len(found.records) - 1].transaction_id
        if 0 < len(found.records) <= len(promised.possible)
        else -1
    )
    if found.max_transaction_id != last and not found.quarantined:
        failures.append(f"says its last transaction is {found.max_transaction_id}, but {last} is the last that reads")
    if found.marks not in promised.marks:
        failures.append(f"marks {found.marks}, promised {sorted(promised.marks)}")
    failures += _switches_and_fence(promised, found)
    if found.quarantined and not out_of_order(number, promised, tree):
        failures.append(f"quarantined although its un-synced bytes were not persisted out of order: {found.findings}")
    return failures


def out_of_order(number: int, promised: PartitionTruth, tree: Tree) -> bool:
    """Whether a record in flight is whole on the disk while one in front of it is not.

    This is the only case in which a crash looks like damage to acknowledged data: valid records follow invalid bytes.  An
    engine cannot tell these from a bit flip in records that a client was told about, so it has to keep every byte and refuse
    writes.  Records that are being removed were whole before, so while a cut is under way nothing excuses a quarantine.
    """
    if promised.cutting:
        return False
    contents = [
        data for name, data in tree.files.items() if name.startswith(f"{number}/") and name.endswith(SEGMENT_SUFFIX)
    ]
    whole = [any(record.encode() in data for data in contents) for record in promised.possible[promised.least :]]
    return any(later and not earlier for place, earlier in enumerate(whole) for later in whole[place + 1 :])


def narrowed(truth: Truth, seen: Seen) -> Truth:
    """What must hold from now on, once an opened directory has shown itself: the same again, and nothing less."""
    if seen.error is not None:
        return truth
    partitions = {}
    for number, promised in truth.partitions.items():
        found = seen.partitions.get(number)
        if found is None:
            other = seen.others.get(number, FORGOTTEN)
            partitions[number] = replace(
                promised,
                assigned=frozenset({False}),
                marks=frozenset({other.marks}),
                switches=frozenset({other.switches}),
                fences=frozenset({other.fence}),
            )
            continue
        count = len(found.records)
        partitions[number] = replace(
            promised,
            possible=promised.possible if found.quarantined else promised.possible[:count],
            least=count,
            marks=frozenset({found.marks}),
            assigned=frozenset({True}),
            switches=frozenset({found.switches}),
            fences=frozenset({found.fence}),
        )
    return replace(truth, partitions=MappingProxyType(partitions), exists=frozenset({True}))
