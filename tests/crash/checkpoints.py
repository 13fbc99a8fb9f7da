"""Checkpoints that come sooner than every thousand transactions.

What an opening does, and so each of a thousand crash states, takes as long as there are records.  How the last ones reach a
checkpoint does not depend on how many were in front of them, only on where in their sectors they and their entries stand, and
`SOONER` moves neither.
"""

from __future__ import annotations

import importlib
import sys

import pytest

from waltzctl.engine.storage import segment_files
from waltzctl.formats.segment import CHECKPOINT_INTERVAL

SOONER = 768
"""Records fewer: whole sectors of index entries (8 bytes), and of records without data (40 bytes) or with ten bytes (50)."""
_ROOMS = (
    "log.evidence",
    "repair.provenance",
    "storage.batch",
    "storage.partition_recovery",
    "storage.segment_files",
    "storage.segment_recovery",
)
"""Who goes by the interval: loaded first, as whoever is loaded later takes the one of the format."""


@pytest.fixture
def checkpoints_sooner(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """A checkpoint every 232 transactions; the long run keeps the thousand."""
    if request.config.getoption("--long"):
        return
    for room in _ROOMS:
        importlib.import_module(f"waltzctl.engine.{room}")
    for name, module in list(sys.modules.items()):
        if name.startswith("waltzctl.engine.") and hasattr(module, "CHECKPOINT_INTERVAL"):
            monkeypatch.setattr(module, "CHECKPOINT_INTERVAL", CHECKPOINT_INTERVAL - SOONER)


def placed(number: int) -> int:
    """A number of records as if a checkpoint came every thousand: so many to where one comes, each that much sooner."""
    sooner = CHECKPOINT_INTERVAL - segment_files.CHECKPOINT_INTERVAL  # type: ignore[attr-defined]  # it imports the name
    return number - sooner * round(number / CHECKPOINT_INTERVAL)
