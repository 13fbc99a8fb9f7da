"""The storage directories to compare: check that they are of one cluster, and find the replicas of each partition."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath

from waltzctl.engine.compare.replica_reading import PartitionReplica, Segment
from waltzctl.engine.errors import InvalidRequestError, MismatchError, NotWaltzError
from waltzctl.engine.findings import Code, Finding
from waltzctl.engine.findings.control_files import control_missing, control_short
from waltzctl.engine.findings.directory_contents import ledger_damaged
from waltzctl.engine.inspect.control_checks import ControlState, inspect_control
from waltzctl.engine.inspect.partition_runs import PartitionRun, runs
from waltzctl.engine.inspect.read_limits import ReadLimits
from waltzctl.engine.inspect.targets import Scope, ScopeSurroundings
from waltzctl.engine.log import places
from waltzctl.engine.log.cluster_keys import SalvagedCluster
from waltzctl.engine.log.evidence import evidence
from waltzctl.engine.log.target import TargetKind, resolve
from waltzctl.engine.log.view import PartitionView, StorageView, check_partitions, view_storage
from waltzctl.engine.quorum.vote import Ballot
from waltzctl.engine.storage.assignment import is_hosted
from waltzctl.engine.storage.loss_ledger import ledger_path, read_ledger, still_lost
from waltzctl.formats.accepted_losses import Ledger
from waltzctl.formats.control import ControlFile, PartitionInfo, struct_in_force

_UNLISTED_ADVICE = "the replica has no vote in this partition; compare again when its disk answers"


@dataclass(frozen=True, slots=True)
class Member:
    """A replica of one partition in the storage directory `path`.

    `ballot`: session and marks.  `replica`: the segments to read; None when the partition's directory is missing, or cannot be
    listed.  `held_to`: the last transaction that it is proven to have held, None when unknown.  `open_end`: the data file at its
    end is no regular one, or cannot be examined.  `files`: how many files of segments were listed.
    """

    path: PurePath
    ballot: Ballot
    replica: PartitionReplica | None
    held_to: int | None = None
    open_end: bool = False
    files: int = 0


@dataclass(frozen=True, slots=True)
class Directories:
    """The given directories, in that order, and the cluster key and number of partitions that their control files share.

    `held`: whether a process has the directory locked.  `ledgers`: accepted losses.  `stood`: device and inode before it was
    listed.  All by directory.
    """

    views: tuple[StorageView, ...]
    cluster_key: uuid.UUID
    num_partitions: int
    held: tuple[bool, ...]
    ledgers: tuple[Ledger, ...]
    stood: tuple[places.Standing | None, ...]

    def members(self, partition: int) -> tuple[Member, ...]:
        """The replicas of a partition; a replica's number is its place in the result."""
        found: list[Member] = []
        for view, held, ledger in zip(self.views, self.held, self.ledgers, strict=True):
            if belongs(view, partition):
                found.append(self._member(len(found), view, partition, ledger, held=held))
        return tuple(found)

    def _member(self, number: int, view: StorageView, partition: int, ledger: Ledger, *, held: bool) -> Member:
        current = struct_in_force(view.control, partition)
        directory = view.partitions.get(partition)
        marks = (None, None, None) if current is None else current.marks
        ballot = replace(Ballot(directory is not None, *marks), unread=partition in view.unlisted)
        if directory is None:
            return Member(view.path, ballot, None)
        mark = ballot.local_low_water_mark
        given_up = ledger.of_partition(partition)
        found = evidence(directory, mark, [one for one in given_up if still_lost(one, (), mark)])
        proven = found.next_id
        known = mark is not None or proven > 0
        replica = PartitionReplica(
            number,
            view.path,
            partition,
            self.cluster_key,
            mark,
            segments_of(directory),
            held,
            found.required - 1,
        )
        return Member(
            view.path, ballot, replica, proven - 1 if known else None, directory.special_end is not None,
            sum(one is not None for part in directory.segments for one in (part.data, part.index)),
        )  # fmt: skip

    def findings(self, partitions: Collection[int]) -> Iterator[Finding]:
        """Findings about what partitions have in common: ledgers, and control files with the infos of hosted `partitions`."""
        for view, ledger in zip(self.views, self.ledgers, strict=True):
            if ledger.fault is not None:
                yield ledger_damaged(ledger_path(view.path), ledger, view.path)
            control, state = view.control, view.control_state
            if control is None:
                found = (
                    control_missing(view.control_path, view.path)
                    if state is None
                    else control_short(view.control_path, state.size, view.path)
                )
                yield SalvagedCluster(view.path).named(found)
                continue
            hosted = {number for number in partitions if belongs(view, number)}
            for one in inspect_control(view.control_path, view.path, hosted).findings:
                if one.code is not Code.CONTROL_STRUCT_CHECKSUM:  # the other struct is in force: every mark is known
                    yield one

    def runs(self, partitions: Collection[int]) -> tuple[dict[int, PartitionRun], ...]:
        """The `PartitionRun`s of each directory by partition, for findings about a partition as a whole."""
        found: list[dict[int, PartitionRun]] = []
        for view, held, ledger, place in zip(self.views, self.held, self.ledgers, self.stood, strict=True):
            scope = Scope(view.path, view.control_path, whole=True, place=place)
            for number, listed in view.partitions.items():
                partition = scope.partition(listed.path, number)
                partition.whole, partition.view = True, listed
            for number, error in view.unlisted.items():
                partition = scope.partition(view.path / str(number), number)
                partition.whole, partition.error = True, error
                error.advice = error.advice or _UNLISTED_ADVICE
            around = ScopeSurroundings(ControlState(view.control), held, self.cluster_key, (), ledger)
            every = runs(scope, around, ReadLimits(), partitions)
            found.append({one.context.number: one for one in every if one.context.number is not None})
        return tuple(found)


def segments_of(directory: PartitionView) -> tuple[Segment, ...]:
    """The segments of a partition, each with the first id of the next one that has a data file."""
    found: list[Segment] = []
    stop = None
    for one in reversed(directory.segments):
        found.append(Segment(one, stop))
        stop = stop if one.data is None else one.first_transaction_id
    return tuple(reversed(found))


def info_of(control: ControlFile | None, partition: int) -> PartitionInfo | None:
    """A partition's info in a control file; None when there is none."""
    if control is None or not 0 <= partition < len(control.partitions):
        return None
    return control.partitions[partition]


def belongs(view: StorageView, partition: int) -> bool:
    """Whether a directory is a replica of a partition."""
    there = partition in view.partitions or partition in view.unlisted
    return is_hosted(view.path, view.control, partition, directory=there)


def open_directories(paths: Sequence[PurePath], partitions: Collection[int] | None) -> Directories:
    """Open every directory, read-only.

    Raises InvalidRequestError for fewer than two directories, for one given twice and for an impossible partition, NotWaltzError,
    MismatchError when cluster keys or numbers of partitions differ, DiskReadError.
    """
    if len(paths) < 2:
        raise InvalidRequestError(
            "one replica alone cannot be compared", advice="name the storage directories of at least two replicas"
        )
    known: dict[str, PurePath] = {}
    for path in paths:
        target = resolve(path)
        if target.kind is not TargetKind.STORAGE:
            raise NotWaltzError(
                f"{path}: a {target.kind}, not a storage directory", advice="compare takes those of whole nodes"
            )
        if (earlier := known.get(places.identity(path))) is not None:
            raise InvalidRequestError(f"{path}: the same directory as {earlier}; a replica is compared with others")
        known[places.identity(path)] = path
    stood = tuple(places.standing(path) for path in paths)
    views = tuple(_view(path, partitions) for path in paths)
    controls = [(view.path, view.control) for view in views if view.control is not None]
    if not controls:
        raise NotWaltzError(
            f"{paths[0]} and the others: no usable control file, so that nothing tells which cluster they belong to",
            advice="bring one of the control files back from a backup",
        )
    first, reference = controls[0]
    for path, control in controls:
        wanted, found = reference.header, control.header
        if found.cluster_key != wanted.cluster_key:
            raise MismatchError(
                f"{path}: the cluster key is {found.cluster_key}, that of {first} is {wanted.cluster_key}",
                advice="replicas of different clusters have nothing in common",
            )
        if found.num_partitions != wanted.num_partitions:
            raise MismatchError(
                f"{path}: {found.num_partitions} partitions, {first} has {wanted.num_partitions}",
                advice="verify tells which of the two control files is damaged",
            )
    longest = max((control for _, control in controls), key=lambda one: (one.size_fits, len(one.partitions)))
    if partitions is not None:
        check_partitions(longest, partitions)
    held = tuple(places.lock_holder(view.path, view.control_path) is not None for view in views)
    ledgers = tuple(read_ledger(view.path) for view in views)
    return Directories(views, reference.header.cluster_key, len(longest.partitions), held, ledgers, stood)


def _view(path: PurePath, partitions: Collection[int] | None) -> StorageView:
    try:
        return view_storage(path, partitions, each_alone=True)
    except NotWaltzError:  # the path is a storage directory, so it only lacks the requested partitions
        return StorageView(path, None, None, {})
