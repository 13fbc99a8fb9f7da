"""Real file systems that have room for little, where this machine lets us mount them."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


def run_tool(*command: object) -> subprocess.CompletedProcess[str]:
    """A program of the system, with what it says."""
    return subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)


@contextlib.contextmanager
def mounted(place: Path, *options: object) -> Iterator[None]:
    """A file system in its place, if this machine lets us."""
    done = run_tool("mount", *options, place)
    if done.returncode != 0:
        pytest.skip(f"nothing can be mounted here: {done.stderr.strip()}")
    try:
        yield
    finally:
        run_tool("umount", "--lazy", place)


@contextlib.contextmanager
def memory_disk(place: Path, size: str) -> Iterator[None]:
    """A small file system in memory."""
    place.mkdir(exist_ok=True)
    with mounted(place, "-t", "tmpfs", "-o", f"size={size}", "tmpfs"):
        yield


def fill(place: Path) -> Path:
    """Leave not one block free."""
    filler = place / "filler"
    with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))
    return filler
