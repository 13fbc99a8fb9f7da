"""The engine of a long command: this machine's threads, or Spark.  The options, and how `auto` chooses."""

from __future__ import annotations

import contextlib
import enum
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING, Annotated

import typer

from waltzctl.manual import ManualSection
from waltzctl.options import with_shared
from waltzctl.outcome import say
from waltzctl.values import human_bytes, human_duration

if TYPE_CHECKING:
    from waltzctl.engine.progress import Progress
    from waltzctl.engine.task_executor import TaskExecutor

PANEL = "Engine"
"""Heading in ``--help`` under which these options stand."""
ONE_MINUTE = 60.0
"""Seconds on this machine above which `auto` chooses Spark."""
WORTH_A_TRIAL = 256 << 20
"""Bytes below which `auto` measures nothing, and stays local: any disk or network drive reads them within seconds."""
_TRIAL, _TRIAL_BYTES = 0.25, 64 << 20
"""Seconds, and bytes, after which the measurement of this machine's speed ends, whichever is first."""

ENGINE = ManualSection(
    "ENGINE",
    (
        (
            "--engine local reads with this machine's processors. --engine spark gives the reading to Spark: embedded on this"
            " machine unless --master names a cluster (spark://HOST:PORT, yarn, k8s://..., or sc://HOST:PORT for Spark"
            " Connect). What is found is the same. Executors must see the same paths, so a cluster needs a shared file system"
            " or URLs such as s3://BUCKET/NODE, and Python with waltzctl's libraries; waltzctl's own code is sent to them."
        ),
        (
            "--engine auto, the default, tries for at most a quarter of a second how fast this machine reads, and takes Spark"
            " only for what would take longer than a minute; with --master it takes Spark. Spark needs the extra:"
            " pip install 'waltzctl[spark]'. Ctrl-C cancels the job."
        ),
    ),
)


class EngineName(enum.StrEnum):
    """The choice of an engine."""

    AUTO = "auto"
    LOCAL = "local"
    SPARK = "spark"


def spark_settings(conf: Iterable[str] | None) -> tuple[tuple[str, str], ...]:
    """Names and values of the ``--conf`` options.  Raises typer.BadParameter."""
    pairs = []
    for text in conf or ():
        key, equals, value = text.partition("=")
        if not equals or not key.startswith("spark."):
            raise typer.BadParameter(f"{text}: write spark.NAME=VALUE", param_hint="'--conf'")
        pairs.append((key.strip(), value.strip()))
    return tuple(pairs)


@dataclass(frozen=True, slots=True)
class Computing:
    """The options of the engine.  The constructor raises typer.BadParameter for invalid ones."""

    engine: Annotated[
        EngineName,
        typer.Option("--engine", help="Who reads; auto asks Spark for more than a minute.", rich_help_panel=PANEL),
    ] = EngineName.AUTO
    master: Annotated[
        str | None,
        typer.Option(
            "--master", metavar="URL", help="Spark's master; this machine unless given.", rich_help_panel=PANEL
        ),
    ] = None
    conf: Annotated[
        list[str] | None,
        typer.Option("--conf", metavar="K=V", help="A setting of Spark; repeatable.", rich_help_panel=PANEL),
    ] = None

    @property
    def given(self) -> dict[str, object]:
        """Options that were given, by name, for commands that must refuse them."""
        engine = None if self.engine is EngineName.AUTO else self.engine
        return {"engine": engine, "master": self.master, "conf": self.conf or None}

    def __post_init__(self) -> None:
        spark_settings(self.conf)
        if self.master is not None and not self.master.strip():
            raise typer.BadParameter("the master is empty", param_hint="'--master'")
        if self.engine is EngineName.LOCAL:
            for option, given in (("--master", self.master), ("--conf", self.conf)):
                if given:
                    raise typer.BadParameter("is about Spark, and the engine is local", param_hint=f"'{option}'")

    @contextlib.contextmanager
    def executor(
        self, paths: Iterable[PurePath], listener: Progress, *, quiet: bool = False
    ) -> Iterator[TaskExecutor | None]:
        """The executor for reading `paths`; None: this process's own threads.  Raises what opening a session raises."""
        if not self.wants_spark(paths, quiet=quiet):
            yield None
            return
        from waltzctl.engine.spark.spark_executor import SparkExecutor
        from waltzctl.engine.spark.spark_session import SparkOptions
        from waltzctl.engine.spark.start import open_session

        listener.start("start Spark", 0)
        with open_session(SparkOptions(self.master, spark_settings(self.conf))) as session:
            yield SparkExecutor(session, listener)

    def wants_spark(self, paths: Iterable[PurePath], *, quiet: bool = False) -> bool:
        """Whether to use Spark.  Where `auto` chooses it, a message on stderr says so, unless `quiet`."""
        if self.engine is not EngineName.AUTO:
            return self.engine is EngineName.SPARK
        if self.master is not None or self.conf:
            return True
        seconds, size = _estimate(list(paths))
        if seconds <= ONE_MINUTE:
            return False
        about = f"{human_bytes(size)} would take this machine about {human_duration(seconds)}"
        import importlib.util

        if importlib.util.find_spec("pyspark") is None:
            if not quiet:
                say(f"waltzctl: {about}; with the extra 'spark' a cluster could do it")
            return False
        if not quiet:
            say(f"waltzctl: {about}: taking Spark; --engine local keeps it here")
        return True


def _estimate(paths: list[PurePath]) -> tuple[float, int]:
    """Seconds that this machine will take for `paths`, and their size in bytes; measured with the largest segment."""
    import os

    from waltzctl.engine.inspect.targets import plan
    from waltzctl.engine.log.places import open_source
    from waltzctl.engine.scan.columns import Damage
    from waltzctl.engine.scan.scanner import summarise_records

    scopes = plan(paths, None)
    size = sum(scope.data_bytes() for scope in scopes)
    if size < WORTH_A_TRIAL:
        return 0.0, size
    files = [
        segment.data
        for scope in scopes
        for part in scope.partitions.values()
        for segment in (() if part.view is None else part.view.data_segments)
    ]
    largest = max((file for file in files if file is not None), key=lambda file: file.size)
    begun, read = time.monotonic(), 0
    with open_source(largest.path) as source:
        for item in summarise_records(source, first_transaction_id=int(largest.path.stem)):
            read = item.end
            if isinstance(item, Damage) or read > _TRIAL_BYTES or time.monotonic() - begun > _TRIAL:
                break
    rate = max(read, 1) / max(time.monotonic() - begun, 1e-6)
    return size / (rate * (os.cpu_count() or 1)), size


with_engine = with_shared(Computing, "computing")
"""A decorator that adds the options of the engine to a command, as one argument, `computing`."""
