#!/usr/bin/env python3
"""How fast the scanner is, beside bare reading of the same files and beside a careful loop over `struct` and zlib.

    python benchmarks/scanner.py                      the whole table, some minutes
    python benchmarks/scanner.py --size 64 --quick    the speeds alone, on smaller files

Files are warm (read before they are timed), and every figure is the best of several runs: it says what the machine can do, not
what a busy one does.  GB/s are 10^9 bytes of file per second.
"""

from __future__ import annotations

import argparse
import mmap
import os
import resource
import struct
import subprocess
import sys
import tempfile
import threading
import time
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from waltzctl.engine.scan import compiled, kernels, walk
from waltzctl.engine.scan.byte_source import FileSource
from waltzctl.engine.scan.scanner import scan_records, summarise_records
from waltzctl.formats.checksums import crc32
from waltzctl.formats.segment import HEADER_SIZE, RECORD_HEADER

SIZES = {"100 B": 100, "1 KiB": 1024, "64 KiB": 65536}


def write_segment(path: Path, total: int, size: int) -> None:
    """A segment of about `total` bytes; every record has `size` bytes of data."""
    data = os.urandom(size)
    data_checksum = crc32(data)
    pack = RECORD_HEADER.struct.pack
    with open(path, "wb") as file:
        file.write(bytes(HEADER_SIZE))
        for number in range(total // (size + 40)):
            head = pack(number, 1, 2, 3, number & 0x7FFFFFFF, 5, size, data_checksum)
            body = head + data
            file.write(body + crc32(body).to_bytes(4))


def struct_loop(data: memoryview) -> int:
    """What a careful reader in plain Python does for each record; returns the number of records."""
    header, word, crc = struct.Struct(">qqqiiI").unpack_from, struct.Struct(">I").unpack_from, zlib.crc32
    position, expected, end = HEADER_SIZE, 0, len(data)
    while position + 40 <= end:
        number, _, _, _, length, data_checksum = header(data, position)
        behind = position + 36 + length
        if length < 0 or behind + 4 > end or number != expected:
            break
        if crc(data[position + 36 : behind]) != data_checksum or crc(data[position:behind]) != word(data, behind)[0]:
            break
        position, expected = behind + 4, expected + 1
    return expected


def best(runs: int, *works: Callable[[], object]) -> list[float]:
    """Seconds of the fastest run of each; they take turns, so that a busy moment of the machine meets them all."""
    seconds = [float("inf")] * len(works)
    for _ in range(runs):
        for place, work in enumerate(works):
            begun = time.perf_counter()
            work()
            seconds[place] = min(seconds[place], time.perf_counter() - begun)
    return seconds


def speed(path: Path, work: Callable[[], object], runs: int) -> str:
    """GB/s of the fastest run over a file."""
    return f"{path.stat().st_size / best(runs, work)[0] / 1e9:.2f}"


def bare_reading(path: Path, block: int = walk.BLOCK) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    buffer = memoryview(mmap.mmap(-1, block))
    offset = 0
    while count := os.preadv(descriptor, [buffer], offset):
        offset += count
    os.close(descriptor)


def read_whole(path: Path) -> None:
    with open(path, "rb") as file:
        file.read()


def touch_map(path: Path) -> None:
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view:
        for offset in range(0, len(view), 4096):
            view[offset]


def summarise(path: Path) -> int:
    with FileSource(path) as source:
        return sum(len(item) for item in summarise_records(source, first_transaction_id=0, compiled=True))  # type: ignore[arg-type]


def all_columns(path: Path) -> int:
    with FileSource(path) as source:
        return sum(len(item) for item in scan_records(source, first_transaction_id=0, compiled=True))  # type: ignore[arg-type]


def in_threads(paths: list[Path], work: Callable[[Path], object]) -> None:
    threads = [threading.Thread(target=work, args=(path,)) for path in paths]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def table(title: str, columns: list[str], rows: list[tuple[str, list[str]]]) -> None:
    print(f"\n{title}")
    width = max(len(name) for name, _ in rows)
    print(" " * width, *(f"{column:>10}" for column in columns))
    for name, values in rows:
        print(f"{name:<{width}}", *(f"{value:>10}" for value in values))


def speeds_of(path: Path, second: Path, runs: int) -> list[tuple[str, str]]:
    """Name and value of each row for one kind of file."""
    size = path.stat().st_size
    part = memoryview(path.read_bytes()[: 24 << 20])
    bare, summary, wide, both, two = best(
        runs,
        lambda: bare_reading(path),
        lambda: summarise(path),
        lambda: all_columns(path),
        lambda: in_threads([path, second], bare_reading),
        lambda: in_threads([path, second], summarise),
    )
    loop, read, touched = best(3, lambda: struct_loop(part), lambda: read_whole(path), lambda: touch_map(path))
    loop *= size / len(part)
    timed = [
        ("bare preadv, GB/s", bare),
        ("open().read()", read),
        ("mmap, one byte a page", touched),
        ("struct and zlib loop", loop),
        ("scan: offsets, verdicts", summary),
        ("scan: every column", wide),
    ]
    return [
        *((name, f"{size / seconds / 1e9:.2f}") for name, seconds in timed),
        ("  share of bare reading", f"{bare / summary:.2f}"),
        ("  times the struct loop", f"{loop / summary:.0f}"),
        ("  two threads, times one", f"{2 * summary / two:.2f}"),
        ("  (bare reading likewise)", f"{2 * bare / both:.2f}"),
    ]


def speeds(files: dict[str, list[Path]], runs: int) -> None:
    columns = [speeds_of(*paths, runs) for paths in files.values()]
    rows = [(cells[0][0], [value for _, value in cells]) for cells in zip(*columns, strict=True)]
    table(f"warm files, one core, kernel: {kernels.choose(1 << 40, True).name}", list(files), rows)


def ways(files: dict[str, list[Path]], runs: int) -> None:
    rows = []
    for way in compiled.available_ways():
        kernels._in_use = compiled.load(way)
        values = []
        for path, _ in files.values():
            values.append(speed(path, partial(summarise, path), runs))
        rows.append((way, values))
    kernels._in_use = None
    table("the same scan by way of computing checksums, GB/s", list(files), rows)


def blocks(path: Path, runs: int) -> None:
    sizes = [64, 128, 256, 512, 1024, 2048]
    reading, scanning = [], []
    defaults = walk.RecordWalk.__init__.__kwdefaults__
    before = defaults["block"]
    for size in sizes:
        defaults["block"] = size << 10
        reading.append(speed(path, partial(bare_reading, path, size << 10), runs))
        scanning.append(speed(path, partial(summarise, path), runs))
    defaults["block"] = before
    table(
        "block size in KiB, 1 KiB records, GB/s", [str(size) for size in sizes], [("bare", reading), ("scan", scanning)]
    )


_CHILD = """
import sys, time
begun = time.perf_counter()
from waltzctl.engine.scan import kernels
from waltzctl.engine.scan.scanner import summarise_records
from waltzctl.engine.scan.byte_source import FileSource
imported = time.perf_counter()
choice = {"interpreted": False, "compiled": True, "auto": None}[sys.argv[2]]
with FileSource(sys.argv[1]) as source:
    kernels.choose(source.size(), choice)
    chosen = time.perf_counter()
    count = sum(len(item) for item in summarise_records(source, first_transaction_id=0, compiled=choice))
with open("/proc/self/status") as status:
    peak = next(line.split()[1] for line in status if line.startswith("VmHWM"))
print(imported - begun, chosen - imported, time.perf_counter() - chosen, peak)
"""


def child(path: Path, choice: str, cache: Path) -> list[float]:
    """Seconds for imports, for the kernel, for the scan; peak memory in MiB; wall seconds of the whole process."""
    environment = os.environ | {"XDG_CACHE_HOME": str(cache), "PYTHONPATH": os.pathsep.join(sys.path)}
    begun = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", _CHILD, str(path), choice], env=environment, capture_output=True, text=True, check=True
    )
    wall = time.perf_counter() - begun
    imports, kernel, scan, memory = map(float, done.stdout.split())
    return [imports, kernel, scan, memory / 1024, wall]


def processes(directory: Path) -> None:
    cache = directory / "cache"
    cache.mkdir(mode=0o700)
    path = directory / "process.seg"
    rows = []
    write_segment(path, 1 << 20, 100)
    rows.append(("compiled, nothing in the cache", child(path, "compiled", cache)))
    rows.append(
        ("compiled, from the cache", min((child(path, "compiled", cache) for _ in range(5)), key=lambda v: v[-1]))
    )
    for size in (1, 4, 8, 16, 64):
        write_segment(path, size << 20, 100)
        for choice in ("interpreted", "compiled"):
            timed = min((child(path, choice, cache) for _ in range(3)), key=lambda v: v[-1])
            rows.append((f"{choice}, {size} MiB of 100 B records", timed))
    columns = ["imports", "kernel", "scan", "MiB peak", "in all"]
    table("one process, seconds", columns, [(name, [f"{value:.3f}" for value in values]) for name, values in rows])
    rows = []
    for size in (64, 2048):
        write_segment(path, size << 20, 1024)
        rows.append((f"{size} MiB", child(path, "compiled", cache)))
    path.unlink()
    table("memory", ["MiB peak"], [(name, [f"{values[3]:.1f}"]) for name, values in rows])


def main() -> None:
    parser = argparse.ArgumentParser(description="Speed of the scanner beside bare reading and a struct loop.")
    parser.add_argument("--size", type=int, default=256, help="MiB of each file (default 256)")
    parser.add_argument("--runs", type=int, default=9, help="runs of which the best counts (default 9)")
    parser.add_argument("--directory", type=Path, help="where to write the files (default: the system's temporary one)")
    parser.add_argument("--quick", action="store_true", help="only the first table")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.directory) as name:
        directory = Path(name)
        files = {}
        for label, size in SIZES.items():
            paths = [directory / f"{size}-{number}.seg" for number in range(2)]
            write_segment(paths[0], options.size << 20, size)
            paths[1].write_bytes(paths[0].read_bytes())
            files[label] = paths
        speeds(files, options.runs)
        if not options.quick:
            ways(files, options.runs)
            blocks(files["1 KiB"][0], options.runs)
            for paths in files.values():
                for path in paths:
                    path.unlink()
            processes(directory)
    print(f"\npeak memory of this process: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB")


if __name__ == "__main__":
    main()
