"""Where a port listens: every address of this machine without a host, one port number for all of them."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import re
import socket
from pathlib import Path
from typing import Any

import pytest

from tests.reserved_ports import reserved_ports
from waltzctl.engine.errors import ListenError
from waltzctl.engine.net import port as port_module
from waltzctl.engine.net.connection import Connection
from waltzctl.engine.net.http_port import HttpPort
from waltzctl.engine.net.peer_limits import PortLimits
from waltzctl.engine.net.port import Port
from waltzctl.event_loop import loop_factory


class Deaf(Port):
    """Nobody gets as far as a connection."""

    def _connection(self, peer: str) -> Connection:
        raise AssertionError(peer)


def addresses(host: str, port: int = 0) -> tuple[tuple[str, int], list[tuple[str, int]]]:
    """What `start` answers, and the addresses of all listening sockets."""

    async def listen() -> tuple[tuple[str, int], list[tuple[str, int]]]:
        one = Deaf(limits=PortLimits(), log=logging.getLogger("test"), memory=1 << 20)
        try:
            first = await one.start(host, port, None)
            assert one.listening
            names = [found.getsockname()[:2] for found in one._listeners]
        finally:
            await one.close()
        assert not one.listening
        return first, names

    return asyncio.run(listen())


def test_without_a_host_it_is_every_address() -> None:
    first, found = addresses("")
    assert first == found[0]
    assert {host for host, _ in found} <= {"0.0.0.0", "::"}
    assert "0.0.0.0" in {host for host, _ in found}
    assert len({port for _, port in found}) == 1, "one port number for all"
    assert first[1] > 0


def test_of_a_host_it_is_that_one() -> None:
    first, found = addresses("127.0.0.1")
    assert found == [first]
    assert first[0] == "127.0.0.1"


@pytest.mark.parametrize("host", ["10.0.0..7", ".example.com"])
@pytest.mark.parametrize("port", [0, 1])
def test_what_can_be_no_host_is_an_error_and_nothing_listens(host: str, port: int) -> None:
    with pytest.raises(ListenError, match=f"{re.escape(host)}:{port}: cannot listen there: .*label empty") as caught:
        addresses(host, port)
    assert caught.value.errno is None

    async def look() -> Any:
        raise AssertionError

    http = HttpPort(
        look, read=list, collect=lambda *_: pytest.fail("nobody asks"), version="", log=logging.getLogger("test")
    )
    with pytest.raises(ListenError, match="label empty"):
        asyncio.run(http.start(host, port))
    assert not http.listening


def test_a_port_that_is_taken_is_an_error_and_nothing_listens() -> None:
    (number,) = reserved_ports(1)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", number))
        taken.listen()
        with pytest.raises(ListenError, match=str(number)):
            addresses("127.0.0.1", number)
    assert addresses("127.0.0.1", number)[0] == ("127.0.0.1", number)


def test_where_one_of_several_addresses_cannot_be_had_none_is_listened_at(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[socket.socket] = []
    listen = port_module._listen

    def second_fails(*arguments: Any) -> socket.socket:
        if made:
            raise OSError(98, "in use")
        made.append(listen(*arguments))
        return made[0]

    async def two(*_: object, **__: object) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (f"127.0.0.{last}", 0)) for last in (1, 2)]

    async def start() -> None:
        one = Deaf(limits=PortLimits(), log=logging.getLogger("test"), memory=1 << 20)
        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", two)
        with pytest.raises(ListenError):
            await one.start("two", 0, None)
        assert not one.listening

    monkeypatch.setattr(port_module, "_listen", second_fails)
    asyncio.run(start())
    assert made[0].fileno() == -1


def test_the_loopback_address_of_ipv6_is_listened_at_where_the_machine_has_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The C library does not find it there if it is to leave out what the machine does not have."""
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6")
    real = socket.getaddrinfo

    def found(host: Any, port: Any, family: int = 0, type: int = 0, proto: int = 0, flags: int = 0) -> Any:  # noqa: A002
        if host == "::1" and flags & socket.AI_ADDRCONFIG:
            raise socket.gaierror(socket.EAI_ADDRFAMILY, "Address family for hostname not supported")
        return real(host, port, family, type, proto, flags)

    async def work() -> str:
        http = HttpPort(
            lambda: pytest.fail("nobody"), read=list, collect=lambda *_: pytest.fail("nobody"), version="1",
            log=logging.getLogger("test"),
        )  # type: ignore[type-var]  # fmt: skip
        host, _ = await http.start("::1", 0)
        await http.close()
        return host

    monkeypatch.setattr(socket, "getaddrinfo", found)
    assert addresses("::1")[0][0] == "::1"
    assert asyncio.run(work()) == "::1"


def link_local() -> str:
    """A link-local address of this machine, with its zone."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/net/if_inet6").read_text().splitlines():
            digits, _, _, scope, _, name = line.split()
            if scope == "20":  # link-local
                return f"{ipaddress.IPv6Address(bytes.fromhex(digits))}%{name}"
    pytest.skip("this machine has no link-local address")


@pytest.mark.parametrize("with_uvloop", [False, True], ids=["asyncio", "uvloop"])
def test_an_address_with_a_zone_is_listened_at_and_told_with_it(with_uvloop: bool) -> None:
    async def work(host: str) -> None:
        one = Deaf(limits=PortLimits(), log=logging.getLogger("test"), memory=1 << 20)
        http = HttpPort(
            lambda: pytest.fail("nobody"), read=list, collect=lambda *_: pytest.fail("nobody"), version="1",
            log=logging.getLogger("test"),
        )  # type: ignore[type-var]  # fmt: skip
        for port in (one.start(host, 0, None), http.start(host, 0)):
            assert (await port)[0] == host
        await one.close()
        await http.close()

    with asyncio.Runner(loop_factory=loop_factory(with_uvloop)) as runner:
        runner.run(work(link_local()))


def test_whoever_starts_again_has_its_port_while_connections_of_before_still_end() -> None:
    (number,) = reserved_ports(1)
    with socket.socket() as before:
        before.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        before.bind(("127.0.0.1", number))
        before.listen()
        with socket.create_connection(("127.0.0.1", number)) as peer:
            accepted, _ = before.accept()
            accepted.close()  # whoever ends first waits for what may still arrive
            assert peer.recv(1) == b""
    assert addresses("127.0.0.1", number)[0] == ("127.0.0.1", number)
