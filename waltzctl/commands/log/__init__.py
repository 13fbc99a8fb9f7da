"""log: appends to a cluster's log, and reads of it."""

from __future__ import annotations

from types import ModuleType

import typer

from waltzctl.commands.log import append, bench, get, high_water_mark, tail, trace, validate
from waltzctl.commands.log.log_target import STATUSES
from waltzctl.connection_options import SECURITY, Connecting, with_connection
from waltzctl.manual import Example, Manual, ManualSection
from waltzctl.metadata_option import ZOOKEEPER_USER, ClusterTarget, MetadataOption

ACTIONS: tuple[ModuleType, ...] = (append, tail, get, high_water_mark, trace, validate, bench)
"""One file each, in the order in which ``--help`` lists them."""

MANUAL = Manual(
    name="log",
    summary="Append to a cluster's log, and read it",
    description=(
        (
            "Works through the cluster's log servers, of waltzctl or of release 0.13.2, which are found in its"
            " metadata. Broken connections are made again, and partitions are followed when they move to another"
            " server: nothing is appended or read twice. Connection options and --metadata may stand before or after"
            " the action."
        ),
    ),
    examples=(
        Example("seq 1000 | waltzctl log append --metadata /data/waltz.meta --partition 0", "A thousand transactions."),
        Example(
            "waltzctl log tail --metadata /data/waltz.meta --follow --format ndjson",
            ("All partitions, including new transactions."),
        ),
        Example("waltzctl log get --metadata /data/waltz.meta --partition 0 17 18", "Two transactions."),
        Example(
            "waltzctl log high-water-mark --metadata /data/waltz.meta",
            ("The last committed transaction of each partition."),
        ),
    ),
    statuses=STATUSES,
    objects=("log-record", "append-result", "high-water-mark", "log-trace", "log-validation", "log-load"),
    sections=(
        ManualSection(
            "METADATA",
            (
                (
                    "WHERE is zk://HOST:PORT,HOST:PORT/ROOT, or the path of an embedded store's file."
                    " WALTZCTL_METADATA sets it for every command."
                ),
                ZOOKEEPER_USER,
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
