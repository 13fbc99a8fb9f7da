"""What proves that transactions were in a partition, each witness one step to each side, and that nobody opens past it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.builders import build_directory, digest, make_records, segment_header
from tests.storage.support import assert_quarantined_and_kept, codes, data_path, entries, index_path, opened
from waltzctl.engine.errors import PartitionQuarantinedError, RefusedError
from waltzctl.engine.storage.append import AppendSession, PendingRecord
from waltzctl.engine.storage.evidence import Evidence, checkpointed, evidence
from waltzctl.engine.storage.loss_ledger import ledger_path, still_lost, without
from waltzctl.engine.storage.view import view_partition
from waltzctl.formats.accepted_losses import AcceptedLoss, encode_ledger
from waltzctl.formats.control import Layout
from waltzctl.formats.segment import ENTRY_SIZE, HEADER_SIZE, entry_position

LAYOUTS = pytest.mark.parametrize("layout", list(Layout))


def proven(path: Path, mark: int | None = -1, *accepted: AcceptedLoss) -> Evidence:
    return evidence(view_partition(path / "0", 0), mark, accepted)


def loss(first: int, last: int, mark: int = -1) -> AcceptedLoss:
    return AcceptedLoss(0, first, last, mark, "2026-11-22T08:51:18.000Z", "test")


@pytest.mark.parametrize(
    ("first", "entries", "expected"),
    [
        (0, 0, 0),
        (0, 1, 0),
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
