"""Calls while ZooKeeper cannot be reached: kazoo keeps none of them, and the event loop never waits for it."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import sys
import termios
import time
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.protocol.states import KeeperState, ZnodeStat

from waltzctl.engine.errors import DeadlineError, PeerUnreachableError
from waltzctl.engine.metadata.zookeeper_options import ZooKeeperOptions
from waltzctl.engine.metadata.zookeeper_store import AT_A_TIME, ZooKeeperStore

AT_ONCE = 100
"""Calls.  After some 280 that kazoo keeps, the loop of the test would stand still."""


class Away:
    """A client of kazoo that has lost its connection, with no thread that makes another one; the test says what becomes of it."""

    def __init__(self, seconds: float) -> None:
        self.client = KazooClient("127.0.0.1:1")
        connection = self.client._connection
        connection._read_sock, connection._write_sock = self.client.handler.create_socket_pair()
        self.client.handler.start()
        self.becomes(KeeperState.CONNECTED)
        options = ZooKeeperOptions("127.0.0.1:1", "/root", connect_timeout=seconds)
        contact: Any = SimpleNamespace(granted=60.0, heard=time.monotonic())
        self.stack = contextlib.ExitStack()
        self.stack.callback(self.client.handler.stop)
        self.stack.callback(connection._read_sock.close)
        self.stack.callback(connection._write_sock.close)
        self.store = ZooKeeperStore(self.client, contact, options, self.stack)
        self.becomes(KeeperState.CONNECTING)

    def becomes(self, state: str) -> None:
        """As kazoo's own thread tells it."""
        self.client._session_callback(state)

    @property
    def kept(self) -> int:
        """Calls that kazoo has and has not sent."""
        return len(self.client._queue)

    def answer(self) -> None:
        """To all of them: a node without data."""
        while self.client._queue:
            _, result = self.client._queue.popleft()
            result.set((b"", ZnodeStat(*[0] * 11)))

    @property
    def unread(self) -> int:
        """Bytes in kazoo's socket."""
        return int.from_bytes(
            fcntl.ioctl(self.client._connection._read_sock, termios.FIONREAD, bytes(4)), sys.byteorder
        )

    def send(self) -> None:
        """Take the calls as kazoo does when it sends them: each with a byte from its socket."""
        while self.client._queue:
            self.client._pending.append((*self.client._queue.popleft(), 1))
            self.client._connection._read_sock.recv(1)

    async def until_kept(self, count: int) -> None:
        while self.kept < count:
            await asyncio.sleep(0)


def run(test: Callable[[Away], Awaitable[None]], seconds: float = 600.0) -> None:
    async def whole() -> None:
        away = Away(seconds)
        try:
            await test(away)
        finally:
            await away.store.close()

    asyncio.run(whole())


def test_calls_that_nobody_waits_for_any_more_are_not_kept() -> None:
    """A server asks as long as ZooKeeper is away: each call was kept, and in the end the loop stood still."""

    async def test(away: Away) -> None:
        for _ in range(AT_ONCE):
            with pytest.raises(DeadlineError, match="no answer within 1e-09 s about node /root/x"):
                await away.store.get("x")
        away.becomes(KeeperState.CONNECTED)
        await asyncio.sleep(0)
        assert away.kept == 0

    run(test, 1e-9)


def test_a_call_that_is_waited_for_is_made_once_there_is_a_connection() -> None:
    async def test(away: Away) -> None:
        calls = [asyncio.ensure_future(away.store.get("x")) for _ in range(AT_ONCE)]
        await asyncio.sleep(0)
        assert away.kept == 0
        away.becomes(KeeperState.CONNECTED)
        await away.until_kept(AT_ONCE)
        away.answer()
        assert [data for data, _ in await asyncio.gather(*calls)] == [b""] * AT_ONCE

    run(test)


MANY = 250
"""Calls at once.  Without a bound some 280 of them would have the loop stand still, and with it the test."""


def test_kazoo_has_few_of_the_calls_that_are_made_at_once() -> None:
    """It is writing to a connection that is lost and does not know it yet, and reads nothing from its socket meanwhile."""

    async def test(away: Away) -> None:
        away.becomes(KeeperState.CONNECTED)
        calls = [asyncio.ensure_future(away.store.get("x")) for _ in range(MANY)]
        await away.until_kept(AT_A_TIME)
        for _ in range(3):
            await asyncio.sleep(0)
        assert away.kept == away.unread == AT_A_TIME < MANY
        away.becomes(KeeperState.CONNECTING)  # those that it has are lost, and the others wait
        lost = await asyncio.gather(*calls[:AT_A_TIME], return_exceptions=True)
        assert {type(one) for one in lost} == {PeerUnreachableError}
        assert away.kept == 0
        away.becomes(KeeperState.CONNECTED)
        await away.until_kept(AT_A_TIME)
        assert away.unread == AT_A_TIME, "and not those of the lost ones as well, once more with each loss"
        while not all(call.done() for call in calls):
            away.answer()
            await asyncio.sleep(0)
        assert [data for data, _ in await asyncio.gather(*calls[AT_A_TIME:])] == [b""] * (MANY - AT_A_TIME)

    run(test)


def test_calls_that_nobody_waits_for_any_more_count_until_kazoo_is_done_with_them() -> None:
    async def test(away: Away) -> None:
        away.becomes(KeeperState.CONNECTED)
        for _ in range(2):
            calls = [asyncio.ensure_future(away.store.get("x")) for _ in range(AT_A_TIME)]
            for _ in range(3):
                await asyncio.sleep(0)
            assert away.kept == AT_A_TIME
            for call in calls:
                call.cancel()
            await asyncio.gather(*calls, return_exceptions=True)
        away.answer()
        after = asyncio.ensure_future(away.store.get("x"))
        await away.until_kept(1)
        away.answer()
        await after

    run(test)


def test_a_call_that_kazoo_refuses_takes_no_place(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(away: Away) -> None:
        away.becomes(KeeperState.CONNECTED)
        with monkeypatch.context() as patch:
            patch.setattr(away.client, "get_async", lambda *_, **__: 1 / 0)
            for _ in range(AT_A_TIME + 1):
                with pytest.raises(ZeroDivisionError):
                    await away.store.get("x")
        after = asyncio.ensure_future(away.store.get("x"))
        await away.until_kept(1)
        away.answer()
        await after

    run(test)


def test_a_call_that_waits_for_a_place_ends_with_its_store() -> None:
    async def test(away: Away) -> None:
        away.becomes(KeeperState.CONNECTED)
        calls = [asyncio.ensure_future(away.store.get("x")) for _ in range(AT_A_TIME + 1)]
        await away.until_kept(AT_A_TIME)
        await away.store.close()
        for _ in range(5):
            await asyncio.sleep(0)
        assert [call.done() for call in calls] == [False] * AT_A_TIME + [True]
        with pytest.raises(PeerUnreachableError, match="node /root/x: ConnectionClosedError"):
            await calls[-1]
        for call in calls:
            call.cancel()

    run(test)


def test_a_call_does_not_outlast_the_session_in_which_it_began() -> None:
    """It may be one that only the holder of the session may make."""

    async def test(away: Away) -> None:
        begun = asyncio.ensure_future(away.store.set("x", b""))
        await asyncio.sleep(0)
        away.becomes(KeeperState.EXPIRED_SESSION)
        away.becomes(KeeperState.CONNECTING)
        with pytest.raises(PeerUnreachableError, match="node /root/x: SessionExpiredError"):
            await begun
        calls = asyncio.ensure_future(away.store.get("x"))  # of the next session, which has no connection either
        await asyncio.sleep(0)
        assert away.kept == 0
        away.becomes(KeeperState.CONNECTED)
        await away.until_kept(1)
        away.answer()
        await calls

    run(test)


@pytest.mark.parametrize(
    ("state", "why"), [(KeeperState.AUTH_FAILED, "AuthFailedError"), (KeeperState.CLOSED, "ConnectionClosedError")]
)
def test_a_call_is_refused_at_once_where_there_will_be_no_connection(state: str, why: str) -> None:
    async def test(away: Away) -> None:
        begun = asyncio.ensure_future(away.store.get("x"))
        await asyncio.sleep(0)
        away.becomes(state)
        for call in (begun, away.store.get("x")):
            with pytest.raises(PeerUnreachableError, match=f"node /root/x: {why}"):
                await call

    run(test)


def test_a_call_that_waits_for_a_connection_ends_with_its_store() -> None:
    async def test(away: Away) -> None:
        begun = asyncio.ensure_future(away.store.get("x"))
        await asyncio.sleep(0)
        away.stack.callback(away.becomes, KeeperState.CLOSED)
        await away.store.close()
        with pytest.raises(PeerUnreachableError, match="node /root/x"):
            await begun

    run(test)


def test_a_call_ends_with_its_store_where_kazoo_does_not_come_to_an_end() -> None:
    """It is left to a thread while it tries to connect, and its state stays as it was."""

    async def test(away: Away) -> None:
        begun = asyncio.ensure_future(away.store.get("x"))
        await asyncio.sleep(0)
        await away.store.close()
        later = asyncio.ensure_future(away.store.get("x"))
        for _ in range(5):
            await asyncio.sleep(0)
        for call in (begun, later):
            assert call.done()
            with pytest.raises(PeerUnreachableError, match="node /root/x: ConnectionClosedError"):
                await call
        assert away.kept == 0

    run(test)
