"""The log of a page store, open for writing.

A record is written and flushed before its caller is told; the log takes nothing more after a write or flush that failed.  A log
that has grown enough is closed with an empty record and the next one begins; so is the log that a process before left, after its
torn end was cut.  A checkpoint is written beside, flushed, renamed, and only then go the logs that it holds.

With a record that reaches the end of the file zeros are written behind it, room for the next ones: who writes within a file
changes nothing but its bytes, and a flush is spared the file system's own record of a file that grew.  The room is as large as
what is there already, `MOST_ROOM` at most, and is cut off when the log is closed.

`twice`: each record is written and flushed, and then once more.  A copy never becomes durable before what it is a copy of, so
that what an interrupted write leaves is a torn end, as without copies.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from waltzctl.engine.durable import disk
from waltzctl.engine.durable.disk import WritableFile, read_range
from waltzctl.engine.durable.file_system import begin_writing
from waltzctl.engine.durable.flusher import Flusher
from waltzctl.engine.errors import PageStoreFailedError
from waltzctl.engine.pages.torn_tail import cut_torn_tail
from waltzctl.engine.pages.wal_reader import WalContents
from waltzctl.formats.pages.blocks import LAST_LOG_NUMBER, cut_record
from waltzctl.formats.pages.names import CHECKPOINT_LEVEL, LOG_LEVEL, LogName, parse_log_name

LOG_SIZE = 2 << 20
"""Bytes after which a log is closed and the next one begins."""
MOST_ROOM = 256 << 10
"""Bytes of zeros that are written at once behind a record, for those to come."""


class WalStore:
    """Not thread-safe: one caller at a time; `finish_checkpoint` may run beside the others."""

    def __init__(
        self, directory: Path, highest_number: int, flusher: Flusher, *, log_size: int = LOG_SIZE, twice: bool = False
    ) -> None:
        """Begin the log behind `highest_number`.  `flusher`: flushes it with other files.  Raises DiskWriteError."""
        self.directory = directory
        self._flusher = flusher
        self.written = 0
        self._log_size = log_size
        self._twice = twice
        self._number = highest_number
        self._checkpoint = 0
        self._logs: list[int] = []
        self._names = threading.Lock()
        self._failed = False
        self.unconfirmed = False
        """Whether the last record was flushed with other files, and nothing stands behind it that tells that this succeeded."""
        self._position = 0
        self._room_end = 0
        """Where the file ends."""
        self._file = self._begin()

    @classmethod
    def continue_behind(
        cls, contents: WalContents, flusher: Flusher, *, log_size: int = LOG_SIZE, twice: bool = False
    ) -> WalStore:
        """Cut the torn end that a process left, close its log, remove what a checkpoint holds, and begin the next log.

        The copy of its last record is written where the process died between the two.

        Records are written twice where they were so before, whatever `twice` says.  Raises DiskWriteError.
        """
        last = contents.last
        twice = twice or contents.written_twice
        if contents.files:
            disk.sync_directory(contents.directory)  # names as well: a later log must not stand without this one
        if last is not None:
            with WritableFile.open(last.path) as file:
                if (record := last.unconfirmed) is not None:
                    # its flush may have failed, and another one flushes only what is written anew
                    file.write_at(record.offset, read_range(last.path, record.offset, record.end - record.offset))
                file.sync()  # whoever wrote it may have died before this, and what closes it must not stand alone
                if last.end < last.size:
                    cut_torn_tail(contents.directory.parent, last)
                if last.end < file.size():
                    file.truncate(last.end)
                if not last.closed:
                    lonely = [one.payload for one in last.records[-1:] if twice and not one.is_copy]
                    end = last.end
                    for payload in (*lonely, b""):
                        data = cut_record(payload, end, last.name.number)
                        file.write_at(end, data)
                        file.sync()
                        end += len(data)
        removed = [contents.directory / str(name) for name in contents.stale]
        removed += [contents.directory / name for name in contents.temporary]
        for path in removed:
            disk.unlink(path)
        store = cls(contents.directory, contents.highest_number, flusher, log_size=log_size, twice=twice)
        store._logs[:0] = [file.name.number for file in contents.files if not file.name.is_checkpoint]
        if contents.checkpoint is not None:
            store._checkpoint = contents.checkpoint.name.number
        return store

    def _begin(self) -> WritableFile:
        if self._number >= LAST_LOG_NUMBER:
            raise PageStoreFailedError(f"{self.directory}: the numbers of logs are used up")
        self._number += 1
        file = WritableFile.create(self.directory / str(LogName(self._number, LOG_LEVEL)))
        disk.sync_directory(self.directory)
        self._position = self._room_end = 0
        with self._names:
            self._logs.append(self._number)
        return file

    @property
    def twice(self) -> bool:
        """Whether each record is written twice."""
        return self._twice

    @property
    def num_files(self) -> int:
        """Logs and checkpoint."""
        return len(self._logs) + bool(self._checkpoint)

    @property
    def has_records(self) -> bool:
        """Whether anything was written since the last checkpoint, by this process or one before."""
        return len(self._logs) > 1 or self._position > 0

    def append(self, payload: bytes, with_files: Sequence[WritableFile] = (), *, begun: bool = False) -> None:
        """Write a record and make it durable; `with_files`: what has to become durable with it.

        `begun`: the disk writes already what is in those, and it is little: then they are flushed one after the other, which
        takes two thirds of the time of one flush for all.

        Raises DiskWriteError, after which nobody knows whether it is in the log, and every later call raises
        PageStoreFailedError until the log is opened again.
        """
        if not payload:
            raise ValueError("an empty record closes a log")
        self._write(payload, with_files, begun=begun)
        if self._twice:
            self._write(payload)

    def _write(self, payload: bytes, with_files: Sequence[WritableFile] = (), *, begun: bool = False) -> None:
        if self._failed:
            raise PageStoreFailedError(
                f"{self.directory}: a write to the log failed before, and what is in it is not known",
                advice="open the page store again",
            )
        data = cut_record(payload, self._position, self._number)
        end = self._position + len(data)
        if payload and end > self._room_end:
            data += bytes(max(0, min(end, MOST_ROOM, self._log_size - end)))
        self._failed = True
        self._file.write_at(self._position, data)
        if begun:
            begin_writing(self._file, self._position, len(data))
        self._flush([*with_files, self._file], in_turn=begun)
        self._failed = False
        self.unconfirmed = bool(with_files)
        self._room_end = max(self._room_end, self._position + len(data))
        self._position = end
        self.written += len(data)

    def _flush(self, files: Sequence[WritableFile], *, in_turn: bool) -> None:
        if in_turn or len(files) == 1:
            for file in files:
                file.sync()
            return
        for error in self._flusher.flush(files):
            if error is not None:
                raise error

    def _close_file(self) -> None:
        """Of a log that takes no more records.  Nothing depends on when it is durable that it ends there."""
        if self._position < self._room_end:
            self._file.truncate(self._position)
        self._file.close()

    def roll_when_full(self) -> None:
        """Begin the next log where this one has grown enough.  Raises as `append`."""
        if self._position >= self._log_size:
            self.roll()

    def roll(self) -> int:
        """Close the log and begin the next one; returns the number of the closed one.  Raises as `append`."""
        self._write(b"")
        self._failed = True
        closed = self._number
        self._close_file()
        self._file = self._begin()
        self._failed = False
        return closed

    def finish_checkpoint(self, number: int, payloads: Iterable[bytes]) -> int:
        """Write the checkpoint that holds all that the logs up to `number` said, then remove them; returns its size in bytes.

        Raises DiskWriteError; the logs are still there then, unless it was the removal that failed.
        """
        path = self.directory / str(LogName(number, CHECKPOINT_LEVEL))
        size = 0

        def parts() -> Iterator[bytes]:
            nonlocal size
            for part in checkpoint_parts(number, payloads, twice=self._twice):
                size += len(part)
                yield part

        disk.write_whole(path, parts())
        self._checkpoint = number
        for name in sorted(filter(None, map(parse_log_name, os.listdir(self.directory)))):
            if name.number < number or name == (number, LOG_LEVEL):
                disk.unlink(self.directory / str(name))  # one that comes back is left aside, and goes another time
        with self._names:
            self._logs = [one for one in self._logs if one > number]
        self.written += size
        return size

    def close(self) -> None:
        """Close the log with an empty record, so that whoever reads it knows that nothing is missing at its end."""
        if self._file.closed:
            return
        try:
            if not self._failed and self._position:
                self._write(b"")
                self._close_file()
        finally:
            self._file.close()


def checkpoint_parts(number: int, payloads: Iterable[bytes], *, twice: bool) -> Iterator[bytes]:
    """The bytes of a checkpoint of this number, closed with an empty record.  `twice`: each record but that one."""
    size = 0
    repeated = (one for payload in payloads for one in [payload] * (1 + twice))
    for payload in itertools.chain(repeated, [b""]):
        part = cut_record(payload, size, number)
        size += len(part)
        yield part
