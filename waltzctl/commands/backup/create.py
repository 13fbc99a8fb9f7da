"""backup create: back a storage directory up."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Annotated

import typer

from waltzctl.connection_options import SECURITY, Connecting, nodes_of, refuse_without_node, with_connection
from waltzctl.console import Console
from waltzctl.engine.shell_words import shell_quote
from waltzctl.event_loop import run_async
from waltzctl.exit_status import ExitStatus
from waltzctl.manual import Example, Manual, ManualSection
from waltzctl.options import (
    FormatOption,
    PartitionsOption,
    QuietOption,
    VerboseOption,
    parsed,
    partitions_of,
    path_of,
    place_of,
)
from waltzctl.render.progress_bar import progress
from waltzctl.values import counted, format_ranges, human_bytes, human_duration
from waltzctl.vault_options import WRITING, PasswordOption, VaultArgument, password_of, vault_of

if TYPE_CHECKING:
    from waltzctl.engine.client.partition_readings import ClusterIdentity
    from waltzctl.engine.errors import DiskReadError

MANUAL = Manual(
    name="create",
    page="backup",
    summary="Back up a storage directory, or a node through its port",
    description=(
        (
            "SOURCE is a storage directory, or the URL of one in an object store. A node may be running on it: each"
            " partition is backed up as it is durable at one moment, and no mark in the backup is above the last"
            " transaction in the backup, unless the source has lost its end. Everything in the directory is included,"
            " damage too, except the lock and, if a node is running, files that are not complete yet. If the source is"
            " damaged, or lacks records that were durable in it, a sentence and status 5 report it."
        ),
        (
            "A partition that cannot be read, as on a disk of its own that does not answer, is not in the backup, which is"
            " then one of the other partitions, and says so. Status 14, or 5 if the source is damaged as well."
        ),
        (
            "waltz://HOST:PORT, the address of a node's admin port, backs up the records of its partitions, with"
            " session and marks, as they are at one moment; the node keeps serving. The same transactions give the"
            " same pieces as in a backup of its directory. Records that the last backup of the same node holds, and"
            " that no recovery can have cut since, are not read again."
        ),
    ),
    examples=(
        Example("waltzctl backup create /backup/waltz /var/lib/waltz --tag nightly", "All partitions."),
        Example("waltzctl backup create /backup/waltz /var/lib/waltz --partition 0-3", "Only partitions 0 to 3."),
        Example("waltzctl backup create /backup/waltz waltz://storage-1:55281", "A running node, over the network."),
    ),
    statuses=tuple(sorted({*WRITING, ExitStatus.MISMATCH})),
    objects=("backup",),
    sections=(
        ManualSection(
            "THROUGH A PORT",
            (
                (
                    "A port shows records, sessions and marks, but no files. A restore writes a directory of the"
                    " released layout, with segments that are closed beyond 1,000,000,000 bytes, each with its index;"
                    " verify finds it clean where the node's records are intact. The backup does not contain the bytes"
                    " of the node's own files, the session fences, accepted losses or the quarantine. Partitions that"
                    " the node does not have, or that --partition leaves out, are not assigned. Records that the node"
                    " does not deliver are missing (5)."
                ),
                (
                    "Headers need the cluster's key and number of partitions. Nodes of waltzctl supply them; for a"
                    " released node give --key and --partitions, unless the vault has a backup of the same cluster. In"
                    " each case the node compares them with its own (12)."
                ),
            ),
        ),
        SECURITY,
    ),
)


@with_connection
def run(
    vault: VaultArgument,
    source: Annotated[
        str, typer.Argument(metavar="SOURCE", help="Storage directory, URL, or waltz://HOST:PORT.", show_default=False)
    ],
    tag: Annotated[str | None, typer.Option("--tag", metavar="T", help="A label for the backup.")] = None,
    partition: PartitionsOption = None,
    prometheus: Annotated[
        str | None,
        typer.Option("--prometheus", metavar="FILE", help="Write metrics for Prometheus' textfile collector."),
    ] = None,
    key: Annotated[
        str | None, typer.Option("--key", metavar="UUID", help="The cluster's key, for a node that does not supply it.")
    ] = None,
    partitions: Annotated[
        int | None,
        typer.Option("--partitions", metavar="N", min=1, help="The cluster's number of partitions, with --key."),
    ] = None,
    password_file: PasswordOption = None,
    output_format: FormatOption = None,
    quiet: QuietOption = False,
    verbose: VerboseOption = 0,
    connection: Connecting = Connecting(),  # noqa: B008  # frozen
) -> ExitStatus:
    """Read, keep, report."""
    directory, wanted = vault_of(vault), partitions_of(partition)
    figures = None if prometheus is None else path_of(prometheus, name="--prometheus")
    nodes = nodes_of([source], name="SOURCE")
    cluster = _cluster(key, partitions, of_node=nodes is not None)
    if nodes is None:
        refuse_without_node(connection, name="SOURCE")
        place = place_of(source, name="SOURCE")

    from waltzctl.objects.backup_objects import BACKUP

    with Console(output_format, quiet=quiet, verbose=verbose, single=True, must_finish=True) as console:
        unread: list[DiskReadError] = []
        with progress(quiet=quiet, verbose=verbose, noun=None if nodes is None else "records") as listener:
            password = password_of(password_file)
            if nodes is None:
                from waltzctl.engine.backup.backup_creation import create_backup

                made = create_backup(
                    directory, place, password=password, tag=tag, partitions=wanted, progress=listener,
                    on_unread=unread.append,
                )  # fmt: skip
            else:
                from waltzctl.engine.backup.node_backup import create_node_backup

                made = run_async(
                    create_node_backup(
                        directory,
                        nodes[0],
                        connection.reach(console),
                        password=password,
                        tag=tag,
                        partitions=wanted,
                        cluster=cluster,
                        progress=listener,
                    )
                )
        damaged = made.damaged - len(made.unread)
        status = ExitStatus.IO_ERROR if made.unread else ExitStatus.CLEAN
        if damaged:  # as verify: damage that is known counts for more than what could not be read
            status = ExitStatus.DAMAGE_REMAINS
        for error in unread:
            console.trouble(error.message)
        if figures is not None:
            from waltzctl.engine.backup.backup_metrics import write_metrics
            from waltzctl.engine.errors import WaltzError

            try:
                write_metrics(figures, directory, made)
            except WaltzError as error:  # who thinks that there is no backup makes another one
                console.trouble(f"backup {made.name} is in the vault, and its figures could not be written: {error}")
                status = max(status, ExitStatus.from_label(error.status))
        console.emit_result(BACKUP.shown(made), status)
        new = f"{counted(made.new_pages, 'piece')} of {made.pages} new, the vault grew by {human_bytes(made.new_bytes)}"
        said = (
            f"{made.name}  {human_bytes(made.size)} of {made.source}; {new} ({human_duration(made.elapsed_seconds)})."
        )
        if made.unread:
            said += (
                f" Partition {format_ranges(made.unread)} could not be read, and is not in it: when the disk answers again,"
                " make another one."
            )
        if damaged:
            console.sentence(
                f"BACKED UP WITH DAMAGE  {said} The source is damaged, or lacks records, in {counted(damaged, 'place')}:"
                f" waltzctl verify {shell_quote(made.source)}"
            )
        elif made.unread:
            console.sentence(f"BACKED UP IN PART  {said}")
        else:
            console.success(f"BACKED UP  {said}")
    return status


def _cluster(key: str | None, partitions: int | None, *, of_node: bool) -> ClusterIdentity | None:
    """What the node is to be of.  Raises typer.BadParameter."""
    cluster_key = parsed("--key", key, uuid.UUID)
    if cluster_key is None and partitions is None:
        return None
    if not of_node:
        raise typer.BadParameter(
            "is about nodes; a directory has its control file", param_hint="'--key'" if key else "'--partitions'"
        )
    if cluster_key is None or partitions is None:
        raise typer.BadParameter("a node compares both: give --key and --partitions", param_hint="'--partitions'")

    from waltzctl.engine.client.partition_readings import ClusterIdentity

    return ClusterIdentity(cluster_key, partitions)
