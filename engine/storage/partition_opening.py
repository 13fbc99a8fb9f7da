"""Examining and opening one partition of a storage directory.

A partition is examined first (`examine`), which changes nothing but makes durable what was read.  It is then opened as it was
examined (`open_examined`): a sound partition is mended and writable, any other is opened quarantined.  An error of the disk, or
damage, quarantines the one partition and never keeps the directory from opening.  A shortage of file descriptors does: nothing is
wrong with the partition, and a process that may open more files opens it (`PartitionOpener.raises_shortage`).  In a running
node, and where the system lacked memory, the partition is UNMENDED: it needs to be opened again, and no repair.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from waltzctl.engine.durable import file_status
from waltzctl.engine.errors import (
    DESCRIPTOR_SHORTAGE,
    DamageError,
    DiskError,
    DiskReadError,
    DiskWriteError,
    NotWaltzError,
    RefusedError,
    SyncFailedError,
    WaltzError,
    write_error,
)
from waltzctl.engine.findings import Code, Finding, Severity, Where, loss_finding, make_finding
from waltzctl.engine.losses import DirectoryGone
from waltzctl.engine.storage.commit_journal import CommitJournal
from waltzctl.engine.storage.control_file import OpenControlFile
from waltzctl.engine.storage.failed_syncs import note_failed_sync
from waltzctl.engine.storage.partition import Partition
from waltzctl.engine.storage.partition_condition import DAMAGED, WRITABLE, PartitionCondition, unmended
from waltzctl.engine.storage.partition_recovery import (
    Examination,
    clear_unfinished,
    examine_partition,
    settle_partition,
)
from waltzctl.engine.storage.segment_recovery import SegmentPlace
from waltzctl.engine.storage.storage_options import StorageOptions
from waltzctl.engine.storage.store import interrupted

QUARANTINING_ERRORS = (DiskError, FileNotFoundError, NotWaltzError, RefusedError, DamageError)
"""Errors of examining or mending a partition that quarantine it; any other error keeps the directory from opening."""
E = TypeVar("E", bound=Exception)
_SHORTAGE = (*DESCRIPTOR_SHORTAGE, errno.ENOMEM)
"""Error numbers of reads that say nothing about the partition's files."""


@dataclass(frozen=True, slots=True)
class ExaminedPartition:
    """Result of examining a partition that is not open.

    `examination`: None when the partition could not be examined; it can only be opened quarantined then.  `condition`: the one to
    open it in, UNMENDED where what was to be read could not be made durable; WRITABLE as long as it can be mended, too.
    """

    findings: list[Finding]
    examination: Examination | None = None
    condition: PartitionCondition = DAMAGED

    @property
    def last_transaction_id(self) -> int:
        """The last transaction without a gap before it; -1 when there is none."""
        return -1 if self.examination is None else self.examination.contiguous_next - 1


class PartitionOpener:
    """Examines and opens partitions of one storage directory.  The caller holds the directory's lock.  Not thread-safe.

    `not_written_back`: partitions whose records could not be written back from a commit journal, with the error of each.
    `journal`: the commit journal that opened partitions use; None for none.
    `raises_shortage`: whether a shortage of descriptors is raised instead of keeping the partition out, as when the directory
    is opened, or a partition that was left closed then.
    """

    def __init__(self, storage: Path, control: OpenControlFile, options: StorageOptions) -> None:
        self._storage, self._control, self._options = storage, control, options
        self.not_written_back: Mapping[int, WaltzError] = {}
        self.journal: CommitJournal | None = None
        self.raises_shortage = False

    def open(self, number: int) -> Partition:
        """Examine and open a partition."""
        return self.open_examined(number, self.examine(number))

    def open_quarantined(self, number: int, error: Exception) -> Partition:
        """Open a partition that cannot be examined because of an error."""
        return self.open_examined(number, self._not_examined(number, error))

    def examine(self, number: int) -> ExaminedPartition:
        """Examine a partition; its files are made durable as they are read, and not changed."""
        directory = self._storage / str(number)
        if (left := self.not_written_back.get(number)) is not None:
            return self._not_examined(number, left)
        findings = list(self._control.findings(number, self._storage))
        try:
            present = file_status.is_directory(directory)
        except DiskReadError as error:
            return self._not_examined(number, error)
        if not present:
            known = self._control.info(number).current_struct
            gone = DirectoryGone(*((None, None) if known is None else (known.local_low_water_mark, known.session_id)))
            return ExaminedPartition([*findings, loss_finding(gone, Where(self._storage, number, directory))])
        place = SegmentPlace(self._storage, number, self._control.cluster_key, self._options.max_data_length)
        current = self._control.info(number).current_struct
        try:
            settle_partition(directory, number)
            examination = examine_partition(
                directory,
                place,
                local_low_water_mark=None if current is None else current.local_low_water_mark,
                session_id=-1 if current is None else current.session_id,
            )
        except QUARANTINING_ERRORS as error:
            self._check_shortage(error)
            return self._not_examined(number, error)
        damaged = any(one.severity is Severity.DAMAGE for one in findings)
        condition = DAMAGED if examination.quarantined or damaged else WRITABLE
        return ExaminedPartition([*findings, *examination.findings], examination, condition)

    def _not_examined(self, number: int, error: Exception) -> ExaminedPartition:
        """What an error kept from being examined: no damage where the disk, or a permission, did not let something be written.

        Nor where the system lacked something to read it with.
        """
        error = _as_not_mended(error)
        findings = self._control.findings(number, self._storage)
        damaged = any(one.severity is Severity.DAMAGE for one in findings)
        condition = unmended(error) if isinstance(error, DiskWriteError) and not damaged else DAMAGED
        return ExaminedPartition([*findings, self.read_error(number, error)], condition=condition)

    def open_examined(self, number: int, examined: ExaminedPartition) -> Partition:
        """Open a partition as it was examined: mended if it is sound, else quarantined.

        If it is sound and cannot be mended (the disk is full, or this user may not write there) it is only read, and tells that
        error; no repair is due.  None is due either where it could not be examined for such an error, but then nothing is read.
        """
        findings = examined.findings
        parts = self._storage, self._control, number, self._options
        try:
            if examined.examination is not None:
                clear_unfinished(self._storage / str(number), number)
            opened = Partition(*parts, examined.examination, findings, examined.condition)
        except QUARANTINING_ERRORS as error:
            self._check_shortage(error)
            if isinstance(error, SyncFailedError):
                note_failed_sync(self._storage, number)
            unread = isinstance(error, DiskReadError)
            error = _as_not_mended(error)
            found, again, condition = [*findings, self.read_error(number, error)], None, DAMAGED
            if isinstance(error, RefusedError) and self._mending_interrupted():
                cause = OSError(errno.EBUSY, str(error))
                error = write_error(self._storage / str(number), None, cause, doing="mend")
            if isinstance(error, DiskWriteError) and examined.condition.writable:
                # the log is as sound as it was: it can be read
                condition = unmended(error)
                again = None if unread or isinstance(error, SyncFailedError) else self.examine(number).examination
            opened = Partition(*parts, again, found, condition)
        opened.journal = self.journal
        return opened

    def _mending_interrupted(self) -> bool:
        """Whether the disk let a mending, of another partition perhaps, neither be finished nor be taken back."""
        with contextlib.suppress(WaltzError):
            return bool(interrupted(self._storage))
        return False

    def _check_shortage(self, error: Exception) -> None:
        """Raise the error if it is a shortage of descriptors that ends the opening of the directory."""
        if self.raises_shortage and isinstance(error, DiskError) and error.errno in DESCRIPTOR_SHORTAGE:
            raise error

    def read_error(self, number: int, error: Exception) -> Finding:
        """The finding for an error that kept a partition from being examined or opened."""
        where = self._storage / str(number)
        return make_finding(Code.READ_ERROR, where, str(error), storage_directory=self._storage, partition=number)


def _as_not_mended(error: E) -> E | DiskWriteError:
    """The error, as one of writing where it is a shortage that a read met: it tells of no damage."""
    if isinstance(error, DiskReadError) and error.errno in _SHORTAGE:
        cause = OSError(error.errno, os.strerror(error.errno))
        return write_error(error.path, error.offset, cause, doing="open or read")
    return error
