"""Whose records stand behind a right header: each witness alone, together, and one step short of being one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.builders import KEY, build_directory, make_records, segment_header, write_segment
from tests.storage.support import damage, data_path, index_path
from waltzctl.engine.log.view import view_partition
from waltzctl.engine.scan.byte_source import FileSource
from waltzctl.engine.storage.belonging import beside, named_instead, stranger
from waltzctl.formats.request_id import RequestId
from waltzctl.formats.segment import HEADER_SIZE, Record, encode_entries

OTHER = "the request ids of its records name partition 7, and "
NEIGHBOURS = "those of the segments beside it name this one"
SAME = "transaction 10 of that partition is the same record"
INDEX = "the entries of its index are not where these records begin"


def of(records: Sequence[Record], partition: int, *, at: Sequence[int] | None = None) -> list[Record]:
    """The records with request ids of a partition, all or those at these places."""
    return [
        one
        if at is not None and place not in at
        else Record.make(one.transaction_id, RequestId(1, 2, partition, 3), one.header, one.data)
        for place, one in enumerate(records)
    ]


def why(path: Path, first: int = 10, partition: int = 0) -> str | None:
    directory = path / str(partition)
    (segment,) = [one for one in view_partition(directory, partition).segments if one.first_transaction_id == first]
    with FileSource(segment.data_path) as source:
        return stranger(segment, source, partition, KEY)


def built(path: Path, middle: Sequence[Record], *, beside: bool = True) -> Path:
    """Partition 0 of the segments 0 to 9, `middle` and 20 to 29; the ones beside it are other ones' with `beside` False."""
    own = make_records(30)
    sides = [own[:10], own[20:]] if beside else [of(own[:10], 7), of(own[20:], 7)]
    return build_directory(path, {0: [sides[0], middle, sides[1]]}, num_partitions=8)


@pytest.fixture
def middle() -> list[Record]:
    return of(make_records(20, size=30)[10:], 7)


def test_segments_beside_it_are_a_witness(tmp_path: Path, middle: list[Record]) -> None:
    assert why(built(tmp_path / "s", middle)) == OTHER + NEIGHBOURS


def test_request_ids_alone_prove_nothing(tmp_path: Path, middle: list[Record]) -> None:
    assert why(built(tmp_path / "s", middle, beside=False)) is None


def test_as_many_beside_it_that_say_the_one_as_the_other_are_no_witness(tmp_path: Path, middle: list[Record]) -> None:
    own = make_records(30)
    path = build_directory(tmp_path / "s", {0: [own[:10], middle, of(own[20:], 7)]}, num_partitions=8)
    assert why(path) is None


def test_the_same_record_in_the_other_directory_is_a_witness(tmp_path: Path, middle: list[Record]) -> None:
    path = built(tmp_path / "s", middle, beside=False)
    (path / "7").mkdir()
    write_segment(path / "7", of(make_records(10), 7), partition=7)
    write_segment(path / "7", middle, partition=7)
    assert why(path) == OTHER + SAME
    damage(index_path(path, 10, 7), HEADER_SIZE + 7, 1)  # its first entry leads elsewhere
    assert why(path) is None
    index_path(path, 10, 7).unlink()
    assert why(path) == OTHER + SAME, "the first record stands where every segment begins"
    other = segment_header(6, 10).encode() + data_path(path, 10, 7).read_bytes()[HEADER_SIZE:]
    data_path(path, 10, 7).write_bytes(other)
    assert why(path) is None, "that segment is not partition 7's"


def test_another_record_of_its_id_in_the_other_directory_is_none(tmp_path: Path, middle: list[Record]) -> None:
    path = built(tmp_path / "s", middle, beside=False)
    (path / "7").mkdir()
    write_segment(path / "7", of(make_records(20, size=31)[10:], 7), partition=7)
    assert why(path) is None


def test_the_record_is_found_inside_a_segment_that_begins_before_it(tmp_path: Path, middle: list[Record]) -> None:
    path = built(tmp_path / "s", middle, beside=False)
    (path / "7").mkdir()
    write_segment(path / "7", [*of(make_records(10), 7), *middle], partition=7)
    write_segment(path / "7", of(make_records(30)[20:], 7), partition=7)
    assert why(path) == OTHER + SAME
    data_path(path, 0, 7).unlink()
    assert why(path) is None
    (path / "7").rename(path / "6")
    assert why(path) is None


def test_its_own_index_is_a_witness(tmp_path: Path, middle: list[Record]) -> None:
    path = built(tmp_path / "s", middle, beside=False)
    entries = encode_entries([HEADER_SIZE + 60 * place for place in range(10)])
    index_path(path, 10).write_bytes(segment_header(0, 10).encode() + entries)
    assert why(path) == OTHER + INDEX
    index_path(path, 10).write_bytes(segment_header(7, 10).encode() + entries)
    assert why(path) is None, "the index says that it is another one's, too"


def test_every_witness_is_named(tmp_path: Path, middle: list[Record]) -> None:
    path = built(tmp_path / "s", middle)
    (path / "7").mkdir()
    write_segment(path / "7", middle, partition=7)
    entries = encode_entries([HEADER_SIZE + 60 * place for place in range(10)])
    index_path(path, 10).write_bytes(segment_header(0, 10).encode() + entries)
    assert why(path) == OTHER + " and ".join((NEIGHBOURS, SAME, INDEX))


@pytest.mark.parametrize("own", [0, 1, 3])
def test_a_record_among_the_first_four_that_names_this_partition_ends_the_question(tmp_path: Path, own: int) -> None:
    records = make_records(20, size=30)[10:]
    path = built(tmp_path / "s", of(records, 7, at=[place for place in range(10) if place != own]))
    assert why(path) is None


@pytest.mark.parametrize(("own", "strange"), [(4, False), (9, False), (10, True)])
def test_neighbours_alone_are_not_enough_when_a_later_record_says_otherwise(
    tmp_path: Path, own: int, strange: bool
) -> None:
    """A program may have changed what it writes; a second witness makes up for it."""
    records = make_records(20, size=30)[10:]
    path = built(tmp_path / "s", of(records, 7, at=[place for place in range(10) if place != own]))
    assert (why(path) is not None) == strange
    (path / "7").mkdir()
    write_segment(path / "7", of(records, 7), partition=7)
    assert why(path) == OTHER + f"{NEIGHBOURS} and {SAME}"


@pytest.mark.parametrize(("named", "other"), [(7, 7), (0, None), (-1, None), (1, 1)])
def test_what_all_records_name(tmp_path: Path, named: int, other: int | None) -> None:
    path = build_directory(tmp_path / "s", {0: [of(make_records(10), named)]}, num_partitions=8)
    with FileSource(data_path(path)) as source:
        assert named_instead(source, 0) == other


def test_records_that_name_two_others_name_none(tmp_path: Path) -> None:
    mixed = of(of(make_records(10), 7), 6, at=[1])
    for records in (mixed, of(of(make_records(10), 7), 6, at=[8])):
        path = build_directory(tmp_path / f"s{id(records)}", {0: [records]}, num_partitions=8)
        with FileSource(data_path(path)) as source:
            assert named_instead(source, 0) is None


def test_a_segment_without_an_intact_first_record_is_nobody_s(tmp_path: Path, middle: list[Record]) -> None:
    path = built(tmp_path / "s", middle)
    damage(data_path(path, 10), HEADER_SIZE + 3)
    assert why(path) is None
    with FileSource(data_path(path, 10)) as source:
        assert named_instead(source, 0) is None


@pytest.mark.parametrize("spoilt", [4, 9])
def test_damaged_records_say_nothing(tmp_path: Path, spoilt: int) -> None:
    """Neither of the first ones nor of those behind them, which are looked at where there is but one witness."""
    records = of(make_records(20, size=30)[10:], 7)
    path = built(tmp_path / "s", records)
    damage(data_path(path, 10), HEADER_SIZE + sum(one.size for one in records[:spoilt]) + 9)
    assert why(path) == OTHER + NEIGHBOURS
    with FileSource(data_path(path, 10)) as source:
        assert named_instead(source, 0) == 7


def test_the_segments_that_are_given_are_those_beside_it(tmp_path: Path, middle: list[Record]) -> None:
    path = built(tmp_path / "s", middle)
    segments = view_partition(path / "0", 0).segments
    with FileSource(data_path(path, 10)) as source:
        assert stranger(segments[1], source, 0, KEY, segments) == OTHER + NEIGHBOURS
        assert stranger(segments[1], source, 0, KEY, segments[1:2]) is None
        assert stranger(segments[1], source, 0, KEY, segments[1:]) == OTHER + NEIGHBOURS


def with_index(path: Path, entries: Sequence[int], *, cut: int = 0) -> Path:
    raw = segment_header(0, 10).encode() + encode_entries(entries)
    index_path(path, 10).write_bytes(raw[: len(raw) - cut])
    return path


@pytest.mark.parametrize(
    ("count", "entries", "witness"),
    [
        (4, (128, 188, 268, 338), False),  # one of three is somewhere else
        (4, (128, 188, 268, 328), True),
        (4, (128, 198, 268, 338), False),
        (4, (128, 188, 189, 190), True),
        (4, (128, 188, 188, 190), False),
        (4, (129, 188, 268, 328), False),
        (3, (128, 188, 268), False),
        (3, (128, 188, 267), True),
        (2, (128, 188), True),
        (2, (128, 198), False),
        (1, (128,), False),
    ],
)
def test_most_entries_behind_the_first_lead_somewhere_else_and_all_rise(
    tmp_path: Path, middle: list[Record], count: int, entries: Sequence[int], witness: bool
) -> None:
    """The records stand at 128, 198, 268 and 338."""
    path = with_index(built(tmp_path / "s", middle[:count], beside=False), entries)
    assert why(path) == (OTHER + INDEX if witness else None)


@pytest.mark.parametrize("cut", [7, 8, 9, 17, 60])
def test_an_index_that_was_cut_is_compared_as_far_as_it_goes(tmp_path: Path, middle: list[Record], cut: int) -> None:
    """Where its header is cut it says nothing."""
    path = with_index(built(tmp_path / "s", middle, beside=False), (128, 188, 248, 308), cut=cut)
    assert why(path) == (OTHER + INDEX if cut <= 16 else None)


@pytest.mark.parametrize(
    ("own", "strange", "witness"), [(0, 0, False), (1, 0, True), (1, 1, False), (2, 1, True), (1, 2, False)]
)
def test_one_more_beside_it_is_enough(
    tmp_path: Path, middle: list[Record], own: int, strange: int, witness: bool
) -> None:
    behind = [make_records(20 + 10 * (n + 1))[20 + 10 * n :] for n in range(own + strange)]
    sides = [one if place < own else of(one, 7) for place, one in enumerate(behind)]
    path = build_directory(tmp_path / "s", {0: []}, num_partitions=8)
    for segment in (middle, *sides):
        write_segment(path / "0", segment)
    assert why(path) == (OTHER + NEIGHBOURS if witness else None)


def test_a_single_record_is_judged_by_the_same_witnesses(tmp_path: Path, middle: list[Record]) -> None:
    path = built(tmp_path / "s", middle[:1])
    assert why(path) == OTHER + NEIGHBOURS
    with FileSource(data_path(path, 10)) as source:
        assert named_instead(source, 0) == 7
    (path / "7").mkdir()
    write_segment(path / "7", middle, partition=7)
    assert why(path) == OTHER + f"{NEIGHBOURS} and {SAME}"


@pytest.mark.parametrize("same", [[10], [11, 12, 13]])
def test_it_is_the_first_record_that_stands_there_too(tmp_path: Path, middle: list[Record], same: list[int]) -> None:
    """Which is witness enough whatever a later record says."""
    mixed = of(middle, 0, at=[8])
    path = built(tmp_path / "s", mixed, beside=False)
    (path / "7").mkdir()
    others = of(make_records(20, size=31)[10:], 7)
    there = [one if one.transaction_id in same else other for one, other in zip(middle, others, strict=True)]
    write_segment(path / "7", there, partition=7)
    assert why(path) == (OTHER + SAME if 10 in same else None)


@pytest.mark.parametrize("size", [0, HEADER_SIZE - 1, HEADER_SIZE, HEADER_SIZE + 7])
def test_the_other_partition_s_files_may_be_cut(tmp_path: Path, middle: list[Record], size: int) -> None:
    path = built(tmp_path / "s", middle, beside=False)
    (path / "7").mkdir()
    write_segment(path / "7", middle, partition=7)
    index = index_path(path, 10, 7)
    index.write_bytes(index.read_bytes()[:size])
    assert why(path) == OTHER + SAME, "the first record stands where every segment begins"
    data = data_path(path, 10, 7)
    data.write_bytes(data.read_bytes()[:size])
    assert why(path) is None


class TestBeside:
    """How many of the segments beside one name the partition, and how many another."""

    def count(self, path: Path, first: int, key: object = KEY) -> tuple[int, int]:
        return beside(view_partition(path / "0", 0).segments, first, 0, key)  # type: ignore[arg-type]

    def test_the_eight_nearest_count(self, tmp_path: Path) -> None:
        """Nine on either side of segment 90: four of each are nearest, and then those farther away do not count."""
        records = make_records(190)
        segments = [records[at : at + 10] for at in range(0, 190, 10)]
        for at in (0, 1, 2, 3, 4, 14, 15, 16, 17, 18):
            segments[at] = of(segments[at], 7)
        path = build_directory(tmp_path / "s", {0: segments}, num_partitions=8)
        assert self.count(path, 90) == (8, 0)
        assert self.count(path, 80) == (7, 1)
        assert self.count(path, 0) == (4, 4)
        assert self.count(path, 180) == (4, 4)

    def test_the_segment_itself_and_what_cannot_be_read_say_nothing(self, tmp_path: Path) -> None:
        records = make_records(60)
        path = build_directory(tmp_path / "s", {0: [records[at : at + 10] for at in range(0, 60, 10)]})
        assert self.count(path, 20) == (5, 0)
        assert self.count(path, 25) == (6, 0)
        data_path(path, 0).unlink()
        assert self.count(path, 20) == (4, 0)
        data_path(path, 10).write_bytes(segment_header(1, 10).encode() + data_path(path, 10).read_bytes()[HEADER_SIZE:])
        assert self.count(path, 20) == (3, 0)
        damage(data_path(path, 30), HEADER_SIZE + 9)
        assert self.count(path, 20) == (2, 0)
        damage(data_path(path, 40), 20)  # the cluster key
        assert self.count(path, 20) == (1, 0)
        assert self.count(path, 20, None) == (2, 0), "without a key none is compared"
        views = view_partition(path / "0", 0).segments
        data_path(path, 50).unlink()
        assert beside(views, 20, 0, KEY) == (0, 0)

    def test_one_that_went_meanwhile_does_not_end_the_count(self, tmp_path: Path) -> None:
        records = make_records(60)
        path = build_directory(tmp_path / "s", {0: [records[at : at + 10] for at in range(0, 60, 10)]})
        views = view_partition(path / "0", 0).segments
        data_path(path, 10).unlink()
        data_path(path, 30).unlink()
        assert beside(views, 20, 0, KEY) == (3, 0)
        data_path(path, 10).mkdir()
        assert beside(views, 20, 0, KEY) == (3, 0), "nor does one that cannot be read"


def test_records_that_name_several_partitions_are_nobody_else_s(tmp_path: Path, middle: list[Record]) -> None:
    """A program wrote what it liked; the witnesses say nothing of whose they would be."""
    path = built(tmp_path / "s", of(middle, 6, at=[1]))
    entries = encode_entries([HEADER_SIZE + 60 * place for place in range(10)])
    index_path(path, 10).write_bytes(segment_header(0, 10).encode() + entries)
    assert why(path) is None
    path = built(tmp_path / "t", middle)
    index_path(path, 10).write_bytes(segment_header(0, 10).encode() + entries)
    assert why(path) is not None
