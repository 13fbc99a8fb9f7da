"""A launcher for the Python processes that Spark starts on this machine, which cuts their start time to a third.

Spark puts archives of its own Python code (``pyspark.zip``, ``py4j-*-src.zip``) first in ``sys.path`` of every process.  Code in
an archive has no cached bytecode: each process compiles PySpark again, about 0.6 s of CPU time, and a short query has four
processes.  Where PySpark is installed as a package, it has the same code as the archives.  So the interpreter is started through
a script that removes the archives from the path, and that starts Spark's daemon, from which workers are forked, with the workers'
modules imported (`engine.spark.worker_daemon`).

This is for sessions on one machine: the executors of a cluster have a Python, and perhaps a PySpark, of their own.
"""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

_SCRIPT = """#!/bin/sh
set -f
kept= IFS=:
for one in $PYTHONPATH; do
    case $one in */pyspark.zip|*/py4j-*-src.zip) ;; *) kept=$kept${kept:+:}$one ;; esac
done
unset IFS
"""
_DAEMONS = """case "$1 $2" in
"-m pyspark.daemon") shift 2; set -- -m waltzctl.engine.spark.worker_daemon "$@" ;;
"-m pyspark.sql.streaming.python_streaming_source_runner") shift 2; set -- -m waltzctl.engine.spark.runner_daemon "${0%/*}" ;;
esac
"""


def write_launcher(directory: Path, *, daemon: bool = True) -> Path:
    """Write a program to `directory` that starts this interpreter for Spark, for ``PYSPARK_PYTHON``; returns its path.

    With `daemon`, workers use our modules as they are installed here, not an archive that the session sends.  Returns this
    interpreter itself where PySpark is in an archive, or where there is no ``sh``.
    """
    import pyspark

    if ".zip" in pyspark.__file__ or sys.platform == "win32":
        return Path(sys.executable)
    launcher = directory / "python"
    launcher.write_text(
        f'{_SCRIPT}{_DAEMONS if daemon else ""}PYTHONPATH=$kept exec {shlex.quote(sys.executable)} "$@"\n'
    )
    launcher.chmod(0o700)
    return launcher
