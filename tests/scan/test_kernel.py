"""The loop gives the same answers interpreted, compiled in every way, and by an independent oracle."""

from __future__ import annotations

import random
import zlib
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.scan.oracle import parse
from tests.scan.walk_support import BEFORE, expected, run
from tests.scan.wire_support import skip_unless_here
from waltzctl.engine.scan import compiled, kernels
from waltzctl.engine.scan.columns import COLUMN_TYPES
from waltzctl.engine.scan.kernel import (
    BASE,
    EXPECTED,
    FILLED,
    INTERPRETED,
    POSITION,
    ROOM,
    STRETCH,
    Kernel,
    Lane,
    Status,
    answers,
    made_up_record,
)
from waltzctl.formats.segment import Record

LENGTHS = [*range(9), *range(15, 18), *range(27, 34), 60, *range(63, 66), 100, *range(127, 130), 200, 255, 256]
LONG = [257, 511, 512, 513, 1000, 1023, 1024, 1025, 1500, 4095, 4096, 4097, 8191, 8192, 8193, 70000]


def kernel_of(way: str) -> Kernel:
    if way == "interpreted":
        return INTERPRETED
    skip_unless_here(way)
    return compiled.load(way)


@pytest.fixture(params=[*compiled.WAYS, "interpreted"], scope="module")
def kernel(request: pytest.FixtureRequest) -> Kernel:
    return kernel_of(request.param)


def test_every_length_of_data(kernel: Kernel) -> None:
    for length in [*range(132), *range(252, 262), *LONG]:
        data = made_up_record(0, length)
        status, position, _, rows = run(kernel, data)
        assert (status, position, rows) == (Status.MORE, len(data), [parse(data, 0)]), length


def test_every_bit_of_a_record_counts(kernel: Kernel) -> None:
    """A flipped bit anywhere in a record is seen, at lengths that take every path of the vectors."""
    for length in (0, 3, 28, 64, 100, 256, 300, 1025, 5000):
        good = made_up_record(0, length)
        bits = random.Random(length).sample(range(len(good) * 8), min(60, len(good) * 8))
        for bit in bits:
            data = bytearray(good)
            data[bit // 8] ^= 1 << bit % 8
            status, position, _, rows = run(kernel, bytes(data))
            assert status in (Status.CHECKSUM, Status.LENGTH), (length, bit)
            assert (position, rows) == (0, [])


def test_data_checksum_alone_is_wrong(kernel: Kernel) -> None:
    """The release stores the client's checksum unseen, so a right record may hold a wrong one."""
    good = Record.decode(made_up_record(0, 77))
    for wrong in (good.data_checksum ^ 1, good.data_checksum ^ 0x80000000, 0, 0xFFFFFFFF):
        bad = Record(0, good.request_id, good.header, good.data, wrong, 0)
        raw = bad.encode()[:-4]
        raw += zlib.crc32(raw).to_bytes(4)
        _, _, _, rows = run(kernel, raw + made_up_record(1, 5) + made_up_record(2, 0))
        assert [row[-1] for row in rows] == [False, True, True]
        assert rows == [parse(raw, 0), *[(row[0], *row[1:]) for row in rows[1:]]]


def test_rows_that_were_taken_leave_nothing_behind(kernel: Kernel) -> None:
    """Two of four records at a time, the third of which holds other data than was sent."""
    third = bytearray(made_up_record(2, 7))
    third[35] ^= 1
    third[-4:] = zlib.crc32(third[:-4]).to_bytes(4)
    data = made_up_record(0, 3) + made_up_record(1, 0) + bytes(third) + made_up_record(3, 9)
    lane = kernel.lane(BEFORE + len(data), 2, wide=False, max_length=100)
    end = BEFORE + len(data)
    lane.memory[BEFORE:end] = data
    for slot, value in ((POSITION, BEFORE), (FILLED, end), (ROOM, end), (BASE, -BEFORE), (EXPECTED, 0)):
        lane.state[slot] = value
    for places, verdicts in (([0, 43], [True, True]), ([83, 130], [False, True])):
        assert lane.walk() == Status.FULL
        found = lane.take(copy=True)
        assert (found["offset"].tolist(), found["data_ok"].tolist()) == (places, verdicts)


def with_other_data(record: bytes) -> bytes:
    """The record with a data checksum that is wrong and a record checksum that is right."""
    raw = bytearray(record)
    raw[32] ^= 1
    return bytes(raw[:-4]) + zlib.crc32(raw[:-4]).to_bytes(4)


@pytest.mark.parametrize("wide", [True, False])
@pytest.mark.parametrize(
    "stranger", [made_up_record(7, 4), with_other_data(made_up_record(7, 4))], ids=["right", "other data"]
)
def test_a_stranger_that_is_passed_over_leaves_no_verdict_behind(kernel: Kernel, stranger: bytes, wide: bool) -> None:
    """No row was there in front of it, so nothing was taken."""
    data = stranger + made_up_record(1, 4) + with_other_data(made_up_record(2, 4)) + made_up_record(3, 4)
    lane = kernel.lane(BEFORE + len(data), 100, wide=wide, max_length=100)
    end = BEFORE + len(data)
    lane.memory[BEFORE:end] = data
    for slot, value in ((POSITION, BEFORE), (FILLED, end), (ROOM, end), (BASE, -BEFORE), (EXPECTED, 0)):
        lane.state[slot] = value
    assert lane.walk() == Status.ORDER
    lane.state[POSITION], lane.state[EXPECTED] = BEFORE + len(stranger), 1
    assert lane.walk() == Status.MORE
    assert lane.take(copy=True)["data_ok"].tolist() == [True, False, True]


@pytest.mark.parametrize("count", [1, 5, STRETCH + 2])
def test_damage_at_every_place_of_a_stretch(kernel: Kernel, count: int) -> None:
    """Checksums are settled a stretch at a time; the rows must end exactly in front of the first wrong one."""
    records = [made_up_record(number, number * 7 % 90) for number in range(count)]
    starts = [sum(map(len, records[:number])) for number in range(count)]
    for place in sorted({*range(min(count, 6)), count // 2, *range(max(count - 6, 0), count)}):
        data = bytearray(b"".join(records))
        data[starts[place] + 9] ^= 0x10
        for rows_wanted in (count + 5, max(place, 1), place + 1):
            assert run(kernel, bytes(data), rows=rows_wanted) == expected(bytes(data), len(data), rows_wanted, 0)


def test_stranger_at_every_place_of_a_stretch(kernel: Kernel) -> None:
    for place in (0, 1, 3, 4, STRETCH - 1, STRETCH, STRETCH + 1):
        ids = [*range(place), 10**6, *range(place, place + 3)]
        data = b"".join(made_up_record(number, 11) for number in ids)
        assert run(kernel, data)[:2] == (Status.ORDER, place * 51)
        broken = bytearray(data)
        broken[place * 51 + 40] ^= 1  # neither the right id nor a right checksum
        assert run(kernel, bytes(broken))[:2] == (Status.CHECKSUM, place * 51)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    lengths=st.lists(st.sampled_from(LENGTHS) | st.integers(0, 700) | st.sampled_from(LONG), max_size=40),
    first=st.sampled_from([0, 5, 2**40, 2**63 - 100, -(2**63), -5]),
    changes=st.lists(st.tuples(st.integers(0, 2**32), st.integers(1, 255)), max_size=3),
    cut=st.none() | st.integers(0, 2**32),
    rows=st.integers(1, 50),
)
def test_all_agree_with_the_oracle(
    lengths: list[int], first: int, changes: list[tuple[int, int]], cut: int | None, rows: int
) -> None:
    data = bytearray(b"".join(made_up_record(first + place, length) for place, length in enumerate(lengths)))
    for place, mask in changes:
        if data:
            data[place % len(data)] ^= mask
    filled = len(data) if cut is None else cut % (len(data) + 1)
    wanted = expected(bytes(data), filled, rows, first)
    for way in [*compiled.available_ways(), "interpreted"]:
        kernel = kernel_of(way)
        assert run(kernel, bytes(data), filled=filled, rows=rows, first=first) == wanted, way
        narrow = run(kernel, bytes(data), filled=filled, rows=rows, first=first, wide=False)
        assert narrow == (*wanted[:3], [(row[0], row[-1]) for row in wanted[3]]), way


def test_random_bytes_are_never_believed(kernel: Kernel) -> None:
    source = random.Random(3)
    for size in (0, 1, 35, 36, 39, 40, 41, 1000, 20000):
        data = source.randbytes(size)
        assert run(kernel, data) == expected(data, size, 4096, 0)


def test_answers_tell_kernels_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that is wrong about one record is not taken."""
    data = made_up_record(0, 50)
    right = answers(INTERPRETED, data)
    monkeypatch.setattr("waltzctl.engine.scan.kernel.crc32", lambda *_: 1)
    assert answers(INTERPRETED, data) != right


class _WrongOnce:
    """The interpreted kernel, whose walk number `wrong` ends with another status."""

    name = "wrong"

    def __init__(self, wrong: int) -> None:
        self._wrong, self._made = wrong, 0

    def lane(self, buffer_size: int, rows: int, *, wide: bool, max_length: int) -> Lane:
        lane: Any = INTERPRETED.lane(buffer_size, rows, wide=wide, max_length=max_length)
        if self._made == self._wrong:
            walk = lane.walk
            lane.walk = lambda: walk() + 1
        self._made += 1
        return lane  # type: ignore[no-any-return]


def test_a_kernel_must_be_right_about_what_is_whole_and_about_each_damage() -> None:
    assert [compiled._passes_self_test(_WrongOnce(wrong)) for wrong in range(8)] == [False] * 7 + [True]


def test_damage_of_the_trial_is_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the first answer tells of records that are all right."""
    told = []
    monkeypatch.setattr(compiled, "answers", lambda kernel, data: told.append(answers(kernel, data)) or told[-1])
    assert compiled._passes_self_test(INTERPRETED)
    assert told[::2] == told[1::2]
    whole, *damaged = told[::2]
    assert whole[:2] == [Status.MORE, (whole[1][0], 21, 21)]
    assert [name for name, _ in whole[2:]] == [*COLUMN_TYPES]
    assert dict(whole[2:])["offset"][:3] == [4096, 4136, 4177]
    assert [one[0] in (Status.CHECKSUM, Status.LENGTH) for one in damaged] == [True] * 6


def test_a_wrong_kernel_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "_loaded", {})
    monkeypatch.setattr(compiled, "_passes_self_test", lambda kernel: kernel.way == "table")
    monkeypatch.setattr(kernels, "_in_use", None)
    monkeypatch.delenv(kernels.WAY_VARIABLE, raising=False)
    assert kernels.choose(0, compiled=True).name == "compiled, table"


def test_choice_by_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "_in_use", None)
    monkeypatch.setattr(kernels, "_interpreted_bytes", 0)
    monkeypatch.delenv(kernels.WAY_VARIABLE, raising=False)
    assert 0 < kernels.LOAD_FROM < kernels.COMPILE_FROM
    assert kernels.choose(1000) is INTERPRETED
    assert kernels.choose(1 << 40, compiled=False) is INTERPRETED
    monkeypatch.setattr(compiled, "cached", lambda way: False)
    assert kernels.choose(kernels.COMPILE_FROM - 1) is INTERPRETED
    monkeypatch.setattr(kernels, "_interpreted_bytes", 0)
    assert kernels.choose(kernels.COMPILE_FROM) is not INTERPRETED


def test_a_process_that_reads_much_in_pieces_compiles_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a worker of Spark, whose tasks are each below the size from which compiling pays."""
    monkeypatch.delenv(kernels.WAY_VARIABLE, raising=False)
    monkeypatch.setattr(compiled, "cached", lambda way: False)
    for last, interpreted in ((kernels.LOAD_FROM, True), (kernels.LOAD_FROM + 1, False)):
        monkeypatch.setattr(kernels, "_in_use", None)
        monkeypatch.setattr(kernels, "_interpreted_bytes", 0)
        assert kernels.choose(kernels.COMPILE_FROM - kernels.LOAD_FROM - 1) is INTERPRETED
        assert kernels.choose(kernels.LOAD_FROM - 1) is INTERPRETED  # what would not load it does not count
        assert (kernels.choose(last) is INTERPRETED) is interpreted


def test_where_code_cannot_be_had_it_is_not_tried_for_each_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(kernels.WAY_VARIABLE, raising=False)
    monkeypatch.setattr(kernels, "_in_use", None)
    monkeypatch.setattr(kernels, "_interpreted_bytes", 0)
    tried: list[str] = []

    def failing(way: str) -> None:
        tried.append(way)
        raise compiled.CodeUnavailableError(way)

    monkeypatch.setattr(compiled, "available_ways", lambda: ("table",))
    monkeypatch.setattr(compiled, "cached", lambda way: False)
    monkeypatch.setattr(compiled, "load", failing)
    half = kernels.COMPILE_FROM // 2
    counts = []
    for _ in range(4):
        assert kernels.choose(half) is INTERPRETED
        counts.append(len(tried))
    assert counts == [0, 1, 1, 2]


def test_whoever_asks_for_compiled_code_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the size, and whether or not it was compiled before."""
    monkeypatch.setattr(kernels, "_in_use", None)
    monkeypatch.delenv(kernels.WAY_VARIABLE, raising=False)
    monkeypatch.setattr(compiled, "cached", lambda way: False)
    assert kernels.choose(0, compiled=True) is not INTERPRETED


def test_it_is_the_fastest_way_that_must_be_in_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(kernels.WAY_VARIABLE, raising=False)
    ways = ("isal", "zlib-ng", "table")
    monkeypatch.setattr(compiled, "available_ways", lambda: ways)
    for there, loaded in ((ways[:1], True), (ways[1:], False), ((), False)):
        monkeypatch.setattr(kernels, "_in_use", None)
        monkeypatch.setattr(kernels, "_interpreted_bytes", 0)
        monkeypatch.setattr(compiled, "cached", there.__contains__)
        monkeypatch.setattr(compiled, "load", lambda way: way)
        assert kernels.choose(kernels.LOAD_FROM) == ("isal" if loaded else INTERPRETED)


def test_code_in_the_cache_is_loaded_from_a_size_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "_in_use", None)
    monkeypatch.delenv(kernels.WAY_VARIABLE, raising=False)
    monkeypatch.setattr(compiled, "cached", lambda way: True)
    assert kernels.choose(kernels.LOAD_FROM - 1) is INTERPRETED
    loaded = kernels.choose(kernels.LOAD_FROM)
    assert loaded is not INTERPRETED
    assert kernels.choose(1000) is loaded  # as it is there already
    assert kernels.choose(1000, compiled=False) is INTERPRETED


@pytest.mark.parametrize("way", ["table", "interpreted", "no such way"])
def test_the_environment_names_the_only_way(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "_in_use", None)
    monkeypatch.setenv(kernels.WAY_VARIABLE, way)
    chosen = kernels.choose(1 << 40)
    assert chosen.name == "compiled, table" if way == "table" else chosen is INTERPRETED
    assert kernels.choose(1000, compiled=True) is chosen


def test_a_buffer_is_shorter_than_the_tables_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = kernel_of("table")  # it is tried on longer buffers
    monkeypatch.setattr(compiled.crc_kernel, "LONGEST", 5000)
    assert len(kernel.lane(4999, 1, wide=True, max_length=1).memory) > 4999
    for size in (5000, 5001):
        with pytest.raises(ValueError, match="too large"):
            kernel.lane(size, 1, wide=True, max_length=1)


@pytest.mark.parametrize("bound", [2**31 - 2, 2**31 - 1, 2**31, 2**32 - 1, 2**40])
def test_a_negative_length_is_above_every_bound(kernel: Kernel, bound: int) -> None:
    data = bytearray(made_up_record(0, 5))
    data[28:32] = b"\xff\xff\xff\xfb"
    lane = kernel.lane(len(data), 4, wide=True, max_length=bound)
    lane.memory[: len(data)] = bytes(data)
    for slot, value in ((POSITION, 0), (FILLED, len(data)), (ROOM, 2**40), (BASE, 0), (EXPECTED, 0)):
        lane.state[slot] = value
    assert lane.walk() == Status.LENGTH


@pytest.mark.parametrize("bound", [0, 5, 2**30, 2**31 - 1])
def test_a_length_up_to_the_bound_may_be_right(kernel: Kernel, bound: int) -> None:
    """Whether or not the record is in the buffer; one more is beyond the bound, or negative."""
    for length, status in ((bound, Status.MORE), (bound + 1, Status.LENGTH)):
        data = made_up_record(0, 5)[:28] + length.to_bytes(4) + bytes(4)
        lane = kernel.lane(len(data), 4, wide=True, max_length=bound)
        lane.memory[: len(data)] = data
        for slot, value in ((POSITION, 0), (FILLED, len(data)), (ROOM, 2**40), (BASE, 0), (EXPECTED, 0)):
            lane.state[slot] = value
        assert lane.walk() == status


def test_without_a_compiler_everything_is_interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "_in_use", None)
    monkeypatch.setitem(__import__("sys").modules, "llvmlite.binding", None)
    compiled.available_ways.cache_clear()
    try:
        assert kernels.choose(1 << 40, compiled=True) is INTERPRETED
    finally:
        compiled.available_ways.cache_clear()


def test_a_compiler_that_fails_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: str) -> bytes:
        raise RuntimeError("broken")

    monkeypatch.setattr(kernels, "_in_use", None)
    monkeypatch.setattr(compiled, "_loaded", {})
    monkeypatch.setattr(compiled, "_compile", fail)
    monkeypatch.setattr(compiled.code_cache, "get", lambda _: None)
    assert kernels.choose(1 << 40, compiled=True) is INTERPRETED
