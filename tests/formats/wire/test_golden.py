"""Frames of released programs: read to the listed fields, and written to the same bytes."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from tests.formats.wire.recordings import RecordedFrame, fields_of, recorded_frames
from tests.golden import GOLDEN, needs_golden
from waltzctl.formats.request_id import RequestId
from waltzctl.formats.segment import RecordHeader
from waltzctl.formats.wire import admin, storage
from waltzctl.formats.wire.failure import Failure, StackElement
from waltzctl.formats.wire.frame import Magic, decode_frame_header, frame, keep_alive
from waltzctl.formats.wire.hello import (
    ADMIN_CLIENT,
    ADMIN_SERVER,
    STORAGE_CLIENT,
    STORAGE_SERVER,
    Hello,
)
from waltzctl.formats.wire.records import SessionInfo, WireRecord

FRAMES = recorded_frames(GOLDEN) if GOLDEN else []
KEY = uuid.UUID("01234567-89ab-cdef-0123-456789abcdef")
REQUEST_ID = RequestId(1, 2, 3, 4)
RECORD = WireRecord(0, REQUEST_ID, 5, b"abc", 0x352441C2)
INFO = SessionInfo(6, 5, 4)

HELLO_FRAME = "48 0000 0000001e 00000001 0000 00000014 57616c747a2053746f7261676520436c69656e74"
STORAGE_FRAMES: list[tuple[Any, str]] = [
    (
        storage.OpenRequest(KEY, 2),
        "53 0000 00000029 01 ffffffffffffffff ffffffffffffffff ffffffff 0123456789abcdef0123456789abcdef 00000002",
    ),
    (storage.SuccessResponse(-1, -1, -1), "53 0000 00000015 07 ffffffffffffffff ffffffffffffffff ffffffff"),
    (
        storage.LastSessionInfoRequest(7, 1, 3),
        "53 0000 00000016 02 0000000000000007 0000000000000001 00000003 00",
    ),
    (
        storage.LastSessionInfoResponse(7, 1, 3, INFO),
        (
            "53 0000 0000002d 03 0000000000000007 0000000000000001 00000003"
            "0000000000000006 0000000000000005 0000000000000004"
        ),
    ),
    (
        storage.SetLowWaterMarkRequest(7, 2, 3, 5),
        "53 0000 0000001e 04 0000000000000007 0000000000000002 00000003 0000000000000005 00",
    ),
    (
        storage.TruncateRequest(7, 3, 3, 5, offline=True),
        "53 0000 0000001e 05 0000000000000007 0000000000000003 00000003 0000000000000005 01",
    ),
    (
        storage.AppendRequest(7, 4, 3, (RECORD,)),
        (
            "53 0000 00000041 06 0000000000000007 0000000000000004 00000003 00000001"
            "0000000000000000 00000001000000020000000300000004 00000005 00000003 616263 352441c2 00"
        ),
    ),
    (
        storage.RecordHeaderResponse(7, 5, 3, RecordHeader(0, REQUEST_ID, 5)),
        (
            "53 0000 00000032 0a 0000000000000007 0000000000000005 00000003 01"
            "0000000000000000 00000001000000020000000300000004 00000005"
        ),
    ),
    (
        storage.RecordHeaderResponse(7, 5, 3, None),
        "53 0000 00000016 0a 0000000000000007 0000000000000005 00000003 00",
    ),
    (
        storage.RecordResponse(7, 5, 3, RECORD),
        (
            "53 0000 0000003d 0c 0000000000000007 0000000000000005 00000003 01"
            "0000000000000000 00000001000000020000000300000004 00000005 00000003 616263 352441c2"
        ),
    ),
    (
        storage.MaxTransactionIdResponse(7, 6, 3, -1),
        "53 0000 0000001d 0e 0000000000000007 0000000000000006 00000003 ffffffffffffffff",
    ),
    (
        storage.RecordListRequest(7, 8, 3, 0, 20),
        "53 0000 00000021 11 0000000000000007 0000000000000008 00000003 0000000000000000 00000014",
    ),
    (
        storage.FailureResponse(7, 9, 3, Failure("m", (StackElement("C", "f", None, -2),))),
        (
            "53 0000 00000030 08 0000000000000007 0000000000000009 00000003"
            "00000001 6d  00000001  00000001 43  00000001 66  ffffffff  fffffffe"
        ),
    ),
]
ADMIN_FRAMES: list[tuple[Any, str]] = [
    (admin.OpenRequest(KEY, 2), "41 0000 0000001d 03 ffffffffffffffff 0123456789abcdef0123456789abcdef 00000002"),
    (admin.SuccessResponse(-1), "41 0000 00000009 01 ffffffffffffffff"),
    (
        admin.PartitionAvailableRequest(0, (1, 2), available=False),
        "41 0000 00000016 04 0000000000000000 00000002 00000001 00000002 00",
    ),
    (
        admin.PartitionAssignmentRequest(1, (1,), assigned=True),
        "41 0000 00000013 06 0000000000000001 00000001 00000001 01 00",
    ),
    (admin.LastSessionInfoRequest(2, 3), "41 0000 0000000d 09 0000000000000002 00000003"),
    (
        admin.LastSessionInfoResponse(2, 3, INFO),
        "41 0000 00000025 0a 0000000000000002 00000003 0000000000000006 0000000000000005 0000000000000004",
    ),
    (
        admin.AssignedPartitionStatusResponse(3, ((0, True), (1, False))),
        "41 0000 00000017 0e 0000000000000003 00000002 00000000 01 00000001 00",
    ),
    (admin.MetricsRequest(4), "41 0000 00000009 0b 0000000000000004"),
]


def name_of(value: object) -> str:
    return type(value).__name__ if not isinstance(value, str) else ""


@pytest.mark.parametrize(("message", "data"), STORAGE_FRAMES, ids=name_of)
def test_documented_frames_of_the_data_port(message: Any, data: str) -> None:
    whole = bytes.fromhex(data)
    assert storage.encode(message) == whole
    assert storage.CODEC.encode_by_schema(message) == whole
    assert storage.decode(whole[7:]) == message
    assert storage.CODEC.decode_by_schema(whole[7:]) == message


@pytest.mark.parametrize(("message", "data"), ADMIN_FRAMES, ids=name_of)
def test_documented_frames_of_the_admin_port(message: Any, data: str) -> None:
    whole = bytes.fromhex(data)
    assert admin.encode(message) == whole
    assert admin.decode(whole[7:]) == message


def test_documented_hello() -> None:
    whole = bytes.fromhex(HELLO_FRAME)
    assert Hello((0,), STORAGE_CLIENT).encode() == whole
    assert Hello.decode(whole[7:]) == Hello((0,), "Waltz Storage Client")


def test_read_and_write_requests_of_version_1_are_one_partition_and_a_toggle() -> None:
    """The design documents' messages: the layouts of type 4 and 5 in version 1, by hand."""
    read = bytes.fromhex("41 0001 0000000e 04 0000000000000009 00000003 00")
    write = bytes.fromhex("41 0001 0000000e 05 000000000000000a 00000003 01")
    assert admin.encode(admin.PartitionReadRequest(9, 3, on=False), version=1) == read
    assert admin.encode(admin.PartitionWriteRequest(10, 3, on=True), version=1) == write
    assert admin.decode(read[7:], version=1) == admin.PartitionReadRequest(9, 3, on=False)
    assert admin.decode(write[7:], version=1) == admin.PartitionWriteRequest(10, 3, on=True)


def test_the_place_of_a_record_is_a_request_of_version_1() -> None:
    """Ours; by hand."""
    request = bytes.fromhex("41 0001 00000015 0f 0000000000000009 00000003 000000000000000b")
    response = bytes.fromhex("41 0001 0000001d 10 0000000000000009 00000003 0000000000000004 0000000000000080")
    assert admin.encode(admin.RecordPlaceRequest(9, 3, 11), version=1) == request
    assert admin.encode(admin.RecordPlaceResponse(9, 3, 4, 128), version=1) == response
    assert admin.decode(request[7:], version=1) == admin.RecordPlaceRequest(9, 3, 11)
    assert admin.decode(response[7:], version=1) == admin.RecordPlaceResponse(9, 3, 4, 128)


@needs_golden
@pytest.mark.parametrize("recorded", FRAMES, ids=lambda r: f"{r.line}-{r.direction}-{r.name}")
def test_every_recorded_frame_is_read_to_its_fields_and_written_to_its_bytes(recorded: RecordedFrame) -> None:
    header, body = decode_frame_header(recorded.data), recorded.data[7:]
    assert header.magic == ord(recorded.protocol)
    if header.length == 0:
        assert recorded.name == "KeepAlive"
        assert keep_alive(header.magic, header.version) == recorded.data
        return
    message: Any
    match Magic(header.magic):
        case Magic.HELLO:
            message = Hello.decode(body)
            written = message.encode()
        case Magic.STORAGE:
            message = storage.decode(body)
            written = storage.encode(message)
            assert storage.CODEC.decode_by_schema(body) == message
            assert storage.CODEC.encode_by_schema(message) == written
        case Magic.ADMIN:
            message = admin.decode(body)
            written = admin.encode(message)
            assert admin.CODECS[0].decode_by_schema(body) == message
        case _:
            pytest.fail(f"no frame of a storage node: {recorded}")
    assert fields_of(message) == recorded.fields
    assert type(message).__name__ in (recorded.name, recorded.name.removeprefix("Admin"))
    assert written == recorded.data == frame(header.magic, header.version, body)


@needs_golden
def test_the_recordings_hold_every_kind_of_message_of_version_0_in_both_directions() -> None:
    """What the test above proves is only as wide as this."""
    names = {(one.protocol, one.name.removeprefix("Admin")) for one in FRAMES}
    assert {("S", kind.__name__) for kind in storage.CODEC.schemas} <= names
    assert {("A", kind.__name__) for kind in admin.CODECS[0].schemas} <= names
    texts = {one.fields["message"] for one in FRAMES if one.protocol == "H" and one.fields}
    assert texts == {STORAGE_CLIENT, STORAGE_SERVER, ADMIN_CLIENT, ADMIN_SERVER}
