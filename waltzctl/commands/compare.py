"""compare: reconcile the replicas of a cluster offline."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Annotated

import typer

from waltzctl.console import Console
from waltzctl.engines import ENGINE, Computing, with_engine
from waltzctl.exit_status import ExitStatus
from waltzctl.manual import Example, Manual, ManualSection
from waltzctl.options import (
    FormatOption,
    PartitionsOption,
    QuietOption,
    VerboseOption,
    partitions_of,
    path_of,
    place_of,
)
from waltzctl.render.progress_bar import progress

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from waltzctl.engine.compare.comparison import CompareSummary, PartitionComparison
    from waltzctl.engine.repair.plan import NotedFiles
    from waltzctl.objects.compare_objects import PlanFile
    from waltzctl.render.progress_bar import NoProgress, TerminalProgress

MANUAL = Manual(
    name="compare",
    summary="Reconcile the replicas of a cluster, and change nothing",
    description=(
        (
            "Reads the storage directories of several nodes side by side. For each partition it shows: the highest"
            " transaction that recovery would keep; the first one that differs, with the bytes of each version; which"
            " replica is behind, ahead, diverged, damaged or missing; what would be cut; and from which replica each"
            " damaged record can be restored."
        ),
        (
            "A replica counts as holding a record when the record's own checksum is right. Two replicas agree when"
            " every byte is the same. A transaction is kept by the rule of Waltz: a quorum of the replicas has it, or"
            " may have acknowledged it."
        ),
    ),
    examples=(
        Example("waltzctl compare /mnt/node-1 /mnt/node-2 /mnt/node-3", "Do the replicas agree?"),
        Example(
            "waltzctl compare /mnt/node-1 /mnt/node-2 --replicas 3",
            "The third replica is unavailable: what can still be decided?",
        ),
        Example(
            "waltzctl compare /mnt/node-1 /mnt/node-2 /mnt/node-3 --plan-dir /var/tmp/plans",
            "Write a plan for each replica; waltzctl recover /mnt/node-1 --plan FILE applies one.",
        ),
        Example(
            "waltzctl compare /mnt/node-1 /mnt/node-2 /mnt/node-3 --differences differences.parquet",
            "Every difference as a row of a table.",
        ),
    ),
    statuses=(
        ExitStatus.CLEAN,
        ExitStatus.USAGE,
        ExitStatus.REPAIRABLE,
        ExitStatus.DAMAGED,
        ExitStatus.NOT_WALTZ,
        ExitStatus.MISMATCH,
        ExitStatus.REFUSED,
        ExitStatus.IO_ERROR,
        ExitStatus.INTERRUPTED,
    ),
    objects=("finding", "partition-comparison", "compare-summary"),
    sections=(
        ManualSection(
            "VERDICTS",
            (
                (
                    "equal: all replicas hold the same records. Exit status 0, or 3 when a header or a control file is"
                    " damaged. Indexes are not checked, except for an index without a data file; verify checks them."
                ),
                (
                    "recoverable: the replicas differ, and recovery makes them equal without losing a transaction that"
                    " may have been acknowledged. Exit status 3."
                ),
                (
                    "undecidable: the result depends on unknown data: a replica that was not given, or is missing or"
                    " damaged, or two versions of a transaction of which neither has a quorum. lost: no replica has an"
                    " intact copy of a transaction that was, or may have been, acknowledged. Exit status 4 for both."
                ),
            ),
        ),
        ManualSection(
            "WHAT IS ASSUMED",
            (
                (
                    "The last replica set is recorded in the cluster's metadata, which compare does not read. All"
                    " directories in which a partition is assigned count as its replicas; --replicas N says that there"
                    " are more, whose content is then unknown. A replica whose session is older than that of a quorum"
                    " does not vote. docs/compare.md has the complete rule."
                ),
                (
                    "A partition whose directory cannot be listed, as one on a disk of its own that does not answer, is"
                    " named, and has no vote: it may hold anything. The others are compared as usual. Exit status 14,"
                    " unless a verdict gives 4, if anything could not be read."
                ),
                "The nodes should be stopped. A directory in use is read as it is, and is named.",
            ),
        ),
        ManualSection(
            "PLANS",
            (
                (
                    "--plan-dir writes one file for each replica that needs a repair, in the format of recover"
                    " --dry-run --format json: records that recovery would cut are cut, damaged records are restored"
                    " from a replica that proves them, indexes are rebuilt. recover DIR --plan FILE shows and applies"
                    " a plan, undo reverts it. A replica that is only behind needs no plan: the cluster brings it up"
                    " to date. Plans leave undecidable transactions alone."
                ),
                (
                    "Records at or below a replica's local low-water mark are cut or replaced only with"
                    " --allow-data-loss. Applying a plan changes a replica, so another plan that takes records from"
                    " that replica may then be refused (13): compare again."
                ),
            ),
        ),
        ENGINE,
    ),
)


@with_engine
def run(
    paths: Annotated[
        list[str],
        typer.Argument(metavar="DIR...", help="Storage directories, one of each node.", show_default=False),
    ],
    replicas: Annotated[
        int | None,
        typer.Option(
            "--replicas", metavar="N", min=1, help="Number of replicas of each partition, including those not given."
        ),
    ] = None,
    plan_dir: Annotated[
        str | None, typer.Option("--plan-dir", metavar="DIR", help="Write a plan for each replica into this directory.")
    ] = None,
    allow_data_loss: Annotated[
        bool,
        typer.Option("--allow-data-loss", help="Let plans change records at or below a local low-water mark."),
    ] = False,
    differences: Annotated[
        str | None,
        typer.Option("--differences", metavar="FILE", help="Write every difference as a row of a Parquet table."),
    ] = None,
    partition: PartitionsOption = None,
    output_format: FormatOption = None,
    quiet: QuietOption = False,
    verbose: VerboseOption = 0,
    computing: Computing = Computing(),  # noqa: B008  # frozen
) -> ExitStatus:
    """Compare and report."""
    wanted = [place_of(text, name="DIR") for text in paths]
    plans = None if plan_dir is None else path_of(plan_dir, name="--plan-dir")
    table = None if differences is None else path_of(differences, name="--differences")
    if allow_data_loss and plans is None:
        raise typer.BadParameter("nothing is changed without a plan; add --plan-dir", param_hint="'--allow-data-loss'")

    from waltzctl.engine.compare.compare import compare
    from waltzctl.engine.compare.comparison import CompareOptions
    from waltzctl.engine.task_executor import LocalExecutor
    from waltzctl.output_file import check_outside

    for path in wanted:
        for target in (plans, table):
            if target is not None:
                check_outside(target, path)
    if table is not None:
        from waltzctl.engine.compare.differences import load_arrow

        load_arrow()
    options = CompareOptions(partitions_of(partition), replicas)
    keep = plans is not None or table is not None
    with (
        Console(output_format, quiet=quiet, verbose=verbose, must_finish=keep) as console,
        progress(quiet=quiet, verbose=verbose) as listener,
        computing.executor(wanted, listener, quiet=quiet) as executor,
    ):
        report = _Report(console, listener, wanted, assumed=replicas is None, keep=keep)
        if plans is not None:
            from waltzctl.engine.compare.plans import look_at

            report.seen = look_at(wanted, options.partitions)
        for seen in compare(wanted, options, executor or LocalExecutor(progress=listener)):
            report.show(seen)
        listener.close()
        return report.finish(plans, table, allow_data_loss=allow_data_loss)


class _Report:
    """Shows findings and comparisons as they come; at the end come the plans, the table, and the conclusion."""

    def __init__(
        self,
        console: Console,
        listener: TerminalProgress | NoProgress,
        paths: Sequence[PurePath],
        *,
        assumed: bool,
        keep: bool,
    ) -> None:
        self._console = console
        self._listener = listener
        self._paths = paths
        self._assumed = assumed
        self._keep = keep
        self._comparisons: list[PartitionComparison] = []
        self._summary: CompareSummary | None = None
        self.seen: Mapping[PurePath, NotedFiles] = {}
        """What was in the directories before they were compared, where plans are wanted."""

    def show(self, seen: object) -> None:
        """Show one item; the summary is kept for the end."""
        from waltzctl.engine.columns.finding_columns import FINDING
        from waltzctl.engine.compare.comparison import STATUS_NAMES, CompareSummary, PartitionComparison
        from waltzctl.engine.findings import Finding
        from waltzctl.objects.compare_objects import comparison_object

        silent = self._console.quiet and self._console.for_people
        with self._listener.paused():
            if isinstance(seen, Finding):
                if seen.severity != "note":
                    self._know("io-error" if seen.code == "read-error" else "repairable")
                if not (silent and seen.severity == "note"):
                    self._console.emit(FINDING.shown(seen), flush=True)
            elif isinstance(seen, PartitionComparison):
                self._know(STATUS_NAMES[seen.verdict])
                if self._keep:
                    self._comparisons.append(seen)
                if not (silent and seen.verdict == "equal"):
                    self._console.emit(comparison_object(seen), flush=True)
            elif isinstance(seen, CompareSummary):
                self._summary = seen

    def _know(self, status_name: str) -> None:
        found = {self._console.known, ExitStatus.from_label(status_name)}
        self._console.known = ExitStatus.DAMAGED if ExitStatus.DAMAGED in found else max(found)

    def finish(self, plan_directory: Path | None, table: Path | None, *, allow_data_loss: bool) -> ExitStatus:
        """Write what was asked for, then conclude."""
        from waltzctl.objects.compare_objects import PlanFile, summary_object
        from waltzctl.render.compared import conclusion

        summary = self._summary
        assert summary is not None
        if table is not None:
            from waltzctl.engine.compare.differences import write_table
            from waltzctl.output_file import replacing_binary

            try:
                with replacing_binary(table) as target:
                    write_table(self._comparisons, target)
            except BrokenPipeError:  # a FIFO whose reader needs no more; the plans and the conclusion are for others
                table = None
        stale, files = None, list[PlanFile]()
        if plan_directory is not None:
            from waltzctl.engine.compare.plans import unmoved

            self._comparisons, stale = unmoved(self._comparisons, self.seen)
            files = self._write_plans(plan_directory, allow_data_loss=allow_data_loss)
        if stale is not None:  # the others' plans are written by now
            summary = replace(summary, exit_status_name=stale.status)
        self._console.known = status = ExitStatus.from_label(summary.exit_status_name)
        if status is not ExitStatus.CLEAN or files or not (self._console.quiet and self._console.for_people):
            self._console.emit(summary_object(summary, files, table), flush=True)
            self._console.sentence(
                conclusion(
                    summary,
                    files,
                    assumed=self._assumed,
                    plans_wanted=plan_directory is not None,
                )
            )
        if stale is not None:
            raise stale
        return status

    def _write_plans(self, directory: Path, *, allow_data_loss: bool) -> list[PlanFile]:
        from waltzctl.engine.columns.plan_columns import PLAN
        from waltzctl.engine.compare.plans import plans
        from waltzctl.engine.durable import disk
        from waltzctl.engine.log.places import absolute
        from waltzctl.objects.compare_objects import PlanFile
        from waltzctl.output_file import replacing_text
        from waltzctl.render.json import JsonWriter

        found = plans(self._comparisons, self._paths, allow_data_loss=allow_data_loss, seen=self.seen)
        if found and not directory.is_dir():
            disk.make_directory(directory)
        files: list[PlanFile] = []
        for repair in found:
            number = next(n for n, path in enumerate(self._paths, 1) if absolute(path) == absolute(repair.plan.path))
            replica = self._paths[number - 1]
            file = directory / f"{number}-{absolute(replica).name or 'replica'}.json"
            with replacing_text(file) as target:
                writer = JsonWriter(target, single=True)
                writer.write(PLAN.shown(repair.plan))
                writer.close()
            files.append(PlanFile(replica, file, repair.plan))
        return files
