"""Processes of the command line that start warm: forked from one that has imported what commands need.

What a test starts by the hundred is a process like any other (its own number, streams, signals and end), but for the half second
that Python spends on importing.  `Popen` is `subprocess.Popen` for the arguments of ``waltzctl``.  It starts the interpreter anew
wherever that could matter: other interpreter options or another locale, a function that runs before, a run that records coverage.
How the program starts by itself is the affair of tests/cli/test_startup.py.

The process that forks is started with the first one that is needed and ends with its owner.  A process that was forked from
its owner meanwhile (`tests.mutation`) gets one of its own, which imports the program as it is then.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import inspect
import io
import os
import pickle
import pkgutil
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
_PR_SET_CHILD_SUBREAPER = 36
_LARGEST = 1 << 20
_PR_SET_PDEATHSIG = 1
_WALTZCTL = [sys.executable, "-m", "waltzctl"]
_FIRST_PIPE = list(inspect.signature(subprocess.Popen._execute_child).parameters).index("p2cread") - 1  # type: ignore[attr-defined]
_MATTERING = frozenset({"executable", "preexec_fn", "pass_fds", "shell", "start_new_session", "process_group", "umask"})
"""Options with which the interpreter is started as they say."""
_VARIABLES = ("LC_ALL", "LC_CTYPE", "PYTHONHOME", "PYTHONWARNINGS", "PYTHONDEVMODE")
"""Variables that tell Python something while it starts."""
_AT_START = dict(os.environ)
_HEAVY = ("aiohttp.web", "cryptography.x509", "llvmlite.binding", "numpy.ma", "prometheus_client", "uvloop")
_OURS = ("commands", "engine", "foreground", "objects", "render")
"""What commands import when they are run; of what is left out here, each reads the part that it needs."""
_LEFT_OUT = ("engine.pipeline", "engine.spark", "engine.scan.machine", "engine.scan.native", "engine.scan.wire_native")
"""What is there for Spark, and what compiles: no command of a test should have that in it."""


class _Warm:
    """The process that forks, seen from its owner."""

    def __init__(self) -> None:
        self._ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        environment = dict(os.environ, PYTHONPATH=str(ROOT))
        command = [sys.executable, "-m", "tests.warm_start", str(theirs.fileno())]
        self._process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment,
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        theirs.close()
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._lock = threading.Lock()

    def fork(self, told: Mapping[str, Any], streams: Sequence[int]) -> int:
        """The number of a new process with these streams; a child of this one, as it lost its own parent meanwhile."""
        with self._lock:
            self._libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
            try:
                socket.send_fds(self._ours, [pickle.dumps(told)], list(streams))
                return int(self._ours.recv(64))
            finally:
                self._libc.prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


_WARM: dict[int, _Warm] = {}
_STARTING = threading.Lock()


def _warm() -> _Warm:
    with _STARTING:
        if os.getpid() not in _WARM:
            _WARM.clear()
            _WARM[os.getpid()] = _Warm()
        return _WARM[os.getpid()]


class Popen(subprocess.Popen[Any]):
    """As `subprocess.Popen`; a command ``python -m waltzctl ...`` starts warm.

    `controlling`: its standard input is the terminal that controls it, in a session of its own; only for what starts warm.
    `dies_with_owner`: it is killed when the process that started it ends.
    """

    def __init__(
        self, command: Sequence[Any], *, controlling: bool = False, dies_with_owner: bool = False, **options: Any
    ) -> None:
        variables = os.environ if options.get("env") is None else options["env"]
        warm = command[:3] == _WALTZCTL and not options.keys() & _MATTERING
        self._told: dict[str, Any] | None = None
        warm = warm and "COVERAGE_PROCESS_START" not in variables
        if warm and all(variables.get(name) == _AT_START.get(name) for name in _VARIABLES):
            self._told = {
                "arguments": [os.fsencode(one) for one in command[3:]],
                "directory": os.fspath(options.get("cwd") or os.getcwd()),
                "variables": dict(variables),
                "controlling": controlling,
                "owner": os.getpid() if dies_with_owner else None,
            }
        elif controlling:
            raise ValueError("a terminal of its own is for what starts warm")
        elif dies_with_owner:
            options["preexec_fn"] = _die_with_parent
        super().__init__(command, **options)

    def _execute_child(self, *options: Any) -> None:  # type: ignore[override]
        if self._told is None:
            super()._execute_child(*options)  # type: ignore[misc]
            return
        streams = options[_FIRST_PIPE : _FIRST_PIPE + 6]
        given = [
            stream if stream != -1 else standard for standard, stream in enumerate(streams[at] for at in (0, 3, 5))
        ]
        try:
            self.pid = _warm().fork(self._told, given)
            self._child_created = True
        finally:
            self._close_pipe_fds(*streams)  # type: ignore[attr-defined]


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def run(
    command: Sequence[Any], *, given: bytes | None = None, timeout: float | None = None, **options: Any
) -> subprocess.CompletedProcess[Any]:
    """As `subprocess.run`, with what is not sent elsewhere captured."""
    options.setdefault("stdout", subprocess.PIPE)
    options.setdefault("stderr", subprocess.PIPE)
    if given is not None:
        options["stdin"] = subprocess.PIPE
    with Popen(command, **options) as process:
        try:
            out, error = process.communicate(given, timeout)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(process.args, process.returncode, out, error)


# --- the process that forks --------------------------------------------------------------------------------------------


def _import() -> None:
    for name in _HEAVY:
        with contextlib.suppress(ImportError):  # not everything is there on every system
            importlib.import_module(name)
    left_out = tuple(f"waltzctl.{name}" for name in _LEFT_OUT)
    for name in _OURS:
        module = importlib.import_module(f"waltzctl.{name}")
        for one in pkgutil.walk_packages(getattr(module, "__path__", ()), f"{module.__name__}."):
            if not one.name.startswith(left_out):
                importlib.import_module(one.name)
    from waltzctl.app import PARSERS

    list(PARSERS.values())  # which makes every parser
    gc.freeze()


def _serve(asked: socket.socket) -> None:
    _import()
    while True:
        message, streams, _, _ = socket.recv_fds(asked, _LARGEST, 3)
        if not message:
            os._exit(0)
        reads, writes = os.pipe()
        between = os.fork()
        if not between:
            number = os.fork()
            if not number:
                for one in (reads, writes, asked.fileno()):
                    os.close(one)
                _become(pickle.loads(message), streams)
            os.write(writes, str(number).encode())
            os._exit(0)
        os.waitpid(between, 0)  # from here on the process belongs to whoever asked
        number = int(os.read(reads, 64))
        for one in (reads, writes, *streams):
            os.close(one)
        asked.send(str(number).encode())


def _become(told: Mapping[str, Any], streams: Sequence[int]) -> None:
    """The command, from its streams to its end; never returns."""
    status = 1
    try:
        if told["controlling"]:
            import fcntl
            import termios

            os.setsid()
            fcntl.ioctl(streams[0], termios.TIOCSCTTY, 0)
        if told["owner"] is not None:
            while os.getppid() != told["owner"]:  # the process between ends
                time.sleep(0.001)
            _die_with_parent()
        for standard, stream in enumerate(streams):
            os.dup2(stream, standard)
        for stream in streams:
            if stream > 2:
                os.close(stream)
        os.chdir(told["directory"])
        os.environ.clear()
        os.environ.update(told["variables"])
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for standard, name in enumerate(("stdin", "stdout", "stderr")):
            setattr(sys, name, _text(standard))
        sys.argv = ["waltzctl", *map(os.fsdecode, told["arguments"])]
        from waltzctl.__main__ import process

        process()
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            sys.stderr.write(f"{end.code}\n")
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status & 0xFF)


def _text(standard: int) -> io.TextIOWrapper:
    """A standard stream as Python opens it."""
    raw = open(standard, "wb" if standard else "rb", closefd=False)  # noqa: SIM115  # it stays open
    terminal = os.isatty(standard)
    return io.TextIOWrapper(
        raw, "utf-8", "backslashreplace" if standard == 2 else "strict", line_buffering=terminal or standard == 2
    )


if __name__ == "__main__":
    with contextlib.suppress(ConnectionError):
        _serve(socket.socket(fileno=int(sys.argv[1])))
