"""A connection of the data port alone: which bytes it hands to which partition, when it waits, and what it has counted behind.

Its partitions here note what they are given and answer when they are told to.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.builders import KEY
from tests.node.serving import SESSION, appends
from tests.node.unplugged import Peer
from tests.scan.wire_support import table_of
from waltzctl.engine.errors import MismatchError
from waltzctl.engine.net.connection import OVERHEAD
from waltzctl.engine.node import data_port
from waltzctl.engine.node.partition_service import Admission
from waltzctl.engine.node.requests import AppendRun
from waltzctl.engine.scan.frames import FrameColumn, FrameSplitter
from waltzctl.engine.scan.list_answers import LIST_BODY
from waltzctl.formats.wire import storage
from waltzctl.formats.wire.failure import PLAIN_EXCEPTION, Failure
from waltzctl.formats.wire.frame import FRAME_HEADER, FrameReader, Magic, keep_alive

HEADER = FRAME_HEADER.size


class Passes:
    """Notes who was scheduled together."""

    def __init__(self) -> None:
        self.calls: list[list[Any]] = []

    def schedule(self, *members: Any) -> None:
        self.calls.append([*members])


class Answered:
    """What partitions answered at once."""

    frames = b""

    def take(self) -> bytes:
        return self.frames


@dataclass
class Partition:
    """A partition's service.  `admission`: what it says to the next item; `quick`: so many lists it answers in one go.

    `_passes`: with them an append is noted for whoever starts several together.  `breaks`: it fails, and nobody knows how far it
    came.
    """

    admission: Admission = Admission.ACCEPTED
    quick: int = 0
    taken: list[Any] = field(default_factory=list)
    waiters: list[Callable[[], None]] = field(default_factory=list)
    rooms: list[int] = field(default_factory=list)
    asked: list[list[int]] = field(default_factory=list)
    frame: int = 10
    _passes: Passes | None = None
    breaks: bool = False
    went_on: int = 0

    def submit(self, item: Any, together: list[Any] | None = None) -> Admission:
        if self.breaks:
            raise MemoryError
        if self.admission is Admission.ACCEPTED:
            self.taken.append(item)
            if together is not None and self._passes is not None and len(self.taken) == 1:
                together.append(self)
        return self.admission

    def go_on(self) -> None:
        self.went_on += 1

    def answer_now(self, answers: Answered, received: Any, table: Any, room: int) -> int:
        """Frames of so many bytes, which begin with the sequence number."""
        self.rooms.append(room)
        numbers = table[:, int(FrameColumn.SEQUENCE)].tolist()
        for number, body in zip(numbers, table[:, int(FrameColumn.BODY)].tolist(), strict=True):
            message = storage.decode(bytes(received[body : body + LIST_BODY]))
            assert (type(message), message.sequence) == (storage.RecordListRequest, number)
        self.asked.append(numbers)
        answers.frames = b"".join(number.to_bytes(self.frame) for number in numbers[: self.quick])
        return min(self.quick, len(numbers))

    def on_room(self, callback: Callable[[], None]) -> None:
        self.waiters.append(callback)

    def busy_answer(self, _item: Any) -> bytes:
        return b"busy"


class Hosted:
    """Partitions 0 to 2 of a cluster with this key and 3 partitions."""

    def __init__(self) -> None:
        self.partitions = {number: Partition() for number in range(3)}

    def service(self, number: int) -> Any:
        return self.partitions.get(number)

    def check_open(self, key: object, count: int) -> None:
        if (key, count) != (KEY, 3):
            raise MismatchError("another cluster")


@pytest.fixture
def hosted() -> Hosted:
    return Hosted()


def connected(hosted: Hosted, **limits: Any) -> Peer:
    peer = Peer(hosted=hosted, **limits)
    peer.port.lists = Answered()
    peer.wire.written.clear()
    return peer


def said(peer: Peer) -> list[bytes]:
    """What was written since the last time."""
    peer.port._send()
    written, peer.wire.written = peer.wire.written, []
    return written


def last_id(number: int, partition: int = 0) -> storage.MaxTransactionIdRequest:
    return storage.MaxTransactionIdRequest(SESSION, number, partition)


def read(number: int, partition: int = 0) -> storage.RecordRequest:
    return storage.RecordRequest(SESSION, number, partition, 0)


def short_list(number: int, partition: int = 0) -> storage.RecordListRequest:
    return storage.RecordListRequest(SESSION, number, partition, 0, 5)


def handed(partition: Partition) -> list[Any]:
    """What a partition was given: the frames of a run, read where its table says, or a message; and nothing else stands in it."""
    found: list[Any] = []
    for item in partition.taken:
        if isinstance(item, AppendRun):
            rows = [(int(row[int(FrameColumn.BODY)]), int(row[int(FrameColumn.LENGTH)])) for row in item.table]
            assert item.size == sum(length for _, length in rows)
            found.append([bytes(item.buffer[start - HEADER : start + length]) for start, length in rows])
        else:
            assert item.size == len(storage.encode(item.message)) - HEADER
            found.append(item.message)
    return found


# ---- what is handed to whom ---------------------------------------------------------------------------------------------


def test_frames_go_to_their_partitions_in_their_order(hosted: Hosted) -> None:
    """Runs of appends, cut by what is none and by other partitions; keep-alives and an open request stand between."""
    peer = connected(hosted)
    zero, one, two = (appends(0, 6, partition=number, size=20 + number) for number in range(3))
    opened = storage.encode(storage.OpenRequest(KEY, 3))
    parts = [
        zero[0], keep_alive(Magic.STORAGE, 0), zero[1], one[0], zero[2], storage.encode(last_id(1)), zero[3], one[1],
        opened, one[2], storage.encode(read(2, 2)), two[0], keep_alive(Magic.STORAGE, 0), two[1], zero[4], zero[5],
    ]  # fmt: skip
    begun = time.monotonic()
    peer.send(b"".join(parts))
    assert handed(hosted.partitions[0]) == [[zero[0], zero[1], zero[2]], last_id(1), [zero[3], zero[4], zero[5]]]
    assert handed(hosted.partitions[1]) == [[one[0], one[1], one[2]]]
    assert handed(hosted.partitions[2]) == [read(2, 2), [two[0], two[1]]]
    items = [item for partition in hosted.partitions.values() for item in partition.taken]
    assert all(begun <= item.received <= time.monotonic() for item in items)
    assert len({item.received for item in items}) == 1, "they came together"
    assert [item.sender is peer.connection for item in items] == [True, True, True, True, False, True]
    assert said(peer) == [storage.encode(storage.SuccessResponse(-1, -1, -1))]
    assert peer.connection.requests == 13
    assert peer.connection.size == sum(len(part) - HEADER for part in parts if part is not opened)


@pytest.mark.parametrize("count", [1, 3])
def test_a_run_has_a_copy_of_just_its_bytes(hosted: Hosted, count: int) -> None:
    """The buffer that it was received in belongs to all, and is written over."""
    peer = connected(hosted)
    frames = appends(0, count, size=30)
    peer.send(b"".join(frames))
    [run] = hosted.partitions[0].taken
    assert bytes(run.buffer) == b"".join(frames)
    peer.port.scratch[:] = bytes(len(peer.port.scratch))
    assert handed(hosted.partitions[0]) == [frames]


def test_a_run_of_which_other_frames_stand_between_has_neither_them_nor_more_of_its_own(hosted: Hosted) -> None:
    peer = connected(hosted)
    mine, other = appends(0, 5, size=30), appends(0, 2, partition=1, size=50)
    peer.send(b"".join([mine[0], other[0], mine[1], mine[2], other[1], mine[3], mine[4]]))
    [run] = hosted.partitions[0].taken
    assert bytes(run.buffer) == b"".join(mine)
    assert handed(hosted.partitions[0]) == [mine]
    assert handed(hosted.partitions[1]) == [other]


def test_a_big_frame_keeps_the_buffer_it_was_received_in(hosted: Hosted) -> None:
    peer = connected(hosted, big_frame=1000)
    [frame] = appends(0, 1, size=2000)
    peer.send(frame[:50])
    peer.send(frame[50:])
    [run] = hosted.partitions[0].taken
    assert isinstance(run.buffer, bytearray)
    assert handed(hosted.partitions[0]) == [[frame]]
    assert peer.port.budget.used == len(frame) - HEADER + OVERHEAD, "its place is given back, and it is under way"


def test_each_of_several_partitions_has_a_copy_of_just_its_bytes(hosted: Hosted) -> None:
    """One append each, or one that has several; before, between and behind those of others and what is no append."""
    peer = connected(hosted)
    zero, one, two = (appends(0, count, partition=number, size=30 + number) for number, count in enumerate((1, 3, 1)))
    read_of = storage.encode(last_id(9, 2))
    peer.send(b"".join([one[0], read_of, zero[0], keep_alive(Magic.STORAGE, 0), one[1], one[2], two[0]]))
    peer.port.scratch[:] = bytes(len(peer.port.scratch))
    assert handed(hosted.partitions[0]) == [zero]
    assert handed(hosted.partitions[1]) == [one]
    assert handed(hosted.partitions[2]) == [last_id(9, 2), two]
    runs = [item for each in hosted.partitions.values() for item in each.taken if isinstance(item, AppendRun)]
    assert [bytes(run.buffer) for run in runs] == [b"".join(frames) for frames in (zero, one, two)]
    assert all(type(run.buffer) is bytes for run in runs)


def corrupted(number: int) -> bytes:
    """A read with a byte too many."""
    whole = storage.encode(read(number))
    return FRAME_HEADER.struct.pack(Magic.STORAGE, 0, len(whole) - HEADER + 1) + whole[HEADER:] + b"\0"


@pytest.mark.parametrize("in_front", [0, 1, 2])
def test_what_stands_in_front_of_a_message_that_cannot_be_decoded_is_executed(
    hosted: Hosted, in_front: int, caplog: pytest.LogCaptureFixture
) -> None:
    peer = connected(hosted)
    frames = appends(0, in_front, size=20)
    wrong = corrupted(7)
    peer.send(b"".join([*frames, wrong, *appends(0, 1, partition=1), storage.encode(last_id(9, 2))]))
    assert handed(hosted.partitions[0]) == ([frames] if in_front else [])
    assert not hosted.partitions[1].taken
    assert not hosted.partitions[2].taken
    assert peer.wire.closed
    [line] = [record.getMessage() for record in caplog.records]
    assert line.startswith("data port: peer: closed: a corrupted message: ")
    assert f"; it begins with {wrong[:32].hex(' ')} (" in line


def test_behind_a_message_that_cannot_be_decoded_nothing_more_is_split(hosted: Hosted) -> None:
    peer = connected(hosted)
    peer.port.splitter = FrameSplitter(magic=Magic.STORAGE, max_body=1000, rows=2)
    peer.send(b"".join([*appends(0, 1), corrupted(7), *appends(0, 5, partition=1)]))
    assert [len(one.taken) for one in hosted.partitions.values()] == [1, 0, 0]
    assert peer.wire.closed


def test_a_refusal_shows_its_frame_and_not_those_in_front(hosted: Hosted, caplog: pytest.LogCaptureFixture) -> None:
    for bad, why in (
        (FRAME_HEADER.struct.pack(Magic.ADMIN, 0, 1), "a frame with magic 0x15 instead of 0x69"),
        (FRAME_HEADER.struct.pack(Magic.STORAGE, 3, 1), "a frame of version 3 instead of the agreed 0"),
        (FRAME_HEADER.struct.pack(Magic.STORAGE, 0, 5000), "a frame of 5000 bytes, and 4000 are the most here"),
        (
            FRAME_HEADER.struct.pack(Magic.STORAGE, 0, 3) + b"abc",
            "a frame of 3 bytes, which is too short for any message",
        ),
    ):
        caplog.clear()
        peer = connected(hosted, max_body=4000)
        peer.send(storage.encode(last_id(1)) + bad)
        why = why.replace("0x15", f"0x{Magic.ADMIN:02x}").replace("0x69", f"0x{Magic.STORAGE:02x}")
        shown = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in bad)
        assert [record.getMessage() for record in caplog.records] == [
            f"data port: peer: closed: {why}; it begins with {bad.hex(' ')} ({shown})"
        ]
        assert hosted.partitions[0].taken.pop().message == last_id(1)


def test_an_open_request_is_compared_and_nothing_depends_on_it(
    hosted: Hosted, caplog: pytest.LogCaptureFixture
) -> None:
    peer = connected(hosted)
    peer.send(storage.encode(storage.OpenRequest(KEY, 4)))
    failure = Failure.with_code("com.wepay.waltz.storage.exception.StorageException: another cluster", "mismatch")
    assert said(peer) == [storage.encode(storage.FailureResponse(-1, -1, -1, failure))]
    assert [record.getMessage() for record in caplog.records] == [
        "data port: peer: open request refused: another cluster"
    ]
    peer.send(storage.encode(last_id(3)))
    assert handed(hosted.partitions[0]) == [last_id(3)]
    assert (peer.connection.requests, peer.connection.size) == (1, len(storage.encode(last_id(3))) - HEADER)


# ---- who is executed together -------------------------------------------------------------------------------------------


@pytest.fixture
def passes(hosted: Hosted) -> Passes:
    """Those of all partitions."""
    found = Passes()
    for partition in hosted.partitions.values():
        partition._passes = found
    return found


def going_on(hosted: Hosted) -> list[int]:
    return [partition.went_on for partition in hosted.partitions.values()]


def test_partitions_of_one_block_are_scheduled_together_when_all_have_their_requests(
    hosted: Hosted, passes: Passes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever stands between their appends; each once, however many runs it has."""
    peer = connected(hosted)
    zero, one, two = (appends(0, 3, partition=number) for number in range(3))
    taken: list[int] = []
    real = Passes.schedule

    def schedule(self: Passes, *members: Any) -> None:
        taken.append(sum(len(partition.taken) for partition in hosted.partitions.values()))
        real(self, *members)

    monkeypatch.setattr(Passes, "schedule", schedule)
    opened, asked = storage.encode(storage.OpenRequest(KEY, 3)), storage.encode(last_id(7, 1))
    nothing = keep_alive(Magic.STORAGE, 0)
    parts = [two[0], nothing, zero[0], one[0], opened, asked, one[1], nothing, two[1], zero[1], one[2], zero[2], two[2]]
    peer.send(b"".join(parts))
    assert passes.calls == [list(hosted.partitions.values())]
    assert taken == [5], "three runs, the message, and the run behind it"
    assert going_on(hosted) == [0, 0, 0]
    assert peer.connection.requests == 10
    assert peer.connection.size == sum(len(part) - HEADER for part in parts if part not in (opened, nothing))
    assert peer.port.budget.used == peer.connection.size + 10 * OVERHEAD
    for item in [item for partition in hosted.partitions.values() for item in partition.taken]:
        item.sender.post(b"", len(item.table) if isinstance(item, AppendRun) else 1, item.size)
    peer.outbox.flush()
    assert (peer.connection.requests, peer.connection.size, peer.port.budget.used) == (0, 0, 0)


def test_a_partition_of_a_block_that_has_nobody_beside_it_goes_on_by_itself(hosted: Hosted, passes: Passes) -> None:
    """It may be the only one that is at work, and needs no pass then."""
    peer = connected(hosted)
    hosted.partitions[1]._passes = None  # so that its appends are executed without a pass
    peer.send(b"".join([*appends(0, 2), *appends(0, 2, partition=1), storage.encode(last_id(7, 2))]))
    assert (passes.calls, going_on(hosted)) == ([], [1, 0, 0])
    assert [len(partition.taken) for partition in hosted.partitions.values()] == [1, 1, 1]


def test_who_has_no_room_or_stands_still_is_not_scheduled_with_the_others(hosted: Hosted, passes: Passes) -> None:
    peer = connected(hosted)
    hosted.partitions[0].admission, hosted.partitions[1].admission = Admission.FULL, Admission.STALLED
    frames = [frame for number in (0, 1, 2, 9) for frame in appends(0, 2, partition=number)]
    peer.send(b"".join(frames))
    assert (passes.calls, going_on(hosted)) == ([], [0, 0, 1])
    assert peer.connection.requests == 4, "those that wait and those that are taken; the others are answered"
    hosted.partitions[0].admission = Admission.ACCEPTED
    hosted.partitions[0].waiters.pop()()
    peer.outbox.flush()
    assert (passes.calls, going_on(hosted)) == ([], [0, 0, 1]), "what waited is executed as it comes"
    assert handed(hosted.partitions[0]) == [frames[:2]]


def test_what_is_alone_in_its_block_is_executed_as_it_comes(hosted: Hosted, passes: Passes) -> None:
    peer = connected(hosted)
    for frames in (appends(0, 1), appends(0, 3, partition=1), [storage.encode(last_id(7, 2))]):
        peer.send(b"".join(frames))
    assert (passes.calls, going_on(hosted)) == ([], [0, 0, 0])
    assert [len(partition.taken) for partition in hosted.partitions.values()] == [1, 1, 1]


@pytest.mark.parametrize(("breaks", "started"), [(0, []), (1, [0]), (2, [0, 1])])
def test_when_a_partition_fails_those_in_front_of_it_are_executed_and_what_is_behind_it_is_given_back(
    hosted: Hosted, passes: Passes, breaks: int, started: list[int]
) -> None:
    """Whether the one that failed will answer what it was given nobody knows: to give it back twice would be worse."""
    peer = connected(hosted)
    frames = [appends(0, 2 + number, partition=number, size=20 + number) for number in range(3)]
    hosted.partitions[breaks].breaks = True
    with pytest.raises(MemoryError):
        peer.send(b"".join(frame for each in frames for frame in each))
    scheduled = [hosted.partitions[number] for number in started]
    if len(started) == 1:
        assert (passes.calls, going_on(hosted)) == ([], [1, 0, 0])
    else:
        assert (passes.calls, going_on(hosted)) == ([scheduled] if scheduled else [], [0, 0, 0])
    assert [len(partition.taken) for partition in hosted.partitions.values()] == [
        int(number in started) for number in range(3)
    ]
    left = [frame for each in frames[: breaks + 1] for frame in each]
    assert peer.connection.requests == len(left)
    assert peer.connection.size == sum(len(frame) - HEADER for frame in left)
    assert peer.port.budget.used == peer.connection.size + OVERHEAD * len(left)


@pytest.mark.parametrize("which", [0, 1])
def test_what_there_was_no_memory_for_is_given_back_too(
    hosted: Hosted, passes: Passes, which: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    peer = connected(hosted)
    frames = [*appends(0, 2), *appends(0, 2, partition=1), storage.encode(last_id(7, 2))]
    real, made = data_port.run_of, list[object]()

    def run(*given: Any) -> AppendRun:
        if len(made) == which:
            raise MemoryError
        made.append(given)
        return real(*given)

    monkeypatch.setattr(data_port, "run_of", run)
    with pytest.raises(MemoryError):
        peer.send(b"".join(frames))
    assert going_on(hosted) == [which, 0, 0]
    assert peer.connection.requests == 2 * which
    assert peer.port.budget.used == sum(len(frame) - HEADER + OVERHEAD for frame in frames[: 2 * which])


# ---- who has no room ----------------------------------------------------------------------------------------------------


def test_every_request_for_a_partition_of_another_node_fails_alone(hosted: Hosted) -> None:
    peer = connected(hosted)
    frames = appends(40, 2, partition=9)
    peer.send(b"".join([*frames, storage.encode(read(8, 9)), storage.encode(last_id(3))]))
    reader = FrameReader()
    reader.feed(b"".join(said(peer)))
    found = [storage.decode(bytes(body)) for body in iter(lambda: reader.next(Magic.STORAGE, 0), None)]
    failure = Failure.with_code(f"{PLAIN_EXCEPTION}: Partition:9 is not assigned.", "not-assigned")
    assert found == [storage.FailureResponse(SESSION, number, 9, failure) for number in (40, 41, 8)]
    assert handed(hosted.partitions[0]) == [last_id(3)]
    assert peer.connection.requests == 1
    assert peer.port.budget.used == peer.connection.size + OVERHEAD


def test_what_a_full_partition_does_not_take_waits_in_its_order_and_holds_nobody_else_up(hosted: Hosted) -> None:
    peer = connected(hosted)
    full, other = hosted.partitions[0], hosted.partitions[1]
    full.admission = Admission.FULL
    frames = appends(0, 4, size=20)
    for frame in (*frames[:2], storage.encode(last_id(7)), *appends(0, 1, partition=1), *frames[2:]):
        peer.send(frame)
    assert full.taken == []
    assert len(other.taken) == 1
    assert len(full.waiters) == 1, "it asks once"
    full.waiters.pop()()
    peer.outbox.flush()
    assert full.taken == []
    assert len(full.waiters) == 1, "there was no room after all: it asks again"
    full.admission = Admission.ACCEPTED
    full.waiters.pop()()
    assert full.taken == [], "not in the thread of whoever calls back"
    peer.outbox.flush()
    assert handed(full) == [[frames[0]], [frames[1]], last_id(7), [frames[2]], [frames[3]]]
    assert peer.connection.requests == 6
    peer.send(appends(4, 1)[0])
    assert len(full.taken) == 6, "nobody waits any more, so that it need not either"
    assert full.waiters == []


@pytest.mark.parametrize("kind", ["append", "read", "other"])
def test_nothing_overtakes_what_waits_also_when_there_is_room_by_then(hosted: Hosted, kind: str) -> None:
    """Between the moment in which there is room and the one in which the connection hears of it."""
    peer = connected(hosted)
    full = hosted.partitions[0]
    frames = appends(0, 2, size=20)
    first, told = {
        "append": (frames[0], [frames[0]]),
        "read": (storage.encode(read(7)), read(7)),
        "other": (storage.encode(last_id(7)), last_id(7)),
    }[kind]
    full.admission = Admission.FULL
    peer.send(first)
    full.admission = Admission.ACCEPTED
    peer.send(frames[1])
    assert full.taken == []
    full.waiters.pop()()
    peer.outbox.flush()
    assert handed(full) == [told, [frames[1]]]


def test_nothing_overtakes_a_read_that_waits_for_its_turn(hosted: Hosted) -> None:
    peer = connected(hosted)
    partition = hosted.partitions[0]
    frame = appends(0, 1)[0]
    for sent in (storage.encode(read(1)), storage.encode(read(2)), frame, storage.encode(last_id(3))):
        peer.send(sent)
    assert handed(partition) == [read(1)]
    assert answer_read(peer, partition) == read(1)
    assert handed(partition) == [read(2), [frame], last_id(3)]


def test_a_partition_that_stands_still_is_answered_as_busy_and_nothing_is_counted(hosted: Hosted) -> None:
    peer = connected(hosted)
    hosted.partitions[0].admission = Admission.STALLED
    for frame in (*appends(0, 1), storage.encode(read(1)), storage.encode(last_id(2))):
        peer.send(frame)
        assert said(peer) == [b"busy"]
        assert (peer.connection.requests, peer.connection.size, peer.port.budget.used) == (0, 0, 0)
    assert peer.port.reads.used == 0
    assert hosted.partitions[0].waiters == []


def test_what_waits_in_a_connection_that_is_to_end_is_not_begun_any_more(hosted: Hosted) -> None:
    peer = connected(hosted)
    full = hosted.partitions[0]
    full.admission = Admission.FULL
    peer.send(b"".join([*appends(0, 1), storage.encode(read(1))]))
    peer.connection.close()
    full.admission = Admission.ACCEPTED
    for waiter in full.waiters:
        waiter()
    peer.outbox.flush()
    peer.connection._go_on()
    assert full.taken == []
    assert peer.port.reads.used == 0


def test_who_is_gone_gives_back_what_waited(hosted: Hosted) -> None:
    peer = connected(hosted)
    full = hosted.partitions[0]
    full.admission = Admission.FULL
    peer.send(b"".join([*appends(0, 3), storage.encode(read(1)), storage.encode(last_id(2))]))
    assert peer.connection.requests == 5
    peer.connection.connection_lost(None)
    assert (peer.connection.requests, peer.connection.size, peer.port.budget.used) == (0, 0, 0)
    full.admission = Admission.ACCEPTED
    for waiter in full.waiters:
        waiter()
    peer.outbox.flush()
    assert full.taken == []


# ---- answers ------------------------------------------------------------------------------------------------------------


def test_an_answer_is_sent_in_the_loop_and_what_it_was_for_is_over(hosted: Hosted) -> None:
    peer = connected(hosted)
    peer.send(b"".join([*appends(0, 2), storage.encode(last_id(5))]))
    run, request = hosted.partitions[0].taken
    done: list[int] = []
    run.sender.later(done.append, 3)
    assert peer.outbox.later == [(done.append, (3,))]
    assert run.sender.room_for_answer() == peer.port.limits.max_list_bytes
    run.sender.post([b"one", b"two"], 2, run.size)
    assert (said(peer), peer.connection.requests) == ([], 3)
    peer.outbox.flush()
    assert (said(peer), peer.connection.requests, peer.connection.size) == ([b"onetwo"], 1, request.size)
    request.sender.post(b"three", 1, request.size)
    peer.outbox.flush()
    assert (said(peer), peer.connection.requests, peer.port.budget.used) == ([b"three"], 0, 0)


def test_what_is_broken_off_closes_once_and_says_why(hosted: Hosted, caplog: pytest.LogCaptureFixture) -> None:
    peer = connected(hosted)
    peer.send(b"".join([*appends(0, 2), storage.encode(read(5))]))
    run, request = hosted.partitions[0].taken
    assert not request.sender.closed
    assert not run.sender.closed
    request.sender.break_off("enough", 1, request.size)
    assert request.sender.closed, "at once, for all threads"
    assert run.sender.closed
    assert not peer.wire.closed
    run.sender.break_off("enough", 2, run.size)
    peer.outbox.flush()
    assert peer.wire.closed
    assert [record.getMessage() for record in caplog.records] == ["data port: peer: closed: enough"]
    assert (peer.connection.requests, peer.connection.size, peer.port.budget.used) == (0, 0, 0)
    assert (peer.port.reads.used, peer.port.output_budget.promised, peer.port.output_budget.made) == (0, 0, 0)


# ---- reads --------------------------------------------------------------------------------------------------------------


def answer_read(peer: Peer, partition: Partition, length: int = 10) -> Any:
    """Let the partition answer the read that it was given first."""
    request = partition.taken.pop(0)
    request.sender.room_for_answer()
    request.sender.post(bytes(length), 1, request.size)
    peer.outbox.flush()
    return request.message


def test_reads_start_one_at_a_time_and_double_with_each_short_answer(hosted: Hosted) -> None:
    peer = connected(hosted)
    partition = hosted.partitions[0]
    peer.send(b"".join(storage.encode(read(number)) for number in range(20)))
    begun, answered = [len(partition.taken)], []
    while partition.taken:
        answered.append(answer_read(peer, partition).sequence)
        begun.append(len(partition.taken))
    assert answered == list(range(20)), "in their order"
    assert begun == [1, 2, 4, 8, *range(16, -1, -1)]
    assert peer.connection.requests == 0
    assert (peer.port.reads.used, peer.port.output_budget.promised, peer.port.output_budget.made) == (0, 0, 0)


def test_reads_of_several_partitions_share_the_window_of_their_connection(hosted: Hosted) -> None:
    peer = connected(hosted)
    peer.send(b"".join(storage.encode(read(number, number)) for number in range(3)))
    assert [len(one.taken) for one in hosted.partitions.values()] == [1, 0, 0]
    answer_read(peer, hosted.partitions[0])
    assert len(peer.wire.written) == 1, "what this peer has not taken counts before more is read for it"
    assert [len(one.taken) for one in hosted.partitions.values()] == [0, 1, 1]
    peer.send(b"".join([*appends(0, 1, partition=2), storage.encode(last_id(5))]))
    assert [len(one.taken) for one in hosted.partitions.values()] == [1, 1, 2], "what is no read needs no turn"


def test_no_read_begins_while_the_peer_does_not_take_its_answers(hosted: Hosted) -> None:
    peer = connected(hosted)
    partition = hosted.partitions[0]
    peer.connection.pause_writing()
    peer.send(storage.encode(read(1)))
    assert partition.taken == []
    peer.connection.resume_writing()
    assert [item.message for item in partition.taken] == [read(1)]


def test_connections_take_turns_where_the_reads_of_all_are_bounded(hosted: Hosted) -> None:
    """The turn of one that is gone passes to the next; one that has its turn and nothing to do with it gives it back."""
    first, partition = connected(hosted, reads=1), hosted.partitions[0]
    others = [first.another() for _ in range(3)]
    first.send(storage.encode(read(0)))
    for number, other in enumerate(others, 1):
        other.send(storage.encode(read(number)) * 2)
        other.send(storage.encode(read(number, 1)))
    assert [item.message.sequence for item in partition.taken] == [0]
    assert first.port.reads.waiting == 3
    others[0].connection.connection_lost(None)
    assert first.port.reads.waiting == 2
    assert answer_read(first, partition).sequence == 0
    assert [item.message.sequence for item in partition.taken] == [2]
    assert answer_read(first, partition).sequence == 2
    assert [item.message.sequence for item in partition.taken] == [3], (
        "the second of that peer stands behind the others"
    )
    answer_read(first, partition)
    while any(one.taken for one in hosted.partitions.values()):
        for one in hosted.partitions.values():
            if one.taken:
                answer_read(first, one)
    assert first.port.reads.used == 0
    assert [one.connection.requests for one in (first, *others[1:])] == [0, 0, 0]


def test_a_full_partition_does_not_pass_the_turn_round_and_round(hosted: Hosted) -> None:
    """Two connections wait for it and for another one: the turn is for the other one."""
    first, full, other = connected(hosted, reads=1), hosted.partitions[0], hosted.partitions[1]
    peers = [first.another() for _ in range(2)]
    first.send(storage.encode(read(0)))
    for number, peer in enumerate(peers, 1):
        peer.send(storage.encode(read(number)) + storage.encode(read(10 + number, 1)))
    full.admission = Admission.FULL
    request = full.taken.pop()
    request.sender.post(b"x", 1, request.size)
    first.outbox.flush()
    assert [item.message.sequence for item in other.taken] == [11]
    assert answer_read(first, other).sequence == 11
    assert answer_read(first, other).sequence == 12
    assert (other.taken, first.port.reads.used) == ([], 0)
    full.admission = Admission.ACCEPTED
    while full.waiters:
        full.waiters.pop()()
    first.outbox.flush()
    assert sorted([answer_read(first, full).sequence, answer_read(first, full).sequence]) == [1, 2]
    assert (first.port.reads.used, [peer.connection.requests for peer in peers]) == (0, [0, 0])


def test_a_turn_that_comes_for_one_who_is_gone_is_given_back(hosted: Hosted) -> None:
    first, partition = connected(hosted, reads=1), hosted.partitions[0]
    other = first.another()
    first.send(storage.encode(read(0)))
    other.send(storage.encode(read(1)))
    request = partition.taken.pop()
    request.sender.post(b"x", 1, request.size)
    call, arguments = first.outbox.calls.pop(0)
    call(*arguments)  # the answer: now the other has the turn, and has not been told yet
    assert first.port.reads.used == 1
    other.connection.connection_lost(None)
    assert first.port.reads.used == 0
    first.outbox.flush()
    assert first.port.reads.used == 0
    assert partition.taken == []


def numbers(peer: Peer, size: int = 10) -> list[int]:
    """The sequence numbers of what was answered at once since the last time."""
    written = b"".join(said(peer))
    return [int.from_bytes(written[at : at + size]) for at in range(0, len(written), size)]


def all_given_back(peer: Peer) -> bool:
    budget = peer.port.output_budget
    return (peer.connection.requests, peer.port.reads.used, budget.promised, budget.made) == (0, 0, 0, 0)


def test_a_list_is_answered_at_once_where_that_can_be(hosted: Hosted) -> None:
    peer, partition = connected(hosted), hosted.partitions[0]
    room = peer.port.output_budget.longest
    partition.quick = 5
    peer.send(storage.encode(short_list(1)))
    assert peer.outbox.calls == [], "in the same turn of the loop"
    assert numbers(peer) == [1]
    assert (partition.taken, partition.rooms) == ([], [room])
    assert all_given_back(peer)
    peer.send(storage.encode(read(2)))
    assert partition.rooms == [room], "one record is for a worker"
    assert len(partition.taken) == 1
    answer_read(peer, partition)
    partition.quick = 0
    peer.send(storage.encode(short_list(3)))
    assert [item.message for item in partition.taken] == [short_list(3)]
    assert peer.port.output_budget.promised == 0, "the promise for the answer at once was given back"
    request = partition.taken.pop()
    request.sender.post(b"refused", 1, request.size)  # nothing was promised to this answer
    peer.outbox.flush()
    assert all_given_back(peer)


def test_lists_that_came_together_are_answered_together(hosted: Hosted) -> None:
    """In as many goes as it takes; what is behind one that is not so simple goes to the worker behind it."""
    peer, partition, other = connected(hosted), hosted.partitions[0], hosted.partitions[2]
    partition.quick = other.quick = 2
    messages = [short_list(1), short_list(2, 2), short_list(3), short_list(4), short_list(5, 2)]
    peer.send(b"".join(map(storage.encode, messages)))
    assert (partition.asked, other.asked) == ([[1, 3, 4], [4]], [[2, 5]])
    assert numbers(peer) == [1, 3, 4, 2, 5]
    assert (partition.taken, other.taken, all_given_back(peer)) == ([], [], True)
    partition.asked.clear()
    partition.quick = 0
    peer.send(b"".join(map(storage.encode, messages)))
    assert partition.asked == [[1, 3, 4]]
    assert numbers(peer) == [2, 5]
    assert [item.message.sequence for item in partition.taken] == [1]
    assert [answer_read(peer, partition).sequence for _ in range(3)] == [1, 3, 4]
    assert all_given_back(peer)


def test_a_list_does_not_overtake_what_came_before_it_for_its_partition(hosted: Hosted) -> None:
    peer, first, second = connected(hosted), hosted.partitions[0], hosted.partitions[1]
    first.quick = second.quick = 5
    (append,) = appends(0, 1)
    peer.send(
        b"".join([storage.encode(short_list(1)), append, *map(storage.encode, (short_list(2), short_list(3, 1)))])
    )
    assert (first.asked, second.asked) == ([[1]], [[3]])
    assert numbers(peer) == [1, 3]
    assert handed(first) == [[append], short_list(2)]
    first.asked.clear()
    first.admission = Admission.FULL
    peer.send(storage.encode(read(4)))
    peer.send(storage.encode(short_list(5)))
    assert (first.asked, numbers(peer)) == ([], []), "something waits for that partition"


def test_a_list_of_a_partition_that_is_not_here_is_refused(hosted: Hosted) -> None:
    peer = connected(hosted)
    peer.send(storage.encode(short_list(1, 7)) * 2)
    (written,) = said(peer)
    reader = FrameReader(max_body=1 << 20)
    reader.feed(written)
    failures = [storage.decode(bytes(body)) for body in iter(lambda: reader.next(Magic.STORAGE, 0), None)]
    assert [(type(one), one.sequence) for one in failures] == [(storage.FailureResponse, 1)] * 2
    assert all_given_back(peer)


@pytest.mark.parametrize("broken", [storage.encode(read(9))[:-1], storage.encode(short_list(9))[:-1]])
def test_no_list_behind_what_cannot_be_decoded_is_answered(hosted: Hosted, broken: bytes) -> None:
    peer, partition = connected(hosted), hosted.partitions[0]
    partition.quick = 5
    cut = FRAME_HEADER.struct.pack(Magic.STORAGE, 0, len(broken) - HEADER) + broken[HEADER:]
    peer.send(storage.encode(short_list(1)) + cut + storage.encode(short_list(2)))
    assert partition.asked == []
    assert [item.message.sequence for item in partition.taken] == [1]
    assert not peer.connection.open


@pytest.mark.parametrize(("unread", "asked"), [(0, 3), (1, 1)])
def test_no_more_lists_are_answered_while_the_peer_takes_nothing(hosted: Hosted, unread: int, asked: int) -> None:
    """What it has not taken yet counts before more is read for it."""
    peer, partition = connected(hosted), hosted.partitions[0]
    partition.quick = 1
    write = peer.wire.write

    def full(data: bytes) -> None:
        write(data)
        if unread:
            peer.connection.pause_writing()

    peer.wire.write = full
    peer.send(b"".join(storage.encode(short_list(number)) for number in (1, 2, 3)))
    assert len(partition.asked) == asked
    assert numbers(peer) == [1, 2, 3][:asked]
    assert partition.taken == [], "what is left waits"
    partition.quick = 0
    peer.connection.resume_writing()
    assert [item.message.sequence for item in partition.taken] == [2][: 3 - asked]


@pytest.mark.parametrize(("size", "written"), [(4096, False), (4097, True)])
def test_long_lists_are_written_at_once_so_that_they_count(hosted: Hosted, size: int, written: bool) -> None:
    peer, partition = connected(hosted), hosted.partitions[0]
    partition.quick, partition.frame = 1, size
    sent: list[bool] = []
    send = peer.connection.send
    peer.connection.send = lambda: sent.append(bool(peer.connection._answers)) or send()  # type: ignore[method-assign]
    peer.connection._answer_lists_now(0, storage.encode(short_list(1)), table_of(storage.encode(short_list(1))))
    assert sent == [True] * written
    peer.connection.send()
    assert numbers(peer, size) == [1]


@pytest.mark.parametrize("length", [4096, 4097])
def test_a_long_answer_is_written_at_once_so_that_it_counts(hosted: Hosted, length: int) -> None:
    peer, partition = connected(hosted), hosted.partitions[0]
    peer.send(storage.encode(read(1)))
    request = partition.taken.pop()
    assert request.sender.room_for_answer() == peer.port.output_budget.longest
    request.sender.post([bytes(length - 1), b"x"], 1, request.size)
    assert peer.port.output_budget.made == length
    peer.outbox.flush()
    assert bool(peer.wire.written) == (length > 4096)
    assert peer.port.output_budget.made == 0
    assert len(b"".join(said(peer))) == length
