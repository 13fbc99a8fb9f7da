"""The views beside the records: what each plans for a storage, and the rows of what was planned."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")

from tests.builders import build_directory, make_records
from tests.inspect.helpers import age, cut, idx, patch, seg
from waltzctl.engine.errors import NotWaltzError
from waltzctl.engine.findings import Code, Finding, Severity
from waltzctl.engine.inspect import unread_losses
from waltzctl.engine.inspect.read_limits import ReadLimits
from waltzctl.engine.inspect.segment_job import SegmentJob
from waltzctl.engine.log import places
from waltzctl.engine.log.view import names_fingerprint, view_partition
from waltzctl.engine.spark import directory_views, record_plan
from waltzctl.engine.spark.directory_views import VIEW_PLANS, ControlTask, IndexTask, SegmentTask, read_view
from waltzctl.engine.spark.finding_tasks import PartitionTask
from waltzctl.engine.spark.record_plan import MissingTask, record_parts
from waltzctl.engine.spark.selection import IdBounds, Selection
from waltzctl.engine.spark.splits import FLAT, Notice, SegmentPart, expand, survey
from waltzctl.engine.spark.view_schemas import arrow_schema, pick
from waltzctl.engine.storage.loss_ledger import ledger_path
from waltzctl.formats.accepted_losses import AcceptedLoss, encode_ledger

ALL = Selection()
RECORD = 60
"""Bytes of one with 20 bytes of data."""


@pytest.fixture
def storage(tmp_path: Path) -> Path:
    """Two partitions, of which the first has segments of ten, ten and five records with 60 bytes each."""
    return age(build_directory(tmp_path / "s", {0: 25, 1: 3}, per_segment=10, size=20, num_partitions=3))


def planned(view: str, *paths: Path, selection: Selection = ALL, split_size: int = 1 << 30) -> list[Any]:
    return list(VIEW_PLANS[view](survey(paths, selection), selection, split_size))


def rows(view: str, *items: Any, columns: Sequence[str] | None = None) -> list[dict[str, Any]]:
    chosen = pick(view, columns)
    return [row for batch in read_view(items, chosen, arrow_schema(chosen)) for row in batch.to_pylist()]


# ---- control files -------------------------------------------------------------------------------------------------------


def test_a_control_file_is_one_task_and_a_row_for_each_partition_that_is_wanted(storage: Path) -> None:
    control = storage / "waltz-storage.ctl"
    (task,) = planned("control", storage)
    assert task == ControlTask(str(storage), control, ALL)
    assert (task.cost, task.directory) == (FLAT, control)
    found = rows("control", task)
    assert [(row["node"], row["partition"], row["num_partitions"]) for row in found] == [
        (str(storage), number, 3) for number in range(3)
    ]
    some = ControlTask("n", control, Selection(partitions=IdBounds(low=1)))
    assert [row["partition"] for row in rows("control", some)] == [1, 2]
    none = ControlTask("n", control, Selection(partitions=IdBounds(low=9)))
    assert rows("control", none) == []


def test_a_control_file_without_partitions_is_one_row_and_one_that_is_gone_is_none(storage: Path) -> None:
    (task,) = planned("control", storage)
    cut(storage / "waltz-storage.ctl", 50)
    (row,) = rows("control", task)
    assert (row["node"], row["size"], row["partition"], row["structs"]) == (str(storage), 50, None, None)
    (storage / "waltz-storage.ctl").unlink()
    assert rows("control", task) == []


# ---- segments ------------------------------------------------------------------------------------------------------------


def test_each_segment_is_a_task_that_costs_what_its_index_does(storage: Path) -> None:
    tasks = planned("segments", storage)
    assert [(one.node, one.job.partition, one.job.first, one.entries) for one in tasks] == [
        (str(storage), 0, 0, 10), (str(storage), 0, 10, 10), (str(storage), 0, 20, 5), (str(storage), 1, 0, 3),
    ]  # fmt: skip
    assert [one.cost - FLAT for one in tasks] == [80, 80, 40, 24]
    assert tasks[1].directory == storage / "0"
    found = rows("segments", *tasks)
    assert [(row["partition"], row["segment"]) for row in found] == [(0, 0), (0, 10), (0, 20), (1, 0)]
    seg(storage, 0, 10).unlink()
    idx(storage, 0, 10).unlink()
    assert [row["segment"] for row in rows("segments", *tasks)] == [0, 20, 0]
    idx(storage, 0, 0).unlink()
    assert [one.entries for one in planned("segments", storage)] == [0, 5, 3]


# ---- index entries -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("split_size", "parts"),
    [
        (1000, [(0, 10), (0, 10), (0, 5), (0, 3)]),
        (214, [(0, 10), (0, 10), (0, 5), (0, 3)]),
        (213, [(0, 5), (5, 10), (0, 5), (5, 10), (0, 5), (0, 3)]),
        (106, [(0, 3), (3, 6), (6, 10), (0, 3), (3, 6), (6, 10), (0, 2), (2, 5), (0, 3)]),
    ],
)
def test_an_index_is_cut_into_equal_shares_of_its_entries(
    storage: Path, split_size: int, parts: list[tuple[int, int]]
) -> None:
    tasks = planned("index", storage, split_size=split_size)
    assert [(one.first, one.last) for one in tasks] == parts
    assert {(one.node, one.low, one.high) for one in tasks} == {(str(storage), None, None)}
    assert [one.cost - FLAT for one in tasks] == [32 * (last - first) for first, last in parts]
    assert tasks[0].directory == storage / "0"
    found = rows("index", *tasks)
    assert [row["transaction_id"] for row in found] == [*range(25), *range(3)]
    assert [row["offset"] for row in found[:25]] == [128 + 60 * (number % 10) for number in range(25)]
    assert [(row["partition"], row["segment"]) for row in found[9:11]] == [(0, 0), (0, 10)]


def test_a_segment_without_entries_has_no_task(storage: Path) -> None:
    idx(storage, 0, 10).unlink()
    cut(idx(storage, 0, 20), 128)
    age(storage)
    assert [(one.job.partition, one.job.first) for one in planned("index", storage)] == [(0, 0), (1, 0)]


@pytest.mark.parametrize(
    ("low", "high", "first", "last", "found"),
    [
        (None, None, 0, 10, range(10, 20)),
        (None, None, 3, 5, range(13, 15)),
        (13, None, 0, 10, range(13, 20)),
        (13, 13, 0, 10, range(13, 14)),
        (None, 13, 0, 10, range(10, 14)),
        (13, 16, 3, 5, range(13, 15)),
        (14, 16, 3, 5, range(14, 15)),
        (20, None, 0, 10, range(0)),
        (None, 9, 0, 10, range(0)),
        (None, None, 8, 12, range(18, 20)),
        (None, None, 10, 12, range(0)),
    ],
)
@pytest.mark.parametrize("chunk", [1, 4, 1 << 16])
def test_entries_are_those_of_the_share_within_the_bounds(
    storage: Path, monkeypatch: pytest.MonkeyPatch, low: int | None, high: int | None, first: int, last: int, found: range,
    chunk: int,
) -> None:  # fmt: skip
    monkeypatch.setattr(directory_views, "_CHUNK", chunk)
    task = IndexTask("n", SegmentJob(storage / "0", 10, 0), first, last, low, high)
    columns = pick("index", None)
    batches = list(read_view([task], columns, arrow_schema(columns)))
    assert [number for batch in batches for number in batch.column("transaction_id").to_pylist()] == list(found)
    assert all(0 < len(batch) <= chunk for batch in batches)


def test_the_bounds_of_a_selection_are_those_of_each_task(storage: Path) -> None:
    tasks = planned("index", storage, selection=Selection().with_ids(5, 12))
    assert {(one.low, one.high) for one in tasks} == {(5, 12)}
    assert [row["transaction_id"] for row in rows("index", *tasks, columns=["transaction_id"]) if row] == [
        *range(5, 13)
    ]


def test_an_index_that_is_gone_has_no_rows(storage: Path) -> None:
    tasks = planned("index", storage)
    idx(storage, 0, 0).unlink()
    seg(storage, 0, 10).unlink()
    idx(storage, 0, 10).unlink()
    assert [row["transaction_id"] for row in rows("index", *tasks)] == [*range(20, 25), *range(3)]


# ---- findings ------------------------------------------------------------------------------------------------------------


def finding(number: int) -> Finding:
    return Finding(Code.SEGMENT_GAP, Severity.DAMAGE, Path("/d/\udcff"), "x", 0, 10, number, missing=4)


def test_what_was_known_is_a_row_each_with_a_text_that_spark_can_hold() -> None:
    found = rows("findings", Notice("n", (finding(1), finding(2))), Notice("m", (finding(3),)), Notice("m", ()))
    assert [(row["node"], row["transaction_id"], row["path"]) for row in found] == [
        ("n", 1, "/d/\ufffd"), ("n", 2, "/d/\ufffd"), ("m", 3, "/d/\ufffd"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("chunk", "sizes"), [(1, [2, 1, 1]), (2, [2, 2]), (3, [3, 1]), (4, [4]), (5, [4]), (1 << 16, [4])]
)
def test_rows_of_several_tasks_are_a_batch_up_to_its_size(
    monkeypatch: pytest.MonkeyPatch, chunk: int, sizes: list[int]
) -> None:
    monkeypatch.setattr(directory_views, "_CHUNK", chunk)
    items = [Notice("n", (finding(1), finding(2))), Notice("n", (finding(3),)), Notice("n", (finding(4),))]
    columns = pick("findings", ["transaction_id"])
    batches = [batch.column(0).to_pylist() for batch in read_view(items, columns, arrow_schema(columns))]
    assert [len(one) for one in batches] == sizes
    assert [number for one in batches for number in one] == [1, 2, 3, 4]


def test_segments_that_were_named_one_by_one_are_one_task_of_findings(storage: Path) -> None:
    """How they join, and what is missing between them, is not asked for."""
    named = (seg(storage, 0, 0), seg(storage, 0, 20))
    (task,) = planned("findings", *named, split_size=1)
    assert isinstance(task, PartitionTask)
    assert task.segments == 2
    assert list(task.run(ReadLimits())) == []
    assert len(planned("findings", storage / "0", split_size=1)) == 3


def test_what_concerns_a_storage_is_known_when_it_is_planned(storage: Path) -> None:
    assert [type(one).__name__ for one in planned("findings", storage)] == ["PartitionTask", "PartitionTask"]
    (storage / "notes.txt").write_text("what is this")
    first, *others = planned("findings", storage)
    assert (first.node, [one.code.value for one in first.findings]) == (str(storage), ["unknown-file"])
    assert [type(one).__name__ for one in others] == ["PartitionTask", "PartitionTask"]
    assert [one.segments for one in others] == [3, 1]
    assert [row["code"] for row in rows("findings", first, *others)] == ["unknown-file"]


# ---- the plan of the records ---------------------------------------------------------------------------------------------


def planned_records(path: Path, selection: Selection = ALL, split_size: int = 1 << 30) -> list[Any]:
    return [part for one in survey([path], selection) for part in record_parts(one, selection, split_size)]


def outline(items: list[Any]) -> list[Any]:
    return [
        ("missing", one.first is not None, one.span)
        if isinstance(one, MissingTask)
        else (one.job.first, one.number, one.count)
        for one in items
    ]


def test_what_is_missing_is_looked_for_in_front_of_the_segments_and_behind_them(storage: Path) -> None:
    front, behind = ("missing", True, (None, None)), ("missing", False, (None, None))
    assert outline(planned_records(storage)) == [
        front, (0, 0, 1), (10, 0, 1), (20, 0, 1), behind, front, (0, 0, 1), behind,
    ]  # fmt: skip
    assert outline(planned_records(storage, Selection(frozenset({0})).with_ids(12, 15))) == [
        ("missing", True, (12, 15)), (10, 0, 1), ("missing", False, (12, 15)),
    ]  # fmt: skip
    for first in (0, 10, 20):
        for path in (seg(storage, 0, first), idx(storage, 0, first)):
            path.unlink()
    (only, *others) = planned_records(storage)
    assert outline([only, *others]) == [behind, front, (0, 0, 1), behind]
    assert (only.cost, only.directory, only.node) == (0, storage / "0", str(storage))


def test_the_parts_of_a_segment_know_the_one_behind_it_only_in_the_end(storage: Path) -> None:
    parts = [one for one in planned_records(storage, split_size=300) if isinstance(one, SegmentPart)]
    of_first = [one for one in parts if (one.job.partition, one.job.first) == (0, 0)]
    assert [(one.number, one.count, one.entries, one.first, one.last) for one in of_first] == [
        (0, 2, 10, None, None), (1, 2, 10, None, None),
    ]  # fmt: skip
    assert [None if one.follower is None else one.follower.first for one in of_first] == [None, 10]
    assert [one.follower for one in parts if (one.job.partition, one.job.first) in ((0, 20), (1, 0))] == [None] * 2


def told(task: Any) -> list[Any]:
    """What a look for what is missing finds."""
    return [(one.code.value, one.transaction_id, one.missing) for one in task.run(ReadLimits())]


def test_a_look_for_what_is_missing_lists_the_partition_again(tmp_path: Path) -> None:
    path = age(build_directory(tmp_path / "s", {0: 30}, per_segment=10, size=20, local_low_water_mark=31))
    front, *_, behind = planned_records(path)
    assert told(front) == []
    assert told(behind) == [("acknowledged-missing", 30, 2)]
    for first in (0, 20):
        for file in (seg(path, 0, first), idx(path, 0, first)):
            file.unlink()
    assert told(front) == [("segment-gap", 0, 10)]
    assert told(behind) == [("acknowledged-missing", 20, 12)]
    shutil.rmtree(path / "0")
    assert told(front) == told(behind) == []


@pytest.fixture
def listed(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Partition directories whose files a task looks at, each of them."""
    seen: list[Path] = []

    def noted(directory: Path, number: int | None) -> Any:
        seen.append(directory)
        return view_partition(directory, number)

    monkeypatch.setattr(record_plan, "view_partition", noted)
    return seen


def test_where_the_first_segment_begins_with_all_nothing_is_listed_to_look_in_front_of_it(
    tmp_path: Path, listed: list[Path]
) -> None:
    path = age(build_directory(tmp_path / "s", {0: 30}, per_segment=10, size=20))
    front, *_ = planned_records(path)
    assert (list(front.run(ReadLimits())), listed) == ([], [])
    (other, *_) = planned_records(path, ALL.with_ids(12, None))
    assert (list(other.run(ReadLimits())), listed) == ([], [path / "0"]), "it is not opened for ids that it has not"
    for file in (seg(path, 0, 0), idx(path, 0, 0)):
        file.unlink()
    (again, *_) = planned_records(path)
    for task in (front, again):
        assert [one.missing for one in task.run(ReadLimits())] == [10]


def found_behind(path: Path, change: Callable[[Path], object], selection: Selection = ALL) -> list[Any]:
    """What is missing behind all segments of partition 0, which changed since the read was planned."""
    behind = [one for one in planned_records(path, selection) if isinstance(one, MissingTask)][-1]
    change(path)
    return told(behind)


def cut_last_record(path: Path) -> None:
    cut(seg(path, 0, 20), seg(path, 0, 20).stat().st_size - RECORD)


@pytest.mark.parametrize(
    ("mark", "change", "told", "looked"),
    [
        (29, lambda path: None, [], 0),
        (30, lambda path: None, [("acknowledged-missing", 30, 1)], 1),
        (28, cut_last_record, [], 0),
        (29, cut_last_record, [("acknowledged-missing", 29, 1)], 1),
        (29, lambda path: seg(path, 0, 20).unlink(), [("acknowledged-missing", 20, 10), ("index-orphan", 20, 0)], 1),
        (29, lambda path: seg(path, 0, 10).unlink(), [("index-orphan", 10, 0)], 1),
        (29, lambda path: (path / "0" / "notes.txt").touch(), [], 0),
        (29, lambda path: (path / "0" / "copy.seg").touch(), [], 1),
    ],
)  # fmt: skip
def test_files_are_looked_at_again_where_others_are_there_or_the_last_does_not_reach_what_was_known(
    tmp_path: Path,
    listed: list[Path],
    mark: int,
    change: Callable[[Path], object],
    told: list[Any],
    looked: int,
) -> None:
    path = age(build_directory(tmp_path / "s", {0: 30}, per_segment=10, size=20, local_low_water_mark=mark))
    assert found_behind(path, lambda path: (change(path), age(path))) == told
    assert len(listed) == looked


def test_a_last_segment_that_goes_when_its_name_was_seen_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def seen_then_gone(directory: Path) -> bytes:
        found = names_fingerprint(directory)
        seg(directory.parent, 0, 20).unlink()
        return found

    monkeypatch.setattr(unread_losses, "names_fingerprint", seen_then_gone)
    path = age(build_directory(tmp_path / "s", {0: 30}, per_segment=10, size=20, local_low_water_mark=29))
    assert ("acknowledged-missing", 20, 10) in found_behind(path, lambda path: None)


@pytest.mark.parametrize(("last", "looked"), [(19, 0), (20, 1)])
def test_the_last_segment_is_opened_for_ids_that_it_may_have(
    tmp_path: Path, listed: list[Path], last: int, looked: int
) -> None:
    path = age(build_directory(tmp_path / "s", {0: 30}, per_segment=10, size=20, local_low_water_mark=29))
    assert found_behind(path, cut_last_record, ALL.with_ids(None, last)) == []
    assert len(listed) == looked


@pytest.mark.parametrize("name", ["copy.seg", "directory.seg", "0000000000000000005.idx"])
def test_what_an_end_does_not_tell_is_looked_for_in_the_directory(
    tmp_path: Path, listed: list[Path], name: str
) -> None:
    path = age(build_directory(tmp_path / "s", {0: 30}, per_segment=10, size=20, local_low_water_mark=29))
    (path / "0" / name).mkdir() if name.startswith("directory") else (path / "0" / name).touch()
    assert not [one for one in found_behind(age(path), lambda path: None) if one[0] != "index-orphan"]
    assert len(listed) == 1


def test_what_was_given_up_is_told_wherever_the_end_is(tmp_path: Path, listed: list[Path]) -> None:
    path = build_directory(tmp_path / "s", {0: 30}, per_segment=10, size=20, local_low_water_mark=29)
    ledger = Path(ledger_path(path))
    ledger.parent.mkdir()
    ledger.write_bytes(encode_ledger([AcceptedLoss(0, 30, 31, 29, "2026-11-22T08:51:18.000Z", "test")]))
    assert found_behind(age(path), lambda path: None) == [("loss-accepted", 30, 2)]
    assert len(listed) == 1


# ---- which storages are meant --------------------------------------------------------------------------------------------


def test_a_name_at_a_store_is_no_pattern() -> None:
    fsspec = pytest.importorskip("fsspec")
    fsspec.filesystem("memory").makedirs("/bucket-of-patterns/a", exist_ok=True)
    with pytest.raises(Exception, match=r"bucket-of-patterns/\*") as raised:
        expand(places.place("memory://bucket-of-patterns/*"))
    assert "has a name of this pattern" not in str(raised.value)


def test_a_path_is_a_storage_what_it_holds_or_what_it_matches(tmp_path: Path) -> None:
    one, two = (build_directory(tmp_path / "c" / name, {0: 1}) for name in ("node-1", "node-2"))
    (tmp_path / "c" / "other").mkdir()
    (tmp_path / "c" / "file").touch()
    assert expand(one) == [one]
    assert sorted(expand(tmp_path / "c")) == [one, two]
    assert expand(tmp_path / "c" / "node-*") == [one, two]
    assert expand(tmp_path / "c" / "node-[2-9]") == [two]
    assert expand(tmp_path / "c" / "node-?" / "0") == [one / "0", two / "0"]
    assert sorted(expand(tmp_path / "[c]*")) == [one, two]
    named = build_directory(tmp_path / "node-*", {0: 1})
    build_directory(tmp_path / "node-x", {0: 1})
    assert expand(named) == [named]
    for path, said in (
        (tmp_path / "c" / "z*", "nothing has a name of this pattern"),
        (tmp_path / "c" / "other", "other"),
        (tmp_path / "c" / "missing", "missing"),
        (tmp_path / "c" / "file" / "x", "file"),
    ):
        with pytest.raises(NotWaltzError, match=said):
            expand(path)


def test_a_filter_on_partitions_leaves_out_what_has_none_and_an_option_does_not(storage: Path) -> None:
    loose = seg(storage, 1, 0)
    loose = loose.rename(storage.parent / loose.name)

    def surveyed(selection: Selection, *paths: Path) -> list[list[str]]:
        return [[run.context.path.name for run in one.runs] for one in survey(paths, selection)]

    some = Selection(partitions=IdBounds(high=0))
    assert surveyed(ALL, storage, loose) == [["0", "1"], [loose.parent.name]]
    assert surveyed(some, storage, loose)[0] == ["0"]
    assert [name for one in surveyed(some, storage, loose)[1:] for name in one] == []
    assert surveyed(some, storage / "0") == [["0"]]
    assert surveyed(some, storage / "1") == []
    assert surveyed(Selection(frozenset({1})), storage) == [["1"]]
    assert surveyed(Selection(frozenset({0, 1}), IdBounds(low=1)), storage) == [["1"]]


def test_a_storage_without_a_control_file_counts_where_it_holds_a_partition_that_is_left(storage: Path) -> None:
    (storage / "waltz-storage.ctl").unlink()
    for high, found in ((1, 1), (-1, 0)):
        assert len(list(survey([storage], Selection(partitions=IdBounds(high=high))))) == found


def test_a_task_of_segments_weighs_as_much_as_its_share() -> None:
    job = SegmentJob(Path("/p/0"), 0, bytes=1001)
    assert SegmentPart("n", job, None, count=2).cost == 500 + FLAT
    assert SegmentPart("n", job, None).directory == Path("/p/0")
    assert SegmentTask("n", job, 0).cost == FLAT
    assert (Notice("n", (finding(1), finding(2))).cost, Notice("n", ()).directory) == (2, None)


def test_a_wrong_entry_is_shown_as_it_stands(storage: Path) -> None:
    patch(idx(storage, 0, 10), 128 + 8 * 4, (7).to_bytes(8, "big"))
    found = rows("index", *planned("index", storage), columns=["transaction_id", "offset"])
    assert found[14] == {"transaction_id": 14, "offset": 7}
    assert len(make_records(3)) == len(found) - 25
