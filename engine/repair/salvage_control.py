"""Control files in bytes of any origin: which are there, and which one tells the sessions and marks of what is salvaged.

A control file has a header without a checksum and, behind it, a pair of structs for each partition.  It is believed when the
header is plausible and at least one partition info behind it proves it: the right id in its place and a struct with a right
checksum, in one of the two layouts.  Of the infos only such are used; a struct with a wrong checksum is never taken.

Several control files of one cluster may be found: copies and earlier states of one node's file, and files of other nodes, whose
marks say nothing of this one.  A node's file keeps the time of its creation for ever, so files with another time, or another
number of partitions, are another node's, and nothing tells which is meant.  Of the states of one file the newest counts: the
one of which every partition has a struct in force that is at least as new as in all others.  Where that is not so a person
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
"""Infos among which one has to prove a control file; it bounds the work on whatever looks like the header of one."""
NEVER = (-1, -1, -1)
"""Session and marks of a partition that has seen no session."""


def proven(info: PartitionInfo) -> bool:
    """Whether an info can be used: its id belongs to its place, and one of its structs is in force."""
    return info.stored_partition == info.partition and info.current is not None


def carve_control(source: ByteSource, offset: int) -> ControlFile | None:
    """The control file that begins at `offset`, as far as the source holds it; None unless an info proves it.

    In it are as many infos as are there, up to the number in the header; `proven` says which of them can be used.  Raises
    DiskReadError.
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
    """A control file and where it begins.  `used` and `reason`: whether it tells the marks, and why or why not."""

    path: Path
    offset: int
    control: ControlFile
    used: bool = False
    reason: str = ""

    @property
    def place(self) -> str:
        """How it is named on the command line."""
        return f"{self.path}:{self.offset}"

    @property
    def structs(self) -> int:
        """Structs with a right checksum, in infos with the right id."""
        return sum(one.valid for info in self.control.partitions if proven(info) for one in info.structs)

    @property
    def unknown(self) -> tuple[int, ...]:
        """Partitions of which nothing here can be used."""
        known = {info.partition for info in self.control.partitions if proven(info)}
        return tuple(p for p in range(self.control.header.num_partitions) if p not in known)


@dataclass(frozen=True, slots=True)
class FoundControls:
    """The control files of a cluster that were found, and the one that is used, if any."""

    found: tuple[FoundControl, ...] = ()

    @property
    def used(self) -> FoundControl | None:
        """The one that tells sessions and marks."""
        return next((one for one in self.found if one.used), None)

    def unused(self, reason: str) -> FoundControls:
        """Without one that is used."""
        return FoundControls(tuple(replace(one, used=False, reason=reason) for one in self.found))


def read_controls(
    sources: Sequence[ByteSource], paths: Sequence[Path], headers: Sequence[FoundHeader]
) -> tuple[FoundControl, ...]:
    """The control files at the headers that were found to be theirs.  Raises DiskReadError."""
    found = ((one, carve_control(sources[one.source], one.offset)) for one in headers)
    return tuple(FoundControl(paths[one.source], one.offset, control) for one, control in found if control is not None)


def choose_control(
    found: Sequence[FoundControl], *, num_partitions: int | None = None, at: str | None = None
) -> FoundControls:
    """Which of the control files of one cluster is used; each says why it is, or why not.

    `num_partitions`: the number that the caller gave, which wins over what the files say.  `at`: the place (``PATH:OFFSET``)
    that the caller chose.  Raises InvalidRequestError when there is no control file at that place.
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
    newest.sort(key=lambda one: -one.structs)  # of copies the most complete one
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
    """Whether every partition of which both know something is at least as new in the first one."""
    for mine, theirs in zip(one.control.partitions, other.control.partitions, strict=False):
        if proven(mine) and proven(theirs) and not _not_older(mine.current_struct, theirs.current_struct):
            return False
    return True


def _not_older(mine: PartitionStruct | None, theirs: PartitionStruct | None) -> bool:
    assert mine is not None  # both are proven
    assert theirs is not None
    if mine.marks == theirs.marks and mine.sequence == theirs.sequence:
        return True
    if mine.layout is not theirs.layout:  # converted in between; only marks can be compared
        mine, theirs = PartitionStruct(*mine.marks), PartitionStruct(*theirs.marks)
    number, choice = choose_current(mine, theirs)
    if choice is Choice.SAME:
        return True
    return number == 1 and mine.session_id >= theirs.session_id


def assigned_by(control: ControlFile) -> frozenset[int]:
    """The partitions that a control file shows to have been there: by their flag, or by a session where there are no flags."""
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
    """Those whose key, when a few damaged bits are forgiven, is `key`."""
    return [one for one in found if keys.get(one.control.header.cluster_key) == key]
