"""Check whether a new directory may be made at a path: nothing is there, or an empty directory."""

from __future__ import annotations

import os
from pathlib import Path

from waltzctl.engine.durable.mounts import is_mount
from waltzctl.engine.errors import DiskReadError, InvalidRequestError, RefusedError


def check_new(
    path: Path,
    *,
    renamed: bool,
    parents: bool = False,
    not_beside: str | None = None,
    taken: type[RefusedError | InvalidRequestError] = RefusedError,
) -> None:
    """Raise unless `path` does not exist or is an empty directory.

    =============  ===================================================================================================
    `renamed`      the new directory is built beside `path` and renamed at the end; so `path` must not be a symbolic link
                   or a mount point
    `parents`      missing directories above `path` will be made; otherwise the directory above must exist
    `not_beside`   name of a file that must not be in the directory above `path` (see `check_not_beside`)
    `taken`        class of the error when `path` cannot be used
    =============  ===================================================================================================

    Raises `taken`; InvalidRequestError where the directory above does not exist; DiskReadError.
    """
    try:
        _check(path, renamed=renamed, parents=parents, not_beside=not_beside, taken=taken)
    except OSError as error:
        raise DiskReadError(path, None, error) from error


def _check(
    path: Path, *, renamed: bool, parents: bool, not_beside: str | None, taken: type[RefusedError | InvalidRequestError]
) -> None:
    """As `check_new`, but raises OSError."""
    no_directory = taken(f"{path}: exists and is not a directory", advice="name a new directory")
    if renamed and path.is_symlink():
        raise no_directory
    if not_beside is not None:
        check_not_beside(path, not_beside, taken)
    try:
        names = os.listdir(path)
    except FileNotFoundError:
        if path.is_symlink():  # a dangling link
            raise no_directory from None
        if not (parents or path.absolute().parent.is_dir()):
            raise InvalidRequestError(
                f"{path}: the directory above it does not exist", advice="make it first"
            ) from None
        return
    except NotADirectoryError:
        raise no_directory from None
    if names:
        raise taken(f"{path}: not empty, {min(names)} is there", advice="nothing is added to one; name a new directory")
    if renamed and is_mount(path):
        raise taken(f"{path}: a disk is mounted there", advice="name a new directory in it")


def check_not_beside(path: Path, name: str, taken: type[RefusedError | InvalidRequestError] = RefusedError) -> None:
    """Raise `taken` when the directory above `path` has a file `name`, which makes it a storage directory.

    In a storage directory, a directory named by a number is a partition.  Raises DiskReadError.
    """
    above = Path(os.path.realpath(path)).parent
    try:
        held = (above / name).exists()
    except OSError as error:
        raise DiskReadError(above / name, None, error, doing="look at") from error
    if held:
        raise taken(f"{path}: lies in {above}, a storage directory", advice="name a directory elsewhere")
