"""pipeline run: bring the tables up to date."""

from __future__ import annotations

import enum
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from waltzctl.console import Console
from waltzctl.engines import spark_settings
from waltzctl.exit_status import ExitStatus
from waltzctl.manual import Example, Manual, ManualSection
from waltzctl.options import FormatOption, QuietOption, VerboseOption, path_of

if TYPE_CHECKING:
    from waltzctl.engine.pipeline.running import RunReport

MANUAL = Manual(
    name="run",
    page="pipeline",
    summary="Update the tables",
    description=(
        (
            "Finds the Python interpreter, a Java, and the project's settings, and runs Spark Declarative Pipelines:"
            " on this machine, with --master on a cluster (spark://HOST:PORT, yarn, ...), or with --remote on a Spark"
            " Connect server (sc://HOST:PORT) that has waltzctl installed. With -v Spark's progress goes to stderr."
        ),
        (
            "--require complete checks the tables afterwards. It exits with 3 if a replica lacks what another one has,"
            " with 4 if no replica has something, or replicas disagree, and names each gap by node, partition and ids."
            " --html writes a page: the gaps, what each replica has of each partition, plots by transaction id,"
            " clients and headers. Both need every table, so neither can be combined with --refresh or --dry-run."
        ),
        (
            "--dry-run lets Spark check the tables without updating them. --full-refresh TABLE reads a table again,"
            " and all tables derived from it; --refresh TABLE updates only this table."
        ),
    ),
    examples=(
        Example("waltzctl pipeline run /lake/waltz", "Add everything new."),
        Example("waltzctl pipeline run /lake/waltz --require complete", "Also fail if anything is missing."),
        Example("waltzctl pipeline run /lake/waltz --html waltz.html", "Also write a page with plots."),
        Example("waltzctl pipeline run /lake/waltz --full-refresh transactions", "After a change of decoder.py."),
        Example(
            "waltzctl pipeline run /lake/waltz --master spark://head:7077 --conf spark.executor.memory=4g",
            "On a cluster.",
        ),
    ),
    statuses=(
        ExitStatus.CLEAN,
        ExitStatus.USAGE,
        ExitStatus.REPAIRABLE,
        ExitStatus.DAMAGED,
        ExitStatus.NOT_WALTZ,
        ExitStatus.LOCKED,
        ExitStatus.MISMATCH,
        ExitStatus.REFUSED,
        ExitStatus.IO_ERROR,
        ExitStatus.INTERRUPTED,
    ),
    objects=("pipeline-run", "pipeline-gap"),
    sections=(
        ManualSection(
            "ENVIRONMENT",
            (
                (
                    "A plain spark-pipelines run in the project does the same work. It needs SPARK_CONF_DIR=DIR/conf"
                    " (which locates tables and catalog), PYSPARK_PYTHON with the Python that has waltzctl, and a Java"
                    " in JAVA_HOME or PATH. Tables derived from a refreshed table must be named there as well."
                ),
            ),
        ),
    ),
)


class Required(enum.StrEnum):
    """What can be required of the tables."""

    COMPLETE = "complete"


def run(
    directory: Annotated[str, typer.Argument(metavar="DIR", help="The project.", show_default=False)],
    full_refresh: Annotated[
        list[str] | None,
        typer.Option("--full-refresh", metavar="TABLE", help="Read this table again (repeatable).", show_default=False),
    ] = None,
    full_refresh_all: Annotated[bool, typer.Option("--full-refresh-all", help="Read every table again.")] = False,
    refresh: Annotated[
        list[str] | None,
        typer.Option("--refresh", metavar="TABLE", help="Only this table (repeatable).", show_default=False),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check the tables without updating them.")] = False,
    master: Annotated[
        str | None, typer.Option("--master", metavar="URL", help="Spark's master; default: this machine.")
    ] = None,
    remote: Annotated[
        str | None, typer.Option("--remote", metavar="URL", help="A Spark Connect server, sc://HOST:PORT.")
    ] = None,
    conf: Annotated[
        list[str] | None, typer.Option("--conf", metavar="K=V", help="A setting of Spark (repeatable).")
    ] = None,
    require: Annotated[Required | None, typer.Option("--require", help="Check for gaps afterwards.")] = None,
    html: Annotated[
        str | None, typer.Option("--html", metavar="FILE", help="Write a page with plots of the tables to this file.")
    ] = None,
    output_format: FormatOption = None,
    quiet: QuietOption = False,
    verbose: VerboseOption = 0,
) -> ExitStatus:
    """Run, look, report."""
    target = path_of(directory, name="DIR")
    where, settings = _where(master, remote), spark_settings(conf)
    shown = None if html is None else path_of(html, name="--html")
    if shown is not None and dry_run:
        raise typer.BadParameter("a dry run has no tables to show", param_hint="'--html'")

    from waltzctl.engine.pipeline.project import open_project
    from waltzctl.engine.pipeline.running import RunOptions, run_pipeline
    from waltzctl.engine.spark.spark_session import SparkOptions
    from waltzctl.objects.pipeline_objects import PIPELINE_GAP, PIPELINE_RUN

    with Console(output_format, quiet=quiet, verbose=verbose, must_finish=True) as console:
        options = RunOptions(
            full_refresh=_names(full_refresh),
            full_refresh_all=full_refresh_all,
            refresh=_names(refresh),
            dry_run=dry_run,
            spark=SparkOptions(where, settings),
            complete=require is Required.COMPLETE,
            look=shown is not None,
        )
        report = run_pipeline(open_project(target), options, console.detail)
        if shown is not None:
            _write_page(report, shown, target.name)
            console.note(f"{shown}: written")
        if require is None:
            report = replace(report, gaps=None)  # only for the page: without --require gaps do not change the status
        status = ExitStatus.from_label(report.exit_status_name)
        for gap in report.gaps or ():
            console.emit(PIPELINE_GAP.shown(gap))
        complete = None if report.gaps is None else not report.gaps
        console.emit(
            PIPELINE_RUN.shown(
                report, dry_run=dry_run, complete=complete, status=report.exit_status_name, exit_status=status
            )
        )
        console.success(_conclusion(directory, complete=complete, gaps=len(report.gaps or ()), dry_run=dry_run))
    return status


def _write_page(report: RunReport, target: Path, name: str) -> None:
    from waltzctl.output_file import replacing_text
    from waltzctl.render.pipeline_html import page

    with replacing_text(target) as file:
        file.writelines(page(report, name))


def _conclusion(directory: str, *, complete: bool | None, gaps: int, dry_run: bool) -> str:
    if dry_run:
        return f"OK  {directory}: Spark takes the tables as they are. Nothing was modified."
    if complete is None:
        return f"OK  {directory}: the tables are up to date"
    if complete:
        return f"COMPLETE  {directory}: the tables are up to date, and every replica has everything"
    return f"INCOMPLETE  {directory}: the tables are up to date; {gaps} gap{'s' * (gaps != 1)}"


def _names(given: list[str] | None) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name.strip() for text in given or () for name in text.split(",") if name.strip()))


def _where(master: str | None, remote: str | None) -> str | None:
    """Raises typer.BadParameter."""
    if master is not None and remote is not None:
        raise typer.BadParameter("there is a --master already", param_hint="'--remote'")
    if remote is not None and not remote.startswith("sc://"):
        raise typer.BadParameter(f"{remote}: write sc://HOST:PORT", param_hint="'--remote'")
    if master is not None and (not master.strip() or master.startswith("sc://")):
        raise typer.BadParameter(
            "a master is local[N], spark://HOST:PORT, yarn, ...; sc:// is for --remote", param_hint="'--master'"
        )
    return remote or master
