"""What the tests of inspection share: aged directories, verdicts, and ways to damage a file."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path

from waltzctl.engine.findings import Finding
from waltzctl.engine.inspect.verify import VerifyOptions, VerifySummary, verify

LONG_AGO = time.time_ns() - 3600 * 10**9


def age(path: Path) -> Path:
    """Give every file below `path` a time of an hour ago, so that nobody can be taken to be writing it."""
    for file in [path, *path.rglob("*")]:
        os.utime(file, ns=(LONG_AGO, LONG_AGO), follow_symlinks=False)
    return path


def run(*paths: Path, **options: object) -> tuple[list[Finding], VerifySummary]:
    """Findings and summary of a verification; a sample is the same each time unless a seed is given."""
    *findings, summary = verify(paths, VerifyOptions(**{"sample_seed": 0, **options}))  # type: ignore[arg-type]
    assert isinstance(summary, VerifySummary)
    assert all(isinstance(one, Finding) for one in findings)
    return [one for one in findings if isinstance(one, Finding)], summary


def codes(findings: Iterable[Finding]) -> list[str]:
    return [one.code.value for one in findings]


def flip(path: Path, offset: int, bit: int = 0) -> None:
    """Turn over one bit of a file and keep its time."""
    times = path.stat()
    with path.open("r+b") as file:
        file.seek(offset)
        value = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([value ^ (1 << bit)]))
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def patch(path: Path, offset: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)


def cut(path: Path, size: int) -> None:
    os.truncate(path, size)


def swap(one: Path, other: Path) -> None:
    """Let each of two files have the other's name."""
    beside = one.with_name("beside")
    for source, target in ((one, beside), (other, one), (beside, other)):
        source.rename(target)


def seg(directory: Path, partition: int, first: int) -> Path:
    return directory / str(partition) / f"{first:019d}.seg"


def idx(directory: Path, partition: int, first: int) -> Path:
    return seg(directory, partition, first).with_suffix(".idx")
