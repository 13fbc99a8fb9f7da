"""Syncing several files at the same time.

Several concurrent flushes take little longer than one, because the file system combines them in one commit of its journal.  So a
caller passes all files that it has written to `Flusher.flush`, and waits once.

===========================================================  ==========================================================
the file system                                              the files are synced
===========================================================  ==========================================================
can be flushed as a whole, and has few other dirty bytes     by one syncfs(2): half the time for 16 files, a third for
(`engine.durable.file_system`)                               64, with a fifth to a tenth of the CPU time
any other                                                    by several threads, each with its share of the files; the
                                                             caller is one of them
===========================================================  ==========================================================

(Compared with the threads, for 2 to 16 files, ``io_uring`` with one system call for all flushes takes 0.85 to 1.15 times as long,
which is not worth a dependency.)

This is no executor with a queue: a caller that finds no idle thread syncs its files itself, and does not wait for a thread.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence

from waltzctl.engine.durable.disk import WritableFile
from waltzctl.engine.durable.file_system import FileSystem, cut_short
from waltzctl.engine.errors import SyncFailedError

MOST_THREADS = 15
"""Most threads of a flusher, in addition to the callers' threads."""
FEWEST_AT_ONCE = 4
"""Fewest files for which the file system is flushed as a whole, by default."""


class _FlushCall:
    """The files of one call of `Flusher.flush`, divided into shares: share k has every `shares`-th file from file k on."""

    def __init__(self, files: Sequence[WritableFile], shares: int) -> None:
        self._files, self._shares = files, shares
        self.errors: list[SyncFailedError | None] = [None] * len(files)
        self._lock = threading.Lock()
        self._left = shares
        self._done = threading.Lock()
        self._done.acquire()

    def sync_share(self, share: int) -> None:
        """Sync every file of a share, whether or not another one fails."""
        for place in range(share, len(self._files), self._shares):
            self.errors[place] = _synced(self._files[place])
        with self._lock:
            self._left -= 1
            last = not self._left
        if last:
            self._done.release()

    def wait(self) -> None:
        """Wait until every share is synced."""
        self._done.acquire()


def _synced(file: WritableFile) -> SyncFailedError | None:
    """Sync a file; returns its error, or None.  Any exception counts as a failed sync."""
    try:
        file.sync()
    except SyncFailedError as error:
        return error
    except BaseException as error:
        return SyncFailedError(file.path, None, cut_short(error), doing="sync")
    return None


class _Helper:
    """A flusher thread.  `task`: the share that it has to sync.  `wake`: locked while the thread has no task."""

    __slots__ = ("task", "wake")

    def __init__(self) -> None:
        self.wake = threading.Lock()
        self.wake.acquire()
        self.task: tuple[_FlushCall, int] | None = None


class Flusher:
    """Syncs files for any number of callers.  Thread-safe."""

    def __init__(
        self,
        *,
        log: logging.Logger,
        threads: int = MOST_THREADS,
        file_system: FileSystem | None = None,
        fewest_at_once: int = FEWEST_AT_ONCE,
    ) -> None:
        """`threads`: most threads in addition to the callers'; with 0 each caller syncs its files one after another.

        `file_system`: the file system that may be flushed as a whole, for `fewest_at_once` files or more; None for none.  The
        flusher closes it.
        """
        self._log, self._max_threads = log, threads
        self._file_system, self._min_files_at_once = file_system, fewest_at_once
        self._syncfs_allowed = True
        self._lock = threading.Lock()
        self._idle: list[_Helper] = []
        self._threads: list[threading.Thread] = []
        self._closed = False

    def flush(self, files: Sequence[WritableFile]) -> list[SyncFailedError | None]:
        """Make data and length of all files durable; returns for each file the error of its sync, or None.

        No file may be given twice.  As with `WritableFile.sync`, a later success does not cover the failed writes.
        """
        if len(files) <= 1:
            return [_synced(file) for file in files]
        if (whole := self._whole_file_system(files)) is not None:
            if (errors := whole.sync(files)) is not None:
                return errors
            self._note_syncfs_refused()
        helpers = self._take_helpers(len(files) - 1)
        flush = _FlushCall(files, len(helpers) + 1)
        for share, helper in enumerate(helpers, start=1):
            helper.task = flush, share
            helper.wake.release()
        flush.sync_share(0)
        flush.wait()
        return flush.errors

    def _whole_file_system(self, files: Sequence[WritableFile]) -> FileSystem | None:
        """The file system to flush as a whole; None where each file is to be synced by itself."""
        whole = self._file_system
        if whole is None or not self._syncfs_allowed or self._closed or len(files) < self._min_files_at_once:
            return None
        return whole if whole.holds(files) and not whole.busy else None

    def _note_syncfs_refused(self) -> None:
        """This process may not call syncfs(2): do not try it again, and log it once."""
        with self._lock:
            first, self._syncfs_allowed = self._syncfs_allowed, False
        if first:
            self._log.warning(
                "the system lets nobody flush a file system here (syncfs): each file is flushed by itself"
            )

    def _take_helpers(self, wanted: int) -> list[_Helper]:
        """Take up to `wanted` idle threads; new threads are started as far as the bound allows."""
        with self._lock:
            kept = max(0, len(self._idle) - wanted)
            found, self._idle = self._idle[kept:], self._idle[:kept]
            while len(found) < wanted and len(self._threads) < self._max_threads and not self._closed:
                helper = _Helper()
                thread = threading.Thread(
                    target=self._work, args=(helper,), name=f"flusher-{len(self._threads)}", daemon=True
                )
                try:
                    thread.start()
                except RuntimeError as error:  # the present threads take larger shares
                    self._log.warning("no further thread for flushes can be started: %s", error)
                    break
                self._threads.append(thread)
                found.append(helper)
        return found

    def _work(self, helper: _Helper) -> None:
        while True:
            helper.wake.acquire()
            task, helper.task = helper.task, None
            if task is None:
                return
            flush, share = task
            flush.sync_share(share)
            del task, flush
            with self._lock:
                if self._closed:
                    return
                self._idle.append(helper)

    def close(self) -> None:
        """End the threads, after the syncs in progress, and close the file system."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
            threads, self._threads = self._threads, []
        for helper in idle:
            helper.wake.release()
        for thread in threads:
            thread.join()
        if self._file_system is not None:
            self._file_system.close()
