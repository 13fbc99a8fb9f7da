"""A log whose records are there twice: any byte of it may be damaged, and nothing is lost."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest

from tests.pages.stores import crash, data, delete, put, ref
from waltzctl.engine.durable.quarantine import list_entries
from waltzctl.engine.errors import DamageError, SyncFailedError
from waltzctl.engine.pages.inspection import dump_log, verify_store, view_store
from waltzctl.engine.pages.page_gc import collect_garbage
from waltzctl.engine.pages.page_options import PageOptions
from waltzctl.engine.pages.page_recovery import apply_recovery, plan_recovery
from waltzctl.engine.pages.page_salvage import salvage_store
from waltzctl.engine.pages.page_storage import PageStorage
from waltzctl.engine.pages.recovery_mode import RecoveryMode
from waltzctl.engine.pages.torn_tail import STORE
from waltzctl.engine.pages.wal_reader import LogFile, read_wal

TWICE = PageOptions(records_twice=True, max_log_files=100)
SKIP, POINT = RecoveryMode.SKIP_DAMAGED, RecoveryMode.POINT_IN_TIME


def codes(path: Path) -> list[str]:
    return [str(one.code) for one in verify_store(path).findings]


def shown(path: Path) -> dict[str, object]:
    """Every page, with where it leads to and lies."""
    view = view_store(path)
    return {str(page): view.directory.locate(page) for page in view.directory.page_ids()}


def logs(path: Path) -> tuple[LogFile, ...]:
    return read_wal(path).files


def every_kind(path: Path) -> Path:
    """A store with each kind of edit in its logs, none of which a checkpoint has."""
    with PageStorage.create(path, TWICE) as store:
        for page in range(1, 8):
            put(store, page, bytes([page]) * 3000)
        ref(store, 20, 7)
        delete(store, 7)
        put(store, 1, b"again")
    with PageStorage.open(path, TWICE) as store:
        delete(store, 2, 3, 4, 5)
        for _ in range(2):
            collect_garbage(store)
        assert store.status().data_moved > 0
    assert not any(file.name.is_checkpoint for file in logs(path))
    return path


def test_each_record_is_there_twice_and_says_what_it_says_once(tmp_path: Path) -> None:
    with PageStorage.create(tmp_path / "s", TWICE) as store:
        put(store, 1, b"one")
        put(store, 1, b"one")
    (file,) = logs(tmp_path / "s")
    assert [record.is_copy for record in file.records] == [False, True, False, True]
    assert [one.edit.version.sequence for one in dump_log(view_store(tmp_path / "s"))] == [1, 2]
    with PageStorage.create(tmp_path / "plain") as store:
        put(store, 1, b"one")
        put(store, 1, b"one")
    assert not any(record.is_copy for record in logs(tmp_path / "plain")[0].records)


@pytest.mark.turns(8)
def test_any_byte_of_a_log_costs_nothing(tmp_path: Path) -> None:
    place = every_kind(tmp_path / "s")
    before = shown(place)
    for log in logs(place):
        whole = log.path.read_bytes()
        for offset in range(0, log.size, 3):
            changed = bytearray(whole)
            changed[offset] ^= 1 << offset % 8
            log.path.write_bytes(changed)
            view = view_store(place)
            assert view.findings
            assert {str(page): view.directory.locate(page) for page in view.directory.page_ids()} == before, offset
        log.path.write_bytes(whole)


@pytest.mark.turns(10)
def test_any_byte_of_a_checkpoint_costs_nothing(tmp_path: Path) -> None:
    place = every_kind(tmp_path / "s")
    with PageStorage.open(place) as store:
        assert collect_garbage(store, checkpoint=True).checkpoint_size > 0
    before, log = shown(place), logs(place)[0]
    assert log.name.is_checkpoint
    whole = log.path.read_bytes()
    for offset in range(log.size):
        changed = bytearray(whole)
        changed[offset] ^= 1 << offset % 8
        log.path.write_bytes(changed)
        assert shown(place) == before, offset


def test_a_store_goes_on_as_it_began(tmp_path: Path) -> None:
    """Whoever opens, collects, recovers or salvages it need not know."""
    place = every_kind(tmp_path / "s")
    with PageStorage.open(place) as store:
        put(store, 40, b"forty")
    assert logs(place)[-1].records[-1].is_copy
    (damaged,) = (file for file in logs(place) if file.name.number == 1)
    raw = bytearray(damaged.path.read_bytes())
    raw[20] ^= 1
    damaged.path.write_bytes(raw)
    before = shown(place)
    with pytest.raises(DamageError, match="unless it stands whole beside this, where each record is twice"):
        PageStorage.open(place)
    salvage_store(place, tmp_path / "salvaged")
    apply_recovery(plan_recovery(place, SKIP), arguments=())
    assert {page: one and one.version for page, one in shown(place).items()}.keys() == before.keys()
    for one in (place, tmp_path / "salvaged"):
        (records, *_) = (file.records for file in logs(one) if file.records)
        assert [record.is_copy for record in records[:2]] == [False, True]


@pytest.mark.parametrize("kept", ["nothing", "half", "all but a byte", "all"])
def test_who_died_before_the_copy_was_there_has_what_it_wrote(tmp_path: Path, kept: str) -> None:
    """And the next one who opens the store writes the copy."""
    place = tmp_path / "s"
    store = PageStorage.create(place, TWICE)
    put(store, 1, b"one")
    put(store, 2, b"two")
    crash(store)
    log = logs(place)[0]
    *_, original, copy = log.records
    whole = copy.end - copy.offset
    size = {"nothing": 0, "half": whole // 2, "all but a byte": whole - 1, "all": whole}[kept]
    os.truncate(log.path, original.end + size)
    torn = 0 < size < whole
    assert codes(place) == ["log-torn-tail"] * torn
    with PageStorage.open(place, TWICE) as again:
        assert (data(again, 2), again.directory.sequence) == (b"two", 2)
    closed = logs(place)[0]
    assert ([one.is_copy for one in closed.records], closed.closed) == ([False, True, False, True], True)
    assert (codes(place), len(list(list_entries(place, STORE)))) == ([], int(torn))


def test_a_copy_tells_that_the_data_of_its_record_was_there(tmp_path: Path) -> None:
    """It was written after the flush of both had succeeded: what is wrong now was right once."""
    store = PageStorage.create(tmp_path / "s", TWICE)
    put(store, 1, b"one" * 400)
    crash(store)
    blob = tmp_path / "s" / "blob" / "blobfile_1"
    blob.write_bytes(bytes(len(blob.read_bytes())))
    assert codes(tmp_path / "s") == ["page-checksum"]


def test_a_copy_is_written_when_its_record_is_durable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    with PageStorage.create(tmp_path / "s", TWICE) as store:
        put(store, 1, b"one")
        assert not store.wal.unconfirmed
        log = store.wal._file

        def noted() -> None:
            seen.append(len([one for one in logs(tmp_path / "s")[0].records if one.payload]))

        monkeypatch.setattr(log, "sync", noted)
        store.wal.append(b"a record")
    assert seen[:2] == [3, 4]


def test_a_copy_whose_flush_fails_stops_writing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = PageStorage.create(tmp_path / "s", TWICE)
    put(store, 1, b"one")
    done: list[None] = []

    def failing() -> None:
        done.append(None)
        if len(done) == 2:
            raise SyncFailedError(store.wal._file.path, None, OSError(errno.EIO, os.strerror(errno.EIO)))

    monkeypatch.setattr(store.wal._file, "sync", failing)
    with pytest.raises(SyncFailedError):
        delete(store, 1)
    monkeypatch.undo()
    crash(store)
    with PageStorage.open(tmp_path / "s") as again:
        assert data(again, 1) is None


def test_copies_are_not_counted_as_what_is_dropped(tmp_path: Path) -> None:
    place = tmp_path / "s"
    with PageStorage.create(place, TWICE) as store:
        for page in range(1, 6):
            put(store, page, b"page")
    log = logs(place)[0]
    shutil.copytree(place, tmp_path / "again")
    for at, dropped in ((4, 3), (5, 2)):
        raw = bytearray((tmp_path / "again" / "wal" / log.path.name).read_bytes())
        raw[log.records[at].end - 1] ^= 1
        log.path.write_bytes(raw)
        steps = plan_recovery(place, POINT).steps
        assert [one.reason.split(" ")[0] for one in steps if one.action == "drop-records"] == [str(dropped)]
