"""The handshake with the workers of a new session: each reports its versions of Python and NumPy, and its Waltz code.

So an unsuitable cluster is refused before a job begins, and the first job finds all workers started.
"""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from waltzctl.engine.errors import MismatchError
from waltzctl.engine.spark import shipping
from waltzctl.engine.spark.spark_executor import SparkExecutor

if TYPE_CHECKING:
    from waltzctl.engine.spark.spark_session import Session


@dataclass(frozen=True, slots=True)
class Worker:
    """The versions that a worker reports."""

    host: str
    python: str
    numpy: str
    code: str


def describe_worker(task: int) -> Worker:
    """The versions of this process; also loads the modules that jobs need."""
    import numpy as np

    from waltzctl.engine.inspect import segment_checks
    from waltzctl.engine.scan import kernels

    assert segment_checks is not None
    kernels.choose(1 << 30)  # the compiled kernel, while nobody waits for it
    return Worker(platform.node(), platform.python_version(), np.__version__, shipping.__file__)


def check_workers(session: Session) -> None:
    """Start every worker, and check the versions that it reports.  Raises MismatchError, ClusterError."""
    count = session.parallelism * 2
    workers: Sequence[Worker] = list(
        SparkExecutor(session).map(describe_worker, range(count), weights=[1 << 30] * count, what="start workers")
    )
    ours = platform.python_version_tuple()[:2]
    for worker in workers:
        if tuple(worker.python.split(".")[:2]) != ours:
            raise MismatchError(
                f"{worker.host}: its Python is {worker.python}, this one is {platform.python_version()}; both must be of one"
                " minor version",
                advice="set PYSPARK_PYTHON, or spark.pyspark.python, to one that is",
            )
