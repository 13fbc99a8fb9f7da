"""A partition: a log of transactions with consecutive ids, stored in segments of which only the last one grows.

==================================  ===============================================================================
guarantee                           when
==================================  ===============================================================================
a write is durable                  `append`, `truncate` and `set_low_water_mark` return
a record is durable and verified    a reader gets it: both of its checksums are compared
memory and files are as before      a write fails; the files only as far as the disk allows
writes are refused until the        a sync fails, because the contents of the disk are unknown then
partition is opened again
==================================  ===============================================================================

Whether it can be written at present: `engine.storage.partition_condition`.  `max_transaction_id` of a quarantined partition is
the last one in front of the first gap.  Reading a transaction that was lost raises an error; it is never reported as "no such
transaction".

Thread-safe.  One writer at a time holds the write lock; readers never wait for a disk write.
"""

from __future__ import annotations

import errno
import threading
import uuid
from collections.abc import Sequence
from pathlib import PurePath
from typing import TYPE_CHECKING, NamedTuple

from waltzctl.engine.durable import disk, file_status
from waltzctl.engine.errors import (
    BelowLowWaterMarkError,
    DamageError,
    DiskError,
    DiskWriteError,
    InvalidRequestError,
    MarkWouldFallError,
    PartitionQuarantinedError,
    RefusedError,
    SyncFailedError,
)
from waltzctl.engine.findings import Finding, Severity, Where
from waltzctl.engine.storage.batch import Batch, batch_of_blocks, batch_of_records, only_part, parts_of
from waltzctl.engine.storage.control_file import OpenControlFile
from waltzctl.engine.storage.partition_condition import PartitionCondition
from waltzctl.engine.storage.partition_log import PartitionLog, RecordHeader
from waltzctl.engine.storage.partition_recovery import UNKNOWN_END, Examination, mend
from waltzctl.engine.storage.segment_files import (
    ActiveSegment,
    BatchPart,
    SegmentExtent,
    create_segment,
    refuse_orphan_index,
    remove_segment,
    whole_extent,
)
from waltzctl.engine.storage.storage_options import StorageOptions
from waltzctl.engine.storage.wire_records import WireRecords
from waltzctl.formats.control import PartitionStruct
from waltzctl.formats.journal_file import WriteTo
from waltzctl.formats.segment import INDEX_SUFFIX, Record, segment_name

if TYPE_CHECKING:
    from waltzctl.engine.scan.list_answers import ListAnswers, Requests
    from waltzctl.engine.scan.transcode import EncodedBlock
    from waltzctl.engine.storage.commit_journal import CommitJournal


def _is_index_finding(finding: Finding) -> bool:
    """Whether a finding reports a fault of an index; opening rebuilds the index after any such fault."""
    return finding.severity is not Severity.NOTE and str(finding.path).endswith(INDEX_SUFFIX)


class UnsyncedAppend(NamedTuple):
    """Records that `Partition.write_blocks` has written and that are not durable yet."""

    partition: int
    active: ActiveSegment
    part: BatchPart

    @property
    def file(self) -> disk.WritableFile:
        """The data file to sync."""
        return self.active.data

    @property
    def to_journal(self) -> WriteTo:
        """The write that makes the records durable in a commit journal instead of a sync of the file."""
        return WriteTo(self.partition, self.active.first_transaction_id, self.active.end, self.part.pieces)

    def journaled(self) -> None:
        """Note that the records are durable in a commit journal and perhaps not in the data file."""
        self.active.data_synced = False


class Partition:
    """An assigned partition of an open storage directory.  Made by `StorageDirectory`."""

    def __init__(
        self,
        storage: PurePath,
        control: OpenControlFile,
        number: int,
        options: StorageOptions,
        examination: Examination | None,
        findings: Sequence[Finding],
        condition: PartitionCondition,
    ) -> None:
        """Open a partition after its examination; None when it could not be examined.

        In the condition WRITABLE what a crash left is mended first; in any other nothing is changed.  Without an examination it
        cannot be WRITABLE.  Raises DiskWriteError, DiskReadError.
        """
        self.number = number
        self.path = storage / str(number)
        self.journal: CommitJournal | None = None
        """The commit journal that may hold records which are not yet durable in their segments; None for none."""
        self._error_prefix = f"{self.path}: partition {number}"  # how error messages begin
        self._storage, self._control, self._options = storage, control, options
        self._findings = list(findings)
        self._cluster_key: uuid.UUID = control.cluster_key
        self._write_lock = threading.RLock()
        self._active: ActiveSegment | None = None  # the last segment; None while quarantined
        self._opened_in = condition
        # set without need of memory: a moment without it must neither hide a failed sync nor keep the files open
        self._failed: DiskWriteError | None = None  # the error of a write since
        self._closed = False
        self._undo_ids: list[str] = []
        segments: tuple[SegmentExtent, ...] = ()
        following, lost_below = 0, None
        if examination is None:
            lost_below = UNKNOWN_END
        elif not condition.writable:
            segments, following = examination.extents, examination.contiguous_next
            lost_below = examination.lost_below
        else:
            mended = mend(examination)
            segments = mended.extents
            self._undo_ids += [] if mended.undo_id is None else [mended.undo_id]
            self._active = ActiveSegment.open(segments[-1])
            following = self._active.next_transaction_id
        self._log = PartitionLog(self.path, storage, options, segments, following, lost_below=lost_below)

    # --- state -------------------------------------------------------------------------------------------------------

    @property
    def condition(self) -> PartitionCondition:
        """Whether the partition can be written at present, and if not, why."""
        condition = self._opened_in if self._failed is None else self._opened_in.after(self._failed)
        return condition.at_rest() if self._closed else condition

    @property
    def marks_failed(self) -> SyncFailedError | None:
        """Why no session can set its mark until the directory is opened again: the control file could not be synced; or None."""
        return self._control.failed

    @property
    def quarantined(self) -> bool:
        """See `PartitionCondition.quarantined`; `findings` says why."""
        return self.condition.quarantined

    @property
    def damaged(self) -> bool:
        """See `PartitionCondition.damaged`; `findings` says by what."""
        return self.condition.damaged

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Findings of the examination with which the partition was opened."""
        return tuple(self._findings)

    @property
    def mended(self) -> tuple[Finding, ...]:
        """The findings that opening mended; none for a quarantined partition."""
        if self.quarantined:
            return ()
        return tuple(one for one in self._findings if one.severity is Severity.REPAIRABLE or _is_index_finding(one))

    @property
    def undo_ids(self) -> tuple[str, ...]:
        """Ids of the quarantine entries that keep the bytes which opening the partition removed."""
        return tuple(self._undo_ids)

    @property
    def failed(self) -> DiskWriteError | None:
        """The error of the disk because of which writes are refused; None where there is none.  Opening it again clears it."""
        return self.condition.error

    @property
    def session_id(self) -> int:
        """Session in which the marks were last set; -1 when they never were, or when the info is damaged."""
        return self._marks.session_id

    @property
    def low_water_mark(self) -> int:
        """High-water mark of the partition when that session began."""
        return self._marks.low_water_mark

    @property
    def local_low_water_mark(self) -> int:
        """This node's last transaction when the marks were set; everything up to it is durable here."""
        return self._marks.local_low_water_mark

    @property
    def marks_known(self) -> bool:
        """Whether session and marks are known; False when the partition's info in the control file is damaged."""
        return self._control.info(self.number).current_struct is not None

    @property
    def first_transaction_id(self) -> int:
        """Id at which the oldest readable segment begins."""
        segments = self._log.segments
        return segments[0].first_transaction_id if segments else 0

    @property
    def max_transaction_id(self) -> int:
        """The last durable transaction without a gap before it; -1 when there is none."""
        return self._log.next_transaction_id - 1

    @property
    def next_transaction_id(self) -> int:
        """The id that the next record must have."""
        return self._log.next_transaction_id

    @property
    def segments(self) -> tuple[SegmentExtent, ...]:
        """The segments, oldest first."""
        return self._log.segments

    @property
    def open_segments(self) -> int:
        """How many segments are open for reading."""
        return self._log.open_segments

    @property
    def _marks(self) -> PartitionStruct:
        return self._control.info(self.number).current_struct or PartitionStruct()

    # --- writing -----------------------------------------------------------------------------------------------------

    def check_writable(self) -> None:
        """Raise the error that a write would be refused with now: PartitionQuarantinedError, DiskWriteError, RefusedError."""
        with self._write_lock:
            self._writable_segment()

    def append(self, records: Sequence[Record]) -> None:
        """Append records with the next consecutive ids, all or none; durable on return.

        A record's data checksum and record checksum are compared before anything is written.  Raises OutOfOrderError,
        ChecksumMismatchError, InvalidRequestError for data that is too long, PartitionQuarantinedError, DiskFullError,
        DiskWriteError (nothing of the batch remains), SyncFailedError (writes are refused from then on).
        """
        with self._write_lock:
            active = self._writable_segment()
            batch = batch_of_records(
                records, self.next_transaction_id, self._error_prefix, self._options.max_data_length
            )
            self._append(active, batch)

    def append_blocks(self, blocks: Sequence[EncodedBlock]) -> None:
        """Append blocks of encoded records (`engine.scan.transcode.AppendEncoder`), all or none; durable on return.

        The blocks must continue the log, each from where the one before ends.  Their bytes are trusted: the encoder has checked
        every record.  All blocks are written at once and synced once, unless a segment ends or a checkpoint is reached inside
        them.  Raises OutOfOrderError, ValueError for a block whose size or count differs from its offsets, and as `append`.
        """
        with self._write_lock:
            active = self._writable_segment()
            self._append(active, batch_of_blocks(blocks, self.next_transaction_id, self._error_prefix))

    def write_blocks(self, blocks: Sequence[EncodedBlock]) -> UnsyncedAppend | None:
        """The first half of `append_blocks`, for a caller that syncs the files of several partitions at the same time.

        The caller syncs `UnsyncedAppend.file` (or commits `to_journal`) and then calls `finish_append` from the same thread: the
        write lock is held until then, and readers do not see the records.

        Returns None, and has written nothing, for blocks that need more than one sync because they end a segment or reach a
        checkpoint.  Raises as `append_blocks`.
        """
        self._write_lock.acquire()
        written = None
        try:
            active = self._writable_segment()
            batch = batch_of_blocks(blocks, self.next_transaction_id, self._error_prefix)
            part = only_part(batch, active.end, self._options.segment_size_threshold)
            if part is not None:
                try:
                    active.write(part)
                except BaseException as error:
                    self._undo_append(error, batch.first_transaction_id)
                    raise
                written = UnsyncedAppend(self.number, active, part)
        finally:
            if written is None:
                self._write_lock.release()
        return written

    def finish_append(self, append: UnsyncedAppend, error: SyncFailedError | None) -> None:
        """The second half of `append_blocks`: publish the records to readers.  Raises `error`, with which the sync failed."""
        try:
            if error is not None:
                raise self._fail(error)
            append.active.count(append.part)
            self._log.publish(append.active.next_transaction_id, append.active.end)
        finally:
            self._write_lock.release()

    def _append(self, active: ActiveSegment, batch: Batch) -> None:
        try:
            for part in parts_of(batch, active.end, self._options.segment_size_threshold):
                if part is None:
                    active = self._roll(active)
                else:
                    active.append(part)
        except BaseException as error:
            self._undo_append(error, batch.first_transaction_id)
            raise
        self._log.publish(active.next_transaction_id, active.end)

    def _undo_append(self, error: BaseException, following: int) -> None:
        """After a failed append: remove the batch, so that `following` is the next id again, or refuse all further writes."""
        if isinstance(error, SyncFailedError):
            self._fail(error)
        elif self.condition.writable:
            self._cut_failed_batch(following)

    def _roll(self, active: ActiveSegment) -> ActiveSegment:
        """Close the last segment, durably, and begin the next one."""
        self._control.check_in_place()
        active.sync_data()
        active.sync_index()
        refuse_orphan_index(Where(self._storage, self.number, self.path), active.next_transaction_id)
        with disk.opened_directory(self.path) as opened:
            try:
                extent = create_segment(
                    self.path,
                    partition=self.number,
                    first_transaction_id=active.next_transaction_id,
                    cluster_key=self._cluster_key,
                )
                try:
                    following = ActiveSegment.open(extent)
                except BaseException:
                    remove_segment(self.path, extent, opened)
                    raise
            except DiskWriteError as error:
                try:
                    left = file_status.exists(self.path / segment_name(active.next_transaction_id))
                except DiskWriteError:  # nobody can tell
                    left = True
                if left:  # the new segment could not be removed, and records appended in front of it would overlap it
                    self._fail(error)
                raise
        ended = whole_extent(
            self.number, self.path, active.first_transaction_id, active.next_transaction_id, active.end
        )
        self._log.extend(ended, extent)
        self._active = following
        active.close()
        return following

    def _cut_failed_batch(self, following: int) -> None:
        """After a failed write: cut off what was written of the batch, so that `following` is the next id again."""
        try:
            self._cut_to(following)
        except BaseException as error:
            if isinstance(error, DiskWriteError):
                self._fail(error)
            else:
                cause = OSError("the files could not be brought back to the last acknowledged transaction")
                self._fail(DiskWriteError(self.path, None, cause, doing="take an append back"))
            raise

    def set_low_water_mark(self, session_id: int, low_water_mark: int) -> None:
        """Start a session: make everything durable, then write the session, the low-water mark and the local low-water mark.

        The local low-water mark is the last transaction id of this replica.  A low-water mark above it is allowed: the replica is
        behind then.  Raises MarkWouldFallError for a low-water mark below the last transaction id or below the present mark,
        ConcurrentUpdateError for an older session, PartitionQuarantinedError, DiskWriteError.
        """
        with self._write_lock:
            active = self._writable_segment()
            if self.max_transaction_id > low_water_mark:
                raise MarkWouldFallError(
                    f"{self.path}: partition {self.number}: low-water mark {low_water_mark} is lower than the max transaction"
                    f" id {self.max_transaction_id}",
                    advice="truncate first",
                )
            try:
                active.sync_data()
                active.sync_index()
            except SyncFailedError as error:
                raise self._fail(error) from None
            self._control.set_low_water_mark(self.number, session_id, low_water_mark, self.max_transaction_id)

    def truncate(self, after: int, *, allow_data_loss: bool = False) -> int:
        """Remove every transaction behind `after`, durably; return the last one that is left.

        Does nothing when `after` is not below the last transaction.  -1 leaves one empty segment.  Order, each step durable:

        1. remove the later segments, last to first, and of each the index before the data file;
        2. cut the data file of the segment that stays, then its index.

        So a crash leaves an unbroken beginning of the log that holds at least `after`, and no index proves more records than
        there are.

        Raises BelowLowWaterMarkError below the local low-water mark unless `allow_data_loss`, in which case the mark is
        lowered first (otherwise the next opening would miss acknowledged transactions); InvalidRequestError,
        CorruptRecordError when the record to end with cannot be verified, PartitionQuarantinedError, DiskWriteError after
        which the partition refuses writes until it is opened again.
        """
        with self._write_lock:
            active = self._writable_segment()
            if after < -1:
                raise InvalidRequestError(f"cannot truncate after transaction {after}; -1 removes everything")
            if after >= self.max_transaction_id:
                return self.max_transaction_id
            if after < self.local_low_water_mark and not allow_data_loss:
                raise BelowLowWaterMarkError(
                    f"{self.path}: partition {self.number}: truncating after {after} would lose acknowledged transactions:"
                    f" the local low-water mark is {self.local_low_water_mark}"
                )
            self._control.check_in_place()  # segments are removed, and the one that stays is opened, by name
            self._log.end_after(after)  # verifies the record before anything is changed
            try:
                self._leave_journal(active)
            except DiskWriteError as error:
                raise self._fail(error) from None
            self._control.lower_local_low_water_mark(self.number, after)
            try:
                self._cut_to(after + 1)
            except DiskWriteError as error:
                raise self._fail(error) from None
            return after

    def end_at(self, acknowledged: int) -> None:
        """End the log at transaction `acknowledged`, the last one acknowledged before the partition was opened again.

        ======================  =======================================  ==========================================
        partition               records behind `acknowledged`            afterwards
        ======================  =======================================  ==========================================
        writable                are cut off, durably                     writable
        writable, cut fails     stay, hidden from readers                refuses writes until it is opened again
        quarantined             stay, hidden from readers                quarantined
        ======================  =======================================  ==========================================

        Raises CorruptRecordError, DiskReadError, DiskWriteError.
        """
        with self._write_lock:
            if self.condition.quarantined:
                self._log.hide_behind(acknowledged)
                return
            try:
                self.truncate(acknowledged)
            except BaseException as error:
                self._log.hide_behind(acknowledged)
                if self.condition.writable:
                    cause = OSError(errno.EIO, str(error))
                    self._fail(DiskWriteError(self.path, None, cause, doing="cut off what was not acknowledged in"))
                raise

    def _leave_journal(self, active: ActiveSegment) -> None:
        """Make every record durable in its segment and have the commit journal forget the partition.

        Required before a change that a write-back from the journal would undo, such as a truncation.  Raises DiskWriteError.
        """
        active.sync_data()
        if self.journal is not None:
            self.journal.forget(self.number)

    def _cut_to(self, following: int) -> None:
        """Remove every record from `following` on.  On DiskWriteError memory no longer matches the files."""
        target, end = self._log.end_after(following - 1)
        kept = whole_extent(self.number, self.path, target.first_transaction_id, following, end)
        dropped = self._log.end_with(kept)
        active = self._active
        assert active is not None
        if dropped:
            self._control.check_in_place()
            active.close()
            self._active = None
            for segment in reversed(dropped):
                remove_segment(self.path, segment)
            active = self._active = ActiveSegment.open(kept)
        active.next_transaction_id, active.end = following, end
        active.cut_back()

    def _writable_segment(self) -> ActiveSegment:
        condition = self.condition
        if condition.closed:
            raise RefusedError(f"{self.path}: partition {self.number} is closed")
        if condition.error is not None:
            raise condition.error.with_traceback(None)  # else the traceback grows with every call that raises it
        if condition.damaged:
            raise PartitionQuarantinedError(
                f"{self.path}: partition {self.number} is quarantined: {self._quarantine_reason()}",
                self._findings,
                advice="run waltzctl verify, then recover; every byte was kept",
            )
        assert self._active is not None
        self._renew_data_file(self._active)
        return self._active

    def _renew_data_file(self, active: ActiveSegment) -> None:
        """Replace the descriptor of the data file if a background flush of the commit journal failed.  Raises DiskWriteError.

        The old descriptor would report that failure at its next sync, although no acknowledged record is missing.  The new one
        reports every failure from now on.  Replacing it loses nothing: no append is in progress, and each acknowledged record was
        synced through the old descriptor, or was flushed from the journal, or is rewritten from the journal here.
        """
        if self.journal is None or not self.journal.doubts(self.number):
            return
        try:
            renewed = disk.WritableFile.open(active.data.path)
            try:
                self.journal.write_back(self.number)
            except BaseException:
                renewed.close()
                raise
        except (DamageError, DiskError, FileNotFoundError) as error:
            if not isinstance(error, DiskWriteError):
                cause = OSError(errno.EIO, str(error))
                error = DiskWriteError(active.data.path, None, cause, doing="write anew what is journaled of")
            raise self._fail(error) from None
        active.data.close()
        active.data = renewed

    def _quarantine_reason(self) -> str:
        damage = [finding for finding in self._findings if finding.severity == "damage"]
        return damage[0].message if damage else "damage was found"

    def _fail(self, error: DiskWriteError) -> DiskWriteError:
        self._failed = error
        if isinstance(error, SyncFailedError):
            self._control.note_failed_sync(self.number)
        return error

    # --- reading -----------------------------------------------------------------------------------------------------

    def read(self, transaction_id: int) -> Record | None:
        """One record, both checksums verified; None when there is no such transaction (yet).

        Raises CorruptRecordError for one that is damaged or was lost, DiskReadError.
        """
        return self._log.read(transaction_id)

    def read_range(self, first: int, count: int, max_bytes: int | None = None) -> list[Record]:
        """Up to `count` consecutive records from `first`, fewer at the end of the log.

        `max_bytes` bounds the bytes that the records take on disk, but at least one record is returned.  The list also ends in
        front of a damaged record; when the first record is damaged, CorruptRecordError names it.  Raises DiskReadError,
        InvalidRequestError for a negative count.
        """
        return self._log.read_range(first, count, max_bytes)

    def read_headers(self, first: int, count: int) -> list[RecordHeader]:
        """As `read_range`, without the data; the data is verified all the same."""
        return self._log.read_headers(first, count)

    def read_wire(self, first: int, count: int, max_bytes: int | None = None) -> WireRecords:
        """As `read_range`, in the form that a list of records has on the wire."""
        return self._log.read_wire(first, count, max_bytes)

    def read_wire_headers(self, first: int, count: int) -> WireRecords:
        """As `read_headers`, in the form that a list of record headers has on the wire."""
        return self._log.read_wire(first, count, None, headers=True)

    def place_of(self, transaction_id: int) -> tuple[int, int] | None:
        """The segment and byte offset of a record; see `PartitionLog.place_of`."""
        return self._log.place_of(transaction_id)

    def answer_lists(self, answers: ListAnswers, requests: Requests) -> None:
        """Answer requests for few records as long as none has to wait for the disk; see `PartitionLog.answer_lists`."""
        self._log.answer_lists(answers, requests)

    def close(self) -> None:
        """Make every record durable in the partition's own files and close them; a second call does nothing.

        Raises DiskWriteError.
        """
        with self._write_lock:
            if self._closed:
                return
            try:
                if self._active is not None and self.condition.writable:
                    self._renew_data_file(self._active)
                    self._leave_journal(self._active)
                    self._active.sync_index()
            except SyncFailedError as error:
                raise self._fail(error) from None
            finally:
                self._closed = True
                self._log.close()
                if self._active is not None:
                    self._active.close()
