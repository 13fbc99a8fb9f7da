"""Who may open a storage directory: one process, which the next one is told."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.builders import build_directory, digest, make_records
from tests.storage.support import opened
from waltzctl.engine.durable.directory_lock import lock_holder
from waltzctl.engine.errors import DirectoryLockedError, DiskWriteError
from waltzctl.engine.log.view import view_storage
from waltzctl.engine.storage.directory import StorageDirectory
from waltzctl.formats.control import Layout

HOLD_AS_WE_DO = """
import sys
from pathlib import Path
from waltzctl.engine.storage.directory import StorageDirectory
with StorageDirectory.open(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""
HOLD_AS_THE_RELEASE_DOES = """
import fcntl, sys
file = open(sys.argv[1] + "/waltz-storage.ctl", "r+b")
fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 128, 0)
print("held", flush=True)
sys.stdin.read()
"""
TRY_AS_THE_RELEASE_DOES = """
import fcntl, sys
file = open(sys.argv[1] + "/waltz-storage.ctl", "r+b")
try:
    fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 128, 0)
except OSError:
    print("refused")
"""
ROOT = Path(__file__).resolve().parents[2]


@contextmanager
def held(program: str, path: Path) -> Iterator[int]:
    """Run a program that holds the directory until its standard input ends."""
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "held\n"
        yield process.pid
    finally:
        process.stdin.close()
        process.stdout.close()
        assert process.wait() == 0


@pytest.mark.parametrize("program", [HOLD_AS_WE_DO, HOLD_AS_THE_RELEASE_DOES], ids=["ours", "released node"])
def test_a_second_process_is_refused_and_told_who_holds_it(tmp_path: Path, program: str) -> None:
    build_directory(tmp_path, {0: 5})
    with held(program, tmp_path) as pid:
        before = {name: d for name, d in digest(tmp_path).items() if name != ".waltzctl/lock"}
        with pytest.raises(DirectoryLockedError, match=f"process {pid}") as caught, opened(tmp_path):
            pass
        assert caught.value.pid == pid
        assert {name: d for name, d in digest(tmp_path).items() if name != ".waltzctl/lock"} == before
        assert lock_holder(tmp_path, tmp_path / "waltz-storage.ctl") == pid
        assert view_storage(tmp_path).control is not None, "looking needs no lock"
    with opened(tmp_path) as storage:
        assert storage.partition(0).max_transaction_id == 4
    assert lock_holder(tmp_path, tmp_path / "waltz-storage.ctl") is None


def test_a_released_node_is_refused_while_we_hold_it(tmp_path: Path) -> None:
    """Also after we opened and closed the control file for reading, which drops a lock that belongs to a process."""
    build_directory(tmp_path, {0: 5})
    arguments = [sys.executable, "-c", TRY_AS_THE_RELEASE_DOES, str(tmp_path)]
    with opened(tmp_path):
        view_storage(tmp_path)
        assert subprocess.run(arguments, capture_output=True, text=True, check=True).stdout == "refused\n"
    assert subprocess.run(arguments, capture_output=True, text=True, check=True).stdout == ""


def test_a_failed_opening_lets_go(tmp_path: Path) -> None:
    build_directory(tmp_path, {0: 5})
    control = tmp_path / "waltz-storage.ctl"
    whole = control.read_bytes()
    control.write_bytes(b"\0\0\0\7" + whole[4:])
    with pytest.raises(Exception, match="version 7"), opened(tmp_path):
        pass
    control.write_bytes(whole)
    with opened(tmp_path):
        pass


@pytest.mark.parametrize("put", ["copy", "nothing"])
@pytest.mark.parametrize("layout", list(Layout))
def test_a_directory_that_was_moved_is_not_written_into_by_its_name(tmp_path: Path, layout: Layout, put: str) -> None:
    """Half of what is acknowledged would get into the copy that was put there, and half stay in what was moved."""
    path, moved = tmp_path / "storage", tmp_path / "moved"
    build_directory(path, {0: 5, 1: 5}, layout=layout, num_partitions=3)
    with opened(path) as storage:
        path.rename(moved)
        if put == "copy":
            shutil.copytree(moved, path)
        before = digest(tmp_path)
        partition = storage.partition(0)
        for change in (
            lambda: partition.set_low_water_mark(9, 4),
            lambda: storage.assign(2),
            lambda: storage.reopen(1),
            lambda: storage.unassign(1, delete_files=True),
            lambda: storage.set_availability(1, readable=False),
        ):
            with pytest.raises(DiskWriteError, match="moved or replaced while it was open"):
                change()
        assert digest(tmp_path) == before

        def fill() -> None:
            for first in range(5, 100, 5):
                partition.append(make_records(5, first=first, seed=first))

        with pytest.raises(DiskWriteError, match="moved or replaced while it was open"):
            fill()
        held = partition.max_transaction_id
        if put == "copy":
            assert digest(path) == {
                name.removeprefix("storage/"): d for name, d in before.items() if name.startswith("storage/")
            }
            shutil.rmtree(path)
        moved.rename(path)
        partition.append(make_records(5, first=held + 1, seed=held))
        storage.assign(2)
    with opened(path) as storage:
        assert storage.partition(0).max_transaction_id == held + 5


@pytest.mark.parametrize("layout", list(Layout))
def test_a_truncation_of_a_directory_that_was_moved_removes_nothing_of_a_copy(tmp_path: Path, layout: Layout) -> None:
    """It removed the copy's segments, kept its own, and appended to the copy from then on."""
    path, moved = tmp_path / "storage", tmp_path / "moved"
    build_directory(path, {0: 5}, layout=layout)
    with opened(path) as storage:
        partition = storage.partition(0)
        for first in range(5, 60, 5):
            partition.append(make_records(5, first=first, seed=first))
        assert len(partition.segments) > 2
        path.rename(moved)
        shutil.copytree(moved, path)
        before = digest(tmp_path)
        with pytest.raises(DiskWriteError, match="moved or replaced while it was open"):
            partition.truncate(7, allow_data_loss=True)
        assert digest(tmp_path) == before
        shutil.rmtree(path)
        moved.rename(path)
        assert partition.truncate(7, allow_data_loss=True) == 7
        partition.append(make_records(5, first=8, seed=1))
    with opened(path) as storage:
        assert storage.partition(0).max_transaction_id == 12


def test_a_partition_that_is_not_open_yet_is_not_opened_in_a_copy_of_its_directory(tmp_path: Path) -> None:
    """As `waltzctl append` opens those that its transactions are for: they were acknowledged, and in the copy."""
    path, moved = tmp_path / "storage", tmp_path / "moved"
    build_directory(path, {0: 5})
    with StorageDirectory.open(path, partitions=()) as storage:
        path.rename(moved)
        shutil.copytree(moved, path)
        with pytest.raises(DiskWriteError, match="moved or replaced while it was open"):
            storage.partition(0)
        shutil.rmtree(path)
        moved.rename(path)
        assert storage.partition(0).max_transaction_id == 4


def test_a_directory_whose_path_leads_nowhere_by_now_is_told_as_one_that_cannot_be_written(tmp_path: Path) -> None:
    path, moved = tmp_path / "storage", tmp_path / "moved"
    build_directory(path, {0: 5})
    with opened(path) as storage:
        path.rename(moved)
        path.symlink_to(path)
        with pytest.raises(DiskWriteError, match="symbolic links"):
            storage.partition(0).set_low_water_mark(9, 4)
        path.unlink()
        moved.rename(path)
        storage.partition(0).set_low_water_mark(9, 4)
