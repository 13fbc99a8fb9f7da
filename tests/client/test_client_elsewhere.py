"""A log client that is used where it does not belong: in another event loop, behind the end of its own, in a forked process."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from tests.client.log_in_process import LogInProcess
from tests.client.told_servers import Directory
from tests.server.storing import LOG
from waltzctl.engine.client.log_client import LogClient
from waltzctl.engine.client.log_transaction import Draft
from waltzctl.engine.errors import InvalidRequestError
from waltzctl.engine.metadata.server_directory import PartitionServer

Call = Callable[[LogClient], Coroutine[Any, Any, Any]]


async def append(client: LogClient) -> None:
    await client.append(0, Draft(b"x"))


async def append_all(client: LogClient) -> None:
    await client.append_all(0, [Draft(b"x")])


async def flush(client: LogClient) -> None:
    await client.flush(0)


async def mark(client: LogClient) -> None:
    await client.high_water_mark(0)


async def data(client: LogClient) -> None:
    await client.data(0, 0)


async def feed(client: LogClient) -> None:
    await anext(client.feed(0))


async def close(client: LogClient) -> None:
    await client.close()


CALLS = pytest.mark.parametrize("call", [append, append_all, flush, mark, data, feed, close])


@pytest.fixture
def used() -> Iterator[LogClient]:
    """A client that has mounted a partition, in a loop that stands still, and is closed there at the end."""
    client = LogClient(Directory(servers={0: PartitionServer("here", 1, 1)}), LogInProcess().connect, log=LOG)
    with asyncio.Runner() as runner:

        async def use() -> None:
            await client.__aenter__()
            await client.flush(0)

        runner.run(use())
        yield client
        runner.run(client.close())


@CALLS
def test_a_client_is_refused_in_another_loop(used: LogClient, call: Call) -> None:
    """It waited for ever, or worked on the other loop's connections behind its back."""
    with pytest.raises(InvalidRequestError, match="belongs to another event loop"):
        asyncio.run(call(used))


@CALLS
def test_a_client_is_refused_behind_the_end_of_its_loop(call: Call) -> None:
    client = LogClient(Directory(servers={0: PartitionServer("here", 1, 1)}), LogInProcess().connect, log=LOG)

    async def use() -> None:
        await client.__aenter__()
        await client.flush(0)

    asyncio.run(use())
    with pytest.raises(InvalidRequestError, match="belongs to another event loop"):
        asyncio.run(call(client))


@CALLS
def test_a_client_is_refused_in_a_process_that_was_forked(used: LogClient, call: Call) -> None:
    """What it said would go through the connections of the other process, and a close would take them from its loop."""
    child = os.fork()
    if not child:
        try:
            asyncio.run(call(used))
        except InvalidRequestError:
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@CALLS
def test_a_client_is_refused_in_a_forked_process_that_goes_on_with_its_loop(call: Call) -> None:
    """The loop stood still while the process was forked, and is the same one in both."""
    client = LogClient(Directory(servers={0: PartitionServer("here", 1, 1)}), LogInProcess().connect, log=LOG)
    with asyncio.Runner() as runner:

        async def use() -> None:
            await client.__aenter__()
            await client.flush(0)

        async def elsewhere() -> None:
            await call(client)

        runner.run(use())
        child = os.fork()
        if not child:
            try:
                runner.run(elsewhere())
            except InvalidRequestError:
                os._exit(0)
            finally:
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        runner.run(client.close())
