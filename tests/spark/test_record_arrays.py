"""Records in Arrow batches: every column of them against the records themselves, and where one batch ends and the next begins."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")

import pyarrow as pa

from tests.builders import build_directory, make_records
from waltzctl.engine.findings import Code, Finding, Severity
from waltzctl.engine.inspect.dump_chunks import ChunkReader
from waltzctl.engine.inspect.read_limits import ReadLimits
from waltzctl.engine.inspect.segment_job import SegmentJob
from waltzctl.engine.scan.columns import RecordBatch
from waltzctl.engine.spark import record_arrays
from waltzctl.engine.spark.data_loss import Losses
from waltzctl.engine.spark.record_arrays import (
    Constants,
    Gathering,
    _numbers,
    arrow_batch,
    finding_batch,
    rows_between,
    rows_of,
)
from waltzctl.engine.spark.view_schemas import arrow_schema, pick
from waltzctl.formats.segment import Record

RECORDS = make_records(12, first=100, size=20)
"""Of 60 bytes each."""
NAMES = [one.name for one in pick("records", None, data=True)]


def scanned(tmp_path: Path, records: Sequence[Record] = RECORDS, *, data: bool = True) -> RecordBatch:
    """The records as the scan of a segment yields them."""
    storage = build_directory(tmp_path / "s", {0: [make_records(100, size=0), records]})
    job = SegmentJob(storage / "0", 100, 0)
    with ChunkReader(job, ReadLimits(), data=data) as reader:
        (batch,) = reader.scan(100, 128, stop=reader.size, data=data)
    assert isinstance(batch, RecordBatch)
    return batch


def row(record: Record, offset: int) -> dict[str, Any]:
    request = record.request_id
    return {
        "node": "n",
        "partition": 0,
        "segment": 100,
        "transaction_id": record.transaction_id,
        "offset": offset,
        "size": 40 + len(record.data),
        "request_id": {
            "client": request.client,
            "generation": request.generation,
            "partition": request.partition,
            "sequence": request.sequence,
        },
        "header": record.header,
        "data_length": len(record.data),
        "data_checksum": f"{record.data_checksum:08x}",
        "record_checksum": f"{record.record_checksum:08x}",
        "data": record.data,
        "finding": None,
        "missing": None,
    }


def damaged(code: Code, **place: int) -> Finding:
    return Finding(code, Severity.DAMAGE, Path("/d"), "x", **place)  # type: ignore[arg-type]


ROWS = [row(record, 128 + 60 * place) for place, record in enumerate(RECORDS)]
HERE = Constants("n", 0, 100)


def test_every_column_is_what_the_record_says(tmp_path: Path) -> None:
    batch = scanned(tmp_path)
    made = arrow_batch(batch, NAMES, HERE)
    made.validate(full=True)
    assert made.to_pylist() == ROWS
    assert made.schema.equals(arrow_schema(pick("records", None, data=True)))
    assert arrow_batch(batch, ["data", "offset"], HERE).schema.names == ["data", "offset"]


@pytest.mark.parametrize(("low", "high"), [(0, 1), (1, 2), (11, 12), (0, 12), (3, 9)])
def test_rows_of_a_batch_are_cut_out_with_their_data(tmp_path: Path, low: int, high: int) -> None:
    batch = rows_of(scanned(tmp_path), low, high)
    assert batch is not None
    assert arrow_batch(batch, NAMES, HERE).to_pylist() == ROWS[low:high]


def test_several_batches_are_one_of_all_their_rows(tmp_path: Path) -> None:
    batch = scanned(tmp_path)
    parts = [batch.rows(0, 1), batch.rows(4, 6), batch.rows(11, 12)]
    made = arrow_batch(parts, NAMES, Constants("n", 0, 100))
    assert made.to_pylist() == [ROWS[0], *ROWS[4:6], ROWS[11]]


def test_records_of_every_size_have_their_data(tmp_path: Path) -> None:
    records = [
        Record.make(one.transaction_id, one.request_id, one.header, bytes([size]) * size)
        for one, size in zip(RECORDS, (0, 0, 1, 2, 255, 0, 7, 3, 1, 1, 90, 0), strict=True)
    ]
    made = arrow_batch(scanned(tmp_path, records), ["data", "data_length", "size"], HERE)
    assert made.to_pylist() == [
        {"data": one.data, "data_length": len(one.data), "size": 40 + len(one.data)} for one in records
    ]


def test_a_record_whose_data_disagrees_with_its_checksum_has_its_finding(tmp_path: Path) -> None:
    batch = scanned(tmp_path)
    verdicts = batch.data_ok.copy()
    verdicts[[0, 7]] = False
    made = arrow_batch(replace(batch, data_ok=verdicts), ["finding"], HERE)
    assert made.column(0).to_pylist() == ["data-checksum" if place in (0, 7) else None for place in range(12)]


def test_data_that_the_scan_left_out_cannot_be_asked_for(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not asked for data"):
        arrow_batch(scanned(tmp_path, data=False), ["data"], HERE)


@pytest.mark.parametrize("rows", [(3, 2), (2, 3), (3, 3), (1, 1)])
def test_what_a_segment_has_in_common_is_kept_and_as_long_as_it_is_asked_for(rows: tuple[int, int]) -> None:
    constants = Constants("n", 4, 100)
    for count in rows:
        for name, value in (("node", "n"), ("partition", 4), ("segment", 100), ("missing", None), ("finding", None)):
            found = constants.array(name, count)
            assert found.to_pylist() == [value] * count
            assert (constants.array(name, count) is found) == (count == max(rows[: rows.index(count) + 1]))
    assert len(constants._kept["node"]) == max(rows)


@pytest.mark.turns(10)
def test_a_first_read_imports_no_pandas(tmp_path: Path) -> None:
    """That would take a new worker longer than the read."""
    storage = build_directory(tmp_path / "s", {0: 20, 1: 5}, per_segment=10)
    program = f"""
import sys
from waltzctl.engine.spark.batch_read import reader
from waltzctl.engine.spark.view_schemas import pick, spark_schema
made = reader({{"path": {str(storage)!r}}}, spark_schema(pick("records", None, data=True)))
rows = sum(len(batch) for packet in made.partitions() for batch in made.read(packet))
print(rows, "pandas" in sys.modules)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=Path(__file__).parents[2], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["25", "False"]


def test_numbers_that_might_not_fit_are_refused() -> None:
    assert _numbers(np.array([1, -2], np.int32), pa.int64()).to_pylist() == [1, -2]
    assert _numbers(np.arange(6, dtype=np.int64)[::2], pa.int64()).to_pylist() == [0, 2, 4]
    with pytest.raises(TypeError):
        _numbers(np.array([1], np.int64), pa.int32())


@pytest.mark.parametrize("text", ["", "n", "/data/äö"])
def test_a_text_is_as_often_there_as_it_is_asked_for(text: str) -> None:
    for rows in (0, 1, 3):
        assert Constants(text, None, None).array("node", rows).to_pylist() == [text] * rows


def test_damage_is_a_row_of_its_place_its_code_and_its_cost() -> None:
    found = [
        damaged(Code.TORN_TAIL, partition=4, segment=100, transaction_id=105, offset=428, length=30, missing=2),
        damaged(Code.SEGMENT_GAP),
    ]
    first, second = finding_batch(iter(found), NAMES, "n").to_pylist()
    nothing = dict.fromkeys(NAMES)
    assert first == nothing | {
        "node": "n", "partition": 4, "segment": 100, "transaction_id": 105, "offset": 428, "size": 30,
        "finding": "torn-tail", "missing": 2,
    }  # fmt: skip
    assert second == nothing | {"node": "n", "finding": "segment-gap"}
    assert finding_batch(found, ["missing"], "n").to_pylist() == [{"missing": 2}, {"missing": None}]


@pytest.mark.parametrize(
    ("first", "last", "ids"),
    [
        (None, None, range(100, 112)),
        (100, 111, range(100, 112)),
        (99, 112, range(100, 112)),
        (101, 110, range(101, 111)),
        (None, 100, range(100, 101)),
        (111, None, range(111, 112)),
        (105, 105, range(105, 106)),
        (112, None, range(0)),
        (None, 99, range(0)),
        (None, 98, range(0)),
        (106, 105, range(0)),
    ],
)
def test_records_between_two_ids(tmp_path: Path, first: int | None, last: int | None, ids: range) -> None:
    found = rows_between(scanned(tmp_path), first, last)
    assert ([] if found is None else found.transaction_id.tolist()) == list(ids)
    assert (found is None) == (not ids)


def test_the_first_id_of_all_is_a_bound_like_any_other(tmp_path: Path) -> None:
    storage = build_directory(tmp_path / "s", {0: 5})
    with ChunkReader(SegmentJob(storage / "0", 0, 0), ReadLimits(), data=False) as reader:
        (batch,) = reader.scan(0, 128, stop=reader.size, data=False)
    assert isinstance(batch, RecordBatch)
    for first, last, ids in ((None, 0, [0]), (0, 0, [0]), (0, None, [0, 1, 2, 3, 4])):
        found = rows_between(batch, first, last)
        assert found is not None
        assert found.transaction_id.tolist() == ids


# ---- gathering -----------------------------------------------------------------------------------------------------------


def gathering(columns: Sequence[str] = ("transaction_id",), losses: Losses | None = None, **most: int) -> Gathering:
    return Gathering(columns, arrow_schema(pick("records", list(columns))), losses, **most)


def ids(batches: Iterable[pa.RecordBatch]) -> list[list[int]]:
    return [batch.column(0).to_pylist() for batch in batches]


def taken(gathered: Gathering, batch: RecordBatch, *sizes: int) -> list[list[int]]:
    """The ids of each batch that is handed out when pieces of so many records are added, and in the end."""
    found, place = [], 0
    for size in sizes:
        found += ids(gathered.add(batch.rows(place, place + size)))
        place += size
    return [*found, *ids(gathered.flush())]


@pytest.mark.parametrize(
    ("most", "sizes", "expected"),
    [
        (6, (3, 3), (6,)),
        (5, (3, 3), (3, 3)),
        (6, (3, 3, 1), (6, 1)),
        (6, (5, 2, 4), (5, 6)),
        (2, (5, 1), (5, 1)),
        (1, (1, 1, 1), (1, 1, 1)),
        (100, (1, 1, 1, 5), (8,)),
    ],
)
def test_a_batch_has_no_more_rows_than_it_may(
    tmp_path: Path, most: int, sizes: tuple[int, ...], expected: tuple[int, ...]
) -> None:
    found = taken(gathering(most_rows=most), scanned(tmp_path, data=False), *sizes)
    assert [len(one) for one in found] == list(expected)
    assert [number for one in found for number in one] == list(range(100, 100 + sum(sizes)))


@pytest.mark.parametrize(
    ("most", "expected"), [(120, [2, 2, 2]), (119, [1] * 6), (179, [2, 2, 2]), (180, [3, 3]), (1, [1] * 6)]
)
def test_a_batch_has_no_more_bytes_than_it_may(tmp_path: Path, most: int, expected: list[int]) -> None:
    whole = scanned(tmp_path)
    assert whole.data is not None
    gathered = gathering(("transaction_id", "data"), most_bytes=most)
    found: list[list[int]] = []
    for place in range(6):
        one = whole.rows(place, place + 1)
        found += ids(
            gathered.add(replace(one, data=whole.data[60 * place : 60 * place + 60], data_base=128 + 60 * place))
        )
    found += ids(gathered.flush())
    assert [len(one) for one in found] == expected


def test_bytes_of_two_batches_stay_below_what_an_array_can_hold() -> None:
    assert gathering(most_bytes=1 << 40)._most_bytes == (2**31 - 1) // 2
    assert gathering(most_bytes=5)._most_bytes == 5
    assert (gathering()._most_rows, gathering()._most_bytes) == (65_536, 16 << 20)
    assert record_arrays._LARGEST == 2_147_483_647


def test_data_is_kept_where_it_is_wanted() -> None:
    assert gathering(("data",)).keep_data
    assert not gathering(("offset",)).keep_data


@pytest.mark.parametrize(
    "other", [("m", 0, 100), ("n", 1, 100), ("n", 0, 101), ("n", None, 101), ("m", 1, 101), ("n", 0, 100)], ids=str
)
def test_records_of_small_segments_share_a_batch(tmp_path: Path, other: tuple[str, int | None, int]) -> None:
    columns = ("transaction_id", "node", "partition", "segment", "missing", "finding")
    batch, gathered = scanned(tmp_path, data=False), gathering(columns)
    gathered.begin("n", 0, 100)
    assert not [*gathered.add(batch.rows(0, 2)), *gathered.add(batch.rows(2, 3))]
    gathered.begin(*other)
    assert not list(gathered.add(batch.rows(3, 4)))
    gathered.begin("n", 0, 100)
    assert not list(gathered.add(batch.rows(4, 5)))
    (found,) = [*gathered.flush(), *gathered.flush()]
    places = [("n", 0, 100)] * 3 + [other, ("n", 0, 100)]
    assert found.to_pylist() == [
        dict(zip(columns, (100 + number, *place, None, None), strict=True)) for number, place in enumerate(places)
    ]


def test_what_was_handed_out_leaves_its_segment_behind(tmp_path: Path) -> None:
    batch, gathered = scanned(tmp_path, data=False), gathering(("segment",), most_rows=2)
    gathered.begin("n", 0, 100)
    found = list(gathered.add(batch.rows(0, 2)))
    gathered.begin("n", 0, 102)
    found += [*gathered.add(batch.rows(2, 4)), *gathered.flush()]
    assert ids(found) == [[100, 100], [102, 102]]


def test_damage_stands_behind_what_was_taken_and_is_counted_as_lost(tmp_path: Path) -> None:
    losses = Losses(wanted=True)
    gathered = gathering(("transaction_id", "finding"), losses)
    batch = scanned(tmp_path, data=False)
    found = list(gathered.add(batch.rows(0, 2)))
    assert not [*gathered.tell([], "n"), *found]
    gap = damaged(Code.SEGMENT_GAP, partition=0, transaction_id=102, missing=3)
    found += gathered.tell([gap], "n")
    found += gathered.add(batch.rows(5, 6))
    found += gathered.flush()
    assert [one.to_pydict() for one in found] == [
        {"transaction_id": [100, 101], "finding": [None, None]},
        {"transaction_id": [102], "finding": ["segment-gap"]},
        {"transaction_id": [105], "finding": [None]},
    ]
    with pytest.raises(Exception, match="transaction 102: segment-gap"):
        losses.check()
