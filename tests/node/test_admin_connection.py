"""A connection of the admin port alone: one request at a time, what each one asks of the node, and what it is answered."""

from __future__ import annotations

import asyncio
import logging
import uuid
from typing import Any

import pytest

from tests.node.serving import LOG
from tests.node.unplugged import Peer
from waltzctl.engine.errors import RefusedError
from waltzctl.engine.net.connection import OVERHEAD, Pause
from waltzctl.engine.net.peer_limits import PortLimits
from waltzctl.engine.net.single_flight import OverdueError
from waltzctl.engine.node import admin_port
from waltzctl.engine.node.admin_port import AdminPort
from waltzctl.engine.storage.wire_records import WireRecords
from waltzctl.formats.wire import admin
from waltzctl.formats.wire.failure import Failure
from waltzctl.formats.wire.frame import FRAME_HEADER, FrameReader, Magic, keep_alive
from waltzctl.formats.wire.storage import SessionInfo

HEADER = FRAME_HEADER.size
STORAGE = "com.wepay.waltz.storage.exception.StorageException: "


class Hosted:
    """Notes what is asked of it; refuses what has to do with partition 9."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Any:
        def asked(*arguments: Any, **words: Any) -> Any:
            self.asked.append((name, *arguments, words))
            if 9 in arguments or any(9 in one for one in arguments if isinstance(one, (list, tuple))):
                raise RefusedError("not this one")
            return {
                "read_wire": WireRecords(0, b""),
                "session_info": SessionInfo(4, 5, 6),
                "assigned_status": [(1, True), (2, False)],
            }.get(name)

        return asked


class Pool:
    """Threads that work when they are told to."""

    def __init__(self) -> None:
        self.jobs: list[Any] = []

    def schedule(self, job: Any) -> None:
        self.jobs.append(job)

    def work(self) -> None:
        assert self.jobs.pop(0).run() is False


@pytest.fixture
def peer() -> Peer:
    found = Peer("admin", hosted=Hosted())
    found.port.pool.close()
    found.port.pool = Pool()
    found.wire.written.clear()
    return found


def answers(peer: Peer) -> list[Any]:
    """What was written since the last time, decoded."""
    reader = FrameReader()
    reader.feed(b"".join(peer.wire.written))
    peer.wire.written.clear()
    return [admin.decode(bytes(body), 0) for body in iter(lambda: reader.next(Magic.ADMIN, 0), None)]


def ask(peer: Peer, message: Any) -> Any:
    """The one answer to a message."""
    peer.send(admin.encode(message, 0))
    peer.port.pool.work()
    peer.outbox.flush()
    [answer] = answers(peer)
    return answer


KEY = uuid.UUID(int=7)
SUCCESS = admin.SuccessResponse(3)
EACH = [
    (admin.OpenRequest(KEY, 4), ("check_open", KEY, 4, {}), admin.SuccessResponse(-1)),
    (
        admin.PartitionAvailableRequest(3, (1, 2), True),
        ("set_availability", (1, 2), {"readable": True, "writable": True}),
        SUCCESS,
    ),
    (
        admin.PartitionAvailableRequest(3, (1, 2), False),
        ("set_availability", (1, 2), {"readable": False, "writable": False}),
        SUCCESS,
    ),
    (admin.PartitionAssignmentRequest(3, (1, 2), True), ("assign", (1, 2), {}), SUCCESS),
    (admin.PartitionAssignmentRequest(3, (1, 2), True, True), ("assign", (1, 2), {}), SUCCESS),
    (admin.PartitionAssignmentRequest(3, (1,), False), ("unassign", (1,), {"delete_files": False}), SUCCESS),
    (admin.PartitionAssignmentRequest(3, (1,), False, True), ("unassign", (1,), {"delete_files": True}), SUCCESS),
    (
        admin.LastSessionInfoRequest(3, 1),
        ("session_info", 1, {}),
        admin.LastSessionInfoResponse(3, 1, SessionInfo(4, 5, 6)),
    ),
    (admin.MetricsRequest(3), None, admin.MetricsResponse(3, "")),
    (
        admin.AssignedPartitionStatusRequest(3),
        ("assigned_status", {}),
        admin.AssignedPartitionStatusResponse(3, ((1, True), (2, False))),
    ),
]


@pytest.mark.parametrize(("message", "asked", "answer"), EACH, ids=lambda one: type(one).__name__)
def test_each_request_asks_for_what_it_says_and_is_over_behind_its_answer(
    peer: Peer, message: Any, asked: Any, answer: Any
) -> None:
    assert ask(peer, message) == answer
    assert peer.port.hosted.asked == ([] if asked is None else [asked])
    assert (peer.connection.requests, peer.connection.size, peer.port.budget.used) == (0, 0, 0)
    assert (peer.port.output_budget.promised, peer.port.output_budget.made) == (0, 0)


@pytest.mark.parametrize("on", [True, False])
def test_version_1_switches_reading_and_writing_apart(peer: Peer, on: bool) -> None:
    for message, words in (
        (admin.PartitionReadRequest(3, 2, on), {"readable": on}),
        (admin.PartitionWriteRequest(3, 2, on), {"writable": on}),
    ):
        assert peer.port.execute(message, 1, 100) == admin.encode(SUCCESS, 1)
        assert peer.port.hosted.asked.pop() == ("set_availability", [2], words)


@pytest.mark.parametrize(("place", "told"), [((4, 128), (4, 128)), ((0, 128), (0, 128)), (None, (-1, -1))])
def test_version_1_tells_where_a_record_is(
    peer: Peer, monkeypatch: pytest.MonkeyPatch, place: tuple[int, int] | None, told: tuple[int, int]
) -> None:
    monkeypatch.setattr(peer.port.hosted, "place_of", lambda *asked: asked == (2, 7) and place, raising=False)
    answer = peer.port.execute(admin.RecordPlaceRequest(3, 2, 7), 1, 100)
    assert answer == admin.encode(admin.RecordPlaceResponse(3, 2, *told), 1)


@pytest.mark.parametrize(("count", "most"), [(5, 5), (1, 1), (0, 0), (-1, 0)])
def test_a_list_of_records_is_as_long_as_there_is_room_for(peer: Peer, count: int, most: int) -> None:
    assert ask(peer, admin.RecordListRequest(3, 1, 40, count)) == admin.RecordListResponse(3, 1, ())
    assert peer.port.hosted.asked == [("read_wire", 1, 40, most, peer.port.output_budget.longest, {})]


def test_what_is_refused_is_said_and_the_connection_stays(peer: Peer, caplog: pytest.LogCaptureFixture) -> None:
    failure = Failure.with_code(f"{STORAGE}not this one", "refused")
    assert ask(peer, admin.PartitionAssignmentRequest(3, (1, 9), True)) == admin.FailureResponse(3, failure)
    assert ask(peer, admin.OpenRequest(KEY, 9)) == admin.FailureResponse(-1, failure)
    assert ask(peer, admin.LastSessionInfoRequest(4, 1)).sequence == 4
    assert [record.getMessage() for record in caplog.records] == [
        "admin port: PartitionAssignmentRequest refused: not this one",
        "admin port: OpenRequest refused: not this one",
    ]


@pytest.mark.parametrize("error", [ZeroDivisionError("oops"), MemoryError()])
def test_a_mistake_of_ours_is_answered_and_logged(
    peer: Peer, error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    def fails() -> str:
        raise error

    peer.port._metrics = fails
    answer = ask(peer, admin.MetricsRequest(3))
    assert isinstance(answer, admin.FailureResponse)
    assert answer.failure.code == ("internal" if str(error) else "out-of-memory")
    [record] = caplog.records
    assert (record.levelno, record.getMessage()) == (logging.ERROR, "admin port: MetricsRequest failed")
    assert record.exc_info is not None
    assert record.exc_info[1] is error


@pytest.mark.parametrize("leave", [KeyboardInterrupt, SystemExit])
def test_an_exit_ends_the_thread_and_leaves_nothing_counted(peer: Peer, leave: type[BaseException]) -> None:
    def exits() -> str:
        raise leave

    peer.port._metrics = exits
    peer.send(admin.encode(admin.MetricsRequest(3), 0))
    with pytest.raises(leave):
        peer.port.pool.work()
    peer.outbox.flush()
    assert (answers(peer), peer.connection.requests, peer.port.output_budget.promised) == ([], 0, 0)


def test_the_port_closes_its_threads_once() -> None:
    closed: list[int] = []
    port = AdminPort(Hosted(), metrics=str, limits=PortLimits(), log=LOG)  # type: ignore[arg-type]
    real = port.pool.close

    def close() -> None:
        closed.append(1)
        real()

    port.pool.close = close  # type: ignore[method-assign]

    async def work() -> None:
        await port.close()
        await port.close()

    asyncio.run(work())
    assert closed == [1]


def test_a_request_that_hangs_does_not_keep_the_port_from_closing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    port = AdminPort(Hosted(), metrics=str, limits=PortLimits(), log=LOG)  # type: ignore[arg-type]

    async def overdue(*_: object) -> None:
        raise OverdueError("admin-closing", 10.0)

    monkeypatch.setattr(admin_port.SingleFlight, "result", overdue)
    asyncio.run(port.close())
    assert [record.getMessage() for record in caplog.records] == [
        "admin port: a request is still being executed: admin-closing has not come back for 10.0 s"
    ]
    port.pool.close()


# ---- one after the other ------------------------------------------------------------------------------------------------


def requests(*numbers: int) -> bytes:
    return b"".join(admin.encode(admin.LastSessionInfoRequest(number, 1), 0) for number in numbers)


def test_requests_are_executed_one_after_the_other(peer: Peer) -> None:
    peer.send(requests(1, 2) + keep_alive(Magic.ADMIN, 0) + requests(3))
    size = len(requests(1)) - HEADER
    for left in (3, 2, 1):
        assert len(peer.port.pool.jobs) == 1
        assert (peer.connection.requests, peer.connection.size) == (left, left * size)
        assert peer.port.budget.used == left * (size + OVERHEAD)
        peer.port.pool.work()
        assert peer.port.pool.jobs == [], "not before this one's answer is on its way"
        assert peer.wire.written == []
        peer.outbox.flush()
        assert [one.sequence for one in answers(peer)] == [4 - left]
    assert peer.port.pool.jobs == []
    assert peer.connection.requests == 0


def test_none_is_begun_while_answers_lie_there(peer: Peer) -> None:
    peer.send(requests(1, 2))
    peer.connection.pause_writing()
    peer.port.pool.work()
    peer.outbox.flush()
    assert peer.port.pool.jobs == []
    assert peer.connection._pauses & Pause.UNREAD_ANSWERS
    peer.connection.resume_writing()
    assert len(peer.port.pool.jobs) == 1


def test_behind_the_end_of_a_connection_none_is_begun(peer: Peer) -> None:
    peer.send(requests(1, 2))
    peer.connection.close()
    peer.port.pool.work()
    peer.outbox.flush()
    assert peer.port.pool.jobs == []
    assert len(peer.port.hosted.asked) == 1


def test_who_is_gone_has_nothing_done_any_more(peer: Peer) -> None:
    peer.send(requests(1, 2, 3))
    peer.connection.connection_lost(None)
    assert peer.connection.requests == 1
    peer.port.pool.work()
    peer.outbox.flush()
    assert peer.port.hosted.asked == []
    assert peer.port.pool.jobs == []
    assert (peer.connection.requests, peer.connection.size, peer.port.budget.used) == (0, 0, 0)
    assert (peer.port.output_budget.promised, peer.port.output_budget.made) == (0, 0)


def test_a_list_is_counted_from_its_making_to_its_sending(peer: Peer) -> None:
    peer.send(admin.encode(admin.RecordListRequest(3, 1, 0, 5), 0))
    peer.port.pool.work()
    size = len(admin.encode(admin.RecordListResponse(3, 1, ()), 0))
    assert (peer.port.output_budget.promised, peer.port.output_budget.made) == (0, size)
    peer.outbox.flush()
    assert peer.port.output_budget.made == 0


# ---- frames -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cut", range(1, HEADER + 14))
def test_a_frame_may_come_in_two_pieces(peer: Peer, cut: int) -> None:
    frames = requests(1, 2)
    peer.send(frames[:cut])
    peer.send(frames[cut:])
    assert peer.connection.requests == 2
    for number in (1, 2):
        peer.port.pool.work()
        peer.outbox.flush()
        assert [one.sequence for one in answers(peer)] == [number]


def test_a_wrong_frame_is_shown_and_those_in_front_of_it_are_executed(
    peer: Peer, caplog: pytest.LogCaptureFixture
) -> None:
    whole = requests(5)
    long = peer.port.limits.max_admin_body
    for bad, why in (
        (
            FRAME_HEADER.struct.pack(Magic.STORAGE, 0, 1),
            f"a frame with magic 0x{Magic.STORAGE:02x} instead of 0x{Magic.ADMIN:02x}",
        ),
        (FRAME_HEADER.struct.pack(Magic.ADMIN, 1, 1), "a frame of version 1 instead of the agreed 0"),
        (FRAME_HEADER.struct.pack(Magic.ADMIN, 0, -1), f"a frame of -1 bytes, and {long} are the most here"),
        (
            FRAME_HEADER.struct.pack(Magic.ADMIN, 0, long + 1),
            f"a frame of {long + 1} bytes, and {long} are the most here",
        ),
        (admin.encode(SUCCESS, 0), "a message of type 1, which is no request"),
        (admin.encode(admin.RecordListResponse(1, 0, ()), 0), "a message of type 8, which is no request"),
    ):
        caplog.clear()
        other = peer.another()
        other.send(whole + bad + requests(6))
        shown = (bad + requests(6))[:32]
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in shown)
        assert [record.getMessage() for record in caplog.records] == [
            f"admin port: peer: closed: {why}; it begins with {shown.hex(' ')} ({text})"
        ]
        assert other.wire.closed
        assert other.connection.requests == 1
