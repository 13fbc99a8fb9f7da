"""The command line answers at once: what is heavy is imported by the command that needs it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.running import ROOT, command_line, environment
from waltzctl.app import COMMANDS, manual_of

HEAVY = (
    *("numpy", "numba", "llvmlite", "construct", "rich", "isal", "yaml", "kazoo", "cryptography", "aiohttp", "uvloop"),
    *(
        f"waltzctl.engine.{room}"
        for room in ("storage", "scan", "inspect", "repair", "durable", "net", "node", "server", "metadata", "columns")
    ),
    *("waltzctl.formats", "prometheus_client"),
)
DECLARATIONS = {
    *("waltzctl.engine", "waltzctl.engine.net", "waltzctl.engine.node", "waltzctl.engine.storage"),
    *("waltzctl.engine.amounts", "waltzctl.engine.errors", "waltzctl.engine.storage.storage_options"),
    *(
        f"waltzctl.engine.net.{name}"
        for name in (
            *("loopback", "monitoring_options", "peer_limits", "service_settings", "setting_kinds", "settings"),
            "tls_options",
        )
    ),
    *("waltzctl.engine.metadata", "waltzctl.engine.metadata.zookeeper_options"),
    "waltzctl.engine.node.node_settings",
}
OF_SERVERS = {one for one in DECLARATIONS if "engine.node" not in one and "engine.storage" not in one} | {
    *("waltzctl.engine.net.retries", "waltzctl.engine.server", "waltzctl.engine.server.server_settings")
}
"""What the options of a process with settings are made from: of a node, of a log server."""
PROGRAM = """
import json, sys
from waltzctl.__main__ import main
try:
    main(sys.argv[1:])
except SystemExit as end:
    status = end.code
sys.stdout.write("\\0" + json.dumps([status, sorted(sys.modules)]))
"""


@pytest.mark.turns(8)
@pytest.mark.parametrize("arguments", [["--help"], ["--version"], *([manual_of(c).name, "--help"] for c in COMMANDS)])
def test_help_imports_nothing_heavy(arguments: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments], capture_output=True, env=environment(), cwd=ROOT, check=True
    )
    status, modules = json.loads(done.stdout.decode().partition("\0")[2])
    assert status == 0
    declared = {"serve": DECLARATIONS, "log-server": OF_SERVERS}.get(arguments[0])
    if declared is not None:
        assert {name for name in modules if name.startswith("waltzctl.engine")} == declared
        assert {"ssl", "socket", "logging"}.isdisjoint(modules)
        modules = [name for name in modules if name not in declared]
    assert [name for name in modules if name in HEAVY] == []


def test_a_mistyped_command_imports_nothing_heavy() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, "verfiy"], capture_output=True, env=environment(), cwd=ROOT, check=True
    )
    status, modules = json.loads(done.stdout.decode().partition("\0")[2])
    assert status == 2
    assert [name for name in modules if name in HEAVY] == []
    assert b"Did you mean 'verify'?" in done.stderr


@pytest.mark.turns(10)
@pytest.mark.parametrize(("command", "expected"), [("verify", 4), ("status", 0), ("stats", 4)])
def test_what_is_read_here_imports_nothing_of_spark(command: str, expected: int) -> None:
    storage = ROOT / "fixtures" / "flipped-bit" / "storage"
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, command, storage], capture_output=True, env=environment(), cwd=ROOT, check=True
    )
    status, modules = json.loads(done.stdout.decode().partition("\0")[2])
    assert status == expected
    assert [
        name for name in modules if name.split(".")[0] == "pyspark" or name.startswith("waltzctl.engine.spark")
    ] == []


ENDS = """
import atexit, sys, threading
from waltzctl.__main__ import process
atexit.register(print, "at exit")
threading.Thread(target=lambda: (threading.main_thread().join(), print("a thread"))).start()
sys.argv = ["waltzctl", *sys.argv[1:]]
process()
print("never")
"""


@pytest.mark.parametrize("mode", [(), ("-X", "dev")], ids=["as-it-is", "development-mode"])
@pytest.mark.parametrize(("word", "status"), [("--version", 0), ("nonsense", 2)])
def test_a_process_ends_as_the_interpreter_would_end_it(mode: tuple[str, ...], word: str, status: int) -> None:
    done = subprocess.run([sys.executable, *mode, "-c", ENDS, word], capture_output=True, text=True)
    lines = done.stdout.splitlines()
    assert (done.returncode, lines[-2:]) == (status, ["a thread", "at exit"])
    assert len(lines) == (3 if word == "--version" else 2)


def test_who_profiles_the_process_is_not_cut_off() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "cProfile", "-m", "waltzctl", "--version"], capture_output=True, text=True, check=True
    )
    assert "function calls" in done.stdout


WITHOUT_THREADS = """
import os, sys, threading
from waltzctl.__main__ import process
class NoThread(threading.Thread):
    def start(self):
        raise RuntimeError("can't start new thread")
threading.Thread = NoThread
sys.argv = ["waltzctl", *sys.argv[1:]]
process()
"""
THREADS = """
import asyncio, atexit, os, sys
from waltzctl.__main__ import process
atexit.register(lambda: print("\\0", "numpy" in sys.modules, len(os.listdir("/proc/self/task"))))
sys.argv = ["waltzctl", *sys.argv[1:]]
process()
"""
SIGNALS = """
import atexit, signal, subprocess, sys
from waltzctl.__main__ import process
def tell():
    child = subprocess.call([sys.executable, "-S", "-c", "raise SystemExit(3)"])
    print("\\0", child, sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())))
atexit.register(tell)
sys.argv = ["waltzctl", *sys.argv[1:]]
process()
"""
STREAMS = """
import atexit, subprocess, sys
from waltzctl.__main__ import process
target, sys.argv = sys.argv[1], ["waltzctl", *sys.argv[2:]]
ask = "import sys; seen = repr([one is None for one in (sys.stdin, sys.stdout, sys.stderr)]); open(sys.argv[1], 'w').write(seen)"
@atexit.register
def tell():
    subprocess.call([sys.executable, "-S", "-c", ask, target])
process()
"""
LOG = """
import atexit, contextlib, sys
from waltzctl.__main__ import process
@atexit.register
def log():
    with contextlib.suppress(OSError):
        sys.stderr.write("a line of the log\\n")
sys.argv = ["waltzctl", *sys.argv[1:]]
process()
"""
LOOPS = """
import asyncio, os, threading
from waltzctl.event_loop import loop_factory
made = loop_factory(True)
start = threading.Thread.start
def refused(thread):
    raise RuntimeError("can't start new thread")
threading.Thread.start = refused
loop = made()
assert type(loop).__module__.startswith("asyncio"), loop
threading.Thread.start = start
loop = made()
assert type(loop).__module__.startswith("uvloop"), loop
before = len(os.listdir("/proc/self/task"))
loop.run_until_complete(loop.getnameinfo(("127.0.0.1", 80)))
print(before > 1, before == len(os.listdir("/proc/self/task")))
"""


def test_what_the_system_gives_no_thread_for_is_told() -> None:
    storage = ROOT / "fixtures" / "clean-documented" / "storage"
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_THREADS, "stats", storage],
        capture_output=True,
        text=True,
        env=environment(),
        cwd=ROOT,
    )
    assert (done.returncode, done.stdout) == (14, "")
    assert done.stderr.startswith("waltzctl: error: the system lets this process start no further thread\n")


def test_no_thread_is_started_for_what_no_command_does() -> None:
    """The library under NumPy started one for each processor; refused one, it sent SIGINT: the command was *interrupted*."""
    storage = ROOT / "fixtures" / "clean-documented" / "storage"
    given = environment()
    given.pop("OPENBLAS_NUM_THREADS", None)
    done = subprocess.run(
        [sys.executable, "-c", THREADS, "status", storage],
        capture_output=True,
        text=True,
        env=given,
        cwd=ROOT,
        check=True,
    )
    assert done.stdout.rpartition("\0")[2].split() == ["True", "1"]


def test_the_threads_of_look_ups_are_started_with_the_event_loop_or_never() -> None:
    """Later, uvloop aborts the process where one cannot be started."""
    pytest.importorskip("uvloop")
    done = subprocess.run(
        [sys.executable, "-c", LOOPS], capture_output=True, text=True, env=environment(), cwd=ROOT, check=True
    )
    assert done.stdout == "True True\n"


@pytest.mark.turns(8)
@pytest.mark.parametrize("size", ["1", "9", "0", "x", " 7x", "2000"])
def test_as_many_threads_are_tried_as_are_started(size: str) -> None:
    """With UV_THREADPOOL_SIZE=16 and room for 8, `serve` was aborted without a message."""
    pytest.importorskip("uvloop")
    program = """
import os
from waltzctl import event_loop
event_loop._can_start = lambda threads: tried.append(threads) or threads < 100
tried = []
event_loop.loop_factory(True)()
print(*tried, len(os.listdir("/proc/self/task")) - 1)
"""
    given = environment() | {"UV_THREADPOOL_SIZE": size}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=given, cwd=ROOT, check=True
    )
    tried, started = map(int, done.stdout.split())
    assert (tried, started) == (1024, 0) if size == "2000" else tried == started


def test_what_a_parent_did_with_its_signals_hides_no_child_s_end_and_keeps_no_stop_away() -> None:
    """A failed run of a pipeline was a success where SIGCHLD is ignored; a server under a parent that waits for its signals in
    a thread, and blocks them for that, could be ended by nothing but SIGKILL."""

    def inherited() -> None:
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1))

    done = subprocess.run(
        [sys.executable, "-c", SIGNALS, "--version"],
        capture_output=True,
        env=environment(),
        cwd=ROOT,
        preexec_fn=inherited,
    )
    assert done.stdout.decode().partition("\0")[2].strip() == f"3 [{signal.SIGUSR1!r}]"


@pytest.mark.parametrize(("word", "status"), [("--version", 0), ("nonsense", 2)])
@pytest.mark.parametrize("full", [True, False], ids=["full", "closed"])
def test_a_log_that_takes_nothing_changes_no_exit_status(word: str, status: int, full: bool) -> None:
    """What stderr's buffer still had was written once more at exit, which made 120 of the status of a node's clean stop."""
    reading, writing = os.pipe()
    os.close(reading)
    with open("/dev/full" if full else writing, "wb", closefd=full) as nowhere:
        done = subprocess.run(
            [sys.executable, "-c", LOG, word],
            stdout=subprocess.PIPE,
            stderr=nowhere,
            env=environment(PYTHONUNBUFFERED=""),
            cwd=ROOT,
        )
    os.close(writing)
    assert done.returncode == status


@pytest.mark.turns(8)
@pytest.mark.parametrize("closed", [(0,), (1,), (2,), (0, 1, 2)], ids=str)
def test_programs_that_it_starts_have_the_streams_that_it_had_to_replace(
    tmp_path: Path, closed: tuple[int, ...]
) -> None:
    """Spark's would have opened files under the numbers of their output."""

    def without() -> None:
        for descriptor in closed:
            os.close(descriptor)

    subprocess.run(
        [sys.executable, "-c", STREAMS, tmp_path / "seen", "--version"],
        env=environment(),
        cwd=ROOT,
        preexec_fn=without,
        check=True,
    )
    assert (tmp_path / "seen").read_text() == "[False, False, False]"


FIRST = """
import os, sys
os.getpid = lambda: 1
from waltzctl.__main__ import process
process()
"""


@pytest.mark.turns(10)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT])
def test_a_signal_ends_the_first_process_of_a_container(tmp_path: Path, number: signal.Signals) -> None:
    """The kernel gives that one only what it has handlers for: a container with a command in it could only be killed."""
    made = tmp_path / "storage"
    subprocess.run(command_line("create-cluster", str(made), "--partitions", "1", "-q"), cwd=ROOT, check=True)
    command = ("append", str(made), "--partition", "0", "--batch", "1", "--progress-ids", "--format", "ndjson")
    with subprocess.Popen(
        [sys.executable, "-c", FIRST, *command], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as running:
        assert running.stdin is not None
        assert running.stdout is not None
        running.stdin.write(b"a\n")
        running.stdin.flush()
        assert running.stdout.readline()
        running.send_signal(number)
        assert running.wait(60) == 128 + number


def test_an_interrupt_that_was_kept_back_until_the_start_is_one() -> None:
    def inherited() -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT,))
        os.kill(os.getpid(), signal.SIGINT)

    done = subprocess.run(
        command_line("--version"), capture_output=True, env=environment(), cwd=ROOT, preexec_fn=inherited
    )
    assert (done.returncode, done.stderr) == (130, b"")
