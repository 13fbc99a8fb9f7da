"""Load on a log, and its validation, where appends fail; what they do otherwise is tested over a cluster."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import Any

import pytest

from tests.client.log_in_process import OTHER, InProcess, LogInProcess, quiet, run
from tests.client.told_servers import Directory
from tests.server.storing import LOG
from tests.simulation.virtual_time import simulate
from waltzctl.engine.client.log_client import LogClient
from waltzctl.engine.client.log_connection import LogConnection
from waltzctl.engine.client.log_load import LogLoadOptions, load, validate
from waltzctl.engine.errors import DamageError, DeadlineError
from waltzctl.engine.metadata.server_directory import PartitionServer
from waltzctl.formats.checksums import crc32
from waltzctl.formats.wire import client as wire


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


@dataclass
class Doubling(LogInProcess):
    """Commits whatever comes, and the third append twice; `writer`: of whom it says that the fourth is."""

    doubled: bool = True
    writer: int | None = None

    def _answer(self, message: Any) -> None:
        if isinstance(message, wire.TransactionDataRequest):
            number, data = message.transaction_id, self.log[message.transaction_id][1]
            outcome = wire.TransactionData(data, crc32(data))
            self.say(wire.TransactionDataResponse(message.request_id, number, outcome))
        else:
            super()._answer(message)

    def took(self, connection: LogConnection, data: bytes) -> None:
        super().took(connection, data)
        if self.appends and len(self.log) == 2 and self.doubled:
            self.appends.append(self.appends[0])
        self.commit(len(self.appends))
        if len(self.log) > 3 and self.writer is not None:
            self.log[3] = replace(self.log[3][0], client=self.writer), self.log[3][1]


@pytest.mark.parametrize(
    ("doubled", "writer", "what"),
    [
        (True, None, "transaction 3 is of client 101, and none of its appends became that: one is there twice"),
        (False, 7, "transaction 3 was given to client 101, and is of client 7"),
        (False, None, None),
    ],
)
def test_a_validation_finds_what_is_there_twice_or_is_somebody_else_s(
    doubled: bool, writer: int | None, what: str | None
) -> None:
    async def whole() -> None:
        directory, log = Directory(1, {0: PartitionServer("here", 1, 1)}), Doubling(doubled=doubled, writer=writer)
        async with LogClient(directory, log.connect, log=LOG) as client:
            if what is None:
                assert (await validate([client], [0], 3)).transactions == 3
            else:
                with pytest.raises(DamageError, match=what):
                    await validate([client], [0], 4)

    simulate(whole())


@dataclass
class Busy(Doubling):
    """In front of the second append, somebody else's is committed, who takes no lock."""

    doubled: bool = False

    def commit(self, count: int = 1, *, others: int = 0, told: bool = True) -> None:
        super().commit(count, others=int(count > 0 and len(self.log) == 1), told=told)


def test_a_validation_goes_on_beside_others_who_append() -> None:
    async def whole() -> None:
        directory, log = Directory(1, {0: PartitionServer("here", 1, 1)}), Busy()
        async with LogClient(directory, log.connect, log=LOG) as client:
            assert (await validate([client], [0], 3)).transactions == 3
        assert [one.client for one, _ in log.log] == [101, OTHER, 101, 101]
        assert log.log[2][1] == (1).to_bytes(8), "it was built before the other one was there"

    simulate(whole())


def test_a_validation_finds_what_was_built_on_less_than_what_had_the_lock() -> None:
    async def whole() -> None:
        directory, log = Directory(1, {0: PartitionServer("here", 1, 1)}), Doubling(doubled=False)
        async with LogClient(directory, log.connect, log=LOG) as client:
            what = "transaction 1 was written on transaction -1, and transaction 0 has the lock: optimistic locking does not"
            with pytest.raises(DamageError, match=what):
                await validate([client, client], [0], 1)

    simulate(whole())
