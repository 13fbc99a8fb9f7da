"""What tests of comparisons share."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _quiet(soon_quiet: None) -> None:
    """Most of what is damaged here was written a moment ago, by nobody who goes on."""
