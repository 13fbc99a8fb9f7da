"""The workloads that the released program is measured with, in their own sizes: whatever was written is there after a restart."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.pages.stores import crash, put
from waltzctl.engine.pages.inspection import verify_store
from waltzctl.engine.pages.page_batch import WriteBatch
from waltzctl.engine.pages.page_gc import collect_garbage
from waltzctl.engine.pages.page_options import PageOptions
from waltzctl.engine.pages.page_storage import PageStorage
from waltzctl.formats.checksums import crc32c

pytestmark = pytest.mark.turns(8)

KIB = 1024
MIB = 1024 * KIB
OPTIONS = PageOptions(blob_limit=32 * MIB, log_size=64 * KIB, cache_size=0)
FIELD_SIZES = [MIB // 1000 + (place < MIB % 1000) for place in range(1000)]
Batch = dict[int, bytes]


def heavy_write(rng: random.Random) -> Iterator[Batch]:
    """Four pages of 1 byte to 2 MiB in a batch."""
    for _ in range(40):
        yield {rng.randrange(60): rng.randbytes(rng.randint(1, 2 * MIB)) for _ in range(4)}


def skewed_window(rng: random.Random) -> Iterator[Batch]:
    """Pages of 10 KiB to 1 MiB around the middle of a window of 500 that wanders."""
    for turn in range(200):
        yield {turn + min(499, max(0, round(rng.gauss(250, 13)))): rng.randbytes(rng.randint(10 * KIB, MIB))}


def many_fields(rng: random.Random) -> Iterator[Batch]:
    """Pages of 1 MiB in 1000 fields."""
    for _ in range(40):
        yield {rng.randrange(12): rng.randbytes(MIB)}


@pytest.mark.parametrize("workload", [heavy_write, skewed_window, many_fields])
def test_what_a_workload_wrote(tmp_path: Path, workload: Callable[[random.Random], Iterator[Batch]]) -> None:
    rng, kept = random.Random(workload.__name__), dict[int, int]()
    sizes = FIELD_SIZES if workload is many_fields else []
    store = PageStorage.create(tmp_path / "s", OPTIONS)
    for turn, pages in enumerate(workload(rng)):
        batch = WriteBatch()
        for page, content in pages.items():
            batch.put_page(page, content, tag=turn, field_sizes=sizes)
            kept[page] = crc32c(content)
        store.write(batch)
        if turn % 20 == 19:
            assert collect_garbage(store, checkpoint=turn % 40 == 39).findings == []
    crash(store)
    with PageStorage.open(tmp_path / "s", OPTIONS) as again:
        for _ in range(3):
            assert collect_garbage(again).findings == []
        assert {one.page.id: crc32c(again.read(one.page.id).data) for one in again.traverse()} == kept
        amplification = again.status().space_amplification
        assert amplification is not None
        assert amplification < 2
        if sizes:
            page = next(iter(kept))
            assert [len(one) for one in again.read(page).fields] == sizes
            chosen = rng.sample(range(1000), 20)
            whole = again.read(page).fields
            assert again.read_fields(page, chosen) == [bytes(whole[number]) for number in chosen]
    assert verify_store(tmp_path / "s").findings == ()


def test_heavy_reading(tmp_path: Path) -> None:
    """Every page again and again, in any order, alone and many at once, from several stores' worth of snapshots."""
    rng = random.Random(8)
    store = PageStorage.create(tmp_path / "s", OPTIONS)
    held = []
    for version in range(3):
        contents = {page: bytes([version]) * rng.randint(1, 200 * KIB) for page in range(60)}
        for page, content in contents.items():
            put(store, page, content, tag=version)
        held.append((store.snapshot(), contents))
    for _ in range(3000):
        snapshot, contents = rng.choice(held)
        page = rng.randrange(60)
        if rng.random() < 0.05:
            pages = rng.sample(range(60), 5)
            read = store.read_many(pages, snapshot=snapshot)
            assert [one.data for one in read] == [contents[number] for number in pages]
        else:
            assert store.read(page, snapshot=snapshot).data == contents[page]
    for snapshot, _ in held:
        snapshot.close()
    store.close()


def test_hundred_snapshots_that_are_held_cost_what_they_see(tmp_path: Path) -> None:
    """Of pages that are written over ten times between two of them a snapshot keeps one version each."""
    store = PageStorage.create(tmp_path / "s", OPTIONS)
    held, seen = [], []
    for number in range(100):
        for turn in range(10):
            for page in range(4):
                put(store, page, b"%d %d " % (number, turn) * 100)
        held.append(store.snapshot())
        seen.append(b"%d 9 " % number * 100)
    assert store.snapshot_statistics().count == 100
    collect_garbage(store)
    assert store.directory.size.rows == 400
    for snapshot, content in zip(held, seen, strict=True):
        assert [one.data for one in store.read_many(range(4), snapshot=snapshot)] == [content] * 4
        snapshot.close()
    collect_garbage(store)
    assert store.directory.size.rows == 4
    store.close()
