"""A storage directory, open for reading and writing.

Opening a directory, in this order:

1. take the lock of the whole directory;
2. roll back an interrupted repair (`engine.durable.quarantine`);
3. write back the records that are durable in a commit journal only (`engine.storage.journal_recovery`);
4. finish an interrupted deletion of a partition (`engine.storage.retired`);
5. open every assigned partition (`engine.storage.partition_opening`).  A damaged partition is quarantined; the others are opened.

A caller that needs a single partition opens the directory with an empty set of partitions, examines that partition with `look`,
and opens it with `partition` once there is something to write; the other partitions are not touched.

Whether a partition is assigned to the directory: `engine.storage.assignment`.  `unassign` takes a partition away:

- without deletion, released layout: the flag *assigned* is cleared; files, session and marks stay;
- without deletion, documented layout: the partition's directory moves to ``.waltzctl/unassigned/``; session and marks stay;
- with deletion: the partition's directory moves to ``.waltzctl/deleting/`` by one rename, so that a crash leaves no half-deleted
  partition in its place; then session, marks and files are deleted.

(Release 0.13.2 drops session and marks of an unassigned partition, and discards its data when it is assigned again.)
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import uuid
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePath
from types import MappingProxyType, TracebackType

from waltzctl.engine.durable import disk, file_status
from waltzctl.engine.durable.directory_lock import DirectoryLock
from waltzctl.engine.durable.file_status import is_named, special_kind
from waltzctl.engine.durable.manifest import partitions_of
from waltzctl.engine.durable.relocation import DELETING, UNASSIGNED
from waltzctl.engine.errors import (
    DamageError,
    DiskError,
    DiskFullError,
    DiskReadError,
    NotAssignedError,
    NotWaltzError,
    PartitionQuarantinedError,
    SyncFailedError,
    with_roll_backs,
)
from waltzctl.engine.findings import Code, Finding, Where, make_finding
from waltzctl.engine.findings.control_files import control_missing
from waltzctl.engine.findings.directory_contents import not_assigned
from waltzctl.engine.log.view import view_partition, view_storage
from waltzctl.engine.storage.assignment import is_hosted, put_aside_path
from waltzctl.engine.storage.availability_marks import OFF, Availability, combine, load_marks, save_marks
from waltzctl.engine.storage.commit_journal import AREA_SIZE, CommitJournal
from waltzctl.engine.storage.control_file import OpenControlFile, settle_control_file
from waltzctl.engine.storage.creation import ClusterResult, CreatedDirectory, create_cluster
from waltzctl.engine.storage.failed_syncs import sync_failed
from waltzctl.engine.storage.journal_recovery import WrittenBack, keep_for, write_back_journal, write_back_partition
from waltzctl.engine.storage.partition import Partition
from waltzctl.engine.storage.partition_condition import PartitionCondition
from waltzctl.engine.storage.partition_opening import QUARANTINING_ERRORS, ExaminedPartition, PartitionOpener
from waltzctl.engine.storage.partition_recovery import renew_last_segment
from waltzctl.engine.storage.retired import (
    begin_deletion,
    check_deletion,
    check_directory,
    check_put_aside,
    empty_deleted,
    finish_deletions,
    left_directories,
    prepare_relocation,
    put_aside,
    take_from_aside,
)
from waltzctl.engine.storage.segment_files import create_segment
from waltzctl.engine.storage.storage_options import StorageOptions
from waltzctl.engine.storage.store import interrupted, roll_back_interrupted
from waltzctl.formats.control import (
    CONTROL_FILE_NAME,
    FLAG_ASSIGNED,
    FLAG_AVAILABLE,
    NEVER,
    Layout,
    PartitionInfo,
)

__all__ = ["ClusterResult", "CreatedDirectory", "Outlook", "StorageDirectory", "StorageOptions", "create_cluster"]


@dataclass(frozen=True, slots=True)
class Outlook:
    """State of an assigned partition, open or not, that a caller checks before it writes.

    `last_transaction_id`: the last transaction without a gap before it; -1 when there is none.  `findings`: those of the
    examination.  `condition`: of one that is not open, the one in which it would be opened.
    """

    path: PurePath
    condition: PartitionCondition
    findings: tuple[Finding, ...]
    last_transaction_id: int


class StorageDirectory:
    """A storage directory whose lock this process holds.  A context manager; made by `open`.  Thread-safe."""

    def __init__(self, path: Path, lock: DirectoryLock, control: OpenControlFile, options: StorageOptions) -> None:
        self.path = path
        self._directory_lock = lock
        self._control = control
        self._options = options
        self._partitions: dict[int, Partition] = {}
        self._opener = PartitionOpener(path, control, options)
        self._unopened: dict[int, ExaminedPartition | None] = {}  # assigned, not open; None: not examined yet
        # last acknowledged transaction of each partition whose sync failed, until the records behind it are cut off
        self._last_acknowledged: dict[int, int] = {}
        self._taken_back: tuple[str, ...] = ()
        self._findings: list[Finding] = []
        self._journal: CommitJournal | None = None
        self._written_back: WrittenBack | None = None
        self._lock = threading.RLock()

    @classmethod
    def open(
        cls,
        path: Path,
        *,
        expected_key: uuid.UUID | None = None,
        expected_partitions: int | None = None,
        partitions: Collection[int] | None = None,
        options: StorageOptions = StorageOptions(),  # noqa: B008  # frozen
    ) -> StorageDirectory:
        """Open a storage directory and its assigned partitions; with `partitions`, only those of them.

        The other assigned partitions are not touched until `partition` or `look` is called for one.

        Raises NotWaltzError, DirectoryLockedError, MismatchError (key, number of partitions, version), DamageError for a
        control file that cannot be used, DiskReadError, DiskWriteError; each error names the interrupted repairs that were
        rolled back before it.
        """
        options.check()
        control_path = path / CONTROL_FILE_NAME
        if not control_path.is_file():
            raise _no_control_file(path, control_path)
        lock = DirectoryLock.acquire(path, control_path)
        try:
            settle_control_file(control_path)
            taken_back = tuple(entry.id for entry in roll_back_interrupted(path))
            with with_roll_backs(taken_back):
                control = OpenControlFile.open(
                    control_path, expected_key=expected_key, expected_partitions=expected_partitions
                )
                opened = cls(path, lock, control, options)
                opened._taken_back = taken_back
                try:
                    opened._recover_journal()
                    opened._open_partitions(partitions)
                except BaseException:
                    opened.close()
                    raise
        except BaseException:
            lock.release()
            raise
        return opened

    # --- what it is --------------------------------------------------------------------------------------------------

    @property
    def layout(self) -> Layout:
        """Layout of the control file."""
        return self._control.layout

    @property
    def cluster_key(self) -> uuid.UUID:
        """Key of the cluster."""
        return self._control.cluster_key

    @property
    def num_partitions(self) -> int:
        """Number of partitions of the cluster."""
        return self._control.num_partitions

    @property
    def control_failed(self) -> SyncFailedError | None:
        """The failed sync since which the control file takes no writes; None: there was none."""
        return self._control.failed

    @property
    def options(self) -> StorageOptions:
        """Sizes and bounds with which the directory was opened."""
        return self._options

    @property
    def partitions(self) -> Mapping[int, Partition]:
        """The assigned partitions that are open, by number, quarantined ones included."""
        return MappingProxyType(self._partitions)

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Findings of the opening, about the directory and about every open partition."""
        with self._lock:
            return tuple(self._findings) + tuple(f for p in self._partitions.values() for f in p.findings)

    @property
    def taken_back(self) -> tuple[str, ...]:
        """Ids of the interrupted repairs that opening rolled back."""
        return self._taken_back

    @property
    def written_back(self) -> WrittenBack | None:
        """Result of the write-back from a commit journal at opening; None where no journal was in force."""
        return self._written_back

    @property
    def journal(self) -> CommitJournal | None:
        """The commit journal that this process writes; None before `begin_journal`."""
        return self._journal

    def begin_journal(
        self, path: Path, *, log: logging.Logger, area_size: int = AREA_SIZE, threaded: bool = True
    ) -> CommitJournal:
        """Use a commit journal from now on, until the directory is closed.  Raises RefusedError, DiskError."""
        with self._lock:
            self._journal = CommitJournal.create(
                self.path, path, self._control, log=log, area_size=area_size, threaded=threaded
            )
            self._opener.journal = self._journal
            for partition in self._partitions.values():
                partition.journal = self._journal
            return self._journal

    def partition(self, number: int) -> Partition:
        """An assigned partition; it is opened if it is not open.  Raises NotAssignedError, InvalidRequestError, DiskError."""
        self._control.info(number)
        with self._lock:
            found = self._partitions.get(number)
            if number in self._unopened:
                self._control.check_in_place()
                examined = self._unopened[number] or self._opener.examine(number)
                self._unopened[number] = None  # examined again where a shortage of descriptors ends this
                found = self._partitions[number] = self._opener.open_examined(number, examined)
                del self._unopened[number]
        if found is None:
            raise self._not_assigned(number)
        return found

    def outlook(self, number: int) -> Outlook:
        """State of an assigned partition.  A partition that is not open is examined; it is neither opened nor changed.

        Raises NotAssignedError, InvalidRequestError.
        """
        self._control.info(number)
        with self._lock:
            if number in self._unopened:
                examined = self._unopened[number] = self._unopened[number] or self._opener.examine(number)
                last = examined.last_transaction_id
                path, findings = self.path / str(number), tuple(examined.findings)
                return Outlook(path, examined.condition, findings, last)
            found = self._partitions.get(number)
        if found is None:
            raise self._not_assigned(number)
        return Outlook(found.path, found.condition, found.findings, found.max_transaction_id)

    def _not_assigned(self, number: int) -> NotAssignedError:
        return NotAssignedError(f"{self.path}: Partition:{number} is not assigned.")

    def info(self, number: int) -> PartitionInfo:
        """A partition's info in the control file, assigned or not.  Raises InvalidRequestError."""
        return self._control.info(number)

    # --- assignment --------------------------------------------------------------------------------------------------

    def assign(self, number: int) -> None:
        """Assign a partition to this node, durably: open the files that are here, or create an empty partition.

        Does nothing for an assigned partition.  Raises InvalidRequestError, PartitionQuarantinedError when the partition's
        info is damaged, DiskError.
        """
        with self._lock:
            self._control.info(number)
            if number in self._partitions or number in self._unopened:
                return
            self._control.check_in_place()
            directory = self.path / str(number)
            # an old deletion that is finished later would drop the new partition's fence
            if not file_status.is_directory(directory):
                self._finish_deletion(number, (number,))
            info = self._control.info(number)
            current = info.current_struct
            if current is None or info.stored_partition != number:
                raise self._info_damaged(number)
            aside = put_aside_path(self.path, number)
            check_directory(directory, number)  # before anything is reset
            if is_named(aside) and not directory.exists():
                check_directory(aside, number, back_in=self.path)
                take_from_aside(self.path, number)
            elif not directory.is_dir():
                self._drop_from_recovered_journal(number)  # a deletion may have failed, or the directory is lost
                if current.marks != NEVER:
                    self._control.reset(number)  # the records that the marks cover are gone
                disk.make_directory(directory)
                create_segment(directory, partition=number, first_transaction_id=0, cluster_key=self.cluster_key)
                disk.sync_directory(self.path)
            if self.layout.has_flags:
                self._control.set_flag(number, FLAG_ASSIGNED, True)
            opened = self._partitions[number] = self._open_again(number)  # its last sync may have failed
            with contextlib.suppress(DiskError, DamageError):  # it is assigned; its writes are refused with the reason
                self._cut_to_acknowledged(opened)

    def unassign(self, number: int, *, delete_files: bool) -> None:
        """Take a partition away from this node, durably.

        Without deletion, session, marks and files stay, so that a later `assign` continues the log.  With deletion, all of them
        are deleted; this is also possible for a partition that is no longer assigned.

        Raises NotAssignedError, RefusedError when the directory to be deleted holds unknown files, DiskError; when the disk is
        full the partition stays assigned and open.
        """
        with self._lock:
            info = self._control.info(number)
            self._control.check_in_place()
            if number in self._unopened:
                self.partition(number)
            assigned = number in self._partitions
            if not assigned and not (delete_files and left_directories(self.path, number)):
                raise self._not_assigned(number)
            unknown = info.current is None
            # A pair without a struct in force can be reset, which deletion does.  An info that names another partition cannot.
            if info.stored_partition != number or (unknown and not delete_files and self.layout.has_flags):
                raise self._info_damaged(number)
            if delete_files:
                check_deletion(self.path, number)
            elif not self.layout.has_flags:
                check_put_aside(self.path, number)
            if delete_files or not self.layout.has_flags:
                prepare_relocation(self.path, DELETING if delete_files else UNASSIGNED)
            self._close_and_leave_journal(number, delete_files=delete_files)
            if assigned and not unknown and self.layout.has_flags:
                self._control.set_flag(number, FLAG_ASSIGNED, False)
            if delete_files:
                self._last_acknowledged.pop(number, None)
                begin_deletion(self.path, number)
                try:
                    self._drop_from_recovered_journal(number)
                except (
                    DiskFullError
                ):  # delete the files first; their directory stays and shows that a deletion is unfinished
                    empty_deleted(self.path, number)
                    self._drop_from_recovered_journal(number)
                self._finish_deletion(number)
            elif not self.layout.has_flags:
                put_aside(self.path, number)

    def _finish_deletion(self, number: int, only: Collection[int] | None = None) -> None:
        """`finish_deletions`.  Raises DamageError, DiskError, also where the files of this partition could not be removed."""
        left = finish_deletions(self.path, self._control, only).get(number)
        if left is not None:
            raise left

    def _close_and_leave_journal(self, number: int, *, delete_files: bool) -> None:
        """Close a partition whose files are about to leave its directory: the commit journal must not write to them again.

        The partition may be closed already, by an earlier call that could not make it durable.
        """
        leaving = self._partitions.get(number)
        if leaving is not None:
            self._note_acknowledged(leaving)  # needed when it is assigned again with its files
        if self._journal is not None and (leaving is None or not leaving.condition.writable):
            try:
                # before a deletion too: after a crash the partition may still be here, and assigned
                self._journal.write_back(number)
            except (DamageError, DiskError):
                if not delete_files:
                    raise
            self._journal.forget(number)
        if leaving is not None:
            del self._partitions[number]
            leaving.close()

    def _drop_from_recovered_journal(self, number: int) -> None:
        """Drop a partition from the journal that opening could not write back in full: its files have the records, or are gone.

        The next opening would write them into a new partition of the same number otherwise.
        """
        if self._written_back is not None and number in self._written_back.failed:
            keep_for(self.path, self._control, [one for one in self._written_back.failed if one != number])
            del self._written_back.failed[number]

    def _write_back_recovered(self, number: int) -> None:
        """Write back what opening the directory could not, on a full disk for instance; the partition is kept out otherwise.

        The journal is no longer kept for it before anything can be changed: that would come undone with the next opening.
        """
        if self._written_back is not None and number in self._written_back.failed:
            try:
                write_back_partition(self.path, self._control, number)
                self._drop_from_recovered_journal(number)
            except (DamageError, DiskError) as error:
                self._written_back.failed[number] = error

    def reopen(self, number: int) -> Partition:
        """Close an assigned partition and open it again as at the opening of the directory: the way on after a failed sync.

        After a failed sync the files may show records that the disk does not hold.  None of these records was acknowledged, so
        they are cut off before anything is appended.  When the cut fails too, readers do not see the records, and the next call
        tries again.  Raises NotAssignedError, InvalidRequestError, CorruptRecordError, DiskError.
        """
        with self._lock:
            old = self.partition(number)
            self._control.check_in_place()  # it would be opened where another directory is by now
            self._note_acknowledged(old)
            if old.condition.quarantined:
                self._take_back_mending(number)
            # where a failed sync is noted, the opening does it: once, and behind the journal's write-back
            if old.condition.error is not None and not sync_failed(self.path, number):
                renew_last_segment(old.path, number, data=old.condition.unsynced_when_opened)
            try:
                old.close()
            finally:
                opened = self._partitions[number] = self._open_again(number)
                self._cut_to_acknowledged(opened)
            return opened

    def _take_back_mending(self, number: int) -> None:
        """Take back the mending of a partition that the disk let neither be finished nor be taken back: no other begins before.

        That of another partition stays: its files are being read.
        """
        left = interrupted(self.path)
        if left and all(partitions_of(entry) == {number} for entry in left):
            self._taken_back += tuple(entry.id for entry in roll_back_interrupted(self.path))

    def _note_acknowledged(self, leaving: Partition) -> None:
        """Remember the last acknowledged transaction of a partition whose sync failed: its files may show more than that.

        One that could not be mended when it was opened has appended nothing, and perhaps not even read where its log ends.
        """
        if leaving.condition.shows_unacknowledged:
            self._last_acknowledged.setdefault(leaving.number, leaving.max_transaction_id)

    def _cut_to_acknowledged(self, opened: Partition) -> None:
        """Remove the records that a failed sync left behind the last acknowledged one.  Raises CorruptRecordError, DiskError."""
        acknowledged = self._last_acknowledged.get(opened.number)
        if acknowledged is not None:
            opened.end_at(acknowledged)
            if not opened.condition.quarantined:
                del self._last_acknowledged[opened.number]

    def _open_again(self, number: int) -> Partition:
        """Open a partition whose segments may lack records that the commit journal holds, of this process or an earlier one."""
        self._write_back_recovered(number)
        try:
            if self._journal is not None:
                self._journal.write_back(number)
        except QUARANTINING_ERRORS as error:
            return self._opener.open_quarantined(number, error)
        return self._opener.open(number)

    def _info_damaged(self, number: int) -> PartitionQuarantinedError:
        return PartitionQuarantinedError(
            f"{self.path}: partition {number}: its info in the control file is damaged",
            self._control.findings(number, self.path),
            advice="run waltzctl recover",
        )

    # --- availability ------------------------------------------------------------------------------------------------

    def availability(self, number: int) -> Availability:
        """Whether a partition may be read and written.  Raises InvalidRequestError, DamageError, DiskReadError."""
        self._control.info(number)
        with self._lock:
            return combine(self._control.control, load_marks(self.path), number)

    def check_markable(self, number: int) -> None:
        """Raise what `set_availability` would be refused with: InvalidRequestError, PartitionQuarantinedError."""
        info = self._control.info(number)
        if self.layout.has_flags and (info.current is None or info.stored_partition != number):
            raise self._info_damaged(number)

    def set_availability(self, number: int, *, readable: bool | None = None, writable: bool | None = None) -> None:
        """Allow or forbid reading and writing, durably; None leaves a permission as it is.  Works for unassigned partitions, too.

        In the released layout the flag *available* is set exactly when both are allowed.  The change of the flag is the one step
        that takes effect; with neither allowed, no entry in the marks file is needed.  Raises InvalidRequestError,
        PartitionQuarantinedError when the partition's info is damaged, DamageError, DiskError.
        """
        with self._lock:
            self.check_markable(number)
            self._control.check_in_place()
            marks = load_marks(self.path)
            before = combine(self._control.control, marks, number)
            after = Availability(
                before.readable if readable is None else readable, before.writable if writable is None else writable
            )
            released = self.layout.has_flags
            if released and after.available:
                self._control.set_flag(number, FLAG_AVAILABLE, True)
            # no entry for OFF, which the flag alone says: that works on a full disk, too
            mark = Availability() if released and after == OFF else after
            if marks.get(number, Availability()) != mark:
                save_marks(self.path, {**marks, number: mark})
            if released and not after.available and before.available:
                self._control.set_flag(number, FLAG_AVAILABLE, False)

    # --- opening and closing -----------------------------------------------------------------------------------------

    def _recover_journal(self) -> None:
        """Write back what a commit journal of an earlier process holds."""
        self._written_back = write_back_journal(self.path, self._control)
        if self._written_back is not None:
            self._opener.not_written_back = self._written_back.failed

    def _open_partitions(self, wanted: Collection[int] | None) -> None:
        """Open the assigned partitions, or those of `wanted`.  Raises DiskError for a shortage of descriptors."""
        for number, left in finish_deletions(self.path, self._control, wanted).items():
            self._findings.append(self._opener.read_error(number, left))
        self._opener.raises_shortage = True
        self._findings += self._control.file_findings
        control = self._control.control
        for number in range(self.num_partitions):
            directory = self.path / str(number)
            try:
                present = file_status.is_directory(directory)
            except DiskReadError:  # a disk of its own that failed: whoever opens the partition tells it
                present = True
            assigned = is_hosted(self.path, control, number, directory=present)
            if assigned and (wanted is None or number in wanted):
                self._partitions[number] = self._opener.open(number)
                continue
            if assigned:
                self._unopened[number] = None
                continue
            self._findings += self._control.findings(number, self.path)
            if present:
                self._findings += self._unassigned_segments(number)
        self._opener.raises_shortage = bool(self._unopened)  # whose opening is still to come

    def _unassigned_segments(self, number: int) -> Iterator[Finding]:
        """A finding when a partition that is not assigned has segments here."""
        where = Where(self.path, number, self.path / str(number))
        try:
            segments = len(view_partition(self.path / str(number), number).segments)
        except QUARANTINING_ERRORS as error:
            yield self._opener.read_error(number, error)
        else:
            if segments:
                yield not_assigned(segments, where)

    def close(self) -> None:
        """Close every partition and release the lock; a second call does nothing.  Raises DiskWriteError."""
        with self._lock, contextlib.ExitStack() as stack:  # after a failure the rest is closed too; the lock goes last
            stack.callback(self._directory_lock.release)
            stack.callback(self._control.close)
            for partition in self._partitions.values():
                stack.callback(partition.close)
            if self._journal is not None:
                stack.callback(self._journal.close)

    def __enter__(self) -> StorageDirectory:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def open_storage(
    path: str | os.PathLike[str],
    *,
    expected_key: uuid.UUID | None = None,
    expected_partitions: int | None = None,
    partitions: Collection[int] | None = None,
    options: StorageOptions = StorageOptions(),  # noqa: B008  # frozen
) -> StorageDirectory:
    """Open a storage directory for reading and writing; see `StorageDirectory.open`, which raises what this raises."""
    return StorageDirectory.open(
        Path(path),
        expected_key=expected_key,
        expected_partitions=expected_partitions,
        partitions=partitions,
        options=options,
    )


def _no_control_file(path: Path, control_path: Path) -> NotWaltzError | DamageError:
    if (kind := special_kind(control_path)) is not None:
        message = f"it is {kind}, not a regular file"
        finding = make_finding(Code.SPECIAL_FILE, control_path, message, storage_directory=path)
        return DamageError(
            f"{control_path}: {message}", [finding], advice="move it away and bring the control file back"
        )
    if path.is_dir():
        view_storage(path)  # raises NotWaltzError, unless partitions lie here
        finding = control_missing(control_path, path)
        return DamageError(
            f"{path}: {finding.message}", [finding], advice="bring it back from a backup of this node, or salvage"
        )
    return NotWaltzError(f"{path}: not a Waltz storage directory: there is no {CONTROL_FILE_NAME}")
