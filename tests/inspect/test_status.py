"""status: key, layout, marks, extent and health, without reading the data."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.builders import KEY, build_directory, make_records, write_segment
from tests.inspect.helpers import age, cut, flip, seg
from tests.inspect.test_codes import break_struct, unassigned
from waltzctl.engine.durable import disk
from waltzctl.engine.durable.directory_lock import DirectoryLock
from waltzctl.engine.errors import InvalidRequestError
from waltzctl.engine.findings import Finding
from waltzctl.engine.inspect import status as status_module
from waltzctl.engine.inspect.status import storage_status
from waltzctl.engine.inspect.targets import ScopeSurroundings, look_around
from waltzctl.engine.scan.byte_source import FileSource
from waltzctl.formats.control import Layout


@pytest.mark.parametrize("layout", list(Layout))
def test_status_tells_key_layout_marks_and_extent(tmp_path: Path, layout: Layout) -> None:
    """Of a clean directory, assigned and unassigned partitions."""
    storage = age(build_directory(tmp_path / "s", {0: 120, 2: 0}, layout=layout, num_partitions=4, size=10))
    status = storage_status(storage)
    assert (status.path, status.cluster_key, status.layout, status.num_partitions) == (storage, KEY, layout, 4)
    assert status.locked_by is None
    assert [one.partition for one in status.partitions] == [0, 1, 2, 3]
    one = status.partitions[0]
    assert (one.assigned, one.readable, one.writable, one.health) == (True, True, True, "ok")
    assert (one.session_id, one.low_water_mark, one.local_low_water_mark) == (3, 59, 59)
    assert (one.segments, one.records, one.first_transaction_id, one.last_transaction_id) == (3, 120, 0, 119)
    assert one.bytes == sum(file.stat().st_size for file in (storage / "0").iterdir())
    assert one.last_written is not None
    assert one.last_written.endswith("Z")
    empty = status.partitions[2]
    assert (empty.records, empty.first_transaction_id, empty.last_transaction_id) == (0, None, None)
    other = status.partitions[1]
    assert (other.assigned, other.health, other.segments, other.last_written) == (False, "unassigned", 0, None)
    assert [one.partition for one in storage_status(storage, [2, 3]).partitions] == [2, 3]


def test_health_names_each_partition_by_its_worst_finding(tmp_path: Path) -> None:
    """A torn tail, a damaged header, a pair that is lost, files of an unassigned partition."""
    storage = build_directory(tmp_path / "s", dict.fromkeys(range(5), 40), per_segment=20, size=10)
    cut(seg(storage, 0, 20), 1000)
    unassigned(storage)
    flip(seg(storage, 2, 20), 12)
    break_struct(storage, 3, 1, 2)
    status = storage_status(age(storage))
    assert [one.health for one in status.partitions] == ["repairable", "unassigned", "damaged", "damaged", "ok"]
    assert [one.session_id for one in status.partitions] == [3, -1, 3, None, 3]
    assert status.partitions[3].assigned is None
    assert status.partitions[0].last_transaction_id == 36


@pytest.mark.parametrize("layout", list(Layout))
@pytest.mark.parametrize(("structs", "health"), [((1,), "repairable"), ((1, 2), "damaged")])
def test_what_is_wrong_with_the_info_of_a_partition_without_directory_is_told(
    tmp_path: Path, layout: Layout, structs: tuple[int, ...], health: str
) -> None:
    """Nobody knows whether it is assigned; it was called ok, and the whole directory with it."""
    storage = build_directory(tmp_path / "s", {0: 5}, layout=layout, num_partitions=2)
    break_struct(storage, 1, *structs)
    status = storage_status(age(storage))
    assert [(one.assigned, one.health) for one in status.partitions] == [(True, "ok"), (None, health)]
    assert [len(one.findings) for one in status.partitions] == [0, 1]
    assert status.findings == ()


def test_bytes_behind_the_infos_are_no_partition(tmp_path: Path) -> None:
    storage = build_directory(tmp_path / "s", {0: 5}, num_partitions=2)
    with (storage / "waltz-storage.ctl").open("ab") as file:
        file.write(bytes(2 * 76))
    status = storage_status(age(storage))
    assert ([one.partition for one in status.partitions], status.num_partitions) == ([0, 1], 2)
    assert [one.code for one in status.findings] == ["control-file-size"]


def test_the_last_transaction_is_the_highest_whichever_segment_has_it(tmp_path: Path) -> None:
    """The first one goes on behind the end of the next one."""
    records = make_records(40, size=10)
    storage = build_directory(tmp_path / "s", {0: [records]}, local_low_water_mark=9)
    write_segment(storage / "0", records[20:30])
    (one,) = storage_status(age(storage)).partitions
    assert (one.first_transaction_id, one.last_transaction_id, one.records) == (0, 39, 50)


def test_availability_comes_from_flag_and_marks(tmp_path: Path) -> None:
    """A marks file that cannot be understood makes both unknown, and nothing else."""
    storage = age(build_directory(tmp_path / "s", {0: 5, 1: 5}, layout=Layout.DOCUMENTED))
    state = storage / disk.STATE_DIRECTORY
    state.mkdir()
    marks = {"version": 1, "partitions": {"1": {"readable": True, "writable": False}}}
    (state / "availability.json").write_text(json.dumps(marks))
    assert [(one.readable, one.writable) for one in storage_status(storage).partitions] == [(True, True), (True, False)]
    (state / "availability.json").write_text("{")
    assert [(one.readable, one.health) for one in storage_status(storage).partitions] == [(None, "ok"), (None, "ok")]


def test_status_tells_who_holds_the_directory(tmp_path: Path) -> None:
    """Without taking a lock itself."""
    storage = age(build_directory(tmp_path / "s", {0: 5}))
    with DirectoryLock.acquire(storage, storage / "waltz-storage.ctl"):
        assert storage_status(storage).locked_by == os.getpid()
    assert storage_status(storage).locked_by is None


def test_status_reads_little_of_large_segments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Headers, both ends; never the whole."""
    storage = age(build_directory(tmp_path / "s", {0: 20000}, size=300, per_segment=20000))
    read = 0
    original = FileSource.read_into

    def counting(self: FileSource, offset: int, buffer: memoryview) -> int:
        nonlocal read
        count = original(self, offset, buffer)
        read += count
        return count

    monkeypatch.setattr(FileSource, "read_into", counting)
    status = storage_status(storage)
    assert status.partitions[0].records == 20000
    assert read < 50_000


def test_without_a_control_file_the_partitions_are_described_all_the_same(tmp_path: Path) -> None:
    """What the control file would say is None."""
    storage = build_directory(tmp_path / "s", {0: 5})
    (storage / "waltz-storage.ctl").unlink()
    status = storage_status(age(storage))
    assert (status.layout, status.num_partitions, status.cluster_key) == (None, None, KEY)
    assert [one.code for one in status.findings] == ["control-file-missing"]
    (one,) = status.partitions
    assert (one.assigned, one.session_id, one.records) == (None, None, 5)


def test_a_part_of_a_directory_has_no_status(tmp_path: Path) -> None:
    """A partition directory or a file is refused."""
    storage = build_directory(tmp_path / "s", {0: 5})
    for path in (storage / "0", seg(storage, 0, 0), storage / "waltz-storage.ctl"):
        with pytest.raises(InvalidRequestError):
            storage_status(path)


def test_findings_of_a_control_file_are_gone_over_once_and_not_once_for_each_partition(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    passes = [0]

    class Counted(tuple[Finding, ...]):
        def __iter__(self) -> Iterator[Finding]:
            passes[0] += 1
            return super().__iter__()

    def counted(*arguments: Any) -> ScopeSurroundings:
        around = look_around(*arguments)
        return replace(around, findings=Counted(around.findings))

    monkeypatch.setattr(status_module, "look_around", counted)
    storage = build_directory(tmp_path / "s", dict.fromkeys(range(10), 5), num_partitions=40, size=10)
    for number in range(40):
        break_struct(storage, number, 1, 2)
    described = storage_status(age(storage))
    assert [one.partition for one in described.partitions if one.findings] == list(range(40))
    assert passes[0] < 5
