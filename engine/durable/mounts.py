"""Mounts: what rename(2) does not lead out of, and whether a directory is one.

Device numbers tell file systems apart, but not a directory of the same file system that is mounted elsewhere (``mount --bind``, a
volume of a container): there rename(2) fails with EXDEV, or EBUSY for the directory itself.
"""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import PurePath

_ID = re.compile(r"^mnt_id:\s*(\d+)$", re.MULTILINE)


def mount_of(path: PurePath | str) -> tuple[int, int | None]:
    """Device and mount of a directory, links followed; None for the mount where the system does not tell.  Raises OSError."""
    device, mount = os.stat(path).st_dev, None
    # where there is no O_PATH; any other failure would pass for another mount
    with contextlib.suppress(PermissionError):
        descriptor = os.open(path, getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            with contextlib.suppress(OSError), open(f"/proc/self/fdinfo/{descriptor}", encoding="ascii") as told:
                found = _ID.search(told.read())
                mount = None if found is None else int(found[1])
        finally:
            os.close(descriptor)
    return device, mount


def is_mount(path: PurePath) -> bool:
    """Whether a directory is mounted at `path`, which is no symbolic link; False where there is none."""
    if os.path.ismount(path):
        return True
    try:
        return mount_of(path) != mount_of(path / "..")
    except OSError:
        return False
