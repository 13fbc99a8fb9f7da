"""node sync-partitions: make the node's partitions those of an assignment."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

import typer

from waltzctl.change_procedure import NODE_SAFETY
from waltzctl.commands.node.node_target import NodeTarget, change_partitions
from waltzctl.console import Console
from waltzctl.exit_status import CHANGING_NODES, ExitStatus
from waltzctl.manual import Example, Manual, ManualSection
from waltzctl.options import DryRunOption, FormatOption, QuietOption, VerboseOption, YesOption, parsed, path_of
from waltzctl.repair_procedure import Switches
from waltzctl.values import parse_duration

if TYPE_CHECKING:
    from waltzctl.engine.client.admin_client import AdminClient
    from waltzctl.engine.client.assignments import Assignment
    from waltzctl.engine.client.change_plan import NodePlan

MANUAL = Manual(
    name="sync-partitions",
    page="node",
    summary="Make the node's partitions match an assignment",
    description=(
        (
            "The assignment is a file, JSON or YAML, or the cluster's assignment in ZooKeeper. The plan names every"
            " partition to be added and every partition to be removed, with the session and marks that removal would"
            " discard; files are kept. --only-add plans no removals. If the assignment has changed by the time of the"
            " confirmation, nothing is done (13)."
        ),
    ),
    examples=(
        Example(
            "waltzctl node 10.0.0.7:55281 sync-partitions --zookeeper zk1:2181,zk2:2181 --root /waltz --dry-run",
            "What would change?",
        ),
        Example("waltzctl node 10.0.0.7:55281 sync-partitions --assignment partitions.yaml --only-add", "From a file."),
    ),
    statuses=tuple(sorted({*CHANGING_NODES, ExitStatus.NOT_WALTZ, ExitStatus.MISMATCH, ExitStatus.DAMAGED})),
    objects=("plan", "result"),
    sections=(
        NODE_SAFETY,
        ManualSection(
            "ASSIGNMENT",
            (
                (
                    "A file is an object that maps a node's address to its list of partitions, for instance"
                    ' {"10.0.0.7:55280": [0, 1, 2]}. The node\'s entry is that of its data port or its admin port;'
                    " --as selects another entry. A node without an entry is refused; it does not count as a node"
                    " without partitions."
                ),
            ),
        ),
    ),
)


def run(
    ctx: typer.Context,
    assignment: Annotated[
        str | None, typer.Option("--assignment", metavar="FILE", help="JSON or YAML: address to list of partitions.")
    ] = None,
    zookeeper: Annotated[
        str | None, typer.Option("--zookeeper", metavar="CONNECT", help="ZooKeeper's servers: host:port,host:port.")
    ] = None,
    root: Annotated[str | None, typer.Option("--root", metavar="PATH", help="The cluster's root in ZooKeeper.")] = None,
    name: Annotated[
        str | None, typer.Option("--as", metavar="HOST:PORT", help="The node's name in the assignment.")
    ] = None,
    only_add: Annotated[bool, typer.Option("--only-add", help="Remove no partitions.")] = False,
    yes: YesOption = False,
    dry_run: DryRunOption = False,
    output_format: FormatOption = None,
    quiet: QuietOption = False,
    verbose: VerboseOption = 0,
) -> ExitStatus:
    """Read the assignment, plan, confirm, change."""
    target = NodeTarget.of(ctx)
    switches = Switches(yes, dry_run, None)
    switches.check()
    if (assignment is None) is (zookeeper is None):
        raise typer.BadParameter("give --assignment FILE, or --zookeeper with --root", param_hint="'--assignment'")
    if (zookeeper is None) is not (root is None):
        raise typer.BadParameter("--zookeeper and --root belong together", param_hint="'--root'")

    from waltzctl.engine.client.changes import plan_sync
    from waltzctl.engine.errors import StalePlanError
    from waltzctl.engine.net.futures import in_thread

    with Console(output_format, quiet=quiet, verbose=verbose, single=True, must_finish=True) as console:

        def read() -> tuple[int, ...]:
            found = _assignment(assignment, zookeeper, root, target.connecting.timeout)
            partitions = found.of(target.admin, target.data, name=name)
            console.detail(f"{found.source}: {len(partitions)} partitions for {target.admin}")
            return partitions

        wanted = read()  # before the node is asked
        again = assignment is None or os.path.isfile(assignment)  # a pipe gives what is in it once
        planned = False

        async def plan(client: AdminClient) -> NodePlan:
            """Called for the plan, and once more before it is carried out."""
            nonlocal planned
            if planned and again and await in_thread(read) != wanted:
                raise StalePlanError(
                    f"{assignment or zookeeper}: the assignment has changed since the plan was made; nothing was done",
                    advice="look at it again",
                )
            planned = True
            return await plan_sync(client, wanted, only_add=only_add)

        return change_partitions(target, console, switches, plan, "changed")


def _assignment(file: str | None, zookeeper: str | None, root: str | None, timeout: str | None) -> Assignment:
    from waltzctl.engine.client.assignments import read_assignment, read_assignment_from_zookeeper
    from waltzctl.engine.metadata.zookeeper_options import ZooKeeperOptions

    if file is not None:
        return read_assignment(path_of(file, name="--assignment"))
    assert zookeeper is not None
    assert root is not None
    seconds = parsed("--timeout", timeout, parse_duration) or 10.0
    return read_assignment_from_zookeeper(ZooKeeperOptions(zookeeper, root, connect_timeout=seconds))
