"""Creates a cluster's metadata, without storage nodes, in one transaction.

Source: release 0.13.2 (its zookeeper tool).
"""

from __future__ import annotations

import contextlib
import uuid

from waltzctl.engine.errors import InvalidRequestError, RefusedError
from waltzctl.engine.metadata.metadata_store import Create, MetadataStore, NodeExistsError, NodeVersionError, Set
from waltzctl.formats.control import MAX_PARTITIONS
from waltzctl.formats.znodes import (
    ASSIGNMENT_PATH,
    CLIENT_IDS_PATH,
    CONNECTION_PATH,
    GROUP_PATH,
    IDS_PATH,
    PARTITION_PATH,
    SERVER_IDS_PATH,
    SERVERS_PATH,
    STORE_PATH,
    ClusterParameters,
    IssuedId,
    NodeAssignment,
    NodeConnections,
    NodeGroups,
    ServerAssignment,
    StoreParameters,
)


class RootTakenError(RefusedError):
    """There is something at the root where a cluster was to be made."""


async def create_cluster(store: MetadataStore, *, name: str, num_partitions: int, cluster_key: uuid.UUID) -> None:
    """Create a cluster without storage nodes.  Raises RootTakenError if there is one at this root, InvalidRequestError."""
    if not 0 < num_partitions <= MAX_PARTITIONS:
        raise InvalidRequestError(f"{num_partitions} partitions; a cluster has 1 to {MAX_PARTITIONS}")
    await refuse_where_something_is(store)
    await store.create_root()
    data, state = await store.get("")
    if data:
        await refuse_where_something_is(store)
    none_issued = IssuedId(0).encode()
    with contextlib.suppress(NodeExistsError, NodeVersionError):
        await store.commit(
            (
                Set("", ClusterParameters(name, num_partitions).encode(), state.version),
                Create(SERVERS_PATH, ServerAssignment(-1, 0, ()).encode()),
                Create(IDS_PATH),
                Create(CLIENT_IDS_PATH, none_issued),
                Create(SERVER_IDS_PATH, none_issued),
                Create(STORE_PATH, StoreParameters(cluster_key, num_partitions).encode()),
                Create(PARTITION_PATH),
                Create(GROUP_PATH, NodeGroups(()).encode()),
                Create(ASSIGNMENT_PATH, NodeAssignment(()).encode()),
                Create(CONNECTION_PATH, NodeConnections(()).encode()),
            )
        )
        return
    raise RootTakenError(f"{store.where}: somebody else made a cluster there at the same moment")


async def refuse_where_something_is(store: MetadataStore) -> None:
    """Raise RootTakenError unless the root is missing or empty."""
    if await store.exists("") is not None and ((await store.get(""))[0] or await store.children("")):
        raise RootTakenError(
            f"{store.where}: there is something already; nothing was changed",
            advice="choose another root, or look at it with waltzctl cluster show; a cluster that was made or deleted by half"
            " goes with waltzctl cluster delete",
        )
