"""The client of a storage node's admin port (magic A, codec versions 0 and 1).

A released node speaks version 0, which has one switch for reads and writes; ours speaks version 1 as well, which has two, and
tells where a record is on disk.
Admin requests need no session and are subject to none of the data port's checks.

Sources: release 0.13.2; the two switches: design document *Storage protocol*.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from waltzctl.engine.client.node_client import NodeClient, in_parts
from waltzctl.engine.client.port_protocol import LIMITS, A, NodePort
from waltzctl.engine.errors import PeerUnreachableError, ProtocolError, RefusedError
from waltzctl.formats.wire import admin as wire
from waltzctl.formats.wire.frame import Magic
from waltzctl.formats.wire.hello import ADMIN_CLIENT, ADMIN_SERVER
from waltzctl.formats.wire.records import SessionInfo, WireRecord


def _decode(body: memoryview, version: int) -> wire.AdminMessage:
    return wire.decode(body, version, limits=LIMITS)


_PORT: NodePort[wire.AdminMessage] = NodePort(
    Magic.ADMIN, wire.ADMIN_VERSIONS, ADMIN_CLIENT, ADMIN_SERVER, _decode, wire.FailureResponse
)


MOST_CHANGED = 1 << 16
"""Most partitions in one request; a node takes a quarter of a million numbers in a frame at most."""


class AdminClient(NodeClient[wire.AdminMessage]):
    """A connection to an admin port.  A released node closes it when a request names a partition that does not exist."""

    _port = _PORT

    @property
    def has_two_switches(self) -> bool:
        """Whether reads and writes can be switched separately (version 1 of the protocol)."""
        return self._connection.version >= 1

    async def _open(self, cluster_key: uuid.UUID, num_partitions: int) -> None:
        await self._call(wire.OpenRequest(cluster_key, num_partitions), wire.SuccessResponse, "open")

    async def set_available(self, partitions: Sequence[int], available: bool) -> None:
        """Switch reads and writes on or off together.

        Version 1 needs two requests for each partition, so after a failure some of them may have been done.  Switching off begins
        with writes and switching on with reads: in between, a partition is read-only.
        """
        if not self.has_two_switches:
            for part in in_parts(partitions, MOST_CHANGED):
                await self._change(wire.PartitionAvailableRequest(self._sequence(), part, available), "availability")
            return
        for partition in partitions:
            if available:
                await self.set_readable(partition, True)
                await self.set_writable(partition, True)
            else:
                await self.set_writable(partition, False)
                await self.set_readable(partition, False)

    async def set_readable(self, partition: int, on: bool) -> None:
        """Switch reads of one partition.  Raises RefusedError when the node has one switch for both."""
        self.need_two_switches("reads")
        request = wire.PartitionReadRequest(self._sequence(), partition, on)
        await self._call(request, wire.SuccessResponse, f"switching reads of partition {partition}")

    async def set_writable(self, partition: int, on: bool) -> None:
        """Switch writes of one partition.  Raises RefusedError when the node has one switch for both."""
        self.need_two_switches("writes")
        request = wire.PartitionWriteRequest(self._sequence(), partition, on)
        await self._call(request, wire.SuccessResponse, f"switching writes of partition {partition}")

    async def assign(self, partitions: Sequence[int]) -> None:
        """Assign partitions to the node, which creates their files.  Partitions that are assigned already do not change.

        More than `MOST_CHANGED` take several requests, here and in the other calls; after an error those in front were done.
        """
        for part in in_parts(partitions, MOST_CHANGED):
            request = wire.PartitionAssignmentRequest(self._sequence(), part, True, False)
            await self._change(request, "assigning partitions")

    async def unassign(self, partitions: Sequence[int], *, delete_files: bool = False) -> None:
        """Take partitions away from the node.

        With `delete_files` their files are removed.  A released node forgets their session and marks in any case.
        """
        for part in in_parts(partitions, MOST_CHANGED):
            request = wire.PartitionAssignmentRequest(self._sequence(), part, False, delete_files)
            await self._change(request, "taking partitions away")

    async def records(self, partition: int, first_transaction_id: int, max_count: int) -> tuple[WireRecord, ...]:
        """At most `max_count` consecutive records from a transaction on, perhaps none.  Checksums are not verified."""
        asked = min(max_count, LIMITS.max_records)  # of more than are decoded here the connection would end
        request = wire.RecordListRequest(self._sequence(), partition, first_transaction_id, asked)
        what = f"record list of partition {partition}"
        answer = await self._call(request, wire.RecordListResponse, what, long_answer=True)
        self._check_partition(partition, answer.partition)
        if len(answer.records) > max(max_count, 0):
            raise ProtocolError(
                str(self.address), f"{len(answer.records)} records in the answer, {max_count} were asked for"
            )
        return answer.records

    async def place_of(self, partition: int, transaction_id: int) -> tuple[int, int] | None:
        """The first transaction of a record's segment, and the record's byte offset there.

        None if there is no such record, and from a node with version 0 of the protocol, which cannot tell.
        """
        if self._connection.version < 1:
            return None
        request = wire.RecordPlaceRequest(self._sequence(), partition, transaction_id)
        answer = await self._call(request, wire.RecordPlaceResponse, f"place of a record of partition {partition}")
        self._check_partition(partition, answer.partition)
        return (answer.segment, answer.offset) if min(answer.segment, answer.offset) >= 0 else None

    async def session_info(self, partition: int) -> SessionInfo:
        """The persisted session and its marks."""
        request = wire.LastSessionInfoRequest(self._sequence(), partition)
        answer = await self._call(request, wire.LastSessionInfoResponse, f"session info of partition {partition}")
        self._check_partition(partition, answer.partition)
        return answer.info

    async def metrics(self) -> str:
        """The node's metrics, a JSON document (`engine.client.partition_readings.parse_metrics` reads it)."""
        return (await self._call(wire.MetricsRequest(self._sequence()), wire.MetricsResponse, "metrics")).json

    async def assigned_status(self) -> tuple[tuple[int, bool], ...]:
        """The partitions that the node has loaded, ascending, each with whether it can be read and written."""
        request = wire.AssignedPartitionStatusRequest(self._sequence())
        answer = await self._call(request, wire.AssignedPartitionStatusResponse, "assigned partitions")
        return tuple(sorted(answer.statuses))

    def _sequence(self) -> int:
        return self._connection.next_sequence()

    async def _call(self, request: wire.AdminRequest, expected: type[A], what: str, *, long_answer: bool = False) -> A:
        frame = self._encoded(what, wire.encode, request, self._connection.version)
        return await self._connection.call(request.sequence, frame, expected, what, long_answer=long_answer)

    async def _change(self, request: wire.AdminRequest, what: str) -> None:
        try:
            await self._call(request, wire.SuccessResponse, what)
        except PeerUnreachableError as error:
            if self.has_two_switches or error.advice is not None:
                raise
            reason = error.message.removeprefix(f"{error.peer}: ")
            advice = "a released node does so over a partition number that its cluster does not have"
            raise PeerUnreachableError(error.peer, reason, advice=advice) from error

    def need_two_switches(self, what: str) -> None:
        """Raise RefusedError when the node has one switch for both.  `what`: "reads" or "writes", for the message."""
        if not self.has_two_switches:
            raise RefusedError(
                f"{self.address}: this node has one switch for reads and writes together, not one for {what}",
                advice="use --online true or false; nodes of waltzctl have both switches",
            )

    def _check_partition(self, asked: int, answered: int) -> None:
        if asked != answered:
            raise ProtocolError(str(self.address), f"an answer about partition {answered}, asked about {asked}")
