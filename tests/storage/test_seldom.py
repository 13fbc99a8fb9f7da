"""What seldom happens to a storage directory: nothing is there, a name is another's, a ledger or a place cannot be believed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.builders import CREATED, KEY, build_directory, make_records
from tests.storage.support import LAYOUTS, built, codes, damage, data_path, index_path, offset_of, opened
from waltzctl.engine.durable import disk
from waltzctl.engine.errors import DiskReadError, InvalidRequestError, PartitionQuarantinedError, RefusedError
from waltzctl.engine.log.index import IndexReader
from waltzctl.engine.log.view import FileState, SegmentView, view_partition
from waltzctl.engine.scan.columns import Damage, RecordRun
from waltzctl.engine.storage import segment_recovery
from waltzctl.engine.storage.append import PendingRecord, append_lines
from waltzctl.engine.storage.belonging import _entries
from waltzctl.engine.storage.control_file import OpenControlFile, create_control_file
from waltzctl.engine.storage.creation import create_cluster
from waltzctl.engine.storage.partition_opening import ExaminedPartition
from waltzctl.engine.storage.segment_files import whole_extent
from waltzctl.engine.storage.segment_recovery import index_entries
from waltzctl.formats.accepted_losses import AcceptedLoss, encode_ledger
from waltzctl.formats.control import MAX_PARTITIONS, Layout, decode_control, initial_control
from waltzctl.formats.segment import HEADER_SIZE


def test_what_was_not_examined_has_no_transaction() -> None:
    assert ExaminedPartition([]).last_transaction_id == -1


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


def test_an_index_that_the_disk_does_not_give_keeps_the_partition_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of it is taken for wrong, and nothing made anew from what could not be compared."""
    built(tmp_path, 10)
    before = index_path(tmp_path).read_bytes()

    def fails(reader: IndexReader, *_: object) -> int:
        raise DiskReadError(Path(reader.source.name), 128, OSError(5, "no"))

    with monkeypatch.context() as patch:
        patch.setattr(IndexReader, "read_into", fails)
        with opened(tmp_path) as storage:
            partition = storage.partition(0)
            assert partition.quarantined
            assert codes(partition.findings) == ["read-error"]
    assert index_path(tmp_path).read_bytes() == before
    with opened(tmp_path) as storage:
        assert not storage.partition(0).quarantined


def test_an_index_is_not_made_of_a_data_file_that_changed_meanwhile(tmp_path: Path) -> None:
    records = built(tmp_path, 10)
    extent = whole_extent(0, tmp_path / "0", 0, 10, offset_of(records, 10))
    assert b"".join(index_entries(extent, (0, HEADER_SIZE))) == index_path(tmp_path).read_bytes()[HEADER_SIZE:]
    damage(data_path(tmp_path), offset_of(records, 6) + 3)
    with pytest.raises(DiskReadError, match="transaction 6 changed while the index was built"):
        list(index_entries(extent, (0, HEADER_SIZE)))


def test_a_torn_end_whose_search_was_given_up_is_never_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What follows is unread: there may be records."""
    built(tmp_path, 10)
    with data_path(tmp_path).open("ab") as file:
        file.write(bytes(100))
    before = data_path(tmp_path).read_bytes()
    real = segment_recovery.summarise_records

    def given_up(*given: Any, **words: Any) -> Iterator[RecordRun | Damage]:
        for part in real(*given, **words):
            yield replace(part, proof="budget") if isinstance(part, Damage) else part

    with monkeypatch.context() as patch:
        patch.setattr(segment_recovery, "summarise_records", given_up)
        with opened(tmp_path) as storage:
            assert storage.partition(0).quarantined
    assert data_path(tmp_path).read_bytes() == before
    with opened(tmp_path) as storage:
        assert not storage.partition(0).quarantined
    assert data_path(tmp_path).read_bytes() == before[:-100]


def test_a_segment_that_is_read_knows_where_the_next_one_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built(tmp_path, 30)
    for first in (0, 10):
        damage(data_path(tmp_path, first), -1)
    real = segment_recovery.summarise_records
    ceilings: list[int | None] = []

    def noting(*given: Any, **words: Any) -> Iterator[RecordRun | Damage]:
        ceilings.append(words.get("ceiling"))
        return real(*given, **words)

    monkeypatch.setattr(segment_recovery, "summarise_records", noting)
    with opened(tmp_path):
        assert ceilings == [10, 20, None]


@pytest.mark.parametrize("change", ["short", "long"])
def test_an_index_that_is_mended_in_place_is_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    built(tmp_path, 10)
    whole = index_path(tmp_path).read_bytes()
    index_path(tmp_path).write_bytes(whole[:-16] if change == "short" else whole + whole[-16:])
    done: list[str] = []
    monkeypatch.setattr(
        disk, "observer", lambda made: done.append(made.kind) if made.path == index_path(tmp_path) else None
    )
    with opened(tmp_path):
        assert index_path(tmp_path).read_bytes() == whole
        assert done[-1] == "sync"
        assert {"write", "truncate"} & {*done}
