"""Which process a directory belongs to, as a note in it says, and whether that process has ended."""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Self

from waltzctl.engine.durable import disk
from waltzctl.engine.shared_deadline import boot, machine

OWNER = "owner"
"""The name of the note."""
_STAT = re.compile(r"(\d+) \((.*)\) [^ZX] (\d+) (.*)", re.DOTALL)
"""``/proc/PID/stat``, except of zombies (Z, X): in a container no parent may ever wait for an ended process."""
_DEPTH = 16


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

    @property
    def ended_here(self) -> bool:
        """Whether it is known beyond doubt to have ended: it was of this start of this machine, and of this namespace.

        Of a process before the last start `alive` is False by names alone, which two machines may have in common.
        """
        return bool(self.boot and self.namespace) and self.alive is False and self.boot == boot()


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


def this_process() -> Owner:
    """This process.  Raises OSError."""
    own = _process(os.getpid())
    return _owner(os.getpid(), -1 if own is None else own[2])


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
    return this_process()


def write_owner(directory: Path, owner: Owner) -> None:
    """Write the note into a directory.  Raises DiskWriteError."""
    disk.write_whole(directory / OWNER, json.dumps(asdict(owner)).encode())


def noted_owner(directory: Path) -> Owner | None:
    """The owner that a directory's note names; None where there is none: its making was killed, or it is none of ours.

    Raises OSError where it cannot be read.
    """
    try:
        return Owner.of(json.loads((directory / OWNER).read_text()))
    except (
        FileNotFoundError,
        IsADirectoryError,
        NotADirectoryError,
        ValueError,
        TypeError,
        AttributeError,
        RecursionError,
    ):
        return None
