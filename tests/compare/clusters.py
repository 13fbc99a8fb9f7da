"""Replicas of a small cluster, and ways to make them differ of which the right answer is known."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tests.builders import build_directory, make_records
from tests.inspect.helpers import age
from waltzctl.engine.compare.compare import compare
from waltzctl.engine.compare.comparison import CompareOptions, CompareSummary, PartitionComparison, ReplicaComparison
from waltzctl.engine.findings import Finding
from waltzctl.engine.task_executor import LocalExecutor
from waltzctl.formats.control import decode_control
from waltzctl.formats.segment import HEADER_SIZE, Record, encode_entries, encode_records, parse_name

COUNT = 130
MARK = 60
PER_SEGMENT = 50


@dataclass(frozen=True)
class Answer:
    partitions: dict[int, PartitionComparison]
    summary: CompareSummary
    findings: tuple[Finding, ...]

    def __getitem__(self, partition: int) -> PartitionComparison:
        return self.partitions[partition]

    def codes(self) -> set[str]:
        return {one.code.value for one in self.findings}


def compared(*paths: Path, replicas: int | None = None, partitions: Sequence[int] | None = None) -> Answer:
    for path in paths:
        if isinstance(path, Path) and path.is_dir():
            age(path)
    seen = list(compare(paths, CompareOptions(partitions, replicas), LocalExecutor(2)))
    summary = seen[-1]
    assert isinstance(summary, CompareSummary)
    found = {one.partition: one for one in seen if isinstance(one, PartitionComparison)}
    return Answer(found, summary, tuple(one for one in seen if isinstance(one, Finding)))


def states(comparison: PartitionComparison) -> list[str]:
    return [one.state.value for one in comparison.replicas]


def cuts(comparison: PartitionComparison) -> list[int | None]:
    return [one.cut_after for one in comparison.replicas]


def damaged(replica: ReplicaComparison) -> list[int]:
    return replica.damaged_ids()


def make_cluster(root: Path, count: int = 3, *, records: int = COUNT, mark: int = MARK, session: int = 3) -> list[Path]:
    """`count` equal replicas of partition 0, in segments of 50 records; only their creation times differ."""
    paths = [root / f"node-{number}" for number in range(1, count + 1)]
    for shift, path in enumerate(paths):
        build_directory(
            path, {0: records}, per_segment=PER_SEGMENT, local_low_water_mark=mark, session=session, size=None
        )
        for file in (path / "0").iterdir():
            data = bytearray(file.read_bytes())
            data[11] ^= shift
            file.write_bytes(data)
    return paths


def marks(path: Path, *, session: int | None = None, mark: int | None = None, local: int | None = None) -> None:
    """Set what both structs of partition 0 say."""
    control_path = path / "waltz-storage.ctl"
    control = decode_control(control_path.read_bytes())
    infos = list(control.partitions)
    pair = [
        replace(
            one,
            session_id=one.session_id if session is None else session,
            low_water_mark=one.low_water_mark if mark is None else mark,
            local_low_water_mark=one.local_low_water_mark if local is None else local,
        ).sealed()
        for one in infos[0].structs
    ]
    infos[0] = replace(infos[0], structs=(pair[0], pair[1]))
    control_path.write_bytes(replace(control, partitions=tuple(infos)).encode())


def segments(path: Path, partition: int = 0) -> list[Path]:
    return sorted((path / str(partition)).glob("*.seg"))


def segment_of(path: Path, number: int, partition: int = 0) -> Path:
    """The data file that holds a transaction."""
    found = [one for one in segments(path, partition) if first_of(one) <= number]
    return found[-1]


def first_of(file: Path) -> int:
    parsed = parse_name(file.name)
    assert parsed is not None
    return parsed[0]


def read(file: Path) -> list[Record]:
    """Every record of a clean data file, by the format alone."""
    data = file.read_bytes()[HEADER_SIZE:]
    found: list[Record] = []
    while data:
        length = int.from_bytes(data[28:32], "big")
        found.append(Record.decode(data[: 40 + length]))
        data = data[40 + length :]
    return found


def write(file: Path, records: Sequence[Record]) -> None:
    """Records and index of a segment whose header stays."""
    body, offsets = encode_records(records)
    index = file.with_suffix(".idx")
    file.write_bytes(file.read_bytes()[:HEADER_SIZE] + body)
    entries = encode_entries([HEADER_SIZE + offset for offset in offsets])
    index.write_bytes(index.read_bytes()[:HEADER_SIZE] + entries)


def place_of(path: Path, number: int, partition: int = 0) -> tuple[Path, int, Record]:
    """Data file, offset and record of a transaction."""
    file = segment_of(path, number, partition)
    offset = HEADER_SIZE
    for record in read(file):
        if record.transaction_id == number:
            return file, offset, record
        offset += record.size
    raise AssertionError(number)


def rewrite(path: Path, number: int, data: bytes = b"another truth", partition: int = 0) -> None:
    """Another record under the same id, with right checksums and a right index."""
    file = segment_of(path, number, partition)
    write(
        file,
        [
            one
            if one.transaction_id != number
            else Record.make(number, replace(one.request_id, sequence=one.request_id.sequence + 1000), one.header, data)
            for one in read(file)
        ],
    )


def flip(path: Path, number: int, partition: int = 0, byte: int = 9) -> None:
    """One flipped bit in a record."""
    file, offset, _ = place_of(path, number, partition)
    data = bytearray(file.read_bytes())
    data[offset + byte] ^= 4
    file.write_bytes(data)


def keep_up_to(path: Path, last: int, partition: int = 0) -> None:
    """A clean, shorter replica."""
    for file in segments(path, partition):
        if first_of(file) > last and first_of(file) > 0:
            file.unlink()
            file.with_suffix(".idx").unlink()
        else:
            write(file, [one for one in read(file) if one.transaction_id <= last])


def extend(path: Path, count: int, seed: int = 0, partition: int = 0) -> None:
    """Append records to the last segment; the same `seed`, the same records."""
    file = segments(path, partition)[-1]
    held = read(file)
    first = held[-1].transaction_id + 1 if held else first_of(file)
    write(file, [*held, *make_records(count, first=first, partition=partition, seed=seed + 77)])


def tear(path: Path, kept: int = 20, partition: int = 0) -> int:
    """Let the last record end after `kept` bytes; its id."""
    file = segments(path, partition)[-1]
    record = read(file)[-1]
    data = file.read_bytes()
    file.write_bytes(data[: len(data) - record.size + kept])
    return record.transaction_id


def remove_segment(path: Path, number: int, partition: int = 0) -> tuple[int, int]:
    """Lose the segment that holds a transaction; its ids (first, last)."""
    file = segment_of(path, number, partition)
    held = read(file)
    file.unlink()
    file.with_suffix(".idx").unlink()
    return held[0].transaction_id, held[-1].transaction_id


def copy(path: Path, target: Path) -> Path:
    shutil.copytree(path, target)
    for one in [target, *target.rglob("*")]:
        one.chmod(0o755 if one.is_dir() else 0o644)
    return target
