"""Errors behind errors: what cannot be taken back, cannot be told, or goes wrong while another thing goes wrong."""

from __future__ import annotations

import errno
import os
import uuid
from dataclasses import replace
from pathlib import Path, PurePath
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest

from tests.builders import KEY, build_directory, digest, make_records
from tests.storage.power_loss import LOG, Journaled, failing, is_marked
from tests.storage.support import SMALL, built, codes, data_path, index_path, opened
from waltzctl.engine.durable import file_status
from waltzctl.engine.durable.relocation import DELETING
from waltzctl.engine.errors import (
    CorruptRecordError,
    DamageError,
    DiskError,
    DiskFullError,
    DiskReadError,
    DiskWriteError,
    InvalidRequestError,
    RefusedError,
    SyncFailedError,
)
from waltzctl.engine.findings import Code
from waltzctl.engine.log import places
from waltzctl.engine.storage import (
    belonging,
    commit_journal,
    creation,
    directory,
    journal_recovery,
    journal_state,
    partition_recovery,
)
from waltzctl.engine.storage import partition as partition_module
from waltzctl.engine.storage.assignment import names_put_aside, out_of_reach, put_aside_path, retired_place
from waltzctl.engine.storage.control_file import OpenControlFile
from waltzctl.engine.storage.creation import create_cluster
from waltzctl.engine.storage.directory import StorageDirectory, open_storage
from waltzctl.engine.storage.fences import SessionFences, damaged_fences, fence_path, stored_session
from waltzctl.engine.storage.journal_state import JournalState, look_at_journal, refuse_marked, state_path, write_state
from waltzctl.engine.storage.partition import Partition
from waltzctl.engine.storage.partition_log import PartitionLog
from waltzctl.engine.storage.partition_recovery import renew_last_data, renew_last_index, renew_last_segment
from waltzctl.engine.storage.retired import empty_deleted, finish_deletions
from waltzctl.engine.storage.segment_files import ActiveSegment, remove_segment
from waltzctl.engine.storage.segment_reader import SegmentReader
from waltzctl.formats.control import Layout
from waltzctl.formats.fence import FENCE_HEADER, NO_SESSION, pair_offset

EIO = OSError(errno.EIO, os.strerror(errno.EIO))


def raising(error: BaseException) -> Any:
    def raises(*_: object, **__: object) -> NoReturn:
        raise error

    return raises


def unwritable(path: PurePath = Path("x")) -> DiskWriteError:
    return DiskWriteError(path, None, EIO)


# --- writes that cannot be taken back --------------------------------------------------------------------------------


@pytest.mark.parametrize("behind", [unwritable(), MemoryError("none left"), CorruptRecordError("it changed", [])])
def test_a_partition_whose_append_cannot_be_taken_back_takes_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, behind: BaseException
) -> None:
    """Behind the last acknowledged record may lie what nobody was told of: the next append would be written over it."""
    records = built(tmp_path, 5)
    with opened(tmp_path) as storage:
        partition = storage.partition(0)
        with monkeypatch.context() as patch:
            patch.setattr(ActiveSegment, "append", raising(MemoryError("of the append")))
            patch.setattr(Partition, "_cut_to", raising(behind))
            with pytest.raises(type(behind)):
                partition.append(make_records(1, first=5))
        failed = partition.failed
        assert isinstance(failed, DiskWriteError)
        assert (failed is behind) == isinstance(behind, DiskWriteError)
        assert failed is behind or "take an append back" in str(failed)
        with pytest.raises(DiskWriteError) as refused:
            partition.append(make_records(1, first=5))
        assert refused.value is failed
        assert partition.read_range(0, 10) == records
        assert storage.reopen(0).failed is None


@pytest.mark.parametrize("left", [True, False, None])
def test_a_segment_that_was_begun_and_may_still_be_there_ends_all_writing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left: bool | None
) -> None:
    """A record appended to the segment in front of it would overlap it; where nobody can tell, that is as bad."""
    built(tmp_path, 5)
    with opened(tmp_path, replace(SMALL, segment_size_threshold=200)) as storage:
        partition = storage.partition(0)
        with monkeypatch.context() as patch:
            patch.setattr(partition_module, "create_segment", raising(unwritable()))
            answer = raising(unwritable()) if left is None else lambda _: left
            patch.setattr(file_status, "exists", answer)
            with pytest.raises(DiskWriteError):
                partition.append(make_records(1, first=5))
        assert (partition.failed is None) == (left is False)
        if left is False:
            partition.append(make_records(1, first=5))
        assert partition.next_transaction_id == (6 if left is False else 5)


@pytest.mark.parametrize(
    "error", [unwritable(), DamageError("journal gone"), DiskReadError(Path("j"), 0, EIO), FileNotFoundError("s")]
)
def test_what_the_journal_cannot_write_anew_ends_all_writing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """The old descriptor would report the failed flush at its next sync; nothing is acknowledged over it."""
    built(tmp_path, 5)
    with opened(tmp_path) as storage:
        partition = storage.partition(0)
        open_files = len(os.listdir("/proc/self/fd"))
        journal = SimpleNamespace(doubts=lambda number: number == 0, write_back=raising(error), forget=lambda _: None)
        monkeypatch.setattr(partition, "journal", journal)
        with pytest.raises(DiskWriteError) as raised:
            partition.append(make_records(1, first=5))
        assert (raised.value is error) == isinstance(error, DiskWriteError)
        assert raised.value is error or "write anew what is journaled of" in str(raised.value)
        assert raised.value is error or str(error) in str(raised.value)
        assert partition.failed is raised.value
        assert len(os.listdir("/proc/self/fd")) == open_files


def test_a_field_that_does_not_fit_refuses_the_whole_batch(tmp_path: Path) -> None:
    built(tmp_path, 5)
    before = data_path(tmp_path).read_bytes()
    with opened(tmp_path) as storage:
        first, second = make_records(2, first=5)
        with pytest.raises(InvalidRequestError, match="transaction 6: a field does not fit its place"):
            storage.partition(0).append([first, replace(second, header=2**31)])
        assert data_path(tmp_path).read_bytes() == before
        storage.partition(0).append([first])


@pytest.mark.parametrize("which", ["data", "index"])
def test_a_last_segment_that_could_not_be_examined_is_not_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, which: str
) -> None:
    """Otherwise the one in front of it would be written again, and the failed sync would count as made good."""
    built(tmp_path, 15)
    path = (data_path if which == "data" else index_path)(tmp_path, first=10)
    real = partition_recovery.view_partition
    with monkeypatch.context() as patch:
        patch.setattr(
            partition_recovery, "view_partition", lambda *given: replace(real(*given), special=(path,), segments=())
        )
        for renew in (renew_last_data, renew_last_index):
            with pytest.raises(DiskReadError, match=f"{path.name}: cannot examine: it could not be examined a moment"):
                renew(tmp_path / "0", 0)
    os.mkfifo(tmp_path / "0" / index_path(tmp_path, first=99).name)
    before = digest(tmp_path)
    renew_last_segment(tmp_path / "0", 0, data=True)
    assert digest(tmp_path) == before


def test_a_segment_without_one_of_its_files_is_removed_all_the_same(tmp_path: Path) -> None:
    built(tmp_path, 15)
    with opened(tmp_path) as storage:
        extent = storage.partition(0).segments[-1]
    for left in (data_path(tmp_path, first=10), index_path(tmp_path, first=10)):
        for path in (data_path(tmp_path, first=10), index_path(tmp_path, first=10)):
            path.unlink(missing_ok=True)
        left.write_bytes(b"x")
        remove_segment(tmp_path / "0", extent)
    assert sorted(one.name for one in (tmp_path / "0").iterdir()) == [
        index_path(tmp_path).name,
        data_path(tmp_path).name,
    ]


# --- partitions that leave -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("delete", [True, False])
@pytest.mark.parametrize("error", [DamageError("the journal is damaged"), unwritable()])
def test_what_cannot_be_written_back_keeps_a_partition_from_leaving_but_not_from_being_deleted(
    journaled: Journaled, monkeypatch: pytest.MonkeyPatch, delete: bool, error: Exception
) -> None:
    journaled.commit({0: 3})
    partition = journaled.storage.partition(0)
    partition._fail(unwritable())
    with monkeypatch.context() as patch:
        patch.setattr(journaled.journal, "write_back", raising(error))
        if delete:
            journaled.storage.unassign(0, delete_files=True)
        else:
            with pytest.raises(type(error)):
                journaled.storage.unassign(0, delete_files=False)
    assert (0 in journaled.storage.partitions) is not delete
    assert (journaled.path / "0").exists() is not delete
    assert journaled.journal._has_entries_of(0) is not delete


def test_of_a_link_that_is_being_deleted_nothing_goes_but_the_link(tmp_path: Path) -> None:
    """An earlier version moved links: what they lead to was never deleted."""
    built(tmp_path / "s", 5)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "kept").write_bytes(b"x")
    place = retired_place(tmp_path / "s", DELETING, 0)
    place.parent.mkdir(parents=True, exist_ok=True)
    place.symlink_to(tmp_path / "elsewhere")
    empty_deleted(tmp_path / "s", 0)
    assert place.is_symlink()
    with OpenControlFile.open(tmp_path / "s" / "waltz-storage.ctl") as control:
        assert finish_deletions(tmp_path / "s", control) == {}
    assert not place.is_symlink()
    assert (tmp_path / "elsewhere" / "kept").read_bytes() == b"x"


def test_links_to_disks_that_are_not_mounted_are_told_of_partitions_that_are_put_aside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert out_of_reach(tmp_path) == ()
    for number in (1, 2, 3):
        put_aside_path(tmp_path, number).mkdir(parents=True)
    put_aside_path(tmp_path, 4).symlink_to("nowhere")
    put_aside_path(tmp_path, 5).symlink_to("1")
    (put_aside_path(tmp_path, 1).parent / "no number").symlink_to("nowhere")
    (put_aside_path(tmp_path, 2) / "a.seg").symlink_to(tmp_path / "nowhere")
    (put_aside_path(tmp_path, 3) / "b.seg").write_bytes(b"")
    (put_aside_path(tmp_path, 3) / "c.seg").symlink_to("b.seg")
    assert set(out_of_reach(tmp_path)) == {put_aside_path(tmp_path, 2) / "a.seg", put_aside_path(tmp_path, 4)}
    real = os.stat

    def stat(path: Any, *given: Any, **named: Any) -> os.stat_result:
        if str(path).endswith("a.seg") and named.get("follow_symlinks", True):
            raise EIO
        return real(path, *given, **named)

    with monkeypatch.context() as patch:
        patch.setattr(os, "stat", stat)
        with pytest.raises(DiskReadError, match=r"a\.seg: cannot examine"):  # it may well be there
            out_of_reach(tmp_path)
    monkeypatch.setattr(places, "on_this_machine", lambda _: False)
    assert out_of_reach(tmp_path) == ()


@pytest.mark.parametrize(
    ("name", "is_one"),
    [
        (".waltzctl/unassigned/3", True),
        (".waltzctl/unassigned/03", False),
        (".waltzctl/unassigned/x", False),
        (".waltzctl/deleting/3", False),
        ("x/.waltzctl/unassigned/3", False),
        ("3", False),
    ],
)
def test_the_name_of_a_directory_that_is_put_aside(name: str, is_one: bool) -> None:
    assert names_put_aside(name) is is_one


def test_a_partition_that_is_not_assigned_and_cannot_be_listed_keeps_no_directory_from_opening(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_directory(tmp_path, {0: 5, 1: 5}, layout=Layout.RELEASED)
    with opened(tmp_path) as storage:
        storage.unassign(1, delete_files=False)
    with opened(tmp_path) as storage:
        assert codes(storage.findings) == ["partition-not-assigned"]
    real = directory.view_partition
    error = DiskReadError(tmp_path / "1", None, EIO, doing="list")
    monkeypatch.setattr(
        directory, "view_partition", lambda path, number: raising(error)() if number == 1 else real(path, number)
    )
    with open_storage(str(tmp_path), partitions=(0,)) as storage:
        (found,) = storage.findings
        assert (found.code, found.partition, found.message) == (Code.READ_ERROR, 1, str(error))
        assert storage.partition(0).max_transaction_id == 4


@pytest.mark.parametrize("kind", ["a FIFO", "a directory", "a link that leads nowhere"])
def test_a_control_file_that_is_no_file_is_damage_and_not_another_kind_of_directory(tmp_path: Path, kind: str) -> None:
    built(tmp_path, 5)
    path = tmp_path / "waltz-storage.ctl"
    path.unlink()
    if kind == "a FIFO":
        os.mkfifo(path)
    elif kind == "a directory":
        path.mkdir()
    else:
        path.symlink_to("nowhere")
    with pytest.raises(DamageError, match=f"it is {kind}, not a regular file") as raised:
        StorageDirectory.open(tmp_path)
    assert [one.code for one in raised.value.findings] == [Code.SPECIAL_FILE]
    assert "bring the control file back" in (raised.value.advice or "")


# --- control file, fences --------------------------------------------------------------------------------------------


def test_behind_a_failed_sync_of_the_control_file_no_mark_of_a_journal_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cleared mark would say that every record is in its segment, on a disk of which nobody knows what it holds."""
    built(tmp_path, 5)
    path = tmp_path / "waltz-storage.ctl"
    with opened(tmp_path) as storage:
        control = storage._control
        assert (control.failed, storage.control_failed, storage.partition(0).marks_failed) == (None, None, None)
        with monkeypatch.context() as patch:
            patch.setattr(os, "fdatasync", raising(EIO))
            with pytest.raises(SyncFailedError):
                control.set_journaled(True)
        assert not control.journaled
        failed = control.failed
        assert failed is storage.control_failed
        assert failed is storage.partition(0).marks_failed
        held = path.read_bytes()
        with pytest.raises(SyncFailedError) as raised:
            control.set_journaled(False)
        assert raised.value is failed
        assert path.read_bytes() == held


def test_a_damaged_fence_is_told_of_its_partition_alone(tmp_path: Path) -> None:
    built(tmp_path, 5)
    assert [*damaged_fences(tmp_path, 3)] == []
    assert stored_session(tmp_path, 3, 1) == NO_SESSION
    (tmp_path / ".waltzctl").mkdir(exist_ok=True)
    with SessionFences.open(tmp_path, 3) as fences:
        for number, session in ((0, 4), (1, 9)):
            fences.raise_to(number, session)
        assert fences.failed is None
    assert [stored_session(tmp_path, 3, number) for number in range(3)] == [4, 9, NO_SESSION]
    path = Path(fence_path(tmp_path))
    raw = bytearray(path.read_bytes())
    whole = bytes(raw)
    raw[pair_offset(1) : pair_offset(2)] = b"\xff" * (pair_offset(2) - pair_offset(1))
    path.write_bytes(raw)
    ((number, error),) = damaged_fences(tmp_path, 3)
    assert (number, str(path) in str(error)) == (1, True)
    assert stored_session(tmp_path, 3, 0) == 4
    with pytest.raises(DamageError, match="cannot be understood"):
        stored_session(tmp_path, 3, 1)
    for partitions, data in (
        (2, whole),
        (3, whole[:-1]),
        (3, b"\xff" * FENCE_HEADER.size + whole[FENCE_HEADER.size :]),
    ):
        path.write_bytes(data)
        ((nobody, _),) = damaged_fences(tmp_path, partitions)
        assert nobody is None
        with pytest.raises(DamageError):
            stored_session(tmp_path, partitions, 0)


# --- the commit journal ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("failed", [False, True])
def test_a_full_disk_keeps_a_journal_that_was_written_back_in_force(
    journaled: Journaled, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failed: bool
) -> None:
    """The next opening writes all of it back again: whatever is appended meanwhile would come undone."""
    journaled.commit({0: 3, 1: 1})
    copy = journaled.after_power_loss(tmp_path)
    if failed:
        (copy / "1").rename(copy / "elsewhere")
    full = DiskFullError(copy, None, OSError(errno.ENOSPC, "full"))
    with monkeypatch.context() as patch:
        patch.setattr(journal_recovery, "_keep", raising(full))
        if failed:
            with StorageDirectory.open(copy) as storage:
                assert storage.written_back is not None
                assert storage.written_back.failed[0] is full
                assert isinstance(storage.written_back.failed[1], DamageError)
                assert not storage.partition(0).condition.writable
        else:
            with pytest.raises(DiskFullError):
                StorageDirectory.open(copy)
    assert is_marked(copy)
    if not failed:
        assert journaled.held(copy) == journaled.acknowledged


def test_what_is_told_of_a_journal_that_nobody_reads(
    journaled: Journaled, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journaled.commit({0: 3})
    copy = journaled.after_power_loss(tmp_path)
    state, journal = Path(state_path(copy)), tmp_path / "journal-after"
    found = look_at_journal(copy)
    assert (found.path, found.fault) == (journal, None)
    with pytest.raises(RefusedError, match=f"may stand in the commit journal {journal} and not in their") as raised:
        refuse_marked(copy)
    assert (raised.value.advice or "").startswith("start the node, or stop it where it runs")
    known = journal_state.read_state(copy)
    assert known is not None
    for kept, said in (((2,), "those of partition 2 could"), ((0, 2), "those of partitions 0, 2 could")):
        write_state(copy, replace(known, partitions=kept))
        assert (look_at_journal(copy).fault or "").startswith(said)
    write_state(copy, known)
    journal.rename(tmp_path / "moved")
    assert look_at_journal(copy).fault == "that file is not there"
    with pytest.raises(RefusedError) as raised:
        refuse_marked(copy)
    assert (raised.value.advice or "").startswith("that file is not there: bring back what is missing, then start")
    with monkeypatch.context() as patch:
        patch.setattr(Path, "stat", raising(PermissionError(errno.EACCES, "no")))
        assert look_at_journal(copy).fault is None, "without permission nobody calls it missing"
    with monkeypatch.context() as patch:
        patch.setattr(places, "on_this_machine", lambda _: False)
        assert look_at_journal(copy).fault is None, "its path is one of another machine"
    whole = state.read_bytes()
    state.write_bytes(whole.replace(b'"partitions": null', b'"partitions": ["1"]'))
    found = look_at_journal(copy)
    assert (found.state, "the partitions are no numbers" in (found.fault or "")) == (None, True)
    state.write_bytes(whole.replace(b'"version": 1', b'"version": 2'))
    assert look_at_journal(copy).mend != journal_state.BRING_BACK
    state.unlink()
    found = look_at_journal(copy)
    assert (found.path, found.fault) == (None, f"{state}, which names it, is missing")
    with pytest.raises(RefusedError, match="may stand in a commit journal and not"):
        refuse_marked(copy)
    (copy / "waltz-storage.ctl").unlink()
    refuse_marked(copy)
    os.mkfifo(copy / "waltz-storage.ctl")
    refuse_marked(copy)


@pytest.mark.parametrize("size", [4 * commit_journal.RESERVE - commit_journal.BLOCK, 4 * commit_journal.RESERVE + 1])
def test_an_area_holds_its_reserve_in_whole_blocks(tmp_path: Path, size: int) -> None:
    built(tmp_path / "s", 5)
    with opened(tmp_path / "s") as storage, pytest.raises(ValueError, match=f"an area of {size} bytes"):
        storage.begin_journal(tmp_path / "j", log=LOG, area_size=size, threaded=False)
    assert not (tmp_path / "j").exists()


def test_a_journal_whose_mark_could_not_be_synced_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mark may be on the disk all the same: without the file nobody could open the directory."""
    built(tmp_path / "s", 5)
    with opened(tmp_path / "s") as storage:
        open_files = len(os.listdir("/proc/self/fd"))
        with monkeypatch.context() as patch:
            patch.setattr(OpenControlFile, "set_journaled", raising(unwritable()))
            with pytest.raises(DiskWriteError):
                storage.begin_journal(tmp_path / "j", log=LOG, threaded=False, area_size=4 * commit_journal.RESERVE)
        assert (tmp_path / "j").exists()
        assert Path(state_path(tmp_path / "s")).exists()
        assert len(os.listdir("/proc/self/fd")) == open_files
        assert storage.journal is None


def test_of_two_errors_of_a_journal_the_first_one_is_told(journaled: Journaled) -> None:
    first = unwritable()
    with journaled.journal._changed:
        journaled.journal._stop_journaling(first)
        journaled.journal._stop_journaling(unwritable())
    assert journaled.journal.fault is first
    assert not journaled.commit({0: 1})
    assert journaled.held() == journaled.acknowledged


@pytest.mark.parametrize("fault", [True, False])
def test_an_area_that_is_begun_while_the_journal_ends_takes_nothing(
    journaled: Journaled, monkeypatch: pytest.MonkeyPatch, fault: bool
) -> None:
    """What is in it would be written back over the segments of whoever goes on without a journal."""
    journal = journaled.journal
    while journal._has_room(4 * commit_journal.BLOCK + commit_journal.RESERVE):
        assert journaled.commit({0: 1})
    current = journal._current
    encode = commit_journal.encode_area_header

    def meanwhile(head: Any) -> bytes:
        if fault:
            journal._fault = unwritable()
        else:
            journal._retired = True
        return encode(head)

    with monkeypatch.context() as patch:
        patch.setattr(commit_journal, "encode_area_header", meanwhile)
        with journal._changed:
            assert not journal._make_room(journal._area_size - commit_journal.BLOCK)
    assert journal._current == current
    journal._fault, journal._retired = None, False


def test_an_area_that_cannot_be_begun_leaves_the_segments_to_be_flushed(
    journaled: Journaled, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = journaled.journal
    while journal._has_room(4 * commit_journal.BLOCK + commit_journal.RESERVE):
        assert journaled.commit({0: 1})
    current = journal._current
    with monkeypatch.context() as patch:
        failing(patch, "pwrite", journaled.file, times=1)
        with journal._changed:
            assert not journal._make_room(journal._area_size - commit_journal.BLOCK)
    assert (journal._current, isinstance(journal.fault, DiskWriteError)) == (current, True)
    assert not journaled.commit({0: 1}), "recovery would stop in front of it"
    assert journaled.held() == journaled.acknowledged


def test_what_was_forgotten_while_it_was_flushed_is_not_written_anew(
    journaled: Journaled, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The partition was truncated meanwhile, say: its records would come back."""
    assert journaled.commit({0: 2})
    journal = journaled.journal
    area = journal._areas[journal._current]
    ((path, partition),) = area.unflushed.items()
    segment = journal._segments[path]
    journaled.truncate(0, 3)
    assert path not in area.unflushed
    journal._sync_failed.add(0)
    monkeypatch.setattr(journal, "_rewrite_segments", raising(AssertionError("it was forgotten")))
    journal._flush_in_background(area, area.epoch, path, partition)
    journal._segments[path] = segment
    journal._flush_in_background(area, area.epoch, path, partition)
    del journal._segments[path]
    journal._sync_failed.clear()
    assert journal.fault is None
    assert journaled.held() == journaled.acknowledged


def test_a_journal_that_cannot_be_looked_at_is_not_one_s_own(journaled: Journaled, tmp_path: Path) -> None:
    """It is not removed: the directory may be a copy, whose original needs it."""

    def is_own(storage: Path, journal: Path) -> bool:
        return journal_recovery._is_own(storage, JournalState(journal, uuid.uuid4()))

    assert is_own(journaled.path, journaled.path / "inside")
    (tmp_path / "zeros").write_bytes(bytes(commit_journal.BLOCK))
    for name in ("none", "zeros", "."):
        assert not is_own(journaled.path, tmp_path / name)
    journaled.commit({0: 1})
    copy = journaled.after_power_loss(tmp_path)
    state = look_at_journal(copy).state
    assert state is not None
    journal = replace(state, path=tmp_path / "journal-after")
    assert not journal_recovery._is_own(copy, journal)
    assert journal_recovery._is_own(journaled.path, journal)
    assert not is_own(journaled.path, journal.path), "another one's, in its place"


# --- reading ---------------------------------------------------------------------------------------------------------


def test_a_data_file_that_is_shorter_than_its_index_says_gives_out_nothing_wrong(tmp_path: Path) -> None:
    records = built(tmp_path, 10)
    with opened(tmp_path) as storage:
        partition = storage.partition(0)
        with data_path(tmp_path).open("r+b") as file:
            file.truncate(data_path(tmp_path).stat().st_size - 1)
        found = partition.read_wire(0, 10)
        assert found.count == 9
        assert partition.read_range(0, 10) == records[:9]
        with pytest.raises(CorruptRecordError):
            partition.read_wire(9, 1)


def test_a_segment_without_an_index_or_records_is_not_read_at_once(tmp_path: Path) -> None:
    built(tmp_path, 15)
    with opened(tmp_path) as storage:
        partition = storage.partition(0)
        first = partition.segments[0]
        for extent, there in (
            (first, True),
            (replace(first, index_usable=False), False),
            (replace(first, runs=()), False),
        ):
            reader = SegmentReader(extent, max_data_length=100, storage=None)
            assert (reader.open_segment(extent) is not None) is there
            reader.close()
        log: PartitionLog = partition._log
        assert log._open_segment(None) is None


@pytest.mark.parametrize("gone", [FileNotFoundError("x"), DiskReadError(Path("x"), 0, EIO)])
def test_a_witness_that_cannot_be_read_speaks_neither_for_nor_against_a_segment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gone: Exception
) -> None:
    build_directory(tmp_path, {0: 5, 1: 5})
    (segment,) = belonging._segments(tmp_path / "1", 1)
    with belonging.open_source(segment.data_path) as source:
        head = list(belonging._head(source, 99))
    assert len(head) > 2
    record = head[2]
    assert belonging._stands_in(tmp_path / "1", 1, record)
    assert not belonging._stands_in(tmp_path / "0", 0, record)
    shifted = [replace(one, offset=one.offset + 1) for one in head]
    assert belonging._not_indexed(segment, 1, shifted)
    assert not belonging._not_indexed(segment, 1, head)
    monkeypatch.setattr(belonging, "read_segment_header", raising(gone))
    assert not belonging._stands_in(tmp_path / "1", 1, record)
    assert not belonging._not_indexed(segment, 1, shifted)


# --- new directories -------------------------------------------------------------------------------------------------


def test_what_is_whole_of_a_cluster_that_could_not_be_made_is_named_with_its_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [tmp_path / name for name in "abc"]
    real, made = creation.create_control_file, list[Path]()

    def control_file(path: Path, control: Any) -> None:
        if len(made) == 2:
            raise unwritable(path)
        real(path, control)
        made.append(path)

    monkeypatch.setattr(creation, "create_control_file", control_file)
    with pytest.raises(DiskError) as raised:
        create_cluster(paths, num_partitions=1, cluster_key=KEY)
    assert [path.name for path in paths if path.exists()] == ["a", "b"]
    both = f"{paths[0]}, {paths[1]}"
    assert raised.value.advice == f"made and kept: {both}; the same with --key {KEY} makes the others"


def test_a_directory_that_another_run_has_taken_is_not_taken_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was made here, and the other run found it before it was locked."""
    real = creation.lock_directory

    def slow(path: Path, held: Any) -> int:
        (path / "0").mkdir()
        return real(path, held)

    monkeypatch.setattr(creation, "lock_directory", slow)
    with pytest.raises(RefusedError, match="not empty, 0 is there"):
        create_cluster([tmp_path / "a"], num_partitions=1)
    assert (tmp_path / "a" / "0").exists()


def test_a_partition_s_directory_that_somebody_else_made_is_not_taken_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = creation.check_new

    def raced(path: Path, **named: Any) -> None:
        real(path, **named)
        if path.is_dir():
            (path / "1").mkdir()
            (path / "1" / "theirs").write_bytes(b"x")

    monkeypatch.setattr(creation, "check_new", raced)
    with pytest.raises(DiskError, match="1: cannot make directory: File exists"):
        create_cluster([tmp_path / "a"], num_partitions=2)
    assert (tmp_path / "a" / "1" / "theirs").read_bytes() == b"x"
    assert not (tmp_path / "a" / "0").exists()
