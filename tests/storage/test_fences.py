"""Session fences: durable, never falling, forgotten with the partition, and nobody's business but the node's."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.builders import build_directory, digest
from tests.descriptors import let_syncs_fail
from tests.storage.support import LAYOUTS, opened
from waltzctl.engine.durable import disk
from waltzctl.engine.errors import (
    OTHER_PROGRAM,
    DamageError,
    DiskError,
    InvalidRequestError,
    RefusedError,
    SyncFailedError,
)
from waltzctl.engine.inspect.verify import VerifySummary, verify
from waltzctl.engine.storage.failed_syncs import FENCES, sync_failed
from waltzctl.engine.storage.fences import SessionFences, damaged_fences, fence_path, forget_fence, stored_session
from waltzctl.formats.checksums import crc32
from waltzctl.formats.fence import FENCE_HEADER, FENCE_MAGIC, fence_file_size, pair_offset


def state_directory(path: Path) -> Path:
    (path / ".waltzctl").mkdir(parents=True, exist_ok=True)
    return path


def test_what_was_raised_holds_after_opening_again(tmp_path: Path) -> None:
    path = state_directory(tmp_path)
    with SessionFences.open(path, 3) as fences:
        assert [fences.get(number) for number in range(3)] == [-1, -1, -1]
        assert not fence_path(path).exists(), "a file is made by the first session only"
        fences.raise_to(1, 5)
        fences.raise_to(1, 4)
        fences.raise_to(2, 0)
        assert [fences.get(number) for number in range(3)] == [-1, 5, 0]
    assert fence_path(path).stat().st_size == fence_file_size(3)
    with SessionFences.open(path, 3) as fences:
        assert [fences.get(number) for number in range(3)] == [-1, 5, 0]


@given(steps=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 9), st.booleans()), max_size=25))
@settings(max_examples=40)
def test_any_sequence_agrees_with_a_dictionary(tmp_path_factory: pytest.TempPathFactory, steps: list[tuple]) -> None:
    """Two holders at once, one of which may forget: each sees what the other did."""
    path = state_directory(tmp_path_factory.mktemp("s"))
    model = dict.fromkeys(range(3), -1)
    with SessionFences.open(path, 3) as one:
        one.raise_to(0, 0)
        model[0] = 0
        with SessionFences.open(path, 3) as two:
            for number, session, forget in steps:
                holder = one if session % 2 else two
                if forget and session < 3:
                    holder.forget(number)
                    model[number] = -1
                else:
                    holder.raise_to(number, session)
                    model[number] = max(model[number], session)
                assert [f.get(n) for f in (one, two) for n in range(3)] == [*model.values()] * 2
    with SessionFences.open(path, 3) as again:
        assert {number: again.get(number) for number in range(3)} == model


def test_a_raise_is_synced_before_it_returns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And one that changes nothing costs nothing."""
    path = state_directory(tmp_path)
    changes: list[tuple[str, str]] = []
    monkeypatch.setattr(disk, "observer", lambda change: changes.append((change.kind, change.path.name)))
    with SessionFences.open(path, 3) as fences:
        fences.raise_to(1, 5)
        assert changes[-4:] == [
            ("rename", "sessions.waltzctl-tmp"),
            ("sync-directory", ".waltzctl"),
            ("write", "sessions"),
            ("sync", "sessions"),
        ]
        changes.clear()
        fences.raise_to(1, 5)
        fences.raise_to(1, 3)
        fences.forget(2)
        assert changes == []
        fences.raise_to(1, 6)
        fences.forget(1)
        assert changes == [("write", "sessions"), ("sync", "sessions")] * 2
        changes.clear()
    with SessionFences.open(path, 3):
        assert changes == [("sync", "sessions")], "what is read may be in the system's memory only"


def test_a_raise_leaves_the_fence_in_force_as_it_is(tmp_path: Path) -> None:
    """So a write that is torn takes nothing away: what was in force before it is still there."""
    path = state_directory(tmp_path)
    with SessionFences.open(path, 2) as fences:
        fences.raise_to(1, 3)
        for session in (4, 9, 10):
            before = fence_path(path).read_bytes()
            fences.raise_to(1, session)
            after = fence_path(path).read_bytes()
            changed = [place for place in range(len(after)) if before[place] != after[place]]
            torn = bytearray(after)
            torn[min(changed) : max(changed) + 1] = bytes(max(changed) + 1 - min(changed))
            fence_path(path).write_bytes(torn)
            with SessionFences.open(path, 2) as again:
                assert 3 <= again.get(1) < session
            fence_path(path).write_bytes(after)


def test_a_failed_sync_is_final(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody knows what the disk holds: no later raise is acknowledged, and none is tried, until the file is opened again."""
    path = state_directory(tmp_path)
    with SessionFences.open(path, 2) as fences:
        fences.raise_to(0, 3)
        with monkeypatch.context() as patch:
            patch.setattr(os, "fdatasync", lambda _: (_ for _ in ()).throw(OSError(5, "Input/output error")))
            with pytest.raises(SyncFailedError):
                fences.raise_to(0, 4)
        with pytest.raises(SyncFailedError):
            fences.raise_to(1, 1)
        with pytest.raises(SyncFailedError):
            fences.raise_to(0, 4)
        with pytest.raises(SyncFailedError):
            fences.forget(0)
    with SessionFences.open(path, 2) as fences:
        fences.raise_to(0, 5)
        assert fences.get(0) == 5


@pytest.mark.parametrize("when", ["raised", "opened"])
def test_what_a_failed_sync_left_in_memory_only_is_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """The next process' sync does not fail: it admitted the session, and a power loss brought the one before it back."""
    path = state_directory(tmp_path)
    with SessionFences.open(path, 2) as fences:
        fences.raise_to(0, 3)
        with monkeypatch.context() as patch:
            let_syncs_fail(patch, "sessions")
            with pytest.raises(SyncFailedError):
                fences.raise_to(0, 4) if when == "raised" else SessionFences.open(path, 2)
    written, changes = fence_path(path).read_bytes(), []
    with monkeypatch.context() as patch:
        patch.setattr(disk, "observer", changes.append)
        for again in (True, False):
            changes.clear()
            SessionFences.open(path, 2).close()
            assert [(one.kind, one.data) for one in changes if one.path.name == "sessions"] == [
                *([("write", written)] if again else []),
                ("sync", b""),
            ]


def test_a_sync_that_failed_is_noted_also_where_the_file_cannot_be_closed_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error of close was raised in its place, and the next process took the session for durable."""
    path = state_directory(tmp_path)
    with SessionFences.open(path, 2) as fences:
        fences.raise_to(0, 3)
    real = os.close

    def closing(descriptor: int) -> None:
        ours = os.readlink(f"/proc/self/fd/{descriptor}") == os.fspath(fence_path(path))
        real(descriptor)
        if ours:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        let_syncs_fail(patch, "sessions")
        patch.setattr(os, "close", closing)
        with pytest.raises(SyncFailedError):
            SessionFences.open(path, 2)
    assert sync_failed(path, FENCES)


@pytest.mark.parametrize("spoil", ["header", "shorter", "longer", "other"])
def test_a_file_that_cannot_be_understood_is_damage_and_not_no_fence(tmp_path: Path, spoil: str) -> None:
    path = state_directory(tmp_path)
    with SessionFences.open(path, 2) as fences:
        fences.raise_to(0, 3)
    raw = fence_path(path).read_bytes()
    spoiled = {"header": b"\0" + raw[1:], "shorter": raw[:-1], "longer": raw + b"\0", "other": raw}[spoil]
    fence_path(path).write_bytes(spoiled)
    with pytest.raises(DamageError, match=r"sessions: cannot be understood.*no server of an older session"):
        SessionFences.open(path, 3 if spoil == "other" else 2)


def test_a_file_of_another_version_is_not_to_be_removed(tmp_path: Path) -> None:
    """Without it an older session could write again, and nothing is wrong with it."""
    path = state_directory(tmp_path)
    with SessionFences.open(path, 2) as fences:
        fences.raise_to(0, 3)
    raw = fence_path(path).read_bytes()
    header = FENCE_HEADER.struct.pack(FENCE_MAGIC, 2, 2, bytes(FENCE_HEADER.size_of("reserved")), 0)[:-4]
    fence_path(path).write_bytes(header + crc32(header).to_bytes(4, "big") + raw[FENCE_HEADER.size :])
    with pytest.raises(DamageError, match="of version 2, and only version 1 is known") as refused:
        SessionFences.open(path, 2)
    assert refused.value.advice == OTHER_PROGRAM
    with pytest.raises(DamageError, match="of version 2") as refused:
        stored_session(path, 2, 0)
    assert refused.value.advice == OTHER_PROGRAM
    assert [error.advice for _, error in damaged_fences(path, 2)] == [OTHER_PROGRAM]


def test_damage_of_one_partition_leaves_the_others_alone(tmp_path: Path) -> None:
    path = state_directory(tmp_path)
    with SessionFences.open(path, 2) as fences:
        for session in (3, 4):
            fences.raise_to(0, session)
            fences.raise_to(1, session)
    raw = bytearray(fence_path(path).read_bytes())
    raw[pair_offset(0) + 3] ^= 1
    raw[pair_offset(0) + 19] ^= 1
    fence_path(path).write_bytes(raw)
    with SessionFences.open(path, 2) as fences:
        assert fences.get(1) == 4
        for ask in (lambda: fences.get(0), lambda: fences.raise_to(0, 9)):
            with pytest.raises(DamageError, match="both slots of partition 0"):
                ask()
        fences.forget(0)
        assert fences.get(0) == -1


def test_what_is_refused(tmp_path: Path) -> None:
    path = state_directory(tmp_path)
    with SessionFences.open(path, 2) as fences:
        for number in (-1, 2):
            for ask in (lambda: fences.get(number), lambda: fences.raise_to(number, 1), lambda: fences.forget(number)):  # noqa: B023
                with pytest.raises(InvalidRequestError, match="partitions 0 to 1"):
                    ask()
        with pytest.raises(InvalidRequestError, match="session -1"):
            fences.raise_to(0, -1)
    with pytest.raises(RefusedError, match="closed"):
        fences.get(0)
    (path / ".waltzctl" / "sessions").mkdir()
    with pytest.raises(DiskError, match="cannot open for writing"):
        SessionFences.open(path, 2)


def test_threads_raise_at_once(tmp_path: Path) -> None:
    path = state_directory(tmp_path)
    with SessionFences.open(path, 4) as fences:

        def work(seed: int) -> None:
            for session in range(seed, 60, 4):
                fences.raise_to(session % 4, session)
                assert fences.get(session % 4) >= session

        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [fences.get(number) for number in range(4)] == [56, 57, 58, 59]


@LAYOUTS
def test_a_deleted_partition_is_forgotten_and_one_that_is_kept_is_not(tmp_path: Path, layout) -> None:
    build_directory(tmp_path, {0: 5, 1: 5}, layout=layout)
    with opened(tmp_path) as storage, SessionFences.open(tmp_path, 2) as fences:
        fences.raise_to(0, 8)
        fences.raise_to(1, 9)
        storage.unassign(0, delete_files=True)
        storage.unassign(1, delete_files=False)
        assert (fences.get(0), fences.get(1)) == (-1, 9)
        storage.assign(1)
        assert fences.get(1) == 9


@LAYOUTS
def test_inspection_neither_minds_nor_touches_the_file(tmp_path: Path, layout) -> None:
    build_directory(tmp_path, {0: 25}, layout=layout)
    with opened(tmp_path):
        pass
    *_, before = verify([tmp_path])
    with SessionFences.open(tmp_path, 1) as fences:
        fences.raise_to(0, 8)
    bytes_before = digest(tmp_path)
    *findings, summary = verify([tmp_path])
    assert isinstance(summary, VerifySummary)
    assert findings == []
    assert isinstance(before, VerifySummary)
    assert (summary.status, summary.records) == (before.status, before.records)
    assert digest(tmp_path) == bytes_before


def test_forgetting_where_there_is_no_file_makes_none(tmp_path: Path) -> None:
    path = state_directory(tmp_path)
    forget_fence(path, 2, 1)
    assert not fence_path(path).exists()


@pytest.mark.parametrize("found", ["another number", "shorter", "damaged"])
def test_a_file_that_cannot_be_used_is_not_left_open(tmp_path: Path, found: str) -> None:
    path = state_directory(tmp_path)
    with SessionFences.open(path, 3) as fences:
        fences.raise_to(1, 5)
    file = Path(fence_path(path))
    data = file.read_bytes()
    file.write_bytes(data[:-1] if found == "shorter" else data[:3] + b"x" + data[4:] if found == "damaged" else data)
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(DamageError):
        SessionFences.open(path, 4 if found == "another number" else 3)
    assert len(os.listdir("/proc/self/fd")) == before
