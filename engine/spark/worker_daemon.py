"""Spark's Python daemon, with the modules that its workers need imported before the first worker is forked.

Started as ``python -m waltzctl.engine.spark.worker_daemon MODULE`` in place of ``python -m pyspark.daemon MODULE``, where
MODULE is the program of the workers: one reads rows, others look up a data source, create it and plan a read.  A forked worker
that has its modules starts in milliseconds instead of half a second.  The imported objects are frozen (``gc.freeze``): each
worker runs the garbage collector after every task, which would visit all of them, and so copy the memory pages that they share
with the daemon.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import sys

_PLANNING = "pyspark.sql.worker."
STREAM_RUNNER = "pyspark.sql.streaming.python_streaming_source_runner"
"""The program that plans a stream (`engine.spark.runner_daemon`)."""
NEEDED = {
    "pyspark.worker": ("pandas", "waltzctl.engine.spark.batch_read"),
    f"{_PLANNING}create_data_source": ("waltzctl.engine.spark.data_source",),
    f"{_PLANNING}data_source_pushdown_filters": ("waltzctl.engine.spark.batch_read",),
    f"{_PLANNING}plan_data_source_read": ("waltzctl.engine.spark.batch_read",),
    f"{_PLANNING}write_into_data_source": ("waltzctl.engine.spark.writer",),
    STREAM_RUNNER: ("waltzctl.engine.pipeline.agreement_stream", "waltzctl.engine.pipeline.replica_stream"),
}
"""The modules that each program of the workers imports anyway when it reads Waltz.  None of them starts a thread."""


def import_needed(module: str) -> None:
    """Import the modules that the workers of a program need, if they are installed; a worker reports missing ones itself."""
    for name in (module, "pyarrow", *NEEDED.get(module, ())):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


if __name__ == "__main__":
    from pyspark.daemon import manager

    import_needed(sys.argv[1])
    gc.collect()
    gc.freeze()
    manager()
