"""A run of a pipeline: Spark Declarative Pipelines, started with the right interpreter, Java, settings and catalog.

A session is opened as for every other command, with the plugin by which it also is a Spark Connect server on a port of its own, and
Spark's own program (``python -m pyspark.pipelines.cli``, what ``spark-pipelines`` starts) is told to use it.  That way

- there is one Java process instead of two, and no fixed port (15002) that a second run on the machine would find taken;
- every setting reaches Spark: ``spark-pipelines --conf`` hands settings over in pieces of which only the last one counts (4.3);
- this process can look at the catalog before the run, and at the tables after it.

What a kill leaves behind.  Spark keeps the batches of a streaming table, and goes on.  A table that is made anew (a materialized view,
a full refresh) is removed from the catalog first and from the disk afterwards; a kill between the two leaves a directory that Spark
refuses to put a table into.  So what lies where a table belongs and is in no catalog is removed before the run, and where that was a
streaming table it begins anew, with those that are made of it.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from waltzctl.engine import errors
from waltzctl.engine.errors import ClusterError, DirectoryLockedError, InvalidRequestError, PipelineError, WaltzError
from waltzctl.engine.pipeline.completeness import Gap, gaps
from waltzctl.engine.pipeline.project import TABLES, Project, defaults_of, with_following
from waltzctl.engine.spark.spark_session import Session, SparkOptions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

VIEWS = ("completeness", "activity")
"""Tables that are made anew at every run."""
_SERVER = "org.apache.spark.sql.connect.service.SparkConnectService$"
_KEPT = 400
"""Last lines of Spark's that are searched for what went wrong."""
_TRIES, _PAUSE = 30, 1.0
"""How often the catalog is asked for while another process holds it: one that was killed needs seconds to end."""
_OURS = re.compile(r"waltzctl\.engine\.errors\.(\w+): (.+)")
_FAILED = re.compile(r"Flow '?([\w.`]+?)'? has FAILED")
_EVENT = re.compile(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d: (.*)$")


@dataclass(frozen=True, slots=True)
class RunOptions:
    """What is asked for.  `spark`: where, and settings; `remote` instead of its master: a Spark Connect server, ``sc://...``."""

    full_refresh: tuple[str, ...] = ()
    full_refresh_all: bool = False
    refresh: tuple[str, ...] = ()
    dry_run: bool = False
    spark: SparkOptions = SparkOptions()  # noqa: RUF009  # frozen
    complete: bool = False
    """Whether gaps are looked for afterwards."""


@dataclass(frozen=True, slots=True)
class RunReport:
    """What came of it.  `gaps` None: nobody asked; `exit_status_name`: by `gaps`."""

    path: Path
    refreshed: tuple[str, ...]
    gaps: tuple[Gap, ...] | None
    elapsed: float

    @property
    def exit_status_name(self) -> str:
        """clean; repairable where each gap is intact elsewhere; damaged where something is nowhere."""
        if not self.gaps:
            return "clean"
        return "repairable" if all(one.elsewhere for one in self.gaps) else "damaged"


def check_tables(options: RunOptions) -> None:
    """Raise InvalidRequestError for tables that there are not, or not together."""
    for one in (*options.full_refresh, *options.refresh):
        if one not in TABLES:
            raise InvalidRequestError(f"there is no table {one!r}", advice=f"the tables are {', '.join(TABLES)}")
    if options.full_refresh_all and (options.full_refresh or options.refresh):
        raise InvalidRequestError("--full-refresh-all is about every table", advice="leave the other options out")
    if options.dry_run and (options.full_refresh_all or options.full_refresh or options.refresh):
        raise InvalidRequestError("a dry run refreshes nothing", advice="leave the tables out")


def run_pipeline(project: Project, options: RunOptions, say: Callable[[str], None]) -> RunReport:
    """Run it to its end.  `say` gets Spark's progress, a line at a time.

    Raises InvalidRequestError, DirectoryLockedError while another run has the catalog, PipelineError for a table that failed, with
    the exit status of what stopped it, and what opening a session raises.
    """
    begun = time.monotonic()
    check_tables(options)
    project.format, project.options, project.buckets, project.decoder  # noqa: B018  # what is wrong is said before Java starts
    full = with_following(options.full_refresh)
    with _server(project, options.spark) as (session, environment):
        known = _known(session.spark, project)
        if session.options.connect:
            lost = ()
        else:
            lost = tuple(one for one in TABLES if _left_behind(project, one, known)) if not options.dry_run else ()
        for one in lost:
            shutil.rmtree(project.directory / one)
        anew = with_following(tuple(one for one in lost if one not in VIEWS))
        if anew:
            say(f"{', '.join(anew)}: not whole in the catalog; read anew")
        full = tuple(dict.fromkeys((*full, *anew)))
        if (options.full_refresh_all or "state" in full) and not options.dry_run:
            _forget_state(project)
        _hand_over(project, replace(options, full_refresh=full), environment, say)
        found = None
        if options.complete and not options.dry_run:
            found = _gaps(session.spark, project)
    return RunReport(project.directory, full, found, time.monotonic() - begun)


def _settings(project: Project, given: SparkOptions) -> tuple[tuple[str, str], ...]:
    """The project's, and then the caller's, which win."""
    ours = {
        **defaults_of(project.directory),
        "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": "0",
        # The sessions of other commands have the largest number there is; for a batch of so many rows Spark's columns for Arrow
        # functions find no room (4.3: NegativeArraySizeException).  This is Spark's own.
        "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
        "spark.sql.artifact.isolation.enabled": "true",
        "spark.sql.artifact.isolation.alwaysApplyClassloader": "true",
    }
    return tuple({**ours, **dict(given.conf)}.items())


@contextlib.contextmanager
def _server(project: Project, given: SparkOptions) -> Iterator[tuple[Session, dict[str, str]]]:
    """A session with a Spark Connect server, and the environment by which Spark's program finds it."""
    from waltzctl.engine.spark.start import open_session

    environment = dict(os.environ)
    if given.connect:
        with open_session(given) as session:
            yield session, environment | {"SPARK_REMOTE": given.where}
        return
    token = str(uuid.uuid4())
    os.environ["SPARK_CONNECT_AUTHENTICATE_TOKEN"] = token  # the server takes it from here
    try:
        options = SparkOptions(given.where, _settings(project, given))
        with open_session(options) as session:
            port = getattr(getattr(session.spark._jvm, _SERVER), "MODULE$").localPort()  # type: ignore[attr-defined]
            environment = dict(os.environ) | {"SPARK_REMOTE": f"sc://localhost:{port}"}  # with Java and interpreter
            _wait_for_catalog(session.spark, project)
            yield session, environment
    finally:
        os.environ.pop("SPARK_CONNECT_AUTHENTICATE_TOKEN", None)


def _wait_for_catalog(spark: SparkSession, project: Project) -> None:
    """Raises DirectoryLockedError where another process does not let go of the catalog."""
    for attempt in range(_TRIES):
        try:
            spark.sql("SHOW TABLES").collect()
        except Exception as error:
            if "Another instance of Derby" not in str(error) and "XSDB6" not in str(error) and attempt == 0:
                raise
            time.sleep(_PAUSE)
        else:
            return
    raise DirectoryLockedError(project.directory, None)


def _known(spark: SparkSession, project: Project) -> frozenset[str]:
    """Names of the project's tables that the catalog has."""
    place = project.namespace.rstrip(".")
    rows = spark.sql(f"SHOW TABLES{f' IN {place}' if place else ''}").collect()
    return frozenset(row["tableName"] for row in rows)


def _left_behind(project: Project, table: str, known: frozenset[str]) -> bool:
    """Whether something lies where a table belongs, and the catalog does not know it."""
    if table in known or project.catalog or project.database or (table == "state" and project.format == "parquet"):
        return False
    with contextlib.suppress(OSError):
        return bool(os.listdir(project.directory / table))
    return False


def _forget_state(project: Project) -> None:
    """Let `state` begin anew: how far it is first, so that nothing is missing after a kill, then its files."""
    if project.format != "parquet":
        return
    if project.storage_path is not None:
        for found in project.storage_path.glob("_checkpoints/**/state"):
            shutil.rmtree(found, ignore_errors=True)
    shutil.rmtree(project.directory / "state", ignore_errors=True)


def _hand_over(project: Project, options: RunOptions, environment: dict[str, str], say: Callable[[str], None]) -> None:
    """Let Spark's program do it.  Raises PipelineError."""
    command = [
        sys.executable,
        "-m",
        "pyspark.pipelines.cli",
        "dry-run" if options.dry_run else "run",
        "--spec",
        str(project.spec),
    ]
    if options.full_refresh_all:
        command.append("--full-refresh-all")
    else:
        for name, tables in (("--full-refresh", options.full_refresh), ("--refresh", options.refresh)):
            if tables:
                command += [name, ",".join(tables)]
    last: deque[str] = deque(maxlen=_KEPT)
    process = subprocess.Popen(
        command, env=environment, cwd=project.directory, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
    )  # fmt: skip
    try:
        assert process.stdout is not None
        with process.stdout:
            for line in process.stdout:
                last.append(line.rstrip("\n"))
                event = _EVENT.match(line)
                if event is not None:
                    say(event[1])
        process.wait()
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    if process.returncode:
        raise failure(project, list(last))


def failure(project: Project, lines: list[str]) -> WaltzError:
    """What went wrong, from what Spark's program said: the table, our own words where they are among them, and what to do."""
    table = next(
        (found[1].replace("`", "").rpartition(".")[2] for line in lines if (found := _FAILED.search(line))), None
    )
    ours = next((found for line in lines if (found := _OURS.search(line))), None)
    where = str(project.directory) if table is None else f"{project.directory}, table {table}"
    if ours is not None:
        kind = getattr(errors, ours[1], WaltzError)
        status = getattr(kind, "status", "internal")
        again = (
            f"; then waltzctl pipeline run {project.directory} --full-refresh {table}"
            if table and status in ("refused", "mismatch")
            else ""
        )
        return PipelineError(
            f"{where}: {ours[2]}",
            status=status,
            advice=f"mend what is named{again or ' and run it again: it goes on where it was'}",
        )
    text = _said(lines)
    return PipelineError(
        f"{where}: {text[:2000]}", status=ClusterError.status, advice="waltzctl pipeline run -v shows what Spark said"
    )


def _said(lines: list[str]) -> str:
    """Spark's own reason: that of the first flow that failed, else what its program ended with, with the lines that belong to it."""
    for begins in ("Error: ", "pyspark.errors"):
        at = next((place for place, line in enumerate(lines) if line.startswith(begins)), None)
        if at is not None:
            told = [
                line.strip()
                for line in lines[at : at + 12]
                if line.strip() and not line.startswith(("\tat ", "  File "))
            ]
            return " ".join(told)
    return next((line for line in reversed(lines) if line.strip()), "it ended without a word")


def _gaps(spark: SparkSession, project: Project) -> tuple[Gap, ...]:
    rows = spark.table(f"{project.namespace}completeness").collect()
    bad = spark.table(f"{project.namespace}quarantine").where("missing > 0 OR missing IS NULL").collect()
    return tuple(gaps([row.asDict() for row in rows], [row.asDict() for row in bad]))
