"""Temporary directories of a process, which are removed with it: by itself, or, where it was killed, by a later one.

A killed process (SIGKILL, no memory) removes nothing.  So each directory has a note of its process (`engine.spark.owner`), and
who makes one removes those of the same user whose process has ended.  A directory without a note stays: it may be one that is
just being made, or that of an earlier version.
"""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path

from waltzctl.engine.durable.file_status import names_in
from waltzctl.engine.errors import WaltzError
from waltzctl.engine.spark.owner import noted_owner, this_process, write_owner
from waltzctl.engine.spark.staging import is_being_removed, remove

SESSION, JAVA = "waltzctl-spark-", "waltzctl-java-"
"""What the names of such directories begin with."""


def claim(directory: Path, *, clear: bool = True) -> None:
    """Note that a new directory is this process's; `clear`: and remove what ended ones left beside it."""
    with contextlib.suppress(OSError, WaltzError):  # without a note it stays if this process is killed, and no more
        write_owner(directory, this_process())
    if clear:
        clear_left(directory.parent)


def clear_left(above: Path) -> None:
    """Remove the directories in `above` of ended processes of this user, as far as that is possible."""
    names: list[str] = []
    with contextlib.suppress(OSError, WaltzError):
        names += names_in(above) or ()
    for name in names:
        if name.startswith((SESSION, JAVA)):
            with contextlib.suppress(OSError, WaltzError):
                _clear(above / name)


def _clear(directory: Path) -> None:
    status = os.lstat(directory)
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
        return
    owner = noted_owner(directory)
    if is_being_removed(directory) or (owner is not None and owner.ended_here):
        remove(directory)
