"""Figures of the last backup as a text file for Prometheus' node exporter (its textfile collector)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from waltzctl.engine.errors import DiskWriteError
from waltzctl.formats.vault import BackupHead

_FIGURES = {
    "created_timestamp_seconds": ("When the last backup was begun.", lambda head: head.created_ms / 1000),
    "duration_seconds": ("How long it took.", lambda head: head.elapsed_seconds),
    "source_bytes": ("Bytes of all files in it.", lambda head: head.size),
    "new_bytes": ("Bytes that the vault grew by.", lambda head: head.new_bytes),
    "new_pages": ("Pieces that the vault did not have.", lambda head: head.new_pages),
    "damaged_places": ("Places in the source's segments that were no records.", lambda head: head.damaged),
}


def write_metrics(path: Path, vault: Path, head: BackupHead) -> None:
    """Write the file as a whole, by rename.  Raises DiskWriteError."""
    from prometheus_client import CollectorRegistry, Gauge, write_to_textfile

    registry = CollectorRegistry()
    for name, (meaning, read) in _FIGURES.items():
        gauge = Gauge(f"waltz_backup_{name}", meaning, ("vault", "source", "tag"), registry=registry)
        gauge.labels(str(vault), head.source, head.tag or "").set(read(head))  # type: ignore[no-untyped-call]
    write: Any = write_to_textfile  # the package leaves its parameters untyped
    try:
        write(str(path), registry)
    except OSError as error:
        raise DiskWriteError(path, None, error, doing="write") from error
