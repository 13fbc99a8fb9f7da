"""What the scanner must find, said a second time and independently: with the `construct` schema and the interpreter's zlib."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

import construct

from tests.builders import segment_header
from waltzctl.engine.scan.columns import Damage, RecordBatch
from waltzctl.formats.segment import HEADER_SIZE, RECORD_SCHEMA, Record, encode_entries, encode_records

Row = tuple[int, int, int, int, int, int, int, int, bool]


@dataclass(frozen=True)
class Segment:
    """A segment file, its index, and where its records are."""

    data: bytes
    index: bytes
    records: list[Record]
    offsets: list[int]

    @property
    def first(self) -> int:
        return self.records[0].transaction_id if self.records else 0

    def span(self, place: int) -> tuple[int, int]:
        return self.offsets[place], self.offsets[place] + self.records[place].size

    def row(self, place: int) -> Row:
        record = self.records[place]
        high = record.request_id.client << 32 | record.request_id.generation & 0xFFFFFFFF
        low = record.request_id.partition << 32 | record.request_id.sequence & 0xFFFFFFFF
        return (
            self.offsets[place],
            record.transaction_id,
            high,
            low,
            record.header,
            len(record.data),
            record.data_checksum,
            record.record_checksum,
            record.data_ok,
        )


def segment_of(records: list[Record]) -> Segment:
    body, offsets = encode_records(records)
    first = records[0].transaction_id if records else 0
    header = segment_header(0, first).encode()
    places = [HEADER_SIZE + offset for offset in offsets]
    return Segment(header + body, header + encode_entries(places), records, places)


def parse(data: bytes, offset: int) -> Row | None:
    """The record at `offset` if its length fits and its checksum is right."""
    try:
        found = RECORD_SCHEMA.parse(data[offset:])
    except construct.ConstructError:
        return None
    end = offset + 40 + found.data_length
    if found.data_length < 0 or zlib.crc32(data[offset : end - 4]) != found.record_checksum:
        return None
    words = data[offset + 8 : offset + 24]
    return (
        offset,
        found.transaction_id,
        int.from_bytes(words[:8], signed=True),
        int.from_bytes(words[8:], signed=True),
        found.header,
        found.data_length,
        found.data_checksum,
        found.record_checksum,
        zlib.crc32(found.data) == found.data_checksum,
    )


def walk(data: bytes, offset: int, expected: int) -> list[Row]:
    """Records back to back with rising ids, up to the first that is not believable."""
    rows: list[Row] = []
    while (row := parse(data, offset)) is not None and row[1] == expected:
        rows.append(row)
        offset, expected = offset + 40 + row[5], expected + 1
    return rows


def rows_of(batch: RecordBatch) -> list[Row]:
    columns = (
        batch.offset,
        batch.transaction_id,
        batch.request_id_high,
        batch.request_id_low,
        batch.header,
        batch.data_length,
        batch.data_checksum,
        batch.record_checksum,
        batch.data_ok,
    )
    return list(zip(*(column.tolist() for column in columns), strict=True))


def split(items: Iterable[RecordBatch | Damage]) -> tuple[list[Row], list[Damage]]:
    """Rows and damages of a scan."""
    rows: list[Row] = []
    damages: list[Damage] = []
    for item in items:
        if isinstance(item, Damage):
            damages.append(item)
        else:
            rows += rows_of(item)
    return rows, damages


def assert_tiles(items: list[RecordBatch | Damage], start: int, stop: int) -> None:
    """Batches and damages cover ``[start, stop)`` without gap or overlap, and ids fit to each other."""
    place = start
    for item in items:
        if isinstance(item, Damage):
            assert item.offset == place
            assert item.length >= 0
            place = item.end
        else:
            assert item.offset[0] == place
            ids = item.transaction_id.tolist()
            assert ids == list(range(ids[0], ids[0] + len(item)))
            ends = [int(o) + 40 + int(n) for o, n in zip(item.offset, item.data_length, strict=True)]
            assert ends[:-1] == item.offset[1:].tolist()
            place = item.end
    assert place == stop
    for item, behind in pairwise(items):
        if isinstance(item, Damage) and isinstance(behind, RecordBatch):
            assert item.next_transaction_id == behind.transaction_id[0]
    if items and isinstance(items[-1], Damage) and items[-1].cause != "record-order":
        assert items[-1].next_transaction_id is None
