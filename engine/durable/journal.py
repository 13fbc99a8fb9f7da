"""The audit journal: ``.waltzctl/journal.jsonl``, one JSON line for every repair, undo and roll-back, appended and synced.

A line: ``schema``, ``type``, ``time`` (RFC 3339, UTC), ``event`` (applied, undone, rolled-back, pruned), ``entry``, ``command``,
``arguments``, ``plan_hash`` and ``files`` with each file's size in bytes and SHA-256 before and after the event; and, where there
are any, ``moves`` of directories, and ``bytes_freed`` by pruning.  The line of an applied repair is written before the repair's
last step, so that after a crash in between the journal shows *applied*, then *rolled-back*.
"""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

from waltzctl.engine.durable import disk
from waltzctl.engine.durable.manifest import QuarantineEntry, Stamp
from waltzctl.formats.adapters import format_time

JOURNAL = "journal.jsonl"
SCHEMA = "waltzctl.audit/1"


def journal_path(storage: Path) -> Path:
    """Path of the audit journal."""
    return storage / disk.STATE_DIRECTORY / JOURNAL


def check(storage: Path) -> None:
    """Check that a line can be appended, before a repair that has to end with one.  Raises DiskWriteError."""
    with contextlib.suppress(FileNotFoundError):
        disk.check_writable(journal_path(storage))


def record(storage: Path, event: str, entry: QuarantineEntry, *, freed: int | None = None) -> None:
    """Append a line, durably.  A torn last line, left by a crash, is terminated first.  Raises DiskWriteError.

    `freed`: for a pruned entry, the number of bytes of its kept copies; the line then names no files.
    """
    files = []
    for one in entry.files if freed is None else ():
        before, after = (one.before, one.after) if event == "applied" else (one.after, one.before)
        files.append({"path": one.path, "before": _short(before), "after": _short(after)})
    line: dict[str, object] = {
        "schema": SCHEMA,
        "type": "audit",
        "time": format_time(disk.now_ms()),
        "event": event,
        "entry": entry.id,
        "command": entry.command,
        "arguments": list(entry.arguments),
        "plan_hash": entry.plan_hash,
        "files": files,
    } | ({} if freed is None else {"bytes_freed": freed})
    if entry.moves and freed is None:
        ways = [(one.path, one.target) if event == "applied" else (one.target, one.path) for one in entry.moves]
        line["moves"] = [{"from": source, "to": target} for source, target in ways]
    data = json.dumps(line).encode() + b"\n"
    path = journal_path(storage)
    try:
        file = disk.WritableFile.open(path)
    except FileNotFoundError:
        file = disk.WritableFile.create(path)
    with file:
        disk.sync_directory(path.parent)  # always: the process that created the file may have died before this
        size = file.size()
        torn = size > 0 and file.read_at(size - 1, 1) != b"\n"
        file.write_at(size, b"\n" + data if torn else data)
        file.sync()


def _short(stamp: Stamp | None) -> dict[str, object] | None:
    if stamp is None:
        return None
    return {"size": stamp.size, "sha256": stamp.sha256} | ({"start": stamp.start} if stamp.start else {})
