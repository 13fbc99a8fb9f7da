"""Nodes to be measured: ours as a process, and the released one without ZooKeeper, both on the loopback over the same disk.

The released node is the driver ``PlainStorage`` on the class path in ``WALTZ_CLASSPATH``: the released storage manager and
message handlers behind the released network server, with or without TLS.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import time
import uuid
from dataclasses import dataclass
from pathlib import Path

from measuring import PROJECT, environment

sys.path.insert(0, str(PROJECT))

from tests.reserved_ports import reserved_ports

KEY = uuid.UUID("b3c4b3c4-0000-4000-8000-000000000001")
PARTITIONS = 64
SEGMENT_SIZE = 1_000_000_000
PATIENCE = 60.0
_JAVA_TLS = "--add-exports=java.base/sun.security.x509=ALL-UNNAMED"
_LOG4J = """log4j.rootLogger=ERROR, file
log4j.appender.file=org.apache.log4j.FileAppender
log4j.appender.file.File={}
log4j.appender.file.layout=org.apache.log4j.SimpleLayout
"""


def classpath() -> str:
    """The class path of the release with the drivers; ends the benchmark where there is none."""
    found = os.environ.get("WALTZ_CLASSPATH")
    if not found or shutil.which("java") is None:
        raise SystemExit(
            "the released node and client need Java and WALTZ_CLASSPATH, the class path of a built Waltz 0.13.2 with the"
            " drivers Bench and PlainStorage; --only ours measures our node with our client alone"
        )
    return found


def java(directory: Path, main: str, *arguments: object) -> list[str]:
    """The command line of a Java program, whose log goes to a file in `directory`.

    Memory and garbage collector are those that Java takes by itself: as a user would run it.
    """
    settings = directory / f"{main}.properties"
    settings.write_text(_LOG4J.format(directory / f"{main}.log4j"))
    hosts = directory / "hosts"
    hosts.write_text(f"127.0.0.1 localhost\n127.0.0.1 {socket.gethostname()}\n")
    options = [_JAVA_TLS, f"-Dlog4j.configuration=file:{settings}", f"-Djdk.net.hosts.file={hosts}"]
    return ["java", *options, "-cp", classpath(), main, *map(str, arguments)]


@dataclass(slots=True)
class RunningNode:
    """A node and the directory that it serves."""

    name: str
    directory: Path
    port: int
    admin_port: int
    tls: bool
    process: subprocess.Popen[bytes]
    log: Path

    def stop(self) -> None:
        """SIGTERM, and wait."""
        if self.process.poll() is None:
            self.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(PATIENCE)
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def state(self) -> str:
        """Whether it runs, and the end of what it said, for messages."""
        status = self.process.poll()
        said = self.log.read_text(errors="replace")[-2000:]
        return f"{'runs' if status is None else f'ended with status {status}'}; it said: {said}"

    def threads(self) -> dict[str, float]:
        """Processor seconds of each of its threads so far, by name (Linux); threads of one name are added up."""
        spent: dict[str, float] = {}
        for status in Path(f"/proc/{self.process.pid}/task").glob("*/stat"):
            with contextlib.suppress(OSError):
                name, _, rest = status.read_text().partition("(")[2].rpartition(")")
                spent[name] = spent.get(name, 0.0) + sum(_processor_seconds(rest))
        return spent

    def processor_seconds(self) -> tuple[float, float]:
        """Seconds of the processors so far, of all its threads (Linux): in the program, and in the system on its behalf."""
        return _processor_seconds(Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2])

    def memory_kib(self) -> int:
        """Peak resident memory so far (Linux), 0 where it cannot be told."""
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
                if line.startswith("VmHWM:"):
                    return int(line.split()[1])
        return 0


def _processor_seconds(status: str) -> tuple[float, float]:
    """In the program and in the system, from what the kernel's line about a process or thread says behind its name."""
    fields, ticks = status.split(), os.sysconf("SC_CLK_TCK")
    return int(fields[11]) / ticks, int(fields[12]) / ticks


def slower_flushes(place: Path, milliseconds: float) -> dict[str, str]:
    """Environment of a process whose flushes take so much longer; the library that does it is compiled in `place`."""
    if not milliseconds:
        return {}
    library, source = place / "slow_flush.so", Path(__file__).with_name("slow_flush.c")
    environment = {"LD_PRELOAD": str(library), "FLUSH_DELAY_US": str(round(milliseconds * 1000))}
    if library.exists():
        return environment
    compiler = shutil.which("cc")
    if compiler is None:
        raise SystemExit("a disk with slower flushes needs a C compiler (cc)")
    subprocess.run([compiler, "-O2", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    return environment


def start_ours(
    place: Path, *, tls: bool, profile: Path | None = None, flush_delay_ms: float = 0.0, journal: bool = False
) -> RunningNode:
    """Our node on a new directory; with `profile` a sampling thread beside it writes what it saw there at the end.

    `journal`: with a commit journal on the same device.
    """
    directory = place / "ours"
    _run("create-cluster", directory, "--partitions", PARTITIONS, "--layout", "released", "--key", KEY)
    ready, log = place / "ours.ready", place / "ours.log"
    program = ["-m", "waltzctl"]
    if profile is not None:
        program = [str(Path(__file__).resolve().parent / "sampled.py"), str(profile)]
    command = [sys.executable, *program, "serve", directory, "--port", 0]
    command += ["--http-port", "off", "--segment-size", SEGMENT_SIZE, "--ready-file", ready, "--log-level", "warning"]
    command += [] if tls else ["--plaintext"]
    command += ["--journal", place / "journal"] if journal else []
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*map(str, command)],
            stdout=output, stderr=output, env=environment() | slower_flushes(place, flush_delay_ms),
        )  # fmt: skip
    node = RunningNode("ours", directory, 0, 0, tls, process, log)
    _wait(node, ready.exists)
    told = json.loads(ready.read_text())
    node.port, node.admin_port = told["port"], told["admin_port"]
    return node


def start_released(place: Path, *, tls: bool, flush_delay_ms: float = 0.0) -> RunningNode:
    """The released node on a new directory."""
    directory, log = place / "released", place / "released.log"
    port, admin_port = reserved_ports(2)
    command = java(
        place, "PlainStorage", port, admin_port, directory, KEY, PARTITIONS, SEGMENT_SIZE, "tls" if tls else "plain"
    )
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=output, env=os.environ | slower_flushes(place, flush_delay_ms)
        )
    node = RunningNode("released", directory, port, admin_port, tls, process, log)
    _wait(node, lambda: b"ready" in log.read_bytes() and _accepts(port) and _accepts(admin_port))
    return node


def _run(*words: object) -> None:
    command = [sys.executable, "-m", "waltzctl", *map(str, words)]
    subprocess.run(command, check=True, env=environment(), stdout=subprocess.DEVNULL)


def _accepts(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
    except OSError:
        return False
    return True


def _wait(node: RunningNode, ready: object) -> None:
    assert callable(ready)
    deadline = time.monotonic() + PATIENCE
    while not ready():
        if node.process.poll() is not None or time.monotonic() > deadline:
            node.stop()
            raise SystemExit(f"the node ({node.name}) does not start:\n{node.log.read_text()[-3000:]}")
        time.sleep(0.05)
