"""Scenes for the tests of repairs, in memory where there is room: they sync thousands of small files."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from formats.control import Layout
from tests.repair.scenes import Scene, make_scene

_MEMORY = Path("/dev/shm")
_ROOM = 1 << 30


@pytest.fixture
def tmp_path(tmp_path: Path) -> Iterator[Path]:
    if not _MEMORY.is_dir() or shutil.disk_usage(_MEMORY).free < _ROOM:
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(prefix="waltzctl-repair-", dir=_MEMORY, ignore_cleanup_errors=True) as name:
        yield Path(name)


@pytest.fixture(params=list(Layout))
def scene(request: pytest.FixtureRequest, tmp_path: Path) -> Scene:
    return make_scene(tmp_path / "scene", request.param)
