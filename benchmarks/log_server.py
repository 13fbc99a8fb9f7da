"""Committed transactions a second: our log server beside that of release 0.13.2, same nodes, ZooKeeper and client, in turn.

    WALTZ_CLASSPATH=... python benchmarks/log_server.py [--seconds 4] [--rounds 3] [--partitions 1,4] [--in-flight 1,16,256]
                                                        [--size 100] [--locks 0] [--warm-up 15] [--only ours] [--json]

Three storage nodes of ours hold every partition.  In each round one server after the other is started, loaded with ``waltzctl log
bench`` and stopped, so that both see the same state of the machine.  Before the first cell each is loaded as in the largest cell
for `--warm-up` seconds, in which the released one's compiler does its work: without that its first cells are up to half as fast.
Printed for each cell: transactions a second and the 99th percentile of the latency of both, medians over the rounds, and the
ratio of the rates.  Where client, server and nodes share two processors, they are what is measured together.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from measuring import environment
from running_nodes import PATIENCE, java, reserved_ports

NODES = 3
SETTLING = 5.0
"""Seconds in which a server that took over may open its sessions and copy to replicas what the one before left them behind."""


def compared(runs: Mapping[str, Sequence[float]], digits: int | None = None) -> dict[str, Any]:
    """The median of each kind's runs, and the ratio of ours where there are both."""
    row = {kind: round(statistics.median(found), digits) for kind, found in runs.items()}
    return row | {"ratio": round(row["ours"] / row["released"], 2)} if len(row) == 2 else row


def waltzctl(*words: object, check: bool = True, given: str | None = None) -> Any:
    """A command, `given` on its standard input; what it shows as JSON."""
    command = [sys.executable, "-m", "waltzctl", *map(str, words), "--format", "json"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(), check=False, input=given)
    if check and done.returncode != 0:
        raise SystemExit(f"waltzctl {' '.join(map(str, words))}: {done.stderr}")
    return json.loads(done.stdout) if done.stdout.strip() else None


@contextlib.contextmanager
def started(place: Path, name: str, command: Sequence[object], ready: object) -> Iterator[subprocess.Popen[bytes]]:
    """A process that answers, until the end of the block."""
    assert callable(ready)
    log = place / f"{name}.log"
    with log.open("ab") as output:
        process = subprocess.Popen([*map(str, command)], stdout=output, stderr=output, env=environment())
    try:
        until = time.monotonic() + PATIENCE
        while not ready():
            if process.poll() is not None or time.monotonic() > until:
                raise SystemExit(f"{name} does not start:\n{log.read_text(errors='replace')[-3000:]}")
            time.sleep(0.05)
        yield process
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(PATIENCE)
        if process.poll() is None:
            process.kill()
            process.wait()


def answers(port: int) -> bool:
    """Whether somebody listens there."""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=5):
        return True
    return False


def yaml_at(path: Path, **values: object) -> Path:
    """A configuration file with these keys; two underscores stand for a dot."""
    path.write_text("".join(f"{key.replace('__', '.')}: {json.dumps(value)}\n" for key, value in values.items()))
    return path


class Bench:
    """ZooKeeper and nodes that run, and servers that are started over them."""

    def __init__(self, place: Path, stack: contextlib.ExitStack, partitions: int) -> None:
        self.place, self.port, self.stack = place, 0, stack
        """`port`: of the server that was started last."""
        self.nodes: list[tuple[subprocess.Popen[bytes], Sequence[object]]] = []
        """Processes, and the commands by which they were started."""
        (port,) = reserved_ports(1)
        config = place / "zoo.cfg"
        config.write_text(f"tickTime=1000\ndataDir={place / 'zk'}\nclientPort={port}\nclientPortAddress=127.0.0.1\n")
        main = "org.apache.zookeeper.server.ZooKeeperServerMain"
        stack.enter_context(started(place, "zookeeper", java(place, main, config), lambda: answers(port)))
        self.metadata = f"zk://127.0.0.1:{port}/bench"
        self._config = {
            "zookeeper__connectString": f"127.0.0.1:{port}",
            "zookeeper__sessionTimeout": 10_000,
            "cluster__root": "/bench",
        }
        made = waltzctl("cluster", "create", "--metadata", self.metadata, "--partitions", partitions)
        for number in range(NODES):
            self._node(stack, number, partitions, made["cluster_key"])

    def _node(self, stack: contextlib.ExitStack, number: int, partitions: int, key: str) -> None:
        directory, ready = self.place / f"n{number}", self.place / f"n{number}.ready"
        waltzctl("create-cluster", directory, "--partitions", partitions, "--key", key, "--layout", "released")
        data, admin = reserved_ports(2)
        ports = ("--port", data, "--admin-port", admin, "--http-port", "off", "--log-level", "warning")
        command = [sys.executable, "-m", "waltzctl", "serve", directory, *ports, "--ready-file", ready]
        self.nodes.append((stack.enter_context(started(self.place, f"n{number}", command, ready.exists)), command))
        where = ("--metadata", self.metadata, "--yes")
        name = f"127.0.0.1:{data}"
        waltzctl("cluster", "add-node", name, "--admin-port", admin, "--group", number, *where)
        waltzctl("cluster", "auto-assign", "--group", number, *where)

    @contextlib.contextmanager
    def listening(self, kind: str, name: str) -> Iterator[subprocess.Popen[bytes]]:
        """Run a server of one of the two kinds, from when it listens until the end of the block."""
        port, http = reserved_ports(2)
        self.port = port
        config = yaml_at(self.place / f"{name}.yml", server__port=port, server__jetty__port=http, **self._config)
        if kind == "ours":
            options = ("--host", "localhost", "--config", config, "--log-level", "warning")
            command: Sequence[object] = [sys.executable, "-m", "waltzctl", "log-server", *options]
        else:
            command = java(self.place, "com.wepay.waltz.server.WaltzServer", config)
        with started(self.place, name, command, lambda: answers(port)) as process:
            yield process

    @contextlib.contextmanager
    def server(self, kind: str) -> Iterator[None]:
        """Run one of the two, until the end of the block, from when a session is open."""
        with self.listening(kind, kind):
            until = time.monotonic() + PATIENCE
            while (
                waltzctl("log", "high-water-mark", "--metadata", self.metadata, "--timeout", "5s", check=False) is None
            ):
                if time.monotonic() > until:
                    raise SystemExit(f"{kind}: no session opens")
                time.sleep(0.2)
            time.sleep(SETTLING)
            yield

    def _leave_page_cache(self) -> None:
        """Have the nodes' files leave the page cache, so that what all measurements write does not pile up there.

        A virtual machine may give memory that is free back to its host.  Where this one had 25 GB, 6 of them at hand, each new
        page beyond those cost 10 us: with 1 KiB, 11 us for a transaction on three nodes, whichever server wrote it.
        """
        for path in self.place.glob("n[0-9]/**/*"):
            if path.is_file():
                with path.open("rb") as file:
                    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

    def load(self, partitions: int, in_flight: int, options: argparse.Namespace, seconds: float | None = None) -> Any:
        """One measurement, of `options.seconds` unless others are given, behind nobody's writes.

        What the one before left to the kernel is on the disk, and not in memory.
        """
        os.sync()
        self._leave_page_cache()
        return waltzctl(
            *("log", "bench", "--metadata", self.metadata, "--partition", f"0-{partitions - 1}"),
            *("--in-flight", in_flight, "--duration", f"{seconds or options.seconds:g}s", "--data-size", options.size),
            *("--lock-pool", options.locks),
        )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--partitions", default="1,4")
    parser.add_argument("--in-flight", default="1,16,256")
    parser.add_argument("--size", type=int, default=100)
    parser.add_argument("--locks", type=int, default=0)
    parser.add_argument("--warm-up", type=float, default=15.0)
    parser.add_argument("--only", choices=("ours", "released"))
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    kinds = (options.only,) if options.only else ("released", "ours")
    cells = [(int(p), int(n)) for p in options.partitions.split(",") for n in options.in_flight.split(",")]
    found: dict[tuple[str, int, int], list[Any]] = {}
    with tempfile.TemporaryDirectory(prefix="waltzctl-bench-") as place, contextlib.ExitStack() as stack:
        bench = Bench(Path(place), stack, max(partitions for partitions, _ in cells))
        for _ in range(options.rounds):
            for kind in kinds:
                with bench.server(kind):
                    if options.warm_up:
                        bench.load(*max(cells), options, options.warm_up)
                    for cell in cells:
                        found.setdefault((kind, *cell), []).append(bench.load(*cell, options))
    rows = []
    for partitions, in_flight in cells:
        row: dict[str, Any] = {"partitions": partitions, "in_flight": in_flight}
        for kind in kinds:
            runs = found[kind, partitions, in_flight]
            row[kind] = round(statistics.median(one["transactions_per_second"] for one in runs))
            row[f"{kind}_p99_ms"] = round(1000 * statistics.median(one["latency_seconds"]["p99"] for one in runs), 1)
        if len(kinds) == 2:
            row["ratio"] = round(row["ours"] / row["released"], 2)
        rows.append(row)
    if options.json:
        print(json.dumps(rows, indent=1))
        return
    print("  ".join(f"{name:>15}" for name in rows[0]))
    for row in rows:
        print("  ".join(f"{value:>15}" for value in row.values()))


if __name__ == "__main__":
    main()
