"""The health check of a node: its disk, partitions, queues, ports and commit journal.

The release's health check is constant (weakness S8).  Here each check writes and syncs a new file (`engine.node.disk_probe`), in
a thread of its own, so that a stuck disk is reported and delays nobody.

A node is unhealthy if it needs an operator:

- the disk refuses writes, is read-only, nearly full or stuck;
- a partition has an outage: damage or the disk keeps it out of sessions (`engine.node.outages`);
- a queue makes no progress;
- a port does not listen;
- the commit journal could not be written;
- the node is stopping.

A partition that is switched off or not assigned does not make it unhealthy.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from waltzctl.engine.net.single_flight import OverdueError, SingleFlight
from waltzctl.engine.node.disk_probe import DiskProbe
from waltzctl.engine.node.node_settings import HealthOptions
from waltzctl.engine.storage.fences import START_AGAIN

if TYPE_CHECKING:
    from waltzctl.engine.node.hosted_storage import HostedStorage
    from waltzctl.engine.storage.directory import StorageDirectory

CHECK_NAME = "storage-health-check"
"""The name of the release's only health check."""


@dataclass(frozen=True, slots=True)
class DiskHealth:
    """The disk.  `problem`: what is wrong, or None.  `write_seconds`: for writing and syncing; None: unknown."""

    free_bytes: int | None
    write_seconds: float | None
    problem: str | None


@dataclass(frozen=True, slots=True)
class PartitionHealth:
    """An assigned partition.

    `queued`: unanswered requests.  `stalled_seconds`: since the last progress of its queue.  `out`: the failure code of its
    outage, or None.  `problem`: what is wrong, or None.
    """

    partition: int
    quarantined: bool
    failed: bool
    queued: int
    stalled_seconds: float
    out: str | None
    problem: str | None


@dataclass(frozen=True, slots=True)
class PortHealth:
    """A port, and whether it listens."""

    name: str
    listening: bool


@dataclass(frozen=True, slots=True)
class JournalHealth:
    """The commit journal of a node that has one.  `fault`: why it is not used any more; None: appends are journaled."""

    path: Path
    fault: str | None

    @property
    def problem(self) -> str | None:
        """What is wrong, and what to do."""
        if self.fault is None:
            return None
        return (
            f"{self.path}: the commit journal is not used any more: {self.fault}; appends go on with flushes of their segments;"
            " replace the device and restart the node"
        )


@dataclass(frozen=True, slots=True)
class NodeHealthReport:
    """The outcome of one health check.

    `journal` None: the node has no commit journal.  `sessions`: why no partition can begin a session; None: they can.
    """

    disk: DiskHealth
    partitions: tuple[PartitionHealth, ...]
    ports: tuple[PortHealth, ...]
    draining: bool = False
    journal: JournalHealth | None = None
    sessions: str | None = None

    @property
    def problems(self) -> tuple[str, ...]:
        """What is wrong, as sentences; empty when the node is healthy."""
        found = [self.disk.problem] if self.disk.problem else []
        found += [self.journal.problem] if self.journal is not None and self.journal.problem else []
        found += [self.sessions] if self.sessions else []
        found += [one.problem for one in self.partitions if one.problem]
        found += [
            f"the {port.name} port does not listen; restart the node" for port in self.ports if not port.listening
        ]
        if self.draining:
            found.append("the node is stopping")
        return tuple(found)

    @property
    def healthy(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems

    def message(self) -> str:
        """A JSON text: the release's key ``storage`` with its text ``true`` or ``false``, then the details."""
        details: dict[str, object] = {
            "storage": "true" if self.healthy else "false",
            "problems": self.problems,
            "disk": {
                "healthy": self.disk.problem is None,
                "free_bytes": self.disk.free_bytes,
                "write_seconds": self.disk.write_seconds,
            },
            "partitions": {
                "assigned": [one.partition for one in self.partitions],
                "quarantined": [one.partition for one in self.partitions if one.quarantined],
                "failed": [one.partition for one in self.partitions if one.failed],
                "out_of_service": {str(one.partition): one.out for one in self.partitions if one.out},
            },
            "queues": {
                "requests": sum(one.queued for one in self.partitions),
                "stalled_seconds": max((one.stalled_seconds for one in self.partitions), default=0.0),
            },
            "ports": {port.name: port.listening for port in self.ports},
        }
        if self.journal is not None:
            details["journal"] = {"path": str(self.journal.path), "fault": self.journal.fault}
        return json.dumps(details, separators=(",", ":"))

    def document(self) -> dict[str, dict[str, bool | str]]:
        """What ``/health`` answers, in the release's form."""
        return {CHECK_NAME: {"healthy": self.healthy, "message": self.message()}}


class Health:
    """Checks the health of an open node.  Never waits for a lock or a disk in the event loop."""

    def __init__(
        self,
        storage: StorageDirectory,
        hosted: HostedStorage,
        *,
        ports: Callable[[], Mapping[str, bool]],
        options: HealthOptions = HealthOptions(),  # noqa: B008  # frozen
    ) -> None:
        self._storage, self._hosted, self._ports, self._options = storage, hosted, ports, options
        self.probe = DiskProbe(storage.path, min_free_bytes=options.min_free_bytes)
        self._disk_check = SingleFlight(self.probe.state, name="the look at the disk")
        self._draining = threading.Event()
        self.last: NodeHealthReport | None = None
        """The last report; None before the first check."""

    def begin_draining(self) -> None:
        """Report unhealthy from now on, so that load balancers stop using the node."""
        self._draining.set()

    def use(self, options: HealthOptions) -> None:
        """Apply other options."""
        self._options = options
        self.probe.min_free_bytes = options.min_free_bytes

    async def check(self) -> NodeHealthReport:
        """Check everything; returns within `HealthOptions.deadline` seconds."""
        found = await self._disk()
        if found.problem is None:
            for service in self._hosted.services:
                service.access.note_space(self._options.max_age + self._options.deadline)
        self.last = NodeHealthReport(
            found,
            tuple(self._partition(number) for number in sorted(self._storage.partitions)),
            tuple(PortHealth(name, listening) for name, listening in self._ports().items()),
            self._draining.is_set(),
            self._journal(),
            self._sessions(),
        )
        return self.last

    async def close(self, seconds: float) -> bool:
        """Wait at most `seconds` until no disk check is running; returns whether none is."""
        return await self._disk_check.idle(seconds)

    async def _disk(self) -> DiskHealth:
        try:
            state = await self._disk_check.result(self._options.deadline, max_age=self._options.max_age)
        except OverdueError as error:
            where = self.probe.path.parent
            return DiskHealth(
                None, None, f"{where}: {error}: the disk is stuck, or far too slow; look at the system's log"
            )
        except RuntimeError as error:
            return DiskHealth(None, None, f"the disk cannot be looked at: {error}")
        return DiskHealth(state.free_bytes, state.seconds, state.problem)

    def _sessions(self) -> str | None:
        failed = self._hosted.sessions_failed
        return (
            None if failed is None else f"no partition can begin a session since this failed: {failed}; {START_AGAIN}"
        )

    def _journal(self) -> JournalHealth | None:
        journal = self._storage.journal
        if journal is None:
            return None
        return JournalHealth(journal.path, None if journal.fault is None else str(journal.fault))

    def _partition(self, number: int) -> PartitionHealth:
        partition = self._storage.partitions.get(number)
        service = self._hosted.service(number)
        queued = service.queue_size if service is not None else 0
        stalled = service.stalled_seconds if service is not None else 0.0
        quarantined = partition is not None and partition.damaged
        failure = partition.failed if partition is not None else None
        outage = service.access.outage if service is not None else None
        problem = None
        if outage is not None:
            problem = outage.sentence(number)
        elif stalled > self._options.max_stall:
            problem = f"partition {number} has made no progress for {stalled:.1f} s with {queued} requests waiting"
        out = None if outage is None else outage.code.value
        return PartitionHealth(number, quarantined, failure is not None, queued, stalled, out, problem)
