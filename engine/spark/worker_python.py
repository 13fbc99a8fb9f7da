"""The Python that Spark starts on this machine, begun in a way that takes a third of the time.

Spark puts archives of its own Python code (``pyspark.zip``, ``py4j-*-src.zip``) in front of the path of every process that it
starts.  What comes from an archive has no bytecode: each process compiles PySpark anew, about 0.6 s of a processor, and a short
query has four of them.  Where PySpark is installed as a package, the archives hold the same code once more.  So the
interpreter is started through a script that leaves them out, and that begins Spark's daemon, from which workers are forked,
with the modules that workers need (`engine.spark.worker_daemon`).

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
_DAEMON = """[ "$1 $2" = "-m pyspark.daemon" ] && { shift 2; set -- -m waltzctl.engine.spark.worker_daemon "$@"; }
"""


def write_launcher(directory: Path, *, daemon: bool = True) -> Path:
    """A program in `directory` that starts this interpreter for Spark; what ``PYSPARK_PYTHON`` may name.

    With `daemon`, workers begin with our modules as they are installed here, not with code that travels with the session.
    It is this interpreter itself where PySpark comes from an archive or there is no ``sh``.
    """
    import pyspark

    if ".zip" in pyspark.__file__ or sys.platform == "win32":
        return Path(sys.executable)
    launcher = directory / "python"
    launcher.write_text(
        f'{_SCRIPT}{_DAEMON if daemon else ""}PYTHONPATH=$kept exec {shlex.quote(sys.executable)} "$@"\n'
    )
    launcher.chmod(0o700)
    return launcher
