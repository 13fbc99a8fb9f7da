"""Where bytes come from: short reads, holes, and whether only zeros are left."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.builders import make_records
from tests.scan.oracle import segment_of
from waltzctl.engine.errors import DiskReadError
from waltzctl.engine.scan import byte_source as sources
from waltzctl.engine.scan.byte_source import (
    ByteSource,
    BytesSource,
    FileSource,
    only_zeros,
    read_bytes,
)
from waltzctl.engine.scan.columns import RecordBatch, RecordRun, RecordView
from waltzctl.engine.scan.scanner import read_record_at, scan_records, summarise_records


@pytest.fixture(params=["memory", "file"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[bytes], ByteSource]:
    def make(data: bytes) -> ByteSource:
        if request.param == "memory":
            return BytesSource(data)
        path = tmp_path / "x"
        path.write_bytes(data)
        source = FileSource(path)
        request.addfinalizer(source.close)
        return source

    return make


@pytest.mark.parametrize("look", [1, 3, 10, 1000])
@pytest.mark.parametrize(
    ("data", "offset", "most", "zeros"),
    [
        (bytes(20), 0, 20, True),
        (bytes(20), 0, 1000, True),
        (bytes(20), 20, 0, True),
        (bytes(20), 25, 5, True),
        (bytes(19) + b"x", 0, 1000, False),
        (bytes(19) + b"x", 20, 1000, True),
        (b"x" + bytes(19), 0, 1000, False),
        (b"x" + bytes(19), 1, 1000, True),
        (bytes(10) + b"x" + bytes(9), 5, 1000, False),
        (bytes(10) + b"x" + bytes(9), 11, 1000, True),
        (b"", 0, 10, True),
    ],
)
def test_whether_only_zeros_are_left(
    opened: Callable[[bytes], ByteSource], data: bytes, offset: int, most: int, zeros: bool, look: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(sources, "_LOOK", look)
    assert only_zeros(opened(data), offset, most) == zeros


@pytest.mark.parametrize(("most", "zeros"), [(0, False), (1, False), (10, False), (11, True), (20, True)])
def test_no_more_is_read_than_allowed(
    opened: Callable[[bytes], ByteSource], most: int, zeros: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By pieces of ten bytes, the second of which is begun while anything is left."""
    monkeypatch.setattr(sources, "_LOOK", 10)
    assert only_zeros(opened(bytes(20)), 0, most) == zeros
    assert only_zeros(opened(bytes(11)), 0, most) == zeros


def test_a_source_that_ends_sooner_than_it_says_ends_there() -> None:
    class Shorter(BytesSource):
        def size(self) -> int:
            return 100

    assert only_zeros(Shorter(bytes(20)), 0, 1000)


def test_holes_cost_nothing_and_end_with_the_file(disk_path: Path) -> None:
    path = disk_path / "x"
    with open(path, "wb") as file:
        file.truncate(64 << 20)
    with FileSource(path) as source:
        assert only_zeros(source, 0, 4 << 20)
        assert source.next_data(5) in (5, 64 << 20)
        assert source.next_data(65 << 20) == 65 << 20
    with open(path, "r+b") as file:
        file.seek(32 << 20)
        file.write(b"x")
    with FileSource(path) as source:
        assert not only_zeros(source, 0, 64 << 20)


@pytest.mark.parametrize(
    ("number", "answer"), [(errno.ENXIO, 20), (errno.EINVAL, 3), (errno.ENOTSUP, 3), (errno.EIO, None)]
)
def test_where_the_next_byte_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, answer: int | None
) -> None:
    path = tmp_path / "x"
    path.write_bytes(bytes(20))

    def fail(*_: object) -> int:
        raise OSError(number, "made up")

    monkeypatch.setattr(os, "lseek", fail)
    with FileSource(path) as source:
        if answer is None:
            with pytest.raises(DiskReadError):
                source.next_data(3)
        else:
            assert source.next_data(3) == answer


@pytest.mark.parametrize("step", [1, 3, 100])
def test_short_reads_are_gone_on_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    path = tmp_path / "x"
    path.write_bytes(bytes(range(50)))
    real = os.preadv
    monkeypatch.setattr(os, "preadv", lambda descriptor, buffers, offset: real(descriptor, [buffers[0][:step]], offset))
    with FileSource(path) as source:
        assert source.size() == 50
        for offset, length in ((0, 50), (0, 60), (10, 7), (49, 5), (50, 1), (60, 4), (3, 0)):
            assert bytes(read_bytes(source, offset, length)) == bytes(range(50))[offset : offset + length]


@pytest.mark.parametrize("low", [0, 1, 2, 4, 5])
@pytest.mark.parametrize("high", [0, 1, 3, 4, 5, 6])
def test_rows_of_a_batch_are_those_asked_for(low: int, high: int) -> None:
    made = segment_of(make_records(5, size=9))
    (batch,) = scan_records(BytesSource(made.data), first_transaction_id=0, data=True)
    assert isinstance(batch, RecordBatch)
    rows = batch.rows(low, high)
    assert rows.size.tolist() == [record.size for record in made.records[low:high]]
    assert rows.transaction_id.tolist() == list(range(5))[low:high]
    assert [bytes(rows.record_bytes(place)) for place in range(len(rows))] == [
        record.encode() for record in made.records[low:high]
    ]
    assert (rows is batch) == (low == 0 and high >= 5), "nothing is copied where all are asked for"
    assert batch.first(high).transaction_id.tolist() == list(range(5))[:high]


@pytest.mark.parametrize("way", ["close", "with"])
def test_a_closed_file_is_given_back_to_the_system(tmp_path: Path, way: str) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"data")
    source = FileSource(path)
    descriptor = source.fileno()
    assert os.fstat(descriptor).st_ino == path.stat().st_ino
    if way == "close":
        source.close()
    else:
        with source:
            pass
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)


def test_a_file_that_cannot_be_examined_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"")

    def fail(_: int) -> os.stat_result:
        raise OSError(errno.EIO, "made up")

    with FileSource(path) as source:
        monkeypatch.setattr(os, "fstat", fail)
        with pytest.raises(DiskReadError, match="examine") as raised:
            source.size()
    assert (str(raised.value.path), raised.value.offset) == (str(path), None)


@pytest.mark.parametrize("length", [0, 1, 7])
def test_a_record_ends_behind_its_data_in_a_batch_and_alone(length: int) -> None:
    made = segment_of(make_records(3, size=length))
    (batch,) = scan_records(BytesSource(made.data), first_transaction_id=0, data=True)
    assert isinstance(batch, RecordBatch)
    assert (len(batch), batch.end, batch.rows(1, 2).end) == (3, len(made.data), made.offsets[2])
    assert [bytes(batch.data_bytes(place)) for place in range(3)] == [record.data for record in made.records]
    (run,) = summarise_records(BytesSource(made.data), first_transaction_id=0)
    assert isinstance(run, RecordRun)
    assert (len(run), run.first_transaction_id, run.start, run.end) == (3, 0, made.offsets[0], len(made.data))
    view = read_record_at(BytesSource(made.data), made.offsets[1], expected_id=1)
    assert isinstance(view, RecordView)
    assert (bytes(view.data), view.end) == (made.records[1].data, made.offsets[2])


def test_an_error_behind_a_short_read_names_its_own_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x"
    path.write_bytes(bytes(50))

    def read(_: int, buffers: list[memoryview], offset: int) -> int:
        if offset >= 17:
            raise OSError(errno.EIO, "made up")
        return 5

    monkeypatch.setattr(os, "preadv", read)
    with FileSource(path) as source, pytest.raises(DiskReadError) as raised:
        source.read_into(7, memoryview(bytearray(20)))
    assert (raised.value.offset, str(raised.value.path)) == (17, str(path))


@pytest.mark.parametrize("devices", [False, True])
def test_a_device_is_opened_only_where_one_is_as_good(monkeypatch: pytest.MonkeyPatch, *, devices: bool) -> None:
    asked: list[bool] = []

    def opened(path: Path, *, devices: bool) -> int:
        asked.append(devices)
        return os.open(os.devnull, os.O_RDONLY)

    monkeypatch.setattr(sources.disk, "open_for_reading", opened)
    FileSource("x").close()
    FileSource("x", devices=devices).close()
    assert asked == [False, devices]
