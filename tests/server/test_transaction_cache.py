"""What a log server keeps of the latest transactions, against a table of all that it was given."""

from __future__ import annotations

import gc
import random
import sys
from collections import OrderedDict
from collections.abc import Iterable
from types import ModuleType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fed import fed
from waltzctl.engine.scan.client_appends import NumberedRecords
from waltzctl.engine.server.server_settings import CacheOptions
from waltzctl.engine.server.transaction_cache import (
    CHUNK,
    CHUNK_BYTES,
    DATA_CHUNK_BYTES,
    PLACE_BYTES,
    RUN_BYTES,
    TransactionCache,
)
from waltzctl.formats.request_id import RequestId
from waltzctl.formats.segment import RecordHeader
from waltzctl.formats.wire.feed_frames import feed_frames
from waltzctl.formats.wire.records import SMALLEST_RECORD, PackedRecords, WireRecord

properties = settings(max_examples=100)


def header(partition: int, number: int) -> RecordHeader:
    return RecordHeader(number, RequestId(1 + number % 3, 2, partition, -number), number % 5)


def put(cache: TransactionCache, partition: int, number: int) -> None:
    one = header(partition, number)
    cache.put_fed(partition, number, feed_frames([one]))


def run(cache: TransactionCache, partition: int, first: int, count: int) -> list[int]:
    """The ids that are given; what is told of each is right."""
    found = fed(cache.fed(partition, first, count))
    assert list(found) == [header(partition, number) for number in range(first, first + len(found))]
    return [one.transaction_id for one in found]


@pytest.mark.parametrize(("last", "left"), [(2 * CHUNK + 5, 2 * CHUNK + 6), (2 * CHUNK + 4, 2 * CHUNK), (-1, 0)])
def test_of_a_log_that_ends_earlier_nothing_is_kept_behind_its_end(last: int, left: int) -> None:
    """Nor the rest of the chunk that it ends in; of another partition everything."""
    cache = TransactionCache(CacheOptions())
    for partition in (0, 1):
        for number in range(2 * CHUNK + 6):
            put(cache, partition, number)
            number_id = RequestId(1, 1, partition, number)
            cache.put_data(partition, WireRecord.make(number, number_id, 0, b"%d" % number))
    used = cache.used
    cache.cut(0, last)
    kept = [number for number in range(2 * CHUNK + 6) if cache.data(0, number) is not None]
    assert run(cache, 0, 0, 1000) == kept == [*range(left)]
    assert run(cache, 1, 0, 1000) == [*range(2 * CHUNK + 6)]
    assert cache.data(1, 2 * CHUNK + 5) is not None
    for partition in (0, 1):
        cache.cut(partition, -1)
    assert cache.used == (0, 0) != used


def test_what_is_forgotten_is_not_given_any_more_and_makes_room_for_what_comes() -> None:
    cache = TransactionCache(CacheOptions(headers=4 * CHUNK_BYTES, data=1 << 20))
    for _ in range(20):
        for partition in (0, 1):
            put(cache, partition, 7)
            cache.put_data(partition, WireRecord.make(7, RequestId(1, 1, partition, 7), 0, b"kept"))
        cache.forget(0)
        assert run(cache, 0, 7, 1) == []
        assert cache.data(0, 7) is None
        assert run(cache, 1, 7, 1) == [7]
        assert cache.data(1, 7) is not None
    assert cache.used[0] == 4 * CHUNK_BYTES
    put(cache, 0, 7)
    cache.cut(0, 6)
    assert run(cache, 0, 0, 9) == []
    cache.forget(2)  # of which nothing was kept


def test_a_run_goes_on_over_chunks_and_ends_at_a_gap_or_at_the_count() -> None:
    cache = TransactionCache(CacheOptions())
    for number in (*range(CHUNK - 3, 2 * CHUNK + 2), 2 * CHUNK + 3):
        put(cache, 0, number)
    assert run(cache, 0, CHUNK - 4, 10) == []
    assert run(cache, 0, CHUNK - 3, 2) == [CHUNK - 3, CHUNK - 2]
    assert run(cache, 0, CHUNK - 1, 2) == [CHUNK - 1, CHUNK]
    assert run(cache, 0, CHUNK - 3, 1000) == [*range(CHUNK - 3, 2 * CHUNK + 2)]
    assert run(cache, 0, 2 * CHUNK + 2, 10) == []
    assert run(cache, 0, 2 * CHUNK + 3, 10) == [2 * CHUNK + 3]
    assert run(cache, 0, 2 * CHUNK, 0) == []
    assert run(cache, 1, CHUNK, 10) == []


@pytest.mark.turns(8)
@pytest.mark.parametrize("seed", range(3))
def test_whatever_is_given_was_put_and_memory_is_bounded(seed: int) -> None:
    chance = random.Random(seed)
    capacity = 6 * CHUNK_BYTES + CHUNK_BYTES // 2
    cache = TransactionCache(CacheOptions(headers=capacity))
    known: set[tuple[int, int]] = set()
    for _ in range(3000):
        partition, number = chance.randrange(2), chance.randrange(8 * CHUNK)
        if chance.random() < 0.7:
            for one in range(number, number + chance.randrange(1, CHUNK)):
                put(cache, partition, one)
                known.add((partition, one))
                assert run(cache, partition, one, 1) == [one], "what was put last is there"
        else:
            assert known.issuperset((partition, one) for one in run(cache, partition, number, chance.randrange(300)))
        assert cache.used[0] <= capacity
    assert cache.used[0] == 6 * CHUNK_BYTES


def test_what_was_used_last_stays() -> None:
    cache = TransactionCache(CacheOptions(headers=4 * CHUNK_BYTES))
    for chunk in range(4):
        put(cache, 0, chunk * CHUNK)
    assert run(cache, 0, 0, 1) == [0]
    put(cache, 0, 4 * CHUNK)
    assert [bool(run(cache, 0, chunk * CHUNK, 1)) for chunk in range(5)] == [True, False, True, True, True]
    assert cache.feed_misses.count == 1


# ---- data --------------------------------------------------------------------------------------------------------------


def record(partition: int, number: int, size: int) -> WireRecord:
    """Whose data and checksum no other one has."""
    said = b"%d.%d " % (partition, number) * (1 + size // 4)
    return WireRecord(number, RequestId(1, 2, partition, 3), 4, said[:size], 7 * number + partition)


def batch(partition: int, first: int, sizes: Iterable[int]) -> NumberedRecords:
    records = [record(partition, number, size) for number, size in enumerate(sizes, first)]
    told = feed_frames([RecordHeader(one.transaction_id, one.request_id, one.header) for one in records])
    return NumberedRecords(first, PackedRecords.of(records), told)


def room(*sizes: int) -> int:
    """What a run of records with so much data takes."""
    return RUN_BYTES + sum(SMALLEST_RECORD + PLACE_BYTES + size for size in sizes)


def kept(cache: TransactionCache, partition: int, ids: Iterable[int], size: int) -> list[int]:
    """The ids whose data is there; that of each is right."""
    found = {number: one for number in ids if (one := cache.data(partition, number)) is not None}
    for number, one in found.items():
        expected = record(partition, number, size)
        assert one == (expected.data, expected.data_checksum)
    return [*found]


def measured(cache: TransactionCache) -> int:
    """Bytes of all objects that a cache leads to."""
    known: dict[int, object] = {}
    new: list[object] = [cache]
    while new:
        known |= {id(one): one for one in new}
        others = {id(one): one for one in gc.get_referents(*new) if not isinstance(one, (type, ModuleType))}
        new = [one for key, one in others.items() if key not in known]
    return sum(map(sys.getsizeof, known.values()))


@pytest.mark.turns(10)
@given(st.data())
@properties
def test_data_is_that_of_the_transaction_and_memory_is_bounded(draws: st.DataObject) -> None:
    draw = draws.draw
    capacity = draw(st.sampled_from([1, 4 * room(100), 9000, 30_000, 100_000]))
    sizes = draw(st.lists(st.sampled_from([0, 1, 30, 100, 100, 100, 1000, 6000]), min_size=1, max_size=7))
    cache = TransactionCache(CacheOptions(headers=5 * CHUNK_BYTES, data=capacity))
    empty = measured(cache) + 1000  # two tables of a few places
    known: set[tuple[int, int]] = set()

    def of(partition: int, number: int) -> WireRecord:
        return record(partition, number, sizes[number % len(sizes)])

    for _ in range(draw(st.integers(1, 25))):
        partition, first = draw(st.integers(0, 1)), draw(st.integers(0, 4 * CHUNK))
        count = draw(st.sampled_from([1, 1, 2, 7, CHUNK, 150]))
        last = first + count - 1
        match draw(st.sampled_from(["batch", "batch", "one", "read"])):
            case "batch":
                cache.put(partition, batch(partition, first, (len(of(0, n).data) for n in range(first, last + 1))))
                known |= {(partition, number) for number in range(first, last + 1)}
            case "one":
                last = first
                cache.put_data(partition, of(partition, first))
                known.add((partition, first))
            case _:
                last = -1
        if last >= 0 and DATA_CHUNK_BYTES + room(len(of(0, last).data)) <= capacity // 4:
            assert cache.data(partition, last) is not None, "what was put last is there"
        assert cache.used[1] <= capacity
        assert sum(cache.used) >= measured(cache) - empty
        for number in range(first, first + count):
            found, misses = cache.data(partition, number), cache.data_misses.count
            if found is not None:
                expected = of(partition, number)
                assert (partition, number) in known
                assert found == (expected.data, expected.data_checksum)
                assert cache.data(partition, number) == found
            assert cache.data_misses.count == misses


@pytest.mark.turns(10)
@pytest.mark.parametrize("count", [1, 2, 5, CHUNK])
def test_data_takes_no_more_memory_than_is_counted(count: int) -> None:
    """Also where the table of chunks has just grown."""
    cache = TransactionCache(CacheOptions(data=1 << 20))
    for chunk in range(1000, 1700):
        for number in range(chunk * CHUNK, chunk * CHUNK + count):
            cache.put_data(0, record(0, number, 0))
        if chunk % 20 == 0:
            assert cache.used[1] >= measured(cache) - 2000


@pytest.mark.turns(10)
@pytest.mark.parametrize("spare", [0, DATA_CHUNK_BYTES + CHUNK * (RUN_BYTES + SMALLEST_RECORD + PLACE_BYTES + 10) - 1])
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 1), st.integers(0, 5), st.integers(0, CHUNK - 1)), max_size=60))
@properties
def test_the_chunks_whose_data_was_used_last_stay(spare: int, steps: list[tuple[bool, int, int, int]]) -> None:
    """Each has room for all of its transactions, and no more than five do."""
    whole = DATA_CHUNK_BYTES + CHUNK * room(10)
    cache = TransactionCache(CacheOptions(data=5 * whole + spare))
    model: OrderedDict[tuple[int, int], None] = OrderedDict()
    for is_put, partition, chunk, place in steps:
        key, first = (partition, chunk), chunk * CHUNK
        if not is_put:
            assert (cache.data(partition, first + place) is not None) == (key in model)
        else:
            for number in range(first, first + CHUNK):
                cache.put_data(partition, record(partition, number, 10))
            model[key] = None
        if key in model:
            model.move_to_end(key)
        if len(model) > 5:
            model.popitem(last=False)
        assert cache.used[1] == len(model) * whole
    for partition in range(2):
        for chunk in range(6):
            ids = range(chunk * CHUNK, (chunk + 1) * CHUNK)
            assert kept(cache, partition, ids, 10) == ([*ids] if (partition, chunk) in model else [])


def test_a_miss_is_counted_and_a_hit_is_not() -> None:
    cache = TransactionCache(CacheOptions())
    cache.put(0, batch(0, 5, [10]))
    for partition, number, misses in ((0, 5, 0), (0, 6, 1), (1, 5, 2), (0, 5 + CHUNK, 3), (0, -1, 4), (0, 5, 4)):
        assert (cache.data(partition, number) is None) == ((partition, number) != (0, 5))
        assert cache.data_misses.count == misses


def test_a_batch_takes_a_run_in_each_of_its_chunks_and_nothing_is_counted_twice() -> None:
    cache = TransactionCache(CacheOptions())
    first, count = CHUNK - 2, CHUNK + 5
    ids = range(first, first + count)
    whole = 3 * DATA_CHUNK_BYTES + room(*[10] * 2) + room(*[10] * CHUNK) + room(*[10] * 3)
    for _ in range(2):
        cache.put(0, given := batch(0, first, [10] * count))
        cache.put_fed(1, first, given.feed)
        assert cache.fed(0, first, count) == cache.fed(1, first, count) == given.feed
        cache.put_data(0, record(0, first + 1, 10))
        assert cache.used[1] == whole
        assert kept(cache, 0, range(first - 1, first + count + 1), 10) == [*ids]


def test_a_batch_of_which_some_is_there_adds_the_rest() -> None:
    cache = TransactionCache(CacheOptions())
    for number in (5, 6, 40):
        cache.put_data(0, record(0, number, 10))
    cache.put(0, batch(0, 0, [10] * 50))
    assert kept(cache, 0, range(CHUNK), 10) == [*range(50)]
    before = cache.used[1]
    runs, rest = divmod(before - DATA_CHUNK_BYTES - 50 * (room(10) - RUN_BYTES), RUN_BYTES)
    assert rest == 0, "each is there once"
    assert runs <= 14
    for number in range(50):
        cache.put_data(0, record(0, number, 10))
    assert cache.used[1] == before


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_what_is_kept_are_bytes_of_its_own(kind: type) -> None:
    cache = TransactionCache(CacheOptions())
    given, sent = batch(0, 3, [10] * 8192), bytearray()
    sent += given.records.data
    cache.put(0, NumberedRecords(3, PackedRecords(kind(sent), given.records.places), given.feed))
    sent[:] = bytes(len(sent))
    found = cache.data(0, 8000)
    assert found is not None
    assert type(found[0]) is bytes
    assert kept(cache, 0, range(8200), 10) == [*range(3, 8195)]
    assert measured(cache) - measured(TransactionCache(CacheOptions())) <= sum(cache.used)


@pytest.mark.parametrize("above", [0, 1])
def test_data_that_is_a_large_part_of_all_room_is_not_kept(above: int) -> None:
    cache = TransactionCache(CacheOptions(data=100_000 + 3))
    most = 25_000 - DATA_CHUNK_BYTES - room(0)
    cache.put(0, batch(0, 9, [most + above]))
    assert kept(cache, 0, [9], most + above) == [9][above:]
    assert cache.used[1] == [25_000, 0][above]


@pytest.mark.parametrize("above", [0, 1])
def test_a_batch_that_is_a_large_part_of_all_room_is_kept_in_parts(above: int) -> None:
    cache = TransactionCache(CacheOptions(data=100_000 + 3))
    sizes = [3000, 25_000 - DATA_CHUNK_BYTES - room(3000, 0) + above]
    cache.put(0, batch(0, 9, sizes))
    assert [cache.data(0, 9 + n) for n in range(2)] == [
        (one.data, one.data_checksum) for one in (record(0, 9 + n, size) for n, size in enumerate(sizes))
    ]
    assert cache.used[1] == 25_000 + above * (RUN_BYTES + 1)


@pytest.mark.parametrize("above", [0, 1])
def test_of_a_chunk_that_would_take_all_room_the_oldest_run_goes(above: int) -> None:
    order = [30, 3, 63, 0, 31, 7, 29, 8]  # not that of their ids
    cache = TransactionCache(CacheOptions(data=DATA_CHUNK_BYTES + 8 * room(1000) - above))
    for partition in (1, 0):
        for number in order:
            cache.put_data(partition, record(partition, number, 1000))
    assert kept(cache, 0, range(CHUNK), 1000) == sorted(order[above:])
    assert kept(cache, 1, range(CHUNK), 1000) == []
    assert cache.used[1] == DATA_CHUNK_BYTES + (8 - above) * room(1000)


@pytest.mark.parametrize("together", [True, False])
def test_of_a_chunk_of_large_records_the_last_ones_are_kept(together: bool) -> None:
    size, capacity = 1 << 14, CHUNK << 14
    cache = TransactionCache(CacheOptions(data=capacity))
    for first in (0, CHUNK):
        if together:
            cache.put(0, batch(0, first, [size] * CHUNK))
        for number in range(first, first + CHUNK):
            if not together:
                cache.put_data(0, record(0, number, size))
            assert cache.used[1] <= capacity
        found = kept(cache, 0, range(first + CHUNK), size)
        assert found == [*range(found[0], first + CHUNK)], "without a gap"
        assert len(found) >= CHUNK * 7 // 8 - 1
