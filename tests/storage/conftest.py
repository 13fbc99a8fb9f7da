"""What the tests of several rooms of the storage start from."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.storage.power_loss import Journaled


@pytest.fixture
def journaled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Journaled]:
    """An open directory with a commit journal, and what was acknowledged in it."""
    made = Journaled(tmp_path, monkeypatch)
    yield made
    monkeypatch.undo()
    made.close()
