"""The log of a page store, open for writing.

- A record is written and flushed before `append` returns.  After a failed write or flush the log takes no more records.
- A log that reached its size limit is closed with an empty record, and the next log begins.  On opening, the log of the previous
  process is closed in the same way, after its torn tail was cut.  An empty one is used instead: however often a store is opened
  and not written, one empty log is behind the last one with records, and proves that this was closed.
- A checkpoint is written to a temporary file, flushed and renamed; only then the logs that it replaces are removed.

Preallocation: a record that reaches the end of the file is followed by zeros, space for the next records.  Writing inside a file
changes only its data, so the flush need not commit a new file size to the file system's journal.  The preallocated space is as
large as the log so far, at most `MOST_ROOM`; it is truncated when the log is closed.

`twice`: each record is written and flushed, then its copy is.  A copy never becomes durable before its original, so an
interrupted write leaves a torn tail, as without copies.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from waltzctl.engine.durable import disk
from waltzctl.engine.durable.disk import WritableFile, read_range
from waltzctl.engine.durable.file_status import names_in
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
"""The most bytes of zeros that are preallocated at once."""


class WalStore:
    """The open log.  Not thread-safe, except that `finish_checkpoint` may run concurrently with one other call."""

    def __init__(
        self,
        directory: Path,
        highest_number: int,
        flusher: Flusher,
        *,
        log_size: int = LOG_SIZE,
        twice: bool = False,
        begun: bool = False,
    ) -> None:
        """Begin the log after number `highest_number`.  Raises DiskWriteError.

        `flusher`: flushes the log together with other files.  `begun`: that log is there, and empty.
        """
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
        self.lacks_copies = False
        """Whether an earlier process wrote records once, though each is written twice now."""
        self.unconfirmed = False
        """Whether the last record was flushed with other files and no record follows it that would prove the flush succeeded."""
        self._position = 0
        self._room_end = 0
        """Size of the file, with preallocated space."""
        self._file = self._begin(begun=begun)

    @classmethod
    def continue_behind(
        cls, contents: WalContents, flusher: Flusher, *, log_size: int = LOG_SIZE, twice: bool = False
    ) -> WalStore:
        """Cut the torn tail that a process left, close its log, remove stale files, and begin the next log, or use its empty one.

        If the process crashed between a record and its copy, the copy is written.  Records are written twice if they were before,
        whatever `twice` says.

        Raises DiskWriteError.
        """
        last, begun = contents.last, False
        twice = twice or contents.written_twice
        if contents.files:
            # directory entries: a later log must not become durable without this one
            disk.sync_directory(contents.directory)
        if last is not None:
            with WritableFile.open(last.path) as file:
                if (begin := last.unconfirmed_from) is not None:
                    # rewrite it: its flush may have failed, and then another flush covers only pages that are dirtied again
                    file.write_at(begin, read_range(last.path, begin, last.end - begin))
                file.sync()  # the process may have crashed before its flush; the closing record must not be durable alone
                begun = not file.size()
                if last.end < last.size:
                    cut_torn_tail(contents.directory.parent, last)
                if last.end < file.size():
                    file.truncate(last.end)
                if not last.closed and not begun:
                    without_copy = [one.payload for one in last.records[-1:] if twice and not one.is_copy]
                    end = last.end
                    for payload in (*without_copy, b""):
                        data = cut_record(payload, end, last.name.number)
                        file.write_at(end, data)
                        file.sync()
                        end += len(data)
        removed = [contents.directory / str(name) for name in contents.stale]
        removed += [contents.directory / name for name in contents.temporary]
        for path in removed:
            disk.unlink(path)
        highest = contents.highest_number - begun
        store = cls(contents.directory, highest, flusher, log_size=log_size, twice=twice, begun=begun)
        earlier = [file.name for file in contents.files if not file.name.is_checkpoint]
        store._logs[:0] = [name.number for name in earlier if name.number <= highest]
        if contents.checkpoint is not None:
            store._checkpoint = contents.checkpoint.name.number
        store.lacks_copies = twice and contents.lacks_copies
        return store

    def _begin(self, *, begun: bool = False) -> WritableFile:
        if self._number >= LAST_LOG_NUMBER:
            raise PageStoreFailedError(f"{self.directory}: the numbers of logs are used up")
        self._number += 1
        path = self.directory / str(LogName(self._number, LOG_LEVEL))
        file = WritableFile.open(path) if begun else WritableFile.create(path)
        try:
            disk.sync_directory(self.directory)
        except BaseException:
            file.close()
            raise
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
        """Number of logs and checkpoint."""
        return len(self._logs) + bool(self._checkpoint)

    @property
    def has_records(self) -> bool:
        """Whether any record was written since the last checkpoint, by this process or an earlier one."""
        return len(self._logs) > 1 or self._position > 0

    def append(self, payload: bytes, with_files: Sequence[WritableFile] = (), *, begun: bool = False) -> None:
        """Write a record and make it durable.  `with_files`: files that become durable with it.

        `begun`: writeback of `with_files` has started, and is small.  The files are then flushed one after the other, which takes
        two thirds of the time of a joint flush.

        Raises DiskWriteError: it is unknown whether the record is in the log, and every later call raises PageStoreFailedError
        until the log is opened again.
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
        """Truncate and close a log that takes no more records.  The truncation need not be durable."""
        if self._position < self._room_end:
            self._file.truncate(self._position)
        self._file.close()

    def roll_when_full(self) -> None:
        """Begin the next log if this one reached its size limit.  Raises as `append`."""
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
        """Write the checkpoint that replaces the logs up to `number`, then remove them; returns its size in bytes.

        Raises DiskWriteError; the logs are then still there, unless the removal failed.
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
        self.lacks_copies = False
        for name in sorted(filter(None, map(parse_log_name, names_in(self.directory) or ()))):
            if name.number < number or name == (number, LOG_LEVEL):
                disk.unlink(self.directory / str(name))  # a crash may bring it back: then it is stale
        with self._names:
            self._logs = [one for one in self._logs if one > number]
        self.written += size
        return size

    def close(self) -> None:
        """Close the log with an empty record, which tells readers that nothing is missing at its end."""
        if self._file.closed:
            return
        try:
            if not self._failed and self._position:
                self._write(b"")
                self._close_file()
        finally:
            self._file.close()


def checkpoint_parts(number: int, payloads: Iterable[bytes], *, twice: bool) -> Iterator[bytes]:
    """The bytes of checkpoint `number`, closed with an empty record.  `twice`: each record before it has a copy."""
    size = 0
    repeated = (one for payload in payloads for one in [payload] * (1 + twice))
    for payload in itertools.chain(repeated, [b""]):
        part = cut_record(payload, size, number)
        size += len(part)
        yield part
