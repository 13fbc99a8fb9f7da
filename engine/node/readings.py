"""One look at everything a node shows: its metrics with the present values of its partitions, and the names they go by.

The names are those of release 0.13.2: a group, ``waltz-storage`` for the node and ``waltz-storage.partition-N`` for a
partition, and a name within it.  A partition is there while it is loaded.
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
"""The release's group of the node's own metrics."""


OUT_OF_SERVICE = "out-of-service"
"""A gauge of ours: the code of what keeps a partition out of sessions; it is there while something does."""
CLUSTER_KEY, CLUSTER_PARTITIONS = "cluster-key", "cluster-partitions"
"""Gauges of ours that the admin port alone shows: what a directory made of the node's records has to say in its headers."""


@dataclass(frozen=True, slots=True)
class NodePartitionReading:
    """A loaded partition: what was counted of it and its present values.

    `out_of_service`: the code of what keeps it out of sessions; None when it takes part.
    """

    partition: int
    metrics: NodePartitionMetrics
    gauges: PartitionGauges
    out_of_service: str | None = None


@dataclass(frozen=True, slots=True)
class NodeReading:
    """A node at one moment.  `assigned` are the numbers of its partitions, ascending."""

    version: str
    assigned: tuple[int, ...]
    partitions: tuple[NodePartitionReading, ...]

    def metrics(self) -> Iterator[NamedMetric]:
        """Everything that a released node shows, by group and name; and why a partition is out of service, if it is."""
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
    """Of which cluster the node is."""
    yield NamedMetric(GROUP, CLUSTER_KEY, Gauge(str(cluster_key)))
    yield NamedMetric(GROUP, CLUSTER_PARTITIONS, Gauge(num_partitions))


def read_node(storage: StorageDirectory, hosted: HostedStorage, metrics: NodeMetrics, *, version: str) -> NodeReading:
    """Look at a node.  It may wait for a partition that is writing its marks: call it in a thread.

    In the documented layout, which has no flags and no sequence numbers, the flags say what they would say in the released
    one, and the sequence number is 0.
    """
    readings = []
    available = dict(hosted.assigned_status())
    for number in sorted(storage.partitions):
        service = hosted.service(number)
        try:
            partition = storage.partition(number)
        except NotAssignedError:
            continue  # taken away since
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
        outage = service.outage if service is not None else None
        out = None if outage is None else outage.code.value
        readings.append(NodePartitionReading(number, metrics.partition(number), gauges, out))
    return NodeReading(version, tuple(reading.partition for reading in readings), tuple(readings))
