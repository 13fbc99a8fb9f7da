"""Making several files durable: each by itself, in threads, beside one flush of their file system; in turn, over one disk.

    python benchmarks/flush.py [--files 2,4,16,64] [--rounds 6] [--directory DIR] [--noise MEGABYTES_A_SECOND]

A round writes a record of 140 bytes behind each data file and an entry of 8 bytes into each index, as a pass of a node does, and
makes the data files durable.  Printed for each number of files: the mean and the 99th percentile of the flush, and the processor
time that the process spends on it, medians over the rounds; the ratio is that of the means.  ``--noise``: somebody else
writes as much to the same file system meanwhile.

Where the package ``liburing`` is installed, and the kernel lets a process have a ring, a third way hands the flushes of all files
to io_uring and waits for them, in one call of the system.  The node does not use it, so the package is no dependency.
"""

from __future__ import annotations

import argparse
import importlib
import logging
import os
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from generated import noise, workplace

from waltzctl.engine.durable.disk import WritableFile
from waltzctl.engine.durable.file_system import FileSystem
from waltzctl.engine.durable.flusher import Flusher

FLUSHES = 60
"""Of each way in a round."""
RECORD, ENTRY = bytes(140), bytes(8)


class Files:
    """Data files and indexes that grow."""

    def __init__(self, place: Path, count: int) -> None:
        self.data = [WritableFile.create(place / f"{count}-{number}.seg") for number in range(count)]
        self.index = [WritableFile.create(place / f"{count}-{number}.idx") for number in range(count)]
        self._written = 0

    def write(self) -> None:
        for file in self.data:
            file.write_at(self._written * len(RECORD), RECORD)
        for file in self.index:
            file.write_at(self._written * len(ENTRY), ENTRY)
        self._written += 1

    def close(self) -> None:
        for file in (*self.data, *self.index):
            file.close()


class Ring:
    """Flushes by io_uring."""

    def __init__(self, library: Any, entries: int) -> None:
        """Raises OSError where the kernel gives no ring."""
        self._library, self._ring = library, library.Ring()
        self._done = library.Cqe()
        library.io_uring_queue_init(entries, self._ring, 0)

    @classmethod
    def of(cls, most_files: int) -> Ring | None:
        """For so many files at a time; None where it cannot be had, which is said."""
        try:
            return cls(importlib.import_module("liburing"), most_files)
        except (ImportError, OSError) as error:
            print(f"without io_uring: {error}")
            return None

    def flush(self, files: list[WritableFile]) -> None:
        """Make data and length of all files durable.  Raises OSError."""
        library, ring = self._library, self._ring
        for file in files:
            entry = library.io_uring_get_sqe(ring)
            library.io_uring_prep_fsync(entry, file.fileno(), library.IORING_FSYNC_DATASYNC)
        library.io_uring_submit_and_wait(ring, len(files))
        library.io_uring_wait_cqe_nr(ring, self._done, len(files))
        results = [self._done[place].res for place in range(len(files))]
        library.io_uring_cq_advance(ring, len(files))
        for result in results:
            if result < 0:
                raise OSError(-result, os.strerror(-result))

    def close(self) -> None:
        """Give the ring back."""
        self._library.io_uring_queue_exit(self._ring)


def measured(files: Files, flush: Callable[[], object]) -> tuple[float, float, float]:
    """Mean, 99th percentile and processor time of a flush, in milliseconds."""
    times, spent = [], 0.0
    for _ in range(FLUSHES):
        files.write()
        begun, used = time.perf_counter(), time.process_time()
        flush()
        times.append((time.perf_counter() - begun) * 1e3)
        spent += (time.process_time() - used) * 1e3
    return statistics.mean(times), sorted(times)[int(len(times) * 0.99)], spent / FLUSHES


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--files", default="2,4,16,64", metavar="N,...")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--directory", type=Path)
    parser.add_argument("--noise", type=float, default=0.0, metavar="MEGABYTES_A_SECOND")
    options = parser.parse_args()
    with workplace(options.directory, 1 << 30) as place, noise(place, options.noise):
        whole, flusher = FileSystem.of(place), Flusher(log=logging.getLogger("flush"))
        if whole is None:
            raise SystemExit(
                f"{place}: a flush of this file system as a whole is no promise (ext4, xfs, Linux 5.17); name another"
            )
        counts = [int(count) for count in options.files.split(",")]
        ring = Ring.of(max(counts))
        print(f"{'files':>5}  {'way':8} {'mean ms':>8} {'p99 ms':>8} {'processor ms':>13} {'times':>6}")
        for count in counts:
            files = Files(place, count)
            ways: dict[str, Callable[[], object]] = {
                "each": partial(flusher.flush, files.data),
                "whole": partial(whole.sync, files.data),
            }
            if ring is not None:
                ways["io_uring"] = partial(ring.flush, files.data)
            found: dict[str, list[tuple[float, float, float]]] = {way: [] for way in ways}
            for _ in range(options.rounds):
                for way, flush in ways.items():
                    found[way].append(measured(files, flush))
            files.close()
            rows = {way: [statistics.median(column) for column in zip(*one, strict=True)] for way, one in found.items()}
            for way, (mean, late, spent) in rows.items():
                times = f"{rows['each'][0] / mean:6.2f}" if way != "each" else ""
                print(f"{count:5}  {way:8} {mean:8.3f} {late:8.3f} {spent:13.3f} {times}", flush=True)
        if ring is not None:
            ring.close()
        flusher.close()
        whole.close()


if __name__ == "__main__":
    main()
