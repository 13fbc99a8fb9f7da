"""Kafka's Spark source beside ours: the same records in a topic, read into the same table; with section `tables` of ``spark.py``.

    python benchmarks/kafka_source.py DIR          jars into DIR/broker and DIR/source, by mvn; once
    python benchmarks/spark.py --only tables --kafka DIR

One broker (KRaft, its controller in the same process) runs on the loopback for the whole section.  A topic has one partition,
as our storage has, and as many records with the same data as a replica; what belongs to a record besides takes fewer bytes.
They are sent in large batches, to be there soon; that is not timed.  The source is measured last in a session,
when Java is warm: as it comes, where one partition is one task and a poll brings 500 records, and *tuned*, with as many tasks
as the ready-made source has and large polls.  It gives one row for each record, with key, topic, partition, offset and
timestamp; so what it stands beside is `transactions`, while `records` has a row for each replica, and more columns.  The broker
has no processor of its own: it takes part of Spark's.

The source is of a version of its own, since it is not to be had for every PySpark everywhere; that of 4.2.0 works with 4.3.0.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from log_server import answers, started
from running_nodes import reserved_ports
from tables import Log, tasks_for, written

from waltzctl.engine.spark.java import own_java, packaged_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_NEEDED = {
    "broker": ("org.apache.kafka", "kafka_2.13", "4.3.1", ()),
    # Of what it depends on, Spark has the rest itself, in newer versions.
    "source": (
        "org.apache.spark", "spark-sql-kafka-0-10_2.13", "4.2.0",
        ("spark-sql-kafka-0-10_2.13", "spark-token-provider-kafka-0-10_2.13", "kafka-clients", "commons-pool2"),
    ),
}  # fmt: skip
"""Group, artifact and version by directory, and the only jars that are wanted.  Apart: they have different ``kafka-clients``."""
_POM = """<project xmlns="http://maven.apache.org/POM/4.0.0">
<modelVersion>4.0.0</modelVersion><groupId>benchmark</groupId><artifactId>{}</artifactId><version>1</version><packaging>pom</packaging>
<dependencies><dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version></dependency></dependencies>
</project>
"""
_PROPERTIES = """process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
controller.listener.names=CONTROLLER
log.dirs={directory}
num.partitions=1
"""
_CLUSTER = "MkU3OEVBNTcwNTJENDM2Qg"
_LARGE_BATCHES = {"kafka.batch.size": "1000000", "kafka.linger.ms": "50"}
_LARGE_POLLS = {"kafka.max.poll.records": "20000", "kafka.max.partition.fetch.bytes": str(16 << 20)}


@dataclass(frozen=True)
class Broker:
    """A broker that runs.  `jars`: of the source; `topics`: those that are loaded, with the number of their records."""

    address: str
    jars: tuple[Path, ...]
    topics: dict[str, int] = field(default_factory=dict)

    @property
    def settings(self) -> tuple[tuple[str, str], ...]:
        """What a session needs."""
        return (("spark.jars", ",".join(map(str, self.jars))),)

    def load(self, spark: SparkSession, log: Log) -> str:
        """The topic with the records of a replica; it is made by the first of them."""
        from waltzctl.engine.spark.data_source import WaltzDataSource

        topic = f"records-{log.record_size}"
        if topic not in self.topics:
            spark.dataSource.register(WaltzDataSource)
            read = spark.read.format("waltz").schema("transaction_id bigint, data binary").load(str(log.replicas[0]))
            value = read.where(f"transaction_id < {log.records}").select(read["data"].alias("value"))
            options = {"kafka.bootstrap.servers": self.address, "topic": topic, **_LARGE_BATCHES}
            value.write.format("kafka").options(**options).save()
            self.topics[topic] = log.records
        return topic

    def measure(self, spark: SparkSession, log: Log, place: Path, repeat: int) -> dict[str, float]:
        """Rows a second of a run from the topic to the table: as it comes and tuned; medians."""
        topic = self.load(spark, log)
        records = self.topics[topic]
        tuned = {"minPartitions": str(tasks_for(records, log.record_size)), **_LARGE_POLLS}
        options = {"kafka.bootstrap.servers": self.address, "subscribe": topic, "startingOffsets": "earliest"}
        ways = {"Kafka's source": options, "Kafka's source, tuned": options | tuned}
        seconds = {
            way: [_run(spark, given, place / "kafka", records) for _ in range(repeat)] for way, given in ways.items()
        }
        return {way: records / statistics.median(found) for way, found in seconds.items()}


def _run(spark: SparkSession, options: Mapping[str, str], target: Path, records: int) -> float:
    begun = time.perf_counter()
    written(spark.readStream.format("kafka").options(**options).load(), target)
    seconds = time.perf_counter() - begun
    assert spark.read.parquet(str(target / "table")).count() == records
    shutil.rmtree(target)
    return seconds


@contextmanager
def broker(jars: Path | None, place: Path) -> Iterator[Broker | None]:
    """A broker until the end of the block, or None and a sentence that says why.  `place`: for its data."""
    with ExitStack() as stack:
        try:
            found = stack.enter_context(_running(jars, place))
        except (SystemExit, OSError) as error:
            print(f"Kafka's source is not measured: {error}")
            found = None
        yield found


@contextmanager
def _running(jars: Path | None, place: Path) -> Iterator[Broker]:
    if jars is None:
        raise SystemExit("--kafka DIR names its jars and those of a broker (python benchmarks/kafka_source.py DIR)")
    java = own_java() or packaged_java()
    source = tuple(sorted((jars / "source").resolve().glob("*.jar")))
    if java is None or not source or not any((jars / "broker").glob("*.jar")):
        raise SystemExit(f"no Java, or not the jars in {jars} (python benchmarks/kafka_source.py {jars})")
    port, controller = reserved_ports(2)
    properties = place / "server.properties"
    properties.write_text(_PROPERTIES.format(port=port, controller=controller, directory=place / "kafka-data"))
    command = [str(java), "-Xmx1g", "-cp", f"{jars / 'broker'}/*"]
    form = ["kafka.tools.StorageTool", "format", "-t", _CLUSTER, "-c", str(properties)]
    formatted = subprocess.run(command + form, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if formatted.returncode != 0:
        raise SystemExit(f"the broker's storage cannot be formatted:\n{formatted.stdout[-3000:]}")
    # Else it would end at once, and the broker would stay.
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))
    try:
        with started(place, "broker", [*command, "kafka.Kafka", properties], lambda: answers(port)):
            yield Broker(f"127.0.0.1:{port}", source)
    finally:
        signal.signal(signal.SIGTERM, before)


def fetch(directory: Path) -> None:
    """The jars of broker and source, with all that they need, by mvn."""
    for name, (group, artifact, version, only) in _NEEDED.items():
        place = directory / name
        place.mkdir(parents=True, exist_ok=True)
        pom = place / "pom.xml"
        pom.write_text(_POM.format(name, group, artifact, version))
        command = [
            "mvn",
            "-B",
            "-q",
            "-f",
            str(pom),
            "dependency:copy-dependencies",
            f"-DoutputDirectory={place.resolve()}",
        ]
        subprocess.run([*command, *([f"-DincludeArtifactIds={','.join(only)}"] if only else [])], check=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path, metavar="DIR")
    fetch(parser.parse_args().directory)
