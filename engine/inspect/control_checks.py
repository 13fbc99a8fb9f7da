"""The check of a control file, repeated until no struct of it is being written."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import PurePath

from waltzctl.engine.errors import DiskReadError, SpecialFileError
from waltzctl.engine.findings import Code, Finding, make_finding
from waltzctl.engine.findings.control_files import (
    control_findings,
    control_missing,
    control_short,
    journal_pending,
)
from waltzctl.engine.inspect.live import QUIET
from waltzctl.engine.log import places
from waltzctl.engine.log.view import FileState, read_control
from waltzctl.formats.control import ControlFile

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
    """Read and check a control file; a struct that is being written at this moment is not reported.

    A node writes a struct's fields before its checksum, through a memory map, so the modification time does not show a write.
    While a process holds the lock, or the file is new, a file with findings is therefore read again until two reads agree.

    `exclusive`: nobody can be writing.  `storage`: the directory that remedies name.  `partitions`: check the structs of these
    only.
    """
    state = FileState.of(path)
    age = 0.0 if state is None else time.time() - state.modified_ns / 1e9
    quiet = exclusive or (age >= QUIET and places.lock_holder(path.parent, path) is None)
    before: tuple[Finding, ...] | None = None
    control: ControlFile | None = None
    for _ in range(_LOOKS):
        try:
            control = read_control(path)
        except SpecialFileError as error:
            return ControlState(None, (make_finding(Code.SPECIAL_FILE, path, str(error)),))
        except DiskReadError as error:
            return ControlState(None, (make_finding(Code.READ_ERROR, path, str(error), offset=error.offset),))
        found = tuple(_check(path, control, storage, partitions))
        if not found or quiet or found == before:
            return ControlState(control, found)
        before = found
        time.sleep(_PAUSE)
    return ControlState(control)  # no two reads agreed: it is being written


def _check(
    path: PurePath, control: ControlFile | None, storage: PurePath | None, partitions: Collection[int] | None
) -> Iterator[Finding]:
    """Findings of a control file as decoded; None stands for one that is missing or too short for its header."""
    if control is not None:
        yield from control_findings(path, control, storage, partitions)
        yield from journal_findings(path, control, storage)
    elif (state := FileState.of(path)) is not None:
        yield control_short(path, state.size, storage)
    else:
        yield control_missing(path, storage)


def journal_findings(path: PurePath, control: ControlFile, storage: PurePath | None) -> Iterator[Finding]:
    """The finding that acknowledged records may be in a commit journal only.  The journal's records are not read."""
    if not control.header.journaled:
        return
    from waltzctl.engine.storage.journal_state import JournalOutlook, look_at_journal

    found = JournalOutlook(None) if storage is None else look_at_journal(storage)
    yield journal_pending(path, found.path, found.fault, found.mend)
