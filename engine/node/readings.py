"""A snapshot of a node's metrics and of the gauges of its partitions, with their names.

The names are those of release 0.13.2: a group (``waltz-storage`` for the node, ``waltz-storage.partition-N`` for a partition),
and a name within it.  The snapshot holds the partitions that are assigned at that moment.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from waltzctl.engine.errors import NotAssignedError
from waltzctl.engine.net.metrics import Gauge, NamedMetric
from waltzctl.engine.node.node_metrics import NodePartitionMetrics, PartitionGauges
from waltzctl.formats.control import FLAG_ASSIGNED, FLAG_AVAILABLE, PartitionStruct

if TYPE_CHECKING:
    from waltzctl.engine.node.hosted_storage import HostedStorage
    from waltzctl.engine.node.node_metrics import NodeMetrics
    from waltzctl.engine.storage.directory import StorageDirectory

GROUP = "waltz-storage"
"""The release's group for the metrics of the node as a whole."""


OUT_OF_SERVICE = "out-of-service"
"""A gauge that the release does not have: the failure code of a partition's outage, present during the outage only."""
CLUSTER_KEY, CLUSTER_PARTITIONS = "cluster-key", "cluster-partitions"
"""Gauges that the release does not have, shown by the admin port only.

A tool that makes a storage directory from the node's records writes their values into the headers of its files.
"""


@dataclass(frozen=True, slots=True)
class NodePartitionReading:
    """An assigned partition: its metrics and its gauges.

    `out_of_service`: the failure code of its outage; None: it takes part in sessions.
    """

    partition: int
    metrics: NodePartitionMetrics
    gauges: PartitionGauges
    out_of_service: str | None = None


@dataclass(frozen=True, slots=True)
class NodeReading:
    """A snapshot of a node.  `assigned`: the numbers of its partitions, ascending."""

    version: str
    assigned: tuple[int, ...]
    partitions: tuple[NodePartitionReading, ...]

    def metrics(self) -> Iterator[NamedMetric]:
        """The metrics that a released node shows, by group and name; and `OUT_OF_SERVICE` of partitions that have an outage."""
        yield NamedMetric(GROUP, "waltz-storage-num-partitions", Gauge(len(self.assigned)))
        yield NamedMetric(GROUP, "waltz-storage-partition-ids", Gauge(self.assigned))
        yield NamedMetric(GROUP, "waltz-version-id", Gauge(self.version))
        for reading in self.partitions:
            group = f"{GROUP}.partition-{reading.partition}"
            yield NamedMetric(group, "append", reading.metrics.append)
            yield NamedMetric(group, "append-latency", reading.metrics.append_latency)
            for name, counter in reading.metrics.counters().items():
                yield NamedMetric(group, name, counter)
            for name, value in reading.gauges.items():
                yield NamedMetric(group, name, Gauge(value))
            if reading.out_of_service is not None:
                yield NamedMetric(group, OUT_OF_SERVICE, Gauge(reading.out_of_service))


def cluster_metrics(cluster_key: uuid.UUID, num_partitions: int) -> Iterator[NamedMetric]:
    """The gauges that name the node's cluster."""
    yield NamedMetric(GROUP, CLUSTER_KEY, Gauge(str(cluster_key)))
    yield NamedMetric(GROUP, CLUSTER_PARTITIONS, Gauge(num_partitions))


def read_node(storage: StorageDirectory, hosted: HostedStorage, metrics: NodeMetrics, *, version: str) -> NodeReading:
    """Read a node's metrics and gauges.  Blocks while a partition writes its marks: call it in a thread.

    The documented layout of the control file has no flags and no sequence numbers: there the flags are computed, and the sequence
    number is 0.
    """
    readings = []
    available = dict(hosted.assigned_status())
    for number in sorted(storage.partitions):
        service = hosted.service(number)
        try:
            partition = storage.partition(number)
        except NotAssignedError:
            continue  # unassigned meanwhile
        current = storage.info(number).current_struct or PartitionStruct()
        flags = current.flags
        if flags is None:
            flags = FLAG_ASSIGNED | (FLAG_AVAILABLE if available.get(number) else 0)
        gauges = PartitionGauges(
            flags=flags,
            local_low_water_mark=current.local_low_water_mark,
            low_water_mark=current.low_water_mark,
            max_transaction_id=partition.max_transaction_id,
            process_queue_size=service.queue_size if service is not None else 0,
            sequence_number=current.sequence or 0,
            session_id=current.session_id,
        )
        outage = service.access.outage if service is not None else None
        out = None if outage is None else outage.code.value
        readings.append(NodePartitionReading(number, metrics.partition(number), gauges, out))
    return NodeReading(version, tuple(reading.partition for reading in readings), tuple(readings))
