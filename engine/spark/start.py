"""Opening a Spark session for a command: embedded, on a standalone cluster or through Spark Connect.

Opening one includes a handshake with the workers (`engine.spark.handshake`).
"""

from __future__ import annotations

import atexit
import contextlib
import os
import socket
import sys
import tempfile
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from waltzctl.engine.errors import ClusterError, InvalidRequestError, UnavailableError
from waltzctl.engine.spark import shipping, temporary
from waltzctl.engine.spark.handshake import check_workers
from waltzctl.engine.spark.java import prepare_java
from waltzctl.engine.spark.masters import master_addresses
from waltzctl.engine.spark.spark_errors import first_line, of_spark, said_at_start
from waltzctl.engine.spark.spark_session import Session, SparkOptions
from waltzctl.engine.spark.worker_python import write_launcher

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PYTHONS = ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON")
"""Environment variables with the interpreters that Spark starts for its workers, and for planning with a data source."""
_OF_MASTERS = ("SPARK_REMOTE", "MASTER", "SPARK_API_MODE")
"""Environment variables with which PySpark refuses another master, or makes a session of Spark Connect whatever the master is."""
_CONNECT_TIMEOUT = 10.0
"""Seconds to wait for a master to accept a connection."""
_QUIET_LOG = """rootLogger.level = error
rootLogger.appenderRef.stderr.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = spark: %p %c{1}: %m%n%ex
"""


def need_pyspark(otherwise: str = "") -> None:
    """Raise UnavailableError where PySpark is not installed; `otherwise`: an alternative, for the advice."""
    try:
        import pyspark
        import pyspark.sql  # noqa: F401
    except ImportError as error:
        raise UnavailableError(
            f"PySpark is not installed ({error})", advice=f"pip install 'waltzctl[spark]'{otherwise}"
        ) from error


def open_session(options: SparkOptions) -> Session:
    """Start Spark, or connect to it, and check its workers (`engine.spark.handshake`).

    Raises UnavailableError when PySpark or Java is missing, ClusterError when the cluster cannot be reached or used,
    MismatchError when its workers have another Python, InvalidRequestError for invalid settings.
    """
    need_pyspark(", or --engine local")
    from pyspark.sql import SparkSession

    where, connect = options.where, options.connect  # they may be the environment's
    _check_master(where)
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=temporary.SESSION)))
        temporary.claim(directory)
        try:
            if not connect:
                prepare_java(clear=False)  # that was just done
                _prepare_environment(options, directory)
            settings = tuple(_settings(options, directory))
            with _without(_OF_MASTERS):
                named = SparkSession.builder
                builder: Any = named.remote(where) if connect else named.master(where)
                for key, value in settings:
                    builder = builder.config(key, value)
                with _quiet_start():
                    spark = builder.appName("waltzctl").getOrCreate()
            stack.callback(_stop, spark)
            if options.local:
                stack.callback(
                    os.environ.update, dict.fromkeys(_PYTHONS, sys.executable)
                )  # the launcher is removed with the directory
            if not options.local:
                _ship(spark, options, directory)
            session = Session(spark, options, contextlib.ExitStack())
            check_workers(session)
        except Exception as error:
            if not (isinstance(error, OSError) or of_spark(error)):
                raise
            raise ClusterError(
                f"{options.where}: {first_line(error)}{said_at_start(error)}", advice="are master and settings right?"
            ) from error
        session._stack = stack.pop_all()
        return session


def spark_session(master: str | None = None, conf: Mapping[str, str] | None = None) -> SparkSession:
    """A Spark session for a program, in which ``format("waltz")`` can be read; it is stopped when the program ends.

    Interpreter, Java and this project's code are those of the calling Python, activated or not, for a master on this machine,
    a standalone cluster (``spark://host:7077``) or Spark Connect (``sc://host:15002``); `master` None: from the
    environment (``SPARK_REMOTE``, ``MASTER``), else this machine.  `conf`: Spark's settings.  Raises as `open_session` does.
    """
    session = open_session(SparkOptions(master, tuple((conf or {}).items())))
    from waltzctl.engine.spark.data_source import WaltzDataSource

    session.spark.dataSource.register(WaltzDataSource)
    atexit.register(session.__exit__, None, None, None)
    return session.spark


def _check_master(where: str) -> None:
    """Connect to the master once, since Spark itself would retry for many minutes.  Raises ClusterError."""
    refused = ""
    for host, port in (masters := master_addresses(where)):  # a standalone cluster may have several
        try:
            socket.create_connection((host, port), timeout=_CONNECT_TIMEOUT).close()
        except OSError as error:
            refused = f"{host}:{port}: {error.strerror or error}"
        except (UnicodeError, OverflowError):  # an empty label or one that is too long; a port that is too large
            refused = f"{host}:{port}: no possible address"
        else:
            return
    if not masters:
        return
    raise ClusterError(f"{where}: nobody answers: {refused}", advice="is the master right, and does it run?")


def _prepare_environment(options: SparkOptions, directory: Path) -> None:
    """Set environment variables for the Java process that Spark starts here, and for its workers."""
    if options.local:
        os.environ |= dict.fromkeys(_PYTHONS, str(write_launcher(directory)))
        paths = [str(shipping.root()), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
        os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(paths))
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)


def _settings(options: SparkOptions, directory: Path) -> Iterator[tuple[str, str]]:
    """Our settings, and then the caller's, which take precedence."""
    given = dict(options.conf)
    for key in given:
        if not key.startswith("spark."):
            raise InvalidRequestError(f"{key}: Spark's settings begin with 'spark.'", advice="--conf spark.NAME=VALUE")
    if not options.connect:
        log = directory / "log4j2.properties"
        log.write_text(_QUIET_LOG)
        java_options = f"-Dlog4j2.configurationFile=file:{log}"
        if also := given.pop("spark.driver.extraJavaOptions", None):
            java_options += f" {also}"
        yield "spark.driver.extraJavaOptions", java_options
        yield "spark.ui.enabled", "false"
        yield "spark.ui.showConsoleProgress", "false"
    if options.local:
        yield "spark.driver.host", "127.0.0.1"
        yield "spark.driver.bindAddress", "127.0.0.1"
    yield "spark.sql.execution.arrow.maxRecordsPerBatch", "2147483647"  # 0, "no bound", makes Python data sources fail
    yield from given.items()


@contextlib.contextmanager
def _without(names: Collection[str]) -> Iterator[None]:
    """Without these environment variables, until the block ends."""
    kept = {name: os.environ.pop(name) for name in names if name in os.environ}
    try:
        yield
    finally:
        os.environ |= kept


@contextlib.contextmanager
def _quiet_start() -> Iterator[None]:
    """Capture Java's stderr while it starts; add it to the error when it fails to start."""
    with tempfile.TemporaryFile() as kept:
        sys.stderr.flush()
        saved = os.dup(2)
        os.dup2(kept.fileno(), 2)
        try:
            yield
        except BaseException as error:
            kept.seek(0)
            error.add_note(kept.read(1 << 16).decode(errors="replace"))
            raise
        finally:
            os.dup2(saved, 2)
            os.close(saved)


def _stop(spark: SparkSession) -> None:
    with contextlib.suppress(Exception):  # the session is closed anyway: an error here has no consequence
        spark.stop()


def _ship(spark: SparkSession, options: SparkOptions, directory: Path) -> None:
    archive = shipping.named_archive(directory)
    if options.connect:
        spark.addArtifacts(str(archive), pyfile=True)
    elif not any(one.endswith(f"/{archive.name}") for one in spark.sparkContext.listFiles):  # added by an earlier call
        spark.sparkContext.addPyFile(str(archive))
