"""Metadata in one SQLite file, for the processes of one machine: a cluster without ZooKeeper.

Tables::

    znode     path (primary key), data, version, cversion, sequence (of the next sequential child), session (NULL: none)
    session   see `engine.metadata.embedded_sessions`

Every process that made an ephemeral node says several times in each `SESSION_TIMEOUT` that it lives, and with each change: one
that has thousands to make does not come to anything else meanwhile.  Nobody sees the nodes of a
session that is over, also where nobody writes, and the next change of anybody deletes them.  A process that was stopped for that
long finds its session gone, and each of its changes is refused from then on (`SessionLostError`), because a change and the look
at the session are one transaction.

The file is written through SQLite's rollback journal, synced fully: a session id that was given away is never given again, also
after a power failure.  There is one file and, while it is written, its journal; it must lie on a disk of this machine.

Opening without `create` makes no file, and reading writes none.  A file that was deleted, or in whose place another one stands,
is as one that does not answer: what would be written into it nobody else would ever read.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from waltzctl.engine.errors import DeadlineError, NotWaltzError, PeerUnreachableError
from waltzctl.engine.metadata import embedded_sessions
from waltzctl.engine.metadata.metadata_store import (
    ANY_VERSION,
    Change,
    Check,
    Create,
    Delete,
    NodeExistsError,
    NodeMissingError,
    NodeNotEmptyError,
    NodeVersionError,
    SessionLostError,
    Set,
    Watch,
    ZnodeState,
)

T = TypeVar("T")
APPLICATION_ID = 0x57414C5A
"""In the file's header, where SQLite keeps a number for the program whose file it is: "WALZ"."""
SCHEMA_VERSION = 1
SESSION_TIMEOUT = 5.0
_HEARTBEATS = 4
"""How often in each timeout a process says that it lives."""
_POLL = 0.05
"""Seconds after which a change of another process is noticed at the latest."""
_LOOKS = 10
"""After so many of them without a change it is looked whether a session is over."""
_BUSY = 10.0
"""Seconds to wait for another process's transaction."""
_TABLES = (
    """CREATE TABLE znode (
        path TEXT PRIMARY KEY, data BLOB NOT NULL, version INTEGER NOT NULL DEFAULT 0, cversion INTEGER NOT NULL DEFAULT 0,
        sequence INTEGER NOT NULL DEFAULT 0, session INTEGER
    ) WITHOUT ROWID""",
    embedded_sessions.TABLE,
    f"PRAGMA application_id = {APPLICATION_ID}",
    f"PRAGMA user_version = {SCHEMA_VERSION}",
)


class EmbeddedStore:
    """An open file; see `MetadataStore`.  Made by `open`."""

    def __init__(
        self,
        path: Path,
        thread: ThreadPoolExecutor,
        database: sqlite3.Connection,
        opened: int,
        session_timeout: float,
    ) -> None:
        self._path, self._thread, self._database = path, thread, database
        self._place, self._opened = path.absolute(), opened
        self._timeout = session_timeout
        self._loop = asyncio.get_running_loop()
        self._lost: asyncio.Future[str] = self._loop.create_future()
        self._session: int | None = None
        self._until = 0.0  # in the loop's time: no later than when it is over
        self._beginning = asyncio.Lock()  # a session: each has a heartbeat of its own, and only the last one counts
        self._watches: dict[tuple[str, tuple[int, int] | None], list[Watch]] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._closed = False
        self._unsure = False

    @classmethod
    async def open(cls, path: Path, *, create: bool = False, session_timeout: float = SESSION_TIMEOUT) -> EmbeddedStore:
        """Open the file, or with `create` make it where there is none.  Raises NotWaltzError, PeerUnreachableError."""
        thread = ThreadPoolExecutor(1, "metadata")
        try:
            database, opened = await asyncio.get_running_loop().run_in_executor(thread, _connect, path, create)
        except BaseException:
            thread.shutdown(wait=False)
            raise
        return cls(path, thread, database, opened, session_timeout)

    @property
    def where(self) -> str:
        """As ``--metadata`` takes it."""
        return str(self._path)

    @property
    def session_timeout(self) -> float:
        """Seconds."""
        return self._timeout

    @property
    def lost(self) -> asyncio.Future[str]:
        """See `MetadataStore`."""
        if self._lost.done():
            self._lost = self._loop.create_future()
        return self._lost

    # ---- reading -------------------------------------------------------------------------------------------------------

    async def get(self, path: str, watch: Watch | None = None) -> tuple[bytes, ZnodeState]:
        """See `MetadataStore`."""
        data, state = await self._run(lambda: self._row(path))
        self._watch(path, state, watch)
        return data, state

    async def exists(self, path: str, watch: Watch | None = None) -> ZnodeState | None:
        """See `MetadataStore`."""
        state = await self._run(lambda: self._state(path))
        self._watch(path, state, watch)
        return state

    async def children(self, path: str, watch: Watch | None = None) -> tuple[str, ...]:
        """See `MetadataStore`."""

        def read() -> tuple[ZnodeState, tuple[str, ...]]:
            return self._row(path)[1], self._children(path)

        state, names = await self._run(read)
        self._watch(path, state, watch)
        return names

    def _row(self, path: str) -> tuple[bytes, ZnodeState]:
        row = self._database.execute(
            "SELECT data, version, cversion, session FROM znode WHERE path = ?", (path,)
        ).fetchone()
        over = embedded_sessions.over(self._database)
        if row is None or row[3] in over:
            raise NodeMissingError(self.where, path)
        gone = len(self._below(path, over)) if over else 0  # which their deletion will count as well
        return bytes(row[0]), ZnodeState(row[1], row[2] + gone, row[3] is not None)

    def _below(self, path: str, sessions: Sequence[int]) -> list[str]:
        """The children of a node that live as long as one of these sessions."""
        marks = ", ".join("?" * len(sessions))
        rows = self._database.execute(f"SELECT path FROM znode WHERE session IN ({marks})", sessions)
        return [one for (one,) in rows if one.rpartition("/")[0] == path]

    def _state(self, path: str) -> ZnodeState | None:
        with contextlib.suppress(NodeMissingError):
            return self._row(path)[1]
        return None

    def _children(self, path: str) -> tuple[str, ...]:
        below = f"{path}/" if path else ""
        rows = self._database.execute(
            "SELECT path FROM znode WHERE path > ? AND path < ? AND path != ''", (below, _after(below))
        )
        gone = {*self._below(path, over)} if (over := embedded_sessions.over(self._database)) else ()
        return tuple(sorted(name for (one,) in rows if one not in gone and "/" not in (name := one[len(below) :])))

    # ---- writing -------------------------------------------------------------------------------------------------------

    async def create(self, path: str, data: bytes = b"", *, ephemeral: bool = False, sequence: bool = False) -> str:
        """See `MetadataStore`."""
        if ephemeral:
            await self._begin_session()
        return await self._change(lambda: self._create(path, data, ephemeral=ephemeral, sequence=sequence))

    async def create_root(self) -> bool:
        """See `MetadataStore`."""

        def make() -> bool:
            if self._state("") is not None:
                return False
            self._database.execute("INSERT INTO znode (path, data) VALUES ('', x'')")
            return True

        return await self._change(make)

    async def set(self, path: str, data: bytes, version: int = ANY_VERSION) -> ZnodeState:
        """See `MetadataStore`."""
        return await self._change(lambda: self._set(path, data, version))

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        """See `MetadataStore`."""
        await self._change(lambda: self._delete(path, version))

    async def commit(self, changes: Sequence[Change]) -> None:
        """See `MetadataStore`."""

        def make() -> None:
            for change in changes:
                match change:
                    case Create(path, data):
                        self._create(path, data)
                    case Set(path, data, version):
                        self._set(path, data, version)
                    case Delete(path, version):
                        self._delete(path, version)
                    case Check(path, version):
                        self._check(path, version)

        await self._change(make)

    def _create(self, path: str, data: bytes, *, ephemeral: bool = False, sequence: bool = False) -> str:
        above = path.rpartition("/")[0]
        self._row(above)
        if sequence:
            (number,) = self._database.execute("SELECT sequence FROM znode WHERE path = ?", (above,)).fetchone()
            path = f"{path}{number:010d}"
        if self._state(path) is not None:
            raise NodeExistsError(self.where, path)
        self._database.execute(
            "INSERT INTO znode (path, data, session) VALUES (?, ?, ?)",
            (path, data, self._session if ephemeral else None),
        )
        self._database.execute(
            "UPDATE znode SET cversion = cversion + 1, sequence = sequence + 1 WHERE path = ?", (above,)
        )
        return path

    def _check(self, path: str, version: int) -> ZnodeState:
        _, state = self._row(path)
        if version not in (ANY_VERSION, state.version):
            raise NodeVersionError(self.where, path)
        return state

    def _set(self, path: str, data: bytes, version: int) -> ZnodeState:
        state = self._check(path, version)
        self._database.execute("UPDATE znode SET data = ?, version = version + 1 WHERE path = ?", (data, path))
        return ZnodeState(state.version + 1, state.cversion, state.ephemeral)

    def _delete(self, path: str, version: int) -> None:
        self._check(path, version)
        if self._children(path):
            raise NodeNotEmptyError(self.where, path)
        self._remove(path)

    def _remove(self, path: str) -> None:
        self._database.execute("DELETE FROM znode WHERE path = ?", (path,))
        if path:
            above = path.rpartition("/")[0]
            self._database.execute("UPDATE znode SET cversion = cversion + 1 WHERE path = ?", (above,))

    # ---- the database --------------------------------------------------------------------------------------------------

    async def _run(self, work: Callable[[], T]) -> T:
        """Something in the database's thread."""
        if self._closed:
            raise PeerUnreachableError(self.where, "the metadata is closed")

        def run() -> T:
            with _told(self._path):
                self._check_place()
                return work()

        return await self._loop.run_in_executor(self._thread, run)

    def _check_place(self) -> None:
        """Raise PeerUnreachableError where the file that was opened is no longer the one that others find."""
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(self._opened), os.stat(self._place)):
                return
        raise PeerUnreachableError(
            self.where,
            "the file was deleted or replaced while it was in use",
            advice="put it back, or start again what uses it",
        )

    async def _change(self, work: Callable[[], T], *, fenced: bool = True) -> T:
        """A transaction, the look at the own session in it."""

        def run() -> T:
            self._database.execute("BEGIN IMMEDIATE")
            begun, session = self._loop.time(), self._session if fenced else None
            try:
                if session is not None and embedded_sessions.is_over(self._database, session):
                    raise SessionLostError(
                        f"{self.where}: session {session} is over: this process was not heard of for {self._timeout:g} s"
                    )
                self._end_sessions()
                result = work()
                if session is not None:
                    embedded_sessions.extend(self._database, session, self._timeout)
                self._database.execute("COMMIT")  # which waits for readers, and may give up
                if session is not None:
                    self._until = begun + self._timeout
            except BaseException:
                if self._database.in_transaction:  # a full disk has taken it back already
                    self._database.execute("ROLLBACK")
                raise
            return result

        try:
            result = await self._run(run)
        except SessionLostError as error:
            self._lose(str(error))
            raise
        if self._watches:
            try:
                await self._fire()
            except Exception:  # whatever it is: the change is made, and the watches are looked at again
                self._unsure = True
        return result

    # ---- the session ---------------------------------------------------------------------------------------------------

    async def _begin_session(self) -> None:
        async with self._beginning:
            if self._session is not None:
                return
            until = self._loop.time() + self._timeout
            session = await self._change(lambda: embedded_sessions.begin(self._database, self._timeout), fenced=False)
            self._until, self._session = until, session
            self._begin_task(self._live(self._session))

    def _end_sessions(self, also: int | None = None) -> None:
        """Delete the sessions that are over, with their nodes."""
        for number in {*embedded_sessions.over(self._database), *(() if also is None else (also,))}:
            for (path,) in self._database.execute("SELECT path FROM znode WHERE session = ?", (number,)).fetchall():
                self._remove(path)
            embedded_sessions.forget(self._database, number)

    async def _live(self, session: int) -> None:
        """Say several times in each timeout that this process lives; end the sessions of those that do not say so."""
        while self._session == session:
            await asyncio.sleep(self._timeout / _HEARTBEATS)
            try:
                await self._change(lambda: None)  # each of them says so
            except SessionLostError:
                return
            except (
                Exception
            ) as error:  # whatever it is: a damaged file may be whole again, and there may be memory again
                if self._loop.time() >= self._until:
                    self._lose(f"{error}; this process could not say for {self._timeout:g} s that it lives")

    def _lose(self, why: str) -> None:
        self._session = None
        if not self._lost.done():
            self._lost.set_result(why)

    # ---- watches -------------------------------------------------------------------------------------------------------

    def _watch(self, path: str, state: ZnodeState | None, watch: Watch | None) -> None:
        if watch is None:
            return
        if not any(not task.done() and task.get_name() == "watches" for task in self._tasks):
            self._begin_task(self._poll(), "watches")
        watches = self._watches.setdefault((path, _versions(state)), [])
        if watch not in watches:  # whoever looks again and again is told once
            watches.append(watch)
        self._unsure = True  # it may have been changed since it was read

    async def _poll(self) -> None:
        """Look for what other processes changed, and now and then for whose session is over.  For ever."""
        last, looks = None, 0
        while True:
            with contextlib.suppress(Exception):  # whatever it is, such as no memory: nobody else would look
                (now,) = await self._run(lambda: self._database.execute("PRAGMA data_version").fetchone())
                looks += 1
                if now != last or self._unsure or looks % _LOOKS == 0:
                    last, self._unsure = now, False
                    await self._fire()
            await asyncio.sleep(_POLL)

    async def _fire(self) -> None:
        watched = [*self._watches]

        def changed() -> list[tuple[str, tuple[int, int] | None]]:
            return [key for key in watched if _versions(self._state(key[0])) != key[1]]

        for key in await self._run(changed):
            for watch in self._watches.pop(key, ()):
                watch()

    # ---- the end -------------------------------------------------------------------------------------------------------

    def _begin_task(self, work: Coroutine[Any, Any, None], name: str | None = None) -> None:
        self._tasks = [one for one in self._tasks if not one.done()]
        self._tasks.append(asyncio.ensure_future(work))
        if name is not None:
            self._tasks[-1].set_name(name)

    async def close(self) -> None:
        """See `MetadataStore`."""
        if self._closed:
            return
        session, self._session = self._session, None
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if session is not None:
            # whatever it is: a session that cannot be ended is over with its deadline
            with contextlib.suppress(Exception):
                await self._change(lambda: self._end_sessions(also=session), fenced=False)
        self._closed = True
        await self._loop.run_in_executor(self._thread, self._database.close)
        os.close(self._opened)
        self._thread.shutdown()


def _versions(state: ZnodeState | None) -> tuple[int, int] | None:
    return None if state is None else (state.version, state.cversion)


def _after(below: str) -> str:
    """The first string behind all that begin with `below`."""
    return f"{below[:-1]}{chr(ord(below[-1]) + 1)}" if below else chr(0x10FFFF)


def _connect(path: Path, create: bool) -> tuple[sqlite3.Connection, int]:
    """Open the file, and a descriptor that only says which one it is; see `EmbeddedStore.open`."""
    if not path.is_file():
        if path.exists():
            raise NotWaltzError(f"{path}: no regular file", advice="give the path of the metadata's file")
        if not create:
            raise NotWaltzError(
                f"{path}: there is no metadata", advice="make a cluster with waltzctl create-cluster or cluster create"
            )
    with _told(path):
        database = sqlite3.connect(
            f"{path.absolute().as_uri()}?mode={'rwc' if create else 'rw'}",
            uri=True,
            timeout=_BUSY,
            isolation_level=None,
            check_same_thread=False,
        )
        try:
            database.execute("PRAGMA synchronous = FULL")
            if create:
                database.execute("BEGIN IMMEDIATE")
                if not database.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
                    for statement in _TABLES:
                        database.execute(statement)
                database.execute("COMMIT")
            (application,) = database.execute("PRAGMA application_id").fetchone()
            (version,) = database.execute("PRAGMA user_version").fetchone()
            if (application, version) != (APPLICATION_ID, SCHEMA_VERSION):
                raise NotWaltzError(
                    f"{path}: no metadata of a Waltz cluster, or of a version that this program does not know",
                    advice="give the path that create-cluster --metadata was given",
                )
            # not for reading or writing: to close such a one drops no lock that the process has on the file
            opened = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except BaseException:
            database.close()
            raise
    return database, opened


@contextlib.contextmanager
def _told(path: Path) -> Iterator[None]:
    """The database's errors as ours, and the system's."""
    try:
        yield
    except OSError as error:
        raise PeerUnreachableError(str(path), str(error)) from None
    except sqlite3.OperationalError as error:
        if "locked" in str(error) or "busy" in str(error):
            raise DeadlineError(
                str(path), f"another process kept it locked for {_BUSY:g} s", advice="what it does shows lsof or fuser"
            ) from None
        raise PeerUnreachableError(
            str(path),
            str(error),
            advice="is its directory there, may this user write in it, and is there room on the disk?",
        ) from None
    except sqlite3.DatabaseError as error:
        raise NotWaltzError(
            f"{path}: {error}", advice="this is no metadata that waltzctl wrote, or it is damaged"
        ) from None
