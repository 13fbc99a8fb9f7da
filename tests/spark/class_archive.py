"""Spark's classes in an archive that Java maps into memory: every Java process of the tests starts in two thirds of the time.

``python -m tests.spark.class_archive FILE`` starts Spark once, reads, writes and streams a little, and leaves the classes that
it loaded in FILE.  One process of a test run makes the archive and the others wait for it; it stays in ``build/`` for the next
run, under a name that changes with Java and Spark.  Where a Java cannot make one (a runtime without an archive of its own
classes), the tests run without.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
KEPT = ROOT / "build" / "java"
SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
"""For Java processes that live for seconds: compiling for long runs, and looking at classes, is most of what they would do."""
VARIABLES = ("SPARK_SUBMIT_OPTS", "SPARK_DAEMON_JAVA_OPTS")
"""Where Spark takes options for a driver's Java, and for that of a master or worker."""


@functools.cache
def java_options() -> str:
    """Options for a Java process of Spark; the first call on a machine makes the archive."""
    archive = _archive()
    return f"{SHORT_LIVED} -XX:SharedArchiveFile={archive} -Xlog:disable" if archive is not None else SHORT_LIVED


def use() -> None:
    """Let the Java processes of this process, and of those that it starts, have the archive."""
    for name in VARIABLES:
        os.environ[name] = java_options()


def _archive() -> Path | None:
    import pyspark

    from waltzctl.engine.spark.java import own_java

    java = own_java()
    if java is None:
        return None
    version = subprocess.run([java, "-version"], capture_output=True, check=True).stderr
    made_of = [pyspark.__version__.encode(), pyspark.__file__.encode(), str(java.resolve()).encode(), version]
    KEPT.mkdir(parents=True, exist_ok=True)
    archive = KEPT / f"{hashlib.sha256(bytes(1).join(made_of)).hexdigest()[:16]}.jsa"
    with open(KEPT / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not archive.exists():
            _make(archive)
    return archive if archive.stat().st_size else None


def _make(archive: Path) -> None:
    """An archive, or an empty file where there can be none."""
    partial = archive.with_suffix(".partial")
    partial.unlink(missing_ok=True)
    options = f"{SHORT_LIVED} -XX:ArchiveClassesAtExit={partial} -Xlog:disable"
    environment = os.environ | {"SPARK_SUBMIT_OPTS": options, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "tests.spark.class_archive"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, check=False)
    if done.returncode or not partial.exists():
        partial.write_bytes(b"")
    partial.replace(archive)


def main() -> None:
    from waltzctl.engine.spark.data_source import WaltzDataSource
    from waltzctl.engine.spark.spark_session import SparkOptions
    from waltzctl.engine.spark.start import open_session

    source = str(ROOT / "fixtures" / "clean-released" / "storage")
    options = SparkOptions("local[1]", (("spark.sql.shuffle.partitions", "1"),))
    with tempfile.TemporaryDirectory() as place, open_session(options) as session:
        spark = session.spark
        spark.dataSource.register(WaltzDataSource)
        rows = spark.read.format("waltz").load(source)
        rows.groupBy("partition").count().orderBy("partition").collect()
        stream = spark.readStream.format("waltz").load(source).writeStream.format("parquet").trigger(availableNow=True)
        stream.option("checkpointLocation", f"{place}/checkpoint").start(f"{place}/table").awaitTermination()
        spark.read.parquet(f"{place}/table").where("finding is null").count()


if __name__ == "__main__":
    main()
