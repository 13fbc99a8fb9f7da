"""A run of a pipeline: Spark Declarative Pipelines, started with the right interpreter, Java, settings and catalog.

A session is opened as for every other command, with the plugin by which it also is a Spark Connect server on a port of its
own, and Spark's own program (``python -m pyspark.pipelines.cli``, what ``spark-pipelines`` starts) is told to use it.  That
way

- there is one Java process instead of two, and no fixed port (15002) that a second run on the machine would find taken;
- every setting reaches Spark: ``spark-pipelines --conf`` hands settings over in pieces of which only the last one counts (4.3);
- this process can look at the catalog before the run, and at the tables after it.

What a kill leaves behind.  Spark keeps the batches of a streaming table, and goes on.  A table that is made anew (a
materialized view, a full refresh) is removed from the catalog first and from the disk afterwards; a kill between the two
leaves a directory that Spark refuses to put a table into.  So what lies where a table belongs and is in no catalog is removed
before the run, and where that was a streaming table it begins anew, with those that are made of it.

So does a table that somebody removed (``DROP TABLE``, its files): its checkpoint says that what came before is in it,
and Spark would go on with an empty one.  And one whose checkpoint was removed, or is an older one (`_forgotten`).

A kill of the first run may leave half a catalog (`_forget_half_catalog`).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import subprocess
import sys
import time
import urllib.parse
import uuid
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from waltzctl.engine.durable import disk
from waltzctl.engine.errors import DirectoryLockedError, DiskError, InvalidRequestError, PipelineError, WaltzError
from waltzctl.engine.pipeline.bucket_files import bucket_file, buckets_there, key_there, lost_buckets
from waltzctl.engine.pipeline.completeness import IncompleteRange, gaps
from waltzctl.engine.pipeline.project import COLUMN_CHANGES, TABLES, Project, defaults_of, with_following
from waltzctl.engine.pipeline.run_failures import EVENT, run_failure
from waltzctl.engine.pipeline.table_formats import PACKAGES, check_packages, installed_spark
from waltzctl.engine.pipeline.table_rows import Rows, lacking_rows, table_rows, taken_since
from waltzctl.engine.spark import shipping
from waltzctl.engine.spark.spark_session import Session, SparkOptions
from waltzctl.engine.spark.start import need_pyspark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

VIEWS = ("completeness", "activity")
"""Tables that are made anew at every run."""
_SERVER = "org.apache.spark.sql.connect.service.SparkConnectService$"
_KEPT = 400
"""Last lines of Spark's that are searched for what went wrong."""
_REFRESHING = "storage/refreshing"
"""A file with the names of tables that begin anew, while they do."""
_CATALOG = "storage/metastore"
_HALF_MADE = 10.0
"""Seconds after which nobody is about to lock a catalog that was begun and has no lock."""
_HELD = ("Another instance of Derby", "XSDB6", "SessionHiveMetaStoreClient", "Failed to start database")
"""What is said where another process has it."""
_PATIENCE, _PAUSE = 60.0, 1.0
"""Seconds for which the catalog is asked for while another process holds it (one that was killed needs some to end), and between
two attempts."""
_DETAILS = "# Detailed Table Information"
"""Where Spark's description of a table goes on behind its columns."""


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
    look: bool = False
    """Whether `completeness` and `activity` are wanted as well."""
    rest: bool = False
    """Whether all others are brought up to date as well where tables are named: nobody named them, they must begin anew."""

    @property
    def looks(self) -> bool:
        """Whether somebody looks at the tables afterwards."""
        return self.complete or self.look


@dataclass(frozen=True, slots=True)
class RunReport:
    """What came of it.  `gaps` None: nobody asked; `exit_status_name`: by `gaps`.

    `completeness`, `activity`: the rows of these tables, where somebody wanted to look.
    """

    path: Path
    refreshed: tuple[str, ...]
    gaps: tuple[IncompleteRange, ...] | None
    elapsed: float
    completeness: Rows = ()
    activity: Rows = ()

    @property
    def exit_status_name(self) -> str:
        """clean; repairable where each gap is intact elsewhere; damaged where something is nowhere."""
        if not self.gaps:
            return "clean"
        return "repairable" if all(one.elsewhere for one in self.gaps) else "damaged"


def check_tables(options: RunOptions) -> None:
    """Raise InvalidRequestError for tables that there are not, or not together, and where none would be there to look at."""
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
    """Run it to its end.  `say` gets Spark's progress, a line at a time.

    Raises InvalidRequestError, UnavailableError without PySpark, DirectoryLockedError while another run has the catalog,
    PipelineError for a table that failed, with the exit status of what stopped it, and what opening a session raises.
    """
    check_tables(options)
    need_pyspark()
    project.format, project.options, project.buckets, project.decoder  # noqa: B018  # what is wrong is said before Java starts
    if not options.spark.connect:
        _check_sources(project)
        settings = dict(_settings(project, options.spark))
        check_packages(project.format, settings.get(PACKAGES, ""), installed_spark())
    with serving(project, options.spark, say) as server:
        return run_at(server, project, options, say)


def _check_sources(project: Project) -> None:
    """Say at once what Spark would say half a minute later.  Raises PipelineError with the exit status of what is wrong."""
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
    """The same, at a server that runs already."""
    begun = time.monotonic()
    check_tables(options)
    full = with_following(options.full_refresh)
    options = replace(options, rest=not (options.full_refresh or options.refresh))
    if not options.dry_run:
        left = _leftovers(server, project)
        lost = (*(one for one in left if one not in VIEWS), *_removed(server, project, but=left))
        lost += _forgotten(server, project, but=lost)
        if lost:
            say(f"{', '.join(lost)}: not whole since the run before; read anew")
        full = with_following(tuple(dict.fromkeys((*full, *lost, *_rebucketed(project, say), *_begun(project)))))
        if options.full_refresh_all:
            full = TABLES
        _begin(project, full)
        for one in left:
            shutil.rmtree(project.directory / one)
        _forget_half_plans(project)
        if "state" in full:
            _forget_state(project)
        named = *full, *options.refresh
        if named and (never := _never_made(server.session.spark, project, named)):
            say(f"{', '.join(never)}: not there yet; made as well")
            options = replace(options, refresh=(*options.refresh, *never))
    _hand_over(project, replace(options, full_refresh=full), server.environment, say)
    if not options.dry_run:
        _begin(project, ())
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
    """Where Spark's program runs: a session there, and the environment by which the program finds it."""

    session: Session
    environment: dict[str, str]


def _settings(project: Project, given: SparkOptions) -> tuple[tuple[str, str], ...]:
    """The project's, and then the caller's, which win."""
    ours = {
        **dict([COLUMN_CHANGES]),  # a project of before does not say it
        **defaults_of(project.directory),
        "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": "0",
        # The sessions of other commands have the largest number there is; for a batch of so many rows Spark's columns for Arrow
        # functions find no room (4.3: NegativeArraySizeException).  This is Spark's own.
        "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
        # Nobody adds files to one run that another must not see, and with files of its own each flow has Python processes of its
        # own: a dozen more to start than there are programs for them.  PySpark turns it off as well, unless it is told otherwise.
        "spark.sql.artifact.isolation.enabled": "false",
    }
    return tuple({**ours, **dict(given.conf)}.items())


@contextlib.contextmanager
def serving(
    project: Project, given: SparkOptions, say: Callable[[str], None] = lambda _: None
) -> Iterator[PipelineServer]:
    """A server for runs of a project, until the block ends: one that is there (``sc://...``), or one of our own.

    `say` is told when another process is waited for.  Raises DirectoryLockedError while that one has the catalog, and what
    opening a session raises.
    """
    from waltzctl.engine.spark.start import open_session

    if given.connect:
        with open_session(given) as session:
            yield PipelineServer(session, dict(os.environ) | {"SPARK_REMOTE": given.where})
        return
    _forget_half_catalog(project)
    os.environ["SPARK_CONNECT_AUTHENTICATE_TOKEN"] = str(
        uuid.uuid4()
    )  # the server takes it from here, and so does the program
    try:
        with open_session(SparkOptions(given.where, _settings(project, given))) as session:
            port = getattr(getattr(session.spark._jvm, _SERVER), "MODULE$").localPort()
            _wait_for_catalog(session.spark, project, say)
            yield PipelineServer(session, dict(os.environ) | {"SPARK_REMOTE": f"sc://localhost:{port}"})
    finally:
        os.environ.pop("SPARK_CONNECT_AUTHENTICATE_TOKEN", None)


def _forget_half_catalog(project: Project) -> None:
    """Remove a catalog that a kill left half made: nothing is in it, and Derby, which writes its properties last, refuses it."""
    catalog = project.directory / _CATALOG
    if not catalog.is_dir() or (catalog / "service.properties").exists():
        return
    with contextlib.ExitStack() as stack, contextlib.suppress(FileNotFoundError):
        try:
            lock = stack.enter_context(open(catalog / "dbex.lck", "r+b"))
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # Derby's own
        except FileNotFoundError:  # which it makes some hundredths of a second after the directory
            if {*os.listdir(catalog)} - {"tmp", "db.lck"} or time.time() - catalog.stat().st_mtime < _HALF_MADE:
                return
        except OSError:  # another run is making it
            return
        if not (catalog / "service.properties").exists():
            shutil.rmtree(catalog)


def _wait_for_catalog(spark: SparkSession, project: Project, say: Callable[[str], None]) -> None:
    """Raises DirectoryLockedError where another process does not let go of the catalog."""
    until, said = time.monotonic() + _PATIENCE, False
    while True:
        try:
            spark.sql("SHOW TABLES").collect()
        except Exception as error:
            if not any(words in f"{error}" for words in _HELD):
                raise
            if time.monotonic() > until:  # an attempt takes Spark some ten seconds
                raise DirectoryLockedError(project.directory, None) from None
            if not said:
                say(
                    f"another process has the catalog, {project.directory / _CATALOG}; it is waited for, {_PATIENCE:g} s"
                )
            said = True
            time.sleep(_PAUSE)
        else:
            return


def _leftovers(server: PipelineServer, project: Project) -> tuple[str, ...]:
    """Tables of which something lies in their place, and which the catalog does not know.

    None of a project with a catalog of its own, or at somebody else's server.
    """
    if server.session.options.connect or project.catalog or project.database:
        return ()
    known = {row["tableName"] for row in server.session.spark.sql("SHOW TABLES").collect()}
    if project.state_in_files:
        known.add("state")  # a sink, of which the catalog does not know
    found = []
    for one in TABLES:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            if one not in known and os.listdir(project.directory / one):
                found.append(one)
    return tuple(found)


def _removed(server: PipelineServer, project: Project, but: tuple[str, ...]) -> tuple[str, ...]:
    """Streaming tables to which rows were written, as their checkpoints say, and which are not there any more, `but` for these.

    None at somebody else's server, whose catalog may be another one's.
    """
    if project.storage_path is None:
        return ()
    checkpoints, tables = project.storage_path / "_checkpoints", _checkpoints(project, project.storage_path)
    in_files = {"state"} if project.state_in_files else set()
    written = [
        one
        for one in TABLES
        if one not in but and any((checkpoints if one in in_files else tables).glob(f"{one}/*/*/commits/[0-9]*"))
    ]
    if not written or server.session.options.connect:
        return ()

    def is_there(one: str) -> bool:
        if one in in_files:
            return any((project.directory / one).glob("*.parquet"))
        name = f"{project.namespace}{one}"
        if not server.session.spark.catalog.tableExists(name):
            return False
        location = _location(server.session.spark, name)
        where = None if location is None else urllib.parse.urlparse(location)
        with contextlib.suppress(FileNotFoundError):
            return where is None or where.scheme not in ("", "file") or bool(os.listdir(where.path))
        return False

    return tuple(one for one in written if not is_there(one))


def _checkpoints(project: Project, storage: Path) -> Path:
    """Where Spark keeps those of its tables."""
    return storage / "_checkpoints" / (project.catalog or "spark_catalog") / (project.database or "default")


def _forgotten(server: PipelineServer, project: Project, but: tuple[str, ...]) -> tuple[str, ...]:
    """Streaming tables that hold more than their checkpoints know of, `but` for these: one was removed, or is an older one.

    Spark would begin where the checkpoint says.  A table of Parquet passes over batches whose numbers it has, with all that is
    new in them, and into others everything would come twice.  And tables of Parquet whose log of batches is gone: with the next
    batch readers would see that one's files alone.  None at somebody else's server, whose tables may lie elsewhere.
    """
    if project.storage_path is None or server.session.options.connect:
        return ()
    tables, spark = _checkpoints(project, project.storage_path), server.session.spark
    if (project.catalog or project.database) and not tables.is_dir():
        return ()  # a catalog may have a database of another name, by which checkpoints lie elsewhere

    def do_not_fit(one: str) -> bool:
        queries = [each for each in tables.glob(f"{one}/*/*") if each.name.isdigit()]
        latest = max(queries, key=lambda each: int(each.name), default=None)  # a refresh begins one more
        planned = -1 if latest is None else _last_number(latest / "offsets")
        name = f"{project.namespace}{one}"
        if project.format != "parquet":
            return planned < 0 and spark.catalog.tableExists(name) and bool(spark.table(name).head(1))
        place: str | None = str(project.directory / one)
        if project.catalog or project.database:
            place = _location(spark, name) if spark.catalog.tableExists(name) else None
        where = None if place is None else urllib.parse.urlparse(place)
        if where is None or where.scheme not in ("", "file"):
            return False
        held = _last_number(Path(where.path, "_spark_metadata"))
        done = -1 if latest is None else _last_number(latest / "commits")
        return held > planned or (held < done and any(Path(where.path).glob("*.parquet")))

    sinks = {"state"} if project.state_in_files else set()  # which takes what comes again
    return tuple(one for one in TABLES if one not in (*VIEWS, *sinks, *but) and do_not_fit(one))


def _last_number(directory: Path) -> int:
    """The highest number of a log of Spark's, whose files are ``9`` or ``9.compact``; -1 where there is none."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        numbers = [name.removesuffix(".compact") for name in os.listdir(directory)]
        return max((int(one) for one in numbers if one.isdigit()), default=-1)
    return -1


def _location(spark: SparkSession, name: str) -> str | None:
    """Where a table lies, as a path or a URI; None where the catalog does not tell.

    The columns stand in front of that, and one may have the same name.
    """
    rows = iter(spark.sql(f"DESCRIBE TABLE EXTENDED {name}").collect())
    next((row for row in rows if row["col_name"] == _DETAILS), None)
    return next((str(row["data_type"]) for row in rows if row["col_name"] == "Location"), None)


def _never_made(spark: SparkSession, project: Project, but: tuple[str, ...]) -> tuple[str, ...]:
    """Tables that the catalog does not know, `but` for these.

    Where only some tables are to be run, Spark wants those to be there that they are made of, or share a flow with (4.3: key
    not found).
    """
    sinks = ("state",) if project.state_in_files else ()
    others = (one for one in TABLES if one not in (*sinks, *but))
    return tuple(one for one in others if not spark.catalog.tableExists(f"{project.namespace}{one}"))


def _rebucketed(project: Project, say: Callable[[str], None]) -> tuple[str, ...]:
    """`state`, where its files are of another number of buckets than the project says, or of another key than the decoder's, and
    where one of them is gone.
    """
    if not project.state_in_files:
        return ()
    state, key = project.directory / "state", project.decoder.key
    there, by = buckets_there(state, project.buckets), key_there(state, key)
    if there != project.buckets:
        say(f"state: waltz.state.buckets is {project.buckets}, and its files are of {there}; made anew")
    elif by != key:
        say(f"state: KEY is {', '.join(key)}, and its rows are by {', '.join(by)}; made anew")
    elif lost := lost_buckets(state):
        say(f"state: {bucket_file(state, lost[0]).name} is gone; made anew")
    else:
        return ()
    return ("state",)


def _begun(project: Project) -> tuple[str, ...]:
    """Tables of which a run that did not come to its end had begun to read everything anew."""
    with contextlib.suppress(OSError):
        said = (project.directory / _REFRESHING).read_text(encoding="utf-8").split()
        return tuple(one for one in said if one in TABLES)
    return ()


def _begin(project: Project, tables: tuple[str, ...]) -> None:
    """Note which tables begin anew: a kill may come when Spark has emptied some of them, and not those that are made of these."""
    note = project.directory / _REFRESHING
    if not tables:
        note.unlink(missing_ok=True)
        return
    note.parent.mkdir(exist_ok=True)
    disk.write_whole(note, "\n".join(tables).encode())  # durable, as what it stands for is removed next


def _forget_half_plans(project: Project) -> None:
    """Remove what a run that was killed had half written of the first plan of a query.

    Spark writes a plan beside its place and renames it; a query without any plan refuses to begin where such a file lies.
    """
    if project.storage_path is None:
        return
    for place, directories, _ in os.walk(project.storage_path / "_checkpoints"):
        if "offsets" in directories:
            directories.clear()  # what lies deeper is the query's
            plans = Path(place, "offsets")
            names = os.listdir(plans)
            if not any(name.isdigit() for name in names):
                for name in names:
                    (plans / name).unlink()


def _forget_state(project: Project) -> None:
    """Let `state` begin anew: how far it is first, so that nothing is missing after a kill, then its files."""
    if not project.state_in_files:
        return
    storage = project.storage_path
    for one in (*([] if storage is None else [storage / "_checkpoints" / "state"]), project.directory / "state"):
        if not os.path.lexists(one):
            continue
        try:
            shutil.rmtree(one)
        except OSError as error:  # files without a checkpoint, or the other way round, would be gone on with
            emptied = one.is_dir() and not one.is_symlink() and not os.listdir(one)  # a mount point, which stays
            if not emptied:
                raise PipelineError(
                    f"{one}: it cannot be removed, and state is to begin anew: {error.strerror or error}",
                    status=DiskError.status,
                    advice="remove it, or mend what is named, and run it again: it begins anew then",
                ) from error
        disk.sync_directory(one.parent)  # the one is gone for good before the other goes


def _hand_over(project: Project, options: RunOptions, environment: dict[str, str], say: Callable[[str], None]) -> None:
    """Let Spark's program do it.  Raises PipelineError."""
    for arguments in program_arguments(project, options):
        _run_program(project, [*arguments, "--spec", str(project.spec)], environment, say)


def program_arguments(project: Project, options: RunOptions) -> list[list[str]]:
    """What Spark's program is started with, once or twice.

    Where tables are named Spark runs these, and leaves every sink out (4.3), of which `state` may be one: where it is among
    them, or somebody wants or looks at the other tables as well, a run of everything follows.
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
    last: deque[str] = deque(maxlen=_KEPT)
    paths = dict.fromkeys([str(shipping.root()), *filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))])
    environment = environment | {"PYTHONPATH": os.pathsep.join(paths)}  # the project imports waltzctl, installed or not
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
