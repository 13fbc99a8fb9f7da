"""The walk over a file, asked directly: where a buffer ends inside a record, what is taken when, and the last ids there are."""

from __future__ import annotations

from zlib import crc32

import numpy as np
import pytest

from tests.scan.walk_support import BEFORE as PAGE
from waltzctl.engine.scan import walk as walks
from waltzctl.engine.scan.byte_source import BytesSource
from waltzctl.engine.scan.kernel import INTERPRETED, Lane, Status, made_up_record
from waltzctl.engine.scan.walk import RecordWalk, following

BLOCK = 2 * PAGE


def walk_over(data: bytes, *, rows: int = 100, wide: bool = True, keep_data: bool = False) -> RecordWalk:
    return RecordWalk(
        BytesSource(data),
        INTERPRETED,
        start=0,
        stop=len(data),
        expected=0,
        max_record=1 << 20,
        wide=wide,
        rows=rows,
        keep_data=keep_data,
        block=BLOCK,
    )


@pytest.mark.parametrize(
    ("number", "behind"),
    [
        (0, 1),
        (-1, 0),
        (-(2**63), 1 - 2**63),
        (2**63 - 2, 2**63 - 1),
        (2**63 - 1, -(2**63)),
    ],
)
def test_behind_the_largest_id_stands_the_smallest(number: int, behind: int) -> None:
    assert following(number) == behind


class _Sized:
    """The interpreted kernel, which keeps how large its buffers are to be."""

    name = "sized"

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def lane(self, buffer_size: int, rows: int, *, wide: bool, max_length: int) -> Lane:
        self.sizes.append(buffer_size)
        return INTERPRETED.lane(buffer_size, rows, wide=wide, max_length=max_length)

    def give_back(self, lane: Lane) -> None:
        pass


@pytest.mark.parametrize(
    ("start", "length", "pages"),
    [
        (0, 0, 2),
        (0, 1, 2),
        (0, PAGE - 1, 2),
        (0, PAGE, 3),
        (0, 2 * PAGE - 1, 3),
        (10**9, PAGE - 1, 2),
        (10**9, 9 * PAGE, 11),
        (0, 30 * PAGE, 32),
        (0, 62 * PAGE, 64),
        (0, 10**12, 64),
    ],
)
def test_a_walk_takes_memory_for_what_there_is_to_walk_up_to_a_block(start: int, length: int, pages: int) -> None:
    """Twice, as what is left of a record stands in front of the next block, up to 32 pages of it, behind one that may be read."""
    kernel = _Sized()
    source, most = BytesSource(b""), 64 * PAGE
    options = {"start": start, "stop": start + length, "expected": 0, "max_record": 9, "wide": True, "rows": 3}
    RecordWalk(source, kernel, **options, block=most)
    assert kernel.sizes == [PAGE * (1 + min(32, pages) + pages)]


@pytest.mark.parametrize("keep_data", [False, True])
@pytest.mark.parametrize(
    "length", [100, BLOCK - PAGE - 41, BLOCK - PAGE - 40, BLOCK - PAGE - 39, BLOCK - PAGE - 38, 3 * BLOCK]
)
def test_a_block_may_end_anywhere_in_a_header(length: int, *, keep_data: bool) -> None:
    """What is held of a record when the next block is read: none of it, a part of its header, all of it, and more."""
    for held in (0, 1, 8, 27, 28, 31, 32, 33, 34, 35, 36, 37, 39, 40, 41):
        records = [made_up_record(0, BLOCK - held - 40), made_up_record(1, length), made_up_record(2, 5)]
        walk = walk_over(b"".join(records), keep_data=keep_data)
        found: list[int] = []
        while (status := walk.advance()) is Status.FULL:
            found += walk.take_batch().transaction_id.tolist()
        if walk.pending:
            found += walk.take_batch().transaction_id.tolist()
        assert (status, found, walk.offset) == (Status.END, [0, 1, 2], sum(map(len, records))), held


@pytest.mark.parametrize("keep_data", [False, True])
@pytest.mark.parametrize("length", [3 * BLOCK, 100])
def test_a_record_is_refused_for_its_checksum_before_its_id_however_large_it_is(
    length: int, *, keep_data: bool
) -> None:
    for number, flipped, status in ((7, 0, Status.ORDER), (0, 1, Status.CHECKSUM), (7, 1, Status.CHECKSUM)):
        data = bytearray(made_up_record(number, length))
        data[-9] ^= flipped
        walk = walk_over(bytes(data), keep_data=keep_data)
        assert walk.advance() is status
        assert (walk.pending, walk.offset, walk.expected) == (0, 0, 0)


@pytest.mark.parametrize("length", [3 * BLOCK, 100])
@pytest.mark.parametrize("blocks", [0, 1, 3])
def test_no_record_reaches_beyond_the_stop_however_many_blocks_were_read(length: int, blocks: int) -> None:
    records = [
        *(made_up_record(number, BLOCK // 4 - 40) for number in range(4 * blocks)),
        made_up_record(4 * blocks, length),
    ]
    data = b"".join(records)
    for less, status in ((0, Status.END), (1, Status.LENGTH), (length, Status.LENGTH), (length + 1, Status.SHORT)):
        walk = RecordWalk(
            BytesSource(data),
            INTERPRETED,
            start=0,
            stop=len(data) - less,
            expected=0,
            max_record=1 << 20,
            wide=True,
            rows=100,
            block=BLOCK,
        )
        assert walk.advance() is status
        assert (walk.pending, walk.offset) == (4 * blocks + (not less), len(data) - (length + 40 if less else 0))


@pytest.mark.parametrize("claimed", [3 * BLOCK, 9 * BLOCK])
def test_behind_a_record_whose_length_lies_the_walk_goes_on_inside_what_it_claims(claimed: int) -> None:
    """It was passed over piece by piece, over what was read before; or it reaches beyond the end."""
    records = [made_up_record(number, 200) for number in range(6 * BLOCK // 240)]
    data = bytearray(b"".join(records))
    data[240 + 28 : 240 + 32] = claimed.to_bytes(4)
    walk = walk_over(bytes(data), rows=1000)
    assert walk.advance() is (Status.CHECKSUM if claimed < len(data) else Status.LENGTH)
    assert (walk.take_batch().transaction_id.tolist(), walk.offset) == ([0], 240)
    walk.seek(480, 2)
    assert walk.advance() is Status.END
    assert walk.take_batch().transaction_id.tolist() == [*range(2, len(records))]


def test_a_batch_begins_behind_the_run_that_was_taken_before_it() -> None:
    records = [made_up_record(number, 10 * number) for number in range(6)]
    walk = walk_over(b"".join(records), rows=2, keep_data=True)
    assert walk.advance() is Status.FULL
    run = walk.take_run()
    assert (run.first_transaction_id, run.start, run.end, len(run)) == (0, 0, 90, 2)
    assert walk.advance() is Status.FULL
    batch = walk.take_batch()
    assert [bytes(batch.record_bytes(place)) for place in range(len(batch))] == records[2:4]
    assert batch.data_base == 90


@pytest.mark.parametrize("keep_data", [False, True])
@pytest.mark.parametrize("held", [PAGE - 1, PAGE, PAGE + 1, PAGE + 36, 2 * PAGE - 1, 2 * PAGE, 2 * PAGE + 1, 4 * PAGE])
def test_of_what_is_held_of_a_record_a_page_is_moved_and_more_is_read_again(
    held: int, monkeypatch: pytest.MonkeyPatch, *, keep_data: bool
) -> None:
    """Wherever in a page the record begins, and whether it ends behind the next block or in it."""
    monkeypatch.setattr(walks, "CARRY", PAGE)
    block = 8 * PAGE
    for length in (held, 5 * PAGE + 7, 7 * PAGE - 40, 7 * PAGE - 39, 8 * PAGE - 40):
        records = [made_up_record(0, block - held - 40), made_up_record(1, length), made_up_record(2, 5)]
        data = b"".join(records)
        source = Counted(data)
        walk = RecordWalk(
            source,
            INTERPRETED,
            start=0,
            stop=len(data),
            expected=0,
            max_record=1 << 20,
            wide=True,
            rows=9,
            keep_data=keep_data,
            block=block,
        )
        found = []
        while (status := walk.advance()) is Status.FULL or walk.pending:
            batch = walk.take_batch()
            found += batch.transaction_id.tolist()
            if keep_data:
                assert [bytes(batch.record_bytes(n)) for n in range(len(batch))] == [
                    records[number] for number in batch.transaction_id.tolist()
                ]
            if status is not Status.FULL:
                break
        assert (status, found, walk.offset) == (Status.END, [0, 1, 2], len(data))
        if length + 40 <= 7 * PAGE and held < length + 40:
            assert source.reads[1] == (block if held <= PAGE else block - held)


class Counted(BytesSource):
    """Notes where it is read from."""

    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        self.reads: list[int] = []

    def read_into(self, offset: int, buffer: memoryview) -> int:
        self.reads.append(offset)
        assert len(self.reads) < 100, "it does not go on"
        return super().read_into(offset, buffer)


@pytest.mark.parametrize("keep_data", [False, True])
@pytest.mark.parametrize("rest", [0, 1, 2, 3, 4, 5, BLOCK - 1])
def test_a_record_that_is_read_in_pieces_may_end_anywhere_in_one(rest: int, *, keep_data: bool) -> None:
    """Its checksum is read alone, behind the last of its data."""
    record = made_up_record(0, 3 * BLOCK + rest)
    source = Counted(record)
    walk = RecordWalk(
        source,
        INTERPRETED,
        start=0,
        stop=len(record),
        expected=0,
        max_record=1 << 20,
        wide=True,
        rows=9,
        keep_data=keep_data,
        block=BLOCK,
    )
    assert walk.advance() is (Status.FULL if keep_data else Status.END)
    batch = walk.take_batch()
    assert (batch.transaction_id.tolist(), batch.data_ok.tolist(), walk.offset) == ([0], [True], len(record))
    assert source.reads == [0, *(36 + BLOCK * n for n in range(3 + (rest > 0))), len(record) - 4]
    if keep_data:
        assert bytes(batch.record_bytes(0)) == record


@pytest.mark.parametrize("keep_data", [False, True])
@pytest.mark.parametrize(
    ("number", "damaged", "status"),
    [
        (1, False, Status.END),
        (0, False, Status.ORDER),
        (2, False, Status.ORDER),
        (1, True, Status.CHECKSUM),
        (2, True, Status.CHECKSUM),
    ],
)
def test_a_record_that_is_read_in_pieces_has_to_be_whole_and_the_next_one(
    number: int, status: Status, *, damaged: bool, keep_data: bool
) -> None:
    data = bytearray(made_up_record(0, 100) + made_up_record(number, 3 * BLOCK))
    data[-1] ^= damaged
    walk = walk_over(bytes(data), keep_data=keep_data)
    found: list[int] = []
    while (seen := walk.advance()) is Status.FULL or walk.pending:
        found += walk.take_batch().transaction_id.tolist()
        if seen is not Status.FULL:
            break
    right = status is Status.END
    assert (seen, found, walk.offset) == (status, [0, 1][: 1 + right], len(data) if right else 140)


class Placed(BytesSource):
    """Bytes that begin at a place far behind the beginning; notes by how many bytes each read misses a page."""

    def __init__(self, data: bytes, start: int) -> None:
        super().__init__(data)
        self._start = start
        self.missed: set[int] = set()

    def read_into(self, offset: int, buffer: memoryview) -> int:
        self.missed.add((np.frombuffer(buffer, np.uint8).ctypes.data - offset) % PAGE)
        return super().read_into(offset - self._start, buffer)


@pytest.mark.parametrize("start", [0, 1, PAGE - 1, PAGE, 10**9 + 7, 2**40 + 4095])
def test_whatever_is_read_lies_in_memory_as_it_lies_in_pages_of_the_file(start: int) -> None:
    """Wherever the walk begins, goes on or begins anew; and wherever that is, it is walked."""
    records = [made_up_record(number, 50_000 + number) for number in range(30)]
    data, places = b"".join(records), [start]
    for record in records:
        places.append(places[-1] + len(record))
    source, stop = Placed(data, start), start + len(data)
    options = {"max_record": 1 << 20, "wide": True, "rows": 100, "block": 64 * PAGE}
    walk = RecordWalk(source, INTERPRETED, start=start, stop=stop, expected=0, **options)
    for turn in (0, 29, 3, 11):
        if turn:
            walk.seek(places[turn], turn)
        assert walk.advance() is Status.END
        assert walk.take_batch().offset.tolist() == places[turn:-1]
    walk.restart(places[5], 5, places[25])
    assert walk.advance() is Status.END
    assert walk.take_batch().offset.tolist() == places[5:25]
    assert source.missed == {0}


def offsets_of(walk: RecordWalk) -> list[int]:
    """Walks to the end; what was found."""
    assert walk.advance() is Status.END
    return walk.take_batch().offset.tolist() if walk.pending else []


def counted(data: bytes) -> tuple[Counted, RecordWalk]:
    source = Counted(data)
    options = {"max_record": 9 * 30, "wide": True, "rows": 100, "block": BLOCK}
    return source, RecordWalk(source, INTERPRETED, start=0, stop=len(data), expected=0, **options)


def test_what_is_in_the_buffer_is_not_read_again() -> None:
    records = [made_up_record(number, 30 * number) for number in range(9)]
    places = [sum(map(len, records[:number])) for number in range(10)]
    source, walk = counted(b"".join(records))
    assert offsets_of(walk) == places[:-1]
    for turn in (5, 0, 8, 9, 1):
        walk.seek(places[turn], turn)
        assert offsets_of(walk) == places[turn:-1]
    assert source.reads == [0]


@pytest.mark.parametrize("place", [3 * PAGE - 1, 3 * PAGE - 2, 2 * PAGE, 5 * PAGE, 5 * PAGE + 1, 5 * PAGE + 2])
def test_what_is_not_in_the_buffer_is_read_wherever_it_begins(place: int) -> None:
    """Two pages from the third one on were read, and no byte in front of or behind them."""
    record = made_up_record(0, 50)
    data = bytearray(b"\xee" * (8 * PAGE))
    data[place : place + len(record)] = record
    source, walk = counted(bytes(data))
    for _ in range(2):
        walk.seek(3 * PAGE, 0)
        assert walk.advance() is Status.LENGTH
    assert source.reads == [3 * PAGE]
    walk.seek(place, 0)
    assert walk.advance() is Status.LENGTH
    assert (walk.take_batch().offset.tolist(), walk.offset) == ([place], place + 90)
    assert source.reads == [3 * PAGE, place]


def test_a_walk_that_begins_anew_has_no_rows_of_the_one_before() -> None:
    records = [made_up_record(number, 3) for number in range(6)]
    _, walk = counted(b"".join(records))
    assert walk.advance() is Status.END
    assert walk.pending == 6
    walk.restart(43, 1, 4 * 43)
    assert walk.pending == 0
    assert offsets_of(walk) == [43, 86, 129]


@pytest.mark.parametrize("less", [0, 1, 2, 39, 40, 50])
@pytest.mark.parametrize("length", [0, 7, 3000])
def test_a_file_that_is_shorter_than_it_was_ends_where_it_ends(less: int, length: int) -> None:
    """By any number of bytes, behind a record or in it."""
    records = [made_up_record(number, length) for number in range(5)]
    data = b"".join(records)
    there = len(data) - less
    source = BytesSource(data[:there])
    for stop in (len(data), len(data) + 1):
        options = {"max_record": 1 << 20, "wide": True, "rows": 100, "block": BLOCK}
        walk = RecordWalk(source, INTERPRETED, start=0, stop=stop, expected=0, **options)
        status = walk.advance()
        whole = there // (40 + length)
        rest = there % (40 + length)
        assert status is (Status.END if not rest else Status.SHORT if rest < 40 else Status.LENGTH)
        assert (walk.pending, walk.offset, walk.stop) == (whole, whole * (40 + length), there)


def test_a_run_tells_how_many_of_its_records_hold_other_data_than_was_sent() -> None:
    records = [made_up_record(number, 9) for number in range(7)]
    for place in (1, 4, 5):
        other = records[place][:35] + bytes([records[place][35] ^ 1]) + records[place][36:-4]
        records[place] = other + crc32(other).to_bytes(4)
    walk = walk_over(b"".join(records), wide=False)
    assert walk.advance() is Status.END
    run = walk.take_run()
    assert (run.first_transaction_id, run.start, run.end, run.data_damaged) == (0, 0, 7 * 49, 3)
    assert run.data_ok.tolist() == [True, False, True, True, False, False, True]
    assert run.offset.tolist() == [49 * place for place in range(7)]
