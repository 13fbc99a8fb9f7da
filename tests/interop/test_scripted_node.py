"""Our client against a released node made of its recordings: every request as a released client sends it, every answer read."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any

import pytest

from tests.golden import needs_golden
from tests.interop.conversations import PARTITIONS, Step, decoded, encoded, recorded_steps
from tests.interop.scripted_node import ScriptedNode
from waltzctl.engine.client.admin_client import AdminClient
from waltzctl.engine.client.storage_client import StorageClient
from waltzctl.engine.errors import PeerUnreachableError, ProtocolError, RemoteError
from waltzctl.formats.wire import admin, storage
from waltzctl.formats.wire.hello import ADMIN_CLIENT, ADMIN_SERVER, STORAGE_CLIENT, Hello
from waltzctl.formats.wire.records import pack_records

PATIENCE = 60.0
HOST = "127.0.0.1"
UNKNOWN_VERSION = 8
"""The recorded connection whose client offers version 7 only: not for a client of ours to play."""
CONNECTIONS = [number for number in sorted({step.connection for step in recorded_steps()}) if number != UNKNOWN_VERSION]


def steps_of(connection: int) -> list[Step]:
    return [step for step in recorded_steps() if step.connection == connection]


def ask_storage(client: StorageClient, message: storage.StorageRequest, *, packed: bool) -> Coroutine[Any, Any, Any]:
    """The call of our client that should send this request."""
    match message:
        case storage.OpenRequest():
            return client.open(message.cluster_key, message.num_partitions)
        case storage.LastSessionInfoRequest(session, _, partition, offline):
            return client.last_session_info(session, partition, offline=offline)
        case storage.SetLowWaterMarkRequest(session, _, partition, mark, offline):
            return client.set_low_water_mark(session, partition, mark, offline=offline)
        case storage.TruncateRequest(session, _, partition, transaction_id, offline):
            return client.truncate(session, partition, transaction_id, offline=offline)
        case storage.AppendRequest(session, _, partition, records, offline) if packed:
            return client.append_encoded(session, partition, len(records), pack_records(records), offline=offline)
        case storage.AppendRequest(session, _, partition, records, offline):
            return client.append(session, partition, records, offline=offline)
        case storage.RecordHeaderRequest(session, _, partition, transaction_id):
            return client.record_header(session, partition, transaction_id)
        case storage.RecordRequest(session, _, partition, transaction_id):
            return client.record(session, partition, transaction_id)
        case storage.MaxTransactionIdRequest(session, _, partition, offline):
            return client.max_transaction_id(session, partition, offline=offline)
        case storage.RecordHeaderListRequest(session, _, partition, first, count):
            return client.record_headers(session, partition, first, count)
        case storage.RecordListRequest(session, _, partition, first, count):
            return client.records(session, partition, first, count)


def ask_admin(client: AdminClient, message: admin.AdminRequest) -> Coroutine[Any, Any, Any]:
    """The call of our client that should send this request."""
    match message:
        case admin.OpenRequest():
            return client.open(message.cluster_key, message.num_partitions)
        case admin.PartitionAvailableRequest(_, partitions, available):
            return client.set_available(partitions, available)
        case admin.PartitionAssignmentRequest(_, partitions, True):
            return client.assign(partitions)
        case admin.PartitionAssignmentRequest(_, partitions, False, delete_files):
            return client.unassign(partitions, delete_files=delete_files)
        case admin.RecordListRequest(_, partition, first, count):
            return client.records(partition, first, count)
        case admin.LastSessionInfoRequest(_, partition):
            return client.session_info(partition)
        case admin.MetricsRequest():
            return client.metrics()
        case admin.AssignedPartitionStatusRequest():
            return client.assigned_status()
        case _:
            raise AssertionError(f"no request of version 0: {message}")


def result_of(message: Any) -> Any:
    """What our client should return for a recorded response."""
    match message:
        case storage.LastSessionInfoResponse() | admin.LastSessionInfoResponse():
            return message.info
        case storage.MaxTransactionIdResponse():
            return message.transaction_id
        case storage.RecordHeaderResponse():
            return message.header
        case storage.RecordResponse():
            return message.record
        case storage.RecordHeaderListResponse():
            return message.headers
        case storage.RecordListResponse() | admin.RecordListResponse():
            return message.records
        case admin.MetricsResponse():
            return message.json
        case admin.AssignedPartitionStatusResponse():
            return message.statuses
        case storage.SuccessResponse() | admin.SuccessResponse():
            return None
        case _:
            raise AssertionError(f"no response: {message}")


CODES = {
    "Provided cluster key is inconsistent": "mismatch",
    "Provided number of partitions is inconsistent": "mismatch",
    "transaction out of order": "out-of-order",
    "session id has changed": "session-changed",
    "is not assigned": "not-assigned",
    "have been disabled": "not-available",
    "while partition is online": "online",
    "low-water mark is lower": "mark-would-fall",
    "unable to set low watermark": "mark-would-fall",
}
"""What a released text means: the code that our client is to tell."""


async def play(steps: Sequence[Step], *, packed: bool = False) -> None:
    """Make every step of a connection with our client."""
    async with ScriptedNode(steps) as node:
        client: StorageClient | AdminClient
        kind = AdminClient if steps[0].admin else StorageClient
        client = await kind.connect(HOST, node.port, ssl_context=None, timeout=PATIENCE)
        async with client:
            for step in node.steps:
                if step.request[3:7] != bytes(4):
                    await _ask(client, step, packed=packed)
                    assert not node.wrong
        async with asyncio.timeout(PATIENCE):
            await node.finished.wait()
        assert node.complete, node.wrong or f"{node.done} of {len(node.steps)} steps were made"
        expected = Hello((0, 1), ADMIN_CLIENT).encode() if steps[0].admin else steps[0].request
        assert node.client_hello == expected


async def _ask(client: StorageClient | AdminClient, step: Step, *, packed: bool) -> None:
    request = decoded(step.request)
    call = (
        ask_admin(client, request) if isinstance(client, AdminClient) else ask_storage(client, request, packed=packed)
    )
    if step.closed:
        with pytest.raises(PeerUnreachableError, match="the peer closed the connection"):
            await call
        assert client.closed
        return
    response = decoded(step.answers[0])
    if not isinstance(response, (storage.FailureResponse, admin.FailureResponse)):
        assert await call == result_of(response), step.name
        return
    with pytest.raises(RemoteError) as caught:
        await call
    text = response.failure.message.partition(": ")[2]
    assert text in str(caught.value)
    assert caught.value.code == next(code for part, code in CODES.items() if part in text)
    assert not client.closed


@needs_golden
@pytest.mark.parametrize("packed", [False, True], ids=["records", "records-in-wire-form"])
@pytest.mark.parametrize("connection", CONNECTIONS)
def test_our_client_makes_a_released_client_s_requests_and_reads_the_answers(connection: int, packed: bool) -> None:
    asyncio.run(play(steps_of(connection), packed=packed))


@needs_golden
def test_every_request_type_of_version_0_is_among_them() -> None:
    """What the test above proves is only as wide as this."""
    made = {(step.admin, step.request[7]) for step in recorded_steps() if not step.opens and len(step.request) > 7}
    assert {number for to_admin, number in made if not to_admin} == storage.REQUEST_TYPES
    of_version_1 = {admin.PartitionWriteRequest.TYPE, admin.RecordPlaceRequest.TYPE}
    assert {number for to_admin, number in made if to_admin} == admin.REQUEST_TYPES - of_version_1


@needs_golden
def test_a_script_notices_a_request_that_is_not_the_recorded_one() -> None:
    """Else the tests above could not fail."""

    async def wrong() -> None:
        steps = [step for step in recorded_steps() if step.label == "storage"][:3]
        async with ScriptedNode(steps) as node:
            opened = decoded(steps[1].request)
            async with await StorageClient.connect(
                HOST, node.port, ssl_context=None, cluster_key=opened.cluster_key, num_partitions=PARTITIONS
            ) as client:
                with pytest.raises(PeerUnreachableError):
                    await client.last_session_info(101, 0)
            assert "LastSessionInfoRequest(session_id=101" in node.wrong
            assert not node.complete

    asyncio.run(wrong())


@needs_golden
def test_a_refused_key_ends_the_client() -> None:
    """The release's clients close when the open request fails; so does ours, and says whose cluster it is not."""

    async def refused() -> None:
        steps = [step for step in recorded_steps() if step.label == "storage-wrong-key"][:2]
        opened = decoded(steps[1].request)
        async with ScriptedNode(steps) as node:
            with pytest.raises(RemoteError, match="Provided cluster key is inconsistent") as caught:
                await StorageClient.connect(
                    HOST, node.port, ssl_context=None, cluster_key=opened.cluster_key, num_partitions=PARTITIONS
                )
            assert caught.value.status == "mismatch"
            async with asyncio.timeout(PATIENCE):
                await node.finished.wait()
            assert node.complete

    asyncio.run(refused())


@needs_golden
def test_no_common_version_is_said_so() -> None:
    """The recorded peer that speaks version 7 only, as a node."""

    async def strange() -> None:
        (hello,) = [step for step in recorded_steps() if step.connection == UNKNOWN_VERSION]
        assert decoded(hello.request) == Hello((7,), STORAGE_CLIENT)
        async with ScriptedNode([_answering(hello, Hello((7,), ADMIN_SERVER))]) as node:
            with pytest.raises(ProtocolError, match="no common version: the peer speaks 7, we 0, 1"):
                await AdminClient.connect(HOST, node.port, ssl_context=None)

    asyncio.run(strange())


@needs_golden
def test_an_idle_client_sends_the_recorded_keep_alive() -> None:
    async def idle() -> None:
        recorded = next(step.request for step in recorded_steps() if step.name.startswith("KeepAlive"))
        steps = [step for step in recorded_steps() if step.label == "storage"][:1]
        async with (
            ScriptedNode(steps) as node,
            await StorageClient.connect(HOST, node.port, ssl_context=None, keep_alive_seconds=0.01) as client,
        ):
            async with asyncio.timeout(PATIENCE):
                assert await node.keep_alives.get() == recorded
                assert await node.keep_alives.get() == recorded
            assert not client.closed

    asyncio.run(idle())


def _answering(step: Step, *messages: Any) -> Step:
    answers = tuple(encoded(message) for message in messages)
    return Step(step.connection, step.label, step.name, step.admin, step.request, answers, step.closed, step.last)
