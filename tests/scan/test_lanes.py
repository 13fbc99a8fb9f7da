"""Lanes of the compiled loop that are used again: what a walk before left in one is nobody's."""

from __future__ import annotations

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from waltzctl.engine.scan import kernels
from waltzctl.engine.scan.byte_source import BytesSource
from waltzctl.engine.scan.columns import Damage, RecordBatch
from waltzctl.engine.scan.compiled import CompiledKernel, CompiledLane
from waltzctl.engine.scan.kernel import INTERPRETED, made_up_record
from waltzctl.engine.scan.scanner import scan_records, summarise_records


@pytest.fixture(name="kernel")
def _kernel() -> Iterator[CompiledKernel]:
    kernel = kernels.choose(1 << 30, True)
    if not isinstance(kernel, CompiledKernel):
        pytest.skip("there is no compiled loop here")
    kernel._idle.clear()
    yield kernel
    kernel._idle.clear()


def segment(first: int, lengths: list[int]) -> bytes:
    return b"".join(made_up_record(first + number, length) for number, length in enumerate(lengths))


def scanned(data: bytes, first: int, *, compiled: bool = True, **given: int) -> list[object]:
    found: list[object] = []
    for one in scan_records(
        BytesSource(data), first_transaction_id=first, start=0, data=True, compiled=compiled, **given
    ):
        if isinstance(one, Damage):
            found.append(one)
        else:
            assert one.data is not None
            found.append((one.transaction_id.tolist(), one.offset.tolist(), bytes(one.data), one.data_ok.tolist()))
    return found


def test_whatever_was_walked_before_the_next_walk_finds_what_a_new_lane_does(kernel: CompiledKernel) -> None:
    """Also where the file before was longer, broke off, or was left in the middle."""
    luck = random.Random(7)
    for _ in range(60):
        first = luck.randrange(1000)
        data = segment(first, [luck.randrange(3000) for _ in range(luck.randrange(1, 40))])
        data = data[: len(data) - luck.choice((0, 0, 1, 50))]
        again = scanned(data, first)
        kernel._idle.clear()
        assert scanned(data, first) == again == scanned(data, first, compiled=False)
        if luck.random() < 0.3:
            left = scan_records(BytesSource(segment(0, [luck.randrange(900)] * 9)), first_transaction_id=0, start=0)
            next(left)
            left.close()  # type: ignore[attr-defined]


def test_a_lane_is_used_again_where_it_is_large_enough(kernel: CompiledKernel) -> None:
    scanned(segment(0, [20_000]), 0)
    (lane,) = kernel._idle
    scanned(segment(5, [10_000]), 5)
    assert list(kernel._idle) == [lane]
    scanned(segment(5, [90_000]), 5)
    small, other = kernel._idle
    assert isinstance(other, CompiledLane)
    assert (small is lane, other.size > lane.size) == (True, True), "walks of both kinds take turns"
    assert kernel.lane(lane.size + 1, lane.shape[0], wide=True, max_length=9) is other
    assert kernel.lane(lane.size + 1, lane.shape[0], wide=True, max_length=9) is not lane
    assert kernel.lane(lane.size, lane.shape[0] + 1, wide=True, max_length=9) is not lane
    assert list(kernel._idle) == [lane]


def test_how_long_a_record_may_be_is_said_for_each_walk(kernel: CompiledKernel) -> None:
    data = segment(0, [100, 100])
    for most, whole in ((100, True), (99, False), (100, True)):
        (found, *_) = scan_records(BytesSource(data), first_transaction_id=0, start=0, max_record=most, compiled=True)
        assert isinstance(found, RecordBatch) == whole


def test_what_a_summary_points_into_is_given_to_nobody(kernel: CompiledKernel) -> None:
    (run,) = summarise_records(BytesSource(segment(0, [5, 5])), first_transaction_id=0, start=0, compiled=True)
    assert not kernel._idle
    assert not isinstance(run, Damage)
    assert run.offset.tolist() == [0, 45]


def test_walks_side_by_side_have_lanes_of_their_own(kernel: CompiledKernel) -> None:
    files = [(first, segment(first, [first % 700] * 50)) for first in range(0, 4000, 100)]
    expected = [scanned(data, first, compiled=False) for first, data in files]
    with ThreadPoolExecutor(8) as pool:
        for _ in range(5):
            assert list(pool.map(lambda one: scanned(one[1], one[0]), files)) == expected
    assert 0 < len(kernel._idle) <= 4


def test_the_interpreted_loop_keeps_nothing() -> None:
    INTERPRETED.give_back(INTERPRETED.lane(4096, 3, wide=True, max_length=9))
