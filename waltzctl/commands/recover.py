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
            "Makes a plan for each partition: a partition info with one valid struct, an orphan or missing index, a torn tail,"
            " an empty last segment, a gap, damage in the middle, two segments that overlap, a header or a file name that is"
            " wrong. Applies what loses nothing and names what a person must decide."
        ),
        (
            "A damaged or missing record is never papered over and never costs what follows it. --from takes exactly that"
            " record from another replica, if it proves to be the right one; without a replica, --allow-data-loss splits the"
            " segment around the loss, so that everything else reads again and the gap stays a named finding (exit status 5)."
        ),
        (
            "Whatever is given up in this way stands in the ledger .waltzctl/accepted-losses, and verify, status and compare name"
            " it until it is there again, or until --forget-losses: a loss at the end leaves no hole to see."
        ),
        "Without a terminal and without --yes this is a dry run.",
    ),
    examples=(
        Example("waltzctl recover /data/waltz --dry-run", "What would be done, and what is left to decide?"),
        Example("waltzctl recover /data/waltz --yes", "Do everything that loses nothing."),
        Example(
            "waltzctl recover /data/waltz --partition 3 --from /mnt/replica/waltz",
            "Bring damaged records back from another node's directory.",
        ),
        Example(
            "waltzctl recover /data/waltz --partition 3 --allow-data-loss",
            "No replica has it: give the record up and read on behind it.",
        ),
        Example(
            "waltzctl recover /data/waltz --partition 3 --forget-losses",
            "Nobody will ever have it, and everybody knows: no longer name what was given up.",
        ),
        Example(
            "waltzctl recover /data/waltz --forget-journal",
            "The device with the node's commit journal is lost for good: give up what stood only there.",
        ),
        Example(
            "waltzctl recover --metadata /data/waltz.meta --dry-run",
            "A cluster without servers: who would vote for what?",
        ),
        Example(
            "waltzctl recover --replicas /mnt/n1 /mnt/n2 /mnt/n3 --dry-run", "The same from the disks of all its nodes."
        ),
        Example(
            "waltzctl recover --replicas /mnt/n1 /mnt/n2 --metadata /data/waltz.meta --dry-run",
            "From the disks that are left, by what the metadata says of the last sessions.",
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
                    "A record is taken from a replica only if cluster key, partition and transaction id are right, both of its"
                    " checksums agree, and the replica's records on either side are the same as those here. The replica is only"
                    " read. Where two of several --from prove different bytes, nothing is taken."
                ),
            ),
        ),
        ManualSection(
            "ACCEPTED LOSSES",
            (
                (
                    "--allow-data-loss says that nobody has the records any more. A loss at the end lowers the local low-water"
                    " mark to what is left, so that a node opens the partition again and a running cluster goes on with it. As"
                    " long as another replica may have them, use --from: a replica that has forgotten what it acknowledged can"
                    " outvote the one that has not."
                ),
                (
                    "append refuses to give the lost ids away. A loss is over when its transactions are here again, from --from"
                    " or from the cluster, and when a session has begun since that held them. undo takes an acceptance back"
                    " together with its repair; --forget-losses only makes the ledger shorter, is planned and confirmed like a"
                    " repair, and can be undone."
                ),
            ),
        ),
        ManualSection(
            "A COMMIT JOURNAL",
            (
                (
                    "While a node runs with --journal, and after it crashed, acknowledged records may stand in the journal"
                    " and not in their segments. Nothing is repaired then (13): start the node, or run append; both write"
                    " them back first. Where the journal is lost for good, --forget-journal gives up what stood only there,"
                    " of all partitions at once; it is planned and confirmed as a step that loses data. verify then names"
                    " what is missing, as far as marks and indexes prove it, and --from brings it back. The journal's file"
                    " stays; undo puts the journal in force again as long as nothing was written to the partitions since."
                ),
            ),
        ),
        ManualSection(
            "A CLUSTER",
            (
                (
                    "With --metadata it is about partitions that no log server has. Each storage"
                    " node is asked where it stands, which shuts nobody out; shown is who votes, at which transaction the next"
                    " session would open, what would be cut where and copied from whom, and, where it cannot be decided, which"
                    " absent node would decide it (3). With --yes it is done, as a session that shuts out every older one. A"
                    " partition that a server has is recovered by that server."
                ),
                (
                    "With --replicas the same is done offline to the directories of all replicas, as compare judges them: each"
                    " gets its plan, which is shown and agreed to as every repair, and can be undone. With --metadata as well the"
                    " metadata says how many replicas the last session had, which session that was, and so who has lost what it"
                    " held; where that leaves something open the replicas are named that are not all among the directories. What"
                    " nobody can decide, or is lost, stays as it is: 4 where nothing was done, 5 where the rest was repaired."
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
            help="In place of PATH: partitions of the cluster whose metadata is there that no log server has."
            " With --replicas: what it says of their last session.",
        ),
    ] = None,
    directories: Annotated[
        list[str] | None,
        typer.Option(
            "--replicas", metavar="DIR...", help="In place of PATH: the directories of all replicas, offline."
        ),
    ] = None,
    replicas: Annotated[
        list[str] | None,
        typer.Option("--from", metavar="DIR", help="Storage directory of another replica; may be repeated."),
    ] = None,
    allow_data_loss: Annotated[
        bool, typer.Option("--allow-data-loss", help="Give up what is lost, and read on behind it.")
    ] = False,
    forget_losses: Annotated[
        bool, typer.Option("--forget-losses", help="Only take losses that were accepted out of the ledger.")
    ] = False,
    forget_journal: Annotated[
        bool, typer.Option("--forget-journal", help="Only give up what stands in a lost commit journal.")
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
