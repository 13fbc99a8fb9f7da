"""Who may open a storage directory: one process, which the next one is told."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.builders import build_directory, digest
from tests.storage.support import opened
from waltzctl.engine.durable.directory_lock import lock_holder
from waltzctl.engine.errors import DirectoryLockedError
from waltzctl.engine.log.view import view_storage

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
