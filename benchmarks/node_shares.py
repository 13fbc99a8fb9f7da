"""Whose the processors' time is: what client and node take of it for each request, under our node and the released one.

    WALTZ_CLASSPATH=... python benchmarks/node_shares.py [--cells PATTERN,...] [--rounds 3] [--seconds 2] [--directory DIR]

The released client loads both nodes in turn (without TLS).  Each cell, as in ``node.py``, runs for so many seconds and then for
three times as many: what client and node took of the processors in the second run beyond the first, divided by the requests in
the second beyond the first.  So neither the start of a JVM nor the warm-up counts.  Printed are microseconds of a request: of the
client, of the node's program, of the system on the node's behalf (sockets, writes, flushes, threads that wait for each other),
what no process used of all processors, and the time between two requests, in which these find room.

``at most`` is the rate at which the client's share alone would fill all processors, over the released node's rate: no node,
however fast, has a better ratio with this client on this machine.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import loads
from generated import workplace
from loads import WARM_SECONDS, Cell
from node import FILL_MEGABYTES, alternating, running
from running_nodes import PARTITIONS, RunningNode

CELLS = [
    Cell("append", partitions, records, 100, flight)
    for records in (1, 100)
    for partitions in (1, 4, 16, PARTITIONS)
    for flight in (1, 10)
]
CELLS += [
    Cell("read", partitions, records, 100, flight) for partitions in (1, 4) for records in (1, 10) for flight in (1, 10)
]
PROCESSORS = len(os.sched_getaffinity(0))
HEADS = (
    ("node", 10),
    ("client", 9),
    ("program", 9),
    ("system", 8),
    ("unused", 8),
    ("between", 9),
    ("rate", 10),
    ("times", 7),
    ("at most", 9),
)
"""Heads of the table behind the cell, and their widths."""


@dataclass(frozen=True, slots=True)
class Spent:
    """Seconds of the processors of the client, the node's program and the system for it, and the requests that came of it."""

    client: float
    program: float
    system: float
    requests: float


@dataclass(frozen=True, slots=True)
class Shares:
    """Microseconds of a request: of the client, of the node's program and the system for it, and between two requests."""

    client: float
    program: float
    system: float
    between: float

    @property
    def unused(self) -> float:
        """What no process used, of all processors."""
        return max(0.0, PROCESSORS * self.between - self.client - self.program - self.system)

    @property
    def rate(self) -> float:
        """Requests a second."""
        return 1e6 / self.between


def _of_clients() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _spent(node: RunningNode, cell: Cell, seconds: float, place: Path) -> Spent:
    client, (program, system) = _of_clients(), node.processor_seconds()
    figures = loads.released_client(node, [cell], seconds=seconds, seed=1, place=place)[cell]
    requests = figures.rate / cell.records * (seconds + WARM_SECONDS)
    program_then, system_then = node.processor_seconds()
    return Spent(_of_clients() - client, program_then - program, system_then - system, requests)


def shares(node: RunningNode, cell: Cell, seconds: float, place: Path) -> Shares:
    """What a request takes."""
    short, long = (_spent(node, cell, each, place) for each in (seconds, 3 * seconds))
    each = 1e6 / (long.requests - short.requests)
    return Shares(
        each * (long.client - short.client),
        each * (long.program - short.program),
        each * (long.system - short.system),
        each * 2 * seconds,
    )


def median(found: Sequence[Shares]) -> Shares:
    """Column by column."""
    columns = zip(*((one.client, one.program, one.system, one.between) for one in found), strict=True)
    return Shares(*map(statistics.median, columns))


def measure(nodes: Sequence[RunningNode], cell: Cell, options: argparse.Namespace, place: Path) -> list[Shares]:
    """Medians of the rounds, of each node."""
    found: dict[str, list[Shares]] = {node.name: [] for node in nodes}
    for turn in range(options.rounds):
        for node in alternating(nodes, turn):
            found[node.name].append(shares(node, cell, options.seconds, place))
    return [median(found[node.name]) for node in nodes]


def print_rows(cell: Cell, ours: Shares, released: Shares) -> None:
    """One line for each node."""
    most = 1e6 * PROCESSORS / min(ours.client, released.client) / released.rate
    ratios = f"{ours.rate / released.rate:>7.2f}{most:>9.2f}"
    for label, name, one, ends in ((str(cell), "ours", ours, ratios), ("", "released", released, "")):
        times = f"{one.client:>9.1f}{one.program:>9.1f}{one.system:>8.1f}{one.unused:>8.1f}{one.between:>9.1f}{one.rate:>10,.0f}"
        print(f"{label:22}{name:>10}{times}{ends}", flush=True)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cells", default="*", metavar="PATTERN,...")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--directory", type=Path)
    parser.set_defaults(flush_delay_ms=0.0, journal=False)
    options = parser.parse_args()
    chosen = loads.like(CELLS, options.cells)
    with (
        workplace(options.directory, 4 << 30) as place,
        running(place, options, tls=False, only_ours=False) as nodes,
    ):
        print(f"{PROCESSORS} processors, released client, no TLS; microseconds of a request")
        print(f"{'cell':22}" + "".join(f"{head:>{width}}" for head, width in HEADS))
        for operation in ("append", "read"):
            cells = [cell for cell in chosen if cell.operation == operation]
            if operation == "read" and cells:
                for node in nodes:
                    loads.fill(
                        node, partitions=max(cell.partitions for cell in cells), data=100, megabytes=FILL_MEGABYTES
                    )
            for cell in cells:
                print_rows(cell, *measure(nodes, cell, options, place))


if __name__ == "__main__":
    main()
