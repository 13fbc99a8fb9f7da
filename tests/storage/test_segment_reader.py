"""One segment open for reading: an index that lies costs no record, a record that is damaged is named where it stands."""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.builders import make_records, write_segment
from tests.storage.support import damage, offset_of, write_at
from waltzctl.engine.errors import CorruptRecordError
from waltzctl.engine.findings import Code
from waltzctl.engine.storage import segment_reader
from waltzctl.engine.storage.segment_files import BelievedRun, SegmentExtent, whole_extent
from waltzctl.engine.storage.segment_reader import ReaderCache, SegmentReader, corrupt_record, lost_record
from waltzctl.formats.checksums import crc32
from waltzctl.formats.segment import HEADER_SIZE, RECORD_OVERHEAD, Record, encode_records, index_name

COUNT = 12
FIRST = 20


@pytest.fixture(autouse=True, params=[segment_reader._FEW, 0], ids=["few", "many"])
def _form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Entries of the index are gone over in two ways, by how many they are."""
    monkeypatch.setattr(segment_reader, "_FEW", request.param)


@pytest.fixture
def records() -> list[Record]:
    return [one for n in range(COUNT) for one in make_records(1, first=FIRST + n, size=5 + 7 * n)]


@pytest.fixture
def extent(tmp_path: Path, records: list[Record]) -> SegmentExtent:
    directory = tmp_path / "0"
    directory.mkdir()
    write_segment(directory, records)
    return whole_extent(0, directory, FIRST, FIRST + COUNT, HEADER_SIZE + len(encode_records(records)[0]))


def entry(extent: SegmentExtent, number: int, offset: int) -> None:
    """Let the index say that a record stands somewhere."""
    write_at(Path(extent.index_path), HEADER_SIZE + 8 * (number - FIRST), struct.pack(">q", offset))


def reader(extent: SegmentExtent, longest: int = 1 << 20) -> SegmentReader:
    return SegmentReader(extent, max_data_length=longest, storage=Path(extent.data_path).parent.parent)


def corrupt(extent: SegmentExtent, number: int, *, end: bool = False) -> tuple[str, int | None, int | None]:
    """Code, offset and length of what is said of a record that cannot be served."""
    with pytest.raises(CorruptRecordError) as caught:
        reader(extent).end_of(extent, number) if end else reader(extent).read(extent, number)
    (found,) = caught.value.findings
    assert found.transaction_id == number
    return str(found.code), found.offset, found.length


def test_every_record_by_a_right_index(extent: SegmentExtent, records: list[Record]) -> None:
    held = reader(extent)
    for place, record in enumerate(records):
        assert held.read(extent, FIRST + place) == record
        assert held.end_of(extent, FIRST + place) == offset_of(records, FIRST + place + 1)
        assert list(held.read_from(extent, FIRST + place)) == records[place:]
    for number in (FIRST - 1, FIRST + COUNT):
        with pytest.raises(ValueError, match=f"transaction {number} lies in no run of "):
            held.read(extent, number)


@pytest.mark.parametrize("number", [FIRST, FIRST + 1, FIRST + 7, FIRST + COUNT - 1])
@pytest.mark.parametrize("wrong", range(1, COUNT + 1))
def test_an_entry_that_lies_costs_no_record(
    extent: SegmentExtent, records: list[Record], number: int, wrong: int
) -> None:
    """Nor do several in a row; without any it is reached from the beginning."""
    for one in range(max(FIRST, number - wrong + 1), number + 1):
        entry(extent, one, HEADER_SIZE + 1)
    assert reader(extent).read(extent, number) == records[number - FIRST]


@pytest.mark.turns(10)
def test_the_nearest_entry_that_is_right_is_gone_from(extent: SegmentExtent, records: list[Record]) -> None:
    """So that damage farther in front does no harm; 1, 2, 4 and 8 back are tried."""
    damage(Path(extent.data_path), offset_of(records, FIRST + 2) + 40)
    tried = ((8,), (8, 7), (8, 7, 6), (8, 6, 4), (8, 7, 5), (8, 7, 6, 5), (8, 7, 6, 4))
    for number, wrong, there in ((8, wrong, wrong != (8, 7, 6, 4)) for wrong in tried):
        for one in range(COUNT):
            entry(extent, FIRST + one, 5 if one in wrong else offset_of(records, FIRST + one))
        if there:
            assert reader(extent).read(extent, FIRST + number) == records[number]
        else:
            assert corrupt(extent, FIRST + number) == ("record-checksum", None, None)


@pytest.mark.turns(10)
def test_a_damaged_record_is_named_where_it_stands(extent: SegmentExtent, records: list[Record]) -> None:
    """Whatever its entry says."""
    place = offset_of(records, FIRST + 8)
    damage(Path(extent.data_path), place + 38)
    size = records[8].size
    assert corrupt(extent, FIRST + 8) == ("record-checksum", place, size)
    for lie in (offset_of(records, FIRST + 5), HEADER_SIZE + 1, 0, -1, 1 << 40):
        entry(extent, FIRST + 8, lie)
        assert corrupt(extent, FIRST + 8) == ("record-checksum", place, size)
    damage(Path(extent.data_path), place + 38)
    damage(Path(extent.data_path), offset_of(records, FIRST + 3) + 38)
    for one in range(4, 8):
        entry(extent, FIRST + one, HEADER_SIZE + 1)
    entry(extent, FIRST + 8, offset_of(records, FIRST + 5))
    assert corrupt(extent, FIRST + 8)[:2] == ("record-order", offset_of(records, FIRST + 5))


def test_each_kind_of_damage_has_its_code(extent: SegmentExtent, records: list[Record]) -> None:
    place, data = offset_of(records, FIRST + 4), Path(extent.data_path)
    whole = data.read_bytes()
    write_at(data, place, struct.pack(">q", 7))
    code, offset, _ = corrupt(extent, FIRST + 4)
    assert (code, offset) == ("record-checksum", place)
    data.write_bytes(whole)
    write_at(data, place + 28, struct.pack(">i", -1))
    assert corrupt(extent, FIRST + 4)[:2] == ("record-length", place)
    data.write_bytes(whole)
    other = Record(FIRST + 4, records[4].request_id, 1, records[4].data, records[4].data_checksum ^ 1, 0)
    raw = other.encode()
    write_at(data, place, raw[:-4] + struct.pack(">I", crc32(raw[:-4])))
    assert corrupt(extent, FIRST + 4) == ("data-checksum", place, records[4].size)
    assert reader(extent).end_of(extent, FIRST + 4) == place + records[4].size, "the record itself is sound"
    following = reader(extent).read_from(extent, FIRST)
    assert [next(following) for _ in range(4)] == records[:4]
    with pytest.raises(CorruptRecordError):
        next(following)
    assert list(reader(extent).read_from(extent, FIRST + 5)) == records[5:]


@pytest.mark.parametrize("longest", [5 + 7 * 4 - 1, 5 + 7 * 4])
def test_data_is_bounded_by_the_configured_maximum(extent: SegmentExtent, records: list[Record], longest: int) -> None:
    held = reader(extent, longest)
    assert held.read(extent, FIRST + 3) == records[3]
    if longest < len(records[4].data):
        with pytest.raises(
            CorruptRecordError, match="its length cannot be believed, or is above the configured maximum"
        ) as refused:
            held.read(extent, FIRST + 4)
        assert f"set waltzctl.maxDataLength to {longest + 1} or more" in f"{refused.value.advice}", (
            "a replica has no other"
        )
    else:
        assert held.read(extent, FIRST + 4) == records[4]


@pytest.mark.turns(8)
@pytest.mark.parametrize(("behind", "fits"), [(0, True), (1, False)])
def test_a_length_that_leads_behind_the_records_is_no_matter_of_the_maximum(
    extent: SegmentExtent, records: list[Record], behind: int, fits: bool
) -> None:
    place = HEADER_SIZE + sum(one.size for one in records[:4])
    length = extent.end - place - RECORD_OVERHEAD + behind
    write_at(Path(extent.data_path), place + 28, struct.pack(">i", length))
    with pytest.raises(CorruptRecordError) as refused:
        reader(extent, length - 1).read(extent, FIRST + 4)
    wanted = f"set waltzctl.maxDataLength to {length} " if fits else "another replica may have the record"
    assert wanted in f"{refused.value.advice}"
    with pytest.raises(CorruptRecordError) as refused:
        reader(extent, length).read(extent, FIRST + 4)
    assert "another replica may have the record" in f"{refused.value.advice}"


def test_without_an_index_records_are_reached_from_the_beginning(extent: SegmentExtent, records: list[Record]) -> None:
    Path(extent.index_path).unlink()
    with pytest.raises(FileNotFoundError):
        reader(extent)
    bare = SegmentExtent(0, FIRST, extent.data_path, extent.index_path, extent.runs, index_usable=False)
    held = reader(bare)
    for place in (0, 5, COUNT - 1):
        assert held.read(bare, FIRST + place) == records[place]
        assert held.read_list(bare, FIRST + place, 1, None, headers=False) is None
    held.close()
    held.close()


class TestRuns:
    """A segment of which only parts can be believed: 20 to 22 and 25 to 29."""

    @pytest.fixture
    def parts(self, extent: SegmentExtent, records: list[Record]) -> SegmentExtent:
        runs = tuple(
            BelievedRun(FIRST + low, FIRST + high, offset_of(records, FIRST + low), offset_of(records, FIRST + high))
            for low, high in ((0, 3), (5, 10))
        )
        return SegmentExtent(0, FIRST, extent.data_path, extent.index_path, runs)

    def test_each_run_is_read_to_its_end(self, parts: SegmentExtent, records: list[Record]) -> None:
        held = reader(parts)
        assert list(held.read_from(parts, FIRST)) == records[:3]
        assert list(held.read_from(parts, FIRST + 6)) == records[6:10]
        for number in (3, 4, 10, 11):
            with pytest.raises(ValueError, match="lies in no run"):
                held.read(parts, FIRST + number)

    def test_a_record_is_reached_within_its_run(self, parts: SegmentExtent, records: list[Record]) -> None:
        """From the run's own beginning, never from in front of it."""
        damage(Path(parts.data_path), offset_of(records, FIRST + 4) + 3)
        for wrong in range(5, 9):
            entry(parts, FIRST + wrong, HEADER_SIZE)
        for place in range(5, 9):
            assert reader(parts).read(parts, FIRST + place) == records[place]

    @pytest.mark.parametrize(
        ("first", "count", "found"), [(0, 9, 3), (0, 2, 2), (0, 3, 3), (2, 1, 1), (5, 9, 5), (9, 1, 1)]
    )
    def test_a_list_ends_with_its_run(
        self, parts: SegmentExtent, records: list[Record], first: int, count: int, found: int
    ) -> None:
        lists = reader(parts).read_list(parts, FIRST + first, count, None, headers=False)
        assert lists is not None
        assert lists.records == found
        assert lists.disk_bytes == sum(one.size for one in records[first : first + found])

    @pytest.mark.parametrize(
        ("changed", "to", "first", "fine"),
        [
            (5, 0, 5, True),
            (5, -1, 5, False),  # in front of the run
            (5, 1, 5, False),  # its record would be too short
            (10, 0, 5, True),
            (6, 1, 5, True),  # nobody needs it
            (6, -40, 5, True),
            (6, -41, 5, False),  # not even an empty record has room
            (9, 0, 9, True),
        ],
    )
    def test_entries_that_lead_out_of_the_run_are_not_believed(
        self, parts: SegmentExtent, records: list[Record], changed: int, to: int, first: int, fine: bool
    ) -> None:
        entry(parts, FIRST + changed, offset_of(records, FIRST + changed) + to)
        lists = reader(parts).read_list(parts, FIRST + first, 9, None, headers=False)
        assert (lists is not None and lists.records > 0) == fine
        assert list(reader(parts).read_from(parts, FIRST + first)) == records[first:10]

    def test_what_stands_behind_the_run_is_not_served_wherever_the_index_leads(
        self, parts: SegmentExtent, records: list[Record]
    ) -> None:
        """Other records under the same ids, intact, as a truncation that did not last may leave them."""
        behind = HEADER_SIZE + len(encode_records(records)[0])
        other = [Record.make(FIRST + 6 + n, records[6 + n].request_id, 0, b"other") for n in range(2)]
        body, offsets = encode_records(other)
        write_at(Path(parts.data_path), behind, body)
        for number, offset in zip((6, 7, 8), (*offsets, len(body)), strict=True):
            entry(parts, FIRST + number, behind + offset)
        assert reader(parts).read_list(parts, FIRST + 6, 2, None, headers=False) is None
        assert list(reader(parts).read_from(parts, FIRST + 6)) == records[6:10]


@pytest.mark.parametrize(("room", "found"), [(0, 1), (44, 1), (45, 1), (96, 1), (97, 2), (98, 2), (10**6, COUNT)])
def test_a_list_has_room_for_one_record_at_least(extent: SegmentExtent, room: int, found: int) -> None:
    """The first two have 45 and 52 bytes."""
    lists = reader(extent).read_list(extent, FIRST, COUNT, room, headers=True)
    assert lists is not None
    assert lists.records == found


@pytest.mark.parametrize("cut", [1, 8, 9])
def test_an_index_that_ends_early_tells_less(extent: SegmentExtent, records: list[Record], cut: int) -> None:
    path = Path(extent.index_path)
    path.write_bytes(path.read_bytes()[:-cut])
    last = COUNT - 1 - (cut > 8)
    held = reader(extent)
    assert held.read_list(extent, FIRST + last, 1, None, headers=False) is None
    assert held.read_list(extent, FIRST, COUNT, None, headers=False) is None
    found = held.read_list(extent, FIRST, last - 1, None, headers=False)
    assert found is not None
    assert found.records == last - 1
    assert held.read(extent, FIRST + last) == records[last]


class TestCache:
    """Segments open for reading, the least recently used closed first."""

    @pytest.fixture
    def extents(self, tmp_path: Path) -> Sequence[SegmentExtent]:
        directory = tmp_path / "1"
        directory.mkdir()
        made = []
        for first in range(0, 40, 10):
            part = make_records(first + 10)[first:]
            write_segment(directory, part)
            made.append(whole_extent(1, directory, first, first + 10, HEADER_SIZE + sum(one.size for one in part)))
        return made

    def open_ones(self, cache: ReaderCache, extents: Sequence[SegmentExtent]) -> list[int]:
        """Without a change of their order: the newest is asked about last."""
        return [place for place, one in enumerate(extents) if one.first_transaction_id in cache._open]

    def test_the_least_recently_used_is_closed(self, extents: Sequence[SegmentExtent]) -> None:
        cache = ReaderCache(2, max_data_length=1 << 20, storage=None)
        for place, left in ((0, [0]), (1, [0, 1]), (0, [0, 1]), (2, [0, 2]), (3, [2, 3])):
            cache.give_back(cache.take(extents[place]))
            assert self.open_ones(cache, extents) == left
            assert len(cache) == len(left)
        assert cache.opened(extents[0]) is None
        assert cache.opened(extents[2]) is not None
        cache.give_back(cache.take(extents[0]))
        assert self.open_ones(cache, extents) == [0, 2]
        cache.close()
        assert len(cache) == 0

    def test_one_in_use_is_closed_behind_its_last_user(self, extents: Sequence[SegmentExtent]) -> None:
        cache = ReaderCache(0, max_data_length=1 << 20, storage=None)
        first, again = cache.take(extents[0]), cache.take(extents[0])
        assert first is again
        cache.give_back(cache.take(extents[1]))
        assert len(cache) == 2, "one open, one that is on its way"
        assert self.open_ones(cache, extents) == [1]
        for _ in range(2):
            assert first.read(extents[0], 3).transaction_id == 3
            cache.give_back(first)
        assert len(cache) == 1
        with pytest.raises(Exception, match="closed"):
            first.read(extents[0], 3)
        cache.forget(10)
        cache.forget(20)
        assert len(cache) == 0

    def test_forgetting_and_closing_wait_for_users(self, extents: Sequence[SegmentExtent]) -> None:
        cache = ReaderCache(3, max_data_length=1 << 20, storage=None)
        used, unused = cache.take(extents[0]), cache.take(extents[1])
        cache.give_back(unused)
        cache.forget(0)
        assert used.read(extents[0], 3).transaction_id == 3
        fresh = cache.take(extents[0])
        assert fresh is not used
        cache.close()
        assert len(cache) == 2
        cache.give_back(used)
        assert fresh.read(extents[0], 3).transaction_id == 3
        cache.give_back(fresh)
        assert len(cache) == 0


def test_what_is_said_of_a_record_that_cannot_be_served(extent: SegmentExtent) -> None:
    data, storage = Path(extent.data_path), Path(extent.data_path).parent.parent
    error = corrupt_record(extent, 25, Code.RECORD_ORDER, 300, 50, storage)
    assert str(error).startswith(
        f"{data}: partition 0, transaction 25 at offset 300: another transaction stands in its place"
    )
    (found,) = error.findings
    assert (found.code, found.partition, found.segment, found.transaction_id) == (Code.RECORD_ORDER, 0, FIRST, 25)
    assert (found.offset, found.length, found.message) == (
        300,
        50,
        "transaction 25: another transaction stands in its place",
    )
    unplaced = corrupt_record(extent, 25, Code.RECORD_CHECKSUM, None, None, storage)
    assert "transaction 25: its checksum is wrong" in str(unplaced)
    for where, number, path, code, said, segment in (
        (extent, FIRST + COUNT - 1, data, Code.RECORD_CHECKSUM, "it is damaged", FIRST),
        (extent, FIRST + COUNT, data, Code.SEGMENT_GAP, "it is missing", FIRST),
        (None, 3, data.parent, Code.SEGMENT_GAP, "it is missing", None),
    ):
        error = lost_record(data.parent, storage, number, where)
        assert str(error).startswith(f"{path}: partition 0, transaction {number}: {said}")
        (found,) = error.findings
        assert (found.code, found.path, found.segment, found.transaction_id) == (code, path, segment, number)
        assert (found.partition, found.message) == (0, f"transaction {number}: {said}")
    assert index_name(FIRST) == Path(extent.index_path).name


def test_a_segment_whose_index_cannot_be_opened_leaves_nothing_open(extent: SegmentExtent) -> None:
    Path(extent.index_path).unlink()
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(FileNotFoundError):
        SegmentReader(extent, max_data_length=1 << 20, storage=None)
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("room", [None, 96, 1 << 40])
def test_no_more_is_read_at_a_time_than_memory_is_meant_for(
    extent: SegmentExtent, monkeypatch: pytest.MonkeyPatch, room: int | None
) -> None:
    """However much the peer has room for."""
    monkeypatch.setattr(segment_reader, "LIST_BYTES", 150)
    found = reader(extent).read_list(extent, FIRST, COUNT, room, headers=False)
    assert found is not None
    assert found.records == (1 if room == 96 else 2)
    assert found.disk_bytes <= 150
