"""Which partition can take no part in a session at present, why, and what brings it back.

A released server counts a replica as absent only when LastSessionInfo, its first question, is refused; then it goes on with the
others and asks again after a while.  A replica that answers it and fails at anything later (truncate, set-low-water-mark, an
append while catching up) aborts the recovery of all, again and again.  And a read that fails closes the server's session, the
next one asks the same replica anew.  So whoever cannot take part must say so at the first question:

============= ======================================= ===========================================================
cause         how it is found                          what brings the partition back
============= ======================================= ===========================================================
quarantined   damage, when the partition is opened     a repair, and opening it again
sync-failed   a flush failed                           opening it again
io-error      another write failed                     opening it again
damaged       an index without data file, or a data    opening it again, behind a repair
              file, stands where a segment is to begin
disk-full     a write found no space                   by itself, when the disk has the space that /health wants
corrupt-record, a session read a record that cannot    by itself, when that record can be read again: after a
io-error      be read or verified                      repair, or when the trouble was not the disk's
============= ======================================= ===========================================================

Reading goes on in all of these, on both ports: an operator has to look, and who reads something else is not concerned.

Source of what the server does: release 0.13.2.
"""

from __future__ import annotations

import errno
import os
import shlex
import threading
import time
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import PurePath

from waltzctl.engine.catalogue import Code
from waltzctl.engine.durable import disk
from waltzctl.engine.errors import (
    CorruptRecordError,
    DamageError,
    DiskFullError,
    DiskReadError,
    DiskWriteError,
    WaltzError,
    copy_anew,
)
from waltzctl.engine.findings import Severity
from waltzctl.engine.node.disk_probe import PROBE_SIZE, DiskProbe
from waltzctl.engine.node.failure_responses import denial_of
from waltzctl.engine.node.permissions import Denial
from waltzctl.engine.storage.partition import Partition
from waltzctl.formats.wire.failure import STORAGE_EXCEPTION, FailureCode

_PASSING = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EINTR, errno.EAGAIN)
"""A process or a machine that is short of something for a moment: no reason to keep a partition out."""

_IN_THE_WAY = (Code.INDEX_ORPHAN, Code.SEGMENT_OVERLAP)
"""What a segment that is to begin may find in its place."""


class Return(Enum):
    """What brings a partition back."""

    OPENED = auto()
    """Opening it again, by a restart of the node or by switching the partition off and on."""
    SPACE = auto()
    """Space on the disk."""
    RECORD = auto()
    """The record that could not be read."""


@dataclass(frozen=True, slots=True)
class Outage:
    """Why a partition takes no part in sessions.

    `code`: what peers are told.  `reason`: what happened to the partition.  `remedy`: what to do.  `transaction_id`: of the
    record that could not be read, None for any other cause.
    """

    code: FailureCode
    reason: str
    remedy: str
    returns: Return
    transaction_id: int | None = None

    def sentence(self, partition: int) -> str:
        """For the log, the health check, and whoever is refused."""
        return f"partition {partition} {self.reason}; it takes no part in sessions: {self.remedy}"

    def denial(self, partition: int) -> Denial:
        """What a request of a session is refused with."""
        return Denial(self.code, STORAGE_EXCEPTION, self.sentence(partition))


def standing_outage(partition: Partition) -> Outage | None:
    """What the partition itself says: it is quarantined, or it writes no more since an error of the disk."""
    if partition.quarantined:
        worst = next((found for found in partition.findings if found.severity is Severity.DAMAGE), None)
        nothing_told = worst is not None and worst.code is Code.PARTITION_EMPTY
        return Outage(
            FailureCode.QUARANTINED,
            f"is quarantined, every byte is kept: {'damage was found' if worst is None else worst.message}",
            _copy_of(partition) if nothing_told else repair_of(partition),
            Return.OPENED,
        )
    if partition.failed is not None:
        return Outage(
            denial_of(partition.failed).code,
            f"accepts no writes after: {partition.failed}",
            _OPEN_AGAIN,
            Return.OPENED,
        )
    return None


def outage_of(error: BaseException, partition: Partition, transaction_id: int | None) -> Outage | None:
    """What follows for the partition from the failure of a request; None when it can take part as before.

    `transaction_id`: the record that the request had to read.
    """
    code = FailureCode.IO_ERROR
    if isinstance(error, DamageError) and any(found.code in _IN_THE_WAY for found in error.findings):
        return Outage(FailureCode.DAMAGED, f"cannot begin a segment: {error}", repair_of(partition), Return.OPENED)
    if isinstance(error, DiskFullError):
        return Outage(FailureCode.DISK_FULL, f"found the disk full: {error}", _MAKE_ROOM, Return.SPACE)
    if isinstance(error, DiskWriteError) and error.errno not in _PASSING:
        return Outage(denial_of(error).code, f"cannot write: {error}", _OPEN_AGAIN, Return.OPENED)
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
    """Whether a record that could not be read can be now, or is gone."""
    try:
        partition.read(transaction_id)
    except WaltzError:
        return False
    return True


def repair_of(partition: Partition) -> str:
    """The command that mends a partition with what another replica has."""
    storage = shlex.quote(str(partition.path.parent))
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
    """Whether the disk has space again, for all partitions that found it full.  Thread-safe; a look is shared for a while."""

    def __init__(self, probe: DiskProbe, *, max_age: float) -> None:
        """`max_age`: seconds for which a look is believed that found no space."""
        self.probe = probe
        self.max_age = max_age
        self._lock = threading.Lock()
        self._refused_at: float | None = None

    def at(self, directory: PurePath) -> bool:
        """Whether there is room for a partition on a disk of its own, by that one's figure; elsewhere `there` tells."""
        try:
            if os.stat(directory).st_dev == os.stat(self.probe.path.parent).st_dev:
                return True
            return disk.free_bytes(directory) >= max(self.probe.min_free_bytes, PROBE_SIZE)
        except OSError:
            return True

    def there(self) -> bool:
        """Look, unless somebody did a moment ago or is doing so; then the answer is no."""
        if not self._lock.acquire(blocking=False):
            return False
        try:
            if self._refused_at is not None and time.monotonic() - self._refused_at < self.max_age:
                return False
            well = self.probe.look().problem is None
            self._refused_at = None if well else time.monotonic()
            return well
        finally:
            self._lock.release()
