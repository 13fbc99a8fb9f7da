"""The SQLite file that holds embedded metadata: opening and creating it, and its errors as ours.

Tables::

    znode     see `engine.metadata.embedded_nodes`
    session   see `engine.metadata.embedded_sessions`
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path

from waltzctl.engine.errors import DeadlineError, NotWaltzError, PeerUnreachableError
from waltzctl.engine.metadata import embedded_nodes, embedded_sessions

APPLICATION_ID = 0x57414C5A
"""SQLite's ``application_id`` in the header of the file: "WALZ" in ASCII."""
SCHEMA_VERSION = 1
"""SQLite's ``user_version``."""
_BUSY_SECONDS = 10.0
"""Seconds to wait for another process's transaction."""
_TRY_SECONDS = 0.001
"""Seconds between attempts to begin a transaction while another process is in one."""
_SCHEMA = (
    embedded_nodes.TABLE,
    embedded_sessions.TABLE,
    f"PRAGMA application_id = {APPLICATION_ID}",
    f"PRAGMA user_version = {SCHEMA_VERSION}",
)


def open_file(path: Path, create: bool) -> tuple[sqlite3.Connection, int]:
    """Open the file: a connection, and a descriptor that identifies the file.  `create`: make it if there is none.

    Raises NotWaltzError, PeerUnreachableError, DeadlineError.
    """
    with translated_errors(path):
        if not path.is_file():
            if path.exists():
                raise NotWaltzError(f"{path}: no regular file", advice="give the path of the metadata's file")
            if not create:
                raise NotWaltzError(
                    f"{path}: there is no metadata",
                    advice="make a cluster with waltzctl create-cluster or cluster create",
                )
        database = sqlite3.connect(
            f"{path.absolute().as_uri()}?mode={'rwc' if create else 'rw'}",
            uri=True,
            timeout=_BUSY_SECONDS,
            isolation_level=None,
            check_same_thread=False,
        )
        try:
            # EXTRA, not FULL: a transaction ends with the removal of its journal, and FULL does not sync the directory behind it.
            # After a power failure the journal would be there again, and undo what was committed.
            _first_moment(database, "PRAGMA synchronous = EXTRA")  # reads the schema
            if create:
                begin_writing(database)
                if not database.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
                    for statement in _SCHEMA:
                        database.execute(statement)
                database.execute("COMMIT")
            with reading(database):
                (application,) = database.execute("PRAGMA application_id").fetchone()
                (version,) = database.execute("PRAGMA user_version").fetchone()
            if (application, version) != (APPLICATION_ID, SCHEMA_VERSION):
                raise NotWaltzError(
                    f"{path}: no metadata of a Waltz cluster, or of a version that this program does not know",
                    advice="give the path that create-cluster --metadata was given",
                )
            # O_PATH: closing an ordinary descriptor would drop the process's POSIX locks on the file
            opened = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except BaseException:
            database.close()
            raise
    return database, opened


def begin_writing(database: sqlite3.Connection) -> None:
    """Begin a transaction that writes; waits for those of other processes, `_BUSY_SECONDS` at most."""
    _first_moment(database, "BEGIN IMMEDIATE")


@contextlib.contextmanager
def reading(database: sqlite3.Connection, waited: float = 0.0) -> Iterator[None]:
    """A transaction that reads; waits, `_BUSY_SECONDS` at most, while another process commits.

    `waited`: seconds of these that the caller has waited already.
    """
    database.execute("BEGIN")
    try:
        _first_moment(database, "PRAGMA schema_version", waited)  # the first read is what takes the lock
        yield
    finally:
        if database.in_transaction:
            database.execute("ROLLBACK")


def _first_moment(database: sqlite3.Connection, statement: str, waited: float = 0.0) -> None:
    """Execute a statement in the first moment in which the locks of other processes let it.

    A process that opens thousands of partitions has one transaction right behind the other, for minutes, and is in a commit
    nearly all the time.  SQLite itself tries ten times a second, and would hardly ever meet the moment between two: the sessions
    of all other processes would expire.
    """
    until = time.monotonic() + _BUSY_SECONDS - waited
    database.execute("PRAGMA busy_timeout = 0")
    try:
        while True:
            try:
                database.execute(statement).fetchall()
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() >= until:
                    raise
            else:
                return
            time.sleep(_TRY_SECONDS)
    finally:
        database.execute(f"PRAGMA busy_timeout = {round(_BUSY_SECONDS * 1000)}")


@contextlib.contextmanager
def translated_errors(path: Path) -> Iterator[None]:
    """Translate errors of SQLite and of the system: PeerUnreachableError, DeadlineError, NotWaltzError."""
    try:
        yield
    except OSError as error:
        raise PeerUnreachableError(str(path), str(error)) from None
    except sqlite3.OperationalError as error:
        if "locked" in str(error) or "busy" in str(error):
            raise _kept_locked(path) from None
        if str(error).startswith("no such"):  # a table or a column
            raise _not_ours(path, error) from None
        raise PeerUnreachableError(
            str(path),
            str(error),
            advice="is its directory there, may this user write in it, and is there room on the disk?",
        ) from None
    # SQLite keeps any type in any column
    except (sqlite3.DatabaseError, TypeError, ValueError, OverflowError) as error:
        if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_CORRUPT and (why := _why_unread(path)):
            raise PeerUnreachableError(
                str(path), why, advice="the system's log (dmesg) says what its disk has; then try again"
            ) from None
        raise _not_ours(path, error) from None


def _why_unread(path: Path) -> str | None:
    """Why a file that SQLite calls malformed could not be read; None where it is malformed.

    SQLite tells a read that failed with EIO as damage of the file, but not when it copies the pages.  The file is read by SQLite
    only: closing a descriptor of our own would drop the process's POSIX locks on it.  Raises DeadlineError.
    """

    def step(status: int, _left: int, _all: int) -> None:
        if status == sqlite3.SQLITE_BUSY:  # for `_BUSY_SECONDS`; the copy would wait for ever
            raise _kept_locked(path)

    with contextlib.ExitStack() as stack:
        try:
            there = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=_BUSY_SECONDS)
            stack.callback(there.close)
            copy = sqlite3.connect(":memory:")
            stack.callback(copy.close)
            there.backup(copy, progress=step)
            (found,) = copy.execute("PRAGMA quick_check(1)").fetchone()
        except sqlite3.OperationalError as error:
            return str(error)
        except sqlite3.DatabaseError:
            return None
    return "a read failed, and the next one did not" if found == "ok" else None


def _kept_locked(path: Path) -> DeadlineError:
    return DeadlineError(
        str(path), f"another process kept it locked for {_BUSY_SECONDS:g} s", advice="what it does shows lsof or fuser"
    )


def _not_ours(path: Path, error: Exception) -> NotWaltzError:
    return NotWaltzError(f"{path}: {error}", advice="this is no metadata that waltzctl wrote, or it is damaged")
