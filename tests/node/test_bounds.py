"""Every bound that a peer meets: what is at the bound is let in, what is one beyond it is not; and so it is documented."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.mutation.trial import ROOT
from tests.node.unplugged import Peer
from waltzctl.engine.errors import DiskReadError, InvalidRequestError
from waltzctl.engine.net import configuration_file, connection, port, read_window
from waltzctl.engine.net.budget import Budget
from waltzctl.engine.net.configuration_file import MAX_DEPTH, MAX_SIZE, read_entries
from waltzctl.engine.net.connection import OVERHEAD, Pause
from waltzctl.engine.net.monitoring_options import HttpLimits
from waltzctl.engine.net.output_budget import OutputBudget, Share
from waltzctl.engine.net.peer_limits import MIN_FRAME_RATE, PortLimits
from waltzctl.engine.net.small_file import read_first_line, read_password_or_key
from waltzctl.engine.node import admin_port
from waltzctl.engine.node.append_runs import portions_of
from waltzctl.engine.node.node_settings import HealthOptions, ServiceOptions
from waltzctl.engine.scan.frames import FrameSplitter, SplitStatus
from waltzctl.formats.wire import storage
from waltzctl.formats.wire.frame import FRAME_HEADER, FrameError, FrameReader, Magic
from waltzctl.formats.wire.primitives import MessageError, check_count

APPEND = storage.AppendRequest.TYPE
READ = storage.RecordRequest.TYPE


# ---- frames -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "name"), [("data", "max_body"), ("admin", "max_admin_body")])
@pytest.mark.parametrize("beyond", [0, 1])
def test_the_longest_body_is_read_and_no_longer_one(kind: str, name: str, beyond: int) -> None:
    peer = Peer(kind, **{name: 1000})
    peer.announce(1000 + beyond)
    assert peer.wire.closed == bool(beyond)


@pytest.mark.parametrize("kind", ["data", "admin"])
@pytest.mark.parametrize("length", [-1, 0, 100])
def test_no_body_is_shorter_than_nothing(kind: str, length: int) -> None:
    peer = Peer(kind)
    peer.announce(length)
    assert peer.wire.closed == (length < 0)


@pytest.mark.parametrize("length", [-1, 0, 4096, 4097])
def test_the_longest_hello(length: int) -> None:
    peer = Peer(greeted=False)
    peer.send(FRAME_HEADER.struct.pack(Magic.HELLO, 0, length))
    assert peer.wire.closed == (length in (-1, 4097))


@pytest.mark.parametrize("beyond", [0, 1])
def test_a_frame_over_the_border_is_read_when_it_has_its_place(beyond: int) -> None:
    peer = Peer(big_frame=1000)
    peer.announce(1000 - connection.HEADER + beyond, APPEND)
    assert peer.port.budget.used == (1001 if beyond else 0)
    assert not peer.wire.closed


@pytest.mark.parametrize("beyond", [0, 1])
def test_what_is_no_append_is_never_longer_than_the_border(beyond: int) -> None:
    peer = Peer(big_frame=1000)
    peer.announce(1000 - connection.HEADER + beyond, READ)
    assert peer.wire.closed == bool(beyond)


@pytest.mark.parametrize("compiled", [False, None])
@pytest.mark.parametrize("beyond", [0, 1])
def test_the_splitter_refuses_one_byte_more(compiled: bool | None, beyond: int) -> None:
    splitter = FrameSplitter(magic=Magic.STORAGE, max_body=50, compiled=compiled)
    buffer = FRAME_HEADER.struct.pack(Magic.STORAGE, 0, 50 + beyond)
    split = splitter.split(buffer, 0, len(buffer), 0)
    assert (split.status, split.needed) == ((SplitStatus.LENGTH, 0) if beyond else (SplitStatus.MORE, 57))


@pytest.mark.parametrize(
    ("rows", "longest", "meant"), [(0, 1, False), (1, 0, True), (1, -1, False), (1, 2**31 - 1, True), (1, 2**31, False)]
)
def test_a_splitter_that_cannot_be_meant(rows: int, longest: int, meant: bool) -> None:
    try:
        FrameSplitter(magic=1, max_body=longest, rows=rows, compiled=False)
    except ValueError:
        assert not meant
    else:
        assert meant


@pytest.mark.parametrize("beyond", [0, 1])
def test_the_reader_of_frames_refuses_one_byte_more(beyond: int) -> None:
    reader = FrameReader(max_body=10)
    reader.feed(FRAME_HEADER.struct.pack(Magic.STORAGE, 0, 10 + beyond) + bytes(10 + beyond))
    if beyond:
        with pytest.raises(FrameError):
            reader.next(Magic.STORAGE, 0)
    else:
        assert reader.next(Magic.STORAGE, 0) == bytes(10)


# ---- counts within messages ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("count", "limit", "smallest", "left", "accepted"),
    [
        (-1, 9, 1, 9, False),
        (0, 0, 1, 0, True),
        (3, 3, 1, 3, True),
        (4, 3, 1, 9, False),
        (3, 9, 1, 3, True),
        (4, 9, 1, 3, False),
        (2, 9, 4, 8, True),
        (2, 9, 4, 7, False),
    ],
)
def test_a_count(count: int, limit: int, smallest: int, left: int, accepted: bool) -> None:
    try:
        check_count("list", count, limit, smallest, left)
    except MessageError:
        assert not accepted
    else:
        assert accepted


# ---- what is under way --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("requests", "size"), [(9, 99), (10, 0), (0, 100)])
@pytest.mark.parametrize("kind", ["data", "admin"])
def test_reading_stops_at_so_many_requests_or_bytes(kind: str, requests: int, size: int) -> None:
    peer = Peer(kind)
    peer.connection._most_requests, peer.connection._most_bytes = 10, 100
    peer.connection.begin(requests, size)
    peer.connection._check_bounds()
    assert peer.wire.reading == (requests < 10 and size < 100)


@pytest.mark.parametrize(("requests", "size", "goes_on"), [(5, 50, True), (6, 50, False), (5, 51, False)])
def test_reading_goes_on_when_half_is_answered(requests: int, size: int, goes_on: bool) -> None:
    peer = Peer()
    peer.connection._most_requests, peer.connection._most_bytes = 10, 100
    peer.connection.begin(10, 100)
    peer.connection._check_bounds()
    peer.connection.done(10 - requests, 100 - size)
    assert peer.wire.reading == goes_on


def test_each_port_passes_its_own_bounds_on() -> None:
    limits = {"max_body": 5, "max_admin_body": 6, "connection_requests": 7, "connection_bytes": 8}
    data, admin_side = Peer(**limits).connection, Peer("admin", **limits).connection
    assert (data._max_body, data._most_requests, data._most_bytes) == (5, 7, 8)
    assert (admin_side._max_body, admin_side._most_requests, admin_side._most_bytes) == (6, 600, 4 << 20)
    assert admin_port._MEMORY == 16 << 20


@pytest.mark.parametrize("missing", [0, 1])
def test_a_port_that_is_full_stops_whoever_sends(missing: int) -> None:
    peer = Peer(memory=1000, max_body=100)
    peer.connection.begin(1, 1000 - OVERHEAD - missing)
    peer.connection._check_bounds()
    assert peer.wire.reading == bool(missing)
    peer.connection.done(1, 1000 - OVERHEAD - missing)
    assert peer.wire.reading
    assert peer.port.budget.used == 0
    assert OVERHEAD == 256


def test_what_fits_the_budget_exactly_is_given_and_not_one_byte_more() -> None:
    for amount, given in ((60, True), (61, False)):
        budget = Budget(100)
        budget.take(40)
        assert budget.reserve("a", amount, lambda: None) is given
        assert budget.crowded
    budget = Budget(100)
    assert budget.reserve("more than there is", 101, lambda: None), "when nothing else is under way"
    assert not budget.reserve("turn", 0, lambda: None)
    budget = Budget(100)
    budget.take(99)
    assert not budget.crowded
    assert budget.reserve("turn", 0, lambda: None)
    budget.take(1)
    assert budget.crowded
    assert not budget.reserve("turn", 0, lambda: None), "a turn needs one byte"


@pytest.mark.parametrize("beyond", [0, 1])
def test_a_frame_leaves_small_requests_their_share(beyond: int) -> None:
    budget = Budget(80, kept=8)
    assert budget.reserve("frame", 40, lambda: None)
    assert budget.reserve("fits", 30 + beyond, lambda: None) is not beyond
    assert Peer(memory=80 << 10, max_body=100).port.budget.kept == 10 << 10


@pytest.mark.parametrize("beyond", [0, 1])
def test_a_frame_that_leaves_nothing_is_reserved_when_it_is_the_only_one_and_there_is_little_else(beyond: int) -> None:
    budget = Budget(80, kept=8)
    budget.take(10 + beyond)
    assert budget.reserve("frame", 80, lambda: None) is not beyond
    assert not budget.reserve("another", 1, lambda: None)


@pytest.mark.parametrize("missing", [0, 1])
@pytest.mark.parametrize("waiting", [False, True], ids=["nobody waits", "a frame waits"])
def test_small_requests_do_not_wait_for_a_frame_that_is_still_received(missing: int, waiting: bool) -> None:
    """As long as all of them have no more than their share under way."""
    peer = Peer(memory=80_000, max_body=80_000)
    peer.announce(80_000, APPEND)
    if waiting:
        peer.another().announce(70_000, APPEND)
    other = peer.another()
    other.connection.begin(1, 10_000 - OVERHEAD - missing)
    other.connection._check_bounds()
    assert (peer.port.budget.waiting, other.wire.reading) == (waiting + (not missing), bool(missing))
    other.connection.done(1, 10_000 - OVERHEAD - missing)
    assert (peer.port.budget.waiting, other.wire.reading) == (waiting, True)


# ---- answers ------------------------------------------------------------------------------------------------------------


def test_no_promise_is_longer_than_the_budget() -> None:
    moderate = 512 << 10
    room = OutputBudget(3 * moderate, 2 * moderate)
    one, other, third = Share(room), Share(room), Share(room)
    one.queue(1)
    assert one.promise() == 2 * moderate - 1, "what waits for the peer counts"
    assert other.promise() == moderate, "what is left: that of one and its queue are gone"
    one.make(2 * moderate - 1, 10)
    other.make(moderate, 5)
    assert (room.promised, room.made) == (0, 15)
    assert one.promise() == 2 * moderate - 11, "what is made counts as well"
    one.make(2 * moderate - 11, 0)
    one.send(10)
    other.send(5)
    other.queue(3 * moderate - 2)
    assert third.promise() == 1, "and all of it together"
    third.make(1, 0)
    other.queue(3 * moderate)
    assert third.promise() == 0


def test_what_was_sent_counts_no_longer_against_its_peer() -> None:
    room = OutputBudget(1000, 100)
    one = Share(room)
    for _ in range(3):
        assert one.promise() == 100
        one.make(100, 40)
        assert one.promise() == 60
        one.make(60, 0)
        one.send(40)
    assert (room.promised, room.made, room.queued) == (0, 0, 0)


def test_each_peer_s_share_of_the_answers_and_of_the_reads() -> None:
    peer = Peer(output=10 << 20, connection_output=1 << 20)
    assert peer.port.output_each == 1 << 20
    peer.port._connections = dict.fromkeys(range(20))
    assert peer.port.output_each == (10 << 20) // 20
    peer.port._connections = dict.fromkeys(range(100_000))
    assert peer.port.output_each == 32 << 10
    assert peer.port.chunk == port._SMALLEST_CHUNK
    peer.port._connections = {}
    assert peer.port.chunk == port._CHUNK


def test_the_buffer_holds_the_longest_rest_and_a_whole_chunk() -> None:
    """Else a peer whose frames are exactly as long as that stands still for ever."""
    peer = Peer(big_frame=1000)
    peer.announce(1000 - connection.HEADER, READ)
    peer.send(bytes(1000 - connection.HEADER - 2))
    assert len(peer.connection.get_buffer(-1)) == peer.port.chunk


# ---- time ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("beyond", [0.0, 0.5])
def test_a_frame_may_stand_still_for_so_long(beyond: float) -> None:
    peer = Peer(stall_seconds=10.0)
    peer.announce(1000)
    peer.connection.tick(peer.clock.now + 10.0 + beyond)
    assert peer.wire.closed == bool(beyond)


@pytest.mark.parametrize("beyond", [0.0, 0.5])
def test_so_may_a_hello(beyond: float) -> None:
    peer = Peer(greeted=False, stall_seconds=10.0)
    peer.connection.tick(peer.clock.now + 10.0 + beyond)
    assert peer.wire.closed == bool(beyond)


def _drip(peer: Peer, seconds: int) -> None:
    """A byte a second: never silent."""
    for _ in range(seconds):
        peer.clock.now += 1
        peer.send(b"\0")
        peer.connection.tick(peer.clock.now)


@pytest.mark.parametrize("beyond", [0, 1])
@pytest.mark.parametrize("what", ["a frame", "its Hello"])
def test_who_drips_holds_nothing_longer_than_that(what: str, beyond: int, caplog: pytest.LogCaptureFixture) -> None:
    peer = Peer(greeted=what == "a frame", stall_seconds=10.0)
    if what == "a frame":
        peer.announce(100_000, APPEND)
    else:
        peer.send(FRAME_HEADER.struct.pack(Magic.HELLO, 0, 1000))
    _drip(peer, 10 + beyond)
    assert peer.wire.closed == bool(beyond)
    assert bool(peer.port.budget.used) == (what == "a frame" and not beyond)
    arrived = connection.HEADER + (what == "a frame") + 11
    said = f"closed: {arrived} bytes of {what} came in 11 s; 64 KiB a second are the least after 10 s"
    assert (said in caplog.text) == bool(beyond)


@pytest.mark.parametrize("less", [0, 1])
def test_a_slow_line_gets_a_big_frame_through(less: int) -> None:
    """At the least rate behind the time that every frame has."""
    peer = Peer(stall_seconds=10.0)
    peer.announce(1 << 20, APPEND)
    peer.send(bytes((64 << 10) - connection.HEADER - 1 - less))
    peer.connection._heard = peer.clock.now + 11
    peer.connection.tick(peer.clock.now + 11)
    assert peer.wire.closed == bool(less)


@pytest.mark.parametrize("pause", [pause for pause in Pause if pause is not Pause.BIG_FRAME])
def test_what_this_side_does_not_read_costs_a_frame_no_time(pause: Pause) -> None:
    """But for what the peer leaves unread: it would keep the frame's place as long as it likes."""
    peer = Peer(stall_seconds=10.0)
    peer.announce(1 << 20, APPEND)
    _drip(peer, 5)
    peer.connection._pause(pause)
    ours = pause is not Pause.UNREAD_ANSWERS
    peer.clock.now += 5.5
    peer.connection.tick(peer.clock.now)
    assert peer.wire.closed != ours
    if ours:
        peer.connection._resume(pause)
        _drip(peer, 5)
        assert not peer.wire.closed
        _drip(peer, 1)
        assert peer.wire.closed


def test_a_frame_s_time_begins_when_it_has_its_place() -> None:
    peer = Peer(memory=200_000, max_body=200_000, stall_seconds=10.0)
    peer.announce(200_000, APPEND)
    other = peer.another()
    other.announce(150_000, APPEND)
    other.connection._pause(Pause.UNDER_WAY)
    other.clock.now += 20
    peer.connection.close()
    other.clock.now += 5
    other.connection._resume(Pause.UNDER_WAY)
    _drip(other, 10)
    assert not other.wire.closed
    _drip(other, 1)
    assert other.wire.closed


@pytest.mark.parametrize(("beyond", "requests"), [(0.0, 0), (0.5, 0), (0.5, 1)])
def test_a_peer_may_be_silent_for_so_long_and_longer_while_it_waits(beyond: float, requests: int) -> None:
    peer = Peer(idle_seconds=10.0, stall_seconds=1.0)
    peer.connection.begin(requests, 0)
    peer.connection.tick(peer.clock.now + 10.0 + beyond)
    assert peer.wire.closed == (bool(beyond) and not requests)


@pytest.mark.parametrize("beyond", [0.0, 0.5])
def test_a_keep_alive_goes_out_after_so_long(beyond: float) -> None:
    peer = Peer(keep_alive_seconds=10.0)
    said = len(peer.wire.written)
    peer.connection.tick(peer.clock.now + 10.0 + beyond)
    assert len(peer.wire.written) - said == bool(beyond)


@pytest.mark.parametrize("beyond", [0.0, 0.5])
def test_answers_may_lie_for_so_long(beyond: float) -> None:
    peer = Peer(unread_seconds=10.0)
    peer.wire.unread = 50
    peer.connection.answer([])
    peer.connection._write(bytes(50))
    peer.connection.tick(peer.clock.now)
    peer.connection.tick(peer.clock.now + 10.0 + beyond)
    assert peer.wire.aborted == bool(beyond)


def test_what_arrives_behind_the_end_is_not_looked_at() -> None:
    peer = Peer()
    peer.connection.close()
    assert not peer.connection.open
    assert peer.wire.closed
    peer.wire.closed = False
    peer.announce(-1)
    assert not peer.wire.closed, "it would have been refused"


# ---- connections --------------------------------------------------------------------------------------------------------


class Listener:
    """One peer at the door."""

    def __init__(self) -> None:
        self.peers = [SimpleNamespace(close=lambda: None, fileno=lambda: 9)]

    def accept(self) -> tuple[object, tuple[str, int]]:
        if not self.peers:
            raise BlockingIOError
        return self.peers.pop(), ("127.0.0.1", 1)


@pytest.mark.parametrize(("there", "expected", "let_in"), [(1, 1, True), (2, 1, False), (1, 2, False)])
def test_so_many_connections_and_no_more(there: int, expected: int, let_in: bool) -> None:
    """Those that are still being greeted count."""
    peer = Peer(max_connections=3)
    peer.port._connections, peer.port._expected = dict.fromkeys(range(there)), expected
    peer.port._accept(Listener())
    assert peer.clock.begun == let_in
    assert peer.port._expected == expected + let_in


def test_reads_of_one_connection_grow_to_a_bound() -> None:
    peer = Peer()
    peer.port.reads.reserve("others", 1000, lambda: None)
    given = []
    for _ in range(10):
        peer.connection.begin(1, 0)
        peer.connection._reads._under_way += 1  # type: ignore[attr-defined]
        peer.connection._read_answered([], 0, 0)  # type: ignore[attr-defined]
        given.append(peer.connection._reads._most)  # type: ignore[attr-defined]
    assert given == [2, 4, 8, 16, 32, 64, 64, 64, 64, 64]
    assert read_window._MOST_READS == 64
    assert peer.connection._pauses is Pause.NOTHING


@pytest.mark.parametrize(("length", "window"), [(99, 2), (100, 2), (101, 1)])
def test_long_answers_do_not_let_a_connection_read_ahead(length: int, window: int) -> None:
    """As if all were as long: one more is begun only when it fits the room of its peer as well."""
    peer = Peer(connection_output=100, output=100)
    peer.port.reads.reserve("others", 10, lambda: None)
    monkey = pytest.MonkeyPatch()
    monkey.setattr(port, "_SMALLEST_OUTPUT", 1)
    peer.connection.begin(1, 0)
    peer.connection._reads._under_way += 1  # type: ignore[attr-defined]
    peer.connection._read_answered([], length, 0)  # type: ignore[attr-defined]
    monkey.undo()
    assert peer.connection._reads._most == window  # type: ignore[attr-defined]


def test_a_frame_for_which_there_is_no_memory_ends_its_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left(_size: int) -> bytearray:
        raise MemoryError

    peer = Peer(big_frame=1000)
    monkeypatch.setattr(connection, "bytearray", none_left, raising=False)
    peer.announce(2000, APPEND)
    assert peer.wire.closed
    assert peer.port.budget.used == 0


@pytest.mark.parametrize(
    ("sizes", "limit", "portions"),
    [([5, 5], 10, [2]), ([5, 6], 10, [1, 1]), ([10], 10, [1]), ([3, 3, 3, 3], 9, [3, 1]), ([4, 0, 4], 8, [2])],
)
def test_so_many_bytes_share_a_flush(sizes: list[int], limit: int, portions: list[int]) -> None:
    runs: list[Any] = [SimpleNamespace(table=[None] if size else [], size=size) for size in sizes]
    assert [len(one) for one in portions_of(runs, limit)] == portions


# ---- values that can be meant -------------------------------------------------------------------------------------------


def _is_meant(options: Any) -> bool:
    try:
        options.check()
    except InvalidRequestError:
        return False
    return True


@pytest.mark.parametrize(
    ("options", "meant"),
    [
        (PortLimits(max_body=2**31 - 1, memory=2**31 - 1), True),
        (PortLimits(max_body=2**31, memory=2**31), False),
        (PortLimits(max_admin_body=2**31 - 1), True),
        (PortLimits(max_admin_body=2**31), False),
        (PortLimits(big_frame=2**31 - 1), True),
        (PortLimits(big_frame=2**31), False),
        (PortLimits(max_body=100, memory=100), True),
        (PortLimits(max_body=100, memory=99), False),
        (ServiceOptions(stall_seconds=0.001), True),
        (ServiceOptions(stall_seconds=0), False),
        (ServiceOptions(workers=1), True),
        (ServiceOptions(workers=0), False),
        (HttpLimits(connection_seconds=0), False),
        (HttpLimits(answer_seconds=0), False),
        (HttpLimits(connection_seconds=0.001, answer_seconds=0.001), True),
        (HealthOptions(min_free_bytes=0, max_age=0), True),
        (HealthOptions(min_free_bytes=-1), False),
        (HealthOptions(max_age=-0.001), False),
        (HealthOptions(deadline=0), False),
        (HealthOptions(max_stall=0), False),
        (HealthOptions(deadline=0.001, max_stall=0.001), True),
        *((PortLimits(**{name: 1, "max_body": 1}), True) for name in PortLimits.__slots__),
        *((PortLimits(**{name: 0}), False) for name in PortLimits.__slots__),
        *(
            (ServiceOptions(**{name: value}), bool(value))
            for name in ("queue_requests", "queue_bytes", "commit_bytes", "max_list_bytes")
            for value in (0, 1)
        ),
        *(
            (HttpLimits(**{name: value}), bool(value))
            for name in ("max_connections", "max_request_bytes")
            for value in (0, 1)
        ),
    ],
    ids=str,
)
def test_the_smallest_and_the_largest_that_can_be_meant(options: Any, meant: bool) -> None:
    assert _is_meant(options) is meant


@pytest.mark.parametrize("beyond", [0, 1])
def test_the_longest_configuration_file(tmp_path: Path, beyond: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(configuration_file, "MAX_SIZE", 1000)  # the reader of YAML is slow
    file = tmp_path / "f.yml"
    file.write_bytes(b"a: 1\n#" + b"x" * (1000 - 6 + beyond))
    if beyond:
        with pytest.raises(InvalidRequestError, match="more than"):
            read_entries(file)
    else:
        assert [entry.key for entry in read_entries(file)] == ["a"]
    assert MAX_SIZE == 1 << 20


@pytest.mark.parametrize("beyond", [0, 1])
def test_the_deepest_configuration_file(tmp_path: Path, beyond: int) -> None:
    file = tmp_path / "f.yml"
    deep = 17 + beyond
    file.write_text("\n".join("  " * depth + f"k{depth}:" for depth in range(deep)) + " 1\n")
    if beyond:
        with pytest.raises(InvalidRequestError, match="nested more than 16 deep"):
            list(read_entries(file))
    else:
        assert len(list(read_entries(file))) == 1
    assert MAX_DEPTH == 16


@pytest.mark.parametrize(("length", "taken"), [(0, False), (1, True), (4096, True), (4097, False)])
def test_the_longest_password(tmp_path: Path, length: int, taken: bool) -> None:
    file = tmp_path / "secret"
    file.write_bytes(b"x" * length)
    try:
        assert read_first_line(file, "here") == "x" * length
    except InvalidRequestError:
        assert not taken
    else:
        assert taken


@pytest.mark.parametrize(
    ("written", "password"),
    [
        (b"secret\n", "secret"), (b"secret\r\nsecond\n", "secret"), (b"\nsecond\n", ""), (b"\n", ""),
        (b" two words \n", " two words "), ("p\u00e4ss".encode(), "p\u00e4ss"),
    ],
)  # fmt: skip
def test_a_password_is_the_first_line_as_it_stands(tmp_path: Path, written: bytes, password: str) -> None:
    file = tmp_path / "secret"
    file.write_bytes(written)
    assert read_first_line(file, "here") == password


def test_a_password_that_the_system_does_not_give_is_told(tmp_path: Path) -> None:
    file = tmp_path / ("x" * 300)
    with pytest.raises(DiskReadError, match="cannot read the password: File name too long"):
        read_first_line(file, "here")


KEY = bytes(range(200, 232))


@pytest.mark.parametrize(
    ("written", "secret"),
    [
        (b"secret\nsecond\n", b"secret"),
        ("p\u00e4ss\n".encode(), "p\u00e4ss".encode()),
        (b"x" * 4095 + "\u00e4".encode(), None),
        (KEY, KEY),
        (b"abc\n" + KEY, b"abc\n" + KEY),
        (b"abc\n\0" + b"x" * 11, b"abc\n\0" + b"x" * 11),
        (KEY[:16], KEY[:16]),
        (KEY[:15], None),
        (KEY * 128, KEY * 128),
        (KEY * 128 + b"x", None),
        (b"", None),
    ],
)
def test_a_file_that_is_no_text_is_a_key(tmp_path: Path, written: bytes, secret: bytes | None) -> None:
    """All of it: a first line would be as good as a key of a few bytes."""
    file = tmp_path / "secret"
    file.write_bytes(written)
    if secret is not None:
        assert read_password_or_key(file, "here") == secret
        return
    with pytest.raises(InvalidRequestError, match=r"^here: .*secret: (neither text nor a key|holds no password)"):
        read_password_or_key(file, "here")


# ---- what is written about them -----------------------------------------------------------------------------------------


def _amount(value: int) -> str:
    return f"{value >> 20:,} MiB" if value >= 1 << 20 else f"{value >> 10:,} KiB" if value >= 1 << 14 else f"{value:,}"


def test_the_documented_bounds_are_those_of_the_code() -> None:
    limits, service = PortLimits(), ServiceOptions()
    table = (ROOT / "docs" / "node.md").read_text().partition("## Bounds")[2].partition("\n## ")[0]
    rows = dict(re.findall(r"^\| ([^|]+) \| ([^|]+) \|", table, re.MULTILINE))
    expected = {
        "body of a frame": f"{_amount(limits.max_body)}; {_amount(limits.max_admin_body)} at the admin port",
        "requests that are not answered yet, all connections": _amount(limits.memory),
        "the same, one connection": f"{limits.connection_requests:,} and {_amount(limits.connection_bytes)}",
        "queue of one partition": f"{service.queue_requests:,} and {_amount(service.queue_bytes)}",
        "bytes that share a flush": _amount(service.commit_bytes),
        "one list": f"{_amount(limits.max_list_bytes)}, at least one record",
        "answers that wait, all connections": _amount(limits.output),
        "reads under way, all connections": f"{limits.reads}",
        "a peer that takes nothing, or stops in the middle of a frame": f"{limits.stall_seconds:.0f} s",
        f"a frame over {limits.big_frame >> 10} KiB, or a Hello, that comes slower": (
            f"{limits.stall_seconds:.0f} s, and a second for every {MIN_FRAME_RATE >> 10} KiB"
        ),
        "silence": f"{limits.idle_seconds:,.0f} s",
        "connections of a port": f"{limits.max_connections:,}",
        "descriptors that connections leave to files": f"{port._RESERVED_DESCRIPTORS}, an eighth of all where there are few",
    }
    assert {name: rows.get(name) for name in expected} == expected
    assert {*rows} - {*expected} == {"what"}
    assert f"a frame over {limits.big_frame >> 10} KiB waits" in table
    assert f"after {service.stall_seconds:.0f} s without progress" in table
    assert f"{_amount(limits.memory // port._KEPT_PART)} are kept for smaller ones" in table
    assert f"a keep-alive goes out every {limits.keep_alive_seconds:.0f} s" in table
    assert (limits.unread_seconds, service.max_list_bytes) == (limits.stall_seconds, limits.max_list_bytes)
    assert (limits.connection_output, limits.handshake_seconds, limits.unacknowledged_seconds) == (1 << 20, 30.0, 120.0)
