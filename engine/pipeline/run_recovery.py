"""What earlier runs of a pipeline left behind, and which tables a run must therefore build from the beginning.

An earlier run may have been killed, and a user may have removed files.  Spark continues a streaming table from its checkpoint,
which says which offsets were committed; where the table and the checkpoint do not match, rows would be lost or doubled.  The
cases, and what a run does about each before Spark starts:

==========================================================  ===================================================================
found                                                       consequence
==========================================================  ===================================================================
files in a table's directory, no such table in the catalog  the files are removed; a streaming table is fully refreshed
a committed batch in the checkpoint, no table               full refresh: Spark would continue with an empty table
a table with more batches than its checkpoint, or rows and  full refresh: Spark would skip new batches whose numbers the table
no checkpoint                                               has, or append rows a second time
a full refresh that did not end (`REFRESHING`)              full refresh of the same tables
`state` with another bucket count or key, or a bucket lost  full refresh of `state`
a partly written first offset of a query                    the file is removed: Spark refuses to start the query beside it
a partly created catalog                                    the catalog is removed: Derby refuses to open it
==========================================================  ===================================================================

The first case comes of a kill: Spark removes a table that it rebuilds (a materialized view, a full refresh) from the catalog
first and from the disk afterwards, and refuses to create a table in a directory that has files.

A project that was moved or copied is refused (`check_place`), and so are tables of another format (`check_format`), and
those that another decoder made (`check_columns`).

A full refresh of a table includes the tables made from it (`project.FOLLOWING`).  At a Spark Connect server of somebody else
the catalog and the tables may be elsewhere, and nothing is concluded from files of this machine.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import time
import urllib.parse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from waltzctl.engine.durable import disk
from waltzctl.engine.durable.file_status import NOTHING_THERE, is_named, names_in
from waltzctl.engine.errors import (
    DiskError,
    DiskReadError,
    InvalidRequestError,
    PipelineError,
    RefusedError,
    write_error,
)
from waltzctl.engine.pipeline.bucket_files import bucket_file, buckets_there, key_there, lost_buckets
from waltzctl.engine.pipeline.project import DECODER, DEFAULTS, FORMATS, SPEC_NAMES, TABLES, Project
from waltzctl.engine.shell_words import shell_quote

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import DataType

    from waltzctl.engine.spark.spark_session import Session

VIEWS = ("completeness", "activity")
"""Materialized views: every run builds them from the beginning."""
CATALOG = "storage/metastore"
"""The directory of the project's own catalog, a Derby database."""
REFRESHING = "storage/refreshing"
"""A file with the names of the tables whose full refresh has begun and not ended."""
PLACE = "project"
"""A file beside the checkpoints, and in the project's ``storage``, with the path of the project that they are of."""
_CATALOG_CREATION = 10.0
"""Seconds within which Derby locks a catalog that it has begun to create.  An older one without a lock belongs to no process."""
_DETAILS = "# Detailed Table Information"
"""The row of ``DESCRIBE TABLE EXTENDED`` that separates a table's columns from its properties."""


def _storages(project: Project, *, remote: bool) -> tuple[Path, ...]:
    """The directories with the project's catalog and with its checkpoints; usually the same.

    `remote`: Spark is somebody else's server, whose checkpoints may be on another machine.
    """
    there = (project.directory / CATALOG).parent, None if remote else project.storage_path
    return tuple(dict.fromkeys(one for one in there if one is not None))


def check_place(project: Project, *, remote: bool = False) -> None:
    """Raise RefusedError where checkpoints or catalog are those of a project in another directory: this is a copy, or was moved.

    Its settings and its catalog name the places of checkpoints and tables by absolute paths.  A run would go on with those of the
    other project, whose `state` would lack what `state` here got; or make tables where nobody looks for them.

    Raises DiskReadError as well.
    """
    own = (project.directory / CATALOG).parent
    for storage in _storages(project, remote=remote):
        try:
            said = Path(os.fsdecode((storage / PLACE).read_bytes()).rstrip("\n"))
        except (FileNotFoundError, NotADirectoryError):
            said = storage.parent  # of a project without a record, which an earlier version ran
            if not any((said / name).is_file() for name in SPEC_NAMES):
                continue
        except OSError as error:
            raise DiskReadError(storage / PLACE, None, error) from error
        if not _is_same(said, project.directory):
            elsewhere = "" if storage in (own, said / own.name) else f"another storage in {project.spec.name}, and "
            raise RefusedError(
                f"{storage} is that of the project in {said}: the one in {project.directory} is a copy, or was moved",
                advice=f"move it back; or write {elsewhere}{project.directory} in place of {said} in {project.spec.name} and in"
                f" {DEFAULTS}, and remove {own}: the tables are made anew then",
            )


def record_place(project: Project) -> None:
    """Record durably, beside its checkpoints and its catalog, which project they are of.  Raises DiskWriteError."""
    # by the name that the settings have for it: a link that leads to the project may lead elsewhere later, with the project
    storages = _storages(project, remote=False)
    named = next(one.parent for one in storages[::-1] if _is_same(one.parent, project.directory))
    for storage in storages:
        if not is_named(storage / PLACE):
            try:
                storage.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise write_error(storage, None, error) from error
            disk.write_whole(storage / PLACE, f"{named}\n".encode())


def _is_same(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except OSError as error:
        if error.errno not in NOTHING_THERE:
            raise DiskReadError(one, None, error, doing="examine") from error
        return False


def remove_partial_catalog(project: Project) -> None:
    """Remove a catalog whose creation was killed: it is empty, and Derby, which writes its properties last, cannot open it."""
    catalog = project.directory / CATALOG
    if not catalog.is_dir() or (catalog / "service.properties").exists():
        return
    with contextlib.ExitStack() as stack, contextlib.suppress(FileNotFoundError):
        try:
            lock = stack.enter_context(open(catalog / "dbex.lck", "r+b"))
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # Derby's own lock
        except FileNotFoundError:  # Derby creates the lock file some hundredths of a second after the directory
            age = time.time() - catalog.stat().st_mtime  # negative: the clock was set back since
            if {*os.listdir(catalog)} - {"tmp", "db.lck"} or abs(age) < _CATALOG_CREATION:
                return
        except OSError:  # another run is creating the catalog
            return
        if not (catalog / "service.properties").exists():
            shutil.rmtree(catalog)


def uncataloged_tables(session: Session, project: Project) -> tuple[str, ...]:
    """Tables whose directory in the project has files, and that the catalog does not know.

    None for a project with a catalog or database of its own, or at somebody else's server.
    """
    if session.options.connect or project.catalog or project.database:
        return ()
    known = {row["tableName"] for row in session.spark.sql("SHOW TABLES").collect()}
    if project.state_in_files:
        known.add("state")  # a sink, which is never in the catalog
    return tuple(one for one in TABLES if one not in known and names_in(project.directory / one))


def removed_tables(session: Session, project: Project, but: tuple[str, ...]) -> tuple[str, ...]:
    """Streaming tables, except `but`, whose checkpoint has a committed batch and that do not exist any more.

    None at somebody else's server, whose catalog may be another one.
    """
    if project.storage_path is None:
        return ()
    checkpoints, tables = project.storage_path / "_checkpoints", _table_checkpoints(project, project.storage_path)
    in_files = {"state"} if project.state_in_files else set()
    written = [
        one
        for one in TABLES
        if one not in but and any((checkpoints if one in in_files else tables).glob(f"{one}/*/*/commits/[0-9]*"))
    ]
    if not written or session.options.connect:
        return ()

    def exists(one: str) -> bool:
        if one in in_files:
            return any((project.directory / one).glob("*.parquet"))
        name = f"{project.namespace}{one}"
        if not session.spark.catalog.tableExists(name):
            return False
        location = _table_location(session.spark, name)
        where = None if location is None else urllib.parse.urlparse(location)
        return where is None or where.scheme not in ("", "file") or bool(names_in(Path(where.path)))

    return tuple(one for one in written if not exists(one))


def _table_checkpoints(project: Project, storage: Path) -> Path:
    """The directory in which Spark keeps the checkpoints of the catalog's tables."""
    return storage / "_checkpoints" / (project.catalog or "spark_catalog") / (project.database or "default")


def mismatched_tables(session: Session, project: Project, but: tuple[str, ...]) -> tuple[str, ...]:
    """Streaming tables, except `but`, that do not match their checkpoint.

    - Parquet: the table's log (``_spark_metadata``) has a batch beyond the last offset of the checkpoint, which was removed or
      replaced by an older one.  Spark would number its batches from there, and the table skips batches whose numbers it has,
      with the new rows in them.
    - Parquet: the table's log lacks batches that the checkpoint committed, and there are data files.  After the next batch
      readers would see only the files of that batch.
    - Other formats: the table has rows, and there is no checkpoint.  Spark would append all rows a second time.

    None at somebody else's server, whose tables may be elsewhere.
    """
    if project.storage_path is None or session.options.connect:
        return ()
    tables, spark = _table_checkpoints(project, project.storage_path), session.spark
    if (project.catalog or project.database) and not tables.is_dir():
        return ()  # the catalog may use another default database, whose checkpoints are in another directory

    def differs(one: str) -> bool:
        queries = [each for each in tables.glob(f"{one}/*/*") if each.name.isdigit()]
        latest = max(queries, key=lambda each: int(each.name), default=None)  # each full refresh adds a directory
        planned = -1 if latest is None else _last_batch(latest / "offsets")
        name = f"{project.namespace}{one}"
        if project.format != "parquet":
            return planned < 0 and spark.catalog.tableExists(name) and bool(spark.table(name).head(1))
        location: str | None = str(project.directory / one)
        if project.catalog or project.database:
            location = _table_location(spark, name) if spark.catalog.tableExists(name) else None
        where = None if location is None else urllib.parse.urlparse(location)
        if where is None or where.scheme not in ("", "file"):
            return False
        logged = _last_batch(Path(where.path, "_spark_metadata"))
        committed = -1 if latest is None else _last_batch(latest / "commits")
        return logged > planned or (logged < committed and any(Path(where.path).glob("*.parquet")))

    sinks = {"state"} if project.state_in_files else set()  # a batch that is written to it twice changes nothing
    return tuple(one for one in TABLES if one not in (*VIEWS, *sinks, *but) and differs(one))


def _last_batch(directory: Path) -> int:
    """The highest batch number in one of Spark's logs, whose files are named ``9`` or ``9.compact``; -1 without any."""
    numbers = (name.removesuffix(".compact") for name in names_in(directory) or ())
    return max((int(one) for one in numbers if one.isdigit()), default=-1)


def _table_location(spark: SparkSession, name: str) -> str | None:
    """The location of a table, a path or a URI; None where the catalog does not tell it."""
    return _table_detail(spark, name, "Location")


def _table_detail(spark: SparkSession, name: str, what: str) -> str | None:
    """A property of a table; None where the catalog does not tell it.

    Spark lists the columns first, and one of them may have the property's name: rows before `_DETAILS` are passed over.
    """
    rows = iter(spark.sql(f"DESCRIBE TABLE EXTENDED {name}").collect())
    next((row for row in rows if row["col_name"] == _DETAILS), None)
    return next((str(row["data_type"]) for row in rows if row["col_name"] == what), None)


def check_format(spark: SparkSession, project: Project) -> None:
    """Raise PipelineError where a table has another format than `waltz.format` says: that was changed since it was made.

    Spark gives a table no other format, also where it is refreshed.
    """
    for one in ("records", "transactions"):
        table = f"{project.namespace}{one}"
        there = (
            _table_detail(spark, table, "Provider") if spark.catalog.tableExists(table) else None
        ) or project.format
        if there.lower() in FORMATS and there.lower() != project.format:
            raise PipelineError(
                f"{project.directory}, table {one}: its format is {there.lower()}, and waltz.format is {project.format}",
                status=InvalidRequestError.status,
                advice=f"put waltz.format back, or remove {(project.directory / CATALOG).parent}: the tables are made anew then",
            )


def absent_tables(spark: SparkSession, project: Project, but: tuple[str, ...]) -> tuple[str, ...]:
    """Tables, except `but`, that the catalog does not know.

    A run of selected tables fails in Spark (4.3: key not found) unless the tables that they are made from, or share a flow with,
    exist.
    """
    sinks = ("state",) if project.state_in_files else ()
    others = (one for one in TABLES if one not in (*sinks, *but))
    return tuple(one for one in others if not spark.catalog.tableExists(f"{project.namespace}{one}"))


def check_columns(spark: SparkSession, project: Project) -> None:
    """Raise PipelineError where SCHEMA has other columns than `transactions` was made with: the decoder was changed since.

    Spark adds columns to a table, and removes none.  The rows of before would have no value in the new ones, and `state`, which
    is made of both, files with different columns, of which a reader sees those of one.
    """
    table = f"{project.namespace}transactions"
    if not spark.catalog.tableExists(table):
        return
    decoded = next((one.dataType for one in spark.table(table).schema.fields if one.name == "decoded"), None)
    from waltzctl.engine.pipeline.tables import decoded_type  # it needs PySpark

    there, wanted = _names(decoded), _names(decoded_type(project))
    if not there or there.keys() == wanted.keys():
        return
    lacking = {"it lacks": [wanted[one] for one in wanted if one not in there]}
    lacking["SCHEMA lacks"] = [there[one] for one in there if one not in wanted]
    what = [f"{words} {', '.join(names)}" for words, names in lacking.items() if names]
    raise PipelineError(
        f"{project.directory}, table transactions: it was made with another SCHEMA than that of {DECODER}: {', and '.join(what)}",
        status=InvalidRequestError.status,
        advice=f"waltzctl pipeline run {shell_quote(str(project.directory))} --full-refresh transactions reads it anew",
    )


def _names(kind: DataType | None) -> dict[str, str]:
    """The names of a struct's columns, by what they are to Spark: it does not tell upper from lower case."""
    names: list[str] = getattr(kind, "names", [])
    return {one.lower(): one for one in names}


def outdated_state(project: Project, say: Callable[[str], None]) -> tuple[str, ...]:
    """`state`, where its bucket files have another number or key than project and decoder say, or one is gone; else nothing.

    `say` gets the reason.
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


def unfinished_refreshes(project: Project) -> tuple[str, ...]:
    """Tables whose full refresh an earlier run has begun and not ended.  Raises OSError where the record cannot be read.

    Taken for missing, it would be removed when this run ends, and tables that were emptied by half would count as whole.
    """
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        said = (project.directory / REFRESHING).read_text(encoding="utf-8").split()
        return tuple(one for one in said if one in TABLES)
    return ()


def record_refreshes(project: Project, tables: tuple[str, ...]) -> None:
    """Record durably which tables are being refreshed fully; without tables: remove the record.

    A kill may come when Spark has emptied some of the tables, and not yet the tables made from them.
    """
    record = project.directory / REFRESHING
    if not tables:
        record.unlink(missing_ok=True)
        return
    record.parent.mkdir(exist_ok=True)
    disk.write_whole(record, "\n".join(tables).encode())  # durable before the tables' files are removed


def remove_partial_offsets(project: Project) -> None:
    """Remove the partly written first offset of a query, which a killed run left behind.

    Spark writes an offset under a temporary name and renames it.  A query that has no offset yet refuses to start where such a
    file is.
    """
    if project.storage_path is None:
        return
    for place, directories, _ in os.walk(project.storage_path / "_checkpoints"):
        if "offsets" in directories:
            directories.clear()  # the subdirectories of a query's checkpoint have none of their own
            offsets = Path(place, "offsets")
            names = names_in(offsets) or ()
            if not any(name.isdigit() for name in names):
                for name in names:
                    (offsets / name).unlink()


def _is_emptied(directory: Path) -> bool:
    """Whether a directory that could not be removed is empty, as a mount point is then; not where it cannot be looked at."""
    try:
        return directory.is_dir() and not directory.is_symlink() and not os.listdir(directory)
    except OSError:
        return False


def remove_state(project: Project) -> None:
    """Remove `state`, where it is a sink with files of our own: its checkpoint first, then its files.

    A kill between the two leaves files without a checkpoint, and the query writes every row again.  Raises PipelineError where
    one cannot be removed.
    """
    if not project.state_in_files:
        return
    storage = project.storage_path
    for one in (*([] if storage is None else [storage / "_checkpoints" / "state"]), project.directory / "state"):
        if not is_named(one):
            continue
        try:
            shutil.rmtree(one)
        except OSError as error:
            # with only one of the two removed, the query would continue with a checkpoint and files that do not match
            if not _is_emptied(one):
                raise PipelineError(
                    f"{one}: it cannot be removed, and state is to begin anew: {error.strerror or error}",
                    status=DiskError.status,
                    advice="remove it, or mend what is named, and run it again: it begins anew then",
                ) from error
        disk.sync_directory(one.parent)  # the checkpoint is durably gone before the files are removed
