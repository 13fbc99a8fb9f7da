"""Who may use a file that is made: whoever may use the one that it replaces, stands beside, or belongs to.

The superuser often repairs a directory that belongs to the node's own user.  What he makes there has to be that user's, who could
open neither the directory nor a partition otherwise; and where only that user may read the records, nobody else may read a copy.

A file that replaces another is like that one.  In a store a new one is like

1. the one beside it that differs in the suffix only: the other half of a segment;
2. else the file by which the store is locked, and so the control file, as to whose it is; its mode is that of another of its
   kind beside it, or else of that file too, less what the process's umask takes away.

In our own state it is like the file of the lock, whatever the umask; that of a store without a control file is like the store's
directory, less the right to search.  A directory in a store is like the one that it is made in.  Anything else is made as by any
other program.  Only the superuser may give files away: for anybody else a file stays his own, and what it grants to its group
is granted to another group only as far as to everybody.
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
"""Our own files inside a storage directory: lock, availability marks, quarantine, audit journal."""
TEMPORARY_SUFFIX = ".waltzctl-tmp"
"""A file of this suffix was being built when its process ended; it holds nothing that anybody was promised."""
LOCK = "lock"
"""The file in `STATE_DIRECTORY` by which a store is locked."""
_LOOKED_AT = 64
"""Files of a directory, which may have thousands, that show what kinds there are."""


@dataclass(frozen=True, slots=True)
class Ownership:
    """User, group and mode: the nine bits of a file, of a directory also set-group-id and sticky.

    `exact`: what is made has this mode, and not only what the umask leaves of it.
    """

    user: int
    group: int
    mode: int
    exact: bool = True

    @classmethod
    def of(cls, path: PurePath) -> Ownership | None:
        """Of a regular file or a directory, links followed; None for anything else, and without access."""
        try:
            found = os.stat(path)
        except OSError:
            return None
        bits = 0o777 if stat.S_ISREG(found.st_mode) else 0o3777 if stat.S_ISDIR(found.st_mode) else None
        return None if bits is None else cls(found.st_uid, found.st_gid, found.st_mode & bits)

    def give(self, descriptor: int) -> None:
        """Make what was just made so, as far as this process may: a system that refuses is no failure."""
        for user in (self.user, -1):  # a member of the group may give it to the group
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
    """What a file is to be that is made under this name, or takes the place of the one there; None: as it comes."""
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
    """What a directory is to be that is made under this name; None: as it comes."""
    above = Ownership.of(path.parent)
    if above is None or _store_of_state(path) is not None:
        return above
    return replace(above, exact=False) if os.path.isdir(path.parent / STATE_DIRECTORY) else None


def _store_of_state(path: PurePath) -> PurePath | None:
    """The store in whose state directory a name lies, or whose state directory it is."""
    return next((one.parent for one in (path, *path.parents) if one.name == STATE_DIRECTORY), None)


def make_file(path: PurePath, like: PurePath) -> int:
    """A descriptor of a new, empty file, which is what a file under the name `like` is to be.  Raises OSError when it exists."""
    wanted = wanted_for_file(like)
    mode = 0o644 if wanted is None else wanted.mode & 0o700 if wanted.exact else wanted.mode
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_CREAT | os.O_EXCL, mode)
    if wanted is not None:
        wanted.give(descriptor)
    return descriptor


def make_lock_file(path: PurePath, control_file: PurePath | None) -> None:
    """Make the file by which a store is locked where there is none: for whoever may use the control file.

    It has its name when it is whose it is to be, since everything that is made in the store is like it.  Nothing depends on its
    bytes, and the observer is not told of it.  Raises OSError.
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
    except OSError:  # a file system without links
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
    with contextlib.suppress(OSError):  # whatever somebody has put there meanwhile stays as it is
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            wanted.give(descriptor)
        finally:
            os.close(descriptor)
