"""A whole segment: columns, damage in its place, bounds, order, sources, single records."""

from __future__ import annotations

import os
import random
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.builders import make_records, segment_header
from tests.scan.oracle import Segment, assert_tiles, rows_of, segment_of, split
from waltzctl.engine.errors import DiskReadError, SpecialFileError
from waltzctl.engine.scan import kernels, scanner, walk
from waltzctl.engine.scan.byte_source import BytesSource, FileSource
from waltzctl.engine.scan.carve import carve_records
from waltzctl.engine.scan.columns import Damage, DamageCause, RecordBatch, RecordRun, RecordView
from waltzctl.engine.scan.kernel import Status
from waltzctl.engine.scan.scanner import read_record_at, scan_records, summarise_records
from waltzctl.engine.storage.storage_options import StorageOptions
from waltzctl.formats.checksums import crc32
from waltzctl.formats.request_id import RequestId
from waltzctl.formats.segment import HEADER_SIZE, Record, encode_records, pack_record_header

GOLDEN_RECORDS = bytes.fromhex(
    "0000000000000000 00000001000000020000000300000004 00000005 00000003 352441c2 616263 201cb6fd"
    "0000000000000001 00000001000000020000000300000005 00000006 00000000 00000000 75516b9f"
)
"""Two records that release 0.13.2 wrote."""

UNREADABLE = Path("/proc/self/mem")
"""A regular file by its mode, in which the system cannot read the first bytes: nothing is mapped there."""
KERNELS = pytest.mark.parametrize("compiled", [False, True], ids=["interpreted", "compiled"])


@pytest.fixture(scope="module")
def segment() -> Segment:
    return segment_of(make_records(12, first=3))


def scan(content: bytes, first: int = 3, /, **options: object) -> list[RecordBatch | Damage]:
    source = BytesSource(content)
    items = list(scan_records(source, first_transaction_id=first, **options))  # type: ignore[arg-type]
    if "stop" not in options and len(content) >= HEADER_SIZE:
        assert_tiles(items, HEADER_SIZE, len(content))
    return items


@KERNELS
def test_golden_vectors(compiled: bool) -> None:
    (batch,) = scan(segment_header(0, 0).encode() + GOLDEN_RECORDS, 0, compiled=compiled, data=True)
    assert isinstance(batch, RecordBatch)
    assert rows_of(batch) == [
        (128, 0, 0x100000002, 0x300000004, 5, 3, 0x352441C2, 0x201CB6FD, True),
        (171, 1, 0x100000002, 0x300000005, 6, 0, 0, 0x75516B9F, True),
    ]
    assert bytes(batch.data_bytes(0)) == b"abc"
    assert bytes(batch.record_bytes(1)) == GOLDEN_RECORDS[43:]
    assert batch.end == 211


@KERNELS
def test_every_column(segment: Segment, compiled: bool) -> None:
    rows, damages = split(scan(segment.data, compiled=compiled))
    assert rows == [segment.row(place) for place in range(12)]
    assert damages == []


def test_a_record_longer_than_a_node_takes_by_default_is_one_for_every_reader(tmp_path: Path) -> None:
    """A node takes what it is told to, and the release anything; the file is sparse."""
    length = StorageOptions().max_data_length + 1
    data = Crc32().zeros(length).value
    header = pack_record_header(0, RequestId(1, 2, 0, 0), 0, length, data)
    with (tmp_path / "sparse").open("wb") as file:
        file.write(segment_header(0, 0).encode() + header)
        file.seek(length, os.SEEK_CUR)
        file.write(Crc32(header).zeros(length).value.to_bytes(4, "big") + make_records(1, first=1)[0].encode())
    source = FileSource(tmp_path / "sparse")
    readers: list[Iterator[object]] = [
        scan_records(source, first_transaction_id=0), summarise_records(source, first_transaction_id=0),
        carve_records(source),
    ]  # fmt: skip
    for found in readers:
        items = list(found)
        assert not any(isinstance(one, Damage) for one in items), items
        assert sum(len(one) for one in items if isinstance(one, (RecordBatch, RecordRun))) == 2
    assert isinstance(read_record_at(source, HEADER_SIZE, expected_id=0), RecordView)
    source.close()


class Crc32:
    """Of bytes, and of many zeros behind them."""

    def __init__(self, data: bytes = b"") -> None:
        self.value = crc32(data)

    def zeros(self, count: int) -> Crc32:
        piece = bytes(1 << 20)
        for start in range(0, count, len(piece)):
            self.value = crc32(piece[: count - start], self.value)
        return self


@KERNELS
def test_empty_and_nearly_empty(compiled: bool) -> None:
    header = segment_header(0, 0).encode()
    assert scan(header, compiled=compiled) == []
    assert scan(b"", compiled=compiled) == []
    assert scan(header[:50], compiled=compiled) == []
    for size in range(1, 40):
        (damage,) = scan(header + bytes(size), compiled=compiled)
        assert isinstance(damage, Damage)
        assert (damage.cause, damage.offset, damage.length) == (DamageCause.TORN_TAIL, HEADER_SIZE, size)
        assert (damage.transaction_id, damage.next_transaction_id) == (3, None)


@KERNELS
def test_data_of_each_batch_covers_it(compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches that end with the buffer, with the rows, and with a record larger than the buffer."""
    monkeypatch.setattr(scanner, "BATCH_ROWS", 7)
    sizes = [0, 5000, 70, 30000, 1, 2, 3, 4, 5, 6, 7, 8, 9, 100_000, 20, 12000, 15000]
    source = random.Random(5)
    records = [Record.make(n, RequestId(1, 2, 3, n), n, source.randbytes(size)) for n, size in enumerate(sizes)]
    made = segment_of(records)
    limit_block(monkeypatch, 16 << 10)
    for data in (True, False):
        items = scan(made.data, 0, data=data, compiled=compiled)
        rows, damages = split(items)
        assert rows == [made.row(place) for place in range(len(sizes))]
        assert damages == []
        for item in items:
            assert isinstance(item, RecordBatch)
            if data:
                assert [bytes(item.record_bytes(i)) for i in range(len(item))] == [
                    records[number].encode() for number in item.transaction_id
                ]
            else:
                with pytest.raises(ValueError, match="not asked"):
                    item.record_bytes(0)


def test_no_data_is_kept_where_nobody_asked_for_any(segment: Segment) -> None:
    source = BytesSource(segment.data)
    for items in (scan_records(source, first_transaction_id=segment.first), carve_records(source)):
        (batch,) = items
        assert isinstance(batch, RecordBatch)
        assert batch.data is None


def limit_block(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    """Let every walk read blocks of `size` bytes."""
    original = walk.RecordWalk.__init__

    def limited(self: walk.RecordWalk, *arguments: object, **options: object) -> None:
        original(self, *arguments, **options | {"block": size})  # type: ignore[arg-type]

    monkeypatch.setattr(walk.RecordWalk, "__init__", limited)


@KERNELS
@pytest.mark.parametrize("block", [8 << 10, 20 << 10, 64 << 10])
def test_records_around_the_size_of_the_buffer(compiled: bool, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    limit_block(monkeypatch, block)
    around = [block - 4096 - 40, block - 40, block, block + 1, 2 * block, 3 * block - 7]
    sizes = [n + d for n in around for d in (-1, 0, 1)] + [0, 1, 100]
    random.Random(block).shuffle(sizes)
    records = [Record.make(n, RequestId(1, 2, 3, n), n, bytes([n]) * size) for n, size in enumerate(sizes)]
    made = segment_of(records)
    rows, damages = split(scan(made.data, 0, compiled=compiled))
    assert rows == [made.row(place) for place in range(len(sizes))]
    assert damages == []
    for place in range(len(sizes)):
        start, end = made.span(place)
        bad = bytearray(made.data)
        bad[(start + end) // 2] ^= 1
        rows, damages = split(scan(bytes(bad), 0, compiled=compiled))
        assert [row[1] for row in rows] == [n for n in range(len(sizes)) if n != place]
        assert [(d.offset, d.length) for d in damages] == [(start, end - start)]


@KERNELS
def test_wrong_data_checksum_is_no_damage(compiled: bool) -> None:
    good = make_records(3, size=2000)
    big = Record.make(3, RequestId(1, 2, 3, 4), 0, bytes(900_000))
    records = [*good, big, Record.make(4, RequestId(1, 2, 3, 4), 0, b"")]
    raw = []
    for record in records:
        head = record.encode()[:32] + ((record.data_checksum ^ (record.transaction_id % 2)) & 0xFFFFFFFF).to_bytes(4)
        body = head + record.data
        raw.append(body + zlib.crc32(body).to_bytes(4))
    rows, damages = split(scan(segment_header(0, 0).encode() + b"".join(raw), 0, compiled=compiled))
    assert damages == []
    assert [row[-1] for row in rows] == [True, False, True, False, True]


@KERNELS
def test_runs_say_the_same_as_batches(segment: Segment, compiled: bool) -> None:
    for place in (None, *range(HEADER_SIZE, len(segment.data), 17)):
        data = bytearray(segment.data)
        if place is not None:
            data[place] ^= 0x40
        source = BytesSource(bytes(data))
        narrow: list[object] = []
        for item in summarise_records(source, first_transaction_id=3, compiled=compiled):
            if isinstance(item, RecordRun):
                ids = range(item.first_transaction_id, item.first_transaction_id + len(item))
                narrow += zip(item.offset.tolist(), ids, item.data_ok.tolist(), strict=True)
                assert item.start == item.offset[0]
                assert item.data_damaged == item.data_ok.tolist().count(False)
            else:
                narrow.append(item)
        wide: list[object] = []
        for item in scan(bytes(data), compiled=compiled):
            wide += [item] if isinstance(item, Damage) else [(row[0], row[1], row[-1]) for row in rows_of(item)]
        assert narrow == wide


@KERNELS
def test_start_and_stop(segment: Segment, compiled: bool) -> None:
    for first in range(12):
        for last in range(first, 12):
            options = {"start": segment.offsets[first], "stop": segment.span(last)[1], "compiled": compiled}
            rows, damages = split(scan(segment.data, 3 + first, **options))
            assert [row[1] for row in rows] == list(range(3 + first, 4 + last))
            assert damages == []
    rows, damages = split(scan(segment.data, stop=segment.span(4)[1] - 1, compiled=compiled))
    assert len(rows) == 4
    assert damages[0].cause is DamageCause.TORN_TAIL
    assert split(scan(segment.data, stop=10**9, compiled=compiled))[1] == []


def test_a_growing_file_is_scanned_up_to_where_it_ended(tmp_path: Path, segment: Segment) -> None:
    path = tmp_path / "x"
    path.write_bytes(segment.data[: segment.offsets[6]])
    with FileSource(path) as source:
        items = scan_records(source, first_transaction_id=3)
        with open(path, "ab") as file:
            file.write(segment.data[segment.offsets[6] : segment.offsets[8] + 5])
        rows, damages = split(items)
    assert len(rows) == 6
    assert damages == []


def test_a_file_that_shrinks_is_a_torn_tail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limit_block(monkeypatch, 8 << 10)
    made = segment_of(make_records(200, size=300))
    path = tmp_path / "x"
    path.write_bytes(made.data)
    with FileSource(path) as source:
        items = scan_records(source, first_transaction_id=0, data=True)
        first = next(items)
        assert isinstance(first, RecordBatch)
        with open(path, "r+b") as file:
            file.truncate(made.offsets[100] + 50)
        rows, damages = split(items)
    assert rows[-1][1] == 99
    assert [(d.cause, d.offset, d.length) for d in damages] == [(DamageCause.TORN_TAIL, made.offsets[100], 50)]


@KERNELS
def test_negative_and_huge_lengths(compiled: bool) -> None:
    """The release takes a length before it looks at it and dies of it (W5)."""
    made = segment_of(make_records(6, size=50))
    for length in (-1, -(2**31), 2**31 - 1, 51, 49, 10**6):
        data = bytearray(made.data)
        data[made.offsets[2] + 28 : made.offsets[2] + 32] = length.to_bytes(4, signed=True)
        rows, damages = split(scan(bytes(data), 0, compiled=compiled))
        assert [row[1] for row in rows] == [0, 1, 3, 4, 5]
        (damage,) = damages
        assert (damage.offset, damage.length) == (made.offsets[2], 90)
        assert (damage.found_transaction_id, damage.found_length, damage.proof) == (2, length, "checksum")
        inside = length >= 0 and made.offsets[2] + 40 + length <= len(data)
        assert damage.cause == (DamageCause.RECORD_CHECKSUM if inside else DamageCause.RECORD_LENGTH)
        assert (damage.stored_checksum is not None) == inside


@KERNELS
def test_bound_for_a_record(compiled: bool) -> None:
    records = [Record.make(n, RequestId(1, 2, 3, n), 0, bytes(100 if n != 1 else 101)) for n in range(4)]
    made = segment_of(records)
    assert len(split(scan(made.data, 0, max_record=101, compiled=compiled))[0]) == 4
    rows, damages = split(scan(made.data, 0, max_record=100, compiled=compiled))
    assert [row[1] for row in rows] == [0, 2, 3]
    assert [(d.cause, d.found_length) for d in damages] == [(DamageCause.RECORD_LENGTH, 101)]


@KERNELS
def test_missing_ids_between_intact_neighbours(segment: Segment, compiled: bool) -> None:
    data = segment.data[: segment.offsets[4]] + segment.data[segment.offsets[7] :]
    rows, damages = split(scan(data, compiled=compiled))
    assert [row[1] for row in rows] == [3, 4, 5, 6, *range(10, 15)]
    (damage,) = damages
    assert (damage.cause, damage.offset, damage.length) == (DamageCause.RECORD_ORDER, segment.offsets[4], 0)
    assert (damage.transaction_id, damage.next_transaction_id, damage.found_transaction_id) == (7, 10, 10)


@KERNELS
def test_repeated_records_are_passed_over(segment: Segment, compiled: bool) -> None:
    a, b, c = segment.offsets[2], segment.offsets[5], segment.offsets[8]
    data = (
        segment.data[:b]
        + segment.data[a:b]
        + segment.data[b:c]
        + segment.data[a : segment.offsets[3]]
        + segment.data[c:]
    )
    rows, damages = split(scan(data, compiled=compiled))
    assert [row[1] for row in rows] == list(range(3, 15))
    first, second = damages
    assert (first.cause, first.offset, first.length) == (DamageCause.RECORD_ORDER, b, b - a)
    assert (first.transaction_id, first.next_transaction_id, first.found_transaction_id) == (8, 8, 5)
    assert (second.transaction_id, second.next_transaction_id, second.found_transaction_id) == (11, 11, 5)


@KERNELS
def test_stranger_between_neighbours(compiled: bool) -> None:
    """A right record with a far id, where those around it go on as if it were not there, costs nobody else."""
    stranger = Record.make(10**12, RequestId(9, 9, 9, 9), 0, b"stranger")
    for kept in (3, 4):  # in the place of record 3, or in front of it
        records = make_records(8, size=30)
        made = segment_of(records)
        raw = [*records[:3], stranger, *records[4 if kept == 4 else 3 :]]
        rows, damages = split(scan(made.data[:128] + encode_records(raw)[0], 0, compiled=compiled))
        assert [row[1] for row in rows] == [0, 1, 2, *range(kept, 8)]
        (damage,) = damages
        assert (damage.cause, damage.length, damage.next_transaction_id) == (
            DamageCause.RECORD_ORDER,
            stranger.size,
            kept,
        )


@KERNELS
def test_repeated_records_at_the_end(segment: Segment, compiled: bool) -> None:
    tail = segment.data[segment.offsets[2] : segment.offsets[5]]
    rows, damages = split(scan(segment.data + tail, compiled=compiled))
    assert len(rows) == 12
    assert [(d.cause, d.length, d.next_transaction_id) for d in damages] == [
        (DamageCause.RECORD_ORDER, len(tail), None)
    ]


@KERNELS
@pytest.mark.parametrize("first", [2**63 - 5, 2**62, -(2**63), -3])
def test_ids_at_the_edges(first: int, compiled: bool) -> None:
    records = [Record.make(first + n, RequestId(1, 2, 3, n), 0, bytes(n)) for n in range(5)]
    made = segment_of([Record.make(0, RequestId(0, 0, 0, 0), 0, b""), *records])
    data = made.data[:128] + made.data[168:]
    assert len(split(scan(data, first, compiled=compiled))[0]) == 5
    for place in range(128, len(data), 3):
        bad = bytearray(data)
        bad[place] ^= 2
        assert len(split(scan(bytes(bad), first, compiled=compiled))[0]) == 4


@pytest.mark.parametrize("size", [40, 700_000], ids=["walked", "streamed"])
@pytest.mark.parametrize("choice", [False, True, None], ids=["interpreted", "compiled", "by size"])
def test_behind_the_last_id_there_is_none(choice: bool | None, size: int) -> None:
    """Ids end where words of 64 bits do: nothing goes on with the smallest, and the next id is no negative one."""
    last = 2**63 - 1
    records = [
        Record.make(last - 1, RequestId(1, 2, 3, 0), 0, b""),
        Record.make(last, RequestId(1, 2, 3, 1), 0, bytes(size)),
    ]
    body, _ = encode_records(records)
    content = segment_header(0, last - 1).encode() + body
    source = BytesSource(content)
    (run,) = summarise_records(source, first_transaction_id=last - 1, compiled=choice)
    assert isinstance(run, RecordRun)
    assert (run.first_transaction_id, len(run), run.end) == (last - 1, 2, len(content))
    (batch,) = scan(content, last - 1, compiled=choice)
    assert isinstance(batch, RecordBatch)
    assert batch.transaction_id.tolist() == [last - 1, last]
    behind = content + Record.make(-(2**63), RequestId(1, 2, 3, 2), 0, b"x").encode()
    rows, (damage,) = split(scan(behind, last - 1, compiled=choice))
    assert [row[1] for row in rows] == [last - 1, last]
    assert (damage.offset, damage.transaction_id) == (len(content), 2**63)


@pytest.mark.turns(8)
@settings(max_examples=150)
@given(st.lists(st.tuples(st.integers(0, 9), st.sampled_from(["", "data", "record"])), min_size=1, max_size=9))
def test_records_in_any_order_are_judged_alike_by_both_loops(written: list[tuple[int, str]]) -> None:
    """Ids, and what is wrong with the record: a checksum of the data alone, or of the record."""
    raw = []
    for number, wrong in written:
        record = bytearray(Record.make(number, RequestId(1, 2, 3, number), 0, b"%020d" % number).encode())
        record[32] ^= wrong == "data"
        if wrong == "data":
            record[-4:] = zlib.crc32(record[:-4]).to_bytes(4)
        record[40] ^= wrong == "record"
        raw.append(bytes(record))
    content = segment_header(0, 0).encode() + b"".join(raw)
    one, other = (split(scan(content, 0, compiled=compiled)) for compiled in (False, True))
    assert one == other
    for compiled in (False, True):
        runs = summarise_records(BytesSource(content), first_transaction_id=0, compiled=compiled)
        places = {
            int(offset): bool(right)
            for run in runs
            if isinstance(run, RecordRun)
            for offset, right in zip(run.offset, run.data_ok, strict=True)
        }
        assert places == {row[0]: row[-1] for row in one[0]}


@KERNELS
def test_a_run_has_about_as_many_bytes_as_it_may(compiled: bool) -> None:
    """Records shorter and longer than a read, and damage between them: the runs are others, what they tell is the same."""
    records = (
        make_records(150, size=20_000)
        + make_records(3, first=150, size=700_000)
        + make_records(500, first=153, size=10)
    )
    content = bytearray(segment_header(0, 0).encode() + encode_records(records)[0])
    content[HEADER_SIZE + 20_040 * 70 + 1000] ^= 1

    def told(most: int | None) -> tuple[list[int], list[tuple[int, bool]], list[Damage]]:
        sizes, rows, damages = [], [], []
        for item in summarise_records(
            BytesSource(bytes(content)), first_transaction_id=0, compiled=compiled, most=most
        ):
            if isinstance(item, Damage):
                damages.append(item)
                continue
            sizes.append(item.end - item.start)
            rows += [(int(one), bool(right)) for one, right in zip(item.offset, item.data_ok, strict=True)]
        return sizes, rows, damages

    whole, bounded = told(None), told(600_000)
    assert bounded[1:] == whole[1:]
    assert (len(whole[1]), len(whole[2])) == (652, 1)
    assert max(whole[0]) > 2_000_000
    assert max(bounded[0]) <= 600_000 + walk.BLOCK + 700_040
    assert len(bounded[0]) < 12


class _Shrinking(BytesSource):
    """A file that ends at `end` from the second read on."""

    def __init__(self, data: bytes, end: int) -> None:
        super().__init__(data)
        self._end, self._reads = end, 0

    def read_into(self, offset: int, buffer: memoryview) -> int:
        self._reads += 1
        room = len(buffer) if self._reads == 1 else max(0, self._end - offset)
        return super().read_into(offset, buffer[:room])


@KERNELS
@pytest.mark.parametrize("end", [20_000, 99_000, 100_075, 100_079])
def test_a_file_that_ends_inside_a_record_that_is_read_in_pieces(compiled: bool, end: int) -> None:
    """The walk ends in front of the record, and knows where the file ends now."""
    records = [Record.make(n, RequestId(1, 2, 3, n), n, bytes(size)) for n, size in enumerate((0, 100_000, 5))]
    data = b"".join(record.encode() for record in records)
    source = _Shrinking(data, end)
    kernel = kernels.choose(len(data), compiled)
    found = walk.RecordWalk(
        source, kernel, start=0, stop=len(data), expected=0, max_record=1 << 20, wide=True, rows=9, block=16 << 10
    )
    assert found.advance() is Status.LENGTH
    assert (found.offset, found.pending, found.stop) == (40, 1, end)


@pytest.mark.turns(10)
@KERNELS
def test_every_bit_of_a_small_segment(segment: Segment, compiled: bool) -> None:
    """A flipped bit costs exactly the record that it is in, and that one is named."""
    owners = [place for place in range(12) for _ in range(segment.records[place].size)]
    step = 5 if not compiled else 11  # every place in a byte all the same
    for bit in range(HEADER_SIZE * 8, len(segment.data) * 8, step):
        data = bytearray(segment.data)
        data[bit // 8] ^= 0x80 >> bit % 8
        owner = owners[bit // 8 - HEADER_SIZE]
        rows, damages = split(scan(bytes(data), compiled=compiled))
        assert rows == [segment.row(place) for place in range(12) if place != owner]
        (damage,) = damages
        start, end = segment.span(owner)
        assert (damage.offset, damage.length, damage.transaction_id) == (start, end - start, 3 + owner)
        assert damage.next_transaction_id == (None if owner == 11 else 4 + owner)
        assert damage.proof == "end" if owner == 11 else damage.proof in ("length", "checksum")


@pytest.mark.turns(10)
@KERNELS
def test_cut_at_every_byte(segment: Segment, compiled: bool) -> None:
    for size in range(HEADER_SIZE, len(segment.data)):
        rows, damages = split(scan(segment.data[:size], compiled=compiled))
        whole = [place for place in range(12) if segment.span(place)[1] <= size]
        assert rows == [segment.row(place) for place in whole]
        end = segment.span(whole[-1])[1] if whole else HEADER_SIZE
        assert [(d.cause, d.offset, d.length) for d in damages] == (
            [(DamageCause.TORN_TAIL, end, size - end)] if end < size else []
        )


@pytest.mark.skipif(not UNREADABLE.exists(), reason="there is no /proc")
def test_read_error_names_the_place(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"")
    source = FileSource(path)
    source.close()
    source.close()
    with pytest.raises(ValueError, match="closed"):
        source.size()
    with pytest.raises(SpecialFileError) as special:
        FileSource(tmp_path)
    assert str(special.value.path) == str(tmp_path)
    with FileSource(UNREADABLE) as memory, pytest.raises(DiskReadError) as raised:
        memory.read_into(5, memoryview(bytearray(3)))
    assert (raised.value.offset, str(raised.value.path)) == (5, str(UNREADABLE))
    with pytest.raises(FileNotFoundError):
        FileSource(tmp_path / "missing")


def test_single_records(segment: Segment) -> None:
    source = BytesSource(segment.data)
    for place, record in enumerate(segment.records):
        view = read_record_at(source, segment.offsets[place], expected_id=record.transaction_id)
        assert isinstance(view, RecordView)
        assert bytes(view.record) == record.encode()
        assert bytes(view.data) == record.data
        row = segment.row(place)
        assert (view.offset, view.transaction_id, view.request_id_high, view.request_id_low, view.header) == row[:5]
        assert (view.data_checksum, view.record_checksum, view.data_ok) == row[6:]
        assert view.end == segment.span(place)[1]
        assert isinstance(read_record_at(source, segment.offsets[place], expected_id=None), RecordView)


def test_single_records_that_are_none() -> None:
    big = Record.make(7, RequestId(1, 2, 3, 4), 5, bytes(range(256)) * 100)
    data = bytes(10) + big.encode()

    def cause(data: bytes, **options: object) -> DamageCause:
        wanted: dict[str, object] = {"expected_id": 7} | options
        found = read_record_at(BytesSource(data), 10, **wanted)  # type: ignore[arg-type]
        assert isinstance(found, Damage)
        return found.cause

    assert isinstance(read_record_at(BytesSource(data), 10, expected_id=7), RecordView)
    assert cause(data, expected_id=8) is DamageCause.RECORD_ORDER
    assert cause(data, limit=len(data) - 1) is DamageCause.RECORD_LENGTH
    assert cause(data, limit=40) is DamageCause.TORN_TAIL
    assert cause(data, limit=5) is DamageCause.TORN_TAIL
    assert cause(data, max_record=25599) is DamageCause.RECORD_LENGTH
    assert cause(data[:-1]) is DamageCause.RECORD_LENGTH
    for place in (10, 20, 30, 38, 44, 9000, len(data) - 1):
        bad = bytearray(data)
        bad[place] ^= 1
        assert cause(bytes(bad)) in (DamageCause.RECORD_CHECKSUM, DamageCause.RECORD_LENGTH)
    bad = bytearray(data)
    bad[38:42] = b"\xff\xff\xff\xff"
    assert cause(bytes(bad)) is DamageCause.RECORD_LENGTH
