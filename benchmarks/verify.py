"""Speed of the whole ``verify`` of a warm directory, beside bare reading of the same files and a struct and zlib loop.

    python benchmarks/verify.py [--size 512] [--repeat 5] [--json] [--directory DIR]

All of it happens in one process per number of cores, so that start-up does not count, and by turns, so that what else the
machine does falls on all alike; each figure is the fastest of several rounds.  Size in MiB per record size.

*reading*: every data and index file read once, into one buffer per core, nothing else.  *verify*: everything that the
command checks, but for printing.  *struct loop*: a careful loop with ``struct`` and ``zlib`` over the data files that checks
id, length and both checksums of each record, and no more; it runs over a part of the data, as it is slow.
"""

from __future__ import annotations

import argparse
import json
import os
import struct
import time
import zlib
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path

from generated import data_files, make_storage, total_bytes, workplace

from waltzctl.formats.segment import RECORD_OVERHEAD

RECORD_SIZES = (100, 1024, 65_536)
BUFFER = 1 << 20
LOOP_BYTES = 48 << 20
WANTED_OF_READING, WANTED_OF_LOOP, WANTED_OF_TWO = 0.5, 20, 1.7

COLUMNS = {
    "record": 8, "reading": 8, "verify": 8, "struct": 8, "of reading": 10, "x struct": 8,
    "verify, 2 cores": 15, "reading, 2 cores": 16,
}  # fmt: skip


def read_bare(path: Path, threads: int) -> int:
    """Read every file once; each thread has one buffer and takes every so many files."""

    def read(files: list[Path]) -> int:
        buffer = bytearray(BUFFER)
        total = 0
        for file in files:
            descriptor = os.open(file, os.O_RDONLY)
            while count := os.readv(descriptor, [buffer]):
                total += count
            os.close(descriptor)
        return total

    files = data_files(path)
    if threads == 1:
        return read(files)
    with ThreadPoolExecutor(threads) as pool:
        return sum(pool.map(read, [files[place::threads] for place in range(threads)]))


def struct_loop(path: Path) -> int:
    """Bytes of records that were checked, at most about LOOP_BYTES."""
    header, checksum, crc32 = struct.Struct(">qiiiiiiI"), struct.Struct(">I"), zlib.crc32
    done = 0
    for file in sorted(path.glob("*/*.seg")):
        data = memoryview(file.read_bytes()[: 128 + LOOP_BYTES])
        (expected,) = struct.unpack_from(">q", data, 32)
        position, end = 128, len(data)
        while position + RECORD_OVERHEAD <= end:
            number, _, _, _, _, _, length, data_sum = header.unpack_from(data, position)
            stop = position + 36 + length
            if length < 0 or stop + 4 > end:
                break
            if number != expected or crc32(data[position + 36 : stop]) != data_sum:
                raise SystemExit(f"{file}: damaged at {position}")
            if crc32(data[position:stop]) != checksum.unpack_from(data, stop)[0]:
                raise SystemExit(f"{file}: damaged at {position}")
            position, expected = stop + 4, expected + 1
        done += position - 128
        if done >= LOOP_BYTES:
            break
    return done


def verify_all(path: Path, threads: int) -> int:
    from waltzctl.engine.inspect.verify import VerifyOptions, verify

    *findings, summary = verify([path], VerifyOptions(threads=threads))
    if findings or summary.status != "clean":  # type: ignore[union-attr]
        raise SystemExit(f"{path}: {findings[:3]} {summary}")
    return total_bytes(path)


def _speed(work: Callable[[], int]) -> float:
    begun = time.perf_counter()
    done = work()
    return done / (time.perf_counter() - begun)


def measure(path: Path, cores: list[int], repeat: int) -> dict[str, float]:
    """Bytes a second of each way, the best of `repeat` rounds, on these cores."""
    os.sched_setaffinity(0, cores)
    ways: dict[str, Callable[[], int]] = {
        "verify": lambda: verify_all(path, len(cores)),
        "reading": lambda: read_bare(path, len(cores)),
    }
    if len(cores) == 1:
        ways["struct_loop"] = lambda: struct_loop(path)
    best = dict.fromkeys(ways, 0.0)
    for work in ways.values():
        work()  # compiles, and warms the cache
    for _ in range(repeat):
        for name, work in ways.items():
            best[name] = max(best[name], _speed(work))
    return best


@dataclass(frozen=True, slots=True)
class Row:
    """Bytes a second for one record size; ratios derive from them."""

    record_size: int
    records: int
    reading: float
    verify: float
    struct_loop: float
    verify_two: float | None
    reading_two: float | None

    @property
    def of_reading(self) -> float:
        return self.verify / self.reading

    @property
    def of_loop(self) -> float:
        return self.verify / self.struct_loop

    @property
    def of_one(self) -> float | None:
        return None if self.verify_two is None else self.verify_two / self.verify


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--size", type=int, default=512, metavar="MIB")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--directory", type=Path)
    arguments = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    rows = []
    for record_size in RECORD_SIZES:
        with workplace(arguments.directory, (arguments.size << 20) * 5 // 4) as place:
            storage = place / "storage"
            records = make_storage(storage, size=arguments.size << 20, record_size=record_size, segment_size=64 << 20)
            one = _elsewhere(storage, cores[:1], arguments.repeat)
            two = _elsewhere(storage, cores[:2], arguments.repeat) if len(cores) > 1 else None
            rows.append(
                Row(
                    record_size,
                    records,
                    one["reading"],
                    one["verify"],
                    one["struct_loop"],
                    two["verify"] if two else None,
                    two["reading"] if two else None,
                )
            )
    if arguments.json:
        ratios = [{"of_reading": row.of_reading, "of_loop": row.of_loop, "of_one": row.of_one} for row in rows]
        print(
            json.dumps(
                {"benchmark": "verify", "rows": [asdict(row) | ratio for row, ratio in zip(rows, ratios, strict=True)]}
            )
        )
        return
    print(f"whole verify of a warm directory of {arguments.size} MiB, GB/s; best of {arguments.repeat}")
    heads = [f"{name:>{width}}" for name, width in COLUMNS.items()]
    print("  ".join(heads))
    for row in rows:
        two_cores = f"{row.verify_two / 1e9:.2f} ({row.of_one:.2f}x)" if row.verify_two else "-"
        read_two = f"{row.reading_two / 1e9:.2f} ({row.reading_two / row.reading:.2f}x)" if row.reading_two else "-"
        cells = [
            str(row.record_size),
            f"{row.reading / 1e9:.2f}",
            f"{row.verify / 1e9:.2f}",
            f"{row.struct_loop / 1e9:.3f}",
            f"{row.of_reading:.2f}",
            f"{row.of_loop:.1f}",
            two_cores,
            read_two,
        ]
        print("  ".join(f"{cell:>{width}}" for cell, width in zip(cells, COLUMNS.values(), strict=True)))
    print(
        f"wanted: at least {WANTED_OF_READING} of reading everywhere, {WANTED_OF_LOOP}x the struct loop at"
        f" {RECORD_SIZES[0]} bytes, {WANTED_OF_TWO}x with two cores where reading is not the limit"
    )


def _elsewhere(path: Path, cores: list[int], repeat: int) -> dict[str, float]:
    """Measure in a process of its own: affinity, thread pools and what was imported are then its own."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(measure, path, cores, repeat).result()


if __name__ == "__main__":
    main()
