"""A directory that a repair has moved: whether it still has to be brought back, by what stands at its two places."""

from __future__ import annotations

from pathlib import Path

import pytest

from waltzctl.engine.durable import disk
from waltzctl.engine.durable.manifest import KeptMove, QuarantineEntry, RepairState
from waltzctl.engine.durable.restore import moved_back
from waltzctl.engine.errors import DamageError


@pytest.mark.parametrize(
    ("here", "there", "answer"),
    [
        ("", "directory", True),
        ("directory", "", False),
        ("", "", "neither"),
        ("directory", "directory", "again"),
        ("file", "directory", "again"),
        ("", "file", "no directory"),
        ("file", "", "no directory"),
    ],
)
def test_where_a_moved_directory_is(tmp_path: Path, here: str, there: str, answer: bool | str) -> None:
    for name, what in (("0", here), ("1", there)):
        if what == "directory":
            (tmp_path / name).mkdir()
        elif what:
            (tmp_path / name).write_bytes(b"")
    place = tmp_path / disk.STATE_DIRECTORY / disk.QUARANTINE / "0001"
    entry = QuarantineEntry("0001", 1, "recover", (), "2026-01-01T00:00:00Z", "ff", RepairState.APPLIED, place)
    if isinstance(answer, bool):
        assert moved_back(entry, KeptMove("0", "1")) == answer
    else:
        with pytest.raises(DamageError, match=answer):
            moved_back(entry, KeptMove("0", "1"))
