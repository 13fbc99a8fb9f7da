"""Bodies that no honest peer sends: an error that names the trouble, and no memory spent on a peer's word."""

from __future__ import annotations

import contextlib
import random
import struct
import tracemalloc
import uuid
from collections.abc import Callable
from typing import Any

import pytest

from tests.formats.wire.recordings import recorded_frames
from tests.golden import GOLDEN
from waltzctl.formats.request_id import RequestId
from waltzctl.formats.segment import RecordHeader
from waltzctl.formats.wire import admin, storage
from waltzctl.formats.wire.failure import Failure, StackElement
from waltzctl.formats.wire.frame import FRAME_HEADER, FrameError, FrameReader, Magic
from waltzctl.formats.wire.hello import STORAGE_CLIENT, Hello
from waltzctl.formats.wire.primitives import Limits, MessageError
from waltzctl.formats.wire.records import SessionInfo, WireRecord

MEMORY = 200_000
"""Bytes that decoding a hostile body of a few hundred bytes may take: interpreter objects, a copy, an error text."""
RECORD = WireRecord.make(0, RequestId(1, 2, 3, 4), 5, b"abc")
HEADER = RecordHeader(0, RequestId(1, 2, 3, 4), 5)
FAILURE = Failure("m", (StackElement("C", "f", None, -2), StackElement("C", "f", "F.java", 3)))

STORAGE_MESSAGES: list[Any] = [
    storage.AppendRequest(7, 4, 3, (RECORD, RECORD)),
    storage.RecordResponse(7, 5, 3, RECORD),
    storage.RecordHeaderResponse(7, 5, 3, HEADER),
    storage.RecordListResponse(7, 5, 3, (RECORD, RECORD)),
    storage.RecordHeaderListResponse(7, 5, 3, (HEADER, HEADER)),
    storage.FailureResponse(7, 5, 3, FAILURE),
    storage.SetLowWaterMarkRequest(7, 5, 3, 9),
    storage.LastSessionInfoResponse(7, 5, 3, SessionInfo(1, 2, 3)),
    storage.SuccessResponse(7, 5, 3),
]
ADMIN_MESSAGES: list[Any] = [
    admin.PartitionAvailableRequest(1, (1, 2), available=True),
    admin.PartitionAssignmentRequest(1, (1, 2), assigned=True),
    admin.RecordListResponse(1, 3, (RECORD,)),
    admin.FailureResponse(1, FAILURE),
    admin.MetricsResponse(1, "{}"),
    admin.AssignedPartitionStatusResponse(1, ((0, True), (1, False))),
    admin.MetricsRequest(1),
]
Read = Callable[[bytes], Any]
STORAGE_READERS: list[Read] = [storage.decode, storage.CODEC.decode_by_schema]
ADMIN_READERS: list[Read] = [admin.decode, admin.CODECS[0].decode_by_schema]
CASES = [(m, storage.encode(m)[7:], STORAGE_READERS) for m in STORAGE_MESSAGES]
CASES += [(m, admin.encode(m)[7:], ADMIN_READERS) for m in ADMIN_MESSAGES]
IDS = [f"{type(message).__module__.rpartition('.')[2]}-{type(message).__name__}" for message, _, _ in CASES]
COUNTS = (-1, -(2**31), 2**31 - 1, 0x10000000, 1000)


@pytest.mark.parametrize(("message", "body", "readers"), CASES, ids=IDS)
def test_a_body_that_ends_early_is_an_error(message: Any, body: bytes, readers: list[Read]) -> None:
    for end in range(len(body)):
        for read in readers:
            with pytest.raises(MessageError):
                read(body[:end])


@pytest.mark.parametrize(("message", "body", "readers"), CASES, ids=IDS)
def test_left_over_bytes_are_an_error(message: Any, body: bytes, readers: list[Read]) -> None:
    for read in readers:
        for more in (b"\x00", b"\x01" * 100):
            with pytest.raises(MessageError):
                read(body + more)


@pytest.mark.turns(8)
@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize(("message", "body", "readers"), CASES, ids=IDS)
def test_no_count_is_believed(message: Any, body: bytes, readers: list[Read], count: int) -> None:
    """The count, wherever it may stand, is put over every four bytes; what is read takes memory for what is there only."""
    tracemalloc.start()
    try:
        for position in range(1, len(body) - 3):
            hostile = body[:position] + struct.pack(">i", count) + body[position + 4 :]
            for read in readers:
                tracemalloc.reset_peak()
                before = tracemalloc.get_traced_memory()[0]
                with contextlib.suppress(MessageError):
                    read(hostile)
                assert tracemalloc.get_traced_memory()[1] - before < MEMORY
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("count", [-1, -(2**31), 2, 2**31 - 1, 2**30 + 1, 0x20000000])
def test_a_wrong_count_in_the_count_s_place_is_an_error_that_names_it(count: int) -> None:
    """Also those whose product with an element's size is small in 32 bits."""
    bodies: list[tuple[Read, bytes, int]] = []
    for read in STORAGE_READERS:
        bodies += [
            (read, storage.encode(storage.AppendRequest(7, 4, 3, (RECORD,)))[7:], 21),
            (read, storage.encode(storage.AppendRequest(7, 4, 3, (RECORD,)))[7:], 21 + 4 + 28),
            (read, storage.encode(storage.RecordHeaderListResponse(7, 4, 3, (HEADER,)))[7:], 21),
            (read, storage.encode(storage.RecordListResponse(7, 4, 3, (RECORD,)))[7:], 21),
            (read, storage.encode(storage.FailureResponse(7, 4, 3, Failure("m")))[7:], 21 + 5),
        ]
    read = ADMIN_READERS[0]
    bodies += [
        (read, admin.encode(admin.PartitionAvailableRequest(1, (1,), available=True))[7:], 9),
        (read, admin.encode(admin.AssignedPartitionStatusResponse(1, ((1, True),)))[7:], 9),
    ]
    for read, body, position in bodies:
        with pytest.raises(MessageError, match=rf"the count {count} |bytes of the body are left over|goes beyond"):
            read(body[:position] + struct.pack(">i", count) + body[position + 4 :])


def test_unknown_types_are_an_error() -> None:
    for read, known in (
        (STORAGE_READERS[0], set(storage.CODEC.by_type)),
        (ADMIN_READERS[0], set(admin.CODECS[0].by_type)),
        (lambda body: admin.decode(body, 1), set(admin.CODECS[1].by_type)),
    ):
        for number in set(range(256)) - known:
            with pytest.raises(MessageError, match=f"type {number} is unknown"):
                read(bytes([number]) + bytes(40))
        with pytest.raises(MessageError, match="empty"):
            read(b"")


def test_limits_hold_for_what_would_fit_the_body() -> None:
    records = storage.encode(storage.AppendRequest(7, 4, 3, (RECORD,) * 3))[7:]
    headers = storage.encode(storage.RecordHeaderListResponse(7, 4, 3, (HEADER,) * 3))[7:]
    failure = storage.encode(storage.FailureResponse(7, 4, 3, FAILURE))[7:]
    for read in (storage.CODEC.decode, storage.CODEC.decode_by_schema):
        assert read(records, Limits(max_records=3, max_data=3))
        for body, limits in (
            (records, Limits(max_records=2)),
            (records, Limits(max_data=2)),
            (headers, Limits(max_records=2)),
            (failure, Limits(max_list=1)),
            (failure, Limits(max_string=0)),
        ):
            with pytest.raises(MessageError, match="above the"):
                read(body, limits)
    hello = Hello((0, 1), STORAGE_CLIENT).encode()[7:]
    for limits in (Limits(max_list=1), Limits(max_string=19)):
        with pytest.raises(MessageError, match="above the"):
            Hello.decode(hello, limits=limits)


def test_data_that_is_null_is_an_error() -> None:
    """The release can write null byte arrays; no message of a storage node may carry one."""
    body = storage.encode(storage.RecordResponse(7, 5, 3, WireRecord(0, RequestId(1, 2, 3, 4), 5, b"", 0)))[7:]
    position = 21 + 1 + 28
    for read in STORAGE_READERS:
        with pytest.raises(MessageError, match="the count -1 is negative"):
            read(body[:position] + b"\xff\xff\xff\xff" + body[position + 4 :])


@pytest.mark.parametrize("end", range(29))
def test_a_hello_that_ends_early_or_late_is_an_error(end: int) -> None:
    body = Hello((0,), STORAGE_CLIENT).encode()[7:]
    assert len(body) == 30
    for hostile in (body[:end], body + bytes(end + 1)):
        with pytest.raises(MessageError, match="Hello"):
            Hello.decode(hostile)


# ---- mutations ---------------------------------------------------------------------------------------------------------

SEEDS = [
    bytes(frame)
    for frame in (Hello((0, 1), STORAGE_CLIENT).encode(), storage.encode(storage.OpenRequest(uuid.UUID(int=1), 4)))
]
SEEDS += [storage.encode(message) for message in STORAGE_MESSAGES] + [
    admin.encode(message) for message in ADMIN_MESSAGES
]
INTERESTING = tuple(struct.pack(">i", value) for value in (-1, 0, 1, 2**31 - 1, -(2**31), 2**30, 0x10000000, 255, 36))


def _mutate(data: bytes, dice: random.Random) -> bytes:
    found = bytearray(data)
    for _ in range(dice.randint(1, 4)):
        place = dice.randrange(len(found) + 1)
        match dice.randrange(6):
            case 0 if found:
                found[place % len(found)] ^= 1 << dice.randrange(8)
            case 1:
                found[place : place + 4] = dice.choice(INTERESTING)
            case 2:
                del found[place : place + dice.randint(1, 8)]
            case 3:
                found[place:place] = dice.randbytes(dice.randint(1, 8))
            case 4:
                found[place:place] = found[place : place + dice.randint(1, 60)]
            case _:
                del found[place:]
    return bytes(found)


def _through(data: bytes) -> int:
    """How many messages were in it; everything that is wrong is FrameError or MessageError, or this test fails."""
    messages = 0
    magic = data[0] if data else 0
    reader = FrameReader(max_body=1 << 16)
    reader.feed(data)
    try:
        for version in (0, 1):
            body = reader.next(magic, version)
            if body is None:
                return messages
            match magic:
                case Magic.HELLO:
                    Hello.decode(body)
                case Magic.ADMIN:
                    admin.decode(body, version)
                case _:
                    assert storage.decode(body) == storage.CODEC.decode_by_schema(body)
            messages += 1
    except (FrameError, MessageError):
        pass
    return messages


def _mutations(count: int, seed: int) -> None:
    dice = random.Random(seed)
    seeds = SEEDS + ([one.data for one in recorded_frames(GOLDEN) if len(one.data) < 5000] if GOLDEN else [])
    whole, peak = 0, 0
    tracemalloc.start()
    try:
        for _ in range(count):
            data = bytearray(_mutate(dice.choice(seeds), dice))
            if len(data) >= FRAME_HEADER.size and dice.random() < 0.9:  # else nothing but the length would be tested
                data[3:7] = struct.pack(">i", len(data) - FRAME_HEADER.size)
            tracemalloc.reset_peak()
            before = tracemalloc.get_traced_memory()[0]
            whole += _through(bytes(data))
            peak = max(peak, tracemalloc.get_traced_memory()[1] - before)
    finally:
        tracemalloc.stop()
    assert peak < 2 * MEMORY
    assert count // 100 < whole < count, "mutations that are all refused, or none, prove little"


@pytest.mark.turns(10)
def test_4_000_mutated_frames_give_a_message_or_one_of_the_two_errors() -> None:
    _mutations(4_000, 4)


@pytest.mark.long
def test_1_000_000_mutated_frames_give_a_message_or_one_of_the_two_errors() -> None:
    _mutations(1_000_000, 5)
