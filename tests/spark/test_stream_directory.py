"""A stream from a directory: what counts, what is told, and that a batch is what lies between its offsets."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from engine.errors import InvalidRequestError, NotWaltzError, StalePlanError
from engine.findings import Finding
from engine.inspect.dump import dump_records
from engine.scan import scanner
from engine.spark import stream_directory, stream_places
from engine.storage.append import AppendSession, PendingRecord
from engine.storage.directory import StorageDirectory, StorageOptions
from formats.segment import Record, index_name, segment_name
from tests.builders import build_directory, make_records, write_segment
from tests.golden import GOLDEN, needs_golden
from tests.spark.streaming import Query, as_row, findings, ids, open_stream, row_value


def _segment(path: Path, first: int, partition: int = 0) -> Path:
    return path / str(partition) / segment_name(first)


def _damage(path: Path, first: int, number: int, partition: int = 0, *, per_segment: int = 50) -> Record:
    """Flip a byte in a record of a directory of `build_directory`; returns the record."""
    with_index = path / str(partition) / index_name(first)
    entries = with_index.read_bytes()[128:]
    offset = int.from_bytes(entries[8 * (number - first) :][:8], "big")
    data = bytearray(_segment(path, first, partition).read_bytes())
    data[offset + 20] ^= 0x40
    _segment(path, first, partition).write_bytes(data)
    return Record.decode(bytes(data[offset : offset + 40 + int.from_bytes(data[offset + 28 : offset + 32], "big")]))


def test_every_record_comes_once_with_its_bytes_whatever_the_limit(tmp_path: Path) -> None:
    path = build_directory(tmp_path / "d", {0: 200, 1: 33, 2: 0})
    for limit in ("1000", "60", "7"):
        query = Query(path, maxRecordsPerTrigger=limit)
        query.run()
        for number, count in ((0, 200), (1, 33), (2, 0)):
            found = [row_value(row) for row in query.rows if row["partition"] == number]
            assert found == [as_row(one) for one in make_records(count, partition=number)]
        assert max(map(len, query.batches)) <= int(limit)
        assert {row["node"] for row in query.rows} == {str(path)}


def test_a_stopped_query_goes_on_where_it_was(tmp_path: Path) -> None:
    path = build_directory(tmp_path / "d", {0: 120, 1: 10})
    query = Query(path, maxRecordsPerTrigger="25")
    while query.step() is not None:
        query.restart()
    assert ids(query.rows) == list(range(120))
    assert ids(query.rows, 1) == list(range(10))


def test_what_is_appended_comes_and_a_torn_tail_is_not_there_yet(tmp_path: Path) -> None:
    path = build_directory(tmp_path / "d", {0: 20})
    more = make_records(5, first=20)
    query = Query(path)
    query.run()
    raw = more[0].encode()
    with _segment(path, 0).open("ab") as file:
        for cut in (10, 30, len(raw) - 1):
            file.write(raw[file.tell() and 0 : cut] if cut == 10 else raw[{30: 10}.get(cut, 30) : cut])
            file.flush()
            assert query.step() is None
        file.write(raw[-1:])
        file.flush()
        assert [row_value(row) for row in query.step() or []] == [as_row(more[0])]
        file.write(b"".join(one.encode() for one in more[1:]))  # and without a word in the index
    assert query.step() is not None
    assert ids(query.rows) == list(range(25))
    assert not findings(query.rows)


def test_a_live_writer_with_small_segments_loses_and_doubles_nothing(tmp_path: Path) -> None:
    path = build_directory(tmp_path / "d", {0: 0, 1: 0})
    query = Query(path, maxRecordsPerTrigger="13")
    source = random.Random(5)
    expected: dict[int, list[bytes]] = {0: [], 1: []}
    with StorageDirectory.open(path, options=StorageOptions(segment_size_threshold=900)) as storage:
        sessions = {number: AppendSession(storage, number) for number in (0, 1)}
        for _ in range(40):
            number = source.randrange(2)
            made = [source.randbytes(source.choice([0, 5, 90])) for _ in range(source.randrange(1, 9))]
            sessions[number].append([PendingRecord(one) for one in made])
            expected[number] += made
            if source.random() < 0.7:
                query.step()
            if source.random() < 0.2:
                query.restart()
    query.run()
    for number in (0, 1):
        assert [row["data"] for row in query.rows if row["partition"] == number] == expected[number]


@pytest.mark.parametrize("limit", ["1000", "30", "3", "1"])
def test_damage_in_front_of_records_is_told_once_and_costs_only_itself(tmp_path: Path, limit: str) -> None:
    path = build_directory(tmp_path / "d", {0: 120})
    for first, number in ((0, 0), (0, 17), (0, 18), (0, 49), (50, 50), (50, 75), (100, 118)):
        _damage(path, first, number)
    query = Query(path, maxRecordsPerTrigger=limit)
    query.run()
    lost = {0, 17, 18, 49, 50, 75, 118}
    assert ids(query.rows) == [one for one in range(120) if one not in lost]
    told = findings(query.rows)
    assert len(told) == len(set(told))
    dumped = [one for one in dump_records(path) if isinstance(one, Finding)]
    assert [(0, one.transaction_id, one.code.value) for one in dumped] == told


def test_damage_at_the_end_is_told_when_something_follows(tmp_path: Path) -> None:
    path = build_directory(tmp_path / "d", {0: 20})
    _damage(path, 0, 19)
    query = Query(path)
    query.run()
    assert ids(query.rows) == list(range(19))
    assert not findings(query.rows)
    with _segment(path, 0).open("ab") as file:
        file.write(b"".join(one.encode() for one in make_records(3, first=20)))
    query.run()
    assert ids(query.rows) == [*range(19), 20, 21, 22]
    assert findings(query.rows) == [(0, 19, "record-checksum")]


@pytest.mark.parametrize("limit", ["1000", "9"])
def test_a_missing_segment_is_a_gap_told_once(tmp_path: Path, limit: str) -> None:
    path = build_directory(tmp_path / "d", {0: 200})
    for first in (0, 100):
        _segment(path, first).unlink()
        (path / "0" / index_name(first)).unlink()
    query = Query(path, maxRecordsPerTrigger=limit)
    query.run()
    assert ids(query.rows) == [*range(50, 100), *range(150, 200)]
    assert findings(query.rows) == [(0, 0, "segment-gap"), (0, 100, "segment-gap")]


@pytest.mark.parametrize("limit", ["1000", "9"])
def test_a_segment_that_lost_its_end_is_told_once(tmp_path: Path, limit: str) -> None:
    path = build_directory(tmp_path / "d", {0: 150}, size=60)
    data = _segment(path, 50).read_bytes()
    _segment(path, 50).write_bytes(data[: 128 + 100 * 40 + 30])  # in the 41st of its records
    query = Query(path, maxRecordsPerTrigger=limit)
    query.run()
    assert ids(query.rows) == [*range(90), *range(100, 150)]
    assert findings(query.rows) == [(0, 90, "torn-tail")]


@pytest.mark.parametrize("limit", ["1000", "9"])
def test_ids_that_stand_in_two_segments_come_once(tmp_path: Path, limit: str) -> None:
    records = make_records(60)
    path = build_directory(tmp_path / "d", {0: [records[:50]]})
    other = build_directory(tmp_path / "e", {0: [records[:40], records[40:]]})
    for name in (segment_name(40), index_name(40)):
        shutil.copy(other / "0" / name, path / "0" / name)
    query = Query(path, maxRecordsPerTrigger=limit)
    query.run()
    assert [row_value(row) for row in query.rows if row["finding"] is None] == [as_row(one) for one in records]
    assert findings(query.rows) == [(0, 40, "segment-overlap")]


def test_data_that_disagrees_with_its_own_checksum_is_given_with_its_finding(tmp_path: Path) -> None:
    records = make_records(5, size=20)
    bad = Record.make(2, records[2].request_id, records[2].header, b"x" * 20)
    import dataclasses

    from formats.checksums import crc32

    wrong = dataclasses.replace(bad, data_checksum=bad.data_checksum ^ 1)
    wrong = dataclasses.replace(wrong, record_checksum=crc32(wrong.encode()[:-4]))
    path = build_directory(tmp_path / "d", {0: [[*records[:2], wrong, *records[3:]]]})
    query = Query(path)
    query.run()
    assert [row["transaction_id"] for row in query.rows] == [0, 1, 2, 3, 4]
    assert findings(query.rows) == [(0, 2, "data-checksum")]
    assert query.rows[2]["data"] == b"x" * 20


def test_a_new_partition_is_read_from_its_beginning(tmp_path: Path) -> None:
    path = build_directory(tmp_path / "d", {0: 5}, num_partitions=2)
    query = Query(path, startingTransactions="latest")
    assert query.step() is None
    other = build_directory(tmp_path / "e", {1: 7}, num_partitions=2)
    shutil.copytree(other / "1", path / "1")
    assert ids(query.step() or [], 1) == list(range(7))


@pytest.mark.parametrize(
    ("starting", "zero", "one"),
    [
        ("earliest", range(60), range(5)),
        ("latest", range(0), range(0)),
        ('{"0": 57}', range(57, 60), range(5)),
        ('{"0": 50, "1": "latest"}', range(50, 60), range(0)),
        ('{"0": 60, "1": 0}', range(0), range(5)),
    ],
)
def test_a_query_begins_where_it_is_told(tmp_path: Path, starting: str, zero: range, one: range) -> None:
    path = build_directory(tmp_path / "d", {0: 60, 1: 5})
    query = Query(path, startingTransactions=starting, maxRecordsPerTrigger="4")
    query.run()
    assert ids(query.rows, 0) == list(zero)
    assert ids(query.rows, 1) == list(one)


def test_starting_at_what_is_damaged_tells_it_once(tmp_path: Path) -> None:
    path = build_directory(tmp_path / "d", {0: 60})
    _damage(path, 0, 9)
    _damage(path, 0, 10)
    query = Query(path, startingTransactions='{"0": 9}', maxRecordsPerTrigger="1")
    query.run()
    assert ids(query.rows) == list(range(11, 60))
    assert findings(query.rows)[0][:2] == (0, 9)


def test_a_partition_that_is_not_there_cannot_be_started_at(tmp_path: Path) -> None:
    path = build_directory(tmp_path / "d", {0: 5})
    with pytest.raises(InvalidRequestError, match="partition 7"):
        open_stream(path, startingTransactions='{"7": 3}').initialOffset()


def test_only_the_wanted_partitions_are_read(tmp_path: Path) -> None:
    path = build_directory(tmp_path / "d", {0: 5, 1: 6, 2: 7})
    query = Query(path, partitions="1-2")
    query.run()
    assert {row["partition"] for row in query.rows} == {1, 2}


def test_up_to_the_low_water_mark_nothing_above_it_is_read(tmp_path: Path) -> None:
    path = build_directory(tmp_path / "d", {0: 90}, local_low_water_mark=41)
    query = Query(path, upTo="low-water-mark", maxRecordsPerTrigger="10")
    query.run()
    assert ids(query.rows) == list(range(42))
    with StorageDirectory.open(path) as storage:
        AppendSession(storage, 0).append([PendingRecord(b"new")])
    query.run()
    assert ids(query.rows) == list(range(90))  # a new session began at 89; what it appended is not behind its mark


def test_a_row_limit_of_spark_wins_over_the_option_and_all_available_means_all(tmp_path: Path) -> None:
    path = build_directory(tmp_path / "d", {0: 60})
    query = Query(path, maxRecordsPerTrigger="10")
    assert len(query.step(ReadMaxRows(3)) or []) == 3
    assert len(query.step(ReadMaxRows(10)) or []) == 10
    assert len(query.step(ReadAllAvailable()) or []) == 47


def test_available_now_ends_where_it_was_when_it_began_even_when_more_comes(tmp_path: Path) -> None:
    path = build_directory(tmp_path / "d", {0: 60})
    query = Query(path, maxRecordsPerTrigger="25")
    query.reader.prepareForTriggerAvailableNow()
    with StorageDirectory.open(path) as storage:
        AppendSession(storage, 0).append([PendingRecord(b"late")] * 5)
    query.run()
    assert ids(query.rows) == list(range(60))


def test_a_reader_of_spark_4_1_that_is_told_nothing_still_gives_everything_once(tmp_path: Path) -> None:
    path = build_directory(tmp_path / "d", {0: 60})
    reader = open_stream(path, maxRecordsPerTrigger="25")
    from tests.spark.streaming import read_batch

    offset, rows = reader.initialOffset(), []
    while (end := reader.latestOffset()) != offset:
        rows += read_batch(reader, offset, end)
        offset = end
    assert ids(rows) == list(range(60))


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


def test_the_latest_offset_of_sound_segments_reads_one_record_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = build_directory(tmp_path / "d", {0: 500, 1: 500}, size=100)
    scanned: list[int] = []

    def counting(*args: object, **named: int) -> object:
        scanned.append(named["stop"] - named["start"])
        return scanner.scan_records(*args, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(stream_places, "scan_records", counting)
    reader = open_stream(path, maxRecordsPerTrigger="100")
    reader.latestOffset(reader.initialOffset(), ReadMaxRows(100))
    assert not scanned


def test_without_an_index_only_what_follows_the_last_offset_is_scanned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = build_directory(tmp_path / "d", {0: [make_records(500, size=100)]})
    (path / "0" / index_name(0)).unlink()
    query = Query(path)
    query.run()
    with _segment(path, 0).open("ab") as file:
        file.write(make_records(1, first=500, size=100)[0].encode())
    scanned: list[int] = []

    def counting(*args: object, **named: int) -> object:
        scanned.append(named["stop"] - named["start"])
        return scanner.scan_records(*args, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(stream_places, "scan_records", counting)
    assert ids(query.step() or []) == [500]
    assert max(scanned) <= 140


def test_a_large_segment_is_split_where_its_index_proves_records_and_nothing_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_places, "SPLIT_BYTES", 3000)
    monkeypatch.setattr("engine.spark.stream_reader.TASK_WEIGHT", 5000)
    path = build_directory(tmp_path / "d", {0: [make_records(300)], 1: [make_records(5, partition=1)]})
    _damage(path, 0, 77)
    reader = open_stream(path)
    start = reader.initialOffset()
    assert len(reader.partitions(start, reader.latestOffset(start))) > 3
    query = Query(path)
    query.run()
    assert ids(query.rows) == [one for one in range(300) if one != 77]
    assert findings(query.rows) == [(0, 77, "record-checksum")]


# ---- whatever happens to the bytes --------------------------------------------------------------------------------------


def _damaged_anyhow(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    path = build_directory(
        tmp_path_factory.mktemp("stream") / "d", {0: 60}, per_segment=data.draw(st.sampled_from([7, 20, 60])), size=30
    )
    files = sorted((path / "0").iterdir())
    for _ in range(data.draw(st.integers(1, 4))):
        file = data.draw(st.sampled_from(files))
        raw = bytearray(file.read_bytes())
        place = data.draw(st.integers(128, max(128, len(raw) - 1)))
        match data.draw(st.sampled_from(["flip", "zero", "cut"])):
            case "flip" if place < len(raw):
                raw[place] ^= 1 << data.draw(st.integers(0, 7))
            case "zero":
                raw[place : place + 50] = bytes(len(raw[place : place + 50]))
            case _ if file == files[-1]:
                del raw[place:]
            case _:
                pass
        file.write_bytes(raw)
    query = Query(path, maxRecordsPerTrigger=str(data.draw(st.sampled_from([4, 17, 1000]))))
    query.run()
    dumped = list(dump_records(path))
    last = max((one.transaction_id for one in dumped if not isinstance(one, Finding)), default=-1)
    assert ids(query.rows) == [one.transaction_id for one in dumped if not isinstance(one, Finding)]
    told = [
        (0, one.transaction_id, one.code.value)
        for one in dumped
        if isinstance(one, Finding) and (one.transaction_id or 0) <= last
    ]
    assert _one_kind(findings(query.rows)) == _one_kind(told)


def _one_kind(told: list[tuple[int, int, str]]) -> list[tuple[int, int, str]]:
    """A length that leads beyond the batch is not looked at further, so that a batch never depends on what came later."""
    return [(number, first, code.replace("record-length", "record-checksum")) for number, first, code in told]


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.data())
def test_whatever_is_damaged_every_intact_record_and_every_finding_comes_once(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    _damaged_anyhow(tmp_path_factory, data)


@pytest.mark.long
@settings(max_examples=1000, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.data())
def test_whatever_is_damaged_many_times(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    _damaged_anyhow(tmp_path_factory, data)


@needs_golden
def test_directories_of_the_released_waltz_stream_as_they_are_dumped() -> None:
    assert GOLDEN is not None
    path = GOLDEN / "cluster-a" / "storage-1"
    query = Query(path, maxRecordsPerTrigger="700")
    query.run()
    expected = [one for one in dump_records(path) if not isinstance(one, Finding)]
    for number in {one.partition for one in expected}:
        assert [(r["transaction_id"], r["data"]) for r in query.rows if r["partition"] == number] == [
            (one.transaction_id, one.data) for one in expected if one.partition == number
        ]


def test_a_partition_at_rest_is_not_listed_again_and_what_happens_there_is_still_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = build_directory(tmp_path / "d", {0: 120, 1: 20})
    for number in (0, 1):
        os.utime(path / str(number), ns=(10**18, 10**18))
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
    with _segment(path, 100).open("ab") as file:
        file.write(make_records(1, first=120)[0].encode())
    assert reader.latestOffset(offset)["partitions"]["0"]["transaction_id"] == 120
    assert not listed
    write_segment(path / "0", make_records(3, first=121))
    assert reader.latestOffset(offset)["partitions"]["0"]["transaction_id"] == 123
    assert listed == ["0"]


def test_what_is_no_storage_directory_is_told(tmp_path: Path) -> None:
    for place in (tmp_path, tmp_path / "missing"):
        with pytest.raises(NotWaltzError, match=str(place)):
            open_stream(place).initialOffset()
