"""A stream from a directory: what counts, what is told, and that a batch is what lies between its offsets."""

from __future__ import annotations

import errno
import os
import random
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.builders import build_directory, make_records, write_segment
from tests.golden import GOLDEN, needs_golden
from tests.spark.streaming import (
    Query,
    as_row,
    damage,
    findings,
    ids,
    open_stream,
    read_batch,
    row_value,
    segment_path,
)
from waltzctl.engine.errors import (
    DamageError,
    DiskReadError,
    InvalidRequestError,
    NotWaltzError,
    SpecialFileError,
    StalePlanError,
)
from waltzctl.engine.findings import Finding
from waltzctl.engine.inspect.dump import dump_records
from waltzctl.engine.log import places
from waltzctl.engine.spark import stream_directory
from waltzctl.engine.spark.offsets import StreamOffset
from waltzctl.engine.spark.stream_places import PartitionPlaces, SegmentRange
from waltzctl.engine.storage.append import AppendSession, PendingRecord
from waltzctl.engine.storage.directory import StorageDirectory, StorageOptions
from waltzctl.formats.control import Layout, decode_control
from waltzctl.formats.segment import Record, index_name, segment_name


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
    with segment_path(path, 0).open("ab") as file:
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


@pytest.mark.turns(10)
@pytest.mark.parametrize("limit", ["1000", "30", "3", "1"])
def test_damage_in_front_of_records_is_told_once_and_costs_only_itself(tmp_path: Path, limit: str) -> None:
    path = build_directory(tmp_path / "d", {0: 120})
    for first, number in ((0, 0), (0, 17), (0, 18), (0, 49), (50, 50), (50, 75), (100, 118)):
        damage(path, first, number)
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
    damage(path, 0, 19)
    query = Query(path)
    query.run()
    assert ids(query.rows) == list(range(19))
    assert not findings(query.rows)
    with segment_path(path, 0).open("ab") as file:
        file.write(b"".join(one.encode() for one in make_records(3, first=20)))
    query.run()
    assert ids(query.rows) == [*range(19), 20, 21, 22]
    assert findings(query.rows) == [(0, 19, "record-checksum")]


@pytest.mark.turns(10)
@pytest.mark.parametrize("limit", ["1000", "9", "1"])
def test_a_missing_segment_is_a_gap_told_once(tmp_path: Path, limit: str) -> None:
    path = build_directory(tmp_path / "d", {0: 200})
    for first in (0, 100):
        segment_path(path, first).unlink()
        (path / "0" / index_name(first)).unlink()
    query = Query(path, maxRecordsPerTrigger=limit)
    query.run()
    assert ids(query.rows) == [*range(50, 100), *range(150, 200)]
    assert findings(query.rows) == [(0, 0, "segment-gap"), (0, 100, "segment-gap")]
    assert all(len(ids(batch)) <= int(limit) for batch in query.batches)


@pytest.mark.parametrize("limit", ["1000", "9"])
def test_a_segment_that_lost_its_end_is_told_once(tmp_path: Path, limit: str) -> None:
    path = build_directory(tmp_path / "d", {0: 150}, size=60)
    data = segment_path(path, 50).read_bytes()
    segment_path(path, 50).write_bytes(data[: 128 + 100 * 40 + 30])  # in the 41st of its records
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

    from waltzctl.formats.checksums import crc32

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
    damage(path, 0, 9)
    damage(path, 0, 10)
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


def test_partitions_that_the_directory_cannot_have_are_refused_as_in_a_batch(tmp_path: Path) -> None:
    path = build_directory(tmp_path / "d", {0: 5}, num_partitions=3)
    open_stream(path, partitions="0-2").initialOffset()  # two of them are not there yet
    said = "partition 3: the control file has partitions 0 to 2"
    with pytest.raises(InvalidRequestError, match=said):
        open_stream(path, partitions="1-3").initialOffset()
    with pytest.raises(InvalidRequestError, match=said):
        open_stream(path, partitions="1-3").prepareForTriggerAvailableNow()


def test_up_to_the_low_water_mark_nothing_above_it_is_read(tmp_path: Path) -> None:
    path = build_directory(tmp_path / "d", {0: 90}, local_low_water_mark=41)
    query = Query(path, upTo="low-water-mark", maxRecordsPerTrigger="10")
    query.run()
    assert ids(query.rows) == list(range(42))
    with StorageDirectory.open(path) as storage:
        AppendSession(storage, 0).append([PendingRecord(b"new")])
    query.run()
    assert ids(query.rows) == list(range(90))  # a new session began at 89; what it appended is not behind its mark


@pytest.mark.parametrize("limit", ["1000", "7"])
def test_what_is_lost_behind_the_last_record_is_one_row_once(tmp_path: Path, limit: str) -> None:
    path = build_directory(tmp_path / "d", {0: 40}, per_segment=10, local_low_water_mark=39)
    segment_path(path, 30).unlink()
    (path / "0" / index_name(30)).unlink()
    query = Query(path, maxRecordsPerTrigger=limit)
    query.run()
    query.restart()
    assert query.step() is None
    assert ids(query.rows) == list(range(30))
    assert [(row["transaction_id"], row["finding"], row["missing"]) for row in query.rows if row["finding"]] == [
        (30, "acknowledged-missing", 10)
    ]


@pytest.mark.parametrize("limit", ["1000", "4"])
@pytest.mark.parametrize(
    ("start", "segment", "told"),
    [
        (17, 10, [(17, 3)]), (19, 10, [(19, 1)]), (20, 10, []), (10, 10, [(10, 10)]),
        (3, 0, [(3, 7)]), (9, 0, [(9, 1)]), (10, 0, []), (0, 0, [(0, 10)]),
    ],
)  # fmt: skip
def test_a_query_that_begins_where_segments_are_missing_is_told_of_the_rest(
    tmp_path: Path, segment: int, start: int, told: list[tuple[int, int]], limit: str
) -> None:
    path = build_directory(tmp_path / "d", {0: 40}, per_segment=10)
    segment_path(path, segment).unlink()
    (path / "0" / index_name(segment)).unlink()
    query = Query(path, startingTransactions=f'{{"0": {start}}}', maxRecordsPerTrigger=limit)
    query.run()
    assert ids(query.rows) == list(range(max(start, segment + 10), 40))
    assert [(row["transaction_id"], row["missing"]) for row in query.rows if row["finding"]] == told
    if told:
        failing = Query(path, startingTransactions=f'{{"0": {start}}}', failOnDataLoss="true")
        with pytest.raises(DamageError, match="transactions are lost in 1 place"):
            failing.run()


@pytest.mark.parametrize("limit", ["1000", "4"])
@pytest.mark.parametrize(("start", "told"), [(4, (4, 6)), (7, (7, 3)), (9, (9, 1)), (10, None)])
@pytest.mark.parametrize("last", [False, True])
def test_a_query_that_begins_in_the_midst_of_damage_is_told_of_the_rest(
    tmp_path: Path, start: int, told: tuple[int, int] | None, last: bool, limit: str
) -> None:
    """Records 4 to 9 are overwritten by zeros: in the midst of a segment, or up to its end with another one behind."""
    path = build_directory(tmp_path / "d", {0: 30}, per_segment=10 if last else 30, size=20)
    raw = bytearray(segment_path(path, 0).read_bytes())
    raw[128 + 4 * 60 : 128 + 10 * 60] = bytes(6 * 60)
    segment_path(path, 0).write_bytes(raw)
    query = Query(path, startingTransactions=f'{{"0": {start}}}', maxRecordsPerTrigger=limit)
    query.run()
    assert ids(query.rows) == list(range(10, 30))
    found = [row for row in query.rows if row["finding"]]
    assert sum(row["missing"] for row in found) == (0 if told is None else told[1])
    assert min((row["transaction_id"] for row in found), default=None) == (None if told is None else told[0])


def test_a_gap_behind_what_was_told_as_lost_is_told(tmp_path: Path) -> None:
    path = build_directory(tmp_path / "d", {0: 40}, per_segment=10, local_low_water_mark=39)
    segment_path(path, 30).unlink()
    (path / "0" / index_name(30)).unlink()
    query = Query(path)
    query.run()
    write_segment(path / "0", make_records(5, first=45), first=45)
    query.restart()
    query.run()
    assert ids(query.rows) == [*range(30), *range(45, 50)]
    assert [(row["transaction_id"], row["missing"]) for row in query.rows if row["finding"]] == [(30, 10), (40, 5)]


@pytest.mark.parametrize("issued", [0, 5])
@pytest.mark.parametrize("restarted", [False, True])
def test_ids_that_were_told_as_lost_and_are_issued_again_stop_the_query(
    tmp_path: Path, issued: int, restarted: bool
) -> None:
    """Somebody gave up what was lost, and the partition goes on in its place: that would be left out without a word."""
    path = build_directory(tmp_path / "d", {0: 40}, per_segment=10, local_low_water_mark=39)
    segment_path(path, 30).unlink()
    (path / "0" / index_name(30)).unlink()
    query = Query(path)
    query.run()
    query.restart()
    assert query.step() is None
    given_up = build_directory(tmp_path / "given up", {0: 30}, local_low_water_mark=29)
    shutil.copy(given_up / "waltz-storage.ctl", path)
    if issued:
        write_segment(path / "0", make_records(issued, first=30, seed=7), first=30)
    if restarted:
        query.restart()
    with pytest.raises(
        StalePlanError, match=f"up to 39 were told as lost, and the partition ends at {29 + issued} now"
    ):
        query.step()
    beyond = Query(path, startingTransactions='{"0": 60}')  # as is asked for, it waits
    assert beyond.step() is None


def test_what_was_told_as_lost_and_is_there_again_does_not_stop_the_query(tmp_path: Path) -> None:
    path = build_directory(tmp_path / "d", {0: 40}, per_segment=10, local_low_water_mark=39)
    moved = [(one, tmp_path / one.name) for one in (segment_path(path, 30), path / "0" / index_name(30))]
    for here, there in moved:
        here.rename(there)
    query = Query(path)
    query.run()
    for here, there in moved:
        there.rename(here)
    query.restart()
    write_segment(path / "0", make_records(3, first=40), first=40)
    query.run()
    assert ids(query.rows) == [*range(30), 40, 41, 42]


def test_what_is_lost_in_addition_is_told_and_what_was_told_is_not_told_again(tmp_path: Path) -> None:
    path = build_directory(tmp_path / "d", {0: 40}, per_segment=10, local_low_water_mark=39)
    segment_path(path, 30).unlink()
    (path / "0" / index_name(30)).unlink()
    query = Query(path)
    query.run()
    later = build_directory(tmp_path / "later", {0: 45}, local_low_water_mark=44)
    shutil.copy(later / "waltz-storage.ctl", path)
    query.restart()
    query.run()
    assert ids(query.rows) == list(range(30))
    told = [(row["transaction_id"], row["missing"]) for row in query.rows if row["finding"]]
    assert told == [(30, 10), (40, 5)]


@pytest.mark.usefixtures("trusted")
def test_of_a_directory_at_rest_only_the_last_segment_is_looked_at_again(tmp_path: Path) -> None:
    path = build_directory(tmp_path / "d", {0: 30}, per_segment=10, size=20)
    query = Query(path, maxRecordsPerTrigger="4")
    query.step()
    with segment_path(path, 20).open("ab") as file:
        file.write(b"".join(one.encode() for one in make_records(3, first=30, size=20)))
    query.run()
    assert ids(query.rows) == list(range(33))
    assert not findings(query.rows)


def test_without_a_control_file_nothing_is_beyond_recovery(tmp_path: Path) -> None:
    path = build_directory(tmp_path / "d", {0: 9}, local_low_water_mark=5)
    (path / "waltz-storage.ctl").unlink()
    assert Query(path, upTo="low-water-mark").run() == []
    assert ids(Query(path).run()) == list(range(9))


def test_without_a_control_file_every_partition_is_read_that_verify_counts(tmp_path: Path) -> None:
    path = build_directory(tmp_path / "d", {0: 2})
    (path / "waltz-storage.ctl").unlink()
    (path / str(2**31 - 1)).mkdir()
    write_segment(path / str(2**31 - 1), make_records(3, partition=2**31 - 1), partition=2**31 - 1)
    for name in ("07", str(2**31)):
        shutil.copytree(path / "0", path / name)
    assert sorted((row["partition"], row["transaction_id"]) for row in Query(path).run()) == [
        (0, 0), (0, 1), (2**31 - 1, 0), (2**31 - 1, 1), (2**31 - 1, 2),
    ]  # fmt: skip


@pytest.mark.parametrize(("low", "local", "read"), [(41, 60, 42), (60, 41, 42), (41, 41, 42), (41, -1, 0), (-1, 41, 0)])
def test_only_what_both_marks_promise_is_beyond_recovery(tmp_path: Path, low: int, local: int, read: int) -> None:
    """Either mark may be the higher one: of a replica that is behind, or that was ahead when the session began."""
    path = build_directory(tmp_path / "d", {0: 90}, local_low_water_mark=0)
    control = decode_control((path / "waltz-storage.ctl").read_bytes())
    info = control.partitions[0]
    pair = [replace(one, low_water_mark=low, local_low_water_mark=local).sealed() for one in info.structs]
    changed = replace(control, partitions=(replace(info, structs=(pair[0], pair[1])),))
    (path / "waltz-storage.ctl").write_bytes(changed.encode())
    query = Query(path, upTo="low-water-mark")
    query.run()
    assert ids(query.rows) == list(range(read))


@pytest.mark.parametrize("kind", ["data", "header"])
def test_a_record_that_was_replaced_under_its_request_id_is_noticed(tmp_path: Path, kind: str) -> None:
    """The very record that the stream has read last; its id and its request id are the same."""
    records = make_records(20)
    path = build_directory(tmp_path / "d", {0: [records]})
    query = Query(path)
    query.run()
    old = records[-1]
    data = bytes(byte ^ 1 for byte in old.data) or b"x"
    new = Record.make(
        old.transaction_id, old.request_id, old.header ^ (kind == "header"), data if kind == "data" else old.data
    )
    assert (new.transaction_id, new.request_id) == (old.transaction_id, old.request_id)
    write_segment(path / "0", [*records[:-1], new, *make_records(1, first=20)])
    with pytest.raises(StalePlanError, match="transaction 19 is not the one that was read"):
        query.step()


def test_a_row_limit_of_spark_wins_over_the_option_and_all_available_means_all(tmp_path: Path) -> None:
    limits = pytest.importorskip("pyspark.sql.streaming.datasource", reason="PySpark 4.1 has no limits of its own")
    path = build_directory(tmp_path / "d", {0: 60})
    query = Query(path, maxRecordsPerTrigger="10")
    assert len(query.step(limits.ReadMaxRows(3)) or []) == 3
    assert len(query.step(limits.ReadMaxRows(10)) or []) == 10
    assert len(query.step(limits.ReadAllAvailable()) or []) == 47


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
    limit = data.draw(st.sampled_from([4, 17, 1000]))
    query = Query(path, maxRecordsPerTrigger=str(limit))
    query.run()
    assert all(len(ids(batch)) <= limit for batch in query.batches)
    dumped = list(dump_records(path))
    last = max((one.transaction_id for one in dumped if not isinstance(one, Finding)), default=-1)
    assert ids(query.rows) == [one.transaction_id for one in dumped if not isinstance(one, Finding)]
    told = [
        (0, one.transaction_id, one.code.value)
        for one in dumped
        if isinstance(one, Finding) and (one.transaction_id or 0) <= last
    ]
    behind = [one for one in findings(query.rows) if one[1] > last]
    assert [one[1] for one in behind] in ([], [last + 1]), "what is missing at the end is one row"
    assert _one_kind([one for one in findings(query.rows) if one[1] <= last]) == _one_kind(told)


def _one_kind(told: list[tuple[int, int, str]]) -> list[tuple[int, int, str]]:
    """A length that leads beyond the batch is not looked at further, so that a batch never depends on what came later."""
    return [(number, first, code.replace("record-length", "record-checksum")) for number, first, code in told]


@pytest.mark.turns(8)
@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_whatever_is_damaged_every_intact_record_and_every_finding_comes_once(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    _damaged_anyhow(tmp_path_factory, data)


@pytest.mark.long
@settings(max_examples=1000, suppress_health_check=[HealthCheck.function_scoped_fixture])
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


def test_what_is_no_storage_directory_is_told(tmp_path: Path) -> None:
    for place in (tmp_path, tmp_path / "missing"):
        with pytest.raises(NotWaltzError, match=str(place)):
            open_stream(place).initialOffset()


def _unexaminable(patch: pytest.MonkeyPatch, *paths: Path) -> None:
    """``stat`` of these paths fails: a disk or a file server does not answer."""
    hidden, look = {os.fspath(one) for one in paths}, os.stat

    def failing(path: Any, *given: Any, **named: Any) -> os.stat_result:
        if not isinstance(path, int) and os.fspath(path) in hidden:
            raise OSError(errno.EIO, os.strerror(errno.EIO), os.fspath(path))
        return look(path, *given, **named)

    patch.setattr(os, "stat", failing)


def _unlistable(patch: pytest.MonkeyPatch, directory: Path) -> None:
    """Neither ``listdir`` nor ``scandir`` of this directory works."""
    for name in ("listdir", "scandir"):
        patch.setattr(os, name, _refused(getattr(os, name), directory))


def _refused(look: Any, directory: Path) -> Any:
    def failing(path: Any = ".") -> Any:
        if not isinstance(path, int) and os.fspath(path) == os.fspath(directory):
            raise OSError(errno.EIO, os.strerror(errno.EIO), os.fspath(path))
        return look(path)

    return failing


def test_of_several_partitions_that_cannot_be_listed_the_first_one_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever order the directory lists them in: the message is the same at every try."""
    path = build_directory(tmp_path / "d", {0: 3, 2: 3, 10: 3})
    for number in (2, 10):
        _unlistable(monkeypatch, path / str(number))
    names = places.names
    for order in (sorted, lambda found: sorted(found, reverse=True)):
        monkeypatch.setattr(places, "names", lambda path, order=order: order(names(path)))
        with pytest.raises(DiskReadError, match=f"{path}/2:"):
            Query(path).run()


@pytest.fixture
def trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    """No listing of a directory is so new that it is not trusted."""
    monkeypatch.setattr(stream_directory, "_SETTLED", -1.0)


def _on_another_disk(path: Path, first: int, disk: Path) -> None:
    """A segment's files are links to another disk."""
    disk.mkdir()
    for file in (segment_path(path, first), path / "0" / index_name(first)):
        shutil.move(file, disk / file.name)
        file.symlink_to(disk / file.name)


@pytest.mark.usefixtures("trusted")
@pytest.mark.parametrize("first", [50, 100])
@pytest.mark.parametrize("limit", ["1000", "30"])
def test_a_file_that_cannot_be_examined_for_a_moment_becomes_no_gap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: int, limit: str
) -> None:
    """The query stops, as where the file cannot be read, and goes on when the disk answers."""
    path = build_directory(tmp_path / "d", {0: 150})
    query = Query(path, maxRecordsPerTrigger=limit)
    hidden = segment_path(path, first), path / "0" / index_name(first)
    with monkeypatch.context() as patch:
        _unexaminable(patch, *hidden)
        with pytest.raises(DiskReadError, match="Input/output error"):
            query.run()
    query.run()
    with monkeypatch.context() as patch:
        _unexaminable(patch, *hidden)
        query.restart()
        with pytest.raises(DiskReadError, match="Input/output error"):
            query.step()
    query.run()
    assert ids(query.rows) == list(range(150))
    assert not findings(query.rows)


@pytest.mark.usefixtures("trusted")
@pytest.mark.parametrize("limit", ["1000", "30"])
@pytest.mark.parametrize("first", [0, 100])
def test_a_last_file_on_a_disk_that_is_not_mounted_is_told_once_and_read_when_it_is(
    tmp_path: Path, first: int, limit: str
) -> None:
    """Also what the low-water mark proves may be in it: nothing of that is told as lost, and left out ever after."""
    path = build_directory(
        tmp_path / "d", {0: 120} if first else {0: 40}, local_low_water_mark=30 if first == 0 else 110
    )
    disk, away = tmp_path / "disk", tmp_path / "away"
    _on_another_disk(path, first, disk)
    disk.rename(away)
    query = Query(path, maxRecordsPerTrigger=limit)
    query.run()
    query.restart()
    query.run()
    assert ids(query.rows) == list(range(first))
    assert findings(query.rows) == [(0, first, "special-file")]
    assert all(row["missing"] is None for row in query.rows if row["finding"])
    away.rename(disk)
    query.run()
    query.restart()
    query.run()
    assert ids(query.rows) == list(range(120 if first else 40))
    assert findings(query.rows) == [(0, first, "special-file")]


@pytest.mark.usefixtures("trusted")
def test_a_disk_that_goes_and_comes_while_a_stream_runs(tmp_path: Path) -> None:
    """Nothing in the partition's directory changes: only what its links lead to."""
    path = build_directory(tmp_path / "d", {0: 120})
    disk, away = tmp_path / "disk", tmp_path / "away"
    _on_another_disk(path, 100, disk)
    query = Query(path, maxRecordsPerTrigger="110")
    assert ids(query.step() or []) == list(range(110))
    disk.rename(away)
    for _ in range(3):
        with pytest.raises(SpecialFileError, match="a link that leads nowhere"):
            query.step()
    away.rename(disk)
    query.run()
    assert ids(query.rows) == list(range(120))
    assert not findings(query.rows)


def test_a_last_file_that_is_whole_again_without_records_may_be_lost_again(tmp_path: Path) -> None:
    path = build_directory(tmp_path / "d", {0: 50})
    end = segment_path(path, 50)
    query = Query(path)
    query.run()
    for _ in range(2):
        os.mkfifo(end)
        query.run()
        end.unlink()
        query.run()
    assert ids(query.rows) == list(range(50))
    assert findings(query.rows) == [(0, 50, "special-file")] * 2


def test_a_last_file_that_is_none_ends_a_query_that_fails_on_loss(tmp_path: Path) -> None:
    path = build_directory(tmp_path / "d", {0: 50})
    os.mkfifo(segment_path(path, 50))
    query = Query(path, failOnDataLoss="true")
    with pytest.raises(DamageError, match="special-file"):
        query.run()


def test_something_at_the_end_takes_back_nothing_that_was_told_as_lost(tmp_path: Path) -> None:
    path = build_directory(tmp_path / "d", {0: 50}, local_low_water_mark=69)
    query = Query(path)
    query.run()
    os.mkfifo(segment_path(path, 50))
    query.run()
    segment_path(path, 50).unlink()
    write_segment(path / "0", make_records(30, first=50), partition=0)
    query.run()
    assert ids(query.rows) == [*range(50), *range(70, 80)]
    assert findings(query.rows) == [(0, 50, "acknowledged-missing")]


@pytest.mark.usefixtures("trusted")
@pytest.mark.parametrize("count", [40, 120])
def test_a_disk_that_goes_while_a_batch_is_planned_leaves_nothing_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    """The listing that is made anew does not have the batch's end any more: the batch would be shorter than its offsets say."""
    path = build_directory(tmp_path / "d", {0: count})
    disk, away = tmp_path / "disk", tmp_path / "away"
    _on_another_disk(path, 0 if count < 50 else 100, disk)
    ranges = PartitionPlaces.ranges

    def unmounted(places: PartitionPlaces, *given: Any) -> Iterator[SegmentRange]:
        if disk.exists():
            disk.rename(away)
        return ranges(places, *given)

    query = Query(path)
    with monkeypatch.context() as patch:
        patch.setattr(PartitionPlaces, "ranges", unmounted)
        with pytest.raises(StalePlanError):
            read_batch(query.reader, query.offset, query.reader.latestOffset(query.offset))
    away.rename(disk)
    query.run()
    assert ids(query.rows) == list(range(count))
    assert not findings(query.rows)


@pytest.mark.parametrize("mark", [20, 49, 50, 59])
def test_something_at_the_end_is_told_up_to_the_mark_where_that_is_behind(tmp_path: Path, mark: int) -> None:
    path = build_directory(tmp_path / "d", {0: 70}, local_low_water_mark=mark)
    segment_path(path, 50).unlink()
    os.mkfifo(segment_path(path, 50))
    query = Query(path, upTo="low-water-mark")
    query.run()
    assert ids(query.rows) == list(range(min(mark + 1, 50)))
    assert findings(query.rows) == [(0, 50, "special-file")] * (mark >= 50)


def test_a_partition_that_goes_behind_something_at_its_end_ends_the_query(tmp_path: Path) -> None:
    """Its disk is not there: it is no partition from which nothing was read, also where a batch's end leaves it out."""
    path = build_directory(tmp_path / "d", {0: 50, 1: 5}, layout=Layout.DOCUMENTED)
    os.mkfifo(segment_path(path, 50))
    query = Query(path)
    query.run()
    control = path / "waltz-storage.ctl"
    control.rename(tmp_path / "control")
    shutil.move(path / "0", tmp_path / "0")
    with pytest.raises(StalePlanError, match="partition 0: transaction 49 was read"):
        query.step()
    left = {**query.offset, "partitions": {"1": query.offset["partitions"]["1"]}}
    with pytest.raises(StalePlanError, match="partition 0: transaction 49 was read"):
        query.reader.partitions(query.offset, left)


@pytest.mark.parametrize("told", [True, False])
def test_available_now_begins_behind_what_was_told_as_lost_and_may_be_in_a_last_file_that_is_none(
    tmp_path: Path, *, told: bool
) -> None:
    """The end of such a query is fixed without a checkpoint, which is not behind it for that."""
    path = build_directory(tmp_path / "d", {0: 50}, local_low_water_mark=69 if told else 49)
    query = Query(path)
    query.run()
    os.mkfifo(segment_path(path, 50))
    for _ in range(2):
        query.restart()
        query.reader.prepareForTriggerAvailableNow()
        query.run()
    segment_path(path, 50).unlink()
    write_segment(path / "0", make_records(30, first=50), partition=0)
    query.restart()
    query.reader.prepareForTriggerAvailableNow()
    query.run()
    assert ids(query.rows) == [*range(50), *range(70 if told else 50, 80)]
    assert findings(query.rows)[0] == (0, 50, "acknowledged-missing" if told else "special-file")


@pytest.mark.parametrize("what", ["file", "directory"])
def test_a_partition_that_cannot_be_examined_ends_no_query_that_leaves_it_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """Its disk may stay as it is for days, while the others are read."""
    path = build_directory(tmp_path / "d", {0: 50, 1: 150}, layout=Layout.DOCUMENTED)
    whole, others = Query(path), Query(path, partitions="0")
    whole.run()
    with monkeypatch.context() as patch:
        if what == "file":
            _unexaminable(patch, segment_path(path, 100, 1))
        else:
            _unlistable(patch, path / "1")
        others.run()
        assert len(others.rows) == 50
        write_segment(path / "0", make_records(10, first=50), partition=0)
        others.run()
        whole.restart()
        with pytest.raises(DiskReadError, match="Input/output error"):
            whole.step()
        with pytest.raises(DiskReadError, match="Input/output error"):
            Query(path)
        with pytest.raises(DiskReadError, match="Input/output error"):
            read_batch(open_stream(path), StreamOffset().to_json(), whole.offset)
    whole.run()
    assert [ids(others.rows), ids(whole.rows)] == [list(range(60))] * 2
    assert ids(whole.rows, 1) == list(range(150))


@pytest.mark.usefixtures("trusted")
def test_two_disks_that_go_one_after_the_other_leave_nothing_out(tmp_path: Path) -> None:
    """The batch ends where the records did when the first one was gone: they are not lost because the second one goes."""
    path = build_directory(tmp_path / "d", {0: 120})
    disks = {first: tmp_path / f"disk-{first}" for first in (50, 100)}
    for first, disk in disks.items():
        _on_another_disk(path, first, disk)
    query = Query(path)
    disks[100].rename(tmp_path / "away-100")
    end = query.reader.latestOffset(query.offset)
    disks[50].rename(tmp_path / "away-50")
    for reader in (query.reader, open_stream(path)):  # as after a kill, too
        with pytest.raises(SpecialFileError, match="a link that leads nowhere"):
            read_batch(reader, query.offset, end)
    for first, disk in disks.items():
        (tmp_path / f"away-{first}").rename(disk)
    rows = read_batch(open_stream(path), query.offset, end)
    query.offset = end
    query.run()
    assert ids(rows + query.rows) == list(range(120))
    assert not findings(rows + query.rows)


@pytest.mark.usefixtures("trusted")
@pytest.mark.parametrize("when", ["before", "while"])
def test_a_disk_that_goes_before_a_batch_that_tells_of_a_loss_is_planned_adds_nothing_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    path = build_directory(tmp_path / "d", {0: 120}, local_low_water_mark=129)
    disk, away = tmp_path / "disk", tmp_path / "away"
    _on_another_disk(path, 100, disk)
    found = PartitionPlaces.at_or_before

    def unmounted(places: PartitionPlaces, *given: Any) -> Any:
        if disk.exists():
            disk.rename(away)
        return found(places, *given)

    query = Query(path)
    end = query.reader.latestOffset(query.offset)
    if when == "before":
        disk.rename(away)
    with monkeypatch.context() as patch:
        patch.setattr(PartitionPlaces, "at_or_before", unmounted)
        with pytest.raises(SpecialFileError, match="a link that leads nowhere"):
            read_batch(query.reader, query.offset, end)
    away.rename(disk)
    query.run()
    assert ids(query.rows) == list(range(120))
    assert findings(query.rows) == [(0, 120, "acknowledged-missing")]
