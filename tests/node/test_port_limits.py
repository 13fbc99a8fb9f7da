"""Accepting connections: as many as allowed, the options of their sockets, and no descriptor left for another one."""

from __future__ import annotations

import logging
import os
import resource
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from tests.node.serving import LOG, LOOPS, SESSION, Peer, Serving, appends, serving, success
from waltzctl.engine.errors import ListenError
from waltzctl.engine.net.peer_limits import PortLimits
from waltzctl.engine.node.data_port import DataPort
from waltzctl.formats.wire import storage
from waltzctl.formats.wire.hello import STORAGE_CLIENT, Hello

MAX_ID = storage.MaxTransactionIdRequest(SESSION, 1, 0)
HELLO = Hello((0,), STORAGE_CLIENT).encode()


@pytest.mark.turns(8)
@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("count", [200, pytest.param(1000, marks=pytest.mark.long)])
def test_many_connections_are_served(tmp_path: Path, loop: str, count: int) -> None:
    with serving(tmp_path / "d", loop=loop) as served:
        peers = [served.connect() for _ in range(count)]
        infos = served.call(lambda: served.data.connections)
        assert len(infos) == count
        assert {info.greeting for info in infos} == {STORAGE_CLIENT}
        for number, peer in enumerate(peers):
            peer.send(*appends(number, 1, size=10))
            assert peer.receive() == success(number)
        for peer in peers:
            peer.send(storage.encode(MAX_ID) * 10)
        for peer in peers:
            assert [peer.receive().transaction_id for _ in range(10)] == [count - 1] * 10
            peer.close()
        while served.call(lambda: len(served.data.connections)):
            served.settle()


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
def test_the_newest_connection_is_refused_when_there_are_enough(
    tmp_path: Path, loop: str, tls: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with serving(tmp_path / "d", loop=loop, tls=tls, limits=PortLimits(max_connections=3)) as served:
        peers = [served.connect() for _ in range(3)]
        with Peer(served.address, hello=False) as refused:  # not even a TLS handshake
            assert refused.rest() == b""
        assert "refused, there are 3 connections already" in caplog.text
        assert all(peer.ask(MAX_ID).transaction_id == -1 for peer in peers)
        peers.pop().close()
        while served.call(lambda: len(served.data.connections)) > 2:
            served.settle()
        with served.connect() as peer:
            assert peer.ask(MAX_ID).transaction_id == -1
        for peer in peers:
            peer.close()


def accepted_socket(served: Serving) -> socket.socket:
    """A copy of the node's end of the only connection."""
    here = served.address
    for connection in psutil.Process().net_connections("tcp4"):
        if connection.laddr == here and connection.status == psutil.CONN_ESTABLISHED:
            return socket.socket(fileno=os.dup(connection.fd))
    raise AssertionError("there is no connection")


@pytest.mark.parametrize("loop", LOOPS)
def test_accepted_sockets_have_the_options_that_the_release_sets_on_its_listener_only(
    tmp_path: Path, loop: str
) -> None:
    limits = PortLimits(unacknowledged_seconds=77)
    with (
        serving(tmp_path / "d", loop=loop, limits=limits) as served,
        served.connect(),
        accepted_socket(served) as accepted,
    ):
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 77_000


@contextmanager
def no_descriptor_left() -> Iterator[None]:
    """Nothing can be opened in this process."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    held: list[int] = []
    highest = max(map(int, os.listdir("/dev/fd")))
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 1, before[1]))
        while True:
            held.append(os.open(os.devnull, os.O_RDONLY))
    except OSError:
        yield
    finally:
        for descriptor in held:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def unconnected() -> socket.socket:
    made = socket.socket()
    made.settimeout(60)
    return made


@pytest.mark.turns(8)
@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("spare", [True, False], ids=["spare", "no spare"])
def test_without_descriptors_newcomers_are_refused_or_wait_and_everybody_else_is_served(
    tmp_path: Path, loop: str, spare: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with serving(tmp_path / "d", loop=loop) as served, served.connect() as peer:
        assert peer.ask(MAX_ID).transaction_id == -1
        newcomers = [unconnected() for _ in range(5)]
        if not spare:
            served.call(served.data.give_up_spare)
        with no_descriptor_left():
            for newcomer in newcomers:
                newcomer.connect(served.address)
            if spare:
                assert [newcomer.recv(100) for newcomer in newcomers] == [b""] * 5
            peer.send(*appends(0, 3))
            assert [peer.receive() for _ in range(3)] == [success(n) for n in range(3)]
            assert served.data.listening
        if not spare:  # they were not lost: they come in as soon as there are descriptors again
            for newcomer in newcomers:
                newcomer.sendall(HELLO + storage.encode(MAX_ID))
                assert len(newcomer.recv(10)) == 10
        for newcomer in newcomers:
            newcomer.close()
        assert ("no descriptor is left" if spare else "trying again in") in caplog.text
        with served.connect() as another:
            assert another.ask(MAX_ID).transaction_id == 2


def test_a_port_that_is_taken_fails_at_once_and_leaves_nothing(tmp_path: Path) -> None:
    with serving(tmp_path / "d") as served:
        host, number = served.address
        another = served.call(lambda: DataPort(served.hosted, limits=PortLimits(), log=LOG))
        with pytest.raises(ListenError, match=f"{host}:{number}: cannot listen there: Address already in use"):
            served.run(another.start(host, number, None))
        with pytest.raises(ListenError):
            served.run(another.start("192.0.2.1", 0, None))
        assert not another.listening
        served.run(another.close())
        assert served.run(another.start(host, 0, None))[1] != number
        served.run(another.close())


def test_complaints_about_peers_do_not_fill_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with serving(tmp_path / "d") as served, caplog.at_level(logging.WARNING, LOG.name):
        for _ in range(300):
            with served.connect() as peer:
                peer.send(b"nonsense")
                assert peer.rest() == b""
        assert len(caplog.records) < 290
        assert served.connections_of_data() == 0
