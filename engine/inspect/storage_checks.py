"""Checks of a storage directory besides partitions and control file: unknown files, state files, the ledger of accepted
losses, interrupted repairs.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from pathlib import PurePath

from waltzctl.engine.durable import disk
from waltzctl.engine.errors import DamageError, DiskReadError
from waltzctl.engine.findings import Code, Finding, Severity, make_finding
from waltzctl.engine.findings.directory_contents import ledger_damaged, state_file_damaged
from waltzctl.engine.findings.obstacles import Obstacles
from waltzctl.engine.inspect.partition_checks import PartitionContext, stray_files
from waltzctl.engine.inspect.read_limits import ReadLimits
from waltzctl.engine.inspect.targets import Scope, ScopeSurroundings
from waltzctl.engine.log import places
from waltzctl.engine.storage.availability_marks import availability_path, load_marks
from waltzctl.engine.storage.fences import damaged_fences, fence_path
from waltzctl.engine.storage.loss_ledger import ledger_path
from waltzctl.formats.control import ControlFile


def findings_in_front(scope: Scope, around: ScopeSurroundings, limits: ReadLimits) -> Iterator[Finding]:
    """What is found before any partition is looked at, with the remedies of what has to be mended first."""
    obstacles = Obstacles()
    yield from obstacles.together(around.findings)
    yield from obstacles.together(storage_findings(scope, around, limits))


def storage_findings(scope: Scope, around: ScopeSurroundings, limits: ReadLimits) -> Iterator[Finding]:
    """The findings about these; none if the scope is not a whole storage directory."""
    storage = scope.storage
    if not scope.whole or storage is None:
        return
    yield from stray_files(PartitionContext(storage, None, storage), scope.temporary, _unknown_files(scope, around))
    yield from ledger_findings(scope, around)
    control = around.control if around.control is not None and around.control.size_fits else None
    yield from state_file_findings(storage, control, {one.number for one in scope.partitions.values()})
    if limits.exclusive or not around.held:  # while another process holds the lock, its repair may be running
        yield from _interrupted(storage)


def state_file_findings(
    storage: PurePath, control: ControlFile | None, numbers: Container[int | None]
) -> Iterator[Finding]:
    """Findings about damaged state files, without which our node does not open the directory, or a partition in `numbers`.

    `control`: gives the number of partitions; with None the file of sessions is not checked.
    """
    try:
        load_marks(storage)
    except DamageError as error:
        yield _state_file_damaged(availability_path(storage), error, storage)
    except DiskReadError as error:
        yield make_finding(Code.READ_ERROR, availability_path(storage), str(error), storage_directory=storage)
    if control is None:
        return
    path = fence_path(storage)
    try:
        for partition, damage in damaged_fences(storage, control.header.num_partitions):
            if partition is None or partition in numbers:
                yield _state_file_damaged(path, damage, storage, partition)
    except DiskReadError as error:
        yield make_finding(Code.READ_ERROR, path, str(error), storage_directory=storage)


def _state_file_damaged(path: PurePath, error: DamageError, storage: PurePath, partition: int | None = None) -> Finding:
    """The finding with the message of the node's start, without the path, which is an attribute of the finding."""
    return state_file_damaged(path, error.message.removeprefix(f"{path}: "), storage, partition)


def _unknown_files(scope: Scope, around: ScopeSurroundings) -> tuple[PurePath, ...]:
    """The unknown files of the storage directory, without its commit journal if that is in force."""
    if not scope.unknown or scope.storage is None or around.control is None or not around.control.header.journaled:
        return tuple(scope.unknown)
    from waltzctl.engine.storage.journal_state import look_at_journal

    journal = look_at_journal(scope.storage).path
    return tuple(one for one in scope.unknown if one != journal)


def ledger_findings(scope: Scope, around: ScopeSurroundings) -> Iterator[Finding]:
    """The finding that the ledger is damaged, or cannot be read, so that not all accepted losses are known."""
    if not scope.whole or scope.storage is None:
        return
    if (error := around.ledger_error) is not None:
        # nothing is known to be damaged, and recover would read it as little
        path = ledger_path(scope.storage)
        yield make_finding(Code.READ_ERROR, path, str(error), storage_directory=scope.storage, offset=error.offset)
    elif around.ledger.fault is not None:
        yield ledger_damaged(ledger_path(scope.storage), around.ledger, scope.storage)


def unnamed_losses(scope: Scope, around: ScopeSurroundings) -> Iterator[Finding]:
    """Findings that records with unknown ids may be missing, for commands that read records and do not report the control file.

    These are a damaged ledger, and a commit journal in force: after a crash, records may be in the journal only.  (A running node
    has written the records that it acknowledged to the segments, too, so readers see them.)
    """
    yield from ledger_findings(scope, around)
    for one in around.state.findings:
        if one.code is Code.JOURNAL_PENDING and (one.severity is Severity.DAMAGE or not around.held):
            yield one


def _interrupted(storage: PurePath) -> Iterator[Finding]:
    if not places.on_this_machine(storage) or not places.exists(storage / disk.STATE_DIRECTORY / disk.QUARANTINE):
        return  # there was never a repair here; this saves the imports below
    from waltzctl.engine.durable.quarantine import interruptions
    from waltzctl.engine.storage.store import STORE

    yield from interruptions(places.local(storage), STORE)
