"""Flushing a file system as a whole: where it is a promise, when it is worth it, and what is believed after a failure."""

from __future__ import annotations

import ctypes
import errno
import logging
import os
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from waltzctl.engine.durable import disk, file_system
from waltzctl.engine.durable.disk import WritableFile
from waltzctl.engine.durable.file_system import LOOK_EVERY, MOST_DIRTY, FileSystem, keeps_its_promise, kind_of
from waltzctl.engine.durable.flusher import FEWEST_AT_ONCE, Flusher

LOG = logging.getLogger("waltzctl.test")
pytestmark = pytest.mark.skipif(platform.system() != "Linux", reason="syncfs is a call of Linux")


class Calls:
    """Stands between a file system and the kernel: counts, and fails where it is told to."""

    def __init__(self, whole: FileSystem, monkeypatch: pytest.MonkeyPatch) -> None:
        self.whole_fails = 0
        self.file_fails: dict[int, int] = {}
        self.made: list[str] = []
        monkeypatch.setattr(whole, "_sync_file_system", self._noted("whole", whole._sync_file_system))
        monkeypatch.setattr(whole, "_sync_range", self._noted("file", whole._sync_range))
        monkeypatch.setattr(whole, "_ask_range", self._noted("file", whole._ask_range))

    def _noted(self, name: str, real: Callable[..., int]) -> Callable[..., int]:
        def call(descriptor: int, *arguments: Any) -> int:
            self.made.append(name)
            number = self.whole_fails if name == "whole" else self.file_fails.get(descriptor, 0)
            if not number:
                return real(descriptor, *arguments)
            ctypes.set_errno(number)
            return -1

        return call


@pytest.fixture
def whole(tmp_path: Path) -> Any:
    """That of the tests' directory, whether or not it keeps the promise: what is checked is what is made of the answers."""
    one = FileSystem(tmp_path)
    yield one
    one.close()


@pytest.fixture
def files(tmp_path: Path) -> Any:
    made = [WritableFile.create(tmp_path / f"f{number}") for number in range(FEWEST_AT_ONCE)]
    yield made
    for file in made:
        file.close()


@pytest.mark.parametrize("kind", ["ext4", "xfs"])
@pytest.mark.parametrize(("release", "right"), [("5.16.20", False), ("5.17.0", True), ("6.1", True), ("4.20", False)])
def test_it_is_a_promise_from_a_kernel_on(release: str, kind: str, right: bool) -> None:
    assert keeps_its_promise("Linux", release, kind) is right


@pytest.mark.parametrize(
    ("system", "release", "kind"),
    [
        ("Linux", "6.1.0", kind)
        for kind in ("ext3", "btrfs", "tmpfs", "nfs4", "overlay", "fuse.s3fs", "zfs", "f2fs", "", None)
    ]
    + [("Darwin", "23.1.0", "ext4"), ("Linux", "unknown", "ext4"), ("Linux", "", "ext4")],
)
def test_elsewhere_it_is_none(system: str, release: str, kind: str | None) -> None:
    assert not keeps_its_promise(system, release, kind)


def test_the_kind_stands_in_the_table_of_mounts(tmp_path: Path) -> None:
    table = tmp_path / "mountinfo"
    table.write_text(
        "22 27 0:21 / /proc rw,relatime - proc proc rw\n"
        "27 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n"
        "28 27 8:17 / /data\\040of\\040waltz rw master:2 propagate_from:3 - xfs /dev/sdb1 rw\n"
        "29 27 8:18\n"
    )
    assert kind_of(os.makedev(8, 1), table) == "ext4"
    assert kind_of(os.makedev(8, 17), table) == "xfs"
    assert kind_of(os.makedev(8, 18), table) is None
    assert kind_of(os.makedev(8, 2), table) is None


def test_a_system_without_the_table_or_the_call_has_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_system, "keeps_its_promise", lambda *_: True)
    assert FileSystem.of(tmp_path / "missing") is None
    monkeypatch.setattr(file_system.ctypes, "CDLL", lambda *_, **__: object())
    assert FileSystem.of(tmp_path) is None


def test_one_call_makes_all_files_durable_and_the_observer_is_told_of_each(
    whole: FileSystem, files: list[WritableFile], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, seen = Calls(whole, monkeypatch), []
    monkeypatch.setattr(disk, "observer", lambda change: seen.append((change.kind, change.path)))
    assert whole.sync(files) == [None] * len(files)
    assert calls.made == ["whole", *["file"] * len(files)]
    assert seen == [("sync", file.path) for file in files]


def test_a_write_that_failed_is_told_of_its_file_alone(
    whole: FileSystem, files: list[WritableFile], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, seen = Calls(whole, monkeypatch), []
    monkeypatch.setattr(disk, "observer", lambda change: seen.append(change.path))
    calls.file_fails[files[2].fileno()] = errno.EIO
    errors = whole.sync(files)
    assert [error is None for error in errors] == [number != 2 for number in range(len(files))]
    assert errors[2] is not None
    assert str(files[2].path) in str(errors[2])
    assert os.strerror(errno.EIO) in str(errors[2])
    assert seen == [file.path for number, file in enumerate(files) if number != 2]


def test_a_file_system_that_failed_is_believed_for_no_file(
    whole: FileSystem, files: list[WritableFile], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, seen = Calls(whole, monkeypatch), []
    monkeypatch.setattr(disk, "observer", lambda change: seen.append(change.path))
    calls.whole_fails = errno.EIO
    calls.file_fails[files[1].fileno()] = errno.ENOSPC
    errors = whole.sync(files)
    assert [error is None for error in errors] == [False] * len(files)
    assert os.strerror(errno.ENOSPC) in str(errors[1])
    assert os.strerror(errno.EIO) in str(errors[3])
    assert seen == []
    calls.whole_fails = 0
    assert whole.sync(files[:1]) == [None]


@pytest.mark.parametrize("number", [errno.EPERM, errno.ENOSYS])
@pytest.mark.parametrize("which", ["whole", "file"])
def test_where_a_call_is_not_allowed_each_file_is_synced_by_itself_from_then_on(
    whole: FileSystem,
    files: list[WritableFile],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    number: int,
    which: str,
) -> None:
    """A sandbox's answer is no failure of the disk; and what the disk failed with is believed, whatever else is answered."""
    calls, synced = Calls(whole, monkeypatch), []
    real = os.fdatasync
    monkeypatch.setattr(os, "fdatasync", lambda descriptor: (synced.append(descriptor), real(descriptor))[1])
    monkeypatch.setattr(file_system, "dirty_bytes", lambda: 0)
    if which == "whole":
        calls.whole_fails = number
    else:
        calls.file_fails = {files[-1].fileno(): number}
        calls.whole_fails = errno.EIO
        assert None not in (whole.sync(files) or [None])
        calls.whole_fails = 0
    calls.made.clear()
    flusher = Flusher(log=LOG, threads=1, file_system=whole)
    for turn in (1, 2):
        assert flusher.flush(files) == [None] * len(files)
        assert len(synced) == turn * len(files)
    assert calls.made.count("whole") == 1
    assert caplog.text.count("syncfs") == 1
    flusher.close()
    assert whole._descriptor is None


def test_whatever_ends_it_early_nothing_counts_as_synced(whole: FileSystem, files: list[WritableFile]) -> None:
    files[3].close()
    assert "file is closed" in str(whole.sync(files)[0])
    assert all(error is not None for error in whole.sync(files))
    whole.close()
    whole.close()
    assert all(error is not None for error in whole.sync(files[:1]))


def test_a_file_elsewhere_or_closed_is_not_its(whole: FileSystem, files: list[WritableFile]) -> None:
    assert whole.holds(files)
    whole.device += 1
    assert not whole.holds(files)
    whole.device -= 1
    closed = WritableFile.create(files[0].path.with_name("closed"))
    closed.close()
    assert not whole.holds([*files, closed])


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("MemFree: 100 kB\nDirty:   12 kB\nWriteback:        3 kB\nWritebackTmp:    500 kB\n", 15 << 10),
        ("Dirty:   0 kB\nWriteback: 0 kB\n", 0),
        ("nonsense\n", 0),
    ],
)
def test_what_waits_for_a_disk_is_told_by_the_kernel(tmp_path: Path, text: str, found: int) -> None:
    (tmp_path / "meminfo").write_text(text)
    assert file_system.dirty_bytes(tmp_path / "meminfo") == found
    assert file_system.dirty_bytes(tmp_path / "missing") == 0


@pytest.mark.parametrize(("dirty", "busy"), [(MOST_DIRTY, False), (MOST_DIRTY + 1, True)])
def test_it_is_busy_when_more_waits_than_one_waits_for_and_a_look_holds_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dirty: int, busy: bool
) -> None:
    now, looks = [0.0], [dirty]
    monkeypatch.setattr(file_system, "dirty_bytes", lambda: looks[0])
    one = FileSystem(tmp_path, clock=lambda: now[0])
    assert one.busy is busy
    looks[0] = 0 if busy else MOST_DIRTY + 1
    now[0] = LOOK_EVERY * 0.99
    assert one.busy is busy
    now[0] = LOOK_EVERY
    assert one.busy is not busy
    one.close()


# --- who uses it ------------------------------------------------------------------------------------------------------


@pytest.fixture
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_system, "dirty_bytes", lambda: 0)


@pytest.mark.parametrize(("count", "calls"), [(FEWEST_AT_ONCE - 1, 0), (FEWEST_AT_ONCE, 1)])
def test_the_flusher_has_it_flushed_from_some_files_on(
    whole: FileSystem, files: list[WritableFile], monkeypatch: pytest.MonkeyPatch, quiet: None, count: int, calls: int
) -> None:
    made = Calls(whole, monkeypatch).made
    flusher = Flusher(log=LOG, threads=2, file_system=whole)
    assert flusher.flush(files[:count]) == [None] * count
    assert made.count("whole") == calls
    assert bool(flusher._threads) is not bool(calls), "whoever flushes the whole waits by himself"
    flusher.close()


@pytest.mark.parametrize("why", ["busy", "elsewhere", "closed"])
def test_otherwise_the_flusher_syncs_file_by_file(
    whole: FileSystem, files: list[WritableFile], monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    monkeypatch.setattr(file_system, "dirty_bytes", lambda: MOST_DIRTY + 1 if why == "busy" else 0)
    made, synced = Calls(whole, monkeypatch).made, []
    real = os.fdatasync
    monkeypatch.setattr(os, "fdatasync", lambda descriptor: (synced.append(descriptor), real(descriptor))[1])
    flusher = Flusher(log=LOG, threads=2, file_system=whole)
    if why == "elsewhere":
        whole.device += 1
    if why == "closed":
        flusher.close()
        assert whole._descriptor is None
    assert flusher.flush(files) == [None] * len(files)
    assert made == []
    assert sorted(synced) == sorted(file.fileno() for file in files)
    flusher.close()


def test_the_system_is_asked_to_begin_and_says_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with WritableFile.create(tmp_path / "f") as file:
        file.write_at(0, bytes(5000))
        file_system.begin_writing(file, 0, 5000)
        made: list[tuple[int, ...]] = []

        def failing(*arguments: int) -> int:
            made.append(arguments)
            return -1

        monkeypatch.setattr(file_system, "_begin_call", lambda: failing)
        file_system.begin_writing(file, 100, 4900)
        assert made == [(file.fileno(), 100, 4900, 2)]
        monkeypatch.setattr(file_system, "_begin_call", lambda: None)
        file_system.begin_writing(file, 0, 5000)
    assert (tmp_path / "f").read_bytes() == bytes(5000)
