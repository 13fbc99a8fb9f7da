"""Hello and what stands around it: both ports, both event loops, with and without TLS."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.node.serving import LOOPS, SESSION, WAYS, Peer, Serving, appends, header, serving, success
from waltzctl.engine.net.peer_limits import PortLimits
from waltzctl.formats.wire import admin, storage
from waltzctl.formats.wire.frame import Magic, frame, keep_alive
from waltzctl.formats.wire.hello import ADMIN_SERVER, STORAGE_CLIENT, STORAGE_SERVER, Hello

HELLO = Hello((0,), STORAGE_CLIENT).encode()


@pytest.fixture(params=WAYS)
def served(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Serving]:
    loop, tls = request.param
    with serving(tmp_path / "d", loop=loop, tls=tls) as found:
        yield found


def works(peer: Peer) -> bool:
    """Whether the peer is served."""
    answer = peer.ask(storage.MaxTransactionIdRequest(SESSION, 1, 0))
    return isinstance(answer, storage.MaxTransactionIdResponse)


def test_hello_is_sent_at_once_and_in_the_release_s_bytes(served: Serving) -> None:
    with served.connect(hello=False) as peer:
        expected = bytes.fromhex("480000 0000001e 00000001 0000 00000014") + STORAGE_SERVER.encode()
        assert peer.stream.read(len(expected)) == expected
    with served.connect_admin(hello=False) as peer:
        assert peer.hello() == Hello((0, 1), ADMIN_SERVER)


@pytest.mark.parametrize("versions", [(0,), (0, 1, 2), (9, 0, 4), (0, 0), (-3, 0)])
def test_the_common_version_is_chosen_from_any_list(served: Serving, versions: tuple[int, ...]) -> None:
    with served.connect(hello=False) as peer:
        peer.send(Hello(versions, "anybody").encode())
        peer.hello()
        assert works(peer)


def test_the_admin_port_speaks_the_highest_common_version(served: Serving) -> None:
    for versions, expected in (((0,), 0), ((0, 1), 1), ((1, 7), 1)):
        with served.connect_admin(hello=False) as peer:
            peer.send(Hello(versions, "anybody").encode())
            peer.hello()
            peer.version = expected
            answer = peer.ask(admin.AssignedPartitionStatusRequest(5))
            assert answer == admin.AssignedPartitionStatusResponse(5, ((0, True), (1, True)))


@pytest.mark.parametrize("versions", [(), (1,), (7, 8), (-1,)])
def test_without_a_common_version_the_connection_is_closed(served: Serving, versions: tuple[int, ...]) -> None:
    with served.connect(hello=False) as peer:
        peer.hello()
        peer.send(Hello(versions, "from the future").encode())
        assert peer.rest() == b""


def test_a_second_hello_closes_the_connection(served: Serving) -> None:
    with served.connect() as peer:
        peer.send(HELLO)
        assert peer.rest() == b""


def test_plain_text_instead_of_a_hello_closes_and_the_log_shows_it(
    served: Serving, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING), served.connect(hello=False) as peer:
        peer.hello()
        peer.send(b"GET /health HTTP/1.1\r\nHost: localhost\r\nAccept: */*\r\n\r\n")
        assert peer.rest() == b""
    shown = b"GET /health HTTP/1.1\r\nHost: local"[:32]
    assert shown.hex(" ") in caplog.text
    assert "GET /health HTTP/1.1..Host: loca" in caplog.text


@pytest.mark.parametrize(
    "sent",
    [
        frame(Magic.HELLO, 0, bytes.fromhex("00000001 0000 00000001 61 00")),
        frame(Magic.HELLO, 0, bytes.fromhex("00000002 0000 00000001 61")),
        frame(Magic.HELLO, 0, bytes.fromhex("ffffffff 00000000")),
        frame(Magic.HELLO, 0, bytes.fromhex("7fffffff 0000")),
        frame(Magic.HELLO, 1, HELLO[7:]),
        header(Magic.HELLO, 0, -1),
        header(Magic.HELLO, 0, 1 << 20),
        storage.encode(storage.MaxTransactionIdRequest(SESSION, 1, 0)),
    ],
    ids=["left over", "cut", "negative", "count", "version", "length", "long", "request"],
)
def test_a_hello_that_is_none_closes_the_connection(served: Serving, sent: bytes) -> None:
    with served.connect(hello=False) as peer, served.connect() as other:
        peer.hello()
        peer.send(sent)
        assert peer.rest() == b""
        assert works(other)


def test_a_hello_byte_by_byte_with_keep_alives_before_it(served: Serving) -> None:
    with served.connect(hello=False) as peer:
        for byte in keep_alive(Magic.HELLO, 0) * 2 + HELLO:
            peer.send(bytes([byte]))
            served.settle()
        peer.hello()
        assert works(peer)


def test_requests_in_the_segment_of_the_hello_are_answered(served: Serving) -> None:
    with served.connect(hello=False) as peer:
        peer.send(HELLO, *appends(0, 3))
        peer.hello()
        assert [peer.receive() for _ in range(3)] == [success(n) for n in range(3)]


def test_a_client_of_the_other_port_fails_at_its_first_message(served: Serving) -> None:
    with served.connect_admin(hello=False) as peer:
        peer.send(HELLO, storage.encode(storage.MaxTransactionIdRequest(SESSION, 1, 0)))
        peer.hello()
        assert peer.rest() == b""


@pytest.mark.parametrize("loop", LOOPS)
def test_silence_and_half_a_hello_end_after_the_stall_time(tmp_path: Path, loop: str) -> None:
    with serving(tmp_path / "d", loop=loop, limits=PortLimits(stall_seconds=0.05)) as served:
        for part in (b"", HELLO[:3], HELLO[:20]):
            with served.connect(hello=False) as peer:
                peer.hello()
                peer.send(part)
                assert peer.rest() == b""


@pytest.mark.parametrize("loop", LOOPS)
def test_a_tls_handshake_that_does_not_come_ends(tmp_path: Path, loop: str, caplog: pytest.LogCaptureFixture) -> None:
    with serving(tmp_path / "d", loop=loop, tls=True, limits=PortLimits(handshake_seconds=0.1)) as served:
        for part in (b"", HELLO):
            with Peer(served.address, hello=False) as peer:
                peer.send(part)
                peer.rest()
        told = [line for line in caplog.messages if "no connection came about" in line]
        assert any("taking longer than 0.1 seconds" in line for line in told)
        with served.connect() as peer:
            assert works(peer)
