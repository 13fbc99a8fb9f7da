"""Copies that lack records: whoever reads records is told which are missing, with the ids and in the words of verify."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.builders import build_directory, make_records, write_segment
from tests.inspect.helpers import age
from tests.memory import in_memory
from tests.spark.reading import read
from tests.spark.streaming import Query, ids
from waltzctl.engine.errors import DamageError, StalePlanError
from waltzctl.engine.findings import Code, Finding, Severity
from waltzctl.engine.inspect.dump import DumpedRecord, dump_records
from waltzctl.engine.inspect.verify import verify
from waltzctl.engine.stats.stats import StatsOptions, stats
from waltzctl.engine.task_executor import LocalExecutor
from waltzctl.formats.control import Layout
from waltzctl.formats.segment import index_name, segment_name

SIZE, SEGMENTS = 10, 4
LAST = SIZE * SEGMENTS - 1


@dataclass(frozen=True)
class Copy:
    """A partition of 40 durable transactions in four segments, of which `lost` (segments) are gone.

    `index`: with their indexes; `directory`: with the whole directory.
    """

    lost: tuple[int, ...]
    index: bool = True
    directory: bool = False

    @property
    def ids(self) -> set[int]:
        return {number for first in self.lost for number in range(first, first + SIZE)}

    def make(self, path: Path, layout: Layout) -> Path:
        build_directory(path, {0: LAST + 1, 1: 3}, layout=layout, per_segment=SIZE, local_low_water_mark=LAST)
        shutil.rmtree(path / "1")
        build = path.with_name("other")
        build_directory(build, {0: [], 1: LAST + 1}, layout=layout, local_low_water_mark=LAST)
        shutil.copytree(build / "1", path / "1")  # a partition to which nothing happened
        for first in self.lost:
            (path / "0" / segment_name(first)).unlink()
            if self.index:
                (path / "0" / index_name(first)).unlink()
        if self.directory:
            (path / "0").rmdir()
        return path


EVERY = tuple(range(0, LAST, SIZE))
COPIES = {
    "first": Copy((0,)),
    "middle": Copy((10, 20)),
    "last": Copy((30,)),
    "first data": Copy((0,), index=False),
    "middle data": Copy((10, 20), index=False),
    "last data": Copy((30,), index=False),
    "no file": Copy(EVERY),
    "no directory": Copy(EVERY, directory=True),
}


@pytest.fixture(params=COPIES)
def copy(request: pytest.FixtureRequest) -> Copy:
    return COPIES[request.param]


@pytest.fixture(params=Layout)
def storage(request: pytest.FixtureRequest, copy: Copy, tmp_path: Path) -> Iterator[Path]:
    with in_memory(tmp_path) as path:
        yield age(copy.make(path / "storage", request.param))  # of what was just written, one waits for more


def damage(items: Iterable[object]) -> list[Finding]:
    found = [one for one in items if isinstance(one, Finding) and one.severity is Severity.DAMAGE]
    return sorted(found, key=lambda one: (one.transaction_id or 0, one.code, one.segment or 0))


def missing(findings: Iterable[tuple[int | None, int | None]]) -> list[int]:
    """Every id that is said to be missing, as often as it is."""
    return sorted(lost for first, many in findings if first is not None for lost in range(first, first + (many or 0)))


def test_dump_tells_what_verify_does(storage: Path, copy: Copy) -> None:
    known = damage(verify([storage]))
    assert known
    assert {one.partition for one in known} == {0}
    dumped = list(dump_records(storage))
    assert damage(dumped) == known
    assert damage(dump_records(storage, reverse=True)) == known
    read = {one.transaction_id for one in dumped if isinstance(one, DumpedRecord) and one.partition == 0}
    assert read == set(range(LAST + 1)) - copy.ids


def test_each_transaction_is_counted_once(storage: Path, copy: Copy) -> None:
    for found in (damage(dump_records(storage)), damage(verify([storage]))):
        assert missing((one.transaction_id, one.missing) for one in found) == sorted(copy.ids)


def test_a_dump_of_some_ids_tells_what_is_missing_of_these(storage: Path, copy: Copy) -> None:
    for first in range(5, LAST, 10):
        for reverse in (False, True):
            found = damage(dump_records(storage, first=first, last=first + 1, reverse=reverse))
            assert bool(found) == (first in copy.ids), first


def test_the_records_view_has_a_row_for_each_loss(storage: Path, copy: Copy) -> None:
    known = [(one.code.value, one.partition, one.segment, one.transaction_id) for one in damage(verify([storage]))]
    rows = [row for row in read(storage) if row["finding"]]
    found = [(row["finding"], row["partition"], row["segment"], row["transaction_id"]) for row in rows]
    assert sorted(found, key=str) == sorted(known, key=str)
    assert missing((row["transaction_id"], row["missing"]) for row in rows) == sorted(copy.ids)


def test_the_records_view_of_some_ids_has_the_rows_of_these(storage: Path, copy: Copy) -> None:
    for first in range(5, LAST, 10):
        rows = read(storage, minTransactionId=first, maxTransactionId=first + 1)
        assert any(row["finding"] for row in rows) == (first in copy.ids), first


def test_stats_counts_what_is_missing(storage: Path, copy: Copy) -> None:
    report = stats([storage], StatsOptions(), LocalExecutor(1))
    lost, whole = report.partitions
    assert (lost.missing, whole.missing) == (len(copy.ids), 0)
    ids = sorted(number for gap in report.gaps for number in range(gap.first, gap.last + 1))
    assert ids == sorted(copy.ids)
    assert all(gap.cause in set(Code) for gap in report.gaps)
    assert damage(report.findings) == damage(verify([storage]))


@pytest.mark.turns(10)
@pytest.mark.parametrize("limit", [None, 7])
def test_a_stream_tells_each_loss_once(storage: Path, copy: Copy, limit: int | None) -> None:
    query = Query(storage, **({} if limit is None else {"maxRecordsPerTrigger": str(limit)}))
    rows = query.run()
    lost = [row for row in rows if row["finding"]]
    assert missing((row["transaction_id"], row["missing"]) for row in lost) == sorted(copy.ids)
    known = {(one.code.value, one.partition, one.segment, one.transaction_id) for one in damage(verify([storage]))}
    assert {(row["finding"], row["partition"], row["segment"], row["transaction_id"]) for row in lost} <= known
    assert ids(rows) == sorted(set(range(LAST + 1)) - copy.ids)
    assert ids(rows, 1) == list(range(LAST + 1))
    query.restart()
    assert query.step() is None


def test_a_stream_goes_on_behind_a_loss_at_the_end(tmp_path: Path) -> None:
    storage = COPIES["last"].make(tmp_path / "storage", Layout.RELEASED)
    query = Query(storage)
    query.run()
    write_segment(storage / "0", make_records(5, first=LAST + 1))
    assert ids(query.step() or []) == [LAST + 1, LAST + 2, LAST + 3, LAST + 4, LAST + 5]
    assert query.step() is None


def test_a_stream_that_read_what_is_lost_now_stops(tmp_path: Path) -> None:
    storage = Copy(()).make(tmp_path / "storage", Layout.RELEASED)
    query = Query(storage)
    query.run()
    for name in (segment_name(30), index_name(30)):
        (storage / "0" / name).unlink()
    with pytest.raises(StalePlanError, match="transaction 39 was read, and the partition ends at 29 now"):
        query.step()


def test_up_to_the_mark_a_loss_is_told_as_far_as_that(tmp_path: Path) -> None:
    storage = COPIES["last data"].make(tmp_path / "storage", Layout.RELEASED)
    lost = [row for row in Query(storage, upTo="low-water-mark").run() if row["finding"]]
    assert missing((row["transaction_id"], row["missing"]) for row in lost) == list(range(30, LAST + 1))


def test_a_read_that_is_to_fail_for_a_loss_names_all_that_its_task_met(storage: Path, copy: Copy) -> None:
    lost = {number for number in copy.ids if number - 1 not in copy.ids}
    with pytest.raises(DamageError, match="failOnDataLoss: transactions are lost in") as caught:
        read(storage, failOnDataLoss="true", partitions="0")
    assert all(re.search(rf"\b{number}\b", str(caught.value)) for number in lost)
    assert ids(read(storage, failOnDataLoss="true", partitions="1"), 1) == list(range(LAST + 1))


def test_a_query_that_is_to_fail_for_a_loss_hands_on_what_is_in_front_of_it(storage: Path, copy: Copy) -> None:
    query = Query(storage, failOnDataLoss="true", maxRecordsPerTrigger="8", partitions="0")
    with pytest.raises(DamageError, match="failOnDataLoss: transactions are lost in"):
        query.run()
    assert ids(query.rows) == list(range(len(query.rows)))
    assert len(query.rows) <= min(copy.ids)
    assert ids(Query(storage, failOnDataLoss="true", partitions="1").run(), 1) == list(range(LAST + 1))


def renamed(path: Path, first: int, name: int, *, index: bool) -> Path:
    """A whole copy in which a segment of partition 0 has another name, and its index as well where `index` says so."""
    storage = Copy(()).make(path, Layout.RELEASED)
    for own in (segment_name, index_name) if index else (segment_name,):
        (storage / "0" / own(first)).rename(storage / "0" / own(name))
    return age(storage)


RENAMED = pytest.mark.parametrize(
    ("first", "name"),
    [(0, 5), (0, 99), (10, 15), (10, 9), (10, 99), (20, 29), (20, 11), (20, 2), (30, 35), (30, 29), (30, 3)],
)


@pytest.mark.turns(8)
@pytest.mark.parametrize("index", [True, False], ids=["with its index", "without"])
@RENAMED
def test_a_renamed_segment_stands_where_it_belongs_and_nothing_else_is_missing_for_it(
    tmp_path: Path, first: int, name: int, index: bool
) -> None:
    """Records come in the order of their ids, both ways, and who reads them tells of missing ones what verify tells."""
    with in_memory(tmp_path) as path:
        storage = renamed(path / "storage", first, name, index=index)
        known = {(one.code, one.transaction_id, one.missing) for one in verify([storage]) if isinstance(one, Finding)}
        joints = {one for one in known if one[0] in (Code.SEGMENT_GAP, Code.SEGMENT_OVERLAP)}
        lost = {one for one in known if one[2]}
        for reverse in (False, True):
            items = list(dump_records(storage, partitions={0}, reverse=reverse))
            ids = [one.transaction_id for one in items if isinstance(one, DumpedRecord)]
            assert ids == sorted(range(LAST + 1), reverse=reverse)
            told = {(one.code, one.transaction_id, one.missing) for one in items if isinstance(one, Finding)}
            assert {one for one in told if one[2]} == lost
            assert {one for one in told if one[0] in (Code.SEGMENT_GAP, Code.SEGMENT_OVERLAP)} == joints == set()
        rows = read(storage, partitions="0")
        assert {(row["finding"], row["transaction_id"], row["missing"]) for row in rows if row["missing"]} == lost
        assert [row["transaction_id"] for row in rows if row["data_length"] is not None] == list(range(LAST + 1))
        counted = stats([storage], StatsOptions(partitions={0}), LocalExecutor(1)).findings
        assert {(one.code, one.transaction_id, one.missing) for one in counted if one.missing} == lost


@pytest.mark.turns(10)
@pytest.mark.parametrize("index", [True, False], ids=["with its index", "without"])
@pytest.mark.parametrize(("first", "name"), [(0, 5), (10, 15), (10, 9), (20, 29), (20, 11), (30, 35), (30, 29)])
def test_no_record_of_a_renamed_segment_is_left_out_under_a_bound_on_ids(
    tmp_path: Path, request: pytest.FixtureRequest, first: int, name: int, index: bool
) -> None:
    """A name is believed only where the index in front of it leads up to it.  Asked for: ids beside every border and name."""
    borders = {
        near for border in (*EVERY, first, name) for near in (border - 2, border - 1, border) if 0 <= near < LAST
    }
    lows = range(LAST) if request.config.getoption("--long") else sorted(borders)
    with in_memory(tmp_path) as path:
        storage = renamed(path / "storage", first, name, index=index)
        whole = {row["transaction_id"] for row in read(storage, partitions="0") if row["data_length"] is not None}
        assert whole == set(range(LAST + 1))
        for low in lows:
            wanted = [low, low + 1]
            for reverse in (False, True):
                dumped = dump_records(storage, partitions={0}, first=low, last=low + 1, reverse=reverse)
                assert sorted(one.transaction_id for one in dumped if isinstance(one, DumpedRecord)) == wanted
            rows = read(storage, partitions="0", minTransactionId=low, maxTransactionId=low + 1)
            assert sorted(row["transaction_id"] for row in rows if row["data_length"] is not None) == wanted
