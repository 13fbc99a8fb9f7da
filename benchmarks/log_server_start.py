"""A log server that begins, or dies, with many partitions: ours beside that of release 0.13.2, same nodes and ZooKeeper, in turn.

    WALTZ_CLASSPATH=... python benchmarks/log_server_start.py [--partitions 1000] [--rounds 3] [--only ours] [--json]

Three storage nodes of ours hold every partition.  In each round each kind is measured twice.  Open: one server is started;
the time from its start until it has told the high-water mark of every partition, and the most memory that it took until then.
Fail-over: two servers share the partitions; one is killed (``kill -9``); the time until the other has told the marks of all.
How long ZooKeeper believes in the dead one (its session's timeout, the same for both) is a part of that, and is shown.
Nodes: a client appends to one partition, one transaction after the other, through one server that has opened every partition
with all replicas.  One of three nodes is killed: the longest time between two commits.  Two are killed, and started again 3 s
later: the time from when they listen to the next commit.
Medians over the rounds.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import tempfile
import time
from pathlib import Path

from log_server import SETTLING, Bench, answers, compared, started
from running_nodes import PATIENCE

from waltzctl import open_log_client
from waltzctl.engine.client.client_options import ClientOptions
from waltzctl.engine.client.log_transaction import Draft

SESSION_SECONDS = 10.0
IMPATIENT = ClientOptions(longest_retry=0.5, not_ready=0.5)
"""A client that waits long between its tries would be measured itself."""


class Starts(Bench):
    """Servers that are started, and killed."""

    def all_open(self, partitions: int) -> None:
        """Wait until every partition has told its high-water mark."""

        async def work() -> None:
            async with open_log_client(self.metadata, options=IMPATIENT) as client:
                await asyncio.gather(*(client.high_water_mark(n, timeout=PATIENCE) for n in range(partitions)))

        asyncio.run(work())

    def opening(self, kind: str, partitions: int) -> tuple[float, float]:
        """Seconds from the start until everything is open, and MiB that the server took at most."""
        begun = time.monotonic()
        with self.listening(kind, kind) as process:
            self.all_open(partitions)
            seconds = time.monotonic() - begun
            return seconds, _peak_mib(process.pid)

    def fail_over(self, kind: str, partitions: int) -> float:
        """Seconds from the death of one of two servers until the other has everything open."""
        with self.listening(kind, f"{kind}-1") as first, self.listening(kind, f"{kind}-2"):
            self.all_open(partitions)
            first.kill()
            first.wait()
            begun = time.monotonic()
            self.all_open(partitions)
            return time.monotonic() - begun

    def node_failures(self, kind: str, partitions: int) -> tuple[float, float]:
        """Seconds: the longest pause when a node dies, and the one behind the return of two that died."""
        with self.listening(kind, f"{kind}-nodes"):
            self.all_open(partitions)
            time.sleep(SETTLING)  # until the replicas that were not needed for the quorum take part as well
            return asyncio.run(self._node_failures())

    async def _node_failures(self) -> tuple[float, float]:
        committed: list[float] = []
        async with open_log_client(self.metadata, options=IMPATIENT) as client:

            async def append() -> None:
                while True:
                    await client.append(0, Draft(b"x"), timeout=PATIENCE)
                    committed.append(time.monotonic())

            appending = asyncio.create_task(append())
            while len(committed) < 100:
                await asyncio.sleep(0.05)
            killed = time.monotonic()
            self._kill(0)
            await asyncio.sleep(3)
            pause = max(b - a for a, b in itertools.pairwise(committed) if b > killed)
            await self._again(0)
            await asyncio.sleep(3)
            self._kill(1)
            self._kill(2)
            await asyncio.sleep(3)
            for number in (1, 2):
                await self._again(number)
            back = time.monotonic()
            while committed[-1] < back and not appending.done():
                await asyncio.sleep(0.01)
            appending.cancel()
            return pause, committed[-1] - back

    def _kill(self, number: int) -> None:
        process, _ = self.nodes[number]
        process.kill()
        process.wait()

    async def _again(self, number: int) -> None:
        """Start a node that was killed; it listens afterwards."""
        command = self.nodes[number][1]
        port = int(str(command[command.index("--port") + 1]))
        again = started(self.place, f"n{number}", command, lambda: answers(port))
        self.nodes[number] = await asyncio.to_thread(self.stack.enter_context, again), command


def _peak_mib(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--partitions", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=("ours", "released"))
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    kinds = (options.only,) if options.only else ("released", "ours")
    found: dict[str, list[tuple[float, ...]]] = {kind: [] for kind in kinds}
    with tempfile.TemporaryDirectory(prefix="waltzctl-bench-") as place, contextlib.ExitStack() as stack:
        bench = Starts(Path(place), stack, options.partitions)
        for _ in range(options.rounds):
            for kind in kinds:
                opening, memory = bench.opening(kind, options.partitions)
                time.sleep(SESSION_SECONDS)  # so that no server before is believed in
                over = bench.fail_over(kind, options.partitions)
                time.sleep(SESSION_SECONDS)
                found[kind].append((opening, memory, over, *bench.node_failures(kind, options.partitions)))
                time.sleep(SESSION_SECONDS)
    names = ("open, s", "memory, MiB", "fail-over, s", "node dies, s", "two back, s")
    rows = [
        {"what": name} | compared({kind: [one[at] for one in found[kind]] for kind in kinds}, 2)
        for at, name in enumerate(names)
    ]
    if options.json:
        print(
            json.dumps({"partitions": options.partitions, "session_seconds": SESSION_SECONDS, "rows": rows}, indent=1)
        )
        return
    print(f"{options.partitions} partitions; a dead server is believed in for {SESSION_SECONDS:g} s")
    for row in rows:
        print("  ".join(f"{value!s:>14}" for value in row.values()))


if __name__ == "__main__":
    main()
