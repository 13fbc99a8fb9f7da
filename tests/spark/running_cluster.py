"""A standalone cluster on the loopback: a master, two workers with one core each."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

from tests.spark import class_archive
from waltzctl.engine.spark.java import prepare_java


class Talking:
    """A process, and what it has said so far."""

    def __init__(self, arguments: list[str], directory: Path, environment: dict[str, str]) -> None:
        self.lines: list[str] = []
        self._said = threading.Condition()
        self.process = subprocess.Popen(
            arguments,
            cwd=directory, env=environment, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._said:
                self.lines.append(line)
                self._said.notify_all()
        with self._said:
            self.lines.append("")  # it said its last
            self._said.notify_all()

    def wait_for(self, pattern: str) -> str:
        """The first group of the first line that matches."""
        with self._said:
            while True:
                for line in self.lines:
                    if found := re.search(pattern, line):
                        return found[1]
                assert "" not in self.lines, "".join(self.lines)
                self._said.wait()

    def end(self, given: str) -> int:
        """Say something to it, and wait for its exit status."""
        assert self.process.stdin is not None
        self.process.stdin.write(given)
        self.process.stdin.close()
        self._reader.join()
        return self.process.wait()

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()
        self._reader.join()
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            stream.close()


@dataclass(frozen=True)
class Cluster:
    """`workers`: their directories, in which each has one for every executor that it started."""

    master: str
    workers: tuple[Path, Path]

    def executors(self, worker: Path) -> list[Path]:
        """What an executor of the worker has said on stderr, a file each."""
        return sorted(worker.glob("app-*/*/stderr"))


@contextlib.contextmanager
def running_cluster(directory: Path) -> Iterator[Cluster]:
    """A cluster that ends with the block, its executors with it.

    Master and workers talk over sockets, as ever, and are in one Java process: three of them took as long to start as
    everything else that is done with them.
    """
    from pyspark.java_gateway import launch_gateway

    prepare_java()
    inherited = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "SPARK_REMOTE")}
    inherited |= {"SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
    inherited["JAVA_TOOL_OPTIONS"] = class_archive.java_options()  # which the executors of a worker inherit
    with (directory / "log").open("wb") as log, patch.dict(os.environ, inherited, clear=True):
        gateway: Any = launch_gateway(popen_kwargs={"stdout": log, "stderr": log})  # type: ignore[no-untyped-call]
    try:
        jvm = gateway.jvm
        conf, deploy, here = jvm.SparkConf(False), jvm.org.apache.spark.deploy, "127.0.0.1"
        conf.set("spark.master.rest.enabled", "false")
        url = deploy.master.Master.startRpcEnvAndEndpoint(here, 0, 0, conf)._1().address().toSparkURL()
        masters = gateway.new_array(jvm.java.lang.String, 1)
        masters[0] = url
        option = jvm.scala.Option
        workers = (directory / "one", directory / "two")
        for number, place in enumerate(workers):
            # port, port of its pages, cores, megabytes
            deploy.worker.Worker.startRpcEnvAndEndpoint(
                here, 0, 0, 1, 1024, masters, str(place), option.apply(number), conf, option.empty()
            )
        yield Cluster(url, workers)
    finally:
        gateway.shutdown()
        gateway.proc.kill()
        gateway.proc.wait()
        gateway.proc.stdin.close()
