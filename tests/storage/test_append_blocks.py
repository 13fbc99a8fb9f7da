"""`append_blocks`: the bytes that `append` writes, with as few syncs as can be, and the same promises."""

from __future__ import annotations

import errno
import itertools
import os
import shutil
import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.blocks import encoded_block
from tests.builders import build_directory, digest, make_records
from tests.golden import golden_directories, needs_golden
from tests.storage.support import LAYOUTS, SMALL, damage, data_path, entries, index_path, opened
from waltzctl.engine.durable import disk
from waltzctl.engine.errors import (
    DiskFullError,
    DiskWriteError,
    OutOfOrderError,
    PartitionQuarantinedError,
    SyncFailedError,
)
from waltzctl.engine.scan.transcode import EncodedBlock
from waltzctl.engine.storage.directory import StorageDirectory, StorageOptions
from waltzctl.formats.control import Layout
from waltzctl.formats.request_id import RequestId
from waltzctl.formats.segment import HEADER_SIZE, Record

properties = settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])


def cut(records: Sequence[Record], places: Sequence[int]) -> list[list[Record]]:
    bounds = [0, *sorted(min(place, len(records)) for place in places), len(records)]
    return [list(records[low:high]) for low, high in itertools.pairwise(bounds)]


def files(path: Path) -> dict[str, bytes]:
    return {str(p.relative_to(path)): p.read_bytes() for p in sorted((path / "0").iterdir())}


@given(
    before=st.integers(0, 12),
    sizes=st.lists(st.sampled_from([0, 1, 30, 100, 900, 5000]), min_size=1, max_size=25),
    places=st.lists(st.integers(0, 25), max_size=4),
    threshold=st.sampled_from([1, 128, 129, 300, 1000, 10**9]),
    frames=st.integers(1, 3),
)
@properties
def test_the_files_are_those_that_append_writes(
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    before: int,
    sizes: list[int],
    places: list[int],
    threshold: int,
    frames: int,
) -> None:
    """However the records are parted into blocks and requests: data, index, names and number of segments are the same."""
    monkeypatch.setattr(disk, "now_ms", lambda: 1_700_000_600_000)
    root = tmp_path_factory.mktemp("s")
    records = [
        Record.make(number, RequestId(1, 2, 0, number), number, bytes([number % 251]) * size)
        for number, size in enumerate(sizes, before)
    ]
    options = StorageOptions(threshold)
    for name in ("one", "two"):
        build_directory(root / name, {0: before})
    with StorageDirectory.open(root / "one", options=options) as storage:
        storage.partition(0).append(records)
    with StorageDirectory.open(root / "two", options=options) as storage:
        partition = storage.partition(0)
        blocks = [encoded_block(group, frames) for group in cut(records, places) if group]
        partition.append_blocks(blocks)
        assert partition.read_range(before, 100) == records
    assert files(root / "one") == files(root / "two")
    shutil.rmtree(root)


def test_blocks_across_checkpoints_are_those_that_append_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk, "now_ms", lambda: 1_700_000_600_000)
    records = make_records(3210, size=20)
    for name in ("one", "two"):
        build_directory(tmp_path / name, {0: 0})
    with opened(tmp_path / "one", StorageOptions(70_000)) as storage:
        storage.partition(0).append(records)
    with opened(tmp_path / "two", StorageOptions(70_000)) as storage:
        for low, high in ((0, 999), (999, 1001), (1001, 3210)):
            storage.partition(0).append_blocks([encoded_block(records[low:high], 7)])
        assert storage.partition(0).max_transaction_id == 3209
    assert files(tmp_path / "one") == files(tmp_path / "two")


def test_golden_vectors(tmp_path: Path) -> None:
    """The two records and the index that release 0.13.2 wrote."""
    build_directory(tmp_path, {0: 0})
    records = [
        Record.make(0, RequestId(1, 2, 3, 4), 5, b"abc"),
        Record.make(1, RequestId(1, 2, 3, 5), 6, b""),
    ]
    with opened(tmp_path) as storage:
        storage.partition(0).append_blocks([encoded_block(records[:1]), encoded_block(records[1:])])
    assert data_path(tmp_path).read_bytes()[HEADER_SIZE:].hex() == (
        "00000000000000000000000100000002000000030000000400000005000000033524" + "41c2616263201cb6fd"
        "0000000000000001000000010000000200000003000000050000000600000000000000" + "0075516b9f"
    )
    assert index_path(tmp_path).read_bytes()[HEADER_SIZE:].hex() == "000000000000008000000000000000ab"


@pytest.mark.turns(8)
@needs_golden
def test_what_the_release_wrote_is_written_again(tmp_path: Path) -> None:
    """Every partition of the golden data, read as lists on the wire and appended as blocks: the same bytes on disk."""
    compared = 0
    for place, source in enumerate(golden_directories()):
        copy = tmp_path / f"copy-{place}"
        shutil.copytree(source, copy, ignore=shutil.ignore_patterns(".waltzctl"))
        with opened(copy, StorageOptions()) as storage:
            for number, partition in storage.partitions.items():
                if partition.quarantined or partition.max_transaction_id < 0:
                    continue
                target = tmp_path / f"target-{place}-{number}"
                build_directory(target, {number: 0})
                records = partition.read_range(0, 10**6)
                with opened(target, StorageOptions()) as new:
                    new.partition(number).append_blocks([encoded_block(group) for group in cut(records, [7, 100])])
                written = data_path(target, partition=number).read_bytes()[HEADER_SIZE:]
                segments = partition.segments
                assert written == b"".join(s.data_path.read_bytes()[HEADER_SIZE : s.end] for s in segments)
                first = entries(segments[0].index_path)
                assert entries(index_path(target, partition=number))[: len(first)] == first
                compared += len(records)
    assert compared > 100


class Counter:
    """Counts writes and syncs by kind of file."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen: list[tuple[str, str]] = []
        monkeypatch.setattr(disk, "observer", lambda change: self.seen.append((change.kind, change.path.suffix)))

    def take(self) -> list[tuple[str, str]]:
        taken, self.seen = self.seen, []
        return taken


def test_a_group_is_one_write_and_one_sync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Data, index, and the sync of the data: nothing more, however many requests there are."""
    build_directory(tmp_path, {0: 5})
    with opened(tmp_path, StorageOptions()) as storage:
        partition = storage.partition(0)
        counter = Counter(monkeypatch)
        for groups in (1, 2, 40):
            records = make_records(groups * 3, first=partition.next_transaction_id)
            partition.append_blocks([encoded_block(records[at : at + 3]) for at in range(0, len(records), 3)])
            assert counter.take() == [("write", ".seg"), ("write", ".idx"), ("sync", ".seg")]
        partition.append_blocks([])
        partition.append_blocks([encoded_block([]), encoded_block([])])
        assert counter.take() == [], "nothing to append costs nothing"


def test_a_checkpoint_inside_a_group_is_durable_before_what_follows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The data, then the index up to 999, and only then anything of 1000; a group that ends there needs no more."""
    build_directory(tmp_path, {0: 995}, per_segment=2000, size=5)
    with opened(tmp_path, StorageOptions()) as storage:
        partition = storage.partition(0)
        counter = Counter(monkeypatch)
        partition.append_blocks([encoded_block(make_records(10, first=995))])
        write, index, sync = (
            [("write", ".seg"), ("write", ".idx"), ("sync", ".seg")],
            [("sync", ".idx")],
            ("sync", ".seg"),
        )
        assert counter.take() == [*write, *index, *write]
        partition.append_blocks([encoded_block(make_records(995, first=1005, size=3))])
        assert counter.take() == [*write, *index]
        assert sync in write


@pytest.mark.turns(8)
@given(
    first=st.integers(0, 3),
    requests=st.lists(st.integers(1, 700), min_size=1, max_size=6),
    threshold=st.sampled_from([2000, 30_000, 10**9]),
)
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_group_never_costs_more_syncs_than_the_release_spends_on_its_requests(
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    first: int,
    requests: list[int],
    threshold: int,
) -> None:
    """The release: one sync for each request and segment, two more at each checkpoint, six at each roll-over."""
    path = tmp_path_factory.mktemp("s")
    build_directory(path, {0: first})
    records = make_records(sum(requests), first=first, size=20)
    with opened(path, StorageOptions(threshold)) as storage:
        partition = storage.partition(0)
        size, number, syncs = partition.segments[-1].end, first, 0
        for request in requests:
            syncs += 1
            for place in range(request):
                if size > threshold:
                    syncs += 6 + (place > 0)
                    size = HEADER_SIZE
                size += 60
                number += 1
                syncs += 2 * (number % 1000 == 0)
        counter = Counter(monkeypatch)
        partition.append_blocks([encoded_block(group) for group in cut(records, list(itertools.accumulate(requests)))])
        taken = counter.take()
        assert sum(kind == "sync" for kind, _ in taken) <= syncs
        assert partition.next_transaction_id == number
    shutil.rmtree(path)


def test_the_low_water_mark_syncs_what_is_not_synced_yet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The data is durable since the append; the index is synced once, and not again when nothing came."""
    build_directory(tmp_path, {0: 5})
    with opened(tmp_path, StorageOptions()) as storage:
        partition = storage.partition(0)
        partition.append_blocks([encoded_block(make_records(3, first=5))])
        counter = Counter(monkeypatch)
        partition.set_low_water_mark(9, 7)
        assert counter.take() == [("sync", ".idx"), ("write", ".ctl"), ("sync", ".ctl")]
        partition.set_low_water_mark(10, 7)
        assert counter.take() == [("write", ".ctl"), ("sync", ".ctl")]


@LAYOUTS
def test_what_is_refused_leaves_nothing(tmp_path: Path, layout) -> None:
    build_directory(tmp_path, {0: 5}, layout=layout)
    good = encoded_block(make_records(3, first=5))
    with opened(tmp_path) as storage:
        partition = storage.partition(0)
        before = digest(tmp_path)
        for blocks in ([encoded_block(make_records(1, first=6))], [good, good], [encoded_block(make_records(1))]):
            with pytest.raises(OutOfOrderError, match="the next one is"):
                partition.append_blocks(blocks)
        wrong = EncodedBlock(5, 3, good.data[:-1], good.offsets)
        short = EncodedBlock(5, 3, good.data, good.offsets[:-1])
        moved = EncodedBlock(5, 3, good.data, good.offsets + np.int64(1))
        late = EncodedBlock(5, 3, good.data, np.concatenate([[np.int64(1)], good.offsets[1:]]))
        for block in (wrong, short, moved, late):
            with pytest.raises(ValueError, match="does not agree with its offsets"):
                partition.append_blocks([block])
        assert digest(tmp_path) == before
        partition.append_blocks([good])
        assert partition.max_transaction_id == 7


def test_a_quarantined_partition_takes_no_blocks(tmp_path: Path) -> None:
    build_directory(tmp_path, {0: 25})
    damage(data_path(tmp_path), HEADER_SIZE)
    with opened(tmp_path, SMALL) as storage, pytest.raises(PartitionQuarantinedError):
        storage.partition(0).append_blocks(
            [encoded_block(make_records(1, first=storage.partition(0).next_transaction_id))]
        )


# ---- in two halves --------------------------------------------------------------------------------------------------------


def blocks_of(first: int, *sizes: int) -> list[EncodedBlock]:
    records = [
        Record.make(number, RequestId(1, 2, 0, number), 0, bytes(size)) for number, size in enumerate(sizes, first)
    ]
    return [encoded_block([one], 1) for one in records]


@LAYOUTS
def test_what_is_written_counts_when_it_is_finished(tmp_path: Path, layout: Layout) -> None:
    build_directory(tmp_path / "d", {0: 5}, layout=layout)
    with opened(tmp_path / "d") as storage:
        partition = storage.partition(0)
        append = partition.write_blocks(blocks_of(5, 10, 20))
        assert append is not None
        assert append.file.path == data_path(tmp_path / "d")
        assert (partition.max_transaction_id, partition.read(5), partition.segments[-1].next_transaction_id) == (
            4,
            None,
            5,
        )
        append.file.sync()
        partition.finish_append(append, None)
        assert partition.max_transaction_id == 6
        assert [len(one.data) for one in partition.read_range(5, 9)] == [10, 20]
        partition.append_blocks(blocks_of(7, 1))
        assert partition.max_transaction_id == 7
    with opened(tmp_path / "d") as storage:
        assert storage.partition(0).findings == ()
        assert storage.partition(0).max_transaction_id == 7


def test_until_then_nobody_else_writes(tmp_path: Path) -> None:
    build_directory(tmp_path / "d", {0: 5})
    with opened(tmp_path / "d") as storage:
        partition = storage.partition(0)
        append = partition.write_blocks(blocks_of(5, 10))
        assert append is not None
        other = threading.Thread(target=partition.truncate, args=(4,))
        other.start()
        other.join(0.05)
        assert other.is_alive()
        append.file.sync()
        partition.finish_append(append, None)
        other.join(60)
        assert partition.max_transaction_id == 4


def test_a_sync_that_failed_leaves_nothing_to_be_believed(tmp_path: Path) -> None:
    build_directory(tmp_path / "d", {0: 5})
    with opened(tmp_path / "d") as storage:
        partition = storage.partition(0)
        append = partition.write_blocks(blocks_of(5, 10))
        assert append is not None
        error = SyncFailedError(append.file.path, None, OSError("EIO"), doing="sync")
        with pytest.raises(SyncFailedError):
            partition.finish_append(append, error)
        assert (partition.failed, partition.max_transaction_id) == (error, 4)
        for write in (
            lambda: partition.write_blocks(blocks_of(5, 1)),
            lambda: partition.append_blocks(blocks_of(5, 1)),
        ):
            with pytest.raises(SyncFailedError):
                write()


@pytest.mark.parametrize(("count", "halves"), [(997, True), (998, True), (999, False), (1000, True)])
def test_a_checkpoint_takes_more_than_one_sync(tmp_path: Path, count: int, halves: bool) -> None:
    """A batch up to transaction 998 does not reach it; one up to 999 does."""
    build_directory(tmp_path / "d", {0: count}, per_segment=2000, size=1)
    with opened(tmp_path / "d", StorageOptions()) as storage:
        partition = storage.partition(0)
        before = files(tmp_path / "d")
        append = partition.write_blocks(blocks_of(count, 1))
        assert (append is not None) is halves
        if append is None:
            assert files(tmp_path / "d") == before
            partition.append_blocks(blocks_of(count, 1))  # the lock is free
        else:
            append.file.sync()
            partition.finish_append(append, None)
        assert partition.max_transaction_id == count


@pytest.mark.parametrize(("room", "halves"), [(-1, False), (0, True), (1, True)])
def test_so_does_the_end_of_a_segment(tmp_path: Path, room: int, halves: bool) -> None:
    blocks = blocks_of(3, 40)
    path = build_directory(tmp_path / "d", {0: 3})
    size = data_path(path).stat().st_size
    with opened(path, StorageOptions(size + len(blocks[0].data) + room)) as storage:
        partition = storage.partition(0)
        append = partition.write_blocks(blocks)
        assert (append is not None) is halves
        if append is not None:
            append.file.sync()
            partition.finish_append(append, None)


def test_what_is_refused_leaves_the_lock_free_and_the_files_as_they_were(tmp_path: Path) -> None:
    build_directory(tmp_path / "d", {0: 5})
    with opened(tmp_path / "d") as storage:
        partition = storage.partition(0)
        before = files(tmp_path / "d")
        with pytest.raises(OutOfOrderError):
            partition.write_blocks(blocks_of(6, 1))
        assert files(tmp_path / "d") == before
        other = threading.Thread(target=partition.append_blocks, args=(blocks_of(5, 1),))
        other.start()
        other.join(60)
        assert partition.max_transaction_id == 5


def test_a_write_that_fails_is_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build_directory(tmp_path / "d", {0: 5})
    with opened(tmp_path / "d") as storage:
        partition = storage.partition(0)
        before = files(tmp_path / "d")
        with monkeypatch.context() as patch:
            real, calls = os.pwrite, []

            def full(descriptor: int, data: bytes, offset: int) -> int:
                calls.append(offset)
                if len(calls) == 2:  # of the index
                    raise OSError(errno.ENOSPC, "no space left on device")
                return real(descriptor, data, offset)

            patch.setattr(os, "pwrite", full)
            with pytest.raises(DiskFullError):
                partition.write_blocks(blocks_of(5, 30))
        assert files(tmp_path / "d") == before
        assert partition.failed is None
        partition.append_blocks(blocks_of(5, 30))
        assert partition.max_transaction_id == 5


@pytest.mark.parametrize("way", ["append", "append_blocks", "write_blocks"])
def test_after_a_write_that_cannot_be_taken_back_there_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """Nobody knows what stands behind the last acknowledged transaction."""
    build_directory(tmp_path / "d", {0: 5})

    def fails(*_: object) -> int:
        raise OSError(errno.EIO, "no")

    with opened(tmp_path / "d") as storage:
        partition = storage.partition(0)
        given = make_records(3, first=5) if way == "append" else blocks_of(5, 30)
        real = os.pwrite
        with monkeypatch.context() as patch:
            patch.setattr(
                os, "pwrite", lambda number, data, offset: fails() if offset < 200 else real(number, data, offset)
            )
            patch.setattr(os, "ftruncate", fails)
            with pytest.raises(DiskWriteError):
                getattr(partition, way)(given)
        assert partition.failed is not None
        with pytest.raises(DiskWriteError):
            partition.append_blocks(blocks_of(5, 1))
        assert partition.max_transaction_id == 4


def test_what_an_index_had_before_a_write_that_failed_is_durable_when_a_session_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_directory(tmp_path / "d", {0: 5})
    changes: list[tuple[str, str]] = []
    with opened(tmp_path / "d") as storage:
        partition = storage.partition(0)
        monkeypatch.setattr(disk, "observer", lambda change: changes.append((change.kind, change.path.suffix)))
        partition.append_blocks(blocks_of(5, 3))
        with monkeypatch.context() as patch:

            def full(*_: object) -> int:
                raise OSError(errno.ENOSPC, "no space left on device")

            patch.setattr(os, "pwrite", full)
            with pytest.raises(DiskFullError):
                partition.append_blocks(blocks_of(partition.next_transaction_id, 1))
        partition.set_low_water_mark(99, partition.max_transaction_id)
    written = max(place for place, change in enumerate(changes) if change == ("write", ".idx"))
    session = changes.index(("write", ".ctl"))
    assert ("sync", ".idx") in changes[written:session]
