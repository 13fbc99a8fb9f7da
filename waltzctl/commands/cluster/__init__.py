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
    summary="Manage a cluster: its metadata, storage nodes and log servers",
    description=(
        (
            "The metadata says which storage nodes hold a replica of each partition, which log server serves it, and"
            " which replicas took part in its last session. It is in ZooKeeper, in the format of release 0.13.2, or in"
            " an embedded store: one file that the processes of one machine share. Connection options and --metadata"
            " may stand before or after the action."
        ),
        (
            "show, key, verify and connectivity change nothing. Actions that change something show a plan first and"
            " need confirmation."
        ),
    ),
    examples=(
        Example("waltzctl cluster create --metadata /data/waltz.meta --name demo --partitions 4", "A new cluster."),
        Example("waltzctl cluster show --metadata zk://zk1:2181,zk2:2181/waltz", "Nodes, servers and partitions."),
        Example("waltzctl cluster verify --metadata /data/waltz.meta", "Does the cluster match the metadata?"),
        Example(
            "waltzctl cluster assign 10.0.0.7:55280 --partition 0-3 --metadata zk://zk1:2181/waltz --yes",
            "Assign four partitions to a storage node.",
        ),
        Example(
            "waltzctl cluster sync --metadata zk://zk1:2181/waltz --dry-run", "What would be changed on the nodes?"
        ),
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
                    "WHERE is zk://HOST:PORT,HOST:PORT/ROOT, or the path of an embedded store's file."
                    " WALTZCTL_METADATA sets it for every command. Tools, servers and storage nodes of release 0.13.2"
                    " use the same nodes of ZooKeeper."
                ),
                ZOOKEEPER_USER,
                (
                    "In an embedded store a process that died leaves the list of servers after half a second, a"
                    " process that hangs after 5 seconds. The file must be on a local disk; every change is synced."
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
