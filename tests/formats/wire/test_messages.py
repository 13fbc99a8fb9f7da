"""Every message of both ports: there and back, and the fast forms equal to the schemas."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.formats.settings import few, many, properties
from tests.formats.wire.strategies import (
    ADMIN_BY_VERSION,
    STORAGE_KINDS,
    headers,
    hellos,
    i32,
    i64,
    messages_of,
    records,
)
from waltzctl.formats.request_id import REQUEST_ID_SCHEMA, RequestId
from waltzctl.formats.segment import RecordHeader
from waltzctl.formats.wire import admin, client, storage
from waltzctl.formats.wire.codec import MessageCodec
from waltzctl.formats.wire.failure import Failure, StackElement
from waltzctl.formats.wire.frame import Magic, decode_frame_header
from waltzctl.formats.wire.hello import ADMIN_CLIENT, Hello, choose_version
from waltzctl.formats.wire.primitives import ValueOf
from waltzctl.formats.wire.records import WireRecord, pack_record_headers, pack_records

KINDS: list[tuple[MessageCodec, Any]] = [(storage.CODEC, kind) for kind in STORAGE_KINDS]
KINDS += [(codec, kind) for codec, kinds in zip(admin.CODECS, ADMIN_BY_VERSION, strict=True) for kind in kinds]


@pytest.mark.turns(10)
@pytest.mark.parametrize(("codec", "kind"), KINDS, ids=[f"{chr(c.magic)}{c.version}-{k.__name__}" for c, k in KINDS])
@few
@given(data=st.data())
def test_messages_come_back_equal_and_both_forms_agree(codec: MessageCodec, kind: Any, data: st.DataObject) -> None:
    _comes_back(codec, data.draw(messages_of(kind)))


@pytest.mark.long
@pytest.mark.parametrize(("codec", "kind"), KINDS, ids=[f"{chr(c.magic)}{c.version}-{k.__name__}" for c, k in KINDS])
@many
@given(data=st.data())
def test_many_messages_come_back_equal(codec: MessageCodec, kind: Any, data: st.DataObject) -> None:
    _comes_back(codec, data.draw(messages_of(kind)))


def _comes_back(codec: MessageCodec, message: Any) -> None:
    frame = codec.encode(message)
    header, body = decode_frame_header(frame), frame[7:]
    assert (header.magic, header.version, header.length) == (codec.magic, codec.version, len(body))
    assert codec.encode_by_schema(message) == frame
    assert codec.decode(body) == message
    assert codec.decode_by_schema(body) == message
    assert codec.decode(memoryview(b"?" + body)[1:]) == message


@properties
@given(hellos)
def test_hellos_come_back_equal(hello: Hello) -> None:
    frame = hello.encode()
    assert decode_frame_header(frame).magic == Magic.HELLO
    assert Hello.decode(frame[7:]) == hello


def test_a_hello_without_a_text_has_an_empty_one() -> None:
    assert Hello.decode(bytes.fromhex("00000001 0000 ffffffff")) == Hello((0,), "")


@pytest.mark.parametrize(
    ("ours", "theirs", "chosen"),
    [
        ((0,), (0,), 0),
        ((0, 1), (0,), 0),
        ((0, 1), (1, 0), 1),
        ((0,), (7,), None),
        ((), (0,), None),
        ((0, 1, 3), (3, 2, 1), 3),
    ],
)
def test_the_highest_common_version_is_chosen(
    ours: tuple[int, ...], theirs: tuple[int, ...], chosen: int | None
) -> None:
    assert choose_version(ours, theirs) == choose_version(theirs, ours) == chosen


def test_what_is_hot_has_a_fast_form() -> None:
    """Only failures and lists of pairs go through the schema."""
    slow = {kind.__name__ for codec, kind in KINDS if not codec.has_fast_form(kind)}
    assert slow == {"FailureResponse", "AssignedPartitionStatusResponse"}
    codec = client.CODECS[-1]
    slow = {kind.__name__ for kind in codec.schemas if not codec.has_fast_form(kind)}
    assert slow == {"CheckStorageConnectivityResponse", "ServerPartitionsHealthResponse"}


@pytest.mark.parametrize("byte", [0, 2, 255])
def test_only_1_is_true(byte: int) -> None:
    """As the release reads it; the schema and the derived form alike."""
    body = bytearray(storage.encode(storage.MaxTransactionIdRequest(7, 1, 3, offline=True))[7:])
    body[-1] = byte
    expected = storage.MaxTransactionIdRequest(7, 1, 3, offline=False)
    assert storage.decode(body) == storage.CODEC.decode_by_schema(bytes(body)) == expected
    append = bytearray(storage.encode(storage.AppendRequest(7, 1, 3, (), offline=True))[7:])
    append[-1] = byte
    assert storage.decode(append) == storage.CODEC.decode_by_schema(bytes(append))
    assert storage.decode(append) == storage.AppendRequest(7, 1, 3, (), offline=False)


@pytest.mark.parametrize("byte", [0, 2, 255])
def test_only_1_is_present(byte: int) -> None:
    for message in (storage.RecordResponse(7, 1, 3, None), storage.RecordHeaderResponse(7, 1, 3, None)):
        body = bytearray(storage.encode(message)[7:])
        body[-1] = byte
        assert storage.decode(body) == storage.CODEC.decode_by_schema(bytes(body)) == message


@properties
@given(st.lists(st.tuples(i64, i64, i32), max_size=20))
def test_many_success_responses_at_once_are_the_same_bytes(rows: list[tuple[int, int, int]]) -> None:
    expected = b"".join(storage.encode(storage.SuccessResponse(*row)) for row in rows)
    columns = list(zip(*rows, strict=True)) if rows else [(), (), ()]
    assert storage.success_frames(*columns) == expected
    arrays = [np.array(column, dtype=np.int64) for column in columns]
    assert storage.success_frames(*arrays) == expected


def test_success_responses_of_one_partition_take_it_once() -> None:
    expected = b"".join(storage.encode(storage.SuccessResponse(7, sequence, 3)) for sequence in (4, 5))
    assert storage.success_frames([7, 7], [4, 5], 3) == expected


@properties
@given(i64, i64, i32, st.lists(records, max_size=5), st.booleans())
def test_records_in_wire_form_make_the_same_frames(
    session: int, sequence: int, partition: int, found: list[WireRecord], offline: bool
) -> None:
    packed, count = pack_records(found), len(found)
    assert b"".join(storage.record_list_response(session, sequence, partition, count, packed)) == storage.encode(
        storage.RecordListResponse(session, sequence, partition, tuple(found))
    )
    assert b"".join(
        storage.append_request(session, sequence, partition, count, packed, offline=offline)
    ) == storage.encode(storage.AppendRequest(session, sequence, partition, tuple(found), offline))
    for version in admin.ADMIN_VERSIONS:
        expected = admin.encode(admin.RecordListResponse(sequence, partition, tuple(found)), version)
        assert b"".join(admin.record_list_response(sequence, partition, count, packed, version)) == expected
    assert sum(record.size for record in found) == len(packed)


@properties
@given(i64, i64, i32, st.lists(headers, max_size=5))
def test_record_headers_in_wire_form_make_the_same_frames(
    session: int, sequence: int, partition: int, found: list[RecordHeader]
) -> None:
    pieces = storage.record_header_list_response(session, sequence, partition, len(found), pack_record_headers(found))
    assert b"".join(pieces) == storage.encode(
        storage.RecordHeaderListResponse(session, sequence, partition, tuple(found))
    )


def test_our_code_is_the_first_element_of_the_stack() -> None:
    real = StackElement("com.example.Thing", "run", "Thing.java", 7)
    failure = Failure.with_code("text", "busy", (real,))
    assert failure.stack == (StackElement("waltzctl", "busy", None, -1), real)
    assert failure.code == "busy"
    message = storage.FailureResponse(7, 1, 3, failure)
    found = storage.decode(storage.encode(message)[7:])
    assert isinstance(found, storage.FailureResponse)
    assert found.failure.code == "busy"


@pytest.mark.parametrize(
    "stack",
    [
        (),
        (StackElement("waltzctl.Thing", "busy", None, -1),),
        (StackElement("waltzctl", "busy", "Thing.java", -1),),
        (StackElement("waltzctl", "busy", None, -2),),
        (StackElement("a", "b", None, -1), StackElement("waltzctl", "busy", None, -1)),
    ],
)
def test_no_other_stack_has_a_code(stack: tuple[StackElement, ...]) -> None:
    assert Failure("text", stack).code is None


def test_a_missing_file_is_not_an_empty_one() -> None:
    for file in (None, ""):
        message = admin.FailureResponse(1, Failure("m", (StackElement("C", "f", file, -2),)))
        assert admin.decode(admin.encode(message)[7:]) == message


def test_text_that_is_no_unicode_is_replaced_in_both_directions() -> None:
    """A path with undecodable bytes in a failure's text must not stop the answer; nor must a peer's text stop ours."""
    message = storage.FailureResponse(7, 1, 3, Failure("\udcff file"))
    body = storage.encode(message)[7:]
    found = storage.decode(body)
    assert isinstance(found, storage.FailureResponse)
    assert found.failure.message == "? file"
    found = storage.decode(body.replace(b"? file", b"\xff file"))
    assert isinstance(found, storage.FailureResponse)
    assert found.failure.message == "� file"


@pytest.mark.parametrize(
    "message",
    [
        storage.RecordRequest(2**63, 1, 3, 0),
        storage.RecordRequest(7, 1, 2**31, 0),
        storage.RecordListRequest(7, 1, 3, 0, -(2**31) - 1),
        storage.RecordResponse(7, 1, 3, WireRecord(0, RequestId(2**31, 0, 0, 0), 0, b"", 0)),
        storage.RecordResponse(7, 1, 3, WireRecord(0, RequestId(0, 0, 0, 0), 0, b"", -1)),
        storage.FailureResponse(7, 1, 3, Failure("m", (StackElement("C", "f", None, 2**31),))),
    ],
    ids=lambda message: type(message).__name__,
)
def test_a_field_that_does_not_fit_is_not_written(message: Any) -> None:
    for write in (storage.encode, storage.CODEC.encode_by_schema):
        with pytest.raises(ValueError, match=type(message).__name__):
            write(message)
    with pytest.raises(ValueError, match="40000"):
        Hello((40_000,), ADMIN_CLIENT).encode()


def test_a_version_has_only_its_own_messages() -> None:
    read, write = admin.PartitionReadRequest(1, 3, on=True), admin.PartitionWriteRequest(1, 3, on=True)
    place, placed = admin.RecordPlaceRequest(1, 3, 9), admin.RecordPlaceResponse(1, 3, 0, 128)
    for message in (place, placed):
        with pytest.raises(ValueError, match="does not exist in version 0"):
            admin.encode(message, 0)
        with pytest.raises(ValueError, match=f"message type {message.TYPE} is unknown in version 0"):
            admin.decode(admin.encode(message, 1)[7:], 0)
    for message, version in ((read, 0), (write, 0), (admin.PartitionAvailableRequest(1, (3,), available=True), 1)):
        with pytest.raises(ValueError, match=f"does not exist in version {version}"):
            admin.encode(message, version)
    with pytest.raises(ValueError, match="message type 5 is unknown in version 0"):
        admin.decode(admin.encode(write, 1)[7:], 0)


def test_which_types_are_requests() -> None:
    assert {1, 2, 4, 5, 6, 9, 11, 13, 15, 17} == storage.REQUEST_TYPES
    assert {3, 4, 5, 6, 7, 9, 11, 13, 15} == admin.REQUEST_TYPES


def test_a_schema_whose_members_are_not_the_fields_of_its_class_is_a_mistake() -> None:
    """Noticed when the module is imported, not when the first message comes."""
    with pytest.raises(TypeError, match="RequestId has not the fields of its schema"):
        ValueOf(RequestId, REQUEST_ID_SCHEMA.subcons[0] + REQUEST_ID_SCHEMA.subcons[1])
