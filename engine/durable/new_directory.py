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
    not_beside: str | None = None,
    taken: type[RefusedError | InvalidRequestError] = RefusedError,
) -> None:
    """Raise unless nothing, or an empty directory, has the name `path`.

    `renamed`: it is built beside `path` and gets that name at the end, which it cannot where the name is a symbolic link or a
    disk is mounted there.  `parents`: those above it are made as well.  `not_beside`: the file that makes the directory above it
    a storage directory, in which a number is a partition's name.

    Raises `taken` where something is there, or that file beside it, InvalidRequestError where the directory above is not,
    DiskReadError.
    """
    no_directory = taken(f"{path}: exists and is not a directory", advice="name a new directory")
    if renamed and path.is_symlink():
        raise no_directory
    if not_beside is not None:
        check_not_beside(path, not_beside, taken)
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


def check_not_beside(path: Path, name: str, taken: type[RefusedError | InvalidRequestError] = RefusedError) -> None:
    """Raise `taken` for a place beside a file called `name`, which makes the directory above a storage directory."""
    above = Path(os.path.realpath(path)).parent
    if (above / name).exists():
        raise taken(f"{path}: lies in {above}, a storage directory", advice="name a directory elsewhere")
