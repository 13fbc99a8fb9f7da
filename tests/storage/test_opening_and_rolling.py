"""What opening, rolling over and failing do to the disk and tell about it, step by step."""

from __future__ import annotations

import errno
import os
import resource
import struct
import uuid
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from functools import cache
from pathlib import Path, PurePath
from typing import Any

import pytest

from tests.builders import KEY, build_directory, digest, make_records, segment_header, write_segment
from tests.repair.trees import recording
from tests.storage.support import (
    LAYOUTS,
    SMALL,
    built,
    codes,
    damage,
    data_path,
    index_path,
    listed_at_once,
    offset_of,
    opened,
    write_at,
)
from waltzctl.engine.durable import disk
from waltzctl.engine.durable.disk import Change
from waltzctl.engine.errors import (
    ConcurrentUpdateError,
    CorruptRecordError,
    DamageError,
    DiskFullError,
    DiskWriteError,
    InvalidRequestError,
    MarkWouldFallError,
    MismatchError,
    NotAssignedError,
    NotAvailableError,
    PartitionQuarantinedError,
    RefusedError,
    SyncFailedError,
)
from waltzctl.engine.findings import Severity
from waltzctl.engine.log.view import view_partition
from waltzctl.engine.scan import scanner
from waltzctl.engine.storage import append, partition_recovery
from waltzctl.engine.storage.append import AppendSession, PendingRecord, append_lines, grouped
from waltzctl.engine.storage.control_file import OpenControlFile
from waltzctl.engine.storage.directory import StorageDirectory, StorageOptions
from waltzctl.engine.storage.fences import SessionFences, fence_path
from waltzctl.engine.storage.partition_log import PartitionLog
from waltzctl.engine.storage.partition_recovery import renew_last_index
from waltzctl.engine.storage.segment_files import ActiveSegment, create_segment
from waltzctl.engine.storage.segment_recovery import SegmentPlace, SegmentState, examine_segment
from waltzctl.formats.control import FLAG_AVAILABLE, Layout, decode_control
from waltzctl.formats.fence import fence_file_size
from waltzctl.formats.request_id import RequestId
from waltzctl.formats.segment import (
    HEADER_SIZE,
    Record,
    SegmentHeader,
    encode_entries,
    encode_records,
    entry_position,
    index_name,
    segment_name,
)

LARGE = StorageOptions(segment_size_threshold=10**6)


def steps(changes: list[Change]) -> list[tuple[str, str]]:
    return [(one.kind, one.path.name) for one in changes]


# --- opening -------------------------------------------------------------------------------------------------------


@LAYOUTS
def test_what_is_read_is_made_durable_first(tmp_path: Path, layout: Layout) -> None:
    """The control file, and of each partition the last segment: nothing else, and nothing is written."""
    build_directory(tmp_path, {0: 25, 1: 3}, layout=layout, per_segment=10)
    with opened(tmp_path):
        pass
    with recording() as changes, opened(tmp_path):
        seen = steps(changes)
    wanted = [("sync", "waltz-storage.ctl")]
    for number, first in ((0, 20), (1, 0)):
        wanted += [("sync", segment_name(first)), ("sync", index_name(first)), ("sync-directory", str(number))]
    assert [one for one in seen if one in wanted] == wanted
    assert [one for one in seen if one[1].endswith((".seg", ".idx"))] == [one for one in wanted if one[0] == "sync"][1:]
    assert {kind for kind, _ in seen} <= {"sync", "sync-directory"}
    assert steps(changes) == seen, "nothing is left to do when it is closed"


def test_without_its_index_the_last_segment_is_made_durable_all_the_same(tmp_path: Path) -> None:
    built(tmp_path, 5)
    index = index_path(tmp_path).read_bytes()
    index_path(tmp_path).unlink()
    with recording() as changes, opened(tmp_path):
        seen = steps(changes)
    assert seen.index(("sync", segment_name(0))) < seen.index(("sync-directory", "0"))
    assert index_path(tmp_path).read_bytes() == index


def built_alike(path: Path, count: int) -> None:
    """A partition with one segment of records that are all as long."""
    build_directory(path, {0: 0})
    header = segment_header(0, 0).encode()
    data_path(path).write_bytes(header + many()[: 43 * count])
    index_path(path).write_bytes(header + encode_entries(range(HEADER_SIZE, HEADER_SIZE + 43 * count, 43)))


@cache
def many() -> bytes:
    return encode_records(make_records(2005, size=3))[0]


@pytest.mark.parametrize("rows", [70, 500, 16384])
@pytest.mark.parametrize(("count", "whole"), [(1999, False), (2000, False), (2001, True), (2005, True)])
def test_an_index_is_written_anew_where_the_data_goes_beyond_another_checkpoint(
    tmp_path: Path, count: int, whole: bool, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its entries stop at 1500, and the data at `count`: the record of a checkpoint proves all entries in front of it.

    However many records are looked at together.
    """
    monkeypatch.setattr(scanner, "RUN_ROWS", rows)
    built_alike(tmp_path, count)
    raw = index_path(tmp_path).read_bytes()
    os.truncate(index_path(tmp_path), entry_position(1500, 0))
    with recording() as changes, opened(tmp_path, LARGE) as storage:
        assert not storage.partition(0).quarantined
        assert storage.partition(0).undo_ids == (), "nothing that was durable is taken away"
        seen = steps(changes)
    assert (("write", index_name(0)) in seen) != whole
    assert any(kind == "rename" for kind, _ in seen) == whole
    assert index_path(tmp_path).read_bytes() == raw


@pytest.mark.parametrize("first", [0, 10])
@pytest.mark.parametrize(
    ("name", "alone"), [(segment_name, False), (segment_name, True), (index_name, False), (index_name, True)]
)
def test_what_is_no_regular_file_is_named(tmp_path: Path, name: Callable[[int], str], alone: bool, first: int) -> None:
    """A directory in its place; the index beside a data file is not called one without data, because nobody knows.

    Where there is a data file beside it an index can be made again; nothing else can.
    """
    built(tmp_path, 15)
    place = tmp_path / "0" / name(first)
    place.unlink()
    place.mkdir()
    if alone:
        (index_path if name is segment_name else data_path)(tmp_path, first).unlink()
    with opened(tmp_path) as storage:
        partition = storage.partition(0)
        assert partition.quarantined
        found = [one for one in partition.findings if one.code == "special-file"]
        assert [(one.path, "a directory" in one.message, one.segment) for one in found] == [(place, True, first)]
        mendable = name is index_name and not alone
        assert [one.severity is Severity.REPAIRABLE for one in found] == [mendable]
        assert ["a released node does not start" in one.message for one in found] == [name is segment_name]
        assert "index-orphan" not in codes(partition.findings)


def test_a_partition_without_a_directory_has_no_transaction(tmp_path: Path) -> None:
    built(tmp_path, 5)
    for file in (tmp_path / "0").iterdir():
        file.unlink()
    (tmp_path / "0").rmdir()
    with opened(tmp_path) as storage:
        partition = storage.partition(0)
        assert (partition.max_transaction_id, partition.first_transaction_id, partition.segments) == (-1, 0, ())
        assert storage.outlook(0).last_transaction_id == -1
        assert partition.quarantined
        with pytest.raises(CorruptRecordError):
            partition.read(0)
        with pytest.raises(CorruptRecordError):
            partition.read(10**9)
        assert partition.read(-1) is None


def test_what_was_mended_is_told(tmp_path: Path) -> None:
    built(tmp_path, 25)
    os.truncate(data_path(tmp_path, 20), data_path(tmp_path, 20).stat().st_size - 1)
    write_at(index_path(tmp_path), HEADER_SIZE, struct.pack(">q", 5))
    index_path(tmp_path, 10).unlink()
    index_path(tmp_path, 24).write_bytes(segment_header(0, 24).encode())
    with opened(tmp_path) as storage:
        partition = storage.partition(0)
        assert not partition.quarantined
        assert codes(partition.mended) == ["index-entry", "index-missing", "index-orphan", "torn-tail"]
        assert set(partition.mended) <= set(partition.findings)
        assert len(partition.undo_ids) == 1


@pytest.mark.parametrize("error", [errno.EIO, errno.ESTALE])
def test_a_partition_whose_place_cannot_be_looked_at_when_it_is_to_be_mended_keeps_no_other_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    build_directory(tmp_path / "d", {0: 5, 1: 5}, local_low_water_mark=-1)
    path = tmp_path / "d" / "0" / "0000000000000000000.seg"
    os.truncate(path, path.stat().st_size - 1)
    real = os.open

    def failing(place: Any, flags: int, *given: Any, **named: Any) -> int:
        if flags & os.O_PATH and Path(place) == path.parent:
            raise OSError(error, os.strerror(error), str(place))
        return real(place, flags, *given, **named)

    monkeypatch.setattr(os, "open", failing)
    with StorageDirectory.open(tmp_path / "d") as storage:
        assert [storage.partition(number).condition.writable for number in (0, 1)] == [False, True]
    monkeypatch.undo()
    with StorageDirectory.open(tmp_path / "d") as storage:
        assert storage.partition(0).condition.writable


def test_of_a_quarantined_partition_nothing_was_mended(tmp_path: Path) -> None:
    built(tmp_path, 25)
    os.truncate(data_path(tmp_path, 20), data_path(tmp_path, 20).stat().st_size - 1)
    damage(data_path(tmp_path, 20), HEADER_SIZE)
    with opened(tmp_path) as storage:
        partition = storage.partition(0)
        assert partition.quarantined
        assert "torn-tail" in codes(partition.findings)
        assert partition.mended == ()


@pytest.mark.parametrize(("size", "code"), [(0, "index-header"), (127, "index-header"), (128, "index-short")])
@pytest.mark.parametrize("first", [0, 10])
def test_an_index_that_ends_in_its_header_is_told_and_made_again(
    tmp_path: Path, first: int, size: int, code: str
) -> None:
    built(tmp_path, 15)
    raw = index_path(tmp_path, first).read_bytes()
    os.truncate(index_path(tmp_path, first), size)
    with opened(tmp_path) as storage:
        found = storage.partition(0).findings
        assert codes(found) == [code]
        assert storage.partition(0).mended == found
    assert index_path(tmp_path, first).read_bytes() == raw


@pytest.mark.parametrize(("size", "kept"), [(-1, False), (0, False), (1, True), (16, True)])
def test_an_index_without_data_is_kept_when_there_is_anything_behind_its_header(
    tmp_path: Path, size: int, kept: bool
) -> None:
    records = built(tmp_path, 10)
    path = index_path(tmp_path, 8)
    places = struct.pack(">2q", HEADER_SIZE, HEADER_SIZE + records[8].size)
    path.write_bytes((segment_header(0, 8).encode() + places)[: HEADER_SIZE + size])
    with opened(tmp_path) as storage:
        assert not storage.partition(0).quarantined
        assert bool(storage.partition(0).undo_ids) == kept
    assert not path.exists()


def test_partitions_that_were_not_asked_for_stay_as_they_are(tmp_path: Path) -> None:
    """Until somebody asks; looking at one opens nothing."""
    build_directory(tmp_path, {0: 5, 1: 5, 2: 5})
    os.truncate(data_path(tmp_path, 0, 2), data_path(tmp_path, 0, 2).stat().st_size - 1)
    before = digest(tmp_path / "2")
    with StorageDirectory.open(tmp_path, partitions=[1]) as storage:
        assert list(storage.partitions) == [1]
        found = storage.outlook(2)
        assert (found.last_transaction_id, found.condition.writable, codes(found.findings)) == (3, True, ["torn-tail"])
        assert storage.outlook(1).last_transaction_id == 4
        assert (storage.outlook(1).path, found.path) == (tmp_path / "1", tmp_path / "2")
        assert list(storage.partitions) == [1]
        assert digest(tmp_path / "2") == before
        assert storage.partition(2).max_transaction_id == 3
        assert list(storage.partitions) == [1, 2]
        assert digest(tmp_path / "2") != before
        for call in (storage.outlook, storage.partition, storage.availability):
            with pytest.raises(InvalidRequestError, match="partition 3: the control file has partitions 0 to 2"):
                call(3)
            with pytest.raises(InvalidRequestError):
                call(-1)


@LAYOUTS
@pytest.mark.parametrize("delete_files", [False, True])
def test_a_partition_that_was_not_asked_for_can_be_taken_away(
    tmp_path: Path, layout: Layout, delete_files: bool
) -> None:
    build_directory(tmp_path, {0: 5, 1: 5}, layout=layout)
    with StorageDirectory.open(tmp_path, partitions=[1]) as storage:
        storage.unassign(0, delete_files=delete_files)
        with pytest.raises(NotAssignedError):
            storage.outlook(0)
        assert storage.partition(1).max_transaction_id == 4
        storage.assign(0)
        assert storage.partition(0).max_transaction_id == (-1 if delete_files else 4)


@LAYOUTS
def test_assigning_what_is_assigned_does_nothing(tmp_path: Path, layout: Layout) -> None:
    build_directory(tmp_path, {0: 5, 1: 5}, layout=layout)
    with StorageDirectory.open(tmp_path, partitions=[1]) as storage, recording() as changes:
        storage.assign(0)
        storage.assign(1)
        assert list(storage.partitions) == [1]
        assert not changes


@LAYOUTS
def test_a_partition_whose_directory_went_begins_anew_with_initial_marks(tmp_path: Path, layout: Layout) -> None:
    """When it is assigned, and only then; one that never was anything costs no reset."""
    build_directory(tmp_path, {0: 5, 1: 5, 2: 5}, layout=layout, num_partitions=4)
    with opened(tmp_path) as storage:
        storage.unassign(1, delete_files=False)
        storage.assign(1)
        assert storage.partition(1).session_id == 3
        storage.unassign(1, delete_files=False)
    for place in (tmp_path / "1", tmp_path / ".waltzctl" / "unassigned" / "1"):
        for file in place.glob("*"):
            file.unlink()
        if place.exists():
            place.rmdir()
    with opened(tmp_path) as storage:
        if 1 in storage.partitions:
            assert layout is Layout.DOCUMENTED, "a session is proof enough that it was here"
            return
        storage.assign(1)
        partition = storage.partition(1)
        assert (partition.session_id, partition.low_water_mark, partition.local_low_water_mark) == (-1, -1, -1)
        assert not partition.quarantined
        with recording() as changes:
            storage.assign(3)
        written = [one for one in changes if one.path.name == "waltz-storage.ctl" and one.kind == "write"]
        assert len(written) == 1, "the flag, and no reset"


@LAYOUTS
def test_a_pair_that_is_damaged_takes_no_assignment_and_no_switch(tmp_path: Path, layout: Layout) -> None:
    path = build_directory(tmp_path / "s", {0: 5}, layout=layout, num_partitions=2) / "waltz-storage.ctl"
    raw = bytearray(path.read_bytes())
    for number in (1, 2):
        raw[layout.struct_offset(1, number)] ^= 1
    path.write_bytes(raw)
    with opened(tmp_path / "s") as storage:
        with pytest.raises(PartitionQuarantinedError, match="partition 1: its info in the control file is damaged"):
            storage.assign(1)
        if layout is Layout.RELEASED:
            with pytest.raises(PartitionQuarantinedError, match="partition 1: its info in the control file is damaged"):
                storage.set_availability(1, readable=False)
        else:
            storage.set_availability(1, readable=False)
            assert not storage.availability(1).readable
        with pytest.raises(NotAssignedError, match=r"Partition:1 is not assigned\.$"):
            storage.unassign(1, delete_files=False)
    control = decode_control(path.read_bytes())
    path.write_bytes(
        replace(
            control, partitions=(control.partitions[0], replace(control.partitions[1], stored_partition=0))
        ).encode()
    )


@LAYOUTS
@pytest.mark.parametrize("delete", [True, False])
def test_a_partition_whose_place_names_another_one_is_neither_taken_away_nor_switched(
    tmp_path: Path, layout: Layout, delete: bool
) -> None:
    """Its info would be written anew in the other one's name."""
    path = build_directory(tmp_path / "s", {0: 5, 1: 5}, layout=layout) / "waltz-storage.ctl"
    control = decode_control(path.read_bytes())
    infos = control.partitions[0], replace(control.partitions[1], stored_partition=0)
    path.write_bytes(replace(control, partitions=infos).encode())
    with opened(tmp_path / "s") as storage:
        before = digest(tmp_path / "s")
        with pytest.raises(PartitionQuarantinedError, match="partition 1: its info in the control file is damaged"):
            storage.unassign(1, delete_files=delete)
        if layout is Layout.RELEASED:
            with pytest.raises(PartitionQuarantinedError, match="partition 1: its info in the control file is damaged"):
                storage.set_availability(1, readable=False)
        assert 1 in storage.partitions
        assert digest(tmp_path / "s") == before


def test_whether_the_marks_are_known(tmp_path: Path) -> None:
    path = build_directory(tmp_path / "s", {0: 5, 1: 5}, session=4, local_low_water_mark=2) / "waltz-storage.ctl"
    raw = bytearray(path.read_bytes())
    for number in (1, 2):
        raw[Layout.RELEASED.struct_offset(1, number)] ^= 1
    path.write_bytes(raw)
    with opened(tmp_path / "s") as storage:
        sound, damaged = storage.partition(0), storage.partition(1)
        assert (sound.marks_known, sound.session_id, sound.local_low_water_mark) == (True, 4, 2)
        assert (damaged.marks_known, damaged.session_id, damaged.local_low_water_mark) == (False, -1, -1)


def test_a_quarantined_partition_is_not_mended(tmp_path: Path) -> None:
    built(tmp_path, 5, mark=4)
    os.truncate(data_path(tmp_path), data_path(tmp_path).stat().st_size - 1)
    examined = partition_recovery.examine_partition(
        tmp_path / "0", SegmentPlace(tmp_path, 0, KEY, 1 << 20), local_low_water_mark=4, session_id=1
    )
    before = digest(tmp_path)
    with pytest.raises(ValueError, match="a quarantined partition is not mended"):
        partition_recovery.mend(examined)
    assert digest(tmp_path) == before


def test_a_closed_partition_refuses_everything(tmp_path: Path) -> None:
    built(tmp_path, 5)
    with opened(tmp_path) as storage:
        partition = storage.partition(0)
        partition.close()
        for refused in (
            partition.check_writable,
            lambda: partition.append(make_records(1, first=5)),
            lambda: partition.truncate(2),
            lambda: partition.set_low_water_mark(9, 9),
        ):
            with pytest.raises(RefusedError, match=r"partition 0 is closed$"):
                refused()
        with pytest.raises(RefusedError, match="the partition is closed"):
            partition.read(0)
        with recording() as changes:
            partition.close()
        assert not changes


@pytest.mark.parametrize("failed", [False, True])
def test_a_partition_is_closed_once(tmp_path: Path, failed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """What failed while it was closed is not tried again, and neither is anything where a sync had failed before."""
    built(tmp_path, 5)
    with opened(tmp_path) as storage:
        partition = storage.partition(0)
        partition.append(make_records(1, first=5))
        error = SyncFailedError(partition.path, None, OSError("as if"), doing="sync")
        calls = []

        def sync(active: ActiveSegment) -> None:
            calls.append(active)
            raise error

        monkeypatch.setattr(ActiveSegment, "sync_index", sync)
        if failed:
            partition._failed = error
            partition.close()
        else:
            with pytest.raises(SyncFailedError):
                partition.close()
        partition.close()
        assert len(calls) == (not failed)
        with pytest.raises(RefusedError, match="partition 0 is closed"):
            partition.check_writable()


def test_an_interrupt_inside_a_truncation_leaves_what_can_be_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = built(tmp_path, 25)
    with opened(tmp_path) as storage:
        partition = storage.partition(0)
        partition.append(make_records(1, first=25))
        with monkeypatch.context() as patched:
            patched.setattr(disk, "unlink", _interrupted)
            with pytest.raises(KeyboardInterrupt):
                partition.truncate(5)
    with opened(tmp_path) as storage:
        assert storage.partition(0).read_range(0, 6) == records[:6]


def _interrupted(path: PurePath) -> None:
    raise KeyboardInterrupt


def test_the_first_damage_says_why_writes_are_refused(tmp_path: Path) -> None:
    records = built(tmp_path, 15)
    for number in (11, 13):
        damage(data_path(tmp_path, 10), offset_of(records[10:], number) + 9)
    with opened(tmp_path) as storage:
        partition = storage.partition(0)
        assert [one.transaction_id for one in partition.findings] == [11, 13]
        with pytest.raises(PartitionQuarantinedError, match="partition 0 is quarantined: transaction 11: checksum"):
            partition.append(make_records(1, first=11))


def state_of(path: Path, first: int) -> SegmentState:
    (view,) = [one for one in view_partition(path / "0", 0).segments if one.first_transaction_id == first]
    return examine_segment(view, SegmentPlace(path, 0, KEY, 1 << 20), next_first=None, durable_to=-1, mark=-1)


def rewritten(path: Path, **changes: object) -> None:
    """Change a file's header."""
    raw = path.read_bytes()
    header = replace(SegmentHeader.decode(raw), **changes)  # type: ignore[arg-type]
    path.write_bytes(header.encode() + raw[HEADER_SIZE:])


def test_a_renamed_file_begins_where_its_header_says(tmp_path: Path) -> None:
    """Nothing of it is believed under its name, not even where an index of that name is right."""
    built(tmp_path, 20)
    for of in (data_path, index_path):
        of(tmp_path, 10).rename(of(tmp_path, 12))
    for index in (10, 12):
        rewritten(index_path(tmp_path, 12), first_transaction_id=index)
        state = state_of(tmp_path, 12)
        assert state.extent is None
        assert not state.trusted
        assert state.stretch is not None
        assert (state.stretch.segment, state.stretch.begins) == (12, 10)
        assert codes(state.findings) == ["segment-name"]


def test_records_are_judged_by_their_request_ids_only_behind_a_header_that_is_right(tmp_path: Path) -> None:
    strange = [Record.make(n, RequestId(1, 2, 7, 3), 0, bytes(n)) for n in range(10, 20)]
    build_directory(tmp_path, {0: [make_records(10), strange, make_records(30)[20:]]}, num_partitions=8)
    state = state_of(tmp_path, 10)
    assert codes(state.findings) == ["segment-partition"]
    assert "request ids" in state.findings[0].message
    assert (state.extent, state.trusted) == (None, False)
    rewritten(data_path(tmp_path, 10), partition=5)
    state = state_of(tmp_path, 10)
    assert codes(state.findings) == ["segment-partition"]
    assert "request ids" not in state.findings[0].message
    assert state.extent is not None, "its index vouches for it"
    assert not state.trusted


def test_a_file_that_shrank_below_its_header_meanwhile_is_gone(tmp_path: Path) -> None:
    built(tmp_path, 10)
    (view,) = view_partition(tmp_path / "0", 0).segments
    os.truncate(data_path(tmp_path), HEADER_SIZE - 1)
    with pytest.raises(FileNotFoundError):
        examine_segment(view, SegmentPlace(tmp_path, 0, KEY, 1 << 20), next_first=None, durable_to=-1, mark=-1)


# --- writing -------------------------------------------------------------------------------------------------------


def test_rolling_over_and_truncating_keep_no_file_open(tmp_path: Path) -> None:
    built(tmp_path, 0)
    with opened(tmp_path) as storage:
        partition = storage.partition(0)
        before = len(os.listdir("/proc/self/fd"))
        for record in make_records(60, size=300):
            partition.append([record])
        assert len(partition.segments) > 10
        assert len(os.listdir("/proc/self/fd")) == before
        for after in (50, 10, -1):
            partition.truncate(after)
            assert len(os.listdir("/proc/self/fd")) == before


def test_after_a_truncation_nothing_is_left_to_make_durable(tmp_path: Path) -> None:
    built(tmp_path, 25)
    with opened(tmp_path) as storage:
        partition = storage.partition(0)
        partition.append(make_records(1, first=25))
        partition.truncate(22)
        with recording() as changes:
            partition.close()
        assert not changes


def test_a_segment_that_cannot_be_opened_goes_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    records = built(tmp_path, 10)
    more = make_records(20)[10:]
    with opened(tmp_path, StorageOptions(segment_size_threshold=1)) as storage:
        partition, before = storage.partition(0), digest(tmp_path)

        def refused(extent: object) -> ActiveSegment:
            raise DiskWriteError(tmp_path, None, OSError(errno.EMFILE, "too many"), doing="open")

        with monkeypatch.context() as patched:
            patched.setattr(ActiveSegment, "open", refused)
            with pytest.raises(DiskWriteError):
                partition.append(more)
        assert digest(tmp_path) == before
        assert partition.failed is None
        assert partition.max_transaction_id == 9
        partition.append(more)
        assert partition.read_range(0, 30) == [*records, *more]


def test_a_segment_of_which_only_the_data_file_could_be_made_goes_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = disk.write_whole

    def half(path: PurePath, data: bytes) -> None:
        if path.name.endswith(".idx"):
            raise DiskWriteError(path, None, OSError(errno.ENOSPC, "full"), doing="write")
        whole(path, data)

    monkeypatch.setattr(disk, "write_whole", half)
    with recording() as changes, pytest.raises(DiskWriteError):
        create_segment(tmp_path, partition=0, first_transaction_id=7, cluster_key=KEY)
    assert list(tmp_path.iterdir()) == []
    assert steps(changes)[-2:] == [("unlink", segment_name(7)), ("sync-directory", tmp_path.name)]


@pytest.mark.parametrize("step", ["index", "open"])
def test_what_is_left_of_a_segment_that_could_not_be_made_ends_writing(
    tmp_path: Path, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every later roll-over was refused for the data file that stood there; and no longer led to it, had the batch been cut."""
    records = built(tmp_path, 8)
    more = make_records(14)[8:]
    whole = disk.write_whole

    def refused(path: PurePath) -> None:
        raise DiskFullError(path, None, OSError(errno.ENOSPC, "full"), doing="remove")

    def half(path: PurePath, data: bytes) -> None:
        if path.name.endswith(".idx") and step == "index":
            refused(path)
        whole(path, data)

    def unopened(extent: object) -> ActiveSegment:
        raise DiskFullError(tmp_path, None, OSError(errno.ENOSPC, "full"), doing="open")

    threshold = HEADER_SIZE + sum(record.size for record in [*records, *more][:10])
    with opened(tmp_path, StorageOptions(segment_size_threshold=threshold)) as storage:
        partition = storage.partition(0)
        with monkeypatch.context() as patched:
            patched.setattr(disk, "unlink", refused)
            patched.setattr(disk, "write_whole", half)
            if step == "open":
                patched.setattr(ActiveSegment, "open", unopened)
            with pytest.raises(DiskFullError):
                partition.append(more)
        assert partition.failed is not None
        assert partition.read_range(0, 30) == records
        with pytest.raises(DiskFullError):
            partition.append(more)
        partition = storage.reopen(0)
        assert not partition.quarantined
        assert partition.max_transaction_id == 7, "what was not acknowledged is gone"
        partition.append(more)
        assert partition.read_range(0, 30) == [*records, *more]


@pytest.mark.parametrize("left", range(6))
def test_who_has_no_descriptor_to_sync_a_directory_with_has_not_failed_to_sync(tmp_path: Path, left: int) -> None:
    records = built(tmp_path, 10)
    more = make_records(11)[10:]
    with opened(tmp_path, StorageOptions(segment_size_threshold=1)) as storage:
        partition, before, enough = storage.partition(0), digest(tmp_path), 4
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        with ExitStack() as stack:
            places = [os.open(os.devnull, os.O_RDONLY) for _ in range(left)]
            while (highest := os.open(os.devnull, os.O_RDONLY)) < 400:
                stack.callback(os.close, highest)
            stack.callback(os.close, highest)
            for place in places:
                os.close(place)
            resource.setrlimit(resource.RLIMIT_NOFILE, (highest, limits[1]))
            stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, limits)
            with pytest.raises(DiskWriteError, match=os.strerror(errno.EMFILE)) if left < enough else nullcontext():
                partition.append(more)
        assert partition.failed is None
        if left < enough:
            assert digest(tmp_path) == before
            partition.append(more)
        assert partition.read_range(0, 30) == [*records, *more]


def test_no_segment_is_made_over_another(tmp_path: Path) -> None:
    write_segment(tmp_path, make_records(3))
    before = digest(tmp_path)
    with pytest.raises(DamageError, match="a segment is to begin here, and its data file exists already") as refused:
        create_segment(tmp_path, partition=0, first_transaction_id=0, cluster_key=KEY)
    (found,) = refused.value.findings
    assert (found.code, found.path, found.partition) == ("segment-overlap", tmp_path / segment_name(0), 0)
    assert digest(tmp_path) == before


def test_the_index_is_made_durable_at_a_checkpoint_and_not_with_every_batch(tmp_path: Path) -> None:
    built(tmp_path, 0)
    records = make_records(1003, size=1)
    with opened(tmp_path, LARGE) as storage:
        partition = storage.partition(0)
        for low, high, index in ((0, 998, False), (998, 999, False), (999, 1000, True), (1000, 1001, False)):
            with recording() as changes:
                partition.append(records[low:high])
            assert (("sync", index_name(0)) in steps(changes)) == index, low
            assert ("sync", segment_name(0)) in steps(changes)
        with recording() as changes:
            partition.set_low_water_mark(9, 1000)
        assert steps(changes)[0] == ("sync", index_name(0))
        with recording() as changes:
            partition.set_low_water_mark(9, 1000)
        assert ("sync", index_name(0)) not in steps(changes), "it is durable already"


@pytest.mark.parametrize("piece", [1, 7, 1 << 20])
def test_the_last_index_is_written_as_it_reads(tmp_path: Path, piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    built(tmp_path, 25)
    monkeypatch.setattr(partition_recovery, "PIECE", piece)
    before = digest(tmp_path)
    with recording() as changes:
        renew_last_index(tmp_path / "0", 0)
    assert digest(tmp_path) == before
    assert [one.target for one in changes if one.kind == "rename"] == [index_path(tmp_path, 20)]
    index_path(tmp_path, 20).unlink()
    with recording() as changes:
        renew_last_index(tmp_path / "0", 0)
    assert not changes


def test_opening_again_keeps_what_was_acknowledged_and_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a failed sync the files may show what the disk does not hold."""
    records = built(tmp_path, 10)
    more = make_records(12)[10:]
    with opened(tmp_path, LARGE) as storage:
        partition = storage.partition(0)

        def failing(file: disk.WritableFile) -> None:
            raise SyncFailedError(file.path, None, OSError(errno.EIO, "bad"), doing="sync")

        with monkeypatch.context() as patched:
            patched.setattr(disk.WritableFile, "sync", failing)
            with pytest.raises(SyncFailedError):
                partition.append(more)
        assert partition.failed is not None
        with pytest.raises(SyncFailedError):
            partition.append(more)
        with recording() as changes:
            again = storage.reopen(0)
        assert ("rename", f"{index_name(0)}.waltzctl-tmp") in steps(changes)
        assert again is storage.partition(0) is not partition
        assert again.read_range(0, 30) == records
        again.append(more)
        with recording() as changes:
            assert storage.reopen(0).max_transaction_id == 11
        assert not any(kind == "rename" for kind, _ in steps(changes))


# --- reading -------------------------------------------------------------------------------------------------------


def test_a_log_with_gaps_knows_what_was_lost(tmp_path: Path) -> None:
    built(tmp_path, 5)
    for lost_below, first_none in ((0, 5), (5, 5), (6, 6), (1, 5)):
        with opened(tmp_path) as storage:
            log = PartitionLog(tmp_path / "0", tmp_path, SMALL, storage.partition(0).segments, 5, lost_below=lost_below)
            for number in range(5, first_none):
                with pytest.raises(CorruptRecordError, match=f"transaction {number}: it is missing"):
                    log.read(number)
            assert log.read(first_none) is None
            log.close()
            with pytest.raises(RefusedError, match="the partition is closed"):
                log.read(0)
    nothing = PartitionLog(tmp_path / "0", tmp_path, SMALL, (), 0, lost_below=0)
    assert nothing.read(0) is None
    nothing = PartitionLog(tmp_path / "0", tmp_path, SMALL, (), 0, lost_below=1)
    with pytest.raises(CorruptRecordError):
        nothing.read(0)


@pytest.mark.parametrize(
    ("first", "count", "room", "found"),
    [
        (0, 5, 10**6, 5),
        (0, 10, 10**6, 10),
        (0, 11, 10**6, None),  # the eleventh lies in another segment
        (9, 1, 10**6, 1),
        (9, 2, 10**6, None),
        (10, 2, 10**6, 2),
        (20, 5, 10**6, 5),
        (20, 6, 10**6, 5),  # there is no more
        (25, 1, 10**6, None),
        (24, 1, 10**6, 1),
        (-1, 1, 10**6, None),
        (3, 0, 10**6, None),
        (0, 5, 5, None),
    ],
)
def test_what_is_answered_out_of_memory(disk_path: Path, first: int, count: int, room: int, found: int | None) -> None:
    built(disk_path / "s", 25)
    with opened(disk_path / "s") as storage:
        partition = storage.partition(0)
        assert listed_at_once(partition, 0, 1) is None, "no segment is open yet"
        storage.partition(0)._log._readers._capacity = 9
        for number in (0, 10, 20):
            partition.read_wire(number, 1)
        for headers in (False, True):
            answer = listed_at_once(partition, first, count, room, headers=headers)
            assert (None if answer is None else answer.count) == found
            if answer is not None:
                other = partition.read_wire_headers(first, count) if headers else partition.read_wire(first, count)
                assert answer == other


def test_a_truncation_that_overtakes_a_reader_ends_its_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    records = built(tmp_path, 25)
    with opened(tmp_path) as storage:
        partition = storage.partition(0)
        found = PartitionLog._extent_of

        def overtaken(log: PartitionLog, number: int) -> object:
            extent = found(log, number)
            if number == 20:
                partition.truncate(14)
            return extent

        monkeypatch.setattr(PartitionLog, "_extent_of", overtaken)
        assert partition.read_range(8, 20) == records[8:20]
        monkeypatch.undo()
        partition.append(records[15:])
        monkeypatch.setattr(PartitionLog, "_extent_of", overtaken)
        assert partition.read_wire(20, 3).count == 0
        assert partition.max_transaction_id == 14


# --- sessions ------------------------------------------------------------------------------------------------------


@LAYOUTS
def test_marks_and_sessions_one_step_to_each_side(tmp_path: Path, layout: Layout) -> None:
    path = (
        build_directory(tmp_path / "s", {0: 40}, layout=layout, session=5, local_low_water_mark=20)
        / "waltz-storage.ctl"
    )
    for session, low, local, error, said in (
        (4, 20, 20, ConcurrentUpdateError, "partition 0: session 4 is older than session 5, which is in force"),
        (5, 19, 20, MarkWouldFallError, "partition 0: unable to set the low-water mark to 19: it is 20"),
        (5, 20, 19, MarkWouldFallError, "partition 0: unable to set the local low-water mark to 19: it is 20"),
        (5, 20, 20, None, ""),
        (6, 21, 21, None, ""),
    ):
        with OpenControlFile.open(path) as control:
            if error is None:
                control.set_low_water_mark(0, session, low, local)
            else:
                with pytest.raises(error, match=said):
                    control.set_low_water_mark(0, session, low, local)
                session, low, local = 5, 20, 20
        current = decode_control(path.read_bytes()).partitions[0].current_struct
        assert current is not None
        assert current.marks == (session, low, local)


@LAYOUTS
@pytest.mark.parametrize(("mark", "writes"), [(21, 0), (20, 0), (19, 1)])
def test_giving_a_local_mark_up(tmp_path: Path, layout: Layout, mark: int, writes: int) -> None:
    """In the documented layout both structs have to say it, as the higher marks win there."""
    path = build_directory(tmp_path / "s", {0: 40}, layout=layout, local_low_water_mark=20) / "waltz-storage.ctl"
    with OpenControlFile.open(path) as control, recording() as changes:
        control.set_low_water_mark(0, 3, 20, 20)
        changes.clear()
        control.lower_local_low_water_mark(0, mark)
        pairs = [one.local_low_water_mark for one in control.info(0).structs]
    count = len([one for one in changes if one.kind == "write"])
    assert count == (writes and {Layout.RELEASED: 1, Layout.DOCUMENTED: 3}[layout] - (layout is Layout.DOCUMENTED))
    current = decode_control(path.read_bytes()).partitions[0].current_struct
    assert current is not None
    assert current.local_low_water_mark == min(mark, 20)
    assert set(pairs) == ({mark} if writes and layout is Layout.DOCUMENTED else {20, min(mark, 20)})


def test_flags_of_the_released_layout(tmp_path: Path) -> None:
    for layout in Layout:
        path = build_directory(tmp_path / layout, {0: 1}, layout=layout) / "waltz-storage.ctl"
        with OpenControlFile.open(path) as control:
            if layout is Layout.DOCUMENTED:
                with pytest.raises(ValueError, match="the documented layout has no flags"):
                    control.set_flag(0, FLAG_AVAILABLE, True)
                continue
            for value, flags in ((False, 4), (False, 4), (True, 5), (True, 5)):
                control.set_flag(0, FLAG_AVAILABLE, value)
                current = control.info(0).current_struct
                assert current is not None
                assert current.flags == flags


def test_what_a_control_file_is_compared_with(tmp_path: Path) -> None:
    path = build_directory(tmp_path / "s", {0: 1, 1: 1}) / "waltz-storage.ctl"
    other = uuid.UUID(int=1)
    OpenControlFile.open(path, expected_key=KEY, expected_partitions=2).close()
    with pytest.raises(MismatchError, match=f"the cluster key does not match: {KEY} here, {other} expected"):
        OpenControlFile.open(path, expected_key=other)
    with pytest.raises(MismatchError, match="the number of partitions does not match: 2 here, 3 expected"):
        OpenControlFile.open(path, expected_partitions=3)


def test_fences_refuse_what_cannot_be_meant(tmp_path: Path) -> None:
    (tmp_path / ".waltzctl").mkdir()
    with SessionFences.open(tmp_path, 3) as fences:
        for number in (-1, 3):
            for call in (fences.get, fences.forget):
                with pytest.raises(InvalidRequestError, match=f"partition {number}: there are partitions 0 to 2"):
                    call(number)
        with pytest.raises(InvalidRequestError, match="partition 0: session -1 is no session"):
            fences.raise_to(0, -1)
        fences.raise_to(2, 0)
        assert [fences.get(number) for number in range(3)] == [-1, -1, 0]
    with pytest.raises(RefusedError, match="the session fences are closed"):
        fences.get(0)
    path = Path(fence_path(tmp_path))
    raw = path.read_bytes()
    assert len(raw) == fence_file_size(3)
    for data, said in (
        (raw[:-1], "it has 159 bytes instead of 160"),
        (raw + b"x", "it has 161 bytes instead of 160"),
        (raw[:50], "it has 50 bytes, its header alone has 64"),
    ):
        path.write_bytes(data)
        with pytest.raises(DamageError, match=f"sessions: cannot be understood: {said}"):
            SessionFences.open(tmp_path, 3)
    path.write_bytes(raw)
    with pytest.raises(DamageError, match="it is for 3 partitions, and there are 4"):
        SessionFences.open(tmp_path, 4)
    with recording() as changes:
        SessionFences.open(tmp_path, 3).close()
    assert steps(changes) == [("sync", "sessions")], "what stands there is durable before it is believed"


# --- appending from outside ----------------------------------------------------------------------------------------


def pending(size: int = 0, **fields: object) -> PendingRecord:
    return replace(PendingRecord(bytes(size)), **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("sizes", "batch", "groups"),
    [
        ([], 2, []),
        ([0], 2, [1]),
        ([0, 0], 2, [2]),
        ([0, 0, 0], 2, [2, 1]),
        ([60, 0, 0], 9, [1, 2]),
        ([59, 0, 0], 9, [2, 1]),
        ([19, 0, 0], 9, [3]),
        ([20, 0, 0], 9, [2, 1]),
        ([60, 19, 0, 0], 9, [1, 3]),
    ],
)
def test_batches_end_with_their_number_or_their_bytes(
    sizes: list[int], batch: int, groups: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 100 bytes; each record has 40 beside its data."""
    monkeypatch.setattr(append, "BATCH_BYTES", 100)
    assert [len(group) for group in grouped(map(pending, sizes), batch)] == groups


def test_what_an_appended_record_is_called(tmp_path: Path) -> None:
    built(tmp_path, 5)
    told: list[int] = []
    result = append_lines(
        tmp_path / "0",
        partition=0,
        records=[pending(3), pending(4, request_id=RequestId(9, 8, 7, 6), header=-5), pending(5)],
        batch=2,
        on_durable=told.append,
    )
    assert told == [6, 7]
    assert (result.first_transaction_id, result.last_transaction_id, result.records, result.bytes) == (5, 7, 3, 132)
    assert (result.partition, result.mended, result.undo_ids, result.taken_back) == (0, (), (), ())
    with opened(tmp_path) as storage:
        partition = storage.partition(0)
        found = partition.read_range(5, 3)
        assert [one.request_id for one in found] == [
            RequestId(0, 4, 0, 0),
            RequestId(9, 8, 7, 6),
            RequestId(0, 4, 0, 2),
        ]
        assert [one.header for one in found] == [0, -5, 0]
        assert (partition.session_id, partition.low_water_mark, partition.local_low_water_mark) == (4, 4, 4)


@pytest.mark.parametrize("part", [-(2**31) - 1, -(2**31), 2**31 - 1, 2**31])
def test_numbers_of_32_bits(tmp_path: Path, part: int) -> None:
    built(tmp_path, 5)
    fits = -(2**31) <= part < 2**31
    ids = [RequestId(0, 0, 0, part), RequestId(part, 0, 0, 0)]
    for item in (pending(header=part), *(pending(request_id=one) for one in ids)):
        before = digest(tmp_path / "0")
        with opened(tmp_path) as storage:
            session = AppendSession(storage, 0)
            if fits:
                session.append([item])
            else:
                with pytest.raises(
                    InvalidRequestError, match=r"transaction 5: header .* must be signed 32-bit integers"
                ):
                    session.append([item])
        assert fits or digest(tmp_path / "0") == before


def test_what_is_not_appended_to(tmp_path: Path) -> None:
    path = build_directory(tmp_path / "s", {0: 5, 1: 5})
    for batch in (0, -1):
        with pytest.raises(InvalidRequestError, match=f"a batch has at least one record, not {batch}"):
            append_lines(path, partition=0, records=[pending()], batch=batch)
    with pytest.raises(InvalidRequestError, match="lies in partition 0, and partition 1 was asked for"):
        append_lines(path / "0", partition=1, records=[pending()])
    with StorageDirectory.open(path) as storage:
        storage.set_availability(0, writable=False)
        with pytest.raises(NotAvailableError, match="partition 0 is not available for writing"):
            AppendSession(storage, 0)
        session = AppendSession(storage, 1)
        assert (session.session_id, session.last_transaction_id) == (4, None)
        session.append([])
        assert storage.partition(1).session_id == 3, "no session begins without a record"
    damage(data_path(path, 0, 1), HEADER_SIZE + 5)
    said = "partition 1 is quarantined: damage was found in it"
    with StorageDirectory.open(path, partitions=()) as storage, pytest.raises(PartitionQuarantinedError, match=said):
        AppendSession(storage, 1)


@pytest.mark.parametrize(
    ("options", "fine"),
    [
        (StorageOptions(), True),
        (StorageOptions(segment_size_threshold=1), True),
        (StorageOptions(segment_size_threshold=0), False),
        (StorageOptions(cached_segments=1), True),
        (StorageOptions(cached_segments=0), False),
        (StorageOptions(max_data_length=1), True),
        (StorageOptions(max_data_length=0), False),
        (StorageOptions(max_data_length=2**31 - 1), True),
        (StorageOptions(max_data_length=2**31), False),
    ],
)
def test_options_one_step_to_each_side(options: StorageOptions, fine: bool) -> None:
    if fine:
        options.check()
    else:
        with pytest.raises(InvalidRequestError):
            options.check()
    assert StorageOptions() == StorageOptions(10**9, 256 << 20, 5)
