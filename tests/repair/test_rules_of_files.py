"""Judgements about single files of a repair, on values: names, headers, control files, edits; bounds from both sides."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from uuid import UUID

import pytest

from tests.builders import CREATED, KEY, segment_header
from tests.repair.test_small_steps import control, found
from tests.repair.twelve import Twelve, at
from waltzctl.engine.durable.edits import Cut, Edit, Overwrite, Remove
from waltzctl.engine.errors import DamageError, InvalidRequestError, RefusedError
from waltzctl.engine.findings import Code
from waltzctl.engine.log.view import FileState, SegmentView
from waltzctl.engine.repair import salvage_runs
from waltzctl.engine.repair.content import Content, FileSpan, LiteralBytes
from waltzctl.engine.repair.marks import _inside
from waltzctl.engine.repair.provenance import SegmentSurroundings, _judge_fields
from waltzctl.engine.repair.rebuild_index import _placed, plan_rebuild_index
from waltzctl.engine.repair.repaired_segments import RepairContext, RepairedSegment
from waltzctl.engine.repair.salvage import _choose_cluster, _why_nothing_wanted
from waltzctl.engine.repair.salvage_control import _at_least_as_new, _not_older, choose_control
from waltzctl.engine.repair.truncate import _kept, _offset_behind
from waltzctl.formats.control import Layout, PartitionStruct
from waltzctl.formats.segment import HEADER_SIZE, SegmentHeader, index_name

OTHER = uuid.UUID("fedcba98-7654-3210-fedc-ba9876543210")
CONTROL = SimpleNamespace(header=SimpleNamespace(cluster_key=KEY))
"""As much of a control file as is asked for."""


def state(name: str, size: int = 128) -> FileState:
    return FileState(Path(name), size, 0, 0)


# --- which segment is the next one ----------------------------------------------------------------------------------------


def view(first: int, *, data: bool = True) -> SegmentView:
    return SegmentView(0, first, state("a") if data else None, state("b"))


@pytest.mark.parametrize(
    ("names", "first", "following"),
    [
        ((0, 4, 8), 0, 4),
        ((0, 4, 8), 4, 8),
        ((0, 4, 8), 8, None),
        ((8, 4, 0), 0, 4),
        ((0, 1, 8), 0, 1),
        ((0, 4, 8), 5, 8),
        ((0, 4, 8), 3, 4),
        ((), 0, None),
    ],
)
def test_the_next_data_file_of_a_partition(names: Sequence[int], first: int, following: int | None) -> None:
    around = SegmentSurroundings(CONTROL, 0, [view(one) for one in sorted(names)])  # type: ignore[arg-type]
    assert around.following(first) == following
    seen = [view(one, data=one != following) for one in sorted(names)]
    without = SegmentSurroundings(CONTROL, 0, seen)  # type: ignore[arg-type]
    assert without.following(first) == min((one for one in names if one > (following or 9)), default=None)
    context = RepairContext(None, CONTROL, 0, Path(), False, around)  # type: ignore[arg-type]
    context.segments = [RepairedSegment(one, Path("a"), Path("b"), state("a"), None) for one in names]
    assert context.following(RepairedSegment(first, Path("a"), Path("b"), None, None)) == following
    for one in context.segments:
        one.data = None
    assert context.following(RepairedSegment(first, Path("a"), Path("b"), None, None)) is None
    for one in context.segments:
        one.content = Content("a", ())
    assert context.following(RepairedSegment(first, Path("a"), Path("b"), None, None)) == following


@pytest.mark.parametrize("first", [3, 4, 5])
def test_a_name_is_taken_by_a_data_file_that_is_there_or_will_be(first: int) -> None:
    context = RepairContext(None, CONTROL, 0, Path(), False, None)  # type: ignore[arg-type]
    part = RepairedSegment(4, Path("a"), Path("b"), state("a"), None)
    context.segments = [part]
    assert context.taken(first) is (first == 4)
    part.data = None
    assert not context.taken(first)
    part.content = Content("a", ())
    assert context.taken(first) is (first == 4)


@pytest.mark.parametrize(
    ("index", "created"),
    [
        (None, CREATED),
        (segment_header(0, 4, created=CREATED + 5), CREATED + 5),
        (segment_header(0, 5, created=CREATED + 5), CREATED),
        (segment_header(0, 4, created=CREATED + 5, key=OTHER), CREATED),
        (segment_header(0, 5, created=CREATED + 5, key=OTHER), CREATED),
    ],
)
def test_a_segment_that_is_made_was_created_when_its_index_was(
    tmp_path: Path, index: SegmentHeader | None, created: int
) -> None:
    if index is not None:
        (tmp_path / index_name(4)).write_bytes(index.encode())
    context = RepairContext(None, CONTROL, 0, tmp_path, False, None)  # type: ignore[arg-type]
    context.segments = [RepairedSegment(one, Path("a"), Path("b"), None, None) for one in (0, 4)]
    part = context.new_part(4, CREATED)
    assert part.header == SegmentHeader(0, created, KEY, 0, 4)
    assert part.content is not None
    assert part.content.read(0, 200) == part.header.encode()
    assert (part.index is None) is (index is None)
    assert [one.first for one in context.segments] == [0, 4]
    assert context.segments[1] is part
    assert part.shifted


# --- edits ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("edit", "inside"),
    [
        (Overwrite(Path("c"), 100, bytes(36)), True),
        (Overwrite(Path("c"), 101, bytes(34)), True),
        (Overwrite(Path("c"), 99, bytes(36)), False),
        (Overwrite(Path("c"), 101, bytes(36)), False),
        (Overwrite(Path("d"), 100, bytes(36)), False),
        (Cut(Path("c"), 100), False),
        (Remove(Path("c")), False),
    ],
)
def test_what_a_mark_is_written_over_is_not_written_before(edit: Edit, *, inside: bool) -> None:
    assert _inside(edit, Overwrite(Path("c"), 100, bytes(36))) is inside


def test_pieces_that_touch_are_written_at_once_and_others_apart(tmp_path: Path) -> None:
    path, other = tmp_path / "a", tmp_path / "b"
    path.write_bytes(bytes(100))
    other.write_bytes(b"0123456789")
    content = Content.of_file(path, 100)
    for start, new in (
        (80, (FileSpan(other, 0, 2),)),
        (50, (LiteralBytes(b"xy"), FileSpan(other, 3, 5))),
        (10, (FileSpan(other, 0, 1), LiteralBytes(b"z"))),
    ):
        content = content.spliced(start, start + sum(map(len, new)), new)
    assert content.edits(path, 100) == [
        Overwrite(path, 10, b"0z"),
        Overwrite(path, 50, b"xy34"),
        Overwrite(path, 80, b"01"),
    ]
    assert content.edits(path, 101) == [*content.edits(path, 100), Cut(path, 100)]
    assert content.read(45, 10) == bytes(5) + b"xy34" + bytes(1)


# --- headers --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("header", "code"),
    [
        (segment_header(0, 4, key=OTHER), Code.SEGMENT_KEY),
        (segment_header(1, 5, key=OTHER), Code.SEGMENT_KEY),
        (segment_header(0, 5), Code.SEGMENT_NAME),
        (segment_header(1, 4), Code.SEGMENT_PARTITION),
        (segment_header(1, 5), Code.SEGMENT_PARTITION),
        (segment_header(0, 4), Code.SEGMENT_PARTITION),
    ],
)
def test_what_a_header_that_stands_against_its_place_is_called(header: SegmentHeader, code: Code) -> None:
    assert _placed(CONTROL, 0, 4, header) is code  # type: ignore[arg-type]
    if code is not Code.SEGMENT_KEY:
        assert _placed(None, 0, 4, header) is code


RIGHT = segment_header(0, 4)


@pytest.mark.parametrize(
    ("data", "index", "first_record", "wrong", "unproven"),
    [
        (RIGHT, RIGHT, 4, [], []),
        (segment_header(0, 5), RIGHT, 4, [Code.SEGMENT_NAME], []),
        (segment_header(0, 5), None, 4, [Code.SEGMENT_NAME], []),
        (segment_header(0, 5), RIGHT, None, [Code.SEGMENT_NAME], []),
        (segment_header(0, 5), RIGHT, 5, [Code.SEGMENT_NAME], [Code.SEGMENT_NAME]),
        (segment_header(0, 5), segment_header(0, 5), None, [Code.SEGMENT_NAME], [Code.SEGMENT_NAME]),
        (segment_header(0, 5), None, None, [Code.SEGMENT_NAME], [Code.SEGMENT_NAME]),
        (segment_header(0, 4, key=OTHER), RIGHT, None, [Code.SEGMENT_KEY], []),
        (segment_header(0, 4, key=OTHER), segment_header(0, 4, key=OTHER), 4, [Code.SEGMENT_KEY], [Code.SEGMENT_KEY]),
        (segment_header(0, 4, key=OTHER), None, 4, [Code.SEGMENT_KEY], [Code.SEGMENT_KEY]),
        (segment_header(1, 4), RIGHT, None, [Code.SEGMENT_PARTITION], []),
        (segment_header(1, 4), segment_header(1, 4), 4, [Code.SEGMENT_PARTITION], [Code.SEGMENT_PARTITION]),
        (segment_header(1, 4), None, 4, [Code.SEGMENT_PARTITION], [Code.SEGMENT_PARTITION]),
    ],
)
def test_what_the_fields_of_a_header_show(
    data: SegmentHeader, index: SegmentHeader | None, first_record: int | None, wrong: list[Code], unproven: list[Code]
) -> None:
    reasons, found_wrong, found_unproven = _judge_fields(data, index, RIGHT, first_record)
    assert (found_wrong, found_unproven) == (wrong, unproven)
    assert bool(reasons) is (len(wrong) > len(unproven))


# --- control files that were found ----------------------------------------------------------------------------------------


def test_control_files_of_several_nodes_are_named_in_order() -> None:
    every = found(control(3), control(2, created=CREATED + 1), control(2))
    (said,) = {one.reason for one in choose_control(every).found}
    places = [said.find(one) for one in ("2 partitions", "3 partitions")]
    assert -1 not in places
    assert places == sorted(places)
    assert said.count("2 partitions") == 2


def struct(*marks: int, sequence: int = 5, layout: Layout = Layout.RELEASED) -> PartitionStruct:
    made = control(2, sequence=sequence).partitions[0].structs[0]
    if layout is not Layout.RELEASED:
        return PartitionStruct(*marks)
    session, low, local = marks
    return replace(made, session_id=session, low_water_mark=low, local_low_water_mark=local).sealed()


@pytest.mark.parametrize(
    ("mine", "theirs", "not_older"),
    [
        (struct(3, 9, 9), struct(3, 9, 9), True),
        (struct(3, 9, 9, sequence=6), struct(3, 9, 9), True),
        (struct(3, 9, 9), struct(3, 9, 9, sequence=6), False),
        (struct(4, 9, 9, sequence=6), struct(3, 9, 9), True),
        (struct(3, 9, 9, sequence=6), struct(4, 9, 9), False),
        (struct(4, 9, 9), struct(3, 9, 9, layout=Layout.DOCUMENTED), True),
        (struct(3, 9, 9, layout=Layout.DOCUMENTED), struct(4, 9, 9), False),
        (struct(4, 9, 9, layout=Layout.DOCUMENTED), struct(3, 9, 9), True),
        (struct(3, 9, 9), struct(4, 9, 9, layout=Layout.DOCUMENTED), False),
        (struct(3, 9, 9), struct(3, 9, 9, layout=Layout.DOCUMENTED), True),
        (struct(3, 9, 8), struct(3, 9, 9, layout=Layout.DOCUMENTED), False),
        (struct(3, 9, 9), struct(3, 9, 8, layout=Layout.DOCUMENTED), True),
    ],
)
def test_which_of_two_structs_is_not_older(mine: PartitionStruct, theirs: PartitionStruct, *, not_older: bool) -> None:
    """Converted in between, the marks tell."""
    assert _not_older(mine, theirs) is not_older


def test_a_state_is_as_new_where_each_partition_that_both_know_is() -> None:
    for newer, older in (
        (control(sequence=6), control()),
        (control(3, sequence=6), control(2)),
        (control(2, sequence=6), control(3)),
    ):
        one, other = found(newer, older)
        assert _at_least_as_new(one, other)
        assert _at_least_as_new(one, one)
        assert not _at_least_as_new(other, one)
    one, other = found(control(sequence=6, second=4), control(second=5))
    assert not _at_least_as_new(one, other)
    assert not _at_least_as_new(other, one)


# --- what salvage says where nothing is left ------------------------------------------------------------------------------


def attributed(partition: int, records: int) -> object:
    return SimpleNamespace(partition=partition, run=range(records))


def test_what_was_found_where_nothing_is_written() -> None:
    mine = [attributed(2, 5), attributed(0, 1), attributed(2, 3), attributed(1, 4)]
    doubts = [SimpleNamespace(run=range(2)), SimpleNamespace(run=range(5))]
    counts = {KEY: 13, OTHER: 7}
    assert _why_nothing_wanted(KEY, 3, counts, mine, doubts) == (  # type: ignore[arg-type]
        f"no record of cluster {KEY}, partition 3 was found; records found: 7 of cluster {OTHER}, 1 of partition 0,"
        " 4 of partition 1, 8 of partition 2, 7 of which nothing tells whose they are (--partition says so)"
    )
    assert (
        _why_nothing_wanted(KEY, None, {KEY: 0, OTHER: 0}, [], [])
        == f"no record of cluster {KEY} was found; records found: none"
    )


@pytest.mark.parametrize(
    ("named", "counts", "chosen"),
    [
        (OTHER, {KEY: 5}, OTHER),
        (None, {KEY: 5}, KEY),
        (None, {KEY: 0}, KEY),
        (None, {KEY: 5, OTHER: 0}, KEY),
        (None, {KEY: 0, OTHER: 1}, OTHER),
        (None, {}, "no header that tells their cluster"),
        (None, {KEY: 1, OTHER: 2}, f"{OTHER} (2 records), {KEY} (1 records)"),
        (None, {KEY: 2, OTHER: 1}, f"{KEY} (2 records), {OTHER} (1 records)"),
        (None, {KEY: 0, OTHER: 0}, f"{KEY} (0 records), {OTHER} (0 records)"),
    ],
)
def test_which_cluster_is_salvaged(named: UUID | None, counts: dict[UUID, int], chosen: UUID | str) -> None:
    if isinstance(chosen, UUID):
        assert _choose_cluster(named, counts) == chosen
    else:
        with pytest.raises(InvalidRequestError) as refused:
            _choose_cluster(named, counts)
        assert chosen in str(refused.value)


@pytest.mark.parametrize("window", [128, 129, 150, 200, 328, 329, 1000])
@pytest.mark.parametrize("front", [0, 1, 88, 127, 128, 200])
def test_headers_are_looked_for_behind_zeros_and_in_every_window(
    monkeypatch: pytest.MonkeyPatch, window: int, front: int
) -> None:
    monkeypatch.setattr(salvage_runs, "WINDOW", window)
    one = segment_header(0, 4).encode()
    data = bytes(front) + one + b"x" * 60 + one
    source = Content("a", (LiteralBytes(data),))
    assert {front, front + 188} <= set(salvage_runs._candidates(source, 0, len(data)))


# --- truncation -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("damage", "after", "offset"),
    [
        ((), 3, HEADER_SIZE),
        ((), 4, at(5)),
        ((), 7, at(7) + 60),
        ((), 8, None),
        ((), 2, None),
        ((5,), 4, at(5)),
        ((5,), 5, at(6)),
        ((5, 6), 5, None),
        ((5, 6), 6, at(7)),
        ((7,), 6, at(7)),
        ((7,), 7, None),
        ((4,), 3, HEADER_SIZE),
    ],
)
def test_where_what_is_behind_a_transaction_begins(
    tmp_path: Path, damage: tuple[int, ...], after: int, offset: int | None
) -> None:
    d = Twelve(tmp_path / "d")
    d.spoil(*damage)
    segment = SegmentView(0, 4, FileState.of(d.seg(4)), FileState.of(d.idx(4)))
    content = Content.of_file(d.seg(4), 368)
    if offset is None:
        with pytest.raises(RefusedError, match="in a damaged place"):
            _offset_behind(content, 4, after, segment, 8)
    else:
        assert _offset_behind(content, 4, after, segment, 8) == offset


def test_what_stands_under_a_wrong_id_in_front_of_what_is_behind_is_cut_with_it(tmp_path: Path) -> None:
    d = Twelve(tmp_path / "d")
    d.put(4, [8, 4, 9])
    segment = SegmentView(0, 4, FileState.of(d.seg(4)), FileState.of(d.idx(4)))
    assert _offset_behind(Content.of_file(d.seg(4), 308), 4, 3, segment, 8) == HEADER_SIZE


@pytest.mark.parametrize("after", [2, 3, 4, 5])
def test_an_empty_segment_ends_in_front_of_its_first_transaction(tmp_path: Path, after: int) -> None:
    d = Twelve(tmp_path / "d")
    d.cut(4, HEADER_SIZE)
    segment = SegmentView(0, 4, FileState.of(d.seg(4)), None)
    content = Content.of_file(d.seg(4), HEADER_SIZE)
    if after == 3:
        assert _offset_behind(content, 4, after, segment, 8) == HEADER_SIZE
    else:
        with pytest.raises(DamageError, match=f"transaction {after} is missing"):
            _offset_behind(content, 4, after, segment, 8)


@pytest.mark.parametrize(("after", "kept"), [(-1, 0), (0, 0), (2, 0), (3, 4), (6, 4), (7, 8), (99, 8)])
def test_the_segment_that_becomes_the_last_one(after: int, kept: int) -> None:
    found = _kept([view(one) for one in (0, 4, 8)], after, Path())
    assert found is not None
    assert found.first_transaction_id == kept
    assert _kept([view(4)], -1, Path()) is None
    with pytest.raises(RefusedError, match="begins with transaction 4, so 2 is not here"):
        _kept([view(4)], 2, Path())


# --- index ----------------------------------------------------------------------------------------------------------------


def test_an_index_that_leads_into_a_record_with_a_wrong_id_is_made_anew(tmp_path: Path) -> None:
    """A record in order is no data of the one in front of it."""
    d = Twelve(tmp_path / "d")
    d.put(4, [4, 9, 6, 7])
    d.point(4, 6, at(5) + 1)
    repair = plan_rebuild_index(d.root)
    assert [one.action for one in repair.plan.steps] == ["rebuild-index"]
