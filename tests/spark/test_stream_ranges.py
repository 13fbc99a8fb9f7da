"""One range of a stream, read from one segment: its records, what is told between them, and when it is not what was planned."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")

from tests.builders import build_directory, make_records
from tests.inspect.helpers import cut, flip
from waltzctl.engine.errors import StalePlanError
from waltzctl.engine.findings import Finding
from waltzctl.engine.log.view import view_partition
from waltzctl.engine.scan.columns import RecordBatch
from waltzctl.engine.spark.offsets import Anchor
from waltzctl.engine.spark.stream_places import PartitionPlaces, SegmentRange
from waltzctl.engine.spark.stream_ranges import read_range
from waltzctl.formats.segment import Record, segment_name

SIZE = 60
"""Bytes of each record."""
RECORDS = make_records(40, first=100, size=20)


def _at(number: int) -> int:
    return 128 + SIZE * (number - 100)


def _anchor(number: int, **changed: Any) -> Anchor:
    one: Record = RECORDS[number - 100]
    made = Anchor(number, one.request_id, one.record_checksum, 100, _at(number), SIZE)
    return replace(made, **changed)


@pytest.fixture
def segment(tmp_path: Path) -> Path:
    """Records 100 to 139."""
    path = build_directory(tmp_path / "d", {0: [make_records(100, size=20), RECORDS]})
    return path / "0" / segment_name(100)


def _range(segment: Path, first: int = 100, last: int = 139, **more: Any) -> SegmentRange:
    made = SegmentRange("n", segment.parent, 0, 100, first, last, start=128, start_id=100, storage=segment.parents[1])
    return replace(made, **more)


def _read(part: SegmentRange) -> list[int | str]:
    """Ids, and for each finding its code and the id that it begins with."""
    found: list[int | str] = []
    for item in read_range(part, data=False):
        if isinstance(item, RecordBatch):
            found += map(int, item.transaction_id)
        else:
            assert isinstance(item, Finding)
            found.append(f"{item.code} {item.transaction_id} {item.missing}")
    return found


@pytest.mark.parametrize(
    ("part", "rows"),
    [
        ({}, [*range(100, 140)]),
        ({"first": 110, "last": 120}, [*range(110, 121)]),
        ({"first": 139}, [139]),
        ({"last": 100}, [100]),
        ({"first": 110, "last": 120, "start": _at(110), "start_id": 110, "stop": _at(121)}, [*range(110, 121)]),
        ({"first": 110, "last": 120, "stop": _at(121), "ends_at": _anchor(120)}, [*range(110, 121)]),
        ({"stop": _at(140), "ends_at": _anchor(139, offset=1)}, [*range(100, 140)]),
        # the join with the next segment
        ({"following": 140}, [*range(100, 140)]),
        ({"last": 140, "following": 141}, [*range(100, 140), "segment-gap 140 1"]),
        ({"first": 140, "last": 140, "following": 141}, ["segment-gap 140 1"]),
        ({"first": 141, "last": 141, "following": 142}, ["segment-gap 141 1"]),  # the query begins in the midst of it
        ({"last": 138, "following": 139}, [*range(100, 139), "segment-overlap 139 None"]),
        ({"first": 110, "last": 119, "following": 120}, [*range(110, 120), "segment-overlap 120 None"]),
    ],
)
def test_a_range_has_its_ids_and_what_the_next_segment_shows(
    segment: Path, part: dict[str, Any], rows: list[int | str]
) -> None:
    assert _read(_range(segment, **part)) == rows


@pytest.mark.parametrize(
    ("first", "told"), [(0, "segment-gap 0 100"), (1, "segment-gap 1 99"), (99, "segment-gap 99 1")]
)
def test_what_is_missing_in_front_of_all_segments_is_told_by_the_range_that_has_it(
    segment: Path, first: int, told: str
) -> None:
    assert _read(_range(segment, first=first, last=99, before=True)) == [told]


@pytest.mark.parametrize(
    ("part", "said"),
    [
        ({"stop": _at(140) + 1}, f"its file has {_at(140)} bytes, and had {_at(140) + 1}"),
        ({"last": 140}, "the records end with 139"),
        ({"stop": _at(130)}, "the records end with 129"),
        ({"ends_at": _anchor(139, record_checksum=1)}, "transaction 139 is another one, or is not there"),
        ({"last": 120, "ends_at": _anchor(121)}, "transaction 120 is another one, or is not there"),
        ({"first": 140, "last": 140, "ends_at": _anchor(139)}, "transaction 140 is another one, or is not there"),
    ],
)
def test_a_range_that_is_not_what_was_planned_ends_the_task(segment: Path, part: dict[str, Any], said: str) -> None:
    planned = _range(segment, **part)
    whole = (
        f"{segment}: transactions {planned.first} to {planned.last} were to be read, and {said}: it was truncated or"
    )
    with pytest.raises(StalePlanError, match=f"^{re.escape(whole)}"):
        _read(planned)


def test_a_file_that_is_gone_or_shorter_than_a_header(segment: Path) -> None:
    cut(segment, 100)
    with pytest.raises(StalePlanError, match="its file is shorter than a header"):
        _read(_range(segment, ends_at=_anchor(139)))
    (told,) = _read(_range(segment))
    assert str(told).startswith("segment-header")
    (with_index,) = read_range(_range(segment), data=False)
    segment.with_suffix(".idx").unlink()
    (without,) = read_range(_range(segment), data=False)
    assert isinstance(with_index, Finding)
    assert isinstance(without, Finding)
    assert (with_index.code, without.code) == ("segment-header-short", "segment-header-short")
    assert with_index.message != without.message
    segment.unlink()
    with pytest.raises(StalePlanError, match="its file is gone"):
        _read(_range(segment))


@pytest.mark.parametrize(
    ("first", "last", "rows"),
    [
        (100, 139, [*range(100, 110), "record-checksum 110 2", *range(112, 140)]),
        (110, 112, ["record-checksum 110 2", 112]),
        (109, 110, [109, "record-checksum 110 2"]),
        (111, 113, ["record-checksum 111 1", 112, 113]),  # a query begins in the midst of it
        (112, 113, [112, 113]),
        (100, 109, [*range(100, 110)]),
    ],
)
def test_damage_is_told_by_the_range_that_has_the_first_id_that_it_cost(
    segment: Path, first: int, last: int, rows: list[int | str]
) -> None:
    for number in (110, 111):
        flip(segment, _at(number) + 50)
    assert _read(_range(segment, first, last)) == rows


def test_damage_of_an_id_that_the_next_segment_owns_is_not_told(segment: Path) -> None:
    flip(segment, _at(138) + 50)
    assert _read(_range(segment, 130, 137, following=138)) == [*range(130, 138), "segment-overlap 138 None"]


def test_a_gap_is_told_whether_there_is_an_index_that_lists_it_or_none(segment: Path) -> None:
    part = _range(segment, last=140, following=141)
    (told,) = (one for one in read_range(part, data=False) if isinstance(one, Finding))
    with segment.with_suffix(".idx").open("ab") as file:
        file.write((_at(140)).to_bytes(8, "big"))
    (listed,) = (one for one in read_range(part, data=False) if isinstance(one, Finding))
    segment.with_suffix(".idx").unlink()
    assert _read(part) == [*range(100, 140), "segment-gap 140 1"]
    assert told.message != listed.message


def test_damage_up_to_the_end_says_why_the_records_end(segment: Path) -> None:
    flip(segment, _at(138) + 50)
    flip(segment, _at(139) + 50)
    first, *others = _read(_range(segment, 130, 139))
    assert (first, others[:7]) == (130, [131, 132, 133, 134, 135, 136, 137])
    assert others[7:] == ["torn-tail 138 1"]


def test_a_torn_tail_is_told_only_where_nobody_writes_any_more(segment: Path) -> None:
    cut(segment, _at(139) + 30)
    assert _read(_range(segment, last=138, following=None)) == [*range(100, 139)]
    assert _read(_range(segment, following=140)) == [*range(100, 139), "torn-tail 139 1"]
    assert _read(_range(segment, last=149, following=150)) == [*range(100, 139), "torn-tail 139 11"]
    assert _read(_range(segment, last=138, stop=_at(139), ends_at=_anchor(138))) == [*range(100, 139)]


def test_a_wrong_header_is_told_by_the_range_that_begins_with_the_segment(segment: Path) -> None:
    flip(segment, 30)
    first, *others = _read(_range(segment, last=110))
    assert str(first).startswith("segment-")
    assert others == [*range(100, 111)]
    assert _read(_range(segment, first=101, last=110)) == [*range(101, 111)]


def test_ranges_begin_behind_what_was_read_and_end_with_their_record(segment: Path) -> None:
    """By the place of the last record, or by the index."""
    template = _range(segment, 0, -1)
    places = PartitionPlaces(view_partition(segment.parent, 0))
    expected = replace(
        template, first=105, last=109, start=_at(105), start_id=105, stop=_at(110), ends_at=_anchor(109),
        bytes=300, others=True,
    )  # fmt: skip
    assert list(places.ranges(_anchor(104), _anchor(109), template)) == [expected]
    (by_index,) = places.ranges(Anchor(104), _anchor(109), template)
    assert by_index == expected
    whole, part = places.ranges(Anchor(-1), _anchor(100), template)
    assert (whole.segment, whole.first, whole.last, whole.start, whole.start_id, whole.stop, whole.following) == (
        0, 0, 99, 128, 0, None, 100,
    )  # fmt: skip
    assert (whole.ends_at, whole.before, part.segment, part.first, part.last) == (None, False, 100, 100, 100)
