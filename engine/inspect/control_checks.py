"""What is wrong with a control file: header, length, and each partition's pair of structs."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import PurePath

from waltzctl.engine.errors import DiskReadError, SpecialFileError
from waltzctl.engine.findings import Code, Finding, make_finding
from waltzctl.engine.inspect.live import QUIET
from waltzctl.engine.storage import places
from waltzctl.engine.storage.control_file import extended_finding
from waltzctl.engine.storage.view import FileState, read_control
from waltzctl.formats.control import (
    CONTROL_HEADER,
    CONTROL_VERSION,
    Choice,
    ControlFile,
    Layout,
    PartitionInfo,
    PartitionStruct,
)

_LOOKS = 20
_PAUSE = 0.01


@dataclass(frozen=True, slots=True)
class ControlState:
    """A control file and what is wrong with it.  `control` is None when there is nothing to decode."""

    control: ControlFile | None
    findings: tuple[Finding, ...] = ()


def inspect_control(
    path: PurePath, storage: PurePath | None, partitions: Collection[int] | None = None, *, exclusive: bool = False
) -> ControlState:
    """Read and check a control file; a struct that is being written at this moment is no finding.

    A node writes a struct's fields before its checksum, through a memory map, so that the file's time does not tell. So while
    somebody holds the file, or it is new, whatever looks wrong is read again until two looks agree; `exclusive` says that
    nobody can be writing.  `storage` is the directory that remedies name; `partitions` restricts whose structs are checked.
    """
    state = FileState.of(path)
    age = 0.0 if state is None else time.time() - state.modified_ns / 1e9
    still = exclusive or (age >= QUIET and places.lock_holder(path.parent, path) is None)
    before: tuple[Finding, ...] | None = None
    control: ControlFile | None = None
    for _ in range(_LOOKS):
        try:
            control = read_control(path)
        except SpecialFileError as error:
            return ControlState(None, (make_finding(Code.SPECIAL_FILE, path, str(error)),))
        except DiskReadError as error:
            return ControlState(None, (make_finding(Code.READ_ERROR, path, str(error), offset=error.offset),))
        found = tuple(check_control(path, control, storage, partitions))
        if not found or still or found == before:
            return ControlState(control, found)
        before = found
        time.sleep(_PAUSE)
    return ControlState(control)  # never the same twice: it is being written


def check_control(
    path: PurePath, control: ControlFile | None, storage: PurePath | None, partitions: Collection[int] | None = None
) -> Iterator[Finding]:
    """Findings of a control file as decoded; None stands for one that is missing or too short for its header."""
    if control is None:
        yield _no_header(path, storage)
        return
    header = control.header
    if header.version != CONTROL_VERSION:
        yield make_finding(
            Code.UNKNOWN_VERSION,
            path,
            f"the header's format version is {header.version}; only {CONTROL_VERSION} is known",
            storage_directory=storage,
            offset=CONTROL_HEADER.offset_of("version"),
            length=CONTROL_HEADER.size_of("version"),
        )
    if not control.size_fits:
        yield _size_finding(path, control, storage)
    if control.extended:
        yield extended_finding(path, control, storage)
    if (place := first_nonzero(header.reserved)) is not None:
        yield make_finding(
            Code.RESERVED_NOT_ZERO,
            path,
            f"a reserved byte of the header is {header.reserved[place]:#04x} instead of 0",
            offset=CONTROL_HEADER.offset_of("reserved") + place,
            length=1,
        )
    for info in control.partitions:
        if partitions is None or info.partition in partitions:
            yield from _check_info(path, control.layout, info, storage)


def first_nonzero(data: bytes) -> int | None:
    """Where the first byte stands that is not zero."""
    rest = data.lstrip(b"\0")
    return len(data) - len(rest) if rest else None


def _no_header(path: PurePath, storage: PurePath | None) -> Finding:
    state = FileState.of(path)
    if state is None:
        return make_finding(
            Code.CONTROL_FILE_MISSING,
            path,
            "there is no control file, but there are partitions",
            storage_directory=storage,
        )
    return make_finding(
        Code.CONTROL_FILE_SIZE,
        path,
        f"the file has {state.size} bytes; its header alone has {CONTROL_HEADER.size}",
        storage_directory=storage,
        offset=state.size,
    )


def _size_finding(path: PurePath, control: ControlFile, storage: PurePath | None) -> Finding:
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


def computed_checksum(one: PartitionStruct) -> int:
    """The checksum that the values of a struct should have."""
    return one.sealed().checksum


def _check_info(path: PurePath, layout: Layout, info: PartitionInfo, storage: PurePath | None) -> Iterator[Finding]:
    partition = info.partition

    def finding(code: Code, message: str, offset: int, length: int) -> Finding:
        return make_finding(
            code, path, message, storage_directory=storage, partition=partition, offset=offset, length=length
        )

    start = layout.info_offset(partition)
    if info.stored_partition != partition:
        yield finding(
            Code.CONTROL_PARTITION_ID,
            f"the info of partition {partition} stores the id {info.stored_partition}",
            start,
            layout.info_schema.size_of("partition"),
        )
    bad = [number for number in (1, 2) if not info.structs[number - 1].valid]
    said = ", ".join(
        f"struct {number} at offset {layout.struct_offset(partition, number)}: checksum stored"
        f" {info.structs[number - 1].checksum:08x}, computed {computed_checksum(info.structs[number - 1]):08x}"
        for number in bad
    )
    size = layout.struct_schema.size
    if info.choice is Choice.NONE_VALID:
        yield finding(
            Code.CONTROL_PAIR_CHECKSUM,
            f"neither struct of partition {partition} is valid: {said}",
            layout.struct_offset(partition, 1),
            2 * size,
        )
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
            layout.struct_offset(partition, 1),
            2 * size,
        )
    elif bad:
        yield finding(
            Code.CONTROL_STRUCT_CHECKSUM,
            f"partition {partition}, {said}; struct {info.current} is in force",
            layout.struct_offset(partition, bad[0]),
            size,
        )
