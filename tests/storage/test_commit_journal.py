"""A commit journal: what was acknowledged is there after a power loss, and what was cut never comes back."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.builders import build_directory, digest
from tests.storage.power_loss import BEFORE, LOG, Journaled, failing, is_marked, segment
from tests.storage.support import unexaminable
from waltzctl.engine.durable import disk
from waltzctl.engine.errors import (
    DamageError,
    DiskFullError,
    DiskReadError,
    DiskWriteError,
    RefusedError,
    SyncFailedError,
)
from waltzctl.engine.node.outages import standing_outage
from waltzctl.engine.storage import commit_journal, directory, journal_creation, journal_recovery
from waltzctl.engine.storage.directory import StorageDirectory
from waltzctl.engine.storage.journal_state import kept_path, look_at_journal, owner_of, read_state, state_path
from waltzctl.formats.control import CONTROL_FILE_NAME
from waltzctl.formats.journal_file import BLOCK
from waltzctl.formats.segment import HEADER_SIZE
from waltzctl.formats.wire.failure import FailureCode


def test_what_only_the_journal_has_is_there_after_a_power_loss(journaled: Journaled, tmp_path: Path) -> None:
    assert journaled.commit({0: 2, 1: 1})
    assert journaled.commit({0: 1, 2: 3})
    assert journaled.held() == journaled.acknowledged  # readers see it at once
    copy = journaled.after_power_loss(tmp_path)
    assert segment(copy, 0).read_bytes() != segment(journaled.path, 0).read_bytes()
    assert is_marked(copy)
    assert journaled.held(copy) == journaled.acknowledged
    assert not is_marked(copy)
    assert read_state(copy) is None
    assert (tmp_path / "journal-after").exists()  # another directory made it, which may want it
    assert journaled.held(copy) == journaled.acknowledged


def test_a_clean_stop_leaves_what_a_node_without_a_journal_leaves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk, "now_ms", lambda: 1_700_000_600_000)
    kept = {}
    for name in ("with", "without"):
        with monkeypatch.context() as patch:
            (tmp_path / name).mkdir()
            made = Journaled(tmp_path / name, patch, segment_size_threshold=1500)
            if name == "without":
                made.storage.close()
                made.storage = StorageDirectory.open(made.path, options=made.options)
            for _ in range(3):
                if name == "with":
                    made.commit({0: 1, 1: 2})
                else:
                    made.append(0, 1)
                    made.append(1, 2)
            made.append(0, 20)  # over the end of a segment
            made.close()
            kept[name] = digest(made.path)
            assert not made.file.exists()
    assert kept["with"] == kept["without"]


def test_the_files_change_hands_only_where_they_must(journaled: Journaled, tmp_path: Path) -> None:
    """The mark is there before anything is journaled, and its state names journal and id."""
    state = read_state(journaled.path)
    assert state is not None
    assert (state.path, state.partitions, journaled.marked) == (journaled.file, None, True)
    assert journaled.held(journaled.after_power_loss(tmp_path)) == journaled.acknowledged


def test_a_journal_inside_the_directory_moves_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = Journaled(tmp_path, monkeypatch)
    made.storage.close()
    made.storage = StorageDirectory.open(made.path)
    made.file = made.path / disk.STATE_DIRECTORY / "journal"
    made.begin()
    made.commit({1: 2})
    assert json.loads(Path(state_path(made.path)).read_text())["path"] == f"{disk.STATE_DIRECTORY}/journal"
    moved = tmp_path / "moved"
    shutil.copytree(made.path, moved)
    segment(moved, 1).write_bytes(made.durable[segment(made.path, 1)])
    assert made.held(moved) == made.acknowledged
    monkeypatch.undo()
    made.close()


def test_a_journal_beside_the_directory_is_not_inside_whatever_leads_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a copy that is opened beside the original takes the original's journal for its own, and removes it."""
    made = Journaled(tmp_path, monkeypatch)
    made.storage.close()
    made.storage = StorageDirectory.open(made.path)
    made.file = made.path / ".." / "journal"
    made.begin()
    made.commit({1: 2})
    assert made.journal.path == tmp_path / "journal"
    copy = tmp_path / "copy"
    shutil.copytree(made.path, copy)
    assert made.held(copy) == made.acknowledged
    assert made.file.exists()
    monkeypatch.undo()
    made.close()


# --- what makes the journal untrue -----------------------------------------------------------------------------------


def test_what_was_cut_does_not_come_back(journaled: Journaled, tmp_path: Path) -> None:
    journaled.commit({0: 4, 1: 1})
    journaled.truncate(0, BEFORE + 1)
    journaled.commit({0: 1, 1: 1})
    assert len(journaled.acknowledged[0]) == BEFORE + 3
    assert journaled.held(journaled.after_power_loss(tmp_path)) == journaled.acknowledged


def test_what_is_forgotten_is_durable_in_its_segment(journaled: Journaled, monkeypatch: pytest.MonkeyPatch) -> None:
    journaled.commit({0: 4})
    path, forget, seen = segment(journaled.path, 0), journaled.journal.forget, []

    def look(partition: int) -> None:
        seen.append((partition, journaled.durable[path] == path.read_bytes()))
        forget(partition)

    monkeypatch.setattr(journaled.journal, "forget", look)
    journaled.truncate(0, BEFORE + 2)
    assert seen == [(0, True)]
    assert journaled.durable[path] == path.read_bytes()


@pytest.mark.parametrize("delete", [False, True])
def test_a_partition_that_left_is_not_written_into(journaled: Journaled, tmp_path: Path, delete: bool) -> None:
    journaled.commit({0: 2, 1: 2})
    journaled.storage.unassign(0, delete_files=delete)
    gone = journaled.acknowledged.pop(0)
    copy = journaled.after_power_loss(tmp_path)
    assert journaled.held(copy) == journaled.acknowledged
    assert not is_marked(copy)
    if not delete:
        with StorageDirectory.open(copy) as storage:
            storage.assign(0)
            assert storage.partition(0).read_range(0, 100) == gone


def test_an_end_of_a_segment_and_a_checkpoint_need_no_forgetting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Journaled(tmp_path, monkeypatch, segment_size_threshold=2500)
    for _ in range(6):
        made.commit({0: 1, 1: 1}, size=50)
    made.append(0, 20, size=50)
    assert len(list(made.path.glob("0/*.seg"))) > 1
    assert made.commit({0: 1, 2: 1})
    assert made.held(made.after_power_loss(tmp_path)) == made.acknowledged
    monkeypatch.undo()
    made.close()


def test_a_session_begins_with_everything_durable(journaled: Journaled, tmp_path: Path) -> None:
    journaled.commit({0: 3})
    partition = journaled.storage.partition(0)
    partition.set_low_water_mark(7, partition.max_transaction_id)
    assert journaled.durable[segment(journaled.path, 0)] == segment(journaled.path, 0).read_bytes()


# --- areas -----------------------------------------------------------------------------------------------------------


def test_a_full_area_is_flushed_behind_and_taken_again(journaled: Journaled, tmp_path: Path) -> None:
    before = dict(journaled.durable)
    done = 0
    while journaled.durable == before:
        assert journaled.commit({0: 1, 1: 1})
        done += 1
        if done % 4 == 0:
            journaled.journal.work()
        assert done < 100, "the area is never full"
    assert done > 8  # of 16 blocks one is the header's, and four are kept
    for _ in range(100):
        assert journaled.commit({0: 1, 2: 1})
        journaled.journal.work()
    assert journaled.held(journaled.after_power_loss(tmp_path)) == journaled.acknowledged


def test_an_area_that_is_begun_anew_during_the_flush_is_not_taken_for_flushed(
    journaled: Journaled, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The last segment that is flushed is forgotten meanwhile, so that its area is free, and journaled in it again."""
    while journaled.journal._full_area is None:
        journaled.commit({0: 1})
    sync, path = disk.WritableFile.sync, segment(journaled.path, 0)

    def slow(file: disk.WritableFile) -> None:
        sync(file)
        if file.path == path:
            monkeypatch.setattr(disk.WritableFile, "sync", sync)
            epoch = journaled.journal._epoch
            journaled.truncate(0, BEFORE)
            while journaled.journal._epoch == epoch:
                assert journaled.commit({1: 1})
            assert journaled.commit({0: 1})

    monkeypatch.setattr(disk.WritableFile, "sync", slow)
    journaled.journal.work()
    for _ in range(2):
        epoch = journaled.journal._epoch
        while journaled.journal._epoch == epoch:
            journaled.journal.work()
            assert journaled.commit({1: 1})
    assert journaled.held(journaled.after_power_loss(tmp_path)) == journaled.acknowledged


def test_without_room_the_segments_are_flushed(journaled: Journaled, tmp_path: Path) -> None:
    answers = [journaled.commit({0: 1, 1: 1}) for _ in range(40)]
    count = answers.index(False)
    assert answers == [True] * count + [False] * (40 - count)
    assert journaled.held(journaled.after_power_loss(tmp_path)) == journaled.acknowledged
    journaled.journal.work()
    assert journaled.commit({0: 1})
    shutil.rmtree(tmp_path / "after")
    assert journaled.held(journaled.after_power_loss(tmp_path)) == journaled.acknowledged


def test_room_to_forget_is_kept(journaled: Journaled, tmp_path: Path) -> None:
    while journaled.commit({0: 1, 1: 1, 2: 1}):
        pass
    for partition in (0, 1, 2):
        journaled.truncate(partition, BEFORE - 1)
    assert journaled.held(journaled.after_power_loss(tmp_path)) == journaled.acknowledged


def test_where_there_is_none_the_cut_is_refused(
    journaled: Journaled, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    while journaled.commit({0: 1, 1: 1}):
        pass
    monkeypatch.setattr(commit_journal, "_FORGET_TIMEOUT", 0.01)
    while journaled.journal._has_room(BLOCK):
        with journaled.journal._changed:
            journaled.journal._write_entry(forgotten=[99])
    with pytest.raises(DiskWriteError, match="neither area has room"):
        journaled.storage.partition(0).truncate(BEFORE)
    assert journaled.held(journaled.after_power_loss(tmp_path)) == journaled.acknowledged
    journaled.journal.work()
    journaled.storage.reopen(0)
    journaled.truncate(0, BEFORE)
    shutil.rmtree(tmp_path / "after")
    assert journaled.held(journaled.after_power_loss(tmp_path)) == journaled.acknowledged


@pytest.mark.parametrize(("size", "journaled_"), [(-1, True), (0, True), (1, False)])
def test_what_is_long_is_flushed_where_it_belongs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, journaled_: bool
) -> None:
    made = Journaled(tmp_path, monkeypatch, area_size=1 << 20)
    monkeypatch.setattr(commit_journal, "MOST_IN_ENTRY", 10_040)  # with what a record has beside its data
    assert made.commit({0: 1}, size=10_000 + size) == journaled_
    monkeypatch.undo()
    made.close()


def test_what_no_area_could_hold_begins_none(journaled: Journaled) -> None:
    size = journaled.area_size - 6 * BLOCK
    assert journaled.commit({0: 1}, size=size - 200)
    assert not journaled.commit({0: 1}, size=size + BLOCK)
    assert journaled.journal._epoch == 1


# --- failures --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("call", ["pwrite", "fdatasync"])
def test_a_journal_that_fails_is_done_without(
    journaled: Journaled, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, call: str
) -> None:
    journaled.commit({0: 2, 1: 1})
    failing(monkeypatch, call, journaled.file)
    assert not journaled.commit({0: 1, 2: 1})
    assert journaled.journal.fault is not None
    assert not journaled.commit({0: 1})
    with pytest.raises(DiskWriteError):  # nobody knows yet what an opening would write back
        journaled.storage.partition(1).truncate(BEFORE - 1)
    assert not journaled.journal.work()
    assert not journaled.marked
    assert journaled.held(journaled.after_power_loss(tmp_path)) == journaled.acknowledged
    journaled.storage.reopen(1)
    journaled.truncate(1, BEFORE - 1)
    shutil.rmtree(tmp_path / "after")
    assert journaled.held(journaled.after_power_loss(tmp_path)) == journaled.acknowledged


def test_a_segment_that_could_not_be_synced_is_written_again(
    journaled: Journaled, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    while journaled.journal._full_area is None:
        journaled.commit({0: 1, 1: 1})
    damaged = segment(journaled.path, 0)
    whole = damaged.read_bytes()
    damaged.write_bytes(journaled.durable[damaged] + bytes(len(whole) - len(journaled.durable[damaged])))
    failing(monkeypatch, "fdatasync", damaged, times=1)  # a second one would succeed, without what was lost
    journaled.journal.work()
    assert damaged.read_bytes() == whole
    assert journaled.journal.fault is None
    assert journaled.commit({0: 1})
    assert journaled.held(journaled.after_power_loss(tmp_path)) == journaled.acknowledged


def test_a_segment_that_cannot_be_synced_keeps_the_journal(
    journaled: Journaled, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    while journaled.journal._full_area is None:
        journaled.commit({0: 1, 1: 1})
    with monkeypatch.context() as patch:
        failing(patch, "fdatasync", segment(journaled.path, 0))
        assert journaled.journal.work()
        assert journaled.journal.fault is not None
        assert not journaled.journal.work()
    assert journaled.marked
    assert journaled.held(journaled.after_power_loss(tmp_path)) == journaled.acknowledged


def segment_whose_sync_failed(journaled: Journaled, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The data file of partition 0, behind a sync that failed in an append to it."""
    path = segment(journaled.path, 0)
    with monkeypatch.context() as patch:
        failing(patch, "fdatasync", path)
        with pytest.raises(SyncFailedError):
            journaled.storage.partition(0).append(journaled.records(0, 1))
    return path


def test_a_partition_whose_sync_failed_is_opened_with_what_the_journal_has(
    journaled: Journaled, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    journaled.commit({0: 3})
    path = segment_whose_sync_failed(journaled, monkeypatch)
    path.write_bytes(journaled.durable[path])  # the system lets go of what it could not write
    journaled.storage.reopen(0)
    assert journaled.held() == journaled.acknowledged
    assert journaled.commit({0: 1, 1: 1})
    assert journaled.held(journaled.after_power_loss(tmp_path)) == journaled.acknowledged


def test_a_full_disk_that_keeps_a_failed_partition_from_its_journal_is_no_damage(
    journaled: Journaled, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was *quarantined*, to be recovered from another replica."""
    journaled.commit({0: 3})
    path = segment_whose_sync_failed(journaled, monkeypatch)
    with monkeypatch.context() as patch:
        failing(patch, "pwrite", path, code=errno.ENOSPC)
        left = journaled.storage.reopen(0)
        assert isinstance(left.failed, DiskFullError)
        assert not left.damaged
        outage = standing_outage(left)
        assert outage is not None
        assert outage.code is FailureCode.DISK_FULL
    journaled.storage.reopen(0).check_writable()
    assert journaled.held() == journaled.acknowledged


def test_a_failed_partition_that_leaves_takes_its_records_along(
    journaled: Journaled, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    journaled.commit({0: 3, 1: 1})
    path = segment_whose_sync_failed(journaled, monkeypatch)
    path.write_bytes(journaled.durable[path])
    journaled.storage.unassign(0, delete_files=False)
    copy = journaled.after_power_loss(tmp_path)
    gone = journaled.acknowledged.pop(0)
    assert journaled.held(copy) == journaled.acknowledged
    with StorageDirectory.open(copy) as storage:
        storage.assign(0)
        assert storage.partition(0).read_range(0, 100) == gone


@pytest.mark.parametrize("delete", [False, True])
def test_a_damaged_partition_that_leaves_is_forgotten(
    journaled: Journaled, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, delete: bool
) -> None:
    """Otherwise the journal would be kept for ever for files that are gone."""
    journaled.commit({0: 3, 1: 1})
    with monkeypatch.context() as patch:
        failing(patch, "fdatasync", segment(journaled.path, 0))
        with pytest.raises(SyncFailedError):
            journaled.storage.partition(0).append(journaled.records(0, 1))
    with segment(journaled.path, 0).open("r+b") as file:
        file.seek(140)
        file.write(b"\xff\xff\xff")
    assert journaled.storage.reopen(0).quarantined
    journaled.storage.unassign(0, delete_files=delete)
    del journaled.acknowledged[0]
    copy = journaled.after_power_loss(tmp_path)
    assert journaled.held(copy) == journaled.acknowledged
    assert not is_marked(copy)


def test_a_stop_that_cannot_flush_leaves_the_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = Journaled(tmp_path, monkeypatch)
    made.commit({0: 1, 1: 2})
    with monkeypatch.context() as patch:
        failing(patch, "fdatasync", segment(made.path, 1))
        with pytest.raises(SyncFailedError):
            made.close()
    assert made.marked
    assert made.held(made.path) == made.acknowledged
    assert not made.marked


# --- opening a marked directory --------------------------------------------------------------------------------------


def lose_state(copy: Path, journal: Path) -> None:
    Path(state_path(copy)).unlink()


def lose_journal(copy: Path, journal: Path) -> None:
    journal.unlink()


def half_state(copy: Path, journal: Path) -> None:
    path = Path(state_path(copy))
    path.write_bytes(path.read_bytes()[:-20])


def state_of_a_later_version(copy: Path, journal: Path) -> None:
    path = Path(state_path(copy))
    path.write_text(path.read_text().replace('"version": 1', '"version": 2'))


def damaged_entry(copy: Path, journal: Path) -> None:
    raw = bytearray(journal.read_bytes())
    raw[BLOCK + 60] ^= 1
    journal.write_bytes(raw)


@pytest.mark.parametrize("injury", [lose_state, lose_journal, half_state, state_of_a_later_version, damaged_entry])
def test_what_cannot_be_written_back_is_refused_and_nothing_changes(
    journaled: Journaled, tmp_path: Path, injury: Callable[[Path, Path], None]
) -> None:
    for _ in range(3):
        journaled.commit({0: 1, 1: 1})
    copy = journaled.after_power_loss(tmp_path)
    injury(copy, tmp_path / "journal-after")
    before = digest(copy)
    with pytest.raises(DamageError, match="journal") as told:
        StorageDirectory.open(copy)
    assert "recover --forget-journal" in (told.value.advice or "")
    assert digest(copy) == before


@pytest.mark.parametrize("what", ["gone", "another"])
def test_a_segment_that_is_not_the_journals_fails_its_partition_alone(
    journaled: Journaled, tmp_path: Path, what: str
) -> None:
    journaled.commit({0: 1, 1: 2})
    copy = journaled.after_power_loss(tmp_path)
    path, kept = segment(copy, 1), tmp_path / "kept"
    shutil.copy(path, kept)
    if what == "gone":
        path.unlink()
    else:
        raw = bytearray(path.read_bytes())
        raw[20] ^= 1  # the cluster key
        path.write_bytes(raw)
    with StorageDirectory.open(copy) as storage:
        assert [n for n, one in storage.partitions.items() if one.quarantined] == [1]
        assert storage.written_back is not None
        assert list(storage.written_back.failed) == [1]
        assert any("commit journal holds acknowledged records" in one.message for one in storage.partition(1).findings)
        assert storage.partition(0).read_range(0, 100) == journaled.acknowledged[0]
        storage.partition(0).truncate(BEFORE - 1)  # and what is cut meanwhile stays cut
        with pytest.raises(RefusedError, match="still holds records"):
            storage.begin_journal(tmp_path / "new", log=LOG)
    assert is_marked(copy)
    shutil.copy(kept, path)
    held = journaled.held(copy)
    assert held == {**journaled.acknowledged, 0: journaled.acknowledged[0][:BEFORE]}
    assert not is_marked(copy)


def test_a_partition_on_a_disk_that_is_gone_keeps_its_part_of_the_journal(
    journaled: Journaled, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where its directory cannot even be looked at.  The node did not start."""
    journaled.commit({0: 1, 1: 2})
    copy, real = journaled.after_power_loss(tmp_path), os.stat

    def gone(path: Any, *given: Any, **words: Any) -> os.stat_result:
        if str(path).startswith(str(copy / "1")):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(path, *given, **words)

    with monkeypatch.context() as patch:
        patch.setattr(os, "stat", gone)
        with StorageDirectory.open(copy) as storage:
            assert [n for n, one in storage.partitions.items() if one.quarantined] == [1]
            assert storage.written_back is not None
            assert list(storage.written_back.failed) == [1]
            assert storage.partition(0).read_range(0, 100) == journaled.acknowledged[0]
    assert is_marked(copy)
    assert journaled.held(copy) == journaled.acknowledged
    assert not is_marked(copy)


@pytest.mark.parametrize("state_too", [False, True])
@pytest.mark.parametrize("way", ["reopen", "restart", "anew"])
def test_a_full_disk_keeps_what_the_journal_has_for_later(
    journaled: Journaled, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str, state_too: bool
) -> None:
    """It was called damage, and no room brought the partition back before a restart.

    `state_too`: there is no room either to note which partition the journal is kept for; all of them wait then.
    """
    journaled.commit({0: 1, 1: 2, 2: 1})
    copy = journaled.after_power_loss(tmp_path)
    waiting = [0, 1, 2] if state_too else [1]
    with monkeypatch.context() as patch:
        failing(patch, "pwrite", segment(copy, 1), code=errno.ENOSPC)
        if state_too:
            full = DiskFullError(copy, None, OSError(errno.ENOSPC, "full"))
            patch.setattr(journal_recovery, "write_state", lambda *_: raising(full))
        storage = StorageDirectory.open(copy)
        with contextlib.ExitStack() as stack:
            stack.enter_context(storage)
            for number, one in storage.partitions.items():
                assert one.quarantined == (number in waiting)
                assert isinstance(one.failed, DiskFullError) == (number in waiting)
                assert not one.damaged
                outage = standing_outage(one)
                assert outage is None or outage.code is FailureCode.DISK_FULL
                with pytest.raises(DiskFullError) if number in waiting else contextlib.nullcontext():
                    one.check_writable()
            storage.reopen(1)
            assert isinstance(storage.partition(1).failed, DiskFullError), "the disk is as full as before"
            if way == "restart":
                stack.close()
                patch.undo()
                assert journaled.held(copy) == journaled.acknowledged
                assert not is_marked(copy)
                return
            patch.undo()
            for number in waiting:
                assert is_marked(copy)
                if way == "anew":
                    storage.unassign(number, delete_files=False)
                    storage.assign(number)
                else:
                    storage.reopen(number)
                assert not storage.partition(number).quarantined
            assert {n: one.read_range(0, 100) for n, one in storage.partitions.items()} == journaled.acknowledged
            assert not is_marked(copy)
            for one in storage.partitions.values():
                one.truncate(BEFORE - 1)  # what is cut from now on stays cut
    cut = {number: records[:BEFORE] for number, records in journaled.acknowledged.items()}
    assert journaled.held(copy) == cut


def raising(error: Exception) -> None:
    raise error


def test_a_partition_whose_journal_cannot_be_put_away_is_not_begun_anew(
    journaled: Journaled, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What would be cut in it meanwhile would come back with the next start."""
    journaled.commit({0: 1, 1: 2})
    copy = journaled.after_power_loss(tmp_path)
    with monkeypatch.context() as patch:
        failing(patch, "pwrite", segment(copy, 1), code=errno.ENOSPC)
        storage = StorageDirectory.open(copy)
    with storage:
        with monkeypatch.context() as patch:
            full = DiskFullError(copy, None, OSError(errno.ENOSPC, "full"))
            patch.setattr(directory, "keep_for", lambda *_: raising(full))
            assert isinstance(storage.reopen(1).failed, DiskFullError)
        assert is_marked(copy)
        named = Path(state_path(copy)).rename(tmp_path / "put-aside")
        assert storage.reopen(1).damaged, "nothing tells any more where its records are"
        named.rename(Path(state_path(copy)))
        assert storage.reopen(1).failed is None
        assert storage.partition(1).read_range(0, 100) == journaled.acknowledged[1]
    assert not is_marked(copy)


def test_what_could_not_be_written_back_of_a_partition_goes_with_its_files(
    journaled: Journaled, tmp_path: Path
) -> None:
    """It was written into the one that came in its place, by the next opening."""
    journaled.commit({0: 1, 1: 2, 2: 1})
    copy = journaled.after_power_loss(tmp_path)
    for number in (1, 2):
        segment(copy, number).rename(tmp_path / str(number))
    with StorageDirectory.open(copy) as storage:
        storage.unassign(1, delete_files=True)
        storage.assign(1)
        assert (storage.partition(1).quarantined, storage.partition(2).quarantined) == (False, True)
    assert is_marked(copy), "another partition wants it"
    with StorageDirectory.open(copy) as storage:
        assert storage.partition(1).max_transaction_id == -1
        assert segment(copy, 1).stat().st_size == HEADER_SIZE
        storage.unassign(2, delete_files=True)
        assert not is_marked(copy)
        storage.begin_journal(tmp_path / "new", log=LOG)
    assert journaled.held(copy) == {0: journaled.acknowledged[0], 1: []}


@pytest.mark.parametrize("full", [False, True])
def test_a_deletion_in_whose_midst_a_process_died_wants_nothing_written_back(
    journaled: Journaled, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, full: bool
) -> None:
    journaled.commit({0: 1, 1: 2})
    copy = journaled.after_power_loss(tmp_path)
    segment(copy, 1).unlink()
    with StorageDirectory.open(copy) as storage, monkeypatch.context() as patch:
        error: DiskWriteError = DiskFullError(copy, None, OSError(errno.ENOSPC, "full"))
        kept = journal_recovery.keep_for

        def once(*arguments: Any) -> None:
            patch.setattr(directory, "keep_for", kept)
            raise error if full else DiskWriteError(copy, None, OSError(errno.EIO, "Input/output error"))

        patch.setattr(directory, "keep_for", once)
        with contextlib.nullcontext() if full else pytest.raises(DiskWriteError):
            storage.unassign(1, delete_files=True)
    assert is_marked(copy) == (not full)
    with StorageDirectory.open(copy) as storage:
        assert not is_marked(copy)
        assert list(storage.partitions) == [0, 2]
        storage.assign(1)
        assert storage.partition(1).max_transaction_id == -1


def test_an_entry_that_found_no_memory_leaves_no_hole_in_front_of_the_next_ones(
    journaled: Journaled, tmp_path: Path
) -> None:
    """What was journaled behind such a place was acknowledged, and counted for nothing; a stop waited for ever."""

    class Full(set[int]):
        def add(self, sequence: int) -> None:
            raise MemoryError

    area = journaled.journal._areas[0]
    area.writing = Full()
    with pytest.raises(MemoryError):
        journaled.commit({0: 1})
    area.writing = set()
    assert journaled.commit({1: 2})
    copy = journaled.after_power_loss(tmp_path)
    assert len(journaled.journal._free_files) == len(journaled.journal._files)
    assert journaled.held(copy)[1] == journaled.acknowledged[1]


@pytest.mark.parametrize("died", [False, True])
def test_a_partition_begun_anew_behind_a_deletion_that_failed_is_not_written_into(
    journaled: Journaled, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, died: bool
) -> None:
    """The journal was still kept for it: the next opening wrote what the deleted one had lost into the new one.

    `died`: on a full disk, where the files make room first, between that and the journal's change.
    """
    journaled.commit({0: 1, 1: 2})
    copy = journaled.after_power_loss(tmp_path)
    segment(copy, 1).unlink()
    with StorageDirectory.open(copy) as storage, monkeypatch.context() as patch:
        calls = [DiskFullError(copy, None, OSError(errno.ENOSPC, "full"))] if died else []
        calls.append(DiskWriteError(copy, None, OSError(errno.EIO, "Input/output error")))

        def failing_always(*arguments: Any) -> None:
            raise calls.pop(0)

        patch.setattr(directory, "keep_for", failing_always)
        with pytest.raises(DiskWriteError):
            storage.unassign(1, delete_files=True)
        patch.undo()
        if not died:
            storage.assign(1)
    with StorageDirectory.open(copy) as storage:
        storage.assign(1)
        assert storage.partition(1).max_transaction_id == -1
    with StorageDirectory.open(copy) as storage:
        assert storage.partition(1).max_transaction_id == -1
        assert not storage.partition(1).quarantined
        assert segment(copy, 1).stat().st_size == HEADER_SIZE
    assert not is_marked(copy)


def test_a_journal_that_is_no_longer_in_force_is_not_looked_at(journaled: Journaled, tmp_path: Path) -> None:
    """The mark went, and the process died before the state file did: a release may have changed the directory since."""
    journaled.commit({0: 2})
    copy = journaled.after_power_loss(tmp_path)
    state = Path(state_path(copy)).read_bytes()
    journal = (tmp_path / "journal-after").read_bytes()
    with StorageDirectory.open(copy) as storage:
        storage.partition(0).truncate(BEFORE)
    Path(state_path(copy)).write_bytes(state)
    (tmp_path / "journal-after").write_bytes(journal)
    with StorageDirectory.open(copy) as storage:
        assert storage.written_back is None
        assert storage.partition(0).max_transaction_id == BEFORE
    assert not Path(state_path(copy)).exists()


def test_one_journal_is_for_one_directory(
    journaled: Journaled, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    second = Journaled(other, monkeypatch)
    second.storage.close()
    second.storage = StorageDirectory.open(second.path)
    with pytest.raises(RefusedError, match="of another directory"):
        second.storage.begin_journal(journaled.file, log=LOG)
    (tmp_path / "text").write_text("notes")
    with pytest.raises(RefusedError, match="no commit journal"):
        second.storage.begin_journal(tmp_path / "text", log=LOG)
    assert (tmp_path / "text").read_text() == "notes"
    second.close()


def test_what_an_earlier_journal_of_the_directory_left_is_replaced(journaled: Journaled) -> None:
    left = journaled.file.read_bytes()
    journaled.storage.close()
    journaled.file.write_bytes(left)
    journaled.storage = StorageDirectory.open(journaled.path)
    journaled.begin()
    assert journaled.commit({0: 1})
    assert journaled.file.read_bytes() != left


def test_what_an_earlier_journal_left_is_replaced_where_its_records_are_in_the_segments(
    journaled: Journaled, tmp_path: Path
) -> None:
    """The process died behind the mark's end, before the file was removed."""
    assert journaled.commit({0: 2, 1: 3})
    left = journaled.file.read_bytes()
    journaled.storage.close()
    journaled.file.write_bytes(left)
    journaled.storage = StorageDirectory.open(journaled.path, options=journaled.options)
    journaled.begin()
    assert journaled.file.read_bytes() != left
    assert journaled.commit({0: 1})
    assert journaled.held(journaled.after_power_loss(tmp_path)) == journaled.acknowledged


@pytest.mark.parametrize("other", ["empty", "older", "damaged"])
def test_a_journal_that_a_directory_needs_which_was_moved_away_is_kept(
    journaled: Journaled, tmp_path: Path, caplog: pytest.LogCaptureFixture, other: str
) -> None:
    """It crashed, was put aside, and another directory took its place: what it acknowledged stood nowhere any more."""
    journaled.commit({0: 2})
    journaled.commit({0: 1, 1: 1})
    moved = journaled.after_power_loss(tmp_path)
    journal, acknowledged = journaled.file.read_bytes(), journaled.acknowledged
    journaled.storage.close()
    shutil.rmtree(journaled.path)
    build_directory(journaled.path, {} if other == "empty" else dict.fromkeys(range(3), BEFORE))
    if other == "damaged":
        damaged = bytearray(journal)
        damaged[BLOCK + 100] ^= 1
        journal = bytes(damaged)
    journaled.file.write_bytes(journal)
    with StorageDirectory.open(journaled.path) as another:
        another.begin_journal(journaled.file, log=LOG, area_size=journaled.area_size)
        (kept,) = journaled.file.parent.glob(f"{journaled.file.name}.*")
        assert kept.read_bytes() == journal
        assert "it is kept as" in caplog.text
        if other != "damaged":
            assert journaled.held(moved) == acknowledged
    assert journaled.file.name not in [one.name for one in journaled.file.parent.iterdir()], "that of the other is over"


def crash_in_place(journaled: Journaled) -> bytes:
    """Leave the directory, and no copy of it, as a power loss would; returns its journal."""
    durable, journal = dict(journaled.durable), journaled.file.read_bytes()
    kept = {path: path.read_bytes() for path in (journaled.path / CONTROL_FILE_NAME, Path(state_path(journaled.path)))}
    journaled.storage.close()
    there = {path: content for path, content in durable.items() if path.exists()}
    for path, content in {**there, **kept, journaled.file: journal}.items():
        path.write_bytes(content)
    return journal


@pytest.mark.parametrize("length", [218, 219, 242])
def test_a_journal_is_kept_and_found_however_long_its_name_is(
    journaled: Journaled, tmp_path: Path, length: int
) -> None:
    """With its id behind it no file system could have that name, and the directory in its place did not start.

    The longest name that a journal may have leaves room for the suffix of a temporary file.
    """
    journaled.storage.close()
    journaled.storage, journaled.file = StorageDirectory.open(journaled.path), tmp_path / ("j" * length)
    journaled.begin()
    assert journaled.commit({0: 2})
    state = read_state(journaled.path)
    assert state is not None
    journal = crash_in_place(journaled)
    moved = journaled.path.rename(tmp_path / "moved")
    build_directory(journaled.path, {0: BEFORE})
    with StorageDirectory.open(journaled.path) as another:
        another.begin_journal(journaled.file, log=LOG, area_size=journaled.area_size)
        whole = f"{journaled.file.name}.{state.journal_id}"
        kept = tmp_path / (whole if length == 218 else f"commit-journal.{state.journal_id}")
        assert kept.read_bytes() == journal
        assert journaled.held(moved) == journaled.acknowledged


@pytest.mark.parametrize("taken", [True, False], ids=["its-place-is-taken", "its-place-is-free"])
@pytest.mark.parametrize("first", ["moved", "copy"])
def test_a_journal_stays_for_a_directory_at_another_path_until_a_person_removes_it(
    journaled: Journaled, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, taken: bool, first: str
) -> None:
    """Nothing tells a directory that was moved from a copy: where one is opened, the other may need the journal still.

    Not even device and inode do: a copy may have those that its original had.  A file system gives a free inode away again, the
    roots of two of them have the same one, and which disk has which number changes at a reboot.
    """
    assert journaled.commit({0: 2, 1: 1})
    journal = crash_in_place(journaled)
    moved = journaled.path.rename(tmp_path / "moved")
    copy = Path(shutil.copytree(moved, tmp_path / "copy"))
    if taken:
        build_directory(journaled.path, {0: BEFORE})
        with StorageDirectory.open(journaled.path) as another:
            another.begin_journal(journaled.file, log=LOG, area_size=journaled.area_size)
    (left,) = tmp_path.glob(f"{journaled.file.name}*")
    assert (left == journaled.file) is not taken
    places_of = {moved: copy.stat(), copy: moved.stat()} if first == "copy" else {}
    real = os.stat

    def stat(path: Any, **options: Any) -> os.stat_result:
        return places_of.get(path) or real(path, **options)

    monkeypatch.setattr(os, "stat", stat)
    for one in (moved, copy) if first == "moved" else (copy, moved):
        assert journaled.held(one) == journaled.acknowledged
        assert left.read_bytes() == journal


def test_the_state_file_has_no_more_than_every_version_reads(journaled: Journaled) -> None:
    """Another member is refused: on the way back to an earlier version no marked directory could be opened."""
    assert {*json.loads(Path(state_path(journaled.path)).read_text())} == {"version", "path", "id", "partitions"}


def test_a_journal_that_a_link_in_the_directory_leads_to_is_not_inside(journaled: Journaled, tmp_path: Path) -> None:
    """A copy has the same link, and took the original's journal for its own."""
    journaled.storage.close()
    (tmp_path / "fast").mkdir()
    (journaled.path / "fast").symlink_to(tmp_path / "fast")
    journaled.storage, journaled.file = StorageDirectory.open(journaled.path), journaled.path / "fast" / "journal"
    journaled.begin()
    assert journaled.commit({0: 2})
    journal = crash_in_place(journaled)
    copy = Path(shutil.copytree(journaled.path, tmp_path / "copy", symlinks=True))
    assert journaled.held(copy) == journaled.acknowledged
    assert (tmp_path / "fast" / "journal").read_bytes() == journal
    assert journaled.held(journaled.path) == journaled.acknowledged
    assert not (tmp_path / "fast" / "journal").exists()


@pytest.mark.parametrize("where", ["moved", "here"])
def test_a_directory_leaves_what_another_one_has_in_the_place_of_its_journal(
    journaled: Journaled, tmp_path: Path, where: str
) -> None:
    """Its own one, which was put aside for a partition that could not be written back, was removed by hand.

    The other one may be at the same path, in another container.
    """
    assert journaled.commit({0: 2, 1: 1})
    crash_in_place(journaled)
    moved = journaled.path.rename(tmp_path / "moved")
    segment(moved, 1).unlink()
    other = build_directory(journaled.path, {0: BEFORE})
    if where == "here":
        other = other.rename(tmp_path / "other")
        moved = moved.rename(journaled.path)
    with StorageDirectory.open(moved) as storage:
        assert storage.written_back is not None
        assert list(storage.written_back.failed) == [1]
        journaled.file.unlink()
        owner, journaled.path = owner_of(journaled.path), other
        with pytest.MonkeyPatch.context() as patched:
            for module in (commit_journal, journal_creation):
                patched.setattr(module, "owner_of", lambda _: owner)
            journaled.storage = StorageDirectory.open(other)
            journaled.begin()
            journal = crash_in_place(journaled)
        storage.unassign(1, delete_files=True)
    assert not is_marked(moved)
    assert journaled.file.read_bytes() == journal


@pytest.mark.parametrize("unreadable", ["no regular file", "no directory", "read error"])
def test_a_journal_whose_records_cannot_be_looked_for_in_a_segment_is_kept(
    journaled: Journaled, monkeypatch: pytest.MonkeyPatch, unreadable: str
) -> None:
    """That partition is closed; it kept the node from starting with a journal, also for all others."""
    journaled.commit({0: 2})
    left, target = journaled.file.read_bytes(), segment(journaled.path, 0)
    journaled.storage.close()
    journaled.file.write_bytes(left)
    if unreadable == "read error":
        failing(monkeypatch, "pread", target)
    else:
        target.unlink()
        os.mkfifo(target)
    if unreadable == "no directory":
        shutil.rmtree(target.parent)
        target.parent.write_bytes(b"")
    with StorageDirectory.open(journaled.path) as storage:
        assert storage.partition(0).quarantined
        storage.begin_journal(journaled.file, log=LOG, area_size=journaled.area_size)
        (kept,) = journaled.file.parent.glob(f"{journaled.file.name}.*")
        assert kept.read_bytes() == left


@pytest.mark.parametrize("error", [errno.EIO, errno.ESTALE, errno.EACCES])
@pytest.mark.parametrize("hidden", ["both", "kept", "journal"])
def test_a_journal_that_cannot_be_examined_is_named_as_it_is_called(
    journaled: Journaled, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hidden: str, error: int
) -> None:
    """A file was named that never was, and an opening ended with a traceback."""
    journaled.commit({0: 2})
    moved = journaled.after_power_loss(tmp_path)
    state = read_state(moved)
    assert state is not None
    called, kept = state.path, kept_path(state.path, state.journal_id)
    if hidden != "both":  # it was moved, and another one took its name
        shutil.copy(called, kept)
        called.write_bytes(bytes(called.stat().st_size))
    unexaminable(monkeypatch, *{"both": (called, kept), "kept": (kept,), "journal": (called,)}[hidden], error=error)
    outlook = look_at_journal(moved)
    assert (outlook.path, outlook.fault) == (called if hidden == "both" else kept, None)
    if hidden != "journal":
        with pytest.raises(DiskReadError, match=f"{outlook.path}: cannot examine"):
            StorageDirectory.open(moved)
        assert is_marked(moved)


@pytest.mark.parametrize("marked", [True, False])
def test_a_journal_that_a_process_writes_is_nobody_elses(journaled: Journaled, marked: bool) -> None:
    """A copy at the path of a node whose directory was moved, or a node at the same path of another container."""
    journaled.commit({0: 1})
    moved = journaled.path.rename(journaled.path.with_name("moved"))
    shutil.copytree(moved, journaled.path)
    if not marked:
        shutil.rmtree(journaled.path)
        build_directory(journaled.path, {0: BEFORE})
    with StorageDirectory.open(journaled.path) as copy:
        assert journaled.file.exists(), "the node writes what it acknowledges there"
        with pytest.raises(RefusedError, match="another process is writing"):
            copy.begin_journal(journaled.file, log=LOG)
    assert journaled.file.exists()
    assert os.path.samestat(os.stat(journaled.file), os.fstat(journaled.journal._files[0].fileno()))


def test_two_that_make_a_journal_at_one_path_at_once_do_not_both_get_it(
    journaled: Journaled, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_creation, "_clear_place", lambda *_: None)
    monkeypatch.setattr(disk, "replacing", lambda path: contextlib.nullcontext(disk.WritableFile.open(path)))
    build_directory(tmp_path / "other", {0: BEFORE})
    with StorageDirectory.open(tmp_path / "other") as other:
        with pytest.raises(RefusedError, match="at the same moment"):
            other.begin_journal(journaled.file, log=LOG, area_size=journaled.area_size)
        assert not other._control.journaled


def test_a_journal_of_a_directory_that_was_moved_does_not_take_the_copys_segments_for_its_own(
    journaled: Journaled,
) -> None:
    """It flushed the copy's, and then took the area anew: nothing of what was acknowledged was durable."""
    moved = journaled.path.rename(journaled.path.with_name("moved"))
    shutil.copytree(moved, journaled.path)
    assert not journaled.commit({0: 1}), "the partition flushes its own segment"
    shutil.rmtree(journaled.path)
    moved.rename(journaled.path)
    assert journaled.commit({0: 1})


def test_a_stop_of_a_directory_that_was_moved_leaves_a_copy_as_it_is(journaled: Journaled) -> None:
    journaled.commit({0: 1, 1: 1})
    moved = journaled.path.rename(journaled.path.with_name("moved"))
    shutil.copytree(moved, journaled.path)
    before = digest(journaled.path)
    journaled.storage.close()
    assert digest(journaled.path) == before
    assert not is_marked(moved)
    assert journaled.held(moved) == journaled.acknowledged
    assert journaled.held(journaled.path) == journaled.acknowledged


def test_a_copy_is_not_written_into_where_a_sync_fails(journaled: Journaled) -> None:
    journaled.commit({0: 1})
    moved = journaled.path.rename(journaled.path.with_name("moved"))
    shutil.copytree(moved, journaled.path)
    before = segment(journaled.path, 0).stat().st_mtime_ns
    with pytest.raises(DiskWriteError, match="moved or replaced while it was open"):
        journaled.journal.write_back(0)
    assert segment(journaled.path, 0).stat().st_mtime_ns == before
    shutil.rmtree(journaled.path)
    moved.rename(journaled.path)
    journaled.journal.write_back(0)


@pytest.mark.parametrize("moment", ["before-it-is-begun", "while-it-is-filled", "when-it-has-its-name"])
def test_of_two_that_make_a_journal_at_one_path_at_once_the_faster_one_keeps_it(
    journaled: Journaled, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """Two nodes with the same --journal that are started together: the slower one neither replaces nor removes the journal."""
    journaled.storage.close()
    journaled.storage = StorageDirectory.open(journaled.path, options=journaled.options)
    build_directory(tmp_path / "other", {0: BEFORE})
    real, calls = disk.replacing, 0

    @contextlib.contextmanager
    def replacing(path: Path) -> Iterator[disk.WritableFile]:
        nonlocal calls
        calls += path == journaled.file
        slower = path == journaled.file and calls == 1
        if slower and moment == "before-it-is-begun":
            journaled.begin()
        with real(path) as file:
            if slower and moment == "while-it-is-filled":
                journaled.begin()
            yield file
        if slower and moment == "when-it-has-its-name":
            with real(path) as third:  # of one that has seen no journal there, and knows no locks
                third.write_at(0, bytes(BLOCK))

    with StorageDirectory.open(tmp_path / "other") as other:
        with monkeypatch.context() as patch:
            patch.setattr(disk, "replacing", replacing)
            with pytest.raises((RefusedError, DiskWriteError)):
                other.begin_journal(journaled.file, log=LOG, area_size=journaled.area_size)
        assert not other._control.journaled
    assert journaled.file.exists(), "it is another one's"
    if moment == "when-it-has-its-name":
        return
    assert os.path.samestat(os.stat(journaled.file), os.fstat(journaled.journal._files[0].fileno()))
    assert journaled.commit({0: 1})
    assert journaled.held(journaled.after_power_loss(tmp_path)) == journaled.acknowledged


def test_a_copy_that_is_older_than_the_journal_gets_no_hole(journaled: Journaled, tmp_path: Path) -> None:
    """It was copied while the node ran, and the node has flushed and journaled on since."""
    journaled.commit({0: 1, 1: 1})
    shutil.copytree(journaled.path, tmp_path / "copy")
    before = segment(tmp_path / "copy", 0).read_bytes()
    for _ in range(40):
        journaled.commit({0: 5})
        journaled.journal.work()
    with StorageDirectory.open(tmp_path / "copy", options=journaled.options) as copy:
        assert [n for n, one in copy.partitions.items() if one.quarantined] == [0]
        assert any("what the journal has of it begins at byte" in one.message for one in copy.partition(0).findings)
        assert copy.partition(1).read_range(0, 100) == journaled.acknowledged[1]
    assert segment(tmp_path / "copy", 0).read_bytes() == before


def test_a_journal_that_cannot_be_made_leaves_nothing(journaled: Journaled, tmp_path: Path) -> None:
    journaled.storage.close()
    journaled.storage = StorageDirectory.open(journaled.path)
    before = digest(journaled.path)
    with pytest.raises(DiskWriteError):
        journaled.storage.begin_journal(tmp_path / "none" / "journal", log=LOG)
    assert (journaled.storage.journal, digest(journaled.path), journaled.marked) == (None, before, False)


# --- several at once -------------------------------------------------------------------------------------------------


def test_two_passes_at_the_same_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their entries are flushed at the same time; none is acknowledged by the other's flush."""
    made = Journaled(tmp_path, monkeypatch, partitions=4)
    monkeypatch.setattr(disk, "observer", None)
    real, inside, met = os.fdatasync, [], threading.Event()

    def sync(descriptor: int) -> None:
        if Path(f"/proc/self/fd/{descriptor}").readlink() == made.file:
            inside.append(descriptor)
            if len(inside) == 2:
                met.set()
            met.wait(5)
        real(descriptor)

    monkeypatch.setattr(os, "fdatasync", sync)
    threads = [threading.Thread(target=made.commit, args=({2 * n: 1, 2 * n + 1: 1},)) for n in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert met.is_set()
    assert len(set(inside)) == 2
    monkeypatch.undo()
    assert made.journal._durable == 2
    assert made.held(made.after_power_loss(tmp_path)) == made.acknowledged
    made.close()


def test_a_pass_does_not_believe_in_a_journal_that_another_one_found_broken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both flush at the same time, and only one is told of the failure."""
    made = Journaled(tmp_path, monkeypatch, partitions=4)
    real, second, failed = os.fdatasync, threading.Event(), threading.Event()
    lock, inside = threading.Lock(), []

    def sync(descriptor: int) -> None:
        if Path(f"/proc/self/fd/{descriptor}").readlink() == made.file:
            with lock:
                inside.append(descriptor)
                mine = len(inside)
            if mine == 1:
                second.wait(5)
                raise OSError(errno.EIO, "Input/output error")
            second.set()
            failed.wait(5)
        real(descriptor)

    monkeypatch.setattr(os, "fdatasync", sync)
    answers = []

    def first() -> None:
        answers.append(made.commit({0: 1}))
        failed.set()

    threads = [threading.Thread(target=first), threading.Thread(target=lambda: answers.append(made.commit({1: 1})))]
    for thread in threads:
        thread.start()
        while not inside:
            threading.Event().wait(0.005)
    for thread in threads:
        thread.join(10)
    assert answers == [False, False]
    monkeypatch.undo()
    made.close()


OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("commit"), st.dictionaries(st.integers(0, 2), st.integers(1, 3), min_size=1)),
        st.tuples(st.just("append"), st.integers(0, 2)),
        st.tuples(st.just("truncate"), st.integers(0, 2)),
        st.tuples(st.just("session"), st.integers(0, 2)),
        st.tuples(st.just("reopen"), st.integers(0, 2)),
        st.tuples(st.just("again"), st.integers(0, 2)),
        st.tuples(st.just("work"), st.none()),
        st.tuples(st.just("restart"), st.none()),
    ),
    max_size=30,
)


@pytest.mark.turns(8)
@given(OPERATIONS)
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_was_done(tmp_path_factory: pytest.TempPathFactory, operations: list[tuple[str, object]]) -> None:
    place = tmp_path_factory.mktemp("life")
    with pytest.MonkeyPatch.context() as monkeypatch:
        made = Journaled(place, monkeypatch, segment_size_threshold=2000)
        for number, (operation, value) in enumerate(operations):
            live(made, operation, value)
            if number % 7 == 0 or number == len(operations) - 1:
                (place / str(number)).mkdir()
                assert made.held(made.after_power_loss(place / str(number))) == made.acknowledged
        assert made.held() == made.acknowledged
        made.close()
    assert made.held(made.path) == made.acknowledged


def live(made: Journaled, operation: str, value: object) -> None:
    """One step of a drawn life."""
    match operation, value:
        case "commit", dict(counts):
            ends = {n: made.storage.partition(n).segments[-1].end for n in counts}
            for partition in [n for n in counts if ends[n] > 1500]:
                made.append(partition, counts.pop(partition))
            if counts:
                made.commit(counts)
        case "append", int(partition):
            made.append(partition, 2)
        case "truncate", int(partition):
            mark = made.storage.partition(partition).local_low_water_mark
            made.truncate(partition, max(mark, len(made.acknowledged[partition]) - 3))
        case "session", int(partition):
            one = made.storage.partition(partition)
            one.set_low_water_mark(one.session_id + 1, max(one.max_transaction_id, one.low_water_mark))
        case "reopen", int(partition):
            made.storage.reopen(partition)
        case "again", int(partition):
            made.storage.unassign(partition, delete_files=False)
            made.storage.assign(partition)
        case "work", _:
            made.journal.work()
        case "restart", _:
            made.close()
            made.storage = StorageDirectory.open(made.path, options=made.options)
            made.begin()
