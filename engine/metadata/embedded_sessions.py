"""Sessions in embedded metadata: the table, and when a session is over.

The table::

    session   id, boot (of the machine), deadline (by `machine_clock`),
              pid (of the process, as "machine/namespace:number", see pid_namespaces(7))

A session is over when

- its process has ended (only processes of the same PID namespace can tell);
- its deadline has passed, because the process is stopped or hangs;
- it began before the last boot of the machine.

The deadline of a session of another machine is by that machine's clock: whether its process lives shows here only by whether the
deadline moves (`elsewhere`).

Every function here runs within the caller's transaction.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Collection

from waltzctl.engine.shared_deadline import boot, machine, machine_clock

TABLE = """CREATE TABLE session (
        id INTEGER PRIMARY KEY AUTOINCREMENT, boot TEXT NOT NULL, deadline REAL NOT NULL, pid TEXT NOT NULL
    )"""


def begin(database: sqlite3.Connection, seconds: float) -> int:
    """Begin a session of this process, over after `seconds` unless extended; returns its id, which is never reused."""
    made = database.execute(
        "INSERT INTO session (boot, deadline, pid) VALUES (?, ?, ?)",
        (boot(), machine_clock() + seconds, f"{_pid_place()}:{os.getpid()}"),
    )
    assert made.lastrowid is not None
    return made.lastrowid


def extend(database: sqlite3.Connection, session: int, seconds: float) -> None:
    """Set a session's deadline to `seconds` from now."""
    database.execute("UPDATE session SET deadline = ? WHERE id = ?", (machine_clock() + seconds, session))


def is_over(database: sqlite3.Connection, session: int) -> bool:
    """Whether a session has been removed, or its deadline has passed."""
    row = database.execute("SELECT deadline FROM session WHERE id = ?", (session,)).fetchone()
    return row is None or row[0] < machine_clock()


def over(database: sqlite3.Connection, gone: Collection[int] = ()) -> tuple[int, ...]:
    """The sessions in the table that are over; `gone`: those of other machines that are."""
    now, this_boot = machine_clock(), boot()
    sessions = database.execute("SELECT id, boot, deadline, pid FROM session")
    return tuple(
        number
        for number, begun, deadline, pid in sessions
        if (number in gone if _is_elsewhere(begun, pid) else begun != this_boot or deadline < now or has_ended(pid))
    )


def elsewhere(database: sqlite3.Connection) -> dict[int, float]:
    """The sessions of other machines, each with its deadline, which moves while its process lives."""
    sessions = database.execute("SELECT id, boot, deadline, pid FROM session")
    return {number: deadline for number, begun, deadline, pid in sessions if _is_elsewhere(begun, pid)}


def _is_elsewhere(begun: str, pid: str | int) -> bool:
    """Whether a session is of another machine; False if it may be of this one before its last start."""
    named = str(pid).rpartition(":")[0].rpartition("/")[0]  # empty in older files
    return begun != boot() and named not in ("", machine())


def forget(database: sqlite3.Connection, session: int) -> None:
    """Remove a session from the table."""
    database.execute("DELETE FROM session WHERE id = ?", (session,))


def _pid_namespace() -> int:
    return os.stat("/proc/self/ns/pid").st_ino


def _pid_place() -> str:
    return f"{machine()}/{_pid_namespace()}"


def has_ended(pid: str | int) -> bool:
    """Whether the process of a session of this boot is known to have ended.

    `pid`: "machine/namespace:number"; in older files without the machine, or a number alone.

    False, so that the deadline decides, if the process is in another PID namespace or is a zombie, if its number has been reused,
    or if the namespace is not given.
    """
    place, _, number = str(pid).rpartition(":")
    namespace = place.rpartition("/")[2]
    if namespace != str(_pid_namespace()):
        return False
    try:
        with contextlib.suppress(PermissionError):  # the process exists and belongs to another user
            os.kill(int(number), 0)
    except ProcessLookupError:
        return True
    return False
