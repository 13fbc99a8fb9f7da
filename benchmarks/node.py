"""Speed of our storage node beside the released one, over the same disk, under the same clients, in the same run.

    python benchmarks/node.py [--quick] [--cells PATTERN,...] [--rounds 3] [--seconds 1.5] [--tls on|off|both]
                              [--client released|ours|both] [--json FILE] [--directory DIR] [--profile] [--only ours]
                              [--flush-delay-ms MS] [--journal] [--noise MEGABYTES_A_SECOND]

A cell is ``append PxRxDxF`` or ``read PxRxDxF``: partitions, records in a request (or asked for), bytes of data in a record,
requests in flight for each partition; ``--cells 'append 1x1x*'`` chooses by pattern.  Both nodes run all the time; each
cell is measured in turn on one and on the other, in every round in another order, after a warm-up that does not count.  Rates
are medians of the rounds, and so are both latencies, in milliseconds.  The released client needs WALTZ_CLASSPATH, and so does
the released node.

``--flush-delay-ms 1`` makes every flush of both nodes take a millisecond longer (``slow_flush.c``), as on a slower disk.

``--journal`` gives our node a commit journal, on the same device.  ``--noise``: somebody else writes as much to the same file
system meanwhile.

``--profile`` measures our node alone, with a sampling thread in it (it costs some of the speed), and prints for each cell
where its threads are and how much processor time each has taken.

Wanted: never slower; 3 times as fast for requests of a single record with 10 or more in flight; 2 times for those with one in
flight from 16 partitions on, and for 100 records of 100 bytes with 10 or more in flight; the 99th percentile not above the
release's.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import loads
from generated import noise, workplace
from loads import Cell, Figures
from running_nodes import PARTITIONS, RunningNode, start_ours, start_released
from sampled_report import report

NEEDED = 12 << 30
FILL_MEGABYTES = 64
"""Data of each partition that is read."""
FLUSHES = 300

ALL = tuple(
    [
        Cell("append", partitions, records, data, in_flight)
        for partitions in (1, 4, 16)
        for records in (1, 10, 100, 1000)
        for data in (100, 1024)
        for in_flight in (1, 10, 100)
    ]
    + [Cell("append", PARTITIONS, records, 100, in_flight) for records in (1, 100) for in_flight in (1, 10, 100)]
    + [
        Cell("read", partitions, records, data, in_flight)
        for partitions in (1, 4)
        for records in (1, 10, 100, 1000)
        for data in (100, 1024)
        for in_flight in (1, 10)
    ]
)
QUICK = tuple(
    [
        Cell("append", partitions, records, 100, in_flight)
        for partitions in (1, 4)
        for records in (1, 100)
        for in_flight in (1, 10, 100)
    ]
    + [Cell("read", 1, records, 100, in_flight) for records in (10, 1000) for in_flight in (1, 10)]
)


@dataclass(slots=True)
class Row:
    """A cell under one client, with or without TLS: what each node did in each round."""

    cell: Cell
    client: str
    tls: bool
    ours: list[Figures] = field(default_factory=list)
    released: list[Figures] = field(default_factory=list)

    @property
    def wanted(self) -> float:
        """How many times as fast as the release our node shall be."""
        cell = self.cell
        if cell.operation == "append" and cell.records == 1 and cell.in_flight == 1 and cell.partitions >= 16:
            return 2.0
        if cell.operation == "append" and cell.in_flight >= 10:
            if cell.records == 1:
                return 3.0
            if (cell.records, cell.data) == (100, 100):
                return 2.0
        return 1.0

    def ratio(self, of: Callable[[Figures], float]) -> float:
        """Median of ours over median of the release's."""
        return median(self.ours, of) / max(median(self.released, of), 1e-9)

    @property
    def misses(self) -> list[str]:
        """Which targets it misses."""
        found = [] if self.ratio(rate) >= self.wanted else [f"below {self.wanted:g}x"]
        return found + ([] if self.ratio(p99) <= 1 else ["p99"])


def rate(figures: Figures) -> float:
    return figures.rate


def p50(figures: Figures) -> float:
    return figures.p50


def p99(figures: Figures) -> float:
    return figures.p99


def median(rounds: Sequence[Figures], of: Callable[[Figures], float]) -> float:
    return statistics.median(map(of, rounds))


def flush_milliseconds(place: Path) -> tuple[float, float]:
    """Median and 99th percentile of a write of 4 KiB at a file's end and its fdatasync."""
    times = []
    descriptor = os.open(place / "flush", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    try:
        for _ in range(FLUSHES):
            os.write(descriptor, bytes(4096))
            began = time.perf_counter()
            os.fdatasync(descriptor)
            times.append((time.perf_counter() - began) * 1000)
    finally:
        os.close(descriptor)
        os.unlink(place / "flush")
    times.sort()
    return statistics.median(times), times[int(len(times) * 0.99)]


@contextlib.contextmanager
def running(
    place: Path, arguments: argparse.Namespace, *, tls: bool, only_ours: bool, profile: Path | None = None
) -> Iterator[list[RunningNode]]:
    """Both nodes, or ours alone, with all partitions."""
    nodes: list[RunningNode] = []
    try:
        delay = arguments.flush_delay_ms
        nodes.append(start_ours(place, tls=tls, profile=profile, flush_delay_ms=delay, journal=arguments.journal))
        if not only_ours:
            nodes.append(start_released(place, tls=tls, flush_delay_ms=delay))
        for node in nodes:
            loads.assign(node)
        yield nodes
    finally:
        for node in nodes:
            node.stop()


def warm(nodes: Sequence[RunningNode]) -> None:
    """Let both nodes do some of everything before anything counts."""
    for node in nodes:
        for records, in_flight in ((1, 10), (100, 10), (1, 1)):
            loads.our_client(node, Cell("append", 1, records, 100, in_flight), seconds=1.5)


def measure(
    nodes: Sequence[RunningNode], cells: Sequence[Cell], arguments: argparse.Namespace, place: Path
) -> Iterator[Row]:
    """Every round over every cell, on each node in turn, with each client."""
    tls = nodes[0].tls
    clients = ("released", "ours") if arguments.client == "both" else (arguments.client,)
    rows = {(client, cell): Row(cell, client, tls) for client in clients for cell in cells}
    order = random.Random(7)
    for turn in range(arguments.rounds):
        for client in clients:
            for number, group in enumerate(_groups(client, cells, order)):
                for node in alternating(nodes, turn + number):
                    if client == "released":
                        done = loads.released_client(node, group, seconds=arguments.seconds, seed=turn, place=place)
                    else:
                        done = {cell: loads.our_client(node, cell, seconds=arguments.seconds) for cell in group}
                    for cell, figures in done.items():
                        getattr(rows[client, cell], node.name).append(figures)
        say(f"round {turn + 1} of {arguments.rounds}, TLS {'on' if tls else 'off'}, {cells[0].operation}")
    yield from rows.values()


def _groups(client: str, cells: Sequence[Cell], order: random.Random) -> list[list[Cell]]:
    groups = list(loads.products(cells)) if client == "released" else [[cell] for cell in cells]
    order.shuffle(groups)
    return groups


def alternating(nodes: Sequence[RunningNode], turn: int) -> Sequence[RunningNode]:
    return nodes if turn % 2 == 0 else nodes[::-1]


def measure_all(cells: Sequence[Cell], arguments: argparse.Namespace, place: Path) -> Iterator[Row]:
    """With and without TLS: the appends, then the reads of each size of data over partitions that are filled for them."""
    for tls in {"on": [True], "off": [False], "both": [True, False]}[arguments.tls]:
        here = place / ("tls" if tls else "plain")
        here.mkdir()
        with running(here, arguments, tls=tls, only_ours=arguments.only == "ours") as nodes:
            warm(nodes)
            appends = [cell for cell in cells if cell.operation == "append"]
            if appends:
                yield from measure(nodes, appends, arguments, here)
            for data in sorted({cell.data for cell in cells if cell.operation == "read"}):
                reads = [cell for cell in cells if cell.operation == "read" and cell.data == data]
                for node in nodes:
                    most = max(cell.partitions for cell in reads)
                    loads.fill(node, partitions=most, data=data, megabytes=FILL_MEGABYTES)
                yield from measure(nodes, reads, arguments, here)
                for node in nodes:
                    loads.empty(node)
            for node in nodes:
                say(f"{node.name}: peak memory {node.memory_kib() >> 10} MiB")


def print_table(rows: Sequence[Row]) -> None:
    """One line a cell; what misses its target says so."""
    for tls, client in sorted({(row.tls, row.client) for row in rows}):
        print(f"\nTLS {'on' if tls else 'off'}, {'released client' if client == 'released' else 'our client'}")
        print(
            f"{'cell':22}{'ours/s':>11}{'released/s':>11}{'times':>7}{'spread':>8}{'p50':>9}{'released':>9}{'times':>7}"
            f"{'p99':>9}{'released':>9}{'times':>7}"
        )
        for row in sorted((row for row in rows if (row.tls, row.client) == (tls, client)), key=lambda row: row.cell):
            rates = [figures.rate for figures in row.ours]
            spread = (max(rates) - min(rates)) / statistics.median(rates)
            line = f"{row.cell!s:22}{median(row.ours, rate):>11,.0f}"
            if row.released:
                line += f"{median(row.released, rate):>11,.0f}{row.ratio(rate):>7.2f}{spread:>8.0%}"
                for of in (p50, p99):
                    line += f"{median(row.ours, of):>9.3f}{median(row.released, of):>9.3f}{row.ratio(of):>7.2f}"
                line += "".join(f"  {miss}" for miss in row.misses)
            else:
                line += f"{'':>18}{spread:>8.0%}{median(row.ours, p50):>9.3f}{'':>16}{median(row.ours, p99):>9.3f}"
            print(line)


def print_profile(cells: Sequence[Cell], arguments: argparse.Namespace, place: Path) -> None:
    """Each cell on a node of its own that is sampled; see ``sampled.py``."""
    for tls in {"on": [True], "off": [False], "both": [True, False]}[arguments.tls]:
        for number, cell in enumerate(cells):
            here = place / f"profile-{number}-{tls}"
            here.mkdir()
            output = here / "stacks"
            with running(here, arguments, tls=tls, only_ours=True, profile=output) as (node,):
                if cell.operation == "read":
                    loads.fill(node, partitions=cell.partitions, data=cell.data, megabytes=FILL_MEGABYTES)
                before = node.threads()
                figures = loads.our_client(node, cell, seconds=arguments.seconds)
                spent = {name: now - before.get(name, 0.0) for name, now in node.threads().items()}
            elapsed = arguments.seconds + loads.WARM_SECONDS
            latency = f"p50 {figures.p50:.3f} ms, p99 {figures.p99:.3f} ms"
            print(f"\n{cell}, TLS {'on' if tls else 'off'}: {figures.rate:,.0f}/s, {latency}")
            shares = sorted(spent.items(), key=lambda item: -item[1])
            print(
                "processor: "
                + ", ".join(f"{name} {used / elapsed:.0%}" for name, used in shares if used > 0.01 * elapsed)
            )
            print(report(output))


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def chosen(arguments: argparse.Namespace) -> list[Cell]:
    cells = QUICK if arguments.quick else ALL
    if arguments.cells:
        cells = tuple(loads.like(ALL, arguments.cells))
    if not cells:
        raise SystemExit(f"no cell is like {arguments.cells}; they are {', '.join(map(str, ALL[:3]))} ...")
    return list(cells)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--cells", metavar="PATTERN,...")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1.5)
    parser.add_argument("--tls", choices=("on", "off", "both"), default="both")
    parser.add_argument("--client", choices=("released", "ours", "both"), default="both")
    parser.add_argument("--only", choices=("ours",))
    parser.add_argument("--flush-delay-ms", type=float, default=0.0, metavar="MS")
    parser.add_argument("--journal", action="store_true")
    parser.add_argument("--noise", type=float, default=0.0, metavar="MEGABYTES_A_SECOND")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--directory", type=Path)
    arguments = parser.parse_args()
    cells = chosen(arguments)
    with workplace(arguments.directory, NEEDED) as place, noise(place, arguments.noise):
        flush, slow_flush = flush_milliseconds(place)
        print(f"one write of 4 KiB and fdatasync: {flush:.3f} ms, 99th percentile {slow_flush:.3f} ms")
        print(
            f"{os.cpu_count()} processors, Python {platform.python_version()}, {platform.system()} {platform.release()}"
        )
        if arguments.profile:
            print_profile(cells, arguments, place)
            return
        rows = list(measure_all(cells, arguments, place))
    print_table(rows)
    compared = [row for row in rows if row.released]
    missing = [row for row in compared if row.misses]
    print(f"\n{len(compared) - len(missing)} of {len(compared)} cells meet what is wanted")
    if arguments.json:
        shown = [
            {
                **asdict(row),
                "times": row.ratio(rate) if row.released else None,
                "misses": row.misses if row.released else [],
            }
            for row in rows
        ]
        flushes = {"fdatasync_ms": flush, "fdatasync_p99_ms": slow_flush}
        arguments.json.write_text(json.dumps({"benchmark": "node", **flushes, "rows": shown}, indent=1) + "\n")


if __name__ == "__main__":
    main()
