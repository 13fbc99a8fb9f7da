"""What proves that transactions were in a partition, each witness one step to each side, and that nobody opens past it."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from tests.builders import CREATED, build_directory, digest, make_records, segment_header
from tests.storage.support import assert_quarantined_and_kept, codes, data_path, entries, index_path, opened
from waltzctl.engine.errors import PartitionQuarantinedError, RefusedError
from waltzctl.engine.log import evidence as evidence_module
from waltzctl.engine.log.evidence import Evidence, checkpointed, evidence, written_entries
from waltzctl.engine.log.view import view_partition
from waltzctl.engine.losses import without
from waltzctl.engine.storage.append import AppendSession, PendingRecord
from waltzctl.engine.storage.loss_ledger import ledger_path, still_lost
from waltzctl.formats.accepted_losses import AcceptedLoss, encode_ledger
from waltzctl.formats.control import Layout
from waltzctl.formats.segment import ENTRY_SIZE, HEADER_SIZE, SegmentHeader, encode_entries, entry_position

LAYOUTS = pytest.mark.parametrize("layout", list(Layout))


def proven(path: Path, mark: int | None = -1, *accepted: AcceptedLoss) -> Evidence:
    return evidence(view_partition(path / "0", 0), mark, accepted)


def loss(first: int, last: int, mark: int = -1) -> AcceptedLoss:
    return AcceptedLoss(0, first, last, mark, "2026-11-22T08:51:18.000Z", "test")


@pytest.mark.parametrize(
    ("first", "entries", "expected"),
    [
        (0, -1, 0),
        (1000, -1, 1000),
        (0, 0, 0),
        (0, 1, 0),
        (1000, 0, 1000),
        (1000, 1001, 2000),
        (0, 1000, 0),
        (0, 1001, 1000),
        (0, 2000, 1000),
        (0, 2001, 2000),
        (999, 1, 999),
        (999, 2, 1000),
        (1500, 0, 1500),
        (1500, 500, 1500),
        (1500, 501, 2000),
        (1000, 1, 1000),
    ],
)
def test_a_record_behind_a_checkpoint_proves_those_in_front_of_it(first: int, entries: int, expected: int) -> None:
    """The entry of transaction k * 1000 is written only once index and data up to k * 1000 - 1 are durable."""
    assert checkpointed(first, entries) == expected


def test_each_witness(tmp_path: Path) -> None:
    build_directory(tmp_path, {0: 30}, per_segment=10)
    assert proven(tmp_path).required == 20, "the last segment is called after 20"
    assert proven(tmp_path, 24).required == 25
    assert proven(tmp_path, 18).required == 20
    assert proven(tmp_path, None).required == 20
    data_path(tmp_path, first=20).unlink()
    assert proven(tmp_path) == Evidence(names=20, without_data=30, index_without_data=20)
    os.truncate(index_path(tmp_path, first=20), entry_position(29, 20))
    assert proven(tmp_path).required == 29
    data_path(tmp_path, first=20).write_bytes(bytes(HEADER_SIZE - 1))
    assert proven(tmp_path).required == 29, "a data file that ends inside its header is as good as none"
    data_path(tmp_path, first=20).write_bytes(segment_header(0, 20).encode())
    assert proven(tmp_path).required == 20, "beside a data file only a checkpoint proves anything"
    index_path(tmp_path, first=31).write_bytes(segment_header(0, 31).encode())
    assert proven(tmp_path).required == 31
    assert evidence(None, 9).required == 10
    assert evidence(None, None).next_id == 0


def test_an_accepted_loss_is_evidence_that_nothing_requires(tmp_path: Path) -> None:
    build_directory(tmp_path, {0: 30}, per_segment=10)
    found = proven(tmp_path, -1, loss(30, 35), loss(3, 4))
    assert (found.required, found.next_id) == (20, 36)


@pytest.mark.parametrize(("zeros", "expected"), [(0, 1000), (1, 1000), (2, 0), (500, 0), (1002, 0)])
def test_zeros_at_the_end_of_an_index_are_no_entries(tmp_path: Path, zeros: int, expected: int) -> None:
    """A crash leaves a length whose bytes never came; 1002 entries, of which the last ones are zero."""
    build_directory(tmp_path, {0: 1002}, per_segment=2000, size=0)
    data_path(tmp_path).write_bytes(segment_header(0, 0).encode())
    index = bytearray(index_path(tmp_path).read_bytes())
    if zeros:
        index[-zeros * ENTRY_SIZE :] = bytes(zeros * ENTRY_SIZE)
    index_path(tmp_path).write_bytes(index + bytes(100_000 * ENTRY_SIZE if zeros else 0))
    assert proven(tmp_path).required == expected


def test_the_index_of_another_partition_proves_nothing_beside_a_data_file(tmp_path: Path) -> None:
    build_directory(tmp_path, {0: 5, 1: 1500}, per_segment=2000, size=0)
    index_path(tmp_path).write_bytes(index_path(tmp_path, partition=1).read_bytes())
    assert proven(tmp_path).required == 0
    data_path(tmp_path).unlink()
    assert proven(tmp_path).required == 1500, "without one nobody gives these ids away before a person has looked"


@pytest.mark.parametrize("place", [31, 39], ids=["partition", "first id"])
def test_an_index_with_one_wrong_field_proves_what_it_lists_by_where_its_entries_lead(
    tmp_path: Path, place: int
) -> None:
    build_directory(tmp_path, {0: 1500}, per_segment=2000)
    records = make_records(1500)
    data = data_path(tmp_path).read_bytes()
    data_path(tmp_path).write_bytes(data[: HEADER_SIZE + sum(one.size for one in records[:992])])
    index = bytearray(index_path(tmp_path).read_bytes())
    index[place] ^= 4
    index_path(tmp_path).write_bytes(index)
    assert proven(tmp_path).required == 1000
    index[HEADER_SIZE + 8 * 495 + 7] ^= 1
    index[HEADER_SIZE + 8 * 496 + 7] ^= 1
    index_path(tmp_path).write_bytes(index)
    assert proven(tmp_path).required == 0, "the entries lead elsewhere: it may be another one's"


def test_an_index_with_one_wrong_field_proves_nothing_by_records_of_other_ids(tmp_path: Path) -> None:
    build_directory(tmp_path, {0: 1500}, per_segment=2000)
    whole = entries(index_path(tmp_path))
    header = bytearray(index_path(tmp_path).read_bytes()[:HEADER_SIZE])
    header[31] ^= 4
    index_path(tmp_path).write_bytes(bytes(header) + encode_entries(whole))
    assert proven(tmp_path).required == 1000
    index_path(tmp_path).write_bytes(bytes(header) + encode_entries([*whole[1:], whole[-1]]))
    assert proven(tmp_path).required == 0, "each entry leads to the record behind its own"


@pytest.mark.parametrize(
    ("wanted", "held", "rest"),
    [
        ((3, 6), [], [(3, 6)]),
        ((3, 6), [(0, 3), (6, 9)], [(3, 6)]),
        ((3, 6), [(0, 4)], [(4, 6)]),
        ((3, 6), [(5, 9)], [(3, 5)]),
        ((3, 6), [(4, 5)], [(3, 4), (5, 6)]),
        ((3, 6), [(4, 6), (0, 4)], []),
        ((3, 6), [(3, 6)], []),
    ],
)
def test_what_is_held_is_taken_away(
    wanted: tuple[int, int], held: list[tuple[int, int]], rest: list[tuple[int, int]]
) -> None:
    assert without(wanted, held) == rest


@pytest.mark.parametrize(
    ("then", "mark", "over"),
    [
        (9, 9, False),
        (9, 14, False),
        (9, 15, True),
        (9, 16, True),
        (15, 15, False),
        (20, 20, False),
        (20, 21, True),
        (9, None, False),
    ],
)
def test_a_loss_is_over_when_the_mark_has_risen_to_its_last(then: int, mark: int | None, over: bool) -> None:
    """Transactions 10 to 15; a mark that was above them then says nothing until it rises."""
    assert (still_lost(loss(10, 15, then), [], mark) == []) == over


# --- opening and writing -----------------------------------------------------------------------------------------------


@LAYOUTS
@pytest.mark.parametrize(("kept", "sound"), [(999, False), (1000, True), (1001, True)])
def test_a_data_file_that_ends_in_front_of_a_checkpoint_of_its_index_quarantines(
    tmp_path: Path, layout: Layout, kept: int, sound: bool
) -> None:
    """Cut to a record boundary; the index leads one behind transaction 1000."""
    build_directory(tmp_path, {0: 1001}, layout=layout, per_segment=2000, size=0, local_low_water_mark=-1)
    os.truncate(data_path(tmp_path), HEADER_SIZE + 40 * kept)
    before = digest(tmp_path)
    if not sound:
        assert_quarantined_and_kept(tmp_path, before, "durable-missing")
        return
    with opened(tmp_path) as storage:
        assert storage.partition(0).next_transaction_id == kept
    assert len(entries(index_path(tmp_path))) == kept


@pytest.mark.parametrize(("torn", "sound"), [(999, False), (1000, True)])
def test_a_torn_end_in_front_of_a_checkpoint_is_no_crash(tmp_path: Path, torn: int, sound: bool) -> None:
    build_directory(tmp_path, {0: 1001}, per_segment=2000, size=0, local_low_water_mark=-1)
    os.truncate(data_path(tmp_path), HEADER_SIZE + 40 * torn + 39)
    before = digest(tmp_path)
    if sound:
        with opened(tmp_path) as storage:
            assert storage.partition(0).next_transaction_id == 1000
    else:
        assert_quarantined_and_kept(tmp_path, before, "torn-tail")


@LAYOUTS
@pytest.mark.parametrize("size", [0, 103, 127])
def test_a_last_data_file_without_header_and_an_index_with_entries_quarantine(
    tmp_path: Path, layout: Layout, size: int
) -> None:
    build_directory(tmp_path, {0: 30}, layout=layout, per_segment=10, local_low_water_mark=-1)
    os.truncate(data_path(tmp_path, first=20), size)
    assert_quarantined_and_kept(tmp_path, digest(tmp_path), "segment-header-short")


@LAYOUTS
@pytest.mark.parametrize(("name", "sound"), [(30, True), (31, False)])
def test_the_name_of_an_index_proves_what_is_in_front_of_it(
    tmp_path: Path, layout: Layout, name: int, sound: bool
) -> None:
    build_directory(tmp_path, {0: 30}, layout=layout, per_segment=10, local_low_water_mark=-1)
    index_path(tmp_path, first=name).write_bytes(segment_header(0, name).encode())
    before = digest(tmp_path)
    if sound:
        with opened(tmp_path) as storage:
            assert codes(storage.findings) == ["index-orphan"]
            storage.partition(0).append(make_records(1, first=30))
    else:
        assert_quarantined_and_kept(tmp_path, before, "index-orphan", "durable-missing")


@LAYOUTS
def test_an_empty_directory_in_which_a_session_began_is_quarantined(tmp_path: Path, layout: Layout) -> None:
    build_directory(tmp_path, {0: 3}, layout=layout, session=0, local_low_water_mark=-1)
    for path in (tmp_path / "0").iterdir():
        path.unlink()
    with opened(tmp_path) as storage:
        assert codes(storage.findings) == ["partition-empty"]
        with pytest.raises(PartitionQuarantinedError):
            storage.partition(0).append(make_records(1))
    build_directory(tmp_path / "new", {0: 3}, layout=layout, session=-1, local_low_water_mark=-1)
    for path in (tmp_path / "new" / "0").iterdir():
        path.unlink()
    with opened(tmp_path / "new") as storage:
        storage.partition(0).append(make_records(1))


@LAYOUTS
def test_a_lost_transaction_that_a_file_proves_is_an_error_to_read(tmp_path: Path, layout: Layout) -> None:
    """Never "there is none": somebody may have been told of it."""
    build_directory(tmp_path, {0: 1500}, layout=layout, per_segment=2000, size=0, local_low_water_mark=-1)
    os.truncate(data_path(tmp_path), HEADER_SIZE + 40 * 700)
    with opened(tmp_path) as storage:
        partition = storage.partition(0)
        assert partition.read(699) is not None
        for number in (700, 999):
            with pytest.raises(Exception, match=f"transaction {number}"):
                partition.read(number)
        assert partition.read(1000) is None


@LAYOUTS
def test_ids_of_an_accepted_loss_are_not_given_away_by_append_but_by_a_cluster(tmp_path: Path, layout: Layout) -> None:
    build_directory(tmp_path, {0: 10}, layout=layout, local_low_water_mark=9)
    ledger = ledger_path(tmp_path)
    ledger.parent.mkdir()
    ledger.write_bytes(encode_ledger([loss(10, 12, 9)]))
    with opened(tmp_path) as storage:
        assert not storage.partition(0).quarantined, "a server can bring it up to date"
        with pytest.raises(RefusedError, match="transactions up to 12 were here"):
            AppendSession(storage, 0)
        storage.partition(0).append(make_records(2, first=10))
        with pytest.raises(RefusedError, match="transactions up to 12 were here"):
            AppendSession(storage, 0)
        storage.partition(0).append(make_records(1, first=12))
        AppendSession(storage, 0).append([PendingRecord(b"x")])
        assert storage.partition(0).max_transaction_id == 13
    ledger.write_bytes(b"torn")
    with opened(tmp_path) as storage, pytest.raises(RefusedError, match="cannot be read in full"):
        AppendSession(storage, 0)


@LAYOUTS
def test_a_deleted_partition_takes_its_losses_with_it(tmp_path: Path, layout: Layout) -> None:
    build_directory(tmp_path, {0: 10, 1: 10}, layout=layout)
    ledger = ledger_path(tmp_path)
    ledger.parent.mkdir()
    ledger.write_bytes(encode_ledger([loss(10, 12), AcceptedLoss(1, 10, 12, -1, "2026-11-22T08:51:18.000Z", "test")]))
    with opened(tmp_path) as storage:
        storage.unassign(0, delete_files=True)
        assert b'"partition":1' in ledger.read_bytes()
        assert b'"partition":0' not in ledger.read_bytes()
        storage.unassign(1, delete_files=True)
    assert not ledger.exists()


@pytest.mark.parametrize(
    ("found", "required", "next_id", "said"),
    [
        (Evidence(), 0, 0, "the local low-water mark is -1"),
        (Evidence(mark=5, names=5, without_data=5, with_data=5), 5, 5, "the local low-water mark is 4"),
        (Evidence(mark=4, names=5), 5, 5, "a file is called after transaction 5, which was only begun behind 4"),
        (
            Evidence(names=5, without_data=5, index_without_data=3),
            5,
            5,
            "the index of segment 3, whose data file is gone, ends with 4",
        ),
        (
            Evidence(
                names=1000, without_data=1000, with_data=1000, index_with_data=7, index_without_data=3, accepted=1001
            ),
            1000,
            1001,
            "segment 7's index leads behind the checkpoint of transaction 999",
        ),
        (Evidence(mark=3, accepted=2), 3, 3, "the local low-water mark is 2"),
    ],
)
def test_who_says_it(found: Evidence, required: int, next_id: int, said: str) -> None:
    assert (found.required, found.next_id, found.said_by()) == (required, next_id, said)


def empty(path: Path, first: int, entries: int, *, data: int | None = HEADER_SIZE, partition: int = 0) -> None:
    """A segment of whose records none is left: an index of `entries`, and a data file of `data` bytes."""
    header = segment_header(partition, first).encode()
    places = encode_entries([HEADER_SIZE + 40 * place for place in range(entries)])
    index_path(path, first).write_bytes(header + places)
    if data is not None:
        data_path(path, first).write_bytes(header[:data])


@pytest.mark.parametrize(
    ("segments", "expected"),
    [
        # first id, entries, bytes of the data file
        ([(0, 0, None)], Evidence()),
        ([(0, 1, None)], Evidence(without_data=1, index_without_data=0)),
        ([(7, 0, None)], Evidence(names=7)),
        ([(7, 1, None)], Evidence(names=7, without_data=8, index_without_data=7)),
        ([(7, 1, 127)], Evidence(names=7, without_data=8, index_without_data=7)),
        ([(7, 1, 128)], Evidence(names=7)),
        ([(0, 9, None), (4, 5, None)], Evidence(names=4, without_data=9, index_without_data=4)),
        ([(0, 10, None), (4, 5, None)], Evidence(names=4, without_data=10, index_without_data=0)),
        ([(0, 1000, 128)], Evidence()),
        ([(0, 1001, 128)], Evidence(with_data=1000, index_with_data=0, listed=1001)),
        ([(0, 1001, 128), (999, 1, 128)], Evidence(names=999, with_data=1000, index_with_data=0, listed=1001)),
        ([(0, 1001, 128), (1000, 1, 128)], Evidence(names=1000)),
        ([(0, 1003, 128), (999, 2, 128)], Evidence(names=999, with_data=1000, index_with_data=999, listed=1001)),
        ([(0, 2001, 128), (999, 3, 128)], Evidence(names=999, with_data=2000, index_with_data=0, listed=2001)),
    ],
)
def test_which_witness_counts(tmp_path: Path, segments: list[tuple[int, int, int | None]], expected: Evidence) -> None:
    build_directory(tmp_path, {0: []})
    for first, count, data in segments:
        empty(tmp_path, first, count, data=data)
    assert proven(tmp_path) == expected


def test_what_was_given_up_last_counts(tmp_path: Path) -> None:
    build_directory(tmp_path, {0: []})
    assert proven(tmp_path, -1, loss(3, 4), loss(0, 9), loss(5, 6)).accepted == 10
    assert proven(tmp_path, 0).mark == 1
    assert proven(tmp_path, -1).mark == 0
    assert proven(tmp_path, -5).mark == 0


def written(path: Path, raw: bytes) -> int:
    header = segment_header(0, 0).encode()
    index_path(path).write_bytes(header + raw)
    (view,) = [one for one in view_partition(path / "0", 0).segments if one.first_transaction_id == 0]
    return written_entries(view)


def test_the_last_entry_that_was_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build_directory(tmp_path, {0: []})
    one = encode_entries([128])
    for raw, count in (
        (b"", 0),
        (one, 1),
        (one * 3, 3),
        (one * 3 + bytes(8), 3),
        (one * 3 + bytes(7), 3),
        (one * 3 + b"\1" + bytes(7), 4),
        (bytes(8), 0),
        (bytes(80), 0),
        (bytes(72) + one, 10),
    ):
        assert written(tmp_path, raw) == count
    monkeypatch.setattr(evidence_module, "_CHUNK", 4)
    for zeros in range(12):
        for count in range(10):
            assert written(tmp_path, one * count + bytes(8 * zeros)) == count
    index_path(tmp_path).write_bytes(segment_header(0, 0).encode() + one * 3 + bytes(8))
    (view,) = view_partition(tmp_path / "0", 0).segments
    index_path(tmp_path).unlink()
    assert written_entries(view) == 4, "by its length, where it cannot be read"


class TestOneWrongField:
    """An index with one wrong field in its header: the middle and the last of its entries that lead into the data tell."""

    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        """1001 entries, of which the data file has 992 records; the header's partition is another one."""
        build_directory(tmp_path, {0: 1001}, per_segment=2000)
        records = make_records(1001)
        os.truncate(data_path(tmp_path), HEADER_SIZE + sum(one.size for one in records[:992]))
        self.change(tmp_path, 31, 4)
        return tmp_path

    def change(self, path: Path, place: int, bits: int) -> None:
        raw = bytearray(index_path(path).read_bytes())
        raw[place] ^= bits
        index_path(path).write_bytes(raw)

    def test_it_proves_what_it_lists(self, path: Path) -> None:
        assert proven(path) == Evidence(with_data=1000, index_with_data=0, listed=1001)

    def test_two_wrong_fields_prove_nothing(self, path: Path) -> None:
        self.change(path, 39, 4)
        assert proven(path) == Evidence()

    @pytest.mark.parametrize(("later", "own"), [(-60_001, False), (-60_000, True), (60_000, True), (60_001, False)])
    def test_it_was_made_in_the_same_minute(self, path: Path, later: int, own: bool) -> None:
        raw = index_path(path).read_bytes()
        header = replace(SegmentHeader.decode(raw), created=CREATED + later)
        index_path(path).write_bytes(header.encode() + raw[HEADER_SIZE:])
        assert (proven(path).with_data == 1000) == own

    @pytest.mark.parametrize(("entry", "own"), [(496, False), (495, True), (991, False), (990, True), (992, True)])
    def test_two_entries_are_looked_at(self, path: Path, entry: int, own: bool) -> None:
        self.change(path, HEADER_SIZE + 8 * entry + 7, 1)
        assert (proven(path).with_data == 1000) == own

    def test_of_records_that_are_all_equally_long_every_index_is_the_same(self, tmp_path: Path) -> None:
        path = build_directory(tmp_path / "s", {0: 1001}, per_segment=2000, size=3)
        os.truncate(data_path(path), HEADER_SIZE + 43 * 992)
        assert proven(path).with_data == 1000
        self.change(path, 31, 4)
        assert proven(path).with_data == 0

    @pytest.mark.parametrize("size", [HEADER_SIZE, HEADER_SIZE + 20])
    def test_without_a_record_there_is_nothing_to_compare(self, path: Path, size: int) -> None:
        os.truncate(data_path(path), size)
        assert proven(path).with_data == 0

    def test_a_data_file_that_went_away_meanwhile_proves_nothing(self, path: Path) -> None:
        view = view_partition(path / "0", 0)
        data_path(path).unlink()
        assert evidence(view, None) == Evidence()

    @pytest.mark.parametrize(("records", "own"), [(0, False), (1, False), (2, False), (3, True)])
    def test_three_records_tell_where_an_index_leads(self, path: Path, records: int, own: bool) -> None:
        os.truncate(data_path(path), HEADER_SIZE + sum(one.size for one in make_records(1001)[:records]))
        assert (proven(path).with_data == 1000) == own

    def test_a_header_that_is_not_there_proves_nothing(self, path: Path) -> None:
        os.truncate(index_path(path), HEADER_SIZE - 1)
        assert proven(path) == Evidence()
