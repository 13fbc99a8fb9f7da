"""What seldom happens to a storage directory: nothing is there, a name is another's, a ledger or a place cannot be believed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.builders import CREATED, KEY, build_directory, make_records
from tests.storage.support import LAYOUTS, built, codes, data_path, index_path, opened
from waltzctl.engine.errors import InvalidRequestError, PartitionQuarantinedError, RefusedError
from waltzctl.engine.log.view import FileState, SegmentView, view_partition
from waltzctl.engine.storage.append import PendingRecord, append_lines
from waltzctl.engine.storage.belonging import _entries
from waltzctl.engine.storage.control_file import OpenControlFile, create_control_file
from waltzctl.engine.storage.creation import create_cluster
from waltzctl.engine.storage.directory import _Examined
from waltzctl.formats.accepted_losses import AcceptedLoss, encode_ledger
from waltzctl.formats.control import MAX_PARTITIONS, Layout, decode_control, initial_control


def test_what_was_not_examined_has_no_transaction() -> None:
    assert _Examined([]).last_transaction_id == -1


@pytest.mark.parametrize(
    ("number", "count", "found"),
    [(10, 3, 3), (10, 10, 10), (10, 11, 10), (18, 5, 2), (19, 1, 1), (20, 1, 0), (25, 3, 0)],
)
def test_entries_from_a_transaction_on_are_as_many_as_the_index_has(
    tmp_path: Path, number: int, count: int, found: int
) -> None:
    build_directory(tmp_path, {0: [make_records(10, size=20), make_records(10, first=10, size=20)]})
    segment = view_partition(tmp_path / "0", 0).segments[1]
    expected = [128 + 60 * (place - 10) for place in range(number, number + found)]
    assert _entries(segment, number, count) == expected
    assert _entries(replace(segment, index=None), number, count) == []
    index_path(tmp_path, 10).write_bytes(index_path(tmp_path, 10).read_bytes()[:-1])
    assert _entries(segment, number, count) == expected[: max(0, 19 - number)]


def test_a_reset_of_what_was_reset_is_told_apart_from_it_at_every_instant(tmp_path: Path) -> None:
    """In the release's layout 0 stands in force already: the new pair is one behind and one in force."""
    create_control_file(tmp_path / "c", initial_control(Layout.RELEASED, KEY, 1, CREATED))
    with OpenControlFile.open(tmp_path / "c") as control:
        before = control.info(0)
        assert before.current_struct is not None
        assert before.current_struct.sequence == 0
        control.reset(0)
        info = control.info(0)
        assert sorted(one.sequence for one in info.structs if one.sequence is not None) == [0, 1]
        assert info.current_struct is not None
        assert (info.current_struct.sequence, info.current_struct.marks) == (1, (-1, -1, -1))
        assert info.current != before.current, "the one that was in force is written last"


@LAYOUTS
def test_a_place_that_names_another_partition_takes_no_assignment(tmp_path: Path, layout: Layout) -> None:
    path = build_directory(tmp_path / "s", {0: 5}, layout=layout, num_partitions=2) / "waltz-storage.ctl"
    control = decode_control(path.read_bytes())
    infos = control.partitions[0], replace(control.partitions[1], stored_partition=0)
    path.write_bytes(replace(control, partitions=infos).encode())
    raw = path.read_bytes()
    with (
        opened(tmp_path / "s") as storage,
        pytest.raises(PartitionQuarantinedError, match="partition 1: its info in the control file is damaged"),
    ):
        storage.assign(1)
    assert path.read_bytes() == raw
    assert not (tmp_path / "s" / "1").exists()


@pytest.mark.parametrize(
    ("last", "mark", "refused"),
    [(8, 5, True), (4, 5, False), (5, 5, True), (5, 4, True)],
)
def test_ids_of_accepted_losses_are_not_given_away(tmp_path: Path, last: int, mark: int, refused: bool) -> None:
    build_directory(tmp_path, {0: 5}, local_low_water_mark=4)
    (tmp_path / ".waltzctl").mkdir()
    ledger = tmp_path / ".waltzctl" / "accepted-losses"
    ledger.write_bytes(encode_ledger([AcceptedLoss(0, 3, last, mark, "2026-11-22T08:51:18.000Z", "test")]))
    if not refused:
        assert append_lines(tmp_path, partition=0, records=[PendingRecord(b"x")]).last_transaction_id == 5
        return
    with pytest.raises(RefusedError, match=f"ends with transaction 4; transactions up to {last} were here"):
        append_lines(tmp_path, partition=0, records=[PendingRecord(b"x")])


def test_a_ledger_that_cannot_be_read_in_full_lets_nothing_be_appended(tmp_path: Path) -> None:
    build_directory(tmp_path, {0: 5})
    (tmp_path / ".waltzctl").mkdir()
    ledger = tmp_path / ".waltzctl" / "accepted-losses"
    raw = encode_ledger([AcceptedLoss(1, 3, 9, 4, "2026-11-22T08:51:18.000Z", "test")])
    ledger.write_bytes(raw[:-5])
    with pytest.raises(RefusedError, match="the ledger of accepted losses cannot be read in full"):
        append_lines(tmp_path, partition=0, records=[PendingRecord(b"x")])


@LAYOUTS
@pytest.mark.parametrize("mark", [-1, 0, 4])
def test_of_a_partition_without_segments_the_mark_says_what_is_missing(
    tmp_path: Path, layout: Layout, mark: int
) -> None:
    built(tmp_path, 5, layout=layout, mark=mark)
    for file in (tmp_path / "0").iterdir():
        file.unlink()
    with opened(tmp_path) as storage:
        partition = storage.partition(0)
        assert partition.quarantined
        assert codes(partition.findings) == (["acknowledged-missing"] if mark >= 0 else ["partition-empty"])


def test_segments_join_in_the_order_of_their_records(tmp_path: Path) -> None:
    """A file that was renamed behind the others is no gap between them."""
    built(tmp_path, 30)
    data_path(tmp_path, 10).rename(data_path(tmp_path, 25))
    index_path(tmp_path, 10).rename(index_path(tmp_path, 25))
    with opened(tmp_path) as storage:
        partition = storage.partition(0)
        assert partition.quarantined
        assert "segment-gap" not in codes(partition.findings)
        assert "segment-overlap" not in codes(partition.findings)


def test_an_index_beside_something_that_is_no_file_is_not_told_as_left_alone(tmp_path: Path) -> None:
    built(tmp_path, 30)
    data_path(tmp_path, 10).unlink()
    data_path(tmp_path, 10).mkdir()
    with opened(tmp_path) as storage:
        assert "index-orphan" not in codes(storage.partition(0).findings)
    data_path(tmp_path, 10).rmdir()
    with opened(tmp_path) as storage:
        assert storage.partition(0).quarantined
    view = SegmentView(0, 10, None, FileState.of(index_path(tmp_path, 10)))
    assert view.data is None


@pytest.mark.parametrize("index", [None, 0, 50, 128])
def test_a_segment_that_was_being_made_goes_with_its_index(tmp_path: Path, index: int | None) -> None:
    """A crash may leave its data file with a part of a header, and its index not at all or with as little."""
    records = built(tmp_path, 10)
    header = data_path(tmp_path).read_bytes()[:128]
    data_path(tmp_path, 10).write_bytes(header[:50])
    if index is not None:
        index_path(tmp_path, 10).write_bytes(header[:index])
    with opened(tmp_path) as storage:
        partition = storage.partition(0)
        assert not partition.quarantined
        assert partition.max_transaction_id == 9
        assert sorted(path.name for path in (tmp_path / "0").iterdir()) == sorted(
            [data_path(tmp_path).name, index_path(tmp_path).name]
        )
        partition.append(make_records(1, first=10))
        assert [one.transaction_id for one in partition.read_range(0, 20)] == list(range(11))
    assert len(records) == 10


@pytest.mark.parametrize("number", [0, -1, MAX_PARTITIONS + 1])
def test_a_cluster_has_as_many_partitions_as_a_reader_believes(tmp_path: Path, number: int) -> None:
    said = f"the number of partitions must be 1 to {MAX_PARTITIONS}, not {number}"
    with pytest.raises(InvalidRequestError, match=f"^{said}$"):
        create_cluster([tmp_path / "s"], num_partitions=number, assign=[])
    assert not (tmp_path / "s").exists()
