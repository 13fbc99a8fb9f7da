"""Metadata in one SQLite file (`engine.metadata.embedded_file`): a cluster without ZooKeeper, for the processes of one machine.

Sessions.  A process with ephemeral nodes extends its session by a heartbeat, several times in each `SESSION_TIMEOUT`, and with
each change, because a process that makes thousands of changes has no time for heartbeats.  The nodes of a session that is over
are invisible at once; the next change by any process deletes them.  A process that was stopped for longer than the timeout gets
`SessionLostError` for its next change: each change checks the session within its own transaction.

Durability.  SQLite uses a rollback journal and ``synchronous = EXTRA``, so that a session id is never issued twice, also after a
power failure.  There is one file, and a journal while it is written; it must be on a local disk.

Machines.  Sessions are for processes of one machine.  A file in which a process of another machine has one (on a file server) is
refused: each machine would take the other's log servers for dead.  Whether such a session lives is found out when the file is
opened, by waiting for its heartbeat, `SESSION_TIMEOUT` at most.

Opening without `create` never makes a file, and reading never writes one.  If the open file is moved or replaced, every call
raises PeerUnreachableError: no other process would ever read what is written to it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from waltzctl.engine.durable.file_status import is_still_at, moved_while
from waltzctl.engine.errors import NotWaltzError, PeerError, PeerUnreachableError, RefusedError
from waltzctl.engine.metadata import embedded_sessions
from waltzctl.engine.metadata.embedded_file import begin_writing, open_file, reading, translated_errors
from waltzctl.engine.metadata.embedded_nodes import EmbeddedNodes
from waltzctl.engine.metadata.metadata_store import (
    ANY_VERSION,
    Change,
    MetadataConflictError,
    SessionLostError,
    Watch,
    ZnodeState,
)

T = TypeVar("T")
SESSION_TIMEOUT = 5.0
"""Seconds."""
_HEARTBEATS = 4
"""Heartbeats in each session timeout."""
_POLL_SECONDS = 0.05
"""Seconds between looks for changes by other processes."""
_POLLS_PER_SESSION_CHECK = 10
"""Every so many polls watches are checked although the file did not change: a session may be over."""


class EmbeddedStore:
    """An open file, as a `MetadataStore`.  Made by `open`."""

    def __init__(
        self,
        path: Path,
        thread: ThreadPoolExecutor,
        database: sqlite3.Connection,
        opened: int,
        session_timeout: float,
    ) -> None:
        self._path, self._thread, self._nodes = path, thread, EmbeddedNodes(database, str(path))
        self._absolute_path, self._file_descriptor = path.absolute(), opened
        self._timeout = session_timeout
        self._loop = asyncio.get_running_loop()
        self._lost: asyncio.Future[str] = self._loop.create_future()
        self._session: int | None = None
        self._session_deadline = 0.0  # in the loop's time, seconds; the session is not over before
        self._session_lock = asyncio.Lock()  # while a session begins: concurrent callers must not begin two
        # by path and (version, cversion) when the watch was set; None: the node did not exist
        self._watches: dict[tuple[str, tuple[int, int] | None], list[Watch]] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._closing: Future[None] | None = None  # once `close` was called
        self._recheck = False  # check all watches at the next poll, even if the file did not change

    @classmethod
    async def open(cls, path: Path, *, create: bool = False, session_timeout: float = SESSION_TIMEOUT) -> EmbeddedStore:
        """Open the file, or with `create` make it where there is none.

        Raises NotWaltzError, PeerUnreachableError, RefusedError where a process of another machine uses it.
        """
        thread = ThreadPoolExecutor(1, "metadata")
        opening = thread.submit(open_file, path, create)
        try:
            database, opened = await asyncio.wrap_future(opening)
        except BaseException:
            opening.add_done_callback(_close_unused)
            thread.shutdown(wait=False)
            raise
        store = cls(path, thread, database, opened, session_timeout)
        try:
            await store._look_for_other_machines()
        except BaseException:
            await store.close()
            raise
        return store

    async def _look_for_other_machines(self) -> None:
        """Find out which sessions of other machines are over.  Raises RefusedError where one is not."""
        with contextlib.suppress(NotWaltzError, PeerError):  # the first call tells it
            first = left = await self._elsewhere()
            until = self._loop.time() + self._timeout
            while left and self._loop.time() < until:
                await asyncio.sleep(_POLL_SECONDS)
                left = await self._elsewhere()
                if any(first.get(number) != deadline for number, deadline in left.items()):
                    raise self._used_elsewhere()
            self._nodes.gone_elsewhere = frozenset(left)

    async def _elsewhere(self) -> dict[int, float]:
        return await self._read(lambda: embedded_sessions.elsewhere(self._nodes.database))

    def _used_elsewhere(self) -> RefusedError:
        return RefusedError(
            f"{self.where}: a process of another machine uses it, and metadata in one file is for the processes of one machine",
            advice="run this on that machine; a cluster of several machines has its metadata in ZooKeeper (--metadata zk://...)",
        )

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
        data, state = await self._read(lambda: self._nodes.node(path))
        self._watch(path, state, watch)
        return data, state

    async def exists(self, path: str, watch: Watch | None = None) -> ZnodeState | None:
        """See `MetadataStore`."""
        state = await self._read(lambda: self._nodes.state(path))
        self._watch(path, state, watch)
        return state

    async def children(self, path: str, watch: Watch | None = None) -> tuple[str, ...]:
        """See `MetadataStore`."""

        def read() -> tuple[ZnodeState, tuple[str, ...]]:
            return self._nodes.node(path)[1], self._nodes.children(path)

        state, names = await self._read(read)
        self._watch(path, state, watch)
        return names

    # ---- writing -------------------------------------------------------------------------------------------------------

    async def create(self, path: str, data: bytes = b"", *, ephemeral: bool = False, sequence: bool = False) -> str:
        """See `MetadataStore`."""
        session = await self._begin_session() if ephemeral else None
        return await self._transaction(lambda: self._nodes.create(path, data, session=session, sequence=sequence))

    async def create_root(self) -> bool:
        """See `MetadataStore`."""
        return await self._transaction(self._nodes.create_root)

    async def set(self, path: str, data: bytes, version: int = ANY_VERSION) -> ZnodeState:
        """See `MetadataStore`."""
        return await self._transaction(lambda: self._nodes.set(path, data, version))

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        """See `MetadataStore`."""
        await self._transaction(lambda: self._nodes.delete(path, version))

    async def commit(self, changes: Sequence[Change]) -> None:
        """See `MetadataStore`."""
        await self._transaction(lambda: self._nodes.apply(changes))

    # ---- the database --------------------------------------------------------------------------------------------------

    async def _run(self, work: Callable[[], T]) -> T:
        """Run a function in the database's thread."""
        if self._closing is not None:
            raise PeerUnreachableError(self.where, "the metadata is closed")
        return await self._loop.run_in_executor(self._thread, self._checked, work)

    async def _read(self, work: Callable[[], T]) -> T:
        """Run a function that only reads in the database's thread, in one transaction."""

        def read() -> T:
            waited = self._extend_late_session()
            with reading(self._nodes.database, waited):
                return work()

        return await self._run(read)

    def _checked(self, work: Callable[[], T]) -> T:
        """In the database's thread: run a function on the file, if that is still the one at the path."""
        with translated_errors(self._path):
            self._check_file()
            return work()

    def _extend_late_session(self) -> float:
        """In the database's thread: extend this process's session if half of its time is over.

        Its heartbeat waits for this thread behind everything that was asked for before, which may be thousands of reads, each of
        which waits for the transactions of other processes.  Changes extend it by themselves, and would wait twice for a file
        that is kept locked; but not those that are refused, with which the extension is rolled back.

        Returns the seconds that this took in vain.
        """
        session, left = self._session, self._session_deadline - self._loop.time()
        if session is not None and 0 < left < self._timeout / 2:
            begun = self._loop.time()
            try:
                self._in_transaction(lambda: None, session)
            except Exception:  # of any kind: the heartbeat tells it
                return self._loop.time() - begun
        return 0.0

    def _check_file(self) -> None:
        """Raise PeerUnreachableError if the open file is no longer the one at the path."""
        if is_still_at(self._absolute_path, self._file_descriptor):
            return
        raise PeerUnreachableError(
            self.where,
            f"the file {moved_while('open')}",
            advice="put it back, or start again what uses it",
        )

    def _in_transaction(self, work: Callable[[], T], session: int | None) -> T:
        """In the database's thread: run a function in a transaction that also checks and extends a session, if one is given.

        SQLite opens a file for reading only where it cannot be opened for writing, also for want of a descriptor, and keeps it
        so.  Where this user may write to the file it is opened again.
        """
        try:
            return self._in_one_transaction(work, session)
        except sqlite3.OperationalError as error:
            readonly = error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_READONLY
            if not readonly or not os.access(self._absolute_path, os.W_OK):
                raise
        database, opened = open_file(self._absolute_path, create=False)
        os.close(opened)  # the first one still identifies the file
        try:
            self._check_file()
        except BaseException:
            database.close()  # perhaps of a file in the place of the open one, which would be read when that is back
            raise
        self._nodes.database, before = database, self._nodes.database
        before.close()
        return self._in_one_transaction(work, session)

    def _in_one_transaction(self, work: Callable[[], T], session: int | None) -> T:
        begin_writing(self._nodes.database)
        begun = self._loop.time()
        try:
            if session is not None and embedded_sessions.is_over(self._nodes.database, session):
                raise SessionLostError(
                    f"{self.where}: session {session} is over: this process was not heard of for {self._timeout:g} s"
                )
            self._nodes.end_sessions()
            result = work()
            if session is not None:
                embedded_sessions.extend(self._nodes.database, session, self._timeout)
            self._nodes.database.execute("COMMIT")  # waits for readers, and raises after `_BUSY_SECONDS`
            if session is not None:
                self._session_deadline = begun + self._timeout
        except BaseException:
            if self._nodes.database.in_transaction:  # SQLite rolls back by itself when the disk is full
                self._nodes.database.execute("ROLLBACK")
            raise
        return result

    async def _transaction(self, work: Callable[[], T], *, fenced: bool = True) -> T:
        """Run a function in a transaction that also checks (unless not `fenced`) and extends this process's session.

        That is the session of the time of the call: until the thread comes to it the session may be lost, or the store closed.
        """
        session = self._session if fenced else None

        def change() -> T:
            try:
                return self._in_transaction(work, session)
            except MetadataConflictError:
                self._extend_late_session()
                raise

        try:
            result = await self._run(change)
        except SessionLostError as error:
            if self._session == session:  # otherwise that was told, and there may be a new one
                self._report_lost(str(error))
            raise
        if self._watches:
            try:
                await self._fire()
            except Exception:  # of any kind: the change is committed, so do not raise; check the watches later
                self._recheck = True
        return result

    # ---- the session ---------------------------------------------------------------------------------------------------

    async def _begin_session(self) -> int:
        """This process's session, begun where there is none."""
        async with self._session_lock:
            if self._session is not None:
                return self._session
            while True:
                until = self._loop.time() + self._timeout
                session = await self._transaction(lambda: self._nodes.begin_session(self._timeout), fenced=False)
                if session is not None:
                    break
                await self._look_for_other_machines()  # they may have come since this was opened, and have ended
            self._session_deadline, self._session = until, session
            self._begin_task(self._heartbeat(session))
            return session

    async def _heartbeat(self, session: int) -> None:
        """Extend the session several times in each timeout; each time, end the sessions of other processes that are over."""
        while self._session == session:
            await asyncio.sleep(self._timeout / _HEARTBEATS)
            try:
                await self._transaction(lambda: None)  # every transaction extends the session
            except SessionLostError:
                return
            except Exception as error:  # of any kind: a damaged file may be restored, memory may become free
                if self._loop.time() >= self._session_deadline:
                    self._report_lost(f"{error}; this process could not say for {self._timeout:g} s that it lives")

    def _report_lost(self, why: str) -> None:
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
        if watch not in watches:  # set twice, it is called once
            watches.append(watch)
        self._recheck = True  # the node may have changed since it was read

    async def _poll(self) -> None:
        """Check watches when another process has changed the file, and regularly for sessions that are over.  Never returns."""
        last, looks = None, 0
        while True:
            with contextlib.suppress(Exception):  # for instance MemoryError: no other task polls
                (now,) = await self._read(lambda: self._nodes.database.execute("PRAGMA data_version").fetchone())
                looks += 1
                if now != last or self._recheck or looks % _POLLS_PER_SESSION_CHECK == 0:
                    last, self._recheck = now, False
                    await self._fire()
            await asyncio.sleep(_POLL_SECONDS)

    async def _fire(self) -> None:
        watched = [*self._watches]

        def changed() -> list[tuple[str, tuple[int, int] | None]]:
            return [key for key in watched if _versions(self._nodes.state(key[0])) != key[1]]

        for key in await self._read(changed):
            for watch in self._watches.pop(key, ()):
                watch()

    # ---- tasks and close -----------------------------------------------------------------------------------------------

    def _begin_task(self, work: Coroutine[Any, Any, None], name: str | None = None) -> None:
        if self._closing is not None:  # nobody would cancel it
            work.close()
            return
        self._tasks = [one for one in self._tasks if not one.done()]
        self._tasks.append(asyncio.ensure_future(work))
        if name is not None:
            self._tasks[-1].set_name(name)

    async def close(self) -> None:
        """See `MetadataStore`.  A call that is cancelled does not wait, and closes it all the same; a further one waits."""
        if self._closing is None:
            session, self._session = self._session, None
            for task in self._tasks:
                task.cancel()
            self._closing = self._thread.submit(self._end, session)
            self._thread.shutdown(wait=False)
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.shield(asyncio.wrap_future(self._closing))
        self._thread.shutdown()

    def _end(self, session: int | None) -> None:
        """In the database's thread, behind all else: end the session, and close the file."""
        try:
            if session is not None:
                # an error of any kind: a session that cannot be ended here is over at its deadline
                with contextlib.suppress(Exception):
                    self._checked(lambda: self._in_transaction(lambda: self._nodes.end_sessions(also=session), None))
        finally:
            self._nodes.database.close()
            os.close(self._file_descriptor)


def _versions(state: ZnodeState | None) -> tuple[int, int] | None:
    return None if state is None else (state.version, state.cversion)


def _close_unused(opening: Future[tuple[sqlite3.Connection, int]]) -> None:
    """Close what was opened for a caller that was cancelled meanwhile."""
    if not opening.cancelled() and opening.exception() is None:
        database, opened = opening.result()
        database.close()
        os.close(opened)
