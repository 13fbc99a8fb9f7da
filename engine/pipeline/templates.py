"""The files of a new project, as `pipeline init` writes them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from waltzctl.engine.pipeline.project import COLUMN_CHANGES, uri_of
from waltzctl.engine.pipeline.table_formats import defaults_for, installed_spark

SPEC = """\
# The pipeline, for spark-pipelines and waltzctl pipeline run.  Settings that Spark takes at its start only are in conf/.
name: {name}
storage: {storage}
libraries:
  - glob:
      include: transformations/**
configuration:
  # The replicas, one a line: a storage directory, a URL (s3://bucket/node), or waltz://HOST:ADMINPORT.
  waltz.sources: |
{sources}
  # The cluster's metadata, zk://HOST:PORT,.../ROOT or an embedded store's file: transactions are then taken as soon as a quorum
  # of the replicas holds them.  Without, up to where the last session of each partition began.
  waltz.metadata: {metadata}
  # Of the tables: parquet, delta or iceberg.
  waltz.format: {format}
  # Options of format("waltz"), one NAME=VALUE a line: partitions=0-3, maxRecordsPerTrigger=1000000, plaintext=true, ...
  waltz.options: ""
  # What is tried again after this has most likely failed for good: a log that was rewritten, a directory that is gone.
  spark.sql.pipelines.execution.maxFlowRetryAttempts: "1"
  spark.sql.shuffle.partitions: "8"
"""
DEFAULTS = """\
# What Spark must know at its start.  waltzctl pipeline run reads this file; for a plain spark-pipelines run:
#   SPARK_CONF_DIR=$PWD/conf PYSPARK_PYTHON=PYTHON-WITH-WALTZCTL spark-pipelines run
# Tables lie in this directory; without a catalog on disk the next run would not know them.
spark.sql.warehouse.dir {directory}
spark.sql.catalogImplementation hive
spark.hadoop.javax.jdo.option.ConnectionURL jdbc:derby:;databaseName={storage}/metastore;create=true
spark.driver.extraJavaOptions "-Dderby.system.home={storage}"
# A full refresh after a change of the decoder's SCHEMA gives a table other columns, which Hive's catalog refuses by itself.
{column_changes}
spark.ui.enabled false
"""
DECODER = '''\
"""What the transactions of this log say.  Change it; then: waltzctl pipeline run DIR --full-refresh transactions."""

import json

SCHEMA = "key STRING, value STRING"
"""The columns that decode() makes, as Spark writes them."""
KEY = ("key",)
"""Those by which the table state knows what was changed."""


def decode(header, data):
    """One transaction: its header (int) and its data (bytes).

    Returns the columns of SCHEMA by name, or None for one that says nothing.  What raises is quarantined.
    """
    said = json.loads(data)
    return {"key": str(said["key"]), "value": json.dumps(said.get("value"), sort_keys=True)}
'''
_TABLE = """\
from pyspark import pipelines as dp
from pyspark.sql import SparkSession
from waltzctl.pipeline import project

spark = SparkSession.active()
waltz = project(__file__)

"""
RECORDS = (
    _TABLE
    + """
@dp.table(format=waltz.format, comment="Every record of every replica, once; a row for each place that is damaged or missing")
def records():
    return waltz.records(spark)


@dp.table(format=waltz.format, comment="Records counted batch by batch, for completeness and activity")
def tallies():
    return waltz.tallies(spark)


@dp.table(format=waltz.format, comment="What is wrong where, and what to do about it")
def quarantine():
    return waltz.quarantine(spark)
"""
)
TRANSACTIONS = (
    _TABLE
    + """
@dp.table(format=waltz.format, comment="What the replicas agree on, up to the mark that is known as committed, decoded")
def transactions():
    return waltz.transactions(spark)
"""
)
STATE = (
    _TABLE
    + """# The last value for each key: the decoder's key, partition, transaction_id, the decoder's other columns.
waltz.define_state(spark)


@dp.table(format=waltz.format, comment="Every value of each key; order by transaction_id")
def state_history():
    return waltz.changes(spark)
"""
)
REPORTS = (
    _TABLE
    + """
@dp.materialized_view(format=waltz.format, comment="How much of each partition each replica has")
def completeness():
    return waltz.completeness(spark)


@dp.materialized_view(format=waltz.format, comment="How much each segment, client and header is, and how fast it came")
def activity():
    return waltz.activity(spark)
"""
)
TESTS = '''\
"""Run with: python -m pytest tests"""

from pathlib import Path

import pytest

from waltzctl.engine.pipeline.decoding import load_decoder

DECODER = load_decoder(Path(__file__).parent.parent / "decoder.py")


def test_the_key_and_the_value_of_a_transaction():
    assert DECODER.decode(0, b'{"key": 7, "value": {"b": 1, "a": 2}}') == {"key": "7", "value": '{"a": 2, "b": 1}'}


@pytest.mark.parametrize("data", [b"", b"no JSON", b"[]", b"{}"])
def test_what_it_refuses(data):
    with pytest.raises(Exception):
        DECODER.decode(0, data)
'''
README = """\
# {name}

A pipeline over the replicas of a Waltz cluster, for Spark Declarative Pipelines (PySpark 4.1 or later).

    waltzctl pipeline run {directory}
    waltzctl pipeline run {directory} --require complete

or, in this directory, with the Python that has waltzctl:

    SPARK_CONF_DIR=$PWD/conf PYSPARK_PYTHON=$(which python) spark-pipelines run

| table | |
|---|---|
| `records` | every record of every replica, once |
| `quarantine` | what is wrong where, and what to do |
| `transactions` | what the replicas agree on, up to the mark that is known as committed, decoded by `decoder.py` |
| `state`, `state_history` | the last value for each key, and all of them |
| `completeness`, `activity` | how much is there, how fast it came |

Each lies in a directory of its own name; checkpoints and the catalog lie in `storage/`. Read a table with
`spark.read.parquet("{directory}/records")`: files that a killed run left behind are in no table, and Spark passes them over.

`spark-pipeline.yml` names the replicas and the format. One that is added is read from its beginning at the next run. What a
table holds is not changed by a later run; to begin anew, `--full-refresh TABLE` (what is made of it follows) or
`--full-refresh-all`. Paths in `spark-pipeline.yml`, in `conf/` and in the catalog are absolute: in a project that is moved or
copied change them, and remove `storage/`; the next run makes its tables anew.

`python -m pytest tests` tries the decoder.
"""
IGNORE = "".join(
    f"/{one}/\n"
    for one in (
        "storage", "records", "quarantine", "transactions", "state", "state_history", "tallies", "completeness", "activity",
    )
) + "derby.log\n__pycache__/\n"  # fmt: skip


def project_files(
    directory: Path, sources: Sequence[str], table_format: str, decoder: str | None, metadata: str | None
) -> dict[str, str]:
    """The text of each file, by its name below `directory` (absolute).  `decoder`: the text of another ``decoder.py``."""
    storage = directory / "storage"
    made = {
        "spark-pipeline.yml": SPEC.format(
            name=json.dumps(directory.name or "waltz"),
            storage=json.dumps(f"{uri_of(directory)}/storage", ensure_ascii=False),
            sources="\n".join(f"    {one}" for one in sources),
            metadata=json.dumps(metadata or ""),
            format=table_format,
        ),
        "conf/spark-defaults.conf": DEFAULTS.format(
            directory=uri_of(directory), storage=storage, column_changes=" ".join(COLUMN_CHANGES)
        )
        + defaults_for(table_format, installed_spark(), uri_of(directory)),
        "decoder.py": DECODER if decoder is None else decoder,
        "transformations/records.py": RECORDS,
        "transformations/transactions.py": TRANSACTIONS,
        "transformations/state.py": STATE,
        "transformations/reports.py": REPORTS,
        "README.md": README.format(name=directory.name, directory=directory),
        ".gitignore": IGNORE,
    }
    if decoder is None:  # the tests are for the sample decoder
        made["tests/test_decoder.py"] = TESTS
    return made
