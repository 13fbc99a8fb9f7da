"""Salvage where something ends: sectors that fail, files that are cut short, blocks, room on the disk."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.builders import CREATED, KEY, make_records
from tests.repair.salvage_cases import OTHER, data_file
from tests.repair.test_salvage_control import made
from waltzctl.engine.durable import disk
from waltzctl.engine.errors import DamageError, DiskFullError, DiskReadError
from waltzctl.engine.progress import SILENT
from waltzctl.engine.repair import salvage_sources
from waltzctl.engine.repair.salvage import salvage
from waltzctl.engine.repair.salvage_control import carve_control, proven
from waltzctl.engine.repair.salvage_fragments import BLOCK, join
from waltzctl.engine.repair.salvage_output import (
    SEGMENT_SIZE_THRESHOLD,
    Description,
    WrittenSegment,
    _cut,
    write_directory,
)
from waltzctl.engine.repair.salvage_report import IdRange
from waltzctl.engine.repair.salvage_runs import SalvageRun
from waltzctl.engine.repair.salvage_selection import RecordPiece
from waltzctl.engine.repair.salvage_sources import SECTOR, OpenFiles, SalvageSource, list_sources
from waltzctl.engine.scan.byte_source import BytesSource, FileSource
from waltzctl.engine.storage.storage_options import StorageOptions
from waltzctl.formats.control import MAX_PARTITIONS, Layout
from waltzctl.formats.request_id import RequestId
from waltzctl.formats.segment import HEADER_SIZE, Record, encode_records

RECORDS = make_records(12, size=20)


# --- sectors that fail -------------------------------------------------------------------------------------------------------


def runs_of(read: bytes | bytearray) -> list[tuple[str, int]]:
    """Equal bytes in a row, and how many."""
    found: list[tuple[str, int]] = []
    for one in map(chr, read):
        found.append((one, found.pop()[1] + 1 if found and found[-1][0] == one else 1))
    return found


@pytest.mark.parametrize(
    ("bad", "offset", "length", "read", "unreadable"),
    [
        ((), 0, 9000, [("x", 9000)], {}),
        ((1,), 0, 9000, [("x", 4096), ("\0", 4096), ("x", 808)], {4096: 4096}),
        ((1,), 4095, 2, [("x", 1), ("\0", 1), ("-", 0)], {4096: 1}),
        ((1,), 5000, 100, [("\0", 100)], {5000: 100}),
        ((1,), 5000, 5000, [("\0", 3192), ("x", 1808)], {5000: 3192}),
        ((1,), 8191, 2, [("\0", 1), ("x", 1)], {8191: 1}),
        ((1,), 8192, 10, [("x", 10)], {}),
        ((0, 1), 10, 8200, [("\0", 8182), ("x", 18)], {10: 4086, 4096: 4096}),
        ((0, 2), 0, 10000, [("\0", 4096), ("x", 4096), ("\0", 1808)], {0: 4096, 8192: 1808}),
        ((2,), 8000, 9000, [("x", 192), ("\0", 1808), ("-", 7000)], {8192: 1808}),
        ((), 9999, 5, [("x", 1), ("-", 4)], {}),
        ((2,), 10000, 5, [("-", 5)], {}),
        ((), 10001, 5, [("-", 5)], {}),
    ],
)
@pytest.mark.parametrize("named", [True, False], ids=["named", "unnamed"])
def test_what_is_read_around_sectors_that_fail(
    tmp_path: Path,
    bad: Sequence[int],
    offset: int,
    length: int,
    read: list[tuple[str, int]],
    unreadable: dict[int, int],
    named: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of a file of 10000 bytes; the system may name the place that failed, or fail where it was asked."""
    (tmp_path / "f").write_bytes(b"x" * 10000)
    real = FileSource.read_into

    def failing(self: FileSource, at: int, buffer: memoryview) -> int:
        sectors = [SECTOR * one for one in bad if SECTOR * one < at + len(buffer) and at < SECTOR * (one + 1)]
        if not sectors:
            return real(self, at, buffer)
        place = max(at, sectors[0])
        real(self, at, buffer[: place - at])
        if named or place == at:
            raise DiskReadError(self.name, place if named else None, OSError(5, "Input/output error"))
        return place - at

    monkeypatch.setattr(FileSource, "read_into", failing)
    source = SalvageSource(tmp_path / "f", OpenFiles(), SILENT)
    buffer = bytearray(b"-" * length)
    done = source.read_into(offset, memoryview(buffer))
    assert runs_of(buffer) == [one for one in read if one[1]]
    assert done == sum(count for kind, count in read if kind != "-")
    assert source.unreadable == unreadable
    source.strict = True
    if unreadable:
        with pytest.raises(DiskReadError):
            source.read_into(offset, memoryview(buffer))
    source.close()


def test_the_longest_stretch_that_failed_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "f").write_bytes(b"x" * SECTOR)

    def failing(self: FileSource, at: int, buffer: memoryview) -> int:
        raise DiskReadError(self.name, at, OSError(5, "Input/output error"))

    monkeypatch.setattr(FileSource, "read_into", failing)
    source = SalvageSource(tmp_path / "f", OpenFiles(), SILENT)
    for length, told in ((10, 10), (30, 30), (20, 30)):
        assert source.read_into(0, memoryview(bytearray(length))) == length
        assert source.unreadable == {0: told}
    source.close()


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_few_files_are_open_and_the_one_that_was_read_last_is_among_them(tmp_path: Path, limit: int) -> None:
    files = OpenFiles(limit)
    sources = []
    for name in "abcd":
        (tmp_path / name).write_bytes(name.encode())
        sources.append(SalvageSource(tmp_path / name, files, SILENT))
    for number in (0, 1, 2, 0, 3, 0, 1, 1, 2):
        buffer = bytearray(1)
        assert (sources[number].read_into(0, memoryview(buffer)), buffer) == (1, "abcd"[number].encode())
    held = [one._descriptor is not None for one in sources]
    assert held == [limit > 2, limit > 1, True, False]
    for one in sources:
        one.close()


# --- control files that are cut short ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layout", "sizes"), [(Layout.RELEASED, (128, 204, 280, 356)), (Layout.DOCUMENTED, (128, 188, 248, 308))]
)
def test_a_control_file_is_as_long_as_its_source_holds_it(layout: Layout, sizes: Sequence[int]) -> None:
    """Of three partitions; `sizes`: where each info ends.  It is one once an info proves it."""
    whole = made(layout, [(3, 5, 4)] * 3).encode()
    assert len(whole) == sizes[-1]
    for length in range(len(whole) + 3):
        found = carve_control(BytesSource(b"--" + whole[:length] + b"\xff" * max(0, length - len(whole))), 2)
        infos = sum(length >= size for size in sizes[1:])
        if infos == 0:
            assert found is None, length
        else:
            assert found is not None, length
            assert (found.layout, len(found.partitions), found.size_fits) == (layout, infos, infos == 3)
            assert all(map(proven, found.partitions))
            assert found.size == min(length, sizes[-1])


@pytest.mark.parametrize(
    ("number", "found"),
    [
        (-(2**31), False),
        (-1, False),
        (0, False),
        (1, True),
        (2, True),
        (MAX_PARTITIONS, True),
        (MAX_PARTITIONS + 1, False),
    ],
)
def test_a_control_file_has_as_many_partitions_as_there_may_be(number: int, found: bool) -> None:
    whole = made(Layout.RELEASED, [(3, 5, 4)] * 2)
    header = replace(whole.header, num_partitions=number).encode()
    carved = carve_control(BytesSource(header + whole.encode()[len(header) :]), 0)
    assert (carved is not None) == found
    if carved is not None:
        assert len(carved.partitions) == min(number, 2)


def test_one_info_among_those_that_are_probed_proves_a_control_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("waltzctl.engine.repair.salvage_control.PROBED", 2)
    for layout in Layout:
        whole = bytearray(made(layout, [(3, 5, 4)] * 4).encode())
        size = (len(whole) - HEADER_SIZE) // 4
        for number, held in ((0, 4), (1, 4), (2, None)):
            found = carve_control(BytesSource(whole), 0)
            assert (None if found is None else len(found.partitions)) == (4 if number < 2 else held)
            whole[HEADER_SIZE + size * number] ^= 1  # of the id
        assert carve_control(BytesSource(whole), 0) is None


@pytest.mark.parametrize(
    ("first", "second", "named", "told"),
    [
        (3, 5, None, (5, "control-file")),
        (2, 2, None, (2, "control-file")),
        (1, 1, None, (2, "records")),
        (1, 3, None, (3, "control-file")),
        (4, 5, 2, (2, "given")),
        (1, 3, 2, (2, "given")),
    ],
)
def test_how_many_partitions_control_files_tell_of_which_none_is_used(
    tmp_path: Path, first: int, second: int, named: int | None, told: tuple[int, str]
) -> None:
    """Records of partition 1, and the control files of two nodes."""
    (tmp_path / "r").write_bytes(data_file(make_records(3, partition=1), partition=1))
    for name, count, created in (("a", first, CREATED), ("b", second, CREATED + 1)):
        (tmp_path / name).write_bytes(made(Layout.RELEASED, [(3, 5, 4)] * count, created=created).encode())
    report = salvage([tmp_path / one for one in "rab"], to=tmp_path / "to", num_partitions=named)
    assert (report.num_partitions, report.num_partitions_from) == told
    assert [one.used for one in report.controls] == [False, False]
    assert report.marks_unknown == ()
    assert [(one.partition, one.marks) for one in report.partitions] == [(1, (-1, -1, -1))]


# --- records in two pieces ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", [0, 1, 511, 512, 513])
def test_a_record_that_stands_whole_is_not_one_in_two_pieces(end: int) -> None:
    """Behind `end` stands something else; the whole record at a later block is carved, or belongs elsewhere."""
    record = Record.make(7, RequestId(1, 2, 3, 4), 0, bytes(n % 7 for n in range(700))).encode()
    image = b"\xcc" * 2 * BLOCK + record
    assert join(BytesSource(image), 7, end, len(image)) is None
    assert join(BytesSource(record + image), 7, 0, len(record)) is None


# --- room --------------------------------------------------------------------------------------------------------------------


def test_room_is_needed_for_records_entries_headers_the_control_file_and_a_spare(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is written where there is not enough."""
    for name, part in (("a", RECORDS[:5]), ("b", RECORDS[6:])):
        (tmp_path / name).write_bytes(data_file(part))
    needed = 204 + (1 << 20) + (5 * 60 + 5 * 8 + 256) + (6 * 60 + 6 * 8 + 256)
    monkeypatch.setattr(disk, "free_bytes", lambda path: needed - 1)
    sources, layout = [tmp_path / "a", tmp_path / "b"], Layout.RELEASED
    with pytest.raises(DiskFullError, match=f"{needed} bytes are needed, {needed - 1} are free"):
        salvage(sources, to=tmp_path / "to", layout=layout)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["a", "b"]
    monkeypatch.setattr(disk, "free_bytes", lambda path: needed)
    assert salvage(sources, to=tmp_path / "to", layout=layout).written == 11


# --- the report as a whole ---------------------------------------------------------------------------------------------------


def test_every_record_that_was_found_is_accounted_for(tmp_path: Path) -> None:
    """Copies, a rival, another partition, another cluster, and a record that nothing speaks for."""
    rival = Record.make(3, RequestId(9, 9, 0, 9), 0, b"rival".ljust(20))
    (tmp_path / "a").write_bytes(data_file(RECORDS[:6]))
    (tmp_path / "b").write_bytes(data_file([*RECORDS[2:3], rival, *RECORDS[4:5]]))
    (tmp_path / "c").write_bytes(data_file(make_records(4, partition=2), partition=2))
    (tmp_path / "d").write_bytes(data_file(make_records(2), key=OTHER))
    strays = [Record.make(number, RequestId(1, 1, number, 1), 0, bytes(20)) for number in (9, 10)]
    (tmp_path / "e").write_bytes(b"".join(one.encode() for one in strays))
    report = salvage([tmp_path / one for one in "abcde"], to=tmp_path / "to", cluster_key=KEY, partition=0)
    assert (report.found, report.written, report.duplicates, report.superseded) == (17, 6, 2, 1)
    assert (report.doubtful_records, report.elsewhere, report.headers, report.sources, report.joined) == (2, 6, 4, 5, 0)
    assert [(one.path.name, one.offset, one.length, one.first_transaction_id) for one in report.doubtful] == [
        ("e", 0, 120, 9)
    ]
    (conflict,) = report.conflicts
    assert (conflict.partition, conflict.transaction_id, conflict.reason) == (
        0,
        3,
        "more records stand together with it",
    )
    places = [(one.path.name, one.offset, one.size) for one in (conflict.kept, *conflict.others)]
    assert places == [("a", HEADER_SIZE + 180, 60), ("b", HEADER_SIZE + 60, 60)]
    (written,) = report.partitions
    assert (written.missing, written.by_witness, written.contradicted) == ((), {"header": 9}, 0)
    assert IdRange(0, 5) == IdRange(written.first_transaction_id, written.last_transaction_id)


def test_a_segment_that_holds_fewer_records_than_were_written_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "source").write_bytes(data_file(RECORDS))
    real = disk.WritableFile.write_at

    def shorter(self: disk.WritableFile, offset: int, data: bytes | memoryview) -> None:
        real(self, offset, data[:-60] if len(data) == 12 * 60 else data)

    monkeypatch.setattr(disk.WritableFile, "write_at", shorter)
    with pytest.raises(DamageError, match=r"\.seg: holds 11 records, 12 were written"):
        salvage([tmp_path / "source"], to=tmp_path / "to")
    assert [one.name for one in tmp_path.iterdir()] == ["source"]


def test_a_device_is_as_long_as_its_end_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its state has no length, and it may be named as a source."""
    (tmp_path / "f").write_bytes(data_file(RECORDS))
    monkeypatch.setattr(salvage_sources.stat, "S_ISREG", lambda mode: False)
    monkeypatch.setattr(salvage_sources.stat, "S_ISBLK", lambda mode: True)
    real = os.fstat
    monkeypatch.setattr(os, "fstat", lambda number: os.stat_result((*real(number)[:6], 0, *real(number)[7:])))
    source = SalvageSource(tmp_path / "f", OpenFiles(), SILENT)
    assert source.size() == HEADER_SIZE + 12 * 60
    assert list_sources([tmp_path / "f"], tmp_path / "to") == [tmp_path / "f"]
    source.close()


class Heard:
    """How far the reading is, as it is told."""

    def __init__(self) -> None:
        self.amounts: list[int] = []

    def start(self, what: str, total: int) -> None:
        """Nothing begins here."""

    def advance(self, amount: int) -> None:
        self.amounts.append(amount)


def test_what_is_read_is_told_once_and_what_came_since_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"x" * 10)
    heard = Heard()
    source = SalvageSource(tmp_path / "f", OpenFiles(), heard)
    with (tmp_path / "f").open("ab") as file:
        file.write(b"more")
    buffer = memoryview(bytearray(20))
    for offset, length, read in (
        (0, 1, 1),
        (1, 1, 1),
        (0, 2, 2),
        (2, 7, 7),
        (9, 1, 1),
        (10, 1, 0),
    ):
        assert source.read_into(offset, buffer[:length]) == read
    assert [one for one in heard.amounts if one] == [1, 1, 7, 1]
    assert (source.read_into(0, buffer), source.size()) == (10, 10)
    assert (source.read_into(11, buffer), source.read_into(12, buffer)) == (0, 0)
    source.close()


def test_devices_are_opened_each_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "f").write_bytes(b"x" * 10)
    real, asked = disk.open_for_reading, []

    def opening(path: Path, *, devices: bool = False) -> int:
        asked.append(devices)
        return real(path, devices=devices)

    monkeypatch.setattr(disk, "open_for_reading", opening)
    source = SalvageSource(tmp_path / "f", OpenFiles(), SILENT)
    source.close()
    assert source.read_into(0, memoryview(bytearray(10))) == 10
    source.close()
    assert asked == [True, True]


@pytest.mark.parametrize("named", [None, "sub"])
def test_a_directory_that_cannot_be_listed_is_named(
    tmp_path: Path, named: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def walk(directory: Path, onerror: Callable[[OSError], None]) -> Iterator[object]:
        onerror(OSError(13, "Permission denied", named))
        return iter(())

    monkeypatch.setattr(salvage_sources.os, "walk", walk)  # type: ignore[attr-defined]
    with pytest.raises(DiskReadError) as refused:
        list_sources([tmp_path], tmp_path.parent / "to")
    assert str(refused.value).startswith(f"{named or tmp_path}: ")


def test_a_source_that_cannot_be_examined_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.stat

    def examine(path: Path, **more: bool) -> os.stat_result:
        if path == tmp_path / "x":
            raise PermissionError(13, "Permission denied")
        return real(path, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "stat", examine)
    with pytest.raises(DiskReadError, match="Permission denied"):
        list_sources([tmp_path / "x"], tmp_path / "to")


@pytest.mark.parametrize("block", [719, 720, 721, 359])
@pytest.mark.parametrize("short", [1, 2, 0])
def test_a_source_that_lost_a_byte_while_it_was_copied_is_noticed(
    tmp_path: Path, short: int, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("waltzctl.engine.repair.salvage_output.BLOCK", block)
    body, _ = encode_records(RECORDS)
    run = SalvageRun(0, 0, len(body), 0, np.full(12, 60, np.uint32), 0)
    described = Description(KEY, 1, Layout.RELEASED, CREATED)
    sources = [BytesSource(body[: len(body) - short])]
    target = tmp_path / "to"
    if short:
        with pytest.raises(DamageError, match="became shorter"):
            write_directory(target, described, {0: [RecordPiece(run, 0, 11)]}, sources)
        assert not target.exists()
    else:
        written = write_directory(target, described, {0: [RecordPiece(run, 0, 11)]}, sources)
        assert written == {0: [WrittenSegment(0, 11, HEADER_SIZE + len(body))]}


def test_segments_are_as_large_as_those_of_a_node() -> None:
    assert StorageOptions().segment_size_threshold == SEGMENT_SIZE_THRESHOLD


@pytest.mark.parametrize(
    ("room", "segments"),
    [
        (0, ["0", "1", "2", "5", "6", "7", "8"]),
        (59, ["0", "1", "2", "5", "6", "7", "8"]),
        (60, ["0-1", "2", "5-6", "7-8"]),
        (119, ["0-1", "2", "5-6", "7-8"]),
        (120, ["0-2", "5-7", "8"]),
        (179, ["0-2", "5-7", "8"]),
        (180, ["0-2", "5-8"]),
    ],
)
@pytest.mark.parametrize("seam", [6, 7, None])
def test_a_record_goes_into_a_segment_that_is_not_larger_than_it_may_be(
    room: int, segments: list[str], seam: int | None
) -> None:
    """A gap begins one, and what was in front of it takes no room there; where a piece ends makes no difference."""
    runs = [SalvageRun(0, 1000, 1180, 0, np.full(3, 60, np.uint32), 0)]
    runs += [SalvageRun(0, 5000, 5240, 5, np.full(4, 60, np.uint32), 0)]
    pieces = [RecordPiece(runs[0], 0, 2), RecordPiece(runs[1], 5, 8)]
    if seam is not None:
        pieces[1:] = [RecordPiece(runs[1], 5, seam - 1), RecordPiece(runs[1], seam, 8)]
    found: list[list[int]] = []
    for fresh, piece in _cut(pieces, HEADER_SIZE + room):
        if fresh:
            found.append([])
        found[-1] += range(piece.first, piece.last + 1)
    assert [f"{one[0]}-{one[-1]}" if one[1:] else f"{one[0]}" for one in found] == segments
