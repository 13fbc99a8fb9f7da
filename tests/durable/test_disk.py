"""The functions that change a disk and read it: short writes, single bytes, what the observer is told, and no descriptor left."""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path, PurePath
from types import SimpleNamespace

import pytest

from waltzctl.engine.durable import disk, ownership
from waltzctl.engine.errors import DiskFullError, DiskWriteError, SyncFailedError


@pytest.mark.parametrize(
    ("offset", "length", "found"), [(0, 10, 10), (3, 1, 1), (9, 1, 1), (9, 5, 1), (10, 1, 0), (3, 0, 0)]
)
def test_a_range_is_read_to_the_last_byte_and_its_descriptor_is_closed(
    tmp_path: Path, offset: int, length: int, found: int
) -> None:
    data = bytes(range(10))
    (tmp_path / "f").write_bytes(data)
    before = len(os.listdir("/proc/self/fd"))
    assert disk.read_range(tmp_path / "f", offset, length) == data[offset : offset + length]
    assert len(data[offset : offset + length]) == found
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_tree_is_removed_and_nothing_that_links_lead_to(tmp_path: Path) -> None:
    (tmp_path / "kept" / "deep").mkdir(parents=True)
    (tmp_path / "kept" / "deep" / "file").write_bytes(b"x")
    (tmp_path / "tree" / "a" / "b").mkdir(parents=True)
    (tmp_path / "tree" / "a" / "file").write_bytes(b"x")
    (tmp_path / "tree" / "a" / "link").symlink_to(tmp_path / "kept")
    (tmp_path / "tree" / "nowhere").symlink_to("nothing")
    disk.remove_tree(tmp_path / "tree")
    (tmp_path / "tree").symlink_to(tmp_path / "kept")
    for what in ("tree", "kept/deep/file", "absent"):
        with pytest.raises(DiskWriteError, match="cannot remove directory"):
            disk.remove_tree(tmp_path / what)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["deep", "file", "kept", "tree"]


def test_a_system_that_writes_little_at_a_time_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda descriptor, data, offset: real(descriptor, bytes(data[:3]), offset))
    file = disk.WritableFile.create(tmp_path / "f")
    file.write_at(2, b"0123456789")
    file.close()
    assert (tmp_path / "f").read_bytes() == b"\0\0" + b"0123456789"


def test_the_observer_is_told_of_syncs_and_no_descriptor_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, Path]] = []
    (tmp_path / "f").write_bytes(b"x")
    monkeypatch.setattr(disk, "observer", lambda change: seen.append((change.kind, change.path)))
    before = len(os.listdir("/proc/self/fd"))
    disk.sync_file(tmp_path / "f")
    disk.sync_directory(tmp_path)
    assert len(os.listdir("/proc/self/fd")) == before
    assert seen == [("sync", tmp_path / "f"), ("sync-directory", tmp_path)]


def test_now_is_in_milliseconds() -> None:
    before = time.time_ns()
    now = disk.now_ms()
    assert before // 10**6 <= now <= time.time_ns() // 10**6


@pytest.mark.parametrize(
    ("files", "free_files", "free_blocks", "told"),
    [(200, 0, 9, True), (200, 0, 0, False), (200, 1, 9, False), (0, 0, 9, False)],
)
def test_a_file_system_without_inodes_is_told_from_one_without_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: int, free_files: int, free_blocks: int, told: bool
) -> None:
    def full(path: PurePath, like: PurePath) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(ownership, "make_file", full)
    state = SimpleNamespace(f_files=files, f_favail=free_files, f_bavail=free_blocks)
    monkeypatch.setattr(os, "statvfs", {str(tmp_path): state}.__getitem__)
    with pytest.raises(DiskFullError) as caught:
        disk.WritableFile.create(tmp_path / "f")
    assert ("df -i" in str(caught.value)) is told


def test_what_a_file_server_tells_only_when_a_file_is_closed_names_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, path = os.close, tmp_path / "f"
    file = disk.WritableFile.create(path)
    descriptor = file.fileno()

    def close(one: int) -> None:
        real(one)
        if one == descriptor:
            raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

    monkeypatch.setattr(os, "close", close)
    with pytest.raises(DiskFullError, match=f"{path}: cannot close: Disk quota exceeded"):
        file.close()
    file.close()


def test_a_file_that_cannot_be_closed_either_hides_no_failed_sync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which whoever is told of it notes for the next process."""
    (tmp_path / "f").touch()

    real = os.close

    def failing(_descriptor: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    def closing(descriptor: int) -> None:
        real(descriptor)
        failing(descriptor)

    file = disk.WritableFile.open(tmp_path / "f")
    monkeypatch.setattr(os, "fdatasync", failing)
    monkeypatch.setattr(os, "close", closing)
    with pytest.raises(SyncFailedError), file:
        file.sync()
    with pytest.raises(DiskWriteError, match="cannot close"), disk.WritableFile.open(tmp_path / "f"):
        pass
    monkeypatch.undo()
