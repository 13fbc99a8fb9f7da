"""The division of a read into tasks: segments, parts of large segments, and small ones packed together.

A plan knows the names and sizes of files, and the headers of segments whose names do not follow from one another.  A part is, for
instance, "the third of five"; its task finds where exactly it begins, and so does the task of the part before it
(`engine.spark.segment_parts`).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path, PurePath
from typing import Protocol, TypeVar

from waltzctl.engine.errors import NotWaltzError
from waltzctl.engine.findings import Finding
from waltzctl.engine.inspect.partition_runs import PartitionRun, runs
from waltzctl.engine.inspect.read_limits import ReadLimits
from waltzctl.engine.inspect.segment_job import SegmentJob
from waltzctl.engine.inspect.targets import Scope, ScopeSurroundings, look_around, plan
from waltzctl.engine.log import places
from waltzctl.engine.log.target import TargetKind, resolve
from waltzctl.engine.log.view import view_storage
from waltzctl.engine.spark.selection import Selection
from waltzctl.formats.control import CONTROL_FILE_NAME

FLAT = 256 << 10
"""The cost of opening a segment, as bytes that could be read in that time."""
T = TypeVar("T")
_WILDCARDS = frozenset("*?[")


@dataclass(frozen=True, slots=True)
class SegmentPart:
    """Part `number` (from 0) of the `count` parts of a segment, and the ids to read of it.

    `entries`: the number of index entries when the read was planned; None: no index.  `first`, `last`: ids, inclusive; None: no
    bound.  `follower`: the next segment, whether it is to be read or not: the last part checks that the two join.  `whole`: the
    whole directory is read, and not only files of it that were named.
    """

    node: str
    job: SegmentJob
    entries: int | None
    number: int = 0
    count: int = 1
    first: int | None = None
    last: int | None = None
    follower: SegmentJob | None = None
    whole: bool = False

    @property
    def last_part(self) -> bool:
        """Whether it is the last part of its segment."""
        return self.number == self.count - 1

    @property
    def cost(self) -> int:
        """Bytes to read, about."""
        return self.job.bytes // self.count + FLAT

    @property
    def directory(self) -> PurePath:
        """The partition directory."""
        return self.job.directory


@dataclass(frozen=True, slots=True)
class Notice:
    """Findings that were known when the read was planned."""

    node: str
    findings: tuple[Finding, ...]

    @property
    def cost(self) -> int:
        """Hardly any: nothing has to be read."""
        return len(self.findings)

    @property
    def directory(self) -> PurePath | None:
        """None: nothing has to be read."""
        return None


@dataclass(frozen=True, slots=True)
class Surveyed:
    """The listing of a storage directory, or of partitions and files outside of any: its surroundings, the partitions to read."""

    scope: Scope
    around: ScopeSurroundings
    runs: tuple[PartitionRun, ...]


def survey(paths: Iterable[PurePath], selection: Selection) -> Iterator[Surveyed]:
    """List everything to read of all `paths`.

    Only control files are read, and headers of data files until one has the control file's cluster key.

    Raises NotWaltzError, InvalidRequestError, DiskReadError.
    """
    wanted = selection if selection.restricts_partitions else None
    limits = ReadLimits()
    named = [one for path in paths for one in expand(path)]
    if not selection.partitions.open:
        named = [path for path in _first_named(named) if _is_wanted(path, selection) and _holds_any(path, selection)]
    if selection.nodes is not None:
        named = list(_of_nodes(named, selection.nodes))
    for scope in plan(named, wanted):
        if not selection.partitions.open:  # a filter on the partition removes rows without one
            scope.partitions = {key: one for key, one in scope.partitions.items() if one.number in selection}
        around = look_around(scope, wanted)
        yield Surveyed(scope, around, tuple(runs(scope, around, limits, wanted)))


def expand(path: PurePath) -> list[PurePath]:
    """The storages of a path: itself, the matches of a pattern, or the storages in a directory.

    Raises NotWaltzError, DiskReadError.
    """
    if places.on_this_machine(path) and _WILDCARDS & set(str(path)) and not places.exists(path):
        import glob

        matches = [Path(match) for match in sorted(glob.glob(str(path)))]
        if not matches:
            raise NotWaltzError(f"{path}: nothing has a name of this pattern")
        return [one for match in matches for one in expand(match)]
    try:
        resolve(path)
    except NotWaltzError:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            inside = [path / name for name in places.names(path)]
            # also one whose control file is a dead link or cannot be examined: it is not passed over, and its findings tell that
            held = [one for one in inside if places.still_named(one / CONTROL_FILE_NAME) and not _closed(one)]
            if held:
                return held
        raise
    return [path]


def _closed(directory: PurePath) -> bool:
    """Whether no access to a directory hides what is in it, as in ``lost+found``, so that it is not known to be a storage."""
    try:
        if places.on_this_machine(directory):
            os.lstat(directory / CONTROL_FILE_NAME)
    except PermissionError:
        return True
    except OSError:
        return False
    return False


def _first_named(named: Iterable[PurePath]) -> Iterator[PurePath]:
    """Paths in which a storage that has several names has its first one, as in the column `node`."""
    names: dict[str, PurePath] = {}
    for path in named:
        storage = resolve(path).storage
        first = storage if storage is None else names.setdefault(places.identity(storage), storage)
        if storage is None or first is None or first == storage:
            yield path
        else:
            yield first / places.absolute(path).relative_to(places.absolute(storage))


def _of_nodes(named: Iterable[PurePath], nodes: frozenset[str]) -> Iterator[PurePath]:
    """The paths of these storages, and those outside of any storage.  A storage that is named twice has its first name."""
    names: dict[str, str] = {}
    for path in named:
        target = resolve(path)
        storage = path if target.kind is TargetKind.STORAGE else target.storage
        if storage is None or names.setdefault(places.identity(storage), text(storage)) in nodes:
            yield path


def _is_wanted(path: PurePath, selection: Selection) -> bool:
    """Whether the filters allow the partition that a path names.  Raises where an option contradicts the path."""
    target = resolve(path)
    target.selected(selection.named)
    return target.partition is None or target.partition in selection


def _holds_any(path: PurePath, selection: Selection) -> bool:
    """Whether a storage without a control file has a partition that the filters allow."""
    if resolve(path).kind is not TargetKind.STORAGE or places.exists(path / CONTROL_FILE_NAME):
        return True
    try:
        view_storage(path, selection)
    except NotWaltzError:
        return False
    return True


def node_of(scope: Scope, run: PartitionRun | None = None) -> str:
    """The value of the column `node`: the storage as it was named, or the directory of a partition outside of any storage."""
    if scope.storage is not None:
        return text(scope.storage)
    if run is not None:
        return text(run.context.path)
    return "" if scope.control_path is None else text(scope.control_path)


def text(path: PurePath | str) -> str:
    """A path as text for Spark: bytes that are no UTF-8 become replacement characters (U+FFFD)."""
    return str(path).encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def parts_of(run: PartitionRun, node: str, selection: Selection, split_size: int) -> Iterator[SegmentPart]:
    """The parts of a partition's segments to read, in order."""
    entries, ordered = run.order.entries, run.order.in_order()
    if ordered != run.jobs:
        ordered = run.order.in_order(asked=True)  # one name is wrong for certain: others may be that look right
    first, last = span = selection.ids.span()
    wanted = frozenset(job.first for job in run.order.holding(span))
    for job, behind in zip(ordered, [*ordered[1:], None], strict=False):
        if job.first not in wanted:
            continue
        known = entries.get(job.first)
        count = parts_for(_bytes_of(job, known, first, last), split_size)
        whole = SegmentPart(node, job, known, 0, count, first, last, whole=run.whole)
        for number in range(count):
            yield replace(whole, number=number, follower=behind if number == count - 1 else None)


def parts_for(size: int, split_size: int) -> int:
    """The number of parts of about `split_size` bytes; one where the second would be less than half of that."""
    return max(1, (size + split_size // 2) // split_size)


def _bytes_of(job: SegmentJob, entries: int | None, first: int | None, last: int | None) -> int:
    """Bytes of a segment to read, approximately."""
    if not entries or (first is None and last is None):
        return job.bytes
    low = max(0, (job.first if first is None else first) - job.first)
    high = min(entries, (job.first + entries if last is None else last + 1) - job.first)
    return job.bytes * max(1, high - low) // entries if low < entries else job.bytes


class Item(Protocol):
    """A unit of a task: a part, a notice, a search for missing transactions, a unit of another view."""

    @property
    def cost(self) -> int:
        """Bytes to read, about."""


def pack(items: Iterable[T], most: int, weight: Callable[[T], int]) -> Iterator[tuple[T, ...]]:
    """Pack neighbouring items: at most `most` bytes by `weight`, or a single item.  Weightless items never begin a packet."""
    packet: list[T] = []
    total = 0
    for item in items:
        own = weight(item)
        if total and own and total + own > most:
            yield tuple(packet)
            packet, total = [], 0
        packet.append(item)
        total += own
    if packet:
        yield tuple(packet)


def total(items: Iterable[Item]) -> int:
    """Bytes of data that a packet's items read, approximately."""
    return sum(item.cost for item in items)
