"""node: look after a running node through its ports, ours or a released one."""

from __future__ import annotations

from types import ModuleType
from typing import Annotated

import typer

from waltzctl.commands.node import (
    add_partition,
    availability,
    listing,
    max_transaction_id,
    metrics,
    records,
    recover_partition,
    remove_partition,
    session,
    sync_partitions,
    validate,
)
from waltzctl.commands.node.node_target import STATUSES, NodeTarget
from waltzctl.connection_options import SECURITY, Connecting, address_of, with_connection
from waltzctl.manual import Example, Manual, ManualSection

ACTIONS: tuple[ModuleType, ...] = (
    listing, session, max_transaction_id, records, metrics, validate, add_partition, remove_partition, availability,
    sync_partitions, recover_partition,
)  # fmt: skip
"""One file each, in the order in which ``--help`` lists them."""

MANUAL = Manual(
    name="node",
    summary="Manage a running node through its ports",
    description=(
        (
            "HOST:PORT is the address of the node's admin port; an IPv6 address stands in brackets. Works with nodes"
            " of waltzctl and of release 0.13.2. Connection options may stand before or after the action."
        ),
        (
            "list, session, max-transaction-id, records, metrics and validate change nothing and shut out no server."
            " Actions that change something show a plan first and need confirmation."
        ),
    ),
    examples=(
        Example("waltzctl node 127.0.0.1:55281 list", "Its partitions, sessions and marks."),
        Example("waltzctl node n1:55281 --trust-store trust.p12 list --format json", "Over the network, for a script."),
        Example(
            "waltzctl node 127.0.0.1:55281 add-partition --partition 0-3 --yes", ("Assign four partitions to the node.")
        ),
        Example(
            "waltzctl node n2:55281 recover-partition --partition 3 --from n1:55281 --offline-first --insecure",
            "Bring a replica up to date from another node.",
        ),
        Example("waltzctl node 127.0.0.1:55281 records --partition 3 --from 81230 --limit 10", "Ten transactions."),
    ),
    statuses=STATUSES,
    objects=(
        "node-partition",
        "node-session",
        "node-metric",
        "node-port",
        "max-transaction-id",
        "record",
        "finding",
        "plan",
        "result",
    ),
    sections=(
        ManualSection(
            "RELEASED NODES",
            (
                (
                    "A node of release 0.13.2 has one switch for reads and writes, and closes the connection when it"
                    " is asked for a partition number that it does not have. Its errors carry no codes; waltzctl"
                    " recognizes them by their texts."
                ),
            ),
        ),
        SECURITY,
    ),
)


@with_connection
def run(
    ctx: typer.Context,
    address: Annotated[
        str, typer.Argument(metavar="HOST:PORT", help="Address of the node's admin port.", show_default=False)
    ],
    data_port: Annotated[
        int | None,
        typer.Option("--data-port", metavar="PORT", min=1, max=65535, help="Its data port; default: admin port - 1."),
    ] = None,
    connection: Connecting = Connecting(),  # noqa: B008  # frozen
) -> None:
    """Remember where the node is; the action does the rest."""
    admin = address_of(address, name="HOST:PORT")
    if data_port is None and admin.port == 1:
        raise typer.BadParameter("there is no port below 1; say which it is", param_hint="'--data-port'")
    data = admin.with_port(data_port or admin.port - 1)
    ctx.obj = NodeTarget(admin, data, connection, data_assumed=data_port is None)
