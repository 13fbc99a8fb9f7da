"""The Spark source over a cluster that runs: readers as Spark calls them, without Spark around them."""

from __future__ import annotations

import json
import signal
from typing import Any

import pytest

pyspark = pytest.importorskip("pyspark")

from pyspark.sql.types import StructType  # noqa: E402

from tests.cluster.processes import ClusterOfProcesses  # noqa: E402
from tests.interop.processes import wait_until  # noqa: E402
from waltzctl.engine.errors import InvalidRequestError  # noqa: E402
from waltzctl.engine.spark.cluster_history import ClusterReader, cluster_stream  # noqa: E402
from waltzctl.engine.spark.data_source import WaltzDataSource  # noqa: E402
from waltzctl.engine.spark.view_schemas import pick, spark_schema  # noqa: E402

COLUMNS = ("partition", "transaction_id", "header", "data", "finding")


def schema() -> StructType:
    return spark_schema(pick("records", COLUMNS, data=True))


def options(made: ClusterOfProcesses, **more: str) -> dict[str, str]:
    return {"metadata": made.metadata, "plaintext": "true", "timeout": "60s", **more}


def rows(reader: Any, parts: Any) -> list[tuple[int, int, bytes]]:
    found = [row for part in parts for batch in reader.read(part) for row in batch.to_pylist()]
    assert {row["finding"] for row in found} <= {None}
    return [(row["partition"], row["transaction_id"], row["data"]) for row in found]


def tail(made: ClusterOfProcesses, partition: int) -> list[tuple[int, int, bytes]]:
    shown = made.log("tail", "--partition", partition, "--data", "hex", "--format", "ndjson").objects
    return [(partition, one["transaction_id"], bytes.fromhex(one["data_hex"])) for one in shown]


@pytest.mark.turns(10)
def test_a_batch_is_all_that_is_committed(made: ClusterOfProcesses) -> None:
    for partition in (0, 3):
        made.log("append", "--partition", partition, given="".join(f"{partition}-{n}\n" for n in range(300)))
    reader = WaltzDataSource(options(made)).reader(schema())
    assert isinstance(reader, ClusterReader)
    found = rows(reader, reader.partitions())
    for partition in range(4):
        assert [row for row in found if row[0] == partition] == tail(made, partition)
    some = ClusterReader(options(made, partitions="3", minTransactionId="5", maxTransactionId="7"), schema())
    assert [row[:2] for row in rows(some, some.partitions())] == [(3, 5), (3, 6), (3, 7)]


@pytest.mark.turns(10)
def test_options_that_cannot_be_meant_are_refused(made: ClusterOfProcesses) -> None:
    for more, message in (
        ({"path": "/data"}, "without a path"),
        ({"nonsense": "1"}, "no option nonsense"),
        ({"view": "segments"}, "records only"),
        ({"metadata": "http://x"}, "not understood"),
        ({"failOnDataLoss": "perhaps"}, "true or false"),
    ):
        with pytest.raises(InvalidRequestError, match=message):
            ClusterReader(options(made, **more), schema())
    with pytest.raises(InvalidRequestError, match="no option nonsense"):
        cluster_stream(options(made, nonsense="1"), schema())
    ClusterReader(options(made, partitions="3"), schema()).partitions()
    with pytest.raises(InvalidRequestError, match="partition 4 does not exist: they are 0 to 3"):
        ClusterReader(options(made, partitions="3-4"), schema()).partitions()


@pytest.mark.turns(10)
def test_a_stream_goes_on_where_it_stopped_through_the_death_of_a_server(made: ClusterOfProcesses) -> None:
    asked = options(made, partitions="2", startingtransactions="latest")  # Spark hands keys over in lower case
    stream = cluster_stream(asked, schema())
    start = json.loads(json.dumps(stream.initialOffset()))
    made.log("append", "--partition", 2, given="a\nb\n")
    end = json.loads(json.dumps(stream.latestOffset()))
    first = rows(stream, stream.partitions(start, end))
    assert [row[2] for row in first] == [b"a", b"b"]
    owner = next(
        server["server_id"]
        for server in made.state()["servers"]
        if 2 in [one["partition"] for one in server["partitions"]]
    )
    number = next(number for number in made.servers if made.ready(f"s{number}")["server_id"] == owner)
    made.servers[number].process.send_signal(signal.SIGKILL)
    made.servers[number].process.wait()
    assert made.log("append", "--partition", 2, "--timeout", "60s", given="c\nd\n").status == 0
    again = cluster_stream(asked, schema())  # a new one, as after a restart of the query
    later = json.loads(json.dumps(again.latestOffset()))
    second = rows(again, again.partitions(end, later))
    assert [row[2] for row in second] == [b"c", b"d"]
    assert second[0][1] == first[-1][1] + 1
    assert rows(again, again.partitions(start, end)) == first  # what is asked for again is the same
    wait_until(lambda: len(made.state()["servers"]) == 1, "the dead server is gone")
    made.start_servers(number)
    made.settle()
