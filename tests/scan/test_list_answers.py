"""Lists that are answered at once: frame by frame what the careful way gives, and nothing of what is not so simple."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.scan import emulated
from tests.scan.wire_support import WAYS, in_every_form, table_of, use
from waltzctl.engine.scan import list_answers, wire_trials
from waltzctl.engine.scan.list_answers import FEW_BYTES, FEW_RECORDS, LIST_BODY, ListAnswers, OpenSegment, Requests
from waltzctl.engine.scan.wire_layout import COLUMNS, FrameColumn
from waltzctl.engine.scan.wire_loops import INTERPRETED
from waltzctl.formats.request_id import RequestId
from waltzctl.formats.segment import HEADER_SIZE, INDEX_ENTRY, RECORD_OVERHEAD, Record
from waltzctl.formats.wire.storage import (
    MaxTransactionIdRequest,
    RecordHeader,
    RecordHeaderListRequest,
    RecordHeaderListResponse,
    RecordListRequest,
    RecordListResponse,
    StorageMessage,
    WireRecord,
    encode,
)

SESSION = 7
SEGMENT = 40
ROOM = 1 << 20

Listing = RecordListRequest | RecordHeaderListRequest


def record(number: int, length: int) -> Record:
    return Record.make(number, RequestId(1, 2, 3, number), 5, bytes((number + place) & 0xFF for place in range(length)))


class Written:
    """A segment in files in memory, whose records have data of these lengths."""

    def __init__(self, lengths: Sequence[int]) -> None:
        self.records = [record(SEGMENT + place, length) for place, length in enumerate(lengths)]
        raw = [one.encode() for one in self.records]
        self.begins = [*accumulate(map(len, raw), initial=HEADER_SIZE)]
        self.data = bytearray(bytes(HEADER_SIZE) + b"".join(raw))
        self.index = bytearray(bytes(HEADER_SIZE) + b"".join(map(INDEX_ENTRY.struct.pack, self.begins[:-1])))
        self.next = SEGMENT + len(lengths)

    @contextmanager
    def opened(self, *, longest: int = 1 << 20) -> Iterator[OpenSegment]:
        with wire_trials.files_in_memory(bytes(self.data), bytes(self.index)) as (data, index):
            yield OpenSegment(data, index, SEGMENT, SEGMENT, self.next, HEADER_SIZE, self.begins[-1], longest)

    def answer(self, request: Listing, shown: int) -> bytes:
        """The careful way: each record as a value of its own."""
        first, stop = request.first_transaction_id, min(request.first_transaction_id + request.max_count, shown)
        found = self.records[first - SEGMENT : stop - SEGMENT]
        about = (request.session_id, request.sequence, request.partition)
        if isinstance(request, RecordHeaderListRequest):
            headers = tuple(RecordHeader(one.transaction_id, one.request_id, one.header) for one in found)
            return encode(RecordHeaderListResponse(*about, headers))
        records = (WireRecord(r.transaction_id, r.request_id, r.header, r.data, r.data_checksum) for r in found)
        return encode(RecordListResponse(*about, tuple(records)))


@pytest.fixture(autouse=True)
def _files_in_memory_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their file system does not know "only if that needs no waiting"."""
    monkeypatch.setattr(list_answers, "NO_WAIT", 0)


def asked(
    messages: Sequence[StorageMessage], *, session: int = SESSION, most: int = ROOM, room: int = ROOM
) -> Requests:
    received = b"".join(map(encode, messages))
    return Requests(received, table_of(received), session, most, room)


def answered(requests: Requests, segment: OpenSegment, shown: int) -> tuple[int, bytes, bool]:
    """How many, the frames, and whether another segment may have the next one's records."""
    answers = ListAnswers()
    answers.begin(requests)
    going_on = answers.answer_from(segment, shown)
    return answers.answered, answers.take(), going_on


@given(
    lengths=st.lists(st.integers(0, 300), min_size=1, max_size=8),
    asking=st.lists(st.tuples(st.booleans(), st.integers(SEGMENT - 1, SEGMENT + 9), st.integers(-1, 9)), max_size=8),
    hidden=st.integers(0, 2),
    most=st.sampled_from([100, 700, ROOM]),
    room=st.sampled_from([60, 500, ROOM]),
    damaged=st.none() | st.tuples(st.booleans(), st.integers(0, 1 << 20)),
)
def test_what_is_answered_is_what_the_careful_way_gives(
    lengths: list[int],
    asking: list[tuple[bool, int, int]],
    hidden: int,
    most: int,
    room: int,
    damaged: tuple[bool, int] | None,
) -> None:
    """Up to the first request that is not so simple, in every form of the loops."""
    written = Written(lengths)
    shown = max(SEGMENT, written.next - hidden)
    messages: list[Listing] = [
        (RecordHeaderListRequest if headers else RecordListRequest)(SESSION, number, 3, first, count)
        for number, (headers, first, count) in enumerate(asking)
    ]
    right, wanted, room_left = 0, b"", room
    for message in messages:
        first, stop = message.first_transaction_id, min(message.first_transaction_id + message.max_count, shown)
        if not SEGMENT <= first < written.next or message.max_count < 1 or stop <= first:
            break
        size = written.begins[stop - SEGMENT] - written.begins[first - SEGMENT]
        frame = written.answer(message, shown)
        if size > min(most, FEW_BYTES) or len(frame) > room_left:
            break
        right, wanted, room_left = right + 1, wanted + frame, room_left - len(frame)
    if damaged is not None:
        of_index, place = damaged
        changed = written.index if of_index else written.data
        changed[HEADER_SIZE + place % (len(changed) - HEADER_SIZE)] ^= 4

    def check() -> None:
        with written.opened() as segment:
            count, frames, _ = answered(asked(messages, most=most, room=room), segment, shown)
        if damaged is None:
            assert (count, frames) == (right, wanted)
        else:  # what is damaged is never given out: fewer are answered, and those rightly
            assert count <= right
            assert wanted.startswith(frames)
            assert frames == b"".join(written.answer(message, shown) for message in messages[:count])

    in_every_form(check)


def few(first: int = SEGMENT, count: int = 2, session: int = SESSION) -> RecordListRequest:
    return RecordListRequest(session, 1, 3, first, count)


@pytest.mark.parametrize("way", WAYS)
def test_a_list_begins_with_a_record_that_is_there_and_shown(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """And has one at least; otherwise the careful way says what there is."""
    use(monkeypatch, way)
    written = Written([1, 2, 3])
    with written.opened() as segment:
        for first, count, shown, right in (
            *((SEGMENT - 1, 1, written.next, 0), (SEGMENT, 1, written.next, 1)),
            *((SEGMENT, 0, written.next, 0), (SEGMENT, -1, written.next, 0), (SEGMENT, -(1 << 31), written.next, 0)),
            *(
                (SEGMENT + 2, 1, written.next, 1),
                (SEGMENT + 3, 1, written.next, 0),
                (SEGMENT + 3, 1, written.next + 9, 0),
            ),
            *((SEGMENT + 1, 9, SEGMENT + 2, 1), (SEGMENT + 2, 9, SEGMENT + 2, 0), (SEGMENT + 2, 1, SEGMENT, 0)),
            *((SEGMENT + 1, 2, written.next + 1, 1), (SEGMENT + 1, 3, written.next + 1, 0)),  # it goes on elsewhere
        ):
            found = answered(asked([few(first, count)]), segment, shown)
            assert found[0] == right, (first, count, shown)
            assert not right or found[1] == written.answer(few(first, count), shown)


@pytest.mark.parametrize(("count", "length", "right"), [(FEW_RECORDS, 0, 1), (FEW_RECORDS + 1, 0, 0)])
def test_a_list_has_so_many_records_at_most(count: int, length: int, right: int) -> None:
    written = Written([length] * (FEW_RECORDS + 1))
    with written.opened() as segment:
        assert answered(asked([few(count=count)]), segment, written.next)[0] == right


@pytest.mark.parametrize(("more", "right"), [(0, 1), (1, 0)])
def test_a_list_has_so_many_bytes_at_most(more: int, right: int) -> None:
    """Whatever the node allows; and no more than it allows."""
    half = FEW_BYTES // 2 - RECORD_OVERHEAD
    written = Written([half, half + more])
    assert written.begins[-1] - HEADER_SIZE == FEW_BYTES + more
    with written.opened() as segment:
        assert answered(asked([few()]), segment, written.next)[0] == right
    small = Written([10, 20])
    with small.opened() as segment:
        size = small.begins[-1] - HEADER_SIZE
        assert answered(asked([few()], most=size - more), segment, small.next)[0] == right


@pytest.mark.parametrize(("less", "right"), [(0, 2), (1, 1)])
def test_all_answers_together_have_so_many_bytes(less: int, right: int) -> None:
    written = Written([10, 20])
    frame = written.answer(few(), written.next)
    with written.opened() as segment:
        messages = [few()] * 3
        count, frames, going_on = answered(asked(messages, room=2 * len(frame) - less), segment, written.next)
    assert (count, frames, going_on) == (right, frame * right, False), "no other segment makes more room"


def test_the_buffer_s_room_is_the_most_whatever_is_promised(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, "interpreted")  # which does not write where there is nothing
    written = Written([10_000])
    frame = written.answer(few(), written.next)
    with written.opened() as segment:
        count, frames, _ = answered(asked([few()] * 100, room=1 << 40), segment, written.next)
    assert count == list_answers.ROOM // len(frame)
    assert frames == frame * count


@pytest.mark.parametrize("longest", [19, 20])
def test_a_record_longer_than_is_allowed_is_for_the_careful_way(longest: int) -> None:
    written = Written([20])
    with written.opened(longest=longest) as segment:
        assert answered(asked([few()]), segment, written.next)[0] == (longest == 20)


def test_requests_of_other_kinds_and_sessions_end_it() -> None:
    written = Written([1, 2, 3])
    for other in (few(session=SESSION - 1), few(session=SESSION + 1), MaxTransactionIdRequest(SESSION, 1, 3)):
        with written.opened() as segment:
            assert answered(asked([few(), other, few()]), segment, written.next)[0] == 1


def test_it_goes_on_in_another_segment_where_that_has_the_next_one_s_records() -> None:
    written = Written([1, 2, 3])
    answers = ListAnswers()
    with written.opened() as segment:
        lower = segment._replace(next=SEGMENT + 2, end=written.begins[2])
        answers.begin(asked([few(), few(SEGMENT + 2, 1), few(SEGMENT, 1)]))
        assert answers.first_transaction_id == SEGMENT
        assert answers.answer_from(lower, written.next)
        assert (answers.answered, answers.first_transaction_id) == (1, SEGMENT + 2)
        upper = segment._replace(first=SEGMENT + 2, start=written.begins[2])
        assert answers.answer_from(upper, written.next), "the one before may have the next one's"
        assert not answers.answer_from(upper, written.next), "nothing came of it"
        assert answers.answer_from(lower, written.next) is False, "all are answered"
    assert (answers.answered, answers.first_transaction_id) == (3, None)
    messages = (few(), few(SEGMENT + 2, 1), few(SEGMENT, 1))
    assert answers.take() == b"".join(written.answer(one, written.next) for one in messages)


@pytest.mark.parametrize("way", WAYS)
def test_what_would_have_to_wait_is_left(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system that cannot tell, as that of files in memory, and a file that is not open any more."""
    use(monkeypatch, way)
    written = Written([1, 2, 3])
    with written.opened() as segment:
        assert answered(asked([few()]), segment, written.next)[0] == 1
        monkeypatch.setattr(list_answers, "NO_WAIT", 1 << 30)
        assert answered(asked([few()]), segment, written.next)[0] == 0
        monkeypatch.setattr(list_answers, "NO_WAIT", 0)
        closed = os.dup(segment.index_file)
        os.close(closed)
        for gone in (segment._replace(index_file=closed), segment._replace(data_file=closed)):
            assert answered(asked([few()]), gone, written.next)[0] == 0


def test_reads_are_asked_not_to_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Index and data; and one that would have to is left."""
    use(monkeypatch, "interpreted")
    monkeypatch.setattr(list_answers, "NO_WAIT", os.RWF_NOWAIT)
    flags: list[int] = []

    def not_in_memory(_descriptor: int, _buffers: list[memoryview], _offset: int, given: int) -> int:
        flags.append(given)
        raise OSError(errno.EAGAIN, "would block")

    monkeypatch.setattr(os, "preadv", not_in_memory)
    written = Written([1])
    with written.opened() as segment:
        assert answered(asked([few(count=1)]), segment, written.next) == (0, b"", False)
    assert flags == [os.RWF_NOWAIT]


@pytest.mark.parametrize("body", [-1, 3, 1 << 62])
def test_a_table_that_describes_something_else(body: int) -> None:
    """Nothing is read through it."""
    requests = asked([few()])
    requests.table[0, FrameColumn.BODY] = body
    answers = ListAnswers()
    answers.begin(requests)
    if body == 3:  # within the buffer: it is some other number
        requests = requests._replace(received=requests.received + bytes(LIST_BODY))
        answers.begin(requests)
        assert answers.first_transaction_id is not None
    else:
        assert answers.first_transaction_id is None
    written = Written([1, 2])
    with written.opened() as segment:
        assert not answers.answer_from(segment, written.next)
    assert (answers.answered, answers.take()) == (0, b"")


@pytest.mark.parametrize("shape", [(1, COLUMNS - 1), (COLUMNS,)])
def test_a_table_of_another_shape_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"^a table has eight columns of 64-bit words$"):
        ListAnswers().begin(Requests(b"", np.zeros(shape, np.int64), SESSION, ROOM, ROOM))
    with pytest.raises(ValueError, match=r"^a table has eight columns"):
        ListAnswers().begin(Requests(b"", np.zeros((COLUMNS, 3), np.int64).T[:, ::1], SESSION, ROOM, ROOM))


def test_no_requests_have_no_answers() -> None:
    answers = ListAnswers()
    answers.begin(Requests(b"", np.zeros((0, COLUMNS), np.int64), SESSION, ROOM, ROOM))
    assert (answers.answered, answers.first_transaction_id, answers.take()) == (0, None, b"")


@pytest.mark.turns(8)
@pytest.mark.parametrize("way", ["isal", "table"])
def test_what_is_compiled_asks_the_system_as_python_does(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiled loops' own way of reading, on emulated primitives, gives every answer of the trial."""
    emulated.put_in_place(monkeypatch)
    told, right = [], []
    wire_trials._answer_lists(emulated.loops(way), told)
    wire_trials._answer_lists(INTERPRETED, right)
    assert told == right
