"""Finding control files in arbitrary bytes, and choosing the one whose sessions and marks are used.

A control file is a header without a checksum, followed by an info (a partition id and a pair of structs) for each partition.  It
is accepted when the header is plausible and at least one info proves it: the id is right for its place, and a struct has a right
checksum, in one of the two layouts.  Only such infos are used; a struct with a wrong checksum never is.

Several control files of one cluster may be found: copies and earlier states of one node's file, and files of other nodes, whose
marks do not apply.  A file's creation time never changes.  So files with different creation times, or different numbers of
partitions, are those of different nodes, and the operator must say which one is meant.  Of several states of one file the newest
is used: the one in which every partition's struct in force is at least as new as in all others.  If there is none, the operator
decides.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from uuid import UUID

from waltzctl.engine.errors import InvalidRequestError
from waltzctl.engine.repair.salvage_headers import FoundHeader
from waltzctl.engine.scan.byte_source import ByteSource, read_bytes
from waltzctl.formats.adapters import format_time
from waltzctl.formats.control import (
    CONTROL_HEADER,
    MAX_PARTITIONS,
    NEVER,
    Choice,
    ControlFile,
    ControlHeader,
    Layout,
    PartitionInfo,
    PartitionStruct,
    choose_current,
    convert_info,
)

PROBED = 4096
"""One of so many first infos has to prove a control file; bounds the work on bytes that merely look like its header."""


def proven(info: PartitionInfo) -> bool:
    """Whether an info can be used: its id is right for its place, and one of its structs is in force."""
    return info.stored_partition == info.partition and info.current is not None


def carve_control(source: ByteSource, offset: int) -> ControlFile | None:
    """The control file that begins at byte `offset`, as far as the source holds it; None unless an info proves it.

    The result has the infos that are there, at most the number in the header; `proven` says which of them can be used.
    Raises DiskReadError.
    """
    raw = bytes(read_bytes(source, offset, CONTROL_HEADER.size))
    if len(raw) < CONTROL_HEADER.size:
        return None
    header = ControlHeader.decode(raw)
    if not 0 < header.num_partitions <= MAX_PARTITIONS:
        return None
    found = [_decode(source, offset, layout, header, PROBED) for layout in Layout]
    best = max(found, key=lambda control: sum(map(proven, control.partitions)))
    if not any(map(proven, best.partitions)):
        return None
    return _decode(source, offset, best.layout, header, header.num_partitions)


def _decode(source: ByteSource, offset: int, layout: Layout, header: ControlHeader, most: int) -> ControlFile:
    """The file with up to `most` infos."""
    length = layout.file_size(min(header.num_partitions, most))
    raw = bytes(read_bytes(source, offset, length))
    count = (len(raw) - CONTROL_HEADER.size) // layout.info_schema.size
    infos = tuple(PartitionInfo.decode(layout, p, raw, layout.info_offset(p)) for p in range(count))
    return ControlFile(layout, header, infos, len(raw), count == header.num_partitions)


@dataclass(frozen=True, slots=True)
class FoundControl:
    """A control file that was found at byte `offset` of `path`.

    `used`: sessions and marks are taken from it; `reason`: why or why not, in words.
    """

    path: Path
    offset: int
    control: ControlFile
    used: bool = False
    reason: str = ""

    @property
    def place(self) -> str:
        """Its name on the command line, ``PATH:OFFSET``."""
        return f"{self.path}:{self.offset}"

    @property
    def structs(self) -> int:
        """Number of structs with a right checksum in infos that can be used."""
        return sum(one.valid for info in self.control.partitions if proven(info) for one in info.structs)

    @property
    def unknown(self) -> tuple[int, ...]:
        """Partitions whose info is missing or cannot be used."""
        known = {info.partition for info in self.control.partitions if proven(info)}
        return tuple(p for p in range(self.control.header.num_partitions) if p not in known)


@dataclass(frozen=True, slots=True)
class FoundControls:
    """The control files of a cluster that were found; at most one of them is used."""

    found: tuple[FoundControl, ...] = ()

    @property
    def used(self) -> FoundControl | None:
        """The one from which sessions and marks are taken, None when none is used."""
        return next((one for one in self.found if one.used), None)

    def unused(self, reason: str) -> FoundControls:
        """The same files with none of them used, for `reason`."""
        return FoundControls(tuple(replace(one, used=False, reason=reason) for one in self.found))


def read_controls(
    sources: Sequence[ByteSource], paths: Sequence[Path], headers: Sequence[FoundHeader]
) -> tuple[FoundControl, ...]:
    """The control files at the given control file headers.  Raises DiskReadError."""
    found = ((one, carve_control(sources[one.source], one.offset)) for one in headers)
    return tuple(FoundControl(paths[one.source], one.offset, control) for one, control in found if control is not None)


def choose_control(
    found: Sequence[FoundControl], *, num_partitions: int | None = None, at: str | None = None
) -> FoundControls:
    """Choose which control file of one cluster is used; each result says why or why not.

    `num_partitions`: the caller's number of partitions; files with another number are not used.  `at`: the place
    (``PATH:OFFSET``) that the caller chose.  Raises InvalidRequestError when no control file begins there, or when it
    contradicts `num_partitions`.
    """
    if at is not None:
        named = next((one for one in found if one.place == at), None)
        if named is not None and num_partitions not in (None, named.control.header.num_partitions):
            raise InvalidRequestError(f"{at}: {_other_count(named, num_partitions)}", advice="leave one of the two out")
        if named is None:
            raise InvalidRequestError(f"{at}: no control file of this cluster begins there", advice=_places(found))
        return _use(found, at, "it was named", "another one was named")
    fitting = [one for one in found if num_partitions in (None, one.control.header.num_partitions)]
    if not fitting:
        return FoundControls(tuple(replace(one, reason=_other_count(one, num_partitions)) for one in found))
    names = {(one.control.header.num_partitions, one.control.header.created) for one in fitting}
    if len(names) > 1:
        said = ", ".join(f"{count} partitions, created {format_time(created)}" for count, created in sorted(names))
        return FoundControls(tuple(found)).unused(
            f"those of several nodes were found ({said}): nothing tells which is meant"
        )
    newest = [one for one in fitting if all(_at_least_as_new(one, other) for other in fitting)]
    newest.sort(key=lambda one: -one.structs)  # the most complete copy first
    if not newest:
        reason = "states of one file contradict each other: each has a partition that is newer than in another"
        return FoundControls(tuple(found)).unused(reason)
    same = all(_at_least_as_new(other, newest[0]) for other in fitting)
    why = (
        "the only one"
        if len(fitting) == 1
        else "all say the same"
        if same
        else "sequence numbers, sessions and marks are the newest"
    )
    chosen = _use(fitting, newest[0].place, why, "says the same" if same else "not newer than the one that is used")
    others = [replace(one, reason=_other_count(one, num_partitions)) for one in found if one not in fitting]
    return FoundControls((*chosen.found, *others))


def _other_count(one: FoundControl, wanted: int | None) -> str:
    return f"it is for {one.control.header.num_partitions} partitions, {wanted} were asked for"


def _places(found: Sequence[FoundControl]) -> str | None:
    return f"there are {', '.join(one.place for one in found)}" if found else None


def _use(found: Sequence[FoundControl], place: str, why: str, why_not: str) -> FoundControls:
    return FoundControls(
        tuple(replace(one, used=one.place == place, reason=why if one.place == place else why_not) for one in found)
    )


def _at_least_as_new(one: FoundControl, other: FoundControl) -> bool:
    """Whether each partition that both files prove is at least as new in the first one."""
    for mine, theirs in zip(one.control.partitions, other.control.partitions, strict=False):
        if proven(mine) and proven(theirs) and not _not_older(mine.current_struct, theirs.current_struct):
            return False
    return True


def _not_older(mine: PartitionStruct | None, theirs: PartitionStruct | None) -> bool:
    assert mine is not None  # both are proven
    assert theirs is not None
    if mine.marks == theirs.marks and mine.sequence == theirs.sequence:
        return True
    if mine.layout is not theirs.layout:  # the file was converted in between: only sessions and marks are comparable
        mine, theirs = PartitionStruct(*mine.marks), PartitionStruct(*theirs.marks)
    number, choice = choose_current(mine, theirs)
    if choice is Choice.SAME:
        return True
    return number == 1 and mine.session_id >= theirs.session_id


def assigned_by(control: ControlFile) -> frozenset[int]:
    """The partitions that were assigned, by their flag; in a layout without flags, those that have seen a session."""
    found = set()
    for info in filter(proven, control.partitions):
        current = info.current_struct
        assert current is not None
        if current.marks != NEVER if current.assigned is None else current.assigned:
            found.add(info.partition)
    return frozenset(found)


def salvaged_infos(control: ControlFile, layout: Layout, partitions: Collection[int]) -> Mapping[int, PartitionInfo]:
    """The infos of `partitions` for a new control file of `layout`: assigned, switched on, with session and marks as found."""
    return {
        info.partition: convert_info(info, layout, available=True, assigned=True)
        for info in control.partitions
        if info.partition in partitions and proven(info)
    }


def of_cluster(found: Sequence[FoundControl], keys: Mapping[UUID, UUID], key: UUID) -> list[FoundControl]:
    """The control files whose key is taken for `key`; `keys` is the result of `join_keys`."""
    return [one for one in found if keys.get(one.control.header.cluster_key) == key]
