"""A line of the audit journal: what it says of each event, and what it does behind a torn one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from waltzctl.engine.durable import disk
from waltzctl.engine.durable.journal import journal_path, record
from waltzctl.engine.durable.manifest import KeptFile, KeptMove, QuarantineEntry, RepairState, Stamp

BEFORE, AFTER = Stamp(10, "aa", 5), Stamp(7, "bb", 6, start=3)


def entry(path: Path, *, moves: bool = True) -> QuarantineEntry:
    files = (KeptFile("0/a.seg", BEFORE, AFTER), KeptFile("0/b.seg", None, AFTER), KeptFile("0/c.seg", BEFORE, None))
    kept = (KeptMove("0", "1"),) if moves else ()
    place = path / disk.STATE_DIRECTORY / disk.QUARANTINE / "0001"
    return QuarantineEntry(
        "0001",
        1,
        "recover",
        ("recover", "x"),
        "2026-01-01T00:00:00Z",
        "ff",
        RepairState.APPLIED,
        place,
        files,
        (),
        kept,
    )


def line_of(path: Path) -> dict[str, object]:
    found = json.loads(journal_path(path).read_bytes().splitlines()[-1])
    assert isinstance(found, dict)
    return found


@pytest.fixture
def storage(tmp_path: Path) -> Path:
    (tmp_path / disk.STATE_DIRECTORY).mkdir()
    return tmp_path


ONE, OTHER = {"size": 10, "sha256": "aa"}, {"size": 7, "sha256": "bb", "start": 3}


@pytest.mark.parametrize(("event", "way"), [("applied", 1), ("undone", -1), ("rolled-back", -1)])
def test_before_and_after_are_those_of_the_event(storage: Path, event: str, way: int) -> None:
    record(storage, event, entry(storage))
    line = line_of(storage)
    files = [("0/a.seg", ONE, OTHER), ("0/b.seg", None, OTHER), ("0/c.seg", ONE, None)]
    assert line["files"] == [
        {"path": path, "before": before, "after": after}
        if way > 0
        else {"path": path, "before": after, "after": before}
        for path, before, after in files
    ]
    assert line["moves"] == [{"from": "0", "to": "1"} if way > 0 else {"from": "1", "to": "0"}]
    assert (line["event"], line["entry"], line["command"], line["arguments"], line["plan_hash"]) == (
        event, "0001", "recover", ["recover", "x"], "ff",
    )  # fmt: skip
    assert "bytes_freed" not in line


@pytest.mark.parametrize("freed", [0, 1, 12345])
def test_where_copies_were_given_up_no_file_changed(storage: Path, freed: int) -> None:
    record(storage, "pruned", entry(storage), freed=freed)
    line = line_of(storage)
    assert (line["files"], line["bytes_freed"]) == ([], freed)
    assert "moves" not in line


def test_without_moves_none_are_named(storage: Path) -> None:
    record(storage, "applied", entry(storage, moves=False))
    assert "moves" not in line_of(storage)


@pytest.mark.parametrize(
    ("there", "lines"), [(b"", 1), (b"\n", 2), (b"{}\n", 2), (b"{", 2), (b"{}\n{", 3), (b"{}\n\n", 3)]
)
def test_a_torn_line_is_ended_first(storage: Path, there: bytes, lines: int) -> None:
    journal_path(storage).write_bytes(there)
    record(storage, "applied", entry(storage))
    found = journal_path(storage).read_bytes()
    assert found.startswith(there)
    assert found.endswith(b"\n")
    assert len(found.splitlines()) == lines
    assert line_of(storage)["type"] == "audit"


@pytest.mark.parametrize("there", [True, False])
def test_name_and_line_are_durable(storage: Path, there: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if there:
        journal_path(storage).write_bytes(b"{}\n")
    seen: list[str] = []
    monkeypatch.setattr(disk, "observer", lambda change: seen.append(change.kind))
    record(storage, "applied", entry(storage))
    assert seen == [*([] if there else ["create"]), "sync-directory", "write", "sync"]
