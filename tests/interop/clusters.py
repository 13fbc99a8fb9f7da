"""A Waltz cluster on the loopback, whose storage nodes are released ones, ours, or both."""

from __future__ import annotations

import enum
import itertools
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from tests.interop.processes import HOST, Running, Stage, accepts, wait_until
from tests.interop.released import Java, ReleasedClient, ReleasedServer, Tools, ZooKeeper, key_of, pings, write_yaml
from tests.reserved_ports import reserved_ports

PROJECT = Path(__file__).resolve().parents[2]
SEGMENT_SIZE = 200_000
"""Small, so that every scenario crosses from segment to segment."""


class Kind(enum.StrEnum):
    """Which program a storage node is."""

    OURS = "ours"
    RELEASED = "released"


def waltzctl(*arguments: object) -> list[str]:
    """The command line of this project."""
    return [sys.executable, "-m", "waltzctl", *(str(argument) for argument in arguments)]


def environment() -> dict[str, str]:
    """What a process of this project needs, installed or not."""
    return {"PYTHONPATH": os.pathsep.join([str(PROJECT), *filter(None, [os.environ.get("PYTHONPATH")])])}


class StorageNode:
    """One node of a cluster: its directory and ports stay when it is stopped, killed, or started again as another kind."""

    def __init__(self, stage: Stage, java: Java, name: str, config: dict[str, object]) -> None:
        self.name = name
        self.port, self.admin_port, self.http_port = reserved_ports(3)
        self.directory = stage.directory / name
        self.directory.mkdir()
        self._stage = stage
        self._java = java
        self._config = write_yaml(
            stage.directory / f"{name}.yml",
            storage__port=self.port,
            storage__admin__port=self.admin_port,
            storage__jetty__port=self.http_port,
            storage__directory=str(self.directory),
            storage__segment__size__threshold=SEGMENT_SIZE,
            **config,
        )
        self._starts = itertools.count()
        self.running: Running | None = None

    @property
    def address(self) -> str:
        """Host and data port."""
        return f"{HOST}:{self.port}"

    @property
    def admin_address(self) -> str:
        """Host and admin port."""
        return f"{HOST}:{self.admin_port}"

    def start(self, kind: Kind) -> None:
        """Start it, and return once all its ports answer."""
        assert self.running is None
        name = f"{self.name}-{kind}-{next(self._starts)}"
        if kind is Kind.RELEASED:
            log = self._stage.directory / f"{name}.log4j"
            self.running = self._stage.start(name, self._java.command("CleanNode", self._config, log=log))
            wait_until(self._answers, f"{name} answers", of=self.running)
        else:
            ready = self._stage.directory / f"{name}.ready"
            command = waltzctl("serve", "--config", self._config, "--ready-file", ready)
            self.running = self._stage.start(name, command, env=environment())
            wait_until(ready.exists, f"{name} is ready", of=self.running)
            told = json.loads(ready.read_text())
            assert (told["port"], told["admin_port"], told["http_port"]) == (self.port, self.admin_port, self.http_port)

    def _answers(self) -> bool:
        return pings(self.http_port) and accepts(self.port) and accepts(self.admin_port)

    def stop(self) -> None:
        """SIGTERM: both kinds close their files then."""
        assert self.running is not None
        self.running.stop()
        self.running = None

    def kill(self) -> None:
        """SIGKILL."""
        assert self.running is not None
        self.running.kill()
        self.running = None


class OurServer:
    """A log server of ours; as `ReleasedServer`."""

    def __init__(self, stage: Stage, config: Mapping[str, object]) -> None:
        self.port, self.http_port = reserved_ports(2)
        name = f"our-server-{self.port}"
        ready = stage.directory / f"{name}.ready"
        file = write_yaml(
            stage.directory / f"{name}.yml",
            server__port=self.port,
            server__jetty__port=self.http_port,
            **{**config, "zookeeper__sessionTimeout": 10_000},
        )
        command = waltzctl("log-server", "--host", "localhost", "--config", file, "--ready-file", ready)
        self.running = stage.start(name, command, env=environment())
        wait_until(ready.exists, "our server is ready", of=self.running)


class Cluster:
    """ZooKeeper's view of a cluster, its nodes and servers.  Every node is a group of its own and holds every partition."""

    _roots = itertools.count()

    def __init__(
        self,
        stage: Stage,
        java: Java,
        zookeeper: ZooKeeper,
        *,
        nodes: int,
        partitions: int,
        assigned: bool = True,
        settings: Mapping[str, object] = MappingProxyType({}),
    ) -> None:
        """`settings`: of the nodes, in their configuration files."""
        self.stage = stage
        self.java = java
        self.num_partitions = partitions
        root = f"/interop-{os.getpid()}-{next(self._roots)}"
        self.tools = Tools(java, stage.directory, zookeeper, root)
        self._config: dict[str, object] = {
            "zookeeper__connectString": zookeeper.connect_string,
            "zookeeper__sessionTimeout": 30_000,
            "cluster__root": root,
        }
        self.tools.zookeeper("create", "-n", "interop", "-p", partitions)
        self.key = key_of(self.tools)
        of_nodes = {**self._config, **settings}
        self.nodes = [StorageNode(stage, java, f"storage-{number}", of_nodes) for number in range(nodes)]
        for group, node in enumerate(self.nodes):
            self.tools.zookeeper("add-storage-node", "-s", node.address, "-a", node.admin_port, "-g", group)
            if assigned:
                self.tools.zookeeper("assign-partition", "-s", node.address, "-p", self.ranges)
        self.servers: list[ReleasedServer | OurServer] = []
        self.metadata = f"zk://{zookeeper.connect_string}{root}"

    @property
    def ranges(self) -> str:
        """All partitions, as the tools want them."""
        return f"0-{self.num_partitions - 1}"

    def start(self, kinds: Sequence[Kind], *, sync: bool = True) -> None:
        """Start the nodes, each as its kind, and give them their partitions by the released tool."""
        for node, kind in zip(self.nodes, kinds, strict=True):
            node.start(kind)
        if sync:
            self.tools.storage("sync-partitions")

    def start_server(self) -> ReleasedServer:
        """Start a released server."""
        server = ReleasedServer(self.stage, self.java, self._config)
        self.servers.append(server)
        return server

    def start_our_server(self) -> OurServer:
        """Start a log server of ours."""
        server = OurServer(self.stage, self._config)
        self.servers.append(server)
        return server

    def stop_servers(self) -> None:
        """End the servers, so that nothing is written any more."""
        for server in self.servers:
            server.running.stop()
        self.servers.clear()

    def client(self, node: StorageNode) -> ReleasedClient:
        """Released clients of both ports of a node."""
        return ReleasedClient(
            self.stage,
            self.java,
            node.port,
            node.admin_port,
            cluster_key=self.key,
            num_partitions=self.num_partitions,
        )
