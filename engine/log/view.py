"""Read-only view of a storage directory: which files there are, by their names and sizes, and the decoded control file.

A view takes no lock, writes nothing and never fails because of damage: a file that cannot be decoded is None, and verify turns it
into a finding.  Every inspecting command and the planner of repairs start with a view.

Layout of a storage directory (design document *On-Disk Data Structures*)::

    waltz-storage.ctl
    <partition>/<first transaction id, 19 digits>.seg and .idx
    .waltzctl/                  state of waltzctl: lock, availability marks, quarantine, audit journal
"""

from __future__ import annotations

import contextlib
import hashlib
from bisect import bisect_right
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath

from waltzctl.engine.amounts import format_ranges
from waltzctl.engine.durable import disk
from waltzctl.engine.durable.file_status import FileNumbers
from waltzctl.engine.errors import DiskReadError, InvalidRequestError, NotWaltzError, SpecialFileError
from waltzctl.engine.log import places
from waltzctl.engine.log.access import PlaceKind
from waltzctl.engine.log.partition_directories import (
    entry_kinds,
    listing_errors,
    partition_number,
    unmounted,
    unmounted_errors,
)
from waltzctl.engine.scan.byte_source import ByteSource
from waltzctl.formats.control import (
    CONTROL_FILE_NAME,
    CONTROL_HEADER,
    MAX_PARTITIONS,
    ControlFile,
    Layout,
    PartitionInfo,
    decode_control,
    decode_infos,
)
from waltzctl.formats.segment import ENTRY_SIZE, HEADER_SIZE, INDEX_SUFFIX, SEGMENT_SUFFIX, SegmentHeader, parse_name


@dataclass(frozen=True, slots=True)
class FileState:
    """A regular file at one moment: size in bytes, modification time in nanoseconds since 1970, inode."""

    path: PurePath
    size: int
    modified_ns: int
    inode: int

    @classmethod
    def of(cls, path: PurePath) -> FileState | None:
        """State of a regular file; None when there is none (or no access).  Raises DiskReadError."""
        numbers = places.file_numbers(path)
        return None if numbers is None else cls(path, *numbers)


def next_data_file(segments: Sequence[SegmentView], first: int) -> int | None:
    """The id in the name of the data file behind `first`; None where there is none.  `segments` rise with their ids.

    Whoever judges a partition asks for each of its segments, which may be tens of thousands.
    """
    for place in range(bisect_right(segments, first, key=lambda one: one.first_transaction_id), len(segments)):
        if segments[place].data is not None:
            return segments[place].first_transaction_id
    return None


def read_segment_header(file: FileState | None) -> SegmentHeader | None:
    """Header of a data or index file; None when the file is missing or shorter than a header.  Raises DiskReadError."""
    if file is None or file.size < HEADER_SIZE:
        return None
    try:
        data = places.read_range(file.path, 0, HEADER_SIZE)
    except FileNotFoundError:
        return None
    return SegmentHeader.decode(data) if len(data) == HEADER_SIZE else None


def read_header_of(source: ByteSource, size: int) -> SegmentHeader | None:
    """As `read_segment_header`, for an open data or index file of `size` bytes.  Raises DiskReadError."""
    if size < HEADER_SIZE:
        return None
    data = bytearray(HEADER_SIZE)
    return SegmentHeader.decode(bytes(data)) if source.read_into(0, memoryview(data)) == HEADER_SIZE else None


@dataclass(frozen=True, slots=True)
class SegmentView:
    """The files of a segment, found by their names.  At least one of `data` and `index` is present."""

    partition: int | None
    first_transaction_id: int
    data: FileState | None
    index: FileState | None

    @property
    def entries(self) -> int:
        """Whole entries of the index file, by its size."""
        return 0 if self.index is None else max(0, self.index.size - HEADER_SIZE) // ENTRY_SIZE

    @property
    def data_path(self) -> PurePath:
        """Where the data file is, or would be."""
        return self._path(SEGMENT_SUFFIX) if self.data is None else self.data.path

    @property
    def index_path(self) -> PurePath:
        """Where the index file is, or would be."""
        return self._path(INDEX_SUFFIX) if self.index is None else self.index.path

    def _path(self, suffix: str) -> PurePath:
        present = self.data or self.index
        assert present is not None
        return present.path.with_suffix(suffix)


@dataclass(frozen=True, slots=True)
class StraySegment:
    """A stray: a data file (``*.seg``) whose name is not a segment's, and its index file.

    A released node opens every file whose name ends in ``.seg``; its index has the same name with ``.idx`` for ``.seg``.
    """

    data: FileState
    index: FileState | None

    @property
    def index_path(self) -> PurePath:
        """Where a released node looks for the index."""
        return index_path_of(self.data.path)


def index_name_of(name: str) -> str:
    """The name under which a released node looks for the index of the data file `name`."""
    return name.replace(SEGMENT_SUFFIX, INDEX_SUFFIX)


def index_path_of(data_path: PurePath) -> PurePath:
    """The path under which a released node looks for the index of a data file."""
    return data_path.with_name(index_name_of(data_path.name))


@dataclass(frozen=True, slots=True)
class PartitionView:
    """The entries of a partition directory.

    =========== ==============================================================================================
    `partition` the number in the directory's name; None for another name (outside of a storage directory)
    `segments`  by the transaction id in their names
    `temporary` files that a process was writing when it ended
    `strays`    data files (``*.seg``) whose names are not those of segments
    `special`   entries that are not regular files, or cannot be examined, but have names of data or index files
    `unknown`   all other entries
    =========== ==============================================================================================

    `data_segments`: those of the segments that have a data file.
    """

    partition: int | None
    path: PurePath
    segments: tuple[SegmentView, ...]
    temporary: tuple[PurePath, ...] = ()
    unknown: tuple[PurePath, ...] = ()
    strays: tuple[StraySegment, ...] = ()
    special: tuple[PurePath, ...] = ()
    data_segments: tuple[SegmentView, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Pick `data_segments` once: of tens of thousands of segments each may be judged by all of them."""
        whole = all(segment.data is not None for segment in self.segments)
        found = self.segments if whole else tuple(one for one in self.segments if one.data is not None)
        object.__setattr__(self, "data_segments", found)

    @property
    def special_data(self) -> dict[int, PurePath]:
        """The special files in the place of data files, by the transaction id in their names."""
        named = ((parse_name(path.name), path) for path in self.special)
        return {parsed[0]: path for parsed, path in named if parsed is not None and parsed[1] == SEGMENT_SUFFIX}

    @property
    def special_end(self) -> PurePath | None:
        """The last data file, by its name, if it is special: nobody knows what the partition holds behind the others."""
        special = self.special_data
        last = max(special, default=-1)
        before = max((segment.first_transaction_id for segment in self.data_segments), default=-1)
        return special[last] if last > before else None

    @property
    def fingerprint(self) -> bytes:
        """The value of `names_fingerprint` as long as the directory has exactly these data and index files."""
        files = (file for segment in self.segments for file in (segment.data, segment.index) if file is not None)
        return _fingerprint(file.path.name for file in files)


@dataclass(frozen=True, slots=True)
class StorageView:
    """A storage directory at one moment.

    ======================================= ================= =============
    the control file                        `control_state`   `control`
    ======================================= ================= =============
    is missing, or not a regular file       None              None
    is shorter than its header              its state         None
    has a header                            its state         decoded
    ======================================= ================= =============

    `partitions`: the partition directories by number, restricted to those that the caller asked for.  `unlisted`: those that are
    there and could not be listed, with the reason; empty where the caller did not ask for it.  `unmounted`: those in whose places
    links lead nowhere, of all.
    """

    path: PurePath
    control_state: FileState | None
    control: ControlFile | None
    partitions: dict[int, PartitionView]
    temporary: tuple[PurePath, ...] = ()
    unknown: tuple[PurePath, ...] = ()
    unlisted: dict[int, DiskReadError] = field(default_factory=dict)
    unmounted: tuple[int, ...] = ()

    @property
    def control_path(self) -> PurePath:
        """Where the control file is, or would be."""
        return self.path / CONTROL_FILE_NAME


def beyond(partitions: dict[int, PartitionView], control: ControlFile) -> tuple[PartitionView, ...]:
    """Partition directories whose number is not in the control file: no node opens them."""
    return tuple(view for number, view in partitions.items() if number >= len(control.partitions))


def view_partition(path: PurePath, partition: int | None) -> PartitionView:
    """List a partition directory.  Raises NotWaltzError when it is no directory, DiskReadError."""
    files: dict[int, dict[str, FileState]] = {}
    others: dict[str, FileState | None] = {}  # None: no regular file
    temporary: list[PurePath] = []
    for name, numbers in _listing(path).items():
        parsed = parse_name(name)
        state = None if numbers is None else FileState(path / name, *numbers)
        if parsed and state is not None:
            files.setdefault(parsed[0], {})[parsed[1]] = state
        elif name.endswith(disk.TEMPORARY_SUFFIX):
            temporary.append(path / name)
        elif state is not None or places.still_named(path / name):
            others[name] = state
    segments = tuple(
        SegmentView(partition, first, found.get(SEGMENT_SUFFIX), found.get(INDEX_SUFFIX))
        for first, found in sorted(files.items())
    )
    strays = tuple(
        StraySegment(state, others.get(index_path_of(state.path).name))
        for name, state in others.items()
        if state is not None and name.endswith(SEGMENT_SUFFIX)
    )
    special = tuple(
        path / name
        for name, state in others.items()
        if state is None and (name.endswith(SEGMENT_SUFFIX) or parse_name(name) is not None)
    )
    classified = {*special, *(one.data.path for one in strays), *(one.index_path for one in strays)}
    unknown = tuple(path / name for name in others if path / name not in classified)
    return PartitionView(partition, path, segments, tuple(temporary), unknown, strays, special)


def names_fingerprint(path: PurePath) -> bytes:
    """A hash of the names in a partition directory that end in ``.seg`` or ``.idx``, from one listing of the directory.

    Raises NotWaltzError when it is no directory, DiskReadError.
    """
    return _fingerprint(name for name in _names(path) if name.endswith((SEGMENT_SUFFIX, INDEX_SUFFIX)))


def _fingerprint(names: Iterable[str]) -> bytes:
    """A hash of names, whatever their order."""
    joined = "/".join(sorted(names)).encode("utf-8", "surrogateescape")
    return hashlib.blake2b(joined, digest_size=16).digest()


def _names(path: PurePath) -> list[str]:
    with listing_errors(path):
        return places.names(path)


def _listing(path: PurePath) -> dict[str, FileNumbers | None]:
    with listing_errors(path):
        return places.listing(path)


def read_control(path: PurePath) -> ControlFile | None:
    """Decode a control file; None when it is missing or shorter than its header.  Raises DiskReadError."""
    data = _control_bytes(path)
    return None if data is None else decode_control(data)


def read_infos(path: PurePath, partitions: Iterable[int]) -> dict[int, PartitionInfo]:
    """Some partitions' infos in a control file; none of a file that `read_control` does not decode.  Raises DiskReadError."""
    data = _control_bytes(path)
    return {} if data is None else decode_infos(data, partitions)


def _control_bytes(path: PurePath) -> bytes | None:
    limit = Layout.RELEASED.file_size(MAX_PARTITIONS) + 1
    try:
        data = places.read_range(path, 0, limit)
    except FileNotFoundError:
        return None
    return data if len(data) >= CONTROL_HEADER.size else None


def view_storage(path: PurePath, partitions: Collection[int] | None = None, *, each_alone: bool = False) -> StorageView:
    """List a storage directory; `partitions` restricts which partition directories are listed.

    `each_alone`: a partition that cannot be listed hides no other, it is among those in `unlisted`; one that goes away meanwhile
    is none.  Without it, that is an error.

    Raises NotWaltzError when there is neither a control file nor a partition directory with a segment, DiskReadError.
    """
    found: dict[int, PartitionView] = {}
    unlisted: dict[int, DiskReadError] = {}
    temporary: list[PurePath] = []
    unknown: list[PurePath] = []
    kinds = entry_kinds(path)
    for name, kind in kinds.items():
        entry = path / name
        if name in (CONTROL_FILE_NAME, disk.STATE_DIRECTORY):
            continue
        number = partition_number(name) if kind is PlaceKind.DIRECTORY else None
        if number is not None:
            if partitions is None or number in partitions:
                try:
                    found[number] = view_partition(entry, number)
                except DiskReadError as error:
                    if not each_alone:
                        raise
                    unlisted[number] = error
                except NotWaltzError:
                    if not each_alone:
                        raise
        elif name.endswith(disk.TEMPORARY_SUFFIX):
            temporary.append(entry)
        else:
            unknown.append(entry)
    control_path = path / CONTROL_FILE_NAME
    state = FileState.of(control_path)
    there = state is not None or places.still_named(control_path)
    if not there and not any(view.segments for view in found.values()):
        for unread in unlisted.values():
            raise unread
        raise NotWaltzError(f"{path}: not a Waltz storage directory: there is no {CONTROL_FILE_NAME}")
    control = None
    with contextlib.suppress(SpecialFileError):  # verify and recover report it
        control = read_control(control_path)
    links = unmounted(kinds)
    if each_alone:
        errors = unmounted_errors(path, control, links)
        unlisted.update((one, error) for one, error in errors.items() if partitions is None or one in partitions)
        unknown = [entry for entry in unknown if partition_number(entry.name) not in errors]
    listed = dict(sorted(found.items()))
    return StorageView(path, state, control, listed, tuple(temporary), tuple(unknown), unlisted, links)


def check_partitions(control: ControlFile, partitions: Collection[int]) -> None:
    """Raise InvalidRequestError for partitions that the control file does not have."""
    beyond = [p for p in partitions if not 0 <= p < len(control.partitions)]
    if beyond:
        raise InvalidRequestError(
            f"partition {format_ranges(beyond)}: the control file has partitions 0 to {len(control.partitions) - 1}"
        )
