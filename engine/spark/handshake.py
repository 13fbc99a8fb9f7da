"""A round over the workers of a new session: each says which Python, NumPy and Waltz code it has.

So a cluster that cannot do the work says so before a job begins, and the first job finds every worker started.
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
    """What a worker says of itself."""

    host: str
    python: str
    numpy: str
    code: str


def describe_worker(task: int) -> Worker:
    """What this process has; also loads what the work needs."""
    import numpy as np

    from waltzctl.engine.inspect import segment_checks
    from waltzctl.engine.scan import kernels

    assert segment_checks is not None
    kernels.choose(1 << 30)  # the compiled kernel, while nobody waits for it
    return Worker(platform.node(), platform.python_version(), np.__version__, shipping.__file__)


def check_workers(session: Session) -> None:
    """Have every worker start, and tell what it has.  Raises MismatchError, ClusterError."""
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
