"""Telling index entries at a glance, so that carving does not check every one of them as a record."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.builders import make_records
from waltzctl.engine.scan.byte_source import BytesSource
from waltzctl.engine.scan.carve import carve_records
from waltzctl.engine.scan.index_mask import LARGEST_OFFSET, LARGEST_STEP, LEAST_ENTRIES, inside_index
from waltzctl.formats.request_id import RequestId
from waltzctl.formats.segment import Record, encode_entries, encode_records


def window(data: bytes) -> np.ndarray:  # type: ignore[type-arg]
    return np.frombuffer(data, np.uint8)


@settings(max_examples=60)
@given(
    st.integers(LEAST_ENTRIES, 400),
    st.integers(128, 2**40),
    st.integers(0, 2**32),
    st.binary(max_size=40).filter(lambda data: len(data) % 8 or not data),
)
def test_entries_are_found_at_any_place(count: int, first: int, seed: int, front: bytes) -> None:
    source = random.Random(seed)
    offsets = [first]
    for _ in range(count - 1):
        offsets.append(offsets[-1] + source.choice([40, 41, 140, 100_000]))
    mask = inside_index(window(front + encode_entries(offsets) + b"\xff" * 40))
    assert mask[len(front) : len(front) + 8 * count].all()
    assert not mask[len(front) + 8 * (count + 1) :].any()


@pytest.mark.parametrize("seed", range(9))
def test_records_are_never_taken_for_an_index(seed: int) -> None:
    data = encode_records(make_records(200, seed=seed))[0]
    assert not inside_index(window(data)).any()


def test_records_in_which_every_field_rises_are_not_taken_for_an_index() -> None:
    """They have no data, and their ids, request ids and headers rise like offsets."""
    records = [Record.make(200 * n, RequestId(0, 200 * n + 50, 0, 200 * n + 100), 0, b"") for n in range(2, 300)]
    assert not inside_index(window(encode_records(records)[0])).any()


def test_what_does_not_rise_like_offsets_is_no_index() -> None:
    assert (LEAST_ENTRIES, LARGEST_STEP, LARGEST_OFFSET) == (32, 2**31, 2**48)
    for offsets in (
        [200] * 99,
        [200 - n for n in range(99)],
        [n * 0x9E3779B97F4A7C15 % 2**63 for n in range(99)],
    ):
        assert not inside_index(window(encode_entries(offsets))).any()
    few = list(range(128, 128 + 40 * (LEAST_ENTRIES - 1), 40))
    assert not inside_index(window(encode_entries(few))).any()
    assert inside_index(window(encode_entries([*few, few[-1] + 40]))).all()


@pytest.mark.parametrize("length", [0, 7, 500])
def test_windows_of_any_length(length: int) -> None:
    assert len(inside_index(np.zeros(length, np.uint8))) == length


def test_carving_through_an_index_finds_the_records_on_both_sides() -> None:
    records = make_records(50, size=30)
    body = encode_records(records)[0]
    entries = encode_entries(list(range(128, 128 + 60_000 * 60, 60)))
    found = [
        int(number) for batch in carve_records(BytesSource(body + entries + body)) for number in batch.transaction_id
    ]
    assert found == [*range(50), *range(50)]


def plain(data: bytes) -> list[bool]:
    """The definition, entry by entry."""
    inside = [False] * len(data)
    for phase in range(8):
        row: list[int] = []
        for at in [*range(phase, len(data) - 7, 8), None]:
            entry = None if at is None else int.from_bytes(data[at : at + 8], signed=True)
            if row and entry is not None:
                last = int.from_bytes(data[row[-1] : row[-1] + 8], signed=True)
                if 40 <= entry - last < 2**31 and 128 <= last < 2**48:
                    row.append(at)
                    continue
            if len(row) >= LEAST_ENTRIES:
                inside[row[0] : row[-1] + 8] = [True] * (row[-1] + 8 - row[0])
            row = [] if at is None else [at]
    return inside


@pytest.mark.parametrize("first", [127, 128, 129, 2**48 - 40 * 31 - 1, 2**48 - 40 * 31, 2**48 - 40 * 30, -200])
@pytest.mark.parametrize("count", [LEAST_ENTRIES - 1, LEAST_ENTRIES, LEAST_ENTRIES + 1, LEAST_ENTRIES + 9])
def test_an_index_is_what_it_is_defined_as(first: int, count: int) -> None:
    for step in (39, 40, 2**31 - 1, 2**31):
        for phase in (0, 3):
            for behind in (b"", b"\xff" * 11, encode_entries([7] * 3)):
                offsets = [first + 40 * n for n in range(count - 1)]
                data = b"\1" * (8 + phase) + encode_entries([*offsets, offsets[-1] + step]) + behind
                assert inside_index(window(data)).tolist() == plain(data)


def test_two_indexes_in_one_window() -> None:
    one = encode_entries([128 + 41 * n for n in range(LEAST_ENTRIES)])
    other = encode_entries([128 + 50 * n for n in range(LEAST_ENTRIES - 1)])
    for data in (one + one, one + other, other + one, other + b"-" + one, one + b"-" * 3 + one, one[8:] + one):
        assert inside_index(window(data)).tolist() == plain(data)
