"""recover: plan and apply what is safe, name what a person must decide."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import PurePath
from typing import Annotated

import typer

from waltzctl.connection_options import SECURITY, Connecting, refuse_without_node, with_connection
from waltzctl.console import Console
from waltzctl.exit_status import ExitStatus
from waltzctl.manual import Example, Manual, ManualSection
from waltzctl.options import (
    DryRunOption,
    Format,
    FormatOption,
    PartitionsOption,
    PlanOption,
    QuietOption,
    VerboseOption,
    YesOption,
    partitions_of,
    path_of,
    place_of,
)
from waltzctl.repair_procedure import SAFETY, STATUSES, Switches, repair_with
from waltzctl.values import format_ranges

MANUAL = Manual(
    name="recover",
    summary="Repair what a crash or a damaged disk left behind",
    description=(
        (
            "Makes a plan for each partition: a partition info with one valid struct, an orphan or missing index, a"
            " torn tail, an empty last segment, a gap, damage in the middle, two segments that overlap, a wrong header"
            " or file name. Applies the steps that lose nothing and names what a person must decide."
        ),
        (
            "A damaged or missing record is never hidden, and the records after it are never given up. --from takes"
            " exactly this record from another replica, if it proves to be the right one; without a replica,"
            " --allow-data-loss splits the segment around the loss: all other records can be read again, and the gap"
            " remains a finding (exit status 5)."
        ),
        (
            "Transactions that are given up are entered in the ledger .waltzctl/accepted-losses. verify, status and"
            " compare report them until they are back or until --forget-losses: without the ledger, a loss at the end"
            " of a log would leave no trace."
        ),
        "Without a terminal and without --yes this is a dry run.",
    ),
    examples=(
        Example("waltzctl recover /data/waltz --dry-run", "What would be done, and what needs a decision?"),
        Example("waltzctl recover /data/waltz --yes", "Apply all steps that lose nothing."),
        Example(
            "waltzctl recover /data/waltz --partition 3 --from /mnt/replica/waltz",
            "Restore damaged records from another node's directory.",
        ),
        Example(
            "waltzctl recover /data/waltz --partition 3 --allow-data-loss",
            "No replica has the record: give it up and read on after it.",
        ),
        Example(
            "waltzctl recover /data/waltz --partition 3 --forget-losses",
            "The transactions are lost for good: stop reporting them.",
        ),
        Example(
            "waltzctl recover /data/waltz --forget-journal",
            "The device with the node's commit journal is lost for good: give up the records that were only there.",
        ),
        Example(
            "waltzctl recover --metadata /data/waltz.meta --dry-run",
            "A cluster without log servers: which replica would vote, and at which transaction?",
        ),
        Example(
            "waltzctl recover --replicas /mnt/n1 /mnt/n2 /mnt/n3 --dry-run",
            ("The same, offline, from the directories of all nodes."),
        ),
        Example(
            "waltzctl recover --replicas /mnt/n1 /mnt/n2 --metadata /data/waltz.meta --dry-run",
            "From the remaining directories, with the last sessions as recorded in the metadata.",
        ),
        Example(
            "waltzctl recover /data/waltz --dry-run --format json > plan.json",
            "Keep the plan; recover /data/waltz --plan plan.json applies exactly that.",
        ),
    ),
    statuses=STATUSES,
    objects=("plan", "result", "recovery-forecast", "partition-comparison", "finding"),
    sections=(
        ManualSection(
            "REPLICAS",
            (
                (
                    "A record is taken from a replica only if cluster key, partition and transaction id are right,"
                    " both of its checksums match, and the replica's records before and after it equal those here. The"
                    " replica is only read. If two --from replicas prove different bytes, nothing is taken."
                ),
            ),
        ),
        ManualSection(
            "ACCEPTED LOSSES",
            (
                (
                    "Use --allow-data-loss only if no replica has the records any more. A loss at the end lowers the"
                    " local low-water mark to the last remaining transaction, so that a node opens the partition again"
                    " and a running cluster continues with it. As long as another replica may have the records, use"
                    " --from: a replica that has lost acknowledged transactions can outvote one that still has them."
                ),
                (
                    "append refuses to reuse the lost ids. A loss is over when its transactions are back, from --from"
                    " or from the cluster, or when a later session has raised the local low-water mark to the last of"
                    " them. undo reverts the acceptance of a loss together with its repair. --forget-losses only"
                    " removes entries from the ledger; it is planned and confirmed like a repair, and can be undone."
                ),
            ),
        ),
        ManualSection(
            "A COMMIT JOURNAL",
            (
                (
                    "While a node runs with --journal, and after it crashed, acknowledged records may be in the"
                    " journal and not in their segments. Then nothing is repaired (13): start the node, or run append;"
                    " both first write the records back. If the journal is lost for good, --forget-journal gives up"
                    " the records that were only in it, of all partitions at once; it is planned and confirmed as a"
                    " step that loses data. verify then names the missing records, as far as marks and indexes prove"
                    " them, and --from restores them. The journal's file stays; undo puts the journal in force again"
                    " as long as nothing has been written to the partitions since."
                ),
            ),
        ),
        ManualSection(
            "A CLUSTER",
            (
                (
                    "With --metadata, recover works on partitions that no log server has. Each storage node is asked"
                    " for its state, which shuts out no server. The output shows which replicas vote, at which"
                    " transaction the next session would open, what would be cut on which node and copied from which"
                    " one, and, if this is undecidable, which absent node would decide it (3). --yes applies the plan,"
                    " in a session that shuts out every older one. A partition that a log server has is recovered by"
                    " that server."
                ),
                (
                    "With --replicas the same is done offline on the directories of all replicas, judged as by"
                    " compare: each directory gets its own plan, which is shown and confirmed like every repair, and"
                    " can be undone. With --metadata as well, the metadata gives the number of replicas of the last"
                    " session and its id, and so which replica has lost records; if a decision depends on them,"
                    " replicas of that session that are not among the directories are named. Partitions that are"
                    " undecidable or lost stay as they are: exit status 4 if nothing was done, 5 if the rest was"
                    " repaired. So does a partition of which a replica's directory cannot be listed, as on a disk of its own"
                    " that does not answer, as far as that replica may decide it (14)."
                ),
            ),
        ),
        SAFETY,
        SECURITY,
    ),
)


@with_connection
def run(
    paths: Annotated[
        list[str] | None, typer.Argument(metavar="PATH", help="A storage directory.", show_default=False)
    ] = None,
    metadata: Annotated[
        str | None,
        typer.Option(
            "--metadata",
            metavar="WHERE",
            help=(
                "Instead of PATH: recover the cluster's partitions that no log server has; WHERE is its metadata. With"
                " --replicas: take the last sessions from there."
            ),
        ),
    ] = None,
    directories: Annotated[
        list[str] | None,
        typer.Option("--replicas", metavar="DIR...", help="Instead of PATH: the directories of all replicas, offline."),
    ] = None,
    replicas: Annotated[
        list[str] | None,
        typer.Option("--from", metavar="DIR", help="Storage directory of another replica (repeatable)."),
    ] = None,
    allow_data_loss: Annotated[
        bool, typer.Option("--allow-data-loss", help="Give up lost records, and read on after them.")
    ] = False,
    forget_losses: Annotated[
        bool, typer.Option("--forget-losses", help="Only remove accepted losses from the ledger.")
    ] = False,
    forget_journal: Annotated[
        bool, typer.Option("--forget-journal", help="Only give up the records in a lost commit journal.")
    ] = False,
    partition: PartitionsOption = None,
    yes: YesOption = False,
    dry_run: DryRunOption = False,
    plan: PlanOption = None,
    output_format: FormatOption = None,
    quiet: QuietOption = False,
    verbose: VerboseOption = 0,
    connection: Connecting = Connecting(),  # noqa: B008  # frozen
) -> ExitStatus:
    """Plan, confirm, repair."""
    if metadata is not None and directories is None and paths:
        raise typer.BadParameter(
            "it stands in place of PATH; leave it out to repair one directory, or name the directories of all replicas behind"
            " --replicas",
            param_hint="'--metadata'",
        )
    if metadata is not None or directories is not None:
        return _recover_replicas(
            metadata,
            [*(directories or ()), *(paths or ())],
            connection,
            Switches(yes, dry_run, plan, dry_run_unasked=directories is not None),
            (replicas, forget_losses, forget_journal, plan, allow_data_loss),
            partitions_of(partition),
            (output_format, quiet, verbose),
        )
    refuse_without_node(connection)
    if paths is None or len(paths) != 1:
        raise typer.BadParameter("one storage directory, --metadata, or --replicas", param_hint="'PATH'")
    storage = path_of(paths[0])
    sources = tuple(place_of(text, name="--from") for text in replicas or ())
    partitions = partitions_of(partition)
    switches = Switches(yes, dry_run, plan, dry_run_unasked=True)
    switches.check()
    if forget_losses and (sources or allow_data_loss):
        raise typer.BadParameter(
            "it repairs nothing; leave --from and --allow-data-loss out", param_hint="'--forget-losses'"
        )
    if forget_journal and (sources or allow_data_loss or forget_losses or partitions is not None):
        raise typer.BadParameter(
            "it repairs nothing, and is about all partitions; leave the other options out",
            param_hint="'--forget-journal'",
        )

    from waltzctl.engine.repair.arguments import Arguments
    from waltzctl.engine.repair.planners import make

    given = Arguments.of(
        partitions,
        replicas=tuple(map(str, sources)),
        allow_data_loss=allow_data_loss,
        forget_losses=forget_losses,
        forget_journal=forget_journal,
    )
    with Console(output_format, quiet=quiet, verbose=verbose, single=True, must_finish=True) as console:
        _say_partial(console, sources, partitions)
        return repair_with(console, switches, MANUAL.name, storage, given, lambda: make(MANUAL.name, storage, given))


def _say_partial(console: Console, sources: Iterable[PurePath], partitions: frozenset[int] | None) -> None:
    """Note that a backup has only some partitions: given as the latest one, it hides earlier backups that have the others."""
    from waltzctl.engine.errors import WaltzError
    from waltzctl.engine.vault.vault_access import VAULTS
    from waltzctl.engine.vault.vault_path import VaultPath

    for path in sources:
        if not isinstance(path, VaultPath):
            continue
        try:
            head = VAULTS.files(path).head
        except (WaltzError, FileNotFoundError):  # reading it later reports the error
            continue
        held = [one.partition for one in head.partitions]
        if head.partial and (partitions is None or not partitions <= set(held)):
            console.trouble(
                f"{path}: a backup of partitions {format_ranges(held)} alone, nothing of any other one is in it; waltzctl backup"
                " list shows which are in each backup"
            )


def _recover_replicas(
    metadata: str | None,
    directories: list[str],
    connection: Connecting,
    switches: Switches,
    others: tuple[list[str] | None, bool, bool, str | None, bool],
    partitions: frozenset[int] | None,
    output: tuple[Format | None, bool, int],
) -> ExitStatus:
    """Partitions of a cluster, through its nodes or from the directories of all replicas."""
    sources, forget_losses, forget_journal, plan, allow_data_loss = others
    switches.check()
    for name, given in (
        ("--from", sources),
        ("--forget-losses", forget_losses),
        ("--forget-journal", forget_journal),
        ("--plan", plan),
    ):
        if given:
            raise typer.BadParameter("is about one storage directory", param_hint=f"'{name}'")
    output_format, quiet, verbose = output

    from waltzctl.metadata_option import ClusterTarget
    from waltzctl.replica_recovery import recover_cluster, recover_directories

    with Console(output_format, quiet=quiet, verbose=verbose, must_finish=True) as console:
        if directories:
            target = None if metadata is None else ClusterTarget(metadata, connection)
            if target is None:
                refuse_without_node(connection)
            paths = [path_of(text, name="--replicas") for text in directories]
            return recover_directories(console, switches, paths, partitions, target, allow_data_loss=allow_data_loss)
        if allow_data_loss:
            raise typer.BadParameter("recovery through a quorum gives nothing up", param_hint="'--allow-data-loss'")
        return recover_cluster(ClusterTarget(metadata, connection), console, switches, partitions)
