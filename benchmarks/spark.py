"""What Spark costs and brings on one machine, beside the local engine on the same files: ratios of one run.

    python benchmarks/spark.py [--quick] [--repeat 3] [--only NAME] [--directory DIR] [--kafka DIR] [--json]

Files are warm (in the page cache), which is the hardest case for Spark: nothing hides what it costs. Starts of sessions are
given apart. Sections: `engines` (verify of 4 GiB by the local engine and by Spark with one core and with two; one segment of
4 GiB instead of 64 small ones), `sizes` (verify of 256 MiB to 8 GiB: a straight line?), `memory` (with `sizes`: resident
memory of Spark's Python workers), `segments` (10 to 10,000: planning, and what each costs a worker), `queries` (records a
second of the data source; bytes that a filter leaves unread), `tables` (from the log to the tables records and transactions,
beside a source that has its batches ready: 4 GiB of 100 B and of 1 KiB, one replica and three, one core and two; a second run
with 1 % more; `--size`, `--record-size`, `--replicas` for others; with `--kafka DIR` also beside Kafka's source, on a broker
that is started for it: ``kafka_source.py`` says how its jars get into DIR). --quick divides every size by eight.
"""

from __future__ import annotations

import argparse
import itertools
import json
import shutil
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
from generated import GIB, make_storage, total_bytes, workplace
from kafka_source import Broker, broker

from waltzctl.engine.inspect.verify import VerifyOptions, VerifySummary, verify
from waltzctl.engine.spark.spark_executor import SparkExecutor
from waltzctl.engine.spark.spark_session import Session, SparkOptions
from waltzctl.engine.spark.start import open_session
from waltzctl.engine.task_executor import TaskExecutor

if TYPE_CHECKING:
    from waltzctl.engine.spark.batch_read import WaltzReader

TABLES = ("records", "transactions")
SECTIONS = ("engines", "sizes", "segments", "memory", "queries", "tables")


@dataclass
class Figures:
    """What was measured, by name, and the lines that are shown."""

    values: dict[str, float] = field(default_factory=dict)

    def add(self, name: str, value: float, shown: str) -> None:
        self.values[name] = value
        print(f"  {name:62} {shown}", flush=True)


def fastest(work: Callable[[], object], repeat: int) -> float:
    """Seconds of the fastest of several rounds; the first, which warms up, does not count."""
    work()
    times = []
    for _ in range(repeat):
        begun = time.perf_counter()
        work()
        times.append(time.perf_counter() - begun)
    return min(times)


def checked(paths: list[Path], *, threads: int | None = None, executor: TaskExecutor | None = None) -> VerifySummary:
    *findings, summary = verify(paths, VerifyOptions(threads=threads), executor=executor)
    assert isinstance(summary, VerifySummary)
    assert summary.status == "clean", findings
    return summary


@contextmanager
def session(master: str, figures: Figures, also: tuple[tuple[str, str], ...] = ()) -> Iterator[Session]:
    begun = time.perf_counter()
    conf = (("spark.driver.memory", "2g"), ("spark.sql.python.filterPushdown.enabled", "true"))
    with open_session(SparkOptions(master, conf + also)) as opened:
        seconds = time.perf_counter() - begun
        figures.add(f"start of a session, {master}", seconds, f"{seconds:.1f} s")
        yield opened


def python_workers() -> list[psutil.Process]:
    """Spark's Python workers that this process started, by way of Java."""
    found = []
    for process in psutil.Process().children(recursive=True):
        try:
            if "pyspark.worker" in " ".join(process.cmdline()):
                found.append(process)
        except psutil.Error:
            continue
    return found


def bytes_read(processes: list[psutil.Process]) -> int:
    """Bytes that processes have asked the system for, from disk or from its memory."""
    return sum(process.io_counters().read_chars for process in processes)


def engines(figures: Figures, place: Path, scale: int, repeat: int) -> None:
    print(f"verify of {4 // scale or 0.5} GiB, records of 1 KiB")
    size = 4 * GIB // scale
    many, one = place / "many", place / "one"
    make_storage(many, size=size, record_size=1024, segment_size=size // 64)
    make_storage(one, size=size, record_size=1024, segment_size=size * 2)
    read = total_bytes(many)
    seconds: dict[str, float] = {}

    def measure(name: str, work: Callable[[], object]) -> None:
        seconds[name] = min(fastest(work, repeat), seconds.get(name, float("inf")))
        figures.add(name, read / seconds[name], f"{seconds[name]:.2f} s  {read / seconds[name] / 1e9:.2f} GB/s")

    for threads in (1, 2):
        measure(f"local engine, {threads} thread(s)", partial(checked, [many], threads=threads))
    measure("local engine, 2 threads, one segment", partial(checked, [one], threads=2))
    for master in ("local[1]", "local[2]", "local[1]"):  # again, in a Java that is as warm as that of the others
        with session(master, figures) as opened:
            measure(f"Spark {master}", partial(checked, [many], executor=SparkExecutor(opened)))
            measure(f"Spark {master}, one segment", partial(checked, [one], executor=SparkExecutor(opened)))
    ratio(figures, "Spark local[2] over local[1]", seconds["Spark local[1]"] / seconds["Spark local[2]"], 1.6)
    local = min(seconds["local engine, 1 thread(s)"], seconds["local engine, 2 thread(s)"])
    ratio(figures, "Spark local[2] over the local engine", local / seconds["Spark local[2]"], 0.7)
    one_of_many = seconds["Spark local[2]"] / seconds["Spark local[2], one segment"]
    ratio(figures, "one segment over 64, Spark local[2]", one_of_many, None)


def ratio(figures: Figures, name: str, value: float, wanted: float | None) -> None:
    verdict = "" if wanted is None else f"  wanted {wanted}: {'met' if value >= wanted else 'MISSED'}"
    figures.add(name, value, f"{value:.2f}{verdict}")


def sizes(figures: Figures, place: Path, scale: int, repeat: int) -> None:
    print("verify against size, local[2], 64 MiB segments; memory of the Python workers after each")
    storages = [place / f"size-{number}" for number in range(4)]
    for storage, size in zip(storages, (GIB // 4, GIB, 3 * GIB, 4 * GIB), strict=True):
        make_storage(storage, size=size // scale, record_size=1024, segment_size=64 << 20)
    series = [storages[:1], storages[1:2], [storages[3]], [storages[1], storages[2], storages[3]]]
    points: list[tuple[float, float]] = []
    with session("local[2]", figures) as opened:
        for paths in series:
            read = sum(total_bytes(path) for path in paths)
            seconds = fastest(partial(checked, paths, executor=SparkExecutor(opened)), repeat)
            points.append((read, seconds))
            held = max((process.memory_info().rss for process in python_workers()), default=0)
            name = f"{read / GIB:.2f} GiB"
            figures.add(f"verify {name}", seconds, f"{seconds:.2f} s  {read / seconds / 1e9:.2f} GB/s")
            figures.add(f"largest Python worker after {name}", held, f"{held / (1 << 20):.0f} MiB")
    line = statistics.linear_regression([x for x, _ in points], [y for _, y in points])
    fit = statistics.correlation([x for x, _ in points], [y for _, y in points]) ** 2
    figures.add("straight line: fixed cost", line.intercept, f"{line.intercept:.2f} s")
    figures.add("straight line: rate", 1 / line.slope, f"{1 / line.slope / 1e9:.2f} GB/s")
    figures.add("straight line: R squared", fit, f"{fit:.4f}")


def record_reader(path: Path) -> WaltzReader:
    """What Spark asks for a plan, and its workers for rows."""
    from waltzctl.engine.spark.batch_read import reader
    from waltzctl.engine.spark.view_schemas import pick, spark_schema

    return reader({"path": str(path)}, spark_schema(pick("records", None)))


def planned(path: Path) -> int:
    """Plan a read as Spark has it planned; the number of splits."""
    return len(record_reader(path).partitions())


def rows_read(path: Path) -> int:
    """Read as Spark's workers do, here and without Spark; the number of rows."""
    made = record_reader(path)
    return sum(len(batch) for packet in made.partitions() for batch in made.read(packet))


def segments(figures: Figures, place: Path, scale: int, repeat: int) -> None:
    print("number of segments, 640 records of 100 B in each: planning on the driver, and the whole")
    counts = [10, 100, 1000, 10_000 // scale]
    for count in counts:
        make_storage(place / f"segments-{count}", size=count * 64_000, record_size=100, segment_size=64_000)
    with session("local[2]", figures) as opened:
        for count in counts:
            path = place / f"segments-{count}"
            plan = fastest(partial(planned, path), repeat)
            whole = fastest(partial(checked, [path], executor=SparkExecutor(opened)), repeat)
            here = fastest(partial(checked, [path], threads=2), repeat)
            figures.add(f"plan a read of {count} segments", plan, f"{plan * 1000:.1f} ms")
            read = fastest(partial(rows_read, path), repeat) - plan
            figures.add(
                f"read {count} segments, Python only, default columns", read, f"{read / count * 1e6:.0f} us a segment"
            )
            figures.add(f"verify {count} segments, Spark", whole, f"{whole:.2f} s")
            figures.add(f"verify {count} segments, local engine", here, f"{here:.2f} s")


def queries(figures: Figures, place: Path, scale: int, repeat: int) -> None:
    print("queries on records of 100 B")
    storage, other = place / "queries", place / "other"
    records = make_storage(storage, size=2 * GIB // scale, record_size=100, segment_size=64 << 20)
    make_storage(other, size=GIB // scale, record_size=100, segment_size=64 << 20)
    (other / "0").rename(storage / "1")  # headers say partition 0: findings of another check, no hindrance to reading
    total = records + records // 2
    with session("local[2]", figures) as opened:
        from waltzctl.engine.spark.data_source import WaltzDataSource

        spark = opened.spark
        spark.dataSource.register(WaltzDataSource)

        def count(schema: str | None) -> dict[int, int]:
            """By partition.  A frame of its own each time: Spark keeps what an earlier run of a frame has shuffled."""
            read = spark.read.format("waltz")
            frame = (read if schema is None else read.schema(schema)).load(str(storage))
            return {row["partition"]: row["count"] for row in frame.groupBy("partition").count().collect()}

        for name, schema in (("partition only", "partition int"), ("default columns", None)):
            assert sum(count(schema).values()) >= total
            seconds = fastest(partial(count, schema), repeat)
            rate = total / seconds
            shown = f"{seconds:.2f} s  {rate / 1e6:.1f} million records/s"
            if name == "partition only":
                shown += f"  wanted 5: {'met' if rate >= 5e6 else 'MISSED'}"
            figures.add(f"select partition, count(*), {name}", rate, shown)

        def filtered() -> int:
            frame = spark.read.format("waltz").option("pushdown", "true").schema("partition int").load(str(storage))
            return int(frame.where("partition = 1").count())

        assert 0 < filtered() < total
        before = bytes_read(python_workers())
        filtered()
        seen = bytes_read(python_workers()) - before
        wanted = sum(file.stat().st_size for file in (storage / "1").iterdir())
        everything = total_bytes(storage)
        figures.add(
            "bytes read for where partition = 1", seen, f"{seen:,} of {everything:,}; its own files have {wanted:,}"
        )


def log_to_tables(
    figures: Figures,
    place: Path,
    size: int,
    repeat: int,
    records: tuple[int, ...],
    copies: tuple[int, ...],
    tables: tuple[str, ...],
    kafka: Broker | None,
) -> None:
    from tables import make_log, measure, register

    print(f"from the log to tables: {size / GIB:.2g} GiB for each replica; medians of {repeat}")
    cases = itertools.product(records, copies, ("local[1]", "local[2]"))
    for number, (record_size, replicas, master) in enumerate(cases):
        log = fresh = make_log(place / f"log-{number}", size, record_size, replicas)
        warm = make_log(place / f"warm-{number}", size // 8, record_size, replicas)
        ours: dict[str, float] = {}
        case = f"{record_size} B, {replicas} replica{'s' * (replicas > 1)}, {master}"
        with session(master, figures, kafka.settings if kafka else ()) as opened:
            register(opened.spark)
            for what in tables:
                found = measure(opened.spark, log, warm, what, place, repeat, largest_worker)
                log = found.log
                name = f"{what}, {case}"
                rate = found.rows / found.first
                figures.add(name, rate, f"{found.first:.1f} s  {rate / 1e6:.2f} million rows/s")
                ratio(figures, f"{name}: over ready-made", found.ready / found.first, 0.9)
                ratio(figures, f"{name}: over ready-made as a stream", found.ready_stream / found.first, 0.9)
                ratio(figures, f"{name}: over 1 % more", found.first / found.second, 10)
                figures.add(f"{name}: worker", found.memory, f"{found.memory / (1 << 20):.0f} MiB")
                # the ready-made one that is measured last has a row for each record, as Kafka's source has
                ours |= {what: rate, "ready-made": found.rows / found.ready}
            for way, rate in kafka.measure(opened.spark, fresh, place, repeat).items() if kafka else ():
                figures.add(f"{way}, {case}", rate, f"{rate / 1e6:.2f} million rows/s")
                for what, other in ours.items():
                    ratio(figures, f"{what}, {case}: over {way}", other / rate, None)
        shutil.rmtree(place / f"log-{number}")
        shutil.rmtree(place / f"warm-{number}")


def largest_worker() -> int:
    return max((process.memory_info().rss for process in python_workers()), default=0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="an eighth of every size")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--only", choices=SECTIONS)
    parser.add_argument("--size", type=float, default=4.0, help="of a replica in the section tables, GiB")
    parser.add_argument(
        "--record-size", type=int, action="append", help="in the section tables: 100, 1024 unless given"
    )
    parser.add_argument("--replicas", type=int, action="append", help="in the section tables: 1, 3 unless given")
    parser.add_argument(
        "--table", choices=TABLES, action="append", help="in the section tables: which of them; both unless given"
    )
    parser.add_argument("--directory", type=Path)
    parser.add_argument(
        "--kafka", type=Path, metavar="DIR", help="in the section tables: jars of its source and broker"
    )
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    scale = 8 if arguments.quick else 1
    figures = Figures()
    sections = {"engines": engines, "sizes": sizes, "segments": segments, "queries": queries}
    for name, section in sections.items():
        if arguments.only in (None, name) or (arguments.only == "memory" and name == "sizes"):
            with workplace(arguments.directory, 10 * GIB // scale) as place:
                section(figures, place, scale, arguments.repeat)
    if arguments.only in (None, "tables"):
        size = int(arguments.size * GIB) // scale
        needed = (9 if arguments.kafka else 7) * size
        with workplace(arguments.directory, needed) as place, broker(arguments.kafka, place) as kafka:
            records, copies = tuple(arguments.record_size or (100, 1024)), tuple(arguments.replicas or (1, 3))
            tables = tuple(arguments.table or TABLES)
            log_to_tables(figures, place, size, arguments.repeat, records, copies, tables, kafka)
    if arguments.json:
        print(json.dumps(figures.values, indent=1))


if __name__ == "__main__":
    main()
