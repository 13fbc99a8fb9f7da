"""Pages in memory hold what was written, are bounded, and change nothing of what a store shows."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.pages.model import TIGHT
from tests.pages.stores import data, delete, put, ref
from tests.pages.test_state_machine import run
from waltzctl.engine.errors import DamageError, NoSuchPageError
from waltzctl.engine.pages.inspection import verify_store
from waltzctl.engine.pages.page_batch import WriteBatch
from waltzctl.engine.pages.page_cache import ENTRY_SIZE, LARGEST_SHARE, PageCache
from waltzctl.engine.pages.page_gc import collect_garbage
from waltzctl.engine.pages.page_options import PageOptions
from waltzctl.engine.pages.page_storage import PageStorage
from waltzctl.formats.pages.write_batch import PageId, Version

pytestmark = pytest.mark.usefixtures("with_cache")

ONE, TWO, THREE = PageId(0, 1), PageId(0, 2), PageId(0, 3)
NEW = Version(1)


def blob(path: Path) -> Path:
    return path / "blob" / "blobfile_1"


def spoil(path: Path) -> None:
    """Every byte of the first blob file."""
    blob(path).write_bytes(bytes(byte ^ 1 for byte in blob(path).read_bytes()))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[PageStorage]:
    with contextlib.closing(PageStorage.create(tmp_path / "s")) as opened:
        yield opened


def test_what_was_asked_for_stays() -> None:
    size = 100 + ENTRY_SIZE
    cache = PageCache(size * LARGEST_SHARE)
    for number in range(LARGEST_SHARE):
        cache.put(PageId(0, number), NEW, bytes([number]) * 100)
    assert cache.size == size * LARGEST_SHARE
    for number in range(LARGEST_SHARE - 1):
        assert cache.get(PageId(0, number), NEW) == bytes([number]) * 100
    cache.put(PageId(0, 77), NEW, b"x" * 100)
    assert cache.size == size * LARGEST_SHARE
    held = [number for number in range(LARGEST_SHARE) if cache.get(PageId(0, number), NEW)]
    assert held == list(range(LARGEST_SHARE - 1))


def test_many_pages_do_not_push_out_what_is_read_again_and_again() -> None:
    cache = PageCache(10_000)
    cache.put(ONE, NEW, b"again")
    for number in range(100, 400):
        assert cache.get(ONE, NEW) == b"again"
        cache.put(PageId(0, number), NEW, bytes(300))


def test_of_somewhat_more_than_fits_most_is_found() -> None:
    """The oldest one goes elsewhere, and it is always the one that is asked for next."""
    cache, found = PageCache(100 * (500 + ENTRY_SIZE)), 0
    for turn in range(10):
        for number in range(110):
            hit = cache.get(PageId(0, number), NEW) is not None
            found += hit and turn > 0
            if not hit:
                cache.put(PageId(0, number), NEW, bytes(500))
    assert found > 9 * 110 * 0.6


@pytest.mark.parametrize("more", [0, 1])
def test_how_large_a_page_may_be(more: int) -> None:
    cache = PageCache(LARGEST_SHARE * (1000 + ENTRY_SIZE))
    cache.put(ONE, NEW, bytes(1000 + more))
    assert (cache.get(ONE, NEW) is None, cache.size) == ((True, 0) if more else (False, 1000 + ENTRY_SIZE))


@given(
    st.integers(0, 9000),
    st.lists(st.tuples(st.integers(0, 12), st.integers(1, 3), st.integers(0, 900), st.booleans()), max_size=80),
)
def test_it_holds_what_was_put_and_no_more_than_it_may(limit: int, steps: list[tuple[int, int, int, bool]]) -> None:
    cache, content = PageCache(limit), dict[tuple[PageId, Version], bytes]()
    for page, sequence, size, puts in steps:
        key = (PageId(0, page), Version(sequence))
        if puts:
            content.setdefault(key, os.urandom(size))
            cache.put(*key, content[key])
        assert cache.get(*key) in (None, content.get(key))
        assert cache.size <= limit
        held = [one for one in content if cache.get(*one) is not None]
        assert cache.size == sum(len(content[one]) + ENTRY_SIZE for one in held)


@pytest.mark.parametrize("first", [put, lambda store, page, content: (put(store, page, content), data(store, page))])
def test_a_page_in_memory_is_not_read_again(
    store: PageStorage, tmp_path: Path, first: Callable[[PageStorage, int, bytes], object]
) -> None:
    first(store, 1, b"content")
    ref(store, 9, 1)
    spoil(tmp_path / "s")
    assert (data(store, 1), data(store, 9), bytes(store.read_many([1])[0].data)) == (b"content",) * 3
    assert [str(one.code) for one in verify_store(tmp_path / "s").findings] == ["page-checksum"]
    store.close()
    with PageStorage.open(tmp_path / "s") as again, pytest.raises(DamageError):
        again.read(1)


def test_a_page_is_kept_once_it_was_read(store: PageStorage, tmp_path: Path) -> None:
    put(store, 1, b"content")
    store.close()
    with PageStorage.open(tmp_path / "s") as again:
        assert data(again, 1) == b"content"
        spoil(tmp_path / "s")
        assert data(again, 1) == b"content"


def test_without_room_every_page_is_read(tmp_path: Path) -> None:
    with PageStorage.create(tmp_path / "s", PageOptions(cache_size=0)) as store:
        put(store, 1, b"content")
        assert data(store, 1) == b"content"
        spoil(tmp_path / "s")
        with pytest.raises(DamageError):
            store.read(1)


def test_a_damaged_page_is_not_kept(store: PageStorage, tmp_path: Path) -> None:
    put(store, 1, b"content")
    store.close()
    spoil(tmp_path / "s")
    with PageStorage.open(tmp_path / "s") as again:
        for _ in range(2):
            with pytest.raises(DamageError):
                again.read(1)


def test_versions_are_told_apart(store: PageStorage) -> None:
    put(store, 1, b"first")
    with store.snapshot() as before:
        put(store, 1, b"second")
        assert (data(store, 1), data(store, 1, before)) == (b"second", b"first")
    delete(store, 1)
    assert data(store, 1) is None
    put(store, 1, b"third")
    put(store, 1, b"namesake", namespace=5)
    assert data(store, 1) == b"third"


def test_the_last_one_of_a_batch_counts(store: PageStorage) -> None:
    store.write(WriteBatch().put_page(1, b"a").put_page(2, b"b").put_page(1, b"c"))
    assert (data(store, 1), data(store, 2)) == (b"c", b"b")
    store.write(WriteBatch().put_page(1, b"d").delete(1).put_page(1, b"e"))
    assert data(store, 1) == b"e"


def test_a_buffer_may_change_once_it_was_written(store: PageStorage) -> None:
    whole = bytearray(b"content")
    store.write(WriteBatch().put_page(1, whole).put_page(2, memoryview(b"xcontent")[1:]))
    whole[:] = b"CONTENT"
    assert (data(store, 1), data(store, 2)) == (b"content", b"content")


def test_what_is_refused_is_not_kept(store: PageStorage) -> None:
    put(store, 1, b"content")
    ref(store, 9, 1)
    for page in (1, 9):
        with pytest.raises(Exception, match="cannot be written"):
            put(store, page, b"refused")
    assert (data(store, 1), data(store, 9)) == (b"content", b"content")


def test_fields_of_a_page_in_memory(store: PageStorage, tmp_path: Path) -> None:
    store.write(WriteBatch().put_page(1, [b"one", b"", b"three"]))
    spoil(tmp_path / "s")
    assert [bytes(one) for one in store.read_fields(1, [2, 0, 1])] == [b"three", b"one", b""]
    assert [bytes(one) for one in store.read(1).fields] == [b"one", b"", b"three"]


def test_collection_reads_what_it_moves(tmp_path: Path) -> None:
    """A page that is damaged on the disk is not written anew from memory: nobody would be told."""
    store = PageStorage.create(tmp_path / "s", PageOptions(full_gc_rate=0.9))
    for page in range(4):
        put(store, page, bytes([page]) * 100)
    delete(store, 1, 2)
    spoil(tmp_path / "s")
    findings = [*collect_garbage(store).findings, *collect_garbage(store).findings]
    assert {str(one.code) for one in findings} == {"page-checksum"}
    store.close()


@pytest.mark.parametrize("size", [30_000, 1 << 20])
@pytest.mark.parametrize("seed", range(100, 103))
def test_a_store_with_a_cache_is_like_its_model(tmp_path: Path, seed: int, size: int) -> None:
    run(tmp_path / "store", seed, 120, replace(TIGHT, cache_size=size))


def test_an_external_page_has_no_data_whatever_its_own_batch_wrote_before(tmp_path: Path) -> None:
    with PageStorage.create(tmp_path / "s") as store:
        store.write(WriteBatch(0).put_page(1, b"data").delete(1).put_external(1))
        with pytest.raises(NoSuchPageError):
            store.read(1)
    with PageStorage.open(tmp_path / "s") as store, pytest.raises(NoSuchPageError):
        store.read(1)
