"""A partition's service alone, one step after the other: no thread, no disk, and a clock that is set by hand."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path, PurePath
from types import SimpleNamespace
from typing import Any

import pytest

from tests.node.service_support import CONCURRENT, LOG, PATIENCE, STORAGE, Peer, appended, request_of, run_of
from tests.scan.wire_support import table_of
from waltzctl.engine.errors import CorruptRecordError, WaltzError
from waltzctl.engine.node import partition_outage, partition_service
from waltzctl.engine.node.node_metrics import NodePartitionMetrics
from waltzctl.engine.node.node_settings import ServiceOptions
from waltzctl.engine.node.partition_service import Admission, PartitionService
from waltzctl.engine.node.permissions import closed, not_loaded
from waltzctl.engine.node.requests import Request
from waltzctl.engine.scan.list_answers import Requests
from waltzctl.engine.scan.transcode import AppendEncoder
from waltzctl.engine.storage.availability_marks import Availability
from waltzctl.engine.storage.partition_condition import WRITABLE
from waltzctl.formats.wire.storage import (
    FailureResponse,
    MaxTransactionIdRequest,
    MaxTransactionIdResponse,
    RecordHeaderListRequest,
    RecordListRequest,
    StorageMessage,
    SuccessResponse,
    encode,
)

SESSION = 5
STALL = 30.0


class Partition:
    """What is executed on it is noted in `done`."""

    def __init__(self) -> None:
        self.number = 3
        self.path = Path("/d/3")
        self.session_id = SESSION
        self.low_water_mark = self.local_low_water_mark = -1
        self.marks_known = True
        self.marks_failed = None
        self.condition = WRITABLE
        self.findings: tuple[Any, ...] = ()
        self.next_transaction_id = 0
        self.done: list[object] = []
        self.unreadable: set[int] = set()
        self.writable: WaltzError | None = None
        self.meanwhile: Callable[[], None] = lambda: None
        self.cached = 0

    @property
    def max_transaction_id(self) -> int:
        self.meanwhile()
        return self.next_transaction_id - 1

    def append_blocks(self, blocks: Sequence[Any]) -> None:
        count = sum(block.records for block in blocks)
        self.done.append(count)
        self.next_transaction_id += count

    def truncate(self, after: int, *, allow_data_loss: bool) -> int:
        self.done.append((after, allow_data_loss))
        return after

    def read(self, transaction_id: int) -> None:
        if transaction_id in self.unreadable:
            raise CorruptRecordError("torn")

    def answer_lists(self, answers: Any, requests: Requests) -> None:
        self.asked = requests
        self.meanwhile()
        answers.answered = min(self.cached, len(requests.table))

    def check_writable(self) -> None:
        if self.writable is not None:
            raise self.writable


class Pool:
    """Where the service stands in line."""

    def __init__(self) -> None:
        self.line: list[Any] = []
        self.others_wait = self.at_rest = self.expects_company = False

    def schedule(self, job: Any) -> None:
        assert job not in self.line, "it stands in line already"
        self.line.append(job)


class Fences:
    def __init__(self, session: int) -> None:
        self.session = session
        self.raised: list[tuple[int, int]] = []

    def get(self, _number: int) -> int:
        return self.session

    def raise_to(self, number: int, session: int) -> None:
        self.raised.append((number, session))


class Room:
    def __init__(self) -> None:
        self.is_there = False

    def at(self, directory: PurePath) -> bool:
        return True

    def there(self) -> bool:
        return self.is_there


class Witness(Peer):
    """A peer that notes how many requests are still in the queue when it is answered."""

    def __init__(self, service: PartitionService) -> None:
        super().__init__()
        self.service, self.left = service, list[int]()

    def post(self, answer: bytes | list[bytes], requests: int, size: int) -> None:
        self.left.append(self.service.queue_size)
        super().post(answer, requests, size)

    def break_off(self, reason: str, requests: int, size: int) -> None:
        self.left.append(self.service.queue_size)
        super().break_off(reason, requests, size)


class Alone:
    """A service and everything that it sees."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, fence: int = -1, **options: Any) -> None:
        self.now = 1000.0
        for module in (partition_service, partition_outage):
            monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: self.now))
        self.partition, self.pool, self.fences, self.room = Partition(), Pool(), Fences(fence), Room()
        self.service = PartitionService(
            self.partition,  # type: ignore[arg-type]
            Availability(True, True),
            fences=self.fences,  # type: ignore[arg-type]
            pool=self.pool,  # type: ignore[arg-type]
            encoder=AppendEncoder(max_data_length=1000),
            metrics=NodePartitionMetrics(3),
            room=self.room,  # type: ignore[arg-type]
            options=ServiceOptions(**{"stall_seconds": STALL, **options}),
            max_data_length=1000,
            log=LOG,
        )
        self.peer = Witness(self.service)

    def item(self, size: int = 10, sequence: int = 1, session: int = SESSION) -> Request:
        return Request(self.peer, MaxTransactionIdRequest(session, sequence, 3), size, self.now)

    def submit(self, size: int = 10, sequence: int = 1) -> Admission:
        return self.service.submit(self.item(size, sequence))

    def work(self) -> bool:
        """A worker takes the service out of the line."""
        assert self.pool.line.pop(0) is self.service
        return self.service.run()

    def at_once(self, *messages: StorageMessage, room: int = 1000) -> int:
        """How many lists are answered at once."""
        received = b"".join(map(encode, messages))
        answers: Any = SimpleNamespace(answered=0)
        return self.service.answer_now(answers, received, table_of(received), room)

    def codes(self) -> list[str]:
        """What the peer was answered, failures by their codes; it is forgotten then."""
        found = [str(a.failure.code) if isinstance(a, FailureResponse) else "" for a in self.peer.answers]
        self.peer.answers.clear()
        return found


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> Alone:
    return Alone(monkeypatch)


# ---- the queue ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sizes", "taken"),
    [
        ([10, 10, 10, 10], 4), ([10, 10, 10, 10, 10], 4), ([60, 40], 2), ([60, 41], 1), ([500], 1), ([500, 1], 1),
        ([100], 1), ([100, 1], 1), ([99, 1], 2), ([0, 0, 0, 0, 0], 4),
    ],
)  # fmt: skip
def test_so_much_may_wait_and_an_empty_queue_takes_anything(
    monkeypatch: pytest.MonkeyPatch, sizes: list[int], taken: int
) -> None:
    alone = Alone(monkeypatch, queue_requests=4, queue_bytes=100)
    admissions = [alone.submit(size) for size in sizes]
    assert admissions == [Admission.ACCEPTED] * taken + [Admission.FULL] * (len(sizes) - taken)
    assert alone.service.queue_size == taken
    assert alone.work() is False
    assert alone.codes() == [""] * taken
    assert alone.submit(100) is Admission.ACCEPTED, "what was taken away counts no longer"


def test_what_was_taken_leaves_all_its_room(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = Alone(monkeypatch, queue_bytes=100, queue_requests=4)
    for _ in range(3):
        assert [alone.submit(20) for _ in range(5)] == [Admission.ACCEPTED] * 4 + [Admission.FULL]
        alone.work()
        assert [alone.submit(50) for _ in range(3)] == [Admission.ACCEPTED] * 2 + [Admission.FULL]
        alone.work()


def test_every_append_of_a_run_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = Alone(monkeypatch, queue_requests=4)
    assert alone.submit() is Admission.ACCEPTED
    three, four = ([encode(appended(n, session=SESSION, partition=3)) for n in range(count)] for count in (3, 4))
    assert alone.service.submit(run_of(alone.peer, four)) is Admission.FULL
    assert alone.service.submit(run_of(alone.peer, three)) is Admission.ACCEPTED
    assert alone.service.queue_size == 4


@pytest.mark.parametrize(
    ("silent", "told"), [(0.0, Admission.FULL), (STALL, Admission.FULL), (STALL + 1, Admission.STALLED)]
)
def test_a_queue_that_does_not_move_for_longer_is_stalled(
    monkeypatch: pytest.MonkeyPatch, silent: float, told: Admission
) -> None:
    alone = Alone(monkeypatch, queue_requests=1)
    alone.now += 500  # idle, which is no standstill
    alone.submit()
    assert alone.service.stalled_seconds == 0.0
    alone.now += silent
    assert alone.submit() is told
    assert alone.service.stalled_seconds == silent
    alone.work()
    alone.now += 700
    assert alone.service.stalled_seconds == 0.0, "nobody waits"


def test_what_comes_while_a_request_hangs_is_no_progress(alone: Alone) -> None:
    """However many come, somebody has to learn that nothing moves."""
    seen: list[float] = []

    def meanwhile() -> None:
        alone.partition.meanwhile = lambda: None
        for _ in range(3):
            alone.now += STALL
            assert alone.submit() is Admission.ACCEPTED
        seen.append(alone.service.stalled_seconds)

    alone.submit()
    alone.now += 1
    alone.submit()
    assert alone.service.stalled_seconds == 1
    alone.partition.meanwhile = meanwhile
    alone.work()
    assert seen == [3 * STALL]


def test_work_that_is_begun_and_each_answer_are_progress(alone: Alone) -> None:
    seen: list[tuple[float, int]] = []

    def meanwhile() -> None:
        seen.append((alone.service.stalled_seconds, alone.service.queue_size))
        alone.now += 7
        seen.append((alone.service.stalled_seconds, alone.service.queue_size))

    alone.partition.meanwhile = meanwhile
    alone.submit()
    alone.submit()
    alone.now += 100
    assert alone.service.stalled_seconds == 100
    alone.work()
    assert seen == [(0.0, 2), (7.0, 2), (0.0, 1), (7.0, 1)]
    assert alone.service.stalled_seconds == 0.0


def test_the_service_stands_in_line_once(alone: Alone) -> None:
    for sequence in range(3):
        alone.submit(sequence=sequence)
    assert alone.pool.line == [alone.service]
    assert alone.work() is False
    assert [answer.sequence for answer in alone.peer.answers] == [0, 1, 2]
    alone.submit()
    assert alone.pool.line == [alone.service]


def test_what_comes_while_it_works_is_done_at_once_unless_others_stand_in_line(alone: Alone) -> None:
    def one_more() -> None:
        alone.partition.meanwhile = lambda: None
        assert alone.submit(sequence=2) is Admission.ACCEPTED
        assert alone.pool.line == [], "it is at work"

    alone.partition.meanwhile = one_more
    alone.submit()
    assert alone.work() is False
    assert [answer.sequence for answer in alone.peer.answers] == [1, 2]
    alone.partition.meanwhile = one_more
    alone.submit()
    alone.pool.others_wait = True
    assert alone.work() is True
    assert [answer.sequence for answer in alone.peer.answers] == [1, 2, 1], "the line is for the second"
    assert alone.service.queue_size == 1
    assert alone.service.run() is True
    assert alone.service.run() is False
    assert alone.service.queue_size == 0


def test_there_is_room_when_what_was_queued_is_taken(alone: Alone, caplog: pytest.LogCaptureFixture) -> None:
    """Not when there is a little: who needs more would ask again and again."""
    called: list[int] = []

    def fails() -> None:
        called.append(1)
        raise ZeroDivisionError

    alone.service.on_room(lambda: called.append(0))
    assert called == [0], "nothing is queued"
    alone.submit(size=0)
    alone.service.on_room(fails)
    alone.service.on_room(lambda: called.append(2))
    assert called == [0]
    alone.partition.meanwhile = lambda: alone.service.on_room(lambda: called.append(3))
    alone.work()
    assert called == [0, 1, 2, 3], "what is under way is queued no more"
    assert [record.getMessage() for record in caplog.records] == [
        "a connection could not be told that partition 3 has room"
    ]
    alone.partition.meanwhile = lambda: None
    alone.submit()
    alone.work()
    assert called == [0, 1, 2, 3], "once"


# ---- holding and ending -------------------------------------------------------------------------------------------------


def test_while_it_is_held_everything_waits(alone: Alone) -> None:
    assert alone.service.hold(0.0)
    alone.now += 50
    assert alone.submit() is Admission.ACCEPTED
    assert alone.pool.line == []
    assert alone.service.stalled_seconds == 0.0, "it begins to wait now"
    alone.partition.cached = 9
    assert not alone.at_once(few())
    alone.service.resume()
    assert alone.pool.line == [alone.service]
    alone.service.resume()
    assert alone.pool.line == [alone.service], "once"
    alone.work()
    alone.service.resume()
    assert alone.pool.line == [], "nobody waits"


def test_what_stands_in_line_cannot_be_held_at_once_and_goes_on(alone: Alone) -> None:
    alone.submit()
    assert not alone.service.hold(0.0)
    alone.work()
    assert alone.codes() == [""]
    assert alone.service.hold(0.0)


class Waited(threading.Condition):
    """Says when somebody begins to wait."""

    def __init__(self, lock: Any) -> None:
        super().__init__(lock)
        self.begun = threading.Event()

    def wait_for(self, predicate: Callable[[], bool], timeout: float | None = None) -> bool:
        self.begun.set()
        return super().wait_for(predicate, timeout)


def test_whoever_holds_it_waits_for_what_is_under_way_only(alone: Alone) -> None:
    held: list[bool] = []
    alone.service._idle = waited = Waited(alone.service._lock)
    holding = threading.Thread(target=lambda: held.append(alone.service.hold(PATIENCE)))

    def meanwhile() -> None:
        alone.partition.meanwhile = lambda: None
        holding.start()
        assert waited.begun.wait(PATIENCE)
        alone.submit(sequence=2)

    alone.partition.meanwhile = meanwhile
    alone.submit()
    assert alone.work() is False
    holding.join()
    assert held == [True]
    assert [answer.sequence for answer in alone.peer.answers] == [1]
    alone.service.resume()
    alone.work()
    assert [answer.sequence for answer in alone.peer.answers] == [1, 2]


def test_whoever_holds_it_waits_for_an_answer_at_once_as_well(alone: Alone) -> None:
    held: list[bool] = []
    alone.partition.cached = 9
    alone.service._idle = waited = Waited(alone.service._lock)
    holding = threading.Thread(target=lambda: held.append(alone.service.hold(PATIENCE)))

    def meanwhile() -> None:
        holding.start()
        assert waited.begun.wait(PATIENCE)
        assert held == []

    alone.partition.meanwhile = meanwhile
    assert alone.at_once(few())
    holding.join()
    assert held == [True]


def test_a_worker_that_finds_it_held_leaves_the_queue_alone(alone: Alone) -> None:
    alone.submit()

    def held_meanwhile() -> None:
        alone.partition.meanwhile = lambda: None
        alone.service._held = True  # `hold` sets it, in a thread of its own, and waits
        alone.submit(sequence=2)

    alone.partition.meanwhile = held_meanwhile
    assert alone.work() is False
    assert [answer.sequence for answer in alone.peer.answers] == [1]
    assert alone.service.hold(0.0)
    alone.service.resume()
    alone.work()
    assert [answer.sequence for answer in alone.peer.answers] == [1, 2]


def test_what_comes_after_the_end_is_refused_and_what_was_queued_as_well(alone: Alone) -> None:
    called: list[int] = []
    alone.service.hold(0.0)
    for sequence in range(3):
        alone.submit(5_000_000, sequence)
    alone.service.on_room(lambda: called.append(1))
    alone.service.end(not_loaded(3))
    assert alone.codes() == ["not-assigned"] * 3
    assert called == [1]
    assert (alone.service.queue_size, alone.service.stalled_seconds) == (0, 0.0)
    assert alone.submit() is Admission.ACCEPTED
    assert alone.codes() == ["not-assigned"]
    assert alone.pool.line == []
    alone.partition.cached = 9
    assert not alone.at_once(few())
    assert alone.peer.requests == 4


def test_refusing_lets_what_is_queued_be_executed(alone: Alone) -> None:
    alone.submit()
    alone.service.refuse(closed())
    alone.submit()
    assert alone.codes() == ["closed"]
    assert not alone.service.drain(closed(), 0.0), "somebody is at it"
    assert alone.codes() == ["closed"], "but nobody waits for an answer any more"
    alone.work()
    assert alone.codes() == []
    assert alone.service.drain(closed(), 0.0)


def test_draining_refuses_from_the_beginning(alone: Alone) -> None:
    assert alone.service.drain(closed(), 0.0)
    alone.submit()
    assert alone.codes() == ["closed"]


def test_while_it_is_drained_everybody_is_refused_already(alone: Alone, monkeypatch: pytest.MonkeyPatch) -> None:
    refused: list[object] = []

    def wait_for(_done: object, _seconds: float | None) -> bool:
        refused.append(alone.service._closing_denial)
        return True

    monkeypatch.setattr(alone.service._idle, "wait_for", wait_for)
    assert alone.service.drain(closed(), 1.0)
    assert refused == [closed()]


# ---- at once ------------------------------------------------------------------------------------------------------------


def few(session: int = SESSION, count: int = 5) -> RecordListRequest:
    return RecordListRequest(session, 9, 3, 0, count)


def headers(count: int = 5) -> RecordHeaderListRequest:
    return RecordHeaderListRequest(SESSION, 9, 3, 0, count)


def test_lists_are_answered_in_the_thread_that_asks(alone: Alone) -> None:
    """And counted, each as what it is; those that are left are not."""
    alone.partition.cached = 4
    assert alone.at_once(few(), headers(), headers(), few(), headers()) == 4
    assert alone.service.metrics.record_list_request.count == 2
    assert alone.service.metrics.record_header_list_request.count == 2
    assert alone.at_once(headers()) == 1
    assert alone.service.metrics.record_header_list_request.count == 3
    assert alone.pool.line == []
    assert alone.service.hold(0.0), "it is idle again"


@pytest.mark.parametrize("limit", [200, 1 << 20])
def test_what_the_partition_is_asked_at_once(monkeypatch: pytest.MonkeyPatch, limit: int) -> None:
    alone = Alone(monkeypatch, fence=SESSION + 2, max_list_bytes=limit)
    assert not alone.at_once(few(), headers(), room=77)
    asked = alone.partition.asked
    assert (asked.session, asked.most, asked.room) == (SESSION + 2, limit, 77)
    assert bytes(asked.received) == encode(few()) + encode(headers())
    assert len(asked.table) == 2


def test_nothing_is_answered_at_once_while_reading_is_switched_off(alone: Alone) -> None:
    alone.partition.cached = 9
    alone.service.access.availability = Availability(False, True)
    assert not alone.at_once(few())
    alone.service.access.availability = Availability(True, False)
    assert alone.at_once(few())


def test_what_came_while_something_was_answered_at_once_gets_its_worker(alone: Alone) -> None:
    alone.partition.cached = 9

    def another() -> None:
        assert not alone.at_once(few()), "one at a time"
        alone.submit()
        assert alone.pool.line == []

    alone.partition.meanwhile = another
    assert alone.at_once(few())
    alone.partition.meanwhile = lambda: None
    assert alone.pool.line == [alone.service]
    assert not alone.service.hold(0.0)
    alone.work()
    assert alone.service.hold(0.0)
    alone.service.resume()

    def held() -> None:
        alone.service._held = True  # by `hold`, which waits in a thread of its own
        alone.submit()

    alone.partition.meanwhile = held
    assert alone.at_once(few())
    alone.partition.meanwhile = lambda: None
    assert alone.pool.line == [], "it is held"
    assert alone.service.hold(0.0)
    alone.service.resume()
    assert alone.pool.line == [alone.service]


def test_an_error_while_answering_at_once_leaves_it_to_a_worker(alone: Alone) -> None:
    def fails() -> None:
        raise ZeroDivisionError

    alone.partition.meanwhile = fails
    assert not alone.at_once(few())
    assert alone.peer.answers == []
    assert alone.service.hold(0.0)


# ---- a frame that cannot be decoded -------------------------------------------------------------------------------------


def test_what_stands_behind_a_broken_frame_is_not_looked_at_until_the_queue_is_empty(alone: Alone) -> None:
    """Its peer's only: an answer to each of the others."""
    broken = bytearray(encode(appended(1, session=SESSION, partition=3)))
    broken[28:32] = (1 << 30).to_bytes(4, "big")
    other = Peer()
    alone.service.hold(0.0)
    good = encode(appended(0, session=SESSION, partition=3, sequence=4))
    alone.service.submit(run_of(alone.peer, [good, bytes(broken), good]))
    alone.submit(sequence=5)
    alone.service.submit(request_of(other, MaxTransactionIdRequest(SESSION, 6, 3)))
    alone.service.submit(run_of(other, [encode(appended(1, session=SESSION, partition=3, sequence=7))]))
    alone.service.resume()
    alone.work()
    assert alone.peer.answers == [SuccessResponse(SESSION, 4, 3)]
    assert alone.peer.reasons == ["a request that cannot be decoded"] * 2
    assert alone.peer.left == [3, 3, 2], "appends are answered when those behind them are done as well"
    assert (alone.peer.requests, alone.service.queue_size) == (4, 0)
    assert other.answers == [MaxTransactionIdResponse(SESSION, 6, 3, 0), SuccessResponse(SESSION, 7, 3)]
    assert alone.partition.done == [1, 1]
    assert alone.service.commit.broken == [], "whoever comes now is another one"


def test_a_broken_frame_is_remembered_while_the_partition_is_held(alone: Alone) -> None:
    broken = bytearray(encode(appended(0, session=SESSION, partition=3)))
    broken[28:32] = (1 << 30).to_bytes(4, "big")
    alone.service.hold(0.0)
    alone.service.submit(run_of(alone.peer, [bytes(broken)]))
    alone.service.submit(request_of(Peer(), MaxTransactionIdRequest(SESSION, 6, 3)))

    def held_meanwhile() -> None:
        alone.partition.meanwhile = lambda: None
        alone.submit(sequence=7)
        alone.service._held = True

    alone.partition.meanwhile = held_meanwhile
    alone.service.resume()
    alone.work()
    alone.service.resume()
    alone.work()
    assert alone.peer.answers == []
    assert len(alone.peer.reasons) == 2


@pytest.mark.parametrize("leave", [KeyboardInterrupt, SystemExit])
def test_an_exit_is_raised_when_everybody_has_an_answer(alone: Alone, leave: type[BaseException]) -> None:
    def exits() -> None:
        raise leave

    for sequence in range(2):
        alone.submit(sequence=sequence)
    alone.partition.meanwhile = exits
    alone.service.submit(run_of(alone.peer, [encode(appended(0, session=SESSION, partition=3))]))
    with pytest.raises(leave):
        alone.work()
    assert alone.codes() == ["internal", "internal", ""]
    assert alone.service.queue_size == 0


def test_the_texts_of_refusals_name_the_partition(alone: Alone) -> None:
    busy = alone.service.busy_answer(alone.item())
    assert f"{STORAGE}partition 3 is busy: it has made no progress for more than 30 seconds".encode() in busy
    alone.service.submit(alone.item(session=1))
    alone.work()
    [answer] = alone.peer.answers
    assert isinstance(answer, FailureResponse)
    assert answer.failure.message == f"{CONCURRENT}session id has changed to 5, but request context contains 1"
