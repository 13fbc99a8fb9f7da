"""A connection alone: its greeting, big frames, when it reads and when it does not, what it sends, and how it ends."""

from __future__ import annotations

import logging
import socket
import struct
import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from tests.node.serving import SESSION, appends
from tests.node.unplugged import Peer, Wire
from waltzctl.engine.net import connection, lingering_close
from waltzctl.engine.net.connection import HEADER, OVERHEAD, Pause
from waltzctl.engine.net.port import ConnectionInfo
from waltzctl.formats.wire import storage
from waltzctl.formats.wire.frame import FRAME_HEADER, Magic, frame, keep_alive
from waltzctl.formats.wire.hello import STORAGE_CLIENT, STORAGE_SERVER, Hello

KEEP_ALIVE = keep_alive(Magic.STORAGE, 0)
HELLO = Hello((0,), STORAGE_CLIENT).encode()


class Partition:
    """Takes everything."""

    def __init__(self) -> None:
        self.taken: list[Any] = []

    def submit(self, item: Any, together: list[Any] | None = None) -> Any:
        from waltzctl.engine.node.partition_service import Admission

        self.taken.append(item)
        return Admission.ACCEPTED


def a_peer(*, greeted: bool = True, **limits: Any) -> tuple[Peer, Partition]:
    partition = Partition()
    peer = Peer(greeted=greeted, hosted=SimpleNamespace(service=lambda _: partition), **limits)
    return peer, partition


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    found = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    caplog.clear()
    return found


def shown(data: bytes) -> str:
    """Bytes as a refusal shows them."""
    return f"it begins with {data.hex(' ')} ({''.join(chr(byte) if 32 <= byte < 127 else '.' for byte in data)})"


# ---- greeting -----------------------------------------------------------------------------------------------------------


def test_hello_is_said_at_once_and_the_peer_s_is_noted() -> None:
    peer, _ = a_peer(greeted=False, connection_output=8000)
    assert peer.wire.written == [Hello((0,), STORAGE_SERVER).encode()]
    assert peer.wire.marks == (8000, 2000)
    assert peer.connection.made
    assert peer.port.connections == (ConnectionInfo("peer", "", 0.0, 0, 0, 0, False),)
    peer.clock.now += 7
    peer.wire.unread = 30
    peer.send(HELLO)
    peer.connection.begin(2, 50)
    peer.connection._pause(Pause.UNDER_WAY)
    peer.connection._wrote()
    assert peer.port.connections == (ConnectionInfo("peer", STORAGE_CLIENT, 7.0, 2, 50, 30, True),)


def test_a_connection_is_as_old_as_its_handshake_is_done() -> None:
    """What TLS took was not the peer's time to greet."""
    peer, _ = a_peer(greeted=False, stall_seconds=10.0)
    late, wire = peer.port._connection("late"), Wire()
    peer.clock.now += 50
    late.connection_made(wire)
    assert late.info(peer.clock.now).connected == 0.0
    late.tick(peer.clock.now + 9)
    assert not wire.closed


@pytest.mark.parametrize("cut", range(1, len(HELLO) + 8))
def test_a_hello_in_two_pieces_behind_a_keep_alive(cut: int) -> None:
    peer, _ = a_peer(greeted=False)
    stream = keep_alive(Magic.HELLO, 0) + HELLO
    peer.send(stream[:cut])
    assert (peer.connection.version is not None) == (cut >= len(stream))
    assert len(peer.connection.get_buffer(-1)) == peer.port.chunk
    peer.send(stream[cut:])
    assert (peer.connection.version, peer.wire.closed) == (0, False)


def test_of_keep_alives_in_front_of_a_hello_nothing_is_kept() -> None:
    """Whoever sends them without end takes no memory."""
    peer, _ = a_peer(greeted=False)
    peer.send(keep_alive(Magic.HELLO, 0) * 3 + HELLO[:3])
    assert bytes(peer.connection._partial_frame) == HELLO[:3]


def test_what_stands_behind_the_hello_is_executed() -> None:
    peer, partition = a_peer(greeted=False)
    request = storage.MaxTransactionIdRequest(SESSION, 3, 0)
    peer.send(HELLO + storage.encode(request) + b"S\0")
    assert [item.message for item in partition.taken] == [request]
    assert bytes(peer.connection._partial_frame) == b"S\0"


@pytest.mark.parametrize(
    ("sent", "why"),
    [
        (frame(Magic.STORAGE, 0, b"abc"), f"a Hello was expected, not magic 0x{Magic.STORAGE:02x} and version 0"),
        (frame(Magic.HELLO, 1, b"abc"), f"a Hello was expected, not magic 0x{Magic.HELLO:02x} and version 1"),
        (
            b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03",
            "a Hello was expected, and the peer speaks TLS, which this port is told not to",
        ),
        (FRAME_HEADER.struct.pack(Magic.HELLO, 0, 4097), "a Hello of 4097 bytes; 4096 are the longest here"),
        (FRAME_HEADER.struct.pack(Magic.HELLO, 0, -1), "a Hello of -1 bytes; 4096 are the longest here"),
    ],
)
def test_what_is_no_hello_ends_the_connection_and_is_shown(
    sent: bytes, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    peer, partition = a_peer(greeted=False)
    peer.send(sent + HELLO + storage.encode(storage.MaxTransactionIdRequest(SESSION, 3, 0)))
    [line] = lines(caplog)
    assert line.startswith(f"data port: peer: closed: {why}; it begins with {sent[:10].hex(' ')}")
    assert len(line.partition("begins with ")[2].partition(" (")[0].split()) == 32
    assert (peer.wire.closed, peer.connection.version, partition.taken) == (True, None, [])


def test_a_keep_alive_in_front_is_not_shown_with_what_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    peer, _ = a_peer(greeted=False)
    peer.send(keep_alive(Magic.HELLO, 0) + b"GET / HTTP/1.1\r\n")
    [line] = lines(caplog)
    assert line.endswith(shown(b"GET / HTTP/1.1\r\n"))


def test_what_is_refused_is_shown_with_what_can_be_printed(caplog: pytest.LogCaptureFixture) -> None:
    peer, _ = a_peer(greeted=False)
    peer.send(b"GET \x1f\x20\x7e\x7f\x80")
    [line] = lines(caplog)
    assert line.endswith("it begins with 47 45 54 20 1f 20 7e 7f 80 (GET . ~..)")


def test_versions_without_a_common_one_are_told(caplog: pytest.LogCaptureFixture) -> None:
    peer, _ = a_peer(greeted=False)
    hello = Hello((3, 4), "somebody").encode()
    peer.send(hello)
    assert lines(caplog) == [
        f"data port: peer: closed: no common version: [3, 4] there ('somebody'), [0] here; {shown(hello[HEADER:][:32])}"
    ]
    assert peer.wire.closed


def test_a_hello_that_cannot_be_decoded_is_told(caplog: pytest.LogCaptureFixture) -> None:
    peer, _ = a_peer(greeted=False)
    peer.send(frame(Magic.HELLO, 0, b"\0\0"))
    [line] = lines(caplog)
    assert line.startswith("data port: peer: closed: a corrupted Hello: ")
    assert line.endswith(shown(b"\0\0"))
    assert peer.wire.closed


# ---- frames in pieces, and big ones -------------------------------------------------------------------------------------


def test_the_rest_of_a_frame_is_kept_and_nothing_else() -> None:
    peer, partition = a_peer()
    frames = appends(0, 3, size=20)
    peer.send(frames[0] + frames[1][:30])
    assert bytes(peer.connection._partial_frame) == frames[1][:30]
    peer.send(frames[1][30:])
    assert bytes(peer.connection._partial_frame) == b""
    peer.send(frames[2])
    assert len(partition.taken) == 3


@pytest.mark.parametrize("first", [HEADER, HEADER + 1, 500])
def test_a_big_frame_gets_a_buffer_of_its_own_when_there_is_memory(first: int) -> None:
    """Not before its first byte behind the header says that it may be so long."""
    peer, partition = a_peer(big_frame=1000, memory=5000, max_body=5000)
    [big] = appends(0, 1, size=2000)
    peer.send(big[:first])
    assert peer.port.budget.used == (len(big) if first > HEADER else 0)
    peer.send(big[first : first + 100])
    assert peer.port.budget.used == len(big)
    assert len(peer.connection.get_buffer(-1)) == len(big) - first - 100
    assert not peer.connection._partial_frame
    peer.send(big[first + 100 :])
    assert len(partition.taken) == 1
    assert partition.taken[0].buffer == big
    assert peer.port.budget.used == len(big) - HEADER + OVERHEAD
    peer.send(appends(1, 1)[0])
    assert len(partition.taken) == 2


def test_big_frames_wait_for_memory_and_read_on_in_their_turn() -> None:
    peer, _ = a_peer(big_frame=1000, memory=4000, max_body=4000)
    other, third = peer.another(), peer.another()
    [big] = appends(0, 1, size=2000)
    for one in (peer, other, third):
        one.send(big[:50])
    assert [one.wire.reading for one in (peer, other, third)] == [True, False, False]
    assert bytes(other.connection._partial_frame) == big[:50]
    assert peer.port.budget.used == len(big)
    other.clock.now += 100
    peer.connection.connection_lost(None)
    assert [one.wire.reading for one in (other, third)] == [True, False]
    assert peer.port.budget.used == len(big)
    other.connection.tick(other.clock.now + other.port.limits.stall_seconds)
    assert not other.wire.closed, "the silence was ours"
    other.connection.close()
    assert peer.port.budget.used == len(big)
    assert third.wire.reading
    third.connection.abort()
    assert peer.port.budget.used == 0


def test_a_frame_that_takes_all_the_memory_there_is_is_read_to_its_end() -> None:
    """It must not wait for the memory that it holds itself."""
    [big] = appends(0, 1, size=2000)
    peer, partition = a_peer(big_frame=1000, memory=len(big), max_body=len(big))
    other = peer.another()
    other.connection.begin(1, peer.port.budget.kept - OVERHEAD)
    peer.send(big[:500])
    other.send(KEEP_ALIVE)
    assert (peer.wire.reading, other.wire.reading) == (True, False)
    peer.send(big[500:])
    assert [item.buffer for item in partition.taken] == [big]


@pytest.mark.parametrize("end", ["closed", "aborted", "lost", "refused"])
@pytest.mark.parametrize("frame", [False, True], ids=["crowded", "big frame"])
def test_who_ends_while_it_waits_for_memory_leaves_the_line(end: str, frame: bool) -> None:
    peer, _ = a_peer(big_frame=1000, memory=3000, max_body=3000)
    other = peer.another()
    peer.connection.begin(1, 3000)
    other.send(appends(0, 1, size=2000)[0][:100] if frame else KEEP_ALIVE)
    assert (peer.port.budget.waiting, other.wire.reading) == (1, False)
    match end:
        case "closed":
            other.connection.close()
        case "aborted":
            other.connection.abort()
        case "lost":
            other.connection.connection_lost(None)
        case _:
            other.connection._refuse("nonsense", b"")
    assert peer.port.budget.waiting == 0


def test_who_is_refused_while_memory_is_short_does_not_stand_in_line() -> None:
    peer, _ = a_peer(memory=1000, max_body=1000)
    other = peer.another()
    peer.connection.begin(1, 1000)
    other.send(b"nonsense")
    assert other.wire.closed
    assert peer.port.budget.waiting == 0


def test_what_a_connection_keeps_outlives_limits_that_would_not_have_let_it() -> None:
    peer, partition = a_peer(big_frame=1 << 20, max_body=1 << 20)
    [frame] = appends(0, 1, size=900_000)
    peer.send(frame[:800_000])
    peer.port.limits = replace(peer.port.limits, big_frame=1000)
    assert len(peer.connection.get_buffer(-1)) == peer.port.chunk
    peer.send(frame[800_000:])
    assert [bytes(item.buffer[:]) for item in partition.taken] == [frame]
    assert peer.wire.reading


@pytest.mark.parametrize("waits", [False, True])
def test_a_frame_that_was_let_in_is_taken_whatever_bound_there_is_when_it_is_whole(waits: bool) -> None:
    """Also where it waited for its place meanwhile; the bound holds for the next one."""
    peer, partition = a_peer(big_frame=1000, max_body=5000, memory=5000)
    other = peer.another()
    first, second = appends(0, 2, size=2000)
    if waits:
        other.connection.begin(1, 5000)
    peer.send(first[:100])
    assert peer.wire.reading is not waits
    peer.port.limits = replace(peer.port.limits, max_body=len(first) - HEADER - 1)
    if waits:
        other.connection.done(1, 5000)
    peer.send(first[100:])
    assert [bytes(item.buffer[:]) for item in partition.taken] == [first]
    assert not peer.wire.closed
    peer.send(second[:100])
    assert peer.wire.closed


def test_the_bound_that_is_told_is_the_one_that_holds(caplog: pytest.LogCaptureFixture) -> None:
    peer, _ = a_peer(max_body=5000)
    peer.port.limits = replace(peer.port.limits, max_body=4000)
    peer.announce(4001)
    [line] = lines(caplog)
    assert "a frame of 4001 bytes, and 4000 are the most here" in line


def test_a_long_message_that_is_no_append_is_refused_with_its_beginning(caplog: pytest.LogCaptureFixture) -> None:
    peer, _ = a_peer(big_frame=1000)
    peer.announce(2000, storage.RecordRequest.TYPE)
    kind = storage.RecordRequest.TYPE
    begin = FRAME_HEADER.struct.pack(Magic.STORAGE, 0, 2000) + bytes([kind])
    assert lines(caplog) == [
        f"data port: peer: closed: 2000 bytes of a message of type {kind}, which is never so long; {shown(begin)}"
    ]


def test_a_refusal_shows_nothing_that_others_sent(caplog: pytest.LogCaptureFixture) -> None:
    """What lies in the buffer behind the end of what came is theirs."""
    peer, _ = a_peer(big_frame=1000)
    other = peer.another()
    other.send(HELLO[:7] + b"secret" * 10)
    lines(caplog)
    request = storage.encode(storage.MaxTransactionIdRequest(SESSION, 3, 0))
    wrong = FRAME_HEADER.struct.pack(Magic.STORAGE, 0, 20) + request[HEADER : HEADER + 20]
    for sent in (wrong, request + wrong):
        another = peer.another()
        another.send(sent)
        [line] = lines(caplog)
        assert line.endswith(shown(wrong))


def test_no_memory_for_a_big_frame_is_told(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def none_left(_size: int) -> bytearray:
        raise MemoryError

    peer, _ = a_peer(big_frame=1000)
    monkeypatch.setattr(connection, "bytearray", none_left, raising=False)
    peer.announce(2000, storage.AppendRequest.TYPE)
    begin = FRAME_HEADER.struct.pack(Magic.STORAGE, 0, 2000) + bytes([storage.AppendRequest.TYPE])
    assert lines(caplog) == [f"data port: peer: closed: no memory for a frame of 2007 bytes; {shown(begin)}"]


# ---- reading and not reading --------------------------------------------------------------------------------------------


def test_it_reads_on_when_the_last_reason_not_to_is_gone() -> None:
    peer, _ = a_peer()
    for reason in (Pause.UNDER_WAY, Pause.CROWDED, Pause.UNREAD_ANSWERS):
        peer.connection._pause(reason)
        assert not peer.wire.reading
    for reason, reading in (
        (Pause.CROWDED, False),
        (Pause.BIG_FRAME, False),
        (Pause.UNDER_WAY, False),
        (Pause.UNREAD_ANSWERS, True),
    ):
        peer.connection._resume(reason)
        assert peer.wire.reading == reading
    peer.connection.close()
    peer.wire.reading = False
    peer.connection._pauses = Pause.CROWDED
    peer.connection._resume(Pause.CROWDED)
    assert not peer.wire.reading, "nothing more is read behind the end"


def test_a_crowd_reads_on_one_after_the_other() -> None:
    peer, _ = a_peer(memory=1000, max_body=1000)
    others = [peer.another() for _ in range(2)]
    peer.connection.begin(1, 1000)
    for one in (peer, *others):
        one.connection._check_bounds()
        one.connection._check_bounds()
    assert [one.wire.reading for one in (peer, *others)] == [False] * 3
    assert peer.port.budget.waiting == 3
    peer.connection.done(1, 1000)
    assert [one.wire.reading for one in (peer, *others)] == [True] * 3


def test_where_both_bounds_are_met_half_of_both_has_to_be_done() -> None:
    peer, _ = a_peer(connection_requests=10, connection_bytes=100)
    peer.connection.begin(10, 100)
    peer.connection._check_bounds()
    peer.connection.done(5, 49)
    assert not peer.wire.reading
    peer.connection.done(0, 1)
    assert peer.wire.reading


@pytest.mark.parametrize(("requests", "size"), [(9, 99), (10, 0), (0, 100)])
def test_what_is_read_counts_against_both_bounds(requests: int, size: int) -> None:
    peer, _ = a_peer(connection_requests=10, connection_bytes=100)
    peer.connection.begin(requests, size)
    peer.send(KEEP_ALIVE)
    assert peer.wire.reading == (requests < 10 and size < 100)


def test_answers_that_lie_stop_reading_until_most_are_taken() -> None:
    peer, _ = a_peer()
    peer.wire.unread = 500
    peer.connection._write(bytes(500))
    peer.connection.pause_writing()
    assert not peer.wire.reading
    peer.wire.unread = 12
    seen: list[int] = []
    peer.connection._go_on = lambda: seen.append(peer.connection.share.queued)  # type: ignore[method-assign]
    peer.connection.answer(b"late")
    peer.connection.resume_writing()
    assert seen == [12], "what goes on then has to know how much room there is"
    assert peer.wire.reading
    assert peer.connection.share.queued == 12
    assert peer.wire.written[-1] == b"late"


# ---- sending ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answers", "writes"),
    [
        ([], []), ([b"one"], [b"one"]), ([b"one", b"two"], [b"onetwo"]), ([[b"a", b"b"], b"c"], [b"abc"]),
        ([bytes(65535), b"x"], [bytes(65535) + b"x"]), ([bytes(65536), b"x"], [bytes(65536), b"x"]),
    ],
)  # fmt: skip
def test_answers_are_written_together_unless_they_are_long(answers: list[Any], writes: list[bytes]) -> None:
    peer, _ = a_peer()
    peer.wire.written.clear()
    before = peer.connection._bytes_written
    peer.clock.now += 5
    for one in answers:
        peer.connection.answer(one)
    assert peer.wire.written == []
    peer.port._send()
    assert peer.wire.written == writes
    assert peer.connection._bytes_written - before == sum(map(len, writes))
    assert peer.connection._last_sent == peer.clock.now - (0 if writes else 5)
    peer.port._send()
    assert peer.wire.written == writes


def test_what_is_received_has_the_answers_that_are_there_sent() -> None:
    peer, _ = a_peer()
    peer.connection.answer(b"here")
    peer.send(KEEP_ALIVE)
    assert peer.wire.written[-1] == b"here"


# ---- time ---------------------------------------------------------------------------------------------------------------


def test_a_peer_that_takes_nothing_is_reset_and_one_that_takes_something_is_not(
    caplog: pytest.LogCaptureFixture,
) -> None:
    peer, _ = a_peer(unread_seconds=10.0)
    peer.wire.unread = 50
    peer.connection._write(bytes(50))
    for left in (40, 30, 30):
        peer.clock.now += 9
        peer.wire.unread = left
        peer.connection.tick(peer.clock.now)
        assert not peer.wire.aborted
    peer.clock.now += 2
    peer.connection.tick(peer.clock.now)
    assert lines(caplog) == ["data port: peer: closed: it took none of 30 bytes of answers for 10 s"]
    assert peer.wire.aborted
    assert not peer.connection.open


def test_a_peer_that_had_taken_everything_has_its_time_anew() -> None:
    peer, _ = a_peer(unread_seconds=10.0)
    peer.clock.now += 100
    peer.wire.unread = 5
    peer.connection._write(bytes(5))
    peer.connection.tick(peer.clock.now + 10)
    assert not peer.wire.aborted


def test_the_time_to_take_answers_begins_when_there_are_some() -> None:
    peer, _ = a_peer(unread_seconds=10.0)
    peer.connection.tick(peer.clock.now)
    peer.clock.now += 8
    peer.wire.unread = 5
    peer.connection._write(bytes(5))
    peer.connection.tick(peer.clock.now + 9)
    assert not peer.wire.aborted


def test_a_peer_that_does_not_even_take_the_greeting_has_its_time_from_the_beginning() -> None:
    first, _ = a_peer(unread_seconds=10.0)
    peer = first.another(unread=len(first.wire.written[0]))
    for later, aborted in ((9, False), (2, True)):
        first.clock.now += later
        peer.connection.tick(first.clock.now)
        assert peer.wire.aborted == aborted


@pytest.mark.parametrize(
    ("sent", "what"), [(b"S\0\0", "3 bytes of a frame"), (appends(0, 1, size=2000)[0][:100], "100 bytes of a frame")]
)
def test_what_stops_in_a_frame_is_told(sent: bytes, what: str, caplog: pytest.LogCaptureFixture) -> None:
    peer, _ = a_peer(stall_seconds=10.0, big_frame=1000)
    peer.clock.now += 100
    peer.send(sent)
    peer.connection.tick(peer.clock.now + 10)
    assert not peer.wire.closed
    peer.connection.tick(peer.clock.now + 11)
    assert lines(caplog) == [f"data port: peer: closed: {what} came, and nothing more for 10 s"]
    assert peer.wire.closed


def test_who_does_not_greet_is_told(caplog: pytest.LogCaptureFixture) -> None:
    peer, _ = a_peer(greeted=False, stall_seconds=10.0)
    peer.send(HELLO[:9])
    peer.connection.tick(peer.clock.now + 11)
    assert lines(caplog) == ["data port: peer: closed: 9 bytes of its Hello came, and nothing more for 10 s"]


def test_silence_is_told_and_a_paused_connection_is_not_silent(caplog: pytest.LogCaptureFixture) -> None:
    peer, _ = a_peer(idle_seconds=20.0, stall_seconds=10.0)
    peer.connection._pause(Pause.CROWDED)
    peer.connection.tick(peer.clock.now + 100)
    assert not peer.wire.closed
    peer.connection._resume(Pause.CROWDED)
    peer.connection.tick(peer.clock.now + 21)
    assert lines(caplog) == ["data port: peer: closed: it was silent for 20 s"]


def test_no_keep_alive_in_front_of_the_greeting_or_while_answers_lie() -> None:
    for greeted, unread, sent in ((True, 0, True), (True, 5, False), (False, 0, False)):
        peer, _ = a_peer(greeted=greeted, keep_alive_seconds=10.0)
        peer.wire.unread = unread
        written = len(peer.wire.written)
        peer.connection.tick(peer.clock.now + 11)
        assert peer.wire.written[written:] == [KEEP_ALIVE] * sent


@pytest.mark.parametrize(("heard", "said"), [(True, False), (False, True)])
def test_a_keep_alive_follows_the_silence_of_this_end_and_not_that_of_the_peer(heard: bool, said: bool) -> None:
    peer, _ = a_peer(keep_alive_seconds=10.0)
    peer.clock.now += 11
    if heard:
        peer.send(KEEP_ALIVE)
    if said:
        peer.connection.answer(b"x")
        peer.connection.send()
    written = len(peer.wire.written)
    peer.connection.tick(peer.clock.now)
    assert peer.wire.written[written:] == [KEEP_ALIVE] * (not said)


def test_the_clock_tries_again_what_waits_and_leaves_who_is_gone_alone() -> None:
    peer, _ = a_peer()
    tried: list[int] = []
    peer.connection._go_on = lambda: tried.append(1)  # type: ignore[method-assign]
    peer.connection.tick(peer.clock.now)
    assert tried == [1]
    peer.connection.connection_lost(None)
    peer.connection.tick(peer.clock.now + 10_000)
    assert tried == [1]
    assert not peer.wire.aborted


# ---- the end ------------------------------------------------------------------------------------------------------------


def test_the_end_waits_until_the_peer_s_system_has_every_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    peer, _ = a_peer(unread_seconds=10.0)
    unconfirmed = [7]

    def ioctl(descriptor: int, _request: int, into: bytearray) -> None:
        assert descriptor == 33
        into[:] = unconfirmed[0].to_bytes(4, sys.byteorder)

    monkeypatch.setattr(lingering_close.fcntl, "ioctl", ioctl)
    peer.wire.socket = SimpleNamespace(fileno=lambda: 33)
    peer.connection.answer(b"last")
    peer.wire.unread = 4
    peer.connection.close()
    assert peer.wire.written[-1] == b"last"
    for unread, unacknowledged in ((4, 0), (0, 7), (0, 0)):
        assert not peer.wire.closed
        assert (peer.connection.open, peer.connection.closed) == (False, False)
        [(delay, call, arguments)] = peer.clock.planned
        assert delay == 0.02
        peer.clock.planned.clear()
        peer.wire.unread, unconfirmed[0] = unread, unacknowledged
        call(*arguments)
    assert peer.wire.closed
    assert peer.clock.planned == []


def test_what_arrives_behind_the_end_is_not_executed() -> None:
    """Its own system may still hold what the peer sent."""
    peer, partition = a_peer()
    peer.wire.unread = 4
    peer.connection.close()
    assert not peer.wire.closed
    peer.send(appends(0, 1)[0])
    assert partition.taken == []


@pytest.mark.parametrize("error", [OSError(9, "closed"), ValueError("closed")])
def test_a_socket_that_is_closed_meanwhile_has_nothing_unconfirmed(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def ioctl(*_: object) -> None:
        raise error

    monkeypatch.setattr(lingering_close.fcntl, "ioctl", ioctl)
    peer, _ = a_peer()
    peer.wire.socket = SimpleNamespace(fileno=lambda: 33)
    peer.connection.close()
    assert peer.wire.closed


def test_an_end_that_does_not_come_is_a_reset(monkeypatch: pytest.MonkeyPatch) -> None:
    peer, _ = a_peer(unread_seconds=10.0)
    options: list[tuple[int, int, bytes]] = []
    peer.wire.socket = SimpleNamespace(
        fileno=lambda: -1, setsockopt=lambda level, name, value: options.append((level, name, value))
    )
    peer.clock.now += 50
    monkeypatch.setattr(connection, "unacknowledged", lambda _: 5)
    peer.connection.tick(peer.clock.now)
    peer.clock.now += 3
    peer.connection.close()
    peer.connection.tick(peer.clock.now + 10)
    assert not peer.wire.aborted
    peer.connection.tick(peer.clock.now + 11)
    assert peer.wire.aborted
    assert options == [(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))]
    peer.connection.connection_lost(None)
    peer.wire.aborted = False
    peer.connection.abort()
    assert not peer.wire.aborted, "nobody is there any more"
    [(_, call, arguments)] = peer.clock.planned
    call(*arguments)
    assert not peer.wire.closed
    assert len(peer.clock.planned) == 1


def test_who_is_gone_holds_nothing() -> None:
    peer, partition = a_peer(big_frame=1000)
    peer.send(appends(0, 1)[0])
    peer.wire.unread = 9
    peer.connection._write(bytes(9))
    peer.connection.answer(b"never")
    [big] = appends(1, 1, size=2000)
    peer.send(big[:100])
    peer.connection.connection_lost(ConnectionResetError("gone"))
    assert (peer.connection.closed, peer.connection.open) == (True, False)
    assert peer.port.output_budget.queued == 0
    assert peer.port.budget.used == partition.taken[0].size + OVERHEAD, "what is under way is"
    written = len(peer.wire.written)
    peer.connection.answer(b"nor this")
    peer.port._send()
    assert len(peer.wire.written) == written
    assert peer.port.connections == ()
    assert peer.connection.eof_received() is False


def test_draining_reads_nothing_answers_what_is_under_way_and_closes() -> None:
    peer, _ = a_peer()
    idle = peer.another()
    peer.connection.begin(2, 20)
    peer.port.draining = True
    for one in (peer, idle):
        one.connection.finish()
    assert (idle.wire.closed, peer.wire.closed, peer.wire.reading) == (True, False, False)
    peer.connection.answer(b"one")
    peer.connection.done(1, 10)
    assert not peer.wire.closed
    peer.connection.answer(b"two")
    peer.connection.done(1, 10)
    assert peer.wire.closed
    assert b"".join(peer.wire.written).endswith(b"onetwo")
    late = Wire()
    peer.port._connection("late").connection_made(late)
    assert late.closed, "who comes now is sent away"


@pytest.mark.parametrize("reason", [Pause.UNDER_WAY, Pause.CROWDED, Pause.UNREAD_ANSWERS])
def test_draining_ends_a_connection_that_was_not_read_for_another_reason_too(reason: Pause) -> None:
    peer, _ = a_peer()
    peer.connection.begin(1, 10)
    peer.connection._pause(reason)
    peer.connection.finish()
    assert not peer.wire.closed
    peer.connection.done(1, 10)
    assert peer.wire.closed
