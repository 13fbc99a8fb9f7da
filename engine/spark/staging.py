"""The staging directory of a write, beside its target; how an abandoned one is told from one in use.

::

    TARGET.waltzctl-tmp-<uuid>/
        owner       host, process id and start of the driver's process: the directory is abandoned when that has ended
        tasks/      a directory for each attempt of a task
        storage/    the complete directory, which one rename makes the target
"""

from __future__ import annotations

import uuid
from pathlib import Path

from waltzctl.engine.durable import disk
from waltzctl.engine.durable.file_status import names_in
from waltzctl.engine.errors import DiskError, DiskReadError, RefusedError
from waltzctl.engine.spark.owner import OWNER, driver, noted_owner, write_owner

TASKS = "tasks"
STORAGE = "storage"
_GONE = "-gone"
_PASSES = 100


def prefix(target: Path) -> str:
    """The prefix of the names of a target's staging directories."""
    return f"{target.name}{disk.TEMPORARY_SUFFIX}-"


def clear_left(target: Path) -> None:
    """Remove the staging directories of a target whose owners have ended.

    Raises RefusedError when another write to the target seems to be under way, DiskReadError when that cannot be found out,
    DiskWriteError.
    """
    for name in names_in(target.parent) or ():
        if name.startswith(prefix(target)):
            _clear(target, target.parent / name)


def make_staging(target: Path) -> Path:
    """A new staging directory.  Raises DiskReadError, DiskWriteError."""
    try:
        owner = driver()
    except OSError as error:
        raise DiskReadError("/proc", None, error) from error
    staging = target.parent / f"{prefix(target)}{uuid.uuid4()}"
    disk.make_directory(staging)
    write_owner(staging, owner)
    disk.make_directory(staging / TASKS)
    return staging


def is_being_removed(directory: Path) -> bool:
    """Whether a process has begun to `remove` a directory; if it was killed meanwhile, another one may go on."""
    return directory.name.endswith(_GONE)


def _clear(target: Path, staging: Path) -> None:
    try:
        owner = None if is_being_removed(staging) else noted_owner(staging)
    except OSError as error:  # it may be another process's that runs
        raise DiskReadError(staging / OWNER, None, error) from error
    if owner is not None and owner.alive is not False:
        who = f"process {owner.pid} on {owner.host}"
        how = "which cannot be looked at from here" if owner.alive is None else "which runs"
        raise RefusedError(
            f"{target}: another write to it is being prepared in {staging} by {who}, {how}",
            advice=f"wait for it; if that write has failed for good, remove {staging}",
        )
    remove(staging)


def remove(staging: Path) -> None:
    """Remove a staging directory and its contents, if it exists.  A symbolic link is not followed, and stays.

    The directory is renamed first, so that a task that still runs cannot write to it.  Raises DiskWriteError.
    """
    if staging.is_symlink() or not staging.is_dir():
        return
    gone = staging
    if not is_being_removed(staging):
        gone = staging.with_name(staging.name + _GONE)
        disk.rename(staging, gone)
    for attempt in range(_PASSES):
        try:
            disk.remove_tree(gone)
        except (DiskError, FileNotFoundError):
            if not gone.exists():  # another process has removed it
                return
            if attempt == _PASSES - 1:
                raise
            continue
        return
