"""Health of a log server: the metadata answers, every assigned partition has a session, the client port listens.

A partition without a session is unhealthy; the report names the replicas it waits for and the time since when.  (Release 0.13.2
reports it as healthy, weakness V11.)

Source: release 0.13.2, for the form of the answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from waltzctl.engine.net.metrics_json import Json
from waltzctl.engine.server.server_metrics import ServerPartitionReading

CHECK_NAME = "server-health-check"
"""The release's name of its only check."""


@dataclass(frozen=True, slots=True)
class ServerHealthReport:
    """The health at one moment.

    `metadata`: whether the metadata answers and this server is registered there; `registered`: whether it ever was.
    """

    metadata: bool
    listening: bool
    partitions: tuple[ServerPartitionReading, ...]
    draining: bool
    registered: bool = True

    @property
    def problems(self) -> tuple[str, ...]:
        """What is wrong, in sentences; empty when the server is well."""
        found = []
        if not self.registered:
            found.append("the server is starting: it waits for the metadata, to be among the servers of its cluster")
        elif not self.metadata:
            found.append(
                "the metadata does not answer, or has ended this server's session; nothing is served until it does"
            )
        if not self.listening:
            found.append("the client port does not listen; restart the server")
        found += [
            f"partition {one.partition} has had no session for {one.recovering_seconds or 0:.1f} s: {one.waits_for}"
            for one in self.partitions
            if one.waits_for
        ]
        if self.draining:
            found.append("the server is stopping")
        return tuple(found)

    @property
    def healthy(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems

    def document(self) -> Mapping[str, Json]:
        """What ``/health`` answers: the release's keys, and the problems in words."""
        return {
            CHECK_NAME: {
                "healthy": self.healthy,
                "zookeeper": self.metadata,
                "partitions": {str(one.partition): not one.waits_for for one in self.partitions},
                "problems": [*self.problems],
            }
        }
