"""A host with several addresses is reached by the one that answers, whichever it is."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from tests.client.peers import ADMIN_HELLO, scripted, until_closed
from waltzctl.engine.client.admin_client import AdminClient
from waltzctl.engine.errors import DeadlineError, PeerUnreachableError
from waltzctl.event_loop import loop_factory

Place = tuple[str, int]


@contextlib.contextmanager
def silent() -> Iterator[Place]:
    """An address at which nobody answers: the queue of its connections is full, and the system drops what comes."""
    with contextlib.ExitStack() as kept:
        listener = kept.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(4):
            one = kept.enter_context(socket.socket())
            one.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                one.connect(listener.getsockname())
        yield listener.getsockname()


def resolving(places: list[Place], monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.get_running_loop()
    real = loop.getaddrinfo

    async def found(host: str, *given: Any, **named: Any) -> list[Any]:
        if host != "several":  # uvloop asks about addresses, too
            return await real(host, *given, **named)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", place) for place in places]

    monkeypatch.setattr(loop, "getaddrinfo", found)


def closed() -> Place:
    """An address at which connections are refused."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        place: Place = one.getsockname()
        return place


@pytest.mark.turns(8)
@pytest.mark.parametrize("dead", ["silent", "refusing", "both"])
@pytest.mark.parametrize("with_uvloop", [False, True], ids=["asyncio", "uvloop"])
def test_a_dead_address_in_front_of_one_that_answers_costs_a_moment(
    dead: str, with_uvloop: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def greets(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(ADMIN_HELLO)
        await until_closed(reader)

    async def work() -> None:
        with silent() as first:
            async with scripted(greets) as peer:
                before = {"silent": [first], "refusing": [closed()], "both": [closed(), first]}[dead]
                resolving([*before, (peer.host, peer.port)], monkeypatch)
                async with await AdminClient.connect("several", 1, ssl_context=None, timeout=5):
                    pass

    with asyncio.Runner(loop_factory=loop_factory(with_uvloop)) as runner:
        runner.run(work())


def test_the_error_is_that_of_the_first_address(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        resolving([closed(), closed()], monkeypatch)
        with pytest.raises(PeerUnreachableError, match=r"several:1.*connection refused"):
            await AdminClient.connect("several", 1, ssl_context=None, timeout=5)

    asyncio.run(work())


def test_attempts_that_nobody_waits_for_any_more_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever gives up before any address answered leaves no socket behind."""

    async def work() -> None:
        with silent() as first, silent() as second:
            before = len(os.listdir("/proc/self/fd"))
            resolving([first, second], monkeypatch)
            with pytest.raises(DeadlineError):
                await AdminClient.connect("several", 1, ssl_context=None, timeout=0.5)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert len(os.listdir("/proc/self/fd")) == before

    asyncio.run(work())
