"""Kinds of findings about a cluster: about its metadata, and about nodes and servers that differ from the metadata."""

from __future__ import annotations

from collections.abc import Iterable

from waltzctl.engine.catalogue.finding_kinds import Code, FindingKind, Severity


def cluster_kinds() -> Iterable[FindingKind]:
    """The kinds, in the order of the manual page."""
    damage, repairable, note = Severity.DAMAGE, Severity.REPAIRABLE, Severity.NOTE
    yield FindingKind(
        Code.CLUSTER_MAPS, repairable,
        "The cluster's metadata disagrees with itself: its maps of groups, partitions and admin ports name different storage"
        " nodes, as an interrupted tool of the release leaves them, or a partition that the cluster does not have; or it has the"
        " number of partitions twice, and they differ.",
        "Take the node's partitions away with cluster unassign, remove it with cluster remove-node, and add it again. Of two"
        " numbers of partitions one was changed by hand: stop the log servers, and put back what was there.",
    )  # fmt: skip
    yield FindingKind(
        Code.PARTITION_WITHOUT_REPLICA, repairable, "No storage node is to hold the partition: nothing can be appended to it.",
        "Give it to nodes with cluster assign or cluster auto-assign, and tell them with cluster sync.",
    )  # fmt: skip
    yield FindingKind(
        Code.PARTITION_WITHOUT_SERVER, repairable,
        "The assignment gives the partition to no log server that lives, or to several: nobody serves it.",
        "Start a log server. Where servers run, look at their logs: the one with the smallest id writes the assignment.",
    )  # fmt: skip
    yield FindingKind(
        Code.PARTITION_UNHEALTHY, repairable,
        "The server that has the partition has no open session: it recovers, or waits for storage nodes that are missing.",
        "Ask the server's /health whom it waits for, and bring those storage nodes back.",
    )  # fmt: skip
    yield FindingKind(
        Code.QUORUM_MISSING, repairable,
        "Fewer than a quorum of the partition's replicas are at work: nothing can be appended until more are.",
        "Bring the storage nodes back that the message names; nothing is lost while their disks are intact.",
    )  # fmt: skip
    yield FindingKind(
        Code.REPLICA_NOT_IN_SESSION, note,
        "A replica does not take part in the partition's last session: it is down, catching up, switched off, or was added"
        " since. Until it does the partition has one replica fewer.",
        "Wait for it to catch up; switch one on that is off, with node HOST:PORT availability.",
    )  # fmt: skip
    yield FindingKind(
        Code.REPLICA_OUT_OF_SERVICE, repairable,
        "A storage node keeps its replica out of every session, for damage or for what its disk does: the partition has one"
        " replica fewer until it is back.",
        "The node's /health, and its log, say why and what brings it back: for a quarantined one stop the node, recover it from"
        " another replica, and start it again.",
    )  # fmt: skip
    yield FindingKind(
        Code.REPLICA_BEHIND, repairable,
        "A replica lacks committed transactions and comes no nearer: its log server does not reach it, or leaves it out.",
        "The server's log says why it leaves the replica out. Where the two cannot reach one another, mend the network; where its"
        " transactions are other ones than the others', compare tells which and makes the plan for recover.",
    )  # fmt: skip
    yield FindingKind(
        Code.NODE_UNREACHABLE, repairable, "A storage node does not answer, or a log server does not reach it.",
        "Start it, or mend the network between them. A node that is gone for good is replaced by another.",
    )  # fmt: skip
    yield FindingKind(
        Code.NODE_DIFFERS, repairable, "A storage node holds other partitions than the metadata gives it.",
        "cluster sync tells the node what the metadata says; look at its plan first, as taking away forgets session and marks.",
    )  # fmt: skip
    yield FindingKind(
        Code.NODE_KEY, damage, "The node at this address belongs to another cluster, or counts its partitions otherwise.",
        "Check the address. Never start a log server against it: the metadata names a wrong node, or a wrong disk is mounted.",
    )  # fmt: skip
    yield FindingKind(
        Code.SERVER_UNREACHABLE, repairable, "A log server stands in the metadata and does not answer at its address.",
        "If it is dead, its place goes with its session. If it runs, check --advertised-host, its port and its certificate.",
    )  # fmt: skip
    yield FindingKind(
        Code.SERVER_DIFFERS, repairable,
        "A log server serves other partitions than the assignment gives it, or the assignment was made for other servers than"
        " those that live.",
        "Just after a change this passes by itself. One that stays so does not follow the metadata: restart the server.",
    )  # fmt: skip
