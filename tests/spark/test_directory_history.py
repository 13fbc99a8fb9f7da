"""What a stream knows of a directory, asked piece by piece: partitions, marks, the last record, and the parts of a batch."""

from __future__ import annotations

import errno
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")

from tests.builders import KEY, build_directory, make_records, with_marks, write_segment
from tests.inspect.helpers import age, flip, idx, patch, seg
from tests.spark.streaming import Query, findings, ids
from waltzctl.engine.errors import DiskReadError, NotWaltzError, StalePlanError
from waltzctl.engine.inspect.segment_checks import FilesChangedError
from waltzctl.engine.spark import stream_directory
from waltzctl.engine.spark.data_loss import Losses
from waltzctl.engine.spark.offsets import BEGINNING, Anchor, behind_loss
from waltzctl.engine.spark.stream_directory import DirectoryHistory
from waltzctl.engine.spark.stream_losses import LostRange
from waltzctl.engine.spark.stream_places import SegmentRange
from waltzctl.engine.spark.stream_rows import RowMaker
from waltzctl.engine.spark.view_schemas import RECORD_COLUMNS, spark_schema
from waltzctl.formats.control import ControlFile, decode_control
from waltzctl.formats.segment import Record

RECORDS = make_records(30, size=20)
"""Of 60 bytes each, ten in a segment."""


def at(number: int) -> int:
    return 128 + 60 * (number % 10)


def anchor(number: int, **changed: Any) -> Anchor:
    one: Record = RECORDS[number]
    made = Anchor(number, one.request_id, one.record_checksum, number // 10 * 10, at(number), 60)
    return replace(made, **changed)


@pytest.fixture
def storage(tmp_path: Path) -> Path:
    """Three segments of ten records; the mark is in the second."""
    path = build_directory(tmp_path / "d", {0: [RECORDS[:10], RECORDS[10:20], RECORDS[20:]]}, local_low_water_mark=14)
    return age(path)


def looked(path: Path) -> DirectoryHistory:
    history = DirectoryHistory(path, RowMaker(spark_schema(RECORD_COLUMNS)))
    history.refresh()
    return history


def change_control(path: Path, change: Callable[[ControlFile], ControlFile]) -> None:
    file = path / "waltz-storage.ctl"
    file.write_bytes(change(decode_control(file.read_bytes())).encode())


def marked(path: Path, **marks: int) -> None:
    """Let the current marks of partition 0 say this."""

    def change(control: ControlFile) -> ControlFile:
        return replace(control, partitions=(with_marks(control.partitions[0], **marks), *control.partitions[1:]))

    change_control(path, change)


# ---- what is there -------------------------------------------------------------------------------------------------------


def test_the_key_and_the_last_record_of_each_partition_are_known(tmp_path: Path) -> None:
    path = build_directory(tmp_path / "d", {0: 3, 1: 0, 2: 5}, size=20)
    history = looked(path)
    assert history.refresh() == KEY
    assert history.place == str(path)
    found = history.latest(None, {}, "intact")
    assert {number: one.transaction_id for number, one in found.items()} == {0: 2, 1: -1, 2: 4}
    assert history.latest({2}, {}, "intact") == {2: found[2]}
    history.close()
    assert history.latest(None, {}, "intact") == {}


@pytest.mark.parametrize(("name", "read"), [("2", True), ("02", False), ("x", False), ("2x", False), ("3", False)])
def test_a_partition_is_a_number_that_the_control_file_knows(tmp_path: Path, name: str, read: bool) -> None:
    path = build_directory(tmp_path / "d", {0: 3}, num_partitions=3)
    other = build_directory(tmp_path / "e", {2: 4}, num_partitions=3)
    shutil.copytree(other / "2", path / name)
    if name == "3":
        write_segment(path / "3", make_records(1, partition=3), partition=3)
    assert sorted(looked(path).latest(None, {}, "intact")) == ([0, 2] if read else [0])


def test_without_a_control_file_every_partition_counts_and_no_key_is_known(tmp_path: Path) -> None:
    path = build_directory(tmp_path / "d", {0: 3, 4: 2}, num_partitions=5)
    (path / "waltz-storage.ctl").unlink()
    history = looked(path)
    assert history.refresh() is None
    assert sorted(history.latest(None, {}, "intact")) == [0, 4]
    assert [one.transaction_id for one in history.latest({4}, {}, "low-water-mark").values()] == [-1]
    (part,) = history.parts(4, BEGINNING, history.latest({4}, {}, "intact")[4])
    assert isinstance(part, SegmentRange)
    assert (part.cluster_key, part.local_low_water_mark) == (None, None)


def test_partitions_beyond_a_control_file_that_was_cut_are_read(tmp_path: Path) -> None:
    """Its header says how many there are; where its size says otherwise, nothing is left out for that."""
    path = build_directory(tmp_path / "d", {0: 3}, num_partitions=1)
    other = build_directory(tmp_path / "e", {2: 4}, num_partitions=3)
    shutil.copytree(other / "2", path / "2")
    assert sorted(looked(path).latest(None, {}, "intact")) == [0]
    with (path / "waltz-storage.ctl").open("ab") as file:
        file.write(bytes(7))
    history = looked(path)
    assert sorted(history.latest(None, {}, "intact")) == [0, 2]
    assert history.latest({2}, {}, "low-water-mark") == {2: BEGINNING}
    (part,) = history.parts(2, BEGINNING, history.latest({2}, {}, "intact")[2])
    assert isinstance(part, SegmentRange)
    assert (part.cluster_key, part.local_low_water_mark) == (KEY, None)


def test_a_partition_without_a_directory_counts_where_it_was_assigned_and_written(tmp_path: Path) -> None:
    path = build_directory(tmp_path / "d", {0: 30, 1: 6, 2: 6}, per_segment=10, size=20, num_partitions=3)
    shutil.rmtree(path / "1")
    history = looked(path)
    found = history.latest(None, {}, "intact")
    assert sorted(found) == [0, 1, 2]
    assert found[1] == behind_loss(2)  # its mark
    (lost,) = history.parts(1, BEGINNING, found[1])
    assert isinstance(lost, LostRange)
    assert (lost.finding.transaction_id, lost.finding.missing) == (0, 3)
    assert history.record_now(1, found[1]) is None
    assert history.record_now(7, found[1]) is None


def test_what_is_no_storage_is_told_by_its_path(tmp_path: Path) -> None:
    for path in (tmp_path / "missing", tmp_path):
        with pytest.raises(NotWaltzError, match=str(path)):
            looked(path)
    with pytest.raises(NotWaltzError, match="no storage directory: No such file"):
        looked(tmp_path / "missing")


def test_a_directory_that_cannot_be_listed_is_not_told_as_none(storage: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_path: object) -> list[str]:
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(storage))

    with monkeypatch.context() as patch:
        patch.setattr(os, "listdir", fails)
        with pytest.raises(DiskReadError, match="Input/output error"):
            looked(storage)


# ---- how far it may be read ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("mark", "last"), [(-1, -1), (0, 0), (9, 9), (10, 10), (14, 14), (28, 28), (29, 29)])
def test_up_to_the_mark_and_not_beyond(storage: Path, mark: int, last: int) -> None:
    marked(storage, low_water_mark=mark, local_low_water_mark=mark)
    found = looked(storage).latest(None, {}, "low-water-mark")
    assert found == {0: BEGINNING if last < 0 else anchor(last)}
    assert looked(storage).latest(None, {}, "intact") == {0: anchor(29)}


def test_a_mark_that_leads_to_damage_is_the_record_in_front(storage: Path) -> None:
    """And no loss behind the last record: the damage is told when the mark has risen, by its code and in its place."""
    for number in (13, 14):
        flip(seg(storage, 0, 10), at(number) + 50)
    assert looked(storage).latest(None, {}, "low-water-mark") == {0: anchor(12)}
    query = Query(storage, upTo="low-water-mark")
    query.run()
    assert (ids(query.rows), findings(query.rows)) == (list(range(13)), [])
    marked(storage, low_water_mark=16, local_low_water_mark=16)
    query.run()
    assert ids(query.rows) == [*range(13), 15, 16]
    assert findings(query.rows) == [(0, 13, "record-checksum")]
    assert query.rows[13]["missing"] == 2


@pytest.mark.parametrize(
    ("low", "local", "intact", "safe"),
    [
        (29, 29, anchor(29), anchor(29)),
        (30, 30, behind_loss(30), behind_loss(30)),
        (35, 35, behind_loss(35), behind_loss(35)),
        (32, 35, behind_loss(35), behind_loss(32)),
        (29, 35, behind_loss(35), anchor(29)),
        (20, 35, behind_loss(35), anchor(20)),
        (35, 29, anchor(29), anchor(29)),
    ],
)
def test_what_a_mark_promises_behind_the_last_record_is_lost(
    storage: Path, low: int, local: int, intact: Anchor, safe: Anchor
) -> None:
    """The local mark proves what was here; up to both of them it is beyond recovery as well."""
    marked(storage, low_water_mark=low, local_low_water_mark=local)
    assert looked(storage).latest(None, {}, "intact") == {0: intact}
    assert looked(storage).latest(None, {}, "low-water-mark") == {0: safe}


def test_marks_that_nothing_tells_are_below_every_transaction(storage: Path) -> None:
    size = (storage / "waltz-storage.ctl").stat().st_size
    patch(storage / "waltz-storage.ctl", 128, bytes(size - 128))
    history = looked(storage)
    assert history.latest(None, {}, "low-water-mark") == {0: BEGINNING}
    (part, *_) = history.parts(0, BEGINNING, anchor(29))
    assert isinstance(part, SegmentRange)
    assert part.local_low_water_mark is None


def test_losses_are_judged_by_files_as_they_are_now(storage: Path) -> None:
    """Between the listing and the reading the rest may have been written, and the mark raised."""
    marked(storage, low_water_mark=31, local_low_water_mark=31)
    history = looked(storage)
    assert history.latest(None, {}, "intact") == {0: behind_loss(31)}
    more = make_records(2, first=30, size=20)
    write_segment(storage / "0", more)
    again = history.latest(None, {}, "intact")[0]
    assert (again.transaction_id, again.record_checksum, again.segment) == (31, more[1].record_checksum, 30)


# ---- looking again -------------------------------------------------------------------------------------------------------


@pytest.fixture
def listed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The partitions whose directories are listed, from now on."""
    found: list[int] = []
    view_partition = stream_directory.view_partition

    def counting(path: Path, number: int) -> Any:
        found.append(number)
        return view_partition(path, number)

    monkeypatch.setattr(stream_directory, "view_partition", counting)
    return found


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Has the monotonic clock go on by so many seconds; it stands still otherwise."""
    now = [1000.0]
    monkeypatch.setattr(stream_directory, "time", SimpleNamespace(monotonic=lambda: now[0]))

    def go_on(seconds: float) -> None:
        now[0] += seconds

    return go_on


def test_a_directory_at_rest_is_listed_twice_and_one_that_changed_again(
    storage: Path, listed: list[int], later: Callable[[float], None]
) -> None:
    history = looked(storage)
    later(3)
    history.refresh()
    assert listed == [0, 0]
    later(3)
    history.refresh()
    assert listed == [0, 0]
    with seg(storage, 0, 20).open("ab") as file:
        file.write(make_records(1, first=30, size=20)[0].encode())
    history.refresh()
    assert listed == [0, 0]
    assert history.latest(None, {}, "intact")[0].transaction_id == 30
    write_segment(storage / "0", make_records(1, first=31, size=20))
    history.refresh()
    assert listed == [0, 0, 0]
    assert history.latest(None, {}, "intact")[0].transaction_id == 31
    later(2)
    history.refresh()
    history.refresh()
    assert listed == [0, 0, 0, 0, 0], "its new time was found two seconds ago, and not before"


@pytest.mark.parametrize("ahead", [-3600, 0, 3600])
def test_a_directory_that_changed_just_now_may_change_again_within_its_time(
    storage: Path, later: Callable[[float], None], ahead: int
) -> None:
    """Within a tick of the file system's clock, which may be hours behind this machine's, or ahead of it."""
    modified = time.time_ns() + ahead * 10**9
    os.utime(storage / "0", ns=(modified, modified))
    history = looked(storage)
    later(0.001)
    write_segment(storage / "0", make_records(3, first=30, size=20))
    os.utime(storage / "0", ns=(modified, modified))
    for _ in range(3):
        history.refresh()
        assert history.latest(None, {}, "intact")[0].transaction_id == 32
        later(3)


def test_an_empty_partition_at_rest_is_no_trouble(
    tmp_path: Path, listed: list[int], later: Callable[[float], None]
) -> None:
    path = build_directory(tmp_path / "d", {0: 1}, local_low_water_mark=-1)
    for file in (path / "0").iterdir():
        file.unlink()
    history = looked(path)
    for _ in range(3):
        later(3)
        history.refresh()
    assert listed == [0, 0]
    assert history.latest(None, {}, "intact") == {0: BEGINNING}


def test_the_last_record_is_looked_for_where_the_last_files_changed(
    storage: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    history = looked(storage)
    asked: list[Anchor] = []
    at_or_before = stream_directory.PartitionPlaces.at_or_before

    def counting(places: Any, bound: int | None, known: Anchor = BEGINNING) -> Any:
        asked.append(known)
        return at_or_before(places, bound, known)

    monkeypatch.setattr(stream_directory.PartitionPlaces, "at_or_before", counting)
    assert history.latest(None, {0: anchor(5)}, "intact") == {0: anchor(29)}
    assert asked == [anchor(5)]
    history.refresh()
    assert history.latest(None, {0: anchor(5)}, "intact") == {0: anchor(29)}
    assert asked == [anchor(5)]
    with seg(storage, 0, 20).open("ab") as file:
        file.write(make_records(1, first=30, size=20)[0].encode())
    history.refresh()
    assert history.latest(None, {0: anchor(5)}, "intact")[0].transaction_id == 30
    assert asked == [anchor(5), anchor(29)]


def test_a_file_that_went_is_another_listing_and_not_for_ever(storage: Path, listed: list[int]) -> None:
    history = looked(storage)
    seg(storage, 0, 20).unlink()
    assert history.at_or_before(0, 29, BEGINNING) == anchor(19)
    assert listed == [0, 0]

    def gone(_: Any) -> None:
        raise FilesChangedError

    listed.clear()
    with pytest.raises(StalePlanError, match=f"^{storage}, partition 0: its files change faster than they can be read"):
        history._retrying(0, gone)
    assert listed == [0] * 8


@pytest.mark.parametrize(("wanted", "found"), [(-1, -1), (0, 0), (9, 9), (10, 10), (29, 29), (30, 29), (99, 29)])
def test_the_record_at_or_before_an_id(storage: Path, wanted: int, found: int) -> None:
    expected = BEGINNING if found < 0 else anchor(found)
    assert looked(storage).at_or_before(0, wanted, BEGINNING) == expected
    assert looked(storage).at_or_before(0, wanted, anchor(5)) == expected
    flip(seg(storage, 0, 0), at(0) + 50)
    assert looked(storage).at_or_before(0, wanted, BEGINNING) == (BEGINNING if found < 1 else expected)


def test_the_record_of_an_anchor_is_found_again(storage: Path) -> None:
    history = looked(storage)
    for wrong in (
        {},
        {"segment": 10},
        {"segment": None, "offset": None, "size": None},
        {"offset": 128},
        {"segment": 7},
    ):
        assert history.record_now(0, anchor(25, **wrong)) == anchor(25)
    assert history.record_now(0, anchor(25, record_checksum=1)) == anchor(25)
    flip(seg(storage, 0, 20), at(25) + 50)
    assert history.record_now(0, anchor(25)) is None
    assert history.record_now(0, Anchor(30)) is None


# ---- the parts of a batch ------------------------------------------------------------------------------------------------


def spans(parts: Any) -> list[tuple[int, int] | str]:
    return [
        f"{one.finding.transaction_id} {one.finding.missing}" if isinstance(one, LostRange) else (one.first, one.last)
        for one in parts
    ]


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        (BEGINNING, Anchor(32), [(0, 9), (10, 19), (20, 29), "30 3"]),
        (anchor(28), Anchor(32), [(29, 29), "30 3"]),
        (anchor(29), Anchor(32), ["30 3"]),
        (anchor(29), Anchor(30), ["30 1"]),
        (Anchor(30), Anchor(32), ["31 2"]),
        (Anchor(31), Anchor(32), ["32 1"]),
        (anchor(27), Anchor(29), [(28, 29)]),
        (anchor(19), anchor(21), [(20, 21)]),
        (anchor(18), anchor(20), [(19, 19), (20, 20)]),
    ],
)
def test_a_batch_is_what_lies_between_two_places_and_what_is_lost_behind_them(
    storage: Path, start: Anchor, end: Anchor, expected: list[tuple[int, int] | str]
) -> None:
    marked(storage, low_water_mark=32, local_low_water_mark=32)
    assert spans(looked(storage).parts(0, start, end)) == expected


def test_a_part_knows_what_its_task_has_to_know(storage: Path) -> None:
    history = looked(storage)
    first, last = history.parts(0, anchor(11), anchor(22))
    same = {
        "node": str(storage), "directory": storage / "0", "partition": 0, "cluster_key": KEY,
        "local_low_water_mark": 14, "storage": storage, "others": True,
    }  # fmt: skip
    expected = SegmentRange(
        segment=10, first=12, last=19, start=at(12), start_id=12, stop=None, following=20, bytes=480, **same
    )
    assert first == expected
    assert last == SegmentRange(
        segment=20, first=20, last=22, start=128, start_id=20, stop=at(23), ends_at=anchor(22), bytes=180, **same
    )
    job = last.job
    assert (job.directory, job.first, job.partition, job.last, job.storage) == (storage / "0", 20, 0, True, storage)
    assert (job.cluster_key, job.local_low_water_mark, job.following) == (KEY, 14, None)
    assert (expected.job.last, expected.job.following) == (False, 20)


def test_the_marks_of_the_last_partition_are_its_own(tmp_path: Path) -> None:
    path = build_directory(tmp_path / "d", {0: 3, 1: 9}, size=20, local_low_water_mark=2)
    marks = {number: [part.local_low_water_mark for part in looked(path).parts(number, BEGINNING, last)]
             for number, last in looked(path).latest(None, {}, "intact").items()}  # fmt: skip
    assert marks == {0: [2], 1: [2]}
    promised = looked(path)._promised(1)
    assert (promised.mark, promised.session, promised.there, promised.view.partition) == (2, 3, True, 1)
    nothing = looked(path)._promised(2)
    assert (nothing.mark, nothing.session, nothing.there, nothing.view.segments) == (None, None, False, ())


def test_rows_and_losses_of_parts(storage: Path) -> None:
    marked(storage, low_water_mark=32, local_low_water_mark=32)
    flip(seg(storage, 0, 20), at(25) + 50)
    history, losses = looked(storage), Losses(wanted=True)
    rows = [
        row
        for part in history.parts(0, anchor(23), Anchor(32))
        for batch in history.read(part, losses)
        for row in batch.to_pylist()
    ]
    assert [(row["node"], row["partition"], row["transaction_id"], row["finding"], row["missing"]) for row in rows] == [
        (str(storage), 0, 24, None, None),
        (str(storage), 0, 25, "record-checksum", 1),
        *((str(storage), 0, number, None, None) for number in range(26, 30)),
        (str(storage), 0, 30, "acknowledged-missing", 3),
    ]
    assert [row["data"] for row in rows if row["finding"] is None] == [
        RECORDS[number].data for number in (24, 26, 27, 28, 29)
    ]
    with pytest.raises(Exception, match="lost in 2 places"):
        losses.check()


def test_an_index_that_is_gone_is_no_loss(storage: Path) -> None:
    for first in (0, 10, 20):
        idx(storage, 0, first).unlink()
    history = looked(storage)
    assert history.latest(None, {}, "intact") == {0: anchor(29)}
    assert history.latest(None, {0: anchor(25)}, "low-water-mark") == {0: anchor(14)}
    assert spans(history.parts(0, anchor(24), anchor(29))) == [(25, 29)]


def test_of_a_partition_that_was_truncated_since_it_was_listed_nothing_is_lost(storage: Path) -> None:
    """Its mark was lowered with it."""
    marked(storage, local_low_water_mark=29)
    history = looked(storage)
    with seg(storage, 0, 20).open("r+b") as file:
        file.truncate(at(25))
    with idx(storage, 0, 20).open("r+b") as file:
        file.truncate(128 + 8 * 5)
    assert history.latest(None, {}, "intact") == {0: behind_loss(29)}, "it was promised up to there"
    history = looked(storage)
    marked(storage, local_low_water_mark=20)
    assert history.latest(None, {}, "intact") == {0: anchor(24)}
