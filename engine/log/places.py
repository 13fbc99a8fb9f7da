"""Where a storage directory can be read: on this machine, behind a URL (``s3://bucket/node-1``), or in a vault
(``vault:VAULT::ID``, a backup).

A *place* is named by a pure path: one of this machine, a `UrlPath` or a `VaultPath`.  The functions here dispatch to the `Access`
of its kind; the read-only commands (view, verify, dump, compare, the Spark data source) read through them only.  Code that writes
calls `local` first.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Mapping
from pathlib import Path, PurePath
from typing import Any

from waltzctl.engine.durable.file_status import NOTHING_THERE, FileNumbers
from waltzctl.engine.errors import InvalidRequestError
from waltzctl.engine.log.access import Access, OpenSource, PlaceKind
from waltzctl.engine.log.local_access import FILES
from waltzctl.engine.log.url_access import URLS
from waltzctl.engine.log.url_path import UrlPath, is_url
from waltzctl.engine.vault.vault_path import VaultPath, is_vault_path

Standing = tuple[int, int]
"""Device and inode of a directory."""


def place(text: str, options: Mapping[str, Any] | None = None) -> PurePath:
    """A path, or the `UrlPath` of a URL; ``file://`` URLs, and ``file:/x`` as Spark prints them, are paths of this machine.

    `options`: see `UrlPath.of`, which raises InvalidRequestError.
    """
    if is_vault_path(text):
        return VaultPath(text)
    if not is_url(text):
        return Path(text.removeprefix("file:") if text.startswith("file:/") else text)
    scheme, _, rest = text.partition("://")
    return Path(rest) if scheme.lower() in ("file", "local") else UrlPath.of(text, options)


def access(path: PurePath) -> Access:
    """How a place is read."""
    if isinstance(path, VaultPath):
        from waltzctl.engine.vault.vault_access import VAULTS  # late: few commands need it, and it loads the page store

        return VAULTS
    return URLS if isinstance(path, UrlPath) else FILES


def left_unread(path: PurePath) -> tuple[int, ...]:
    """The partitions that a backup lacks, as they could not be read when it was made; none of any other place."""
    if not isinstance(path, VaultPath):
        return ()
    from waltzctl.engine.vault.vault_access import VAULTS  # late, as in `access`

    return VAULTS.files(path).head.unread


def on_this_machine(path: PurePath) -> bool:
    """Whether it is a path of the file system, which any program can read: neither a URL nor a backup."""
    return not isinstance(path, UrlPath | VaultPath)


def local(path: PurePath) -> Path:
    """`path` as a path of this machine, for code that writes.  Raises InvalidRequestError for a URL or a backup."""
    if isinstance(path, UrlPath):
        raise InvalidRequestError(
            f"{path}: what lies behind a URL is read and never written",
            advice="copy the storage directory to this machine first",
        )
    if isinstance(path, VaultPath):
        raise InvalidRequestError(
            f"{path}: a backup is read and never written", advice="restore it first: waltzctl backup restore"
        )
    return Path(path)


def is_directory(path: PurePath) -> bool:
    """Whether it is a directory; behind a URL, whether any object's name begins with it.  Raises DiskReadError for a URL."""
    return access(path).kind(path) is PlaceKind.DIRECTORY


def exists(path: PurePath) -> bool:
    """Whether anything is there, links followed.  Raises DiskReadError for a URL."""
    return access(path).kind(path) is not None


def still_named(path: PurePath) -> bool:
    """See `Access.named`."""
    return access(path).named(path)


def special(path: PurePath) -> str | None:
    """See `Access.special`."""
    return access(path).special(path)


def still_special(path: PurePath) -> str | None:
    """As `special`, for an entry that was listed without numbers: None only when it is gone since."""
    return special(path) or ("an entry that could not be examined" if still_named(path) else None)


def identity(path: PurePath) -> str:
    """See `Access.identity`."""
    return access(path).identity(path)


def absolute(path: PurePath) -> PurePath:
    """See `Access.absolute`."""
    return access(path).absolute(path)


def directory_modified_ns(path: PurePath) -> int | None:
    """See `Access.modified_ns`."""
    return access(path).modified_ns(path)


def lock_holder(storage: PurePath, control_file: PurePath) -> int | None:
    """See `Access.lock_holder`."""
    return access(storage).lock_holder(storage, control_file)


def file_numbers(path: PurePath) -> FileNumbers | None:
    """See `Access.numbers`."""
    return access(path).numbers(path)


def listing(path: PurePath) -> dict[str, FileNumbers | None]:
    """See `Access.listing`."""
    return access(path).listing(path)


def names(path: PurePath) -> list[str]:
    """See `Access.names`."""
    return access(path).names(path)


def examined(path: PurePath, *, without: Collection[str] = ()) -> dict[str, FileNumbers | None]:
    """As `listing`, for who passes over what has no numbers: raises DiskReadError for an entry that cannot be examined.

    `without`: entries that are looked at elsewhere.
    """
    found = {name: numbers for name, numbers in listing(path).items() if name not in without}
    if on_this_machine(path):
        found.update((name, file_numbers(path / name)) for name, numbers in found.items() if numbers is None)
    return found


def kinds(path: PurePath) -> dict[str, PlaceKind | None]:
    """See `Access.kinds`."""
    return access(path).kinds(path)


def standing(directory: PurePath) -> Standing | None:
    """Which directory of this machine stands at a path, links followed; None where that cannot be told."""
    try:
        found = os.stat(directory) if on_this_machine(directory) else None
    except OSError:
        return None
    return None if found is None else (found.st_dev, found.st_ino)


def is_moved(directory: PurePath, before: Standing | None) -> bool:
    """Whether another directory stands at a path than before, or none: less is found there, or something else.

    `before`: its `standing` then; where that could not be told, nothing is known, and the answer is False.
    """
    return before is not None and standing(directory) != before


def may_be_directory(path: PurePath) -> bool:
    """Whether a directory of this machine is at `path`, links followed, or something that the system does not tell about."""
    try:
        return stat.S_ISDIR(os.stat(path).st_mode)
    except OSError as error:
        return error.errno not in NOTHING_THERE


def open_source(path: PurePath, size: int | None = None) -> OpenSource:
    """See `Access.open`."""
    return access(path).open(path, size)


def read_range(path: PurePath, offset: int, length: int) -> bytes:
    """See `Access.read_range`."""
    return access(path).read_range(path, offset, length)
