"""What a salvage wrote and tells, compared as a whole with what was in its sources."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.builders import CREATED, KEY, build_directory, make_records
from tests.repair.salvage_cases import data_file, records_in
from waltzctl.engine.durable import disk
from waltzctl.engine.errors import DamageError, DiskReadError, InvalidRequestError
from waltzctl.engine.repair import salvage_output
from waltzctl.engine.repair.salvage import salvage
from waltzctl.engine.repair.salvage_control import FoundControl
from waltzctl.engine.repair.salvage_report import DoubtfulRun, IdRange, SalvagedPartition
from waltzctl.engine.repair.salvage_sources import SECTOR, SalvageSource, UnreadableRange
from waltzctl.engine.scan.byte_source import FileSource
from waltzctl.formats.checksums import crc32
from waltzctl.formats.control import CONTROL_FILE_NAME, MAX_PARTITIONS, Layout, decode_control, initial_control
from waltzctl.formats.segment import HEADER_SIZE, Record, segment_name

RECORDS = make_records(12, size=20)
SIZE = 60


def claims_other(record: Record) -> bytes:
    """A record whose data does not agree with its own checksum."""
    raw = bytearray(record.encode())
    raw[32:36] = (record.data_checksum ^ 1).to_bytes(4)
    raw[-4:] = crc32(bytes(raw[:-4])).to_bytes(4)
    return bytes(raw)


class Here:
    """An executor that does the work in this process, as it comes."""

    def map(self, work: Callable[[Any], Any], tasks: Sequence[Any], **_: object) -> Iterator[Any]:
        return map(work, tasks)


@pytest.mark.parametrize("damaged", [(0,), (4,), (5, 6), (11,), (3, 7)])
@pytest.mark.parametrize("most", [1, 3, 4, 100])
def test_a_record_with_other_data_is_named_where_it_stands_now(
    tmp_path: Path, damaged: tuple[int, ...], most: int
) -> None:
    """Found in two pieces, 0 to 5 and 6 to 11; a segment takes `most` records."""
    raws = [claims_other(one) if one.transaction_id in damaged else one.encode() for one in RECORDS]
    for name, part in (("a", raws[:6]), ("b", raws[6:])):
        head = data_file(RECORDS[0 if name == "a" else 6 :])[:HEADER_SIZE]
        (tmp_path / name).write_bytes(head + b"".join(part))
    report = salvage(
        [tmp_path / "a", tmp_path / "b"],
        to=tmp_path / "to",
        segment_size_threshold=HEADER_SIZE + SIZE * (most - 1),
    )
    assert [one.transaction_id for one in report.findings] == list(damaged)
    for found in report.findings:
        number = found.transaction_id
        assert number is not None
        first = number // most * most
        assert (found.code, found.partition, found.segment, found.length) == ("data-checksum", 0, first, SIZE)
        assert found.path == tmp_path / "to" / "0" / segment_name(first)
        assert found.offset == HEADER_SIZE + SIZE * (number - first)
    segments = -(-12 // most)
    assert report.partitions == (
        SalvagedPartition(
            0, 0, 11, 12, segments, HEADER_SIZE * segments + SIZE * 12, (), (-1, -1, -1), {"header": 12}, 0
        ),
    )
    sizes = [one.stat().st_size for one in sorted((tmp_path / "to" / "0").glob("*.seg"))]
    assert sizes == [HEADER_SIZE + SIZE * min(most, 12 - first) for first in range(0, 12, most)]


def test_ids_that_were_not_found_begin_a_segment_and_are_told(tmp_path: Path) -> None:
    for name, part in (("a", RECORDS[2:4]), ("b", RECORDS[5:6]), ("c", RECORDS[6:8]), ("d", RECORDS[11:])):
        (tmp_path / name).write_bytes(data_file(part))
    report = salvage([tmp_path / name for name in "abcd"], to=tmp_path / "to")
    missing = (IdRange(0, 1), IdRange(4, 4), IdRange(8, 10))
    assert report.partitions == (
        SalvagedPartition(0, 2, 11, 6, 3, 3 * HEADER_SIZE + 6 * SIZE, missing, (-1, -1, -1), {"header": 6}, 0),
    )
    assert sorted(one.name for one in (tmp_path / "to" / "0").glob("*.seg")) == [segment_name(n) for n in (2, 5, 11)]
    assert (report.num_partitions, report.num_partitions_from) == (1, "records")
    assert (report.sources, report.bytes, report.headers, report.found) == (4, 4 * HEADER_SIZE + 6 * SIZE, 4, 6)
    assert (report.written, report.duplicates, report.superseded, report.doubtful_records, report.elsewhere) == (
        6,
        0,
        0,
        0,
        0,
    )


def test_a_record_that_is_larger_than_a_segment_may_be_has_one_of_its_own(tmp_path: Path) -> None:
    """And no file of a segment stays open behind it."""
    (tmp_path / "source").write_bytes(data_file(RECORDS[:3]))
    held = len(os.listdir("/proc/self/fd"))
    report = salvage([tmp_path / "source"], to=tmp_path / "to", segment_size_threshold=1)
    assert len(os.listdir("/proc/self/fd")) == held
    assert [one.segments for one in report.partitions] == [3]
    assert sorted(one.name for one in (tmp_path / "to" / "0").glob("*.seg")) == [segment_name(n) for n in range(3)]


@pytest.mark.parametrize("executor", [None, Here()], ids=["here", "executor"])
def test_places_that_cannot_be_read_are_told_whoever_reads_them(
    tmp_path: Path, executor: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sector fails in each of two files; a second failure is read around in the same call."""
    many = make_records(300, size=20)
    for name, part in (("a", many[:150]), ("b", many[150:])):
        (tmp_path / name).write_bytes(data_file(part).ljust(3 * SECTOR, b"\0"))
    real = FileSource.read_into

    def failing(self: FileSource, offset: int, buffer: memoryview) -> int:
        if isinstance(self, SalvageSource) and offset < 2 * SECTOR <= offset + len(buffer) - 1:
            real(self, offset, buffer[: 2 * SECTOR - offset])
            raise DiskReadError(self.path, 2 * SECTOR, OSError(5, "Input/output error"))
        if isinstance(self, SalvageSource) and 2 * SECTOR <= offset < 3 * SECTOR and len(buffer):
            raise DiskReadError(self.path, None, OSError(5, "Input/output error"))
        return real(self, offset, buffer)

    monkeypatch.setattr(FileSource, "read_into", failing)
    report = salvage([tmp_path / "a", tmp_path / "b"], to=tmp_path / "to", executor=executor)
    assert report.unreadable == tuple(UnreadableRange(tmp_path / name, 2 * SECTOR, SECTOR) for name in "ab")
    whole = [number for number in range(300) if HEADER_SIZE + SIZE * (number % 150 + 1) <= 2 * SECTOR]
    assert [one.transaction_id for one in records_in(report.path)[0]] == whole


def test_a_source_that_becomes_shorter_while_it_is_copied_ends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "source"
    source.write_bytes(data_file(RECORDS))
    write = disk.make_directory

    def shorten(path: Path) -> None:
        source.write_bytes(source.read_bytes()[:-1])
        write(path)

    monkeypatch.setattr(salvage_output.disk, "make_directory", shorten)
    with pytest.raises(DamageError, match="became shorter while it was read"):
        salvage([source], to=tmp_path / "to")
    assert not (tmp_path / "to").exists()
    assert list(tmp_path.iterdir()) == [source]


def test_what_arrives_otherwise_than_it_was_found_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "source"
    source.write_bytes(data_file(RECORDS))
    real, spot = disk.WritableFile.write_at, 0

    def spoil(self: disk.WritableFile, offset: int, data: Any) -> None:
        changed = bytearray(data)
        if offset == HEADER_SIZE and len(changed) > 9 * SIZE:
            changed[spot] ^= 1
        real(self, offset, changed)

    monkeypatch.setattr(disk.WritableFile, "write_at", spoil)
    for place, said in ((SIZE + 9, "transaction 1 at offset 188 did not arrive"), (12 * SIZE - 1, "transaction 11 at")):
        spot = place
        with pytest.raises(DamageError, match=said):
            salvage([source], to=tmp_path / "to")
        assert list(tmp_path.iterdir()) == [source]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("a/b", "the directory above it does not exist"),
        ("file", "exists and is not a directory"),
        ("link", "exists and is not a directory"),
        ("full", "not empty, x is there"),
    ],
)
def test_a_target_is_new_or_empty(tmp_path: Path, name: str, said: str) -> None:
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "empty").mkdir()
    (tmp_path / "full" / "x").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "empty")
    (tmp_path / "source").write_bytes(data_file(RECORDS))
    with pytest.raises(InvalidRequestError, match=said):
        salvage([tmp_path / "source"], to=tmp_path / name)
    assert salvage([tmp_path / "source"], to=tmp_path / "empty").cluster_key == KEY


@pytest.mark.parametrize(
    ("partition", "partitions", "said"),
    [
        (None, 0, "must be 1 to"),
        (None, -1, "must be 1 to"),
        (-1, None, f"there are partitions 0 to {MAX_PARTITIONS - 1}"),
        (3, 3, "there are partitions 0 to 2"),
        (2**20, None, "there are partitions 0 to"),
    ],
)
def test_numbers_of_partitions_that_cannot_be(
    tmp_path: Path, partition: int | None, partitions: int | None, said: str
) -> None:
    (tmp_path / "source").write_bytes(data_file(RECORDS))
    with pytest.raises(InvalidRequestError, match=said):
        salvage([tmp_path / "source"], to=tmp_path / "to", partition=partition, num_partitions=partitions)
    report = salvage([tmp_path / "source"], to=tmp_path / "to", partition=0, num_partitions=1)
    assert (report.num_partitions, report.num_partitions_from) == (1, "given")


def test_records_without_any_header_are_of_a_cluster_that_is_named(tmp_path: Path) -> None:
    (tmp_path / "source").write_bytes(data_file(RECORDS)[HEADER_SIZE:])
    with pytest.raises(InvalidRequestError, match="no header that tells their cluster"):
        salvage([tmp_path / "source"], to=tmp_path / "to", partition=0)
    report = salvage([tmp_path / "source"], to=tmp_path / "to", partition=0, cluster_key=KEY)
    assert (report.cluster_key, report.written, report.headers) == (KEY, 12, 0)


@pytest.mark.parametrize(("named", "told"), [(["d/e"], "d/e"), ([], "d")])
def test_a_directory_that_cannot_be_listed_ends_it(
    tmp_path: Path, named: list[str], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is named as the system does, or else it is the one that was asked for."""

    def walk(path: Path, onerror: Callable[[OSError], None]) -> Iterator[Any]:
        onerror(PermissionError(13, "Permission denied", *(str(tmp_path / one) for one in named)))
        return iter(())

    monkeypatch.setattr("waltzctl.engine.repair.salvage_sources.os.walk", walk)
    (tmp_path / "d").mkdir()
    with pytest.raises(DiskReadError, match=f"{tmp_path / told}: .*Permission denied"):
        salvage([tmp_path / "d"], to=tmp_path / "to")


def salvaged(last: int, local: int, *missing: tuple[int, int]) -> SalvagedPartition:
    gaps = tuple(IdRange(first, stop) for first, stop in missing)
    return SalvagedPartition(0, 0, last, 1, 1, 1, gaps, (77, 78, local), {}, 0)


@pytest.mark.parametrize(("local", "lacking"), [(-1, None), (10, None), (11, None), (12, (12, 12)), (15, (12, 15))])
def test_what_the_local_mark_says_was_here_behind_the_last_one(local: int, lacking: tuple[int, int] | None) -> None:
    assert salvaged(11, local).acknowledged_missing == (None if lacking is None else IdRange(*lacking))


def test_what_a_report_counts_and_when_it_is_clean(tmp_path: Path) -> None:
    (tmp_path / "source").write_bytes(data_file(RECORDS[:3]))
    report = salvage([tmp_path / "source"], to=tmp_path / "to")
    assert (report.marks_known, report.missing, report.acknowledged_missing) == (False, 0, 0)
    assert report.exit_status_name == "clean"
    control = FoundControl(tmp_path, 0, initial_control(Layout.RELEASED, KEY, 1, CREATED))
    assert not replace(report, controls=(control,)).marks_known
    assert replace(report, controls=(control, replace(control, used=True))).marks_known
    gaps = replace(report, partitions=(salvaged(11, 11, (0, 1), (4, 4)), salvaged(11, 14, (7, 9)), salvaged(3, 4)))
    assert (gaps.missing, gaps.acknowledged_missing, gaps.exit_status_name) == (6, 4, "damage-remains")
    place = DoubtfulRun(tmp_path, 0, 1, 2, 3, 4, "")
    for changes in (
        {"partitions": (salvaged(11, 11, (0, 0)),)},
        {"partitions": (salvaged(11, 12),)},
        {"marks_unknown": (0,)},
        {"conflicts": (place,)},
        {"doubtful": (place,)},
        {"unreadable": (place,)},
        {"findings": (place,)},
    ):
        assert replace(report, **changes).exit_status_name == "damage-remains"  # type: ignore[arg-type]


def test_partitions_are_told_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    """Whatever order a set of them has."""
    source = build_directory(tmp_path / "source", {8: 3, 1: 2}, local_low_water_mark=1)
    for number, unknown in enumerate(((), (1, 8))):
        report = salvage([source], to=tmp_path / f"{number}")
        assert ([one.partition for one in report.partitions], report.marks_unknown) == ([1, 8], unknown)
        control = bytearray((source / CONTROL_FILE_NAME).read_bytes())
        for partition in (1, 8):
            for struct in (1, 2):
                control[Layout.RELEASED.struct_offset(partition, struct) + 3] ^= 1
        (source / CONTROL_FILE_NAME).write_bytes(control)


def test_without_a_control_file_what_is_written_is_assigned_and_switched_on(tmp_path: Path) -> None:
    """In the layout that has flags; a partition of which nothing was found is not assigned."""
    (tmp_path / "source").write_bytes(data_file(make_records(3, partition=1), partition=1))
    salvage([tmp_path / "source"], to=tmp_path / "to", layout=Layout.RELEASED)
    control = decode_control((tmp_path / "to" / CONTROL_FILE_NAME).read_bytes())
    flags = [(one.assigned, one.available) for info in control.partitions if (one := info.current_struct) is not None]
    assert flags == [(False, True), (True, True)]
