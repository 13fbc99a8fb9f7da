"""The maps of a cluster's storage nodes: which group, which partitions and which admin port each one has.

From the maps as read and as edited follow the steps of a change, for the operator, and its transaction.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from waltzctl.engine.metadata.cluster_steps import ClusterStep, MetadataAction
from waltzctl.engine.metadata.metadata_store import Change, Check, Set
from waltzctl.formats.znodes import (
    ASSIGNMENT_PATH,
    CONNECTION_PATH,
    GROUP_PATH,
    NodeAssignment,
    NodeConnection,
    NodeConnections,
    NodeGroup,
    NodeGroups,
    NodePartitions,
)


class NodeMaps:
    """The three maps of storage nodes (group, partitions, admin port), as read; a change edits them."""

    def __init__(
        self,
        groups: tuple[NodeGroups, int],
        assignment: tuple[NodeAssignment, int],
        connections: tuple[NodeConnections, int],
    ) -> None:
        self.groups = {one.node: one.group for one in groups[0].nodes}
        self.assignment = {one.node: one.partitions for one in assignment[0].nodes}
        self.ports = {one.node: one.admin_port for one in connections[0].nodes}
        self.last_replicas: dict[int, frozenset[str]] = {}
        """For each partition of the change: the nodes of the last session's replicas."""
        self._read = (groups, assignment, connections)

    @property
    def nodes(self) -> frozenset[str]:
        """Every node that a map names."""
        return frozenset((*self.groups, *self.assignment, *self.ports))

    def replicas(self) -> Counter[int]:
        """The number of nodes of each partition."""
        return Counter(partition for held in self.assignment.values() for partition in {*held})

    def steps(self) -> Iterator[ClusterStep]:
        """The steps from the maps as read to the maps now."""
        (groups, _), (assignment, _), (connections, _) = self._read
        before = {one.node: {*one.partitions} for one in assignment.nodes}
        known = {one.node for one in groups.nodes} | {*before} | {one.node for one in connections.nodes}
        for node in sorted(self.nodes - known):
            reason = f"group {self.groups[node]}, admin port {self.ports[node]}; without a partition as yet"
            yield ClusterStep(MetadataAction.ADD_NODE, node, None, reason)
        for node in sorted(known - self.nodes):
            yield ClusterStep(MetadataAction.REMOVE_NODE, node, None, "it holds no partition")
        replicas = self.replicas()
        for node in sorted(self.nodes | known):
            now, then = {*self.assignment.get(node, ())}, before.get(node, set())
            for partition in sorted(now - then):
                others = replicas[partition] - 1
                yield ClusterStep(MetadataAction.ASSIGN, node, partition, f"a replica beside {others} others")
            for partition in sorted(then - now):
                text = f"{replicas[partition]} replicas stay; the node keeps its files"
                yield ClusterStep(MetadataAction.UNASSIGN, node, partition, text)

    def changes(self) -> tuple[Change, ...]:
        """The transaction: a write of each map that differs, a version check of each other one."""
        groups, assignment, connections = self._read
        pairs = (
            (GROUP_PATH, groups, NodeGroups(tuple(NodeGroup(*one) for one in self.groups.items()))),
            (
                ASSIGNMENT_PATH,
                assignment,
                NodeAssignment(tuple(NodePartitions(*one) for one in self.assignment.items())),
            ),
            (CONNECTION_PATH, connections, NodeConnections(tuple(NodeConnection(*one) for one in self.ports.items()))),
        )
        return tuple(
            Check(path, version) if now == before else Set(path, now.encode(), version)
            for path, (before, version), now in pairs
        )
