"""The tests of page stores read from the disk, and not what is in memory, unless they say that they want the cache."""

from __future__ import annotations

import pytest

from waltzctl.engine.pages.page_cache import PageCache


@pytest.fixture
def with_cache() -> None:
    """For those that want it."""


@pytest.fixture(autouse=True)
def _from_disk(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "with_cache" not in request.fixturenames:
        monkeypatch.setattr(PageCache, "get", lambda *_: None)
