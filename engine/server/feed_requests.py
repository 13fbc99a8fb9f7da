"""Mount and feed requests through one connection to the client port.

Feeds are pulled.  A client requests a feed from its high-water mark on; the server sends the transactions above it, as many as
the partition grants, and then FeedSuspended; the client requests more.  A mount is answered behind the transactions that are
above the client's mark by then.

A request is ignored if its connection has not mounted the partition, or if the same client has mounted it later through another
connection.  The client finds out by its next mount: while a later mount of it is known, an earlier one is *not ready*.  (A
released server leaves such a mount without an answer.)

Source: release 0.13.2.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from waltzctl.engine.net.connection import OVERHEAD
from waltzctl.engine.server.committed_transactions import Reader
from waltzctl.engine.server.mounted_clients import Mounted, MountedClients
from waltzctl.engine.server.served_partition import Partition
from waltzctl.engine.server.store_partition import PartitionClosedError
from waltzctl.formats.request_id import RequestId
from waltzctl.formats.wire import client as wire

_MOST_CLIENTS = 64
"""The most clients that may mount through one connection; usually it is one.  Partitions remember each mount while it lasts."""


class FeedingConnection(Reader, Mounted, Protocol):
    """The connection that mounts: `engine.server.client_port.ClientConnection`."""

    peer: str

    def begin_task(
        self, work: Coroutine[Any, Any, None], *, parked: int = 0, standing: int | None = None
    ) -> asyncio.Task[None]:
        """Answer a request in a task, which counts as a request under way."""

    def release_standing(self, task: asyncio.Task[None]) -> None:
        """A mount or feed is about to end: its place beside the bound of requests is the next one's."""

    def reply(self, message: wire.MountResponse | wire.FeedSuspended) -> None:
        """Queue a response for the next `send`."""


@dataclass(frozen=True, slots=True)
class _Mount:
    """What a client has mounted through the connection: the partition's mounts, and what answers its last mount or its feeds."""

    mounts: MountedClients
    tasks: dict[asyncio.Task[None], None] = field(default_factory=dict)  # an insertion-ordered set


class FeedRequests:
    """Answers the mount and feed requests of one connection.  Belongs to the event loop.

    `partitions`: those that are served now.  `complain`: logs a line about a peer.
    """

    def __init__(
        self, connection: FeedingConnection, partitions: Mapping[int, Partition], complain: Callable[[str], None]
    ) -> None:
        self._connection, self._partitions, self._complain = connection, partitions, complain
        self._clients = set[int]()  # ids of those that mounted
        # by partition and client: when thousands of connections end at once, none of them can look at every mount there is
        self._mounts = dict[tuple[int, int], _Mount]()

    def mount(self, request: wire.MountRequest) -> None:
        """Mount a partition, in place of the client's earlier mounts of it."""
        asked = request.request_id
        partition = self._partitions.get(asked.partition)
        if partition is None or partition.is_behind(asked.generation):
            self._connection.reply(wire.MountResponse(asked, wire.MountState.NOT_READY))
            return
        self._clients.add(asked.client)
        if len(self._clients) > _MOST_CLIENTS:
            self._complain(
                f"{self._connection.peer}: closed: {len(self._clients)} clients mount through it, {_MOST_CLIENTS} may"
            )
            self._connection.close()
            return
        if not partition.mounts.register(asked.client, asked.generation, request.connection_sequence, self._connection):
            # its appends and feed requests would be passed over: it is to mount again, until the other connection has ended
            self._connection.reply(wire.MountResponse(asked, wire.MountState.NOT_READY))
            return
        if (earlier := self._mounts.get((asked.partition, asked.client))) is not None:
            self._supersede(earlier)
        mount = self._mounts[asked.partition, asked.client] = _Mount(partition.mounts)
        self._begin(mount, self._answer_mount(partition, request), partition.number)

    def feed(self, request: wire.FeedRequest) -> None:
        """Send more of a feed, if the client's latest mount of the partition was made through this connection."""
        asked = request.request_id
        partition = self._partitions.get(asked.partition)
        if partition is not None and partition.mounts.is_registered(asked.client, self._connection):
            mount = self._mounts[partition.number, asked.client]
            self._begin(mount, self._answer_feed(partition, request), partition.number)

    def drop(self) -> None:
        """The connection is gone: forget its mounts.  The connection cancels the tasks that answer them."""
        for (_, client), mount in self._mounts.items():
            mount.mounts.forget(client, self._connection)
        self._mounts.clear()

    def _begin(self, mount: _Mount, work: Coroutine[Any, Any, None], partition: int) -> None:
        """Answer a mount or feed request, until the client mounts the partition again (`_supersede`)."""
        task = self._connection.begin_task(work, parked=OVERHEAD, standing=partition)
        mount.tasks[task] = None
        task.add_done_callback(lambda done: mount.tasks.pop(done, None))

    def _supersede(self, mount: _Mount) -> None:
        """The client mounts this anew: end the feeds of its earlier mounts through this connection.

        A client of the release that deactivates a partition says nothing, and mounts again when it activates it.  Nobody would
        read those feeds any more, each of which may wait for ever at the end of the log, as a request under way.
        """
        for task in [*mount.tasks]:
            self._connection.release_standing(task)
            task.cancel()

    async def _answer_mount(self, partition: Partition, request: wire.MountRequest) -> None:
        try:
            mark = await partition.flush()
            behind = mark - request.client_high_water_mark
            state = wire.MountState.READY
            if behind < 0:
                state = wire.MountState.CLIENT_AHEAD
                self._complain_ahead(request.request_id, request.client_high_water_mark, mark)
            await partition.committed.feed(self._connection, request.client_high_water_mark, behind)
        except PartitionClosedError:
            state = wire.MountState.NOT_READY
        self._connection.reply(wire.MountResponse(request.request_id, state))

    async def _answer_feed(self, partition: Partition, request: wire.FeedRequest) -> None:
        position = request.client_high_water_mark
        if position > partition.high_water_mark:
            self._complain_ahead(request.request_id, position, partition.high_water_mark)
            self._connection.close()
            return
        with contextlib.suppress(PartitionClosedError):  # the client follows the metadata to the partition's new server
            await partition.committed.feed(self._connection, position, partition.committed.grant(position))
            self._connection.reply(wire.FeedSuspended(request.request_id))

    def _complain_ahead(self, asked: RequestId, seen: int, mark: int) -> None:
        """Log that a client has seen more than there is: perhaps only clients know of the loss.

        One with a protocol version below 3 cannot be told: it hears *not ready*, and tries again for ever (weakness C6).
        """
        self._complain(
            f"{self._connection.peer}: client {asked.client} has seen transaction {seen} of partition {asked.partition}, and the"
            f" log ends at {mark}: transactions were lost (waltzctl compare tells who holds them), or it is another cluster's"
            " client"
        )
