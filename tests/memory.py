"""Scratch directories in memory where there is room, for tests that sync thousands of small files."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_MEMORY = Path("/dev/shm")
_ROOM = 1 << 30


@contextmanager
def in_memory(otherwise: Path) -> Iterator[Path]:
    """A directory in memory, removed behind the block; `otherwise` where there is no room for it."""
    if not _MEMORY.is_dir() or shutil.disk_usage(_MEMORY).free < _ROOM:
        yield otherwise
        return
    with tempfile.TemporaryDirectory(prefix="waltzctl-tests-", dir=_MEMORY, ignore_cleanup_errors=True) as name:
        yield Path(name)
