"""The log on a disk: which files count, torn ends and damage, recovery modes, checkpoints, a log that fails."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.descriptors import let_syncs_fail, open_descriptors
from tests.pages.stores import crash, data, delete, disk_full_after, no_sync, put, ref
from waltzctl.engine.catalogue import Code
from waltzctl.engine.durable import disk, quarantine
from waltzctl.engine.durable.disk import TEMPORARY_SUFFIX
from waltzctl.engine.durable.quarantine import list_entries
from waltzctl.engine.errors import (
    DamageError,
    DiskFullError,
    InvalidRequestError,
    NotWaltzError,
    PageConflictError,
    PageStoreFailedError,
    SyncFailedError,
)
from waltzctl.engine.pages.inspection import verify_store
from waltzctl.engine.pages.page_batch import WriteBatch
from waltzctl.engine.pages.page_gc import collect_garbage
from waltzctl.engine.pages.page_options import PageOptions
from waltzctl.engine.pages.page_storage import PageStorage
from waltzctl.engine.pages.recovery_mode import RecoveryMode
from waltzctl.engine.pages.torn_tail import STORE
from waltzctl.engine.pages.wal_reader import edits_of, read_wal, wal_findings
from waltzctl.formats.pages.blocks import FRAGMENT_HEADER
from waltzctl.formats.pages.write_batch import EditType

SMALL_LOGS = PageOptions(log_size=300)
STRICT = PageOptions(recovery=RecoveryMode.ABSOLUTE_CONSISTENCY)


def names(path: Path) -> list[str]:
    return sorted(os.listdir(path / "wal"))


def codes(path: Path) -> list[str]:
    return [str(one.code) for one in wal_findings(read_wal(path))]


def flip(path: Path, offset: int, bit: int = 0) -> None:
    raw = bytearray(path.read_bytes())
    raw[offset] ^= 1 << bit
    path.write_bytes(raw)


def written(path: Path, pages: int = 3, *, closed: bool = False) -> Path:
    store = PageStorage.create(path)
    for page in range(1, pages + 1):
        put(store, page, b"%d" % page)
    if closed:
        store.close()
    else:
        crash(store)
    return path / "wal" / "log_1_0"


def sequences(path: Path, mode: RecoveryMode) -> list[int]:
    return [edit.version.sequence for edit in edits_of(read_wal(path), mode)]


def test_a_directory_without_a_log_is_no_store(tmp_path: Path) -> None:
    for act in (lambda: PageStorage.open(tmp_path), lambda: read_wal(tmp_path)):
        with pytest.raises(NotWaltzError, match="no page store"):
            act()
    (tmp_path / "wal").mkdir()
    with pytest.raises(NotWaltzError, match="no page store"):
        PageStorage.open(tmp_path)
    (tmp_path / "blob").mkdir()
    PageStorage.open(tmp_path).close()


def test_a_store_is_made_in_an_empty_directory_only(tmp_path: Path) -> None:
    (tmp_path / "s").mkdir()
    PageStorage.create(tmp_path / "s").close()
    with pytest.raises(InvalidRequestError, match="not empty, wal is there"):
        PageStorage.create(tmp_path / "s")
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / "else").write_bytes(b"")
    with pytest.raises(InvalidRequestError, match="not empty, else is there"):
        PageStorage.create(tmp_path / "t")
    (tmp_path / "link").symlink_to("nowhere")
    for path in (tmp_path / "t" / "else", tmp_path / "link"):
        with pytest.raises(InvalidRequestError, match="exists and is not a directory"):
            PageStorage.create(path)


def test_each_start_that_writes_takes_a_new_number(tmp_path: Path) -> None:
    store = PageStorage.create(tmp_path / "s")
    for number in range(1, 6):
        assert names(tmp_path / "s")[-1] == f"log_{number}_0"
        put(store, 1, b"%d" % number)
        store.close()
        assert len(names(tmp_path / "s")) == number
        store = PageStorage.open(tmp_path / "s")
    store.close()
    assert codes(tmp_path / "s") == []


@pytest.mark.parametrize("twice", [False, True])
@pytest.mark.parametrize("end", [PageStorage.close, crash], ids=["closed", "killed"])
@pytest.mark.parametrize("checkpoint", [False, True])
def test_starts_that_write_nothing_leave_one_empty_log(
    tmp_path: Path, end: Callable[[PageStorage], object], twice: bool, checkpoint: bool
) -> None:
    """Each left one of its own until garbage was collected, and every start read all of them."""
    options = PageOptions(records_twice=twice)
    store = PageStorage.create(tmp_path / "s", options)
    put(store, 1, b"one")
    if checkpoint:
        collect_garbage(store, checkpoint=True)
    store.close()
    for _ in range(3):
        store = PageStorage.open(tmp_path / "s", options)
        assert (data(store, 1), store.wal.num_files) == (b"one", 2)
        end(store)
        assert names(tmp_path / "s") == ["log_1_1" if checkpoint else "log_1_0", "log_2_0"]
        assert (tmp_path / "s" / "wal" / "log_2_0").stat().st_size == 0
        assert codes(tmp_path / "s") == []
    store = PageStorage.open(tmp_path / "s", options)
    put(store, 2, b"two")
    end(store)
    assert len(names(tmp_path / "s")) == 2
    with PageStorage.open(tmp_path / "s", STRICT) as after:
        assert [data(after, page) for page in (1, 2)] == [b"one", b"two"]
        assert collect_garbage(after, checkpoint=True).checkpoint_size
    assert names(tmp_path / "s") == ["log_3_1", "log_4_0"]


def test_a_log_that_a_power_failure_emptied_is_closed_and_not_gone_on_with(tmp_path: Path) -> None:
    """Its length is that of a record that was lost: what it is of is not known, and the next record gets a number of its own."""
    written(tmp_path / "s", 1, closed=True)
    store = PageStorage.open(tmp_path / "s")
    crash(store)
    (tmp_path / "s" / "wal" / "log_2_0").write_bytes(bytes(300))
    with PageStorage.open(tmp_path / "s") as again:
        put(again, 2, b"two")
    assert names(tmp_path / "s") == ["log_1_0", "log_2_0", "log_3_0"]
    assert codes(tmp_path / "s") == []


def test_restore_over_many_restarts_and_round_trip_of_each_edit(tmp_path: Path) -> None:
    store = PageStorage.create(tmp_path / "s", SMALL_LOGS)
    for number in range(12):
        batch = WriteBatch(5).put_page(number, [b"a" * number, b"b"], tag=number).put_external(100 + number)
        store.write(batch.put_ref(200 + number, number))
        if number % 3 == 0:
            store.write(WriteBatch(5).delete(number))
        if number % 2:
            store.close()
            store = PageStorage.open(tmp_path / "s", SMALL_LOGS)
    store.close()
    with PageStorage.open(tmp_path / "s") as again:
        for number in range(12):
            page = again.read(200 + number, namespace=5)
            assert (page.tag, [bytes(part) for part in page.fields]) == (number, [b"a" * number, b"b"])
            assert (again.get_entry(number, namespace=5) is None) == (number % 3 == 0)
            entry = again.get_entry(100 + number, namespace=5)
            assert entry is not None
            assert entry.is_external
        assert again.max_id(namespace=5) == 211
        assert again.directory.sequence == 16


def test_many_edits_roll_and_dump(tmp_path: Path) -> None:
    store = PageStorage.create(tmp_path / "s", PageOptions(log_size=300, full_gc_rate=0))
    for number in range(40):
        put(store, number % 7, b"%d" % number)
    assert store.wal.num_files == len(names(tmp_path / "s")) > 4
    assert collect_garbage(store).checkpoint_size > 0
    assert store.wal.num_files == 2
    last = int(names(tmp_path / "s")[-1].split("_")[1])
    assert names(tmp_path / "s") == sorted([f"log_{last - 1}_1", f"log_{last}_0"])
    crash(store)
    kinds = [edit.type for edit in edits_of(read_wal(tmp_path / "s"), RecoveryMode.ABSOLUTE_CONSISTENCY)]
    assert sorted(kinds) == [EditType.VAR_ENTRY] * 7 + [EditType.VAR_HIGHEST]
    with PageStorage.open(tmp_path / "s") as again:
        assert [data(again, number % 7) for number in range(33, 40)] == [b"%d" % number for number in range(33, 40)]
        assert again.directory.sequence == 40


def test_checkpoint_choice_with_stale_older_files(tmp_path: Path) -> None:
    """What a checkpoint holds is left aside, and removed by who opens the store."""
    store = PageStorage.create(tmp_path / "s")
    put(store, 1, b"old")
    old = {name: (tmp_path / "s" / "wal" / name).read_bytes() for name in names(tmp_path / "s")}
    collect_garbage(store, checkpoint=True)
    put(store, 1, b"new")
    old |= {"log_1_1": (tmp_path / "s" / "wal" / "log_1_1").read_bytes()}
    collect_garbage(store, checkpoint=True)
    store.close()
    current = names(tmp_path / "s")
    assert current == ["log_2_1", "log_3_0"]
    for name, content in old.items():
        (tmp_path / "s" / "wal" / name).write_bytes(content)
    (tmp_path / "s" / "wal" / f"log_9_1{TEMPORARY_SUFFIX}").write_bytes(b"half")
    assert codes(tmp_path / "s") == []
    assert len(read_wal(tmp_path / "s").stale) == 2
    with PageStorage.open(tmp_path / "s") as again:
        assert data(again, 1) == b"new"
        assert names(tmp_path / "s") == ["log_2_1", "log_3_0", "log_4_0"]


def test_a_checkpoint_number_is_never_used_twice(tmp_path: Path) -> None:
    store = PageStorage.create(tmp_path / "s", PageOptions(full_gc_rate=0))
    seen = []
    for _ in range(3):
        put(store, 1, b"x")
        collect_garbage(store, checkpoint=True)
        seen += [name for name in names(tmp_path / "s") if name.endswith("_1")]
    assert collect_garbage(store, checkpoint=True).checkpoint_size == 0  # nothing was written since
    store.close()
    with PageStorage.open(tmp_path / "s") as again:
        assert collect_garbage(again, checkpoint=True).checkpoint_size == 0
        put(again, 1, b"y")
        collect_garbage(again, checkpoint=True)
        seen += [name for name in names(tmp_path / "s") if name.endswith("_1")]
    assert seen == ["log_1_1", "log_2_1", "log_3_1", "log_4_1"]


@pytest.mark.turns(10)
def test_a_torn_tail_at_every_byte_is_cut_and_nothing_else_is_lost(tmp_path: Path) -> None:
    log = written(tmp_path / "s", 3)
    whole = log.read_bytes()
    ends = [record.end for record in read_wal(tmp_path / "s").files[0].records]
    for size in range(ends[1] + 1, ends[2]):
        log.write_bytes(whole[:size])
        assert codes(tmp_path / "s") == ["log-torn-tail"]
        with pytest.raises(DamageError):
            PageStorage.open(tmp_path / "s", STRICT)
        store = PageStorage.open(tmp_path / "s")
        assert [data(store, page) for page in (1, 2, 3)] == [b"1", b"2", None]
        put(store, 4, b"4")
        crash(store)
        assert codes(tmp_path / "s") == []
        (entry,) = list_entries(tmp_path / "s", STORE)
        assert (entry.command, [(one.path, one.before.size) for one in entry.files if one.before]) == (
            "open", [("wal/log_1_0", size)],
        )  # fmt: skip
        assert whole[ends[1] : size] in [kept.read_bytes() for kept in entry.path.glob("range-*")]
        shutil.rmtree(tmp_path / "s" / ".waltzctl")
        for name in names(tmp_path / "s")[1:]:
            (tmp_path / "s" / "wal" / name).unlink()


def test_any_bit_of_a_middle_record_is_damage_and_refused(tmp_path: Path) -> None:
    """The released program drops the rest of the file without a word, also for a wrong length or log number."""
    log = written(tmp_path / "s", 3)
    whole = log.read_bytes()
    record = read_wal(tmp_path / "s").files[0].records[1]
    for offset in range(record.offset, record.end, 3):
        flip(log, offset, offset % 8)
        assert codes(tmp_path / "s") == ["log-record-checksum"], offset
        with pytest.raises(DamageError, match="salvage") as caught:
            PageStorage.open(tmp_path / "s")
        assert caught.value.findings[0].offset == record.offset
        log.write_bytes(whole)
    assert names(tmp_path / "s") == ["log_1_0"]  # nothing was changed


def test_the_last_record_of_a_closed_log_is_damage_when_it_is_damaged(tmp_path: Path) -> None:
    log = written(tmp_path / "s", 2, closed=True)
    record = read_wal(tmp_path / "s").files[0].records[-1]
    flip(log, record.end - 1)
    assert codes(tmp_path / "s") == ["log-record-checksum"]


def test_recovery_modes_read_what_they_say(tmp_path: Path) -> None:
    store = PageStorage.create(tmp_path / "s", SMALL_LOGS)
    for page in range(8):
        put(store, page, b"x")
    crash(store)
    first, second = sorted((tmp_path / "s" / "wal").iterdir())[:2]
    assert sequences(tmp_path / "s", RecoveryMode.ABSOLUTE_CONSISTENCY) == list(range(1, 9))
    record = read_wal(tmp_path / "s").files[0].records[1]
    flip(first, record.offset + FRAGMENT_HEADER.size)
    for mode in (RecoveryMode.TOLERATE_TORN_TAIL, RecoveryMode.ABSOLUTE_CONSISTENCY):
        with pytest.raises(DamageError):
            sequences(tmp_path / "s", mode)
    assert sequences(tmp_path / "s", RecoveryMode.POINT_IN_TIME) == [1]
    assert sequences(tmp_path / "s", RecoveryMode.SKIP_DAMAGED) == [1, 3, 4, 5, 6, 7, 8]
    flip(first, record.offset + FRAGMENT_HEADER.size)
    second.unlink()
    assert codes(tmp_path / "s") == ["log-missing"]
    kept = sequences(tmp_path / "s", RecoveryMode.SKIP_DAMAGED)
    before = sequences(tmp_path / "s", RecoveryMode.POINT_IN_TIME)
    assert before == kept[: len(before)] == list(range(1, len(before) + 1))
    assert len(before) < len(kept) < 8


@pytest.mark.parametrize("mode", [RecoveryMode.POINT_IN_TIME, RecoveryMode.SKIP_DAMAGED])
def test_modes_that_leave_something_out_do_not_write(tmp_path: Path, mode: RecoveryMode) -> None:
    written(tmp_path / "s")
    with pytest.raises(InvalidRequestError, match="salvage"):
        PageStorage.open(tmp_path / "s", PageOptions(recovery=mode))


def test_a_log_that_was_cut_at_the_end_of_a_record_is_found(tmp_path: Path) -> None:
    """Where a later log is there: each closed one ends with an empty record."""
    log = written(tmp_path / "s", 2, closed=True)
    PageStorage.open(tmp_path / "s").close()
    log.write_bytes(log.read_bytes()[: read_wal(tmp_path / "s").files[0].records[0].end])
    (finding,) = wal_findings(read_wal(tmp_path / "s"))
    assert (finding.code, "its end was cut off" in finding.message) == (Code.LOG_RECORD_CHECKSUM, True)


def test_of_a_last_log_that_is_gone_only_its_data_tells(tmp_path: Path) -> None:
    """As docs/pages.md says: the one before it is closed, as it would be had the store been closed there."""
    store = PageStorage.create(tmp_path / "s")
    put(store, 1, b"kept")
    store.wal.roll()
    put(store, 2, b"lost")
    store.close()
    (tmp_path / "s" / "wal" / "log_2_0").unlink()
    assert [str(one.code) for one in verify_store(tmp_path / "s").findings] == ["space-leaked"]
    with PageStorage.open(tmp_path / "s") as again:
        assert (data(again, 1), data(again, 2)) == (b"kept", None)


def test_a_checkpoint_that_was_cut_is_found(tmp_path: Path) -> None:
    store = PageStorage.create(tmp_path / "s")
    put(store, 1, b"x")
    collect_garbage(store, checkpoint=True)
    store.close()
    path = tmp_path / "s" / "wal" / "log_1_1"
    whole = path.read_bytes()
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        assert "log-record-checksum" in codes(tmp_path / "s"), size
    path.unlink()
    assert codes(tmp_path / "s") == ["log-missing"]


def test_random_damage_never_goes_unnoticed(tmp_path: Path) -> None:
    """Wherever a bit is flipped: it is said, or it was in the empty end of a block."""
    rng = random.Random(5)
    log = written(tmp_path / "s", 4, closed=True)
    whole = log.read_bytes()
    for _ in range(100):
        flip(log, rng.randrange(len(whole)), rng.randrange(8))
        assert codes(tmp_path / "s")
        log.write_bytes(whole)


def test_a_full_disk_at_the_log_stops_writing_and_not_reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = PageStorage.create(tmp_path / "s")
    put(store, 1, b"one")
    disk_full_after(monkeypatch, 20)  # the page fits, the record does not
    with pytest.raises(DiskFullError):
        put(store, 2, b"two")
    monkeypatch.undo()
    with pytest.raises(PageStoreFailedError, match="open the page store again"):
        put(store, 3, b"three")
    with pytest.raises(PageStoreFailedError):
        collect_garbage(store)
    assert (data(store, 1), data(store, 2)) == (b"one", None)
    store.close()
    assert codes(tmp_path / "s") == ["log-torn-tail"]
    with PageStorage.open(tmp_path / "s") as again:
        assert (data(again, 1), data(again, 2)) == (b"one", None)
        put(again, 2, b"two")


def test_a_log_that_cannot_be_begun_leaves_no_file_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store keeps the error, and so did the error the file."""
    store = PageStorage.create(tmp_path / "s")
    put(store, 1, b"one")
    with monkeypatch.context() as patch:
        let_syncs_fail(patch, "/wal")
        patch.setattr(os, "fdatasync", lambda _: None)
        with pytest.raises(SyncFailedError) as kept:
            collect_garbage(store, checkpoint=True)
    store.close()
    assert "sync directory" in str(kept.value)
    assert not [path for path in open_descriptors().values() if str(tmp_path) in path]


def test_a_failed_flush_of_a_blob_file_stops_writing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = PageStorage.create(tmp_path / "s", PageOptions(flushed_with_record=0))
    put(store, 1, b"one")
    no_sync(monkeypatch)
    with pytest.raises(SyncFailedError):
        put(store, 2, b"two")
    monkeypatch.undo()
    with pytest.raises(PageStoreFailedError):
        delete(store, 1)
    store.close()
    with PageStorage.open(tmp_path / "s") as again:
        assert data(again, 1) == b"one"
        assert again.directory.sequence == 1


@pytest.mark.parametrize("limit", [0, 100])
def test_a_log_whose_flush_failed_is_not_closed_behind_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    """A record behind would tell that it became durable."""
    store = PageStorage.create(tmp_path / "s", PageOptions(flushed_with_record=limit))
    put(store, 1, b"one")
    failing = WriteBatch().put_ref(2, 1) if not limit else WriteBatch().put_page(2, b"two")
    no_sync(monkeypatch)
    with pytest.raises(SyncFailedError):
        store.write(failing)
    monkeypatch.undo()
    store.close()
    last = read_wal(tmp_path / "s").last
    assert last is not None
    assert (last.closed, len(last.records)) == (False, 2)


def test_a_refused_batch_leaves_nothing_in_the_log(tmp_path: Path) -> None:
    """In the released program it stays there, and the next start fails."""
    log = written(tmp_path / "s", 1)
    store = PageStorage.open(tmp_path / "s")
    ref(store, 9, 1)
    size, room = store.wal.written, store.blobs.stats.status()
    for batch in (
        WriteBatch().put_page(2, b"fine").put_page(1, b"refused"),
        WriteBatch().put_page(9, b"refused"),
        WriteBatch().put_ref(5, 77),
    ):
        with pytest.raises(PageConflictError):
            store.write(batch)
        assert (store.wal.written, [blob.valid for blob in store.blobs.stats.status()]) == (
            size,
            [one.valid for one in room],
        )
    assert put(store, 3, b"later") == 3
    crash(store)
    assert log.exists()
    with PageStorage.open(tmp_path / "s") as again:
        assert [data(again, page) for page in (1, 2, 3, 9)] == [b"1", None, b"later", b"1"]


def test_damage_and_a_torn_tail_are_damage(tmp_path: Path) -> None:
    log = written(tmp_path / "s", 3)
    record = read_wal(tmp_path / "s").files[0].records[1]
    flip(log, record.offset + 20)
    with log.open("ab") as file:
        file.write(b"torn")
    assert codes(tmp_path / "s") == ["log-record-checksum"] * 2
    with pytest.raises(DamageError):
        PageStorage.open(tmp_path / "s")


def test_nothing_is_written_behind_a_write_that_failed_and_its_room_stays_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log may have the batch: its room is another page's only when the log says so."""
    store = PageStorage.create(tmp_path / "s")
    disk_full_after(monkeypatch, 100 + 20)
    with pytest.raises(DiskFullError):
        put(store, 1, b"x" * 100)
    monkeypatch.undo()
    assert [blob.valid for blob in store.blobs.stats.status()] == [100]
    with pytest.raises(PageStoreFailedError, match="what is in it is not known"):
        store.wal.append(b"behind it")
    with pytest.raises(PageStoreFailedError):
        store.wal.roll()
    with pytest.raises(ValueError, match="closes a log"):
        store.wal.append(b"")
    store.close()


def test_a_cut_that_was_interrupted_is_taken_back_and_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = written(tmp_path / "s", 2)
    with log.open("ab") as file:
        file.write(b"torn")

    def dying(*_: object) -> None:
        raise SystemExit

    monkeypatch.setattr(quarantine, "carry_out", dying)
    with pytest.raises(SystemExit):
        PageStorage.open(tmp_path / "s")
    monkeypatch.undo()
    assert [str(one.state) for one in list_entries(tmp_path / "s", STORE)] == ["prepared"]
    with PageStorage.open(tmp_path / "s") as store:
        assert [data(store, page) for page in (1, 2)] == [b"1", b"2"]
    assert [str(one.state) for one in list_entries(tmp_path / "s", STORE)] == ["rolled-back", "applied"]


def test_of_directories_that_were_open_before_nothing_is_kept(tmp_path: Path) -> None:
    """A process that opens one after the other kept the names in the quarantine of each, and its lock."""
    for number in range(3):
        store = tmp_path / f"{number}"
        written(store, 1)
        for _ in range(2):
            with (store / "wal" / names(store)[-1]).open("ab") as file:
                file.write(b"torn")
            PageStorage.open(store).close()
        assert len(list_entries(store, STORE)) == 2
    assert [path.parent.parent.name for path in quarantine._KNOWN] == ["2"]


@pytest.mark.parametrize("rolled", [False, True])
@pytest.mark.parametrize("twice", [False, True])
def test_an_empty_record_whose_flush_failed_is_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, twice: bool, rolled: bool
) -> None:
    """A system takes for written what it could not flush: without that record the store counts as damaged after a power loss."""
    place = tmp_path / "s"
    store = PageStorage.create(place, PageOptions(records_twice=twice))
    put(store, 1, b"one" * 300)
    log = place / "wal" / names(place)[-1]
    durable = log.read_bytes()
    with monkeypatch.context() as patch:
        no_sync(patch)
        with pytest.raises(SyncFailedError):
            store.wal.roll() if rolled else store.close()
    crash(store)
    assert read_wal(place).files[-1].closed
    written: list[disk.Change] = []
    monkeypatch.setattr(disk, "observer", written.append)
    with PageStorage.open(place) as again:
        put(again, 2, b"two")
    monkeypatch.undo()
    lost = bytearray(durable)
    for one in written:
        if one.path == log and one.kind == "write":
            lost[one.offset : one.offset + len(one.data)] = one.data
        elif one.path == log and one.kind == "truncate":
            del lost[one.size :]
    log.write_bytes(lost)
    with PageStorage.open(place) as after:
        assert (data(after, 1), data(after, 2)) == (b"one" * 300, b"two")
