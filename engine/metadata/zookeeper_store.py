"""Metadata in ZooKeeper, through the library kazoo.

Calls use kazoo's asynchronous interface, any number of them in progress, each with a deadline.  Callbacks from kazoo's threads
are handed to the event loop.

Kazoo writes a byte for each call into a socket, and reads it when it sends the call: not while it connects again, nor while it
writes to a connection that is lost.  After some 280 calls the event loop would stand still.  Therefore kazoo has at most
`AT_A_TIME` calls that it has not answered, whether or not their deadlines have passed; while it connects again no call is made;
and the bytes of calls that were lost are removed before it is connected again.  A call that cannot be made yet waits, within its
deadline.

Loss of the session.  Kazoo reports it only once ZooKeeper can be reached again; release 0.13.2 serves on until then (weakness
Z5).  Here the session counts as lost when nothing has been received for the session timeout that the ensemble granted.  Kazoo's
own notice of a broken connection would be no help: where packets are dropped it takes two thirds of a timeout.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from waltzctl.engine.errors import DeadlineError, PeerUnreachableError, ProtocolError, RefusedError
from waltzctl.engine.metadata.metadata_store import (
    ANY_VERSION,
    Change,
    Check,
    Create,
    Delete,
    MetadataConflictError,
    NodeExistsError,
    NodeMissingError,
    NodeNotEmptyError,
    NodeVersionError,
    Set,
    Watch,
    ZnodeState,
)
from waltzctl.engine.metadata.zookeeper_connection import (
    AUTH_FILE_VARIABLE,
    AUTH_VARIABLE,
    UNREADABLE,
    Contact,
    connected,
    drop_wakes,
)
from waltzctl.engine.metadata.zookeeper_options import ZooKeeperOptions
from waltzctl.engine.net.deadlines import HELD_UP
from waltzctl.engine.net.events import Turns
from waltzctl.engine.net.futures import fail, in_thread
from waltzctl.engine.net.single_flight import in_daemon_thread

T = TypeVar("T")
AT_A_TIME = 100
"""Calls that kazoo has at a time."""
LONGEST_REQUEST = (1 << 20) - 1
"""The longest request in bytes that ZooKeeper accepts by default (jute.maxbuffer); it closes the connection at a longer one."""
_LONG_REQUEST = 1_000_000
"""From this many bytes on, the length of a request is a likely reason for the loss of the connection."""
_CHANGE_BYTES = 17
"""The least bytes of a change in a transaction, besides its path and data."""
_CHECKS_PER_TIMEOUT = 10
"""Checks in each session timeout, once it has passed in silence, for an answer of ZooKeeper."""
_CONNECTING = "CONNECTING"
"""Kazoo's `client_state` while it has no connection and tries to get one, with its session or with a new one."""
_EXPIRED = "EXPIRED_SESSION"
"""Kazoo's `client_state` once ZooKeeper has said that the session is over, until it begins to connect for a new one."""


class NotPermittedError(RefusedError):
    """The node's ACL does not permit the access to the user as whom this program authenticated, if it did."""


class ZooKeeperStore:
    """A connection to ZooKeeper, as a `MetadataStore`.  Made by `open`."""

    def __init__(self, client: Any, contact: Contact, options: ZooKeeperOptions, stack: contextlib.ExitStack) -> None:
        self._client, self._contact, self._options, self._stack = client, contact, options, stack
        self._root = options.cluster_root.rstrip("/")
        self._loop = asyncio.get_running_loop()
        self._lost: asyncio.Future[str] = self._loop.create_future()
        self._asked_anew = False
        self._state_changes, self._sessions_expired = Turns(), 0  # of kazoo; the latter is written in its threads
        self._places = asyncio.Semaphore(AT_A_TIME)  # for calls that kazoo has
        self._closed = False
        client.add_listener(self._state_changed)
        self._timer = self._loop.call_later(self.session_timeout, self._check_silence)

    @classmethod
    async def open(cls, options: ZooKeeperOptions) -> ZooKeeperStore:
        """Connect.  Raises PeerUnreachableError, InvalidRequestError."""
        stack = contextlib.ExitStack()

        def connect() -> tuple[Any, Contact]:
            return stack.enter_context(connected(options))

        client, contact = await in_daemon_thread(
            connect, name="zookeeper-connect", undo=lambda _: stack.close(), patient=False
        )
        return cls(client, contact, options, stack)

    @property
    def where(self) -> str:
        """As ``--metadata`` takes it."""
        return f"zk://{self._options.connect_string}{self._options.cluster_root}"

    @property
    def session_timeout(self) -> float:
        """Seconds, as granted by the ensemble."""
        granted = self._contact.granted
        return self._options.session_timeout if granted is None else granted

    @property
    def lost(self) -> asyncio.Future[str]:
        """See `MetadataStore`."""
        if self._lost.done():
            self._lost = self._loop.create_future()
        return self._lost

    # ---- calls ---------------------------------------------------------------------------------------------------------

    def _absolute(self, path: str) -> str:
        return f"{self._root}/{path}".rstrip("/") or "/"

    def _relative(self, path: str) -> str:
        return path.removeprefix(self._root).lstrip("/")

    async def _call(self, path: str, call: Callable[..., Any], *arguments: Any, size: int = 0, **named: Any) -> Any:
        """Make an asynchronous call of kazoo about a node, within the deadline.  `size`: bytes that it writes."""
        answered: asyncio.Future[Any] = self._loop.create_future()
        has_place = True

        def settle(result: Any) -> None:
            nonlocal has_place
            if has_place:  # kazoo may tell of one call twice, where its connection is closed meanwhile
                has_place = False
                self._places.release()
            if answered.done():
                return  # the deadline has passed
            if result.exception is not None:
                fail(answered, result.exception)
            else:
                answered.set_result(result.value)

        until = self._loop.time() + self._options.connect_timeout
        await self._in_time(path, self._may_call(), until)
        try:
            made = call(*arguments, **named)
        except BaseException:
            self._places.release()
            raise
        made.rawlink(lambda result: self._in_loop(lambda: settle(result)))
        return await self._in_time(path, answered, until, size)

    async def _may_call(self) -> None:
        """Wait for a place among the calls that kazoo has, and while it connects again.

        Raises SessionExpiredError if that begins a new session, and ConnectionClosedError once the store is closed: kazoo may go
        on connecting for a while.
        """
        from kazoo import exceptions

        expired = self._sessions_expired
        await self._places.acquire()
        try:
            while not self._closed and self._client.client_state == _CONNECTING and self._sessions_expired == expired:
                await self._state_changes.beyond(self._state_changes.count)
            if self._closed:
                raise exceptions.ConnectionClosedError("Connection has been closed")
            if self._sessions_expired != expired:
                raise exceptions.SessionExpiredError
        except BaseException:
            self._places.release()
            raise

    async def _in_time(self, path: str, awaited: Awaitable[T], until: float, size: int = 0) -> T:
        """Await what kazoo does for a call, with its errors as ours; `until`: the deadline, in the loop's time."""
        from kazoo import exceptions

        try:
            async with asyncio.timeout_at(until):
                return await awaited
        except TimeoutError:
            what = f"no answer within {self._options.connect_timeout:g} s about node {self._absolute(path)}"
            raise DeadlineError(f"ZooKeeper at {self._options.connect_string}", what) from None
        except exceptions.KazooException as error:
            raise self._failure(path, error, size) from None
        except UNREADABLE as error:
            what = f"an answer about node {self._absolute(path)} that cannot be read: {error!r}"
            raise ProtocolError(f"ZooKeeper at {self._options.connect_string}", what) from error

    def _failure(
        self, path: str, error: Exception, size: int = 0
    ) -> MetadataConflictError | PeerUnreachableError | NotPermittedError:
        from kazoo import exceptions

        if isinstance(error, exceptions.NoAuthError):
            return NotPermittedError(
                f"ZooKeeper at {self._options.connect_string}, node {self._absolute(path)}: not permitted",
                advice=f"say who you are: {AUTH_VARIABLE}, USER:PASSWORD, or {AUTH_FILE_VARIABLE}",
            )

        kinds: tuple[tuple[type[Exception], type[Any]], ...] = (
            (exceptions.NoNodeError, NodeMissingError),
            (exceptions.NodeExistsError, NodeExistsError),
            (exceptions.BadVersionError, NodeVersionError),
            (exceptions.NotEmptyError, NodeNotEmptyError),
        )
        for theirs, ours in kinds:
            if isinstance(error, theirs):
                made = ours(f"ZooKeeper at {self._options.connect_string}", self._absolute(path))
                assert isinstance(made, MetadataConflictError)
                return made
        what = f"node {self._absolute(path)}: {type(error).__name__} {error}"
        advice = None
        if isinstance(error, exceptions.ConnectionLoss) and size >= _LONG_REQUEST:
            advice = (
                f"{size} bytes were to be written at once, and ZooKeeper closes the connection at a request of more than"
                f" {LONGEST_REQUEST} unless its jute.maxbuffer allows it: raise that at every server of the ensemble"
            )
        return PeerUnreachableError(f"ZooKeeper at {self._options.connect_string}", what.rstrip(), advice=advice)

    def _kazoo_watch(self, watch: Watch | None) -> Callable[[Any], None] | None:
        return None if watch is None else _KazooWatch(self._in_loop, watch)

    def _in_loop(self, call: Callable[[], None]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(call)

    async def get(self, path: str, watch: Watch | None = None) -> tuple[bytes, ZnodeState]:
        """See `MetadataStore`."""
        kazoo_watch = self._kazoo_watch(watch)
        data, stat = await self._call(path, self._client.get_async, self._absolute(path), watch=kazoo_watch)
        if kazoo_watch is not None:
            with contextlib.suppress(NodeMissingError):  # then the first watch has fired
                await self._call(path, self._client.get_children_async, self._absolute(path), watch=kazoo_watch)
        # kazoo has None for a node that somebody made with null in place of data
        return bytes(data or b""), _state(stat)

    async def exists(self, path: str, watch: Watch | None = None) -> ZnodeState | None:
        """See `MetadataStore`."""
        stat = await self._call(path, self._client.exists_async, self._absolute(path), watch=self._kazoo_watch(watch))
        return None if stat is None else _state(stat)

    async def children(self, path: str, watch: Watch | None = None) -> tuple[str, ...]:
        """See `MetadataStore`."""
        found = await self._call(
            path, self._client.get_children_async, self._absolute(path), watch=self._kazoo_watch(watch)
        )
        return tuple(sorted(found))

    async def create(self, path: str, data: bytes = b"", *, ephemeral: bool = False, sequence: bool = False) -> str:
        """See `MetadataStore`."""
        made = await self._call(
            path,
            self._client.create_async,
            self._absolute(path),
            data,
            size=len(data),
            ephemeral=ephemeral,
            sequence=sequence,
        )
        return self._relative(made)

    async def create_root(self) -> bool:
        """See `MetadataStore`."""
        above = self._absolute("").rpartition("/")[0]
        if above:  # other programs may use it: created without an ACL of ours
            from kazoo.security import OPEN_ACL_UNSAFE

            await self._call("", self._client.ensure_path_async, above, OPEN_ACL_UNSAFE)
        try:
            await self._call("", self._client.create_async, self._absolute(""))
        except NodeExistsError:
            return False
        return True

    async def set(self, path: str, data: bytes, version: int = ANY_VERSION) -> ZnodeState:
        """See `MetadataStore`."""
        found = await self._call(
            path, self._client.set_async, self._absolute(path), data, size=len(data), version=version
        )
        return _state(found)

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        """See `MetadataStore`."""
        await self._call(path, self._client.delete_async, self._absolute(path), version=version)

    async def commit(self, changes: Sequence[Change]) -> None:
        """See `MetadataStore`."""
        from kazoo import exceptions

        transaction = self._client.transaction()
        for change in changes:
            match change:
                case Create(path, data):
                    transaction.create(self._absolute(path), data)
                case Set(path, data, version):
                    transaction.set_data(self._absolute(path), data, version)
                case Delete(path, version):
                    transaction.delete(self._absolute(path), version)
                case Check(path, version):
                    transaction.check(self._absolute(path), version)
        size = sum(_CHANGE_BYTES + len(self._absolute(change.path)) for change in changes)
        size += sum(len(change.data) for change in changes if isinstance(change, Create | Set))
        results = await self._call("", transaction.commit_async, size=size)
        of_others = (exceptions.RolledBackError, exceptions.RuntimeInconsistency)
        for change, result in zip(changes, results, strict=True):
            if isinstance(result, Exception) and not isinstance(result, of_others):
                raise self._failure(change.path, result)

    async def close(self) -> None:
        """See `MetadataStore`."""
        self._client.remove_listener(self._state_changed)
        self._timer.cancel()
        try:
            await in_thread(self._stack.close)  # also where cancelled: it waits for a second at most
        finally:
            self._closed = True
            self._state_changes.happened()
            self._places.release()  # who waits for a place is told so, and hands it to the next

    # ---- the session ---------------------------------------------------------------------------------------------------

    def _state_changed(self, state: Any) -> None:
        """Kazoo's listener; called in the thread that sends its calls, before it sends the next one."""
        if state == "CONNECTED":
            drop_wakes(self._client)
        if state == "LOST":
            self._sessions_expired += self._client.client_state == _EXPIRED
            self._in_loop(lambda: self._report_lost("the session with ZooKeeper is over"))
        self._in_loop(self._state_changes.happened)

    def _check_silence(self) -> None:
        """Report the session as lost if its timeout has passed in silence; schedule the next check.

        Where the process was stopped, it is not known yet what ZooKeeper says: if that stood still as well (a paused machine),
        the session is in force.  The next check tells: its answer has come by then.
        """
        seconds = self.session_timeout
        left = self._contact.heard + seconds - time.monotonic()
        self._asked_anew = left <= 0 and not self._asked_anew and self._loop.time() - self._timer.when() > HELD_UP
        if left <= 0 and not self._asked_anew:
            self._report_lost(f"ZooKeeper was not reached for {seconds:g} s, the timeout of the session")
        self._timer = self._loop.call_later(left if left > 0 else seconds / _CHECKS_PER_TIMEOUT, self._check_silence)

    def _report_lost(self, why: str) -> None:
        if not self._lost.done():
            self._lost.set_result(why)


@dataclass(frozen=True, slots=True)
class _KazooWatch:
    """A watch as a callback for kazoo, which keeps callbacks in sets: equal ones are called once."""

    in_loop: Callable[[Watch], None]
    watch: Watch

    def __call__(self, _event: Any) -> None:
        self.in_loop(self.watch)


def _state(stat: Any) -> ZnodeState:
    return ZnodeState(stat.version, stat.cversion, bool(stat.ephemeralOwner))
