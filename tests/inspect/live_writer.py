"""A node that appends without end, as a process of its own: many small writes in the release's order, unsynchronised.

For each record the index entry, then the record's header, its data and its checksum, each by a write of its own; at a roll-over
the new index file, then the new data file, each empty before its header is written; now and then a truncation (the later
segments' data files, then their index files, then the current index, then the current data file) and an update of the
control file through a memory map, fields first and checksum last.

    python live_writer.py STORAGE PARTITIONS hold|free|batches|engine

``hold`` takes the lock that a node holds, ``free`` does not; ``batches`` writes whole batches, data before index; ``engine``
is our own engine instead.  It runs until its standard input is closed and prints one line once it has begun.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import random
import select
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.builders import make_records, segment_header
from waltzctl.formats.control import decode_control
from waltzctl.formats.segment import HEADER_SIZE, RECORD_HEADER, index_name, segment_name

THRESHOLD = 3000
MOST_SEGMENTS = 25


class Partition:
    """Appends to the last segment of a partition directory."""

    def __init__(self, path: Path, number: int, source: random.Random) -> None:
        self.path = path
        self.number = number
        self.source = source
        self.segments = sorted(int(one.stem) for one in path.glob("*.seg"))
        self.next_id = 0
        self._open(self.segments[-1])
        self.next_id = self.segments[-1] + (os.fstat(self.index).st_size - HEADER_SIZE) // 8
        self.floor = self.segments[-1]

    def _open(self, first: int) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND
        self.index = os.open(self.path / index_name(first), flags)
        if not os.fstat(self.index).st_size:
            os.write(self.index, segment_header(self.number, first).encode())
        self.data = os.open(self.path / segment_name(first), flags)
        if not os.fstat(self.data).st_size:
            os.write(self.data, segment_header(self.number, first).encode())

    def _close(self) -> None:
        os.close(self.index)
        os.close(self.data)

    def append(self, count: int, *, batches: bool) -> None:
        if os.fstat(self.data).st_size > THRESHOLD:
            self._close()
            self.segments.append(self.next_id)
            self._open(self.next_id)
        entries, bodies, at = b"", b"", os.fstat(self.data).st_size
        for record in make_records(count, first=self.next_id, partition=self.number, seed=self.source.randrange(9**9)):
            raw, entry = record.encode(), at.to_bytes(8)
            at += len(raw)
            self.next_id += 1
            if batches:
                entries, bodies = entries + entry, bodies + raw
                continue
            os.write(self.index, entry)
            os.write(self.data, raw[: RECORD_HEADER.size])
            if record.data:
                os.write(self.data, record.data)
            os.write(self.data, raw[-4:])
        if batches:
            os.write(self.data, bodies)
            os.write(self.index, entries)
        if len(self.segments) > MOST_SEGMENTS:
            self.truncate()

    def truncate(self) -> None:
        """Go back to somewhere in a segment that this process wrote."""
        self._close()
        keep = self.source.randrange(3, 6)
        while len(self.segments) > keep and self.segments[-1] > self.floor:
            first = self.segments.pop()
            os.unlink(self.path / segment_name(first))
            os.unlink(self.path / index_name(first))
        self._open(self.segments[-1])
        count = (os.fstat(self.index).st_size - HEADER_SIZE) // 8
        left = self.source.randrange(1, count) if count > 1 else count
        if left < count:
            at = int.from_bytes(os.pread(self.index, 8, HEADER_SIZE + 8 * left))
            os.ftruncate(self.index, HEADER_SIZE + 8 * left)
            os.ftruncate(self.data, at)
        self.next_id = self.segments[-1] + left


def update_control(memory: mmap.mmap, partition: int) -> None:
    """Write the older struct: fields, then checksum, through the map."""
    control = decode_control(bytes(memory))
    number, struct = control.partitions[partition].updated()
    offset, raw = control.layout.struct_offset(partition, number), struct.encode()
    for at in range(0, len(raw), 4):
        memory[offset + at : offset + at + 4] = raw[at : at + 4]


def closed(source: random.Random) -> bool:
    """Wait a little; whether the standard input was closed meanwhile."""
    return bool(select.select([sys.stdin], [], [], source.choice([0, 0, 0.0002, 0.002]))[0])


def run_engine(storage: Path, count: int) -> None:
    """Appends, truncations and low-water marks as our own engine makes them."""
    from waltzctl.engine.storage.directory import StorageDirectory, StorageOptions

    source = random.Random(0)
    with StorageDirectory.open(storage, options=StorageOptions(segment_size_threshold=THRESHOLD)) as opened:
        print("writing", flush=True)
        session = 100
        while not closed(source):
            partition = opened.partition(source.randrange(count))
            first, size = partition.next_transaction_id, source.choice([1, 1, 2, 5, 20])
            partition.append(make_records(size, first=first, partition=partition.number, seed=first))
            if partition.next_transaction_id > partition.local_low_water_mark + 1000:
                partition.truncate(partition.next_transaction_id - source.randrange(300, 900))
                session += 1
                partition.set_low_water_mark(session, partition.max_transaction_id)


def main() -> None:
    storage, count, mode = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    if mode == "engine":
        run_engine(storage, count)
        return
    control = os.open(storage / "waltz-storage.ctl", os.O_RDWR)
    if mode != "free":
        fcntl.lockf(control, fcntl.LOCK_EX | fcntl.LOCK_NB, 128, 0)
    memory = mmap.mmap(control, 0)
    source = random.Random(mode)
    partitions = [Partition(storage / str(number), number, source) for number in range(count)]
    print("writing", flush=True)
    while not closed(source):
        source.choice(partitions).append(source.choice([1, 1, 2, 5, 20]), batches=mode == "batches")
        if source.random() < 0.05:
            update_control(memory, source.randrange(count))


if __name__ == "__main__":
    main()
