"""For tests of files that were damaged a moment ago by nobody who goes on: a reader waits half a second to see that."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def soon_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """What reads here waits for a twentieth of a second until a file that changed counts as left.

    For the tests of every room whose conftest imports it.
    """
    monkeypatch.setattr("waltzctl.engine.inspect.live.QUIET", 0.05)
