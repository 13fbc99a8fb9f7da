"""Making a cluster: what is written, and what is refused."""

from __future__ import annotations

import asyncio

import pytest

from tests.golden import GOLDEN, needs_golden
from tests.metadata.made_clusters import KEY, over
from tests.metadata.stores import Stores
from waltzctl.engine.errors import (
    InvalidRequestError,
    NotWaltzError,
    RefusedError,
)
from waltzctl.engine.metadata.cluster_creation import create_cluster
from waltzctl.engine.metadata.cluster_state import read_cluster_state
from waltzctl.engine.metadata.metadata_store import MetadataStore


@pytest.mark.turns(8)
@needs_golden
def test_a_new_cluster_has_the_nodes_of_a_released_one(stores: Stores) -> None:
    import json

    recorded = [
        json.loads(one) for one in (GOLDEN / "zookeeper" / "cluster-a-after-stop.jsonl").read_text().splitlines()
    ]
    (root, *_) = recorded
    theirs = {one["path"].removeprefix("/waltz_cluster").lstrip("/") for one in recorded}

    async def test(store: MetadataStore) -> None:
        ours = {""}
        for above in ("", "ids", "store", "store/partition", "serverDescriptors"):
            ours |= {f"{above}/{name}".lstrip("/") for name in await store.children(above)}
        assert ours == {one for one in theirs if not one.startswith("store/partition/")}
        assert (await store.get(""))[0].hex() == root["dataHex"].replace(b"waltz_cluster".hex(), b"demo".hex()).replace(
            "000d", "0004"
        )
        assert (await store.get("serverDescriptors"))[0].hex() == "03ffffffff0000000000000000"
        assert (await store.get("store"))[0].hex() == "01" + "0123456789abcdef" * 2 + "00000004"
        assert (await store.get("ids/server"))[0] == (await store.get("ids/client"))[0] == bytes(4)
        for path in ("store/group", "store/assignment", "store/connection"):
            assert (await store.get(path))[0].hex() == "0100000000"

    over(stores, test)


def test_a_cluster_is_made_once_and_where_nothing_is(stores: Stores) -> None:
    async def test(store: MetadataStore) -> None:
        with pytest.raises(RefusedError, match="there is something already"):
            await create_cluster(store, name="other", num_partitions=1, cluster_key=KEY)
        assert (await read_cluster_state(store)).name == "demo"

    over(stores, test)


@pytest.mark.parametrize("number", [0, -1, 10_000_000])
def test_a_number_of_partitions_that_cannot_be_is_refused(stores: Stores, number: int) -> None:
    async def test(stores: Stores) -> None:
        store = await stores.open()
        with pytest.raises(InvalidRequestError):
            await create_cluster(store, name="x", num_partitions=number, cluster_key=KEY)
        assert await store.exists("") is None

    stores.run(test)


def test_of_two_that_make_a_cluster_at_once_one_does(stores: Stores) -> None:
    async def test(stores: Stores) -> None:
        opened = [(await stores.open(), name) for name in ("a", "b")]
        made = await asyncio.gather(
            *(create_cluster(store, name=name, num_partitions=1, cluster_key=KEY) for store, name in opened),
            return_exceptions=True,
        )
        assert sorted(type(one).__name__ for one in made) == ["NoneType", "RootTakenError"]
        winner = "ab"[made.index(None)]
        assert (await read_cluster_state(await stores.open())).name == winner

    stores.run(test)


def test_a_root_without_a_cluster_is_told(stores: Stores) -> None:
    async def test(stores: Stores) -> None:
        store = await stores.open()
        with pytest.raises(NotWaltzError, match="create the cluster first"):
            await read_cluster_state(store)
        await store.create_root()
        with pytest.raises(NotWaltzError, match="holds nothing"):
            await read_cluster_state(store)

    stores.run(test)
