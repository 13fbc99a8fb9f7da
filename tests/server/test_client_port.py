"""The client port over real storage nodes: mounts, appends, locks, feeds, data, fail-over of nodes and servers."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from tests.node.running import LOOPS, run
from tests.server.serving import QUICK, Client, serving
from tests.server.storing import PARTITION, committed, until
from waltzctl.engine.errors import PeerUnreachableError
from waltzctl.engine.net.connection import OVERHEAD
from waltzctl.engine.net.peer_limits import STORAGE_GROWTH, PortLimits
from waltzctl.engine.server import client_port
from waltzctl.engine.server.feed_requests import _MOST_CLIENTS
from waltzctl.engine.server.server_settings import PartitionOptions
from waltzctl.formats.checksums import crc32
from waltzctl.formats.lock_id import lock_id
from waltzctl.formats.request_id import RequestId
from waltzctl.formats.wire import client as wire
from waltzctl.formats.wire.client import CLIENT_VERSIONS, MountState
from waltzctl.formats.wire.frame import FrameHeader, Magic


async def feed(client: Client, position: int, count: int) -> list[tuple[int, RequestId]]:
    client.ask_for_feed(position)
    found = []
    while len(found) < count:
        one, _ = await client.hear_one(wire.FeedData)
        found.append((one.transaction_id, one.request_id))
    return found


@pytest.mark.turns(8)
@LOOPS
@pytest.mark.parametrize("version", CLIENT_VERSIONS)
def test_what_is_appended_is_fed_and_its_data_is_given(tmp_path: Path, loop: str, version: int) -> None:
    async def work() -> None:
        async with serving(tmp_path) as cluster:
            await cluster.server()
            client = await cluster.client(version=version)
            assert await client.mount() == (MountState.READY, [])
            made = [client.append(f"transaction {n}".encode(), header=n) for n in range(50)]
            assert await feed(client, -1, 50) == list(enumerate(made))
            assert (await client.flush())[0] == 49
            assert await client.data(17) == wire.TransactionData(b"transaction 17", wire.crc32(b"transaction 17"))
            refused = await client.data(50)
            assert isinstance(refused, wire.TransactionRefused)
            assert "has no transaction 50" in refused.message
            client.say(wire.HighWaterMarkRequest(client.next_id()))
            assert (await client.hear_one(wire.HighWaterMarkResponse))[0].transaction_id == 49
            other = await cluster.client(client=8, version=version)
            state, before = await other.mount(position=39)
            assert state is MountState.READY
            assert [(one.transaction_id, one.request_id) for one in before] == list(enumerate(made))[40:]

    run(work(), loop)


def test_a_feed_is_granted_a_hundred_at_least_and_then_suspended(tmp_path: Path) -> None:
    async def work() -> None:
        async with serving(tmp_path, 1) as cluster:
            await cluster.server()
            client = await cluster.client()
            await client.mount()
            for n in range(230):
                client.append(b"%d" % n)
            assert (await client.flush())[0] == 229
            client.ask_for_feed(-1)
            _, before = await client.hear_one(wire.FeedSuspended)
            assert [one.transaction_id for one in before] == list(range(230))
            client.ask_for_feed(200)
            for n in range(80):
                client.append(b"%d" % n)
            _, before = await client.hear_one(wire.FeedSuspended)
            assert [one.transaction_id for one in before] == list(range(201, 301))

    run(work())


def test_locks_let_one_of_two_through(tmp_path: Path) -> None:
    async def work() -> None:
        async with serving(tmp_path, 1) as cluster:
            await cluster.server()
            client = await cluster.client()
            await client.mount()
            lock = (lock_id("account", 5),)
            first = client.append(b"first", write_locks=lock)
            second = client.append(b"second", write_locks=lock)
            failure, _ = await client.hear_one(wire.LockFailure)
            assert (failure.request_id, failure.transaction_id) == (second, 0)
            again = client.append(b"again", 0, write_locks=lock)
            reader = client.append(b"reads what is old", 0, read_locks=lock)
            failure, _ = await client.hear_one(wire.LockFailure)
            assert (failure.request_id, failure.transaction_id) == (reader, 1)
            adds = client.append(b"adds", -1, append_locks=lock)
            assert (await client.flush())[0] == 2
            assert await feed(client, -1, 3) == [(0, first), (1, again), (2, adds)]

    run(work())


def test_who_has_not_mounted_is_passed_over_and_a_later_connection_replaces_an_earlier(tmp_path: Path) -> None:
    async def work() -> None:
        async with serving(tmp_path, 1) as cluster:
            await cluster.server()
            old, new = await cluster.client(), await cluster.client()
            old.append(b"before the mount")
            assert (await old.flush())[0] == -1
            await old.mount(connection=1)
            old.append(b"mounted")
            assert (await old.flush())[0] == 0
            await new.mount(connection=2)
            old.append(b"replaced")
            assert (await old.flush())[0] == 0
            new.append(b"replaces")
            assert (await new.flush())[0] == 1
            assert await old.mount(connection=1) == (MountState.NOT_READY, [])
            old.append(b"is not let back")
            assert (await old.flush())[0] == 1

    run(work())


@pytest.mark.parametrize(("known", "last"), [(2, 1), (2, 2)])
def test_who_mounts_beside_a_later_mount_that_has_not_ended_is_let_in_behind_it(
    tmp_path: Path, known: int, last: int
) -> None:
    """A half-open connection, say: it was told READY, its appends were passed over, and its feed stood still behind that, too."""

    async def work() -> None:
        async with serving(tmp_path, 1) as cluster:
            await cluster.server()
            half_open, now = await cluster.client(), await cluster.client()
            await half_open.mount(connection=known)
            later = known <= last
            assert (await now.mount(connection=last))[0] is (MountState.READY if later else MountState.NOT_READY)
            now.append(b"is heard of once it is mounted")
            assert (await now.flush())[0] == (0 if later else -1)
            await half_open.close()
            while (await now.mount(connection=last))[0] is not MountState.READY:
                await asyncio.sleep(0.01)
            made = now.append(b"after it")
            end = (await now.flush())[0]
            assert (await feed(now, end - 1, 1)) == [(end, made)]

    run(work())


@pytest.mark.parametrize(("generation", "connection"), [(1, 4), (0, 9)], ids=["connection", "generation"])
def test_an_earlier_mount_is_not_told_that_it_is_ready(tmp_path: Path, generation: int, connection: int) -> None:
    """Whoever believed it would append and ask for feeds for ever: both are ignored, also once the later mount has ended."""

    async def work() -> None:
        async with serving(tmp_path, 1) as cluster:
            await cluster.server()
            later, earlier = await cluster.client(), await cluster.client()
            assert (await later.mount(connection=5))[0] is MountState.READY

            async def mount() -> MountState:
                asked = replace(earlier.next_id(), generation=generation)
                earlier.say(wire.MountRequest(asked, -1, connection))
                answer, _ = await earlier.hear_one(wire.MountResponse)
                assert answer.request_id == asked
                return answer.state

            assert await mount() is MountState.NOT_READY
            later.append(b"by the one that counts")
            assert (await later.flush())[0] == 0
            await later.close()

            async def mounted() -> None:
                while await mount() is not MountState.READY:
                    await asyncio.sleep(0.01)

            await asyncio.wait_for(mounted(), 20)
            earlier.append(b"by the other one")
            assert (await earlier.flush())[0] == 1

    run(work())


@pytest.mark.parametrize(("version", "state"), [(2, MountState.NOT_READY), (3, MountState.CLIENT_AHEAD)])
def test_a_client_that_is_ahead_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, version: int, state: MountState
) -> None:
    """And so is the operator (C6): before version 3 the client cannot be, and nobody heard that transactions were lost."""

    async def work() -> None:
        async with serving(tmp_path, 1) as cluster:
            await cluster.server()
            client = await cluster.client(version=version)
            assert (await client.mount(position=-1))[0] is MountState.READY
            assert "has seen" not in caplog.text
            assert (await client.mount(position=0))[0] is state
            assert f"client 7 has seen transaction 0 of partition {PARTITION}, and the log ends at -1" in caplog.text

    run(work())


@pytest.mark.parametrize(("position", "closed"), [(2, False), (3, True)])
def test_a_feed_that_would_begin_ahead_of_the_log_ends_the_connection(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, position: int, closed: bool
) -> None:
    async def work() -> None:
        async with serving(tmp_path, 1) as cluster:
            await cluster.server()
            client = await cluster.client()
            await client.mount()
            for n in range(3):
                client.append(b"%d" % n)
            assert (await client.flush())[0] == 2
            reader = await cluster.client(client=8)
            await reader.mount(position=2)
            reader.ask_for_feed(position)
            client.append(b"3")
            if closed:
                assert await reader.hear() is None
            else:
                assert (await reader.hear_one(wire.FeedData))[0].transaction_id == 3
            assert ("client 8 has seen transaction 3" in caplog.text) is closed

    run(work())


@pytest.mark.parametrize("position", [-2, -(2**63)])
@pytest.mark.parametrize("kind", [wire.MountRequest, wire.FeedRequest])
def test_a_position_in_front_of_the_log_ends_its_connection_and_no_session(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: type, position: int
) -> None:
    async def work() -> None:
        async with serving(tmp_path, 1) as cluster:
            server = await cluster.server()
            client, bad = await cluster.client(), await cluster.client(client=8)
            await client.mount()
            client.append(b"one")
            assert (await client.flush())[0] == 0
            assert (await bad.mount(position=-1))[0] is MountState.READY
            session = await server.partitions[PARTITION].store.session()
            bad.say(kind(bad.mounted, position, 0) if kind is wire.MountRequest else kind(bad.mounted, position))
            assert await bad.hear() is None
            assert f"a corrupted message: the client has come to transaction {position}" in caplog.text
            assert session.is_open
            client.append(b"two")
            assert (await client.flush())[0] == 1

    run(work())


@pytest.mark.parametrize("transaction_id", [-1, -(2**63)])
def test_there_is_no_transaction_in_front_of_the_first(tmp_path: Path, transaction_id: int) -> None:
    async def work() -> None:
        async with serving(tmp_path, 1) as cluster:
            await cluster.server()
            client = await cluster.client()
            await client.mount()
            client.append(b"one")
            assert (await client.flush())[0] == 0
            refused = await client.data(transaction_id)
            assert isinstance(refused, wire.TransactionRefused)
            assert f"has no transaction {transaction_id}" in refused.message
            assert isinstance(await client.data(0), wire.TransactionData)

    run(work())


def test_a_partition_that_is_not_served_here(tmp_path: Path) -> None:
    async def work() -> None:
        async with serving(tmp_path, 1) as cluster:
            server = await cluster.server()
            client = await cluster.client()
            await client.mount()
            client.append(b"one")
            assert (await client.flush())[0] == 0
            await server.assign({})
            assert await client.hear() is None  # nobody would tell it if the partition came back unchanged
            client = await cluster.client()
            assert (await client.mount())[0] is MountState.NOT_READY
            client.say(wire.HighWaterMarkRequest(client.next_id()))  # as the release: no answer
            asked = client.next_id()
            client.say(wire.HighWaterMarkRequest(asked))
            client.say(wire.TransactionDataRequest(client.next_id(), 0))
            refused, before = await client.hear_one(wire.TransactionDataResponse)
            assert isinstance(refused.outcome, wire.TransactionRefused)
            assert before == []
            await server.assign({PARTITION: 2})
            answer, before = await client.hear_one(wire.HighWaterMarkResponse)  # a client of the release asks only once
            assert (answer.request_id, before) == (asked, [])
            assert await client.mount(position=0) == (MountState.READY, [])

    run(work())


def test_marks_that_are_asked_for_of_any_partitions_take_no_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_port, "_MOST_MARKS", 3)

    async def work() -> None:
        async with serving(tmp_path, 1) as cluster:
            server = await cluster.server()
            client = await cluster.client()
            numbers = [replace(client.next_id(), partition=100 + number) for number in range(10)]
            for number in numbers:
                client.say(wire.HighWaterMarkRequest(number))
            client.say(wire.ServerPartitionsAssignmentRequest(client.next_id()))
            assert (await client.hear_one(wire.ServerPartitionsAssignmentResponse))[1] == []
            (connection,) = server.port._connections
            assert isinstance(connection, client_port.ClientConnection)
            assert [*connection._marks] == [107, 108, 109]
            await client.close()
            await until(lambda: not connection._marks)

    run(work())


def test_about_the_server(tmp_path: Path) -> None:
    async def work() -> None:
        async with serving(tmp_path) as cluster:
            await cluster.server()
            client = await cluster.client()
            await client.mount()
            await cluster.cluster.stop(cluster.cluster.names[0])
            about = wire.server_request_id(7)
            client.say(wire.CheckStorageConnectivityRequest(about))
            answer, _ = await client.hear_one(wire.CheckStorageConnectivityResponse)
            assert dict(answer.nodes) == {name: name != cluster.cluster.names[0] for name in cluster.cluster.names}
            client.say(wire.ServerPartitionsAssignmentRequest(about))
            assert (await client.hear_one(wire.ServerPartitionsAssignmentResponse))[0].partitions == (PARTITION,)
            client.say(wire.ServerPartitionsHealthRequest(about))
            assert (await client.hear_one(wire.ServerPartitionsHealthResponse))[0].partitions == ((PARTITION, True),)
            client.say(wire.AddPreferredPartitionRequest(about, (PARTITION,)))
            assert (await client.hear_one(wire.AddPreferredPartitionResponse))[0].done is False

    run(work())


def test_connectivity_is_told_of_the_nodes_that_are_known_while_the_metadata_does_not_answer(tmp_path: Path) -> None:
    async def gone(_partition: int) -> tuple[str, ...]:
        raise PeerUnreachableError("the metadata", "nobody answers")

    async def work() -> None:
        async with serving(tmp_path) as cluster:
            await cluster.server()
            client, names = await cluster.client(), cluster.cluster.names
            await client.mount()
            await cluster.cluster.stop(names[2])
            cluster.metadata.assigned = gone  # type: ignore[method-assign]
            client.say(wire.CheckStorageConnectivityRequest(client.next_id()))
            answer, _ = await client.hear_one(wire.CheckStorageConnectivityResponse)
            assert answer.nodes == tuple((name, name != names[2]) for name in sorted(names))
            client.append(b"goes on")
            assert (await client.flush())[0] == 0

    run(work())


def test_a_node_that_goes_and_comes_back_is_not_noticed_by_clients(tmp_path: Path) -> None:
    async def work() -> None:
        async with serving(tmp_path) as cluster:
            await cluster.server()
            client, names = await cluster.client(), cluster.cluster.names
            await client.mount()
            made = []
            for n in range(60):
                if n == 20:
                    await cluster.cluster.stop(names[0])
                if n == 40:
                    await cluster.cluster.start(names[0])
                made.append(client.append(b"%d" % n))
                if n % 10 == 0:
                    await client.flush()
            assert (await client.flush())[0] == 59
            assert await feed(client, -1, 60) == list(enumerate(made))

    run(work())


def test_another_server_takes_over_and_nothing_is_lost_or_doubled(tmp_path: Path) -> None:
    async def work() -> None:
        async with serving(tmp_path) as cluster:
            await cluster.server()
            client = await cluster.client()
            await client.mount()
            made = [client.append(b"%d" % n) for n in range(30)]
            assert (await client.flush())[0] == 29
            await cluster.server(generation=2)
            other = await cluster.client(client=9, server=1)
            state, before = await other.mount(position=-1)
            assert state is MountState.READY
            assert [one.request_id for one in before] == made
            later = other.append(b"by the second server")
            assert (await other.flush())[0] == 30
            assert await feed(other, 29, 1) == [(30, later)]
            client.append(b"through the first, which holds it no longer")
            stored = await cluster.cluster.connect(cluster.cluster.names[0])
            session = cluster.metadata.partitions[PARTITION].session_id
            held: list[RequestId] = []
            while len(held) <= len(made):  # a quorum has them all; this replica may be behind it
                held = [one.request_id for one in await stored.records(session, PARTITION, 0, 100)]
            assert held == [*made, later]
            await stored.close()

    run(work())


@pytest.mark.parametrize("again", [False, True])
def test_a_partition_that_went_and_came_back_unnoticed_is_served_as_it_is_by_now(tmp_path: Path, again: bool) -> None:
    """Whoever asks then waits for the next session.  An append that is undecided here was perhaps appended there."""

    async def work() -> None:
        async with serving(tmp_path) as cluster:
            first = await cluster.server()
            old = await cluster.client()
            await old.mount()
            made = [old.append(b"by the first server")]
            assert (await old.flush())[0] == 0
            second = await cluster.server(generation=2)
            other = await cluster.client(client=8, server=1)
            await other.mount()
            made += [other.append(b"by the second") for _ in range(2)]
            assert (await other.flush())[0] == 2
            if again:
                old.append(b"which is refused: another session is there")
                await until(lambda: first.partitions[PARTITION].store.state.waits_for)
            await second.assign({})
            await first.assign({PARTITION: 3})
            reader, returns = await cluster.client(client=9), await cluster.client(client=8)
            assert await returns.mount(position=2) == (MountState.READY, [])
            assert [one.request_id for one in (await reader.mount())[1]] == made
            assert await reader.data(2) == wire.TransactionData(b"by the second", crc32(b"by the second"))
            last = returns.append(b"goes on")
            assert await feed(returns, 2, 1) == [(3, last)]
            assert await old.hear() is None, "it is to mount anew"

    run(work())


def test_a_partition_that_comes_back_beside_others_is_mounted_anew(tmp_path: Path) -> None:
    """A client of the release that saw neither assignment in between takes it for mounted: it mounts what moves elsewhere."""

    async def work() -> None:
        async with serving(tmp_path, 1) as cluster:
            server = await cluster.server()
            await server.assign({PARTITION: 1, PARTITION + 1: 1})
            client, other = await cluster.client(), await cluster.client(client=8)
            await client.mount()
            client.ask_for_feed(-1)
            await server.assign({PARTITION + 1: 1})
            await server.assign({PARTITION: 3, PARTITION + 1: 1})
            assert await client.hear() is None
            assert (await other.mount())[0] is MountState.READY  # it has mounted nothing, and is left alone
            last = other.append(b"goes on")
            assert await feed(other, -1, 1) == [(0, last)]

    run(work())


def test_who_has_gone_meanwhile_is_forgotten_by_a_partition_that_was_taken_away(tmp_path: Path) -> None:
    async def work() -> None:
        async with serving(tmp_path, 1) as cluster:
            server = await cluster.server()
            await server.assign({PARTITION: 1, PARTITION + 1: 1})
            client = await cluster.client()
            await client.mount()
            mounts = server.partitions[PARTITION].mounts
            await server.assign({PARTITION + 1: 1})
            assert mounts._mounts
            await client.close()
            await until(lambda: not mounts._mounts)

    run(work())


def test_a_partition_that_is_mounted_again_and_again_has_one_feed(tmp_path: Path) -> None:
    """A client of the release mounts again whenever its application takes a partition up again that it had laid down."""
    options = replace(QUICK, limits=PortLimits(connection_requests=4))

    async def work() -> None:
        async with serving(tmp_path, 1) as cluster:
            server = await cluster.server(options=options)
            client = await cluster.client()
            for _ in range(10):
                assert await client.mount() == (MountState.READY, [])
                client.ask_for_feed(-1)
            made = client.append(b"one")
            mark, before = await client.flush()
            assert mark == 0
            assert [(one.transaction_id, one.request_id) for one in before] == [(0, made)], "once, and not ten times"
            (connection,) = server.port._connections
            await until(lambda: connection.requests == len(connection.standing) == 1)

    run(work())


@pytest.mark.parametrize(
    "body",
    [
        b"\x63" + bytes(16),
        wire.encode(wire.FeedSuspended(RequestId(1, 1, 1, 1)))[7:],
        wire.encode(wire.AppendRequest(RequestId(7, 1, PARTITION, 1), -1, 0, b"data", 0))[7:],
    ],
)
def test_nonsense_ends_the_connection_and_no_other(tmp_path: Path, body: bytes) -> None:
    async def work() -> None:
        async with serving(tmp_path, 1) as cluster:
            await cluster.server()
            bad, good = await cluster.client(client=1), await cluster.client(client=2)
            await good.mount()
            bad.writer.write(wire.CODECS[4].encode(wire.FlushRequest(bad.next_id()))[:3] + len(body).to_bytes(4) + body)
            assert await bad.hear() is None
            good.append(b"goes on")
            assert (await good.flush())[0] == 0

    run(work())


@pytest.mark.parametrize(
    ("header", "why"),
    [
        (FrameHeader(Magic.CLIENT, 4, 4096 - STORAGE_GROWTH), None),
        (
            FrameHeader(Magic.CLIENT, 4, 4097 - STORAGE_GROWTH),
            f"a body of {4097 - STORAGE_GROWTH} bytes; the longest accepted here has {4096 - STORAGE_GROWTH}",
        ),
        (FrameHeader(Magic.CLIENT, 4, -1), "length -1 of the body is negative"),
        (FrameHeader(Magic.CLIENT, 3, 40), "version 3 instead of the agreed 4"),
        (FrameHeader(Magic.STORAGE, 4, 40), "magic 0x53 instead of 0x4c"),
    ],
)
def test_a_frame_that_was_not_agreed_on_ends_the_connection_before_its_body_is_there(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, header: FrameHeader, why: str | None
) -> None:
    async def work() -> None:
        async with serving(tmp_path, 1) as cluster:
            server = await cluster.server(options=replace(QUICK, limits=PortLimits(max_body=4096)))
            client = await cluster.client()
            client.writer.write(header.encode() + bytes([wire.AppendRequest.TYPE]))
            if why is None:
                await asyncio.sleep(0.1)
                assert [one.peer for one in server.port.connections], "it waits for the rest"
            else:
                assert await client.hear() is None
                assert why in caplog.text

    run(work())


@pytest.mark.turns(10)
@pytest.mark.parametrize(("locks", "size"), [({}, 40), ({"write_locks": (5,)}, 64), ({"read_locks": (5,) * 9}, 128)])
@pytest.mark.parametrize("what", ["requests", "bytes"])
def test_appends_that_nobody_decides_hold_up_their_connection(
    tmp_path: Path, what: str, locks: dict[str, tuple[int, ...]], size: int
) -> None:
    """Up to the bound they are read; one more stays with its client, and what others send is read as before."""
    bound = PortLimits(connection_requests=10) if what == "requests" else PortLimits(connection_bytes=10 * size)

    async def work() -> None:
        async with serving(tmp_path, 1) as cluster:
            server = await cluster.server(options=replace(QUICK, limits=bound))
            client = await cluster.client()
            assert await client.mount() == (MountState.READY, [])
            (node,) = cluster.cluster.names
            await cluster.cluster.stop(node)
            made = []

            def under_way() -> tuple[int, bool]:
                (info,) = server.port.connections
                return info.requests, info.paused

            async def append(count: int) -> None:
                for _ in range(count):
                    made.append(client.append(b"four", **locks))
                    await client.writer.drain()
                    await asyncio.sleep(0.005)

            await append(9)
            await until(lambda: under_way() == (9, False))
            await append(1)
            await until(lambda: under_way() == (10, True))
            await append(20)
            assert under_way() == (10, True)
            assert server.port.budget.used == 10 * (size + OVERHEAD)
            await cluster.cluster.start(node)
            if "write_locks" in locks:
                assert (await client.hear_one(wire.LockFailure))[0].request_id == made[1]
            mark, _ = await client.flush()
            await until(lambda: under_way() == (0, False))
            assert server.port.budget.used == 0
            if "write_locks" not in locks:
                assert mark == 29
                assert await feed(client, -1, 30) == list(enumerate(made))

    run(work())


@pytest.mark.parametrize("how", ["closed", "lost"])
def test_what_undecided_appends_took_is_given_back(tmp_path: Path, how: str) -> None:
    """Their partition is closed; or nobody listens any more, and they are decided all the same."""

    async def work() -> None:
        async with serving(tmp_path, 1) as cluster:
            server = await cluster.server()
            client = await cluster.client()
            await client.mount()
            (node,) = cluster.cluster.names
            await cluster.cluster.stop(node)
            for _ in range(300):
                client.append(b"four")
            await until(lambda: server.port.budget.used == 300 * (40 + OVERHEAD))
            if how == "closed":
                await server.assign({})
            else:
                await client.close()
                await until(lambda: not server.port.connections)
                assert server.port.budget.used == 300 * (40 + OVERHEAD)
                await cluster.cluster.start(node)
                await until(lambda: server.partitions[PARTITION].high_water_mark == 299)
            assert server.port.budget.used == 0

    run(work())


def test_appends_of_several_clients_and_partitions_on_one_connection_find_their_way(tmp_path: Path) -> None:
    """Interleaved as they may be, more than go into a batch; those of a client that mounted elsewhere are passed over."""

    async def work() -> None:
        async with serving(tmp_path, 1) as cluster:
            server = await cluster.server(options=replace(QUICK, partition=PartitionOptions(batch=7)))
            await server.assign({PARTITION: 1, PARTITION - 1: 1})
            client = await cluster.client()
            sent: dict[tuple[int, int], list[RequestId]] = {}
            numbers = [(client, partition) for client in (7, 8, 9) for partition in (PARTITION, PARTITION - 1)]
            for number, partition in numbers[:4]:
                client.say(wire.MountRequest(RequestId(number, 1, partition, 0), -1, 0))
                assert (await client.hear_one(wire.MountResponse))[0].state is MountState.READY
            chance = Random(5)
            for place in range(200):
                number, partition = chance.choice(numbers) if place % 50 < 25 else numbers[place % 3]
                made = RequestId(number, 1, partition, 100 + place)
                client.say(wire.AppendRequest(made, -1, place, b"x", crc32(b"x")))
                sent.setdefault((number, partition), []).append(made)
            for partition in (PARTITION, PARTITION - 1):
                client.say(wire.FlushRequest(RequestId(7, 1, partition, 1000)))
                mark = (await client.hear_one(wire.FlushResponse))[0].high_water_mark
                mine = [one for number in (7, 8) for one in sent[number, partition]]
                assert mark == len(mine) - 1
                session = await server.partitions[partition].store.session()
                stored = await committed(session, 0, 1000)
                found = [one.request_id for one in stored]
                assert [*map(str, found)] == [*map(str, sorted(mine, key=lambda one: one.sequence))]
                assert [one.header for one in stored] == [one.sequence - 100 for one in found]

    run(work())


@pytest.mark.parametrize(("clients", "closed"), [(_MOST_CLIENTS, False), (_MOST_CLIENTS + 1, True)])
def test_so_many_clients_mount_through_one_connection(tmp_path: Path, clients: int, closed: bool) -> None:
    """Each is remembered as long as the connection lasts, and a mount that is answered counts against no other bound."""

    async def work() -> None:
        async with serving(tmp_path, 1) as cluster:
            partition = (await cluster.server()).partitions[PARTITION]
            client = await cluster.client()
            for number in [*range(clients - 1), 5, clients - 1]:
                client.say(wire.MountRequest(RequestId(number, 1, PARTITION, 0), -1, 0))
            client.say(wire.ServerPartitionsAssignmentRequest(client.next_id()))
            if closed:
                while await client.hear() is not None:
                    pass
                await until(lambda: not partition.mounts._mounts)
            else:
                await client.hear_one(wire.ServerPartitionsAssignmentResponse)
                assert len(partition.mounts._mounts) == clients

    run(work())
