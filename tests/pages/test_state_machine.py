"""Random work against a plain model: writes that can be made and that cannot, snapshots, collection, restarts, full disks."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.pages.model import TIGHT, Model, State, as_batch, check, expected, random_batch, shown_by, step
from tests.pages.stores import crash, disk_full_after
from waltzctl.engine.errors import DiskFullError, PageConflictError, PageStoreFailedError
from waltzctl.engine.pages.page_gc import collect_garbage
from waltzctl.engine.pages.page_options import PageOptions
from waltzctl.engine.pages.page_storage import PageStorage
from waltzctl.engine.pages.snapshots import Snapshot

SEEDS = 12
STEPS = 120


def run(path: Path, seed: int, steps: int, options: PageOptions = TIGHT) -> None:
    rng, model = random.Random(seed), Model()
    snapshots: dict[Snapshot, State] = {}
    store = PageStorage.create(path, options)
    for number in range(steps):
        step(rng, store, model, snapshots)
        if rng.random() < 0.06:
            snapshots.clear()
            (crash if rng.random() < 0.5 else PageStorage.close)(store)
            store = PageStorage.open(path, options)
        if number % 5 == 0:
            check(store, model, snapshots)
    check(store, model, snapshots)
    for snapshot in snapshots:
        snapshot.close()
    for _ in range(3):
        collect_garbage(store, checkpoint=True)
    check(store, model, {})
    used = {one.content for one in model.pages.values()}
    assert sum(blob.valid for blob in store.status().blobs) == sum(len(one.data or b"") for one in used)
    assert all(
        blob.boundary == (store.path / "blob" / f"blobfile_{blob.file_id}").stat().st_size
        for blob in store.status().blobs
    )
    store.close()
    with PageStorage.open(path, options) as again:
        check(again, model, {})


@pytest.mark.turns(8)
@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_store_is_like_its_model(tmp_path: Path, seed: int) -> None:
    run(tmp_path / "store", seed, STEPS)


def until_full(path: Path, seed: int, room: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """Work on a disk with `room` bytes left; how many writes succeeded.  What was promised is there, and work goes on."""
    rng, model, done = random.Random(seed), Model(), 0
    store = PageStorage.create(path, TIGHT)
    disk_full_after(monkeypatch, room)
    allowed = [expected(model.pages)]
    try:
        for _ in range(200):
            before = model.copy()
            edits = random_batch(rng, model, 0)
            try:
                model.apply(edits, 0)
            except PageConflictError:
                continue
            allowed = [expected(before.pages), expected(model.pages)]
            store.write(as_batch(edits, 0))
            allowed, done = allowed[1:], done + 1
            if rng.random() < 0.3:
                collect_garbage(store, checkpoint=rng.random() < 0.5)
    except (DiskFullError, PageStoreFailedError):
        assert shown_by(store) == allowed[0]  # what failed is not shown, whatever the log has of it
    monkeypatch.undo()
    crash(store)
    with PageStorage.open(path, TIGHT) as again:
        assert shown_by(again) in allowed
        again.write(as_batch([("put", 99, b"room again", 0, ())], 0))
        collect_garbage(again, checkpoint=True)
    return done


@pytest.mark.turns(12)
@pytest.mark.parametrize("seed", range(3))
def test_a_disk_that_is_full_at_any_write(tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blob file, log, end of a log, checkpoint, copy of a collection: at each byte of them somewhere."""
    rng = random.Random(seed)
    done = [
        until_full(tmp_path / str(number), seed, number * 400 + rng.randrange(400), monkeypatch)
        for number in range(100)
    ]
    assert done[0] <= 1
    assert done[-1] > 6
    assert len(set(done)) > 6


@pytest.mark.long
@pytest.mark.parametrize("seed", range(100, 300))
def test_many_more(tmp_path: Path, seed: int) -> None:
    run(tmp_path / "store", seed, 600)
