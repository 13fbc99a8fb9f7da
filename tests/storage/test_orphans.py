"""An index without its data file: when its records stand elsewhere, and when not; each entry one step to each side."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path

import pytest

from tests.builders import make_records, segment_header, write_segment
from tests.storage.support import damage
from waltzctl.engine.log.view import SegmentView, view_partition
from waltzctl.engine.scan.byte_source import BytesSource
from waltzctl.engine.storage.orphans import listed_in, stand_elsewhere
from waltzctl.formats.segment import HEADER_SIZE, Record, encode_entries, index_name


def orphan_of(path: Path, records: Sequence[Record], first: int, entries: int | None = None) -> SegmentView:
    """The index, without data, of `records` from `first` on: as many entries as there are records, or `entries`."""
    own = [one for one in records if one.transaction_id >= first]
    places = list(accumulate((one.size for one in own), initial=HEADER_SIZE))[
        : len(own) if entries is None else entries
    ]
    (path / index_name(first)).write_bytes(segment_header(0, first).encode() + encode_entries(places))
    (found,) = [one for one in view_partition(path, 0).segments if one.first_transaction_id == first]
    return found


@pytest.fixture
def records() -> list[Record]:
    """Transactions 0 to 29, each of another length."""
    return [one for number in range(30) for one in make_records(1, first=number, size=number)]


@pytest.mark.parametrize(("first", "entries"), [(10, 10), (10, 2), (18, 2), (1, 19), (20, 10), (28, 2)])
def test_records_that_stand_elsewhere(tmp_path: Path, records: list[Record], first: int, entries: int) -> None:
    holders = [write_segment(tmp_path, part) for part in (records[:15], records[15:25], records[25:])]
    orphan = orphan_of(tmp_path, records, first, entries)
    views = view_partition(tmp_path, 0).data_segments
    assert len(views) == len(holders)
    assert stand_elsewhere(orphan, views)
    assert stand_elsewhere(orphan, reversed(views))


@pytest.mark.parametrize("entries", [0, 1])
def test_an_index_that_tells_no_length_proves_nothing(tmp_path: Path, records: list[Record], entries: int) -> None:
    write_segment(tmp_path, records[:15])
    assert not stand_elsewhere(orphan_of(tmp_path, records, 10, entries), view_partition(tmp_path, 0).data_segments)


@pytest.mark.parametrize("longer", range(9, 15))
def test_one_record_of_another_length_is_another_record(tmp_path: Path, records: list[Record], longer: int) -> None:
    """The index lists 10 to 13 and where 13 begins: what 10, 11 and 12 are like it tells, 13 it does not."""
    changed = [
        Record.make(one.transaction_id, one.request_id, one.header, one.data + b"x" * (number == longer))
        for number, one in enumerate(records[:15])
    ]
    write_segment(tmp_path, changed)
    orphan = orphan_of(tmp_path, records, 10, 4)
    assert stand_elsewhere(orphan, view_partition(tmp_path, 0).data_segments) == (longer not in (10, 11, 12))


def test_of_two_holders_both_must_agree(tmp_path: Path, records: list[Record]) -> None:
    write_segment(tmp_path, records[:5])
    write_segment(tmp_path, [*records[5:8], *make_records(7, first=8, size=50)])
    write_segment(tmp_path, records[15:])
    views = view_partition(tmp_path, 0).data_segments
    assert not stand_elsewhere(orphan_of(tmp_path, records, 10, 10), views)
    assert stand_elsewhere(orphan_of(tmp_path, records, 16, 10), views), "they begin behind the one that differs"


@pytest.mark.parametrize(("begins", "found"), [(11, True), (12, True), (13, False), (14, False)])
def test_a_holder_that_begins_with_the_last_entry_has_none_whose_length_is_told(
    tmp_path: Path, records: list[Record], begins: int, found: bool
) -> None:
    """Entries of 10 to 13: nobody knows where 13 ends."""
    write_segment(tmp_path, records[begins:20])
    orphan = orphan_of(tmp_path, records, 10, 4)
    assert stand_elsewhere(orphan, view_partition(tmp_path, 0).data_segments) == found
    raw = (tmp_path / f"{begins:019d}.seg").read_bytes()
    assert listed_in(orphan, [(begins, BytesSource(raw))]) == found
    assert listed_in(orphan, [(14, BytesSource(raw)), (begins, BytesSource(raw))]) == found, (
        "in whatever order they come"
    )


@pytest.mark.parametrize(("ends", "found"), [(10, False), (11, True), (12, True)])
def test_a_holder_that_ends_with_the_first_one(tmp_path: Path, records: list[Record], ends: int, found: bool) -> None:
    write_segment(tmp_path, records[:ends])
    orphan = orphan_of(tmp_path, records, 10, 4)
    assert stand_elsewhere(orphan, view_partition(tmp_path, 0).data_segments) == found


def test_records_around_a_damaged_one_are_compared(tmp_path: Path, records: list[Record]) -> None:
    holder = write_segment(tmp_path, records[:20])
    damage(holder, HEADER_SIZE + sum(one.size for one in records[:12]) + 3)
    views = view_partition(tmp_path, 0).data_segments
    assert stand_elsewhere(orphan_of(tmp_path, records, 10, 8), views)
    changed = [*records[:15], *make_records(5, first=15, size=50)]
    holder = write_segment(tmp_path, changed)
    damage(holder, HEADER_SIZE + sum(one.size for one in records[:12]) + 3)
    assert not stand_elsewhere(orphan_of(tmp_path, records, 10, 8), view_partition(tmp_path, 0).data_segments)


def test_what_cannot_be_read_holds_nothing(tmp_path: Path, records: list[Record]) -> None:
    holder = write_segment(tmp_path, records[:20])
    orphan = orphan_of(tmp_path, records, 10, 8)
    views = view_partition(tmp_path, 0).data_segments
    holder.unlink()
    assert not stand_elsewhere(orphan, views)
    holder.write_bytes(segment_header(0, 0).encode())
    assert not stand_elsewhere(orphan, view_partition(tmp_path, 0).data_segments)
    assert not stand_elsewhere(orphan, ())
    write_segment(tmp_path, records[:20])
    (tmp_path / index_name(10)).unlink()
    assert not stand_elsewhere(orphan, view_partition(tmp_path, 0).data_segments)


def test_zeros_behind_the_entries_are_none(tmp_path: Path, records: list[Record]) -> None:
    write_segment(tmp_path, records[:20])
    orphan_of(tmp_path, records, 10, 4)
    path = tmp_path / index_name(10)
    path.write_bytes(path.read_bytes() + bytes(80))
    (orphan,) = [one for one in view_partition(tmp_path, 0).segments if one.first_transaction_id == 10]
    assert orphan.entries == 14
    assert stand_elsewhere(orphan, view_partition(tmp_path, 0).data_segments)


@pytest.mark.parametrize(("begins", "found"), [(12, False), (13, True), (14, True)])
def test_a_holder_behind_what_is_told_is_not_even_opened(
    tmp_path: Path, records: list[Record], begins: int, found: bool
) -> None:
    """Nor the index itself, nor a data file without a record."""
    write_segment(tmp_path, records[:begins])
    write_segment(tmp_path, records[begins:20])
    write_segment(tmp_path, [], first=9)
    orphan = orphan_of(tmp_path, records, 10, 4)
    views = view_partition(tmp_path, 0).segments
    for gone in (begins, 9):
        (tmp_path / f"{gone:019d}.seg").unlink()
    assert stand_elsewhere(orphan, views) == found
