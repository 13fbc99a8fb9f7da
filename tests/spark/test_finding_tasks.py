"""How a partition is shared by the tasks that look for findings, and what the last of them is told of the others."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")

from tests.builders import build_directory, make_records, write_segment
from tests.inspect.helpers import age, cut, flip, idx, seg
from tests.spark.reading import in_order, read, verified
from waltzctl.engine.columns.finding_columns import FINDING
from waltzctl.engine.spark.directory_views import VIEW_PLANS
from waltzctl.engine.spark.finding_tasks import ChunkTask, PartitionTask
from waltzctl.engine.spark.selection import Selection
from waltzctl.engine.spark.splits import FLAT, Notice, survey


@pytest.fixture
def storage(tmp_path: Path) -> Path:
    """Ten segments of ten records with 60 bytes each, of which each begins with a multiple of ten."""
    return age(build_directory(tmp_path / "s", {0: 100}, per_segment=10, size=20))


SEGMENT = 128 + 600 + FLAT
"""What a segment costs."""


def tasks(storage: Path, split_size: int) -> list[PartitionTask | ChunkTask]:
    planned = VIEW_PLANS["findings"](survey([storage], Selection()), Selection(), split_size)
    return [one for one in planned if not isinstance(one, Notice)]


@pytest.mark.parametrize(
    ("split_size", "sizes"),
    [
        (10 * SEGMENT, None),
        (10 * SEGMENT - 1, [10]),
        (5 * SEGMENT, [5, 5]),
        (4 * SEGMENT, [4, 4, 2]),
        (SEGMENT, [1] * 10),
        (100, [1] * 10),
    ],
)
def test_segments_side_by_side_are_one_task_up_to_its_size(
    storage: Path, split_size: int, sizes: list[int] | None
) -> None:
    found = tasks(storage, split_size)
    assert sum(one.cost for one in found) == 10 * SEGMENT
    if sizes is None:
        (whole,) = found
        assert isinstance(whole, PartitionTask)
        assert (whole.bytes, whole.segments, whole.directory) == (10 * (SEGMENT - FLAT), 10, storage / "0")
        return
    assert all(isinstance(one, ChunkTask) for one in found)
    rows = [[job.first for job in one.jobs] for one in found]  # type: ignore[union-attr]
    assert [first for row in rows for first in row] == list(range(0, 100, 10))
    assert [len(row) for row in rows] == sizes


def test_only_the_last_task_knows_the_partition_and_the_segments_of_the_others(storage: Path) -> None:
    *others, last = tasks(storage, 4 * SEGMENT)
    assert isinstance(last, ChunkTask)
    seen = []
    for one in others:
        assert isinstance(one, ChunkTask)
        assert one.behind is not None
        seen.append((one.first, one.behind[0].first, one.behind[1], one.whole, one.jobs_before, one.directory))
    assert seen == [(True, 40, 40, None, (), storage / "0"), (False, 80, 80, None, (), storage / "0")]
    assert (last.first, last.behind) == (False, None)
    assert last.whole is not None
    assert [job.first for job in last.jobs_before] == list(range(0, 80, 10))


def test_a_partition_of_one_segment_is_never_shared(tmp_path: Path) -> None:
    storage = age(build_directory(tmp_path / "s", {0: 10}, per_segment=10))
    assert [type(one) for one in tasks(storage, 100)] == [PartitionTask]


def findings(storage: Path, split_size: int) -> list[str]:
    return in_order(read(storage, view="findings", splitSize=split_size))


def expected(storage: Path) -> list[str]:
    return in_order({"node": str(storage), **FINDING.keys(one)} for one in verified(storage))


def _codes(storage: Path) -> set[str]:
    return {one.code.value for one in verified(storage)}


def test_what_is_missing_in_front_is_told_by_the_first_task_only(storage: Path) -> None:
    for path in (seg(storage, 0, 0), idx(storage, 0, 0)):
        path.unlink()
    age(storage)
    assert _codes(storage) == {"segment-gap"}
    for size in (100, 4 * SEGMENT, 20 * SEGMENT):
        assert findings(storage, size) == expected(storage)


@pytest.mark.parametrize("number", [10, 40, 50, 80, 90])
def test_an_index_alone_is_compared_with_whoever_holds_its_ids(storage: Path, number: int) -> None:
    """Of the tasks in front as well."""
    seg(storage, 0, number).unlink()
    for covers in (False, True):
        if covers:
            before = make_records(100, size=20)[number - 10 : number + 10]
            seg(storage, 0, number - 10).unlink()
            idx(storage, 0, number - 10).unlink()
            write_segment(storage / "0", before, first=number - 10)
        age(storage)
        for size in (100, 3 * SEGMENT, 4 * SEGMENT, 20 * SEGMENT):
            assert findings(storage, size) == expected(storage)


@pytest.mark.parametrize("mark", [89, 99, 105])
def test_the_end_is_that_of_the_segment_that_reaches_furthest(tmp_path: Path, mark: int) -> None:
    storage = build_directory(tmp_path / "s", {0: 100}, per_segment=10, size=20, local_low_water_mark=mark)
    cut(seg(storage, 0, 90), 128 + 60 * 3 + 7)
    flip(seg(storage, 0, 80), 128 + 60 * 9 + 50)
    idx(storage, 0, 90).unlink()
    age(storage)
    for size in (100, 3 * SEGMENT, 4 * SEGMENT, 20 * SEGMENT):
        assert findings(storage, size) == expected(storage)
