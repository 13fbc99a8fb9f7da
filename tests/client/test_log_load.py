"""Load on a log, and its validation, where appends fail; what they do otherwise is tested over a cluster."""

from __future__ import annotations

import asyncio

import pytest

from tests.client.log_in_process import InProcess, LogInProcess, quiet, run
from tests.client.told_servers import Directory
from tests.server.storing import LOG
from tests.simulation.virtual_time import simulate
from waltzctl.engine.client.log_client import LogClient
from waltzctl.engine.client.log_load import LogLoadOptions, load, validate
from waltzctl.engine.errors import DeadlineError
from waltzctl.engine.metadata.server_directory import PartitionServer


def test_what_an_append_of_a_load_raises_is_raised() -> None:
    async def test(made: InProcess) -> None:
        before = asyncio.all_tasks()
        loading = asyncio.ensure_future(load(made.client, LogLoadOptions((0,), seconds=3600.0)))
        await quiet()
        made.log.commit()  # the one that mounts it
        with pytest.raises(DeadlineError, match="appends to partition 0"):
            await loading
        assert asyncio.all_tasks() == before

    run(test)


def test_what_an_append_of_a_validation_raises_is_raised() -> None:
    async def whole() -> None:
        directory = Directory(servers={0: PartitionServer("here", 1, 1)})
        async with LogClient(directory, LogInProcess().connect, log=LOG) as client:
            with pytest.raises(DeadlineError, match="an append to partition 0"):
                await validate([client], [0], 1)

    simulate(whole())
