"""cluster create: a new cluster's metadata."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Annotated

import typer

from waltzctl.commands.cluster.cluster_target import CHANGING
from waltzctl.commands.create_cluster import cluster_key_of, cluster_name_of
from waltzctl.console import Console
from waltzctl.manual import Example, Manual
from waltzctl.metadata_option import ClusterTarget
from waltzctl.options import FormatOption, QuietOption, VerboseOption, parsed

if TYPE_CHECKING:
    from waltzctl.engine.metadata.metadata_store import MetadataStore

MANUAL = Manual(
    name="create",
    page="cluster",
    summary="Create a new cluster's metadata",
    description=(
        (
            "Writes the initial metadata in one transaction; cluster add-node adds the storage nodes. If there is"
            " metadata already, nothing is changed (13). create-cluster creates storage directories and metadata in"
            " one step."
        ),
    ),
    examples=(
        Example("waltzctl cluster create --metadata /data/waltz.meta --name demo --partitions 4", "On one machine."),
        Example(
            "waltzctl cluster create --metadata zk://zk1:2181/waltz --name w --partitions 8"
            " --key 2f1c61c8-5a6e-4a3c-9d0e-0d7e4c9a1b22",
            "For storage directories that have this key.",
        ),
    ),
    statuses=CHANGING,
    objects=("cluster-created",),
)


def run(
    ctx: typer.Context,
    partitions: Annotated[
        int,
        typer.Option(
            "--partitions", metavar="N", min=1, max=1_000_000, help="Partitions of the cluster.", show_default=False
        ),
    ],
    name: Annotated[str, typer.Option("--name", metavar="NAME", help="The cluster's name.")] = "waltz",
    key: Annotated[str | None, typer.Option("--key", metavar="UUID", help="Cluster key; default: a new one.")] = None,
    output_format: FormatOption = None,
    quiet: QuietOption = False,
    verbose: VerboseOption = 0,
) -> None:
    """Create and report."""
    import uuid

    target = ClusterTarget.of(ctx)
    cluster_key = parsed("--key", key, cluster_key_of) or uuid.uuid4()
    parsed("--name", name, cluster_name_of)

    from waltzctl.engine.metadata.cluster_creation import create_cluster
    from waltzctl.objects.cluster_objects import CLUSTER_CREATED

    async def make(store: MetadataStore) -> None:
        await create_cluster(store, name=name, num_partitions=partitions, cluster_key=cluster_key)

    with Console(output_format, quiet=quiet, verbose=verbose, single=True, must_finish=True) as console:
        target.ask(make, create=True)
        made = SimpleNamespace(
            name=name, cluster_key=cluster_key, num_partitions=partitions, metadata=str(target.location)
        )
        console.emit_result(CLUSTER_CREATED.shown(made))
        console.success(f"CREATED  cluster {name} in {target.location}.")
