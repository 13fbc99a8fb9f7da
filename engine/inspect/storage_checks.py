"""What lies in a storage directory beside partitions and control file: strangers, the ledger, repairs that were interrupted."""

from __future__ import annotations

from collections.abc import Container, Iterator
from pathlib import PurePath

from waltzctl.engine.durable import disk
from waltzctl.engine.errors import DamageError, DiskReadError
from waltzctl.engine.findings import Code, Finding, Severity, make_finding
from waltzctl.engine.findings.directory_contents import ledger_damaged, state_file_damaged
from waltzctl.engine.inspect.partition_checks import PartitionContext, stray_files
from waltzctl.engine.inspect.read_limits import ReadLimits
from waltzctl.engine.inspect.targets import Scope, ScopeSurroundings
from waltzctl.engine.log import places
from waltzctl.engine.storage.availability_marks import availability_path, load_marks
from waltzctl.engine.storage.fences import damaged_fences, fence_path
from waltzctl.engine.storage.loss_ledger import ledger_path
from waltzctl.formats.control import ControlFile


def storage_findings(scope: Scope, around: ScopeSurroundings, limits: ReadLimits) -> Iterator[Finding]:
    """What lies in the storage directory beside partitions and control file."""
    storage = scope.storage
    if not scope.whole or storage is None:
        return
    yield from stray_files(PartitionContext(storage, None, storage), scope.temporary, _strangers(scope, around))
    yield from ledger_findings(scope, around)
    control = around.control if around.control is not None and around.control.size_fits else None
    yield from state_file_findings(storage, control, {one.number for one in scope.partitions.values()})
    if limits.exclusive or not around.held:  # a repair that is running now is not interrupted
        yield from _interrupted(storage)


def state_file_findings(
    storage: PurePath, control: ControlFile | None, numbers: Container[int | None]
) -> Iterator[Finding]:
    """Files of our own without which no node opens the directory, or one of these partitions.

    `control` None: nothing tells of how many partitions there are sessions.
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
    """What a node says of the file when it starts; the finding names the path apart."""
    return state_file_damaged(path, error.message.removeprefix(f"{path}: "), storage, partition)


def _strangers(scope: Scope, around: ScopeSurroundings) -> tuple[PurePath, ...]:
    """Names that belong to nothing; a journal that is in force, in the directory itself, belongs to it."""
    if not scope.unknown or scope.storage is None or around.control is None or not around.control.header.journaled:
        return tuple(scope.unknown)
    from waltzctl.engine.storage.journal_state import look_at_journal

    journal = look_at_journal(scope.storage).path
    return tuple(one for one in scope.unknown if one != journal)


def ledger_findings(scope: Scope, around: ScopeSurroundings) -> Iterator[Finding]:
    """That nobody knows of all losses that were accepted; whoever names those says so."""
    if scope.whole and scope.storage is not None and around.ledger.fault is not None:
        yield ledger_damaged(ledger_path(scope.storage), around.ledger.fault, scope.storage)


def unnamed_losses(scope: Scope, around: ScopeSurroundings) -> Iterator[Finding]:
    """That records may be missing of which nobody can say the ids, for whoever reads records and not the control file.

    A commit journal that is in force: what a node's death left in it may not be in the segments.  A node that runs has written to
    its segments what it acknowledged, and whoever reads sees it there.
    """
    yield from ledger_findings(scope, around)
    for one in around.state.findings:
        if one.code is Code.JOURNAL_PENDING and (one.severity is Severity.DAMAGE or not around.held):
            yield one


def _interrupted(storage: PurePath) -> Iterator[Finding]:
    if not places.on_this_machine(storage) or not places.exists(storage / disk.STATE_DIRECTORY / disk.QUARANTINE):
        return  # nothing was ever repaired here: the import below is saved as well
    from waltzctl.engine.durable.quarantine import interruptions
    from waltzctl.engine.storage.store import STORE

    yield from interruptions(places.local(storage), STORE)
