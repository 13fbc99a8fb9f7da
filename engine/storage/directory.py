"""A storage directory, open for reading and writing.

Opening takes the lock of the whole directory, takes back an interrupted repair, writes back what a commit journal holds
(`engine.storage.commit_journal`), finishes an interrupted deletion, and then opens every assigned partition; a partition that
cannot be opened soundly is quarantined and does not stop the others.  Who needs but one partition opens the directory with none,
looks at that one (`look`), and opens it when there is something to write; nothing of the others is touched.

Assignment (`engine.storage.assignment`).  Released layout: the flag in the partition info.  Documented layout: the partition's
directory exists, or a session or mark proves that it did and was not taken away on purpose.  Taking a partition away keeps its
session and marks with its files (release 0.13.2 forgets them and then throws the data away when the partition comes back); in the
documented layout the directory moves to ``.waltzctl/unassigned/``.  With deletion, the directory first moves to
``.waltzctl/deleting/``, in one step, so that a crash leaves no half-deleted partition behind.
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

from waltzctl.engine.durable import disk
from waltzctl.engine.durable.directory_lock import DirectoryLock
from waltzctl.engine.durable.regular import special_kind
from waltzctl.engine.durable.relocation import DELETING, UNASSIGNED
from waltzctl.engine.errors import (
    DamageError,
    DiskError,
    DiskFullError,
    NotAssignedError,
    NotWaltzError,
    PartitionQuarantinedError,
    RefusedError,
    told_with,
)
from waltzctl.engine.findings import Code, Finding, Severity, Where, loss_finding, make_finding
from waltzctl.engine.findings.control_files import control_missing
from waltzctl.engine.findings.directory_contents import not_assigned
from waltzctl.engine.log.view import view_partition, view_storage
from waltzctl.engine.losses import DirectoryGone
from waltzctl.engine.storage.assignment import is_hosted, put_aside_path
from waltzctl.engine.storage.availability_marks import OFF, Availability, combine, load_marks, save_marks
from waltzctl.engine.storage.commit_journal import AREA_SIZE, CommitJournal
from waltzctl.engine.storage.control_file import OpenControlFile
from waltzctl.engine.storage.creation import ClusterResult, CreatedDirectory, create_cluster
from waltzctl.engine.storage.journal_recovery import PutRight, keep_for, put_right
from waltzctl.engine.storage.partition import Partition
from waltzctl.engine.storage.partition_recovery import (
    Examination,
    clear_unfinished,
    examine_partition,
    renew_last_index,
    settle_partition,
)
from waltzctl.engine.storage.retired import (
    begin_deletion,
    check_deletion,
    check_put_aside,
    empty_deleted,
    finish_deletions,
    prepare_relocation,
    put_aside,
    take_from_aside,
)
from waltzctl.engine.storage.segment_files import create_segment
from waltzctl.engine.storage.segment_recovery import SegmentPlace
from waltzctl.engine.storage.storage_options import StorageOptions
from waltzctl.engine.storage.store import roll_back_interrupted
from waltzctl.formats.control import (
    CONTROL_FILE_NAME,
    FLAG_ASSIGNED,
    FLAG_AVAILABLE,
    Layout,
    PartitionInfo,
)

_IN_THE_WAY = (DiskError, FileNotFoundError, NotWaltzError, RefusedError, DamageError)
"""What of an examination, or of mending, quarantines the partition instead of stopping the directory."""

__all__ = ["ClusterResult", "CreatedDirectory", "Outlook", "StorageDirectory", "StorageOptions", "create_cluster"]


@dataclass(frozen=True, slots=True)
class Outlook:
    """An assigned partition, opened or not yet: what a writer has to know before anything is changed.

    `last_transaction_id` is the last one without a gap before it, -1 when there is none; `findings` are what was found.
    """

    path: PurePath
    quarantined: bool
    findings: tuple[Finding, ...]
    last_transaction_id: int


@dataclass(frozen=True, slots=True)
class _Examined:
    """What was found in a partition that is not open; without an examination it can only be quarantined."""

    findings: list[Finding]
    examination: Examination | None = None
    quarantine: bool = True

    @property
    def last_transaction_id(self) -> int:
        return -1 if self.examination is None else self.examination.contiguous_next - 1


class StorageDirectory:
    """A storage directory that this process holds.  A context manager; made by `open`.  Thread-safe."""

    def __init__(self, path: Path, lock: DirectoryLock, control: OpenControlFile, options: StorageOptions) -> None:
        self.path = path
        self._directory_lock = lock
        self._control = control
        self._options = options
        self._partitions: dict[int, Partition] = {}
        self._unopened: dict[int, _Examined | None] = {}
        self._acknowledged: dict[int, int] = {}  # of those that failed, until what is behind it is cut off
        self._taken_back: tuple[str, ...] = ()
        self._findings: list[Finding] = []
        self._journal: CommitJournal | None = None
        self._put_right: PutRight | None = None
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
        """Open a storage directory and every partition that is assigned, or those of `partitions`.

        The others stay as they are, and are opened when they are first asked for.

        Raises NotWaltzError, DirectoryLockedError, MismatchError (key, number of partitions, version), DamageError for a
        control file that cannot be used, DiskReadError, DiskWriteError; with the ids of interrupted repairs that were taken
        back first.
        """
        options.check()
        control_path = path / CONTROL_FILE_NAME
        if not control_path.is_file():
            raise _no_control_file(path, control_path)
        lock = DirectoryLock.acquire(path, control_path)
        try:
            with disk.WritableFile.open(control_path) as file:
                file.sync()  # a process that died may have left in the system's memory what is about to be read
            taken_back = tuple(entry.id for entry in roll_back_interrupted(path))
            with told_with(taken_back):
                control = OpenControlFile.open(
                    control_path, expected_key=expected_key, expected_partitions=expected_partitions
                )
                opened = cls(path, lock, control, options)
                opened._taken_back = taken_back
                try:
                    opened._put_right = put_right(path, control)
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
    def options(self) -> StorageOptions:
        """How the directory is used."""
        return self._options

    @property
    def partitions(self) -> Mapping[int, Partition]:
        """The assigned partitions that are open, by number, quarantined ones included."""
        return MappingProxyType(self._partitions)

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What was found at opening, of the directory and of every partition."""
        with self._lock:
            return tuple(self._findings) + tuple(f for p in self._partitions.values() for f in p.findings)

    @property
    def taken_back(self) -> tuple[str, ...]:
        """Ids of the interrupted repairs that opening took back."""
        return self._taken_back

    @property
    def put_right(self) -> PutRight | None:
        """What opening wrote back from a commit journal; None where no journal was in force."""
        return self._put_right

    @property
    def journal(self) -> CommitJournal | None:
        """The commit journal that is in force."""
        return self._journal

    def begin_journal(
        self, path: Path, *, log: logging.Logger, area_size: int = AREA_SIZE, threaded: bool = True
    ) -> CommitJournal:
        """Have a commit journal from now on, until the directory is closed.  Raises RefusedError, DiskError."""
        with self._lock:
            self._journal = CommitJournal.create(
                self.path, path, self._control, log=log, area_size=area_size, threaded=threaded
            )
            for partition in self._partitions.values():
                partition.journal = self._journal
            return self._journal

    def partition(self, number: int) -> Partition:
        """An assigned partition, opened if it is not yet.  Raises NotAssignedError, InvalidRequestError."""
        self._control.info(number)
        with self._lock:
            found = self._partitions.get(number)
            if number in self._unopened:
                examined = self._unopened.pop(number) or self._examine(number)
                found = self._partitions[number] = self._open_examined(number, examined)
        if found is None:
            raise self._not_assigned(number)
        return found

    def look(self, number: int) -> Outlook:
        """An assigned partition as it is; one that is not open is examined, and stays unopened and unchanged.

        Raises NotAssignedError, InvalidRequestError.
        """
        self._control.info(number)
        with self._lock:
            if number in self._unopened:
                examined = self._unopened[number] = self._unopened[number] or self._examine(number)
                last = examined.last_transaction_id
                return Outlook(self.path / str(number), examined.quarantine, tuple(examined.findings), last)
            found = self._partitions.get(number)
        if found is None:
            raise self._not_assigned(number)
        return Outlook(found.path, found.quarantined, found.findings, found.max_transaction_id)

    def _not_assigned(self, number: int) -> NotAssignedError:
        return NotAssignedError(f"{self.path}: Partition:{number} is not assigned.")

    def info(self, number: int) -> PartitionInfo:
        """A partition's place in the control file, assigned or not.  Raises InvalidRequestError."""
        return self._control.info(number)

    # --- assignment --------------------------------------------------------------------------------------------------

    def assign(self, number: int) -> None:
        """Give a partition to this node: open the files it left here, or begin an empty one; durable.

        Does nothing for one that is assigned.  Raises InvalidRequestError, PartitionQuarantinedError when the partition's
        info is damaged, DiskError.
        """
        with self._lock:
            self._control.info(number)
            if number in self._partitions or number in self._unopened:
                return
            directory = self.path / str(number)
            if not directory.is_dir():  # a deletion that is finished later would forget the new one's fence
                finish_deletions(self.path, self._control, (number,))
            info = self._control.info(number)
            current = info.current_struct
            if current is None or info.stored_partition != number:
                raise self._info_damaged(number)
            if not directory.is_dir() and os.path.lexists(directory):  # before anything of the partition is begun anew
                raise RefusedError(
                    f"{directory}: it is {special_kind(directory) or 'a file'}, not a directory",
                    advice=f"mount what it leads to, or bring the directory of partition {number} back",
                )
            if os.path.lexists(put_aside_path(self.path, number)) and not directory.exists():
                take_from_aside(self.path, number)
            elif not directory.is_dir():
                self._leave_last_journal(number)  # a deletion may have failed there, or its directory is lost
                if current.marks != (-1, -1, -1):
                    self._control.reset(number)  # nothing is left of what the marks speak of
                disk.make_directory(directory)
                create_segment(directory, partition=number, first_transaction_id=0, cluster_key=self.cluster_key)
                disk.sync_directory(self.path)
            if self.layout.has_flags:
                self._control.set_flag(number, FLAG_ASSIGNED, True)
            opened = self._partitions[number] = self._open_again(number)  # it may have been left with its sync failed
            with contextlib.suppress(DiskError, DamageError):  # it is taken in, and says itself what is the matter
                self._end_where_acknowledged(opened)

    def unassign(self, number: int, *, delete_files: bool) -> None:
        """Take a partition away from this node; durable.

        Without deletion session, marks and files stay, so that a later `assign` goes on where it was.  With deletion the
        files and then the marks go; that is also possible for a partition which is not assigned any more.  Raises
        NotAssignedError, RefusedError when unknown files lie in the directory that is to be deleted, DiskError; where the disk
        is full it is assigned and open as before.
        """
        with self._lock:
            info = self._control.info(number)
            if number in self._unopened:
                self.partition(number)
            assigned = number in self._partitions
            leftover = (self.path / str(number)).is_dir() or put_aside_path(self.path, number).is_dir()
            if not assigned and not (delete_files and leftover):
                raise self._not_assigned(number)
            unknown = info.current is None
            # a pair without a struct in force can be written anew, and is when everything goes; a misplaced one cannot
            if info.stored_partition != number or (unknown and not delete_files and self.layout.has_flags):
                raise self._info_damaged(number)
            if delete_files:
                check_deletion(self.path, number)
            elif not self.layout.has_flags:
                check_put_aside(self.path, number)
            if delete_files or not self.layout.has_flags:
                prepare_relocation(self.path, DELETING if delete_files else UNASSIGNED)
            self._close_for_good(number, delete_files=delete_files)
            if assigned and not unknown and self.layout.has_flags:
                self._control.set_flag(number, FLAG_ASSIGNED, False)
            if delete_files:
                self._acknowledged.pop(number, None)
                begin_deletion(self.path, number)
                try:
                    self._leave_last_journal(number)
                except DiskFullError:  # the files make room; their directory stays as the sign of what is left
                    empty_deleted(self.path, number)
                    self._leave_last_journal(number)
                finish_deletions(self.path, self._control)
            elif not self.layout.has_flags:
                put_aside(self.path, number)

    def _close_for_good(self, number: int, *, delete_files: bool) -> None:
        """Close a partition whose files are about to go, or to be somebody else's: no journal may write into them again.

        It may be closed already, by a call that could not make it durable.
        """
        leaving = self._partitions.get(number)
        if leaving is not None:
            self._note_acknowledged(leaving)  # for when it is assigned again, with its files
        if self._journal is not None and (leaving is None or leaving.failed is not None or leaving.quarantined):
            try:
                self._journal.write_back(number)  # also what is to be deleted: a crash may leave it here
            except (DamageError, DiskError):
                if not delete_files:
                    raise
            self._journal.forget(number)
        if leaving is not None:
            del self._partitions[number]
            leaving.close()

    def _leave_last_journal(self, number: int) -> None:
        """Its files are to be deleted: what could not be written back of it would be, into whatever has its name then."""
        if self._put_right is not None and number in self._put_right.failed:
            keep_for(self.path, self._control, [one for one in self._put_right.failed if one != number])
            del self._put_right.failed[number]

    def reopen(self, number: int) -> Partition:
        """Close an assigned partition and open it again, as opening the directory would: what a failed sync asks for.

        After a failed sync the files may show records that the disk does not hold.  None of them was acknowledged: they are cut
        off before anything is written behind them.  Where that fails too, nobody is shown them, and the next call tries again.
        Raises NotAssignedError, InvalidRequestError, CorruptRecordError, DiskError.
        """
        with self._lock:
            old = self.partition(number)
            self._note_acknowledged(old)
            if old.failed is not None:
                renew_last_index(old.path, number)
            try:
                old.close()
            finally:
                opened = self._partitions[number] = self._open_again(number)
                self._end_where_acknowledged(opened)
            return opened

    def _note_acknowledged(self, leaving: Partition) -> None:
        """Remember where a failed partition ends: once it is closed only its files tell, and they may hold more."""
        if leaving.failed is not None:
            self._acknowledged.setdefault(leaving.number, leaving.max_transaction_id)

    def _end_where_acknowledged(self, opened: Partition) -> None:
        """Whatever the files of one that had failed hold besides does not count.  Raises CorruptRecordError, DiskError."""
        acknowledged = self._acknowledged.get(opened.number)
        if acknowledged is not None:
            opened.end_at(acknowledged)
            if not opened.quarantined:
                del self._acknowledged[opened.number]

    def _open_again(self, number: int) -> Partition:
        """Open a partition whose segments may lack what the journal holds."""
        try:
            if self._journal is not None:
                self._journal.write_back(number)
        except _IN_THE_WAY as error:
            return self._open_examined(number, _Examined([self._in_the_way(number, error)]))
        return self._open_partition(number)

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
        """Raise what `set_availability` raises before it changes anything: InvalidRequestError, PartitionQuarantinedError."""
        info = self._control.info(number)
        if self.layout.has_flags and (info.current is None or info.stored_partition != number):
            raise self._info_damaged(number)

    def set_availability(self, number: int, *, readable: bool | None = None, writable: bool | None = None) -> None:
        """Allow or forbid reading and writing, durably; None leaves as it is.  Unassigned partitions may be marked, too.

        In the released layout the flag follows "readable and writable"; its change is the one durable step, and where neither is
        allowed it needs no more.  Raises InvalidRequestError, PartitionQuarantinedError when the partition's info is damaged,
        DamageError, DiskError.
        """
        with self._lock:
            self.check_markable(number)
            marks = load_marks(self.path)
            before = combine(self._control.control, marks, number)
            after = Availability(
                before.readable if readable is None else readable, before.writable if writable is None else writable
            )
            released = self.layout.has_flags
            if released and after.available:
                self._control.set_flag(number, FLAG_AVAILABLE, True)
            mark = Availability() if released and after == OFF else after  # the flag says it alone, on a full disk too
            if marks.get(number, Availability()) != mark:
                save_marks(self.path, {**marks, number: mark})
            if released and not after.available and before.available:
                self._control.set_flag(number, FLAG_AVAILABLE, False)

    # --- opening and closing -----------------------------------------------------------------------------------------

    def _open_partitions(self, wanted: Collection[int] | None) -> None:
        finish_deletions(self.path, self._control, wanted)
        self._findings += self._control.file_findings
        control = self._control.control
        for number in range(self.num_partitions):
            directory = self.path / str(number)
            assigned = is_hosted(self.path, control, number, directory=directory.is_dir())
            if assigned and (wanted is None or number in wanted):
                self._partitions[number] = self._open_partition(number)
                continue
            if assigned:
                self._unopened[number] = None
                continue
            self._findings += self._control.findings(number, self.path)
            if directory.is_dir():
                self._findings += self._left_behind(number)

    def _left_behind(self, number: int) -> Iterator[Finding]:
        """That a partition which is not assigned has files here."""
        where = Where(self.path, number, self.path / str(number))
        try:
            segments = len(view_partition(self.path / str(number), number).segments)
        except _IN_THE_WAY as error:
            yield self._in_the_way(number, error)
        else:
            if segments:
                yield not_assigned(segments, where)

    def _open_partition(self, number: int) -> Partition:
        """Examine and open one partition; whatever stands in the way quarantines it."""
        return self._open_examined(number, self._examine(number))

    def _examine(self, number: int) -> _Examined:
        """Look at a partition that is to be opened, durable as it is seen; nothing in it is changed."""
        directory = self.path / str(number)
        findings = list(self._control.findings(number, self.path))
        if self._put_right is not None and number in self._put_right.failed:
            return _Examined([*findings, self._in_the_way(number, self._put_right.failed[number])])
        if not directory.is_dir():
            known = self._control.info(number).current_struct
            gone = DirectoryGone(*((None, None) if known is None else (known.local_low_water_mark, known.session_id)))
            return _Examined([*findings, loss_finding(gone, Where(self.path, number, directory))])
        place = SegmentPlace(self.path, number, self.cluster_key, self._options.max_data_length)
        current = self._control.info(number).current_struct
        try:
            settle_partition(directory, number)
            examination = examine_partition(
                directory,
                place,
                local_low_water_mark=None if current is None else current.local_low_water_mark,
                session_id=-1 if current is None else current.session_id,
            )
        except _IN_THE_WAY as error:
            return _Examined([*findings, self._in_the_way(number, error)])
        quarantine = examination.quarantined or any(one.severity is Severity.DAMAGE for one in findings)
        return _Examined([*findings, *examination.findings], examination, quarantine)

    def _open_examined(self, number: int, examined: _Examined) -> Partition:
        """Open a partition as it was examined, mended if it is sound."""
        findings = examined.findings
        parts = self.path, self._control, number, self._options
        try:
            if examined.examination is not None:
                clear_unfinished(self.path / str(number), number)
            opened = Partition(*parts, examined.examination, findings, quarantine=examined.quarantine)
        except _IN_THE_WAY as error:
            opened = Partition(*parts, None, [*findings, self._in_the_way(number, error)], quarantine=True)
        opened.journal = self._journal
        return opened

    def _in_the_way(self, number: int, error: Exception) -> Finding:
        where = self.path / str(number)
        return make_finding(Code.READ_ERROR, where, str(error), storage_directory=self.path, partition=number)

    def close(self) -> None:
        """Close every partition and let go of the lock; a second call does nothing.  Raises DiskWriteError."""
        with self._lock, contextlib.ExitStack() as stack:  # whatever fails, the rest is closed, and the lock comes last
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
