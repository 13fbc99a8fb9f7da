"""Findings about a control file: its header, its length, and each partition's pair of structs.

`formats.control` decides which struct of a pair is in force and whether the length fits; this module chooses code, offset and
message.  In all functions `storage` is the storage directory that remedies name; with None there is no remedy.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import PurePath

from waltzctl.engine.findings import Code, Finding, Severity, make_finding
from waltzctl.engine.findings.headers import ReservedByte
from waltzctl.formats.control import (
    CONTROL_HEADER,
    CONTROL_VERSION,
    Choice,
    ControlFile,
    Layout,
    PartitionInfo,
)


def control_missing(path: PurePath, storage: PurePath | None) -> Finding:
    """There are partition directories, but the control file `path` does not exist."""
    message = "there is no control file, but there are partitions"
    return make_finding(Code.CONTROL_FILE_MISSING, path, message, storage_directory=storage)


def control_short(path: PurePath, size: int, storage: PurePath | None) -> Finding:
    """A control file of `size` bytes, fewer than its header has."""
    return make_finding(
        Code.CONTROL_FILE_SIZE,
        path,
        f"the file has {size} bytes; its header alone has {CONTROL_HEADER.size}",
        storage_directory=storage,
        offset=size,
    )


def control_findings(
    path: PurePath, control: ControlFile, storage: PurePath | None, partitions: Collection[int] | None = None
) -> Iterator[Finding]:
    """Everything that is wrong with a control file that has a whole header.

    `partitions`: the partitions whose structs are checked; None for all.
    """
    header = control.header
    if header.version != CONTROL_VERSION:
        yield control_version(path, control, storage)
    if not control.size_fits:
        yield control_size(path, control, storage)
    if control.extended:
        yield control_extended(path, control, storage)
    if (reserved := ReservedByte.of(header.reserved)) is not None:
        place = CONTROL_HEADER.offset_of("reserved") + reserved.place
        yield make_finding(Code.RESERVED_NOT_ZERO, path, reserved.message, offset=place, length=1)
    for info in control.infos:
        if partitions is None or info.partition in partitions:
            yield from info_findings(path, control.layout, info, storage)


def control_version(path: PurePath, control: ControlFile, storage: PurePath | None) -> Finding:
    """The format version in the header is not CONTROL_VERSION."""
    return make_finding(
        Code.UNKNOWN_VERSION,
        path,
        f"the header's format version is {control.header.version}; only {CONTROL_VERSION} is known",
        storage_directory=storage,
        offset=CONTROL_HEADER.offset_of("version"),
        length=CONTROL_HEADER.size_of("version"),
    )


def control_size(path: PurePath, control: ControlFile, storage: PurePath | None) -> Finding:
    """The file's length fits neither layout for the number of partitions in its header."""
    count = control.header.num_partitions
    wanted = " or ".join(f"{layout.file_size(count)} ({layout})" for layout in Layout) if count > 0 else "more"
    held = len(control.partitions)
    return make_finding(
        Code.CONTROL_FILE_SIZE,
        path,
        f"the header says {count} partitions, which needs {wanted} bytes, but the file has {control.size}: room for {held}"
        f" in the {control.layout} layout",
        storage_directory=storage,
        offset=CONTROL_HEADER.offset_of("num_partitions"),
        length=CONTROL_HEADER.size_of("num_partitions"),
    )


def control_extended(path: PurePath, control: ControlFile, storage: PurePath | None) -> Finding:
    """A release has extended a control file of the documented layout with zeros."""
    end = control.layout.file_size(len(control.partitions))
    return make_finding(
        Code.CONTROL_FILE_EXTENDED,
        path,
        f"{control.size - end} zeros stand behind the infos of the {control.layout} layout: release 0.13.2 has tried to open"
        " the directory, extended the file, and failed; what stood in it is intact",
        storage_directory=storage,
        offset=end,
        length=control.size - end,
    )


def journal_pending(path: PurePath, journal: PurePath | None, fault: str | None, mend: str) -> Finding:
    """The control file says that acknowledged records may be in a commit journal only, and not in their segments yet.

    `journal`: the path of the commit journal, None where it is not known.  `fault`: why its records cannot be written back to
    the segments; None where they can.  `mend`: what lets them be written back again.
    """
    where = "a commit journal" if journal is None else f"the commit journal {journal}"
    if fault is None:
        then = "they are written back when the node, or append, opens the directory, and release 0.13.2 does not open it before"
    else:
        then = (
            f"{fault}; {mend}, and if that is lost for good give them up with recover --forget-journal, then take them from a"
            " replica"
        )
    return make_finding(
        Code.JOURNAL_PENDING,
        path,
        f"acknowledged records may stand in {where} and not in their segments; {then}",
        severity=None if fault is None else Severity.DAMAGE,
        offset=CONTROL_HEADER.offset_of("num_partitions"),
        length=CONTROL_HEADER.size_of("num_partitions"),
    )


def info_findings(path: PurePath, layout: Layout, info: PartitionInfo, storage: PurePath | None) -> Iterator[Finding]:
    """What is wrong with a partition's info: the partition id stored in it, and its pair of structs."""
    if info.stored_partition != info.partition:
        yield make_finding(
            Code.CONTROL_PARTITION_ID,
            path,
            f"the info of partition {info.partition} stores the id {info.stored_partition}",
            storage_directory=storage,
            partition=info.partition,
            offset=layout.info_offset(info.partition),
            length=layout.info_schema.size_of("partition"),
        )
    yield from pair_findings(path, layout, info, storage)


def pair_findings(path: PurePath, layout: Layout, info: PartitionInfo, storage: PurePath | None) -> Iterator[Finding]:
    """What is wrong with a partition's pair of structs; at most one finding."""
    partition, size = info.partition, layout.struct_schema.size
    bad = [number for number in (1, 2) if not info.structs[number - 1].valid]

    def finding(code: Code, message: str, first: int, structs: int) -> Finding:
        return make_finding(
            code,
            path,
            message,
            storage_directory=storage,
            partition=partition,
            offset=layout.struct_offset(partition, first),
            length=structs * size,
        )

    if info.choice is Choice.NONE_VALID:
        said = f"neither struct of partition {partition} is valid: {_wrong(layout, info, bad)}"
        yield finding(Code.CONTROL_PAIR_CHECKSUM, said, 1, 2)
    elif info.choice is Choice.TIE:
        first, second = info.structs
        why = (
            f"both have sequence {first.sequence}"
            if first.sequence is not None
            else "each has a mark above the other's"
        )
        yield finding(
            Code.CONTROL_PAIR_TIE,
            f"both structs of partition {partition} are valid and nothing tells which is newer: {why}; sessions"
            f" {first.session_id} and {second.session_id}, low-water marks {first.low_water_mark} and"
            f" {second.low_water_mark}",
            1,
            2,
        )
    elif bad:
        said = f"partition {partition}, {_wrong(layout, info, bad)}; struct {info.current} is in force"
        yield finding(Code.CONTROL_STRUCT_CHECKSUM, said, bad[0], 1)


def _wrong(layout: Layout, info: PartitionInfo, bad: list[int]) -> str:
    structs = ((number, info.structs[number - 1]) for number in bad)
    return ", ".join(
        f"struct {number} at offset {layout.struct_offset(info.partition, number)}: checksum stored {one.checksum:08x},"
        f" computed {one.sealed().checksum:08x}"
        for number, one in structs
    )
