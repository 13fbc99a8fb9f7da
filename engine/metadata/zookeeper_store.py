"""Metadata in ZooKeeper, through kazoo.

Its asynchronous calls are used, any number of them under way at a time, each with a deadline.  What the library tells from its
own threads is handed to the event loop.

A process that cannot reach ZooKeeper is not told by the library when its session is over; it learns that once it gets through
again.  Release 0.13.2 serves on until then (weakness Z5).  Here the session counts as lost when its timeout, as the ensemble
granted it, has passed since something was heard: that is not when the library finds the connection broken, for which it needs
two thirds of a timeout where packets vanish.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from waltzctl.engine.errors import DeadlineError, PeerUnreachableError, RefusedError
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
from waltzctl.engine.metadata.zookeeper_connection import AUTH_FILE_VARIABLE, AUTH_VARIABLE, Contact, connected
from waltzctl.engine.metadata.zookeeper_options import ZooKeeperOptions
from waltzctl.engine.net.futures import fail

LONGEST_REQUEST = (1 << 20) - 1
"""Bytes that ZooKeeper takes in a request unless its jute.maxbuffer says otherwise; at a longer one it closes the connection."""
_LONG_REQUEST = 1_000_000
"""From about so many bytes on that may be why a connection was lost."""
_CHANGE = 17
"""Bytes of a change among several beside its path and its data, at least."""
_LOOKS = 10
"""So many times in each timeout it is looked whether a silent ZooKeeper was heard again."""


class NotPermittedError(RefusedError):
    """The node belongs to another user than this program told ZooKeeper, if it told any."""


class ZooKeeperStore:
    """A connected store; see `MetadataStore`.  Made by `open`."""

    def __init__(self, client: Any, contact: Contact, options: ZooKeeperOptions, stack: contextlib.ExitStack) -> None:
        self._client, self._contact, self._options, self._stack = client, contact, options, stack
        self._root = options.cluster_root.rstrip("/")
        self._loop = asyncio.get_running_loop()
        self._lost: asyncio.Future[str] = self._loop.create_future()
        client.add_listener(self._state_changed)
        self._timer = self._loop.call_later(self.session_timeout, self._look_whether_heard)

    @classmethod
    async def open(cls, options: ZooKeeperOptions) -> ZooKeeperStore:
        """Connect.  Raises PeerUnreachableError, InvalidRequestError."""
        stack = contextlib.ExitStack()
        client, contact = await asyncio.to_thread(stack.enter_context, connected(options))
        return cls(client, contact, options, stack)

    @property
    def where(self) -> str:
        """As ``--metadata`` takes it."""
        return f"zk://{self._options.connect_string}{self._options.cluster_root}"

    @property
    def session_timeout(self) -> float:
        """Seconds; what the ensemble granted."""
        granted = self._contact.granted
        return self._options.session_timeout if granted is None else granted

    @property
    def lost(self) -> asyncio.Future[str]:
        """See `MetadataStore`."""
        if self._lost.done():
            self._lost = self._loop.create_future()
        return self._lost

    # ---- calls ---------------------------------------------------------------------------------------------------------

    def _at(self, path: str) -> str:
        return f"{self._root}/{path}".rstrip("/") or "/"

    def _below(self, path: str) -> str:
        return path.removeprefix(self._root).lstrip("/")

    async def _call(self, path: str, call: Callable[..., Any], *arguments: Any, size: int = 0, **named: Any) -> Any:
        """One of the library's asynchronous calls, about a node, within the deadline.  `size`: bytes that it writes."""
        from kazoo import exceptions

        answered: asyncio.Future[Any] = self._loop.create_future()

        def settle(result: Any) -> None:
            if answered.done():
                return  # it was given up
            if result.exception is not None:
                fail(answered, result.exception)
            else:
                answered.set_result(result.value)

        call(*arguments, **named).rawlink(lambda result: self._in_loop(lambda: settle(result)))
        try:
            async with asyncio.timeout(self._options.connect_timeout):
                return await answered
        except TimeoutError:
            what = f"no answer within {self._options.connect_timeout:g} s about node {self._at(path)}"
            raise DeadlineError(f"ZooKeeper at {self._options.connect_string}", what) from None
        except exceptions.KazooException as error:
            raise self._failure(path, error, size) from None

    def _failure(
        self, path: str, error: Exception, size: int = 0
    ) -> MetadataConflictError | PeerUnreachableError | NotPermittedError:
        from kazoo import exceptions

        if isinstance(error, exceptions.NoAuthError):
            return NotPermittedError(
                f"ZooKeeper at {self._options.connect_string}, node {self._at(path)}: not permitted",
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
                made = ours(f"ZooKeeper at {self._options.connect_string}", self._at(path))
                assert isinstance(made, MetadataConflictError)
                return made
        what = f"node {self._at(path)}: {type(error).__name__} {error}"
        advice = None
        if isinstance(error, exceptions.ConnectionLoss) and size >= _LONG_REQUEST:
            advice = (
                f"{size} bytes were to be written at once, and ZooKeeper closes the connection at a request of more than"
                f" {LONGEST_REQUEST} unless its jute.maxbuffer allows it: raise that at every server of the ensemble"
            )
        return PeerUnreachableError(f"ZooKeeper at {self._options.connect_string}", what.rstrip(), advice=advice)

    def _told(self, watch: Watch | None) -> Callable[[Any], None] | None:
        return None if watch is None else _Told(self._in_loop, watch)

    def _in_loop(self, call: Callable[[], None]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(call)

    async def get(self, path: str, watch: Watch | None = None) -> tuple[bytes, ZnodeState]:
        """See `MetadataStore`."""
        told = self._told(watch)
        data, stat = await self._call(path, self._client.get_async, self._at(path), watch=told)
        if told is not None:
            with contextlib.suppress(NodeMissingError):  # then the first watch has fired
                await self._call(path, self._client.get_children_async, self._at(path), watch=told)
        return bytes(data), _state(stat)

    async def exists(self, path: str, watch: Watch | None = None) -> ZnodeState | None:
        """See `MetadataStore`."""
        stat = await self._call(path, self._client.exists_async, self._at(path), watch=self._told(watch))
        return None if stat is None else _state(stat)

    async def children(self, path: str, watch: Watch | None = None) -> tuple[str, ...]:
        """See `MetadataStore`."""
        found = await self._call(path, self._client.get_children_async, self._at(path), watch=self._told(watch))
        return tuple(sorted(found))

    async def create(self, path: str, data: bytes = b"", *, ephemeral: bool = False, sequence: bool = False) -> str:
        """See `MetadataStore`."""
        made = await self._call(
            path,
            self._client.create_async,
            self._at(path),
            data,
            size=len(data),
            ephemeral=ephemeral,
            sequence=sequence,
        )
        return self._below(made)

    async def create_root(self) -> bool:
        """See `MetadataStore`."""
        above = self._at("").rpartition("/")[0]
        if above:  # what others may use as well stays open
            from kazoo.security import OPEN_ACL_UNSAFE

            await self._call("", self._client.ensure_path_async, above, OPEN_ACL_UNSAFE)
        try:
            await self._call("", self._client.create_async, self._at(""))
        except NodeExistsError:
            return False
        return True

    async def set(self, path: str, data: bytes, version: int = ANY_VERSION) -> ZnodeState:
        """See `MetadataStore`."""
        found = await self._call(path, self._client.set_async, self._at(path), data, size=len(data), version=version)
        return _state(found)

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        """See `MetadataStore`."""
        await self._call(path, self._client.delete_async, self._at(path), version=version)

    async def commit(self, changes: Sequence[Change]) -> None:
        """See `MetadataStore`."""
        from kazoo import exceptions

        transaction = self._client.transaction()
        for change in changes:
            match change:
                case Create(path, data):
                    transaction.create(self._at(path), data)
                case Set(path, data, version):
                    transaction.set_data(self._at(path), data, version)
                case Delete(path, version):
                    transaction.delete(self._at(path), version)
                case Check(path, version):
                    transaction.check(self._at(path), version)
        size = sum(_CHANGE + len(self._at(change.path)) for change in changes)
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
        await asyncio.to_thread(self._stack.close)

    # ---- the session ---------------------------------------------------------------------------------------------------

    def _state_changed(self, state: Any) -> None:
        """The library's listener: in one of its threads."""
        if state == "LOST":
            self._in_loop(lambda: self._tell_lost("the session with ZooKeeper is over"))

    def _look_whether_heard(self) -> None:
        """Tell where the session's timeout has passed in silence, and look again when it can have passed next."""
        seconds = self.session_timeout
        left = self._contact.heard + seconds - time.monotonic()
        if left <= 0:
            self._tell_lost(f"ZooKeeper was not reached for {seconds:g} s, the timeout of the session")
        self._timer = self._loop.call_later(left if left > 0 else seconds / _LOOKS, self._look_whether_heard)

    def _tell_lost(self, why: str) -> None:
        if not self._lost.done():
            self._lost.set_result(why)


@dataclass(frozen=True, slots=True)
class _Told:
    """A watch as the library takes it.  Equal ones count once in the sets in which it keeps them until they fire."""

    in_loop: Callable[[Watch], None]
    watch: Watch

    def __call__(self, _event: Any) -> None:
        self.in_loop(self.watch)


def _state(stat: Any) -> ZnodeState:
    return ZnodeState(stat.version, stat.cversion, bool(stat.ephemeralOwner))
