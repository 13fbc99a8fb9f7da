"""A directory that is built beside its name belongs to one run at a time."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from waltzctl.engine.durable import disk
from waltzctl.engine.durable.work_directory import renamed, work_directory
from waltzctl.engine.errors import DiskWriteError, RefusedError, SyncFailedError


def test_what_was_built_has_its_name_and_what_a_killed_run_left_is_gone(tmp_path: Path) -> None:
    place, target = tmp_path / "work", tmp_path / "target"
    (place / "left").mkdir(parents=True)
    with work_directory(place):
        assert not any(place.iterdir())
        (place / "made").touch()
        disk.rename(place, target)
    assert [one.name for one in target.iterdir()] == ["made"]
    assert not place.exists()


def test_what_fails_leaves_nothing_and_what_has_its_name_stays(tmp_path: Path) -> None:
    place, target = tmp_path / "work", tmp_path / "target"

    def fail(*, at_its_end: bool) -> None:
        with work_directory(place):
            (place / "made").touch()
            if at_its_end:
                disk.rename(place, target)
                place.mkdir()  # of another run by now
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail(at_its_end=False)
    assert not any(tmp_path.iterdir())
    with pytest.raises(ZeroDivisionError):
        fail(at_its_end=True)
    assert (target.exists(), place.exists()) == (True, True)


def test_one_run_at_a_time(tmp_path: Path) -> None:
    place = tmp_path / "work"
    with work_directory(place):
        (place / "made").touch()
        with pytest.raises(RefusedError, match="work: another run is at work there"), work_directory(place):
            raise AssertionError
        assert (place / "made").exists()
        disk.rename(place, tmp_path / "target")
        with work_directory(place):  # which the first one has no more
            assert not any(place.iterdir())
    assert (tmp_path / "target" / "made").exists()


def test_a_run_that_was_killed_holds_nothing(tmp_path: Path) -> None:
    place = tmp_path / "work"
    script = (
        "import sys, pathlib\n"
        "from waltzctl.engine.durable.work_directory import work_directory\n"
        "with work_directory(pathlib.Path(sys.argv[1])):\n"
        "    print(flush=True)\n"
        "    sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, place], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"\n"
        with pytest.raises(RefusedError), work_directory(place):
            raise AssertionError
        process.kill()
    with work_directory(place):
        pass


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "file").touch()
    (tmp_path / "work").symlink_to("kept")
    with pytest.raises(DiskWriteError), work_directory(tmp_path / "work"):
        raise AssertionError
    assert (tmp_path / "kept" / "file").exists()


@pytest.mark.parametrize("number", [errno.EBADF, errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_file_system_without_such_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """NFS has none for directories: nothing could be restored, salvaged or exported to it."""

    def no_lock(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", no_lock)
    place, target = tmp_path / "work", tmp_path / "target"
    with work_directory(place):
        (place / "made").touch()
        with pytest.raises(RefusedError, match="does not tell"), work_directory(place):
            pytest.fail("two at once")
        disk.rename(place, target)
    assert (target / "made").exists()
    with pytest.raises(ZeroDivisionError), work_directory(place):
        raise ZeroDivisionError
    assert not place.exists()


def test_a_directory_that_cannot_be_opened_may_well_have_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run without descriptors went on without a lock, and the next one removed what it was making as that of a killed one."""
    really_open = os.open

    def shortage(path: Path, flags: int, *more: int, **named: int) -> int:
        if flags & os.O_DIRECTORY:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return really_open(path, flags, *more, **named)

    place = tmp_path / "work"
    monkeypatch.setattr(os, "open", shortage)
    with pytest.raises(DiskWriteError, match="Too many open files"), work_directory(place):
        pytest.fail("without a lock")
    assert not place.exists()
    place.mkdir()
    with pytest.raises(DiskWriteError, match="Too many open files"), work_directory(place):
        pytest.fail("without a lock")
    assert place.exists()


def test_a_directory_whose_name_cannot_be_made_durable_is_not_left_behind(tmp_path: Path) -> None:
    """The same command again was refused, as for a directory that is not empty."""
    place, target = tmp_path / ".new", tmp_path / "new"

    def build() -> None:
        with work_directory(place), renamed(place, target):
            assert target.is_dir()
            raise SyncFailedError(tmp_path, None, OSError(errno.EIO, os.strerror(errno.EIO)))

    with pytest.raises(SyncFailedError):
        build()
    assert [*tmp_path.iterdir()] == []
    with work_directory(place), renamed(place, target):
        pass
    assert [*tmp_path.iterdir()] == [target]
