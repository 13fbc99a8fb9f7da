"""Spark's daemon, with what its workers need imported before the first of them is forked.

Started as ``python -m waltzctl.engine.spark.worker_daemon MODULE`` in place of ``python -m pyspark.daemon MODULE``, where MODULE
is the program of the workers: one reads rows, others look up a data source, make it and plan a read.  A fork that finds its
modules there begins in milliseconds instead of half a second.  What is imported then is left alone by the garbage collector,
which each worker runs after every task: it would walk all of that each time, and copy its pages.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import sys

_PLANNING = "pyspark.sql.worker."
NEEDED = {
    "pyspark.worker": ("pandas", "waltzctl.engine.spark.batch_read"),
    f"{_PLANNING}create_data_source": ("waltzctl.engine.spark.data_source",),
    f"{_PLANNING}data_source_pushdown_filters": ("waltzctl.engine.spark.batch_read",),
    f"{_PLANNING}plan_data_source_read": ("waltzctl.engine.spark.batch_read",),
    f"{_PLANNING}write_into_data_source": ("waltzctl.engine.spark.writer",),
}
"""By the program of the workers: what it imports sooner or later when it reads Waltz.  None of it starts a thread."""


def import_needed(module: str) -> None:
    """Import what the workers of a program need, as far as it is installed: a worker that lacks it says so itself."""
    for name in (module, "pyarrow", *NEEDED.get(module, ())):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


if __name__ == "__main__":
    from pyspark.daemon import manager

    import_needed(sys.argv[1])
    gc.collect()
    gc.freeze()
    manager()
