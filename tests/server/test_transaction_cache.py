"""What a log server keeps of the latest transactions, against a table of all that it was given."""

from __future__ import annotations

import random

import pytest

from tests.fed import fed
from waltzctl.engine.server.server_settings import CacheOptions
from waltzctl.engine.server.transaction_cache import CHUNK, CHUNK_BYTES, TransactionCache
from waltzctl.formats.request_id import RequestId
from waltzctl.formats.segment import RecordHeader
from waltzctl.formats.wire.feed_frames import feed_frames


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


@pytest.mark.turns(3)
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
