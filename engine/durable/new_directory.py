"""Whether a directory may be made where one is asked for: nothing is there yet, or an empty one."""

from __future__ import annotations

import os
from pathlib import Path

from waltzctl.engine.errors import DiskReadError, InvalidRequestError, RefusedError


def check_new(
    path: Path,
    *,
    renamed: bool,
    parents: bool = False,
    taken: type[RefusedError | InvalidRequestError] = RefusedError,
) -> None:
    """Raise unless nothing, or an empty directory, has the name `path`.

    `renamed`: it is built beside `path` and gets that name at the end, which it cannot where the name is a symbolic link or a
    disk is mounted there.  `parents`: those above it are made as well.

    Raises `taken` where something is there, InvalidRequestError where the directory above is not, DiskReadError.
    """
    no_directory = taken(f"{path}: exists and is not a directory", advice="name a new directory")
    if renamed and path.is_symlink():
        raise no_directory
    try:
        names = os.listdir(path)
    except FileNotFoundError:
        if path.is_symlink():  # it leads nowhere
            raise no_directory from None
        if not (parents or path.absolute().parent.is_dir()):
            raise InvalidRequestError(
                f"{path}: the directory above it does not exist", advice="make it first"
            ) from None
        return
    except NotADirectoryError:
        raise no_directory from None
    except OSError as error:
        raise DiskReadError(path, None, error) from error
    if names:
        raise taken(f"{path}: not empty, {min(names)} is there", advice="nothing is added to one; name a new directory")
    if renamed and os.path.ismount(path):
        raise taken(f"{path}: a disk is mounted there", advice="name a new directory in it")
