"""A Spark session for a command: embedded, on a standalone cluster or through Spark Connect, and closed again at the end.

Opening one includes a round over the workers: each says which Python, NumPy and Waltz code it has, so that a cluster that
cannot do the work says so before a job begins, and the first job finds every worker started.
"""

from __future__ import annotations

import contextlib
import os
import platform
import socket
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from waltzctl.engine.errors import ClusterError, InvalidRequestError, MismatchError, UnavailableError
from waltzctl.engine.spark import shipping
from waltzctl.engine.spark.java import prepare_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DEFAULT_MASTER = "local[*]"
_CONNECT = "sc://"
_PORTS = {"spark": 7077, "sc": 15002}
_PATIENCE = 10.0
"""Seconds that a master may take to answer a connection."""
_TRACE = "Traceback (most recent call last):"
_QUIET_LOG = """rootLogger.level = error
rootLogger.appenderRef.stderr.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = spark: %p %c{1}: %m%n%ex
"""


@dataclass(frozen=True, slots=True)
class SparkOptions:
    """Where jobs run.

    `master`: as Spark names it (``local[4]``, ``spark://host:7077``, ``yarn``, ``k8s://...``), or ``sc://host:15002`` for Spark
    Connect; None: what the environment says (``SPARK_REMOTE``, ``MASTER``), else this machine.  `conf`: pairs of Spark's
    settings.
    """

    master: str | None = None
    conf: tuple[tuple[str, str], ...] = ()

    @property
    def where(self) -> str:
        """The master that will be used."""
        return self.master or os.environ.get("SPARK_REMOTE") or os.environ.get("MASTER") or DEFAULT_MASTER

    @property
    def local(self) -> bool:
        """Whether jobs run in this machine's own Python processes, started from here."""
        return self.where.startswith("local")

    @property
    def connect(self) -> bool:
        """Whether the session is one of Spark Connect."""
        return self.where.startswith(_CONNECT)


class Session:
    """An open session.  A context manager; closing stops what was started here."""

    def __init__(self, spark: SparkSession, options: SparkOptions, stack: contextlib.ExitStack) -> None:
        self.spark = spark
        self.options = options
        self._stack = stack
        self.hands = _hands(spark, options)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()


def open_session(options: SparkOptions) -> Session:
    """Start Spark, or connect to it, and look at its workers.

    Raises UnavailableError when PySpark or Java is missing, ClusterError when the cluster cannot be reached or used,
    MismatchError when its workers have another Python, InvalidRequestError for settings that cannot be meant.
    """
    try:
        import pyspark  # noqa: F401
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise UnavailableError(
            f"PySpark is not installed ({error})", advice="pip install 'waltzctl[spark]', or --engine local"
        ) from error
    _knock(options.where)
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="waltzctl-spark-")))
        try:
            if options.connect:
                builder: Any = SparkSession.builder.remote(options.where)
            else:
                prepare_java()
                _prepare_environment(options)
                builder = SparkSession.builder.master(options.where)
            for key, value in _settings(options, directory):
                builder = builder.config(key, value)
            with _quiet_start():
                spark = builder.appName("waltzctl").getOrCreate()
            stack.callback(_stop, spark)
            if not options.local:
                _ship(spark, options, directory)
            session = Session(spark, options, contextlib.ExitStack())
            _muster(session)
        except Exception as error:
            if not (isinstance(error, OSError) or of_spark(error)):
                raise
            raise ClusterError(
                f"{options.where}: {first_line(error)}{_said(error)}", advice="are master and settings right?"
            ) from error
        session._stack = stack.pop_all()
        return session


def _knock(where: str) -> None:
    """See whether anybody listens where a master should: Spark itself tries for many minutes.  Raises ClusterError."""
    scheme, found, rest = where.partition("://")
    if not found or scheme not in ("spark", "sc"):
        return
    refused = ""
    for one in rest.partition("/")[0].split(","):  # a standalone cluster may have several masters
        host, colon, port = one.rpartition(":")
        address = (host.strip("[]"), int(port)) if colon and port.isdigit() else (one.strip("[]"), _PORTS[scheme])
        try:
            socket.create_connection(address, timeout=_PATIENCE).close()
        except OSError as error:
            refused = f"{address[0]}:{address[1]}: {error.strerror or error}"
        else:
            return
    raise ClusterError(f"{where}: nobody answers: {refused}", advice="is the master right, and does it run?")


def of_spark(error: BaseException) -> bool:
    """Whether an error comes from Spark, or from the ways to it."""
    from pyspark.errors import PySparkException

    return isinstance(error, PySparkException) or type(error).__module__.startswith(("py4j", "grpc"))


def first_line(error: BaseException) -> str:
    """What a Java or Spark error says, without the trace that follows."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    if _TRACE in lines:  # of a worker's Python: what it raised stands below the indented lines
        below = lines[lines.index(_TRACE) + 1 :]
        return next((line for line in below if not line[0].isspace()), lines[0])
    said = [line.strip() for line in lines if line.strip().startswith("Caused by:")]
    if not said:  # py4j: what was called, then a colon and what Java raised
        said = [line.removeprefix(": ") for line in lines if line.startswith(": ")] or lines[:1]
    return said[-1].strip() if said else type(error).__name__


def _said(error: BaseException) -> str:
    """Of what Java said while it did not start, the line that names the reason."""
    lines = [line.strip() for note in getattr(error, "__notes__", ()) for line in note.splitlines() if line.strip()]
    telling = [line for line in lines if "Exception" in line or "rror" in line or "nvalid" in line]
    return f" {telling[0]}" if telling else ""


def _prepare_environment(options: SparkOptions) -> None:
    """What the Java process that is started here, and the workers that it starts, inherit."""
    if options.local:
        os.environ["PYSPARK_PYTHON"] = sys.executable
        paths = [str(shipping.root()), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
        os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(paths))
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)


def _settings(options: SparkOptions, directory: Path) -> Iterator[tuple[str, str]]:
    """Ours, and then those of the caller, which win."""
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
    yield "spark.sql.execution.arrow.maxRecordsPerBatch", "2147483647"  # 0, "no bound", ends Python data sources
    yield from given.items()


@contextlib.contextmanager
def _quiet_start() -> Iterator[None]:
    """Keep what Java says on stderr while it starts; show it only when it does not start."""
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
    with contextlib.suppress(Exception):  # whatever the cluster says to a good-bye changes nothing any more
        spark.stop()


def _ship(spark: SparkSession, options: SparkOptions, directory: Path) -> None:
    archive = shipping.write_archive(directory / "waltzctl-code.zip")
    if options.connect:
        spark.addArtifacts(str(archive), pyfile=True)
    else:
        spark.sparkContext.addPyFile(str(archive))


def _hands(spark: SparkSession, options: SparkOptions) -> int:
    if options.connect:
        return max(2, int(spark.conf.get("spark.sql.leafNodeDefaultParallelism", None) or 2))
    return int(spark.sparkContext.defaultParallelism)


@dataclass(frozen=True, slots=True)
class Worker:
    """What a worker says of itself."""

    host: str
    python: str
    numpy: str
    code: str


def report_for_duty(task: int) -> Worker:
    """What this process has; also loads what the work needs."""
    import numpy as np

    from waltzctl.engine.inspect import segment_checks
    from waltzctl.engine.scan import kernels

    assert segment_checks is not None
    kernels.choose(1 << 30)  # the compiled kernel, while nobody waits for it
    return Worker(platform.node(), platform.python_version(), np.__version__, shipping.__file__)


def _muster(session: Session) -> None:
    """Have every worker start, and tell what it has.  Raises MismatchError, ClusterError."""
    from waltzctl.engine.spark.crew import SparkCrew

    count = session.hands * 2
    workers: Sequence[Worker] = list(
        SparkCrew(session).map(report_for_duty, range(count), weights=[1 << 30] * count, what="start workers")
    )
    ours = platform.python_version_tuple()[:2]
    for worker in workers:
        if tuple(worker.python.split(".")[:2]) != ours:
            raise MismatchError(
                f"{worker.host}: its Python is {worker.python}, this one is {platform.python_version()}; both must be of one"
                " minor version",
                advice="set PYSPARK_PYTHON, or spark.pyspark.python, to one that is",
            )
