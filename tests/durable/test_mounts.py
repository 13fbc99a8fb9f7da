"""Directories of the same file system that are mounted elsewhere: their device numbers do not tell."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.running import ROOT, environment
from waltzctl.engine.durable.edits import Remove
from waltzctl.engine.durable.execution import check_edits
from waltzctl.engine.durable.mounts import is_mount, mount_of
from waltzctl.engine.errors import DiskReadError

PROGRAM = """
import os, sys
from pathlib import Path
from waltzctl.engine.durable.edits import Cut, Remove
from waltzctl.engine.durable.execution import check_edits
from waltzctl.engine.durable.mounts import is_mount
from waltzctl.engine.errors import RefusedError
from waltzctl.engine.repair.store_kinds import store_of
from waltzctl.engine.storage.retired import _refuse_elsewhere
storage = Path(sys.argv[1])
file = storage / "1" / "a.seg"
print(os.path.ismount(storage / "1"), is_mount(storage / "1"), is_mount(storage), is_mount(storage / "none"))
check_edits(storage, [Cut(file, 1)], frozenset())
for call in (
    lambda: check_edits(storage, [Remove(file)], frozenset()),
    lambda: _refuse_elsewhere(storage / "1", moved_back=False),
):
    try:
        call()
    except RefusedError as error:
        print(error.message.removeprefix(str(storage)))
"""


@pytest.mark.parametrize("error", [errno.EIO, errno.ESTALE, errno.EMFILE])
def test_a_directory_that_cannot_be_opened_does_not_pass_for_another_mount(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    """A repair was refused, with the advice to unmount what is not mounted."""
    (tmp_path / ".waltzctl").mkdir()
    (tmp_path / "file").write_bytes(b"abc")
    real = os.open

    def failing(path: Any, flags: int, *given: Any, **named: Any) -> int:
        if flags & os.O_PATH and str(path).endswith(".waltzctl"):
            raise OSError(error, os.strerror(error), str(path))
        return real(path, flags, *given, **named)

    monkeypatch.setattr(os, "open", failing)
    with pytest.raises(DiskReadError, match=r"\.waltzctl"):
        check_edits(tmp_path, [Remove(tmp_path / "file")], frozenset())


@pytest.mark.turns(8)
def test_a_directory_that_is_mounted_elsewhere_is_not_moved_nor_are_its_files(tmp_path: Path) -> None:
    """A repair went as far as its first file, and a node that was to delete the partition no longer served it."""
    storage, other = tmp_path / "storage", tmp_path / "other"
    for directory in (storage / "1", storage / ".waltzctl", other):
        directory.mkdir(parents=True)
    (other / "a.seg").write_bytes(b"abc")
    mounting = ("unshare", "-Urm", "sh", "-c", f'mount --bind {other} {storage}/1 && exec "$@"', "sh")
    done = subprocess.run(
        [*mounting, sys.executable, "-c", PROGRAM, storage],
        capture_output=True,
        text=True,
        env=environment(),
        cwd=ROOT,
        check=False,
    )
    assert done.stderr == ""
    assert done.stdout.splitlines() == [
        "False True False False",
        f"/1: lies on another file system, or mount, than {storage}/.waltzctl, so that files cannot be moved to the quarantine",
        "/1: a disk is mounted there, so that it is not moved away",
    ]


def test_a_directory_and_a_link_to_it_are_on_one_mount(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "link").symlink_to("a")
    assert mount_of(tmp_path / "link") == mount_of(tmp_path / "a") == mount_of(tmp_path)
    assert mount_of(tmp_path)[1] is not None
    assert not is_mount(tmp_path / "a")
    assert is_mount(Path("/proc"))
