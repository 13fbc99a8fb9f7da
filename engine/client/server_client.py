"""A client of a log server's port for requests about the server itself: its partitions, storage nodes and preferences.

It mounts nothing and has no client id; for appends and feeds see `engine.client.log_client`.

Source: release 0.13.2.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass

from waltzctl.engine.client.node_client import NodeClient, in_parts
from waltzctl.engine.client.port_protocol import LIMITS, A, NodePort
from waltzctl.engine.errors import RefusedError
from waltzctl.formats.request_id import NO_CLIENT, NO_PARTITION, RequestId
from waltzctl.formats.wire import client as wire
from waltzctl.formats.wire.frame import Magic
from waltzctl.formats.wire.hello import WALTZ_CLIENT, WALTZ_SERVER

MOST_PREFERRED = 10_000
"""Most partitions in one request: a server takes no frame of more than 64 KiB for them."""


@dataclass(frozen=True, slots=True)
class _NoFailure:
    """Stands for the failure response, which this port does not have."""

    sequence: int = -1


def _decode(body: memoryview, version: int) -> wire.ClientMessage:
    return wire.decode(bytes(body), version, limits=LIMITS)


SERVER_PORT: NodePort[wire.ClientMessage] = NodePort(
    Magic.CLIENT,
    wire.CLIENT_VERSIONS,
    WALTZ_CLIENT,
    WALTZ_SERVER,
    _decode,
    _NoFailure,  # type: ignore[arg-type]
)


class ServerClient(NodeClient[wire.ClientMessage]):
    """A connection to a log server."""

    _port = SERVER_PORT

    async def _open(self, cluster_key: uuid.UUID, num_partitions: int) -> None:
        raise RefusedError(f"{self.address}: a log server does not compare cluster keys")

    async def partitions(self) -> tuple[int, ...]:
        """The partitions that the server holds, ascending."""
        request = wire.ServerPartitionsAssignmentRequest(self._request_id())
        answer = await self._call(request, wire.ServerPartitionsAssignmentResponse, "its partitions")
        return tuple(sorted(answer.partitions))

    async def connectivity(self) -> tuple[tuple[str, bool], ...]:
        """The cluster's storage nodes (``host:port``), and whether each answers the server."""
        request = wire.CheckStorageConnectivityRequest(self._request_id())
        answer = await self._call(request, wire.CheckStorageConnectivityResponse, "its storage nodes")
        return tuple(sorted(answer.nodes))

    async def health(self) -> tuple[tuple[int, bool], ...]:
        """The server's partitions, and whether each has a store session."""
        request = wire.ServerPartitionsHealthRequest(self._request_id())
        return tuple(sorted((await self._call(request, wire.ServerPartitionsHealthResponse, "its health")).partitions))

    async def high_water_mark(self, partition: int) -> int:
        """The last committed transaction of a partition; -1: none.

        A server does not respond for a partition that it does not own; then DeadlineError is raised.
        """
        request = wire.HighWaterMarkRequest(self._request_id(partition))
        answer = await self._call(request, wire.HighWaterMarkResponse, f"high-water mark of partition {partition}")
        return answer.transaction_id

    async def prefer(self, partitions: Sequence[int], preferred: bool) -> None:
        """Add partitions to those that the server prefers, or remove them.  Raises RefusedError when the server could not.

        Many take several requests; after an error those in front of it were done.
        """
        for part in in_parts(partitions, MOST_PREFERRED):
            await self._prefer(part, preferred)

    async def _prefer(self, wanted: tuple[int, ...], preferred: bool) -> None:
        number = self._request_id(wanted[0] if wanted else NO_PARTITION)  # the first one, as in the release
        what = "preferred partitions"
        if preferred:
            add = wire.AddPreferredPartitionRequest(number, wanted)
            done = (await self._call(add, wire.AddPreferredPartitionResponse, what)).done
        else:
            remove = wire.RemovePreferredPartitionRequest(number, wanted)
            done = (await self._call(remove, wire.RemovePreferredPartitionResponse, what)).done
        if not done:
            raise RefusedError(
                f"{self.address}: the server could not do it, or not all of it: it may keep the preference and have found no way"
                " to assign anew",
                advice="its log says why; waltzctl cluster show tells what it prefers now",
            )

    def _request_id(self, partition: int = NO_PARTITION) -> RequestId:
        return RequestId(NO_CLIENT, 0, partition, self._connection.next_sequence())

    async def _call(self, request: wire.ClientRequest, expected: type[A], what: str) -> A:
        version = self._connection.version
        try:
            frame = wire.encode(request, version)
        except ValueError:
            raise RefusedError(f"{self.address}: version {version} of the protocol does not tell {what}") from None
        return await self._connection.call(request.request_id.sequence, frame, expected, what)
