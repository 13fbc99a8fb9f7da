"""Deletes a cluster's metadata: the root and everything below it.

A deletion is read, checked, and written like every change (`engine.metadata.cluster_changes`), but without the lock of the
operators' tools, which is one of the nodes to delete: one that is held stands for a tool at work, and refuses the deletion.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence

from waltzctl.engine.errors import RefusedError
from waltzctl.engine.metadata.cluster_steps import APPLY, ATTEMPTS, ClusterStep, MetadataAction, Mode, Steps
from waltzctl.engine.metadata.metadata_store import (
    Change,
    Delete,
    MetadataStore,
    NodeMissingError,
    NodeNotEmptyError,
    NodeVersionError,
    Set,
)
from waltzctl.engine.metadata.partition_sessions import read_payload
from waltzctl.formats.znodes import (
    ASSIGNMENT_PATH,
    CLUSTER_MAGIC,
    CONNECTION_PATH,
    GROUP_PATH,
    IDS_PATH,
    LOCK_PATH,
    SERVERS_PATH,
    STORE_PATH,
    ClusterParameters,
)

_DELETED_AT_ONCE = 500
"""Nodes in one transaction."""
_MAKE_A_CLUSTER = (IDS_PATH, SERVERS_PATH, GROUP_PATH, ASSIGNMENT_PATH, CONNECTION_PATH)
"""Nodes without which no server or client registers, and no partition has a replica."""
_CLUSTER = CLUSTER_MAGIC.to_bytes(4, "big")
"""What the root of a cluster begins with."""


async def delete_cluster(store: MetadataStore, *, name: str | None = None, mode: Mode = APPLY) -> Steps:
    """Delete the root and everything below it.

    Many nodes take several transactions.  The first one leaves a root that has a name and is no cluster any more: no server can
    register and no storage node reads a key there, whatever a crash leaves, until the next call completes the deletion.

    Raises RefusedError if the cluster's name is not `name` (None: any), if there are ephemeral nodes (a log server runs), or if
    another cluster lies below the root; StalePlanError.
    """
    for _ in range(ATTEMPTS):
        try:
            steps, deletions = await _deletion(store, name)
        except NodeMissingError:  # somebody deleted a node while the tree was read
            continue
        mode.check(store.where, steps)
        if mode.plan_only:
            return steps
        first, *rest = _transactions(deletions)
        try:
            await store.commit(first)
        except (NodeMissingError, NodeVersionError, NodeNotEmptyError):
            continue  # somebody wrote meanwhile: is it what was agreed to?
        for changes in rest:
            await store.commit(changes)
        return steps
    raise RefusedError(f"{store.where}: others kept writing the metadata; nothing was changed", advice="try again")


async def _deletion(store: MetadataStore, name: str | None) -> tuple[Steps, list[Delete]]:
    """The steps of a deletion, and the nodes to delete, children before parents.  Raises RefusedError, NodeMissingError."""
    parameters, _ = await read_payload(store, "", ClusterParameters)
    if name is not None and parameters.name != name:
        raise RefusedError(
            f"{store.where}: the cluster is called {parameters.name!r}, not {name!r}; nothing was changed"
        )
    content = hashlib.sha256()
    deletions: list[Delete] = []
    at_work: str | None = None
    for path in await _tree(store, ""):
        data, state = await store.get(path)
        if state.ephemeral:
            at_work = at_work or path
        if path and data.startswith(_CLUSTER):
            raise RefusedError(
                f"{store.where}: another cluster lies below it, {path}; nothing was changed",
                advice="delete that one first, if nobody needs it",
            )
        content.update(repr((path, data)).encode())
        deletions.append(Delete(path, state.version))
    if at_work is not None:  # behind the other cluster, whose servers nobody is to stop for this
        advice = "wait for the other tool" if at_work == LOCK_PATH else "stop the log servers first"
        raise RefusedError(
            f"{store.where}: {at_work} belongs to a process that is at work; nothing was changed", advice=advice
        )
    what = f"cluster {parameters.name!r}: {parameters.num_partitions} partitions, {len(deletions)} nodes of metadata"
    reason = f"{what}; without them nobody knows which replicas are up to date"
    step = ClusterStep(MetadataAction.DELETE_CLUSTER, None, None, reason, loses_data=True, rests_on=content.hexdigest())
    return (step,), deletions


def _transactions(deletions: Sequence[Delete]) -> Iterator[Sequence[Change]]:
    """The transactions of a deletion, the root last: an interrupted one can be repeated.

    `deletions`: of all nodes, children before parents.
    """
    if len(deletions) <= _DELETED_AT_ONCE:
        yield deletions
        return
    first: list[Change] = []
    rest: list[Change] = []
    for one in deletions:
        if any(one.path == path or one.path.startswith(f"{path}/") for path in _MAKE_A_CLUSTER):
            first.append(one)
        elif one.path == STORE_PATH:  # it cannot go before what is below it
            first.append(Set(STORE_PATH, b"", one.version))
            rest.append(Delete(STORE_PATH, one.version + 1))
        else:
            rest.append(one)
    yield first
    for begin in range(0, len(rest), _DELETED_AT_ONCE):
        yield rest[begin : begin + _DELETED_AT_ONCE]


async def _tree(store: MetadataStore, path: str) -> list[str]:
    """The paths of a node and all below it, children before parents."""
    found = []
    for name in await store.children(path):
        found += await _tree(store, f"{path}/{name}".lstrip("/"))
    return [*found, path]
