"""Data that was superseded stays where it is for a while, and then its room is used again, without a round of collection."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.pages.stores import crash, data, delete, put, ref
from waltzctl.engine.pages.blob_stats import BlobSpan
from waltzctl.engine.pages.page_batch import WriteBatch
from waltzctl.engine.pages.page_gc import collect_garbage, collect_versions
from waltzctl.engine.pages.page_options import PageOptions
from waltzctl.engine.pages.page_storage import PageStorage
from waltzctl.engine.pages.reclamation import Reclamation
from waltzctl.engine.pages.wal_reader import read_wal

KEPT = PageOptions(superseded_kept=1000)


def offset(store: PageStorage, page: int) -> int:
    found = store.get_entry(page)
    assert found is not None
    assert found.entry is not None
    return found.entry.offset


def rewritten(store: PageStorage, *, times: int, size: int = 500) -> list[int]:
    """Where a page comes to lie that is written so many times."""
    found = []
    for turn in range(times):
        put(store, 1, bytes([turn]) * size)
        found.append(offset(store, 1))
    return found


@pytest.fixture
def store(tmp_path: Path) -> Iterator[PageStorage]:
    with PageStorage.create(tmp_path / "s", KEPT) as opened:
        yield opened


def test_room_is_used_again_once_more_was_superseded_than_is_kept(store: PageStorage) -> None:
    """1,000 bytes are kept, and not one more: the third one that is superseded sets the first one free, once it is confirmed."""
    assert rewritten(store, times=7) == [0, 500, 1000, 1500, 2000, 0, 500]
    assert store.blob_size() == 2500
    assert data(store, 1) == bytes([6]) * 500


@pytest.mark.parametrize(("kept", "expected"), [(999, [0, 500, 1000, 1500, 0]), (1000, [0, 500, 1000, 1500, 2000])])
def test_up_to_how_many_bytes(tmp_path: Path, kept: int, expected: list[int]) -> None:
    with PageStorage.create(tmp_path / "s", PageOptions(superseded_kept=kept)) as store:
        assert rewritten(store, times=5) == expected


def test_data_stays_for_as_long_as_it_is_kept(store: PageStorage, tmp_path: Path) -> None:
    rewritten(store, times=3)
    raw = (tmp_path / "s" / "blob" / "blobfile_1").read_bytes()
    assert raw == bytes(500) + bytes([1]) * 500 + bytes([2]) * 500


def test_a_round_of_collection_keeps_nothing(store: PageStorage) -> None:
    rewritten(store, times=2)
    assert collect_garbage(store).freed == 500
    assert collect_garbage(store).freed == 500, "the file was half empty, and its page was moved"


def test_neither_does_a_process_that_opens_the_store(tmp_path: Path) -> None:
    store = PageStorage.create(tmp_path / "s", KEPT)
    rewritten(store, times=2)
    crash(store)
    with PageStorage.open(tmp_path / "s", KEPT) as again:
        assert rewritten(again, times=1) == [0]


def test_what_a_snapshot_sees_stays(store: PageStorage) -> None:
    rewritten(store, times=1)
    with store.snapshot() as before:
        assert rewritten(store, times=5) == [500, 1000, 1500, 2000, 2500]
        assert data(store, 1, before) == bytes(500)
        collect_garbage(store)
        assert data(store, 1, before) == bytes(500)
    collect_garbage(store)
    assert 0 in rewritten(store, times=5)


def test_what_was_superseded_while_a_snapshot_was_held_goes_with_the_next_write(store: PageStorage) -> None:
    rewritten(store, times=1)
    with store.snapshot():
        rewritten(store, times=4)
    assert store.status().directory.rows == 5
    rewritten(store, times=1)
    assert store.status().directory.rows == 1


def test_what_a_reference_shows_stays(store: PageStorage) -> None:
    put(store, 1, b"shown" * 100)
    ref(store, 9, 1)
    delete(store, 1)
    rewritten(store, times=6)
    assert data(store, 9) == b"shown" * 100
    delete(store, 9)
    assert 0 in rewritten(store, times=6)


def test_deleted_pages_leave_the_directory(store: PageStorage) -> None:
    for page in range(5):
        put(store, page, bytes(300))
    delete(store, *range(5))
    assert (store.status().directory.pages, store.status().directory.rows) == (0, 0)
    assert store.max_id() == 4


def test_nothing_is_written_where_somebody_reads(store: PageStorage) -> None:
    rewritten(store, times=1)
    with store.reclamation.reading():
        assert 0 not in rewritten(store, times=6)
    assert 0 in rewritten(store, times=3)


def test_what_is_kept_longest_goes_first() -> None:
    reclamation = Reclamation(kept=10)
    spans = [BlobSpan(1, place, 4) for place in range(0, 20, 4)]
    reclamation.supersede(spans[:2])
    assert reclamation.released() == []
    reclamation.supersede(spans[2:4])
    assert reclamation.released() == spans[:2]
    reclamation.supersede([spans[4]])
    reclamation.retire()
    assert reclamation.released() == spans[2:]
    reclamation.supersede([BlobSpan(1, 0, 11)])
    assert reclamation.released() == [BlobSpan(1, 0, 11)]


def twice(store: PageStorage) -> None:
    """The record has the page's first data, which nobody needs any more, and counts only with it."""
    store.write(WriteBatch().put_page(1, b"first" * 100).put_page(1, b"last" * 100))


def test_what_the_last_record_names_is_not_written_over(tmp_path: Path) -> None:
    store = PageStorage.create(tmp_path / "s", PageOptions(superseded_kept=0))
    twice(store)
    (span,) = store.place([b"x" * 500])
    assert span.offset == 900
    crash(store)
    with PageStorage.open(tmp_path / "s") as again:
        assert (data(again, 1), again.directory.sequence) == (b"last" * 100, 1)


def test_it_may_be_once_a_record_stands_behind_it(tmp_path: Path) -> None:
    store = PageStorage.create(tmp_path / "s", PageOptions(superseded_kept=0))
    twice(store)
    delete(store, 77)
    put(store, 2, b"two")
    (span,) = store.place([b"x" * 500])
    assert span.offset == 0
    crash(store)
    with PageStorage.open(tmp_path / "s") as again:
        assert (data(again, 1), data(again, 2)) == (b"last" * 100, b"two")


def test_a_round_of_collection_puts_a_record_behind_it_and_no_second_one(tmp_path: Path) -> None:
    store = PageStorage.create(tmp_path / "s", PageOptions(full_gc_rate=0))
    twice(store)
    assert len(read_wal(store.path).files[-1].records) == 1
    assert collect_garbage(store).freed == 500
    assert len(read_wal(store.path).files[-1].records) == 2
    store.place([b"x" * 500])
    collect_garbage(store)
    assert len(read_wal(store.path).files[-1].records) == 2
    crash(store)
    with PageStorage.open(tmp_path / "s") as again:
        assert (data(again, 1), again.directory.sequence) == (b"last" * 100, 1)


def test_where_the_log_was_closed_behind_it_a_round_writes_nothing(tmp_path: Path) -> None:
    with PageStorage.create(tmp_path / "s", PageOptions(log_size=1, full_gc_rate=0)) as store:
        twice(store)
        assert (store.wal.unconfirmed, store.wal.num_files) == (False, 2)
        assert collect_garbage(store).freed == 500
        assert (store.wal.num_files, read_wal(store.path).files[-1].records) == (2, ())


def test_a_version_of_the_last_record_that_a_snapshot_held_is_not_written_over(tmp_path: Path) -> None:
    """Somebody writes between the record that a round puts behind the last one and what it collects."""
    store = PageStorage.create(tmp_path / "s", PageOptions(superseded_kept=0))
    put(store, 1, b"before")
    with store.snapshot():
        with store.commit_lock:  # two writers share a record
            writers = [threading.Thread(target=put, args=(store, 1, bytes([one]) * 500)) for one in (1, 2)]
            for writer in writers:
                writer.start()
            while len(store._queue) < 2:
                writers[0].join(0.001)
        for writer in writers:
            writer.join()
    last = data(store, 1)
    assert (store.wal.unconfirmed, store.directory.sequence) == (True, 3)
    assert collect_versions(store) == 2
    store.blobs.give_back(store.reclamation.released())
    store.place([b"x" * 500])
    crash(store)
    with PageStorage.open(tmp_path / "s") as again:
        assert (data(again, 1), again.directory.sequence) == (last, 3)
