"""Inspection leaves no trace: another user without any write permission, and not one byte or time that differs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.builders import build_directory, digest
from tests.inspect.helpers import age, cut, flip, idx, seg
from waltzctl.formats.control import Layout

ROOT = Path(__file__).resolve().parents[2]
NOBODY = 65534

INSPECT = """
import json, os, sys
from pathlib import Path
storage, user = Path(sys.argv[1]), int(sys.argv[2])
from waltzctl.engine.inspect.verify import verify, VerifyOptions
from waltzctl.engine.inspect.status import storage_status
from waltzctl.engine.inspect.dump import *
if user:
    os.setgroups([]); os.setgid(user); os.setuid(user)
    assert not os.access(storage, os.W_OK)
def every():
    for options in (VerifyOptions(), VerifyOptions(quick=True), VerifyOptions(sample=0.5)):
        yield from verify([storage, storage / "0"], options)
    yield storage_status(storage)
    yield dump_control(storage)
    yield from dump_segments(storage)
    yield from dump_index(storage)
    yield from dump_records(storage)
    yield from dump_records(storage, reverse=True)
print(json.dumps(sum(1 for _ in every())))
"""


def traces(path: Path) -> dict[str, tuple[int, int, int]]:
    """Times of last change, of last access and of last change of attributes, in nanoseconds."""
    found = {}
    for one in [path, *sorted(path.rglob("*"))]:
        status = one.stat()
        found[str(one)] = (status.st_mtime_ns, status.st_atime_ns, status.st_ctime_ns)
    return found


def inspect(storage: Path, user: int) -> int:
    """Run every inspecting function in a process of its own; the number of things that they said."""
    environment = os.environ | {"PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-c", INSPECT, str(storage), str(user)]
    return int(json.loads(subprocess.check_output(command, cwd=ROOT, env=environment)))


def build(path: Path, layout: Layout) -> Path:
    """Several kinds of damage: none of them is a reason to write."""
    storage = build_directory(path, {0: 60, 1: 60}, layout=layout, per_segment=20)
    cut(seg(storage, 0, 40), 600)
    flip(seg(storage, 1, 0), 150)
    cut(idx(storage, 1, 20), 150)
    flip(storage / "waltz-storage.ctl", layout.struct_offset(0, 1))
    return age(storage)


@pytest.fixture
def for_everybody() -> Iterator[Path]:
    """A directory that other users may enter, beside those of pytest: each of its sessions closes theirs as it begins."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.mark.turns(8)
@pytest.mark.parametrize("layout", list(Layout))
def test_another_user_without_write_permission_can_inspect_and_changes_nothing(
    for_everybody: Path, layout: Layout
) -> None:
    """Hashes and times of change stay as they are."""
    storage = build(for_everybody / "s", layout)
    for one in [storage, *storage.rglob("*")]:
        one.chmod(0o555 if one.is_dir() else 0o444)
    before, hashes = traces(storage), digest(storage)
    user = NOBODY if os.getuid() == 0 else 0
    assert inspect(storage, user) > 300
    after = traces(storage)
    assert {name: (one[0], one[2]) for name, one in after.items()} == {
        name: (one[0], one[2]) for name, one in before.items()
    }
    assert digest(storage) == hashes


def test_the_owner_leaves_not_even_an_access_time(tmp_path: Path) -> None:
    """Reading with O_NOATIME, which only an owner may ask for; directories are listed, which has a time of its own."""
    storage = build(tmp_path / "s", Layout.RELEASED)
    before = {name: one for name, one in traces(storage).items() if Path(name).is_file()}
    assert inspect(storage, 0) > 300
    assert {name: one for name, one in traces(storage).items() if Path(name).is_file()} == before
