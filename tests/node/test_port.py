"""A port alone: whom it lets in, what it does without descriptors, how often it looks, and what it complains of."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import resource
import socket
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from tests.node.serving import LOG
from tests.node.unplugged import Peer
from waltzctl.engine.net import port as port_module
from waltzctl.engine.net.peer_limits import PortLimits
from waltzctl.engine.net.port import _Complaints, _text
from waltzctl.formats.wire import storage

BACK_OFF = 0.5


class Listener:
    """A listening socket that gives peers, or errors, in this order; then there is nobody."""

    def __init__(self, *gives: Any, descriptor: int = 100) -> None:
        self.gives, self.descriptor = list(gives), descriptor
        self.closed: list[Any] = []

    def accept(self) -> tuple[Any, Any]:
        found = self.gives.pop(0) if self.gives else BlockingIOError()
        if isinstance(found, Exception):
            raise found
        return SimpleNamespace(close=lambda: self.closed.append(found), fileno=lambda: self.descriptor), found

    def fileno(self) -> int:
        return 99

    def close(self) -> None:
        self.closed.append("itself")


@pytest.fixture
def port() -> Any:
    found = Peer(max_connections=3).port
    found.loop.readers = []
    found.loop.add_reader = lambda number, call, one: found.loop.readers.append((number, call, one))
    found.loop.remove_reader = lambda number: found.loop.readers.append(number)
    return found


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    found = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    caplog.clear()
    return found


def test_connections_that_come_while_somebody_looks_at_them_disturb_nobody(port: Any) -> None:
    """Metrics are read in a thread."""
    known = len(port.connections)

    class Coming:
        def info(self, _now: float) -> Any:
            port._connections[Coming()] = None
            return SimpleNamespace(connected=0.0)

    port._connections[Coming()] = None
    for more in (1, 2, 4):
        assert len(port.connections) == known + more


ONE, TWO, SIX = ("127.0.0.1", 7), ("127.0.0.1", 8), ("::1", 9, 0, 0)


def test_peers_are_let_in_up_to_the_bound_and_the_others_are_told_so(
    port: Any, caplog: pytest.LogCaptureFixture
) -> None:
    listener = Listener(ONE, TWO, SIX, ("10.0.0.1", 3))
    port._accept(listener)
    assert port.loop.begun == 2, "one was here already"
    assert listener.closed == [SIX, ("10.0.0.1", 3)]
    told = "refused, there are 3 connections already; close some, or raise max_connections"
    assert lines(caplog) == [f"data port: [::1]:9: {told}", f"data port: 10.0.0.1:3: {told}"]
    assert port._expected == 2
    assert len(port._arriving) == 2


@pytest.mark.parametrize(
    ("limit", "descriptor", "in_"),
    [(4096, 3967, True), (4096, 3968, False), (80, 69, True), (80, 70, False), (resource.RLIM_INFINITY, 1 << 30, True)],
)
def test_the_last_descriptors_are_for_files(
    port: Any, monkeypatch: pytest.MonkeyPatch, limit: int, descriptor: int, in_: bool, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (limit, limit))
    listener = Listener(ONE, descriptor=descriptor)
    port._accept(listener)
    assert (port.loop.begun, listener.closed) == ((1, []) if in_ else (0, [ONE]))
    told = "refused, the last descriptors are kept for this process's own files; raise the limit of open files"
    assert lines(caplog) == ([] if in_ else [f"data port: 127.0.0.1:7: {told}"])


@pytest.mark.parametrize(
    "error",
    [BlockingIOError(), InterruptedError(), OSError(errno.ECONNABORTED, "gone"), OSError(errno.EPERM, "filter")],
)
def test_a_peer_that_went_away_is_no_reason_to_wait(
    port: Any, error: OSError, caplog: pytest.LogCaptureFixture
) -> None:
    port._accept(Listener(error, ONE))
    assert port.loop.begun == 0
    assert port.loop.readers == []
    assert port.loop.planned == []
    told = error.errno in (errno.ECONNABORTED, errno.EPERM)
    assert lines(caplog) == ([f"data port: a connection could not be accepted: {error}"] if told else [])


@pytest.mark.parametrize(
    ("number", "spare"),
    [
        (errno.EMFILE, False),
        (errno.ENFILE, False),
        (errno.ENOBUFS, False),
        (errno.ENOMEM, False),
        (errno.ENOBUFS, True),
    ],
)
def test_where_the_system_is_short_of_something_it_is_tried_again_later(
    port: Any, number: int, spare: bool, caplog: pytest.LogCaptureFixture
) -> None:
    if spare:
        port._spare = os.open(os.devnull, os.O_RDONLY)
    error = OSError(number, "short")
    listener = Listener(error, ONE)
    port._accept(listener)
    assert port.loop.readers == [99], "nobody is told of newcomers meanwhile"
    [(delay, call, arguments)] = port.loop.planned
    assert delay == BACK_OFF
    assert lines(caplog) == [f"data port: connections cannot be accepted: {error}; trying again in 0.5 s"]
    call(*arguments)
    assert port.loop.readers == [99], "it listens no more"
    port._listeners.append(listener)
    call(*arguments)
    assert port.loop.readers == [99, (99, port._accept, listener)]
    assert port._spare is not None
    port.give_up_spare()


@pytest.mark.parametrize("again", [ONE, OSError(errno.EMFILE, "still")])
def test_the_spare_descriptor_is_for_sending_a_newcomer_away(
    port: Any, again: Any, caplog: pytest.LogCaptureFixture
) -> None:
    port._spare = spare = os.open(os.devnull, os.O_RDONLY)
    error = OSError(errno.EMFILE, "no more")
    listener = Listener(error, again, TWO)
    port._accept(listener)
    assert port._spare is not None
    assert port.loop.begun == 0
    assert listener.gives == [TWO], "it is asked for again by the loop"
    if again is ONE:
        assert listener.closed == [ONE]
        assert lines(caplog) == [
            f"data port: 127.0.0.1:7: refused, no descriptor is left: {error}; raise the limit of open files"
        ]
    else:
        assert [delay for delay, _, _ in port.loop.planned] == [BACK_OFF]
    port.give_up_spare()
    assert port._spare is None
    with pytest.raises(OSError, match="Bad file"):
        os.fstat(spare)


@pytest.mark.parametrize("nobody", [BlockingIOError(), InterruptedError()])
def test_the_last_descriptor_is_given_to_somebody_without_complaint(
    port: Any, nobody: OSError, caplog: pytest.LogCaptureFixture
) -> None:
    """Accepting asks the system for a descriptor before it looks whether somebody is there."""
    port._spare = os.open(os.devnull, os.O_RDONLY)
    port._accept(Listener(OSError(errno.EMFILE, "no more"), nobody))
    assert port._spare is not None
    port.give_up_spare()
    assert (port.loop.readers, port.loop.planned, lines(caplog)) == ([], [], [])


def test_a_spare_descriptor_that_is_not_there_is_done_without(port: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left(*_: object) -> int:
        raise OSError(errno.EMFILE, "none")

    monkeypatch.setattr(port_module.os, "open", none_left)
    listener = Listener()
    port._listeners.append(listener)
    port._accept_again(listener)
    assert port._spare is None
    port.give_up_spare()


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (TimeoutError(), "no connection came about: TimeoutError"),
        (OSError("no certificate"), "no connection came about: no certificate"),
        (ConnectionAbortedError("late"), "no connection came about: late"),
        (ConnectionResetError("gone"), None),
        (EOFError(), None),
        (OverflowError("of ours"), "no connection came about: of ours"),
    ],
)
def test_a_peer_of_which_no_connection_comes_is_let_go_and_counts_no_longer(
    port: Any, error: Exception, told: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever went away without a word is no reason to complain."""
    accepted = SimpleNamespace(closed=0, options=[], family=socket.AF_UNIX, setblocking=lambda _: None)

    def close() -> None:
        accepted.closed += 1

    async def refused(make: Callable[[], Any], given: Any, **words: Any) -> None:
        assert (given, make().made) == (accepted, False)
        assert words == {"ssl": "context", "ssl_handshake_timeout": 30.0, "ssl_shutdown_timeout": 2.0}
        raise error

    accepted.close = close
    port.loop.connect_accepted_socket = refused
    port._ssl = "context"
    port._expected = 1
    asyncio.run(port._welcome(accepted, "peer"))
    assert (accepted.closed, port._expected) == (1, 0)
    assert lines(caplog) == ([] if told is None else [f"data port: peer: {told}"])


@pytest.mark.parametrize(
    ("seconds", "milliseconds"),
    [
        (0.0001, 1),
        (0.001, 1),
        (0.002, 2),
        (2**31 / 1000 - 0.001, 2**31 - 1),
        (2**31 / 1000, 2**31 - 1),
        (30 * 86400.0, 2**31 - 1),
    ],
)
def test_any_time_can_be_set_in_which_nothing_is_acknowledged(port: Any, seconds: float, milliseconds: int) -> None:
    """The system takes a C int of milliseconds; 0 would be for ever."""
    PortLimits(unacknowledged_seconds=seconds).check()
    port._limits = PortLimits(unacknowledged_seconds=seconds)
    with socket.socket() as accepted:
        port._set_options(accepted)
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == milliseconds


def test_whoever_has_arrived_is_no_longer_waited_for(port: Any) -> None:
    """Else a node would remember everybody who ever came."""
    calls: list[Callable[[object], None]] = []

    class Arriving:
        add_done_callback = staticmethod(calls.append)

    task = Arriving()
    port.loop.create_task = lambda work: work.close() or task
    port._accept(Listener(ONE))
    assert port._arriving == {task}
    calls[0](task)
    assert port._arriving == set()


def test_many_newcomers_are_let_in_in_portions(port: Any) -> None:
    port._limits = SimpleNamespace(max_connections=1000)
    listener = Listener(*(("h", number) for number in range(100)))
    port._accept(listener)
    assert port.loop.begun == port_module._ACCEPTED_AT_ONCE == 100 - len(listener.gives)


def test_who_listens_no_more_holds_neither_sockets_nor_the_spare(port: Any) -> None:
    listener = Listener()
    port._listeners.append(listener)
    port._spare = os.open(os.devnull, os.O_RDONLY)
    assert port.listening
    port._stop_listening()
    assert (listener.closed, port.loop.readers, port._spare, port.listening) == (["itself"], [99], None, False)


@pytest.mark.parametrize(
    ("address", "text"),
    [(ONE, "127.0.0.1:7"), (SIX, "[::1]:9"), ("/run/x", "/run/x"), (b"", "b''"), (("only",), "('only',)")],
)
def test_how_peers_are_called(address: object, text: str) -> None:
    assert _text(address) == text


# ---- the clock ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("times", "delay"),
    [
        ((60.0, 1500.0, 60.0, 60.0), 1.0), ((2.0, 9.0, 9.0, 9.0), 0.5), ((9.0, 2.0, 9.0, 9.0), 0.5), ((9.0, 9.0, 2.0, 9.0), 0.5),
        ((9.0, 9.0, 9.0, 2.0), 0.5), ((0.02, 9.0, 9.0, 9.0), 0.01),
    ],
)  # fmt: skip
def test_it_looks_four_times_in_the_shortest_of_its_times(times: tuple[float, ...], delay: float) -> None:
    names = ("keep_alive_seconds", "idle_seconds", "stall_seconds", "unread_seconds")
    port = Peer(**dict(zip(names, times, strict=True))).port
    port.loop.now += 0.001
    port._tick()
    assert [(found, call) for found, call, _ in port.loop.planned] == [(delay, port._tick)]


def test_each_look_is_at_every_connection_and_sends_what_is_there() -> None:
    peer = Peer()
    other = peer.another()
    seen: list[tuple[Any, float]] = []
    for one in (peer, other):
        one.connection.tick = lambda now, one=one: (seen.append((one, now)), one.connection.answer(b"x"))  # type: ignore[misc,method-assign]
    peer.clock.now += 3
    peer.port._tick()
    assert {now for _, now in seen} == {peer.clock.now}
    assert [one.wire.written[-1] for one, _ in seen] == [b"x", b"x"]
    assert len(seen) == 2


@pytest.mark.parametrize("what", ["a frame", "a long frame", "its Hello", "answers", "nothing"])
def test_the_time_for_which_the_process_was_stopped_is_not_the_peer_s(what: str) -> None:
    """Behind SIGCONT the loop comes to this timer before it reads what was sent meanwhile; the peer has the rest of its time."""
    peer = Peer(greeted=what != "its Hello", stall_seconds=10.0, idle_seconds=10.0, unread_seconds=10.0)
    peer.port._tick()
    if what == "answers":
        peer.wire.unread = 5
        peer.connection._write(bytes(5))
    elif what == "a long frame":
        peer.announce(1 << 20, storage.AppendRequest.TYPE)
    elif what != "nothing":
        peer.send(b"H\0" if what == "its Hello" else b"S\0")
    for later, ended in ((1, False), (1000, False), (1, False), (1, False), (8, True)):
        for _ in range(later if later < 1000 else 1):
            peer.clock.now += 1 if later < 1000 else later
            peer.port._tick()
        assert (peer.wire.closed or peer.wire.aborted) == ended, later


def test_water_marks_follow_the_number_of_connections_in_steps() -> None:
    """Each is told when the share has doubled or halved, and no more often."""
    peer = Peer(output=1 << 20, connection_output=1 << 20)
    peers = [peer]
    marks = [peer.wire.marks]
    for _ in range(4):
        peers.append(peer.another())
        marks.append(peer.wire.marks)
    full = (1 << 20, 1 << 18)
    half = (1 << 19, 1 << 17)
    fifth = (1 << 18, 1 << 16)
    assert marks == [full, half, half, fifth, fifth]
    assert [one.wire.marks for one in peers] == [fifth] * 5
    for one in peers[1:]:
        one.connection.connection_lost(None)
    assert peer.wire.marks == fifth
    peer.port._tick()
    assert peer.wire.marks == full


def test_connections_are_told_the_oldest_first_and_can_all_be_ended() -> None:
    peer = Peer()
    for _ in range(3):
        peer.clock.now += 1
        other = peer.another()
    assert [info.connected for info in peer.port.connections] == [3.0, 2.0, 1.0, 0.0]
    peer.port.disconnect()
    assert peer.wire.closed
    assert other.wire.closed
    assert peer.port._expected == 0, "each was let in before, and counts once"


# ---- the end --------------------------------------------------------------------------------------------------------------


class Going:
    """A port that can be drained: its listener, and one connection with a request under way."""

    def __init__(self) -> None:
        self.peer = Peer()
        self.port = self.peer.port
        self.port.loop.remove_reader = lambda _: None
        self.port._listeners.append(Listener())
        self.port._timer = SimpleNamespace(cancel=lambda: self.cancelled.append("timer"))
        self.cancelled: list[str] = []
        self.peer.connection.begin(1, 10)

    def answered(self) -> None:
        self.peer.connection.done(1, 10)
        assert self.peer.wire.closed
        self.peer.connection.connection_lost(None)


def test_draining_accepts_nobody_and_ends_with_the_last_answer() -> None:
    going = Going()
    going.port._empty.set()  # there was nobody before

    async def drain() -> None:
        draining = asyncio.ensure_future(going.port.drain(60.0))
        for _ in range(10):
            await asyncio.sleep(0)
        assert not going.port.listening
        assert not draining.done()
        assert not going.peer.wire.aborted
        going.answered()
        await draining

    asyncio.run(drain())
    assert going.cancelled == ["timer"]
    assert not going.peer.wire.aborted


@pytest.mark.parametrize("later", [False, True])
def test_closing_ends_who_is_about_to_connect_and_looks_no_more(later: bool) -> None:
    going = Going()
    ended: list[str] = []

    async def shaking_hands() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            await asyncio.sleep(0)
            ended.append("hands")

    async def close() -> None:
        going.port._arriving.add(asyncio.ensure_future(shaking_hands()))
        await asyncio.sleep(0)
        loop, lost = asyncio.get_running_loop(), going.peer.connection.connection_lost
        going.peer.wire.abort = lambda: loop.call_later(0.01, lost, None) if later else lost(None)  # type: ignore[method-assign]
        await going.port.close()
        assert ended == ["hands"]
        assert going.port.connections == (), "it waits until they are gone"

    asyncio.run(close())
    assert going.cancelled == ["timer"]


# ---- complaints ---------------------------------------------------------------------------------------------------------


def test_so_many_complaints_a_second_and_those_left_out_are_counted(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now = [50.0]
    monkeypatch.setattr(port_module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    complaints = _Complaints(LOG)

    def complain(count: int) -> int:
        for _ in range(count):
            complaints.write("nonsense")
        found = lines(caplog)
        assert {*found} <= {
            "nonsense",
            *(line for line in found if line.endswith("complaints about peers were left out")),
        }
        return found.count("nonsense")

    assert complain(103) == 100
    now[0] += 0.0625
    assert complain(1) == 0
    now[0] += 0.0625
    complaints.write("again")
    assert lines(caplog) == ["4 complaints about peers were left out", "again"]
    complaints.write("again")
    assert "again" not in lines(caplog)
    now[0] += 0.1
    complaints.write("at last")
    assert lines(caplog) == ["1 complaints about peers were left out", "at last"], "each is counted once"
    now[0] += 2.0
    assert complain(30) == 20
    now[0] += 1000.0
    assert complain(200) == 100, "never more than at the beginning"


def test_whoever_is_let_in_or_gone_is_counted_as_such() -> None:
    peer = Peer()
    emptied: list[int] = []
    peer.port._empty = SimpleNamespace(set=lambda: emptied.append(1))
    other = peer.another()
    call: Callable[[Any], None] = peer.port.remove
    call(peer.connection)
    assert emptied == []
    call(other.connection)
    assert emptied == [1]


def test_who_is_gone_is_not_sent_anything_and_what_an_answer_gives_rise_to_is_sent_at_once() -> None:
    peer = Peer()
    other = peer.another()
    peer.connection.answer(b"one")
    other.connection.answer(b"two")
    peer.port.remove(other.connection)
    sent: list[str] = []
    other.connection.send = lambda: sent.append("to nobody")  # type: ignore[method-assign]
    first = peer.connection.send

    def and_more() -> None:
        first()
        if not sent:
            sent.append("more")
            peer.connection.answer(b"more")

    peer.connection.send = and_more  # type: ignore[method-assign]
    peer.port._send()
    assert sent == ["more"]
    assert peer.wire.written[-2:] == [b"one", b"more"]


@pytest.mark.parametrize("drains", [True, False])
def test_an_end_that_is_cancelled_closes_everything_all_the_same(drains: bool) -> None:
    """Its connections stayed, and it went on to look after them."""
    going = Going()

    async def end() -> None:
        ending = asyncio.ensure_future(going.port.drain(60.0) if drains else going.port.close())
        for _ in range(10):
            await asyncio.sleep(0)
        assert not ending.done()
        ending.cancel()
        for _ in range(10):
            await asyncio.sleep(0)
        assert going.peer.wire.aborted
        going.peer.connection.connection_lost(None)
        await asyncio.wait([ending])
        assert ending.cancelled()

    asyncio.run(end())
    assert going.cancelled == ["timer"]
