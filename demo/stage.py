"""What the demonstration stands on: a directory, commands run in it as a user would, and what is looked at afterwards."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
import shlex
import shutil
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

PROJECT = Path(__file__).resolve().parents[1]
CLEAN, REPAIRABLE, DAMAGED, DAMAGE_REMAINS, REFUSED, IO_ERROR = 0, 3, 4, 5, 13, 14
WIDTH = 100
SHORT_LIVED_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""For a Java process that lives for half a minute: to compile for days is most of what it would do."""
SHOWN_LINES = 16
DIM, BOLD, RED, GREEN, PLAIN = "\033[2m", "\033[1m", "\033[31m", "\033[32m", "\033[0m"
COLOURED = sys.stdout.isatty() and "NO_COLOR" not in os.environ
"""Asked once, of the terminal: a scene that is played beside others writes to a file, and is shown there later."""


WRITER = """
import asyncio, sys
from waltzctl.engine.client.storage_client import StorageClient
from waltzctl.engine.errors import PeerError
from waltzctl.engine.net.tls import client_context
from waltzctl.engine.net.tls_options import TlsOptions
from waltzctl.formats.request_id import RequestId
from waltzctl.formats.wire.records import WireRecord

async def main(host, port, partition, session, first):
    trust = client_context(TlsOptions(), trust_all=True)
    async with await StorageClient.connect(host, port, ssl_context=trust) as node:
        await node.set_low_water_mark(session, partition, first - 1)
        while True:
            number = RequestId(7, 0, partition, first % 2**31)
            await node.append(session, partition, [WireRecord.make(first, number, 0, b"order %d" % first)])
            print(first, flush=True)
            first += 1

host, _, port = sys.argv[1].partition(":")
try:
    asyncio.run(main(host, int(port), *map(int, sys.argv[2:])))
except PeerError as error:
    print(error, file=sys.stderr)
"""
"""A client of a node's data port, one transaction at a time: it prints the number of each as soon as it is acknowledged."""


STREAM = """
import json, sys
from pathlib import Path
from waltzctl import spark_session

where, place = sys.argv[1], Path(sys.argv[2])
spark = spark_session("local[1]", {"spark.ui.enabled": "false"})
log = spark.readStream.format("waltz").option("metadata", where).option("plaintext", "true").option("data", "true").load()
rows = log.selectExpr("partition", "transaction_id", "cast(data as string) as line", "finding")
writing = rows.writeStream.format("parquet").option("path", str(place / "rows"))
query = writing.option("checkpointLocation", str(place / "checkpoint")).trigger(processingTime="1 second").start()
query.processAllAvailable()
print("reading", flush=True)
sys.stdin.readline()
query.processAllAvailable()
query.stop()
json.dump(sorted(map(list, spark.read.schema(rows.schema).parquet(str(place / "rows")).collect())), sys.stdout)
"""
"""A Spark stream over a cluster: it reads along until it is sent a line, and prints the rows that it wrote."""


class UnexpectedError(Exception):
    """Something is not as the demonstration says; the message tells what."""


def require(truth: bool, what: str) -> None:
    """Stop the demonstration unless `truth`; say what was found to be so."""
    if not truth:
        raise UnexpectedError(f"not so: {what}")
    print(f"  {colour(GREEN, 'ok')}  {what}")


def colour(code: str, text: str) -> str:
    """`text` in a colour, where a terminal shows it."""
    return f"{code}{text}{PLAIN}" if COLOURED else text


def title(text: str) -> None:
    """Begin a scene."""
    print(f"\n{colour(BOLD, text)}\n{colour(DIM, '-' * len(text))}")


def tell(text: str) -> None:
    """A paragraph of narration."""
    print("\n" + textwrap.fill(" ".join(text.split()), WIDTH))


@contextlib.contextmanager
def _ended(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """A process that does not outlive the block."""
    try:
        yield
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


@dataclass
class Node:
    """A running node: the addresses of its ports."""

    process: subprocess.Popen[bytes]
    data: str
    admin: str
    killed: bool = False

    def kill(self) -> None:
        """SIGKILL, as a crash would."""
        print(f"\n  {colour(BOLD, f'$ kill -9 {self.process.pid}')}")
        self.process.kill()
        self.process.wait()
        self.killed = True


@dataclass
class Stage:
    """The working directory, and how commands are run in it."""

    root: Path
    commands: int = 0
    environment: dict[str, str] = field(default_factory=dict)
    originals: dict[int, dict[int, bytes]] = field(default_factory=dict)
    """The records of node 1, by partition and id, as they were dumped in the beginning."""

    def __post_init__(self) -> None:
        path = [str(PROJECT), *filter(None, [os.environ.get("PYTHONPATH")])]
        self.environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path), "COLUMNS": str(WIDTH), "NO_COLOR": "1"}
        self.environment.setdefault("SPARK_SUBMIT_OPTS", SHORT_LIVED_JAVA)

    def run(self, line: str, expected: int | None = CLEAN, *, stdin: bytes | None = None, show: bool = True) -> bytes:
        """Run ``waltzctl LINE``, show it with what it says, and insist on its exit status.  Returns its stdout.

        With None either nothing is wrong or only what can be repaired without loss, as after a crash.
        """
        words = shlex.split(line)
        shown = words if "--format" in words else [*words, "--format", "table"]
        self.commands += 1
        done = subprocess.run(
            [sys.executable, "-m", "waltzctl", *shown], cwd=self.root, env=self.environment, input=stdin,
            capture_output=True, check=False,
        )  # fmt: skip
        print(f"\n  {colour(BOLD, '$ waltzctl ' + line)}")
        if show:
            self._show((done.stdout + done.stderr).decode(errors="replace").splitlines())
        print(f"  {colour(DIM, f'exit status {done.returncode}')}")
        if done.returncode not in ((CLEAN, REPAIRABLE) if expected is None else (expected,)):
            lines = (done.stdout + done.stderr).decode(errors="replace").splitlines()
            text = "\n".join(line[:WIDTH] for line in lines[-40:])
            raise UnexpectedError(f"`waltzctl {line}` ended with {done.returncode}, not {expected}:\n{text}")
        return done.stdout

    def quietly(self, line: str) -> str:
        """What a command that is asked again and again says."""
        command = [sys.executable, "-m", "waltzctl", *shlex.split(line)]
        return subprocess.run(
            command, cwd=self.root, env=self.environment, capture_output=True, check=False
        ).stdout.decode()

    @contextlib.contextmanager
    def beside(self, line: str, stdin: str | None = None) -> Iterator[subprocess.Popen[bytes]]:
        """A command beside the others, until the end of the block; its output goes to a file."""
        self.commands += 1
        print(f"\n  {colour(BOLD, f'$ waltzctl {line} &')}")
        out = self.root / " ".join(line.split()[:2])
        with contextlib.ExitStack() as files:
            given = subprocess.DEVNULL if stdin is None else files.enter_context((self.root / stdin).open("rb"))
            process = subprocess.Popen(
                [sys.executable, "-m", "waltzctl", *shlex.split(line)], cwd=self.root, env=self.environment,
                stdin=given, stdout=files.enter_context(out.open("wb")), stderr=subprocess.STDOUT,
            )  # fmt: skip
            with _ended(process):
                yield process

    def acknowledged(self, name: str) -> int:
        """How many lines a command beside the others has said so far."""
        return (self.root / name).read_bytes().count(b"\n")

    def _show(self, lines: Sequence[str]) -> None:
        """The beginning, and the end, where the conclusion stands."""
        left_out = len(lines) - SHOWN_LINES
        shown = [*lines[: SHOWN_LINES - 3], f"... {left_out} more lines ...", *lines[-3:]] if left_out > 1 else lines
        for line in shown:
            print(f"    {line}")

    @contextlib.contextmanager
    def serve(self, directory: str, ports: str = "--port 0") -> Iterator[Node]:
        """Run a node of a directory on free ports of this machine, until the end of the block."""
        with self.start(directory, f"serve {directory} {ports}") as (process, told):
            node = Node(process, f"127.0.0.1:{told['port']}", f"127.0.0.1:{told['admin_port']}")
            print(f"    data port {node.data}, admin port {node.admin}")
            yield node

    @contextlib.contextmanager
    def start(self, name: str, line: str) -> Iterator[tuple[subprocess.Popen[bytes], dict[str, object]]]:
        """Run a process that serves, with what it says when it is ready, until the end of the block; it may be killed before."""
        line = f"{line} --ready-file {name}.ready"
        print(f"\n  {colour(BOLD, '$ waltzctl ' + line + ' &')}")
        self.commands += 1
        ready = self.root / f"{name}.ready"
        told: dict[str, object] = {}
        with (self.root / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "waltzctl", *shlex.split(line)],
                cwd=self.root, env=self.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip
        try:
            while told.get("pid") != process.pid:
                if process.poll() is not None:
                    raise UnexpectedError(f"`waltzctl {line}` ended with {process.returncode}; see {log.name}")
                time.sleep(0.05)
                with contextlib.suppress(FileNotFoundError):  # one of before is there, until it begins
                    told = json.loads(ready.read_bytes())
            yield process, told
            if process.poll() is None:
                process.terminate()
                require(process.wait() == CLEAN, f"{name} ended cleanly")
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()

    def load(self, node: Node, bench: str, partition: int, first: int, seconds: float) -> int:
        """Load from two sides for so many seconds, then kill the node; the last transaction acknowledged to a writer.

        `bench` runs with a number of requests under way; the writer appends to another partition from `first` on, in session 2.
        """
        self.commands += 1
        print(f"\n  {colour(BOLD, f'$ waltzctl {bench} &')}")
        notes = self.root / "acknowledged"
        with contextlib.ExitStack() as ending:
            loader = ending.enter_context(
                self._started(["-m", "waltzctl", *shlex.split(bench), "--format", "table"], subprocess.PIPE)
            )
            out = ending.enter_context(notes.open("wb"))
            writer = ending.enter_context(
                self._started(["-c", WRITER, node.data, str(partition), "2", str(first)], out)
            )
            while not notes.stat().st_size and writer.poll() is None:
                time.sleep(0.05)
            time.sleep(seconds)
            node.kill()
            said = b"".join(loader.communicate(timeout=60))
            _, reason = writer.communicate(timeout=60)
        self._show(said.decode(errors="replace").splitlines())
        print(f"  {colour(DIM, f'exit status {loader.returncode}')}")
        require(loader.returncode == IO_ERROR, "the load says that its node is gone")
        print(f"    the writer says: {reason.decode(errors='replace').strip()}")
        acknowledged = notes.read_text().split()
        require(bool(acknowledged), f"{len(acknowledged):,} transactions were acknowledged to it")
        return int(acknowledged[-1])

    @contextlib.contextmanager
    def _started(self, program: Sequence[str], out: int | IO[bytes]) -> Iterator[subprocess.Popen[bytes]]:
        """A Python program beside this one, until the end of the block."""
        process = subprocess.Popen(
            [sys.executable, *program], cwd=self.root, env=self.environment,
            stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.PIPE,
        )  # fmt: skip
        with _ended(process):
            yield process

    @contextlib.contextmanager
    def streaming(self, metadata: str) -> Iterator[Callable[[], list[tuple[int, int, str]]]]:
        """A Spark stream over a cluster, which has begun to read, until the end of the block.

        What it gives ends the stream, and returns the rows that it wrote: partition, transaction and line.
        """
        print(f'\n  {colour(BOLD, "$ python stream.py &")}   (spark.readStream.format("waltz"), written as Parquet)')
        with (self.root / "stream.log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-c", STREAM, metadata, str(self.root / "stream")],
                cwd=self.root, env=self.environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
            )  # fmt: skip

        def rows() -> list[tuple[int, int, str]]:
            said, _ = process.communicate(b"\n", timeout=120)
            if process.returncode:
                raise UnexpectedError(f"the stream ended with {process.returncode}:\n{self._end_of(log.name)}")
            found = json.loads(said)
            require(all(finding is None for *_, finding in found), "the stream misses nothing")
            return [(partition, transaction, line) for partition, transaction, line, _ in found]

        with _ended(process):
            assert process.stdout is not None
            if process.stdout.readline() != b"reading\n":
                raise UnexpectedError(f"the stream did not begin:\n{self._end_of(log.name)}")
            yield rows

    def _end_of(self, log: str) -> str:
        return "\n".join(Path(log).read_text(errors="replace").splitlines()[-40:])

    def findings(self, directory: str, expected: int) -> list[dict[str, object]]:
        """What verify finds, as a script would read it."""
        output = self.run(f"verify {directory} --format ndjson", expected, show=False)
        return [one for one in map(json.loads, output.splitlines()) if one["type"] == "finding"]

    def copy(self, name: str) -> Path:
        """A fresh copy of node 1 to damage."""
        target = self.root / name
        print(f"\n  {colour(BOLD, f'$ cp -a node-1 {name}')}")
        shutil.copytree(self.root / "node-1", target)
        return target

    def records(self, directory: str, partition: int, expected: int = CLEAN) -> dict[int, bytes]:
        """Every record of a partition as dump gives it, by id."""
        return by_id(self.run(f"dump {directory} --partition {partition} --format ndjson", expected, show=False))


def by_id(dumped: bytes) -> dict[int, bytes]:
    """The records of a dump by id; place and segment left out."""
    found = {}
    for line in dumped.splitlines():
        one = json.loads(line)
        if one["type"] == "record":
            for place in ("segment", "offset"):
                del one[place]
            found[one["transaction_id"]] = json.dumps(one, sort_keys=True).encode()
    return found


def digests(storage: Path) -> dict[str, str]:
    """SHA-256 of every file of a storage directory but for waltzctl's own."""
    return {
        str(path.relative_to(storage)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(storage.rglob("*"))
        if path.is_file() and ".waltzctl" not in path.parts
    }


def segments(storage: Path, partition: int) -> list[Path]:
    """Data files of a partition, in order."""
    return sorted((storage / str(partition)).glob("*.seg"))


def flip(path: Path, offset: int, bit: int = 3) -> None:
    """Flip one bit of a file, as a failing disk would."""
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 1 << bit]))


def orders(partition: int, first: int, count: int) -> bytes:
    """Lines to append: something that a person recognises."""
    source = random.Random(partition * 1_000_003 + first)
    items = ("tea", "a lamp", "two chairs", "a bicycle", "paper", "an umbrella with a wooden handle")
    lines = [
        f"order {number}: {source.choice(items)} for customer {source.randrange(10_000)}, {source.randrange(100, 99_999)} cents"
        for number in range(first, first + count)
    ]
    return "\n".join(lines).encode() + b"\n"
