"""Records in bytes of any origin."""

from __future__ import annotations

import random
import struct

import pytest

from tests.builders import make_records
from tests.scan.oracle import rows_of, segment_of
from waltzctl.engine.scan import carve, probe
from waltzctl.engine.scan.byte_source import BytesSource
from waltzctl.engine.scan.carve import carve_records, holds_records
from waltzctl.engine.scan.kernel import made_up_record
from waltzctl.formats.request_id import RequestId
from waltzctl.formats.segment import Record, encode_records

KERNELS = pytest.mark.parametrize("compiled", [False, True], ids=["interpreted", "compiled"])


def carve_all(image: bytes, **options: object) -> list[tuple[int, int, int]]:
    """First offset, first id and number of each batch."""
    batches = carve_records(BytesSource(image), **options)  # type: ignore[arg-type]
    return [(int(b.offset[0]), int(b.transaction_id[0]), len(b)) for b in batches]


@KERNELS
def test_an_image_of_many_things(compiled: bool) -> None:
    source = random.Random(1)
    first, second = encode_records(make_records(12, first=3))[0], encode_records(make_records(300, first=10**9))[0]
    parts = [
        source.randbytes(100_001),
        first,
        bytes(700_003),
        source.randbytes(77),
        first[50:],
        b"\xff" * 5000,
        second,
        b"end",
    ]
    image = b"".join(parts)
    starts = [sum(map(len, parts[:n])) for n in range(len(parts))]
    found = carve_all(image, compiled=compiled)
    assert found[0] == (starts[1], 3, 12)
    assert found[-1] == (starts[6], 10**9, 300)
    assert sum(count for _, number, count in found if number < 100) >= 12 + 10
    for batch in carve_records(BytesSource(image), data=True, compiled=compiled):
        for place in range(len(batch)):
            start, size = int(batch.offset[place]), 40 + int(batch.data_length[place])
            assert bytes(batch.record_bytes(place)) == image[start : start + size]


@KERNELS
def test_unaligned_and_everywhere(compiled: bool) -> None:
    record = made_up_record(77, 5)
    for window in (probe.CACHE - 45, probe.CACHE - 40, probe.CACHE - 39, probe.CACHE - 1, probe.CACHE, probe.CACHE + 7):
        image = b"\x01" * window + record + b"\x01" * 50
        assert carve_all(image, compiled=compiled) == [(window, 77, 1)]


def test_rows_that_do_not_follow_each_other() -> None:
    records = [Record.make(n, RequestId(1, 2, 3, n), 0, b"x") for n in (5, 6, 100, 101, 3, 3, 4)]
    image = encode_records(records)[0]
    assert [(number, count) for _, number, count in carve_all(image)] == [(5, 2), (100, 2), (3, 1), (3, 2)]


def test_bounds() -> None:
    image = encode_records(make_records(50, size=10))[0]
    assert sum(count for *_, count in carve_all(image, min_id=10, max_id=19)) == 10
    assert carve_all(image, min_id=10, max_id=19)[0][1] == 10
    assert carve_all(image, min_id=10, max_id=10) == [(500, 10, 1)]
    assert carve_all(image, start=51, stop=50 * 20 + 5) == [(100, 2, 18)]
    assert carve_all(image, max_record=9) == []
    assert carve_all(image, start=10**6) == []
    assert carve_all(b"") == []
    far = made_up_record(2**60, 3)
    assert carve_all(far) == []
    assert carve_all(far, max_id=2**62) == [(0, 2**60, 1)]
    assert carve_all(made_up_record(2**56 - 1, 3)) == [(0, 2**56 - 1, 1)]
    assert carve_all(made_up_record(2**56, 3)) == []
    assert carve_all(made_up_record(5, 0)) == [(0, 5, 1)]


class _Overwritten(BytesSource):
    """Is zeros from the read number `reads` on."""

    def __init__(self, data: bytes, reads: int) -> None:
        super().__init__(data)
        self._reads = reads

    def read_into(self, offset: int, buffer: memoryview) -> int:
        count = super().read_into(offset, buffer)
        self._reads -= 1
        if self._reads < 0:
            buffer[:count] = bytes(count)
        return count


def test_a_record_that_is_gone_by_now_ends_its_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """The walk saw that it has another id; when it is looked at, it is not there any more."""
    monkeypatch.setattr(probe, "CACHE", 400)
    image = made_up_record(5, 500) + made_up_record(9, 1000) + made_up_record(10, 3)
    told = []
    for reads in range(12):
        batches = carve_records(_Overwritten(image, reads))
        told.append([(int(b.offset[0]), int(b.transaction_id[0]), len(b)) for b in batches])
    rows = [(0, 5, 1), (540, 9, 2)]
    assert told == sorted(told)
    assert [found for place, found in enumerate(told) if found not in told[:place]] == [[], rows[:1], rows]


def test_records_inside_records() -> None:
    """What lies in the data of a right record is data; in a damaged one nothing tells."""
    inner = encode_records(make_records(4, first=50, size=9))[0]
    outer = Record.make(7, RequestId(1, 2, 3, 4), 0, b"--" + inner + b"--").encode()
    assert carve_all(outer) == [(0, 7, 1)]
    damaged = bytearray(outer)
    damaged[36] ^= 1
    assert carve_all(bytes(damaged)) == [(38, 50, 4)]


def test_a_damaged_segment_loses_one_record() -> None:
    made = segment_of(make_records(40))
    for place in (0, 17, 39):
        data = bytearray(made.data)
        data[made.offsets[place] + 30] ^= 1
        rows = [row for batch in carve_records(BytesSource(bytes(data))) for row in rows_of(batch)]
        assert rows == [made.row(n) for n in range(40) if n != place]


def test_zeros_and_small_numbers_are_cheap(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a disk is full of does not cost a checksum at each byte."""
    spent = [0]
    original = probe.SearchBudget.spend

    def spend(self: probe.SearchBudget, amount: int) -> None:
        spent[0] += amount
        original(self, amount)

    monkeypatch.setattr(probe.SearchBudget, "spend", spend)
    assert carve_all(bytes(1 << 20)) == []
    assert spent[0] < 1 << 20
    source = random.Random(1)
    image = b"".join(struct.pack(">i", source.randrange(1000)) for _ in range(1 << 15))
    assert carve_all(image + made_up_record(1, 10)) == [(1 << 17, 1, 1)]


def test_long_lengths_everywhere_are_bounded() -> None:
    image = b"".join(struct.pack(">qqqiiI", n, 1, 2, 3, 2_000_000 + n, 0) for n in range(400)) + bytes(3_000_000)
    assert carve_all(image + made_up_record(1, 10)) == [(len(image), 1, 1)]


def test_ids_below_zero_are_carved_only_where_they_are_asked_for() -> None:
    image = b"".join(made_up_record(number, 3) for number in (-2, -1, 0, 1, -1, 5))
    assert carve_all(image) == [(86, 0, 2), (215, 5, 1)]
    assert carve_all(image, min_id=-1) == [(43, -1, 3), (172, -1, 1), (215, 5, 1)]


@pytest.mark.parametrize("number", [8, 9, 10, -1, 2, 3])
def test_what_lies_in_a_record_that_is_not_wanted_is_looked_for(number: int) -> None:
    """Whether it stands alone or behind one that is."""
    outer = Record.make(number, RequestId(1, 2, 3, 4), 0, made_up_record(6, 9) + b"-").encode()
    front = made_up_record(5, 1)
    wanted = 3 <= number <= 8
    for first in (b"", front):
        inner = (len(first) + (0 if wanted else 36), number if wanted else 6, 1)
        assert carve_all(first + outer, min_id=3, max_id=8) == [*([(0, 5, 1)] if first else []), inner]


@pytest.mark.parametrize("data", [False, True])
def test_a_row_may_be_longer_than_a_batch(data: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(carve, "BATCH_ROWS", 3)
    image = b"".join(made_up_record(number, 3) for number in range(10)) + b"--" + made_up_record(4, 3)
    found = carve_all(image, data=data)
    assert found == [(0, 0, 3), (129, 3, 3), (258, 6, 3), (387, 9, 1), (432, 4, 1)]
    assert carve_all(image, max_id=4, data=data) == [(0, 0, 3), (129, 3, 2), (432, 4, 1)]
    assert carve_all(image, max_id=2, data=data) == [(0, 0, 3)]


@pytest.mark.parametrize(
    ("inside", "place", "ceiling", "holds"),
    [
        (7, 100, None, True),
        (6, 100, None, False),
        (7, 0, None, True),
        (7 + 141, 100, None, True),
        (7 + 142, 100, None, False),
        (10, 120, 10, True),
        (11, 120, 11, False),
        (11, 120, 12, True),
        (11, 120, None, True),
        (11, 159, 11, False),
        (11, 160, 11, True),
    ],
)
def test_a_torn_end_holds_records_that_may_be_the_log_s(
    inside: int, place: int, ceiling: int | None, holds: bool
) -> None:
    """From its second byte on, with ids that there is room for; those of the next segment only with room for all in front."""
    record = make_records(1, first=inside, size=0)[0].encode()
    torn = bytes(1 + place)[1:] + record
    torn += bytes(max(0, 141 - len(torn))) if ceiling is None else b""
    image = bytes(50) + (torn if place else b"x" + record + bytes(99))
    assert holds_records(BytesSource(image), 50, len(image), 7, ceiling) == holds
