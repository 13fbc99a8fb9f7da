"""Storage directories for tests, written from ``formats`` alone: the engine under test has no part in its own input."""

from __future__ import annotations

import hashlib
import random
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from waltzctl.formats.control import FLAG_ASSIGNED, FLAG_AVAILABLE, Layout, PartitionInfo, initial_control
from waltzctl.formats.request_id import RequestId
from waltzctl.formats.segment import (
    HEADER_SIZE,
    Record,
    SegmentHeader,
    encode_entries,
    encode_records,
    index_name,
    segment_name,
)

KEY = uuid.UUID("01234567-89ab-cdef-0123-456789abcdef")
CREATED = 1_700_000_000_123


def make_records(
    count: int, *, first: int = 0, partition: int = 0, size: int | None = None, seed: int = 0
) -> list[Record]:
    """`count` records with consecutive ids; data of `size` bytes, or of varying sizes that include 0."""
    source = random.Random(f"{seed}.{partition}.{first}")
    return [
        Record.make(
            number,
            RequestId(source.randrange(-5, 100), 2, partition, number),
            source.randrange(-(2**31), 2**31),
            source.randbytes(size if size is not None else source.choice([0, 1, 17, 40, 100, 300])),
        )
        for number in range(first, first + count)
    ]


def segment_header(partition: int, first: int, *, key: uuid.UUID = KEY, created: int = CREATED) -> SegmentHeader:
    return SegmentHeader(0, created, key, partition, first)


def write_segment(
    directory: Path, records: Sequence[Record], *, partition: int = 0, first: int | None = None, key: uuid.UUID = KEY
) -> Path:
    """Write a data file and its index; `first` is needed only for an empty segment.  Returns the data file's path."""
    start = records[0].transaction_id if first is None else first
    body, offsets = encode_records(records)
    path = directory / segment_name(start)
    header = segment_header(partition, start, key=key).encode()
    path.write_bytes(header + body)
    entries = encode_entries([HEADER_SIZE + offset for offset in offsets])
    (directory / index_name(start)).write_bytes(header + entries)
    return path


def with_marks(info: PartitionInfo, **changes: int) -> PartitionInfo:
    number, written = info.updated(**changes)
    return info.with_struct(number, written)


def build_directory(
    path: Path,
    partitions: Mapping[int, int | Sequence[Sequence[Record]]],
    *,
    layout: Layout = Layout.RELEASED,
    num_partitions: int | None = None,
    per_segment: int = 50,
    size: int | None = None,
    session: int = 3,
    local_low_water_mark: int | None = None,
    key: uuid.UUID = KEY,
) -> Path:
    """Write a clean storage directory and return its path.

    `partitions`: number of records (cut into segments of `per_segment`) or the segments' records themselves.  Marks:
    session `session`, low-water mark = local low-water mark = the middle of the records unless given.
    """
    path.mkdir(parents=True, exist_ok=True)
    total = num_partitions or (max(partitions, default=0) + 1)
    control = initial_control(layout, key, total, CREATED)
    infos = list(control.partitions)
    for number, wanted in partitions.items():
        directory = path / str(number)
        directory.mkdir()
        if isinstance(wanted, int):
            records = make_records(wanted, partition=number, size=size)
            segments: Sequence[Sequence[Record]] = [
                records[i : i + per_segment] for i in range(0, len(records), per_segment)
            ] or [[]]
        else:
            segments = wanted
        last = -1
        for segment in segments:
            write_segment(directory, segment, partition=number, first=last + 1, key=key)
            last = segment[-1].transaction_id if segment else last
        mark = (last // 2 if last > 0 else last) if local_low_water_mark is None else local_low_water_mark
        info = infos[number]
        if layout is Layout.RELEASED:
            info = with_marks(info, flags=FLAG_AVAILABLE | FLAG_ASSIGNED)
        infos[number] = with_marks(info, session_id=session, low_water_mark=mark, local_low_water_mark=mark)
    (path / "waltz-storage.ctl").write_bytes(replace(control, partitions=tuple(infos)).encode())
    return path


def digest(path: Path) -> dict[str, str]:
    """SHA-256 of every file below `path`, by relative name."""
    return {
        str(file.relative_to(path)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in sorted(path.rglob("*"))
        if file.is_file()
    }
