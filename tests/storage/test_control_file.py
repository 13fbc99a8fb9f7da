"""Control file: sessions, marks and flags (behaviours 1 to 11), validation, and reset."""

from __future__ import annotations

import contextlib
import itertools
import os
import struct
import uuid
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.builders import CREATED, KEY, build_directory
from tests.repair.trees import recording
from tests.storage.support import LAYOUTS, codes, damage, opened
from waltzctl.engine.durable import disk
from waltzctl.engine.errors import (
    ConcurrentUpdateError,
    DamageError,
    InvalidRequestError,
    MarkWouldFallError,
    MismatchError,
    NotWaltzError,
    PartitionQuarantinedError,
    SyncFailedError,
)
from waltzctl.engine.storage.control_file import OpenControlFile, create_control_file
from waltzctl.engine.storage.directory import StorageDirectory
from waltzctl.formats.control import FLAG_ASSIGNED, FLAG_AVAILABLE, ControlFile, Layout, decode_control, initial_control

NAME = "waltz-storage.ctl"


def make(path: Path, layout: Layout = Layout.RELEASED, partitions: int = 2) -> Path:
    create_control_file(path / NAME, initial_control(layout, KEY, partitions, CREATED))
    return path / NAME


def stored(path: Path) -> ControlFile:
    return decode_control(path.read_bytes())


def test_1_a_new_control_file_holds_initial_values(tmp_path: Path) -> None:
    with OpenControlFile.open(make(tmp_path)) as control:
        for partition in range(2):
            current = control.info(partition).current_struct
            assert current is not None
            assert control.info(partition).stored_partition == partition
            assert current.marks == (-1, -1, -1)
            assert (current.flags, current.sequence) == (FLAG_AVAILABLE, 0)


def test_2_another_cluster_key_or_number_of_partitions_is_refused(tmp_path: Path) -> None:
    path = make(tmp_path)
    OpenControlFile.open(path, expected_key=KEY, expected_partitions=2).close()
    with pytest.raises(MismatchError, match="cluster key does not match"):
        OpenControlFile.open(path, expected_key=uuid.uuid4())
    with pytest.raises(MismatchError, match="number of partitions does not match"):
        OpenControlFile.open(path, expected_partitions=3)


@LAYOUTS
def test_3_4_5_marks_are_visible_at_once_survive_and_alternate_between_the_slots(
    tmp_path: Path, layout: Layout
) -> None:
    path = make(tmp_path, layout)
    written = []
    for session in range(1, 6):
        with OpenControlFile.open(path) as control:
            before = control.info(1)
            control.set_low_water_mark(1, session, 10 * session, 5 * session)
            after = control.info(1)
            assert after.current_struct is not None
            assert after.current_struct.marks == (session, 10 * session, 5 * session)
            changed = [n for n in (0, 1) if before.structs[n] != after.structs[n]]
            assert changed == [after.current - 1 if after.current else None], (
                "exactly the slot now in force was written"
            )
            written += changed
            assert after.current_struct.sequence == (session if layout is Layout.RELEASED else None)
        assert stored(path).partitions[1] == after
    assert all(a != b for a, b in itertools.pairwise(written)), "the slots take turns"


@LAYOUTS
def test_6_a_destroyed_slot_falls_back_to_the_values_before_for_that_partition_only(
    tmp_path: Path, layout: Layout
) -> None:
    path = make(tmp_path, layout)
    with OpenControlFile.open(path) as control:
        for partition in (0, 1):
            control.set_low_water_mark(partition, 1, 10, 10)
            control.set_low_water_mark(partition, 2, 20, 20)
        current = control.info(0).current
        assert current is not None
    place = layout.struct_offset(0, current) + layout.struct_schema.offset_of("checksum")
    damage(path, place)
    with OpenControlFile.open(path) as control:
        assert [info.current_struct and info.current_struct.session_id for info in control.control.partitions] == [1, 2]
        assert codes(control.findings(0, tmp_path)) == ["control-struct-checksum"]
        assert control.findings(1, tmp_path) == ()
        control.set_low_water_mark(0, 3, 30, 30)  # writes the invalid slot anew
        assert control.findings(0, tmp_path) == ()


def test_7_8_flags_raise_the_sequence_even_unchanged_and_leave_the_marks(tmp_path: Path) -> None:
    path = make(tmp_path)
    with OpenControlFile.open(path) as control:
        control.set_flag(0, FLAG_AVAILABLE, True)
        control.set_flag(0, FLAG_ASSIGNED, True)
        control.set_flag(0, FLAG_AVAILABLE, False)
    current = stored(path).partitions[0].current_struct
    assert current is not None
    assert (current.flags, current.sequence, current.marks) == (FLAG_ASSIGNED, 3, (-1, -1, -1))


@LAYOUTS
def test_9_10_11_session_and_mark_rules(tmp_path: Path, layout: Layout) -> None:
    path = make(tmp_path, layout)
    with OpenControlFile.open(path) as control:
        control.set_low_water_mark(0, 7, 5, 3)
        control.set_low_water_mark(0, 7, 5, 8)  # the local mark may be the larger one; the session may repeat
    with OpenControlFile.open(path) as control:
        control.set_low_water_mark(0, 7, 6, 8)
        before = path.read_bytes()
        with pytest.raises(ConcurrentUpdateError, match="session 6 is older than session 7"):
            control.set_low_water_mark(0, 6, 9, 9)
        with pytest.raises(MarkWouldFallError, match="unable to set the low-water mark"):
            control.set_low_water_mark(0, 8, 5, 8)
        with pytest.raises(MarkWouldFallError, match="unable to set the local low-water mark"):
            control.set_low_water_mark(0, 8, 6, 7)
        assert path.read_bytes() == before, "a refusal writes nothing"
        control.set_low_water_mark(0, 8, 100, 100)
        assert control.info(0).current_struct.marks == (8, 100, 100)  # type: ignore[union-attr]


def test_golden_vectors_of_a_released_partition_info(tmp_path: Path) -> None:
    """The bytes that release 0.13.2 writes for: initial, assigned, session 7 with marks 5 and 3."""
    path = make(tmp_path)
    assert path.stat().st_size == 280
    initial = path.read_bytes()[128:204].hex()
    assert initial == ("00000000" + "ff" * 24 + "00000001ffffffff58d1a22d" + "ff" * 24 + "0000000100000000866a82ce")
    with OpenControlFile.open(path) as control:
        control.set_flag(0, FLAG_ASSIGNED, True)
        assert path.read_bytes()[132:168].hex() == "ff" * 24 + "000000050000000104ed1498"
        control.set_low_water_mark(0, 7, 5, 3)
        assert path.read_bytes()[168:204].hex() == (
            "000000000000000700000000000000050000000000000003" + "00000005000000023c979710"
        )
        control.reset(0)
        # the release's bytes after a reset: the slot that was in force gets -1, the other one 0
        assert path.read_bytes()[132:168].hex() == "ff" * 24 + "0000000100000000866a82ce"
        assert path.read_bytes()[168:204].hex() == "ff" * 24 + "00000001ffffffff58d1a22d"
        assert control.info(0).current_struct.marks == (-1, -1, -1)  # type: ignore[union-attr]


@LAYOUTS
@settings(max_examples=40)
@given(steps=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4), st.integers(0, 4)), max_size=12))
def test_every_update_writes_one_slot_and_what_is_stored_is_what_memory_says(
    tmp_path_factory: pytest.TempPathFactory, layout: Layout, steps: list[tuple[int, int, int]]
) -> None:
    """Property: whatever the steps, after each one exactly the slot not in force changed, and a new opening agrees."""
    path = make(tmp_path_factory.mktemp("c"), layout)
    session = low = local = -1
    with OpenControlFile.open(path) as control:
        for a, b, c in steps:
            session, low, local = session + a, low + b, local + c
            control.set_low_water_mark(1, session, low, local)
            assert stored(path) == control.control
            info = control.info(1)
            assert info.current_struct is not None
            assert info.current_struct.marks == (session, low, local)


@LAYOUTS
def test_lowering_the_local_mark_is_in_force_after_a_restart(tmp_path: Path, layout: Layout) -> None:
    path = make(tmp_path, layout)
    with OpenControlFile.open(path) as control:
        control.set_low_water_mark(0, 3, 50, 40)
        control.set_low_water_mark(0, 3, 50, 45)
        control.lower_local_low_water_mark(0, 12)
    current = stored(path).partitions[0].current_struct
    assert current is not None
    assert current.marks == (3, 50, 12)


@pytest.mark.parametrize("sequence", [0, 1, 5, 2**31 - 1, -(2**31), -1])
def test_a_reset_has_one_valid_newest_struct_after_each_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sequence: int
) -> None:
    """Reset writes slot by slot with a sync between; each write ends with a pair that can be decided, also near a wrap."""
    control_file = initial_control(Layout.RELEASED, KEY, 1, CREATED)
    first = replace(control_file.partitions[0].structs[0], session_id=4, sequence=sequence).sealed()
    second = replace(first, session_id=3, sequence=(sequence - 1 + 2**31) % 2**32 - 2**31).sealed()
    info = control_file.partitions[0].with_struct(1, first).with_struct(2, second)
    path = tmp_path / NAME
    path.write_bytes(replace(control_file, partitions=(info,)).encode())
    seen: list[str] = []

    def observe(change: disk.Change) -> None:
        seen.append(change.kind)
        current = stored(path).partitions[0].current_struct
        assert current is not None
        assert current.session_id in (4, -1)

    with OpenControlFile.open(path) as control:
        monkeypatch.setattr(disk, "observer", observe)
        control.reset(0)
    assert seen == ["write", "sync", "write", "sync"]
    assert stored(path).partitions[0].current_struct.marks == (-1, -1, -1)  # type: ignore[union-attr]


def test_what_concerns_the_whole_file_stops_the_opening(tmp_path: Path) -> None:
    path = make(tmp_path)
    whole = path.read_bytes()
    with pytest.raises(NotWaltzError):
        OpenControlFile.open(tmp_path / "missing.ctl")
    for size in (0, 4, 127, 128, 200, 279):
        path.write_bytes(whole[:size])
        with pytest.raises(DamageError) as caught:
            OpenControlFile.open(path)
        assert codes(caught.value.findings) == ["control-file-size"]
        assert path.read_bytes() == whole[:size]
    path.write_bytes(struct.pack(">i", 1) + whole[4:])
    with pytest.raises(MismatchError, match="format version 1"):
        OpenControlFile.open(path)


def test_partitions_that_do_not_exist_are_refused(tmp_path: Path) -> None:
    with OpenControlFile.open(make(tmp_path)) as control:
        for partition in (-1, 2):
            with pytest.raises(InvalidRequestError, match="partitions 0 to 1"):
                control.info(partition)


def test_a_pair_without_a_struct_in_force_takes_no_update(tmp_path: Path) -> None:
    path = make(tmp_path)
    for number in (1, 2):
        damage(path, Layout.RELEASED.struct_offset(0, number))
    with OpenControlFile.open(path) as control:
        assert codes(control.findings(0, tmp_path)) == ["control-pair-checksum"]
        with pytest.raises(PartitionQuarantinedError):
            control.set_low_water_mark(0, 1, 1, 1)
        control.set_low_water_mark(1, 1, 1, 1)


def test_after_a_failed_sync_nothing_more_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = make(tmp_path)
    with OpenControlFile.open(path) as control:
        control.set_low_water_mark(0, 1, 1, 1)

        def fail(descriptor: int) -> None:
            raise OSError(5, "injected")

        with monkeypatch.context() as patch:
            patch.setattr(os, "fdatasync", fail)
            with pytest.raises(SyncFailedError):
                control.set_low_water_mark(0, 2, 2, 2)
        before = path.read_bytes()
        with pytest.raises(SyncFailedError):
            control.set_low_water_mark(0, 3, 3, 3)
        assert path.read_bytes() == before
        assert control.info(0).current_struct.marks == (1, 1, 1)  # type: ignore[union-attr]


@pytest.mark.parametrize("when", ["written", "opened"])
def test_after_a_failed_sync_the_next_process_writes_the_file_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """Its own sync does not fail any more: a session and marks that were in memory only counted as durable."""
    build_directory(tmp_path, {0: 5})
    path = tmp_path / NAME

    def fail(descriptor: int) -> None:
        raise OSError(5, "injected")

    with contextlib.ExitStack() as stack, monkeypatch.context() as patch:
        if when == "opened":
            patch.setattr(os, "fdatasync", fail)
            with pytest.raises(SyncFailedError):
                StorageDirectory.open(tmp_path)
        else:
            storage = stack.enter_context(opened(tmp_path))
            patch.setattr(os, "fdatasync", fail)
            with pytest.raises(SyncFailedError):
                storage.partition(0).set_low_water_mark(9, 4)
    for again in (True, False):
        with recording() as changes, opened(tmp_path):
            pass
        kinds = [one.kind for one in changes if one.path == path]
        assert kinds == (["write", "sync"] if again else ["sync"])
        written = [one.data for one in changes if one.path == path and one.kind == "write"]
        assert written == ([path.read_bytes()] if again else [])
