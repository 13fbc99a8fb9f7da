"""The daemon of the processes that plan streams: real processes, with a small program in place of Spark's."""

from __future__ import annotations

import errno
import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")

from waltzctl.engine.spark import runner_daemon
from waltzctl.engine.spark.worker_daemon import NEEDED, STREAM_RUNNER
from waltzctl.engine.spark.worker_python import write_launcher

ROOT = Path(__file__).resolve().parents[2]
RUNNER = """
import json, os, sys, time
if __name__ == "__main__":
    names = sys.argv[0].rsplit("/", 1)[-1], __name__
    told = [os.getpid(), os.getppid(), os.getcwd(), os.environ.get("SECRET"), *names]
    print(json.dumps(told), flush="WAIT" in os.environ)
    print("to stderr", file=sys.stderr)
    if "WAIT" in os.environ:
        time.sleep(600)
    if "KILLED" in os.environ:
        os.kill(os.getpid(), 9)
    sys.exit(int(os.environ.get("STATUS", "0")))
"""
JAVA = """
import json, os, subprocess, sys
running = []
for line in sys.stdin:
    command, environment, place = json.loads(line)
    output = dict.fromkeys(("stdout", "stderr"), subprocess.PIPE)
    running.append(subprocess.Popen(command, env=os.environ | environment, cwd=place, **output))
    print(running[-1].pid, flush=True)
    if not environment.get("BESIDE"):
        print(json.dumps([one.decode() for one in running[-1].communicate()] + [running[-1].returncode]), flush=True)
    elif environment.get("WAIT"):
        print(running[-1].stdout.readline().decode(), end="", flush=True)
"""


class Java:
    """The process that starts runners, as Spark's does."""

    def __init__(self, place: Path) -> None:
        self.place = place
        modules = place / "modules"
        program = modules / "pyspark" / "sql" / "streaming" / "python_streaming_source_runner.py"
        program.parent.mkdir(parents=True)
        for package in program.relative_to(modules).parents[:-1]:
            (modules / package / "__init__.py").touch()
        self.imported = place / "imported"
        (modules / "pyspark" / "__init__.py").write_text(
            f"import os\nopen({str(self.imported)!r}, 'a').write(f'{{os.getpid()}}\\n')\n"
        )
        program.write_text(RUNNER)
        self.launcher = self._launcher()
        path = f"{modules}{os.pathsep}{ROOT}"
        self.process = subprocess.Popen(
            [sys.executable, "-c", JAVA],
            env=os.environ | {"PYTHONPATH": path},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def _launcher(self) -> Path:
        (self.place / "launcher").mkdir()
        return write_launcher(self.place / "launcher")

    def begin(self, **environment: str) -> int:
        """Start a runner, in the directory ``PLACE`` or that of the test; the process that Java knows."""
        assert self.process.stdin is not None
        place = environment.pop("PLACE", str(self.place))
        command = [str(self.launcher), "-m", STREAM_RUNNER]
        self.process.stdin.write(json.dumps([command, environment, place]) + "\n")
        self.process.stdin.flush()
        return int(self.line())

    def line(self) -> str:
        """The next line of what Java tells."""
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def run(self, **environment: str) -> tuple[int, list[object], str, int]:
        """A runner to its end: the process that Java knows, what the runner tells of itself, its stderr and exit status."""
        known = self.begin(**environment)
        out, err, status = json.loads(self.line())
        return known, json.loads(out), err, status

    def end(self) -> None:
        """It ends, with all that it has started."""
        with self.process:
            self.process.kill()


@pytest.fixture
def java(tmp_path: Path) -> Iterator[Java]:
    java = Java(tmp_path)
    yield java
    java.end()


def gone(process: int) -> bool:
    """Whether a process ends; waits for it."""
    try:
        descriptor = os.pidfd_open(process)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([descriptor], [], [], 20)[0])
    finally:
        os.close(descriptor)


def test_the_first_is_the_runner_itself_and_the_next_are_forked(java: Java) -> None:
    known, told, err, status = java.run(SECRET="one")
    assert (told, err, status) == (
        [known, java.process.pid, str(java.place), "one", "python_streaming_source_runner.py", "__main__"],
        "to stderr\n",
        0,
    )
    for place, secret in ((java.place, {"SECRET": "two"}), (java.place / "modules", {})):
        known, told, err, status = java.run(PLACE=str(place), **secret)
        assert known not in told[:2]
        daemon = told[1]
        assert isinstance(daemon, int)
        assert os.getsid(daemon) == daemon, "what is sent to all processes of the session is not for it"
        assert told[2:] == [str(place), secret.get("SECRET"), "python_streaming_source_runner.py", "__main__"]
        assert (err, status) == ("to stderr\n", 0)
    assert len(java.imported.read_text().splitlines()) == 1


@pytest.mark.turns(10)
@pytest.mark.parametrize(
    ("environment", "expected"), [({"STATUS": "3"}, 3), ({"STATUS": "255"}, 255), ({"KILLED": "1"}, 1)]
)
def test_the_exit_status_is_that_of_the_runner(java: Java, environment: dict[str, str], expected: int) -> None:
    java.run()
    assert java.run(**environment)[3] == expected
    assert java.run()[3] == 0


def test_of_several_that_begin_at_once_one_imports(java: Java) -> None:
    for _ in range(4):
        java.begin(BESIDE="1")
    java.run()
    assert len(java.imported.read_text().splitlines()) == 1


def test_a_runner_ends_with_the_process_that_java_ends(java: Java) -> None:
    java.run()
    known = java.begin(BESIDE="1", WAIT="1")
    runner = json.loads(java.line())[0]
    assert runner != known
    os.kill(known, signal.SIGTERM)
    assert gone(runner)
    assert java.run()[3] == 0


def test_daemon_and_runners_end_with_java(java: Java) -> None:
    daemon = (java.run(), java.run())[1][1][1]
    java.begin(BESIDE="1", WAIT="1")
    runner = json.loads(java.line())[0]
    java.end()
    assert isinstance(daemon, int)
    assert gone(runner)
    assert gone(daemon)


def test_modules_of_other_directories_are_imported_by_the_runner_itself(java: Java) -> None:
    java.run()
    path = f"{java.place / 'modules'}{os.pathsep}{ROOT}{os.pathsep}/other"
    known, told, _, status = java.run(PYTHONPATH=path)
    assert (told[0], status) == (known, 0)


@pytest.mark.turns(8)
def test_a_daemon_that_was_killed_takes_no_runner_with_it(java: Java) -> None:
    daemon = (java.run(), java.run())[1][1][1]
    assert isinstance(daemon, int)
    known = java.begin(BESIDE="1", WAIT="1")
    runner = json.loads(java.line())[0]
    os.kill(daemon, signal.SIGKILL)
    assert gone(daemon)
    os.kill(known, 0)
    os.kill(runner, 0)
    first, told, _, status = java.run()  # which begins another daemon
    assert (told[0], status) == (first, 0)
    second, told, _, status = java.run()
    assert told[0] != second
    assert status == 0
    os.kill(runner, signal.SIGKILL)
    assert gone(known)


def test_a_daemon_that_nobody_asks_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner_daemon, "IDLE", 0.01)
    with socket.socket(socket.AF_UNIX) as listener, open(os.pidfd_open(os.getppid())) as parent:
        listener.bind(str(tmp_path / "s"))
        listener.listen()
        daemon = runner_daemon._Daemon(listener, parent.fileno())
        daemon.serve()
        daemon._selector.close()


@pytest.mark.parametrize("why", ["nothing is asked", "no outputs", "other modules", "no request", "no memory"])
def test_of_a_request_that_cannot_be_met_nothing_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    """Whoever asked runs on its own."""
    forks: list[str] = []

    def fork() -> int:
        forks.append(why)
        raise OSError(errno.ENOMEM, "made up")

    monkeypatch.setattr(os, "fork", fork)
    monkeypatch.setenv("PYTHONPATH", "/here")
    monkeypatch.chdir(tmp_path)
    environment = {"PYTHONPATH": "/other" if why == "other modules" else "/here"}
    request = b"[" if why == "no request" else json.dumps([environment, "/"]).encode()
    head = len(request).to_bytes(runner_daemon._LENGTH)
    with (
        socket.socket(socket.AF_UNIX) as listener,
        open(os.pidfd_open(os.getppid())) as parent,
        socket.socket(socket.AF_UNIX) as asks,
    ):
        listener.bind("s")
        listener.listen()
        daemon = runner_daemon._Daemon(listener, parent.fileno())
        before = len(os.listdir("/proc/self/fd"))
        asks.connect("s")
        if why == "nothing is asked":
            asks.shutdown(socket.SHUT_WR)
        else:
            socket.send_fds(asks, [head], [] if why == "no outputs" else [1, 2])
            asks.sendall(request)
        daemon._accept()
        assert len(os.listdir("/proc/self/fd")) == before
        asks.settimeout(10.0)
        assert asks.recv(1) == b""
        daemon._selector.close()
    assert forks == ([why] if why == "no memory" else [])


def test_where_no_socket_has_room_for_its_name_each_runs_on_its_own(tmp_path: Path) -> None:
    place = tmp_path / ("x" * 100)
    place.mkdir()
    java = Java(place)
    try:
        for _ in range(2):
            known, told, _, status = java.run()
            assert (told[0], status) == (known, 0)
    finally:
        java.end()


def test_what_the_daemon_imports_is_there() -> None:
    import importlib.util

    for name in (STREAM_RUNNER, *NEEDED[STREAM_RUNNER]):
        assert importlib.util.find_spec(name) is not None
