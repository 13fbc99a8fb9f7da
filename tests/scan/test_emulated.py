"""What is compiled, run by Python on the emulated primitives: it gives the answers of the oracles, in every way."""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.scan import emulated
from tests.scan.walk_support import expected, run
from tests.scan.wire_oracle import MAGIC, disk_form, expected_encode, expected_list, expected_split
from waltzctl.engine.scan import compiled, native, wire_code, wire_compiled, wire_native
from waltzctl.engine.scan import kernel as interpreted
from waltzctl.engine.scan.frames import FrameColumn, FrameSplitter, SplitStatus
from waltzctl.engine.scan.kernel import STRETCH, Kernel, Status, made_up_record
from waltzctl.engine.scan.transcode import AppendEncoder, FrameVerdict, list_form
from waltzctl.engine.scan.wire_layout import COLUMNS
from waltzctl.engine.scan.wire_loops import INTERPRETED, new_state
from waltzctl.formats.request_id import RequestId
from waltzctl.formats.wire.frame import keep_alive
from waltzctl.formats.wire.records import WireRecord
from waltzctl.formats.wire.storage import AppendRequest, MaxTransactionIdRequest, encode

KERNELS = ("clmul512", "clmul256", "clmul128", "isal", "table", "interpreted")
LENGTHS = (*range(70), 127, 128, 129, 255, 256, 257, 319, 320, 321, 511, 512, 513, 639, 1023, 1024, 1025, 1279)
LONG = (4095, 4096, 4097, 8191, 8192, 12345)


@pytest.fixture(scope="module")
def emulation() -> Iterator[None]:
    """For as long as anything here runs: in whichever order, nothing finds half of it."""
    with pytest.MonkeyPatch.context() as patch:
        emulated.put_in_place(patch)
        yield


@pytest.fixture(params=KERNELS, scope="module")
def kernel(request: pytest.FixtureRequest, emulation: None) -> Kernel:
    return interpreted.INTERPRETED if request.param == "interpreted" else emulated.kernel(request.param)


def with_checksum(record: bytes, data_checksum: int) -> bytes:
    """The same record with another checksum of its data, which its own one covers."""
    raw = record[:32] + data_checksum.to_bytes(4) + record[36:-4]
    return raw + zlib.crc32(raw).to_bytes(4)


def agrees(kernel: Kernel, data: bytes, rows: int = 4096, first: int = 0) -> Status:
    """Compares what is told with the oracle; hands back the status."""
    wanted = expected(data, len(data), rows, first)
    assert run(kernel, data, rows=rows, first=first) == wanted
    return wanted[0]


def test_records_of_every_length(kernel: Kernel) -> None:
    data = b"".join(made_up_record(place, length) for place, length in enumerate((*LENGTHS, *LONG)))
    assert agrees(kernel, data) is Status.MORE


def test_two_columns_of_every_record(kernel: Kernel) -> None:
    data = b"".join(made_up_record(place, 0) for place in range(6))
    wanted = expected(data, len(data), 5, 0)
    assert run(kernel, data, rows=5, wide=False) == (*wanted[:3], [(row[0], row[-1]) for row in wanted[3]])
    assert wanted[:3] == (Status.FULL, 200, 5)


@pytest.mark.parametrize("length", [0, 28, 100, 600, 1100, 4097])
def test_a_bit_of_a_record(kernel: Kernel, length: int) -> None:
    good = made_up_record(0, length)
    head, tail = (0, 7, 8, 15, 16, 23, 24, 27, 31, 32, 35), (36 + length // 2, *range(len(good) - 5, len(good)))
    for place in head + tail if length in (28, 1100) else tail:
        data = bytearray(good)
        data[place] ^= 1 << place % 8
        assert agrees(kernel, bytes(data)) in (Status.CHECKSUM, Status.LENGTH)


@pytest.mark.parametrize("length", [20, 70, 5000])
def test_a_checksum_of_data_that_is_wrong_alone(kernel: Kernel, length: int) -> None:
    """At every place among others, and in front of a record that is wrong."""
    right = [made_up_record(place, length if place == 5 else 9) for place in range(9)]
    stored = [int.from_bytes(record[32:36]) for record in right]
    for places, bit in (((0, 3, 5), 1), ((1, 2, 7, 8), 1 << 31)):
        records = [with_checksum(one, stored[n] ^ bit) if n in places else one for n, one in enumerate(right)]
        assert agrees(kernel, b"".join(records)) is Status.MORE
        assert agrees(kernel, b"".join(records[:6]) + bytes(40)) is Status.CHECKSUM


@pytest.mark.turns(8)
@pytest.mark.parametrize("place", [0, 1, 3, STRETCH - 1, STRETCH])
def test_where_a_walk_ends(kernel: Kernel, place: int) -> None:
    """At a wrong record, at one with another id, at the end of the rows; each next to the others."""
    records = [made_up_record(number, number % 7) for number in range(STRETCH + 2)]
    wrong, other = bytearray(records[place]), made_up_record(place + 1, 11)
    wrong[26] ^= 2
    for there in (bytes(wrong), other):
        data = b"".join([*records[:place], there, *records[place + 1 :]])
        assert agrees(kernel, data, rows=place + 1) in (Status.CHECKSUM, Status.ORDER)
        assert agrees(kernel, data) in (Status.CHECKSUM, Status.ORDER)
    assert agrees(kernel, b"".join(records), rows=place + 1) is Status.FULL


def test_ids_at_both_ends(kernel: Kernel) -> None:
    for first in (2**63 - 4, -(2**63), -2):
        data = b"".join(made_up_record(first + place, 5) for place in range(3))
        assert agrees(kernel, data, first=first) is Status.MORE
        assert agrees(kernel, data, first=first + 1) is Status.ORDER


# --- frames and lists -------------------------------------------------------------------------------------------------


@pytest.fixture(params=["isal", "table", "interpreted"], scope="module")
def way(request: pytest.FixtureRequest, emulation: None) -> Iterator[str]:
    with pytest.MonkeyPatch.context() as patch:
        loops = INTERPRETED if request.param == "interpreted" else emulated.loops(request.param)
        patch.setattr(wire_code, "chooser", lambda _: lambda: loops)
        yield request.param


SOURCE = random.Random(7)
SOME = (0, 1, 15, 16, 17, 40, 511, 512, 513, 600, 33, 4097)


def wire_record(number: int, length: int) -> WireRecord:
    ids = RequestId(*(SOURCE.randrange(-(2**31), 2**31) for _ in range(4)))
    return WireRecord.make(number, ids, SOURCE.randrange(-(2**31), 2**31), SOURCE.randbytes(length))


RECORDS = tuple(wire_record(5 + place, length) for place, length in enumerate(SOME))
STREAM = b"".join(
    (
        encode(AppendRequest(-7, 2**40, 3, RECORDS[:3], True)),
        keep_alive(MAGIC, 0),
        encode(MaxTransactionIdRequest(9, 1, -3, True)),
        encode(AppendRequest(2**62, -1, 3, (), False)),
        encode(AppendRequest(7, 0, 3, RECORDS[3:9])),
        encode(AppendRequest(7, 0, 3, RECORDS[9:], True)),
    )
)
HEADS = [0, 1, 2, 3, 4, 6, 7, 8, 16, 17, 28, 29, 31, 32, 35, 36, 59, 60, 63, 64, 68, 100]


def changes(data: bytes, places: list[int]) -> Iterator[bytes]:
    """As it is, shortened, and with one byte that is another."""
    yield data
    yield from (data[:-cut] for cut in (1, 4, 5, 8, 36, 40))
    for turn, place in enumerate(places):
        raw = bytearray(data)
        raw[place] ^= (1, 0x80)[turn % 2]
        yield bytes(raw)


@pytest.mark.parametrize(
    ("rows", "max_body"), [(1, 1 << 20), (5, 1 << 20), (64, 1 << 20), (64, 2000), (64, 26), (64, 25)]
)
def test_frames(way: str, rows: int, max_body: int) -> None:
    splitter = FrameSplitter(magic=MAGIC, max_body=max_body, rows=rows)
    for raw in changes(STREAM, HEADS):
        for start, end in ((0, len(raw)), (0, 6), (0, 7), (0, 40), (7, len(raw)), (0, len(raw) - 1)):
            found = splitter.split(raw, start, end, 0)
            wanted = expected_split(raw, start, end, version=0, max_body=max_body, rows=rows)
            assert (found.table.tolist(), found.consumed, found.status, found.needed) == wanted


@pytest.mark.parametrize("length", range(20, 32))
def test_an_append_that_is_cut_short(way: str, length: int) -> None:
    """Each field of the shortest one, and whether the count and the flag have a place."""
    body = bytes((6, *range(1, 21), 0, 0, 0, 1, *[1] * 7))[:length]
    raw = bytes((MAGIC, 0, 0, 0, 0, 0, length)) + body
    found = FrameSplitter(magic=MAGIC, max_body=100).split(raw, 0, len(raw), 0)
    wanted = expected_split(raw, 0, len(raw), version=0, max_body=100, rows=1024)
    assert (found.table.tolist(), found.consumed, found.status, found.needed) == wanted
    assert found.status is (SplitStatus.SHORT if length < 21 else SplitStatus.MORE)


def encoded(raw: bytes, table: np.ndarray, first: int, bound: int) -> tuple[object, ...]:
    found = AppendEncoder(max_data_length=bound).encode(raw, table, first)
    block = found.block
    parts = [bytes(block.data[a:b]) for a, b in zip(block.offsets[:-1], block.offsets[1:], strict=True)]
    assert b"".join(parts) == bytes(block.data)
    return found.frames, found.verdict, found.found_transaction_id, parts


def test_appends(way: str) -> None:
    """Right, with a byte that is another, with another first id and with other bounds."""
    table = FrameSplitter(magic=MAGIC, max_body=1 << 20).split(STREAM, 0, len(STREAM), 0).table
    table = table[table[:, FrameColumn.TYPE] == AppendRequest.TYPE]
    at = [
        int(body) + place
        for body in table[[0, 2, 3], FrameColumn.BODY]
        for place in (24, 25, 32, 33, 52, 53, 54, 56, 57, 58)
    ]
    bounds = [(STREAM, 4, 1 << 20), (STREAM, 6, 1 << 20), (STREAM, 5, 512), (STREAM, 5, 511), (STREAM, 5, 14)]
    changed = [(raw, 5, 1 << 20) for raw in changes(STREAM, [*at, len(STREAM) - 2, len(STREAM) - 5, len(STREAM) - 6])]
    for raw, first, bound in bounds + changed:
        wanted = expected_encode(raw, table.tolist(), first, bound)
        assert encoded(raw, table, first, bound) == (wanted.frames, wanted.verdict, wanted.found, wanted.records)


def test_a_table_that_describes_something_else(way: str) -> None:
    table = FrameSplitter(magic=MAGIC, max_body=1 << 20).split(STREAM, 0, len(STREAM), 0).table[[0, 3, 4]]
    for row in range(3):
        for column in (FrameColumn.BODY, FrameColumn.LENGTH, FrameColumn.RECORDS):
            for number in (
                -1,
                0,
                1,
                25,
                26,
                2**31,
                2**62,
                -(2**63),
                len(STREAM),
                *(int(table[row, column]) + d for d in (-1, 1)),
            ):
                other = table.copy()
                other[row, column] = number
                wanted = expected_encode(STREAM, other.tolist(), 5, 1 << 20)
                found = encoded(STREAM, other, 5, 1 << 20)
                assert found == (wanted.frames, wanted.verdict, wanted.found, wanted.records)


def test_lists(way: str) -> None:
    disk = b"".join(map(disk_form, RECORDS))
    ends = [sum(record.size + 4 for record in RECORDS[:count]) for count in (2, 7, 11)]
    at = [
        0,
        7,
        8,
        27,
        28,
        31,
        32,
        35,
        36,
        39,
        *(end + place for end in ends for place in (7, 24, 28, 31, 32, 36, 45, -1, -4)),
        -1,
    ]
    bounds = [(disk, 4, 3, 1 << 20), (disk, 5, 4, 1 << 20), (disk, 5, 9, 15), (disk, 5, 9, 16), (disk, 5, 13, 4097)]
    for raw, first, count, bound in bounds + [(raw, 5, len(RECORDS), 1 << 20) for raw in changes(disk, at)]:
        for headers in (False, True):
            found = list_form(raw, first, count, headers=headers, max_data_length=bound)
            told = found.records, bytes(found.data), found.disk_bytes, found.verdict
            assert told == expected_list(raw, first, count, headers, bound)
    assert list_form(disk, 5, len(RECORDS)).verdict is FrameVerdict.DONE


def test_what_is_emulated_are_all_ways() -> None:
    assert {compiled._code_kind(way) for way in KERNELS[:-1]} == {compiled._code_kind(way) for way in compiled.WAYS}
    assert {wire_compiled._kind(way) for way in ("isal", "table")} == {
        wire_compiled._kind(way) for way in wire_compiled.WAYS
    }


def test_a_loop_is_translated_with_all_of_its_arguments(emulation: None) -> None:
    texts: list[Any] = [native.translate("table"), *wire_native.translate("call").values()]
    assert [arguments for _, arguments in texts] == [loop.__code__.co_argcount for loop, _ in texts]


@pytest.mark.parametrize("length", [wire_native.JOINED - 1, wire_native.JOINED, wire_native.JOINED + 5000])
def test_data_beyond_the_tables_has_a_checksum(length: int, emulation: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is passed over twice: no table says how to join two checksums over so much."""
    loops = emulated.loops("isal")
    monkeypatch.setattr(wire_code, "chooser", lambda _: lambda: loops)
    disk = bytearray(disk_form(WireRecord.make(5, RequestId(1, 2, 3, 4), 0, bytes(length))))
    assert list_form(disk, 5, 1, headers=True).verdict is FrameVerdict.DONE
    disk[-1] ^= 1
    assert list_form(disk, 5, 1, headers=True).verdict is FrameVerdict.RECORD_CHECKSUM


@pytest.mark.parametrize("step", [-1, 0, 1, 2])
def test_an_append_lies_wholly_in_the_buffer(way: str, step: int) -> None:
    """Its flag is the last byte; here it has no records, so that nothing else is looked at."""
    raw = encode(AppendRequest(7, 1, 3, (), True))
    table = FrameSplitter(magic=MAGIC, max_body=100).split(raw, 0, len(raw), 0).table
    right = FrameVerdict.DONE if step <= 0 else FrameVerdict.MALFORMED
    for column in (FrameColumn.BODY, FrameColumn.LENGTH):
        other = table.copy()
        other[0, column] += step
        malformed = column is FrameColumn.LENGTH and step < 0
        verdict = AppendEncoder(max_data_length=1).encode(raw, other, 0).verdict
        assert verdict is (FrameVerdict.MALFORMED if malformed else right)
    other = table.copy()
    other[0, FrameColumn.BODY] = -1
    assert AppendEncoder(max_data_length=1).encode(raw, other, 0).verdict is FrameVerdict.MALFORMED


def test_the_first_record_begins_at_zero_whatever_stood_there(way: str) -> None:
    state, offsets = new_state(), np.full(1, 7, np.int64)
    loops = wire_code.chooser(None)()
    assert (
        loops.encode(state, b"", np.zeros((0, COLUMNS), np.int64), offsets, np.zeros(0, np.uint8)) == FrameVerdict.DONE
    )
    assert offsets.tolist() == [0]
