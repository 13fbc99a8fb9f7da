"""Traffic of released clients through a released server: what they were told is committed, and what they read afterwards."""

from __future__ import annotations

import itertools
import threading
from collections import Counter

from tests.interop.clusters import Cluster
from tests.interop.processes import GivenUpError, Running, wait_until

_made = itertools.count()


def _start(cluster: Cluster, what: str, locks: int = 0) -> Running:
    name = f"{what}-{next(_made)}"
    log = cluster.stage.directory / f"{name}.log4j"
    command = cluster.java.command(
        "ReleasedTraffic", what, cluster.tools.config, cluster.num_partitions, locks, log=log
    )
    return cluster.stage.start(name, command, pipes=True)


class Traffic:
    """A released client that writes to all partitions until it is stopped; see ``java/ReleasedTraffic.java``."""

    def __init__(self, cluster: Cluster, locks: int = 0) -> None:
        """`locks`: of each partition; each transaction is written under one of them."""
        self.committed: list[list[str]] = [[] for _ in range(cluster.num_partitions)]
        """The texts of each partition's transactions that the client reported as committed."""
        self.errors: list[str] = []
        self._running = _start(cluster, "write", locks)
        self._reader = threading.Thread(target=self._read, name="traffic")
        self._reader.start()

    def _read(self) -> None:
        assert self._running.process.stdout is not None
        for line in self._running.process.stdout:
            words = line.decode().split()
            if words[0] == "done":
                self.committed[int(words[1])].append(words[2])
            elif words[0] == "error":
                self.errors.append(line.decode())

    def wait_for(self, more: int, what: str) -> None:
        """Until every partition has so many more committed transactions than now."""
        before = [len(one) for one in self.committed]

        def grown() -> bool:
            return all(len(one) >= old + more for one, old in zip(self.committed, before, strict=True))

        wait_until(grown, what, of=self._running)

    def stop(self) -> None:
        """End it.  What is under way may be committed or not."""
        assert self._running.process.stdin is not None
        self._running.process.stdin.close()
        self._running.process.wait()
        self._reader.join()
        assert self._running.status == 0, self._running.tail()
        assert self.errors == []


def _wait_for_the_end(cluster: Cluster, client: Running, reader: threading.Thread, lines: list[list[str]]) -> None:
    """Until the client has said everything: patience is for the next line, as what there is to read grows with every run."""
    while reader.is_alive():
        said = len(lines)
        try:
            wait_until(
                lambda said=said: len(lines) > said or not reader.is_alive(),  # type: ignore[misc]
                f"a client that reads from the start goes on behind {lines[-1:]}, its line {said}",
            )
        except GivenUpError as error:
            logs = [running.tail() for running in (client, *(server.running for server in cluster.servers))]
            raise GivenUpError("\n".join([str(error), *logs])) from None


def read_everything(cluster: Cluster) -> list[list[str]]:
    """The texts of every partition's transactions, from the first one on, as a released client reads them."""
    running = _start(cluster, "read")
    lines: list[list[str]] = []

    def read() -> None:
        assert running.process.stdout is not None
        for line in running.process.stdout:
            lines.append(line.decode().split())  # noqa: PERF401 - counted while they come

    reader = threading.Thread(target=read, name="reading")
    reader.start()
    try:
        _wait_for_the_end(cluster, running, reader, lines)
    finally:
        running.kill()
        reader.join()
    assert ["end"] in lines, lines[-3:]
    found: list[list[str]] = [[] for _ in range(cluster.num_partitions)]
    for word, *rest in lines:
        assert word in ("ready", "read", "end"), rest
        if word == "read":
            partition, number, text = rest
            assert int(number) == len(found[int(partition)]), "ids follow one another"
            found[int(partition)].append(text)
    return found


def expect_nothing_lost_or_doubled(cluster: Cluster, traffic: Traffic) -> None:
    """A client that begins at the start reads everything that was committed by now, and every transaction once."""
    by_now = [list(one) for one in traffic.committed]
    for partition, (found, committed) in enumerate(zip(read_everything(cluster), by_now, strict=True)):
        twice = [text for text, count in Counter(found).items() if count > 1]
        assert twice == [], f"partition {partition}"
        assert set(committed) <= set(found), f"partition {partition}: committed transactions are lost"
