"""A scan that is told of another copy's records yields what it yields without them, whatever the two copies hold."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.builders import make_records, segment_header
from waltzctl.engine.scan import known_records
from waltzctl.engine.scan.byte_source import BytesSource
from waltzctl.engine.scan.columns import COLUMN_TYPES, Damage, RecordBatch
from waltzctl.engine.scan.known_records import KnownRecords
from waltzctl.engine.scan.scanner import scan_records
from waltzctl.formats.segment import HEADER_SIZE, Record, encode_records


def content(records: list[Record]) -> bytes:
    return segment_header(0, 0).encode() + encode_records(records)[0]


def batches(data: bytes, rows: int = 1 << 20) -> list[RecordBatch]:
    """Of a copy that is whole, `rows` records in each."""
    found = list(scan_records(BytesSource(data), first_transaction_id=0, data=True))
    assert all(isinstance(one, RecordBatch) for one in found)
    return [
        one.rows(at, min(at + rows, len(one)))
        for one in found
        if isinstance(one, RecordBatch)
        for at in range(0, len(one), rows)
    ]


def told(
    data: bytes, known: KnownRecords | None, *, borrowed: bool = False, first: int = 0, start: int = HEADER_SIZE
) -> list[object]:
    """Each record with every column and its bytes, and each damage, in order."""
    found: list[object] = []
    for one in scan_records(
        BytesSource(data), first_transaction_id=first, start=start, data=True, known=known, borrowed=borrowed
    ):
        if isinstance(one, Damage):
            found.append(one)
        else:
            columns = [getattr(one, name).tolist() for name in COLUMN_TYPES]
            found += [(*values, bytes(one.record_bytes(row))) for row, values in enumerate(zip(*columns, strict=True))]
    return found


RECORDS = make_records(40, size=50)
WHOLE = content(RECORDS)


@pytest.mark.turns(8)
@pytest.mark.parametrize(("rows", "piece", "step"), [(7, known_records.PIECE, 1), (1, 64, 7), (40, 64, 7), (40, 1, 31)])
def test_every_byte_counts(monkeypatch: pytest.MonkeyPatch, rows: int, piece: int, step: int) -> None:
    """One that differs anywhere is scanned from there on as if nothing were known."""
    monkeypatch.setattr(known_records, "PIECE", piece)
    known = batches(WHOLE, rows)
    for place in range(HEADER_SIZE, len(WHOLE), step):
        changed = bytearray(WHOLE)
        changed[place] ^= 0x10
        assert told(bytes(changed), KnownRecords(known)) == told(bytes(changed), None)


@pytest.mark.parametrize("piece", [10, known_records.PIECE])
def test_what_is_the_same_is_not_looked_at_twice(monkeypatch: pytest.MonkeyPatch, piece: int) -> None:
    monkeypatch.setattr(known_records, "PIECE", piece)
    known = batches(WHOLE, 7)
    found = list(scan_records(BytesSource(WHOLE), first_transaction_id=0, data=True, known=KnownRecords(known)))
    assert found == known
    assert found[0] is known[0]


@pytest.mark.parametrize("cut", [-1, 0, 1])
def test_records_that_end_with_the_file_are_known_and_none_that_goes_beyond(cut: int) -> None:
    """One byte less: the known batch is not taken, and all records but the last are scanned."""
    data = WHOLE[:cut] if cut < 0 else WHOLE + b"\0" * cut
    known = batches(WHOLE)
    first = next(iter(scan_records(BytesSource(data), first_transaction_id=0, data=True, known=KnownRecords(known))))
    assert (first is known[0]) == (cut >= 0)
    assert told(data, KnownRecords(known)) == told(data, None)


def test_a_copy_in_another_place_has_places_of_its_own() -> None:
    """Records 10 and on of a copy stand at the beginning of another one."""
    data = content(RECORDS[10:])
    (first, *rest) = scan_records(
        BytesSource(data), first_transaction_id=10, data=True, known=KnownRecords(batches(WHOLE))
    )
    assert isinstance(first, RecordBatch)
    assert not rest
    assert int(first.offset[0]) == HEADER_SIZE
    assert told(data, KnownRecords(batches(WHOLE)), first=10) == told(data, None, first=10)


@given(
    luck=st.randoms(use_true_random=False),
    rows=st.integers(1, 45),
    borrowed=st.booleans(),
)
def test_any_other_copy(luck: random.Random, rows: int, borrowed: bool) -> None:
    """Records with other bytes, missing ones, a damaged byte, a torn end, a beginning that is not known."""
    known = batches(WHOLE, rows)[luck.randrange(3) :]
    records = list(RECORDS)
    for _ in range(luck.choice((0, 0, 1, 2))):
        place = luck.randrange(len(records))
        match luck.randrange(3):
            case 0:
                old = records[place]
                data = luck.randbytes(len(old.data)) if luck.random() < 0.7 else old.data + b"!"
                records[place] = Record.make(old.transaction_id, old.request_id, old.header, data)
            case 1:
                del records[place]
            case 2:
                old = records[place]
                request = replace(old.request_id, sequence=old.request_id.sequence ^ 1)
                records[place] = Record.make(old.transaction_id, request, old.header, old.data)
    data = bytearray(content(records))
    if luck.random() < 0.4:
        data[luck.randrange(HEADER_SIZE, len(data))] ^= 1 << luck.randrange(8)
    if luck.random() < 0.4:
        del data[luck.randrange(HEADER_SIZE, len(data)) :]
    assert told(bytes(data), KnownRecords(known), borrowed=borrowed) == told(bytes(data), None)


def test_nothing_is_known_of_ids_in_front_of_the_first_batch_and_behind_the_last() -> None:
    known = KnownRecords(batches(WHOLE, 10)[1:3])
    source, ends = BytesSource(WHOLE), [one.end for one in batches(WHOLE, 10)]
    assert known.at(source, HEADER_SIZE, 0, len(WHOLE)) is None
    assert known.at(source, ends[0], 10, len(WHOLE)) is not None
    assert known.at(source, ends[1], 20, len(WHOLE)) is not None
    (last,) = batches(WHOLE, 10)[2].rows(9, 10).offset.tolist()
    assert known.at(source, last, 29, len(WHOLE)) is not None
    assert known.at(source, ends[2], 30, len(WHOLE)) is None
    known.hold(batches(WHOLE, 10)[3:])
    assert known.at(source, ends[2], 30, ends[3] - 1) is None
    assert known.at(source, ends[2], 30, ends[3]) is not None


def test_what_a_file_does_not_have_any_more_is_not_known() -> None:
    """Though the buffer still holds it from the time before."""
    (whole,) = batches(WHOLE)
    for cut in (len(WHOLE) - 1, HEADER_SIZE):
        known = KnownRecords([whole])
        assert known.at(BytesSource(WHOLE), HEADER_SIZE, 0, len(WHOLE)) is whole
        known.hold([whole])
        assert known.at(BytesSource(WHOLE[:cut]), HEADER_SIZE, 0, len(WHOLE)) is None
