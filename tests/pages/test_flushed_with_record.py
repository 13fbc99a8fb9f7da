"""Data and record of a write become durable by one flush, and count only together."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from tests.pages.stores import crash, data, disk_full_after, no_sync, put
from waltzctl.engine.durable import disk
from waltzctl.engine.durable.disk import Change
from waltzctl.engine.durable.quarantine import list_entries
from waltzctl.engine.errors import DiskFullError, SyncFailedError
from waltzctl.engine.pages import wal_reader
from waltzctl.engine.pages.blob_stats import BlobSpan
from waltzctl.engine.pages.blob_store import BlobStore
from waltzctl.engine.pages.inspection import dump_log, verify_store, view_store
from waltzctl.engine.pages.page_batch import UNWRITTEN, WriteBatch
from waltzctl.engine.pages.page_options import PageOptions
from waltzctl.engine.pages.page_storage import PageStorage, _entry_at
from waltzctl.engine.pages.torn_tail import STORE
from waltzctl.engine.pages.wal_reader import read_wal
from waltzctl.formats.pages.write_batch import Edit, EditFlag, EditType, PageEntry, PageId

OLD, NEW = b"old" * 400, b"new" * 400


def blob(path: Path) -> Path:
    return path / "blob" / "blobfile_1"


def codes(path: Path) -> list[str]:
    return [str(one.code) for one in verify_store(path).findings]


def last_entry(path: Path) -> PageEntry:
    edits = [one.edit for one in dump_log(view_store(path)) if one.edit.entry is not None]
    assert edits[-1].entry is not None
    return edits[-1].entry


def flags(path: Path) -> list[int]:
    return [one.edit.flags for one in dump_log(view_store(path))]


def left(path: Path, options: PageOptions = PageOptions(), *, behind: bool = False) -> PageEntry:  # noqa: B008  # frozen
    """A store that died after it had written page 1 anew; `behind`: and another page.  The entry of the new version."""
    store = PageStorage.create(path, options)
    put(store, 1, OLD)
    put(store, 1, NEW)
    entry = last_entry(path)
    if behind:
        put(store, 2, b"two")
    crash(store)
    return entry


def nothing(raw: bytearray, entry: PageEntry) -> None:
    raw[entry.offset : entry.offset + entry.size] = bytes(entry.size)


def cut_short(raw: bytearray, entry: PageEntry) -> None:
    del raw[entry.offset + entry.size - 1 :]


def cut_off(raw: bytearray, entry: PageEntry) -> None:
    del raw[entry.offset :]


def first_byte(raw: bytearray, entry: PageEntry) -> None:
    raw[entry.offset] ^= 1


def last_byte(raw: bytearray, entry: PageEntry) -> None:
    raw[entry.offset + entry.size - 1] ^= 1


LOSSES = [nothing, cut_short, cut_off, first_byte, last_byte]
Loss = Callable[[bytearray, PageEntry], None]


def lose(path: Path, entry: PageEntry, loss: Loss) -> None:
    raw = bytearray(blob(path).read_bytes())
    loss(raw, entry)
    blob(path).write_bytes(raw)


@pytest.mark.parametrize("loss", LOSSES)
def test_a_last_record_without_its_data_is_a_torn_end(tmp_path: Path, loss: Loss) -> None:
    entry = left(tmp_path / "s")
    record = read_wal(tmp_path / "s").files[0].records[-1]
    lose(tmp_path / "s", entry, loss)
    (finding,) = (one for one in verify_store(tmp_path / "s").findings if one.code != "space-leaked")
    assert (str(finding.code), finding.offset) == ("log-torn-tail", read_wal(tmp_path / "s").files[0].end)
    assert "data that was written with the record is not there" in finding.message
    with PageStorage.open(tmp_path / "s") as again:
        assert (data(again, 1), again.directory.sequence) == (OLD, 1)
        put(again, 1, NEW)
    assert codes(tmp_path / "s") == []
    (entry_of_cut,) = list_entries(tmp_path / "s", STORE)
    kept = b"".join(path.read_bytes() for path in entry_of_cut.path.rglob("*") if path.is_file())
    assert record.payload in kept


def test_a_last_record_whose_data_is_there_counts(tmp_path: Path) -> None:
    left(tmp_path / "s")
    assert codes(tmp_path / "s") == []
    with PageStorage.open(tmp_path / "s") as again:
        assert (data(again, 1), again.directory.sequence) == (NEW, 2)


@pytest.mark.parametrize("loss", [nothing, last_byte])
def test_damage_in_front_of_a_further_record_is_damage(tmp_path: Path, loss: Loss) -> None:
    """The further record was written after the flush had succeeded: what is wrong now was right once."""
    lose(tmp_path / "s", left(tmp_path / "s", behind=True), loss)
    assert codes(tmp_path / "s") == ["page-checksum"]
    with PageStorage.open(tmp_path / "s") as again:
        assert again.directory.sequence == 3


def test_a_torn_record_behind_it_tells_that_it_was_flushed(tmp_path: Path) -> None:
    lose(tmp_path / "s", left(tmp_path / "s"), nothing)
    log = tmp_path / "s" / "wal" / "log_1_0"
    with log.open("ab") as file:
        file.write(b"\1")
    assert codes(tmp_path / "s") == ["log-torn-tail", "page-checksum"]
    with PageStorage.open(tmp_path / "s") as again:
        assert again.directory.sequence == 2


def test_damage_in_the_middle_of_the_log_does_not_make_it_count(tmp_path: Path) -> None:
    lose(tmp_path / "s", left(tmp_path / "s"), nothing)
    log = tmp_path / "s" / "wal" / "log_1_0"
    raw = bytearray(log.read_bytes())
    raw[read_wal(tmp_path / "s").files[0].records[0].offset + 20] ^= 1
    log.write_bytes(raw)
    view = view_store(tmp_path / "s")
    assert [str(one.code) for one in view.findings] == ["log-record-checksum"] * 2
    assert view.contents.files[0].records == ()


def test_damage_in_a_store_that_was_closed_is_damage(tmp_path: Path) -> None:
    entry = left(tmp_path / "died")
    PageStorage.open(tmp_path / "died").close()
    with PageStorage.create(tmp_path / "closed") as store:
        put(store, 1, NEW)
    for path, page in ((tmp_path / "died", entry), (tmp_path / "closed", last_entry(tmp_path / "closed"))):
        lose(path, page, nothing)
        assert codes(path) == ["page-checksum"]


def test_a_file_that_is_gone_is_damage(tmp_path: Path) -> None:
    """Its name was durable before anything was written into it, so no crash takes it away."""
    left(tmp_path / "s")
    blob(tmp_path / "s").unlink()
    assert set(codes(tmp_path / "s")) == {"page-missing"}
    with PageStorage.open(tmp_path / "s") as again:
        assert again.directory.sequence == 2


def test_data_that_was_flushed_before_its_record_is_damage(tmp_path: Path) -> None:
    store = PageStorage.create(tmp_path / "s")
    (span,) = store.place([NEW])
    (batch,) = WriteBatch().put_page(1, NEW).edits
    assert batch.entry is not None
    store.commit([Edit(EditType.PUT, PageId(0, 1), UNWRITTEN, _entry_at(batch.entry, span))])
    crash(store)
    assert flags(tmp_path / "s") == [0]
    lose(tmp_path / "s", last_entry(tmp_path / "s"), nothing)
    assert codes(tmp_path / "s") == ["page-checksum"]


@pytest.mark.parametrize(("limit", "together"), [(len(NEW) - 1, 0), (len(NEW), EditFlag.FLUSHED_WITH_RECORD)])
def test_up_to_how_many_bytes(tmp_path: Path, limit: int, together: int) -> None:
    entry = left(tmp_path / "s", PageOptions(flushed_with_record=limit))
    assert flags(tmp_path / "s") == [together, together]
    lose(tmp_path / "s", entry, nothing)
    assert [one for one in codes(tmp_path / "s") if one != "space-leaked"] == [
        "log-torn-tail" if together else "page-checksum"
    ]


def syncs(changes: list[Change]) -> list[str]:
    return sorted(one.path.name for one in changes if one.kind == "sync")


def test_data_and_record_share_a_flush(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = PageStorage.create(tmp_path / "s")
    put(store, 1, OLD)
    changes: list[Change] = []
    monkeypatch.setattr(disk, "observer", changes.append)
    put(store, 1, NEW)
    monkeypatch.undo()
    kinds = [one.kind for one in changes]
    assert kinds == ["write", "write", "sync", "sync"]
    assert syncs(changes) == ["blobfile_1", "log_1_0"]
    store.close()


def test_writers_that_come_together_share_a_flush(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = PageStorage.create(tmp_path / "s")
    put(store, 9, b"file")
    changes: list[Change] = []
    with store.commit_lock:  # nobody writes the log, and all wait for it
        threads = [threading.Thread(target=put, args=(store, page, NEW)) for page in range(1, 6)]
        for thread in threads:
            thread.start()
        while len(store._queue) < len(threads):
            threads[0].join(0.001)
        monkeypatch.setattr(disk, "observer", changes.append)
    for thread in threads:
        thread.join()
    monkeypatch.undo()
    assert syncs(changes) == ["blobfile_1", "log_1_0"]
    assert [data(store, page) for page in range(1, 6)] == [NEW] * 5
    store.close()


def test_what_a_process_left_is_written_anew_before_anything_stands_behind_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its flush may have failed; then the next one of what was not written again would succeed, and mean nothing."""
    entry = left(tmp_path / "s")
    record = read_wal(tmp_path / "s").files[0].records[-1]
    changes: list[Change] = []
    monkeypatch.setattr(disk, "observer", changes.append)
    PageStorage.open(tmp_path / "s").close()
    monkeypatch.undo()
    own = [one for one in changes if one.path.name in ("blobfile_1", "log_1_0")]
    assert [(one.path.name, one.kind, one.offset, len(one.data)) for one in own[:4]] == [
        ("blobfile_1", "write", entry.offset, entry.size),
        ("blobfile_1", "sync", 0, 0),
        ("log_1_0", "write", record.offset, record.end - record.offset),
        ("log_1_0", "sync", 0, 0),
    ]
    assert (own[4].kind, own[4].offset) == ("write", record.end)
    assert verify_store(tmp_path / "s").findings == ()


@pytest.mark.parametrize("further", [True, False])
def test_data_that_the_last_record_names_is_not_cut_to_make_room_for_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, further: bool
) -> None:
    """No page lies there, as the batch deleted it again; without it the whole batch counted as torn."""
    store = PageStorage.create(tmp_path / "s")
    put(store, 1, OLD)
    store.write(WriteBatch().put_page(1, NEW).put_page(2, b"two" * 900).delete(2))
    crash(store)
    end = blob(tmp_path / "s").stat().st_size
    if further:  # of a write that met the full disk
        with blob(tmp_path / "s").open("ab") as file:
            file.write(b"further" * 500)
    cut = BlobStore.cut_tails

    def cut_and_free(blobs: BlobStore, *given: Iterable[BlobSpan]) -> int:
        if got := cut(blobs, *given):
            monkeypatch.undo()  # there is room again
        return got

    monkeypatch.setattr(BlobStore, "cut_tails", cut_and_free)
    disk_full_after(monkeypatch, len(NEW) + 3 * 900 + 7)
    if not further:
        with pytest.raises(DiskFullError):
            PageStorage.open(tmp_path / "s")
        monkeypatch.undo()
        assert blob(tmp_path / "s").stat().st_size == end
    with PageStorage.open(tmp_path / "s") as again:
        assert (data(again, 1), data(again, 2), again.directory.sequence) == (NEW, None, 2)
        size = blob(tmp_path / "s").stat().st_size
    with PageStorage.open(tmp_path / "s") as again:
        assert (data(again, 1), data(again, 2), again.directory.sequence) == (NEW, None, 2)
    assert size == end


def test_a_page_that_cannot_be_read_does_not_keep_the_store_shut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = left(tmp_path / "s")
    pread, preadv = os.pread, os.preadv
    place = os.stat(blob(tmp_path / "s"))

    def failing(descriptor: int, offset: int) -> None:
        if os.path.samestat(os.fstat(descriptor), place) and offset == entry.offset:
            raise OSError(5, os.strerror(5))

    def one(descriptor: int, size: int, offset: int) -> bytes:
        failing(descriptor, offset)
        return pread(descriptor, size, offset)

    def several(descriptor: int, buffers: list[bytearray], offset: int) -> int:
        failing(descriptor, offset)
        return preadv(descriptor, buffers, offset)

    monkeypatch.setattr(os, "pread", one)
    monkeypatch.setattr(os, "preadv", several)
    store = PageStorage.open(tmp_path / "s")
    monkeypatch.undo()
    assert data(store, 1) == NEW
    store.close()


def test_whoever_looks_while_somebody_writes_does_not_take_it_for_torn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look at the log and the look at the data the page was written anew, and its old room used again."""
    store = PageStorage.create(tmp_path / "s")
    put(store, 1, NEW)
    entry = last_entry(tmp_path / "s")
    real = wal_reader.read_file
    looks: list[int] = []

    def slow(directory: Path, name: wal_reader.LogName) -> wal_reader.LogFile:
        found = real(directory, name)
        if not looks:
            put(store, 1, b"once more")
            lose(tmp_path / "s", entry, nothing)
        looks.append(found.size)
        return found

    monkeypatch.setattr(wal_reader, "read_file", slow)
    contents = read_wal(tmp_path / "s")
    assert (len(looks), contents.torn_from, len(contents.files[0].records)) == (2, None, 2)
    store.close()


@pytest.mark.parametrize("limit", [0, len(NEW)])
def test_a_failed_flush_is_told_and_stops_writing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int) -> None:
    """The write may have come to pass, or not.  Data that is flushed by itself was no part of any record yet."""
    options = PageOptions(flushed_with_record=limit)
    store = PageStorage.create(tmp_path / "s", options)
    put(store, 1, OLD)
    no_sync(monkeypatch)
    with pytest.raises(SyncFailedError):
        put(store, 1, NEW)
    monkeypatch.undo()
    assert data(store, 1) == OLD
    store.close()
    with PageStorage.open(tmp_path / "s", options) as again:
        assert (data(again, 1), again.directory.sequence) == ((NEW, 2) if limit else (OLD, 1))
