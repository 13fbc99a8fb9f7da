"""Processes of a test, all of which end with it, whatever happens."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType

from tests import warm_start

HOST = "localhost"
PATIENCE = 120.0
"""Seconds after which a program that shows no sign of life is given up; nothing is measured by it."""


class GivenUpError(AssertionError):
    """Something that should have come never came; carries the end of the program's log."""


def accepts(port: int) -> bool:
    """Whether somebody listens there."""
    try:
        socket.create_connection((HOST, port), timeout=5).close()
    except OSError:
        return False
    return True


def wait_until(true: Callable[[], bool], what: str, *, of: Running | None = None, seconds: float = PATIENCE) -> None:
    """Look again and again until it is so.  Raises GivenUpError with the end of the program's log."""
    deadline = time.monotonic() + seconds
    while not true():
        if of is not None and of.status is not None:
            raise GivenUpError(f"{of.name} ended with status {of.status} before {what}\n{of.tail()}")
        if time.monotonic() > deadline:
            raise GivenUpError(f"not in {seconds:.0f} s: {what}\n{of.tail() if of else ''}")
        time.sleep(0.02)


class Running:
    """A program that was started; its output is in `log`."""

    def __init__(self, name: str, process: subprocess.Popen[bytes], log: Path) -> None:
        self.name = name
        self.process = process
        self.log = log

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def status(self) -> int | None:
        """Exit status; None while it runs."""
        return self.process.poll()

    def tail(self, size: int = 4000) -> str:
        """The end of its log, and of the log4j file beside it."""
        logs = [path for path in (self.log, self.log.with_suffix(".log4j")) if path.exists()]
        return "\n".join(f"--- {path}\n{path.read_bytes()[-size:].decode(errors='replace')}" for path in logs)

    def stop(self) -> int:
        """SIGTERM, and its exit status; SIGKILL when it does not obey."""
        if self.status is None:
            self.process.terminate()
            try:
                self.process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                self.kill()
                raise GivenUpError(f"{self.name} does not end on SIGTERM\n{self.tail()}") from None
        assert self.process.returncode is not None
        return self.process.returncode

    def kill(self) -> None:
        """SIGKILL: what a crash of the program is."""
        self.process.kill()
        self.process.wait()

    def pause(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.process.send_signal(signal.SIGCONT)


class Stage:
    """Where a test's programs run: one directory for their files and logs, one end for all of them."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._running: list[Running] = []

    def start(
        self, name: str, command: Sequence[str], *, env: Mapping[str, str] | None = None, pipes: bool = False
    ) -> Running:
        """Start a program.  `pipes`: stdin and stdout are for the caller, only stderr goes to the log."""
        self.directory.mkdir(parents=True, exist_ok=True)
        log = self.directory / f"{name}.log"
        with log.open("ab") as output:
            process = warm_start.Popen(
                list(command),
                stdin=subprocess.PIPE if pipes else subprocess.DEVNULL,
                stdout=subprocess.PIPE if pipes else output,
                stderr=output,
                env={**os.environ, **(env or {})},
                dies_with_owner=True,
            )
        running = Running(name, process, log)
        self._running.append(running)
        return running

    def __enter__(self) -> Stage:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End everything that still runs, the youngest first: politely at first, then not."""
        for running in reversed(self._running):
            if running.status is None:
                running.resume()
                running.process.terminate()
                try:
                    running.process.wait(20)
                except subprocess.TimeoutExpired:
                    running.kill()
            for pipe in (running.process.stdin, running.process.stdout):
                if pipe is not None:
                    pipe.close()
        self._running.clear()
