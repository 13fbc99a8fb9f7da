"""A storage directory as the source of a backup: what lies in it, looked at partition by partition.

A directory that a process holds is backed up all the same: of each partition what is there at one moment.  The control file is
read first, so that no mark in the backup is above what the backup holds; half a record at the end of a log is left out.  A
truncation may come in between, and other records in the place of those that it took.  So when a partition was read its last
data file is read once more, and the others are looked at: if nothing differs, all of it was there between the two readings.
What lies beside the partitions a node replaces file by file: each of them is one of those that had its name, and whole.

A node with a commit journal has all that it acknowledged in its segments as well, as whoever reads them sees.  So the journal
is not in a backup, and neither is the control file's mark.  Once the node is gone the segments may lack something: such a
directory is not backed up before the journal was written back.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import PurePath

from waltzctl.engine.backup.piece_cutting import LIMIT
from waltzctl.engine.backup.section_plan import PreviousSection, SectionPlan, SectionPlanner, SourceChangedError
from waltzctl.engine.durable.disk import STATE_DIRECTORY, TEMPORARY_SUFFIX
from waltzctl.engine.durable.regular import FileNumbers
from waltzctl.engine.errors import DiskReadError, InvalidRequestError
from waltzctl.engine.log import places
from waltzctl.engine.log.view import check_partitions, partition_directories, view_storage
from waltzctl.engine.storage.journal_state import look_at_journal, refuse_marked, state_path
from waltzctl.formats.control import CONTROL_FILE_NAME, CONTROL_HEADER, ControlFile, ControlHeader
from waltzctl.formats.segment import HEADER_SIZE, INDEX_SUFFIX, SEGMENT_SUFFIX, parse_name
from waltzctl.formats.vault import Literal

LOCK = f"{STATE_DIRECTORY}/lock"
"""What is never backed up: it tells which process holds the directory."""
_LOOKS = 5


@dataclass(frozen=True, slots=True)
class SourceDirectory:
    """A storage directory.  `content`: of its control file, None without one.  `live`: a process holds it.

    `left_out`: names of files that are not backed up, relative to the directory.
    """

    path: PurePath
    live: bool
    control: ControlFile | None
    content: bytes | None
    numbers: FileNumbers | None
    partitions: tuple[int, ...]
    left_out: frozenset[str] = frozenset({LOCK})

    def takes(self, name: str) -> bool:
        """Whether a file or directory is backed up.  What somebody is just writing gets its name when it is whole."""
        return name not in self.left_out and not (self.live and name.endswith(TEMPORARY_SUFFIX))


def look_at(path: PurePath, partitions: frozenset[int] | None = None) -> SourceDirectory:
    """Look at a storage directory; `partitions`: only these.

    Raises NotWaltzError, InvalidRequestError for partitions that are not there, DiskReadError.
    """
    path = places.absolute(path)
    view = view_storage(path, ())
    if partitions is not None and view.control is not None and view.control.size_fits:
        check_partitions(view.control, partitions)
    there = partition_directories(path)
    chosen = [one for one in there if partitions is None or one in partitions]
    if absent := sorted((partitions or frozenset()) - {*there}):  # perhaps lost: the backup would call it left out
        raise InvalidRequestError(
            f"{path}: partition {absent[0]} has no directory, and is to be backed up",
            advice="name partitions that are there; waltzctl status shows which should be",
        )
    live = places.lock_holder(path, view.control_path) is not None
    content = None if view.control_state is None else unmarked(_settled(view.control_path))
    numbers = None if content is None else places.file_numbers(view.control_path)
    return SourceDirectory(path, live, view.control, content, numbers, tuple(chosen), _left_out(path, view.control))


def check_written_back(source: SourceDirectory) -> None:
    """Raise RefusedError for a directory of which acknowledged records may stand in a commit journal and nowhere else."""
    if source.control is not None and source.control.header.journaled and not source.live:
        refuse_marked(source.path)


def unmarked(control: bytes) -> bytes:
    """The bytes of a control file as they are when no commit journal is in force."""
    if len(control) < CONTROL_HEADER.size or not (header := ControlHeader.decode(control)).journaled:
        return control
    return replace(header, journaled=False).encode() + control[CONTROL_HEADER.size :]


def _left_out(path: PurePath, control: ControlFile | None) -> frozenset[str]:
    """The lock, which tells who holds the directory, and the journal that is in force."""
    left_out = {LOCK}
    if control is not None and control.header.journaled:
        left_out.add(state_path(path).relative_to(path).as_posix())
        journal = look_at_journal(path).path
        if journal is not None and journal.is_relative_to(path):
            left_out.add(journal.relative_to(path).as_posix())
    return frozenset(left_out)


def _settled(path: PurePath) -> bytes:
    """A small file that may be written meanwhile, read until it is the same twice."""
    before = None
    for _ in range(_LOOKS):
        numbers = places.file_numbers(path)
        content = places.read_range(path, 0, 0 if numbers is None else numbers.size)
        if content == before:
            return content
        before = content
    raise DiskReadError(path, None, OSError(0, "it changes faster than it can be read"), doing="read")


def plan_partition(
    source: SourceDirectory,
    number: int,
    previous: PreviousSection | None,
    *,
    limit: int = LIMIT,
    as_it_is: bool = True,
) -> SectionPlan:
    """What is taken of a partition, in pieces of about `limit` bytes.

    Without `as_it_is` a data file without an index counts as one that is just being made, where somebody writes.
    Raises DiskReadError, FileNotFoundError where somebody removes files meanwhile, SourceChangedError.
    """
    directory, prefix = source.path / str(number), f"{number}/"
    files = {
        name: numbers
        for name, numbers in places.listing(directory).items()
        if numbers is not None and source.takes(prefix + name)
    }
    if source.live:
        files = _begun(files)
        if not as_it_is and (bare := _without_index(files)):
            raise SourceChangedError(f"{directory / bare[0]}: it has no index yet")
    segments = {name: numbers for name, numbers in files.items() if parse_name(name) is not None}
    planner = SectionPlanner(previous, live=source.live, limit=limit, as_it_is=as_it_is)
    planner.add_segments(directory, prefix, segments)
    paired = {name for name in segments if name.endswith(SEGMENT_SUFFIX)}
    for name, numbers in files.items():
        alone = name.endswith(INDEX_SUFFIX) and name.removesuffix(INDEX_SUFFIX) + SEGMENT_SUFFIX not in paired
        if name not in segments or alone:
            planner.add_file(directory / name, prefix + name, numbers)
    directories = [str(number)]
    for name in places.names(directory):
        if (
            name not in files
            and source.takes(prefix + name)
            and places.is_directory(directory / name)
            and not places.access(directory).link(directory / name)
        ):
            _add_tree(planner, source, prefix + name, directories)
    return planner.plan(directories)


def _begun(files: dict[str, FileNumbers]) -> dict[str, FileNumbers]:
    """The files of a partition to which somebody writes, without those of a segment that is just being made or removed."""
    data = [name for name in files if parse_name(name) is not None and name.endswith(SEGMENT_SUFFIX)]
    making = {name for name in data if files[name].size < HEADER_SIZE and name == max(data)}
    there = {name.removesuffix(SEGMENT_SUFFIX) for name in data if name not in making}
    return {
        name: numbers
        for name, numbers in files.items()
        if parse_name(name) is None or name.removesuffix(SEGMENT_SUFFIX).removesuffix(INDEX_SUFFIX) in there
    }


def _without_index(files: dict[str, FileNumbers]) -> list[str]:
    indexes = {name.removesuffix(INDEX_SUFFIX) for name, one in files.items() if one.size >= HEADER_SIZE}
    return [
        name for name in files if name.endswith(SEGMENT_SUFFIX) and name.removesuffix(SEGMENT_SUFFIX) not in indexes
    ]


def check_unchanged(source: SourceDirectory, number: int, plan: SectionPlan) -> PurePath | None:
    """Of a partition that was read while somebody writes: its last data file, which has to be read once more.

    Every other one is as it was when it was planned.  Raises SourceChangedError.
    """
    directory = source.path / str(number)
    there = places.listing(directory)
    taken = {one.name.partition("/")[2]: one for one in plan.files}
    data = sorted(name for name in taken if parse_name(name) is not None and name.endswith(SEGMENT_SUFFIX))
    for name in data[:-1]:
        one = taken[name]
        if there.get(name) != FileNumbers(one.size, one.modified_ns, one.inode):
            raise SourceChangedError(f"{directory / name}: it is another one now")
    return directory / data[-1] if data else None


def check_left_alone(source: SourceDirectory, number: int, plan: SectionPlan) -> None:
    """Of a partition that nobody held when it was looked at: its files are as they were when it was planned.

    A node may have begun meanwhile, and may have put other records in the place of those that were planned.
    Raises SourceChangedError.
    """
    directory = source.path / str(number)
    there = places.listing(directory)
    for one in plan.files:
        name = one.name.partition("/")[2]
        if parse_name(name) is not None and there.get(name) != FileNumbers(one.size, one.modified_ns, one.inode):
            raise SourceChangedError(f"{directory / name}: it is another one now, and nobody held the directory before")


def check_not_replaced(source: SourceDirectory, plan: SectionPlan) -> None:
    """Of what lies beside the partitions: nothing that was read is half of one file and half of another.

    A node may have begun meanwhile where nobody held the directory.  Where somebody did, small files were looked at when they
    were read.  A file that was only appended to is as it was planned.  The control file was read at once.

    Raises SourceChangedError, FileNotFoundError.
    """
    there: dict[PurePath, dict[str, FileNumbers | None]] = {}
    for one in plan.files:
        small = all(isinstance(extent, Literal) for extent in one.extents)
        if one.name == CONTROL_FILE_NAME or (small and source.live):
            continue
        path = source.path / one.name
        if path.parent not in there:  # as it was planned: what a store tells of one object may be less exact
            there[path.parent] = places.listing(path.parent)
        planned, now = FileNumbers(one.size, one.modified_ns, one.inode), there[path.parent].get(path.name)
        appended = now is not None and now.inode == planned.inode and now.size > planned.size
        if now != planned and not appended:
            raise SourceChangedError(f"{path}: it is another one now")


def plan_storage(source: SourceDirectory, previous: PreviousSection | None, *, limit: int = LIMIT) -> SectionPlan:
    """What is taken of what lies beside the partitions.  Raises as `plan_partition`."""
    planner = SectionPlanner(previous, live=source.live, limit=limit)
    if source.content is not None and source.numbers is not None:
        planner.add_file(source.path / CONTROL_FILE_NAME, CONTROL_FILE_NAME, source.numbers, source.content)
    directories: list[str] = []
    numbers = {str(one) for one in partition_directories(source.path)}
    for name, found in places.listing(source.path).items():
        path = source.path / name
        if name == CONTROL_FILE_NAME or name in numbers or not source.takes(name):
            continue
        if found is not None:
            planner.add_file(path, name, found)
        elif places.is_directory(path) and not places.access(path).link(path):
            _add_tree(planner, source, name, directories)
    return planner.plan(directories)


def _add_tree(planner: SectionPlanner, source: SourceDirectory, name: str, directories: list[str]) -> None:
    directories.append(name)
    for one, numbers in places.listing(source.path / name).items():
        below = f"{name}/{one}"
        path = source.path / below
        if not source.takes(below):
            continue
        if numbers is not None:
            planner.add_file(path, below, numbers)
        elif places.is_directory(path) and not places.access(path).link(path):
            _add_tree(planner, source, below, directories)
