"""Sessions in a cluster's metadata that is one file: who lives, by the clock and by the system's table of processes.

The table::

    session   id, boot (of the machine), deadline (seconds of the machine's monotonic clock),
              pid (of the process, as "namespace:number", see pid_namespaces(7))

A session is over

- when its process has ended, for those who are in the same PID namespace and so can tell;
- when its deadline has passed, which is a process that is stopped or hangs;
- when it began before the machine was last started.

Every function here is a part of the caller's transaction.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sqlite3
import time
from pathlib import Path

TABLE = """CREATE TABLE session (
        id INTEGER PRIMARY KEY AUTOINCREMENT, boot TEXT NOT NULL, deadline REAL NOT NULL, pid TEXT NOT NULL
    )"""


def begin(database: sqlite3.Connection, seconds: float) -> int:
    """A session of this process, over after so many seconds unless it is extended; its id is never given again."""
    made = database.execute(
        "INSERT INTO session (boot, deadline, pid) VALUES (?, ?, ?)",
        (_boot(), time.monotonic() + seconds, f"{_pid_namespace()}:{os.getpid()}"),
    )
    assert made.lastrowid is not None
    return made.lastrowid


def extend(database: sqlite3.Connection, session: int, seconds: float) -> None:
    """Let a session be over so many seconds from now on."""
    database.execute("UPDATE session SET deadline = ? WHERE id = ?", (time.monotonic() + seconds, session))


def is_over(database: sqlite3.Connection, session: int) -> bool:
    """Whether somebody ended it, or its deadline has passed."""
    row = database.execute("SELECT deadline FROM session WHERE id = ?", (session,)).fetchone()
    return row is None or row[0] < time.monotonic()


def over(database: sqlite3.Connection) -> tuple[int, ...]:
    """The sessions that are over and still in the table."""
    now, boot = time.monotonic(), _boot()
    sessions = database.execute("SELECT id, boot, deadline, pid FROM session")
    return tuple(
        number for number, begun, deadline, pid in sessions if begun != boot or deadline < now or has_ended(pid)
    )


def forget(database: sqlite3.Connection, session: int) -> None:
    """Take it out of the table."""
    database.execute("DELETE FROM session WHERE id = ?", (session,))


@functools.cache  # a process that has no descriptor left lives all the same
def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _pid_namespace() -> int:
    return os.stat("/proc/self/ns/pid").st_ino


def has_ended(pid: str | int) -> bool:
    """Whether the process of a session is known to have ended.

    It is not known of one in another namespace, of one that nobody has waited for (a zombie), of one whose number another process
    has by now, and where the number stands alone, as it did first: there the deadline decides.
    """
    namespace, _, number = str(pid).partition(":")
    if namespace != str(_pid_namespace()):
        return False
    try:
        with contextlib.suppress(PermissionError):  # it is there, and somebody else's
            os.kill(int(number), 0)
    except ProcessLookupError:
        return True
    return False
