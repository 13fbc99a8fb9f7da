"""Wherever a storage is cut into tasks, the rows are those of an undivided dump: each record once, all damage, nothing else."""

from __future__ import annotations

import errno
import os
import pickle
import random
import shutil
import struct
from operator import attrgetter
from pathlib import Path, PurePath
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql.datasource import CaseInsensitiveDict

from tests.builders import build_directory, make_records
from tests.counted import Counted
from tests.golden import golden_directories, needs_golden
from tests.inspect.helpers import age, cut, flip, idx, seg
from tests.spark.reading import dump_of, dumped, examples, in_order, packets, read
from waltzctl.engine.durable import disk
from waltzctl.engine.errors import DamageError, DiskReadError, InvalidRequestError, NotWaltzError
from waltzctl.engine.findings import Finding
from waltzctl.engine.inspect.dump import dump_records
from waltzctl.engine.inspect.read_limits import ReadLimits
from waltzctl.engine.inspect.segment_checks import SegmentCheck
from waltzctl.engine.inspect.segment_job import SegmentJob
from waltzctl.engine.log import places
from waltzctl.engine.scan import resync, scanner
from waltzctl.engine.spark import batch_read, header_order, segment_parts
from waltzctl.engine.spark.batch_read import reader
from waltzctl.engine.spark.splits import FLAT, SegmentPart, pack, parts_for
from waltzctl.engine.spark.view_schemas import pick, spark_schema
from waltzctl.formats.control import CONTROL_FILE_NAME
from waltzctl.formats.request_id import RequestId
from waltzctl.formats.segment import HEADER_SIZE, Record, encode_records, segment_name

SIZES = ("128MiB", "777", "300")


@pytest.mark.turns(10)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("storage", examples(), ids=lambda path: path.parent.name)
def test_the_rows_are_those_of_a_dump_whatever_the_size_of_a_split(storage: Path, size: str) -> None:
    assert in_order(read(storage, splitSize=size)) == dump_of(storage)


@pytest.mark.parametrize("size", SIZES)
def test_of_bytes_whose_search_was_given_up_nothing_is_called_missing_in_the_rows_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: str
) -> None:
    storage = build_directory(tmp_path / "s", {0: 30}, per_segment=10, size=20)
    os.truncate(seg(storage, 0, 10), HEADER_SIZE + 60 * 5)
    with seg(storage, 0, 10).open("ab") as out:
        out.write(bytes([0xA5] * 300))
    idx(storage, 0, 10).unlink()
    monkeypatch.setattr(scanner, "BUDGET_BASE", 0)
    monkeypatch.setattr(scanner, "BUDGET_PER_BYTE", 0)
    rows = read(age(storage), splitSize=size)
    assert [row["finding"] for row in rows if row["finding"] is not None] == ["record-length"]
    assert in_order(rows) == in_order(dumped(storage))


@pytest.mark.turns(8)
@pytest.mark.parametrize("index", [True, False])
@pytest.mark.parametrize("hurt", [None, *range(10)])
def test_a_gap_behind_a_segment_whose_last_part_has_no_record_of_its_own_is_told(
    tmp_path: Path, hurt: int | None, index: bool
) -> None:
    """The part before it reads its bytes as well (damage at the border, a large record, ids behind the end)."""
    storage = build_directory(tmp_path / "s", {0: 30}, per_segment=10, size=20)
    for path in (seg, idx):
        path(storage, 0, 10).unlink()
    if hurt is not None:
        flip(seg(storage, 0, 0), HEADER_SIZE + 60 * hurt + 45)
    if not index:
        idx(storage, 0, 0).unlink()
    for size in (100, 150, 300):
        assert in_order(read(age(storage), splitSize=size)) == in_order(dumped(storage))
        for first, last in ((8, 15), (9, None), (10, 19), (15, None), (0, 9)):
            given = {"minTransactionId": first} | ({} if last is None else {"maxTransactionId": last})
            told = [(row["transaction_id"], row["missing"]) for row in read(storage, splitSize=size, **given)]
            found = dump_records(storage, first=first, last=last)
            lost = [(one.transaction_id, one.missing) for one in found if isinstance(one, Finding) and one.missing]
            assert [one for one in told if one[1]] == lost, (size, first, last)


@pytest.mark.turns(8)
@pytest.mark.parametrize("size", ["128MiB", "300"])
@pytest.mark.parametrize(
    "held",
    [
        (10, 0, 20, 30),
        (0, 20, 10, 30),
        (0, 30, 20, 10),
        (30, 20, 10, 0),
        (0, None, 20, 10),  # the second one has the name behind the last one
        (0, 20, 10, None),
        (30, 10, None, 0),  # a gap behind what is the last one by its name
        (30, 10, None, None),
        (0, 30, 10, 10),
        (0, 0, 20, 10),
        (20, 30, 0, 20),
        (10, 20, 0, 10),  # an overlap of two that are no neighbours by their names
    ],
    ids=str,
)
def test_segments_of_as_many_records_under_other_names_tell_the_gaps_of_a_dump(
    tmp_path: Path, size: str, held: tuple[int | None, ...]
) -> None:
    """What the names and sizes say is right, and what lies in them begins elsewhere: `held` is what each of them holds."""
    storage = build_directory(tmp_path / "s", {0: 40}, per_segment=10, size=20)
    contents = {first: [path(storage, 0, first).read_bytes() for path in (seg, idx)] for first in (0, 10, 20, 30)}
    for name, first in zip(contents, held, strict=True):
        for number, path in enumerate((seg, idx)):
            path(storage, 0, name).unlink()
            if first is not None:
                path(storage, 0, name).write_bytes(contents[first][number])
    rows = read(age(storage), splitSize=size)
    assert in_order(rows) == in_order(dumped(storage))
    if None not in held and len({*held}) == 4:
        assert {row["finding"] for row in rows} == {None, "segment-name"}
        with pytest.raises(DamageError) as told:
            read(storage, splitSize=size, failOnDataLoss=True)
        assert "segment-gap" not in str(told.value)
        assert "segment-overlap" not in str(told.value)


def test_segments_under_other_names_are_looked_through_once_however_many_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of thousands asks what lies beside it."""
    firsts = [*range(0, 1000, 10)]
    random.Random(1).shuffle(firsts)
    jobs = Counted(SegmentJob(tmp_path, first) for first in firsts)
    jobs.handed = 0
    monkeypatch.setattr(header_order, "_by_headers", lambda job: jobs)
    order = header_order.HeaderOrder()
    for number, job in enumerate(tuple.__iter__(jobs)):
        beside = order.neighbours(job)
        assert beside is not None
        assert beside.in_front == (jobs[number - 1] if number else None)
        assert beside.behind == (jobs[number + 1] if number + 1 < len(jobs) else None)
        assert order.last_by_name(job).first == 990
        order.joins_by_name(job, ReadLimits())
    assert order.neighbours(SegmentJob(tmp_path, 5)) is None
    assert jobs.handed <= 3 * len(jobs)


@pytest.mark.turns(8)
@pytest.mark.parametrize("storage", examples(), ids=lambda path: path.parent.name)
def test_the_rows_are_those_of_a_dump_without_any_index(storage: Path, tmp_path: Path) -> None:
    shutil.copytree(storage, tmp_path / "storage")
    for index in (tmp_path / "storage").glob("*/*.idx"):
        index.unlink()
    age(tmp_path / "storage")
    assert in_order(read(tmp_path / "storage", splitSize="500")) == in_order(dumped(tmp_path / "storage"))


@pytest.mark.turns(8)
@needs_golden
@pytest.mark.parametrize("size", ["128MiB", "50KiB"])
@pytest.mark.parametrize("storage", golden_directories(), ids=lambda path: path.name)
def test_the_rows_of_released_data_are_those_of_a_dump(storage: Path, size: str) -> None:
    assert in_order(read(storage, splitSize=size)) == in_order(dumped(storage))


@pytest.fixture
def short_sight(monkeypatch: pytest.MonkeyPatch) -> None:
    """Searches look and follow for hundreds of bytes instead of for megabytes, so that small files exercise them.

    What convinces a search for a part convinces that behind damage as well: both have the same measure.
    """
    monkeypatch.setattr(segment_parts, "LOOKBACK", 600)
    for module in (segment_parts, resync):
        monkeypatch.setattr(module, "LOOKAHEAD", 1500)


def hostile_records(count: int, seed: int) -> list[Record]:
    """Records of which some hold, as their data, records that stand elsewhere in the segment, or would."""
    source = random.Random(seed)
    plain = make_records(count, seed=seed)
    records = []
    for record in plain:
        data = record.data
        if source.random() < 0.15:
            begin = source.randrange(count)
            data, _ = encode_records(plain[begin : begin + source.randrange(1, 6)])
            data = source.randbytes(source.randrange(0, 9)) + data[:1200]
        records.append(Record.make(record.transaction_id, record.request_id, record.header, data))
    return records


CASES = {
    "seed": st.integers(0, 10**6),
    "size": st.sampled_from([400, 900, 2000, 5000]),
    "index": st.sampled_from(["right", "none", "short", "shifted", "noise"]),
    "hurt": st.lists(st.tuples(st.sampled_from(["bit", "zeros", "length", "cut out"]), st.floats(0, 1)), max_size=4),
}
BOUNDED = {"deadline": None, "suppress_health_check": [HealthCheck.function_scoped_fixture]}


@pytest.mark.turns(12)
@settings(max_examples=25, **BOUNDED)
@given(**CASES)
def test_hostile_and_damaged_segments_have_the_rows_of_a_dump(
    short_sight: None, tmp_path_factory: pytest.TempPathFactory, **case: Any
) -> None:
    hostile_case(tmp_path_factory, **case)


@pytest.mark.long
@settings(max_examples=2000, **BOUNDED)
@given(**CASES)
def test_many_hostile_and_damaged_segments_have_the_rows_of_a_dump(
    short_sight: None, tmp_path_factory: pytest.TempPathFactory, **case: Any
) -> None:
    hostile_case(tmp_path_factory, **case)


def hostile_case(
    tmp_path_factory: pytest.TempPathFactory, seed: int, size: int, index: str, hurt: list[tuple[str, float]]
) -> None:
    storage = tmp_path_factory.mktemp("storage")
    build_directory(storage, {0: [hostile_records(120, seed)]})
    data, entries = seg(storage, 0, 0), idx(storage, 0, 0)
    spoil_index(entries, index, seed)
    content = bytearray(data.read_bytes())
    for kind, where in hurt:
        at = HEADER_SIZE + int(where * (len(content) - HEADER_SIZE - 1))
        if kind == "bit":
            content[at] ^= 4
        elif kind == "zeros":
            content[at : at + 200] = bytes(len(content[at : at + 200]))
        elif kind == "length":
            content[at : at + 4] = struct.pack(">i", 2**31 - 1)[: len(content) - at]
        else:
            del content[at : at + 150]
    data.write_bytes(content)
    age(storage)
    assert in_order(read(storage, splitSize=size)) == in_order(dumped(storage))
    shutil.rmtree(storage)


def spoil_index(path: Path, how: str, seed: int) -> None:
    content = path.read_bytes()
    head, body = content[:HEADER_SIZE], content[HEADER_SIZE:]
    if how == "none":
        path.unlink()
    elif how == "short":
        path.write_bytes(head + body[: len(body) // 16 * 8])
    elif how == "shifted":
        path.write_bytes(head + body[8:] + body[-8:])
    elif how == "noise":
        path.write_bytes(head + random.Random(seed).randbytes(len(body)))


def test_a_large_segment_without_index_is_cut_by_search(short_sight: None, tmp_path: Path) -> None:
    storage = build_directory(tmp_path / "s", {0: [make_records(400, size=60)]})
    idx(storage, 0, 0).unlink()
    age(storage)
    tasks = packets(storage, splitSize=4000, columns="transaction_id")
    assert len(tasks) == 10
    assert all(30 <= len(task) <= 50 for task in tasks)
    assert [row["transaction_id"] for task in tasks for row in task] == list(range(400))


def test_a_large_segment_with_an_index_is_cut_into_equal_parts(tmp_path: Path) -> None:
    storage = build_directory(tmp_path / "s", {0: [make_records(400, size=60)]})
    age(storage)
    tasks = packets(storage, splitSize=4000, columns="transaction_id")
    assert [len(task) for task in tasks] == [40] * 10


def test_a_search_is_not_taken_in_by_records_inside_a_record(short_sight: None, tmp_path: Path) -> None:
    """The last part begins inside a record that holds a dozen records with ids that come next."""
    plain = make_records(60, size=30)
    inner, _ = encode_records(make_records(14, first=31, size=30, seed=9))
    records = [
        Record.make(one.transaction_id, one.request_id, 0, inner) if one.transaction_id == 30 else one for one in plain
    ]
    storage = build_directory(tmp_path / "s", {0: [records]})
    idx(storage, 0, 0).unlink()
    age(storage)
    for size in (700, 1100, 1900, 2500):
        assert in_order(read(storage, splitSize=size)) == in_order(dumped(storage))


def test_one_record_larger_than_many_splits_is_read_once(tmp_path: Path) -> None:
    records = make_records(5, size=20)
    records[2] = Record.make(2, RequestId(1, 1, 0, 2), 0, bytes(9000))
    storage = build_directory(tmp_path / "s", {0: [records]})
    for present in (True, False):
        idx(storage, 0, 0).unlink(missing_ok=present) if not present else None
        age(storage)
        assert in_order(read(storage, splitSize=500)) == in_order(dumped(storage))


def test_ids_that_are_skipped_exactly_where_a_part_would_begin_are_told(tmp_path: Path) -> None:
    """Nothing but the records in front of the place shows it, so the part must not begin there."""
    records = [*make_records(200, size=50), *make_records(210, first=210, size=50)]
    storage = build_directory(tmp_path / "s", {0: [records]})
    entries = idx(storage, 0, 0).read_bytes()
    middle = HEADER_SIZE + 8 * 200
    idx(storage, 0, 0).write_bytes(entries[:middle] + bytes(80) + entries[middle:])
    age(storage)
    rows = read(storage, splitSize=seg(storage, 0, 0).stat().st_size // 2)
    assert [row["transaction_id"] for row in rows if row["finding"]] == [200]
    assert in_order(rows) == in_order(dumped(storage))


def test_bounds_of_ids_leave_exactly_the_records_within_them(tmp_path: Path) -> None:
    storage = build_directory(tmp_path / "s", {0: 200, 1: 200}, per_segment=60, size=50)
    age(storage)
    for size in ("128MiB", "1000"):
        rows = read(storage, splitSize=size, minTransactionId=70, maxTransactionId=130)
        assert sorted((row["partition"], row["transaction_id"]) for row in rows) == [
            (partition, number) for partition in (0, 1) for number in range(70, 131)
        ]
        assert all(row["finding"] is None for row in rows)


def test_damage_outside_the_bounds_of_ids_is_no_row(tmp_path: Path) -> None:
    storage = build_directory(tmp_path / "s", {0: 100}, per_segment=100, size=50)
    flip(seg(storage, 0, 0), HEADER_SIZE + 90 * 20 + 50)
    age(storage)
    inside = read(storage, minTransactionId=10, maxTransactionId=30)
    assert [row["transaction_id"] for row in inside if row["finding"]] == [20]
    assert not [row for row in read(storage, minTransactionId=40) if row["finding"]]


def test_contradictory_bounds_need_no_task(tmp_path: Path) -> None:
    storage = build_directory(tmp_path / "s", {0: 10})
    assert packets(storage, minTransactionId=9, maxTransactionId=8) == []


def plan_only(storage: Path, **options: str) -> list[list[object]]:
    given = CaseInsensitiveDict({"path": str(storage), **options})
    return [list(one.items) for one in reader(given, spark_schema(pick("records", None))).partitions()]  # type: ignore[attr-defined]


def test_planning_reads_one_header_whatever_the_number_of_segments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = build_directory(tmp_path / "s", {0: 300, 1: 300}, per_segment=2, size=10)
    opened: list[str] = []
    original = disk.open_for_reading

    def counted(path: Path | str) -> int:
        opened.append(str(path))
        return original(path)

    monkeypatch.setattr(disk, "open_for_reading", counted)
    planned = plan_only(storage, splitSize="5000")
    assert len([one for packet in planned for one in packet]) >= 300
    assert [name for name in opened if name.endswith((".seg", ".idx"))] in ([], [str(seg(storage, 0, 0))])


def test_small_segments_are_packed_and_large_ones_are_cut() -> None:
    job = SegmentJob(Path("/p/0"), 0, bytes=1000 << 10)
    small = [SegmentPart("/p", SegmentJob(Path("/p/0"), number, bytes=10), None) for number in range(100)]
    packed = list(pack([*small, SegmentPart("/p", job, None)], (1 << 20) + FLAT, attrgetter("cost")))
    assert [one for packet in packed for one in packet] == [*small, SegmentPart("/p", job, None)]
    assert len(packed) < 40
    assert packed[-1] == (SegmentPart("/p", job, None),)
    assert parts_for(128, 128) == 1
    assert parts_for(1000, 128) == 8


def test_what_is_sent_to_each_task_holds_no_listing(tmp_path: Path) -> None:
    storage = build_directory(tmp_path / "s", {0: 400}, per_segment=2, size=10)
    planned = reader(CaseInsensitiveDict({"path": str(storage)}), spark_schema(pick("records", None)))
    assert len(planned.partitions()) == 1
    assert len(pickle.dumps(planned)) < 5000


@pytest.mark.parametrize("splits", ["128MiB", "900"])
def test_files_that_grow_shrink_or_vanish_after_planning_fail_no_task(tmp_path: Path, splits: str) -> None:
    storage = build_directory(tmp_path / "s", {0: 120}, per_segment=40, size=50)
    age(storage)
    planned = reader(
        CaseInsensitiveDict({"path": str(storage), "splitsize": splits}), spark_schema(pick("records", None))
    )
    tasks = list(planned.partitions())
    seg(storage, 0, 0).unlink()
    cut(seg(storage, 0, 40), HEADER_SIZE + 90 * 7)
    with seg(storage, 0, 80).open("ab") as file:
        file.write(encode_records(make_records(3, first=120, size=50))[0])
    age(storage)
    rows = [row for task in tasks for batch in planned.read(task) for row in batch.to_pylist()]
    ids = [row["transaction_id"] for row in rows if row["finding"] is None]
    assert ids == sorted(set(ids))
    assert ids[:7] == list(range(40, 47))
    assert ids[7:47] == list(range(80, 120))


@pytest.mark.parametrize("splits", ["128MiB", "900"])
def test_a_file_that_cannot_be_opened_is_one_row_and_the_others_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, splits: str
) -> None:
    storage = build_directory(tmp_path / "s", {0: 120}, per_segment=40, size=50)
    age(storage)
    original = disk.open_for_reading

    def refused(path: Path | str, *, devices: bool = False) -> int:
        if Path(path) == seg(storage, 0, 40):
            raise DiskReadError(path, None, PermissionError(13, "Permission denied"), doing="open")
        return original(path, devices=devices)

    monkeypatch.setattr(disk, "open_for_reading", refused)
    rows = read(storage, splitSize=splits, columns="segment,transaction_id,finding")
    assert [row["segment"] for row in rows if row["finding"] == "read-error"] == [40]
    ids = [row["transaction_id"] for row in rows if row["finding"] is None]
    assert ids == [*range(40), *range(80, 120)]


def test_a_storage_that_a_worker_does_not_see_is_an_error_and_no_empty_result(tmp_path: Path) -> None:
    storage = build_directory(tmp_path / "s", {0: 10})
    planned = reader(CaseInsensitiveDict({"path": str(storage)}), spark_schema(pick("records", None)))
    tasks = list(planned.partitions())
    os.rename(storage, tmp_path / "elsewhere")
    with pytest.raises(Exception, match="every worker"):
        [list(planned.read(task)) for task in tasks]


@pytest.mark.parametrize("view", ["records", "segments", "index", "findings", "control"])
@pytest.mark.parametrize("where", ["storage", "partition"])
def test_a_mount_point_without_its_disk_is_an_error_and_no_empty_result(tmp_path: Path, view: str, where: str) -> None:
    """On a worker, or since the read was planned.  `findings` tells of the partition, and `control` does not read it."""
    storage = build_directory(tmp_path / "s", {0: 60}, local_low_water_mark=59)
    planned = reader(CaseInsensitiveDict({"path": str(storage), "view": view}), spark_schema(pick(view, None)))
    tasks = list(planned.partitions())
    mounted = storage if where == "storage" else storage / "0"
    mounted.rename(tmp_path / "elsewhere")
    mounted.mkdir()
    if where == "partition" and view in ("findings", "control"):
        rows = [row for task in tasks for batch in planned.read(task) for row in batch.to_pylist()]
        assert [row.get("code") for row in rows] == (["acknowledged-missing"] if view == "findings" else [None])
        return
    with pytest.raises(NotWaltzError, match="or nothing in it"):
        [list(planned.read(task)) for task in tasks]


@pytest.mark.parametrize("view", ["records", "segments", "index", "findings"])
@pytest.mark.parametrize("replaced", [False, True])
def test_a_storage_that_is_moved_while_a_task_reads_it_is_an_error(
    tmp_path: Path, view: str, monkeypatch: pytest.MonkeyPatch, *, replaced: bool
) -> None:
    storage = build_directory(tmp_path / "s", {0: 60})
    other = build_directory(tmp_path / "other", {0: 0})
    planned = reader(CaseInsensitiveDict({"path": str(storage), "view": view}), spark_schema(pick(view, None)))
    opened = SegmentCheck._open

    def moved_and_opened(check: SegmentCheck) -> None:
        if not (tmp_path / "elsewhere").exists():
            storage.rename(tmp_path / "elsewhere")
            if replaced:
                other.rename(storage)
        opened(check)

    tasks = list(planned.partitions())
    monkeypatch.setattr(SegmentCheck, "_open", moved_and_opened)
    with pytest.raises(NotWaltzError, match="was moved or replaced while it was read"):
        [list(planned.read(task)) for task in tasks]


def test_a_storage_of_which_nothing_was_known_is_not_told_as_moved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system did not tell which directory it was when the task began; all rows were read, and thrown away."""
    storage = build_directory(tmp_path / "s", {0: 60})
    planned = reader(
        CaseInsensitiveDict({"path": str(storage), "view": "records"}), spark_schema(pick("records", None))
    )
    tasks, asked, real = list(planned.partitions()), list[PurePath](), places.standing

    def standing(directory: PurePath) -> places.Standing | None:
        asked.append(directory)
        return None if len(asked) == 1 else real(directory)

    monkeypatch.setattr(places, "standing", standing)
    assert sum(batch.num_rows for task in tasks for batch in planned.read(task)) == 60
    assert asked


@pytest.mark.parametrize("kind", ["link", "fifo"])
def test_a_storage_whose_control_file_is_none_is_among_those_of_a_directory(tmp_path: Path, kind: str) -> None:
    """As when it is named itself."""
    one, two = (build_directory(tmp_path / "data" / name, {0: 10, 1: 5}) for name in ("one", "two"))
    control = two / CONTROL_FILE_NAME
    control.unlink()
    if kind == "link":
        control.symlink_to("nowhere")
    else:
        os.mkfifo(control)
    (tmp_path / "data" / "no-storage").mkdir()
    found = read(tmp_path / "data")
    assert [sum(row["node"] == str(path) for row in found) for path in (one, two)] == [15, 15]
    assert [row["code"] for row in read(tmp_path / "data", view="findings")] == ["special-file"]


def test_a_file_on_a_disk_that_goes_while_it_is_read_is_a_row(tmp_path: Path) -> None:
    storage = build_directory(tmp_path / "s", {0: 120})
    file = storage / "0" / segment_name(100)
    file.rename(tmp_path / "disk")
    file.symlink_to(tmp_path / "disk")
    planned = reader(CaseInsensitiveDict({"path": str(storage)}), spark_schema(pick("records", None)))
    tasks = list(planned.partitions())
    (tmp_path / "disk").rename(tmp_path / "elsewhere")
    rows = [row for task in tasks for batch in planned.read(task) for row in batch.to_pylist()]
    assert [row["transaction_id"] for row in rows if row["finding"] is None] == list(range(100))
    assert [row["segment"] for row in rows if row["finding"] == "special-file"] == [100]


def test_a_split_size_that_no_task_is_worth_is_refused(tmp_path: Path) -> None:
    storage = build_directory(tmp_path / "s", {0: 20})
    for size in ("1", "99", "99B"):
        with pytest.raises(
            InvalidRequestError, match=rf"splitSize: {size.rstrip('B')} bytes are too few .* the least is 100"
        ):
            read(storage, splitSize=size)
    assert in_order(read(storage, splitSize="100")) == in_order(dumped(storage))


def test_a_read_has_no_more_tasks_than_a_driver_can_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One step to each side of the bound, which is lowered here: a hundred thousand tasks take gigabytes of files."""
    storage = build_directory(tmp_path / "s", {0: 20, 1: 20})
    assert batch_read.MAX_TASKS == 100_000
    tasks = len(packets(storage, splitSize=100))
    assert tasks > 10
    monkeypatch.setattr(batch_read, "MAX_TASKS", tasks)
    assert len(packets(storage, splitSize=100)) == tasks
    monkeypatch.setattr(batch_read, "MAX_TASKS", tasks - 1)
    with pytest.raises(
        InvalidRequestError, match=f"with 100 bytes for a task, this read has more than {tasks - 1} tasks"
    ) as refused:
        packets(storage, splitSize=100)
    assert "raise splitSize" in str(refused.value)


def test_records_that_are_larger_than_a_look_back_are_divided_by_their_index(short_sight: None, tmp_path: Path) -> None:
    """The one in front leads up to each place, however far away it begins."""
    storage = age(build_directory(tmp_path / "s", {0: [make_records(40, size=900)]}))
    tasks = packets(storage, splitSize=4700, columns="transaction_id")
    assert [len(task) for task in tasks] == [5] * 8


def test_a_directory_that_nobody_may_enter_is_no_storage_beside_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As ``lost+found``, which is in every file system of a disk: root alone may look into it."""
    build_directory(tmp_path / "data" / "one", {0: 10})
    closed = tmp_path / "data" / "lost+found"
    closed.mkdir()

    def refused(look: Any) -> Any:
        def looked(path: Any, *given: Any, **named: Any) -> Any:
            if not isinstance(path, int) and os.fspath(path).startswith(f"{closed}{'' if look is os.listdir else '/'}"):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), os.fspath(path))
            return look(path, *given, **named)

        return looked

    for name in ("stat", "lstat", "listdir", "scandir"):
        monkeypatch.setattr(os, name, refused(getattr(os, name)))
    assert len(read(tmp_path / "data")) == 10


@pytest.mark.parametrize("code", [errno.EACCES, errno.EIO])
def test_a_task_reads_the_files_of_a_directory_that_cannot_be_listed_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """It knows their names from the plan, and lists no directory of thousands of files only to see that it is not empty."""
    storage = build_directory(tmp_path / "s", {0: 60, 1: 5})
    planned = reader(CaseInsensitiveDict({"path": str(storage)}), spark_schema(pick("records", None)))
    tasks = list(planned.partitions())
    shutil.rmtree(storage / "1")  # a node deletes it, and nobody's rows are missing

    def refused(path: Any) -> list[str]:
        raise OSError(code, os.strerror(code), os.fspath(path))

    with monkeypatch.context() as patch:
        patch.setattr(os, "listdir", refused)
        rows = [row for task in tasks for batch in planned.read(task) for row in batch.to_pylist()]
    assert [(row["partition"], row["transaction_id"]) for row in rows] == [(0, number) for number in range(60)]
