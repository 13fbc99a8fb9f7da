"""What opening a partition believes and what it cuts, each comparison one step to each side."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path

import pytest

from tests.builders import build_directory, make_records, segment_header, write_segment
from tests.inspect.helpers import age
from tests.memory import in_memory
from tests.storage.support import (
    LAYOUTS,
    built,
    codes,
    damage,
    data_path,
    expected_data,
    index_path,
    kept_bytes,
    offset_of,
    opened,
)
from waltzctl.engine.errors import (
    CorruptRecordError,
)
from waltzctl.engine.findings import Code, Finding, Severity
from waltzctl.engine.inspect.dump import dump_records
from waltzctl.engine.inspect.verify import verify
from waltzctl.engine.log.header_judgement import Beginning, Expected, beginning_of
from waltzctl.engine.repair.apply import apply
from waltzctl.engine.repair.recover import plan_recover
from waltzctl.engine.scan.byte_source import FileSource
from waltzctl.engine.spark.data_loss import is_loss
from waltzctl.engine.storage.directory import StorageOptions
from waltzctl.formats.control import Layout
from waltzctl.formats.segment import ENTRY_SIZE, HEADER_SIZE, SegmentHeader, encode_entries, entry_position


@pytest.fixture
def tmp_path(tmp_path: Path) -> Iterator[Path]:
    with in_memory(tmp_path) as path:
        yield path


LARGE = StorageOptions(segment_size_threshold=10**6)


@LAYOUTS
@pytest.mark.parametrize("change", [-1, 0, 1, 40, 128])
def test_a_sealed_segment_ends_where_its_last_record_ends(tmp_path: Path, layout: Layout, change: int) -> None:
    """What stands behind its last record was never acknowledged, since the next segment begins with that transaction."""
    built(tmp_path, 30, layout=layout)
    path = data_path(tmp_path)
    size = path.stat().st_size
    behind = b"\x07" * change
    if change < 0:
        os.truncate(path, size + change)
    else:
        path.write_bytes(path.read_bytes() + behind)
    with opened(tmp_path) as storage:
        partition = storage.partition(0)
        assert partition.quarantined is (change < 0)
        assert bool(partition.findings) is bool(change)
        assert partition.max_transaction_id == (29 if change >= 0 else 8)
    assert path.stat().st_size == size + min(change, 0), "nothing of a record of a sealed segment is cut"
    assert behind in kept_bytes(tmp_path)


@pytest.mark.parametrize("mark", [-1, 9, 10, 29])
def test_what_a_failed_write_left_in_a_sealed_segment_costs_nothing(tmp_path: Path, mark: int) -> None:
    """A release whose disk was full for a moment writes the next records over it, and may begin the next segment in it."""
    built(tmp_path, 30, mark=mark)
    torn = make_records(1, first=10, size=500, seed=1)[0].encode()[:300]
    for first in (0, 10):
        with data_path(tmp_path, first).open("ab") as file:
            file.write(torn)
    found = {one.segment: one for one in verify([age(tmp_path)]) if isinstance(one, Finding)}
    assert [(one.code, one.severity, one.missing) for one in found.values()] == [("torn-tail", "repairable", 0)] * 2
    with opened(tmp_path) as storage:
        assert not storage.partition(0).quarantined
        assert storage.partition(0).max_transaction_id == 29
    assert [one for one in verify([tmp_path]) if isinstance(one, Finding)] == []
    assert torn in kept_bytes(tmp_path)


@pytest.mark.parametrize("listed", [0, 1, 2])
@pytest.mark.parametrize("size", [0, 50, HEADER_SIZE])
@pytest.mark.parametrize(("mark", "lost"), [(9, None), (10, 1), (12, 3)])
def test_a_torn_tail_in_front_of_an_empty_segment_hides_no_loss(
    tmp_path: Path, size: int, mark: int, lost: int | None, listed: int
) -> None:
    """The transaction of which it is a part would be in the next segment, and is not there, whatever the index lists."""
    built(tmp_path, 20, mark=mark)
    _tear(tmp_path, listed)
    os.truncate(data_path(tmp_path, 10), size)
    os.truncate(index_path(tmp_path, 10), HEADER_SIZE)
    found = [one for one in verify([age(tmp_path)]) if isinstance(one, Finding)]
    with opened(tmp_path) as storage:
        partition = storage.partition(0)
        assert partition.quarantined is (lost is not None)
        for told in (found, partition.findings):
            assert [one.missing for one in told if one.severity is Severity.DAMAGE] == ([] if lost is None else [lost])


@pytest.mark.parametrize("last", [19, 10])
@pytest.mark.parametrize(("mark", "harmless"), [(9, True), (10, False), (19, False)])
@pytest.mark.parametrize(
    ("start", "place", "matters"), [(0, 13, True), (0, HEADER_SIZE + 9, True), (1, -1, True), (1, 9, False)]
)
def test_a_torn_tail_is_no_left_over_where_the_next_segment_has_lost_that_transaction(
    tmp_path: Path, mark: int, last: int, start: int, place: int, *, harmless: bool, matters: bool
) -> None:
    """Its name alone vouched for the transaction: a node cut what is left of it, and never looked into the next segment."""
    records = built(tmp_path, last + 1, mark=min(mark, last))
    _tear(tmp_path, 0)
    target = data_path(tmp_path, 10)
    data = bytearray(target.read_bytes())
    place += start * (HEADER_SIZE + records[10].size)
    if place < len(data):  # in the cluster's key, at both ends of the first record, or in the one behind it
        data[place] ^= 1
    target.write_bytes(data)
    found = [one for one in verify([age(tmp_path)]) if isinstance(one, Finding) and one.segment == 0]
    harmless |= not matters
    assert [(one.code, one.severity is Severity.REPAIRABLE, one.missing) for one in found] == [
        ("torn-tail", harmless, 0)
    ]
    before = data_path(tmp_path).read_bytes()
    with opened(tmp_path) as storage:
        if not harmless:
            assert storage.partition(0).quarantined
    assert (data_path(tmp_path).read_bytes() == before) or harmless


def test_the_next_segment_is_not_searched_for_its_first_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where that is damaged, all of the file was read five times: for each torn tail, and by a node at its start."""
    built(tmp_path, 11, mark=10)
    target = data_path(tmp_path, 10)
    key, read = SegmentHeader.decode(target.read_bytes()[:HEADER_SIZE]).cluster_key, 0
    with target.open("r+b") as data:
        data.seek(HEADER_SIZE + 9)
        data.write(b"\xff")
        data.truncate(8 << 20)
    take = FileSource.read_into

    def counted(self: FileSource, offset: int, buffer: memoryview) -> int:
        nonlocal read
        got = take(self, offset, buffer)
        read += got
        return got

    monkeypatch.setattr(FileSource, "read_into", counted)
    assert beginning_of(target, Expected(10, 0, key)) == Beginning(False)
    assert read < 2 << 20


def _tear(storage: Path, listed: int) -> None:
    """Put a part of transaction 10 behind the first segment, and entries of it and of what might follow into its index."""
    with data_path(storage).open("ab") as data, index_path(storage).open("ab") as index:
        index.write(encode_entries([data.tell(), data.tell() + 200][:listed]))
        data.write(make_records(1, first=10, size=500, seed=1)[0].encode()[:300])


@pytest.mark.parametrize("listed", [1, 2])
def test_a_torn_record_that_the_index_lists_costs_nothing_where_the_next_segment_has_it(
    tmp_path: Path, listed: int
) -> None:
    """It was told as an overlap, of which there is none, and a node closed the partition."""
    built(tmp_path, 20, mark=19)
    _tear(tmp_path, listed)
    found = [one for one in verify([age(tmp_path)]) if isinstance(one, Finding)]
    assert {one.severity for one in found} == {Severity.REPAIRABLE}
    with opened(tmp_path) as storage:
        assert not storage.partition(0).quarantined
        assert storage.partition(0).max_transaction_id == 19
    assert [one for one in verify([tmp_path]) if isinstance(one, Finding)] == []


@pytest.mark.parametrize("listed", [0, 1])
def test_a_torn_tail_in_front_of_an_empty_segment_with_a_smaller_id_hides_no_loss(tmp_path: Path, listed: int) -> None:
    """The finding about the tail counts nothing then: what is missing behind it is told at the end of the log."""
    built(tmp_path, 10, mark=10)
    _tear(tmp_path, listed)
    write_segment(tmp_path / "0", [], first=9)
    found = [one for one in verify([age(tmp_path)]) if isinstance(one, Finding)]
    dumped = [one for one in dump_records(tmp_path) if isinstance(one, Finding)]
    with opened(tmp_path) as storage:
        assert storage.partition(0).quarantined
        for told in (found, dumped, storage.partition(0).findings):
            lost = [(one.transaction_id, one.missing) for one in told if is_loss(one)]
            assert lost == [(10, 1)]


@pytest.mark.parametrize("listed", [0, 1, 2])
@pytest.mark.parametrize("firsts", [[9], [8, 9], [3]])
def test_nothing_is_missing_behind_an_empty_segment_inside_a_torn_one(
    tmp_path: Path, firsts: list[int], listed: int
) -> None:
    """All that the empty one does not have stands in the torn one, in front of its tail: it was told as a gap."""
    built(tmp_path, 20, mark=19)
    _tear(tmp_path, listed)
    for first in firsts:
        write_segment(tmp_path / "0", [], first=first)
    found = [one for one in verify([age(tmp_path)]) if isinstance(one, Finding)]
    with opened(tmp_path) as storage:
        assert storage.partition(0).quarantined
        for told in (found, storage.partition(0).findings):
            assert [(one.code, one.missing) for one in told] == [(Code.TORN_TAIL, 0)]


def test_records_behind_the_end_of_a_sealed_segment_are_left_to_a_person(tmp_path: Path) -> None:
    """Whole records that may belong to the log are no rest of a failed write."""
    records = built(tmp_path, 30)
    with data_path(tmp_path).open("ab") as file:
        file.write(bytes([7] * 100) + records[10].encode())
    before = data_path(tmp_path).read_bytes()
    with opened(tmp_path) as storage:
        assert storage.partition(0).quarantined
    assert data_path(tmp_path).read_bytes() == before


@pytest.mark.parametrize("within", [10, 11])
def test_records_in_what_stands_behind_a_sealed_segment_are_no_loss(tmp_path: Path, within: int) -> None:
    """Only a person may have it cut; the next segment holds what would be lost, so that nothing is missing."""
    records = built(tmp_path, 30)
    torn = make_records(1, first=10, size=500)[0].encode()
    with data_path(tmp_path).open("ab") as file:
        file.write(torn[:60] + records[within].encode() + bytes(40))
    (found,) = [one for one in verify([age(tmp_path)]) if isinstance(one, Finding)]
    assert (found.code, found.severity, found.missing) == ("torn-tail", Severity.DAMAGE, 0)
    assert not is_loss(found)
    with opened(tmp_path) as storage:
        assert storage.partition(0).quarantined
    (left,) = plan_recover(tmp_path).plan.undecided
    assert (left.code, left.missing) == ("torn-tail", 0)
    apply(plan_recover(tmp_path, allow_data_loss=True), arguments=())
    assert [one for one in verify([tmp_path]) if isinstance(one, Finding)] == []
    assert data_path(tmp_path).read_bytes()[HEADER_SIZE:] == expected_data(records[:10])
    assert torn[:60] + records[within].encode() in kept_bytes(tmp_path)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (-8, ["index-short"]),
        (-1, ["index-short"]),
        (0, []),
        (1, ["index-long"]),
        (8, ["index-long"]),
    ],
)
def test_a_sealed_segments_index_has_an_entry_for_each_record(tmp_path: Path, change: int, expected: list[str]) -> None:
    built(tmp_path, 30)
    path = index_path(tmp_path)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) + change] if change < 0 else whole + bytes(change))
    with opened(tmp_path) as storage:
        assert codes(storage.partition(0).findings) == expected
        assert not storage.partition(0).quarantined
    assert path.read_bytes() == whole, "the index is made anew from the data"


@pytest.mark.parametrize("change", [-9, -8, -1, 1, 8, 9])
def test_the_last_segments_index_is_brought_to_its_length(tmp_path: Path, change: int) -> None:
    built(tmp_path, 30)
    path = index_path(tmp_path, 20)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) + change] if change < 0 else whole + b"\1" * change)
    with opened(tmp_path) as storage:
        assert codes(storage.partition(0).findings) == ["index-short" if change < 0 else "index-long"]
        assert not storage.partition(0).quarantined
    assert path.read_bytes() == whole


@pytest.mark.parametrize("first", [0, 20])
@pytest.mark.parametrize("change", [-1, 1])
def test_the_first_entry_of_a_segments_index_is_where_its_records_begin(
    tmp_path: Path, first: int, change: int
) -> None:
    """Of a sealed segment and of the last one."""
    built(tmp_path, 30)
    path = index_path(tmp_path, first)
    whole = path.read_bytes()
    path.write_bytes(whole[:HEADER_SIZE] + struct.pack(">q", HEADER_SIZE + change) + whole[HEADER_SIZE + ENTRY_SIZE :])
    with opened(tmp_path) as storage:
        assert codes(storage.partition(0).findings) == ["index-entry"]
    assert path.read_bytes() == whole


def test_the_end_of_a_sealed_segment_is_not_called_torn_by_a_crash(tmp_path: Path) -> None:
    """The segment behind it begins in it, so that its name proves nothing of the end; it was closed and synced all the same."""
    records = make_records(20)
    build_directory(tmp_path, {0: [records[:10]]}, local_low_water_mark=-1)
    write_segment(tmp_path / "0", records[5:20])
    os.truncate(data_path(tmp_path), data_path(tmp_path).stat().st_size - 1)
    with opened(tmp_path) as storage:
        assert storage.partition(0).quarantined
        (tail,) = [one for one in storage.partition(0).findings if one.code == "torn-tail"]
        assert tail.severity == "damage"


@LAYOUTS
@pytest.mark.parametrize(("mark", "mended"), [(27, True), (28, True), (29, False)])
def test_a_torn_tail_is_cut_only_when_it_is_above_the_mark(
    tmp_path: Path, layout: Layout, mark: int, mended: bool
) -> None:
    """The last record, 29, is torn: it may go unless the mark promises it."""
    records = built(tmp_path, 30, layout=layout, mark=mark)
    path = data_path(tmp_path, 20)
    torn = path.read_bytes()[:-1]
    path.write_bytes(torn)
    with opened(tmp_path) as storage:
        partition = storage.partition(0)
        assert partition.quarantined != mended
        assert partition.max_transaction_id == 28
        (tail,) = [one for one in partition.findings if one.code == "torn-tail"]
        assert (tail.severity == "repairable") == mended
    left = path.read_bytes()
    assert left == (torn[: HEADER_SIZE + sum(one.size for one in records[20:29])] if mended else torn)


@pytest.mark.parametrize(("entries", "mended"), [(1000, True), (1001, False), (1002, False)])
def test_a_torn_tail_is_not_cut_where_the_index_proves_that_it_was_durable(
    tmp_path: Path, entries: int, mended: bool
) -> None:
    """Record 999 is torn: an entry of record 1000 is only written once 999 is durable."""
    build_directory(tmp_path, {0: 1002}, per_segment=5000, size=10, local_low_water_mark=-1)
    path, index = data_path(tmp_path), index_path(tmp_path)
    os.truncate(path, HEADER_SIZE + 1000 * 50 - 1)
    os.truncate(index, entry_position(entries, 0))
    with opened(tmp_path, LARGE) as storage:
        partition = storage.partition(0)
        assert partition.quarantined != mended
        (tail,) = [one for one in partition.findings if one.code == "torn-tail"]
        assert (tail.severity == "repairable") == mended


@pytest.mark.parametrize(
    ("inside", "mended"),
    [((), True), ((24,), True), ((25,), False), ((26,), False), ((26, 27, 28), False), ((200,), True)],
)
@pytest.mark.parametrize("mark", [-1, 24])
def test_a_torn_tail_in_which_records_stand_is_left_to_a_person(
    tmp_path: Path, inside: tuple[int, ...], mark: int, mended: bool
) -> None:
    """The length of 25 leads beyond the file: it is torn; or the length is damaged, and records behind it are acknowledged.

    Earlier ids, and those for which there is no room, are its data.
    """
    records = built(tmp_path, 30, mark=mark)
    path, index = data_path(tmp_path, 20), index_path(tmp_path, 20)
    at = HEADER_SIZE + sum(one.size for one in records[20:25])
    head = bytearray(records[25].encode()[:36])
    head[28:32] = (1 << 30).to_bytes(4)
    others = {one.transaction_id: one for one in [*records, *make_records(1, first=200)]}
    held = b"".join(others[number].encode() for number in inside)
    left = path.read_bytes()[:at] + bytes(head) + b"....." + held + b"and half of another one"
    path.write_bytes(left)
    os.truncate(index, entry_position(25, 20))
    age(tmp_path)
    (known,) = [one for one in verify([tmp_path]) if isinstance(one, Finding) and one.code == "torn-tail"]
    assert (known.severity == "repairable") == mended
    assert ("records stand behind its beginning" in known.message) != mended
    (left_alone,) = [one for one in plan_recover(tmp_path).plan.undecided if one.code == "torn-tail"] or [None]
    assert (left_alone is None) == mended
    with opened(tmp_path) as storage:
        partition = storage.partition(0)
        assert partition.quarantined != mended
        assert partition.max_transaction_id == 24
        (tail,) = [one for one in partition.findings if one.code == "torn-tail"]
        assert (tail.severity, tail.message) == (known.severity, known.message)
    assert path.read_bytes() == (left[:at] if mended else left)


@pytest.mark.parametrize("segments", [1, 2])
@pytest.mark.parametrize(("mark", "sound"), [(18, True), (19, True), (20, False)])
def test_one_transaction_below_the_mark_that_is_missing_quarantines(
    tmp_path: Path, segments: int, mark: int, sound: bool
) -> None:
    build_directory(tmp_path, {0: 20}, per_segment=20 // segments, local_low_water_mark=mark)
    with opened(tmp_path) as storage:
        partition = storage.partition(0)
        assert partition.quarantined != sound
        assert codes(partition.findings) == ([] if sound else ["acknowledged-missing"])


@pytest.mark.parametrize(("begins", "code"), [(19, "segment-overlap"), (20, ""), (21, "segment-gap")])
def test_segments_join_to_the_transaction(tmp_path: Path, begins: int, code: str) -> None:
    records = make_records(30)
    build_directory(tmp_path, {0: [records[:20]]}, local_low_water_mark=-1)
    write_segment(tmp_path / "0", records[begins:])
    with opened(tmp_path) as storage:
        partition = storage.partition(0)
        assert partition.quarantined == bool(code)
        assert code in codes(partition.findings) or not code


@pytest.mark.parametrize(("begins", "sound"), [(0, True), (1, False)])
def test_a_log_begins_with_transaction_0(tmp_path: Path, begins: int, sound: bool) -> None:
    build_directory(tmp_path, {0: []}, local_low_water_mark=-1)
    write_segment(tmp_path / "0", make_records(10)[begins:])
    with opened(tmp_path) as storage:
        assert storage.partition(0).quarantined != sound
        assert codes(storage.partition(0).findings) == ([] if sound else ["segment-gap"])


@pytest.mark.parametrize(("entries", "sound"), [(0, True), (9, True), (10, True), (11, False)])
def test_an_index_without_data_that_lists_one_transaction_more_than_is_held_proves_a_loss(
    tmp_path: Path, entries: int, sound: bool
) -> None:
    """The other segment holds transactions 0 to 19, and the index begins at 10."""
    records = make_records(30)
    build_directory(tmp_path, {0: [records[:20]]}, local_low_water_mark=-1)
    header = segment_header(0, 10).encode()
    places = list(accumulate((one.size for one in records[10:]), initial=128))[:entries]
    index_path(tmp_path, 10).write_bytes(header + struct.pack(f">{entries}q", *places))
    with opened(tmp_path) as storage:
        partition = storage.partition(0)
        assert partition.quarantined != sound
        (found,) = [one for one in partition.findings if one.code == "index-orphan"]
        assert (found.severity == "repairable") == sound


@pytest.mark.parametrize(("name", "sound"), [(20, True), (21, False), (22, False)])
def test_a_name_behind_the_end_proves_what_is_in_front_of_it(tmp_path: Path, name: int, sound: bool) -> None:
    """An index without entries under that name; the last transaction is 19, above the mark."""
    built(tmp_path, 20)
    index_path(tmp_path, name).write_bytes(segment_header(0, name).encode())
    with opened(tmp_path) as storage:
        partition = storage.partition(0)
        assert partition.quarantined != sound
        assert ("durable-missing" in codes(partition.findings)) != sound
    assert index_path(tmp_path, name).exists() != sound


@pytest.mark.parametrize(("records", "entries", "sound"), [(999, 1000, True), (1000, 1001, True), (999, 1001, False)])
def test_an_index_that_leads_behind_a_checkpoint_proves_the_records_in_front_of_it(
    tmp_path: Path, records: int, entries: int, sound: bool
) -> None:
    build_directory(tmp_path, {0: 1001}, per_segment=5000, size=10, local_low_water_mark=-1)
    os.truncate(data_path(tmp_path), HEADER_SIZE + records * 50)
    os.truncate(index_path(tmp_path), entry_position(entries, 0))
    with opened(tmp_path, LARGE) as storage:
        partition = storage.partition(0)
        assert partition.quarantined != sound
        assert ("durable-missing" in codes(partition.findings)) != sound


@pytest.mark.parametrize(("session", "mark", "sound"), [(-1, -1, True), (0, -1, False), (1, -1, False)])
def test_a_partition_without_any_file_in_which_a_session_began_is_not_begun_anew(
    tmp_path: Path, session: int, mark: int, sound: bool
) -> None:
    build_directory(tmp_path, {0: []}, session=session, local_low_water_mark=mark)
    assert not list((tmp_path / "0").iterdir())
    with opened(tmp_path) as storage:
        assert storage.partition(0).quarantined != sound
        (found,) = storage.partition(0).findings
        assert (found.code, found.severity) == ("partition-empty", "note" if sound else "damage")


@pytest.mark.parametrize(("size", "entries", "sound"), [(127, 0, True), (127, 1, False), (128, 0, True), (0, 0, True)])
def test_a_data_file_that_ends_inside_its_header_holds_nothing_unless_its_index_has_an_entry(
    tmp_path: Path, size: int, entries: int, sound: bool
) -> None:
    built(tmp_path, 20)
    header = segment_header(0, 20).encode()
    data_path(tmp_path, 20).write_bytes(header[:size])
    index_path(tmp_path, 20).write_bytes(header + struct.pack(f">{entries}q", *[128] * entries))
    with opened(tmp_path) as storage:
        partition = storage.partition(0)
        assert partition.quarantined != sound
        assert codes(partition.findings) == ([] if size == HEADER_SIZE else ["segment-header-short"])


@pytest.mark.parametrize(
    ("size", "entries", "mark", "said"),
    [
        (127, 0, 19, None),
        (127, 0, 20, (20, "the last transaction is 19, but the local low-water mark is 20: transaction 20 was")),
        (127, 3, 22, None),
        (127, 3, 23, (23, "the last transaction is 22, but the local low-water mark is 23: transaction 23 was")),
        (60, 3, 25, (23, "the last transaction is 22, but the local low-water mark is 25: transactions 23 to 25 were")),
    ],
)
def test_what_a_data_file_that_ends_inside_its_header_held_is_not_missed_twice(
    tmp_path: Path, size: int, entries: int, mark: int, said: tuple[int, str] | None
) -> None:
    """Its index, which lists them, says that they are lost."""
    built(tmp_path, 20, mark=mark)
    header = segment_header(0, 20).encode()
    data_path(tmp_path, 20).write_bytes(header[:size])
    index_path(tmp_path, 20).write_bytes(header + struct.pack(f">{entries}q", *range(128, 128 + 50 * entries, 50)))
    with opened(tmp_path) as storage:
        findings = storage.partition(0).findings
        missed = [(one.transaction_id, one.message) for one in findings if one.code == "acknowledged-missing"]
        assert missed == ([] if said is None else [(said[0], f"{said[1]} durable here once")])


@pytest.mark.parametrize(("hiding", "sound"), [(28, True), (29, True), (30, True), (31, False)])
def test_a_stray_file_that_holds_one_record_more_than_the_segments_stands_in_the_way(
    tmp_path: Path, hiding: int, sound: bool
) -> None:
    """Segments hold 0 to 29; the stray holds 20 to `hiding` - 1."""
    built(tmp_path, 30)
    path = write_segment(tmp_path / "0", make_records(40)[20:hiding])  # writes segment 20 again ...
    path.rename(path.with_name("20.seg"))
    path.with_suffix(".idx").rename(path.with_name("20.idx"))
    write_segment(tmp_path / "0", make_records(40)[20:30])
    with opened(tmp_path) as storage:
        partition = storage.partition(0)
        assert partition.quarantined != sound
        assert ("segment-stray" in codes(partition.findings)) != sound


@pytest.mark.parametrize(("mark", "first_not_there"), [(11, 15), (14, 15), (15, 16), (24, 25)])
def test_reading_a_transaction_that_was_lost_is_an_error_and_one_that_never_was_is_not(
    tmp_path: Path, mark: int, first_not_there: int
) -> None:
    """Records 12 to 14 are damaged and nothing follows; the mark tells what was here."""
    records = built(tmp_path, 15, mark=mark)
    damage(data_path(tmp_path, 10), offset_of(records[10:], 12) + 9)
    os.truncate(data_path(tmp_path, 10), offset_of(records[10:], 12) + 30)
    first_not_there = mark + 1
    with opened(tmp_path) as storage:
        partition = storage.partition(0)
        assert partition.quarantined == (mark >= 12)
        if partition.quarantined:
            with pytest.raises(CorruptRecordError):
                partition.read(mark)
        assert partition.read(max(first_not_there, 12)) is None
