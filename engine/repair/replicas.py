"""Other replicas of a partition as a source of records.  They are only read, and their records used only with proof.

A run of records is taken from a replica when all of this holds:

- cluster key, partition and ids are right;
- record checksum and data checksum of every record are right;
- the nearest intact records here, on either side of the loss, are the same there.  One that is not next to the loss may be
  missing there.

When the data of a record does not match its data checksum, only the bytes in front of that checksum are compared
(`same_record`).  When two replicas both prove a run and their bytes differ, nothing is taken from either.
"""

from __future__ import annotations

import enum
import errno
import hashlib
import uuid
from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import PurePath

from waltzctl.engine.errors import DiskReadError, InvalidRequestError, MismatchError, NotWaltzError
from waltzctl.engine.log import places
from waltzctl.engine.log.cluster_keys import advice_on_replica
from waltzctl.engine.log.target import TargetKind, resolve
from waltzctl.engine.log.view import (
    FileState,
    PartitionView,
    SegmentView,
    read_segment_header,
    view_partition,
    view_storage,
)
from waltzctl.engine.repair.content import Content, FileSpan
from waltzctl.engine.repair.survey import open_hint
from waltzctl.engine.scan.byte_source import ByteSource, read_bytes
from waltzctl.engine.scan.columns import Damage, RecordView
from waltzctl.engine.scan.scanner import read_record_at, summarise_records
from waltzctl.formats.checksums import crc32
from waltzctl.formats.control import CONTROL_FILE_NAME, ControlFile
from waltzctl.formats.segment import (
    CHECKSUM,
    ENTRY_SIZE,
    FORMAT_VERSION,
    HEADER_SIZE,
    INDEX_ENTRY,
    RECORD_HEADER,
    SEGMENT_SUFFIX,
    entry_position,
    parse_name,
)

MOST_JOINED = 10_000
"""Most records of a loss that are collected from several replicas when no single replica holds them all."""
_READ_AHEAD = 256 << 10
"""About how many bytes behind the wanted records are read: without a bound, for each loss up to all the rest of a segment."""
_COMPARED = 256
"""About how many records of a run are compared one by one when a replica does not hold all of the run."""
_DATA_CHECKSUM_OFFSET = RECORD_HEADER.offset_of("data_checksum")
"""Byte offset of the data checksum in a record: after id, request id, header and data length."""
_ALL_BUT_ID = slice(RECORD_HEADER.offset_of("request_id"), -CHECKSUM.size)
"""The bytes of a record that do not depend on its id: all but the id and the record checksum."""


@dataclass(frozen=True, slots=True)
class WitnessRecord:
    """An intact record here that a replica is compared with: its id, and all its bytes."""

    transaction_id: int
    record: bytes


@dataclass(frozen=True, slots=True)
class Neighbours:
    """The nearest intact records here on either side of a loss; None where there is none."""

    before: WitnessRecord | None
    after: WitnessRecord | None


@dataclass(frozen=True, slots=True)
class ReplicaRun:
    """Records `first` to `stop` - 1 of one segment of a replica.

    `begins` (first id) and `created` (ms since 1970, UTC) are those of the segment's header.
    """

    first: int
    stop: int
    span: FileSpan
    begins: int
    created: int


@dataclass(frozen=True, slots=True)
class Proven:
    """Consecutive runs that replace a loss, and the replicas that they come from.  The length is in bytes."""

    runs: tuple[ReplicaRun, ...]
    replicas: tuple[PurePath, ...]

    @property
    def by(self) -> str:
        """The replicas' paths, for a message."""
        return " and ".join(map(str, self.replicas))

    def __len__(self) -> int:
        return sum(len(run.span) for run in self.runs)


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why nothing is taken from the replicas, in words.  `unread`: one of them could not be read, and may hold the records."""

    why: str
    unread: DiskReadError | None = None


class Agreement(enum.Enum):
    """How a replica's records compare with those under the same ids here."""

    SILENT = "it holds none of them"
    EQUAL = "byte for byte the same"
    DIFFERS = "others"


@dataclass(frozen=True, slots=True)
class _Segment:
    first: int
    path: PurePath
    index: PurePath
    size: int
    created: int
    unread: DiskReadError | None = None
    """Why it cannot be looked at, of a data file that is no regular one, or that the disk does not let be examined."""
    reached: list[tuple[int, int]] = field(default_factory=list, compare=False)
    """Ids of records that scans came to, rising, and their offsets: without an index each loss was sought from the header on."""


class ReplicaSegments:
    """The segments of a replica, of each partition; those with a wrong header are left out."""

    def __init__(self, path: PurePath, key: uuid.UUID) -> None:
        self.path = path
        self._key = key
        self._segments: dict[int, list[_Segment]] = {}
        self._states: list[FileState] = []

    def segments(self, partition: int) -> list[_Segment]:
        """The segments of a partition, in order.  Raises DiskReadError."""
        return [one for one in self._named(partition) if one.unread is None]

    def _named(self, partition: int) -> list[_Segment]:
        """As `segments`, with those that cannot be looked at, which may hold records all the same."""
        if partition not in self._segments:
            view = self._listed(partition)
            segments = () if view is None else view.data_segments
            usable = [self._usable(segment, partition) for segment in segments]
            usable += [] if view is None else [self._unlisted(path, partition) for path in view.special]
            self._segments[partition] = sorted(filter(None, usable), key=lambda one: one.first)
        return self._segments[partition]

    def changed(self, paths: Collection[PurePath]) -> Iterator[PurePath]:
        """Those of these data files that were written or replaced since they were listed, on this machine."""
        for state in self._states:
            if state.path in paths and places.on_this_machine(state.path) and FileState.of(state.path) != state:
                yield state.path

    def _listed(self, partition: int) -> PartitionView | None:
        """From the partition's directory alone: to list the whole replica for each partition would take their number squared.

        None where there is no directory.  Raises NotWaltzError where the replica itself is gone, DiskReadError.
        """
        directory = self.path / str(partition)
        try:
            return view_partition(directory, partition)
        except NotWaltzError as error:
            if not places.still_named(self.path / CONTROL_FILE_NAME):
                raise
            if not places.access(directory).link(directory):
                return None
            # to a disk that is not mounted, say: nobody knows what is there
            cause = OSError(errno.ENOTDIR, "it is a link to no directory")
            raise DiskReadError(directory, None, cause, doing="list") from error

    def _usable(self, view: SegmentView, partition: int) -> _Segment | None:
        header = read_segment_header(view.data)
        first = view.first_transaction_id
        if header is None or view.data is None:
            return None
        if (header.version, header.cluster_key, header.partition) != (FORMAT_VERSION, self._key, partition):
            return None
        if header.first_transaction_id != first:
            return None
        self._states.append(view.data)
        return _Segment(first, view.data.path, view.index_path, view.data.size, header.created)

    def _unlisted(self, path: PurePath, partition: int) -> _Segment | None:
        parsed = parse_name(path.name)
        if parsed is None or parsed[1] != SEGMENT_SUFFIX:
            return None
        try:
            with places.open_source(path):
                return self._usable(SegmentView(partition, parsed[0], FileState.of(path), None), partition)
        except FileNotFoundError:
            return None
        except DiskReadError as error:
            return _Segment(parsed[0], path, path, 0, 0, error)

    def _holding(self, partition: int, transaction_id: int) -> tuple[_Segment, int | None] | None:
        """The segment that should hold an id, and the first id of the next segment (None: the last one); None when none does.

        Raises DiskReadError.
        """
        segments = self._named(partition)
        place = bisect_right(segments, transaction_id, key=lambda segment: segment.first) - 1
        if place < 0:
            return None
        if (unread := segments[place].unread) is not None:
            raise unread
        return segments[place], segments[place + 1].first if place + 1 < len(segments) else None

    def record(self, partition: int, transaction_id: int) -> bytes | None:
        """One record's bytes if its record checksum is right, even if its data checksum is not; else None.

        Raises DiskReadError.
        """
        held = self._holding(partition, transaction_id)
        if held is None:
            return None
        with places.open_source(held[0].path) as source:
            offset = _offset(source, held[0], transaction_id)
            if offset is None:
                return None
            found = read_record_at(source, offset, expected_id=transaction_id)
        return bytes(found.record) if isinstance(found, RecordView) else None

    def compare(self, partition: int, content: Content, begins: int) -> Agreement:
        """Compare the intact records of a data file, whose first id is `begins`, with the replica's records of the same ids.

        Records are compared as `same_record` does.  Raises DiskReadError.
        """
        found = Agreement.SILENT
        for item in summarise_records(content, first_transaction_id=begins):
            if isinstance(item, Damage):
                continue
            first, stop = item.first_transaction_id, item.first_transaction_id + len(item)
            runs = None if item.data_damaged else self.runs(partition, first, stop)
            if runs is not None:
                here = Content(content.name, content.part(item.start, item.end))
                equal = here.equals(Content("", tuple(run.span for run in runs)))
            else:
                equal = True
                ends = [*item.offset[1:].tolist(), item.end]
                for place in range(0, len(item), max(1, len(item) // _COMPARED)):
                    record = self.record(partition, first + place)
                    if record is not None:
                        start = int(item.offset[place])
                        found = Agreement.EQUAL
                        equal &= same_record(content.read(start, ends[place] - start), record)
            if not equal:
                return Agreement.DIFFERS
            found = found if runs is None else Agreement.EQUAL
        return found

    def runs(self, partition: int, first: int, stop: int) -> list[ReplicaRun] | None:
        """Records `first` to `stop` - 1, one run per segment; None when not all of them are intact.  Raises DiskReadError."""
        runs: list[ReplicaRun] = []
        while first < stop:
            held = self._holding(partition, first)
            if held is None:
                return None
            segment, following = held
            last = stop if following is None else min(stop, following)
            run = _run(segment, first, last)
            if run is None:
                return None
            runs.append(run)
            first = last
        return runs


def _listed(source: ByteSource, segment: _Segment, transaction_id: int) -> int | None:
    """The offset of a record that the index has, if the record is there."""
    hint = open_hint(segment.index)
    if hint is not None:
        with hint:
            raw = read_bytes(hint, entry_position(transaction_id, segment.first), ENTRY_SIZE)
        if len(raw) == ENTRY_SIZE:
            (offset,) = INDEX_ENTRY.struct.unpack(raw)
            if HEADER_SIZE <= offset < segment.size:
                found = read_record_at(source, offset, expected_id=transaction_id)
                if isinstance(found, RecordView):
                    return int(offset)
    return None


def _offset(source: ByteSource, segment: _Segment, transaction_id: int) -> int | None:
    """The offset of a record: from the index if the record is there, else from a scan; None when it is not found."""
    if (listed := _listed(source, segment, transaction_id)) is not None:
        return listed
    reached = segment.reached
    place = bisect_right(reached, transaction_id, key=lambda one: one[0]) - 1
    first, start = reached[place] if place >= 0 else (segment.first, HEADER_SIZE)
    behind: int | None = first
    for item in summarise_records(source, first_transaction_id=first, start=start, most=_READ_AHEAD):
        if isinstance(item, Damage):
            continue
        if behind is not None and item.first_transaction_id < behind:
            behind = None  # out of order: the next search would pass over what stands in front
        elif behind is not None:
            if not reached or item.first_transaction_id > reached[-1][0]:
                reached.append((item.first_transaction_id, int(item.offset[0])))
            behind = item.first_transaction_id + len(item)
        inside = transaction_id - item.first_transaction_id
        if 0 <= inside < len(item):
            return int(item.offset[inside])
    return None


def _run(segment: _Segment, first: int, stop: int) -> ReplicaRun | None:
    with places.open_source(segment.path) as source:
        start = _offset(source, segment, first)
        if start is None:
            return None
        # the record behind the wanted ones ends the scan if they reach to it; otherwise what follows would be read for each loss
        listed = _listed(source, segment, stop)
        end = None if listed is None else _end(source, start, first, stop, listed)
        end = _end(source, start, first, stop, None) if end is None else end
    if end is None:
        return None
    return ReplicaRun(first, stop, FileSpan(segment.path, start, end), segment.first, segment.created)


def _end(source: ByteSource, start: int, first: int, stop: int, before: int | None) -> int | None:
    """Where the records `first` to `stop` - 1 end, which begin at `start`, if all are intact and before the offset `before`."""
    following = first
    for item in summarise_records(source, first_transaction_id=first, start=start, stop=before, most=_READ_AHEAD):
        if isinstance(item, Damage) or item.first_transaction_id != following:
            return None
        wanted = min(len(item), stop - following)
        if not item.data_ok[:wanted].all():
            return None
        following += wanted
        if following == stop:
            return int(item.offset[wanted]) if wanted < len(item) else item.end
    return None


def open_replicas(paths: Iterable[PurePath], storage: PurePath, control: ControlFile) -> tuple[ReplicaSegments, ...]:
    """Check that each path is another replica of the same cluster.

    Raises MismatchError for another cluster key or number of partitions, InvalidRequestError for the directory itself,
    NotWaltzError, DiskReadError.
    """
    replicas: list[ReplicaSegments] = []
    for path in paths:
        target = resolve(path)
        if target.kind is not TargetKind.STORAGE:
            raise NotWaltzError(f"{path}: a {target.kind}, not the storage directory of a replica")
        if places.identity(path) == places.identity(storage):
            raise InvalidRequestError(f"{path}: this is the directory to repair; name another replica")
        other = view_storage(path, ()).control
        if other is None:
            raise NotWaltzError(f"{path}: no usable control file, so that nothing proves which cluster it belongs to")
        wanted, found = control.header, other.header
        if found.cluster_key != wanted.cluster_key:
            raise MismatchError(
                f"{path}: the cluster key is {found.cluster_key}, not {wanted.cluster_key}",
                advice=advice_on_replica(storage, wanted.cluster_key, found.cluster_key),
            )
        if found.num_partitions != wanted.num_partitions:
            raise MismatchError(f"{path}: {found.num_partitions} partitions, not {wanted.num_partitions}")
        replicas.append(ReplicaSegments(path, wanted.cluster_key))
    return tuple(replicas)


def same_record(here: bytes, there: bytes | None) -> bool:
    """Whether a record here and the replica's record under the same id (None: it has none) are the same record.

    When the data of either does not match its data checksum, data or checksum was damaged; then only the bytes in front of
    the checksum (id, request id, header, data length) are compared.
    """
    if there is None or here == there:
        return there is not None
    return here[:_DATA_CHECKSUM_OFFSET] == there[:_DATA_CHECKSUM_OFFSET] and not (
        _data_agrees(here) and _data_agrees(there)
    )


def same_but_id(here: bytes, there: bytes) -> bool:
    """Whether two records are the same but for their ids, and so for their record checksums."""
    return here[_ALL_BUT_ID] == there[_ALL_BUT_ID]


def _data_agrees(record: bytes) -> bool:
    (stored,) = CHECKSUM.struct.unpack(record[_DATA_CHECKSUM_OFFSET : RECORD_HEADER.size])
    return bool(crc32(record[RECORD_HEADER.size : -CHECKSUM.size]) == stored)


def find_proven(
    replicas: Sequence[ReplicaSegments], partition: int, first: int, stop: int, neighbours: Neighbours
) -> Proven | Refusal:
    """The records `first` to `stop` - 1 from the first replica that proves them, unless another replica proves different ones.

    When no replica holds all of them, they are collected from those replicas that have the same neighbours of the loss.
    """
    if not replicas:
        return Refusal("no replica was named (recover --from)")
    proven: list[Proven] = []
    partial: list[ReplicaSegments] = []
    reasons: list[str] = []
    unread: DiskReadError | None = None
    for replica in replicas:
        try:
            runs = replica.runs(partition, first, stop)
            why = _contradiction(replica, partition, first, stop, neighbours)
        except DiskReadError as error:
            runs, why, unread = None, f"cannot be read: {error}", error
        else:
            if runs is None and why is None:
                partial.append(replica)
            if runs is None:
                why = "does not hold all of these records intact"
        if why is not None:
            reasons.append(f"{replica.path} {why}")
        else:
            assert runs is not None  # otherwise `why` is set
            proven.append(Proven(tuple(runs), (replica.path,)))
    if proven:
        return _first_if_equal(proven)
    if len(partial) > 1 and neighbours != Neighbours(None, None):
        try:
            joined = _collected(partial, partition, first, stop)
        except DiskReadError as error:
            reasons.append(str(error))
            unread = error
        else:
            if joined is not None:
                return joined
    return Refusal("; ".join(reasons), unread)


def _contradiction(
    replica: ReplicaSegments, partition: int, first: int, stop: int, neighbours: Neighbours
) -> str | None:
    """Why a replica's records contradict the neighbours of a loss, in words; None when they do not.  Raises DiskReadError."""
    for what, next_to, here in (("before", first - 1, neighbours.before), ("behind", stop, neighbours.after)):
        if here is not None:
            theirs = replica.record(partition, here.transaction_id)
            if not same_record(here.record, theirs) and (theirs is not None or here.transaction_id == next_to):
                return f"has another record {here.transaction_id} {what} the loss, or none"
    return None


def _first_if_equal(proven: Sequence[Proven]) -> Proven | Refusal:
    """The first proof if all have the same bytes, else a refusal."""
    if len({_digest(one) for one in proven}) > 1:
        return Refusal("the replicas disagree: " + ", ".join(one.by for one in proven) + " hold different records")
    return proven[0]


def _collected(replicas: Sequence[ReplicaSegments], partition: int, first: int, stop: int) -> Proven | Refusal | None:
    """Records `first` to `stop` - 1, each from any of several replicas; None when a record is on none of them.

    All replicas that hold a record must agree on it.  Raises DiskReadError.
    """
    if stop - first > MOST_JOINED:
        return None
    held = {replica: _intact_ranges(replica, partition, first, stop) for replica in replicas}
    borders = sorted({first, stop, *(border for pieces in held.values() for piece in pieces for border in piece)})
    runs: list[ReplicaRun] = []
    paths: dict[PurePath, None] = {}
    for low, high in pairwise(borders):
        holders = [one for one, pieces in held.items() if any(begin <= low < end for begin, end in pieces)]
        if not holders:
            return None
        found = _first_if_equal([Proven(tuple(one.runs(partition, low, high) or ()), (one.path,)) for one in holders])
        if isinstance(found, Refusal):
            return found
        runs += found.runs
        paths |= dict.fromkeys(found.replicas)
    return Proven(tuple(runs), tuple(paths))


def _intact_ranges(replica: ReplicaSegments, partition: int, first: int, stop: int) -> list[tuple[int, int]]:
    """The ranges (first, stop) of intact records that a replica holds.  Raises DiskReadError."""
    found: list[tuple[int, int]] = []
    while first < stop:
        end = _intact_up_to(replica, partition, first, stop)
        if end > first:
            found.append((first, end))
        first = end + 1  # the record `end` is missing
    return found


def _intact_up_to(replica: ReplicaSegments, partition: int, first: int, stop: int) -> int:
    """The id after the consecutive intact records from `first` on that a replica holds, at most `stop`.

    Binary search.  Raises DiskReadError.
    """
    low, high = first, stop
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if replica.runs(partition, low, middle) is not None else (low, middle - 1)
    return low


def _digest(proven: Proven) -> str:
    digest = hashlib.sha256()
    for run in proven.runs:
        for part in Content(str(run.span.path), (run.span,)).chunks():
            digest.update(part)
    return digest.hexdigest()
