"""A command's Spark session and its options; `engine.spark.start` opens one."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DEFAULT_MASTER = "local[*]"
CONNECT = "sc://"
"""The scheme of a Spark Connect server's URL."""


@dataclass(frozen=True, slots=True)
class SparkOptions:
    """Where jobs run.

    `master`: as Spark names it (``local[4]``, ``spark://host:7077``, ``yarn``, ``k8s://...``), or ``sc://host:15002`` for Spark
    Connect; None: from the environment (``SPARK_REMOTE``, ``MASTER``), else this machine.  `conf`: pairs of Spark's
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
        """Whether jobs run in Python processes on this machine that the session starts."""
        return self.where.startswith("local")

    @property
    def connect(self) -> bool:
        """Whether the session is one of Spark Connect."""
        return self.where.startswith(CONNECT)


class Session:
    """An open session.  A context manager; closing stops the Spark that was started for it."""

    def __init__(self, spark: SparkSession, options: SparkOptions, stack: contextlib.ExitStack) -> None:
        self.spark = spark
        self.options = options
        self._stack = stack
        self.parallelism = _parallelism(spark, options)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()


def _parallelism(spark: SparkSession, options: SparkOptions) -> int:
    if options.connect:
        return max(2, int(spark.conf.get("spark.sql.leafNodeDefaultParallelism", None) or 2))
    return int(spark.sparkContext.defaultParallelism)
