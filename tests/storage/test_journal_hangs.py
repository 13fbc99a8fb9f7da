"""The journal's device hangs: nobody waits for it with the lock, and no entry is believed that a reader would not come to."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.storage.power_loss import BEFORE, Journaled, failing, segment
from waltzctl.engine.errors import DiskWriteError
from waltzctl.engine.storage import commit_journal
from waltzctl.formats.journal_file import BLOCK

PATIENCE = 10


class Hanging:
    """The next call of a name for the journal, or the next that is `meant`, does not do anything until it is let go."""

    def __init__(
        self, patch: pytest.MonkeyPatch, made: Journaled, name: str, meant: Callable[..., bool] = lambda *_: True
    ) -> None:
        self.reached, self.go, self.calls = threading.Event(), threading.Event(), 0
        self.fails = False
        real = getattr(os, name)

        def call(descriptor: int, *arguments: Any) -> Any:
            if Path(f"/proc/self/fd/{descriptor}").readlink() == made.file and meant(*arguments):
                self.calls += 1
                if self.calls == 1:
                    self.reached.set()
                    assert self.go.wait(PATIENCE)
                    if self.fails:
                        raise OSError(errno.EIO, "Input/output error")
            return real(descriptor, *arguments)

        patch.setattr(os, name, call)


class Doing:
    """Something that another thread does."""

    def __init__(self, what: Callable[[], object]) -> None:
        self.answer: object = None
        self._thread = threading.Thread(target=self._run, args=(what,), daemon=True)
        self._thread.start()

    def _run(self, what: Callable[[], object]) -> None:
        self.answer = what()

    def is_done(self, seconds: float = PATIENCE) -> bool:
        self._thread.join(seconds)
        return not self._thread.is_alive()


def test_a_cut_is_refused_soon_and_others_go_on(
    journaled: Journaled, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    journaled.commit({0: 1, 1: 2})
    monkeypatch.setattr(commit_journal, "_FORGET_TIMEOUT", 0.05)
    with monkeypatch.context() as patch:
        hanging = Hanging(patch, journaled, "pwrite")
        first = Doing(lambda: journaled.commit({0: 1}))
        assert hanging.reached.wait(PATIENCE)
        with pytest.raises(DiskWriteError, match="in front of its own is still being written"):
            journaled.storage.partition(1).truncate(BEFORE)
        assert journaled.journal.fault is None
        journaled.append(2, 1)
        assert journaled.held()[1] == journaled.acknowledged[1]
        hanging.go.set()
        assert first.is_done()
    assert first.answer is True
    copy = journaled.after_power_loss(tmp_path)
    assert journaled.held(copy) == journaled.acknowledged, "the cut may count as forgotten, and nothing was cut"
    journaled.storage.reopen(1)
    journaled.truncate(1, BEFORE)
    assert journaled.held() == journaled.acknowledged


def test_an_entry_is_not_flushed_before_the_one_in_front_is_written(
    journaled: Journaled, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert journaled.commit({2: 1})
    with monkeypatch.context() as patch:
        hanging = Hanging(patch, journaled, "pwrite")
        flushed = Hanging(patch, journaled, "fdatasync")
        flushed.go.set()
        first = Doing(lambda: journaled.commit({0: 1}))
        assert hanging.reached.wait(PATIENCE)
        second = Doing(lambda: journaled.commit({1: 1}))
        assert not second.is_done(0.1)
        before = flushed.calls
        (tmp_path / "between").mkdir()
        copy = journaled.after_power_loss(tmp_path / "between")
        assert journaled.held(copy) == journaled.acknowledged, (
            "what stands behind the hole does not count, nor is it damage"
        )
        hanging.go.set()
        assert first.is_done()
        assert second.is_done()
    assert (before, flushed.calls) == (0, 2)
    assert (first.answer, second.answer) == (True, True)
    assert journaled.held(journaled.after_power_loss(tmp_path)) == journaled.acknowledged


@pytest.mark.parametrize("forgotten", [False, True])
def test_what_stands_behind_an_entry_that_failed_is_not_believed(
    journaled: Journaled, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, forgotten: bool
) -> None:
    journaled.commit({0: 1, 1: 2})

    def cut() -> bool:
        with pytest.raises(DiskWriteError):
            journaled.storage.partition(1).truncate(BEFORE)
        return False

    with monkeypatch.context() as patch:
        hanging = Hanging(patch, journaled, "pwrite")
        hanging.fails = True
        first = Doing(lambda: journaled.commit({0: 1}))
        assert hanging.reached.wait(PATIENCE)
        second = Doing(cut if forgotten else lambda: journaled.commit({1: 1}))
        assert not second.is_done(0.1)
        hanging.go.set()
        assert first.is_done()
        assert second.is_done()
    assert (first.answer, second.answer) == (False, False)
    assert journaled.journal.fault is not None
    assert journaled.held(journaled.after_power_loss(tmp_path)) == journaled.acknowledged


def test_an_area_is_not_begun_anew_while_an_entry_is_being_written_in_it(
    journaled: Journaled, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It would be written over one of the next epoch.  Nothing else keeps the area: its only partition was forgotten."""
    journal = journaled.journal
    while journal._has_room(5 * BLOCK):  # with what is kept for forgetting
        journaled.commit({1: 1})
    journaled.commit({0: 1})
    journal.work()
    while journal._has_room(7 * BLOCK):
        journaled.commit({0: 1})
    journaled.truncate(0, BEFORE)
    epoch = journal._epoch
    with monkeypatch.context() as patch:
        hanging = Hanging(patch, journaled, "pwrite")
        first = Doing(lambda: journaled.truncate(1, BEFORE))
        assert hanging.reached.wait(PATIENCE)
        while journaled.commit({2: 1}):
            assert journal._epoch <= epoch + 1
        assert journal._epoch == epoch + 1
        hanging.go.set()
        assert first.is_done()
    for _ in range(20):
        journal.work()
        assert journaled.commit({1: 1})
    assert journal._epoch > epoch + 1
    assert journaled.held(journaled.after_power_loss(tmp_path)) == journaled.acknowledged


def test_what_is_being_written_is_not_left_out_of_a_segment(
    journaled: Journaled, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its area is full, and the segment's flush behind it fails."""
    while journaled.journal._has_room(6 * BLOCK):
        journaled.commit({0: 1})
    path = segment(journaled.path, 0)
    with monkeypatch.context() as patch:
        hanging = Hanging(patch, journaled, "pwrite")
        first = Doing(lambda: journaled.commit({0: 1}))
        assert hanging.reached.wait(PATIENCE)
        assert journaled.commit({1: 1})
        whole = path.read_bytes()
        path.write_bytes(journaled.durable[path] + bytes(len(whole) - len(journaled.durable[path])))
        failing(patch, "fdatasync", path, times=1)
        behind = Doing(journaled.journal.work)
        assert not behind.is_done(0.1)
        hanging.go.set()
        assert first.is_done()
        assert behind.is_done()
    assert path.read_bytes() == whole
    epoch = journaled.journal._epoch
    while journaled.journal._epoch < epoch + 2:
        journaled.journal.work()
        assert journaled.commit({1: 1})
    assert journaled.held(journaled.after_power_loss(tmp_path)) == journaled.acknowledged


@pytest.mark.parametrize("name", ["pwrite", "fdatasync"])
def test_the_header_of_an_area_holds_no_lock(
    journaled: Journaled, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    while journaled.journal._has_room(6 * BLOCK):
        journaled.commit({0: 1, 2: 1})
    monkeypatch.setattr(commit_journal, "_FORGET_TIMEOUT", 0.05)
    epoch = journaled.journal._epoch
    assert journaled.commit({0: 1})
    with monkeypatch.context() as patch:
        hanging = Hanging(patch, journaled, name)
        first = Doing(lambda: journaled.commit({0: 1}))
        assert hanging.reached.wait(PATIENCE)
        assert journaled.journal._epoch == epoch
        second = Doing(lambda: journaled.commit({1: 1}))
        with pytest.raises(DiskWriteError, match="the device does not answer"):
            journaled.storage.partition(2).truncate(BEFORE)
        assert not second.is_done(0.05)
        hanging.go.set()
        assert first.is_done()
        assert second.is_done()
    assert (first.answer, second.answer, journaled.journal._epoch) == (True, True, epoch + 1)
    assert journaled.held(journaled.after_power_loss(tmp_path)) == journaled.acknowledged


@pytest.mark.parametrize("name", ["pwrite", "fdatasync"])
def test_a_stop_waits_for_what_is_under_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """A descriptor that is closed meanwhile may be another file's when it is written to."""
    made = Journaled(tmp_path, monkeypatch)
    made.commit({0: 1})
    with monkeypatch.context() as patch:
        hanging = Hanging(patch, made, name)
        first = Doing(lambda: made.journal.forget(0))
        assert hanging.reached.wait(PATIENCE)
        stop = Doing(made.journal.close)
        assert not stop.is_done(0.1)
        hanging.go.set()
        assert first.is_done()
        assert stop.is_done()
    made.close()
    assert made.held(made.path) == made.acknowledged


def test_a_writer_that_is_interrupted_ends_the_journal(journaled: Journaled, monkeypatch: pytest.MonkeyPatch) -> None:
    """It leaves a hole behind which no entry would count."""

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    journaled.commit({0: 1})
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", interrupted)
        with pytest.raises(KeyboardInterrupt):
            journaled.journal.forget(0)
    assert journaled.journal.fault is not None
    assert not journaled.commit({0: 1})
