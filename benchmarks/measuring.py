"""Measuring whole processes: elapsed time and peak memory, without what the measuring process itself holds."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[1]
_LAUNCHER = """
import os, sys, time
begun = time.perf_counter()
pid = os.fork()
if pid == 0:
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.execv(sys.argv[1], sys.argv[1:])
_, status, usage = os.wait4(pid, 0)
print(time.perf_counter() - begun, usage.ru_maxrss, os.waitstatus_to_exitcode(status))
"""
"""A process inherits its parent's peak memory, so the parent is one that holds next to nothing."""


@dataclass(frozen=True, slots=True)
class Measured:
    """Elapsed seconds, peak resident memory in KiB, and exit status of a process."""

    seconds: float
    peak_kib: int
    status: int


def environment(checkout: Path = PROJECT) -> dict[str, str]:
    """The environment in which a command of this project, or of another checkout of it, runs, installed or not.

    Bytecode is kept, as it is for an installed program: else every process would compile all its modules anew.
    """
    path = [str(checkout), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path), "PYTHONDONTWRITEBYTECODE": ""}


def measure(*words: str, repeat: int = 1, cores: Sequence[int] | None = None) -> Measured:
    """Run ``waltzctl WORDS`` and measure it; the fastest time and the largest peak of `repeat` runs."""
    command = [sys.executable, "-m", "waltzctl", *words]
    if cores is not None:
        command = ["/usr/bin/env", "taskset", "-c", ",".join(map(str, cores)), *command]
    runs = []
    for _ in range(repeat):
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-c", _LAUNCHER, *command],
            capture_output=True,
            text=True,
            check=True,
            env=environment(),
        )
        seconds, peak, status = done.stdout.split()
        runs.append(Measured(float(seconds), int(peak), int(status)))
    return Measured(min(run.seconds for run in runs), max(run.peak_kib for run in runs), runs[-1].status)


def expect_clean(measured: Measured) -> Measured:
    """Refuse figures of a run that did not do its work."""
    if measured.status != 0:
        raise SystemExit(f"the measured command ended with status {measured.status}")
    return measured
