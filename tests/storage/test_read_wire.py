"""Lists in wire form: the records of `read_range`, byte for byte; and whatever is damaged, none of it is ever served."""

from __future__ import annotations

import contextlib
import random
import threading
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.blocks import wire_record
from tests.builders import build_directory, make_records
from tests.storage.support import LAYOUTS, SMALL, built, damage, data_path, index_path, offset_of, opened, write_at
from waltzctl.engine.durable import disk
from waltzctl.engine.errors import CorruptRecordError, InvalidRequestError
from waltzctl.engine.scan import byte_source
from waltzctl.engine.storage import segment_reader
from waltzctl.engine.storage.directory import StorageOptions
from waltzctl.engine.storage.partition import Partition
from waltzctl.formats.segment import HEADER_SIZE
from waltzctl.formats.wire.records import pack_record_headers, pack_records

properties = settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])


def assert_same(partition: Partition, first: int, count: int, room: int | None = None) -> int:
    """The lists agree with what the careful reader delivers, the error included; returns how many records there are."""
    told = []
    for read in (partition.read_range, partition.read_wire):
        with contextlib.suppress(CorruptRecordError):
            read(first, count, room)
            continue
        with pytest.raises(CorruptRecordError) as caught:
            read(first, count, room)
        told.append((str(caught.value), caught.value.findings))
    if told:
        assert len(told) == 2
        assert told[0] == told[1]
        with pytest.raises(CorruptRecordError):
            partition.read_wire_headers(first, count)
        return 0
    wanted = partition.read_range(first, count, room)
    found = partition.read_wire(first, count, room)
    assert (found.count, found.data) == (len(wanted), pack_records(map(wire_record, wanted)))
    headers, wanted_headers = partition.read_wire_headers(first, count), partition.read_headers(first, count)
    assert (headers.count, headers.data) == (len(wanted_headers), pack_record_headers(wanted_headers))
    return len(wanted)


@LAYOUTS
def test_every_range_of_a_log_of_several_segments(tmp_path: Path, layout) -> None:
    built(tmp_path, 37, layout=layout)
    with opened(tmp_path) as storage:
        partition = storage.partition(0)
        for first in range(-1, 39):
            for count in (0, 1, 2, 9, 10, 11, 40):
                assert_same(partition, first, count)
        with pytest.raises(InvalidRequestError, match="cannot read -1 records"):
            partition.read_wire(0, -1)


@given(st.integers(0, 36), st.integers(1, 40), st.integers(0, 4000))
@properties
def test_a_bound_of_bytes_is_that_of_read_range(
    tmp_path_factory: pytest.TempPathFactory, first: int, count: int, room: int
) -> None:
    """At least one record, and no more than fit, also across segments."""
    path = tmp_path_factory.mktemp("s")
    built(path, 37)
    with opened(path) as storage:
        assert assert_same(storage.partition(0), first, count, room) >= 1


def test_more_than_is_read_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces of a list are read one after the other; a record larger than a piece comes alone."""
    monkeypatch.setattr(segment_reader, "LIST_BYTES", 500)
    monkeypatch.setattr(segment_reader, "LIST_RECORDS", 7)
    build_directory(tmp_path, {0: [make_records(40), make_records(3, first=40, size=1200), make_records(20, first=43)]})
    with opened(tmp_path) as storage:
        for room in (None, 100, 499, 500, 501, 2000):
            for first in (0, 5, 39, 41, 50):
                assert_same(storage.partition(0), first, 100, room)


def test_a_list_is_one_read_of_the_index_and_one_of_the_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built(tmp_path, 30, per_segment=30)
    reads: list[str] = []
    with opened(tmp_path) as storage:
        partition = storage.partition(0)
        partition.read_wire(0, 1)
        real = byte_source.FileSource.read_into

        def counted(self: byte_source.FileSource, offset: int, buffer: memoryview) -> int:
            reads.append(Path(self.name).suffix)
            return real(self, offset, buffer)

        monkeypatch.setattr(byte_source.FileSource, "read_into", counted)
        assert partition.read_wire(3, 20).count == 20
    assert reads == [".idx", ".seg"]


@pytest.mark.parametrize("spoil", ["missing", "short", "entry", "negative", "all", "stale"])
def test_a_wrong_index_costs_time_and_no_record(tmp_path: Path, spoil: str) -> None:
    """The index of a closed segment is not looked at when a partition is opened; a list does not believe it either."""
    built(tmp_path, 30)
    with opened(tmp_path) as storage:
        partition, index = storage.partition(0), index_path(tmp_path)
        raw = index.read_bytes()
        match spoil:
            case "missing":
                index.unlink()
                index.write_bytes(raw[:HEADER_SIZE])
            case "short":
                index.write_bytes(raw[:-9])
            case "entry":
                damage(index, HEADER_SIZE + 8 * 4 + 7, 1)
            case "negative":
                write_at(index, HEADER_SIZE + 8 * 4, b"\xff" * 8)
            case "all":
                index.write_bytes(raw[:HEADER_SIZE] + b"\xff" * (len(raw) - HEADER_SIZE))
            case "stale":
                index.write_bytes(raw[:HEADER_SIZE] + raw[HEADER_SIZE + 8 :] + raw[-8:])
        for first in range(30):
            assert assert_same(partition, first, 12) == min(12, 30 - first)


@pytest.mark.turns(10)
@given(place=st.randoms(use_true_random=False), change=st.integers(1, 255))
@properties
def test_no_damaged_byte_is_ever_served(
    tmp_path_factory: pytest.TempPathFactory, place: random.Random, change: int
) -> None:
    """One byte of a data file or an index, changed beneath the open partition: what is served is right or an error."""
    path = tmp_path_factory.mktemp("s")
    records = built(path, 30)
    with opened(path) as storage:
        partition = storage.partition(0)
        victim = place.choice(sorted((path / "0").iterdir()))
        damage(victim, place.randrange(victim.stat().st_size), change)
        for first in (0, place.randrange(30), place.randrange(30)):
            count = assert_same(partition, first, 30)
            served = partition.read_wire(first, count).data if count else b""
            assert served == pack_records(map(wire_record, records[first : first + count]))


def test_a_damaged_record_ends_the_list_in_front_of_it_and_is_named(tmp_path: Path) -> None:
    records = built(tmp_path, 30, per_segment=30, mark=29)
    with opened(tmp_path, StorageOptions()) as storage:
        partition = storage.partition(0)
        damage(data_path(tmp_path), offset_of(records, 12) + 30)
        assert partition.read_wire(5, 20).count == 7
        assert partition.read_wire_headers(5, 20).count == 7
        for read in (partition.read_wire, partition.read_wire_headers):
            with pytest.raises(CorruptRecordError, match="transaction 12") as caught:
                read(12, 20)
            assert [finding.transaction_id for finding in caught.value.findings] == [12]
        assert partition.read_wire(13, 20).count == 17


def test_data_that_does_not_agree_with_its_own_checksum_is_not_served(tmp_path: Path) -> None:
    """Release 0.13.2 stores and serves such a record: its record checksum is right."""
    records = make_records(3, size=10)
    bad = records[1].encode()
    bad = bad[:32] + bytes(4) + bad[36:-4]
    build_directory(tmp_path, {0: [records]})
    from waltzctl.formats.checksums import crc32

    write_at(data_path(tmp_path), offset_of(records, 1), bad + crc32(bad).to_bytes(4))
    with opened(tmp_path) as storage:
        partition = storage.partition(0)
        assert partition.read_wire(0, 3).count == 1
        with pytest.raises(CorruptRecordError, match="does not agree with the checksum that came with it"):
            partition.read_wire(1, 1)


def test_a_record_above_the_bound_is_refused_without_room_for_it(tmp_path: Path) -> None:
    build_directory(tmp_path, {0: [[*make_records(2, size=10), *make_records(1, first=2, size=500)]]})
    with opened(tmp_path, StorageOptions(max_data_length=100)) as storage:
        partition = storage.partition(0)
        assert partition.read_wire(0, 9).count == 2
        with pytest.raises(CorruptRecordError, match="above the configured maximum"):
            partition.read_wire(2, 1)


def test_a_quarantined_partition_serves_what_can_be_verified(tmp_path: Path) -> None:
    """Lost transactions are an error in a list as everywhere, never the end of it."""
    records = built(tmp_path, 30, per_segment=30, mark=29)
    damage(data_path(tmp_path), offset_of(records, 12) + 3)
    with opened(tmp_path) as storage:
        partition = storage.partition(0)
        assert partition.quarantined
        for first in range(31):
            for room in (None, 200):
                assert_same(partition, first, 30, room)


def test_lists_are_read_while_others_append_and_truncate(tmp_path: Path) -> None:
    """A reader sees an unbroken piece of the log as it was at some instant, whatever goes on; never an error."""
    built(tmp_path, 20)
    stop, failures = threading.Event(), []
    with opened(tmp_path, SMALL) as storage:
        partition = storage.partition(0)

        def read() -> None:
            rng = random.Random(4)
            while not stop.is_set():
                first = rng.randrange(60)
                try:
                    found = partition.read_wire(first, 30)
                except Exception as error:  # whatever it is, it is what this test looks for
                    failures.append(error)
                    return
                if found.count and int.from_bytes(found.data[:8]) != first:
                    failures.append(first)

        readers = [threading.Thread(target=read) for _ in range(2)]
        for reader in readers:
            reader.start()
        for _ in range(20):
            following = partition.next_transaction_id
            partition.append(make_records(30, first=following, seed=following))
            partition.truncate(19)
        stop.set()
        for reader in readers:
            reader.join()
    assert failures == []
    assert disk.observer is None
