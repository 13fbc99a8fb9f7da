"""Changes of a cluster's metadata by an operator: the cluster, its storage nodes, and which node holds which partition.

A change is read, checked, and written in one transaction, which is guarded by the version of every znode it depends on.  So
concurrent changes never leave inconsistent maps (weakness Z1 of release 0.13.2).  The tools of the release write one znode after
the other under a lock.  Changes here take the same lock as well.

=================  ==============================================================================================
change             refused if
=================  ==============================================================================================
`create_cluster`   the root exists and is not empty
`add_node`         one of the maps names the node
`remove_node`      no map names the node, or it has partitions
`assign`           a partition is beyond the cluster, or the node is unknown or has the partition already
`unassign`         the node does not have the partition; or fewer than a quorum of the last session's replicas
                   would be left, not counting those that lost records of that session: recovery could then wait
                   for ever for replicas that were taken away (weakness V16)
`auto_assign`      the group has no node, or a node that has partitions
`delete_cluster`   another name is given, a log server or another tool is at work, or another cluster lies below
=================  ==============================================================================================

Source: release 0.13.2 (its zookeeper tool).
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import hashlib
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from waltzctl.engine.amounts import chosen_partitions
from waltzctl.engine.errors import DeadlineError, InvalidRequestError, PeerError, RefusedError, StalePlanError
from waltzctl.engine.metadata.metadata_store import (
    Change,
    Check,
    Create,
    Delete,
    MetadataStore,
    NodeExistsError,
    NodeMissingError,
    NodeNotEmptyError,
    NodeVersionError,
    SessionLostError,
    Set,
)
from waltzctl.engine.metadata.partition_sessions import PartitionSessions, read_payload, store_parameters
from waltzctl.engine.net.futures import taken
from waltzctl.engine.quorum.vote import quorum_of
from waltzctl.engine.shell_words import shell_quote
from waltzctl.formats.control import MAX_PARTITIONS
from waltzctl.formats.znodes import (
    ASSIGNMENT_PATH,
    CLIENT_IDS_PATH,
    CLUSTER_MAGIC,
    CONNECTION_PATH,
    GROUP_PATH,
    IDS_PATH,
    LOCK_PATH,
    PARTITION_PATH,
    SERVER_IDS_PATH,
    SERVERS_PATH,
    STORE_PATH,
    ClusterParameters,
    IssuedId,
    NodeAssignment,
    NodeConnection,
    NodeConnections,
    NodeGroup,
    NodeGroups,
    NodePartitions,
    ServerAssignment,
    StoreParameters,
)


class MetadataAction(enum.StrEnum):
    """A kind of change to the metadata."""

    ADD_NODE = "add-node"
    REMOVE_NODE = "remove-node"
    ASSIGN = "assign"
    UNASSIGN = "unassign"
    DELETE_CLUSTER = "delete-cluster"


@dataclass(frozen=True, slots=True)
class ClusterStep:
    """One step of a change; `node`, `partition`: None if it concerns all of them."""

    action: MetadataAction
    node: str | None
    partition: int | None
    reason: str
    loses_data: bool = False
    rests_on: str = ""
    """A hash of what the step depends on, if the other fields do not determine it: a changed one makes a plan stale."""


Steps = tuple[ClusterStep, ...]


@dataclass(frozen=True, slots=True)
class Mode:
    """Whether a change is planned or applied.

    `plan_only`: read and check, and write nothing, not even the lock.  `agreed`: the steps that the operator confirmed; if the
    change would take other steps by now, nothing is done and StalePlanError is raised.
    """

    plan_only: bool = False
    agreed: Steps | None = None

    def check(self, where: str, steps: Steps) -> None:
        """Raise StalePlanError if `steps` are not the agreed ones."""
        if self.agreed is not None and steps != self.agreed:
            raise StalePlanError(
                f"{where}: the metadata has changed since the plan was made; nothing was done",
                advice="look at it again",
            )


PLAN_ONLY, APPLY = Mode(plan_only=True), Mode()
LOCK_SECONDS = 10.0
"""Seconds to wait for another tool that holds the lock."""
_CANCELLED_SECONDS = 1.0
"""Seconds for which a caller that was cancelled waits until it has given the lock back."""
_ATTEMPTS = 20
"""Attempts for a change that concurrent writers may defeat."""
_DELETED_AT_ONCE = 500
"""Nodes in one transaction of `delete_cluster`."""
_MAKE_A_CLUSTER = (IDS_PATH, SERVERS_PATH, GROUP_PATH, ASSIGNMENT_PATH, CONNECTION_PATH)
"""Nodes without which no server or client registers, and no partition has a replica."""
_CLUSTER = CLUSTER_MAGIC.to_bytes(4, "big")
"""What the root of a cluster begins with."""
_NONE_UNFIT: Mapping[str, str] = {}


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


async def delete_cluster(store: MetadataStore, *, name: str | None = None, mode: Mode = APPLY) -> Steps:
    """Delete the root and everything below it.

    Many nodes take several transactions.  The first one leaves a root that has a name and is no cluster any more: no server can
    register and no storage node reads a key there, whatever a crash leaves, until the next call completes the deletion.

    Raises RefusedError if the cluster's name is not `name` (None: any), if there are ephemeral nodes (a log server runs), or if
    another cluster lies below the root; StalePlanError.
    """
    for _ in range(_ATTEMPTS):
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


async def add_node(store: MetadataStore, node: str, *, admin_port: int, group: int, mode: Mode = APPLY) -> Steps:
    """Add a storage node without partitions.  Raises RefusedError if the cluster has it already."""

    def change(maps: _Maps) -> None:
        if node in maps.nodes:
            raise RefusedError(f"{store.where}: storage node {node} is in the cluster already; nothing was changed")
        maps.groups[node], maps.assignment[node], maps.ports[node] = group, (), admin_port

    return await _change(store, change, mode)


async def remove_node(store: MetadataStore, node: str, *, mode: Mode = APPLY) -> Steps:
    """Remove a storage node.  Raises RefusedError if the cluster does not have it, or if it has partitions."""

    def change(maps: _Maps) -> None:
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

    def change(maps: _Maps) -> None:
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

    def change(maps: _Maps) -> None:
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

    def change(maps: _Maps) -> None:
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


# ---- the maps of nodes -------------------------------------------------------------------------------------------------


class _Maps:
    """The three maps of storage nodes (group, partitions, admin port), as read; a change edits them."""

    def __init__(
        self,
        groups: tuple[NodeGroups, int],
        assignment: tuple[NodeAssignment, int],
        connections: tuple[NodeConnections, int],
    ) -> None:
        self.groups = {one.node: one.group for one in groups[0].nodes}
        self.assignment = {one.node: one.partitions for one in assignment[0].nodes}
        self.ports = {one.node: one.admin_port for one in connections[0].nodes}
        self.last_replicas: dict[int, frozenset[str]] = {}
        """For each partition of the change: the nodes of the last session's replicas."""
        self._read = (groups, assignment, connections)

    @property
    def nodes(self) -> frozenset[str]:
        """Every node that a map names."""
        return frozenset((*self.groups, *self.assignment, *self.ports))

    def replicas(self) -> Counter[int]:
        """The number of nodes of each partition."""
        return Counter(partition for held in self.assignment.values() for partition in {*held})

    def steps(self) -> Iterator[ClusterStep]:
        """The steps from the maps as read to the maps now."""
        (groups, _), (assignment, _), (connections, _) = self._read
        before = {one.node: {*one.partitions} for one in assignment.nodes}
        known = {one.node for one in groups.nodes} | {*before} | {one.node for one in connections.nodes}
        for node in sorted(self.nodes - known):
            reason = f"group {self.groups[node]}, admin port {self.ports[node]}; without a partition as yet"
            yield ClusterStep(MetadataAction.ADD_NODE, node, None, reason)
        for node in sorted(known - self.nodes):
            yield ClusterStep(MetadataAction.REMOVE_NODE, node, None, "it holds no partition")
        replicas = self.replicas()
        for node in sorted(self.nodes | known):
            now, then = {*self.assignment.get(node, ())}, before.get(node, set())
            for partition in sorted(now - then):
                others = replicas[partition] - 1
                yield ClusterStep(MetadataAction.ASSIGN, node, partition, f"a replica beside {others} others")
            for partition in sorted(then - now):
                text = f"{replicas[partition]} replicas stay; the node keeps its files"
                yield ClusterStep(MetadataAction.UNASSIGN, node, partition, text)

    def changes(self) -> tuple[Change, ...]:
        """The transaction: a write of each map that differs, a version check of each other one."""
        groups, assignment, connections = self._read
        pairs = (
            (GROUP_PATH, groups, NodeGroups(tuple(NodeGroup(*one) for one in self.groups.items()))),
            (
                ASSIGNMENT_PATH,
                assignment,
                NodeAssignment(tuple(NodePartitions(*one) for one in self.assignment.items())),
            ),
            (CONNECTION_PATH, connections, NodeConnections(tuple(NodeConnection(*one) for one in self.ports.items()))),
        )
        return tuple(
            Check(path, version) if now == before else Set(path, now.encode(), version)
            for path, (before, version), now in pairs
        )


async def _change(
    store: MetadataStore, change: Callable[[_Maps], None], mode: Mode, *, sessions_of: Collection[int] = ()
) -> Steps:
    """Read the maps and the sessions of some partitions, apply `change`, and write the maps if nothing read has changed since."""
    if mode.plan_only:
        maps, _ = await _read(store, sessions_of)
        change(maps)
        return tuple(maps.steps())
    async with _lock(store):
        for _ in range(_ATTEMPTS):
            maps, rests_on = await _read(store, sessions_of)
            change(maps)
            steps = tuple(maps.steps())
            mode.check(store.where, steps)
            with contextlib.suppress(NodeVersionError, NodeExistsError):
                await store.commit((*rests_on, *maps.changes()))
                return steps
    raise RefusedError(f"{store.where}: others kept writing the assignment; nothing was changed", advice="try again")


async def _read(store: MetadataStore, sessions_of: Collection[int]) -> tuple[_Maps, tuple[Change, ...]]:
    """The maps with the last replicas of some partitions, and changes for the transaction that guard these sessions."""
    groups, first = await read_payload(store, GROUP_PATH, NodeGroups)
    assignment, second = await read_payload(store, ASSIGNMENT_PATH, NodeAssignment)
    connections, third = await read_payload(store, CONNECTION_PATH, NodeConnections)
    maps = _Maps((groups, first.version), (assignment, second.version), (connections, third.version))
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


@contextlib.asynccontextmanager
async def _lock(store: MetadataStore) -> AsyncIterator[None]:
    """Hold the lock of the release's tools.  If it is lost meanwhile, the versions still guard what is written."""
    gone = asyncio.Event()
    lost = store.lost  # taken before the lock is created, so that the session's end cannot be missed
    # a deadline for waiting only: calls have the store's own deadline
    until = asyncio.get_running_loop().time() + LOCK_SECONDS
    try:
        while True:
            gone.clear()
            if await _take_lock(store, lost):
                break
            if await store.exists(LOCK_PATH, gone.set) is not None:
                async with asyncio.timeout_at(until):
                    await gone.wait()
    except TimeoutError:
        raise DeadlineError(
            store.where,
            f"another tool holds {LOCK_PATH} for {LOCK_SECONDS:g} s",
            advice="wait for it; the lock of one that died goes with its session",
        ) from None
    give_back = _give_lock_back
    try:
        yield
    except asyncio.CancelledError:
        give_back = _give_lock_back_soon
        raise
    finally:
        await asyncio.shield(asyncio.ensure_future(give_back(store, lost)))  # also where it is cancelled here


async def _take_lock(store: MetadataStore, lost: asyncio.Future[str]) -> bool:
    """Create the lock; False if there is one.

    A caller that is cancelled meanwhile does not get it, though it may be created all the same, and its connection stay open.
    """
    taking = asyncio.ensure_future(store.create(LOCK_PATH, ephemeral=True))
    try:
        await asyncio.shield(taking)
    except NodeExistsError:
        return False
    except asyncio.CancelledError:
        await asyncio.shield(asyncio.ensure_future(_give_lock_back_soon(store, lost, taking)))
        raise
    return True


async def _give_lock_back_soon(
    store: MetadataStore, lost: asyncio.Future[str], taking: asyncio.Task[str] | None = None
) -> None:
    """As `_give_lock_back`, behind a cancellation: raises nothing in its place, and waits for silent metadata only shortly.

    What is not done by then goes on behind the caller, and at the latest the end of the session gives the lock back.
    """
    giving = asyncio.ensure_future(_give_lock_back(store, lost, taking))
    giving.add_done_callback(taken)
    await asyncio.wait([giving], timeout=_CANCELLED_SECONDS)


async def _give_lock_back(
    store: MetadataStore, lost: asyncio.Future[str], taking: asyncio.Task[str] | None = None
) -> None:
    """Delete the lock, once it is created (`taking`), if that succeeds.

    `lost`: of the session of the lock.  If the store does not answer the lock goes with the session; what was changed under it is
    committed.
    """
    with contextlib.suppress(NodeExistsError, NodeMissingError, SessionLostError, PeerError):
        if taking is not None:
            await taking
        if not lost.done():  # otherwise the lock went with the session; one that exists now is another tool's
            await store.delete(LOCK_PATH)


def _check_known(store: MetadataStore, maps: _Maps, node: str) -> None:
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
