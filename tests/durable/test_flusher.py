"""Flushing several files at the same time: each once, each with its own outcome, and no more threads than were allowed."""

from __future__ import annotations

import errno
import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest

from waltzctl.engine.durable.disk import WritableFile
from waltzctl.engine.durable.flusher import Flusher
from waltzctl.engine.errors import SyncFailedError

LOG = logging.getLogger("waltzctl.test")
PATIENCE = 60.0


class File:
    """What happens when it is synced is `does`."""

    def __init__(self, number: int, does: Callable[[], None] = lambda: None) -> None:
        self.path, self.does = Path(f"/d/{number}"), does
        self.syncs = 0

    def sync(self) -> None:
        self.syncs += 1
        self.does()


def sync(flusher: Flusher, files: list[File]) -> list[SyncFailedError | None]:
    return flusher.flush(cast("list[WritableFile]", files))


def fails() -> None:
    raise SyncFailedError(Path("/d"), None, OSError(errno.EIO, "I/O error"), doing="sync")


def closed() -> None:
    raise ValueError("the file is closed")


@pytest.mark.parametrize("threads", [0, 1, 2, 15])
@pytest.mark.parametrize("count", [0, 1, 2, 3, 17])
def test_every_file_is_synced_once(threads: int, count: int) -> None:
    flusher = Flusher(log=LOG, threads=threads)
    for _ in range(3):
        files = [File(number) for number in range(count)]
        assert sync(flusher, files) == [None] * count
        assert [file.syncs for file in files] == [1] * count
    assert len(flusher._threads) == min(threads, max(0, count - 1))
    flusher.close()


@pytest.mark.parametrize("threads", [0, 1, 3])
@pytest.mark.parametrize("bad", [(0,), (1,), (4,), (0, 1, 2, 3, 4)])
@pytest.mark.parametrize("how", [fails, closed])
def test_what_fails_is_told_of_its_file_alone(threads: int, bad: tuple[int, ...], how: Callable[[], None]) -> None:
    flusher = Flusher(log=LOG, threads=threads)
    files = [File(number, how if number in bad else lambda: None) for number in range(5)]
    errors = sync(flusher, files)
    assert [place for place, error in enumerate(errors) if error is not None] == list(bad)
    assert all(isinstance(error, SyncFailedError) for error in errors if error is not None)
    assert [file.syncs for file in files] == [1] * 5
    if how is closed:
        assert "ValueError: the file is closed" in str(errors[bad[0]])
    assert sync(flusher, [File(0), File(1)]) == [None, None]  # the threads are still there
    flusher.close()


def test_all_that_have_nothing_to_do_help_where_there_are_too_few() -> None:
    flusher = Flusher(log=LOG, threads=2)
    sync(flusher, [File(number) for number in range(3)])
    while len(flusher._idle) < 2:
        threading.Event().wait(0.001)
    idle = list(flusher._idle)
    assert flusher._take_helpers(5) == idle
    flusher._idle = idle
    flusher.close()


@pytest.mark.parametrize("how", [fails, closed])
def test_a_file_alone_fails_in_the_same_way(how: Callable[[], None]) -> None:
    flusher = Flusher(log=LOG)
    (error,) = sync(flusher, [File(0, how)])
    assert isinstance(error, SyncFailedError)
    assert flusher._threads == []


def test_the_files_are_flushed_at_the_same_time() -> None:
    meeting = threading.Barrier(4)
    flusher = Flusher(log=LOG, threads=3)
    assert sync(flusher, [File(number, lambda: meeting.wait(PATIENCE) and None) for number in range(4)]) == [None] * 4
    flusher.close()


def test_callers_do_not_wait_for_one_another() -> None:
    """Who comes while all threads are at work flushes by itself."""
    flusher = Flusher(log=LOG, threads=1)
    entered, go = threading.Event(), threading.Event()

    def stuck() -> None:
        entered.set()
        assert go.wait(PATIENCE)

    done: list[object] = []
    first = threading.Thread(target=lambda: done.append(sync(flusher, [File(0), File(1, stuck)])))
    first.start()
    assert entered.wait(PATIENCE)
    assert sync(flusher, [File(2), File(3), File(4)]) == [None] * 3
    assert done == []
    go.set()
    first.join(PATIENCE)
    assert done == [[None, None]]
    flusher.close()


def test_nobody_is_told_before_every_file_is_done_with() -> None:
    flusher = Flusher(log=LOG, threads=2)
    go = threading.Event()
    done = threading.Event()
    slow = File(1, lambda: go.wait(PATIENCE) and None)
    caller = threading.Thread(target=lambda: (sync(flusher, [File(0), slow, File(2)]), done.set()))
    caller.start()
    assert not done.wait(0.05)
    go.set()
    assert done.wait(PATIENCE)
    caller.join()
    flusher.close()


def test_where_the_system_has_no_thread_the_caller_does_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refused(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refused)
    flusher = Flusher(log=LOG)
    files = [File(number) for number in range(4)]
    assert sync(flusher, files) == [None] * 4
    assert [file.syncs for file in files] == [1] * 4
    assert "no further thread for flushes" in caplog.text


def test_behind_its_end_there_are_no_threads_and_it_flushes_all_the_same() -> None:
    flusher = Flusher(log=LOG, threads=4)
    sync(flusher, [File(number) for number in range(5)])
    threads = list(flusher._threads)
    flusher.close()
    assert [thread.is_alive() for thread in threads] == [False] * 4
    assert sync(flusher, [File(0), File(1, fails)])[0] is None
    assert flusher._threads == []
    flusher.close()


def test_a_flusher_that_is_closed_while_it_works_finishes_and_ends() -> None:
    begun, go = threading.Event(), threading.Event()

    def waits() -> None:
        begun.set()
        assert go.wait(PATIENCE)

    flusher = Flusher(log=LOG, threads=1)
    found: list[list[SyncFailedError | None]] = []
    flushing = threading.Thread(target=lambda: found.append(sync(flusher, [File(0), File(1, waits)])), daemon=True)
    flushing.start()
    assert begun.wait(PATIENCE)
    closing = threading.Thread(target=flusher.close, daemon=True)
    closing.start()
    while not flusher._closed:
        threading.Event().wait(0.001)
    go.set()
    for thread in (flushing, closing):
        thread.join(PATIENCE)
        assert not thread.is_alive()
    assert found == [[None, None]]
