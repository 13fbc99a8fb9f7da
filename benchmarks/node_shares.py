"""Whose the processors' time is: what client and node take of it for each request, under our node and the released one.

    WALTZ_CLASSPATH=... python benchmarks/node_shares.py [--cells PATTERN,...] [--rounds 3] [--seconds 2] [--directory DIR]

The released client loads both nodes in turn (without TLS).  Each cell, as in ``node.py``, runs for so many seconds and then for
three times as many: what client and node took of the processors in the second run beyond the first, divided by the requests in
the second beyond the first.  So neither the start of a JVM nor the warm-up counts.  Printed are microseconds of a request: of the
client, of the node, what no process used of all processors, and the time between two requests, in which these find room.

``at most`` is the rate at which the client's share alone would fill all processors, over the released node's rate: no node,
however fast, has a better ratio with this client on this machine.
"""

from __future__ import annotations

import argparse
import fnmatch
import os
import resource
import statistics
from dataclasses import dataclass
from pathlib import Path

import loads
from generated import workplace
from loads import WARM_SECONDS, Cell
from running_nodes import PARTITIONS, RunningNode, start_ours, start_released

CELLS = [Cell("append", partitions, 1, 100, flight) for partitions in (1, 4, 16, PARTITIONS) for flight in (1, 10)]
CELLS += [
    Cell("read", partitions, records, 100, flight) for partitions in (1, 4) for records in (1, 10) for flight in (1, 10)
]
MEGABYTES = 64
PROCESSORS = len(os.sched_getaffinity(0))


@dataclass(frozen=True, slots=True)
class Spent:
    """Seconds of the processors of client and node, and what came of it."""

    client: float
    node: float
    requests: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Shares:
    """Microseconds of a request: of client and node, and between two requests; and requests a second."""

    client: float
    node: float
    between: float

    @property
    def unused(self) -> float:
        """What no process used, of all processors."""
        return max(0.0, PROCESSORS * self.between - self.client - self.node)

    @property
    def rate(self) -> float:
        """Requests a second."""
        return 1e6 / self.between


def _of_clients() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _spent(node: RunningNode, cell: Cell, seconds: float, place: Path) -> Spent:
    client, of_node = _of_clients(), sum(node.threads().values())
    figures = loads.released_client(node, [cell], seconds=seconds, seed=1, place=place)[cell]
    requests = figures.rate / cell.records * (seconds + WARM_SECONDS)
    return Spent(
        _of_clients() - client,
        sum(node.threads().values()) - of_node,
        requests,
        requests / (figures.rate / cell.records),
    )


def shares(node: RunningNode, cell: Cell, seconds: float, place: Path) -> Shares:
    """What a request takes."""
    short, long = (_spent(node, cell, each, place) for each in (seconds, 3 * seconds))
    requests = long.requests - short.requests
    return Shares(
        1e6 * (long.client - short.client) / requests,
        1e6 * (long.node - short.node) / requests,
        1e6 * (long.seconds - short.seconds) / requests,
    )


def median(found: list[Shares]) -> Shares:
    """Column by column."""
    columns = zip(*((one.client, one.node, one.between) for one in found), strict=True)
    return Shares(*map(statistics.median, columns))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cells", default="*", metavar="PATTERN,...")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--directory", type=Path)
    options = parser.parse_args()
    chosen = [cell for cell in CELLS if any(fnmatch.fnmatch(str(cell), one) for one in options.cells.split(","))]
    with workplace(options.directory, 4 << 30) as place:
        nodes: list[RunningNode] = []
        try:
            for name, start in (("ours", start_ours), ("released", start_released)):
                (place / name).mkdir()
                nodes.append(start(place / name, tls=False))
                loads.assign(nodes[-1])
            print(f"{PROCESSORS} processors, released client, no TLS; microseconds of a request")
            heads = ("node", "client", "node", "unused", "between", "rate", "times", "at most")
            widths = (10, 9, 8, 8, 9, 10, 7, 9)
            print(f"{'cell':22}" + "".join(f"{head:>{width}}" for head, width in zip(heads, widths, strict=True)))
            for operation in ("append", "read"):
                cells = [cell for cell in chosen if cell.operation == operation]
                if operation == "read" and cells:
                    for node in nodes:
                        loads.fill(node, partitions=max(c.partitions for c in cells), data=100, megabytes=MEGABYTES)
                for cell in cells:
                    found: dict[str, list[Shares]] = {node.name: [] for node in nodes}
                    for turn in range(options.rounds):
                        for node in nodes if turn % 2 == 0 else nodes[::-1]:
                            found[node.name].append(shares(node, cell, options.seconds, place))
                    ours, released = (median(found[node.name]) for node in nodes)
                    most = 1e6 * PROCESSORS / min(ours.client, released.client) / released.rate
                    for one, told, ends in (
                        (ours, "ours", f"{ours.rate / released.rate:>7.2f}{most:>9.2f}"),
                        (released, "released", ""),
                    ):
                        label = str(cell) if one is ours else ""
                        print(
                            f"{label:22}{told:>10}{one.client:>9.1f}{one.node:>8.1f}{one.unused:>8.1f}"
                            f"{one.between:>9.1f}{one.rate:>10,.0f}{ends}",
                            flush=True,
                        )
        finally:
            for node in nodes:
                node.stop()


if __name__ == "__main__":
    main()
