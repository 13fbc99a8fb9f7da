"""Copies of replicas that are compared as bytes: the same answers as by their rows, and no rows where none are needed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")

from pyspark.sql.pandas.types import from_arrow_schema

from tests.builders import build_directory, make_records
from tests.spark.streaming import damage
from waltzctl.engine.pipeline.replica_copies import ReplicaCopies, same_bytes
from waltzctl.engine.pipeline.schemas import COPY
from waltzctl.engine.spark.data_loss import Losses
from waltzctl.engine.spark.offsets import BEGINNING
from waltzctl.engine.spark.stream_directory import DirectoryHistory
from waltzctl.engine.spark.stream_reader import INTACT
from waltzctl.engine.spark.stream_rows import RowMaker
from waltzctl.formats.segment import Record

COUNT = 60


def copies(path: Path, records: list[Record], cut: int, broken: int | None = None) -> ReplicaCopies:
    """Of a directory with segments of `cut` records; the record `broken` is damaged."""
    build_directory(path, {0: [records[at : at + cut] for at in range(0, len(records), cut)]})
    if broken is not None:
        damage(path, broken - broken % cut, broken)
    history = DirectoryHistory(path, RowMaker(from_arrow_schema(COPY)))
    history.refresh()
    end = history.latest(None, {}, INTACT)[0]
    pieces = [one for part in history.parts(0, BEGINNING, end) for one in history.scan(part, Losses())]
    history.close()
    return ReplicaCopies(pieces)


def made(one: ReplicaCopies) -> bool:
    """Whether rows were made."""
    return "table" in vars(one)


@pytest.mark.parametrize("cut", [60, 7, 1])
def test_equal_copies_are_equal_however_their_segments_are_cut_and_no_row_is_made(tmp_path: Path, cut: int) -> None:
    records = make_records(COUNT)
    one, other = copies(tmp_path / "1", records, 25), copies(tmp_path / "2", records, cut)
    assert other.same_as(one).tolist() == [True] * COUNT
    assert not made(one)
    assert not made(other)
    assert one.table.equals(other.table)
    assert one.ids.tolist() == other.table["transaction_id"].to_pylist() == [*range(COUNT)]
    assert one.damaged == other.damaged == []


def changed(record: Record, what: str) -> Record:
    data, request, header = record.data, record.request_id, record.header
    match what:
        case "data":
            data = bytes([data[0] ^ 1]) + data[1:]
        case "length":
            data += b"!"
        case "header":
            header ^= 1
        case "request_id":
            request = replace(request, sequence=request.sequence ^ 1)
    return Record.make(record.transaction_id, request, header, data)


@pytest.mark.parametrize("what", ["data", "length", "header", "request_id"])
@pytest.mark.parametrize("at", [0, 31, COUNT - 1])
def test_a_copy_that_differs_in_one_bit_is_found(tmp_path: Path, what: str, at: int) -> None:
    records = make_records(COUNT, size=33)
    others = [*records[:at], changed(records[at], what), *records[at + 1 :]]
    one, other = copies(tmp_path / "1", records, 25), copies(tmp_path / "2", others, 25)
    assert np.flatnonzero(~other.same_as(one)).tolist() == [at]
    assert np.flatnonzero(~one.same_as(other)).tolist() == [at]


def test_those_that_not_both_have_are_left_out_and_a_damaged_one_is_told(tmp_path: Path) -> None:
    records = make_records(COUNT)
    whole, behind = copies(tmp_path / "1", records, 25), copies(tmp_path / "2", records[:40], 25)
    damaged = copies(tmp_path / "3", records, 25, broken=30)
    assert behind.same_as(whole).tolist() == whole.same_as(behind).tolist() == [True] * 40
    assert damaged.damaged == [(30, 31)]
    assert damaged.ids.tolist() == [number for number in range(COUNT) if number != 30]
    assert damaged.same_as(whole).tolist() == [True] * (COUNT - 1)
    assert damaged.same_as(behind).tolist() == [True] * 39


def test_of_a_replica_that_has_nothing_nothing_is_compared(tmp_path: Path) -> None:
    nothing, some = ReplicaCopies([]), copies(tmp_path / "1", make_records(3), 3)
    assert (
        nothing.same_as(some).tolist()
        == some.same_as(nothing).tolist()
        == nothing.same_as(ReplicaCopies([])).tolist()
        == []
    )
    assert (nothing.ids.tolist(), nothing.table.num_rows, nothing.damaged) == ([], 0, [])


def cut(whole: bytes, places: list[int]) -> list[Any]:
    ends = sorted({len(whole), *(place for place in places if 0 < place < len(whole))})
    return [np.frombuffer(whole[a:b], np.uint8) for a, b in zip([0, *ends], ends, strict=False)]


@given(st.binary(min_size=1, max_size=40), st.lists(st.integers(1, 40)), st.lists(st.integers(1, 40)), st.data())
def test_bytes_are_compared_wherever_they_are_cut(whole: bytes, one: list[int], other: list[int], data: Any) -> None:
    assert same_bytes(cut(whole, one), cut(whole, other))
    at, bit = data.draw(st.integers(0, len(whole) - 1)), data.draw(st.integers(0, 7))
    flipped = whole[:at] + bytes([whole[at] ^ (1 << bit)]) + whole[at + 1 :]
    assert not same_bytes(cut(whole, one), cut(flipped, other))
    assert not same_bytes(cut(whole, one), cut(whole + b"\0", other))
    assert not same_bytes(cut(whole + b"\0", one), cut(whole, other))
    assert not same_bytes([], cut(whole, other))
    assert not same_bytes(cut(whole, one), [])
