"""Scenes for the tests of repairs, in memory where there is room: they sync thousands of small files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.left_files import soon_quiet
from tests.memory import in_memory
from tests.repair.scenes import Scene, make_scene
from waltzctl.formats.control import Layout

__all__ = ["soon_quiet"]


@pytest.fixture
def tmp_path(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with in_memory(Path()) as path:
        yield tmp_path_factory.mktemp("repair") if path == Path() else path


@pytest.fixture(params=list(Layout))
def scene(request: pytest.FixtureRequest, tmp_path: Path) -> Scene:
    return make_scene(tmp_path / "scene", request.param)
