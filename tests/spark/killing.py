"""Jobs in processes of their own that are killed with everything they started."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.interop.processes import Running, Stage

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 1200.0
"""Seconds after which a job that shows no sign of life is given up; nothing is measured by it."""


@contextlib.contextmanager
def mortal(stage: Stage, name: str, module: str, *arguments: str) -> Iterator[Running]:
    """``python -m module arguments`` in a session of its own; at the end it is killed as by ``kill -9``, Java and all.

    One of the arguments must be a path that no other process has in its command line.
    """
    command = ["setsid", "--wait", sys.executable, "-m", module, *arguments]
    running = stage.start(name, command, env={"PYTHONPATH": str(ROOT)})
    try:
        yield running
    finally:
        _kill_family(module, arguments)
        running.kill()


def _kill_family(module: str, arguments: tuple[str, ...]) -> None:
    """SIGKILL the process group of the job; its leader is told by its command line."""
    end = b"\0".join([b"-m", module.encode(), *(one.encode() for one in arguments), b""])
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                pid = int(entry.name)
                if (entry / "cmdline").read_bytes().endswith(end) and os.getpgid(pid) == pid:
                    os.killpg(pid, signal.SIGKILL)
