"""Where data written by the released Waltz is, if it is here at all.

It is never part of the project: ``WALTZ_GOLDEN`` names the directory, or it lies in ``shared/golden`` beside the checkout.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

_BESIDE = Path(__file__).resolve().parents[2] / "shared" / "golden"


def _find() -> Path | None:
    named = os.environ.get("WALTZ_GOLDEN")
    place = Path(named) if named else _BESIDE
    return place if (place / "cluster-a").is_dir() else None


GOLDEN: Path | None = _find()
needs_golden = pytest.mark.skipif(GOLDEN is None, reason="data of the released Waltz is not here (WALTZ_GOLDEN)")


def golden_directories() -> list[Path]:
    """Every storage directory of the golden data; empty where it is missing."""
    if GOLDEN is None:
        return []
    crashed = [path for path in sorted((GOLDEN / "crashed").iterdir()) if path.is_dir()]
    return [*sorted((GOLDEN / "cluster-a").glob("storage-*")), *crashed]
