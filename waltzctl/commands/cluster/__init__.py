"""cluster: a cluster's metadata, and its storage nodes and log servers beside it."""

from __future__ import annotations

from types import ModuleType

import typer

from waltzctl.commands.cluster import (
    add_node,
    assign,
    auto_assign,
    connectivity,
    create,
    delete,
    key,
    prefer,
    remove_node,
    show,
    sync,
    top,
    unassign,
    unprefer,
    verify,
)
from waltzctl.commands.cluster.cluster_target import VERIFYING
from waltzctl.connection_options import SECURITY, Connecting, with_connection
from waltzctl.manual import Example, Manual, ManualSection
from waltzctl.metadata_option import ZOOKEEPER_USER, ClusterTarget, MetadataOption

ACTIONS: tuple[ModuleType, ...] = (
    create, show, key, top, verify, connectivity, add_node, remove_node, assign, unassign, auto_assign, sync, prefer,
    unprefer, delete,
)  # fmt: skip
"""One file each, in the order in which ``--help`` lists them."""

MANUAL = Manual(
    name="cluster",
    summary="Look after a cluster: its metadata, storage nodes and log servers",
    description=(
        (
            "The metadata says which storage nodes hold which partition, which log server has it, and which replicas took part"
            " in its last session. It is in ZooKeeper, as release 0.13.2 keeps it there, or in an embedded store: one file for"
            " the processes of one machine. The options of the connection, and --metadata, may stand before or behind the action."
        ),
        (
            "What looks (show, key, verify, connectivity) changes nothing. What changes something shows its plan first and wants"
            " to be told yes."
        ),
    ),
    examples=(
        Example("waltzctl cluster create --metadata /data/waltz.meta --name demo --partitions 4", "A new cluster."),
        Example("waltzctl cluster show --metadata zk://zk1:2181,zk2:2181/waltz", "Who holds what?"),
        Example("waltzctl cluster verify --metadata /data/waltz.meta", "Is everything as the metadata says?"),
        Example(
            "waltzctl cluster assign 10.0.0.7:55280 --partition 0-3 --metadata zk://zk1:2181/waltz --yes",
            "Give a storage node four partitions.",
        ),
        Example("waltzctl cluster sync --metadata zk://zk1:2181/waltz --dry-run", "What would the nodes be told?"),
    ),
    statuses=VERIFYING,
    objects=(
        "cluster-state",
        "cluster-key",
        "cluster-top",
        "cluster-created",
        "finding",
        "verify-summary",
        "plan",
        "result",
    ),
    sections=(
        ManualSection(
            "METADATA",
            (
                (
                    "WHERE is zk://HOST:PORT,HOST:PORT/ROOT, or the path of an embedded store's file. WALTZCTL_METADATA says it"
                    " for every command. Tools, servers and storage nodes of release 0.13.2 use the same nodes of ZooKeeper."
                ),
                ZOOKEEPER_USER,
                (
                    "In an embedded store a process that died is no longer among the servers after half a second, one that hangs"
                    " after 5 seconds. The file must lie on a disk of this machine, and is synced with every change."
                ),
            ),
        ),
        SECURITY,
    ),
)


@with_connection
def run(
    ctx: typer.Context,
    metadata: MetadataOption = None,
    connection: Connecting = Connecting(),  # noqa: B008  # frozen
) -> None:
    """Remember which cluster is meant; the action does the rest."""
    ctx.obj = ClusterTarget(metadata, connection)
