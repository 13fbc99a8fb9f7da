"""The one call for a session, in a program that nobody prepared anything for: no interpreter on the PATH, no variable set."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from waltzctl.engine.spark.view_schemas import pick

PROGRAM = """
import sys
from waltzctl import spark_session

spark = spark_session("local[1]", {"spark.sql.shuffle.partitions": "1"})
print("read", spark.read.format("waltz").load("file:" + sys.argv[1]).where("finding is null").count())
spark.sql(f"CREATE TEMPORARY VIEW records USING waltz OPTIONS (path '{sys.argv[1]}', partitions '0')")
print("sql", spark.sql("SELECT count(*) FROM records").collect()[0][0])
"""


@pytest.mark.xdist_group("spark")
def test_a_program_reads_a_storage_after_one_call(tmp_path: Path) -> None:
    storage = Path("fixtures/clean-released/storage").resolve()
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYSPARK", "SPARK", "PYTHONPATH", "JAVA_HOME"))
    } | {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(storage)],
        cwd=tmp_path, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    lines = dict(line.split() for line in ran.stdout.splitlines())
    assert ran.returncode == 0, ran.stderr[-2000:]
    assert int(lines["read"]) > int(lines["sql"]) > 0


def test_columns_are_named_in_any_case() -> None:
    assert [one.name for one in pick("records", ["Partition", "TRANSACTION_ID"])] == ["partition", "transaction_id"]
