"""One cluster in ZooKeeper, as a log server uses it: its parameters, its partitions' metadata, and its place among the servers.

The library's calls block, and go to threads; every one has a deadline.  What the library tells from its own threads is handed to
the event loop.

Servers: each has an ephemeral descriptor.  The one with the smallest id that lives computes the assignment anew when the
descriptors changed, and writes it if nobody was faster.  Every server reads it and serves what it names.  Who loses its session
is told, because somebody else will be given its partitions.

Source: release 0.13.2 (its cluster manager); what the znodes hold: `formats.znodes`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, TypeVar

from waltzctl.engine.errors import (
    ConcurrentUpdateError,
    DeadlineError,
    NotWaltzError,
    PeerUnreachableError,
)
from waltzctl.engine.metadata.assignment_policy import assign
from waltzctl.engine.metadata.zookeeper_connection import connected
from waltzctl.engine.metadata.zookeeper_options import ZooKeeperOptions
from waltzctl.formats.znodes import (
    ASSIGNMENT_PATH,
    PARTITION_PATH,
    SERVERS_PATH,
    STORE_PATH,
    NodeAssignment,
    PartitionMetadata,
    ReplicaState,
    ServerAssignment,
    ServerDescriptor,
    StoreParameters,
)

T = TypeVar("T")
Assigned = Callable[[Mapping[int, int]], None]
"""Called in the event loop with the partitions that a server is to serve, each with its generation."""
_DESCRIPTOR = "s_"
_SERVER_IDS = "ids/server"


class ZooKeeperCluster:
    """A connection to one cluster's metadata.  Made by `open_cluster`."""

    def __init__(self, client: Any, options: ZooKeeperOptions, log: logging.Logger) -> None:
        self._client, self._options, self._log = client, options, log
        self._root = options.cluster_root.rstrip("/")
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()
        self._registered: ServerDescriptor | None = None
        self._path = ""
        self.lost: asyncio.Future[str] = self._loop.create_future()

    # ---- calls ---------------------------------------------------------------------------------------------------------

    async def _call(self, what: str, call: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        """One of the library's asynchronous calls, within the deadline."""
        from kazoo.exceptions import BadVersionError, KazooException, NodeExistsError, NoNodeError

        def wait() -> Any:
            return call(*arguments, **named).get(True, self._options.connect_timeout)

        where = f"ZooKeeper at {self._options.connect_string}"
        try:
            return await asyncio.to_thread(wait)
        except (NoNodeError, NodeExistsError, BadVersionError):
            raise
        except self._client.handler.timeout_exception:
            raise DeadlineError(where, f"no answer within {self._options.connect_timeout:g} s: {what}") from None
        except KazooException as error:
            raise PeerUnreachableError(where, f"{what}: {type(error).__name__} {error}") from None

    def _at(self, path: str) -> str:
        return f"{self._root}/{path}"

    async def _get(self, path: str, watch: Callable[[Any], None] | None = None) -> tuple[bytes, Any]:
        from kazoo.exceptions import NoNodeError

        try:
            data, stat = await self._call(f"reading {path}", self._client.get_async, self._at(path), watch=watch)
        except NoNodeError:
            raise NotWaltzError(
                f"ZooKeeper at {self._options.connect_string}: there is no node {self._at(path)}",
                advice="check cluster.root, and create the cluster first",
            ) from None
        return bytes(data), stat

    async def store_parameters(self) -> StoreParameters:
        """The cluster's key and number of partitions.  Raises NotWaltzError, PeerError."""
        return StoreParameters.decode((await self._get(STORE_PATH))[0])

    # ---- partitions ----------------------------------------------------------------------------------------------------

    async def assigned(self, partition: int) -> tuple[str, ...]:
        """See `engine.server.store_partition.SessionMetadata`."""
        found = NodeAssignment.decode((await self._get(ASSIGNMENT_PATH))[0])
        return tuple(sorted(one.node for one in found.nodes if partition in one.partitions))

    async def _partition(self, partition: int) -> tuple[PartitionMetadata, int]:
        data, stat = await self._get(f"{PARTITION_PATH}/{partition}")
        return (PartitionMetadata.decode(data) if data else PartitionMetadata()), stat.version

    async def _write(self, partition: int, metadata: PartitionMetadata, version: int) -> bool:
        from kazoo.exceptions import BadVersionError

        path = f"{PARTITION_PATH}/{partition}"
        try:
            await self._call(
                f"writing {path}", self._client.set_async, self._at(path), metadata.encode(), version=version
            )
        except BadVersionError:
            return False
        return True

    async def begin_session(self, partition: int, generation: int) -> PartitionMetadata:
        """See `engine.server.store_partition.SessionMetadata`."""
        from kazoo.exceptions import NodeExistsError

        with contextlib.suppress(NodeExistsError):
            path = f"{PARTITION_PATH}/{partition}"
            await self._call(
                f"creating {path}", self._client.create_async, self._at(path), PartitionMetadata().encode()
            )
        while True:
            known, version = await self._partition(partition)
            if known.generation > generation:
                raise ConcurrentUpdateError(
                    f"partition {partition}: it is served under generation {known.generation}, and {generation} is what this"
                    " server was given"
                )
            begun = PartitionMetadata(generation, known.session_id + 1, known.replicas)
            if await self._write(partition, begun, version):
                return begun

    async def write_replicas(self, partition: int, session_id: int, replicas: tuple[ReplicaState, ...]) -> None:
        """See `engine.server.store_partition.SessionMetadata`."""
        while True:
            known, version = await self._partition(partition)
            if known.session_id != session_id:
                raise ConcurrentUpdateError(
                    f"partition {partition}: session {known.session_id} has begun behind session {session_id}"
                )
            if known.replicas == replicas:
                return
            written = PartitionMetadata(known.generation, session_id, replicas)
            if await self._write(partition, written, version):
                return

    # ---- servers -------------------------------------------------------------------------------------------------------

    async def register(self, host: str, port: int) -> int:
        """Take the next server id and stand among the servers; the id."""
        from kazoo.exceptions import BadVersionError

        while True:
            data, stat = await self._get(_SERVER_IDS)
            number = int.from_bytes(data, "big", signed=True) + 1
            with contextlib.suppress(BadVersionError):
                await self._call(
                    f"writing {_SERVER_IDS}",
                    self._client.set_async,
                    self._at(_SERVER_IDS),
                    number.to_bytes(4, "big", signed=True),
                    version=stat.version,
                )
                break
        self._registered = ServerDescriptor(number, host, port, ())
        self._path = await self._call(
            "registering this server",
            self._client.create_async,
            f"{self._at(SERVERS_PATH)}/{_DESCRIPTOR}",
            self._registered.encode(),
            ephemeral=True,
            sequence=True,
        )
        return number

    async def follow(self, assigned: Assigned) -> None:
        """Tell the registered server what it is to serve, whenever that changes; assign where that is its duty.  For ever."""
        told: Mapping[int, int] | None = None
        while True:
            self._changed.clear()
            try:
                now = await self._look()
            except PeerUnreachableError as error:
                self._log.warning("%s", error)
                await asyncio.sleep(1.0)
                continue
            if now is not None and now != told:
                told = now
                assigned(now)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), self._options.session_timeout)

    def _wake(self, event: Any) -> None:
        self._loop.call_soon_threadsafe(self._changed.set)

    async def _look(self) -> Mapping[int, int] | None:
        """What this server serves now; None while the assignment is not that of the servers that live."""
        from kazoo.exceptions import BadVersionError, NoNodeError

        assert self._registered is not None, "it registered"
        children = await self._call(
            "listing the servers", self._client.get_children_async, self._at(SERVERS_PATH), watch=self._wake
        )
        data, stat = await self._get(SERVERS_PATH, self._wake)
        assignment = ServerAssignment.decode(data)
        if assignment.cversion != stat.cversion:
            servers = []
            for name in children:
                with contextlib.suppress(NoNodeError):
                    found, _ = await self._call(
                        "reading a server", self._client.get_async, f"{self._at(SERVERS_PATH)}/{name}"
                    )
                    servers.append(ServerDescriptor.decode(bytes(found)))
            if not servers or min(one.server for one in servers) != self._registered.server:
                return None
            store = await self.store_parameters()
            assignment = assign(assignment, stat.cversion, store.num_partitions, servers)
            try:
                await self._call(
                    "writing the assignment",
                    self._client.set_async,
                    self._at(SERVERS_PATH),
                    assignment.encode(),
                    version=stat.version,
                )
            except BadVersionError:
                self._changed.set()  # somebody was faster, or the servers changed: look again
                return None
        return {
            held.partition: held.generation
            for one in assignment.servers
            if one.server == self._registered.server
            for held in one.partitions
        }

    async def unregister(self) -> None:
        """Leave the servers: the partitions are given to others at once, and not when the session times out."""
        if self._path:
            with contextlib.suppress(Exception):
                await self._call("unregistering", self._client.delete_async, self._path)
            self._path = ""

    def session_changed(self, state: Any) -> None:
        """The library's listener: in one of its threads."""
        if str(state) == "LOST":
            self._loop.call_soon_threadsafe(self._tell_lost)

    def _tell_lost(self) -> None:
        if not self.lost.done():
            self.lost.set_result("the session with ZooKeeper is over; its partitions go to other servers")


@contextlib.asynccontextmanager
async def open_cluster(options: ZooKeeperOptions, *, log: logging.Logger) -> AsyncIterator[ZooKeeperCluster]:
    """Connect.  Raises PeerUnreachableError, InvalidRequestError."""
    stack = contextlib.ExitStack()
    client = await asyncio.to_thread(stack.enter_context, connected(options))
    made = ZooKeeperCluster(client, options, log)
    client.add_listener(made.session_changed)
    try:
        yield made
    finally:
        await made.unregister()
        client.remove_listener(made.session_changed)
        await asyncio.to_thread(stack.close)
