"""What the tests of the storage engine share."""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.builders import build_directory, digest, make_records
from tests.scan.wire_support import table_of
from waltzctl.engine.errors import PartitionQuarantinedError
from waltzctl.engine.findings import Finding
from waltzctl.engine.scan.list_answers import ListAnswers, Requests
from waltzctl.engine.storage.directory import StorageDirectory, StorageOptions
from waltzctl.engine.storage.partition import Partition
from waltzctl.engine.storage.partition_log import PartitionLog
from waltzctl.engine.storage.wire_records import WireRecords
from waltzctl.formats.control import Layout
from waltzctl.formats.segment import HEADER_SIZE, Record, encode_records, index_name, segment_name
from waltzctl.formats.wire.frame import FRAME_HEADER
from waltzctl.formats.wire.storage import (
    PREFIX,
    RecordHeaderListRequest,
    RecordHeaderListResponse,
    RecordListRequest,
    RecordListResponse,
    decode,
    encode,
)

LAYOUTS = pytest.mark.parametrize("layout", list(Layout))
SMALL = StorageOptions(segment_size_threshold=1000, cached_segments=2)


def built(
    path: Path, count: int, *, layout: Layout = Layout.RELEASED, per_segment: int = 10, mark: int = -1
) -> list[Record]:
    """A directory with one partition of `count` records; returns them."""
    build_directory(path, {0: count}, layout=layout, per_segment=per_segment, local_low_water_mark=mark)
    return make_records(count)


def data_path(path: Path, first: int = 0, partition: int = 0) -> Path:
    return path / str(partition) / segment_name(first)


def index_path(path: Path, first: int = 0, partition: int = 0) -> Path:
    return path / str(partition) / index_name(first)


def offset_of(records: Sequence[Record], transaction_id: int) -> int:
    """Offset of a record in a data file that holds `records` from its beginning."""
    return HEADER_SIZE + sum(record.size for record in records if record.transaction_id < transaction_id)


def damage(path: Path, offset: int, change: int = 0xFF) -> None:
    """Flip bits of one byte; a negative offset counts from the end."""
    raw = bytearray(path.read_bytes())
    raw[offset] ^= change
    path.write_bytes(raw)


def write_at(path: Path, offset: int, data: bytes) -> None:
    raw = bytearray(path.read_bytes())
    raw[offset : offset + len(data)] = data
    path.write_bytes(raw)


def codes(findings: Sequence[Finding]) -> list[str]:
    return sorted(str(finding.code) for finding in findings)


def entries(path: Path) -> list[int]:
    raw = path.read_bytes()[HEADER_SIZE:]
    return list(struct.unpack(f">{len(raw) // 8}q", raw))


def expected_data(records: Sequence[Record]) -> bytes:
    return encode_records(records)[0]


def kept_bytes(path: Path) -> bytes:
    """Everything that lies in the quarantine, so that a test can look for bytes in it."""
    places = sorted((path / ".waltzctl" / "quarantine").rglob("*"))
    return b"".join(place.read_bytes() for place in places if place.is_file())


@contextmanager
def full_disk() -> Iterator[None]:
    """Nothing that needs space can be made: neither a directory nor a file."""

    def no_directory(path: object, *_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    def no_file(path: Any, flags: int, *rest: Any, **more: Any) -> int:
        if flags & os.O_CREAT and not os.path.exists(path):
            no_directory(path)
        return opens(path, flags, *rest, **more)

    opens = os.open
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(os, "mkdir", no_directory)
        patched.setattr(os, "open", no_file)
        yield


@contextmanager
def opened(path: Path, options: StorageOptions = SMALL) -> Iterator[StorageDirectory]:
    with StorageDirectory.open(path, options=options) as storage:
        yield storage


def assert_quarantined_and_kept(path: Path, before: dict[str, str], *expected: str) -> None:
    """Every byte of the partition is as it was, every write is refused, and the findings are these."""
    with opened(path) as storage:
        partition = storage.partition(0)
        assert partition.quarantined
        assert set(expected) <= set(codes(partition.findings)), partition.findings
        following = make_records(1, first=partition.next_transaction_id)
        for write in (
            lambda: partition.append(following),
            lambda: partition.truncate(-1),
            lambda: partition.set_low_water_mark(99, 10**6),
        ):
            with pytest.raises(PartitionQuarantinedError):
                write()
    after = digest(path)
    assert {name: after.get(name) for name in before} == before


def listed_at_once(
    log: Partition | PartitionLog, first: int, count: int, most: int = 10**6, *, headers: bool = False
) -> WireRecords | None:
    """The records of a list that is answered at once; None where it is not."""
    kind = RecordHeaderListRequest if headers else RecordListRequest
    received = encode(kind(1, 2, 3, first, count))
    answers = ListAnswers()
    log.answer_lists(answers, Requests(received, table_of(received), 1, most, 10**6))
    frame = answers.take()
    if not answers.answered:
        assert frame == b""
        return None
    body = decode(frame[FRAME_HEADER.size :])
    assert isinstance(body, (RecordListResponse, RecordHeaderListResponse))
    found = body.headers if isinstance(body, RecordHeaderListResponse) else body.records
    return WireRecords(len(found), frame[FRAME_HEADER.size + PREFIX.size + 4 :])


def unexaminable(patch: pytest.MonkeyPatch, *paths: Path, error: int = errno.EIO, times: int = 1 << 30) -> None:
    """``stat`` of these paths fails: a bad block of inodes hides a segment's data file and its index."""
    hidden, left = {os.fspath(one) for one in paths}, times

    def failing(call: Any) -> Any:
        def examine(path: Any, *arguments: Any, **named: Any) -> Any:
            nonlocal left
            if left and not isinstance(path, int) and os.fspath(path) in hidden:
                left -= 1
                raise OSError(error, os.strerror(error), os.fspath(path))
            return call(path, *arguments, **named)

        return examine

    patch.setattr(os, "stat", failing(os.stat))
    patch.setattr(os, "lstat", failing(os.lstat))


def put_aside_behind_a_link(storage: Path, disk: Path, number: int) -> None:
    """Put a partition of the documented layout aside whose directory is a link to another disk."""
    disk.mkdir()
    (storage / str(number)).rename(disk / str(number))
    (storage / str(number)).symlink_to(disk / str(number))
    with opened(storage) as held:
        held.unassign(number, delete_files=False)
