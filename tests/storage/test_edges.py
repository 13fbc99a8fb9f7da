"""Small judgements of the storage engine, each way: names, strays, foreign indexes, lists out of memory, broken pairs."""

from __future__ import annotations

import errno
import os
import uuid
from dataclasses import replace
from pathlib import Path

import pytest

from tests.builders import KEY, build_directory, make_records, segment_header
from tests.storage.support import LAYOUTS, built, damage, data_path, index_path, opened
from waltzctl.engine.durable import disk
from waltzctl.engine.errors import DiskFullError, InvalidRequestError, PartitionQuarantinedError
from waltzctl.engine.log import places
from waltzctl.engine.log.view import view_partition, view_storage
from waltzctl.engine.scan.byte_source import FileSource
from waltzctl.engine.storage.belonging import _head, _not_indexed
from waltzctl.engine.storage.control_file import OpenControlFile
from waltzctl.engine.storage.strays import judge_stray
from waltzctl.formats.control import Layout, decode_control
from waltzctl.formats.segment import HEADER_SIZE, SegmentHeader, encode_entries

OTHER_KEY = uuid.UUID(int=KEY.int ^ 1)
FIVE = sum(one.size for one in make_records(5))


def test_a_name_is_there_whatever_it_leads_to(tmp_path: Path) -> None:
    os.symlink(tmp_path / "nowhere", tmp_path / "dangling")
    assert places.still_named(tmp_path / "dangling")
    assert places.still_named(tmp_path)
    assert not places.still_named(tmp_path / "free")


def test_what_is_no_regular_file_has_a_name(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "file").write_bytes(b"")
    assert places.special(tmp_path / "pipe") is not None
    assert places.special(tmp_path / "file") is None
    assert places.special(tmp_path / "free") is None


@LAYOUTS
def test_an_info_of_another_partition_takes_no_update_and_no_reset(tmp_path: Path, layout: Layout) -> None:
    path = build_directory(tmp_path / "d", {0: 3, 1: 3}, layout=layout) / "waltz-storage.ctl"
    control = decode_control(path.read_bytes())
    swapped = replace(control.partitions[0], stored_partition=1)
    path.write_bytes(replace(control, partitions=(swapped, control.partitions[1])).encode())
    before = path.read_bytes()
    with OpenControlFile.open(path) as found:
        for call in (
            lambda: found.set_low_water_mark(0, 9, 1, 1),
            lambda: found.lower_local_low_water_mark(0, -1),
            lambda: found.reset(0),
        ):
            with pytest.raises(PartitionQuarantinedError, match="its info says partition 1"):
                call()
        assert path.read_bytes() == before
        found.set_low_water_mark(1, 9, 2, 2)


@LAYOUTS
def test_a_pair_of_which_none_is_in_force_can_be_reset(tmp_path: Path, layout: Layout) -> None:
    path = built_control(tmp_path, layout)
    for number in (1, 2):
        damage(path, layout.struct_offset(0, number))
    with OpenControlFile.open(path) as found:
        found.reset(0)
    current = decode_control(path.read_bytes()).partitions[0].current_struct
    assert current is not None
    assert current.marks == (-1, -1, -1)


def built_control(tmp_path: Path, layout: Layout) -> Path:
    built(tmp_path / "d", 3, layout=layout)
    return tmp_path / "d" / "waltz-storage.ctl"


@pytest.mark.parametrize(
    ("key", "partition", "first", "index", "refusal", "own"),
    [
        (KEY, 0, 70, True, None, True),
        (OTHER_KEY, 0, 70, True, "it belongs to the cluster", False),
        (KEY, 1, 70, True, "it belongs to partition 1", False),
        (KEY, 0, -1, True, None, False),
        (KEY, 0, 70, False, "there is no index", True),
    ],
)
def test_a_stray_is_judged_by_its_headers(
    tmp_path: Path, key: uuid.UUID, partition: int, first: int, index: bool, refusal: str | None, own: bool
) -> None:
    built(tmp_path / "d", 3)
    header = segment_header(partition, first, key=key).encode()
    for suffix in (".seg", ".idx") if index else (".seg",):
        (tmp_path / "d" / "0" / f"copy{suffix}").write_bytes(header)
    (stray,) = view_partition(tmp_path / "d" / "0", 0).strays
    verdict = judge_stray(stray, KEY, 0)
    assert (verdict.refusal or "").startswith(refusal or "")
    assert (verdict.refusal is None, verdict.own) == (refusal is None, own)
    unknown = judge_stray(stray, None, None)
    assert unknown.refusal is None or not index, "what is not known is not compared"


@pytest.mark.parametrize(
    ("entries", "foreign"),
    [
        ([HEADER_SIZE + 40 * n for n in range(5)], False),
        ([HEADER_SIZE + 41 * n for n in range(5)], True),
        ([HEADER_SIZE + 40 * n + (n > 1) for n in range(5)], True),
        ([HEADER_SIZE + 40 * n + (n > 2) for n in range(5)], False),
        ([HEADER_SIZE + 41 * n + 1 for n in range(5)], False),
        ([HEADER_SIZE, *[HEADER_SIZE + 50] * 4], False),
        ([HEADER_SIZE, 500, 501, 501, 502], False),
    ],
)
def test_an_index_of_other_records_rises_and_leads_elsewhere(tmp_path: Path, entries: list[int], foreign: bool) -> None:
    path = build_directory(tmp_path / "d", {0: [make_records(5, partition=7, size=0)]})
    index = index_path(path)
    index.write_bytes(index.read_bytes()[:HEADER_SIZE] + encode_entries(entries))
    (segment,) = view_partition(path / "0", 0).segments
    with FileSource(segment.data_path) as source:
        head = list(_head(source, 0))
    assert len(head) == 4
    assert _not_indexed(segment, 0, head) is foreign
    assert not _not_indexed(segment, 1, head), "it is the index of another partition's segment"


@pytest.mark.parametrize(
    ("name", "partition"), [("0", True), (str(2**31 - 1), True), (str(2**31), False), ("00", False)]
)
def test_a_directory_is_a_partition_when_its_name_is_a_number_of_one(
    tmp_path: Path, name: str, partition: bool
) -> None:
    built(tmp_path / "d", 3)
    (tmp_path / "d" / name).mkdir(exist_ok=True)
    view = view_storage(tmp_path / "d")
    assert ((tmp_path / "d" / name) in [one.path for one in view.partitions.values()]) is partition
    assert ((tmp_path / "d" / name) in view.unknown) is not partition


def test_no_negative_number_of_records_is_read(tmp_path: Path) -> None:
    built(tmp_path / "d", 3)
    with opened(tmp_path / "d") as storage:
        partition = storage.partition(0)
        for read in (partition.read_wire, partition.read_range):
            with pytest.raises(InvalidRequestError):
                read(0, -1)
        assert partition.read_wire(0, 0).count == 0
        assert partition.read_wire(1, 1).count == 1


@pytest.mark.parametrize(
    "change", [{"version": 1}, {"cluster_key": OTHER_KEY}, {"partition": 1}, {"first_transaction_id": 1}]
)
def test_nothing_is_written_to_a_segment_whose_header_is_another_s(tmp_path: Path, change: dict[str, object]) -> None:
    """Though its index, and every record in it, is right."""
    built(tmp_path / "d", 5)
    file = data_path(tmp_path / "d")
    raw = file.read_bytes()
    header = replace(SegmentHeader.decode(raw), **change)  # type: ignore[arg-type]
    file.write_bytes(header.encode() + raw[HEADER_SIZE:])
    with opened(tmp_path / "d") as storage:
        partition = storage.partition(0)
        assert partition.quarantined
        with pytest.raises(PartitionQuarantinedError):
            partition.append(make_records(1, first=5))
    assert file.read_bytes()[HEADER_SIZE:] == raw[HEADER_SIZE:]


def test_a_write_that_fails_is_cut_off_again_from_both_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built(tmp_path / "d", 5)
    with opened(tmp_path / "d") as storage:
        partition = storage.partition(0)
        sizes = [path(tmp_path / "d").stat().st_size for path in (data_path, index_path)]

        def full(file: disk.WritableFile, offset: int, data: bytes) -> None:
            raise DiskFullError(file.path, offset, OSError(errno.ENOSPC, "full"), doing="write")

        with monkeypatch.context() as patched:
            patched.setattr(disk.WritableFile, "write_at", full)  # the index's; the data is written already then
            with pytest.raises(DiskFullError):
                partition.append(make_records(2, first=5))
        assert [path(tmp_path / "d").stat().st_size for path in (data_path, index_path)] == sizes
        partition.append(make_records(2, first=5))
        assert partition.max_transaction_id == 6
