"""The commit journal: appends of many partitions are durable with one flush, and their segments are flushed behind it.

Layout: `formats.journal_file`.  Where it is and whether it is in force: `engine.storage.journal_state`.  Appends are written to
their segments as ever; only who makes them durable differs.

Two entries at most are under way at the same time, each with a descriptor of its own: a failed write is told once to every
descriptor, so neither can take the other's failure for its own success.

Nobody holds the lock while the journal's device is waited for.  An entry has its place before it is written, so one behind it
may be in the file earlier, and would not count as long as the one in front is missing.  Hence an entry is flushed only when all
in front of it in its area are written: that makes them durable as well, and a reader comes to whatever is acknowledged.

Areas: while one is filled, the segments that the other one speaks of are made durable by a thread.  When that is not done in
time, appends are not journaled: whoever asks flushes the segments, as without a journal.  So is it when the journal cannot be
written any more; what it held until then is made durable in the segments, and the mark goes.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import math
import threading
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath

from waltzctl.engine.durable import disk
from waltzctl.engine.errors import DamageError, DiskError, DiskWriteError, RefusedError
from waltzctl.engine.storage.control_file import OpenControlFile
from waltzctl.engine.storage.journal_recovery import in_force, remove_file, segment_path, write_back
from waltzctl.engine.storage.journal_state import GIVING_UP, JournalState, owner_of, remove_state, write_state
from waltzctl.formats.journal_file import (
    AREAS,
    BLOCK,
    AreaHeader,
    WriteTo,
    decode_area_header,
    encode_area_header,
    encode_entry,
    entry_size,
    header_offset,
    padded,
)

AREA_SIZE = 32 << 20
"""Bytes of one of the two areas."""
MOST_IN_ENTRY = 1 << 20
"""Bytes of records that are journaled at once; more are flushed where they belong, which costs less than to write them twice."""
RESERVE = 64 * BLOCK
"""Bytes at the end of an area that appends leave alone, so that the journal can forget at any time."""
AT_A_TIME = 2
"""Entries that are under way at the same time."""
_PATIENCE = 10.0
"""Seconds that forgetting waits for room in the other area, and as many for entries in front of it that are being written."""
_ZEROS = 1 << 20


def _close(files: Iterable[disk.WritableFile]) -> None:
    for file in files:
        file.close()


class _Area:
    """One area of a journal that is being written.

    `unflushed`: the segments that its entries speak of and that are not durable yet, with their partitions.  `partitions`:
    those that it has not forgotten.  `epoch`: that of its header, another one each time that it is begun anew.  `writing`: the
    sequences of entries that have a place and are not written yet.
    """

    def __init__(self, start: int, epoch: int) -> None:
        self.start, self.epoch = start, epoch
        self.unflushed: dict[PurePath, int] = {}
        self.partitions: set[int] = set()
        self.writing: set[int] = set()

    @property
    def first_writing(self) -> float:
        """The first of those sequences; above each when there is none."""
        return min(self.writing, default=math.inf)


@dataclass(slots=True)
class _Segment:
    """A segment of which the journal holds what may not be durable in it.

    `file`: a descriptor that was opened before anybody believed that.  A failed write is told once to every descriptor that is
    open then and to none that is opened later, and what failed then counts as written; a new one would succeed with the records
    lost.
    """

    partition: int
    file: disk.WritableFile


class CommitJournal:
    """The journal of an open storage directory.  Made by `create`.  Thread-safe.

    Whoever commits or forgets for a partition holds that partition's lock; the journal's own lock comes behind it.
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
        self._files, self._unused = tuple(files), list(files)
        self._area_size = area_size
        self._areas = [_Area(0, 1), _Area(area_size, 0)]
        self._current = 0
        self._sequence, self._durable, self._position = 0, 0, BLOCK
        self._fault: DiskError | None = None
        self._retired = self._closed = self._beginning = False
        self._changed = threading.Condition()
        self._to_flush: _Area | None = None
        self._segments: dict[PurePath, _Segment] = {}
        self._doubtful: set[int] = set()
        self._unwanted: list[disk.WritableFile] = []
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
        """Make a journal for a directory that this process holds, and mark the directory.

        A relative path is one from the working directory, and kept as an absolute one: the next start may be elsewhere.
        Without a thread of its own whoever uses it calls `work`.

        What an earlier journal of this directory left at `path` is replaced.  Raises RefusedError for anything else that stands
        there, and while an earlier journal is still wanted; DiskWriteError.
        """
        if area_size < 4 * RESERVE or area_size % BLOCK:
            raise ValueError(f"an area of {area_size} bytes")
        if control.journaled:
            raise RefusedError(
                f"{storage}: its last commit journal still holds records that could not be written back",
                advice=f"bring back what the findings name, and run without --journal until then; {GIVING_UP}",
            )
        owner, path = owner_of(storage), path.absolute()
        if ".." in path.parts:  # through the storage directory, perhaps, and not in it
            path = path.parent.resolve() / path.name
        _clear(path, owner)
        state = JournalState(path, uuid.uuid4())
        files: list[disk.WritableFile] = []
        try:
            with disk.replacing(path) as file:  # a part of one, under its name, a later start would refuse to replace
                for start in range(0, AREAS * area_size, _ZEROS):  # what is there is flushed faster than new bytes
                    file.write_at(start, bytes(min(_ZEROS, AREAS * area_size - start)))
                for start, epoch in (0, 1), (area_size, 0):
                    head = AreaHeader(state.journal_id, owner, area_size, epoch)
                    file.write_at(start + header_offset(epoch), encode_area_header(head))
            files += [disk.WritableFile.open(path) for _ in range(AT_A_TIME)]
            write_state(storage, state)
        except BaseException:
            remove_file(path)
            _close(files)
            raise
        try:
            control.set_journaled(True)
        except BaseException:  # the mark may be there all the same, and then the journal has to be
            _close(files)
            raise
        journal = cls(storage, control, state, files, area_size=area_size, log=log)
        if threaded:
            journal._thread.start()
        return journal

    @property
    def path(self) -> Path:
        """Where it stands."""
        return self.state.path

    @property
    def fault(self) -> DiskError | None:
        """Why appends are not journaled any more; None while they are."""
        return self._fault

    def commit(self, writes: Sequence[WriteTo]) -> bool:
        """Make bytes durable that stand in their segments already.  False: they are not; whoever asks flushes the segments.

        So he does after a MemoryError.
        """
        size = sum(len(piece) for write in writes for piece in write.pieces)
        if size > MOST_IN_ENTRY or self._fault is not None:
            return False
        with self._changed:
            self._changed.wait_for(lambda: self._unused and not self._beginning)
            if self._fault is not None or self._retired or not self._make_room(padded(entry_size(writes)) + RESERVE):
                return False
            segments = {segment_path(self._storage, write): write.partition for write in writes}
            try:
                self._open_segments(segments)
            except (DiskError, FileNotFoundError):
                return False
            area = self._areas[self._current]
            area.unflushed.update(segments)  # before it is tried: what failed may stand there all the same
            area.partitions.update(segments.values())
            try:
                self._put(writes)
            except DiskWriteError:
                return False
            return self._fault is None

    def forget(self, partition: int) -> None:
        """Nothing that was journaled of a partition holds any more; durable on return.

        The caller has made the partition's segments durable.  Raises DiskWriteError.
        """
        with self._changed:
            if self._retired or self._closed or not self._holds(partition):  # closed: nothing is changed any more
                return
            self._changed.wait_for(
                lambda: (
                    self._fault is not None
                    or (self._unused and not self._beginning and (self._has_room(BLOCK) or self._other_is_free))
                ),
                _PATIENCE,
            )
            if self._fault is None and (not self._unused or self._beginning or not self._make_room(BLOCK)):
                raise self._refusal(self._fault or "neither area has room, or the device does not answer")
            if self._fault is not None:
                raise self._refusal(self._fault)
            self._put(forgotten=[partition], patience=_PATIENCE)
            self._doubtful.discard(partition)
            for area in self._areas:
                area.partitions.discard(partition)
                area.unflushed = {path: number for path, number in area.unflushed.items() if number != partition}
            for path in [path for path, segment in self._segments.items() if segment.partition == partition]:
                self._unwanted.append(self._segments.pop(path).file)  # whoever syncs it is who closes it
            self._changed.notify_all()

    def doubts(self, partition: int) -> bool:
        """Whether a flush of the partition's segments failed, of which its own descriptors will be told as well.

        What the journal holds is written anew, then and whenever more is journaled, until `write_back` is called.
        """
        return partition in self._doubtful

    def write_back(self, partition: int) -> None:
        """Write what the journal holds of a partition where it belongs, again and durably.  Raises DamageError, DiskError.

        For one whose segments could not be made durable: nobody knows what the disk has of them.  The caller sees to it that
        nothing is under way that was written before and is neither acknowledged nor journaled.
        """
        with self._changed:
            if self._holds(partition) and not self._retired:
                self._write_anew(partition)
            self._doubtful.discard(partition)

    def close(self) -> None:
        """Make every segment durable, take the mark away and let go of the file; a second call does nothing.

        Raises DamageError, DiskError; the mark stays then, and the next opening puts the directory right.
        """
        with self._changed:
            if self._closed:
                return
            self._closed = True
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join()
        with self._changed:
            self._changed.wait_for(lambda: len(self._unused) == len(self._files))  # nobody writes to what is closed
            try:
                self._retire()
            except (DamageError, DiskError) as error:
                self._fault = self._fault or _as_disk_error(self.state.path, error)
                self._doubtful.clear()  # nothing is written back now: their own descriptors tell
                raise
            finally:
                _close(self._files)
                _close(segment.file for segment in self._segments.values())
                _close(self._unwanted)

    # --- behind; the lock is held ------------------------------------------------------------------------------------

    def _holds(self, partition: int) -> bool:
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

    def _refusal(self, why: object) -> DiskWriteError:
        return DiskWriteError(self.state.path, None, OSError(errno.EIO, str(why)), doing="forget a partition in")

    def _open_segments(self, segments: Mapping[PurePath, int]) -> None:
        for path, partition in segments.items():
            if path not in self._segments:
                self._segments[path] = _Segment(partition, disk.WritableFile.open(path))

    @contextlib.contextmanager
    def _at_the_disk(self) -> Iterator[None]:
        """Without the lock.  Whatever goes wrong, nothing is journaled any more: behind an entry that is missing none counts."""
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
                self._give_up(_as_disk_error(self.state.path, failed))

    def _put(
        self, writes: Sequence[WriteTo] = (), forgotten: Sequence[int] = (), *, patience: float | None = None
    ) -> None:
        """Write an entry and make it durable; others may be written meanwhile.

        Raises DiskWriteError, also when entries in front of it are not written within `patience` seconds; it may count then.
        """
        area, epoch, sequence = self._areas[self._current], self._epoch, self._sequence
        raw = encode_entry(self.state.journal_id, (epoch, sequence, self._durable), writes, forgotten)
        start, behind, following = area.start + self._position, self._position + len(raw), sequence + 1
        area.writing.add(sequence)
        # not before there was memory for all that: from here on file and place are given back, or nothing is journaled any more
        file = self._unused.pop()
        self._position, self._sequence = behind, following
        try:
            try:
                with self._at_the_disk():
                    file.write_at(start, raw)
            finally:
                area.writing.remove(sequence)
                self._changed.notify_all()
            if not self._changed.wait_for(lambda: self._fault is not None or sequence < area.first_writing, patience):
                raise self._refusal("an entry in front of its own is still being written")
            if self._fault is not None:
                raise self._refusal(self._fault)
            with self._at_the_disk():
                file.sync()
            if epoch == self._epoch:
                self._durable = max(self._durable, sequence + 1)
        finally:
            self._unused.append(file)
            self._changed.notify_all()

    def _has_room(self, size: int) -> bool:
        return self._area_size - self._position >= size

    def _make_room(self, size: int) -> bool:
        """Whether the current area has so many bytes left; when it has not, the other one is begun if it is free."""
        if self._has_room(size):
            return True
        if not self._other_is_free or size > self._area_size - BLOCK:
            return False
        full, begun = self._areas[self._current], self._other
        head = AreaHeader(self.state.journal_id, self._owner, self._area_size, self._epoch + 1, self._durable)
        file, self._beginning = self._unused.pop(), True  # whoever asks for room waited for one
        try:  # before an entry of the epoch before is written over: one that is torn would be missed under the old header
            with self._at_the_disk():
                file.write_at(begun.start + header_offset(head.epoch), encode_area_header(head))
                file.sync()
        except DiskWriteError:
            return False
        finally:
            self._unused.append(file)
            self._beginning = False
            self._changed.notify_all()
        if self._fault is not None or self._retired:  # meanwhile
            return False
        self._current = 1 - self._current
        self._sequence, self._durable, self._position = 0, 0, BLOCK
        begun.epoch, begun.partitions = head.epoch, set()
        self._to_flush = full
        return True

    def _write_anew(self, partition: int) -> None:
        """Write what the journal holds of a partition where it belongs, durably.  Raises DamageError, DiskError."""
        areas = [self._files[0].read_at(area.start, self._area_size) for area in self._areas]
        write_back(self._storage, in_force(self.state, areas).get(partition, []), self._control.cluster_key)

    def _give_up(self, error: DiskError) -> None:
        """Journal nothing any more; the thread makes everything durable where it belongs."""
        if self._fault is not None:  # the other entry that was under way failed as well
            return
        self._fault = error
        self._log.error("%s: appends are not journaled any more: %s", self.state.path, error)
        self._changed.notify_all()

    def _retire(self) -> None:
        """Make every segment durable, and take the mark away."""
        if self._retired:
            return
        for area in self._areas:
            for path, partition in list(area.unflushed.items()):
                self._flush(path, partition)
                area.unflushed.pop(path)
        self._control.set_journaled(False)
        self._retired = True
        remove_state(self._storage)
        remove_file(self.state.path)

    def _flush(self, path: PurePath, partition: int) -> None:
        """Make a segment durable; where that fails, or once did, what the journal holds of it is written anew."""
        if partition not in self._doubtful:
            try:
                self._segments[path].file.sync()
            except DiskError:
                self._doubtful.add(partition)
        if partition in self._doubtful:
            self._write_anew(partition)

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
        return bool(self._closed or self._fault is not None or self._to_flush is not None or self._unwanted)

    def work(self) -> bool:
        """What the thread does when there is something to do: flush the segments of the full area, or retire a journal that
        cannot be written.  False: there will be nothing more to do.
        """
        with self._changed:
            if self._fault is not None:
                try:
                    self._retire()
                except (DamageError, DiskError) as error:
                    self._log.error("%s: is still wanted, and the next start tries again: %s", self.state.path, error)
                return False
            unwanted, self._unwanted = self._unwanted, []
            _close(unwanted)
            area, self._to_flush = self._to_flush, None
            epoch, unflushed = (0, []) if area is None else (area.epoch, list(area.unflushed.items()))
        for path, partition in unflushed:
            assert area is not None
            self._flush_behind(area, epoch, path, partition)
        return True

    def _flush_behind(self, area: _Area, epoch: int, path: PurePath, partition: int) -> None:
        """Make a segment durable while others are appended to, for what an area held in an epoch."""
        with self._changed:
            segment = self._segments.get(path)
        if segment is not None and partition not in self._doubtful:
            try:
                segment.file.sync()
            except DiskError:
                self._doubtful.add(partition)
        with self._changed:
            self._changed.wait_for(lambda: not area.writing)  # what is not in the file cannot be written anew
            if segment is None or path not in area.unflushed:  # forgotten meanwhile, and perhaps removed
                return
            if area.epoch != epoch:  # begun anew meanwhile: what stands there was journaled behind this flush
                return
            if partition in self._doubtful:
                try:
                    self._write_anew(partition)
                except (DamageError, DiskError) as error:
                    self._give_up(_as_disk_error(path, error))
                    return
            area.unflushed.pop(path)
            if partition not in self._doubtful and not any(path in one.unflushed for one in self._areas):
                self._segments.pop(path).file.close()
            self._changed.notify_all()


def _as_disk_error(path: PurePath, error: BaseException) -> DiskError:
    return error if isinstance(error, DiskError) else DiskWriteError(path, None, OSError(errno.EIO, str(error)))


def _clear(path: Path, owner: uuid.UUID) -> None:
    """Remove what an earlier journal of the same directory left under a name.  Raises RefusedError, DiskReadError."""
    try:
        header = decode_area_header(disk.read_range(path, 0, BLOCK))
    except FileNotFoundError:
        return
    if header is None or header.owner != owner:
        what = "a file that is no commit journal" if header is None else "the commit journal of another directory"
        raise RefusedError(f"{path}: {what} stands there", advice="name another path, or move the file away")
    disk.unlink(path)
