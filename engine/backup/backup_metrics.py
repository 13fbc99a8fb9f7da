"""Figures of the last backup as a text file for the textfile collector of Prometheus' node exporter."""

from __future__ import annotations

from pathlib import Path

from waltzctl.engine.durable import disk
from waltzctl.formats.vault import BackupHead

_FIGURES = {
    "created_timestamp_seconds": ("When the last backup was begun.", lambda head: head.created_ms / 1000),
    "duration_seconds": ("How long it took.", lambda head: head.elapsed_seconds),
    "source_bytes": ("Bytes of all files in it.", lambda head: head.size),
    "new_bytes": ("Bytes that the vault grew by.", lambda head: head.new_bytes),
    "new_pages": ("Pieces that the vault did not have.", lambda head: head.new_pages),
    "damaged_places": (
        "Places in the source where there was no record, or records were missing.",
        lambda head: head.damaged,
    ),
}
_MODE = 0o644
"""Readable by all: it contains no secrets, and the collector runs as another user."""


def write_metrics(path: Path, vault: Path, head: BackupHead) -> None:
    """Write the file atomically (temporary file and rename).  Raises DiskWriteError."""
    from prometheus_client import CollectorRegistry, Gauge, generate_latest

    registry = CollectorRegistry()
    labels = [_text(label) for label in (str(vault), head.source, head.tag or "")]
    for name, (meaning, read) in _FIGURES.items():
        gauge = Gauge(f"waltz_backup_{name}", meaning, ("vault", "source", "tag"), registry=registry)
        gauge.labels(*labels).set(read(head))  # type: ignore[no-untyped-call]
    with disk.replacing(path) as file:
        file.set_mode(_MODE)
        file.write_at(0, generate_latest(registry))


def _text(label: str) -> str:
    r"""A label in UTF-8, which the collector demands of the file: a byte of a path that is none becomes ``\xff``."""
    return label.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
