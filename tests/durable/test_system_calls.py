"""What is asked of the system: syncs that are syncs, buffers, bounds, and who is asked whether he lives."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.repair.trees import recording
from waltzctl.engine.durable import directory_lock, disk
from waltzctl.engine.durable.directory_lock import DirectoryLock
from waltzctl.engine.durable.disk import WritableFile
from waltzctl.engine.errors import DiskReadError, DiskWriteError


def synced_file(path: Path) -> None:
    with WritableFile.open(path / "f") as file:
        file.sync()


@pytest.mark.parametrize(
    ("sync", "call", "name"),
    [
        (synced_file, "fdatasync", "f"),
        (lambda path: disk.sync_file(path / "f"), "fdatasync", "f"),
        (disk.sync_directory, "fsync", ""),
    ],
)
def test_a_sync_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sync: Callable[[Path], None], call: str, name: str
) -> None:
    (tmp_path / "f").write_bytes(b"")
    asked: list[str] = []
    monkeypatch.setattr(os, call, lambda descriptor: asked.append(os.readlink(f"/proc/self/fd/{descriptor}")))
    sync(tmp_path)
    assert asked == [str(tmp_path / name) if name else str(tmp_path)]


def test_free_bytes_are_blocks_for_ordinary_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_bavail=7, f_frsize=512, f_bfree=9, f_bsize=4096))
    assert disk.free_bytes(tmp_path) == 3584


def test_milliseconds_are_whole_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk.time, "time_ns", lambda: 1_700_000_000_123_999_999)
    assert disk.now_ms() == 1_700_000_000_123


def test_files_are_read_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = bytes(range(100))
    (tmp_path / "f").write_bytes(data)
    asked: list[int] = []
    real = os.pread

    def pread(descriptor: int, length: int, offset: int) -> bytes:
        asked.append(length)
        return real(descriptor, length, offset)

    monkeypatch.setattr(os, "pread", pread)
    for piece in (1, 33, 50, 100, 101):
        asked.clear()
        monkeypatch.setattr(disk, "_CHUNK", piece)
        assert disk.read_range(tmp_path / "f", 3, 90) == data[3:93]
        assert max(asked) <= piece


def test_opening_leaves_no_descriptor(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"x")
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(FileNotFoundError):
        WritableFile.open(tmp_path / "none")
    with WritableFile.open(tmp_path / "f"):
        pass
    assert len(os.listdir("/proc/self/fd")) == before


def test_pieces_are_gathered_only_where_there_are_several(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    single, gathered = os.pwrite, os.pwritev
    monkeypatch.setattr(os, "pwrite", lambda *one: (calls.append("pwrite"), single(*one))[1])
    monkeypatch.setattr(os, "pwritev", lambda *one: (calls.append("pwritev"), gathered(*one))[1])
    with WritableFile.create(tmp_path / "f") as file:
        for pieces in ([], [b"a"], [b"bc", b"d"]):
            file.write_pieces_at(file.size(), pieces)
    assert calls == ["pwrite", "pwritev"]
    assert (tmp_path / "f").read_bytes() == b"abcd"


def test_a_file_is_written_whole_in_this_order(tmp_path: Path) -> None:
    with recording() as changes:
        disk.write_whole(tmp_path / "f", [b"ab", b"", b"c"])
    assert [(one.kind, one.path.name, one.offset) for one in changes] == [
        ("create", "f.waltzctl-tmp", 0), ("write", "f.waltzctl-tmp", 0), ("write", "f.waltzctl-tmp", 2),
        ("sync", "f.waltzctl-tmp", 0), ("rename", "f.waltzctl-tmp", 0), ("sync-directory", tmp_path.name, 0),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("change", "offset", "said"),
    [
        (lambda file: file.write_at(7, b"x"), 7, "write"),
        (lambda file: file.write_pieces_at(9, [b"x", b"y"]), 9, "write"),
        (lambda file: file.truncate(1), 1, "truncate"),
        (lambda file: file.read_at(2, 1), 2, "read"),
    ],
)
def test_errors_say_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[WritableFile], object], offset: int, said: str
) -> None:
    def fails(*_: object) -> None:
        raise OSError(errno.EIO, "made up")

    (tmp_path / "f").write_bytes(b"12345")
    for call in ("pwrite", "pwritev", "ftruncate", "pread"):
        monkeypatch.setattr(os, call, fails)
    with (
        WritableFile.open(tmp_path / "f") as file,
        recording() as changes,
        pytest.raises((DiskWriteError, DiskReadError), match=said) as caught,
    ):
        change(file)
    assert changes == []
    assert f"offset {offset}" in str(caught.value) or str(offset) in str(caught.value)


# --- who holds a directory ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "asked", "answer"),
    [
        ("", [], None),
        (" \n", [], None),
        ("0\n", [], None),
        ("-5\n", [], None),
        ("1\n", [1], 1),
        ("4711\n", [4711], 4711),
        ("4711".rjust(32), [4711], 4711),
        ("4711".rjust(33), [471], 471),
        ("47 11\n", [], None),
    ],
)
def test_whether_a_recorded_process_lives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, asked: list[int], answer: int | None
) -> None:
    """Numbers below 1 are groups of processes to the system, which are asked nothing."""
    (tmp_path / ".waltzctl").mkdir()
    (tmp_path / ".waltzctl" / "lock").write_text(text)
    seen: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "kill", lambda *one: seen.append(one))
    assert directory_lock._recorded_pid(tmp_path) == answer
    assert seen == [(pid, 0) for pid in asked]


@pytest.mark.parametrize("which", [0, 1])
def test_a_lock_file_that_may_not_be_opened_is_held_by_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, which: int
) -> None:
    (tmp_path / "control").write_bytes(bytes(300))
    calls: list[Path] = []
    real = directory_lock.open_regular
    before = len(os.listdir("/proc/self/fd"))

    def refusing(path: Path, flags: int) -> int:
        calls.append(path)
        if len(calls) == which + 1:
            raise PermissionError(errno.EACCES, "made up")
        return real(path, flags)

    monkeypatch.setattr(directory_lock, "open_regular", refusing)
    with pytest.raises(DiskWriteError):
        DirectoryLock.acquire(tmp_path, tmp_path / "control")
    assert len(os.listdir("/proc/self/fd")) == before
