"""The staging directory of a write, beside its target; how an abandoned one is told from one in use.

::

    TARGET.waltzctl-tmp-<uuid>/
        owner       host, process id and start of the driver's process: the directory is abandoned when that has ended
        tasks/      a directory for each attempt of a task
        storage/    the complete directory, which one rename makes the target
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Self

from waltzctl.engine.durable import disk
from waltzctl.engine.durable.file_status import names_in
from waltzctl.engine.errors import DiskError, DiskReadError, RefusedError
from waltzctl.engine.shared_deadline import boot, machine

OWNER = "owner"
TASKS = "tasks"
STORAGE = "storage"
_GONE = "-gone"
_STAT = re.compile(r"(\d+) \((.*)\) [^ZX] (\d+) (.*)", re.DOTALL)
"""``/proc/PID/stat``, except of zombies (Z, X): in a container no parent may ever wait for an ended process."""
_DEPTH = 16
_PASSES = 100


@dataclass(frozen=True, slots=True)
class Owner:
    """A process: host name, id, and its start in clock ticks since boot, which tells it from a later process with the same id.

    `boot`: the start of the machine.  `namespace`: where the id is the process's (pid_namespaces(7)): a container may have the
    machine's host name, and ids of its own.  `machine`: two machines may have one host name (``localhost``).  They are empty in
    files of earlier versions, and where the system does not tell.
    """

    host: str
    pid: int
    started: int
    boot: str = ""
    namespace: str = ""
    machine: str = ""

    @classmethod
    def of(cls, note: Mapping[str, Any]) -> Self:
        """From a note; what a later version adds is passed over.  Raises TypeError, AttributeError for what is no note."""
        known = {one.name for one in fields(cls)}
        return cls(**{name: value for name, value in note.items() if name in known})

    @property
    def alive(self) -> bool | None:
        """None for a process of another machine or container, and when the system does not tell: what a running one writes must
        stay.
        """
        if self.host != socket.gethostname():
            return None
        try:
            if self.boot and self.boot == boot() and self.namespace != _namespace():
                return None
            if self.machine not in ("", machine()) and self.boot != boot():
                return None
            found = _process(self.pid)
        except OSError:
            return None
        return found is not None and found[2] == self.started


def _namespace() -> str:
    return os.readlink("/proc/self/ns/pid")


def _owner(pid: int, started: int) -> Owner:
    try:
        return Owner(socket.gethostname(), pid, started, boot(), _namespace(), machine())
    except (FileNotFoundError, PermissionError):  # a sandbox may show neither; any other error is of this moment
        return Owner(socket.gethostname(), pid, started)


def _process(pid: int) -> tuple[str, int, int] | None:
    """Name, parent and start of a process; None when there is none.

    Raises OSError when the system does not tell, for instance for want of a descriptor.
    """
    try:
        text = Path("/proc", str(pid), "stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        with contextlib.suppress(ProcessLookupError, OverflowError, TypeError):
            os.kill(pid, 0)  # not allowed: another user's, which the system hides (hidepid)
        return None
    match = _STAT.match(text)
    if match is None:
        return None
    return match[2], int(match[3]), int(match[4].split()[17])


def driver() -> Owner:
    """The Java process of the driver that started this one, else this process itself.  Raises OSError."""
    pid = os.getpid()
    with contextlib.suppress(PermissionError):  # a system may hide the processes of other users (hidepid)
        for _ in range(_DEPTH):
            found = _process(pid)
            if found is None:
                break
            if found[0] == "java":
                return _owner(pid, found[2])
            pid = found[1]
    own = _process(os.getpid())
    return _owner(os.getpid(), -1 if own is None else own[2])


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
    disk.write_whole(staging / OWNER, json.dumps(asdict(owner)).encode())
    disk.make_directory(staging / TASKS)
    return staging


def _clear(target: Path, staging: Path) -> None:
    owner = None
    try:
        if not staging.name.endswith(_GONE):  # a directory with that suffix is being removed
            owner = Owner.of(json.loads((staging / OWNER).read_text()))
    except (
        FileNotFoundError,
        IsADirectoryError,
        NotADirectoryError,
        ValueError,
        TypeError,
        AttributeError,
        RecursionError,
    ):
        pass  # its making was killed
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
    if not staging.name.endswith(_GONE):
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
