"""A torn tail of a large log: what opening cuts off is kept and comes back, and only the last mebibyte is read for that."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.builders import build_directory, make_records
from tests.storage.support import damage, data_path, opened
from waltzctl.engine.durable import restore
from waltzctl.engine.durable.manifest import MANIFEST, decode_entry
from waltzctl.engine.errors import StalePlanError
from waltzctl.engine.repair.undoing import undo
from waltzctl.engine.storage.directory import StorageOptions
from waltzctl.engine.storage.partition_recovery import KNOWN_BEFORE_CUT
from waltzctl.engine.storage.store import STATE_FILES, list_entries

OPTIONS = StorageOptions()


@pytest.fixture
def torn(tmp_path: Path) -> Path:
    """A log of three mebibytes whose last record is torn."""
    build_directory(tmp_path, {0: 30}, per_segment=100, size=100_000, local_low_water_mark=5)
    os.truncate(data_path(tmp_path), data_path(tmp_path).stat().st_size - 7)
    return tmp_path


def test_what_was_cut_off_comes_back(torn: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = data_path(torn).read_bytes()
    read: list[int] = []
    real = restore.read_chunks
    monkeypatch.setattr(
        restore, "read_chunks", lambda path, start, stop: (read.append(stop - start), real(path, start, stop))[1]
    )
    with opened(torn, OPTIONS) as storage:
        assert [str(finding.code) for finding in storage.findings] == ["torn-tail"]
        assert storage.partition(0).max_transaction_id == 28
    assert max(read) < KNOWN_BEFORE_CUT + 200_000
    (entry,) = list_entries(torn)
    (file,) = entry.files
    assert file.before is not None
    assert file.after is not None
    assert file.before.start == file.after.start == file.after.size - KNOWN_BEFORE_CUT
    undo(torn)
    assert data_path(torn).read_bytes() == before


@pytest.mark.parametrize("how", ["damaged", "appended", "cut and appended"])
def test_nothing_comes_back_over_a_log_that_is_another_one_now(torn: Path, how: str) -> None:
    with opened(torn, OPTIONS) as storage:
        partition = storage.partition(0)
        match how:
            case "appended":
                partition.append(make_records(1, first=29, size=5))
            case "cut and appended":  # the same length, but other records
                partition.truncate(27)
                partition.append(make_records(1, first=28, size=100_000, seed=5))
    if how == "damaged":
        damage(data_path(torn), -500_000)
    before = data_path(torn).read_bytes()
    with pytest.raises(StalePlanError, match="not as the repair"):
        undo(torn)
    assert data_path(torn).read_bytes() == before


@pytest.mark.parametrize("change", [{"start": 2**40}, {"start": -1}, {"start": "0"}, {"start": 5}])
def test_a_start_that_cannot_be_meant_is_refused(torn: Path, change: dict[str, object]) -> None:
    """Behind the end, negative, no number, or other before than after."""
    with opened(torn, OPTIONS):
        pass
    (entry,) = list_entries(torn)
    body = json.loads((entry.path / MANIFEST).read_text())
    body["files"][0]["before"] |= change
    del body["sha256"]
    from waltzctl.engine.durable.manifest import _digest

    body["sha256"] = _digest(body)
    with pytest.raises(ValueError, match=r"start|begins behind|do not cover"):
        decode_entry(json.dumps(body).encode(), entry.path, STATE_FILES)


def test_a_short_log_is_known_as_a_whole(tmp_path: Path) -> None:
    build_directory(tmp_path, {0: 30}, local_low_water_mark=5)
    os.truncate(data_path(tmp_path), data_path(tmp_path).stat().st_size - 1)
    with opened(tmp_path, OPTIONS):
        pass
    (entry,) = list_entries(tmp_path)
    assert b"start" not in (entry.path / MANIFEST).read_bytes()
