"""What each bound of the ports' messages is, one step to each side, and what is said beyond it."""

from __future__ import annotations

import re
import struct
import uuid
from typing import Any

import construct
import pytest

from waltzctl.formats.request_id import RequestId
from waltzctl.formats.schema import compile_schema
from waltzctl.formats.segment import RecordHeader
from waltzctl.formats.wire import admin, client, failure, frame, hello, storage
from waltzctl.formats.wire.failure import Failure, FailureCode, StackElement
from waltzctl.formats.wire.frame import FrameError, FrameHeader, Magic, check_header, frame_header, keep_alive
from waltzctl.formats.wire.hello import Hello
from waltzctl.formats.wire.primitives import (
    DEFAULT_LIMITS,
    ByteArray,
    Limits,
    ListOf,
    MessageError,
    NullableText,
    Text,
    check_count,
    optional,
    pair_of,
)
from waltzctl.formats.wire.records import (
    RecordHeaderList,
    RecordList,
    SessionInfo,
    WireRecord,
    pack_record,
    pack_record_header,
    unpack_count,
    unpack_record,
    unpack_record_header,
    unpack_record_headers,
    unpack_records,
)

REQUEST = RequestId(1, 2, 3, 4)
RECORD = WireRecord.make(9, REQUEST, 5, b"abc")
HEADER = RecordHeader(9, REQUEST, 5)


def said(text: str) -> str:
    return f"^{re.escape(text)}$"


def test_the_numbers_of_the_protocols() -> None:
    assert Limits() == DEFAULT_LIMITS == Limits(1 << 18, 64 << 20, 64 << 20, 1 << 16, 1 << 20)
    assert (frame.MAX_FRAME_BODY, frame.DEFAULT_MAX_BODY) == (2**31 - 1, 64 << 20)
    assert bytes((Magic.HELLO, Magic.STORAGE, Magic.ADMIN, Magic.CLIENT)) == b"HSAL"
    assert (storage.STORAGE_VERSIONS, admin.ADMIN_VERSIONS, hello.HELLO_VERSION) == ((0,), (0, 1), 0)
    assert (storage.OPEN_SEQUENCE, admin.OPEN_SEQUENCE, failure.CODE_LINE) == (-1, -1, -1)
    assert (storage.PREFIX.size, admin.PREFIX.size) == (21, 9)
    assert {kind.__name__: kind.TYPE for kind in storage.CODEC.by_type.values()} == {
        "OpenRequest": 1,
        "LastSessionInfoRequest": 2,
        "LastSessionInfoResponse": 3,
        "SetLowWaterMarkRequest": 4,
        "TruncateRequest": 5,
        "AppendRequest": 6,
        "SuccessResponse": 7,
        "FailureResponse": 8,
        "RecordHeaderRequest": 9,
        "RecordHeaderResponse": 10,
        "RecordRequest": 11,
        "RecordResponse": 12,
        "MaxTransactionIdRequest": 13,
        "MaxTransactionIdResponse": 14,
        "RecordHeaderListRequest": 15,
        "RecordHeaderListResponse": 16,
        "RecordListRequest": 17,
        "RecordListResponse": 18,
    }
    both = {
        "SuccessResponse": 1,
        "FailureResponse": 2,
        "OpenRequest": 3,
        "PartitionAssignmentRequest": 6,
        "RecordListRequest": 7,
        "RecordListResponse": 8,
        "LastSessionInfoRequest": 9,
        "LastSessionInfoResponse": 10,
        "MetricsRequest": 11,
        "MetricsResponse": 12,
        "AssignedPartitionStatusRequest": 13,
        "AssignedPartitionStatusResponse": 14,
    }
    own = (
        {"PartitionAvailableRequest": 4},
        {
            "PartitionReadRequest": 4,
            "PartitionWriteRequest": 5,
            "RecordPlaceRequest": 15,
            "RecordPlaceResponse": 16,
        },
    )
    for codec, more in zip(admin.CODECS, own, strict=True):
        assert {kind.__name__: kind.TYPE for kind in codec.by_type.values()} == both | more


def test_what_a_request_is_when_nobody_says_otherwise() -> None:
    """Not a tool's request: online, for good, with no files deleted."""
    requests: list[Any] = [
        storage.LastSessionInfoRequest(1, 2, 3),
        storage.SetLowWaterMarkRequest(1, 2, 3, 4),
        storage.TruncateRequest(1, 2, 3, 4),
        storage.AppendRequest(1, 2, 3, ()),
        storage.MaxTransactionIdRequest(1, 2, 3),
    ]
    for request in requests:
        assert request.offline is False
        assert storage.encode(request)[-1] == 0
    assert b"".join(storage.append_request(1, 2, 3, 0, b"")) == storage.encode(storage.AppendRequest(1, 2, 3, ()))
    assert not admin.PartitionAssignmentRequest(1, (2,), assigned=False).delete_files
    key = bytes(range(16))
    first, second = storage.OpenRequest(uuid.UUID(bytes=key), 4), admin.OpenRequest(uuid.UUID(bytes=key), 4)
    assert storage.encode(first)[7:] == b"\x01" + b"\xff" * 20 + key + bytes((0, 0, 0, 4))
    assert admin.encode(second)[7:] == b"\x03" + b"\xff" * 8 + key + bytes((0, 0, 0, 4))
    whole = admin.RecordListResponse(1, 3, (RECORD,))
    assert b"".join(admin.record_list_response(1, 3, 1, pack_record(RECORD))) == admin.encode(whole)
    assert admin.encode(whole) == admin.encode(whole, 0) != admin.encode(whole, 1)
    assert admin.decode(admin.encode(admin.PartitionAvailableRequest(1, (2,), available=True))[7:]) is not None
    assert Failure("text").stack == ()
    pieces = storage.record_list_response(1, 2, 3, 0, b"")
    assert [len(piece) for piece in pieces] == [7 + 21 + 4], "no empty pieces are sent"
    assert [len(piece) for piece in storage.append_request(1, 2, 3, 0, b"")] == [7 + 21 + 4, 1]
    assert [len(piece) for piece in admin.record_list_response(1, 3, 0, b"")] == [7 + 9 + 4 + 4]


LISTS: list[tuple[Any, Any, str]] = [
    (hello.HELLO_SCHEMA.versions, 0, "versions"),
    (failure.FAILURE_SCHEMA.stack, StackElement("", "", None, 0), "stack trace"),
    (RecordList, WireRecord(0, REQUEST, 0, b"", 0), "records"),
    (RecordHeaderList, HEADER, "record headers"),
    (admin.PartitionList, 7, "partitions"),
    (admin.StatusList, (7, True), "statuses"),
]


@pytest.mark.parametrize(("schema", "shortest", "what"), LISTS, ids=[what for _, _, what in LISTS])
def test_a_list_is_refused_before_its_elements_when_they_cannot_be_there(schema: Any, shortest: Any, what: str) -> None:
    """By the bytes of the shortest possible element, which is exact for each."""
    while isinstance(schema, construct.Renamed):
        schema = schema.subcon
    assert isinstance(schema, ListOf)
    size = len(schema.subcon.build(shortest))
    assert schema.smallest == size
    body = schema.build((shortest, shortest))
    assert len(body) == 4 + 2 * size
    assert schema.parse(body) == (shortest, shortest)
    with pytest.raises(MessageError, match=said(f"{what}: the count 2 cannot be, {2 * size - 1} bytes are left")):
        schema.parse(body[:-1])
    limits = {
        "records": "max_records",
        "record headers": "max_records",
        "versions": "max_list",
        "stack trace": "max_list",
    }
    limit = limits.get(what, "max_partitions")
    assert schema.parse(body, limits=Limits(**{limit: 2}))
    with pytest.raises(MessageError, match=said(f"{what}: the count 2 is above the 1 that are accepted here")):
        schema.parse(body, limits=Limits(**{limit: 1}))
    with pytest.raises(MessageError, match=said(f"{what}: the count -1 is negative")):
        schema.parse(b"\xff" * 4 + body[4:])
    assert schema.parse(bytes(4)) == ()


@pytest.mark.parametrize(
    ("count", "limit", "smallest", "left", "why"),
    [
        (0, 0, 5, 0, None),
        (-1, 9, 5, 99, "the count -1 is negative"),
        (2, 2, 5, 10, None),
        (2, 2, 5, 9, "the count 2 cannot be, 9 bytes are left"),
        (2, 1, 5, 10, "the count 2 is above the 1 that are accepted here"),
        (2, 1, 5, 9, "the count 2 cannot be, 9 bytes are left"),
    ],
)
def test_a_count(count: int, limit: int, smallest: int, left: int, why: str | None) -> None:
    if why is None:
        check_count("things", count, limit, smallest, left)
    else:
        with pytest.raises(MessageError, match=said(f"things: {why}")):
            check_count("things", count, limit, smallest, left)


def test_bytes_and_texts() -> None:
    for schema, what, limit in ((ByteArray, "byte array", "max_data"), (Text, "string", "max_string")):
        value: Any = b"ab" if schema is ByteArray else "ab"
        body = b"\0\0\0\x02ab"
        assert schema.build(value) == body
        assert schema.parse(body, limits=Limits(**{limit: 2})) == value
        for data, limits, why in (
            (body[:-1], DEFAULT_LIMITS, "the count 2 cannot be, 1 bytes are left"),
            (body, Limits(**{limit: 1}), "the count 2 is above the 1 that are accepted here"),
            (b"\xff" * 4, DEFAULT_LIMITS, "the count -1 is negative"),
        ):
            with pytest.raises(MessageError, match=said(f"{what}: {why}")):
                schema.parse(data, limits=limits)
        with pytest.raises(ValueError, match=said(f"{what} is missing")):
            schema.build(None)
    assert NullableText.build(None) == b"\xff" * 4
    assert NullableText.parse(b"\xff" * 4) is None
    assert NullableText.parse(b"\x80\0\0\0") is None
    assert NullableText.parse(bytes(4)) == ""
    with pytest.raises(MessageError, match="cannot be"):
        NullableText.parse(b"\0\0\0\x01")


def test_what_is_there_or_not() -> None:
    schema = construct.Struct("one" / optional(construct.Int16ub), "two" / construct.Int8ub)
    assert schema.build({"one": 7, "two": 1}) == b"\x01\0\x07\x01"
    assert schema.build({"one": None, "two": 1}) == b"\0\x01"
    assert (schema.parse(b"\x01\0\x07\x01").one, schema.parse(b"\0\x01").one, schema.parse(b"\x02\x01").one) == (
        7,
        None,
        None,
    )
    pair = pair_of(admin.STATUS_SCHEMA)
    assert pair.parse(pair.build((7, True))) == (7, True)
    assert pair.build((7, False)) == b"\0\0\0\x07\0"


class TestRecords:
    """The derived forms, at a place that is not the first byte."""

    def test_a_record(self) -> None:
        raw = pack_record(RECORD)
        assert len(raw) == RECORD.size == 39
        body = b"??" + raw + b"!!"
        assert unpack_record(memoryview(body), 2, DEFAULT_LIMITS) == (RECORD, 41)
        assert unpack_record(memoryview(body[:-2]), 2, DEFAULT_LIMITS) == (RECORD, 41)
        beyond = said("a record at offset 2 goes beyond the body of {} bytes")
        for end, why in (
            (2, beyond),
            (33, beyond),
            (34, said("byte array: the count 3 cannot be, 0 bytes are left")),
            (36, said("byte array: the count 3 cannot be, 2 bytes are left")),
            (37, beyond),
            (40, beyond),
        ):
            with pytest.raises(MessageError, match=why.replace(r"\{\}", str(end))):
                unpack_record(memoryview(body[:end]), 2, DEFAULT_LIMITS)
        assert unpack_record(memoryview(body), 2, Limits(max_data=3)) == (RECORD, 41)
        with pytest.raises(MessageError, match=said("byte array: the count 3 is above the 2 that are accepted here")):
            unpack_record(memoryview(body), 2, Limits(max_data=2))

    def test_a_record_header(self) -> None:
        raw = pack_record_header(HEADER)
        assert len(raw) == 28
        assert unpack_record_header(memoryview(b"??" + raw), 2) == (HEADER, 30)
        with pytest.raises(MessageError, match=said("a record header at offset 2 goes beyond the body of 29 bytes")):
            unpack_record_header(memoryview(b"??" + raw[:-1]), 2)

    def test_a_count_of_them(self) -> None:
        body = memoryview(b"??" + struct.pack(">i", 2) + bytes(10))
        assert unpack_count("things", body, 2, 5, 2) == 2
        with pytest.raises(MessageError, match=said("things: the count 2 cannot be, 9 bytes are left")):
            unpack_count("things", body[:-1], 2, 5, 2)
        with pytest.raises(MessageError, match=said("things: the count 2 is above the 1 that are accepted here")):
            unpack_count("things", body, 2, 5, 1)
        with pytest.raises(MessageError, match=said("things: the count goes beyond the body of 5 bytes")):
            unpack_count("things", body[:5], 2, 5, 2)
        assert unpack_count("things", memoryview(bytes(6)), 2, 5, 2) == 0

    def test_lists_of_them(self) -> None:
        records = memoryview(b"??" + struct.pack(">i", 2) + pack_record(RECORD) * 2 + b"!")
        assert unpack_records(records, 2, Limits(max_records=2)) == ((RECORD, RECORD), 84)
        with pytest.raises(MessageError, match=said("records: the count 2 is above the 1 that are accepted here")):
            unpack_records(records, 2, Limits(max_records=1))
        short = memoryview(b"??" + struct.pack(">i", 2) + pack_record(RECORD) + bytes(32))
        with pytest.raises(MessageError, match=said("records: the count 2 cannot be, 71 bytes are left")):
            unpack_records(short, 2, DEFAULT_LIMITS)
        headers = memoryview(b"??" + struct.pack(">i", 2) + pack_record_header(HEADER) * 2 + b"!")
        assert unpack_record_headers(headers, 2, Limits(max_records=2)) == ((HEADER, HEADER), 62)
        with pytest.raises(MessageError, match=said("record headers: the count 2 cannot be, 55 bytes are left")):
            unpack_record_headers(headers[:-2], 2, DEFAULT_LIMITS)


PREFIX = (7, 4, 3)
BODIES: list[tuple[Any, Any]] = [
    (storage.CODEC, storage.AppendRequest(*PREFIX, (RECORD,))),
    (storage.CODEC, storage.RecordResponse(*PREFIX, RECORD)),
    (storage.CODEC, storage.RecordResponse(*PREFIX, None)),
    (storage.CODEC, storage.RecordHeaderResponse(*PREFIX, HEADER)),
    (storage.CODEC, storage.RecordHeaderListResponse(*PREFIX, (HEADER,))),
    (storage.CODEC, storage.RecordListResponse(*PREFIX, (RECORD,))),
    (storage.CODEC, storage.LastSessionInfoResponse(*PREFIX, SessionInfo(1, 2, 3))),
    (storage.CODEC, storage.FailureResponse(*PREFIX, Failure("m", (StackElement("C", "f", None, -2),)))),
    (admin.CODECS[0], admin.RecordListResponse(4, 3, (RECORD,))),
    (admin.CODECS[1], admin.RecordListResponse(4, 3, ())),
    (admin.CODECS[1], admin.PartitionReadRequest(4, 3, on=True)),
    (admin.CODECS[0], admin.PartitionAvailableRequest(4, (3,), available=True)),
    (client.CODECS[4], client.AppendRequest(REQUEST, 9, 1, b"data", 5, (1, 2), (3,), ())),
    (client.CODECS[4], client.FeedData(REQUEST, 7, 1)),
    (client.CODECS[4], client.TransactionDataResponse(REQUEST, 7, client.TransactionData(b"data", 5))),
    (client.CODECS[4], client.TransactionDataResponse(REQUEST, 7, client.TransactionRefused("why"))),
]


@pytest.mark.parametrize(("codec", "message"), BODIES, ids=[type(message).__name__ for _, message in BODIES])
def test_what_is_said_of_a_body_that_ends_elsewhere(codec: Any, message: Any) -> None:
    """Its kind and its size by either way of reading; no other error."""
    name, body = type(message).__name__, codec.encode(message)[7:]
    prefix = len(codec._prefix.pack(message))
    for read in (codec.decode, codec.decode_by_schema):
        for more in (1, 3):
            with pytest.raises(MessageError, match=said(f"{name}: {more} bytes of the body are left over")):
                read(body + bytes(more))
        for end in range(1, len(body)):
            with pytest.raises(MessageError, match=rf"^{name}: ") as refused:
                read(body[:end])
            text = str(refused.value)
            assert text.endswith((f"beyond the body of {end} bytes", "bytes are left")), text
            if end < prefix:
                assert text == f"{name}: a field goes beyond the body of {end} bytes"


def test_what_is_said_of_a_hello() -> None:
    body = Hello((0, 1), "text").encode()[7:]
    assert body == bytes.fromhex("00000002 0000 0001 00000004") + b"text"
    for data, why in (
        (body[:3], "a field goes beyond the body of 3 bytes"),
        (body[:7], "versions: the count 2 cannot be, 3 bytes are left"),
        (body[:10], "a field goes beyond the body of 10 bytes"),
        (body[:-1], "string: the count 4 cannot be, 3 bytes are left"),
        (body + b"??", "2 bytes are left over"),
    ):
        with pytest.raises(MessageError, match=said(f"Hello: {why}")):
            Hello.decode(data)
    assert Hello.decode(body, limits=Limits(max_list=2, max_string=4)) == Hello((0, 1), "text")


class TestFrames:
    """The header's bounds."""

    def test_what_is_accepted(self) -> None:
        check_header(FrameHeader(0x53, 0, 0), 0x53, 0, 0)
        check_header(FrameHeader(0x53, 0, 10), 0x53, 0, 10)
        assert frame_header(0x53, 0, 1) == b"S\0\0\0\0\0\x01"
        assert frame_header(0x53, 1, 2**31 - 1) == b"S\0\x01\x7f\xff\xff\xff"
        assert keep_alive(0x53, 1) == b"S\0\x01\0\0\0\0"

    @pytest.mark.parametrize(
        ("header", "why", "shows"),
        [
            (FrameHeader(0x52, 0, 1), "magic 0x52 instead of 0x53 (S)", True),
            (FrameHeader(0x53, 1, 1), "version 1 instead of the agreed 0", True),
            (FrameHeader(0x53, 0, -1), "length -1 of the body is negative", True),
            (FrameHeader(0x53, 0, 11), "a body of 11 bytes; the longest accepted here has 10", False),
        ],
    )
    def test_what_is_not(self, header: FrameHeader, why: str, shows: bool) -> None:
        """The first sixteen bytes are shown, as text where they are some."""
        with pytest.raises(FrameError, match=said(why)):
            check_header(header, 0x53, 0, 10)
        shown = bytes((0x1F, 0x20, 0x7E, 0x7F, 0x80, 0xFF)) + b"GET / HTTP/1.1"
        seen = "; the frame begins with 1f 20 7e 7f 80 ff 47 45 54 20 2f 20 48 54 54 50 (. ~...GET / HTTP)"
        with pytest.raises(FrameError, match=said(why + seen * shows)):
            check_header(header, 0x53, 0, 10, shown)

    @pytest.mark.parametrize("length", [0, -1, 2**31])
    def test_a_body_that_cannot_be_written(self, length: int) -> None:
        with pytest.raises(ValueError, match=said(f"a message cannot have a body of {length} bytes")):
            frame_header(0x53, 0, length)


def test_the_kind_of_trouble_of_each_code() -> None:
    assert {code.value: code.status for code in FailureCode} == {
        "not-assigned": "refused",
        "not-available": "refused",
        "online": "refused",
        "session-changed": "refused",
        "out-of-order": "refused",
        "mark-would-fall": "refused",
        "below-low-water-mark": "refused",
        "data-checksum": "damaged",
        "too-long": "refused",
        "invalid-request": "usage",
        "unknown-type": "usage",
        "busy": "refused",
        "closed": "refused",
        "refused": "refused",
        "mismatch": "mismatch",
        "corrupt-record": "damaged",
        "quarantined": "damaged",
        "damaged": "damaged",
        "disk-full": "io-error",
        "sync-failed": "io-error",
        "io-error": "io-error",
        "out-of-memory": "io-error",
        "internal": "internal",
    }


def test_records_know_whether_their_data_is_theirs() -> None:
    assert RECORD.data_ok
    assert not WireRecord(9, REQUEST, 5, b"abd", RECORD.data_checksum).data_ok
    assert compile_schema(storage.PREFIX_SCHEMA).size == 21
