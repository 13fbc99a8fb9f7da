"""A run of a pipeline: Spark Declarative Pipelines, started with the right interpreter, Java, settings and catalog.

A session is opened as for every other command, with the plugin that makes it a Spark Connect server on a port of its own.
Spark's own program (``python -m pyspark.pipelines.cli``, which ``spark-pipelines`` starts) connects to that server.  So

- there is one Java process instead of two, and no fixed port (15002) that another run on the machine may already use;
- every setting reaches Spark: ``spark-pipelines --conf`` passes settings on in groups of which only the last takes effect (4.3);
- this process can examine the catalog before the run, and read the tables after it.

What interrupted runs left behind, and which tables must begin anew for that: `engine.pipeline.run_recovery`.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from waltzctl.engine.durable import disk
from waltzctl.engine.durable.work_directory import lock_directory
from waltzctl.engine.errors import DirectoryLockedError, InvalidRequestError, PipelineError, WaltzError
from waltzctl.engine.pipeline.completeness import IncompleteRange, gaps
from waltzctl.engine.pipeline.project import COLUMN_CHANGES, FOLLOWING, TABLES, Project, defaults_of, with_following
from waltzctl.engine.pipeline.run_failures import EVENT, run_failure
from waltzctl.engine.pipeline.run_recovery import (
    CATALOG,
    VIEWS,
    absent_tables,
    check_columns,
    check_format,
    check_place,
    mismatched_tables,
    outdated_state,
    record_place,
    record_refreshes,
    remove_partial_catalog,
    remove_partial_offsets,
    remove_state,
    removed_tables,
    uncataloged_tables,
    unfinished_refreshes,
)
from waltzctl.engine.pipeline.table_formats import PACKAGES, check_default, check_packages, installed_spark
from waltzctl.engine.pipeline.table_rows import Rows, lacking_rows, table_rows, taken_since
from waltzctl.engine.spark import shipping
from waltzctl.engine.spark.spark_session import Session, SparkOptions
from waltzctl.engine.spark.start import need_pyspark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SERVER = "org.apache.spark.sql.connect.service.SparkConnectService$"
_OF_DECODER = {"transactions", *FOLLOWING["transactions"]}
"""The tables that have what the decoder made."""
_KEPT_LINES = 400
"""How many of the last lines of Spark's output are searched for the reason of a failure."""
_CATALOG_HELD = ("Another instance of Derby", "XSDB6", "SessionHiveMetaStoreClient", "Failed to start database")
"""Texts in Spark's error when another process has the catalog open."""
_CATALOG_TIMEOUT = 60.0
"""Seconds to wait for another process to close the catalog: one that was killed takes some to end."""
_CATALOG_RETRY = 1.0
"""Seconds between two attempts to open the catalog."""


@dataclass(frozen=True, slots=True)
class RunOptions:
    """The options of a run."""

    full_refresh: tuple[str, ...] = ()
    """Tables to empty and to build from the beginning."""
    full_refresh_all: bool = False
    refresh: tuple[str, ...] = ()
    """Tables to bring up to date, instead of all."""
    dry_run: bool = False
    spark: SparkOptions = SparkOptions()  # noqa: RUF009  # frozen
    """Spark's master, or a Spark Connect server (``sc://...``), and settings."""
    complete: bool = False
    """Whether to look for gaps after the run."""
    look: bool = False
    """Whether the report includes the rows of `completeness` and `activity`."""
    rest: bool = False
    """Whether a run with tables in `full_refresh` or `refresh` also updates all other tables.

    Set by `run_at` when the caller named no tables: those in the lists are then there because they must begin anew.
    """

    @property
    def looks(self) -> bool:
        """Whether the tables are read after the run."""
        return self.complete or self.look


@dataclass(frozen=True, slots=True)
class RunReport:
    """The result of a run."""

    path: Path
    """The project's directory."""
    refreshed: tuple[str, ...]
    """Tables that were refreshed fully."""
    gaps: tuple[IncompleteRange, ...] | None
    """None where the options did not ask for gaps."""
    elapsed: float
    """Seconds."""
    completeness: Rows = ()
    """The rows of the table, where the options asked for them or for gaps."""
    activity: Rows = ()
    """The rows of the table, where the options asked for them."""

    @property
    def exit_status_name(self) -> str:
        """clean: no gap, or none looked for; repairable: each gap is intact on another replica; damaged: one is on none."""
        if not self.gaps:
            return "clean"
        return "repairable" if all(one.elsewhere for one in self.gaps) else "damaged"


def check_tables(options: RunOptions) -> None:
    """Raise InvalidRequestError for unknown tables, and for options that exclude each other."""
    for one in (*options.full_refresh, *options.refresh):
        if one not in TABLES:
            raise InvalidRequestError(f"there is no table {one!r}", advice=f"the tables are {', '.join(TABLES)}")
    if options.full_refresh_all and (options.full_refresh or options.refresh):
        raise InvalidRequestError("--full-refresh-all is about every table", advice="leave the other options out")
    if options.dry_run and (options.full_refresh_all or options.full_refresh or options.refresh):
        raise InvalidRequestError("a dry run refreshes nothing", advice="leave the tables out")
    if options.looks and options.dry_run:
        raise InvalidRequestError("a dry run has no tables to look at", advice="leave --require and --html out")
    if options.looks and options.refresh:
        raise InvalidRequestError(
            "--require and --html look at every table, and --refresh brings only some up to date",
            advice="leave --refresh out, or run it by itself first",
        )


def run_pipeline(project: Project, options: RunOptions, say: Callable[[str], None]) -> RunReport:
    """Run a pipeline to its end.  `say` gets Spark's progress, a line at a time.

    Raises InvalidRequestError, UnavailableError without PySpark, DirectoryLockedError while another run has the catalog,
    RefusedError for a project that was moved or copied, or in which another run is at work, PipelineError for a table that
    failed, with the exit status of the failure's cause, and what opening a session raises.
    """
    check_tables(options)
    remote = options.spark.connect
    check_place(project, remote=remote)
    need_pyspark()
    project.format, project.options, project.buckets, project.decoder  # noqa: B018  # raise errors before Java starts
    if not options.spark.connect:
        _check_sources(project)
        settings = dict(_settings(project, options.spark))
        check_default(project.format, settings)
        check_packages(project.format, settings.get(PACKAGES, ""), installed_spark())
    with serving(project, options.spark, say) as server:
        if not options.dry_run and not remote:
            record_place(project)
        return run_at(server, project, options, say)


def _check_sources(project: Project) -> None:
    """Find errors in the sources before Spark starts, which takes half a minute.

    Raises PipelineError with the exit status of the error.
    """
    from waltzctl.engine.pipeline.committed_marks import read_sessions
    from waltzctl.engine.spark.load_checks import check_sources

    try:
        check_sources(project.sources, project.options)
        if project.metadata is not None:
            read_sessions(project.metadata)
    except WaltzError as error:
        advice = "mend it, or take the replica out of waltz.sources: put in again, it goes on where it was"
        raise PipelineError(
            f"{project.spec}: {error.message}",
            status=error.status,
            advice=f"{error.advice}; {advice}" if error.advice else advice,
        ) from None


def run_at(server: PipelineServer, project: Project, options: RunOptions, say: Callable[[str], None]) -> RunReport:
    """As `run_pipeline`, at a server that runs already.

    Raises RefusedError while another run of the project is at work.  The lock of the project's own catalog keeps it away only
    where that catalog is used, not at somebody else's server or with another catalog.
    """
    check_tables(options)
    with contextlib.ExitStack() as held:
        if not options.dry_run:
            with contextlib.suppress(OSError):  # a file system without such locks
                lock_directory(project.directory, held)
        return _run_at(server, project, options, say)


def _run_at(server: PipelineServer, project: Project, options: RunOptions, say: Callable[[str], None]) -> RunReport:
    begun = time.monotonic()
    full = with_following(options.full_refresh)
    options = replace(options, rest=not (options.full_refresh or options.refresh))
    if not options.dry_run:
        session = server.session
        check_format(session.spark, project)
        uncataloged = uncataloged_tables(session, project)
        broken = (*(one for one in uncataloged if one not in VIEWS), *removed_tables(session, project, but=uncataloged))
        broken += mismatched_tables(session, project, but=broken)
        if broken:
            say(f"{', '.join(broken)}: not whole since the run before; read anew")
        anew = (*full, *broken, *outdated_state(project, say), *unfinished_refreshes(project))
        full = TABLES if options.full_refresh_all else with_following(tuple(dict.fromkeys(anew)))
        if "transactions" not in full and (options.rest or options.looks or _OF_DECODER & {*full, *options.refresh}):
            check_columns(session.spark, project)
        record_refreshes(project, full)
        for one in uncataloged:
            disk.remove_tree(project.directory / one)
        remove_partial_offsets(project)
        if "state" in full:
            remove_state(project)
        named = *full, *options.refresh
        if named and (absent := absent_tables(session.spark, project, named)):
            say(f"{', '.join(absent)}: not there yet; made as well")
            options = replace(options, refresh=(*options.refresh, *absent))
    _run_programs(project, replace(options, full_refresh=full), server.environment, say)
    if not options.dry_run:
        record_refreshes(project, ())
    found: tuple[IncompleteRange, ...] | None = None
    completeness: Rows = ()
    activity: Rows = ()
    if options.looks:
        spark = server.session.spark
        completeness, lacking = table_rows(spark, project, "completeness"), lacking_rows(spark, project)
        taken = taken_since(spark, project) if any(row["node"] is None for row in lacking) else ()
        found = tuple(gaps(completeness, lacking, taken))
        activity = table_rows(spark, project, "activity") if options.look else ()
    return RunReport(project.directory, full, found, time.monotonic() - begun, completeness, activity)


@dataclass(frozen=True, slots=True)
class PipelineServer:
    """A Spark Connect server: a session at it, and the environment variables by which Spark's program connects to it."""

    session: Session
    environment: dict[str, str]


def _settings(project: Project, given: SparkOptions) -> tuple[tuple[str, str], ...]:
    """The settings of the session: the project's, those that every run needs, and the caller's; the last of a name wins."""
    ours = {
        **dict([COLUMN_CHANGES]),  # projects of earlier versions lack it
        **defaults_of(project.directory),
        "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": "0",
        # Sessions of other commands set the largest possible number.  Spark cannot allocate the columns of Arrow functions for
        # batches of that size (4.3: NegativeArraySizeException).  This is Spark's default.
        "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
        # Isolation keeps files that a session adds from other sessions, and no run adds any.  With it each flow starts Python
        # processes of its own, a dozen more than otherwise.  It is off in PySpark's default as well.
        "spark.sql.artifact.isolation.enabled": "false",
    }
    return tuple({**ours, **dict(given.conf)}.items())


@contextlib.contextmanager
def serving(
    project: Project, given: SparkOptions, say: Callable[[str], None] = lambda _: None
) -> Iterator[PipelineServer]:
    """A server for runs of a project, until the block ends: the given one (``sc://...``), or one started here.

    `say` gets a line when the run waits for another process that has the catalog.  Raises DirectoryLockedError where that
    process does not close it in time, and what opening a session raises.
    """
    from waltzctl.engine.spark.start import open_session

    if given.connect:
        with open_session(given) as session:
            yield PipelineServer(session, dict(os.environ) | {"SPARK_REMOTE": given.where})
        return
    remove_partial_catalog(project)
    # both the server and Spark's program read the token from the environment
    os.environ["SPARK_CONNECT_AUTHENTICATE_TOKEN"] = str(uuid.uuid4())
    try:
        with open_session(SparkOptions(given.where, _settings(project, given))) as session:
            port = getattr(getattr(session.spark._jvm, _SERVER), "MODULE$").localPort()
            _wait_for_catalog(session.spark, project, say)
            yield PipelineServer(session, dict(os.environ) | {"SPARK_REMOTE": f"sc://localhost:{port}"})
    finally:
        os.environ.pop("SPARK_CONNECT_AUTHENTICATE_TOKEN", None)


def _wait_for_catalog(spark: SparkSession, project: Project, say: Callable[[str], None]) -> None:
    """Wait until no other process has the catalog open.  Raises DirectoryLockedError after `_CATALOG_TIMEOUT`."""
    deadline, said = time.monotonic() + _CATALOG_TIMEOUT, False
    while True:
        try:
            spark.sql("SHOW TABLES").collect()
        except Exception as error:
            if not any(words in f"{error}" for words in _CATALOG_HELD):
                raise
            if time.monotonic() > deadline:  # Spark takes about ten seconds for an attempt
                raise DirectoryLockedError(project.directory, None) from None
            if not said:
                catalog = project.directory / CATALOG
                say(f"another process has the catalog, {catalog}; it is waited for, {_CATALOG_TIMEOUT:g} s")
            said = True
            time.sleep(_CATALOG_RETRY)
        else:
            return


def _run_programs(
    project: Project, options: RunOptions, environment: dict[str, str], say: Callable[[str], None]
) -> None:
    """Run Spark's program, once or twice (`program_arguments`).  Raises PipelineError."""
    for arguments in program_arguments(project, options):
        _run_program(project, [*arguments, "--spec", str(project.spec)], environment, say)


def program_arguments(project: Project, options: RunOptions) -> list[list[str]]:
    """The arguments of Spark's program, for each of one or two runs.

    When tables are named, Spark runs only these, and leaves out every sink (4.3); `state` may be a sink.  So a run of
    everything follows where the named tables include a sink, or where the other tables are to be updated or read as well.
    """
    if options.dry_run:
        return [["dry-run"]]
    if options.full_refresh_all:
        return [["run", "--full-refresh-all"]]
    sinks = {"state"} if project.state_in_files else set()
    named = []
    for name, tables in (("--full-refresh", options.full_refresh), ("--refresh", options.refresh)):
        if kept := [one for one in tables if one not in sinks]:
            named += [name, ",".join(kept)]
    everything = not named or options.rest or options.looks or bool(sinks & {*options.full_refresh, *options.refresh})
    return [*([["run", *named]] if named else []), *([["run"]] if everything else [])]


def _run_program(
    project: Project, arguments: list[str], environment: dict[str, str], say: Callable[[str], None]
) -> None:
    command = [sys.executable, "-m", "pyspark.pipelines.cli", *arguments]
    last: deque[str] = deque(maxlen=_KEPT_LINES)
    paths = dict.fromkeys([str(shipping.root()), *filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))])
    # the project imports waltzctl, which need not be installed
    environment = environment | {"PYTHONPATH": os.pathsep.join(paths)}
    process = subprocess.Popen(
        command, env=environment, cwd=project.directory, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
    )  # fmt: skip
    try:
        assert process.stdout is not None
        with process.stdout:
            for line in process.stdout:
                last.append(line.rstrip("\n"))
                event = EVENT.match(line)
                if event is not None:
                    say(event[1])
        process.wait()
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    if process.returncode:
        raise run_failure(project, list(last))
