"""Making several files durable at the same time.

A flush waits for the disk, and a disk takes several flushes in little more time than one: the file system writes them with one
commit of its journal.  So whoever has written several files hands them over together, and waits once.

Where the file system can be flushed as a whole and has little else to write (`engine.durable.file_system`), one call does it: in
half the time for 16 files and a third for 64, with a fifth to a tenth of the processor's.  Elsewhere threads do it that hold no
lock meanwhile, each with its share of the files; the caller is one of them.  (Measured beside them, for 2 to 16 files:
``io_uring``, one call of the system for all flushes, takes 0.85 to 1.15 times as long; so it is not worth a dependency.)

An executor would have a file stand in line until a thread is free.  Here whoever finds no thread free does its files itself.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence

from waltzctl.engine.durable.disk import WritableFile
from waltzctl.engine.durable.file_system import FileSystem, cut_short
from waltzctl.engine.errors import SyncFailedError

MOST_THREADS = 15
"""Beside the callers' own."""
FEWEST_AT_ONCE = 4
"""Files from which on their file system is flushed as a whole, unless the owner says otherwise."""


class _Round:
    """Files that somebody waits for together."""

    def __init__(self, files: Sequence[WritableFile], shares: int) -> None:
        self._files, self._shares = files, shares
        self.errors: list[SyncFailedError | None] = [None] * len(files)
        self._lock = threading.Lock()
        self._left = shares
        self._done = threading.Lock()
        self._done.acquire()

    def sync_share(self, share: int) -> None:
        """Sync every file of a share, also behind one that fails."""
        for place in range(share, len(self._files), self._shares):
            self.errors[place] = _synced(self._files[place])
        with self._lock:
            self._left -= 1
            last = not self._left
        if last:
            self._done.release()

    def wait(self) -> None:
        """Until every share is done with."""
        self._done.acquire()


def _synced(file: WritableFile) -> SyncFailedError | None:
    """Sync a file; what it failed with.  Whatever ends a sync early, the file does not count as synced."""
    try:
        file.sync()
    except SyncFailedError as error:
        return error
    except BaseException as error:
        return SyncFailedError(file.path, None, cut_short(error), doing="sync")
    return None


class _Thread:
    """One that waits for a share; `wake` is held while there is none."""

    __slots__ = ("task", "wake")

    def __init__(self) -> None:
        self.wake = threading.Lock()
        self.wake.acquire()
        self.task: tuple[_Round, int] | None = None


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
        """`threads`: at most, beside the callers'; 0 has each caller sync one file after another.

        `file_system`: what may be flushed as a whole, from `fewest_at_once` files on; it is closed with the flusher.
        """
        self._log, self._most = log, threads
        self._file_system, self._fewest = file_system, fewest_at_once
        self._allowed = True
        self._lock = threading.Lock()
        self._idle: list[_Thread] = []
        self._threads: list[threading.Thread] = []
        self._closed = False

    def flush(self, files: Sequence[WritableFile]) -> list[SyncFailedError | None]:
        """Make data and length of all files durable; for each what its sync failed with, or None.

        A file stands there once.  Like `WritableFile.sync`: what failed must not be tried again and believed.
        """
        if len(files) <= 1:
            return [_synced(file) for file in files]
        if (whole := self._at_once(files)) is not None:
            if (errors := whole.sync(files)) is not None:
                return errors
            self._note_not_allowed()
        helpers = self._helpers(len(files) - 1)
        flush = _Round(files, len(helpers) + 1)
        for share, helper in enumerate(helpers, start=1):
            helper.task = flush, share
            helper.wake.release()
        flush.sync_share(0)
        flush.wait()
        return flush.errors

    def _at_once(self, files: Sequence[WritableFile]) -> FileSystem | None:
        """What to flush as a whole; None where each file is to be synced by itself."""
        whole = self._file_system
        if whole is None or not self._allowed or self._closed or len(files) < self._fewest:
            return None
        return whole if whole.holds(files) and not whole.busy else None

    def _note_not_allowed(self) -> None:
        """This process may not flush a file system: never try it again, and say so once."""
        with self._lock:
            first, self._allowed = self._allowed, False
        if first:
            self._log.warning(
                "the system lets nobody flush a file system here (syncfs): each file is flushed by itself"
            )

    def _helpers(self, wanted: int) -> list[_Thread]:
        """Threads that have nothing to do, up to `wanted`; new ones are started up to the bound."""
        with self._lock:
            kept = max(0, len(self._idle) - wanted)
            found, self._idle = self._idle[kept:], self._idle[:kept]
            while len(found) < wanted and len(self._threads) < self._most and not self._closed:
                helper = _Thread()
                thread = threading.Thread(
                    target=self._work, args=(helper,), name=f"flusher-{len(self._threads)}", daemon=True
                )
                try:
                    thread.start()
                except RuntimeError as error:  # those that are there take larger shares
                    self._log.warning("no further thread for flushes can be started: %s", error)
                    break
                self._threads.append(thread)
                found.append(helper)
        return found

    def _work(self, helper: _Thread) -> None:
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
        """End the threads; what is being synced is finished first."""
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
