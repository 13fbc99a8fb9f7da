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

import pyspark

from tests.spark import class_archive
from waltzctl.engine.spark.java import prepare_java

HOME = Path(pyspark.__file__).parent


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


def daemon(arguments: list[str], directory: Path) -> Talking:
    """A Java process of Spark."""
    environment = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "SPARK_REMOTE")}
    environment |= {"SPARK_HOME": str(HOME), "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
    environment["JAVA_TOOL_OPTIONS"] = class_archive.java_options()  # which the executors of a worker inherit
    directory.mkdir(parents=True)
    return Talking(arguments, directory, environment)


@dataclass(frozen=True)
class Cluster:
    master: str
    workers: tuple[Talking, Talking]


@contextlib.contextmanager
def running_cluster(directory: Path) -> Iterator[Cluster]:
    """A cluster that ends with the block, its executors with it."""
    prepare_java()
    launcher = str(HOME / "bin" / "spark-class")
    deploy = "org.apache.spark.deploy"
    with contextlib.ExitStack() as stack:
        options = ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
        master = daemon([launcher, f"{deploy}.master.Master", *options], directory / "master")
        stack.callback(master.stop)
        url = master.wait_for(r"Starting Spark master at (spark://\S+)")
        workers = []
        for name in ("one", "two"):
            options = ["--host", "127.0.0.1", "--cores", "1", "--memory", "1g", "--webui-port", "0"]
            work = ["--work-dir", str(directory / name / "work")]
            worker = daemon([launcher, f"{deploy}.worker.Worker", *options, *work, url], directory / name)
            stack.callback(worker.stop)
            workers.append(worker)
        for worker in workers:
            worker.wait_for(r"(Successfully registered) with master")
        yield Cluster(url, (workers[0], workers[1]))
