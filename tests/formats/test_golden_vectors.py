"""Bytes that release 0.13.2 was seen to write, asserted literally: they, and not our own code, define the formats."""

from __future__ import annotations

import struct
import uuid

import pytest

from tests.golden import GOLDEN, golden_directories, needs_golden
from waltzctl.formats.checksums import crc32
from waltzctl.formats.control import (
    CONTROL_HEADER_SCHEMA,
    FLAG_ASSIGNED,
    FLAG_AVAILABLE,
    Choice,
    ControlHeader,
    Layout,
    PartitionInfo,
    PartitionStruct,
    decode_control,
    initial_control,
    initial_info,
)
from waltzctl.formats.request_id import RequestId
from waltzctl.formats.segment import (
    INDEX_FILE_SCHEMA,
    RECORD_SCHEMA,
    SEGMENT_FILE_SCHEMA,
    Record,
    SegmentHeader,
    encode_entries,
    encode_records,
    index_name,
    segment_name,
)

KEY = uuid.UUID("01234567-89ab-cdef-0123-456789abcdef")
CREATED = 0x0000018BCFE5687B
HEADER = "00000000 0000018bcfe5687b 0123456789abcdef0123456789abcdef 00000002" + "00" * 96
STRUCT_1 = "ffffffffffffffff ffffffffffffffff ffffffffffffffff 00000001 ffffffff 58d1a22d"
STRUCT_2 = "ffffffffffffffff ffffffffffffffff ffffffffffffffff 00000001 00000000 866a82ce"
INFO_INITIAL = "00000000" + STRUCT_1 + STRUCT_2
ASSIGNED = "ffffffffffffffff ffffffffffffffff ffffffffffffffff 00000005 00000001 04ed1498"
MARKED = "0000000000000007 0000000000000005 0000000000000003 00000005 00000002 3c979710"
RECORD_0 = "0000000000000000 00000001000000020000000300000004 00000005 00000003 352441c2 616263 201cb6fd"
RECORD_1 = "0000000000000001 00000001000000020000000300000005 00000006 00000000 00000000 75516b9f"
INDEX_BODY = "0000000000000080 00000000000000ab"


def raw(text: str) -> bytes:
    return bytes.fromhex(text)


def test_control_header_of_two_partitions() -> None:
    header = ControlHeader(0, CREATED, KEY, 2)
    assert header.encode() == raw(HEADER)
    assert ControlHeader.decode(raw(HEADER)) == header


def test_released_control_file_of_two_partitions_is_280_bytes_of_initial_pairs() -> None:
    second = "00000001" + STRUCT_1 + STRUCT_2
    encoded = initial_control(Layout.RELEASED, KEY, 2, CREATED).encode()
    assert len(encoded) == 280
    assert encoded == raw(HEADER) + raw(INFO_INITIAL) + raw(second)
    read = decode_control(encoded)
    assert (read.layout, read.size_fits, read.header.num_partitions) == (Layout.RELEASED, True, 2)
    assert [info.current for info in read.partitions] == [2, 2]


def test_flag_change_goes_to_the_struct_that_is_not_current() -> None:
    info = PartitionInfo.decode(Layout.RELEASED, 0, raw(INFO_INITIAL))
    assert info == initial_info(Layout.RELEASED, 0)
    number, written = info.updated(flags=FLAG_AVAILABLE | FLAG_ASSIGNED)
    assert (number, written.encode()) == (1, raw(ASSIGNED))


def test_marks_alternate_between_the_structs() -> None:
    info = PartitionInfo.decode(Layout.RELEASED, 0, raw("00000000" + ASSIGNED + STRUCT_2))
    assert (info.current, info.choice) == (1, Choice.NEWER)
    number, written = info.updated(session_id=7, low_water_mark=5, local_low_water_mark=3)
    assert (number, written.encode()) == (2, raw(MARKED))
    assert info.with_struct(number, written).encode() == raw("00000000" + ASSIGNED + MARKED)


def test_struct_of_zeros_is_invalid() -> None:
    """A control file that was extended but never written must not be taken for marks of 0."""
    assert crc32(bytes(32)) == 0x190A55AD
    assert not PartitionStruct.decode(Layout.RELEASED, bytes(36)).valid
    assert not PartitionStruct.decode(Layout.DOCUMENTED, bytes(28)).valid


def test_records_and_index() -> None:
    records = [
        Record.make(0, RequestId(1, 2, 3, 4), 5, b"abc"),
        Record.make(1, RequestId(1, 2, 3, 5), 6, b""),
    ]
    body, offsets = encode_records(records)
    assert body == raw(RECORD_0) + raw(RECORD_1)
    assert encode_entries([128 + offset for offset in offsets]) == raw(INDEX_BODY)
    assert [Record.decode(raw(text)) for text in (RECORD_0, RECORD_1)] == records


def test_schemas_read_the_vectors() -> None:
    header = SegmentHeader(0, CREATED, KEY, 3, 0).encode()
    segment = SEGMENT_FILE_SCHEMA.parse(header + raw(RECORD_0) + raw(RECORD_1))
    assert (segment.header.cluster_key, segment.header.partition) == (KEY, 3)
    assert [bytes(record.data) for record in segment.records] == [b"abc", b""]
    assert segment.records[0].request_id.sequence == 4
    index = INDEX_FILE_SCHEMA.parse(header + raw(INDEX_BODY))
    assert [entry.offset for entry in index.entries] == [0x80, 0xAB]
    assert RECORD_SCHEMA.parse(raw(RECORD_1)).record_checksum == 0x75516B9F
    assert CONTROL_HEADER_SCHEMA.parse(raw(HEADER)).cluster_key == KEY


def test_first_segment_of_a_partition() -> None:
    assert (segment_name(0), index_name(0)) == ("0000000000000000000.seg", "0000000000000000000.idx")


@needs_golden
@pytest.mark.parametrize("storage", golden_directories(), ids=lambda path: path.name)
def test_released_files_are_what_decoding_and_encoding_them_gives(storage) -> None:  # type: ignore[no-untyped-def]
    """Decode, encode, compare: nothing that the release wrote is lost or altered on the way through our values."""
    assert GOLDEN is not None
    control = (storage / "waltz-storage.ctl").read_bytes()
    assert decode_control(control).encode() == control
    seen = 0
    for path in storage.glob("*/*.seg"):
        data = path.read_bytes()
        if len(data) < 128:
            continue
        header = SegmentHeader.decode(data)
        assert header.encode() == data[:128]
        offset = 128
        while offset + 40 <= len(data):
            (length,) = struct.unpack_from(">i", data, offset + 28)
            if not 0 <= length <= len(data) - offset - 40:
                break
            piece = data[offset : offset + 40 + length]
            record = Record.decode(piece)
            if not record.record_ok:
                break
            assert record.encode() == piece
            assert record == Record.make(record.transaction_id, record.request_id, record.header, record.data)
            offset += len(piece)
            seen += 1
    assert seen > 0
