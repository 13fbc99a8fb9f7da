"""A stream whose history changes, and what a look at the latest offset costs."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")

from tests.builders import build_directory, make_records, write_segment
from tests.spark.streaming import Query, damage, findings, ids, open_stream, segment_path
from waltzctl.engine.errors import InvalidRequestError, StalePlanError
from waltzctl.engine.inspect import segment_checks
from waltzctl.engine.scan import scanner
from waltzctl.engine.spark import stream_directory, stream_places
from waltzctl.engine.storage.append import AppendSession, PendingRecord
from waltzctl.engine.storage.directory import StorageDirectory
from waltzctl.formats.segment import index_name

# ---- a history that changed ---------------------------------------------------------------------------------------------


def _truncate_and_rewrite(path: Path) -> None:
    with StorageDirectory.open(path) as storage:
        storage.partition(0).truncate(30)
        AppendSession(storage, 0).append([PendingRecord(b"another history")] * 60)


def _truncate(path: Path) -> None:
    with StorageDirectory.open(path) as storage:
        storage.partition(0).truncate(30)


def _change_last(path: Path) -> None:
    records = make_records(60)
    build = build_directory(path.with_name("other"), {0: [records[:59] + make_records(60, seed=9)[59:]]})
    shutil.rmtree(path / "0")
    shutil.copytree(build / "0", path / "0")


def _remove(path: Path) -> None:
    shutil.rmtree(path / "0")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (_truncate_and_rewrite, "is not the one that was read"),
        (_truncate, "ends at 30 now: it was truncated"),
        (_change_last, "is not the one that was read"),
        (_remove, "truncated"),
    ],
)
def test_a_history_that_changed_stops_the_query_with_a_message(
    tmp_path: Path, change: Callable[[Path], None], said: str
) -> None:
    path = build_directory(tmp_path / "d", {0: 60}, local_low_water_mark=5)
    query = Query(path)
    query.run()
    change(path)
    query.restart()
    with pytest.raises(StalePlanError, match=said) as raised:
        query.step()
    assert "partition 0" in str(raised.value)
    assert "startingTransactions" in str(raised.value)


def test_a_planned_batch_that_was_truncated_fails_when_it_is_planned_again_and_when_it_is_read(tmp_path: Path) -> None:
    path = build_directory(tmp_path / "d", {0: 60}, local_low_water_mark=5)
    reader = open_stream(path)
    start = reader.initialOffset()
    end = reader.latestOffset(start)
    (task,) = reader.partitions(start, end)
    _truncate_and_rewrite(path)
    with pytest.raises(StalePlanError):
        list(reader.read(task))
    with pytest.raises(StalePlanError):
        open_stream(path).partitions(start, end)


def test_a_batch_whose_end_forgets_a_partition_is_refused(tmp_path: Path) -> None:
    path = build_directory(tmp_path / "d", {0: 20, 1: 20})
    query = Query(path)
    query.run()
    forgetful = {**query.offset, "partitions": {"0": query.offset["partitions"]["0"]}}
    with pytest.raises(StalePlanError, match="partition 1: transaction 19 was read"):
        query.reader.partitions(query.offset, forgetful)
    with pytest.raises(InvalidRequestError, match="partition 1: it was read up to 19, and the query leaves it out"):
        open_stream(path, partitions="0").partitions(query.offset, forgetful)


def test_the_same_records_in_other_segments_are_the_same_history(tmp_path: Path) -> None:
    path = build_directory(tmp_path / "d", {0: 60}, per_segment=50)
    query = Query(path, maxRecordsPerTrigger="33")
    query.step()
    other = build_directory(tmp_path / "e", {0: 60}, per_segment=7)
    shutil.rmtree(path / "0")
    shutil.copytree(other / "0", path / "0")
    query.run()
    assert ids(query.rows) == list(range(60))


def test_another_cluster_under_the_same_path_is_told(tmp_path: Path) -> None:
    import uuid

    path = build_directory(tmp_path / "d", {0: 60})
    query = Query(path)
    query.run()
    shutil.rmtree(path)
    build_directory(path, {0: 90}, key=uuid.UUID(int=5))
    with pytest.raises(StalePlanError, match="cluster"):
        query.step()


# ---- cost ---------------------------------------------------------------------------------------------------------------


@pytest.fixture
def scanned(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Bytes of each scan that a segment's check makes."""
    found: list[int] = []

    def counting(*args: object, **named: int) -> object:
        found.append(named["stop"] - named["start"])
        return scanner.scan_records(*args, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(segment_checks, "scan_records", counting)
    return found


def test_the_latest_offset_of_sound_segments_reads_one_record_and_no_other(tmp_path: Path, scanned: list[int]) -> None:
    path = build_directory(tmp_path / "d", {0: 500, 1: 500}, size=100)
    reader = open_stream(path, maxRecordsPerTrigger="100")
    reader.latestOffset(reader.initialOffset())
    assert not scanned


def test_without_an_index_only_what_follows_the_last_offset_is_scanned(tmp_path: Path, scanned: list[int]) -> None:
    path = build_directory(tmp_path / "d", {0: [make_records(500, size=100)]})
    (path / "0" / index_name(0)).unlink()
    query = Query(path)
    query.run()
    with segment_path(path, 0).open("ab") as file:
        file.write(make_records(1, first=500, size=100)[0].encode())
    scanned.clear()
    assert ids(query.step() or []) == [500]
    assert max(scanned) <= 140


def test_a_large_segment_is_split_where_its_index_proves_records_and_nothing_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_places, "SPLIT_BYTES", 3000)
    monkeypatch.setattr("waltzctl.engine.spark.stream_reader.TASK_WEIGHT", 5000)
    path = build_directory(tmp_path / "d", {0: [make_records(300)], 1: [make_records(5, partition=1)]})
    damage(path, 0, 77)
    reader = open_stream(path)
    start = reader.initialOffset()
    assert len(reader.partitions(start, reader.latestOffset(start))) > 3
    query = Query(path)
    query.run()
    assert ids(query.rows) == [one for one in range(300) if one != 77]
    assert findings(query.rows) == [(0, 77, "record-checksum")]


def test_a_partition_at_rest_is_not_listed_again_and_what_happens_there_is_still_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = build_directory(tmp_path / "d", {0: 120, 1: 20})
    monkeypatch.setattr(stream_directory, "_SETTLED", -1.0)
    query = Query(path)
    query.run()
    listed: list[str] = []
    view_partition = stream_directory.view_partition

    def counting(directory: Path, partition: int) -> object:
        listed.append(directory.name)
        return view_partition(directory, partition)

    monkeypatch.setattr(stream_directory, "view_partition", counting)
    reader, offset = query.reader, query.offset
    assert reader.latestOffset(offset) == offset
    assert not listed
    with segment_path(path, 100).open("ab") as file:
        file.write(make_records(1, first=120)[0].encode())
    assert reader.latestOffset(offset)["partitions"]["0"]["transaction_id"] == 120
    assert not listed
    write_segment(path / "0", make_records(3, first=121))
    assert reader.latestOffset(offset)["partitions"]["0"]["transaction_id"] == 123
    assert listed == ["0"]
