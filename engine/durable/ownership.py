"""Owner, group and mode of new files: they are taken from an existing file.

The superuser often repairs a directory that belongs to the node's user.  New files there must belong to the node's user, who
could not open the directory or a partition otherwise; and where only that user may read the records, nobody else may read a copy.

==============================================  =====================================================================
a new                                           takes owner, group and mode from
==============================================  =====================================================================
file that replaces another                      the replaced file
file in a store, whose counterpart with         the counterpart (the other file of the segment)
another suffix exists
other file in a store                           owner and group: the lock file; mode: another file with the same suffix
                                                beside it, or the lock file, without the bits of the umask
file in ``.waltzctl``                           the lock file; the umask is ignored
lock file                                       the control file; in a store without one, the store's directory without
                                                its execute bits
directory in a store                            the directory in which it is made
any other file or directory                     nothing: as the system makes it
==============================================  =====================================================================

Only the superuser may change the owner of a file.  A file that any other user makes keeps that user as owner; and where its group
cannot be set, its group gets only the permissions that everybody has.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import secrets
import stat
from dataclasses import dataclass, replace
from pathlib import PurePath

STATE_DIRECTORY = ".waltzctl"
"""Directory in a storage directory with this program's own files: lock, availability marks, quarantine, audit journal."""
TEMPORARY_SUFFIX = ".waltzctl-tmp"
"""Suffix of a file that is being built; one left behind by a process holds nothing that was acknowledged."""
LOCK = "lock"
"""Name of a store's lock file, in `STATE_DIRECTORY`."""
_LOOKED_AT = 64
"""Most files of a directory, which may have thousands, whose suffixes are looked at."""


@dataclass(frozen=True, slots=True)
class Ownership:
    """User id, group id and mode: the nine permission bits, and for a directory also set-group-id and sticky.

    `exact`: the mode is set regardless of the umask; otherwise the bits of the umask are left out.
    """

    user: int
    group: int
    mode: int
    exact: bool = True

    @classmethod
    def of(cls, path: PurePath) -> Ownership | None:
        """Ownership of a regular file or a directory, links followed; None for anything else, and without access."""
        try:
            found = os.stat(path)
        except OSError:
            return None
        bits = 0o777 if stat.S_ISREG(found.st_mode) else 0o3777 if stat.S_ISDIR(found.st_mode) else None
        return None if bits is None else cls(found.st_uid, found.st_gid, found.st_mode & bits)

    def give(self, descriptor: int) -> None:
        """Apply this ownership to a new file or directory, as far as the process is permitted to; errors are ignored."""
        for user in (self.user, -1):  # an ordinary user may still set a group that he is a member of
            found = os.fstat(descriptor)
            if (found.st_uid, found.st_gid) != (self.user, self.group):
                with contextlib.suppress(OSError):
                    os.chown(descriptor, user, self.group)
        found = os.fstat(descriptor)
        mode = self.mode if self.exact else self.mode & found.st_mode
        if found.st_gid != self.group:
            mode &= ~0o070 | (mode & 0o007) << 3
        if stat.S_IMODE(found.st_mode) != mode:
            with contextlib.suppress(OSError):
                os.chmod(descriptor, mode)


def wanted_for_file(path: PurePath) -> Ownership | None:
    """Ownership for a file that is made at `path` or replaces the one there; None: as the system makes it."""
    if os.path.isfile(path):
        return Ownership.of(path)
    if (store := _store_of_state(path)) is not None:
        return _like_lock(store)
    store = next((one for one in path.parents[:2] if os.path.isdir(one / STATE_DIRECTORY)), None)
    if store is None:
        return None
    beside = _some_files(path.parent)
    for suffix in {one.suffix for one in beside} - {path.suffix, ""}:
        if os.path.isfile(half := path.with_suffix(suffix)):
            return Ownership.of(half)
    alike = next((found for one in beside if one.suffix == path.suffix and (found := Ownership.of(one))), None)
    owner = _like_lock(store)
    return owner and replace(owner, mode=(alike or owner).mode, exact=False)


def _like_lock(store: PurePath) -> Ownership | None:
    if found := Ownership.of(store / STATE_DIRECTORY / LOCK):
        return found
    above = Ownership.of(store)
    return above and replace(above, mode=above.mode & 0o666)


def _some_files(directory: PurePath) -> list[PurePath]:
    with contextlib.suppress(OSError), os.scandir(directory) as entries:
        return [directory / one.name for one in itertools.islice(entries, _LOOKED_AT) if one.is_file()]
    return []


def wanted_for_directory(path: PurePath) -> Ownership | None:
    """Ownership for a directory that is made at `path`; None: as the system makes it."""
    above = Ownership.of(path.parent)
    if above is None or _store_of_state(path) is not None:
        return above
    return replace(above, exact=False) if os.path.isdir(path.parent / STATE_DIRECTORY) else None


def _store_of_state(path: PurePath) -> PurePath | None:
    """The store whose state directory contains `path`, or is `path`; None when there is none."""
    return next((one.parent for one in (path, *path.parents) if one.name == STATE_DIRECTORY), None)


def make_file(path: PurePath, like: PurePath) -> int:
    """Make an empty file with the ownership for a file at `like`; returns its descriptor.  Raises OSError when it exists."""
    wanted = wanted_for_file(like)
    mode = 0o644 if wanted is None else wanted.mode & 0o700 if wanted.exact else wanted.mode
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_CREAT | os.O_EXCL, mode)
    try:
        if wanted is not None:
            wanted.give(descriptor)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def make_lock_file(path: PurePath, control_file: PurePath | None) -> None:
    """Make a store's lock file, with the ownership of the control file, unless it exists.  Raises OSError.

    It gets its name (by link) only once its ownership is set, because other new files copy that.  Its contents do not matter, so
    the observer of `engine.durable.disk` does not get it.
    """
    if os.path.lexists(path):
        return
    like = control_file or path
    made = path.with_name(f"{path.name}.{secrets.token_hex(8)}{TEMPORARY_SUFFIX}")
    os.close(make_file(made, like))
    try:
        os.link(made, path)
    except FileExistsError:  # another process was faster
        pass
    except OSError:  # a file system without hard links
        with contextlib.suppress(FileExistsError):
            os.close(make_file(path, like))
    finally:
        os.unlink(made)


def make_directory(path: PurePath) -> None:
    """Make one directory.  Raises OSError, also when it exists."""
    wanted = wanted_for_directory(path)
    os.mkdir(path, 0o777 if wanted is None else wanted.mode)
    if wanted is None:
        return
    with contextlib.suppress(OSError):  # another process may have replaced it meanwhile; that one stays as it is
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            wanted.give(descriptor)
        finally:
            os.close(descriptor)
