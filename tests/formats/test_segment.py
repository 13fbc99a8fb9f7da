"""Segment headers, records, index entries and file names."""

from __future__ import annotations

import struct
import uuid
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.formats.settings import properties
from waltzctl.formats.checksums import crc32
from waltzctl.formats.request_id import RequestId
from waltzctl.formats.segment import (
    CHECKPOINT_INTERVAL,
    ENTRY_SIZE,
    FORMAT_VERSION,
    HEADER_SIZE,
    INDEX_FILE_SCHEMA,
    MAX_DATA_LENGTH,
    RECORD_OVERHEAD,
    RECORD_SCHEMA,
    SEGMENT_FILE_SCHEMA,
    SEGMENT_HEADER_SCHEMA,
    Record,
    SegmentHeader,
    decode_entries,
    encode_entries,
    encode_offsets,
    encode_records,
    entry_position,
    index_name,
    pack_record_header,
    parse_name,
    segment_name,
)

int32 = st.integers(-(2**31), 2**31 - 1)
int64 = st.integers(-(2**63), 2**63 - 1)
word = st.integers(0, 2**32 - 1)
request_ids = st.builds(RequestId, int32, int32, int32, int32)
data = st.binary(max_size=200)
made = st.builds(Record.make, int64, request_ids, int32, data)
stored = st.builds(Record, int64, request_ids, int32, data, word, word)  # with any checksums
headers = st.builds(
    SegmentHeader,
    int32,
    int64,
    st.uuids(),
    int32,
    int64,
    st.one_of(st.just(bytes(88)), st.binary(min_size=88, max_size=88)),
)


@properties
@given(headers)
def test_segment_header_is_what_the_schema_says(header: SegmentHeader) -> None:
    raw = header.encode()
    assert len(raw) == HEADER_SIZE
    assert SegmentHeader.decode(raw + b"more") == header
    parsed = SEGMENT_HEADER_SCHEMA.parse(raw)
    for name in ("version", "created", "cluster_key", "partition", "first_transaction_id", "reserved"):
        assert parsed[name] == getattr(header, name)


def test_short_segment_header_is_refused() -> None:
    with pytest.raises(struct.error):
        SegmentHeader.decode(bytes(127))


@properties
@given(stored)
def test_record_round_trip_keeps_stored_checksums(record: Record) -> None:
    """Encoding never mends a checksum: what was damaged stays visibly damaged."""
    raw = record.encode()
    assert len(raw) == record.size == RECORD_OVERHEAD + len(record.data)
    assert Record.decode(raw) == record
    assert Record.decode(memoryview(raw)) == record


@properties
@given(stored)
def test_record_is_what_the_schema_says(record: Record) -> None:
    parsed = RECORD_SCHEMA.parse(record.encode())
    assert parsed.transaction_id == record.transaction_id
    one = parsed.request_id
    assert RequestId(one.client, one.generation, one.partition, one.sequence) == record.request_id
    assert (parsed.header, parsed.data_length, bytes(parsed.data)) == (record.header, len(record.data), record.data)
    assert (parsed.data_checksum, parsed.record_checksum) == (record.data_checksum, record.record_checksum)
    assert RECORD_SCHEMA.build(parsed) == record.encode()


@properties
@given(made)
def test_made_records_carry_both_checksums(record: Record) -> None:
    raw = record.encode()
    assert record.data_ok
    assert record.record_ok
    assert record.data_checksum == crc32(record.data)
    assert record.record_checksum == crc32(raw[:-4])


@properties
@given(made, st.data())
def test_any_flipped_bit_of_a_record_is_seen(record: Record, draw: st.DataObject) -> None:
    """A CRC finds every single-bit error; a length that changes no longer fits the bytes."""
    raw = bytearray(record.encode())
    bit = draw.draw(st.integers(0, len(raw) * 8 - 1))
    raw[bit // 8] ^= 1 << (bit % 8)
    try:
        damaged = Record.decode(raw)
    except ValueError:
        assert 28 <= bit // 8 < 32  # only the length can make a record unreadable
    else:
        assert not damaged.record_ok


@pytest.mark.turns(10)
@properties
@given(made, word)
def test_record_checksum_covers_the_data_checksum(record: Record, other: int) -> None:
    """The client's checksum may be wrong while the record is intact: then only `data_ok` tells."""
    head = pack_record_header(record.transaction_id, record.request_id, record.header, len(record.data), other)
    sealed = replace(record, data_checksum=other, record_checksum=crc32(record.data, crc32(head)))
    assert sealed.record_ok
    assert sealed.data_ok == (other == record.data_checksum)


@pytest.mark.parametrize("change", [-1, 1])
def test_record_of_another_length_is_refused(change: int) -> None:
    raw = Record.make(1, RequestId(1, 2, 3, 4), 5, b"abc").encode()
    with pytest.raises(ValueError, match="does not fit"):
        Record.decode(raw[:change] if change < 0 else raw + b"x")
    with pytest.raises(ValueError, match="at least 40 bytes"):
        Record.decode(raw[:39])


def test_negative_length_is_refused() -> None:
    raw = bytearray(Record.make(1, RequestId(1, 2, 3, 4), 5, b"").encode())
    raw[28:32] = struct.pack(">i", -1)
    with pytest.raises(ValueError, match="data length -1"):
        Record.decode(raw)


@properties
@given(st.lists(stored, max_size=8))
def test_a_whole_segment_and_its_index(records: list[Record]) -> None:
    header = SegmentHeader(0, 1, uuid.UUID(int=7), 3, 0).encode()
    body, offsets = encode_records(records)
    assert body == b"".join(record.encode() for record in records)
    parsed = SEGMENT_FILE_SCHEMA.parse(header + body)
    assert [RECORD_SCHEMA.build(one) for one in parsed.records] == [record.encode() for record in records]
    entries = encode_entries([HEADER_SIZE + offset for offset in offsets])
    index = INDEX_FILE_SCHEMA.parse(header + entries)
    file = header + body
    for entry, record in zip(index.entries, records, strict=True):
        assert file[entry.offset : entry.offset + record.size] == record.encode()


def test_index_positions() -> None:
    assert entry_position(0, 0) == 128
    assert entry_position(1007, 1000) == 128 + 56


@properties
@given(st.integers(0, 2**63 - 1))
def test_names_hold_the_first_id_in_nineteen_digits(first: int) -> None:
    assert parse_name(segment_name(first)) == (first, ".seg")
    assert parse_name(index_name(first)) == (first, ".idx")
    assert len(segment_name(first)) == 23


def test_a_segment_cannot_begin_below_zero() -> None:
    for name in (segment_name, index_name):
        with pytest.raises(ValueError, match="cannot begin"):
            name(-1)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "0.seg",
        "000000000000000000.seg",
        "00000000000000000000.seg",
        "0000000000000000000.SEG",
        "0000000000000000000.seg.waltzctl-tmp",
        " 0000000000000000000.seg",
        "0000000000000000000.seg\n",
        "9999999999999999999.seg",
        "000000000000000000a.idx",
        "-000000000000000001.seg",
        "٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠.seg",
        "waltz-storage.ctl",
    ],
)
def test_other_names_are_no_segments(name: str) -> None:
    assert parse_name(name) is None


@pytest.mark.parametrize(
    ("first", "known"), [(2**63 - 2, True), (2**63 - 1, True), (2**63, False), (2**63 + 1, False), (10**19 - 1, False)]
)
def test_a_name_goes_as_far_as_an_id_does(first: int, known: bool) -> None:
    """Nineteen digits have room for more than 64 bits with a sign."""
    for suffix in (".seg", ".idx"):
        assert parse_name(f"{first:019d}{suffix}") == ((first, suffix) if known else None)


@properties
@given(st.text(max_size=30))
def test_parsing_a_name_inverts_making_it_or_refuses(name: str) -> None:
    parsed = parse_name(name)
    if parsed is not None:
        first, suffix = parsed
        assert name == (segment_name if suffix == ".seg" else index_name)(first)


def test_the_numbers_of_the_release() -> None:
    """Between syncs of an index; the longest data that the length field can say; sizes that its own files have."""
    assert CHECKPOINT_INTERVAL == 1000
    assert MAX_DATA_LENGTH == 2**31 - 1
    assert (HEADER_SIZE, ENTRY_SIZE, RECORD_OVERHEAD) == (128, 8, 40)


def test_what_a_header_has_when_nobody_says_otherwise() -> None:
    header = SegmentHeader(0, 1, uuid.UUID(int=7), 3, 9)
    assert header.reserved == bytes(88)
    assert SegmentHeader.decode(header.encode()) == header
    assert FORMAT_VERSION == 0


@pytest.mark.parametrize("rest", range(9))
def test_entries_come_back_without_an_odd_rest(rest: int) -> None:
    places = [128, 129, 2**63 - 1, -1]
    raw = encode_entries(places)
    assert encode_offsets(np.array(places)) == raw == struct.pack(">4q", *places)
    found = decode_entries(memoryview(raw + bytes(8))[: 32 + rest])
    assert found.tolist() == [*places, 0][: 4 + rest // 8]
    assert found.dtype == np.int64


def test_why_a_record_is_refused() -> None:
    raw = Record.make(1, RequestId(1, 2, 3, 4), 5, b"abc").encode()
    for data, why in (
        (raw[:39], "a record has at least 40 bytes, here are 39"),
        (raw[:40], "data length 3 does not fit a record of 40 bytes"),
        (raw[:42], "data length 3 does not fit a record of 42 bytes"),
        (raw + b"x", "data length 3 does not fit a record of 44 bytes"),
    ):
        with pytest.raises(ValueError, match=f"^{why}$"):
            Record.decode(data)
    empty = Record.make(1, RequestId(1, 2, 3, 4), 5, b"")
    assert Record.decode(empty.encode()) == empty
    with pytest.raises(ValueError, match=r"^a segment cannot begin at transaction -1$"):
        segment_name(-1)
    assert (segment_name(0), index_name(0)) == (f"{0:019d}.seg", f"{0:019d}.idx")


def test_where_records_stand() -> None:
    records = [Record.make(place, RequestId(1, 2, 3, 4), 5, bytes(size)) for place, size in enumerate((0, 3, 1))]
    body, offsets = encode_records(records)
    assert (offsets, len(body)) == ([0, 40, 83], 124)
    assert encode_records([]) == (b"", [])
