"""Commands in this process, fast enough for thousands of directories, and killed at any of their changes."""

from __future__ import annotations

import io
import json
import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import typer.main

from waltzctl.app import app
from waltzctl.engine.durable import disk

SHARED_MEMORY = "/dev/shm" if os.path.isdir("/dev/shm") else None
"""Where directories are built: the syncs of thousands of repairs would wait for a disk otherwise."""
PATIENCE = 20
"""Seconds without a moment of the processor's time after which a command hangs: it waits at a FIFO for somebody to write.  One
that is merely slow, or on a busy machine, is never interrupted."""
KILLED = 137
LONG_AGO = 1_700_000_000
"""Seconds since 1970."""


class HangingError(BaseException):
    """A command waits for ever.  No Exception, so that no command can take it for an error of its own."""


@dataclass(frozen=True)
class Said:
    """What a command answered."""

    command: str
    status: int
    out: str
    err: str

    @property
    def objects(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.out.splitlines() if line.startswith("{")]

    def only(self, kind: str) -> list[dict[str, Any]]:
        return [one for one in self.objects if one.get("type") == kind]

    @property
    def codes(self) -> set[str]:
        return {one["code"] for one in self.only("finding")}


@cache
def _tree() -> Any:
    """The command tree, which takes far longer to make than a small directory to verify."""
    return typer.main.get_command(app)


@contextmanager
def _patience() -> Iterator[None]:
    spent = 0.0  # of the time before: asking for it costs more than many a command, so the first alarm only looks

    def look(number: int, frame: object) -> None:
        nonlocal spent
        idle, spent = time.process_time() - spent < 0.001, time.process_time()
        if idle:
            raise HangingError

    before = signal.signal(signal.SIGALRM, look)
    signal.setitimer(signal.ITIMER_REAL, PATIENCE, PATIENCE)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def aged(root: Path) -> Path:
    """Let everything have been written long ago, or verify would wait whether somebody still writes."""
    for directory, _, names in os.walk(root):
        for name in (*names, "."):
            os.utime(os.path.join(directory, name), (LONG_AGO, LONG_AGO), follow_symlinks=name == ".")
    return root


def called(command: str, root: Path, *arguments: object, given: bytes = b"") -> Said:
    """Run a command on a directory, in this process; stdin is no terminal.  Raises HangingError."""
    aged(root)
    arguments = (command, root, *arguments)
    words = [os.fspath(one) if isinstance(one, Path) else str(one) for one in arguments]
    streams = [
        io.TextIOWrapper(io.BytesIO(one), encoding="utf-8", errors="backslashreplace") for one in (given, b"", b"")
    ]
    before = sys.stdin, sys.stdout, sys.stderr
    status = 0
    sys.stdin, sys.stdout, sys.stderr = streams
    try:
        with _patience():
            _tree().main(args=words, prog_name="waltzctl")
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 1
    except Exception:  # what went past the one place where errors are rendered
        status = 1
        traceback.print_exc()
    finally:
        sys.stdin, sys.stdout, sys.stderr = before
    texts = []
    for one in streams[1:]:
        one.flush()
        texts.append(one.buffer.getvalue().decode(errors="backslashreplace"))  # type: ignore[attr-defined]  # a BytesIO
    return Said(" ".join(words), status, *texts)


@dataclass(frozen=True)
class Watched:
    """What a command said, and the path of every change of the disk that it made."""

    said: Said
    changes: tuple[Path, ...]

    def moment(self, rng: random.Random) -> int:
        """A change after which to kill it: any, or one of those that touch the storage's own files, with the same chance."""
        count = len(self.changes)
        own = [place for place, path in enumerate(self.changes, 1) if disk.STATE_DIRECTORY not in path.parts]
        return rng.choice(own) if own and rng.random() < 0.5 else rng.randint(1, count)


def watched(command: str, root: Path, *arguments: object) -> Watched:
    """Run a command and note what it changes."""
    changes: list[Path] = []
    disk.observer = lambda change: changes.append(change.path)
    try:
        said = called(command, root, *arguments)
    finally:
        disk.observer = None
    return Watched(said, tuple(changes))


def killed(moment: int, command: str, root: Path, *arguments: object) -> bool:
    """Run a command in a child that dies, as by SIGKILL, right after so many changes; False when it ended before."""
    child = os.fork()
    if child == 0:
        left = moment

        def die(change: disk.Change) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                os._exit(KILLED)

        disk.observer = die
        try:
            called(command, root, *arguments)
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status) == KILLED
