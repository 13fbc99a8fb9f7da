"""stats over directories: what it counts is what dump shows, however it is cut, damaged or changed on the way."""

from __future__ import annotations

import os
import random
from collections import Counter
from pathlib import Path

import pytest

from tests.builders import CREATED, build_directory, digest
from tests.cli.damage import damage_record, flip, index_of, records_of, segment_of, tear_tail
from tests.golden import golden_directories, needs_golden
from tests.inspect.helpers import age
from tests.stats.support import SMALL_PART, PicklingCrew, count, dumped, same, set_created, set_times
from waltzctl.engine.errors import InvalidRequestError, NotWaltzError
from waltzctl.engine.log.places import place
from waltzctl.engine.stats import gathering
from waltzctl.engine.stats.axes import Interval
from waltzctl.engine.stats.report import StatsReport
from waltzctl.engine.stats.stats import stats
from waltzctl.engine.stats.stats_options import StatsOptions
from waltzctl.formats.request_id import RequestId
from waltzctl.formats.segment import HEADER_SIZE, SEGMENT_HEADER, Record

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures"
EXAMPLES = sorted(path.name for path in FIXTURES.iterdir() if (path / "storage").is_dir())
HOUR = 3_600_000


def agrees_with_dump(report: StatsReport, *paths: Path) -> None:
    """Every number that dump's records give, and every finding, in the same order."""
    records, findings = dumped(*paths)
    assert report.records == len(records)
    assert report.bytes == sum(record.size for record in records)
    assert [one for one in report.findings if one.code != "data-checksum"] == [
        one for one in findings if one.code != "data-checksum"
    ]
    places = [(one.code, one.path, one.transaction_id, one.offset, one.length) for one in report.findings]
    assert places == [(one.code, one.path, one.transaction_id, one.offset, one.length) for one in findings]
    by_client = Counter(record.request_id.client for record in records)
    assert [one.records for one in report.clients] == sorted(by_client.values(), reverse=True)[: len(report.clients)]
    assert all(by_client[one.client] == one.records for one in report.clients)
    assert report.client_ranking.known == len(by_client)
    lengths = Counter(record.data_length.bit_length() for record in records)
    assert {one.number: one.records for one in report.size_classes} == dict(lengths)
    headers = Counter(record.header for record in records)
    assert report.header_ranking.known == len(headers)
    if len({one.partition for one in report.partitions}) == len(report.partitions):
        for partition in report.partitions:
            ids = [one.transaction_id for one in records if one.partition == partition.partition]
            assert partition.records == len(ids)
            assert partition.repeated == len(ids) - len(set(ids))
            assert (partition.first_transaction_id, partition.last_transaction_id) == (
                (min(ids), max(ids)) if ids else (None, None)
            )
            end = max(ids, default=-1) + 1
            for one in findings:  # what was behind the last record, as far as dump knows
                if one.partition == partition.partition and (one.transaction_id or 0) >= max(ids, default=-1) + 1:
                    end = max(end, one.transaction_id or 0) + (one.missing or 0) if one.missing else end
            missing = set(range(end)) - set(ids)
            assert partition.missing == len(missing)
            named = {n for gap in report.gaps if gap.place == partition.place for n in range(gap.first, gap.last + 1)}
            assert named == missing
    assert sum(one.records for one in report.id_buckets) == report.records
    assert sum(one.bytes for one in report.id_buckets) == report.bytes
    for by in ("partition", "size-class"):
        timed = sum(one.records for one in report.time_buckets if one.by == by)
        assert timed == report.records - report.untimed_records == sum(one.timed_records for one in report.partitions)


@pytest.mark.turns(8)
@pytest.mark.parametrize("name", EXAMPLES)
def test_every_example_of_damage_is_counted_as_dump_shows_it(tmp_path: Path, name: str) -> None:
    storage = FIXTURES / name / "storage"
    before = digest(storage)
    report = count(storage)
    agrees_with_dump(report, storage)
    assert digest(storage) == before
    executor = PicklingCrew()
    parts = stats([storage], StatsOptions(part=SMALL_PART), executor)
    assert same(parts) == same(report)


@pytest.mark.turns(8)
@needs_golden
@pytest.mark.parametrize("directory", golden_directories(), ids=lambda path: path.name)
def test_directories_of_the_release(directory: Path) -> None:
    report = count(directory, threads=2)
    agrees_with_dump(report, directory)
    assert same(count(directory, part=5000)) == same(report)


@pytest.mark.turns(10)
@pytest.mark.parametrize("seed", range(12))
def test_random_damage_never_fails_and_is_cut_like_dump_sees_it(tmp_path: Path, seed: int) -> None:
    source = random.Random(seed)
    storage = build_directory(tmp_path / "s", {0: 90, 1: 40}, per_segment=45, local_low_water_mark=5)
    for partition, first in ((0, 0), (0, 45), (1, 0)):
        set_created(segment_of(storage, partition, first), CREATED + first * 1000)
        for path in (segment_of(storage, partition, first), index_of(storage, partition, first)):
            size = path.stat().st_size
            for _ in range(source.choice([0, 1, 1, 3])):
                flip(path, source.randrange(size), source.randrange(8))
            if source.random() < 0.2:
                os.truncate(path, source.randrange(size))
    if source.random() < 0.2:
        index_of(storage, 0, 45).unlink()
    age(storage)
    report = count(storage)
    agrees_with_dump(report, storage)
    for part in (SMALL_PART, 1000, 3000):
        assert same(stats([storage], StatsOptions(part=part), PicklingCrew())) == same(report)


def test_a_sound_segment_is_read_in_parts_and_a_damaged_one_again_as_a_whole(tmp_path: Path) -> None:
    storage = age(build_directory(tmp_path / "s", {0: [[*segment] for segment in _records(200, 100)]}))
    sound = PicklingCrew()
    stats([storage], StatsOptions(part=2000), sound)
    parts = sound.rounds[0]
    assert parts == 8
    assert len(sound.rounds) == 1
    damage_record(segment_of(storage, 0, 100), 50)
    index = bytearray(index_of(storage, 0, 0).read_bytes())
    index[HEADER_SIZE + 8 * 20 :] = b""
    index_of(storage, 0, 0).write_bytes(bytes(index))
    age(storage)
    agrees_with_dump(stats([storage], StatsOptions(part=2000), PicklingCrew()), storage)


def test_a_record_that_hides_another_one_is_counted_once_where_parts_meet(tmp_path: Path) -> None:
    """The index is made to prove a record inside another record's data: the parts do not join, and the whole is read."""
    inner = Record.make(1, RequestId(9, 1, 0, 1), 0, b"within").encode()
    rows = [Record.make(0, RequestId(1, 1, 0, 0), 0, b"x" * 10 + inner + b"y" * 400)]
    rows += [Record.make(number, RequestId(1, 1, 0, number), 0, b"z" * 40) for number in range(1, 4)]
    storage = build_directory(tmp_path / "s", {0: [rows]})
    index = bytearray(index_of(storage).read_bytes())
    index[HEADER_SIZE + 8 : HEADER_SIZE + 16] = (HEADER_SIZE + 36 + 10).to_bytes(8, "big")
    index_of(storage).write_bytes(bytes(index))
    age(storage)
    executor = PicklingCrew()
    report = stats([storage], StatsOptions(part=300), executor)
    assert len(executor.rounds) == 2
    agrees_with_dump(report, storage)
    assert [one.client for one in report.clients] == [1]


def _records(count: int, per_segment: int) -> list[list[Record]]:
    rows = [Record.make(n, RequestId(n % 7, 1 + n // 90, 0, n), n % 3, bytes(n % 60)) for n in range(count)]
    return [rows[at : at + per_segment] for at in range(0, count, per_segment)]


@pytest.mark.parametrize("harm", ["cut", "removed", "replaced"])
def test_a_segment_that_changes_between_its_parts_is_counted_as_it_is_then(tmp_path: Path, harm: str) -> None:
    storage = age(build_directory(tmp_path / "s", {0: _records(200, 200), 1: 10}))
    path, index = segment_of(storage), index_of(storage)
    offset = records_of(path)[60][0]

    def change(number: int) -> None:
        if number != 3:
            return
        if harm == "cut":
            os.truncate(index, HEADER_SIZE + 8 * 60)
            os.truncate(path, offset)
        elif harm == "removed":
            path.unlink()
            index.unlink()
        else:
            other = build_directory(tmp_path / "other", {0: _records(200, 200)[:1]})
            os.replace(segment_of(other), path)
        age(storage)

    report = stats([storage], StatsOptions(part=1500), PicklingCrew(change))
    agrees_with_dump(report, storage)


def test_records_are_placed_between_the_creation_of_their_segment_and_of_the_next(tmp_path: Path) -> None:
    storage = build_directory(tmp_path / "s", {0: 100}, per_segment=50, size=60)
    noon = CREATED - CREATED % HOUR
    set_times(storage, 0, [noon, noon + 2 * HOUR], noon + 3 * HOUR)
    report = count(storage, bucket=3600.0)
    partition = report.partitions[0]
    assert report.width == HOUR
    assert partition.interval == Interval(noon, noon + 3 * HOUR)
    assert partition.seconds == 3 * 3600
    assert partition.records_per_second == 100 / (3 * 3600)
    series = [(one.start, one.records, one.bytes) for one in report.time_buckets if one.by == "partition"]
    assert series == [(noon, 25, 2500), (noon + HOUR, 25, 2500), (noon + 2 * HOUR, 50, 5000)]
    assert report.untimed == ()


def test_a_clock_that_went_back_is_said_and_hides_no_record(tmp_path: Path) -> None:
    storage = build_directory(tmp_path / "s", {0: 200}, per_segment=50)
    set_times(storage, 0, [CREATED, CREATED + 50 * HOUR, CREATED + HOUR, CREATED + 60 * HOUR], CREATED + 61 * HOUR)
    report = count(storage)
    assert [one.segment for one in report.untimed] == [50, 100]
    assert report.untimed_records == 100
    assert report.records == 200
    assert report.partitions[0].timed_records == 100
    assert report.status == "clean"
    agrees_with_dump(report, storage)


def test_a_width_of_ones_own_is_made_wider_where_there_would_be_too_many(tmp_path: Path) -> None:
    storage = build_directory(tmp_path / "s", {0: 50}, per_segment=50)
    set_times(storage, 0, [CREATED], CREATED + 1000 * HOUR)
    assert count(storage, bucket=3600.0).width == HOUR
    assert count(storage, bucket=1.0).width == 1_000_000
    assert len([one for one in count(storage, bucket=1.0).time_buckets if one.by == "partition"]) <= 50


def test_what_is_named_twice_counts_once_and_replicas_add_up(tmp_path: Path) -> None:
    one = age(build_directory(tmp_path / "a", {0: 30, 1: 5}))
    two = age(build_directory(tmp_path / "b", {0: 30, 1: 5}))
    assert same(count(one, one, segment_of(one))) == same(count(one))
    both = count(one, two, top=1000)
    assert both.records == 70
    assert [(part.place, part.partition, part.path.parent.name) for part in both.partitions] == [
        (0, 0, "a"),
        (1, 1, "a"),
        (2, 0, "b"),
        (3, 1, "b"),
    ]
    assert max(client.partitions for client in both.clients) <= 2
    assert count(one, partitions=[1]).records == 5


def test_a_single_segment_is_no_gap_but_a_partition_that_begins_late_is(tmp_path: Path) -> None:
    storage = age(build_directory(tmp_path / "s", {0: 90}, per_segment=30))
    single = count(segment_of(storage, 0, 30))
    assert (single.records, single.gaps) == (30, ())
    for first in (0, 60):
        segment_of(storage, 0, first).unlink()
        index_of(storage, 0, first).unlink()
    (gap,) = count(storage).gaps
    assert (gap.first, gap.last, gap.cause) == (0, 29, "segment-gap")


def test_a_gap_names_the_finding_that_it_comes_from(tmp_path: Path) -> None:
    storage = build_directory(tmp_path / "s", {0: 120}, per_segment=40, local_low_water_mark=3)
    damage_record(segment_of(storage, 0, 0), 7)
    segment_of(storage, 0, 40).unlink()
    index_of(storage, 0, 40).unlink()
    tear_tail(segment_of(storage, 0, 80))
    report = count(age(storage))
    assert [(gap.first, gap.last, gap.cause) for gap in report.gaps] == [
        (7, 7, "record-checksum"),
        (40, 79, "segment-gap"),
    ]
    assert [one.code for one in report.findings] == ["record-checksum", "segment-gap", "torn-tail"]
    assert report.partitions[0].last_transaction_id == 118


def test_the_first_clients_come_by_records_then_bytes_then_id(tmp_path: Path) -> None:
    rows = [Record.make(n, RequestId(client, 1, 0, n), 0, bytes(size))
            for n, (client, size) in enumerate([(5, 1), (4, 9), (3, 9), (8, 0), (8, 0)])]  # fmt: skip
    storage = build_directory(tmp_path / "s", {0: [rows]})
    assert [one.client for one in count(storage).clients] == [8, 3, 4, 5]
    report = count(storage, top=2)
    assert [one.client for one in report.clients] == [8, 3]
    assert (report.client_ranking.known, report.client_ranking.exact) == (4, True)
    assert [one.client for one in count(storage, top=1).clients] == [8]


def test_named_clients_have_a_series_and_the_others_are_counted(tmp_path: Path) -> None:
    """Client 6 writes in the third hour, where a bucket has the number of no client and a client that of no bucket."""
    noon = CREATED - CREATED % HOUR
    rows = [Record.make(n, RequestId(6 if n >= 60 else n % 2, 1, 0, n), 0, bytes(60)) for n in range(90)]
    storage = build_directory(tmp_path / "s", {0: [rows[at : at + 30] for at in (0, 30, 60)]})
    set_times(storage, 0, [noon, noon + HOUR, noon + 2 * HOUR], noon + 3 * HOUR)
    report = count(storage, bucket=3600.0, top=2)
    assert [one.client for one in report.clients] == [0, 1]
    series = [(one.which, one.start, one.records) for one in report.time_buckets if one.by == "client"]
    assert series == [(client, noon + hour * HOUR, 15) for client in (0, 1) for hour in (0, 1)]
    assert (report.client_series.known, report.client_series.exact) == (3, True)
    fewer = count(storage, bucket=2 * 3600.0, top=3)
    assert fewer.client_series.known == 3
    assert sum(one.records for one in fewer.time_buckets if one.by == "client") == 90


def test_a_segment_by_itself_lasts_until_its_file_was_changed(tmp_path: Path) -> None:
    storage = build_directory(tmp_path / "s", {0: 30})
    set_times(storage, 0, [CREATED], CREATED + HOUR)
    assert count(segment_of(storage)).partitions[0].interval == Interval(CREATED, CREATED + HOUR)


def test_places_beyond_those_listed_are_counted_and_a_torn_end_is_always_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gathering, "MAX_LISTED", 2)
    storage = build_directory(tmp_path / "s", {0: 60}, per_segment=60, local_low_water_mark=3)
    for record in (5, 10, 15, 20, 25):
        damage_record(segment_of(storage), record)
    tear_tail(segment_of(storage))
    findings = [(one.code, one.transaction_id) for one in count(age(storage)).findings]
    assert findings[:2] == [("record-checksum", 5), ("record-checksum", 10)]
    assert findings[2][0] == "torn-tail"
    (more,) = [one for one in count(storage).findings if "more places" in one.message]
    assert more.message.startswith("3 more places are damaged")


def test_an_empty_directory_counts_nothing(tmp_path: Path) -> None:
    report = count(build_directory(tmp_path / "s", {0: 0}, num_partitions=2))
    assert (report.records, report.bytes, report.clients, report.time_buckets, report.gaps) == (0, 0, (), (), ())
    assert report.status == "clean"


def test_what_cannot_be_meant_is_refused(tmp_path: Path) -> None:
    storage = build_directory(tmp_path / "s", {0: 1})
    for options in ({"top": 0}, {"top": 10_001}, {"bucket": 0.0}, {"bucket": -1.0}, {"bucket": 1e11}):
        with pytest.raises(InvalidRequestError):
            count(storage, **options)
    with pytest.raises(InvalidRequestError):
        count(storage, partitions=[7])
    with pytest.raises(NotWaltzError):
        count(tmp_path / "nothing")


def test_objects_behind_a_url_are_counted_like_files(tmp_path: Path) -> None:
    fsspec = pytest.importorskip("fsspec", reason="reading URLs needs fsspec")
    storage = age(build_directory(tmp_path / "s", {0: 120, 1: 30}))
    damage_record(segment_of(storage), 7)
    set_times(storage, 0, [CREATED, CREATED + HOUR, CREATED + 2 * HOUR], CREATED + 3 * HOUR)
    memory = fsspec.filesystem("memory")
    memory.put(str(storage), "/stats-node", recursive=True)
    try:
        far, here = count(place("memory://stats-node"), part=1000), count(storage)
        assert (far.records, far.bytes, far.clients) == (here.records, here.bytes, here.clients)
        assert [one.message for one in far.findings] == [one.message for one in here.findings]
        assert far.gaps == here.gaps
    finally:
        memory.rm("/stats-node", recursive=True)


def test_the_times_of_a_header_that_does_not_belong_here_count_for_nothing(tmp_path: Path) -> None:
    storage = build_directory(tmp_path / "s", {0: 100}, per_segment=50)
    set_times(storage, 0, [CREATED, CREATED + HOUR], CREATED + 2 * HOUR)
    flip(segment_of(storage), SEGMENT_HEADER.offset_of("cluster_key"))
    report = count(age(storage))
    assert "segment-key" in [one.code for one in report.findings]
    assert [(one.segment, one.reason) for one in report.untimed if one.segment == 0] == [(0, "its header is damaged")]
    agrees_with_dump(report, storage)
