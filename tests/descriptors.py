"""What this process has open."""

from __future__ import annotations

import contextlib
import os


def open_descriptors() -> dict[int, str]:
    """By descriptor, what it is open for: a path, ``socket:[...]``, ``pipe:[...]``."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the descriptor of this very listing
            found[int(name)] = os.readlink(f"/proc/self/fd/{name}")
    return found
