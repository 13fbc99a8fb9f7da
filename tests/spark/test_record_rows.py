"""The rows of a packet of parts: what each part has, what is told between neighbours, and what of a segment lies in a part."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")

from tests.builders import build_directory, make_records
from tests.inspect.helpers import age, cut, flip, idx, patch, seg
from waltzctl.engine.durable import disk
from waltzctl.engine.errors import DamageError, DiskReadError
from waltzctl.engine.findings import Code, Finding, Severity
from waltzctl.engine.inspect.dump_chunks import ChunkReader
from waltzctl.engine.inspect.read_limits import ReadLimits
from waltzctl.engine.inspect.segment_job import SegmentJob
from waltzctl.engine.log.index import RecordPlace
from waltzctl.engine.scan.columns import Damage
from waltzctl.engine.spark import record_rows
from waltzctl.engine.spark.record_rows import read_packet
from waltzctl.engine.spark.segment_parts import Range, items_of
from waltzctl.engine.spark.splits import FLAT, Notice, SegmentPart
from waltzctl.engine.spark.view_schemas import arrow_schema, pick

COLUMNS = ["segment", "transaction_id", "finding", "missing"]


def at(number: int) -> int:
    """Where a record begins in its segment, each of which has 60 bytes."""
    return 128 + 60 * (number % 10)


@pytest.fixture
def storage(tmp_path: Path) -> Path:
    """Three segments of ten records."""
    return age(build_directory(tmp_path / "s", {0: 30}, per_segment=10, size=20))


def job(storage: Path, first: int, **more: Any) -> SegmentJob:
    made = SegmentJob(storage / "0", first, 0, bytes=seg(storage, 0, first).stat().st_size, storage=storage)
    return replace(made, **more)


def part(storage: Path, segment: int, follower: int | None = None, **more: Any) -> SegmentPart:
    behind = None if follower is None else job(storage, follower)
    return SegmentPart("n", job(storage, segment), 10, follower=behind, **more)


def rows(*items: Any, **options: Any) -> list[Any]:
    """Ids of the records, and for each finding its segment, its code, its id and what is missing."""
    found: list[Any] = []
    for batch in read_packet(items, COLUMNS, arrow_schema(pick("records", COLUMNS)), **options):
        for row in batch.to_pylist():
            told = (row["segment"], row["finding"], row["transaction_id"], row["missing"])
            found.append(row["transaction_id"] if row["finding"] is None else told)
    return found


# ---- a packet ------------------------------------------------------------------------------------------------------------


def test_the_parts_of_a_packet_follow_one_another(storage: Path) -> None:
    whole = [part(storage, 0, 10), part(storage, 10, 20), part(storage, 20)]
    assert rows(*whole) == list(range(30))
    assert rows(whole[2], whole[0]) == [*range(20, 30), *range(10)]
    assert rows() == []


def test_what_was_known_stands_in_its_place(storage: Path) -> None:
    known = Finding(Code.SEGMENT_GAP, Severity.DAMAGE, storage, "x", 0, 10, 10, missing=4)
    told = (10, "segment-gap", 10, 4)
    assert rows(part(storage, 0), Notice("n", (known,)), part(storage, 20)) == [*range(10), told, *range(20, 30)]
    assert rows(Notice("n", ())) == []
    with pytest.raises(DamageError, match="in 1 place\n"):
        rows(Notice("n", (known,)), fail_on_loss=True)


def test_a_read_that_fails_for_a_loss_hands_out_every_row_before(storage: Path) -> None:
    known = Finding(Code.SEGMENT_GAP, Severity.DAMAGE, storage, "x", 0, 10, 10, missing=4)
    packet = [part(storage, 0), Notice("n", (known,)), part(storage, 20)]
    given = read_packet(packet, COLUMNS, arrow_schema(pick("records", COLUMNS)), fail_on_loss=True)
    seen: list[Any] = []
    with pytest.raises(DamageError):
        seen.extend(batch.num_rows for batch in given)
    assert sum(seen) == 21


def gap(storage: Path) -> None:
    """The second segment lost its last three records."""
    cut(seg(storage, 0, 10), at(17))


GAP = (20, "segment-gap", 17, 3)


@pytest.mark.parametrize(
    ("behind", "told"),
    [
        (lambda storage: [part(storage, 20)], True),  # in the packet
        (lambda storage: [], True),  # in another task: its header is looked at
        (lambda storage: [Notice("n", ())], True),
        (lambda storage: [part(storage, 0)], True),
    ],
)
def test_a_gap_is_told_by_the_part_in_front_once(storage: Path, behind: Any, told: bool) -> None:
    gap(storage)
    found = rows(part(storage, 10, 20), *behind(storage))
    assert [one for one in found if isinstance(one, tuple)] == [GAP]
    assert found[7] == GAP
    assert [one for one in rows(part(storage, 10), *behind(storage)) if isinstance(one, tuple)] == []


def test_only_the_part_that_sees_the_end_tells_what_is_behind(storage: Path) -> None:
    gap(storage)
    halves = [
        replace(part(storage, 10, 20), job=job(storage, 10, bytes=at(17)), count=1, last=last) for last in (13, 16, 17)
    ]
    assert [rows(one) for one in halves] == [
        [*range(10, 14)],
        [*range(10, 17)],
        [*range(10, 17), GAP],
    ]


@pytest.mark.parametrize(
    ("first", "last", "told"),
    [(None, 16, False), (None, 17, True), (19, None, True), (20, None, False), (18, 18, True), (20, 25, False)],
)
def test_a_gap_is_a_row_where_its_ids_are_wanted(
    storage: Path, first: int | None, last: int | None, told: bool
) -> None:
    """Whether the segment behind is read here or by another task."""
    gap(storage)
    for behind in ([part(storage, 20, first=first, last=last)], []):
        found = rows(part(storage, 10, 20, first=first, last=last), *behind)
        assert [one for one in found if isinstance(one, tuple)] == [GAP] * told


def test_an_overlap_is_told_by_the_ids_that_stand_there_twice(tmp_path: Path) -> None:
    records = make_records(20, size=20)
    storage = build_directory(tmp_path / "s", {0: [records[:10]]})
    other = build_directory(tmp_path / "e", {0: [records[:8], records[8:]]})
    for path in (seg(other, 0, 8), idx(other, 0, 8)):
        path.rename(storage / "0" / path.name)
    age(storage)
    found = [one for one in rows(part(storage, 0, 8), part(storage, 8)) if isinstance(one, tuple)]
    assert found == [(8, "segment-overlap", 8, None)]
    for first, last, told in ((None, 7, False), (None, 8, True), (9, None, True), (10, None, False)):
        both = part(storage, 0, 8, first=first, last=last), part(storage, 8, first=first, last=last)
        assert [one for one in rows(*both) if isinstance(one, tuple)] == found * told
        assert [one for one in rows(both[0]) if isinstance(one, tuple)] == found * told


@pytest.mark.parametrize("which", [10, 20])
def test_neighbours_of_which_one_changed_meanwhile_are_not_judged(
    storage: Path, monkeypatch: pytest.MonkeyPatch, which: int
) -> None:
    gap(storage)
    states = record_rows.states

    def changed(*paths: Path) -> Any:
        if paths[0] == seg(storage, 0, which):
            with paths[0].open("ab") as file:
                file.write(b"\0")
        return states(*paths)

    monkeypatch.setattr(record_rows, "states", changed)
    assert not [one for one in rows(part(storage, 10, 20), part(storage, 20)) if isinstance(one, tuple)]


def test_a_segment_behind_that_is_gone_or_cannot_be_read_is_for_its_own_task(
    storage: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gap(storage)
    ahead = part(storage, 10, 20)
    refuse(monkeypatch, seg(storage, 0, 20))
    assert rows(ahead) == list(range(10, 17))
    monkeypatch.undo()
    seg(storage, 0, 20).unlink()
    assert rows(ahead) == list(range(10, 17))


def refuse(monkeypatch: pytest.MonkeyPatch, refused: Path) -> None:
    """Let a file be one that nobody may open."""
    original = disk.open_for_reading

    def opened(path: Path | str, *, devices: bool = False) -> int:
        if Path(path) == refused:
            raise DiskReadError(path, None, PermissionError(13, "Permission denied"), doing="open")
        return original(path, devices=devices)

    monkeypatch.setattr(disk, "open_for_reading", opened)


def test_a_file_that_is_gone_has_no_rows_and_one_that_cannot_be_read_is_told_once(
    storage: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = [part(storage, 10, number=number, count=2) for number in (0, 1)]
    refuse(monkeypatch, seg(storage, 0, 10))
    (told,) = rows(*parts)
    assert told[:2] == (10, "read-error")
    assert rows(parts[1]) == []
    monkeypatch.undo()
    seg(storage, 0, 10).unlink()
    assert rows(*parts) == []


def test_a_file_that_cannot_be_read_behind_its_header_is_told_by_whoever_reads_there(
    storage: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk has a bad place; each part that comes upon it says so."""

    def failing(reader: ChunkReader, *_: Any, **__: Any) -> Any:
        raise DiskReadError(reader.job.data_path, 300, OSError(5, "Input/output error"))

    monkeypatch.setattr(record_rows, "range_of", failing)
    for number in (0, 1):
        (told,) = rows(part(storage, 10, number=number, count=2))
        assert told[:2] == (10, "read-error")


def test_what_is_wrong_with_a_file_is_told_by_its_first_part(storage: Path) -> None:
    patch(seg(storage, 0, 10), 30, b"\xff")  # in the cluster's key
    parts = [part(storage, 10, number=number, count=2) for number in (0, 1)]
    keyed = [replace(one, job=replace(one.job, cluster_key=None)) for one in parts]
    found = rows(*keyed)
    assert [one for one in found if not isinstance(one, tuple)] == list(range(10, 20))
    cut(seg(storage, 0, 10), 100)
    (short,) = rows(parts[0])
    assert short[:2] == (10, "segment-header-short")
    assert rows(parts[1]) == []


@pytest.mark.parametrize(
    ("first", "last", "told"),
    [
        (None, None, True), (None, 13, False), (None, 14, True), (15, None, True), (16, None, False), (14, 14, True),
        (15, 15, True), (16, 16, False), (13, 13, False),
    ],
)  # fmt: skip
def test_damage_is_a_row_where_its_ids_are_wanted(
    storage: Path, first: int | None, last: int | None, told: bool
) -> None:
    for number in (14, 15):
        flip(seg(storage, 0, 10), at(number) + 50)
    found = rows(part(storage, 10, first=first, last=last))
    assert [one for one in found if isinstance(one, tuple)] == [(10, "record-checksum", 14, 2)] * told
    low, high = 10 if first is None else first, 19 if last is None else last
    assert [one for one in found if isinstance(one, int)] == [
        one for one in range(low, high + 1) if one not in (14, 15)
    ]


def test_damage_without_end_reaches_every_id_behind_it(storage: Path) -> None:
    for number in (18, 19):
        flip(seg(storage, 0, 10), at(number) + 50)
    assert [one[1:3] for one in rows(part(storage, 10, first=25)) if isinstance(one, tuple)] == [("torn-tail", 18)]
    assert rows(part(storage, 10, last=17)) == list(range(10, 18))


def test_what_is_only_just_being_written_is_no_row(storage: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in (14, 15):
        flip(seg(storage, 0, 10), at(number) + 50)
    monkeypatch.setattr(record_rows, "damage_told", lambda reader, damage: None)
    assert rows(part(storage, 10)) == [one for one in range(10, 20) if one not in (14, 15)]


def test_data_is_read_where_it_is_wanted(storage: Path) -> None:
    schema = arrow_schema(pick("records", ["data"]))
    (batch,) = read_packet([part(storage, 10)], ["data"], schema)
    assert batch.column(0).to_pylist() == [one.data for one in make_records(30, size=20)[10:20]]


def test_how_a_scan_is_made_is_chosen_by_the_weight_of_the_whole_packet(
    storage: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen: list[int] = []
    choose = record_rows.kernels.choose

    def counting(size: int, compiled: bool | None = None) -> Any:
        chosen.append(size)
        return choose(size, compiled)

    monkeypatch.setattr(record_rows.kernels, "choose", counting)
    rows(part(storage, 0), part(storage, 10))
    assert chosen == [2 * (728 + FLAT), 600, 600]


# ---- what of a segment lies in a part ------------------------------------------------------------------------------------


def spans(items: Iterable[Any]) -> list[Any]:
    """First and last id of each batch, and for damage the id and the one behind it."""
    return [
        f"{one.transaction_id} {one.next_transaction_id}"
        if isinstance(one, Damage)
        else (int(one.transaction_id[0]), int(one.transaction_id[-1]))
        for one in items
    ]


def _items(storage: Path, wanted: Range, last: int | None = None) -> tuple[list[Any], int | None]:
    one = part(storage, 10, last=last)
    with ChunkReader(one.job, ReadLimits(), data=False) as reader:
        return spans(items_of(reader, one, wanted, data=False)), reader.next_id


HEAD = RecordPlace(128, 10)


@pytest.mark.parametrize(
    ("wanted", "found", "end"),
    [
        (Range(HEAD, 728, True), [(10, 19)], 20),
        (Range(HEAD, at(15), False), [(10, 14)], None),
        (Range(HEAD, at(15) + 1, False), [(10, 15)], None),
        (Range(HEAD, at(15) - 1, False), [(10, 14)], None),
        (Range(HEAD, 728, False), [(10, 19)], None),
        (Range(HEAD, 729, False), [(10, 19)], 20),
        (Range(HEAD, 128, False), [], None),
        (Range(HEAD, at(15), False, at(12)), [(12, 14)], None),
        (Range(HEAD, at(15), False, at(12) + 1), [(13, 14)], None),
        (Range(HEAD, 728, True, at(12)), [(12, 19)], 20),
        (Range(RecordPlace(at(14), 14), 728, True), [(14, 19)], 20),
        (Range(RecordPlace(at(14), 14), at(15), False), [(14, 14)], None),
    ],
)
def test_a_part_has_the_records_that_begin_in_its_range(
    storage: Path, wanted: Range, found: list[Any], end: int | None
) -> None:
    assert _items(storage, wanted) == (found, end)


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        (Range(HEAD, 728, True), [(10, 13), "14 16", (16, 19)]),
        (Range(HEAD, at(14), False), [(10, 13)]),
        (Range(HEAD, at(14) + 1, False), [(10, 13), "14 16"]),
        (Range(HEAD, at(16), False), [(10, 13), "14 16"]),
        (Range(HEAD, at(16) + 1, False), [(10, 13), "14 16", (16, 16)]),
        (Range(HEAD, 728, True, at(14)), ["14 16", (16, 19)]),
        (Range(HEAD, 728, True, at(14) + 1), [(16, 19)]),
    ],
)
def test_damage_belongs_to_the_part_in_which_it_begins(storage: Path, wanted: Range, found: list[Any]) -> None:
    for number in (14, 15):
        flip(seg(storage, 0, 10), at(number) + 50)
    assert _items(storage, wanted)[0] == found


def test_where_the_end_is_damaged_the_next_id_is_the_first_that_is_not_there(storage: Path) -> None:
    for number in (18, 19):
        flip(seg(storage, 0, 10), at(number) + 50)
    for last in (None, 18, 25):
        assert _items(storage, Range(HEAD, 728, True), last) == ([(10, 17), "18 None"], None)


@pytest.mark.parametrize(("last", "end"), [(None, 20), (19, 20), (20, 20), (18, 20)])
def test_the_end_of_the_segment_is_seen_whatever_is_wanted_in_its_last_batch(
    storage: Path, last: int | None, end: int | None
) -> None:
    assert _items(storage, Range(HEAD, 728, True), last) == ([(10, 19)], end)


@pytest.mark.parametrize(
    ("last", "found", "end"),
    [
        (12, [(10, 13)], None),
        (13, [(10, 13)], None),
        (14, [(10, 13), "14 16"], None),
        (15, [(10, 13), "14 16"], None),
        (16, [(10, 13), "14 16", (16, 19)], 20),
    ],
)
def test_what_is_behind_the_last_id_that_is_wanted_is_not_read(
    storage: Path, last: int, found: list[Any], end: int | None
) -> None:
    for number in (14, 15):
        flip(seg(storage, 0, 10), at(number) + 50)
    assert _items(storage, Range(HEAD, 728, True), last) == (found, end)
