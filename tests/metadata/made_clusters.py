"""Clusters of a few partitions and storage nodes, in the metadata that a test is about."""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable

from tests.metadata.stores import Stores
from waltzctl.engine.metadata.cluster_changes import (
    add_node,
    assign,
)
from waltzctl.engine.metadata.cluster_creation import create_cluster
from waltzctl.engine.metadata.metadata_store import MetadataStore
from waltzctl.formats.znodes import (
    PARTITION_PATH,
    PartitionMetadata,
    ReplicaState,
)

KEY = uuid.UUID("01234567-89ab-cdef-0123-456789abcdef")


def over(stores: Stores, test: Callable[[MetadataStore], Awaitable[None]], *, partitions: int = 4) -> None:
    """A test of a new cluster."""

    async def whole(stores: Stores) -> None:
        store = await stores.open()
        await create_cluster(store, name="demo", num_partitions=partitions, cluster_key=KEY)
        await test(store)

    stores.run(whole)


async def three(store: MetadataStore, partitions: range = range(4)) -> None:
    """Three nodes that hold everything."""
    for group in range(3):
        await add_node(store, f"n{group}:1", admin_port=2, group=group)
        await assign(store, f"n{group}:1", partitions)


async def last_session(store: MetadataStore, partition: int, *nodes: str) -> None:
    replicas = tuple(ReplicaState(partition, node, 7) for node in nodes)
    await store.create(f"{PARTITION_PATH}/{partition}", PartitionMetadata(1, 7, replicas).encode())
