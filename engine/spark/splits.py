"""How a read is cut into tasks: segments or parts of large ones, small ones packed together.

A plan knows names and sizes, and the headers of segments whose names do not follow from one another.  A part is "the third of
five"; where exactly it begins is for its task to find out (see `engine.spark.segment_parts`), in a way that the task of the part
in front of it finds as well.
"""

from __future__ import annotations

import contextlib
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
from waltzctl.engine.log.view import TargetKind, resolve, view_storage
from waltzctl.engine.spark.selection import Selection
from waltzctl.formats.control import CONTROL_FILE_NAME

FLAT = 256 << 10
"""Bytes that could be read in the time that opening a segment takes."""
T = TypeVar("T")
_WILDCARDS = frozenset("*?[")


@dataclass(frozen=True, slots=True)
class SegmentPart:
    """SegmentPart `number` of the `count` into which a segment is cut, and what of it is wanted.

    `entries`: index entries when it was planned; None: no index.  `first`, `last`: ids, inclusive; None is no bound.
    `follower`: the segment behind this one, wanted or not; the last part tells whether the two join.
    """

    node: str
    job: SegmentJob
    entries: int | None
    number: int = 0
    count: int = 1
    first: int | None = None
    last: int | None = None
    follower: SegmentJob | None = None

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
        """Next to nothing."""
        return len(self.findings)

    @property
    def directory(self) -> PurePath | None:
        """None: nothing has to be read."""
        return None


@dataclass(frozen=True, slots=True)
class Surveyed:
    """A storage directory (or what lies outside any) as it was seen: its surroundings and the partitions that are wanted."""

    scope: Scope
    around: ScopeSurroundings
    runs: tuple[PartitionRun, ...]


def survey(paths: Iterable[PurePath], selection: Selection) -> Iterator[Surveyed]:
    """List what is wanted of all `paths`: each file is looked at once, and of its bytes only the control files' are read, and
    as many headers of data files as it takes to see one with the control file's key.

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
        if not selection.partitions.open:  # a filter on the partition removes what has none
            scope.partitions = {key: one for key, one in scope.partitions.items() if one.number in selection}
        around = look_around(scope, wanted)
        yield Surveyed(scope, around, tuple(runs(scope, around, limits, wanted)))


def expand(path: PurePath) -> list[PurePath]:
    """A path that names a storage, or what it stands for: a pattern's matches, or the storages that a directory holds.

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
            held = [one for one in inside if places.file_numbers(one / CONTROL_FILE_NAME) is not None]
            if held:
                return held
        raise
    return [path]


def _first_named(named: Iterable[PurePath]) -> Iterator[PurePath]:
    """The same paths below the first name of their storage: the column `node` has it, though a filter leaves that path out."""
    names: dict[str, PurePath] = {}
    for path in named:
        storage = resolve(path).storage
        first = storage if storage is None else names.setdefault(places.identity(storage), storage)
        if storage is None or first is None or first == storage:
            yield path
        else:
            yield first / places.absolute(path).relative_to(places.absolute(storage))


def _of_nodes(named: Iterable[PurePath], nodes: frozenset[str]) -> Iterator[PurePath]:
    """What belongs to these storages; what belongs to none stays.  A storage that is named twice has its first name."""
    names: dict[str, str] = {}
    for path in named:
        target = resolve(path)
        storage = path if target.kind is TargetKind.STORAGE else target.storage
        if storage is None or names.setdefault(places.identity(storage), text(storage)) in nodes:
            yield path


def _is_wanted(path: PurePath, selection: Selection) -> bool:
    """Whether a filter leaves the partition that a path names; an option that contradicts the path is an error."""
    target = resolve(path)
    target.selected(selection.named)
    return target.partition is None or target.partition in selection


def _holds_any(path: PurePath, selection: Selection) -> bool:
    """Whether a storage without its control file holds a partition that a filter leaves: the others do not show what it is."""
    if resolve(path).kind is not TargetKind.STORAGE or places.exists(path / CONTROL_FILE_NAME):
        return True
    try:
        view_storage(path, selection)
    except NotWaltzError:
        return False
    return True


def node_of(scope: Scope, run: PartitionRun | None = None) -> str:
    """What the column `node` says: the storage as it was named, or the directory of what lies outside any."""
    if scope.storage is not None:
        return text(scope.storage)
    if run is not None:
        return text(run.context.path)
    return "" if scope.control_path is None else text(scope.control_path)


def text(path: PurePath | str) -> str:
    """A path as Spark can hold it: bytes that are no UTF-8 become marks of replacement."""
    return str(path).encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def parts_of(run: PartitionRun, node: str, selection: Selection, split_size: int) -> Iterator[SegmentPart]:
    """The parts of a partition's segments that are wanted, in order."""
    entries, ordered = run.entries, run.in_order()
    first, last = span = selection.ids.span()
    wanted = frozenset(job.first for job in run.holding(span))
    for job, behind in zip(ordered, [*ordered[1:], None], strict=False):
        if job.first not in wanted:
            continue
        known = entries.get(job.first)
        count = parts_for(_bytes_of(job, known, first, last), split_size)
        whole = SegmentPart(node, job, known, 0, count, first, last)
        for number in range(count):
            yield replace(whole, number=number, follower=behind if number == count - 1 else None)


def parts_for(size: int, split_size: int) -> int:
    """How many parts of about `split_size` bytes; one where the second would be less than half of that."""
    return max(1, (size + split_size // 2) // split_size)


def _bytes_of(job: SegmentJob, entries: int | None, first: int | None, last: int | None) -> int:
    """About how many bytes of a segment are wanted."""
    if not entries or (first is None and last is None):
        return job.bytes
    low = max(0, (job.first if first is None else first) - job.first)
    high = min(entries, (job.first + entries if last is None else last + 1) - job.first)
    return job.bytes * max(1, high - low) // entries if low < entries else job.bytes


class Item(Protocol):
    """What a task is made of: a part, a notice, a look for what is missing, a piece of another view."""

    @property
    def cost(self) -> int:
        """Bytes to read, about."""


def pack(items: Iterable[T], most: int, weight: Callable[[T], int]) -> Iterator[tuple[T, ...]]:
    """Neighbours together, of at most `most` bytes by `weight`, or one; what weighs nothing never begins a packet of its own."""
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
    """Bytes of data that a packet's tasks read, about."""
    return sum(item.cost for item in items)
