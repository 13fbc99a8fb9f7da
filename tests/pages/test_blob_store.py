"""Blob files: where pages lie, what a write that fails leaves, cutting and removing."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from tests.pages.stores import disk_full_after
from waltzctl.engine.errors import DiskFullError
from waltzctl.engine.pages import blob_store
from waltzctl.engine.pages.blob_stats import BlobSpan
from waltzctl.engine.pages.blob_store import LARGE, SECTOR, BlobStore

KIB = 1024


def test_pages_of_a_batch_lie_behind_one_another(tmp_path: Path) -> None:
    store = BlobStore(tmp_path, 1 << 20)
    spans = store.write([b"a" * 20, b"", b"b" * 120, b"c"])
    assert spans == (BlobSpan(1, 0, 20), BlobSpan(0, 0, 0), BlobSpan(1, 20, 120), BlobSpan(1, 140, 1))
    assert [store.read(span) for span in spans] == [b"a" * 20, b"", b"b" * 120, b"c"]
    assert store.write([b"", b""]) == (BlobSpan(0, 0, 0),) * 2  # they occupy nothing
    assert store.counters.written == 141
    store.close()


def test_a_batch_over_the_limit_goes_page_by_page_and_a_page_over_it_has_a_file(tmp_path: Path) -> None:
    store = BlobStore(tmp_path, 100)
    spans = store.write([b"a" * 60, b"b" * 60, b"c" * 250, b"d" * 40])
    assert spans == (BlobSpan(1, 0, 60), BlobSpan(2, 0, 60), BlobSpan(3, 0, 250), BlobSpan(1, 60, 40))
    assert [store.read(span)[:1] for span in spans] == [b"a", b"b", b"c", b"d"]
    assert store.write([b"e" * 50])[0].file_id == 4  # 3 is full
    store.close()


@pytest.mark.parametrize("size", [101, 99, 100])
def test_pages_around_the_limit_that_are_written_over_leave_no_files(tmp_path: Path, size: int) -> None:
    """Each page over it left an empty file that nothing removed, and an open descriptor."""
    store = BlobStore(tmp_path, 100)
    kept = store.write([b"a" * size])
    for number in range(20):
        written = store.write([bytes([number]) * (size + number % 3)])
        assert [store.read(span) for span in written] == [bytes([number]) * (size + number % 3)]
        assert store.read(kept[0]) == b"a" * size
        store.give_back(written)
        store.cut_tails()
    assert len(os.listdir(tmp_path)) <= 3
    store.give_back(kept)
    assert [one.valid for one in store.stats.status()] == [0] * len(os.listdir(tmp_path))
    store.close()


@pytest.mark.parametrize("in_front", [0, 100])
def test_copies_lie_apart_in_a_batch_over_the_limit_too(tmp_path: Path, in_front: int) -> None:
    """A copy is placed for itself then, on either side of what it is a copy of."""
    store = BlobStore(tmp_path, 50_000)
    store.between_copies = SECTOR
    if in_front:  # a hole there fits best
        spans = store.write([b"h" * in_front, b"x"])
        store.give_back(spans[:1])
    first, second, large = store.write([b"a" * 100, b"a" * 100, b"l" * 50_000])
    assert first.file_id == second.file_id != large.file_id
    assert abs(second.offset - first.offset) >= SECTOR + 100
    assert [store.read(span)[:1] for span in (first, second, large)] == [b"a", b"a", b"l"]
    stat = store.stats.all()[0]
    assert stat.valid == 200 + bool(in_front), "what lies between is free"
    assert os.stat(store.path(1)).st_size == max(first.offset, second.offset) + 100, "nothing stands behind it"
    store.close()


def test_a_failed_large_write_frees_its_room_and_cuts_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = BlobStore(tmp_path, 1 << 20)
    before = store.write([b"kept" * 10])
    later = store.write([b"x" * 50])
    store.give_back(before)
    disk_full_after(monkeypatch, 10)
    with pytest.raises(DiskFullError):
        store.write([b"y" * 30, b"z" * 10])  # would lie in front of a page that is there
    monkeypatch.undo()
    (blob,) = store.stats.status()
    assert (blob.valid, store.read(later[0])) == (50, b"x" * 50)
    assert store.write([b"y" * 40]) == before
    store.close()


def test_a_failed_write_of_several_groups_frees_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = BlobStore(tmp_path, 100)
    disk_full_after(monkeypatch, 150)
    with pytest.raises(DiskFullError):
        store.write([b"a" * 90, b"b" * 90])
    assert [blob.valid for blob in store.stats.status()] == [0, 0]
    store.close()


def test_valid_rates_and_cutting(tmp_path: Path) -> None:
    """Ten of 1 KiB: without 1, 3, 4, 7 and 9 half is in use, without 6 and 8 less; cut behind the last one it is half again."""
    store = BlobStore(tmp_path, 1 << 20)
    spans = [store.write([bytes([n]) * KIB])[0] for n in range(10)]
    (stat,) = store.stats.all()
    store.give_back(spans[n] for n in (1, 3, 4, 7, 9))
    assert stat.valid_rate == 0.5
    store.give_back(spans[n] for n in (6, 8))
    assert stat.valid_rate == 0.3
    assert store.cut_tails() == 4 * KIB
    assert ((tmp_path / "blobfile_1").stat().st_size, stat.valid_rate) == (6 * KIB, 0.5)
    assert [store.read(spans[n])[:1] for n in (0, 2, 5)] == [b"\0", b"\2", b"\5"]
    assert store.cut_tails() == 0
    assert store.write([b"new" * KIB])[0] == BlobSpan(1, 6 * KIB, 3 * KIB)
    store.close()


def test_a_read_only_file_is_removed_when_it_is_empty(tmp_path: Path) -> None:
    store = BlobStore(tmp_path, 1 << 20)
    (span,) = store.write([b"x"])
    store.stats.all()[0].read_only = True
    assert store.remove_empty() == ()
    store.give_back([span])
    assert store.remove_empty() == (1,)
    assert os.listdir(tmp_path) == []
    store.close()


def test_a_file_that_is_not_there_reads_as_nothing(tmp_path: Path) -> None:
    assert BlobStore(tmp_path, 100).read(BlobSpan(5, 0, 10)) == b""


def test_the_disk_is_full_where_a_test_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk_full_after(monkeypatch, 3)
    descriptor = os.open(tmp_path / "f", os.O_CREAT | os.O_RDWR)
    assert os.pwrite(descriptor, b"12345", 0) == 3
    with pytest.raises(OSError, match="No space") as caught:
        os.pwrite(descriptor, b"45", 3)
    assert caught.value.errno == errno.ENOSPC
    os.close(descriptor)


@pytest.mark.parametrize(("size", "flush", "begun"), [(LARGE, False, 1), (LARGE - 1, False, 0), (LARGE, True, 0)])
def test_the_disk_begins_with_what_is_large_and_flushed_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, flush: bool, begun: int
) -> None:
    made: list[tuple[int, int]] = []
    monkeypatch.setattr(blob_store, "begin_writing", lambda _, offset, length: made.append((offset, length)))
    store = BlobStore(tmp_path, 1 << 20)
    store.write([b"first"])
    (span,) = store.write([bytes(size)], flush=flush)
    assert made == [(span.offset, span.size)] * begun
    store.close()
