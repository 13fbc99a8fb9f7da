"""A program: group commits on a disk that fails in earnest.

``python -m tests.storage.faulty_disks FAULT PLACE TARGET``: PLACE is a directory for the storage directory (of its own file
system for *full*), TARGET receives a copy of it as it is at the end.  Prints how many transactions were acknowledged; whatever
breaks a promise ends it with a traceback.
"""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.blocks import encoded_block, wire_record
from tests.builders import build_directory, make_records
from waltzctl.engine.errors import DiskFullError, DiskReadError, DiskWriteError
from waltzctl.engine.storage.directory import StorageDirectory, StorageOptions
from waltzctl.engine.storage.partition import Partition
from waltzctl.formats.segment import Record
from waltzctl.formats.wire.records import pack_records


def group(following: int) -> list[Record]:
    return make_records(40, first=following, size=400)


def append_group(partition: Partition) -> None:
    records = group(partition.next_transaction_id)
    partition.append_blocks([encoded_block(records[:1]), encoded_block(records[1:], 13)])


def everything_is_there(partition: Partition, acknowledged: int) -> None:
    assert partition.next_transaction_id == acknowledged, (partition.next_transaction_id, acknowledged)
    wanted = [record for first in range(0, acknowledged, 40) for record in group(first)]
    found = partition.read_wire(0, acknowledged + 100)
    assert found.data == pack_records(map(wire_record, wanted))


def until_it_fails(storage: StorageDirectory, kind: type[DiskWriteError]) -> tuple[int, DiskWriteError]:
    """Append to partition 0 until it fails; the acknowledged transactions, and the error."""
    partition = storage.partition(0)
    while True:
        acknowledged = partition.next_transaction_id
        try:
            append_group(partition)
        except kind as error:
            everything_is_there(partition, acknowledged)
            return acknowledged, error


def full(storage: StorageDirectory, place: Path) -> int:
    """The file system has no room: the group is gone, the partition goes on as soon as there is some."""
    ballast = place / "ballast"
    ballast.write_bytes(bytes(100_000))
    for _ in range(2):
        acknowledged, error = until_it_fails(storage, DiskFullError)
        assert "No space left" in str(error), error
        assert storage.partition(0).failed is None
        everything_is_there(storage.partition(1), 0)
        ballast.unlink(missing_ok=True)
    everything_is_there(storage.partition(0), acknowledged)
    return acknowledged


def limited(storage: StorageDirectory, place: Path) -> int:
    """A file may not grow beyond 100 kB."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
    acknowledged, error = until_it_fails(storage, DiskWriteError)
    assert "File too large" in str(error), error
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    append_group(storage.partition(0))
    return acknowledged + 40


@contextmanager
def no_descriptors() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = sorted(int(name) for name in os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (used[-1], hard))
    held = []
    try:
        while True:  # those below the limit that are free
            held.append(os.dup(0))
    except OSError:
        yield
    finally:
        for one in held:
            os.close(one)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def descriptors(storage: StorageDirectory, place: Path) -> int:
    """No descriptor is left: a roll-over fails, reading a segment that is not open fails, and both work again later."""
    partition = storage.partition(0)
    for _ in range(3):
        append_group(partition)
    with no_descriptors():
        error = _refused(partition)
        assert "Too many open files" in str(error), error
        storage.partition(1).append_blocks([encoded_block(make_records(1, partition=1, size=400))])
        with contextlib.suppress(DiskReadError):
            storage.partition(1).read_wire(0, 1)
            raise AssertionError("the segment was opened without a descriptor")
    assert partition.failed is None
    append_group(partition)
    assert storage.partition(1).read_wire(0, 9).count == 1
    return partition.next_transaction_id


def _refused(partition: Partition) -> DiskWriteError:
    acknowledged = partition.next_transaction_id
    try:
        append_group(partition)
    except DiskWriteError as error:
        assert partition.next_transaction_id == acknowledged
        return error
    raise AssertionError("the group rolled over without a descriptor")


FAULTS: dict[str, tuple[Callable[[StorageDirectory, Path], int], int]] = {
    "full": (full, 10**9),
    "full, rolling": (full, 30_000),
    "limited": (limited, 10**9),
    "descriptors": (descriptors, 15_000),
}


def main(fault: str, place: Path, target: Path) -> None:
    work, threshold = FAULTS[fault]
    build_directory(place / "s", {0: 0, 1: 0})
    with StorageDirectory.open(place / "s", options=StorageOptions(threshold, cached_segments=5)) as storage:
        acknowledged = work(storage, place)
        everything_is_there(storage.partition(0), acknowledged)
    shutil.copytree(place / "s", target)
    print(acknowledged)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
