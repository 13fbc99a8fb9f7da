"""Resolves the paths of a command line to the files to inspect: each file once, grouped by storage directory (`Scope`)."""

from __future__ import annotations

import errno
import uuid
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import PurePath

from waltzctl.engine.errors import DiskReadError, NotWaltzError
from waltzctl.engine.findings import Code, Finding, make_finding, remedy_for
from waltzctl.engine.inspect.control_checks import ControlState, inspect_control
from waltzctl.engine.inspect.segment_job import SegmentJob, jobs_of
from waltzctl.engine.log import places
from waltzctl.engine.log.cluster_keys import SalvagedCluster, is_intact
from waltzctl.engine.log.partition_directories import (
    entry_kinds,
    mounted,
    partition_number,
    unmounted,
    unmounted_errors,
)
from waltzctl.engine.log.target import TargetKind, resolve
from waltzctl.engine.log.view import (
    FileState,
    PartitionView,
    SegmentView,
    check_partitions,
    read_control,
    read_segment_header,
    view_partition,
    view_storage,
)
from waltzctl.engine.storage.loss_ledger import read_ledger
from waltzctl.formats.accepted_losses import Ledger
from waltzctl.formats.control import CONTROL_FILE_NAME, CONTROL_HEADER, ControlFile, struct_in_force
from waltzctl.formats.segment import SEGMENT_SUFFIX, parse_name

_HEADERS_COMPARED = 1000
"""Data files whose headers are read, at most, to find out whether the cluster key in the control file is the wrong one."""


@dataclass(slots=True)
class PartitionScope:
    """A partition directory to inspect, or some of its segments.

    `whole`: inspect everything in it.  `files`: data or index files that were named individually.  `view`: the listing; None if
    the directory does not exist or could not be listed, because of `error`.
    """

    path: PurePath
    number: int | None
    whole: bool = False
    files: list[PurePath] = field(default_factory=list)
    view: PartitionView | None = None
    error: DiskReadError | None = None

    def names(self, path: PurePath) -> bool:
        """Whether a data or index file, or the other file of the same segment, is to be inspected."""
        return self.whole or any(one.stem == path.stem for one in self.files)


@dataclass(slots=True)
class Scope:
    """Everything to inspect in one storage directory, or in a partition directory outside of one.

    ================= ==========================================================================================
    `storage`         the storage directory; None outside of one
    `control_path`    its control file, with which the partitions are compared; None outside of one
    `whole`           the storage directory itself was named
    `check_control`   check the control file itself as well
    `partitions`      by a key that is the same for all paths to a directory
    `temporary`       files in `storage` that a process was writing when it ended
    `unknown`         other entries in `storage` that are not part of Waltz
    `place`           `places.standing` of `root` before it was listed; None where that is not known
    ================= ==========================================================================================
    """

    storage: PurePath | None
    control_path: PurePath | None
    whole: bool = False
    check_control: bool = False
    partitions: dict[str, PartitionScope] = field(default_factory=dict)
    temporary: tuple[PurePath, ...] = ()
    unknown: tuple[PurePath, ...] = ()
    place: places.Standing | None = None

    @property
    def root(self) -> PurePath | None:
        """The storage directory, or the partition directory outside of one; None for a control file outside of one."""
        return next((one.path for one in self.partitions.values()), None) if self.storage is None else self.storage

    def moved(self) -> bool:
        """Whether `root` is no longer where it was, or another directory is; True once only."""
        if self.root is None or not places.is_moved(self.root, self.place):
            return False
        self.place = None
        return True

    def partition(self, path: PurePath, number: int | None) -> PartitionScope:
        """The scope of a partition directory, created at the first call.

        In a storage directory a partition is identified by its name, as for a node: a link to the directory of another partition
        is a second partition with the same files.
        """
        own = self.storage is not None and number is not None
        key = f"{places.identity(path.parent)}/{path.name}" if own else places.identity(path)
        return self.partitions.setdefault(key, PartitionScope(path, number))

    def data_bytes(self) -> int:
        """Bytes in the data files of everything in this scope."""
        return sum(segment.data.size for segment in self._segments() if segment.data is not None)

    def index_bytes(self) -> int:
        """Bytes in the index files of everything in this scope."""
        return sum(segment.index.size for segment in self._segments() if segment.index is not None)

    def _segments(self) -> Iterator[SegmentView]:
        for partition in self.partitions.values():
            for segment in () if partition.view is None else partition.view.segments:
                if partition.names(segment.data_path):
                    yield segment

    def segment_jobs(self, partition: PartitionScope, template: SegmentJob) -> Iterator[SegmentJob]:
        """The segments to check, in the order of their names; `template` has the values of the partition."""
        view = partition.view
        yield from (job for job in ([] if view is None else jobs_of(view, template)) if partition.names(job.data_path))
        if not partition.whole:
            yield from _odd_names(partition, template)


def _odd_names(partition: PartitionScope, template: SegmentJob) -> Iterator[SegmentJob]:
    """Data files that were named on the command line and whose names are not those of segments."""
    done = set()
    for path in partition.files:
        data = path if path.name.endswith(SEGMENT_SUFFIX) else path.with_suffix(SEGMENT_SUFFIX)
        state = FileState.of(data)
        if parse_name(data.name) is not None or data.name in done or state is None:
            continue
        done.add(data.name)
        header = read_segment_header(state)
        first = 0 if header is None else header.first_transaction_id
        yield replace(template, first=first, last=True, bytes=state.size, following=None, name=data.name)


def plan(paths: Iterable[PurePath], partitions: Collection[int] | None) -> list[Scope]:
    """The scopes of all `paths`, restricted to `partitions` (None: all).

    Raises NotWaltzError, DiskReadError; InvalidRequestError for a partition that does not exist, or that contradicts a path.
    """
    scopes: dict[str, Scope] = {}
    for path in paths:
        target = resolve(path)
        target.selected(partitions)
        if target.kind is TargetKind.CONTROL:
            storage = target.storage
            key = places.identity(path.parent if storage is not None else path)
            scopes.setdefault(key, Scope(storage, path)).check_control = True
        elif target.kind is TargetKind.STORAGE:
            scope = _scope_of(scopes, path)
            scope.whole = scope.check_control = True
        else:
            directory = path if target.kind is TargetKind.PARTITION else path.parent
            scope = _loose(scopes, directory) if target.storage is None else _scope_of(scopes, target.storage)
            wanted = scope.partition(directory, target.partition)
            if target.kind is TargetKind.PARTITION:
                wanted.whole = True
            else:
                wanted.files.append(path)
    for scope in scopes.values():
        _look(scope, partitions)
    return list(scopes.values())


def _scope_of(scopes: dict[str, Scope], storage: PurePath) -> Scope:
    key = places.identity(storage)
    return scopes.setdefault(key, Scope(storage, storage / CONTROL_FILE_NAME))


def _loose(scopes: dict[str, Scope], directory: PurePath) -> Scope:
    return scopes.setdefault(places.identity(directory), Scope(None, None))


def _look(scope: Scope, partitions: Collection[int] | None) -> None:
    if scope.root is not None:
        scope.place = places.standing(scope.root)
    if scope.whole:
        assert scope.storage is not None
        _look_at_storage(scope, scope.storage, partitions)
    elif scope.check_control and partitions is not None and scope.control_path is not None:
        with suppress(DiskReadError):  # which is a finding
            check_chosen(read_control(scope.control_path), partitions)
    for partition in scope.partitions.values():
        try:
            if partition.error is None:
                partition.view = view_partition(partition.path, partition.number)
        except DiskReadError as error:
            partition.error = error
        except NotWaltzError:
            pass  # it went away while we looked, or cannot be listed
        if partition.error is None and (path := _unlisted(partition)) is not None:
            cause = OSError(errno.ENOENT, f"the listing does not have {path.name}, which is there")
            partition.view, partition.error = None, DiskReadError(partition.path, None, cause, doing="list")


def _unlisted(partition: PartitionScope) -> PurePath | None:
    """A file that was named, and that is there though its directory's listing lacks it: not every web server has listings."""
    segments = () if partition.view is None else partition.view.segments
    listed = {segment.data_path.stem for segment in segments}
    named = (one for one in partition.files if parse_name(one.name) is not None and one.stem not in listed)
    return next((one for one in named if places.still_named(one)), None)


def _look_at_storage(scope: Scope, storage: PurePath, partitions: Collection[int] | None) -> None:
    try:
        view = view_storage(storage, ())
    except NotWaltzError:
        # no control file: only partitions make it a storage directory
        view = view_storage(storage, partitions, each_alone=True)
    scope.temporary, scope.unknown = view.temporary, view.unknown
    if partitions is not None:
        check_chosen(view.control, partitions)
    kinds = entry_kinds(storage)
    for number in (there := mounted(kinds)):
        if partitions is None or number in partitions:
            scope.partition(storage / str(number), number).whole = True
    errors = unmounted_errors(storage, view.control, unmounted(kinds))
    known = {*there, *errors}  # also those whose disks were mounted since
    scope.unknown = tuple(one for one in view.unknown if partition_number(one.name) not in known)
    for number, error in errors.items():
        if partitions is None or number in partitions:
            partition = scope.partition(storage / str(number), number)
            partition.whole, partition.error = True, error


def check_chosen(control: ControlFile | None, partitions: Collection[int]) -> None:
    """As `check_partitions`, where the control file tells how many there are."""
    if control is not None and control.size_fits:
        check_partitions(control, partitions)


@dataclass(frozen=True, slots=True)
class ScopeSurroundings:
    """The control file, lock and ledger of a scope, with which everything else is compared.

    `held`: a process holds the directory's lock.  `cluster_key`: the one with which headers are compared.  `findings`: those
    about the control file.  `ledger`: the accepted losses; `ledger_error`: the system's error with which it could not be read.
    """

    state: ControlState
    held: bool
    cluster_key: uuid.UUID | None
    findings: tuple[Finding, ...]
    ledger: Ledger = Ledger()  # noqa: RUF009  # frozen
    ledger_error: DiskReadError | None = None

    @property
    def control(self) -> ControlFile | None:
        """The control file as decoded."""
        return self.state.control

    def local_low_water_mark(self, partition: int | None) -> int | None:
        """The local low-water mark in force; None where it is not known."""
        current = struct_in_force(self.control, partition)
        return None if current is None else current.local_low_water_mark

    def session_id(self, partition: int | None) -> int | None:
        """The session id in force; None where it is not known."""
        current = struct_in_force(self.control, partition)
        return None if current is None else current.session_id


def look_around(scope: Scope, partitions: Collection[int] | None, *, exclusive: bool = False) -> ScopeSurroundings:
    """Read and check the control file of a scope, also whether its cluster key is wrong, as all segments have another one."""
    if scope.control_path is None:
        return ScopeSurroundings(ControlState(None), False, None, ())
    storage = scope.storage
    held = storage is not None and places.lock_holder(storage, scope.control_path) is not None
    wanted = partitions
    if not scope.check_control:
        wanted = [one.number for one in scope.partitions.values() if one.number is not None]
    state = inspect_control(scope.control_path, storage, wanted, exclusive=exclusive)
    findings = [
        one for one in state.findings if scope.check_control or one.partition is not None or state.control is None
    ]
    key = None if state.control is None else state.control.header.cluster_key
    actual = _key_of_all(scope, key)
    if key is None:
        key = actual
    elif actual is not None:
        found = make_finding(
            Code.SEGMENT_KEY,
            scope.control_path,
            f"the control file's cluster key is {key}, every segment's header says {actual}",
            offset=CONTROL_HEADER.offset_of("cluster_key"),
            length=CONTROL_HEADER.size_of("cluster_key"),
        )
        # nothing tells whether the rest of it is this node's: as without a control file, no repair has a place to begin
        missing = Code.CONTROL_FILE_MISSING
        findings.append(replace(found, remedy=remedy_for(missing, storage, None), waits_for=missing))
        key = actual
    named = map(SalvagedCluster(storage).named, findings)
    return ScopeSurroundings(state, held, key, tuple(named), *_ledger(storage))


def _ledger(storage: PurePath | None) -> tuple[Ledger, DiskReadError | None]:
    """The ledger, and the error if it could not be read: then, too, not all accepted losses are known."""
    if storage is None:
        return Ledger(), None
    try:
        return read_ledger(storage), None
    except DiskReadError as error:
        return Ledger(fault=str(error)), error


def _key_of_all(scope: Scope, key: uuid.UUID | None) -> uuid.UUID | None:
    """The cluster key that all data files with intact headers have, if it is not `key` and there are at least two of them.

    If `key` is None, the most frequent one.
    """
    seen: Counter[uuid.UUID] = Counter()
    for partition in scope.partitions.values():
        for segment in () if partition.view is None else partition.view.data_segments:
            try:
                header = read_segment_header(segment.data)
            except DiskReadError:
                continue
            if header is None:
                continue
            if header.cluster_key == key:
                return None
            if key is None or is_intact(header, partition.number, segment.first_transaction_id):
                seen[header.cluster_key] += 1
            if sum(seen.values()) >= _HEADERS_COMPARED:
                break
    if key is None:
        return max(seen, key=seen.__getitem__, default=None)
    return next(iter(seen)) if len(seen) == 1 and sum(seen.values()) > 1 else None
