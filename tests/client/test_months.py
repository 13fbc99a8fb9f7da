"""What is left in a client of months of what comes and goes around it: log servers, partitions that move, feeds."""

from __future__ import annotations

import asyncio
import os
import uuid
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

from tests.client.log_in_process import OPTIONS, OTHER, LogInProcess, quiet
from tests.client.told_servers import Directory
from tests.server.storing import LOG
from tests.simulation.virtual_time import simulate
from waltzctl.engine.client.log_client import LogClient
from waltzctl.engine.client.log_connection import LogConnection
from waltzctl.engine.client.reader_ids import REST, ReaderIds, ReaderIdsOfProcess
from waltzctl.engine.metadata.server_directory import PartitionServer
from waltzctl.engine.net.addresses import Address
from waltzctl.formats.request_id import RequestId
from waltzctl.formats.wire import client as wire

ROUNDS = 60


@dataclass
class Counting(LogInProcess):
    """`mounted`: client id and connection sequence of each mount request, in their order."""

    mounted: list[tuple[int, int]] = field(default_factory=list)
    made: list[LogConnection] = field(default_factory=list)

    async def connect(self, address: Address) -> LogConnection:
        """See `LogInProcess`."""
        self.made.append(await super().connect(address))
        return self.made[-1]

    def die(self) -> None:
        """All connections break."""
        while self.made:
            self.made.pop().connection_lost(None)

    def _answer(self, message: Any) -> None:
        if isinstance(message, wire.MountRequest):
            self.mounted.append((message.request_id.client, message.connection_sequence))
        super()._answer(message)


def test_of_servers_that_are_gone_nothing_is_left() -> None:
    """A cluster whose servers have new names at each of their starts: the client has no connection to the earlier ones."""

    async def work() -> None:
        log, directory = Counting(), Directory()
        async with LogClient(directory, log.connect, log=LOG, options=OPTIONS) as client:
            await quiet()
            for number in range(ROUNDS):
                log.die()
                directory.tell({0: PartitionServer(f"server-{number}", 1, number)})
                await quiet()
                assert await client.flush(0) == await client.high_water_mark(0) == -1
            assert {key[0].host for key in client._connections._endpoints} <= {
                f"server-{one}" for one in (ROUNDS - 1, ROUNDS - 2)
            }

    simulate(work())


def test_a_server_that_is_not_gone_keeps_its_connection() -> None:
    """It has no partition for a while; to connect to it again would cost more than to keep it."""

    async def work() -> None:
        log, directory = Counting(), Directory()
        here, there = PartitionServer("here", 1, 1), PartitionServer("there", 1, 2)
        async with LogClient(directory, log.connect, log=LOG, options=OPTIONS) as client:
            await quiet()
            directory.tell({0: here})
            await client.flush(0)
            before = [*client._connections._endpoints.values()]
            assert before
            directory.tell({0: there})
            await quiet()
            assert [*client._connections._endpoints.values()][: len(before)] == before
            assert not any(one.unused for one in before)

    simulate(work())


def test_the_number_of_a_connection_is_above_those_of_all_before_it() -> None:
    """Also where the server was forgotten in between: it may still have the mount of the connection that broke."""

    async def work() -> None:
        log, directory = Counting(), Directory()
        async with LogClient(directory, log.connect, log=LOG, options=OPTIONS) as client:
            await quiet()
            for number in range(ROUNDS):
                log.die()
                directory.tell({0: PartitionServer(("here", "there", "nowhere")[number % 3], 1, number)})
                await client.flush(0)
        assert len({client for client, _ in log.mounted}) == 1
        sequences = [sequence for _, sequence in log.mounted]
        assert len(sequences) >= ROUNDS
        assert sequences == sorted(set(sequences))

    simulate(work())


async def _read(client: LogClient) -> None:
    """One feed of one transaction."""
    feed = client.feed(0, after=-1, timeout=5.0)
    assert (await anext(feed)).transaction_id == 0
    await feed.aclose()


def _logged() -> tuple[Counting, Directory]:
    return Counting(log=[(RequestId(OTHER, 1, 0, 0), b"")]), Directory(servers={0: PartitionServer("here", 1, 1)})


def test_feeds_that_follow_one_another_use_up_no_client_ids() -> None:
    """A cluster has 2^31 of them for all time, and each is a write to its metadata."""

    async def work() -> None:
        log, directory = _logged()
        first = directory.given
        async with LogClient(directory, log.connect, log=LOG, options=OPTIONS) as client:
            for _ in range(ROUNDS):
                await _read(client)
                await asyncio.sleep(REST)
            assert directory.given == first + 1

    simulate(work())


def test_clients_of_one_process_share_the_client_ids_of_their_feeds() -> None:
    async def work() -> None:
        log, directory = _logged()
        first, ids = directory.given, ReaderIdsOfProcess()
        for _ in range(ROUNDS):
            shared = ids.of("here", uuid.UUID(int=1))
            async with LogClient(directory, log.connect, log=LOG, options=OPTIONS, reader_ids=shared) as client:
                await _read(client)
            await asyncio.sleep(REST)
        assert directory.given == first + 1
        assert ids.of("here", uuid.UUID(int=2)).take(1e9) is None

    simulate(work())


def test_a_client_id_rests_and_is_nobody_elses_meanwhile() -> None:
    """Two feeds at a time have two, one that begins right after another has its own, that of appends is not used again."""

    async def work() -> None:
        log, directory = _logged()
        first = directory.given
        async with LogClient(directory, log.connect, log=LOG, options=OPTIONS) as client:
            await client.flush(0)
            appends = directory.given
            assert appends == first + 1
            for _ in range(3):
                await _read(client)
            assert directory.given == first + 4
            await asyncio.sleep(REST)
            feeds = [client.feed(0, after=-1, timeout=5.0) for _ in range(5)]
            for feed in feeds:
                await anext(feed)
            assert directory.given == first + 6
            readers = [one for one, _ in log.mounted if one != appends]
            assert len(set(readers)) == 5
            assert sorted(readers[3:]) == sorted(set(readers[3:]))
            for feed in feeds:
                await feed.aclose()

    simulate(work())


def test_a_forked_process_uses_no_client_id_of_its_parent() -> None:
    ids, cluster = ReaderIdsOfProcess(), ("here", uuid.UUID(int=1))
    ids.of(*cluster).give_back(7, 0.0)
    with mock.patch.object(os, "getpid", return_value=os.getpid() + 1):
        assert ids.of(*cluster).take(1e9) is None
    assert ids.of(*cluster).take(REST - 0.1) is None
    assert ids.of(*cluster).take(REST) == 7
    assert ids.of(*cluster).take(1e9) is None


def test_each_client_id_rests_from_when_it_was_given_back_and_the_first_comes_first() -> None:
    ids = ReaderIds()
    assert ids.take(1e9) is None
    for number, when in ((7, 100.0), (8, 104.0)):
        ids.give_back(number, when)
    taken = [ids.take(104.0 + REST - 4.1), ids.take(100.0 + REST), ids.take(104.0 + REST - 0.1), ids.take(104.0 + REST)]
    assert taken == [None, 7, None, 8]
    assert ids.take(1e9) is None


def test_client_ids_are_of_one_cluster_at_one_place() -> None:
    ids = ReaderIdsOfProcess()
    ids.of("here", uuid.UUID(int=1)).give_back(7, 0.0)
    assert [ids.of(*other).take(1e9) for other in (("there", uuid.UUID(int=1)), ("here", uuid.UUID(int=2)))] == [
        None,
        None,
    ]
    assert ids.of("here", uuid.UUID(int=1)).take(1e9) == 7
