"""Segments and partitions: behaviours 12 to 25, appending and reading over segments."""

from __future__ import annotations

import os
import random
import threading
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.builders import build_directory, digest, make_records
from tests.storage.support import (
    LAYOUTS,
    SMALL,
    built,
    codes,
    damage,
    data_path,
    entries,
    expected_data,
    index_path,
    offset_of,
    opened,
    write_at,
)
from waltzctl.engine.errors import (
    BelowLowWaterMarkError,
    CorruptRecordError,
    InvalidRequestError,
    MarkWouldFallError,
    OutOfOrderError,
    RefusedError,
)
from waltzctl.engine.findings import Code
from waltzctl.engine.storage.directory import StorageDirectory, StorageOptions
from waltzctl.engine.storage.segment_files import SegmentExtent
from waltzctl.engine.storage.segment_reader import SegmentReader, corrupt_record
from waltzctl.formats.control import Layout
from waltzctl.formats.segment import HEADER_SIZE, Record, SegmentHeader


@LAYOUTS
def test_12_files_of_another_cluster_are_refused_and_the_right_pair_opens(tmp_path: Path, layout: Layout) -> None:
    built(tmp_path, 10, layout=layout)
    files = (data_path(tmp_path), index_path(tmp_path))
    foreign = replace(SegmentHeader.decode(files[0].read_bytes()), cluster_key=uuid.UUID(int=9)).encode()
    whole = [file.read_bytes() for file in files]
    for spoiled in ((0,), (1,), (0, 1)):
        for place in spoiled:
            write_at(files[place], 0, foreign)
        with opened(tmp_path) as storage:
            assert storage.partition(0).quarantined == (0 in spoiled), "an index alone is made anew"
            assert ("segment-key" if 0 in spoiled else "index-header") in codes(storage.findings)
            if spoiled == (0, 1):
                with pytest.raises(CorruptRecordError):
                    storage.partition(0).read(3)
        for file, data in zip(files, whole, strict=True):
            file.write_bytes(data)
    with opened(tmp_path) as storage:
        assert not storage.partition(0).quarantined


def test_14_a_new_segment_has_only_its_header(tmp_path: Path) -> None:
    build_directory(tmp_path, {0: [make_records(9, size=100)]})
    with opened(tmp_path) as storage:
        partition = storage.partition(0)
        partition.append(make_records(1, first=9, size=0))
        assert [s.first_transaction_id for s in partition.segments] == [0, 9]
        partition.truncate(8)
    for path in (data_path(tmp_path, 9), index_path(tmp_path, 9)):
        assert path.stat().st_size == HEADER_SIZE


@LAYOUTS
def test_15_an_append_that_is_not_the_next_is_refused(tmp_path: Path, layout: Layout) -> None:
    built(tmp_path, 10, layout=layout)
    before = digest(tmp_path)
    with opened(tmp_path) as storage:
        partition = storage.partition(0)
        for first in (0, 9, 11):
            with pytest.raises(OutOfOrderError, match="the next one is 10"):
                partition.append(make_records(2, first=first))
        batch = make_records(3, first=10)
        with pytest.raises(OutOfOrderError, match="the next one is 11"):
            partition.append([batch[0], batch[2]])
        partition.append([])
        assert partition.max_transaction_id == 9
    after = digest(tmp_path)
    assert {name: after[name] for name in before} == before


@settings(max_examples=40)
@given(
    sizes=st.lists(st.integers(0, 400), min_size=1, max_size=60),
    threshold=st.sampled_from([1, 128, 178, 400, 1000, 5000]),
    cuts=st.randoms(use_true_random=False),
)
def test_16_24_segments_are_divided_as_the_release_divides_them(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], threshold: int, cuts: random.Random
) -> None:
    """Property: a segment takes records while it is not larger than the threshold, however the records come in batches."""
    path = tmp_path_factory.mktemp("s")
    build_directory(path, {0: 0})
    records = [make_records(1, first=n, size=size)[0] for n, size in enumerate(sizes)]
    expected: list[tuple[int, int]] = []
    first, size = 0, HEADER_SIZE
    for record in records:
        if size > threshold and size > HEADER_SIZE:
            expected.append((first, size))
            first, size = record.transaction_id, HEADER_SIZE
        size += record.size
    expected.append((first, size))
    with StorageDirectory.open(path, options=StorageOptions(segment_size_threshold=threshold)) as storage:
        partition = storage.partition(0)
        rest = list(records)
        while rest:
            count = cuts.randint(1, 8)
            partition.append(rest[:count])
            rest = rest[count:]
        assert [(s.first_transaction_id, s.end) for s in partition.segments] == expected
        assert partition.read_range(0, 100) == records
    for first, size in expected:
        assert data_path(path, first).stat().st_size == size
        whole = [r for r in records if r.transaction_id >= first][: len(entries(index_path(path, first)))]
        assert data_path(path, first).read_bytes()[HEADER_SIZE:] == expected_data(whole)
        assert entries(index_path(path, first)) == [offset_of(whole, r.transaction_id) for r in whole]


def test_threshold_178_gives_two_records_of_50_bytes_per_segment(tmp_path: Path) -> None:
    build_directory(tmp_path, {0: 0})
    with StorageDirectory.open(tmp_path, options=StorageOptions(segment_size_threshold=178)) as storage:
        storage.partition(0).append(make_records(6, size=10))
        assert [s.first_transaction_id for s in storage.partition(0).segments] == [0, 2, 4]


@LAYOUTS
def test_17_18_truncating_restores_the_size_after_each_append(tmp_path: Path, layout: Layout) -> None:
    records = built(tmp_path, 0, layout=layout)
    records = make_records(30)
    sizes = {-1: (1, HEADER_SIZE)}
    with opened(tmp_path) as storage:
        partition = storage.partition(0)
        for record in records:
            partition.append([record])
            sizes[record.transaction_id] = (len(partition.segments), partition.segments[-1].end)
        assert partition.truncate(29) == 29
        assert partition.truncate(100) == 29, "beyond the end nothing is done"
        for after in range(28, -2, -1):
            assert partition.truncate(after) == after
            segments, size = sizes[after]
            last = partition.segments[-1]
            if last.end == HEADER_SIZE and after >= 0:  # a segment that begins right behind is kept, empty
                segments, size = segments + 1, HEADER_SIZE
            assert (len(partition.segments), last.end) == (segments, size)
            assert last.data_path.stat().st_size == size
            assert last.index_path.stat().st_size == HEADER_SIZE + 8 * (after + 1 - last.first_transaction_id)
            assert partition.max_transaction_id == after
            assert partition.read_range(0, 100) == records[: after + 1]
            assert partition.read(after + 1) is None
        assert sorted(p.name for p in (tmp_path / "0").iterdir()) == [
            "0000000000000000000.idx",
            "0000000000000000000.seg",
        ]
        partition.append(records)
    with opened(tmp_path) as storage:
        assert storage.partition(0).read_range(0, 100) == records


@LAYOUTS
def test_19_truncating_out_of_range_or_below_the_mark_is_refused(tmp_path: Path, layout: Layout) -> None:
    records = built(tmp_path, 30, layout=layout, mark=15)
    before = digest(tmp_path)
    with opened(tmp_path) as storage:
        partition = storage.partition(0)
        with pytest.raises(InvalidRequestError):
            partition.truncate(-2)
        with pytest.raises(BelowLowWaterMarkError, match="local low-water mark is 15"):
            partition.truncate(14)
        assert {n: d for n, d in digest(tmp_path).items() if n in before} == before
        assert partition.truncate(15) == 15
        assert partition.truncate(3, allow_data_loss=True) == 3
        assert partition.local_low_water_mark == 3, "the mark follows what somebody agreed to lose"
    with opened(tmp_path) as storage:
        assert not storage.partition(0).quarantined
        assert storage.partition(0).read_range(0, 50) == records[:4]


@pytest.mark.parametrize(("mark", "permitted"), [(-1, False), (20, True)])
def test_a_truncation_that_would_end_with_a_damaged_record_changes_nothing(
    tmp_path: Path, mark: int, permitted: bool
) -> None:
    """Nor the mark, which falls first where it may."""
    built(tmp_path, 30, mark=mark)
    damage(data_path(tmp_path), HEADER_SIZE + 40 + 3)
    records = make_records(30)
    victim = next(r for r in records if offset_of(records, r.transaction_id) + r.size > HEADER_SIZE + 43)
    before = digest(tmp_path)
    with opened(tmp_path) as storage:
        with pytest.raises(CorruptRecordError):
            storage.partition(0).truncate(victim.transaction_id, allow_data_loss=permitted)
        after = digest(tmp_path)
        assert {name: after[name] for name in before} == before
        assert storage.partition(0).max_transaction_id == 29
        storage.partition(0).append(make_records(1, first=30))


@settings(max_examples=40)
@given(first_count=st.integers(1, 40), keep=st.integers(0, 40), seed=st.integers(0, 1000))
def test_20_an_index_that_was_cut_back_is_rebuilt(
    tmp_path_factory: pytest.TempPathFactory, first_count: int, keep: int, seed: int
) -> None:
    """Property: whatever is missing of the last index, it comes back byte for byte."""
    path = tmp_path_factory.mktemp("s")
    records = make_records(first_count, seed=seed)
    build_directory(path, {0: [records]}, local_low_water_mark=min(keep, first_count) - 1)
    whole = index_path(path).read_bytes()
    os.truncate(index_path(path), min(len(whole), HEADER_SIZE + 8 * keep + seed % 8))
    with opened(path) as storage:
        assert [h.transaction_id for h in storage.partition(0).read_headers(0, 100)] == list(range(first_count))
    assert index_path(path).read_bytes() == whole


@pytest.mark.parametrize("count", [1, 2, 3, 10, 50, 100])
@pytest.mark.parametrize("spoil", ["21: cut 10 bytes", *(f"22: invert byte -{n} of the checksum" for n in range(1, 5))])
def test_21_22_exactly_the_last_record_is_dropped(tmp_path: Path, spoil: str, count: int) -> None:
    path = tmp_path
    records = make_records(count, seed=count)
    build_directory(path, {0: [records]}, local_low_water_mark=-1)
    data = data_path(path)
    if spoil.startswith("21"):
        os.truncate(data, data.stat().st_size - 10)
    else:
        damage(data, int(spoil.split()[3]))
    with opened(path) as storage:
        assert not storage.partition(0).quarantined
        assert storage.partition(0).read_range(0, 200) == records[:-1]
    assert data.read_bytes()[HEADER_SIZE:] == expected_data(records[:-1])
    assert entries(index_path(path)) == [offset_of(records, r.transaction_id) for r in records[:-1]]


@LAYOUTS
def test_23_24_search_over_segments_with_few_open(tmp_path: Path, layout: Layout) -> None:
    """First, last and inner ids are found in each segment, nothing outside; descriptors stay bounded."""
    records = built(tmp_path, 100, layout=layout)
    before = len(os.listdir("/proc/self/fd"))
    with StorageDirectory.open(tmp_path, options=StorageOptions(1000, cached_segments=1)) as storage:
        partition = storage.partition(0)
        opening = len(os.listdir("/proc/self/fd"))
        for number in (0, 9, 10, 15, 19, 90, 99, 45):
            assert partition.read(number) == records[number]
            assert partition.open_segments == 1
            assert len(os.listdir("/proc/self/fd")) <= opening + 2
        for number in (-5, -1, 100, 2**62):
            assert partition.read(number) is None
        assert partition.read_range(5, 0) == []
        assert partition.read_range(95, 100) == records[95:]
        assert partition.read_range(100, 5) == []
        with pytest.raises(InvalidRequestError):
            partition.read_range(0, -1)
        assert [(h.transaction_id, h.request_id, h.header) for h in partition.read_headers(8, 5)] == [
            (r.transaction_id, r.request_id, r.header) for r in records[8:13]
        ]
    assert len(os.listdir("/proc/self/fd")) == before
    with pytest.raises(RefusedError, match="closed"):
        partition.read(0)


@settings(max_examples=40)
@given(first=st.integers(0, 30), count=st.integers(0, 40), limit=st.one_of(st.none(), st.integers(0, 3000)))
def test_reading_many_is_bounded_by_bytes_but_never_empty(
    tmp_path_factory: pytest.TempPathFactory, first: int, count: int, limit: int | None
) -> None:
    path = tmp_path_factory.getbasetemp() / "bounded"
    records = make_records(30)
    if not path.exists():
        build_directory(path, {0: 30}, per_segment=7)
    expected = []
    for record in records[first : first + count]:
        if expected and limit is not None and sum(r.size for r in expected) + record.size > limit:
            break
        expected.append(record)
    with opened(path) as storage:
        assert storage.partition(0).read_range(first, count, limit) == expected


def test_records_larger_than_what_is_read_ahead(tmp_path: Path) -> None:
    sizes = [10, 700_000, 0, 300_000, 5]
    records = [make_records(1, first=n, size=size)[0] for n, size in enumerate(sizes)]
    build_directory(tmp_path, {0: [records]})
    with opened(tmp_path) as storage:
        assert storage.partition(0).read_range(0, 10) == records


@LAYOUTS
def test_a_wrong_index_entry_costs_no_record(tmp_path: Path, layout: Layout) -> None:
    """Entries in the middle of a sealed segment are not looked at when it is opened; reading goes around them."""
    records = built(tmp_path, 80, layout=layout, per_segment=40)
    for place in (0, 5, 6, 7, 20, 21):
        damage(index_path(tmp_path), HEADER_SIZE + 8 * place + 6)
    damage(index_path(tmp_path), HEADER_SIZE + 8 * 30)
    with opened(tmp_path) as storage:
        partition = storage.partition(0)
        assert not partition.quarantined
        assert [partition.read(n) for n in range(80)] == records


def test_reads_see_nothing_of_a_batch_that_is_not_durable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    records = built(tmp_path, 5, per_segment=5)
    batch = make_records(30, first=5, size=100)
    with opened(tmp_path) as storage:
        partition = storage.partition(0)
        real, seen = os.fdatasync, []

        def look(descriptor: int) -> None:
            seen.append(
                (
                    partition.max_transaction_id,
                    len(partition.read_range(0, 100)),
                    partition.read(5),
                    partition.read_wire(0, 100).count,
                    partition.read_wire(5, 1).count,
                )
            )
            real(descriptor)

        monkeypatch.setattr(os, "fdatasync", look)
        partition.append(batch)
        assert len(seen) > 5
        assert set(seen) == {(4, 5, None, 5, 0)}
        assert partition.read_range(0, 100) == records + batch


@pytest.mark.turns(10)
@LAYOUTS
def test_25_batches_and_list_reads_at_the_same_time(tmp_path: Path, layout: Layout) -> None:
    """Every list starts at the asked id, is consecutive and right, and is empty only at the end; segments are evicted."""
    build_directory(tmp_path, {0: 0}, layout=layout)
    records = make_records(1500)
    problems: list[str] = []
    done = threading.Event()
    with opened(tmp_path) as storage:
        partition = storage.partition(0)

        def read(seed: int) -> None:
            source = random.Random(seed)
            while not done.is_set():
                durable = partition.next_transaction_id
                first, count = source.randint(0, durable), source.randint(0, 50)
                try:
                    found = partition.read_range(first, count)
                except Exception as error:
                    problems.append(repr(error))
                    return
                if found != records[first : first + len(found)] or len(found) < min(count, durable - 3 - first):
                    problems.append(f"{first} {count} {durable}: {len(found)} records")
                if partition.open_segments > SMALL.cached_segments + 3:
                    problems.append("too many open segments")

        readers = [threading.Thread(target=read, args=(seed,)) for seed in range(3)]
        for reader in readers:
            reader.start()
        source, position = random.Random(9), 0
        while position < len(records):
            count = source.randint(1, 25)
            partition.append(records[position : position + count])
            position += count
            if source.random() < 0.1:  # a truncation goes on beneath the readers
                partition.truncate(max(partition.max_transaction_id - 3, -1))
                partition.append(records[partition.next_transaction_id : min(position, len(records))])
        done.set()
        for reader in readers:
            reader.join()
        assert problems == []
        assert len(partition.segments) > 20


@pytest.mark.parametrize("cut", [True, False])
@pytest.mark.parametrize("read", ["records", "wire", "headers"])
def test_what_a_truncation_writes_over_beneath_a_reader_is_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cut: bool, read: str
) -> None:
    """The reader meets half a record; when it asks how far the log goes, that is again as far as before, or farther."""
    build_directory(tmp_path, {0: 10})
    records = make_records(20)
    original = SegmentReader.read_from
    calls: list[int] = []
    with opened(tmp_path) as storage:
        partition = storage.partition(0)

        def overtaken(self: SegmentReader, extent: SegmentExtent, transaction_id: int) -> Iterator[Record]:
            calls.append(transaction_id)
            if len(calls) > 1:
                yield from original(self, extent, transaction_id)
                return
            if cut:
                partition.truncate(4)
                partition.append(records[5:12])
            raise corrupt_record(extent, transaction_id, Code.RECORD_LENGTH, None, None, None)

        monkeypatch.setattr(SegmentReader, "read_from", overtaken)
        monkeypatch.setattr(SegmentReader, "read_list", lambda *_, **__: None)

        def found() -> object:
            if read == "records":
                return partition.read_range(7, 3)
            if read == "headers":
                return [one.transaction_id for one in partition.read_headers(7, 3)]
            return partition.read_wire(7, 3, None).count

        if not cut:
            with pytest.raises(CorruptRecordError):
                found()
            return
        wanted = {"records": records[7:10], "headers": [7, 8, 9], "wire": 3}
        assert found() == wanted[read]
        assert calls[:2] == [7, 7]


@LAYOUTS
def test_set_low_water_mark_rules_of_a_partition(tmp_path: Path, layout: Layout) -> None:
    """Behaviours 30 and 35: below the last id is refused, above it is accepted; the local mark is the last id."""
    built(tmp_path, 10, layout=layout, mark=-1)
    with opened(tmp_path) as storage:
        partition = storage.partition(0)
        with pytest.raises(MarkWouldFallError, match="low-water mark 8 is lower than the max transaction id 9"):
            partition.set_low_water_mark(4, 8)
        partition.set_low_water_mark(4, 30)
        assert (partition.session_id, partition.low_water_mark, partition.local_low_water_mark) == (4, 30, 9)
        partition.append(make_records(1, first=10))
        assert partition.local_low_water_mark == 9
    with opened(tmp_path) as storage:
        partition = storage.partition(0)
        assert (partition.session_id, partition.low_water_mark, partition.local_low_water_mark) == (4, 30, 9)


def test_a_large_segment_is_scanned_from_its_last_checkpoint_only(tmp_path: Path) -> None:
    """Damage far below the checkpoint is not met at opening, but is when it is read."""
    records = make_records(5500, size=10)
    build_directory(tmp_path, {0: [records]}, local_low_water_mark=5000)
    damage(data_path(tmp_path), offset_of(records, 1234) + 37)
    with opened(tmp_path) as storage:
        partition = storage.partition(0)
        assert not partition.quarantined
        assert partition.read(5499) == records[5499]
        with pytest.raises(CorruptRecordError):
            partition.read(1234)
    damage(data_path(tmp_path), offset_of(records, 5100) + 37)
    with opened(tmp_path) as storage:
        assert storage.partition(0).quarantined


@pytest.mark.parametrize("entry", [4999, 3999])
def test_a_checkpoint_that_does_not_prove_itself_is_not_believed(tmp_path: Path, entry: int) -> None:
    records = make_records(5500, size=10)
    build_directory(tmp_path, {0: [records]}, local_low_water_mark=-1)
    whole = index_path(tmp_path).read_bytes()
    for place in {entry, 4999}:
        damage(index_path(tmp_path), HEADER_SIZE + 8 * place + 7, 0x01)
    with opened(tmp_path) as storage:
        assert not storage.partition(0).quarantined
        assert storage.partition(0).read_range(4990, 20) == records[4990:5010]
    if entry == 4999:
        assert index_path(tmp_path).read_bytes() == whole, "what was scanned was mended"


@LAYOUTS
def test_a_replica_that_is_behind_its_cluster_is_cut_down_to_its_own_mark(tmp_path: Path, layout: Layout) -> None:
    """The other mark is that of the cluster, and says nothing of what was durable here."""
    built(tmp_path, 10, layout=layout)
    with opened(tmp_path) as storage:
        partition = storage.partition(0)
        partition.set_low_water_mark(99, 50)
        partition.append(make_records(20, first=10))
        assert (partition.local_low_water_mark, partition.low_water_mark) == (9, 50)
        assert partition.truncate(19) == 19
        with pytest.raises(BelowLowWaterMarkError):
            partition.truncate(8)
        assert partition.truncate(9) == 9


def test_a_quarantined_partition_was_not_mended_whatever_was_found(tmp_path: Path) -> None:
    built(tmp_path, 10, per_segment=5)
    with data_path(tmp_path, 5).open("ab") as file:
        file.write(b"half a record")
    with opened(tmp_path) as storage:
        assert len(storage.partition(0).mended) == 1
    with data_path(tmp_path, 5).open("ab") as file:
        file.write(b"half a record")
    damage(data_path(tmp_path), -1)
    with opened(tmp_path) as storage:
        partition = storage.partition(0)
        assert partition.quarantined
        assert "torn-tail" in codes(partition.findings)
        assert partition.mended == ()
