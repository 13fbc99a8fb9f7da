"""Figures by which the storage engine judges and reads: each one said once more, and each step of what follows from it."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path, PurePath

import pytest

from tests.builders import KEY, build_directory, make_records, segment_header, write_segment
from tests.repair.trees import recording
from tests.storage.support import built, damage, data_path, index_path, offset_of, write_at
from waltzctl.engine.errors import InvalidRequestError
from waltzctl.engine.log.evidence import Evidence
from waltzctl.engine.log.view import PartitionView, SegmentView, view_partition
from waltzctl.engine.scan.byte_source import FileSource
from waltzctl.engine.storage import batch, belonging, segment_reader
from waltzctl.engine.storage.append import AppendSession, PendingRecord
from waltzctl.engine.storage.directory import StorageDirectory
from waltzctl.engine.storage.partition_recovery import (
    Examination,
    examine_partition,
    renew_last_index,
    settle_partition,
)
from waltzctl.engine.storage.segment_files import BelievedRun, SegmentExtent, whole_extent
from waltzctl.engine.storage.segment_recovery import SegmentPlace, SegmentState
from waltzctl.formats.request_id import RequestId
from waltzctl.formats.segment import HEADER_SIZE, Record, encode_entries


def test_figures_that_decide() -> None:
    assert (belonging._SAMPLE, belonging._MAX_SAMPLED, belonging._CONFIRMED) == (4, 1 << 20, 16 << 20)
    assert belonging.NEIGHBOURS == 8
    assert belonging.beside((), 0, 0, None) == (0, 0)


def test_of_a_segment_that_cannot_be_read_nobody_knows_the_end() -> None:
    for extents, below in (((extent(0, (0, 5)), None), 2**63), ((None,), 2**63), ((extent(0, (0, 5)),), 7), ((), 7)):
        found = examined(*extents)
        assert found.lost_below == below
        assert found.extents == tuple(one for one in extents if one is not None)


def extent(first: int, *runs: tuple[int, int]) -> SegmentExtent:
    """By ids alone."""
    return replace(
        whole_extent(0, PurePath("s/0"), first, first, 0), runs=tuple(BelievedRun(*run, 0, 0) for run in runs)
    )


def examined(*extents: SegmentExtent | None) -> Examination:
    place, view = SegmentPlace(Path("s"), 0, KEY, 1 << 20), PartitionView(0, Path("s/0"), ())
    states = tuple(SegmentState(SegmentView(0, 0, None, None), one) for one in extents)
    return Examination(PurePath("s/0"), place, view, states, None, (), True, Evidence(mark=7))


@pytest.mark.parametrize(
    ("extents", "following"),
    [
        ((), 0),
        ((extent(0),), 0),
        ((extent(0, (0, 5)),), 5),
        ((extent(1, (1, 5)),), 0),
        ((None, extent(5, (5, 9))), 0),
        ((extent(0, (0, 5)), extent(5, (5, 9)), extent(9)), 9),
        ((extent(0, (0, 5)), None, extent(5, (5, 9))), 5),
        ((extent(0, (0, 5)), extent(6, (6, 9))), 5),
        ((extent(0, (0, 5)), extent(4, (4, 6)), extent(5, (5, 9))), 5),
        ((extent(0, (0, 3), (4, 5)), extent(5, (5, 9))), 3),
        ((extent(0, (0, 3), (4, 5)), extent(3, (3, 9))), 3),
        ((extent(0, (1, 5)), extent(5, (5, 9))), 0),
    ],
)
def test_the_first_transaction_that_is_not_there(extents: Sequence[SegmentExtent | None], following: int) -> None:
    assert examined(*extents).contiguous_next == following


# --- whose records ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("count", "wrong", "strange"),
    [
        (4, (), False),
        (4, (1,), False),
        (4, (1, 2), True),
        (4, (2, 3), True),
        (4, (1, 2, 3), True),
        (3, (1,), False),
        (3, (1, 2), True),
        (2, (1,), True),
        (1, (), False),
    ],
)
def test_most_entries_lead_elsewhere(tmp_path: Path, count: int, wrong: Sequence[int], strange: bool) -> None:
    (tmp_path / "0").mkdir()
    records = make_records(count, first=10, size=30)
    write_segment(tmp_path / "0", records)
    entries = [HEADER_SIZE + 70 * place + (place in wrong) for place in range(count)]
    path = index_path(tmp_path, 10)
    for header, told in (
        (segment_header(0, 10), strange),
        (segment_header(1, 10), False),
        (segment_header(0, 9), False),
    ):
        path.write_bytes(header.encode() + encode_entries(entries))
        (segment,) = view_partition(tmp_path / "0", 0).segments
        with FileSource(segment.data_path) as source:
            head = list(belonging._head(source, 1))
        assert len(head) == count
        assert belonging._not_indexed(segment, 0, head) == told
    for falling in (1, count - 1) if strange else ():
        path.write_bytes(
            segment_header(0, 10).encode() + encode_entries([*entries[:falling], *entries[: count - falling]])
        )
        (segment,) = view_partition(tmp_path / "0", 0).segments
        assert not belonging._not_indexed(segment, 0, head), "what does not rise is a damaged index"


@pytest.mark.parametrize(("there", "found"), [(10, True), (13, False)])
def test_the_first_record_is_looked_for_in_the_other_directory(tmp_path: Path, there: int, found: bool) -> None:
    records = [Record.make(n, RequestId(1, 2, 7, n), 0, b"x" * 30) for n in range(10, 20)]
    path = build_directory(tmp_path / "s", {0: [make_records(10), records, []]}, num_partitions=8)
    for beside in (0,):
        data_path(path, beside).unlink()
    (path / "7").mkdir()
    write_segment(path / "7", [one for one in records if one.transaction_id == there], partition=7)
    (segment,) = [one for one in view_partition(path / "0", 0).segments if one.first_transaction_id == 10]
    with FileSource(segment.data_path) as source:
        assert (belonging.stranger(segment, source, 0, KEY) is not None) == found


# --- opening ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mark", "session", "sound"),
    [(None, -1, True), (-1, -1, True), (-1, 0, False), (-1, 5, False), (None, 0, False), (0, -1, False)],
)
def test_an_empty_partition_in_which_no_session_began(
    tmp_path: Path, mark: int | None, session: int, sound: bool
) -> None:
    (tmp_path / "0").mkdir()
    place = SegmentPlace(tmp_path, 0, KEY, 1 << 20)
    found = examine_partition(tmp_path / "0", place, local_low_water_mark=mark, session_id=session)
    assert found.quarantined != sound


def test_of_the_last_segment_what_is_read_is_durable(tmp_path: Path) -> None:
    built(tmp_path, 30)
    with recording() as changes:
        settle_partition(tmp_path / "0", 0)
    assert [(one.kind, one.path) for one in changes] == [
        ("sync", data_path(tmp_path, 20)), ("sync", index_path(tmp_path, 20)), ("sync-directory", tmp_path / "0"),
    ]  # fmt: skip
    before = index_path(tmp_path, 20).read_bytes()
    with recording() as changes:
        renew_last_index(tmp_path / "0", 0)
    assert [one.target for one in changes if one.kind == "rename"] == [index_path(tmp_path, 20)]
    assert index_path(tmp_path, 20).read_bytes() == before
    index_path(tmp_path, 20).unlink()
    for change in (settle_partition, renew_last_index):
        with recording() as changes:
            change(tmp_path / "0", 0)
        assert all(one.path != index_path(tmp_path, 10) for one in changes)
        assert not index_path(tmp_path, 20).exists()


# --- appending ----------------------------------------------------------------------------------------------------


def test_what_of_the_pieces_is_written() -> None:
    pieces = (b"01234", b"", memoryview(b"567"), b"89")
    joined = b"0123456789"
    for start in range(11):
        for stop in range(start, 11):
            found = batch._cut(pieces, start, stop)
            assert b"".join(found) == joined[start:stop]
            assert all(found)


@pytest.mark.parametrize(
    ("value", "fits"), [(2**31 - 1, True), (2**31, False), (-(2**31), True), (-(2**31) - 1, False)]
)
@pytest.mark.parametrize("field", ["header", "client", "generation", "partition", "sequence"])
def test_fields_of_32_bits(tmp_path: Path, value: int, fits: bool, field: str) -> None:
    build_directory(tmp_path, {0: 5})
    words = {"client": 1, "generation": 2, "partition": 3, "sequence": 4}
    header = value if field == "header" else 0
    item = PendingRecord(b"x", header, RequestId(**(words if field == "header" else {**words, field: value})))
    with StorageDirectory.open(tmp_path, partitions=()) as storage:
        session = AppendSession(storage, 0)
        if fits:
            assert session._record(5, 0, item).header == header
        else:
            with pytest.raises(InvalidRequestError, match=r"transaction 5: header .* must be signed 32-bit integers"):
                session._record(5, 0, item)


def test_request_ids_of_a_session(tmp_path: Path) -> None:
    build_directory(tmp_path, {1: 5}, session=2**33 + 4, num_partitions=2)
    with StorageDirectory.open(tmp_path, partitions=()) as storage:
        session = AppendSession(storage, 1)
        assert session.session_id == 2**33 + 5
        for place in (0, 1, 2, 3, 2**31 - 1):
            assert session._record(9, place, PendingRecord(b"x")).request_id == RequestId(0, 5, 1, place)
        assert (session.records, session.bytes) == (0, 0)
        session.append([PendingRecord(b"xyz"), PendingRecord(b"")])
        assert (session.records, session.bytes) == (2, 83)
        session.append([PendingRecord(b"x")])
        assert (session.records, session.bytes, session.last_transaction_id) == (3, 124, 7)
        assert session.result.first_transaction_id == 5


# --- reading ------------------------------------------------------------------------------------------------------


def test_what_an_entry_may_say(tmp_path: Path) -> None:
    records = make_records(3, size=30)
    (tmp_path / "0").mkdir()
    write_segment(tmp_path / "0", records)
    end = HEADER_SIZE + 210
    extent = whole_extent(0, tmp_path / "0", 0, 3, end)
    reader = segment_reader.SegmentReader(extent, max_data_length=100, storage=tmp_path)
    for said, answer in ((-1, None), (127, None), (128, 128), (129, 129), (end - 40, end - 40), (end - 39, None)):
        write_at(index_path(tmp_path), HEADER_SIZE + 8, struct.pack(">q", said))
        assert reader._entry(extent, 1) == answer
    assert reader._entry(extent, 3) is None
    reader.close()


def test_a_record_is_reached_from_the_second_one_of_its_run(tmp_path: Path) -> None:
    """The first one is damaged, and its own entry lies."""
    records = make_records(4, size=30)
    (tmp_path / "0").mkdir()
    write_segment(tmp_path / "0", records)
    extent = whole_extent(0, tmp_path / "0", 0, 4, HEADER_SIZE + 280)
    damage(data_path(tmp_path), offset_of(records, 0) + 45)
    write_at(index_path(tmp_path), HEADER_SIZE + 16, struct.pack(">q", 1))
    reader = segment_reader.SegmentReader(extent, max_data_length=100, storage=tmp_path)
    assert reader.read(extent, 2) == records[2]
    reader.close()


@pytest.mark.parametrize("ahead", [1, 69, 70, 71, 200, 10_000])
def test_no_more_is_read_ahead_than_allowed_nor_behind_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ahead: int
) -> None:
    records = make_records(20, size=30)
    (tmp_path / "0").mkdir()
    write_segment(tmp_path / "0", records)
    extent = whole_extent(0, tmp_path / "0", 0, 15, HEADER_SIZE + 70 * 15)
    reads: list[tuple[int, int]] = []
    real = segment_reader.read_bytes

    def counted(source: FileSource, offset: int, length: int) -> bytes:
        if source.name.endswith("seg"):
            reads.append((offset, length))
        return real(source, offset, length)

    monkeypatch.setattr(segment_reader, "READ_AHEAD", ahead)
    monkeypatch.setattr(segment_reader, "read_bytes", counted)
    reader = segment_reader.SegmentReader(extent, max_data_length=100, storage=tmp_path)
    assert list(reader.read_from(extent, 3)) == records[3:15]
    assert reads
    assert all(length <= ahead and offset + length <= extent.end for offset, length in reads)
    reader.close()


def test_what_is_known_of_a_segment_with_gaps() -> None:
    """Records 12 to 14, and 17 and 18: 15 and 16 cannot be read, and neither can the first ones of the other."""
    directory = PurePath("s/0")
    first, second = BelievedRun(12, 15, 128, 300), BelievedRun(17, 19, 400, 500)

    def known(begins: int, *runs: BelievedRun) -> tuple[int, int, int, list[int]]:
        extent = replace(whole_extent(0, directory, begins, begins, 128), runs=runs)
        found = [number for number in range(10, 22) if extent.run_of(number) is not None]
        return extent.next_transaction_id, extent.end, extent.contiguous_next, found

    assert known(12, first, second) == (19, 500, 15, [12, 13, 14, 17, 18])
    assert known(12, first) == (15, 300, 15, [12, 13, 14])
    assert known(11, first, second) == (19, 500, 11, [12, 13, 14, 17, 18])
    assert known(12) == (12, 128, 12, [])
    assert whole_extent(0, directory, 12, 12, 128).runs == ()
    assert whole_extent(0, directory, 12, 13, 171).runs == (BelievedRun(12, 13, 128, 171),)
    assert whole_extent(0, directory, 12, 13, 171).grown(15, 300).runs == (first,)
