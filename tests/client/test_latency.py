"""The distribution of latencies: every one is counted, and no bucket is wider than one part in 128."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from waltzctl.engine.client.latency import BUCKETS, LatencyHistogram, bucket_of, highest_of

nanoseconds = st.integers(0, 2**43)
many = st.lists(nanoseconds, min_size=1, max_size=200)


def histogram(*groups: list[int]) -> LatencyHistogram:
    made = LatencyHistogram()
    for group in groups:
        made.add(np.array(group, np.int64))
    return made


@given(nanoseconds)
def test_a_bucket_holds_its_latency_and_is_narrow(latency: int) -> None:
    bucket = int(bucket_of(np.array([latency], np.int64))[0])
    assert 0 <= bucket < BUCKETS
    assert latency <= highest_of(bucket) <= latency + latency // 128
    assert bucket == 0 or highest_of(bucket - 1) < latency


@given(many, st.floats(0.001, 1.0))
def test_a_percentile_is_that_of_the_sorted_latencies_rounded_up(latencies: list[int], share: float) -> None:
    exact = sorted(latencies)[max(1, min(len(latencies), int(np.ceil(share * len(latencies))))) - 1]
    shown = histogram(latencies).at(share)
    assert shown is not None
    assert exact <= round(shown * 1e9) <= exact + exact // 128


@given(many, many)
def test_merging_counts_what_both_counted(first: list[int], second: list[int]) -> None:
    merged = histogram(first)
    merged.merge(histogram(second))
    merged.merge(LatencyHistogram())
    together = histogram(first, second)
    assert merged.summary() == together.summary()
    assert merged.rows() == together.rows()
    assert merged.count == len(first) + len(second)


@given(many)
def test_least_mean_and_most_are_exact_and_rows_count_everything(latencies: list[int]) -> None:
    made = histogram(latencies)
    summary = made.summary()
    assert summary.minimum == min(latencies) / 1e9
    assert summary.maximum == max(latencies) / 1e9
    assert summary.mean == sum(latencies) / len(latencies) / 1e9
    rows = made.rows()
    assert sum(row.requests for row in rows) == len(latencies)
    assert rows[0].requests
    assert rows[-1].requests
    assert [row.up_to for row in rows] == sorted({row.up_to for row in rows})
    assert rows[-1].up_to >= summary.maximum


def test_longer_than_hours_counts_as_hours_and_backwards_as_nothing() -> None:
    made = histogram([-5, 2**50])
    assert made.count == 2
    assert (made.summary().minimum, made.summary().maximum) == (0.0, 2**50 / 1e9)


def test_nothing_counted_is_nothing_known() -> None:
    made = LatencyHistogram()
    made.add(np.zeros(0, np.int64))
    assert made.summary().p50 is None
    assert made.rows() == ()
    assert made.count == 0


@pytest.mark.parametrize("bucket", [0, 1, 255, 256, 257, 1000, BUCKETS - 1])
def test_buckets_meet(bucket: int) -> None:
    assert int(bucket_of(np.array([highest_of(bucket)], np.int64))[0]) == bucket
