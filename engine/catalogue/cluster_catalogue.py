"""Kinds of findings about a cluster: about its metadata, and about nodes and servers that differ from the metadata."""

from __future__ import annotations

from collections.abc import Iterable

from waltzctl.engine.catalogue.finding_kinds import Code, FindingKind, Severity


def cluster_kinds() -> Iterable[FindingKind]:
    """The kinds, in the order of the manual page."""
    damage, repairable, note = Severity.DAMAGE, Severity.REPAIRABLE, Severity.NOTE
    yield FindingKind(
        Code.CLUSTER_MAPS, repairable,
        "The cluster's metadata is inconsistent: its maps of groups, partitions and admin ports name different storage"
        " nodes, as an interrupted tool of release 0.13.2 leaves them; or a node has a partition number that the"
        " cluster does not have; or the two stored numbers of partitions differ.",
        "Take the node's partitions away with cluster unassign, remove it with cluster remove-node, and add it again."
        " If the two numbers of partitions differ, one was changed by hand: stop the log servers and restore the"
        " original number.",
    )  # fmt: skip
    yield FindingKind(
        Code.PARTITION_WITHOUT_REPLICA, repairable,
        "The metadata assigns the partition to no storage node: nothing can be appended to it.",
        "Assign it with cluster assign or cluster auto-assign, then run cluster sync, which applies the assignment to"
        " the nodes.",
    )  # fmt: skip
    yield FindingKind(
        Code.PARTITION_WITHOUT_SERVER, repairable,
        "The assignment gives the partition to no live log server, or to several: no server serves it.",
        "Start a log server. If servers are running, look at their logs: the server with the smallest id writes the"
        " assignment.",
    )  # fmt: skip
    yield FindingKind(
        Code.PARTITION_UNHEALTHY, repairable,
        "The partition's log server has no open session: it is in recovery, or waits for missing storage nodes.",
        "The server's /health names the storage nodes that it waits for: bring them back.",
    )  # fmt: skip
    yield FindingKind(
        Code.QUORUM_MISSING, repairable,
        "Fewer than a quorum of the partition's replicas are in service: appends wait until a quorum is back.",
        "Bring back the storage nodes that the message names; nothing is lost while their disks are intact.",
    )  # fmt: skip
    yield FindingKind(
        Code.REPLICA_NOT_IN_SESSION, note,
        "A replica does not take part in the partition's last session: it is down, catching up, switched off, or was"
        " added later. Until it joins, the partition has one replica fewer.",
        "Wait until it has caught up. If it is switched off, switch it on with node HOST:PORT availability.",
    )  # fmt: skip
    yield FindingKind(
        Code.REPLICA_OUT_OF_SERVICE, repairable,
        "A storage node keeps its replica out of every session, because of damage or a disk fault: until it is back,"
        " the partition has one replica fewer.",
        "The node's /health and its log give the reason and the remedy. If the replica is quarantined: stop the node,"
        " recover the partition from another replica, and start the node again.",
    )  # fmt: skip
    yield FindingKind(
        Code.REPLICA_BEHIND, repairable,
        "A replica lacks committed transactions and is not catching up: its log server does not reach it, or excludes"
        " it.",
        "The server's log says why the replica is excluded. If server and node cannot reach each other, repair the"
        " network. If the replica holds different transactions from the others, compare shows which, and makes the"
        " plan for recover.",
    )  # fmt: skip
    yield FindingKind(
        Code.NODE_UNREACHABLE, repairable, "A storage node does not answer, or a log server does not reach it.",
        "Start the node, or repair the network between them. If the node is gone for good, replace it by another.",
    )  # fmt: skip
    yield FindingKind(
        Code.NODE_DIFFERS, repairable,
        "The partitions that a storage node holds are not those that the metadata assigns to it.",
        "cluster sync changes the node to match the metadata. Look at its plan first: removing a partition discards"
        " its session and marks.",
    )  # fmt: skip
    yield FindingKind(
        Code.NODE_KEY, damage, "The node at this address has another cluster key or another number of partitions.",
        "Check the address. Do not let a log server use this node: the metadata names a wrong node, or a wrong disk is"
        " mounted.",
    )  # fmt: skip
    yield FindingKind(
        Code.SERVER_UNREACHABLE, repairable,
        "A log server is registered in the metadata but does not answer at its address.",
        "If it is dead, its entry disappears when its session expires. If it runs, check --advertised-host, its port"
        " and its certificate.",
    )  # fmt: skip
    yield FindingKind(
        Code.SERVER_DIFFERS, repairable,
        "The partitions that a log server serves are not those of the assignment, or the assignment was made for other"
        " servers than those that are alive, or several of them have one address.",
        "Just after a change, or a restart, this passes by itself. If it lasts, the server does not follow the metadata:"
        " restart it; where two have one address, start each with an --advertised-host of its own.",
    )  # fmt: skip
