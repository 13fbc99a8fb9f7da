"""A call of the log's client that comes to its deadline, or a feed that waits: why, as far as the client knows."""

from __future__ import annotations

import asyncio
import logging
import re
import socket
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import pytest

from tests.client.test_log_client import OPTIONS, Around, run
from tests.client.told_servers import Directory
from tests.server.serving import serving
from tests.server.storing import LOG, PARTITION
from waltzctl.engine.client.connection_factory import ConnectionFactory
from waltzctl.engine.client.log_client import LogClient
from waltzctl.engine.client.log_connection import PORT, LogConnection
from waltzctl.engine.client.log_transaction import Draft
from waltzctl.engine.errors import DeadlineError, PeerUnreachableError, RefusedError
from waltzctl.engine.metadata.server_directory import PartitionServer
from waltzctl.engine.net.addresses import Address

Call = Callable[[LogClient], Awaitable[object]]
CALLS: tuple[Call, ...] = (
    lambda client: client.append(PARTITION, Draft(b"x"), timeout=0.1),
    lambda client: client.append_all(PARTITION, [Draft(b"x")], timeout=0.1),
    lambda client: client.flush(PARTITION, timeout=0.1),
    lambda client: client.data(PARTITION, 0, timeout=0.1),
    lambda client: client.high_water_mark(PARTITION, timeout=0.1),
)


async def _all_say(client: LogClient, why: str, advice: str, calls: Sequence[Call] = CALLS) -> None:
    """Asked at the same time: each of them waits for its whole deadline."""
    for late in await asyncio.gather(*(call(client) for call in calls), return_exceptions=True):
        assert isinstance(late, DeadlineError), late
        text = rf"the cluster: no answer within 0\.1 s to .*partition {PARTITION}.*: {why}"
        assert re.fullmatch(text, late.message), late.message
        assert advice in (late.advice or "")


def nobody_s_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@pytest.mark.parametrize("mounted", [False, True])
def test_that_no_server_has_the_partition(tmp_path: Path, mounted: bool) -> None:
    async def test(around: Around) -> None:
        if mounted:
            await around.client.append(PARTITION, Draft(b"0"))
        around.directory.tell({})
        await _all_say(around.client, "no log server has the partition", "cluster verify")

    run(tmp_path, test)


@pytest.mark.parametrize("mounted", [False, True])
def test_that_nobody_listens_there(tmp_path: Path, mounted: bool) -> None:
    async def test(around: Around) -> None:
        if mounted:
            await around.client.append(PARTITION, Draft(b"0"))
        port = nobody_s_port()
        around.directory.tell({PARTITION: PartitionServer("127.0.0.1", port, 2)})
        await _all_say(around.client, f"127.0.0.1:{port}: cannot connect: connection refused", "is this its port?")
        around.at(0)
        assert await around.client.append(PARTITION, Draft(b"1"))

    run(tmp_path, test)


@pytest.mark.parametrize(("host", "port"), [("127.0.0.1", 70_000), ("a\0b", 1)])
def test_that_its_address_cannot_be(tmp_path: Path, host: str, port: int) -> None:
    """The metadata names a server so."""

    async def test(around: Around) -> None:
        around.directory.tell({PARTITION: PartitionServer(host, port, 2)})
        await _all_say(around.client, f"{host}:{port}: cannot connect: .*", "is this its port?")
        around.at(0)
        assert await around.client.append(PARTITION, Draft(b"1"))

    run(tmp_path, test)


def test_that_the_server_speaks_no_tls(tmp_path: Path) -> None:
    async def test(around: Around) -> None:
        reach = ConnectionFactory()
        async with LogClient(around.directory, reach.log, log=LOG, options=OPTIONS) as client:
            await _all_say(client, r"127\.0\.0\.1:\d+: TLS cannot be agreed on: .*", "--plaintext")

    run(tmp_path, test)


@pytest.mark.parametrize("mounted", [False, True])
def test_that_the_server_has_no_session(tmp_path: Path, mounted: bool) -> None:
    async def test(around: Around) -> None:
        client = around.client
        if mounted:
            await client.append(PARTITION, Draft(b"0"))
        (server, *_), *_ = around.serving.servers
        await server.assign({})
        for name in around.serving.cluster.names:
            await around.serving.cluster.stop(name)
        await server.assign({PARTITION: 2})
        around.at(0, generation=2)
        why = r"server 127\.0\.0\.1:\d+ has the partition, and no session for it as yet, .*"
        append, append_all, flush, _, mark = CALLS  # what was committed once is given from the cache
        await _all_say(client, why, "cluster top", (append, append_all, flush, mark))
        for name in around.serving.cluster.names:
            await around.serving.cluster.start(name)
        assert await client.append(PARTITION, Draft(b"1"))

    run(tmp_path, test)


def test_what_failed_before_is_not_told_any_more(tmp_path: Path) -> None:
    async def test(around: Around) -> None:
        broken = True

        async def connect(address: Address) -> LogConnection:
            if broken:
                raise PeerUnreachableError(str(address), "broken")
            return await LogConnection.connect(PORT, address, ssl_context=None, timeout=5.0)

        async with LogClient(around.directory, connect, log=LOG, options=OPTIONS) as client:
            mark = CALLS[-1:]
            await _all_say(client, r"127\.0\.0\.1:\d+: broken", "", mark)
            broken = False
            assert await client.high_water_mark(PARTITION) == -1
            (server, *_), *_ = around.serving.servers
            await server.assign({})
            await _all_say(client, r"server 127\.0\.0\.1:\d+ has the partition, and no session .*", "cluster top", mark)

    run(tmp_path, test)


def test_a_feed_that_cannot_be_connected_says_so_once_for_each_reason(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(around: Around) -> None:
        port = nobody_s_port()
        around.directory.tell({PARTITION: PartitionServer("127.0.0.1", port, 2)})
        feed = around.client.feed(PARTITION)
        first = asyncio.ensure_future(anext(feed))
        with caplog.at_level(logging.WARNING):
            await asyncio.sleep(2 * OPTIONS.nudge)
        said = [one.getMessage() for one in caplog.records if "not reached" in one.getMessage()]
        assert len(said) == 1
        assert re.search(f"127.0.0.1:{port}: cannot connect: connection refused", said[0])
        around.at(0)
        await around.client.append(PARTITION, Draft(b"0"))
        assert (await asyncio.wait_for(first, 10)).transaction_id == 0
        await feed.aclose()

    run(tmp_path, test)


def test_a_feed_whose_servers_are_all_gone_says_so_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def test(around: Around) -> None:
        await around.client.append(PARTITION, Draft(b"0"))
        feed = around.client.feed(PARTITION)
        assert (await anext(feed)).transaction_id == 0
        with caplog.at_level(logging.WARNING):
            around.directory.tell({})
            around.directory.tell({})
        said = [one.getMessage() for one in caplog.records if "no log server" in one.getMessage()]
        assert said == [f"no log server any more for partitions: {PARTITION}; one is waited for"]
        await feed.aclose()

    run(tmp_path, test)


def test_a_feed_ends_where_another_attempt_would_not_help(tmp_path: Path) -> None:
    async def test() -> None:
        async with serving(tmp_path, 1):
            directory = Directory(servers={PARTITION: PartitionServer("192.0.2.1", 1, 1)})

            async def connect(address: Address) -> None:
                ConnectionFactory(plaintext=True).context(address)

            async with LogClient(directory, connect, log=LOG, options=OPTIONS) as client:  # type: ignore[arg-type]
                with pytest.raises(RefusedError, match="without TLS everybody"):
                    await asyncio.wait_for(anext(client.feed(PARTITION)), 10)

    asyncio.run(test())
