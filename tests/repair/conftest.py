"""Scenes for the tests of repairs."""

from __future__ import annotations

from pathlib import Path

import pytest

from formats.control import Layout
from tests.repair.scenes import Scene, make_scene


@pytest.fixture(params=list(Layout))
def scene(request: pytest.FixtureRequest, tmp_path: Path) -> Scene:
    return make_scene(tmp_path / "scene", request.param)
