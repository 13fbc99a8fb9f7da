"""Storage directories in which one thing is unusual, each with a name: what a start of a release is tried on."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from tests.builders import build_directory, make_records, write_segment
from tests.inspect.helpers import idx, seg
from waltzctl.formats.checksums import crc32
from waltzctl.formats.control import CONTROL_FILE_NAME, CONTROL_HEADER, Layout, decode_control
from waltzctl.formats.segment import ENTRY_SIZE, HEADER_SIZE, RECORD_HEADER, SEGMENT_HEADER, Record

SIZE = 20
RECORD = SIZE + 40
LONG = 1600
"""Records of the partition in which a release's scan does not begin at the beginning."""

Change = Callable[[Path], object]


def small(path: Path, *, layout: Layout = Layout.RELEASED, mark: int = 14) -> Path:
    """Partition 0 with segments 0, 10 and 20 of ten records, partition 1 with one segment; partition 2 is not assigned."""
    return build_directory(
        path, {0: 30, 1: 5}, layout=layout, num_partitions=3, per_segment=10, size=SIZE, local_low_water_mark=mark
    )


def long(path: Path, *, mark: int = -1) -> Path:
    """One segment with more records than lie between two checkpoints."""
    return build_directory(path, {0: LONG}, num_partitions=1, per_segment=LONG, size=SIZE, local_low_water_mark=mark)


def at(place: int) -> int:
    return HEADER_SIZE + RECORD * place


def patch(path: Path, offset: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)


def flip(path: Path, offset: int) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        value = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([value ^ 1]))


def header_field(path: Path, name: str, value: bytes) -> None:
    patch(path, SEGMENT_HEADER.offset_of(name), value)


def length_of(path: Path, place: int, length: int) -> None:
    patch(path, at(place) + RECORD_HEADER.offset_of("data_length"), length.to_bytes(4, signed=True))


def data_checksum(path: Path, place: int) -> None:
    """The record is right, the data's own checksum is not; a release does not compare it."""
    record = Record.decode(path.read_bytes()[at(place) : at(place + 1)])
    wrong = replace(record, data_checksum=record.data_checksum ^ 1)
    patch(path, at(place), replace(wrong, record_checksum=crc32(wrong.encode()[:-4])).encode())


def stray(storage: Path, name: str, *, index: str | None = None, partition: int = 0, first: int = 10) -> Path:
    path = storage / "0" / name
    shutil.copy(seg(storage, partition, first), path)
    if index is not None:
        shutil.copy(idx(storage, partition, first), storage / "0" / index)
    return path


def renamed(storage: Path, first: int) -> None:
    seg(storage, 0, first).rename(storage / "0" / "x.seg")
    idx(storage, 0, first).rename(storage / "0" / "x.idx")


def instead(path: Path, make: Callable[[Path], object]) -> None:
    path.unlink(missing_ok=True)
    make(path)


def foreign_cluster(storage: Path) -> None:
    write_segment(storage / "0", make_records(3, first=30), key=uuid.UUID(int=9))


def structs(storage: Path, *numbers: int, partition: int = 0) -> None:
    path = storage / CONTROL_FILE_NAME
    layout = decode_control(path.read_bytes()).layout
    for number in numbers:
        flip(path, layout.struct_offset(partition, number))


def tie(storage: Path, partition: int = 0) -> None:
    path = storage / CONTROL_FILE_NAME
    control = decode_control(path.read_bytes())
    current = control.partitions[partition].current_struct
    assert current is not None
    for number in (1, 2):
        patch(path, control.layout.struct_offset(partition, number), current.encode())


def count(storage: Path, change: int) -> None:
    path = storage / CONTROL_FILE_NAME
    present = decode_control(path.read_bytes()).header.num_partitions
    patch(path, CONTROL_HEADER.offset_of("num_partitions"), (present + change).to_bytes(4, signed=True))


def resized(path: Path, change: int) -> None:
    os.truncate(path, path.stat().st_size + change)


def empty_directory(storage: Path) -> None:
    shutil.rmtree(storage / "0")
    (storage / "0").mkdir()


def only_orphan(storage: Path, size: int) -> None:
    kept = idx(storage, 0, 0).read_bytes()
    empty_directory(storage)
    idx(storage, 0, 0).write_bytes(kept[:size])


CTL = CONTROL_FILE_NAME
OF_SMALL: dict[str, Change] = {
    "nothing": lambda s: None,
    # names
    "own copy with index": lambda s: stray(s, "x.seg", index="x.idx"),
    "own copy without index": lambda s: stray(s, "x.seg"),
    "renamed in the middle": lambda s: renamed(s, 10),
    "renamed at the end": lambda s: renamed(s, 20),
    "of another partition": lambda s: stray(s, "x.seg", index="x.idx", partition=1, first=0),
    "name without padding": lambda s: stray(s, "1.seg"),
    "name that is too long": lambda s: stray(s, "00000000000000000010.seg", index="00000000000000000010.idx"),
    "nothing but the ending": lambda s: stray(s, ".seg", index=".idx"),
    "nothing but the ending, no index": lambda s: stray(s, ".seg"),
    "the ending twice": lambda s: stray(s, "a.seg.seg", index="a.idx.idx"),
    "the ending twice, once in the index": lambda s: stray(s, "a.seg.seg", index="a.seg.idx"),
    "backup": lambda s: stray(s, "0000000000000000000.seg.bak"),
    "capitals": lambda s: stray(s, "0000000000000000010.SEG"),
    "index of nothing": lambda s: shutil.copy(idx(s, 0, 10), s / "0" / "x.idx"),
    "junk": lambda s: (s / "0" / "notes.txt").write_text("x"),
    "junk called like data": lambda s: (s / "0" / "x.seg").write_text("x"),
    "junk of a header's length": lambda s: (s / "0" / "x.seg").write_bytes(bytes(HEADER_SIZE)),
    "stray in a partition that is not assigned": lambda s: ((s / "2").mkdir(), (s / "2" / "x.seg").write_text("x")),
    "stray beside partitions": lambda s: (s / "x.seg").write_text("x"),
    # what is no file
    "directory as data": lambda s: seg(s, 0, 77).mkdir(),
    "directory as stray data": lambda s: (s / "0" / "x.seg").mkdir(),
    "directory as orphan index": lambda s: idx(s, 0, 77).mkdir(),
    "directory as index": lambda s: instead(idx(s, 0, 10), os.mkdir),
    "dead link as data": lambda s: seg(s, 0, 77).symlink_to("nowhere"),
    "dead link as index": lambda s: instead(idx(s, 0, 10), lambda path: path.symlink_to("nowhere")),
    "link to the data": lambda s: (seg(s, 0, 10).rename(s / "kept"), seg(s, 0, 10).symlink_to("../kept")),
    "FIFO as data": lambda s: instead(seg(s, 0, 20), os.mkfifo),
    "FIFO as index": lambda s: instead(idx(s, 0, 20), os.mkfifo),
    "file as partition": lambda s: (shutil.rmtree(s / "1"), (s / "1").write_text("x")),
    # data files and indexes
    "no index": lambda s: idx(s, 0, 10).unlink(),
    "no last index": lambda s: idx(s, 0, 20).unlink(),
    "no data": lambda s: seg(s, 0, 10).unlink(),
    "no last data": lambda s: seg(s, 0, 20).unlink(),
    "orphan index behind": lambda s: idx(s, 0, 30).write_bytes(idx(s, 0, 20).read_bytes()[:HEADER_SIZE]),
    "empty data": lambda s: os.truncate(seg(s, 0, 20), 0),
    "data one byte short of a header": lambda s: os.truncate(seg(s, 0, 20), HEADER_SIZE - 1),
    "data of a header": lambda s: os.truncate(seg(s, 0, 20), HEADER_SIZE),
    "empty data behind": lambda s: seg(s, 0, 30).write_bytes(b""),
    "empty index": lambda s: os.truncate(idx(s, 0, 20), 0),
    "index one byte short of a header": lambda s: os.truncate(idx(s, 0, 20), HEADER_SIZE - 1),
    "index of a header": lambda s: os.truncate(idx(s, 0, 20), HEADER_SIZE),
    "index of a header in the middle": lambda s: os.truncate(idx(s, 0, 10), HEADER_SIZE),
    "index too long": lambda s: resized(idx(s, 0, 20), 80),
    "key of the data": lambda s: header_field(seg(s, 0, 10), "cluster_key", bytes(16)),
    "key of the index": lambda s: header_field(idx(s, 0, 10), "cluster_key", bytes(16)),
    "partition of the data": lambda s: header_field(seg(s, 0, 10), "partition", bytes([0, 0, 0, 9])),
    "partition of the index": lambda s: header_field(idx(s, 0, 10), "partition", bytes([0, 0, 0, 9])),
    "version of both": lambda s: [header_field(path, "version", b"abcd") for path in (seg(s, 0, 10), idx(s, 0, 10))],
    "first id of the data": lambda s: header_field(seg(s, 0, 20), "first_transaction_id", (21).to_bytes(8)),
    "first id of the index": lambda s: header_field(idx(s, 0, 20), "first_transaction_id", (19).to_bytes(8)),
    "first id of the index, far in front": lambda s: header_field(
        idx(s, 0, 0), "first_transaction_id", (40).to_bytes(8)
    ),
    "first id of the data, behind all of its records": lambda s: header_field(
        seg(s, 0, 10), "first_transaction_id", (1001).to_bytes(8)
    ),
    "first id of both, behind all of its records": lambda s: [
        header_field(path, "first_transaction_id", (605).to_bytes(8)) for path in (seg(s, 0, 10), idx(s, 0, 10))
    ],
    "first id of the index, the largest": lambda s: header_field(
        idx(s, 0, 10), "first_transaction_id", (2**63 - 1).to_bytes(8)
    ),
    "first id of the index far in front of nothing": lambda s: (
        os.truncate(seg(s, 0, 20), HEADER_SIZE),
        header_field(idx(s, 0, 20), "first_transaction_id", (40).to_bytes(8)),
    ),
    "first id of the index far in front of a bad record": lambda s: (
        flip(seg(s, 0, 20), at(0) + 40),
        header_field(idx(s, 0, 20), "first_transaction_id", (40).to_bytes(8)),
    ),
    "first id of the index a little in front of nothing": lambda s: (
        os.truncate(seg(s, 0, 20), HEADER_SIZE),
        header_field(idx(s, 0, 20), "first_transaction_id", (36).to_bytes(8)),
    ),
    "a record twice": lambda s: patch(seg(s, 0, 20), at(5), seg(s, 0, 20).read_bytes()[at(4) : at(5)]),
    "segment of another cluster": foreign_cluster,
    "overlap": lambda s: write_segment(s / "0", make_records(5, first=25, size=SIZE)),
    "torn tail": lambda s: resized(seg(s, 0, 20), -7),
    "torn in the middle": lambda s: resized(seg(s, 0, 10), -7),
    "zeros behind": lambda s: resized(seg(s, 0, 20), 5000),
    "bad first record": lambda s: flip(seg(s, 0, 20), at(0) + 40),
    "bad record in front of others": lambda s: flip(seg(s, 0, 20), at(4) + 40),
    "bad last record": lambda s: flip(seg(s, 0, 20), at(9) + 40),
    "bad record at the mark": lambda s: flip(seg(s, 0, 10), at(4) + 40),
    "bad record behind the mark": lambda s: flip(seg(s, 0, 10), at(5) + 40),
    "bad record below the mark": lambda s: flip(seg(s, 0, 10), at(3) + 40),
    "bad record in the first segment": lambda s: flip(seg(s, 0, 0), at(4) + 40),
    "bad last record of the first segment": lambda s: flip(seg(s, 0, 0), at(9) + 40),
    "data checksum": lambda s: data_checksum(seg(s, 0, 20), 4),
    "negative length": lambda s: length_of(seg(s, 0, 20), 4, -1),
    "negative length below the mark": lambda s: length_of(seg(s, 0, 0), 4, -1),
    "negative length of the last record": lambda s: length_of(seg(s, 0, 20), 9, -(2**31)),
    "largest length": lambda s: length_of(seg(s, 0, 20), 4, 2**31 - 1),
    "length beyond the file": lambda s: length_of(seg(s, 0, 20), 4, 100_000),
    "length in front of others": lambda s: length_of(seg(s, 0, 20), 4, SIZE - 1),
    # control file
    "control file empty": lambda s: os.truncate(s / CTL, 0),
    "control file one byte short of a header": lambda s: os.truncate(s / CTL, 127),
    "control file of a header": lambda s: os.truncate(s / CTL, 128),
    "control file one byte short": lambda s: resized(s / CTL, -1),
    "control file one info short": lambda s: resized(s / CTL, -Layout.RELEASED.info_schema.size),
    "control file with more behind": lambda s: resized(s / CTL, 1000),
    "struct 1": lambda s: structs(s, 1),
    "struct 2": lambda s: structs(s, 2),
    "both structs": lambda s: structs(s, 1, 2),
    "both structs of a partition that is not assigned": lambda s: structs(s, 1, 2, partition=2),
    "tie": tie,
    "tie of a partition that is not assigned": lambda s: tie(s, 2),
    "stored partition": lambda s: patch(s / CTL, Layout.RELEASED.info_offset(1), b"abcd"),
    "version": lambda s: patch(s / CTL, 0, b"abcd"),
    "key": lambda s: patch(s / CTL, CONTROL_HEADER.offset_of("cluster_key"), bytes(16)),
    "one partition more": lambda s: count(s, 1),
    "one partition less": lambda s: count(s, -1),
    "no partition": lambda s: count(s, -3),
    "a negative number of partitions": lambda s: count(s, -4),
    # directories
    "no directory": lambda s: shutil.rmtree(s / "0"),
    "empty directory": empty_directory,
    "only an empty orphan": lambda s: only_orphan(s, 0),
    "only an orphan of a header": lambda s: only_orphan(s, HEADER_SIZE),
    "only an orphan with entries": lambda s: only_orphan(s, HEADER_SIZE + 80),
}
ENTRY_OF_CHECKPOINT = HEADER_SIZE + ENTRY_SIZE * 1000
OF_LONG: dict[str, Change] = {
    "nothing": lambda s: None,
    **{
        f"bad record {number}": lambda s, number=number: flip(seg(s, 0, 0), at(number) + 40)  # type: ignore[misc]
        for number in (0, 998, 999, 1000, 1001, 1199, 1200, 1201, 1598, 1599)
    },
    **{
        f"index cut behind {entries}": lambda s, entries=entries: os.truncate(idx(s, 0, 0), HEADER_SIZE + 8 * entries)  # type: ignore[misc]
        for entries in (0, 1, 999, 1000, 1001, 1002, 1003, 1200, 1201, 1202)
    },
    "entry of the checkpoint": lambda s: patch(idx(s, 0, 0), ENTRY_OF_CHECKPOINT, at(1001).to_bytes(8)),
    "entry of the checkpoint beyond the file": lambda s: patch(idx(s, 0, 0), ENTRY_OF_CHECKPOINT, (10**9).to_bytes(8)),
    "entry of the checkpoint negative": lambda s: patch(idx(s, 0, 0), ENTRY_OF_CHECKPOINT, b"\xff" * 8),
    "entry in front of the checkpoint": lambda s: patch(idx(s, 0, 0), ENTRY_OF_CHECKPOINT - 8, bytes(8)),
    "data cut within the checkpoint": lambda s: os.truncate(seg(s, 0, 0), at(1000) + 7),
    "data cut behind the checkpoint": lambda s: os.truncate(seg(s, 0, 0), at(1001)),
    "data cut in front of the checkpoint": lambda s: os.truncate(seg(s, 0, 0), at(1000)),
    "negative length of the checkpoint": lambda s: length_of(seg(s, 0, 0), 1000, -1),
    "index begins later": lambda s: header_field(idx(s, 0, 0), "first_transaction_id", (1200).to_bytes(8)),
    "index begins far later": lambda s: header_field(idx(s, 0, 0), "first_transaction_id", (10**6).to_bytes(8)),
}
MARKS = (-1, 999, 1000, 1001, 1200, 1599, 5000)


def write_all(directory: Path) -> Iterator[Path]:
    """Every variant, each in a directory of its own."""
    number = 0
    for layout, mark in ((Layout.RELEASED, 14), (Layout.RELEASED, -1), (Layout.DOCUMENTED, 14)):
        for name, change in OF_SMALL.items():
            if layout is Layout.DOCUMENTED and name not in (
                "nothing",
                "no index",
                "no partition",
                "struct 1",
                "no directory",
            ):
                continue
            number += 1
            storage = small(directory / f"{number:03d} small, {layout}, mark {mark}, {name}", layout=layout, mark=mark)
            change(storage)
            yield storage
    for mark in MARKS:
        for name, change in OF_LONG.items():
            number += 1
            storage = long(directory / f"{number:03d} long, mark {mark}, {name}", mark=mark)
            change(storage)
            yield storage
