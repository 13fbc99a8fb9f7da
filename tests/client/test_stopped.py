"""A process that was stopped (Ctrl-Z, a paused container) and continued: what came meanwhile counts, and not the time."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.client.peers import STORAGE_HELLO, Bodies, scripted
from waltzctl.engine.net.addresses import Address
from waltzctl.formats.wire import storage
from waltzctl.formats.wire.frame import Magic

SECONDS = 1.0
"""The deadline of each call of the stopped process."""
PROGRAM = """
import asyncio, sys
from waltzctl.engine.client.storage_client import StorageClient
from waltzctl.formats.request_id import RequestId
from waltzctl.formats.wire.records import WireRecord

async def work():
    client = await StorageClient.connect("127.0.0.1", int(sys.argv[3]), ssl_context=None, timeout=float(sys.argv[4]))
    try:
        if sys.argv[2] == "ask":
            print("last", await client.max_transaction_id(7, 0))
            print("last", await client.max_transaction_id(7, 0))
        else:
            large = [WireRecord.make(n, RequestId(1, 1, 0, n), 0, bytes(1 << 20)) for n in range(16)]
            await asyncio.gather(*(client.append(7, 0, [one]) for one in large))
            print("appended")
    finally:
        await client.close()

if sys.argv[1] == "uvloop":
    import uvloop
    uvloop.run(work())
else:
    asyncio.run(work())
"""


async def begun(loop: str, what: str, address: Address) -> asyncio.subprocess.Process:
    root = Path(__file__).parents[2]
    return await asyncio.create_subprocess_exec(
        sys.executable, "-c", PROGRAM, loop, what, str(address.port), str(SECONDS),
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        cwd=root, env={**os.environ, "PYTHONPATH": str(root)},
    )  # fmt: skip


@contextlib.asynccontextmanager
async def stopped(process: asyncio.subprocess.Process) -> AsyncIterator[None]:
    """For longer than a call may take.  What is done here is done while it is stopped."""
    await asyncio.sleep(0.2)  # until it waits for its sockets
    process.send_signal(signal.SIGSTOP)
    try:
        await asyncio.sleep(0.2)  # until it is stopped
        yield
        await asyncio.sleep(1.5 * SECONDS)
    finally:
        process.send_signal(signal.SIGCONT)


@pytest.mark.turns(10)
@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_an_answer_that_came_while_the_process_was_stopped_is_one_in_time(loop: str) -> None:
    """Behind SIGCONT a loop comes to its timers before it looks at its sockets, since its wait for them was interrupted."""
    asked = asyncio.Queue[tuple[asyncio.StreamWriter, bytes]]()

    async def peer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(STORAGE_HELLO)
        bodies = Bodies(reader)
        await bodies.next(Magic.HELLO)
        while True:
            request = storage.decode(await bodies.next(Magic.STORAGE))
            assert isinstance(request, storage.MaxTransactionIdRequest)
            answer = storage.MaxTransactionIdResponse(request.session_id, request.sequence, request.partition, 5)
            await asked.put((writer, storage.encode(answer)))

    async def work() -> tuple[bytes, bytes]:
        async with scripted(peer) as address:
            process = await begun(loop, "ask", address)
            for _ in range(2):
                writer, answer = await asked.get()
                async with stopped(process):
                    writer.write(answer)
            return await process.communicate()

    out, error = asyncio.run(asyncio.wait_for(work(), 20))
    assert (out, error) == (b"last 5\nlast 5\n", b"")


@pytest.mark.turns(10)
@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_a_call_that_waited_for_room_while_the_process_was_stopped_goes_on(loop: str) -> None:
    greeted, reading = asyncio.Event(), asyncio.Event()

    async def peer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(STORAGE_HELLO)
        bodies = Bodies(reader)
        await bodies.next(Magic.HELLO)
        greeted.set()
        await reading.wait()
        while True:
            request = storage.decode(await bodies.next(Magic.STORAGE))
            writer.write(
                storage.encode(storage.SuccessResponse(request.session_id, request.sequence, request.partition))
            )

    async def work() -> tuple[bytes, bytes]:
        async with scripted(peer) as address:
            process = await begun(loop, "append", address)
            await greeted.wait()
            async with stopped(process):
                reading.set()
            return await process.communicate()

    out, error = asyncio.run(asyncio.wait_for(work(), 20))
    assert (out, error) == (b"appended\n", b"")
