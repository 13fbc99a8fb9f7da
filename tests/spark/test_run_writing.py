"""The rows of one task as segments: each byte that is written, each bound of a row, and what is read back."""

from __future__ import annotations

import re
import uuid
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")

import pyarrow as pa

from tests.builders import make_records
from tests.spark.writing import KEY, begin, is_clean, rows, write
from waltzctl.engine.errors import ChecksumMismatchError, DamageError, DiskReadError, InvalidRequestError
from waltzctl.engine.spark import run_writing, writer
from waltzctl.engine.spark.run_joining import StagedSegment, join
from waltzctl.engine.spark.run_writing import RunWriter, SegmentPlan
from waltzctl.formats.segment import Record, SegmentHeader, encode_entries, encode_records, index_name, segment_name

RECORDS = make_records(8, size=20)
"""Of 60 bytes each."""


def plan(partitions: int | None = None, threshold: int = 1 << 20) -> SegmentPlan:
    return SegmentPlan(uuid.UUID(KEY), 77, partitions, threshold)


def written(path: Path, *batches: pa.RecordBatch, **planned: Any) -> tuple[StagedSegment, ...]:
    path.mkdir(exist_ok=True)
    runs = RunWriter(path / "t", plan(**planned))
    for batch in batches:
        runs.add(batch)
    return runs.finish()


def files(records: Sequence[Record], partition: int = 0) -> tuple[bytes, bytes]:
    """A data file and its index."""
    header = SegmentHeader(0, 77, uuid.UUID(KEY), partition, records[0].transaction_id).encode()
    body, offsets = encode_records(records)
    return header + body, header + encode_entries([128 + offset for offset in offsets])


def stored(path: Path, partition: int, first: int) -> tuple[bytes, bytes]:
    directory = path / "t" / str(partition)
    return (directory / segment_name(first)).read_bytes(), (directory / index_name(first)).read_bytes()


def test_rows_that_follow_one_another_are_one_segment(tmp_path: Path) -> None:
    other = make_records(3, partition=7)
    found = written(tmp_path, rows(0, RECORDS[:3]), rows(7, other[:1]), rows(0, RECORDS[3:5]), rows(7, other[1:]))
    assert found == (
        StagedSegment(0, 0, 4, 128 + 300, "t"),
        StagedSegment(7, 0, 2, 128 + sum(40 + len(one.data) for one in other), "t"),
    )
    assert [one.records for one in found] == [5, 3]
    assert stored(tmp_path, 0, 0) == files(RECORDS[:5])
    assert stored(tmp_path, 7, 0) == files(other, 7)


@pytest.mark.parametrize("flush", [1, 60, 61, 121, 1 << 20])
def test_an_id_that_is_left_out_begins_another_segment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flush: int
) -> None:
    monkeypatch.setattr(run_writing, "_FLUSH", flush)
    found = written(tmp_path, rows(0, RECORDS[:3]), rows(0, RECORDS[4:6]), rows(0, RECORDS[6:]))
    assert found == (StagedSegment(0, 0, 2, 128 + 180, "t"), StagedSegment(0, 4, 7, 128 + 240, "t"))
    assert stored(tmp_path, 0, 0) == files(RECORDS[:3])
    assert stored(tmp_path, 0, 4) == files(RECORDS[4:])


@pytest.mark.parametrize(
    ("threshold", "firsts"),
    [(128 + 119, [0, 2, 4, 6]), (128 + 120, [0, 3, 6]), (128 + 121, [0, 3, 6]), (0, [*range(8)])],
)
def test_a_full_segment_is_followed_by_another(tmp_path: Path, threshold: int, firsts: list[int]) -> None:
    assert [one.first for one in written(tmp_path, rows(0, RECORDS), threshold=threshold)] == firsts


def test_what_waits_is_counted_over_all_partitions_and_let_go_of_with_a_segment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = RunWriter(tmp_path / "t", plan())
    held = []
    for partition, records in ((0, RECORDS[:2]), (1, RECORDS[:1]), (0, RECORDS[3:4]), (1, RECORDS[2:3])):
        runs.add(rows(partition, records))
        held.append(runs._held)
    assert held == [120, 180, 120, 120]
    monkeypatch.setattr(run_writing, "_FLUSH", 120)
    runs.add(rows(0, RECORDS[4:5]))
    assert runs._held == 60
    monkeypatch.setattr(run_writing, "_HELD", 120)
    runs.add(rows(2, RECORDS[:1]))
    assert runs._held == 0
    assert [(one.partition, one.first, one.last) for one in runs.finish()] == [
        (0, 0, 1), (1, 0, 0), (0, 3, 4), (1, 2, 2), (2, 0, 0),
    ]  # fmt: skip


@pytest.mark.parametrize(("second", "refused"), [(1, True), (2, True), (3, False), (4, False)])
def test_ids_rise_within_a_task(tmp_path: Path, second: int, refused: bool) -> None:
    runs = RunWriter(tmp_path / "t", plan())
    runs.add(rows(0, RECORDS[:3]))
    if not refused:
        runs.add(rows(0, RECORDS[second : second + 1]))
        return
    said = f"partition 0: transaction {second} comes behind 2: not in order, or there twice"
    with pytest.raises(InvalidRequestError, match=f"^{re.escape(said)}; rows of a partition must come in the order"):
        runs.add(rows(0, RECORDS[second : second + 1]))


# ---- rows ----------------------------------------------------------------------------------------------------------------


def changed(**columns: list[Any]) -> pa.RecordBatch:
    return rows(0, RECORDS[:3], **columns)


@pytest.mark.parametrize(
    ("columns", "error", "said"),
    [
        ({"partition": [0, None, 0]}, InvalidRequestError, "transaction_id 1: column partition is null"),
        ({"transaction_id": [0, 1, None]}, InvalidRequestError, "column transaction_id is null"),
        ({"header": [None, 1, None]}, InvalidRequestError, "partition 0, transaction_id 0: column header is null"),
        ({"data": [b"", b"", None]}, InvalidRequestError, "partition 0, transaction_id 2: column data is null"),
        (
            {"data": [b"", None, None], "finding": ["torn-tail", "segment-gap", None]},
            InvalidRequestError,
            "partition 0, transaction_id 1: the row tells of damage (segment-gap), it is no record",
        ),
        ({"header": [0, 0, 2**31 - 1], "data": [b""] * 3, "data_checksum": [None] * 3}, None, ""),
        (
            {"data_checksum": [None, "00000001", None]},
            ChecksumMismatchError,
            f"partition 0, transaction 1: the row's data_checksum is 00000001, its data has {RECORDS[1].data_checksum:08x}",
        ),
        ({"data_checksum": [None, None, "x"]}, InvalidRequestError, "transaction 2: data_checksum 'x' is no eight hex"),
        ({"partition": [0, 0, -1]}, InvalidRequestError, "partition -1: there are partitions 0 to 2147483647"),
    ],
)
def test_a_row_that_is_no_record_is_named(
    tmp_path: Path, columns: dict[str, list[Any]], error: type[Exception] | None, said: str
) -> None:
    runs = RunWriter(tmp_path / "t", plan())
    if error is None:
        runs.add(changed(**columns))
        return
    with pytest.raises(error, match=re.escape(said)):
        runs.add(changed(**columns))


def table(**columns: Any) -> pa.RecordBatch:
    """Rows with just these columns."""
    usual = {"partition": [4, 4], "transaction_id": [0, 1], "data": [b"a", b"bc"]}
    return pa.RecordBatch.from_pydict(usual | columns)


def _records(path: Path) -> list[Record]:
    raw, found, place = stored(path, 4, 0)[0], [], 128
    while place < len(raw):
        size = 40 + int.from_bytes(raw[place + 28 : place + 32], "big")
        found.append(Record.decode(raw[place : place + size]))
        place += size
    return found


def test_what_a_row_does_not_say_is_made(tmp_path: Path) -> None:
    written(tmp_path, table())
    assert [(one.header, one.data) for one in _records(tmp_path)] == [(0, b"a"), (0, b"bc")]
    ids = [one.request_id for one in _records(tmp_path)]
    assert [(one.client, one.generation, one.partition, one.sequence) for one in ids] == [(0, 0, 4, 0), (0, 0, 4, 1)]
    assert Record.make(1, ids[1], 0, b"bc") == _records(tmp_path)[1]


def test_columns_are_found_whatever_their_case(tmp_path: Path) -> None:
    batch = table(Header=[5, -(2**31)])
    written(tmp_path, batch.rename_columns(["PARTITION", "Transaction_Id", "DATA", "Header"]))
    assert [one.header for one in _records(tmp_path)] == [5, -(2**31)]


def _ids(*parts: tuple[int | None, ...]) -> list[dict[str, int | None]]:
    return [dict(zip(("client", "generation", "partition", "sequence"), one, strict=True)) for one in parts]


def test_request_ids_are_those_of_the_rows(tmp_path: Path) -> None:
    written(tmp_path, table(request_id=_ids((1, 2, 3, 4), (-(2**31), 2**31 - 1, 0, -1))))
    found = [one.request_id for one in _records(tmp_path)]
    assert [(one.client, one.generation, one.partition, one.sequence) for one in found] == [
        (1, 2, 3, 4), (-(2**31), 2**31 - 1, 0, -1),
    ]  # fmt: skip


@pytest.mark.parametrize("place", range(4))
def test_a_request_id_of_which_a_field_is_null_or_too_large_is_refused(tmp_path: Path, place: int) -> None:
    for value, said in ((None, "a request_id has a field that is null"), (2**31, "must be signed 32-bit integers")):
        parts: list[int | None] = [1, 2, 3, 4]
        parts[place] = value
        with pytest.raises(InvalidRequestError, match=said):
            written(tmp_path / f"{value}", table(request_id=_ids((1, 2, 3, 4), tuple(parts))))


@pytest.mark.parametrize("header", [2**31, -(2**31) - 1])
def test_a_header_beyond_32_bits_is_refused(tmp_path: Path, header: int) -> None:
    with pytest.raises(InvalidRequestError, match=f"transaction 1: .* and header {header} must be signed 32-bit"):
        written(tmp_path, table(header=[0, header]))


@pytest.mark.parametrize(
    ("said", "shown"),
    [("0000000A", None), (0xFFFFFFFF, "ffffffff"), (-1, "ffffffff"), (2**32 + 3, "00000003"), (0, "00000000")],
)
def test_a_checksum_is_text_or_a_number_of_which_32_bits_count(tmp_path: Path, said: Any, shown: str | None) -> None:
    data = RECORDS[0].data
    checksum = RECORDS[0].data_checksum
    with pytest.raises(ChecksumMismatchError, match=f"is {shown or said}, its data has {checksum:08x}"):
        written(tmp_path / "a", table(data=[data, data], data_checksum=[said, said]))
    for number, right in enumerate((checksum, checksum - 2**32, f"{checksum:08x}", f"{checksum:08X}")):
        path = tmp_path / f"right-{number}"
        written(path, table(data=[data, data], data_checksum=[right, right]))
        assert [one.data_checksum for one in _records(path)] == [checksum] * 2


def test_how_much_data_a_record_may_have() -> None:
    assert run_writing.MAX_DATA == 268_435_456


# ---- read back -----------------------------------------------------------------------------------------------------------


def test_what_was_written_is_read_back(tmp_path: Path) -> None:
    (whole,) = written(tmp_path, rows(0, RECORDS))
    path = tmp_path / "t" / "0" / segment_name(0)
    run_writing._check(path, whole)
    raw = path.read_bytes()
    for changed_as in (replace(whole, last=6), replace(whole, last=8), replace(whole, size=whole.size + 1)):
        with pytest.raises(DiskReadError, match=f"8 records in 608 bytes, and {changed_as.records} were written"):
            run_writing._check(path, changed_as)
    path.write_bytes(raw[:-60])
    with pytest.raises(DiskReadError, match="7 records in 548 bytes, and 8 were written"):
        run_writing._check(path, whole)
    for place in (128 + 60 * 3 + 40, len(raw) - 1):
        path.write_bytes(raw[:place] + bytes([raw[place] ^ 1]) + raw[place + 1 :])
        with pytest.raises(DamageError, match="does not read back as it was"):
            run_writing._check(path, whole)
    wrong = replace(RECORDS[7], data_checksum=1).encode()[:-4]
    from waltzctl.formats.checksums import crc32

    path.write_bytes(raw[:-60] + wrong + crc32(wrong).to_bytes(4, "big"))
    with pytest.raises(DamageError, match="does not read back as it was"):
        run_writing._check(path, whole)


# ---- joined --------------------------------------------------------------------------------------------------------------


def _segments(*spans: tuple[int, int], partition: int = 0) -> list[StagedSegment]:
    return [StagedSegment(partition, first, last, 1000, "t") for first, last in spans]


@pytest.mark.parametrize(
    ("spans", "said"),
    [
        ([(0, 0)], ""),
        ([(3, 5), (0, 2)], ""),
        ([(1, 1)], "partition 0: transaction 0 is missing"),
        ([(2, 2)], "partition 0: transactions 0 to 1 are missing"),
        ([(0, 1), (3, 3)], "partition 0: transaction 2 is missing"),
        ([(0, 1), (4, 4)], "partition 0: transactions 2 to 3 are missing"),
        ([(0, 1), (1, 3)], "partition 0: transaction 1 is there twice"),
        ([(0, 3), (1, 2)], "partition 0: transactions 1 to 2 are there twice"),
        ([(0, 3), (1, 2), (4, 4)], "partition 0: transactions 1 to 2 are there twice"),
        ([(0, 3), (2, 9)], "partition 0: transactions 2 to 3 are there twice"),
        ([(0, 3), (0, 1)], "partition 0: transactions 0 to 1 are there twice"),
    ],
)
def test_segments_of_a_partition_leave_out_nothing_and_give_nothing_twice(
    spans: list[tuple[int, int]], said: str
) -> None:
    if not said:
        assert join(_segments(*spans)) == {0: tuple(sorted(_segments(*spans), key=lambda one: one.first))}
        return
    with pytest.raises(InvalidRequestError, match=f"^the rows make no whole partitions: {said}; every transaction"):
        join(_segments(*spans))


@pytest.mark.parametrize("count", [9, 10, 11, 12])
def test_a_message_names_ten_places_and_how_many_more(count: int) -> None:
    segments = [one for number in range(count) for one in _segments((1, 1), partition=count - number)]
    with pytest.raises(InvalidRequestError) as refused:
        join(segments)
    said = str(refused.value).partition("; every")[0]
    assert said.count("missing") == min(count, 10)
    assert said.startswith("the rows make no whole partitions: partition 1: transaction 0 is missing; partition 2: ")
    assert said.endswith(f"; and {count - 10} more places") == (count > 10)


def test_partitions_are_in_order() -> None:
    found = join([*_segments((0, 1), partition=5), *_segments((0, 0), partition=2)])
    assert list(found) == [2, 5]


# ---- the whole directory -------------------------------------------------------------------------------------------------


def test_as_many_partitions_as_a_cluster_can_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "MAX_PARTITIONS", 2)
    write(tmp_path / "new", [[rows(1, make_records(2, partition=1))]])
    assert is_clean(tmp_path / "new")
    with pytest.raises(
        InvalidRequestError, match="other: partition 2 is beyond what a cluster can have; numPartitions"
    ):
        write(tmp_path / "other", [[rows(2, make_records(2, partition=2))]])
    assert writer.write_options({"path": "/d", "numPartitions": "1"}).num_partitions == 1


def test_a_target_that_is_a_link_or_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "empty")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    (tmp_path / "file").touch()
    for name in ("link", "dangling", "file"):
        with pytest.raises(Exception, match=f"{name}: exists and is not a directory"):
            begin(tmp_path / name)


def test_what_was_built_is_looked_at_before_it_gets_its_name(tmp_path: Path) -> None:
    made = begin(tmp_path / "new")
    told = made.write(iter([rows(0, RECORDS)]))
    (found,) = tmp_path.glob("*/tasks/*/0/*.idx")
    found.write_bytes(found.read_bytes()[:-8] + bytes(8))
    with pytest.raises(DamageError, match="what was built is not clean"):
        made.commit([told])
    assert list(tmp_path.iterdir()) == []
