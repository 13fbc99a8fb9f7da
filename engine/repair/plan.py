"""Plans: what a repair would do, bound by a hash to the files as they are.

A plan is made read-only: no lock is taken, nothing is written.  Its hash covers the command, its arguments, every step,
every edit, the name, size and time of every file in the partitions looked at, and the SHA-256 of the control file, of every
file that is touched and of every replica file that is read.  A plan whose hash comes out differently is stale.

Nobody is kept from writing while a plan is made, which may take minutes.  So the files that the planner reads are noted before it
reads the first one (`PlanDraft`): what is written meanwhile makes the plan stale, as what is written afterwards does.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, TypeAlias

from waltzctl.engine.durable.edits import Cut, Edit, MoveDirectory, Overwrite, Replace
from waltzctl.engine.durable.execution import check_edits
from waltzctl.engine.durable.file_status import names_in
from waltzctl.engine.durable.manifest import partitions_of
from waltzctl.engine.durable.restore import stamp
from waltzctl.engine.errors import DiskReadError, NotWaltzError, RefusedError, StalePlanError
from waltzctl.engine.findings import Code, Finding, Ran, left_by, make_finding
from waltzctl.engine.findings.control_files import control_missing
from waltzctl.engine.findings.obstacles import held_back
from waltzctl.engine.log.cluster_keys import SalvagedCluster
from waltzctl.engine.log.partition_directories import partition_directories
from waltzctl.engine.log.places import local, may_be_directory
from waltzctl.engine.log.target import resolve
from waltzctl.engine.log.view import FileState, PartitionView, StorageView
from waltzctl.engine.repair.arguments import Arguments
from waltzctl.engine.storage.journal_state import refuse_marked
from waltzctl.engine.storage.loss_ledger import ledger_path
from waltzctl.engine.storage.store import STATE_FILES, interrupted
from waltzctl.formats.accepted_losses import AcceptedLoss
from waltzctl.formats.control import CONTROL_FILE_NAME, ControlFile
from waltzctl.formats.segment import parse_name

if TYPE_CHECKING:
    from waltzctl.engine.repair.replicas import ReplicaSegments

FileSeen: TypeAlias = tuple[str, int, int]
"""Name, size in bytes and modification time in ns of a file."""


_NO_DIGEST = "changed"
"""In the place of a digest: of a file that was another one behind its reading than before."""
_THERE = "there"
"""In the place of a digest: of a directory that is there, or cannot be examined."""


@dataclass(frozen=True, slots=True)
class Step:
    """One thing that a plan does.

    `action` is a stable identifier.  Transaction ids are inclusive on both ends; offset and length are in bytes of the file
    before the repair.  A field that does not apply is None.  `loses_data`: the step gives up records, marks or bytes that may
    have been acknowledged.
    """

    action: str
    path: PurePath
    partition: int | None
    from_transaction_id: int | None
    to_transaction_id: int | None
    offset: int | None
    length: int | None
    reason: str
    loses_data: bool = False


@dataclass(frozen=True, slots=True)
class Plan:
    """The steps of a repair, and the findings that it leaves for an operator to decide (`undecided`)."""

    hash: str
    command: str
    path: PurePath
    arguments: Arguments
    steps: tuple[Step, ...]
    undecided: tuple[Finding, ...]

    @property
    def loses_data(self) -> bool:
        """Whether any step loses data."""
        return any(step.loses_data for step in self.steps)


@dataclass(frozen=True, slots=True)
class Binding:
    """The state of the files that a plan was made for.

    `listing`: name, size in bytes and modification time in ns of every file looked at.  `digests`: name and SHA-256 of the
    control file, of each file to be edited and of each replica file to be read (see `_source_digest`); None for a file that does
    not exist, and for another replica's directory that has to be missing.
    """

    listing: tuple[FileSeen, ...]
    digests: tuple[tuple[str, str | None], ...]

    def changed(self, now: Binding) -> str | None:
        """The name of a file that is another one by `now`, None where all are the same."""
        names = {one[0] for one in {*self.listing} ^ {*now.listing}}
        return min(names | {one[0] for one in {*self.digests} ^ {*now.digests}}, default=None)


@dataclass(frozen=True, slots=True)
class NotedFiles:
    """What was noted of files before they were read.

    `listings`: as in `Binding`, by partition; None: beside the partitions.  `digests`: SHA-256 of a file; None: it is not there.
    `stood`: device and inode of the directory and of those of its partitions before; empty where nobody asked.
    """

    listings: dict[int | None, list[FileSeen]] = field(default_factory=dict)
    digests: dict[PurePath, str | None] = field(default_factory=dict)
    stood: dict[PurePath, tuple[int, int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Repair:
    """A plan with the edits that carry it out.

    `partitions`: those whose files the planner looked at.  `sources`: replica files that the repair reads.  `missing`: other
    replicas' directories of a partition without which the replicas agreed to give records up.  `roll_back`: the
    only step is to take back an interrupted repair.  `of_marked`: the repair may run while a commit journal is in force: it
    only takes the journal out of force, or mends what keeps the journal from being written back.  `unread`: a replica could not
    be read, so that to give up the records is not what comes next.  `unlisted`: partitions whose directories could not be listed:
    nothing is planned for them, so that the plan holds whether they answer again or not.
    """

    plan: Plan
    storage: Path
    edits: tuple[Edit, ...]
    partitions: tuple[int, ...]
    binding: Binding
    sources: tuple[PurePath, ...]
    roll_back: bool
    of_marked: bool = False
    unread: bool = False
    unlisted: tuple[int, ...] = ()
    missing: tuple[PurePath, ...] = ()

    @property
    def ran(self) -> Ran:
        """The command and its options, from which the remedy in each remaining finding follows."""
        return _ran(self.plan.command, self.plan.arguments, unread=self.unread)

    def check_current(self) -> None:
        """Raises StalePlanError naming a file when it is not as it was when the plan was made; DiskReadError."""
        now = bind(self.storage, self.partitions, self.edits, self.sources, missing=self.missing)
        changed = self.binding.changed(now)
        if changed is not None and changed in map(str, self.missing):
            raise _returned(changed)
        if changed is not None:
            raise _stale(self.storage / changed)

    def check_sources(self) -> None:
        """Raises StalePlanError naming a replica file that changed since the plan was made; DiskReadError.

        No lock keeps a replica as it is: what was built of its files counts only if they are the same behind that as before.
        """
        known = {*self.binding.digests}
        for name, digest in _digests(None, self.sources):
            if (name, digest) not in known:
                raise _stale(Path(name))


def _ran(command: str, arguments: Arguments, *, unread: bool) -> Ran:
    return Ran(command, arguments.options - ({"--from"} if unread else set()))


def _stale(path: Path) -> StalePlanError:
    return StalePlanError(
        f"{path}: changed since the plan was made; nothing was modified", advice="make the plan again"
    )


def _returned(path: PurePath | str) -> StalePlanError:
    return StalePlanError(
        f"{path}: was missing when the replicas were compared, and is there now; nothing was modified",
        advice="compare again",
    )


def note(storage: Path, partitions: Iterable[int] | None) -> NotedFiles:
    """Note the control file and the files of partitions, None: of all.

    A plan for a partition that cannot be listed now is stale: nobody knows what was written since.  Raises NotWaltzError,
    DiskReadError.
    """
    numbers = partition_directories(storage) if partitions is None else partitions
    control = storage / CONTROL_FILE_NAME
    listings: dict[int | None, list[FileSeen]] = {None: _listed(storage, None)}
    listings |= {number: _noted(storage, number) for number in numbers}
    return NotedFiles(listings, {control: _digest(control)})


def _noted(storage: Path, partition: int) -> list[FileSeen]:
    try:
        return _listed(storage, partition)
    except DiskReadError:  # where it matters, the planner tells it
        return _no_listing(partition)


def _no_listing(partition: int) -> list[FileSeen]:
    """What stands for a partition in a plan that is stale, whatever is there."""
    return [(str(partition), -1, -1)]


def bind(
    storage: Path,
    partitions: Iterable[int],
    edits: Iterable[Edit],
    sources: Iterable[PurePath] = (),
    *,
    seen: NotedFiles | None = None,
    missing: Iterable[PurePath] = (),
) -> Binding:
    """The state of a storage directory as far as it matters for a plan.  Raises DiskReadError.

    `seen`: what was noted earlier, which stands for what is there now.  `missing`: see `Repair`.
    """
    seen = seen or NotedFiles()
    listing: list[FileSeen] = []
    for number in (None, *sorted(set(partitions))):
        noted = seen.listings.get(number)
        listing += _listed(storage, number) if noted is None else noted
    matter = {storage / CONTROL_FILE_NAME, *(edit.path for edit in edits)}
    digests = [
        *_digests(storage, sorted(matter), seen.digests),
        *_digests(None, sorted(set(sources)), seen.digests),
        *((str(path), seen.digests[path] if path in seen.digests else _there(path)) for path in sorted(set(missing))),
    ]
    return Binding(tuple(listing), tuple(digests))


def _listed(storage: Path, partition: int | None) -> list[FileSeen]:
    """The files of a partition; None: what matters beside the partitions.  Raises DiskReadError."""
    if partition is None:
        return [*_states(storage, [storage / CONTROL_FILE_NAME, ledger_path(storage)])]
    directory = storage / str(partition)
    names = names_in(directory)
    # None: not there, or a file with a partition's name, which verify notes
    seen = [directory] if names is None else [directory / name for name in names]
    return [*_states(storage, seen)]


def _states(storage: PurePath, paths: Iterable[PurePath]) -> Iterable[FileSeen]:
    for path in paths:
        with contextlib.suppress(
            DiskReadError
        ):  # one that cannot be examined is a finding, and nothing is planned for it
            if (state := FileState.of(path)) is not None:
                yield path.relative_to(storage).as_posix(), state.size, state.modified_ns


def _digests(
    storage: PurePath | None, paths: Iterable[PurePath], seen: Mapping[PurePath, str | None] | None = None
) -> Iterable[tuple[str, str | None]]:
    for path in paths:
        name = str(Path(path).resolve()) if storage is None else path.relative_to(storage).as_posix()
        digest = _source_digest if storage is None else _digest
        yield name, seen[path] if seen is not None and path in seen else digest(path)


def _there(path: PurePath) -> str | None:
    return _THERE if may_be_directory(path) else None


def _digest(path: PurePath) -> str | None:
    found = stamp(path)
    return None if found is None else found.sha256


def _source_digest(path: PurePath) -> str | None:
    """As `_digest`; what stands for a file that cannot be read as a whole changes with its size, time and inode.

    A bad block keeps nothing from being taken that was read in front of it or behind it.
    """
    try:
        return _digest(path)
    except DiskReadError:
        state = FileState.of(path)
        if state is None:
            raise
        return f"unread: {state.size} {state.modified_ns} {state.inode}"


def _edit_key(storage: Path, edit: Edit) -> list[Any]:
    name = edit.path.relative_to(storage).as_posix()
    if isinstance(edit, Cut):
        return ["cut", name, edit.size]
    if isinstance(edit, Overwrite):
        return ["overwrite", name, edit.offset, hashlib.sha256(edit.data).hexdigest()]
    if isinstance(edit, MoveDirectory):
        return ["move", name, edit.target.relative_to(storage).as_posix()]
    if isinstance(edit, Replace):  # the new bytes are computed from files whose digests are in the binding
        return ["replace", name, edit.size]
    return ["remove", name]


@dataclass(slots=True)
class PlanDraft:
    """A plan under construction: planners add steps and edits, `finish` computes the hash.

    A planner makes the draft before it reads anything: what it looks at is noted then, or was by somebody who decided what is to
    be done (`seen`).

    `accepted` and `settled`: losses that the repair enters into the ledger and removes from it.  `of_marked`, `unread`,
    `unlisted` and `missing`: see `Repair`.  `_known`: the edits that `overwritten` has gone through, and where those of each file
    begin.  `_cluster`: the one whose records a salvage of the directory writes.
    """

    command: str
    path: PurePath
    storage: Path
    arguments: Arguments
    steps: list[Step] = field(default_factory=list)
    edits: list[Edit] = field(default_factory=list)
    undecided: list[Finding] = field(default_factory=list)
    partitions: set[int] = field(default_factory=set)
    sources: set[PurePath] = field(default_factory=set)
    roll_back: bool = False
    accepted: list[AcceptedLoss] = field(default_factory=list)
    settled: list[AcceptedLoss] = field(default_factory=list)
    of_marked: bool = False
    unread: bool = False
    unlisted: set[int] = field(default_factory=set)
    missing: set[PurePath] = field(default_factory=set)
    seen: NotedFiles = field(default_factory=NotedFiles)
    _known: tuple[list[Edit], dict[PurePath, set[int]]] = field(default_factory=lambda: ([], {}))
    _cluster: SalvagedCluster = field(init=False)

    def __post_init__(self) -> None:
        """Note the files that the planner is going to read, unless that was done earlier.  Raises DiskReadError."""
        asked = self.arguments
        self._cluster = SalvagedCluster(self.storage)
        if not self.seen.listings:
            # a roll-back may be of other partitions, and what it does is in its entry
            none = self.roll_back or (asked.partitions is None and (asked.forget_losses or asked.forget_journal))
            self.seen = note(self.storage, () if none else asked.partitions)

    def overwritten(self, path: PurePath) -> set[int]:
        """Where the planned overwrites of a file begin.

        Every partition may have one in the control file: only the edits are gone through that were not there before.
        """
        known, offsets = self._known
        if len(known) > len(self.edits) or (known and known[-1] is not self.edits[len(known) - 1]):
            known.clear()
            offsets.clear()
        for edit in self.edits[len(known) :]:
            if isinstance(edit, Overwrite):
                offsets.setdefault(edit.path, set()).add(edit.offset)
            known.append(edit)
        return offsets.get(path, set())

    def sees(self, partition: int, view: PartitionView | None) -> None:
        """Compare what is planned for with what was noted of a partition: a plan for anything else is stale.

        What went away and is back when the plan is carried out, as a directory whose disk is mounted anew, would be given up.
        """
        noted = self.seen.listings.get(partition)
        if noted is None:  # it was not there when the others were noted, and may be by now
            noted = self.seen.listings[partition] = _noted(self.storage, partition)
        segments = () if view is None else view.segments
        files = {(one.path, one.size, one.modified_ns) for part in segments for one in (part.data, part.index) if one}
        if files != {(self.storage / one[0], *one[1:]) for one in noted if parse_name(PurePath(one[0]).name)}:
            self.seen.listings[partition] = _no_listing(partition)

    def rests_on(self, missing: Iterable[PurePath]) -> None:
        """Bind the plan to directories that were missing when the replicas agreed.  Raises StalePlanError where one is there."""
        for path in missing:
            self.missing.add(path)
            self.seen.digests[path] = None
            if may_be_directory(path):
                raise _returned(path)

    def reads(self, path: PurePath) -> None:
        """Bind the plan to a small file beside the partitions, as it is now; call this before it is read."""
        self.sources.add(path)
        self.seen.digests[path] = _digest(path)

    def step(
        self,
        action: str,
        path: PurePath,
        partition: int | None,
        reason: str,
        *,
        ids: tuple[int, int] | None = None,
        offset: int | None = None,
        length: int | None = None,
        loses_data: bool = False,
    ) -> None:
        """Add a step; `ids` are the first and the last transaction concerned."""
        first, last = ids or (None, None)
        self.steps.append(Step(action, path, partition, first, last, offset, length, reason, loses_data))

    @property
    def ran(self) -> Ran:
        """The command and its options, from which the remedy in each remaining finding follows."""
        return _ran(self.command, self.arguments, unread=self.unread)

    def leave(self, finding: Finding, why: str | None = None) -> None:
        """Leave a finding, worded as every command words it, to the operator; `why` says why the plan does nothing about it."""
        said = finding if why is None else replace(finding, message=f"{finding.message}; {why}")
        self.undecided.append(self._cluster.named(left_by(said, self.storage, self.ran)))

    def leave_unread(self, partition: int, error: DiskReadError) -> None:
        """Leave a partition that cannot be read to the operator."""
        self.undecided.append(
            make_finding(
                Code.READ_ERROR, self.storage / str(partition), str(error), storage_directory=self.storage, partition=partition,
                ran=self.ran,
            )
        )  # fmt: skip

    def leave_unlisted(self, view: StorageView, control: ControlFile | None) -> None:
        """Leave the partitions of a control file (None: all) that cannot be listed: nothing is planned for them."""
        for number, error in sorted(view.unlisted.items()):
            if control is not None and number >= len(control.partitions):
                continue
            self.unlisted.add(number)
            what_next = f"nothing is planned for the partition; run {self.command} for it when its disk answers again"
            error.advice = error.advice or what_next
            self.leave_unread(number, error)

    def refuse_unsettled(self) -> None:
        """Raises RefusedError when the files are not in a settled state: a repair was interrupted, or a journal is in force.

        Callers run `plan_roll_back` first; this check catches a repair that was interrupted since.
        """
        self.refuse_interrupted()
        refuse_marked(self.storage)

    def refuse_interrupted(self) -> None:
        """Raises RefusedError when a repair was interrupted here: its files are neither old nor new."""
        if left := interrupted(self.storage):
            raise RefusedError(
                f"{self.storage}: the repair {left[0].id} was interrupted", advice="take it back with undo"
            )

    def finish(self, replicas: Iterable[ReplicaSegments] = ()) -> Repair:
        """Compute the hash and return the repair.  `replicas`: those that were read.

        Raises DiskReadError; RefusedError for an edit that cannot be carried out, or in a directory that cannot be locked.
        """
        if self.edits or self.roll_back:
            check_lockable(self.storage)
        check_edits(self.storage, self.edits, STATE_FILES)
        partitions = tuple(sorted(self.partitions))
        sources = tuple(sorted(self.sources))
        for path in sources:  # which may take minutes, so that whether they are what was read is asked behind it
            if path not in self.seen.digests:
                self.seen.digests[path] = _source_digest(path)
        for replica in replicas:
            # what is there now is not what was read: nothing has this digest, not even a file that is gone, so the plan is stale
            self.seen.digests.update(dict.fromkeys(replica.changed(self.sources), _NO_DIGEST))
        missing = tuple(sorted(self.missing))
        binding = bind(self.storage, partitions, self.edits, sources, seen=self.seen, missing=missing)
        steps = [{**asdict(step), "path": os.path.relpath(step.path, self.storage)} for step in self.steps]
        body = {
            "command": self.command,
            "storage": str(self.storage.resolve()),
            "arguments": self.arguments.as_object(),
            "steps": steps,
            "edits": [_edit_key(self.storage, edit) for edit in self.edits],
            "binding": asdict(binding),
            "roll_back": self.roll_back,
        }
        digest = hashlib.sha256(json.dumps(body, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
        plan = Plan(digest, self.command, self.path, self.arguments, tuple(self.steps), held_back(self.undecided))
        return Repair(
            plan, self.storage, tuple(self.edits), partitions, binding, sources, self.roll_back, self.of_marked, self.unread,
            tuple(sorted(self.unlisted)), missing,
        )  # fmt: skip


def check_lockable(storage: Path) -> None:
    """Raise RefusedError where no control file is, on which the lock is taken: nothing can be carried out there."""
    control = storage / CONTROL_FILE_NAME
    if not control.is_file():
        remedy = SalvagedCluster(storage).named(control_missing(control, storage)).remedy
        raise RefusedError(
            f"{control}: there is no control file, so that the directory cannot be locked; nothing was modified",
            advice=f"bring it back from a backup of this same node, or write the records into a new directory: {remedy}",
        )


def plan_roll_back(command: str, path: PurePath, arguments: Arguments) -> Repair | None:
    """The plan to roll back the interrupted repairs in the storage directory of `path`; None when there are none.  Read-only.

    It has to be carried out before `command` can be planned: the interrupted repair has changed some files and not others.
    Raises DamageError for a manifest that cannot be used, DiskReadError.
    """
    try:
        storage = resolve(path).storage
    except NotWaltzError:
        return None  # the command's own planner raises the fitting error
    entries = () if storage is None else interrupted(local(storage))
    if storage is None or not entries:
        return None
    draft = PlanDraft(command, path, local(storage), arguments, roll_back=True)
    for entry in entries:
        touched = partitions_of(entry)
        only = next(iter(touched)) if len(touched) == 1 else None
        draft.step("roll-back", storage, only, f"the repair {entry.id} was interrupted; this comes before {command}")
        draft.partitions |= touched
    return draft.finish()
