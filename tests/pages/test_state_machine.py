"""Random work against a plain model: writes that can be made and that cannot, snapshots, garbage collection, restarts."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.pages.model import TIGHT, Model, State, check, step
from waltzctl.engine.pages.page_gc import collect_garbage
from waltzctl.engine.pages.page_storage import PageStorage, Snapshot

SEEDS = 12
STEPS = 120


def run(path: Path, seed: int, steps: int) -> None:
    rng, model = random.Random(seed), Model()
    snapshots: dict[Snapshot, State] = {}
    store = PageStorage.create(path, TIGHT)
    for number in range(steps):
        step(rng, store, model, snapshots)
        if rng.random() < 0.06:
            snapshots.clear()
            store.close()
            store = PageStorage.open(path, TIGHT)
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
    with PageStorage.open(path, TIGHT) as again:
        check(again, model, {})


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_store_is_like_its_model(tmp_path: Path, seed: int) -> None:
    run(tmp_path / "store", seed, STEPS)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(100, 300))
def test_many_more(tmp_path: Path, seed: int) -> None:
    run(tmp_path / "store", seed, 600)
