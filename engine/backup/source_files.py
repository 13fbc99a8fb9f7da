"""A storage directory as the source of a backup: its files, partition by partition.

A directory that a process holds (*live*) is backed up as well; of each partition, the state at one moment:

- The control file is read first, so that no mark in the backup exceeds what the backup holds, unless the log has lost its end.
  Half a record at the end of a log is left out.
- A truncation may remove records meanwhile, and others may take their place.  So, after a partition was read, its last data file
  is read again, and the metadata of the others is compared: if nothing differs, all of it was there between the two readings.
- Files outside of the partitions are replaced atomically by a node; each one in the backup is complete, and was there under its
  name.

Commit journal: a node that has one also writes all acknowledged records to its segments, where readers see them.  So the backup
contains neither the journal nor the control file's mark that it is in force.  After a crash of the node the segments may lack
records; such a directory is refused until its journal has been written back.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import PurePath

from waltzctl.engine.backup.piece_cutting import LIMIT
from waltzctl.engine.backup.section_plan import PreviousSection, SectionPlan, SourceChangedError
from waltzctl.engine.backup.section_planner import SectionPlanner
from waltzctl.engine.durable.disk import STATE_DIRECTORY, TEMPORARY_SUFFIX
from waltzctl.engine.durable.file_status import FileNumbers
from waltzctl.engine.errors import DiskReadError, InvalidRequestError
from waltzctl.engine.findings import Code, Severity
from waltzctl.engine.findings.control_files import info_findings
from waltzctl.engine.inspect.status import storage_status
from waltzctl.engine.log import places
from waltzctl.engine.log.partition_directories import (
    entry_kinds,
    mounted,
    partition_directories,
    partition_number,
    unmounted,
)
from waltzctl.engine.log.view import check_partitions, view_storage
from waltzctl.engine.scan.columns import DamageCause
from waltzctl.engine.storage.assignment import names_put_aside, out_of_reach, put_aside_path
from waltzctl.engine.storage.journal_state import look_at_journal, refuse_marked, state_path
from waltzctl.formats.control import CONTROL_FILE_NAME, CONTROL_HEADER, ControlFile, ControlHeader, struct_in_force
from waltzctl.formats.segment import HEADER_SIZE, INDEX_SUFFIX, SEGMENT_SUFFIX, parse_name
from waltzctl.formats.vault import Literal

LOCK = f"{STATE_DIRECTORY}/lock"
"""Never backed up: it names the process that holds the directory."""
_READ_ATTEMPTS = 5


@dataclass(frozen=True, slots=True)
class SourceDirectory:
    """A storage directory.

    - `live`: a process holds it.
    - `content`, `numbers`: bytes and metadata of its control file, None without one.
    - `left_out`: names of files that are not backed up, relative to the directory.
    - `wanted`: the partitions that were asked for, None for all.
    - `unmounted`: those without a directory, as the link in its place leads nowhere: to a disk that is not mounted.
    """

    path: PurePath
    live: bool
    control: ControlFile | None
    content: bytes | None
    numbers: FileNumbers | None
    partitions: tuple[int, ...]
    left_out: frozenset[str] = frozenset({LOCK})
    wanted: frozenset[int] | None = None
    unmounted: tuple[int, ...] = ()

    def takes_partition(self, number: int) -> bool:
        """Whether a partition is to be backed up."""
        return self.wanted is None or number in self.wanted

    def takes(self, name: str) -> bool:
        """Whether a file or directory is backed up.  Temporary files of a live directory are not: they are incomplete."""
        return name not in self.left_out and not (self.live and name.endswith(TEMPORARY_SUFFIX))


def look_at(path: PurePath, partitions: frozenset[int] | None = None) -> SourceDirectory:
    """Look at a storage directory; `partitions`: only these.

    Raises NotWaltzError, InvalidRequestError for partitions that are not there, DiskReadError.
    """
    path = places.absolute(path)
    view = view_storage(path, ())
    if partitions is not None and view.control is not None and view.control.size_fits:
        check_partitions(view.control, partitions)
    kinds = entry_kinds(path)
    there = mounted(kinds)
    chosen = [one for one in there if partitions is None or one in partitions]
    # perhaps lost: in the backup it would seem to be excluded on purpose
    if absent := sorted((partitions or frozenset()) - {*there}):
        raise InvalidRequestError(
            f"{path}: partition {absent[0]} has no directory, and is to be backed up",
            advice="name partitions that are there; waltzctl status shows which should be",
        )
    links = tuple(one for one in unmounted(kinds) if partitions is None or one in partitions)
    live = places.lock_holder(path, view.control_path) is not None
    state = view.control_state
    content = None if state is None else unmarked(_read_stable(view.control_path))
    # those of before it was read, with which `check_not_replaced` compares: behind it they may be those of other marks
    numbers = None if state is None else FileNumbers(state.size, state.modified_ns, state.inode)
    return SourceDirectory(
        path, live, view.control, content, numbers, tuple(chosen), _left_out(path, view.control), partitions, links
    )


_COUNTED_WHEN_READ = frozenset(Code(cause.value) for cause in DamageCause)
"""Damage between records, which a backup counts as it reads all of each segment; not a torn tail of a live directory."""
Lack = tuple[Code, str, int | None, int | None]
"""Code, path, partition and first transaction of a damage."""


def lacks(source: SourceDirectory, partitions: Collection[int]) -> frozenset[Lack]:
    """The damage that `status` tells, except between records: lost directories, segments and ends, headers, the control file.

    Of these partitions, also without a directory, and of what is beside the partitions; not that a partition's disk is not
    mounted, which the backup tells as `unread`.  Raises DiskReadError, FileNotFoundError.
    """
    control = source.control
    strays = control is not None and any(one >= len(control.partitions) for one in partitions)
    found = storage_status(source.path, None if strays else partitions)  # of a stray alone there is no status
    counted = _COUNTED_WHEN_READ - {Code.TORN_TAIL} if source.live else _COUNTED_WHEN_READ
    those = (partition for partition in found.partitions if partition.partition in partitions)
    told = (*found.findings, *(one for partition in those for one in partition.findings))
    damage = {
        (one.code, str(one.path), one.partition, one.transaction_id)
        for one in told
        if one.severity is Severity.DAMAGE and one.code not in counted
        if not (one.code is Code.READ_ERROR and one.partition in source.unmounted)
    }
    return frozenset(damage | _out_of_reach(source, partitions))


def _out_of_reach(source: SourceDirectory, partitions: Collection[int]) -> set[Lack]:
    """What is put aside on a disk that is not mounted: no damage, and not in the backup."""
    aside = put_aside_path(source.path, 0).parent
    numbers = ((one, partition_number(one.relative_to(aside).parts[0])) for one in out_of_reach(source.path))
    return {(Code.SPECIAL_FILE, str(one), number, None) for one, number in numbers if number in partitions}


def absent(source: SourceDirectory) -> frozenset[int]:
    """The partitions without a directory, of those that are to be backed up."""
    infos = () if source.control is None else source.control.infos
    return frozenset(one.partition for one in infos if source.takes_partition(one.partition)) - {*source.partitions}


def returned(source: SourceDirectory) -> frozenset[int]:
    """The partitions that are to be backed up and had no directory, and have one by now: it is not in the backup.

    One that is mounted anew, say, is lost to nobody who looks behind that.  Raises NotWaltzError, DiskReadError.
    """
    if not places.on_this_machine(source.path):
        return frozenset()
    now = {one for one in partition_directories(source.path) if source.takes_partition(one)}
    return frozenset(now - {*source.partitions, *source.unmounted})


def lacks_nothing_new(
    source: SourceDirectory, number: int, plan: SectionPlan, previous: PreviousSection | None
) -> bool:
    """Whether a partition that lacked nothing in its previous backup lacks nothing now, of whose files none is read for that.

    They are the same, and hold its mark; what the control file says of it is intact; and no segment's file was left out, as one
    that is no regular file, or in creation: the previous backup left it out as well, and in creation it is no more if it stays.
    """
    if previous is None or _info_damaged(source, number):
        return False
    there, before = (
        {(one.name, one.size, one.modified_ns, one.inode) for one in files}
        for files in (plan.files, previous.section.files)
    )
    held = local_mark(source, number) <= (-1 if plan.last is None else plan.last)
    return there == before and held and not _leaves_out(source, number, plan)


def _leaves_out(source: SourceDirectory, number: int, plan: SectionPlan) -> bool:
    """Whether there are files of segments that are not in the plan, or the directory is gone meanwhile."""
    planned = {one.name for one in plan.files}
    try:
        names = places.names(source.path / str(number))
    except FileNotFoundError:
        return True
    return any(parse_name(name) is not None and f"{number}/{name}" not in planned for name in names)


def _info_damaged(source: SourceDirectory, number: int) -> bool:
    control = source.control
    if control is None or number >= len(control.partitions):
        return False
    found = info_findings(source.path / CONTROL_FILE_NAME, control.layout, control.partitions[number], None)
    return any(one.severity is Severity.DAMAGE for one in found)


def local_mark(source: SourceDirectory, number: int) -> int:
    """The local low-water mark in force in the control file that is backed up; -1 where there is none."""
    current = struct_in_force(source.control, number)
    return -1 if current is None else current.local_low_water_mark


def check_written_back(source: SourceDirectory) -> None:
    """Raise RefusedError if acknowledged records may be only in the commit journal of a directory that no process holds."""
    if source.control is not None and source.control.header.journaled and not source.live:
        refuse_marked(source.path)


def unmarked(control: bytes) -> bytes:
    """The bytes of a control file, without the mark that a commit journal is in force."""
    if len(control) < CONTROL_HEADER.size or not (header := ControlHeader.decode(control)).journaled:
        return control
    return replace(header, journaled=False).encode() + control[CONTROL_HEADER.size :]


def _left_out(path: PurePath, control: ControlFile | None) -> frozenset[str]:
    """The lock, and the commit journal that is in force."""
    left_out = {LOCK}
    if control is not None and control.header.journaled:
        left_out.add(state_path(path).relative_to(path).as_posix())
        journal = look_at_journal(path).path
        if journal is not None and journal.is_relative_to(path):
            left_out.add(journal.relative_to(path).as_posix())
    return frozenset(left_out)


def _read_stable(path: PurePath) -> bytes:
    """A small file that may be written meanwhile: it is read until two readings are equal."""
    before = None
    for _ in range(_READ_ATTEMPTS):
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
    """The plan of a partition, in pieces of about `limit` bytes.

    Without `as_it_is`, a data file without an index in a live directory is taken to be in creation, and raises
    SourceChangedError.

    Raises DiskReadError, FileNotFoundError if files are removed meanwhile, SourceChangedError.
    """
    directory, prefix = source.path / str(number), f"{number}/"
    files = {
        name: numbers
        for name, numbers in places.examined(directory).items()
        if numbers is not None and source.takes(prefix + name)
    }
    if source.live:
        files = _without_incomplete_segment(files)
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


def _without_incomplete_segment(files: dict[str, FileNumbers]) -> dict[str, FileNumbers]:
    """The files of a live partition, without those of a segment that is just being created or removed."""
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
    """Check a live partition after reading it: all data files but the last must be as they were planned.

    Returns the last data file, which has to be read again; None without data files.  Raises SourceChangedError.
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
    """Check a partition of a directory that no process held: its files must be as they were planned.

    A node may have started meanwhile, and replaced records.  Raises SourceChangedError.
    """
    directory = source.path / str(number)
    there = places.listing(directory)
    for one in plan.files:
        name = one.name.partition("/")[2]
        if parse_name(name) is not None and there.get(name) != FileNumbers(one.size, one.modified_ns, one.inode):
            raise SourceChangedError(f"{directory / name}: it is another one now, and nobody held the directory before")


def check_not_replaced(source: SourceDirectory, plan: SectionPlan) -> None:
    """Check files outside of the partitions: no file that was read is a mixture of an old and a new version.

    - In a directory that no process held, a node may have started meanwhile.
    - In a live directory, small files were checked when they were read.
    - A file that only grew is as planned, up to its planned size.
    - The control file was read in one piece.  In a directory that no process held it has to be the same still: a repair that gave
      up records has lowered its marks, and those that were read would promise them.

    Raises SourceChangedError, FileNotFoundError.
    """
    there: dict[PurePath, dict[str, FileNumbers | None]] = {}
    for one in plan.files:
        small = all(isinstance(extent, Literal) for extent in one.extents)
        control = one.name == CONTROL_FILE_NAME
        if source.live and (control or small):
            continue
        path = source.path / one.name
        planned = FileNumbers(one.size, one.modified_ns, one.inode)
        # in the way in which it was planned: object stores may report less exact metadata for a single object than by listing
        if control:
            now, appended = places.file_numbers(path), False
        else:
            if path.parent not in there:
                there[path.parent] = places.listing(path.parent)
            now = there[path.parent].get(path.name)
            appended = now is not None and now.inode == planned.inode and now.size > planned.size
        if now != planned and not appended:
            raise SourceChangedError(f"{path}: it is another one now")


def plan_storage(source: SourceDirectory, previous: PreviousSection | None, *, limit: int = LIMIT) -> SectionPlan:
    """The plan of the files outside of the partitions.  Raises as `plan_partition`."""
    planner = SectionPlanner(previous, live=source.live, limit=limit)
    if source.content is not None and source.numbers is not None:
        planner.add_file(source.path / CONTROL_FILE_NAME, CONTROL_FILE_NAME, source.numbers, source.content)
    directories: list[str] = []
    numbers = {str(one) for one in partition_directories(source.path)}
    for name, found in places.examined(source.path, without=numbers).items():
        path = source.path / name
        if name == CONTROL_FILE_NAME or not source.takes(name):
            continue
        if found is not None:
            planner.add_file(path, name, found)
        elif places.is_directory(path) and not places.access(path).link(path):
            _add_tree(planner, source, name, directories)
    return planner.plan(directories)


def _add_tree(planner: SectionPlanner, source: SourceDirectory, name: str, directories: list[str]) -> None:
    directories.append(name)
    for one, numbers in places.examined(source.path / name).items():
        below = f"{name}/{one}"
        path = source.path / below
        if not source.takes(below):
            continue
        if numbers is not None:
            planner.add_file(path, below, numbers)
        elif places.is_directory(path) and (names_put_aside(below) or not places.access(path).link(path)):
            _add_tree(planner, source, below, directories)
