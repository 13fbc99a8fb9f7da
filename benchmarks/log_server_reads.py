"""What clients read of a log server: ours beside that of release 0.13.2, same nodes and ZooKeeper, in turn.

    WALTZ_CLASSPATH=... python benchmarks/log_server_reads.py [--transactions 20000] [--rounds 3] [--clients 1,10,100]
                                                              [--only ours] [--json]

One partition of three storage nodes of ours is filled with transactions of 100 bytes.  In each round one server after the other
is started, so that its caches are empty, and asked for

- the data of random transactions, each once (none is in a cache), and of the same ones again, 16 questions under way;
- a feed of all transactions by one client (nothing is in a cache), and then by so many clients at once.

A feed's client counts frames and does nothing else; those of all clients together are told.  Medians over the rounds.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import functools
import json
import random
import ssl
import tempfile
import time
from pathlib import Path
from typing import Any

from log_server import Bench, compared, waltzctl

from waltzctl import open_log_client
from waltzctl.engine.client.log_client import LogClient
from waltzctl.formats.request_id import RequestId
from waltzctl.formats.wire import client as wire
from waltzctl.formats.wire.feed_frames import FEED_FRAME
from waltzctl.formats.wire.frame import FRAME_HEADER
from waltzctl.formats.wire.hello import WALTZ_CLIENT, Hello

VERSION = max(wire.CLIENT_VERSIONS)
QUESTIONS = 16
PATIENCE = 300.0


class FeedCounter(asyncio.Protocol):
    """Mounts partition 0 from the beginning, and counts what it is fed until the last transaction has come."""

    def __init__(self, client: int, generation: int, last: int) -> None:
        self._mount, self._last = RequestId(client, generation, 0, 1), last
        self._position = -1
        self._left = b""
        self._greeted = False
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        transport.write(Hello((VERSION,), WALTZ_CLIENT).encode())

    def _say(self, message: Any) -> None:
        self._transport.write(wire.encode(message, VERSION))

    def data_received(self, data: bytes) -> None:
        data = self._left + data if self._left else data
        at, end, size = 0, len(data), FRAME_HEADER.size
        while at + size <= end:
            length = FRAME_HEADER.struct.unpack_from(data, at)[2]
            behind = at + size + length
            if behind > end:
                break
            if behind - at == FEED_FRAME and self._greeted:  # no other message of a feed is of that size
                self._position += 1
            elif length:
                self._other(data[at + size : behind])
            at = behind
        self._left = data[at:]
        if self._position >= self._last and not self.done.done():
            self.done.set_result(None)

    def _other(self, body: bytes) -> None:
        if not self._greeted:
            self._greeted = True
            self._say(wire.MountRequest(self._mount, -1, 0))
            return
        message = wire.decode(body, VERSION)
        if isinstance(message, wire.MountResponse) and message.state is wire.MountState.NOT_READY:
            asyncio.get_running_loop().call_later(0.05, self._say, wire.MountRequest(self._mount, self._position, 0))
        elif isinstance(message, (wire.MountResponse, wire.FeedSuspended)) and self._position < self._last:
            self._say(wire.FeedRequest(self._mount, self._position))

    def connection_lost(self, error: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(
                ConnectionError(f"the server closed the connection behind transaction {self._position}: {error}")
            )


async def feed(endpoint: str, generation: int, last: int, clients: int, first_client: int) -> float:
    """Transactions a second, of all clients together."""
    host, _, port = endpoint.rpartition(":")
    loop, anybody = asyncio.get_running_loop(), ssl.create_default_context()
    anybody.check_hostname = False
    anybody.verify_mode = ssl.CERT_NONE  # servers here have certificates of their own making
    begun = time.monotonic()
    numbers = range(first_client, first_client + clients)
    made = [
        await loop.create_connection(functools.partial(FeedCounter, number, generation, last), host, port, ssl=anybody)
        for number in numbers
    ]
    async with asyncio.timeout(PATIENCE):
        await asyncio.gather(*(one.done for _, one in made))
    seconds = time.monotonic() - begun
    for transport, _ in made:
        transport.close()
    return clients * (last + 1) / seconds


async def data(client: LogClient, wanted: list[int]) -> float:
    """Questions for data that are answered a second."""
    left = iter(wanted)

    async def ask() -> None:
        for number in left:
            await client.data(0, number)

    begun = time.monotonic()
    async with asyncio.TaskGroup() as tasks:
        for _ in range(QUESTIONS):
            tasks.create_task(ask())
    return len(wanted) / (time.monotonic() - begun)


async def measured(bench: Bench, last: int, counts: list[int]) -> dict[str, float]:
    """One server, which has just been started."""
    serving: list[tuple[str, int]] = []
    while not serving:
        await asyncio.sleep(0.2)
        for one in waltzctl("cluster", "show", "--metadata", bench.metadata)["servers"]:
            if one["endpoint"].endswith(f":{bench.port}"):
                serving = [(one["endpoint"], held["generation"]) for held in one["partitions"]]
    ((endpoint, generation),) = serving
    wanted = random.Random(1).sample(range(last + 1), min(5000, (last + 1) // 2))
    found: dict[str, float] = {}
    async with open_log_client(bench.metadata) as client:
        await client.high_water_mark(0)
        found["data, not cached"] = await data(client, wanted)
        found["data, again"] = await data(client, wanted)
    number = 1_000_000
    for name, count in (("feed, not cached", 1), *((f"feed, {count} clients", count) for count in counts)):
        found[name] = await feed(endpoint, generation, last, count, number)
        number += count
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--transactions", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--clients", default="1,10,100")
    parser.add_argument("--only", choices=("ours", "released"))
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    kinds = (options.only,) if options.only else ("released", "ours")
    counts = [int(one) for one in options.clients.split(",")]
    found: dict[str, list[dict[str, float]]] = {kind: [] for kind in kinds}
    with tempfile.TemporaryDirectory(prefix="waltzctl-bench-") as place, contextlib.ExitStack() as stack:
        bench = Bench(Path(place), stack, 1)
        with bench.server("ours"):
            lines = "".join(f"{number:0100d}\n" for number in range(options.transactions))
            waltzctl("log", "append", "--metadata", bench.metadata, "--partition", 0, given=lines)
        for _ in range(options.rounds):
            for kind in kinds:
                with bench.server(kind):
                    found[kind].append(asyncio.run(measured(bench, options.transactions - 1, counts)))
    names = found[kinds[0]][0]
    rows = [
        {"a second": name} | compared({kind: [one[name] for one in found[kind]] for kind in kinds}) for name in names
    ]
    if options.json:
        print(json.dumps(rows, indent=1))
        return
    for row in rows:
        print("  ".join(f"{value!s:>20}" for value in row.values()))


if __name__ == "__main__":
    main()
