"""Garbage collection from outside: files emptied, cut and removed; what is copied is checked; external pages; limits."""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

from tests.pages.stores import crash, data, delete, disk_full_after, put, ref, sector_lost
from waltzctl.engine.catalogue import Code
from waltzctl.engine.errors import DiskFullError, DiskReadError, InvalidRequestError
from waltzctl.engine.pages import page_gc
from waltzctl.engine.pages.blob_stats import BlobSpan
from waltzctl.engine.pages.blob_store import SECTOR
from waltzctl.engine.pages.page_batch import WriteBatch
from waltzctl.engine.pages.page_gc import GcLimits, PageCollector, collect_garbage, collect_until_done, collect_versions
from waltzctl.engine.pages.page_options import PageOptions
from waltzctl.engine.pages.page_storage import PageStorage
from waltzctl.engine.pages.recovery_mode import RecoveryMode
from waltzctl.engine.pages.wal_reader import edits_of, read_wal
from waltzctl.formats.pages.write_batch import EditType, PageId, decode_batch

KIB = 1024
OPTIONS = PageOptions(blob_limit=10 * KIB)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[PageStorage]:
    with contextlib.closing(PageStorage.create(tmp_path / "s", OPTIONS)) as opened:
        yield opened


def filled(store: PageStorage, pages: int = 10) -> None:
    for number in range(pages):
        put(store, number, bytes([number]) * KIB, tag=number + 7)


def files(store: PageStorage) -> dict[int, int]:
    """Sizes of blob files."""
    return {
        int(name.split("_")[1]): (store.path / "blob" / name).stat().st_size for name in os.listdir(store.path / "blob")
    }


def test_a_mostly_empty_file_is_emptied_and_removed(store: PageStorage) -> None:
    """Without pages 0 to 7 a fifth is in use; what is left moves, and a round later the file is gone."""
    filled(store)
    delete(store, *range(8))
    first = collect_garbage(store)
    assert (first.versions, first.freed) == (0, 8 * KIB), "the versions went with the deletes, their room was kept"
    assert (first.files_to_empty, first.pages_moved, first.moved, first.files_removed) == (1, 2, 2 * KIB, 0)
    second = collect_garbage(store)
    assert (second.files_removed, second.freed, second.pages_moved) == (1, 2 * KIB, 0)
    assert files(store) == {2: 2 * KIB}
    for number in (8, 9):  # tags are kept
        page = store.read(number)
        assert (page.data, page.tag) == (bytes([number]) * KIB, number + 7)


def test_several_files_are_emptied_into_few(store: PageStorage) -> None:
    filled(store, 40)
    delete(store, *[number for number in range(40) if number % 5])
    for _ in range(2):
        collect_garbage(store)
    assert files(store) == {5: 8 * KIB}
    assert [data(store, number) for number in range(0, 40, 5)] == [bytes([number]) * KIB for number in range(0, 40, 5)]


def test_a_tail_is_cut_and_cut_again_after_a_reopen(store: PageStorage, tmp_path: Path) -> None:
    filled(store)
    delete(store, 8, 9)
    assert collect_garbage(store).cut == 2 * KIB
    assert files(store) == {1: 8 * KIB}
    delete(store, 7)
    crash(store)
    with PageStorage.open(tmp_path / "s", OPTIONS) as again:
        assert collect_garbage(again).cut == KIB
        assert files(again) == {1: 7 * KIB}
        put(again, 20, b"x" * KIB)
        assert [data(again, number) for number in (0, 6, 20)] == [b"\0" * KIB, b"\6" * KIB, b"x" * KIB]


@pytest.mark.parametrize("when", ["before", "during", "after"])
def test_a_deleted_page_stays_deleted_after_full_gc_dump_and_restart(
    store: PageStorage, tmp_path: Path, when: str
) -> None:
    filled(store, 10)
    delete(store, *range(7))
    if when == "before":
        delete(store, 7, 8, 9)
    if when == "during":
        write = store.blobs.write

        def deleting(pages: list[bytes], *, moving: bool = False) -> object:
            if moving:
                store.blobs.write = write  # type: ignore[method-assign]
                delete(store, 7, 8, 9)
            return write(pages, moving=moving)

        store.blobs.write = deleting  # type: ignore[method-assign, assignment]
    collect_garbage(store)
    if when == "after":
        delete(store, 7, 8, 9)
    for _ in range(3):
        collect_garbage(store, checkpoint=True)
    assert store.status().directory.rows == 0
    assert [blob.valid for blob in store.status().blobs] in ([], [0])
    crash(store)
    kinds = {edit.type for edit in edits_of(read_wal(tmp_path / "s"), RecoveryMode.ABSOLUTE_CONSISTENCY)}
    assert kinds == {EditType.VAR_HIGHEST}  # a dump keeps no record of a page
    with PageStorage.open(tmp_path / "s", OPTIONS) as again:
        assert list(again.traverse()) == []


def test_what_was_written_meanwhile_is_not_undone_by_a_move(store: PageStorage) -> None:
    filled(store, 10)
    delete(store, *range(8))
    write = store.blobs.write

    def overwriting(pages: list[bytes], *, moving: bool = False) -> object:
        spans = write(pages, moving=moving)
        if moving:
            store.blobs.write = write  # type: ignore[method-assign]
            put(store, 8, b"new")
            collect_versions(store)
        return spans

    store.blobs.write = overwriting  # type: ignore[method-assign, assignment]
    assert collect_garbage(store).pages_moved == 1
    assert (data(store, 8), data(store, 9)) == (b"new", b"\t" * KIB)
    collect_garbage(store)
    assert sum(blob.valid for blob in store.status().blobs) == KIB + 3


def test_many_references_are_one_copy(store: PageStorage, tmp_path: Path) -> None:
    """The released program makes as many copies as there are references."""
    filled(store, 10)
    for number in range(100, 120):
        ref(store, number, 9)
    delete(store, *range(10))  # 9 is held by references only
    report = collect_garbage(store)
    assert (report.pages_moved, report.moved) == (1, KIB)
    collect_garbage(store, checkpoint=True)
    crash(store)
    with PageStorage.open(tmp_path / "s", OPTIONS) as again:
        assert {data(again, number) for number in range(100, 120)} == {b"\t" * KIB}
        assert sum(blob.valid for blob in again.status().blobs) == KIB


def test_a_moved_page_that_only_references_hold_is_found_after_a_restart_without_a_dump(
    store: PageStorage, tmp_path: Path
) -> None:
    filled(store, 10)
    ref(store, 100, 9)
    delete(store, *range(10))
    put(store, 9, b"another")
    assert collect_garbage(store).pages_moved >= 1
    crash(store)
    with PageStorage.open(tmp_path / "s", OPTIONS) as again:
        assert (data(again, 100), data(again, 9)) == (b"\t" * KIB, b"another")


@pytest.mark.parametrize("checkpoint", [False, True])
def test_a_page_that_one_batch_wrote_referred_to_and_deleted_is_moved(
    store: PageStorage, tmp_path: Path, *, checkpoint: bool
) -> None:
    put(store, 9, b"x" * 5 * KIB)
    store.write(WriteBatch().put_page(1, b"a" * KIB).put_ref(2, 1).delete(1).delete(9))
    moved = 0
    for _ in range(3):
        moved += collect_garbage(store, checkpoint=checkpoint).pages_moved
    assert (moved, files(store)) == (1, {2: KIB}), "the file is gone in which it was"
    crash(store)
    with PageStorage.open(tmp_path / "s", OPTIONS) as again:
        assert (data(again, 1), data(again, 2)) == (None, b"a" * KIB)
        assert [blob.valid for blob in again.status().blobs] == [KIB]


def test_a_page_that_turned_into_a_reference_in_one_batch_is_one_after_a_checkpoint(
    store: PageStorage, tmp_path: Path
) -> None:
    """Another page refers to what it was; in the checkpoint either may stand in front of the other."""
    store.write(WriteBatch().put_page(3, b"right").put_page(9, b""))
    ref(store, 1, 3)
    delete(store, 3)
    store.write(WriteBatch().put_page(0, b"other").put_ref(2, 0).delete(0).put_ref(0, 1))
    for _ in range(2):
        collect_garbage(store, checkpoint=True)
        assert [data(store, page) for page in (0, 1, 2)] == [b"right", b"right", b"other"]
        crash(store)
        store = PageStorage.open(tmp_path / "s", OPTIONS)
        assert [data(store, page) for page in (0, 1, 2)] == [b"right", b"right", b"other"]
    store.close()


def test_a_copy_is_checked_and_a_damaged_page_stays(store: PageStorage, tmp_path: Path) -> None:
    filled(store, 10)
    delete(store, *range(8))
    path = tmp_path / "s" / "blob" / "blobfile_1"
    raw = bytearray(path.read_bytes())
    raw[8 * KIB + 5] ^= 1
    path.write_bytes(raw)
    report = collect_garbage(store)
    assert ([one.code for one in report.findings], report.pages_moved) == ([Code.PAGE_CHECKSUM], 1)
    assert "page 0:8" in report.findings[0].message
    assert data(store, 9) == b"\t" * KIB
    collect_garbage(store)
    assert 1 in files(store)  # what may be saved by hand is not thrown away


def test_a_page_that_the_disk_cannot_read_stays_and_the_others_are_moved(
    store: PageStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(store, 10)
    delete(store, *range(8))
    sector_lost(monkeypatch, store.path / "blob" / "blobfile_1", 8 * KIB + 5)
    report = collect_garbage(store)
    assert ([one.code for one in report.findings], report.pages_moved) == ([Code.PAGE_CHECKSUM], 1)
    assert "page 0:8: its data cannot be read" in report.findings[0].message
    assert data(store, 9) == b"\t" * KIB
    with pytest.raises(DiskReadError):
        data(store, 8)
    monkeypatch.undo()  # the disk reads it after all: nothing was given up
    collect_garbage(store)
    assert data(store, 8) == b"\x08" * KIB


def test_an_error_that_tells_of_no_lost_bytes_ends_a_round(store: PageStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(store, 10)
    delete(store, *range(8))
    sector_lost(monkeypatch, store.path / "blob" / "blobfile_1", 8 * KIB, error=errno.ESTALE)
    with pytest.raises(DiskReadError):
        collect_garbage(store)


def test_a_snapshot_holds_pages_through_full_gc(store: PageStorage) -> None:
    filled(store, 10)
    with store.snapshot() as snapshot:
        delete(store, *range(10))
        for _ in range(3):
            collect_garbage(store, checkpoint=True)
        assert [data(store, number, snapshot) for number in range(10)] == [
            bytes([number]) * KIB for number in range(10)
        ]
    for _ in range(2):
        collect_garbage(store)
    assert sum(blob.valid for blob in store.status().blobs) == 0


def test_room_is_not_given_away_while_somebody_reads_there(store: PageStorage) -> None:
    put(store, 1, b"old!")
    with store.reclamation.reading():
        put(store, 1, b"new!")
        assert collect_garbage(store).freed == 0
        put(store, 2, b"more")
        assert store.blobs.read(BlobSpan(1, 0, 4)) == b"old!"
    assert collect_garbage(store).freed >= 4


def test_a_round_moves_no_more_than_it_may_and_no_faster(store: PageStorage) -> None:
    filled(store, 40)
    delete(store, *[number for number in range(40) if number % 5])
    slept: list[float] = []
    report = collect_garbage(store, GcLimits(max_moved=3 * KIB, bytes_per_second=KIB), sleep=slept.append)
    assert (report.pages_moved, slept) == (3, [3.0])
    total = report.pages_moved
    while (report := collect_garbage(store, GcLimits(max_moved=3 * KIB))).pages_moved:
        total += report.pages_moved
    assert total == 8
    collect_garbage(store)
    assert len(files(store)) == 1


@pytest.mark.parametrize("twice", [False, True])
def test_pages_that_hold_the_same_are_not_all_moved_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, twice: bool
) -> None:
    """However many they were, all of them were read before the first was written."""
    monkeypatch.setattr(page_gc, "_MOVED_AT_ONCE", 16 * KIB)
    with PageStorage.create(tmp_path / "s", PageOptions(blob_limit=256 * KIB, records_twice=twice)) as store:
        put(store, 99, b"z" * 150 * KIB)
        for page in range(10):
            put(store, page, bytes(8 * KIB))
        delete(store, 99)
        original, sizes = store.blobs.write, []

        def write(pages: list[bytes], **given: bool) -> tuple[BlobSpan, ...]:
            sizes.append(sum(map(len, pages)))
            return original(pages, **given)

        monkeypatch.setattr(store.blobs, "write", write)
        collect_until_done(store)
        assert sizes == [16 * KIB] * 5
        assert [data(store, page) for page in range(10)] == [bytes(8 * KIB)] * 10


@pytest.mark.parametrize("most", [999, 1000, 1999, 2000])
def test_copies_lie_apart_whatever_a_round_may_move(tmp_path: Path, most: int) -> None:
    """Moved in two rounds they lay side by side, and one sector had both."""
    with PageStorage.create(tmp_path / "twice", PageOptions(blob_limit=64 * KIB, records_twice=True)) as store:
        put(store, 9, b"z" * 40000)
        store.write(WriteBatch().put_page(1, b"a" * 1000).put_page(2, b"a" * 1000))
        delete(store, 9)
        moved = sum(collect_garbage(store, GcLimits(max_moved=most)).pages_moved for _ in range(4))
        places = [found.entry for page in (1, 2) if (found := store.get_entry(page)) is not None]
        assert (moved, len(places)) == (2, 2)
        assert places[0] is not None
        assert places[1] is not None
        assert places[0].file_id != places[1].file_id or abs(places[0].offset - places[1].offset) >= 1000 + SECTOR


def test_external_pages_are_removed_when_nobody_needs_them(store: PageStorage) -> None:
    """The scanner comes first: what is written after it is in neither set."""
    calls: list[tuple[str, object]] = []

    def scanner() -> list[int]:
        calls.append(("scan", None))
        store.write(WriteBatch().put_external(50))
        return [1, 2, 3]

    def remover(pending: frozenset[int], alive: frozenset[int]) -> None:
        calls.append(("remove", pending - alive))

    store.write(WriteBatch().put_external(1).put_external(2).put_external(3).put_ref(9, 2))
    store.write(WriteBatch(8).put_external(1))
    store.register_external_callbacks(0, scanner, remover)
    with pytest.raises(InvalidRequestError, match="has callbacks"):
        store.register_external_callbacks(0, scanner, remover)
    snapshot = store.snapshot()
    delete(store, 1, 2)
    collect_garbage(store)
    snapshot.close()
    collect_garbage(store)
    delete(store, 9)
    collect_garbage(store)
    assert [what for name, what in calls if name == "remove"] == [set(), {1}, {1, 2}]
    store.unregister_external_callbacks(0)
    collect_garbage(store)
    assert len(calls) == 6


def test_a_callback_that_fails_takes_no_other_its_turn(store: PageStorage) -> None:
    removed: list[int] = []

    def failing(*_: object) -> list[int]:
        raise FileNotFoundError("the directory of external pages")

    def of_two(pending: frozenset[int], alive: frozenset[int]) -> None:
        removed.extend(pending - alive)

    store.register_external_callbacks(0, failing, lambda *_: None)
    store.register_external_callbacks(1, list, failing)
    store.register_external_callbacks(2, lambda: [7], of_two)
    with pytest.raises(FileNotFoundError, match="the directory of external pages"):
        collect_garbage(store)
    assert removed == [7]


def test_the_collector_goes_on_whatever_a_callback_raises(store: PageStorage) -> None:
    rounds, healthy = [], threading.Event()

    def scanner() -> list[int]:
        rounds.append(collector.last_error)
        if len(rounds) == 3:
            healthy.set()
        if len(rounds) < 3:
            raise KeyError(len(rounds))
        return []

    store.register_external_callbacks(0, scanner, lambda *_: None)
    collector = PageCollector(store, 0.001)
    collector.start()
    assert healthy.wait(10)
    collector.stop()
    assert [None if one is None else str(one) for one in rounds[:3]] == [None, "1", "2"]
    assert collector.last_error is None


def test_external_pages_after_a_restart(store: PageStorage, tmp_path: Path) -> None:
    store.write(WriteBatch().put_external(1).put_external(2).put_ref(9, 2))
    delete(store, 1, 2)
    collect_garbage(store, checkpoint=True)
    crash(store)
    with PageStorage.open(tmp_path / "s") as again:
        assert again.directory.alive_external_ids(0) == {2}
        with again.snapshot() as snapshot:
            delete(again, 9)
            collect_garbage(again)
            assert again.directory.alive_external_ids(0) == {2}
            found = again.get_entry(9, snapshot=snapshot)
            assert found is not None
            assert found.is_external
        collect_garbage(again)
        assert again.directory.alive_external_ids(0) == set()


def test_amplification_is_counted(store: PageStorage) -> None:
    assert (store.status().write_amplification, store.status().space_amplification) == (None, None)
    filled(store, 10)
    status = store.status()
    assert (status.data_written, status.data_moved, status.space_amplification) == (10 * KIB, 0, 1.0)
    assert status.write_amplification == (10 * KIB + status.log_written) / (10 * KIB)
    delete(store, *range(8))
    collect_garbage(store)
    assert store.status().data_moved == 2 * KIB


def test_the_collector_runs_in_the_background_and_stops(store: PageStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    collected, real = threading.Event(), page_gc.collect_garbage

    def seen(*arguments: object, **named: object) -> object:
        try:
            return _call(real, arguments, named)
        finally:
            collected.set()

    monkeypatch.setattr(page_gc, "collect_garbage", seen)
    put(store, 1, b"x")
    collector = PageCollector(store, 0.001)
    collector.start()
    collected.wait()
    collector.stop()
    assert collector.last_error is None
    store.close()
    collected.clear()
    ended = PageCollector(store, 0.001)
    ended.start()
    collected.wait()
    ended.stop()
    assert ended.last_error is not None


def _call(function: Callable[..., object], arguments: tuple[object, ...], named: dict[str, object]) -> object:
    return function(*arguments, **named)


def test_a_checkpoint_is_many_records_and_a_reference_stands_with_what_it_leads_to(
    store: PageStorage, tmp_path: Path
) -> None:
    """What is damaged of it costs the pages of one record, and no reference leads elsewhere because of it."""
    batch = WriteBatch()
    for number in range(600):
        batch.put_page(number, [b""])
    for number in range(1000, 1400):
        batch.put_ref(number, 255)
    store.write(batch)
    collect_garbage(store, checkpoint=True)
    crash(store)
    records = [decode_batch(record.payload) for record in read_wal(tmp_path / "s").files[0].records]
    assert [len(record) for record in records] == [256, 401, 256, 88]
    assert records[1][0].page == PageId(0, 255)
    assert {edit.origin for edit in records[1][1:]} == {PageId(0, 255)}


def test_references_that_change_while_a_checkpoint_is_written(
    store: PageStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It holds one moment, and the log behind it what came then; in the released program a count may be of neither."""
    filled(store, 3)
    ref(store, 10, 1)
    ref(store, 11, 2)
    finish = store.wal.finish_checkpoint

    def meanwhile(number: int, payloads: Iterable[bytes]) -> int:
        def parts() -> Iterator[bytes]:
            for part in payloads:
                yield part
                if store.get_entry(12) is None:
                    ref(store, 12, 10)
                    delete(store, 10, 1, 11)
                    ref(store, 13, 12)

        return finish(number, parts())

    monkeypatch.setattr(store.wal, "finish_checkpoint", meanwhile)
    assert collect_garbage(store, checkpoint=True).checkpoint_size > 0
    monkeypatch.undo()
    crash(store)
    with PageStorage.open(tmp_path / "s", OPTIONS) as again:
        assert {one.page.id for one in again.traverse()} == {0, 2, 12, 13}
        assert [data(again, number) for number in (12, 13)] == [b"\1" * KIB] * 2
        put(again, 2, b"nobody refers to it")
        delete(again, 12)
        collect_garbage(again, checkpoint=True)
        assert data(again, 13) == b"\1" * KIB
        delete(again, 13, 0, 2)
        for _ in range(2):
            collect_garbage(again)
        assert sum(blob.valid for blob in again.status().blobs) == 0


def test_a_full_disk_leaves_the_files_that_could_not_be_emptied_in_use(
    store: PageStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(store, 10)
    delete(store, *range(8))
    disk_full_after(monkeypatch, 100)
    with pytest.raises(DiskFullError):
        collect_garbage(store)
    monkeypatch.undo()
    assert next(blob.read_only for blob in store.status().blobs) is False
    put(store, 20, b"x" * 8 * KIB)
    assert files(store)[1] == 10 * KIB
    assert [data(store, number) for number in (8, 9)] == [b"\x08" * KIB, b"\t" * KIB]


def test_on_a_full_disk_tails_are_cut_before_anything_is_written(
    store: PageStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a write that met the full disk left behind the last page is the room that a checkpoint needs."""
    filled(store, 10)
    disk_full_after(monkeypatch, 3 * KIB)
    with pytest.raises(DiskFullError):
        put(store, 20, b"x" * 6 * KIB)
    assert files(store) == {1: 10 * KIB, 2: 3 * KIB}
    with pytest.raises(DiskFullError):
        collect_garbage(store, checkpoint=True)
    assert files(store) == {1: 10 * KIB, 2: 0}
