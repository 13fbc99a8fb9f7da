"""dump --export: write a table to files, and show the findings in it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path, PurePath

from waltzctl.console import Console
from waltzctl.engine.columns.finding_columns import FINDING
from waltzctl.engine.inspect.verification import Tally
from waltzctl.engines import Computing, EngineName
from waltzctl.exit_status import ExitStatus
from waltzctl.options import What
from waltzctl.outcome import say
from waltzctl.render.progress_bar import progress
from waltzctl.values import counted


@dataclass(frozen=True, slots=True)
class Export:
    """The table to write, and the engine."""

    path: PurePath
    target: Path
    format: str
    what: What
    partitions: Collection[int] | None
    first: int | None
    last: int | None
    data: bool
    computing: Computing
    quiet: bool
    verbose: int


def export(request: Export) -> ExitStatus:
    """Write the table, and show its findings."""
    from waltzctl.engine.spark.table_files import WRITTEN_HERE, TableRequest, write_table
    from waltzctl.engine.task_executor import LocalExecutor

    table = TableRequest(
        path=request.path,
        target=request.target,
        format=request.format.lower(),
        view=request.what.value,
        partitions=request.partitions,
        first=request.first,
        last=request.last,
        data=request.data,
    )
    computing = request.computing
    if computing.engine is EngineName.AUTO and table.format not in WRITTEN_HERE:
        computing = Computing(EngineName.SPARK, computing.master, computing.conf)
    tally = Tally()
    with Console(None, quiet=request.quiet, verbose=request.verbose, must_finish=True) as console:
        with (
            progress(quiet=request.quiet, verbose=request.verbose) as listener,
            computing.executor([request.path], listener, quiet=request.quiet) as executor,
        ):
            done = write_table(table, executor or LocalExecutor(progress=listener))
        for finding in done.findings:
            tally.add(finding)
            console.emit(FINDING.shown(finding))
    if not request.quiet:
        found = f", {counted(len(done.findings), 'finding')}" if done.findings else ""
        say(f"waltzctl: {request.target}: {counted(done.rows, 'row')}{found}.")
    return ExitStatus.from_label(tally.exit_status_name)
