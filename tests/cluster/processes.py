"""A cluster of real processes on this machine: embedded metadata, storage nodes, log servers."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.cli.running import Answer, environment, invoke
from tests.interop.processes import Running, Stage, wait_until
from tests.reserved_ports import reserved_ports


class ClusterOfProcesses:
    """Nodes and servers are started and stopped one by one; commands run in this process."""

    def __init__(self, stage: Stage, *, partitions: int = 4, metadata: str | None = None) -> None:
        self.stage = stage
        self.metadata = metadata or str(stage.directory / "metadata")
        self.partitions = partitions
        self.nodes: dict[str, Running] = {}
        self.servers: dict[int, Running] = {}
        self._ports: dict[str, list[int]] = {}
        created = self.cluster("create", "--name", "demo", "--partitions", partitions, "--format", "ndjson")
        assert created.status == 0, created.err
        self.key: str = created.objects[0]["cluster_key"]

    def cluster(self, *arguments: object) -> Answer:
        """``waltzctl cluster``, which finds the metadata and speaks plain text."""
        return invoke("cluster", "--metadata", self.metadata, "--plaintext", *arguments)

    def log(self, *arguments: object, given: str | bytes | None = None) -> Answer:
        """``waltzctl log``."""
        return invoke("log", "--metadata", self.metadata, "--plaintext", *arguments, given=given)

    def ready(self, name: str) -> dict[str, Any]:
        """What a process said when it was ready."""
        found: dict[str, Any] = json.loads((self.stage.directory / f"{name}.ready").read_text())
        return found

    def _start(self, name: str, *arguments: object) -> Running:
        file = self.stage.directory / f"{name}.ready"
        file.unlink(missing_ok=True)
        command = [sys.executable, "-m", "waltzctl", *map(str, arguments), "--plaintext", "--ready-file", str(file)]
        return self.stage.start(name, command, env=environment())

    def _answers(self, name: str, process: Running) -> None:
        wait_until((self.stage.directory / f"{name}.ready").exists, f"{name} is ready", of=process)

    def directory(self, number: int) -> Path:
        """A node's."""
        return self.stage.directory / f"n{number}"

    def start_nodes(self, *numbers: int) -> list[str]:
        """Start nodes, made where they are new; their names in the metadata."""
        new = [number for number in numbers if not self.directory(number).exists()]
        if new:
            made = invoke(
                *("create-cluster", *map(self.directory, new), "--partitions", self.partitions),
                *("--key", self.key, "--layout", "released", "--assign", "none", "-q"),
            )
            assert made.status == 0, made.err
            for number in new:
                self._ports[f"n{number}"] = reserved_ports(2)
        for number in numbers:
            name = f"n{number}"
            data, admin = self._ports[name]
            self.nodes[name] = self._start(
                name, "serve", self.directory(number), "--port", data, "--admin-port", admin, "--http-port", "off"
            )
        names = []
        for number in numbers:
            self._answers(f"n{number}", self.nodes[f"n{number}"])
            names.append(f"127.0.0.1:{self._ports[f'n{number}'][0]}")
        return names

    def add_nodes(self, *numbers: int) -> list[str]:
        """Start nodes, each a group of its own that holds everything."""
        names = self.start_nodes(*numbers)
        for number, name in zip(numbers, names, strict=True):
            admin = self.ready(f"n{number}")["admin_port"]
            for action in (
                ("add-node", name, "--admin-port", admin, "--group", number, "--yes"),
                ("auto-assign", "--group", number, "--yes"),
            ):
                done = self.cluster(*action)
                assert done.status == 0, done.err
        done = self.cluster("sync", "--yes")
        assert done.status == 0, done.err
        return names

    def start_servers(self, *numbers: int, more: Sequence[str] = ()) -> list[dict[str, Any]]:
        """Start servers, with `more` options; what each said when it was ready."""
        for number in numbers:
            self.servers[number] = self._start(
                f"s{number}", "log-server", "--metadata", self.metadata, "--port", 0, "--storage-plaintext", *more
            )
        for number in numbers:
            self._answers(f"s{number}", self.servers[number])
        return [self.ready(f"s{number}") for number in numbers]

    def state(self) -> dict[str, Any]:
        """``cluster show``."""
        shown = self.cluster("show", "--format", "json")
        assert shown.status == 0, shown.err
        found: dict[str, Any] = json.loads(shown.out)
        return found

    def codes(self, *arguments: object) -> list[str]:
        """The codes that ``cluster verify`` finds."""
        return [one["code"] for one in self.cluster("verify", "--format", "ndjson", *arguments).only("finding")]

    def settle(self) -> None:
        """Wait until nothing is wrong, and nothing changed while that was asked: the next one who asks hears the same."""

        def at_rest() -> bool:
            before = self.state()
            return not self.codes() and self.state() == before

        wait_until(at_rest, "the cluster is as the metadata says")
