"""Storage directories for benchmarks: records of one size, written as the release would, quickly."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np

from waltzctl.formats.checksums import crc32
from waltzctl.formats.control import CONTROL_FILE_NAME, FLAG_ASSIGNED, FLAG_AVAILABLE, Layout, initial_control
from waltzctl.formats.segment import (
    CHECKSUM,
    HEADER_SIZE,
    RECORD_HEADER,
    RECORD_OVERHEAD,
    SegmentHeader,
    index_name,
    segment_name,
)

KEY = uuid.UUID("b3c4b3c4-0000-4000-8000-000000000001")
CREATED = 1_700_000_000_000
BATCH = 4 << 20
GIB = 1 << 30
_NOISE = """
import os, sys, time
file = os.open(sys.argv[1], os.O_CREAT | os.O_RDWR)
data, number = os.urandom(1 << 20), 0
while True:
    os.pwrite(file, data, number % 512 << 20)
    number += 1
    time.sleep(1 / float(sys.argv[2]))
"""


def make_storage(path: Path, *, size: int, record_size: int, segment_size: int = 256 << 20) -> int:
    """Write about `size` bytes of records of `record_size` bytes into one partition; return the number of records."""
    (path / "0").mkdir(parents=True)
    control = initial_control(Layout.RELEASED, KEY, 1, CREATED)
    info = control.partitions[0]
    info = info.with_struct(*info.updated(flags=FLAG_AVAILABLE | FLAG_ASSIGNED))
    control = replace(control, partitions=(info,))
    (path / CONTROL_FILE_NAME).write_bytes(control.encode())
    total = max(1, size // record_size)
    add_segments(path, first=0, count=total, record_size=record_size, segment_size=segment_size)
    return total


def add_segments(path: Path, *, first: int, count: int, record_size: int, segment_size: int = 256 << 20) -> None:
    """Write `count` records from the id `first` on, in segments of their own."""
    number = first
    while number < first + count:
        some = min(first + count - number, max(1, segment_size // record_size))
        _write_segment(path / "0", number, some, record_size)
        number += some


def record_data(record_size: int, number: int) -> bytes:
    """What record `number` holds: words and digits, of which Parquet leaves seven tenths, and no two alike up to 8 million."""
    length = record_size - RECORD_OVERHEAD
    words = _words()
    begin = number * 4_999_999 % (len(words) - length)
    return words[begin : begin + length]


@cache
def _words() -> bytes:
    """Half words of a small vocabulary, half digits by chance; 8 MiB."""
    source = random.Random(8)
    known = [source.randbytes(6).hex() for _ in range(256)]
    return " ".join(f"{source.choice(known)} {source.randbytes(6).hex()}" for _ in range((8 << 20) // 26)).encode()


def _write_segment(directory: Path, first: int, count: int, record_size: int) -> None:
    length = record_size - RECORD_OVERHEAD
    header = SegmentHeader(0, CREATED, KEY, 0, first).encode()
    offsets = HEADER_SIZE + np.arange(count, dtype=np.int64) * (length + RECORD_OVERHEAD)
    (directory / index_name(first)).write_bytes(header + offsets.astype(">i8").tobytes())
    pack, seal = RECORD_HEADER.struct.pack, CHECKSUM.struct.pack
    with (directory / segment_name(first)).open("wb", buffering=BATCH) as out:
        out.write(header)
        for number in range(first, first + count):
            data = record_data(record_size, number)
            head = pack(number, 7, 1, 0, number & 0x7FFFFFFF, number & 0xFF, length, crc32(data))
            out.write(head)
            out.write(data)
            out.write(seal(crc32(data, crc32(head))))


def data_files(path: Path) -> list[Path]:
    """Data files and indexes of a storage directory."""
    return sorted(path.glob("*/*.seg")) + sorted(path.glob("*/*.idx"))


def total_bytes(path: Path) -> int:
    """Bytes of the data files and indexes."""
    return sum(file.stat().st_size for file in data_files(path))


@contextmanager
def workplace(given: Path | None, needed: int) -> Iterator[Path]:
    """A directory with `needed` bytes of room that is removed afterwards."""
    parent = given or Path(tempfile.gettempdir())
    status = os.statvfs(parent)
    if status.f_bavail * status.f_frsize < needed:
        raise SystemExit(f"{parent}: {needed >> 20} MiB are needed; name another place with --directory")
    place = Path(tempfile.mkdtemp(prefix="waltzctl-benchmark-", dir=given))
    try:
        yield place
    finally:
        shutil.rmtree(place)


@contextmanager
def noise(place: Path, megabytes: float) -> Iterator[None]:
    """Somebody else writes so many megabytes a second to the same file system meanwhile."""
    if not megabytes:
        yield
        return
    other = subprocess.Popen([sys.executable, "-c", _NOISE, str(place / "noise"), str(megabytes)])
    try:
        yield
    finally:
        other.kill()
        other.wait()
