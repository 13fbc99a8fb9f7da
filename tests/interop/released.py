"""The programs of the released Waltz 0.13.2: ZooKeeper, storage node, server, tools and clients, started on the loopback.

They come from ``WALTZ_CLASSPATH`` and are no part of this project.  A program of theirs binds to the address of the local
host's name; a hosts file of our own makes that the loopback, whatever the machine is called.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import socket
import subprocess
import urllib.request
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.interop.processes import HOST, PATIENCE, Stage, accepts, wait_until
from tests.reserved_ports import reserved_ports

CLASSPATH = os.environ.get("WALTZ_CLASSPATH")
needs_released = pytest.mark.skipif(
    not CLASSPATH or shutil.which("java") is None or shutil.which("javac") is None,
    reason="needs a JDK and WALTZ_CLASSPATH, the class path of a built Waltz 0.13.2; make interop says how to get one",
)

OURS = Path(__file__).resolve().parent / "java"
"""Java programs of this project, compiled against the class path when they are needed."""
TOOLS = "com.wepay.waltz.tools."


class ToolError(AssertionError):
    """A released tool ended with another status than 0."""


@dataclass(frozen=True, slots=True)
class Java:
    """How Java is called: class path, the directory for what all of its processes share."""

    classpath: str
    directory: Path

    @classmethod
    def prepare(cls, directory: Path) -> Java:
        """Compile our programs and write the hosts file."""
        assert CLASSPATH is not None
        compiled = directory / "classes"
        compiled.mkdir(parents=True)
        sources = [str(path) for path in sorted(OURS.glob("*.java"))]
        subprocess.run(
            ["javac", "-nowarn", "-cp", CLASSPATH, "-d", str(compiled), *sources], check=True, timeout=PATIENCE
        )
        (directory / "hosts").write_text(f"127.0.0.1 {HOST}\n127.0.0.1 {socket.gethostname()}\n")
        return cls(f"{compiled}{os.pathsep}{CLASSPATH}", directory)

    def command(self, main: str, *arguments: object, log: Path, heap: str = "512m") -> list[str]:
        """The command line of a main class, which logs to `log`."""
        return [
            "java",
            f"-Xmx{heap}",
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",  # programs that live for seconds: start-up matters more than speed
            "-XX:-UsePerfData",
            "--add-exports=java.base/sun.security.x509=ALL-UNNAMED",
            f"-Djdk.net.hosts.file={self.directory / 'hosts'}",
            f"-Dlog4j.configuration=file:{OURS / 'log4j.properties'}",
            f"-Dinterop.log={log}",
            "-cp",
            self.classpath,
            main,
            *(str(argument) for argument in arguments),
        ]


def write_yaml(path: Path, **values: object) -> Path:
    """A YAML file of dotted keys; ``__`` stands for the dot."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{key.replace('__', '.')}: {json.dumps(value)}\n" for key, value in values.items()))
    return path


class ZooKeeper:
    """A real ZooKeeper of one server."""

    def __init__(self, stage: Stage, java: Java) -> None:
        self.port = reserved_ports(1)[0]
        config = stage.directory / "zoo.cfg"
        config.write_text(
            f"tickTime=1000\ndataDir={stage.directory / 'zookeeper-data'}\nclientPort={self.port}\n"
            "clientPortAddress=127.0.0.1\nmaxClientCnxns=0\nforceSync=no\nmaxSessionTimeout=60000\n"
        )
        log = stage.directory / "zookeeper.log4j"
        self._stage = stage
        self._command = java.command("org.apache.zookeeper.server.ZooKeeperServerMain", config, log=log)
        self._starts = itertools.count()
        self.start()

    def start(self) -> None:
        """Start it, also again, and return once it answers."""
        self.running = self._stage.start(
            f"zookeeper-{next(self._starts)}",
            self._command,
            env={"_JAVA_OPTIONS": ""} if "_JAVA_OPTIONS" in os.environ else None,
        )
        wait_until(self._answers, "ZooKeeper answers", of=self.running)

    @property
    def connect_string(self) -> str:
        return f"127.0.0.1:{self.port}"

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=5) as connection:
                connection.sendall(b"ruok")
                return connection.recv(4) == b"imok"
        except OSError:
            return False


class Tools:
    """The released command-line tools, for one cluster in one ZooKeeper."""

    _runs = itertools.count()

    def __init__(self, java: Java, directory: Path, zookeeper: ZooKeeper, root: str) -> None:
        self.java = java
        self.directory = directory
        self.config = write_yaml(
            directory / "tools.yml",
            zookeeper__connectString=zookeeper.connect_string,
            zookeeper__sessionTimeout=30_000,
            zookeeper__connectTimeout=10_000,
            cluster__root=root,
        )

    def command(self, tool: str, subcommand: str, *arguments: object) -> list[str]:
        log = self.directory / f"tool-{next(self._runs)}-{subcommand}.log4j"
        return self.java.command(TOOLS + tool, subcommand, *arguments, "-c", self.config, log=log)

    def run(self, tool: str, subcommand: str, *arguments: object) -> str:
        """What it printed.  Raises ToolError when it ends with a status other than 0."""
        done = self.attempt(tool, subcommand, *arguments)
        if done.returncode != 0:
            raise ToolError(f"{tool} {subcommand} {arguments}: status {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout

    def attempt(self, tool: str, subcommand: str, *arguments: object) -> subprocess.CompletedProcess[str]:
        """Run it whatever comes of it."""
        command = self.command(tool, subcommand, *arguments)
        return subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=3 * PATIENCE, stdin=subprocess.DEVNULL
        )

    def zookeeper(self, subcommand: str, *arguments: object) -> str:
        return self.run("zk.ZooKeeperCli", subcommand, *arguments)

    def storage(self, subcommand: str, *arguments: object) -> str:
        return self.run("storage.StorageCli", subcommand, *arguments)

    def cluster(self, subcommand: str, *arguments: object) -> str:
        return self.run("cluster.ClusterCli", subcommand, *arguments)

    def client(self, subcommand: str, *arguments: object) -> str:
        return self.run("client.ClientCli", subcommand, *arguments)

    def performance(self, subcommand: str, *arguments: object) -> str:
        return self.run("performance.PerformanceCli", subcommand, *arguments)


def pings(port: int) -> bool:
    """Whether the HTTP server of a node or server answers its ping."""
    try:
        with urllib.request.urlopen(f"http://{HOST}:{port}/ping", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


class ReleasedServer:
    """A released Waltz server of a cluster."""

    def __init__(self, stage: Stage, java: Java, tools_config: dict[str, object]) -> None:
        self.port, self.http_port = reserved_ports(2)
        config = write_yaml(
            stage.directory / f"server-{self.port}.yml",
            server__port=self.port,
            server__jetty__port=self.http_port,
            storage__initialRetryInterval=50,
            storage__maxRetryInterval=500,
            **tools_config,
        )
        name = f"server-{self.port}"
        command = java.command("com.wepay.waltz.server.WaltzServer", config, log=stage.directory / f"{name}.log4j")
        self.running = stage.start(name, command)
        wait_until(lambda: pings(self.http_port) and accepts(self.port), "the server answers", of=self.running)


class ClientError(AssertionError):
    """The released client was refused; the message is the node's."""


@dataclass(frozen=True, slots=True)
class Shown:
    """A record as the released client showed it."""

    transaction_id: int
    request_id: tuple[int, int, int, int]
    header: int
    data: bytes
    data_checksum: int

    @classmethod
    def parse(cls, text: str) -> Shown:
        number, *request_id, header, data, checksum = text.split(":")
        client, generation, partition, sequence = map(int, request_id)
        return cls(
            int(number),
            (client, generation, partition, sequence),
            int(header),
            bytes.fromhex(data),
            int(checksum) & 0xFFFF_FFFF,
        )


def signed32(number: int) -> int:
    """The lowest 32 bits, as Java casts to int."""
    return (number & 0xFFFF_FFFF) - ((number & 0x8000_0000) << 1)


def expected_data(partition: int, transaction_id: int, size: int) -> bytes:
    """The data that ``ReleasedClient.java`` gives to a record."""
    return bytes((transaction_id * 31 + partition * 7 + place) & 0xFF for place in range(size))


class ReleasedClient:
    """The released storage clients of both ports, connected to one node over TLS; see ``java/ReleasedClient.java``."""

    _made = itertools.count()

    def __init__(
        self, stage: Stage, java: Java, port: int, admin_port: int, *, cluster_key: str, num_partitions: int
    ) -> None:
        name = f"client-{next(self._made)}"
        log = stage.directory / f"{name}.log4j"
        command = java.command("ReleasedClient", HOST, port, admin_port, cluster_key, num_partitions, log=log)
        self.running = stage.start(name, command, pipes=True)
        self._answer("connect")

    def _line(self) -> str:
        assert self.running.process.stdout is not None
        line = self.running.process.stdout.readline().decode().rstrip("\n")
        if not line:
            raise ClientError(f"the released client ended\n{self.running.tail()}")
        return line

    def _answer(self, question: str) -> str:
        verdict, _, text = self._line().partition(" ")
        if verdict != "ok":
            raise ClientError(f"{question}: {text}")
        return text

    def send(self, *words: object) -> str:
        """Hand a question over, without waiting for the answer."""
        assert self.running.process.stdin is not None
        question = " ".join(str(word).lower() if isinstance(word, bool) else str(word) for word in words)
        self.running.process.stdin.write(question.encode() + b"\n")
        self.running.process.stdin.flush()
        return question

    def ask(self, *words: object) -> str:
        """Question and answer.  Raises ClientError with the node's message."""
        return self._answer(self.send(*words))

    def session(self, session: int, partition: int) -> tuple[int, int, int]:
        """Session id, low-water mark and local low-water mark of the last session."""
        last, mark, local = map(int, self.ask("session", session, partition).split())
        return last, mark, local

    def append(self, session: int, partition: int, first: int, count: int, size: int = 100) -> None:
        self.ask("append", session, partition, first, count, size)

    def records(self, session: int, partition: int, first: int, count: int) -> list[Shown]:
        return [Shown.parse(one) for one in self.ask("records", session, partition, first, count).split()]

    def admin_records(self, partition: int, first: int, count: int) -> list[Shown]:
        return [Shown.parse(one) for one in self.ask("admin-records", partition, first, count).split()]

    def max_transaction_id(self, session: int, partition: int) -> int:
        return int(self.ask("max", session, partition))

    def flood(self, session: int, partition: int, first: int, largest_batch: int) -> Iterable[int]:
        """Append for ever; gives the last transaction id of each acknowledged batch and ends when the node fails."""
        self.send("flood", session, partition, first, largest_batch)
        while True:
            what, _, number = self._line().partition(" ")
            if what != "acknowledged":
                assert what == "ok", number
                return
            yield int(number)

    def close(self) -> None:
        assert self.running.process.stdin is not None
        self.running.process.stdin.close()
        self.running.process.wait(PATIENCE)


def key_of(tools: Tools) -> str:
    """The key of the cluster."""
    return tools.zookeeper("show-cluster-key").strip()
