"""What a process for each processor could bring a node: two nodes with half of the partitions each, beside one that has all.

    WALTZ_CLASSPATH=... python benchmarks/node_processes.py [--cells PATTERN,...] [--rounds 3] [--seconds 2] [--directory DIR]

The released client loads the one node with P partitions; then two of them load the two nodes with P/2 each, at the same time.
Printed for each cell (as in ``node.py``): both rates, appended transactions or read records a second, and their ratio.  It is the
most that dealing the partitions out among processes can bring, for then nothing has to go from one process to the other.
"""

from __future__ import annotations

import argparse
import statistics
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import loads
from generated import workplace
from loads import Cell
from running_nodes import RunningNode, start_ours

CELLS = [Cell("append", partitions, 1, 100, in_flight) for partitions in (4, 16, 64) for in_flight in (1, 10)]
CELLS += [Cell("read", 4, 10, 100, in_flight) for in_flight in (1, 10)]
MEGABYTES = 16


def loaded(node: RunningNode, cell: Cell, seconds: float, place: Path) -> float:
    """Records a second of one node."""
    place.mkdir(exist_ok=True)
    return loads.released_client(node, [cell], seconds=seconds, seed=1, place=place)[cell].rate


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cells", default="*", metavar="PATTERN,...")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--directory", type=Path)
    options = parser.parse_args()
    chosen = loads.like(CELLS, options.cells)
    with workplace(options.directory, 4 << 30) as place, ThreadPoolExecutor(2) as pool:
        nodes: list[RunningNode] = []
        try:
            for name in ("one", "half", "other-half"):
                (place / name).mkdir()
                nodes.append(start_ours(place / name, tls=False))
                loads.assign(nodes[-1])
            print(f"{'cell':22}{'one process':>13}{'two':>10}{'times':>7}")
            for cell in chosen:
                if cell.operation == "read":
                    for node in nodes:
                        loads.fill(node, partitions=cell.partitions, data=cell.data, megabytes=MEGABYTES)
                half = replace(cell, partitions=cell.partitions // 2)
                one, two = [], []
                for _ in range(options.rounds):
                    one.append(loaded(nodes[0], cell, options.seconds, place / "client-0"))
                    both = [
                        pool.submit(loaded, node, half, options.seconds, place / f"client-{number}")
                        for number, node in enumerate(nodes[1:], 1)
                    ]
                    two.append(sum(each.result() for each in both))
                if cell.operation == "read":
                    for node in nodes:
                        loads.empty(node)
                alone, dealt = statistics.median(one), statistics.median(two)
                print(f"{cell!s:22}{alone:>13,.0f}{dealt:>10,.0f}{dealt / alone:>7.2f}", flush=True)
        finally:
            for node in nodes:
                node.stop()


if __name__ == "__main__":
    main()
