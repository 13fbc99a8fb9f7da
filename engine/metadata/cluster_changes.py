"""Changes by an operator of a cluster's storage nodes, and of which node holds which partition.

A change is read, checked, and written in one transaction, which is guarded by the version of every znode it depends on.  So
concurrent changes never leave inconsistent maps (weakness Z1 of release 0.13.2).  The tools of the release write one znode after
the other under a lock.  Changes here take the same lock as well (`engine.metadata.tools_lock`).

=================  ==============================================================================================
change             refused if
=================  ==============================================================================================
`add_node`         one of the maps names the node
`remove_node`      no map names the node, or it has partitions
`assign`           a partition is beyond the cluster, or the node is unknown or has the partition already
`unassign`         the node does not have the partition; or fewer than a quorum of the last session's replicas
                   would be left, not counting those that lost records of that session: recovery could then wait
                   for ever for replicas that were taken away (weakness V16)
`auto_assign`      the group has no node, or a node that has partitions
=================  ==============================================================================================

Source: release 0.13.2 (its zookeeper tool).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Mapping

from waltzctl.engine.amounts import chosen_partitions
from waltzctl.engine.errors import InvalidRequestError, RefusedError
from waltzctl.engine.metadata.cluster_steps import APPLY, ATTEMPTS, Mode, Steps
from waltzctl.engine.metadata.metadata_store import (
    Change,
    Check,
    Create,
    Delete,
    MetadataStore,
    NodeExistsError,
    NodeVersionError,
)
from waltzctl.engine.metadata.node_maps import NodeMaps
from waltzctl.engine.metadata.partition_sessions import PartitionSessions, read_payload, store_parameters
from waltzctl.engine.metadata.tools_lock import tools_lock
from waltzctl.engine.quorum.vote import quorum_of
from waltzctl.engine.shell_words import shell_quote
from waltzctl.formats.znodes import (
    ASSIGNMENT_PATH,
    CONNECTION_PATH,
    GROUP_PATH,
    PARTITION_PATH,
    NodeAssignment,
    NodeConnections,
    NodeGroups,
)

_NONE_UNFIT: Mapping[str, str] = {}


async def add_node(store: MetadataStore, node: str, *, admin_port: int, group: int, mode: Mode = APPLY) -> Steps:
    """Add a storage node without partitions.  Raises RefusedError if the cluster has it already."""

    def change(maps: NodeMaps) -> None:
        if node in maps.nodes:
            raise RefusedError(f"{store.where}: storage node {node} is in the cluster already; nothing was changed")
        maps.groups[node], maps.assignment[node], maps.ports[node] = group, (), admin_port

    return await _change(store, change, mode)


async def remove_node(store: MetadataStore, node: str, *, mode: Mode = APPLY) -> Steps:
    """Remove a storage node.  Raises RefusedError if the cluster does not have it, or if it has partitions."""

    def change(maps: NodeMaps) -> None:
        _check_known(store, maps, node)
        if maps.assignment.get(node):
            raise RefusedError(
                f"{store.where}: storage node {node} has {len(maps.assignment[node])} partitions; nothing was changed",
                advice=f"take them away first: waltzctl cluster unassign {shell_quote(node)} --partition ...",
            )
        for one in (maps.groups, maps.assignment, maps.ports):
            one.pop(node, None)

    return await _change(store, change, mode)


async def assign(store: MetadataStore, node: str, partitions: Collection[int], *, mode: Mode = APPLY) -> Steps:
    """Assign partitions to a storage node.  Raises RefusedError, InvalidRequestError for a partition beyond the cluster."""
    chosen_partitions(partitions, await _partition_count(store, partitions))

    def change(maps: NodeMaps) -> None:
        _check_known(store, maps, node)
        held = maps.assignment.get(node, ())
        if twice := sorted({*held} & {*partitions}):
            raise RefusedError(
                f"{store.where}: storage node {node} has partition {twice[0]} already; nothing was changed"
            )
        maps.assignment[node] = tuple(sorted({*held, *partitions}))

    return await _change(store, change, mode)


async def unassign(
    store: MetadataStore,
    node: str,
    partitions: Collection[int],
    *,
    mode: Mode = APPLY,
    unfit: Mapping[int, Mapping[str, str]] | None = None,
) -> Steps:
    """Remove partitions from a storage node, also those beyond the cluster.  Raises RefusedError, as the module's table says.

    `unfit`: for each partition, the nodes whose replicas stay but cannot serve a recovery, each with the reason.
    """
    count, wanted = await _partition_count(store, partitions), {*partitions}

    def change(maps: NodeMaps) -> None:
        _check_known(store, maps, node)
        held = maps.assignment.get(node, ())
        chosen_partitions(wanted - {*held}, count)
        if missing := sorted(wanted - {*held}):
            raise RefusedError(
                f"{store.where}: storage node {node} does not have partition {missing[0]}; nothing was changed"
            )
        maps.assignment[node] = tuple(one for one in held if one not in wanted)
        held_by = {one: {*numbers} for one, numbers in maps.assignment.items()}
        for partition in sorted(wanted):
            left = {one for one, numbers in held_by.items() if partition in numbers}
            if last := maps.last_replicas[partition]:
                refuse_without_quorum(partition, last, left, (unfit or {}).get(partition, {}))

    return await _change(store, change, mode, sessions_of=partitions)


def refuse_without_quorum(
    partition: int, last: Collection[str], left: Collection[str], unfit: Mapping[str, str] = _NONE_UNFIT
) -> None:
    """Raise RefusedError if fewer than a quorum of a partition's last replicas would be left, not counting the unfit ones."""
    of_no_use = {node: unfit[node] for node in sorted({*last} & {*left} & {*unfit})}
    stay, wanted = len({*last} & {*left} - {*of_no_use}), quorum_of(len(last))
    if stay < wanted:
        names = ", ".join(sorted({*last} - {*left}))
        but = "".join(f"; {node} does not count: {why}" for node, why in of_no_use.items())
        advice = "let the log server open a session over the replicas that are to stay, then take the next one away"
        if of_no_use:
            advice = (
                "let those that do not count be mended and filled first; waltzctl cluster verify says when they are"
            )
        raise RefusedError(
            f"partition {partition}: its last session had {len(last)} replicas, of which recovery needs {wanted}, and {stay}"
            f" would be left without {names}{but}; nothing was changed",
            advice=advice,
        )


async def auto_assign(store: MetadataStore, group: int, *, mode: Mode = APPLY) -> Steps:
    """Distribute all partitions over the nodes of a group in turn, one replica of each.  Raises RefusedError."""
    parameters = await store_parameters(store)

    def change(maps: NodeMaps) -> None:
        nodes = sorted(node for node, number in maps.groups.items() if number == group)
        if not nodes:
            raise RefusedError(f"{store.where}: no storage node is in group {group}; nothing was changed")
        if busy := [node for node in nodes if maps.assignment.get(node)]:
            raise RefusedError(
                f"{store.where}: storage node {busy[0]} of group {group} has partitions; nothing was changed",
                advice="use waltzctl cluster assign",
            )
        for place, node in enumerate(nodes):
            maps.assignment[node] = tuple(range(place, parameters.num_partitions, len(nodes)))

    return await _change(store, change, mode)


async def _change(
    store: MetadataStore, change: Callable[[NodeMaps], None], mode: Mode, *, sessions_of: Collection[int] = ()
) -> Steps:
    """Read the maps and the sessions of some partitions, apply `change`, and write the maps if nothing read has changed since."""
    if mode.plan_only:
        maps, _ = await _read(store, sessions_of)
        change(maps)
        return tuple(maps.steps())
    async with tools_lock(store):
        for _ in range(ATTEMPTS):
            maps, rests_on = await _read(store, sessions_of)
            change(maps)
            steps = tuple(maps.steps())
            mode.check(store.where, steps)
            with contextlib.suppress(NodeVersionError, NodeExistsError):
                await store.commit((*rests_on, *maps.changes()))
                return steps
    raise RefusedError(f"{store.where}: others kept writing the assignment; nothing was changed", advice="try again")


async def _read(store: MetadataStore, sessions_of: Collection[int]) -> tuple[NodeMaps, tuple[Change, ...]]:
    """The maps with the last replicas of some partitions, and changes for the transaction that guard these sessions."""
    groups, first = await read_payload(store, GROUP_PATH, NodeGroups)
    assignment, second = await read_payload(store, ASSIGNMENT_PATH, NodeAssignment)
    connections, third = await read_payload(store, CONNECTION_PATH, NodeConnections)
    maps = NodeMaps((groups, first.version), (assignment, second.version), (connections, third.version))
    rests_on: list[Change] = []
    replicas = maps.replicas()
    for partition in sessions_of:
        metadata, version = await PartitionSessions(store).partition(partition)
        maps.last_replicas[partition] = frozenset(one.node for one in metadata.replicas)
        path = f"{PARTITION_PATH}/{partition}"
        if version >= 0:
            rests_on.append(Check(path, version))
        elif replicas[partition] - 1 < quorum_of(replicas[partition]):
            # no session yet, and if the first one opened meanwhile it might need every replica: check that there is still no node
            # of the partition.  A transaction has no such check; creating and deleting the node in it has the same effect
            rests_on += [Create(path), Delete(path)]
    return maps, tuple(rests_on)


def _check_known(store: MetadataStore, maps: NodeMaps, node: str) -> None:
    if node not in maps.nodes:
        raise RefusedError(
            f"{store.where}: there is no storage node {node}; nothing was changed",
            advice="its name is HOST:PORT of the data port, as waltzctl cluster show has it",
        )


async def _partition_count(store: MetadataStore, partitions: Collection[int]) -> int:
    """The cluster's number of partitions.  Raises InvalidRequestError if `partitions` is empty."""
    if not partitions:
        raise InvalidRequestError("no partition was named")
    return (await store_parameters(store)).num_partitions
