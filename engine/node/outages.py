"""Outages: why a partition cannot take part in a log server's session at present, and what ends that.

Why they are announced.  A released log server treats a replica as absent only if its first request, LastSessionInfo, is refused;
then it goes on with the other replicas and retries later.  A replica that answers LastSessionInfo and fails a later request
(truncate, set-low-water-mark, an append while catching up) aborts the recovery of all replicas, again and again.  A failed read
closes the server's session, and the next session asks the same replica again.  So a partition that has an outage refuses
LastSessionInfo, and every request that writes:

============= ======================================= ===========================================================
code          cause                                    what ends the outage
============= ======================================= ===========================================================
quarantined   damage, when the partition is opened     a repair, and opening it again
sync-failed   a flush failed                           opening it again
io-error      another write failed                     opening it again
disk-full,    what a crash left could not be mended,   opening it again
io-error      or a file not be opened for writing,
              when the partition was opened
damaged       an index without data file, or a data    a repair, and opening it again
              file, stands where a segment is to begin
disk-full     a write found no space                   itself: the disk has the free space that /health requires
corrupt-record, a session read a record that cannot    itself: the record can be read again, after a repair or
io-error      be read or verified                      because the read error was a passing one
============= ======================================= ===========================================================

Reads are served during every outage, on both ports: an operator has to inspect the partition, and reads of other records are not
affected.

Source of the log server's behaviour: release 0.13.2.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import PurePath

from waltzctl.engine.catalogue import Code
from waltzctl.engine.durable import disk
from waltzctl.engine.errors import (
    DESCRIPTOR_SHORTAGE,
    CorruptRecordError,
    DamageError,
    DiskFullError,
    DiskReadError,
    DiskWriteError,
    WaltzError,
    copy_anew,
    lacks_inodes,
)
from waltzctl.engine.findings import Severity
from waltzctl.engine.node.disk_probe import PROBE_SIZE, DiskProbe
from waltzctl.engine.node.failure_responses import denial_of
from waltzctl.engine.node.permissions import Denial
from waltzctl.engine.shell_words import shell_quote
from waltzctl.engine.storage.fences import START_AGAIN
from waltzctl.engine.storage.partition import Partition
from waltzctl.formats.wire.failure import STORAGE_EXCEPTION, FailureCode

_TEMPORARY_ERRORS = (*DESCRIPTOR_SHORTAGE, errno.ENOMEM, errno.EINTR, errno.EAGAIN)
"""Errors of a temporary shortage (descriptors, memory), which begin no outage."""

_OBSTRUCTIONS = (Code.INDEX_ORPHAN, Code.SEGMENT_OVERLAP)
"""Findings of files that stand where a new segment is to begin."""


class Return(Enum):
    """What ends an outage."""

    OPENED = auto()
    """Opening the partition again, by a restart of the node or by switching the partition off and on."""
    SPACE = auto()
    """Free space on the disk."""
    RECORD = auto()
    """Reading the record that could not be read."""


@dataclass(frozen=True, slots=True)
class Outage:
    """Why a partition takes no part in sessions.

    `code`: of the failure that peers get.  `reason`: what happened, continuing "partition N".  `remedy`: what the operator should
    do.  `returns`: what ends the outage.  `transaction_id`: of the record that could not be read; None for any other cause.
    """

    code: FailureCode
    reason: str
    remedy: str
    returns: Return
    transaction_id: int | None = None

    def sentence(self, partition: int) -> str:
        """Reason and remedy as one sentence, for the log, the health check and failures."""
        return f"partition {partition} {self.reason}; it takes no part in sessions: {self.remedy}"

    def denial(self, partition: int) -> Denial:
        """The denial for a request of a session."""
        return Denial(self.code, STORAGE_EXCEPTION, self.sentence(partition))


def standing_outage(partition: Partition) -> Outage | None:
    """The outage that is the partition's own condition: damaged, or refusing writes after a disk error.  None: it is writable."""
    condition = partition.condition
    if condition.error is not None:
        return Outage(
            denial_of(condition.error).code,
            f"accepts no writes after: {condition.error}",
            _OPEN_AGAIN,
            Return.OPENED,
        )
    if condition.damaged:
        worst = next((found for found in partition.findings if found.severity is Severity.DAMAGE), None)
        nothing_told = worst is not None and worst.code is Code.PARTITION_EMPTY
        return Outage(
            FailureCode.QUARANTINED,
            f"is quarantined, every byte is kept: {'damage was found' if worst is None else worst.message}",
            _copy_of(partition) if nothing_told else repair_of(partition),
            Return.OPENED,
        )
    return None


def outage_of(error: BaseException, partition: Partition, transaction_id: int | None) -> Outage | None:
    """The outage that the failure of a request begins; None: the partition can take part in sessions as before.

    `transaction_id`: of the record that the request had to read; None: it read none.
    """
    code = FailureCode.IO_ERROR
    if isinstance(error, DamageError) and any(found.code in _OBSTRUCTIONS for found in error.findings):
        return Outage(FailureCode.DAMAGED, f"cannot begin a segment: {error}", repair_of(partition), Return.OPENED)
    if isinstance(error, DiskFullError):
        return Outage(FailureCode.DISK_FULL, f"found the disk full: {error}", _MAKE_ROOM, Return.SPACE)
    if isinstance(error, DiskWriteError) and error.errno not in _TEMPORARY_ERRORS:
        remedy = _OPEN_AGAIN if partition.marks_failed is None else START_AGAIN
        return Outage(denial_of(error).code, f"cannot write: {error}", remedy, Return.OPENED)
    if isinstance(error, CorruptRecordError):
        code = FailureCode.CORRUPT_RECORD
    elif not isinstance(error, DiskReadError):
        return None
    if transaction_id is None:
        return None
    return Outage(
        code,
        f"has a record that a session could not read: {error}",
        repair_of(partition),
        Return.RECORD,
        transaction_id,
    )


def reads_again(partition: Partition, transaction_id: int) -> bool:
    """Whether a record that could not be read can be read now, or does not exist any more."""
    try:
        partition.read(transaction_id)
    except WaltzError:
        return False
    return True


def repair_of(partition: Partition) -> str:
    """The command that mends a partition with what another replica has."""
    storage = shell_quote(str(partition.path.parent))
    return f"stop the node, run waltzctl recover {storage} --partition {partition.number} --from REPLICA, and start it again"


def _copy_of(partition: Partition) -> str:
    """Where nothing tells what a replica held there is nothing to be restored, and everything to be copied."""
    return f"where other replicas have it, have it copied anew: {copy_anew(partition.number)}"


_OPEN_AGAIN = (
    "look after the disk, then restart the node, or switch the partition off and on again with waltzctl node HOST:PORT"
    " availability"
)
_MAKE_ROOM = "make room, and it comes back by itself"


class Room:
    """Whether the disk has space again, for all partitions with a *disk-full* outage.  Thread-safe; they share its checks."""

    def __init__(self, probe: DiskProbe, *, max_age: float) -> None:
        """`max_age`: seconds for which a check that found no space is not repeated."""
        self.probe = probe
        self.max_age = max_age
        self._lock = threading.Lock()
        self._found_full_at: float | None = None

    def at(self, directory: PurePath) -> bool:
        """Whether a partition's own disk has space, and room for a file, if its directory is on another disk than the node's.

        True if it is on the same disk, of which `there` decides, or if that cannot be found out.
        """
        try:
            if os.stat(directory).st_dev == os.stat(self.probe.path.parent).st_dev:
                return True
            found = disk.free_bytes(directory) >= max(self.probe.min_free_bytes, PROBE_SIZE)
            return found and not lacks_inodes(directory)
        except OSError:
            return True

    def there(self) -> bool:
        """Check the node's disk.  False without a check if one is running, or found no space within `max_age`."""
        if not self._lock.acquire(blocking=False):
            return False
        try:
            if self._found_full_at is not None and time.monotonic() - self._found_full_at < self.max_age:
                return False
            well = self.probe.state().problem is None
            self._found_full_at = None if well else time.monotonic()
            return well
        finally:
            self._lock.release()
