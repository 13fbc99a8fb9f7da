"""The other views say what verify and dump say, whatever the size of a split."""

from __future__ import annotations

import shutil
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.builders import build_directory, make_records, write_segment
from tests.golden import golden_directories, needs_golden
from tests.inspect.helpers import age, cut, flip, idx, seg
from tests.spark.reading import examples, in_order, packets, read, verified
from waltzctl.engine.columns.finding_columns import FINDING
from waltzctl.engine.findings import Finding
from waltzctl.engine.inspect.dump import SegmentDump, dump_control, dump_segments
from waltzctl.engine.inspect.dump_index import IndexEntry, dump_index
from waltzctl.engine.spark.view_schemas import VIEWS

SIZES = ("128MiB", "1000", "300")
corpus = pytest.mark.parametrize("storage", examples(), ids=lambda path: path.parent.name)


def as_row(node: Path, finding: Finding) -> dict[str, Any]:
    return {"node": str(node), **FINDING.keys(finding)}


@pytest.mark.turns(10)
@pytest.mark.parametrize("size", SIZES)
@corpus
def test_findings_are_those_of_verify(storage: Path, size: str) -> None:
    expected = [as_row(storage, one) for one in verified(storage)]
    assert in_order(read(storage, view="findings", splitSize=size)) == in_order(expected)


@needs_golden
@pytest.mark.parametrize("storage", golden_directories(), ids=lambda path: path.name)
def test_findings_in_released_data_are_those_of_verify(storage: Path) -> None:
    expected = [as_row(storage, one) for one in verified(storage)]
    assert in_order(read(storage, view="findings", splitSize="200KiB")) == in_order(expected)


def test_findings_of_a_partition_in_many_tasks_are_those_of_verify(tmp_path: Path) -> None:
    """Gaps, overlaps, a renamed file, a lost end that its index shows, orphans, strays, and acknowledged records that miss."""
    storage = build_directory(tmp_path / "s", {0: 400, 1: 100}, per_segment=20, size=40, local_low_water_mark=450)
    directory = storage / "0"
    seg(storage, 0, 60).unlink()
    for path in (seg(storage, 0, 100), idx(storage, 0, 100)):
        path.rename(path.with_name(path.name.replace("100", "999")))
    cut(seg(storage, 0, 160), 128 + 80 * 12)
    cut(seg(storage, 0, 200), 128 + 80 * 12 + 30)
    flip(seg(storage, 0, 240), 300)
    idx(storage, 0, 280).unlink()
    write_segment(directory, make_records(30, first=300, size=40), first=300)
    (directory / "notes.txt").write_text("what is this")
    age(storage)
    expected = [as_row(storage, one) for one in verified(storage)]
    codes = {row["code"] for row in expected}
    assert {"segment-gap", "segment-overlap", "index-orphan", "unknown-file", "acknowledged-missing"} <= codes
    for size in ("128MiB", "8000", "3000", "100"):
        tasks = packets(storage, view="findings", splitSize=size)
        assert in_order(row for task in tasks for row in task) == in_order(expected)
    assert len(tasks) > 15


def test_a_mark_that_only_an_earlier_segment_reaches_is_reached(tmp_path: Path) -> None:
    """The last segment by its name ends earlier than the one that it overlaps."""
    storage = build_directory(tmp_path / "s", {0: [make_records(100, size=40)]}, local_low_water_mark=80)
    write_segment(storage / "0", make_records(10, first=50, size=40), first=50)
    age(storage)
    expected = [as_row(storage, one) for one in verified(storage)]
    assert {row["code"] for row in expected} == {"segment-overlap"}
    assert in_order(read(storage, view="findings", splitSize=400)) == in_order(expected)


def segment_row(storage: Path, one: SegmentDump) -> dict[str, Any]:
    names = [column.name for column in VIEWS["segments"] if column.name != "node"]
    values = {name: getattr(one, name) for name in names}
    key = None if one.cluster_key is None else str(one.cluster_key)
    return {"node": str(storage), **values, "path": str(one.path), "cluster_key": key, "created": time_of(one.created)}


def time_of(said: str | None) -> datetime | None:
    """As Arrow gives it back."""
    return None if said is None else pa.scalar(datetime.fromisoformat(said), pa.timestamp("us", "UTC")).as_py()


@pytest.mark.turns(10)
@pytest.mark.parametrize("size", ["128MiB", "100"])
@corpus
def test_segments_are_those_of_dump(storage: Path, size: str) -> None:
    expected = [segment_row(storage, one) for one in dump_segments(storage) if isinstance(one, SegmentDump)]
    assert in_order(read(storage, view="segments", splitSize=size)) == in_order(expected)


@pytest.mark.turns(8)
@pytest.mark.parametrize("size", ["128MiB", "100"])
@corpus
def test_index_entries_are_those_of_dump(storage: Path, size: str) -> None:
    expected = [
        {
            "node": str(storage),
            "partition": one.partition,
            "segment": one.segment,
            "transaction_id": one.transaction_id,
            "offset": one.offset,
        }
        for one in dump_index(storage)
        if isinstance(one, IndexEntry)
    ]
    assert in_order(read(storage, view="index", splitSize=size)) == in_order(expected)


def test_index_entries_can_be_bounded_by_id(tmp_path: Path) -> None:
    storage = build_directory(tmp_path / "s", {0: 100}, per_segment=40, size=5)
    rows = read(storage, view="index", minTransactionId=30, maxTransactionId=50)
    assert [row["transaction_id"] for row in rows] == list(range(30, 51))


@corpus
def test_control_is_what_dump_says_of_the_control_file(storage: Path) -> None:
    rows = read(storage, view="control")
    if not (storage / "waltz-storage.ctl").exists():
        assert rows == []
        return
    control = dump_control(storage)
    assert [row["partition"] for row in rows] == [info.partition for info in control.partitions]
    for row, info in zip(rows, control.partitions, strict=True):
        assert row["node"] == str(storage)
        assert row["num_partitions"] == control.num_partitions
        assert row["layout"] == (control.layout and control.layout.value)
        assert (row["stored_partition"], row["current"]) == (info.stored_partition, info.current)
        for told, struct in zip(row["structs"], info.structs, strict=True):
            assert told.pop("checksum") == f"{struct.checksum:08x}"
            assert told == {name: getattr(struct, name) for name in told}


def test_a_control_file_without_a_header_is_one_row(tmp_path: Path) -> None:
    storage = build_directory(tmp_path / "s", {0: 3})
    cut(storage / "waltz-storage.ctl", 50)
    age(storage)
    (row,) = read(storage, view="control")
    assert row["size"] == 50
    assert row["partition"] is None
    assert row["structs"] is None


@pytest.mark.parametrize("view", [name for name in VIEWS if name != "control"])
def test_partitions_that_are_not_named_are_in_no_view(view: str, tmp_path: Path) -> None:
    storage = build_directory(tmp_path / "s", {0: 60, 1: 60, 2: 60}, per_segment=20)
    for partition in range(3):
        idx(storage, partition, 0).write_bytes(b"")
    age(storage)
    rows = read(storage, view=view, partitions="0,2", columns="partition")
    assert {row["partition"] for row in rows} == {0, 2}


def test_a_partition_of_several_nodes_is_told_apart_by_the_node(tmp_path: Path) -> None:
    one = build_directory(tmp_path / "cluster" / "node-1", {0: 5})
    build_directory(tmp_path / "cluster" / "node-2", {0: 7})
    rows = read(tmp_path / "cluster", columns="node,transaction_id")
    counted = {node: [row["node"] for row in rows].count(node) for node in {row["node"] for row in rows}}
    assert counted == {str(one): 5, str(tmp_path / "cluster" / "node-2"): 7}
    assert len(read(tmp_path / "cluster" / "node-*", columns="node")) == 12
    assert len(read(one, tmp_path / "cluster" / "node-2", columns="node")) == 12


def test_single_files_and_directories_can_be_named(tmp_path: Path) -> None:
    storage = build_directory(tmp_path / "s", {0: 30, 3: 30}, per_segment=10)
    assert len(read(storage / "3", columns="transaction_id")) == 30
    named = read(seg(storage, 0, 10), columns="node,partition,transaction_id")
    assert [row["transaction_id"] for row in named] == list(range(10, 20))
    assert {(row["node"], row["partition"]) for row in named} == {(str(storage), 0)}
    assert len(read(idx(storage, 3, 20), view="index", columns="offset")) == 10
    assert len(read(storage / "waltz-storage.ctl", view="control", columns="partition")) == 4
    shutil.copy(seg(storage, 0, 20), tmp_path / seg(storage, 0, 20).name)
    loose = read(tmp_path / seg(storage, 0, 20).name, columns="node,partition,transaction_id")
    assert [(row["node"], row["partition"], row["transaction_id"]) for row in loose] == [
        (str(tmp_path), None, number) for number in range(20, 30)
    ]
