"""A daemon for the processes that plan streams: each is forked from it with its modules imported.

For each stream Spark starts ``python -m pyspark.sql.streaming.python_streaming_source_runner`` (the *runner*, which asks the
source for offsets and tasks), and does not use its own daemon for it.  A runner imports PySpark, NumPy, Arrow and our modules:
0.7 s of processor time, for which the stream waits, and a run of a pipeline has several streams.  `worker_python` starts this
module instead:

- The first runner of a session imports the modules, forks the daemon, and goes on.
- Each later one hands its environment, working directory and output to the daemon, which forks the runner.  The process that
  Spark knows waits for it, and ends with its status.  If Spark ends that process, the daemon ends the runner.
- The daemon ends with the Java process that started the first runner, and after `IDLE` seconds without a runner.

A runner that cannot have a daemon, or has another ``PYTHONPATH`` than the daemon, imports its modules itself.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import json
import os
import runpy
import selectors
import signal
import socket
import sys
import threading
import traceback
from contextlib import ExitStack
from pathlib import Path

from waltzctl.engine.spark.worker_daemon import STREAM_RUNNER, import_needed

IDLE = 60.0
"""Seconds."""
_SOCKET, _LOCK = "runners.sock", "runners.lock"
_LENGTH = 4
"""Bytes in front of a request: its length."""
_OUTPUTS = (1, 2)
"""The file descriptors that a request passes on."""
_ACCEPTED = b"+"


def main(directory: Path) -> int:
    """Be the runner, or have the daemon of `directory` fork it, and return its exit status."""
    with ExitStack() as turn:
        # of several streams that begin at once, one starts the daemon, and the others wait for it
        with contextlib.suppress(OSError):
            lock = turn.enter_context((directory / _LOCK).open("w"))
            fcntl.flock(lock, fcntl.LOCK_EX)
        connection = _connection(directory)
        if connection is None:
            import_needed(STREAM_RUNNER)
            sys.modules.pop(STREAM_RUNNER, None)  # it is run as the main module; what it has imported stays
            _start(directory, turn)
    status = None if connection is None else _handed_over(connection)
    return _run() if status is None else status


def _connection(directory: Path) -> socket.socket | None:
    """A connection to the daemon; None where there is none."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.connect(str(directory / _SOCKET))
    except OSError:
        connection.close()
        return None
    return connection


def _handed_over(connection: socket.socket) -> int | None:
    """Ask the daemon for a runner, wait for its end, and return its exit status; None where it has not begun."""
    with connection:
        try:
            request = json.dumps([dict(os.environ), os.getcwd()]).encode()
            socket.send_fds(connection, [len(request).to_bytes(_LENGTH)], _OUTPUTS)
            connection.sendall(request)
            if connection.recv(1) != _ACCEPTED:
                return None
        except OSError:
            return None
        status = connection.recv(1)  # if the daemon was killed, the runner holds the other end until it ends
        return status[0] if status else 1


def _run() -> int:
    """Run Spark's program in this process; its exit status."""
    try:
        runpy.run_module(STREAM_RUNNER, run_name="__main__", alter_sys=True)
    except SystemExit as error:
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    return 0


def _start(directory: Path, turn: ExitStack) -> None:
    """Fork the daemon, if this process may: it has one thread, and can tell when Java ends.  `turn`: the lock that is held."""
    java = os.getppid()
    try:
        ended = os.pidfd_open(java)
        if os.getppid() != java or threading.active_count() > 1:
            return
        with contextlib.suppress(FileNotFoundError):
            (directory / _SOCKET).unlink()
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(str(directory / _SOCKET))
        listener.listen(64)
        if os.fork():
            listener.close()
            os.close(ended)
            return
    except (OSError, AttributeError):  # not Linux, no memory, or a path that is too long for a socket
        return
    try:
        turn.close()
        os.setsid()
        nowhere = os.open(os.devnull, os.O_RDWR)
        for one in (0, *_OUTPUTS):  # else Java would wait for the first runner's output until the daemon ends
            os.dup2(nowhere, one)
        gc.freeze()  # a runner that collects garbage would copy the pages that it shares with the daemon
        _Daemon(listener, ended).serve()
    finally:
        os._exit(0)


class _Daemon:
    def __init__(self, listener: socket.socket, java: int) -> None:
        self._listener = listener
        self._java = java
        self._path = os.environ.get("PYTHONPATH")
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ)
        self._selector.register(java, selectors.EVENT_READ)
        self._runners: dict[int, tuple[int, socket.socket]] = {}
        """By the file descriptor of its process: the process, and the connection of whoever waits for it."""

    def serve(self) -> None:
        """Fork runners until Java ends, or nobody wants one."""
        while True:
            ready = self._selector.select(None if self._runners else IDLE)
            if not ready and not self._runners:
                return
            for key, _ in ready:
                if key.fileobj is self._listener:
                    self._accept()
                elif key.fd == self._java:
                    for process, _ in self._runners.values():
                        os.kill(process, signal.SIGKILL)
                    return
                elif key.fd in self._runners:
                    self._reap(key.fd)
                elif key.data in self._runners:  # nobody waits any more
                    self._selector.unregister(key.fileobj)
                    os.kill(self._runners[key.data][0], signal.SIGTERM)

    def _accept(self) -> None:
        """Fork the runner that somebody asks for; where that fails, it runs on its own."""
        connection, _ = self._listener.accept()
        outputs: list[int] = []
        try:
            connection.settimeout(10.0)
            head, outputs, _, _ = socket.recv_fds(connection, _LENGTH, len(_OUTPUTS))
            with connection.makefile("rb") as file:
                environment, place = json.loads(file.read(int.from_bytes(head)))
            if environment.get("PYTHONPATH") != self._path or len(outputs) != len(_OUTPUTS):
                raise ValueError("modules of other directories, or no output")
            process = os.fork()
            if not process:
                self._become(environment, place, outputs)
        except (OSError, ValueError):
            connection.close()
            return
        finally:
            for one in outputs:
                os.close(one)
        ended = os.pidfd_open(process)
        self._runners[ended] = process, connection
        self._selector.register(ended, selectors.EVENT_READ)
        self._selector.register(connection, selectors.EVENT_READ, data=ended)
        with contextlib.suppress(OSError):  # whoever asked has ended: the connection is ready to tell so
            connection.sendall(_ACCEPTED)

    def _reap(self, ended: int) -> None:
        """Tell the exit status of a runner to whoever waits for it."""
        process, connection = self._runners.pop(ended)
        _, status = os.waitpid(process, 0)
        with contextlib.suppress(OSError):
            connection.sendall(bytes([os.WEXITSTATUS(status) if os.WIFEXITED(status) else 1]))
        for one in (ended, connection):
            with contextlib.suppress(KeyError):
                self._selector.unregister(one)
        connection.close()
        os.close(ended)

    def _become(self, environment: dict[str, str], place: str, outputs: list[int]) -> None:
        """Be a runner, in a forked process.

        It keeps the connection of its own: if the daemon is killed, that tells its end.
        """
        status = 1
        try:
            for one, target in zip(outputs, _OUTPUTS, strict=True):
                os.dup2(one, target)
            self._selector.close()
            self._listener.close()
            for ended, (_, connection) in self._runners.items():
                os.close(ended)
                connection.close()
            os.environ.clear()
            os.environ.update(environment)
            os.chdir(place)
            status = _run()
        except BaseException:
            traceback.print_exc()
        finally:
            for stream in (sys.stdout, sys.stderr):
                with contextlib.suppress(Exception):
                    stream.flush()
            os._exit(status & 0xFF)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
