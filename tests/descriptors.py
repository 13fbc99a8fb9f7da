"""What this process has open, and syncs of it that fail."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable

import pytest


def open_descriptors() -> dict[int, str]:
    """By descriptor, what it is open for: a path, ``socket:[...]``, ``pipe:[...]``."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the descriptor of this very listing
            found[int(name)] = os.readlink(f"/proc/self/fd/{name}")
    return found


def let_syncs_fail(monkeypatch: pytest.MonkeyPatch, part: str) -> None:
    """Every sync of a file with `part` in its path fails, as on a dying disk."""

    def failing(descriptor: int, flush: Callable[[int], None] = os.fsync) -> None:
        if part in os.readlink(f"/proc/self/fd/{descriptor}"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        flush(descriptor)

    for name in ("fsync", "fdatasync"):
        monkeypatch.setattr(os, name, failing)
