"""Appends of clients that become records at once, against the messages read one by one and the records made of them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.held_locks import held_locks
from tests.scan.wire_oracle import changed
from tests.scan.wire_support import WAYS, in_every_form, use
from waltzctl.engine.scan.client_appends import AppendTaker, HeldLocks, numbered
from waltzctl.formats.checksums import crc32
from waltzctl.formats.request_id import RequestId
from waltzctl.formats.segment import RecordHeader
from waltzctl.formats.wire.client import (
    CLIENT_VERSIONS,
    CODECS,
    LOCK_LISTS,
    PREFIX,
    AppendLocks,
    AppendRequest,
    FlushRequest,
    encode,
)
from waltzctl.formats.wire.feed_frames import feed_frames
from waltzctl.formats.wire.frame import FrameError, Magic, body_length, keep_alive
from waltzctl.formats.wire.primitives import Limits, MessageError
from waltzctl.formats.wire.records import PackedRecords, WireRecord, data_between, pack_records

MAX_BODY = 4000
LIMITS = Limits(max_data=MAX_BODY, max_list=3)
properties = settings(max_examples=150)
_INT = st.integers(-(2**31), 2**31 - 1)


@st.composite
def appends(draw: st.DrawFn, version: int) -> AppendRequest:
    client, partition = draw(st.sampled_from([1, 1, -2])), draw(st.sampled_from([7, 7, 0]))
    request_id = RequestId(client, draw(_INT), partition, draw(_INT))
    data = draw(st.binary(max_size=9)) * draw(st.sampled_from([0, 1, 1, 8, 440]))
    checksum = crc32(data) ^ draw(st.sampled_from([0] * 30 + [1]))
    locks = [()] * LOCK_LISTS[version]
    if draw(st.sampled_from([False, False, True])):
        most = draw(st.sampled_from([3, 3, 3, 4]))
        locks[draw(st.integers(0, len(locks) - 1))] = tuple(draw(st.lists(_INT, min_size=1, max_size=most)))
    return AppendRequest(request_id, draw(st.integers(-2, 2**63 - 1)), draw(_INT), data, checksum, *locks)


@st.composite
def streams(draw: st.DrawFn, version: int) -> bytes:
    parts = []
    for kind in draw(st.lists(st.sampled_from([*["append"] * 12, "keep-alive", "flush"]), max_size=12)):
        match kind:
            case "append":
                parts.append(encode(draw(appends(version)), version))
            case "keep-alive":
                parts.append(keep_alive(Magic.CLIENT, version))
            case _:
                parts.append(encode(FlushRequest(RequestId(1, 1, 1, 1)), version))
    return b"".join(parts)


def one_by_one(raw: bytes, start: int, version: int, rows: int) -> tuple[list[AppendRequest], int]:
    """The appends that come first, read by their schema; where they, and keep-alives between and behind them, end."""
    found: list[AppendRequest] = []
    while len(found) < rows and len(raw) - start >= 7:
        try:
            end = start + 7 + body_length(raw, start, Magic.CLIENT, version, MAX_BODY)
            if end > len(raw):
                break
            if end > start + 7:
                message = CODECS[version].decode_by_schema(raw[start + 7 : end], LIMITS)
                if not isinstance(message, AppendRequest) or not message.data_ok:
                    break
                found.append(message)
        except (FrameError, MessageError):
            break
        start = end
    return found, start


def without_id(request: AppendRequest) -> WireRecord:
    return WireRecord(0, request.request_id, request.header, request.data, request.checksum)


def by_append(held: HeldLocks) -> Iterator[tuple[int, list[int]]]:
    """The client's high-water mark and the locks of each."""
    for number in range(len(held)):
        begin = held.appends[2 * number - 1] if number else 0
        yield held.appends[2 * number], held.locks[begin : held.appends[2 * number + 1]].tolist()


def locks_of(request: AppendRequest) -> tuple[tuple[int, ...], ...]:
    return request.write_locks, request.read_locks, request.append_locks


@pytest.mark.turns(10)
@given(st.data())
@properties
def test_what_is_taken_is_what_is_right_and_comes_first(data: st.DataObject) -> None:
    version = data.draw(st.sampled_from(CLIENT_VERSIONS))
    raw = data.draw(streams(version))
    raw = data.draw(changed(raw)) if data.draw(st.booleans()) else raw
    rows, before = data.draw(st.sampled_from([1, 2, 64])), data.draw(st.sampled_from([0, 3]))
    expected, end = one_by_one(raw, 0, version, rows)
    runs = [(one.request_id.client, one.request_id.partition, any(locks_of(one))) for one in expected]

    def check() -> None:
        buffer = bytes(before) + raw
        found, behind = AppendTaker(rows=rows).take(buffer, before, len(buffer), version, MAX_BODY, LIMITS)
        assert behind == before + end
        place = 0
        for run, (_, group) in zip(found, groupby(runs), strict=True):
            requests = expected[place : place + len(list(group))]
            place += len(requests)
            assert run.records == PackedRecords.of(map(without_id, requests))
            assert (run.client, run.partition) == (requests[0].request_id.client, requests[0].request_id.partition)
            asked = held_locks((one.client_high_water_mark, AppendLocks(*locks_of(one))) for one in requests)
            assert run.locks is None or run.locks == asked
            assert (run.locks is not None) == any(locks_of(requests[0]))
            assert asked.size == 8 * (len(asked.appends) + len(asked.locks))
        assert place == len(expected)

    in_every_form(check)


@pytest.mark.turns(8)
@given(st.data())
@properties
def test_records_get_their_ids_and_feeds_tell_of_them(data: st.DataObject) -> None:
    requests = [*map(without_id, data.draw(st.lists(appends(4), max_size=9)))]
    cuts = sorted(data.draw(st.sets(st.integers(1, max(1, len(requests) - 1)), max_size=3)))
    parts = [PackedRecords.of(requests[a:b]) for a, b in zip([0, *cuts], [*cuts, len(requests)], strict=True)]
    first = data.draw(st.sampled_from([0, 1, 2**32 - 2, 2**63 - 20]))
    expected = [
        WireRecord(number, one.request_id, one.header, one.data, one.data_checksum)
        for number, one in enumerate(requests, first)
    ]

    def check() -> None:
        batch = numbered(parts, first)
        assert (batch.first, batch.last) == (first, first + len(requests) - 1)
        assert batch.records == PackedRecords.of(expected)
        told = [RecordHeader(one.transaction_id, one.request_id, one.header) for one in expected]
        assert batch.feed == feed_frames(told)

    in_every_form(check)


@pytest.mark.turns(10)
@given(st.lists(appends(4), min_size=1, max_size=6), st.data())
@properties
def test_packed_records_are_the_records(requests: list[AppendRequest], data: st.DataObject) -> None:
    records = [
        WireRecord(number, one.request_id, one.header, one.data, one.checksum) for number, one in enumerate(requests)
    ]
    packed = PackedRecords.of(records)
    assert packed.data == pack_records(records)
    assert len(packed) == len(records)
    first = data.draw(st.integers(0, len(records)))
    stop = data.draw(st.integers(first, len(records)))
    assert packed.part(first, stop) == PackedRecords.of(records[first:stop])
    assert [packed.transaction_id(n) for n in range(len(packed))] == [one.transaction_id for one in records]
    assert [packed.request_id(n) for n in range(len(packed))] == [one.request_id for one in records]
    read = [data_between(packed.data, *place) for place in pairwise(packed.places)]
    assert read == [(one.data, one.data_checksum) for one in records]


@pytest.mark.parametrize("way", WAYS)
def test_what_cannot_be_is_refused(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, way)
    with pytest.raises(ValueError, match=r"^0 appends at a time$"):
        AppendTaker(rows=0)
    taker = AppendTaker(rows=1)
    for start, end in ((-1, 5), (3, 2), (0, 11)):
        with pytest.raises(ValueError, match=f"^bytes {start} to {end} of a buffer of 10$"):
            taker.take(bytes(10), start, end, 4, MAX_BODY, LIMITS)
    good = PackedRecords.of([WireRecord.make(0, RequestId(1, 2, 3, 4), 5, b"abc")] * 2)
    assert len(numbered([good], 0).records) == 2
    minus_one = good.data[:67] + b"\xff" * 4 + good.data[71:]
    too_long = good.data[:70] + b"\4" + good.data[71:]
    for wrong in (
        *(PackedRecords(data, good.places) for data in (good.data[:-1], minus_one, too_long)),
        PackedRecords(good.data, [0, 39, 78, 117]),
    ):
        with pytest.raises(ValueError, match=rf"^record {len(wrong) - 1} of {len(wrong)} is not whole$"):
            numbered([wrong], 0)


@pytest.mark.parametrize("count", [-1, LIMITS.max_list + 1])
def test_an_append_that_would_be_one_without_its_list_of_locks_is_none(count: int) -> None:
    """What stands there in place of a header is no count; all behind it would be right."""
    frame = bytearray(encode(AppendRequest(RequestId(1, 2, 3, 4), 5, count, b"abc", crc32(b"abc")), 0))
    at = 7 + PREFIX.size + 8
    del frame[at : at + 4]
    frame[3:7] = (len(frame) - 7).to_bytes(4)
    assert one_by_one(bytes(frame), 0, 0, 9) == ([], 0)

    def check() -> None:
        assert AppendTaker().take(frame, 0, len(frame), 0, MAX_BODY, LIMITS) == ([], 0)

    in_every_form(check)


@pytest.mark.parametrize("step", [-1, 1])
def test_an_append_ends_where_its_frame_does(step: int) -> None:
    """Data of one byte less than its checksum is for, or a byte behind the checksum: that is for others to refuse."""
    frame = bytearray(encode(AppendRequest(RequestId(1, 2, 3, 4), 5, 6, b"abc", crc32(b"abc"))))
    if step > 0:
        frame += b"x"
    else:
        del frame[-1]
    frame[3:7] = (len(frame) - 7).to_bytes(4)
    assert one_by_one(bytes(frame), 0, 4, 9) == ([], 0)

    def check() -> None:
        assert AppendTaker().take(frame, 0, len(frame), 4, MAX_BODY, LIMITS) == ([], 0)

    in_every_form(check)


def test_a_buffer_of_any_kind_is_read_and_none_is_kept() -> None:
    frame = encode(AppendRequest(RequestId(1, 2, 3, 4), 5, 6, b"abc", crc32(b"abc"), (7,)))
    taker = AppendTaker()
    for buffer in (frame, bytearray(frame), memoryview(bytearray(frame)), memoryview(frame)):
        (found,), end = taker.take(buffer, 0, len(frame), 4, MAX_BODY, LIMITS)
        assert end == len(frame)
        assert found.locks is not None
        assert [*by_append(found.locks)] == [(5, [7])]
        if isinstance(buffer, bytearray):
            buffer.clear()  # as it may not while somebody looks at it
        assert found.records == PackedRecords.of([WireRecord.make(0, RequestId(1, 2, 3, 4), 6, b"abc")])
    other = encode(AppendRequest(RequestId(0, 0, 0, 0), 0, 0, b"xyz", crc32(b"xyz"), (7,)))
    assert taker.take(other, 0, len(other), 4, MAX_BODY, LIMITS)[1] == len(frame)
    assert found.records.data[-7:-4] == b"abc", "it is no view of what is used again"
    assert [*by_append(found.locks)] == [(5, [7])]
