"""The commit journal: one flush makes appends to many partitions durable; their segments are flushed later, in the background.

File layout: `formats.journal_file`.  Where the file is and whether it is in force: `engine.storage.journal_state`.  Appends are
written to their segments with and without a journal; the journal only replaces the flush of every segment by one of its own.

*Terms.*  An *entry* holds the bytes of one commit, or names a partition that is *forgotten*: what earlier entries say of it is
void.  The file has two *areas* of equal size, which are filled in turn.  An area gets a new *epoch* in its header each time it is
started again.

*Concurrency.*  At most `AT_A_TIME` entries are being written at once, each through its own descriptor: Linux reports a failed
write-back once to each open descriptor, so no entry can take another's failure for its own success.  The lock is released during
every write and flush of the journal.

*Order.*  An entry gets its offset before it is written, so a later entry may reach the file before an earlier one; recovery stops
at the first missing entry.  Hence an entry is flushed only when every earlier entry of its area has been written: its flush makes
them durable too, and recovery reaches every acknowledged entry.

*Areas.*  While one area is filled, a thread makes the segments named in the other area durable.

==============================  ====================================================================================
condition                       what happens
==============================  ====================================================================================
neither area has room           `commit` returns False: the caller flushes the segments itself
the journal cannot be written   the same, for every later commit; the thread makes every segment durable, then clears
(`fault` is set)                the control file's mark and removes the journal
==============================  ====================================================================================
"""

from __future__ import annotations

import contextlib
import errno
import logging
import math
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath

from waltzctl.engine.durable import disk
from waltzctl.engine.errors import DamageError, DiskError, DiskWriteError, RefusedError
from waltzctl.engine.storage.control_file import OpenControlFile
from waltzctl.engine.storage.journal_creation import close_all, create_journal_file
from waltzctl.engine.storage.journal_recovery import in_force, remove_file, segment_path, write_back
from waltzctl.engine.storage.journal_state import GIVING_UP, JournalState, owner_of, remove_state
from waltzctl.formats.journal_file import (
    BLOCK,
    AreaHeader,
    WriteTo,
    encode_area_header,
    encode_entry,
    entry_size,
    header_offset,
    padded,
)

AREA_SIZE = 32 << 20
"""Bytes of one of the two areas."""
MOST_IN_ENTRY = 1 << 20
"""Most bytes of records in one entry.  A larger commit flushes its segments, which costs less than writing the bytes twice."""
RESERVE = 64 * BLOCK
"""Bytes at the end of an area that `commit` does not use: they are kept for the entries of `forget`."""
AT_A_TIME = 2
"""Most entries that are being written at the same time."""
_FORGET_TIMEOUT = 10.0
"""Seconds that `forget` waits for room in an area, and again as many for earlier entries that are still being written."""


class _Area:
    """One of the two areas of the journal file.

    ==============  ==================================================================================================
    `start`         byte offset of the area in the journal file
    `epoch`         epoch in the area's header; raised each time the area is started again
    `unflushed`     data files named by the area's entries that are not yet durable themselves, with their partitions
    `partitions`    partitions that have entries in the area and were not forgotten
    `writing`       sequence numbers of entries that have an offset and are not written yet
    ==============  ==================================================================================================
    """

    def __init__(self, start: int, epoch: int) -> None:
        self.start, self.epoch = start, epoch
        self.unflushed: dict[PurePath, int] = {}
        self.partitions: set[int] = set()
        self.writing: set[int] = set()

    @property
    def first_unwritten(self) -> float:
        """Lowest sequence number in `writing`; infinity when it is empty."""
        return min(self.writing, default=math.inf)


@dataclass(slots=True)
class _Segment:
    """A segment some of whose records may be durable in the journal only; an area has it as `unflushed`.

    `file`: a descriptor that was opened before the first of these records was acknowledged.  Linux reports a failed write-back
    once to each descriptor that is open at that time, and to none that is opened later, and then marks the pages clean: a sync
    through a new descriptor would succeed although the records are lost.
    """

    partition: int
    file: disk.WritableFile


class CommitJournal:
    """The journal of an open storage directory.  Made by `create`.  Thread-safe.

    Lock order: a caller of `commit`, `forget` or `write_back` holds the partition's lock; the journal's own lock (`_changed`)
    is taken after it.
    """

    def __init__(
        self,
        storage: Path,
        control: OpenControlFile,
        state: JournalState,
        files: Sequence[disk.WritableFile],
        *,
        area_size: int,
        log: logging.Logger,
    ) -> None:
        self.state = state
        self._storage, self._control, self._log = storage, control, log
        self._owner = owner_of(storage)
        self._files, self._free_files = tuple(files), list(files)  # descriptors of the journal; those not in use
        self._area_size = area_size
        self._areas = [_Area(0, 1), _Area(area_size, 0)]
        self._current = 0  # index of the area that is being filled
        # in the current area: next sequence number, number below which every entry is durable, offset of the next entry
        self._sequence, self._durable, self._position = 0, 0, BLOCK
        self._fault: DiskError | None = None
        self._retired = self._closed = self._switching_area = False
        self._changed = threading.Condition()  # its lock guards everything here
        self._full_area: _Area | None = None  # the area whose segments the thread has to flush
        self._segments: dict[PurePath, _Segment] = {}
        self._sync_failed: set[int] = set()  # partitions of which a segment's sync failed
        self._files_to_close: list[
            disk.WritableFile
        ] = []  # of forgotten segments; only the thread that syncs them closes them
        self._thread = threading.Thread(target=self._work, name="commit-journal", daemon=True)

    @classmethod
    def create(
        cls,
        storage: Path,
        path: Path,
        control: OpenControlFile,
        *,
        log: logging.Logger,
        area_size: int = AREA_SIZE,
        threaded: bool = True,
    ) -> CommitJournal:
        """Make a journal for a directory whose lock this process holds, and mark the directory.

        `path` may be relative to the working directory; it is stored as an absolute path, because the next process may be started
        elsewhere.  `threaded` False: there is no background thread, and the caller calls `work` instead.

        A file that an earlier journal of this directory left at `path` is replaced, or kept beside it
        (`engine.storage.journal_creation`).  Raises RefusedError for any other file at
        `path`, for a journal that another process is writing, and while an earlier journal still holds records that are not in
        their segments; DiskWriteError.
        """
        if area_size < 4 * RESERVE or area_size % BLOCK:
            raise ValueError(f"an area of {area_size} bytes")
        if control.journaled:
            raise RefusedError(
                f"{storage}: its last commit journal still holds records that could not be written back",
                advice=f"bring back what the findings name, and run without --journal until then; {GIVING_UP}",
            )
        state, files = create_journal_file(storage, path, area_size, descriptors=AT_A_TIME, log=log)
        try:
            control.set_journaled(True)
        except BaseException:  # the mark may be on the disk all the same, so the journal file has to stay
            close_all(files)
            raise
        journal = cls(storage, control, state, files, area_size=area_size, log=log)
        if threaded:
            journal._thread.start()
        return journal

    @property
    def path(self) -> Path:
        """Absolute path of the journal file."""
        return self.state.path

    @property
    def fault(self) -> DiskError | None:
        """Why appends are not journaled any more; None while they are."""
        return self._fault

    def commit(self, writes: Sequence[WriteTo]) -> bool:
        """Make bytes durable that were already written to their segments.

        False: they are not durable, and the caller has to flush the segments; likewise after a MemoryError.
        """
        size = sum(len(piece) for write in writes for piece in write.pieces)
        if size > MOST_IN_ENTRY or self._fault is not None:
            return False
        with self._changed:
            self._changed.wait_for(lambda: self._free_files and not self._switching_area)
            if self._fault is not None or self._retired or not self._make_room(padded(entry_size(writes)) + RESERVE):
                return False
            segments = {segment_path(self._storage, write): write.partition for write in writes}
            try:
                self._open_segments(segments)
            except (DiskError, FileNotFoundError):
                return False
            area = self._areas[self._current]
            area.unflushed.update(segments)  # before the write: a failed write may reach the journal all the same
            area.partitions.update(segments.values())
            try:
                self._write_entry(writes)
            except DiskWriteError:
                return False
            return self._fault is None

    def forget(self, partition: int) -> None:
        """Declare every journaled write of a partition void, so that recovery does not repeat it; durable on return.

        The caller has made the partition's segments durable before.  Raises DiskWriteError.
        """
        with self._changed:
            if self._retired or self._closed or not self._has_entries_of(partition):
                return
            self._changed.wait_for(
                lambda: (
                    self._fault is not None
                    or (
                        self._free_files and not self._switching_area and (self._has_room(BLOCK) or self._other_is_free)
                    )
                ),
                _FORGET_TIMEOUT,
            )
            if self._fault is None and (not self._free_files or self._switching_area or not self._make_room(BLOCK)):
                raise self._forget_error(self._fault or "neither area has room, or the device does not answer")
            if self._fault is not None:
                raise self._forget_error(self._fault)
            self._write_entry(forgotten=[partition], timeout=_FORGET_TIMEOUT)
            self._sync_failed.discard(partition)
            for area in self._areas:
                area.partitions.discard(partition)
                area.unflushed = {path: number for path, number in area.unflushed.items() if number != partition}
            for path in [path for path, segment in self._segments.items() if segment.partition == partition]:
                self._files_to_close.append(self._segments.pop(path).file)  # the thread may be syncing it
            self._changed.notify_all()

    def doubts(self, partition: int) -> bool:
        """Whether a background flush of the partition's segments failed; the partition's own descriptors will report it too.

        From then on the journal rewrites the partition's journaled bytes into the segments instead of flushing them, until
        `write_back` is called.
        """
        return partition in self._sync_failed

    def write_back(self, partition: int) -> None:
        """Write the journaled bytes of a partition into its segments again, durably.  Raises DamageError, DiskError.

        For a partition whose segments could not be made durable: the disk's contents are unknown then.  The caller makes sure
        that no append of the partition is in progress that is neither acknowledged nor journaled.
        """
        with self._changed:
            if self._has_entries_of(partition) and not self._retired:
                self._rewrite_segments(partition)
            self._sync_failed.discard(partition)

    def close(self) -> None:
        """Make every segment durable, clear the control file's mark, and close the file; a second call does nothing.

        Raises DamageError, DiskError; the mark then stays, and the next opening recovers from the journal.
        """
        with self._changed:
            if self._closed:
                return
            self._closed = True
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join()
        with self._changed:
            self._changed.wait_for(lambda: len(self._free_files) == len(self._files))  # no write is in progress
            try:
                self._retire()
            except (DamageError, DiskError) as error:
                self._fault = self._fault or _as_disk_error(self.state.path, error)
                self._sync_failed.clear()  # no write-back follows: the partitions' own descriptors report it
                raise
            finally:
                close_all(self._files)
                close_all(segment.file for segment in self._segments.values())
                close_all(self._files_to_close)

    # --- internals; the lock is held ---------------------------------------------------------------------------------

    def _has_entries_of(self, partition: int) -> bool:
        return any(partition in area.partitions for area in self._areas)

    @property
    def _epoch(self) -> int:
        return self._areas[self._current].epoch

    @property
    def _other(self) -> _Area:
        return self._areas[1 - self._current]

    @property
    def _other_is_free(self) -> bool:
        return not self._other.unflushed and not self._other.writing

    def _forget_error(self, why: object) -> DiskWriteError:
        return DiskWriteError(self.state.path, None, OSError(errno.EIO, str(why)), doing="forget a partition in")

    def _open_segments(self, segments: Mapping[PurePath, int]) -> None:
        """Open those that are not open: all, or after an error none.  Raises DiskError, FileNotFoundError."""
        opened: dict[PurePath, _Segment] = {}
        try:
            for path, partition in segments.items():
                if path not in self._segments:
                    opened[path] = _Segment(partition, disk.WritableFile.open(path))
            if opened:
                self._control.check_in_place()  # else they are segments of a copy, whose flush keeps nothing of this one
        except BaseException:
            close_all(one.file for one in opened.values())
            raise
        self._segments.update(opened)

    @contextlib.contextmanager
    def _lock_released(self) -> Iterator[None]:
        """Release the lock for a write or a flush of the journal.

        Any failure ends journaling: recovery stops at a missing entry, so no later entry would count.
        """
        self._changed.release()
        failed: BaseException | None = None
        try:
            yield
        except BaseException as error:
            failed = error
            raise
        finally:
            self._changed.acquire()
            if failed is not None:
                self._stop_journaling(_as_disk_error(self.state.path, failed))

    def _write_entry(
        self, writes: Sequence[WriteTo] = (), forgotten: Sequence[int] = (), *, timeout: float | None = None
    ) -> None:
        """Write an entry and make it durable; other threads may write entries meanwhile.

        Raises DiskWriteError, also when earlier entries are not written within `timeout` seconds; recovery may find the entry
        all the same.
        """
        area, epoch, sequence = self._areas[self._current], self._epoch, self._sequence
        raw = encode_entry(self.state.journal_id, (epoch, sequence, self._durable), writes, forgotten)
        start, behind, following = area.start + self._position, self._position + len(raw), sequence + 1
        area.writing.add(sequence)
        # All memory is allocated above this line.  From here on, descriptor and offset are given back, or journaling ends.
        file = self._free_files.pop()
        self._position, self._sequence = behind, following
        try:
            try:
                with self._lock_released():
                    file.write_at(start, raw)
            finally:
                area.writing.remove(sequence)
                self._changed.notify_all()
            if not self._changed.wait_for(lambda: self._fault is not None or sequence < area.first_unwritten, timeout):
                raise self._forget_error("an entry in front of its own is still being written")
            if self._fault is not None:
                raise self._forget_error(self._fault)
            with self._lock_released():
                file.sync()
            if epoch == self._epoch:
                self._durable = max(self._durable, sequence + 1)
        finally:
            self._free_files.append(file)
            self._changed.notify_all()

    def _has_room(self, size: int) -> bool:
        return self._area_size - self._position >= size

    def _make_room(self, size: int) -> bool:
        """Whether the current area has `size` bytes left, or the other area was free and could be started."""
        if self._has_room(size):
            return True
        if not self._other_is_free or size > self._area_size - BLOCK:
            return False
        full, begun = self._areas[self._current], self._other
        head = AreaHeader(self.state.journal_id, self._owner, self._area_size, self._epoch + 1, self._durable)
        file, self._switching_area = self._free_files.pop(), True  # the caller has waited until one is free
        try:  # durable before an entry of the old epoch is overwritten: under the old header that entry would be missing
            with self._lock_released():
                file.write_at(begun.start + header_offset(head.epoch), encode_area_header(head))
                file.sync()
        except DiskWriteError:
            return False
        finally:
            self._free_files.append(file)
            self._switching_area = False
            self._changed.notify_all()
        if self._fault is not None or self._retired:  # set by another thread meanwhile
            return False
        self._current = 1 - self._current
        self._sequence, self._durable, self._position = 0, 0, BLOCK
        begun.epoch, begun.partitions = head.epoch, set()
        self._full_area = full
        return True

    def _rewrite_segments(self, partition: int) -> None:
        """Write the journaled bytes of a partition into its segments, durably.  Raises DamageError, DiskError."""
        self._control.check_in_place()
        areas = [self._files[0].read_at(area.start, self._area_size) for area in self._areas]
        write_back(self._storage, in_force(self.state, areas).get(partition, []), self._control.cluster_key)

    def _stop_journaling(self, error: DiskError) -> None:
        """End journaling; the thread then makes every segment durable."""
        if self._fault is not None:  # another entry that was being written failed too
            return
        self._fault = error
        self._log.error("%s: appends are not journaled any more: %s", self.state.path, error)
        self._changed.notify_all()

    def _retire(self) -> None:
        """Make every segment durable, clear the control file's mark, and remove state file and journal if they are this one's."""
        if self._retired:
            return
        for area in self._areas:
            for path, partition in list(area.unflushed.items()):
                self._flush(path, partition)
                area.unflushed.pop(path)
        self._control.set_journaled(False)
        self._retired = True
        try:
            self._control.check_in_place()
        except DiskWriteError as error:  # a copy that was put in the directory's place has a mark and a state file, too
            self._log.warning("%s: is left, for a copy: %s", self.state.path, error)
            return
        remove_state(self._storage)
        remove_file(self.state.path)

    def _flush(self, path: PurePath, partition: int) -> None:
        """Make a segment durable; where its sync fails, or failed before, rewrite its partition's journaled bytes."""
        if partition not in self._sync_failed:
            try:
                self._segments[path].file.sync()
            except DiskError:
                self._sync_failed.add(partition)
        if partition in self._sync_failed:
            self._rewrite_segments(partition)

    # --- the thread --------------------------------------------------------------------------------------------------

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(self._has_work)
                if self._closed:
                    return
            if not self.work():
                return

    def _has_work(self) -> bool:
        return bool(self._closed or self._fault is not None or self._full_area is not None or self._files_to_close)

    def work(self) -> bool:
        """One step of the background thread: flush the segments of the full area, or retire a journal that cannot be written.

        False: no further step will be needed.
        """
        with self._changed:
            if self._fault is not None:
                try:
                    self._retire()
                except (DamageError, DiskError) as error:
                    self._log.error("%s: is still wanted, and the next start tries again: %s", self.state.path, error)
                return False
            to_close, self._files_to_close = self._files_to_close, []
            close_all(to_close)
            area, self._full_area = self._full_area, None
            epoch, unflushed = (0, []) if area is None else (area.epoch, list(area.unflushed.items()))
        for path, partition in unflushed:
            assert area is not None
            self._flush_in_background(area, epoch, path, partition)
        return True

    def _flush_in_background(self, area: _Area, epoch: int, path: PurePath, partition: int) -> None:
        """Make a segment durable while appends go on, on behalf of the entries that an area held in an epoch."""
        with self._changed:
            segment = self._segments.get(path)
        if segment is not None and partition not in self._sync_failed:
            try:
                segment.file.sync()
            except DiskError:
                self._sync_failed.add(partition)
        with self._changed:
            self._changed.wait_for(lambda: not area.writing)  # only what is in the journal file can be rewritten
            if segment is None or path not in area.unflushed:  # forgotten meanwhile; the file may have been removed
                return
            if area.epoch != epoch:  # started again meanwhile: its entries are newer than this flush
                return
            if partition in self._sync_failed:
                try:
                    self._rewrite_segments(partition)
                except (DamageError, DiskError) as error:
                    self._stop_journaling(_as_disk_error(path, error))
                    return
            area.unflushed.pop(path)
            if not any(path in one.unflushed for one in self._areas):
                self._segments.pop(path).file.close()  # also behind a failed sync: all that it was for was written anew
            self._changed.notify_all()


def _as_disk_error(path: PurePath, error: BaseException) -> DiskError:
    return error if isinstance(error, DiskError) else DiskWriteError(path, None, OSError(errno.EIO, str(error)))
