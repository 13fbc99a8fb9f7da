"""Harm done to directories that `tests.builders` wrote."""

from __future__ import annotations

from pathlib import Path

from waltzctl.formats.segment import HEADER_SIZE, RECORD_HEADER, Record, index_name, segment_name


def segment_of(storage: Path, partition: int = 0, first: int = 0) -> Path:
    return storage / str(partition) / segment_name(first)


def index_of(storage: Path, partition: int = 0, first: int = 0) -> Path:
    return storage / str(partition) / index_name(first)


def records_of(path: Path) -> list[tuple[int, Record]]:
    """Offset and record, of an intact segment."""
    data = path.read_bytes()
    found = []
    offset = HEADER_SIZE
    while offset < len(data):
        length = int.from_bytes(data[offset + 28 : offset + 32], "big")
        end = offset + RECORD_HEADER.size + length + 4
        found.append((offset, Record.decode(data[offset:end])))
        offset = end
    return found


def flip(path: Path, offset: int, bit: int = 0) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 1 << bit
    path.write_bytes(data)


def damage_record(path: Path, place: int) -> int:
    """Flip a bit in the header field of the record at `place`; returns its transaction id."""
    offset, record = records_of(path)[place]
    flip(path, offset + RECORD_HEADER.offset_of("header"))
    return record.transaction_id


def tear_tail(path: Path, missing: int = 5) -> None:
    data = path.read_bytes()
    path.write_bytes(data[:-missing])
