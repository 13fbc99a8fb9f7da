"""node validate: whether both ports answer, and for the cluster that is meant."""

from __future__ import annotations

import uuid
from typing import Annotated

import typer

from waltzctl.commands.node.node_target import NodeTarget
from waltzctl.console import Console
from waltzctl.event_loop import run_async
from waltzctl.exit_status import ExitStatus
from waltzctl.manual import Example, Manual
from waltzctl.options import FormatOption, QuietOption, VerboseOption, parsed
from waltzctl.outcome import say

MANUAL = Manual(
    name="validate",
    page="node",
    summary="Check that both ports answer and belong to the cluster",
    description=(
        (
            "Connects to the data port and to the admin port, performs the handshake, and with --key and --partitions"
            " lets the node compare them with its own. Both ports are tried in any case; the exit status is that of"
            " the first one that failed."
        ),
    ),
    examples=(
        Example(
            "waltzctl node 127.0.0.1:55281 validate --key 01234567-89ab-cdef-0123-456789abcdef --partitions 4",
            "Is it a node of this cluster?",
        ),
    ),
    statuses=(
        ExitStatus.CLEAN,
        ExitStatus.USAGE,
        ExitStatus.MISMATCH,
        ExitStatus.REFUSED,
        ExitStatus.IO_ERROR,
        ExitStatus.INTERRUPTED,
    ),
    objects=("node-port",),
)


def run(
    ctx: typer.Context,
    key: Annotated[str | None, typer.Option("--key", metavar="UUID", help="The cluster's key.")] = None,
    partitions: Annotated[
        int | None, typer.Option("--partitions", metavar="N", min=1, help="The cluster's number of partitions.")
    ] = None,
    output_format: FormatOption = None,
    quiet: QuietOption = False,
    verbose: VerboseOption = 0,
) -> ExitStatus:
    """Try both and say so."""
    target = NodeTarget.of(ctx)
    cluster_key = parsed("--key", key, uuid.UUID)
    if (cluster_key is None) is not (partitions is None):
        raise typer.BadParameter(
            "a node compares both or none: give --key and --partitions", param_hint="'--partitions'"
        )

    from waltzctl.engine.client.connection_factory import ConnectionFactory
    from waltzctl.engine.errors import WaltzError
    from waltzctl.engine.net.addresses import Address
    from waltzctl.objects.node_objects import node_port_object

    async def attempt(reach: ConnectionFactory, port: str, address: Address) -> WaltzError | None:
        connect = reach.storage if port == "data" else reach.admin
        try:
            client = await connect(address, cluster_key=cluster_key, num_partitions=partitions)
        except WaltzError as error:
            return error
        await client.close()
        return None

    with Console(output_format, quiet=quiet, verbose=verbose) as console:
        reach = target.reach(console)
        for port, address in (("data", target.data), ("admin", target.admin)):
            error = run_async(attempt(reach, port, address))
            if error is not None:
                target.explain(error)
                console.known = console.known or ExitStatus.from_label(error.status)
            if error is not None or not (quiet and console.for_people):
                console.emit(node_port_object(address, port, not target.connecting.plaintext, error))
            if error is not None:
                say(f"waltzctl: {error.message}" + (f"\n  {error.advice}" if error.advice else ""))
        if console.known is ExitStatus.CLEAN:
            checked = "" if cluster_key is None else ", and it is a node of this cluster"
            console.success(f"OK  Both ports of {target.admin.host} answer{checked}.")
    return console.known
